"""What selectors say: believed only where they speak for search or a model, and recorded as it was
heard.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import Route
from bundle_router.core.decide.decide import Question, decide, settle
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.decision_record import input_digest
from bundle_router.core.records.replayed import replay
from bundle_router.core.values import (
    Activation,
    Answer,
    Candidate,
    Facts,
    ModelUse,
    RecentStep,
    Reply,
    SearchUse,
    Step,
)
from bundle_router.core.values.canonical import encode
from bundle_router.testing import FakeRouter, fake_router, small_catalog

CATALOG = small_catalog(
    {"a": ["s.a"], "b": ["s.b"], "c": ["s.c"]},
    routes=[Route("closed", step=("closed",), bundles=("c",))],
)
SECRET = "hunter2hunter2"


class Saying:
    """A selector of somebody's own."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        return self._reply


def step(at: str = "open") -> Step:
    return Step(run_id="r", workflow="w", role="r", step=at)


def routed(reply: Reply, **changes: Any) -> tuple[FakeRouter, dict[str, Any]]:
    router = fake_router(CATALOG, selector=Saying(reply), **changes)
    router.route_sync(step())
    return router, router.fakes.records("r")[0]


SOUND = Answer(("a",), "search", "search", "said", (Candidate("a", 0.5),))
USE = ModelUse("m", attempts=1, cost_usd=0.5, answer="{}")
NAN = float("nan")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(answer=replace(SOUND, reason="mapped")), id="claims to be mapped"),
        pytest.param(Reply(answer=replace(SOUND, reason="always")), id="claims to be shown always"),
        pytest.param(Reply(answer=replace(SOUND, reason="default")), id="claims to be the default"),
        pytest.param(Reply(answer=replace(SOUND, source="mapping")), id="claims to be the mapping"),
        pytest.param(Reply(answer=replace(SOUND, scores=(Candidate("a", NAN),))), id="a score that is no number"),
        pytest.param(Reply(answer=replace(SOUND, scores=(Candidate("a", float("inf")),))), id="an infinite score"),
        pytest.param(Reply(answer=replace(SOUND, scores=(Candidate("a", 10**400),))), id="a score beyond floats"),
        pytest.param(Reply(answer=replace(SOUND, scores=(Candidate("a", "9"),))), id="a score in words"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=replace(SOUND, ids=(5,))), id="an id that is no text"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=replace(SOUND, ids=("a", object()))), id="an id that can't be written"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=replace(SOUND, justification=None)), id="no justification"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=replace(SOUND, dropped=(("a", "because"),))), id="a code of its own"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=SOUND, model=replace(USE, cost_usd=NAN)), id="a cost that is no number"),
        pytest.param(Reply(answer=SOUND, search=SearchUse("enough", "w", "t", probability=NAN)), id="a probability"),
        pytest.param(Reply(answer=SOUND, search=SearchUse("enough", 5, "t")), id="no reason"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=replace(SOUND, dropped=((5, "over_budget"),))), id="a dropped id that is no text"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=replace(SOUND, scores=(Candidate(5, 0.5),))), id="a score of no text"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=SOUND, search=SearchUse("enough", "w", "t", cut="9")), id="a cut in words"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(search=SearchUse("enough", "w", "t", ranked=(Candidate("a", "9"),))), id="a rank in words"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(5, SOUND), id="a key that is no text"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=SOUND, revisions=((5, "memory"),)), id="a revision of no name"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(failure="bad luck"), id="a failure of its own"),  # type: ignore[arg-type]  # what it is about
        pytest.param(Reply(answer=SOUND, revisions=(("memory", 5),)), id="a revision that is no text"),  # type: ignore[arg-type]  # what it is about
    ],
)  # fmt: skip
def test_a_reply_that_cant_be_believed_or_written_is_an_internal_failure(reply: Reply) -> None:
    router, record = routed(reply)
    assert (record["source"], record["degraded"], record["bundles"]) == ("none", True, [])
    assert (record["reply"]["heard"], record["reply"]["failure"]) == ("failed", "internal")
    assert replay(record, CATALOG).outcome == "identical"
    assert [(level, name) for level, name, _ in router.fakes.diagnostics.events] == [
        ("error", "reply.refused")
    ]
    assert router.route_sync(step("closed")).bundle_ids == ["c"]


def test_what_a_refused_reply_cost_is_still_recorded() -> None:
    _, record = routed(Reply(answer=replace(SOUND, reason="mapped"), model=USE))
    assert (record["model"]["name"], record["model"]["cost_usd"]) == ("m", 0.5)


