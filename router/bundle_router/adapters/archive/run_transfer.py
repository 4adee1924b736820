"""Copies whole runs from one store to another, by way of the directory form."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bundle_router.adapters.archive import Archive, RunArchive
from bundle_router.adapters.archive.label_files import FILE as LABELS
from bundle_router.adapters.archive.label_files import label_line
from bundle_router.adapters.artifact_files import RunArtifacts
from bundle_router.core.models.canonical import encode
from bundle_router.errors import CorruptRun, RequestError, needs_extra, storage_error

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
    path, temporary = root / run_id, root / f"{_BEGUN}{run_id}"
    if path.exists():
        raise RequestError(f"run {run_id!r} is already in {root}", advice="prune it first, or choose another folder")
    try:
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=0o700)
        header = source.header(run_id)
        for one in header.catalogs:
            _write(temporary / one.file, [encode(source.catalog(run_id, one.revision)).encode("ascii")])
        for name, lines in source.lines(run_id).items():
            _write(temporary / name, lines)
        if labels := source.labels(run_id):
            _write(temporary / LABELS, ((label_line(label) + "\n").encode("ascii") for label in labels))
        kept, target = source.artifacts(run_id), RunArtifacts(temporary)
        for artifact in kept.iter():
            target.put(kept.get(artifact.sha256))
        _write(temporary / "run.json", [header.to_text().encode("ascii")])
        temporary.rename(path)
    except OSError as error:
        raise storage_error(f"can't write {path}", error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def _write(path: Path, lines: Iterable[bytes]) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)) as file:
        file.writelines(lines)
