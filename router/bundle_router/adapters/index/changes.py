"""What differs between an index and its runs, by the stamps of the runs. Reads no record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass

from bundle_router.adapters.index.exposures import IndexedRuns
from bundle_router.core.records.read_model import RunStamp
from bundle_router.errors import UnknownRun


@dataclass(frozen=True, slots=True)
class Source:
    """How far a run was read."""

    length: int = 0
    """These three are the run's stamp at that time."""
    records: str = ""
    rest: str = ""
    positions: str = "{}"
    """The position in each file, as JSON."""
    head: str = ""
    """The hash of the last record."""

    def file_positions(self) -> dict[str, int]:
        """Return the position in each file."""
        positions: dict[str, int] = json.loads(self.positions)
        return positions

    def is_of(self, stamp: RunStamp) -> bool:
        """Return whether this is the run as it is now."""
        return (self.length, self.records, self.rest) == (stamp.length, stamp.records, stamp.rest)


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """What an index has to do."""

    changed: tuple[str, ...]
    """Runs that are new, or whose files changed."""
    ended_runs: tuple[str, ...]
    """Runs whose writers ended, which no file tells."""
    deleted_runs: tuple[str, ...]
    """Runs that the index holds and that are no longer there."""

    @property
    def to_read(self) -> tuple[str, ...]:
        """The runs that have to be read."""
        return (*self.changed, *self.ended_runs)


def find_changes(
    archive: IndexedRuns,
    stamps: Mapping[str, RunStamp],
    known: Mapping[str, Source],
    open_runs: Set[str],
) -> IndexChanges:
    """Return what changed since the runs were read as `known`.

    `open_runs` are those that some process wrote at that time.
    """
    changed = tuple(
        run_id
        for run_id, stamp in stamps.items()
        if (source := known.get(run_id)) is None or not source.is_of(stamp)
    )
    ended_runs = tuple(
        run_id
        for run_id in sorted(open_runs & stamps.keys() - set(changed))
        if not _is_open(archive, run_id)
    )
    return IndexChanges(changed, ended_runs, tuple(sorted(known.keys() - stamps.keys())))


def _is_open(archive: IndexedRuns, run_id: str) -> bool:
    try:
        return bool(archive.summary(run_id).state == "open")
    except UnknownRun:  # deleted meanwhile
        return False
