"""Every call to the operating system fails once, in every way, and nothing acknowledged is lost
(F-03, F-04).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.run_log import POSIX
from bundle_router.errors import RunBusy, StorageError

COUNTED = (
    "open", "mkdir", "fchmod", "fstat", "stat", "pread", "write", "pwrite", "ftruncate", "fdatasync", "fsync",
    "replace",
)  # fmt: skip


class FailingStorage:
    """The real calls, of which number `fail_at` (and, if `lasting`, all like it from there on) goes
    wrong.

    `how` is an errno, or `short` for a write that takes only half.
    """

    def __init__(
        self,
        fail_at: int | None,
        how: int | str,
        *,
        only: tuple[str, ...] = COUNTED,
        lasting: bool = False,
    ):
        self.fail_at = fail_at
        self.how = how
        self.only = only
        self.lasting = lasting
        self.no_truncating = False
        self.calls: list[str] = []

    def ftruncate(self, fd: int, length: int) -> None:
        if self.no_truncating:
            raise OSError(errno.EIO, "injected")
        self.__getattr__("ftruncate")(fd, length)

    def __getattr__(self, name: str) -> Any:
        real = getattr(POSIX, name)
        return (
            real
            if name not in self.only
            else lambda *args, **kwargs: self._call(name, real, args, kwargs)
        )

    def _call(self, name: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.calls.append(name)
        number = len(self.calls) - 1
        if self.fail_at is None or not (
            number == self.fail_at or (self.lasting and number > self.fail_at)
        ):
            return real(*args, **kwargs)
        if self.how == "short":
            return (
                real(args[0], args[1][: len(args[1]) // 2])
                if name == "write"
                else real(*args, **kwargs)
            )
        assert isinstance(self.how, int)
        raise OSError(self.how, "injected")


def work(
    runs: Any, storage: FailingStorage, durability: str
) -> tuple[list[int], list[StorageError]]:
    """Opens a run, appends, syncs and closes.

    Returns the numbers acknowledged and the errors met.
    """
    acknowledged: list[int] = []
    errors: list[StorageError] = []
    log = None
    for _ in range(2):  # the second time is the caller's next step, without a restart
        try:
            log = runs.open(storage=storage, durability=durability)
            break
        except StorageError as error:
            errors.append(error)
    if log is None:
        return acknowledged, errors
    for number in range(6):
        try:
            log.append("routing" if number % 3 else "calls", runs.record(number))
            log.sync()
            acknowledged.append(number)
        except StorageError as error:
            errors.append(error)
    try:
        log.close()
    except StorageError as error:
        errors.append(error)
    return acknowledged, errors


@pytest.mark.parametrize("durability", ["process", "disk"])
@pytest.mark.parametrize("how", [errno.EIO, errno.ENOSPC, "short"])
def test_whichever_call_fails_the_run_reopens_with_every_acknowledged_record(
    make_runs: Any, durability: str, how: int | str
) -> None:
    rehearsal = FailingStorage(None, how)
    assert work(make_runs(), rehearsal, durability) == ([0, 1, 2, 3, 4, 5], [])
    for k, name in enumerate(rehearsal.calls):
        if how == "short" and name != "write":
            continue
        runs = make_runs()
        acknowledged, errors = work(runs, FailingStorage(k, how), durability)
        where = f"call {k} ({name}) of {len(rehearsal.calls)}"
        assert all(error.kind and error.advice for error in errors), where
        runs.open().close()
        kept = runs.numbers()
        assert set(acknowledged) <= set(kept), where
        if name not in ("fdatasync", "fsync"):
            assert kept == acknowledged, where
            assert len(acknowledged) >= 5, where  # one failure costs one record, and no restart
        assert runs.archive.verify("r-1").ok, where


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EFBIG, "disk_full"),
        (errno.EROFS, "read_only"),
        (errno.EIO, "io_error"),
        (errno.ESTALE, "deleted"),
    ],
)
def test_a_failed_write_says_what_kind_of_trouble_it_is_and_the_next_may_succeed(
    runs: Any, code: int, kind: str
) -> None:
    storage = FailingStorage(None, code, only=("write",))
    log = runs.open(storage=storage)
    log.append("routing", runs.record(0))
    before = runs.bytes("routing.jsonl")
    storage.fail_at = len(storage.calls)
    with pytest.raises(StorageError) as error:
        log.append("routing", runs.record(1))
    assert error.value.kind == kind
    assert runs.bytes("routing.jsonl") == before
    assert log.append("routing", runs.record(2)).seq == 1
    assert runs.numbers() == [0, 2]


def test_a_short_write_is_cut_back_to_the_record_boundary(runs: Any) -> None:
    storage = FailingStorage(None, "short", only=("write",))
    log = runs.open(storage=storage)
    log.append("routing", runs.record(0))
    before = runs.bytes("routing.jsonl")
    storage.fail_at = len(storage.calls)
    with pytest.raises(StorageError) as error:
        log.append("routing", runs.record(1))
    assert error.value.kind == "short_write"
    assert runs.bytes("routing.jsonl") == before
    log.append("routing", runs.record(2))
    assert runs.archive.verify("r-1").ok


def test_a_file_that_can_not_be_cut_back_takes_no_more_records_until_it_is_opened_again(
    runs: Any,
) -> None:
    storage = FailingStorage(None, "short", only=("write",))
    log = runs.open(storage=storage)
    log.append("routing", runs.record(0))
    storage.fail_at = len(storage.calls)
    storage.no_truncating = True
    with pytest.raises(StorageError, match="could not be cut back"):
        log.append("routing", runs.record(1))
    storage.no_truncating = False
    with pytest.raises(StorageError, match="could not be cut back") as error:
        log.append("routing", runs.record(2))
    assert "open it again" in error.value.advice
    log.close()
    assert runs.archive.summary("r-1").state == "ended"
    again = runs.open()
    again.append("routing", runs.record(3))
    assert len(again.healed) == 1
    assert runs.numbers() == [0, 3]


def test_after_a_failed_fdatasync_nothing_is_acknowledged_and_it_is_not_tried_again(
    runs: Any,
) -> None:
    storage = FailingStorage(None, errno.EIO, only=("fdatasync",))
    log = runs.open(storage=storage, durability="disk")
    log.append("routing", runs.record(0))
    log.sync()
    storage.fail_at = len(storage.calls)
    log.append("routing", runs.record(1))
    for _ in range(3):
        with pytest.raises(StorageError, match="could not sync it"):
            log.sync()
        with pytest.raises(StorageError, match="could not sync it"):
            log.append("routing", runs.record(2))
    assert len(storage.calls) == storage.fail_at + 1
    log.close()
    assert runs.archive.summary("r-1").state == "ended"


def test_a_run_whose_commit_failed_goes_on_when_it_is_opened_again_with_its_end_written_once_more(
    runs: Any,
) -> None:
    storage = FailingStorage(None, errno.EIO, only=("fdatasync",))
    log = runs.open(storage=storage, durability="disk")
    log.append("calls", runs.record(0))
    log.append("routing", runs.record(1))
    log.sync()
    storage.fail_at = len(storage.calls)
    log.append("routing", runs.record(2))
    with pytest.raises(StorageError, match="could not sync it") as error:
        log.sync()
    assert "open it again" in error.value.advice
    log.close()
    before = [runs.bytes(name) for name in ("routing.jsonl", "tool-calls.jsonl")]
    watching = FailingStorage(None, errno.EIO, only=("pwrite", "fdatasync"))
    again = runs.open(storage=watching, durability="disk")
    assert watching.calls == [], "what is only read is left as it is"
    again.append("routing", runs.record(3))
    assert watching.calls == ["pwrite", "fdatasync"] * 2
    after = [runs.bytes(name) for name in ("routing.jsonl", "tool-calls.jsonl")]
    assert all(now.startswith(was) for now, was in zip(after, before, strict=True))
    again.sync()
    again.close()
    assert runs.numbers() == [0, 1, 2, 3]
    assert runs.archive.verify("r-1").ok
    calm = FailingStorage(None, errno.EIO, only=("pwrite",))
    runs.open(storage=calm, durability="disk").append("calls", runs.record(4))
    assert calm.calls == []  # it was closed: everything is on disk


def test_a_run_whose_end_can_not_be_written_once_more_is_not_written_on(runs: Any) -> None:
    log = runs.open(durability="disk")
    log.append("routing", runs.record(0))
    log.release()
    for only in ("pwrite", "fdatasync"):
        log = runs.open(storage=FailingStorage(0, errno.EIO, only=(only,)), durability="disk")
        with pytest.raises(StorageError, match="injected"):
            log.append("routing", runs.record(1))
        log.release()
    assert runs.open(durability="disk").append("routing", runs.record(1)).seq == 1


# --- group commit ---------------------------------------------------------------------------------


class GatedStorage:
    """A storage whose `fdatasync` waits at a gate, and counts."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(POSIX, name)

    def fdatasync(self, fd: int) -> None:
        self.count += 1
        self.entered.release()
        assert self.gate.acquire(timeout=300)
        POSIX.fdatasync(fd)


