"""Heads that are kept beside the runs: a cut end, a forged end and a run that was taken away are
found.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive, FolderHeads, head_files, prune
from bundle_router.adapters.archive.head_files import HeadKeepingStore
from bundle_router.adapters.run_log import DiskRunStore
from bundle_router.cli import main
from bundle_router.core.records.chain import FILES, Appended, genesis, parse, seal, unseal
from bundle_router.core.records.heads import StoredHead, faults_of_head, missing_runs
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values.canonical import digest_of
from bundle_router.errors import CorruptRun, StorageError, UnknownRun
from bundle_router.testing import FakeClock

from tests.adapters.run_log.conftest import no_artifacts

KEY = b"the operator's"
NUMBERS = itertools.count()
HOLE = "the run that was begun as number {} is gone, and its head with it, or that head was changed"


class ListStore:
    """A runs directory as the store of one process writes it, without its locks."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, run_id: str, *, header: Any, catalog: str) -> ListStore:
        path = self.root / run_id
        path.mkdir(parents=True)
        (path / "run.json").write_text(
            json.dumps({"run_id": run_id, "opened": "2026-11-01T00:00:00Z"})
        )
        self.path, self.seq, self.head = path, 0, genesis(run_id)
        return self

    def append(
        self, file: str, record: dict[str, Any], *, only_at: int | None, wait_s: float
    ) -> Appended:
        line, self.head = seal(record, self.seq, self.head)
        with (self.path / "routing.jsonl").open("ab") as out:
            out.write(line)
        self.seq += 1
        return Appended((), self.seq - 1, self.head)

    def close(self) -> None:
        """No descriptor is kept."""


def test_what_is_missing_is_told_in_the_order_in_which_the_runs_began() -> None:
    assert missing_runs({}, ()) == []
    heads = {
        run_id: StoredHead(run_id, number, 1, "sha256:0")
        for run_id, number in (("b", 104), ("a", 2))
    }
    said = missing_runs(heads, ())
    assert [line.split(":")[0] for line in said[:2]] == ["run 'a' is gone", "run 'b' is gone"]
    begun = [int(line.split("number ")[1].split()[0]) for line in said[2:]]
    assert begun == [1, *range(3, 102)], "a hundred at most"


def test_a_head_of_another_run_is_no_head_of_this_one() -> None:
    head = StoredHead("other", 1, 1, "sha256:0")
    assert faults_of_head(head, "r", None) == [
        "the head that is kept for it is that of run 'other'"
    ]


def fill(root: Path, heads: FolderHeads, *run_ids: str) -> None:
    for run_id in run_ids:
        log = HeadKeepingStore(ListStore(root), heads).create(
            run_id, header=RunHeader({}), catalog="{}"
        )
        for number in range(4):
            log.append(
                "routing", {"type": "note", "number": number, "time": "2026-11-01T00:00:00Z"}
            )


