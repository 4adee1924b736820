"""The ports: one Protocol for each effect.

The engine knows these alone; `bundle_router.wiring` passes it the adapters.

Each port has a fake, in `bundle_router.testing` or tests/port_fakes.py; tests/test_ports.py fails
for one without, and holds fakes and adapters to the same contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.decide import Question
from bundle_router.core.records.chain import Appended, File, Record, RepairedTail, Writer
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.servers.transport.tool_servers import (
    EVERYONE,
    NOWHERE,
    CallPlace,
    Listing,
    RawResult,
    Scope,
    ServerStatus,
)
from bundle_router.core.values import RecentStep, Reply

if TYPE_CHECKING:  # loaded where models are asked
    from bundle_router.core.decide.asking.model_exchange import ModelReply, ModelRequest
    from bundle_router.core.exposure.stubs import Program, ProgramEnd
    from bundle_router.core.search.index import Embedding
    from bundle_router.core.servers.transport.pass_through import ServerReply

T = TypeVar("T")

Readiness = Literal["cold", "warming", "ready", "missing", "broken"]
"""The state of a model client: not started, loading, usable, not installed, or installed but not
loadable.
"""


class Clock(Protocol):
    """Reads the time.

    Durations and lifetimes use `monotonic_ns`; only records contain `time_ns`.
    """

    def time_ns(self) -> int:
        """Return the nanoseconds since 1970, UTC."""

    def monotonic_ns(self) -> int: ...


class Redactor(Protocol):
    """Removes secrets from text. Idempotent: redacting twice gives the same text."""

    def redact(self, text: str) -> str: ...

    def redact_many(self, texts: Sequence[str]) -> Sequence[str]:
        """Redact several texts at the price of one. Without a secret, returns `texts` itself."""

    def are_clean(self, texts: Sequence[str]) -> bool:
        """Return whether `redact` would change none of the texts.

        False may be wrong, True never is.
        """

    def redact_value(self, value: T) -> T:
        """Return a JSON value with every string in it redacted, keys included; the value itself is
        not changed.
        """

    def keep(self, name: str, value: str) -> None:
        """Redact this value too from now on: a token that was made while the program runs.

        From any thread.
        """


class Diagnostics(Protocol):
    """Tells the operator about events, on standard error.

    Never raises, never writes to standard output.
    """

    def event(self, level: str, name: str, **fields: object) -> None:
        """Report an event.

        `level` is `debug`, `info`, `warning` or `error`; `name` like `log.healed`.
        """


class Capabilities(Protocol):
    """Looks up what exists on this machine."""

    def present(self, names: Sequence[str]) -> tuple[frozenset[str], int]:
        """Return those of the names `env:NAME` and `binary:NAME` that exist now, and until when
        (`monotonic_ns`) they need not be looked up again.
        """


class Scratch(Protocol):
    """Files that a tool gets for one call."""

    def put(self, name: str, data: bytes, *, within: str = "") -> str:
        """Write a read-only file, alone in a new folder inside `within` (empty: the system's
        temporary folder), and return its absolute path. Raises StorageError.
        """

    def close(self) -> None:
        """Delete the files."""


class ArtifactStore(Protocol):
    """Stores the bytes of one run's artifacts by their digest."""

    def put(self, data: bytes) -> str:
        """Store the bytes and return their digest.

        Raises StorageError (and leaves nothing behind), CorruptRun.
        """

    def get(self, sha256: str) -> bytes:
        """Return the bytes, checked against the digest.

        Raises KeyError if absent, CorruptRun if they do not match.
        """


