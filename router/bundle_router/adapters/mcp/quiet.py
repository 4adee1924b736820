"""The SDK's log, kept off standard error: it quotes servers unredacted, and one hostile server can fill a disk.

Only records made on the sessions' own thread are taken; a host application that uses the SDK keeps its own log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LOGGERS: Final = (
    "client",
    "httpx2",
    "mcp.client.auth.oauth2",
    "mcp.client.client",
    "mcp.client.sse",
    "mcp.client.streamable_http",
    "mcp.shared.dispatcher",
    "mcp.shared.jsonrpc_dispatcher",
)


class Quiet(logging.Filter):
    """Turns the thread's warnings into events without their text, at most one a second."""

    def __init__(self, thread_id: Callable[[], int | None], report: Callable[..., None]) -> None:
        super().__init__()
        self._thread_id = thread_id
        self._report = report
        self._told_at = 0.0
        self._untold = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread_id():
            return True
        if record.levelno >= logging.WARNING:
            now = time.monotonic()
            if now - self._told_at < 1.0:
                self._untold += 1
            else:
                # Only where: the text may hold what a server sent.
                self._report("warning", "sdk.warned", where=f"{record.name}:{record.lineno}", untold=self._untold)
                self._told_at, self._untold = now, 0
        return False

    def attach(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self)

    def detach(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)
