"""Which of the closed failures an upstream's error is.

Rules:
1. The status code decides, not the exception's class: client libraries raise a 401 as a bad request when it suits them.
2. The text is looked at for two things only, which providers report as a plain 400: a prompt that is too long, and a
   refusal by their content filter.
3. What has no status code is told by the kind of error, a word of its class name; what is left is `upstream_error`
   when it came from the network and `internal` when it is our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from bundle_router.core.models import Failure

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
    r"context[ _-]?(?:length|window|size)|maximum (?:context|prompt|number of (?:input )?tokens)|prompt is too long"
    r"|too many (?:input )?tokens|input (?:is|was) too long|reduce the length",
    re.IGNORECASE,
)
_FILTERED: Final = re.compile(r"content[ _](?:policy|filter|management)|safety (?:system|settings)", re.IGNORECASE)
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
    "transport",
)

MAX_TEXT: Final = 4_000
"""Characters of an error's text that are looked at."""


def classify(status: int | None, kind: str, text: str) -> Failure:
    """Return the failure for an HTTP status (None: there was no answer), the error's class name, and its text."""
    words = kind.lower()
    if status is None or status < 300:
        if "timeout" in words:
            return "timeout"
        return "upstream_error" if any(word in words for word in _NETWORK) else "internal"
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    if status >= 500:
        return "upstream_error"
    excerpt = text[:MAX_TEXT]
    if "contextwindow" in words or _TOO_LONG.search(excerpt):
        return "context_window"
    if "contentpolicy" in words or _FILTERED.search(excerpt):
        return "refused"
    return "bad_request" if status >= 400 else "upstream_error"
