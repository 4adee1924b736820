"""How a tool is called.

Rules:
1. `call.started` is on disk before the tool runs, so a crash leaves evidence. `call.finished` is on
   disk before the result is returned, also when the result can't be shown or stored.
2. A call may use only what its decision showed. Policy judges it again by the tool's canonical
   name, with fresh facts and the ancestors' present limits. Nothing that improved since the
   decision widens it.
3. A key makes a call happen once. A second call with the key gets the recorded result, and waits
   for it while the process that makes the call lives. It is refused where policy does not permit
   the tool under the decision that it names. If it died before the end, or could never
   record it, an idempotent tool is called again; any other call ends as `unknown`, which is
   recorded once. A refused call binds no key.
4. Records are bounded. Of a refused call's arguments the size, the digest and the beginning are
   kept.
5. Budgets bound the calls of a step, of a run and of a tree of runs (`core.decide.budgets`).
6. A failure that an agent may see is returned as a `Result`. A caller's mistake is raised, and so
   is a log that can't be written.

A call passes through wrappers, each of which calls the next: `call_once` (its key), `admit` (judge,
budget, begin), `_call_and_store` (record the end), `_call_or_reuse` (reuse a result, or ask the
session).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from bundle_router.core.decide import budgets
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.exposure.meta_tools.resolving import ResolvedName
from bundle_router.core.exposure.meta_tools.signatures import takes_nothing
from bundle_router.core.records.call_records import CallFinished, CallStarted
from bundle_router.core.records.fold import KeyedCall
from bundle_router.core.results.reusable_results import ReusableCall, may_repeat
from bundle_router.core.results.shaping import ShapedResult, shape
from bundle_router.core.servers.transport.pass_through import narrow_client, passes
from bundle_router.core.servers.transport.tool_servers import CallOutcome, CallPlace, Scope
from bundle_router.core.values import Outcome, Text
from bundle_router.core.values.canonical import time_text
from bundle_router.core.values.folders import TOP
from bundle_router.engine.engine_ports import CallPorts, EnginePorts
from bundle_router.engine.pending_ends import PendingEnd
from bundle_router.engine.results import (
    MAY_HAVE_HAPPENED,
    AdmittedCall,
    CallRequest,
    Joined,
    Result,
    call_fields,
    ended_by,
    finish_call,
    joined_after,
    may_pass,
    result_of,
    shape_blocks,
    store,
)
from bundle_router.engine.run_records import MOVED_AT_MOST, OpenRun
from bundle_router.engine.surface import CallTarget, RunState, why_not, why_withheld
from bundle_router.errors import KeyConflict, RouterError, StorageError

MAX_NAMED: Final = 20
"""Tools that a refusal names at most."""
_OUR_WORDS: Final[frozenset[Outcome]] = frozenset(("timeout", "busy", "cancelled"))
"""Outcomes whose text is ours, whatever the server said."""
FIRST_LOOK_S: Final = 0.001
LONGEST_LOOK_S: Final = 0.1
UNKNOWN_TEXT: Final = (
    "This call began, and the process that made it ended before its end was recorded: it may have"
    " happened. It was not made again. Look at what it was to change before you decide."
)


# --- its key --------------------------------------------------------------------------------------

_BEGUN: Final[dict[str, WeakValueDictionary[str, OpenRun]]] = {}
"""For each writer's token of this process, the runs that have calls with keys to end, or had, by
the calls' ids.
"""
os.register_at_fork(after_in_child=_BEGUN.clear)


def _may_end(run: OpenRun, call: KeyedCall) -> bool:
    """Return whether a call may still end by itself: its process lives and, if it is this one, has
    yet to end it.
    """
    ours = _BEGUN.get(call.writer)
    its_run = ours.get(call.call_id) if ours is not None else run
    return (
        its_run is not None and not its_run.uses.has_ended and run.runs.store.is_alive(call.writer)
    )


def _will_end(run: OpenRun, call: KeyedCall) -> bool:
    """Do as `_may_end`, after recording the end that a closed event loop left here. Blocks."""
    ours = _BEGUN.get(call.writer)
    if (
        ours is not None
        and (its_run := ours.get(call.call_id)) is not None
        and its_run.pending.ends
    ):
        with suppress(RouterError):
            its_run.under_lock_sync(lambda _: None)
    return _may_end(run, call)


@dataclass(frozen=True, slots=True)
class KeyTaken:
    """The key of a call is taken."""

    call: KeyedCall
    """The last attempt at the call that has the key."""
    same_tool: bool
    """Whether that attempt was of the tool that is called now."""
    same_principal: bool
    """Whether that attempt was for the principal that the present call is for."""


async def call_once(
    at: CallPorts,
    request: CallRequest,
    is_idempotent: Callable[[str], bool],
    make: Callable[[], Awaitable[Result | KeyTaken]],
) -> Result:
    """Make a call, or return the recorded result where its key is taken (rule 3)."""
    pause_s = FIRST_LOOK_S
    while True:
        found = await make()
        if isinstance(found, Result):
            return found
        call = found.call
        _refuse_other(at.run, request, found)
        if (seq := call.finished) is not None:
            line = await at.run.under_lock(lambda _: at.run.log.record(seq))
            return result_of(
                CallFinished.from_json(line), idempotent=is_idempotent(call.name), again=True
            )
        if not await asyncio.to_thread(_will_end, at.run, call):
            if is_idempotent(call.name):
                continue  # it died since we looked: made again
            ended = await at.run.under_lock(partial(_end_unknown, at, request.key, call))
            if ended is not None:
                return ended
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_LOOK_S)


def _same_arguments(call: KeyedCall, request: CallRequest) -> bool:
    return not call.arguments_digest or call.arguments_digest == request.digest


def _refuse_other(run: OpenRun, request: CallRequest, key_taken: KeyTaken) -> None:
    call = key_taken.call
    if not key_taken.same_principal:  # nothing more is said: what it was is that one's own
        raise KeyConflict(
            f"run {run.id!r}: key {request.key!r} was used for another principal's call",
            advice="use keys that differ between the principals of a run",
        )
    same = {"another tool": key_taken.same_tool, "other arguments": _same_arguments(call, request)}
    differing = [name for name, is_same in same.items() if not is_same]
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
    ports = at.ports
    for _ in range(MOVED_AT_MOST):
        run.read_on()
        if run.fold.keyed_call(key) != call:
            return None
        started = CallStarted.from_json(run.log.record(call.started))
        record = CallFinished(
            **started.shared(),
            time=time_text(ports.clock.time_ns()),
            monotonic_ns=ports.clock.monotonic_ns(),
            outcome="unknown",
            code="unknown",
            result=UNKNOWN_TEXT,
        )
        if run.append_call(record, compare=True, wait_s=wait_s) is not None:
            return result_of(record, idempotent=False)
    raise run.moved_error()


Judged = AdmittedCall | KeyTaken | Result | None
"""What `admit` returns."""


# --- judged and begun -----------------------------------------------------------------------------


def admit(
    at: CallPorts,
    state: RunState,
    request: CallRequest,
    checked: CallTarget,
    problems: Sequence[str],
    tree: Totals | None,
    wait_s: float,
) -> Judged:
    """Resolve and judge a call, and record its start; or record its refusal and return that.

    `problems` are what is wrong with its arguments, which were checked for the target `checked`,
    and `tree` what the tree of runs has spent.

    None: the caller has to try again, since the run was routed meanwhile or the name means another
    tool now.
    """
    ports = at.ports
    run = at.run
    started_ns = at.ports.clock.monotonic_ns()
    target = state.target(request.name)
    tool = target.tool
    client = request.client
    server = target.server
    if tool != checked.tool:
        return None
    if (
        client is not None and server is not None
    ):  # it gets the tool's own answer, where the server's are passed on
        client = narrow_client(client, server) if passes(server, "results") else None

    def call(attempt: int, started: CallStarted | None = None, joined: Joined = ()) -> AdmittedCall:
        return AdmittedCall(
            tool=tool,
            bundle=target.bundle,
            request=request,
            state=state,
            scope=Scope(
                run.id, state.decided.step.principal, client if server is not None else None
            ),
            started_ns=started_ns,
            joined=joined,
            attempt=attempt,
            ready_ms=(started_ns - request.asked_ns) / 1e6,
            started=started,
        )

    for _ in range(
        MOVED_AT_MOST
    ):  # what others wrote since the run was read on is told when we append
        present = run.fold.decided(state.decided.branch)
        if present is None or (
            present.decision.decision_id != state.decided.decision.decision_id
        ) != bool(state.superseded):
            # the run may have been closed and routed again here, so that others read on for it
            run.read_on()
            return None
        known = run.fold.keyed_call(request.key) if request.key else None
        if known is not None:
            same_tool = known.name in (
                tool,
                state.surface.canonical.get(request.name, request.name),
            )
            same_principal = known.principal == state.step.principal
            is_same = same_tool and same_principal and _same_arguments(known, request)
            is_other = known.outcome != "busy" and not is_same
            idempotent = may_repeat(state.catalog, tool)
            if known.finished is None:
                is_bound = not idempotent or _may_end(run, known)
            else:
                is_bound = known.outcome != "busy" and not (
                    idempotent and known.outcome in MAY_HAVE_HAPPENED
                )
            if is_other or is_bound:
                if run.read_on():  # its end, maybe
                    continue
                withheld = None if is_other else why_withheld(state, known.name)
                if withheld is not None:
                    no_result = _withheld(known.name, *withheld)
                    return refuse(ports, run, call(known.attempt + 1), no_result, wait_s)
                return KeyTaken(known, same_tool, same_principal)
        attempt = known.attempt + 1 if known is not None else 1
        refusal = over_budget(run, state, tool, request.arguments.text, tree)
        refusal = refusal or _refusal(state, target, request, problems)
        if refusal is not None:
            if run.read_on():
                continue
            return refuse(ports, run, call(attempt), refusal, wait_s)
        joined: Joined = ()
        if request.joins and target.waiting:
            activation = run.fold.activation(state.decided.branch)
            joined = joined_after(state, activation, ((target.bundle, target.waiting),))
        record = CallStarted(
            **call_fields(state, request, tool, target.bundle),
            call_id=run.next_id(),
            time=time_text(ports.clock.time_ns()),
            monotonic_ns=ports.clock.monotonic_ns(),
            attempt=attempt,
            writer=at.run.runs.store.writer if request.key else "",
            arguments_digest=request.digest,
        )
        made = call(attempt, record, joined)
        if record.writer:
            _BEGUN.setdefault(record.writer, WeakValueDictionary())[record.call_id] = run
        try:
            if run.append_call(record, compare=True, wait_s=wait_s) is not None:
                run.uses.hold()
                return made
        except StorageError:  # a database that went away may have written it
            run.owe(_late_end(at, made, CallOutcome("busy", "storage", ShapedResult.empty())))
            raise
    raise run.moved_error()


Refusal = tuple[Outcome, str, str]
"""Why a call is refused: its outcome, the code, and the text for the agent."""


def refuse(
    ports: EnginePorts, run: OpenRun, call: AdmittedCall, refusal: Refusal, wait_s: float
) -> Result:
    """Record the refusal of a call, and return it. The caller holds the run's lock."""
    outcome, code, text = refusal
    shaped = shape(
        (Text(text),), call.state.catalog.settings.limits.max_result_chars, ports.describe
    )
    return finish_call(
        ports, run, call, CallOutcome(outcome, code, shaped), refused=True, wait_s=wait_s
    )


