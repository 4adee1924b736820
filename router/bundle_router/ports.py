"""One Protocol per effect. The engine knows these; `bundle_router.wiring` gives it the adapters behind them.

A fake that implements a port is in `bundle_router.testing`; one contract suite runs against the fake and the adapter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeVar

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.asking.model_exchange import ModelReply, ModelRequest
from bundle_router.core.decide.decide import Question
from bundle_router.core.models import RecentStep, Reply
from bundle_router.core.models.artifacts import Artifact as Artifact
from bundle_router.core.records.chain import Appended, File, Record, RepairedTail, Writer
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.search.index import Document, Embedding, Hits, Index, NearDocument, Vectors
from bundle_router.core.tools.stubs import Program, ProgramEnd
from bundle_router.core.tools.transport.pass_through import Client, ServerReply
from bundle_router.core.tools.transport.tool_servers import (
    EVERYONE,
    NOWHERE,
    CallPlace,
    Listing,
    RawResult,
    Scope,
    ServerStatus,
)

T = TypeVar("T")

Readiness = Literal["cold", "warming", "ready", "missing", "broken"]
"""Of a model client: not begun, loading, usable, not installed, or installed and not loadable."""


class Clock(Protocol):
    """Time, read once per use. Durations and lifetimes use `monotonic_ns`; only records carry `now`."""

    def now(self) -> str:
        """RFC 3339 UTC with microseconds, e.g. `2026-11-21T08:02:00.123456Z`."""

    def monotonic_ns(self) -> int: ...


class Redactor(Protocol):
    """Takes secrets out of text. Idempotent: redacting twice gives the same text."""

    def redact(self, text: str) -> str: ...

    def redact_many(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the same for several texts at the price of one look. Without a secret, `texts` itself."""

    def is_clean(self, text: str) -> bool:
        """Return whether `redact` would leave the text as it is. May be False for clean text, never True for a
        secret."""

    def redact_value(self, value: Any) -> Any:
        """Return the same for every string (keys included) in a JSON value; the value itself is not changed."""

    def keep(self, name: str, value: str) -> None:
        """Take this value out as well from now on: a token that was made while the program runs. From any thread."""


class Diagnostics(Protocol):
    """What the operator should know, on standard error. Never raises, never writes to standard output."""

    def event(self, level: str, name: str, **fields: object) -> None:
        """`level` is `debug`, `info`, `warning` or `error`; `name` is a past-tense word such as `log.healed`."""


class Capabilities(Protocol):
    """Looks up what is present on this machine, cached by the monotonic clock."""

    def present(self, names: Sequence[str]) -> frozenset[str]:
        """Return which of `env:NAME` and `binary:NAME` exist now."""


class Scratch(Protocol):
    """Files that are handed to a tool for one call."""

    def put(self, name: str, data: bytes, *, within: str = "") -> str:
        """Return the absolute path of a read-only file with these bytes, alone in a new folder inside `within` (empty:
        where the system keeps temporary files). Raises StorageError."""

    def close(self) -> None:
        """Take the files away."""


class ArtifactStore(Protocol):
    """Content-addressed bytes of one run."""

    def put(self, data: bytes) -> str:
        """Store the bytes and return their digest. Raises StorageError (and leaves nothing behind), CorruptRun."""

    def get(self, sha256: str) -> bytes:
        """Return the bytes, checked against the digest. Raises KeyError if absent, CorruptRun if they do not match."""


