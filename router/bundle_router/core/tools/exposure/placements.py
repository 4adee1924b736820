"""The values of a surface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bundle_router.core.models import MODES, Mode
from bundle_router.core.models.canonical import digest_of
from bundle_router.dataclass import dataclass

Place = Mode
"""Where a permitted tool is: in the array, behind search until it is asked for, behind `call_tool` for good, or called
by programs alone (`execute`). A mode is where a bundle wants its tools."""


@dataclass(frozen=True, slots=True)
class PlacedTool:
    """One permitted tool (canonical name), the bundle it is shown for, and what its definition costs in tokens."""

    name: str
    bundle: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the permitted tools of a decision are. `direct` is in the order of the array, the others in the decision's.

    `activated` holds the direct ones that are there because the run asked for them. `reading_from` says before which of
    the direct ones the tools that read artifacts stand; None where there is nothing to read yet.
    """

    direct: tuple[PlacedTool, ...] = ()
    deferred: tuple[PlacedTool, ...] = ()
    meta: tuple[PlacedTool, ...] = ()
    activated: frozenset[str] = frozenset()
    code: tuple[PlacedTool, ...] = ()
    reading_from: int | None = None

    def rows(self) -> Iterator[tuple[Place, PlacedTool]]:
        """Yield every tool with its place, the most open places first."""
        for place in MODES:
            rows: tuple[PlacedTool, ...] = getattr(self, place)
            yield from ((place, row) for row in rows)

    @property
    def behind(self) -> bool:
        """Whether anything is to be had by search: the agent then needs the tools that find it, and to be told."""
        return self.found_by_name or bool(self.code)

    @property
    def found_by_name(self) -> bool:
        """Whether anything is to be had by search and called by its name."""
        return bool(self.deferred or self.meta or self.activated)


@dataclass(frozen=True, slots=True)
class ActiveTool:
    """One tool the agent sees: its canonical and exposed names, and the bundle it is shown for."""

    name: str
    exposed: str
    bundle: str
    tokens: int


@dataclass(frozen=True, slots=True)
class DeferredTool:
    """One permitted tool that is not in the array and joins it when it is asked for. `definition` is in the provider's
    form, as the array would hold it; None where only its name is known."""

    name: str
    exposed: str
    bundle: str
    tokens: int
    definition: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SkillText:
    """Instructions that come with a shown bundle, in an operator's words. `tools` are the exposed names of those tools
    that they name and that are permitted."""

    bundle: str
    name: str
    description: str
    tools: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Toolset:
    """What `Router.tools()` returns."""

    tools: tuple[dict[str, Any], ...]
    """The array, in the provider's form."""
    guidance: str
    """What the model is told besides; empty where every permitted tool is in the array."""
    tokens: int
    """What the array costs (cl100k_base, OpenAI form)."""
    active: tuple[ActiveTool, ...]
    """The tools of the catalog that are in the array."""
    cap: int
    """How many tools that were asked for the array keeps."""
    all_tokens: int
    """What showing every tool of the catalog would cost."""
    deferred: tuple[DeferredTool, ...] = ()
    """Permitted tools that join the array when they are asked for, with their definitions."""
    meta: tuple[str, ...] = ()
    """Canonical names of permitted tools that never join it."""
    skills: tuple[SkillText, ...] = ()
    """Instructions that come with the shown bundles."""
    decision_id: str = ""
    """The decision that it shows."""

    @property
    def digest(self) -> str:
        """The digest of the array and the guidance: while it is the same, a model has been told nothing new."""
        return digest_of([self.tools, self.guidance])

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {**asdict(self), "digest": self.digest}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Toolset:
        """Return the toolset that `to_json` gave. Raises KeyError or TypeError for what is not one."""
        return cls(
            tools=tuple(value["tools"]),
            guidance=value["guidance"],
            tokens=value["tokens"],
            active=tuple(ActiveTool(**row) for row in value["active"]),
            cap=value["cap"],
            all_tokens=value["all_tokens"],
            deferred=tuple(DeferredTool(**row) for row in value["deferred"]),
            meta=tuple(value["meta"]),
            skills=tuple(SkillText(**{**row, "tools": tuple(row["tools"])}) for row in value["skills"]),
            decision_id=value["decision_id"],
        )
