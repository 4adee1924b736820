"""What the fault scripts share: a run to write, a child that writes it and says what was
acknowledged, a verdict.

Each script is run as `python tests/faults/NAME.py [--quick]`, ends by itself, on a quiet machine
within a minute, prints what it did, and exits non-zero when something that was promised did not
hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bundle_router.adapters.archive import Archive  # noqa: E402 (the repository has to be on the path first)
from bundle_router.adapters.run_log import DiskRunLog, DiskRunStore  # noqa: E402
from bundle_router.core.catalog import Durability  # noqa: E402
from bundle_router.core.records.chain import FILES, BadLine, unseal  # noqa: E402
from bundle_router.core.records.run_header import RunHeader  # noqa: E402
from bundle_router.core.values.canonical import digest, time_text  # noqa: E402
from bundle_router.engine.upstreams import Servers  # noqa: E402
from bundle_router.ports import ArtifactStore  # noqa: E402

Servers.discover.__defaults__ = (
    60.0,
)  # five seconds may be too short for a first list on a busy machine
CATALOG = "{}"
DEADLINE_S = 400.0


class WallClock:
    """The time of day."""

    def time_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class Ahead:
    """How far ahead the clocks of all event loops are: a deadline that no slow machine misses is
    not waited for.
    """

    seconds = 0.0

    @staticmethod
    def begin() -> None:
        asyncio.BaseEventLoop.time = lambda _: time.monotonic() + Ahead.seconds  # type: ignore[method-assign,assignment]


def no_artifacts(path: str) -> ArtifactStore:
    raise AssertionError(f"no artifacts here: {path}")


def open_run(runs: Path, *, durability: Durability = "process") -> DiskRunLog:
    store = DiskRunStore(runs, clock=WallClock(), artifacts=no_artifacts, durability=durability)
    log = store.create(
        "r-1", header=RunHeader({"catalog_revision": digest(CATALOG)}), catalog=CATALOG
    )
    for _ in log.news():
        pass
    return log


def record(number: int, size: int) -> dict[str, Any]:
    return {
        "type": "route.decided",
        "time": time_text(WallClock().time_ns()),
        "number": number,
        "filler": "x" * size,
    }


class Writer:
    """A forked child that opens the run, appends `record(first)`, `record(first + 1)` …, and after
    each tells its number over a socket, as a service acknowledges to a client. It never stops by
    itself, but waits for who reads when some dozens of numbers are unread: on a busy machine it
    would else write thousands that all have to be verified.
    """

    def __init__(self, runs: Path, first: int, size: Callable[[int], int]) -> None:
        ends = socket.socketpair()
        ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
        read_end, write_end = (end.detach() for end in ends)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(read_end)
                self._write(runs, first, size, write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        self.acknowledged: list[int] = []
        self._pipe: IO[bytes] = os.fdopen(read_end, "rb")

    def _write(self, runs: Path, first: int, size: Callable[[int], int], pipe: int) -> None:
        log = open_run(runs)
        os.write(pipe, b"ready\n")
        number = first
        while True:
            log.append("routing" if number % 3 else "calls", record(number, size(number)))
            os.write(pipe, b"%d\n" % number)
            number += 1

    def ready(self) -> None:
        assert self._pipe.readline() == b"ready\n", "the writer could not open its run"

    def read(self, count: int) -> None:
        """Waits for `count` more acknowledgements."""
        for _ in range(count):
            self.acknowledged.append(int(self._pipe.readline()))

    def kill(self) -> None:
        """SIGKILL, and every acknowledgement that was sent before it arrived."""
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.acknowledged += [int(line) for line in self._pipe if line.endswith(b"\n")]
        self._pipe.close()


def unreadable_lines(runs: Path) -> Iterator[tuple[str, int, bool]]:
    """Lines of the run that are no records: file, line, and whether it is a torn end."""
    for name in FILES.values():
        lines = (runs / "r-1" / name).read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            try:
                unseal(line if line.endswith(b"\n") else b"")
            except BadLine:
                yield name, number, number == len(lines) and not line.endswith(b"\n")


def numbers(runs: Path) -> list[int]:
    return [found["number"] for found in Archive(runs).records("r-1")]


def quick() -> bool:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a few rounds, for the test suite")
    return bool(parser.parse_args().quick)


class Verdict:
    """Collects what did not hold, and ends the script."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self._started = time.monotonic()

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)

    @property
    def time_is_up(self) -> bool:
        return time.monotonic() - self._started > DEADLINE_S

    def end(self, **summary: Any) -> None:
        seconds = round(time.monotonic() - self._started, 1)
        sys.stdout.write(
            json.dumps({**summary, "broken": self.broken[:20], "seconds": seconds}) + "\n"
        )
        sys.exit(1 if self.broken else 0)
