"""What search asks of the library behind it: a few words of a protocol, and the documents that go in.

The library ranks; everything it lacks (fields, synonyms, clauses, fusion, history, memory, floors) is on this side.

Rules an index keeps:
1. Same documents and same query give the same hits, whatever order the documents came in or left.
2. An updated index answers exactly as one built anew from the same documents.
3. Hits come best first, equal scores by id; only documents with a score above zero are hits.
4. Statistics (how rare a term is) are taken over the whole collection, not over `within`: what one caller may see
   does not change how words are weighed for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, get_args

from bundle_router.core.models import Failure
from bundle_router.dataclass import dataclass

Collection = Literal["bundles", "tools", "reviewed", "unread"]
"""`bundles` and `tools` hold the operator's words and the cards of trusted servers, and rank bundles. `reviewed` holds
the trusted tools and the pinned ones of other servers, where there are such, and ranks tools. `unread`: all else."""

Space = Literal["bundles", "tools", "pinned", "steps"]
"""Where vectors lie: of bundles, of trusted tools, of pinned tools of other servers, and of remembered steps."""

MIN_RESPELT: Final = 5
"""Letters of a word from which on an unknown one may stand for it."""
COLLECTIONS: Final[tuple[Collection, ...]] = get_args(Collection)


@dataclass(frozen=True, slots=True)
class Document:
    """What is indexed under `id`: terms, each repeated as often as its field weighs."""

    id: str
    collection: Collection
    terms: tuple[str, ...]


class Hits(NamedTuple):
    """Found documents by id, best first: the library's scores, and of each weight × rarity of the query terms it holds,
    summed (empty where nobody asked for it)."""

    scores: Mapping[str, float]
    matched: Mapping[str, float]


class NearDocument(NamedTuple):
    """A document whose vector points where the asked one does. `cosine` lies above 0 and at most at 1."""

    id: str
    cosine: float


class Vectors(Protocol):
    """What an embedder made of one catalog's texts. Immutable, so many threads may search it at once."""

    @property
    def revision(self) -> str:
        """Of the embedder that made them: another one's vectors must not be compared with these."""

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""

    def nearest(
        self, collection: Space, vector: Sequence[float], *, k: int, within: frozenset[str] | None = None
    ) -> Sequence[NearDocument]:
        """Return the `k` nearest documents among `within` where it is given, best first, equal ones by id."""


class Index(Protocol):
    """A ranked text index over one catalog revision. Immutable, so many threads may search it at once."""

    @property
    def revision(self) -> str:
        """Of the catalog (and of the rules and library) it was built from."""

    def search(
        self,
        collection: Collection,
        queries: Sequence[Mapping[str, float]],
        *,
        k: int,
        within: frozenset[str] | None = None,
        counting: bool = True,
    ) -> Sequence[Hits]:
        """Return the best `k` documents for the weighted terms of each query, among `within` where it is given;
        `counting`: with what they matched."""

    def rarity(self, collection: Collection, terms: Iterable[str]) -> Sequence[float]:
        """Return how rare each term is among the collection's documents (an idf, ≥ 0); unseen terms are rarest."""

    def like(self, collection: Collection, term: str) -> Sequence[str]:
        """At most two words of the collection that a misspelt one may stand for, the commonest first: one letter apart
        (missing, added, another, or two that changed places)."""

    def known(self, collection: Collection, terms: Iterable[str]) -> Sequence[str]:
        """Return those of the terms that any document of the collection holds, in their order."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """What an embedder made of some texts: a vector for each, in their order; or why there are none. `detail` is for
    the operator, in the adapter's own words, and holds nothing that was embedded."""

    vectors: tuple[tuple[float, ...], ...] = ()
    failure: Failure | None = None
    detail: str = ""
    retry_after_s: float | None = None
