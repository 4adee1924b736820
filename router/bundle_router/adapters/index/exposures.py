"""The source of runs to index, and the tools that each decision showed, computed once per distinct
exposure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from bundle_router.core.catalog import Catalog
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.model_view import placement_of
from bundle_router.core.records.read_model import RunStamp
from bundle_router.core.records.replayed import catalog_from
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.records.tables import Row, exposure_row
from bundle_router.core.values.canonical import digest, encode
from bundle_router.errors import CorruptRun, UnknownRun

KEPT: Final = 64
"""Number of parsed catalogs that are cached."""


class ChainBreak(Protocol):
    """The first record of a run that is not as it was written."""

    @property
    def seq(self) -> int: ...

    @property
    def detail(self) -> str: ...


class Verification(Protocol):
    """Whether a run is as it was written."""

    @property
    def records(self) -> int:
        """The first records, which are."""

    @property
    def broken(self) -> ChainBreak | None: ...

    @property
    def problems(self) -> Sequence[str]: ...


class IndexedRuns(Protocol):
    """The runs to index."""

    def stamps(self) -> Mapping[str, RunStamp]:
        """Return the stamp of every run, without reading any."""

    def records_after(self, run_id: str, positions: dict[str, int]) -> Iterator[dict[str, Any]]:
        """Yield the records after the positions, and update these.

        Raises UnknownRun, CorruptRun.
        """

    def labels(self, run_id: str) -> Sequence[StepLabel]:
        """Return the reviewers' labels. Raises CorruptRun, UnknownRun."""

    def summary(self, run_id: str) -> Any:
        """Return the run's summary, a `RunSummary`. Raises UnknownRun."""

    def verify(self, run_id: str, *, catalogs: bool) -> Verification:
        """Check the chain and the header, and the `catalogs`. Raises UnknownRun, StorageError."""

    def catalog(self, run_id: str, revision: str | None = None) -> Mapping[str, Any]:
        """Return the catalog of a revision. Raises UnknownRun, CorruptRun."""


class Exposures:
    """The exposures of the decisions of one archive.

    The rows of each exposure are returned once.
    """

    def __init__(self, archive: IndexedRuns) -> None:
        self._archive = archive
        self._catalogs: dict[str, Catalog | None] = {}
        self._known: dict[str, str | None] = {}
        self.problems: list[tuple[str, str]] = []

    def of(self, run_id: str, record: Mapping[str, Any]) -> tuple[str | None, list[Row]]:
        """Return the digest of a decision's exposure, and its rows unless they were returned
        before.

        The digest is None if the catalog is missing or the record is malformed.
        """
        try:
            key = _key(record)
        except (TypeError, ValueError, AttributeError):
            return None, []
        if key in self._known:
            return self._known[key], []
        rows = self._rows(run_id, record)
        exposure = digest(encode(rows)) if rows is not None else None
        self._known[key] = exposure
        return exposure, [exposure_row({"exposure": exposure, **row}) for row in rows or ()]

    def _rows(self, run_id: str, record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        try:
            decided = DecisionRecord.from_json(record)
            catalog = self._catalog(run_id, decided.decision.catalog_revision)
            if catalog is None:
                return None
            placement, _ = placement_of(catalog, decided)
        except (KeyError, TypeError, ValueError, AttributeError, CorruptRun):
            return None
        rows = [
            {"tool": row.name, "bundle": row.bundle, "place": place, "tokens": row.tokens}
            for place, row in placement.rows()
        ]
        return [{"position": position, **row} for position, row in enumerate(rows)]

    def _catalog(self, run_id: str, revision: str) -> Catalog | None:
        if revision not in self._catalogs:
            if len(self._catalogs) >= KEPT:
                self._catalogs.clear()
            try:
                self._catalogs[revision] = catalog_from(self._archive.catalog(run_id, revision))
            except (CorruptRun, UnknownRun) as error:
                self._catalogs[revision] = None
                self.problems.append(
                    (run_id, f"what run {run_id!r} showed, since its config can't be read: {error}")
                )
        return self._catalogs[revision]


def _key(record: Mapping[str, Any]) -> str:
    """Return everything that determines an exposure, as text."""
    step = record.get("step")
    if step:
        step_fields = {k: v for k, v in step.items() if k not in ("goal", "constraints", "labels")}
    else:
        step_fields = None
    modes = [(row.get("id"), row.get("mode")) for row in _mappings(record.get("bundles"))]
    activation = record.get("activation")
    places = []
    if isinstance(activation, Mapping):
        places = [_places_in(row) for row in _mappings(activation.get("after"))]
    parts = [record.get("catalog_revision"), record.get("facts"), step_fields, modes, places]
    return digest(encode(parts))


def _mappings(rows: Any) -> list[Mapping[str, Any]]:
    """Return those of a record's rows that are objects; none for an absent or empty list."""
    return [row for row in rows or () if isinstance(row, Mapping)]


def _places_in(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a bundle's id and place, and the names and places of its tools."""
    tools = [(tool.get("name"), tool.get("place")) for tool in row.get("tools", ())]
    return row.get("id"), row.get("place"), tools
