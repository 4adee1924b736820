"""Results of the run's methods in the form that a revision of the protocol has for them. Pure.

Rules:
1. A result goes out as its revision's schema has it: fields that the revision does not know are
   left out, and one that does not fit is an error of ours, not the client's.
2. In the modern era each result says whether it is complete and who answers, and those that may be
   cached say for how long and for whom: not at all, since each answer is decided anew.
3. What is announced as there is what this run now passes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp_types import methods
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from bundle_router import __version__
from bundle_router.core.catalog import Feature
from bundle_router.service.mcp.jsonrpc import Json

SERVER: Final[Mapping[str, str]] = {"name": "bundle-router", "version": __version__}
"""What the endpoint says of itself."""
_FRESH: Final[Mapping[str, Any]] = {"ttlMs": 0, "cacheScope": "private"}


def result_for(method: str, version: str, result: Json) -> Json:
    """Return a method's result as that revision has it.

    Raises ValueError for one that does not fit, in words without its contents.
    """
    is_modern = version in MODERN_PROTOCOL_VERSIONS
    if is_modern:
        result = {"resultType": "complete", **result}
    if is_modern and method in methods.CACHEABLE_METHODS and not is_interim(result):
        result = {**_FRESH, **result}
    try:
        shown = methods.serialize_server_result(method, version, result)
    except ValueError:  # a ValidationError, or values that nest deeper than can be written
        raise ValueError(f"a result of {method} does not fit revision {version}") from None
    if is_modern:
        shown["_meta"] = {types.SERVER_INFO_META_KEY: SERVER, **(shown.get("_meta") or {})}
    return shown


def is_interim(result: Json) -> bool:
    """Return whether a result asks the client for input first."""
    return result.get("resultType") == "input_required"


def negotiated_version(requested: str) -> str:
    """Return the revision of the handshake era that a session speaks."""
    if requested in HANDSHAKE_PROTOCOL_VERSIONS:
        return requested
    return LATEST_HANDSHAKE_VERSION


def initialize_result(version: str, features: frozenset[Feature], guidance: str) -> Json:
    """Return the result of `initialize`: `version` is the negotiated revision."""
    result: Json = {
        "protocolVersion": version,
        "capabilities": _capabilities(features),
        "serverInfo": SERVER,
    }
    if guidance:
        result["instructions"] = guidance
    return result


def discover_result(features: frozenset[Feature], guidance: str) -> Json:
    """Return the result of `server/discover`."""
    result: Json = {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": _capabilities(features),
    }
    if guidance:
        result["instructions"] = guidance
    return result


def _capabilities(features: frozenset[Feature]) -> Json:
    """Return what the run offers."""
    capabilities: Json = {"tools": {"listChanged": True}}
    if "resources" in features:
        capabilities["resources"] = {"subscribe": True, "listChanged": True}
    if "prompts" in features:
        capabilities["prompts"] = {"listChanged": True}
    if "completion" in features:
        capabilities["completions"] = {}
    if "logging" in features:
        capabilities["logging"] = {}
    return capabilities
