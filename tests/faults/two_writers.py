"""F-02, F-23: two processes and one run, with records of 200 kB. The second is refused with the owner's pid, also while
the owner is stopped; when the owner is killed the second takes over, and nothing acknowledged is unreadable."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from bundle_router.adapters.archive import Archive
from bundle_router.errors import RunInUse
from rig import Verdict, Writer, numbers, open_run, quick, unreadable_lines


def refused_with(runs: Path) -> int | None:
    """The pid that a second writer is told, or None when it was let in."""
    try:
        open_run(runs).release()
    except RunInUse as error:
        return error.pid
    return None


def trial(runs: Path, verdict: Verdict, name: str) -> int:
    first = Writer(runs, first=0, size=lambda number: 200_000)
    first.ready()
    first.read(3)
    verdict.check(refused_with(runs) == first.pid, f"{name}: a second writer beside a running one")
    os.kill(first.pid, signal.SIGSTOP)
    verdict.check(refused_with(runs) == first.pid, f"{name}: a second writer beside a stopped one")
    os.kill(first.pid, signal.SIGCONT)
    first.read(2)
    first.kill()
    second = Writer(runs, first=1_000_000, size=lambda number: 200_000)
    second.ready()
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
