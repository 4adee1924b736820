"""Past steps recalled by what they meant: taken where the logs gain by it over words alone, and
nowhere else.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.embeddings import VectorStore, embed_texts, vectors_for
from bundle_router.adapters.learned_files import load_learned, save_learned
from bundle_router.core.catalog import Catalog
from bundle_router.core.search.corpus import texts_of
from bundle_router.core.search.index import Embedding, NearDocument
from bundle_router.core.search.learned_values import NOTHING, LearnedValues, known_of
from bundle_router.core.search.meaning import Passage, passage, passages_of
from bundle_router.core.search.memory import LIMIT, Memory, past_texts
from bundle_router.core.search.ranking import Memories, Search
from bundle_router.core.search.recall import DOUBT, PULLS, PastText, Recollection, key_of
from bundle_router.core.search.request import Request
from bundle_router.errors import ConfigError
from bundle_router.review.learning.calibration import calibrate
from bundle_router.review.learning.labels import label_steps
from bundle_router.review.learning.report import Learning, learn
from bundle_router.wiring.searching import make_search
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples

pytest.importorskip("bm25s", reason="the extra bundle-router[search] is not installed")

NEEDS = {
    "issues.tracker": ("bogey", "issues.create"),
    "workspace.exec": ("forge", "workspace.run"),
    "repo.readonly": ("delve", "repo.read"),
    "mail": ("parley", "mail.send"),
}
"""What the deployment's people say for a bundle: each time another word, that begins alike."""
Embeds = Callable[[str], Sequence[float]]


def about(text: str) -> tuple[float, ...]:
    """What a model that knows the house's words would say; nothing of this is in what an operator
    wrote. Words of other kinds are as good as unlike: else they break the ties among tools of which
    nothing is known.
    """
    lower = text.lower()
    return (*(float(lower.count(word)) for word, _ in NEEDS.values()), 0.001)


def noise(text: str) -> tuple[float, ...]:
    """A model that knows nothing."""
    return tuple(byte - 127.5 for byte in sha256(text.encode()).digest())


class Toy:
    """The embedder port over a function."""

    name, revision, prompts = "toy/1", "toy/1", ("", "")

    def __init__(self, embeds: Embeds) -> None:
        self._embeds = embeds

    def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedding:
        return Embedding(tuple(tuple(self._embeds(text)) for text in texts))

    def close(self) -> None: ...


def understanding(catalog: Catalog, requests: Sequence[str], embeds: Embeds) -> Search:
    """A search that understands these requests, as `learn` makes one."""
    texts, toy, kept = texts_of(catalog), Toy(embeds), VectorStore(None, "toy/1")
    steps = [
        Passage(key_of(passage(text)), "steps", passage(text)) for text in dict.fromkeys(requests)
    ]
    vectors = vectors_for((*passages_of(texts.bundles, texts.tools), *steps), toy, kept)
    understood = embed_texts(requests, toy, kept)
    assert not isinstance(vectors, Embedding)
    assert not isinstance(understood, Embedding)
    return replace(make_search(catalog), vectors=vectors, understood=understood)


def said(word: str, *at: int) -> str:
    """The word with an ending that nobody said before."""
    return word + "".join("bdfgkmpvz"[byte % 9] for byte in sha256(repr(at).encode()).digest()[:10])


def house_runs(kit: Any, number: int) -> dict[str, list[Any]]:
    """Runs of four steps in a turn of their own. No word is ever said twice."""
    runs = {}
    for at in range(number):
        turn = sorted(NEEDS, key=lambda id_: sha256(f"{at} {id_}".encode()).digest())
        runs[f"run-{at:04d}"] = [
            kit.Turn(said(NEEDS[id_][0], at, place), (id_,), (NEEDS[id_][1],))
            for place, id_ in enumerate(turn)
        ]
    return runs


def taught(
    deployment: Any, embeds: Embeds | None, now: LearnedValues = NOTHING
) -> tuple[Learning, Search]:
    past, catalog = deployment.past(), deployment.catalog
    search = make_search(catalog)
    if embeds is not None:
        search = understanding(catalog, [step.request.text for step in past], embeds)
    return learn(past, deployment.catalogs, catalog, search, now), search


taught_once = functools.cache(taught)
"""What several tests look at is learned once."""


