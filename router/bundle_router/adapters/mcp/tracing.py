"""The caller's trace: its span is passed on to servers, never its baggage.

The host's propagator injects what it finds in the context into requests to third parties, and
baggage is the host application's own data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import cache
from typing import Any


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
    if "opentelemetry.trace" not in sys.modules:
        return False
    trace = _trace()
    is_taken = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return is_taken or bool(trace.get_current_span().get_span_context().is_valid)


@contextmanager
def trace_request(method: str, number: int, params: dict[str, Any]) -> Iterator[None]:
    """Open a span for a request, and put its trace into `params["_meta"]`, if anybody traces."""
    if not is_traced():
        yield
        return
    from opentelemetry.propagate import inject

    trace = _trace()
    target = params.get("name")
    name = f"MCP send {method}"
    if isinstance(target, str):
        name = f"{name} {target}"
    tracer = trace.get_tracer("bundle-router")
    attributes = {"mcp.method.name": method, "jsonrpc.request.id": str(number)}
    with tracer.start_as_current_span(name, kind=trace.SpanKind.CLIENT, attributes=attributes):
        meta = dict(params.get("_meta") or {})
        inject(meta)
        if meta:
            params["_meta"] = meta
        yield
