"""The sticky set of a run: what stays visible between steps, and what has to go.

Rules:
1. Only `apply` changes an activation, and it is called once per step, between steps. Nothing is evicted mid-step.
2. The cap counts distinct tools of everything in the set. What one step itself needs may pass it, nothing else may:
   tools(after) <= max(cap, tools(needed)).
3. The least recently used bundle goes first; equal use is broken by id. A bundle is used when a step needs it and when
   one of its tools is called.
4. Time is logical: `used` counts up from the highest in the set. No clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from router.core.models import Activation, Entry, Reason


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


def inherit(parent: Activation) -> Activation:
    """What a sub-agent starts with: the parent's set, each entry marked as inherited."""
    return Activation(tuple(replace(entry, inherited=True) for entry in parent.entries))


def apply(
    activation: Activation,
    needed: Sequence[tuple[str, Reason]],
    tools_of: Callable[[str], Sequence[str]],
    cap: int,
) -> Applied:
    """The activation after a step that needs the given bundles, and what was evicted to hold the cap.

    `tools_of` gives a bundle's tools; a bundle the catalog no longer knows gives none and is dropped silently,
    since there is nothing left to show.
    """
    tick = _tick(activation)
    entries = {entry.id: entry for entry in activation.entries if tools_of(entry.id)}
    fixed = {id_ for id_, _ in needed}
    for id_, reason in needed:
        entries[id_] = Entry(id_, reason, tick)

    counts: Counter[str] = Counter()
    for id_ in entries:
        counts.update(tools_of(id_))
    evicted: list[str] = []
    if len(counts) > cap:
        for entry in sorted(entries.values(), key=lambda e: (e.used, e.id)):
            if len(counts) <= cap:
                break
            if entry.id in fixed:
                continue
            evicted.append(entry.id)
            del entries[entry.id]
            counts.subtract(tools_of(entry.id))
            counts = +counts
    return Applied(_ordered(entries.values()), tuple(evicted))
