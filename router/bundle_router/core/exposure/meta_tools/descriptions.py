"""The meta-tools' answers about tools: search results, a bundle's list, one tool in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.activation import Room
from bundle_router.core.exposure.meta_tools.coercion import MAX_FOUND
from bundle_router.core.exposure.meta_tools.signatures import one_line, signature, takes_nothing
from bundle_router.core.exposure.placements import PlacedTool, Placement
from bundle_router.core.exposure.stubs import functions
from bundle_router.core.values import MODES, Mode
from bundle_router.core.values.words import shorten

ANSWER_CHARS: Final = 2_000
"""Maximum characters of one search answer, about 500 tokens; the best result may fill it."""
ABOUT_CHARS: Final = 140
SHORT_ABOUT_CHARS: Final = 70
PAGE: Final = 100
"""Tools per listing."""
UNTRUSTED: Final = "[third party] "
LEGEND: Final = "Untyped parameters are strings; ? may be left out."


@dataclass(frozen=True, slots=True)
class MetaAnswer:
    """A text for the model, and the tools (canonical names) it is about, which may now join the
    array.
    """

    text: str
    tools: tuple[str, ...] = ()
    signed: tuple[str, ...] = ()
    """The tools whose signatures it contains."""


@dataclass(frozen=True)
class VisibleTools:
    """The run's present tools for the answers: their places and names."""

    catalog: Catalog
    placement: Placement
    exposed: Mapping[str, str]
    joins: bool = True
    """Whether found tools join the array; false if the array can't change (MCP)."""
    described: Collection[str] = ()
    """Tools whose signatures the agent has already received at this step."""
    room: Room = Room()
    """Budget for tools that join the array."""
    type_seen: Callable[[str], str] = lambda _tool: ""
    """The type of a tool's recorded results, by its canonical name; empty where there are none."""

    def returns(self, tool: str) -> str:
        """Return the type of a tool's results for programs; empty where it is not known, or the
        tool is not called by them.
        """
        if not MODES[self.places[tool]].by_program:
            return ""
        return self.catalog.cards[tool].returns or self.type_seen(tool)

    @cached_property
    def places(self) -> dict[str, Mode]:
        return {row.name: place for place, row in self.placement.rows()}

    @cached_property
    def waiting(self) -> frozenset[str]:
        """Those that join the array when they are asked for."""
        return frozenset(row.name for row in self.placement.deferred)

    @cached_property
    def in_array(self) -> frozenset[str]:
        return frozenset(row.name for row in self.placement.direct)


def found_text(visible: VisibleTools, ranked: Sequence[str], limit: int = MAX_FOUND) -> MetaAnswer:
    """Return the search results, best first: for each a signature and a line, as many as fit."""
    places = visible.places
    hits = [tool for tool in ranked if tool in places][: min(limit, MAX_FOUND)]
    if not hits:
        return MetaAnswer(
            "Nothing found. Try other words for what the tool should do, or list_tools to see what"
            " there is."
        )
    rows: list[str] = []
    listed: list[str] = []
    room = ANSWER_CHARS
    for position, tool in enumerate(hits):
        row = _row(visible, tool, ABOUT_CHARS if position < 4 else SHORT_ABOUT_CHARS)[:ANSWER_CHARS]
        if rows and len(row) > room:
            break
        room -= len(row) + 1
        rows.append(row)
        listed.append(tool)
    unlisted = len(places) - len(listed)
    tail = f"{LEGEND} {_how(visible, listed)}" + (
        f" {unlisted} tools are not listed here." if unlisted > 0 else ""
    )
    return MetaAnswer(
        "\n".join((*rows, tail)), tuple(filter(visible.waiting.__contains__, listed)), tuple(listed)
    )


def _row(visible: VisibleTools, tool: str, about_chars: int, *, again: bool = False) -> str:
    name = visible.exposed.get(tool, tool)
    card = visible.catalog.cards.get(tool)
    if card is None:
        return f"{name}: its definition is read when it is first called"
    if tool in visible.in_array:
        return f"{name}: already in your tool list"
    if tool in visible.described and not again:
        return f"{name}: shown earlier"
    line = one_line(card.description, about_chars)
    mark = UNTRUSTED if _is_untrusted(visible.catalog, tool) else ""
    returns = visible.returns(tool)
    signed = f"{signature(name, card)} -> {returns}" if returns else signature(name, card)
    return f"{signed}{': ' if line or mark else ''}{mark}{line}"


def _is_untrusted(catalog: Catalog, tool: str) -> bool:
    server = catalog.servers.get(tool.partition(".")[0])
    return server is None or server.trust == "untrusted"


