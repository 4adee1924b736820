"""Builds what answers questions: the search over a catalog, its embedder, and the models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bundle_router.core.catalog import Catalog, ModelSettings, Settings
from bundle_router.ports import Clock, Diagnostics, Embedder, ToolSearch
from bundle_router.wiring.effects import open_diagnostics, open_redactor

if TYPE_CHECKING:
    from bundle_router.adapters.bm25 import LexicalIndex
    from bundle_router.adapters.embeddings import VectorStore
    from bundle_router.core.search.corpus import Texts
    from bundle_router.core.search.index import Embedding, Vectors
    from bundle_router.core.search.meaning import Passage
    from bundle_router.core.search.ranking import Memories, Search
    from bundle_router.core.search.text import Analyzer
    from bundle_router.engine.asking import ModelSelector
    from bundle_router.engine.selecting import StagedSelector
    from bundle_router.engine.selecting.goal_embedding import Meanings

SEARCH_LIBRARIES: Final = ("bm25s", "PyStemmer")
MOST: Final = 0.5
"""Share of the documents up to which a changed index is updated rather than built again."""


def _searchable_texts(catalog: Catalog) -> Texts:
    """Return the texts that search may read.

    A catalog has cards of remote servers only if a person pinned them.
    """
    from bundle_router.core.search.corpus import texts_of

    reviewed = {
        name
        for name, card in catalog.cards.items()
        if catalog.servers[card.server].traits.is_remote
    }
    return texts_of(catalog, reviewed)


class SearchMaker:
    """Builds searches, for one catalog after another.

    Where few texts changed, because one server did, it updates the last index. For one thread at a
    time.
    """

    def __init__(self) -> None:
        self._last: tuple[Texts, LexicalIndex] | None = None

    def __call__(self, catalog: Catalog) -> Search:
        """Return the search over a catalog, with its index from the user's cache where building it
        takes longer.

        Raises NotInstalled where its library is missing. Takes up to seconds for thousands of
        tools.
        """
        from importlib.metadata import PackageNotFoundError, version

        from bundle_router.adapters.bm25 import english_stemmer
        from bundle_router.core.search.corpus import outline_of
        from bundle_router.core.search.ranking import Search
        from bundle_router.core.search.text import Analyzer
        from bundle_router.errors import NotInstalled

        try:
            made_with = [f"{name} {version(name)}" for name in SEARCH_LIBRARIES]
        except PackageNotFoundError as missing:
            raise NotInstalled(
                f"search needs {missing.name}", advice="install bundle-router anew"
            ) from None
        texts = _searchable_texts(catalog)
        analyzer = Analyzer(english_stemmer())
        revision = texts.revision(*made_with)
        index = self._update_index(texts, analyzer, revision) or _build_index(
            texts, analyzer, revision
        )
        self._last = (texts, index)
        return Search(
            index, outline_of(texts), analyzer, by_meaning=catalog.settings.search.ranks_by_meaning
        )

    def _update_index(self, texts: Texts, analyzer: Analyzer, revision: str) -> LexicalIndex | None:
        """Return the last index, updated; None where there is none, or most of it changed."""
        from bundle_router.core.search.corpus import changes_between

        if self._last is None:
            return None
        before, index = self._last
        changes = changes_between(before, texts, analyzer)
        if len(changes) > MOST * (len(texts.bundles) + len(texts.tools)):
            return None
        return index.updated(add=changes.add, remove=changes.remove, revision=revision)


def _build_index(texts: Texts, analyzer: Analyzer, revision: str) -> LexicalIndex:
    from bundle_router.adapters.bm25 import LexicalIndex
    from bundle_router.core.search.corpus import corpus_of

    return LexicalIndex.build(corpus_of(texts, analyzer).documents, revision=revision)


def make_search(catalog: Catalog) -> Search:
    """Return the search over one catalog (see `SearchMaker`)."""
    return SearchMaker()(catalog)


def open_selector(
    catalog: Catalog,
    runs: str | Path,
    clock: Clock,
    diagnostics: Diagnostics,
    memories: Memories | None = None,
) -> StagedSelector:
    """Return the selector that answers questions in the order of `[fallback]`.

    The first question loads it.
    """
    from bundle_router.engine.selecting import SearchSelector, StagedSelector

    meanings = open_meanings(catalog, clock, diagnostics, memories)
    search = SearchSelector(SearchMaker(), diagnostics, memories, meanings=meanings)
    model = open_model(catalog, runs, clock, diagnostics)
    return StagedSelector(catalog.settings.fallback.order, search=search, model=model)


def open_tool_search(selector: StagedSelector | None, diagnostics: Diagnostics) -> ToolSearch:
    """Return the ranking of tools, over the selector's index where there is one.

    Loads nothing yet.
    """
    from bundle_router.engine.selecting import RankedTools, SearchSelector

    search = selector.index if selector is not None else None
    return RankedTools(search or SearchSelector(SearchMaker(), diagnostics), diagnostics)


def open_embedder(catalog: Catalog) -> Embedder | None:
    """Return the config's embedder; None where it names none. Loads nothing yet."""
    settings = catalog.settings.search.embeddings
    if settings is None:
        return None
    if settings.local is not None:
        from bundle_router.adapters.embeddings import LocalEmbedder

        return LocalEmbedder(settings.local)
    from bundle_router.adapters.llm import LiteLlmEmbedder

    return LiteLlmEmbedder(
        settings.model or "", base_url=settings.base_url, key_env=settings.key_env
    )


