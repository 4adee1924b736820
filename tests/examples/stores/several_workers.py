"""Several workers of one machine: each opens the same folder, and no one owns a run.

Run it from the repository's folder: it starts two workers that route the same steps of one run at
the same time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bundle_router import Router, Step

STEPS = ("plan", "look-up", "edit")


def work(runs: str, store: str | None) -> dict[str, str]:
    """Routes every step; returns the decision each led to.

    `store` is None where runs are folders, in `runs`.
    """
    with Router.open(None, workspace=tempfile.mkdtemp(), runs=runs, store=store) as router:
        decided = {
            step: router.route_sync(
                Step(
                    run_id="shared", workflow="feature", role="planner", step=step, key=f"{step}-1"
                )
            ).decision_id
            for step in STEPS
        }
        router.close_run_sync("shared")
        return decided


def workers(runs: str, store: str | None = None, count: int = 2) -> list[dict[str, str]]:
    """Starts workers, and returns what each of them was given."""
    words = [sys.executable, str(Path(__file__)), runs, *([store] if store else [])]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [json.loads(process.communicate(timeout=900)[0]) for process in running]


def main() -> list[dict[str, str]]:
    return workers(f"{tempfile.mkdtemp()}/runs")


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], (*sys.argv[2:], None)[0]) if len(sys.argv) > 1 else main()))