class RunLog(Protocol):
    """The log of one run, as one process reads and appends it.

    No process owns a run: all read and append side by side.

    The log remembers which records it has returned; others are news. The caller holds a lock of its
    own around everything but `sync` and the artifacts.
    """

    @property
    def path(self) -> str:
        """The run's place, for people."""

    @property
    def header(self) -> RunHeader:
        """The contents of `run.json`, as written when the run began."""

    @property
    def id_prefix(self) -> str:
        """The prefix of the run's decision and call ids, unique over machines (see `nonce` in the
        header).
        """

    @property
    def healed(self) -> tuple[RepairedTail, ...]:
        """Torn ends that this log has cut off so far, for the report."""

    @property
    def next_seq(self) -> int:
        """The number of records returned or written so far: the `seq` of the next one, if no news
        come first.
        """

    def news(self) -> Iterable[Record]:
        """Return the records that any process appended since the last look, in order; the first
        time all of them. Consume it whole. Costs one look at sizes (or one query) where there are
        none. Raises CorruptRun, StorageError.
        """

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = 5.0
    ) -> Appended:
        """Append one record (adds `seq`, `prev`, `hash`) behind all others, and return what came
        before it. The record is redacted already; a store looks for no secrets.

        `only_at`: compare and append. Nothing is written unless the run has exactly that many
        records and all of them were returned before. Appending to a closed run opens it again.

        Raises RunBusy when the store was not free within `wait_s`, StorageError when the record was
        not written; a later append may succeed. After a failed `sync` every append is refused (see
        there).
        """

    def record(self, seq: int) -> Record:
        """Read one record again that was returned before. Raises KeyError."""

    def put_catalog(self, revision: str, text: str, *, wait_s: float = 5.0) -> None:
        """Store the text of a catalog revision with the run unless it is there, before a decision
        names it. Raises RunBusy when the store was not free within `wait_s`, StorageError.
        """

    def sync(self) -> None:
        """Return when everything appended so far survives power loss (durability `disk`); else
        return at once.

        Blocks for milliseconds with `disk`: not for an event loop's thread.

        After it raised StorageError nobody knows whether the disk holds the records that were not
        synced. Nothing that rests on them may be returned or become current, and this log refuses
        every further append and sync. Close it and open the run again: what is on disk then counts.
        """

    def artifacts(self) -> ArtifactStore: ...

    def close(self) -> tuple[Writer, ...]:
        """Close the log.

        If this process wrote to the run and no other has it open, write the run's end (`closed`,
        chain head, count); else return the others. Idempotent, and closes even when it raises.
        """


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run with everything that is stored for it, as it is copied to another store."""

    header: RunHeader
    """The contents of `run.json` now."""
    catalogs: Mapping[str, str]
    """The texts of the run's catalogs by their revision, in the header's order."""
    lines: Iterable[tuple[File, bytes]]
    """The sealed lines in the order of their `seq`, each with its file and its newline."""
    artifacts: Iterable[bytes]
    """The artifacts' bytes."""
    labels: Sequence[str]
    """The reviewers' labels, in the order they were given."""


class StoredRuns(Protocol):
    """Reads the runs of a store, and copies whole runs into it.

    A run store with these methods can be used wherever a folder of runs can be: by the reading
    verbs, by the pages, and for copies of runs.

    Methods that get the id of a run are called for runs that `header_of` returned. Where a run was
    deleted since, they find nothing. All raise StorageError.
    """

    @property
    def where(self) -> str:
        """The place of the runs, for people. Without a password."""

    def run_ids(self) -> Sequence[str]:
        """Return the ids of all runs."""

    def header_of(self, run_id: str) -> RunHeader | None:
        """Return the contents of `run.json` now; None where there is no such run."""

    def count_of(self, run_id: str) -> int:
        """Return the number of the run's records, without reading them."""

    def lines_of(self, run_id: str, file: File, start: int) -> Iterable[bytes]:
        """Return the lines of one file from its `start`-th on (0: the first), each as it was sealed
        and with its newline, as far as they were appended when this is called.
        """

    def catalog_of(self, run_id: str, revision: str) -> str | None:
        """Return the text of one of the run's catalogs; None where it is missing."""

    def artifacts_of(self, run_id: str) -> Mapping[str, bytes]:
        """Return the run's artifacts by their digest. Their bytes may be read when asked for."""

    def writers_of(self, run_id: str) -> Sequence[Writer]:
        """Return the processes that work on the run now."""

    def labels_of(self, run_id: str) -> Sequence[str]:
        """Return the reviewers' labels, in the order they were given."""

    def add_label(self, run_id: str, label: str) -> None:
        """Add one label, a line of JSON without its newline."""

    def delete(self, run_id: str) -> bool:
        """Delete a run with its labels; return False if a process works on it."""

    def take_in(self, run: WholeRun) -> None:
        """Store a run that was copied from another store, all or nothing.

        Raises RequestError where a run of that id exists.
        """


