"""Copies whole runs from one store to another, by way of the directory form."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bundle_router.adapters.archive import Archive, RunArchive
from bundle_router.adapters.archive.label_files import FILE as LABELS
from bundle_router.adapters.archive.label_files import label_line
from bundle_router.adapters.artifact_files import RunArtifacts
from bundle_router.core.values.canonical import encode
from bundle_router.errors import CorruptRun, RequestError, storage_error
from bundle_router.local_tools.private_folders import private_folder

_BEGUN: Final = ".importing-"
"""Prefix of a run that is being written; no run id starts with a dot."""


class _UnnamedRun(Archive):
    """A run in a folder that does not have its name yet."""

    def path(self, run_id: str) -> Path:
        return self.root


def copy_run(source: RunArchive, run_id: str, target: RunArchive) -> None:
    """Copy a whole run.

    Raises CorruptRun for a broken one, RequestError if the target has its id, StorageError.
    """
    source.check_whole(run_id)
    try:
        if isinstance(target, Archive):
            _write_directory(source, run_id, target.root)
            return
        from bundle_router.adapters.archive.database import PostgresArchive

        assert isinstance(target, PostgresArchive)  # noqa: S101 - there is no third
        target.take_in(source, run_id)
    except KeyError as error:
        raise CorruptRun(
            f"artifact {error} of run {run_id!r} is gone", advice="it was not copied"
        ) from None


def _write_directory(source: RunArchive, run_id: str, root: Path) -> None:
    path = root / run_id
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with private_folder(_BEGUN, root) as temporary:
                _write_files(source, run_id, Path(temporary))
                _UnnamedRun(temporary).check_whole(run_id)
                Path(temporary).rename(path)
                return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another import of it was first
            raise storage_error(f"can't write {path}", error) from error
    raise RequestError(
        f"run {run_id!r} is already in {root}", advice="prune it first, or choose another folder"
    )


def _write_files(source: RunArchive, run_id: str, folder: Path) -> None:
    header = source.header(run_id)
    for one in header.catalogs:
        _write(folder / one.file, [encode(source.catalog(run_id, one.revision)).encode("ascii")])
    for name, lines in source.lines(run_id).items():
        _write(folder / name, lines)
    if labels := source.labels(run_id):
        _write(folder / LABELS, ((label_line(label) + "\n").encode("ascii") for label in labels))
    kept = source.artifacts(run_id)
    target = RunArtifacts(folder)
    for artifact in kept.iter():
        target.put(kept.get(artifact.sha256))
    _write(folder / "run.json", [header.to_text().encode("ascii")])


def _write(path: Path, lines: Iterable[bytes]) -> None:
    with open(
        path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)
    ) as file:
        file.writelines(lines)