@pytest.fixture(scope="module")
def house(kit: Any) -> Any:
    return kit.Deployment(kit.workshop()).play(house_runs(kit, 24))


# --- taken where it gains -------------------------------------------------------------------------


def test_what_words_can_not_learn_is_recalled_by_meaning(house: Any) -> None:
    words, _ = taught_once(house, None)
    learning, _ = taught_once(house, about)
    assert words.memory is not None
    assert learning.memory is not None
    assert learning.memory.memory is not None
    assert learning.memory.memory.recollection is not None
    assert words.memory.after.first < 0.6 < 0.85 < learning.memory.after.first
    assert "by meaning too" in learning.memory.recall
    found = learning.to_json()
    assert found["memory"]["recall"]["on"] is True
    assert found["memory"]["recall"]["new"] > -0.01, (
        "steps whose bundles were held out are replayed, too"
    )
    assert learning.memory.recall.endswith("over no memory")
    assert found["embeddings"]["gain"] > found["embeddings"]["sigma"] > 0.0
    assert words.to_json()["embeddings"] is None


def test_where_meaning_tells_nothing_words_alone_are_proposed(kit: Any, deployment: Any) -> None:
    learning, _ = taught(deployment, noise)
    assert learning.memory is not None
    assert learning.memory.replay.recall is not None, "it was measured"
    assert learning.memory.replay.recall.memory is None
    assert learning.memory.memory is not None
    assert learning.memory.memory.recollection is None
    assert learning.memory.memory == learning.memory.replay.memory
    assert learning.to_json()["memory"]["recall"]["on"] is False


def test_a_step_that_nothing_is_like_is_not_recalled_for_itself(house: Any) -> None:
    learning, _ = taught_once(house, noise)
    assert learning.memory is not None
    assert learning.memory.replay.recall is not None, "it was measured"
    assert max(trial.gain for trial in learning.memory.replay.recall.trials) < 0.1


def test_what_the_newest_runs_lose_by_is_not_proposed(kit: Any) -> None:
    """Lately each of these words means what another one meant.

    Most of the runs are older, so all of them gain.
    """
    runs = house_runs(kit, 24)
    for run_id in sorted(runs)[18:]:
        others = [*runs[run_id][1:], runs[run_id][0]]
        runs[run_id] = [
            replace(turn, goal=other.goal) for turn, other in zip(runs[run_id], others, strict=True)
        ]
    learning, _ = taught(kit.Deployment(kit.workshop()).play(runs), about)
    assert learning.memory is not None
    assert learning.memory.replay.recall is not None
    assert learning.memory.replay.recall.memory is not None, (
        "the whole replay gains: the case proves something"
    )
    assert "newest runs get worse" in learning.memory.recall
    assert learning.memory.memory is None or learning.memory.memory.recollection is None


words = st.sampled_from(
    ("find", "bug", "rain", "letter", "page", "bogey", "forge", "delve", "parley")
)
chaos = st.lists(
    st.lists(
        st.tuples(
            st.lists(words, min_size=1, max_size=4).map(" ".join),
            st.sampled_from(
                (
                    ("repo.readonly", "repo.grep"),
                    ("issues.tracker", "issues.list"),
                    ("mail", "mail.send"),
                )
            ),
        ),
        min_size=2,
        max_size=5,
    ),
    min_size=8,
    max_size=16,
)


@examples(15, least=5)
@given(logs=chaos)
def test_recall_never_makes_replay_worse(kit: Any, logs: Any) -> None:
    runs = {
        f"r{at:03d}": [kit.Turn(goal, (b,), (tool,)) for goal, (b, tool) in turns]
        for at, turns in enumerate(logs)
    }
    learning, _ = taught(kit.Deployment(kit.workshop()).play(runs), about)
    assert learning.memory is not None
    recall = learning.memory.replay.recall
    proposed = (
        learning.memory.memory is not None and learning.memory.memory.recollection is not None
    )
    if recall is not None:
        assert recall.after >= recall.before
        assert (recall.memory is None) == (recall.after == recall.before)
        assert recall.before == learning.memory.replay.after, (
            "it is measured on top of what words came to"
        )
    assert not proposed or (recall is not None and recall.after > recall.before)


def test_the_same_logs_are_recalled_under_one_version(house: Any) -> None:
    (first, _), (again, _) = taught_once(house, about), taught(house, about)
    assert first.version == again.version
    assert first.to_json() == again.to_json()
    assert not taught(house, about, first.proposed)[0].changes


