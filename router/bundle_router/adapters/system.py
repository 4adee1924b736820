"""Facts of this machine: the time, environment variables, programs on the path, installed modules,
a tokenizer.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

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


_TOKENIZER_FOLDER: Final = "TIKTOKEN_CACHE_DIR"


def token_counter() -> Callable[[str], int] | None:
    """Return a function that counts the tokens of a text as cl100k_base does; None without a
    tokenizer. Never uses the network: litellm carries the vocabulary that tiktoken would fetch.
    Loading it takes a second, so this is for reviews and reports. Routing uses counts made earlier,
    which are in pins and in `bundle_router/local_tools/cards.json`.
    """
    carrier = find_spec("litellm")
    if carrier is None or carrier.origin is None or find_spec("tiktoken") is None:
        return None
    folder = Path(carrier.origin).parent / "litellm_core_utils" / "tokenizers"
    if not folder.is_dir():
        return None
    import tiktoken

    hosts = os.environ.get(_TOKENIZER_FOLDER)
    os.environ[_TOKENIZER_FOLDER] = str(folder)
    try:
        encoding = tiktoken.get_encoding("cl100k_base")
    finally:
        if hosts is None:
            del os.environ[_TOKENIZER_FOLDER]
        else:
            os.environ[_TOKENIZER_FOLDER] = hosts
    return lambda text: len(encoding.encode(text, disallowed_special=()))
