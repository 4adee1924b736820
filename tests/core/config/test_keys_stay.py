"""A config that was written for an earlier version names no key that has gone since.

`tests/data/config_keys.txt` has every key that a config could have at 46e944ec. Whoever removes one
gives it a sentence of its own where `core/config/entries.py` reports unknown keys, which says what
became of it, and takes its line out of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.house import ROOT

LISTED = Path(__file__).parents[2] / "data" / "config_keys.txt"


def keys_in(schema: Mapping[str, Any], whole: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the dotted keys that a JSON Schema permits; `NAME` stands for a name of the user's."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from keys_in(whole["definitions"][name], whole, path)
    for key, value in schema.get("properties", {}).items():
        yield f"{path}{key}"
        yield from keys_in(value, whole, f"{path}{key}.")
    for word in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(word, ()):
            yield from keys_in(choice, whole, path)
    if "items" in schema:
        yield from keys_in(schema["items"], whole, path)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from keys_in(schema["additionalProperties"], whole, f"{path}NAME.")


def test_no_key_of_an_earlier_config_is_unknown_today() -> None:
    listed = LISTED.read_text(encoding="utf-8").splitlines()
    permitted: set[str] = set()
    for schema in (ROOT / "config" / "schema").glob("*.schema.json"):
        file = schema.name.removesuffix(".schema.json")
        whole = json.loads(schema.read_text(encoding="utf-8"))
        permitted |= {f"{file}.toml {key}" for key in keys_in(whole, whole, "")}
    assert len(listed) > 150
    assert [key for key in listed if key not in permitted] == []
