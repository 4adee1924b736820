"""An embedder whose every answer a test decides, and a selector that asks it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence

from bundle_router.adapters.embeddings import VectorStore, vectors_in_stages
from bundle_router.core.catalog import Catalog
from bundle_router.core.search.corpus import texts_of
from bundle_router.core.search.index import Embedding, Vectors
from bundle_router.core.search.meaning import passages_of
from bundle_router.core.values import Failure
from bundle_router.engine.selecting import SearchSelector
from bundle_router.engine.selecting.goal_embedding import Meanings
from bundle_router.ports import Clock
from bundle_router.testing import FakeClock, FakeDiagnostics

from tests.engine.selecting.catalogs import search_over

TOPICS = ("code", "doc", "ticket", "test", "letter")


def about(text: str) -> tuple[float, ...]:
    """A vector that says which of the topics a text is about."""
    lower = text.lower()
    return (*(float(lower.count(topic)) for topic in TOPICS), 0.1)


class Embedder:
    """Embeds by `about`, or does what `then` says. `seen` holds every text it was given."""

    def __init__(self, revision: str = "toy/1", prompts: tuple[str, str] = ("", "")) -> None:
        self.prompts = prompts
        self.seen: list[str] = []
        self.closed = False
        self.then: Failure | Callable[[Sequence[str]], Embedding] | None = None
        self._revision = revision

    @property
    def name(self) -> str:
        return "toy"

    @property
    def revision(self) -> str:
        return self._revision

    def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedding:
        self.seen += texts
        if callable(self.then):
            return self.then(texts)
        if self.then is not None:
            return Embedding(failure=self.then)
        return Embedding(tuple(about(text) for text in texts))

    def close(self) -> None:
        self.closed = True


class Rig:
    """A selector over a catalog with an embedder, its clock, and what was reported."""

    def __init__(
        self, of: Catalog, embedder: Embedder | None = None, store: VectorStore | None = None
    ) -> None:
        self.catalog = of
        self.embedder = embedder or Embedder()
        self.clock = FakeClock()
        self.diagnostics = FakeDiagnostics()
        self.release = threading.Event()
        self.release.set()
        kept = store or VectorStore(None, "toy/1")

        def make(catalog: Catalog) -> Iterator[Vectors | Embedding]:
            assert self.release.wait(300)
            texts = texts_of(catalog)
            return vectors_in_stages(passages_of(texts.bundles, texts.tools), self.embedder, kept)

        clock: Clock = self.clock
        self.meanings = Meanings(self.embedder, make, clock, self.diagnostics, deadline_s=60.0)
        self.selector = SearchSelector(search_over, self.diagnostics, meanings=self.meanings)


NOT_A_NUMBER = Embedding(((math.nan,) * 6,))
