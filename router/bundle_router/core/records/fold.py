"""Where a run stands: the fold over its records, the same for whoever reads them.

Rules:
1. Everything here follows from the records, in their order. What a process knows besides is not in it.
2. A run has branches; a decision belongs to one (`""`: the default one) and is open until its branch decides again. A
   call belongs to the branch of the decision it names, and moves that branch's activation alone.
3. What calls have spent belongs to an address (branch, workflow, role, step, key): routing it again does not give it
   back. What was refused for want of budget, and names that were only asked for, count for nothing.
4. A key is bound by the decision that carries it, or by the call that began with it. A refused call binds none.
5. Values of a decision are made when they are asked for: most records are only passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide import budgets
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.models import Activation, Decision, Facts, Outcome, RecentStep, Step
from bundle_router.core.records.decision_record import DecisionRecord, activation_from
from bundle_router.dataclass import dataclass, field, replace

DEFAULT_BRANCH: Final = ""
NOT_COUNTED: Final = frozenset(("search_tools", "get_tool_details", "missed"))
"""What a refusal came through (`via`) where it stands for a name that was only asked for."""

BudgetKey = tuple[str, str, str, str, str]
"""What a budget belongs to: branch, workflow, role, step and key."""


@dataclass(frozen=True, slots=True)
class DecidedStep:
    """A decision and what it was taken on. `key` and `parent_decision_id` are empty where the engine gave none; `root`
    is the workspace it was taken in where that is not the run's first."""

    step: Step
    decision: Decision
    facts: Facts
    branch: str = DEFAULT_BRANCH
    key: str = ""
    parent_decision_id: str = ""
    root: str = ""
    fixed_list: bool = False

    @property
    def id(self) -> str:
        return self.decision.decision_id

    @property
    def address(self) -> BudgetKey:
        return address_of(self.step, self.branch, self.key)

    @classmethod
    def of(cls, record: DecisionRecord) -> DecidedStep:
        return cls(**{name: getattr(record, name) for name in cls.__match_args__})


def address_of(step: Step, branch: str, key: str) -> BudgetKey:
    """Return the address that the budget of a step belongs to."""
    return branch, step.workflow, step.role, step.step, key


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """The last attempt at a call that was given a key. `started` and `finished` are the `seq` of its records; the
    second is None while it has no end."""

    started: int
    call_id: str
    name: str
    attempt: int
    writer: str
    arguments_digest: str
    finished: int | None = None
    outcome: Outcome | None = None


@dataclass(slots=True)
class _Branch:
    """One branch of a run. `decided` is made of `record` when it is asked for."""

    recent: deque[RecentStep]
    record: Mapping[str, Any] | None = None
    decided: DecidedStep | None = None
    activation: Activation | None = None
    calls: list[Mapping[str, Any]] = field(default_factory=list)


