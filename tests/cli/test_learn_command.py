"""`bundle-router learn` and `eval` as people use them: real run directories, the command line,
files.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.learned_files import load_learned
from bundle_router.core.decide.decide import Question
from bundle_router.core.search.learned_values import LearnedValues
from bundle_router.testing import ScriptedSelector

from tests.command_line import ROOT, json_of, run

pytest.importorskip("bm25s", reason="the extra bundle-router[search] is not installed")

JARGON = {"files.find": "spot the widget {}", "repo.readonly": "peek under the bonnet {}"}
TOOL = {"files.find": "repo.ripgrep", "repo.readonly": "repo.list_dir"}
ARGUMENTS = {"repo.ripgrep": {"pattern": "x"}, "repo.list_dir": {"path": "."}}


def write_config(folder: Path) -> None:
    folder.mkdir()
    (folder / "routes.toml").write_text("routes = []\n")
    (folder / "policy.toml").write_text('[[policies]]\nname = "everything"\nallow = ["*"]\n')
    (folder / "bundles.toml").write_text(
        '[bundles."files.find"]\ndescription = "Find files"\ntools = ["repo.ripgrep"]\neffects ='
        ' ["read"]\n'
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and twenty runs of a real router, whose questions a script
    answered.
    """
    folder = tmp_path_factory.mktemp("place")
    write_config(folder / "config")
    now = [""]

    def script(_: Question) -> Iterable[str]:
        return (now[0],)

    selector = ScriptedSelector(script)
    with Router.open(
        folder / "config", runs=folder / "runs", workspace=folder, selector=selector
    ) as router:
        for at in range(20):
            for bundle, text in JARGON.items():
                now[0] = bundle
                goal = text.format(("in the hall", "on the stairs")[at % 2])
                router.route_sync(
                    Step(
                        run_id=f"r-{at:02d}", workflow="tidy", role="agent", step=bundle, goal=goal
                    )
                )
                assert router.call_sync(f"r-{at:02d}", TOOL[bundle], ARGUMENTS[TOOL[bundle]]).ok
            router.close_run_sync(f"r-{at:02d}")
    return folder


def test_learning_prints_what_it_would_change_and_writes_nothing(place: Path) -> None:
    printed = run(place, "learn").stdout
    assert "20 runs, 40 steps, 40 of them labelled" in printed
    assert "newest runs: right bundle first" in printed
    assert re.search(
        r"memory: on: replay gains \+0\.\d+, where what is needed is new [+-]0\.\d+\n", printed
    )
    assert "in force: nothing; proposed: memory sha256:" in printed
    assert "bundle-router learn --accept" in printed
    assert "tidy / agent / files.find" in printed
    assert not (place / "config" / "learned").exists()
    found = json_of(place, "learn")
    assert (
        found["memory"]["held_back"]["after"]["first"]
        > found["memory"]["held_back"]["before"]["first"]
    )
    assert found["labels"]["by_kind"][1] == {"kind": "used", "labels": 40}


def test_a_calibration_says_how_many_labels_are_missing(place: Path) -> None:
    assert "260 more labels are needed (40 of 300)" in run(place, "learn", "--calibrate").stdout


def test_accepting_puts_exactly_what_was_printed_in_force(place: Path) -> None:
    version = json_of(place, "learn")["version"]
    refused = run(place, "learn", "--accept", "0123456789ab", code=3)
    assert "nothing was accepted" in refused.stderr
    assert not (place / "config" / "learned").exists()
    printed = run(place, "learn", "--accept", version).stdout
    assert "written: config/learned/memory.json" in printed
    learned = load_learned(place / "config")
    assert isinstance(learned, LearnedValues)
    assert learned.memory is not None
    assert json_of(place, "learn")["changes"] is False
    with Router.open(place / "config", runs=place / "later", workspace=place) as router:
        goal = JARGON["files.find"].format("in the hall")
        router.route_sync(
            Step(run_id="r-0", workflow="tidy", role="agent", step="files.find", goal=goal)
        )
    record = json.loads((place / "later" / "r-0" / "routing.jsonl").read_text(encoding="utf-8"))
    revisions = {row["name"]: row["revision"] for row in record["facts"]["revisions"]}
    assert revisions["memory"] == learned.memory.revision, "every decision names what it rests on"
    assert record["candidates"][0]["id"] == "files.find"
    proposals = tomllib.loads(
        (place / "config" / "learned" / "proposals.toml").read_text(encoding="utf-8")
    )
    assert {tuple(row["bundles"]) for row in proposals["routes"]} == {
        ("files.find",),
        ("repo.readonly",),
    }
    run(place, "check")
    (place / "config" / "learned" / "memory.json").write_text("{}")
    assert "learned/memory.json: can't be used" in run(place, "learn", code=2).stderr
    (place / "config" / "learned" / "memory.json").unlink()
    assert load_learned(place / "config").memory is None, "deleting the file goes back"