def test_thresholds_are_fitted_on_steps_that_are_not_recalled_for_themselves(kit: Any) -> None:
    """Each step is like itself alone: who recalled it for itself would never be wrong, and learn
    nothing of that.
    """
    deployment = kit.Deployment(kit.workshop()).play(house_runs(kit, 80))
    steps = label_steps(deployment.past(), deployment.catalogs, deployment.catalog).steps
    search = understanding(deployment.catalog, [step.label.text for step in steps], noise)
    known = Recollection.of(past_texts([step.label for step in steps]), "toy/1", 4.0)
    fitted = calibrate(steps, search, Memory(recollection=known), deployment.catalog)
    assert fitted.labels >= 300
    assert fitted.auroc is not None, fitted.why


# --- the file -------------------------------------------------------------------------------------


def test_the_choice_is_in_the_learned_file_under_its_version(house: Any, tmp_path: Path) -> None:
    then = taught_once(house, about)[0].proposed
    assert then.memory is not None
    path, *_ = save_learned(tmp_path, then)
    assert load_learned(tmp_path) == then
    assert json.loads(path.read_text())["version"] == then.memory.revision
    assert json.loads(path.read_text())["memory"]["schema"] == "bundle-router.memory/3"
    path.write_text(path.read_text().replace('"pull":', '"pull": 1e9, "was":'))
    with pytest.raises(ConfigError, match="can't be used"):
        load_learned(tmp_path)


@pytest.mark.parametrize("version", [1, 2])
def test_a_memory_of_an_older_form_has_to_be_learned_again(
    house: Any, tmp_path: Path, version: int
) -> None:
    path, *_ = save_learned(tmp_path, taught_once(house, about)[0].proposed)
    path.write_text(
        path.read_text().replace("bundle-router.memory/3", f"bundle-router.memory/{version}")
    )
    with pytest.raises(ConfigError, match="has to be learned again") as told:
        load_learned(tmp_path)
    assert "delete it, or learn and accept again" in str(told.value)


def test_what_the_config_changed_is_forgotten(house: Any) -> None:
    then = taught_once(house, about)[0].proposed
    changed = replace(house.catalog.bundles["mail"], description="Something else altogether")
    current = replace(house.catalog, bundles={**house.catalog.bundles, "mail": changed})
    left = then.fitted_to(current).memory
    assert left is not None
    assert left.recollection is not None
    assert {id_ for step in left.recollection.steps for id_ in step.ids} == set(NEEDS) - {"mail"}


# --- in force -------------------------------------------------------------------------------------


def first(
    search: Search, text: str, permitted: frozenset[str], memory: Memory | None
) -> str | None:
    scored = search.rank_bundles(Request(text), permitted, memory).scored
    return scored[0].id if scored else None


def test_whoever_can_not_be_asked_leaves_the_memory_of_words(house: Any) -> None:
    learning, _ = taught_once(house, about)
    memory, wish = learning.proposed.memory, said("delve", 999)
    assert memory is not None
    assert memory.recollection is not None
    understood = understanding(
        house.catalog, [wish, *(step.text for step in memory.recollection.steps)], about
    )
    everyone = frozenset(NEEDS)
    alone = replace(memory, recollection=None)
    assert first(understood, wish, everyone, memory) == "repo.readonly"
    for search in (make_search(house.catalog), replace(understood, understood={})):
        assert search.rank_bundles(Request(wish), everyone, memory) == search.rank_bundles(
            Request(wish), everyone, alone
        )
    other = replace(memory, recollection=replace(memory.recollection, embedder="toy/2"))
    assert understood.rank_bundles(Request(wish), everyone, other) == understood.rank_bundles(
        Request(wish), everyone, alone
    )


def test_a_tool_gains_from_its_bundle_as_that_is_recalled(house: Any) -> None:
    memory, wish = taught_once(house, about)[0].proposed.memory, said("delve", 999)
    assert memory is not None
    assert memory.recollection is not None
    search = understanding(
        house.catalog, [wish, *(step.text for step in memory.recollection.steps)], about
    )
    everything = frozenset(tool for id_ in NEEDS for tool in house.catalog.bundles[id_].tools)

    def first_tool(memory: Memory) -> str:
        return search.rank_tools(Request(wish), everything, Memories(memory))[0].id

    assert first_tool(memory) in house.catalog.bundles["repo.readonly"].tools
    assert (
        first_tool(replace(memory, recollection=None))
        not in house.catalog.bundles["repo.readonly"].tools
    )


