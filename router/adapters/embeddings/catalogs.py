"""The vectors of a catalog's passages: what is kept on disk, and the rest from an embedder, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from router.adapters.embeddings.kept import VectorStore
from router.adapters.embeddings.nearest import DenseVectors
from router.core.search.index import Collection
from router.core.search.meaning import Passage, fault_in
from router.ports import Embedder, Embedding

PART: Final = 256
"""Passages that are embedded, and kept, at a time: a process that ends in the middle loses no more."""
PART_TIMEOUT_S: Final = 120.0


def vectors_for(passages: Sequence[Passage], embedder: Embedder, store: VectorStore) -> DenseVectors | Embedding:
    """Embeds what is not kept. Blocks for as long as that takes: minutes for thousands of texts on a small machine.

    An `Embedding` with a failure in place of vectors: all or none, so that no bundle ranks low for want of a vector.
    """
    texts = list(dict.fromkeys(passage.text for passage in passages))
    known = store.load(texts)
    dimension: int | None = None
    if known and fault_in(tuple(known.values()), len(known)):
        known = {}
    if known:
        dimension = len(next(iter(known.values())))
    missing = [text for text in texts if text not in known]
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
    rows: dict[Collection, dict[str, Sequence[float]]] = {}
    for passage in passages:
        rows.setdefault(passage.collection, {})[passage.id] = known[passage.text]
    return DenseVectors(embedder.revision, dimension or 1, rows)
