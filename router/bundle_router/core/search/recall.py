"""Recall of past steps by meaning: the nearest ones, by vector, vote for the bundles or tools they
needed.

Rules:
1. A recollection only changes scores of ids that are permitted anyway. Past steps that needed none
   of these are ignored, so they take no place among the nearest.
2. One run has one vote for an id, however many of its steps are near: that of its nearest. Votes
   are shares of `DOUBT` + all votes, so a run adds at most `pull` / (1 + `DOUBT`) to an id, and all
   runs together less than `pull`.
3. A step's vote is its cosine to the power `SHARPNESS`: only great similarity counts, and none is
   no vote.
4. It needs vectors of the embedder it was learned with, and a request that has one. Else it gives
   no votes, and the memory of words is used alone.
5. Past steps are no evidence against ids that did not exist then. Where steps vote, an id that none
   of them needed gets `novelty` of `pull`, times its lexical score to the power `SHARPNESS`: only
   what matches nearly as well as the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, Final

from bundle_router.core.search.index import NearDocument
from bundle_router.core.search.meaning import Passage, passage

DOUBT: Final = 1.0
SHARPNESS: Final = 4.0
NEIGHBOURS: Final = 32
MAX_REMEMBERED: Final = 5_000
"""Maximum past steps that are stored as texts and embedded, the newest ones."""
MAX_SCOPES: Final = 64


@dataclass(frozen=True, slots=True)
class PastText:
    """The embedded text of a past step, and the ids that it needed."""

    text: str
    ids: tuple[str, ...]
    run: str


@dataclass(frozen=True)
class Recollection:
    """Past steps to compare with.

    `embedder` is the revision of their embedder, `pull` the weight of votes, `novelty` the share of
    it for ids that no step needed.
    """

    steps: tuple[PastText, ...]
    embedder: str
    pull: float
    novelty: float = 0.0

    @classmethod
    def of(
        cls, steps: Iterable[PastText], embedder: str, pull: float, novelty: float = 0.0
    ) -> Recollection:
        """Return the recollection of steps: cut to the embedded part, without duplicates, in a
        canonical order.
        """
        cut = {PastText(passage(step.text), tuple(sorted(step.ids)), step.run) for step in steps}
        return cls(
            tuple(sorted(cut, key=lambda s: (s.text, s.run, s.ids))), embedder, pull, novelty
        )

    def votes(self, nearest: Iterable[NearDocument], permitted: frozenset[str]) -> dict[str, float]:
        """Return `pull` times each id's share of the nearest steps' votes."""
        best: dict[tuple[str, str], float] = {}
        for key, cosine in nearest:
            vote = min(1.0, max(0.0, cosine)) ** SHARPNESS
            for step in self._by_key.get(key, ()):
                permitted_ids = [id_ for id_ in step.ids if id_ in permitted]
                for id_ in permitted_ids:
                    best[step.run, id_] = max(
                        vote / len(permitted_ids), best.get((step.run, id_), 0.0)
                    )
        total = DOUBT + sum(best[pair] for pair in sorted(best))
        shares: dict[str, float] = {}
        for pair in sorted(best):
            shares[pair[1]] = shares.get(pair[1], 0.0) + self.pull * best[pair] / total
        return shares

    def for_new(self, base: Mapping[str, float]) -> dict[str, float]:
        """Return what ids that no step needed get by their lexical scores."""
        share = self.pull * self.novelty
        return {
            id_: share * score**SHARPNESS
            for id_, score in base.items()
            if share and id_ not in self.ids
        }

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(id_ for step in self.steps for id_ in step.ids)

    @cached_property
    def speaking(self) -> Callable[[frozenset[str]], frozenset[str]]:
        """Returns the keys of the steps that needed a permitted id.

        Cached, because steps use the same few sets.
        """
        needed = {
            key: frozenset(id_ for step in steps for id_ in step.ids)
            for key, steps in self._by_key.items()
        }
        return lru_cache(MAX_SCOPES)(
            lambda permitted: frozenset(k for k, ids in needed.items() if ids & permitted)
        )

    def passages(self) -> tuple[Passage, ...]:
        """Return the texts to embed."""
        return tuple(
            Passage(key, "steps", steps[0].text) for key, steps in sorted(self._by_key.items())
        )

    def keeping(self, ids: Iterable[str]) -> Recollection | None:
        """Return the recollection without knowledge of any other id; None if nothing is left."""
        known = frozenset(ids)
        steps = []
        for step in self.steps:
            kept = tuple(id_ for id_ in step.ids if id_ in known)
            if kept:
                steps.append(PastText(step.text, kept, step.run))
        if not steps:
            return None
        return Recollection.of(steps, self.embedder, self.pull, self.novelty)

    def for_runs(self, runs: frozenset[str]) -> Recollection:
        """Return the recollection of some runs only."""
        return replace(self, steps=tuple(step for step in self.steps if step.run in runs))

    @cached_property
    def _by_key(self) -> Mapping[str, Sequence[PastText]]:
        by_key: dict[str, list[PastText]] = {}
        for step in self.steps:
            by_key.setdefault(key_of(step.text), []).append(step)
        return by_key

    def to_json(self) -> dict[str, Any]:
        return {
            "embedder": self.embedder,
            "pull": self.pull,
            **({"novelty": self.novelty} if self.novelty else {}),
            "steps": [
                {"text": step.text, "ids": list(step.ids), "run": step.run} for step in self.steps
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Recollection:
        """Return the recollection. Raises KeyError, TypeError or ValueError for any other value."""
        rows = [
            PastText(str(row["text"]), tuple(map(str, row["ids"])), str(row["run"]))
            for row in value["steps"]
        ]
        recollection = cls.of(
            rows, str(value["embedder"]), float(value["pull"]), float(value.get("novelty", 0.0))
        )
        sound = 0.0 < recollection.pull <= max(PULLS) and 0.0 <= recollection.novelty <= max(
            NEW_SHARES
        )
        if len(recollection.steps) > MAX_REMEMBERED or not sound:
            raise ValueError("its past steps are more, or count more, than any that were learned")
        return recollection


PULLS: Final = (0.5, 1.0, 2.0, 4.0)
"""Candidate weights of votes, relative to the best lexical score times `trust`.

Replay chooses one.
"""
NEW_SHARES: Final = (0.0, 0.06, 0.12, 0.25)
"""Candidate shares of it for new ids. Replay chooses the least that spares them."""


def key_of(text: str) -> str:
    """Return the id of a remembered text among vectors."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
