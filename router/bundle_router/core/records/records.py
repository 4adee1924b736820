"""The decision record: what stands on a line of `routing.jsonl`, and how to read it back.

Rules:
1. No object is keyed by data: lists of `{id, …}` throughout, so that columns stay columns for every reader.
2. The record holds all that is needed to take the decision again: step, facts, activation before, and the reply.
3. Readers ignore fields they do not know; fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from bundle_router.core.catalog import Bundle, Card, Catalog, Policy, Route, Server, Settings, Skill
from bundle_router.core.models import (
    Activation,
    Answer,
    Asked,
    Candidate,
    Chosen,
    Decision,
    Entry,
    Exposure,
    Facts,
    Grant,
    LeftOut,
    LocalSettings,
    ModelUse,
    Reply,
    SearchUse,
    Step,
    StepPolicy,
)
from bundle_router.core.models.canonical import digest, encode
from bundle_router.core.models.evidence import Evidence

DECISION_SCHEMA: Final = "bundle-router.decision/1"
CALL_SCHEMA: Final = "bundle-router.call/1"

Json = dict[str, Any]
T = TypeVar("T")


def policy_json(policy: StepPolicy | None) -> Json | None:
    if policy is None:
        return None
    allow = None if policy.allow is None else list(policy.allow)
    return {"allow": allow, "deny": list(policy.deny), "trust": policy.trust}


def step_json(step: Step) -> Json:
    """The step as recorded: every field, labels as a list."""
    return {
        "workflow": step.workflow,
        "role": step.role,
        "step": step.step,
        "goal": step.goal,
        "constraints": list(step.constraints),
        "policy": policy_json(step.policy),
        "parent_run_id": step.parent_run_id,
        "inherit": step.inherit,
        "max_bundles": step.max_bundles,
        "max_tools": step.max_tools,
        "max_tokens": step.max_tokens,
        "labels": [{"name": name, "value": step.labels[name]} for name in sorted(step.labels)],
        "workspace": step.workspace,
    }


def facts_json(facts: Facts) -> Json:
    return {
        "capabilities": sorted(facts.capabilities),
        "unavailable": [{"server": server, "why": why} for server, why in facts.unavailable],
        "drifted": [{"server": server, "tool": tool} for server, tool in facts.drifted],
        "grants": [
            {"workflow": g.workflow, "role": g.role, "step": g.step, "policy": policy_json(g.policy)}
            for g in facts.grants
        ],
        "revisions": [{"name": name, "revision": revision} for name, revision in facts.revisions],
    }


def activation_json(activation: Activation) -> list[Json]:
    return [
        {
            "id": e.id,
            "origin": e.origin,
            "used": e.used,
            "inherited": e.inherited,
            "place": e.place,
            "tools": [{"name": tool.name, "place": tool.place, "used": tool.used} for tool in e.tools],
        }
        for e in activation.entries
    ]


def reply_json(reply: Reply | None) -> Json | None:
    """What became of the question, or null when none was put. `heard` is `answered`, `failed` or `nobody`.

    `answered` with a `failure`: a model failed, and search stands in for it.
    """
    if reply is None:
        return None
    if reply.answer is None:
        return {"heard": "failed" if reply.failure else "nobody", "key": reply.key, "failure": reply.failure}
    answer = reply.answer
    return {
        "heard": "answered",
        "key": reply.key,
        "failure": reply.failure,
        "ids": list(answer.ids),
        "source": answer.source,
        "reason": answer.reason,
        "justification": answer.justification,
        "dropped": [{"id": id_, "code": code} for id_, code in answer.dropped],
    }


def search_json(search: SearchUse | None) -> Json | None:
    """What search found, without the ranking: that is `candidates`."""
    if search is None:
        return None
    return {
        "verdict": search.verdict,
        "why": search.why,
        "thresholds": search.thresholds,
        "probability": search.probability,
        "threshold": search.threshold,
        "cut": search.cut,
        "evidence": asdict(search.evidence),
        "embeddings": search.embeddings,
        **({"recall": search.recall} if search.recall is not None else {}),
    }


def input_digest(catalog_revision: str, step: Json, facts: Json, before: list[Json], reply: Json | None) -> str:
    """The digest of everything the decision was computed from. Equal digests: equal decisions."""
    return digest(encode([catalog_revision, step, facts, before, reply]))


def _left_out_json(row: LeftOut) -> Json:
    out: Json = {"id": row.id, "code": row.code, "detail": row.detail}
    if row.tool is not None:
        out["tool"] = row.tool
    return out


def outcome_json(decision: Decision) -> Json:
    """What was decided: the part of the record that a replay has to reproduce byte for byte."""
    exposure = decision.exposure
    return {
        "source": decision.source,
        "degraded": decision.degraded,
        "bundles": [{"id": c.id, "rank": c.rank, "reason": c.reason, "evidence": c.evidence} for c in decision.bundles],
        "left_out": [_left_out_json(row) for row in decision.left_out],
        "justification": decision.justification,
        "route": decision.route,
        "candidates": [{"id": c.id, "score": c.score} for c in decision.candidates],
        "search": search_json(decision.search),
        "model": asdict(decision.model) if decision.model is not None else None,
        "activation": {
            "before": activation_json(decision.before),
            "after": activation_json(decision.after),
            "evicted": list(decision.evicted),
        },
        "exposure": {
            "tools": exposure.tools,
            "tokens": exposure.tokens,
            "all_tools": exposure.all_tools,
            "all_tokens": exposure.all_tokens,
        },
    }


# --- reading back --------------------------------------------------------------------------------------------------


def _policy_from(value: Any) -> StepPolicy | None:
    if value is None:
        return None
    return StepPolicy(allow=value.get("allow"), deny=value.get("deny", ()), trust=value.get("trust"))


def step_from(record: Mapping[str, Any]) -> Step:
    """The step a record was decided on. Raises pydantic's ValidationError or KeyError on a record that isn't one."""
    value = record["step"]
    return Step(
        run_id=record["run_id"],
        principal=record.get("principal", ""),
        policy=_policy_from(value.get("policy")),
        labels={label["name"]: label["value"] for label in value.get("labels", ())},
        **{
            name: value[name]
            for name in (
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
            if name in value
        },
    )


def facts_from(record: Mapping[str, Any]) -> Facts:
    value = record["facts"]
    return Facts(
        capabilities=frozenset(value.get("capabilities", ())),
        unavailable=tuple((row["server"], row["why"]) for row in value.get("unavailable", ())),
        drifted=tuple((row["server"], row["tool"]) for row in value.get("drifted", ())),
        grants=tuple(
            Grant(row["workflow"], row["role"], row["step"], _policy_from(row.get("policy")))
            for row in value.get("grants", ())
        ),
        revisions=tuple((row["name"], row["revision"]) for row in value.get("revisions", ())),
    )


def activation_from(rows: list[Mapping[str, Any]]) -> Activation:
    return Activation(
        tuple(
            Entry(
                r["id"],
                r["origin"],
                r["used"],
                r.get("inherited", False),
                r.get("place", 0),
                tuple(Asked(tool["name"], tool["place"], tool["used"]) for tool in r.get("tools", ())),
            )
            for r in rows
        )
    )


def decision_from(record: Mapping[str, Any]) -> Decision:
    """The decision a record tells of."""
    reply = reply_from(record)
    return Decision(
        bundles=tuple(Chosen(r["id"], r["rank"], r["reason"], r.get("evidence", "")) for r in record["bundles"]),
        left_out=tuple(LeftOut(r["id"], r["code"], r.get("detail", ""), r.get("tool")) for r in record["left_out"]),
        source=record["source"],
        degraded=record["degraded"],
        justification=record["justification"],
        route=record["route"],
        candidates=_ranked_from(record),
        before=activation_from(record["activation"]["before"]),
        after=activation_from(record["activation"]["after"]),
        evicted=tuple(record["activation"]["evicted"]),
        exposure=Exposure(
            **{name: record["exposure"][name] for name in ("tools", "tokens", "all_tools", "all_tokens")}
        ),
        model=reply.model if reply is not None else None,
        search=reply.search if reply is not None else None,
        run_id=record["run_id"],
        seq=record["seq"],
        decision_id=record["decision_id"],
        catalog_revision=record["catalog_revision"],
        input_digest=record["input_digest"],
    )


def _ranked_from(record: Mapping[str, Any]) -> tuple[Candidate, ...]:
    return tuple(Candidate(row["id"], row.get("score")) for row in record.get("candidates", ()))


def model_from(record: Mapping[str, Any]) -> ModelUse | None:
    value = record.get("model")
    known = {field.name for field in fields(ModelUse)}
    return ModelUse(**{name: part for name, part in value.items() if name in known}) if value else None


def search_from(record: Mapping[str, Any]) -> SearchUse | None:
    value = record.get("search")
    if value is None:
        return None
    known = {field.name for field in fields(Evidence)}
    return SearchUse(
        verdict=value["verdict"],
        why=value["why"],
        thresholds=value["thresholds"],
        probability=value.get("probability"),
        threshold=value.get("threshold"),
        cut=value.get("cut", 0.0),
        evidence=Evidence(**{name: number for name, number in value["evidence"].items() if name in known}),
        ranked=_ranked_from(record),
        embeddings=value.get("embeddings"),
        recall=value.get("recall"),
    )


def reply_from(record: Mapping[str, Any]) -> Reply | None:
    value = record.get("reply")
    if value is None:
        return None
    model, search = model_from(record), search_from(record)
    if value["heard"] != "answered":
        return Reply(value.get("key", ""), None, value.get("failure"), model, search)
    answer = Answer(
        ids=tuple(value["ids"]),
        source=value["source"],
        reason=value["reason"],
        justification=value["justification"],
        scores=_ranked_from(record),
        model=model,
        dropped=tuple((row["id"], row["code"]) for row in value.get("dropped", ())),
    )
    return Reply(value.get("key", ""), answer, value.get("failure"), model, search)


# --- catalogs ------------------------------------------------------------------------------------------------------


def catalog_from(value: Mapping[str, Any]) -> Catalog:
    """The catalog that a `catalog.json` holds. Raises pydantic's ValidationError on what is not one."""

    def each(kind: type[T], rows: str) -> tuple[T, ...]:
        return TypeAdapter(tuple[kind, ...]).validate_python(value.get(rows, ()))  # type: ignore[valid-type]  # a runtime type

    return Catalog(
        servers={server.name: server for server in each(Server, "servers")},
        bundles={bundle.id: bundle for bundle in each(Bundle, "bundles")},
        routes=each(Route, "routes"),
        policies=each(Policy, "policies"),
        settings=TypeAdapter(Settings).validate_python(value.get("settings", {})),
        local=LocalSettings.model_validate(value.get("local", {})),
        cards={card.name: card for card in each(Card, "cards")},
        skills={skill.path: skill for skill in each(Skill, "skills")},
    )
