"""How a call that began is made: its layers, and the records of its end.

Rules:
1. Each layer does its part and has the next one do the rest: `RecordedCall` records the end,
   `StoredCall` stores artifacts, `ReusedCall` reuses a result, `ShapedCall` shapes what came, and
   `SessionCall` asks the tool's session.
2. The end is recorded in every case, and before the result is returned. A call has one: where
   another process found this one dead meanwhile, the end that it recorded stands, and is returned.
3. Records are bounded: names and codes are cut, results are shaped, and media are artifacts.
4. Every end counts in the budgets (`core.decide.budgets`) and says what the step's calls have come
   to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide.budgets import shorten_arguments
from bundle_router.core.exposure.meta_tools.definitions import READERS
from bundle_router.core.records.call_records import CallFinished, ShapedSize
from bundle_router.core.results.reusable_results import ReusableCall, may_repeat
from bundle_router.core.results.shaping import Blob, ShapedResult, is_small, shape
from bundle_router.core.servers.transport.pass_through import ServerReply, fits
from bundle_router.core.servers.transport.tool_servers import CallOutcome, CallPlace
from bundle_router.core.values import Activation, Block, Outcome
from bundle_router.core.values.artifacts import Artifact
from bundle_router.core.values.canonical import budget_left, time_text
from bundle_router.core.values.folders import TOP
from bundle_router.engine.arguments import INLINE_CHARS
from bundle_router.engine.engine_ports import CallPorts, EnginePorts
from bundle_router.engine.pending_ends import PendingEnd
from bundle_router.engine.results import (
    AdmittedCall,
    CallRequest,
    Joined,
    Result,
    recordable_name,
)
from bundle_router.engine.run_records import OpenRun
from bundle_router.engine.surface import RunState
from bundle_router.errors import CorruptRun, RouterError, StorageError
from bundle_router.ports import Clock

MAX_CODE: Final = 100
MAY_HAVE_HAPPENED: Final[frozenset[Outcome]] = frozenset(
    ("timeout", "unavailable", "cancelled", "unknown")
)
"""Outcomes that leave open whether the tool did its work."""
OUR_WORDS: Final[frozenset[Outcome]] = frozenset(("timeout", "busy", "cancelled"))
"""Outcomes whose text is ours, whatever the server said."""

NOTHING: Final = ShapedResult.empty()
"""The shaped result of a call of which nothing came."""
UNKNOWN_TEXT: Final = (
    "This call began, and the process that made it was gone or out of reach before its end was"
    " recorded: it may have happened. It was not made again. Look at what it was to change before"
    " you decide."
)
UNKNOWN_END: Final = CallOutcome("unknown", "unknown", replace(NOTHING, text=UNKNOWN_TEXT))
"""The outcome that a process records of another's call, when that one is dead."""


class CallHasEnded(Exception):
    """Ends the recording of a call's end: the call has one by now."""


class CallLayer(Protocol):
    """One layer of a call that began."""

    async def __call__(self, call: AdmittedCall) -> CallOutcome: ...


class SessionCall:
    """Asks the tool's session: the innermost layer. Its outcome has the blocks as they came."""

    def __init__(self, at: CallPorts) -> None:
        self._at = at

    async def __call__(self, call: AdmittedCall) -> CallOutcome:
        await self._at.run.wait_until_durable()
        state = call.state
        server, _, short = call.tool.partition(".")
        entry = state.catalog.servers[server]
        arguments = call.request.arguments
        raw = await self._at.ports.sessions[entry.transport].call(
            server,
            short,
            arguments.value,
            timeout_s=entry.timeout_s or state.catalog.settings.limits.call_timeout_s,
            scope=call.scope,
            place=CallPlace(state.root, state.folder or TOP, arguments.files),
        )
        return CallOutcome(
            raw.outcome,
            raw.code,
            NOTHING,
            answer=raw.answer,
            whole=raw.blocks,
            queued_ms=raw.queued_ms,
        )


class ShapedCall:
    """Shapes what came for the model; keeps it as it came where the call asked for that."""

    def __init__(self, at: CallPorts, rest: CallLayer) -> None:
        self._at = at
        self._rest = rest

    async def __call__(self, call: AdmittedCall) -> CallOutcome:
        outcome = await self._rest(call)
        blocks = outcome.whole or ()
        keeps = call.request.whole
        catalog = call.state.catalog
        entry = catalog.servers[call.tool.partition(".")[0]]
        may_frame = entry.results is not None or entry.trust != "trusted"
        shaped = await shape_blocks(
            self._at.ports,
            catalog.settings.limits.max_result_chars,
            blocks,
            framed=may_frame and entry.frames_results and outcome.outcome not in OUR_WORDS,
        )
        return replace(outcome, shaped=shaped, whole=blocks if keeps else None)


