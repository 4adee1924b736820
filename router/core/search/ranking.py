"""Ranks bundles for a step and tools for a query, over an `Index`. Pure; equal inputs give equal bytes.

Rules:
1. Only permitted ids are ranked. What is not permitted can't be named, and can't push anything out of the result.
2. A bundle's score is its own text's score and its best tool's, each against the best of the request, added. Scores are
   kept, never only ranks: fusing ranks forgets how much better the first was. Texts and tools have a say as far as they
   know the request's words at all: among a dozen tools the best match for half a request would outweigh a whole one.
3. A request with several wishes is also ranked clause by clause. Clauses are added as powers of their scores, so that
   one clause's clear winner counts more than a document that half fits them all.
4. A tool gains from its bundle's score only as far as one bundle covers the request ("coherence"): in a request about
   several subjects a tool must stand for itself.
5. Where the request has a vector, likeness of meaning is blended in (see `meaning`) before history and memory, as far
   as the request is coherent: one vector of several wishes points at none of them.
6. Tools of servers that are not trusted come after every other one, pinned ones first, and at most `untrusted_quota` of
   each server.
7. Equal scores are ordered by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from router.core.models import RecentStep, Step
from router.core.search.documents import Corpus
from router.core.search.evidence import RELEVANCE, Evidence, Logistic, relevance_features, spread
from router.core.search.index import Collection, Hit, Index, Vectors
from router.core.search.meaning import best_of_tools, likeness
from router.core.search.memory import NO_VOTES, Memory, count_features
from router.core.search.recall import NEIGHBOURS, Recollection
from router.core.search.text import Analyzer, Scale, Terms, split_quotes

NO_PARTS: Final[tuple[tuple[str, float], ...]] = ()
KEPT: Final = 40
"""Ids of a ranking that a memory is learned on top of."""
MAX_SCOPES: Final = 64
LEAST: Final = 1e-6
"""What is left of the score of an id that memory speaks against."""


TOOL_SCALE: Final = Scale(generic=0.9, conversation=0.7, synonym=0.35, pair=0.3)
BUNDLE_SCALE: Final = Scale(generic=0.5, conversation=0.6, synonym=0.35, pair=0.15)


@dataclass(frozen=True, slots=True)
class Weights:
    """The numbers of the ranking. One set for every catalog; `fit` may change `history` and `memory` from own logs.

    `text_share` is the share of a bundle's own text against its best tool; `whole` that of the whole request against
    its clauses; `sharpness` the power a clause's scores are raised to; `bundle_pull` how much of its bundle's score a
    tool gets at full coherence; `coverage` how much a short request must be covered (an exponent). `meaning` is the
    share of an embedder's likeness against the words, where there is one, at full coherence: of 0.3, 0.45 and 0.6 the
    best of six labelled sets whichever seventh is left out, and a gain on that one for six of the seven.
    """

    tool_scale: Scale = TOOL_SCALE
    bundle_scale: Scale = BUNDLE_SCALE
    text_share: float = 0.5
    whole: float = 0.3
    tool_sharpness: float = 3.0
    bundle_sharpness: float = 2.0
    bundle_pull: float = 0.6
    coherence_power: float = 3.0
    coverage: float = 0.6
    short_request: int = 10
    history: float = 0.3
    history_decay: float = 0.6
    context: float = 0.2
    meaning: float = 0.45
    untrusted_quota: int = 2
    depth: int = 100


@dataclass(frozen=True, slots=True)
class Scored:
    """One ranked id. `score` is comparable inside one ranking, not between two; `parts` say what it is made of."""

    id: str
    score: float
    parts: tuple[tuple[str, float], ...] = NO_PARTS


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched for. `context` is text that hints (workflow, role, step, constraints) and counts less."""

    text: str
    context: str = ""
    recent: tuple[RecentStep, ...] = ()
    address: tuple[str, ...] = ()
    """Where the step stands, as marks that memory may learn from: `workflow:…`, `role:…`, `step:…`."""
    vector: tuple[float, ...] | None = None
    """What the embedder that `Search.vectors` came from made of `text`. None: ranked by words alone."""

    @classmethod
    def of(cls, step: Step, recent: Sequence[RecentStep] = ()) -> Request:
        """A step's goal in full; its address and constraints as hints; the run's recent steps, latest first."""
        context = "\n".join((step.workflow, step.role, step.step, *step.constraints))
        address = (f"workflow:{step.workflow}", f"role:{step.role}", f"step:{step.step}")
        return cls(step.goal or context, context if step.goal else "", tuple(recent), address)


