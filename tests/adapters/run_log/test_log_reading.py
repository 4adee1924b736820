"""What a log reads, call for call, and what it makes of files that other programs changed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.run_log.run_files import Segment
from bundle_router.core.records.chain import Head, seal, unseal
from bundle_router.errors import CorruptRun, StorageError

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

# --- what other programs do to a run --------------------------------------------------------------


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


CHANGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "moved": (moved, "deleted", "it was deleted, moved or replaced"),
    "linked": (
        linked,
        "io_error",
        f"{ROUTING} is not the file it was, so another program changed it",
    ),
    "copied": (
        copied,
        "io_error",
        f"{ROUTING} is not the file it was, so another program changed it",
    ),
    "shortened": (shortened, "io_error", "another program changed it"),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("looks", ["reads", "appends"])
def test_a_file_that_is_another_or_shorter_is_refused_from_then_on(
    runs: Any, how: str, looks: str
) -> None:
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
        assert (
            f"can't read {runs.path}/r-1: {ROUTING} has {size - 1} bytes where {size} were"
            in refused.value.message
        )
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


# --- reading on -----------------------------------------------------------------------------------


def test_a_run_that_is_written_to_and_ended_while_it_is_first_read_is_read_to_its_end(
    runs: Any,
) -> None:
    writer = write(runs, "routing")
    storage = WatchedStorage()
    log = reader(runs, storage)

    def end() -> None:
        writer.append("calls", runs.record(1))
        writer.close()

    storage.answers["open", "run.json"] = [end]
    assert [one["number"] for one in log.news()] == [0, 1]
    assert (log.next_seq, log.header.head) == (2, Head(2, writer.head))


def test_records_that_come_during_a_reading_are_for_the_next_and_the_first_reads_them_all(
    runs: Any,
) -> None:
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
def test_a_record_without_the_one_before_it_is_looked_for_again_and_then_missed(
    runs: Any, first: bool
) -> None:
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


def test_the_places_of_records_that_a_run_notes_are_no_objects_of_their_own() -> None:
    """Kept among the objects of a burst of calls, each would hold memory of theirs."""
    segment = Segment("run.jsonl")
    tracemalloc.start()
    try:
        for seq in range(64_000):
            segment.grow(seq, 500)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert segment.bytes_of(63_999) == (63_936 * 500, 64_000 * 500)
    assert segment.bytes_of(64_000) is None
    assert held < 40_000, "two numbers for each 64 records"
