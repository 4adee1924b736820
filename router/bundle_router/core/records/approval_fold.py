"""The questions of a run: the part of the fold that runs with held calls have.

A question is found by its id, by the key of its call, and by what it is bound to. Records that name
a question that the run does not have change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from bundle_router.core.decide.held_calls import GivenAnswer, HeldCall, HeldPlace
from bundle_router.core.records.approval_records import (
    ApprovalAsked,
    ApprovalGranted,
    ApprovalRecord,
    ApprovalRefused,
    ApprovalWithdrawn,
)
from bundle_router.core.records.call_records import CallStarted
from bundle_router.core.records.decision_record import BudgetKey
from bundle_router.core.values import Address


class ApprovalFold:
    """The questions after the records that it was given, in the order in which they were asked."""

    def __init__(self) -> None:
        self._held: dict[str, HeldCall] = {}
        self._by_key: dict[str, list[str]] = {}
        self._by_binding: dict[str, list[str]] = {}
        self._refusals: dict[tuple[HeldPlace, str], int] = {}

    def take(self, record: ApprovalRecord, seq: int, decisions: Mapping[str, BudgetKey]) -> None:
        """Take in a record. `decisions`: those of the run, which have the address of a question."""
        if isinstance(record, ApprovalAsked):
            self._take_question(record, seq, decisions[record.decision_id][1])
            return
        question = self._held.get(record.approval_id)
        if question is None:
            return
        if isinstance(record, ApprovalGranted):
            answer = GivenAnswer(record.by, record.time, record.rows, record.use_by, record.reason)
            question = replace(question, grants=(*question.grants, answer))
        elif isinstance(record, ApprovalRefused):
            answer = GivenAnswer(record.by, record.time, reason=record.reason, advice=record.advice)
            self._count_refusal(question)
            question = replace(question, refusal=question.refusal or answer)
        elif isinstance(record, ApprovalWithdrawn):
            answer = GivenAnswer(record.by, record.time, reason=record.reason)
            question = replace(question, withdrawal=answer)
        else:
            question = replace(question, expired=record.code)
        self._held[question.approval_id] = question

    def _take_question(self, asked: ApprovalAsked, seq: int, address: Address) -> None:
        question = HeldCall(
            approval_id=asked.approval_id,
            seq=seq,
            decision_id=asked.decision_id,
            place=HeldPlace(asked.branch, address, asked.principal),
            tool=asked.name,
            key=asked.key,
            arguments_digest=asked.arguments_digest,
            rows=asked.rows,
            terms=asked.terms,
            binding=asked.binding,
            answer_by=asked.answer_by,
            asked_by=asked.asked_by,
            asked_at=asked.time,
            bundle=asked.bundle,
            via=asked.via,
            hidden=asked.hidden,
        )
        self._held[question.approval_id] = question
        self._by_binding.setdefault(question.binding, []).append(question.approval_id)
        if question.key:
            self._by_key.setdefault(question.key, []).append(question.approval_id)

    def _count_refusal(self, question: HeldCall) -> None:
        if question.refusal is None:
            place = (question.place, question.tool)
            self._refusals[place] = self._refusals.get(place, 0) + 1

    def take_start(self, record: CallStarted) -> None:
        """Note the approvals that a call uses."""
        for use in record.approvals:
            question = self._held.get(use.id)
            if question is not None:
                self._held[use.id] = replace(question, used_by=(*question.used_by, record.call_id))

    # --- where it stands --------------------------------------------------------------------------

    def question(self, approval_id: str) -> HeldCall | None:
        """Return a question by its id."""
        return self._held.get(approval_id)

    def of_key(self, key: str) -> list[HeldCall]:
        """Return the questions of a key, oldest first."""
        return [self._held[id_] for id_ in self._by_key.get(key, ())]

    def of_binding(self, binding: str) -> list[HeldCall]:
        """Return the questions that are bound to the same call, oldest first."""
        return [self._held[id_] for id_ in self._by_binding.get(binding, ())]

    def refusals(self, place: HeldPlace, tool: str) -> int:
        """Return how many questions about a tool were refused at a place."""
        return self._refusals.get((place, tool), 0)

    def all(self) -> Iterator[HeldCall]:
        """Yield every question, in the order in which they were asked."""
        yield from self._held.values()

    @property
    def open(self) -> Mapping[str, HeldCall]:
        """The questions that are neither used, refused, withdrawn nor expired on record."""
        return {id_: one for id_, one in self._held.items() if not one.is_settled}
