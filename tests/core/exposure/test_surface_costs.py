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
from bundle_router.core.exposure.meta_tools.definitions import (
    EXECUTE,
    MAX_BEHIND,
    NAMES,
    behind_text,
    meta_definitions,
    meta_tokens,
)


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
        ("search_tools", {"query"}),
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
    assert meta_tokens(NAMES) <= 336


BEHIND = ("Read and close issues of a tracker.", "Send mail.", "", "Weather of a city.")


def test_search_is_described_by_what_is_behind_it_in_the_operators_words(count: Any) -> None:
    (definition,) = meta_definitions(("search_tools",), "anthropic", BEHIND)
    assert definition["description"] == (
        "Find tools that are not in your list by what they do. Behind it: Read and close issues of"
        " a tracker; Send mail; Weather of a city"
    )
    (openai,) = meta_definitions(("search_tools",), "openai", BEHIND)
    counted = count(json.dumps(openai, separators=(",", ":")))
    assert counted <= meta_tokens(("search_tools",), BEHIND) <= counted + 8


def test_what_is_behind_search_is_cut_at_a_bundle_and_counted() -> None:
    texts = [f"Do the thing with number {n} and no other." for n in range(100)]
    text = behind_text(texts)
    assert len(text) <= MAX_BEHIND + 40
    assert text.endswith("; Do the thing with number 4 and no other; and 95 more")


def test_mcp_clients_learn_which_meta_tools_change_nothing() -> None:
    hints = {
        row["name"]: row.get("annotations") for row in meta_definitions((*NAMES, EXECUTE), "mcp")
    }
    read_only = {"readOnlyHint": True}
    assert hints == {
        "search_tools": read_only,
        "list_tools": read_only,
        "get_tool_details": read_only,
        "call_tool": None,
        "read_artifact": read_only,
        "search_artifact": read_only,
        "execute": None,
    }
