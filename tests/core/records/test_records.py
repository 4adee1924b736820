"""What a record holds can be read back whole, and a replay says truly what changed."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from bundle_router.core.catalog import ActivationSettings, Bundle, Catalog, Policy, Route, Settings
from bundle_router.core.decide.decide import decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.decision_record import (
    DecisionRecord,
    decision_from,
    facts_from,
    input_digest,
    reply_from,
    step_from,
)
from bundle_router.core.records.replayed import catalog_from, replay
from bundle_router.core.values import (
    DRIFT_CODES,
    Activation,
    Answer,
    BinaryForm,
    BinaryRule,
    Candidate,
    Decision,
    Drift,
    Facts,
    LocalSettings,
    ModelUse,
    Reply,
    SearchUse,
    Step,
)
from bundle_router.core.values.canonical import EncodedObject, digest_of, encode, encode_object
from bundle_router.testing import fake_router, small_catalog
from hypothesis import given
from hypothesis import strategies as st

ROUTES = [
    Route("ask", step=("ask",), bundles=("x",), ask=("*",)),
    Route("x", step=("x",), bundles=("x",)),
    Route("two", step=("two",), bundles=("x", "y")),
]


def catalog(**bundles: list[str] | Bundle) -> Catalog:
    every: dict[str, list[str] | Bundle] = {
        "x": ["s.x"],
        "y": ["s.y"],
        "z": ["s.z"],
        "u": ["s.u"],
        **bundles,
    }
    return small_catalog(
        every, routes=ROUTES, settings=Settings(activation=ActivationSettings(max_tools=2))
    )


class Saying:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def select(self, question: object, recent: object) -> Reply:
        return self._reply


USE = ModelUse("m", "v1", "k", attempts=1, input_tokens=5, cost_usd=0.5, answer="{}")
FOUND = SearchUse(
    "ambiguous", "unsure", "t", 0.5, 0.9, 0.1, ranked=(Candidate("y", 0.5), Candidate("z", 0.25))
)
SAID = Answer(("y",), "model", "model", "needs y", model=USE, dropped=(("u", "below_floor"),))
STEP = Step(
    run_id="r", workflow="w", role="r", step="ask", goal="g", constraints=("c",), principal="ann", labels={"a": "b"},
    policy={"allow": ["*"], "deny": ["absent.*"], "trust": "trusted"}, max_bundles=9, max_tools=9, max_tokens=999,
)  # fmt: skip


def recorded(
    reply: Reply, over: Catalog | None = None, step: Step = STEP
) -> tuple[Any, dict[str, Any]]:
    router = fake_router(over or catalog(), selector=Saying(reply))
    router.route_sync(step.model_copy(update={"step": "x"}))
    router.route_sync(step)
    decision = router.route_sync(step)
    return decision, router.fakes.records("r")[-1]


def test_every_field_of_a_decisions_record_is_read_back() -> None:
    written = DecisionRecord.from_json(recorded(Reply(failure="refused"))[1])
    texts: dict[str, Any] = {
        item.name: f"a {item.name}" for item in fields(written) if item.default == ""
    }
    whole = replace(written, fixed_list=True, elapsed_us=1, monotonic_ns=2, **texts)
    assert [
        item.name
        for item in fields(whole)
        if item.compare and getattr(whole, item.name) == item.default
    ] == []
    line = json.loads(encode(whole.to_json())) | {"seq": whole.decision.seq}  # which the chain adds
    assert DecisionRecord.from_json(line) == whole


@pytest.mark.parametrize(
    "reply",
    [
        Reply(answer=SAID, model=USE, search=FOUND, revisions=(("memory", "sha256:1"),)),
        Reply(
            answer=replace(SAID, source="search", reason="union"),
            failure="timeout",
            model=USE,
            search=FOUND,
        ),
        Reply(failure="timeout", model=USE, search=FOUND),
        Reply(failure="refused"),
        Reply(search=FOUND),
    ],
)
def test_a_decision_its_step_facts_and_reply_are_read_back_as_they_were(reply: Reply) -> None:
    decision, record = recorded(reply)
    assert decision_from(record) == replace(decision, search=decision.search and replace(
        decision.search, ranked=decision.candidates))  # fmt: skip
    assert step_from(record) == STEP
    assert (record["degraded"], decision.search is None) == (
        reply.failure is not None,
        reply.search is None,
    )
    assert facts_from(record).revisions == reply.revisions
    heard = reply_from(record)
    assert heard is not None
    assert (heard.failure, heard.model) == (
        reply.failure,
        reply.model or (reply.answer.model if reply.answer else None),
    )
    if reply.answer is not None:
        assert heard.answer is not None
        assert (heard.answer.ids, heard.answer.dropped, heard.answer.model) == (
            ("y",),
            SAID.dropped,
            USE,
        )
        assert record["left_out"][-1]["id"] == "z"
    assert replay(record, catalog()).outcome == "identical"


def test_an_eviction_is_read_back_and_an_inherited_bundle_stays_marked() -> None:
    router = fake_router(catalog(), selector=lambda question: ("y", "z"))
    router.route_sync(Step(run_id="top", workflow="w", role="r", step="x"))
    router.route_sync(Step(run_id="kid", workflow="w", role="r", step="other", parent_run_id="top"))
    router.route_sync(Step(run_id="kid", workflow="w", role="r", step="two"))
    first, second = router.fakes.records("kid")
    assert decision_from(second).evicted == ("z",)
    assert [entry.inherited for entry in decision_from(first).before.entries] == [True]
    assert facts_from(first).grants[0].address == ("w", "r", "x")
    assert [replay(record, catalog()).outcome for record in (first, second)] == ["identical"] * 2


def test_every_part_of_the_input_is_in_its_digest() -> None:
    _, record = recorded(Reply(answer=SAID))
    parts = [
        record["catalog_revision"],
        record["step"],
        record["facts"],
        record["activation"]["before"],
        record["reply"],
    ]
    assert input_digest(*parts) == record["input_digest"]
    for position in range(len(parts)):
        changed = [*parts[:position], "other" if position == 0 else {}, *parts[position + 1 :]]
        assert input_digest(*changed) != record["input_digest"]


VALUES = st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=2)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=3)


@given(st.dictionaries(st.text(), VALUES | OBJECTS, max_size=5), st.sets(st.integers(0, 4)))
def test_an_object_whose_text_was_kept_is_written_byte_for_byte_as_any_other(
    record: dict[str, Any], kept: set[int]
) -> None:
    with_texts = {
        name: EncodedObject(value) if at in kept and isinstance(value, dict) else value
        for at, (name, value) in enumerate(record.items())
    }
    assert encode_object(with_texts) == encode(record)
    part = EncodedObject(record)
    plain, encoded = (
        input_digest("r", {"a": 1}, facts, [{"id": "x"}], None) for facts in (record, part)
    )
    assert plain == encoded == digest_of(["r", {"a": 1}, record, [{"id": "x"}], None])


def test_a_catalog_is_read_back_whole() -> None:
    rule = BinaryRule(name="rg", path="/usr/bin/rg", forms=(BinaryForm(words=("x",)),))
    whole = replace(
        catalog(),
        local=LocalSettings(
            docs_hosts=("docs.example.org",), binaries=(rule,), hard_links="refuse"
        ),
    )
    assert catalog_from(whole.to_json()).revision == whole.revision
    assert catalog_from(whole.to_json()).local == whole.local


def test_a_replay_under_another_config_says_what_was_gained_and_lost() -> None:
    then = catalog()
    _, mapped = recorded(Reply(), then, STEP.model_copy(update={"step": "x"}))
    reworded = replace(
        then,
        policies=(Policy("renamed", allow=("*",)),),
        routes=(replace(ROUTES[1], name="renamed"),),
    )
    assert replay(mapped, reworded).outcome == "same_bundles"
    more = catalog(x=["s.x", "s.more"])
    wider = replay(mapped, more, then)
    assert (wider.outcome, wider.gained_tools, wider.lost_tools) == ("changed", ("s.more",), ())
    narrower = replay(mapped, then, more)
    assert (narrower.outcome, narrower.gained_tools, narrower.lost_tools) == (
        "changed",
        (),
        ("s.more",),
    )
    denying = (Policy("p", allow=("*",), deny=("x",)),)
    other = replay(
        mapped, replace(then, routes=(replace(ROUTES[1], bundles=("y",)),), policies=denying)
    )
    assert (other.outcome, other.gained, other.lost) == ("changed", ("y",), ("x",))


def test_a_late_list_makes_a_decision_degraded_by_its_name_and_not_by_what_the_reason_says() -> (
    None
):
    why = "it is still being asked for its tools, after 5.0 s"
    step = STEP.model_copy(update={"step": "two"})

    def record(**facts: Any) -> tuple[bool, DecisionRecord]:
        decision = decide(Plans(catalog()), Facts(**facts), Activation(), step)
        assert isinstance(decision, Decision)
        decision = replace(decision, run_id="r")
        return decision.degraded, DecisionRecord(
            decision=decision, step=step, facts=Facts(**facts), reply=None, time=""
        )

    away = (("s", why),)
    assert [record(unavailable=away)[0], record(pending=("s",))[0]] == [False, False]
    assert record(unavailable=(("s", "it is down"),), pending=("t",))[0] is False
    is_degraded, named = record(unavailable=(("s", "asked"),), pending=("s",))
    assert is_degraded
    assert replay(named, catalog()).outcome == "identical"
    for was_degraded in (True, False):  # records of before servers were named in them
        older = json.loads(encode(record(unavailable=away)[1].to_json())) | {
            "seq": 0,
            "degraded": was_degraded,
        }
        assert "pending" not in older["facts"]
        assert replay(older, catalog()).outcome == "identical"


def test_what_drifted_in_a_record_that_says_no_more_replays_to_its_code() -> None:
    step = STEP.model_copy(update={"step": "two"})
    named = [
        (server, tool)
        for name in catalog().bundles[ROUTES[1].bundles[0]].tools
        for server, tool in [name.split(".")]
    ]
    rows = {}
    for code in DRIFT_CODES:
        facts = Facts(drifted=tuple(Drift(server, tool, code) for server, tool in named))
        decision = decide(Plans(catalog()), facts, Activation(), step)
        assert isinstance(decision, Decision)
        decision = replace(decision, run_id="r")
        made = DecisionRecord(decision=decision, step=step, facts=facts, reply=None, time="")
        rows[code] = json.loads(encode(made.to_json())) | {"seq": 0}
        assert {row["code"] for row in rows[code]["left_out"]} == {code}
        assert replay(rows[code], catalog()).outcome == "identical"
    assert all(row.keys() == {"server", "tool"} for row in rows["pin_drift"]["facts"]["drifted"]), (
        "as ever"
    )


def test_a_reply_is_heard_again_only_for_the_question_that_was_put() -> None:
    _, answered = recorded(Reply(answer=SAID))
    _, unheard = recorded(Reply())
    fewer = replace(catalog(), policies=(Policy("p", allow=("*",), deny=("z",)),))
    assert replay(answered, fewer).outcome == "asks_anew"
    assert replay(unheard, fewer).outcome != "asks_anew"  # nobody was there to ask, nobody would be
    _, mapped = recorded(Reply(), step=STEP.model_copy(update={"step": "x"}))
    assert replay(mapped, replace(catalog(), routes=())).outcome == "asks_anew"