class RunFold:
    """The state of a run after the records it was given. For one thread at a time."""

    def __init__(self, recent_steps: int = 5) -> None:
        self._recent_steps = recent_steps
        self._branches: dict[str, _Branch] = {}
        self._newest = DEFAULT_BRANCH
        self._addresses: dict[str, BudgetKey] = {}
        self._spent: dict[BudgetKey, Totals] = {}
        self._open_calls: set[str] = set()
        self._key_of_call: dict[str, str] = {}
        self._decisions: dict[str, int] = {}
        self._calls: dict[str, KeyedCall] = {}
        self.principals: frozenset[str] = frozenset()
        """Whom steps of the run were taken for."""
        self.run_spent = Totals()
        """What all calls of the run have come to."""
        self.sub_runs: tuple[str, ...] = ()
        """The runs below this one, where it is the root of a tree whose budget is bounded."""

    # --- records ---------------------------------------------------------------------------------------------------

    def take_all(self, records: Iterable[Mapping[str, Any]]) -> bool:
        """Take in the records that follow; whether there were any."""
        any_came = False
        for record in records:
            self.take(record)
            any_came = True
        return any_came

    def take(self, record: Mapping[str, Any], spent: Totals | None = None) -> None:
        """Take in the record that follows. One of a type that is not known changes nothing. `spent` is what
        `spent_after` said of it, where nothing came in between."""
        kind = record.get("type")
        if kind == "route.decided":
            self._take_decision(record)
        elif kind == "call.started":
            self._take_start(record)
        elif kind == "call.finished":
            self._take_end(record, spent)
        elif kind == "request.passed":
            if record["outcome"] != "budget":
                self._count(record, began=True, spent=spent)
        elif kind == "sub_run.opened":
            self.sub_runs = tuple(dict.fromkeys((*self.sub_runs, record["sub_run_id"])))

    def take_own(self, record: DecisionRecord) -> None:
        """Take in a decision that was just written here: as `take`, without reading it back."""
        step, decided = record.step, DecidedStep.of(record)
        self.principals |= {step.principal}
        recent = RecentStep(step.role, step.step, step.goal, tuple(record.decision.bundle_ids))
        self._note_decision(recent, decided.address, record.decision_id, record.seq)
        self._branches[record.branch].decided = decided
        self._branches[record.branch].activation = record.decision.after

    def _take_decision(self, record: Mapping[str, Any]) -> None:
        step, name = record["step"], record.get("branch") or DEFAULT_BRANCH
        self.principals |= {record.get("principal", "")}
        address = (name, step["workflow"], step["role"], step["step"], record.get("key") or "")
        ids = tuple(row["id"] for row in record["bundles"])
        recent = RecentStep(step["role"], step["step"], step.get("goal", ""), ids)
        self._note_decision(recent, address, record["decision_id"], record["seq"])
        self._branches[name].record = record

    def _note_decision(self, recent: RecentStep, address: BudgetKey, decision_id: str, seq: int) -> None:
        """Open a decision in its branch, in place of the one before it."""
        name, key = address[0], address[-1]
        before = self._branches.get(name)
        steps = before.recent if before is not None else deque[RecentStep](maxlen=self._recent_steps)
        steps.append(recent)
        self._branches[name] = _Branch(steps)
        self._newest = name
        self._addresses[decision_id] = address
        if key:
            self._decisions[key] = seq

    def _take_start(self, record: Mapping[str, Any]) -> None:
        self._open_calls.add(record["call_id"])
        self._note_activity(record)
        self._begin(record["decision_id"])
        key = record.get("key")
        if key:
            name = f"{record['server']}.{record['tool']}"
            digest = record.get("arguments_digest", "")
            call = KeyedCall(
                record["seq"], record["call_id"], name, record.get("attempt", 1), record.get("writer", ""), digest
            )
            self._calls[key] = call
            self._key_of_call[call.call_id] = key

    def _take_end(self, record: Mapping[str, Any], spent: Totals | None) -> None:
        began = record["call_id"] in self._open_calls
        self._open_calls.discard(record["call_id"])
        self._note_activity(record)
        key = self._key_of_call.pop(record["call_id"], None)
        if key is not None:
            self._calls[key] = replace(self._calls[key], finished=record["seq"], outcome=record["outcome"])
        if record["outcome"] == "budget" or record.get("via") in NOT_COUNTED:
            return
        self._count(record, began=not began, spent=spent)

    def _note_activity(self, record: Mapping[str, Any]) -> None:
        """Keep a call for its branch: what it does to the activation is worked out when that is asked for."""
        address = self._addresses.get(record["decision_id"])
        branch = self._branches.get(address[0] if address is not None else DEFAULT_BRANCH)
        if branch is not None and (record["type"] == "call.started" or record.get("joined")):
            branch.calls.append(record)

    def _begin(self, decision_id: str) -> None:
        address = self._addresses.get(decision_id)
        if address is not None:
            self._spent[address] = budgets.begun(self._spent.get(address, _NOTHING))
        self.run_spent = budgets.begun(self.run_spent)

    def _count(self, record: Mapping[str, Any], *, began: bool, spent: Totals | None = None) -> None:
        """Count the end of a call; `began`: its beginning too, which has no record of its own."""
        if began:
            self._begin(record["decision_id"])
        size, elapsed_ms = _size(record), record.get("elapsed_ms", 0.0)
        address = self._addresses.get(record["decision_id"])
        if address is not None:
            self._spent[address] = spent or _ended(self._spent.get(address, _NOTHING), record)
        self.run_spent = budgets.added(self.run_spent, size, elapsed_ms)

    def spent_after(self, record: Mapping[str, Any]) -> Totals:
        """Return what the step of a call will have come to once its end is taken in."""
        address = self._addresses.get(record["decision_id"])
        spent = self._spent.get(address, _NOTHING) if address is not None else _NOTHING
        if record["outcome"] == "budget" or record.get("via") in NOT_COUNTED:
            return spent
        spent = spent if record["call_id"] in self._open_calls else budgets.begun(spent)
        return _ended(spent, record)

    # --- where it stands -------------------------------------------------------------------------------------------

    @property
    def has_decided(self) -> bool:
        return bool(self._branches)

    def has_branch(self, name: str) -> bool:
        return name in self._branches

    def branch_of(self, decision_id: str) -> str | None:
        """Return the branch of a decision of this run, open or not; None where the run has no such decision."""
        address = self._addresses.get(decision_id)
        return address[0] if address is not None else None

    @property
    def current_branch(self) -> str:
        """The branch that is meant where none is named: the default one, or the last that decided if that never did."""
        return DEFAULT_BRANCH if DEFAULT_BRANCH in self._branches else self._newest

    def decided(self, branch: str) -> DecidedStep | None:
        """Return the newest decision of a branch; None where it has none."""
        at = self._branches.get(branch)
        if at is None:
            return None
        if at.decided is None and at.record is not None:
            at.decided = DecidedStep.of(DecisionRecord.from_json(at.record))
        return at.decided

    def activation(self, branch: str) -> Activation:
        """Return what is sticky in a branch: what its last decision left, and what its calls made of it since."""
        at = self._branches.get(branch)
        if at is None:
            return Activation()
        if at.activation is None:
            rows = at.record["activation"]["after"] if at.record is not None else []
            at.activation = activation_from(rows)
        if at.calls:
            at.activation = sticky_set.resumed(at.activation, at.calls)
            at.calls.clear()
        return at.activation

    def recent(self, branch: str) -> tuple[RecentStep, ...]:
        """Return the last steps of a branch, oldest first."""
        at = self._branches.get(branch)
        return tuple(at.recent) if at is not None else ()

    def spent(self, address: BudgetKey) -> Totals:
        """Return what calls at an address have come to."""
        return self._spent.get(address, _NOTHING)

    def keyed_decision(self, key: str) -> int | None:
        """Return the `seq` of the decision that carries a key; None where there is none."""
        return self._decisions.get(key)

    def keyed_call(self, key: str) -> KeyedCall | None:
        """Return the last attempt at the call that carries a key; None where none began."""
        return self._calls.get(key)


_NOTHING: Final = Totals()


def _size(record: Mapping[str, Any]) -> int:
    """Return the bytes of a result as it came."""
    shaped = record.get("shaped") or record
    size: int = shaped.get("original_bytes") or 0
    return size


def _ended(spent: Totals, record: Mapping[str, Any]) -> Totals:
    """Return what has been spent after a call that began has come to the end that a record tells of."""
    if str(record.get("method")).endswith("/list"):  # as a client asks for it again each time it comes back
        return budgets.added(spent, _size(record), record.get("elapsed_ms", 0.0))
    name = f"{record['server']}.{record.get('tool') or record.get('method')}"
    asked = budgets.asked_hash(name, record.get("arguments"))
    answered = hash((record["outcome"], record["code"], record.get("result")))
    return budgets.ended(spent, asked, answered, _size(record), record.get("elapsed_ms", 0.0))


__all__ = ["DEFAULT_BRANCH", "BudgetKey", "DecidedStep", "KeyedCall", "RunFold", "address_of"]
