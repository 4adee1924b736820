"""How a step is routed.

Rules:
1. A returned decision stands in the log, once, whichever process wrote it. A decision on an older
   state of the run is never returned: where other processes appended first, their records are taken
   in and the step is decided again.
2. A selector is asked once a step; its reply is kept for that. The reply is redacted before it is
   used, so that the record holds what was decided on.
3. The key is looked up before deciding, and again after records were taken in. Equal contents under
   one key return the recorded decision; different contents raise an error that names the
   difference.
4. If a decision must survive power loss and can't be written so, the run is opened again before its
   next use.
5. A caller's mistake is raised, and so is a log that can't be written.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.replies import admit_reply
from bundle_router.core.decide.step_policy import refuse_unknown
from bundle_router.core.records.decision_record import (
    DecisionRecord,
    decided_inputs_digest,
    step_json,
)
from bundle_router.core.records.replayed import conclude
from bundle_router.core.values import Activation, Decision, Entry, Facts, RecentStep, Reply, Step
from bundle_router.core.values.canonical import EncodedObject, time_text
from bundle_router.core.values.folders import TOP
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.open_runs import (
    MOVED_AT_MOST,
    NOTHING_ACTIVE,
    OpenRun,
    in_thread,
    recorded_decision,
)
from bundle_router.engine.run_tree import NO_LIMITS, RunTree
from bundle_router.engine.upstreams import MachineFacts
from bundle_router.errors import KeyConflict, RequestError, expect
from bundle_router.ports import Redactor

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any]]
_MAX_KEPT: Final = 1_024  # decisions that are kept beside one catalog
_NOT_COMPARED = frozenset(
    ("run_id", "key", "parent_run_id", "workspace")
)  # the last two: where the engine names one


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A step ready to be decided.

    `asked` is the engine's step, redacted; `step` has its parent and folder filled in. `inherited`
    is the activation of a first step, `derived` the one that replaces the run's own.
    """

    catalog: Catalog
    asked: Step
    step: Step
    facts: Facts
    inherited: Activation
    derived: Activation | None
    root: str
    started_ns: int


def accept_step(catalog: Catalog, redactor: Redactor, requested: Step) -> Step:
    """Return the step in a form that may be recorded.

    Raises RequestError first for a step with unknown names.
    """
    if not isinstance(requested, Step):
        raise RequestError(
            f"route() takes a Step, not {type(requested).__name__}",
            advice=(
                "from bundle_router import Step; Step(run_id=..., workflow=..., role=..., step=...)"
            ),
        )
    step = _redact_step(redactor, requested)
    if step.policy is not None:
        refuse_unknown(catalog, step.policy)
    return step


def _redact_step(redactor: Redactor, step: Step) -> Step:
    """Return the step without secrets.

    Raises RequestError where removing a secret would change what the step means or what a replay
    reads. So for a principal: it separates results, sessions and tokens, and two that are redacted
    to one text would share them.
    """
    policy = step.policy
    fixed = [
        step.run_id,
        step.parent_run_id or "",
        step.workspace or "",
        step.principal,
        step.key,
        step.branch,
    ]
    fixed.append(step.parent_decision_id or "")
    if policy is not None:
        fixed += [*(policy.allow or ()), *policy.deny]
    names = sorted(step.labels)
    free = [*names, *(step.labels[name] for name in names), *step.constraints]
    texts = [step.workflow, step.role, step.step, step.goal, *fixed, *free]
    clean = redactor.redact_many(texts)
    if clean is texts:
        return step
    workflow, role, at, goal, *rest = clean
    kept = iter(rest)
    if [next(kept) for _ in fixed] != fixed:
        raise RequestError(
            "the step's run id, parent, workspace, principal, key, branch or policy holds what"
            " looks like a secret",
            advice=(
                "records keep these as they are: use other words for them (for a principal: a name)"
            ),
        )
    names = [next(kept) for _ in names]
    labels = {name: next(kept) for name in names}
    update = {"workflow": workflow, "role": role, "step": at, "goal": goal, "labels": labels}
    return step.model_copy(update={**update, "constraints": tuple(kept)})


def prepare(
    catalog: Catalog,
    run: OpenRun,
    tree: RunTree,
    requested: Step,
    machine: MachineFacts,
    messages: Messages | None,
    started_ns: int,
) -> RouteRequest:
    """Return the step with everything that it is decided with."""
    limits = NO_LIMITS
    folder = TOP
    if (
        run.parent_id is not None
        or requested.parent_run_id is not None
        or requested.workspace is not None
    ):
        tree.refuse_other_principal(run.parent_id, requested.principal)
        limits = tree.limits_of(run, requested)
        folder = tree.folder(requested, limits)
    facts = machine.facts(requested.principal)
    changes: dict[str, Any] = {}
    if run.parent_id is not None:
        facts = replace(facts, grants=limits.grants)
        changes["parent_run_id"] = run.parent_id
    if messages is not None:
        expect("messages", messages, Sequence, "give the list of messages that the agent keeps")
        for message in messages:
            expect("a message", message, Mapping, "give the list of messages that the agent keeps")
    if requested.workspace is not None or folder != TOP:
        changes["workspace"] = folder
    return RouteRequest(
        catalog=catalog,
        asked=requested,
        step=requested.model_copy(update=changes) if changes else requested,
        facts=facts,
        inherited=(
            sticky_set.inherit(limits.activation)
            if run.parent_id and requested.inherit
            else NOTHING_ACTIVE
        ),
        derived=None if messages is None else sticky_set.from_messages(messages, catalog),
        root=run.runs.workspace,
        started_ns=started_ns,
    )


