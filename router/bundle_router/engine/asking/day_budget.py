"""Bounds what the router's own model may cost in a day (`[model] max_cost_per_day`).

Rules:
1. A day is a UTC day, by the clock of this machine.
2. A question reserves what the dearest question has cost so far, and is not asked if that does not
   fit; afterwards its real cost takes the place of that. So only questions that are asked before
   this process knows a price can exceed the limit.
3. A question that ends in a timeout keeps its reservation: the provider may have charged for it.
4. A model without a price counts as free: the limit does not bound it (`check` says so).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from bundle_router.ports import Clock, DayCosts, Diagnostics

NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Reservation:
    """The part of a day's limit that one question holds while it is asked."""

    day: str
    """The UTC day, as YYYY-MM-DD."""
    usd: float


class DayBudget:
    """The limit of one selector. May be used from many threads; `reserve` and `settle` may wait."""

    def __init__(
        self, limit_usd: float, costs: DayCosts, clock: Clock, diagnostics: Diagnostics
    ) -> None:
        self._limit_usd = limit_usd
        self._costs = costs
        self._clock = clock
        self._diagnostics = diagnostics
        self._lock = threading.Lock()
        self._dearest_usd = 0.0
        self._reported_day = ""

    def reserve(self) -> Reservation | None:
        """Return room for one question; None if the day's limit leaves none."""
        day = datetime.fromtimestamp(self._clock.time_ns() / NS, UTC).date().isoformat()
        with self._lock:
            usd = self._dearest_usd
        if self._costs.add_within(day, usd, self._limit_usd):
            return Reservation(day, usd)
        self._report(day)
        return None

    def settle(self, reservation: Reservation, cost_usd: float, *, is_known: bool) -> None:
        """Put a question's cost in the place of its reservation.

        `is_known`: false where the provider may have charged more than it said.
        """
        with self._lock:
            self._dearest_usd = max(self._dearest_usd, cost_usd)
        due = cost_usd if is_known else max(cost_usd, reservation.usd)
        if due != reservation.usd:
            self._costs.add(reservation.day, due - reservation.usd)

    def _report(self, day: str) -> None:
        with self._lock:
            if self._reported_day == day:
                return
            self._reported_day = day
        self._diagnostics.event(
            "warning",
            "model.over_limit",
            day=day,
            limit_usd=self._limit_usd,
            advice="no model is asked before the next day (UTC), or raise [model] max_cost_per_day",
        )
