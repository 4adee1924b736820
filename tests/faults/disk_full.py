"""F-03: the disk fills up.

The error is typed, nothing is acknowledged, the file ends at a record boundary, and the same log
goes on once there is space again. Under a limit of the file size and, as root, on a tmpfs of 64
kB.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
from pathlib import Path

from bundle_router.adapters.archive import Archive
from bundle_router.adapters.run_log import DiskRunLog
from bundle_router.errors import StorageError
from rig import Verdict, numbers, open_run, quick, record

KINDS = {"disk_full", "short_write"}


def fill(
    log: DiskRunLog, runs: Path, verdict: Verdict, number: int, size: int
) -> tuple[int, list[int]]:
    """Appends until the disk is full, and three times more.

    Returns the next number and those acknowledged.
    """
    acknowledged: list[int] = []
    refusals = 0
    while refusals < 4 and number < 10_000:
        try:
            log.append("routing", record(number, size))
            acknowledged.append(number)
        except StorageError as error:
            refusals += 1
            verdict.check(error.kind in KINDS, f"kind {error.kind}: {error.message}")
            verdict.check(bool(error.advice), "no advice")
            end = (runs / "r-1" / "routing.jsonl").read_bytes()[-1:]
            verdict.check(end in (b"\n", b""), "the file does not end at a record boundary")
        number += 1
    verdict.check(refusals == 4, "the disk never became full")
    return number, acknowledged


def on_small_disk(folder: Path, verdict: Verdict) -> int:
    runs = folder / "runs"
    ballast = [folder / f"ballast-{n}" for n in range(3)]
    for path in ballast:
        path.write_bytes(b"x" * 8_192)
    log = open_run(runs)
    acknowledged: list[int] = []
    number = 0
    try:
        for path in ballast:
            number, more = fill(log, runs, verdict, number, size=700)
            path.unlink()  # space returns; no restart
            log.append("routing", record(number, 700))
            acknowledged += [*more, number]
            number += 1
        acknowledged += fill(log, runs, verdict, number, size=700)[1]
    finally:
        log.release()
    verdict.check(numbers(runs) == acknowledged, "what is on disk is not what was acknowledged")
    verdict.check(Archive(runs).verify("r-1").broken is None, "the chain is broken")
    return len(acknowledged)


def under_limit(folder: Path, verdict: Verdict) -> int:
    """The same in a process whose files may not grow beyond 40 kB, raised once in between."""
    runs = folder / "runs"
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = open_run(runs)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    acknowledged: list[int] = []
    number = 0
    for limit in (40_000, 80_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        number, more = fill(log, runs, verdict, number, size=700)
        acknowledged += more
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    log.append("routing", record(number, 700))
    log.close()
    verdict.check(
        numbers(runs) == [*acknowledged, number], "what is on disk is not what was acknowledged"
    )
    verdict.check(Archive(runs).verify("r-1").ok, "verify")
    return len(acknowledged)


def mount(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(folder)]
    return (
        os.geteuid() == 0
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def main() -> None:
    quick()
    verdict = Verdict()
    summary: dict[str, object] = {"small_disk": "skipped: it takes root and mount"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "disk").mkdir()
        if mount(folder / "disk"):
            try:
                summary["small_disk"] = f"{on_small_disk(folder / 'disk', verdict)} acknowledged"
            finally:
                subprocess.run(["umount", str(folder / "disk")], check=True)
        summary["file_size_limit"] = f"{under_limit(folder, verdict)} acknowledged"
    verdict.end(**summary)


if __name__ == "__main__":
    main()