@pytest.fixture(params=["signed, beside the runs", "signed, elsewhere", "unsigned, elsewhere"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, FolderHeads]:
    root = tmp_path / "runs"
    folder = root / ".heads" if request.param.endswith("runs") else tmp_path / "elsewhere"
    heads = FolderHeads(folder, KEY if request.param.startswith("signed") else None)
    fill(root, heads, "one", "two")
    return root, heads


def all_of(heads: FolderHeads) -> dict[str, StoredHead]:
    return {run_id: head for run_id in heads.run_ids() if (head := heads.read(run_id)) is not None}


def archive_of(kept: tuple[Path, FolderHeads]) -> Archive:
    archive = Archive(kept[0])
    archive.heads = kept[1]
    return archive


def cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def forge(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[-1], _ = seal({"type": "note", "number": 99}, 3, unseal(lines[-2]).hash)
    path.write_bytes(b"".join(lines))


DAMAGE: list[tuple[Callable[[Path], None], str, int]] = [(cut, "cut_off", 3), (forge, "changed", 3)]


@pytest.mark.parametrize(("damage", "kind", "seq"), DAMAGE, ids=["cut", "forged"])
def test_an_end_that_was_cut_or_forged_is_named(
    kept: tuple[Path, FolderHeads], damage: Callable[[Path], None], kind: str, seq: int
) -> None:
    archive = archive_of(kept)
    assert archive.verify("one").ok
    damage(kept[0] / "one" / FILES["routing"])
    assert Archive(kept[0]).verify("one").ok or (kept[0] / ".heads").exists(), (
        "the chain alone does not find it"
    )
    broken = archive.verify("one").broken
    assert broken is not None
    assert (broken.kind, broken.seq) == (kind, seq)


def test_verify_says_which_protection_a_run_had(kept: tuple[Path, FolderHeads]) -> None:
    archive = archive_of(kept)
    assert archive.verify("one").protection == ("signed head" if kept[1].key else "kept head")
    archive.heads = FolderHeads(kept[1].folder, KEY)
    assert archive.verify("one").protection == ("signed head" if kept[1].key else "kept head")
    archive.heads = FolderHeads(kept[1].folder)
    assert archive.verify("one").protection == "kept head"
    archive.heads = None
    assert archive.verify("one").protection == "chain"
    assert archive.missing() == []


def test_a_run_that_was_taken_away_is_missed_and_one_that_was_pruned_is_not(
    kept: tuple[Path, FolderHeads],
) -> None:
    archive = archive_of(kept)
    assert archive.missing() == []
    assert (
        "one"
        in prune(
            archive, now="2030-01-01T00:00:00Z", max_bytes=archive.summary("two").bytes
        ).deleted
    )
    assert archive.missing() == []
    shutil.rmtree(kept[0] / "two")
    assert archive.missing() == ["run 'two' is gone: its head says that it held 4 records"]


def test_a_run_that_was_taken_away_before_its_first_record_is_missed(
    kept: tuple[Path, FolderHeads],
) -> None:
    HeadKeepingStore(ListStore(kept[0]), kept[1]).create(
        "three", header=RunHeader({}), catalog="{}"
    )
    assert archive_of(kept).verify("three").ok
    shutil.rmtree(kept[0] / "three")
    assert archive_of(kept).missing() == [
        "run 'three' is gone: its head says that it held 0 records"
    ]


def test_a_run_that_was_taken_away_with_its_head_leaves_a_hole(
    kept: tuple[Path, FolderHeads],
) -> None:
    shutil.rmtree(kept[0] / "one")
    (kept[1].folder / "one.head").unlink()
    assert archive_of(kept).missing() == [HOLE.format(1)]


def test_a_head_that_was_changed_or_taken_away_is_a_fault(kept: tuple[Path, FolderHeads]) -> None:
    archive, file = archive_of(kept), kept[1].folder / "one.head"
    row = json.loads(file.read_bytes())
    file.write_text(
        json.dumps({**row, "count": 2, "hash": parse_hash(kept[0] / "one" / FILES["routing"], 1)})
    )
    cut(kept[0] / "one" / FILES["routing"])
    assert archive.verify("one").ok is (kept[1].key is None), (
        "without a key, only its place protects a head"
    )
    file.unlink()
    assert any("no head was kept" in problem for problem in archive.verify("one").problems)


def parse_hash(path: Path, at: int) -> str:
    return str(parse(path.read_bytes().splitlines()[at])["hash"])


def test_a_router_keeps_the_heads_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDS_KEY", KEY.decode())
    root, config = tmp_path / "runs", tmp_path / "config"
    config.mkdir()
    (config / "router.toml").write_text('[records]\nkey = "${RECORDS_KEY}"\n')
    with Router.open(config, runs=root, workspace=tmp_path) as router:
        for step in ("plan", "look-up"):
            router.route_sync(Step(run_id="r", workflow="feature", role="planner", step=step))
    words = ["runs", "verify", "r", "--runs", str(root), "--config", str(config)]
    assert main(words) == 0
    header = json.loads((root / "r" / "run.json").read_text())
    for name in ("closed", "head", "count", "seal"):  # as if it had been left open
        header.pop(name, None)
    (root / "r" / "run.json").write_text(json.dumps(header))
    assert main(words) == 0
    cut(root / "r" / FILES["routing"])
    assert main(words) == 5


def test_a_head_never_goes_back(tmp_path: Path) -> None:
    heads = FolderHeads(tmp_path, KEY)
    heads.note("r", 5, "sha256:5")
    heads.note("r", 4, "sha256:4")
    heads.note("r", 5, "sha256:another")
    head = heads.read("r")
    assert head is not None
    assert (head.count, head.hash, head.number) == (5, "sha256:5", 1)


def test_heads_are_numbered_as_their_runs_begin_whoever_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for number in range(1, 13):  # numbers of one digit and of two
        FolderHeads(folder).note(f"r-{number}", 0, "sha256:0")
        FolderHeads(folder).note(f"r-{number}", number, f"sha256:{number}")
    heads = FolderHeads(folder)
    assert {head.number: (run_id, head.count) for run_id, head in all_of(heads).items()} == {
        number: (f"r-{number}", number) for number in range(1, 13)
    }
    assert heads.run_ids() == sorted(heads.run_ids())
    assert (folder / ".count").read_text() == "12\n"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "no run id .head").write_text("{")
    (folder / "empty.head").write_text("\n")  # its writer was killed before it wrote
    assert len(all_of(heads)) == 12
    heads.note("empty", 1, "sha256:1")
    assert all_of(heads)["empty"].number == 13


def test_a_shorter_head_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    FolderHeads(tmp_path, KEY).note("r", 1, "sha256:1")
    FolderHeads(tmp_path).note("r", 2, "sha256:2")
    assert (tmp_path / "r.head").read_bytes() == StoredHead("r", 1, 2, "sha256:2").to_line()


def test_a_pruned_head_stays_so_until_more_is_written(tmp_path: Path) -> None:
    heads = FolderHeads(tmp_path)
    heads.prune("r")
    assert (heads.read("r"), heads.run_ids()) == (None, [])
    heads.note("r", 2, "sha256:2")
    heads.prune("r")
    assert all_of(heads) == {"r": StoredHead("r", 1, 2, "sha256:2", pruned=True)}
    heads.note("r", 2, "sha256:x")
    assert heads.read("r") == StoredHead("r", 1, 2, "sha256:2", pruned=True), "nothing came"
    heads.note("r", 3, "sha256:3")
    assert heads.read("r") == StoredHead("r", 1, 3, "sha256:3")


def test_what_is_no_head_or_no_count_of_runs_is_said_to_be(tmp_path: Path) -> None:
    heads = FolderHeads(tmp_path)
    heads.note("r", 1, "sha256:1")
    (tmp_path / ".count").write_text("many")
    with pytest.raises(CorruptRun, match="holds no number of runs"):
        heads.note("s", 1, "sha256:1")
    for text in ("{", "{}", "[]", '{"run_id": "r"}'):
        (tmp_path / "r.head").write_text(text)
        with pytest.raises(CorruptRun, match="is not the head of a run"):
            heads.read("r")
        with pytest.raises(CorruptRun, match="is not the head of a run"):
            heads.note("r", 2, "sha256:2")


def test_a_head_that_is_a_link_is_neither_read_nor_written(tmp_path: Path) -> None:
    heads = FolderHeads(tmp_path / "heads")
    heads.note("r", 1, "sha256:1")
    (tmp_path / "heads" / "r.head").rename(tmp_path / "elsewhere")
    (tmp_path / "heads" / "r.head").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"can't read .*/r\.head"):
        heads.read("r")
    with pytest.raises(StorageError, match="can't keep the head of run 'r'"):
        heads.note("r", 2, "sha256:2")


