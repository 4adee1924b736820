"""The algebra of decisions, over random catalogs, policies, activations, facts and answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from bundle_router.core.catalog import (
    ActivationSettings,
    Bundle,
    Catalog,
    Fallback,
    FallbackStage,
    Policy,
    Route,
    Server,
    Settings,
)
from bundle_router.core.decide.decide import Question, decide, decide_without_answer, settle
from bundle_router.core.decide.plans import Plans
from bundle_router.core.decide.replies import admit_reply
from bundle_router.core.records.decision_record import (
    activation_json,
    decision_from,
    facts_from,
    facts_json,
    outcome_json,
    reply_json,
    step_from,
    step_json,
)
from bundle_router.core.records.replayed import catalog_from, conclude, replay
from bundle_router.core.values import (
    CODES,
    EFFECTS,
    REASONS,
    SOURCES,
    Activation,
    Address,
    Answer,
    Candidate,
    Decision,
    Drift,
    Effect,
    Entry,
    Facts,
    Failure,
    Grant,
    ModelUse,
    Reason,
    Reply,
    SearchUse,
    Step,
    StepPolicy,
)
from bundle_router.core.values.canonical import encode
from bundle_router.testing import small_catalog
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.profiles import examples

T = TypeVar("T")

IDS = ("repo.readonly", "repo.write", "docs.fetch", "docs.search", "workspace.exec", "notes")
OLD_IDS = tuple(f"old.{n}" for n in range(len(IDS)))
TOOLS = tuple(f"{server}.{n}" for server in ("repo", "docs", "workspace") for n in range(4))
PATTERNS = (*IDS, *OLD_IDS, *(f"bundle:{i}" for i in IDS), *(f"tool:{t}" for t in TOOLS), "repo.*", "docs.*", "*",
            "old.*", "tool:repo.*")  # fmt: skip
NAMES = ("feature", "bugfix", "implementer", "reviewer", "edit", "test")
TRUSTS = (None, None, None, "trusted", "untrusted")


def mostly(
    usual: st.SearchStrategy[T], other: st.SearchStrategy[T], of: int = 4
) -> st.SearchStrategy[T]:
    """`usual` in all but one of `of` cases: what is rare in a config has to be rare here, or
    nothing is ever shown.
    """
    return st.sampled_from((*[usual] * (of - 1), other)).flatmap(lambda chosen: chosen)


def rarely(of: int) -> st.SearchStrategy[bool]:
    return st.sampled_from((*[False] * (of - 1), True))


NOTHING: st.SearchStrategy[tuple[str, ...]] = st.just(())
patterns = st.lists(st.sampled_from(PATTERNS), max_size=4).map(tuple)
few = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2).map(tuple)
names = mostly(
    NOTHING, st.lists(st.sampled_from((*NAMES, "*", "fea*", "re?iewer")), max_size=2).map(tuple), 5
)
effects: st.SearchStrategy[tuple[Effect, ...]] = st.lists(
    st.sampled_from(EFFECTS), unique=True, max_size=3
).map(tuple)
no_lists: st.SearchStrategy[tuple[str, ...] | None] = st.none()
no_effects: st.SearchStrategy[tuple[Effect, ...] | None] = st.none()
step_policies = mostly(
    st.none(),
    st.builds(
        StepPolicy,
        allow=st.none() | patterns,
        deny=mostly(NOTHING, few, 2),
        trust=st.sampled_from(TRUSTS),
    ),
    5,
)
narrowing = st.builds(
    Policy,
    name=st.just("p"),
    workflow=names,
    role=names,
    step=names,
    allow=mostly(no_lists, few),
    deny=mostly(NOTHING, few, 3),
    min_trust=st.sampled_from(TRUSTS),
    effects=mostly(no_effects, effects, 6),
)
policies = mostly(
    st.lists(narrowing, max_size=1).map(lambda rows: [Policy("all", allow=("*",)), *rows]),
    st.lists(narrowing, max_size=3),
)
routes = st.builds(
    Route,
    name=st.sampled_from(("r1", "r2", "r3")),
    workflow=names,
    role=names,
    step=names,
    bundles=st.lists(st.sampled_from((*IDS, *OLD_IDS, "unknown")), max_size=3).map(tuple),
    ask=mostly(st.just(("*",)), st.none() | patterns, 2),
)
flags = st.booleans()


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    bundles: dict[str, Bundle] = {}
    for id_ in draw(st.lists(st.sampled_from(IDS), unique=True, min_size=2)):
        # Composed of what stands before, so that there are no cycles and parts have parts.
        parts = (
            tuple(draw(st.lists(st.sampled_from(sorted(bundles)), unique=True, max_size=2)))
            if bundles
            else ()
        )
        parts = parts if draw(rarely(3)) else ()
        own = draw(st.sets(st.sampled_from(TOOLS), min_size=1, max_size=4))
        tools = own.union(*(bundles[part].tools for part in parts))
        bundles[id_] = Bundle(
            id_,
            id_,
            tuple(sorted(tools)),
            bundles=parts,
            effects=draw(effects),
            always=draw(rarely(8)),
            selectable=not draw(rarely(5)),
            requires_env=("TOKEN",) if draw(rarely(6)) else (),
            aliases=(OLD_IDS[IDS.index(id_)],),
        )
    default = draw(mostly(NOTHING, st.lists(st.sampled_from(IDS), max_size=2).map(tuple), 3))
    order: tuple[FallbackStage, ...] = (
        ("search", "model", "default") if draw(flags) else ("search", "model")
    )
    return small_catalog(
        bundles,
        routes=draw(st.lists(routes, max_size=2)),
        policies=draw(policies),
        settings=Settings(
            activation=ActivationSettings(
                not draw(rarely(6)), draw(st.sampled_from((24, 12, 8, 6, 4, 1)))
            ),
            fallback=Fallback(order, default),
        ),
        servers=[
            Server("workspace", "local", draw(st.sampled_from(("trusted", "trusted", "untrusted"))))
        ],
    )


steps = st.builds(
    Step,
    run_id=st.just("r"),
    workflow=st.sampled_from(("feature", "bugfix")),
    role=st.sampled_from(("implementer", "reviewer")),
    step=st.sampled_from(("edit", "test")),
    goal=st.text(st.characters(codec="utf-8"), max_size=20),
    principal=st.sampled_from(("", "ann")),
    policy=step_policies,
    max_bundles=mostly(st.none(), st.integers(0, 3), 6),
    max_tools=mostly(st.none(), st.integers(0, 8), 6),
)
grant_addresses = st.tuples(
    st.sampled_from(("feature", "bugfix")),
    st.sampled_from(("implementer", "reviewer")),
    st.sampled_from(("edit", "test")),
)
one_grant = st.builds(Grant, grant_addresses.map(Address), step_policies)
no_grants: st.SearchStrategy[tuple[Grant, ...]] = st.just(())
grants = mostly(no_grants, st.lists(one_grant, min_size=1, max_size=3).map(tuple), 5)
facts_ = st.builds(
    Facts,
    capabilities=st.sampled_from((frozenset({"env:TOKEN"}), frozenset({"env:TOKEN"}), frozenset())),
    unavailable=st.sampled_from(((), (), (), (), (("repo", "down"),))),
    drifted=st.sampled_from(((), (), (Drift("docs", "1"),))),
    grants=grants,
    revisions=st.sampled_from(((), (("memory", "sha256:1"),))),
)
origins: st.SearchStrategy[Reason] = st.sampled_from(
    ("mapped", "always", "search", "model", "union", "default")
)
activations = st.lists(
    st.builds(
        Entry, st.sampled_from((*IDS, *OLD_IDS[:2], "gone")), origins, st.integers(0, 9), flags
    ),
    max_size=5,
    unique_by=lambda e: e.id,
).map(lambda entries: Activation(tuple(sorted(entries, key=lambda e: e.id))))
numbers = st.none() | st.floats(0, 1, width=16)
scores = st.lists(
    st.builds(Candidate, st.sampled_from((*IDS, "unknown")), numbers), max_size=5
).map(tuple)
uses = st.none() | st.builds(
    ModelUse, name=st.just("m"), answer=st.none() | st.text(max_size=5), attempts=st.just(1)
)
answers = st.builds(
    Answer,
    ids=mostly(
        st.permutations(IDS).map(tuple),
        st.lists(st.sampled_from((*IDS, "unknown", "repo.readonlу", "REPO.READONLY")) | st.text(max_size=8), max_size=6)
        .map(tuple),
        2,
    ),
    source=st.sampled_from(("search", "model")),
    reason=st.sampled_from(("search", "model", "model_cached", "union")),
    justification=st.text(max_size=5),
    scores=scores,
    model=uses,
    dropped=st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(("below_floor", "over_budget"))), max_size=2)
    .map(tuple),
)  # fmt: skip
searches = st.none() | st.builds(
    SearchUse,
    verdict=st.sampled_from(("enough", "union", "ambiguous", "novel")),
    why=st.sampled_from(("", "sure")),
    thresholds=st.just("t"),
    cut=st.floats(0, 1, width=16),
    ranked=scores,
)
failures: st.SearchStrategy[Failure | None] = st.sampled_from((None, None, "timeout", "internal"))
replies = mostly(
    st.builds(Reply, answer=answers, failure=failures, search=searches),
    st.builds(Reply, failure=failures, model=uses, search=searches),
)


def taken(catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply) -> Decision:
    first = decide(Plans(catalog), facts, before, step)
    return conclude(first, reply) if isinstance(first, Question) else first


def permitted(catalog: Catalog, facts: Facts, step: Step) -> dict[str, set[str]]:
    """An independent reading of the rules, without `policy.py`: bundle → permitted tools."""
    from fnmatch import fnmatchcase

    def covers(globs: tuple[str, ...], name: str) -> bool:
        return not globs or any(fnmatchcase(name, glob) for glob in globs)

    def allowed(texts: tuple[str, ...], bundle: Bundle, tool: str) -> bool:
        return any(
            fnmatchcase(tool, text[5:]) if text.startswith("tool:")
            else fnmatchcase(bundle.id, text.removeprefix("bundle:")) or text.removeprefix("bundle:") in bundle.aliases
            for text in texts
        )  # fmt: skip

    def denied(texts: tuple[str, ...], bundle: Bundle, tool: str) -> bool:
        if tool not in bundle.tools:
            return False
        names = (bundle.id, *bundle.aliases)
        return any(
            fnmatchcase(tool, text[5:]) if text.startswith("tool:")
            else any(fnmatchcase(name, text.removeprefix("bundle:")) for name in names)
            for text in texts
        ) or any(denied(texts, catalog.bundles[part], tool) for part in bundle.bundles)  # fmt: skip

    def trusted(tool: str) -> bool:
        return catalog.servers[tool.split(".")[0]].trust == "trusted"

    places = [(step.workflow, step.role, step.step, step.policy)]
    places += [(*g.address, g.policy) for g in facts.grants]
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
            layers: list[tuple[tuple[str, ...] | None, tuple[str, ...], str | None]] = [
                (p.allow, p.deny, p.min_trust) for p in rows
            ]
            if own is not None:
                layers.append(
                    (None if own.allow is None else tuple(own.allow), tuple(own.deny), own.trust)
                )
            for allow, deny, trust in layers:
                left = {t for t in left if allow is None or allowed(allow, bundle, t)}
                left = {t for t in left if not denied(deny, bundle, t)}
                left = {t for t in left if trust != "trusted" or trusted(t)}
        left = {t for t in left if t.split(".")[0] not in {s for s, _ in facts.unavailable}}
        left = {t for t in left if Drift(t.split(".")[0], t.split(".")[1]) not in facts.drifted}
        if left:
            result[bundle.id] = left
    return result


@dataclass(frozen=True)
class Case:
    """A step that is decided, and what came of it."""

    catalog: Catalog
    facts: Facts
    before: Activation
    step: Step
    reply: Reply
    denied: tuple[str, ...]

    @cached_property
    def first(self) -> Decision | Question:
        return decide(Plans(self.catalog), self.facts, self.before, self.step)

    @cached_property
    def decision(self) -> Decision:
        return conclude(self.first, self.reply) if isinstance(self.first, Question) else self.first

    @cached_property
    def may(self) -> dict[str, set[str]]:
        return permitted(self.catalog, self.facts, self.step)


@given(st.builds(Case, catalogs(), facts_, activations, steps, replies, patterns.filter(bool)))
@examples(400)
def test_every_decision_is_as_promised(case: Case) -> None:
    """Seven properties of the same cases: to make one costs ten times what most of these look
    at.
    """
    result_is_within_what_policy_permits(case)
    denial_wins_and_narrowing_never_widens(case)
    settle_returns_only_candidates(case)
    cap_holds_for_everything_but_what_the_step_needs(case)
    reasons_and_codes_are_from_the_closed_lists(case)
    identical_inputs_give_identical_bytes(case)
    record_replays_to_the_same(case)


def result_is_within_what_policy_permits(case: Case) -> None:
    plan = Plans(case.catalog).of(case.step, case.facts.grants)
    for id_ in case.decision.bundle_ids:
        assert id_ in case.may
        assert set(plan.verdicts.of(id_, case.facts).tools) == case.may[id_]
    assert {
        id_ for id_ in case.catalog.bundles if plan.verdicts.of(id_, case.facts).permitted
    } == set(case.may)


def denial_wins_and_narrowing_never_widens(case: Case) -> None:
    narrowed = replace(
        case.catalog, policies=(*case.catalog.policies, Policy("extra", deny=case.denied))
    )
    narrow = permitted(narrowed, case.facts, case.step)
    plan = Plans(narrowed).of(case.step, case.facts.grants)
    for id_ in taken(narrowed, case.facts, case.before, case.step, case.reply).bundle_ids:
        tools = set(plan.verdicts.of(id_, case.facts).tools)
        assert tools == narrow[id_]
        assert tools <= case.may[id_]


def settle_returns_only_candidates(case: Case) -> None:
    """Where they are settled as they come: `conclude` admits an answer first."""
    question, answer = case.first, case.reply.answer
    if isinstance(question, Question) and answer is not None:
        decision = settle(question, answer)
        picked = {chosen.id for chosen in decision.bundles if chosen.reason == answer.reason}
        assert picked <= set(question.candidates) & set(answer.ids)
    if isinstance(question, Question):
        assert len(question.candidates) >= 2
        bundles = [case.catalog.bundles[id_] for id_ in question.candidates]
        assert not any(bundle.always or not bundle.selectable for bundle in bundles)


def cap_holds_for_everything_but_what_the_step_needs(case: Case) -> None:
    catalog, decision = case.catalog, case.decision
    needed = {c.id for c in decision.bundles if c.reason not in ("sticky", "inherited")}
    mapped = {c.id for c in decision.bundles if c.reason in ("mapped", "always")}

    def count(ids: Iterable[str]) -> int:
        return len({tool for id_ in ids for tool in catalog.bundles[id_].tools})

    cap = catalog.settings.activation.max_tools
    assert count(decision.bundle_ids) <= max(cap, count(needed))
    assert count(decision.after.ids) <= max(cap, count(needed))
    assert not set(decision.evicted) & mapped
    assert set(decision.evicted) <= {catalog.id_today(id_) for id_ in case.before.ids}
    assert not set(decision.evicted) & set(decision.after.ids)


def reasons_and_codes_are_from_the_closed_lists(case: Case) -> None:
    decision = case.decision
    assert decision.source in SOURCES
    assert {c.reason for c in decision.bundles} <= set(REASONS)
    assert {row.code for row in decision.left_out} <= set(CODES)
    assert not set(decision.bundle_ids) & {row.id for row in decision.left_out if row.tool is None}
    assert len(set(decision.bundle_ids)) == len(decision.bundle_ids)


def identical_inputs_give_identical_bytes(case: Case) -> None:
    again = taken(replace(case.catalog), case.facts, case.before, case.step, case.reply)
    assert encode(outcome_json(case.decision)) == encode(outcome_json(again))


def record_replays_to_the_same(case: Case) -> None:
    question, decision, step, facts = case.first, case.decision, case.step, case.facts
    # As `run.ask` records it: admitted first.
    asked = (
        replace(admit_reply(case.reply), key=question.key)
        if isinstance(question, Question)
        else None
    )
    record = json.loads(encode({
        "seq": 0, "run_id": "r", "principal": step.principal, "step": step_json(step), "facts": facts_json(facts),
        "reply": reply_json(asked), "decision_id": "", "catalog_revision": "", "input_digest": "",
        **outcome_json(decision),
    }))  # fmt: skip
    assert record["activation"]["before"] == activation_json(case.before)
    assert (step_from(record), facts_from(record)) == (step, facts)
    assert outcome_json(decision_from(record)) == outcome_json(decision)
    kept = catalog_from(json.loads(encode(case.catalog.to_json())))
    assert kept.revision == case.catalog.revision
    assert replay(record, kept).outcome == "identical"


def test_the_generated_cases_reach_what_they_are_about() -> None:
    """The properties above and below hold of nothing as easily as of everything: this counts what
    they see.

    Half of what they see now is demanded. Cases resemble those before them, and are others whenever
    a constant of the sources changes: of 150 alone none may have what one in twenty has, so more
    are made until enough have it.
    """
    seen: Counter[str] = Counter()

    @given(catalogs(), facts_, activations, steps, replies)
    @settings(max_examples=150, deadline=None, database=None)
    def look(catalog: Catalog, facts: Facts, before: Activation, step: Step, reply: Reply) -> None:
        question = decide(Plans(catalog), facts, before, step)
        decision = taken(catalog, facts, before, step, reply)
        seen["all"] += 1
        seen["shown"] += bool(decision.bundles)
        seen["left out"] += bool(decision.left_out)
        seen["evicted"] += bool(decision.evicted)
        seen["sticky"] += any(
            chosen.reason in ("sticky", "inherited") for chosen in decision.bundles
        )
        seen["part refused"] += any(row.tool is not None for row in decision.left_out)
        seen["closed"] += decision.source == "mapping" and not isinstance(question, Question)
        seen["asked"] += isinstance(question, Question)
        if isinstance(question, Question) and reply.answer is not None:
            seen["named a candidate"] += bool(set(reply.answer.ids) & set(question.candidates))

    demanded = {"shown": 0.2, "asked": 0.1, "named a candidate": 0.06}
    demanded |= dict.fromkeys(("left out", "sticky", "evicted", "part refused", "closed"), 0.012)
    missing = demanded
    for part in range(8):
        if missing:
            seed(part)(look)()
            missing = {
                name: share for name, share in demanded.items() if seen[name] <= share * seen["all"]
            }
    assert missing == {}, seen


@given(
    catalogs(),
    facts_,
    activations,
    st.lists(st.tuples(steps, replies, replies), min_size=2, max_size=5),
)
@examples(100)
def test_no_answer_given_on_the_way_changes_what_a_step_that_asks_nobody_shows(
    catalog: Catalog, facts: Facts, before: Activation, way: list[tuple[Step, Reply, Reply]]
) -> None:
    one = other = before
    for step, this, that in way:
        asked = isinstance(decide(Plans(catalog), facts, one, step), Question)
        mine, theirs = (
            taken(catalog, facts, one, step, this),
            taken(catalog, facts, other, step, that),
        )
        route = Plans(catalog).of(step, facts.grants).route
        if route is not None and route.ask is None:
            assert not asked
            assert mine.bundles == theirs.bundles
        one, other = mine.after, theirs.after


def injections() -> list[str]:
    data = Path(__file__).parents[2] / "data"
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
    quiet = decide(
        Plans(catalog), Facts(), Activation(), Step(run_id="r", workflow="w", role="r", step="s")
    )
    assert isinstance(quiet, Decision)
    for text in texts:
        clean = text.encode("utf-8", "replace").decode()
        loud = decide(
            Plans(catalog),
            Facts(),
            Activation(),
            Step(run_id="r", workflow="w", role="r", step="s", goal=clean),
        )
        assert isinstance(loud, Decision)
        assert encode(outcome_json(loud)) == encode(outcome_json(quiet))


class Activations(RuleBasedStateMachine):
    """Random runs against a model that is a plain list in order of use."""

    @initialize(sizes=st.lists(st.integers(1, 6), min_size=4, max_size=8), cap=st.integers(2, 12))
    def start(self, sizes: list[int], cap: int) -> None:
        self.ids = [f"b{n}" for n in range(len(sizes))]
        self.cap = cap
        self.catalog = small_catalog(
            {
                id_: [f"{id_}.{n}" for n in range(size)]
                for id_, size in zip(self.ids, sizes, strict=True)
            },
            routes=[Route(id_, step=(id_,), bundles=(id_,)) for id_ in self.ids],
            settings=Settings(activation=ActivationSettings(max_tools=cap)),
        )
        self.sizes = dict(zip(self.ids, sizes, strict=True))
        self.now = Activation()
        self.order: list[str] = []

    @rule(data=st.data())
    def route(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(self.ids))
        decision = decide(
            Plans(self.catalog),
            Facts(),
            self.now,
            Step(run_id="r", workflow="w", role="r", step=id_),
        )
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
        from bundle_router.core.decide.activation import touch

        id_ = data.draw(st.sampled_from(self.ids))
        self.now = touch(self.now, id_)
        if id_ in self.order:
            self.order = [other for other in self.order if other != id_] + [id_]

    @invariant()
    def same_set(self) -> None:
        if hasattr(self, "now"):
            assert set(self.now.ids) == set(self.order)


TestActivations = Activations.TestCase
TestActivations.settings = examples(60, stateful_step_count=30)


def test_an_unheard_question_is_not_degraded_but_a_failed_one_is() -> None:
    catalog = small_catalog({"a": ["a.1"], "b": ["b.1"]})
    question = decide(
        Plans(catalog), Facts(), Activation(), Step(run_id="r", workflow="w", role="r", step="s")
    )
    assert isinstance(question, Question)
    assert not decide_without_answer(question, None).degraded
    assert decide_without_answer(question, "circuit_open").degraded
