"""The runs that this process has open.

Rules:
1. No process owns a run. This process knows a run by the fold of the records it has read. It reads
   on before it answers, and decides again where other processes appended first.
2. A run's lock orders the work of this process on it. It is held for look-ups and one append, never
   across an await.
3. An event loop waits for nobody: not for a store that others hold, nor for a thread that has a
   run's lock meanwhile. Where the store is quick, no thread has that lock for long; where it
   blocks, a loop never takes it.
4. A run that is closed while steps or calls are under way is released when the last of them is
   recorded. The process that releases it last writes its end.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.records.call_records import CallFinished, CallRecord, RequestPassed
from bundle_router.core.records.chain import Appended, File, Writer
from bundle_router.core.records.decision_record import BudgetKey, DecisionRecord
from bundle_router.core.records.fold import RunFold
from bundle_router.core.records.redacting import redact_record
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values import Activation
from bundle_router.core.values.words import shown_run_id
from bundle_router.engine.surface import RunState
from bundle_router.errors import (
    RequestError,
    RouterError,
    RunBusy,
    StorageError,
    UnknownRun,
    expect,
)
from bundle_router.ports import ArtifactStore, Diagnostics, Redactor, RunLog, RunStore

MOVED_AT_MOST: Final = 50
"""Times that an append is decided again because other processes wrote first, before it is given
up.
"""
QUICK_S: Final = 0.005
"""Seconds that the first of several who find the store held waits for it in place: others hold it
for microseconds.
"""
PATIENT_S: Final = 5.0
"""Seconds that work is tried again while others hold the store."""
LONGEST_PAUSE_S: Final = 0.08
CallEnd = TypeVar("CallEnd", CallFinished, RequestPassed)
T = TypeVar("T")


async def in_thread(work: Callable[[], T], undo: Callable[[T], object] = lambda _: None) -> T:
    """Do work in a thread; in this one where it has no event loop.

    A thread can't be cancelled: if the waiting task is, `undo` receives the result.
    """
    if "asyncio.events" not in sys.modules or asyncio._get_running_loop() is None:
        return work()
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
    except (asyncio.CancelledError, GeneratorExit):
        with lock:
            cancelled = True
            unwanted = [*done]
        for result in unwanted:
            undo(result)
        raise


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The outcome of closing a run.

    `ended`: its end is written. Else `others` are the processes that have it open; the last of them
    writes the end. False without others: it is not open here, or work is under way.
    """

    ended: bool
    others: tuple[Writer, ...] = ()


class _RunMoved(RunBusy):
    """Others did not hold the run, but wrote first: that was tried again often enough."""


