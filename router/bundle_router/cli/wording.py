"""What search and the model had to say, in a line each: the same words in `route`, `runs show` and `explain`."""

from __future__ import annotations

from collections.abc import Iterator

from bundle_router.core.models import ModelUse, SearchUse


def heard(search: SearchUse | None, model: ModelUse | None) -> Iterator[str]:
    """A line for each that was asked."""
    if search is not None:
        yield _search(search)
    if model is not None:
        yield _model(model)


def _search(use: SearchUse) -> str:
    e = use.evidence
    parts = [f"margin {e.margin:.2f}", f"coverage {e.coverage:.2f}", f"relevance {e.relevance:.2f}"]
    if use.probability is not None:
        parts.append(f"probability {use.probability:.2f}")
        parts.append("never by itself" if use.threshold is None else f"threshold {use.threshold:.2f}")
    return f"search: {use.verdict} ({', '.join(parts)}; thresholds {use.thresholds})"


def _model(use: ModelUse) -> str:
    came = f"failed: {use.failure}" if use.failure else "answered from the cache" if use.cached else "answered"
    parts = [f"{use.attempts} call{'' if use.attempts == 1 else 's'}", f"{use.elapsed_ms:.0f} ms"]
    if use.input_tokens or use.output_tokens:
        parts.append(f"{use.input_tokens:,} + {use.output_tokens:,} tokens")
    if use.cost_usd:
        parts.append(f"${use.cost_usd:.4f}")
    return f"model {use.name}: {came} ({', '.join(parts)})"
