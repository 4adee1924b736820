"""Counts the tokens of the first-party definitions (cl100k_base) and writes `bundles/tokens.json`.

Run it after a definition changed: `python tests/count_tokens.py`. The counts are stored because counting needs a
tokenizer that takes longer to load than a decision takes to make.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "bundles" / "tokens.json"


def counts() -> str:
    """The text of `bundles/tokens.json` for the definitions as they are."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        raise SystemExit("litellm carries the tokenizer's file, so that no network is needed: install the dev extra")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(spec.origin).parent / "litellm_core_utils" / "tokenizers")
    import tiktoken
    from bundle_router.adapters.local import cards_of, shipped_servers
    from bundle_router.core.tools.exposure import definition, exposed_names

    encoding = tiktoken.get_encoding("cl100k_base")
    cards = cards_of(shipped_servers(), {})
    names = exposed_names(cards)
    rows = [
        {
            "tool": name,
            "sha256": card.sha256,
            "tokens": len(encoding.encode(json.dumps(definition(card, names[name], "openai"), separators=(",", ":")))),
        }
        for name, card in sorted(cards.items())
    ]
    return json.dumps({"encoding": "cl100k_base", "form": "openai", "tools": rows}, indent=1) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "router"))
    TARGET.write_text(counts(), encoding="utf-8")
