"""One ranking of one text over the index: bundles by their own text and by their best tool, and
tools by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.search.index import Collection, Hits, Index
from bundle_router.core.search.memory import NO_VOTES, Memory
from bundle_router.core.search.text import Analyzer, Scale, Terms


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The ids that may be ranked; None: all."""

    bundles: frozenset[str] | None
    tools: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class RankingPass:
    """One ranking of one text.

    Scores are relative (best is 1), `strength` is the best raw one of each kind. For a whole
    request also `matched`, the weight that its best documents match, and `known` and `asked`:
    the sums of weight × rarity of the request's words that any bundle contains, and of all its
    words.
    """

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
    """Ranks texts over an index.

    `bundles_of` names the bundles of a tool, `with_examples` the bundles that have examples.
    Bundles are ranked by the collection `tools`, of trusted servers only; tools, with their share
    of bundles' scores, are ranked by `ranks_tools`.
    """

    index: Index
    analyzer: Analyzer
    weights: Weights
    bundles_of: Mapping[str, tuple[str, ...]]
    with_examples: frozenset[str]
    ranks_tools: Collection = "tools"

    def text_share_of(self, bundle: str) -> float:
        """Return the share of a bundle's own texts against its best tool."""
        if bundle in self.with_examples:
            return self.weights.example_share
        return self.weights.text_share

    def weight_of(self, terms: Terms) -> float:
        """Return the weight of a text: the sum of weight × rarity of its words."""
        return self._mass(
            "bundles", terms.stems, self.analyzer.query_weights(terms, self.weights.bundle_scale)
        )

    def of(
        self, terms: Terms, scope: SearchScope, tools: bool, hints: Terms, need: float
    ) -> RankingPass:
        """Return the ranking of a whole request, with the weight that its best documents match.

        `need` (an exponent) says how much of the request they have to cover.
        """
        w = self.weights
        analyzer = self.analyzer
        among: Collection = self.ranks_tools if tools else "tools"
        for_bundles = analyzer.query_weights(terms, w.bundle_scale)
        asked_mass = self._mass("bundles", terms.stems, for_bundles)
        known_stems = self.index.known("bundles", terms.stems)
        own_tools = self.index.known(among, terms.stems)
        known_mass = self._mass("bundles", known_stems, for_bundles)
        known_tools = self._mass(among, own_tools, for_bundles)
        for hint, weight in analyzer.query_weights(hints, w.bundle_scale).items():
            for_bundles.setdefault(hint, weight * w.context)
        texts = self._covering("bundles", for_bundles, known_mass, need, scope.bundles)
        hits = self._covering(among, for_bundles, known_tools, need, scope.tools)
        scores = None
        if tools:
            for_tools = analyzer.query_weights(terms, w.tool_scale)
            known_tools = self._mass(among, own_tools, for_tools)
            scores = self._covering(among, for_tools, known_tools, need, scope.tools).scores
        return replace(
            self._fused(texts, hits, scores, (len(known_stems), len(own_tools)), scope),
            known=known_mass,
            asked=asked_mass,
        )

    def wish_rankings(
        self, wishes: Sequence[Terms], scope: SearchScope, tools: bool
    ) -> list[RankingPass]:
        """Return the rankings of a request's wishes, each on its own."""
        w = self.weights
        index = self.index
        k = self.weights.clause_depth
        among: Collection = self.ranks_tools if tools else "tools"
        queries = [self.analyzer.query_weights(terms, w.bundle_scale) for terms in wishes]
        texts = index.search("bundles", queries, k=k, within=scope.bundles, counting=False)
        hits = index.search(among, queries, k=k, within=scope.tools, counting=False)
        rankings: Sequence[Mapping[str, float] | None] = [None] * len(wishes)
        if tools:
            queries = [self.analyzer.query_weights(terms, w.tool_scale) for terms in wishes]
            rankings = [
                row.scores
                for row in index.search(among, queries, k=k, within=scope.tools, counting=False)
            ]
        known_stems = [
            (len(index.known("bundles", one.stems)), len(index.known(among, one.stems)))
            for one in wishes
        ]
        return [
            self._fused(*row, scope) for row in zip(texts, hits, rankings, known_stems, strict=True)
        ]

    def _fused(
        self,
        texts: Hits,
        hits: Hits,
        found: Mapping[str, float] | None,
        held: tuple[int, int],
        scope: SearchScope,
    ) -> RankingPass:
        """Return the bundles ranked by their own text and by their best tool, each weighted by how
        many of the request's words it knows (`held`: of the texts, and of the tools), and the
        tools.
        """
        best: dict[str, float] = {}
        matched = {**texts.matched}
        for tool, score in hits.scores.items():
            for bundle in self.bundles_of.get(tool, ()):
                if score > best.get(bundle, 0.0) and (
                    scope.bundles is None or bundle in scope.bundles
                ):
                    best[bundle] = score
                    if hits.matched:
                        matched[bundle] = max(matched.get(bundle, 0.0), hits.matched[tool])
        by_text = best_is_one(texts.scores)
        by_tool = best_is_one(best)
        blended = {}
        for id_ in (*by_text, *(bundle for bundle in by_tool if bundle not in by_text)):
            share = _share_of_text(self.text_share_of(id_), *held)
            of_text = share * by_text.get(id_, 0.0)
            blended[id_] = of_text + (1.0 - share) * by_tool.get(id_, 0.0)
        strength = max(texts.scores.values(), default=0.0)
        of_tools = max((best if found is None else found).values(), default=0.0)
        return RankingPass(
            blended, best_is_one(found or {}), by_text, by_tool, strength, of_tools, matched
        )

    def _mass(
        self, collection: Collection, stems: Sequence[str], weights: Mapping[str, float]
    ) -> float:
        """Return the sum of the words' weight × rarity."""
        rarity = self.index.rarity(collection, stems)
        return sum(weights[term] * rare for term, rare in zip(stems, rarity, strict=True))

    def _covering(
        self,
        of: Collection,
        weights: Mapping[str, float],
        known: float,
        need: float,
        within: frozenset[str] | None,
    ) -> Hits:
        """Return the hits, with scores lowered for documents that do not cover the `known` part of
        the request.
        """
        hits = self.index.search(of, [weights], k=self.weights.depth, within=within)[0]
        if not need or known <= 0.0:
            return hits
        pairs = zip(hits.scores.items(), hits.matched.values(), strict=True)
        cut = {
            id_: score * (part / known) ** need if part < known else score
            for (id_, score), part in pairs
        }
        return Hits(cut, hits.matched)


