"""One run as this process knows it: opened or begun, read on, and let go.

Rules:
1. No process holds a run. What is known of one here is the fold of its records as far as they were read; it is read on
   before anything is answered from it, and what is appended is decided again where others came first.
2. A run's lock orders what this process does with it. It is held for look-ups and one append, never while anything is
   awaited.
3. A run that is closed while steps or calls are under way is let go when the last of them is recorded. Its end is
   written by whoever lets go of it last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bundle_router.core.models import Activation, Grant
from bundle_router.core.models.folders import TOP, is_beneath
from bundle_router.core.records.call_records import CallFinished, RequestPassed
from bundle_router.core.records.chain import Writer
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.fold import DecidedStep, RunFold
from bundle_router.errors import RequestError, RouterError, RunBusy
from bundle_router.ports import ArtifactStore, RunLog

MOVED_AT_MOST: Final = 50
"""How often something is decided again because others wrote first, before it is given up."""
NumberedRecord = TypeVar("NumberedRecord", CallFinished, RequestPassed)
"""A record whose `call_id` is its own place: of a call that was refused or answered here, so that nothing began it."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What closing a run came to. `ended`: its end is written; else `others` have it open, and whoever of them closes
    it last writes the end. False without others: steps or calls of this process are still under way."""

    ended: bool
    others: tuple[Writer, ...] = ()


class OpenRun:
    """One run as this process knows it: its log, and the fold of what was read of it, under one lock."""

    __slots__ = (
        "_on_trouble",
        "closing",
        "durable",
        "ended",
        "fold",
        "id",
        "leases",
        "lock",
        "log",
        "others",
        "signed",
        "used",
    )

    def __init__(
        self, log: RunLog, *, recent_steps: int, durable: bool, on_trouble: Callable[[OpenRun, RouterError], None]
    ) -> None:
        self.log = log
        self.id = str(log.header["run_id"])
        self.fold = RunFold(recent_steps)
        self.lock = threading.Lock()
        self.durable = durable
        self.leases = 0
        self.used = False
        self.signed: tuple[str, frozenset[str]] = ("", frozenset())
        self.closing = False
        self.ended = False
        self.others: tuple[Writer, ...] = ()
        self._on_trouble = on_trouble

    @property
    def artifacts(self) -> ArtifactStore:
        return self.log.artifacts()

    @property
    def parent_id(self) -> str | None:
        """Whose sub-agent the run is: its header says it and, where that was lost, its last decision."""
        if "parent_run_id" in self.log.header or not self.fold.has_decided:
            found: str | None = self.log.header.get("parent_run_id")
            return found
        decided = self.fold.decided(self.fold.current_branch)
        return decided.step.parent_run_id if decided is not None else None

    def read_on(self) -> None:
        """Take in what others appended. The caller holds the lock."""
        self.fold.take_all(self.log.news())

    def append_call(self, record: dict[str, Any], *, compare: bool, wait_s: float) -> int | None:
        """Append a record of a call and take it in; its `seq`, or None where `compare` and others came first, whose
        records were taken in. The caller holds the lock."""
        only_at = self.log.next_seq if compare else None
        appended = self.log.append("calls", record, only_at=only_at, wait_s=wait_s)
        self.fold.take_all(appended.news)
        if appended.seq is not None:
            self.fold.take(record | {"seq": appended.seq})
        return appended.seq

    def append_end(self, record: CallFinished | RequestPassed, *, compare: bool, wait_s: float) -> int | None:
        """As `append_call`, with what the step has spent by then. The caller holds the lock."""
        line = record.to_json()
        line["spent"] = self.fold.spent_after(line).to_json()
        return self.append_call(line, compare=compare, wait_s=wait_s)

    def append_numbered(self, record_of: Callable[[str], NumberedRecord], *, wait_s: float) -> NumberedRecord:
        """Append a record that is named after its place, and take it in; made anew where others came first, since two
        records of one name would pass for two ends of one call. The caller holds the lock. Raises RunBusy."""
        for _ in range(MOVED_AT_MOST):
            self.read_on()
            record = record_of(self.next_id())
            if self.append_end(record, compare=True, wait_s=wait_s) is not None:
                return record
        raise self.moved_too_often()

    def next_id(self) -> str:
        """Return the id of the decision or call whose record comes next. The caller holds the lock."""
        return f"{self.log.id_prefix}.{self.log.next_seq}"

    def signed_at(self, decision_id: str) -> frozenset[str]:
        """Return the tools whose signatures the agent was given here under a decision."""
        return self.signed[1] if self.signed[0] == decision_id else frozenset()

    def note_signed(self, decision_id: str, tools: Sequence[str]) -> None:
        """Remember those as well. The caller holds the lock."""
        self.signed = (decision_id, self.signed_at(decision_id) | {*tools})

    def moved_too_often(self) -> RunBusy:
        return RunBusy(
            f"run {self.id!r}: others wrote first {MOVED_AT_MOST} times in a row; nothing was recorded",
            advice="try again; it is safe",
        )

    # --- its end ---------------------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Keep the run open until `release`; False when it was let go of."""
        with self.lock:
            self.leases += not self.ended
            self.used = True  # by a step or a call; others are only looked at, as ancestors are
            return not self.ended

    def release(self) -> None:
        """A step or call that held the run has come to its end."""
        with self.lock:
            self.leases -= 1
            if not self.closing:
                return
            try:
                self._end_if_idle()
            except RouterError as trouble:  # it must not take the place of what the last call came to
                self._on_trouble(self, trouble)

    def close(self) -> RunEnd:
        """Let go of the run; with steps or calls under way, when the last of them has been recorded."""
        with self.lock:
            self.closing = True
            self._end_if_idle()
            return RunEnd(self.ended and not self.others, self.others)

    def close_idle(self) -> bool:
        """Let go of the run unless steps or calls are under way; whether it was."""
        with self.lock:
            if self.leases == 0:
                self.closing = True
                self._end_if_idle()
            return self.ended

    def _end_if_idle(self) -> None:
        if self.leases == 0 and not self.ended:
            self.ended = True
            self.others = self.log.close()


NOTHING_ACTIVE: Final = Activation()


@dataclass(frozen=True, slots=True)
class AncestorLimits:
    """What a run's ancestors leave it. `grants` nearest first; `folders` are theirs, beneath the workspace's root;
    `activation` is its parent's. Empty for a run that is nobody's sub-agent."""

    grants: tuple[Grant, ...] = ()
    folders: tuple[str, ...] = ()
    activation: Activation = NOTHING_ACTIVE

    def permits_folder(self, folder: str) -> bool:
        """Return whether every ancestor may work in the folder."""
        return all(is_beneath(folder, limit) for limit in self.folders)

    def innermost_folder(self) -> str:
        """Return the folder for a step that names none. Raises RequestError when no folder is open to all."""
        inner = max(self.folders, key=len, default=TOP)
        if self.permits_folder(inner):
            return inner
        raise RequestError(
            f"no folder is open to this sub-agent: its ancestors are confined to {', '.join(map(repr, self.folders))}",
            advice="route the parent's step in a folder inside its own parent's",
        )


NO_LIMITS: Final = AncestorLimits()


def recorded_decision(run: OpenRun, decision_id: str) -> DecidedStep:
    """Read a decision of a run again, also one that was superseded. The caller holds the run's lock and knows that the
    run has it."""
    number = decision_id.rpartition(".")[2]
    try:
        record = run.log.record(int(number))
    except (KeyError, ValueError):
        raise RequestError(f"run {run.id!r} has no decision {decision_id!r}") from None
    return DecidedStep.of(DecisionRecord.from_json(record))
