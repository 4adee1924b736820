"""Vectors of many texts: what is kept on disk, and the rest from an embedder, once."""

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
"""Texts that are embedded, and kept, at a time, to begin with: a process that ends in the middle loses no more."""
LARGEST: Final = 512
PART_S: Final = 10.0
"""Seconds that a part should take: those after it are made so large."""
PART_TIMEOUT_S: Final = 120.0


def vectors_in_stages(
    passages: Sequence[Passage], embedder: Embedder, store: VectorStore
) -> Iterator[DenseVectors | Embedding]:
    """First the vectors of the bundles' own texts, by which all of them can be compared while the many tools are still
    embedded, then those of everything. Ends with a failure. Blocks in between, as `embed_texts` does."""
    known: dict[str, Vector] = {}
    few = [passage for passage in passages if passage.collection in ("bundles", "steps")]
    for stage in (few, passages) if 0 < len(few) < len(passages) else (passages,):
        made = vectors_for(stage, embedder, store, known)
        yield made
        if isinstance(made, Embedding):
            return


def vectors_for(
    passages: Sequence[Passage], embedder: Embedder, store: VectorStore, made: dict[str, Vector] | None = None
) -> DenseVectors | Embedding:
    """Return the vectors of a catalog. Blocks for as long as `embed_texts` does, and fails with it: all or none, so
    that no bundle ranks low for want of a vector."""
    known = embed_texts([passage.text for passage in passages], embedder, store, made)
    if isinstance(known, Embedding):
        return known
    rows: dict[Space, dict[str, Sequence[float]]] = {}
    for passage in passages:
        rows.setdefault(passage.collection, {})[passage.id] = known[passage.text]
    dimension = len(next(iter(known.values()))) if known else 1
    return DenseVectors(embedder.revision, dimension, rows)


def embed_texts(
    texts: Iterable[str], embedder: Embedder, store: VectorStore, made: dict[str, Vector] | None = None
) -> dict[str, Vector] | Embedding:
    """Return the vector of every text; `made` are those that were made before, and gets these. Blocks while what is not
    kept is embedded: minutes for thousands of texts on a small machine. An `Embedding` with a failure where that fails;
    what was embedded until then is kept."""
    wanted = list(dict.fromkeys(texts))
    known = store.load([text for text in wanted if text not in (made or {})]) | (made or {})
    if known and fault_in(tuple(known.values()), len(known)):
        known = {}
    dimension = len(next(iter(known.values()))) if known else None
    missing = [text for text in wanted if text not in known]
    size = PART
    while missing:
        part = missing[:size]
        started = time.monotonic()
        reply = embedder.embed(part, timeout_s=PART_TIMEOUT_S)
        if reply.failure == "timeout" and len(part) > 1:
            size = max(1, len(part) // 4)  # a busy machine: less at a time, and nothing is given up
            continue
        if reply.failure is not None:
            return reply
        missing = missing[len(part) :]
        size = max(1, min(LARGEST, 2 * size, int(len(part) * PART_S / max(time.monotonic() - started, 0.001))))
        fault = fault_in(reply.vectors, len(part), dimension)
        if fault:
            return Embedding(failure="invalid_output", detail=fault)
        dimension = len(reply.vectors[0])
        fresh = dict(zip(part, reply.vectors, strict=True))
        store.save(fresh)
        known.update(fresh)
    if made is not None:
        made.update(known)
    return known
