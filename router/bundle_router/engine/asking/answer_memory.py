"""Answers that were given before: in memory, bounded in number and in age, and beneath it a store
that may outlive us.

Only successes are kept. Age is measured on the monotonic clock here, and by the store as it sees
fit.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from bundle_router.core.values import Code
from bundle_router.ports import AnswerStore, Clock

MAX_ANSWERS = 4_096


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """An answer worth hearing again."""

    ids: tuple[str, ...]
    """What was picked."""
    dropped: tuple[tuple[str, Code], ...]
    """What was over the cap."""
    justification: str
    """The model's reason."""
    model: str
    """The model, as litellm names it."""
    prompt_version: str
    """The version of the prompt that it answered."""
    raw: str | None
    """Its answer as it gave it."""
    sure: bool
    """Whether it called itself sure."""


_READER = TypeAdapter(CachedAnswer)


class AnswerMemory:
    """`ttl_s` 0 keeps nothing. May be used from many threads."""

    def __init__(self, clock: Clock, ttl_s: float, store: AnswerStore | None = None) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._store = store if ttl_s > 0 else None
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, CachedAnswer]] = OrderedDict()

    @property
    def has_store(self) -> bool:
        return self._store is not None

    def get(self, key: str) -> CachedAnswer | None:
        """Return the answer in memory, if it is young enough. Never waits."""
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                return None
            until, answer = entry
            if self._clock.monotonic_ns() >= until:
                del self._kept[key]
                return None
            self._kept.move_to_end(key)
            return answer

    def fetch(self, key: str) -> CachedAnswer | None:
        """Return the answer in the store, which is then in memory too. Blocks: for a thread."""
        text = self._store.get(key) if self._store is not None else None
        if text is None:
            return None
        try:
            answer = _READER.validate_json(text)
        except ValidationError:
            return None  # written by another version, or by another hand
        self._remember(key, answer)
        return answer

    def put(self, key: str, cached: CachedAnswer) -> None:
        """Keep an answer in memory. Never waits."""
        if self._ttl_s > 0:
            self._remember(key, cached)

    def store(self, key: str, cached: CachedAnswer) -> None:
        """Keep an answer in the store. Blocks: for a thread."""
        if self._store is not None:
            self._store.put(key, json.dumps(asdict(cached)), self._ttl_s)

    def _remember(self, key: str, cached: CachedAnswer) -> None:
        until = self._clock.monotonic_ns() + int(self._ttl_s * 1e9)
        with self._lock:
            self._kept[key] = (until, cached)
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_ANSWERS:
                self._kept.popitem(last=False)
