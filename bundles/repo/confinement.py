"""One directory that tools may read from, and what they may read in it.

Rules:
1. Everything is opened through `bundles.repo.beneath`, so nothing outside the root is ever opened, race or no race.
2. Only regular files are read. The type is taken before the open (opening a FIFO or a device has side effects) and
   again after it, from the descriptor, which is what counts.
3. Every read is bounded while it happens.
4. The root is opened once, then the folder it is narrowed to, and from there on only descriptors count. No path of it
   is put together again: whoever can rename a folder in between would choose what that path means.
5. Hidden folders are neither entered nor listed, by whatever name; how many were met is counted, so it can be said.
6. What is refused is refused in words: a `ToolFailure` with a code and advice.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self

from bundles.repo.beneath import (
    PATH_ONLY,
    HiddenFolder,
    Identity,
    Opener,
    components,
    open_beneath,
    open_folder,
    opener_beside,
)
from router.core.models import ToolContext
from router.errors import ToolFailure

__all__ = ["Entry", "FileKind", "Root", "open_beneath", "read_up_to", "workspace"]

MAX_PATH_BYTES: Final = 4095
FileKind = Literal["file", "dir", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One directory entry, not followed. `size` is in bytes (0 unless a file); `links` counts hard links."""

    name: str
    kind: FileKind
    size: int = 0
    links: int = 1
    target: str = ""


