"""What of the caller's trace goes along with a call: its span, and never its baggage.

The SDK injects whatever the global propagator finds in the context into requests to third parties; baggage holds what
a host application put there for itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any


def trace_only(context: Context) -> Context:
    """Put the caller's current span, and nothing else, into the context that a call will run in."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import context as otel
        from opentelemetry import trace

        span = trace.get_current_span()
        if span.get_span_context().is_valid:
            context.run(otel.attach, trace.set_span_in_context(span, otel.Context()))
    return context


@contextmanager
def traced(method: str, number: int, params: dict[str, Any]) -> Iterator[None]:
    """Give the span of a request that the SDK would make, with the trace put into `params["_meta"]` as the SDK does."""
    from mcp.shared._otel import inject_trace_context, otel_span  # not exported; mcp is pinned below 3
    from opentelemetry.trace import ProxyTracerProvider, SpanKind, get_current_span, get_tracer_provider

    if isinstance(get_tracer_provider(), ProxyTracerProvider) and not get_current_span().get_span_context().is_valid:
        yield  # nobody takes spans, and there is none to go on with
        return

    target = params.get("name")
    name = f"MCP send {method}{f' {target}' if isinstance(target, str) else ''}"
    attributes = {"mcp.method.name": method, "jsonrpc.request.id": str(number)}
    with otel_span(name, kind=SpanKind.CLIENT, attributes=attributes):
        inject_trace_context(params.setdefault("_meta", {}))
        yield
