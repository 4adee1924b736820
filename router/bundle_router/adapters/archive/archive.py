"""Reads recorded runs, wherever they are stored.

See `bundle_router.adapters.archive` for the rules.
"""

from __future__ import annotations

import contextlib
import heapq
import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from bundle_router.adapters.archive.head_files import FolderHeads
from bundle_router.core.records.call_records import Record, read_record
from bundle_router.core.records.chain import BadLine, Break, Head, check, link, parse
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.heads import NO_HEAD, StoredHead, faults_of_head, missing_runs
from bundle_router.core.records.read_model import RunStamp
from bundle_router.core.records.receipt import make_receipt
from bundle_router.core.records.run_header import FIRST_CATALOG, RunHeader, catalog_file
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.values import RUN_ID
from bundle_router.core.values.artifacts import ArtifactFile
from bundle_router.core.values.canonical import digest_of, encode
from bundle_router.errors import CorruptRun, RequestError, StorageError, UnknownRun, storage_error

UNKEYED: Final = (
    "the chain has no key: it finds accidental and careless changes, not a deliberate forgery"
)
"""Note about the protection of a run without a kept head."""
SIGNED: Final = (
    "its head is kept and signed: a record rewritten, a cut end and a removed run are found"
)
KEPT: Final = (
    "its head is kept, unsigned or without the key to check it: it protects while nobody else can"
    " write it"
)
_CATALOG: Final = re.compile(r"catalog(-\w{1,64})?\.json", re.ASCII)
_CALL_END: Final = b'"type":"call.finished"'
_CALL_ID: Final = re.compile(rb'"call_id":"((?:[^"\\]|\\.)*)"')
_REVISION: Final = re.compile(rb'"catalog_revision":"(sha256:[0-9a-f]{64})"')
ADVICE: Final = "`bundle-router runs verify` names the first bad record"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes after the last complete line of a file: a record that was never acknowledged."""

    file: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of one run, made without parsing records.

    `state`: `open` (some process works on it: `pid`, 0 if unknown), `closed`, `ended` (no process
    works on it, but it was not closed), or `unreadable` (`problem` says why). `records` is the
    count in the run's end; for runs that are not closed, the number of lines. `bytes` counts
    everything stored for the run.
    """

    run_id: str
    path: str
    state: str
    opened: str = ""
    closed: str | None = None
    pid: int = 0
    catalog_revision: str = ""
    parent_run_id: str | None = None
    durability: str = ""
    workspace: str = ""
    records: int | None = None
    bytes: int = 0
    healed: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of walking a run's chain.

    `broken` is the first bad record; `records` before it are good.

    `notes` says what can't be known (the chain has no key; an unclosed run may have lost its end)
    or what is unusual but no error (a torn end, a repaired one). `protection` says what would
    reveal a forgery.
    """

    run_id: str
    path: str
    state: str
    records: int
    broken: Break | None
    torn: tuple[TornTail, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    protection: Literal["chain", "kept head", "signed head"] = "chain"

    @property
    def ok(self) -> bool:
        return self.broken is None and not self.problems


class StoredArtifacts(Protocol):
    """Read access to the artifacts of one run."""

    def get(self, sha256: str) -> bytes: ...

    def iter(self) -> Iterable[ArtifactFile]: ...

    def problems(self) -> Iterable[str]: ...


class RunArchive(ABC):
    """Read access to the runs of one store.

    The abstract methods are the access to storage; the rest is shared.
    """

    where: str
    folder: Path | None = None
    """The folder of the runs, if they are in one."""
    is_shared: bool = True
    """Whether `where` names the same runs in every process."""
    heads: FolderHeads | None = None
    """Store of the run heads, if they are kept."""

    @abstractmethod
    def run_ids(self) -> list[str]:
        """Return the ids of all runs, sorted."""

    @abstractmethod
    def summary(self, run_id: str) -> RunSummary:
        """Return the summary of one run. Raises UnknownRun."""

    @abstractmethod
    def path_text(self, run_id: str) -> str:
        """Return the place of a run as text for people. Raises UnknownRun."""

    @abstractmethod
    def header(self, run_id: str) -> RunHeader:
        """Return the content of `run.json`. Raises UnknownRun, CorruptRun."""

    @abstractmethod
    def catalog_json(self, run_id: str, file: str, revision: str) -> Any:
        """Return the JSON of a catalog that the run names. Raises CorruptRun."""

    @abstractmethod
    def stamps(self) -> dict[str, RunStamp]:
        """Return the stamp of every run, without reading any."""

    @abstractmethod
    def lines_after(
        self, run_id: str, positions: Mapping[str, int]
    ) -> Mapping[str, Iterator[tuple[bytes, int]]]:
        """Return the complete lines after a position in each file (0: the start), each with the
        position after it.

        Positions are specific to this archive. Raises UnknownRun.
        """

    def lines(self, run_id: str) -> dict[str, Iterator[bytes]]:
        """Return the complete lines of a run at the time of the call, by file."""
        return {
            name: (line for line, _ in lines)
            for name, lines in self.lines_after(run_id, {}).items()
        }

    @abstractmethod
    def artifacts(self, run_id: str) -> StoredArtifacts: ...

    @abstractmethod
    def labels(self, run_id: str) -> list[StepLabel]:
        """Return the reviewers' labels, in the order they were given.

        Raises CorruptRun, StorageError.
        """

    @abstractmethod
    def add_label(self, run_id: str, correction: StepLabel) -> str:
        """Add one label; return its place as text for people. Raises StorageError."""

    @abstractmethod
    def delete(self, run_id: str) -> bool:
        """Delete a run; return False if it is in use. Raises StorageError."""

    @abstractmethod
    def finish_deletions(self) -> None:
        """Finish interrupted deletions."""

    @abstractmethod
    def take_in(self, source: RunArchive, run_id: str) -> None:
        """Copy a whole run from another archive, all or nothing. The caller has checked it.

        Raises RequestError if a run of that id exists, KeyError for a missing artifact,
        StorageError.
        """

    def torn(self, run_id: str) -> tuple[TornTail, ...]:
        """Return the torn ends of a run's files."""
        return ()

    # --- what there is ----------------------------------------------------------------------------

    def runs(self, run_ids: Iterable[str] | None = None) -> list[RunSummary]:
        """Return every run, or those named that are there, newest first by the time it was opened,
        then by id.
        """
        summaries = []
        for run_id in self.run_ids() if run_ids is None else run_ids:
            with contextlib.suppress(UnknownRun):  # pruned meanwhile
                summaries.append(self.summary(run_id))
        return sorted(summaries, key=lambda run: (run.opened, run.run_id), reverse=True)

    def sub_runs(self, run_id: str) -> list[RunSummary]:
        """Return the runs started below this one, in the order they were opened.

        Reads the header of every run.
        """
        below = []
        for other_id in self.run_ids():
            with contextlib.suppress(UnknownRun, CorruptRun):  # pruned meanwhile; unreadable
                if self.header(other_id).parent_run_id == run_id:
                    below.append(self.summary(other_id))
        return sorted(below, key=lambda run: (run.opened, run.run_id))

    def unknown(self, run_id: str) -> UnknownRun:
        from bundle_router.adapters.redaction import quoted_run_id  # loaded where there is no run

        return UnknownRun(
            f"there is no run {quoted_run_id(run_id)} in {self.where}",
            advice="`bundle-router runs list` lists them",
        )

    def catalog(self, run_id: str, revision: str | None = None) -> dict[str, Any]:
        """Return a catalog that the run was written under (default: the first), checked against its
        revision.

        Raises UnknownRun; CorruptRun if it is missing or does not match its revision.
        """
        place = self.path_text(run_id)
        header = self.header(run_id)
        entry = next((each for each in header.catalogs if revision in (None, each.revision)), None)
        if entry is None and revision is None:
            raise CorruptRun(f"{place} holds no catalog", advice="it can't be replayed")
        stated = entry.revision if entry is not None else str(revision)
        # a catalog without an entry is not named in run.json yet
        name = entry.file if entry is not None else catalog_file(stated)
        if _CATALOG.fullmatch(name) is None:
            raise CorruptRun(
                f"{place}/run.json names no catalog file for {stated}",
                advice="it can't be replayed",
            )
        try:
            catalog = self.catalog_json(run_id, name, stated)
        except CorruptRun:
            if entry is not None or not header.restored:
                raise
            catalog = self.catalog_json(
                run_id, name := FIRST_CATALOG, stated
            )  # run.json was lost, which named it
        if not isinstance(catalog, dict) or digest_of(catalog) != stated:
            raise CorruptRun(
                f"{place}/{name} is not catalog {stated}: it was changed",
                advice="it can't be replayed",
            )
        return catalog

    # --- records ----------------------------------------------------------------------------------

    def records(self, run_id: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a run in the order of their `seq`, with one line of each file in
        memory.

        A torn end is left out (see `torn`). Raises UnknownRun; CorruptRun at a line that is no
        record. Hashes are not checked (see `verify`).
        """
        place = self.path_text(run_id)
        streams = [
            _parse_lines(f"{place}/{name}", lines) for name, lines in self.lines(run_id).items()
        ]
        yield from heapq.merge(*streams, key=lambda record: record["seq"])

    def records_after(self, run_id: str, positions: dict[str, int]) -> Iterator[dict[str, Any]]:
        """Yield the records after a position in each file (see `lines_after`), in the order of
        their `seq`, and update `positions`. Raises UnknownRun, CorruptRun.
        """
        place = self.path_text(run_id)

        def parsed(
            name: str, lines: Iterator[tuple[bytes, int]]
        ) -> Iterator[tuple[int, str, int, dict[str, Any]]]:
            for line, position in lines:
                try:
                    record = parse(line)
                except BadLine as error:
                    raise CorruptRun(f"{place}/{name}: {error}", advice=ADVICE) from error
                yield record["seq"], name, position, record

        streams = [
            parsed(name, lines) for name, lines in self.lines_after(run_id, positions).items()
        ]
        for _, name, position, record in heapq.merge(*streams, key=lambda found: found[:2]):
            positions[name] = position
            yield record

    def record(self, run_id: str, seq: int) -> dict[str, Any] | None:
        """Return one record, or None if the run has no such number. Other lines are not parsed."""
        needle = f'"seq":{seq},'.encode()
        for lines in self.lines(run_id).values():
            for line in lines:
                if needle in line:
                    with contextlib.suppress(BadLine):
                        if (record := parse(line))["seq"] == seq:
                            return record
        return None

    def decisions(self, run_id: str) -> Iterator[DecisionRecord]:
        """Yield the decisions of a run, in their order. Raises UnknownRun, CorruptRun."""
        for record in self.records(run_id):
            if record.get("type") == "route.decided":
                yield self._read(run_id, record, DecisionRecord.from_json)

    def values(self, run_id: str) -> Iterator[Record]:
        """Yield the records of a run as values, without those of unknown types."""
        for record in self.records(run_id):
            if (value := self._read(run_id, record, read_record)) is not None:
                yield value

    def _read(self, run_id: str, record: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        if record.setdefault("run_id", run_id) != run_id:
            raise CorruptRun(
                f"record {record['seq']} of run {run_id!r} names another run in its field 'run_id'"
            )
        return read(record)

    def receipt(self, run_id: str, seq: int) -> dict[str, Any]:
        """Return one record with all that checks it elsewhere.

        Raises UnknownRun, RequestError, CorruptRun.
        """
        report = self.verify(run_id)
        if report.broken is not None:
            raise CorruptRun(
                f"run {run_id!r} is not as it was written: {report.broken.detail}", advice=ADVICE
            )
        links = heapq.merge(
            *(map(link, lines) for lines in self.lines(run_id).values()), key=lambda at: at.seq
        )
        later_links = [each for each in links if each.seq >= seq]
        if not later_links or later_links[0].seq != seq:
            raise RequestError(f"run {run_id!r} has no record {seq}")
        record = parse(later_links[0].line)
        decided = record.get("type") == "route.decided"
        catalog = self.catalog(run_id, record["catalog_revision"]) if decided else None
        lines = [each.line.removesuffix(b"\n").decode("ascii") for each in later_links]
        return make_receipt(self.header(run_id), lines, catalog, later_links[-1].hash)

    def texts(self, run_id: str) -> Iterator[tuple[str, Iterable[str]]]:
        """Return every stored text of a run as lines, by file."""
        header = self.header(run_id)
        yield "run.json", header.to_text().splitlines()
        yield from (
            (entry.file, [encode(self.catalog(run_id, entry.revision))])
            for entry in header.catalogs
        )
        for name, lines in self.lines(run_id).items():
            yield name, (line.decode("utf-8", "surrogateescape") for line in lines)

    # --- whether it is as it was written ----------------------------------------------------------

    def verify(
        self, run_id: str, *, artifacts: bool = False, catalogs: bool = True
    ) -> VerifyReport:
        """Check the chain of a run, the end of a closed run, its `catalogs`, and the bytes of the
        `artifacts` it names. A catalog of 5,000 bundles takes longer than most runs.

        Raises UnknownRun, or StorageError if it can't be read. Defects of the run are in the
        report.
        """
        try:
            return self._verify(run_id, artifacts=artifacts, catalogs=catalogs)
        except CorruptRun as error:  # no walk is possible
            return VerifyReport(
                run_id,
                self.path_text(run_id),
                "unreadable",
                0,
                None,
                (),
                (error.message,),
                (UNKEYED,),
            )
        except OSError as error:
            raise storage_error(f"can't read run {run_id!r}", error) from error

    def check_whole(self, run_id: str) -> None:
        """Raise CorruptRun if a run is not as it was written. Raises as `verify` does."""
        report = self.verify(run_id, artifacts=True)
        if not report.ok:
            detail = report.broken.detail if report.broken is not None else report.problems[0]
            raise CorruptRun(f"run {run_id!r} is not as it was written: {detail}", advice=ADVICE)

    def _verify(self, run_id: str, *, artifacts: bool, catalogs: bool) -> VerifyReport:
        place = self.path_text(run_id)
        state = self.summary(run_id).state
        # the head is read before the lines, which may become more meanwhile
        kept_head, faults = self._kept_head(run_id)
        head, problems, notes, revisions = self._verify_header(run_id, place)
        files = self.lines(run_id)
        while (again := self._verify_header(run_id, place))[
            0
        ] != head:  # opened or closed meanwhile: read again
            (head, problems, notes, revisions) = again
            files = self.lines(run_id)
        problems += faults
        artifact_names: set[str] = set()
        call_ends: Counter[bytes] = Counter()
        files = {
            name: _count_ends(_note_names(lines, artifact_names, revisions), call_ends)
            for name, lines in files.items()
        }
        checked = check(
            files,
            run_id,
            head,
            Head(kept_head.count, kept_head.hash) if kept_head is not None else None,
        )
        deque(
            chain.from_iterable(files.values()), maxlen=0
        )  # the lines behind a break name artifacts and catalogs too
        for revision in sorted(revisions) if catalogs else ():
            try:
                self.catalog(run_id, revision)
            except CorruptRun as error:
                problems += [error.message] if error.message not in problems else []
        problems += [
            f"call {call_id.decode('utf-8', 'replace')!r} has {count} ends"
            for call_id, count in call_ends.items()
            if count > 1
        ]
        if artifacts:
            kept_artifacts = self.artifacts(run_id)
            problems += [
                text for text in kept_artifacts.problems() if not text.endswith("it can be deleted")
            ]
            missing = artifact_names - {artifact.sha256 for artifact in kept_artifacts.iter()}
            problems += [f"artifact {sha256} is gone" for sha256 in sorted(missing)]
        broken = checked.broken
        torn_ends = self.torn(run_id)
        self.path_text(run_id)  # raises UnknownRun: what was deleted meanwhile is not damaged
        if self.heads is not None and kept_head is None and not faults and checked.count:
            problems.append(NO_HEAD)
        if head is not None and torn_ends and broken is None:
            detail = f"{torn_ends[0].bytes} bytes follow the last record of the closed run"
            broken = Break("added", head.count, torn_ends[0].file, 0, detail)
        notes += [
            f"{t.file} ends in {t.bytes} bytes that are no complete record" for t in torn_ends
        ]
        if head is None:
            notes.append(
                "the run was not closed: whether records are missing at its end can't be known"
            )
        protection: Literal["chain", "kept head", "signed head"] = "chain"
        if kept_head is not None:
            is_signed = (
                self.heads is not None
                and self.heads.key is not None
                and kept_head.is_signed_by(self.heads.key)
            )
            protection = "signed head" if is_signed else "kept head"
            if (behind := checked.count - kept_head.count) > 0:
                notes.append(
                    f"its last {behind} records came after the head that was kept: only the chain"
                    " protects them"
                )
        notes.append({"chain": UNKEYED, "kept head": KEPT, "signed head": SIGNED}[protection])
        return VerifyReport(
            run_id,
            place,
            state,
            checked.count,
            broken,
            torn_ends,
            tuple(problems),
            tuple(notes),
            protection,
        )

    def missing(self) -> list[str]:
        """Return what the kept heads know of and the store lacks, one sentence each.

        Looks twice, since runs begin and are pruned meanwhile.
        """
        if self.heads is None:
            return []
        first = self._missing_now(self.heads)
        if not first:
            return []
        return [text for text in self._missing_now(self.heads) if text in first]

    def _missing_now(self, heads: FolderHeads) -> list[str]:
        heads_and_faults = {run_id: self._kept_head(run_id) for run_id in heads.run_ids()}
        present = set(self.run_ids())
        missing = []
        sound_heads = {}
        for run_id, (head, faults) in heads_and_faults.items():
            if faults and run_id not in present:
                missing.append(f"run {run_id!r} is gone, and {faults[0]}")
            elif head is not None and not faults:
                sound_heads[run_id] = head
        return missing + missing_runs(sound_heads, present)

    def _kept_head(self, run_id: str) -> tuple[StoredHead | None, list[str]]:
        """Return the head that is kept for a run, if any, and what is wrong with it."""
        if self.heads is None:
            return None, []
        try:
            kept_head = self.heads.read(run_id)
        except (CorruptRun, StorageError) as error:
            return None, [error.message]
        if kept_head is None:
            return None, []
        return kept_head, faults_of_head(kept_head, run_id, self.heads.key)

    def _verify_header(
        self, run_id: str, place: str
    ) -> tuple[Head | None, list[str], list[str], set[str]]:
        """Return the end that `run.json` states, the errors in it, notes, and the catalogs that it
        names.
        """
        try:
            header = self.header(run_id)
        except CorruptRun as error:
            return None, [error.message], [], set()
        problems = [
            f"{place}/run.json {fault}"
            for fault in header.faults(run_id, self._read_first_record(run_id))
        ]
        healed = [
            f"a torn end of {tail.file} was healed, see {tail.saved}" for tail in header.healed
        ]
        if header.restored:
            healed.append(f"run.json was lost and written again at {header.restored}")
        return header.head, problems, healed, {entry.revision for entry in header.catalogs}

    def _read_first_record(self, run_id: str) -> dict[str, Any] | None:
        """Return the run's first record, if it can be read."""
        for lines in self.lines(run_id).values():
            with contextlib.suppress(BadLine):
                if (line := next(lines, None)) is not None and (first := parse(line))["seq"] == 0:
                    return first
        return None


def _note_names(
    lines: Iterable[bytes], artifacts: set[str], revisions: set[str]
) -> Iterator[bytes]:
    """Yield the lines, and add the artifacts and catalogs that they name. Few lines are parsed."""
    for line in lines:
        if b'"artifacts":[{' in line:
            with contextlib.suppress(BadLine, TypeError):  # a forger may give them any type
                artifacts |= {
                    str(row["sha256"])
                    for row in parse(line).get("artifacts", ())
                    if "sha256" in row
                }
        if match := _REVISION.search(line):
            revisions.add(match[1].decode())
        yield line


def _count_ends(lines: Iterable[bytes], ends: Counter[bytes]) -> Iterator[bytes]:
    """Yield the lines, and count the ends of each call. None is parsed."""
    for line in lines:
        if _CALL_END in line and (match := _CALL_ID.search(line)):
            ends[match[1]] += 1
        yield line


def _parse_lines(where: str, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of one file.

    Raises CorruptRun at a line that is no record, or whose `seq` does not rise.
    """
    last_seq = -1
    for number, line in enumerate(lines, start=1):
        try:
            record = parse(line)
        except BadLine as error:
            raise CorruptRun(f"{where}:{number}: {error}", advice=ADVICE) from error
        if record["seq"] <= last_seq:
            raise CorruptRun(
                f"{where}:{number}: record {record['seq']} comes after {last_seq}", advice=ADVICE
            )
        last_seq = record["seq"]
        yield record


def summary_of(header: RunHeader, *, is_open: bool, **found: Any) -> RunSummary:
    """Return the summary of a run from its header and other fields (`records`: for a run that is
    not closed).
    """
    if header.head is not None:
        found["records"] = header.head.count
    state = "closed" if header.closed else "ended"
    return RunSummary(
        state="open" if is_open else state,
        opened=header.opened,
        closed=header.closed or None,
        catalog_revision=header.catalog_revision,
        parent_run_id=header.parent_run_id,
        durability=header.durability,
        workspace=header.workspace or "",
        healed=len(header.healed),
        **found,
    )


def is_run_id(run_id: str) -> bool:
    return RUN_ID.fullmatch(run_id) is not None
