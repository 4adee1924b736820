"""Values of admission: limits and their violations, admitted tools, refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from bundle_router.core.catalog import Card
from bundle_router.core.values import Effect

RefusalCode = Literal[
    "not_an_object",
    "bad_name",
    "duplicate",
    "too_many_tools",
    "too_large",
    "too_deep",
    "too_many_nodes",
    "not_json",
    "not_object_schema",
    "bad_schema",
    "remote_ref",
    "broken_ref",
    "endless_ref",
    "bad_pattern",
    "hidden_text",
]
"""The reasons for refusing a definition."""


@dataclass(frozen=True, slots=True)
class DefinitionLimits:
    """Limits of one definition.

    Of 1,642 real tools the largest has 82 kB, 3,151 nodes, 25 levels and a description of 40,325
    characters. A description over `max_description_chars` is cut, with a notice; all other limits
    refuse. `max_expanded_nodes` counts a schema with every reference written out (a recursive one
    once): it bounds the work of validators and generators.
    """

    max_tools: int = 5_000
    max_bytes: int = 256 * 1024
    max_depth: int = 64
    max_nodes: int = 10_000
    max_expanded_nodes: int = 100_000
    max_pattern_chars: int = 2_000
    max_description_chars: int = 16_384
    max_instructions_chars: int = 65_536


@dataclass(frozen=True, slots=True)
class RefusedTool:
    """A refused definition."""

    name: str
    """Its name, safe to print."""
    code: RefusalCode
    """The reason."""
    detail: str
    """Where it is wrong, and what is."""


@dataclass(frozen=True, slots=True)
class AdmittedTool:
    """An admitted definition and its source."""

    card: Card
    """What the router uses of it."""
    definition: str
    """The canonical JSON of the original definition: the text that a person reviews."""
    title: str = ""
    """Its title, if it has one."""
    effects: tuple[Effect, ...] = ()
    """The effects that its annotations admit."""
    notes: tuple[str, ...] = ()
    """What was repaired or left out, in words."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The result of admitting one server's list."""

    server: str
    """The server's name."""
    tools: tuple[AdmittedTool, ...]
    """The admitted tools by name, as the server's order has no meaning."""
    refused: tuple[RefusedTool, ...] = ()
    """The definitions that were refused."""
    instructions: str = ""
    """The server's text about itself, cut to its bound."""
    begins_with_handshake: bool = False
    """Whether the server ends at the question for its era, or does not answer it."""

    @property
    def cards(self) -> Mapping[str, Card]:
        """Cards by canonical name."""
        return MappingProxyType({tool.card.name: tool.card for tool in self.tools})


Fault = tuple[RefusalCode, str]


def beyond_bounds(value: Any, limits: DefinitionLimits) -> Fault | None:
    """Return why the value exceeds the bounds or is not JSON; None if it is fine.

    Bytes are the text's own length plus its punctuation, so that no encoder has to run first.
    """
    waiting: list[tuple[Any, int]] = [(value, 1)]
    nodes = size = 0
    while waiting:
        item, depth = waiting.pop()
        nodes += 1
        if nodes > limits.max_nodes:
            return "too_many_nodes", f"more than {limits.max_nodes:,} values"
        if depth > limits.max_depth:
            return "too_deep", f"nested more than {limits.max_depth} levels"
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    return "not_json", f"an object key is a {type(key).__name__}"
                size += _length(key) + 4
            waiting.extend((inner, depth + 1) for inner in item.values())
        elif isinstance(item, list):
            waiting.extend((inner, depth + 1) for inner in item)
            size += 2 + len(item)
        elif isinstance(item, str):
            size += _length(item) + 2
        elif (fault := _number_fault(item)) is not None:
            return fault
        else:
            size += 8
        if size > limits.max_bytes:
            return "too_large", f"more than {limits.max_bytes:,} bytes"
    return None


def _length(text: str) -> int:
    """Return an upper bound of the UTF-8 length without encoding: 4 bytes for a character outside
    ASCII.
    """
    return len(text) if text.isascii() else 4 * len(text)


def _number_fault(item: object) -> Fault | None:
    if isinstance(item, int):
        if item.bit_length() > 1_000:
            return ("too_large", "a number of more than 300 digits")
        return None
    if isinstance(item, float):
        return None if math.isfinite(item) else ("not_json", f"{item} is not a JSON number")
    return None if item is None else ("not_json", f"holds a {type(item).__name__}")