class RunStore(Protocol):
    """Opens and creates runs.

    One that is passed to `Router.open(store=...)` stays its caller's, who closes it after the
    router. One that a URL names (`Router.open(store="mine://...")`) is made by the entry point of
    that scheme in the group `bundle_router_stores`: a function of the URL and of `clock=`.
    `bundle_router.testing.store_contract` tests what is asked of a store.

    What a store is handed is redacted already: a record holds no secret that the router knows, and
    a catalog names variables instead of their values. Artifacts are the bytes that tools returned,
    unchanged.
    """

    @property
    def blocks(self) -> bool:
        """Whether reading and appending take a round trip, and so are not for an event loop's
        thread.
        """

    @property
    def writer(self) -> str:
        """The token of this process, unique over machines and restarts; others can see whether it
        lives.
        """

    def is_alive(self, writer: str) -> bool:
        """Return whether the process of a token may still be at work; False only when it is
        certainly gone.
        """

    def open(self, run_id: str) -> RunLog | None:
        """Open an existing run; None where there is none. Writes and locks nothing.

        Raises CorruptRun, StorageError.
        """

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> RunLog:
        """Begin a run, or open it if it exists by now. A failure leaves no run behind.

        `header` is written to `run.json` and names at least `catalog_revision`; `catalog` is the
        text of that revision. Raises CorruptRun, StorageError.
        """

    def check(self) -> None:
        """Check whether runs can be stored now, by a write to the directory or a query.

        Blocks. Raises StorageError.
        """

    def close(self) -> None:
        """Release everything that is held besides runs."""


class Selector(Protocol):
    """Answers a question that the mapping can't: by search, then by a model.

    Its failures are in the reply, never raised.

    The core keeps only those of its answers that are among the question's candidates.
    """

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply: ...


CallFunction = Callable[[str, str], Awaitable[Any]]
"""Calls a function of a program by name, with its arguments as JSON text.

Its exceptions are raised in the program.
"""


class Programs(Protocol):
    """Runs programs from strangers, which can reach nothing but the functions they are given."""

    async def run(self, program: Program, call: CallFunction) -> ProgramEnd:
        """Check a program and run it.

        Its errors are in the returned end, never raised. Raises NotInstalled.
        """

    async def close(self) -> None: ...


class ToolSearch(Protocol):
    """Ranks the tools of a catalog for a query."""

    def rank_tools(
        self,
        catalog: Catalog,
        query: str,
        permitted: frozenset[str],
        k: int,
        *,
        answering: bool = False,
    ) -> Sequence[str]:
        """Return the best `k` of the permitted tools, best first; none where search broke.

        `answering`: for an agent, so without irrelevant ones. Blocks; the first time until an index
        is built.
        """


class BackgroundLoop(Protocol):
    """An event loop in a thread of its own, for callers on any thread or loop."""

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Cancelling the future cancels it."""

    def close(self) -> None:
        """Cancel all work, wait for its end, and end the thread.

        Idempotent; blocks for seconds at most.
        """


class ModelClient(Protocol):
    """Calls language models.

    Used from one event loop, which belongs to the client while it is open.
    """

    @property
    def readiness(self) -> Readiness:
        """The client's state. Only `ready` clients are asked."""

    async def warm_up(self) -> Readiness:
        """Load what calls need, which takes seconds, and return the state then. Contacts nobody."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make exactly one upstream call.

        What it reads is bounded, its time is not: cancel it for that, which closes its connection.
        An upstream failure is in the reply, never raised.
        """

    async def close(self) -> None: ...