def over_budget(
    run: OpenRun, state: RunState, name: str, arguments: str, tree: Totals | None
) -> Refusal | None:
    """Return the refusal of a call that exceeds a budget, else None.

    The caller holds the run's lock.
    """
    limits = state.catalog.settings.limits
    decision_id = state.decided.decision.decision_id
    spent = run.fold.spent(decision_id)
    total = run.fold.run_spent
    if run.passing:
        spent = replace(
            spent,
            calls=spent.calls + [*run.passing.values()].count(run.fold.budget_key(decision_id)),
        )
        total = replace(total, calls=total.calls + len(run.passing))
    in_loop = spent.repeats >= limits.repeated_calls
    over = budgets.over_budget(limits, spent, budgets.asked_hash(name, arguments) if in_loop else 0)
    over = over or budgets.over_total(limits, total, tree)
    return ("budget", *over) if over is not None else None


def _over_tree(at: CallPorts, state: RunState) -> Refusal | None:
    """Return the refusal of a call that its tree of runs, which counts it already, has no room for.

    Blocks.
    """
    spent = at.tree.spent(at.run)
    over = budgets.over_total(
        state.catalog.settings.limits, Totals(), replace(spent, calls=spent.calls - 1)
    )
    return ("budget", *over) if over is not None else None