def test_keeping_heads_leaves_no_descriptor_open_and_waits_for_its_turn(tmp_path: Path) -> None:
    heads = FolderHeads(tmp_path)
    heads.note("r", 1, "sha256:1")
    before = len([*Path("/proc/self/fd").iterdir()])
    heads.note("r", 2, "sha256:2")
    heads.read("r")
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    held = os.open(tmp_path / "r.head", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    noting = threading.Thread(target=heads.note, args=("r", 4, "sha256:4"))
    noting.start()
    noting.join(0.2)
    assert noting.is_alive(), "as long as another holds it"
    os.pwrite(held, StoredHead("r", 1, 3, "sha256:3").to_line(), 0)
    os.close(held)
    noting.join()
    assert heads.read("r") == StoredHead("r", 1, 4, "sha256:4")


def test_what_keeps_heads_is_the_store_and_the_log_beneath_in_all_else(tmp_path: Path) -> None:
    heads = FolderHeads(tmp_path / "heads")
    store = HeadKeepingStore(
        DiskRunStore(tmp_path / "runs", clock=FakeClock(), artifacts=no_artifacts), heads
    )
    assert store.open("r") is None
    log = store.create("r", header=RunHeader({"catalog_revision": "sha256:0"}), catalog="{}")
    assert heads.read("r") == StoredHead("r", 1, 0, genesis("r"))
    done = log.append("routing", {"type": "note"})
    assert heads.read("r") == StoredHead("r", 1, 1, done.hash)
    assert log.append("routing", {"type": "note"}, only_at=0).seq is None
    assert heads.read("r") == StoredHead("r", 1, 1, done.hash), "nothing was written"
    assert (log.next_seq, store.blocks) == (1, False)
    again = store.open("r")
    assert again is not None
    assert again.append("calls", {"type": "note"}, wait_s=9.0).seq == 1
    assert all_of(heads)["r"].count == 2
    for one in (log, again):
        one.release()
    store.close()


def test_a_head_that_can_not_be_kept_withholds_the_acknowledgement(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = HeadKeepingStore(ListStore(tmp_path / "runs"), FolderHeads(tmp_path / "good"))
    run = log.create("r", header=RunHeader({}), catalog="{}")
    run._heads.folder = tmp_path / "file"
    with pytest.raises(StorageError):
        run.append("routing", {"type": "note"})


# --- what is forged, damaged or interrupted -------------------------------------------------------


@contextmanager
def opened(kept: tuple[Path, FolderHeads], run_id: str) -> Iterator[Any]:
    """Open a run to write it, as a worker does that goes on with it; end it as if that worker was
    killed.
    """
    store = HeadKeepingStore(
        DiskRunStore(kept[0], clock=FakeClock(), artifacts=no_artifacts), kept[1]
    )
    log = store.create(run_id, header=RunHeader({"catalog_revision": digest_of({})}), catalog="{}")
    try:
        yield log
    finally:
        log.release()
        store.close()


def write(kept: tuple[Path, FolderHeads], run_id: str, count: int) -> None:
    with opened(kept, run_id) as log:
        for _ in range(count):
            log.append("routing", {"type": "note", "number": next(NUMBERS)})


def change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **fields}) + "\n")


