"""Prints how well goals of an engine find their servers among 53 real ones, by words, beside the
peers of `run.py`.

    python tests/benchmarks/routing/goals.py [--catalog FILE] [--half seen|held|all]
        [--peers "FTS5"] [--embeddings] [--examples FOLDER] [--library]

Every server is one bundle, described as `import` does it; its text counts (as if it were trusted).
With a folder of examples every row of ours is printed without and with them; with `--library` also
over the bundles of `bundles/library`, up to four a server: eight places are eight bundles then.
"first": the best ranked server is one that the goal needs. "top 5": of each need, one of its
servers is among the first five. "RRF": reciprocal ranks of all the peers of the run, added (k =
60). `--embeddings`: ours with MiniLM in this process, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.core.search.corpus import CHANGING
from bundle_router.core.search.documents import BundleText, ToolText
from bundle_router.core.search.request import Request
from bundle_router.workbench.library_reader import read_library

from tests.benchmarks.routing import routing_meaning
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


def with_examples(data: LabelledSet, file: Path) -> LabelledSet:
    """Return a set whose bundles have the examples of a file: lists, or objects that hold one, by
    bundle id.
    """
    by_bundle = json.loads(file.read_text(encoding="utf-8"))
    bundles = []
    for bundle in data.bundles:
        found = by_bundle.get(bundle.id, ())
        examples = found["examples"] if isinstance(found, dict) else found
        bundles.append(replace(bundle, examples=tuple(examples)))
    return replace(data, name=f"{data.name} + examples", bundles=bundles)


def of_library(data: LabelledSet) -> tuple[LabelledSet, dict[str, str]]:
    """Return a set with the library's bundles in place of its own, and the server of each."""
    servers = {}
    bundles = []
    for server in read_library():
        for kind, bundle in server.bundles.items():
            id_ = f"{server.server}.{kind}"
            servers[id_] = server.server
            tools = tuple(f"{server.server}.{tool.name}" for tool in bundle.tools)
            words = tuple(itertools.chain.from_iterable(bundle.words.values()))
            changes = any(not CHANGING.isdisjoint(tool.effects) for tool in bundle.tools)
            bundles.append(
                BundleText(id_, bundle.description, bundle.examples, tools, (), words, changes)
            )
    return replace(data, name="library", bundles=bundles), servers


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
            tools.append(
                ToolText.from_schema(
                    id_, server, tool["name"], tool.get("description") or "", schemas[id_]
                )
            )
        bundles.append(BundleText(server, f"Tools of the server {server}.", (), tuple(seen)))
    return LabelledSet("real servers", tools, bundles, [], schemas)


def shares(asked: Sequence[Goal], ranked: Sequence[Sequence[str]]) -> tuple[float, float, float]:
    """Return the shares of goals whose first server is right, and whose needs are all among the
    first five, and among the first eight (a shortlist).
    """
    fitting = [(goal, list(found)) for goal, found in zip(asked, ranked, strict=True) if goal.needs]
    first = sum(bool(found) and found[0] in goal.any_of for goal, found in fitting)
    return (
        first / len(fitting),
        sum(_all_within(goal, found[:5]) for goal, found in fitting) / len(fitting),
        sum(_all_within(goal, found[:8]) for goal, found in fitting) / len(fitting),
    )


def _all_within(goal: Goal, found: Sequence[str]) -> bool:
    return all(need & {*found} for need in goal.needs)


def line(name: str, asked: Sequence[Goal], ranked: Sequence[Sequence[str]]) -> str:
    first, top, within = shares(asked, ranked)
    return f"{name:27} first {first:.3f}  top 5 {top:.3f}  all within 8 {within:.3f}"


def fused(rankings: Sequence[Sequence[Sequence[str]]], k: int = 60) -> list[list[str]]:
    """Of each goal, the reciprocal ranks of several rankings, added."""
    found = []
    for of_goal in zip(*rankings, strict=True):
        scores: dict[str, float] = {}
        for ids in of_goal:
            for rank, id_ in enumerate(ids, start=1):
                scores[id_] = scores.get(id_, 0.0) + 1.0 / (k + rank)
        found.append(sorted(scores, key=lambda id_: (-scores[id_], id_)))
    return found


def print_ours(
    name: str,
    data: LabelledSet,
    servers: Mapping[str, str],
    asked: Sequence[Goal],
    options: argparse.Namespace,
) -> None:
    """Print how search over a set's bundles ranks the goals' servers.

    `servers` names the server of each bundle.
    """
    search = make_search(data)
    everything = frozenset(search.corpus.members)
    started = time.perf_counter()
    found = [
        [servers[row.id] for row in search.rank_bundles(Request(goal.text), everything).scored]
        for goal in asked
    ]
    took = (time.perf_counter() - started) / len(asked) * 1e3
    print(f"{line(f'{name}, words', asked, found)}  {took:.2f} ms", flush=True)
    if options.misses:
        for goal, ids in zip(asked, found, strict=True):
            if goal.needs and (not ids or ids[0] not in goal.any_of):
                text = json.dumps(goal.text, ensure_ascii=False)
                print("   ", text, sorted(goal.any_of), "got", ids[:3])
    if options.embeddings:
        model = routing_meaning.model()
        meaning = replace(search, vectors=routing_meaning.vectors(data))
        asking = [
            Request(goal.text, vector=routing_meaning.embedded(model, goal.text)) for goal in asked
        ]
        with_meaning = [
            [servers[row.id] for row in meaning.rank_bundles(one, everything).scored]
            for one in asking
        ]
        print(line(f"{name}, + MiniLM", asked, with_meaning), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--catalog", type=Path, default=catalog_file())
    parser.add_argument("--half", choices=("seen", "held", "all"), default="all")
    parser.add_argument("--examples", type=Path, help="a folder that holds servers.json")
    parser.add_argument("--library", action="store_true")
    parser.add_argument("--peers", default="FastMCP BM25,FTS5,bm25s,MiniLM")
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument(
        "--misses", action="store_true", help="print the goals whose first server is wrong"
    )
    options = parser.parse_args(arguments)
    if not options.catalog.is_file():
        print(
            "no catalog: name a servers.jsonl with --catalog or BUNDLE_ROUTER_CATALOG",
            file=sys.stderr,
        )
        return 3
    data, asked = real_servers(options.catalog), goals(options.half)
    print(
        f"{len(asked)} goals ({sum(not goal.needs for goal in asked)} that nothing fits),"
        f" {len(data.tools)} tools"
    )
    themselves = {bundle.id: bundle.id for bundle in data.bundles}
    print_ours("ours", data, themselves, asked, options)
    if options.examples is not None:
        exemplified = with_examples(data, options.examples / "servers.json")
        print_ours("ours, examples", exemplified, themselves, asked, options)
    if options.library:
        print_ours("ours, library", *of_library(data), asked, options)
    rankings: list[list[list[str]]] = []
    owner = {tool.id: tool.server for tool in data.tools}
    for name in [name for name in options.peers.split(",") if name]:
        try:
            rank = PEERS[name](data)
        except ImportError as error:
            print(f"{name:16} left out: {error}")
            continue
        rankings.append(
            [list(dict.fromkeys(owner[id_] for id_ in rank(goal.text))) for goal in asked]
        )
        print(line(name, asked, rankings[-1]), flush=True)
    if len(rankings) > 1:
        print(line("RRF", asked, fused(rankings)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