async def reserve(
    at: CallPorts, state: RunState, name: str, arguments: str, request: object
) -> Refusal | None:
    """Return the refusal of a request that is recorded only at its end, where it exceeds a budget;
    None where it fits. Then it counts until the caller takes it from the run's `passing`.
    """

    def reserved(_wait_s: float) -> Refusal | None:
        at.run.read_on()
        refusal = over_budget(at.run, state, name, arguments, None)
        if refusal is None:
            at.run.passing[id(request)] = at.run.fold.budget_key(state.decided.decision.decision_id)
        return refusal

    refusal = await at.run.under_lock(reserved, lambda _: at.run.passing.pop(id(request), None))
    if refusal is None and at.tree.is_bounded:
        refusal = await at.run.on_store(lambda _: _over_tree(at, state))
    return refusal


async def within_budget(
    at: CallPorts, call: AdmittedCall, make: Callable[[], Awaitable[Result]]
) -> Result:
    """Make a call of the router's own tools, which is recorded at its end, or refuse it where it
    exceeds a budget.
    """
    try:
        refusal = await reserve(
            at, call.state, call.tool, call.request.arguments.text, call.request
        )
        if refusal is None:
            return await make()
        return await at.run.record(lambda wait_s: refuse(at.ports, at.run, call, refusal, wait_s))
    finally:
        at.run.passing.pop(id(call.request), None)


