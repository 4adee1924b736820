"""The service's telemetry: metrics, spans and log lines.

It is one module, so that calls over MCP and over HTTP count alike. The only user of OpenTelemetry's
SDK.

Rules:
1. The tracer provider is our own, never the process's: that one is its host's to set, and every
   library that looks for it would send its own spans, and what they quote, to our exporter.
2. A span is created when its operation has ended, from the record's ids, words of closed lists and
   times: no goal, no argument, no result.
3. A caller's `traceparent` is the parent. No other trace header is read, baggage least of all.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from bundle_router import __version__
from bundle_router.core.values import Decision
from bundle_router.engine.results import Result
from bundle_router.errors import needs_extra

if TYPE_CHECKING:
    from bundle_router.service.metrics import ServiceMetrics

FLUSH_S: Final = 1.0
Context = Any
"""OpenTelemetry's context of a caller; None if it sent none."""
Report = Callable[..., None]
"""`EndpointAccess.report`."""


class Telemetry:
    """Telemetry of one service.

    `spans=None`: no spans. `servers` returns the names of the config's servers.
    """

    def __init__(
        self,
        metrics: ServiceMetrics,
        spans: SpanExport | None,
        report: Report,
        servers: Callable[[], Any],
    ) -> None:
        self.metrics = metrics
        self._spans = spans
        self._report = report
        self._servers = servers

    async def decision(self, work: Awaitable[Decision], traceparent: str | None = None) -> Decision:
        """Await a decision and report it."""
        began_ns = time.time_ns()
        began = time.perf_counter()
        decision = await work
        elapsed_s = time.perf_counter() - began
        self.metrics.decided(decision, elapsed_s)
        if self._spans is not None:
            self._spans.decided(decision, began_ns, self._spans.context(traceparent))
        about = {
            "run_id": decision.run_id,
            "decision_id": decision.decision_id,
            "source": decision.source,
        }
        elapsed_ms = round(elapsed_s * 1000, 3)
        self._report(
            "info", "step.routed", **about, degraded=decision.degraded, elapsed_ms=elapsed_ms
        )
        return decision

    async def call(
        self, run_id: str, name: str, work: Awaitable[Result], traceparent: str | None = None
    ) -> Result:
        """Await a call by a tool's canonical or exposed name, and report it, also if it is
        cancelled.
        """
        began_ns = time.time_ns()
        began = time.perf_counter()
        try:
            result = await work
        except asyncio.CancelledError:
            tool = name.replace("__", ".", 1)
            attributes = (
                tool if tool.partition(".")[0] in self._servers() else ""
            )  # else it is text of a request
            self._called(
                run_id,
                Result("cancelled", "", "cancelled", tool=attributes),
                began_ns,
                began,
                traceparent,
            )
            raise
        self._called(run_id, result, began_ns, began, traceparent)
        return result

    def _called(
        self, run_id: str, result: Result, began_ns: int, began: float, traceparent: str | None
    ) -> None:
        elapsed_s = time.perf_counter() - began
        server = result.tool.partition(".")[0]
        self.metrics.called(server if server in self._servers() else "", result, elapsed_s)
        if self._spans is not None:
            self._spans.called(run_id, result, began_ns, self._spans.context(traceparent))
        about = {"run_id": run_id, "call_id": result.call_id, "tool": result.tool}
        elapsed_ms = round(elapsed_s * 1000, 3)
        self._report(
            "info",
            "tool.called",
            **about,
            outcome=result.outcome,
            code=result.code,
            elapsed_ms=elapsed_ms,
        )

    def answered(self, route: str, status: int, caller: str, elapsed_s: float) -> None:
        """Report an answered request."""
        self.metrics.answered(route, status, elapsed_s)
        self._report(
            "info",
            "request.answered",
            route=route,
            status=status,
            caller=caller,
            elapsed_ms=round(elapsed_s * 1000, 3),
        )

    def close(self) -> None:
        """Send the remaining spans. Blocks for at most a second."""
        if self._spans is not None:
            self._spans.close()


class SpanExport:
    """Sends spans to one collector, in batches, in its own thread. `url` is the full address
    (`http://127.0.0.1:4318/v1/traces`). Raises NotInstalled."""

    def __init__(self, url: str) -> None:
        with needs_extra("[service] traces", "telemetry"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import set_span_in_context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create(
            {"service.name": "bundle-router", "service.version": __version__}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=2))
        )
        self._tracer = self._provider.get_tracer("bundle_router", __version__)
        self._read = TraceContextTextMapPropagator().extract
        self._within = set_span_in_context

    def context(self, traceparent: str | None) -> Context:
        """Return the context in a caller's header."""
        if not traceparent:
            return None
        return self._read({"traceparent": traceparent})

    def decided(self, decision: Decision, began_ns: int, caller: Context) -> None:
        """Record a decision that began at this wall-clock time, and its question to a model."""
        now_ns = time.time_ns()
        span = self._tracer.start_span("decision", context=caller, start_time=began_ns)
        span.set_attributes(
            {
                "run_id": decision.run_id,
                "decision_id": decision.decision_id,
                "source": decision.source,
                "degraded": decision.degraded,
                "route": decision.route or "",
                "bundles": decision.bundle_ids,
                "offered": decision.offered,
                "catalog_revision": decision.catalog_revision,
                "tokens": decision.exposure.tokens,
            }
        )
        use = decision.model
        if use is not None:
            start_ns = max(began_ns, now_ns - int(use.elapsed_ms * 1e6))
            model_span = self._tracer.start_span(
                "model", context=self._within(span), start_time=start_ns
            )
            model_span.set_attributes(
                {
                    "gen_ai.request.model": use.name,
                    "gen_ai.usage.input_tokens": use.input_tokens,
                    "gen_ai.usage.output_tokens": use.output_tokens,
                    "failure": use.failure or "",
                    "cached": use.cached,
                    "attempts": use.attempts,
                    "cost_usd": use.cost_usd,
                }
            )
            model_span.end(now_ns)
        span.end(now_ns)

    def called(self, run_id: str, result: Result, began_ns: int, caller: Context) -> None:
        """Record a call."""
        span = self._tracer.start_span("call", context=caller, start_time=began_ns)
        span.set_attributes(
            {
                "run_id": run_id,
                "call_id": result.call_id,
                "decision_id": result.decision_id,
                "tool": result.tool,
                "outcome": result.outcome,
                "code": result.code,
            }
        )
        span.end(time.time_ns())

    def close(self) -> None:
        """Send the remaining spans, for at most `FLUSH_S` (OpenTelemetry waits as long as a
        collector). Blocks.
        """
        flush = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        flush.start()
        flush.join(FLUSH_S)
