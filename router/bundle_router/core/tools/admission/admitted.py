"""What admission takes and gives: limits, admitted tools, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

from bundle_router.core.catalog import Card
from bundle_router.core.models import Effect
from bundle_router.dataclass import dataclass

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
REFUSAL_CODES: Final[tuple[RefusalCode, ...]] = get_args(RefusalCode)
"""Why a definition was refused."""


@dataclass(frozen=True, slots=True)
class DefinitionLimits:
    """What one definition may be at most.

    Over 1,642 real tools the largest has 82 kB, 3,151 nodes, 25 levels and a description of 40,325 characters.
    `max_description_chars` cuts, with a notice; all others refuse. `max_expanded_nodes` counts a schema with every
    reference written out (a recursive one once): it bounds what a validator or a generator may have to do.
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
    """A definition that did not become a card. `name` is safe to print; `detail` says where and what."""

    name: str
    code: RefusalCode
    detail: str


@dataclass(frozen=True, slots=True)
class AdmittedTool:
    """A card with what was said about it: `definition` is the canonical JSON of the definition as it came (the text a
    person reviews), `effects` what its annotations admit to, `notes` what was repaired or left out, in words."""

    card: Card
    definition: str
    title: str = ""
    effects: tuple[Effect, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of one server's list. `tools` are sorted by name: the server's order means nothing."""

    server: str
    tools: tuple[AdmittedTool, ...]
    refused: tuple[RefusedTool, ...] = ()
    instructions: str = ""

    @property
    def cards(self) -> Mapping[str, Card]:
        """Cards by canonical name."""
        return MappingProxyType({tool.card.name: tool.card for tool in self.tools})
