"""Equal bytes are stored once for a folder of runs, and freed with the last run that names them."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest
from bundle_router.adapters.archive import Archive, prune
from bundle_router.adapters.artifact_files import ArtifactPool, ArtifactReader, RunArtifacts
from bundle_router.errors import CorruptRun

DATA = b"some large result" * 100
DIGEST = hashlib.sha256(DATA).hexdigest()


def made(root: Path, run_id: str) -> RunArtifacts:
    (root / run_id).mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / run_id / "run.json").write_text('{"opened": "2026-11-01T00:00:00Z"}')
    return RunArtifacts(root / run_id)


def copies(root: Path) -> set[int]:
    return {path.stat().st_ino for path in root.rglob(DIGEST)}


def test_equal_bytes_of_many_runs_are_one_file(tmp_path: Path) -> None:
    for run_id in ("one", "two", "three"):
        assert made(tmp_path, run_id).put(DATA) == DIGEST
    assert len(copies(tmp_path)) == 1
    assert [
        ArtifactReader(tmp_path / run_id).get(DIGEST) for run_id in ("one", "two", "three")
    ] == [DATA] * 3
    assert Archive(tmp_path).run_ids() == ["one", "three", "two"]


def test_they_are_freed_when_the_last_run_that_names_them_is_pruned(tmp_path: Path) -> None:
    for run_id in ("one", "two"):
        made(tmp_path, run_id).put(DATA)
    archive = Archive(tmp_path)
    assert archive.delete("one")
    archive.finish_deletions()
    assert ArtifactReader(tmp_path / "two").get(DIGEST) == DATA
    assert len(list(tmp_path.rglob(DIGEST))) == 2, "the run's, and the one for others to link"
    assert prune(archive, now="2030-01-01T00:00:00Z", max_bytes=0).deleted == ("two",)
    assert list(tmp_path.rglob(DIGEST)) == []


def test_a_run_can_be_copied_whole_and_stands_alone_then(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    made(root, "one").put(DATA)
    shutil.copytree(root / "one", tmp_path / "copy")
    shutil.rmtree(root)
    assert ArtifactReader(tmp_path / "copy").get(DIGEST) == DATA


def test_bytes_that_were_changed_are_not_given_to_another_run(tmp_path: Path) -> None:
    made(tmp_path, "one").put(DATA)
    with next((tmp_path / ".artifacts").rglob(DIGEST)).open("r+b") as file:
        file.write(b"X")
    made(tmp_path, "two").put(DATA)
    assert ArtifactReader(tmp_path / "two").get(DIGEST) == DATA
    with pytest.raises(CorruptRun):
        ArtifactReader(tmp_path / "one").get(DIGEST)
    made(tmp_path, "three").put(DATA)
    assert next((tmp_path / "two").rglob(DIGEST)).stat().st_nlink == 3


@pytest.mark.parametrize("hindrance", ["a file", "a link", "open to others", "no more links"])
def test_what_can_not_be_shared_is_stored_once_more(
    tmp_path: Path, hindrance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pool = tmp_path / "runs", tmp_path / "runs" / ".artifacts"
    root.mkdir()
    if hindrance == "a file":
        pool.write_text("")
    elif hindrance == "a link":
        (tmp_path / "elsewhere").mkdir()
        pool.symlink_to(tmp_path / "elsewhere")
    elif hindrance == "open to others":
        pool.mkdir(mode=0o777)
        pool.chmod(0o777)
    else:

        def refused(*_: object, **__: object) -> None:
            raise OSError(31, "too many links")

        monkeypatch.setattr(os, "link", refused)
    for run_id in ("one", "two"):
        made(root, run_id).put(DATA)
        assert ArtifactReader(root / run_id).get(DIGEST) == DATA
    assert len({path.stat().st_ino for path in root.rglob(DIGEST)}) == 2
    assert not list((tmp_path / "elsewhere").rglob("*"))


@pytest.mark.parametrize("place", [".artifacts", "one/artifacts"])
def test_nothing_is_freed_behind_a_link(tmp_path: Path, place: str) -> None:
    store = made(tmp_path / "elsewhere", "run")
    store.put(DATA)
    kept = tmp_path / "elsewhere" / "run" / "artifacts"
    shutil.rmtree(tmp_path / "elsewhere" / ".artifacts")
    (unfinished := kept / "sha256" / DIGEST[:2] / ".new-1").write_text("")
    os.utime(unfinished, (0, 0))
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / place).symlink_to(kept if "/" in place else kept / "sha256")
    Archive(tmp_path / "runs").finish_deletions()
    assert ArtifactReader(tmp_path / "elsewhere" / "run").get(DIGEST) == DATA
    assert unfinished.exists()


def test_runs_that_are_stored_and_freed_side_by_side_keep_their_bytes(tmp_path: Path) -> None:
    stop = threading.Event()

    def free() -> None:
        while not stop.is_set():
            ArtifactPool(str(tmp_path)).free()

    thread = threading.Thread(target=free)
    thread.start()
    try:
        for number in range(100):
            run_id = f"r{number}"
            made(tmp_path, run_id).put(DATA)
            assert ArtifactReader(tmp_path / run_id).get(DIGEST) == DATA
            if number % 3:
                shutil.rmtree(tmp_path / run_id)
    finally:
        stop.set()
        thread.join()


def test_what_killed_processes_began_to_write_is_deleted_after_a_day(tmp_path: Path) -> None:
    made(tmp_path, "one").put(DATA)
    folder = next((tmp_path / "one").rglob(DIGEST)).parent
    for name, age in (("old", 100_000), ("new", 0)):
        (folder / f".new-{name}").write_bytes(b"half")
        os.utime(folder / f".new-{name}", (folder.stat().st_mtime - age,) * 2)
    Archive(tmp_path).finish_deletions()
    assert {path.name for path in folder.iterdir()} == {DIGEST, ".new-new"}

    def problems() -> list[str]:
        found = Archive(tmp_path).verify("one", artifacts=True).problems
        return [text for text in found if "artifact" in text]

    assert problems() == [], "what is being written is no fault of the run"
    (folder / "README").touch()
    assert "not an artifact" in problems()[0]
