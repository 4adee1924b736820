"""Work over many runs, one of which may be broken: the others are done, the broken one is named, the status says so."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from bundle_router.core.tools.shaping import visible
from bundle_router.errors import CorruptRun

T = TypeVar("T")


class EachRun:
    """`status` is 0 as long as every run could be read to its end, else that of a broken run."""

    def __init__(self) -> None:
        self.status = 0

    def all(self, items: Iterable[T]) -> Iterator[T]:
        """The items of one run, or none of them: a run that is broken anywhere contributes nothing."""
        try:
            whole = list(items)
        except CorruptRun as error:
            self.status = error.exit_code
            sys.stderr.write(visible(f"bundle-router: passed over: {error.message}") + "\n")
            return
        yield from whole
