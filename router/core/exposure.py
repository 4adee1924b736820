"""What the agent sees now: tool definitions in a provider's form, under names that the provider takes.

Rules:
1. A listing is a pure function of the cards and the bundles: same decision, same bytes. The order is the decision's,
   then the bundle's, so that a set that only grows only appends.
2. An exposed name is at most 64 characters of `[A-Za-z0-9_-]` and leads back to exactly one tool. `server__tool` stands
   as it is where it can be read back; every other name ends in a digest of the canonical one, and no plain name looks
   like that. So no tool can be named into another's place, and neither the order in which servers are heard of nor a
   server that comes later changes a name.
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

_MARK: Final = 8
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_MARKED: Final = re.compile(rf"_[0-9a-f]{{{_MARK}}}(?:[0-9a-f]{{24}})?$")


def _plain_name(canonical: str) -> str:
    server, _, tool = canonical.partition(".")
    return _UNSAFE.sub("_", f"{server}__{tool}")


def _reads_back(canonical: str, plain: str) -> bool:
    """Whether the plain name can only have come from this canonical one: nothing was replaced or is too long, its first
    `__` is the seam, and it does not end like a name with a mark."""
    server, _, tool = canonical.partition(".")
    return (
        plain == f"{server}__{tool}"
        and len(plain) <= MAX_NAME
        and "__" not in server
        and not server.endswith("_")
        and not _MARKED.search(plain)
    )


def _suffixed(canonical: str, plain: str, digits: int = _MARK) -> str:
    mark = hashlib.sha256(canonical.encode()).hexdigest()[:digits]
    return f"{plain[: MAX_NAME - digits - 1]}_{mark}"


def exposed_names(canonical: Iterable[str]) -> dict[str, str]:
    """Canonical name → exposed name, for all tools of a catalog at once (rule 2).

    Names that differ only in case count as colliding: some providers fold it. That can only happen inside one server,
    whose tools are known together, so which other servers are known changes no name.
    """
    plain = {name: _plain_name(name) for name in canonical}
    taken = Counter(short.lower() for short in plain.values())
    names = {
        name: short if taken[short.lower()] == 1 and _reads_back(name, short) else _suffixed(name, short)
        for name, short in plain.items()
    }
    marked = Counter(name.lower() for name in names.values())
    if len(marked) < len(names):  # two digests begin alike: someone took the trouble
        again = {name: _suffixed(name, plain[name], 32) for name, short in names.items() if marked[short.lower()] > 1}
        names |= again
    return names


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
