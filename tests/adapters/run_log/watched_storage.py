"""A storage that notes what a log asks of the operating system, or answers; what other programs do
to a file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundle_router.adapters.run_log import POSIX, DiskRunLog

ROUTING, CALLS = "routing.jsonl", "tool-calls.jsonl"
SYNCS = ("write", "pwrite", "fdatasync", "fsync", "ftruncate", "replace")


class WatchedStorage:
    """The real calls, with the files they were made on.

    `answers` has what is done instead, once, by call and file.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.reads: list[int] = []
        self.open_files: dict[int, str] = {}
        self.answers: dict[tuple[str, str], list[Callable[[], Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(POSIX, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            file = (
                self.open_files.get(args[0], "?")
                if isinstance(args[0], int)
                else Path(args[0]).name
            )
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


def moved(path: Path) -> None:
    path.rename(path.with_suffix(".away"))


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".away"))
    path.symlink_to(path.with_suffix(".away"))


def copied(path: Path) -> None:
    text = path.read_bytes()
    path.rename(path.with_suffix(".away"))
    path.write_bytes(text)
