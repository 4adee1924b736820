"""How a tool is called.

Rules:
1. `call.started` is on disk before the tool runs, so a crash leaves evidence. `call.finished` is on
   disk before the result is returned, also when the result can't be shown or stored.
2. A call may use only what its decision showed. Policy judges it again by the tool's canonical
   name, with fresh facts and the ancestors' present limits. Nothing that improved since the
   decision widens it.
3. A key makes a call happen once (`idempotency`). Its recorded result is refused where policy does
   not permit the tool under the decision that the call names.
4. Records are bounded. Of a refused call's arguments the size, the digest and the beginning are
   kept.
5. Budgets bound the calls of a step, of a run and of a tree of runs (`core.decide.budgets`), and
   count what has begun (`reservations`: also what is recorded only at its end).
6. A failure that an agent may see is returned as a `Result`. A caller's mistake is raised, and so
   is a log that can't be written.

A call passes through layers, each of which has the next one do the rest: `idempotency.OnceByKey`,
for a call with a key; `JudgedCall`, which has `CallAdmission` judge and begin it; then those of
`made_calls`. `call_refusals` has the sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bundle_router.core.decide import budgets
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.records.call_records import CallStarted
from bundle_router.core.records.fold import KeyedCall
from bundle_router.core.results.reusable_results import may_repeat
from bundle_router.core.servers.transport.pass_through import Client, narrow_client, passes
from bundle_router.core.servers.transport.tool_servers import CallOutcome, Scope
from bundle_router.core.values.canonical import time_text
from bundle_router.engine.arguments import check_arguments
from bundle_router.engine.call_refusals import (
    closed_folder,
    malformed_arguments,
    missing_tool,
    refuse,
    unfit_arguments,
    withheld_result,
)
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.idempotency import KeyIsTaken, may_end, note_begun, same_arguments
from bundle_router.engine.made_calls import (
    MAY_HAVE_HAPPENED,
    NOTHING,
    call_fields,
    cancelled_end,
    joined_after,
    late_end,
    layers_of,
    store,
)
from bundle_router.engine.results import (
    NO_TAINTS,
    AdmittedCall,
    BegunCall,
    CallJudgement,
    CallRequest,
    Joined,
    KeyTaken,
    OutdatedCall,
    Refusal,
    RefusedCall,
    Result,
    WaitingCall,
)
from bundle_router.engine.run_records import MOVED_AT_MOST, OpenRun
from bundle_router.engine.surface import CallTarget, RunState, why_withheld
from bundle_router.errors import StorageError

if TYPE_CHECKING:
    from bundle_router.engine.holds import Permission


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
        self._taints = NO_TAINTS

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
        catalog = self._state.surface.catalog
        has_rows = catalog.approvals and catalog.approvals_of(self._target.tool)
        if has_rows or run.fold.approvals is not None:
            return self._judge_held(refusal, attempt, wait_s)
        if refusal is None:
            return self._begin(attempt, wait_s)
        return self._refuse(refusal, attempt, wait_s)

    def _refuse(self, refusal: Refusal, attempt: int, wait_s: float) -> RefusedCall | None:
        """Record the refusal; None where others wrote first."""
        run = self._run
        if run.read_on():
            return None
        return RefusedCall(refuse(self._at.ports, run, self._call(attempt), refusal, wait_s))

    def _judge_held(
        self, refusal: Refusal | None, attempt: int, wait_s: float
    ) -> CallJudgement | None:
        """Return what the call comes to in a run whose calls may wait for somebody's word."""
        from bundle_router.engine.holds import CallHold, Permission  # few runs need it

        hold = CallHold(self._at, self._state, self._request, self._target)
        hold.refuse_other_call()
        if refusal is not None and not (_is_repeated(refusal) and hold.is_granted()):
            return self._refuse(refusal, attempt, wait_s)
        outcome = hold.judge(wait_s)
        if outcome is None or isinstance(outcome, WaitingCall):
            return outcome
        if isinstance(outcome, Permission):
            return self._begin(attempt, wait_s, outcome)
        return self._refuse(outcome, attempt, wait_s)

    # --- its key ----------------------------------------------------------------------------------

    def _is_bound(self, known: KeyedCall) -> bool:
        """Return whether the key stands for the call that has it."""
        if known.outcome == "busy":
            return False
        if not self._is_same(known):
            return True
        idempotent = may_repeat(self._state.catalog, self._target.tool)
        if known.finished is None:
            return not idempotent or may_end(self._run, known)
        return not (idempotent and known.outcome in MAY_HAVE_HAPPENED)

    def _is_same(self, known: KeyedCall) -> bool:
        return (
            self._has_tool(known)
            and known.principal == self._state.step.principal
            and same_arguments(known, self._request)
        )

    def _has_tool(self, known: KeyedCall) -> bool:
        name = self._request.name
        return known.name in (self._target.tool, self._state.surface.canonical.get(name, name))

    def _taken(self, known: KeyedCall, wait_s: float) -> CallJudgement:
        """Return that the key is taken; a refusal where policy does not permit the result."""
        withheld = why_withheld(self._state, known.name) if self._is_same(known) else None
        if withheld is not None:
            call = self._call(known.attempt + 1)
            refusal = withheld_result(known.name, *withheld)
            return RefusedCall(refuse(self._at.ports, self._run, call, refusal, wait_s))
        if self._run.fold.ledger is not None:
            from bundle_router.engine.call_taints import take_on_result  # few configs look at them

            take_on_result(self._at, self._state, known, wait_s)
        same_principal = known.principal == self._state.step.principal
        return KeyTaken(known, self._has_tool(known), same_principal)

    # --- its start --------------------------------------------------------------------------------

    def _refusal(self) -> Refusal | None:
        state = self._state
        tool = self._target.tool
        arguments = self._request.arguments
        over = over_budget(self._run, state, tool, arguments.text, self._tree)
        if over is not None:
            return over
        if self._target.server is None:
            return missing_tool(state, self._target)
        if self._run.fold.ledger is not None:
            from bundle_router.engine.call_taints import taints_of_call  # few configs look at them

            self._taints = taints_of_call(self._at, state, self._target, arguments.text)
            if self._taints.refusal is not None:
                return self._taints.refusal
        if arguments.wrong is not None:
            return malformed_arguments(tool, *arguments.wrong)
        if self._problems:
            return unfit_arguments(state, tool, self._problems)
        if state.folder is None:
            return closed_folder(state)
        return None

    def _begin(
        self, attempt: int, wait_s: float, permission: Permission | None = None
    ) -> BegunCall | None:
        """Record the start; None where others wrote first. `permission`: what lifted its hold."""
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
            returns=self._taints.returns,
            sends=self._taints.sends,
            would=(*self._taints.would, *(permission.would if permission is not None else ())),
            approvals=permission.uses if permission is not None else (),
        )
        if self._taints.returns and run.parent_id is not None:
            # Before the start: a parent may be too careful, and never too free.
            content = (record.name, "", frozenset(record.returns))
            self._at.tree.pass_taints(run, self._state.decided, content, wait_s)
        call = self._call(attempt, record, self._joined())
        if record.writer:
            note_begun(run, record)
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


