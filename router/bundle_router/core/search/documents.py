"""The indexed documents: fields of bundles and tools, their weights, and which text may rank what.

Rules:
1. A bundle is ranked by the operator's words and by the cards of trusted servers. The collections
   `bundles` and `tools` hold nothing else, so no other text can change a bundle's score, not even
   by changing how rare a word is.
2. A pinned tool of an untrusted server is ranked as a tool, beside the trusted ones: the collection
   `reviewed` has both. A person has read its text, but did not vouch for the purpose of its server.
3. Every other tool is in the collection `unread`, with its description cut to `MAX_UNREAD_CHARS`.
4. The operator's words outweigh those of tools: their fields have six times the weight, and the
   operator's line and each example are documents of their own beside the bundle's, so that neither
   the tools' texts nor other examples count against a request that is put like one of them.
5. A field's weight is a whole number: how often its terms occur in the document. So a word in a
   name outweighs one in a description, and repetition has a diminishing effect (BM25 saturates over
   all fields together).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from bundle_router.core.search.index import Collection, Document
from bundle_router.core.search.text import GENERIC, STOP_WORDS, Analyzer, pair_term, words

Standing = Literal["trusted", "pinned", "unread"]
"""Who vouches for a tool's text: its server is trusted; or a person has read and pinned it; or
nobody.
"""

MAX_UNREAD_CHARS: Final = 300
MIN_WORDS: Final = 3
"""Minimum different words of a bundle, besides those of its id, for search to find it."""
MAX_FIELD_WORDS: Final = 2_000
"""Maximum words of one field that are indexed, so that a bundle of 600 tools stays a short
document.
"""


@dataclass(frozen=True, slots=True)
class ToolText:
    """One tool's texts for search. `name` is canonical (`server.tool`) or any unique id."""

    id: str
    server: str
    name: str
    description: str = ""
    parameters: tuple[str, ...] = ()
    parameter_text: str = ""
    standing: Standing = "trusted"

    @classmethod
    def from_schema(
        cls, id_: str, server: str, name: str, description: str, schema: Mapping[str, Any]
    ) -> ToolText:
        """Read parameter names, descriptions and enum texts from the top level of an input
        schema.
        """
        properties = schema.get("properties")
        names: list[str] = []
        texts: list[str] = []
        for key, value in (properties if isinstance(properties, Mapping) else {}).items():
            names.append(str(key))
            if not isinstance(value, Mapping):
                continue
            enum = value.get("enum")
            texts += [
                text
                for text in (value.get("description"), *(enum if isinstance(enum, list) else ()))
                if isinstance(text, str)
            ]
        return cls(id_, server, name, description, tuple(names), "\n".join(texts))


@dataclass(frozen=True, slots=True)
class BundleText:
    """One bundle's texts for search: the operator's words, and the ids of its tools.

    `listed` are the names that the operator listed of tools whose definitions do not count, `words`
    further words that lead to the bundle, as those of other languages. `changes` says whether its
    tools may change something or execute, by its declared effects; None if none are declared.
    """

    id: str
    description: str = ""
    examples: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    changes: bool | None = None


@dataclass(frozen=True, slots=True)
class FieldWeights:
    """How often each field's terms occur in the document. Zero leaves the field out."""

    name: int
    description: int
    parameters: int
    parameter_text: int
    server: int = 0
    examples: int = 0
    words: int = 0
    listed: int = 0
    tool_names: int = 0
    tool_descriptions: int = 0
    pairs: int = 1


