"""How long the pages take over 10,000 runs and over a run of 10,000 records, beside the raw query
in the same process.

    python tests/benchmarks/pages.py [--runs 10000] [--records 10000]

Runs are made in memory over the sample team's config and written as run directories; the first
indexing is timed too.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "router"), str(Path(__file__).parents[2])]

from bundle_router.service.pages.application import pages  # noqa: E402 - found by the line above
from bundle_router.workbench.run_reader import open_reader  # noqa: E402 - found by the line above
from starlette.testclient import TestClient  # noqa: E402 - found by the line above

from tests.service.pages.sample_runs import Team, write  # noqa: E402 - found by the line above

ROUNDS = 7


def median_ms(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds and CPU milliseconds (medians of several rounds, after one that is not counted).

    The second hardly depends on what else the machine does.
    """
    work()
    found, spent = [], []
    for _ in range(ROUNDS):
        began, used = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - began) * 1000)
        spent.append((time.process_time() - used) * 1000)
    return statistics.median(found), statistics.median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=10_000)
    asked = parser.parse_args()
    team = Team()
    for at in range(asked.runs):
        run, workflow = f"r-{at:06}", ("feature", "bugfix", "chore")[at % 3]
        team.step(run, workflow, "planner", "plan", f"goal number {at}", principal=f"p-{at % 9}")
        team.call(run, "repo.list_dir", f"src/{at}")
        team.router.close_run_sync(run)
    team.step("long", "feature", "implementer", "implement", "a long one")
    while len(team.runs.runs["long"].sealed) < asked.records:
        team.call("long", "repo.read_file", "src/retry.py")
    with tempfile.TemporaryDirectory() as folder:
        write(team.runs, Path(folder) / "runs")
        began, used = time.perf_counter(), time.process_time()
        reader = open_reader(Path(folder) / "runs", config=Path(__file__).parents[2] / "config")
        reader.refresh(now=True)
        took, cpu = time.perf_counter() - began, time.process_time() - used
        print(f"first indexing of {asked.runs + 1:,} runs: {took:.1f} s, {cpu:.1f} s of CPU")
        began = time.perf_counter()
        reader.refresh(now=True)
        print(f"a look that finds nothing new: {(time.perf_counter() - began) * 1000:.0f} ms")
        client = TestClient(pages(reader), base_url="http://127.0.0.1")
        raw = sqlite3.connect(Path(folder) / "runs" / "index.sqlite")
        rows = (
            ("/runs", "select * from bundle_router_runs order by began desc limit 50"),
            ("/runs?workflow=bugfix&sort=took", "select * from bundle_router_runs where run_id in (select run_id from "
             "bundle_router_facets where facet = 'workflow' and value = 'bugfix') order by took_ms desc limit 50"),
            ("/runs?q=number", "select * from bundle_router_runs where run_id in (select t.run_id from "
             "bundle_router_search s join bundle_router_texts t on t.id = s.rowid where bundle_router_search match "
             "'number*') order by began desc limit 50"),
            ("/search?q=number", "select t.run_id from bundle_router_search s join bundle_router_texts t on t.id = "
             "s.rowid where bundle_router_search match 'number*' order by bm25(bundle_router_search) limit 100"),
            ("/steps?bundle=repo.readonly", "select d.* from bundle_router_decisions d join bundle_router_bundles b on "
             "b.run_id = d.run_id and b.seq = d.seq where b.bundle = 'repo.readonly' order by d.time desc limit 50"),
            ("/matrix", "select d.role, b.bundle, count(*) from bundle_router_bundles b join bundle_router_decisions d "
             "on d.run_id = b.run_id and d.seq = b.seq group by d.role, b.bundle"),
            ("/catalog", "select bundle, count(*) from bundle_router_calls group by bundle"),
            ("/calls?sort=slow", "select * from bundle_router_calls order by elapsed_ms desc limit 50"),
            ("/", "select count(*), sum(tokens) from bundle_router_runs"),
            ("/runs/long", "select * from bundle_router_calls where run_id = 'long' order by seq limit 200"),
            (f"/runs/long?from={asked.records // 2}", "select * from bundle_router_calls where run_id = 'long' "
             f"and seq >= {asked.records // 2} order by seq limit 200"),
            ("/runs/long/0", "select * from bundle_router_decisions where run_id = 'long' and seq = 0"),
        )  # fmt: skip
        print(f"{'page':34}{'page ms':>9}{'its CPU ms':>12}{'raw query ms':>14}{'rows read':>11}")
        for address, query in rows:
            reader.refresh(now=True)
            before = reader.index.rows_read
            client.get(address).raise_for_status()
            read = reader.index.rows_read - before
            page, cpu = median_ms(lambda address=address: client.get(address))  # type: ignore[misc]  # mypy can't infer it
            alone, _ = median_ms(lambda query=query: raw.execute(query).fetchall())  # type: ignore[misc]  # same
            print(f"{address:34}{page:9.0f}{cpu:12.0f}{alone:14.1f}{read:11,}")
        raw.close()
        reader.close()


if __name__ == "__main__":
    main()
