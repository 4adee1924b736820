"""The runs that this process has open, and the only way to open one or to end it.

Rules:
1. Disk work is done under a lock that belongs to the run, so that one slow directory never holds up the others.
2. A run that ends while steps or calls are under way is let go when the last of them is recorded. Who opens it before
   that goes on with it: it is never refused because of ourselves.
3. Once retired they open no other run. Each is let go of by its own end, or when nothing of it is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from bundle_router.engine.run import Run
from bundle_router.errors import RequestError, RouterError

_STRIPES: Final = 64
"""Locks that runs share by hash. Enough that two runs rarely meet, few enough to be kept for ever."""


class Retired(Exception):
    """These runs are no longer added to: open it with those that took over."""


class OpenRuns:
    """Open runs by id. Everything may be called from many threads at once."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._ending: WeakValueDictionary[str, Run] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._stripes = tuple(threading.Lock() for _ in range(_STRIPES))
        self._closed = False
        self._retired = False

    def get(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    def open(self, run_id: str, create: Callable[[], Run]) -> Run:
        """The open run, or what `create` opens. Raises RequestError once everything was closed, Retired."""
        with self._stripe(run_id):
            with self._lock:
                self._refuse_closed()
                run = self._runs.get(run_id)
                ending = self._ending.pop(run_id, None)
            if run is not None:
                return run
            if ending is not None and ending.reopen():
                run = ending
            elif self._retired:
                raise Retired
            else:
                run = create()
            with self._lock:
                if not self._closed:
                    self._runs[run_id] = run
                    return run
            run.close()
            self._refuse_closed()
            raise AssertionError("unreachable: closed routers stay closed")

    def close(self, run_id: str) -> None:
        """Ends a run; one that is not open is left alone. Raises StorageError when its end can't be written."""
        with self._stripe(run_id):
            with self._lock:
                run = self._runs.pop(run_id, None)
                if run is not None:
                    self._ending[run_id] = run
            if run is not None:
                run.close()

    def retire(self) -> None:
        """Opens no other run from now on."""
        self._retired = True

    def holds(self, run_id: str) -> bool:
        """Whether the run is open here, or has an end that has not come yet."""
        if run_id in self._runs:
            return True
        ending = self._ending.get(run_id)
        return ending is not None and not ending.ended

    def __len__(self) -> int:
        return len(self._runs) + len(self._ending)

    def let_go(self, run_id: str) -> bool:
        """Ends the run if nothing of it is under way; whether it has ended. Raises StorageError."""
        with self._stripe(run_id):
            with self._lock:
                run = self._runs.get(run_id)
            if run is None:
                return not self.holds(run_id)
            if not run.close_idle():
                return False
            with self._lock:
                del self._runs[run_id]
            return True

    def close_all(self) -> None:
        """Ends every run and opens no other. Raises the first error, after all were ended."""
        with self._lock:
            self._closed = True
            open_now = list(self._runs)
        troubles: list[RouterError] = []
        for run_id in open_now:
            try:
                self.close(run_id)
            except RouterError as trouble:  # the other runs still want to be ended
                troubles.append(trouble)
        if troubles:
            raise troubles[0]

    def _stripe(self, run_id: str) -> threading.Lock:
        return self._stripes[hash(run_id) % _STRIPES]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise RequestError("this router is closed", advice="open another with Router.open(...)")
