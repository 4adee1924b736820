"""Vectors of many texts: what is kept on disk, and the rest from an embedder, once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bundle_router.adapters.embeddings.kept import VectorStore
from bundle_router.adapters.embeddings.nearest import DenseVectors
from bundle_router.core.search.index import Space
from bundle_router.core.search.meaning import Passage, fault_in
from bundle_router.ports import Embedder, Embedding

Vector = tuple[float, ...]

PART: Final = 256
"""Texts that are embedded, and kept, at a time: a process that ends in the middle loses no more."""
PART_TIMEOUT_S: Final = 120.0


def vectors_for(passages: Sequence[Passage], embedder: Embedder, store: VectorStore) -> DenseVectors | Embedding:
    """The vectors of a catalog. Blocks for as long as `embed_texts` does, and fails with it: all or none, so that no
    bundle ranks low for want of a vector."""
    known = embed_texts([passage.text for passage in passages], embedder, store)
    if isinstance(known, Embedding):
        return known
    rows: dict[Space, dict[str, Sequence[float]]] = {}
    for passage in passages:
        rows.setdefault(passage.collection, {})[passage.id] = known[passage.text]
    dimension = len(next(iter(known.values()))) if known else 1
    return DenseVectors(embedder.revision, dimension, rows)


def embed_texts(texts: Iterable[str], embedder: Embedder, store: VectorStore) -> dict[str, Vector] | Embedding:
    """The vector of every text. Blocks while what is not kept is embedded: minutes for thousands of texts on a small
    machine. An `Embedding` with a failure where that fails; what was embedded until then is kept."""
    wanted = list(dict.fromkeys(texts))
    known = store.load(wanted)
    if known and fault_in(tuple(known.values()), len(known)):
        known = {}
    dimension = len(next(iter(known.values()))) if known else None
    missing = [text for text in wanted if text not in known]
    for start in range(0, len(missing), PART):
        part = missing[start : start + PART]
        made = embedder.embed(part, timeout_s=PART_TIMEOUT_S)
        if made.failure is not None:
            return made
        fault = fault_in(made.vectors, len(part), dimension)
        if fault:
            return Embedding(failure="invalid_output", detail=fault)
        dimension = len(made.vectors[0])
        fresh = dict(zip(part, made.vectors, strict=True))
        store.save(fresh)
        known.update(fresh)
    return known
