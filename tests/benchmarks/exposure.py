"""What the surface costs in tokens beside the recall of the right tool.

    python tests/benchmarks/exposure.py [--catalog servers.jsonl] [--routing FOLDER] [--servers]
    python tests/benchmarks/exposure.py capture [--installed FOLDER] [--to servers.jsonl]

`capture` asks the servers that `.ci/servers/install` installs what tools they have. Without
`--catalog` the capture that ships (tests/data/catalog) is measured, and without `--routing` the
labelled sample (tests/data/routing). Tokens are cl100k_base, definitions in OpenAI form. Every
server is one bundle in mode `meta`, its tools pinned, so that all of them are behind search. Three
questions:

  surface   meta-tools and guidance against all schemas, with 20 and with all of the servers behind
            it, and how many of the servers the guidance names
  answer    one search answer: tokens, and how often it holds the right tool (a graded query's best
            tools; a labelled step's first gold tool), beside the first 5 and 10 raw schemas of the
            same ranking
  servers   (--servers) all schemas of each server against our surface for that server alone
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bundle_router.adapters.bm25 import (  # noqa: E402  the path is set above
    LexicalIndex,
    english_stemmer,
)
from bundle_router.adapters.local import card  # noqa: E402
from bundle_router.core.catalog import Bundle, Card, Catalog, Server  # noqa: E402
from bundle_router.core.exposure.meta_tools.definitions import NAMES, meta_definitions  # noqa: E402
from bundle_router.core.exposure.meta_tools.descriptions import VisibleTools, found_text  # noqa: E402
from bundle_router.core.exposure.meta_tools.guidance import guidance  # noqa: E402
from bundle_router.core.exposure.names import exposed_names  # noqa: E402
from bundle_router.core.exposure.placing import ShownBundle, place  # noqa: E402
from bundle_router.core.exposure.provider_forms import definition  # noqa: E402
from bundle_router.core.search.corpus import corpus_of, texts_of  # noqa: E402
from bundle_router.core.search.ranking import Search  # noqa: E402
from bundle_router.core.search.request import Request  # noqa: E402
from bundle_router.core.search.text import Analyzer  # noqa: E402
from bundle_router.core.servers.admission.admit import admit  # noqa: E402
from bundle_router.core.values import Activation  # noqa: E402

from tests.benchmarks.capture import SAMPLE, capture  # noqa: E402

SAMPLES = ROOT / "tests" / "data" / "routing"
GRADED = SAMPLES / "mcpproxy-go" / "retrieval_golden_v1.json"
LABELLED = ("mcp_mix", "bfcl_sample")
"""The labelled set whose steps are searched: the first of these that is there."""
Count = Callable[[str], int]


def counter() -> Count:
    """Counts with the tokenizer file that litellm carries: no network."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        raise SystemExit("litellm carries the tokenizer's file: install the dev extra")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(
        Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    )
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    return lambda text: len(encoding.encode(text, disallowed_special=()))


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class Query:
    text: str
    gold: frozenset[str]


def catalog_of(cards: Mapping[str, Card], about: Mapping[str, str]) -> Catalog:
    """One bundle a server, all of it behind meta-tools."""
    members: dict[str, list[str]] = {}
    for name, one in cards.items():
        members.setdefault(one.server, []).append(name)
    return Catalog(
        servers={name: Server(name, "streamable-http", "trusted") for name in members},
        bundles={
            name: Bundle(
                name, about.get(name, name), tuple(sorted(tools)), effects=("read",), mode="meta"
            )
            for name, tools in members.items()
        },
        cards=cards,
    )


def real_servers(path: Path) -> tuple[dict[str, Card], list[str]]:
    """The cards of the real servers, and the servers in the file's order."""
    rows = _rows(path)
    cards: dict[str, Card] = {}
    for row in rows:
        cards |= admit(Server(row["server"], "streamable-http", "trusted"), row["tools"]).cards
    return cards, [row["server"] for row in rows]


def graded(cards: Mapping[str, Card]) -> list[Query]:
    """The graded queries whose best tools these servers have."""
    queries = []
    for row in json.loads(GRADED.read_text(encoding="utf-8"))["queries"]:
        best = max(label["relevance"] for label in row["labels"])
        gold = {
            label["tool_id"].replace(":", ".", 1)
            for label in row["labels"]
            if label["relevance"] == best
        }
        if gold <= cards.keys():
            queries.append(Query(row["query"], frozenset(gold)))
    return queries


def labelled(folder: Path) -> tuple[dict[str, Card], dict[str, str], list[Query]]:
    """A routing set as cards (ids made safe), what its bundles are for, and its queries."""
    safe: dict[str, str] = {}
    for row in _rows(folder / "servers.jsonl"):
        safe[row["id"]] = f"s{len(safe)}"
    cards: dict[str, Card] = {}
    names: dict[str, str] = {}
    for row in _rows(folder / "tools.jsonl"):
        made = card(
            safe[row["server"]], row["name"], row["description"] or "", row["inputSchema"] or {}
        )
        cards[made.name] = made
        names[row["id"]] = made.name
    about = {
        safe[row["id"]]: row["description"] or row["id"] for row in _rows(folder / "servers.jsonl")
    }
    queries = [
        Query(row["query"], frozenset(names[tool] for tool in row["tools"]))
        for row in _rows(folder / "queries.jsonl")
    ]
    return cards, about, queries


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def shelf_of(catalog: Catalog) -> VisibleTools:
    held = [ShownBundle(bundle, bundle.tools) for bundle in catalog.bundles.values()]
    return VisibleTools(catalog, place(catalog, held, Activation()), exposed_names(catalog.cards))


