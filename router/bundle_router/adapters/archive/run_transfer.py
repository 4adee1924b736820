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
from bundle_router.core.models.canonical import encode
from bundle_router.errors import CorruptRun, RequestError, needs_extra, storage_error
from bundle_router.tools.private_folders import private_folder

_BEGUN: Final = ".importing-"
"""Prefix of a run that is being written; no run id starts with a dot."""


def transfer(
    source: RunArchive, run_ids: list[str], target: RunArchive, *, named: bool
) -> list[CorruptRun | RequestError]:
    """Copy whole, intact runs; return why the refused ones were passed over. The target's own runs are not touched.

    A run that is broken (CorruptRun), or whose id the target has (RequestError), is raised if the runs were `named`.
    Raises StorageError.
    """
    refused: list[CorruptRun | RequestError] = []
    for run_id in run_ids:
        try:
            _copy(source, run_id, target)
        except (CorruptRun, RequestError) as error:
            if named:
                raise
            refused.append(error)
    return refused


def _copy(source: RunArchive, run_id: str, target: RunArchive) -> None:
    report = source.verify(run_id)
    if not report.ok:
        why = report.broken.detail if report.broken is not None else report.problems[0]
        raise CorruptRun(f"run {run_id!r} is not as it was written: {why}", advice="it was not copied")
    if isinstance(target, Archive):
        write_directory(source, run_id, target.root)
        return
    with needs_extra("a PostgreSQL store", "postgresql"):
        from bundle_router.adapters.archive.database import PostgresArchive

        assert isinstance(target, PostgresArchive)  # noqa: S101 - there is no third
        target.take_in(source, run_id)


def write_directory(source: RunArchive, run_id: str, root: Path) -> Path:
    """Write the directory form of a run, atomically. Raises RequestError, StorageError."""
    path = root / run_id
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with private_folder(_BEGUN, root) as temporary:
                _write_files(source, run_id, Path(temporary))
                Path(temporary).rename(path)
                return path
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another import of it was first
            raise storage_error(f"can't write {path}", error) from error
    raise RequestError(f"run {run_id!r} is already in {root}", advice="prune it first, or choose another folder")


def _write_files(source: RunArchive, run_id: str, folder: Path) -> None:
    header = source.header(run_id)
    for one in header.catalogs:
        _write(folder / one.file, [encode(source.catalog(run_id, one.revision)).encode("ascii")])
    for name, lines in source.lines(run_id).items():
        _write(folder / name, lines)
    if labels := source.labels(run_id):
        _write(folder / LABELS, ((label_line(label) + "\n").encode("ascii") for label in labels))
    kept, target = source.artifacts(run_id), RunArtifacts(folder)
    for artifact in kept.iter():
        target.put(kept.get(artifact.sha256))
    _write(folder / "run.json", [header.to_text().encode("ascii")])


def _write(path: Path, lines: Iterable[bytes]) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)) as file:
        file.writelines(lines)