def test_the_proposals_can_be_had_without_accepting(place: Path, tmp_path: Path) -> None:
    run(place, "learn", "--proposals", tmp_path / "out.toml")
    assert len(tomllib.loads((tmp_path / "out.toml").read_text(encoding="utf-8"))["routes"]) == 2


def test_a_reviewers_word_is_a_file_of_the_run_and_counts(place: Path) -> None:
    before = json_of(place, "learn")["labels"]["by_kind"][0]["labels"]
    said = json_of(
        place,
        "learn",
        "label",
        "r-03",
        "0",
        "--needed",
        "docs.fetch",
        "--not-needed",
        "files.find",
        "--by",
        "me",
    )
    assert (said["needed"], said["by"]) == (["docs.fetch"], "me")
    assert (said["decision_id"][:5], said["decision_id"][-2:]) == ("r-03.", ".0")
    assert (place / "runs" / "r-03" / "labels.jsonl").exists()
    assert json_of(place, "learn")["labels"]["by_kind"][0]["labels"] == before + 1
    run(place, "runs", "verify", "r-03")
    for words, said_ in (
        (("r-03", "0", "--needed", "repo.readnly"), "did you mean 'repo.readonly'?"),
        (("r-03", "1", "--needed", "docs.fetch"), "has no decision 1"),
        (("r-99", "0", "--needed", "docs.fetch"), "there is no run"),
        (("r-03", "0"), "the label names no bundle"),
        (("r-03", "0", "--needed", "mail", "--not-needed", "mail"), "needed and not needed"),
    ):
        assert said_ in run(place, "learn", "label", *words, code=3).stderr


def test_runs_that_were_tampered_with_teach_nothing_and_are_named(place: Path) -> None:
    path = place / "runs" / "r-05" / "routing.jsonl"
    whole = path.read_text(encoding="utf-8")
    try:
        path.write_text(whole.replace("widget", "gadget"), encoding="utf-8")
        found = json_of(place, "learn")
        assert [row["run_id"] for row in found["unread"]] == ["r-05"]
        assert found["runs"] == 19
        assert "not learned from: r-05" in run(place, "learn").stdout
    finally:
        path.write_text(whole, encoding="utf-8")


def test_without_runs_or_without_a_config_folder_it_says_so(tmp_path: Path) -> None:
    printed = run(tmp_path, "learn").stdout
    assert "0 runs, 0 steps" in printed
    assert "20 more labels" in printed
    assert "no config folder" in run(tmp_path, "learn", "--accept", code=3).stderr


def test_eval_measures_labelled_sets_beside_case_files_and_fails_only_for_cases(
    tmp_path: Path,
) -> None:
    labelled = ROOT / "tests" / "data" / "learning" / "shipped.jsonl"
    cases = ROOT / "tests" / "cases" / "shipped.toml"
    config = ("--config", ROOT / "config")
    printed = run(tmp_path, "eval", cases, labelled, *config).stdout
    for word in (
        "0 failed",
        "recall@1, bundles",
        "MRR",
        "nDCG@10",
        "AUROC",
        "tokens of tools in the array",
        "median",
    ):
        assert word in printed
    found = json_of(tmp_path, "eval", cases, labelled, "--share", "0.25", *config)
    (measured,) = found["sets"]
    assert found["failed"] == 0
    assert (measured["rows"], measured["abstain"]) == (7, 1)
    assert [row["share"] for row in measured["errors"]] == [0.25]
    assert measured["recall"][0]["value"] < 1.0, "a set has no right answer to fail"
    assert measured["unpickable"] == ["workspace.exec"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"goal": "x"}\n')
    assert "bad.jsonl: line 1: bundles" in run(tmp_path, "eval", bad, code=3).stderr
    assert "can't be read" in run(tmp_path, "eval", tmp_path / "nowhere.jsonl", code=3).stderr
