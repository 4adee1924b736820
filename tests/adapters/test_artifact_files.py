"""The store of one run's artifacts, on a real disk."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_router.adapters.artifact_files import ArtifactReader, RunArtifacts
from bundle_router.core.values.artifacts import ArtifactFile
from bundle_router.errors import CorruptRun, RequestError, StorageError
from bundle_router.ports import ArtifactStore

HELLO = b"hello"
DIGEST = hashlib.sha256(HELLO).hexdigest()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "r-1"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def store(run_dir: Path) -> RunArtifacts:
    return RunArtifacts(run_dir)


def path_of(run_dir: Path, sha256: str = DIGEST) -> Path:
    return run_dir / "artifacts" / "sha256" / sha256[:2] / sha256


def files(run_dir: Path) -> list[Path]:
    return [path for path in run_dir.rglob("*") if not path.is_dir()]


def test_bytes_come_back_by_their_digest(store: ArtifactStore, run_dir: Path) -> None:
    assert store.put(HELLO) == DIGEST
    assert store.get(DIGEST) == HELLO
    assert files(run_dir) == [path_of(run_dir)]


def test_equal_content_is_one_file_however_often_it_is_put(
    store: RunArtifacts, run_dir: Path
) -> None:
    store.put(HELLO)
    before = path_of(run_dir).stat()
    store.put(HELLO)
    after = path_of(run_dir).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(files(run_dir)) == 1


def test_files_are_0600_and_directories_0700_whatever_the_umask(
    store: RunArtifacts, run_dir: Path
) -> None:
    old = os.umask(0)
    try:
        store.put(HELLO)
    finally:
        os.umask(old)
    for path in run_dir.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize(
    "sha256", ["", "..", "../" * 30, DIGEST.upper(), DIGEST + "\n", DIGEST[:63], "a" * 63 + "/"]
)
def test_what_is_not_a_digest_is_refused(store: RunArtifacts, sha256: str) -> None:
    with pytest.raises(RequestError, match="not an artifact's digest"):
        store.get(sha256)


def test_an_absent_artifact_is_a_key_error(store: RunArtifacts, run_dir: Path) -> None:
    for reader in (store, ArtifactReader(run_dir), ArtifactReader(run_dir / "nowhere")):
        with pytest.raises(KeyError):
            reader.get(DIGEST)
        assert list(reader.iter()) == []


def test_changed_bytes_are_corruption(store: RunArtifacts, run_dir: Path) -> None:
    store.put(HELLO)
    path_of(run_dir).write_bytes(b"jello")
    with pytest.raises(CorruptRun, match="do not have this digest"):
        store.get(DIGEST)


def test_a_file_torn_by_a_power_loss_is_written_again(store: RunArtifacts, run_dir: Path) -> None:
    store.put(HELLO)
    path_of(run_dir).write_bytes(b"")
    store.put(HELLO)
    assert store.get(DIGEST) == HELLO


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, target: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("plant", [link, fifo, folder])
def test_what_stands_in_an_artifacts_place_is_neither_followed_nor_read(
    store: RunArtifacts, run_dir: Path, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(HELLO)
    store.put(HELLO)
    path_of(run_dir).unlink()
    plant(path_of(run_dir), outside)
    with pytest.raises(CorruptRun):
        store.get(DIGEST)
    with pytest.raises(CorruptRun):
        store.put(HELLO)
    assert outside.read_bytes() == HELLO
    assert list(store.iter()) == []
    assert [problem.rpartition(": ")[2] for problem in store.problems()] == ["not an artifact"]


@pytest.mark.parametrize(
    "level", ["artifacts", "artifacts/sha256", f"artifacts/sha256/{DIGEST[:2]}"]
)
def test_a_link_in_place_of_a_directory_is_not_followed(
    store: RunArtifacts, run_dir: Path, tmp_path: Path, level: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (run_dir / level).parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    for parent in (run_dir / "artifacts", run_dir / "artifacts" / "sha256"):
        if parent.exists():
            parent.chmod(0o700)
    (run_dir / level).symlink_to(elsewhere)
    with pytest.raises(CorruptRun, match="a link or another kind of file"):
        store.put(HELLO)
    with pytest.raises(CorruptRun):
        store.get(DIGEST)
    assert list(elsewhere.iterdir()) == []


def test_a_directory_that_others_may_enter_is_refused(store: RunArtifacts, run_dir: Path) -> None:
    (run_dir / "artifacts").mkdir(mode=0o755)
    (run_dir / "artifacts").chmod(0o755)
    with pytest.raises(StorageError, match="mode 0755") as caught:
        store.put(HELLO)
    assert caught.value.kind == "not_private"


def test_a_deleted_run_directory_is_said(store: RunArtifacts, run_dir: Path) -> None:
    run_dir.rmdir()
    with pytest.raises(StorageError) as caught:
        store.put(HELLO)
    assert caught.value.kind == "deleted"


def test_more_than_the_limit_is_refused_and_nothing_is_left(run_dir: Path) -> None:
    store = RunArtifacts(run_dir, max_bytes=4)
    with pytest.raises(StorageError, match="more than the 4") as caught:
        store.put(HELLO)
    assert caught.value.kind == "too_large"
    assert files(run_dir) == []


def test_a_planted_giant_is_not_read(store: RunArtifacts, run_dir: Path) -> None:
    store.put(HELLO)
    with path_of(run_dir).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptRun, match="more than any artifact"):
        store.get(DIGEST)


FULL = """
import signal, sys, resource
from bundle_router.adapters.artifact_files import RunArtifacts
from bundle_router.core.values.artifacts import MediaFacts
from bundle_router.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    RunArtifacts(sys.argv[1]).put(bytes(200_000))
except StorageError as error:
    print(error.kind, error.message)
