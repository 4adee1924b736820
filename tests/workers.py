"""Run tests in forks of the process that has collected them: what all of them import is imported and collected once.

1. The tests are cut into units, which one worker runs as a whole: a file, so that what its tests share is set up once.
2. A worker takes the next unit when it has finished one, and keeps only what lasts for a session.
3. Each worker sends its reports over a pipe; the process that forked it hands them to pytest, as if tests ran there.
4. A worker that ends before its time fails the run, and names the test it was at.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

FORKS = multiprocessing.get_context("fork")


class Units:
    """The units of a run, each taken by one of several processes."""

    def __init__(self, items: list[pytest.Item], unit_of: Callable[[pytest.Item], str]) -> None:
        self._units = [list(unit) for _, unit in groupby(items, unit_of)]
        self._taken = FORKS.Value("i", 0)

    def take(self) -> list[pytest.Item]:
        """Return the next unit, empty where there is none or the run is to stop."""
        with self._taken.get_lock():
            index = self._taken.value
            self._taken.value += 1
        return self._units[index] if index < len(self._units) else []

    def stop(self) -> None:
        """Have no worker begin another test."""
        self._taken.value = STOPPED

    @property
    def stopped(self) -> bool:
        return bool(self._taken.value >= STOPPED)


STOPPED = 1 << 30


@dataclass(eq=False)  # pytest hashes its plugins
class Sender:
    """The plugin of a worker that sends what it would report: what begins, then all that was reported of it."""

    config: pytest.Config
    connection: Connection[Any, Any]
    reports: list[dict[str, Any]] = field(default_factory=list)

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.connection.send(("begins", nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        self.connection.send(("reported", self.reports))
        self.reports.clear()


@dataclass(eq=False)
class Worker:
    """A forked process, as the one that forked it sees it."""

    process: ForkProcess
    connection: Connection[Any, Any]
    nodeid: str = "before its first test"
    location: tuple[str, int | None, str] = ("", None, "")
    failure: str | None = None
    """What failed at its end, empty where nothing did; None until then."""

    def read(self, config: pytest.Config) -> bool:
        """Hand the next message to pytest. Returns whether there was one."""
        hook = config.hook
        try:
            message = self.connection.recv()
        except EOFError:
            return False
        match message:
            case ("begins", nodeid, location):
                self.nodeid, self.location = nodeid, location
                hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
            case ("reported", reports):
                for data in reports:
                    report = hook.pytest_report_from_serializable(config=config, data=data)
                    hook.pytest_runtest_logreport(report=report)
                hook.pytest_runtest_logfinish(nodeid=self.nodeid, location=self.location)
            case ("ends", failure):
                self.failure = failure
        return True

    def end(self, config: pytest.Config) -> None:
        """Wait for the process, and report a failure where it ended otherwise than by having nothing to do."""
        self.process.join()
        if self.failure != "":
            reason = self.failure or f"the worker ended with {self.process.exitcode}"
            text = f"{reason}, last at {self.nodeid}"
            report = pytest.TestReport(self.nodeid, self.location, {}, "failed", text, "teardown")
            config.hook.pytest_runtest_logreport(report=report)


def run(session: pytest.Session, number: int, unit_of: Callable[[pytest.Item], str]) -> None:
    """Run the tests of a session in so many workers. Tests side by side of which `unit_of` says the same are a unit."""
    config, units = session.config, Units(session.items, unit_of)
    folder = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # as xdist does
    workers = []
    for index in range(number):
        receiving, sending = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=work, args=(session, units, sending, folder / f"worker-{index}"))
        process.start()
        sending.close()
        workers.append(Worker(process, receiving))
    while workers:
        ready = wait([worker.connection for worker in workers])
        for worker in [worker for worker in workers if worker.connection in ready]:
            if not worker.read(config):
                worker.end(config)
                workers.remove(worker)
        if session.shouldfail or session.shouldstop:
            units.stop()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def work(session: pytest.Session, units: Units, connection: Connection[Any, Any], folder: Path) -> None:
    """Run units in this process, a fork, until there is none."""
    config, plugins = session.config, session.config.pluginmanager
    folder.mkdir(0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    plugins.unregister(name="terminalreporter")
    captures: Any = plugins.getplugin("capturemanager")
    captures.stop_global_capturing()  # its files are those of the process that forked
    captures.start_global_capturing()
    captures.suspend_global_capture(in_=True)
    plugins.register(Sender(config, connection))
    failure = ""
    try:
        while unit := units.take():
            for item, following in zip(unit, [*unit[1:], session], strict=True):  # before a session: tear the rest down
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail or session.shouldstop or units.stopped:
                    units.stop()
                    break
        plugins.unregister(name="tmpdir")  # it would delete folders of former runs, which the first process does
        config.hook.pytest_sessionfinish(session=session, exitstatus=0)
        config._ensure_unconfigure()
    except BaseException as error:  # noqa: BLE001 - whatever ends a worker fails the run
        failure = f"{type(error).__name__}: {error}"
    connection.send(("ends", failure))
