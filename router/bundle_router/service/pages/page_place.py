"""Where a page of a run stands in the whole of it: its number, the strip of parts, and jumps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bundle_router.core.records.outline import MARKS, Mark
from bundle_router.core.records.read_model import RunPart, Timeline

CELLS: Final = 120
"""Maximum cells of the strip; in longer runs a cell stands for several parts."""

Tone = Literal["bad", "warn", ""]


@dataclass(frozen=True, slots=True)
class Jump:
    """A record to go to, and the first record of the part that it is in."""

    seq: int
    start: int
    is_here: bool
    """Whether it is on this page."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the strip: a link to its first record."""

    first_seq: int
    words: str
    tone: Tone
    is_here: bool


class PagePlace:
    """The place of one page in its run, which is cut into parts."""

    def __init__(self, parts: Sequence[RunPart], start: int, shown: Timeline) -> None:
        self._parts = parts
        self._start = start
        self._index = _index_with(parts, start)
        self._next_seq = shown.next_seq

    @property
    def page(self) -> int:
        """The number of the part that the page begins in, from 1."""
        return self._index + 1

    @property
    def pages(self) -> int:
        return len(self._parts)

    @property
    def previous(self) -> int | None:
        """The first record of the page before; None on the first."""
        if not self._parts or self._start <= self._parts[0].first_seq:
            return None
        part = self._parts[self._index]
        if part.first_seq == self._start and self._index:
            part = self._parts[self._index - 1]
        return part.first_seq

    @property
    def last(self) -> int:
        """The first record of the last page."""
        return self._parts[-1].first_seq if self._parts else 0

    def jumps(self) -> dict[Mark, Jump]:
        """Return the first record of the run with each mark."""
        jumps: dict[Mark, Jump] = {}
        for part in self._parts:
            firsts = zip(
                MARKS, (part.first_denied, part.first_failed, part.first_doubt), strict=True
            )
            for mark, seq in firsts:
                if seq is not None and mark not in jumps:
                    jumps[mark] = Jump(seq, part.first_seq, self._is_here(seq))
        return {mark: jumps[mark] for mark in MARKS if mark in jumps}

    def strip(self) -> list[Cell]:
        """Return the cells of the whole run; none where one page shows it."""
        if len(self._parts) < 2:
            return []
        size = -(-len(self._parts) // CELLS)
        groups = [self._parts[start : start + size] for start in range(0, len(self._parts), size)]
        return [self._cell(group) for group in groups]

    def _cell(self, parts: Sequence[RunPart]) -> Cell:
        first, last = parts[0].first_seq, parts[-1].last_seq
        counts = _counts_of(parts)
        words = [f"{sum(part.steps for part in parts):,} steps"]
        for word, count in counts.items():
            if count:
                words.append(f"{count:,} {word}")

        text = f"records {first:,} to {last:,}: {', '.join(words)}"
        return Cell(first, text, _tone_of(counts), self._covers(parts))

    def _covers(self, parts: Sequence[RunPart]) -> bool:
        return parts[0].first_seq <= self._start <= parts[-1].last_seq

    def _is_here(self, seq: int) -> bool:
        return self._start <= seq and (self._next_seq is None or seq < self._next_seq)


def _counts_of(parts: Sequence[RunPart]) -> dict[str, int]:
    """Return how much went wrong in these parts of a run, by the words for it."""
    return {
        "denied": sum(part.denied for part in parts),
        "failed": sum(part.failed for part in parts),
        "in doubt": sum(part.doubt for part in parts),
    }


def _tone_of(counts: Mapping[str, int]) -> Tone:
    if counts["denied"] or counts["failed"]:
        return "bad"
    return "warn" if counts["in doubt"] else ""


def part_with(parts: Sequence[RunPart], seq: int) -> RunPart:
    """Return the part that a record is in; the nearest for one that no part shows."""
    return parts[_index_with(parts, seq)]


def _index_with(parts: Sequence[RunPart], seq: int) -> int:
    starts = [part.first_seq for part in parts]
    return max(0, bisect_right(starts, seq) - 1)
