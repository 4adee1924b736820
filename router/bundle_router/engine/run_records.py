"""One run that this process has open: its records under a lock, who uses it, and how it ends.

Rules:
1. The run's lock orders the work of this process on it. It is held for look-ups and one append,
   never across an await.
2. An event loop waits for nobody: not for a store that others hold, nor for a thread that has the
   run's lock meanwhile. Where the store is quick, no thread has that lock for long; where it
   blocks, a loop never takes it.
3. Others hold a quick store for microseconds, so the first try waits for it in place (`Attempt`);
   between further tries nothing is held.
4. A run that is closed while steps or calls are under way is released when the last of them is
   recorded. The process that releases it last writes its end.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakSet

from bundle_router.core.decide.budgets import Totals
from bundle_router.core.records.call_records import CallFinished, CallRecord, RequestPassed
from bundle_router.core.records.chain import Appended, File, Writer, redact_record
from bundle_router.core.records.decision_record import BudgetKey, DecisionRecord
from bundle_router.core.records.fold import RunFold
from bundle_router.engine.pending_ends import (
    PATIENT_S,
    QUICK_S,
    PendingEnd,
    PendingEnds,
)
from bundle_router.engine.surface import RunState
from bundle_router.errors import (
    RequestError,
    RouterError,
    RunBusy,
    StorageError,
    expect,
)
from bundle_router.ports import ArtifactStore, Diagnostics, Redactor, RunLog, RunStore

if TYPE_CHECKING:
    from bundle_router.core.records.approval_records import ApprovalRecord

OTHER_STORE: Final = (
    "a decision that route() returned is in another store: all machines that work on a run need the"
    " same one (Router.open(store=...))"
)
MOVED_AT_MOST: Final = 50
"""Times that an append is decided again because other processes wrote first, before it is given
up.
"""
LONGEST_PAUSE_S: Final = 0.08
CallEnd = TypeVar("CallEnd", CallFinished, RequestPassed)
T = TypeVar("T")


async def in_thread(work: Callable[[], T], undo: Callable[[T], object] = lambda _: None) -> T:
    """Do work in a thread; in this one where it has no event loop.

    A thread can't be cancelled: if the waiting task is, `undo` receives the result.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # this thread has none
        return work()
    lock = threading.Lock()
    results: list[T] = []
    cancelled = False

    def job() -> T:
        result = work()
        with lock:
            results.append(result)
            is_unwanted = cancelled
        if is_unwanted:
            undo(result)
        return result

    try:
        return await asyncio.to_thread(job)
    except (asyncio.CancelledError, GeneratorExit):
        with lock:
            cancelled = True
            unwanted = [*results]
        for result in unwanted:
            undo(result)
        raise


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The outcome of closing a run."""

    ended: bool
    """Whether its end is written. False without `others`: it is not open here, or work is under
    way.
    """
    others: tuple[Writer, ...] = ()
    """The processes that have it open; the last of them writes the end."""


class RunMoved(RunBusy):
    """Others did not hold the run, but wrote first: that was tried again often enough."""


class Attempt:
    """Tries work again while other processes hold the store.

        while True:
            with attempt:
                return work(attempt.wait_s)
            await asyncio.sleep(attempt.pause_s)

    The block ends without an error where it raised RunBusy and is to be tried again. It appends one
    record at most, as it is done again from its start.
    """

    __slots__ = ("__weakref__", "_until_s", "_waiting", "pause_s", "wait_s")

    def __init__(self, waiting: WeakSet[Attempt]) -> None:
        self._waiting = waiting
        """The attempts at the same store that are tried again."""
        self.wait_s = 0.0 if waiting else QUICK_S
        """Seconds that the work may wait for the store in place."""
        self.pause_s = QUICK_S / 2
        self._until_s = math.inf

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: object, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        if error is None and self._until_s == math.inf:
            return False  # nearly always
        now_s = time.monotonic()
        is_busy = isinstance(error, RunBusy) and not isinstance(error, RunMoved)
        if not is_busy or now_s >= self._until_s:
            self._waiting.discard(self)
            return False
        self._waiting.add(self)
        self._until_s = min(self._until_s, now_s + PATIENT_S)
        self.wait_s = 0.0
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        return True


class RunUses:
    """Who uses a run in this process: its steps and calls under way, and whether it is closing."""

    def __init__(self) -> None:
        self.is_used = False
        """Whether a step or a call was made since the run was opened; others only look at it."""
        self.is_closing = False
        self.has_ended = False
        self.count = 0
        """The number of steps and calls under way."""
        self._lock = threading.Lock()
        """Nobody waits while having it."""

    def hold(self) -> bool:
        """Keep the run open. Return False where it has ended already."""
        with self._lock:
            self.is_used = True
            if self.has_ended:
                return False
            self.count += 1
            return True

    def end_hold(self, _wait_s: float = 0.0) -> None:
        """End one hold. Also left among the ends that are pending, to be done in their turn."""
        with self._lock:
            self.count -= 1

    def close(self) -> None:
        """Have the run end once nothing is under way."""
        with self._lock:
            self.is_closing = True

    def close_idle(self) -> None:
        """Do as `close` unless something is under way."""
        with self._lock:
            self.is_closing = self.is_closing or self.count == 0

    def end(self) -> bool:
        """Mark the run as ended unless something is under way. Return whether that was done now."""
        with self._lock:
            ends = self.count == 0 and not self.has_ended
            self.has_ended = self.has_ended or ends
            return ends


class Runs(Protocol):
    """What a run uses of the table of open runs that it is in."""

    store: RunStore
    diagnostics: Diagnostics
    redactor: Redactor
    workspace: str
    ending: set[OpenRun]

    def quote(self, text: str) -> str: ...

    def keep_catalog(self, run: OpenRun, wait_s: float) -> None: ...

    def discard(self, run: OpenRun) -> None: ...


class OpenRun:
    """One run that this process has open: its log, and the fold of the records read so far, under
    one lock.
    """

    def __init__(self, log: RunLog, runs: Runs, fold: RunFold, *, durable: bool) -> None:
        self.log = log
        self.id = log.header.run_id
        self.workspace = log.header.workspace
        self.nonce = log.header.nonce or self.id
        self._parent = (log.header.parent_run_id or "") if log.header.names_parent else None
        self.runs = runs
        self.fold = fold
        self.lock = threading.Lock()
        self.durable = durable
        self.uses = RunUses()
        self.pending = PendingEnds(partial(_report_unrecorded, runs.diagnostics, self.id))
        """Ends for who has the lock next."""
        self.asked_again: dict[str, int] = {}
        """How often each call that waits for somebody's word was made here."""
        self._waiting: WeakSet[Attempt] = WeakSet()
        self._others: tuple[Writer, ...] = ()
        self.signed: tuple[str, frozenset[str]] = ("", frozenset())
        """A decision, and the tools whose signatures the agent got from this process under it."""
        self.passing: dict[int, BudgetKey | None] = {}
        """Budgets of requests and calls of the router's own tools, by identity, until they have
        their one record.
        """
        self.kept_state: tuple[str | None, RunState | None] = (None, None)
        """The state that calls were judged by last, after the decision that they named (see
        `Engine.state`).
        """

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
        self,
        record: CallRecord | ApprovalRecord,
        *,
        compare: bool,
        wait_s: float,
        spent: Totals | None = None,
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
        Such an id is used once, since two records of one name would look like two ends of one call;
        and a call with a key may be ended by another process that finds this one dead. The caller
        holds the lock. Raises RunBusy, and what `record_of` raises.
        """
        for attempts_left in reversed(range(MOVED_AT_MOST)):
            record = record_of(place := self.next_id())
            is_keyed = isinstance(record, CallFinished) and record.key != ""
            compare = attempts_left > 0 or record.call_id == place or is_keyed
            totals = self.fold.spent_after(record)
            if self.append_call(record, compare=compare, wait_s=wait_s, spent=totals) is not None:
                return record
        raise self.moved_error()

    # --- waiting for the store --------------------------------------------------------------------

    async def on_store(
        self, work: Callable[[float], T], undo: Callable[[T], object] = lambda _: None
    ) -> T:
        """Do work that receives the seconds it may wait for the store, and raises RunBusy where
        others hold it for longer: in place where the store is quick, else `in_thread`.
        """
        if self.runs.store.blocks:
            return await in_thread(partial(work, PATIENT_S), undo)
        attempt = Attempt(self._waiting)
        while True:
            with attempt:
                return work(attempt.wait_s)
            await asyncio.sleep(attempt.pause_s)

    async def under_lock(
        self, work: Callable[[float], T], undo: Callable[[T], object] = lambda _: None
    ) -> T:
        """Do work on the run's records under its lock (see `on_store`)."""
        if self.runs.store.blocks:
            return await in_thread(partial(self._locked, work, PATIENT_S), undo)
        attempt = Attempt(self._waiting)
        while True:
            with attempt, self.lock:
                if self.pending.ends:
                    self.pending.record(attempt.wait_s)
                return work(attempt.wait_s)
            await asyncio.sleep(attempt.pause_s)

    def under_lock_sync(self, work: Callable[[float], T]) -> T:
        """Do as `under_lock`, in this thread."""
        if self.runs.store.blocks:
            return self._locked(work, PATIENT_S)
        attempt = Attempt(self._waiting)
        while True:
            with attempt:
                return self._locked(work, attempt.wait_s)
            time.sleep(attempt.pause_s)

    def _locked(self, work: Callable[[float], T], wait_s: float) -> T:
        with self.lock:
            if self.pending.ends:
                self.pending.record(wait_s)
            return work(wait_s)

    async def record(self, work: Callable[[float], T]) -> T:
        """Do work under the run's lock, and wait until what it recorded survives power loss."""
        result = await self.under_lock(work)
        await self.wait_until_durable()
        return result

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
            named_branch = self.fold.branch_of(decision_id)
        else:
            named_branch = None
        branch = named_branch if decision_id else self.fold.current_branch
        if branch is None:
            expect(
                "decision",
                decision_id,
                (str, type(None)),
                "give the id: decision=decision.decision_id",
            )
            advice = "name one that route() returned for it"
            if _is_of_another_store(str(decision_id), self.log.id_prefix):
                advice = OTHER_STORE
            raise RequestError(
                f"run {self.id!r} has no decision {self.runs.quote(str(decision_id))}",
                advice=advice,
            )
        return branch

    def next_id(self) -> str:
        """Return the id of the next decision or call. The caller holds the lock."""
        return f"{self.log.id_prefix}.{self.log.next_seq}"

    def signed_at(self, decision_id: str) -> frozenset[str]:
        """Return the tools whose signatures the agent got from this process under a decision."""
        if self.signed[0] == decision_id:
            return self.signed[1]
        return frozenset()

    def moved_error(self) -> RunBusy:
        return RunMoved(
            f"run {self.id!r}: other processes wrote first {MOVED_AT_MOST} times in a row; nothing"
            " was recorded",
            advice="try again; it is safe",
        )

    # --- its end ----------------------------------------------------------------------------------

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
        if sys.exc_info()[0] is GeneratorExit:  # perhaps in a thread that has a lock
            self.pending.leave(self.uses.end_hold)
            return False
        self.uses.end_hold()
        pending_holds = self.pending.ends.count(self.uses.end_hold)
        return self.uses.is_closing and self.uses.count == pending_holds

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
        self.uses.close()
        self._end_if_idle()
        return RunEnd(self.uses.has_ended and not self._others, self._others)

    def close_idle(self) -> bool:
        """Close the run unless steps or calls are under way.

        Return whether it was closed. Blocks.
        """
        self._record_pending()
        self.uses.close_idle()
        if self.uses.is_closing:
            self._end_if_idle()
        return self.uses.has_ended

    def owe(self, *ends: PendingEnd) -> None:
        """Leave ends that the store did not take, and have them recorded soon."""
        self.pending.leave(*ends)
        self.pending.retry(
            partial(self.under_lock_sync, lambda _: None), lambda: self.uses.has_ended
        )

    def _record_pending(self) -> None:
        """Record the ends that are left to be recorded; report those that can't be."""
        with suppress(RunBusy, StorageError):
            self.under_lock_sync(lambda _: None)
        with self.lock:
            self.pending.record(0.0, gives_up=True)

    def _end_if_idle(self) -> None:
        self._record_pending()
        with self.lock:
            if self.uses.end():
                self._others = self.log.close()
        if self.uses.has_ended:
            self.runs.ending.discard(self)


def _report_unrecorded(diagnostics: Diagnostics, run_id: str, trouble: RouterError) -> None:
    diagnostics.event("error", "call.unrecorded", run_id=run_id, error=trouble)


def _is_of_another_store(decision_id: str, id_prefix: str) -> bool:
    """Return whether it is of a run of the same id that was begun elsewhere: all but the nonce is
    alike.
    """
    run_id = id_prefix.rpartition(".")[0]
    prefix = decision_id.rpartition(".")[0]
    return prefix != id_prefix and bool(run_id) and prefix.rpartition(".")[0] == run_id


def recorded_decision(run: OpenRun, decision_id: str) -> DecisionRecord:
    """Read a decision that the run has, or had, again. The caller holds the lock."""
    number = decision_id.rpartition(".")[2]
    try:
        record = run.log.record(int(number))
    except (KeyError, ValueError):
        raise RequestError(f"run {run.id!r} has no decision {decision_id!r}") from None
    return DecisionRecord.from_json(record)
