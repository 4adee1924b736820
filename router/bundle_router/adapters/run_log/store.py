"""The runs directory: begins runs and opens existing ones."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import platform
import secrets
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bundle_router.adapters.descriptors import ClosedOnError, Opened
from bundle_router.adapters.run_log.directory import (
    DIRECTORY,
    LOCK,
    POSIX,
    CatalogFiles,
    Storage,
    failed,
    identity,
    make_private,
    open_file,
    open_run,
    open_runs,
    read_header,
    translate_errors,
    write_all,
    write_header,
)
from bundle_router.adapters.run_log.log import DiskRunLog, RunLogSetting
from bundle_router.core.catalog import Durability
from bundle_router.core.records.chain import FILES
from bundle_router.core.records.run_header import FIRST_CATALOG, RunHeader, lost_header
from bundle_router.core.values import RUN_ID
from bundle_router.core.values.canonical import time_text
from bundle_router.core.values.words import RUN_ID_ADVICE, not_a_run_id
from bundle_router.errors import RequestError, StorageError
from bundle_router.ports import ArtifactStore, Clock

CREATING: Final = ".creating-"
"""Prefix of a run directory that is being created.

It is renamed when complete; no run id starts with a dot.
"""
NONCE_BYTES: Final = 16


class DiskRunStore:
    """The runs of one directory.

    `durability`: `process` survives kill -9; `disk` also power loss, for records that `sync()`
    returned for. `artifacts` makes a run's artifact store from its path. Nothing is created before
    the first `create`.
    """

    blocks: Final = False

    def __init__(
        self,
        runs: str | Path,
        *,
        clock: Clock,
        artifacts: Callable[[str], ArtifactStore],
        durability: Durability = "process",
        storage: Storage = POSIX,
    ) -> None:
        self._runs = Path(runs).absolute()
        self.place = str(self._runs)
        """The folder, for `open_archive`."""
        catalogs = CatalogFiles(storage, self._runs, durable=durability == "disk")
        self._setting = RunLogSetting(storage, clock, durability, artifacts, catalogs)
        self._storage = storage
        self._tokens = WriterTokens(storage, self._runs)
        self._numbers = itertools.count()
        self._checked = False
        self._checking = threading.Lock()

    @property
    def writer(self) -> str:
        """Token of this process, by which others can tell that it is alive.

        Made on first use. Raises StorageError.
        """
        if not self._checked:
            self._check_place()
        return self._tokens.token

    def is_alive(self, writer: str) -> bool:
        """Return whether the token's process may still be running; False only if it is certainly
        gone.
        """
        return self._tokens.is_alive(writer)

    def check(self) -> None:
        """Check that the directory is writable, by writing a file. Raises StorageError."""
        self._check_place()
        probe = self._runs / f".probe-{secrets.token_hex(8)}"
        with translate_errors("write in", str(self._runs)):
            fd = self._storage.open(
                str(probe), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            try:
                write_all(self._storage, fd, b"\n")
            finally:
                self._storage.close(fd)
                probe.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the token."""
        self._tokens.close()

    def open(self, run_id: str) -> DiskRunLog | None:
        """Return an existing run, to read and append to; None if there is none.

        Writes and locks nothing.

        Raises CorruptRun, StorageError.
        """
        if not RUN_ID.fullmatch(run_id):
            return None
        path = self._runs / run_id
        try:
            folder = open_run(self._storage, str(path))
        except FileNotFoundError:
            return None
        with Opened(folder, self._storage.close):
            header = read_header(self._storage, folder, path)
            with translate_errors("look at", str(path)):
                folder_identity = identity(self._storage.fstat(folder))
                if header is None:
                    header = self._lost_header(folder, path, folder_identity)
        if header is None:
            return None
        return DiskRunLog(self._setting, path, header, folder_identity)

    def _lost_header(self, folder: int, path: Path, found: tuple[int, int]) -> RunHeader | None:
        """Return a header rebuilt from the records, for a run that lost `run.json` to power loss;
        None for a folder without records, which is no run.
        """
        size = 0
        for name in FILES.values():
            with contextlib.suppress(FileNotFoundError):
                size += self._storage.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        if not size:
            return None
        header = lost_header(path.name, time_text(self._setting.clock.time_ns()), ())
        return lost_header(
            path.name, header.restored, DiskRunLog(self._setting, path, header, found).news()
        )

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> DiskRunLog:
        """Begin a run, or open it if it exists.

        The run is completed in a temporary folder and then renamed: a creation that failed, or was
        killed, leaves no run.

        `header` goes into `run.json` and names at least `catalog_revision`; `catalog` is the text
        of that revision. Raises RequestError for an invalid id, CorruptRun, StorageError.
        """
        if not RUN_ID.fullmatch(run_id):
            raise RequestError(not_a_run_id(run_id), advice=RUN_ID_ADVICE)
        with translate_errors("make the run directory", str(self._runs / run_id)):
            return self._create_run(run_id, header, catalog)

    def _create_run(self, run_id: str, header: RunHeader, catalog: str) -> DiskRunLog:
        self._check_place()
        while True:
            log = None
            try:
                if (log := self.open(run_id)) is not None:
                    log.begin_writing()
                    return log
            except (
                BaseException
            ) as trouble:  # an interrupted caller must release descriptors and locks too
                if log is not None:
                    log.release()
                if not (isinstance(trouble, StorageError) and trouble.kind == "deleted"):
                    raise
                continue  # the run was pruned before we had its lock: begin a new one
            self._make(run_id, header, catalog)

    def _check_place(self) -> None:
        """Create the runs directory, refuse one that is not private or has no locks, and delete
        what killed creations left in it.
        """
        fd = open_runs(self._storage, self._runs, durable=self._setting.durable)
        self._storage.close(fd)
        with self._checking:
            if self._checked:
                return
            refuse_without_locks(self._storage, self._runs)
            for leftover in self._runs.glob(f"{CREATING}*"):
                token = leftover.name.removeprefix(CREATING).partition("-")[0]
                if not self._tokens.is_alive(token):
                    shutil.rmtree(leftover, ignore_errors=True)
            self._tokens.forget_dead()
            self._checked = True

    def _make(self, run_id: str, header: RunHeader, catalog: str) -> None:
        path = self._runs / run_id
        durable = self._setting.durable
        storage = self._storage
        temporary = f"{CREATING}{self._tokens.token}-{next(self._numbers)}"
        opened = time_text(self._setting.clock.time_ns())
        nonce = secrets.token_hex(NONCE_BYTES)
        first_header = header.begin(
            run_id, opened=opened, nonce=nonce, durability=self._setting.durability
        )
        runs_fd = open_runs(storage, self._runs, durable=durable)
        try:
            with translate_errors("make the run directory", str(path)):
                make_private(storage, temporary, runs_fd)
                self._fill(runs_fd, path, temporary, first_header, catalog)
                self._name(runs_fd, temporary, run_id)
        finally:
            storage.close(runs_fd)
            shutil.rmtree(self._runs / temporary, ignore_errors=True)

    def _fill(self, runs_fd: int, path: Path, name: str, header: RunHeader, catalog: str) -> None:
        storage = self._storage
        durable = self._setting.durable
        with Opened(
            storage.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=runs_fd), storage.close
        ) as folder:
            for file in (*FILES.values(), LOCK):
                storage.close(open_file(storage, folder, file, os.O_WRONLY))
            self._setting.catalogs.put(folder, FIRST_CATALOG, catalog)
            write_header(storage, folder, path, header, durable=durable)
            if durable:
                storage.fsync(folder)

    def _name(self, runs_fd: int, temporary: str, run_id: str) -> None:
        """Rename a completed run to its id, unless another process was first."""
        try:
            self._storage.replace(temporary, run_id, src_dir_fd=runs_fd, dst_dir_fd=runs_fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            with contextlib.suppress(FileNotFoundError):  # it was moved or pruned meanwhile
                self._move_leftover(runs_fd, run_id)
            return
        if self._setting.durable:
            self._storage.fsync(runs_fd)

    def _move_leftover(self, runs_fd: int, run_id: str) -> None:
        """Delete a folder of this name that is no run (a failed creation of an earlier version).

        It is locked, so that nobody takes the run for it that another process puts in its place.
        """
        with Opened(open_run(self._storage, str(self._runs / run_id))) as folder:
            self._storage.flock(folder, fcntl.LOCK_EX)
            status = self._storage.stat(run_id, dir_fd=runs_fd, follow_symlinks=False)
            if (
                identity(status) == identity(self._storage.fstat(folder))
                and self.open(run_id) is None
            ):
                leftover = f"{CREATING}0-{secrets.token_hex(4)}"
                self._storage.replace(run_id, leftover, src_dir_fd=runs_fd, dst_dir_fd=runs_fd)
                shutil.rmtree(self._runs / leftover, ignore_errors=True)


# --- who is alive ---------------------------------------------------------------------------------
# Each process that writes keyed calls has a token: a file in `.writers` of the runs folder, on
# which it holds a lock. The kernel releases the lock when the process ends, in whatever way. So a
# process that gets the lock knows that the owner is gone, and deletes the file.


FOLDER: Final = ".writers"
LOCAL_FILE_SYSTEMS: Final = frozenset(
    (
        "apfs",
        "bcachefs",
        "btrfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "hfs",
        "jfs",
        "overlay",
        "ramfs",
        "reiserfs",
        "tmpfs",
        "ufs",
        "xfs",
        "zfs",
    )
)
"""File systems whose locks this machine's kernel keeps."""
LOCAL_LOCKS: Final = frozenset(("nolock", "local_lock=flock", "local_lock=all", "nobrl"))
"""Mount options of NFS and CIFS that keep locks from the server, so that other machines do not see
them.
"""
_LOOK: Final = """
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(7)
"""
_REFUSED: Final = 7
_PROBE_S: Final = 20
_PROBE_BYTES: Final = 65_536


class WriterTokens:
    """This process's token in one runs directory, and whether the processes of other tokens are
    alive.
    """

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
        """This process's token; created, with its lock taken, on first use. Raises StorageError."""
        with self._lock:
            if not self._token or self._pid != os.getpid():
                self._take()
            return self._token

    def _take(self) -> None:
        token = secrets.token_hex(8)
        storage = self._storage
        with translate_errors("make", str(self._folder)):
            storage.close(open_runs(storage, self._runs, durable=False))
            make_private(storage, str(self._folder), None)
            temporary = f".{token}"
            with Opened(
                storage.open(str(self._folder), DIRECTORY | os.O_NOFOLLOW), storage.close
            ) as folder:
                fd = open_file(storage, folder, temporary, os.O_RDWR | os.O_EXCL)
                with ClosedOnError(fd, storage.close):
                    storage.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    write_all(storage, fd, f"{os.getpid()} {platform.node()}\n".encode())
                    storage.replace(temporary, token, src_dir_fd=folder, dst_dir_fd=folder)
        self._token = token
        self._fd = fd
        self._pid = os.getpid()
        _HELD.add(fd)

    def is_alive(self, token: str) -> bool:
        """Return whether the token's process may still be running; False only if it is certainly
        gone.
        """
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
        with Opened(fd):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
            with contextlib.suppress(OSError):
                path.unlink()
            return False

    def forget_dead(self) -> None:
        """Delete the token files of killed processes."""
        with contextlib.suppress(FileNotFoundError):
            for presence in list(self._folder.iterdir()):
                self.is_alive(presence.name)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Release the token."""
        with self._lock:
            if self._fd >= 0 and self._pid == os.getpid():
                with contextlib.suppress(OSError):
                    (self._folder / self._token).unlink()
                _HELD.discard(self._fd)
                with contextlib.suppress(OSError):
                    self._storage.close(self._fd)
            self._fd = -1
            self._token = ""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """File system of a folder: its type and mount options."""

    kind: str
    options: frozenset[str] = frozenset()


def refuse_without_locks(
    storage: Storage, runs: Path, file_system: FileSystem | None = None
) -> None:
    """Raise StorageError (`no_locks`) if the runs lie on a file system that does not honour locks.

    Local file systems do. Any other is tested: a second process must not get a lock that is held.
    Mount options that keep locks local to this machine are refused too, because no test here can
    find them out.
    """
    if file_system is None:
        file_system = file_system_of(runs)
    if file_system is None or file_system.kind in LOCAL_FILE_SYSTEMS:
        return
    local_locks = file_system.options & LOCAL_LOCKS
    if not local_locks and _are_honoured(storage, runs):
        return
    kind = file_system.kind
    if local_locks:
        kind += f", mounted with {', '.join(sorted(local_locks))}"
    raise failed(
        "keep runs in",
        str(runs),
        "no_locks",
        f"its file system ({kind}) does not honour file locks, so two processes would write"
        " over each other",
        advice=(
            "keep runs on a disk of this machine, mount it with locks, or use a database:"
            " store='postgresql://…'"
        ),
    )


def _are_honoured(storage: Storage, runs: Path) -> bool:
    """Return whether a second process is refused a lock that is held."""
    from bundle_router.adapters.processes.starting import Command, run_to_end

    path = runs / f".lock-probe-{secrets.token_hex(4)}"
    with translate_errors("try the locks of", str(runs)):
        fd = storage.open(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        storage.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = Command((sys.executable, "-I", "-S", "-c", _LOOK, str(path)), os.environ)
        return run_to_end(command, timeout_s=_PROBE_S, max_bytes=_PROBE_BYTES).status == _REFUSED
    except OSError:
        return False
    finally:
        storage.close(fd)
        with contextlib.suppress(OSError):
            path.unlink()


def file_system_of(path: Path, table: Path = Path("/proc/self/mountinfo")) -> FileSystem | None:
    """Return the file system of a folder (Linux); None if the kernel does not say."""
    try:
        lines = table.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    best = -1
    file_system = None
    target = path.resolve()
    for line in lines:
        fields = line.split()
        if len(fields) < 7 or "-" not in fields:
            continue
        mount = fields[4].encode("ascii", "backslashreplace").decode("unicode_escape", "replace")
        if target.is_relative_to(mount) and len(mount) >= best:
            kind, _, *options = fields[fields.index("-") + 1 :]
            best = len(mount)
            file_system = FileSystem(kind, frozenset(",".join(options).split(",")))
    return file_system


_HELD: set[int] = set()
"""The descriptors of writers' tokens of this process: for its one handler of forks, as in `log`."""


def _let_go_in_child() -> None:
    """Close the locks in a forked child, so that they end with the parent."""
    for fd in list(_HELD):
        with contextlib.suppress(OSError):
            os.close(fd)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
