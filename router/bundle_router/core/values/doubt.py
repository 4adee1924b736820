"""Whether a decision may be wrong although nothing failed."""

from __future__ import annotations

from bundle_router.core.values.words import Doubt


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
