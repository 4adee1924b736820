"""What a log asks of the operating system, call for call, and what it makes of each answer."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.run_log import POSIX, DiskRunLog, DiskRunStore
from bundle_router.adapters.run_log.log import ALONE_S, ID_DIGITS, WAIT_S
from bundle_router.core.models.canonical import digest
from bundle_router.core.records.chain import Appended, Head, RepairedTail, Writer, seal, unseal
from bundle_router.errors import CorruptRun, RunBusy, StorageError

ROUTING, CALLS = "routing.jsonl", "tool-calls.jsonl"
SYNCS = ("write", "pwrite", "fdatasync", "fsync", "ftruncate", "replace")


class WatchedStorage:
    """The real calls, with the files they were made on. `answers` has what is done instead, once, by call and file."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.reads: list[int] = []
        self.open_files: dict[int, str] = {}
        self.answers: dict[tuple[str, str], list[Callable[[], Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(POSIX, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            file = self.open_files.get(args[0], "?") if isinstance(args[0], int) else Path(args[0]).name
            self.calls.append((name, file))
            for answer in self.answers.pop((name, file), []):
                if (answered := answer()) is not None:
                    return answered
            found = real(*args, **kwargs)
            if name == "open":
                self.open_files[found] = file
            elif name == "close":
                self.open_files.pop(args[0], None)
            elif name == "pread":
                self.reads.append(args[1])
            return found

        return call

    def made(self, *names: str) -> list[tuple[str, str]]:
        """Return the calls of these names since this was asked last, and forget them."""
        made = [(name, file) for name, file in self.calls if name in (names or SYNCS)]
        self.calls.clear()
        return made

    def fail(self, name: str, file: str, code: int = errno.EIO) -> None:
        def answer() -> Any:
            raise OSError(code, os.strerror(code))

        self.answers[name, file] = [answer]


def reader(runs: Any, storage: Any = POSIX, durability: Any = "process") -> DiskRunLog:
    """A log that was opened to read."""
    log: DiskRunLog | None = runs.store(storage=storage, durability=durability).open("r-1")
    assert log is not None
    runs.opened.append(log)
    return log


def write(runs: Any, *files: str) -> DiskRunLog:
    log: DiskRunLog = runs.open()
    for number, file in enumerate(files):
        log.append(file, runs.record(number))  # type: ignore[arg-type] # a table
    return log


# --- what is on disk -------------------------------------------------------------------------------------------------


def test_durable_records_are_committed_in_their_order_and_once(runs: Any) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability="disk")
    storage.made()
    log.append("routing", runs.record(0))
    log.append("routing", runs.record(1))
    assert storage.made() == [("write", ROUTING), ("write", ROUTING)], "nothing is committed before it is asked for"
    log.append("calls", runs.record(2))
    assert storage.made() == [("fdatasync", ROUTING), ("write", CALLS)], "no file gets ahead of the other"
    log.append("calls", runs.record(3))
    assert storage.made() == [("write", CALLS)]
    log.sync()
    assert storage.made() == [("fdatasync", CALLS)], "the other was committed"
    log.sync()
    assert storage.made() == []
    log.append("routing", runs.record(4))
    assert storage.made() == [("write", ROUTING)]
    log.close()
    ended = [("fdatasync", ROUTING), ("write", "run.json.new"), ("fsync", "run.json.new"), ("replace", "run.json.new")]
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
def test_records_of_a_run_that_was_not_ended_are_written_once_more_or_committed(runs: Any, records: int) -> None:
    """Whoever wrote them may have been killed before they were on disk."""
    write(runs, *["routing"] * records)
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability="disk")
    storage.made()
    log.sync()
    assert storage.made() == [("fdatasync", ROUTING)] * records
    log.append("routing", runs.record(1))
    assert storage.made() == [*[("pwrite", ROUTING), ("fdatasync", ROUTING)] * records, ("write", ROUTING)]
    log.append("routing", runs.record(2))
    assert storage.made() == [("write", ROUTING)], "once"
    log.append("calls", runs.record(3))
    log.release()
    assert storage.open_files == {}
    assert runs.archive.verify("r-1").ok


def test_what_is_written_once_more_is_the_end_of_the_file_in_as_many_writes_as_it_takes(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.adapters.run_log.run_chain._BLOCK", 64)
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
    assert written == [part for text, at in ends for part in ((text[at:][:40], at), (text[at + 40 :], at + 40))]
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
    assert failed.value.message.startswith(f"can't commit {runs.path}/r-1/{ROUTING}: the disk could not sync it")
    wanted = {errno.EIO: ("io_error", "First: check the disk"), errno.ENOSPC: ("disk_full", "First: free space")}[code]
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


# --- torn ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_a_torn_end_is_saved_whole_before_it_is_cut_off(
    runs: Any, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.adapters.run_log.run_chain._BLOCK", 64)
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
    wanted = [*[("write", saved)] * 3, *[("fsync", saved)] * disk, ("ftruncate", CALLS), *[("fsync", CALLS)] * disk]
    assert storage.made()[: len(wanted)] == wanted
    parts = [storage.reads[at : at + 3] for at in range(len(storage.reads))]
    assert [64, 64, len(torn) - 128] in parts, "never all of it at once"
    assert runs.bytes(saved) == torn
    assert log.healed == (RepairedTail(CALLS, saved, len(torn)),)
    log.release()
    assert storage.open_files == {}


# --- what other programs do to a run ---------------------------------------------------------------------------------


def moved(path: Path) -> None:
    path.rename(path.with_suffix(".away"))


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".away"))
    path.symlink_to(path.with_suffix(".away"))


def copied(path: Path) -> None:
    text = path.read_bytes()
    path.rename(path.with_suffix(".away"))
    path.write_bytes(text)


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


CHANGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "moved": (moved, "deleted", "it was deleted, moved or replaced"),
    "linked": (linked, "io_error", f"{ROUTING} is not the file it was, so another program changed it"),
    "copied": (copied, "io_error", f"{ROUTING} is not the file it was, so another program changed it"),
    "shortened": (shortened, "io_error", "another program changed it"),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("looks", ["reads", "appends"])
def test_a_file_that_is_another_or_shorter_is_refused_from_then_on(runs: Any, how: str, looks: str) -> None:
    change, kind, why = CHANGES[how]
    write(runs, "routing", "calls", "routing").release()
    log = runs.open() if looks == "appends" else reader(runs)
    assert len([*log.news()]) == (0 if looks == "appends" else 3)
    assert [*log.news()] == []
    path = runs.path / "r-1" / ROUTING
    size = path.stat().st_size
    change(path)

    def look() -> object:
        return log.append("calls", runs.record(9)) if looks == "appends" else [*log.news()]

    with pytest.raises(StorageError) as refused:
        look()
    assert (refused.value.kind, why in refused.value.message) == (kind, True), refused.value
    if how == "shortened":
        assert f"can't read {runs.path}/r-1: {ROUTING} has {size - 1} bytes where {size} were" in refused.value.message
        assert "find out which" in refused.value.advice
    path.unlink(missing_ok=True)
    if how != "shortened":
        path.with_suffix(".away").rename(path)
    with pytest.raises(StorageError) as again:
        look()
    assert again.value.message == refused.value.message, "also when the file is back"


@pytest.mark.parametrize("how", ["moved", "linked", "copied"])
def test_a_file_that_is_another_before_its_first_reading_is_refused(runs: Any, how: str) -> None:
    write(runs, "routing", "calls").release()
    log = runs.store().create("r-1", header=None, catalog="")
    runs.opened.append(log)
    CHANGES[how][0](runs.path / "r-1" / ROUTING)
    for _ in range(2):
        with pytest.raises(StorageError) as refused:
            next(log.news())
        assert refused.value.kind == CHANGES[how][1]
        if how == "moved" and _ == 0:
            (runs.path / "r-1" / "routing.away").rename(runs.path / "r-1" / ROUTING)


@pytest.mark.parametrize("name", [ROUTING, CALLS])
def test_a_file_that_is_a_link_is_not_read(runs: Any, name: str) -> None:
    write(runs, "routing", "calls").release()
    linked(runs.path / "r-1" / name)
    with pytest.raises(StorageError):
        [*reader(runs).news()]


def test_a_run_whose_second_file_was_never_made_is_read(runs: Any) -> None:
    """As early versions left one."""
    write(runs, "routing", "routing").release()
    (runs.path / "r-1" / CALLS).unlink()
    log = reader(runs)
    assert len([*log.news()]) == 2
    assert [*log.news()] == []
    with (runs.path / "r-1" / ROUTING).open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(CorruptRun, match=f"{ROUTING}:3"):
        [*log.news()]


@pytest.mark.parametrize("name", [ROUTING, CALLS])
def test_a_look_that_fails_says_at_what(runs: Any, name: str) -> None:
    write(runs, "routing", "calls")
    storage = WatchedStorage()
    log = reader(runs, storage)
    assert len([*log.news()]) == 2
    storage.fail("stat", name)
    with pytest.raises(StorageError, match=f"can't look at {runs.path}/r-1/{name}") as failed:
        [*log.news()]
    assert failed.value.kind == "io_error"
    assert [*log.news()] == [], "the next look may succeed"


@pytest.mark.parametrize(("call", "file"), [("stat", CALLS), ("open", ROUTING), ("pread", CALLS)])
def test_a_reading_that_fails_can_be_tried_again(runs: Any, call: str, file: str) -> None:
    write(runs, "routing", "calls")
    storage = WatchedStorage()
    log = reader(runs, storage)
    storage.fail(call, file)
    with pytest.raises(StorageError, match=f"can't read {runs.path}/r-1") as failed:
        [*log.news()]
    assert failed.value.kind == "io_error"
    assert [one["number"] for one in log.news()] or log.next_seq == 2
    assert storage.open_files == {}


# --- reading on ------------------------------------------------------------------------------------------------------


def test_a_run_that_is_written_to_and_ended_while_it_is_first_read_is_read_to_its_end(runs: Any) -> None:
    writer = write(runs, "routing")
    storage = WatchedStorage()
    log = reader(runs, storage)

    def end() -> None:
        writer.append("calls", runs.record(1))
        writer.close()

    storage.answers["open", "run.json"] = [end]
    assert [one["number"] for one in log.news()] == [0, 1]
    assert (log.next_seq, log.header.head) == (2, Head(2, writer.head))


def test_records_that_come_during_a_reading_are_for_the_next_and_the_first_reads_them_all(runs: Any) -> None:
    writer = write(runs, "routing")
    storage = WatchedStorage()
    log = reader(runs, storage)
    first = log.news()
    got = [next(first)["number"]]
    writer.append("calls", runs.record(1))
    got += [one["number"] for one in first]
    assert got == [0, 1]
    writer.append("routing", runs.record(2))
    second = log.news()
    got = [next(second)["number"]]
    for number in (3, 4, 5):
        writer.append("routing", runs.record(number))
    assert [*got, *[one["number"] for one in second]] == [2]
    assert [one["number"] for one in log.news()] == [3, 4, 5]
    storage.made()
    assert [*log.news()] == []
    assert storage.made("open") == [], "two looks at sizes are all"
    log.release()
    with pytest.raises(StorageError, match="is closed"):
        [*log.news()]


@pytest.mark.parametrize("first", [True, False])
def test_a_record_without_the_one_before_it_is_looked_for_again_and_then_missed(runs: Any, first: bool) -> None:
    write(runs, "routing").release()
    storage = WatchedStorage()
    log = reader(runs, storage)
    if not first:
        assert len([*log.news()]) == 1
    kept = {name: runs.bytes(name) for name in (ROUTING, CALLS)}
    other = runs.open()
    other.append("calls", runs.record(1))
    other.append("routing", runs.record(2))
    other.release()
    whole = runs.bytes(CALLS)
    (runs.path / "r-1" / CALLS).write_bytes(kept[CALLS])
    storage.made()
    with pytest.raises(CorruptRun, match=f"{ROUTING}:2: record 1 dropped"):
        [*log.news()]
    looks = storage.made("open").count(("open", ROUTING))
    late = reader(runs, storage)
    if not first:
        assert looks == 2 * 3 + 1
        return
    assert looks == 2 * 4 + 1, "what it reads, three looks more, and the search for what is wrong"

    def arrive() -> None:
        (runs.path / "r-1" / CALLS).write_bytes(whole)

    storage.answers["close", ROUTING] = [arrive]
    assert [one["number"] for one in late.news()] == [0, 1, 2]
    assert storage.open_files == {}


def test_records_of_any_length_are_read_and_read_again(runs: Any) -> None:
    writer = runs.open()
    for number in range(4):
        writer.append("calls", runs.record(number, text=str(number) * 300_000))
    log = reader(runs)
    assert [one["text"][0] for one in log.news()] == ["0", "1", "2", "3"]
    assert [len(log.record(seq)["text"]) for seq in (3, 1)] == [300_000, 300_000]


def test_a_search_for_what_is_wrong_that_fails_can_be_tried_again(runs: Any) -> None:
    write(runs, "routing").release()
    with (runs.path / "r-1" / ROUTING).open("ab") as file:
        file.write(b"{}\n")
    storage = WatchedStorage()
    log = reader(runs, storage)
    storage.answers["open", ROUTING] = [lambda: storage.fail("open", ROUTING)]
    with pytest.raises(StorageError, match=f"can't read {runs.path}/r-1"):
        [*log.news()]
    with pytest.raises(CorruptRun, match=f"{ROUTING}:2"):
        [*log.news()]


def test_any_record_is_found_again_and_what_is_none_is_not(runs: Any) -> None:
    files = [("calls" if number % 3 else "routing") for number in range(150)]
    storage = WatchedStorage()
    write(runs, *files)
    log = reader(runs, storage)
    with pytest.raises(KeyError):
        log.record(0)
    assert len([*log.news()]) == 150
    for seq in (0, 1, 63, 64, 65, 66, 127, 128, 148, 149):
        assert log.record(seq)["number"] == seq
    for seq in (-1, 150):
        with pytest.raises(KeyError):
            log.record(seq)
    assert storage.open_files == {}
    size = runs.path.joinpath("r-1", CALLS).stat().st_size
    storage.reads.clear()
    log.record(148)
    assert sum(storage.reads) < size / 2, "a part of the file"


def test_a_record_that_does_not_follow_is_named(runs: Any) -> None:
    write(runs, "routing", "routing").release()
    log = reader(runs)
    assert len([*log.news()]) == 2
    path = runs.path / "r-1" / ROUTING
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("ab") as file:
        file.write(seal(runs.record(9), 2, unseal(lines[0]).hash)[0])
    with pytest.raises(CorruptRun, match=f"{ROUTING}:3: record 2 ") as corrupt:
        [*log.news()]
    assert "the run can't be continued" in corrupt.value.advice


# --- appending -------------------------------------------------------------------------------------------------------


def test_a_log_that_was_opened_to_read_appends_as_any_other(runs: Any) -> None:
    write(runs, "routing")
    log = reader(runs)
    done = log.append("calls", runs.record(1))
    assert (done.seq, [one["number"] for one in done.news]) == (1, [0])
    assert runs.numbers() == [0, 1]


@pytest.mark.parametrize("written", [0, 7, None])
def test_a_record_that_was_written_in_part_is_cut_off_and_says_how_much(runs: Any, written: int | None) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage)
    storage.answers["write", ROUTING] = [lambda: -1 if written is None else written]
    with pytest.raises(StorageError, match=f"can't write a record to .*{ROUTING}: {written or 0} of ") as failed:
        log.append("routing", runs.record(0))
    assert failed.value.kind == "short_write"
    with (runs.path / "r-1" / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it
    assert log.append("routing", runs.record(1)) == Appended((), 0, log.head)
    assert runs.numbers() == [1]


@pytest.mark.parametrize(("code", "kind"), [(errno.EMFILE, "out_of_files"), (errno.EIO, "io_error")])
def test_only_who_found_no_descriptor_is_lent_one_and_only_for_a_run_that_is_written(
    runs: Any, code: int, kind: str
) -> None:
    write(runs, "routing").release()
    storage = WatchedStorage()
    log = reader(runs, storage)
    storage.fail("open", "lock", code)
    with pytest.raises(StorageError) as failed:
        log.append("calls", runs.record(1))
    assert failed.value.kind == kind, "a run that is not written to yet is not worth the last descriptor"
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


def test_an_end_that_can_not_be_written_again_is_said_and_nothing_is_written_on_it(runs: Any) -> None:
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
def test_a_lock_that_another_holds_is_tried_again_until_the_time_is_over(runs: Any, file: str, times: int) -> None:
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
    with pytest.raises(RunBusy, match=r"another process (holds its lock|is ending or deleting it)") as refused:
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


def test_who_has_it_open_too_is_named_by_who_closes_it_and_what_that_wrote_is_on_disk(runs: Any) -> None:
    storage = WatchedStorage()
    log = runs.open(storage=storage, durability="disk")
    log.append("routing", runs.record(0))
    other = reader(runs)
    other.append("routing", runs.record(1))
    storage.made()
    assert [one.pid for one in log.close()] == [0], "another log of this process"
    assert storage.made() == [("fdatasync", ROUTING)]
    assert log.close() == ()
    assert other.close() == ()
    assert runs.archive.summary("r-1").state == "closed"


def test_another_process_that_has_it_open_is_named(runs: Any) -> None:
    log = write(runs, "routing")
    script = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print(flush=True); sys.stdin.read()"
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
def test_what_is_exchanged_while_writing_begins_is_refused(runs: Any, how: str, durability: Any) -> None:
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
def test_a_closed_run_is_on_disk_and_its_end_is_taken_back_by_the_next_record(runs: Any, read_first: bool) -> None:
    write(runs, "routing").close()
    storage = WatchedStorage()
    log = reader(runs, storage, "disk")
    if read_first:
        assert len([*log.news()]) == 1
    log.append("calls", runs.record(1))
    taken_back = [("write", "run.json.new"), ("fsync", "run.json.new"), ("replace", "run.json.new"), ("fsync", "r-1")]
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


def test_records_of_a_run_that_was_not_ended_are_not_written_again_without_durability(runs: Any) -> None:
    write(runs, "routing").release()
    storage = WatchedStorage()
    log = reader(runs, storage)
    log.append("calls", runs.record(1))
    assert storage.made() == [("write", CALLS)]


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, "io_error"), (errno.ENOENT, "deleted"), (errno.EMFILE, "")])
def test_an_end_that_can_not_be_written_is_said_but_for_a_run_that_is_gone(runs: Any, code: int, kind: str) -> None:
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
    assert runs.archive.summary("r-1").state == ("ended" if kind else "closed"), "a lent descriptor is enough"
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
