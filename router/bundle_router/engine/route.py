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
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide.activation import rename_bundles
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.decide.replies import admit_reply
from bundle_router.core.decide.step_policy import refuse_unknown, refuse_unknown_taints
from bundle_router.core.records.decision_record import (
    DecisionRecord,
    decided_inputs_digest,
    facts_json,
    step_json,
)
from bundle_router.core.values import (
    Activation,
    Decision,
    Entry,
    Facts,
    RecentStep,
    Reply,
    Seen,
    Step,
)
from bundle_router.core.values.canonical import EncodedObject, time_text
from bundle_router.core.values.folders import TOP
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.open_runs import NOTHING_ACTIVE
from bundle_router.engine.run_records import MOVED_AT_MOST, OpenRun, in_thread, recorded_decision
from bundle_router.engine.run_tree import NO_LIMITS, RunTree
from bundle_router.engine.surface import Surface
from bundle_router.engine.upstreams import MachineFacts
from bundle_router.errors import KeyConflict, RequestError, expect
from bundle_router.ports import Redactor

if TYPE_CHECKING:
    from bundle_router.core.records.seen import SeenLedger

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any]]
_NOT_COMPARED = frozenset(
    ("run_id", "key", "parent_run_id", "workspace")
)  # the last two: where the engine names one


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A step ready to be decided.

    `asked` is the engine's step, redacted; `step` has its parent and folder filled in. `inherited`
    is the activation of a first step, `derived` the one that replaces the run's own.
    """

    decisions: DecisionCache
    asked: Step
    step: Step
    facts: Facts
    inherited: Activation
    derived: Activation | None
    root: str
    started_ns: int

    @property
    def catalog(self) -> Catalog:
        """The catalog that the step is decided under."""
        return self.decisions.plans.catalog


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
    if step.carries:
        refuse_unknown_taints(catalog, step.carries, "carries")
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
    workflow, role, step_name, goal, *rest = clean
    clean_texts = iter(rest)
    if [next(clean_texts) for _ in fixed] != fixed:
        raise RequestError(
            "the step's run id, parent, workspace, principal, key, branch or policy holds what"
            " looks like a secret",
            advice=(
                "records keep these as they are: use other words for them (for a principal: a name)"
            ),
        )
    names = [next(clean_texts) for _ in names]
    labels = {name: next(clean_texts) for name in names}
    update = {"workflow": workflow, "role": role, "step": step_name, "goal": goal, "labels": labels}
    return step.model_copy(update={**update, "constraints": tuple(clean_texts)})


def prepare(
    decisions: DecisionCache,
    run: OpenRun,
    tree: RunTree,
    requested: Step,
    machine: MachineFacts,
    derived: Activation | None,
    started_ns: int,
) -> RouteRequest:
    """Return the step with everything that it is decided with.

    `derived` replaces the run's own activation (see `derive_activation`).
    """
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
    if requested.hands_back and run.parent_id is None:
        raise RequestError(
            f"run {run.id!r} has no parent that an answer could be handed back to",
            advice="name the parent: Step(parent_run_id=...), or leave hands_back out",
        )
    facts = machine.facts(requested.principal)
    changes: dict[str, Any] = {}
    if run.parent_id is not None:
        facts = replace(facts, grants=limits.grants, seen=limits.seen)
        changes["parent_run_id"] = run.parent_id
    if requested.workspace is not None or folder != TOP:
        changes["workspace"] = folder
    return RouteRequest(
        decisions=decisions,
        asked=requested,
        step=requested.model_copy(update=changes) if changes else requested,
        facts=facts,
        inherited=(
            sticky_set.inherit(limits.activation)
            if run.parent_id and requested.inherit
            else NOTHING_ACTIVE
        ),
        derived=derived,
        root=run.runs.workspace,
        started_ns=started_ns,
    )


def derive_activation(surface: Surface, messages: Messages | None) -> Activation | None:
    """Return the activation that the agent's own messages come to; None without messages."""
    if messages is None:
        return None
    expect("messages", messages, Sequence, "give the list of messages that the agent keeps")
    for message in messages:
        expect("a message", message, Mapping, "give the list of messages that the agent keeps")
    return sticky_set.from_messages(messages, surface.catalog, surface.canonical)


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
    limit = question.catalog.settings.model.max_questions_per_run
    if limit is None or run.fold.model_questions < limit:
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
        recorded = _known_decision(run, request)
        if recorded is not None:
            return recorded
        if run.fold.decisions and request.step.hands_back != run.fold.hands_back:
            raise _other_hand_back(run)
        facts = request.facts
        if run.fold.ledger is not None:
            seen = _seen(run.fold.ledger, run, request)
            if seen != facts.seen:
                facts = replace(facts, seen=seen)
        decision = request.decisions.decide(facts, _activation(run, request), request.step)
        if isinstance(decision, Question):
            if reply is None:
                return decision
            from bundle_router.core.records.replayed import conclude

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


