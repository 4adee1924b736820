"""When a model is left alone (the terms of `core.models.breaker` for models), and a budget for second tries.

Rules:
1. One timeout, 429 or 401 opens the breaker at once; other errors do when there are `ERRORS_IN_A_ROW`.
2. It stays open for `BASE_S`, twice that after every probe that failed, at most `MAX_OPEN_S`; longer where the provider
   asked for it, but never longer than `MAX_ASKED_S`.
3. What the question is to blame for (too long, refused) says nothing of the model's health.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bundle_router.core.models import Failure
from bundle_router.core.models.breaker import BreakerTerms, End

ERRORS_IN_A_ROW: Final = 3
BASE_S: Final = 15.0
MAX_OPEN_S: Final = 300.0
MAX_ASKED_S: Final = 900.0
TERMS: Final = BreakerTerms(ERRORS_IN_A_ROW, BASE_S, 2.0, MAX_OPEN_S, MAX_ASKED_S)

_GRAVE: Final[frozenset[Failure]] = frozenset(("timeout", "rate_limited", "auth"))
_BLAMELESS: Final[frozenset[Failure]] = frozenset(("context_window", "refused"))


def end_of(failure: Failure | None) -> End:
    """Return what a call's end says of the model's health."""
    if failure is None:
        return "answered"
    if failure in _BLAMELESS:
        return "blameless"
    return "grave" if failure in _GRAVE else "failed"


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many second calls are still allowed, in hundredths: every question adds 8, every second call takes 100.

    So over n questions there are at most 10 + 0.08 n of them, however bad the models are. It starts full.
    """

    hundredths: int = 1_000

    def deposit(self) -> RetryBudget:
        return RetryBudget(min(self.hundredths + 8, 1_000))

    def take(self) -> RetryBudget | None:
        """Return the budget after one more second call, or None when there is none left."""
        return RetryBudget(self.hundredths - 100) if self.hundredths >= 100 else None
