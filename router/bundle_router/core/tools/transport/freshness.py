"""How fresh a cached tool list is, and what to do about it.

Rules:
1. A fresh list is served as it is. A stale one is served too, while one refresh runs.
2. `tools/list_changed` makes a list stale at once, whatever its lifetime.
3. A refresh that began before such a notice does not make the list fresh: what it read may be from before the change.
4. A refresh that failed keeps the last known list, stale, and is tried again at the earliest after `RETRY_S`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

RETRY_S: Final = 5.0

State = Literal["absent", "fresh", "stale"]


@dataclass(frozen=True, slots=True)
class Freshness:
    """`until_ns` is when the list stops being fresh; None when there is no list. `changes` counts the notices."""

    until_ns: int | None = None
    retry_ns: int = 0
    changes: int = 0

    def state(self, now_ns: int) -> State:
        if self.until_ns is None:
            return "absent"
        return "fresh" if now_ns < self.until_ns else "stale"

    def may_refresh(self, now_ns: int) -> bool:
        return now_ns >= self.retry_ns

    def listed(self, now_ns: int, lifetime_s: float, changes_before: int) -> Freshness:
        """After a list was read; `changes_before` is `changes` as it was when the reading began."""
        lifetime_ns = int(lifetime_s * 1e9) if changes_before == self.changes else 0
        return Freshness(now_ns + lifetime_ns, now_ns, self.changes)

    def changed(self, now_ns: int) -> Freshness:
        """After the server said that its list is another now."""
        until = None if self.until_ns is None else min(self.until_ns, now_ns)
        return Freshness(until, now_ns, self.changes + 1)

    def failed(self, now_ns: int) -> Freshness:
        """After a refresh that came to nothing."""
        return replace(self, retry_ns=now_ns + int(RETRY_S * 1e9))
