"""The SDK's log, kept off the host's streams where it speaks of our requests, to servers or of clients: it quotes
either unredacted, and a hostile one can fill a disk.

Only what is said in the tasks of sessions and endpoints is taken; a host application keeps its own log of the SDK.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

LOGGERS: Final = (
    "client",
    "httpx2",
    *(f"mcp.client.{name}" for name in ("auth.oauth2", "client", "sse", "streamable_http")),
    *(f"mcp.server.{name}" for name in ("_streamable_http_modern", "connection", "context", "lowlevel.server")),
    *(f"mcp.server.{name}" for name in ("request_state", "runner", "session", "streamable_http", "subscriptions")),
    "mcp.server.streamable_http_manager",
    *(f"mcp.shared.{name}" for name in ("direct_dispatcher", "dispatcher", "jsonrpc_dispatcher")),
)
_MIN_S: Final = 1.0


class LogListener:
    """Hears the SDK's warnings in the tasks that `listen` was called in, and in theirs. `report` is called with where
    one was said and how many were not told of before it, at most once a second: the text may hold what anybody sent."""

    def __init__(self, report: Callable[[str, int], None]) -> None:
        self._report = report
        self._told_at: float | None = None
        self._untold = 0
        for name in LOGGERS:
            logging.getLogger(name).addFilter(_FILTER)  # once is enough, and more does no harm

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


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        ear = _EAR.get()
        if ear is not None and record.levelno >= logging.WARNING:
            ear.hear(record)
        return ear is None


_EAR: Final[ContextVar[LogListener | None]] = ContextVar("bundle_router_sdk_log", default=None)
_FILTER: Final = _Filter()
