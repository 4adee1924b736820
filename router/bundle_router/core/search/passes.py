"""One ranking of one text over the index: a bundle by its own text and by its best tool, and tools by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bundle_router.core.search.fusion import best_is_one, blend
from bundle_router.core.search.index import Collection, Hit, Index
from bundle_router.core.search.text import NO_TERMS, Analyzer, Terms
from bundle_router.core.search.weights import Weights


@dataclass(frozen=True, slots=True)
class SearchScope:
    """Who may be ranked: `None` is everyone."""

    bundles: frozenset[str] | None
    tools: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Pass:
    """One ranking of one text. Scores are relative (best is 1), `strength` is the best raw one of each kind."""

    bundles: Mapping[str, float]
    tools: Mapping[str, float]
    by_text: Mapping[str, float]
    by_tool: Mapping[str, float]
    strength: float
    tool_strength: float
    matched: Mapping[str, float]
    known: float


@dataclass(frozen=True, slots=True)
class _Depth:
    """How far one pass looks: `k` documents of a collection, tools by themselves too, what documents hold counted."""

    k: int
    tools: bool
    counting: bool = True


@dataclass(frozen=True, slots=True)
class Passes:
    """Ranks texts over an index. `bundles_of` names the bundles that hold a tool. Bundles are ranked by the collection
    `tools`, of trusted servers alone; where tools are ranked, they and what they gain from bundles by `ranks_tools`."""

    index: Index
    analyzer: Analyzer
    weights: Weights
    bundles_of: Mapping[str, tuple[str, ...]]
    ranks_tools: Collection = "tools"

    def of(self, terms: Terms, hints: Terms, need: float, scope: SearchScope, tools: bool) -> Pass:
        """Return the ranking of a whole request, of which what its best documents hold is counted too."""
        return self._of(terms, hints, need, scope, _Depth(self.weights.depth, tools))

    def of_clause(self, terms: Terms, scope: SearchScope, tools: bool) -> Pass:
        """Return the ranking of one of a request's wishes: fewer documents, nothing counted."""
        return self._of(terms, NO_TERMS, 0.0, scope, _Depth(self.weights.clause_depth, tools, counting=False))

    def _of(self, terms: Terms, hints: Terms, need: float, scope: SearchScope, depth: _Depth) -> Pass:
        w, analyzer, tools = self.weights, self.analyzer, depth.tools
        for_bundles = analyzer.weigh(terms, w.bundle_scale)
        known = self._known("bundles", terms, for_bundles) if depth.counting else 0.0
        for hint, weight in analyzer.weigh(hints, w.bundle_scale).items():
            for_bundles.setdefault(hint, weight * w.context)
        texts = self._search("bundles", for_bundles, (need, known), scope.bundles, depth)
        among: Collection = self.ranks_tools if tools else "tools"
        known_tools = self._known(among, terms, for_bundles) if need > 0.0 else 0.0
        best: dict[str, float] = {}
        matched = {hit.id: hit.matched for hit in texts}
        for hit in self._search(among, for_bundles, (need, known_tools), scope.tools, depth):
            for bundle in self.bundles_of.get(hit.id, ()):
                if hit.score > best.get(bundle, 0.0) and (scope.bundles is None or bundle in scope.bundles):
                    best[bundle] = hit.score
                    matched[bundle] = max(matched.get(bundle, 0.0), hit.matched)
        by_text, by_tool = best_is_one({hit.id: hit.score for hit in texts}), best_is_one(best)
        found: Mapping[str, float] = {}
        tool_strength = max(best.values(), default=0.0)
        if tools:
            for_tools = analyzer.weigh(terms, w.tool_scale)
            known_tools = self._known(among, terms, for_tools) if need > 0.0 else 0.0
            hits = self._search(among, for_tools, (need, known_tools), scope.tools, depth)
            found = best_is_one({hit.id: hit.score for hit in hits})
            tool_strength = max((hit.score for hit in hits), default=0.0)
        strength = max((hit.score for hit in texts), default=0.0)
        of_text, of_tool = w.text_share * self._familiar("bundles", terms), self._familiar(among, terms)
        of_tool *= 1.0 - w.text_share
        both = blend(by_text, by_tool, of_text / (of_text + of_tool) if of_text + of_tool > 0.0 else w.text_share)
        return Pass(both, found, by_text, by_tool, strength, tool_strength, matched, known)

    def _familiar(self, collection: Collection, terms: Terms) -> float:
        """Return the share of the request's own words that any document of the collection holds."""
        found = sum(self.index.knows(collection, term) for term in terms.stems)
        return found / len(terms.stems) if terms.stems else 0.0

    def _known(self, collection: Collection, terms: Terms, weights: Mapping[str, float]) -> float:
        """Summed weight × rarity of the request's own words that the collection holds at all."""
        known = [term for term in terms.stems if self.index.knows(collection, term)]
        rarity = self.index.rarity(collection, known)
        return sum(weights[term] * rare for term, rare in zip(known, rarity, strict=True))

    def _search(
        self,
        collection: Collection,
        weights: Mapping[str, float],
        cover: tuple[float, float],
        within: frozenset[str] | None,
        depth: _Depth,
    ) -> Sequence[Hit]:
        """`cover`: how much of what is known the hits have to cover (an exponent), and how much that is."""
        need, known = cover
        hits = self.index.search(collection, weights, k=depth.k, within=within, counting=depth.counting)
        if need <= 0.0 or known <= 0.0:
            return hits
        return [Hit(id_, score * (part / known) ** need if part < known else score, part) for id_, score, part in hits]


def coherence_of(clauses: Sequence[Pass]) -> float:
    """Return how much of what the clauses could get one bundle gives: 1 when one bundle is best for all of them."""
    possible = sum(part.tool_strength for part in clauses)
    if possible <= 0.0:
        return 1.0
    total: dict[str, float] = {}
    for part in clauses:
        for id_, score in part.bundles.items():
            total[id_] = total.get(id_, 0.0) + part.tool_strength * score
    return max(total.values(), default=0.0) / possible