def _is_repeated(refusal: Refusal) -> bool:
    """Return whether a call is refused because the same one gave the same answer too often."""
    return refusal[1] == "repeated_calls"


def over_tree(at: CallPorts, state: RunState) -> Refusal | None:
    """Return the refusal of a call that its tree of runs, which counts it already, has no room for.

    Blocks.
    """
    tree_totals = at.tree.spent(at.run)
    over = budgets.over_total(
        state.catalog.settings.limits, Totals(), replace(tree_totals, calls=tree_totals.calls - 1)
    )
    return ("budget", *over) if over is not None else None


async def within_tree(at: CallPorts, begun: BegunCall) -> CallJudgement:
    """Check once more whether the tree of runs has room for a call, now that its start is recorded
    and other runs can see it; else end the call as refused. When two runs begin a call at once, at
    least one sees the other: a tree never makes more calls than its budget, and both may be refused
    its last.
    """
    call = begun.call

    def end(wait_s: float) -> Result | None:
        refusal = over_tree(at, call.state)
        with at.run.lock:
            if refusal is None or call.call_id not in at.run.fold.open_calls:
                return None
            return refuse(at.ports, at.run, call, refusal, wait_s)

    try:
        refusal_result = await at.run.on_store(end)
    except BaseException:  # also of a task that was cancelled before its thread began
        at.run.owe(cancelled_end(at, call))
        at.run.release()
        raise
    if refusal_result is None:
        return begun
    at.run.release()
    return RefusedCall(refusal_result)


def abandon(at: CallPorts, judgement: CallJudgement) -> None:
    """Leave a call that began when nobody waited for it any more, and its hold on the run."""
    if isinstance(judgement, BegunCall):
        at.run.owe(cancelled_end(at, judgement.call), at.run.uses.end_hold)


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
        if isinstance(judgement, WaitingCall):
            await store(self._at.run, request.arguments.blobs)
            return judgement.result
        assert isinstance(judgement, RefusedCall)  # noqa: S101 - what is outdated is judged again
        return judgement.result

    async def _judge(self, asked: CallRequest) -> CallJudgement:
        call_ports = self._at
        for _ in range(MOVED_AT_MOST):
            checked = self._state.target(asked.name)
            arguments, problems = await check_arguments(call_ports.ports, checked, asked.arguments)
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