class ReusedCall:
    """Returns the kept result of the same call, where the operator permits that."""

    def __init__(self, at: CallPorts, rest: CallLayer) -> None:
        self._at = at
        self._rest = rest

    async def __call__(self, call: AdmittedCall) -> CallOutcome:
        results = self._at.ports.results
        if results is None:
            return await self._rest(call)
        catalog = call.state.catalog
        work = partial(self._rest, call)
        if call.scope.client is not None or call.request.whole:
            # What a client has as it came may be a question to it, answered in the next call of the
            # same arguments.
            return await results.call_fresh(catalog, call.tool, work)
        return await results.get_or_call(catalog, self._reusable(call), call.call_id, work)

    def _reusable(self, call: AdmittedCall) -> ReusableCall:
        state = call.state
        arguments = call.request.arguments
        entry = state.catalog.servers[call.tool.partition(".")[0]]
        return ReusableCall(
            tool=call.tool,
            arguments=arguments.value if arguments.asked is None else arguments.asked,
            principal=call.scope.principal,
            run_id=self._at.run.id,
            where=(state.root, state.folder or TOP) if not entry.traits.is_remote else (),
        )


class StoredCall:
    """Stores the artifacts of the arguments before the call, and those of the result after it."""

    def __init__(self, at: CallPorts, rest: CallLayer) -> None:
        self._at = at
        self._rest = rest

    async def __call__(self, call: AdmittedCall) -> CallOutcome:
        if blobs := call.request.arguments.blobs:
            await store(self._at.run, blobs)
        outcome = await self._rest(call)
        answer = outcome.answer
        if answer is not None and not await may_pass(self._at.ports, answer):
            outcome = replace(outcome, answer=None)
        if outcome.shaped.blobs:
            stored = await store(self._at.run, outcome.shaped.blobs)
            outcome = replace(outcome, stored=stored)
        return outcome


class RecordedCall:
    """Records the end of one call in every case, lets go of the run, and returns the result."""

    def __init__(self, at: CallPorts, rest: CallLayer) -> None:
        self._at = at
        self._rest = rest
        self._is_late = False
        """Whether the end is recorded later: then a thread that still waits records nothing."""

    async def __call__(self, call: AdmittedCall) -> Result:
        try:
            return await self._record(call, await self._make(call))
        finally:
            self._at.run.release()

    async def _make(self, call: AdmittedCall) -> CallOutcome:
        """Make the call; record its end here where it is cancelled, its result can't be stored, or
        the code has a defect.
        """
        try:
            return await self._rest(call)
        except BaseException as ended:
            nothing = CallOutcome(*ended_by(ended), NOTHING)
            try:
                if isinstance(ended, GeneratorExit):  # a coroutine that is closed can await nothing
                    self._at.run.pending.leave(late_end(self._at, call, nothing))
                else:
                    await asyncio.shield(self._record(call, nothing))
            except RouterError as trouble:  # what ended the call is what its caller has to hear
                fields = {"run_id": self._at.run.id, "call_id": call.call_id, "error": trouble}
                self._at.ports.diagnostics.event("error", "call.unrecorded", **fields)
            raise

    async def _record(self, call: AdmittedCall, outcome: CallOutcome) -> Result:
        """Record the end, or have it recorded later."""
        call_ports = self._at

        def end(wait_s: float) -> Result | None:
            if self._is_late:
                return None
            return finish_call(call_ports.ports, call_ports.run, call, outcome, wait_s)

        try:
            result = await call_ports.run.under_lock(end)
            await call_ports.run.wait_until_durable()
        except BaseException:  # the store did not take it, or whoever called is gone
            self._is_late = True
            call_ports.run.owe(late_end(call_ports, call, outcome))
            raise
        assert result is not None  # noqa: S101 - it is late only where this raises
        return result


def layers_of(at: CallPorts) -> RecordedCall:
    """Return what makes one call."""
    shaped = ShapedCall(at, SessionCall(at))
    return RecordedCall(at, StoredCall(at, ReusedCall(at, shaped)))


