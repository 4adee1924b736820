"""Runs as an engine meets them: many open at once, altered behind its back, closed and opened
again, read meanwhile.
"""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.artifact_files import RunArtifacts
from bundle_router.adapters.run_log import POSIX, DiskRunStore, run_files
from bundle_router.adapters.run_log import log as log_module
from bundle_router.core.catalog import Durability
from bundle_router.core.records.run_header import RunHeader
from bundle_router.errors import CorruptRun, StorageError
from bundle_router.testing import MemoryRunStore

from tests.profiles import ALL

CHECKED = 1024 * 1024
"""Bytes from the end that earlier versions checked when they opened a run."""

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    with Router.open(ROOT / "config", runs=tmp_path / "runs", workspace=tmp_path) as opened:
        yield opened


def step(run_id: str) -> Step:
    return Step(run_id=run_id, workflow="feature", role="planner", step="plan")


# --- many at once ---------------------------------------------------------------------------------

SIDE_BY_SIDE = """
import os, resource, sys
from bundle_router import Router, Step
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[4]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def step(n):
    return Step(run_id=f"r-{n}", workflow="feature", role="planner", step="plan")
with Router.open(sys.argv[1], runs=sys.argv[2], workspace=sys.argv[3]) as router:
    for n in range(int(sys.argv[5])):
        router.route_sync(step(n))
    print(len(os.listdir("/proc/self/fd")))
    for n in range(8):
        router.close_run_sync(f"r-{n}")
    router.route_sync(step(9))
"""


OUT_OF_FILES = """
import os, resource, sys
from bundle_router import Router, Step
resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []
with Router.open(sys.argv[1], runs=sys.argv[2], workspace=sys.argv[3]) as router:
    router.route_sync(Step(run_id="r-1", workflow="feature", role="planner", step="plan"))
    router.call_sync("r-1", "no.such", {})
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    print(router.call_sync("r-1", "no.such", {}).call_id, router.call_sync("r-1", "no.such", {}).call_id)
"""


