"""Lists, reads and verifies runs. See `bundle_router.adapters.archive` for the rules."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from bundle_router.adapters.archive import files
from bundle_router.adapters.archive.files import ADVICE, Torn
from bundle_router.core.models import RUN_ID
from bundle_router.core.models.canonical import digest_of
from bundle_router.core.records.call_records import Record, read_record
from bundle_router.core.records.chain import FILES, BadLine, Break, Head, check, lines_backward, unseal
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.header import faults
from bundle_router.errors import CorruptRun, UnknownRun

UNKEYED: Final = "the chain has no key: it finds accidents and careless hands, not a patient forger"
"""The note of every report."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run directory at a glance, from `run.json` and the directory; no record is parsed.

    `state`: `open` (some process writes it: `pid`), `closed`, `ended` (its writer is gone and did not close it), or
    `unreadable` (`problem` says why). `records` is what `run.json` says, for
    runs that are not closed the lines there are now. `bytes` counts every file of the run.
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
    """What a walk along a run's chain found. `broken` is the first bad record; `records` before it are good.

    `notes` says what can't be known (the chain has no key; an unclosed run may have lost its end) or what is odd but
    no fault (a torn end, one healed before).
    """

    run_id: str
    path: str
    state: str
    records: int
    broken: Break | None
    torn: tuple[Torn, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.broken is None and not self.problems


class Archive:
    """The runs under one directory, `root`. Holds nothing open between calls."""

    def __init__(self, runs: str | Path) -> None:
        self.root = Path(runs).absolute()

    # --- what there is ----------------------------------------------------------------------------------------------

    def run_ids(self) -> list[str]:
        """The ids of all run directories, sorted. Symbolic links are not runs."""
        try:
            with os.scandir(self.root) as entries:
                found = [e.name for e in entries if RUN_ID.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return sorted(found)

    def runs(self) -> list[RunSummary]:
        """Every run, newest first by the time it was opened, then by id."""
        summaries = []
        for run_id in self.run_ids():
            with contextlib.suppress(UnknownRun):  # pruned meanwhile
                summaries.append(self.summary(run_id))
        return sorted(summaries, key=lambda run: (run.opened, run.run_id), reverse=True)

    def summary(self, run_id: str) -> RunSummary:
        """One run at a glance. Raises UnknownRun."""
        path = self.path(run_id)
        pid = files.writer(path)
        size = files.tree_bytes(path)
        try:
            header = self.header(run_id)
        except CorruptRun as error:
            state = "unreadable" if pid is None else "open"
            return RunSummary(run_id, str(path), state, pid=pid or 0, bytes=size, problem=error.message)
        closed = _text(header, "closed")
        count = header.get("count")
        return RunSummary(
            run_id,
            str(path),
            "open" if pid is not None else "closed" if closed else "ended",
            opened=_text(header, "opened") or "",
            closed=closed,
            pid=pid or 0,
            catalog_revision=_text(header, "catalog_revision") or "",
            parent_run_id=_text(header, "parent_run_id"),
            durability=_text(header, "durability") or "",
            workspace=_text(header, "workspace") or "",
            records=count if isinstance(count, int) and closed else self._lines(path),
            bytes=size,
            healed=len(_objects(header, "healed")),
        )

    def _lines(self, path: Path) -> int:
        """The whole lines of an unclosed run's files, which are its records unless someone tampered with them."""
        total = 0
        for name in FILES.values():
            with files.opened(path / name) as fd:
                while fd is not None and (block := os.read(fd, 1 << 20)):
                    total += block.count(b"\n")
        return total

    def path(self, run_id: str) -> Path:
        """The directory of a run. Raises UnknownRun, also for what is no run id and for symbolic links."""
        path = self.root / run_id
        if not RUN_ID.fullmatch(run_id) or path.is_symlink() or not path.is_dir():
            raise UnknownRun(
                f"there is no run {run_id!r} in {self.root}", advice="`bundle-router runs list` lists them"
            )
        return path

    def header(self, run_id: str) -> dict[str, Any]:
        """What `run.json` says. Raises UnknownRun, CorruptRun."""
        path = self.path(run_id) / "run.json"
        header = files.read_json(path)
        if not isinstance(header, dict):
            raise CorruptRun(f"{path} is not a JSON object", advice="restore it; the records can be read without it")
        return header

    def catalog(self, run_id: str, revision: str | None = None) -> dict[str, Any]:
        """The catalog of a revision the run was written under (default: the first), checked against that revision.

        Raises UnknownRun, CorruptRun when it is not there or is not what its revision says.
        """
        path = self.path(run_id)
        listed = _objects(self.header(run_id), "catalogs")
        wanted = [entry for entry in listed if revision is None or entry.get("revision") == revision]
        if not wanted:
            raise CorruptRun(f"{path} holds no catalog {revision or ''}".rstrip(), advice="it can't be replayed")
        name, stated = wanted[0].get("file"), wanted[0].get("revision")
        if not isinstance(name, str) or not name.startswith("catalog") or "/" in name:
            raise CorruptRun(f"{path}/run.json names no catalog file for {stated}", advice="it can't be replayed")
        catalog = files.read_json(path / name)
        if not isinstance(catalog, dict) or digest_of(catalog) != stated:
            raise CorruptRun(f"{path}/{name} is not catalog {stated}: it was changed", advice="it can't be replayed")
        return catalog

    # --- records ----------------------------------------------------------------------------------------------------

    def records(self, run_id: str) -> Iterator[dict[str, Any]]:
        """The records of both files in the order of their `seq`, in memory for one line of each.

        A torn end is left out (see `torn`). Raises UnknownRun, CorruptRun at a line that is not a record. Hashes are
        not checked: that is what `verify` is for.
        """
        path = self.path(run_id)
        lengths = files.sizes(path)
        streams = [files.records(path / name, lengths[name]) for name in FILES.values()]
        heads = [next(stream, None) for stream in streams]
        while waiting := [(head["seq"], at, head) for at, head in enumerate(heads) if head is not None]:
            _, at, record = min(waiting, key=lambda head: head[:2])
            yield record
            heads[at] = next(streams[at], None)

    def decisions(self, run_id: str) -> Iterator[DecisionRecord]:
        """The decisions of a run, in their order. Raises UnknownRun, CorruptRun."""
        for record in self.records(run_id):
            if record.get("type") == "route.decided":
                yield self._read(run_id, record, DecisionRecord.from_json)

    def values(self, run_id: str) -> Iterator[Record]:
        """The records of a run as values, without those of types that this version does not know."""
        for record in self.records(run_id):
            if (value := self._read(run_id, record, read_record)) is not None:
                yield value

    def _read(self, run_id: str, record: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        try:
            return read(record)
        except (KeyError, TypeError, ValueError) as error:
            why = f"is not what its type says: {type(error).__name__}: {error}"
            raise CorruptRun(f"record {record['seq']} of run {run_id!r} {why}", advice=ADVICE) from None

    def last_decision(self, run_id: str) -> dict[str, Any] | None:
        """The last `route.decided` record, from the end of the file. Raises UnknownRun, CorruptRun."""
        path = self.path(run_id) / FILES["routing"]
        with files.opened(path) as fd:
            if fd is None:
                return None
            try:
                for line in lines_backward(*files.tail(fd)):
                    record = unseal(line).record
                    if record.get("type") == "route.decided":
                        return record
            except BadLine as error:
                raise CorruptRun(f"{path}: a line near its end is no record: {error}", advice=ADVICE) from error
        return None

    def torn(self, run_id: str) -> tuple[Torn, ...]:
        """The torn ends of a run's files."""
        path = self.path(run_id)
        return tuple(found for name in FILES.values() if (found := files.torn(path, name)) is not None)

    def verify(self, run_id: str) -> VerifyReport:
        """Walks the chain of a run, and checks the end of a closed run and its catalogs.

        Raises UnknownRun, StorageError when it can't be read; what is wrong with the run is in the report.
        """
        path = self.path(run_id)
        state = self.summary(run_id).state
        head, problems, notes = self._verify_header(run_id, path)
        lengths = files.sizes(path)
        while (again := self._verify_header(run_id, path))[0] != head:  # opened or closed since: not one instant
            (head, problems, notes), lengths = again, files.sizes(path)
        checked = check({name: files.lines(path / name, lengths[name]) for name in FILES.values()}, run_id, head)
        broken, torn_ends = checked.broken, self.torn(run_id)
        if head is not None and torn_ends and broken is None:
            detail = f"{torn_ends[0].bytes} bytes follow the last record of the closed run"
            broken = Break("added", head.count, torn_ends[0].file, 0, detail)
        notes += [f"{t.file} ends in {t.bytes} bytes that are no complete record" for t in torn_ends]
        if head is None:
            notes.append("the run was not closed: whether records are missing at its end can't be known")
        notes.append(UNKEYED)
        return VerifyReport(run_id, str(path), state, checked.count, broken, torn_ends, tuple(problems), tuple(notes))

    def _verify_header(self, run_id: str, path: Path) -> tuple[Head | None, list[str], list[str]]:
        """The end that `run.json` states, what is wrong with it and with the catalogs, and what is worth knowing."""
        try:
            header = self.header(run_id)
            head = _head(header, path)
        except CorruptRun as error:
            return None, [error.message], []
        problems = [f"{path}/run.json: {fault}" for fault in faults(header, self._first(path))]
        if header.get("run_id") != run_id:
            problems.append(f"{path}/run.json belongs to run {header.get('run_id')!r}")
        for entry in _objects(header, "catalogs"):
            try:
                self.catalog(run_id, str(entry.get("revision")))
            except CorruptRun as error:
                problems.append(error.message)
        healed = [f"a torn end of {h.get('file')} was healed, see {h.get('saved')}" for h in _objects(header, "healed")]
        if "restored" in header:
            healed.append(f"run.json was lost and written again at {header['restored']}")
        return head, problems, healed

    def _first(self, path: Path) -> dict[str, Any] | None:
        """The run's first record, if it can be read."""
        for name, size in files.sizes(path).items():
            with contextlib.suppress(CorruptRun):
                first = next(files.records(path / name, size), None)
                if first is not None and first["seq"] == 0:
                    return first
        return None


def _text(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def _objects(header: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = header.get(name)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _head(header: Mapping[str, Any], path: Path) -> Head | None:
    """The end of a closed run; None for one that was not closed. Raises CorruptRun when it makes no sense."""
    if "closed" not in header:
        return None
    count, hash_ = header.get("count"), header.get("head")
    if not isinstance(count, int) or not isinstance(hash_, str):
        raise CorruptRun(f"{path}/run.json says the run was closed, and not with how many records", advice="restore it")
    return Head(count, hash_)
