"""A run store in memory: the fake of the store port, under the same contract as the real ones.

Several stores over one `MemoryRuns` are several processes over one disk. Each can be killed, and
events before each of their operations can be scripted.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.records.chain import (
    FILES,
    Appended,
    File,
    Head,
    Record,
    RepairedTail,
    Writer,
    encode_record,
    genesis,
    parse,
    seal_text,
    unseal,
    with_opening,
)
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values import RUN_ID
from bundle_router.core.values.words import RUN_ID_ADVICE, not_a_run_id
from bundle_router.errors import CorruptRun, RequestError, StorageError
from bundle_router.ports import WholeRun

_NEW_YEAR_2026: Final = "2026-01-01T00:00:00.000000Z"


class MemoryArtifacts:
    """The artifact store of one run, in memory.

    >>> from bundle_router.testing import MemoryArtifacts
    >>> artifacts = MemoryArtifacts()
    >>> artifacts.get(artifacts.put(b"bytes"))
    b'bytes'
    """

    def __init__(self) -> None:
        self.bytes: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.bytes[sha256] = bytes(data)
        return sha256

    def get(self, sha256: str) -> bytes:
        data = self.bytes[sha256]
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptRun(f"artifact {sha256} does not have its digest")
        return data


@dataclass
class MemoryRun:
    """One run's records, sealed with the same chain as on disk."""

    header: RunHeader
    """The contents of `run.json`."""
    labels: list[str] = field(default_factory=list)
    """The reviewers' labels."""
    sealed: list[tuple[File, bytes]] = field(default_factory=list)
    """The sealed lines in the order of their `seq`, each with its file."""
    catalogs: dict[str, str] = field(default_factory=dict)
    """The texts of catalogs by their revision."""
    kept: MemoryArtifacts = field(default_factory=MemoryArtifacts)
    """The artifacts."""
    writing: set[int] = field(default_factory=set)
    """The numbers of the stores that have the run open."""
    head: str = ""
    """The hash of the last record."""
    closed: bool = False
    """Whether the run was closed."""
    fail_with: Exception | None = None
    """Makes appends fail."""
    fail_sync_with: Exception | None = None
    """Makes every sync fail."""
    fail_sync_after: int | None = None
    """Counts syncs down: the one that comes to 0 fails, and all after it; None: not counted."""

    @property
    def lines(self) -> list[tuple[File, dict[str, Any]]]:
        """The parsed records, each with its file."""
        return [(file, parse(line)) for file, line in self.sealed]

    def artifacts(self) -> MemoryArtifacts:
        return self.kept

    def files(self) -> dict[str, list[bytes]]:
        """Return the lines of each file, in the form that `core.records.chain.check` takes."""
        return {
            name: [line for kind, line in self.sealed if kind == file]
            for file, name in FILES.items()
        }


class MemoryRuns:
    """The disk that several stores share. `dead` holds the tokens of killed ones.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Route, fake_router, small_catalog
    >>> route = Route("all", bundles=("repo.readonly",))
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]}, routes=[route])
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> from bundle_router.testing import MemoryRuns
    >>> runs = MemoryRuns()
    >>> with fake_router(catalog, runs=runs) as one, fake_router(catalog, runs=runs) as another:
    ...     first, second = one.route_sync(step), another.route_sync(step)
    >>> first.seq, second.seq
    (0, 1)
    """

    def __init__(self) -> None:
        self.runs: dict[str, MemoryRun] = {}
        self.dead: set[str] = set()
        self.lock: Final = threading.RLock()
        self.numbers: Final = itertools.count(1)


Hook = Callable[[str, str], None]
"""Called before each operation of a store on a run, with the operation and the run's id."""


class MemoryRunLog:
    """One run as a fake process reads and appends it."""

    def __init__(self, store: MemoryRunStore, run: MemoryRun, number: int) -> None:
        self._store = store
        self._run = run
        self._number = number
        self._at = 0
        self._ended = False
        self.healed: tuple[RepairedTail, ...] = ()

    @property
    def path(self) -> str:
        return f"memory:{self._run.header.run_id}"

    @property
    def header(self) -> RunHeader:
        return self._run.header

    @property
    def id_prefix(self) -> str:
        return self._run.header.run_id

    @property
    def next_seq(self) -> int:
        return self._at

    def _check_usable(self, operation: str) -> None:
        if self._ended:
            raise StorageError(
                f"run {self.id_prefix!r} is closed here", kind="io_error", advice="open it again"
            )
        self._store.before(operation, self.id_prefix)

    def news(self) -> Iterator[Record]:
        self._check_usable("news")
        with self._store.shared.lock:
            upto = len(self._run.sealed)
        while self._at < upto:
            record = parse(self._run.sealed[self._at][1])
            self._at += 1
            yield record

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = 5.0
    ) -> Appended:
        self._check_usable("append")
        with self._store.shared.lock:
            run = self._run
            if run.fail_with is not None:
                raise run.fail_with
            records = tuple(parse(line) for _, line in run.sealed[self._at :])
            self._at = len(run.sealed)
            if only_at is not None and (records or only_at != self._at):
                return Appended(records, None)
            if run.closed:
                run.header = run.header.reopen()
                run.closed = False
            text = encode_record(record)
            if self._at == 0:
                text = with_opening(text, run.header.opening_digest)
            line, run.head = seal_text(text, self._at, run.head)
            run.sealed.append((file, line))
            run.writing.add(self._number)
            self._at += 1
            return Appended(records, self._at - 1, run.head)

    def record(self, seq: int) -> Record:
        self._check_usable("record")
        if not 0 <= seq < self._at:
            raise KeyError(seq)
        return parse(self._run.sealed[seq][1])

    def put_catalog(self, revision: str, text: str, *, wait_s: float = 5.0) -> None:
        with self._store.shared.lock:
            if revision not in self._run.catalogs:
                self._run.catalogs[revision] = text
                self._run.header = self._run.header.with_catalogs([revision])

    def sync(self) -> None:
        run = self._run
        if run.fail_sync_after is not None:
            run.fail_sync_after -= 1
            if run.fail_sync_after == 0:
                run.fail_sync_with = StorageError("the disk does not answer", kind="io_error")
        if run.fail_sync_with is not None:
            raise run.fail_sync_with

    def artifacts(self) -> MemoryArtifacts:
        return self._run.kept

    def close(self) -> tuple[Writer, ...]:
        if self._ended:
            return ()
        self._store.before("close", self.id_prefix)
        self._ended = True
        with self._store.shared.lock:
            wrote = self._number in self._run.writing
            self._run.writing.discard(self._number)
            if wrote and self._run.writing:
                return tuple(
                    Writer(0, f"fake writer {number}") for number in sorted(self._run.writing)
                )
            if wrote and not self._run.closed:
                self._run.closed = True
                end = Head(len(self._run.sealed), self._run.head)
                self._run.header = self._run.header.end(_NEW_YEAR_2026, end)
            return ()