async def within_tree(at: CallPorts, call: AdmittedCall) -> AdmittedCall | Result:
    """Check once more whether the tree of runs has room for a call, now that its start is recorded
    and other runs can see it; else end the call as refused. When two runs begin a call at once, at
    least one sees the other: a tree never makes more calls than its budget, and both may be refused
    its last.
    """

    def end(wait_s: float) -> Result | None:
        refusal = _over_tree(at, call.state)
        with at.run.lock:
            if refusal is None or call.call_id not in at.run.fold.open_calls:
                return None
            return refuse(at.ports, at.run, call, refusal, wait_s)

    try:
        refused = await at.run.on_store(end)
    except BaseException:  # also of a task that was cancelled before its thread began
        at.run.owe(_cancelled_end(at, call))
        at.run.release()
        raise
    if refused is not None:
        at.run.release()
    return refused or call


def abandon(at: CallPorts, made: AdmittedCall | KeyTaken | Result | None) -> None:
    """Leave a call that began when nobody waited for it any more, and its hold on the run."""
    if isinstance(made, AdmittedCall):
        at.run.owe(_cancelled_end(at, made), at.run.uses.end_hold)


def _cancelled_end(at: CallPorts, call: AdmittedCall) -> PendingEnd:
    nothing = CallOutcome("cancelled", "cancelled", ShapedResult.empty())
    return _late_end(at, call, nothing)


def _late_end(at: CallPorts, call: AdmittedCall, outcome: CallOutcome) -> PendingEnd:
    """Return what records the end of a call later, unless it was recorded all the same, or the call
    never began.
    """

    def end(wait_s: float) -> None:
        at.run.read_on()
        if call.call_id in at.run.fold.open_calls:
            finish_call(at.ports, at.run, call, outcome, wait_s)

    return end


def _refusal(
    state: RunState, target: CallTarget, request: CallRequest, problems: Sequence[str]
) -> Refusal | None:
    tool = target.tool
    if target.server is None:
        code, text = why_missing(state, tool, target.resolved)
        return "unavailable" if code == "server_unavailable" else "denied", code, text
    if request.arguments.wrong is not None:
        kind, sentence = request.arguments.wrong
        return "invalid_arguments", kind, f"The arguments of {tool!r} {sentence}"
    if problems:
        card = state.catalog.cards.get(tool)
        if card is None:
            schema = ""
        elif takes_nothing(card):
            schema = "\nIt takes none."
        else:
            schema = f"\nIts schema: {card.schema}"
        text = f"The arguments of {tool!r} do not fit: {'; '.join(problems)}.{schema}"
        return "invalid_arguments", "invalid_arguments", text
    if state.folder is None:
        return (
            "denied",
            "policy_denied",
            f"The step's folder {state.step.workspace!r} is not open to it any more.",
        )
    return None


def _withheld(tool: str, code: str, detail: str) -> Refusal:
    text = f"{tool!r} is not available at this step ({code}: {detail}), nor is its recorded result."
    return "denied", code, text


def why_missing(state: RunState, name: str, resolved: ResolvedName) -> tuple[str, str]:
    """Return why an agent can't call a tool: the code, and a sentence with the names that it may
    have meant.
    """
    exposed = state.exposed()
    (code, detail) = why_not(state, resolved.name)
    some = list(exposed)[:MAX_NAMED]
    rest_text = f" and {len(exposed) - len(some)} more" if len(exposed) > len(some) else ""
    hint = resolved.hint or (
        f"This step has: {', '.join(some)}{rest_text}." if some else "This step has no tools."
    )
    return code, f"{name!r} is not available at this step ({code}: {detail}). {hint}"


