"""The texts that search uses, of a catalog and of a step.

Rules:
1. A bundle is ranked by the operator's words: its id, description, examples, and the names of the
   tools it lists. `avoid` says what it is not for, and is not indexed.
2. A tool's definition counts for its bundles only if its server is trusted, and it is the
   operator's own code (local) or pinned by a person (`reviewed`).
3. A pinned definition of an untrusted server ranks only its tool, among the tools of permitted
   bundles. Unpinned ones are in a collection of their own, `unread`, with a quota for each server.
4. Disabled bundles, and bundles and tools of disabled servers, are not indexed.
5. The searched text of a step is bounded first, so no step is slower to search than a page of text.
6. `INDEX_RULES` changes with every change to how texts become terms, so that no index of other
   rules is used.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from bundle_router.core.catalog import Bundle, Card, Catalog
from bundle_router.core.search.documents import (
    BundleText,
    Corpus,
    Standing,
    ToolText,
    bundle_documents,
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
from bundle_router.core.values import RecentStep, Step
from bundle_router.core.values.canonical import digest_of
from bundle_router.core.values.words import Effect

INDEX_RULES: Final = "search-index/5"

CHANGING: Final = frozenset[Effect](("write", "exec"))
"""The effects of bundles that may change something."""

MAX_GOAL: Final = 8_000
MAX_CONSTRAINTS: Final = 30
MAX_CONSTRAINT: Final = 500
MAX_RECENT_GOAL: Final = 300
"""Maximum characters of a step that are searched, as many as a model is sent.

For constraints, the number.
"""


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a catalog before they are made into terms."""

    bundles: tuple[BundleText, ...]
    tools: tuple[ToolText, ...]

    def revision(self, *made_with: str) -> str:
        """Return the revision of an index over these texts.

        `made_with` names the libraries, with their versions.
        """
        rows = [[asdict(row) for row in self.bundles], [asdict(row) for row in self.tools]]
        return digest_of([INDEX_RULES, sorted(made_with), rows])


def texts_of(catalog: Catalog, reviewed: Collection[str] = frozenset()) -> Texts:
    """Return the texts of a catalog.

    `reviewed` are the canonical names of tools whose pinned text was read.
    """
    tools = {
        name: _tool(card, _standing_of(catalog, card, name in reviewed))
        for name, card in catalog.cards.items()
        if card.server in catalog.servers and catalog.servers[card.server].enabled
    }
    trusted = {name for name, tool in tools.items() if tool.standing == "trusted"}
    bundles = tuple(
        _bundle(bundle, trusted) for bundle in catalog.bundles.values() if bundle.enabled
    )
    return Texts(bundles, tuple(tools.values()))


def corpus_of(texts: Texts, analyzer: Analyzer) -> Corpus:
    """Return the documents to index. Takes milliseconds per hundred tools."""
    return make_corpus(texts.bundles, texts.tools, analyzer)


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between two indexes: documents to remove, and then documents to add."""

    add: tuple[Document, ...]
    remove: tuple[tuple[SearchCollection, str], ...]

    def __len__(self) -> int:
        return len(self.add) + len(self.remove)


def changes_between(before: Texts, after: Texts, analyzer: Analyzer) -> Changes:
    """Analyse only new and changed texts: tools, bundles, and bundles with such tools."""
    old_tools = {tool.id: tool for tool in before.tools}
    new_tools = {tool.id: tool for tool in after.tools}
    tool_ids = old_tools.keys() | new_tools.keys()
    touched = {id_ for id_ in tool_ids if old_tools.get(id_) != new_tools.get(id_)}

    old = _place_documents(before)
    new = _place_documents(after)
    old_bundles = {bundle.id: bundle for bundle in before.bundles}
    removed = sorted(old_bundles.keys() - {row.id for row in after.bundles})

    add = []
    for name, id_ in sorted(new):
        if id_ in touched or (name, id_) not in old:
            add.append(replace(tool_document(new_tools[id_], analyzer), collection=name))
    for row in after.bundles:
        if old_bundles.get(row.id) != row or not touched.isdisjoint(row.tools):
            add += bundle_documents(row, trusted_tools(row, new_tools), analyzer)

    remove: list[tuple[SearchCollection, str]] = [("bundles", id_) for id_ in removed]
    remove += [key for key in sorted(old) if key[1] in touched or key not in new]
    return Changes(tuple(add), tuple(remove))


def _place_documents(texts: Texts) -> set[tuple[SearchCollection, str]]:
    """Return the collections and ids of the tools' documents."""
    ranks_tools = outline_of(texts).ranks_tools
    return {(name, tool.id) for tool in texts.tools for name in collections_of(tool, ranks_tools)}


def outline_of(texts: Texts) -> Corpus:
    """Return the corpus without its documents, for use with an index that was built before."""
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
    listed = tuple(tool.partition(".")[2] for tool in bundle.tools if tool not in trusted)
    changes = not CHANGING.isdisjoint(bundle.effects) if bundle.effects else None
    return BundleText(
        bundle.id, bundle.description, bundle.examples, bundle.tools, listed, bundle.words, changes
    )


def request_of(step: Step, recent: Sequence[RecentStep]) -> Request:
    """Return the searched part of a step: bounded, white space normalised, the latest recent step
    first.
    """
    short = step.model_copy(
        update={
            "goal": _plain_text(step.goal, MAX_GOAL),
            "constraints": tuple(
                _plain_text(text, MAX_CONSTRAINT) for text in step.constraints[:MAX_CONSTRAINTS]
            ),
        }
    )
    recent_steps = tuple(
        replace(item, goal=_plain_text(item.goal, MAX_RECENT_GOAL)) for item in reversed(recent)
    )
    return Request.of(short, recent_steps)


def _plain_text(text: str, limit: int) -> str:
    """Normalise before the second cut, because one character can become eighteen.

    Line ends separate wishes.
    """
    short = unicodedata.normalize("NFKC", text[:limit])[:limit]
    return "\n".join(" ".join(line.split()) for line in short.splitlines())
