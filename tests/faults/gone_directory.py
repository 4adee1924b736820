"""F-05: the run directory becomes read-only or is deleted while runs are written.

Each loss is an error, none silent.

A kernel refuses `remount,ro` while files are open for writing, so read-only is met when runs are
opened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bundle_router.adapters.archive import Archive
from bundle_router.errors import StorageError
from rig import Verdict, numbers, open_run, quick, record


def kind_of(action: object) -> str:
    """The kind of the StorageError that calling `action` raises; `none` when it raises nothing."""
    try:
        action()  # type: ignore[operator]  # any callable
    except StorageError as error:
        return error.kind
    return "none"


def deleted_while_running(runs: Path, verdict: Verdict) -> None:
    log = open_run(runs)
    log.append("routing", record(0, 10))
    shutil.rmtree(runs / "r-1")
    for file in ("routing", "calls"):
        found = kind_of(lambda file=file: log.append(file, record(1, 10)))
        verdict.check(found == "deleted", f"append to {file} of a deleted run: {found}")
    log.close()
    verdict.check(not (runs / "r-1").exists(), "a deleted run came back")
    again = open_run(runs)
    again.append("routing", record(2, 10))
    again.close()
    verdict.check(numbers(runs) == [2], "a new run of the same id does not start empty")


def one_file_deleted(runs: Path, verdict: Verdict) -> None:
    log = open_run(runs)
    log.append("calls", record(3, 10))
    (runs / "r-1" / "tool-calls.jsonl").unlink()
    found = kind_of(lambda: log.append("calls", record(4, 10)))
    verdict.check(found == "deleted", f"append to a deleted file: {found}")
    log.close()
    verdict.check(
        not Archive(runs).verify("r-1").ok or numbers(runs) == [2], "a lost file is not reported"
    )


def remounted(folder: Path, verdict: Verdict) -> str:
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(folder)]
    if (
        os.geteuid() != 0
        or subprocess.run(mounted, capture_output=True, check=False).returncode != 0
    ):
        return "skipped: it takes root and mount"
    try:
        runs = folder / "runs"
        log = open_run(runs)
        log.append("routing", record(0, 10))
        busy = subprocess.run(
            ["mount", "-o", "remount,ro", str(folder)], capture_output=True, check=False
        ).returncode
        if busy:
            log.append("routing", record(1, 10))
        else:
            found = kind_of(lambda: log.append("routing", record(1, 10)))
            verdict.check(found == "read_only", f"append on a read-only disk: {found}")
        log.close()
        before = numbers(runs)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        found = kind_of(lambda: open_run(runs))
        verdict.check(found == "read_only", f"open on a read-only disk: {found}")
        verdict.check(Archive(runs).verify("r-1").ok, "a read-only run can't be verified")
        verdict.check(numbers(runs) == before, "a read-only run reads differently")
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        again = open_run(runs)
        again.append("routing", record(2, 10))
        again.close()
        verdict.check(
            numbers(runs) == [*before, 2], "a run did not go on when the disk was writable again"
        )
        return "refused while open: busy" if busy else "taken while open"
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def main() -> None:
    quick()
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        deleted_while_running(folder / "runs", verdict)
        one_file_deleted(folder / "runs", verdict)
        (folder / "disk").mkdir()
        remount = remounted(folder / "disk", verdict)
    verdict.end(deleted="checked", remount=remount)


if __name__ == "__main__":
    main()
