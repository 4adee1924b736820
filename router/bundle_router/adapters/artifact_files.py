"""The artifacts of one run: bytes in files named by their digest, `artifacts/sha256/ab/abcdef…`.

Rules:
1. Only the digest of the bytes determines the path. A digest to read must be 64 lower-case hex
   digits.
2. A file is written atomically: to a temporary file, then renamed. Existing content is not written
   again.
3. No symbolic link is followed: every directory is opened relative to the one above it.
4. Bytes that are read are checked against their name before they are returned.
5. Directories have mode 0700, files 0600. A directory of another user, or one that others may
   enter, is refused.
6. Equal bytes are stored once for a folder of runs: each file is a hard link to the one in
   `.artifacts` beside the runs. A file there without another link belongs to no run, and `free`
   deletes it. A run can be copied whole. Without hard links, each run has its own copy. The runs'
   catalogs are shared in the same way.

The type, name and origin of a file are in the run's records, because equal bytes may have several
of each. No descriptor is held between calls, so a store needs no closing. Several threads may call
`put`.

`ScratchFolder` holds read-only copies that one call hands to its tool, in a new folder with an
unguessable name that is private to this user. Their names come from the router, never from a tool
or a server.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from bundle_router.adapters.descriptors import Opened
from bundle_router.core.values.artifacts import SHA256, ArtifactFile, check_digest, check_size
from bundle_router.errors import CorruptRun, StorageError, storage_error

MAX_BYTES: Final = 64 * 1024 * 1024
POOL: Final = ".artifacts"
"""Folder of shared artifacts, beside the runs; no run id starts with a dot."""

_FOLDER: Final = re.compile(r"[0-9a-f]{2}")
_BESIDE: Final = ".new-"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
)  # a FIFO in the way must not block us


class ArtifactReader:
    """Reads the artifacts of a run that any process may be writing.

    Needs no lock, because files never change.
    """

    def __init__(self, run_dir: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> None:
        self._run_dir = os.fspath(run_dir)
        self._max_bytes = max_bytes

    def get(self, sha256: str) -> bytes:
        """Return the bytes.

        Raises RequestError for an invalid digest, KeyError if absent, CorruptRun if they do not
        match the digest, StorageError if they can't be read.
        """
        check_digest(sha256)
        try:
            with self._folder(sha256[:2]) as folder:
                fd = self._open(sha256, _READ, folder)
        except FileNotFoundError:
            raise KeyError(sha256) from None
        except OSError as error:
            raise storage_error(
                f"can't read artifact {sha256} in {self._run_dir}", error
            ) from error
        with Opened(fd):
            data = self._read(fd, sha256)
        if hashlib.sha256(data).hexdigest() != sha256:
            self._raise_corrupt(sha256, "its bytes do not have this digest")
        return data

    def iter(self) -> Iterator[ArtifactFile]:
        """Yield every artifact, ordered by digest.

        Skips unfinished writes and foreign files, which `problems` reports.
        """
        for name, found in self._entries():
            if SHA256.fullmatch(name.rpartition("/")[2]) and stat.S_ISREG(found.st_mode):
                yield ArtifactFile(name.rpartition("/")[2], found.st_size)

    def problems(self) -> Iterator[str]:
        """Yield the store's errors: changed bytes, links, foreign files. Reads every artifact."""
        for path, found in self._entries():
            folder, _, name = path.rpartition("/")
            if name.startswith(_BESIDE):
                yield (
                    f"artifacts/sha256/{path}: left by a write that did not finish; it can be"
                    " deleted"
                )
            elif (
                not SHA256.fullmatch(name) or name[:2] != folder or not stat.S_ISREG(found.st_mode)
            ):
                yield f"artifacts/sha256/{path}: not an artifact"
            else:
                try:
                    self.get(name)
                except CorruptRun as error:
                    yield error.message
                except KeyError:
                    continue  # pruned meanwhile

    def free_unfinished(self, before: float) -> None:
        """Delete files of unfinished writes that are older than `before` (seconds since 1970)."""
        with suppress(OSError, CorruptRun):
            for path, found in self._entries():
                folder, _, name = path.rpartition("/")
                if name.startswith(_BESIDE) and found.st_mtime < before:
                    with self._folder(folder) as fd:
                        os.unlink(name, dir_fd=fd)

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield `ab/abcdef…` with its status, in order. An absent directory counts as empty."""
        with suppress(FileNotFoundError), self._folder() as top:
            for outer in sorted(os.listdir(top)):  # noqa: PTH208 - a descriptor, not a path
                status = os.stat(outer, dir_fd=top, follow_symlinks=False)
                if not (_FOLDER.fullmatch(outer) and stat.S_ISDIR(status.st_mode)):
                    yield outer, status
                    continue
                with Opened(self._open(outer, _DIRECTORY, top)) as inner:
                    for name in sorted(os.listdir(inner)):  # noqa: PTH208 - same
                        with suppress(FileNotFoundError):
                            yield (
                                f"{outer}/{name}",
                                os.stat(name, dir_fd=inner, follow_symlinks=False),
                            )

    @contextmanager
    def _folder(self, *inner: str, make: bool = False, durable: bool = False) -> Iterator[int]:
        """Yield a descriptor of `artifacts/sha256[/ab]`.

        Each level is opened from its parent, never by a link.
        """
        fd = os.open(self._run_dir, _DIRECTORY)
        try:
            for name in ("artifacts", "sha256", *inner):
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=fd)
                        if durable:
                            os.fsync(fd)
                below = self._open(name, _DIRECTORY, fd)
                os.close(fd)
                fd = below
                if make:
                    self._check_private(fd, name)
            yield fd
        finally:
            os.close(fd)

    def _open(self, name: str, flags: int, dir_fd: int) -> int:
        try:
            return os.open(name, flags, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR):
                self._raise_corrupt(
                    name, "there is a link or another kind of file in its place", error
                )
            raise

    def _read(self, fd: int, sha256: str) -> bytes:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            self._raise_corrupt(sha256, "it is not a regular file")
        if status.st_size > self._max_bytes:
            self._raise_corrupt(
                sha256,
                f"it is {status.st_size:,} bytes, more than any artifact ({self._max_bytes:,})",
            )
        data = os.read(fd, status.st_size)
        while len(data) < status.st_size and (chunk := os.read(fd, status.st_size - len(data))):
            data += chunk
        return data

    def _check_private(self, fd: int, name: str) -> None:
        status = os.fstat(fd)
        if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
            return
        raise StorageError(
            f"can't use {name!r} in {self._run_dir}: it belongs to user {status.st_uid} "
            f"with mode {stat.S_IMODE(status.st_mode):04o}, not to this user alone",
            kind="not_private",
            advice=(
                "look at what is in it, then make it private (chmod 700) or choose another runs"
                " directory"
            ),
        )

    def _raise_corrupt(self, name: str, why: str, cause: OSError | None = None) -> NoReturn:
        raise CorruptRun(
            f"artifact {name} of {self._run_dir}: {why}",
            advice="it was changed after it was stored; restore the run directory from a copy",
        ) from cause


class RunArtifacts(ArtifactReader):
    """The artifact store of a run that this process writes. Implements `ports.ArtifactStore`.

    `durable`: `put` returns when the bytes survive power loss.
    """

    def __init__(
        self, run_dir: str | os.PathLike[str], *, durable: bool = False, max_bytes: int = MAX_BYTES
    ) -> None:
        super().__init__(run_dir, max_bytes=max_bytes)
        self._pool = ArtifactPool(Path(self._run_dir).absolute().parent)
        self._durable = durable

    def put(self, data: bytes) -> str:
        """See `ports.ArtifactStore.put`."""
        check_size(len(data), self._max_bytes)
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            with self._folder(sha256[:2], make=True, durable=self._durable) as folder:
                if not self._is_stored(sha256, len(data), folder):
                    self._keep(sha256, data, folder)
        except OSError as error:
            raise storage_error(
                f"can't store artifact {sha256} in {self._run_dir}", error
            ) from error
        return sha256

    def _is_stored(self, sha256: str, size: int, folder: int) -> bool:
        """Return whether the content is stored. A file of another size was torn by power loss."""
        try:
            status = os.stat(sha256, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(status.st_mode):
            self._raise_corrupt(sha256, "there is a link or another kind of file in its place")
        if status.st_size != size:
            return False
        if self._durable:  # its writer may not have synced it
            _sync(sha256, folder)
        return True

    def _keep(self, sha256: str, data: bytes, folder: int) -> None:
        """Link the shared copy of the content, or write it and share it."""
        if self._pool.link_into(folder, sha256, data):
            if self._durable:
                _sync(sha256, folder)
            return
        self._write(sha256, data, folder)
        self._pool.take(folder, sha256)

    def _write(self, sha256: str, data: bytes, folder: int) -> None:
        temporary = _BESIDE + secrets.token_hex(8)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            with Opened(fd):
                _write_all(fd, data)
                if self._durable:
                    os.fsync(fd)
            os.rename(temporary, sha256, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # an interrupted caller must leave no half-written file either
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        if self._durable:
            os.fsync(folder)


class ArtifactPool:
    """The shared copies of equal bytes, for a folder of runs: artifacts, and the runs' catalogs.

    Reading a run does not need it. It never raises: content that can't be shared is stored
    again. In a run's folder the content is called by its digest, or by `name`.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._top = Path(root) / POOL

    def link_into(self, folder: int, sha256: str, data: bytes, name: str = "") -> bool:
        """Link the content into a run's folder.

        Return False if the pool has no valid copy of it.
        """
        with suppress(OSError), self._open_folder_of(sha256, make=False) as pool_folder:
            with Opened(os.open(sha256, _READ, dir_fd=pool_folder)) as fd:
                is_equal = os.fstat(fd).st_size == len(data) and _has_bytes(fd, data)
            if not is_equal:
                os.unlink(sha256, dir_fd=pool_folder)
                return False
            temporary = _BESIDE + secrets.token_hex(8)
            os.link(
                sha256, temporary, src_dir_fd=pool_folder, dst_dir_fd=folder, follow_symlinks=False
            )
            os.rename(
                temporary, name or sha256, src_dir_fd=folder, dst_dir_fd=folder
            )  # replaces a torn file too
            with suppress(FileNotFoundError):
                os.unlink(
                    temporary, dir_fd=folder
                )  # renaming a link to the same file keeps both names
            return True
        return False

    def take(self, folder: int, sha256: str, name: str = "") -> None:
        """Add a run's file to the pool, for other runs to link."""
        with suppress(OSError), self._open_folder_of(sha256, make=True) as pool_folder:
            os.link(
                name or sha256,
                sha256,
                src_dir_fd=folder,
                dst_dir_fd=pool_folder,
                follow_symlinks=False,
            )

    def free(self) -> None:
        """Delete files that no run names."""
        with suppress(OSError), Opened(os.open(self._top, _DIRECTORY)) as top:
            for inner in filter(_FOLDER.fullmatch, os.listdir(top)):  # noqa: PTH208 - a descriptor, not a path
                with suppress(OSError), Opened(os.open(inner, _DIRECTORY, dir_fd=top)) as fd:
                    for name in filter(SHA256.fullmatch, os.listdir(fd)):  # noqa: PTH208 - same
                        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                            os.unlink(name, dir_fd=fd)

    @contextmanager
    def _open_folder_of(self, sha256: str, *, make: bool) -> Iterator[int]:
        """Yield a descriptor of the folder for a digest.

        Raises OSError if it is absent, a link, or not private.
        """
        if make:
            with suppress(FileExistsError):
                self._top.mkdir(mode=0o700)
        with Opened(os.open(self._top, _DIRECTORY)) as top:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(sha256[:2], 0o700, dir_fd=top)
            with Opened(os.open(sha256[:2], _DIRECTORY, dir_fd=top)) as fd:
                for status in (os.fstat(fd), os.fstat(top)):
                    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                        raise OSError(errno.EPERM, "it is not this user's alone")
                yield fd


