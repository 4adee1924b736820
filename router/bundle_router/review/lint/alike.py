"""Pairs of bundles that a reader, or a model, can't tell apart: the same tools, or nearly the same words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from bundle_router.core.catalog import Bundle

LIKENESS: Final = 0.8
"""Share of words two descriptions must have in common (Jaccard) to count as alike."""
MAX_COMPARISONS: Final = 200_000

_WORD: Final = re.compile(r"[a-z0-9]+")


def alike_pairs(bundles: Sequence[Bundle]) -> Iterator[tuple[Bundle, Bundle, str]]:
    """`(earlier, later, why)` for each pair that is alike, once."""
    same_tools: dict[tuple[tuple[str, ...], tuple[str, ...]], Bundle] = {}
    reported: set[tuple[str, str]] = set()
    for bundle in bundles:
        twin = same_tools.setdefault((bundle.tools, bundle.patterns), bundle)
        if twin is not bundle:
            reported.add((twin.id, bundle.id))
            yield twin, bundle, "it has the same tools"
    for first, second in _alike_in_words(bundles):
        if (first.id, second.id) not in reported:
            yield first, second, "their descriptions say nearly the same"


def _alike_in_words(bundles: Sequence[Bundle]) -> Iterator[tuple[Bundle, Bundle]]:
    """Prefix filter: sets that are this alike share one of the rarest words of each, so only those are looked up."""
    words = [frozenset(_WORD.findall(f"{bundle.description} {bundle.avoid}".lower())) for bundle in bundles]
    frequency = Counter(word for own in words for word in own)
    holders: defaultdict[str, list[int]] = defaultdict(list)
    left = MAX_COMPARISONS
    for index, own in enumerate(words):
        rarest = sorted(own, key=lambda word: (frequency[word], word))
        prefix = rarest[: len(own) - int(LIKENESS * len(own)) + 1]
        candidates = {other for word in prefix for other in holders[word]}
        for other in sorted(candidates):
            left -= 1
            if left < 0:
                return
            shared = len(own & words[other])
            if shared >= LIKENESS * (len(own) + len(words[other]) - shared):
                yield bundles[other], bundles[index]
        for word in prefix:
            holders[word].append(index)
