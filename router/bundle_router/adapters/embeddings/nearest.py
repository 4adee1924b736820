"""Exact comparison of one catalog's vectors: a product with 15,000 tools of 384 numbers takes
milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from bundle_router.core.search.index import NearDocument, Space

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MASKS: Final = 64
FEW = 16
ENOUGH = 512
USUAL = 0.3
"""Texts that are too few to tell a model's least cosine by, that suffice, and a least cosine that
changes nothing.
"""
DIGITS: Final = 6
"""Digits that cosines are rounded to: the last bits depend on the batch's size, and must not settle
ties.
"""


class DenseVectors:
    """`Vectors` in memory, of each collection's ids with their vectors; an id may have several.

    Each collection's rows are in id order, scaled to length 1.
    """

    def __init__(
        self,
        revision: str,
        dimension: int,
        rows: Mapping[Space, Iterable[tuple[str, Sequence[float]]]],
    ) -> None:
        self.revision = revision
        self.dimension = dimension
        self._matrices = {name: _Matrix.of(pairs, dimension) for name, pairs in rows.items()}
        self._least = _least_cosine([matrix.rows for matrix in self._matrices.values()])

    def nearest(
        self,
        collection: Space,
        vector: Sequence[float],
        *,
        k: int,
        within: frozenset[str] | None = None,
    ) -> Sequence[NearDocument]:
        """See `Vectors`. Raises ValueError for a vector of another length."""
        matrix = self._matrices.get(collection)
        if matrix is None or not matrix.ids or k <= 0:
            return ()
        if within is not None and not within:
            return ()

        lowest = self._least
        found = []
        for id_, cosine in matrix.nearest(vector, k, within):
            if cosine > lowest:
                share = (cosine - lowest) / (1.0 - lowest)
                found.append(NearDocument(id_, round(share, DIGITS)))
        return found


@dataclass(eq=False)
class _Matrix:
    ids: list[str]
    """Each id once, in order."""
    rows: NDArray[np.float32]
    """The vectors, those of an id side by side."""
    counts: NDArray[np.int64]
    """How many rows each id has."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, Sequence[float]]], dimension: int) -> _Matrix:
        import numpy as np

        ordered = sorted(pairs, key=itemgetter(0))
        counts = Counter(id_ for id_, _ in ordered)
        vectors = np.array([vector for _, vector in ordered], np.float32)
        return cls(
            list(counts),
            _unit_rows(vectors.reshape(len(ordered), dimension)),
            np.array(list(counts.values()), np.int64),
        )

    def nearest(
        self, vector: Sequence[float], k: int, within: frozenset[str] | None
    ) -> Sequence[NearDocument]:
        import numpy as np

        query = _unit_rows(np.array([vector], np.float32))[0]
        rows = self.rows
        counts = self.counts
        permitted = None
        if within is not None:
            permitted = self._mask(within)
            rows = rows[np.repeat(permitted, counts)]
            counts = counts[permitted]
        if not len(rows):
            return ()
        # A BLAS may raise floating-point flags of lanes that hold no value of ours: rows are unit
        # vectors, so no product of theirs is invalid.
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            products = rows @ query
        of_rows = np.clip(np.round(products, DIGITS), -1.0, 1.0)
        cosines = np.maximum.reduceat(of_rows, np.cumsum(counts) - counts)
        if len(cosines) > k:
            floor = np.partition(cosines, len(cosines) - k)[len(cosines) - k]
        else:
            floor = np.float32(0)
        best = np.flatnonzero((cosines >= floor) & (cosines > 0))
        best = best[np.argsort(-cosines[best], kind="stable")[:k]]
        indexes = best if permitted is None else np.flatnonzero(permitted)[best]
        values = cosines[best].astype(np.float64).round(DIGITS).tolist()
        return [
            NearDocument(self.ids[row], value)
            for row, value in zip(indexes.tolist(), values, strict=True)
        ]

    @cached_property
    def _mask(self) -> Callable[[frozenset[str]], NDArray[np.bool_]]:
        """Returns which of the ids are permitted, in order. Caches the latest sets."""
        import numpy as np

        ids = self.ids
        return lru_cache(_MASKS)(lambda within: np.array([id_ in within for id_ in ids], np.bool_))


def _least_cosine(collections: Sequence[NDArray[np.float32]]) -> float:
    """Return the cosine that counts as 0: that of the least alike texts (a hundredth of the pairs
    has less) for models that find all texts alike, as E5 does, whose differences would drown in
    those of words. MiniLM's is at most 0.25.
    """
    import numpy as np

    rows = np.concatenate(collections) if collections else np.zeros((0, 1), np.float32)
    rows = rows[:: 1 + len(rows) // ENOUGH]
    if len(rows) >= FEW:
        lowest = np.quantile((rows @ rows.T)[np.triu_indices(len(rows), 1)], 0.01)
    else:
        lowest = 0.0
    return round(float(lowest), DIGITS) if USUAL < lowest < 0.99 else 0.0


def _unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    import numpy as np

    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return (rows / np.where(lengths > 0.0, lengths, 1.0)).astype(np.float32)
