"""Keeps the SDK's log records of our requests and servers off the host's streams: they quote both
unredacted, and a hostile one could fill a disk.

Only records from the tasks of our sessions are kept off. A host's own use of the SDK logs as
before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from bundle_router.adapters.host_changes import SDK_LOGGERS

_MIN_S: Final = 1.0


class LogListener:
    """Receives the SDK's warnings from the tasks that called `listen` and from their child tasks.

    Calls `report`, at most once a second, with the place of a warning and the number of unreported
    ones, but not its text.
    """

    def __init__(self, report: Callable[[str, int], None]) -> None:
        self._report = report
        self._reported_at: float | None = None
        self._unreported = 0
        for name in SDK_LOGGERS:
            logging.getLogger(name).addFilter(_FILTER)  # adding it again has no effect

    def listen(self) -> None:
        """Listen from now on in the current task and in the tasks it starts."""
        _LISTENER.set(self)

    def receive(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if self._reported_at is not None and now - self._reported_at < _MIN_S:
            self._unreported += 1
            return
        unreported = self._unreported
        self._reported_at = now
        self._unreported = 0
        self._report(f"{record.name}:{record.lineno}", unreported)


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        listener = _LISTENER.get()
        if listener is not None and record.levelno >= logging.WARNING:
            listener.receive(record)
        return listener is None


_LISTENER: Final[ContextVar[LogListener | None]] = ContextVar("bundle_router_sdk_log", default=None)
_FILTER: Final = _Filter()