def test_a_run_taken_away_is_missed_whatever_its_head_says_without_the_key(tmp_path: Path) -> None:
    heads = FolderHeads(tmp_path / "runs" / ".heads", KEY)
    fill(tmp_path / "runs", heads, "one", "two")
    shutil.rmtree(tmp_path / "runs" / "one")
    change(heads.folder / "one.head", pruned=True)
    change(heads.folder / "one.head", signature="")
    assert archive_of((tmp_path / "runs", heads)).missing() == [
        (
            "run 'one' is gone, and its kept head does not bear the key's signature: it was"
            " changed, or written with another key"
        ),
        HOLE.format(1),
    ]


def make_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


NO_HEADS: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda file: file.write_bytes(b"{"),
    "nested": lambda file: file.write_bytes(b"[" * 4000),
    "a count in words": lambda file: change(file, count="4"),
    "a number in words": lambda file: change(file, number="1"),
    "a hash of no type": lambda file: change(file, hash=None),
    "a signature of no type": lambda file: change(file, signature=5),
    "another signature": lambda file: change(file, signature="\ud800é"),
    "a number beyond all": lambda file: change(file, number=10**15, signature="x"),
    "a fifo": make_fifo,
    "a folder": make_folder,
}


@pytest.mark.parametrize("damage", NO_HEADS)
def test_a_damaged_head_is_told_of_its_run_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    monkeypatch.setenv("RECORDS_KEY", KEY.decode())
    root, config = tmp_path / "runs", tmp_path / "config"
    heads = FolderHeads(root / ".heads", KEY)
    fill(root, heads, "one", "two")
    config.mkdir()
    (config / "router.toml").write_text('[records]\nkey = "${RECORDS_KEY}"\n')
    NO_HEADS[damage](heads.folder / "one.head")
    assert main(["runs", "verify", "--runs", str(root), "--config", str(config)]) == 5
    said = capsys.readouterr().out
    assert "one: BROKEN, 4 good records" in said
    assert "two: ok, 4 good records" in said
    assert "is kept and signed" not in said.partition("two: ok")[0]
    assert "no head was kept" not in said
    assert "run 'one' is gone" not in said


def test_records_taken_away_stay_missed_when_their_run_goes_on(
    kept: tuple[Path, FolderHeads],
) -> None:
    write(kept, "three", 4)
    cut(kept[0] / "three" / FILES["routing"])
    for _ in range(3):
        with pytest.raises(CorruptRun, match="lacks record 3 as its kept head names it"):
            write(kept, "three", 3)
    broken = archive_of(kept).verify("three").broken
    assert broken is not None
    assert (broken.kind, broken.seq) == ("changed", 3)


