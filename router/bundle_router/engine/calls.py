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

A call passes through layers, each of which has the next one do the rest: `OnceByKey`, for a call
with a key; `JudgedCall`, which has `CallAdmission` judge and begin it; then those of `made_calls`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

from bundle_router.core.decide import budgets
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.exposure.meta_tools.resolving import ResolvedName
from bundle_router.core.exposure.meta_tools.signatures import takes_nothing
from bundle_router.core.records.call_records import CallFinished, CallStarted
from bundle_router.core.records.fold import KeyedCall
from bundle_router.core.results.reusable_results import may_repeat
from bundle_router.core.results.shaping import shape
from bundle_router.core.servers.transport.pass_through import Client, narrow_client, passes
from bundle_router.core.servers.transport.tool_servers import CallOutcome, Scope
from bundle_router.core.values import Outcome, Text
from bundle_router.core.values.canonical import time_text
from bundle_router.engine.arguments import check_arguments
from bundle_router.engine.engine_ports import CallPorts, EnginePorts
from bundle_router.engine.made_calls import (
    MAY_HAVE_HAPPENED,
    NOTHING,
    UNKNOWN_END,
    CallHasEnded,
    call_fields,
    end_record,
    finish_call,
    joined_after,
    late_end,
    layers_of,
    result_of,
)
from bundle_router.engine.pending_ends import PendingEnd
from bundle_router.engine.results import AdmittedCall, CallRequest, Joined, Result
from bundle_router.engine.run_records import MOVED_AT_MOST, OpenRun
from bundle_router.engine.surface import CallTarget, RunState, why_not, why_withheld
from bundle_router.errors import KeyConflict, RouterError, StorageError

MAX_NAMED: Final = 20
"""Tools that a refusal names at most."""
FIRST_LOOK_S: Final = 0.001
LONGEST_LOOK_S: Final = 0.1


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


class CallJudgement:
    """What judging a call came to: one of the classes below."""


@dataclass(frozen=True, slots=True)
class BegunCall(CallJudgement):
    """The call may be made, and its start is recorded."""

    call: AdmittedCall


@dataclass(frozen=True, slots=True)
class RefusedCall(CallJudgement):
    """The call may not be made, and its refusal is recorded."""

    result: Result


@dataclass(frozen=True, slots=True)
class KeyTaken(CallJudgement):
    """The key of the call is taken. Nothing was recorded."""

    call: KeyedCall
    """The last attempt at the call that has the key."""
    same_tool: bool
    """Whether that attempt was of the tool that is called now."""
    same_principal: bool
    """Whether that attempt was for the principal that the present call is for."""


class OutdatedCall(CallJudgement):
    """The run was routed meanwhile, or the name means another tool now: judge the call again, under
    the present state. Nothing was recorded.
    """


class KeyIsTaken(Exception):
    """Ends the making of a call whose key is taken."""

    def __init__(self, taken: KeyTaken) -> None:
        super().__init__(taken)
        self.taken = taken


class RequestLayer(Protocol):
    """One layer of a call that has not begun."""

    async def __call__(self, request: CallRequest) -> Result: ...


class OnceByKey:
    """Makes a call with a key once, or returns the recorded result (rule 3)."""

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
            if not await asyncio.to_thread(_will_end, self._at.run, key_owner.call):
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


def _same_arguments(call: KeyedCall, request: CallRequest) -> bool:
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
        "other arguments": _same_arguments(call, request),
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


# --- judged and begun -----------------------------------------------------------------------------


