"""The runs of one catalog share its file where the file system has hard links; each run is whole by
itself all the same.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive, prune
from bundle_router.adapters.archive.run_transfer import copy_run
from bundle_router.cli import main

from tests.adapters.run_log.conftest import CATALOG

OTHER = '{"bundles":[],"note":"another","schema":"bundle-router.catalog/1"}'


def route(folder: Path, *run_ids: str) -> Archive:
    """Route a step in each of these runs, under the shipped config."""
    with Router.open(None, runs=folder / "runs", workspace=folder) as router:
        for run_id in run_ids:
            step = Step(run_id=run_id, workflow="feature", role="implementer", step="edit")
            router.route_sync(step)
    return Archive(folder / "runs")


def catalog_of(archive: Archive, run_id: str) -> os.stat_result:
    return (archive.root / run_id / "catalog.json").stat()


def test_the_runs_of_a_catalog_share_one_private_file(tmp_path: Path) -> None:
    archive = route(tmp_path, "a", "b")
    first, second = (catalog_of(archive, run_id) for run_id in ("a", "b"))
    assert (first.st_ino, first.st_nlink) == (second.st_ino, 3)  # two runs, and the shared one
    assert first.st_mode & 0o777 == 0o600
    later = catalog_of(route(tmp_path, "c"), "c")  # by another process
    assert (later.st_ino, later.st_nlink) == (first.st_ino, 4)
    assert [archive.verify(run_id).problems for run_id in "abc"] == [(), (), ()]


def test_a_later_catalog_of_a_run_is_shared_too(runs: Any) -> None:
    for run_id in ("a", "b"):
        log = runs.open(run_id)
        log.put_catalog("sha256:" + "1" * 64, OTHER)
    files = [runs.path / run_id / "catalog-1111111111111111.json" for run_id in ("a", "b")]
    assert [file.read_text("utf-8") for file in files] == [OTHER, OTHER]
    assert files[0].samefile(files[1])


def test_a_copied_an_exported_and_an_imported_run_have_files_of_their_own(tmp_path: Path) -> None:
    archive = route(tmp_path, "a", "b")
    shutil.copytree(archive.root / "a", tmp_path / "elsewhere" / "a")
    words = ["runs", "export", "--runs", str(archive.root), "--format", "directory"]
    assert main([*words, "--to", str(tmp_path / "exported")]) == 0
    copy_run(Archive(tmp_path / "exported"), "b", Archive(tmp_path / "imported"))
    for folder, run_id in (
        ("elsewhere", "a"),
        ("exported", "a"),
        ("exported", "b"),
        ("imported", "b"),
    ):
        copy = Archive(tmp_path / folder)
        assert copy.verify(run_id).ok
        assert copy.catalog(run_id) == archive.catalog(run_id)
        assert catalog_of(copy, run_id).st_nlink == 1


def test_without_hard_links_each_run_has_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    archive = route(tmp_path, "a", "b")
    for run_id in ("a", "b"):
        assert catalog_of(archive, run_id).st_nlink == 1
        assert archive.verify(run_id).ok
    assert catalog_of(archive, "a").st_ino != catalog_of(archive, "b").st_ino


def test_a_shared_file_that_was_changed_is_not_linked_again(tmp_path: Path) -> None:
    archive = route(tmp_path, "a")
    (archive.root / "a" / "catalog.json").write_text(CATALOG, encoding="utf-8")
    assert not archive.verify("a").ok
    route(tmp_path, "b")
    assert archive.verify("b").ok
    assert not archive.verify("a").ok


def test_pruning_the_last_run_of_a_catalog_deletes_the_shared_file(tmp_path: Path) -> None:
    archive = route(tmp_path, "a", "b")
    shared = archive.root / ".artifacts"
    assert sum(file.is_file() for file in shared.rglob("*")) == 1
    assert archive.delete("a")
    archive.finish_deletions()
    assert archive.verify("b").ok
    prune(archive, now="2100-01-01T00:00:00Z", older_than_s=1)
    assert archive.run_ids() == []
    assert sum(file.is_file() for file in shared.rglob("*")) == 0