def test_nothing_is_signed_over_a_head_that_the_key_did_not_sign(tmp_path: Path) -> None:
    kept = tmp_path / "runs", FolderHeads(tmp_path / "runs" / ".heads", KEY)
    write(kept, "r", 4)
    forge(kept[0] / "r" / FILES["routing"])
    last = unseal((kept[0] / "r" / FILES["routing"]).read_bytes().splitlines()[-1])
    change(kept[1].folder / "r.head", hash=last.hash)
    write(kept, "r", 1)
    report = archive_of(kept).verify("r")
    assert report.protection == "kept head"
    assert any("does not bear the key's signature" in problem for problem in report.problems)


def test_a_run_that_begins_anew_after_it_was_pruned_is_judged_by_its_own_records(
    kept: tuple[Path, FolderHeads],
) -> None:
    archive = archive_of(kept)
    prune(archive, now="2030-01-01T00:00:00Z", max_bytes=0)
    assert archive.missing() == []
    write(kept, "one", 2)
    assert archive.verify("one").ok
    assert (archive.verify("one").records, archive.missing()) == (2, [])
    cut(kept[0] / "one" / FILES["routing"])
    assert not archive.verify("one").ok


def test_a_run_that_comes_or_goes_meanwhile_is_not_missed(kept: tuple[Path, FolderHeads]) -> None:
    class Changing(Archive):
        looks = iter((["two"], ["one"]))

        def run_ids(self) -> list[str]:
            return next(self.looks)

    archive = Changing(kept[0])
    archive.heads = kept[1]
    assert archive.missing() == []


def test_records_behind_the_kept_head_are_told(kept: tuple[Path, FolderHeads]) -> None:
    assert not any("came after" in note for note in archive_of(kept).verify("one").notes)
    file = kept[0] / "one" / FILES["routing"]
    line, _ = seal({"type": "note"}, 4, unseal(file.read_bytes().splitlines()[-1]).hash)
    file.write_bytes(file.read_bytes() + line)
    report = archive_of(kept).verify("one")
    assert report.ok, "a process that was killed leaves such a record"
    assert (
        "its last 1 records came after the head that was kept: only the chain protects them"
        in report.notes
    )


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let this process write no file beyond a size, as on a disk that is full: the count of runs
    fits, no head does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize(("size", "digits"), [(16, 64), (200, 300)])
def test_a_head_that_is_written_in_part_is_the_former_one(
    kept: tuple[Path, FolderHeads], size: int, digits: int
) -> None:
    before = kept[1].read("one")
    with (
        files_of_at_most(size),
        pytest.raises(StorageError, match="can't keep the head of run 'one'"),
    ):
        kept[1].note("one", 5, "sha256:" + digits * "5")
    assert kept[1].read("one") == before


@pytest.mark.parametrize("is_pruned", [True, False])
def test_a_run_that_is_older_than_its_heads_goes_on(
    kept: tuple[Path, FolderHeads], is_pruned: bool
) -> None:
    """Another version began it, without a head or under that of a run that it pruned."""
    if is_pruned:
        prune(archive_of(kept), now="2030-01-01T00:00:00Z", max_bytes=0)
    else:
        (kept[1].folder / "one.head").unlink()
        shutil.rmtree(kept[0] / "one")
    store = DiskRunStore(kept[0], clock=FakeClock(), artifacts=no_artifacts)
    begun = store.create("one", header=RunHeader({"catalog_revision": digest_of({})}), catalog="{}")
    begun.append("routing", {"type": "note"})
    log = HeadKeepingStore(store, kept[1]).open("one")
    assert log is not None
    for number in range(1, 5):
        assert log.append("routing", {"type": "note", "number": number}).seq == number
    assert archive_of(kept).verify("one").ok
    for one in (begun, log):
        one.release()
    store.close()


def test_a_run_that_could_not_begin_leaves_neither_a_fault_nor_a_hole(
    kept: tuple[Path, FolderHeads],
) -> None:
    with (
        files_of_at_most(16),
        pytest.raises(StorageError, match="can't keep the head of run 'three'"),
    ):
        kept[1].note("three", 0, genesis("three"))
    fill(kept[0], kept[1], "four")
    ListStore(kept[0]).create("three", header=RunHeader({}), catalog="{}")
    assert archive_of(kept).missing() == []
    assert archive_of(kept).verify("three").ok, "it has no record that a head could protect"


