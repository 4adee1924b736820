"""Reads runs for the pages: lists from the index, a decision from the run's records, the present
config from its folder.

Rules:
1. Reading writes nothing but the index, which is a cache. A reviewer's label is the one thing that
   is written.
2. A list, a timeline or an overview uses the index alone. A run's files are parsed only for a
   requested record, artifact or chain.
3. A decision is explained under the config it was made with. The file and line of its rows are
   looked up by name in the present config; a row that is not there any more has no place.
4. An unknown id raises UnknownRun or RequestError, never KeyError.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.system import SystemClock
from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.explanation import Explanation, explain
from bundle_router.core.records.model_view import ModelView, model_view
from bundle_router.core.records.replayed import catalog_from
from bundle_router.core.records.step_labels import label_of
from bundle_router.core.values import RecentStep
from bundle_router.errors import ConfigError, CorruptRun, RequestError, UnknownRun
from bundle_router.review.edit_places import Places, edit_places
from bundle_router.wiring.catalogs import LocalServers
from bundle_router.wiring.stores import RunPlace, open_archive

if TYPE_CHECKING:
    from bundle_router.adapters.archive import RunArchive
    from bundle_router.adapters.index import RunIndex

KEPT: Final = 32
"""Recorded catalogs that are kept in memory."""
RECENT: Final = 5
CALLS: Final = 100
"""Calls of a step that its page lists; the run's timeline has all of them."""
PLAYED: Final = frozenset(
    (
        "audio/flac",
        "audio/mpeg",
        "audio/ogg",
        "audio/wav",
        "audio/x-wav",
        "video/mp4",
        "video/ogg",
        "video/webm",
    )
)
"""The types of sounds and videos that a browser may play in place."""
Row = tuple[str, str, str | None]
"""`policy` or `route`, a row's name, and its place in the present config."""


@dataclass(frozen=True, slots=True)
class DecisionDetail:
    """One decision with everything on its page.

    `catalog` is the one it was made under and `view` what the model was shown; both are None where
    the run does not have it. `rows` are the policy rows that covered the step, and the route, each
    with its place in the present config. `prompt` is the router's question to its model, in this
    version's wording.
    """

    record: DecisionRecord
    line: Mapping[str, Any]
    catalog: Catalog | None
    view: ModelView | None
    rows: tuple[Row, ...]
    calls: tuple[Mapping[str, Any], ...]
    labels: tuple[Mapping[str, Any], ...]
    before: int | None
    after: int | None
    prompt: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """The bytes of an artifact."""

    data: bytes
    mime_type: str
    """The type by their content."""
    inline: bool
    """Whether a browser may show them in place."""
    width: int | None = None
    """The pixels of a picture, as its header says; None where they are not known."""
    height: int | None = None


