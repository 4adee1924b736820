"""F-01: kill -9 while records are written.

Every acknowledged one is readable after it, and the next start goes on.

200 kills over well above 10,000 records of 1.5 kB, some of 200 kB, so that kills land inside
writes.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from bundle_router.adapters.archive import Archive
from rig import Verdict, Writer, numbers, open_run, quick, unreadable_lines


def size(number: int) -> int:
    return 200_000 if number % 40 == 0 else 1_300


def main() -> None:
    kills = 10 if quick() else 200
    dice, verdict = random.Random(9), Verdict()
    acknowledged: list[int] = []
    torn = done = 0
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for done in range(1, kills + 1):
            writer = Writer(runs, first=10_000_000 * done, size=size)
            writer.ready()
            writer.read(dice.randint(30, 100))
            writer.kill()
            acknowledged += writer.acknowledged
            for name, line, is_tail in (
                unreadable_lines(runs) if done % 10 == 0 or done < 10 else ()
            ):
                verdict.check(is_tail, f"kill {done}: {name}:{line} is unreadable and no torn end")
            torn += len(Archive(runs).torn("r-1"))
            if verdict.time_is_up:
                break
        log = open_run(runs)
        log.close()
        kept = numbers(runs)
        verdict.check(done == kills, f"only {done} of {kills} kills in time")
        verdict.check(sorted(kept) == kept, "records are out of order")
        missing = sorted(set(acknowledged) - set(kept))
        verdict.check(not missing, f"acknowledged and lost: {missing[:5]}")
        extra = len(set(kept) - set(acknowledged))
        verdict.check(
            extra <= kills, f"{extra} records that nobody acknowledged, over one for each kill"
        )
        report = Archive(runs).verify("r-1")
        verdict.check(
            report.ok and report.records == len(kept), f"verify: {report.broken} {report.problems}"
        )
        healed = len(Archive(runs).header("r-1").healed)
        verdict.check(healed == torn, f"{torn} torn ends, {healed} reported as healed")
    verdict.end(
        kills=done,
        acknowledged=len(acknowledged),
        kept=len(kept),
        torn_ends=torn,
        healed_and_reported=healed,
    )


if __name__ == "__main__":
    main()
