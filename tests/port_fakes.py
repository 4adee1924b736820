"""A fake of every port, for tests of what stands on it.

Those that users need are in `bundle_router.testing`; here are the others, and `FakePorts`, which has
one of each: mypy checks that each implements its port, and tests/test_ports.py that none is missing.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bundle_router.core.catalog import Catalog
from bundle_router.core.exposure.stubs import Program, ProgramEnd
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.servers.transport.pass_through import ServerReply
from bundle_router.core.servers.transport.tool_servers import EVERYONE, Listing, Scope, ServerStatus
from bundle_router.errors import RequestError, ToolFailure
from bundle_router.ports import (
    AnswerStore,
    ArtifactStore,
    BackgroundLoop,
    CallFunction,
    Capabilities,
    Clock,
    DayCosts,
    Diagnostics,
    Embedder,
    ModelClient,
    Programs,
    Redactor,
    RunLog,
    RunStore,
    Scratch,
    Selector,
    Sessions,
    StoredRuns,
    ToolSearch,
    ToolServers,
)
from bundle_router.testing import (
    FakeCapabilities,
    FakeClock,
    FakeDiagnostics,
    FakeRedactor,
    FakeSessions,
    MemoryArtifacts,
    MemoryRunStore,
    ScriptedSelector,
)

from tests.engine.asking.scripted_client import ScriptedClient, always
from tests.engine.selecting.embedders import Embedder as ScriptedEmbedder

T = TypeVar("T")


class FakeScratch:
    """Files for one call, in a temporary folder."""

    def __init__(self) -> None:
        self._folders: dict[str, tempfile.TemporaryDirectory[str]] = {}

    def put(self, name: str, data: bytes, *, within: str = "") -> str:
        if within not in self._folders:
            self._folders[within] = tempfile.TemporaryDirectory(dir=within or None)
        path = Path(self._folders[within].name).resolve() / name
        if not path.exists():
            path.write_bytes(data)
            path.chmod(0o400)
        return str(path)

    def close(self) -> None:
        for folder in self._folders.values():
            folder.cleanup()
        self._folders.clear()


@dataclass
class ScriptedPrograms:
    """Ends every program with `end`, after the calls that `calls` names."""

    end: ProgramEnd = field(default_factory=lambda: ProgramEnd("done"))
    """What each program gives."""
    calls: Sequence[tuple[str, str]] = ()
    """The calls that each program makes, as (function, arguments)."""
    programs: list[Program] = field(default_factory=list)
    """The programs that were run."""

    async def run(self, program: Program, call: CallFunction) -> ProgramEnd:
        self.programs.append(program)
        for name, arguments in self.calls:
            await call(name, arguments)
        return self.end

    async def close(self) -> None:
        return None


class AlphabeticalSearch:
    """Finds the permitted tools that have a word of the query in their names, by name."""

    def rank_tools(
        self,
        catalog: Catalog,
        query: str,
        permitted: frozenset[str],
        k: int,
        *,
        answering: bool = False,
    ) -> Sequence[str]:
        words = query.lower().split()
        return [name for name in sorted(permitted) if any(word in name for word in words)][:k]


class FakeLoop:
    """Runs each coroutine to its end before `submit` returns."""

    def __init__(self) -> None:
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._closed:
            work.close()
            raise RequestError("the loop is closed")
        future: Future[T] = Future()
        try:
            future.set_result(asyncio.run(work))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is read
            future.set_exception(error)
        return future

    def close(self) -> None:
        self._closed = True


class MemoryDayCosts:
    """Sums by day, in memory."""

    def __init__(self) -> None:
        self.usd: dict[str, float] = {}

    def add_within(self, day: str, usd: float, limit_usd: float) -> bool:
        spent = self.usd.get(day, 0.0)
        fits = spent < limit_usd and spent + usd <= limit_usd
        if fits:
            self.add(day, usd)
        return fits

    def add(self, day: str, usd: float) -> None:
        self.usd[day] = self.usd.get(day, 0.0) + usd


class MemoryAnswers:
    """Answers in memory, until their time is over by `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[str, float]] = {}

    def get(self, key: str) -> str | None:
        text, until_ns = self._kept.get(key, (None, 0.0))
        return text if self._clock.monotonic_ns() < until_ns else None

    def put(self, key: str, text: str, ttl_s: float) -> None:
        self._kept[key] = (text, self._clock.monotonic_ns() + ttl_s * 1e9)


class FakeToolServers(FakeSessions):
    """Servers whose lists and results a test gives. One without a list does not answer."""

    def __init__(self, listings: Mapping[str, Listing], results: Mapping[str, object]) -> None:
        super().__init__(results)
        self.listings = dict(listings)
        self.closed_runs: dict[str, None] = {}
        self.followed: list[tuple[str, str]] = []
        self.changes = 0

    async def prepare(self) -> None:
        return None

    async def definitions(
        self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False
    ) -> Listing:
        if server not in self.listings:
            raise ToolFailure(f"{server} does not answer", code="unreachable")
        return self.listings[server]

    def known(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        return self.listings.get(server)

    def fresh(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        return self.listings.get(server)

    async def ask(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float,
        scope: Scope = EVERYONE,
    ) -> ServerReply:
        return ServerReply(outcome="unavailable", code="unreachable", text="nobody answers")

    async def follow(
        self, server: str, uri: str, updated: Callable[[], None], *, scope: Scope = EVERYONE
    ) -> Callable[[], None]:
        self.followed.append((server, uri))
        return lambda: self.followed.remove((server, uri))

    def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]:
        return [ServerStatus(name, "stdio") for name in self.listings]

    def mark_closed(self, run_id: str) -> bool:
        self.closed_runs[run_id] = None
        return False

    async def close_run(self, run_id: str) -> None:
        return None


@dataclass(frozen=True)
class FakePorts:
    """One fake of each port."""

    answers: AnswerStore
    artifacts: ArtifactStore
    loop: BackgroundLoop
    capabilities: Capabilities
    clock: Clock
    costs: DayCosts
    diagnostics: Diagnostics
    embedder: Embedder
    model: ModelClient
    programs: Programs
    redactor: Redactor
    log: RunLog
    store: RunStore
    scratch: Scratch
    selector: Selector
    sessions: Sessions
    archive: StoredRuns
    search: ToolSearch
    servers: ToolServers


def fake_ports() -> FakePorts:
    """Return a new fake of each port."""
    clock = FakeClock()
    store = MemoryRunStore()
    header = RunHeader({"catalog_revision": "sha256:0"})
    return FakePorts(
        answers=MemoryAnswers(clock),
        artifacts=MemoryArtifacts(),
        loop=FakeLoop(),
        capabilities=FakeCapabilities(),
        clock=clock,
        costs=MemoryDayCosts(),
        diagnostics=FakeDiagnostics(),
        embedder=ScriptedEmbedder(),
        model=ScriptedClient(always("timeout")),
        programs=ScriptedPrograms(),
        redactor=FakeRedactor(),
        log=store.create("r", header=header, catalog="{}"),
        store=store,
        scratch=FakeScratch(),
        selector=ScriptedSelector(lambda question: []),
        sessions=FakeSessions({}),
        archive=store,
        search=AlphabeticalSearch(),
        servers=FakeToolServers({}, {}),
    )
