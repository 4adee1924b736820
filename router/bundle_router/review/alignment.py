"""Aligns two sequences: which item of one is the counterpart of which item of the other.

Rules:
1. Items with the same key are counterparts. Those left are aligned by each of the given names in
   turn. Within one name, the first goes with the first.
2. Two items that both have a key are aligned by that key or not at all.
3. An item has at most one counterpart.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar


class Keyed(Protocol):
    """What can be aligned."""

    @property
    def key(self) -> str:
        """The engine's name for it; empty if it has none."""


T = TypeVar("T", bound=Keyed)
Pairs = Mapping[int, tuple[int, str]]
"""By the index of an item of the first side: that of its counterpart, and the name that they share
(`key`, or one of those given).
"""


def align(
    a: Sequence[T], b: Sequence[T], names: Mapping[str, Callable[[T], Hashable]]
) -> dict[int, tuple[int, str]]:
    """Return the index in `b` of the counterpart of each index in `a` that has one.

    Keys are tried first, then each of `names` in order, on what is left.
    """
    counterparts: dict[int, tuple[int, str]] = {}
    keyed: dict[str, deque[int]] = defaultdict(deque)
    for index, item in enumerate(b):
        if item.key:
            keyed[item.key].append(index)
    for index, item in enumerate(a):
        if item.key and keyed.get(item.key):
            counterparts[index] = (keyed[item.key].popleft(), "key")

    used = {index for index, _ in counterparts.values()}
    for by, name in names.items():
        unmatched = _Unmatched(b, used, name)
        for index, item in enumerate(a):
            if index in counterparts:
                continue
            matched_index = unmatched.take(name(item), without_key=bool(item.key))
            if matched_index is not None:
                counterparts[index] = (matched_index, by)
                used.add(matched_index)
    return counterparts


class _Unmatched:
    """What of one side has no counterpart yet, by name, with and without a key."""

    def __init__(self, side: Sequence[T], used: set[int], name: Callable[[T], Hashable]) -> None:
        self._by_name: dict[Hashable, tuple[deque[int], deque[int]]] = defaultdict(
            lambda: (deque(), deque())
        )
        for index, item in enumerate(side):
            if index not in used:
                self._by_name[name(item)][bool(item.key)].append(index)

    def take(self, name: Hashable, *, without_key: bool) -> int | None:
        """Return the first of that name, which then has a counterpart."""
        if name not in self._by_name:
            return None
        plain, keyed = self._by_name[name]
        if without_key or not keyed:
            return plain.popleft() if plain else None
        if plain and plain[0] < keyed[0]:
            return plain.popleft()
        return keyed.popleft()


def in_order(
    a: Sequence[T], b: Sequence[T], pairs: Pairs
) -> Iterator[tuple[T | None, T | None, str]]:
    """Yield the aligned items in the order of the first side, with the name that they share.

    Items of the second side without a counterpart stand behind the one that they follow there; an
    item without one stands beside None, and shares no name.
    """
    matched = {index for index, _ in pairs.values()}
    follows: dict[int, list[int]] = defaultdict(list)
    previous = -1
    for index in range(len(b)):
        if index in matched:
            previous = index
        else:
            follows[previous].append(index)
    yield from ((None, b[index], "") for index in follows[-1])
    for index, item in enumerate(a):
        if index not in pairs:
            yield item, None, ""
            continue
        matched_index, by = pairs[index]
        yield item, b[matched_index], by
        yield from ((None, b[later], "") for later in follows[matched_index])
