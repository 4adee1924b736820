"""Ranks bundles for a step and tools for a query, over an `Index`.

Pure; equal inputs give equal bytes.

Rules:
1. Only permitted ids are ranked. Others can't be named, and can't push anything out of the result.
2. A bundle's score is the sum of its own text's score and its best tool's, each relative to the
   best of the request. Scores are kept, never only ranks: fusing ranks forgets how much better the
   first was. Texts and tools count by how many of the request's words they know: else a tool that
   matches half a request could outweigh a whole match.
3. A request with several wishes is also ranked clause by clause. Clauses are added as powers of
   their scores, so that one clause's clear winner counts more than a document that half fits them
   all.
4. A tool gains from its bundle's score only as far as one bundle covers the request ("coherence"):
   in a request about several subjects a tool must stand for itself.
5. If the request has a vector, similarity of meaning is blended in (see `meaning`) before history
   and memory. It counts less the more the words match, and the less coherent the request is: one
   vector of several wishes points at none.
6. A tool whose name says what the request asks to be done (read, create, update, delete) counts a
   little more.
7. A request that asks to be told something finds bundles that may change something a little lower,
   one that asks for a change those that change nothing, as the operator declared their effects. So
   the bundles of one server, alike in subject, are told apart.
8. Trusted and pinned cards both rank tools; no card of an untrusted server ranks bundles. Of the
   first places such a server's pinned tools get `pinned_quota`. Unread tools come after all others,
   at most `unread_quota` of each server.
9. Equal scores are ordered by id.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Final

from bundle_router.core.search.documents import Corpus
from bundle_router.core.search.index import MIN_RESPELT, Collection, Index, Vectors
from bundle_router.core.search.meaning import best_of_tools, similarities
from bundle_router.core.search.memory import NO_VOTES, Memory, count_features
from bundle_router.core.search.passes import (
    WEIGHTS,
    Passes,
    RankingPass,
    ScoredId,
    SearchScope,
    Weights,
    add_up,
    best_is_one,
    blend,
    coherence_of,
    order,
    with_memory,
)
from bundle_router.core.search.recall import NEIGHBOURS, Recollection
from bundle_router.core.search.request import Request, marks_of
from bundle_router.core.search.text import NO_TERMS, Analyzer, Terms, split_quotes
from bundle_router.core.values.evidence import (
    RELEVANCE,
    Evidence,
    Logistic,
    relevance_features,
    spread,
)

KEPT: Final = 40
"""Maximum ids of a ranking that a memory is learned from."""
MAX_SCOPES: Final = 64


@dataclass(frozen=True, slots=True)
class Memories:
    """The memories of bundles and of tools. Either may be absent."""

    bundles: Memory | None = None
    tools: Memory | None = None

    @property
    def recollections(self) -> tuple[Recollection, ...]:
        """What is recalled by meaning."""
        recollections = (
            memory.recollection for memory in (self.bundles, self.tools) if memory is not None
        )
        return tuple(recollection for recollection in recollections if recollection is not None)


NO_MEMORIES: Final = Memories()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Bundles best first, the evidence for the ranking, and whether the request has `several`
    wishes. An empty ranking is an answer: nothing fits.
    """

    scored: tuple[ScoredId, ...]
    evidence: Evidence
    several: bool = False


@dataclass(frozen=True, slots=True)
class _MeaningScores:
    """Similarities to the request's vector (best is 1), and the best bundle's cosine.

    Empty without a vector.
    """

    bundles: Mapping[str, float] = field(default_factory=dict)
    tools: Mapping[str, float] = field(default_factory=dict)
    cosine: float = 0.0


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of one request: fused scores before memory, and their parts."""

    bundles: Mapping[str, float]
    tools: Mapping[str, float]
    full: RankingPass
    coherence: float
    meaning: _MeaningScores
    whole: bool
    """Whether bundles were ranked by the request's whole text."""
    several: bool


