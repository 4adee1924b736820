"""The bounds of tool servers: bytes, seconds, concurrency. Each has its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.catalog import TRANSPORTS, CallLimits, Server, Transport
from bundle_router.core.values.breaker import BreakerTerms

PROBES: Final = BreakerTerms(base_s=1.0, growth=2.0, max_open_s=5.0)
"""A failing server is tried again after 1, 2, 4 and then every 5 s, so a recovered one is used
within 5 s.
"""
SHORTEST_LIFETIME_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """`max_message_bytes`: one message, of which nothing is repeated (see `max_frame_bytes`).

    At most `per_server` and `in_total` calls run at once, and `queue_per_server` and
    `queue_in_total` wait. A server always gets `assured` calls, so that hanging servers can't
    starve it. `polite_s`, `term_s`: seconds that a stdio server gets to end by itself, and after
    SIGTERM; with killing they stay below 5 s. A connection that is unused for `idle_s` is closed;
    at most `max_open` are kept.
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

    @property
    def max_frame_bytes(self) -> int:
        """Bytes that are read of one line, response body or event before any of it is parsed.

        SDKs send structured output as text too: a result that says the same twice may be so large.
        """
        return 2 * self.max_message_bytes


def bounds_for(limits: CallLimits) -> Bounds:
    """Return the bounds for the config's limits: `max_concurrent_calls` is per server."""
    limit = limits.max_concurrent_calls
    return Bounds(
        max_message_bytes=limits.max_result_bytes,
        per_server=limit,
        in_total=4 * limit,
        queue_per_server=max(
            4 * limit, 1_024
        ),  # as many requests as an endpoint has in progress at once
        queue_in_total=max(16 * limit, 2_048),
    )


def bounds_of(server: Server, bounds: Bounds) -> Bounds:
    """Return the bounds for connections to a server: its entry may set `connect_s`."""
    if server.connect_s is None:
        return bounds
    return replace(bounds, connect_s=server.connect_s)


def lifetime_s(
    transport: Transport, configured_s: float | None, server_ttl_ms: float | None
) -> float:
    """Return the seconds that a list is fresh.

    The server's own value can only shorten them; 0 or less is ignored, because servers send it by
    default (every modern one measured does).
    """
    longest_s = TRANSPORTS[transport].list_lifetime_s if configured_s is None else configured_s
    if server_ttl_ms is None or server_ttl_ms <= 0:
        return longest_s
    return min(longest_s, max(server_ttl_ms / 1000.0, SHORTEST_LIFETIME_S))
