"""Who may call a server now: the circuit breaker of each server, and the queue before all of them, with the waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bundle_router.core.models.breaker import Breaker, End, Ticket
from bundle_router.core.tools.transport.bounds import Bounds
from bundle_router.core.tools.transport.concurrency import Gate
from bundle_router.ports import Clock

Waiter = asyncio.Future[None]


class Busy(Exception):
    """More calls wait than the queue holds, or the call's time was up before its turn came."""


class CircuitOpen(Exception):
    """The server failed too often and is left alone for `again_in_s`."""

    def __init__(self, again_in_s: float) -> None:
        super().__init__(again_in_s)
        self.again_in_s = again_in_s


class Guards:
    """Everything on one event loop."""

    def __init__(self, bounds: Bounds, clock: Clock) -> None:
        self._gate: Gate[Waiter] = Gate(bounds)
        self._breakers: dict[str, Breaker] = {}
        self._terms = bounds.breaker
        self._clock = clock

    @asynccontextmanager
    async def place(self, server: str, deadline: float) -> AsyncIterator[None]:
        """Give one of the places, held until the end of the block. Raises Busy."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        verdict = self._gate.enter(server, waiter)
        if verdict == "busy":
            raise Busy
        if verdict == "wait":
            await self._turn(server, waiter, deadline - loop.time())
        try:
            yield
        finally:
            self._leave(server)

    async def _turn(self, server: str, waiter: Waiter, timeout_s: float) -> None:
        try:
            done, _ = await asyncio.wait((waiter,), timeout=max(timeout_s, 0.0))
        except asyncio.CancelledError:
            if not self._gate.withdraw(server, waiter):
                self._leave(server)
            raise
        if not done:
            self._gate.withdraw(server, waiter)
            raise Busy

    def _leave(self, server: str) -> None:
        for waiter in self._gate.leave(server):
            waiter.set_result(None)

    # --- the breakers ------------------------------------------------------------------------------------------------

    def admit(self, server: str) -> Ticket:
        """Leave to contact the server. Raises CircuitOpen."""
        now = self._clock.monotonic_ns()
        breaker, ticket = self.breaker(server).admit(now)
        self._breakers[server] = breaker
        if ticket is None:
            raise CircuitOpen(breaker.opens_again_in_s(now))
        return ticket

    def settle(self, server: str, ticket: Ticket, end: End | None, retry_after_s: float | None = None) -> bool:
        """Return what became of it (None: nobody waited for the end). True when this has just opened the breaker."""
        before = self.breaker(server)
        if end is None:
            after = before.release(ticket)
        else:
            after = before.settle(ticket, end, self._clock.monotonic_ns(), retry_after_s)
        self._breakers[server] = after
        return after.open_until_ns is not None and after.epoch != before.epoch

    def breaker(self, server: str) -> Breaker:
        return self._breakers.get(server) or Breaker(self._terms)

    def counts(self, server: str) -> tuple[int, int]:
        """Return how many calls run and wait."""
        return self._gate.count(server)
