"""The decision record: a line of `routing.jsonl` as a value and as JSON.

Rules:
1. No object is keyed by data: lists of `{id, …}` throughout, so that columns stay columns for every
   reader.
2. The record holds everything that a replay needs: step, facts, activation before, and the reply.
3. Readers ignore fields that they do not know. Fields are added, never renamed; one that came after
   the first layout is written only where it holds something, so that every line ever written has
   one JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, TypeVar

from bundle_router.core.catalog.step_address import (
    PARTS,
    address_from,
    address_from_json,
    address_json,
    address_of,
)
from bundle_router.core.records.field_types import FieldForm, checked, fields_of
from bundle_router.core.values import (
    Activation,
    Address,
    Answer,
    AskedTool,
    Candidate,
    Chosen,
    Code,
    Decision,
    Drift,
    Entry,
    Exposure,
    Facts,
    Grant,
    LeftOut,
    ModelUse,
    RecentStep,
    Reply,
    SearchUse,
    Seen,
    Step,
    StepPolicy,
    WouldRefuse,
)
from bundle_router.core.values.canonical import (
    EncodedObject,
    EncodedRows,
    digest,
    encode,
    flat_json,
    text_of,
)
from bundle_router.core.values.evidence import Evidence

DECISION_SCHEMA: Final = "bundle-router.decision/1"

Json = dict[str, Any]
BudgetKey = tuple[str, Address, str]
"""What a budget belongs to: the branch, the address and the key of steps."""
V = TypeVar("V")

_STEP_FIELDS: Final = (
    "workflow",
    "role",
    "step",
    "goal",
    "constraints",
    "parent_run_id",
    "inherit",
    "max_bundles",
    "max_tools",
    "max_tokens",
    "workspace",
)
_IDS: Final = ("run_id", "decision_id", "catalog_revision", "input_digest")
_LATER: Final = ("key", "branch", "parent_decision_id", "root", "fixed_list", "approvals")
_OUTCOME: Final = ("source", "degraded", "justification", "route")
_ANSWERED: Final = ("source", "reason", "justification")
_PENDING: Final = "it is still being asked for its tools"
"""How reasons begin that concern a pending server, in records that do not name it: those are as
degraded as they say.
"""


def line_form() -> Mapping[str, FieldForm]:
    """Return the written form of a decision's line, without the chain's fields."""
    activation = [fields_of(Entry, tools=[fields_of(AskedTool)])]
    policy = (fields_of(StepPolicy), None)
    reply = {
        "heard": FieldForm(
            Literal["answered", "failed", "nobody"],
            "`answered`, `failed`, or `nobody` where there was nobody to ask.",
        ),
        **fields_of(Reply, ("key", "failure")),
        **fields_of(
            Answer,
            ("ids", *_ANSWERED, "dropped", "offered"),
            optional=("ids", *_ANSWERED, "dropped", "offered"),
            dropped=[
                {
                    "id": FieldForm(str, "The bundle's id."),
                    "code": FieldForm(Code, "The code that it is left out with."),
                }
            ],
        ),
    }
    labels = {
        "name": FieldForm(str, "The label's name."),
        "value": FieldForm(str, "Its text."),
    }
    return {
        "schema": FieldForm(Literal[DECISION_SCHEMA], "The form of the line, with its version."),
        "type": FieldForm(Literal["route.decided"], "The type of the record."),
        **fields_of(DecisionRecord, ("time",)),
        **fields_of(Decision, _IDS),
        **fields_of(Step, ("principal",)),
        "step": FieldForm(
            {
                **fields_of(Step, _STEP_FIELDS),
                **fields_of(Step, ("policy", "labels"), policy=policy, labels=[labels]),
                **fields_of(
                    Step,
                    ("carries", "hands_back"),
                    optional=("carries", "hands_back"),
                    carries=[str],
                ),
            },
            "The step, as it was asked for.",
        ),
        **fields_of(DecisionRecord, ("facts",), facts=_facts_form(policy)),
        **fields_of(DecisionRecord, ("reply",), reply=(reply, None)),
        **fields_of(DecisionRecord, ("elapsed_us", "monotonic_ns")),
        **fields_of(
            Decision,
            (*_OUTCOME, "bundles", "left_out", "candidates", "search", "model"),
            bundles=[fields_of(Chosen, optional=("mode",))],
            left_out=[fields_of(LeftOut, optional=("tool",))],
            candidates=[fields_of(Candidate)],
            search=(_search_form(), None),
            model=(fields_of(ModelUse, optional=("sure",)), None),
        ),
        **fields_of(
            Decision,
            ("would",),
            optional=("would",),
            would=[fields_of(WouldRefuse, optional=("tool",))],
        ),
        "activation": FieldForm(
            fields_of(
                Decision, ("before", "after", "evicted"), before=activation, after=activation
            ),
            "The bundles that stay active in the run.",
        ),
        **fields_of(Decision, ("exposure",), exposure=fields_of(Exposure)),
        **fields_of(DecisionRecord, _LATER, optional=_LATER),
    }


def _facts_form(policy: object) -> Mapping[str, FieldForm]:
    unavailable = {
        "server": FieldForm(str, "The server."),
        "why": FieldForm(str, "Why it can't be used now, in words."),
    }
    revisions = {
        "name": FieldForm(str, "What was learned: `index`, `memory` or `thresholds`."),
        "revision": FieldForm(str, "Its revision."),
    }
    address = {part.name: FieldForm(str, "Of the ancestor's step.") for part in PARTS}
    return {
        **fields_of(Facts, ("pending",), optional=("pending",), pending=[str]),
        **fields_of(
            Facts, ("seen",), optional=("seen",), seen=[fields_of(Seen, optional=("run",))]
        ),
        **fields_of(
            Facts,
            ("capabilities", "unavailable", "drifted", "grants", "revisions"),
            capabilities=[str],
            unavailable=[unavailable],
            drifted=[fields_of(Drift, optional=("code", "why"))],
            grants=[{**address, **fields_of(Grant, ("policy",), policy=policy)}],
            revisions=[revisions],
        ),
    }


def _search_form() -> Mapping[str, FieldForm]:
    form = fields_of(SearchUse, optional=("recall", "withheld"), evidence=fields_of(Evidence))
    del form["ranked"]  # it stands in `candidates`
    return form


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One `route.decided`: the decision (with the ids it was recorded under) and everything that it
    was computed from.
    """

    type: ClassVar[str] = "route.decided"

    decision: Decision
    """The decision."""
    step: Step
    """The step that it was made for."""
    facts: Facts
    """What was looked up for it."""
    reply: Reply | None
    """What a question to search or a model came to; None where nothing was asked."""
    time: str
    """When it was made, in UTC."""
    elapsed_us: int = 0
    """Microseconds that it took, questions included."""
    monotonic_ns: int = 0
    """Nanoseconds of the machine's monotonic clock, by which records of one process are timed."""
    key: str = ""
    """The step's key; empty where the engine gave none."""
    branch: str = ""
    """The step's branch; empty for the default one."""
    parent_decision_id: str = ""
    """The decision that the branch begins at, or that limits a sub-agent; empty for none."""
    root: str = ""
    """The workspace, where that differs from the one that the run began in."""
    fixed_list: bool = False
    """Whether the agent reads its list of tools once, so that none joins it."""
    approvals: str = ""
    """`refuse` where a call that would wait for somebody's word is refused; else empty."""
    encoded_step: Json | None = field(default=None, repr=False, compare=False)
    """`step` as JSON, where the digest needed that already."""
    encoded_facts: Json | None = field(default=None, repr=False, compare=False)
    """`facts` as JSON, where the digest needed that already."""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        decision = self.decision
        record = {
            "schema": DECISION_SCHEMA,
            "type": self.type,
            "time": self.time,
            **flat_json(decision, _IDS),
            "principal": self.step.principal,
            "step": self.encoded_step or step_json(self.step),
            "facts": self.encoded_facts or facts_json(self.facts),
            "reply": reply_json(self.reply),
            "elapsed_us": self.elapsed_us,
            "monotonic_ns": self.monotonic_ns,
            **outcome_json(decision),
        }
        return record | {name: value for name, value in flat_json(self, _LATER).items() if value}

    @classmethod
    @checked(line_form)
    def from_json(cls, record: Mapping[str, Any]) -> DecisionRecord:
        """Return the decision record of a line. Raises CorruptRun for another line."""
        return cls(
            decision=decision_from(record),
            step=step_from(record),
            facts=facts_from(record),
            reply=reply_from(record),
            time=record.get("time", ""),
            elapsed_us=record.get("elapsed_us", 0),
            monotonic_ns=record.get("monotonic_ns", 0),
            key=record.get("key") or "",
            branch=record.get("branch") or "",
            parent_decision_id=record.get("parent_decision_id") or "",
            root=record.get("root") or "",
            fixed_list=bool(record.get("fixed_list")),
            approvals=record.get("approvals") or "",
        )


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """The parts of a decision that the fold of a run needs.

    The rest is made from `line` on demand: most decisions are only passed over, and the value of
    one is large.
    """

    seq: int
    decision_id: str
    principal: str
    budget: BudgetKey
    recent: RecentStep
    asked_model: bool = False
    """Whether a model was asked for it, now and not from the cache."""
    hands_back: str = ""
    """`checked`, where its run hands back checked answers alone."""
    line: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: DecisionRecord) -> DecisionLine:
        """Return the parts of a record that exists as a value, without a line to parse."""
        decision = record.decision
        step = record.step
        budget = (record.branch, address_of(step), record.key)
        recent = RecentStep(
            step.role, step.step, step.goal, tuple([row.id for row in decision.bundles])
        )
        asked_model = decision.model is not None and decision.model.attempts > 0
        return cls(
            decision.seq,
            decision.decision_id,
            step.principal,
            budget,
            recent,
            asked_model,
            step.hands_back,
        )

    @classmethod
    @checked(line_form)
    def from_json(cls, line: Mapping[str, Any]) -> DecisionLine:
        """Return the parts of a line. Raises CorruptRun for a line that is no decision."""
        step = line["step"]
        address = address_from(step, _labels_from(step))
        budget = (line.get("branch") or "", address, line.get("key") or "")
        bundle_ids = tuple(row["id"] for row in line["bundles"])
        recent = RecentStep(step["role"], step["step"], step.get("goal", ""), bundle_ids)
        model = line.get("model") or {}
        asked_model = model.get("attempts", 0) > 0
        principal = line.get("principal", "")
        hands_back = step.get("hands_back", "")
        return cls(
            line["seq"],
            line["decision_id"],
            principal,
            budget,
            recent,
            asked_model,
            hands_back,
            line,
        )

    def record(self) -> DecisionRecord:
        return DecisionRecord.from_json(self.line)

    def activation(self) -> Activation:
        """Return the activation that the decision left."""
        return activation_from(self.line["activation"]["after"])


