"""What the surface costs: counted constants, and the goals on real servers where the data is
there.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.exposure.meta_tools.definitions import NAMES, meta_definitions, meta_tokens


@pytest.fixture(scope="module")
def count() -> Any:
    spec = find_spec("litellm")
    if spec is None or spec.origin is None or find_spec("tiktoken") is None:
        pytest.skip(
            "litellm carries the tokenizer's file, and tiktoken reads it: they come with the dev"
            " extra"
        )
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(
        Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    )
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    if before is None:
        del os.environ["TIKTOKEN_CACHE_DIR"]
    else:
        os.environ["TIKTOKEN_CACHE_DIR"] = before
    return lambda text: len(encoding.encode(text))


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_of_each_meta_tool_are_those_counted(name: str, count: Any) -> None:
    (definition,) = meta_definitions((name,), "openai")
    assert meta_tokens((name,)) == count(json.dumps(definition, separators=(",", ":")))


@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("read_artifact", {"uri", "offset", "limit"}),
        ("search_artifact", {"uri", "pattern", "context"}),
    ],
)
def test_what_the_name_of_an_argument_does_not_say_its_description_says(
    name: str, described: set[str]
) -> None:
    (definition,) = meta_definitions((name,), "mcp")
    fields = definition["inputSchema"]["properties"]
    assert {field for field, schema in fields.items() if schema.get("description")} == described


def test_all_meta_tools_together_stay_small() -> None:
    assert meta_tokens(NAMES) <= 320