class RunReader:
    """Reads the runs of one store and the config beside them. Safe for many threads."""

    def __init__(
        self,
        archive: RunArchive,
        index: RunIndex,
        config: str | Path | None = None,
        local: LocalServers | None = None,
    ) -> None:
        self._archive = archive
        self.index = index
        """Lists, timelines, overviews and the full-text search."""
        self._config = config
        self._local = local
        self._catalogs: OrderedDict[str, Catalog | None] = OrderedDict()
        self._valid = Catalog()
        self.where = archive.where
        """The place of the runs, for people."""

    def close(self) -> None:
        self.index.close()

    def refresh(self, *, now: bool = False) -> str:
        """Update the index unless that was done a moment ago.

        Return why it failed, or an empty text.
        """
        self.index.refresh(now=now)
        return self.index.stale

    # --- from the run -----------------------------------------------------------------------------

    def record(self, run_id: str, seq: int) -> dict[str, Any]:
        """Return one record as it was written. Raises UnknownRun, RequestError."""
        record = self._archive.record(run_id, seq)
        if record is None:
            raise RequestError(f"run {run_id!r} has no record {seq}")
        return record

    def decision(self, run_id: str, seq: int) -> DecisionDetail:
        """Return a decision with everything on its page.

        Raises UnknownRun, RequestError, CorruptRun.
        """
        line, record = self._read_decided(run_id, seq)
        catalog = self.recorded_catalog(run_id, record.decision.catalog_revision)
        previous_seq, next_seq = self.index.neighbours_of(run_id, seq)
        return DecisionDetail(
            record=record,
            line=line,
            catalog=catalog,
            view=model_view(catalog, record) if catalog is not None else None,
            rows=self._rows(catalog, record),
            calls=tuple(self.index.rows_of("calls", run_id, limit=CALLS, decision_seq=seq)),
            labels=tuple(self.index.rows_of("labels", run_id, seq=seq)),
            before=previous_seq,
            after=next_seq,
            prompt=self._prompt(run_id, catalog, record),
        )

    def _read_decided(self, run_id: str, seq: int) -> tuple[dict[str, Any], DecisionRecord]:
        line = self.record(run_id, seq)
        if line.get("type") != "route.decided":
            raise RequestError(f"record {seq} of run {run_id!r} is not a decision")
        return line, DecisionRecord.from_json(line)

    def recorded_catalog(self, run_id: str, revision: str) -> Catalog | None:
        """Return a catalog that the run was recorded under; None where the run does not have it."""
        if revision not in self._catalogs:
            try:
                self._catalogs[revision] = catalog_from(self._archive.catalog(run_id, revision))
            except CorruptRun:
                return None
            while len(self._catalogs) > KEPT:
                self._catalogs.popitem(last=False)
        return self._catalogs[revision]

    def why(self, run_id: str, seq: int, name: str) -> Explanation:
        """Return all tests of a tool or bundle at a decision. Raises as `decision` does."""
        _, record = self._read_decided(run_id, seq)
        catalog = self.recorded_catalog(run_id, record.decision.catalog_revision)
        if catalog is None:
            raise RequestError(f"run {run_id!r} does not hold the config of its decision {seq}")
        activation = record.decision.before
        return explain(catalog, record.facts, activation, record.step, name, lambda _: record.reply)

    def known_names(self, run_id: str, seq: int) -> list[str]:
        """Return the tools and bundles that the decision's config has.

        Raises as `decision` does.
        """
        _, record = self._read_decided(run_id, seq)
        catalog = self.recorded_catalog(run_id, record.decision.catalog_revision)
        if catalog is None:
            return []
        return sorted(
            {
                *catalog.bundles,
                *(tool for bundle in catalog.bundles.values() for tool in bundle.tools),
            }
        )

    def _prompt(
        self, run_id: str, catalog: Catalog | None, record: DecisionRecord
    ) -> tuple[str, str] | None:
        """Return the question to the router's model, in the wording of this version."""
        if catalog is None or record.decision.model is None:
            return None
        from bundle_router.core.decide.asking.prompt import prompt_for

        question = decide(Plans(catalog), record.facts, record.decision.before, record.step)
        if not isinstance(question, Question):
            return None
        recent = [
            RecentStep(row["role"] or "", row["step"] or "", row["goal"] or "", ())
            for row in self.index.rows_of("decisions", run_id)
            if row["seq"] < record.decision.seq
        ][-RECENT:]
        picks = catalog.settings.model.max_picks
        prompt = prompt_for(catalog, question.candidates, record.step, recent, picks)
        return prompt.system, prompt.user

    def artifact(self, run_id: str, sha256: str) -> StoredBytes:
        """Return the bytes of an artifact of a run.

        Raises UnknownRun, RequestError, CorruptRun, StorageError.
        """
        from bundle_router.adapters.media import INLINE, describe

        try:
            data = self._archive.artifacts(run_id).get(sha256)
        except KeyError:
            raise RequestError(f"run {run_id!r} holds no artifact {sha256[:64]}") from None
        facts = describe(data)
        is_inline = facts.mime_type in INLINE or facts.mime_type in PLAYED
        return StoredBytes(data, facts.mime_type, is_inline, facts.width, facts.height)

    def verified(self, run_id: str) -> tuple[bool, str]:
        """Return whether the run's chain is intact, and what it protects against or where it
        breaks.
        """
        report = self._archive.verify(run_id)
        if report.broken is not None:
            return False, f"record {report.broken.seq}: {report.broken.detail}"
        return report.ok, report.problems[0] if report.problems else report.protection

    # --- a reviewer's word ------------------------------------------------------------------------

    def label(
        self,
        run_id: str,
        seq: int,
        *,
        needed: tuple[str, ...],
        not_needed: tuple[str, ...],
        by: str,
    ) -> None:
        """Store a reviewer's label of a decision.

        Raises RequestError for a bundle that its config does not have.
        """
        _, record = self._read_decided(run_id, seq)
        catalog = self.recorded_catalog(run_id, record.decision.catalog_revision)
        self._archive.add_label(
            run_id, label_of(record, catalog, needed, not_needed, by, SystemClock().time_ns())
        )
        self.index.refresh(now=True)

    # --- the config in force ----------------------------------------------------------------------

    def in_force(self) -> tuple[Catalog, list[str]]:
        """Return the present config.

        Where it is invalid: the last valid one that was read here (an empty one if none was), and
        what is wrong, one line each.
        """
        from bundle_router.wiring.catalogs import load_catalog

        try:
            self._valid = load_catalog(self._config, local=self._local)
        except (ConfigError, RequestError) as error:
            return self._valid, str(error).splitlines() if isinstance(error, ConfigError) else [
                error.message
            ]
        return self._valid, []

    def pins(self, server: str) -> Any:
        """Return the pins of a server; None where it has none. Raises CorruptPins."""
        from bundle_router.wiring.catalogs import open_pins

        return open_pins(self._config).read(server)

    def _rows(self, catalog: Catalog | None, record: DecisionRecord) -> tuple[Row, ...]:
        if catalog is None:
            return ()
        places = self.row_places()
        address = address_of(record.step)
        keys: list[tuple[str, str]] = [
            ("policy", row.name) for row in catalog.policies if row.covers(address)
        ]
        keys += [("route", record.decision.route)] if record.decision.route else []
        return tuple((kind, name, places.get((kind, name))) for kind, name in keys)

    def row_places(self) -> Places:
        """Return the file and line of each entry of the present config, also where it is
        invalid.
        """
        from bundle_router.adapters.config_files import read_config
        from bundle_router.core.config.overlay import in_order, merge_files
        from bundle_router.core.config.problem_report import Report

        try:
            files = in_order(read_config(self._config))
        except ConfigError:
            return {}
        return edit_places(merge_files(files, Report(files)))


def open_reader(
    runs: RunPlace = "runs",
    *,
    store: RunPlace | None = None,
    config: str | Path | None = None,
    local: LocalServers | None = None,
    report: Callable[[int, int], None] | None = None,
) -> RunReader:
    """Open the reader of a runs folder, of a store's URL, or of a store, and update its index.

    Raises RequestError, StorageError.

    `report` gets the number of changed runs read so far, and of all.
    """
    from bundle_router.adapters.index import RunIndex, index_url

    archive = open_archive(runs if store is None else store)
    index = RunIndex(archive, index_url(archive), report)
    return RunReader(archive, index, config, local)


__all__ = ["DecisionDetail", "RunReader", "StoredBytes", "UnknownRun", "open_reader"]