# --- made -----------------------------------------------------------------------------------------


async def perform(at: CallPorts, call: AdmittedCall) -> Result:
    """Make an admitted call: bound and shape its result, store its artifacts, and record its end in
    every case.
    """
    try:
        return await _record_end(at, call, await _call_and_store(at, call))
    finally:
        at.run.release()


async def _record_end(at: CallPorts, call: AdmittedCall, outcome: CallOutcome) -> Result:
    """Record the end of a call, or have it recorded later: then a thread that still waits records
    nothing.
    """
    is_late = False

    def end(wait_s: float) -> Result | None:
        return None if is_late else finish_call(at.ports, at.run, call, outcome, wait_s)

    try:
        result = await at.run.record(end)
    except BaseException:  # the store did not take it, or whoever called is gone
        is_late = True
        at.run.owe(_late_end(at, call, outcome))
        raise
    assert result is not None  # noqa: S101 - it is late only where this raises
    return result


async def _call_and_store(at: CallPorts, call: AdmittedCall) -> CallOutcome:
    """Make the call and store its artifacts.

    Record the end here where the call is cancelled, its result can't be stored, or the code has a
    defect.
    """
    try:
        if given := call.request.arguments.blobs:
            await store(at.run, given)
        outcome = await _call_or_reuse(at, call)
        stored = await store(at.run, outcome.shaped.blobs) if outcome.shaped.blobs else ()
        if outcome.answer is not None and await may_pass(at.ports, outcome.answer):
            answer = outcome.answer
        else:
            answer = None
    except BaseException as ended:
        nothing = CallOutcome(*ended_by(ended), ShapedResult.empty())
        try:
            if isinstance(ended, GeneratorExit):  # a coroutine that is closed can await nothing
                at.run.pending.leave(_late_end(at, call, nothing))
            else:
                await asyncio.shield(_record_end(at, call, nothing))
        except RouterError as trouble:  # what ended the call is what its caller has to hear
            fields = {"run_id": at.run.id, "call_id": call.call_id, "error": trouble}
            at.ports.diagnostics.event("error", "call.unrecorded", **fields)
        raise
    if stored or outcome.answer is not None:
        return replace(outcome, stored=stored, answer=answer)
    return outcome


def _call_or_reuse(at: CallPorts, call: AdmittedCall) -> Awaitable[CallOutcome]:
    """Return the shaped result of the call, or the kept result of the same call where the operator
    permits reuse.
    """
    results = at.ports.results
    state = call.state
    catalog = call.state.catalog
    server, _, short = call.tool.partition(".")
    entry = catalog.servers[server]
    limits = catalog.settings.limits
    arguments = call.request.arguments

    async def work() -> CallOutcome:
        await at.run.wait_until_durable()
        raw = await at.ports.sessions[entry.transport].call(
            server,
            short,
            arguments.value,
            timeout_s=entry.timeout_s or limits.call_timeout_s,
            scope=call.scope,
            place=CallPlace(state.root, state.folder or TOP, arguments.files),
        )
        whole = raw.blocks if call.request.whole else None
        may_frame = entry.results is not None or entry.trust != "trusted"
        release = not whole and entry.transport != "local"
        shaped = await shape_blocks(
            at.ports,
            limits.max_result_chars,
            raw.blocks,
            release=release,
            framed=may_frame and entry.frames_results and raw.outcome not in _OUR_WORDS,
        )
        return CallOutcome(
            raw.outcome, raw.code, shaped, answer=raw.answer, whole=whole, queued_ms=raw.queued_ms
        )

    if results is None:
        return work()
    if call.scope.client is not None or call.request.whole:
        # What a client has as it came may be a question to it, answered in the next call of the
        # same arguments.
        return results.call_fresh(catalog, call.tool, work)
    reusable = ReusableCall(
        tool=call.tool,
        arguments=arguments.value if arguments.asked is None else arguments.asked,
        principal=call.scope.principal,
        run_id=at.run.id,
        where=(state.root, state.folder or TOP) if not entry.traits.is_remote else (),
    )
    return results.get_or_call(catalog, reusable, call.call_id, work)