def _how(visible: VisibleTools, listed: Collection[str]) -> str:
    """Return how the tools are called: those of programs first, then those that never join the
    array, else those that join it now.
    """
    by_mode: dict[Mode, list[str]] = {}
    for tool in listed:
        by_mode.setdefault(visible.places[tool], []).append(tool)

    programs = [mode for mode in by_mode if MODES[mode].by_program]
    if programs:
        name = _name_in_programs(visible, by_mode[programs[0]][0])
        rest = [tool for tool in listed if visible.places[tool] not in programs]
        return f"{MODES[programs[0]].how.format(name=name)} {_how(visible, rest)}".rstrip()

    fixed = [MODES[mode].how for mode in MODES if mode in by_mode and not MODES[mode].may_join]
    if fixed:
        return " ".join(fixed)
    joining = [row for row in visible.placement.deferred if row.name in listed]
    if not joining:
        return ""
    if not visible.joins:
        return MODES["meta"].how
    return _how_joining(visible, joining)


def _how_joining(visible: VisibleTools, joining: Sequence[PlacedTool]) -> str:
    """Return how tools are called that join the array, as far as there is room."""
    catalog = visible.catalog
    names = {row.name for row in joining}
    for row in joining:
        names.update(catalog.bundles[row.bundle].companions)
    cards = [catalog.cards[name] for name in sorted(names) if name in catalog.cards]
    fitting = visible.room.fitting(cards)
    if len(fitting) == len(cards):
        return MODES["deferred"].how
    return (
        f"Your tool list has room for {len(fitting)} more at this step: call the others with"
        " call_tool."
    )


def _name_in_programs(visible: VisibleTools, tool: str) -> str:
    names = functions({t: visible.exposed.get(t, t) for t in visible.places})
    return next(name for name, named in names.items() if named == tool)


def selected_text(
    visible: VisibleTools, tools: Sequence[str], unknown: Sequence[str]
) -> MetaAnswer:
    """Return the signatures of tools selected by name, and what was wrong with other names."""
    rows = [_row(visible, tool, ABOUT_CHARS, again=True) for tool in tools]
    tail = [f"{LEGEND} {_how(visible, tools)}".rstrip()] if tools else []
    return MetaAnswer(
        "\n".join((*rows, *unknown, *tail)), tuple(filter(visible.waiting.__contains__, tools))
    )


def list_bundles(visible: VisibleTools) -> MetaAnswer:
    """Return every bundle of the decision with its number of tools and its purpose, one line
    each.
    """
    counts = Counter(row.bundle for _, row in visible.placement.rows())
    rows = [
        f"{id_} {count}: {one_line(visible.catalog.bundles[id_].description, 160)}"
        for id_, count in sorted(counts.items())
    ]
    return MetaAnswer(
        "\n".join((*rows, "list_tools with one of these names lists its tools."))
        if rows
        else "No tools."
    )


def list_bundle(visible: VisibleTools, id_: str) -> MetaAnswer:
    """Return the tools of one bundle of the decision, one line each."""
    places = visible.places
    bundle = visible.catalog.bundle(id_)
    if bundle is not None:
        bundle_tools = sorted(tool for tool in bundle.tools if tool in places)
    else:
        bundle_tools = []
    if not bundle_tools:
        return MetaAnswer(
            f"There is no bundle {shorten(id_, 100)!r} here. list_tools without a name lists them."
        )
    rows = []
    for tool in bundle_tools[:PAGE]:
        card = visible.catalog.cards.get(tool)
        mark = UNTRUSTED if _is_untrusted(visible.catalog, tool) else ""
        line = one_line(card.description, 80) if card is not None else ""
        note = " (in your tool list)" if tool in visible.in_array else ""
        rows.append(f"{visible.exposed.get(tool, tool)}{note}: {mark}{line}".rstrip(": "))
    if len(bundle_tools) > PAGE:
        rows.append(f"and {len(bundle_tools) - PAGE} more: search_tools finds them")
    return MetaAnswer("\n".join(rows))


def describe_tool(visible: VisibleTools, tool: str) -> MetaAnswer:
    """Return one tool's full description and schema."""
    card = visible.catalog.cards.get(tool)
    name = visible.exposed.get(tool, tool)
    joins = (tool,) if tool in visible.waiting else ()
    if card is None:
        return MetaAnswer(
            f"{name}: its definition is not known yet; it is read when the tool is first called.",
            joins,
        )
    mark = UNTRUSTED if _is_untrusted(visible.catalog, tool) else ""
    schema = "It takes no arguments." if takes_nothing(card) else f"Schema: {card.schema}"
    returns = visible.returns(tool)
    result = f"\nReturns: {returns}" if returns else ""
    return MetaAnswer(f"{name}: {mark}{card.description}\n{schema}{result}", joins)
