"""The command line as people and programs use it: verbs, exit statuses, JSON, pipes, signals."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.command_line import ROOT, begin, json_of, on_a_terminal, run

STEP = ("--workflow", "feature", "--role", "implementer", "--step", "edit")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder in which the demo ran: the folder, the run's id, and what was printed."""
    folder = tmp_path_factory.mktemp("demo")
    done = run(folder, "demo")
    assert "tool.crashed" not in done.stderr, done.stderr
    printed = done.stdout
    found = re.search(r"runs/(demo-[0-9a-f-]+)", printed)
    assert found is not None
    return folder, found[1], printed


def test_the_demo_meets_everything_it_promises(demo: tuple[Path, str, str]) -> None:
    folder, _, printed = demo
    for word in ("planner", "researcher", "implementer", "sub-agent", "verifier", "reviewer"):
        assert word in printed
    assert "denied: not_allowed" in printed
    assert "capability_missing" in printed
    assert re.search(r"artifact image/png 160x90, \d+ bytes", printed)
    assert re.search(r"repo\.ripgrep +ok +\d+ +12,\d{3} characters; artifact text/plain", printed)
    assert re.search(r"workspace\.exec +ok", printed)
    assert "\x1b" not in printed, "in a pipe it is plain"
    for line in re.findall(r"^  bundle-router (.*)$", printed, re.MULTILINE):
        run(folder, *line.split())


needs_search = pytest.mark.skipif(
    importlib.util.find_spec("bm25s") is None,
    reason="the extra bundle-router[search] is not installed",
)
needs_model = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None or importlib.util.find_spec("instructor") is None,
    reason="the extra bundle-router[model] is not installed",
)


@needs_search
@needs_model
def test_the_demo_settles_steps_without_a_route_by_search_a_model_and_a_shortlist(
    demo: tuple[Path, str, str],
) -> None:
    folder, run_id, printed = demo
    spike = f"{run_id}-spike"
    records = [
        r for r in json_of(folder, "runs", "show", spike)["records"] if r["type"] == "route.decided"
    ]
    assert [(r["source"], r["degraded"], r["bundles"][0]["id"]) for r in records] == [
        ("search", False, "docs.fetch"),
        ("model", False, "repo.readonly"),
        ("shortlist", True, "repo.readonly"),
    ]
    assert [r["search"]["verdict"] for r in records] == ["enough", "novel", "ambiguous"]
    assert [r["model"] and r["model"]["failure"] for r in records] == [None, None, "upstream_error"]
    assert all(r["candidates"] for r in records), "the ranking is recorded whoever answered"
    assert {row["name"] for row in records[0]["facts"]["revisions"]} == {"index", "thresholds"}
    shown = run(folder, "runs", "show", spike).stdout
    for text in (printed, shown):
        assert re.search(r"search: enough \(margin [01]\.\d+, .*thresholds shipped/3\)", text)
        assert re.search(
            r"model openai/scripted-by-the-demo: answered, sure of it \(1 call, \d+ ms, 200 \+ 20 tokens\)",
            text,
        )
        assert "failed: upstream_error (1 call" in text


@needs_search
@needs_model
def test_a_recorded_decision_is_explained_as_it_was_taken(demo: tuple[Path, str, str]) -> None:
    folder, run_id, _ = demo
    spike = f"{run_id}-spike"
    first = json_of(folder, "explain", "--run", spike, "--seq", "0", "--bundle", "repo.readonly")
    assert (first["source"], first["shown"], first["chains"][0]["code"]) == (
        "search",
        False,
        "below_floor",
    )
    as_tool = ("explain", "--run", spike, "--seq", "0", "--tool", "repo.readonly")
    assert json_of(folder, *as_tool) == first
    said = run(folder, *as_tool).stdout
    assert said.startswith("'repo.readonly' is a bundle, no tool: explained as --bundle does\n")
    last = json_of(folder, "explain", "--run", spike, "--tool", "repo.read_file")
    assert (last["degraded"], last["shown"], last["chains"][0]["reason"]) == (True, True, "sticky")
    assert last["model"]["failure"] == "upstream_error"
    assert last["search"]["verdict"] == "ambiguous"
    done = run(folder, "explain", "--run", spike, "--seq", "99", "--bundle", "x", code=3)
    assert "has no decision 99" in done.stderr