# --- what was decided before ----------------------------------------------------------------------

MAX_KEPT: Final = 1_024
"""Decisions that are kept at most; then all are dropped."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A decision, with the time and the next place of the activation it was taken on."""

    decision: Decision
    time: int
    next_place: int


class DecisionCache:
    """Decides under one catalog, for all runs; what comes to the same is decided once.

    What is kept is what `decide` returns, whatever was kept before. The time of an activation and
    the places of its entries only ever rise, and nothing but the activation that is left depends on
    them. So they are no part of a key: what is kept is moved to the time and the places of the run
    that asks.

    Not kept: questions, which depend on the step's words; offers, for which a use of 0 is another
    than a first one; decisions under policies of steps or ancestors, which may hold thousands of
    patterns and be others at each step; and what follows tools that were asked for, since their
    places bound each other.

    It is safe to share between threads.

        decisions = DecisionCache(Plans(catalog))
        decision_or_question = decisions.decide(facts, activation, step)
    """

    def __init__(self, plans: Plans) -> None:
        self.plans = plans
        self._kept: dict[object, _Kept] = {}

    def decide(self, facts: Facts, activation: Activation, step: Step) -> Decision | Question:
        """Return what `decide` returns."""
        if step.policy is not None or facts.grants or not _is_plain(activation):
            return decide(self.plans, facts, activation, step)
        time = max((entry.used for entry in activation.entries), default=0)
        budgets = (step.max_bundles, step.max_tools, step.max_tokens)
        entries = [(e.id, e.origin, time - e.used, e.inherited) for e in activation.entries]
        key = (facts, address_of(step), budgets, *entries)
        cached = self._kept.get(key)
        if cached is not None:
            return self._moved(cached, activation, time)
        decision = decide(self.plans, facts, activation, step)
        if isinstance(decision, Decision) and _is_plain(decision.after):
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = _Kept(decision, time, _next_place(activation))
        return decision

    def _moved(self, kept: _Kept, activation: Activation, time: int) -> Decision:
        """Return the decision on this activation, which differs by its time and places alone."""
        if self.plans.catalog.aliases:
            renamed = rename_bundles(activation, self.plans.catalog.id_today)
        else:
            renamed = activation
        places = {entry.id: entry.place for entry in renamed.entries}
        later = time - kept.time
        further = _next_place(activation) - kept.next_place
        entries = []
        for entry in kept.decision.after.entries:
            is_new = entry.place >= kept.next_place
            place = entry.place + further if is_new else places[entry.id]
            entries.append(
                Entry(entry.id, entry.origin, entry.used + later, entry.inherited, place)
            )
        return replace(kept.decision, before=activation, after=Activation(tuple(entries)))


def _is_plain(activation: Activation) -> bool:
    """Return whether no entry is an offer, or has tools that were asked for."""
    return not any(entry.origin == "shortlist" or entry.tools for entry in activation.entries)


def _next_place(activation: Activation) -> int:
    """Return the place that a new entry of an activation without asked-for tools gets."""
    return max((entry.place for entry in activation.entries), default=-1) + 1


# --- the activation and the key that a step comes with --------------------------------------------


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
    if is_newest:
        return run.fold.activation(begins_at.branch)
    return begins_at.decision.after


def _seen(ledger: SeenLedger, run: OpenRun, request: RouteRequest) -> tuple[Seen, ...]:
    """Return what the step's branch has seen, and what its engine and its ancestors bring in."""
    step = request.step
    own = ledger.seen_at(step.branch, step.parent_decision_id or "")
    if not step.carries and not request.facts.seen:
        return own
    from bundle_router.core.records.seen import carried, first_sources

    return first_sources(
        own,
        carried(step.carries, run.log.next_seq),
        request.facts.seen,
    )


def _other_hand_back(run: OpenRun) -> RequestError:
    said = f"hands_back={run.fold.hands_back!r}"
    return RequestError(
        f"the steps of run {run.id!r} say {said}, and this one does not",
        advice="say the same in all steps of a run: what one step read, the next one knows",
    )


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
    requested = _contents(request.asked, request.step)
    recorded = _contents(record.step, record.step)
    recorded |= {"branch": record.branch, "parent_decision_id": record.parent_decision_id or None}
    recorded |= {"fixed_list": record.fixed_list, "approvals": record.approvals or "ask"}
    differing = [name for name, value in requested.items() if recorded.get(name) != value]
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
    encoded_facts = EncodedObject(facts_json(facts))
    stamped = replace(
        decision,
        run_id=run.id,
        seq=run.log.next_seq,
        decision_id=run.next_id(),
        catalog_revision=catalog.revision,
        input_digest=decided_inputs_digest(
            catalog.revision, encoded_step, encoded_facts, decision.before, reply
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
        approvals="refuse" if step.approvals == "refuse" else "",
        encoded_step=encoded_step,
        encoded_facts=encoded_facts,
    )
