"""How often agents search for tools, read from recorded runs: by `learn` from the records, by
`runs stats` from the read model, with the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.index import RunIndex
from bundle_router.core.catalog import Route
from bundle_router.core.records.read_model import SEARCHED, RunQuery
from bundle_router.review.learning.recorded_steps import past_steps
from bundle_router.review.search_habits import SearchHabit, counted_habits, search_habits
from bundle_router.service.pages.application import pages
from bundle_router.testing import fake_router, small_catalog
from bundle_router.workbench.run_reader import open_reader
from starlette.testclient import TestClient

from tests.adapters.index.recorded_runs import RecordedRuns
from tests.command_line import run

SEARCH = "search_tools"
Turns = Sequence[tuple[str, Sequence[str]]]
"""The role of each step, and the tools that the agent called in it."""


def record(turns: Turns) -> RecordedRuns:
    """Two runs of the same turns, in workflows `feature` and `bugfix`; the second has none of the
    first turn.
    """
    catalog = small_catalog(
        {"notes": ["s.read", "s.write"], "other": ["t.other"]},
        routes=[Route("all", bundles=("notes", "other"))],
    )
    deferred = {id_: replace(bundle, mode="deferred") for id_, bundle in catalog.bundles.items()}
    results = {"s.read": "a", "s.write": "b", "t.other": "c"}
    records = {}
    with fake_router(replace(catalog, bundles=deferred), results=results) as router:
        for run_id, workflow, first in (("r-1", "feature", 0), ("r-2", "bugfix", 1)):
            for role, calls in turns[first:]:
                router.route_sync(Step(run_id=run_id, workflow=workflow, role=role, step="x"))
                for tool in calls:
                    router.call_sync(run_id, tool, {"query": "read"} if tool == SEARCH else {})
            records[run_id] = router.fakes.records(run_id)
    return RecordedRuns(records)


def figures(habits: Sequence[SearchHabit]) -> list[tuple[str, int, int, int, bool]]:
    return [
        (habit.who, habit.searched, habit.steps, habit.searches, habit.at_every_turn)
        for habit in habits
    ]


CASES: list[tuple[str, Turns, list[tuple[str, int, int, int, bool]], list[str]]] = [
    ("nobody searches", [("a", ["s.read"])] * 6, [], []),
    (
        "one at every step, the other never",
        [("b", []), *[("a", [SEARCH, "s.read"]), ("b", ["s.read"])] * 6],
        [("bugfix / a", 6, 6, 6, True), ("feature / a", 6, 6, 6, True)],
        [],
    ),
    (
        "only one, and it alone: the run counts too",
        [("a", [SEARCH])] * 6,
        [("feature / a", 6, 6, 6, True), ("bugfix / a", 5, 5, 5, True)],
        ["r-1", "r-2"],
    ),
    (
        "too few steps for a habit",
        [("a", [SEARCH])] * 5,
        [("feature / a", 5, 5, 5, True), ("bugfix / a", 4, 4, 4, False)],
        ["r-1", "r-2"],
    ),
    (
        "four of five are a habit, three of four are none",
        [("a", [SEARCH])] * 4 + [("a", [])],
        [("feature / a", 4, 5, 4, True), ("bugfix / a", 3, 4, 3, False)],
        [],
    ),
    (
        "many searches in one step are one step",
        [("a", []), ("a", [SEARCH] * 7), *[("a", [])] * 5],
        [("bugfix / a", 1, 6, 7, False), ("feature / a", 1, 7, 7, False)],
        [],
    ),
]


@pytest.mark.parametrize(
    ("turns", "expected", "runs"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_searching_is_counted_by_workflow_role_and_step(
    turns: Turns, expected: list[tuple[str, int, int, int, bool]], runs: list[str]
) -> None:
    recorded = record(turns)
    past = [step for lines in recorded.records.values() for step in past_steps(lines)]
    index = RunIndex(recorded, "sqlite://", look_s=0)
    index.refresh(now=True)
    tables = index.stats(RunQuery()).tables
    marked = index.runs(RunQuery(facets=(("mark", "searched at every step"),))).runs
    index.close()

    assert figures(search_habits(past)) == expected
    assert figures(counted_habits(tables[SEARCHED])) == expected
    assert sorted(run.run_id for run in marked) == runs
    assert sorted(row.name for row in tables["searched at every step"]) == runs


def test_the_remedy_names_what_was_called_after_the_searches() -> None:
    turns: Turns = [("a", [SEARCH, "s.read", "s.write"])] * 4 + [("a", [SEARCH, "t.other"])] * 2
    recorded = record(turns)
    (habit, _) = search_habits(past_steps(recorded.records["r-1"] + recorded.records["r-2"]))

    assert habit.then_called == (("notes", 4), ("other", 2))
    assert habit.remedy == (
        "feature / a searched in 6 of 6 steps, and each search costs a turn. Show the bundles that"
        " it called then: notes (4), other (2): name them in a route of these steps, and where they"
        ' are named already, set their `mode` to "direct"'
    )
    assert replace(habit, searched=1).remedy == ""
    assert "`bundle-router learn` names them" in replace(habit, then_called=()).remedy


def test_stats_learn_and_the_overview_say_the_same(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "bundles.toml").write_text(
        '[bundles."files"]\ndescription = "Find files"\ntools = ["repo.list_dir"]\n'
        'effects = ["read"]\nmode = "deferred"\n'
    )
    (config / "routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["files"]\n')
    (config / "policy.toml").write_text('[[policies]]\nname = "all"\nallow = ["*"]\n')
    runs = tmp_path / "runs"
    with Router.open(config, runs=runs, workspace=tmp_path) as router:
        for _ in range(5):
            router.route_sync(Step(run_id="r-1", workflow="fix", role="coder", step="edit"))
            router.call_sync("r-1", SEARCH, {"query": "list"})
            router.call_sync("r-1", "repo.list_dir", {"path": "."})

    said = "fix / coder searched in 5 of 5 steps, and each search costs a turn."
    assert said in run(tmp_path, "runs", "stats").stdout
    learned = run(tmp_path, "learn").stdout
    assert f"{said} Show the bundles that it called then: files (5)" in learned
    with closing(open_reader(runs, config=config)) as reader:
        client = TestClient(pages(reader), base_url="http://127.0.0.1")
        (habit,) = client.get("/index.json").json()["searching"]
        page = client.get("/").text
    assert (habit["searched"], habit["steps"], habit["at_every_turn"]) == (5, 5, True)
    assert '<a href="/steps?workflow=fix&amp;role=coder">fix / coder</a>' in page
    assert said in page