@pytest.mark.parametrize(
    ("source", "reason"),
    [("search", "search"), ("search", "union"), ("model", "model"), ("model", "model_cached")],
)
def test_what_search_and_models_say_for_themselves_is_heard(source: Any, reason: Any) -> None:
    router, record = routed(Reply(answer=replace(SOUND, source=source, reason=reason)))
    assert [(row["id"], row["reason"]) for row in record["bundles"]] == [("a", reason)]
    assert router.fakes.diagnostics.events == []


@pytest.mark.parametrize("score", [1e300, -1e300, 5, None])
def test_any_number_that_floats_hold_well_is_a_score(score: float | None) -> None:
    router, record = routed(Reply(answer=replace(SOUND, scores=(Candidate("a", score),))))
    assert [row["score"] for row in record["candidates"]] == [score]
    assert router.fakes.diagnostics.events == []


def test_what_is_said_twice_is_heard_and_recorded_once_and_replays_to_the_same_bytes() -> None:
    scores = (
        Candidate("c", 0.1),
        Candidate("a", None),
        Candidate("b", 0.9),
        Candidate("a", 0.5),
        Candidate("c", 0.7),
    )
    answer = Answer(("a", "c", "a", "zz", "zz"), "search", "search", "said", scores,
                    dropped=(("b", "over_budget"), ("b", "below_floor")))  # fmt: skip
    _, record = routed(Reply(answer=answer))
    assert [(row["id"], row["score"]) for row in record["candidates"]] == [
        ("b", 0.9),
        ("c", 0.7),
        ("a", 0.5),
    ]
    assert [(row["id"], row["evidence"]) for row in record["bundles"]] == [
        ("a", "score 0.50"),
        ("c", "score 0.70"),
    ]
    assert record["reply"]["ids"] == ["a", "c", "zz"]
    assert record["reply"]["dropped"] == [{"id": "b", "code": "over_budget"}]
    assert [(row["id"], row["code"]) for row in record["left_out"]] == [
        ("b", "over_budget"),
        ("zz", "unknown_bundle"),
    ]
    assert replay(record, CATALOG).outcome == "identical"


def test_a_pick_without_scores_of_its_own_rests_on_what_search_ranked_live_and_on_replay() -> None:
    found = SearchUse(
        "enough",
        "sure",
        "t",
        ranked=(Candidate("a", 0.5), Candidate("b", 0.25), Candidate("b", 0.75)),
    )
    _, record = routed(Reply(answer=replace(SOUND, scores=()), search=found))
    assert [row["evidence"] for row in record["bundles"]] == ["score 0.50"]
    assert [(row["id"], row["score"]) for row in record["candidates"]] == [("b", 0.75), ("a", 0.5)]
    assert replay(record, CATALOG).outcome == "identical"


def test_settling_does_not_depend_on_the_order_of_scores() -> None:
    question = decide(Plans(CATALOG), Facts(), Activation(), step())
    assert isinstance(question, Question)
    rows = (Candidate("c", 0.1), Candidate("a", 0.5), Candidate("b", 0.5))
    made = [settle(question, replace(SOUND, scores=order)) for order in (rows, rows[::-1])]
    assert made[0] == made[1]
    assert [row.id for row in made[0].candidates] == ["a", "b", "c"]


def test_a_secret_in_a_reply_is_gone_before_anything_is_made_of_it() -> None:
    use = ModelUse("m", answer=f'{{"why": "{SECRET}"}}')
    answer = Answer(("a", SECRET), "model", "model", f"because {SECRET}", (Candidate(f"x{SECRET}", 0.5),), use,
                    ((SECRET + "d", "below_floor"),))  # fmt: skip
    found = SearchUse("ambiguous", f"why {SECRET}", "t", ranked=(Candidate(SECRET, 0.5),))
    router, record = routed(Reply(answer=answer, model=use, search=found), secrets=[SECRET])
    assert SECRET not in json.dumps(record)
    assert SECRET not in encode([str(router.route_sync(step()))])
    parts = record["step"], record["facts"], record["activation"]["before"], record["reply"]
    assert record["input_digest"] == input_digest(record["catalog_revision"], *parts)
    assert [row["id"] for row in record["bundles"]] == ["a"]
    assert replay(record, CATALOG).outcome == "identical"
    _, failed = routed(Reply(failure="timeout", model=use), secrets=[SECRET])
    assert SECRET not in json.dumps(failed)
    assert replay(failed, CATALOG).outcome == "identical"


def test_an_old_record_of_a_reply_that_would_not_be_believed_any_more_still_replays() -> None:
    _, record = routed(Reply(answer=SOUND))
    old = json.loads(json.dumps(record))
    old["reply"] |= {"source": "mapping", "reason": "mapped"}
    again = replay(old, CATALOG)
    assert (again.outcome, again.lost, again.decision.degraded) == ("changed", ("a",), True)
