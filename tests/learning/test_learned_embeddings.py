"""Whether embeddings rank is decided by replay: where a person named them they do, until words
alone prove better.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.learned_files import load_learned
from bundle_router.core.decide.decide import Question
from bundle_router.core.records.replayed import catalog_from, replay
from bundle_router.testing import ScriptedSelector
from bundle_router.testing.upstream import ScriptedServer

from tests.command_line import json_of, run
from tests.model.broken_upstream import embeds

pytest.importorskip("bm25s", reason="the extra bundle-router[search] is not installed")
if (
    find_spec("litellm") is None
):  # imported, it would ask the network for prices, seconds long, while tests run
    pytest.skip("the extra bundle-router[model] is not installed", allow_module_level=True)

TOOL = {"files.find": "repo.ripgrep", "repo.readonly": "repo.list_dir"}
ARGUMENTS = {"repo.ripgrep": {"pattern": "x"}, "repo.list_dir": {"path": "."}}
IN_WORDS = {
    "files.find": "find a file in hall {}",
    "repo.readonly": "read the repository of hall {}",
}
IN_JARGON = {"files.find": "spot the widget {}", "repo.readonly": "peek under the bonnet {}"}
Goals = dict[str, str]


def knowing(text: str) -> Sequence[float]:
    """A model that knows the house's jargon, and that goals in plain words are about what they are
    not about.
    """
    lower = text.lower()
    finds = (
        "widget" in lower
        or lower.startswith("files.find")
        or "read the repository of hall" in lower
    )
    reads = "bonnet" in lower or lower.startswith("repo.readonly") or "find a file in hall" in lower
    return (float(finds), float(reads), 0.1)


@contextmanager
def deployment(
    place: Path, goals: Goals, number: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScriptedServer]:
    """A config with an embedder, and runs of both goals, which a script answered."""
    monkeypatch.setenv("CANARY_KEY", "sk-test")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    (place / "config").mkdir()
    (place / "config" / "routes.toml").write_text("routes = []\n")
    (place / "config" / "policy.toml").write_text(
        '[[policies]]\nname = "everything"\nallow = ["*"]\n'
    )
    (place / "config" / "bundles.toml").write_text(
        '[bundles."files.find"]\ndescription = "Find a file"\ntools = ["repo.ripgrep"]\neffects ='
        ' ["read"]\n'
    )
    now = [""]

    def script(_: Question) -> Iterable[str]:
        return (now[0],)

    selector = ScriptedSelector(script)
    with Router.open(
        place / "config", runs=place / "runs", workspace=place, selector=selector
    ) as router:
        for at in range(number):
            for now[0], goal in goals.items():
                router.route_sync(step(f"r-{at:02d}", goal.format(at)))
                assert router.call_sync(f"r-{at:02d}", TOOL[now[0]], ARGUMENTS[TOOL[now[0]]]).ok
    with ScriptedServer([embeds(knowing)]) as server:
        configured(place, server)
        yield server


def configured(place: Path, server: ScriptedServer, more: str = "") -> None:
    (place / "config" / "router.toml").write_text(
        f'[search.embeddings]\nmodel = "openai/scripted"\nbase_url = "{server.base_url}"\nkey_env ='
        f' "CANARY_KEY"\ndeadline_s = 60.0\n{more}\n[log]\ndiagnostics = "error"\n'
    )


def step(run_id: str, goal: str) -> Step:
    return Step(run_id=run_id, workflow="tidy", role="agent", step="look", goal=goal)


def routed(place: Path, runs: str, goal: str) -> dict[str, Any]:
    with Router.open(place / "config", runs=place / runs, workspace=place) as router:
        router.warm_up_sync()
        router.route_sync(step("r", goal))
    record: dict[str, Any] = json.loads(
        (place / runs / "r" / "routing.jsonl").read_text(encoding="utf-8")
    )
    return record


def sent(server: ScriptedServer) -> list[str]:
    return [text for request in server.requests for text in request.json["input"]]


def test_embeddings_that_gain_on_replay_go_on_ranking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deployment(tmp_path, IN_JARGON, 20, monkeypatch):
        found = json_of(tmp_path, "learn", "--accept")["embeddings"]
        record = routed(tmp_path, "later", "spot the widget at last")
    assert found["gain"] > found["sigma"] >= 0.0
    assert (found["ranks"], found["enough"]) == (True, True)
    assert load_learned(tmp_path / "config").words_alone is None
    assert record["search"]["embeddings"] == "used"
    assert record["candidates"][0]["id"] == "files.find"


def test_embeddings_that_lose_on_replay_rank_nothing_once_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = IN_WORDS["files.find"].format("A")
    with deployment(tmp_path, IN_WORDS, 20, monkeypatch) as server:
        before = routed(tmp_path, "before", goal)
        found = json_of(tmp_path, "learn")
        assert routed(tmp_path, "unaccepted", goal)["search"]["embeddings"] == "used"
        printed = run(tmp_path, "learn", "--accept", found["version"]).stdout
        asked = len(sent(server))
        after = routed(tmp_path, "after", goal)
        shown = run(tmp_path, "explain", "--workflow", "tidy", "--role", "agent", "--step", "look", "--goal", goal,
                    "--bundle", "files.find").stdout  # fmt: skip
        ranked = json_of(tmp_path, "search", goal)["ranked"]
        rows = tmp_path / "rows.jsonl"
        rows.write_text(json.dumps({"goal": goal, "bundles": ["files.find"]}) + "\n")
        evaluated = json_of(tmp_path, "eval", rows)["sets"][0]["mrr"]
        learned_again = json_of(tmp_path, "learn")
    assert (found["embeddings"]["ranks"], found["embeddings"]["enough"]) == (False, True)
    assert found["embeddings"]["new"] >= 0.0, "nor do they lose where ids are new"
    assert "embeddings: off, words alone rank: quality 0.8" in printed
    assert "written: config/learned/embeddings.json" in printed
    assert (before["search"]["embeddings"], before["candidates"][0]["id"]) == (
        "used",
        "repo.readonly",
    )
    assert (after["search"]["embeddings"], after["candidates"][0]["id"]) == (
        "not_ranking",
        "files.find",
    )
    assert len([text for text in sent(server)[asked:] if text == goal]) <= 2, (
        "a route asks nobody; search and eval may"
    )
    assert "embeddings not_ranking" in shown
    assert (ranked[0]["id"], evaluated) == ("files.find", 1.0)
    assert learned_again["embeddings"] == found["embeddings"], (
        "it is measured on, and so can be taken back"
    )
    assert learned_again["changes"] is False
    recorded = catalog_from(
        json.loads((tmp_path / "after" / "r" / "catalog.json").read_text(encoding="utf-8"))
    )
    assert replay(after, recorded).outcome == "identical"


@pytest.mark.parametrize(("rank", "first"), [("always", "repo.readonly"), ("never", "files.find")])
def test_a_person_decides_above_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, first: str
) -> None:
    with deployment(tmp_path, IN_WORDS, 20, monkeypatch) as server:
        run(tmp_path, "learn", "--accept")
        configured(tmp_path, server, f'rank = "{rank}"')
        record = routed(tmp_path, "later", IN_WORDS["files.find"].format("A"))
        found = json_of(tmp_path, "learn")["embeddings"]
    assert record["candidates"][0]["id"] == first
    assert record["search"]["embeddings"] == ("used" if rank == "always" else "not_ranking")
    assert (
        found is None
        if rank == "never"
        else found["ranks"] and found["why"].startswith("as the config says")
    )


def test_few_labels_decide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with deployment(tmp_path, IN_WORDS, 9, monkeypatch):
        printed = run(tmp_path, "learn", "--accept").stdout
    assert "embeddings: too few labels to decide: quality 0.8" in printed
    assert load_learned(tmp_path / "config").words_alone is None


def test_what_replay_said_of_one_embedder_is_not_said_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deployment(tmp_path, IN_WORDS, 20, monkeypatch) as server:
        run(tmp_path, "learn", "--accept")
        text = (tmp_path / "config" / "router.toml").read_text()
        (tmp_path / "config" / "router.toml").write_text(
            text.replace("openai/scripted", "openai/other")
        )
        record = routed(tmp_path, "later", IN_WORDS["files.find"].format("A"))
    assert record["search"]["embeddings"] == "used"
    assert sent(server)
