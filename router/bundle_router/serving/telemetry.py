"""What the service tells of itself while it works: series, spans, and lines of the log. One place, so that a call over
MCP counts as one over HTTP does."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bundle_router.core.models import Decision
from bundle_router.engine.results import Result

if TYPE_CHECKING:
    from bundle_router.serving.metrics import ServiceMetrics
    from bundle_router.serving.spans import SpanExport

Report = Callable[..., None]
"""`EndpointAccess.report`."""


class Telemetry:
    """`spans=None`: none are sent. `servers` says which names of servers the config has."""

    def __init__(
        self, metrics: ServiceMetrics, spans: SpanExport | None, report: Report, servers: Callable[[], Any]
    ) -> None:
        self.metrics = metrics
        self._spans = spans
        self._report = report
        self._servers = servers

    async def decision(self, work: Awaitable[Decision], traceparent: str | None = None) -> Decision:
        """Await a decision and tell of it."""
        began_ns, began = time.time_ns(), time.perf_counter()
        decision = await work
        elapsed_s = time.perf_counter() - began
        self.metrics.decided(decision, elapsed_s)
        if self._spans is not None:
            self._spans.decided(decision, began_ns, self._spans.context(traceparent))
        self._report(
            "info",
            "step.routed",
            run_id=decision.run_id,
            decision_id=decision.decision_id,
            source=decision.source,
            degraded=decision.degraded,
            elapsed_ms=round(elapsed_s * 1000, 3),
        )
        return decision

    async def call(self, run_id: str, work: Awaitable[Result], traceparent: str | None = None) -> Result:
        """Await a call and tell of it."""
        began_ns, began = time.time_ns(), time.perf_counter()
        result = await work
        elapsed_s = time.perf_counter() - began
        server = result.tool.partition(".")[0]
        self.metrics.called(server if server in self._servers() else "", result, elapsed_s)
        if self._spans is not None:
            self._spans.called(run_id, result, began_ns, self._spans.context(traceparent))
        self._report(
            "info",
            "tool.called",
            run_id=run_id,
            call_id=result.call_id,
            tool=result.tool,
            outcome=result.outcome,
            code=result.code,
            elapsed_ms=round(elapsed_s * 1000, 3),
        )
        return result

    def answered(self, route: str, status: int, caller: str, elapsed_s: float) -> None:
        """Tell of a request that was answered."""
        self.metrics.answered(route, status, elapsed_s)
        self._report(
            "info", "request.answered", route=route, status=status, caller=caller, elapsed_ms=round(elapsed_s * 1000, 3)
        )

    def close(self) -> None:
        """Send what is left. Blocks, for a second at most."""
        if self._spans is not None:
            self._spans.close()
