"""What the writer of a run keeps: order, privacy, one writer, and honest ends."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.run_log.run_files import release_kept
from bundle_router.core.records.chain import genesis, unseal
from bundle_router.core.values.canonical import digest, encode
from bundle_router.errors import CorruptRun, RequestError, RunBusy, StorageError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
OTHER_USER = 65_534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- order and form -------------------------------------------------------------------------------


def test_both_files_share_one_sequence_and_one_chain(runs: Any) -> None:
    log = runs.open()
    results = [
        log.append(file, runs.record(i))
        for i, file in enumerate(["routing", "calls", "calls", "routing"])
    ]
    routing = [unseal(line) for line in runs.bytes("routing.jsonl").splitlines()]
    calls = [unseal(line) for line in runs.bytes("tool-calls.jsonl").splitlines()]
    assert [r.seq for r in routing] == [0, 3]
    assert [c.seq for c in calls] == [1, 2]
    in_order = [routing[0], *calls, routing[1]]
    assert [(r.seq, r.hash) for r in in_order] == [(one.seq, one.hash) for one in results]
    assert [r.prev for r in in_order] == [genesis("r-1"), *(one.hash for one in results[:-1])]
    assert log.next_seq == 4


def test_a_record_is_on_disk_when_append_returns(runs: Any) -> None:
    log = runs.open()
    for number in range(3):
        log.append("routing", runs.record(number))
        assert runs.numbers() == list(range(number + 1))


def test_what_can_not_be_a_record_leaves_no_trace(runs: Any) -> None:
    log = runs.open()
    for wrong in ({}, {"seq": 1}, {"x": float("inf")}):
        with pytest.raises(ValueError):
            log.append("routing", wrong)
    with pytest.raises(TypeError):
        log.append("routing", {"x": object()})
    assert log.append("routing", runs.record(0)).seq == 0
    assert runs.archive.verify("r-1").ok


def test_order_is_the_sequence_whatever_the_wall_clock_does(runs: Any) -> None:
    log = runs.open()
    for number, time in enumerate(
        ["2026-11-21T08:00:00Z", "2026-11-21T06:00:00Z", "2026-12-01T08:00:00Z"]
    ):
        runs.clock.time = time
        log.append("calls" if number == 1 else "routing", runs.record(number))
    runs.clock.time = "1999-01-01T00:00:00Z"
    log.close()
    os.utime(runs.path / "r-1" / "routing.jsonl", (0, 0))
    assert runs.numbers() == [0, 1, 2]
    assert runs.archive.verify("r-1").ok
    assert runs.open().next_seq == 3


def test_closing_writes_the_end_and_opening_again_takes_it_back(runs: Any) -> None:
    log = runs.open()
    first = log.append("routing", runs.record(0)).hash
    log.close()
    log.close()
    end = json.loads(runs.bytes("run.json"))
    assert (end["count"], end["head"], end["closed"]) == (1, first, runs.clock.time)
    again = runs.open()
    assert json.loads(runs.bytes("run.json")) == end, "opening alone changes nothing"
    assert runs.seen[-1]["number"] == 0
    again.append("calls", runs.record(1))
    header = json.loads(runs.bytes("run.json"))
    assert not {"count", "head", "closed"} & header.keys()
    again.release()
    size = len(runs.bytes("run.json"))
    for number in range(2, 6):
        third = runs.open()
        third.append("calls", runs.record(number))
        third.release()
    assert len(runs.bytes("run.json")) == size, "it does not grow by being opened again"
    runs.open().append("routing", runs.record(6))
    runs.opened[-1].close()
    assert runs.numbers() == [0, 1, 2, 3, 4, 5, 6]
    assert runs.archive.verify("r-1").ok


def test_a_closed_log_takes_no_more_records(runs: Any) -> None:
    log = runs.open()
    log.close()
    with pytest.raises(StorageError, match="is closed"):
        log.append("routing", runs.record(0))


def test_each_catalog_revision_of_a_run_is_kept_once_and_found_by_its_revision(runs: Any) -> None:
    catalogs = [encode({"schema": "bundle-router.catalog/1", "version": v}) for v in range(2)]
    for catalog in (catalogs[0], catalogs[1], catalogs[0], catalogs[1]):
        runs.open(catalog=catalog).close()
    kept = sorted(path.name for path in (runs.path / "r-1").glob("catalog*"))
    assert kept == [f"catalog-{digest(catalogs[1])[7:23]}.json", "catalog.json"]
    for catalog in catalogs:
        assert encode(runs.archive.catalog("r-1", digest(catalog))) == catalog
    assert encode(runs.archive.catalog("r-1")) == catalogs[0]


@pytest.mark.parametrize(
    "run_id", ["", ".", "..", "../x", "a/b", "a\x00b", "-x", "x" * 129, "ä", "a\n"]
)
def test_what_is_no_run_id_touches_no_file(runs: Any, run_id: str) -> None:
    with pytest.raises(RequestError):
        runs.open(run_id)
    assert not runs.path.exists()
    assert runs.store().open(run_id) is None


def test_a_decision_of_another_run_is_read_without_its_lock(runs: Any) -> None:
    log = runs.open()
    reader = runs.store().open("r-1")
    assert [*reader.news()] == []
    for number in range(3):
        log.append("routing", runs.record(number))
    log.append("routing", {"type": "something.else", "filler": "x" * 200_000})
    assert [record.get("number") for record in reader.news()] == [0, 1, 2, None]
    assert reader.record(2)["number"] == 2
    with pytest.raises(KeyError):
        reader.record(9)
    assert reader.close() == ()
    assert runs.store().open("none") is None


# --- one writer -----------------------------------------------------------------------------------

OWNER = """
import sys
from bundle_router.adapters.run_log import DiskRunStore
from bundle_router.core.records.run_header import RunHeader
class Clock:
    def time_ns(self): return 0
    def monotonic_ns(self): return 0
