"""From a tool's definition to its card: canonical and hashed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bundle_router.core.catalog import Card
from bundle_router.core.models.canonical import digest_of, encode


def definition_of(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is hashed and counted: the parts of a definition that a model is shown, without the name."""
    return {"description": description, "parameters": schema}


def card(server: str, tool: str, description: str, schema: Mapping[str, Any]) -> Card:
    """Return the card of one definition. Its tokens are estimated at four bytes a token, and marked so."""
    definition = definition_of(description, schema)
    tokens = -(-len(encode(definition)) // 4)
    return Card(server, tool, description, encode(schema), digest_of(definition), tokens, counted=False)