@needs_search
def test_search_ranks_bundles_and_tools_and_says_what_it_makes_of_them(tmp_path: Path) -> None:
    found = json_of(tmp_path, "search", "how does asyncio.timeout behave when nested")
    assert found["ranked"][0]["id"] == "docs.fetch"
    assert found["search"]["verdict"] == "enough"
    tools = json_of(tmp_path, "search", "--tools", "list commits", "--limit", "2")["ranked"]
    assert tools[0]["id"] == "repo.git_log"
    assert len(tools) == 2
    at = ("--workflow", "feature", "--role", "reviewer", "--step", "review")
    placed = json_of(tmp_path, "search", "run the tests of this module", *at)["ranked"]
    assert "workspace.exec" not in {row["id"] for row in placed}, "policy does not permit it there"
    assert json_of(tmp_path, "search", "xyzzy")["search"]["verdict"] == "novel"
    assert "the query is empty" in run(tmp_path, "search", "  ", code=3).stderr
    assert (
        "is shown docs.fetch\n"
        in run(tmp_path, "search", "how does asyncio.timeout behave when nested").stdout
    )
    unsure = run(tmp_path, "search", "which options are nested").stdout.splitlines()[-1]
    assert unsure.startswith(
        "a step that no route covers is offered docs.fetch behind search; a route (routes"
    )
    shutil.copytree(ROOT / "config", tmp_path / "config")
    shutil.copytree(ROOT / "bundles", tmp_path / "bundles")
    (tmp_path / "config" / "router.toml").write_text(
        '[model]\nnames = ["openai/x"]\n[fallback]\norder = ["model"]\n'
    )
    assert (
        json_of(tmp_path, "search", "xyzzy")["then"]
        == "a step that no route covers puts the question to openai/x; a route (routes.toml)"
        " decides it"
    )
    (tmp_path / "config" / "router.toml").write_text("[fallback]\norder = []\n")
    assert "covers gets [fallback] default;" in run(tmp_path, "search", "read the file").stdout


def test_a_wrong_step_is_said_in_the_words_of_a_wrong_config(tmp_path: Path) -> None:
    wrong = ("--workflow", "", "--role", "r", "--step", "s", "--max-tools", "-3", "--run", "../x")
    said = run(tmp_path, "route", *wrong, code=3).stderr
    assert (
        "run_id: a text of 4 characters with '.' at place 1 is not a run id: it must match" in said
    )
    assert "workflow: must not be empty; max_tools: must be at least 0, not the number -3" in said
    assert "pydantic" not in said


def _widest(shown: str) -> int:
    return max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines())


def test_the_demo_is_pleasant_on_a_terminal(tmp_path: Path) -> None:
    shown = on_a_terminal(tmp_path, "demo", columns=120)
    assert "\x1b[1m" in shown, "headings are bold"
    assert "\x1b[32m" in shown, "what went well is green"
    assert _widest(shown) <= 121


def test_the_demo_wraps_on_a_narrow_terminal_and_breaks_no_word(tmp_path: Path) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(tmp_path, "demo", columns=60))
    tables = shown.partition("steps that no route covers")[0]
    assert max(map(len, tables.splitlines())) <= 60
    for word in (
        "implementer",
        "repo.readonly,",
        "workspace.write_file",
        "not_allowed",
        "capability_missing",
    ):
        assert word in tables, word
    asked = (
        shown.partition("steps that no route covers")[2]
        .partition("Everything above")[0]
        .splitlines()
    )
    assert len(asked) > 15
    assert max(map(len, asked)) <= 60


def test_an_id_that_people_copy_stays_whole_on_a_narrow_terminal(
    demo: tuple[Path, str, str],
) -> None:
    folder, run_id, _ = demo
    shown = on_a_terminal(folder, "runs", "list", columns=80)
    assert f"{run_id}-spike" in shown
    assert _widest(shown) <= 81
    assert re.search(rf"parent:\s+{run_id}\s", shown), (
        "where columns have no room, rows are paragraphs"
    )
    assert "problem" not in shown, "a column without a word in it takes no room"


