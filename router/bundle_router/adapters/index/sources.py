"""What the index reads runs from: the part of `adapters.archive.RunArchive` that it uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from bundle_router.core.records.read_model import RunStamp
from bundle_router.review.learning.steps import StepLabel


class IndexedRuns(Protocol):
    """Runs to index."""

    def stamps(self) -> Mapping[str, RunStamp]:
        """The stamp of every run, without reading any."""

    def records_after(self, run_id: str, positions: dict[str, int]) -> Iterator[dict[str, Any]]:
        """The records after the positions, which move along. Raises UnknownRun, CorruptRun."""

    def labels(self, run_id: str) -> Sequence[StepLabel]:
        """The reviewers' labels. Raises CorruptRun, UnknownRun."""

    def summary(self, run_id: str) -> Any:
        """The run at a glance: a `RunSummary`. Raises UnknownRun."""

    def catalog(self, run_id: str, revision: str | None = None) -> Mapping[str, Any]:
        """The catalog of a revision. Raises UnknownRun, CorruptRun."""
