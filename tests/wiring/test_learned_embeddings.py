"""Embeddings rank where a person named a model for them, and `rank = "never"` does not say
otherwise.
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
from bundle_router.core.decide.decide import Question
from bundle_router.core.records.replayed import catalog_from, replay
from bundle_router.testing import ScriptedSelector
from bundle_router.testing.upstream import ScriptedServer

from tests.adapters.llm.broken_upstream import embeds
from tests.command_line import json_of, run

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


@pytest.mark.parametrize(("goals", "gains"), [(IN_JARGON, True), (IN_WORDS, False)])
def test_an_embedder_that_is_named_ranks_whatever_the_runs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goals: Goals, gains: bool
) -> None:
    goal = goals["files.find"].format("A")
    with deployment(tmp_path, goals, 20, monkeypatch):
        found = json_of(tmp_path, "learn")["embeddings"]
        printed = run(tmp_path, "learn", "--accept").stdout
        record = routed(tmp_path, "later", goal)
    assert (found["gain"] > 0) is gains
    assert "embeddings: quality 0." in printed or "embeddings: quality 1." in printed
    assert not (tmp_path / "config" / "learned" / "embeddings.json").exists()
    assert record["search"]["embeddings"] == "used"


@pytest.mark.parametrize(
    ("rank", "use", "misled"),
    [("always", "used", True), ("learned", "used", True), ("never", "not_ranking", False)],
)
def test_the_config_says_whether_embeddings_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, use: str, misled: bool
) -> None:
    with deployment(tmp_path, IN_WORDS, 1, monkeypatch) as server:
        configured(tmp_path, server, f'rank = "{rank}"')
        record = routed(tmp_path, "later", IN_WORDS["files.find"].format("A"))
        checked = run(tmp_path, "check").stdout
    assert record["search"]["embeddings"] == use
    assert (record["candidates"][0]["id"] == "repo.readonly") is misled
    assert ("learned-rank" in checked) is (rank == "learned")
    recorded = catalog_from(
        json.loads((tmp_path / "later" / "r" / "catalog.json").read_text(encoding="utf-8"))
    )
    assert replay(record, recorded).outcome == "identical"


def test_a_file_of_an_earlier_version_is_ignored_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said, by a digest of its own, that words alone were to rank."""
    with deployment(tmp_path, IN_WORDS, 1, monkeypatch) as server:
        configured(tmp_path, server)
        learned = tmp_path / "config" / "learned"
        learned.mkdir()
        (learned / "embeddings.json").write_text('{"rank": "never"}', encoding="utf-8")
        (tmp_path / "config" / "router.toml").write_text(
            (tmp_path / "config" / "router.toml")
            .read_text(encoding="utf-8")
            .replace('diagnostics = "error"', 'diagnostics = "warning"'),
            encoding="utf-8",
        )
        words = ("--workflow", "tidy", "--role", "agent", "--step", "look", "--run", "r")
        noted = run(tmp_path, "route", *words, "--goal", "find a file").stderr
        record = routed(tmp_path, "later", IN_WORDS["files.find"].format("A"))
    assert "learned.ignored" in noted
    assert "embeddings.json" in noted
    assert record["search"]["embeddings"] == "used"
