"""Prints how well goals of an engine find their servers among 53 real ones, by words, beside the peers of `run.py`.

    python tests/benchmarks/routing/goals.py [--catalog FILE] [--half seen|held|all] [--peers "FTS5,bm25s"]

Every server is one bundle, described as `import` does it; its text counts (as if it were trusted). "first": the best
ranked server is one that the goal needs. "top 5": of each need, one of its servers is among the first five.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.core.search.documents import BundleText, ToolText
from bundle_router.core.search.request import Request

from tests.benchmarks.routing.routing_data import LabelledSet, rows
from tests.benchmarks.routing.routing_peers import PEERS
from tests.benchmarks.routing.run import make_search

GOALS = Path(__file__).resolve().parents[2] / "data" / "routing" / "engine_goals" / "goals.jsonl"
CATALOG = Path(__file__).resolve().parents[4] / "shared" / "data" / "catalog" / "servers.jsonl"


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and what it needs: of each need, one of these servers."""

    id: str
    text: str
    needs: tuple[frozenset[str], ...]

    @property
    def any_of(self) -> frozenset[str]:
        return frozenset().union(*self.needs)


def goals(half: str) -> list[Goal]:
    return [
        Goal(row["id"], row["goal"], tuple(frozenset(need) for need in row["needs"]))
        for row in rows(GOALS)
        if half in ("all", row["half"])
    ]


def catalog_file() -> Path:
    return Path(os.environ.get("BUNDLE_ROUTER_CATALOG", CATALOG))


def real_servers(path: Path) -> LabelledSet:
    tools: list[ToolText] = []
    bundles: list[BundleText] = []
    schemas = {}
    for row in rows(path):
        server, seen = row["server"], []
        for tool in row["tools"]:
            id_ = f"{server}.{tool['name']}"
            if id_ in schemas:
                continue
            schemas[id_] = tool.get("inputSchema") or {}
            seen.append(id_)
            tools.append(ToolText.of_schema(id_, server, tool["name"], tool.get("description") or "", schemas[id_]))
        bundles.append(BundleText(server, f"Tools of the server {server}.", (), tuple(seen)))
    return LabelledSet("real servers", tools, bundles, [], schemas)


def shares(asked: Sequence[Goal], ranked: Sequence[Sequence[str]]) -> tuple[float, float]:
    fitting = [(goal, list(found)) for goal, found in zip(asked, ranked, strict=True) if goal.needs]
    first = sum(bool(found) and found[0] in goal.any_of for goal, found in fitting)
    top = sum(all(need & {*found[:5]} for need in goal.needs) for goal, found in fitting)
    return first / len(fitting), top / len(fitting)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--catalog", type=Path, default=catalog_file())
    parser.add_argument("--half", choices=("seen", "held", "all"), default="all")
    parser.add_argument("--peers", default="FastMCP BM25,FTS5,bm25s")
    parser.add_argument("--misses", action="store_true", help="print the goals whose first server is wrong")
    options = parser.parse_args(arguments)
    if not options.catalog.is_file():
        print("no catalog: name a servers.jsonl with --catalog or BUNDLE_ROUTER_CATALOG", file=sys.stderr)
        return 3
    data, asked = real_servers(options.catalog), goals(options.half)
    print(f"{len(asked)} goals ({sum(not goal.needs for goal in asked)} that nothing fits), {len(data.tools)} tools")
    search = make_search(data)
    everything = frozenset(search.corpus.members)
    started = time.perf_counter()
    found = [[row.id for row in search.rank_bundles(Request(goal.text), everything).scored] for goal in asked]
    took = (time.perf_counter() - started) / len(asked) * 1e3
    first, top = shares(asked, found)
    print(f"{'ours, words':16} first {first:.3f}  top 5 {top:.3f}  {took:.2f} ms")
    if options.misses:
        for goal, ids in zip(asked, found, strict=True):
            if goal.needs and (not ids or ids[0] not in goal.any_of):
                print("   ", json.dumps(goal.text, ensure_ascii=False), sorted(goal.any_of), "got", ids[:3])
    owner = {tool.id: tool.server for tool in data.tools}
    for name in [name for name in options.peers.split(",") if name]:
        try:
            rank = PEERS[name](data)
        except ImportError as error:
            print(f"{name:16} left out: {error}")
            continue
        first, top = shares(asked, [list(dict.fromkeys(owner[id_] for id_ in rank(goal.text))) for goal in asked])
        print(f"{name:16} first {first:.3f}  top 5 {top:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
