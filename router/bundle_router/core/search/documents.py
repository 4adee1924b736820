"""What is indexed: fields of bundles and tools, their weights, and which text may rank what.

Rules:
1. A bundle is ranked by the operator's words and by cards a person pinned. Nothing else is in `bundles` or `tools`.
   A pinned tool of a server that is not trusted speaks for its bundle, and is itself ranked apart (`apart`): a person
   has read its text, not vouched for what the server will do next to be found.
2. Every other tool goes to the collection `untrusted`, with its description cut to `MAX_UNTRUSTED_CHARS`; it can't
   change the score of a bundle or of a trusted tool, not even through how rare a word is.
3. A field's weight is a whole number: how often its terms stand in the document. So a word in a name outweighs one in
   a description, and repeating a word does less and less (BM25 saturates over all fields together).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from bundle_router.core.search.index import Collection, Document
from bundle_router.core.search.text import Analyzer, pair_term

MAX_UNTRUSTED_CHARS: Final = 300
MAX_FIELD_WORDS: Final = 2_000
"""Words of one field that are indexed. A bundle of 600 tools stays one document, not a book."""


@dataclass(frozen=True, slots=True)
class ToolText:
    """One tool as search sees it. `name` is canonical (`server.tool`) or any unique id. `trusted`: its text is our own,
    or was pinned. `apart`: it is of a server that is not trusted, and ranked after all others even when pinned."""

    id: str
    server: str
    name: str
    description: str = ""
    parameters: tuple[str, ...] = ()
    parameter_text: str = ""
    trusted: bool = True
    apart: bool = False

    @classmethod
    def of_schema(
        cls, id_: str, server: str, name: str, description: str, schema: Mapping[str, Any], *, trusted: bool = True
    ) -> ToolText:
        """Reads parameter names, descriptions and enum texts from the top level of an input schema."""
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
        return cls(id_, server, name, description, tuple(names), "\n".join(texts), trusted)


@dataclass(frozen=True, slots=True)
class BundleText:
    """One bundle as search sees it: the operator's words, and the ids of its tools."""

    id: str
    description: str = ""
    examples: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldWeights:
    """Times a field's terms stand in the document. Zero leaves the field out."""

    name: int
    description: int
    parameters: int
    parameter_text: int
    server: int = 0
    examples: int = 0
    tool_names: int = 0
    tool_descriptions: int = 0
    pairs: int = 1


TOOL_WEIGHTS: Final = FieldWeights(name=6, server=4, description=2, parameters=2, parameter_text=1, pairs=2)
BUNDLE_WEIGHTS: Final = FieldWeights(
    name=6, description=4, examples=4, tool_names=3, tool_descriptions=2, parameters=1, parameter_text=1, pairs=1
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Everything that is searched in one catalog: documents, and which tools make up which bundle."""

    documents: tuple[Document, ...]
    members: Mapping[str, tuple[str, ...]]
    """Bundle id to the ids of its trusted tools."""
    servers: Mapping[str, str]
    """Tool id to its server, for the quota."""
    untrusted: frozenset[str] = frozenset()
    """Tools that are ranked apart: those of servers that are not trusted, and whatever nobody vouches for."""
    pinned: frozenset[str] = frozenset()
    """Those of them that a person has pinned: they stand in the collection `tools`, and go before the others."""

    @property
    def vouched(self) -> int:
        """How many tools the collection `tools` holds."""
        return len(self.servers) - len(self.untrusted) + len(self.pinned)


def make_corpus(
    bundles: Iterable[BundleText],
    tools: Iterable[ToolText],
    analyzer: Analyzer,
    *,
    tool_weights: FieldWeights = TOOL_WEIGHTS,
    bundle_weights: FieldWeights = BUNDLE_WEIGHTS,
) -> Corpus:
    """The documents of a catalog. Ids of bundles must be unique, and so must ids of tools."""
    by_id = {tool.id: tool for tool in tools}
    documents = [tool_document(tool, analyzer, tool_weights) for tool in by_id.values()]
    members: dict[str, tuple[str, ...]] = {}
    for bundle in bundles:
        own = vouched_tools(bundle, by_id)
        members[bundle.id] = tuple(sorted(tool.id for tool in own))
        documents.append(bundle_document(bundle, own, analyzer, bundle_weights))
    documents.sort(key=lambda document: (document.collection, document.id))
    return Corpus(
        tuple(documents),
        MappingProxyType(members),
        MappingProxyType({tool.id: tool.server for tool in by_id.values()}),
        frozenset(tool.id for tool in by_id.values() if not tool.trusted or tool.apart),
        frozenset(tool.id for tool in by_id.values() if tool.trusted and tool.apart),
    )


def vouched_tools(bundle: BundleText, by_id: Mapping[str, ToolText]) -> list[ToolText]:
    """The bundle's tools whose text counts towards it."""
    return [by_id[id_] for id_ in bundle.tools if id_ in by_id and by_id[id_].trusted]


def collection_of(tool: ToolText) -> Collection:
    return "tools" if tool.trusted else "untrusted"


def tool_document(tool: ToolText, analyzer: Analyzer, weights: FieldWeights = TOOL_WEIGHTS) -> Document:
    description = tool.description if tool.trusted else tool.description[:MAX_UNTRUSTED_CHARS]
    parameter_text = tool.parameter_text if tool.trusted else tool.parameter_text[:MAX_UNTRUSTED_CHARS]
    fields = (
        (tool.server, weights.server),
        (tool.name, weights.name),
        (description, weights.description),
        (" ".join(tool.parameters), weights.parameters),
        (parameter_text, weights.parameter_text),
    )
    paired = (tool.server, tool.name, description)
    return Document(tool.id, collection_of(tool), _terms(fields, paired, weights.pairs, analyzer))


def bundle_document(
    bundle: BundleText, tools: Iterable[ToolText], analyzer: Analyzer, weights: FieldWeights = BUNDLE_WEIGHTS
) -> Document:
    own = tuple(tools)
    names = "\n".join(tool.name for tool in own)
    descriptions = "\n".join(tool.description for tool in own)
    fields = (
        (bundle.id, weights.name),
        (bundle.description, weights.description),
        ("\n".join(bundle.examples), weights.examples),
        (names, weights.tool_names),
        (descriptions, weights.tool_descriptions),
        (" ".join(name for tool in own for name in tool.parameters), weights.parameters),
        ("\n".join(tool.parameter_text for tool in own), weights.parameter_text),
    )
    paired = (bundle.id, bundle.description, *bundle.examples, *(part for t in own for part in (t.name, t.description)))
    return Document(bundle.id, "bundles", _terms(fields, paired, weights.pairs, analyzer))


def parameters_of(schema: str) -> tuple[tuple[str, ...], str]:
    """Parameter names, and their texts, of a card's canonical schema text."""
    tool = ToolText.of_schema("", "", "", "", json.loads(schema) if schema else {})
    return tool.parameters, tool.parameter_text


def _terms(fields: Iterable[tuple[str, int]], paired: Iterable[str], pairs: int, analyzer: Analyzer) -> tuple[str, ...]:
    terms: list[str] = []
    for text, weight in fields:
        if weight and text:
            terms += analyzer.stems(text, limit=MAX_FIELD_WORDS) * weight
    for text in paired if pairs else ():
        stems = analyzer.stems(text, limit=MAX_FIELD_WORDS)
        terms += [pair_term(pair) for pair in itertools.pairwise(stems)] * pairs
    return tuple(terms)
