"""Counts tokens as cl100k_base does, if a tokenizer is installed.

Loading it takes a second, so it is for reviews and reports. Routing uses counts made earlier, which are in pins and in
`bundle_router/tools/cards.json`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path


def token_counter() -> Callable[[str], int] | None:
    """Return a function that counts the tokens of a text; None without a tokenizer. Never uses the network: litellm
    carries the vocabulary that tiktoken would fetch."""
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