class Embedder(Protocol):
    """Turns texts into vectors: equal texts into equal vectors, but for the last bits.

    Used from many threads.
    """

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> str:
        """A value that changes when the vectors of a text would.

        May load the model: not on an event loop.
        """

    @property
    def prompts(self) -> tuple[str, str]:
        """What the caller puts before a request, and before a document. May load the model."""

    def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedding:
        """Embed the texts within about `timeout_s`.

        A failure is in the reply, never raised. The caller checks that the vectors are sound
        (`bundle_router.core.search.meaning.fault_in`).
        """

    def close(self) -> None: ...


class DayCosts(Protocol):
    """Sums what models cost in each UTC day (YYYY-MM-DD), in US dollars. For threads."""

    def add_within(self, day: str, usd: float, limit_usd: float) -> bool:
        """Add to a day's sum unless it has reached the limit, or would exceed it.

        Return whether it was added.
        """

    def add(self, day: str, usd: float) -> None:
        """Add to a day's sum; less than zero takes a part of it back."""


class AnswerStore(Protocol):
    """Stores answers as text beyond the life of the process.

    A cache: an unreadable answer is missing. For threads.
    """

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, text: str, ttl_s: float) -> None: ...


class Sessions(Protocol):
    """Calls tool servers.

    One adapter for each family of transports; the engine chooses by the server's transport.
    """

    async def check_arguments(
        self, server: str, tool: str, arguments: Mapping[str, Any]
    ) -> Sequence[str]:
        """Return what is wrong with the arguments, one sentence each; empty when they are fine."""

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        scope: Scope = EVERYONE,
        place: CallPlace = NOWHERE,
    ) -> RawResult:
        """Call a tool.

        `place` is for local tools; a server has the folder it was started in. A failure of the tool
        is in the result, never raised.
        """

    async def close(self) -> None: ...


class ToolServers(Sessions, Protocol):
    """Sessions with servers elsewhere: they can be listed, and may keep state for a run."""

    closed_runs: dict[str, None]
    """Runs whose sessions end with the call they are begun for.

    Taken out: it may keep sessions between calls again.
    """

    @property
    def changes(self) -> int:
        """A number that grows whenever `known` or `status` may have changed, other than by time."""

    async def prepare(self) -> None:
        """Load the libraries that reach servers: a second of our own, which must not count as a
        server's time to answer.

        Raises ToolFailure where no thread can be started for it.
        """

    async def definitions(
        self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False
    ) -> Listing:
        """Return the server's tools, from the cache while that holds. `fresh`: read them now.

        Raises ToolFailure when the list can't be had; its code is that of a call that fails for the
        same reason.
        """

    def known(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        """Return the last list, however old, without contacting the server."""

    def fresh(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        """Return what `definitions` would return from its cache; None where it would ask the
        server.
        """

    async def ask(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float,
        scope: Scope = EVERYONE,
    ) -> ServerReply:
        """Send the server any request but a call.

        Returns its answer, or the reason why there is none.
        """

    async def follow(
        self, server: str, uri: str, updated: Callable[[], None], *, scope: Scope = EVERYONE
    ) -> Callable[[], None]:
        """Call `updated`, from any thread, whenever the server reports a change of the resource.

        Return a function that ends this; the end of the run ends it too. Raises ToolFailure when
        the server can't be reached.
        """

    def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]: ...

    def mark_closed(self, run_id: str) -> bool:
        """Add the run to `closed_runs`. Return whether `close_run` may have something to end."""

    async def close_run(self, run_id: str) -> None:
        """End the run's sessions, each after the calls that use it, and wait for those that none
        uses.
        """
