"""Prints how well `search_tools` finds tools of servers that are trusted, only pinned, or that
nobody has read.

    python tests/benchmarks/routing/standing.py [--data FOLDER] [--set mcp_mix] [--queries N]

The same tools and bundles three times. Recall of needed tools among the first 5 and 10, and
nDCG@10, by words alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.core.search.documents import Standing
from bundle_router.core.search.request import Request
from bundle_router.core.search.trials import mean, ndcg
from bundle_router.review.evaluation import recall

from tests.benchmarks.routing import routing_data
from tests.benchmarks.routing.run import make_search


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--set", default="bfcl_sample")
    parser.add_argument("--queries", type=int, default=None)
    options = parser.parse_args(arguments)
    data = routing_data.load(options.data, options.set)
    asked = routing_data.sample(data.queries, options.queries)
    everything = frozenset(tool.id for tool in data.tools)
    print(f"{options.set}: {len(asked)} queries, {len(data.tools)} tools")
    for standing in get_args(Standing):
        search = make_search(
            replace(data, tools=[replace(tool, standing=standing) for tool in data.tools])
        )
        found = [
            [row.id for row in search.rank_tools(Request(query.text), everything)]
            for query in asked
        ]
        rows = list(zip(found, asked, strict=True))
        at_5, at_10 = (mean(recall(ids, query.tools, k) for ids, query in rows) for k in (5, 10))
        quality = mean(ndcg(ids, query.tools) for ids, query in rows)
        print(f"  {standing:8} R@5 {at_5:.3f}  R@10 {at_10:.3f}  nDCG@10 {quality:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