@dataclass(frozen=True, slots=True)
class Memories:
    """What was learned about bundles, and about tools. Either may be absent."""

    bundles: Memory | None = None
    tools: Memory | None = None


NO_MEMORIES: Final = Memories()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Bundles best first, and what the ranking rests on. An empty ranking is an answer: nothing fits."""

    scored: tuple[Scored, ...]
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class _Scope:
    """Who may be ranked: `None` is everyone."""

    bundles: frozenset[str] | None
    tools: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class _Pass:
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
class _Meant:
    """What the request's vector is like, relative to the likest, and the best bundle's cosine. Empty without one."""

    bundles: Mapping[str, float] = field(default_factory=dict)
    tools: Mapping[str, float] = field(default_factory=dict)
    cosine: float = 0.0


WORDS_ALONE: Final = _Meant()


@dataclass(frozen=True, slots=True)
class _Found:
    """What one request gave: fused scores before memory, and the parts they were fused from."""

    bundles: Mapping[str, float]
    tools: Mapping[str, float]
    full: _Pass
    coherence: float
    meant: _Meant


@dataclass(frozen=True)
class Search:
    """An index, the corpus it was made from, and the analyser that made it. Keep one for each catalog revision."""

    index: Index
    corpus: Corpus
    analyzer: Analyzer
    weights: Weights = Weights()
    relevance: Logistic = RELEVANCE
    vectors: Vectors | None = None
    understood: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    """Vectors of requests by their text, where these were known beforehand: for those that bring none."""
    _members: dict[frozenset[str], frozenset[str]] = field(default_factory=dict, repr=False, compare=False)
    _tiers_of: dict[frozenset[str], tuple[frozenset[str], frozenset[str], frozenset[str]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def rank_bundles(
        self, request: Request, permitted: frozenset[str], memory: Memory | None = None, *, k: int = 50
    ) -> Ranking:
        """The best `k` permitted bundles, best first. Those that nothing speaks for are absent."""
        scope = self._scope(permitted)
        found = self._find(request, scope, tools=False)
        features = self._features(request, memory)
        votes = self.recall(request, permitted, memory.recollection if memory is not None else None)
        fused = _with_memory(found.bundles, memory, features, permitted, votes)
        learned = memory.scores(features, votes) if memory is not None else {}
        remembered = {id_: score for id_, score in learned.items() if id_ in permitted}
        ranked = order(fused)
        scored = tuple(
            Scored(
                item.id,
                item.score,
                (
                    ("text", round(found.full.by_text.get(item.id, 0.0), 6)),
                    ("tool", round(found.full.by_tool.get(item.id, 0.0), 6)),
                    *((("meaning", round(found.meant.bundles.get(item.id, 0.0), 6)),) if found.meant.bundles else ()),
                    *((("recalled", round(votes.get(item.id, 0.0), 6)),) if votes else ()),
                    ("search", round(found.bundles.get(item.id, 0.0), 6)),
                ),
            )
            for item in ranked[:k]
        )
        return Ranking(scored, self._evidence(request, found, fused, scored, remembered))

    def rank_tools(
        self, request: Request, permitted: frozenset[str], memories: Memories = NO_MEMORIES, *, k: int = 50
    ) -> tuple[Scored, ...]:
        """The permitted tools, best first: trusted ones, then at most `untrusted_quota` of each untrusted server."""
        trusted, untrusted, bundles = self._tiers(permitted)
        found = self._find(request, self._scope(bundles, trusted), tools=True)
        scores = self._pulled(request, found, bundles, memories)
        first = order(_with_memory(scores, memories.tools, self._features(request, memories.tools), trusted))[:k]
        return (*first, *self._untrusted(request, untrusted))[:k]

    def base_scores(self, request: Request, bundles: frozenset[str]) -> tuple[dict[str, float], dict[str, float]]:
        """What a memory is learned on top of: relative scores of bundles and of their tools, without any memory."""
        found = self._find(request, self._scope(bundles), tools=True)
        tools = self._pulled(request, found, bundles, NO_MEMORIES)
        return _best_is_one(found.bundles, KEPT), _best_is_one(tools, KEPT)

    def recall(
        self, request: Request, permitted: frozenset[str], recollection: Recollection | None
    ) -> dict[str, float]:
        """What past steps of like meaning say for the permitted bundles; nothing where vectors are wanting."""
        vector = request.vector or self.understood.get(request.text)
        if recollection is None or vector is None or self.vectors is None:
            return {}
        if self.vectors.revision != recollection.embedder:
            return {}
        speaking = recollection.speaking(permitted)
        return recollection.votes(self.vectors.nearest("steps", vector, k=NEIGHBOURS, within=speaking), permitted)

    @cached_property
    def _bundles_of(self) -> Mapping[str, tuple[str, ...]]:
        owners: dict[str, list[str]] = {}
        for bundle, tools in self.corpus.members.items():
            for tool in tools:
                owners.setdefault(tool, []).append(bundle)
        return {tool: tuple(sorted(bundles)) for tool, bundles in owners.items()}

    @property
    def _vouched(self) -> int:
        return self.corpus.vouched

    def _tiers(self, tools: frozenset[str]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """The trusted of the tools, the others, and the bundles of the trusted."""
        known = self._tiers_of.get(tools)
        if known is None:
            trusted = tools - self.corpus.untrusted
            bundles = frozenset(bundle for tool in trusted for bundle in self._bundles_of.get(tool, ()))
            known = (trusted, tools & self.corpus.untrusted, bundles)
            if len(self._tiers_of) >= MAX_SCOPES:
                self._tiers_of.clear()
            self._tiers_of[tools] = known
        return known

    def _scope(self, bundles: frozenset[str], tools: frozenset[str] | None = None) -> _Scope:
        if tools is None:
            tools = self._members.get(bundles)
        if tools is None:
            tools = frozenset(tool for id_ in bundles for tool in self.corpus.members.get(id_, ()))
            if len(self._members) >= MAX_SCOPES:
                self._members.clear()
            self._members[bundles] = tools
        everyone = len(bundles) == len(self.corpus.members)
        return _Scope(None if everyone else bundles, None if len(tools) == self._vouched else tools)

    def _find(self, request: Request, scope: _Scope, *, tools: bool) -> _Found:
        w = self.weights
        wish, quoted = split_quotes(request.text)
        terms = self.analyzer.terms(wish)
        need = w.coverage * min(1.0, w.short_request / max(len(terms.stems), 1)) ** 2
        context = "\n".join((request.context, quoted, *(step.goal for step in request.recent[:1])))
        hints = self.analyzer.terms(context) if context.strip() else Terms(())
        full = self._pass(terms, hints, need, scope, tools)
        parts = [self._pass(clause, Terms(()), 0.0, scope, tools) for clause in self._clauses(wish)]
        if parts:
            bundles = _blend(full.bundles, _add(((p.bundles, p.strength) for p in parts), w.bundle_sharpness), w.whole)
            of_tools = _blend(full.tools, _add(((p.tools, p.tool_strength) for p in parts), w.tool_sharpness), w.whole)
        else:
            bundles, of_tools = dict(full.bundles), dict(full.tools)
        meant, coherence = self._meant(request, scope), _coherence(parts)
        if meant.bundles:
            share = w.meaning * coherence
            bundles = _blend(meant.bundles, _best_is_one(bundles), share)
            of_tools = _blend(meant.tools, _best_is_one(of_tools), share) if tools else of_tools
        self._add_history(bundles, request, scope)
        return _Found(bundles, of_tools, full, coherence, meant)

    def _meant(self, request: Request, scope: _Scope) -> _Meant:
        vector = request.vector or self.understood.get(request.text)
        if vector is None or self.vectors is None:
            return WORDS_ALONE
        depth = self.weights.depth
        near_tools = self.vectors.nearest("tools", vector, k=depth, within=scope.tools)
        by_tool = best_of_tools(near_tools, self._bundles_of)
        by_text = dict(self.vectors.nearest("bundles", vector, k=depth, within=scope.bundles))
        share = self.weights.text_share
        both = {
            id_: share * by_text.get(id_, 0.0) + (1.0 - share) * by_tool.get(id_, 0.0)
            for id_ in by_text.keys() | by_tool.keys()
            if scope.bundles is None or id_ in scope.bundles
        }
        return _Meant(likeness(both), likeness(dict(near_tools)), max(both.values(), default=0.0))

    def _clauses(self, text: str) -> list[Terms]:
        clauses = self.analyzer.clauses(text)
        return clauses if len(clauses) > 1 else []

    def _pass(self, terms: Terms, hints: Terms, need: float, scope: _Scope, tools: bool) -> _Pass:
        w, analyzer = self.weights, self.analyzer
        for_bundles = analyzer.weigh(terms, w.bundle_scale)
        known = self._known("bundles", terms, for_bundles)
        for hint, weight in analyzer.weigh(hints, w.bundle_scale).items():
            for_bundles.setdefault(hint, weight * w.context)
        texts = self._search("bundles", for_bundles, need, known, scope.bundles)
        known_tools = self._known("tools", terms, for_bundles) if need > 0.0 else 0.0
        best: dict[str, float] = {}
        matched = {hit.id: hit.matched for hit in texts}
        for hit in self._search("tools", for_bundles, need, known_tools, scope.tools):
            for bundle in self._bundles_of.get(hit.id, ()):
                if hit.score > best.get(bundle, 0.0) and (scope.bundles is None or bundle in scope.bundles):
                    best[bundle] = hit.score
                    matched[bundle] = max(matched.get(bundle, 0.0), hit.matched)
        by_text, by_tool = _best_is_one({hit.id: hit.score for hit in texts}), _best_is_one(best)
        found: Mapping[str, float] = {}
        tool_strength = max(best.values(), default=0.0)
        if tools:
            for_tools = analyzer.weigh(terms, w.tool_scale)
            hits = self._search("tools", for_tools, need, self._known("tools", terms, for_tools), scope.tools)
            found = _best_is_one({hit.id: hit.score for hit in hits})
            tool_strength = max((hit.score for hit in hits), default=0.0)
        strength = max((hit.score for hit in texts), default=0.0)
        of_text, of_tool = w.text_share * self._familiar("bundles", terms), self._familiar("tools", terms)
        of_tool *= 1.0 - w.text_share
        both = _blend(by_text, by_tool, of_text / (of_text + of_tool) if of_text + of_tool > 0.0 else w.text_share)
        return _Pass(both, found, by_text, by_tool, strength, tool_strength, matched, known)

    def _familiar(self, collection: Collection, terms: Terms) -> float:
        """The share of the request's own words that any document of the collection holds."""
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
        need: float,
        known: float,
        within: frozenset[str] | None,
    ) -> Sequence[Hit]:
        hits = self.index.search(collection, weights, k=self.weights.depth, within=within)
        if need <= 0.0 or known <= 0.0:
            return hits
        return [Hit(id_, score * min(1.0, part / known) ** need, part) for id_, score, part in hits]

    def _add_history(self, scores: dict[str, float], request: Request, scope: _Scope) -> None:
        """What the run's last steps had is likely wanted again: latest first, shared among a step's bundles."""
        weight = self.weights.history * (max(scores.values(), default=0.0) or 1.0)
        for step in request.recent:
            for id_ in step.bundle_ids:
                if id_ in self.corpus.members and (scope.bundles is None or id_ in scope.bundles):
                    scores[id_] = scores.get(id_, 0.0) + weight / len(step.bundle_ids)
            weight *= self.weights.history_decay

    def _pulled(self, request: Request, found: _Found, bundles: frozenset[str], memories: Memories) -> dict[str, float]:
        """Scores of tools with what they gain from their bundles."""
        fused = _with_memory(found.bundles, memories.bundles, self._features(request, memories.bundles), bundles)
        of_bundle = _best_is_one(fused)
        pull = self.weights.bundle_pull * found.coherence**self.weights.coherence_power
        owners = self._bundles_of
        return {
            tool: score + pull * max((of_bundle.get(id_, 0.0) for id_ in owners.get(tool, ())), default=0.0)
            for tool, score in found.tools.items()
        }

    def _untrusted(self, request: Request, permitted: frozenset[str]) -> list[Scored]:
        if not permitted:
            return []
        weights = self.analyzer.weigh(self.analyzer.terms(request.text), self.weights.tool_scale)
        depth = self.weights.depth
        pinned = self.index.search("tools", weights, k=depth, within=permitted & self.corpus.pinned)
        hits = (*pinned, *self.index.search("untrusted", weights, k=depth, within=permitted))
        taken: dict[str, int] = {}
        kept: list[Scored] = []
        for hit in hits:
            server = self.corpus.servers[hit.id]
            taken[server] = taken.get(server, 0) + 1
            if taken[server] <= self.weights.untrusted_quota:
                kept.append(Scored(hit.id, 0.0, (("untrusted", round(hit.score, 6)),)))
        return kept

    def _features(self, request: Request, memory: Memory | None) -> dict[str, float]:
        if memory is None:
            return {}
        return memory.features(count_features(request.text, marks_of(request), self.analyzer))

    def _evidence(
        self,
        request: Request,
        found: _Found,
        fused: Mapping[str, float],
        scored: Sequence[Scored],
        remembered: Mapping[str, float],
    ) -> Evidence:
        if not scored:
            return Evidence()
        first = scored[0]
        second = scored[1].score if len(scored) > 1 else 0.0
        stems = self.analyzer.terms(request.text).stems
        weights = self.analyzer.weigh(Terms(stems), self.weights.bundle_scale)
        total = sum(weights[s] * r for s, r in zip(stems, self.index.rarity("bundles", stems), strict=True))
        unseen = self.index.rarity("bundles", ("\0",))[0] or 1.0
        votes = [scores for scores in (found.full.by_text, found.full.by_tool, found.meant.bundles, fused) if scores]
        agreeing = sum(min(votes_of, key=lambda id_: (-votes_of[id_], id_)) == first.id for votes_of in votes)
        full = found.full
        evidence = Evidence(
            strength=round(full.strength / unseen, 6),
            known=round(full.known / total, 6) if total > 0.0 else 0.0,
            coverage=round(min(1.0, full.matched.get(first.id, 0.0) / full.known), 6) if full.known > 0.0 else 0.0,
            margin=round(max(0.0, first.score - max(second, 0.0)) / first.score, 6),
            entropy=round(spread(list(fused.values())), 6),
            agreement=round(agreeing / len(votes), 6) if votes else 0.0,
            remembered=round(max(0.0, *remembered.values(), 0.0), 6),
            likeness=round(found.meant.cosine, 6),
        )
        return replace(evidence, relevance=round(self.relevance(relevance_features(evidence, request.text)), 6))