@dataclass(frozen=True)
class Search:
    """An index, its corpus, and its analyser. Keep one for each catalog revision."""

    index: Index
    corpus: Corpus
    analyzer: Analyzer
    weights: Weights = WEIGHTS
    relevance: Logistic = RELEVANCE
    vectors: Vectors | None = None
    understood: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    """Vectors of requests by text, computed beforehand, for requests without their own."""
    by_meaning: bool = True
    """Whether vectors rank bundles and tools. Without it they only recall past steps."""

    def rank_bundles(
        self, request: Request, permitted: frozenset[str], memory: Memory | None = None
    ) -> Ranking:
        """Return the best 50 permitted bundles, best first.

        Bundles without any score are left out.
        """
        scope = self._scope(permitted)
        passes = self._find(request, scope, tools=False)
        features = self._features(request, memory)
        votes = self._votes(request, permitted, memory)
        fused = with_memory(passes.bundles, memory, features, permitted, votes)
        learned = memory.scores(features, votes) if memory is not None else {}
        remembered = {id_: score for id_, score in learned.items() if id_ in permitted}
        scored = tuple(order(fused, 50))
        return Ranking(
            scored, self._evidence(request, passes, fused, scored, remembered), passes.several
        )

    def rank_tools(
        self,
        request: Request,
        permitted: frozenset[str],
        memories: Memories = NO_MEMORIES,
        *,
        k: int = 50,
    ) -> tuple[ScoredId, ...]:
        """Return the permitted tools, best first: read ones, then at most `unread_quota` unread
        ones a server.
        """
        read, bundles = self._readable(permitted)
        passes = self._find(request, self._scope(bundles, read), tools=True)
        scores = self._pull(request, passes, bundles, memories)
        features = self._features(request, memories.tools)
        votes = self._votes(request, read, memories.tools)
        own_scores = best_is_one(
            {tool: score for tool, score in passes.tools.items() if tool in read}
        )
        for tool, learned in (
            memories.tools.scores(features, votes) if memories.tools is not None else {}
        ).items():
            own_scores[tool] = max(own_scores.get(tool, 0.0), min(1.0, learned))
        ranked = order(
            with_memory(scores, memories.tools, features, read, votes), max(k, self.weights.depth)
        )
        first = (
            replace(row, own=own_scores.get(row.id, 0.0)) for row in self._share_places(ranked)
        )
        return (*first, *self._unread_ids(request, permitted & self.corpus.unread))[:k]

    def _share_places(self, ranked: Sequence[ScoredId]) -> Sequence[ScoredId]:
        """Give a server that is not trusted at most `pinned_quota` of the first places while tools
        of others match `alike` as well: its many tools, or a text made of what people ask, must not
        push all others out.
        """
        pinned = self.corpus.pinned
        servers = self.corpus.servers
        w = self.weights
        first = list[ScoredId]()
        beyond = list[ScoredId]()
        counts = Counter[str]()
        if pinned.isdisjoint(row.id for row in ranked):
            return ranked
        for row in ranked:
            counts[servers[row.id]] += row.id in pinned
            if counts[servers[row.id]] > w.pinned_quota:
                beyond.append(row)
            elif not beyond or row.score >= w.alike * beyond[0].score:
                first.append(row)
            if len(first) == w.first_places:
                break
        return (*first, *(row for row in ranked if row not in first))

    def base_scores(self, request: Request, bundles: frozenset[str]) -> dict[str, float]:
        """Return the relative scores of bundles without a memory, on top of which one is
        learned.
        """
        return best_is_one(self._find(request, self._scope(bundles), tools=False).bundles, KEPT)

    def base_tool_scores(self, request: Request, bundles: frozenset[str]) -> dict[str, float]:
        """Return the relative scores of the bundles' tools without a memory, on top of which one is
        learned.
        """
        passes = self._find(request, self._scope(bundles), tools=True)
        return best_is_one(self._pull(request, passes, bundles, NO_MEMORIES), KEPT)

    def _votes(
        self, request: Request, permitted: frozenset[str], memory: Memory | None
    ) -> Mapping[str, float]:
        recollection = memory.recollection if memory is not None else None
        if recollection is not None:
            return self.recall(request, permitted, recollection)
        return NO_VOTES

    def recall(
        self, request: Request, permitted: frozenset[str], recollection: Recollection
    ) -> dict[str, float]:
        """Return the votes of past steps of similar meaning for the permitted ids; none without
        vectors.
        """
        vector = request.vector or self.understood.get(request.text)
        if vector is None or self.vectors is None or self.vectors.revision != recollection.embedder:
            return {}
        speaking = recollection.speaking(permitted)
        return recollection.votes(
            self.vectors.nearest("steps", vector, k=NEIGHBOURS, within=speaking), permitted
        )

    @cached_property
    def _passes(self) -> Passes:
        return Passes(
            self.index,
            self.analyzer,
            self.weights,
            self._bundles_of,
            self.corpus.with_examples,
            self.corpus.ranks_tools,
        )

    @cached_property
    def _bundles_of(self) -> Mapping[str, tuple[str, ...]]:
        owners: dict[str, list[str]] = {}
        for bundle, tools in self.corpus.members.items():
            for tool in tools:
                owners.setdefault(tool, []).append(bundle)
        return {tool: tuple(sorted(bundles)) for tool, bundles in owners.items()}

    @cached_property
    def _readable(self) -> Callable[[frozenset[str]], tuple[frozenset[str], frozenset[str]]]:
        """Returns those of some tools that a person has read, and their bundles.

        Cached, because steps use the same few sets.
        """
        unread = self.corpus.unread
        owners = self._bundles_of

        @lru_cache(MAX_SCOPES)
        def read(tools: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
            readable = tools - unread
            return readable, frozenset(
                bundle for tool in readable for bundle in owners.get(tool, ())
            )

        return read

    @cached_property
    def tools_of(self) -> Callable[[frozenset[str]], frozenset[str]]:
        """The tools of some bundles."""
        members = self.corpus.members
        return lru_cache(MAX_SCOPES)(
            lambda ids: frozenset(tool for id_ in ids for tool in members.get(id_, ()))
        )

    def _scope(self, bundles: frozenset[str], tools: frozenset[str] | None = None) -> SearchScope:
        tools = self.tools_of(bundles) if tools is None else tools
        everyone = len(bundles) == len(self.corpus.members)
        return SearchScope(
            None if everyone else bundles,
            None if len(tools) == self.corpus.count("reviewed") else tools,
        )

    def _find(self, request: Request, scope: SearchScope, *, tools: bool) -> _Found:
        w = self.weights
        wish, quoted = split_quotes(request.text)
        terms = self._read(self.analyzer.terms(wish), tools)
        need = w.coverage * min(1.0, w.short_request / max(len(terms.stems), 1)) ** 2
        context = "\n".join((request.context, quoted, *(step.goal for step in request.recent[:1])))
        hints = self.analyzer.terms(context) if context.strip() else NO_TERMS
        passes = self._passes
        full = passes.of(terms, scope, tools, hints, need)
        wishes = [self._read(clause, tools) for clause in self.analyzer.clauses(wish)]
        parts = passes.wish_rankings(wishes, scope, tools) if wishes else []
        if parts:
            bundles = blend(
                full.bundles,
                add_up(((p.bundles, p.strength) for p in parts), w.bundle_sharpness),
                w.whole,
            )
            of_tools = blend(
                full.tools,
                add_up(((p.tools, p.tool_strength) for p in parts), w.tool_sharpness),
                w.whole,
            )
        else:
            bundles = dict(full.bundles)
            of_tools = dict(full.tools)
        meaning = self._meaning_scores(request, scope, tools)
        coherence = coherence_of(parts)
        if meaning.bundles:
            words = (
                (full.strength + full.tool_strength)
                / 2.0
                / (self.index.rarity("bundles", ("\0",))[0] or 1.0)
            )
            share = coherence * w.meaning / (w.meaning + words)
            bundles = blend(meaning.bundles, best_is_one(bundles), share)
            of_tools = blend(meaning.tools, best_is_one(of_tools), share) if tools else of_tools
        if not parts:
            self._lower_unfit(bundles, wish)
        self._add_history(bundles, request, scope)
        return _Found(
            bundles,
            of_tools,
            full,
            coherence,
            meaning,
            wish == request.text and not tools,
            bool(parts),
        )

    def _read(self, terms: Terms, tools: bool = False) -> Terms:
        """Return a request's terms as this catalog understands them: corrected, and with what names
        a bundle or server counted in full, also inside a longer name (`db.x.supabase.co`).
        """
        known_names = replace(terms, named=terms.named - self._own_names)
        return self._respell(known_names, tools)

    @cached_property
    def _own_names(self) -> frozenset[str]:
        """The stems of the ids of bundles and servers."""
        ids = (*self.corpus.members, *self.corpus.servers.values())
        return frozenset(self.analyzer.stems(" ".join(dict.fromkeys(ids))))

    def _respell(self, terms: Terms, tools: bool) -> Terms:
        """Return the terms with unknown words corrected, except names and words of the word lists
        (lunch is no launch). Which are known depends on the collections that rank bundles; with
        `tools` also on those that rank tools.
        """
        among: list[Collection] = ["bundles", "tools"]
        if tools:
            among.append(self.corpus.ranks_tools)
        unknown = {stem for stem in terms.stems if _may_be_misspelt(terms.spellings.get(stem, ""))}
        for collection in among:
            unknown.difference_update(self.index.known(collection, list(unknown)))

        unknown -= {*terms.named, *terms.proper}
        unknown.difference_update(
            self.analyzer.generic, self.analyzer.conversation, self.analyzer.synonyms
        )
        meant = {stem: self._stems_like(terms.spellings[stem]) for stem in unknown}
        guesses = {
            guess: 1.0 / len(stems)
            for stems in meant.values()
            for guess in stems
            if guess not in terms.stems
        }
        if not guesses:
            return terms

        stems = itertools.chain.from_iterable(meant.get(stem) or (stem,) for stem in terms.stems)
        return replace(terms, stems=tuple(dict.fromkeys(stems)), guesses=guesses)

    def _stems_like(self, word: str) -> tuple[str, ...]:
        """Return at most two stems of words that a misspelt one may mean, the likeliest first."""
        stems = map(self.analyzer.stem, self.index.like("bundles", word))
        return tuple(itertools.islice(dict.fromkeys(stems), 2))

    def _meaning_scores(self, request: Request, scope: SearchScope, tools: bool) -> _MeaningScores:
        vector = request.vector or self.understood.get(request.text)
        if vector is None or self.vectors is None or not self.by_meaning:
            return _MeaningScores()
        depth = self.weights.depth
        near_tools = self.vectors.nearest("tools", vector, k=depth, within=scope.tools)
        if tools:
            near_pinned = self.vectors.nearest("pinned", vector, k=depth, within=scope.tools)
        else:
            near_pinned = ()
        by_tool = best_of_tools((*near_tools, *near_pinned), self._bundles_of)
        by_text = dict(self.vectors.nearest("bundles", vector, k=depth, within=scope.bundles))
        blended = {}
        for id_ in (*by_text, *(bundle for bundle in by_tool if bundle not in by_text)):
            if scope.bundles is not None and id_ not in scope.bundles:
                continue
            share = self._passes.text_share_of(id_)
            if not near_tools:  # they may not be embedded (yet)
                share = 1.0
            blended[id_] = share * by_text.get(id_, 0.0) + (1.0 - share) * by_tool.get(id_, 0.0)
        return _MeaningScores(
            similarities(blended),
            similarities(dict((*near_tools, *near_pinned))),
            max(blended.values(), default=0.0),
        )

    def _lower_unfit(self, scores: dict[str, float], wish: str) -> None:
        """Lower bundles whose declared effects do not fit what is asked to be done."""
        asks_for_change = self.analyzer.asks_for_change(wish)
        if asks_for_change is None:
            return
        unfit = self.corpus.unchanging if asks_for_change else self.corpus.changing
        for id_ in unfit.intersection(scores):
            scores[id_] *= self.weights.unfit

    def _add_history(self, scores: dict[str, float], request: Request, scope: SearchScope) -> None:
        """Raise the scores of the run's last bundles, which are likely needed again: the latest
        step counts most.
        """
        members = self.corpus.members
        weight = self.weights.history * (max(scores.values(), default=0.0) or 1.0)
        for step in request.recent:
            share = weight / max(1, len(step.bundle_ids))
            for id_ in step.bundle_ids:
                in_scope = scope.bundles is None or id_ in scope.bundles
                if in_scope and id_ in members:
                    scores[id_] = scores.get(id_, 0.0) + share
            weight *= self.weights.history_decay

    def _pull(
        self, request: Request, found: _Found, bundles: frozenset[str], memories: Memories
    ) -> dict[str, float]:
        """Return the tools' scores with the share they gain from their bundles' own ranking."""
        memory = memories.bundles
        votes = self._votes(request, bundles, memory)
        fused = with_memory(found.bundles, memory, self._features(request, memory), bundles, votes)
        of_bundle = best_is_one(fused)
        pull = self.weights.bundle_pull * found.coherence**self.weights.coherence_power
        owners = self._bundles_of
        action = self.analyzer.action_asked(request.text)
        return {
            tool: (
                score
                + pull * max((of_bundle.get(id_, 0.0) for id_ in owners.get(tool, ())), default=0.0)
            )
            * (self.weights.action if action and action in self._actions_of(tool) else 1.0)
            for tool, score in found.tools.items()
        }

    @cached_property
    def _actions_of(self) -> Callable[[str], frozenset[str]]:
        """Returns the actions in a tool's name. Cached."""
        servers = self.corpus.servers
        analyzer = self.analyzer
        return cache(lambda tool: analyzer.actions_in(tool.removeprefix(servers[tool])))

    def _unread_ids(self, request: Request, permitted: frozenset[str]) -> list[ScoredId]:
        if not permitted:
            return []
        weights = self.analyzer.query_weights(
            self.analyzer.terms(request.text), self.weights.tool_scale
        )
        counts: dict[str, int] = {}
        rows: list[ScoredId] = []
        for tool in self.index.search("unread", [weights], k=self.weights.depth, within=permitted)[
            0
        ].scores:
            server = self.corpus.servers[tool]
            counts[server] = counts.get(server, 0) + 1
            if counts[server] <= self.weights.unread_quota:
                rows.append(ScoredId(tool, 0.0))
        return rows

    def _features(self, request: Request, memory: Memory | None) -> dict[str, float]:
        if memory is None:
            return {}
        return memory.features(count_features(request.text, marks_of(request), self.analyzer))

    def _evidence(
        self,
        request: Request,
        found: _Found,
        fused: Mapping[str, float],
        scored: Sequence[ScoredId],
        remembered: Mapping[str, float],
    ) -> Evidence:
        if not scored:
            return Evidence()
        first = scored[0]
        second = scored[1].score if len(scored) > 1 else 0.0
        full = found.full
        if found.whole:
            total = full.asked
        else:
            total = self._passes.weight_of(self._read(self.analyzer.terms(request.text)))
        unseen = self.index.rarity("bundles", ("\0",))[0] or 1.0
        votes = [
            scores
            for scores in (found.full.by_text, found.full.by_tool, found.meaning.bundles, fused)
            if scores
        ]
        agreeing = sum(votes_of.get(first.id, 0.0) >= max(votes_of.values()) for votes_of in votes)
        evidence = Evidence(
            strength=round(full.strength / unseen, 6),
            known=round(full.known / total, 6) if total > 0.0 else 0.0,
            coverage=round(min(1.0, full.matched.get(first.id, 0.0) / full.known), 6)
            if full.known > 0.0
            else 0.0,
            margin=round(max(0.0, first.score - max(second, 0.0)) / first.score, 6),
            entropy=round(spread(list(fused.values())), 6),
            agreement=round(agreeing / len(votes), 6) if votes else 0.0,
            remembered=round(max(0.0, *remembered.values(), 0.0), 6),
            likeness=round(found.meaning.cosine, 6),
        )
        return replace(
            evidence, relevance=round(self.relevance(relevance_features(evidence, request.text)), 6)
        )


def _may_be_misspelt(word: str) -> bool:
    return len(word) >= MIN_RESPELT - 1 and word.isascii() and word.isalpha()
