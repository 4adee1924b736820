"""The tokenizer by which definitions and results are counted, where one is installed."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_TOKENIZER_FOLDER: Final = "TIKTOKEN_CACHE_DIR"


def token_counter() -> Callable[[str], int] | None:
    """Return a function that counts the tokens of a text as cl100k_base does; None without a
    tokenizer. Never uses the network: litellm carries the vocabulary that tiktoken would fetch.
    Loading it takes a second, so this is for reviews, reports and the index of runs. Routing uses
    counts made earlier, which are in pins and in `bundle_router/local_tools/cards.json`.
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
