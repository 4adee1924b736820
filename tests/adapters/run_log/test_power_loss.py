"""Power loss at any moment: every crash state opens to a run with all that was committed (F-06,
durability `disk`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bundle_router.adapters.run_log import POSIX
from bundle_router.adapters.run_log.directory import LOCK
from bundle_router.adapters.run_log.store import CREATING


@dataclass
class Inode:
    """A file as the kernel sees it (`data`) and as the disk is sure to have it (`durable`)."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class Disk:
    """What is on disk after power loss.

    Names become durable with the directory, bytes with the file.

    Renames and creations of one directory reach the disk in order, or not at all.
    """

    names: dict[str, Inode] = field(default_factory=dict)
    durable_names: dict[str, Inode] = field(default_factory=dict)

    def states(self, dice: random.Random) -> Iterator[dict[str, bytes]]:
        """States the power may leave: nothing but what was synced; all; a random part of each
        file's unsynced end.
        """
        for names in (self.durable_names, self.names):
            yield {name: inode.durable for name, inode in names.items()}
            for _ in range(3):
                yield {name: self._partly(inode, dice) for name, inode in names.items()}
        yield {name: bytes(inode.data) for name, inode in self.names.items()}

    def _partly(self, inode: Inode, dice: random.Random) -> bytes:
        if not bytes(inode.data).startswith(inode.durable):
            return dice.choice([inode.durable, bytes(inode.data)])
        return bytes(inode.data[: dice.randint(len(inode.durable), len(inode.data))])


class RecordingStorage:
    """The real calls, mirrored into a `Disk`; after each that changes it, `after` is called."""

    def __init__(self, run_id: str) -> None:
        self.disk = Disk()
        self.run_id = run_id
        self.fds: dict[int, str] = {}
        self.named = False
        self.check: Any = lambda: None

    def after(self) -> None:
        """Power may be lost now. Before the run has its name there is nothing to lose."""
        if self.named:
            self.check()

    def __getattr__(self, name: str) -> Any:
        return getattr(POSIX, name)

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = POSIX.open(path, flags, mode, dir_fd=dir_fd)
        name = Path(path).name
        self.fds[fd] = name
        if flags & os.O_CREAT and name != LOCK:
            if name not in self.disk.names or flags & os.O_TRUNC:
                self.disk.names[name] = Inode()
            self.after()
        return fd

    def _inode(self, fd: int) -> Inode | None:
        return self.disk.names.get(self.fds.get(fd, ""))

    def write(self, fd: int, data: bytes) -> int:
        inode = self._inode(fd)
        if inode is not None:
            inode.data += data
            self.after()
        return POSIX.write(fd, data)

    def ftruncate(self, fd: int, length: int) -> None:
        POSIX.ftruncate(fd, length)
        inode = self._inode(fd)
        if inode is not None:
            del inode.data[length:]

    def _sync(self, fd: int) -> None:
        inode = self._inode(fd)
        if inode is not None:
            inode.durable = bytes(inode.data)
        elif self.fds.get(fd) == self.run_id or self.fds.get(fd, "").startswith(CREATING):
            self.disk.durable_names = dict(self.disk.names)
        self.after()

    def fsync(self, fd: int) -> None:
        self._sync(fd)

    def fdatasync(self, fd: int) -> None:
        self._sync(fd)

    def replace(
        self,
        source: str,
        target: str,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        POSIX.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if source.startswith(CREATING):
            self.named = True
        elif source in self.disk.names:
            self.disk.names[target] = self.disk.names.pop(source)
        self.after()


def test_every_crash_state_keeps_what_was_committed_and_no_gap(make_runs: Any) -> None:
    runs, dice = make_runs(), random.Random(4)
    storage = RecordingStorage("r-1")
    committed: list[int] = []
    opened = False
    checked = 0

    def check() -> None:
        nonlocal checked
        for state in storage.disk.states(dice):
            after = make_runs()
            (after.path / "r-1").mkdir(mode=0o700, parents=True)
            after.path.chmod(0o700)
            for name, data in state.items():
                (after.path / "r-1" / name).write_bytes(data)
            log = after.open()
            numbers = after.numbers()
            assert numbers[: len(committed)] == committed
            assert numbers == list(range(len(numbers)))
            log.append("calls", after.record(-1))
            log.close()
            assert after.archive.verify("r-1").ok
            assert not opened or after.archive.header("r-1").catalogs
            checked += 1

    storage.check = check
    log = runs.open(storage=storage, durability="disk")
    opened = True
    steps = [
        ("routing", 1),
        ("calls", 0),
        ("calls", 0),
        ("routing", 0),
        ("calls", 1),
        ("routing", 1),
    ]
    for number, (file, sync) in enumerate(steps):
        log.append(file, runs.record(number))
        if sync:
            log.sync()
            committed = list(range(number + 1))
    log.close()
    assert checked > 100
