"""What reading recorded runs costs: `replay` of mapped decisions, and `runs verify` in megabytes a
second.

    python tests/benchmarks/recorded.py --decisions 100000 --megabytes 200

Both are the commands themselves, in processes of their own, by their CPU time (on one core). The
floor of `verify` is what no reader of a chain can do without: JSON-decode and sha256 of the same
lines, in this process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bundle_router import Router

ROOT = Path(__file__).resolve().parents[2]
PER_RUN = 2_000
STEP = {"workflow": "feature", "role": "planner", "step": "plan"}


def recorded(runs: Path, decisions: int, text: str) -> int:
    """Record the mapped decisions; returns the bytes of their lines."""
    from bundle_router import Step

    with Router.open(ROOT / "config", runs=runs, workspace=ROOT) as router:
        for n in range(decisions):
            run_id = f"r-{n // PER_RUN}"
            router.route_sync(Step(run_id=run_id, goal=f"{n} {text}", **STEP))
            if (n + 1) % PER_RUN == 0:
                router.close_run_sync(run_id)
    return sum(path.stat().st_size for path in runs.glob("*/routing.jsonl"))


def cpu_of(*words: str) -> float:
    """The CPU seconds of a command of ours."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "router")}
    command = [sys.executable, "-m", "bundle_router", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def floor_of(runs: Path) -> float:
    """The CPU seconds of decoding and hashing all lines."""
    began = time.process_time()
    for path in runs.glob("*/routing.jsonl"):
        for line in path.read_bytes().splitlines():
            json.loads(line)
            hashlib.sha256(line).digest()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--decisions",
        type=int,
        default=10_000,
        help="mapped decisions to replay (goal: of 100,000)",
    )
    parser.add_argument("--megabytes", type=int, default=50, help="recorded lines to verify")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "replayed")
        recorded(runs, arguments.decisions, "rename the flag")
        spent = cpu_of("replay", "--runs", str(runs))
        each = 100_000 / arguments.decisions
        print(
            f"replay: {arguments.decisions:,} mapped decisions in {spent:.1f} s of CPU; goal:"
            " 100,000 in 60 s"
        )
        print(f"  {spent * each:.1f} s for 100,000: {'met' if spent * each < 60 else 'missed'}")
        runs = Path(folder, "verified")
        size = (
            recorded(runs, max(PER_RUN, arguments.megabytes * 1_000_000 // 5_800), "why " * 1_000)
            / 1e6
        )
        idle = cpu_of("--version")
        spent, floor = cpu_of("runs", "verify", "--runs", str(runs)) - idle, floor_of(runs)
        print(
            f"verify: {size:.0f} MB at {size / spent:.0f} MB/s of CPU, {spent / floor:.2f} of the"
            " floor; goal: 200 MB/s"
        )


if __name__ == "__main__":
    main()
