"""What a mapped decision costs, as ratios: `python tests/benchmarks/decisions.py [--json]`.

The floor is what no logger can do without: JSON-encode, sha256 and one write() of the very same
records, measured in the same process, in turns with the decisions, so that a noisy machine moves
both.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from bundle_router.adapters.redaction import SecretRedactor
from bundle_router.adapters.run_log import DiskRunStore
from bundle_router.adapters.system import SystemClock
from bundle_router.core.catalog import ActivationSettings, Bundle, Catalog, Policy, Route, Settings
from bundle_router.core.values import Step
from bundle_router.core.values.artifacts import MediaFacts
from bundle_router.core.values.canonical import encode
from bundle_router.engine.engine import Engine
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.versions import EngineVersions
from bundle_router.testing import (
    FakeCapabilities,
    FakeDiagnostics,
    FakeSessions,
    MemoryArtifacts,
    small_catalog,
)
from bundle_router.wiring import Router

T = TypeVar("T")


def catalog_of(bundles: int, routes: int) -> Catalog:
    """`bundles` bundles of three tools, `routes` routes to distinct addresses, one policy that
    allows all of them. A run has room for 20 bundles, so they come and go.
    """
    made = {
        f"team{n % 50}.set{n}": Bundle(
            f"team{n % 50}.set{n}",
            f"what set {n} is for",
            tuple(f"server{n % 40}.tool{n}_{k}" for k in range(3)),
            effects=("read",),
        )
        for n in range(bundles)
    }
    ids = sorted(made)
    rows = [
        Route(
            f"route{n}",
            (f"flow{n % 20}",),
            (f"role{n % 25}",),
            (f"step{n}",),
            (ids[n % bundles], ids[(n * 7 + 1) % bundles]),
        )
        for n in range(routes)
    ]
    return small_catalog(
        made,
        routes=rows,
        policies=[Policy("all", allow=("team*",))],
        settings=Settings(activation=ActivationSettings(True, 60)),
    )


def router_over(catalog: Catalog, runs: str) -> Router:
    """A router with the real log and redactor, and nothing else real."""
    clock, redactor = SystemClock(), SecretRedactor({"GITHUB_TOKEN": "ghp_" + "x" * 36})
    store = DiskRunStore(runs, clock=clock, artifacts=lambda path: MemoryArtifacts())
    sessions = {"local": FakeSessions({})}
    deps = EnginePorts(
        clock,
        redactor,
        FakeDiagnostics(),
        sessions,
        lambda data: MediaFacts("application/octet-stream"),
    )
    engine = Engine(
        catalog=catalog, ports=deps, store=store, capabilities=FakeCapabilities(), workspace="/"
    )
    return Router(EngineVersions(engine))


def step_of(n: int, run_id: str) -> Step:
    return Step(
        run_id=run_id, workflow=f"flow{n % 20}", role=f"role{n % 25}", step=f"step{n}",
        goal="rename the flag in the parser and keep the old name working for one release",
        constraints=("no network", "keep the public interface"),
    )  # fmt: skip


def unmatched(n: int, run_id: str) -> Step:
    return step_of(n, run_id).model_copy(update={"step": f"nothing{n}"})


def times_us(work: Callable[[T], object], items: Iterable[T]) -> list[float]:
    out = []
    for item in items:
        begun = time.perf_counter_ns()
        work(item)
        out.append((time.perf_counter_ns() - begun) / 1000)
    return out


def floor(folder: str) -> Callable[[dict[str, object]], object]:
    """Encode, hash, write: no look-up, no decision, no redaction, no chain."""
    fd = os.open(Path(folder, "floor.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(record: dict[str, object]) -> None:
        text = encode(record)
        os.write(
            fd,
            (text[:-1] + ',"hash":"' + hashlib.sha256(text.encode()).hexdigest() + '"}\n').encode(),
        )

    return write


def against_the_floor(bundles: int, routes: int, count: int) -> dict[str, float]:
    """One run that goes through the routes in turn."""
    with tempfile.TemporaryDirectory() as folder:
        router = router_over(catalog_of(bundles, routes), folder)
        steps = [step_of(n * 13 % routes, "bench") for n in range(count)]
        for step in steps[:200]:
            router.route_sync(step)
        lines = Path(folder, "bench", "routing.jsonl").read_text("utf-8").splitlines()
        records = [json.loads(line) for line in lines[-100:]]
        write = floor(folder)
        ours, least = [], []
        for begin in range(0, count, 100):
            ours += times_us(router.route_sync, steps[begin : begin + 100])
            least += times_us(write, records)
        router.close_sync()
    ratio = statistics.median(ours) / statistics.median(least)
    return {
        "bundles": bundles, "routes": routes, "record_bytes": len(lines[-1]),
        "decision_us_p50": statistics.median(ours), "decision_us_p99": statistics.quantiles(ours, n=100)[98],
        "floor_us_p50": statistics.median(least), "ratio_p50": ratio,
    }  # fmt: skip


def at_size(size: int, count: int) -> dict[str, float]:
    """Warm decisions of a catalog of `size` bundles and `size` routes, and the first, which builds
    the indexes.
    """
    with tempfile.TemporaryDirectory() as folder:
        router = router_over(catalog_of(size, size), folder)
        matched = [step_of(n * 13 % min(size, 200), "m") for n in range(count)]
        missing = [unmatched(n % 50, "u") for n in range(count)]
        first = times_us(router.route_sync, matched[:1])[0]
        for step in (*matched[:250], missing[0]):
            router.route_sync(step)
        row = {
            "bundles_and_routes": size, "first_us": first,
            "matched_us_p50": statistics.median(times_us(router.route_sync, matched)),
            "unmatched_us_p50": statistics.median(times_us(router.route_sync, missing)),
        }  # fmt: skip
        router.close_sync()
    return row


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--count", type=int, default=5000)
    given = arguments.parse_args()
    machine = (
        f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python"
        f" {platform.python_version()}"
    )
    floors = [against_the_floor(size, size, given.count) for size in (40, 500)]
    curve = [at_size(size, 1000) for size in (50, 500, 5000)]
    if given.json:
        print(json.dumps({"machine": machine, "floors": floors, "curve": curve}, indent=2))
        return
    print(machine)
    for f in floors:
        print(
            f"mapped decision on disk, {f['bundles']} bundles x {f['routes']} routes,"
            f" {f['record_bytes']} byte records:"
        )
        print(f"  p50 {f['decision_us_p50']:.1f} us, p99 {f['decision_us_p99']:.1f} us", end="; ")
        print(f"floor p50 {f['floor_us_p50']:.1f} us; ratio {f['ratio_p50']:.2f}")
    for row in curve:
        size = f"{row['bundles_and_routes']} x {row['bundles_and_routes']}"
        print(f"  {size:<12} matched p50 {row['matched_us_p50']:7.1f} us", end=", ")
        print(f"unmatched p50 {row['unmatched_us_p50']:7.1f} us, first {row['first_us']:9.0f} us")


if __name__ == "__main__":
    main()
