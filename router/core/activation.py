"""The sticky set of a run: what stays visible between steps, and what has to go.

Rules:
1. Only `apply` changes an activation, and it is called once per step, between steps. Nothing is evicted mid-step.
2. The cap counts distinct tools of everything in the set: those a bundle shows, and those asked for. What one step
   itself needs may pass it, nothing else may: tools(after) <= max(cap, tools(needed)).
3. The least recently used bundle goes first; equal use is broken by id. A bundle is used when a step needs it and when
   one of its tools is called.
4. Time is logical: `used` counts up from the highest in the set. No clock.
5. A tool that was asked for stays until its bundle goes, or, between steps, until over `cap` were asked for after it.
   `place` is given once, counting up, and kept: what is in the set keeps its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from router.core.models import Activation, Asked, Entry, Reason

MAX_ASKED: Final = 128
"""Tools one run may have asked for at a time. More are found and called all the same, but don't join the array."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What a step made of an activation."""

    after: Activation
    evicted: tuple[str, ...]


def _ordered(entries: Iterable[Entry]) -> Activation:
    return Activation(tuple(sorted(entries, key=lambda entry: entry.id)))


def _tick(activation: Activation) -> int:
    return max((entry.used for entry in activation.entries), default=0) + 1


def touch(activation: Activation, id_: str) -> Activation:
    """The activation after a tool of bundle `id_` was called. An id that is not in the set changes nothing."""
    tick = _tick(activation)
    if all(entry.id != id_ for entry in activation.entries):
        return activation
    return Activation(tuple(replace(e, used=tick) if e.id == id_ else e for e in activation.entries))


def ask_for(activation: Activation, id_: str, tools: Iterable[str]) -> Activation:
    """The activation after tools of bundle `id_` were asked for. Where the bundle is not in the set nothing changes."""
    entry = next((entry for entry in activation.entries if entry.id == id_), None)
    if entry is None:
        return activation
    tick, known = _tick(activation), {asked.name: asked for asked in entry.tools}
    room = MAX_ASKED - sum(len(other.tools) for other in activation.entries)
    for name in dict.fromkeys(tools):
        if name in known:
            known[name] = replace(known[name], used=tick)
        elif room > 0:
            room -= 1
            known[name] = Asked(name, _next_place(activation) + len(known) - len(entry.tools), tick)
    changed = replace(entry, used=tick, tools=tuple(known.values()))
    return Activation(tuple(changed if other is entry else other for other in activation.entries))


def _next_place(activation: Activation) -> int:
    places = [place for e in activation.entries for place in (e.place, *(asked.place for asked in e.tools))]
    return max(places, default=-1) + 1


def inherit(parent: Activation) -> Activation:
    """What a sub-agent starts with: the parent's set, each entry marked as inherited."""
    return Activation(tuple(replace(entry, inherited=True) for entry in parent.entries))


def apply(
    activation: Activation,
    needed: Sequence[tuple[str, Reason]],
    tools_of: Callable[[str], Sequence[str] | None],
    cap: int,
) -> Applied:
    """The activation after a step that needs the given bundles, and what was evicted to hold the cap.

    `tools_of` gives the tools a bundle shows without being asked; a bundle the catalog no longer knows gives None and
    is dropped silently, since there is nothing left to show.
    """
    tick, place = _tick(activation), _next_place(activation)
    entries = {entry.id: entry for entry in _within(activation, cap) if tools_of(entry.id) is not None}
    fixed = {id_ for id_, _ in needed}
    for id_, reason in needed:
        known = entries.get(id_)
        entries[id_] = Entry(id_, reason, tick, False, known.place if known else place, known.tools if known else ())
        place += known is None

    counts: Counter[str] = Counter()
    for entry in entries.values():
        counts.update(_counted(entry, tools_of))
    evicted: list[str] = []
    if len(counts) > cap:
        for entry in sorted(entries.values(), key=lambda e: (e.used, e.id)):
            if len(counts) <= cap:
                break
            if entry.id in fixed:
                continue
            evicted.append(entry.id)
            del entries[entry.id]
            counts.subtract(_counted(entry, tools_of))
            counts = +counts
    return Applied(_ordered(entries.values()), tuple(evicted))


def _counted(entry: Entry, tools_of: Callable[[str], Sequence[str] | None]) -> set[str]:
    return {*(tools_of(entry.id) or ()), *(asked.name for asked in entry.tools)}


def _within(activation: Activation, cap: int) -> Iterator[Entry]:
    """The entries with the `cap` tools that were asked for last."""
    if not any(entry.tools for entry in activation.entries):
        yield from activation.entries
        return
    asked = sorted(((tool.used, tool.place) for e in activation.entries for tool in e.tools), reverse=True)
    kept = frozenset(asked[: max(cap, 0)])
    for entry in activation.entries:
        tools = tuple(tool for tool in entry.tools if (tool.used, tool.place) in kept)
        yield entry if tools == entry.tools else replace(entry, tools=tools)
