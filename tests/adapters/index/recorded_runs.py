"""Runs that a test has written down, to index: implements
`adapters.index.exposures.IndexedRuns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bundle_router.adapters.archive import RunSummary, VerifyReport
from bundle_router.core.records.read_model import RunStamp
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.errors import CorruptRun


class RecordedRuns:
    """Runs by their id, as lists of records that may grow, be replaced and be labelled."""

    def __init__(self, records: Mapping[str, Iterable[dict[str, Any]]]) -> None:
        self.records: dict[str, Any] = dict(records)
        self.said: dict[str, list[StepLabel]] = {}
        self.read = 0
        """Records that were read so far."""

    def stamps(self) -> dict[str, RunStamp]:
        return {
            run_id: RunStamp(
                len(records) if isinstance(records, list) else 1,
                "",
                str(len(self.said.get(run_id, ()))),
            )
            for run_id, records in self.records.items()
        }

    def records_after(self, run_id: str, positions: dict[str, int]) -> Iterator[dict[str, Any]]:
        start = positions.get("records", 0)
        records = self.records[run_id]
        for at, record in enumerate(records[start:] if start else records, start + 1):
            positions["records"] = at
            self.read += 1
            yield record

    def labels(self, run_id: str) -> list[StepLabel]:
        return self.said.get(run_id, [])

    def summary(self, run_id: str) -> RunSummary:
        return RunSummary(run_id, f"{run_id}/", "closed", opened="2026-01-01T00:00:00Z")

    def verify(self, run_id: str, *, catalogs: bool) -> VerifyReport:
        records = len(self.records[run_id]) if isinstance(self.records[run_id], list) else 0
        return VerifyReport(run_id, f"{run_id}/", "closed", records, None, (), (), ())

    def catalog(self, run_id: str, revision: str | None = None) -> dict[str, Any]:
        raise CorruptRun(f"{run_id} holds no catalog {revision}")