log = DiskRunStore(sys.argv[1], clock=Clock(), artifacts=None).create(
    "r-1", header=RunHeader({"catalog_revision": "sha256:0"}), catalog="{}")
log.append("routing", {"type": "route.decided", "number": 0})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(runs: Any) -> Any:
    """Another process that writes run r-1 until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(runs.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_two_processes_append_side_by_side_and_each_is_told_what_came(
    runs: Any, owner: Any
) -> None:
    log = runs.open()
    assert [record["number"] for record in runs.seen] == [0]
    assert runs.archive.summary("r-1").state == "open"
    assert runs.archive.summary("r-1").pid == owner.pid
    assert log.append("routing", runs.record(1)).seq == 1
    (other,) = log.close()
    assert (other.pid, other.name) == (owner.pid, f"process {owner.pid}")
    assert "closed" not in runs.archive.header("r-1").fields, "who has it open writes its end"


def test_a_stopped_process_keeps_nobody_from_the_run(runs: Any, owner: Any) -> None:
    os.kill(owner.pid, signal.SIGSTOP)
    log = runs.open()
    assert log.append("routing", runs.record(1)).seq == 1


def test_a_process_that_is_stopped_in_an_append_is_named_in_bounded_time(
    runs: Any, owner: Any
) -> None:
    log = runs.open()
    held = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(runs.path / "r-1" / "lock")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        with pytest.raises(RunBusy, match=f"process {held.pid} holds its lock") as refusal:
            log.append("routing", runs.record(1), wait_s=0.05)
        assert refusal.value.pid == held.pid
    finally:
        held.kill()
        held.communicate()
    assert log.append("routing", runs.record(1)).seq == 1
    assert runs.numbers() == [0, 1]


HOLDING = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b"); fcntl.flock(file, fcntl.LOCK_EX); print("held", flush=True); time.sleep(60)
"""


def test_a_dead_owners_run_is_taken_over_with_all_it_acknowledged(runs: Any, owner: Any) -> None:
    owner.kill()
    owner.wait()
    assert runs.archive.summary("r-1").state == "ended"
    log = runs.open()
    assert log.append("routing", runs.record(1)).seq == 1
    assert runs.numbers() == [0, 1]


