"""What a log asks of the operating system, call for call, and what it makes of each answer."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.run_log import POSIX, DiskRunStore
from bundle_router.adapters.run_log.log import ALONE_S, ID_DIGITS, WAIT_S
from bundle_router.core.records.chain import Appended, RepairedTail, Writer
from bundle_router.core.values.canonical import digest
from bundle_router.errors import CorruptRun, RunBusy, StorageError

from tests.adapters.run_log.watched_storage import (
    CALLS,
    ROUTING,
    WatchedStorage,
    copied,
    linked,
    moved,
    reader,
    write,
)

# --- what is on disk ------------------------------------------------------------------------------


def test_durable_records_are_committed_in_their_order_and_once(runs: Any) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability="disk")
    storage.made()
    log.append("routing", runs.record(0))
    log.append("routing", runs.record(1))
    assert storage.made() == [
        ("write", ROUTING),
        ("write", ROUTING),
    ], "nothing is committed before it is asked for"
    log.append("calls", runs.record(2))
    assert storage.made() == [
        ("fdatasync", ROUTING),
        ("write", CALLS),
    ], "no file gets ahead of the other"
    log.append("calls", runs.record(3))
    assert storage.made() == [("write", CALLS)]
    log.sync()
    assert storage.made() == [("fdatasync", CALLS)], "the other was committed"
    log.sync()
    assert storage.made() == []
    log.append("routing", runs.record(4))
    assert storage.made() == [("write", ROUTING)]
    log.close()
    ended = [
        ("fdatasync", ROUTING),
        ("write", "run.json.new"),
        ("fsync", "run.json.new"),
        ("replace", "run.json.new"),
    ]
    assert storage.made() == [*ended, ("fsync", "r-1"), ("ftruncate", "lock"), ("pwrite", "lock")]
    assert storage.open_files == {}


def test_without_durability_nothing_is_committed(runs: Any) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage)
    log.append("routing", runs.record(0))
    log.append("calls", runs.record(1))
    log.sync()
    log.close()
    assert not [call for call in storage.made() if "sync" in call[0]]
    assert storage.open_files == {}


@pytest.mark.parametrize("records", [0, 1])
def test_records_of_a_run_that_was_not_ended_are_written_once_more_or_committed(
    runs: Any, records: int
) -> None:
    """Whoever wrote them may have been killed before they were on disk."""
    write(runs, *["routing"] * records)
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability="disk")
    storage.made()
    log.sync()
    assert storage.made() == [("fdatasync", ROUTING)] * records
    log.append("routing", runs.record(1))
    assert storage.made() == [
        *[("pwrite", ROUTING), ("fdatasync", ROUTING)] * records,
        ("write", ROUTING),
    ]
    log.append("routing", runs.record(2))
    assert storage.made() == [("write", ROUTING)], "once"
    log.append("calls", runs.record(3))
    log.release()
    assert storage.open_files == {}
    assert runs.archive.verify("r-1").ok


def test_what_is_written_once_more_is_the_end_of_the_file_in_as_many_writes_as_it_takes(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.adapters.run_log.run_files._BLOCK", 64)
    write(runs, "routing", "routing", "calls")
    before = {name: runs.bytes(name) for name in (ROUTING, CALLS)}
    written: list[tuple[bytes, int]] = []

    class Slow(WatchedStorage):
        def pwrite(self, fd: int, data: bytes, offset: int) -> int:
            if self.open_files[fd] == "lock":
                return POSIX.pwrite(fd, data, offset)
            written.append((data[:40], offset))
            return POSIX.pwrite(fd, data[:40], offset)

    storage = Slow()
    log = runs.open(storage=storage, durability="disk")
    log.append("routing", runs.record(3))
    ends = [(before[name], len(before[name]) - 64) for name in (ROUTING, CALLS)]
    assert written == [
        part for text, at in ends for part in ((text[at:][:40], at), (text[at + 40 :], at + 40))
    ]
    assert runs.bytes(ROUTING).startswith(before[ROUTING])
    assert runs.numbers() == [0, 1, 2, 3]
    log.release()
    assert storage.open_files == {}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_commit_that_failed_says_what_to_look_at(runs: Any, code: int) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability="disk")
    log.append("routing", runs.record(0))
    storage.fail("fdatasync", ROUTING, code)
    with pytest.raises(StorageError) as failed:
        log.sync()
    assert failed.value.message.startswith(
        f"can't commit {runs.path}/r-1/{ROUTING}: the disk could not sync it"
    )
    wanted = {
        errno.EIO: ("io_error", "First: check the disk"),
        errno.ENOSPC: ("disk_full", "First: free space"),
    }[code]
    assert failed.value.kind == wanted[0]
    assert wanted[1] in failed.value.advice
    assert failed.value.advice.endswith("check the disk") is (code == errno.EIO)
    with pytest.raises(StorageError, match="the disk could not sync it"):
        log.sync()
    assert log.close() == (), "it was said"
    storage.calls.clear()
    log.release()
    assert storage.made("close") == [], "the numbers may be another file's by now"


def test_a_run_that_was_deleted_closes_without_a_word(runs: Any) -> None:
    log = write(runs, "routing")
    (runs.path / "r-1" / ROUTING).unlink()
    assert log.close() == ()


def test_the_first_record_takes_the_digest_of_the_opening_along_and_no_other(runs: Any) -> None:
    write(runs, "calls", "routing", "calls")
    assert ["run_json" in record for record in runs.archive.records("r-1")] == [True, False, False]


# --- torn ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_a_torn_end_is_saved_whole_before_it_is_cut_off(
    runs: Any, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.adapters.run_log.run_files._BLOCK", 64)
    write(runs, "calls", "routing").release()
    torn = b"{" + b"x" * 150
    (runs.path / "r-1" / f"{CALLS}.torn-1").touch()
    with (runs.path / "r-1" / CALLS).open("ab") as file:
        file.write(torn)
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability=durability)
    storage.made()
    storage.reads.clear()
    log.append("routing", runs.record(2))
    saved, disk = f"{CALLS}.torn-2", durability == "disk"
    wanted = [
        *[("write", saved)] * 3,
        *[("fsync", saved)] * disk,
        ("ftruncate", CALLS),
        *[("fsync", CALLS)] * disk,
    ]
    assert storage.made()[: len(wanted)] == wanted
    parts = [storage.reads[at : at + 3] for at in range(len(storage.reads))]
    assert [64, 64, len(torn) - 128] in parts, "never all of it at once"
    assert runs.bytes(saved) == torn
    assert log.healed == (RepairedTail(CALLS, saved, len(torn)),)
    log.release()
    assert storage.open_files == {}


# --- appending ------------------------------------------------------------------------------------


def test_a_log_that_was_opened_to_read_appends_as_any_other(runs: Any) -> None:
    write(runs, "routing")
    log = reader(runs)
    done = log.append("calls", runs.record(1))
    assert (done.seq, [one["number"] for one in done.news]) == (1, [0])
    assert runs.numbers() == [0, 1]


@pytest.mark.parametrize("written", [0, 7, None])
def test_a_record_that_was_written_in_part_is_cut_off_and_says_how_much(
    runs: Any, written: int | None
) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage)
    storage.answers["write", ROUTING] = [lambda: -1 if written is None else written]
    with pytest.raises(
        StorageError, match=f"can't write a record to .*{ROUTING}: {written or 0} of "
    ) as failed:
        log.append("routing", runs.record(0))
    assert failed.value.kind == "short_write"
    with (runs.path / "r-1" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it
    assert log.append("routing", runs.record(1)) == Appended((), 0, log.head)
    assert runs.numbers() == [1]


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EMFILE, "out_of_files"), (errno.EIO, "io_error")]
)
def test_only_who_found_no_descriptor_is_lent_one_and_only_for_a_run_that_is_written(
    runs: Any, code: int, kind: str
) -> None:
    write(runs, "routing").release()
    storage = WatchedStorage()
    log = reader(runs, storage)
    storage.fail("open", "lock", code)
    with pytest.raises(StorageError) as failed:
        log.append("calls", runs.record(1))
    assert failed.value.kind == kind, (
        "a run that is not written to yet is not worth the last descriptor"
    )
    log.append("calls", runs.record(1))
    storage.fail("stat", "lock", code)
    if code == errno.EMFILE:
        assert log.append("calls", runs.record(2)).seq == 2
        return
    with pytest.raises(StorageError, match=f"can't write to {runs.path}/r-1") as failed:
        log.append("calls", runs.record(2))
    assert failed.value.kind == kind


def test_who_found_no_descriptor_has_those_closed_that_other_runs_only_keep(runs: Any) -> None:
    storage = WatchedStorage()
    kept = runs.open("r-2", storage=storage)
    log = runs.open(storage=storage)
    for one in (kept, log):
        one.append("calls", runs.record(0))
    assert sorted(storage.open_files.values()) == ["lock", "lock", ROUTING, ROUTING, CALLS, CALLS]
    storage.fail("stat", "lock", errno.EMFILE)
    assert log.append("calls", runs.record(1)).seq == 1
    assert sorted(storage.open_files.values()) == ["lock", ROUTING, ROUTING, CALLS]
    assert kept.append("calls", runs.record(1)).seq == 1


def test_an_end_that_can_not_be_written_again_is_said_and_nothing_is_written_on_it(
    runs: Any,
) -> None:
    write(runs, "routing").release()
    storage = WatchedStorage()
    log = reader(runs, storage, "disk")
    storage.fail("pwrite", ROUTING)
    with pytest.raises(StorageError, match=f"can't write to {runs.path}/r-1"):
        log.append("calls", runs.record(1))
    assert runs.bytes(CALLS) == b""
    assert log.append("calls", runs.record(1)).seq == 1


def test_a_closed_run_whose_records_are_gone_is_broken(runs: Any) -> None:
    write(runs, "routing").close()
    for name in (ROUTING, CALLS):
        (runs.path / "r-1" / name).unlink()
    with pytest.raises(CorruptRun, match="does not end as it did when it was closed"):
        [*reader(runs).news()]


def test_ids_begin_with_the_run_and_digits_of_its_nonce(runs: Any) -> None:
    log = runs.open()
    assert log.id_prefix == f"r-1.{log.header.nonce[:8]}"
    assert (ID_DIGITS, WAIT_S, ALONE_S) == (8, 5.0, 0.01)
    assert len(log.header.nonce) == 32


def busy() -> Any:
    raise BlockingIOError


@pytest.mark.parametrize(("file", "times"), [("lock", 1), ("lock", 3), (ROUTING, 1), (ROUTING, 3)])
def test_a_lock_that_another_holds_is_tried_again_until_the_time_is_over(
    runs: Any, file: str, times: int
) -> None:
    write(runs, "routing").release()
    storage = WatchedStorage()

    def hold(left: int) -> Callable[[], Any]:
        def answer() -> Any:
            if left > 1:
                storage.answers["flock", file] = [hold(left - 1)]
            return busy()

        return answer

    log = reader(runs, storage)
    storage.answers["flock", file] = [hold(times)]
    with pytest.raises(
        RunBusy, match=r"another process (holds its lock|is ending or deleting it)"
    ) as refused:
        log.append("calls", runs.record(1), wait_s=-1.0)
    assert ("is ending" in refused.value.message) is (file == ROUTING)
    storage.answers.clear()
    if file == ROUTING:
        assert storage.open_files == {}, "nothing is kept of a run that is not written to"
    storage.answers["flock", file] = [hold(times)]
    assert log.append("calls", runs.record(1), wait_s=600.0).seq == 1
    other = runs.store(storage=storage).open("r-1")
    storage.answers["flock", file] = [hold(times)]
    other.put_catalog("sha256:1", "{}")
    storage.answers["flock", file] = [hold(times)]
    runs.store(storage=storage).create("r-1", header=None, catalog="").release()
    storage.answers.clear()
    other.release()
    storage.answers["flock", file] = [hold(1)]
    assert log.close() == (), "who looks in the same instant is waited for"
    assert runs.archive.summary("r-1").state == "closed"
    assert storage.open_files == {}


def test_who_has_it_open_too_is_named_by_who_closes_it_and_what_that_wrote_is_on_disk(
    runs: Any,
) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability="disk")
    log.append("routing", runs.record(0))
    other = reader(runs)
    other.append("routing", runs.record(1))
    storage.made()
    assert [one.pid for one in log.close()] == [os.getpid()], "another log of this process"
    assert storage.made() == [("fdatasync", ROUTING)]
    assert log.close() == ()
    assert other.close() == ()
    assert runs.archive.summary("r-1").state == "closed"


def test_another_process_that_has_it_open_is_named(runs: Any) -> None:
    log = write(runs, "routing")
    script = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH);"
        " print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", script, str(runs.path / "r-1" / ROUTING)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert log.close() == (Writer(other.pid, f"process {other.pid}"),)
        other.communicate()
    assert runs.archive.summary("r-1").state == "ended"


TAKEN: dict[str, Callable[[Path], None]] = {
    "moved": moved,
    "linked": linked,
    "copied": copied,
    "the folder moved": lambda path: moved(path.parent),
}


@pytest.mark.parametrize("how", TAKEN)
@pytest.mark.parametrize("durability", ["process", "disk"])
def test_what_is_exchanged_while_writing_begins_is_refused(
    runs: Any, how: str, durability: Any
) -> None:
    write(runs, "routing").release()
    storage = WatchedStorage()
    log = reader(runs, storage, durability)

    def take() -> None:
        TAKEN[how](runs.path / "r-1" / ROUTING)

    storage.answers["fstat", ROUTING] = [take]
    with pytest.raises(StorageError) as refused:
        log.append("calls", runs.record(1))
    assert refused.value.kind == "deleted"
    assert storage.open_files == {}
    with pytest.raises(StorageError):
        log.append("calls", runs.record(1))


def test_a_file_that_was_exchanged_since_it_was_read_is_not_written_on(runs: Any) -> None:
    write(runs, "routing").release()
    log = reader(runs)
    assert len([*log.news()]) == 1
    copied(runs.path / "r-1" / ROUTING)
    with pytest.raises(StorageError, match="it was deleted, moved or replaced"):
        log.append("calls", runs.record(1))
    assert runs.bytes(CALLS) == b""


@pytest.mark.parametrize("read_first", [True, False])
def test_a_closed_run_is_on_disk_and_its_end_is_taken_back_by_the_next_record(
    runs: Any, read_first: bool
) -> None:
    write(runs, "routing").close()
    storage = WatchedStorage()
    log = reader(runs, storage, "disk")
    if read_first:
        assert len([*log.news()]) == 1
    log.append("calls", runs.record(1))
    taken_back = [
        ("write", "run.json.new"),
        ("fsync", "run.json.new"),
        ("replace", "run.json.new"),
        ("fsync", "r-1"),
    ]
    made = storage.made()
    assert made[:5] == [*taken_back, ("ftruncate", "lock")]
    assert made[-1] == ("write", CALLS)
    assert ("pwrite", ROUTING) not in made
    assert (made[5:-1] == []) or not read_first
    assert (runs.archive.summary("r-1").state, bool(log.header.closed)) == ("open", False)
    assert (runs.path / "r-1" / "lock").read_bytes() == b""
    log.append("calls", runs.record(2))
    assert storage.made() == [("write", CALLS)]
    log.release()
    assert storage.open_files == {}


def test_records_of_a_run_that_was_not_ended_are_not_written_again_without_durability(
    runs: Any,
) -> None:
    write(runs, "routing").release()
    storage = WatchedStorage()
    log = reader(runs, storage)
    log.append("calls", runs.record(1))
    assert storage.made() == [("write", CALLS)]


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, "io_error"), (errno.ENOENT, "deleted"), (errno.EMFILE, "")]
)
def test_an_end_that_can_not_be_written_is_said_but_for_a_run_that_is_gone(
    runs: Any, code: int, kind: str
) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage)
    log.append("routing", runs.record(0))
    storage.fail("open", "run.json.new", code)
    if kind == "io_error":
        with pytest.raises(StorageError, match=f"can't write {runs.path}/r-1/run.json") as failed:
            log.close()
        assert failed.value.kind == kind
    else:
        assert log.close() == ()
    assert runs.archive.summary("r-1").state == ("ended" if kind else "closed"), (
        "a lent descriptor is enough"
    )
    assert log.close() == ()
    assert storage.open_files == {}
    with pytest.raises(StorageError, match="run 'r-1' is closed") as refused:
        log.append("routing", runs.record(1))
    assert refused.value.kind == "io_error"


def test_a_log_that_wrote_nothing_ends_nothing(runs: Any) -> None:
    write(runs, "routing").release()
    log = reader(runs, durability="disk")
    assert len([*log.news()]) == 1
    log.sync()
    assert log.close() == ()
    assert runs.archive.summary("r-1").state == "ended"


def test_the_end_covers_what_others_wrote_and_is_on_disk(runs: Any) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability="disk")
    log.append("routing", runs.record(0))
    log.sync()
    other = reader(runs)
    other.append("routing", runs.record(1))
    other.append("calls", runs.record(2))
    other.release()
    storage.made()
    log.close()
    assert storage.made()[:2] == [("fdatasync", ROUTING), ("fdatasync", CALLS)]
    summary = runs.archive.summary("r-1")
    assert (summary.state, summary.records) == ("closed", 3)
    assert runs.archive.verify("r-1").ok


def test_compare_and_append_writes_only_behind_as_many_records_as_were_read(runs: Any) -> None:
    log = write(runs, "routing")
    other = reader(runs)
    came = log.append("routing", runs.record(1), only_at=0)
    assert came == Appended((), None)
    came = other.append("routing", runs.record(1), only_at=1)
    assert (came.seq, [one["number"] for one in came.news]) == (None, [0])
    assert other.append("routing", runs.record(1), only_at=1).seq == 1
    came = log.append("routing", runs.record(2), only_at=2)
    assert (came.seq, [one["number"] for one in came.news]) == (None, [1])
    assert log.append("routing", runs.record(2), only_at=2).seq == 2


def test_a_writer_finds_a_record_missing_and_keeps_what_it_cut_off_in_the_header(runs: Any) -> None:
    log = write(runs, "routing")
    other = reader(runs)
    other.append("calls", runs.record(1))
    other.append("routing", runs.record(2))
    (runs.path / "r-1" / CALLS).write_bytes(b"")
    with pytest.raises(CorruptRun, match=f"{ROUTING}:2: record 1 dropped"):
        log.append("calls", runs.record(3))
    second = runs.open("r-2")
    second.append("routing", runs.record(0))
    with (runs.path / "r-2" / ROUTING).open("ab") as file:
        file.write(b"torn")
    second.append("routing", runs.record(1))
    assert [(tail.file, tail.bytes) for tail in runs.archive.header("r-2").healed] == [(ROUTING, 4)]


def test_catalogs_are_kept_once_by_whoever_decides_under_them_first(runs: Any) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage)
    other = reader(runs, storage)
    storage.made()
    text = json.dumps({"bundles": [1]}, separators=(",", ":"))
    log.put_catalog(digest(text), text)
    kept = [("write", "catalog-2.json.new"), ("replace", "catalog-2.json.new")]
    header = [("write", "run.json.new"), ("replace", "run.json.new")]
    made = storage.made()
    assert [call for call, _ in made] == [call for call, _ in (*kept, *header)]
    assert [one.revision for one in runs.archive.header("r-1").catalogs][-1] == digest(text)
    storage.calls.clear()
    log.put_catalog(digest(text), text)
    assert storage.calls == [], "what is known is not looked up"
    for again in (log, other, other):
        again.put_catalog(digest(text), text)
    assert storage.made() == []
    other_text = json.dumps({"bundles": [2]}, separators=(",", ":"))
    name = runs.archive.header("r-1").catalogs[-1].file
    assert (runs.path / "r-1" / name).read_text() == text
    wanted = log.header.with_catalogs([digest(other_text)]).catalogs[-1].file
    storage.fail("open", f"{wanted}.new")
    with pytest.raises(StorageError, match=f"can't write {runs.path}/r-1/{wanted}"):
        other.put_catalog(digest(other_text), other_text)
    other.put_catalog(digest(other_text), other_text)
    assert len(runs.archive.header("r-1").catalogs) == 3
    log.put_catalog(digest(other_text), other_text)
    assert len(runs.archive.header("r-1").catalogs) == 3


def test_the_artifacts_of_a_run_are_one_store(runs: Any) -> None:
    made: list[str] = []

    def artifacts(path: str) -> Any:
        made.append(path)
        return object()

    store = DiskRunStore(runs.path, clock=runs.clock, artifacts=artifacts)
    write(runs, "routing")
    log = store.open("r-1")
    assert log is not None
    assert log.artifacts() is log.artifacts() is not None
    assert made == [f"{runs.path}/r-1"]


def test_a_forked_process_keeps_nothing_of_the_runs_that_are_open(runs: Any) -> None:
    log = write(runs, "routing")
    gone = write(runs, "routing")
    gone.release()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            log.append("routing", runs.record(1))
        except StorageError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert log.append("routing", runs.record(1)).seq == 2


# --- the folder and its lock ----------------------------------------------------------------------


def exchanged(path: Path) -> None:
    path.rename(path.with_name("away"))
    shutil.copytree(path.with_name("away"), path)


@pytest.mark.parametrize("how", [shutil.rmtree, exchanged])
def test_a_record_of_a_run_that_is_gone_or_another_is_not_read_again(
    runs: Any, how: Callable[[Path], None]
) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    how(runs.path / "r-1")
    for _ in range(2):
        with pytest.raises(StorageError, match="deleted, moved or replaced") as gone:
            log.record(0)
        assert gone.value.kind == "deleted"
    with pytest.raises(StorageError, match="deleted, moved or replaced"):
        log.append("routing", runs.record(1))


def test_a_lock_that_was_away_is_trusted_no_more(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    lock = runs.path / "r-1" / "lock"
    lock.rename(runs.path / "away")
    for _ in range(2):
        with pytest.raises(StorageError, match="deleted, moved or replaced"):
            log.append("routing", runs.record(1))
        if not lock.exists():
            (runs.path / "away").rename(lock)


def test_a_lock_that_became_a_link_is_another(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    lock = runs.path / "r-1" / "lock"
    lock.rename(runs.path / "away")
    lock.symlink_to(runs.path / "away")
    with pytest.raises(StorageError, match="deleted, moved or replaced"):
        log.append("routing", runs.record(1))


class FaultyLocks:
    """Can't release a lock, and writes less of the mark of an end than it should."""

    def __getattr__(self, name: str) -> Any:
        return getattr(POSIX, name)

    def flock(self, fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, "no locks available")
        fcntl.flock(fd, operation)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return os.pwrite(fd, data[:-1], offset)


def test_a_lock_that_can_not_be_released_is_closed_and_holds_up_nobody(runs: Any) -> None:
    runs.open(storage=FaultyLocks()).append("routing", runs.record(0))
    other = runs.open()
    assert other.append("routing", runs.record(1), wait_s=0).seq == 1


def test_an_end_that_is_marked_in_part_is_no_clean_end(runs: Any) -> None:
    log = runs.open(storage=FaultyLocks())
    log.append("routing", runs.record(0))
    with pytest.raises(StorageError) as full:
        log.close()
    assert full.value.kind == "disk_full"


def test_who_holds_a_lock_and_is_not_known_has_no_pid(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    with (runs.path / "nobody").open("wb") as unlocked:
        busy = log._folder.busy_error(unlocked.fileno(), "holds it")
    assert busy.pid == 0
    assert "another process holds it" in busy.message
