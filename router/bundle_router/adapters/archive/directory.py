"""The archive of a runs directory.

It keeps no file open between calls and follows no symbolic link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.archive.archive import (
    RunArchive,
    RunSummary,
    TornTail,
    is_run_id,
    summary_of,
)
from bundle_router.adapters.archive.head_files import HEADS, FolderHeads
from bundle_router.adapters.archive.label_files import FILE as LABELS
from bundle_router.adapters.archive.label_files import append_label, label_line, read_labels
from bundle_router.adapters.artifact_files import ArtifactPool, ArtifactReader, RunArtifacts
from bundle_router.adapters.descriptors import Opened
from bundle_router.adapters.private_folders import private_folder
from bundle_router.adapters.text_files import holders
from bundle_router.core.records.chain import FILES, MAX_LINE, boundary
from bundle_router.core.records.read_model import RunStamp
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.values.canonical import decode, encode
from bundle_router.errors import CorruptRun, RequestError, StorageError, storage_error

_MAX_JSON: Final = 64 * 1024 * 1024
_BLOCK: Final = 1024 * 1024
_DELETING: Final = ".deleting-"
"""Prefix of a run that is being deleted; no run id starts with a dot."""
_IMPORTING: Final = ".importing-"
"""Prefix of a run that is being copied; no run id starts with a dot."""
_TRIES: Final = 10
_PAUSE_S: Final = 0.001


class _WithoutHoles(io.FileIO):
    """A file as its data alone: gigabytes of holes cost their writer nothing, and a reader
    seconds.
    """

    def readinto(self, buffer: Any) -> int:
        try:
            start = os.lseek(self.fileno(), self.tell(), os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return 0
            raise
        size = os.lseek(self.fileno(), start, os.SEEK_HOLE) - start
        self.seek(start)
        return super().readinto(memoryview(buffer)[:size]) or 0


class Archive(RunArchive):
    """The runs under one directory, `root`."""

    def __init__(self, runs: str | Path) -> None:
        self.root = self.folder = Path(runs).absolute()
        self.where = str(self.root)
        if (self.root / HEADS).is_dir():
            self.heads = FolderHeads(self.root / HEADS)

    def run_ids(self) -> list[str]:
        """Return the ids of all run directories, sorted. Symbolic links are not runs."""
        try:
            with os.scandir(self.root) as entries:
                return sorted(
                    e.name for e in entries if is_run_id(e.name) and e.is_dir(follow_symlinks=False)
                )
        except FileNotFoundError:
            return []

    def path(self, run_id: str) -> Path:
        """Return the directory of a run.

        Raises UnknownRun, also for an invalid id and for a symbolic link.
        """
        path = self.root / run_id
        if not is_run_id(run_id) or path.is_symlink() or not path.is_dir():
            raise self.unknown(run_id)
        return path

    def path_text(self, run_id: str) -> str:
        return str(self.path(run_id))

    def summary(self, run_id: str) -> RunSummary:
        path = self.path(run_id)
        pid = _writer(path)
        common: dict[str, Any] = {
            "run_id": run_id,
            "path": str(path),
            "pid": pid or 0,
            "bytes": _tree_bytes(path),
        }
        try:
            header = self.header(run_id)
            common["records"] = None if header.head is not None else _line_count(path)
        except (CorruptRun, StorageError) as error:
            self.path(run_id)  # raises UnknownRun: what was deleted meanwhile is not damaged
            return RunSummary(
                state="unreadable" if pid is None else "open", problem=error.message, **common
            )
        return summary_of(header, is_open=pid is not None, **common)

    def header(self, run_id: str) -> RunHeader:
        path = self.path(run_id) / "run.json"
        fields = _read_json(path)
        if not isinstance(fields, dict):
            raise CorruptRun(
                f"{path} is not a JSON object",
                advice="restore it; the records can be read without it",
            )
        if fields.get("run_id", run_id) != run_id:
            raise _other_run(path, RunHeader(fields))
        return RunHeader(fields)

    def catalog_json(self, run_id: str, file: str, revision: str) -> Any:
        return _read_json(self.path(run_id) / file)

    def stamps(self) -> dict[str, RunStamp]:
        return {run_id: _stamp(f"{self.where}/{run_id}") for run_id in self.run_ids()}

    def lines_after(
        self, run_id: str, positions: Mapping[str, int]
    ) -> dict[str, Iterator[tuple[bytes, int]]]:
        path = self.path(run_id)
        self._check_owner(run_id)
        return {
            name: _lines_after(path / name, positions.get(name, 0), size)
            for name, size in _sizes(path).items()
        }

    def _check_owner(self, run_id: str) -> None:
        """Raise CorruptRun if the folder is a copy of another run's, whose records would count
        twice. Records without a readable header are read.
        """
        path = self.path(run_id) / "run.json"
        try:
            fields = _read_json(path)
        except CorruptRun:
            return
        if isinstance(fields, dict) and fields.get("run_id", run_id) != run_id:
            raise _other_run(path, RunHeader(fields))

    def torn(self, run_id: str) -> tuple[TornTail, ...]:
        path = self.path(run_id)
        return tuple(
            torn for name in FILES.values() if (torn := _torn_tail_of(path, name)) is not None
        )

    def artifacts(self, run_id: str) -> ArtifactReader:
        return ArtifactReader(self.path(run_id))

    def labels(self, run_id: str) -> list[StepLabel]:
        return read_labels(self.path(run_id))

    def add_label(self, run_id: str, correction: StepLabel) -> str:
        return str(append_label(self.path(run_id), correction))

    def texts(self, run_id: str) -> Iterator[tuple[str, Iterable[str]]]:
        for path in sorted(self.path(run_id).glob("*.json*")):
            with _open_regular_file(path) as fd:
                if fd is not None:
                    data = io.BufferedReader(_WithoutHoles(fd, closefd=False), _BLOCK)
                    with io.TextIOWrapper(data, encoding="utf-8", errors="surrogateescape") as file:
                        yield path.name, iter(partial(file.readline, MAX_LINE), "")

    # --- deleting ---------------------------------------------------------------------------------

    def delete(self, run_id: str) -> bool:
        """Delete a run while holding its lock; return False if it is in use.

        It is renamed first, so that after power loss a half-deleted run is no run, and the next
        prune finishes the deletion.
        """
        path = self.root / run_id
        with (
            _explain_os_errors("delete", path),
            contextlib.suppress(FileNotFoundError),  # another prune deletes it
            Opened(
                os.open(path / FILES["routing"], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            ) as lock,
        ):
            if _other_writer(lock) is not None:
                return False
            if os.path.samestat(
                os.fstat(lock), (path / FILES["routing"]).lstat()
            ):  # else it is a new run
                if (
                    self.heads is not None
                ):  # before: a run that was deleted and is not marked counts as taken away
                    self.heads.prune(run_id)
                doomed = self.root / f"{_DELETING}{run_id}"
                path.rename(doomed)
                _remove(doomed)
        return True

    def finish_deletions(self) -> None:
        """Also delete bytes that no run names, and unfinished files of killed processes that are
        over a day old.
        """
        ArtifactPool(self.where).free()
        for run_id in self.run_ids():
            ArtifactReader(self.root / run_id).free_unfinished(time.time() - 86_400)
        for leftover in sorted(self.root.glob(f"{_DELETING}*")):
            with _explain_os_errors("delete", leftover):
                _remove(leftover)

    # --- copies of whole runs ---------------------------------------------------------------------

    def take_in(self, source: RunArchive, run_id: str) -> None:
        """Copy a whole run from another archive into a folder of its id."""
        path = self.root / run_id
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                with private_folder(_IMPORTING, self.root) as temporary:
                    _write_files(source, run_id, Path(temporary))
                    _UnnamedRun(temporary).check_whole(run_id)
                    Path(temporary).rename(path)
                    return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another import of it was first
                raise storage_error(f"can't write {path}", error) from error
        raise RequestError(
            f"run {run_id!r} is already in {self.root}",
            advice="prune it first, or choose another folder",
        )


class _UnnamedRun(Archive):
    """A run in a folder that does not have its name yet."""

    def path(self, run_id: str) -> Path:
        return self.root


def _write_files(source: RunArchive, run_id: str, folder: Path) -> None:
    header = source.header(run_id)
    for entry in header.catalogs:
        _write(
            folder / entry.file, [encode(source.catalog(run_id, entry.revision)).encode("ascii")]
        )
    for name, lines in source.lines(run_id).items():
        _write(folder / name, lines)
    if labels := source.labels(run_id):
        _write(folder / LABELS, ((label_line(label) + "\n").encode("ascii") for label in labels))
    artifacts = source.artifacts(run_id)
    target = RunArtifacts(folder)
    for artifact in artifacts.iter():
        target.put(artifacts.get(artifact.sha256))
    _write(folder / "run.json", [header.to_text().encode("ascii")])


def _write(path: Path, lines: Iterable[bytes]) -> None:
    with open(
        path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)
    ) as file:
        file.writelines(lines)


def _other_run(path: Path, header: RunHeader) -> CorruptRun:
    return CorruptRun(
        f"{path} belongs to run {header.run_id!r}",
        advice="the folder was renamed or copied: give it its old name, or keep copies elsewhere",
    )


# --- files ----------------------------------------------------------------------------------------


@contextmanager
def _open_regular_file(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of a regular file; None if there is no such file.

    Raises StorageError, CorruptRun.
    """
    with _explain_os_errors("read", path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        with Opened(fd):
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CorruptRun(
                    f"{path} is not a regular file", advice="no run has that; remove the directory"
                )
            yield fd


def _read_json(path: Path) -> Any:
    """Return the value of a small JSON file.

    Raises CorruptRun if it is absent, not JSON, or over 64 MiB.
    """
    with _open_regular_file(path) as fd:
        if fd is None:
            raise CorruptRun(
                f"{path} is missing", advice="restore it; the records can be read without it"
            )
        size = os.fstat(fd).st_size
        if size > _MAX_JSON:
            raise CorruptRun(
                f"{path} has {size} bytes, over the {_MAX_JSON} it may have", advice="restore it"
            )
        try:
            return decode(os.pread(fd, size, 0).decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise CorruptRun(
                f"{path} is not JSON", advice="restore it; the records can be read without it"
            ) from error


def _torn_tail_of(path: Path, name: str) -> TornTail | None:
    """Return the torn end of one file, if it has one."""
    with _open_regular_file(path / name) as fd:
        if fd is None:
            return None
        size = os.fstat(fd).st_size
        begin = max(0, size - MAX_LINE)
        end = begin + boundary(
            lambda offset, length: os.pread(fd, length, begin + offset), size - begin
        )
    return TornTail(name, end, size - end) if end < size else None


def _sizes(path: Path) -> dict[str, int]:
    """Return a consistent snapshot of the sizes of a run's files, so that no record is seen without
    its predecessor.

    Files only grow: if the first still has its size after the others were read, all had these sizes
    together.
    """
    first, *rest = FILES.values()
    sizes: dict[str, int] = {}
    for _ in range(1000):
        sizes = {first: _size(path / first)} | {name: _size(path / name) for name in rest}
        if _size(path / first) == sizes[first]:
            break
    return sizes


def _size(path: Path) -> int:
    with _explain_os_errors("read", path), contextlib.suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0


def _stamp(run_dir: str) -> RunStamp:
    """Return the sizes of the record files, and inode and time of each relevant file."""
    sizes = 0
    names = []
    for name in (*FILES.values(), "run.json", LABELS):
        try:
            status = os.lstat(
                f"{run_dir}/{name}"
            )  # three times as fast as Path's: 40,000 calls for 10,000 runs
        except OSError:
            names.append("-")
            continue
        sizes += status.st_size if len(names) < len(FILES) else 0
        size = status.st_size if len(names) >= len(FILES) else ""
        names.append(f"{status.st_ino}:{status.st_mtime_ns}:{size}")
    return RunStamp(sizes, " ".join(names[: len(FILES)]), " ".join(names[len(FILES) :]))


def _lines_after(path: Path, position: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete lines within the first `size` bytes of a file, from `position` on, each
    with the position after it, up to one that holds no text. A line over MAX_LINE comes as its
    beginning, and is the last.
    """
    with _open_regular_file(path) as fd:
        if fd is None:
            return
        os.lseek(fd, position, os.SEEK_SET)
        with open(fd, "rb", buffering=_BLOCK, closefd=False) as file:
            while position < size:
                line = file.readline(min(size - position, MAX_LINE))
                if not line.endswith(b"\n") and len(line) < MAX_LINE:
                    return
                position += len(line)
                yield line, position
                if b"\0" in line or not line.endswith(
                    b"\n"
                ):  # no record: behind it may be a hole of any length
                    return


def _line_count(path: Path) -> int:
    """Return the number of whole lines of an unclosed run's files: its records, unless someone
    tampered with them.
    """
    total = 0
    for name in FILES.values():
        with _open_regular_file(path / name) as fd:
            if fd is None:
                data = None
            else:
                data = io.BufferedReader(_WithoutHoles(fd, closefd=False), _BLOCK)
            while data is not None and (block := data.read(_BLOCK)):
                total += block.count(b"\n")
    return total


def _writer(path: Path) -> int | None:
    """Return the pid of a process that has the run open (0 if unknown); None if none has."""
    with (
        contextlib.suppress(CorruptRun, StorageError),
        _open_regular_file(path / FILES["routing"]) as fd,
    ):
        return None if fd is None else _other_writer(fd)
    return None


def _other_writer(fd: int) -> int | None:
    """Return as `_writer` does, with an exclusive lock on the file if None.

    Writers hold a shared lock; whoever else looks for them holds an exclusive one for an instant,
    which is waited for.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pids := holders(fd, "READ"):
                return next((pid for pid in pids if pid != os.getpid()), pids[0])
            time.sleep(_PAUSE_S)
        else:
            return None
    return 0


def _tree_bytes(path: Path) -> int:
    """Return the total bytes of all files below a directory. Links are counted, not followed."""
    total = 0
    folders = [os.fspath(path)]
    while folders:  # however deep
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _remove(path: Path) -> None:
    """Delete a directory that is no run any more.

    Repeat if a writer, which opened the run before it was renamed, still adds a file (that writer
    will notice, and begin a new run).
    """
    for attempt in range(_TRIES):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return  # another prune is deleting it
        except RecursionError:
            raise OSError(errno.ENAMETOOLONG, "its folders are nested too deep") from None
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == _TRIES - 1:
                raise
        else:
            return


@contextmanager
def _explain_os_errors(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(f"can't {doing} {path}", error) from error
