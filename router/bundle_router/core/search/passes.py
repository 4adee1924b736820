"""One ranking of one text over the index: a bundle by its own text and by its best tool, and tools by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bundle_router.core.search.fusion import best_is_one, blend
from bundle_router.core.search.index import Collection, Hits, Index
from bundle_router.core.search.text import NO_TERMS, Analyzer, Terms
from bundle_router.core.search.weights import Weights


@dataclass(frozen=True, slots=True)
class SearchScope:
    """Who may be ranked: `None` is everyone."""

    bundles: frozenset[str] | None
    tools: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class RankingPass:
    """One ranking of one text. Scores are relative (best is 1), `strength` is the best raw one of each kind.
    `known` and `asked`: weight × rarity, summed, of the request's words that any bundle holds, and of all."""

    bundles: Mapping[str, float]
    tools: Mapping[str, float]
    by_text: Mapping[str, float]
    by_tool: Mapping[str, float]
    strength: float
    tool_strength: float
    matched: Mapping[str, float]
    known: float
    asked: float


@dataclass(frozen=True, slots=True)
class Passes:
    """Ranks texts over an index. `bundles_of` names the bundles that hold a tool. Bundles are ranked by the collection
    `tools`, of trusted servers alone; where tools are ranked, they and what they gain from bundles by `ranks_tools`."""

    index: Index
    analyzer: Analyzer
    weights: Weights
    bundles_of: Mapping[str, tuple[str, ...]]
    ranks_tools: Collection = "tools"

    def asked(self, terms: Terms) -> float:
        """Return how much a text asks for: its words' weight × rarity, summed."""
        return self._mass("bundles", terms.stems, self.analyzer.weigh(terms, self.weights.bundle_scale))

    def of(
        self, terms: Terms, scope: SearchScope, tools: bool, *, hints: Terms = NO_TERMS, need: float | None = None
    ) -> RankingPass:
        """Return the ranking of a whole request, of which what its best documents hold is counted, and `need` (an
        exponent) says how much of it they have to cover; or, without `need`, of one of its wishes."""
        w, analyzer, whole = self.weights, self.analyzer, need is not None
        for_bundles = analyzer.weigh(terms, w.bundle_scale)
        among: Collection = self.ranks_tools if tools else "tools"
        own, own_tools = self._held("bundles", terms), self._held(among, terms)
        known = self._mass("bundles", own, for_bundles) if whole else 0.0
        asked = self._mass("bundles", terms.stems, for_bundles) if whole else 0.0
        known_tools = self._mass(among, own_tools, for_bundles) if need else 0.0
        for hint, weight in analyzer.weigh(hints, w.bundle_scale).items():
            for_bundles.setdefault(hint, weight * w.context)
        texts = self._search("bundles", for_bundles, (need, known), scope.bundles)
        best: dict[str, float] = {}
        matched = {**texts.matched}
        hits = self._search(among, for_bundles, (need, known_tools), scope.tools)
        for tool, score in hits.scores.items():
            for bundle in self.bundles_of.get(tool, ()):
                if score > best.get(bundle, 0.0) and (scope.bundles is None or bundle in scope.bundles):
                    best[bundle] = score
                    matched[bundle] = max(matched.get(bundle, 0.0), hits.matched.get(tool, 0.0))
        by_text, by_tool = best_is_one(texts.scores), best_is_one(best)
        found: Mapping[str, float] = {}
        tool_strength = max(best.values(), default=0.0)
        if tools:
            for_tools = analyzer.weigh(terms, w.tool_scale)
            known_tools = self._mass(among, own_tools, for_tools) if need else 0.0
            hits = self._search(among, for_tools, (need, known_tools), scope.tools)
            found = best_is_one(hits.scores)
            tool_strength = max(hits.scores.values(), default=0.0)
        strength = max(texts.scores.values(), default=0.0)
        of_text, of_tool = w.text_share * len(own), (1.0 - w.text_share) * len(own_tools)
        both = blend(by_text, by_tool, of_text / (of_text + of_tool) if of_text + of_tool > 0.0 else w.text_share)
        return RankingPass(both, found, by_text, by_tool, strength, tool_strength, matched, known, asked)

    def _held(self, collection: Collection, terms: Terms) -> list[str]:
        """Return the request's own words that any document of the collection holds."""
        return [term for term in terms.stems if self.index.knows(collection, term)]

    def _mass(self, collection: Collection, stems: Sequence[str], weights: Mapping[str, float]) -> float:
        """Return the words' weight × rarity, summed."""
        rarity = self.index.rarity(collection, stems)
        return sum(weights[term] * rare for term, rare in zip(stems, rarity, strict=True))

    def _search(
        self,
        collection: Collection,
        weights: Mapping[str, float],
        cover: tuple[float | None, float],
        within: frozenset[str] | None,
    ) -> Hits:
        """`cover`: how much of what is known the hits have to cover, and how much that is."""
        need, known = cover
        depth = self.weights.clause_depth if need is None else self.weights.depth
        hits = self.index.search(collection, weights, k=depth, within=within, counting=need is not None)
        if not need or known <= 0.0:
            return hits
        pairs = zip(hits.scores.items(), hits.matched.values(), strict=True)
        cut = {id_: score * (part / known) ** need if part < known else score for (id_, score), part in pairs}
        return Hits(cut, hits.matched)


def coherence_of(clauses: Sequence[RankingPass]) -> float:
    """Return how much of what the clauses could get one bundle gives: 1 when one bundle is best for all of them."""
    possible = sum(part.tool_strength for part in clauses)
    if possible <= 0.0:
        return 1.0
    total: dict[str, float] = {}
    for part in clauses:
        for id_, score in part.bundles.items():
            total[id_] = total.get(id_, 0.0) + part.tool_strength * score
    return max(total.values(), default=0.0) / possible