def late_end(at: CallPorts, call: AdmittedCall, outcome: CallOutcome) -> PendingEnd:
    """Return what records the end of a call later, unless it was recorded all the same, or the call
    never began.
    """

    def end(wait_s: float) -> None:
        at.run.read_on()
        if call.call_id in at.run.fold.open_calls:
            finish_call(at.ports, at.run, call, outcome, wait_s)

    return end


def cancelled_end(at: CallPorts, call: AdmittedCall) -> PendingEnd:
    """Return what records later that a call was cancelled before anything of it was done."""
    nothing = CallOutcome("cancelled", "cancelled", NOTHING)
    return late_end(at, call, nothing)


# --- its parts and records ------------------------------------------------------------------------


async def shape_blocks(
    ports: EnginePorts,
    max_chars: int,
    blocks: Sequence[Block],
    *,
    framed: bool = False,
) -> ShapedResult:
    """Return the blocks shaped for the model, large ones off the event loop. `framed`: an untrusted
    server says it.
    """
    if is_small(blocks, INLINE_CHARS):
        return shape(blocks, max_chars, ports.describe, framed=framed)
    shaped: ShapedResult = await ports.in_thread(
        lambda: shape(blocks, max_chars, ports.describe, framed=framed)
    )
    return shaped


async def may_pass(ports: EnginePorts, answer: ServerReply) -> bool:
    """Return whether an answer is small enough to be passed on unchanged.

    A large one is looked at in a thread.
    """
    if budget_left(answer.result, INLINE_CHARS) >= 0:
        return fits(answer)
    fitting: bool = await ports.in_thread(lambda: fits(answer))
    return fitting


async def store(run: OpenRun, blobs: Sequence[Blob]) -> tuple[Artifact, ...]:
    """Store the artifacts of a result, or of arguments, with the run."""
    if not blobs:
        return ()
    return await asyncio.to_thread(
        lambda: tuple([blob.stored_as(run.artifacts.put(blob.data)) for blob in blobs])
    )