def test_a_second_router_of_this_process_appends_too_and_the_last_one_ends_the_run(
    runs: Any,
) -> None:
    log, other = runs.open(), runs.open()
    assert log.append("routing", runs.record(0)).seq == 0
    appended = other.append("routing", runs.record(1))
    assert ([record["number"] for record in appended.news], appended.seq) == ([0], 1)
    assert [record["number"] for record in log.news()] == [1]
    assert len(log.close()) == 1
    assert other.close() == ()
    assert runs.archive.header("r-1").fields["count"] == 2


def test_compare_and_append_writes_nothing_where_others_came_first(runs: Any) -> None:
    log, other = runs.open(), runs.open()
    other.append("calls", runs.record(0))
    refused = log.append("routing", runs.record(1), only_at=0)
    assert (refused.seq, [record["number"] for record in refused.news]) == (None, [0])
    assert log.append("routing", runs.record(1), only_at=1).seq == 1
    assert runs.numbers() == [0, 1]
    assert runs.archive.verify("r-1").ok


def test_readers_that_ask_whether_a_run_is_open_turn_no_writer_away(runs: Any) -> None:
    runs.open().append("routing", runs.record(0))
    runs.opened[-1].close()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            runs.archive.summary("r-1")

    reader = threading.Thread(target=ask)
    reader.start()
    try:
        for number in range(1, 100):
            log = runs.open()
            log.append("calls", runs.record(number))
            log.close()
    finally:
        stop.set()
        reader.join()


def test_a_forked_child_can_not_write_and_does_not_keep_the_lock(runs: Any) -> None:
    log = runs.open()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover (in the child)
        try:
            log.append("routing", runs.record(0))
            os._exit(1)
        except StorageError:
            os.read(read_end, 1)
            os._exit(0)
    log.append("routing", runs.record(0))
    log.release()
    runs.open().append("routing", runs.record(1))
    os.write(write_end, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(read_end)
    os.close(write_end)
    assert runs.numbers() == [0, 1]


def test_opening_and_closing_runs_leaves_no_descriptor_behind(runs: Any) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0

    runs.open("warm").append("routing", runs.record(0))
    runs.opened[-1].close()
    release_kept()  # of what other tests left
    before = descriptors()
    for number in range(20):
        log = runs.open(f"r-{number}")
        log.append("routing", runs.record(0))
        runs.open(f"r-{number}").append("calls", runs.record(1))
        runs.opened[-1].close()
        log.close()
    assert descriptors() <= before  # fewer, where garbage of other tests held some


# --- privacy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_directories_are_0700_and_files_0600_whatever_the_umask(
    runs: Any, umask: Any, mask: int
) -> None:
    umask(mask)
    log = runs.open()
    log.append("routing", runs.record(0))
    log.append("calls", runs.record(1))
    log.close()
    umask(0o022)
    assert mode(runs.path) == mode(runs.path / "r-1") == 0o700
    files = list((runs.path / "r-1").iterdir())
    assert {path.name for path in files} == {
        "run.json",
        "catalog.json",
        "routing.jsonl",
        "tool-calls.jsonl",
        "lock",
    }
    assert {mode(path) for path in files} == {0o600}


def refused(runs: Any, kind: str = "not_private") -> str:
    with pytest.raises(StorageError) as error:
        runs.open().append("routing", runs.record(0))
    assert error.value.kind == kind
    assert error.value.advice
    return error.value.message


def test_a_run_directory_that_others_may_write_to_is_refused(runs: Any) -> None:
    runs.open().close()
    (runs.path / "r-1").chmod(0o770)
    assert "0770" in refused(runs)


def test_a_volume_whose_group_kubernetes_sets_is_refused_with_the_way_out(runs: Any) -> None:
    runs.open().close()
    (runs.path / "r-1").chmod(0o2770)
    with pytest.raises(StorageError) as error:
        runs.open().append("routing", runs.record(0))
    assert "2770" in error.value.message
    assert "fsGroupChangePolicy: OnRootMismatch" in error.value.advice
    assert f"chmod 700 {runs.path / 'r-1'}" in error.value.advice


