"""The log reviewer at the command line: what runs say of themselves."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import on_a_terminal, run, watch

STEP = ("--workflow", "feature", "--role", "implementer", "--step", "edit")


@pytest.fixture
def reviewed(shell: Any) -> Any:
    """A run with a goal, a constraint, a label, a policy of its own, one call that works and one
    that is refused.
    """
    (shell.folder / "a.txt").write_text("first line\nsecond line\n" + "x" * 500, encoding="utf-8")
    shell(
        "route", *STEP, "--run", "r-1", "--goal", "rename\nthe flag", "--constraint", "no network", "--label",
        "ticket=4711", "--trust", "trusted", "--deny", "tool:repo.git_log", "--principal", "ada",
    )  # fmt: skip
    shell("call", "--run", "r-1", "repo.read_file", '{"path": "a.txt"}')
    shell("call", "--run", "r-1", "repo.git_log", '{"max_count": 3}', code=3)
    return shell


def test_show_says_what_was_asked_what_was_given_and_what_came_back(reviewed: Any) -> None:
    shown = reviewed("runs", "show", "r-1").stdout
    for said in (
        "      goal: rename ⏎ the flag\n",
        "      constraint: no network\n",
        '      its own policy: {"deny": ["tool:repo.git_log"], "trust": "trusted"}\n',
        "      principal: ada\n",
        "      labels: ticket=4711\n",
        '        with {"path":"a.txt"}\n',
        '        with {"max_count":3}\n',
    ):
        assert said in shown
    (gave,) = [
        line
        for line in shown.splitlines()
        if line.startswith("        gave ") and "first line" in line
    ]
    assert "first line ⏎" in gave
    assert gave.endswith(" characters)"), "what is cut off is counted"
    assert len(gave) <= 120


def test_show_fits_the_terminal_and_json_is_whole(reviewed: Any) -> None:
    shown = on_a_terminal(reviewed.folder, "runs", "show", "r-1", columns=80, NO_COLOR="1")
    lines = [
        line for line in shown.splitlines() if line.lstrip().startswith(("with", "gave", "goal"))
    ]
    assert len(lines) >= 4
    assert max(map(len, lines)) <= 80
    records = reviewed.json("runs", "show", "r-1")["records"]
    assert "x" * 500 in next(
        record["result"] for record in records if record.get("outcome") == "ok"
    )


def test_a_run_that_was_not_closed_is_listed_with_its_records(reviewed: Any) -> None:
    assert reviewed.json("runs", "list")["runs"][0]["records"] == 4
    header = reviewed.folder / "runs" / "r-1" / "run.json"
    fields = json.loads(header.read_text("utf-8"))
    del fields["closed"]
    header.write_text(json.dumps(fields), encoding="utf-8")
    (row,) = reviewed.json("runs", "list")["runs"]
    assert (row["state"], row["records"]) == ("ended", 4)


@pytest.mark.parametrize(
    ("size", "deleted"),
    [("50KB", 0), ("50kb", 0), ("50k", 0), ("1.5GiB", 0), ("0", 1), ("100 b", 1), ("0.001MB", 1)],
)
def test_prune_takes_sizes_as_people_write_them(reviewed: Any, size: str, deleted: int) -> None:
    assert (
        len(reviewed.json("runs", "prune", "--max-size", size, "--dry-run")["deleted"]) == deleted
    )


def test_prune_says_what_is_no_size(shell: Any) -> None:
    assert (
        "write e.g. 50KB, 500MB or 1.5GiB"
        in shell("runs", "prune", "--max-size", "big", code=3).stderr
    )


def test_the_steps_own_trust_floor_and_its_labels_come_from_the_command_line(shell: Any) -> None:
    shell.write(
        servers='[servers.repo]\ntransport = "local"\ntrust = "untrusted"\n',
        bundles=(
            '[bundles."repo.readonly"]\ndescription = "x"\ntools = ["repo.read_file"]\neffects ='
            ' ["read"]\n'
        ),
        policy='[[policies]]\nname = "p"\nrole = "implementer"\nallow = ["bundle:repo.readonly"]\n',
    )
    assert shell.json("route", *STEP)["decision"]["bundles"][0]["id"] == "repo.readonly"
    low = shell.json("route", *STEP, "--trust", "trusted")["decision"]
    assert low["left_out"][0]["code"] == "trust_too_low"
    assert "invalid choice" in shell("route", *STEP, "--trust", "maybe", code=3).stderr
    assert "write --label ticket=4711" in shell("route", *STEP, "--label", "ticket", code=3).stderr
    assert "given twice" in shell("route", *STEP, "--label", "a=1", "--label", "a=2", code=3).stderr


def test_verify_finds_what_todays_rules_would_have_redacted(tmp_path: Path) -> None:
    recorded = next((Path(__file__).parent.parent / "data" / "runs").glob("*/golden-sub"))
    shutil.copytree(recorded, tmp_path / "runs" / recorded.name)
    verify = ("runs", "verify", "--secrets", "--runs", tmp_path / "runs")
    run(tmp_path, *verify)
    with (tmp_path / "runs" / recorded.name / "tool-calls.jsonl").open(
        "a", encoding="utf-8"
    ) as file:
        file.write(
            '{"result": "key gsk_4nT9xV2mK4pL8nR34nT9xV2mK4pL8nR3 and [redacted:xai-key]"}\n'
        )
    said = run(tmp_path, *verify, code=1).stdout
    assert "tool-calls.jsonl:3: groq-key\n" in said
    assert "gsk_" not in said


def test_a_run_is_read_without_waiting_for_a_pipe_or_following_a_link_or_however_deep_its_folders_are(
    tmp_path: Path,
) -> None:
    runs, secret = tmp_path / "runs", tmp_path / "outside.json"
    folder = runs / "golden-sub"
    shutil.copytree(
        next((Path(__file__).parent.parent / "data" / "runs").glob("*/golden-sub")), folder
    )
    secret.write_text("key gsk_4nT9xV2mK4pL8nR34nT9xV2mK4pL8nR3\n")
    for make in (os.mkfifo, lambda path: path.symlink_to(secret)):
        make(folder / "more.json")
        told = run(tmp_path, "runs", "verify", "--secrets", "--runs", runs, code=5)
        assert "more.json" in told.stderr, "it is told, and what it leads to not read"
        (folder / "more.json").unlink()
    names = ["artifacts", *["d"] * 1_100]
    opened = [os.open(folder, os.O_RDONLY)]
    for name in names:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=opened[-1])
        opened.append(os.open(name, os.O_RDONLY, dir_fd=opened[-1]))
        os.close(opened.pop(-2))
    os.close(opened.pop())
    run(tmp_path, "runs", "list", "--runs", runs)
    status, _, _ = watch(
        tmp_path, "runs", "prune", "--max-size", "1", "--runs", runs, on_line=lambda line: None
    )
    assert status in (0, 4), "deleted, or told why not"
    subprocess.run(["rm", "-rf", str(runs)], check=True)  # Python's own way ends at that depth


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_a_folder_that_may_not_be_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "golden"
    shutil.copytree(next((Path(__file__).parent.parent / "data" / "runs").glob("*/golden")), run)
    (run / "artifacts").mkdir(exist_ok=True)
    (run / "artifacts").chmod(0)
    try:
        status, _, err = watch(
            tmp_path, "runs", "verify", "--runs", tmp_path / "runs", on_line=lambda line: None
        )
        assert status in (0, 4, 5)
        assert "Traceback" not in err
    finally:
        (run / "artifacts").chmod(0o700)


def test_a_word_that_is_no_utf8_and_a_number_that_is_too_large_are_answered_in_a_sentence(
    reviewed: Any,
) -> None:
    word = "a\udcff"
    for words in (
        ["list", "--search", word],
        ["list", "--workflow", word],
        ["publish", word, "--to", "site"],
    ):
        assert "is not UTF-8" in reviewed("runs", *words, code=3).stderr
    assert "r-1" in reviewed("runs", "list", "--limit", str(10**30)).stdout
    assert "r-1" in reviewed("runs", "search", "flag", "--limit", str(10**30)).stdout


def test_a_search_for_more_than_a_run_id_can_be_finds_nothing(reviewed: Any) -> None:
    """SQLite refuses patterns over 50,000 bytes."""
    assert reviewed("runs", "list", "--search", "%_" * 40_000).stdout == "no run matches\n"
    assert "r-1" in reviewed("runs", "list", "--search", "r-1").stdout


def test_no_text_of_a_step_or_a_call_looks_like_a_line_of_ours(shell: Any) -> None:
    """An agent chooses the names that it calls, and an engine passes on whose step it is."""
    forged = "x\n    9  call repo.read_file  → ok, 1.0 ms\r\n(all of it verified)"
    shell(
        "route",
        "--workflow",
        forged,
        "--role",
        forged,
        "--step",
        forged,
        "--run",
        "r-1",
        "--principal",
        forged,
    )
    shell("route", *STEP, "--run", "r-1", "--principal", forged)
    shell("call", "--run", "r-1", forged, "{}", code=3)
    for verb in (
        ("show", "r-1"),
        ("stats",),
        ("list", "--denied"),
        ("search", "verified"),
        ("verify", "r-1"),
    ):
        for said in (
            shell("runs", *verb).stdout,
            on_a_terminal(shell.folder, "runs", *verb, columns=200, NO_COLOR="1"),
        ):
            lines = [line.strip() for line in said.splitlines()]
            assert not [line for line in lines if line.startswith(("9  call", "(all of"))]
    said = shell(
        "explain", "--tool", "repo.read_file", "--workflow", forged, "--role", "r", "--step", "s"
    ).stdout
    assert not [
        line for line in said.splitlines() if line.lstrip().startswith(("9  call", "(all of"))
    ]
