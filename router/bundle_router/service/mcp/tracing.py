"""Spans of clients' requests, in a process that has its own OpenTelemetry provider.

Nothing is loaded, and nothing is done, in any other: the service's own telemetry has another
provider. A span has the method, the tool's name and the code of an error; no argument, no result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bundle_router.service.mcp.jsonrpc import AnswerError
from bundle_router.service.mcp.protocol import ClientRequest


def has_provider() -> bool:
    """Return whether the process has a tracer provider."""
    if "opentelemetry.trace" not in sys.modules:
        return False
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def trace_answer(request: ClientRequest) -> Iterator[None]:
    """Open a span while a request is answered, below the one that its `_meta` names."""
    if not has_provider():
        yield
        return
    from opentelemetry import trace

    name = request.method
    attributes = {
        "mcp.method.name": request.method,
        "mcp.protocol.version": request.version,
        "jsonrpc.request.id": str(request.id),
    }
    target = request.params.get("name")
    if isinstance(target, str):
        name = f"{name} {target}"
        if request.method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
            attributes["gen_ai.tool.name"] = target
    tracer = trace.get_tracer("bundle-router")
    with tracer.start_as_current_span(
        name,
        kind=trace.SpanKind.SERVER,
        attributes=attributes,
        context=_context_of(request),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except AnswerError as error:
            span.set_attribute("error.type", str(error.code))
            span.set_status(trace.StatusCode.ERROR, error.message)
            raise


def _context_of(request: ClientRequest) -> Any:
    """Return the trace that a request continues, None if none; other headers are not read."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    names = ("traceparent", "tracestate")
    carrier = {
        name: request.meta[name] for name in names if isinstance(request.meta.get(name), str)
    }
    context = TraceContextTextMapPropagator().extract(carrier)
    return context if trace.get_current_span(context).get_span_context().is_valid else None
