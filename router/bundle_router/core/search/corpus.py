"""What search may read: of a catalog, and of a step.

Rules:
1. A bundle is ranked by the operator's words: its id, description, examples, and the names of the tools it lists.
   `avoid` says what it is not for, and is not indexed.
2. A tool's definition counts towards its bundles only where its server is trusted, and it is the operator's own code
   (local) or pinned by a person (`reviewed`).
3. A pinned definition of a server that is not trusted ranks its tool among the tools of permitted bundles, and nothing
   else. What nobody pinned stands in the collection `unread`, apart, with a quota for each server.
4. What is out of use (a bundle or a server that is not enabled) is not indexed.
5. What of a step is searched is bounded first, so that none is slower than a page of text.
6. `INDEX_RULES` changes with every change to how texts become terms, so that no index of other rules is used.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from bundle_router.core.catalog import Bundle, Card, Catalog
from bundle_router.core.models import RecentStep, Step
from bundle_router.core.models.canonical import digest_of
from bundle_router.core.search.documents import (
    BundleText,
    Corpus,
    Standing,
    ToolText,
    bundle_document,
    collections_of,
    make_corpus,
    outline,
    parameters_of,
    tool_document,
    trusted_tools,
)
from bundle_router.core.search.index import Collection as SearchCollection
from bundle_router.core.search.index import Document
from bundle_router.core.search.request import Request
from bundle_router.core.search.text import Analyzer

INDEX_RULES: Final = "search-index/4"

MAX_GOAL: Final = 8_000
MAX_CONSTRAINTS: Final = 30
MAX_CONSTRAINT: Final = 500
MAX_RECENT_GOAL: Final = 300
"""Characters of a step that are searched, as many as a model is sent. Of constraints, the number."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What is searched, before it is made into terms."""

    bundles: tuple[BundleText, ...]
    tools: tuple[ToolText, ...]

    def revision(self, *made_with: str) -> str:
        """Of an index over these texts. `made_with` names the libraries, with their versions."""
        rows = [[asdict(row) for row in self.bundles], [asdict(row) for row in self.tools]]
        return digest_of([INDEX_RULES, sorted(made_with), rows])


def texts_of(catalog: Catalog, reviewed: Collection[str] = frozenset()) -> Texts:
    """Return the texts of a catalog. `reviewed` holds the canonical names of tools whose pinned text a person has
    read."""
    tools = {
        name: _tool(card, _standing_of(catalog, card, name in reviewed))
        for name, card in catalog.cards.items()
        if card.server in catalog.servers and catalog.servers[card.server].enabled
    }
    trusted = {name for name, tool in tools.items() if tool.standing == "trusted"}
    bundles = tuple(_bundle(bundle, trusted) for bundle in catalog.bundles.values() if bundle.enabled)
    return Texts(bundles, tuple(tools.values()))


def corpus_of(texts: Texts, analyzer: Analyzer) -> Corpus:
    """Return the documents to index. Takes milliseconds for every hundred tools."""
    return make_corpus(texts.bundles, texts.tools, analyzer)


@dataclass(frozen=True, slots=True)
class Changes:
    """What makes an index over other texts one over these: documents to put in, after others were taken out."""

    add: tuple[Document, ...]
    remove: tuple[tuple[SearchCollection, str], ...]

    def __len__(self) -> int:
        return len(self.add) + len(self.remove)


def changes_between(before: Texts, after: Texts, analyzer: Analyzer) -> Changes:
    """Analyse what is new or other alone: tools, bundles, and bundles with such tools."""
    was, now = {tool.id: tool for tool in before.tools}, {tool.id: tool for tool in after.tools}
    old, new = _place_documents(before), _place_documents(after)
    touched = {id_ for id_ in was.keys() | now.keys() if was.get(id_) != now.get(id_)}
    bundles = {bundle.id: bundle for bundle in before.bundles}
    stale = [row for row in after.bundles if bundles.get(row.id) != row or not touched.isdisjoint(row.tools)]
    gone = sorted(bundles.keys() - {row.id for row in after.bundles})
    add = [
        replace(tool_document(now[id_], analyzer), collection=name)
        for name, id_ in sorted(new)
        if id_ in touched or (name, id_) not in old
    ]
    add += [bundle_document(row, trusted_tools(row, now), analyzer) for row in stale]
    remove: list[tuple[SearchCollection, str]] = [("bundles", id_) for id_ in gone]
    remove += [key for key in sorted(old) if key[1] in touched or key not in new]
    return Changes(tuple(add), tuple(remove))


def _place_documents(texts: Texts) -> set[tuple[SearchCollection, str]]:
    """Return where the tools' documents stand."""
    ranks_tools = outline_of(texts).ranks_tools
    return {(name, tool.id) for tool in texts.tools for name in collections_of(tool, ranks_tools)}


def outline_of(texts: Texts) -> Corpus:
    """Return the corpus without its documents: all that is needed beside an index that was made before."""
    return outline(texts.bundles, texts.tools)


def _standing_of(catalog: Catalog, card: Card, reviewed: bool) -> Standing:
    server = catalog.servers[card.server]
    if not reviewed and (server.traits.is_remote or server.trust != "trusted"):
        return "unread"
    return "trusted" if server.trust == "trusted" else "pinned"


def _tool(card: Card, standing: Standing) -> ToolText:
    names, text = parameters_of(card.schema)
    return ToolText(card.name, card.server, card.tool, card.description, names, text, standing)


def _bundle(bundle: Bundle, trusted: Collection[str]) -> BundleText:
    listed = " ".join(tool.partition(".")[2] for tool in bundle.tools if tool not in trusted)
    examples = (*bundle.examples, listed) if listed else bundle.examples
    return BundleText(bundle.id, bundle.description, examples, bundle.tools)


def request_of(step: Step, recent: Sequence[RecentStep]) -> Request:
    """Return what of the step is searched: bounded, runs of white space as one space, the latest recent step first."""
    short = step.model_copy(
        update={
            "goal": _plain_text(step.goal, MAX_GOAL),
            "constraints": tuple(_plain_text(text, MAX_CONSTRAINT) for text in step.constraints[:MAX_CONSTRAINTS]),
        }
    )
    was = tuple(replace(item, goal=_plain_text(item.goal, MAX_RECENT_GOAL)) for item in reversed(recent))
    return Request.of(short, was)


def _plain_text(text: str, limit: int) -> str:
    """Normalise before the second cut: one character can stand for eighteen. Line ends separate wishes."""
    short = unicodedata.normalize("NFKC", text[:limit])[:limit]
    return "\n".join(" ".join(line.split()) for line in short.splitlines())
