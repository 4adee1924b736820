"""Every verb that reads runs reads them in a database too, and whole runs go both ways
unchanged.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.archive import FolderHeads
from bundle_router.adapters.archive.database import PostgresArchive
from bundle_router.adapters.archive.label_files import append_label
from bundle_router.cli import main
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.wiring.stores import open_archive

from tests.adapters.postgres.conftest import CATALOG, HEADER
from tests.command_line import begin

RECORDED = Path(__file__).parents[2] / "data" / "runs" / "0.1.0-first-layout"
RUN = min(path.name for path in RECORDED.glob("[!.]*"))


@pytest.fixture
def filled(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["runs", "import", "--from", str(RECORDED), "--store", url]) == 0
    assert "3 runs copied" in capsys.readouterr().out
    return url


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def files(folder: Path) -> dict[str, bytes]:
    """The files of the runs in a folder, without what the runs share."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob("[!.]*/**/*")
        if path.is_file()
    }


def test_runs_go_into_a_database_and_out_of_it_byte_for_byte(filled: str, tmp_path: Path) -> None:
    assert (
        main(
            [
                "runs",
                "export",
                "--store",
                filled,
                "--format",
                "directory",
                "--to",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    before, after = files(RECORDED), files(tmp_path / "out")
    assert after.keys() == before.keys()
    assert {
        name for name in before if before[name] != after[name] and not name.endswith("catalog.json")
    } == set()
    for name in before:
        if name.endswith("catalog.json"):
            assert json.loads(after[name]) == json.loads(before[name])


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "show", RUN),
        ("runs", "show", RUN, "--seq", "0"),
        ("replay",),
        ("explain", "--run", RUN, "--bundle", "repo.readonly"),
        ("runs", "receipt", RUN, "0"),
    ],
    ids=" ".join,
)
def test_a_verb_says_the_same_of_both_stores(
    filled: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    ours, theirs = (
        said(capsys, *words, *where) for where in (("--store", filled), ("--runs", str(RECORDED)))
    )
    if words[:2] == ("runs", "show"):
        for one in (ours, theirs):
            assert one["run"].pop("path")
            assert one["run"].pop("bytes")
    assert ours == theirs


def test_runs_in_a_database_are_listed_verified_tabled_and_pruned(
    filled: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy = shutil.copytree(RECORDED, tmp_path / "recorded")  # a list leaves an index in its folder
    listed = said(capsys, "runs", "list", "--store", filled)["runs"]
    assert [(run["state"], run["records"]) for run in listed] == [
        (run["state"], run["records"])
        for run in said(capsys, "runs", "list", "--runs", str(copy))["runs"]
    ]
    assert all(report["ok"] for report in said(capsys, "runs", "verify", "--store", filled))
    tables = [said(capsys, "runs", "export", "--to", str(tmp_path / str(at)), *where) for at, where in enumerate(
        (("--store", filled), ("--runs", str(RECORDED))))]  # fmt: skip
    assert [row["rows"] for row in tables[0]] == [row["rows"] for row in tables[1]]
    built = said(
        capsys, "runs", "index", "--store", filled, "--url", f"sqlite:///{tmp_path}/i.sqlite"
    )
    assert built["runs"] == 3
    assert len(said(capsys, "runs", "prune", "--store", filled, "--max-size", "0")["deleted"]) == 3
    assert said(capsys, "runs", "list", "--store", filled)["runs"] == []
    assert main(["runs", "import", "--from", str(RECORDED), "--store", filled]) == 0


def test_a_changed_record_in_a_database_is_named(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import psycopg

    with psycopg.connect(filled) as connection:
        connection.execute(
            "update router_records set line = replace(line, 'mapping', 'mapPing') where run_id = %s"
            " and seq = 0",
            (RUN,),
        )
    (report,) = said(capsys, "runs", "verify", RUN, "--store", filled, code=5)
    assert (report["broken"]["kind"], report["broken"]["seq"]) == ("changed", 0)
    assert (
        main(["runs", "export", RUN, "--store", filled, "--format", "directory", "--to", "unused"])
        == 5
    )


def test_a_run_that_is_there_is_not_taken_in_again(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "import", RUN, "--from", str(RECORDED), "--store", filled]) == 3
    assert f"run '{RUN}' is already in" in capsys.readouterr().err


def test_labels_go_with_a_run(url: str, tmp_path: Path) -> None:
    shutil.copytree(RECORDED / RUN, tmp_path / "runs" / RUN)
    label = StepLabel(decision_id=f"{RUN}.0", needed=("docs.fetch",))
    append_label(tmp_path / "runs" / RUN, label)
    assert main(["runs", "import", "--from", str(tmp_path / "runs"), "--store", url]) == 0
    archive = open_archive(url)
    archive.add_label(RUN, label)
    assert archive.labels(RUN) == [label, label]
    assert (
        main(
            [
                "runs",
                "export",
                "--store",
                url,
                "--format",
                "directory",
                "--to",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    assert open_archive(tmp_path / "out").labels(RUN) == [label, label]


def test_the_verbs_that_open_a_router_route_show_call_and_serve_a_run_of_the_database(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.txt").write_text("of the workspace\n")
    address = ("--workflow", "feature", "--role", "planner", "--step", "plan")
    at = ("--run", "r", "--store", url)
    assert main(["route", *address, *at]) == 0
    assert "recorded in the database as record 0" in capsys.readouterr().out
    assert "repo__read_file" in [
        tool["function"]["name"] for tool in said(capsys, "tools", *at)["tools"]
    ]
    assert (
        "of the workspace"
        in said(capsys, "call", "repo.read_file", '{"path": "note.txt"}', *at)["text"]
    )
    serving = begin(tmp_path, "serve", "--mcp-only", *at)
    try:
        assert serving.stdout is not None
        assert "/mcp/runs/r until interrupted" in serving.stdout.readline()
    finally:
        serving.terminate()
        serving.communicate(timeout=300)
    assert serving.returncode == 0
    assert not (tmp_path / "runs").exists()
    for verb in (
        ["route", *address],
        ["tools"],
        ["call", "repo.read_file"],
        ["serve", "--mcp-only"],
    ):
        assert main([*verb, "--run", "r", "--store", "runs"]) == 3
        assert "is not a store" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        (
            "update router_artifacts set data = null where sha256 in"
            " (select sha256 from router_run_artifacts where run_id = %s)"
        ),
        "update router_runs set ended = 'no json', header = 'no json' where run_id = %s",
    ],
)
def test_one_damaged_row_is_a_finding_of_its_run_and_hides_no_other(
    filled: str, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    import psycopg

    with psycopg.connect(filled) as connection:
        ((damaged,),) = connection.execute(
            "select min(run_id) from router_run_artifacts"
        ).fetchall()
        connection.execute(damage, (damaged,))
    reports = said(capsys, "runs", "verify", "--store", filled, code=5)
    assert [report["ok"] for report in reports] == [
        report["run_id"] != damaged for report in reports
    ]
    assert len(said(capsys, "runs", "list", "--store", filled)["runs"]) == len(reports) == 3
    assert len(said(capsys, "runs", "prune", "--max-size", "0", "--store", filled)["deleted"]) >= 2


def test_the_head_of_a_run_that_is_found_in_use_is_not_marked(
    make_store: Any, url: str, tmp_path: Path
) -> None:
    heads = FolderHeads(tmp_path)
    make_store().create("r-1", header=HEADER, catalog=CATALOG)
    heads.note("r-1", 0, "sha256:0")
    archive = PostgresArchive(url)
    archive.heads = heads
    assert not archive.delete("r-1")
    head = heads.read("r-1")
    assert head is not None
    assert not head.pruned