TOOL_WEIGHTS: Final = FieldWeights(
    name=6, server=4, description=2, parameters=2, parameter_text=1, pairs=2
)
BUNDLE_WEIGHTS: Final = FieldWeights(
    name=6,
    description=6,
    examples=6,
    words=6,
    listed=1,
    tool_names=1,
    tool_descriptions=1,
    parameters=1,
    parameter_text=1,
    pairs=1,
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """All searched texts of one catalog: documents, and the tools of each bundle."""

    documents: tuple[Document, ...]
    members: Mapping[str, tuple[str, ...]]
    """Ids of trusted or pinned tools, by bundle id."""
    servers: Mapping[str, str]
    """Server by tool id, for the quota."""
    pinned: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    """Bundles with so few indexed words that no request finds them."""
    with_examples: frozenset[str] = frozenset()
    """Bundles with examples."""
    changing: frozenset[str] = frozenset()
    """Bundles that may change something, as the operator declared it."""
    unchanging: frozenset[str] = frozenset()
    """Bundles that change nothing, as the operator declared it."""

    @property
    def ranks_tools(self) -> Collection:
        """The collection that ranks tools."""
        return "reviewed" if self.pinned else "tools"

    def count(self, collection: Collection) -> int:
        """Return the number of tools in a collection."""
        searched_alone = len(self.unread) + (len(self.pinned) if collection == "tools" else 0)
        return len(self.servers) - searched_alone


def outline(bundles: Iterable[BundleText], tools: Iterable[ToolText]) -> Corpus:
    """Return the corpus without its documents."""
    bundle_texts = tuple(bundles)
    by_id = {tool.id: tool for tool in tools}
    read = {id_ for id_, tool in by_id.items() if tool.standing != "unread"}
    return Corpus(
        (),
        MappingProxyType(
            {bundle.id: tuple(sorted(read.intersection(bundle.tools))) for bundle in bundle_texts}
        ),
        MappingProxyType({tool.id: tool.server for tool in by_id.values()}),
        frozenset(tool.id for tool in by_id.values() if tool.standing == "pinned"),
        frozenset(by_id.keys() - read),
        frozenset(bundle.id for bundle in bundle_texts if _is_silent(bundle, by_id)),
        frozenset(bundle.id for bundle in bundle_texts if bundle.examples),
        frozenset(bundle.id for bundle in bundle_texts if bundle.changes is True),
        frozenset(bundle.id for bundle in bundle_texts if bundle.changes is False),
    )


def _is_silent(bundle: BundleText, by_id: Mapping[str, ToolText]) -> bool:
    of_tools = (
        text for tool in trusted_tools(bundle, by_id) for text in (tool.name, tool.description)
    )
    vocabulary = {*words(bundle.id), *STOP_WORDS, *GENERIC}
    needed = MIN_WORDS
    own_texts = (bundle.description, *bundle.examples, *bundle.words, *bundle.listed)
    for text in (*own_texts, *of_tools):
        fresh = {*words(text[:MAX_UNREAD_CHARS])} - vocabulary
        vocabulary |= fresh
        needed -= len(fresh)
        if needed <= 0:
            return False
    return True


def make_corpus(
    bundles: Iterable[BundleText], tools: Iterable[ToolText], analyzer: Analyzer
) -> Corpus:
    """Return the documents of a catalog.

    Ids of bundles must be unique, and so must ids of tools.
    """
    bundle_texts = tuple(bundles)
    texts = {tool.id: tool for tool in tools}
    corpus = outline(bundle_texts, texts.values())
    documents: list[Document] = []
    for row in bundle_texts:
        documents += bundle_documents(row, trusted_tools(row, texts), analyzer)
    for tool in texts.values():
        document = tool_document(tool, analyzer)
        documents += [
            replace(document, collection=name) for name in collections_of(tool, corpus.ranks_tools)
        ]
    documents.sort(key=lambda document: (document.collection, document.id, document.part))
    return replace(corpus, documents=tuple(documents))


def trusted_tools(bundle: BundleText, by_id: Mapping[str, ToolText]) -> list[ToolText]:
    """Return the bundle's tools whose texts count for it."""
    return [by_id[id_] for id_ in bundle.tools if id_ in by_id and by_id[id_].standing == "trusted"]


def collections_of(tool: ToolText, ranks_tools: Collection) -> tuple[Collection, ...]:
    """Return the collections that hold the tool; `ranks_tools` is the one that ranks tools."""
    if tool.standing == "unread":
        return ("unread",)
    if tool.standing == "pinned":
        return ("reviewed",)
    return ("tools",) if ranks_tools == "tools" else ("tools", "reviewed")


def tool_document(tool: ToolText, analyzer: Analyzer) -> Document:
    """Return the document of a tool for the first of its collections."""
    weights = TOOL_WEIGHTS
    max_chars = MAX_UNREAD_CHARS if tool.standing == "unread" else None
    description = tool.description[:max_chars]
    parameter_text = tool.parameter_text[:max_chars]
    fields = (
        (tool.server, weights.server),
        (tool.name, weights.name),
        (description, weights.description),
        (" ".join(tool.parameters), weights.parameters),
        (parameter_text, weights.parameter_text),
    )
    paired = (tool.server, tool.name, description)
    return Document(
        tool.id,
        collections_of(tool, "reviewed")[0],
        _terms(fields, paired, weights.pairs, analyzer),
    )


def bundle_documents(
    bundle: BundleText, tools: Iterable[ToolText], analyzer: Analyzer
) -> list[Document]:
    """Return the document of all of a bundle's texts, that of its line, and one of each example."""
    weights = BUNDLE_WEIGHTS
    line = ((bundle.id, weights.name), (bundle.description, weights.description))
    examples = (((example, weights.examples),) for example in bundle.examples)

    documents = [_whole_bundle(bundle, tools, analyzer)]
    for part, fields in enumerate((line, *examples), start=1):
        paired = [text for text, _ in fields]
        terms = _terms(fields, paired, weights.pairs, analyzer)
        documents.append(Document(bundle.id, "bundles", terms, part))
    return documents


def _whole_bundle(bundle: BundleText, tools: Iterable[ToolText], analyzer: Analyzer) -> Document:
    weights = BUNDLE_WEIGHTS
    own_tools = tuple(tools)
    parameters = itertools.chain.from_iterable(tool.parameters for tool in own_tools)
    names_and_descriptions = itertools.chain.from_iterable(
        (tool.name, tool.description) for tool in own_tools
    )
    fields = (
        (bundle.id, weights.name),
        (bundle.description, weights.description),
        ("\n".join(bundle.examples), weights.examples),
        ("\n".join(bundle.words), weights.words),
        ("\n".join(bundle.listed), weights.listed),
        ("\n".join(tool.name for tool in own_tools), weights.tool_names),
        ("\n".join(tool.description for tool in own_tools), weights.tool_descriptions),
        (" ".join(parameters), weights.parameters),
        ("\n".join(tool.parameter_text for tool in own_tools), weights.parameter_text),
    )
    paired = (
        bundle.id,
        bundle.description,
        *bundle.examples,
        *bundle.words,
        *bundle.listed,
        *names_and_descriptions,
    )
    terms = _terms(fields, paired, weights.pairs, analyzer)
    written = itertools.chain.from_iterable(words(text)[:MAX_FIELD_WORDS] for text, _ in fields)
    return Document(bundle.id, "bundles", terms, words=tuple(dict.fromkeys(written)))


def parameters_of(schema: str) -> tuple[tuple[str, ...], str]:
    """Return parameter names, and their texts, from a card's canonical schema text."""
    tool = ToolText.from_schema("", "", "", "", json.loads(schema) if schema else {})
    return tool.parameters, tool.parameter_text


def _terms(
    fields: Iterable[tuple[str, int]], paired: Iterable[str], pairs: int, analyzer: Analyzer
) -> tuple[str, ...]:
    terms: list[str] = []
    for text, weight in fields:
        if weight and text:
            terms += analyzer.stems(text, limit=MAX_FIELD_WORDS) * weight
    for text in paired if pairs else ():
        stems = analyzer.stems(text, limit=MAX_FIELD_WORDS)
        terms += [pair_term(pair) for pair in itertools.pairwise(stems)] * pairs
    return tuple(terms)
