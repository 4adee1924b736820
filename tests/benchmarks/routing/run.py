"""Prints the routing table: our search, without and with logs, beside its peers, in one run.

    python tests/benchmarks/routing/run.py [--data FOLDER] [--sets mcp_mix,livemcp] [--queries N]
        [--no-logs]

Protocol: one set of weights for all sets. "+ logs": each of five folds is ranked with a memory
fitted (by replay, on the other folds' queries as past steps) and switched on only where that replay
gains. A query's group stays in one fold; in MetaTool, whose groups are its gold tools, a query is
its own group. Peers rank tools; a bundle as its best one. The weights were chosen while looking at
these same queries (as a whole, never by set): held-back queries decide. "+ embeddings":
all-MiniLM-L6-v2 in this process; with logs, past steps are recalled by its vectors too where replay
gains by that over the words (a fold's `+pull`). `--queries N` measures about N queries of each set,
whole groups drawn with a fixed seed; memory still learns from all that lie in other folds. Every
figure is a mean over queries, ± half a 95 % interval over resampled groups. Times: median of a
query, in ms. A line is printed of every peer and fold as it ends. `--keep FOLDER` keeps what it
ranked there, so that a run that was cut goes on where it was; what other sources of search, other
queries or another number of folds ranked is not used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.adapters.bm25 import LexicalIndex, english_stemmer  # noqa: E402
from bundle_router.core.search.documents import make_corpus  # noqa: E402
from bundle_router.core.search.fit import Recalling, fit_memory  # noqa: E402
from bundle_router.core.search.memory import Label, Memory  # noqa: E402
from bundle_router.core.search.ranking import NO_MEMORIES, Memories, Search  # noqa: E402
from bundle_router.core.search.recall import Recollection  # noqa: E402
from bundle_router.core.search.request import Request, marks_of  # noqa: E402
from bundle_router.core.search.text import Analyzer  # noqa: E402
from bundle_router.core.search.trials import mean, ndcg  # noqa: E402
from bundle_router.core.values.evidence import (  # noqa: E402
    RELEVANCE,
    fit_logistic,
    relevance_features,
)
from bundle_router.review.evaluation import auroc, recall, reciprocal_rank  # noqa: E402

from tests.benchmarks.routing import (  # noqa: E402  the path is set above
    routing_data,
    routing_meaning,
    routing_peers,
)
from tests.benchmarks.routing.routing_data import LabelledSet, Query  # noqa: E402
from tests.benchmarks.routing.routing_metrics import half_width  # noqa: E402
from tests.benchmarks.routing.routing_peers import PEERS  # noqa: E402

TIMED = 50
"""Queries that are embedded one at a time, for how long that takes."""
MEASURES = ("R@1", "R@5", "nDCG@10", "MRR")
SOURCES = Path(__file__).resolve().parents[3] / "router" / "bundle_router"
RANKING = (
    "core/search/*.py",
    "core/values/evidence.py",
    "adapters/bm25.py",
    "adapters/embeddings/*.py",
)
"""The sources that decide what is ranked: what others ranked is not read again."""


@dataclass
class Part:
    """What a peer ranked, or we without logs or in one fold: by the query's id, its bundles and its
    tools. `ms`: the times of ranking bundles and, where they were measured apart, tools.
    """

    ranked: list[tuple[str, Sequence[str], Sequence[str]]]
    ms: list[float]
    ms_tools: list[float] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class Parts:
    """The parts of one set's report.

    Each is said as it ends, and kept in `folder`, where one is named.
    """

    data: LabelledSet
    folder: Path | None
    key: str

    def get(self, name: str, make: Callable[[], Part]) -> Part:
        """Return the part of this name: the kept one, else a new one."""
        started, kept = time.process_time(), self._file(name)
        if kept is not None and kept.is_file():
            part, took = Part(**json.loads(kept.read_text(encoding="utf-8"))), "kept"
        else:
            part = make()
            took = f"{time.process_time() - started:.0f} s of CPU"
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                unfinished = kept.with_suffix(".part")
                unfinished.write_text(json.dumps(asdict(part)), encoding="utf-8")
                unfinished.replace(kept)
        values = measured(self.data, name, [part], 0.0).values
        said = "  ".join(f"{measure} {values[measure][0]:.3f}" for measure in MEASURES)
        memory = f"  memory {part.note}" if part.note else ""
        print(
            f"{self.data.name} {name}: {len(part.ranked)} queries  {said}{memory}  ({took})",
            flush=True,
        )
        return part

    def _file(self, name: str) -> Path | None:
        key = hashlib.sha256(f"{self.key} {name}".encode()).hexdigest()[:12]
        return self.folder / f"{self.data.name}-{key}.json" if self.folder is not None else None


def digest_of_files(*files: Path) -> str:
    return hashlib.sha256(
        b"".join(hashlib.sha256(file.read_bytes()).digest() for file in sorted(files))
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class Result:
    """One ranker on one set: each measure with its half interval, and the median time of a query in
    ms.
    """

    set: str
    ranker: str
    values: Mapping[str, tuple[float, float]]
    ms: float


def measured(data: LabelledSet, ranker: str, parts: Sequence[Part], ms: float) -> Result:
    of = {query.id: query for query in data.queries}
    ranked = [(of[id_], bundles, tools) for part in parts for id_, bundles, tools in part.ranked]
    runs = [query.run for query, _, _ in ranked]
    values = {
        "R@1": [recall(bundles, query.bundles, 1) for query, bundles, _ in ranked],
        "R@5": [recall(bundles, query.bundles, 5) for query, bundles, _ in ranked],
        "nDCG@10": [ndcg(tools, query.tools) for query, _, tools in ranked],
        "MRR": [reciprocal_rank(bundles, query.bundles) for query, bundles, _ in ranked],
    }
    return Result(
        data.name, ranker, {name: (mean(v), half_width(v, runs)) for name, v in values.items()}, ms
    )


def make_search(data: LabelledSet) -> Search:
    analyzer = Analyzer(english_stemmer())
    corpus = make_corpus(data.bundles, data.tools, analyzer)
    return Search(LexicalIndex.build(corpus.documents, revision=data.name), corpus, analyzer)


def rank_all(
    data: LabelledSet,
    search: Search,
    queries: Sequence[Query],
    memories: Memories = NO_MEMORIES,
    note: str = "",
) -> Part:
    bundles = frozenset(search.corpus.members)
    tools = frozenset(tool.id for tool in data.tools)
    part = Part([], [], [], note)
    for query in queries:
        started = time.perf_counter()
        first = search.rank_bundles(query.request, bundles, memories.bundles)
        middle = time.perf_counter()
        second = search.rank_tools(
            Request(query.text, vector=query.request.vector), tools, memories
        )
        part.ms_tools.append((time.perf_counter() - middle) * 1e3)
        part.ms.append((middle - started) * 1e3)
        part.ranked.append((query.id, [s.id for s in first.scored], [s.id for s in second]))
    return part


def fitted(
    search: Search,
    past: Sequence[Query],
    base: Callable[[str], tuple[Mapping[str, float], Mapping[str, float]]],
) -> Memories:
    """Memories of bundles and of tools from past queries, each only where replaying them gains;
    steps recalled by what they meant only where that gains over the words.
    """
    of_label = {(query.run, query.text): query for query in past}
    bundles = frozenset(search.corpus.members)
    tools = frozenset(search.corpus.servers)

    def fit(position: int, ids: Callable[[Query], tuple[str, ...]]) -> Memory | None:
        def votes(label: Label, recollection: Recollection) -> Mapping[str, float]:
            request = of_label[label.run, label.text].request
            return search.recall(request, tools if position else bundles, recollection)

        recalling = (
            Recalling(search.vectors.revision, votes) if search.vectors is not None else None
        )
        # A memory of tools is asked for what agents search for, of which no history is known.
        labels = [
            Label(q.text, ids(q), q.run, marks_of(q.request) if position == 0 else ()) for q in past
        ]
        found = fit_memory(
            labels,
            search.analyzer,
            lambda label: base(of_label[label.run, label.text].id)[position],
            recalling=recalling,
        )
        return (
            found.recall.memory
            if found.recall is not None and found.recall.memory is not None
            else found.memory
        )

    return Memories(fit(0, lambda query: query.bundles), fit(1, lambda query: query.tools))


def in_words(memory: Memory | None) -> str:
    """What replay chose: how much the texts count against memory, and how much recalled steps
    do.
    """
    if memory is None:
        return "off"
    return f"{memory.trust:g}" + (
        f"+{memory.recollection.pull:g}" if memory.recollection is not None else ""
    )


def in_folds(
    parts: Parts, kind: str, search: Search, asked: Sequence[Query], folds: int
) -> list[Part]:
    """Return what each fold ranked with a memory of the others.

    `asked`: the queries that are measured.
    """
    data = parts.data
    bundles = frozenset(search.corpus.members)
    wanted = {query.id for query in asked}

    @cache
    def base(id_: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
        query = of[id_]
        alone = Request(query.text, vector=query.request.vector)
        return search.base_scores(query.request, bundles), search.base_tool_scores(alone, bundles)

    def fold(past: Sequence[Query], held: Sequence[Query]) -> Part:
        memories = fitted(search, past, base)
        note = f"{in_words(memories.bundles)}/{in_words(memories.tools)}"
        return rank_all(
            data, search, [query for query in held if query.id in wanted], memories, note
        )

    of = {query.id: query for query in data.queries}
    pairs = enumerate(routing_data.folds(data.queries, folds), start=1)
    return [
        parts.get(f"ours{kind} + logs, fold {n} of {folds}", partial(fold, *pair))
        for n, pair in pairs
    ]


def peer(data: LabelledSet, name: str, asked: Sequence[Query]) -> Part:
    rank = PEERS[name](data)
    owner = {tool.id: tool.server for tool in data.tools}
    part = Part([], [])
    for query in asked:
        started = time.perf_counter()
        tools = rank(query.text)
        part.ms.append((time.perf_counter() - started) * 1e3)
        part.ranked.append((query.id, list(dict.fromkeys(owner[id_] for id_ in tools)), tools))
    return part


def abstention(root: Path, data: LabelledSet, search: Search, folds: int) -> dict[str, float]:
    """AUROC of "does this need a tool at all": the shipped weights (fitted on these queries), and
    refitted by fold.
    """
    queries = routing_data.rows(root / "metatool_awareness" / "queries.jsonl")
    bundles = frozenset(search.corpus.members)
    truths = [bool(row["needs_tool"]) for row in queries]
    found = [search.rank_bundles(Request(row["query"]), bundles).evidence for row in queries]
    features = [relevance_features(e, row["query"]) for e, row in zip(found, queries, strict=True)]
    every = tuple(name for name, _ in RELEVANCE.weights)
    held = [0.0] * len(queries)
    lexical = [0.0] * len(queries)
    for number in range(folds):
        past = [i for i in range(len(queries)) if i % folds != number]
        for names, out in ((every, held), (every[:3], lexical)):
            model = fit_logistic([features[i] for i in past], [truths[i] for i in past], names)
            for i in range(number, len(queries), folds):
                out[i] = model(features[i])
    return {
        "shipped weights": auroc(truths, [e.relevance for e in found]) or 0.0,
        "refitted by fold": auroc(truths, held) or 0.0,
        "refitted by fold, match only (no phrasing)": auroc(truths, lexical) or 0.0,
    }


@dataclass
class Report:
    """What became of one set."""

    set: str
    results: list[Result]
    note: str
    missing: dict[str, str]


def show(report: Report) -> None:
    print(f"\n{report.set}  {report.note}")
    print(f"  {'':28}" + "".join(f"{measure:>17}" for measure in MEASURES) + f"{'ms':>9}")
    for result in report.results:
        cells = "".join(f"{v:>10.3f} ±{half:.3f}" for v, half in result.values.values())
        print(f"  {result.ranker:28}{cells}{result.ms:>9.2f}")
    for name, why in report.missing.items():
        print(f"  left out: {name}: {why}")
    sys.stdout.flush()


def report(options: argparse.Namespace, set_name: str) -> Report:
    """Measures one set: every peer that is installed, and ours, without and with embeddings and
    logs.
    """
    data = routing_data.load(options.data, set_name, limit=options.limit)
    asked = routing_data.sample(data.queries, options.queries)
    started = time.perf_counter()
    search = make_search(data)
    built = time.perf_counter() - started
    made = Report(set_name, [], "", {})
    key = digest_of_files(*(options.data / set_name).glob("*.jsonl"), Path(routing_peers.__file__))
    parts = Parts(data, options.keep, f"{key} {options.limit} {options.queries} {options.folds}")
    for name in [name for name in options.peers.split(",") if name]:
        try:
            part = parts.get(name, partial(peer, data, name, asked))
            made.results.append(measured(data, name, [part], statistics.median(part.ms)))
        except ImportError as error:
            made.missing[name] = str(error)
    made.note = (
        f"{len(asked)} of {len(data.queries)} queries, {len(data.tools)} tools, {len(data.bundles)}"
        f" bundles; index built in {built:.2f} s"
    )
    sources = digest_of_files(
        Path(__file__), *(file for pattern in RANKING for file in SOURCES.glob(pattern))
    )
    parts = replace(parts, key=f"{parts.key} {sources}")
    ours(made, options, "", parts, search, asked)
    if not options.no_embeddings:
        try:
            search = replace(search, vectors=routing_meaning.vectors(data))
            data, waited = understood(data)
        except ImportError as error:
            made.missing["embeddings"] = str(error)
        else:
            made.note += f"; a query embedded in {waited:.2f} ms (not in the times)"
            asked = routing_data.sample(data.queries, options.queries)
            ours(made, options, " + embeddings", replace(parts, data=data), search, asked)
    if set_name == "metatool_single":
        for label, value in abstention(options.data, data, search, options.folds).items():
            made.note += f"; abstention AUROC, {label}: {value:.3f}"
    return made


def ours(
    made: Report,
    options: argparse.Namespace,
    kind: str,
    parts: Parts,
    search: Search,
    asked: Sequence[Query],
) -> None:
    """Adds our ranking of a kind, without and with logs."""
    alone = parts.get(f"ours{kind}", lambda: rank_all(parts.data, search, asked))
    made.results.append(measured(parts.data, f"ours{kind}", [alone], statistics.median(alone.ms)))
    made.note += f"; tools ranked{kind} in {statistics.median(alone.ms_tools):.2f} ms"
    if not options.no_logs:
        found = in_folds(parts, kind, search, asked, options.folds)
        times = [ms for part in found for ms in part.ms]
        made.results.append(
            measured(parts.data, f"ours{kind} + logs", found, statistics.median(times))
        )
        made.note += (
            f"; memory{kind} (bundles/tools) by fold: {' '.join(part.note for part in found)}"
        )


def understood(data: LabelledSet) -> tuple[LabelledSet, float]:
    """The set with a vector for every query, and the median time that one takes, in ms."""
    times = []
    for query in data.queries[:: max(1, len(data.queries) // TIMED)]:
        started = time.perf_counter()
        routing_meaning.embedded(routing_meaning.model(), query.text)
        times.append((time.perf_counter() - started) * 1e3)
    return replace(data, queries=routing_meaning.understood(data.queries)), statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--sets", help="names of sets, with commas; default: all that are there")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument(
        "--limit", type=int, default=None, help="queries of a set (every n-th), for a quick look"
    )
    parser.add_argument(
        "--queries", type=int, default=None, help="queries measured; the others are only past steps"
    )
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument(
        "--jobs", type=int, default=1, help="sets measured at a time (times then mean less)"
    )
    parser.add_argument("--no-logs", action="store_true")
    parser.add_argument("--no-embeddings", action="store_true")
    parser.add_argument(
        "--keep",
        type=Path,
        default=None,
        help="a folder that keeps every part, to go on after a cut",
    )
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    names = routing_data.sets_in(options.data, options.sets)
    reports: list[Report] = []
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(report, options, name) for name in names]
        for done in as_completed(waiting):
            reports.append(done.result())
            show(reports[-1])
            if options.json:
                options.json.write_text(
                    json.dumps([asdict(row) for row in reports], indent=1), encoding="utf-8"
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
