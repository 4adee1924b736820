"""Does several things at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(number: int, work: Callable[[int], T]) -> list[T | BaseException]:
    """Call `work(0)`, `work(1)` … in threads that begin together; return what each returned or
    raised.
    """
    together = threading.Barrier(number)

    def one(which: int) -> T:
        together.wait()
        return work(which)

    with ThreadPoolExecutor(number) as pool:
        calls = [pool.submit(one, which) for which in range(number)]
    return [call.exception() or call.result() for call in calls]
