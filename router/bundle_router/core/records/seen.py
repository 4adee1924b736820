"""What the branches of a run have seen: the taints that follow from its records.

Rules:
1. A call's taints are taken on at its `call.started`, by the branch of the decision that it names,
   whatever becomes of it. They are what was recorded, and what the present catalog says of it: an
   edit takes nothing back.
2. They are kept through retries, roles, steps and reloads. Only `taint.cleared` takes some away.
3. A branch begins with what the decision that it begins at has seen, with the calls under it.
4. An artifact has the taints of the call that stored it. Who names one in its arguments, or reads
   one, takes them on; what an agent wrote into arguments has the taints of its branch.
5. What the engine says that a step carries is taken on with the decision.
6. What a sub-run has seen is in its parent's records (`taint.passed`), and what a parent has seen
   in the facts of the sub-run's decisions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.taints import GOAL, cleared, may_hold
from bundle_router.core.records.call_records import (
    CallFinished,
    CallStarted,
    Record,
    RequestPassed,
    TaintCleared,
    TaintPassed,
    read_record,
)
from bundle_router.core.records.decision_record import DecisionRecord, seen_from
from bundle_router.core.values import META_SERVER, Seen

HANDLE_START: Final = "artifact:sha256:"
_HANDLE: Final = re.compile(r"artifact:sha256:([0-9a-f]{64})")
_READERS: Final = frozenset(("read_artifact", "search_artifact"))
"""The router's own tools whose results are artifacts."""
_NOTHING: Final[frozenset[str]] = frozenset()
SeenByTaint = dict[str, Seen]
CallContent = tuple[frozenset[str], frozenset[str]]
"""The taints of what a call returns, and the sinks that its arguments go to."""


class SeenLedger:
    """What each branch of one run has seen, after the records that it was given, as one catalog
    reads them. For one thread at a time.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._sorts = dict(catalog.taints)
        self.by_branch: dict[str, SeenByTaint] = {}
        """What each branch has seen."""
        self.plain_calls: dict[str, CallContent] = {}
        """What calls of tools come to whose statements have no conditions, as it is worked out."""
        self._newest = ""
        self._at: dict[str, tuple[str, SeenByTaint]] = {}
        """The branch of each decision, and what the branch saw while that was its newest."""
        self._open: dict[str, frozenset[str]] = {}
        """The taints of the calls under way, by their ids."""
        self._keyed: dict[str, frozenset[str]] = {}
        """The taints of calls with a key, by their ids."""
        self._artifacts: dict[str, frozenset[str]] = {}
        """The taints of artifacts, by their digests."""

    # --- what a branch has seen -------------------------------------------------------------------

    def seen(self, branch: str) -> tuple[Seen, ...]:
        """Return what a branch has seen, ordered by taint."""
        return _in_order(self.by_branch.get(branch, {}))

    @property
    def branches(self) -> tuple[str, ...]:
        """The branches that have decided."""
        return tuple(self.by_branch)

    def seen_at(self, branch: str, begins_at: str) -> tuple[Seen, ...]:
        """Return what a step of the branch has seen; of a branch that has no decision yet, what
        the decision has that it begins at, or else the run's present branch.
        """
        if branch in self.by_branch and not self.by_branch[branch]:
            return ()  # nearly always
        return _in_order(self._beginning(branch, begins_at))

    def artifacts(self, arguments: str) -> frozenset[str]:
        """Return the taints of the run's artifacts that a text of arguments names."""
        taints = [self._artifacts.get(sha256, _NOTHING) for sha256 in handles_in(arguments)]
        return _NOTHING.union(*taints)

    def keyed(self, call_id: str) -> frozenset[str]:
        """Return the taints of a call with a key."""
        return self._keyed.get(call_id, _NOTHING)

    def call(self, tool: str, arguments: str) -> CallContent:
        """Return what a call comes to, by its arguments as they are recorded."""
        content = self.plain_calls.get(tool)
        if content is not None:
            return content
        statements = self.catalog.statements
        if statements.looks_at_arguments(tool):
            return statements.of_call(tool, partial(may_hold, arguments=_read(arguments)))
        content = self.plain_calls[tool] = statements.returns(tool), statements.sends(tool)
        return content

    # --- records ----------------------------------------------------------------------------------

    def take_decision_line(self, line: Mapping[str, Any]) -> None:
        """Take in the line of a decision."""
        self._take_decision(
            line["decision_id"],
            line.get("branch") or "",
            line.get("parent_decision_id") or "",
            (*seen_from(line["facts"]), *carried(line["step"].get("carries") or (), line["seq"])),
        )

    def take(self, record: Record, seq: int) -> None:
        """Take in the record that follows."""
        if isinstance(record, CallStarted):
            content = self.plain_calls.get(f"{record.server}.{record.tool}")
            brings_nothing = content is not None and not content[0] and not record.returns
            if not brings_nothing or HANDLE_START in record.arguments:
                self._take_start(record, seq)
        elif isinstance(record, CallFinished):
            is_plain = not (record.returns or record.artifacts or record.key)
            if is_plain and record.server != META_SERVER:
                self._open.pop(record.call_id, None)
            else:
                self._take_end(record, seq)
        elif isinstance(record, DecisionRecord):
            sources = record.facts.seen
            if record.step.carries:
                sources = (*sources, *carried(record.step.carries, seq))
            id_ = record.decision.decision_id
            self._take_decision(id_, record.branch, record.parent_decision_id, sources)
        elif isinstance(record, RequestPassed):
            returned = frozenset(record.returns)
            if record.outcome not in ("budget", "denied"):
                returned |= self.catalog.statements.returns(record.name)
            self._take_on(record.decision_id, returned, record.name, seq)
            self._note_artifacts(record, returned)
        elif isinstance(record, TaintPassed):
            current = self.by_branch.setdefault(record.branch, {})
            for taint in record.taints:
                current.setdefault(taint, Seen(taint, record.tool, seq, record.from_run))
        elif isinstance(record, TaintCleared):
            for taint in cleared(record.taints, self._sorts):
                self.by_branch.get(record.branch, {}).pop(taint, None)

    def _take_decision(
        self, decision_id: str, branch: str, begins_at: str, seen: Iterable[Seen]
    ) -> None:
        """Take in a decision, with what its record says that the branch has seen."""
        earlier = self.by_branch.get(branch)
        if earlier is None:
            earlier = dict(self._beginning(branch, begins_at))
        current = dict(earlier)
        for source in seen:
            current.setdefault(source.taint, source)
        self.by_branch[branch] = current
        self._at[decision_id] = branch, current
        self._newest = branch

    def _take_start(self, record: CallStarted, seq: int) -> None:
        tool = record.name
        taints, _ = self.call(tool, record.arguments)
        if record.returns:
            taints |= frozenset(record.returns)
        if HANDLE_START in record.arguments:
            taints |= self.artifacts(record.arguments)
            self._note_own_artifacts(record)
        if not taints:
            return
        self._take_on(record.decision_id, taints, tool, seq)
        self._open[record.call_id] = taints
        if record.key:
            self._keyed[record.call_id] = taints

    def _note_own_artifacts(self, record: CallStarted) -> None:
        """Note the artifacts that stand for what the agent wrote into the arguments itself."""
        _, current = self._at.get(record.decision_id, ("", {}))
        for sha256 in handles_in(record.arguments):
            if sha256 not in self._artifacts:
                self._artifacts[sha256] = frozenset(current)

    def _take_end(self, record: CallFinished, seq: int) -> None:
        is_own = record.server == META_SERVER
        taints = self._open.pop(record.call_id, _NOTHING) | frozenset(record.returns)
        if is_own and record.tool in _READERS:
            taints |= self.artifacts(record.arguments)
        self._take_on(record.decision_id, taints, record.name, seq)
        if record.key and record.call_id in self._keyed:
            self._keyed[record.call_id] = taints
        if is_own:  # a program prints what its calls returned
            _, current = self._at.get(record.decision_id, ("", {}))
            taints |= frozenset(current)
        self._note_artifacts(record, taints)

    def _take_on(self, decision_id: str, taints: Iterable[str], tool: str, seq: int) -> None:
        branch, _ = self._at.get(decision_id, (None, {}))
        if branch is None:
            return
        current = self.by_branch[branch]
        for taint in taints:
            current.setdefault(taint, Seen(taint, tool, seq))

    def _note_artifacts(self, record: CallFinished | RequestPassed, taints: frozenset[str]) -> None:
        for artifact in record.artifacts:
            earlier_taints = self._artifacts.get(artifact.sha256, _NOTHING)
            self._artifacts[artifact.sha256] = earlier_taints | taints

    def _beginning(self, branch: str, begins_at: str) -> Mapping[str, Seen]:
        """Return what a branch has seen before its next decision (rule 3)."""
        branch_seen = self.by_branch.get(branch)
        if branch_seen is not None:
            return branch_seen
        if begins_at in self._at:
            return self._at[begins_at][1]
        current = "" if "" in self.by_branch else self._newest
        return self.by_branch.get(current, {})