class CallAdmission:
    """Judges a call, and records its start or its refusal.

    `target` is what its name means, `problems` are what is wrong with its arguments, and `tree` is
    what the tree of runs has spent. For whoever has the run's lock.
    """

    def __init__(
        self,
        at: CallPorts,
        state: RunState,
        request: CallRequest,
        target: CallTarget,
        problems: Sequence[str],
        tree: Totals | None,
    ) -> None:
        self._at = at
        self._run = at.run
        self._state = state
        self._request = request
        self._target = target
        self._problems = problems
        self._tree = tree
        self._started_ns = 0

    def judge(self, wait_s: float) -> CallJudgement:
        """Return what the call comes to. Raises RunBusy, StorageError."""
        self._started_ns = self._at.ports.clock.monotonic_ns()
        for _ in range(MOVED_AT_MOST):
            if self._is_outdated():
                # the run may have been closed and routed again here, so that others read on for it
                self._run.read_on()
                return OutdatedCall()
            judgement = self._judge_once(wait_s)
            if judgement is not None:
                return judgement
        raise self._run.moved_error()

    def _is_outdated(self) -> bool:
        """Return whether another decision stands than the one that the state was made of."""
        decided = self._state.decided
        fold = self._run.fold
        if not self._state.by_name and decided.branch != fold.current_branch:
            return True
        present = fold.decided(decided.branch)
        if present is None:
            return True
        is_other = present.decision.decision_id != decided.decision.decision_id
        return is_other != bool(self._state.superseded)

    def _judge_once(self, wait_s: float) -> CallJudgement | None:
        """Return what the call comes to by what was read of the run; None where others wrote
        meanwhile, which is told when we append.
        """
        run = self._run
        keyed_call = run.fold.keyed_call(self._request.key) if self._request.key else None
        if keyed_call is not None and self._is_bound(keyed_call):
            if run.read_on():  # its end, maybe
                return None
            return self._taken(keyed_call, wait_s)
        attempt = keyed_call.attempt + 1 if keyed_call is not None else 1
        refusal = self._refusal()
        if refusal is None:
            return self._begin(attempt, wait_s)
        if run.read_on():
            return None
        return RefusedCall(refuse(self._at.ports, run, self._call(attempt), refusal, wait_s))

    # --- its key ----------------------------------------------------------------------------------

    def _is_bound(self, known: KeyedCall) -> bool:
        """Return whether the key stands for the call that has it."""
        if known.outcome == "busy":
            return False
        if not self._is_same(known):
            return True
        idempotent = may_repeat(self._state.catalog, self._target.tool)
        if known.finished is None:
            return not idempotent or _may_end(self._run, known)
        return not (idempotent and known.outcome in MAY_HAVE_HAPPENED)

    def _is_same(self, known: KeyedCall) -> bool:
        return (
            self._has_tool(known)
            and known.principal == self._state.step.principal
            and _same_arguments(known, self._request)
        )

    def _has_tool(self, known: KeyedCall) -> bool:
        name = self._request.name
        return known.name in (self._target.tool, self._state.surface.canonical.get(name, name))

    def _taken(self, known: KeyedCall, wait_s: float) -> CallJudgement:
        """Return that the key is taken; a refusal where policy does not permit the result."""
        withheld = why_withheld(self._state, known.name) if self._is_same(known) else None
        if withheld is not None:
            call = self._call(known.attempt + 1)
            refusal = _withheld(known.name, *withheld)
            return RefusedCall(refuse(self._at.ports, self._run, call, refusal, wait_s))
        same_principal = known.principal == self._state.step.principal
        return KeyTaken(known, self._has_tool(known), same_principal)

    # --- its start --------------------------------------------------------------------------------

    def _refusal(self) -> Refusal | None:
        text = self._request.arguments.text
        over = over_budget(self._run, self._state, self._target.tool, text, self._tree)
        return over or _refusal(self._state, self._target, self._request, self._problems)

    def _begin(self, attempt: int, wait_s: float) -> BegunCall | None:
        """Record the start; None where others wrote first."""
        run = self._run
        clock = self._at.ports.clock
        record = CallStarted(
            **call_fields(self._state, self._request, self._target.tool, self._target.bundle),
            call_id=run.next_id(),
            time=time_text(clock.time_ns()),
            monotonic_ns=clock.monotonic_ns(),
            attempt=attempt,
            writer=run.runs.store.writer if self._request.key else "",
            arguments_digest=self._request.digest,
        )
        call = self._call(attempt, record, self._joined())
        if record.writer:
            _BEGUN.setdefault(record.writer, WeakValueDictionary())[record.call_id] = run
        try:
            if run.append_call(record, compare=True, wait_s=wait_s) is None:
                return None
        except StorageError:  # a database that went away may have written it
            busy = CallOutcome("busy", "storage", NOTHING)
            run.owe(late_end(self._at, call, busy))
            raise
        run.uses.hold()
        return BegunCall(call)

    def _joined(self) -> Joined:
        """Return how the array changes as the call begins."""
        if not self._request.joins or not self._target.waiting:
            return ()
        activation = self._run.fold.activation(self._state.decided.branch)
        requested = ((self._target.bundle, self._target.waiting),)
        return joined_after(self._state, activation, requested)

    def _call(
        self, attempt: int, started: CallStarted | None = None, joined: Joined = ()
    ) -> AdmittedCall:
        return AdmittedCall(
            tool=self._target.tool,
            bundle=self._target.bundle,
            request=self._request,
            state=self._state,
            scope=Scope(self._run.id, self._state.decided.step.principal, self._client()),
            started_ns=self._started_ns,
            joined=joined,
            attempt=attempt,
            ready_ms=(self._started_ns - self._request.asked_ns) / 1e6,
            started=started,
        )

    def _client(self) -> Client | None:
        """Return who gets the tool's own answer, where the server's are passed on."""
        client = self._request.client
        server = self._target.server
        if client is None or server is None or not passes(server, "results"):
            return None
        return narrow_client(client, server)


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
    totals = run.fold.spent(decision_id)
    total = run.fold.run_spent
    if run.passing:
        totals = replace(
            totals,
            calls=totals.calls + [*run.passing.values()].count(run.fold.budget_key(decision_id)),
        )
        total = replace(total, calls=total.calls + len(run.passing))
    in_loop = totals.repeats >= limits.repeated_calls
    asked_hash = budgets.asked_hash(name, arguments) if in_loop else 0
    over = budgets.over_budget(limits, totals, asked_hash)
    over = over or budgets.over_total(limits, total, tree)
    return ("budget", *over) if over is not None else None


