"""One exchange with a model: what is sent, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from bundle_router.core.catalog import ModelChoice
from bundle_router.core.values import Failure


@dataclass(frozen=True, slots=True)
class Correction:
    """A second try on the same model."""

    answer: str
    """What it said first."""
    complaint: str
    """What was wrong with that."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One upstream call."""

    model: ModelChoice
    """The model and its settings."""
    system: str
    """The system message."""
    user: str
    """The user's message."""
    shape: type[BaseModel]
    """The pydantic class that the answer is read into (see `picks.AnswerShapes`)."""
    correction: Correction | None = None
    """What was wrong with the first answer; None: this is the first try."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What one upstream call gave: an answer or a failure, never both."""

    answer: BaseModel | None = None
    """An instance of the request's shape."""
    failure: Failure | None = None
    """Why there is no answer."""
    detail: str = ""
    """More about the failure for the operator; it holds nothing of a provider's."""
    raw: str | None = None
    """The text as the model gave it, cut to `MAX_RAW`."""
    retry_after_s: float | None = None
    """Seconds that the provider asked to wait; None: it did not."""
    input_tokens: int = 0
    """Tokens sent."""
    output_tokens: int = 0
    """Tokens received."""
    cost_usd: float = 0.0
    """US dollars, as far as the model's price is known."""


MAX_RAW = 8_192
"""Characters of a model's answer that are kept in the record."""
