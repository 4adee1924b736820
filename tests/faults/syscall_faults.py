"""F-04: the kernel's own answers go wrong (strace injects them): call k on the log fails, is short,
or is interrupted.

For every k the writer goes on, and the run reopens with exactly what was acknowledged; after a
failed fdatasync nothing more is acknowledged. Skipped where strace is missing or may not trace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bundle_router.adapters.archive import Archive
from bundle_router.errors import StorageError
from rig import Verdict, numbers, open_run, quick, record

RECORDS = 5
STRACE = ["strace", "--seccomp-bpf", "-f", "-qq", "-o", "/dev/null"]
VARIANTS = [
    ("process", "write", "error=EIO"),
    ("process", "write", "error=ENOSPC"),
    ("process", "write", "error=EINTR"),
    ("process", "write", "retval=4"),
    ("process", "fstat,newfstatat", "error=EIO"),
    ("disk", "fdatasync", "error=EIO"),
]


def write(runs: Path, durability: str) -> None:
    """The traced child: prints the number of every acknowledged record, and `!` for every refused
    one.
    """
    log = open_run(runs, durability="disk" if durability == "disk" else "process")
    for number in range(RECORDS):
        try:
            log.append("routing", record(number, 500))
            log.sync()
        except StorageError:
            said = "!"
        else:
            said = str(number)
        os.write(1, f"{said}\n".encode())
    log.close()


def trial(runs: Path, verdict: Verdict, variant: tuple[str, str, str], k: int) -> None:
    durability, call, how = variant
    log = runs / "r-1" / "routing.jsonl"
    open_run(runs).close()  # the path has to exist for strace to know it
    command = [
        "strace",
        "--seccomp-bpf",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-P",
        str(log),
        "-e",
        f"inject={call}:{how}:when={k}",
    ]
    child = [sys.executable, str(Path(__file__).resolve()), "--write", str(runs), durability]
    done = subprocess.run(
        [*command, *child], capture_output=True, text=True, timeout=300, check=False
    )
    said = done.stdout.split()
    where = f"{call} {how}, call {k}"
    acknowledged = [int(word) for word in said if word != "!"]
    refused = said.count("!")
    if "Error" in done.stderr and "StorageError" not in done.stderr:
        verdict.check(False, f"{where}: {done.stderr[-300:]}")
    if durability == "disk":
        verdict.check(acknowledged == list(range(k - 1)), f"{where}: acknowledged {said}")
        verdict.check(
            refused == RECORDS - (k - 1), f"{where}: acknowledged after a failed fdatasync: {said}"
        )
    elif how == "error=EINTR":
        verdict.check(
            acknowledged == list(range(RECORDS)),
            f"{where}: an interrupted call is tried again: {said}",
        )
    elif call == "write":
        expected = [str(number) if number != k - 1 else "!" for number in range(RECORDS)]
        verdict.check(said == expected, f"{where}: {said}")
    else:  # the first looks at the file are for opening it: then nothing is said
        verdict.check(refused <= 1 and (not said or len(said) == RECORDS), f"{where}: {said}")
    open_run(runs).close()
    kept = numbers(runs)
    exact = kept == acknowledged or durability == "disk"
    verdict.check(
        exact and kept[: len(acknowledged)] == acknowledged, f"{where}: kept {kept} of {said}"
    )
    verdict.check(Archive(runs).verify("r-1").ok, f"{where}: verify")


def main() -> None:
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]), sys.argv[3])
        return
    short, verdict = quick(), Verdict()
    probe = [*STRACE, "true"]
    if (
        shutil.which("strace") is None
        or subprocess.run(probe, capture_output=True, check=False).returncode != 0
    ):
        verdict.end(skipped="strace is missing or may not trace here")
    trials = 0
    for variant in VARIANTS[1::2] if short else VARIANTS:
        for k in (3,) if short else range(1, RECORDS + 1):
            if not verdict.time_is_up:
                with tempfile.TemporaryDirectory() as folder:
                    trial(Path(folder) / "runs", verdict, variant, k)
                trials += 1
    verdict.check(short or trials == len(VARIANTS) * RECORDS, f"only {trials} trials in time")
    verdict.end(trials=trials, variants=[f"{call} {how}" for _, call, how in VARIANTS])


if __name__ == "__main__":
    main()