def test_a_run_that_is_written_meanwhile_is_not_cut(kept: tuple[Path, FolderHeads]) -> None:
    with opened(kept, "three") as log:

        class LateHeads(FolderHeads):
            def read(self, run_id: str) -> StoredHead | None:
                log.append("routing", {"type": "note"})
                return super().read(run_id)

        archive = Archive(kept[0])
        archive.heads = LateHeads(kept[1].folder, kept[1].key)
        assert archive.verify("three").broken is None


def test_a_run_that_is_pruned_meanwhile_is_unknown(kept: tuple[Path, FolderHeads]) -> None:
    class Pruning(Archive):
        def torn(self, run_id: str) -> tuple[Any, ...]:
            self.delete(run_id)
            return ()

    archive = Pruning(kept[0])
    archive.heads = None
    with pytest.raises(UnknownRun):
        archive.verify("one")


def test_a_writer_that_stands_still_holds_up_nobody_for_ever(
    kept: tuple[Path, FolderHeads], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_files, "WAIT_S", 0)
    for name in ("one.head", ".count"):
        held = os.open(kept[1].folder / name, os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(
            StorageError, match=f"another process holds the lock of {re.escape(name)}"
        ):
            kept[1].note("one" if name == "one.head" else "three", 9, "sha256:9")
        if name == "one.head":
            with pytest.raises(StorageError, match="another process holds the lock of one"):
                kept[1].read("one")  # it may be half written
        os.close(held)


def test_the_end_of_a_longer_head_that_was_left_is_no_part_of_it(
    kept: tuple[Path, FolderHeads],
) -> None:
    file = kept[1].folder / "one.head"
    file.write_bytes(file.read_bytes() + b"ed}\n")  # its writer was killed before it cut the file
    assert archive_of(kept).verify("one").ok


def test_what_the_command_prunes_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RECORDS_KEY", KEY.decode())
    root, config, elsewhere = tmp_path / "runs", tmp_path / "config", tmp_path / "elsewhere"
    fill(root, FolderHeads(elsewhere, KEY), "one", "two")
    config.mkdir()
    (config / "router.toml").write_text(
        f'[records]\nkey = "${{RECORDS_KEY}}"\nheads = "{elsewhere}"\n'
    )
    pruned = ["runs", "prune", "--runs", str(root), "--older-than", "1d"]
    (root / ".heads").symlink_to(elsewhere)  # without the config, and so without the key
    assert main(pruned) == 3
    assert "is signed" in capsys.readouterr().err
    assert Archive(root).run_ids() == ["one", "two"]
    assert main([*pruned, "--config", str(config)]) == 0
    assert main(["runs", "verify", "--runs", str(root), "--config", str(config)]) == 0


def test_the_command_takes_heads_and_key_from_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RECORDS_KEY", KEY.decode())
    root, config = tmp_path / "runs", tmp_path / "config"
    fill(root, FolderHeads(root / ".heads", KEY), "one")
    config.mkdir()
    (config / "router.toml").write_text('[records]\nkey = "${RECORDS_KEY}"\n')
    words = ["runs", "verify", "--runs", str(root), "--config", str(config)]
    assert main(words) == 0
    assert "its head is kept and signed" in capsys.readouterr().out
    cut(root / "one" / FILES["routing"])
    assert main(words) == 5
    assert "there were 4 records; 3 are left" in capsys.readouterr().out
    shutil.rmtree(root / "one")
    assert main(words) == 5
    assert "run 'one' is gone" in capsys.readouterr().out
    monkeypatch.delenv("RECORDS_KEY")
    assert main(words) == 3
    (config / "router.toml").write_text('[records]\nkey = "the key itself"\n')
    assert main(words) == 2


def test_a_head_that_the_disk_does_not_give_is_said_and_hides_no_other(
    kept: tuple[Path, FolderHeads],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def read(fd: int, path: Path) -> StoredHead | None:
        if path.name == "one.head":
            raise OSError(errno.EIO, "the disk gave nothing")
        return read_head(fd, path)

    read_head = head_files._read
    monkeypatch.setattr(head_files, "_read", read)
    with pytest.raises(StorageError, match=r"can't read .*/one\.head: the disk gave nothing"):
        kept[1].read("one")
    archive = archive_of(kept)
    assert [archive.verify(run_id).ok for run_id in archive.run_ids()] == [False, True]
