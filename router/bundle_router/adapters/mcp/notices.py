"""Notifications of servers: which there are, and how an agent's client gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bundle_router.core.servers.transport.pass_through import CHANGED, LOG, PROGRESS, Client

TOOLS: Final = "tools/list"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
RESOURCE_CHANGED: Final = "notifications/resources/updated"
_LISTS_CHANGED: Final[Mapping[str, str]] = {
    f"notifications/{name}_changed": name for name in (TOOLS, *CHANGED)
}
LISTS: Final[Mapping[str, str]] = {
    name: f"{name.split('/')[0]}ListChanged" for name in (TOOLS, *CHANGED)
}
"""The lists that can be followed, with the name of each in a request to listen."""
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def changed_by(method: str, params: Mapping[str, Any]) -> str | None:
    """Return the resource, or the list under its method's name, that a notification says has
    changed; None if it says no such thing.
    """
    if method == RESOURCE_CHANGED:
        uri = params.get("uri")
        return uri if isinstance(uri, str) else None
    return _LISTS_CHANGED.get(method)


def is_finer(level: str, than: str) -> bool:
    """Return whether log level `level` is more verbose than `than` ("": no log at all)."""
    return level in LEVELS and (than not in LEVELS or LEVELS.index(level) < LEVELS.index(than))


def forward_log(client: Client, line: Mapping[str, Any]) -> None:
    """Forward a log message if the client's level includes it."""
    level = line.get("level")
    if client.on_notification is None or client.log_level not in LEVELS or level not in LEVELS:
        return
    if not is_finer(str(level), client.log_level):
        client.on_notification(LOG, line)


def forward_progress(client: Client, params: Mapping[str, Any]) -> None:
    """Forward progress without our own token, as far as it has the specification's form."""
    progress = params.get("progress")
    if client.on_notification is None or not client.progress or not _is_number(progress):
        return
    line: dict[str, Any] = {"progress": progress}
    if _is_number(params.get("total")):
        line["total"] = params["total"]
    if isinstance(params.get("message"), str):
        line["message"] = params["message"]
    client.on_notification(PROGRESS, line)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
