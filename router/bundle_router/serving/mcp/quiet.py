"""The SDK's log, kept off the host's streams where it speaks of an endpoint's requests: it quotes clients and servers
unredacted, and a hostile one of either can fill a disk.

Only what is said in the tasks of an endpoint is taken; a host application that uses the SDK keeps its own log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

LOGGERS: Final = (
    "mcp.server._streamable_http_modern",
    "mcp.server.connection",
    "mcp.server.context",
    "mcp.server.lowlevel.server",
    "mcp.server.request_state",
    "mcp.server.runner",
    "mcp.server.session",
    "mcp.server.streamable_http",
    "mcp.server.streamable_http_manager",
    "mcp.server.subscriptions",
    "mcp.shared.direct_dispatcher",
    "mcp.shared.dispatcher",
    "mcp.shared.jsonrpc_dispatcher",
)
_MIN_S: Final = 1.0


class LogListener:
    """Hears the SDK's warnings in the tasks that `listen` was called in, and in theirs. `report` is called with where
    one was said and how many were not told of before it, at most once a second: the text may hold what anybody sent."""

    def __init__(self, report: Callable[[str, int], None]) -> None:
        self._report = report
        self._told_at: float | None = None
        self._untold = 0

    def listen(self) -> None:
        """From now on, in the current task and in those it begins."""
        _EAR.set(self)

    def hear(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if self._told_at is not None and now - self._told_at < _MIN_S:
            self._untold += 1
            return
        untold, self._told_at, self._untold = self._untold, now, 0
        self._report(f"{record.name}:{record.lineno}", untold)


def attach() -> None:
    """Has the SDK's loggers ask who listens. Once is enough, and more does no harm."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        ear = _EAR.get()
        if ear is not None and record.levelno >= logging.WARNING:
            ear.hear(record)
        return ear is None


_EAR: Final[ContextVar[LogListener | None]] = ContextVar("router_endpoint", default=None)
_FILTER: Final = _Filter()
