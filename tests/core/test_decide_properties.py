"""The algebra of decisions, over random catalogs, policies, activations, facts and answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.core.canonical import encode
from router.core.catalog import ActivationSettings, Bundle, Catalog, Policy, Route, Settings
from router.core.decide import Question, decide, give_up, plan_for, settle
from router.core.models import (
    EFFECTS,
    Activation,
    Answer,
    Decision,
    Effect,
    Entry,
    Facts,
    Grant,
    Reason,
    Reply,
    Step,
    StepPolicy,
)
from router.core.records import activation_json, facts_json, outcome_json, reply_json, step_json
from router.core.replay import conclude, replay
from router.testing import small_catalog

IDS = ("repo.readonly", "repo.write", "docs.fetch", "docs.search", "workspace.exec", "notes")
TOOLS = tuple(f"{server}.{n}" for server in ("repo", "docs", "workspace") for n in range(4))
PATTERNS = (*IDS, *(f"bundle:{i}" for i in IDS), *(f"tool:{t}" for t in TOOLS), "repo.*", "docs.*", "*", "tool:repo.*")
NAMES = ("feature", "bugfix", "implementer", "reviewer", "edit", "test")

patterns = st.lists(st.sampled_from(PATTERNS), max_size=4).map(tuple)
names = st.lists(st.sampled_from((*NAMES, "*", "fea*", "re?iewer")), max_size=2).map(tuple)
effects: st.SearchStrategy[tuple[Effect, ...]] = st.lists(st.sampled_from(EFFECTS), unique=True, max_size=3).map(tuple)
step_policies = st.none() | st.builds(
    StepPolicy, allow=st.none() | patterns, deny=patterns, trust=st.sampled_from((None, "trusted", "untrusted"))
)
policies = st.builds(
    Policy,
    name=st.just("p"),
    workflow=names,
    role=names,
    step=names,
    allow=st.none() | patterns.filter(bool),
    deny=patterns,
    effects=st.none() | effects,
)
routes = st.builds(
    Route,
    name=st.sampled_from(("r1", "r2", "r3")),
    workflow=names,
    role=names,
    step=names,
    bundles=st.lists(st.sampled_from((*IDS, "unknown")), max_size=3).map(tuple),
    ask=st.none() | patterns,
)
flags = st.booleans()


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    bundles = {}
    for id_ in draw(st.lists(st.sampled_from(IDS), unique=True, min_size=1)):
        bundles[id_] = Bundle(
            id_,
            id_,
            tuple(sorted(draw(st.sets(st.sampled_from(TOOLS), min_size=1, max_size=6)))),
            effects=draw(effects),
            always=draw(st.integers(0, 5)) == 0,
            selectable=draw(flags),
            requires_env=("TOKEN",) if draw(st.integers(0, 3)) == 0 else (),
        )
    composed = [id_ for id_ in bundles if draw(st.integers(0, 4)) == 0]
    for id_ in composed[:1]:
        parts = tuple(other for other in bundles if other != id_ and not bundles[other].bundles)[:2]
        tools = {*bundles[id_].tools, *(tool for part in parts for tool in bundles[part].tools)}
        bundles[id_] = replace(bundles[id_], bundles=parts, tools=tuple(sorted(tools)))
    return small_catalog(
        bundles,
        routes=draw(st.lists(routes, max_size=4)),
        policies=draw(st.lists(policies, max_size=4)),
        settings=Settings(activation=ActivationSettings(draw(st.integers(0, 5)) > 0, draw(st.integers(1, 10)))),
    )


steps = st.builds(
    Step,
    run_id=st.just("r"),
    workflow=st.sampled_from(("feature", "bugfix")),
    role=st.sampled_from(("implementer", "reviewer")),
    step=st.sampled_from(("edit", "test")),
    goal=st.text(st.characters(codec="utf-8"), max_size=20),
    policy=step_policies,
    max_bundles=st.none() | st.integers(0, 3),
    max_tools=st.none() | st.integers(0, 8),
)
grants = st.lists(st.builds(Grant, st.sampled_from(("feature", "bugfix")), st.sampled_from(("implementer", "reviewer")),
                            st.sampled_from(("edit", "test")), step_policies), max_size=2).map(tuple)  # fmt: skip
facts_ = st.builds(
    Facts,
    capabilities=st.sampled_from((frozenset(), frozenset({"env:TOKEN"}))),
    unavailable=st.sampled_from(((), (("repo", "down"),))),
    drifted=st.sampled_from(((), (("docs", "1"),))),
    grants=grants,
)
origins: st.SearchStrategy[Reason] = st.sampled_from(("mapped", "search", "model", "default"))
activations = st.lists(
    st.builds(Entry, st.sampled_from(IDS), origins, st.integers(0, 9), flags), max_size=5, unique_by=lambda e: e.id
).map(lambda entries: Activation(tuple(sorted(entries, key=lambda e: e.id))))
answers = st.builds(
    Answer,
    ids=st.lists(
        st.sampled_from((*IDS, "unknown", "repo", "repo.readonlу", "REPO.READONLY")) | st.text(max_size=8), max_size=6
    ).map(tuple),
    source=st.just("model"),
    reason=st.just("model"),
)
replies = st.just(Reply()) | st.builds(Reply, answer=answers) | st.just(Reply(failure="timeout"))


def taken(catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply) -> Decision:
    first = decide(catalog, facts, before, step)
    return conclude(first, reply) if isinstance(first, Question) else first


def permitted(catalog: Catalog, facts: Facts, step: Step) -> dict[str, set[str]]:
    """An independent reading of the rules, without `policy.py`: bundle → permitted tools."""
    from fnmatch import fnmatchcase

    def covers(globs: tuple[str, ...], name: str) -> bool:
        return not globs or any(fnmatchcase(name, glob) for glob in globs)

    def names_tool(lists: tuple[str, ...], bundle: Bundle, tool: str, *, parts: bool) -> bool:
        held = [bundle.id] + [p for p in bundle.bundles if parts and tool in catalog.bundles[p].tools]
        return any(
            fnmatchcase(tool, text[5:]) if text.startswith("tool:") else any(
                fnmatchcase(id_, text.removeprefix("bundle:")) for id_ in held
            )
            for text in lists
        )  # fmt: skip

    places = [(step.workflow, step.role, step.step, step.policy)]
    places += [(g.workflow, g.role, g.step, g.policy) for g in facts.grants]
    result: dict[str, set[str]] = {}
    for bundle in catalog.bundles.values():
        left = set(bundle.tools)
        if bundle.requires_env and "env:TOKEN" not in facts.capabilities:
            left = set()
        for workflow, role, at, own in places:
            rows = [p for p in catalog.policies
                    if covers(p.workflow, workflow) and covers(p.role, role) and covers(p.step, at)]  # fmt: skip
            if not any(p.allow is not None for p in rows):
                left = set()
            for row in rows:
                if row.effects is not None and not set(bundle.effects) <= set(row.effects):
                    left = set()
            lists: list[tuple[tuple[str, ...] | None, tuple[str, ...]]] = [(p.allow, p.deny) for p in rows]
            if own is not None:
                lists.append((own.allow, own.deny))
            for allow, deny in lists:
                left = {t for t in left if allow is None or names_tool(allow, bundle, t, parts=False)}
                left = {t for t in left if not names_tool(deny, bundle, t, parts=True)}
        left = {t for t in left if t.split(".")[0] not in {s for s, _ in facts.unavailable}}
        left = {t for t in left if tuple(t.split(".")) not in facts.drifted}
        if left:
            result[bundle.id] = left
    return result


@given(catalogs(), facts_, activations, steps, replies)
@settings(max_examples=400, deadline=None)
def test_whatever_is_asked_or_answered_the_result_is_within_what_policy_permits(
    catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply
) -> None:
    decision = taken(catalog, facts, before, step, reply)
    may = permitted(catalog, facts, step)
    plan = plan_for(catalog, step, facts.grants)
    for id_ in decision.bundle_ids:
        assert id_ in may
        assert set(plan.verdicts.of(id_, facts).tools) == may[id_]
    assert {id_ for id_ in catalog.bundles if plan.verdicts.of(id_, facts).permitted} == set(may)


@given(catalogs(), facts_, activations, steps, replies, patterns.filter(bool))
@settings(max_examples=200, deadline=None)
def test_a_denial_always_wins_and_narrowing_never_widens(
    catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply, deny: tuple[str, ...]
) -> None:
    narrowed = replace(catalog, policies=(*catalog.policies, Policy("extra", deny=deny)))
    wide, narrow = permitted(catalog, facts, step), permitted(narrowed, facts, step)
    plan = plan_for(narrowed, step, facts.grants)
    decision = taken(narrowed, facts, before, step, reply)
    for id_ in decision.bundle_ids:
        tools = set(plan.verdicts.of(id_, facts).tools)
        assert tools == narrow[id_]
        assert tools <= wide[id_]


@given(catalogs(), facts_, activations, steps, answers)
@settings(max_examples=200, deadline=None)
def test_settle_never_returns_what_was_not_a_candidate(
    catalog: Catalog, facts: Facts, before: Activation, step: Step, answer: Answer
) -> None:
    question = decide(catalog, facts, before, step)
    if isinstance(question, Question):
        assert len(question.candidates) >= 2
        decision = settle(question, answer)
        picked = {chosen.id for chosen in decision.bundles if chosen.reason == answer.reason}
        assert picked <= set(question.candidates) & set(answer.ids)


@given(catalogs(), facts_, activations, steps, replies)
@settings(max_examples=200, deadline=None)
def test_the_cap_holds_for_everything_but_what_the_step_itself_needs(
    catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply
) -> None:
    decision = taken(catalog, facts, before, step, reply)
    needed = {c.id for c in decision.bundles if c.reason not in ("sticky", "inherited")}

    def count(ids: set[str]) -> int:
        return len({tool for id_ in ids if id_ in catalog.bundles for tool in catalog.bundles[id_].tools})

    cap = catalog.settings.activation.max_tools
    assert count(set(decision.after.ids)) <= max(cap, count(needed))
    assert not set(decision.evicted) & needed
    assert set(decision.evicted) <= set(before.ids)


@given(catalogs(), facts_, activations, steps, replies)
@settings(max_examples=200, deadline=None)
def test_identical_inputs_give_identical_bytes_and_the_record_replays_to_the_same(
    catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply
) -> None:
    first = taken(catalog, facts, before, step, reply)
    again = taken(replace(catalog), facts, before, step, reply)
    assert encode(outcome_json(first)) == encode(outcome_json(again))
    question = decide(catalog, facts, before, step)
    asked = replace(reply, key=question.key) if isinstance(question, Question) else None
    record = json.loads(encode({
        "seq": 0, "run_id": "r", "principal": "", "step": step_json(step), "facts": facts_json(facts),
        "reply": reply_json(asked), **outcome_json(first),
    }))  # fmt: skip
    assert record["activation"]["before"] == activation_json(before)
    assert replay(record, catalog).outcome == "identical"


@given(catalogs(), facts_, activations, steps, replies)
@settings(max_examples=200, deadline=None)
def test_every_reason_and_code_is_from_the_closed_lists_and_no_bundle_is_both_shown_and_left_out(
    catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply
) -> None:
    from router.core.models import CODES, REASONS, SOURCES

    decision = taken(catalog, facts, before, step, reply)
    assert decision.source in SOURCES
    assert {c.reason for c in decision.bundles} <= set(REASONS)
    assert {row.code for row in decision.left_out} <= set(CODES)
    assert not set(decision.bundle_ids) & {row.id for row in decision.left_out if row.tool is None}
    assert len(set(decision.bundle_ids)) == len(decision.bundle_ids)


def injections() -> list[str]:
    data = Path(__file__).parent.parent / "data"
    files = [*sorted((data / "injections").glob("*.json")), data / "blns" / "blns.json"]
    return [str(line) for file in files for line in json.loads(file.read_text("utf-8"))]


def test_no_injected_intent_moves_a_mapped_decision_by_one_byte() -> None:
    catalog = small_catalog(
        {"repo.readonly": ["repo.read"], "workspace.exec": ["workspace.exec"]},
        routes=[Route("plan", bundles=("repo.readonly",))],
        policies=[Policy("p", allow=("*",))],
    )
    texts = injections()
    assert len(texts) >= 1100
    quiet = decide(catalog, Facts(), Activation(), Step(run_id="r", workflow="w", role="r", step="s"))
    assert isinstance(quiet, Decision)
    for text in texts:
        clean = text.encode("utf-8", "replace").decode()
        loud = decide(catalog, Facts(), Activation(), Step(run_id="r", workflow="w", role="r", step="s", goal=clean))
        assert isinstance(loud, Decision)
        assert encode(outcome_json(loud)) == encode(outcome_json(quiet))


class Activations(RuleBasedStateMachine):
    """Random runs against a model that is a plain list in order of use."""

    @initialize(sizes=st.lists(st.integers(1, 6), min_size=4, max_size=8), cap=st.integers(2, 12))
    def start(self, sizes: list[int], cap: int) -> None:
        self.ids = [f"b{n}" for n in range(len(sizes))]
        self.cap = cap
        self.catalog = small_catalog(
            {id_: [f"{id_}.{n}" for n in range(size)] for id_, size in zip(self.ids, sizes, strict=True)},
            routes=[Route(id_, step=(id_,), bundles=(id_,)) for id_ in self.ids],
            settings=Settings(activation=ActivationSettings(max_tools=cap)),
        )
        self.sizes = dict(zip(self.ids, sizes, strict=True))
        self.now = Activation()
        self.order: list[str] = []

    @rule(data=st.data())
    def route(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(self.ids))
        decision = decide(self.catalog, Facts(), self.now, Step(run_id="r", workflow="w", role="r", step=id_))
        assert isinstance(decision, Decision)
        self.order = [other for other in self.order if other != id_] + [id_]
        gone = []
        while sum(self.sizes[i] for i in self.order) > self.cap and len(self.order) > 1:
            gone.append(self.order.pop(0))
        assert list(decision.evicted) == gone
        assert set(decision.bundle_ids) == set(self.order)
        assert decision.bundle_ids[0] == id_
        self.now = decision.after

    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        from router.core.activation import touch

        id_ = data.draw(st.sampled_from(self.ids))
        self.now = touch(self.now, id_)
        if id_ in self.order:
            self.order = [other for other in self.order if other != id_] + [id_]

    @invariant()
    def same_set(self) -> None:
        if hasattr(self, "now"):
            assert set(self.now.ids) == set(self.order)


TestActivations = Activations.TestCase
TestActivations.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_unheard_question_is_not_degraded_but_a_failed_one_is() -> None:
    catalog = small_catalog({"a": ["a.1"], "b": ["b.1"]})
    question = decide(catalog, Facts(), Activation(), Step(run_id="r", workflow="w", role="r", step="s"))
    assert isinstance(question, Question)
    assert not give_up(question, None).degraded
    assert give_up(question, "circuit_open").degraded
