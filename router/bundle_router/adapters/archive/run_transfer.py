"""Copies whole runs from one store to another."""

from __future__ import annotations

from bundle_router.adapters.archive.archive import RunArchive
from bundle_router.errors import CorruptRun


def copy_run(source: RunArchive, run_id: str, target: RunArchive) -> None:
    """Copy a whole run.

    Raises CorruptRun for a broken one, RequestError if the target has its id, StorageError.
    """
    source.check_whole(run_id)
    try:
        target.take_in(source, run_id)
    except KeyError as error:
        raise CorruptRun(
            f"artifact {error} of run {run_id!r} is gone", advice="it was not copied"
        ) from None
