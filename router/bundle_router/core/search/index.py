"""The protocol of the search library, and the documents that it indexes.

The library ranks; everything it lacks (fields, synonyms, clauses, fusion, history, memory, floors)
is on this side.

Rules of an index:
1. The same documents and query give the same hits, in whatever order documents were added or
   removed.
2. An updated index answers exactly as one built anew from the same documents.
3. Hits come best first, equal scores by id; only documents with a score above zero are hits.
4. An id may have several documents, as a bundle with examples has. The best of them counts.
5. Statistics (how rare a term is) cover the whole collection, not `within`: a caller's permissions
   do not change how words are weighed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, get_args

from bundle_router.core.values import Failure

Collection = Literal["bundles", "tools", "reviewed", "unread"]
"""`bundles` and `tools` hold the operator's words and the cards of trusted servers, and rank
bundles. `reviewed` holds trusted tools and pinned ones of other servers, if there are such, and
ranks tools. `unread`: all others.
"""

Space = Literal["bundles", "tools", "pinned", "steps"]
"""Collections of vectors: bundles, trusted tools, pinned tools of other servers, and remembered
steps.
"""

MIN_RESPELT: Final = 5
"""Minimum letters of an unknown word that is corrected."""
COLLECTIONS: Final[tuple[Collection, ...]] = get_args(Collection)


@dataclass(frozen=True, slots=True)
class Document:
    """The terms indexed under `id`, each repeated by its field's weight.

    `part` tells several documents of one id apart. `words` are the different words of its texts as
    they are written, to which a misspelt word may be corrected.
    """

    id: str
    collection: Collection
    terms: tuple[str, ...]
    part: int = 0
    words: tuple[str, ...] = ()


class Hits(NamedTuple):
    """The found documents by id, best first: the library's scores, and for each the sum of weight ×
    rarity of the query terms it contains (empty unless requested).
    """

    scores: Mapping[str, float]
    matched: Mapping[str, float]


class NearDocument(NamedTuple):
    """A document whose vector is near the query's. `cosine` is above 0 and at most 1."""

    id: str
    cosine: float


class Vectors(Protocol):
    """An embedder's vectors of one catalog's texts.

    Immutable, so many threads may search it at once.
    """

    @property
    def revision(self) -> str:
        """Revision of the embedder. Vectors of another one must not be compared with these."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def nearest(
        self,
        collection: Space,
        vector: Sequence[float],
        *,
        k: int,
        within: frozenset[str] | None = None,
    ) -> Sequence[NearDocument]:
        """Return the ids of the `k` nearest documents (among `within`, if given), best first, equal
        ones by id; of several documents of one id the nearest counts.
        """


class Index(Protocol):
    """A ranked text index over one catalog revision.

    Immutable, so many threads may search it at once.
    """

    @property
    def revision(self) -> str:
        """Revision of the catalog, rules and library that it was built from."""

    def search(
        self,
        collection: Collection,
        queries: Sequence[Mapping[str, float]],
        *,
        k: int,
        within: frozenset[str] | None = None,
        counting: bool = True,
    ) -> Sequence[Hits]:
        """Return the ids of the best `k` documents (of `within`, if given) for the terms of
        each query with their weights; `counting`: with the weight that they matched.
        """

    def rarity(self, collection: Collection, terms: Iterable[str]) -> Sequence[float]:
        """Return how rare each term is in the collection (an idf, ≥ 0); unseen terms are rarest."""

    def like(self, collection: Collection, word: str) -> Sequence[str]:
        """Return the words of the collection's documents that a misspelt one may mean, those of
        most documents first: one letter apart (missing, added, replaced, or two swapped).
        """

    def known(self, collection: Collection, terms: Iterable[str]) -> Sequence[str]:
        """Return the terms that any document of the collection contains, in their order."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """An embedder's output: a vector for each text, or why there are none."""

    vectors: tuple[tuple[float, ...], ...] = ()
    """A vector for each text, in order."""
    failure: Failure | None = None
    """Why there are none."""
    detail: str = ""
    """The failure for the operator, in the adapter's own words; it contains nothing that was
    embedded.
    """
    retry_after_s: float | None = None
    """Seconds that the provider asked to wait; None: it did not."""
