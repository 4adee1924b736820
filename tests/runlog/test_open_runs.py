"""Runs as an engine meets them: many open at once, altered behind its back, closed and opened again, read meanwhile."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.artifacts import RunArtifacts
from bundle_router.adapters.run_log import POSIX, DiskRunStore
from bundle_router.adapters.run_log.segment import CHECKED
from bundle_router.core.tools.shaping import MediaFacts
from bundle_router.errors import CorruptRun, RequestError, RunInUse, StorageError, UnknownRun
from bundle_router.testing import FakeRedactor, MemoryRunStore

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    with Router.open(ROOT / "config", runs=tmp_path / "runs", workspace=tmp_path) as opened:
        yield opened


def step(run_id: str) -> Step:
    return Step(run_id=run_id, workflow="feature", role="planner", step="plan")


# --- many at once --------------------------------------------------------------------------------------------------

SIDE_BY_SIDE = """
import resource, sys
from bundle_router import Router, Step
from bundle_router.errors import StorageError
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def step(n):
    return Step(run_id=f"r-{n}", workflow="feature", role="planner", step="plan")
with Router.open(sys.argv[1], runs=sys.argv[2], workspace=sys.argv[3]) as router:
    for n in range(2000):
        try:
            router.route_sync(step(n))
        except StorageError as error:
            print(n, error.kind, error.advice, sep="|")
            break
    router.close_run_sync("r-0")
    router.route_sync(step(3000))
    router.route_sync(step(1))
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
    command = [sys.executable, "-c", OUT_OF_FILES, str(ROOT / "config"), str(tmp_path / "runs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["r-1.2", "r-1.3"]
    lines = (tmp_path / "runs/r-1/tool-calls.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3]


def test_about_a_thousand_runs_are_open_under_the_usual_limit_and_the_limit_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-c", SIDE_BY_SIDE, str(ROOT / "config"), str(tmp_path / "runs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    count, kind, advice = done.stdout.strip().split("|")
    assert int(count) >= 900
    assert kind == "out_of_files"
    assert "ulimit -n" in advice
    assert "close_run" in advice
    ends = [json.loads((tmp_path / "runs" / name / "run.json").read_bytes()) for name in ("r-0", "r-1", "r-3000")]
    assert all("closed" in end for end in ends)


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
def test_each_trouble_with_the_disk_has_advice_of_its_own(runs: Any, code: int, kind: str, advice: str) -> None:
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


# --- altered behind its back ---------------------------------------------------------------------------------------


def test_a_run_altered_in_its_middle_is_not_routed_on(router: Router, tmp_path: Path) -> None:
    for _ in range(6):
        router.route_sync(step("r-1"))
    router.close_run_sync("r-1")
    path = tmp_path / "runs" / "r-1" / "routing.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    altered = b"".join([*lines[:2], lines[2].replace(b'"planner"', b'"reviewer"'), *lines[3:]])
    path.write_bytes(altered)
    with pytest.raises(CorruptRun, match=r"routing\.jsonl:3: record 2 changed: its hash does not match") as error:
        router.route_sync(step("r-1"))
    assert "bundle-router runs verify" in error.value.advice
    assert path.read_bytes() == altered


def long_run(runs: Any) -> Any:
    """A run of three times what is checked when it is opened, with a decision in the middle. Its path."""
    log = runs.open()
    filler = "x" * 10_000
    for number in range(3 * CHECKED // len(filler)):
        kind = {} if number == CHECKED // len(filler) | 1 else {"type": "route.noted"}
        log.append("routing" if number % 2 else "calls", runs.record(number, filler=filler, **kind))
    log.close()
    return runs.path / "r-1" / "routing.jsonl"


@pytest.mark.parametrize(("record", "noticed"), [(11, False), (-1, True), (-30, True)])
def test_a_long_run_is_checked_from_its_end_and_as_a_whole_by_verify(runs: Any, record: int, noticed: bool) -> None:
    path = long_run(runs)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[record] = lines[record].replace(b"xxx", b"yyy", 1)
    path.write_bytes(b"".join(lines))
    broken = runs.archive.verify("r-1").broken
    assert (broken.kind, broken.line) == ("changed", record % len(lines) + 1)
    if noticed:
        with pytest.raises(CorruptRun, match=rf"routing\.jsonl:{broken.line}: record {broken.seq} changed"):
            runs.open()
    else:
        runs.open().close()


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
    [("opened", "2020-01-01T00:00:00Z"), ("catalog_revision", "sha256:0"), ("extra", 1), ("reopened", [{}])],
)
@pytest.mark.parametrize("unsealed", [False, True])
def test_an_edit_of_run_json_is_noticed(runs: Any, closed: bool, name: str, value: object, unsealed: bool) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    (log.close if closed else log.release)()
    path = runs.path / "r-1" / "run.json"
    header = {**json.loads(path.read_bytes()), name: value}
    if unsealed:
        del header["seal"]
    path.write_text(json.dumps(header))
    report = runs.archive.verify("r-1")
    assert report.ok == (unsealed and name == "reopened")  # what is added later, only the seal covers
    if not unsealed:
        assert "run.json: it was changed after it was written" in report.problems[0]
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


# --- closed and opened again ---------------------------------------------------------------------------------------


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
            assert self.gate.wait(30)
        POSIX.replace(source, target, **where)


def test_opening_a_run_that_is_being_closed_waits_for_it_and_holds_nobody_else_up(runs: Any) -> None:
    storage = Gated()
    store = runs.store(storage=storage)
    header = {"catalog_revision": "sha256:0"}
    first = store.open("r-1", header=header, catalog="{}")
    first.append("routing", runs.record(0))
    storage.gate.clear()
    closing = threading.Thread(target=first.close)
    closing.start()
    assert storage.waiting.wait(30)
    again: list[Any] = []
    opening = threading.Thread(target=lambda: again.append(store.open("r-1", header=header, catalog="{}")))
    opening.start()
    other = runs.open("r-2")  # by another store: its files do not wait at the gate
    assert other.append("routing", runs.record(0))[0] == 0
    opening.join(0.1)  # longer than a refusal takes: an opening that does not wait its turn has failed by then
    assert opening.is_alive()
    storage.gate.set()
    closing.join(30)
    opening.join(30)
    (log,) = again
    runs.opened.append(log)
    assert log.next_seq == 1
    assert [entry["clean"] for entry in runs.archive.header("r-1")["reopened"]] == [True]


def test_a_closed_run_names_no_owner(runs: Any) -> None:
    runs.open().close()
    assert runs.bytes("lock") == b""


# --- read meanwhile ------------------------------------------------------------------------------------------------


def test_an_artifact_is_read_without_opening_its_run(runs: Any) -> None:
    def artifacts(path: str) -> RunArtifacts:
        return RunArtifacts(path, describe=lambda data: MediaFacts("text/plain"))

    writer = DiskRunStore(runs.path, clock=runs.clock, artifacts=artifacts)
    log = writer.open("r-1", header={"catalog_revision": "sha256:0"}, catalog="{}")
    sha256 = log.artifacts().put(b"kept").sha256
    reader = DiskRunStore(runs.path, clock=runs.clock, artifacts=artifacts)
    before = runs.bytes("run.json")
    assert reader.read_artifact("r-1", sha256) == b"kept"
    with pytest.raises(RunInUse):
        reader.open("r-1", header={"catalog_revision": "sha256:0"}, catalog="{}")
    assert runs.bytes("run.json") == before
    log.close()
    before = runs.bytes("run.json")
    assert reader.read_artifact("r-1", sha256) == b"kept"
    assert runs.bytes("run.json") == before
    fake = MemoryRunStore(FakeRedactor())
    fake.open("r-1", header={}, catalog="{}").artifacts().put(b"kept")
    for store in (reader, fake):
        assert store.read_artifact("r-1", sha256) == b"kept"
        with pytest.raises(KeyError):
            store.read_artifact("r-1", "0" * 64)
        with pytest.raises(UnknownRun):
            store.read_artifact("none", sha256)
    with pytest.raises(UnknownRun):
        reader.read_artifact("../r-1", sha256)
    with pytest.raises(RequestError):
        reader.read_artifact("r-1", "../../run.json")


def test_show_names_the_workspace_that_the_header_states(runs: Any) -> None:
    store = runs.store()
    store.open("r-1", header={"catalog_revision": "sha256:0", "workspace": "/srv/project"}, catalog="{}").close()
    assert runs.archive.summary("r-1").workspace == "/srv/project"
    command = [sys.executable, "-m", "bundle_router", "runs", "show", "r-1", "--runs", str(runs.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert "workspace /srv/project" in done.stdout