def _share_of_text(share: float, known_by_texts: int, known_by_tools: int) -> float:
    """Return the share of bundles' own texts, by how many of the request's words they know."""
    of_texts = share * known_by_texts
    of_tools = (1.0 - share) * known_by_tools
    total = of_texts + of_tools
    return of_texts / total if total > 0.0 else share


def coherence_of(clauses: Sequence[RankingPass]) -> float:
    """Return the share of the clauses' best scores that one bundle reaches: 1 if one bundle is best
    for all of them.
    """
    possible = sum(part.tool_strength for part in clauses)
    if possible <= 0.0:
        return 1.0
    total: dict[str, float] = {}
    for part in clauses:
        for id_, score in part.bundles.items():
            total[id_] = total.get(id_, 0.0) + part.tool_strength * score
    return max(total.values(), default=0.0) / possible


# --- arithmetic of scores -------------------------------------------------------------------------

LEAST: Final = 1e-6
"""Share of its score that an id keeps at least, if memory speaks against it."""


@dataclass(frozen=True, slots=True)
class ScoredId:
    """One ranked id.

    `score` is comparable within one ranking, not between two. `own` is a tool's own match relative
    to the best one's (1), without its bundle's share; of a bundle 1.
    """

    id: str
    score: float
    own: float = 1.0