def test_a_runs_directory_that_everybody_may_write_to_is_refused(runs: Any) -> None:
    runs.path.mkdir()
    runs.path.chmod(0o1777)
    assert "others may write to it" in refused(runs)


def test_a_group_writable_runs_directory_is_refused_in_a_shared_folder_and_taken_elsewhere(
    runs: Any,
) -> None:
    runs.path.mkdir()
    runs.path.chmod(0o775)
    runs.open().close()
    shared = runs.path.parent
    before = mode(shared)
    shared.chmod(0o1777)
    try:
        refused(runs)
    finally:
        shared.chmod(before)


@as_root
@pytest.mark.parametrize("name", ["", "r-1"])
def test_a_directory_of_another_user_is_refused(runs: Any, name: str) -> None:
    runs.open().close()
    os.chown(runs.path / name, OTHER_USER, -1)
    with pytest.raises(StorageError) as error:
        runs.open().append("routing", runs.record(0))
    assert f"user {OTHER_USER}" in error.value.message
    assert "a folder below it" in error.value.advice  # as a mounted volume, which nobody can chown


@as_root
def test_a_runs_directory_behind_somebody_elses_link_is_refused(runs: Any) -> None:
    (runs.path.parent / "elsewhere").mkdir(mode=0o700)
    runs.path.symlink_to("elsewhere")
    runs.open().close()
    os.chown(runs.path, OTHER_USER, -1, follow_symlinks=False)
    assert "symbolic link" in refused(runs)


