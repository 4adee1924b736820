"""Whose turn it is: the ordered models with a breaker each, and the budget for second calls. One loop, no locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bundle_router.core.catalog import ModelChoice
from bundle_router.core.decide.asking.model_breaker import TERMS, RetryBudget, end_of
from bundle_router.core.decide.asking.model_exchange import ModelReply
from bundle_router.core.models.breaker import Breaker, Ticket
from bundle_router.ports import Clock, Diagnostics


@dataclass(frozen=True, slots=True)
class Turn:
    """Leave to call `model` once, the `place`th in order."""

    place: int
    model: ModelChoice
    ticket: Ticket


class Turns:
    """The state of all breakers."""

    def __init__(self, models: Sequence[ModelChoice], clock: Clock, diagnostics: Diagnostics) -> None:
        self._models = tuple(models)
        self._breakers = [Breaker(TERMS) for _ in self._models]
        self._budget = RetryBudget()
        self._clock = clock
        self._diagnostics = diagnostics

    def begin(self) -> Turn | None:
        """The first call of a question: the best model whose breaker lets it through, or None."""
        self._budget = self._budget.deposit()
        return self._from(0)

    def again(self, after: Turn, *, same_model: bool) -> Turn | None:
        """The second call: the same model if it may (a re-ask), else the next one. None when there is none, or when
        second calls have been too many lately."""
        budget = self._budget.take()
        turn = self._from(after.place if same_model else after.place + 1) if budget is not None else None
        if turn is not None and budget is not None:
            self._budget = budget
        return turn

    def _from(self, first: int) -> Turn | None:
        now = self._clock.monotonic_ns()
        for place in range(first, len(self._models)):
            self._breakers[place], ticket = self._breakers[place].admit(now)
            if ticket is not None:
                return Turn(place, self._models[place], ticket)
        return None

    def settle(self, turn: Turn, reply: ModelReply) -> None:
        """Hears what the call came to."""
        before = self._breakers[turn.place]
        end = end_of(reply.failure)
        after = before.settle(turn.ticket, end, self._clock.monotonic_ns(), reply.retry_after_s)
        self._breakers[turn.place] = after
        if after.epoch == before.epoch:
            return
        if after.open_until_ns is None:
            self._diagnostics.event("warning", "model.recovered", model=turn.model.name)
        else:
            seconds = round((after.open_until_ns - self._clock.monotonic_ns()) / 1e9, 1)
            self._diagnostics.event(
                "warning", "model.suspended", model=turn.model.name, failure=reply.failure, seconds=seconds
            )

    def release(self, turn: Turn) -> None:
        """The call was given up before it came to anything."""
        self._breakers[turn.place] = self._breakers[turn.place].release(turn.ticket)