def marks_of(request: Request) -> tuple[str, ...]:
    """Facts about a step that memory may learn from besides its words."""
    previous = request.recent[0].bundle_ids if request.recent else ()
    return (*request.address, *(f"previous:{id_}" for id_ in sorted(previous)))


def _with_memory(
    scores: Mapping[str, float],
    memory: Memory | None,
    features: Mapping[str, float],
    permitted: frozenset[str],
    votes: Mapping[str, float] = NO_VOTES,
) -> dict[str, float]:
    """The scores with what memory adds, for permitted ids only. Memory can push an id down, never out."""
    base = _best_is_one(scores)
    if memory is None:
        return base
    fused = memory.add_to(base, features, votes)
    return {id_: max(score, LEAST * base.get(id_, 0.0)) for id_, score in fused.items() if id_ in permitted}


def _best_is_one(scores: Mapping[str, float], best: int | None = None) -> dict[str, float]:
    top = max(scores.values(), default=0.0)
    if top <= 0.0:
        return {}
    if best is not None and len(scores) > best:
        scores = dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:best])
    return {id_: score / top for id_, score in scores.items()}


def _add(parts: Iterable[tuple[Mapping[str, float], float]], power: float) -> dict[str, float]:
    """The sum over clauses of strength × score ** power, relative to its best."""
    total: dict[str, float] = {}
    for scores, strength in parts:
        for id_, score in scores.items():
            total[id_] = total.get(id_, 0.0) + strength * score**power
    return _best_is_one(total)


def _blend(first: Mapping[str, float], second: Mapping[str, float], share: float) -> dict[str, float]:
    ids = first.keys() | second.keys()
    return {id_: share * first.get(id_, 0.0) + (1.0 - share) * second.get(id_, 0.0) for id_ in ids}


def _coherence(clauses: Sequence[_Pass]) -> float:
    """How much of what the clauses could get one bundle gives: 1 when one bundle is best for all of them."""
    possible = sum(part.tool_strength for part in clauses)
    if possible <= 0.0:
        return 1.0
    total: dict[str, float] = {}
    for part in clauses:
        for id_, score in part.bundles.items():
            total[id_] = total.get(id_, 0.0) + part.tool_strength * score
    return max(total.values(), default=0.0) / possible


def order(scores: Mapping[str, float]) -> list[Scored]:
    """Best first, equal scores by id. Only scores above zero: an id that nothing speaks for is not ranked."""
    ranked = sorted((-round(score, 9), id_) for id_, score in scores.items())
    return [Scored(id_, -negative) for negative, id_ in ranked if negative < 0.0]
