"""Ends of calls that are recorded later: the store did not take them, or nobody waits for them.

Rules:
1. Such an end is recorded before anything else is, or by a thread of its own: other processes may
   wait for it.
2. A coroutine that is closed can await nothing, and may be closed by the garbage collector, in a
   thread that has the run's lock. So it leaves its end here without taking a lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from bundle_router.errors import RouterError, RunBusy, StorageError

QUICK_S: Final = 0.005
"""Seconds for which others hold the store at most, nearly always: they do so for microseconds."""
PATIENT_S: Final = 5.0
"""Seconds that work is tried again while others hold the store."""
PendingEnd = Callable[[float], object]
"""Records an end that is owed. It gets the seconds that it may wait for the store."""


class PendingEnds:
    """The ends of one run's calls that are still to be recorded. `report` is told of an end that
    can't be.
    """

    def __init__(self, report: Callable[[RouterError], None]) -> None:
        self.ends: deque[PendingEnd] = deque()
        self._report = report
        self._has_thread = threading.Lock()

    def leave(self, *ends: PendingEnd) -> None:
        """Leave ends to whoever has the run's lock next."""
        self.ends.extend(ends)

    def record(self, wait_s: float, *, gives_up: bool = False) -> None:
        """Record the ends that were left.

        The caller holds the run's lock. Raises RunBusy and StorageError, with what is left kept,
        unless this gives up.
        """
        while self.ends:
            end = self.ends.popleft()
            try:
                end(wait_s)
            except RouterError as trouble:  # of another call than the one that is made now
                if isinstance(trouble, RunBusy | StorageError) and not gives_up:
                    self.ends.appendleft(end)
                    raise
                self._report(trouble)

    def retry(self, record: Callable[[], object], has_ended: Callable[[], bool]) -> None:
        """Have a thread record the ends with `record`, until none is left or the run has ended."""
        if not self._has_thread.acquire(blocking=False):
            return
        thread = threading.Thread(
            target=self._retry, args=(record, has_ended), name="owed-ends", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread is left: who has the lock next records it
            self._has_thread.release()

    def _retry(self, record: Callable[[], object], has_ended: Callable[[], bool]) -> None:
        pause_s = QUICK_S
        while self.ends and not has_ended():
            time.sleep(pause_s)
            with suppress(RouterError):
                record()
            pause_s = min(2 * pause_s, PATIENT_S)
        self._has_thread.release()
        if self.ends and not has_ended():  # left since it looked
            self.retry(record, has_ended)
