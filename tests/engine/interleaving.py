"""Threads of which one goes at a time, in an order that dice decide, and event loops that wait for
nothing.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

STAYS: Final = 0.4
"""How often who pauses goes on itself without more ado."""
MAX_PAUSES: Final = 20_000


class Interleaving:
    """Runs jobs in threads of which one goes at a time.

    Each hands over at its pauses, to whom the dice say.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._gates: list[threading.Lock] = []
        self._going: list[int] = []
        self._over = threading.Lock()
        self._pauses = 0
        self.troubles: list[BaseException] = []

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run the jobs to their ends. Raises the first thing that one of them raised."""
        self._gates = [_taken() for _ in jobs]
        self._over = _taken()
        self._going = list(range(len(jobs)))
        threads = [threading.Thread(target=self._go, args=(at, job)) for at, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        self._hand_over()
        self._over.acquire()
        for thread in threads:
            thread.join()
        if self.troubles:
            raise self.troubles[0]

    def _go(self, at: int, job: Callable[[], None]) -> None:
        self._gates[at].acquire()
        try:
            job()
        except BaseException as trouble:  # noqa: BLE001 - raised again by whoever began the jobs
            self.troubles.append(trouble)
        self._going.remove(at)
        self._hand_over()

    def _hand_over(self) -> None:
        (self._gates[self._dice.choice(self._going)] if self._going else self._over).release()

    def pause(self, at: int) -> None:
        """Let another go first, or not."""
        self._pauses += 1
        if self._pauses > MAX_PAUSES:
            raise AssertionError(f"no end after {MAX_PAUSES} operations")
        if self._dice.random() < STAYS:
            return
        other = self._dice.choice(self._going)
        if other != at:
            self._gates[other].release()
            self._gates[at].acquire()


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class _NoWait(selectors.SelectSelector):
    """Nothing is waited for: a loop whose next timer is later goes on to it at once."""

    later_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.later_s += timeout or 0.0
        return []


class InlineLoop(asyncio.SelectorEventLoop):
    """An event loop that does everything where it is, threads' work too, and passes over time."""

    def __init__(self) -> None:
        self._clock = _NoWait()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.later_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # of one type for all
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever awaits it is told
            done.set_exception(error)
        return done
