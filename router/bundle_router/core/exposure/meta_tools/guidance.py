"""The guidance for the model: that there are more tools than in its array, how to get them, and an
index of bundles.

The index fits a budget by saying less of each bundle, in rounds over all of them in the decision's
order: only their number; each with id and number of tools; then with its purpose; then with the
names of its tools. Naming bundles has a larger budget than the later rounds. Ids and descriptions
are the operator's; the tool names of an untrusted server were listed by the operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.exposure.meta_tools.signatures import one_line
from bundle_router.core.exposure.placements import Place, Placement
from bundle_router.core.values import MODES, Decision

TOLD_TOKENS: Final = 100
"""Maximum tokens of the index for more than the bundles' names."""
NAMED_TOKENS: Final = 500
"""Maximum tokens of the index for the bundles' names: some ninety bundles."""
CHARS_A_TOKEN: Final = 2.75
"""Minimum characters per token (cl100k_base: 2.76 measured over a bare list of 53 names, over 4 in
sentences).
"""
MAX_ABOUT: Final = 90
MAX_BEHIND_ABOUT: Final = 70
"""Maximum characters of a bundle's description in that of `search_tools`."""
MAX_LISTED: Final = 20
"""Maximum evicted tools, and bundles without a server, that are named."""
NOTHING_LEFT: Final = (
    "You have no tools now, since the servers of these bundles do not answer or can't be used: {}."
    " Do what you can without them, and say what is left undone: it can be done once they answer"
    " and the step is begun again."
)

INTRODUCTION: Final = (
    "Some tools you may use are not in your tool list. search_tools finds them; call_tool calls one"
    " by name."
)


IN_CODE: Final = (
    "Some tools are called by programs: search_tools gives their names and arguments, execute runs"
    " a program over them (result = await name(argument=...)) and gives you what it prints. Results"
    " reach the program whole, as values: after -> stands their type, where it is known."
)


@dataclass(frozen=True, slots=True)
class _Line:
    """The line of a bundle in the index, in several lengths, shortest first."""

    ways: tuple[str, ...]


def guidance(
    catalog: Catalog, placement: Placement, exposed: Mapping[str, str], evicted: Sequence[str] = ()
) -> str:
    """Return the guidance for a placement; without tools behind search only about evicted ones.

    `exposed`: exposed names by canonical; `evicted`: tools that left the array when the step
    began.
    """
    eviction_text = _eviction_text(evicted, exposed, catalog.settings.activation.max_tools)
    if not placement.behind:
        return eviction_text
    hidden = _hidden_tools(placement)
    lines = [_line(catalog, id_, sorted(tools), exposed) for id_, tools in hidden.items()]
    total = sum(map(len, hidden.values()))
    parts = [INTRODUCTION] if placement.found_by_name else []
    parts += [IN_CODE] if placement.by_program else []
    text = f"{' '.join(parts)} {_index(lines, total)}"
    return f"{text}\n{eviction_text}" if eviction_text else text


def words_behind(catalog: Catalog, placement: Placement) -> list[str]:
    """Return the operator's words for each bundle that has tools behind search, in the order of the
    index. Tools that join the array change nothing.
    """
    bundles = [catalog.bundles.get(id_) for id_ in _hidden_tools(placement)]
    return [one_line(bundle.description, MAX_BEHIND_ABOUT) for bundle in bundles if bundle]


def without_tools(decision: Decision, lost: Iterable[str] = ()) -> str:
    """Return the guidance where no tool is left: which bundles have no server now.

    `lost`: those the decision shows.
    """
    left_out = (
        row.id for row in decision.left_out if row.code == "server_unavailable" and row.tool is None
    )
    unusable = [*lost, *left_out]
    return NOTHING_LEFT.format(_listed(unusable)) if unusable else ""


def _eviction_text(evicted: Sequence[str], exposed: Mapping[str, str], cap: int) -> str:
    """Return the sentence about evicted tools; it stays true when one of them is asked for
    again.
    """
    if not evicted:
        return ""
    names = _listed([exposed.get(tool, tool) for tool in evicted])
    reason = f"for want of room; it keeps the last {cap} asked for at most"
    return f"When this step began, these left your tool list {reason}: {names}."


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _hidden_tools(placement: Placement) -> dict[str, list[str]]:
    """Return the tools behind search by bundle, those that have joined the array since among them.

    The order is that of their places, then the decision's: what joins changes nothing in it.
    """
    by_place: dict[Place, dict[str, list[str]]] = {place: {} for place in MODES}
    for place, row in placement.rows():
        has_joined = row.name in placement.activated
        if has_joined or not MODES[place].in_array:
            place_before: Place = "deferred" if has_joined else place
            by_place[place_before].setdefault(row.bundle, []).append(row.name)
    hidden: dict[str, list[str]] = {}
    for bundles in by_place.values():
        for id_ in sorted(bundles, key=placement.bundles.index):
            hidden.setdefault(id_, []).extend(bundles[id_])
    return hidden


def _line(catalog: Catalog, id_: str, tools: Sequence[str], exposed: Mapping[str, str]) -> _Line:
    bundle = catalog.bundles.get(id_)
    head = f"{id_} {len(tools)}"
    about = one_line(bundle.description, MAX_ABOUT) if bundle is not None else ""
    names = ", ".join(exposed.get(tool, tool) for tool in tools)
    ways = [head]
    if about:
        ways.append(f"{head}: {about}")
    if len(tools) > 0:
        ways.append(f"{head}: {about} [{names}]" if about else f"{head}: [{names}]")
    return _Line(tuple(ways))


def _index(lines: Sequence[_Line], total: int) -> str:
    levels = _levels(lines)
    short = []
    long = []
    for line, level in zip(lines, levels, strict=True):
        if level == 0:
            short.append(line.ways[0])
        elif level > 0:
            long.append(f"- {line.ways[level]}")
    missing = sum(level < 0 for level in levels)

    parts = [*long]
    if short:
        parts.append(", ".join(short))
    if parts:
        parts.insert(0, "Bundles, with their number of tools:")
    if missing:
        more = "more " if parts else ""
        parts.append(f"{missing} {more}bundles ({total} tools in all): list_tools names them")
    return "\n".join(parts)


def _levels(lines: Sequence[_Line]) -> list[int]:
    """Return how much of each line there is room for: an index of its ways, -1 for none.

    Every line gets its shortest way before any gets a longer one.
    """
    levels = [-1] * len(lines)
    used = 0
    for level in range(3):
        bound = (TOLD_TOKENS if level else NAMED_TOKENS) * CHARS_A_TOKEN
        for index, line in enumerate(lines):
            if level >= len(line.ways) or levels[index] != level - 1:
                continue
            cost = len(line.ways[level]) + 2
            if level:
                cost -= len(line.ways[level - 1]) + 2
            if used + cost <= bound:
                used += cost
                levels[index] = level
    return levels
