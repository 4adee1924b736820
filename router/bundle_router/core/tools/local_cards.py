"""From a tool's definition to its card: canonical, hashed, counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bundle_router.core.catalog import Card
from bundle_router.core.models.canonical import digest_of, encode


def definition_of(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is hashed and counted: the parts of a definition that a model is shown, without the name."""
    return {"description": description, "parameters": schema}


def card(server: str, tool: str, description: str, schema: Mapping[str, Any], tokens: Mapping[str, int]) -> Card:
    """Return the card of one definition. `tokens` maps a definition's digest to its counted tokens; what was never
    counted is estimated at four bytes a token, and marked so."""
    definition = definition_of(description, schema)
    sha256 = digest_of(definition)
    known = tokens.get(sha256)
    return Card(
        server=server,
        tool=tool,
        description=description,
        schema=encode(schema),
        sha256=sha256,
        tokens=known if known is not None else -(-len(encode(definition)) // 4),
        counted=known is not None,
    )