class MemoryRunStore:
    """The runs in memory as a fake process sees them.

    >>> from bundle_router.core.records.run_header import RunHeader
    >>> from bundle_router.testing import MemoryRunStore
    >>> store = MemoryRunStore()
    >>> log = store.create("r-42", header=RunHeader({"catalog_revision": "sha256:0"}), catalog="{}")
    >>> store.run_ids()
    ['r-42']
    """

    blocks = False

    def __init__(self, shared: MemoryRuns | None = None, before: Hook = lambda *_: None) -> None:
        self.shared = shared or MemoryRuns()
        self.before = before
        self.writer = f"{next(self.shared.numbers):016x}"
        self._handles: list[tuple[MemoryRun, int]] = []

    def is_alive(self, writer: str) -> bool:
        return writer not in self.shared.dead

    def check(self) -> None:
        """Do nothing: memory is always writable."""

    def kill(self) -> None:
        """Kill the process of this store, with all its locks."""
        self.shared.dead.add(self.writer)
        for run, number in self._handles:
            run.writing.discard(number)

    def open(self, run_id: str) -> MemoryRunLog | None:
        self.before("open", run_id)
        run = self.shared.runs.get(run_id)
        return self._log(run) if run is not None else None

    def _log(self, run: MemoryRun) -> MemoryRunLog:
        number = next(self.shared.numbers)
        self._handles.append((run, number))
        return MemoryRunLog(self, run, number)

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> MemoryRunLog:
        if not RUN_ID.fullmatch(run_id):
            raise RequestError(not_a_run_id(run_id), advice=RUN_ID_ADVICE)
        self.before("create", run_id)
        with self.shared.lock:
            run = self.shared.runs.get(run_id)
            if run is None:
                run_header = header.begin(
                    run_id, opened=_NEW_YEAR_2026, nonce="", durability="process"
                )
                run = MemoryRun(run_header, head=genesis(run_id))
                run.catalogs[header.catalog_revision] = catalog
                self.shared.runs[run_id] = run
            log = self._log(run)
            run.writing.add(log._number)
            return log

    def close(self) -> None:
        return None

    # --- reading whole runs (`ports.StoredRuns`) --------------------------------------------------

    @property
    def where(self) -> str:
        return "memory:"

    def run_ids(self) -> list[str]:
        return list(self.shared.runs)

    def header_of(self, run_id: str) -> RunHeader | None:
        run = self.shared.runs.get(run_id)
        return run.header if run is not None else None

    def count_of(self, run_id: str) -> int:
        return len(self.log(run_id).sealed)

    def lines_of(self, run_id: str, file: File, start: int) -> list[bytes]:
        return [line for kind, line in self.log(run_id).sealed if kind == file][start:]

    def catalog_of(self, run_id: str, revision: str) -> str | None:
        return self.log(run_id).catalogs.get(revision)

    def artifacts_of(self, run_id: str) -> dict[str, bytes]:
        return self.log(run_id).kept.bytes

    def writers_of(self, run_id: str) -> list[Writer]:
        return [Writer(0, f"fake writer {number}") for number in self.log(run_id).writing]

    def labels_of(self, run_id: str) -> list[str]:
        return self.log(run_id).labels

    def add_label(self, run_id: str, label: str) -> None:
        self.log(run_id).labels.append(label)

    def delete(self, run_id: str) -> bool:
        with self.shared.lock:
            if self.writers_of(run_id):
                return False
            del self.shared.runs[run_id]
            return True

    def take_in(self, run: WholeRun) -> None:
        run_id = run.header.run_id
        with self.shared.lock:
            if run_id in self.shared.runs:
                raise RequestError(f"run {run_id!r} is already in memory")
            sealed = list(run.lines)
            copy = MemoryRun(run.header, [*run.labels], sealed, dict(run.catalogs))
            copy.head = unseal(sealed[-1][1]).hash if sealed else genesis(run_id)
            copy.closed = run.header.head is not None
            for data in run.artifacts:
                copy.kept.put(data)
            self.shared.runs[run_id] = copy

    # --- for tests --------------------------------------------------------------------------------

    def log(self, run_id: str) -> MemoryRun:
        """Return a run's records, for tests."""
        return self.shared.runs[run_id]

    def has(self, run_id: str) -> bool:
        """Return whether there is such a run."""
        return run_id in self.shared.runs