def carried(taints: Iterable[str], seq: int) -> tuple[Seen, ...]:
    """Return what the engine hands in with the decision of that number."""
    return tuple(Seen(taint, GOAL, seq) for taint in taints)


def first_sources(*parts: Iterable[Seen]) -> tuple[Seen, ...]:
    """Return the first source of each taint in the parts, ordered by taint."""
    sources: SeenByTaint = {}
    for part in parts:
        for source in part:
            sources.setdefault(source.taint, source)
    return _in_order(sources)


def handles_in(arguments: str) -> list[str]:
    """Return the digests of the artifacts that a text of arguments names."""
    if HANDLE_START not in arguments:
        return []
    return _HANDLE.findall(arguments)


def seen_of(
    records: Iterable[Mapping[str, Any]], branch: str, catalog: Catalog
) -> tuple[Seen, ...]:
    """Return what a branch has seen after the records of its run, as a catalog reads them."""
    ledger = SeenLedger(catalog)
    for line in records:
        record = read_record(line)
        if record is not None:
            ledger.take(record, line["seq"])
    return ledger.seen(branch)


def recorded_seen(records: Iterable[Record]) -> dict[str, tuple[Seen, ...]]:
    """Return what the branches of a run have seen by its records alone, whatever a config says."""
    ledger = SeenLedger(Catalog())
    for record in records:
        seq = record.decision.seq if isinstance(record, DecisionRecord) else record.seq
        ledger.take(record, seq)
    return {branch: ledger.seen(branch) for branch in ledger.branches}


def _in_order(seen: Mapping[str, Seen]) -> tuple[Seen, ...]:
    if not seen:
        return ()
    return tuple(seen[taint] for taint in sorted(seen))


def _read(arguments: str) -> Any:
    """Return recorded arguments as a value; nothing where they are no JSON any more."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}