def test_callers_that_come_while_a_commit_runs_share_the_next_one(runs: Any) -> None:
    storage = GatedStorage()
    log = runs.open(storage=storage, durability="disk")
    log.append("routing", runs.record(0))
    first = threading.Thread(target=log.sync)
    first.start()
    assert storage.entered.acquire(timeout=300)
    waiting = []
    for number in range(1, 9):
        log.append(
            "routing", runs.record(number)
        )  # after the running commit began: it does not cover these
        waiting.append(threading.Thread(target=log.sync))
        waiting[-1].start()
    storage.gate.release()
    first.join(timeout=300)
    assert not first.is_alive()
    assert storage.entered.acquire(timeout=300)
    assert all(thread.is_alive() for thread in waiting)
    storage.gate.release(10)
    for thread in waiting:
        thread.join(timeout=300)
        assert not thread.is_alive()
    # All nine records by two commits; a third where a caller reached its sync only after the second
    # began.
    assert storage.count <= 3
    count = storage.count
    log.sync()
    assert storage.count == count


def test_without_durability_disk_nothing_is_synced(runs: Any) -> None:
    storage = FailingStorage(None, errno.EIO, only=("fdatasync", "fsync"))
    log = runs.open(storage=storage)
    log.append("routing", runs.record(0))
    log.append("calls", runs.record(1))
    log.sync()
    log.close()
    assert storage.calls == []


