"""`[search]` in router.toml, and what a reply of every shape does to decisions and their
records.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.catalog import (
    Calibration,
    Catalog,
    EmbeddingSettings,
    Policy,
    SearchSettings,
    Settings,
)
from bundle_router.core.config import ConfigFile, load
from bundle_router.core.config.config_text import Layer
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.decision_record import (
    decision_from,
    facts_json,
    outcome_json,
    reply_json,
    step_json,
)
from bundle_router.core.records.replayed import catalog_from, conclude, replay
from bundle_router.core.values import (
    FAILURES,
    Activation,
    Answer,
    Candidate,
    Facts,
    ModelUse,
    Reply,
    SearchUse,
    Step,
)
from bundle_router.core.values.canonical import encode
from bundle_router.core.values.evidence import Evidence
from bundle_router.review.lint import check
from hypothesis import given
from hypothesis import strategies as st

from tests.core.decide.test_decide_properties import (
    IDS,
    activations,
    catalogs,
    facts_,
    permitted,
    steps,
)
from tests.profiles import examples

SHIPPED = (Path(__file__).parents[3] / "config" / "router.toml").read_text(encoding="utf-8")
CALIBRATION = """
[search.calibration]
version = "2026-11"
labels = 412
bias = -1.9
weights = { margin = 4.1, agreement = 0.8 }
"""


def settings_of(*texts: str) -> SearchSettings:
    """Of texts of `router.toml` over each other, the shipped one first."""
    layers: tuple[Layer, ...] = ("shipped", "project")
    files = [
        ConfigFile("router.toml", "router.toml", text, layer)
        for text, layer in zip(texts, layers, strict=False)
    ]
    return load(files, cards={}).settings.search


def test_the_shipped_values_are_the_defaults() -> None:
    assert settings_of(SHIPPED) == settings_of("") == SearchSettings()


def test_a_project_sets_what_it_wants_key_by_key() -> None:
    found = settings_of(SHIPPED, "[search]\nfloor = 0.1\nmax_union = 0\n" + CALIBRATION)
    fitted = Calibration("2026-11", 412, -1.9, (("agreement", 0.8), ("margin", 4.1)))
    assert found == SearchSettings(floor=0.1, max_union=0, calibration=fitted)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('local = "some_package"', EmbeddingSettings(local="some_package")),
        ('local = "/models/minilm"', EmbeddingSettings(local="/models/minilm")),
        (
            (
                'model = "openai/e"\nbase_url = "https://a.example/v1"\nkey_env = "KEY"\ndeadline_s'
                " = 0.5"
            ),
            EmbeddingSettings(
                "openai/e", base_url="https://a.example/v1", key_env="KEY", deadline_s=0.5
            ),
        ),
    ],
)
def test_what_embeds_is_named_in_the_config_and_survives_the_recorded_catalog(
    text: str, found: EmbeddingSettings
) -> None:
    assert settings_of(SHIPPED, f"[search.embeddings]\n{text}\n") == SearchSettings(
        embeddings=found
    )
    of = Catalog(settings=Settings(search=SearchSettings(embeddings=found)))
    read = catalog_from(json.loads(encode(of.to_json())))
    assert read.settings == of.settings
    assert read.revision == of.revision


def test_the_key_of_an_embedding_model_is_known_as_a_secret() -> None:
    assert EmbeddingSettings("openai/e", key_env="MINE").env_names == {"OPENAI_API_KEY", "MINE"}
    assert EmbeddingSettings(local="x").env_names == frozenset()


def test_a_calibration_survives_the_recorded_catalog() -> None:
    of = Catalog(
        settings=load(
            [ConfigFile("router.toml", "router.toml", CALIBRATION, "project")], cards={}
        ).settings
    )
    read = catalog_from(json.loads(encode(of.to_json())))
    assert read.settings == of.settings
    assert read.revision == of.revision


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[search]\nread_threshold = 1.5\n", "search.read_threshold"),
        ("[search]\nexec_threshold = 0.99\n", "search.exec_threshold"),
        ("[search]\nmax_union_tokens = -1\n", "search.max_union_tokens"),
        ("[search.embeddings]\n", "search.embeddings"),
        ('[search.embeddings]\nmodel = "a/b"\nlocal = "c"\n', "search.embeddings"),
        ('[search.embeddings]\nlocal = "../model"\n', "search.embeddings.local"),
        ('[search.embeddings]\nlocal = "a.b"\n', "search.embeddings.local"),
        ('[search.embeddings]\nmodel = "sk-abcdefghijklmnopqrstuv"\n', "search.embeddings.model"),
        (
            '[search.embeddings]\nmodel = "a/b"\nbase_url = "http://far.example/v1"\n',
            "search.embeddings.base_url",
        ),
        ('[search.embeddings]\nmodel = "a/b"\ndeadline_s = 0\n', "search.embeddings.deadline_s"),
        ('[search.embeddings]\nmodel = "a/b"\ndimension = 3\n', "search.embeddings.dimension"),
        (CALIBRATION.replace("412", "299"), "search.calibration.labels"),
        (CALIBRATION.replace("margin", "luck"), "search.calibration.weights"),
        (CALIBRATION.replace("-1.9", "nan"), "search.calibration.bias"),
        (CALIBRATION.replace('version = "2026-11"', ""), "search.calibration"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(text: str, said: str) -> None:
    problems = [
        str(p) for p in check([ConfigFile("router.toml", "router.toml", text, "project")], cards={})
    ]
    assert any(f" {said}" in problem for problem in problems), problems


def test_a_record_from_before_search_is_read_and_replayed() -> None:
    from bundle_router.testing import fake_router, small_catalog

    of = small_catalog({"a": ["a.1"], "b": ["b.1"]})
    with fake_router(of, selector=lambda asked: ["b"]) as router:
        router.route_sync(Step(run_id="r", workflow="w", role="x", step="y"))
        (record,) = router.fakes.records("r")
    old = {name: value for name, value in record.items() if name != "search"}
    assert decision_from(old).bundle_ids == ["b"]
    assert replay(old, of).outcome == "identical"


# --- replies of every shape -----------------------------------------------------------------------

shares = st.floats(0, 1).map(lambda value: round(value, 6))
ranked = st.lists(
    st.builds(Candidate, st.sampled_from((*IDS, "gone")), shares),
    max_size=6,
    unique_by=lambda row: row.id,
).map(tuple)
searches = st.none() | st.builds(
    SearchUse,
    verdict=st.sampled_from(("enough", "union", "ambiguous", "novel")),
    why=st.sampled_from(("search was not sure", "")),
    thresholds=st.just("t/1"),
    probability=st.none() | shares,
    threshold=st.none() | shares,
    cut=shares,
    evidence=st.builds(Evidence, margin=shares, coverage=shares),
    ranked=ranked,
)
models = st.none() | st.builds(
    ModelUse, st.just("m"), failure=st.none() | st.sampled_from(FAILURES)
)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    model, search = draw(models), draw(searches)
    answer = None
    if draw(st.booleans()):
        source: Any = draw(st.sampled_from(("search", "model", "shortlist")))
        answer = Answer(
            ids=tuple(draw(st.lists(st.sampled_from((*IDS, "unknown")), max_size=4))),
            source=source,
            reason=source,
            justification=draw(st.sampled_from(("", "it fits"))),
            scores=search.ranked if source != "model" and search is not None else (),
            model=model,
        )
    return Reply("", answer, draw(st.none() | st.sampled_from(FAILURES)), model, search)


@st.composite
def open_catalogs(draw: st.DrawFn) -> Catalog:
    """Catalogs in which questions are asked: everything is permitted, and a route, if there is one,
    asks.
    """
    of = draw(catalogs())
    bundles = {
        id_: replace(bundle, selectable=True, always=False) for id_, bundle in of.bundles.items()
    }
    rows = tuple(replace(route, ask=route.ask or ("*",)) for route in of.routes)
    return replace(of, bundles=bundles, routes=rows, policies=(Policy("everything", allow=("*",)),))


@given(catalogs() | open_catalogs(), facts_, activations, steps, replies())
@examples(400)
def test_a_reply_of_any_shape_stays_within_policy_and_replays_to_the_same_bytes(
    catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply
) -> None:
    question = decide(Plans(catalog), facts, before, step)
    if not isinstance(question, Question):
        return
    decision = conclude(question, reply)
    assert set(decision.bundle_ids) <= set(permitted(catalog, facts, step))
    assert decision.degraded is (reply.failure is not None)
    assert not set(decision.bundle_ids) & {row.id for row in decision.left_out if row.tool is None}
    rows = [(-(row.score or 0.0), row.id) for row in decision.candidates]
    assert rows == sorted(rows)
    record = json.loads(encode({
        "seq": 0, "run_id": "r", "principal": "", "decision_id": "r.0", "catalog_revision": "", "input_digest": "",
        "step": step_json(step), "facts": facts_json(facts),
        "reply": reply_json(replace(reply, key=question.key)), **outcome_json(decision),
    }))  # fmt: skip
    assert replay(record, catalog).outcome == "identical"
