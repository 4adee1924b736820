"""Replays a recorded decision, under its own catalog or another.

Rules:
1. Nothing is looked up and no model is asked: the record has the step, the facts, the activation
   and the reply.
2. Under its own catalog a decision is reproduced byte for byte; anything else is a defect, and
   `differs` names the parts of the record that differ. Values that an early version did not record
   are not compared. Of a run before the first kept layout (`RunHeader.is_early`) only what a step
   was shown has to be equal: that version settled the details otherwise.
3. Under another catalog the recorded reply is used only where the same question would be asked.
   Where the candidates differ, the decision "would ask anew", and shows what the reply still
   permits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from bundle_router.core.catalog import (
    AnswerForm,
    ApprovalRow,
    Bundle,
    Card,
    Catalog,
    Policy,
    Route,
    Server,
    Settings,
    Skill,
)
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.decide.decide import Question, decide, decide_without_answer, settle
from bundle_router.core.decide.plans import Plans, permitted_tools
from bundle_router.core.decide.replies import admit_reply
from bundle_router.core.records.decision_record import DecisionRecord, outcome_json
from bundle_router.core.values import (
    Activation,
    Address,
    Decision,
    Facts,
    LocalSettings,
    Reply,
    Step,
)
from bundle_router.core.values.canonical import encode
from bundle_router.errors import CorruptRun

Outcome = Literal["identical", "same_bundles", "changed", "asks_anew"]
T = TypeVar("T")
Decide = Callable[[Facts, Activation, Step], Decision | Question]
"""Decides under one catalog, as `decide` does."""


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """A replayed decision.

    `identical`: byte for byte; `same_bundles`: other reasons or details, same bundles and tools.
    `differs` names the parts of the record that differ.
    """

    run_id: str
    seq: int
    address: Address
    outcome: Outcome
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    gained_tools: tuple[str, ...]
    lost_tools: tuple[str, ...]
    differs: tuple[str, ...]
    decision: Decision


def conclude(question: Question, reply: Reply | None) -> Decision:
    """Return the decision for a question and its outcome. An unusable reply counts as a failure."""
    if reply is None:
        return decide_without_answer(question, None)
    reply = admit_reply(reply)
    if reply.answer is None:
        return decide_without_answer(question, reply.failure, reply.model, reply.search)
    return settle(question, reply.answer, reply.failure, reply.search)


def replay(
    recorded: DecisionRecord | Mapping[str, Any],
    catalog: Catalog,
    old_catalog: Catalog | None = None,
) -> ReplayedDecision:
    """Replay the recorded decision under `catalog`.

    With `old_catalog`, its own, tools are compared too: an edit may give a bundle other tools
    without changing who sees the bundle.

    Raises CorruptRun on a record that is not a decision.
    """
    old = Plans(old_catalog) if old_catalog is not None else None
    return replay_under(recorded, Plans(catalog), old)


def replay_under(
    recorded: DecisionRecord | Mapping[str, Any],
    plans: Plans,
    old: Plans | None = None,
    decide_anew: Decide | None = None,
) -> ReplayedDecision:
    """Do as `replay` does, for one of many decisions: under the plans of a catalog, and of the old
    one. `decide_anew` may keep decisions.
    """
    if isinstance(recorded, DecisionRecord):
        record = recorded
    else:
        record = DecisionRecord.from_json(recorded)
    step = record.step
    facts = record.facts
    reply = record.reply
    past = record.decision
    if decide_anew is None:
        decide_anew = partial(decide, plans)
    decision_or_question = decide_anew(facts, past.before, step)
    asks_anew = False
    if isinstance(decision_or_question, Question):
        is_other = reply is not None and reply.key != decision_or_question.key
        asks_anew = reply is None or (
            is_other and (reply.answer is not None or reply.failure is not None)
        )
        decision = conclude(decision_or_question, reply)
    else:
        decision = decision_or_question
    differs = _differing_parts(outcome_json(past), outcome_json(_as_recorded(decision, past)))
    outcome: Outcome = "same_bundles" if past.reachable_ids == decision.reachable_ids else "changed"
    if asks_anew or not differs:
        outcome = "asks_anew" if asks_anew else "identical"
    tools_then: set[str] = set()
    tools_now: set[str] = set()
    if old is not None:
        tools_then.update(permitted_tools(old, facts, step, past.reachable_ids))
        tools_now.update(permitted_tools(plans, facts, step, decision.reachable_ids))
    if tools_then != tools_now and outcome in ("identical", "same_bundles"):
        outcome = "changed"
    return ReplayedDecision(
        run_id=step.run_id,
        seq=past.seq,
        address=address_of(step),
        outcome=outcome,
        gained=tuple(id_ for id_ in decision.reachable_ids if id_ not in past.reachable_ids),
        lost=tuple(id_ for id_ in past.reachable_ids if id_ not in decision.reachable_ids),
        gained_tools=tuple(sorted(tools_now - tools_then)),
        lost_tools=tuple(sorted(tools_then - tools_now)),
        differs=differs,
        decision=decision,
    )


def _as_recorded(decision: Decision, past: Decision) -> Decision:
    """Return the decision without what early versions did not record of asked-for tools: eviction
    and exposure.
    """
    exposure = decision.exposure
    has_asked_tools = any(entry.tools for entry in decision.after.entries)
    if has_asked_tools and exposure.tools > past.exposure.tools:
        exposure = past.exposure
    left_out = decision.left_out
    evicted = decision.evicted_tools
    if evicted and not past.evicted_tools:
        left_out = tuple(row for row in left_out if row.tool not in evicted)
    return replace(decision, exposure=exposure, left_out=left_out)


def _differing_parts(recorded: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the parts whose canonical JSON differs, sorted."""
    if encode(recorded) == encode(now):
        return ()
    names = {*recorded, *now}  # a part that came later is there where it holds something
    return tuple(
        sorted(name for name in names if encode(recorded.get(name)) != encode(now.get(name)))
    )


def catalog_from(value: Mapping[str, Any]) -> Catalog:
    """Return the catalog in a `catalog.json`. Raises CorruptRun for anything else."""

    def values_of(kind: type[T], rows: str) -> tuple[T, ...]:
        of: TypeAdapter[tuple[T, ...]] = _adapter_of(tuple[kind, ...])  # type: ignore[valid-type]  # a runtime type
        return of.validate_python(value.get(rows, ()))

    try:
        servers = values_of(Server, "servers")
        bundles = values_of(Bundle, "bundles")
        cards = values_of(Card, "cards")
        skills = values_of(Skill, "skills")
        return Catalog(
            servers={server.name: server for server in servers},
            bundles={bundle.id: bundle for bundle in bundles},
            routes=values_of(Route, "routes"),
            policies=values_of(Policy, "policies"),
            approvals=values_of(ApprovalRow, "approvals"),
            settings=_adapter_of(Settings).validate_python(value.get("settings", {})),
            local=LocalSettings.model_validate(value.get("local", {})),
            cards={card.name: card for card in cards},
            skills={skill.path: skill for skill in skills},
            taints=tuple((row["name"], row["sort"]) for row in value.get("taints", ())),
            forms=tuple(AnswerForm.from_json(row) for row in value.get("forms", ())),
        )
    except ValidationError as error:
        raise CorruptRun(
            f"a catalog does not fit its type: {error.title}: {error.errors()[0]['msg']}"
        ) from None


@cache
def _adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return what reads values of a type. Making one takes longer than reading a whole catalog."""
    return TypeAdapter(kind)
