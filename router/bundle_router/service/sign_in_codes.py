"""The codes of links that sign a browser in: each once, for a short time, at this process alone.

Rules:
1. A code is random, and only its SHA-256 is kept, in memory: what is read later, in a history or a
   log, opens nothing.
2. It ends with its first use, whatever came of that, and after `CODE_S`.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

CODE_S: Final = 600.0
"""Seconds that a code can be used for."""
MAX_CODES: Final = 100
"""Codes that wait for their use; the oldest are dropped."""


class SignInCodes:
    """The unused codes of one service.

    >>> codes = SignInCodes()
    >>> code = codes.new()
    >>> codes.redeem(code), codes.redeem(code)
    (True, False)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def new(self) -> str:
        """Return a new code. It has the form of our tokens, so that it is redacted as they are."""
        code = f"brk_{secrets.token_urlsafe(32)}"
        while len(self._until) >= MAX_CODES:
            self._until.popitem(last=False)
        self._until[_digest(code)] = self._clock() + CODE_S
        return code

    def redeem(self, code: str) -> bool:
        """Use a code up, and return whether it was good."""
        until = self._until.pop(_digest(code), None)
        return until is not None and self._clock() < until


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()
