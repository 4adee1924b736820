"""Labelled routing sets: tools, bundles and queries, read from the folder that the option or
environment names.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bundle_router.core.search.documents import BundleText, ToolText
from bundle_router.core.search.request import Request
from bundle_router.core.values import RecentStep

SAMPLES = Path(__file__).resolve().parents[3] / "tests" / "data" / "routing"
"""What ships: one small set."""
SETS = (
    "mcp_mix",
    "metatool_single",
    "metatool_multi",
    "sealtools",
    "bfcl_steps",
    "stabletoolbench",
    "livemcp",
)


def folder() -> Path:
    """Return where the sets are: in `BUNDLE_ROUTER_ROUTING_DATA`, or what ships."""
    return Path(os.environ.get("BUNDLE_ROUTER_ROUTING_DATA") or SAMPLES)


def sets_in(root: Path, wanted: str | None) -> list[str]:
    """Return the names of the sets to measure: those that are wanted, else all that are known and
    there.

    Raises SystemExit, with what to do, where one is not there.
    """
    names = (
        wanted.split(",")
        if wanted
        else [name for name in (*SETS, "bfcl_sample") if (root / name).is_dir()]
    )
    missing = [name for name in names if not (root / name / "queries.jsonl").is_file()]
    if missing or not names:
        raise SystemExit(
            f"{root} holds no labelled set {', '.join(missing) or 'at all'}: name a folder that"
            " does with --data or BUNDLE_ROUTER_ROUTING_DATA (tests/benchmarks/README.md), or"
            " leave both out for the sample that ships"
        )
    if not wanted and root == SAMPLES:
        print(
            "no labelled data is named (--data): this is the small sample that ships\n",
            file=sys.stderr,
        )
    return names


@dataclass(frozen=True, slots=True)
class Query:
    """One labelled query. `run` keeps together what must stay on one side of a split."""

    id: str
    text: str
    tools: tuple[str, ...]
    bundles: tuple[str, ...]
    run: str
    request: Request


@dataclass(frozen=True)
class LabelledSet:
    name: str
    tools: Sequence[ToolText]
    bundles: Sequence[BundleText]
    queries: Sequence[Query]
    schemas: Mapping[str, Mapping[str, Any]] = field(repr=False, default_factory=dict)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load(root: Path, name: str, *, limit: int | None = None) -> LabelledSet:
    """One set. `limit` takes every n-th query, so that a quick look sees all of the set."""
    tools = rows(root / name / "tools.jsonl")
    members: dict[str, list[str]] = defaultdict(list)
    for tool in tools:
        members[tool["server"]].append(tool["id"])
    texts = [
        ToolText.from_schema(
            t["id"], t["server"], t["name"], t["description"] or "", t["inputSchema"] or {}
        )
        for t in tools
    ]
    bundles = [
        BundleText(row["id"], row["description"] or "", (), tuple(members[row["id"]]))
        for row in rows(root / name / "servers.jsonl")
    ]
    found = rows(root / name / "queries.jsonl")
    if limit is not None and len(found) > limit:
        found = found[:: len(found) // limit][:limit]
    schemas = {tool["id"]: tool["inputSchema"] or {} for tool in tools}
    return LabelledSet(name, texts, bundles, [_query(name, row) for row in found], schemas)


def _query(name: str, row: Mapping[str, Any]) -> Query:
    meta = row.get("meta") or {}
    # MetaTool's group is its gold tool: kept together, no past step could ever speak for the one
    # that is asked for.
    run = row["id"] if name.startswith("metatool") else row["group"]
    request = Request(row["query"], recent=_recent(meta))
    return Query(row["id"], row["query"], tuple(row["tools"]), tuple(row["servers"]), run, request)


def _recent(meta: Mapping[str, Any]) -> tuple[RecentStep, ...]:
    """The run's history where the set has one: bundles used before, latest first, and what was
    asked then.
    """
    goals = list(reversed(meta.get("prev_user") or ()))
    used = list(
        dict.fromkeys(tool.split("::")[0] for tool in reversed(meta.get("prev_tools") or ()))
    )
    return tuple(
        RecentStep("", "", goals[position] if position < len(goals) else "", (bundle,))
        for position, bundle in enumerate(used)
    )


def sample(queries: Sequence[Query], number: int | None) -> list[Query]:
    """About so many queries: whole runs, drawn with a fixed seed; None: all of them."""
    runs = sorted({query.run for query in queries})
    random.Random(13).shuffle(runs)
    if number is None or len(queries) <= number:
        return list(queries)
    kept: set[str] = set()
    size: dict[str, int] = defaultdict(int)
    for query in queries:
        size[query.run] += 1
    total = 0
    for run in runs:
        if total >= number:
            break
        kept.add(run)
        total += size[run]
    return [query for query in queries if query.run in kept]


def folds(queries: Sequence[Query], count: int) -> list[tuple[list[Query], list[Query]]]:
    """(past, held back) pairs; a run is on one side."""
    runs = sorted({query.run for query in queries})
    random.Random(7).shuffle(runs)
    where = {run: position % count for position, run in enumerate(runs)}
    return [
        (
            [q for q in queries if where[q.run] != number],
            [q for q in queries if where[q.run] == number],
        )
        for number in range(count)
    ]