class OpenRun:
    """One run that this process has open: its log, and the fold of the records read so far, under
    one lock.
    """

    def __init__(self, log: RunLog, runs: RunTable, *, recent_steps: int, durable: bool) -> None:
        self.log = log
        self.id = log.header.run_id
        self.workspace = log.header.workspace
        self.nonce = log.header.nonce or self.id
        self._parent = (log.header.parent_run_id or "") if log.header.names_parent else None
        self.fold = RunFold(recent_steps)
        self.lock = threading.Lock()
        self.durable = durable
        self._lock_of_holds = threading.Lock()
        """For `leases`, `closing` and `ended` alone. Nobody waits while having it."""
        self.leases = 0
        self.used = False
        self.signed: tuple[str, frozenset[str]] = ("", frozenset())
        self.closing = False
        self.ended = False
        self.others: tuple[Writer, ...] = ()
        self.abandoned: deque[Callable[[float], object] | None] = deque()
        """For who has the lock next: ends to be recorded, which closed coroutines left or the store
        did not take, and holds (None) of closed coroutines. The garbage collector may close one in
        a thread that has the lock.
        """
        self._retrying = threading.Lock()
        self.passing: dict[int, BudgetKey | None] = {}
        """Budgets of requests and calls of the router's own tools, by identity, until they have
        their one record.
        """
        self._waiting: set[object] = set()
        self.kept_state: tuple[str | None, RunState | None] = (None, None)
        """The state that calls were judged by last, after the decision that they named (see
        `Engine.state`).
        """
        self.runs = runs

    @property
    def artifacts(self) -> ArtifactStore:
        return self.log.artifacts()

    @property
    def parent_id(self) -> str | None:
        """The id of the parent run, by the run's header; where that was lost, by its last
        decision.
        """
        if self._parent is not None or not self.fold.decisions:
            return self._parent or None
        decided = self.fold.decided(self.fold.current_branch)
        return decided.step.parent_run_id if decided is not None else None

    def refuse_other_principal(self, principal: str) -> None:
        """Raise RequestError where the run has steps for another principal than this one, named or
        not.
        """
        if self.fold.principals <= {principal}:
            return
        whom = f"principal {principal!r}" if principal else "no principal"
        raise RequestError(
            f"this step is for {whom}, and run {self.id!r} has steps for another",
            advice=(
                "name the same principal in all steps of a run and of its sub-agents, or give this"
                ' one a run of its own; `[runs] principals = "mixed"` in router.toml lets a run'
                " serve several"
            ),
        )

    def read_on(self) -> bool:
        """Take in records that other processes appended.

        Return whether there were any. The caller holds the lock.
        """
        return self.fold.take_all(self.log.news())

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None, wait_s: float
    ) -> Appended:
        """Append a record, without the secrets that it may hold (see `RunLog.append`).

        The caller holds the lock.
        """
        clean = redact_record(record, self.runs.redactor)
        return self.log.append(file, clean, only_at=only_at, wait_s=wait_s)

    def append_call(
        self, record: CallRecord, *, compare: bool, wait_s: float, spent: Totals | None = None
    ) -> int | None:
        """Append a call's record, take it in, and return its `seq`.

        With `compare`, return None where other processes appended first; their records are taken
        in. `spent` are the totals of the step's calls, with an end. The caller holds the lock.
        """
        only_at = self.log.next_seq if compare else None
        line = record.to_json()
        if spent is not None:
            line["spent"] = spent.to_json()
        appended = self.append("calls", line, only_at=only_at, wait_s=wait_s)
        if appended.news:
            self.fold.take_all(appended.news)
        if appended.seq is not None:
            self.fold.take(record, appended.seq, None if appended.news else spent)
        return appended.seq

    def append_end(self, record_of: Callable[[str], CallEnd], *, wait_s: float) -> CallEnd:
        """Append the end of a call with the step's totals, and take it in; build it again where
        other processes appended first. `record_of` gets the id for a record named by its place.
        Such an id is used once, since two records of one name would look like two ends of one call.
        The caller holds the lock. Raises RunBusy.
        """
        for left in reversed(range(MOVED_AT_MOST)):
            record = record_of(place := self.next_id())
            compare = left > 0 or record.call_id == place
            spent = self.fold.spent_after(record)
            if self.append_call(record, compare=compare, wait_s=wait_s, spent=spent) is not None:
                return record
        raise self.moved_error()

    # --- waiting for the store --------------------------------------------------------------------

    async def on_store(
        self, work: Callable[[float], T], undo: Callable[[T], object] = lambda _: None
    ) -> T:
        """Do work that receives the seconds it may wait for the store, and raises RunBusy where
        others hold it for longer: in place where the store is quick, else `in_thread`. Between two
        tries nothing is held. It appends one record at most, as it is done again from its start.
        """
        if self.runs.store.blocks:
            return await in_thread(partial(work, PATIENT_S), undo)
        for pause_s in self._tries(work, done := list[T]()):
            await asyncio.sleep(pause_s)
        return done[0]

    async def record(self, work: Callable[[float], T]) -> T:
        """Do work under the run's lock, and wait until what it recorded survives power loss."""
        result = await self.under_lock(work)
        await self.wait_until_durable()
        return result

    def under_lock_sync(self, work: Callable[[float], T]) -> T:
        """Do as `under_lock`, in this thread."""
        if self.runs.store.blocks:
            return self._locked(work, PATIENT_S)
        for pause_s in self._tries(partial(self._locked, work), done := list[T]()):
            time.sleep(pause_s)
        return done[0]

    def _tries(self, work: Callable[[float], T], done: list[T]) -> Iterator[float]:
        """Do work and add its result to `done`.

        Where others hold the store, yield the seconds until the next try. The first try waits for
        the store in place, but not while somebody else tries again.
        """
        wait_s = 0.0 if self._waiting else QUICK_S
        pause_s = QUICK_S
        until_s = math.inf
        mark = object()
        try:
            while True:
                try:
                    done.append(work(wait_s))
                    return
                except RunBusy as busy:
                    if time.monotonic() >= until_s or isinstance(busy, _RunMoved):
                        raise
                yield pause_s
                self._waiting.add(mark)
                until_s = min(until_s, time.monotonic() + PATIENT_S)
                wait_s = 0.0
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._waiting.discard(mark)

    async def under_lock(
        self, work: Callable[[float], T], undo: Callable[[T], object] = lambda _: None
    ) -> T:
        """Do work on the run's records under its lock (see `on_store`)."""
        return await self.on_store(partial(self._locked, work), undo)

    def _locked(self, work: Callable[[float], T], wait_s: float) -> T:
        with self.lock:
            if self.abandoned:
                self._take_abandoned(wait_s)
            return work(wait_s)

    async def wait_until_durable(
        self, in_thread: Callable[..., Awaitable[Any]] = in_thread
    ) -> None:
        """Wait until the records survive power loss, where the config asks for that."""
        if self.durable:
            try:
                await in_thread(self.log.sync)
            except StorageError:
                self.runs.discard(self)
                raise

    def knows(self, decision_id: str | None) -> bool:
        """Return whether the decision was read; with None, whether any was."""
        with self.lock:
            if decision_id:
                return self.fold.branch_of(decision_id) is not None
            return self.fold.decisions > 0

    def branch_of(self, decision_id: str | None) -> str:
        """Return the branch of a decision (None: of the run's present one). Raises RequestError."""
        if decision_id and isinstance(decision_id, str):
            named = self.fold.branch_of(decision_id)
        else:
            named = None
        branch = named if decision_id else self.fold.current_branch
        if branch is None:
            expect(
                "decision",
                decision_id,
                (str, type(None)),
                "give the id: decision=decision.decision_id",
            )
            raise RequestError(
                f"run {self.id!r} has no decision {self.runs.quote(str(decision_id))}",
                advice="name one that route() returned for it",
            )
        return branch

    def next_id(self) -> str:
        """Return the id of the next decision or call. The caller holds the lock."""
        return f"{self.log.id_prefix}.{self.log.next_seq}"

    def signed_at(self, decision_id: str) -> frozenset[str]:
        """Return the tools whose signatures the agent got from this process under a decision."""
        return self.signed[1] if self.signed[0] == decision_id else frozenset()

    def moved_error(self) -> RunBusy:
        return _RunMoved(
            f"run {self.id!r}: other processes wrote first {MOVED_AT_MOST} times in a row; nothing"
            " was recorded",
            advice="try again; it is safe",
        )

    # --- its end ----------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Keep the run open until `release`. Return False where it is closed already."""
        with self._lock_of_holds:
            self.leases += not self.ended
            self.used = True  # by a step or a call; others are only looked at, as ancestors are
            return not self.ended

    def release(self) -> None:
        """End one hold on the run: a step or a call is over.

        Blocks where it was the last one on a closing run.
        """
        if self._let_go():
            self._end_released()

    async def leave(self, in_thread: Callable[..., Awaitable[Any]] = in_thread) -> None:
        """Do as `release`, for an event loop."""
        if self._let_go():
            await in_thread(self._end_released)

    def _let_go(self) -> bool:
        """End one hold. Return whether the run's end is to be written."""
        if sys.exc_info()[0] is GeneratorExit:
            self.abandoned.append(None)
            return False
        with self._lock_of_holds:
            self.leases -= 1
            return self.closing and self.leases == self.abandoned.count(None)

    def _end_released(self) -> None:
        try:
            self._end_if_idle()
        except RouterError as trouble:  # it must not take the place of what the last call came to
            self.runs.diagnostics.event(
                "error", "run.end_not_written", run_id=self.id, error=trouble
            )

    def close(self) -> RunEnd:
        """Close the run, or, with steps or calls under way, once the last of them is recorded.

        Blocks.
        """
        with self._lock_of_holds:
            self.closing = True
        self._end_if_idle()
        return RunEnd(self.ended and not self.others, self.others)

    def close_idle(self) -> bool:
        """Close the run unless steps or calls are under way.

        Return whether it was closed. Blocks.
        """
        self._record_abandoned()
        with self._lock_of_holds:
            self.closing = self.closing or self.leases == 0
        if self.closing:
            self._end_if_idle()
        return self.ended

    def owe(self, *left: Callable[[float], object] | None) -> None:
        """Leave ends and holds, to be recorded once the store takes them: other processes may wait
        for an end.
        """
        self.abandoned.extend(left)
        if self._retrying.acquire(blocking=False):
            try:
                threading.Thread(target=self._retry, name="owed-ends", daemon=True).start()
            except RuntimeError:  # no thread is left: who has the lock next records it
                self._retrying.release()

    def _retry(self) -> None:
        pause_s = QUICK_S
        while self.abandoned and not self.ended:
            time.sleep(pause_s)
            with suppress(RouterError):
                self.under_lock_sync(lambda _: None)
            pause_s = min(2 * pause_s, PATIENT_S)
        self._retrying.release()
        if self.abandoned and not self.ended:  # left since it looked
            self.owe()

    def _record_abandoned(self) -> None:
        """Record what is left to be recorded; report what can't be."""
        with suppress(RunBusy, StorageError):
            self.under_lock_sync(lambda _: None)
        with self.lock:
            self._take_abandoned(0.0, gives_up=True)

    def _take_abandoned(self, wait_s: float, *, gives_up: bool = False) -> None:
        """Record what is left to be recorded.

        The caller holds the lock. Raises RunBusy and StorageError, with what is left kept, unless
        this gives up.
        """
        while self.abandoned:
            end = self.abandoned.popleft()
            if end is None:
                with self._lock_of_holds:
                    self.leases -= 1
                continue
            try:
                end(wait_s)
            except RouterError as trouble:  # of another call than the one that is made now
                if isinstance(trouble, RunBusy | StorageError) and not gives_up:
                    self.abandoned.appendleft(end)
                    raise
                self.runs.diagnostics.event(
                    "error", "call.unrecorded", run_id=self.id, error=trouble
                )

    def _end_if_idle(self) -> None:
        self._record_abandoned()
        with self.lock:
            with self._lock_of_holds:
                ends = self.leases == 0 and not self.ended
                self.ended = self.ended or ends
            if ends:
                self.others = self.log.close()
        if self.ended:
            self.runs.ending.discard(self)


