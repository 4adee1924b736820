"""F-02, F-23, E-05: processes that write one run side by side, with records of 200 kB.

Each goes on whatever becomes of the other: stopped, it keeps nobody (or is named, when it was
stopped with the lock in its hands); killed, nothing that it acknowledged is unreadable.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from bundle_router.adapters.archive import Archive
from bundle_router.errors import RunBusy
from rig import Verdict, Writer, numbers, open_run, quick, record, unreadable_lines


def appended(runs: Path, number: int) -> bool | int:
    """Whether a third process gets a record in; the pid it is told, where it does not."""
    log = open_run(runs)
    try:
        return log.append("calls", record(number, 10), wait_s=0.5).seq is not None
    except RunBusy as busy:
        return busy.pid
    finally:
        log.release()


def trial(runs: Path, verdict: Verdict, name: str) -> int:
    first = Writer(runs, first=0, size=lambda number: 200_000)
    first.ready()
    second = Writer(runs, first=1_000_000, size=lambda number: 200_000)
    second.ready()
    first.read(3)
    second.read(3)
    os.kill(first.pid, signal.SIGSTOP)
    while (found := appended(runs, 2_000_000)) in (second.pid, 0):
        # a slow machine takes its time over it with the lock in its hands, or lets go of it just as
        # one looks
        pass
    verdict.check(found is True or found == first.pid, f"{name}: beside a stopped writer: {found}")
    os.kill(first.pid, signal.SIGCONT)
    first.read(2)
    first.kill()
    second.read(3)
    second.kill()
    open_run(runs).close()
    missing = {*first.acknowledged, *second.acknowledged} - set(numbers(runs))
    verdict.check(not missing, f"{name}: acknowledged and lost: {sorted(missing)[:5]}")
    verdict.check(not list(unreadable_lines(runs)), f"{name}: unreadable lines")
    verdict.check(Archive(runs).verify("r-1").ok, f"{name}: verify")
    return len(first.acknowledged) + len(second.acknowledged)


def main() -> None:
    trials = 2 if quick() else 25
    verdict = Verdict()
    acknowledged = done = 0
    for done in range(1, trials + 1):
        with tempfile.TemporaryDirectory() as folder:
            acknowledged += trial(Path(folder) / "runs", verdict, f"trial {done}")
        if verdict.time_is_up:
            break
    verdict.check(done == trials, f"only {done} of {trials} trials in time")
    verdict.end(trials=done, acknowledged=acknowledged)


if __name__ == "__main__":
    main()
