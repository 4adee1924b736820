"""The shipped library, and a short one that tests can read at a glance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admit import admit
from bundle_router.core.servers.admission.admitted import Admitted
from bundle_router.core.servers.admission.identity import identity
from bundle_router.review.library import LibraryServer

Listing = Callable[..., Admitted]


def _tool(definition: dict[str, Any], effects: list[str], **more: Any) -> dict[str, Any]:
    return {
        "name": definition["name"],
        "effects": effects,
        "clause": definition["description"],
        "sha256": identity(definition, "Be kind."),
        **more,
    }


@pytest.fixture
def post_office() -> list[dict[str, Any]]:
    """Definitions of a server that the short library knows."""
    words = {"get_letter": "Reads a letter.", "send_letter": "Sends it.", "burn": "Burns letters."}
    return [
        {"name": name, "description": text, "inputSchema": {"type": "object"}}
        for name, text in words.items()
    ]


@pytest.fixture
def short_library(post_office: list[dict[str, Any]]) -> tuple[LibraryServer, ...]:
    get_letter, send_letter, burn = post_office
    texts = {"avoid": "Not for parcels.", "words": {"de": ["Brief"], "fr": ["lettre"]}}
    kinds = {
        "read": [_tool(get_letter, ["read"])],
        "risky": [
            _tool(burn, ["write"], differed=True),
            _tool(send_letter, ["write", "network"], unsure=True),
        ],
    }
    bundles = {
        kind: {
            "description": f"Letters: {kind}.",
            "examples": [f"{kind} letter {number}" for number in range(6)],
            "tools": tools,
            **texts,
        }
        for kind, tools in kinds.items()
    }
    return (
        LibraryServer.model_validate(
            {
                "schema": "bundle-router.library/1",
                "revision": 3,
                "server": "post",
                "package": "post-office",
                "registry": "npm",
                "versions": ["2.0"],
                "read_on": "2026-11-29",
                "licence": "MIT",
                "bundles": bundles,
            }
        ),
    )


@pytest.fixture
def listing() -> Listing:
    def make(
        definitions: list[dict[str, Any]], instructions: str = "Be kind.", **server: Any
    ) -> Admitted:
        return admit(Server("mail", "stdio", command="x", **server), definitions, instructions)

    return make