def recorded_decision(run: OpenRun, decision_id: str) -> DecisionRecord:
    """Read a decision that the run has, or had, again. The caller holds the lock."""
    number = decision_id.rpartition(".")[2]
    try:
        record = run.log.record(int(number))
    except (KeyError, ValueError):
        raise RequestError(f"run {run.id!r} has no decision {decision_id!r}") from None
    return DecisionRecord.from_json(record)


NOTHING_ACTIVE: Final = Activation()
FIRST_STEP: Final = (
    "route its first step: Router.route(), POST /v1/route or `bundle-router route --run`"
)
_STRIPES: Final = 64
"""Locks that runs share, by hash, while they are opened: enough that two runs rarely meet, few
enough to keep.
"""


class RunTable:
    """The open runs of this process, over one catalog and one store. Safe for many threads."""

    def __init__(
        self,
        catalog: Catalog,
        store: RunStore,
        diagnostics: Diagnostics,
        redactor: Redactor,
        workspace: str,
    ) -> None:
        self.store = store
        self.redactor = redactor
        self.workspace = workspace
        self._catalog = catalog
        self.diagnostics = diagnostics
        self._runs: dict[str, OpenRun] = {}
        self.ending: set[OpenRun] = set()
        """Runs that are closed while steps or calls are under way."""
        self._lock = threading.Lock()
        self._stripes = tuple(threading.Lock() for _ in range(_STRIPES))
        self._closed = False

    def quote(self, text: str) -> str:
        """Return an id for a message, in quotes and without what looks like a secret in it."""
        return repr(self.redactor.redact(text))

    def quote_run(self, run_id: str) -> str:
        """Return the id of a run that is not there, for a message (see `shown_run_id`)."""
        return shown_run_id(run_id, self.redactor.redact)

    # --- opening ----------------------------------------------------------------------------------

    def get(self, run_id: str) -> OpenRun | None:
        """Return the run if it is open here."""
        return self._runs.get(run_id)

    def hold_known(self, run_id: str) -> OpenRun | None:
        """Hold and return the run if it is open here. The caller releases it."""
        run = self._runs.get(run_id)
        return run if run is not None and run.hold() else None

    def hold(self, run_id: str, begin: Callable[[], OpenRun] | None = None) -> OpenRun:
        """Open and hold a run; where it does not exist, begin it with `begin`. Blocks.

        Raises UnknownRun for a missing run without `begin`; CorruptRun, StorageError.
        """
        while True:
            run = self._find_run(run_id) or (begin() if begin is not None else None)
            if run is None:
                raise UnknownRun(f"no run {self.quote_run(run_id)} here", advice=FIRST_STEP)
            if run.hold():
                return run

    def reading(self, run_id: str) -> OpenRun | None:
        """Return the run with all its records read, without holding it; None where it does not
        exist. Blocks.
        """
        run = self._runs.get(run_id) or self._find_run(run_id)
        if run is None:
            return None
        try:
            with run.lock:
                if not run.ended:
                    run.read_on()
        except StorageError as trouble:
            if trouble.kind != "deleted" or run.leases:
                raise
            self._forget(run)  # it was pruned since we looked at it
            return self.reading(run_id)
        return run

    def _find_run(
        self, run_id: str, open_: Callable[[str], RunLog | None] | None = None
    ) -> OpenRun | None:
        """Return the run, opened by `open_` where it is not; None where the store has none."""
        expect("a run id", run_id, str, "use the `run_id` of the step that was routed")
        with self._stripes[hash(run_id) % _STRIPES]:
            self._refuse_closed()
            run = self._runs.get(run_id)
            if run is not None and not run.ended:
                return run
            log = (open_ or self.store.open)(run_id)
            return self._register_run(run_id, log) if log is not None else None

    def create(self, run_id: str, header: RunHeader) -> OpenRun:
        """Begin a run in the store, or return it where another thread has just done so."""
        run = self._find_run(
            run_id, partial(self.store.create, header=header, catalog=self._catalog.text)
        )
        assert run is not None  # noqa: S101 - `create` returns a log
        return run

    def _register_run(self, run_id: str, log: RunLog) -> OpenRun:
        limits = self._catalog.settings.limits
        kept = self._catalog.settings.log
        run = OpenRun(
            log, self, recent_steps=limits.recent_steps, durable=kept.durability == "disk"
        )
        with ExitStack() as on_error:
            on_error.callback(
                log.close
            )  # else nobody would: it counts as open while this process lives
            with run.lock:
                run.read_on()
            for torn in log.healed:
                self.diagnostics.event(
                    "warning", "log.healed", run_id=run_id, file=torn.file, saved=torn.saved
                )
            with self._lock:
                self._refuse_closed()
                self._runs[run_id] = run
            on_error.pop_all()
        return run

    def keep_catalog(self, run: OpenRun, wait_s: float) -> None:
        """Make sure that the catalog of a decision is stored with the run.

        The caller holds the run's lock.
        """
        run.log.put_catalog(self._catalog.revision, self._catalog.text, wait_s=wait_s)

    # --- letting go -------------------------------------------------------------------------------

    def close(self, run_id: str) -> RunEnd:
        """Close a run if it is open here.

        Raises UnknownRun, and StorageError when its end can't be written.
        """
        with self._lock:
            run = self._runs.pop(run_id, None)
        if run is not None:
            self.ending.add(run)
            return run.close()
        self._refuse_closed()
        log = self.store.open(run_id)
        if log is None:
            raise UnknownRun(f"no run {self.quote_run(run_id)} here", advice=FIRST_STEP)
        return RunEnd(ended=False, others=log.close())

    def discard(self, run: OpenRun) -> None:
        """Drop a run whose last records may not be on disk.

        What is on disk counts when it is opened again.
        """
        self._forget(run)
        run.closing = True

    def _forget(self, run: OpenRun) -> None:
        with self._lock:
            if self._runs.get(run.id) is run:
                del self._runs[run.id]

    def close_idle(self, run_id: str) -> bool:
        """Close a run if nothing of it is under way. Return whether it is not open any more."""
        run = self._runs.get(run_id)
        if run is not None and not run.close_idle():
            return False
        if run is not None:
            self._forget(run)
        return True

    def close_all(self) -> None:
        """Close every run, and open no more. Raises the first error after all are closed."""
        with self._lock:
            self._closed = True
            known = [*self._runs.values(), *self.ending]
            self._runs.clear()
        troubles: list[RouterError] = []
        for run in known:
            try:
                run.close()
            except RouterError as trouble:  # the other runs still want to be let go of
                troubles.append(trouble)
                if isinstance(trouble, StorageError) and trouble.kind == "unreachable":
                    # each would wait for the database as long; it lets go of them as its sessions
                    # end
                    break
        if troubles:
            raise troubles[0]

    def uses(self, run_id: str) -> bool:
        """Return whether this process made a step or a call of the run since it opened it."""
        run = self._runs.get(run_id)
        return run is not None and run.used

    @property
    def any_used(self) -> bool:
        return any(run.used for run in list(self._runs.values()))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise RequestError("this router is closed", advice="open another with Router.open(...)")
