"""One ranking of one text over the index: bundles by their own text and by their best tool, and tools by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bundle_router.core.search.fusion import best_is_one, blend
from bundle_router.core.search.index import Collection, Hits, Index
from bundle_router.core.search.text import Analyzer, Terms
from bundle_router.core.search.weights import Weights


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The ids that may be ranked; None: all."""

    bundles: frozenset[str] | None
    tools: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class RankingPass:
    """One ranking of one text. Scores are relative (best is 1), `strength` is the best raw one of each kind. For a
    whole request also `matched`, the weight that its best documents match, and `known` and `asked`: the sums of weight
    × rarity of the request's words that any bundle contains, and of all its words."""

    bundles: Mapping[str, float]
    tools: Mapping[str, float]
    by_text: Mapping[str, float]
    by_tool: Mapping[str, float]
    strength: float
    tool_strength: float
    matched: Mapping[str, float]
    known: float = 0.0
    asked: float = 0.0


@dataclass(frozen=True, slots=True)
class Passes:
    """Ranks texts over an index. `bundles_of` names the bundles of a tool. Bundles are ranked by the collection
    `tools`, of trusted servers only; tools, with their share of bundles' scores, are ranked by `ranks_tools`."""

    index: Index
    analyzer: Analyzer
    weights: Weights
    bundles_of: Mapping[str, tuple[str, ...]]
    ranks_tools: Collection = "tools"

    def weight_of(self, terms: Terms) -> float:
        """Return the weight of a text: the sum of weight × rarity of its words."""
        return self._mass("bundles", terms.stems, self.analyzer.query_weights(terms, self.weights.bundle_scale))

    def of(self, terms: Terms, scope: SearchScope, tools: bool, hints: Terms, need: float) -> RankingPass:
        """Return the ranking of a whole request, with the weight that its best documents match. `need` (an exponent)
        says how much of the request they have to cover."""
        w, analyzer = self.weights, self.analyzer
        among: Collection = self.ranks_tools if tools else "tools"
        for_bundles = analyzer.query_weights(terms, w.bundle_scale)
        asked = self._mass("bundles", terms.stems, for_bundles)
        own, own_tools = self.index.known("bundles", terms.stems), self.index.known(among, terms.stems)
        known, known_tools = self._mass("bundles", own, for_bundles), self._mass(among, own_tools, for_bundles)
        for hint, weight in analyzer.query_weights(hints, w.bundle_scale).items():
            for_bundles.setdefault(hint, weight * w.context)
        texts = self._covering("bundles", for_bundles, known, need, scope.bundles)
        hits = self._covering(among, for_bundles, known_tools, need, scope.tools)
        found = None
        if tools:
            for_tools = analyzer.query_weights(terms, w.tool_scale)
            known_tools = self._mass(among, own_tools, for_tools)
            found = self._covering(among, for_tools, known_tools, need, scope.tools).scores
        return replace(self._fused(texts, hits, found, (len(own), len(own_tools)), scope), known=known, asked=asked)

    def wish_rankings(self, wishes: Sequence[Terms], scope: SearchScope, tools: bool) -> list[RankingPass]:
        """Return the rankings of a request's wishes, each on its own."""
        w, index, k = self.weights, self.index, self.weights.clause_depth
        among: Collection = self.ranks_tools if tools else "tools"
        queries = [self.analyzer.query_weights(terms, w.bundle_scale) for terms in wishes]
        texts = index.search("bundles", queries, k=k, within=scope.bundles, counting=False)
        hits = index.search(among, queries, k=k, within=scope.tools, counting=False)
        found: Sequence[Mapping[str, float] | None] = [None] * len(wishes)
        if tools:
            queries = [self.analyzer.query_weights(terms, w.tool_scale) for terms in wishes]
            found = [row.scores for row in index.search(among, queries, k=k, within=scope.tools, counting=False)]
        held = [(len(index.known("bundles", one.stems)), len(index.known(among, one.stems))) for one in wishes]
        return [self._fused(*row, scope) for row in zip(texts, hits, found, held, strict=True)]

    def _fused(
        self, texts: Hits, hits: Hits, found: Mapping[str, float] | None, held: tuple[int, int], scope: SearchScope
    ) -> RankingPass:
        """Return the bundles ranked by their own text and by their best tool, each weighted by how many of the
        request's words it knows (`held`: of the texts, and of the tools), and the tools."""
        best: dict[str, float] = {}
        matched = {**texts.matched}
        for tool, score in hits.scores.items():
            for bundle in self.bundles_of.get(tool, ()):
                if score > best.get(bundle, 0.0) and (scope.bundles is None or bundle in scope.bundles):
                    best[bundle] = score
                    if hits.matched:
                        matched[bundle] = max(matched.get(bundle, 0.0), hits.matched[tool])
        by_text, by_tool = best_is_one(texts.scores), best_is_one(best)
        share = self.weights.text_share
        of_text, of_tool = share * held[0], (1.0 - share) * held[1]
        both = blend(by_text, by_tool, of_text / (of_text + of_tool) if of_text + of_tool > 0.0 else share)
        strength = max(texts.scores.values(), default=0.0)
        of_tools = max((best if found is None else found).values(), default=0.0)
        return RankingPass(both, best_is_one(found or {}), by_text, by_tool, strength, of_tools, matched)

    def _mass(self, collection: Collection, stems: Sequence[str], weights: Mapping[str, float]) -> float:
        """Return the sum of the words' weight × rarity."""
        rarity = self.index.rarity(collection, stems)
        return sum(weights[term] * rare for term, rare in zip(stems, rarity, strict=True))

    def _covering(
        self, of: Collection, weights: Mapping[str, float], known: float, need: float, within: frozenset[str] | None
    ) -> Hits:
        """Return the hits, with scores lowered for documents that do not cover the `known` part of the request."""
        hits = self.index.search(of, [weights], k=self.weights.depth, within=within)[0]
        if not need or known <= 0.0:
            return hits
        pairs = zip(hits.scores.items(), hits.matched.values(), strict=True)
        cut = {id_: score * (part / known) ** need if part < known else score for (id_, score), part in pairs}
        return Hits(cut, hits.matched)


def coherence_of(clauses: Sequence[RankingPass]) -> float:
    """Return the share of the clauses' best scores that one bundle reaches: 1 if one bundle is best for all of them."""
    possible = sum(part.tool_strength for part in clauses)
    if possible <= 0.0:
        return 1.0
    total: dict[str, float] = {}
    for part in clauses:
        for id_, score in part.bundles.items():
            total[id_] = total.get(id_, 0.0) + part.tool_strength * score
    return max(total.values(), default=0.0) / possible
