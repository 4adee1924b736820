"""What a server says while a request of an agent's client lasts: progress and log lines, handed to the client's ear.

Only what came with the request is heard: over HTTP the SDK carries the request's context to what its response holds.
The log lines of a stdio server are nobody's in particular, and are not passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from bundle_router.core.tools.transport.pass_through import LOG, PROGRESS, Client, NotificationHandler

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class Progress(Protocol):
    """The SDK's callback for progress."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


def is_finer(level: str, than: str) -> bool:
    """Whether a log of this level holds more than one of the other ("": none at all)."""
    return level in LEVELS and (than not in LEVELS or LEVELS.index(level) < LEVELS.index(than))


def hear_log(client: Client, line: Mapping[str, Any]) -> None:
    """Hands over a log line that the client wants."""
    level = line.get("level")
    wanted = client.log_level in LEVELS and level in LEVELS and not is_finer(str(level), client.log_level)
    if client.on_notification is not None and wanted:
        client.on_notification(LOG, line)


def progress_to(heard: NotificationHandler) -> Progress:
    """Hands progress over without the token, which is the SDK's own."""

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told = {"progress": progress, "total": total, "message": message}
        heard(PROGRESS, {name: value for name, value in told.items() if value is not None})

    return hear