class RunLog(Protocol):
    """One run, as one process reads and appends it. Nobody holds a run: every process reads and appends side by side.

    A log stands behind the records it has given so far; what it has not given yet is news. The caller holds a lock of
    its own around everything but `sync` and the artifacts.
    """

    @property
    def path(self) -> str:
        """Where the run is, for people."""

    @property
    def header(self) -> RunHeader:
        """What `run.json` says of the run, as it was when the run began."""

    @property
    def id_prefix(self) -> str:
        """What ids of the run's decisions and calls begin with: unique over machines (see `nonce` in the header)."""

    @property
    def healed(self) -> tuple[RepairedTail, ...]:
        """Torn ends that this log cut off so far; report them."""

    @property
    def next_seq(self) -> int:
        """The number of records given or written so far: the sequence number of the next, if no news come first."""

    def news(self) -> Iterable[Record]:
        """Return the records that came since the last look, in order, of whoever wrote them; all of them the first
        time. To be consumed whole. Costs one look at sizes (or one query) where nothing came. Raises CorruptRun,
        StorageError.
        """

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = 5.0
    ) -> Appended:
        """Write one record (adds `seq`, `prev`, `hash`) behind everything that is there, and give what came before.

        `only_at`: compare and append. Nothing is written unless the run holds exactly that many records, and all of
        them were given before. A run that was closed is open again by an append.

        Raises RunBusy when the store could not be had within `wait_s`, StorageError when the record was not written; a
        later append may succeed. After a `sync` that failed it refuses, whatever the record: see there.
        """

    def record(self, seq: int) -> Record:
        """Return one record that was given before, read again. Raises KeyError."""

    def put_catalog(self, revision: str, text: str) -> None:
        """Keep the text of a catalog revision with the run, where it is not there yet. Before a decision names it."""

    def sync(self) -> None:
        """Return when everything appended so far survives power loss (durability `disk`); else return at once.

        Blocks for milliseconds with `disk`: not for an event loop's thread.

        When it raises StorageError, records that were appended and not synced are neither kept nor taken back: nobody
        knows what the disk holds. What rests on them must not be returned or become current, and this log refuses every
        further append and sync. Close it and open the run again: what is on disk then, counts.
        """

    def artifacts(self) -> ArtifactStore: ...

    def close(self) -> tuple[Writer, ...]:
        """Let go of the run. If it was written to here and nobody else has it open, write its end (`closed`, chain
        head, count); else gives those others. Idempotent, and lets go even when it raises."""


class RunStore(Protocol):
    """Where runs live."""

    @property
    def blocks(self) -> bool:
        """Whether reading and appending take a round trip: not for an event loop's thread then."""

    @property
    def writer(self) -> str:
        """The token of this process, unique over machines and restarts, whose life others can see. Made when needed."""

    def is_alive(self, writer: str) -> bool:
        """Return whether the process of a token may still be at work; False only when it is gone for certain."""

    def open(self, run_id: str) -> RunLog | None:
        """Return a run that is there, as it stands; None where there is none. Writes and locks nothing.

        Raises CorruptRun, StorageError.
        """

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> RunLog:
        """Begin a run, or open the one that is there by now. One that failed leaves no run.

        `header` goes into `run.json` and names at least `catalog_revision`; `catalog` is the text of that revision.
        Raises CorruptRun, StorageError.
        """

    def check(self) -> None:
        """Look whether runs can be kept now: write in the directory, or ask the database. Blocks. Raises
        StorageError."""

    def close(self) -> None:
        """Let go of what it holds besides runs."""


class Selector(Protocol):
    """Answers what the mapping can't: search, then the model. An upstream's fault is in the reply, never raised.

    What it says is a wish: the core keeps only ids that are among the question's candidates.
    """

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply: ...


CallFunction = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Calls a program's function by name, with its arguments. What it raises is raised in the program."""


class Programs(Protocol):
    """Runs programs that strangers wrote, which reach nothing but the functions they are given."""

    async def run(self, program: Program, call: CallFunction) -> ProgramEnd:
        """Check a program and run it. What is wrong with it is in the end, never raised. Raises NotInstalled."""

    async def close(self) -> None: ...


class ToolSearch(Protocol):
    """Ranks the tools of a catalog for a query."""

    def rank_tools(
        self, catalog: Catalog, query: str, permitted: frozenset[str], k: int, *, answering: bool = False
    ) -> Sequence[str] | None:
        """Return the best `k` of the permitted tools, best first; None where there is no search. `answering`: for an
        agent to read, so without the noise behind the best. Blocks: the first time for as long as an index takes to
        make."""


