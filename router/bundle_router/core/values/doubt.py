"""How sure a decision was, and whether it may be wrong although nothing failed."""

from __future__ import annotations

from dataclasses import dataclass

from bundle_router.core.values.decisions import Decision
from bundle_router.core.values.words import Doubt, Verdict


def doubt_of(source: str, verdict: str | None, model_sure: bool | None) -> Doubt | None:
    """Return why a decision is in doubt; None if it is not.

    `verdict` is search's, None where it was not asked; `model_sure` is what the model called
    itself, None where none answered.
    """
    if model_sure is False:
        return "model_unsure"
    if source == "shortlist":
        return "nothing_sure"
    if source in ("default", "none") and verdict is not None:
        return "nothing_sure"
    return None


@dataclass(frozen=True, slots=True)
class Certainty:
    """How sure those were who were asked for a decision."""

    model_sure: bool | None
    """Whether the model called itself sure; None where none answered."""
    verdict: Verdict | None
    """Search's; None where it was not asked."""
    probability: float | None
    """Search's, of its best bundle being right; None where it was not asked, or not calibrated."""
    threshold: float | None
    """What the probability has to reach for search to decide alone; None: it never does."""
    doubt: Doubt | None

    @classmethod
    def of(cls, decision: Decision) -> Certainty:
        """Return how sure a decision was."""
        model_sure = decision.model.sure if decision.model is not None else None
        search = decision.search
        if search is None:
            return cls(model_sure, None, None, None, doubt_of(decision.source, None, model_sure))
        doubt = doubt_of(decision.source, search.verdict, model_sure)
        return cls(model_sure, search.verdict, search.probability, search.threshold, doubt)
