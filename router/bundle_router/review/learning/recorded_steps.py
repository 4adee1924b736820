"""Recorded steps and what followed from them: the input of labels, without judgement.

Only the records are read, and they hold redacted text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.records.call_records import CallFinished, read_record
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.search.request import Request
from bundle_router.core.values import Address, Facts, RecentStep, Step
from bundle_router.core.values.words import GAP_CODES, META_SERVER

RECENT: Final = 5
"""Number of earlier steps that search uses by default."""


@dataclass(frozen=True, slots=True)
class PastStep:
    """One recorded decision and what followed until the next one.

    `shown`: bundle id to the reason it was shown for. `called`: (bundle, tool) of every call that
    reached its tool. `missed`: tools that were asked for and merely not shown. `picks`: the answer
    of search or a model, in order; None if neither answered; `by_model`: a model did. `needed` and
    `not_needed` are a reviewer's labels. `searches`: the agent's calls of `search_tools`.
    """

    run_id: str
    seq: int
    decision_id: str
    time: str
    catalog_revision: str
    step: Step
    facts: Facts
    recent: tuple[RecentStep, ...]
    shown: Mapping[str, str]
    picks: tuple[str, ...] | None
    degraded: bool
    cost_usd: float = 0.0
    called: tuple[tuple[str, str], ...] = ()
    missed: tuple[str, ...] = ()
    needed: frozenset[str] = frozenset()
    not_needed: frozenset[str] = frozenset()
    searches: int = 0
    by_model: bool = False

    @property
    def address(self) -> Address:
        return address_of(self.step)

    @property
    def request(self) -> Request:
        """The search request of this step, as at routing time."""
        from bundle_router.core.search.corpus import (
            request_of,
        )  # imports search, which labels do not need

        return request_of(self.step, self.recent)


@dataclass(slots=True)
class _Open:
    """A decision whose calls are still being collected."""

    record: DecisionRecord
    recent: tuple[RecentStep, ...]
    called: dict[tuple[str, str], None] = field(default_factory=dict)
    missed: dict[str, None] = field(default_factory=dict)
    searches: int = 0


def past_steps(
    records: Iterable[Mapping[str, Any]], corrections: Sequence[StepLabel] = ()
) -> list[PastStep]:
    """Return the steps of one run, from its records in the order of their `seq`.

    Later corrections override earlier ones.

    Raises CorruptRun for a malformed record.
    """
    opened: dict[str, _Open] = {}
    recent: deque[RecentStep] = deque(maxlen=RECENT)
    for line in records:
        record = read_record(line)
        if isinstance(record, DecisionRecord):
            opened[record.decision.decision_id] = _Open(record, tuple(recent))
            step = record.step
            recent.append(
                RecentStep(step.role, step.step, step.goal, tuple(record.decision.reachable_ids))
            )
        elif isinstance(record, CallFinished) and record.decision_id in opened:
            _add_call(opened[record.decision_id], record)
    labels = _spoken_labels(corrections)
    return [
        _close(entry, *labels.get(id_, (frozenset(), frozenset()))) for id_, entry in opened.items()
    ]


def _add_call(entry: _Open, record: CallFinished) -> None:
    if (record.server, record.tool) == (META_SERVER, "search_tools"):
        entry.searches += 1
    if record.outcome in ("ok", "tool_error") and record.bundle:
        entry.called[(record.bundle, record.name)] = None
    elif record.outcome == "denied" and record.code in GAP_CODES:
        entry.missed[record.name] = None


def _spoken_labels(
    corrections: Sequence[StepLabel],
) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    votes: dict[str, dict[str, bool]] = {}
    for correction in corrections:
        ballot = votes.setdefault(correction.decision_id, {})
        ballot.update(dict.fromkeys(correction.needed, True))
        ballot.update(dict.fromkeys(correction.not_needed, False))

    labels = {}
    for decision_id, ballot in votes.items():
        needed = frozenset(bundle for bundle, vote in ballot.items() if vote)
        labels[decision_id] = (needed, frozenset(ballot.keys() - needed))
    return labels


def _close(entry: _Open, needed: frozenset[str], not_needed: frozenset[str]) -> PastStep:
    record = entry.record
    decision = entry.record.decision
    answer = record.reply.answer if record.reply is not None else None
    return PastStep(
        run_id=record.decision.run_id,
        seq=record.decision.seq,
        decision_id=record.decision.decision_id,
        time=record.time,
        catalog_revision=decision.catalog_revision,
        step=record.step,
        facts=record.facts,
        recent=entry.recent,
        shown={chosen.id: chosen.reason for chosen in decision.bundles},
        picks=answer.ids if answer is not None else None,
        degraded=decision.degraded,
        cost_usd=decision.model.cost_usd if decision.model is not None else 0.0,
        called=tuple(entry.called),
        missed=tuple(entry.missed),
        needed=needed,
        not_needed=not_needed,
        searches=entry.searches,
        by_model=answer is not None and answer.source == "model" and not decision.degraded,
    )
