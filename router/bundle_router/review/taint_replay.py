"""What rows with `seen` would have said of recorded runs: before they are enforced, and of runs
that were made before there was any such row.

Rules:
1. What a branch had seen is computed from the run's own records, as the edited config reads them:
   its statements, and what the records say themselves. Each run is read by itself: what a sub-run
   would have passed to its parent counts only where a record says so.
2. Calls are judged that were made, in the order in which they began. Whether a refused one would
   have changed what followed, nobody can say.
3. Rows count alike whether or not they are enforced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bundle_router.core.catalog import Bundle
from bundle_router.core.decide.ceiling import Layer
from bundle_router.core.decide.plans import Plans
from bundle_router.core.decide.taints import TaintTest
from bundle_router.core.records.call_records import CallStarted, read_record
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.seen import SeenLedger, carried, first_sources

MAX_NAMES: Final = 5
"""Tools that a sentence names at most."""


@dataclass(slots=True)
class RowWouldMeet:
    """What one row would have met in recorded runs."""

    runs: set[str] = field(default_factory=set)
    """The runs that it would have met."""
    calls: Counter[str] = field(default_factory=Counter)
    """The calls that it refuses, by tool."""
    decisions: int = 0
    """The decisions of which it would not have shown all."""

    def merge(self, other: RowWouldMeet) -> None:
        self.runs |= other.runs
        self.calls.update(other.calls)
        self.decisions += other.decisions


@dataclass(slots=True)
class TaintsFound:
    """What rows with `seen` would have met, and where taints origins from."""

    runs: int = 0
    """The runs that were read."""
    rows: dict[str, RowWouldMeet] = field(default_factory=dict)
    """By the name of the row."""
    sources: dict[str, set[str]] = field(default_factory=dict)
    """The runs into which each tool (or `goal`) brought a taint."""

    def merge(self, other: TaintsFound) -> None:
        self.runs += other.runs
        for name, row in other.rows.items():
            self.rows.setdefault(name, RowWouldMeet()).merge(row)
        for name, runs in other.sources.items():
            self.sources.setdefault(name, set()).update(runs)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {
            "runs": self.runs,
            "rows": [
                {
                    "row": name,
                    "runs": len(row.runs),
                    "calls": row.calls.total(),
                    "tools": [{"tool": tool, "calls": n} for tool, n in row.calls.most_common()],
                    "decisions": row.decisions,
                }
                for name, row in self.rows.items()
            ],
            "sources": [{"from": name, "runs": n} for name, n in self._by_runs()],
        }

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each row, and one of where the taints origins from."""
        for name, row in self.rows.items():
            met = f"of {_so_many(self.runs, 'run')} {len(row.runs):,} would have met {name!r}"
            calls = _so_many(row.calls.total(), "call")
            if row.calls:
                calls += f" ({_counted(row.calls.most_common())})"
            yield f"{met}: {calls}, {_so_many(row.decisions, 'decision')} narrower"
        if self.sources:
            origins = [(name, _so_many(n, "run")) for name, n in self._by_runs()]
            yield f"taints from {', '.join(f'{name} ({n})' for name, n in origins[:MAX_NAMES])}"

    def _by_runs(self) -> list[tuple[str, int]]:
        counts = [(name, len(runs)) for name, runs in self.sources.items()]
        return sorted(counts, key=lambda row: (-row[1], row[0]))


def _so_many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _counted(rows: Iterable[tuple[str, int]]) -> str:
    names = [f"{name} {count:,}" for name, count in rows]
    return ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")


class TaintReplay:
    """Reads one run after another under the plans of a config with such rows."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._rows = [row.name for row in plans.catalog.policies if row.seen]

    def read_run(
        self, run_id: str, lines: Iterable[Mapping[str, Any]], found: TaintsFound
    ) -> Iterator[DecisionRecord]:
        """Yield the run's decisions, each with what its branch would have seen; count in `found`
        what the rows meet.
        """
        found.runs += 1
        for name in self._rows:
            found.rows.setdefault(name, RowWouldMeet())
        ledger = SeenLedger(self._plans.catalog)
        decisions: dict[str, DecisionRecord] = {}
        for line in lines:
            record = read_record(line)
            if record is None:
                continue
            if isinstance(record, DecisionRecord):
                record = _with_seen(record, ledger)
                decisions[record.decision.decision_id] = record
                self._count_decision(run_id, record, found)
                yield record
            elif isinstance(record, CallStarted) and record.decision_id in decisions:
                decided = decisions[record.decision_id]
                self._count_call(run_id, record, decided, ledger, found)
            ledger.take(record, line["seq"])
        for branch in {decided.branch for decided in decisions.values()}:
            for source in ledger.seen(branch):
                found.sources.setdefault(source.tool, set()).add(run_id)

    def _test(self, decided: DecisionRecord, ledger: SeenLedger) -> TaintTest | None:
        plan = self._plans.of(decided.step, decided.facts.grants)
        layers = plan.verdicts.ceiling.tainted
        sources = ledger.seen(decided.branch)
        if not layers or not sources:
            return None
        return TaintTest(self._plans.catalog, layers, sources)

    def _count_decision(self, run_id: str, record: DecisionRecord, found: TaintsFound) -> None:
        plan = self._plans.of(record.step, record.facts.grants)
        layers = plan.verdicts.ceiling.tainted
        if not layers or not record.facts.seen:
            return
        test = TaintTest(self._plans.catalog, _unenforced(layers), record.facts.seen)
        met = set()
        for id_ in record.decision.reachable_ids:
            bundle = self._plans.catalog.bundle(id_)
            if bundle is not None:
                met |= {row.row for row in test.would_refuse(bundle, bundle.tools)}
        for name in met:
            found.rows[name].decisions += 1
            found.rows[name].runs.add(run_id)

    def _count_call(
        self,
        run_id: str,
        record: CallStarted,
        decided: DecisionRecord,
        ledger: SeenLedger,
        found: TaintsFound,
    ) -> None:
        test = self._test(decided, ledger)
        bundle = self._plans.catalog.bundle(record.bundle) or Bundle(record.bundle, "")
        if test is None:
            return
        _, sinks = ledger.call(record.name, record.arguments)
        for layer, _ in test.refusals_of_call(bundle, record.name, sinks):
            found.rows[layer.row].calls[record.name] += 1
            found.rows[layer.row].runs.add(run_id)


def _with_seen(record: DecisionRecord, ledger: SeenLedger) -> DecisionRecord:
    begins_at = record.parent_decision_id
    sources = first_sources(
        ledger.seen_at(record.branch, begins_at),
        carried(record.step.carries, record.decision.seq),
        record.facts.seen,
    )
    if sources == record.facts.seen:
        return record
    return replace(record, facts=replace(record.facts, seen=sources), encoded_facts=None)


def _unenforced(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    return tuple(replace(layer, is_enforced=False) for layer in layers)