def decided_inputs_digest(
    catalog_revision: str, step: Json, facts: Json, before: Activation, reply: Reply | None
) -> str:
    """Return the digest of everything the decision was computed from; step and facts are given as
    JSON.

    Equal digests mean equal decisions.
    """
    return input_digest(catalog_revision, step, facts, activation_json(before), reply_json(reply))


def input_digest(
    catalog_revision: str, step: Json, facts: Json, before: list[Json], reply: Json | None
) -> str:
    """Return the digest of everything the decision was computed from, given as JSON."""
    return digest(f"[{','.join(map(text_of, (catalog_revision, step, facts, before, reply)))}]")


# --- flat values ----------------------------------------------------------------------------------


def _flat_from(kind: Callable[..., V], row: Mapping[str, Any]) -> V:
    """Return the dataclass of plain values of a row. Unknown fields are ignored."""
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]  # of a dataclass with slots
    return kind(**{name: row[name] for name in names if name in row})


# --- what was asked, and what was known -----------------------------------------------------------


def policy_json(policy: StepPolicy | None) -> Json | None:
    if policy is None:
        return None
    allow = None if policy.allow is None else list(policy.allow)
    return {"allow": allow, "deny": list(policy.deny), "trust": policy.trust}


def _policy_from(row: Mapping[str, Any] | None) -> StepPolicy | None:
    if row is None:
        return None
    return StepPolicy.model_validate(
        {name: row[name] for name in StepPolicy.model_fields if name in row}
    )


