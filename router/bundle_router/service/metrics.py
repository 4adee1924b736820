"""The service's metrics for Prometheus; the only user of `prometheus_client`.

Loaded when a service starts.

Labels are words of closed lists and names in the config, never text of a request, so strangers
can't create series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bundle_router.core.values import Decision
from bundle_router.engine.results import Result

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DECISION_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0)
_CALL_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)


class ServiceMetrics:
    """The series of one service, in its own registry. Thread-safe."""

    def __init__(self, under_way: Callable[[], float]) -> None:
        self._registry = series = CollectorRegistry()

        def counter(name: str, description: str, *labels: str) -> Any:
            return cache(
                Counter(f"bundle_router_{name}", description, labels, registry=series).labels
            )

        def histogram(name: str, description: str, label: str, buckets: Sequence[float]) -> Any:
            return cache(
                Histogram(
                    f"bundle_router_{name}", description, [label], buckets=buckets, registry=series
                ).labels
            )

        self._requests = counter("requests", "Requests answered.", "route", "status")
        self._request_s = histogram(
            "request_seconds", "From the first byte to the answer.", "route", _DECISION_S
        )
        self._decisions = counter("decisions", "Decisions.", "source", "degraded")
        self._decision_s = histogram(
            "decision_seconds", "Time to decide and record.", "source", _DECISION_S
        )
        self._shown = Counter(
            "bundle_router_shown_tokens", "Tokens of the definitions shown.", registry=series
        )
        self._all = Counter(
            "bundle_router_all_tokens",
            "Tokens of all definitions, had they been shown.",
            registry=series,
        )
        self._calls = counter("calls", "Tool calls.", "server", "outcome")
        self._call_s = histogram("call_seconds", "Time of a tool call.", "server", _CALL_S)
        self._model = counter("model_questions", "Questions to a model.", "model", "failure")
        self._model_s = counter("model_seconds", "Time spent on questions.", "model")
        self._model_cost = counter("model_cost_usd", "What they cost.", "model")
        self._reloads = counter("config_reloads", "Edits of the config met.", "outcome")
        gauge = Gauge(
            "bundle_router_requests_under_way", "Requests being answered.", registry=series
        )
        gauge.set_function(under_way)

    def answered(self, route: str, status: int, elapsed_s: float) -> None:
        """Count a request."""
        self._requests(route, str(status)).inc()
        self._request_s(route).observe(elapsed_s)

    def decided(self, decision: Decision, elapsed_s: float) -> None:
        """Count a decision, and its question to a model."""
        self._decisions(decision.source, "true" if decision.degraded else "false").inc()
        self._decision_s(decision.source).observe(elapsed_s)
        self._shown.inc(decision.exposure.tokens)
        self._all.inc(decision.exposure.all_tokens)
        use = decision.model
        if use is not None:
            self._model(use.name, use.failure or "").inc()
            self._model_s(use.name).inc(use.elapsed_ms / 1000)
            self._model_cost(use.name).inc(use.cost_usd)

    def called(self, server: str, result: Result, elapsed_s: float) -> None:
        """Count a call of a server of the config (empty: any other)."""
        self._calls(server, result.outcome).inc()
        self._call_s(server).observe(elapsed_s)

    def reloaded(self, outcome: str) -> None:
        """Count a config edit: `adopted` or `refused`."""
        self._reloads(outcome).inc()

    def text(self) -> bytes:
        """Return every series as text."""
        return generate_latest(self._registry)
