"""Reading the files of a run directory without changing them, locking them for long, or following links."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bundle_router.core.records.chain import FILES, MAX_LINE, BadLine, Read, boundary, parse
from bundle_router.errors import CorruptRun, storage_error

ADVICE: Final = "`bundle-router runs verify` names the first bad record"
_MAX_JSON: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Torn:
    """Bytes after the last complete line of a file: a record that was never acknowledged."""

    file: str
    offset: int
    bytes: int


@contextmanager
def opened(path: Path) -> Iterator[int | None]:
    """A descriptor of a regular file; None if there is no such file. Raises StorageError, CorruptRun."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise storage_error(f"can't read {path}", error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CorruptRun(f"{path} is not a regular file", advice="no run has that; remove the directory")
        yield fd
    finally:
        os.close(fd)


def read_json(path: Path) -> Any:
    """The value of a small JSON file. Raises CorruptRun when it is absent, not JSON, or over 64 MiB."""
    with opened(path) as fd:
        if fd is None:
            raise CorruptRun(f"{path} is missing", advice="restore it; the records can be read without it")
        size = os.fstat(fd).st_size
        if size > _MAX_JSON:
            raise CorruptRun(f"{path} has {size} bytes, over the {_MAX_JSON} it may have", advice="restore it")
        try:
            return json.loads(os.pread(fd, size, 0))
        except (ValueError, RecursionError) as error:
            raise CorruptRun(f"{path} is not JSON", advice="restore it; the records can be read without it") from error


def tail(fd: int) -> tuple[Read, int]:
    """How to read an open file from its end: a `read` and the offset behind its last complete line."""

    def read(offset: int, length: int) -> bytes:
        return os.pread(fd, length, offset)

    return read, boundary(read, os.fstat(fd).st_size)


def torn(path: Path, name: str) -> Torn | None:
    """The torn end of one file, if it has one."""
    with opened(path / name) as fd:
        if fd is None:
            return None
        size = os.fstat(fd).st_size
        end = tail(fd)[1]
    return Torn(name, end, size - end) if end < size else None


def sizes(path: Path) -> dict[str, int]:
    """The sizes of a run's files at one instant, so that no record is seen without the one before it.

    Files only grow: when the first still has its size after the others were looked at, all were that long together.
    """
    first, *rest = FILES.values()
    found: dict[str, int] = {}
    for _ in range(1000):
        found = {first: _size(path / first)} | {name: _size(path / name) for name in rest}
        if _size(path / first) == found[first]:
            break
    return found


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0


def lines(path: Path, size: int) -> Iterator[bytes]:
    """The complete lines within the first `size` bytes of a file. One over MAX_LINE comes in pieces, which are bad."""
    with opened(path) as fd:
        if fd is None:
            return
        with open(fd, "rb", buffering=1024 * 1024, closefd=False) as file:
            while size > 0:
                line = file.readline(min(size, MAX_LINE))
                if not line.endswith(b"\n") and len(line) < MAX_LINE:
                    return
                size -= len(line)
                yield line


def records(path: Path, size: int) -> Iterator[dict[str, Any]]:
    """The records of one file. Raises CorruptRun at a line that is none, or whose `seq` does not rise."""
    before = -1
    for number, line in enumerate(lines(path, size), start=1):
        try:
            record = parse(line)
        except BadLine as error:
            raise CorruptRun(f"{path}:{number}: {error}", advice=ADVICE) from error
        if record["seq"] <= before:
            raise CorruptRun(f"{path}:{number}: record {record['seq']} comes after {before}", advice=ADVICE)
        before = record["seq"]
        yield record


def writer(path: Path) -> int | None:
    """The pid of the process that writes the run (0 if it can't be read); None when nobody does.

    Tries the lock for an instant; writers try theirs more than once, so that this can't turn one away.
    """
    try:
        with opened(path / FILES["routing"]) as fd:
            if fd is None:
                return None
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _owner(path)
            return None
    except CorruptRun:
        return None


def _owner(path: Path) -> int:
    with opened(path / "lock") as fd:
        digits = os.pread(fd, 32, 0).strip() if fd is not None else b""
    return int(digits) if digits.isdigit() else 0


def tree_bytes(path: Path) -> int:
    """The bytes of all files below a directory; links are counted, not followed."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                inside = entry.is_dir(follow_symlinks=False)
                total += tree_bytes(Path(entry.path)) if inside else entry.stat(follow_symlinks=False).st_size
    return total
