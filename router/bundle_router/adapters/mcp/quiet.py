"""Keeps the SDK's log records of our requests, servers and clients off the host's streams: they
quote both unredacted, and a hostile one could fill a disk.

Only records from the tasks of our sessions and endpoints are kept off. A host's own use of the SDK
logs as before.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import cache
from typing import Any, Final

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


# --- the caller's trace ---------------------------------------------------------------------------
# Its span is passed on, never its baggage: the SDK injects whatever the global propagator finds in
# the context into requests to third parties, and baggage is the host application's own data.


def trace_only(context: Context) -> Context:
    """Copy the caller's current span, and nothing else, into the context that a call will run
    in.
    """
    if "opentelemetry.trace" in sys.modules:
        span = _trace().get_current_span()
        if span.get_span_context().is_valid:
            from opentelemetry import context as otel

            context.run(otel.attach, _trace().set_span_in_context(span, otel.Context()))
    return context


@cache
def _trace() -> Any:
    """Import and return `opentelemetry.trace`."""
    from opentelemetry import trace

    return trace


def is_traced() -> bool:
    """Return whether a tracer provider is set, or there is a current span to continue."""
    trace = _trace()
    is_taken = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return is_taken or bool(trace.get_current_span().get_span_context().is_valid)


@contextmanager
def trace_request(method: str, number: int, params: dict[str, Any]) -> Iterator[None]:
    """Open the span that the SDK would open for a request, and put its trace into `params["_meta"]`
    as the SDK does.
    """
    from mcp.shared._otel import inject_trace_context, otel_span  # private; mcp is pinned below 3
    from opentelemetry.trace import SpanKind

    target = params.get("name")
    name = f"MCP send {method}{f' {target}' if isinstance(target, str) else ''}"
    attributes = {"mcp.method.name": method, "jsonrpc.request.id": str(number)}
    with otel_span(name, kind=SpanKind.CLIENT, attributes=attributes):
        inject_trace_context(params.setdefault("_meta", {}))
        yield