def make_vectors(
    catalog: Catalog, embedder: Embedder, remembered: Iterable[Passage] = ()
) -> Vectors | Embedding:
    """Return the vectors of a catalog's texts and of remembered steps, from the user's cache for
    unchanged texts. Blocks, for minutes when thousands of texts are new.
    """
    from bundle_router.adapters.embeddings import vectors_for

    return vectors_for(_passages(catalog, remembered), embedder, _vector_store(embedder))


def _passages(catalog: Catalog, remembered: Iterable[Passage]) -> tuple[Passage, ...]:
    from bundle_router.core.search.meaning import passages_of

    if not catalog.settings.search.ranks_by_meaning:
        return tuple(remembered)
    texts = _searchable_texts(catalog)
    return (*passages_of(texts.bundles, texts.tools), *remembered)


def _remembered_passages(
    memories: Memories | None, embedder: Embedder | None, diagnostics: Diagnostics
) -> tuple[Passage, ...]:
    """Return the past steps that can be recalled, of bundles and of tools; not those that another
    embedder made the vectors of.
    """
    passages: dict[str, Passage] = {}
    revision = embedder.revision if embedder is not None else ""
    for recollection in memories.recollections if memories is not None else ():
        if recollection.embedder == revision:
            passages.update((row.id, row) for row in recollection.passages())
        else:
            advice = (
                "learn and accept again, or name the embedder it was learned with in"
                " [search.embeddings]"
            )
            facts = {"learned_with": recollection.embedder, "embedder": revision, "advice": advice}
            diagnostics.event("warning", "memory.not_recalled", **facts)
    return tuple(passages.values())


def _vector_store(embedder: Embedder) -> VectorStore:
    from bundle_router.adapters.embeddings import VectorStore, cache_folder

    return VectorStore(cache_folder(), embedder.revision)


