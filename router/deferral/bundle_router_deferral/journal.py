"""Changes files so that every change can be undone: a lock, backups, a journal, and writing by
rename.

Rules:
1. A file is changed only while it has the content that the plan was made from, which is checked
   before the rename.
2. Order: backup, `begun` in the journal, new bytes beside each file, rename of each, `applied` in
   the journal; each of these is on disk before the next begins. So whoever opens the journal after
   a crash reverts an unfinished change (and completes an unfinished undo), and each file is at any
   moment either the old or the new one.
3. Several files are changed together or not at all.
4. Undo refuses a file that was changed since; otherwise it restores the same bytes and mode.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.text_files import sync_folder
from bundle_router.errors import RequestError, storage_error

from bundle_router_deferral.plans import FileEdit

SCHEMA: Final = "bundle-router.deferral-journal/1"
PRIVATE: Final = 0o600


def state_folder(environment: Mapping[str, str], home: Path) -> Path:
    """Return the folder of backups, the journal, probes and the proxy's store."""
    folder = environment.get("XDG_STATE_HOME")
    return (Path(folder) if folder else home / ".local/state") / "bundle-router/deferral"


def digest(data: bytes | None) -> str | None:
    if data is None:
        return None
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Disk:
    """The system calls of a change.

    `step` is called before each, so that a test can crash there.
    """

    def step(self, name: str, path: Path) -> None:
        """Do nothing; a test crashes here, before a call that changes something."""

    def read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write_new(
        self, path: Path, data: bytes, mode: int, owner: tuple[int, int] | None = None
    ) -> None:
        """Write and sync a new file, replacing a leftover of that name."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self.step("create", path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE)
        with os.fdopen(handle, "wb") as file:
            self.step("write", path)
            file.write(data)
            file.flush()
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), *owner)
            self.step("chmod", path)
            os.fchmod(file.fileno(), mode)
            self.step("fsync", path)
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", target)
        source.replace(target)
        self.sync_folder(target.parent)

    def delete(self, path: Path) -> None:
        self.step("delete", path)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self.sync_folder(path.parent)

    def sync_folder(self, folder: Path) -> None:
        self.step("fsync folder", folder)
        sync_folder(folder)

    def append(self, path: Path, line: bytes) -> None:
        self.step("append", path)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line  # the last writer was cut off
            file.write(line)
            self.step("fsync", path)
            os.fsync(file.fileno())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


class Journal:
    """The journal of one state folder. Use `locked` around every change."""

    def __init__(
        self, folder: Path, disk: Disk | None = None, now: Callable[[], str] = _now
    ) -> None:
        self.folder = folder
        self._disk = disk or Disk()
        self._now = now
        self._file = folder / "journal.jsonl"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; first settle what a crash left unfinished.

        Raises RequestError if another holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, PRIVATE)) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RequestError(
                    "another change is under way", advice="try again when it has ended"
                ) from None
            self._settle()
            yield

    def entries(self) -> list[dict[str, Any]]:
        """Return the newest state of each change, oldest first. Unreadable lines are skipped."""
        newest: dict[str, dict[str, Any]] = {}
        for line in (self._disk.read(self._file) or b"").splitlines():
            try:
                entry = json.loads(line)
                newest[entry["id"]] = {**newest.get(entry["id"], {}), **entry}
            except (ValueError, TypeError, KeyError):
                continue
        return list(newest.values())

    def apply(self, edits: Sequence[FileEdit], about: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out the edits together, and return the journal's entry.

        Raises RequestError if a file differs from the plan's, and StorageError (with everything
        restored) if the disk fails.
        """
        identity = self._new_id()
        changes = [self._change(identity, number, edit) for number, edit in enumerate(edits)]
        entry = {
            "schema": SCHEMA,
            "id": identity,
            "time": self._now(),
            "state": "begun",
            **about,
            "changes": changes,
        }
        try:
            for change, edit in zip(changes, edits, strict=True):
                if edit.before is not None:
                    backup = self.folder / change["backup"]
                    backup.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    self._disk.write_new(backup, edit.before, PRIVATE)
                    self._disk.sync_folder(backup.parent)
            self._append(entry)
            for change, edit in zip(changes, edits, strict=True):
                self._put(change, edit.after, change["before"])
            self._append({"id": identity, "state": "applied", "applied": self._now()})
        except OSError as error:
            self._settle()
            raise storage_error(
                "the change could not be carried out, and was taken back", error
            ) from error
        except RequestError:
            self._settle()
            raise
        return {**entry, "state": "applied"}

    def undo(self, identity: str) -> dict[str, Any]:
        """Restore a change's files, bytes and mode.

        Raises RequestError if one was changed since.
        """
        entry = next((entry for entry in self.entries() if entry["id"] == identity), None)
        if entry is None:
            raise RequestError(
                f"there is no change {identity!r}", advice="see `bundle-router deferral status`"
            )
        if entry["state"] != "applied":
            raise RequestError(
                f"the change {identity} is {entry['state']}, so there is nothing to undo"
            )
        for change in entry["changes"]:
            if digest(self._disk.read(Path(change["path"]))) != change["after"]:
                if change["backup"]:
                    advice = f"its old bytes are in {self.folder / change['backup']}"
                else:
                    advice = ""
                raise RequestError(
                    f"{change['path']} was changed since, so it is left as it is", advice=advice
                )
        self._append({"id": identity, "state": "undoing"})
        try:
            self._restore(entry, fresh=False)
        except OSError as error:
            raise storage_error(
                "the undo did not finish; it goes on with the next command", error
            ) from error
        self._append({"id": identity, "state": "undone", "undone": self._now()})
        return {**entry, "state": "undone"}

    def _new_id(self) -> str:
        stem = self._now()[:19].replace(":", "").replace("-", "")
        used = {entry["id"] for entry in self.entries()}
        return next(name for n in range(10_000) if (name := f"{stem}-{n}") not in used)

    def _change(self, identity: str, number: int, edit: FileEdit) -> dict[str, Any]:
        """Describe one file's change, after checking that the file may be changed and still matches
        the plan.
        """
        path = Path(edit.path).resolve()
        data = self._disk.read(path)
        if data != edit.before:
            raise RequestError(f"{path} was changed after the plan was made", advice="plan again")
        mode = edit.mode or PRIVATE
        owner = [os.geteuid(), os.getegid()]
        if data is not None:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IWUSR:
                raise RequestError(f"{path} is read-only, so it is left as it is")
            if status.st_nlink > 1:
                raise RequestError(
                    f"{path} has several hard links, so it is left as it is",
                    advice="edit it by hand",
                )
            mode = stat.S_IMODE(status.st_mode)
            owner = [status.st_uid, status.st_gid]
        backup = None if data is None else f"backups/{identity}/{number}"
        return {
            "path": str(path),
            "before": digest(data),
            "after": digest(edit.after),
            "backup": backup,
            "mode": mode,
            "owner": owner,
        }

    def _put(self, change: Mapping[str, Any], data: bytes | None, expected: str | None) -> None:
        """Replace a file's bytes by rename, if it still has the expected ones."""
        path = Path(change["path"])
        if data is None:
            self._disk.delete(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.bundle-router")
        self._disk.write_new(
            temporary, data, change["mode"], (change["owner"][0], change["owner"][1])
        )
        if digest(self._disk.read(path)) != expected:
            temporary.unlink()
            raise RequestError(
                f"{path} was changed in the meantime, so it is left as it is", advice="plan again"
            )
        self._disk.rename(temporary, path)

    def _restore(self, entry: Mapping[str, Any], *, fresh: bool) -> None:
        """Restore the files that have the new bytes, the last first."""
        for change in reversed(entry["changes"]):
            path = Path(change["path"])
            if fresh:
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(f".{path.name}.bundle-router").unlink()
            if (
                change["before"] == change["after"]
                or digest(self._disk.read(path)) != change["after"]
            ):
                continue  # not changed yet, restored already, or changed by someone else
            old = self._disk.read(self.folder / change["backup"]) if change["backup"] else None
            if digest(old) != change["before"]:
                raise RequestError(f"the backup of {path} is damaged, so it is left as it is")
            self._put(change, old, change["after"])

    def _settle(self) -> None:
        """Revert changes that were begun but not ended, and complete undos."""
        for entry in self.entries():
            if entry["state"] in ("begun", "undoing"):
                self._restore(entry, fresh=True)
                state = "undone" if entry["state"] == "undoing" else "taken back"
                self._append({"id": entry["id"], "state": state, "undone": self._now()})

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._disk.append(self._file, json.dumps(entry, ensure_ascii=True).encode() + b"\n")