def ended_by(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome and the code of a call that an exception ended."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled", "cancelled"
    return "tool_error", "storage" if isinstance(error, StorageError | CorruptRun) else "internal"


def finish_call(
    ports: EnginePorts,
    run: OpenRun,
    call: AdmittedCall,
    outcome: CallOutcome,
    wait_s: float,
    *,
    refused: bool = False,
) -> Result:
    """Record the end of a call and return its result.

    The caller holds the run's lock. `refused`: the call was not made, so only the beginning of its
    arguments is kept. A call without an id gets this record's.
    """
    elapsed_ms = max(0.0, (ports.clock.monotonic_ns() - call.started_ns) / 1e6 - outcome.queued_ms)

    record_of = partial(_finished_record, ports.clock, run, call, outcome, elapsed_ms, refused)
    try:
        record = run.append_end(record_of, wait_s=wait_s)
    except CallHasEnded:
        return _ended_elsewhere(ports, call, outcome)
    run.passing.pop(id(call.request), None)
    idempotent = record.outcome in MAY_HAVE_HAPPENED and may_repeat(call.state.catalog, call.tool)
    return result_of(record, outcome, idempotent=idempotent)


def _ended_elsewhere(ports: EnginePorts, call: AdmittedCall, outcome: CallOutcome) -> Result:
    """Return what another process recorded of a call of this one, which it took for dead."""
    assert call.started is not None  # noqa: S101 - nobody else ends a call that has no start
    ports.diagnostics.event(
        "error",
        "call.ended_elsewhere",
        run_id=call.state.run_id,
        call_id=call.call_id,
        outcome=outcome.outcome,
    )
    return result_of(end_record(ports.clock, call.started.shared(), UNKNOWN_END), idempotent=False)


def _finished_record(
    clock: Clock,
    run: OpenRun,
    call: AdmittedCall,
    outcome: CallOutcome,
    elapsed_ms: float,
    refused: bool,
    place: str,
) -> CallFinished:
    """Return the record of a call's end, under the run's present state.

    `place` is the id of a call that has none. Raises CallHasEnded.
    """
    if call.started is not None:
        if call.started.call_id not in run.fold.open_calls:
            raise CallHasEnded
        fields = call.started.shared()
    else:
        fields = call_fields(call.state, call.request, call.tool, call.bundle)
        fields |= {"call_id": place, "attempt": call.attempt}
    if refused:
        fields["arguments"] = shorten_arguments(fields["arguments"])
    return end_record(
        clock,
        fields,
        outcome,
        shaped=_size_of(outcome.shaped),
        joined=(*call.joined, *outcome.joined, *_readers(run, call, outcome.shaped)),
        elapsed_ms=round(elapsed_ms, 3),
        ready_ms=round(call.ready_ms + outcome.queued_ms, 3),
    )


def end_record(
    clock: Clock, fields: Mapping[str, Any], outcome: CallOutcome, **measured: Any
) -> CallFinished:
    """Return a call's end. `fields` are those that its start has as well; nobody else makes one."""
    return CallFinished(
        **fields,
        time=time_text(clock.time_ns()),
        monotonic_ns=clock.monotonic_ns(),
        outcome=outcome.outcome,
        code=outcome.code and recordable_name(outcome.code)[:MAX_CODE],
        result=None if outcome.outcome == "cancelled" else outcome.shaped.text,
        artifacts=outcome.stored,
        cached_from=outcome.source,
        returns=outcome.returns,
        **measured,
    )


def _size_of(shaped: ShapedResult) -> ShapedSize:
    flags = tuple(shaped.flags)
    return ShapedSize(shaped.original_bytes, shaped.kept_bytes, shaped.rule, flags)


def result_of(
    record: CallFinished,
    outcome: CallOutcome | None = None,
    *,
    idempotent: bool,
    again: bool = False,
) -> Result:
    """Return the result that a record describes; `again`: as the result of an earlier call.

    `outcome` adds what no record holds, where the call was made here.
    """
    return Result(
        outcome=record.outcome,
        text=record.result or "",
        code=record.code,
        artifacts=record.artifacts,
        call_id=record.call_id,
        decision_id=record.decision_id,
        tool=record.name,
        elapsed_ms=record.elapsed_ms,
        joined=tuple(tool for _, tool in record.joined),
        parts=outcome.shaped.parts if outcome is not None else (),
        cached_from=(record.cached_from or record.call_id) if again else record.cached_from,
        flags=record.shaped.flags if record.shaped is not None else (),
        retryable=record.outcome == "busy" or (idempotent and record.outcome in MAY_HAVE_HAPPENED),
        whole=outcome.whole if outcome is not None else None,
        answer=outcome.answer if outcome is not None else None,
    )


def _has_text(blob: Blob) -> bool:
    """Return whether an artifact of a result has text to read: the full result has."""
    mime_type = blob.facts.mime_type
    return blob.role == "full_result" or mime_type.startswith(("text/", "application/json"))


def _readers(run: OpenRun, call: AdmittedCall, shaped: ShapedResult) -> Joined:
    """Return the tools that read artifacts; they join the array with the first result that has more
    to read.
    """
    if not call.request.joins:
        return ()
    if not any(map(_has_text, shaped.blobs)):
        return ()
    activation = run.fold.activation(call.state.decided.branch)
    joined_tools = {tool for _, tool in _asked_for(activation)}
    joined = joined_after(call.state, activation, ((call.bundle, READERS),))
    return tuple(pair for pair in joined if pair[1] not in joined_tools)


def call_fields(state: RunState, request: CallRequest, tool: str, bundle: str) -> dict[str, Any]:
    """Return the fields that every record of a call has, beside its id."""
    server, _, short = tool.partition(".")
    return {
        "run_id": state.run_id,
        "decision_id": state.decided.decision.decision_id,
        "server": server,
        "tool": short,
        "bundle": bundle,
        "via": request.via,
        "arguments": request.arguments.text,
        "key": request.key,
        "branch": state.decided.branch,
    }


def joined_after(
    state: RunState, activation: Activation, requested: Iterable[tuple[str, Iterable[str]]]
) -> Joined:
    """Return the tools that join the array when tools of bundles are asked for, as far as the step
    has room.
    """
    joined_before = frozenset(_asked_for(activation))
    for bundle, tools in requested:
        new = [tool for tool in tools if (bundle, tool) not in joined_before]
        joining = _tools_with_room(state, activation, new)
        activation = sticky_set.ask_for(activation, bundle, joining)
    return tuple(pair for pair in _asked_for(activation) if pair not in joined_before)


def _tools_with_room(state: RunState, activation: Activation, tools: Sequence[str]) -> list[str]:
    """Return the tools for which the step has room. The router's own have no card and take none."""
    cards = state.catalog.cards
    carded = [cards[tool] for tool in tools if tool in cards]
    fitting = {card.name for card in state.room(activation).fitting(carded)}
    return [tool for tool in tools if tool in fitting or "." not in tool]


def _asked_for(activation: Activation) -> Iterator[tuple[str, str]]:
    return ((entry.id, tool.name) for entry in activation.entries for tool in entry.tools)
