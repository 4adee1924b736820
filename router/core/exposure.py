"""What the agent sees now: tool definitions in a provider's form, under names that the provider takes.

Rules:
1. A listing is a pure function of the cards and the bundles: same decision, same bytes. The order is the decision's,
   then the bundle's, so that a set that only grows only appends.
2. An exposed name is at most 64 characters of `[A-Za-z0-9_-]` and leads back to exactly one tool. Two tools that would
   be exposed under one name, whatever servers they come from, both get a digest suffix: neither may stand in for the
   other, and the outcome does not depend on who was listed first.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from router.core.catalog import Card

Format = Literal["openai", "anthropic", "mcp"]
FORMATS: Final[tuple[Format, ...]] = ("openai", "anthropic", "mcp")
MAX_NAME: Final = 64

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def _plain_name(canonical: str) -> str:
    server, _, tool = canonical.partition(".")
    return _UNSAFE.sub("_", f"{server}__{tool}")


def _suffixed(canonical: str, plain: str) -> str:
    mark = hashlib.sha256(canonical.encode()).hexdigest()[:8]
    return f"{plain[: MAX_NAME - 9]}_{mark}"


def exposed_names(canonical: Iterable[str]) -> dict[str, str]:
    """Canonical name → exposed name, for all tools of a catalog at once (rule 2).

    Names that differ only in case count as colliding: some providers fold it.
    """
    plain = {name: _plain_name(name) for name in canonical}
    taken = Counter(name.lower() for name in plain.values())
    return {
        name: short if len(short) <= MAX_NAME and taken[short.lower()] == 1 else _suffixed(name, short)
        for name, short in plain.items()
    }


def definition(card: Card, name: str, form: Format) -> dict[str, Any]:
    """One tool's definition in a provider's form: OpenAI chat completions, Anthropic messages, or MCP `tools/list`."""
    schema = card.input_schema()
    if form == "openai":
        return {
            "type": "function",
            "function": {"name": name, "description": card.description, "parameters": schema},
        }
    if form == "anthropic":
        return {"name": name, "description": card.description, "input_schema": schema}
    return {"name": name, "description": card.description, "inputSchema": schema}


@dataclass(frozen=True, slots=True)
class ActiveTool:
    """One tool the agent sees: its canonical and exposed names, and the bundle it is shown for."""

    name: str
    exposed: str
    bundle: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Toolset:
    """What `Router.tools()` returns.

    `tools` is the array in the provider's form; `guidance` is the text the model should be told about the surface
    (empty when every permitted tool is in `tools`); `tokens` is what the array costs (cl100k_base, OpenAI form);
    `active` says which tools those are; `cap` is the activation's cap in tools; `all_tokens` is what showing every
    tool of the catalog would cost.
    """

    tools: tuple[dict[str, Any], ...]
    guidance: str
    tokens: int
    active: tuple[ActiveTool, ...]
    cap: int
    all_tokens: int


def listing(cards: Sequence[tuple[Card, str]], names: dict[str, str], form: Format) -> tuple[dict[str, Any], ...]:
    """Definitions of the given (card, bundle id) pairs in their order."""
    return tuple(definition(card, names[card.name], form) for card, _ in cards)