def _has_bytes(fd: int, data: bytes) -> bool:
    """Return whether a file holds exactly these bytes."""
    offset = 0
    while block := os.read(fd, 1 << 20):
        if not data.startswith(block, offset):  # a view of it would be compared byte by byte
            return False
        offset += len(block)
    return offset == len(data)


def _sync(name: str, folder: int) -> None:
    with Opened(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as fd:
        os.fsync(fd)
    os.fsync(folder)


def _write_all(fd: int, data: bytes) -> None:
    """Write through a memoryview, so that no second copy is made.

    A full disk first causes a short write.
    """
    view = memoryview(data)
    while view:
        count = os.write(fd, view)
        if count <= 0:
            raise OSError(errno.EIO, "nothing was written")
        view = view[count:]


PREFIX = ".bundle-router-"


class ScratchFolder:
    """Implements `ports.Scratch`. For one thread at a time."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def put(self, name: str, data: bytes, *, within: str = "") -> str:
        """Write a file with these bytes, and return its path for a tool. Raises StorageError."""
        from bundle_router.adapters.private_folders import temporary_root  # a tool needs a file

        parent = within or temporary_root()
        try:
            if within not in self._folders:
                self._folders[within] = os.path.realpath(
                    tempfile.mkdtemp(prefix=PREFIX, dir=parent)
                )
            path = os.path.join(self._folders[within], name)  # noqa: PTH118 - a string is what a tool gets
            if not Path(path).exists():
                fd = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400
                )
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
        except OSError as error:
            raise storage_error(f"can't hand a file to a tool in {parent}", error) from error
        return path

    def close(self) -> None:
        """Delete the folders.

        Never raises: what can't be deleted is left to the system's clean-up.
        """
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()