def test_what_the_demo_shows_is_what_the_records_say(demo: tuple[Path, str, str]) -> None:
    folder, run_id, printed = demo
    reviewer = json_of(folder, "runs", "show", run_id, "--seq", "20")["records"][0]
    assert reviewer["step"]["role"] == "reviewer"
    row = next(line for line in printed.splitlines() if line.startswith("reviewer"))
    assert row.split()[-1] == f"{reviewer['exposure']['tokens']:,}"


def test_what_the_demo_points_to_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "my venv" / "bin" / "bundle-router"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\nfrom bundle_router.cli import main\nraise SystemExit(main())\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "router")}
    monkeypatch.setattr(sys, "argv", [str(program), "demo"])
    typed = next(
        line for line in run(tmp_path, "demo").stdout.splitlines() if " runs show demo-" in line
    )
    again = subprocess.run(
        typed, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert "feature / planner / plan" in again.stdout


def test_verify_says_once_what_holds_of_every_run(demo: tuple[Path, str, str]) -> None:
    assert run(demo[0], "runs", "verify").stdout.count("the chain has no key") == 1


def test_runs_can_be_listed_shown_verified_and_replayed(demo: tuple[Path, str, str]) -> None:
    folder, run_id, _ = demo
    listed = json_of(folder, "runs", "list")["runs"]
    for words in ((), ("--sort", "run")):
        said = run(folder, "runs", "list", *words).stdout
        assert re.search(
            r"\n\d+ of \d+ steps \(\d+%\) were settled by no route: .*search \d", said
        ), said
        assert "can only be picked by a route" not in said, "check alone says it"
    assert {row["run_id"] for row in listed} == {run_id, f"{run_id}-sub", f"{run_id}-spike"}
    shown = run(folder, "runs", "show", run_id).stdout
    assert "feature / reviewer / review" in shown
    assert "in the array, besides meta-tools: 7 of 19 known tools, 1,533 of 1,991 tokens" in shown
    assert "- workspace.exec  (not_allowed: policy 'reviewers read' does not allow it)" in shown
    records = json_of(folder, "runs", "show", run_id)["records"]
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert all(report["ok"] for report in json_of(folder, "runs", "verify"))
    assert json_of(folder, "replay")["counts"] == {"identical": 9}


def test_verify_names_the_first_record_that_was_changed_and_exits_with_five(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, run_id, _ = demo
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-a", str(folder / "runs"), str(copy)], check=True)
    log = copy / run_id / "routing.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"researcher", b"implementer", 1)
    log.write_bytes(b"".join(lines))
    done = run(tmp_path, "runs", "verify", run_id, code=5)
    assert re.search(r"record 5 changed at .*routing.jsonl:2", done.stdout)


def test_replay_passes_over_a_run_with_a_number_that_is_none(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, run_id, _ = demo
    subprocess.run(["cp", "-a", str(folder / "runs"), str(tmp_path / "runs")], check=True)
    log = tmp_path / "runs" / run_id / "routing.jsonl"
    log.write_text(
        log.read_text(encoding="utf-8").replace('"rank":1', '"rank":1e999', 1), encoding="utf-8"
    )
    said = run(tmp_path, "replay", run_id, code=5)
    assert "routing.jsonl:1: it is not JSON" in said.stderr
    assert "Traceback" not in said.stderr


def test_replay_against_an_edited_config_says_what_changed(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, _, _ = demo
    run(tmp_path, "init")
    policy = tmp_path / "config" / "policy.toml"
    policy.write_text(
        policy.read_text("utf-8").replace(
            '"bundle:docs.fetch", "bundle:workspace.exec"]', '"bundle:workspace.exec"]'
        ),
        encoding="utf-8",
    )
    found = json_of(folder, "replay", "--config", tmp_path / "config", code=1)
    assert {row["step"]: row["lost"] for row in found["differing"]} == {
        "implement": ["docs.fetch"],
        "look-up": ["docs.fetch"],
        "verify": ["docs.fetch"],
    }


def test_replay_sees_a_bundle_that_was_given_more_tools(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, run_id, _ = demo
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "bundles.toml").write_text(
        '[bundles."repo.readonly"]\ndescription = "x"\n'
        'tools = ["repo.*", "workspace.write_file"]\neffects = ["read"]\n',
        encoding="utf-8",
    )
    found = json_of(folder, "replay", "--config", tmp_path / "config", run_id, code=1)
    gained = {row["step"]: row["gained_tools"] for row in found["differing"]}
    assert gained["review"] == ["workspace.write_file"]
    assert gained.keys() == {"plan", "research", "review"}, "who has workspace.exec had it before"


def test_a_changed_or_missing_artifact_and_a_call_without_an_end_are_seen(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, run_id, _ = demo
    subprocess.run(["cp", "-a", str(folder / "runs"), str(tmp_path / "runs")], check=True)
    image, text = sorted(
        (tmp_path / "runs" / run_id / "artifacts").rglob("[0-9a-f]" * 64),
        key=lambda p: p.stat().st_size,
    )
    image.chmod(0o600)
    image.write_bytes(b"x" * image.stat().st_size)
    text.unlink()
    said = run(tmp_path, "runs", "verify", run_id, code=5).stdout
    assert image.name in said
    assert f"artifact {text.name} is gone" in said
    calls = tmp_path / "runs" / run_id / "tool-calls.jsonl"
    lines = calls.read_bytes().splitlines(keepends=True)
    calls.write_bytes(b"".join(lines[:-1]))
    shown = run(tmp_path, "runs", "show", run_id).stdout
    assert "call repo.git_diff  → started, and no end was recorded" in shown
    assert "WARNING: these records are not as they were written" in shown


def test_a_broken_run_is_passed_over_and_named(demo: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, run_id, _ = demo
    subprocess.run(["cp", "-a", str(folder / "runs"), str(tmp_path / "runs")], check=True)
    log = tmp_path / "runs" / f"{run_id}-sub" / "routing.jsonl"
    log.write_bytes(b"garbage\n" + log.read_bytes())
    done = run(tmp_path, "runs", "export", "--to", tmp_path / "out", code=5)
    assert f"{run_id}-sub" in done.stderr
    assert (tmp_path / "out" / "decisions.csv").read_text("utf-8").count(run_id) > 0
    assert run(tmp_path, "replay", code=5).stdout.startswith("8 decisions: 8 identical")


def test_copying_runs_passes_over_what_it_refuses_and_says_so(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, run_id, _ = demo
    subprocess.run(["cp", "-a", str(folder / "runs"), str(tmp_path / "runs")], check=True)
    log = tmp_path / "runs" / run_id / "routing.jsonl"
    log.write_bytes(log.read_bytes().replace(b"mapping", b"mapPing", 1))
    for verb in (
        ("export", "--format", "directory", "--to", "copy"),
        ("import", "--from", "runs", "--runs", "taken"),
    ):
        done = run(tmp_path, "runs", *verb, code=5)
        assert "2 runs copied to" in done.stdout
        assert f"skipped: run '{run_id}' is not as it was written" in done.stderr
        assert "Traceback" not in done.stderr
        again = run(tmp_path, "runs", *verb, code=5)
        assert again.stderr.count(" is already in ") == 2
        assert "0 runs copied to" in again.stdout
        named = run(tmp_path, "runs", verb[0], run_id, *verb[1:], code=5)
        assert (
            f"skipped: run '{run_id}' is not as it was written: its hash does not match its bytes"
            in named.stderr
        )
        assert "0 runs copied to" in named.stdout
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        f"{run_id}-spike",
        f"{run_id}-sub",
    ]
    assert sorted(path.name for path in (tmp_path / "taken").glob("demo*")) == [
        f"{run_id}-spike",
        f"{run_id}-sub",
    ]
    shutil.rmtree(tmp_path / "runs" / run_id)
    assert (
        "already in"
        in run(tmp_path, "runs", "import", "--from", "runs", "--runs", "taken", code=3).stderr
    )


@pytest.mark.parametrize(
    "verb",
    [
        "runs list",
        "runs verify",
        "runs export --to out",
        "runs index",
        "runs prune --max-size 0",
        "replay",
        "learn",
    ],
)
def test_a_folder_of_runs_that_is_not_there_is_not_taken_for_an_empty_one(
    verb: str, tmp_path: Path
) -> None:
    done = run(tmp_path, *verb.split(), "--runs", "mistyped", code=3)
    assert "there is no folder mistyped" in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
    assert (
        "there is no folder mistyped"
        in run(tmp_path, "runs", "import", "--from", "mistyped", code=3).stderr
    )
    assert "no runs in runs" in run(tmp_path, "runs", "list").stdout


def test_export_and_index_tell_the_same_story_and_are_private(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, _, _ = demo
    run(folder, "runs", "export", "--to", tmp_path)
    run(folder, "runs", "index", "--url", f"sqlite:///{tmp_path}/index.sqlite")
    run(folder, "runs", "index", "--url", f"sqlite:///{tmp_path}/index.sqlite")
    with (tmp_path / "bundles.csv").open(newline="", encoding="utf-8") as file:
        from_csv = [
            (r["run_id"], int(r["seq"]), r["bundle"], r["code"] or None)
            for r in csv.DictReader(file)
        ]
    database = sqlite3.connect(tmp_path / "index.sqlite")
    from_sql = database.execute(
        "select run_id, seq, bundle, code from bundle_router_bundles order by run_id, seq, position"
    ).fetchall()
    database.close()
    assert sorted(from_csv, key=str) == sorted(map(tuple, from_sql), key=str)
    assert len(from_sql) > 10
    for name in ("bundles.csv", "calls.csv", "index.sqlite"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_an_export_names_the_config_that_it_could_not_read(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, _, _ = demo
    subprocess.run(["cp", "-a", str(folder / "runs"), str(tmp_path / "runs")], check=True)
    for path in (tmp_path / "runs").glob("*/catalog*.json"):
        path.write_text(
            path.read_text(encoding="utf-8").replace("docs.fetch", "docs.fetc"), encoding="utf-8"
        )
    done = run(tmp_path, "runs", "export", "--to", tmp_path / "out", code=5)
    assert "0 rows in" in done.stdout
    assert "since its config can't be read" in done.stderr
    assert "it was changed" in done.stderr


def test_prune_deletes_by_age_and_says_what_it_would_do(
    demo: tuple[Path, str, str], tmp_path: Path
) -> None:
    folder, _, _ = demo
    subprocess.run(["cp", "-a", str(folder / "runs"), str(tmp_path / "runs")], check=True)
    assert json_of(tmp_path, "runs", "prune", "--older-than", "1h")["deleted"] == []
    assert len(json_of(tmp_path, "runs", "prune", "--max-size", "0B", "--dry-run")["deleted"]) == 3
    assert len(json_of(tmp_path, "runs", "prune", "--max-size", "0B")["deleted"]) == 3
    assert list((tmp_path / "runs").glob("demo-*")) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_a_failure_of_the_disk_and_not_a_finding(
    tmp_path: Path,
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        process = begin(tmp_path, "check", "--json", stdout=full)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 4
    assert said == "bundle-router: what it prints can't be written: No space left on device\n"


def test_explain_says_why_search_could_not_pick_a_bundle_and_which_name_was_meant(
    tmp_path: Path,
) -> None:
    at = (
        "--workflow",
        "other",
        "--role",
        "implementer",
        "--step",
        "any",
        "--goal",
        "read the file and run its tests",
    )
    (chain,) = json_of(tmp_path, "explain", "--bundle", "workspace.exec", *at)["chains"]
    assert chain["code"] == "not_mapped"
    assert "selectable = false" in chain["detail"]
    (chain,) = json_of(tmp_path, "explain", "--tool", "repo.read_fil", *at)["chains"]
    assert chain["detail"].endswith("did you mean 'repo.read_file'?")
    (chain,) = json_of(tmp_path, "explain", "--tool", "repo.readonly", *at)["chains"]
    assert (chain["bundle"], chain["tool"]) == ("repo.readonly", None), "it is a bundle's id"
    (chain,) = json_of(tmp_path, "explain", "--bundle", "repo.read_file", *at)["chains"]
    assert chain["detail"] == "no bundle has this id; it is the name of a tool"


def test_a_step_that_no_policy_covers_is_said_to_be_one(tmp_path: Path) -> None:
    said = run(
        tmp_path, "route", "--workflow", "feature", "--role", "planer", "--step", "plan"
    ).stdout
    assert (
        "nothing is permitted: no row of policy.toml with `allow` covers feature/planer/plan"
        in said
    )
    assert "role = 'planer' and allow = ['bundle:…'] permits bundles there" in " ".join(
        said.split()
    )
    assert "nothing is permitted" not in run(tmp_path, "route", *STEP).stdout


def test_route_explain_tools_and_call_work_on_one_run(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n", encoding="utf-8")
    routed = json_of(tmp_path, "route", *STEP, "--run", "r-1", "--deny", "tool:repo.git_log")
    assert [row["id"] for row in routed["decision"]["bundles"]] == [
        "repo.readonly",
        "workspace.exec",
    ]
    assert "repo.git_log" not in run(tmp_path, "tools", "--run", "r-1").stdout
    assert (
        "hello"
        in run(tmp_path, "call", "--run", "r-1", "repo.read_file", '{"path": "a.txt"}').stdout
    )
    assert run(tmp_path, "call", "--run", "r-1", "repo.git_log", code=3).stdout.startswith(
        "'repo.git_log' is not"
    )
    run(tmp_path, "call", "--run", "r-1", "repo.read_file", '{"path": "b.txt"}', code=4)
    explained = json_of(tmp_path, "explain", "--tool", "workspace.exec", "--workflow", "feature", "--role", "reviewer",
                        "--step", "review")  # fmt: skip
    assert not explained["shown"]
    chain = next(chain for chain in explained["chains"] if chain["tool"])
    assert [check["code"] for check in chain["checks"]] == [
        "unknown_bundle", "disabled", "policy_denied", "not_allowed", "trust_too_low", "effect_not_allowed",
        "allowlist_required", "capability_missing", "pin_drift", "not_admitted", "not_listed", "server_unavailable",
        "not_mapped",
    ]  # fmt: skip
    assert chain["code"] == "not_allowed"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("bogus",), 3, "invalid choice"),
        (("route",), 3, "required"),
        (("route", *STEP, "--run", "../x"), 3, "not a run id"),
        (("route", *STEP, "--deny", "nonsense:x"), 3, "is not a pattern"),
        (("route", *STEP, "--config", "nowhere"), 2, "does not exist"),
        (("route", *STEP, "--workspace", "nowhere"), 3, "not a folder"),
        (("route", *STEP, "--parent-run", "nobody"), 3, "nobody"),
        (("tools", "--run", "nobody"), 3, "nobody"),
        (("call", "--run", "x", "repo.read_file", "{"), 3, "not JSON"),
        (("call", "--run", "x", "repo.read_file", "[]"), 3, "JSON object"),
        (("runs", "show", "nobody"), 3, "nobody"),
        (("runs", "prune"), 3, "--older-than"),
        (("runs", "prune", "--older-than", "soon"), 3, "not an age"),
        (("runs", "index", "--url", "nonsense"), 3, "SQLAlchemy URL"),
        (("runs", "index", "--url", "sqlite:////nowhere/at/all.sqlite"), 4, "can't be written"),
        (("eval", "nowhere.toml"), 3, "can't be read"),
        (("explain", "--bundle", "x"), 3, "--workflow, --role, --step"),
        (("explain", "--bundle", "x", "--run", "nobody"), 3, "nobody"),
        (("search",), 3, "required"),
        (("search", "x", "--role", "y"), 3, "come together"),
    ],
)
def test_what_is_wrong_is_said_on_stderr_with_its_own_exit_status(
    tmp_path: Path, words: Sequence[str], code: int, said: str
) -> None:
    done = run(tmp_path, *words, code=code)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_check_says_when_it_checked_no_config_of_ones_own(tmp_path: Path) -> None:
    alone = (
        "this is the shipped config alone: there is no config folder here (`bundle-router init`"
        " writes one)"
    )
    assert alone in run(tmp_path, "check").stdout.splitlines()
    run(tmp_path, "init")
    assert alone not in run(tmp_path, "check").stdout


def test_the_forms_that_eval_shows_are_such_that_it_takes(tmp_path: Path) -> None:
    shown = run(tmp_path, "eval", "--help").stdout.splitlines()
    inner = [line[2:] for line in shown if line.startswith("  ")]
    (tmp_path / "a.toml").write_text(
        "\n".join(inner[inner.index("[[cases]]") :][:7]), encoding="utf-8"
    )
    rows = [line for line in inner if line.startswith("{")]
    (tmp_path / "a.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert run(tmp_path, "eval", "a.toml", "a.jsonl").stdout.startswith(
        "1 passed, 0 failed\n\na.jsonl: 2 steps"
    )
    (tmp_path / "a.jsonl").write_text('{"goal": "x"}', encoding="utf-8")
    assert "eval --help" in run(tmp_path, "eval", "a.jsonl", code=3).stderr


def test_check_exits_with_two_and_names_the_line(tmp_path: Path) -> None:
    run(tmp_path, "init")
    assert run(tmp_path, "check", "--strict").stdout.startswith("valid: 4 bundles")
    routes = tmp_path / "config" / "routes.toml"
    routes.write_text(
        routes.read_text("utf-8").replace('["repo.readonly"]', '["repo.readnly"]', 1),
        encoding="utf-8",
    )
    done = run(tmp_path, "check", code=2)
    assert re.search(r"^config/routes\.toml:\d+: routes\[\d+\]\.bundles\[0\]: unknown bundle 'repo\.readnly' "
                     r"\(did you mean 'repo\.readonly'\?\)$", done.stdout, re.MULTILINE)  # fmt: skip
    assert json_of(tmp_path, "check", code=2)["valid"] is False
    assert run(tmp_path, "init").stdout.count("kept") > 5, "init never overwrites"


def test_eval_runs_this_projects_own_cases(tmp_path: Path) -> None:
    cases = ROOT / "tests" / "cases" / "shipped.toml"
    assert "0 failed" in run(tmp_path, "eval", cases).stdout
    bad = tmp_path / "bad.toml"
    bad.write_text(
        cases.read_text("utf-8").replace(
            'bundles = ["repo.readonly", "docs.fetch"]', "bundles = []"
        ),
        "utf-8",
    )
    assert json_of(tmp_path, "eval", bad, code=1)["failed"] == 2


def test_a_reader_that_goes_away_is_no_error(demo: tuple[Path, str, str]) -> None:
    folder, run_id, _ = demo
    done = subprocess.run(
        f"{sys.executable} -m bundle_router runs show {run_id} --json | head -c 10; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT / "router")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 141)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(demo: tuple[Path, str, str], closed: str) -> None:
    folder, run_id, _ = demo
    done = subprocess.run(
        f"{sys.executable} -m bundle_router runs show {run_id} {closed}", shell=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "router")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_call_ends_its_children_and_leaves_a_whole_log(
    tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    (tmp_path / "test_slow.py").write_text(
        "import pathlib, time\npathlib.Path('started').write_text('x')\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    run(tmp_path, "route", *STEP, "--run", "r-1")
    process = begin(
        tmp_path, "call", "--run", "r-1", "workspace.exec",
        json.dumps({"binary": "python", "args": ["-m", "unittest", "test_slow"]}),
        # Heeded also where the tests themselves run in the background, which ignores interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not (tmp_path / "started").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        os.sched_yield()
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == status, stderr
    assert "Traceback" not in stderr
    (report,) = json_of(tmp_path, "runs", "verify", "r-1")
    assert report["ok"]
    last = json_of(tmp_path, "runs", "show", "r-1")["records"][-1]
    assert (last["type"], last["outcome"]) == ("call.finished", "cancelled")
    while left := subprocess.run(
        ["pgrep", "-af", str(tmp_path)], capture_output=True, text=True, check=False
    ).stdout:
        assert time.monotonic() < deadline, left  # what is killed ends a moment later