# --- the flow -------------------------------------------------------------------------------------


class OnLoop:
    """How a flow waits on an event loop."""

    in_thread = staticmethod(in_thread)

    async def under_lock(self, run: OpenRun, work: Callable[[float], T]) -> T:
        return await run.under_lock(work)

    async def until(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await coroutine


class OnThread:
    """How a flow waits on a thread without an event loop: never, so that it ends at its first step
    (`finish`).
    """

    def __init__(self, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """`wait` runs a coroutine elsewhere and returns its result."""
        self._wait = wait

    async def under_lock(self, run: OpenRun, work: Callable[[float], T]) -> T:
        return run.under_lock_sync(work)

    async def in_thread(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        return work()

    async def until(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return cast("T", self._wait(coroutine))

    @staticmethod
    def finish(flow: Coroutine[Any, Any, T]) -> T:
        """Run a flow to its end on this thread."""
        try:
            flow.send(None)
        except StopIteration as end:
            return cast("T", end.value)
        raise AssertionError("a flow on a thread was suspended")


async def route(
    how: OnLoop | OnThread, ports: EnginePorts, run: OpenRun, request: RouteRequest
) -> Decision:
    """Decide, record and return what a step may see."""
    decided = await how.under_lock(run, partial(_decide, ports, run, request, None))
    if isinstance(decided, Question):
        recent = await how.under_lock(run, partial(_recent_steps, run, request.step))
        question = _bounded(decided, run)
        reply = await how.until(ask(ports, question, recent))
        decided = await how.under_lock(run, partial(_decide, ports, run, request, reply))
        assert isinstance(decided, Decision)  # noqa: S101 - there is a reply
    await run.wait_until_durable(how.in_thread)
    return decided


def _recent_steps(run: OpenRun, step: Step, _wait_s: float) -> tuple[RecentStep, ...]:
    """Return the earlier steps that search and the model may see. The caller holds the lock."""
    return run.fold.recent(step.branch, step.principal)


def _bounded(question: Question, run: OpenRun) -> Question:
    """Return the question, for which no model is asked if the run has used up its questions."""
    most = question.catalog.settings.model.max_questions_per_run
    if most is None or run.fold.model_questions < most:
        return question
    return replace(question, may_ask_model=False)


async def ask(ports: EnginePorts, question: Question, recent: Sequence[RecentStep]) -> Reply:
    """Ask the selectors, without the run's lock.

    A failure of theirs is part of the reply, not an exception.

    The reply is redacted: the log holds exactly what the decision is made on.
    """
    if ports.selector is None:
        return Reply(question.key)
    reply_as_came = await ports.selector.select(question, recent)
    reply = replace(admit_reply(reply_as_came, ports.redactor.redact), key=question.key)
    if reply.failure == "internal" != reply_as_came.failure:
        ports.diagnostics.event(
            "error", "reply.refused", run_id=question.step.run_id, step=question.step.step
        )
    return reply


def _decide(
    ports: EnginePorts, run: OpenRun, request: RouteRequest, reply: Reply | None, wait_s: float
) -> Decision | Question:
    """Decide and record; or, without a reply, return the question to ask first.

    The caller holds the lock.
    """
    run.runs.keep_catalog(run, wait_s)
    for _ in range(MOVED_AT_MOST):
        if request.step.key or not run.fold.has_branch(request.step.branch):
            # what is looked up has to be there; else what came is heard of when we append
            run.read_on()
        if request.catalog.settings.runs.principals == "one":
            run.refuse_other_principal(request.step.principal)
        known = _known_decision(run, request)
        if known is not None:
            return known
        decision = decide_cached(
            request.catalog, request.facts, _activation(run, request), request.step
        )
        facts = request.facts
        if isinstance(decision, Question):
            if reply is None:
                return decision
            decision = conclude(decision, reply)
            facts = replace(facts, revisions=(*facts.revisions, *reply.revisions))
        record = _record(ports, run, request, facts, decision, reply)
        appended = run.append(
            "routing", record.to_json(), only_at=record.decision.seq, wait_s=wait_s
        )
        run.fold.take_all(appended.news)
        if appended.seq is not None:
            run.fold.take(record, record.decision.seq)
            return record.decision
    raise run.moved_error()


def decide_cached(
    catalog: Catalog, facts: Facts, activation: Activation, step: Step
) -> Decision | Question:
    """Return what `decide` returns, cached with the catalog for all runs.

    Of `used`, the key has what was used after the counted time. Not cached: offers, for which a use
    of 0 differs, and policies of steps, which may be big.
    """
    last = max((entry.used for entry in activation.entries), default=0)
    rows = [
        (e.id, e.origin, last - e.used, e.inherited, e.place, e.tools) for e in activation.entries
    ]
    budgets = step.max_bundles, step.max_tools, step.max_tokens
    kept: dict[object, tuple[int, Decision]] = catalog.memo.setdefault("decided", {})  # type: ignore[assignment] # ours
    key = facts, address_of(step), step.policy, budgets, *rows
    if (found := kept.get(key)) is None:
        decision = decide(catalog, facts, activation, step)
        if isinstance(decision, Question) or step.policy is not None or facts.grants:
            return decision
        if not any(
            entry.origin == "shortlist" for entry in (*activation.entries, *decision.after.entries)
        ):
            if len(kept) >= _MAX_KEPT:
                kept.clear()
            kept[key] = last, decision
        return decision
    after = found[1].after
    later = last - found[0]
    if later:
        moved = (
            Entry(e.id, e.origin, e.used + later, e.inherited, e.place, e.tools)
            for e in after.entries
        )
        after = Activation(tuple(moved))
    return replace(found[1], before=activation, after=after)


def _activation(run: OpenRun, request: RouteRequest) -> Activation:
    """Return the activation of the step's branch: its own, that of the decision it begins at, or an
    inherited one.
    """
    step = request.step
    if request.derived is not None:
        return request.derived
    if run.fold.has_branch(step.branch):
        return run.fold.activation(step.branch)
    if not run.fold.decisions:
        return request.inherited
    begins_at = _begins_at(run, step)
    if begins_at is None:
        return run.fold.activation(run.fold.current_branch)
    decided = run.fold.decided(begins_at.branch)
    is_newest = (
        decided is not None and decided.decision.decision_id == begins_at.decision.decision_id
    )
    return run.fold.activation(begins_at.branch) if is_newest else begins_at.decision.after


def _begins_at(run: OpenRun, step: Step) -> DecisionRecord | None:
    """Return the decision of this run at which the step's new branch begins; None where it names
    none.
    """
    id_ = step.parent_decision_id
    if not id_:
        return None
    if run.fold.branch_of(id_) is None:
        if run.parent_id is not None:
            return None  # one of the parent's, which bounds what the step may have
        raise RequestError(
            f"run {run.id!r} has no decision {id_!r}",
            advice="name one that route() returned for it",
        )
    return recorded_decision(run, id_)


def _known_decision(run: OpenRun, request: RouteRequest) -> Decision | None:
    """Return the decision that has the step's key; None where none has. Raises KeyConflict."""
    key = request.step.key
    seq = run.fold.keyed_decision(key) if key else None
    if seq is None:
        return None
    record = DecisionRecord.from_json(run.log.record(seq))
    wanted = _contents(request.asked, request.step)
    recorded = _contents(record.step, record.step)
    recorded |= {"branch": record.branch, "parent_decision_id": record.parent_decision_id or None}
    recorded |= {"fixed_list": record.fixed_list}
    differing = [name for name, value in wanted.items() if recorded.get(name) != value]
    if differing:
        raise KeyConflict(
            f"run {run.id!r}: key {key!r} was used for decision {record.decision.decision_id!r}"
            f" with other values of {', '.join(differing)}",
            advice="use a new key for another step, or the same step with this key",
        )
    return record.decision


def _contents(requested: Step, step: Step) -> dict[str, Any]:
    """Return the contents by which two steps of one key are compared: all that the engine set,
    parent and folder only where it named them.
    """
    contents = {
        name: getattr(step, name) for name in Step.model_fields if name not in _NOT_COMPARED
    }
    contents["labels"] = dict(contents["labels"])
    if requested.workspace is not None:
        contents["workspace"] = step.workspace
    if requested.parent_run_id is not None:
        contents["parent_run_id"] = step.parent_run_id
    return contents


def _record(
    ports: EnginePorts,
    run: OpenRun,
    request: RouteRequest,
    facts: Facts,
    decision: Decision,
    reply: Reply | None,
) -> DecisionRecord:
    """Return the record of a decision, with its place and ids. The caller holds the run's lock."""
    step = request.step
    catalog = request.catalog
    now_ns = ports.clock.monotonic_ns()
    workspace = run.workspace
    encoded_step = EncodedObject(step_json(step))
    stamped = replace(
        decision,
        run_id=run.id,
        seq=run.log.next_seq,
        decision_id=run.next_id(),
        catalog_revision=catalog.revision,
        input_digest=decided_inputs_digest(
            catalog.revision, encoded_step, facts, decision.before, reply
        ),
    )
    return DecisionRecord(
        decision=stamped,
        step=step,
        facts=facts,
        reply=reply,
        time=time_text(ports.clock.time_ns()),
        elapsed_us=(now_ns - request.started_ns) // 1000,
        monotonic_ns=now_ns,
        key=step.key,
        branch=step.branch,
        parent_decision_id=step.parent_decision_id or "",
        root=request.root if request.root != workspace else "",
        fixed_list=step.fixed_list,
        encoded_step=encoded_step,
    )
