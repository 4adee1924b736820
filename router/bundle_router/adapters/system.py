"""Facts of this machine: time, environment variables, programs on the path, installed modules."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from importlib.util import find_spec

from bundle_router.ports import Clock


class SystemClock:
    """Wall time for records, monotonic time for durations and lifetimes."""

    time_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class SystemCapabilities:
    """Looks up capabilities, which then hold for `ttl_s` seconds by the monotonic clock.

    An environment variable counts as present if it is set and not empty.
    """

    def __init__(self, clock: Clock, ttl_s: float) -> None:
        self._clock = clock
        self._ttl_ns = int(ttl_s * 1e9)

    def present(self, names: Sequence[str]) -> tuple[frozenset[str], int]:
        return frozenset(filter(_is_present, names)), self._clock.monotonic_ns() + self._ttl_ns


def missing_modules(names: Sequence[str]) -> list[str]:
    """Return the modules that are not installed."""
    return [name for name in names if find_spec(name) is None]


def _is_present(name: str) -> bool:
    kind, _, what = name.partition(":")
    if kind == "env":
        return os.environ.get(what, "").strip() != ""
    return shutil.which(what) is not None
