"""A circuit breaker as a pure state machine over monotonic nanoseconds.

    closed ──(a grave failure, or `errors_in_a_row`)──► open ──(its time is over)──► half open
       ▲                                                 ▲                              │ one probe
       └──────────────(the probe was answered)───────────┴─────(the probe failed)───────┘

Rules:
1. An open breaker lets nothing through; a half open one lets exactly one probe through until the
   probe is settled.
2. Every ticket belongs to an epoch, which ends whenever the breaker opens or closes. The end of a
   call of an earlier epoch is ignored: a slow success from before the outage does not end the
   outage.
3. It stays open for `base_s`, times `growth` after every failed probe, at most `max_open_s`; for
   `grave_s` after a grave failure; longer where the other side asked for it, but at most
   `max_asked_s`: one absurd header must not switch it off for good.
4. A blameless end (the caller's own mistake) says nothing about health. A probe that ends so was
   answered, and closes the breaker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

End = Literal["answered", "blameless", "failed", "grave"]


@dataclass(frozen=True, slots=True)
class BreakerTerms:
    """When a breaker opens, and for how many seconds."""

    errors_in_a_row: int = 5
    base_s: float = 30.0
    growth: float = 1.0
    max_open_s: float = 300.0
    max_asked_s: float = 900.0
    grave_s: float = 0.0


DEFAULT_TERMS: Final = BreakerTerms()


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission for one call. Return it with the call's end."""

    epoch: int
    probe: bool


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of a breaker.

    `open_until_ns` is None while closed; `openings` counts openings since then.
    """

    terms: BreakerTerms = DEFAULT_TERMS
    epoch: int = 0
    errors: int = 0
    openings: int = 0
    open_until_ns: int | None = None
    probing: bool = False

    def admit(self, now_ns: int) -> tuple[Breaker, Ticket | None]:
        """Return a ticket for a call now, or None."""
        if self.open_until_ns is None:
            return self, Ticket(self.epoch, probe=False)
        if self.probing or now_ns < self.open_until_ns:
            return self, None
        return replace(self, probing=True), Ticket(self.epoch, probe=True)

    def settle(
        self, ticket: Ticket, end: End, now_ns: int, retry_after_s: float | None = None
    ) -> Breaker:
        """Return the breaker after a call ended."""
        if ticket.epoch != self.epoch:
            return self
        if end in ("answered", "blameless"):
            return self._after_success(ticket, end)
        asked_s = retry_after_s or 0.0
        if end == "grave":
            return self._open_breaker(now_ns, max(asked_s, self.terms.grave_s))
        if ticket.probe or self.errors + 1 >= self.terms.errors_in_a_row:
            return self._open_breaker(now_ns, asked_s)
        return replace(self, errors=self.errors + 1)

    def _after_success(self, ticket: Ticket, end: End) -> Breaker:
        if ticket.probe:
            return Breaker(self.terms, epoch=self.epoch + 1)
        if end == "answered" and self.errors:
            return replace(self, errors=0)
        return self

    def release(self, ticket: Ticket) -> Breaker:
        """Return the breaker after a call whose end is unknown: nothing is learnt, and another
        probe may be made.
        """
        if ticket.probe and ticket.epoch == self.epoch:
            return replace(self, probing=False)
        return self

    def opens_again_in_s(self, now_ns: int) -> float:
        """Return seconds until a probe is let through; 0 when closed or due."""
        return max(0.0, ((self.open_until_ns or now_ns) - now_ns) / 1e9)

    def _open_breaker(self, now_ns: int, asked_s: float) -> Breaker:
        terms = self.terms
        own_s = min(terms.base_s * terms.growth ** min(self.openings, 16), terms.max_open_s)
        until = now_ns + int(max(own_s, min(asked_s, terms.max_asked_s)) * 1e9)
        return Breaker(terms, epoch=self.epoch + 1, openings=self.openings + 1, open_until_ns=until)