def test_a_run_directory_that_is_a_link_is_refused_and_not_followed(
    runs: Any, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    runs.path.mkdir(mode=0o700)
    (runs.path / "r-1").symlink_to(elsewhere)
    assert "symbolic link" in refused(runs)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("name", ["routing.jsonl", "lock", "run.json"])
def test_a_file_of_a_run_that_is_a_link_is_not_followed(
    runs: Any, tmp_path: Path, name: str
) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    runs.open().close()
    (runs.path / "r-1" / name).unlink()
    (runs.path / "r-1" / name).symlink_to(target)
    refused(runs, "io_error")
    assert target.read_text() == "precious"


# --- honest ends ----------------------------------------------------------------------------------


def test_a_torn_end_is_kept_beside_cut_off_and_reported(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    log.release()
    for torn in (b'{"type":"rou', b"\x00" * 5000):
        with (runs.path / "r-1" / "routing.jsonl").open("ab") as file:
            file.write(torn)
        assert [t.bytes for t in runs.archive.verify("r-1").torn] == [len(torn)]
        assert next(runs.archive.records("r-1"))["number"] == 0
        log = runs.open()
        log.append("calls", {"type": "noted"})
        (healed,) = log.healed
        assert runs.bytes(healed.saved) == torn
        assert mode(runs.path / "r-1" / healed.saved) == 0o600
        log.release()
    noted = json.loads(runs.bytes("run.json"))["healed"]
    assert [entry["saved"] for entry in noted] == ["routing.jsonl.torn-1", "routing.jsonl.torn-2"]
    assert runs.archive.verify("r-1").ok


@pytest.mark.parametrize("name", ["routing.jsonl", "tool-calls.jsonl"])
@pytest.mark.parametrize(
    ("damage", "line", "why"),
    [
        (
            lambda lines: [*lines[:-1], lines[-1].replace(b"number", b"numbor")],
            3,
            "hash does not match",
        ),
        (lambda lines: [*lines, b"{}\n"], 4, "does not end in a hash"),
        (lambda lines: [*lines[:-1], b"\x00\n"], 3, "does not end in a hash"),
        (lambda lines: [*lines[:-2], lines[-1]], 2, "it is missing"),
    ],
)
def test_a_bad_end_that_is_not_torn_is_corruption(
    runs: Any, name: str, damage: Any, line: int, why: str
) -> None:
    log = runs.open()
    for number in range(6):
        log.append(
            "routing" if (number < 3) == (name == "tool-calls.jsonl") else "calls",
            runs.record(number),
        )
    log.release()
    path = runs.path / "r-1" / name
    before = path.read_bytes()
    damaged = b"".join(damage(before.splitlines(keepends=True)))
    path.write_bytes(damaged)
    with pytest.raises(CorruptRun, match=f"{name}:{line}: .*{why}") as error:
        runs.open()
    assert "verify" in error.value.advice
    assert path.read_bytes() == damaged
    assert not runs.archive.verify("r-1").ok
    path.write_bytes(before)
    assert runs.open().next_seq == 6


def test_a_closed_run_that_lost_its_end_is_not_continued(runs: Any) -> None:
    log = runs.open()
    for number in range(3):
        log.append("routing", runs.record(number))
    log.close()
    path = runs.path / "r-1" / "routing.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(CorruptRun, match="does not end as it did"):
        runs.open()
    broken = runs.archive.verify("r-1").broken
    assert (broken.kind, broken.seq) == ("cut_off", 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        ('{"schema": "bundle-router.run/9"}', "run/9"),
        ('{"schema": "bundle-router.run/1", "run_id": "other"}', "'other'"),
        ('{"schema": "bundle-router.run/1", "run_id": "r-1", "healed": 1}', "not a list"),
    ],
)
def test_a_run_json_that_makes_no_sense_is_corruption(runs: Any, text: str, why: str) -> None:
    runs.open().close()
    (runs.path / "r-1" / "run.json").write_text(text)
    with pytest.raises(CorruptRun, match=why):
        runs.open()


def test_a_run_json_lost_to_power_loss_is_written_again(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    log.release()
    (runs.path / "r-1" / "run.json").write_text("")
    log = runs.open()
    assert log.next_seq == 1
    log.append("routing", runs.record(1))
    log.close()
    assert json.loads(runs.bytes("run.json"))["run_id"] == "r-1"


# --- gone from under it ---------------------------------------------------------------------------


def test_a_run_deleted_while_it_is_open_refuses_and_is_not_made_again(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    subprocess.run(["rm", "-r", str(runs.path / "r-1")], check=True)
    for file in ("routing", "calls", "routing"):
        with pytest.raises(StorageError) as error:
            log.append(file, runs.record(1))
        assert error.value.kind == "deleted"
        assert not (runs.path / "r-1").exists()
    log.close()
    assert not (runs.path / "r-1").exists()
    assert runs.open().next_seq == 0


def test_a_deleted_run_that_nobody_appends_to_closes_without_coming_back(runs: Any) -> None:
    log = runs.open()
    subprocess.run(["rm", "-r", str(runs.path)], check=True)
    log.close()
    assert not runs.path.exists()


@pytest.mark.parametrize("change", [lambda text: text + b"hello\n", lambda text: b""])
def test_another_programs_changes_to_the_file_stop_the_log(runs: Any, change: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    path = runs.path / "r-1" / "routing.jsonl"
    path.write_bytes(change(path.read_bytes()))
    for _ in range(2):
        with pytest.raises(
            (StorageError, CorruptRun), match=r"another program|does not end in a hash"
        ):
            log.append("routing", runs.record(1))


class Interrupting:
    """A storage whose `write` is followed by KeyboardInterrupt on demand: a signal handler may
    raise anywhere.
    """

    def __init__(self, real: Any) -> None:
        self.real = real
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def write(self, fd: int, data: bytes) -> int:
        written: int = self.real.write(fd, data)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return written


def test_an_append_interrupted_by_a_signal_leaves_a_log_that_goes_on(runs: Any) -> None:
    from bundle_router.adapters.run_log import POSIX

    storage = Interrupting(POSIX)
    log = runs.open(storage=storage)
    log.append("routing", runs.record(0))
    storage.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.append("routing", runs.record(1))
    assert [record["number"] for record in log.news()] == [
        1
    ]  # written, not acknowledged: it counts, as after a crash
    log.append("calls", runs.record(2))
    log.close()
    assert runs.numbers() == [0, 1, 2]
    assert runs.archive.verify("r-1").ok
