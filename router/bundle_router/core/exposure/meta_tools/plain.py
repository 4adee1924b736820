"""Ranks by shared words, if the search library is missing: enough to find a tool by its own
words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.search.text import Analyzer

_NAME: Final = 3.0
FLOOR: Final = 0.25
"""Minimum score of a further result, as a share of the best one's."""
_ANALYZER: Final = Analyzer()


def plain_ranking(
    catalog: Catalog, query: str, permitted: Iterable[str], k: int
) -> tuple[str, ...]:
    """Return the `k` tools that share most words with the query.

    A word of the name counts three times; ties by name.

    Tools of untrusted servers come after all others.
    """
    stems = set(_ANALYZER.stems(query, limit=100))
    rows: list[tuple[bool, float, str]] = []
    for tool in permitted:
        card = catalog.cards.get(tool)
        about = card.description[:1_000] if card is not None else ""
        score = _NAME * len(stems & set(_ANALYZER.stems(tool))) + len(
            stems & set(_ANALYZER.stems(about))
        )
        if score > 0:
            server = catalog.servers.get(tool.partition(".")[0])
            rows.append((server is None or server.trust == "untrusted", -score, tool))
    return tuple(tool for _, _, tool in sorted(rows)[:k])


def relevant(catalog: Catalog, query: str, ranked: Sequence[str]) -> tuple[str, ...]:
    """Return the ranked tools without noise.

    A query has a word or two that matter; a tool that shares only the others ("make", "get") is
    dropped if it ranks behind the best one by words. A tool that ranks before that one was found by
    more than words, and stays.
    """
    stems = _stems(query)
    weights = {tool: _shared_words(catalog, tool, stems) for tool in ranked}
    counts = Counter(word for words in weights.values() for word in words)
    rarity = {word: math.log((1 + len(ranked)) / count) for word, count in counts.items()}

    scores = {}
    for tool, words in weights.items():
        scores[tool] = sum(rarity[word] * weight for word, weight in words.items())
    best = max(scores.values(), default=0.0)
    if not best:
        return tuple(ranked)

    first_best = next(rank for rank, tool in enumerate(ranked) if scores[tool] == best)
    telling = [tool for tool in ranked[first_best + 1 :] if scores[tool] >= FLOOR * best]
    return (*ranked[: first_best + 1], *telling)


def _shared_words(catalog: Catalog, tool: str, wanted: frozenset[str]) -> dict[str, float]:
    """Return the words of the query that the tool has, with their weights."""
    card = catalog.cards.get(tool)
    about = wanted & _stems(card.description[:1_000] if card is not None else "")
    return {**dict.fromkeys(about, 1.0), **dict.fromkeys(wanted & _stems(tool), _NAME)}


def _stems(text: str) -> frozenset[str]:
    return frozenset(word.removesuffix("s") for word in _ANALYZER.stems(text, limit=200))