class Root:
    """A directory that everything is opened beneath. Use as a context manager; not shared between threads.

    `path` is opened, and then `within`, a folder beneath it reached through no symlink: that is the root (`fd`) of
    everything else. `hidden` are absolute paths of folders that nobody enters; `met` holds those that were met.
    `hard_links="refuse"` refuses files with more than one name, since another name may lie outside the root.
    Every method takes a path relative to the root (or absolute and inside it) and raises ToolFailure.
    """

    def __init__(
        self,
        path: str,
        within: str = ".",
        *,
        hidden: Sequence[str] = (),
        hard_links: Literal["allow", "refuse"] = "allow",
        opener: Opener | None = None,
    ) -> None:
        self.top = os.path.realpath(path)
        """The workspace itself, for finding out what lies in it. Only for words and comparisons, as `path` is."""
        self.within = "/".join(components(within)) or "."
        self.path = self.top if self.within == "." else f"{self.top.rstrip('/')}/{self.within}"
        self._tops = (self.path.rstrip("/"), os.path.normpath(f"{path}/{within}").rstrip("/"))
        self.hard_links = hard_links
        self.hidden = frozenset(_identities(hidden))
        self.met: set[Identity] = set()
        self._opener = opener_beside(self.hidden) if opener is None or self.hidden else opener
        self.fd = _open_root(self.top, within, self.hidden, opener)

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
        """A path for a child that inherits `fd`: it leads to the folder that was opened, whatever it is called by now.

        Where there is no /proc it is the folder's own path, and a folder that is swapped meanwhile is not noticed.
        """
        place = f"/proc/self/fd/{self.fd}"
        return place if os.path.lexists(place) else self.path

    def relative(self, path: str) -> str:
        """The path relative to the root, without touching the disk: `.` for the root itself.

        An absolute path is accepted when it starts with the root, component by component. `..` stays as it is.
        """
        try:
            raw = os.fsencode(path)
        except UnicodeEncodeError:
            raise _invalid(path, "it is not encodable as a file name") from None
        if b"\0" in raw:
            raise _invalid(path, "it contains a NUL character")
        if len(raw) > MAX_PATH_BYTES:
            raise _invalid(path[:40] + "…", f"it has {len(raw)} bytes, more than {MAX_PATH_BYTES}")
        if path.startswith("/"):
            inside = [path[len(top) :] for top in self._tops if f"{path}/".startswith(f"{top}/")]
            if not inside:
                raise _outside(path)
            path = inside[0]
        return "/".join(components(path)) or "."

    def open_fd(self, path: str, flags: int) -> int:
        """A descriptor opened with `flags`; the caller closes it and has to check what it is."""
        relative = self.relative(path)
        with _explained(relative):
            return self._opener(self.fd, relative, flags)

    def open_file(self, path: str) -> BinaryIO:
        """A regular file for reading, unbuffered. Never blocks: FIFOs, sockets and devices are refused unopened."""
        relative = self.relative(path)
        probe = self.open_fd(relative, PATH_ONLY)
        try:
            self._check_readable(os.fstat(probe), relative)
        finally:
            os.close(probe)
        fd = self.open_fd(relative, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            self._check_readable(os.fstat(fd), relative)
            return os.fdopen(fd, "rb", buffering=0)
        except BaseException:
            os.close(fd)
            raise

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """The whole of a small file. Raises ToolFailure `too_large` rather than cutting it."""
        with self.open_file(path) as file, _explained(path):
            data = read_up_to(file, max_bytes + 1)
        if len(data) > max_bytes:
            raise ToolFailure(f"{path!r} has more than {max_bytes:,} bytes", code="too_large")
        return data

    def scandir(self, path: str, *, limit: int) -> list[Entry]:
        """The entries of a directory sorted by name as bytes, at most `limit` of them (in the disk's order).

        Hidden folders are left out, and added to `met`.
        """
        entries: list[Entry] = []
        fd = self.open_fd(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with _explained(path), os.scandir(fd) as found:
                for item in found:
                    if len(entries) == limit:
                        break
                    if not self._hides(item):
                        entries.append(_entry(item, fd))
        finally:
            os.close(fd)
        return sorted(entries, key=lambda entry: os.fsencode(entry.name))

    def _hides(self, item: os.DirEntry[str]) -> bool:
        if not self.hidden:
            return False
        with suppress(OSError):
            info = item.stat(follow_symlinks=False)
            if (info.st_dev, info.st_ino) in self.hidden:
                self.met.add((info.st_dev, info.st_ino))
                return True
        return False

    def entry(self, path: str) -> Entry | None:
        """What lies at the path, not following a last symlink; None if there is nothing."""
        parent, _, name = self.relative(path).rpartition("/")
        try:
            if name in (".", ".."):
                os.close(self.open_fd(path, PATH_ONLY | os.O_DIRECTORY))
                return Entry(name, "dir")
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
            return None  # it was there a moment ago, or its name is too long to be there
        finally:
            os.close(fd)
        return Entry(name, kind, info.st_size if kind == "file" else 0, info.st_nlink, target)

    def _check_readable(self, info: os.stat_result, path: str) -> None:
        if stat.S_ISDIR(info.st_mode):
            raise ToolFailure(f"{path!r} is a directory", code="is_directory", advice="list it with list_dir")
        if not stat.S_ISREG(info.st_mode):
            raise ToolFailure(f"{path!r} is not a regular file and is not read", code="not_a_file")
        if self.hard_links == "refuse" and info.st_nlink > 1:
            raise ToolFailure(
                f"{path!r} has {info.st_nlink} hard links, and such files are refused here",
                code="hard_link",
                advice='copy the file, or set hard_links = "allow" in policy.toml',
            )


def workspace(context: ToolContext) -> Root:
    """The root that a call's tools are confined to, opened anew."""
    return Root(context.workspace, context.within, hidden=context.hidden, hard_links=context.settings.hard_links)


def _open_root(top: str, within: str, hidden: frozenset[Identity], opener: Opener | None) -> int:
    try:
        fd = os.open(top, PATH_ONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ToolFailure(
            f"the workspace {top!r} can't be opened: {error.strerror}",
            code="workspace_unavailable",
            advice="start the router with a workspace that exists and is a directory",
        ) from error
    try:
        return open_folder(fd, within, hidden, opener=opener)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ToolFailure(
            f"the folder {within!r} that this step is narrowed to can't be opened: {why}",
            code="workspace_unavailable",
            advice="it was removed, moved or swapped for a link since the step was routed; route the step again",
        ) from error
    finally:
        os.close(fd)


def _identities(folders: Sequence[str]) -> Iterator[Identity]:
    """Of those that exist: what is not there can't be read."""
    for folder in folders:
        with suppress(OSError, ValueError):
            info = Path(folder).stat()
            yield info.st_dev, info.st_ino


def read_up_to(file: BinaryIO, max_bytes: int) -> bytes:
    """At most `max_bytes` from an unbuffered file, fewer only at its end."""
    parts = []
    left = max_bytes
    while left > 0 and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _entry(item: os.DirEntry[str], parent_fd: int) -> Entry:
    try:
        info = item.stat(follow_symlinks=False)
        kind = _kind(info.st_mode)
        target = os.readlink(item.name, dir_fd=parent_fd) if kind == "symlink" else ""
    except OSError:
        return Entry(item.name, "other")  # removed or replaced since the directory was read
    return Entry(item.name, kind, info.st_size if kind == "file" else 0, info.st_nlink, target)


# --- refusals ------------------------------------------------------------------------------------------------------


def _invalid(path: str, why: str) -> ToolFailure:
    return ToolFailure(f"{path!r} is not a usable path: {why}", code="invalid_path")


def _outside(path: str) -> ToolFailure:
    return ToolFailure(
        f"{path!r} leads outside the workspace",
        code="outside_workspace",
        advice="give a path relative to the workspace; links with an absolute target are not followed",
    )


_WORDS: Final = {
    errno.ENOENT: ("not_found", "there is no {path!r} in the workspace", "list its folder with list_dir"),
    errno.ENOTDIR: ("not_a_directory", "{path!r} is, or goes through, something that is not a directory", ""),
    errno.EISDIR: ("is_directory", "{path!r} is a directory", "list it with list_dir"),
    errno.ELOOP: ("too_many_links", "{path!r} goes through a loop of symlinks, or a link that is not followed", ""),
    errno.EACCES: ("permission_denied", "the router may not read {path!r}", ""),
    errno.EPERM: ("permission_denied", "the router may not read {path!r}", ""),
    errno.ENAMETOOLONG: ("invalid_path", "a name in {path!r} is too long", ""),
    errno.EAGAIN: ("changed_meanwhile", "{path!r} kept moving while it was opened", "try again"),
    errno.ENXIO: ("not_a_file", "{path!r} is not a regular file and is not read", ""),
}


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turns what the kernel says about a path into words for whoever asked for it."""
    try:
        yield
    except HiddenFolder as error:
        raise ToolFailure(
            f"{_short(path)!r} belongs to the router's own records, which no tool reads or changes", code="hidden"
        ) from error
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise _outside(path) from error
        code, message, advice = _WORDS.get(
            error.errno or 0, ("io_error", "{path!r} can't be read: " + str(error.strerror), "")
        )
        raise ToolFailure(message.format(path=_short(path)), code=code, advice=advice) from error


def _short(path: str) -> str:
    return path if len(path) <= 200 else path[:200] + "…"