def _over_tree(at: CallPorts, state: RunState) -> Refusal | None:
    """Return the refusal of a call that its tree of runs, which counts it already, has no room for.

    Blocks.
    """
    tree_totals = at.tree.spent(at.run)
    over = budgets.over_total(
        state.catalog.settings.limits, Totals(), replace(tree_totals, calls=tree_totals.calls - 1)
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


async def within_tree(at: CallPorts, begun: BegunCall) -> CallJudgement:
    """Check once more whether the tree of runs has room for a call, now that its start is recorded
    and other runs can see it; else end the call as refused. When two runs begin a call at once, at
    least one sees the other: a tree never makes more calls than its budget, and both may be refused
    its last.
    """
    call = begun.call

    def end(wait_s: float) -> Result | None:
        refusal = _over_tree(at, call.state)
        with at.run.lock:
            if refusal is None or call.call_id not in at.run.fold.open_calls:
                return None
            return refuse(at.ports, at.run, call, refusal, wait_s)

    try:
        refusal_result = await at.run.on_store(end)
    except BaseException:  # also of a task that was cancelled before its thread began
        at.run.owe(_cancelled_end(at, call))
        at.run.release()
        raise
    if refusal_result is None:
        return begun
    at.run.release()
    return RefusedCall(refusal_result)


def abandon(at: CallPorts, judgement: CallJudgement) -> None:
    """Leave a call that began when nobody waited for it any more, and its hold on the run."""
    if isinstance(judgement, BegunCall):
        at.run.owe(_cancelled_end(at, judgement.call), at.run.uses.end_hold)


def _cancelled_end(at: CallPorts, call: AdmittedCall) -> PendingEnd:
    nothing = CallOutcome("cancelled", "cancelled", NOTHING)
    return late_end(at, call, nothing)


class CallStates(Protocol):
    """What a call looks up: the run's state, and what its tree has spent."""

    async def present_state(self, run: OpenRun, decision_id: str | None) -> RunState:
        """Return the state as it was read last: `CallAdmission` hears of what came since."""

    async def verified_state(
        self, run: OpenRun, request: CallRequest, decision_id: str | None
    ) -> RunState:
        """Return the state after reading on, with the call's server asked where that is due."""

    async def tree_spent(self, run: OpenRun) -> Totals | None:
        """Return what the run's tree of runs has spent; None where no tree is bounded."""


class JudgedCall:
    """Has a call made that policy, its budgets and its arguments permit.

    It is judged by the state in which it begins: the run, or an ancestor, may have been routed
    meanwhile. `state` may be older: it says for which tool the arguments are checked.
    """

    def __init__(
        self, at: CallPorts, states: CallStates, state: RunState, decision_id: str | None
    ) -> None:
        self._at = at
        self._states = states
        self._state = state
        self._decision_id = decision_id

    async def __call__(self, request: CallRequest) -> Result:
        judgement = await self._judge(request)
        if isinstance(judgement, BegunCall):
            return await layers_of(self._at)(judgement.call)
        await self._at.run.wait_until_durable()
        if isinstance(judgement, KeyTaken):
            raise KeyIsTaken(judgement)
        assert isinstance(judgement, RefusedCall)  # noqa: S101 - what is outdated is judged again
        return judgement.result

    async def _judge(self, asked: CallRequest) -> CallJudgement:
        call_ports = self._at
        for _ in range(MOVED_AT_MOST):
            checked = self._state.target(asked.name)
            arguments, problems = await check_arguments(
                call_ports.ports, self._state, checked, asked.arguments
            )
            request = asked
            if arguments is not asked.arguments:
                request = replace(asked, arguments=arguments)
            state = await self._states.present_state(call_ports.run, self._decision_id)
            target = checked if state is self._state else state.target(asked.name)
            if target.tool == checked.tool:
                judgement = await self._admit(state, request, target, problems)
                if not isinstance(judgement, OutdatedCall):
                    return judgement
            self._state = await self._states.verified_state(
                call_ports.run, request, self._decision_id
            )
        raise call_ports.run.moved_error()

    async def _admit(
        self, state: RunState, request: CallRequest, target: CallTarget, problems: Sequence[str]
    ) -> CallJudgement:
        call_ports = self._at
        if request.joins and state.decided.fixed_list:
            request = replace(request, joins=False)
        tree = await self._states.tree_spent(call_ports.run)
        admission = CallAdmission(call_ports, state, request, target, problems, tree)
        judgement: CallJudgement = await call_ports.run.under_lock(
            admission.judge, partial(abandon, call_ports)
        )
        if isinstance(judgement, BegunCall) and tree is not None:
            return await within_tree(call_ports, judgement)
        return judgement


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
