"""What workflow engines do, with real processes over each store (E-01 to E-05, E-10): retry, share,
stop, die.

`BUNDLE_ROUTER_LONG=1`: 8 processes, 10,000 turns, 200 points at which a worker is stopped or
killed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from bundle_router.engine.made_calls import UNKNOWN_TEXT
from bundle_router.wiring.stores import open_archive

LONG: Final = bool(os.environ.get("BUNDLE_ROUTER_LONG"))
SEED: Final = int(os.environ.get("BUNDLE_ROUTER_SEED", "1"))
ROOT: Final = Path(__file__).parent.parent.parent
POSTGRESQL: Final = os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL", "").replace("+psycopg", "", 1)
NO_SERVER: Final = "BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one"
DATABASE: Final = pytest.param(
    "database", marks=pytest.mark.skipif(not POSTGRESQL, reason=NO_SERVER)
)
PROCESSES: Final = 8 if LONG else 3
BOUND_S: Final = 30.0
"""How long anything may take beside a worker that is stopped: the store's bound, and a slow
machine.
"""
CONFIG: Final = {
    "servers": '[servers.s]\ntransport = "local"\ntrust = "trusted"\nidempotent = ["again"]\n',
    "bundles": (
        '[bundles.both]\ndescription = "Both."\ntools = ["s.once", "s.again"]\neffects ='
        ' ["write"]\n'
    ),
    "routes": '[[routes]]\nname = "all"\nbundles = ["both"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["bundle:*"]\n',
}

_numbers = itertools.count()


class Process:
    """A worker, and what it is asked and says."""

    def __init__(self, pipe: Path) -> None:
        self._out = Path(f"{pipe}.out").open(encoding="utf-8")  # noqa: SIM115 - until it is killed
        self.pid = int(self._out.readline())
        self._in = Path(f"{pipe}.in").open("w", buffering=1, encoding="utf-8")  # noqa: SIM115

    def ask(self, do: str, **more: Any) -> None:
        self._in.write(json.dumps({"do": do, **more}) + "\n")

    def hear(self) -> Any:
        """What it says; None where it is dead."""
        line = self._out.readline()
        return json.loads(line) if line.endswith("\n") else None

    def do(self, do: str, **more: Any) -> Any:
        self.ask(do, **more)
        return self.hear()

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, and see that it ended."""
        if self._out.closed:
            return
        self.send(signal.SIGKILL)
        self._out.read()
        self._out.close()
        with suppress(BrokenPipeError):
            self._in.close()


class Site:
    """One place of runs, the workers over it, and the effects they had."""

    def __init__(self, folder: Path, store: str, starter: subprocess.Popen[str]) -> None:
        self.folder, self.store, self._starter = folder, store, starter
        self.processes: list[Process] = []
        (folder / "config").mkdir()
        for name, text in CONFIG.items():
            (folder / "config" / f"{name}.toml").write_text(text)

    def begin(self, count: int = 1) -> list[Process]:
        assert self._starter.stdin is not None
        pipes = []
        for _ in range(count):
            pipes.append(self.folder / f"pipe-{next(_numbers)}")
            for end in ("in", "out"):
                os.mkfifo(f"{pipes[-1]}.{end}")
            words = (
                self.folder / "config",
                self.folder / "runs",
                self.store,
                self.folder / "effects",
                pipes[-1],
            )
            self._starter.stdin.write(" ".join(map(str, words)) + "\n")
            self._starter.stdin.flush()
        begun = [Process(pipe) for pipe in pipes]
        self.processes += begun
        return begun

    def effects(self) -> Counter[str]:
        path = self.folder / "effects"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def records(self, type_: str = "", run_id: str = "r") -> list[dict[str, Any]]:
        """The records of a run, whose chain has to be whole."""
        archive = open_archive(self.folder / "runs" if self.store == "-" else self.store)
        report = archive.verify(run_id)
        assert report.ok, report
        records = list(archive.records(run_id))
        assert [record["seq"] for record in records] == list(range(len(records)))
        return [record for record in records if record["type"] == type_ or not type_]

    def end(self) -> None:
        for process in self.processes:
            process.send(signal.SIGCONT)
            process.kill()


