"""A circuit breaker as a pure state machine over monotonic nanoseconds.

    closed ──(one grave failure, or `errors_in_a_row`)──► open ──(its time is over)──► half open
       ▲                                                   ▲                              │ one probe
       └───────────────(the probe was answered)────────────┴──────(the probe failed)──────┘

Rules:
1. While it is open nothing is let through; half open lets exactly one probe through until that one is settled.
2. Every ticket belongs to an epoch, and the epoch ends whenever the breaker opens or closes. What a call of an earlier
   epoch came to is not heard: a slow success from before the outage does not end it.
3. It stays open for `base_s`, times `growth` after every probe that failed, at most `max_open_s`; for `grave_s` after a
   grave failure; longer where the other side asked for it, but never longer than `max_asked_s`: one absurd header must
   not switch it off for good.
4. A blameless end (the caller's own mistake) says nothing of health. A probe that ends so was answered, and closes it.
"""

from __future__ import annotations

from typing import Final, Literal

from bundle_router.dataclass import dataclass, replace

End = Literal["answered", "blameless", "failed", "grave"]


@dataclass(frozen=True, slots=True)
class BreakerTerms:
    """When a breaker opens and for how long, in seconds."""

    errors_in_a_row: int = 5
    base_s: float = 30.0
    growth: float = 1.0
    max_open_s: float = 300.0
    max_asked_s: float = 900.0
    grave_s: float = 0.0


DEFAULT_TERMS: Final = BreakerTerms()


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to make one call. Give it back with what became of it."""

    epoch: int
    probe: bool


@dataclass(frozen=True, slots=True)
class Breaker:
    """`open_until_ns` is None while closed; `openings` counts how often it opened since it was last closed."""

    terms: BreakerTerms = DEFAULT_TERMS
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

    def settle(self, ticket: Ticket, end: End, now_ns: int, retry_after_s: float | None = None) -> Breaker:
        """Return the breaker after a call ended."""
        if ticket.epoch != self.epoch:
            return self
        if end in ("answered", "blameless"):
            if ticket.probe:
                return Breaker(self.terms, epoch=self.epoch + 1)
            return replace(self, errors=0) if end == "answered" and self.errors else self
        if end == "grave" or ticket.probe or self.errors + 1 >= self.terms.errors_in_a_row:
            return self._open_breaker(now_ns, max(retry_after_s or 0.0, self.terms.grave_s if end == "grave" else 0.0))
        return replace(self, errors=self.errors + 1)

    def release(self, ticket: Ticket) -> Breaker:
        """Return the breaker after a call whose end nobody waited for: nothing learnt, the probe free again."""
        return replace(self, probing=False) if ticket.probe and ticket.epoch == self.epoch else self

    def opens_again_in_s(self, now_ns: int) -> float:
        """Return seconds until a probe is let through; 0 when closed or due."""
        return max(0.0, ((self.open_until_ns or now_ns) - now_ns) / 1e9)

    def _open_breaker(self, now_ns: int, asked_s: float) -> Breaker:
        terms = self.terms
        own_s = min(terms.base_s * terms.growth ** min(self.openings, 16), terms.max_open_s)
        until = now_ns + int(max(own_s, min(asked_s, terms.max_asked_s)) * 1e9)
        return Breaker(terms, epoch=self.epoch + 1, openings=self.openings + 1, open_until_ns=until)