def test_a_call_that_took_the_last_descriptor_still_gets_its_end(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    command = [
        sys.executable,
        "-c",
        OUT_OF_FILES,
        str(ROOT / "config"),
        str(tmp_path / "runs"),
        str(tmp_path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert [id_.rpartition(".")[2] for id_ in done.stdout.split()] == ["2", "3"]
    lines = (tmp_path / "runs/r-1/tool-calls.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3]


FEW_FILES = """
import os, resource, sys
from pathlib import Path
from bundle_router import Router, Step
from bundle_router.errors import StorageError
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
def opened_of(run_id):
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [name for link in links if link.is_symlink() and f"/{run_id}/" in (name := os.readlink(link))]
with Router.open(sys.argv[1], runs=sys.argv[2], workspace=sys.argv[3]) as router:
    router.route_sync(Step(run_id="r", workflow="feature", role="planner", step="plan"))
    failed = 0
    for more in range(1, 20):
        step = Step(run_id=f"r-{more}", workflow="feature", role="planner", step="plan")
        used = max(map(int, os.listdir("/proc/self/fd")))
        holes = [os.open(os.devnull, os.O_RDONLY) for _ in range(used + 1 - len(os.listdir("/proc/self/fd")))]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, most))
        try:
            router.route_sync(step)
        except StorageError as error:
            failed += 1
            assert error.kind == "out_of_files", error
            assert not opened_of(step.run_id), (more, opened_of(step.run_id))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            for fd in holes:
                os.close(fd)
    assert 1 < failed < 19, failed
"""


def test_a_run_that_could_not_be_opened_keeps_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    command = [
        sys.executable,
        "-c",
        FEW_FILES,
        str(ROOT / "config"),
        str(tmp_path / "runs"),
        str(tmp_path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_any_number_of_runs_is_open_under_the_usual_limit(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    usual, runs = (1024, 1_100) if ALL else (256, 300)  # by default a quarter of what it usually is
    command = [
        sys.executable,
        "-c",
        SIDE_BY_SIDE,
        *map(str, (ROOT / "config", tmp_path / "runs", tmp_path, usual, runs)),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < usual
    for number in (0, 9, runs - 1):
        end = json.loads((tmp_path / "runs" / f"r-{number}" / "run.json").read_bytes())
        assert "closed" in end


@pytest.fixture
def two_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs that are not in use show that they are being written, and no more."""
    monkeypatch.setattr(run_files, "PRESENT_AT_MOST", 2)
    monkeypatch.setattr(log_module, "PRESENCES", run_files.Presences())


def open_files_of(path: Path) -> list[str]:
    links = [*Path("/proc/self/fd").iterdir()]
    found = [str(link.readlink()) for link in links if link.is_symlink()]
    return sorted(Path(name).name for name in found if name.startswith(f"{path}/"))


@pytest.mark.usefixtures("two_shown")
@pytest.mark.parametrize("durability", ["process", "disk"])
def test_the_runs_written_to_last_show_it_and_the_others_go_on_all_the_same(
    runs: Any, durability: Durability
) -> None:
    logs = [runs.open(f"r-{number}", durability=durability) for number in range(5)]
    for log in logs:
        log.append("routing", runs.record(0))
        log.sync()
    logs[4].append("routing", runs.record(1))
    assert [bool(open_files_of(Path(log.path))) for log in logs] == [False] * 3 + [True] * 2
    for log in logs:
        log.append("calls", runs.record(2))
        log.sync()
    for number, log in enumerate(logs):
        assert log.close() == ()
        assert runs.archive.verify(f"r-{number}").ok
        assert runs.archive.summary(f"r-{number}").state == "closed"
        assert not open_files_of(Path(log.path))


@pytest.mark.usefixtures("two_shown")
def test_a_run_whose_records_are_not_on_disk_yet_shows_that_it_is_written(runs: Any) -> None:
    """The kernel tells a failed write of it only who has the file open meanwhile."""
    logs = [runs.open(f"r-{number}", durability="disk") for number in range(4)]
    for log in logs:
        log.append("routing", runs.record(0))
    assert [bool(open_files_of(Path(log.path))) for log in logs] == [True] * 4
    for log in logs:
        log.sync()
    logs[3].append("routing", runs.record(1))
    assert [bool(open_files_of(Path(log.path))) for log in logs] == [False] * 2 + [True] * 2


@pytest.mark.usefixtures("two_shown")
def test_a_run_that_others_close_meanwhile_is_open_again_once_it_is_written_to(runs: Any) -> None:
    first = runs.open("r-0")
    first.append("routing", runs.record(0))
    for number in range(1, 4):
        runs.open(f"r-{number}").append("routing", runs.record(0))
    other = runs.open("r-0")
    other.append("routing", runs.record(1))
    assert other.close() == ()
    assert runs.archive.summary("r-0").state == "closed"
    assert [row["number"] for row in first.append("routing", runs.record(2)).news] == [1]
    assert runs.archive.summary("r-0").state == "open"
    assert first.close() == ()
    assert runs.archive.verify("r-0").ok


@pytest.mark.usefixtures("two_shown")
def test_a_run_that_is_deleted_meanwhile_is_not_begun_again(runs: Any) -> None:
    first = runs.open("r-0")
    first.append("routing", runs.record(0))
    for number in range(1, 4):
        runs.open(f"r-{number}").append("routing", runs.record(0))
    shutil.rmtree(first.path)
    with pytest.raises(StorageError) as raised:
        first.append("routing", runs.record(1))
    assert raised.value.kind == "deleted"
    assert first.close() == ()
    assert not Path(first.path).exists()


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (errno.EMFILE, "out_of_files", "ulimit -n"),
        (errno.ENFILE, "out_of_files", "fs.file-max"),
        (errno.ENOSPC, "disk_full", "free space"),
        (errno.EDQUOT, "disk_full", "quota"),
        (errno.EFBIG, "disk_full", "ulimit -f"),
        (errno.EROFS, "read_only", "mounted read-only"),
        (errno.EACCES, "read_only", "owner and modes"),
        (errno.EIO, "io_error", "check the disk"),
    ],
)
def test_each_trouble_with_the_disk_has_advice_of_its_own(
    runs: Any, code: int, kind: str, advice: str
) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(POSIX, name)

        def write(self, fd: int, data: bytes) -> int:
            raise OSError(code, "injected")

    with pytest.raises(StorageError) as error:
        runs.open(storage=Failing())
    assert error.value.kind == kind
    assert advice in error.value.advice
    assert f"errno {code}" in error.value.message


# --- altered behind its back ----------------------------------------------------------------------


def test_a_run_altered_in_its_middle_is_not_routed_on(router: Router, tmp_path: Path) -> None:
    for _ in range(6):
        router.route_sync(step("r-1"))
    router.close_run_sync("r-1")
    path = tmp_path / "runs" / "r-1" / "routing.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    altered = b"".join([*lines[:2], lines[2].replace(b'"planner"', b'"reviewer"'), *lines[3:]])
    path.write_bytes(altered)
    with pytest.raises(
        CorruptRun, match=r"routing\.jsonl:3: record 2 changed: its hash does not match"
    ) as error:
        router.route_sync(step("r-1"))
    assert "bundle-router runs verify" in error.value.advice
    assert path.read_bytes() == altered


def long_run(runs: Any) -> Any:
    """A run of three times what is checked when it is opened, with a decision in the middle.

    Its path.
    """
    log = runs.open()
    filler = "x" * 10_000
    for number in range(3 * CHECKED // len(filler)):
        kind = {} if number == CHECKED // len(filler) | 1 else {"type": "route.noted"}
        log.append("routing" if number % 2 else "calls", runs.record(number, filler=filler, **kind))
    log.close()
    return runs.path / "r-1" / "routing.jsonl"


@pytest.mark.parametrize("record", [11, -1, -30])
def test_a_long_run_is_checked_as_a_whole_when_it_is_read(runs: Any, record: int) -> None:
    path = long_run(runs)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[record] = lines[record].replace(b"xxx", b"yyy", 1)
    path.write_bytes(b"".join(lines))
    broken = runs.archive.verify("r-1").broken
    assert (broken.kind, broken.line) == ("changed", record % len(lines) + 1)
    with pytest.raises(
        CorruptRun, match=rf"routing\.jsonl:{broken.line}: record {broken.seq} changed"
    ):
        runs.open()


def test_a_long_run_whose_last_decision_is_far_back_is_checked_that_far(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    for number in range(1, 3 * CHECKED // 10_000):
        log.append("calls", {"type": "call.finished", "number": number, "filler": "x" * 10_000})
    log.close()
    path = runs.path / "r-1" / "tool-calls.jsonl"
    path.write_bytes(path.read_bytes().replace(b"xxx", b"yyy", 1))
    with pytest.raises(CorruptRun, match=r"tool-calls\.jsonl:1: record 1 changed"):
        runs.open()


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("opened", "2020-01-01T00:00:00Z"),
        ("catalog_revision", "sha256:0"),
        ("extra", 1),
        ("reopened", [{}]),
    ],
)
@pytest.mark.parametrize("unsealed", [False, True])
def test_an_edit_of_run_json_is_noticed(
    runs: Any, closed: bool, name: str, value: object, unsealed: bool
) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    (log.close if closed else log.release)()
    path = runs.path / "r-1" / "run.json"
    header = {**json.loads(path.read_bytes()), name: value}
    if unsealed:
        del header["seal"]
    path.write_text(json.dumps(header))
    report = runs.archive.verify("r-1")
    assert report.ok == (
        unsealed and name == "reopened"
    )  # what is added later, only the seal covers
    if not unsealed:
        assert "run.json was changed after it was written" in report.problems[0]
        with pytest.raises(CorruptRun, match=r"run\.json was changed"):
            runs.open()


def test_a_run_of_an_earlier_version_is_read_verified_and_continued(runs: Any) -> None:
    from bundle_router.core.records.chain import genesis, seal

    folder = runs.path / "r-1"
    runs.open().close()
    line, head = seal(runs.record(0), 0, genesis("r-1"))
    (folder / "routing.jsonl").write_bytes(line)
    header = json.loads((folder / "run.json").read_bytes())
    del header["seal"]
    (folder / "run.json").write_text(json.dumps({**header, "count": 1, "head": head}))
    assert runs.archive.verify("r-1").ok
    log = runs.open()
    log.append("routing", runs.record(1))
    log.close()
    assert runs.archive.verify("r-1").ok
    assert runs.numbers() == [0, 1]


# --- closed and opened again ----------------------------------------------------------------------


class Gated:
    """A storage whose `replace` waits at a gate, once it is shut."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(POSIX, name)

    def replace(self, source: str, target: str, **where: Any) -> None:
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(300)
        POSIX.replace(source, target, **where)


def test_a_run_that_is_being_closed_is_appended_to_once_that_is_done_and_holds_nobody_else_up(
    runs: Any,
) -> None:
    storage = Gated()
    first = runs.open(storage=storage)
    first.append("routing", runs.record(0))
    storage.gate.clear()
    closing = threading.Thread(target=first.close)
    closing.start()
    assert storage.waiting.wait(300)
    again: list[Any] = []
    appending = threading.Thread(
        target=lambda: again.append(runs.open().append("calls", runs.record(1)))
    )
    appending.start()
    other = runs.open("r-2")
    assert other.append("routing", runs.record(0)).seq == 0
    appending.join(
        0.1
    )  # longer than a refusal takes: an append that does not wait its turn has failed by then
    assert appending.is_alive()
    storage.gate.set()
    closing.join(300)
    appending.join(300)
    assert again[0].seq == 1
    assert "closed" not in runs.archive.header("r-1").fields
    assert runs.numbers() == [0, 1]


def test_a_folder_that_was_moved_away_is_not_written_on(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    (runs.path / "r-1").rename(runs.path / "r-2")
    before = (runs.path / "r-2" / "routing.jsonl").read_bytes()
    for _ in range(2):
        with pytest.raises(StorageError) as error:
            log.append("routing", runs.record(1))
        assert error.value.kind == "deleted"
    assert (runs.path / "r-2" / "routing.jsonl").read_bytes() == before


def test_who_reads_a_run_that_was_moved_away_is_told(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    reader = runs.open()
    list(reader.news())
    (runs.path / "r-1").rename(runs.path / "r-2")
    with pytest.raises(StorageError) as error:
        list(reader.news())
    assert error.value.kind == "deleted"


@pytest.mark.parametrize("call", range(60))
def test_a_creation_that_fails_anywhere_leaves_no_run(make_runs: Any, call: int) -> None:
    class Failing:
        """Every call from number `call` on fails."""

        def __init__(self) -> None:
            self.left = call

        def __getattr__(self, name: str) -> Any:
            real = getattr(POSIX, name)

            def counted(*args: Any, **kwargs: Any) -> Any:
                self.left -= name != "close"
                if self.left < 0 and name != "close":
                    raise OSError(errno.EIO, "injected")
                return real(*args, **kwargs)

            return counted

    runs = make_runs()
    try:
        runs.open(storage=Failing())
    except StorageError:
        assert list(runs.path.glob(".creating-*")) == []
        for id_ in runs.archive.run_ids():
            assert runs.archive.verify(id_).ok
    runs.open().append("routing", runs.record(0))
    assert runs.archive.verify("r-1").ok


@pytest.mark.parametrize("left", ["", "artifacts/sha256", "run.json"])
def test_a_folder_of_its_name_that_is_no_run_makes_room(runs: Any, left: str) -> None:
    (runs.path / "r-1").mkdir(mode=0o700, parents=True)
    runs.path.chmod(0o700)
    if left == "run.json":
        (runs.path / "r-1" / left).touch()  # empty, as power loss may leave it
    else:
        (runs.path / "r-1" / left).mkdir(parents=True, exist_ok=True)
    opening = threading.Thread(
        target=lambda: runs.open().append("routing", runs.record(0)), daemon=True
    )
    opening.start()
    opening.join(300)
    assert not opening.is_alive(), "it waits for a creation that nobody is at"
    assert runs.archive.verify("r-1").ok
    assert [path.name for path in runs.path.iterdir() if path.name.startswith(".creating")] == []


def test_a_creation_that_was_killed_is_cleared_away(runs: Any) -> None:
    runs.path.mkdir(mode=0o700)
    left = runs.path / ".creating-0123456789abcdef-0"
    left.mkdir()
    (left / "run.json").write_text("{")
    assert runs.archive.run_ids() == []
    runs.open().append("routing", runs.record(0))
    assert not left.exists()


# --- read meanwhile -------------------------------------------------------------------------------


def test_an_artifact_is_read_while_its_run_is_written(runs: Any) -> None:
    def artifacts(path: str) -> RunArtifacts:
        return RunArtifacts(path)

    writer = DiskRunStore(runs.path, clock=runs.clock, artifacts=artifacts)
    log = writer.create("r-1", header=RunHeader({"catalog_revision": "sha256:0"}), catalog="{}")
    sha256 = log.artifacts().put(b"kept")
    before = runs.bytes("run.json")
    fake = MemoryRunStore()
    fake.create("r-1", header=RunHeader({}), catalog="{}").artifacts().put(b"kept")
    reader = DiskRunStore(runs.path, clock=runs.clock, artifacts=artifacts)
    for store in (reader, fake):
        opened = store.open("r-1")
        assert opened is not None
        assert opened.artifacts().get(sha256) == b"kept"
        with pytest.raises(KeyError):
            opened.artifacts().get("0" * 64)
        opened.close()
        assert store.open("none") is None
    assert runs.bytes("run.json") == before
    assert reader.open("../r-1") is None
    log.close()


def test_show_names_the_workspace_that_the_header_states(runs: Any) -> None:
    store = runs.store()
    store.create(
        "r-1",
        header=RunHeader({"catalog_revision": "sha256:0", "workspace": "/srv/project"}),
        catalog="{}",
    ).close()
    assert runs.archive.summary("r-1").workspace == "/srv/project"
    command = [
        sys.executable,
        "-m",
        "bundle_router",
        "runs",
        "show",
        "r-1",
        "--runs",
        str(runs.path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, cwd=ROOT
    )
    assert "workspace /srv/project" in done.stdout