@pytest.fixture(scope="module")
def starter() -> Iterator[subprocess.Popen[str]]:
    """What starts workers, with all loaded."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "router"), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, str(Path(__file__).with_name("worker.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=env) as started:
        yield started


@pytest.fixture(params=["directory", DATABASE])
def site(request: pytest.FixtureRequest, starter: subprocess.Popen[str]) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as folder:
        if request.param == "directory":
            made = Site(Path(folder), "-", starter)
            yield made
            made.end()
            return
        import psycopg

        name = f"experiments_{os.getpid()}"
        with psycopg.connect(POSTGRESQL, autocommit=True) as connection:
            connection.execute(f"create schema {name}")
            url = f"{POSTGRESQL}{'&' if '?' in POSTGRESQL else '?'}options=-csearch_path%3D{name}"
            made = Site(Path(folder), url, starter)
            try:
                yield made
            finally:
                made.end()
                connection.execute(f"drop schema {name} cascade")


def step(name: str = "s", **more: Any) -> dict[str, Any]:
    return {"run_id": "r", "workflow": "w", "role": "wide", "step": name, **more}


def everywhere(processes: list[Process], do: str, **more: Any) -> list[Any]:
    """Ask all of them at once."""
    for process in processes:
        process.ask(do, **more)
    return [process.hear() for process in processes]


def test_one_key_from_many_processes_is_one_decision_and_one_call(site: Site) -> None:
    """E-01, E-02, E-03."""
    workers = site.begin(PROCESSES)
    said = everywhere(
        workers, "route_often", step=step(key="k"), count=1_000 // PROCESSES if LONG else 20
    )
    (decision,) = site.records("route.decided")
    assert said == [[decision["decision_id"]]] * PROCESSES
    for tool in ("s.once", "s.again"):
        heard = everywhere(workers, "call", tool=tool, key=tool)
        assert {(one["outcome"], one["text"], one["id"]) for one in heard} == {
            ("ok", f"did {tool}", heard[0]["id"])
        }
        assert sorted(bool(one["from"]) for one in heard) == [False] + [True] * (PROCESSES - 1)
    assert site.effects() == {"s.once": 1, "s.again": 1}
    refused = [
        workers[0].do("route", step=step("other", key="k")),
        workers[1].do("call", tool="s.again", key="s.once"),
        workers[2].do("call", tool="s.once", key="s.once", argument="other"),
    ]
    words = ("with other values of step", "with another tool", "with other arguments")
    for one, said_so in zip(refused, words, strict=True):
        assert (one["error"], said_so in one["message"]) == ("KeyConflict", True), one
    assert len(site.records()) == 5
    assert site.effects() == {"s.once": 1, "s.again": 1}


def test_a_worker_killed_within_a_call_leaves_one_effect_or_the_word_that_nobody_knows(
    site: Site,
) -> None:
    """E-02."""
    told = [(tool, dies) for tool in ("s.once", "s.again") for dies in ("before", "after")]
    *dying, one, other = site.begin(len(told) + 2)
    one.do("route", step=step())
    for process, (tool, dies) in zip(dying, told, strict=True):
        key = f"{tool}-{dies}"
        assert process.do("call", tool=tool, key=key, dies=dies) is None
        heard = everywhere([one, other], "call", tool=tool, key=key)
        outcome, text = ("unknown", UNKNOWN_TEXT) if tool == "s.once" else ("ok", f"did {key}")
        assert {(said["outcome"], said["text"]) for said in heard} == {(outcome, text)}
    assert site.effects() == {"s.once-after": 1, "s.again-before": 1, "s.again-after": 2}
    ends = Counter(record["outcome"] for record in site.records("call.finished"))
    assert ends == {"unknown": 2, "ok": 2}, "whoever found out first recorded it, once"


def test_two_processes_take_turns_on_one_run(site: Site) -> None:
    """E-04. What a turn costs is printed, and is flat where `run.json` is."""
    one, other = site.begin(2)
    count = 10_000 if LONG else 60
    header = site.folder / "runs" / "r" / "run.json"
    sizes, took = set(), []
    for turn in range(count):
        said = (one, other)[turn % 2].do("route", step=step(f"s{turn % 7}"))
        assert said.get("seq") == turn, said
        took.append(said["us"])
        if site.store == "-":
            sizes.add(header.stat().st_size)
    assert len(site.records("route.decided")) == count
    assert len(sizes) <= 1
    tenth = count // 10
    first, last = (statistics.median(part) for part in (took[tenth : 2 * tenth], took[-tenth:]))
    print(
        f"{count} turns: median {statistics.median(took):.0f} us; second tenth {first:.0f}, last"
        f" tenth {last:.0f}"
    )


def test_others_go_on_beside_a_worker_that_is_stopped_and_nothing_is_lost_when_it_goes_on(
    site: Site,
) -> None:
    """E-05, and the end of a run that a stopped worker has open."""
    dice = random.Random(SEED)
    stopped, living = site.begin(2)
    stopped.do("route", step=step(key="first"))
    acknowledged: dict[str, str] = {}
    for point in range(200 if LONG else 6):
        stopped.ask("workflow", steps=2 + point)
        time.sleep(dice.uniform(0, 0.02))
        stopped.send(signal.SIGSTOP)
        said = living.do("route", step=step(f"beside-{point}", key=f"beside-{point}"))
        if "error" in said:
            assert (said["error"], said["pid"]) == ("RunBusy", stopped.pid), said
        else:
            acknowledged[f"beside-{point}"] = said["id"]
            end = living.do("close")
            assert end.get("others") == [stopped.pid] or end.get("error") == "RunBusy", end
        stopped.send(signal.SIGCONT)
        for said in stopped.hear():
            if "seq" in said:
                acknowledged[f"step-{said['id']}"] = said["id"]
            else:
                assert said["outcome"] == "ok", said
    there = {record["decision_id"] for record in site.records("route.decided")}
    assert set(acknowledged.values()) <= there
    assert set(site.effects().values()) == {1}


def test_a_workflow_is_carried_on_elsewhere_wherever_its_worker_is_killed(site: Site) -> None:
    """E-10, without an engine's own machinery: every decision once, every effect once or known to
    be unknown.
    """
    dice, steps = random.Random(SEED), 4
    waiting: list[Process] = []
    for _ in range(200 if LONG else 4):
        waiting += site.begin(2 - len(waiting)) if len(waiting) < 2 else []
        worker = waiting.pop(0)
        worker.ask("workflow", steps=steps)
        time.sleep(dice.uniform(0, 0.3))
        worker.kill()
    worker = (waiting or site.begin())[0]
    said = worker.do("workflow", steps=steps)
    assert isinstance(said, list), said
    assert {one["outcome"] for one in said if "outcome" in one} <= {"ok", "unknown"}
    keys = Counter(record["key"] for record in site.records("route.decided"))
    assert keys == {f"step-{number}": 1 for number in range(steps)}
    for number in range(steps):
        assert site.effects()[f"s.once-{number}"] <= 1
        assert site.effects()[f"s.again-{number}"] >= 1
    once_more = worker.do("workflow", steps=steps)
    assert [one["id"] for one in once_more] == [one["id"] for one in said]
    assert all(one["from"] for one in once_more if "outcome" in one)
