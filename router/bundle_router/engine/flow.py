"""The ports that the engine's flows use, and two drivers for a flow that may wait.

A flow is a generator. It yields work that blocks, or something to await, and receives its result. `drive` runs a flow
on an event loop, `drive_from_thread` on a thread without one, so each flow is written once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bundle_router.core.tools.meta_tools.artifact_pages import Finder
from bundle_router.core.tools.shaping import MediaFacts
from bundle_router.dataclass import dataclass
from bundle_router.engine.reuse import ResultReuse
from bundle_router.errors import RunBusy, StorageError
from bundle_router.ports import (
    Clock,
    Diagnostics,
    Programs,
    Redactor,
    RunStore,
    Scratch,
    Selector,
    Sessions,
    ToolSearch,
)

if TYPE_CHECKING:
    from bundle_router.engine.open_runs import OpenRun, RunTable

T = TypeVar("T")

QUICK_S: Final = 0.005
"""Seconds that an event loop waits for the store before the work is tried again in a thread."""
PATIENT_S: Final = 5.0
"""Seconds that a thread waits for the store."""


def no_patterns(pattern: str) -> Finder:
    """Refuse a regular expression: no engine for them is installed."""
    raise ValueError(f"regular expressions such as {pattern[:50]!r} are not searched for here")


def no_queries(expression: str, value: Any) -> Any:
    """Refuse a query: no engine for them is installed."""
    raise ValueError(f"queries such as {expression[:50]!r} are not answered here")


@dataclass(frozen=True, slots=True)
class EnginePorts:
    """The ports that the flows use. `sessions` is keyed by transport. `describe` recognises the media type of bytes.
    `patterns` compiles a regular expression and `queries` evaluates a JSON query (both raise ValueError with the
    reason). `tools` is None without search, `results` without reuse of results, `scratch` where tools get no files,
    `programs` without code mode. `in_thread` runs slow work off the event loop."""

    clock: Clock
    redactor: Redactor
    diagnostics: Diagnostics
    sessions: Mapping[str, Sessions]
    describe: Callable[[bytes], MediaFacts]
    selector: Selector | None = None
    patterns: Callable[[str], Finder] = no_patterns
    tools: ToolSearch | None = None
    results: ResultReuse | None = None
    scratch: Callable[[], Scratch] | None = None
    programs: Programs | None = None
    queries: Callable[[str, Any], Any] = no_queries
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = lambda work: asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class CallPorts:
    """What every part of a call uses: the engine's ports, the table of runs, and the run."""

    ports: EnginePorts
    runs: RunTable
    run: OpenRun

    async def on_store(self, work: Callable[[float], T]) -> T:
        """Do work on the store under the run's lock."""
        return await on_store(self.runs.store, lambda wait_s: self._under_lock(work, wait_s))

    def _under_lock(self, work: Callable[[float], T], wait_s: float) -> T:
        with self.run.lock:
            return work(wait_s)

    async def wait_until_durable(self) -> None:
        """Wait until the records survive power loss, where the config asks for that."""
        if self.run.durable:
            try:
                await asyncio.to_thread(self.run.log.sync)
            except StorageError:
                self.runs.discard(self.run)
                raise


@dataclass(frozen=True, slots=True)
class InThread:
    """Work that blocks for an unknown time. `undo` receives its result when nobody waits for it any more."""

    work: Callable[[], Any]
    undo: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True)
class OnStore:
    """Work on the store; `work` receives the seconds it may wait. It takes microseconds as a rule and is done in place;
    in a thread where the store blocks or is busy."""

    work: Callable[[float], Any]
    store: RunStore


@dataclass(frozen=True, slots=True)
class Awaited:
    """Something to await on an event loop."""

    coroutine: Coroutine[Any, Any, Any]


Flow = Generator[InThread | OnStore | Awaited, Any, T]


async def drive(flow: Flow[T], do: Callable[[InThread | OnStore | Awaited], Awaitable[Any]] | None = None) -> T:
    """Run a flow to its end on this event loop. `do` carries out what the flow yields."""
    try:
        wanted = next(flow)
        while True:
            try:
                found = await (do or _carry_out)(wanted)
            except BaseException as error:  # noqa: BLE001 - the flow it is thrown into decides
                wanted = flow.throw(error)
            else:
                wanted = flow.send(found)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        flow.close()


async def _carry_out(work: InThread | OnStore | Awaited) -> Any:
    if isinstance(work, OnStore):
        return await on_store(work.store, work.work)
    if isinstance(work, InThread):
        if work.undo is not None:
            return await in_thread(work.work, work.undo)
        return await asyncio.to_thread(work.work)
    return await work.coroutine


async def in_thread(work: Callable[[], T], undo: Callable[[T], None]) -> T:
    """Do work in a thread. A thread can't be cancelled: if the waiting task is, `undo` receives the result."""
    lock = threading.Lock()
    done: list[T] = []
    cancelled = False

    def job() -> T:
        result = work()
        with lock:
            done.append(result)
            is_unwanted = cancelled
        if is_unwanted:
            undo(result)
        return result

    try:
        return await asyncio.to_thread(job)
    except asyncio.CancelledError:
        with lock:
            cancelled = True
            unwanted = [*done]
        for result in unwanted:
            undo(result)
        raise


async def on_store(store: RunStore, work: Callable[[float], T]) -> T:
    """Do work on the store: in place where that is quick, else in a thread."""
    if not store.blocks:
        try:
            return work(QUICK_S)
        except RunBusy:  # somebody holds it for longer than it takes: nothing was written
            pass
    return await asyncio.to_thread(work, PATIENT_S)


def drive_from_thread(flow: Flow[T], wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> T:
    """Run a flow to its end on this thread. `wait` runs a coroutine elsewhere and returns its result."""

    async def do(work: InThread | OnStore | Awaited) -> Any:
        if isinstance(work, Awaited):
            return wait(work.coroutine)
        return work.work(PATIENT_S) if isinstance(work, OnStore) else work.work()

    try:
        drive(flow, do).send(None)
    except StopIteration as end:  # it waits here, and not on a loop: it ends at its first step
        value: T = end.value
        return value
    raise AssertionError("a flow on a thread was suspended")
