"""A circuit breaker as a pure state machine over monotonic nanoseconds.

    closed ──(a grave failure, too many, or as asked)──► open ──(its time is over)──► half open
       ▲                                                  ▲                              │ one probe
       └──────────────(the probe was answered)────────────┴──────(the probe failed)──────┘

Rules:
1. An open breaker lets nothing through; a half open one lets exactly one probe through until the
   probe is settled.
2. Every ticket belongs to an epoch, which ends whenever the breaker opens or closes. The end of a
   call of an earlier epoch is ignored: a slow success from before the outage does not end the
   outage.
3. Too many failures are `failing_share` of the last `window` calls. Where fewer than that ended in
   the last `window_s`, a share says little, and it is `errors_in_a_row`. So what fails now and then
   is asked on, since not asking loses more than asking does: of a model that fails half of its
   questions, the half that it answers.
4. A grave failure opens it at once: the next call would fail like this one.
5. A failure that says when to come back (`Retry-After`) opens it at once, for just that time.
6. Otherwise it stays open for `base_s`, times `growth` after every failed probe, at most
   `max_open_s`; longer where the other side asked for it.
7. Nobody is obeyed for longer than `max_asked_s`: one absurd header must not switch it off for
   good.
8. A blameless end (the caller's own mistake) says nothing about health. A probe that ends so was
   answered, and closes the breaker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

End = Literal["answered", "blameless", "failed", "grave"]


@dataclass(frozen=True, slots=True)
class BreakerTerms:
    """When a breaker opens, and for how many seconds."""

    errors_in_a_row: int = 5
    """Failures in a row that open it, where few calls ended lately."""
    window: int = 20
    """The calls that ended last, of which a share is taken; fewer of them are few."""
    window_s: float = 60.0
    """Seconds for which an end counts among them."""
    failing_share: float = 0.8
    """The share of failures among them that opens it."""
    base_s: float = 30.0
    """Seconds that it stays open at first."""
    growth: float = 1.0
    """By how much each failed probe makes that longer."""
    max_open_s: float = 300.0
    """The longest it stays open by itself."""
    max_asked_s: float = 900.0
    """The longest it stays open because it was asked to."""


DEFAULT_TERMS: Final = BreakerTerms()


class PastEnd(NamedTuple):
    """The end of a call that was let through while the breaker was closed."""

    at_ns: int
    failed: bool


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission for one call. Return it with the call's end."""

    epoch: int
    """The epoch in which it was given."""
    probe: bool
    """Whether the call is the one that is let through half open."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of a breaker."""

    terms: BreakerTerms = DEFAULT_TERMS
    epoch: int = 0
    """Counts openings and closings."""
    errors: int = 0
    """Failures in a row until now."""
    recent: tuple[PastEnd, ...] = ()
    """The ends of this epoch, oldest first: at most `terms.window`, none older than that allows."""
    openings: int = 0
    """Openings since it was closed that were not asked for."""
    open_until_ns: int | None = None
    """None while it is closed."""
    probing: bool = False
    """Whether a probe is under way."""

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
        if ticket.probe:
            return self._after_probe(end, now_ns, retry_after_s or 0.0)
        if end == "blameless":
            return self

        counted = self._count(PastEnd(now_ns, failed=end != "answered"))
        if end == "answered":
            return counted
        if end == "grave" or counted._fails_too_often():
            return self._open_breaker(now_ns, retry_after_s or 0.0)
        if retry_after_s is not None and retry_after_s > 0:
            return self._open_for(now_ns, min(retry_after_s, self.terms.max_asked_s))
        return counted

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

    def _after_probe(self, end: End, now_ns: int, asked_s: float) -> Breaker:
        if end in ("answered", "blameless"):
            return Breaker(self.terms, epoch=self.epoch + 1)
        return self._open_breaker(now_ns, asked_s)

    def _count(self, end: PastEnd) -> Breaker:
        oldest_ns = end.at_ns - int(self.terms.window_s * 1e9)
        recent = (*self.recent, end)[-self.terms.window :]
        if recent[0].at_ns < oldest_ns:
            recent = tuple(past for past in recent if past.at_ns >= oldest_ns)
        errors = self.errors + 1 if end.failed else 0
        return Breaker(self.terms, self.epoch, errors, recent, self.openings)

    def _fails_too_often(self) -> bool:
        if len(self.recent) < self.terms.window:
            return self.errors >= self.terms.errors_in_a_row
        failures = sum(past.failed for past in self.recent)
        return failures >= self.terms.failing_share * self.terms.window

    def _open_breaker(self, now_ns: int, asked_s: float) -> Breaker:
        """Return it opened by its own judgement, once more."""
        terms = self.terms
        own_s = min(terms.base_s * terms.growth ** min(self.openings, 16), terms.max_open_s)
        open_s = max(own_s, min(asked_s, terms.max_asked_s))
        opened = self._open_for(now_ns, open_s)
        return replace(opened, openings=self.openings + 1)

    def _open_for(self, now_ns: int, open_s: float) -> Breaker:
        return Breaker(
            self.terms,
            epoch=self.epoch + 1,
            openings=self.openings,
            open_until_ns=now_ns + int(open_s * 1e9),
        )
