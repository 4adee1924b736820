"""The state of a run: the fold over its records, the same for every reader.

Rules:
1. The state follows from the records alone, in their order. Nothing else that a process knows is in
   it.
2. A run has branches; a decision belongs to one (`""`: the default one) and is open until its
   branch decides again. A call belongs to the branch of the decision that it names, and changes
   that branch's activation alone.
3. The totals of calls belong to a branch, address and key (a `BudgetKey`): routing them again
   does not reset them. Calls that a budget refused, and names that were only asked for, do not
   count.
4. A key is bound by the decision that has it, or by the call that began with it. A refused call
   binds none.
5. Records are read as values. The value of a decision, the largest, is made on demand.
6. A question about a held call is part of the state (`approval_fold`); the time of a run is that of
   its newest record.
7. What a record holds belongs to the principal of the decision that it names: artifacts, keys, and
   the steps that a later step is told of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide import budgets
from bundle_router.core.decide.activation import CallEffect
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.records.call_records import (
    CallFinished,
    CallStarted,
    Record,
    RequestPassed,
    SubRunOpened,
    TaintCleared,
    TaintPassed,
    read_record,
)
from bundle_router.core.records.decision_record import BudgetKey, DecisionLine, DecisionRecord
from bundle_router.core.values import Activation, Address, Outcome, RecentStep

if TYPE_CHECKING:
    from bundle_router.core.records.approval_fold import ApprovalFold
    from bundle_router.core.records.approval_records import ApprovalRecord
    from bundle_router.core.records.seen import SeenLedger

DEFAULT_BRANCH: Final = ""
MANY_EFFECTS: Final = (
    256  # calls after which an activation is worked out, whether or not it is asked for
)
NOT_COUNTED: Final = frozenset(("search_tools", "get_tool_details", "missed"))
"""The `via` of refusals that mean a name that was only asked for."""


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """The last attempt at a call with a key.

    `started` and `finished` are the `seq` of its records; `finished` is None while it has no
    end. `principal` is whom it was made for.
    """

    started: int
    call_id: str
    name: str
    attempt: int
    writer: str
    arguments_digest: str
    principal: str = ""
    finished: int | None = None
    outcome: Outcome | None = None


@dataclass(slots=True)
class _Branch:
    """One branch of a run.

    `decided` is made from `line` on demand; `calls` are not in `activation` yet. `recent` holds
    steps, each with its principal.

    Equal `effects` are one object: one of its own for each call, kept among a burst's objects,
    would hold their memory.
    """

    line: DecisionLine
    recent: deque[tuple[str, RecentStep]]
    decided: DecisionRecord | None = None
    activation: Activation | None = None
    calls: list[CallEffect] = field(default_factory=list)
    effects: dict[tuple[object, ...], CallEffect] = field(default_factory=dict)


class RunFold:
    """The state of a run after the records it was given. For one thread at a time."""

    def __init__(self, recent_steps: int = 5, ledger: SeenLedger | None = None) -> None:
        """`ledger`: what keeps what branches have seen, where some policy row has `seen`."""
        self._recent_steps = recent_steps
        self.ledger = ledger
        self._branches: dict[str, _Branch] = {}
        self._newest = DEFAULT_BRANCH
        self._budgets: dict[str, BudgetKey] = {}
        self._spent: dict[BudgetKey, Totals] = {}
        self.open_calls: set[str] = set()
        self._key_of_call: dict[str, str] = {}
        self._decisions: dict[str, int] = {}
        self._calls: dict[str, KeyedCall] = {}
        self._results: dict[tuple[str, str], int] = {}
        self.hands_back = ""
        """`checked`, where the run hands back checked answers alone."""
        self.decisions = 0
        """How many decisions the run has."""
        self.model_questions = 0
        """For how many of them a model was asked."""
        self.principals: frozenset[str] = frozenset()
        """The principals of the run's steps."""
        self._principals: dict[str, str] = {}
        """The principal of each decision, by its id."""
        self._artifact_owners: dict[str, set[str]] = {}
        """The principals whose calls stored an artifact, by its digest."""
        self.framed_artifacts: set[str] = set()
        """The digests of artifacts of results that the model saw in a frame."""
        self._run_calls = 0
        self._run_bytes = 0
        self._run_ms = 0.0
        self.newest_time = ""
        """The latest time that a record has, in UTC."""
        self.approvals: ApprovalFold | None = None
        """The questions about held calls; None where none was ever asked."""
        self.sub_runs: tuple[str, ...] = ()
        """The runs below this one, where it is the root of a tree with a budget."""

    # --- records ----------------------------------------------------------------------------------

    def take_all(self, lines: Iterable[Mapping[str, Any]]) -> bool:
        """Take in the lines that follow.

        Return whether there were any. A line of an unknown type changes nothing.
        """
        has_new = False
        for line in lines:
            has_new = True
            if line.get("type") == DecisionRecord.type:
                self._take_decision(DecisionLine.from_json(line))
                if self.ledger is not None:
                    self.ledger.take_decision_line(line)
                self.newest_time = max(self.newest_time, str(line.get("time", "")))
            elif (record := read_record(line)) is not None:
                self.take(record, line["seq"])
        return has_new

    def take(self, record: Record, seq: int, spent: Totals | None = None) -> None:
        """Take in the record that follows, written at `seq`; `spent` is what `spent_after` said of
        it just now.
        """
        if record.time > self.newest_time:
            self.newest_time = record.time
        if isinstance(record, CallStarted):
            self._take_start(record, seq)
        elif isinstance(record, CallFinished):
            self._take_end(record, seq, spent)
        elif isinstance(record, DecisionRecord):
            branch = self._take_decision(DecisionLine.of(record))
            branch.decided = record
            branch.activation = record.decision.after
        elif isinstance(record, SubRunOpened):
            self.sub_runs = tuple(dict.fromkeys((*self.sub_runs, record.sub_run_id)))
        elif isinstance(record, RequestPassed):
            self._note_artifacts(record)
            if _is_counted(record):
                self._count(record, spent, began=True)
        elif not isinstance(record, TaintPassed | TaintCleared):
            self._take_approval(record, seq)
        if self.ledger is not None:
            self.ledger.take(record, seq)

    def _take_approval(self, record: ApprovalRecord, seq: int) -> None:
        if self.approvals is None:
            from bundle_router.core.records.approval_fold import ApprovalFold  # few runs have any

            self.approvals = ApprovalFold()
        self.approvals.take(record, seq, self._budgets)

    def _take_decision(self, made: DecisionLine) -> _Branch:
        """Open a decision in its branch, in place of the one before it."""
        name = made.budget[0]
        key = made.budget[-1]
        previous = self._branches.get(name)
        if previous is not None:
            steps = previous.recent
        else:
            steps = deque[tuple[str, RecentStep]](maxlen=self._recent_steps)
        steps.append((made.principal, made.recent))
        self._branches[name] = branch = _Branch(made, steps)
        self._newest = name
        self._budgets[made.decision_id] = made.budget
        self.decisions = len(self._budgets)
        self.model_questions += made.asked_model
        self.hands_back = made.hands_back
        self.principals |= {made.principal}
        self._principals[made.decision_id] = made.principal
        if key:
            self._decisions[key] = made.seq
        return branch

    def _take_start(self, record: CallStarted, seq: int) -> None:
        self.open_calls.add(record.call_id)
        self._note_effect(record.decision_id, CallEffect(record.bundle, record.name))
        self._count_begin(record.decision_id)
        if record.approvals and self.approvals is not None:
            self.approvals.take_start(record)
        if record.key:
            self._calls[record.key] = KeyedCall(
                seq,
                record.call_id,
                record.name,
                record.attempt,
                record.writer,
                record.arguments_digest,
                self._principals.get(record.decision_id, ""),
            )
            self._key_of_call[record.call_id] = record.key

    def _take_end(self, record: CallFinished, seq: int, spent: Totals | None) -> None:
        self._note_artifacts(record)
        began = record.call_id in self.open_calls
        self.open_calls.discard(record.call_id)
        if record.joined:
            self._note_effect(record.decision_id, CallEffect(joined=record.joined))
        key = self._key_of_call.pop(record.call_id, None)
        if key is not None:
            self._calls[key] = replace(self._calls[key], finished=seq, outcome=record.outcome)
        if record.outcome == "ok":
            principal = self._principals.get(record.decision_id, "")
            self._results[record.name, principal] = seq
        if _is_counted(record):
            self._count(record, spent, began=not began)

    def _note_artifacts(self, record: CallFinished | RequestPassed) -> None:
        principal = self._principals.get(record.decision_id, "")
        shaped = record.shaped if isinstance(record, CallFinished) else None
        is_framed = shaped is not None and shaped.is_framed
        for artifact in record.artifacts:
            self._artifact_owners.setdefault(artifact.sha256, set()).add(principal)
            if is_framed:
                self.framed_artifacts.add(artifact.sha256)

    def _note_effect(self, decision_id: str, effect: CallEffect) -> None:
        """Keep a call's effect on its branch's activation, which is computed on demand."""
        branch_name = self.branch_of(decision_id) or DEFAULT_BRANCH
        branch = self._branches.get(branch_name)
        if branch is not None:
            branch.calls.append(
                branch.effects.setdefault((effect.bundle, effect.tool, effect.joined), effect)
            )
            if len(branch.calls) >= MANY_EFFECTS:
                self.activation(branch_name)

    def _count_begin(self, decision_id: str) -> None:
        budget = self._budgets.get(decision_id)
        if budget is not None:
            self._spent[budget] = budgets.count_start(self._spent.get(budget, _NOTHING))
        self._run_calls += 1

    def _count(
        self, record: CallFinished | RequestPassed, spent: Totals | None, *, began: bool
    ) -> None:
        """Count the end of a call; `began`: count its start too, which has no record."""
        if began:
            self._count_begin(record.decision_id)
        budget = self._budgets.get(record.decision_id)
        if budget is not None:
            self._spent[budget] = spent or _add_end(self._spent.get(budget, _NOTHING), record)
        self._run_bytes += record.original_bytes
        self._run_ms += record.elapsed_ms

    def spent_after(self, record: CallFinished | RequestPassed) -> Totals:
        """Return the totals of a call's step as they will be once its end is taken in."""
        spent = self.spent(record.decision_id)
        if not _is_counted(record):
            return spent
        return _add_end(
            spent if record.call_id in self.open_calls else budgets.count_start(spent), record
        )

    # --- where it stands --------------------------------------------------------------------------

    def has_branch(self, name: str) -> bool:
        return name in self._branches

    def branch_of(self, decision_id: str) -> str | None:
        """Return the branch of a decision of this run, open or not; None where the run has no such
        decision.
        """
        budget = self._budgets.get(decision_id)
        return budget[0] if budget is not None else None

    def address(self, decision_id: str) -> Address:
        """Return the address of a decision's step. Raises KeyError where the run has no such
        decision.
        """
        return self._budgets[decision_id][1]

    def budget_key(self, decision_id: str) -> BudgetKey | None:
        """Return what the budget of a decision belongs to; None where it is not in the run."""
        return self._budgets.get(decision_id)

    @property
    def current_branch(self) -> str:
        """The branch to use where none is named: the default one, or the last that decided if that
        never did.
        """
        if DEFAULT_BRANCH in self._branches:
            return DEFAULT_BRANCH
        return self._newest

    def decided(self, branch: str) -> DecisionRecord | None:
        """Return the newest decision of a branch; None where it has none."""
        branch_state = self._branches.get(branch)
        if branch_state is None:
            return None
        if branch_state.decided is None:
            branch_state.decided = branch_state.line.record()
        return branch_state.decided

    def activation(self, branch: str) -> Activation:
        """Return the activation of a branch: the one that its last decision left, with its calls'
        effects since.
        """
        branch_state = self._branches.get(branch)
        if branch_state is None:
            return Activation()
        if branch_state.activation is None:
            branch_state.activation = branch_state.line.activation()
        if branch_state.calls:
            branch_state.activation = sticky_set.resume_activation(
                branch_state.activation, branch_state.calls
            )
            branch_state.calls.clear()
            branch_state.effects.clear()
        return branch_state.activation

    def recent(self, branch: str, principal: str) -> tuple[RecentStep, ...]:
        """Return those of the last steps of a branch that were for a principal, oldest first."""
        branch_state = self._branches.get(branch)
        if branch_state is None:
            return ()
        return tuple(step for owner, step in branch_state.recent if owner == principal)

    def may_read(self, sha256: str, principal: str) -> bool:
        """Return whether an artifact of the run is a principal's: one that its own call stored, or
        any where the run has no other principal.
        """
        if self.principals <= {principal}:
            return True
        return principal in self._artifact_owners.get(sha256, ())

    @property
    def run_spent(self) -> Totals:
        """The totals of all calls of the run."""
        return Totals(self._run_calls, self._run_bytes, self._run_ms)

    def spent(self, decision_id: str) -> Totals:
        """Return the totals of the calls of a decision's budget."""
        budget = self._budgets.get(decision_id)
        if budget is None:
            return _NOTHING
        return self._spent.get(budget, _NOTHING)

    def keyed_decision(self, key: str) -> int | None:
        """Return the `seq` of the decision with a key; None where there is none."""
        return self._decisions.get(key)

    def last_result(self, tool: str, principal: str) -> int | None:
        """Return the `seq` of the last end of a call of a tool that was made for a principal and
        succeeded.
        """
        return self._results.get((tool, principal))

    def keyed_call(self, key: str) -> KeyedCall | None:
        """Return the last attempt at the call with a key; None where none began."""
        return self._calls.get(key)


_NOTHING: Final = Totals()


def _is_counted(record: CallFinished | RequestPassed) -> bool:
    """Return whether a budget counts the record (rule 3)."""
    only_asked = isinstance(record, CallFinished) and record.via in NOT_COUNTED
    return record.outcome != "budget" and not only_asked


def _add_end(spent: Totals, record: CallFinished | RequestPassed) -> Totals:
    """Return the totals after the end of a call that began earlier."""
    if isinstance(record, RequestPassed) and record.method.endswith("/list"):
        return budgets.add_call(
            spent, record.original_bytes, record.elapsed_ms
        )  # a client asks again as it comes back
    call_hash = budgets.asked_hash(record.name, record.arguments)
    answered = hash((record.outcome, record.code, record.result))
    return budgets.count_end(spent, call_hash, answered, record.original_bytes, record.elapsed_ms)
