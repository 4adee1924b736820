"""The vectors of many texts: from the cache on disk, the others from an embedder, once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bundle_router.adapters.embeddings.kept import VectorStore
from bundle_router.adapters.embeddings.nearest import DenseVectors
from bundle_router.core.search.index import Embedding, Space
from bundle_router.core.search.meaning import Passage, fault_in
from bundle_router.ports import Embedder

Vector = tuple[float, ...]

PART: Final = 32
"""Texts that are first embedded and stored at a time: a process that is interrupted loses no
more.
"""
LARGEST: Final = 512
PART_S: Final = 10.0
"""Seconds that a part should take; the size of later parts is adapted to it."""
PART_TIMEOUT_S: Final = 120.0


def vectors_in_stages(
    passages: Sequence[Passage], embedder: Embedder, store: VectorStore
) -> Iterator[DenseVectors | Embedding]:
    """Yield first the vectors of the bundles' own texts, by which all bundles can be compared while
    the many tools are still being embedded, then those of everything. Ends at a failure. Blocks in
    between, as `embed_texts` does.
    """
    vectors: dict[str, Vector] = {}
    first_passages = [passage for passage in passages if passage.collection in ("bundles", "steps")]
    for stage in (
        (first_passages, passages) if 0 < len(first_passages) < len(passages) else (passages,)
    ):
        stage_vectors = vectors_for(stage, embedder, store, vectors)
        yield stage_vectors
        if isinstance(stage_vectors, Embedding):
            return


def vectors_for(
    passages: Sequence[Passage],
    embedder: Embedder,
    store: VectorStore,
    made: dict[str, Vector] | None = None,
) -> DenseVectors | Embedding:
    """Return the vectors of a catalog, all or none, so that no bundle ranks low for lack of a
    vector. Blocks and fails as `embed_texts` does.
    """
    request, document = embedder.prompts
    texts = [
        (request if passage.collection == "steps" else document) + passage.text
        for passage in passages
    ]
    vectors = embed_texts(texts, embedder, store, made)
    if isinstance(vectors, Embedding):
        return vectors
    rows: dict[Space, list[tuple[str, Vector]]] = {}
    for passage, text in zip(passages, texts, strict=True):
        rows.setdefault(passage.collection, []).append((passage.id, vectors[text]))
    return DenseVectors(
        embedder.revision, len(next(iter(vectors.values()))) if vectors else 1, rows
    )


def embed_texts(
    texts: Iterable[str],
    embedder: Embedder,
    store: VectorStore,
    made: dict[str, Vector] | None = None,
) -> dict[str, Vector] | Embedding:
    """Return the vector of every text; `made` are earlier ones, and gets these.

    Blocks while texts that are not stored are embedded: minutes for thousands of texts on a small
    machine. On a failure returns its `Embedding`; vectors made until then are stored.
    """
    distinct = list(dict.fromkeys(texts))
    vectors = store.load([text for text in distinct if text not in (made or {})]) | (made or {})
    if vectors and fault_in(tuple(vectors.values()), len(vectors)):
        vectors = {}
    dimension = len(next(iter(vectors.values()))) if vectors else None
    missing = [text for text in distinct if text not in vectors]
    size = PART
    while missing:
        part = missing[:size]
        started = time.monotonic()
        reply = embedder.embed(part, timeout_s=PART_TIMEOUT_S)
        if reply.failure == "timeout" and len(part) > 1:
            size = max(1, len(part) // 4)  # the machine is busy: embed less at a time
            continue
        if reply.failure is not None:
            return reply
        missing = missing[len(part) :]
        size = max(
            1,
            min(
                LARGEST, 2 * size, int(len(part) * PART_S / max(time.monotonic() - started, 0.001))
            ),
        )
        fault = fault_in(reply.vectors, len(part), dimension)
        if fault:
            return Embedding(failure="invalid_output", detail=fault)
        dimension = len(reply.vectors[0])
        fresh = dict(zip(part, reply.vectors, strict=True))
        store.save(fresh)
        vectors.update(fresh)
    if made is not None:
        made.update(vectors)
    return vectors
