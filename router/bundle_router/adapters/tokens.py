"""Counts tokens as cl100k_base does, where a tokenizer is installed.

It takes a second to load, so this is for reviews and reports: what routing needs was counted before, and stands in pins
and in `bundle_router/tools/cards.json`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path


def token_counter() -> Callable[[str], int] | None:
    """Return what counts the tokens of a text; None where nothing that can is installed. Never touches the network:
    litellm carries the vocabulary that tiktoken would fetch."""
    carrier = find_spec("litellm")
    if carrier is None or carrier.origin is None or find_spec("tiktoken") is None:
        return None
    folder = Path(carrier.origin).parent / "litellm_core_utils" / "tokenizers"
    if not folder.is_dir():
        return None
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    return lambda text: len(encoding.encode(text, disallowed_special=()))