def test_a_lasting_failure_to_open_leaves_a_run_that_opens_later(make_runs: Any) -> None:
    rehearsal = FailingStorage(None, errno.ENOSPC)
    make_runs().open(storage=rehearsal)
    for k in range(len(rehearsal.calls)):
        runs = make_runs()
        with pytest.raises(StorageError):
            runs.open(storage=FailingStorage(k, errno.ENOSPC, lasting=True))
        try:
            log = runs.open()
        except RunBusy:
            pytest.fail(f"call {k} left the lock behind")
        log.append("routing", runs.record(0))
        log.close()
        assert runs.archive.verify("r-1").ok


def test_a_run_that_is_being_called_opens_nothing_and_keeps_nothing_after_its_end(
    runs: Any,
) -> None:
    storage = FailingStorage(
        None, errno.EIO, only=("open", "close", "fstat", "write", "stat", "flock")
    )
    log = runs.open(storage=storage)
    for number, file in enumerate(("routing", "calls")):
        log.append(file, runs.record(number))
    storage.calls.clear()
    for number in range(2, 6):
        log.append("calls", runs.record(number))
    assert sorted(storage.calls) == sorted(["flock", "flock", "stat", "stat", "stat", "write"] * 4)
    log.close()
    assert (
        storage.calls.count("open") == storage.calls.count("close") - 3
    )  # its presence, its lock, its calls
    assert runs.numbers() == [*range(6)]


def test_many_runs_that_are_called_side_by_side_share_a_bounded_number_of_descriptors(
    runs: Any,
) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("no /proc here")
    logs = [runs.open(f"r-{number}") for number in range(100)]
    before = len(list(folder.iterdir()))

    def call(part: list[Any]) -> None:
        for number in range(6):
            for log in part:
                log.append("calls", runs.record(number))

    threads = [threading.Thread(target=call, args=(logs[at::5],)) for at in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(folder.iterdir())) <= before + 64
    for log in logs:
        assert [record["number"] for record in runs.store().open(log.header.run_id).news()] == [
            *range(6)
        ]


@pytest.mark.parametrize("how", ["moved", "replaced", "lock"])
def test_a_run_that_is_being_called_notices_that_it_was_moved_or_replaced(
    runs: Any, how: str
) -> None:
    log = runs.open()
    log.append("calls", runs.record(0))
    folder = Path(log.path)
    if how == "lock":
        (folder / "lock").rename(folder / "old")
        (folder / "lock").touch(0o600)
    else:
        folder.rename(folder.with_name("elsewhere"))
        if how == "replaced":
            runs.open()
    with pytest.raises(StorageError) as caught:
        log.append("calls", runs.record(1))
    assert caught.value.kind == "deleted"
    place = folder if how == "lock" else folder.with_name("elsewhere")
    assert len((place / "tool-calls.jsonl").read_text("utf-8").splitlines()) == 1
