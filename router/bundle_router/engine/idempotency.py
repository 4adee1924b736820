"""A key makes a call happen once.

Rules:
1. A second call with the key gets the recorded result, and waits for it while the process that
   makes the call lives. The key is refused for another call: of another tool, with other
   arguments, or for another principal.
2. If that process died before the end, or could never record it, an idempotent tool is called
   again. Any other call ends as `unknown`, which is recorded once.
3. A refused call binds no key.

Whether a key stands for the call that has it is judged where calls are (`calls.CallAdmission`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

from bundle_router.core.records.call_records import CallFinished, CallStarted
from bundle_router.core.records.fold import KeyedCall
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.made_calls import UNKNOWN_END, CallHasEnded, end_record, result_of
from bundle_router.engine.results import CallRequest, KeyTaken, Result
from bundle_router.engine.run_records import OpenRun
from bundle_router.errors import KeyConflict, RouterError

FIRST_LOOK_S: Final = 0.001
LONGEST_LOOK_S: Final = 0.1
"""Seconds between two looks whether a call with the key has ended: at first, and at most."""
_BEGUN: Final[dict[str, WeakValueDictionary[str, OpenRun]]] = {}
"""For each writer's token of this process, the runs that have calls with keys to end, or had, by
the calls' ids.

Of the process, not of a router: a writer's token counts as alive while its store is open, whichever
router of this process asks, and only here is known that a run was closed since, or that its end
waits.
"""
os.register_at_fork(after_in_child=_BEGUN.clear)


def note_begun(run: OpenRun, call: CallStarted) -> None:
    """Note that this process makes a call with a key, before its start is written."""
    _BEGUN.setdefault(call.writer, WeakValueDictionary())[call.call_id] = run


def may_end(run: OpenRun, call: KeyedCall) -> bool:
    """Return whether a call may still end by itself: its process lives and, if it is this one, has
    yet to end it.
    """
    ours = _BEGUN.get(call.writer)
    its_run = ours.get(call.call_id) if ours is not None else run
    return (
        its_run is not None and not its_run.uses.has_ended and run.runs.store.is_alive(call.writer)
    )


def will_end(run: OpenRun, call: KeyedCall) -> bool:
    """Do as `may_end`, after recording the end that a closed event loop left here. Blocks."""
    ours = _BEGUN.get(call.writer)
    if (
        ours is not None
        and (its_run := ours.get(call.call_id)) is not None
        and its_run.pending.ends
    ):
        with suppress(RouterError):
            its_run.under_lock_sync(lambda _: None)
    return may_end(run, call)


class KeyIsTaken(Exception):
    """Ends the making of a call whose key is taken."""

    def __init__(self, taken: KeyTaken) -> None:
        super().__init__(taken)
        self.taken = taken


class RequestLayer(Protocol):
    """One layer of a call that has not begun."""

    async def __call__(self, request: CallRequest) -> Result: ...


class OnceByKey:
    """Makes a call with a key once, or returns the recorded result."""

    def __init__(
        self, at: CallPorts, is_idempotent: Callable[[str], bool], rest: RequestLayer
    ) -> None:
        self._at = at
        self._is_idempotent = is_idempotent
        self._rest = rest

    async def __call__(self, request: CallRequest) -> Result:
        pause_s = FIRST_LOOK_S
        while True:
            try:
                return await self._rest(request)
            except KeyIsTaken as found:
                key_owner = found.taken
            _refuse_other(self._at.run, request, key_owner)
            if key_owner.call.finished is not None:
                return await self._recorded_result(key_owner.call, key_owner.call.finished)
            if not await asyncio.to_thread(will_end, self._at.run, key_owner.call):
                if self._is_idempotent(key_owner.call.name):
                    continue  # it died since we looked: made again
                end = partial(_end_unknown, self._at, request.key, key_owner.call)
                result = await self._at.run.under_lock(end)
                if result is not None:
                    return result
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_LOOK_S)

    async def _recorded_result(self, call: KeyedCall, seq: int) -> Result:
        run = self._at.run
        line = await run.under_lock(lambda _: run.log.record(seq))
        idempotent = self._is_idempotent(call.name)
        return result_of(CallFinished.from_json(line), idempotent=idempotent, again=True)


def same_arguments(call: KeyedCall, request: CallRequest) -> bool:
    """Return whether a call has the arguments of the one that has the key, as far as is known."""
    return not call.arguments_digest or call.arguments_digest == request.digest


def _refuse_other(run: OpenRun, request: CallRequest, key_taken: KeyTaken) -> None:
    call = key_taken.call
    if not key_taken.same_principal:  # nothing more is said: what it was is that one's own
        raise KeyConflict(
            f"run {run.id!r}: key {request.key!r} was used for another principal's call",
            advice="use keys that differ between the principals of a run",
        )
    equalities = {
        "another tool": key_taken.same_tool,
        "other arguments": same_arguments(call, request),
    }
    differing = [name for name, is_same in equalities.items() if not is_same]
    if differing:
        raise KeyConflict(
            f"run {run.id!r}: key {request.key!r} was used for call {call.call_id!r} of"
            f" {call.name!r}, with {' and '.join(differing)}",
            advice="use a new key for another call, or the same call with this key",
        )


def _end_unknown(at: CallPorts, key: str, call: KeyedCall, wait_s: float) -> Result | None:
    """Record that a call's outcome is unknown.

    Return None where the call has another end by now, or began again.
    """
    run = at.run
    started = CallStarted.from_json(run.log.record(call.started)).shared()

    def record_of(_place: str) -> CallFinished:
        run.read_on()
        if run.fold.keyed_call(key) != call:
            raise CallHasEnded
        return end_record(at.ports.clock, started, UNKNOWN_END)

    try:
        return result_of(run.append_end(record_of, wait_s=wait_s), idempotent=False)
    except CallHasEnded:
        return None
