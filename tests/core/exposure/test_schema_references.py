"""Every reader of schemas follows the same references inside a schema: signatures, wrappers, and
the places where an artifact may be.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.catalog import Card
from bundle_router.core.exposure.meta_tools.signatures import signature
from bundle_router.core.results.artifact_handles import handles_in
from bundle_router.core.values.canonical import encode
from bundle_router.review.vendor.source import vendored_source
from pydantic import ValidationError

TARGET = {"type": "string", "contentEncoding": "base64"}
REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "a path": ("#/$defs/a", {"$defs": {"a": TARGET}}),
    "a name with a slash": ("#/$defs/a~1b", {"$defs": {"a/b": TARGET}}),
    "a name with a tilde": ("#/$defs/a~0b", {"$defs": {"a~b": TARGET}}),
    "a name with a space": ("#/$defs/a%20b", {"$defs": {"a b": TARGET}}),
    "a slash in per cent": ("#/%24defs/a%2Fb", {"$defs": {"a": {"b": TARGET}}}),
    "an anchor": ("#b64", {"$defs": {"a": {**TARGET, "$anchor": "b64"}}}),
    "an anchor of draft 7": ("#b64", {"definitions": {"a": {**TARGET, "$id": "#b64"}}}),
    "an item of a list": ("#/$defs/a/anyOf/1", {"$defs": {"a": {"anyOf": [{}, TARGET]}}}),
    "a path of nine parts": (
        "#/$defs/a/items/items/items/items/items/items/items",
        {
            "$defs": {
                "a": {
                    "items": {
                        "items": {"items": {"items": {"items": {"items": {"items": TARGET}}}}}
                    }
                }
            }
        },
    ),
}
NOWHERE: dict[str, str] = {
    "outside": "https://example.com/schema",
    "no such name": "#/$defs/b",
    "no such anchor": "#b",
    "no such item": "#/required/7",
}


def schema_of(reference: str, definitions: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"data": {"$ref": reference}},
        "required": ["data"],
        **definitions,
    }


def card_of(schema: dict[str, Any]) -> Card:
    return Card("s", "send", "Sends.", encode(schema), "sha256:" + "0" * 64, 0)


@pytest.mark.parametrize(("reference", "definitions"), REFERENCES.values(), ids=REFERENCES)
def test_a_reference_is_followed(
    reference: str, definitions: dict[str, Any], tmp_path: Path
) -> None:
    schema = schema_of(reference, definitions)
    assert signature("send", card_of(schema)) == "send(data)"
    found = handles_in({"data": "artifact:sha256:" + "a" * 64}, schema)
    assert [handle.want for handle in found] == ["base64"]
    arguments = wrapper_of(schema, tmp_path).SendArguments
    assert arguments.model_validate({"data": "x"})
    with pytest.raises(ValidationError):
        arguments.model_validate({"data": 5})


@pytest.mark.parametrize("reference", NOWHERE.values(), ids=NOWHERE)
def test_a_reference_to_nothing_says_nothing_of_the_value(reference: str, tmp_path: Path) -> None:
    schema = schema_of(reference, {"$defs": {"a": TARGET}})
    assert signature("send", card_of(schema)) == "send(data: any)"
    assert handles_in({"data": "artifact:sha256:" + "a" * 64}, schema) == ()
    arguments = wrapper_of(schema, tmp_path).SendArguments
    assert arguments.model_validate({"data": 5})


def wrapper_of(schema: dict[str, Any], folder: Path) -> Any:
    path = folder / "wrapper.py"
    path.write_text(vendored_source("s", [card_of(schema)]), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("wrapper", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["wrapper"] = module  # pydantic looks names up there
    try:
        spec.loader.exec_module(module)
        module.SendArguments.model_rebuild()
    finally:
        del sys.modules["wrapper"]
    return module
