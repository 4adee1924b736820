"""The directory that tools may read from, and what they may read in it.

Rules:
1. Everything is opened by `local_tools.repo.beneath`, so nothing outside the root is ever opened,
   race or no race.
2. Only regular files are read. The type is checked before the open (opening a FIFO or a device has
   side effects) and again after it, on the descriptor, which decides.
3. Every read is bounded while it happens.
4. The root is opened once, then the folder it is narrowed to; from there on only descriptors are
   used. No path is built from them again, because whoever can rename a folder meanwhile would
   decide what that path means.
5. Hidden folders are neither entered nor listed, by whatever name
   (`bundle_router.local_tools.repo.hiding`).
6. Refusals are a `ToolFailure` with a sentence, a code and advice.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal, Self

from bundle_router.adapters.descriptors import ClosedOnError, Opened
from bundle_router.core.values import ToolContext, shorten
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.beneath import (
    PATH_ONLY,
    HiddenFolder,
    Identity,
    Opener,
    components,
    opener_beside,
)
from bundle_router.local_tools.repo.hiding import (
    CREDENTIALS,
    SCANNED_BYTES,
    Hidden,
    holds_private_key,
    identity_of,
    is_credential_file,
)
from bundle_router.local_tools.repo.lineage import open_folder
from bundle_router.local_tools.repo.refusals import (
    credentials_failure,
    invalid,
    outside_failure,
    translate_errors,
)

__all__ = ["FileKind", "FolderEntry", "Root", "read_up_to", "workspace"]

MAX_PATH_BYTES: Final = 4095
FileKind = Literal["file", "dir", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One directory entry; links are not followed.

    `size` is in bytes (0 unless a file); `links` counts hard links.
    """

    name: str
    kind: FileKind
    size: int = 0
    links: int = 1
    target: str = ""


