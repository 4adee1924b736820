"""The system's clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """Wall time for records, monotonic time for durations and lifetimes."""

    def now(self) -> str:
        return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()
