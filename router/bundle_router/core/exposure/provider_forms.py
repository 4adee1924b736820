"""Definitions in providers' forms: OpenAI, Anthropic, MCP; also deferred natively, if the provider
can.

Rules of native deferral:
1. Anthropic: a deferred tool carries `defer_loading`, never `cache_control`. Anthropic's search
   tool comes first and is not deferred, so at least one tool never is.
2. OpenAI (Responses API): a bundle is a namespace, whose functions carry `defer_loading`;
   `tool_search` comes last. All functions are then in the flat form of that API.
3. MCP has no deferral: all deferred tools stay behind `search_tools`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from bundle_router.core.catalog import Card

Format = Literal["openai", "anthropic", "mcp"]
FORMATS: Final[tuple[Format, ...]] = ("openai", "anthropic", "mcp")
NATIVE: Final[frozenset[Format]] = frozenset(("openai", "anthropic"))
"""Forms of providers with native deferral."""

ANTHROPIC_SEARCH: Final = {
    "type": "tool_search_tool_bm25_20251119",
    "name": "tool_search_tool_bm25",
}
OPENAI_SEARCH: Final = {"type": "tool_search"}
MAX_NAMESPACE_TEXT: Final = 300
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


def form_of(name: str, description: str, schema: Mapping[str, Any], form: Format) -> dict[str, Any]:
    """Return one definition in a provider's form: OpenAI chat completions, Anthropic messages, or
    MCP `tools/list`.
    """
    if form == "openai":
        return {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": schema},
        }
    if form == "anthropic":
        return {"name": name, "description": description, "input_schema": schema}
    return {"name": name, "description": description, "inputSchema": schema}


def definition(card: Card, name: str, form: Format) -> dict[str, Any]:
    """Return the definition of a card's tool, exposed as `name`, as the provider takes it."""
    from bundle_router.core.exposure.provider_schemas import accepted  # no decision needs it

    description, schema = accepted(card.description, card.schema, card.input_schema(), form)
    return form_of(name, description, schema, form)


def listing(
    cards: Iterable[Card], names: Mapping[str, str], form: Format
) -> tuple[dict[str, Any], ...]:
    """Return the definitions of the cards in their order. `names`: exposed by canonical."""
    return tuple(definition(card, names[card.name], form) for card in cards)


def with_deferred(
    shown: Sequence[dict[str, Any]],
    deferred: Sequence[tuple[str, str, Sequence[Card]]],
    names: Mapping[str, str],
    form: Format,
) -> tuple[dict[str, Any], ...]:
    """Return the array with all deferred tools, for the provider to search.

    `deferred` holds (bundle id, its description, cards); `shown` are definitions in the same form.
    Without deferred tools the array is unchanged.
    """
    deferring = [(id_, text, cards) for id_, text, cards in deferred if cards]
    if not deferring or form not in NATIVE:
        return tuple(shown)
    if form != "anthropic":
        flat = [_flatten(row) for row in shown]
        spaces = [_namespace(id_, text, cards, names) for id_, text, cards in deferring]
        return (*flat, *spaces, dict(OPENAI_SEARCH))

    definitions = []
    for _, _, cards in deferring:
        for card in cards:
            definitions.append({**definition(card, names[card.name], form), "defer_loading": True})
    return (dict(ANTHROPIC_SEARCH), *shown, *definitions)


def _flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a function from the chat completions form to that of the Responses API."""
    return {"type": "function", **row["function"]}


def _namespace(
    id_: str, text: str, cards: Sequence[Card], names: Mapping[str, str]
) -> dict[str, Any]:
    functions = [
        {**_flatten(definition(card, names[card.name], "openai")), "defer_loading": True}
        for card in cards
    ]
    short = " ".join(text.split())[:MAX_NAMESPACE_TEXT]
    return {
        "type": "namespace",
        "name": _UNSAFE.sub("_", id_)[:64],
        "description": short,
        "tools": functions,
    }
