"""The values of a surface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bundle_router.core.values import MODES, Mode
from bundle_router.core.values.canonical import digest_of

Place = Mode
"""The place of a permitted tool: in the array, behind search until it is asked for, always behind
`call_tool`, or called by programs only (`execute`). A bundle's mode is the place it wants.
"""


@dataclass(frozen=True, slots=True)
class PlacedTool:
    """One permitted tool (canonical name), the bundle it is shown for, and the tokens of its
    definition.
    """

    name: str
    bundle: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of a decision's permitted tools.

    Those in the array are in its order, the others in the decision's.

    `activated` are the direct tools that the run asked for. `reading_from` is the index in `direct`
    where the tools that read artifacts are inserted; None as long as there is nothing to read.
    """

    placed: Mapping[Place, tuple[PlacedTool, ...]]
    activated: frozenset[str] = frozenset()
    reading_from: int | None = None
    bundles: tuple[str, ...] = ()
    """The bundles, in the decision's order."""

    def rows(self) -> Iterator[tuple[Place, PlacedTool]]:
        """Yield every tool with its place, in the order of `MODES`."""
        for place in MODES:
            yield from ((place, row) for row in self.placed.get(place, ()))

    @property
    def direct(self) -> tuple[PlacedTool, ...]:
        return self.placed.get("direct", ())

    @property
    def deferred(self) -> tuple[PlacedTool, ...]:
        return self.placed.get("deferred", ())

    @property
    def by_name(self) -> tuple[PlacedTool, ...]:
        """Return those that never join the array: they are called by name, through `call_tool`."""
        return tuple(
            row
            for place, row in self.rows()
            if not (MODES[place].may_join or MODES[place].by_program)
        )

    @property
    def by_program(self) -> bool:
        """Whether programs call any of them."""
        return any(MODES[place].by_program for place, _ in self.rows())

    @property
    def behind(self) -> bool:
        """Whether any tool is behind search: the agent then needs the search tools, and
        guidance.
        """
        return self.found_by_name or self.by_program

    @property
    def found_by_name(self) -> bool:
        """Whether any tool is found by search and called by its name."""
        return bool(self.activated or self.deferred or self.by_name)


@dataclass(frozen=True, slots=True)
class ActiveTool:
    """One tool in the array."""

    name: str
    """Its canonical name, `server.tool`."""
    exposed: str
    """The name that the model sees."""
    bundle: str
    """The bundle that it is shown for."""
    tokens: int
    """Tokens of its definition."""


@dataclass(frozen=True, slots=True)
class DeferredTool:
    """One permitted tool outside the array, which joins it when it is asked for."""

    name: str
    """Its canonical name, `server.tool`."""
    exposed: str
    """The name that the model calls it by."""
    bundle: str
    """The bundle that it is permitted through."""
    tokens: int
    """Tokens of its definition."""
    definition: dict[str, Any] | None = None
    """Its definition in the provider's form; None if only the tool's name is known."""


@dataclass(frozen=True, slots=True)
class SkillText:
    """A shown bundle's instructions, in an operator's words."""

    bundle: str
    """The bundle that brings it."""
    name: str
    """Its name."""
    description: str
    """What it is for."""
    tools: tuple[str, ...]
    """The exposed names of the permitted tools that it names."""
    text: str
    """The instructions."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """The result of `Router.tools()`.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Route, fake_router, small_catalog
    >>> route = Route("all", bundles=("repo.readonly",))
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]}, routes=[route])
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> with fake_router(catalog) as router:
    ...     decision = router.route_sync(step)
    ...     toolset = router.tools_sync("r-42")
    >>> [(tool.name, tool.exposed, tool.tokens) for tool in toolset.active]
    [('repo.read_file', 'repo__read_file', 10)]
    """

    tools: tuple[dict[str, object], ...]
    """The array, in the provider's form."""
    guidance: str
    """Text for the model; empty if every permitted tool is in the array, and there is one."""
    tokens: int
    """Tokens of the array (cl100k_base, OpenAI form)."""
    active: tuple[ActiveTool, ...]
    """The catalog's tools that are in the array."""
    cap: int
    """Maximum tools in the array that were asked for."""
    all_tokens: int
    """Tokens of an array with every tool of the catalog."""
    deferred: tuple[DeferredTool, ...] = ()
    """Permitted tools that join the array when asked for, with their definitions."""
    meta: tuple[str, ...] = ()
    """Canonical names of permitted tools that never join the array."""
    skills: tuple[SkillText, ...] = ()
    """Instructions of the shown bundles."""
    decision_id: str = ""
    """The decision that this is a view of."""
    held: tuple[str, ...] = ()
    """Canonical names of tools that a row of approvals may hold: shown as ever, this is for the
    engine.
    """

    @property
    def digest(self) -> str:
        """Digest of the array and the guidance; unchanged while the model sees the same."""
        return digest_of([self.tools, self.guidance])

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values."""
        row = {**asdict(self), "digest": self.digest}
        if not self.held:
            del row["held"]
        return row

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Toolset:
        """Return the toolset of `to_json`'s value.

        Raises KeyError or TypeError for any other value.
        """
        return cls(
            tools=tuple(value["tools"]),
            guidance=value["guidance"],
            tokens=value["tokens"],
            active=tuple(ActiveTool(**row) for row in value["active"]),
            cap=value["cap"],
            all_tokens=value["all_tokens"],
            deferred=tuple(DeferredTool(**row) for row in value["deferred"]),
            meta=tuple(value["meta"]),
            skills=tuple(
                SkillText(**{**row, "tools": tuple(row["tools"])}) for row in value["skills"]
            ),
            decision_id=value["decision_id"],
            held=tuple(value.get("held", ())),
        )
