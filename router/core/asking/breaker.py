"""A circuit breaker for one model, and a budget for second tries, as pure state machines over monotonic nanoseconds.

    closed ──(one timeout, 429 or 401; or three errors in a row)──► open ──(its time is over)──► half open
       ▲                                                             ▲                              │ one probe
       └──────────────────────────(the probe was answered)───────────┴────(the probe failed)────────┘

Rules:
1. While it is open nothing is let through; half open lets exactly one probe through until that one is settled.
2. Every ticket belongs to an epoch, and the epoch ends whenever the breaker opens or closes. What a call of an earlier
   epoch came to is not heard: a slow success from before the outage does not end it.
3. It stays open for `BASE_S`, twice that after every probe that failed, at most `MAX_OPEN_S`; longer where the provider
   asked for it, but never longer than `MAX_ASKED_S`: one absurd header must not switch a model off for good.
4. What the question is to blame for (too long, refused) says nothing of the model's health. A probe that ends so was
   answered, and closes the breaker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from router.core.models import Failure

ERRORS_IN_A_ROW: Final = 3
BASE_S: Final = 15.0
MAX_OPEN_S: Final = 300.0
MAX_ASKED_S: Final = 900.0

_AT_ONCE: Final[frozenset[Failure]] = frozenset(("timeout", "rate_limited", "auth"))
_BLAMELESS: Final[frozenset[Failure]] = frozenset(("context_window", "refused"))


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to make one call. Give it back with what became of it."""

    epoch: int
    probe: bool


@dataclass(frozen=True, slots=True)
class Breaker:
    """`open_until_ns` is None while closed; `openings` counts how often it opened since it was last closed."""

    epoch: int = 0
    errors: int = 0
    openings: int = 0
    open_until_ns: int | None = None
    probing: bool = False

    def admit(self, now_ns: int) -> tuple[Breaker, Ticket | None]:
        """Leave to call now, or None."""
        if self.open_until_ns is None:
            return self, Ticket(self.epoch, probe=False)
        if self.probing or now_ns < self.open_until_ns:
            return self, None
        return replace(self, probing=True), Ticket(self.epoch, probe=True)

    def settle(
        self, ticket: Ticket, failure: Failure | None, now_ns: int, retry_after_s: float | None = None
    ) -> Breaker:
        """The breaker after a call ended."""
        if ticket.epoch != self.epoch:
            return self
        if failure is None or failure in _BLAMELESS:
            if ticket.probe:
                return Breaker(epoch=self.epoch + 1)
            return self if failure else replace(self, errors=0)
        if failure in _AT_ONCE or ticket.probe or self.errors + 1 >= ERRORS_IN_A_ROW:
            return self._opened(now_ns, retry_after_s)
        return replace(self, errors=self.errors + 1)

    def release(self, ticket: Ticket) -> Breaker:
        """The breaker after a call that nobody waited for to its end: nothing was learnt, the probe is free again."""
        return replace(self, probing=False) if ticket.probe and ticket.epoch == self.epoch else self

    def _opened(self, now_ns: int, retry_after_s: float | None) -> Breaker:
        own_s = min(BASE_S * 2.0 ** min(self.openings, 16), MAX_OPEN_S)
        asked_s = min(retry_after_s or 0.0, MAX_ASKED_S)
        until = now_ns + int(max(own_s, asked_s) * 1e9)
        return Breaker(epoch=self.epoch + 1, openings=self.openings + 1, open_until_ns=until)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many second calls are still allowed, in hundredths: every question adds 8, every second call takes 100.

    So over n questions there are at most 10 + 0.08 n of them, however bad the models are. It starts full.
    """

    hundredths: int = 1_000

    def deposit(self) -> RetryBudget:
        return RetryBudget(min(self.hundredths + 8, 1_000))

    def take(self) -> RetryBudget | None:
        """The budget after one more second call, or None when there is none left."""
        return RetryBudget(self.hundredths - 100) if self.hundredths >= 100 else None