class Root:
    """A directory that everything is opened beneath.

    Use it as a context manager; do not share it between threads.

    `path` is opened, and then `within`, a folder beneath it reached through no symlink: that is the
    root (`fd`) of everything else. `hidden` are absolute paths of folders that are never entered.
    `hard_links="refuse"` refuses files with more than one name, since another name may be outside
    the root. `credentials="show"` shows files that hold credentials. Every method takes a path
    relative to the root (or absolute and inside it) and raises ToolFailure.
    """

    def __init__(
        self,
        path: str,
        within: str = ".",
        *,
        hidden: Sequence[str] = (),
        hard_links: Literal["allow", "refuse"] = "allow",
        credentials: Literal["hide", "show"] = "hide",
        opener: Opener | None = None,
    ) -> None:
        self.top = os.path.realpath(path)
        """Path of the workspace itself. Like `path`, only for messages and comparisons."""
        self.within = "/".join(components(within)) or "."
        self.path = self.top if self.within == "." else f"{self.top.rstrip('/')}/{self.within}"
        self._tops = (self.path.rstrip("/"), os.path.normpath(f"{path}/{within}").rstrip("/"))
        self.hard_links = hard_links
        self.credentials = credentials
        self.hidden = Hidden(hidden)
        identities = self.hidden.identities
        self._opener = opener_beside(identities) if opener is None or identities else opener
        self.fd = _open_root(self.top, within, identities, opener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def place(self) -> str:
        """The root's path for a child; see `place_of`."""
        return self.place_of(self.fd)

    def place_of(self, fd: int, path: str = ".") -> str:
        """Return a path for a child that inherits `fd`, open on `path`.

        It leads there even after a rename.

        Without /proc it is the path itself, and a folder that is swapped meanwhile is not noticed.
        """
        place = f"/proc/self/fd/{fd}"
        if os.path.lexists(place):
            return place
        return os.path.normpath(f"{self.path}/{path}")

    def real_path(self, fd: int, path: str) -> str:
        """Return the present real path of `fd`, open on `path`, for messages and comparisons."""
        place = self.place_of(fd, path)
        return os.readlink(place) if place.startswith("/proc/") else os.path.realpath(place)  # noqa: PTH115  # text

    def relative(self, path: str) -> str:
        """Return the path relative to the root, without accessing the disk: `.` for the root
        itself.

        An absolute path is accepted if it starts with the root, component by component. `..` is
        kept.
        """
        try:
            raw = os.fsencode(path)
        except UnicodeEncodeError:
            raise invalid(path, "it is not encodable as a file name") from None
        if b"\0" in raw:
            raise invalid(path, "it contains a NUL character")
        if len(raw) > MAX_PATH_BYTES:
            raise invalid(shorten(path, 40), f"it has {len(raw)} bytes, more than {MAX_PATH_BYTES}")
        if path.startswith("/"):
            inside = [path[len(top) :] for top in self._tops if f"{path}/".startswith(f"{top}/")]
            if not inside:
                raise outside_failure(path)
            path = inside[0]
        return "/".join(components(path)) or "."

    def open_fd(self, path: str, flags: int) -> int:
        """Return a descriptor opened with `flags`. The caller closes it and checks its type."""
        relative = self.relative(path)
        with translate_errors(relative):
            return self._opener(self.fd, relative, flags)

    def open_file(self, path: str) -> BinaryIO:
        """Return a regular file for reading, unbuffered.

        FIFOs, sockets and devices are refused unopened.
        """
        relative = self.relative(path)
        with Opened(self.open_fd(relative, PATH_ONLY)) as probe:
            self._check_readable(os.fstat(probe), relative)
        fd = self.open_fd(relative, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        with ClosedOnError(fd):
            self._check_readable(os.fstat(fd), relative)
            return os.fdopen(fd, "rb", buffering=0)

    def open_for_reader(self, path: str) -> BinaryIO:
        """Open a file as `open_file` does, to show its content: files with credentials are
        refused.
        """
        file = self.open_file(path)
        if self.credentials == "show":
            return file
        with ClosedOnError(file.fileno()):
            is_credential = self._is_credential(file, path)
        if is_credential:
            file.close()
            raise credentials_failure(path)
        return file

    def _is_credential(self, file: BinaryIO, path: str) -> bool:
        """Return whether a file holds credentials: by its real path, by the one that was asked for
        (`.env` may be a link), by another name of it at the top or in its own folder, or by a
        private key in it.
        """
        fd = file.fileno()
        relative = self.relative(path)
        real_path = self.real_path(fd, relative)
        if is_credential_file(real_path) or is_credential_file(f"{self.path}/{relative}"):
            return True
        info = os.fstat(fd)
        if info.st_nlink > 1 and self._has_credential_name(info, os.path.dirname(real_path)):  # noqa: PTH120 - text
            return True
        data = read_up_to(file, SCANNED_BYTES)
        file.seek(0)
        return holds_private_key(data)

    def _has_credential_name(self, info: os.stat_result, folder: str) -> bool:
        identity = (info.st_dev, info.st_ino)
        if any(identity_of(f"{self.path}/{name}") == identity for name, _ in CREDENTIALS):
            return True
        for place in {self.path, folder}:
            with suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    if entry.inode() == info.st_ino and is_credential_file(entry.path):
                        return True
        return False

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """Return the whole of a small file.

        Raises ToolFailure `too_large` rather than cutting it.
        """
        with self.open_file(path) as file, translate_errors(path):
            data = read_up_to(file, max_bytes + 1)
        if len(data) > max_bytes:
            raise ToolFailure(f"{path!r} has more than {max_bytes:,} bytes", code="too_large")
        return data

    def scandir(self, path: str, *, limit: int) -> list[FolderEntry]:
        """Return the entries of a directory sorted by name as bytes, at most `limit` of them (in
        the disk's order).

        Hidden folders are left out, and noted in `hidden`.
        """
        entries: list[FolderEntry] = []
        folder = Opened(self.open_fd(path, os.O_RDONLY | os.O_DIRECTORY))
        with folder as fd, translate_errors(path), os.scandir(fd) as items:
            for item in items:
                if len(entries) == limit:
                    break
                if self.hidden.identities and _is_hidden(item, self.hidden):
                    continue
                entries.append(_entry(item, fd))
        return sorted(entries, key=lambda entry: os.fsencode(entry.name))

    def is_hidden(self, folder: str) -> bool:
        """Return whether the path to a folder enters a hidden one, or ends there; notes that one in
        `hidden`.
        """
        if not self.hidden.identities:
            return False
        try:
            os.close(self._opener(self.fd, self.relative(folder), PATH_ONLY | os.O_DIRECTORY))
        except HiddenFolder as found:
            self.hidden.meet(found.identity)
            return True
        except OSError:
            return False  # gone, or not a folder: nothing hidden is on the way
        return False

    def entry(self, path: str) -> FolderEntry | None:
        """Return the entry at the path, without following a last symlink; None if there is
        nothing.
        """
        parent, _, name = self.relative(path).rpartition("/")
        try:
            if name in (".", ".."):
                os.close(self.open_fd(path, PATH_ONLY | os.O_DIRECTORY))
                return FolderEntry(name, "dir")
            fd = self.open_fd(parent or ".", PATH_ONLY | os.O_DIRECTORY)
        except ToolFailure as failure:
            if failure.code in ("not_found", "not_a_directory"):
                return None
            raise
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            kind = _kind(info.st_mode)
            target = os.readlink(name, dir_fd=fd) if kind == "symlink" else ""
        except OSError:
            return None  # it is gone, or its name is too long
        finally:
            os.close(fd)
        return FolderEntry(name, kind, info.st_size if kind == "file" else 0, info.st_nlink, target)

    def _check_readable(self, info: os.stat_result, path: str) -> None:
        if stat.S_ISDIR(info.st_mode):
            raise ToolFailure(
                f"{path!r} is a directory", code="is_directory", advice="list it with list_dir"
            )
        if not stat.S_ISREG(info.st_mode):
            raise ToolFailure(f"{path!r} is not a regular file and is not read", code="not_a_file")
        if self.hard_links == "refuse" and info.st_nlink > 1:
            raise ToolFailure(
                f"{path!r} has {info.st_nlink} hard links, and such files are refused here",
                code="hard_link",
                advice='copy the file, or set hard_links = "allow" in policy.toml',
            )


def workspace(context: ToolContext) -> Root:
    """Open and return the root that a call's tools are confined to."""
    return Root(
        context.workspace,
        context.within,
        hidden=context.hidden,
        hard_links=context.settings.hard_links,
        credentials=context.settings.credentials,
    )


def _open_root(top: str, within: str, hidden: frozenset[Identity], opener: Opener | None) -> int:
    try:
        fd = os.open(top, PATH_ONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ToolFailure(
            f"the workspace {top!r} can't be opened: {error.strerror}",
            code="workspace_unavailable",
            advice="start the router with a workspace that exists and is a directory",
        ) from error
    with Opened(fd):
        try:
            return open_folder(fd, within, hidden, opener=opener)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ToolFailure(
                f"the folder {within!r} that this step is narrowed to can't be opened: {reason}",
                code="workspace_unavailable",
                advice=(
                    "it was removed, moved or swapped for a link since the step was routed; route"
                    " the step again"
                ),
            ) from error


def read_up_to(file: BinaryIO, max_bytes: int) -> bytes:
    """Read at most `max_bytes` from an unbuffered file; fewer only at its end."""
    parts = []
    remaining = max_bytes
    while remaining > 0 and (part := file.read(min(remaining, 1 << 20))):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


def _kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    if stat.S_ISLNK(mode):
        return "symlink"
    return "other"


def _is_hidden(item: os.DirEntry[str], hidden: Hidden) -> bool:
    try:
        return hidden.is_one(item.stat(follow_symlinks=False))
    except OSError:
        return False  # removed since the directory was read


def _entry(item: os.DirEntry[str], parent_fd: int) -> FolderEntry:
    try:
        info = item.stat(follow_symlinks=False)
        kind = _kind(info.st_mode)
        target = os.readlink(item.name, dir_fd=parent_fd) if kind == "symlink" else ""
    except OSError:
        return FolderEntry(item.name, "other")  # removed or replaced since the directory was read
    return FolderEntry(
        item.name, kind, info.st_size if kind == "file" else 0, info.st_nlink, target
    )
