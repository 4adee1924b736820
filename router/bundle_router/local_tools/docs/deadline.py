"""One total deadline for a call: resolving, connecting, TLS, headers, a dripping body,
converting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from bundle_router.adapters.loop import LoopThread
from bundle_router.errors import ToolFailure

T = TypeVar("T")

SLICE_S: Final = 0.2
"""Maximum seconds of a single wait. Between waits the call checks whether it was cancelled."""


class Deadline:
    """A deadline `timeout_s` seconds from now.

    Progress does not extend it, not even a byte a second.
    """

    def __init__(self, timeout_s: float, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._timeout_s = timeout_s
        self._ends = time.monotonic() + timeout_s
        self._cancelled = cancelled

    def check(self, doing: str) -> float:
        """Return the seconds left (above 0).

        Raises ToolFailure `timeout` or `cancelled`; `doing` names the work.
        """
        if self._cancelled():
            raise ToolFailure(f"cancelled while {doing}", code="cancelled")
        seconds = self._ends - time.monotonic()
        if seconds <= 0:
            raise ToolFailure(
                f"no time left after {self._timeout_s:g} s, while {doing}", code="timeout"
            )
        return seconds

    def run(self, doing: str, work: Coroutine[Any, Any, T], loop: LoopThread) -> T:
        """Run a coroutine on that loop and return its result; cancel it when the time is up.

        Raises like `check`, and what the coroutine raises.
        """
        result = loop.submit(work)
        try:
            while True:
                try:
                    return result.result(min(self.check(doing), SLICE_S))
                except TimeoutError:
                    if result.done():
                        raise
        finally:
            result.cancel()
