"""What the service counts, for Prometheus: the one owner of `prometheus_client`. Loaded when a service begins.

Labels are words of closed lists and names of the config, never what a request says: strangers can't make series.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bundle_router.core.models import Decision
from bundle_router.engine.results import Result

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DECISION_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0)
_CALL_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)


class ServiceMetrics:
    """The series of one service, in a registry of its own. For many threads at once."""

    def __init__(self, under_way: Callable[[], float]) -> None:
        self._registry = own = CollectorRegistry()
        name = "bundle_router"
        self._requests = Counter(f"{name}_requests", "Requests answered.", ["route", "status"], registry=own)
        self._request_s = Histogram(
            f"{name}_request_seconds",
            "From the first byte to the answer.",
            ["route"],
            buckets=_DECISION_S,
            registry=own,
        )
        self._decisions = Counter(f"{name}_decisions", "Decisions.", ["source", "degraded"], registry=own)
        self._decision_s = Histogram(
            f"{name}_decision_seconds", "Time to decide and record.", ["source"], buckets=_DECISION_S, registry=own
        )
        self._shown = Counter(f"{name}_shown_tokens", "Tokens of the definitions shown.", registry=own)
        self._all = Counter(f"{name}_all_tokens", "Tokens of all definitions, had they been shown.", registry=own)
        self._calls = Counter(f"{name}_calls", "Tool calls.", ["server", "outcome"], registry=own)
        self._call_s = Histogram(
            f"{name}_call_seconds", "Time of a tool call.", ["server"], buckets=_CALL_S, registry=own
        )
        self._model = Counter(f"{name}_model_questions", "Questions to a model.", ["model", "failure"], registry=own)
        self._model_s = Counter(f"{name}_model_seconds", "Time spent on questions.", ["model"], registry=own)
        self._model_cost = Counter(f"{name}_model_cost_usd", "What they cost.", ["model"], registry=own)
        self._reloads = Counter(f"{name}_config_reloads", "Edits of the config met.", ["outcome"], registry=own)
        Gauge(f"{name}_requests_under_way", "Requests being answered.", registry=own).set_function(under_way)

    def answered(self, route: str, status: int, elapsed_s: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._request_s.labels(route).observe(elapsed_s)

    def decided(self, decision: Decision, elapsed_s: float) -> None:
        """Count a decision, and the question to a model behind it."""
        self._decisions.labels(decision.source, "true" if decision.degraded else "false").inc()
        self._decision_s.labels(decision.source).observe(elapsed_s)
        self._shown.inc(decision.exposure.tokens)
        self._all.inc(decision.exposure.all_tokens)
        use = decision.model
        if use is not None:
            self._model.labels(use.name, use.failure or "").inc()
            self._model_s.labels(use.name).inc(use.elapsed_ms / 1000)
            self._model_cost.labels(use.name).inc(use.cost_usd)

    def called(self, server: str, result: Result, elapsed_s: float) -> None:
        """Count a call of a server of the config (empty: of none)."""
        self._calls.labels(server, result.outcome).inc()
        self._call_s.labels(server).observe(elapsed_s)

    def reloaded(self, outcome: str) -> None:
        """Count an edit of the config: `adopted` or `refused`."""
        self._reloads.labels(outcome).inc()

    def text(self) -> bytes:
        """Return every series as text."""
        return generate_latest(self._registry)
