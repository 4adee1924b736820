"""Who is alive: a token for each process that writes keyed calls, whose life others can see.

A token is a file of `.writers` in the runs directory that its process holds a lock on. The kernel lets go of the lock
when the process ends, however it ends; so whoever gets it knows that the process is gone, and takes the file away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import secrets
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from bundle_router.adapters.run_log.directory import (
    Storage,
    failed,
    make_private,
    open_file,
    open_runs,
    translated,
    write_all,
)
from bundle_router.dataclass import dataclass

FOLDER: Final = ".writers"
LOCAL_FILE_SYSTEMS: Final = frozenset(
    (
        "apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs", "overlay", "ramfs", "reiserfs",
        "tmpfs", "ufs", "xfs", "zfs",
    )
)  # fmt: skip
"""File systems whose locks the kernel of this machine keeps."""
LOCAL_LOCKS: Final = frozenset(("nolock", "local_lock=flock", "local_lock=all", "nobrl"))
"""Options of NFS and CIFS with which the server is not told of locks: other machines do not see them."""
_LOOK: Final = """
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(7)
"""
_REFUSED: Final = 7
_PROBE_S: Final = 20


class WriterTokens:
    """The token of this process in one runs directory, and the life of others'."""

    def __init__(self, storage: Storage, runs: Path) -> None:
        self._storage = storage
        self._runs = runs
        self._folder = runs / FOLDER
        self._lock = threading.Lock()
        self._token = ""
        self._fd = -1
        self._pid = 0

    @property
    def token(self) -> str:
        """The token of this process; made, and its lock taken, at first use. Raises StorageError."""
        with self._lock:
            if not self._token or self._pid != os.getpid():
                self._take()
            return self._token

    def _take(self) -> None:
        token = secrets.token_hex(8)
        with translated("make", str(self._folder)):
            self._storage.close(open_runs(self._storage, self._runs, durable=False))
            make_private(self._storage, str(self._folder), None)
            beside = f".{token}"
            folder = self._storage.open(str(self._folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fd = open_file(self._storage, folder, beside, os.O_RDWR | os.O_EXCL)
                try:
                    self._storage.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    write_all(self._storage, fd, f"{os.getpid()} {platform.node()}\n".encode())
                    self._storage.replace(beside, token, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:  # who is interrupted keeps no descriptor, and no lock
                    self._storage.close(fd)
                    raise
            finally:
                self._storage.close(folder)
        self._token, self._fd, self._pid = token, fd, os.getpid()
        _HELD.add(fd)

    def is_alive(self, token: str) -> bool:
        """Return whether the process of the token may still be at work; False only when it is gone for certain."""
        if token == self._token and self._pid == os.getpid():
            return True
        if not token or not token.isalnum():
            return False
        path = self._folder / token
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        finally:
            os.close(fd)

    def forget_dead(self) -> None:
        """Take away the files of processes that were killed."""
        with contextlib.suppress(FileNotFoundError):
            for left in list(self._folder.iterdir()):
                self.is_alive(left.name)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the token."""
        with self._lock:
            if self._fd >= 0 and self._pid == os.getpid():
                with contextlib.suppress(OSError):
                    (self._folder / self._token).unlink()
                _HELD.discard(self._fd)
                with contextlib.suppress(OSError):
                    self._storage.close(self._fd)
            self._fd, self._token = -1, ""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What a folder lies on: the kind of file system, and the options it is mounted with."""

    kind: str
    options: frozenset[str] = frozenset()


def refuse_without_locks(storage: Storage, runs: Path, found: FileSystem | None = None) -> None:
    """Raise StorageError (`no_locks`) where the runs lie on a file system that does not honour locks. File systems of
    this machine do. Any other is tried: a lock is taken, and a second process must not get it; and it must not be
    mounted so that its locks hold on this machine alone, which no trial here can find out."""
    found = file_system_of(runs) if found is None else found
    if found is None or found.kind in LOCAL_FILE_SYSTEMS:
        return
    if found.options & LOCAL_LOCKS or not _are_honoured(storage, runs):
        options = ", ".join(sorted(found.options & LOCAL_LOCKS))
        kind = f"{found.kind}, mounted with {options}" if options else found.kind
        raise failed(
            "keep runs in",
            str(runs),
            "no_locks",
            f"its file system ({kind}) does not honour file locks, so two processes would write over each other",
            advice="keep runs on a disk of this machine, mount it with locks, or use a database: store='postgresql://…'",
        )


def _are_honoured(storage: Storage, runs: Path) -> bool:
    """Return whether a second process is refused a lock that is held."""
    path = runs / f".lock-probe-{secrets.token_hex(4)}"
    with translated("try the locks of", str(runs)):
        fd = storage.open(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        storage.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = [sys.executable, "-I", "-S", "-c", _LOOK, str(path)]
        done = subprocess.run(command, timeout=_PROBE_S, check=False, capture_output=True)
        return done.returncode == _REFUSED
    except OSError:
        return False
    finally:
        storage.close(fd)
        with contextlib.suppress(OSError):
            path.unlink()


def file_system_of(path: Path, table: Path = Path("/proc/self/mountinfo")) -> FileSystem | None:
    """Return what a folder lies on (Linux); None where the kernel does not say."""
    try:
        lines = table.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    best, found = -1, None
    wanted = path.resolve()
    for line in lines:
        fields = line.split()
        if len(fields) < 7 or "-" not in fields:
            continue
        mount = fields[4].encode("ascii", "backslashreplace").decode("unicode_escape", "replace")
        if wanted.is_relative_to(mount) and len(mount) >= best:
            kind, _, *options = fields[fields.index("-") + 1 :]
            best, found = len(mount), FileSystem(kind, frozenset(",".join(options).split(",")))
    return found


_HELD: set[int] = set()


def _let_go_in_child() -> None:
    """Close the locks in a forked child, which must not keep that of a parent that dies."""
    for fd in list(_HELD):
        with contextlib.suppress(OSError):
            os.close(fd)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
