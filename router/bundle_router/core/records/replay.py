"""Taking a recorded decision again, under the same catalog or another.

Rules:
1. Nothing is looked up and no model is asked: the record holds the step, the facts, the activation and the reply.
2. Under the catalog it was taken with, a decision comes out byte for byte the same; anything else is a defect.
3. Under another catalog the recorded reply is heard only where the same question would be put. Where the candidates
   differ, the decision "would ask anew", and what is shown is what the reply still permits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.decide import Question, decide, give_up, permitted_tools, settle
from bundle_router.core.decide.replies import admitted
from bundle_router.core.models import Decision, Reply
from bundle_router.core.models.canonical import encode
from bundle_router.core.records.records import activation_from, facts_from, outcome_json, reply_from, step_from

Outcome = Literal["identical", "same_bundles", "changed", "asks_anew"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A decision taken again. `identical`: byte for byte; `same_bundles`: other reasons or details, same bundles
    and tools."""

    run_id: str
    seq: int
    workflow: str
    role: str
    step: str
    outcome: Outcome
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    gained_tools: tuple[str, ...]
    lost_tools: tuple[str, ...]
    decision: Decision


def conclude(question: Question, reply: Reply | None) -> Decision:
    """The decision that a question and what became of it lead to. What can't be heard counts as a failure."""
    if reply is None:
        return give_up(question, None)
    reply = admitted(reply)
    if reply.answer is None:
        return give_up(question, reply.failure, reply.model, reply.search)
    return settle(question, reply.answer, reply.failure, reply.search)


def _was_heard(reply: Reply) -> bool:
    return reply.answer is not None or reply.failure is not None


def replay(record: Mapping[str, Any], catalog: Catalog, then: Catalog | None = None) -> Replayed:
    """Takes the recorded decision again under `catalog`. With `then`, the catalog it was taken under, tools count too:
    an edit may give a bundle other tools without changing who sees the bundle.

    Raises KeyError, TypeError or ValueError on a record that is not a decision.
    """
    step, facts, reply = step_from(record), facts_from(record), reply_from(record)
    before = activation_from(record["activation"]["before"])
    taken = decide(catalog, facts, before, step)
    asks_anew = isinstance(taken, Question) and (reply is None or (reply.key != taken.key and _was_heard(reply)))
    decision = conclude(taken, reply) if isinstance(taken, Question) else taken

    was = [row["id"] for row in record["bundles"]]
    now = decision.bundle_ids
    now_json = outcome_json(decision)
    then_json = {name: record.get(name) for name in now_json}
    outcome: Outcome
    if asks_anew:
        outcome = "asks_anew"
    elif encode(now_json) == encode(then_json):
        outcome = "identical"
    else:
        outcome = "same_bundles" if was == now else "changed"
    had = set(permitted_tools(then, facts, step, was)) if then is not None else set()
    has = set(permitted_tools(catalog, facts, step, now)) if then is not None else set()
    if had != has and outcome in ("identical", "same_bundles"):
        outcome = "changed"
    return Replayed(
        run_id=step.run_id,
        seq=record["seq"],
        workflow=step.workflow,
        role=step.role,
        step=step.step,
        outcome=outcome,
        gained=tuple(id_ for id_ in now if id_ not in was),
        lost=tuple(id_ for id_ in was if id_ not in now),
        gained_tools=tuple(sorted(has - had)),
        lost_tools=tuple(sorted(had - has)),
        decision=decision,
    )