def step_json(step: Step) -> Json:
    """Return the step as recorded: every field, labels as a list.

    The run's id and the principal are beside it.
    """
    value = {
        **flat_json(step, _STEP_FIELDS),
        "policy": policy_json(step.policy),
        "labels": [{"name": name, "value": step.labels[name]} for name in sorted(step.labels)],
    }
    if step.carries:
        value["carries"] = list(step.carries)
    if step.hands_back:
        value["hands_back"] = step.hands_back
    return value


def step_from(record: Mapping[str, Any]) -> Step:
    """Return the step that a record was decided on.

    Raises pydantic's ValidationError, KeyError or TypeError.
    """
    row = record["step"]
    values = {name: row[name] for name in (*_STEP_FIELDS, "carries", "hands_back") if name in row}
    values |= {"run_id": record["run_id"], "principal": record.get("principal", "")}
    values["labels"] = _labels_from(row)
    return Step.model_validate(values | {"policy": _policy_from(row.get("policy"))})


def _labels_from(step: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a step as recorded."""
    return {label["name"]: label["value"] for label in step.get("labels", ())}


def facts_json(facts: Facts) -> Json:
    later: Json = {"pending": list(facts.pending)} if facts.pending else {}
    if facts.seen:
        later["seen"] = [
            {name: value for name, value in flat_json(row).items() if name != "run" or value}
            for row in facts.seen
        ]
    return later | {
        "capabilities": sorted(facts.capabilities),
        "unavailable": [{"server": server, "why": reason} for server, reason in facts.unavailable],
        "drifted": [
            {"server": row.server, "tool": row.tool}
            | ({} if row.code == "pin_drift" else {"code": row.code, "why": row.why})
            for row in facts.drifted
        ],
        "grants": [
            {**address_json(grant.address), "policy": policy_json(grant.policy)}
            for grant in facts.grants
        ],
        "revisions": [{"name": name, "revision": revision} for name, revision in facts.revisions],
    }


def facts_from(record: Mapping[str, Any]) -> Facts:
    value = record["facts"]
    rows = value.get("unavailable", ()) if record.get("degraded") else ()
    return Facts(
        pending=tuple(
            value.get("pending", [row["server"] for row in rows if _PENDING in row["why"]])
        ),
        capabilities=frozenset(value.get("capabilities", ())),
        unavailable=tuple((row["server"], row["why"]) for row in value.get("unavailable", ())),
        drifted=tuple(_flat_from(Drift, row) for row in value.get("drifted", ())),
        grants=tuple(
            Grant(address_from_json(row), _policy_from(row.get("policy")))
            for row in value.get("grants", ())
        ),
        revisions=tuple((row["name"], row["revision"]) for row in value.get("revisions", ())),
        seen=seen_from(value),
    )


def seen_from(facts: Mapping[str, Any]) -> tuple[Seen, ...]:
    """Return the taints in a decision's facts, as recorded."""
    return tuple(_flat_from(Seen, row) for row in facts.get("seen", ()))


@lru_cache(256)
def activation_json(activation: Activation) -> list[Json]:
    """Return the activation as recorded, with its text: two decisions write it, and a digest needs
    it.
    """
    return EncodedRows(
        [
            {  # spelled out: a set of a dozen bundles is written three times with every decision
                "id": entry.id,
                "origin": entry.origin,
                "used": entry.used,
                "inherited": entry.inherited,
                "place": entry.place,
                "tools": [flat_json(tool) for tool in entry.tools],
            }
            for entry in activation.entries
        ]
    )


def activation_from(rows: list[Mapping[str, Any]]) -> Activation:
    return Activation(
        tuple(
            _flat_from(
                Entry,
                {
                    **row,
                    "tools": tuple(_flat_from(AskedTool, tool) for tool in row.get("tools", ())),
                },
            )
            for row in rows
        )
    )


# --- what search and the model said ---------------------------------------------------------------


def reply_json(reply: Reply | None) -> Json | None:
    """Return the outcome of the question, or null when none was asked.

    `heard` is `answered`, `failed` or `nobody`.

    `answered` with a `failure`: a model failed, and search replaced it.
    """
    if reply is None:
        return None
    if reply.answer is None:
        return {
            "heard": "failed" if reply.failure else "nobody",
            "key": reply.key,
            "failure": reply.failure,
        }
    answer = reply.answer
    value = {
        "heard": "answered",
        "key": reply.key,
        "failure": reply.failure,
        "ids": list(answer.ids),
        **flat_json(answer, _ANSWERED),
        "dropped": [{"id": id_, "code": code} for id_, code in answer.dropped],
    }
    if answer.offered:
        value["offered"] = list(answer.offered)
    return value


def reply_from(record: Mapping[str, Any]) -> Reply | None:
    value = record.get("reply")
    if value is None:
        return None
    model = model_from(record)
    search = search_from(record)
    if value["heard"] != "answered":
        return Reply(value.get("key", ""), None, value.get("failure"), model, search)
    answer = Answer(
        ids=tuple(value["ids"]),
        **{name: value[name] for name in _ANSWERED},
        scores=_candidates_from(record),
        model=model,
        dropped=tuple((row["id"], row["code"]) for row in value.get("dropped", ())),
        offered=tuple(value.get("offered", ())),
    )
    return Reply(value.get("key", ""), answer, value.get("failure"), model, search)


def search_json(search: SearchUse | None) -> Json | None:
    """Return what search found, without the ranking, which is in `candidates`."""
    if search is None:
        return None
    value = {**flat_json(search), "evidence": flat_json(search.evidence)}
    del value["ranked"]
    for later in ("recall", "withheld"):
        if not value[later]:
            del value[later]
    return value


def search_from(record: Mapping[str, Any]) -> SearchUse | None:
    value = record.get("search")
    if value is None:
        return None
    evidence = _flat_from(Evidence, value["evidence"])
    withheld = tuple(value.get("withheld", ()))
    values = {
        **value,
        "evidence": evidence,
        "ranked": _candidates_from(record),
        "withheld": withheld,
    }
    return _flat_from(SearchUse, values)


def model_json(model: ModelUse | None) -> Json | None:
    """Return what a question to a model cost and gave; null where none was asked."""
    if model is None:
        return None
    value = flat_json(model)
    if model.sure is None:  # came after the first layout
        del value["sure"]
    return value


def model_from(record: Mapping[str, Any]) -> ModelUse | None:
    value = record.get("model")
    return _flat_from(ModelUse, value) if value else None


def _candidates_from(record: Mapping[str, Any]) -> tuple[Candidate, ...]:
    return tuple(_flat_from(Candidate, row) for row in record.get("candidates", ()))


# --- what was decided -----------------------------------------------------------------------------


def _row_json(row: Chosen | LeftOut | WouldRefuse) -> Json:
    """Return a row without the empty fields that came after the first layout."""
    value = flat_json(row)
    for later in ("mode", "tool"):
        if value.get(later, "") is None:
            del value[later]
    return value


@lru_cache(256)
def _rows_json(rows: tuple[Chosen | LeftOut | WouldRefuse, ...]) -> EncodedRows:
    return EncodedRows([_row_json(row) for row in rows])


def outcome_json(decision: Decision) -> Json:
    """Return the decided part of the record, which a replay has to reproduce byte for byte."""
    would: Json = {"would": _rows_json(decision.would)} if decision.would else {}
    return would | {
        **flat_json(decision, _OUTCOME),
        "bundles": _rows_json(decision.bundles),
        "left_out": _rows_json(decision.left_out),
        "candidates": [flat_json(candidate) for candidate in decision.candidates],
        "search": search_json(decision.search),
        "model": model_json(decision.model),
        "activation": _sets_json(decision),
        "exposure": flat_json(decision.exposure),
    }


def _sets_json(decision: Decision) -> EncodedObject:
    before_rows = activation_json(decision.before)
    after_rows = activation_json(decision.after)
    evicted = list(decision.evicted)
    text = (
        f'{{"after":{text_of(after_rows)},"before":{text_of(before_rows)}'
        f',"evicted":{encode(evicted)}}}'
    )
    return EncodedObject({"before": before_rows, "after": after_rows, "evicted": evicted}, text)


def decision_from(record: Mapping[str, Any]) -> Decision:
    """Return the decision in a record."""
    return Decision(
        bundles=tuple(_flat_from(Chosen, row) for row in record["bundles"]),
        left_out=tuple(_flat_from(LeftOut, row) for row in record["left_out"]),
        **{name: record[name] for name in (*_OUTCOME, *_IDS)},
        candidates=_candidates_from(record),
        before=activation_from(record["activation"]["before"]),
        after=activation_from(record["activation"]["after"]),
        evicted=tuple(record["activation"]["evicted"]),
        exposure=_flat_from(Exposure, record["exposure"]),
        model=model_from(record),
        search=search_from(record),
        would=tuple(_flat_from(WouldRefuse, row) for row in record.get("would", ())),
        seq=record.get("seq", -1),
    )
