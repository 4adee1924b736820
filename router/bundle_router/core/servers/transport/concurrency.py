"""Decides which calls run, which wait, and which are refused. It counts, but does not wait itself.

Rules:
1. At most `per_server` calls of a server run at once, and `in_total` of all. A server with fewer
   than `assured` running is admitted beyond `in_total`, so hanging servers can't starve the others.
2. Further calls wait in their server's queue, in order of arrival. If the queue is full, the call
   is `busy`.
3. A free place goes to the first call in the same server's queue, else to the server that waits
   longest.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from bundle_router.core.servers.transport.bounds import Bounds

W = TypeVar("W")


class Gate(Generic[W]):
    """`W` represents a waiting call; it is returned when its turn comes."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._running: dict[str, int] = {}
        self._queues: OrderedDict[str, deque[W]] = OrderedDict()
        self.running = 0
        self.waiting = 0

    def enter(self, server: str, waiter: W | None) -> Literal["run", "wait", "busy"]:
        """Ask for a place.

        `run`: it is taken. `wait`: `leave` will return the waiter. `busy`: try later, as who has no
        waiter is told.
        """
        queue = self._queues.get(server)
        if not queue and self._fits(server):
            self._take(server)
            return "run"
        waiting = len(queue) if queue else 0
        if (
            waiter is None
            or waiting >= self._bounds.queue_per_server
            or self.waiting >= self._bounds.queue_in_total
        ):
            return "busy"
        self._queues.setdefault(server, deque()).append(waiter)
        self.waiting += 1
        return "wait"

    def leave(self, server: str) -> list[W]:
        """Give a place back. Return the waiters that run now."""
        self.running -= 1
        running = self._running[server] - 1
        if running:
            self._running[server] = running
        else:
            del self._running[server]
        return self._admit(server)

    def cancel(self, server: str, waiter: W) -> bool:
        """Remove a waiter from the queue.

        False if its turn has come: it holds a place and must `leave`.
        """
        queue = self._queues.get(server)
        if queue is None or waiter not in queue:
            return False
        queue.remove(waiter)
        self.waiting -= 1
        if not queue:
            del self._queues[server]
        return True

    def count(self, server: str) -> tuple[int, int]:
        """Return how many of a server's calls run, and how many wait."""
        return self._running.get(server, 0), len(self._queues.get(server, ()))

    def _fits(self, server: str) -> bool:
        running = self._running.get(server, 0)
        return running < self._bounds.per_server and (
            self.running < self._bounds.in_total or running < self._bounds.assured
        )

    def _take(self, server: str) -> None:
        self._running[server] = self._running.get(server, 0) + 1
        self.running += 1

    def _admit(self, first: str) -> list[W]:
        admitted: list[W] = []
        if not self._queues:
            return admitted
        for server in [first, *[name for name in self._queues if name != first]]:
            queue = self._queues.get(server)
            while queue and self._fits(server):
                self._take(server)
                self.waiting -= 1
                admitted.append(queue.popleft())
            if queue is not None and not queue:
                del self._queues[server]
        return admitted


# --- which connections are held -------------------------------------------------------------------
# Counts the calls that hold each connection, by key; it does not know the connections themselves.
# 1. A connection is closed only when no call holds it. One that is to be closed is *doomed*: no new
#    call gets it, and it is closed with its last lease.
# 2. A key has at most one connection that is not doomed. Acquiring a key whose connection is doomed
#    gives a new one.
# 3. Idle connections are closed after `idle_s`. Beyond `max_open`, the one unused for longest is
#    closed first.


K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class HeldConnection(Generic[K]):
    """One connection's entry. `number` distinguishes successive connections of a key."""

    key: K
    number: int
    leases: int = 0
    used_ns: int = 0
    doomed: bool = False


class Leases(Generic[K]):
    """The entries.

    The caller closes at once the connections that `release`, `retire` or `idle` return.
    """

    def __init__(self, *, idle_s: float, max_open: int) -> None:
        self._idle_ns = int(idle_s * 1e9)
        self._max_open = max_open
        self._current: dict[K, HeldConnection[K]] = {}
        self._doomed: dict[int, HeldConnection[K]] = {}
        self._next = 0

    def acquire(self, key: K, now_ns: int) -> tuple[HeldConnection[K], bool]:
        """Take a lease; True if the connection is new and has to be opened."""
        lease = self._current.get(key)
        new = lease is None
        if lease is None:
            self._next += 1
            lease = self._current[key] = HeldConnection(key, self._next)
        lease.leases += 1
        lease.used_ns = now_ns
        return lease, new

    def find(self, key: K) -> HeldConnection[K] | None:
        """Return the entry that `acquire` would return, if there is one."""
        return self._current.get(key)

    def load(self, key: K) -> int:
        """Return the load of a key's connection, for choosing among several: idle (0), then not
        open (1), then by the number of leases.
        """
        lease = self._current.get(key)
        return 1 if lease is None else 2 * lease.leases

    def release(self, lease: HeldConnection[K], now_ns: int) -> bool:
        """Give a lease back; True if the connection is to be closed."""
        lease.leases -= 1
        lease.used_ns = now_ns
        if lease.leases == 0 and lease.doomed:
            self._doomed.pop(lease.number, None)
            return True
        return False

    def retire(self, lease: HeldConnection[K]) -> bool:
        """Allow no new lease.

        True if the connection is to be closed now, False if with its last lease, or already.
        """
        if lease.doomed:
            return False
        lease.doomed = True
        if self._current.get(lease.key) is lease:
            del self._current[lease.key]
        if lease.leases:
            self._doomed[lease.number] = lease
            return False
        return True

    def retire_where(self, wanted: Callable[[K], bool]) -> list[HeldConnection[K]]:
        """Retire every connection with a matching key; return those without a lease."""
        return [
            lease
            for lease in list(self._current.values())
            if wanted(lease.key) and self.retire(lease)
        ]

    def idle(self, now_ns: int) -> list[HeldConnection[K]]:
        """Return the connections to close because they were long unused, or because too many are
        open.
        """
        unused = sorted(
            (lease for lease in self._current.values() if not lease.leases),
            key=lambda lease: lease.used_ns,
        )
        too_many = max(0, len(self._current) - self._max_open)
        expired = [
            lease
            for i, lease in enumerate(unused)
            if i < too_many or now_ns - lease.used_ns >= self._idle_ns
        ]
        return [lease for lease in expired if self.retire(lease)]

    def move(self, lease: HeldConnection[K], key: K) -> None:
        """Give a connection another key, if that is free.

        From now on it is found under the new key only.
        """
        if lease.doomed or key in self._current:
            return
        del self._current[lease.key]
        lease.key = key
        self._current[key] = lease

    def all(self) -> list[HeldConnection[K]]:
        """Return every entry."""
        return [*self._current.values(), *self._doomed.values()]

    def __len__(self) -> int:
        return len(self._current) + len(self._doomed)