"""


def test_a_full_disk_is_said_and_no_part_of_a_file_is_left(run_dir: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(run_dir)], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("disk_full can't store artifact "), found.stderr
    assert files(run_dir) == []


def test_storing_ten_megabytes_takes_no_second_copy(store: RunArtifacts) -> None:
    data = b"0123456789" * 1_000_000
    store.put(HELLO)
    tracemalloc.start()
    sha256 = store.put(data)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.reset_peak()
    assert len(store.get(sha256)) == len(data)
    assert tracemalloc.get_traced_memory()[1] < 11_000_000
    tracemalloc.stop()


def test_threads_that_put_the_same_content_leave_one_file(
    store: RunArtifacts, run_dir: Path
) -> None:
    contents = [bytes([n]) * 1000 for n in range(20)]
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def work() -> None:
        barrier.wait()
        try:
            for data in contents:
                store.get(store.put(data))
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(files(run_dir)) == 20


def test_no_descriptor_stays_open(store: RunArtifacts, run_dir: Path) -> None:
    listing = Path("/proc/self/fd")
    if not listing.exists():
        pytest.skip("no /proc to count descriptors in")
    store.put(HELLO)
    before = len(list(listing.iterdir()))
    for n in range(50):
        store.get(store.put(b"%d" % n))
        with pytest.raises(KeyError):
            store.get("0" * 64)
    path_of(run_dir).write_bytes(b"x")
    with pytest.raises(CorruptRun):
        store.get(DIGEST)
    next(store.iter())
    assert len(list(listing.iterdir())) == before


def test_what_another_process_wrote_can_be_listed_and_checked(
    store: RunArtifacts, run_dir: Path
) -> None:
    digests = sorted(store.put(bytes([n]) * n) for n in range(5))
    (run_dir / "artifacts" / "sha256" / "ab").mkdir(exist_ok=True)
    (run_dir / "artifacts" / "sha256" / "ab" / ".new-0123").write_bytes(b"")
    (run_dir / "artifacts" / "sha256" / "README").write_bytes(b"")
    path_of(run_dir, digests[0]).write_bytes(b"!")
    reader = ArtifactReader(run_dir)
    assert [file.sha256 for file in reader.iter()] == digests
    assert all(isinstance(file, ArtifactFile) for file in reader.iter())
    problems = list(reader.problems())
    assert len(problems) == 3
    assert any(digests[0] in problem for problem in problems)
    assert any("did not finish" in problem for problem in problems)
    assert any("README: not an artifact" in problem for problem in problems)


def test_durable_puts_read_back_the_same(run_dir: Path) -> None:
    durable = RunArtifacts(run_dir, durable=True)
    assert durable.get(durable.put(HELLO)) == HELLO
