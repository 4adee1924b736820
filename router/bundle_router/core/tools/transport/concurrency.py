"""Who may call now, who waits, and who is turned away: counting, without the waiting.

Rules:
1. At most `per_server` of a server's calls run at once, and `in_total` of all; but a server with fewer than `assured`
   running is let in even then, so servers that hang can't starve the others.
2. Who can't run waits in its server's queue, in order of arrival. A full queue turns away: `busy`.
3. A place that becomes free goes to the first in line: of the same server, else of the server that waits longest.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, Literal, TypeVar

from bundle_router.core.tools.transport.bounds import Bounds

W = TypeVar("W")


class Gate(Generic[W]):
    """`W` is whatever stands for a waiting call; it is handed back when its turn comes."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._running: dict[str, int] = {}
        self._queues: OrderedDict[str, deque[W]] = OrderedDict()
        self.running = 0
        self.waiting = 0

    def enter(self, server: str, waiter: W) -> Literal["run", "wait", "busy"]:
        """Asks for a place. `run`: it is taken. `wait`: `leave` will hand the waiter back. `busy`: come again."""
        queue = self._queues.get(server)
        if not queue and self._fits(server):
            self._take(server)
            return "run"
        waiting = len(queue) if queue else 0
        if waiting >= self._bounds.queue_per_server or self.waiting >= self._bounds.queue_in_total:
            return "busy"
        self._queues.setdefault(server, deque()).append(waiter)
        self.waiting += 1
        return "wait"

    def leave(self, server: str) -> list[W]:
        """Give a place back. Whoever is returned runs now."""
        self.running -= 1
        left = self._running[server] - 1
        if left:
            self._running[server] = left
        else:
            del self._running[server]
        return self._admit(server)

    def withdraw(self, server: str, waiter: W) -> bool:
        """Take a waiter out of the queue. False when its turn had come: it holds a place and must `leave`."""
        queue = self._queues.get(server)
        if queue is None or waiter not in queue:
            return False
        queue.remove(waiter)
        self.waiting -= 1
        if not queue:
            del self._queues[server]
        return True

    def count(self, server: str) -> tuple[int, int]:
        """Return how many of a server's calls run and wait."""
        return self._running.get(server, 0), len(self._queues.get(server, ()))

    def _fits(self, server: str) -> bool:
        mine = self._running.get(server, 0)
        return mine < self._bounds.per_server and (self.running < self._bounds.in_total or mine < self._bounds.assured)

    def _take(self, server: str) -> None:
        self._running[server] = self._running.get(server, 0) + 1
        self.running += 1

    def _admit(self, first: str) -> list[W]:
        admitted: list[W] = []
        for server in [first, *[name for name in self._queues if name != first]]:
            queue = self._queues.get(server)
            while queue and self._fits(server):
                self._take(server)
                self.waiting -= 1
                admitted.append(queue.popleft())
            if queue is not None and not queue:
                del self._queues[server]
        return admitted
