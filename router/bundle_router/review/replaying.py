"""Replays recorded runs under their own config or another one, for the command line and the pages.

Rules:
1. A run with any broken record contributes nothing. So the outcome of a run is returned whole.
2. Memory is bounded: at most `MAX_KEPT` changed decisions are kept, further ones are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import address_json
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.replayed import (
    Decide,
    ReplayedDecision,
    catalog_from,
    replay_under,
)
from bundle_router.core.records.run_header import RunHeader
from bundle_router.errors import CorruptRun
from bundle_router.review.behaviour import Behaviour, CauseFinder
from bundle_router.review.taint_replay import TaintReplay, TaintsFound

MAX_KEPT: Final = 1_000
_EVERY: Final = 200
_MAX_CATALOGS: Final = 8
_MAX_FACTS: Final = 64


class RecordedRuns(Protocol):
    """The source of runs: an archive."""

    def decisions(self, run_id: str) -> Iterator[DecisionRecord]: ...
    def records(self, run_id: str) -> Iterator[dict[str, Any]]: ...
    def catalog(self, run_id: str, revision: str | None = None) -> dict[str, Any]: ...
    def header(self, run_id: str) -> RunHeader: ...


@dataclass(slots=True)
class ReplayOutcome:
    """The results of replayed decisions.

    `differing` and `early` hold the first `MAX_KEPT`; the counts cover all.
    """

    behaviour: Behaviour
    differing: list[ReplayedDecision] = field(default_factory=list)
    differing_count: int = 0
    early: list[ReplayedDecision] = field(default_factory=list)
    early_count: int = 0
    early_parts: set[str] = field(default_factory=set)
    taints: TaintsFound = field(default_factory=TaintsFound)

    def add(self, replayed: ReplayedDecision, *, is_early_detail: bool) -> None:
        if is_early_detail:
            self.early_count += 1
            self.early_parts.update(replayed.differs)
        else:
            self.differing_count += 1
        rows = self.early if is_early_detail else self.differing
        if len(rows) < MAX_KEPT:
            rows.append(replayed)

    def merge(self, other: ReplayOutcome) -> None:
        self.behaviour.merge(other.behaviour)
        self.differing_count += other.differing_count
        self.early_count += other.early_count
        self.early_parts |= other.early_parts
        self.differing += other.differing[: MAX_KEPT - len(self.differing)]
        self.early += other.early[: MAX_KEPT - len(self.early)]
        self.taints.merge(other.taints)

    def to_json(self, places: Mapping[tuple[str, str], str]) -> dict[str, Any]:
        taints = {"taints": self.taints.to_json()} if self.taints.rows else {}
        return {
            **taints,
            **self.behaviour.to_json(places),
            "differing": [replayed_row(item) for item in self.differing],
            "differing_count": self.differing_count,
            "early": [replayed_row(item) for item in self.early],
            "early_count": self.early_count,
            "shows_part": (
                len(self.differing) < self.differing_count or len(self.early) < self.early_count
            ),
        }


class RunReplays:
    """Replays the decisions of one run after another.

    `known`: the servers that the runs had. `deciding` returns what decides under the plans of the
    `other` catalog, and may keep decisions (None: `decide`).
    """

    def __init__(
        self,
        runs: RecordedRuns,
        other: Catalog | None,
        examples: int,
        deciding: Callable[[Plans], Decide] | None = None,
    ) -> None:
        self.known: set[str] = set()
        self.examples = examples
        self._runs = runs
        self._other = Plans(other) if other is not None else None
        self._decide: Decide | None = None
        if self._other is not None and deciding is not None:
            self._decide = deciding(self._other)
        self._taints: TaintReplay | None = None
        if self._other is not None and self._other.catalog.looks_at_taints:
            self._taints = TaintReplay(self._other)
        self._recorded: dict[str, Plans] = {}
        self._finders: dict[str, CauseFinder] = {}
        self._before = 0

    def replay_run(self, run_id: str, done: Callable[[int], None]) -> ReplayOutcome:
        """Return the outcome of a run's decisions.

        Raises UnknownRun, and CorruptRun for any broken record.
        """
        outcome = ReplayOutcome(Behaviour(self.examples))
        last = -1
        early = self._other is None and self._runs.header(run_id).is_early
        for number, record in enumerate(self._decisions(run_id, outcome)):
            try:
                self._add(record, outcome, is_early=early)
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptRun(
                    f"record {record.decision.seq} of run {run_id!r} can't be replayed:"
                    f" {type(error).__name__}: {error}"
                ) from None
            last = record.decision.seq
            if number % _EVERY == 0:
                done(self._before + last)
        self._before += last + 1
        return outcome

    def _decisions(self, run_id: str, outcome: ReplayOutcome) -> Iterator[DecisionRecord]:
        """Return the decisions of a run; under a config with rows that have `seen`, with what they
        would have been made on.
        """
        if self._taints is None:
            return self._runs.decisions(run_id)
        return self._taints.read_run(run_id, self._runs.records(run_id), outcome.taints)

    def _add(self, record: DecisionRecord, outcome: ReplayOutcome, *, is_early: bool) -> None:
        recorded = self._plans(record.step.run_id, record.decision.catalog_revision)
        if self._other is None:
            replayed = replay_under(record, recorded)
            outcome.behaviour.add(replayed, {})
            if replayed.outcome != "identical":
                outcome.add(
                    replayed, is_early_detail=is_early and replayed.outcome == "same_bundles"
                )
            return
        replayed = replay_under(record, self._other, recorded, self._decide)
        if replayed.outcome in ("identical", "same_bundles"):
            outcome.behaviour.add(replayed, {})
            return
        old = recorded.catalog
        finder = self._finders.get(old.revision)
        if finder is None:
            finder = CauseFinder(old, self._other.catalog)
            self._finders[old.revision] = finder
        outcome.behaviour.add(replayed, finder.causes(record, replayed))
        outcome.add(replayed, is_early_detail=False)

    def _plans(self, run_id: str, revision: str) -> Plans:
        """Return the plans of a recorded catalog. Keeps a few, because runs of one config
        share one.
        """
        plans = self._recorded.get(revision)
        if plans is None:
            if len(self._recorded) >= _MAX_CATALOGS:
                self._recorded.clear()
                self._finders.clear()
            catalog = catalog_from(self._runs.catalog(run_id, revision))
            plans = self._recorded[revision] = Plans(catalog)
            self.known.update(catalog.servers)
        return plans


def replayed_row(item: ReplayedDecision) -> dict[str, object]:
    lists = ("gained", "lost", "gained_tools", "lost_tools", "differs")
    return {
        "run_id": item.run_id,
        "seq": item.seq,
        **address_json(item.address),
        "outcome": item.outcome,
        **{name: list(getattr(item, name)) for name in lists},
    }
