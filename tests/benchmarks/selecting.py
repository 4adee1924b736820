"""What search settles by itself, how often it is right, and what it costs:
`python tests/benchmarks/selecting.py`.

    [--data FOLDER] [--sets mcp_mix,livemcp] [--limit N]

The rules under test are those of `core.search.sufficiency` under the calibration that ships, every
bundle being one that reads, so that effects do not decide. Three situations for each labelled
query: every bundle permitted; a dozen permitted, the right ones among them; a dozen permitted, and
the right ones not.

  settled   share of queries that search answers by itself, and how many of these answers name a
            right bundle first
  union     share shown as a union, and how many of these hold a right bundle (in brackets: all
            right ones)
  novel     share where it says that nothing fits
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bundle_router.adapters.redaction import SecretRedactor  # noqa: E402
from bundle_router.adapters.run_log import DiskRunStore  # noqa: E402
from bundle_router.adapters.system import SystemClock  # noqa: E402  the path is set above
from bundle_router.core.catalog import Bundle, Catalog  # noqa: E402
from bundle_router.core.search.ranking import Search  # noqa: E402
from bundle_router.core.search.sufficiency import Judgement, judge  # noqa: E402
from bundle_router.core.values import Step  # noqa: E402
from bundle_router.core.values.artifacts import MediaFacts  # noqa: E402
from bundle_router.engine.engine import Engine  # noqa: E402
from bundle_router.engine.engine_ports import EnginePorts  # noqa: E402
from bundle_router.engine.selecting import SearchSelector  # noqa: E402
from bundle_router.engine.versions import EngineVersions  # noqa: E402
from bundle_router.testing import (  # noqa: E402
    FakeCapabilities,
    FakeDiagnostics,
    FakeSessions,
    MemoryArtifacts,
    small_catalog,
)
from bundle_router.wiring import Router  # noqa: E402
from bundle_router.wiring.searching import make_search  # noqa: E402

from tests.benchmarks.decisions import catalog_of, step_of  # noqa: E402
from tests.benchmarks.routing import routing_data  # noqa: E402
from tests.benchmarks.routing.routing_data import LabelledSet, Query  # noqa: E402
from tests.benchmarks.routing.run import make_search as search_over  # noqa: E402

A_STEP = Step(run_id="r", workflow="w", role="r", step="s")
DOZEN = 12


def catalog_for(data: LabelledSet) -> Catalog:
    """The set's bundles, all of which read and cost nothing to show."""
    return small_catalog(
        {b.id: Bundle(b.id, b.description, (), effects=("read",)) for b in data.bundles}
    )


def judgements(data: LabelledSet, search: Search, kind: str) -> list[tuple[Query, Judgement]]:
    catalog, source, everyone = catalog_for(data), random.Random(3), sorted(search.corpus.members)
    out = []
    for query in data.queries:
        drawn = frozenset(source.sample(everyone, min(DOZEN, len(everyone))))
        right = frozenset(query.bundles)
        permitted = {"all": frozenset(everyone), "dozen": drawn | right, "absent": drawn - right}[
            kind
        ]
        out.append((query, judge(catalog, A_STEP, search.rank_bundles(query.request, permitted))))
    return out


def line(found: Sequence[tuple[Query, Judgement]]) -> str:
    def share(part: int, whole: int) -> str:
        return f"{part / whole:.2f}" if whole else "  - "

    settled = [(q, j) for q, j in found if j.use.verdict == "enough"]
    union = [(q, j) for q, j in found if j.use.verdict == "union"]
    right = sum(j.ids[0] in q.bundles for q, j in settled)
    some = sum(bool({*j.ids} & {*q.bundles}) for q, j in union)
    every = sum({*q.bundles} <= {*j.ids} for q, j in union)
    novel = sum(j.use.verdict == "novel" for _, j in found)
    return (
        f"settled {share(len(settled), len(found))} right {share(right, len(settled))}   union"
        f" {share(len(union), len(found))} holds {share(some, len(union))}"
        f" ({share(every, len(union))})   novel {share(novel, len(found))}"
    )


def unmatched_step_us(bundles: int, count: int) -> list[float]:
    """A step that no route covers, settled or passed on by search, recorded: the whole of
    `route()`.
    """
    catalog = catalog_of(bundles, 0)
    diagnostics = FakeDiagnostics()
    clock, redactor = SystemClock(), SecretRedactor({})
    with tempfile.TemporaryDirectory() as runs:
        store = DiskRunStore(runs, clock=clock, artifacts=lambda path: MemoryArtifacts())
        selector = SearchSelector(make_search, diagnostics)
        sessions = {"local": FakeSessions({})}
        deps = EnginePorts(
            clock,
            redactor,
            diagnostics,
            sessions,
            lambda data: MediaFacts("application/octet-stream"),
            selector,
        )
        engine = Engine(
            catalog=catalog, ports=deps, store=store, capabilities=FakeCapabilities(), workspace="/"
        )
        router = Router(EngineVersions(engine))
        times = []
        for n in range(count + 20):
            step = step_of(n, "bench").model_copy(
                update={"goal": f"what set {n % bundles} is for, and tool{n}_1 of it"}
            )
            begun = time.perf_counter_ns()
            decision = router.route_sync(step)
            times.append((time.perf_counter_ns() - begun) / 1000)
            assert decision.search is not None, "search was asked"
        router.close_sync()
    return times[20:]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--sets", help="names of sets, with commas; default: all that are there")
    parser.add_argument("--limit", type=int, default=None)
    options = parser.parse_args(arguments)
    for bundles in (50, 500):
        times = unmatched_step_us(bundles, 500)
        print(
            f"an unmatched step, {bundles} bundles of 3 tools: median"
            f" {statistics.median(times):,.0f} us"
        )
    names = routing_data.sets_in(options.data, options.sets)
    for name in names:
        data = routing_data.load(options.data, name, limit=options.limit)
        search = search_over(data)
        print(f"\n{name}: {len(data.queries)} queries, {len(data.bundles)} bundles")
        for kind in ("all", "dozen", "absent"):
            print(f"  {kind:7} {line(judgements(data, search, kind))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
