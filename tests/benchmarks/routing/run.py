"""Prints the routing table: our search, without and with logs, beside its peers, in one run.

    python tests/benchmarks/routing/run.py [--data FOLDER] [--sets mcp_mix,livemcp] [--limit N] [--no-logs]

Protocol: one set of weights for all sets. "+ logs": each of five folds is ranked with a memory fitted (by replay, on
the other folds' queries as past steps) and switched on only where that replay gains. A query's group stays in one fold;
in MetaTool, whose groups are its gold tools, a query is its own group. Peers rank tools; a bundle as its best one.
The weights were chosen while looking at these same queries (as a whole, never by set): held-back queries decide.
Every figure is a mean over queries, ± half a 95 % interval over resampled groups. Times: median of a query, in ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from router.adapters.ranking import LexicalIndex, english_stemmer  # noqa: E402
from router.core.search.documents import make_corpus  # noqa: E402
from router.core.search.evidence import RELEVANCE_FEATURES, fit_logistic, relevance_features  # noqa: E402
from router.core.search.fit import Fit, fit_memory  # noqa: E402
from router.core.search.memory import Label  # noqa: E402
from router.core.search.ranking import NO_MEMORIES, Memories, Request, Search, marks_of  # noqa: E402
from router.core.search.text import Analyzer  # noqa: E402
from tests.benchmarks.routing import routing_data  # noqa: E402  the path is set above
from tests.benchmarks.routing.routing_data import LabelledSet, Query  # noqa: E402
from tests.benchmarks.routing.routing_metrics import auroc, half_width, mean, ndcg, recall, reciprocal_rank  # noqa: E402
from tests.benchmarks.routing.routing_peers import PEERS  # noqa: E402

MEASURES = ("R@1", "R@5", "nDCG@10", "MRR")
Ranked = tuple[Query, Sequence[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Result:
    """One ranker on one set: each measure with its half interval, and the median time of a query in ms."""

    set: str
    ranker: str
    values: Mapping[str, tuple[float, float]]
    ms: float


def measured(data: LabelledSet, ranker: str, ranked: Sequence[Ranked], ms: float) -> Result:
    runs = [query.run for query, _, _ in ranked]
    values = {
        "R@1": [recall(bundles, query.bundles, 1) for query, bundles, _ in ranked],
        "R@5": [recall(bundles, query.bundles, 5) for query, bundles, _ in ranked],
        "nDCG@10": [ndcg(tools, query.tools) for query, _, tools in ranked],
        "MRR": [reciprocal_rank(bundles, query.bundles) for query, bundles, _ in ranked],
    }
    return Result(data.name, ranker, {name: (mean(v), half_width(v, runs)) for name, v in values.items()}, ms)


def make_search(data: LabelledSet) -> Search:
    analyzer = Analyzer(english_stemmer())
    corpus = make_corpus(data.bundles, data.tools, analyzer)
    return Search(LexicalIndex.build(corpus.documents, revision=data.name), corpus, analyzer)


def rank_all(
    data: LabelledSet, search: Search, queries: Sequence[Query], memories: Memories = NO_MEMORIES
) -> tuple[list[Ranked], list[float], list[float]]:
    bundles = frozenset(search.corpus.members)
    tools = frozenset(tool.id for tool in data.tools)
    ranked: list[Ranked] = []
    for_bundles, for_tools = [], []
    for query in queries:
        started = time.perf_counter()
        first = search.rank_bundles(query.request, bundles, memories.bundles)
        middle = time.perf_counter()
        second = search.rank_tools(query.request, tools, memories)
        for_tools.append((time.perf_counter() - middle) * 1e3)
        for_bundles.append((middle - started) * 1e3)
        ranked.append((query, [s.id for s in first.scored], [s.id for s in second]))
    return ranked, for_bundles, for_tools


def fitted(
    search: Search, past: Sequence[Query], base: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]
) -> tuple[Fit, Fit]:
    """Memories of bundles and of tools from past queries, each only where replaying them gains."""
    of_label: dict[tuple[str, str], str] = {(query.run, query.text): query.id for query in past}

    def fit(position: int, ids: Callable[[Query], tuple[str, ...]]) -> Fit:
        labels = [Label(q.text, ids(q), q.run, marks_of(q.request)) for q in past]
        return fit_memory(labels, search.analyzer, lambda label: base[of_label[label.run, label.text]][position])

    return fit(0, lambda query: query.bundles), fit(1, lambda query: query.tools)


def with_logs(data: LabelledSet, search: Search, folds: int) -> tuple[list[Ranked], list[float], list[str]]:
    bundles = frozenset(search.corpus.members)
    base = {query.id: search.base_scores(query.request, bundles) for query in data.queries}
    ranked: list[Ranked] = []
    times: list[float] = []
    notes: list[str] = []
    for past, held in routing_data.folds(data.queries, folds):
        for_bundles, for_tools = fitted(search, past, base)
        notes.append("/".join(f"{fit.memory.trust:g}" if fit.memory else "off" for fit in (for_bundles, for_tools)))
        found, ms, _ = rank_all(data, search, held, Memories(for_bundles.memory, for_tools.memory))
        ranked += found
        times += ms
    return ranked, times, notes


def peer(data: LabelledSet, name: str, time_only: int | None = None) -> Result:
    rank = PEERS[name](data)
    owner = {tool.id: tool.server for tool in data.tools}
    ranked: list[Ranked] = []
    times = []
    for query in data.queries:
        started = time.perf_counter()
        tools = rank(query.text)
        times.append((time.perf_counter() - started) * 1e3)
        ranked.append((query, list(dict.fromkeys(owner[id_] for id_ in tools)), tools))
    return measured(data, name, ranked, statistics.median(times))


def abstention(root: Path, data: LabelledSet, search: Search, folds: int) -> dict[str, float]:
    """AUROC of "does this need a tool at all": the shipped weights (fitted on these queries), and refitted by fold."""
    queries = routing_data.rows(root / "metatool_awareness" / "queries.jsonl")
    bundles = frozenset(search.corpus.members)
    truths = [bool(row["needs_tool"]) for row in queries]
    found = [search.rank_bundles(Request(row["query"]), bundles).evidence for row in queries]
    features = [relevance_features(e, row["query"]) for e, row in zip(found, queries, strict=True)]
    held = [0.0] * len(queries)
    lexical = [0.0] * len(queries)
    for number in range(folds):
        past = [i for i in range(len(queries)) if i % folds != number]
        for names, out in ((RELEVANCE_FEATURES, held), (RELEVANCE_FEATURES[:3], lexical)):
            model = fit_logistic([features[i] for i in past], [truths[i] for i in past], names)
            for i in range(number, len(queries), folds):
                out[i] = model(features[i])
    return {
        "shipped weights": auroc(truths, [e.relevance for e in found]),
        "refitted by fold": auroc(truths, held),
        "refitted by fold, match only (no phrasing)": auroc(truths, lexical),
    }


def show(results: Sequence[Result], notes: Mapping[str, str], missing: Mapping[str, str]) -> None:
    names = list(dict.fromkeys(result.ranker for result in results))
    for data in dict.fromkeys(result.set for result in results):
        print(f"\n{data}  {notes.get(data, '')}")
        print(f"  {'':28}" + "".join(f"{measure:>17}" for measure in MEASURES) + f"{'ms':>9}")
        for name in names:
            for result in results:
                if result.set == data and result.ranker == name:
                    cells = "".join(f"{v:>10.3f} ±{half:.3f}" for v, half in result.values.values())
                    print(f"  {name:28}{cells}{result.ms:>9.2f}")
    for name, why in missing.items():
        print(f"\nleft out: {name}: {why}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--sets", default=",".join(routing_data.SETS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--limit", type=int, default=None, help="queries of a set (every n-th), for a quick look")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--no-logs", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    if options.data is None:
        print("no labelled data: name its folder with --data or BUNDLE_ROUTER_ROUTING_DATA", file=sys.stderr)
        return 3
    results: list[Result] = []
    notes: dict[str, str] = {}
    missing: dict[str, str] = {}
    for set_name in options.sets.split(","):
        data = routing_data.load(options.data, set_name, limit=options.limit)
        started = time.perf_counter()
        search = make_search(data)
        built = time.perf_counter() - started
        for name in [name for name in options.peers.split(",") if name and name not in missing]:
            try:
                results.append(peer(data, name))
            except ImportError as error:
                missing[name] = str(error)
        ranked, for_bundles, for_tools = rank_all(data, search, data.queries)
        results.append(measured(data, "ours", ranked, statistics.median(for_bundles)))
        notes[set_name] = (
            f"{len(data.queries)} queries, {len(data.tools)} tools, {len(data.bundles)} bundles; index built in "
            f"{built:.2f} s; tools ranked in {statistics.median(for_tools):.2f} ms"
        )
        if not options.no_logs:
            ranked, times, fits = with_logs(data, search, options.folds)
            results.append(measured(data, "ours + logs", ranked, statistics.median(times)))
            notes[set_name] += f"; memory (bundles/tools) by fold: {' '.join(fits)}"
        if set_name == "metatool_single":
            for label, value in abstention(options.data, data, search, options.folds).items():
                notes[set_name] += f"; abstention AUROC, {label}: {value:.3f}"
        show([result for result in results if result.set == set_name], notes, {})
    show([], {}, missing)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
