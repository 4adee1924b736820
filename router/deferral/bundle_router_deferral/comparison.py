"""Measures the effect of a change: requests before it beside requests after it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from bundle_router_deferral.transcript import RequestFacts

MIN_REQUESTS: Final = 10
"""Minimum requests on each side of a comparison."""
HIT_RATE_POINTS: Final = 0.05
LESS: Final = 0.9
MORE: Final = 1.05

EffectState = Literal["measured", "pending", "no effect", "worse"]


@dataclass(slots=True)
class RequestSample:
    """Requests of one side: their number, their definitions' tokens, cache reads, searches."""

    requests: int = 0
    sized: int = 0
    definition_tokens: int = 0
    cache_read: int = 0
    input_tokens: int = 0
    searches: int = 0
    sessions: set[int] = field(default_factory=set)

    def add(self, request: RequestFacts) -> None:
        self.requests += 1
        self.sessions.add(hash(request.session))
        self.searches += request.searches
        usage = request.usage
        self.cache_read += usage.cache_read
        self.input_tokens += usage.cache_read + usage.cache_write + usage.plain
        if request.tools is not None:
            self.sized += 1
            self.definition_tokens += request.tools.tokens

    @property
    def tokens_a_request(self) -> float:
        return self.definition_tokens / self.sized if self.sized else 0.0

    @property
    def hit_rate(self) -> float:
        if not self.input_tokens:
            return 0.0
        return self.cache_read / self.input_tokens

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "sessions": len(self.sessions),
            "definition_tokens_a_request": round(self.tokens_a_request),
            "cache_read_share": round(self.hit_rate, 4),
            "searches_a_request": round(self.searches / self.requests, 4) if self.requests else 0.0,
        }


@dataclass(slots=True)
class Effect:
    """A change, with the requests before and after it.

    `project` limits it to one folder's requests.
    """

    identity: str
    description: str
    applied: str
    undone: str = ""
    project: str = ""
    before: RequestSample = field(default_factory=RequestSample)
    after: RequestSample = field(default_factory=RequestSample)

    def add(self, request: RequestFacts) -> None:
        if request.outcome != "served":
            return
        if self.project and not f"{request.cwd}/".startswith(f"{self.project}/"):
            return

        time = request.time.replace("Z", "+00:00")
        if time < self.applied:
            self.before.add(request)
        elif not self.undone or time < self.undone:
            self.after.add(request)

    @property
    def hit_rate_fell(self) -> bool:
        return self.enough and self.after.hit_rate < self.before.hit_rate - HIT_RATE_POINTS

    @property
    def enough(self) -> bool:
        return min(self.before.sized, self.after.sized) >= MIN_REQUESTS

    @property
    def state(self) -> EffectState:
        if not self.enough:
            return "pending"
        ratio = self.after.tokens_a_request / max(1.0, self.before.tokens_a_request)
        if self.hit_rate_fell or ratio > MORE:
            return "worse"
        if ratio <= LESS:
            return "measured"
        return "no effect"

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.identity,
            "description": self.description,
            "applied": self.applied,
            "undone": self.undone,
            "state": self.state,
            "hit_rate_fell": self.hit_rate_fell,
            "needs_requests": MIN_REQUESTS,
            "before": self.before.as_json(),
            "after": self.after.as_json(),
        }


def effect_of(entry: Mapping[str, Any]) -> Effect | None:
    """Return the comparison for a journal entry; None if it changed no agent's settings."""
    if entry.get("kind") != "settings" or "applied" not in entry:
        return None
    return Effect(
        identity=entry["id"],
        description=str(entry.get("description", "")),
        applied=entry["applied"],
        undone=str(entry.get("undone", "")),
        project=str(entry.get("project", "")),
    )
