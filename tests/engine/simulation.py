"""Simulated workers: each an engine with a store of its own, which pauses at each operation and may
be killed there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from bundle_router import Router
from bundle_router.core.records.chain import Appended, File, Record, RepairedTail, Writer
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.servers.transport.tool_servers import RawResult
from bundle_router.core.values import Text
from bundle_router.core.values.artifacts import MediaFacts
from bundle_router.engine.engine import Engine
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.versions import EngineVersions
from bundle_router.errors import RouterError
from bundle_router.ports import ArtifactStore, RunLog, RunStore
from bundle_router.testing import (
    FakeCapabilities,
    FakeClock,
    FakeDiagnostics,
    FakeRedactor,
    FakeSessions,
)

from tests.engine.model import CATALOGS, Model

T = TypeVar("T")
SKEW_S: Final = 600.0
"""How far the clocks of two workers are apart."""
DIES: Final = 0.03
"""How often a worker is killed at a place where it may be."""


class Crashed(RouterError):
    """The worker is dead: whatever it does from now on fails."""


class SimulatedLog:
    """A log of a worker. Implements `ports.RunLog`."""

    def __init__(self, worker: Worker, log: RunLog) -> None:
        self._worker, self._log = worker, log

    path = property(lambda self: self._log.path)
    header = property(lambda self: self._log.header)
    id_prefix = property(lambda self: self._log.id_prefix)
    next_seq = property(lambda self: self._log.next_seq)

    @property
    def healed(self) -> tuple[RepairedTail, ...]:
        return self._log.healed

    def news(self) -> Iterable[Record]:
        return self._worker.on_store(lambda: list(self._log.news()))

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = 5.0
    ) -> Appended:
        def write() -> Appended:
            appended = self._log.append(file, record, only_at=only_at, wait_s=wait_s)
            if appended.seq is not None:
                self._worker.model.note(record)
            return appended

        return self._worker.on_store(write, dies=DIES, after=True)

    def record(self, seq: int) -> Record:
        return self._worker.on_store(lambda: self._log.record(seq))

    def put_catalog(self, revision: str, text: str, *, wait_s: float = 5.0) -> None:
        self._worker.on_store(
            lambda: self._log.put_catalog(revision, text, wait_s=wait_s), pauses=False
        )

    def sync(self) -> None:
        self._log.sync()

    def artifacts(self) -> ArtifactStore:
        return self._log.artifacts()

    def close(self) -> tuple[Writer, ...]:
        return self._worker.on_store(self._log.close, dies=DIES, after=True)


class SimulatedStore:
    """The store of a worker. Implements `ports.RunStore`."""

    def __init__(self, worker: Worker, store: RunStore) -> None:
        self._worker, self._store = worker, store
        self.blocks = store.blocks

    @property
    def writer(self) -> str:
        return self._store.writer

    def is_alive(self, writer: str) -> bool:
        return self._worker.on_store(lambda: self._store.is_alive(writer))

    def open(self, run_id: str) -> SimulatedLog | None:
        log = self._worker.on_store(lambda: self._store.open(run_id))
        return self._logged(log) if log is not None else None

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> SimulatedLog:
        create = self._store.create
        made = self._worker.on_store(
            lambda: create(run_id, header=header, catalog=catalog),
            dies=DIES,
            after=True,
            undo=self._worker.logs.append,
        )
        return self._logged(made)

    def _logged(self, log: RunLog) -> SimulatedLog:
        self._worker.logs.append(log)
        return SimulatedLog(self._worker, log)

    def check(self) -> None:
        self._store.check()

    def close(self) -> None:
        self._store.close()


class Effects(FakeSessions):
    """The tools of a worker: each call is one effect, in whose midst the worker may die."""

    def __init__(self, worker: Worker) -> None:
        super().__init__({})
        self._worker = worker

    async def check_arguments(
        self, server: str, tool: str, arguments: Mapping[str, Any]
    ) -> Sequence[str]:
        return ()

    async def call(
        self, server: str, tool: str, arguments: Mapping[str, Any], **more: Any
    ) -> RawResult:
        worker = self._worker
        worker.on_store(lambda: None, dies=DIES)
        number = worker.model.carry_out(
            worker.at, more["scope"].run_id, f"{server}.{tool}", str(arguments["key"])
        )
        worker.on_store(lambda: None, dies=DIES)
        return RawResult((Text(f"effect {number}"),))


class Worker:
    """A process: an engine with a store of its own. What it holds is gone when it dies."""

    def __init__(self, at: int, model: Model, place: Place, limit: int | None) -> None:
        self.at, self.model, self._place = at, model, place
        self.logs: list[RunLog] = []
        self.dead = False
        self._store = place.store()
        redactor, store, clock = FakeRedactor(), SimulatedStore(self, self._store), FakeClock()
        clock.advance(SKEW_S * at)
        ports = EnginePorts(
            clock=clock,
            redactor=redactor,
            diagnostics=FakeDiagnostics(),
            sessions={"local": Effects(self)},
            describe=lambda data: MediaFacts("application/octet-stream"),
        )
        engine = Engine(
            catalog=CATALOGS[limit],
            ports=ports,
            store=store,
            capabilities=FakeCapabilities(),
            workspace="/",
        )
        self.router = Router(EngineVersions(engine))

    def on_store(
        self,
        work: Callable[[], T],
        *,
        dies: float = 0.0,
        after: bool = False,
        pauses: bool = True,
        undo: Callable[[T], object] = lambda found: None,
    ) -> T:
        """Do it when it is this worker's turn again; it may die before it, or (`after`) behind it,
        unheard.
        """
        if self.dead:
            raise Crashed("dead")
        if pauses:
            self.model.interleaving.pause(self.at)
        if dies and self.model.dice.random() < dies:
            self.die()
        found = work()
        if after and self.model.dice.random() < dies:
            undo(found)
            self.die()
        return found

    def die(self) -> None:
        self.dead = True
        self._place.kill(self._store, self.logs, self.model.dice)
        raise Crashed("killed")

    def end(self) -> None:
        """Let go of everything, as a process does that ends."""
        if not self.dead:
            self.dead = True
            self._place.kill(self._store, self.logs, None)


class Place:
    """Where the runs of one schedule are: makes stores over it, kills them, and reads what stands
    there.
    """

    def store(self) -> RunStore:
        raise NotImplementedError

    def kill(self, store: RunStore, logs: Sequence[RunLog], dice: random.Random | None) -> None:
        """Let go of all that a process held, as the kernel does.

        With `dice` it may have been in the midst of writing.
        """
        raise NotImplementedError

    def files(self, run_id: str) -> Mapping[str, list[bytes]] | None:
        """The lines of each file of a run; None where there is none."""
        raise NotImplementedError

    def clear(self) -> None:
        """Take the runs away."""
