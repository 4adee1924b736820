"""Which of the closed failures an error is, when a model is left alone for it, and a budget for
second tries.

Rules (the terms are those of `core.values.breaker`, for models):
1. A 401, 402, 403 or 407 opens the breaker at once: the next question would get the same. A
   timeout or a 429 is a failure like any other, since models give single ones; a 429 or 503 that
   says when to come back is obeyed.
2. It stays open for `BASE_S`, twice that after every probe that failed, at most `MAX_OPEN_S`;
   longer where the provider asked for it, but never longer than `MAX_ASKED_S`.
3. What the question is to blame for (too long, refused), or the config (no key), says nothing of
   the model's health.
4. The status code decides which failure it is, not the exception's class: client libraries raise a
   401 as a bad request when it suits them. The text is looked at for two things, which providers
   report as a plain 400: a prompt that is too long, and a refusal by their content filter. What has
   no status code is told by the kind of error, a word of its class name; what is left is
   `upstream_error` when it came from the network and `internal` when it is our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bundle_router.core.values import Failure
from bundle_router.core.values.breaker import BreakerTerms, End

BASE_S: Final = 15.0
MAX_OPEN_S: Final = 300.0
MAX_ASKED_S: Final = 900.0
TERMS: Final = BreakerTerms(
    base_s=BASE_S, growth=2.0, max_open_s=MAX_OPEN_S, max_asked_s=MAX_ASKED_S
)

NOT_SENT: Final[frozenset[Failure]] = frozenset(("no_key", "not_sent"))
"""Failures of the config, for which nothing was sent."""
_BLAMELESS: Final[frozenset[Failure]] = frozenset(("context_window", "refused", *NOT_SENT))


def end_of(failure: Failure | None) -> End:
    """Return what a call's end says of the model's health."""
    if failure is None:
        return "answered"
    if failure in _BLAMELESS:
        return "blameless"
    if failure == "auth":
        return "grave"
    return "failed"


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many second calls are still allowed, in hundredths: every question adds 8, every second
    call takes 100.

    So over n questions there are at most 10 + 0.08 n of them, however bad the models are. It starts
    full.
    """

    hundredths: int = 1_000

    def deposit(self) -> RetryBudget:
        return RetryBudget(min(self.hundredths + 8, 1_000))

    def take(self) -> RetryBudget | None:
        """Return the budget after one more second call, or None when there is none left."""
        if self.hundredths >= 100:
            return RetryBudget(self.hundredths - 100)
        return None


_BY_STATUS: Final[Mapping[int, Failure]] = {
    401: "auth",
    402: "auth",  # nothing left on the account: like a key that is no longer good
    403: "auth",
    407: "auth",
    408: "timeout",
    413: "context_window",
    429: "rate_limited",
    504: "timeout",
}
_TOO_LONG: Final = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum (?:context|prompt|number of (?:input"
    r" )?tokens)|prompt is too long"
    r"|too many (?:input )?tokens|input (?:is|was) too long|reduce the length",
    re.IGNORECASE,
)
_FILTERED: Final = re.compile(
    r"content[ _](?:policy|filter|management)|safety (?:system|settings)", re.IGNORECASE
)
_NETWORK: Final = (
    "connect",
    "network",
    "read",
    "write",
    "protocol",
    "payload",
    "server",
    "ssl",
    "oserror",
    "apierror",
    "transport",
)

MAX_TEXT: Final = 4_000
"""Characters of an error's text that are looked at."""


def classify(status: int | None, kind: str, text: str) -> Failure:
    """Return the failure for an HTTP status (None: there was no answer), the error's class name,
    and its text.
    """
    words = kind.lower()
    if status is None or status < 300:
        if "timeout" in words:
            return "timeout"
        if any(word in words for word in _NETWORK):
            return "upstream_error"
        return "internal"
    by_status = _BY_STATUS.get(status)
    if by_status is not None:
        return by_status
    if status >= 500:
        return "upstream_error"
    excerpt = text[:MAX_TEXT]
    if "contextwindow" in words or _TOO_LONG.search(excerpt):
        return "context_window"
    if "contentpolicy" in words or _FILTERED.search(excerpt):
        return "refused"
    return "bad_request" if status >= 400 else "upstream_error"
