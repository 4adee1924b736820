"""100,000 decisions in one process, then 10,000 of them taken again:
`python tests/faults/soak.py [--count N]`.

Passes when memory and descriptors are flat after a warm-up, and every replayed decision is byte for
byte the same. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive
from bundle_router.core.records.replayed import catalog_from, replay

ADDRESSES = [
    (workflow, role, step)
    for workflow in ("feature", "bugfix", "elsewhere")
    for role in ("planner", "researcher", "implementer", "verifier", "reviewer")
    for step in ("plan", "edit", "verify", "review")
]


def rss_kib() -> int:
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder:
        with Router.open(None, runs=f"{folder}/runs", workspace=folder) as router:
            for number in range(count):
                workflow, role, step = ADDRESSES[number % len(ADDRESSES)]
                # A hundred runs side by side, each closed and followed by another after a thousand
                # decisions; steps with names of their own, so that caches keyed by them would show.
                run_id = f"run-{number % 100}-{number // 100_000}-{number // 20_000}"
                router.route_sync(
                    Step(
                        run_id=run_id,
                        workflow=workflow,
                        role=role,
                        step=f"{step}-{number}",
                        goal=f"goal {number}",
                    )
                )
                if number % 20_000 == 19_999:
                    for index in range(100):
                        router.close_run_sync(f"run-{index}-{number // 100_000}-{number // 20_000}")
                if number == count // 5:
                    warm = rss_kib(), descriptors()
                if number % (count // 5) == 0:
                    print(
                        f"{number:>7} decisions: {rss_kib():,} KiB resident, {descriptors()}"
                        " descriptors",
                        flush=True,
                    )
            end = rss_kib(), descriptors()
        print(f"{count:>7} decisions: {end[0]:,} KiB resident, {end[1]} descriptors")
        archive = Archive(f"{folder}/runs")
        replayed = identical = 0
        for run_id in archive.run_ids():
            catalog = catalog_from(archive.catalog(run_id))
            for record in archive.records(run_id):
                replayed += 1
                identical += replay(record, catalog).outcome == "identical"
            if replayed >= 10_000:
                break
        print(f"replayed {replayed}: {identical} identical")
    grown = end[0] - warm[0]
    print(f"grown since a fifth of the way: {grown:,} KiB")
    return 0 if grown < 8 * 1024 and end[1] <= warm[1] and identical == replayed else 1


if __name__ == "__main__":
    sys.exit(main())
