"""Closes runs that were not used for a while: their resources are released and their end is
written. The next step or call opens such a run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from itertools import takewhile
from typing import Final

from bundle_router.errors import RouterError, UnknownRun

LOOKS: Final = 4
"""Checks for idle runs in each `idle_s`."""


class IdleRuns:
    """When each run was last used.

    Belongs to one event loop; only `note` may be called from other threads.

    `close` ends a run, and returns False where it is in use all the same; `report` receives the
    outcome.
    """

    def __init__(
        self, idle_s: float, close: Callable[[str], Awaitable[bool]], report: Callable[..., None]
    ) -> None:
        self._idle_s = idle_s
        self._close = close
        self._report = report
        self._used: OrderedDict[str, float] = OrderedDict()
        self._busy: dict[str, int] = {}
        self._lock = threading.Lock()
        self._task = asyncio.create_task(self._watch(), name="idle-runs")

    @contextlib.contextmanager
    def use(self, run_id: str) -> Iterator[None]:
        """Keep a run from counting as idle."""
        self._busy[run_id] = self._busy.get(run_id, 0) + 1
        try:
            yield
        finally:
            self._busy[run_id] -= 1
            if not self._busy[run_id]:
                del self._busy[run_id]
            self.note(run_id)

    def note(self, run_id: str) -> None:
        """Note that a run was used.

        Any thread may call this. Updates at most a hundred times per `idle_s`.
        """
        time_s = time.monotonic()
        if time_s - self._used.get(run_id, -self._idle_s) > self._idle_s / 100:
            with self._lock:
                self._used[run_id] = time_s
                self._used.move_to_end(run_id)

    def forget(self, run_id: str) -> None:
        """Note that a run was closed."""
        with self._lock:
            self._used.pop(run_id, None)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / LOOKS)
            await self.close_idle()

    async def close_idle(self) -> None:
        """Close the runs that have been idle for long enough."""
        until = time.monotonic() - self._idle_s
        with self._lock:
            idle = [*takewhile(lambda run_id: self._used[run_id] <= until, self._used)]
        for run_id in idle:
            if run_id in self._busy:
                continue
            self.forget(run_id)
            try:
                with contextlib.suppress(UnknownRun):  # requested but never begun, or pruned
                    if await self._close(run_id):
                        self._report("info", "run.idle_closed", run_id=run_id)
                    else:
                        self.note(run_id)
            except RouterError as trouble:
                self._report("warning", "run.idle_not_closed", run_id=run_id, error=trouble)

    async def end(self) -> None:
        """Stop checking."""
        self._task.cancel()
        await asyncio.wait([self._task])
