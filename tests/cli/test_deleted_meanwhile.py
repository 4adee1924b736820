"""Runs that are deleted while a verb reads all of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.archive import Archive, VerifyReport, directory
from bundle_router.adapters.archive.run_transfer import copy_run
from bundle_router.cli import main
from bundle_router.errors import CorruptRun, UnknownRun

RECORDED = next((Path(__file__).parent.parent / "data" / "runs").glob("*/golden-sub")).parent


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    shutil.copytree(RECORDED, tmp_path / "runs", ignore=shutil.ignore_patterns(".*"))
    return tmp_path / "runs"


@pytest.fixture(params=["listed", "read"])
def one_deleted(request: pytest.FixtureRequest, runs: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Deletes a run when the runs have been listed, or when its header is about to be read."""
    doomed = "golden-sub"
    list_runs, read_json = Archive.run_ids, directory._read_json

    def delete_when_listed(archive: Archive) -> list[str]:
        found = list_runs(archive)
        if archive.root == runs:
            shutil.rmtree(runs / doomed, ignore_errors=True)
        return found

    def delete_when_read(path: Path) -> Any:
        if path.parent == runs / doomed:
            shutil.rmtree(runs / doomed, ignore_errors=True)
        return read_json(path)

    if request.param == "listed":
        monkeypatch.setattr(Archive, "run_ids", delete_when_listed)
    else:
        monkeypatch.setattr(directory, "_read_json", delete_when_read)
    return doomed


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "verify"),
        ("runs", "verify", "--secrets"),
        ("replay",),
        ("runs", "export", "--to", "{to}"),
        ("runs", "export", "--format", "directory", "--to", "{to}"),
        ("runs", "index", "--url", "sqlite:///{to}.sqlite"),
    ],
    ids=" ".join,
)
def test_a_verb_over_all_runs_passes_it_over_and_says_so(
    runs: Path,
    tmp_path: Path,
    one_deleted: str,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    assert main([*(word.format(to=tmp_path / "to") for word in words), "--runs", str(runs)]) == 0
    said = capsys.readouterr()
    if not (runs / one_deleted).exists():  # --secrets reads no header
        assert f"run {one_deleted!r}" in said.err
    assert not list(tmp_path.glob(f"to/{one_deleted}"))


@pytest.mark.parametrize("verb", ["list", "stats"])
def test_a_list_leaves_it_out(
    runs: Path, one_deleted: str, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert main(["runs", verb, "--runs", str(runs), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert one_deleted not in json.dumps(said)


@pytest.mark.parametrize("change", ["deleted", "rewritten"])
def test_what_changes_between_its_check_and_its_copy_is_not_copied(
    runs: Path, tmp_path: Path, change: str
) -> None:
    class ChangingArchive(Archive):
        is_checked = False

        def verify(
            self, run_id: str, *, artifacts: bool = False, catalogs: bool = True
        ) -> VerifyReport:
            report = super().verify(run_id, artifacts=artifacts, catalogs=catalogs)
            self.is_checked = True
            return report

        def lines(self, run_id: str) -> dict[str, Iterator[bytes]]:
            found = super().lines(run_id)
            if self.is_checked and change == "deleted":
                shutil.rmtree(self.root / run_id)
            elif self.is_checked:
                file = self.root / run_id / "routing.jsonl"
                file.write_bytes(file.read_bytes().replace(b"feature", b"another"))
            return found

    target = Archive(tmp_path / "to")
    with pytest.raises(UnknownRun if change == "deleted" else CorruptRun):
        copy_run(ChangingArchive(runs), "golden-open", target)
    assert list(target.root.iterdir()) == []


def put_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def put_socket(path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX) as bound,
        contextlib.chdir(path.parent),
    ):  # its address is short
        bound.bind(path.name)


@pytest.mark.parametrize("file", ["routing.jsonl", "run.json", "catalog.json", "labels.jsonl"])
@pytest.mark.parametrize("put", [put_link, put_socket])
def test_a_run_with_something_else_in_a_files_place_hides_no_other(
    runs: Path, capsys: pytest.CaptureFixture[str], put: Callable[[Path], None], file: str
) -> None:
    (runs / "golden" / file).unlink(missing_ok=True)
    put(runs / "golden" / file)
    of_records = 0 if file == "labels.jsonl" else 5
    assert main(["runs", "verify", "--runs", str(runs)]) == of_records
    assert "of 3 runs are as they were written" in capsys.readouterr().out
    assert main(["runs", "verify", "--secrets", "--runs", str(runs)]) == 5
    assert file in capsys.readouterr().err
    assert main(["replay", "--runs", str(runs)]) == of_records
    assert "2 decisions: " in capsys.readouterr().out or not of_records
    assert main(["runs", "list", "--runs", str(runs), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 3
    assert main(["runs", "prune", "--max-size", "0", "--runs", str(runs)]) == (
        4 if file == "routing.jsonl" else 0
    )
    assert Archive(runs).run_ids() == (["golden"] if file == "routing.jsonl" else []), (
        "its lock can't be tried"
    )


def _check_others_are_shown(runs: Path, capsys: pytest.CaptureFixture[str], why: str) -> None:
    assert main(["runs", "verify", "--runs", str(runs)]) == 4
    said = capsys.readouterr()
    assert why in said.err
    assert "2 of 2 runs are as they were written" in said.out
    assert main(["runs", "list", "--runs", str(runs), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_a_run_that_may_not_be_read_hides_no_other(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "golden" / "routing.jsonl").chmod(0)
    _check_others_are_shown(runs, capsys, "golden/routing.jsonl")


@pytest.mark.parametrize("call", ["fstat", "pread", "lseek"])
def test_a_run_that_the_disk_does_not_give_hides_no_other(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    real = getattr(os, call)

    def fail(fd: int, *arguments: Any) -> Any:
        if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(runs / "golden-open"):
            raise OSError(errno.EIO, "the disk gave nothing")
        return real(fd, *arguments)

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        _check_others_are_shown(runs, capsys, "the disk gave nothing")
