"""Prints what building, updating, saving, loading and searching an index costs, beside the searches
of its peers.

    python tests/benchmarks/routing/speed.py [--data FOLDER] [--set NAME] [--sizes 3598,15000]
        [--queries 200]

The catalog is one labelled set (mcp_mix, where it is there), copied under other server names until
it has the wanted size. "long": 1,000 characters of several of its queries. CPU time in ms, medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.adapters.bm25 import LexicalIndex, english_stemmer  # noqa: E402  the path is set above
from bundle_router.core.search.documents import make_corpus, tool_document  # noqa: E402
from bundle_router.core.search.ranking import Search  # noqa: E402
from bundle_router.core.search.request import Request  # noqa: E402
from bundle_router.core.search.text import Analyzer  # noqa: E402

from tests.benchmarks.routing import routing_data  # noqa: E402
from tests.benchmarks.routing.routing_data import LabelledSet  # noqa: E402
from tests.benchmarks.routing.routing_peers import PEERS  # noqa: E402

LONG = 1_000
"""Characters of a long request."""
RIVALS = ("FastMCP BM25", "FTS5", "bm25s")


def grown(data: LabelledSet, size: int) -> LabelledSet:
    """The set with copies of its servers until it has `size` tools."""
    tools, bundles, schemas = list(data.tools), list(data.bundles), dict(data.schemas)
    copy = 0
    while len(tools) < size:
        copy += 1
        more = [replace(t, id=f"{t.id}~{copy}", server=f"{t.server}~{copy}") for t in data.tools][
            : size - len(tools)
        ]
        known = {tool.id for tool in more}
        tools += more
        schemas.update({f"{tool.id}~{copy}": data.schemas[tool.id] for tool in data.tools})
        copies = (
            replace(
                b,
                id=f"{b.id}~{copy}",
                tools=tuple(f"{t}~{copy}" for t in b.tools if f"{t}~{copy}" in known),
            )
            for b in data.bundles
        )
        bundles += [bundle for bundle in copies if bundle.tools]
    return LabelledSet(data.name, tools[:size], bundles, data.queries, schemas)


def median_ms(call: Callable[[str], object], texts: Sequence[str]) -> float:
    times = []
    for text in texts:
        started = time.process_time()
        call(text)
        times.append((time.process_time() - started) * 1e3)
    return statistics.median(times)


def once_ms(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1e3


def report(data: LabelledSet, queries: int) -> None:
    analyzer = Analyzer(english_stemmer())
    started = time.process_time()
    corpus = make_corpus(data.bundles, data.tools, analyzer)
    analysed = time.process_time()
    index = LexicalIndex.build(corpus.documents, revision="1")
    built = time.process_time()
    search = Search(index, corpus, analyzer)
    changed = [tool for tool in data.tools if tool.server == data.tools[0].server]
    bundles, tools = frozenset(corpus.members), frozenset(corpus.servers)
    requests = {
        query.text: query.request for query in data.queries[:: max(1, len(data.queries) // queries)]
    }
    texts = list(requests)
    long = [
        ". ".join(texts[at : at + 30])[:LONG]
        for at in range(0, len(texts), max(1, len(texts) // 20))
    ]
    some = frozenset(sorted(bundles)[::10])
    rows = {
        "texts analysed (once a revision)": (analysed - started) * 1e3,
        "index built (once a revision)": (built - analysed) * 1e3,
        "index updated, one server": once_ms(
            lambda: index.updated(
                add=[tool_document(tool, analyzer) for tool in changed], revision="2"
            )
        ),
        "rank_bundles, all permitted": median_ms(
            lambda t: search.rank_bundles(requests[t], bundles), texts
        ),
        "rank_bundles, all permitted, long": median_ms(
            lambda t: search.rank_bundles(Request(t), bundles), long
        ),
        "rank_bundles, a tenth permitted": median_ms(
            lambda t: search.rank_bundles(requests[t], some), texts
        ),
        "rank_tools, all permitted": median_ms(
            lambda t: search.rank_tools(requests[t], tools), texts
        ),
    }
    for name in RIVALS:
        try:
            rank = PEERS[name](data)
        except ImportError as error:
            print(f"{name} is left out: {error}")
            continue
        rank(texts[0])  # builds its index
        rows[name] = median_ms(rank, texts[:: max(1, len(texts) // 40)])
        rows[f"{name}, long"] = median_ms(rank, long[:5])
    print(f"\n{len(data.tools)} tools, {len(data.bundles)} bundles, {len(texts)} queries")
    for name, value in rows.items():
        print(f"  {name:36}{value:>10.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--set", help="the set that is copied; default: the first that is there")
    parser.add_argument("--sizes", default="3598,15000")
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    data = routing_data.load(options.data, routing_data.sets_in(options.data, options.set)[0])
    for size in (int(text) for text in options.sizes.split(",")):
        report(grown(data, size), options.queries)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
