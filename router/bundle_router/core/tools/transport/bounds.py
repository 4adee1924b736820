"""The numbers that bound a tool server: bytes, seconds, how many at once. Each has its unit in its name."""

from __future__ import annotations

from typing import Final

from bundle_router.core.catalog import TRANSPORTS, CallLimits, Transport
from bundle_router.core.models.breaker import BreakerTerms
from bundle_router.dataclass import dataclass

PROBES: Final = BreakerTerms(base_s=1.0, growth=2.0, max_open_s=5.0, grave_s=30.0)
"""A failing server may be asked again after 1, 2, 4 and then every 5 s: one that comes back is used within 5 s. One
that asked for rest (429) gets half a minute where it did not say how much."""
SHORTEST_LIFETIME_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """`max_message_bytes`: one line, one response body, one event, before any of it is parsed.

    `per_server` and `in_total` calls run at once, and `queue_per_server` and `queue_in_total` wait; a server always
    gets `assured` of its own, so that others that hang can't starve it. `polite_s`, `term_s`: how long a stdio server
    may take to end by itself, and after SIGTERM; their sum, and killing, stay below 5 s. A connection that nobody
    used for `idle_s` is closed; at most `max_open` are kept.
    """

    max_message_bytes: int = 8 * 1024 * 1024
    max_definition_bytes: int = 256 * 1024
    max_pages: int = 50
    max_tools: int = 5_000
    max_blocks: int = 1_000
    max_stderr_bytes: int = 4 * 1024
    connect_s: float = 30.0
    list_s: float = 30.0
    close_s: float = 6.0
    polite_s: float = 1.5
    term_s: float = 1.5
    restart_s: float = 0.25
    idle_s: float = 300.0
    per_server: int = 32
    in_total: int = 128
    assured: int = 2
    queue_per_server: int = 128
    queue_in_total: int = 512
    max_open: int = 64
    breaker: BreakerTerms = PROBES


def bounds_for(limits: CallLimits) -> Bounds:
    """Return the bounds that follow from the config's limits: `max_concurrent_calls` is of one server."""
    each = limits.max_concurrent_calls
    return Bounds(
        max_message_bytes=limits.max_result_bytes,
        per_server=each,
        in_total=4 * each,
        queue_per_server=max(4 * each, 1_024),  # as many as an endpoint has under way at once
        queue_in_total=max(16 * each, 2_048),
    )


def lifetime_s(transport: Transport, configured_s: float | None, server_ttl_ms: float | None) -> float:
    """Return how long a list holds. The server's own word only shortens; 0 or less is what servers send that never
    thought about it (every modern one measured does), so it counts as nothing said."""
    own = TRANSPORTS[transport].list_lifetime_s if configured_s is None else configured_s
    if server_ttl_ms is None or server_ttl_ms <= 0:
        return own
    return min(own, max(server_ttl_ms / 1000.0, SHORTEST_LIFETIME_S))
