"""What of the caller's trace goes along with a call: its span, and never its baggage.

The SDK injects whatever the global propagator finds in the context into requests to third parties; baggage holds what
a host application put there for itself.
"""

from __future__ import annotations

import sys
from contextvars import Context


def trace_only(context: Context) -> Context:
    """Puts the caller's current span, and nothing else, into the context that a call will run in."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import context as otel
        from opentelemetry import trace

        span = trace.get_current_span()
        if span.get_span_context().is_valid:
            context.run(otel.attach, trace.set_span_in_context(span, otel.Context()))
    return context
