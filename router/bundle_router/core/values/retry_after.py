"""The `Retry-After` header of HTTP, which models' providers and tool servers send alike."""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

_SECONDS: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")


def retry_after_s(value: str, now: datetime) -> float | None:
    """Return the seconds from `now` that a `Retry-After` asks for: a number, or an HTTP date.

    0 for a date that has passed; None where the value is neither.
    """
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        return max((parsedate_to_datetime(value) - now).total_seconds(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