def with_memory(
    scores: Mapping[str, float],
    memory: Memory | None,
    features: Mapping[str, float],
    permitted: frozenset[str],
    votes: Mapping[str, float] = NO_VOTES,
) -> dict[str, float]:
    """Return the scores of permitted ids plus memory's.

    Memory can lower an id, but never remove it.
    """
    base = best_is_one(scores)
    if memory is None:
        return base
    fused = memory.add_to(base, features, votes)
    return {
        id_: max(score, LEAST * base.get(id_, 0.0))
        for id_, score in fused.items()
        if id_ in permitted
    }


def best_is_one(scores: Mapping[str, float], best: int | None = None) -> dict[str, float]:
    top = max(scores.values(), default=0.0)
    if top <= 0.0:
        return {}
    if best is not None and len(scores) > best:
        scores = dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:best])
    return {id_: score / top for id_, score in scores.items()}


def add_up(parts: Iterable[tuple[Mapping[str, float], float]], power: float) -> dict[str, float]:
    """Return the sum over clauses of strength × score ** power, relative to the best."""
    total: dict[str, float] = {}
    for scores, strength in parts:
        for id_, score in scores.items():
            total[id_] = total.get(id_, 0.0) + strength * score**power
    return best_is_one(total)


def blend(
    first: Mapping[str, float], second: Mapping[str, float], share: float
) -> dict[str, float]:
    total = {id_: share * score for id_, score in first.items()}
    rest = 1.0 - share
    for id_, score in second.items():
        total[id_] = total.get(id_, 0.0) + rest * score
    return total


def order(scores: Mapping[str, float], k: int | None = None) -> list[ScoredId]:
    """Return the best `k`, equal scores by id. Ids without a score above zero are left out."""
    # Rounding, the costliest part, moves no score further than 2e-9.
    lowest = sorted(scores.values())[-k] - 2e-9 if k is not None and len(scores) > k > 0 else 0.0
    ranked = sorted((-round(score, 9), id_) for id_, score in scores.items() if score >= lowest)
    return [ScoredId(id_, -negative) for negative, id_ in ranked[:k] if negative < 0.0]


# --- parameters -----------------------------------------------------------------------------------

TOOL_SCALE: Final = Scale(generic=0.9, conversation=0.7, synonym=0.35, pair=0.3)
BUNDLE_SCALE: Final = Scale(generic=0.5, conversation=0.6, synonym=0.35, pair=0.15)


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of the ranking.

    One set for every catalog; `fit` may change `history` and `memory` by own logs.

    `text_share` is the share of a bundle's own text against its best tool, `example_share` that of
    a bundle with examples; `whole` that of the
    whole request against its clauses; `sharpness` the power that a clause's scores are raised to;
    `bundle_pull` the share of its bundle's score that a tool gets at full coherence; `action` the
    factor for a tool whose name says that it does what the request asks to be done, `unfit` that
    for a bundle whose declared effects say that it does not; `coverage` how much a short request
    must be covered (an exponent). `meaning` is the weight of an embedder's
    similarity beside words that match like one rarest word in full: of 0.8 to 1.2 each gains in the
    mean of six labelled sets. `depth` is the number of documents in a pass over the whole request,
    `clause_depth` in one over a clause. `pinned_quota` of the `first_places` are for a server that
    is not trusted, while tools of others score `alike` of its next one: of a flood that takes all
    places, 42 % of the needed tools are back among five, for 0.002 to 0.010 of them elsewhere (four
    labelled sets).
    """

    tool_scale: Scale = TOOL_SCALE
    bundle_scale: Scale = BUNDLE_SCALE
    text_share: float = 0.5
    example_share: float = 0.7
    whole: float = 0.3
    tool_sharpness: float = 3.0
    bundle_sharpness: float = 2.0
    bundle_pull: float = 0.6
    action: float = 1.1
    unfit: float = 0.8
    coherence_power: float = 3.0
    coverage: float = 0.6
    short_request: int = 10
    history: float = 0.1
    history_decay: float = 0.6
    context: float = 0.2
    meaning: float = 1.0
    unread_quota: int = 2
    pinned_quota: int = 4
    first_places: int = 5
    alike: float = 0.35
    depth: int = 100
    clause_depth: int = 40


WEIGHTS: Final = Weights()