def search_of(catalog: Catalog) -> Search:
    analyzer = Analyzer(english_stemmer())
    corpus = corpus_of(texts_of(catalog, frozenset(catalog.cards)), analyzer)
    return Search(LexicalIndex.build(corpus.documents, revision="benchmark"), corpus, analyzer)


def schemas_tokens(cards: Iterable[Card], names: Mapping[str, str], count: Count) -> int:
    return sum(count(compact(definition(one, names[one.name], "openai"))) for one in cards)


def surface(catalog: Catalog, count: Count) -> tuple[int, int, int]:
    """Tokens of the meta-tools, of the guidance, and how many bundles the guidance names."""
    shelf = shelf_of(catalog)
    told = guidance(catalog, shelf.placement, shelf.exposed)
    words = told.replace(",", " ").replace(":", " ").split()
    named = sum(id_ in words for id_ in catalog.bundles)
    return sum(count(compact(row)) for row in meta_definitions(NAMES, "openai")), count(told), named


def answers(title: str, catalog: Catalog, queries: Sequence[Query], count: Count) -> None:
    search, shelf = search_of(catalog), shelf_of(catalog)
    permitted = frozenset(catalog.cards)
    sizes, spent, hits, tools = [], [], 0, []
    raw: dict[int, list[int]] = {5: [], 10: []}
    raw_hits = {5: 0, 10: 0}
    for query in queries:
        began = time.perf_counter()
        ranked = [row.id for row in search.rank_tools(Request(query.text), permitted, k=50)]
        said = found_text(shelf, ranked)
        spent.append((time.perf_counter() - began) * 1000)
        sizes.append(count(said.text))
        lines = said.text.splitlines()
        told = [
            tool
            for tool in ranked[: len(lines)]
            if any(line.startswith(shelf.exposed[tool]) for line in lines)
        ]
        tools.append(len(told))
        hits += bool(query.gold & set(told))
        for k in raw:
            cards = [catalog.cards[tool] for tool in ranked[:k]]
            raw[k].append(schemas_tokens(cards, shelf.exposed, count))
            raw_hits[k] += bool(query.gold & set(ranked[:k]))
    n = len(queries)
    print(f"\n{title}: {len(catalog.cards):,} tools, {n} queries")
    shown, took = f"tools {statistics.mean(tools):.1f}", f"{statistics.median(spent):.2f} ms"
    print(f"  our answer      median {statistics.median(sizes):6,.0f} tokens  max {max(sizes):7,}  "
          f"{shown:10} right tool in it {hits / n:.3f}  {took}")  # fmt: skip
    for k, row in raw.items():
        print(f"  top {k:2} schemas  median {statistics.median(row):6,.0f} tokens  max {max(row):7,}  "
              f"{'':10} right tool in it {raw_hits[k] / n:.3f}")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", nargs="?", choices=("measure", "capture"), default="measure")
    parser.add_argument(
        "--catalog", type=Path, default=SAMPLE, help="what is measured: a server a line"
    )
    parser.add_argument("--routing", type=Path, default=SAMPLES, help="a folder with labelled sets")
    parser.add_argument("--servers", action="store_true", help="one line for each server")
    parser.add_argument(
        "--installed",
        type=Path,
        help="capture: what .ci/servers/install filled (default: .servers)",
    )
    parser.add_argument(
        "--to", type=Path, default=Path("servers.jsonl"), help="capture: the file that is written"
    )
    options = parser.parse_args(argv)
    if options.verb == "capture":
        return capture(options.installed, options.to)
    if not options.catalog.is_file():
        print(
            f"there is no catalog {options.catalog}: `{Path(__file__).name} capture` writes one",
            file=sys.stderr,
        )
        return 3
    labelled_set = next((name for name in LABELLED if (options.routing / name).is_dir()), None)
    if labelled_set is None:
        print(
            f"{options.routing} holds none of the labelled sets {', '.join(LABELLED)}",
            file=sys.stderr,
        )
        return 3
    count = counter()
    cards, order = real_servers(options.catalog)
    print(
        "surface                    tools  all schemas  meta-tools  guidance  together  servers"
        " named"
    )
    for number in sorted({min(20, len(order)), len(order)}):
        some = {name: one for name, one in cards.items() if one.server in order[:number]}
        catalog = catalog_of(some, {})
        meta, told, named = surface(catalog, count)
        everything = schemas_tokens(some.values(), exposed_names(some), count)
        print(f"  {number:2} servers             {len(some):7,} {everything:12,} {meta:11,} {told:9,} {meta + told:9,}"
              f"  {named} of {len(catalog.bundles)}")  # fmt: skip
    answers("real servers, graded queries", catalog_of(cards, {}), graded(cards), count)
    found, about, queries = labelled(options.routing / labelled_set)
    answers(f"{labelled_set}, labelled steps", catalog_of(found, about), queries, count)
    if options.servers:
        print("\nserver                     tools  all schemas  ours")
        for server in order:
            some = {name: one for name, one in cards.items() if one.server == server}
            if some:
                meta, told, _ = surface(catalog_of(some, {}), count)
                everything = schemas_tokens(some.values(), exposed_names(some), count)
                print(f"  {server:24} {len(some):5,} {everything:12,} {meta + told:5,}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
