"""One exchange with a model: what is sent, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from bundle_router.core.catalog import ModelChoice
from bundle_router.core.values import Failure


@dataclass(frozen=True, slots=True)
class Correction:
    """A second try on the same model: what it said, and the complaint."""

    answer: str
    complaint: str


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One upstream call.

    `shape` is the pydantic class that the answer is read into (see `picks.AnswerShapes`).
    """

    model: ModelChoice
    system: str
    user: str
    shape: type[BaseModel]
    correction: Correction | None = None


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What one upstream call gave: `answer` (an instance of the request's shape) or `failure`,
    never both.

    `detail` says more of a failure to the operator, and holds nothing of a provider's. `raw` is the
    text as the model gave it, cut to `MAX_RAW`; `retry_after_s` is what the provider asked for.
    """

    answer: BaseModel | None = None
    failure: Failure | None = None
    detail: str = ""
    raw: str | None = None
    retry_after_s: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


MAX_RAW = 8_192
"""Characters of a model's answer that are kept in the record."""