def test_tools_are_recalled_where_that_gains_over_the_words(
    house: Any, deployment: Any, tmp_path: Path
) -> None:
    learning, wish = taught_once(house, about)[0], said("delve", 999)
    tools = learning.proposed.tools
    assert tools is not None
    assert tools.recollection is not None
    assert learning.tools is not None
    assert "by meaning too" in learning.tools.recall
    assert learning.to_json()["tools"]["recall"]["on"] is True
    save_learned(tmp_path, learning.proposed)
    assert load_learned(tmp_path).tools == tools
    search = understanding(
        house.catalog, [wish, *(step.text for step in tools.recollection.steps)], about
    )
    everything = frozenset(tool for id_ in NEEDS for tool in house.catalog.bundles[id_].tools)

    def first_tool(memory: Memory, permitted: frozenset[str]) -> str:
        return search.rank_tools(Request(wish), permitted, Memories(tools=memory))[0].id

    assert first_tool(tools, everything) == "repo.read"
    assert first_tool(tools, everything - {"repo.read"}) != "repo.read"
    assert first_tool(replace(tools, recollection=None), everything) != "repo.read"
    told_nothing, _ = taught(deployment, noise)
    assert told_nothing.proposed.tools is None or told_nothing.proposed.tools.recollection is None


def test_recall_only_ranks_what_is_permitted_and_nothing_else_takes_its_place(house: Any) -> None:
    memory = taught_once(house, about)[0].proposed.memory
    assert memory is not None
    assert memory.recollection is not None
    loud = [PastText(said("delve", n, 7), ("docs.web",), f"loud-{n}") for n in range(200)]
    both = Recollection.of((*memory.recollection.steps, *loud), "toy/1", 2.0)
    wish = said("delve", 999)
    search = understanding(house.catalog, [wish, *(step.text for step in both.steps)], about)
    quiet = understanding(
        house.catalog, [wish, *(step.text for step in memory.recollection.steps)], about
    )
    permitted = frozenset(house.catalog.bundles) - {"docs.web"}
    with_loud = search.recall(Request(wish), permitted, both)
    assert with_loud == quiet.recall(
        Request(wish), permitted, replace(memory.recollection, pull=2.0)
    )
    assert set(with_loud) <= permitted
    assert with_loud["repo.readonly"] > 0.5


steps = st.lists(
    st.builds(
        PastText,
        text=st.integers(0, 12).map(str),
        ids=st.sets(st.sampled_from("abcd"), min_size=1, max_size=3).map(
            lambda ids: tuple(sorted(ids))
        ),
        run=st.integers(0, 6).map(str),
    ),
    max_size=40,
)


@given(
    held=steps,
    cosines=st.lists(st.floats(0.0, 1.0), min_size=13, max_size=13),
    pull=st.sampled_from(PULLS),
)
def test_one_run_says_little_however_much_it_repeats(
    held: list[PastText], cosines: list[float], pull: float
) -> None:
    permitted = frozenset("abc")
    near = [NearDocument(key_of(str(n)), cosine) for n, cosine in enumerate(cosines)]
    everyone = Recollection.of(held, "toy/1", pull)
    votes = everyone.votes(near, permitted)
    assert set(votes) <= permitted
    assert sum(votes.values()) < pull <= LIMIT
    loud = Recollection.of(
        [PastText(str(n % 13), ("a",), "loud") for n in range(500)], "toy/1", pull
    )
    assert loud.votes(near, permitted).get("a", 0.0) <= pull / (1.0 + DOUBT) + 1e-9
    both = Recollection.of((*everyone.steps, *loud.steps), "toy/1", pull).votes(near, permitted)
    assert both.get("a", 0.0) - votes.get("a", 0.0) <= pull / (1.0 + DOUBT) + 1e-9


def test_a_memory_names_every_bundle_it_speaks_of(house: Any) -> None:
    memory = Memory(recollection=Recollection.of([PastText("x", ("mail",), "r")], "toy/1", 1.0))
    assert [id_ for id_, _ in known_of(memory, house.catalog)] == ["mail"]