class BackgroundLoop(Protocol):
    """An event loop in a thread of its own, for callers on any thread or loop."""

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Cancelling the future cancels it."""

    def close(self) -> None:
        """Cancel what is under way, wait for it to end, and end the thread. Idempotent; blocks for seconds at most."""


class ModelClient(Protocol):
    """Calls to language models. Used from one event loop, which is the client's own while it is open."""

    @property
    def readiness(self) -> Readiness:
        """Where it stands. Only `ready` clients are asked."""

    async def warm_up(self) -> Readiness:
        """Load what calls need, which takes seconds, and give the readiness then. Contacts nobody."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one upstream call and no more. Bounds what it reads but not how long it takes: cancel it for that, and
        its connection is closed. What goes wrong upstream is in the reply, never raised."""

    async def close(self) -> None: ...


class Embedder(Protocol):
    """Turns texts into vectors, the same text always into the same but for the last bits. Used from many threads."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> str:
        """What changes whenever the vectors of a text would. May load the model: not for an event loop's thread."""

    def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedding:
        """Embed them, in at most about `timeout_s`. What goes wrong is in the reply, never raised; that the vectors are
        sound is for the caller to check (`bundle_router.core.search.meaning.fault_in`)."""

    def close(self) -> None: ...


class AnswerStore(Protocol):
    """Answers that outlive the process, as text. A cache: what can't be read is not there. Called from threads."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, text: str, ttl_s: float) -> None: ...

    def close(self) -> None: ...


class Sessions(Protocol):
    """Calls to tool servers. One adapter per transport family; the engine picks by the server's transport."""

    async def check_arguments(self, server: str, tool: str, arguments: Mapping[str, Any]) -> Sequence[str]:
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
        """`place` is for local tools; a server has the folder it was started in. What goes wrong at the tool is in the
        result, never raised."""

    async def close(self) -> None: ...


class ToolServers(Sessions, Protocol):
    """Sessions with servers that are elsewhere: they can be listed, and hold something for a run."""

    @property
    def changes(self) -> int:
        """Return a number that grows whenever `known` or `status` may say something else, but for what time changes."""

    async def prepare(self) -> None:
        """Load what any server is reached with: a second of our own, which counts for no server's time to answer.

        Raises ToolFailure where no thread can be started for it."""

    async def definitions(self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False) -> Listing:
        """Return the server's tools, from the cache where it holds. `fresh`: read them now.

        Raises ToolFailure when there are none to give; its code is that of a call that failed so.
        """

    def known(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        """Return the last listing, however old, without contacting anybody."""

    def fresh(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        """Return what `definitions` would give without contacting anybody; None where it would ask the server."""

    async def ask(
        self, server: str, method: str, params: Mapping[str, Any], *, timeout_s: float, scope: Scope = EVERYONE
    ) -> ServerReply:
        """Make any request of the server but a call. What the server answers, or why it does not, is in the answer,
        never raised."""

    async def follow(
        self, server: str, uri: str, updated: Callable[[], None], *, scope: Scope = EVERYONE
    ) -> Callable[[], None]:
        """Has `updated` called, from any thread, whenever the server says that a resource is another now. Returns what
        ends that; so does the end of the run. Raises ToolFailure when the server can't be heard."""

    def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]: ...

    async def close_run(self, run_id: str) -> None:
        """End what was opened for the run."""


__all__ = [
    "EVERYONE",
    "AnswerStore",
    "Appended",
    "Artifact",
    "ArtifactStore",
    "CallFunction",
    "Capabilities",
    "Client",
    "Clock",
    "Diagnostics",
    "Document",
    "Embedder",
    "Embedding",
    "Hits",
    "Index",
    "Listing",
    "ModelClient",
    "NearDocument",
    "Program",
    "ProgramEnd",
    "Programs",
    "RawResult",
    "Readiness",
    "Record",
    "Redactor",
    "RepairedTail",
    "RunLog",
    "RunStore",
    "Scope",
    "Scratch",
    "Selector",
    "ServerReply",
    "ServerStatus",
    "Sessions",
    "ToolSearch",
    "ToolServers",
    "Vectors",
    "Writer",
]