def make_search_for(
    catalog: Catalog, requests: Iterable[str], memories: Memories | None = None
) -> Search:
    """Return the search for requests that are known in advance, such as past steps: it embeds
    exactly these, where the config names an embedder, and recalls these and `memories`. If the
    embedder fails it searches by words alone, as a router would, and warns.

    Blocks while new texts are embedded. Raises NotInstalled as `make_search` does.
    """
    search = make_search(catalog)
    embedder = open_embedder(catalog)
    if embedder is None and (memories is None or not memories.recollections):
        return search
    diagnostics = open_diagnostics(catalog, open_redactor(catalog))
    remembered = _remembered_passages(memories, embedder, diagnostics)
    if embedder is None:
        return search
    from bundle_router.adapters.embeddings import embed_texts
    from bundle_router.core.search.index import Embedding
    from bundle_router.core.search.meaning import Passage, passage
    from bundle_router.core.search.recall import key_of

    try:
        passages = {text: passage(text) for text in requests}
        steps = {key_of(text): Passage(key_of(text), "steps", text) for text in passages.values()}
        steps |= {row.id: row for row in remembered}
        vectors = make_vectors(catalog, embedder, steps.values())
        prompted = {text: embedder.prompts[0] + part for text, part in passages.items()}
        queries = embed_texts(prompted.values(), embedder, _vector_store(embedder))
    finally:
        embedder.close()
    if isinstance(vectors, Embedding) or isinstance(queries, Embedding):
        failures = [made for made in (vectors, queries) if isinstance(made, Embedding)]
        diagnostics.event(
            "warning",
            "embeddings.unavailable",
            failure=failures[0].failure,
            detail=failures[0].detail,
        )
        return search
    understood = {
        text: queries[part]
        for text, part in prompted.items()
        if len(queries[part]) == vectors.dimension
    }
    return replace(search, vectors=vectors, understood=understood)


def open_meanings(
    catalog: Catalog, clock: Clock, diagnostics: Diagnostics, memories: Memories | None = None
) -> Meanings | None:
    """Return the client of the config's embedder, for steps and for `memories`; None where the
    config names none.
    """
    settings = catalog.settings.search.embeddings
    embedder = open_embedder(catalog)
    unused = not catalog.settings.search.ranks_by_meaning and (
        memories is None or not memories.recollections
    )
    if settings is None or embedder is None or unused:
        _remembered_passages(memories, None, diagnostics)  # warns that they are not recalled
        return None
    from bundle_router.engine.selecting.goal_embedding import Meanings

    def make(of: Catalog) -> Iterator[Vectors | Embedding]:
        from bundle_router.adapters.embeddings import vectors_in_stages

        passages = _passages(of, _remembered_passages(memories, embedder, diagnostics))
        return vectors_in_stages(passages, embedder, _vector_store(embedder))

    return Meanings(embedder, make, clock, diagnostics, deadline_s=settings.deadline_s)


def open_model(
    catalog: Catalog, runs: str | Path, clock: Clock, diagnostics: Diagnostics
) -> ModelSelector | None:
    """Return the selector that asks the config's models; None where it names none.

    Loads nothing yet.
    """
    settings = catalog.settings
    if not settings.model.names or "model" not in settings.fallback.order:
        return None
    return open_models(settings, [settings.model], runs, clock, diagnostics)[0]


def open_models(
    settings: Settings,
    models: Sequence[ModelSettings],
    runs: str | Path,
    clock: Clock,
    diagnostics: Diagnostics,
) -> list[ModelSelector]:
    """Return a selector for each of `models`, over one client: closing one closes all.

    Loads nothing yet.
    """
    from bundle_router.adapters.answer_store import SqlAnswers
    from bundle_router.adapters.llm import LiteLlm
    from bundle_router.adapters.loop import CLEAN_UP_S, LoopThread
    from bundle_router.adapters.model_costs import SqlDayCosts
    from bundle_router.engine.asking import ModelSelector

    store = SqlAnswers(runs, diagnostics) if settings.cache.answers == "index" else None
    ttl_s = settings.cache.answers_ttl_s
    loop = LoopThread("bundle-router-model", abandon_after_s=CLEAN_UP_S + 1)
    client = LiteLlm([choice for model in models for choice in model.choices])
    selectors = [
        ModelSelector(
            model, client, clock, diagnostics, loop=loop, answers_ttl_s=ttl_s, store=store
        )
        for model in models
    ]
    day_costs = SqlDayCosts(runs, diagnostics)
    for selector in selectors:
        selector.limit_costs(day_costs)
    return selectors
