"""What a provider refuses in a definition is rewritten, and the model's arguments are mapped back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bundle_router.adapters.json_schema import unchecked_reason
from bundle_router.core.exposure.provider_schemas import (
    accepted,
    other_names,
    provider_notes,
    with_real_names,
)
from bundle_router.core.values.canonical import encode
from hypothesis import given
from hypothesis import strategies as st

TEXT = {"type": "string"}


def of(more: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def shown(schema: dict[str, Any], form: str) -> tuple[str, dict[str, Any]]:
    return accepted("Does it.", encode(schema), json.loads(encode(schema)), form)


A_OR_B = [{"required": ["a"]}, {"required": ["b"]}]
KINDS = [
    {"properties": {"kind": {"const": "x"}, "x": TEXT}, "required": ["kind", "x"]},
    {"properties": {"kind": {"const": "y"}, "y": TEXT}, "required": ["kind", "y"]},
]
KINDS_MERGED = of(
    {"required": ["kind"]}, kind={"anyOf": [{"const": "x"}, {"const": "y"}]}, x=TEXT, y=TEXT
)
KINDS_SENTENCE = (
    'Exactly one of these holds for the arguments: [{"properties":{"kind":{"const":"x"},"x":{}},'
    '"required":["kind","x"]},{"properties":{"kind":{"const":"y"},"y":{}},"required":["kind","y"]}]'
)
TUPLE = {
    "type": "array",
    "items": [TEXT, TEXT],
    "additionalItems": {"$ref": "#/properties/t/items/0"},
}
TUPLE_NOW = {
    "type": "array",
    "prefixItems": [TEXT, TEXT],
    "items": {"$ref": "#/properties/t/prefixItems/0"},
}

ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    # what: (the schema, OpenAI's, Anthropic's, the sentence that both have)
    "anyOf at the root": (
        of({"anyOf": A_OR_B}, a=TEXT, b=TEXT),
        of({}, a=TEXT, b=TEXT),
        of({}, a=TEXT, b=TEXT),
        'At least one of these holds for the arguments: [{"required":["a"]},{"required":["b"]}]',
    ),
    "oneOf that brings properties": (
        of({"oneOf": KINDS}),
        KINDS_MERGED,
        KINDS_MERGED,
        KINDS_SENTENCE,
    ),
    "oneOf of references": (
        of(
            {
                "oneOf": [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/1"}],
                "$defs": {"0": KINDS[0], "1": KINDS[1]},
            }
        ),
        {**KINDS_MERGED, "$defs": {"0": KINDS[0], "1": KINDS[1]}},
        {**KINDS_MERGED, "$defs": {"0": KINDS[0], "1": KINDS[1]}},
        KINDS_SENTENCE,
    ),
    "allOf": (
        of({"allOf": [of({"required": ["a"]}, a=TEXT), of({}, b=TEXT)]}, c=TEXT),
        of({"required": ["a"]}, c=TEXT, a=TEXT, b=TEXT),
        of({"required": ["a"]}, c=TEXT, a=TEXT, b=TEXT),
        'All of these hold for the arguments: [{"properties":{"a":{}},"required":["a"]},'
        '{"properties":{"b":{}}}]',
    ),
    "keys": (
        of(
            {"required": ["$filter"]}, **{"$filter": TEXT, "filter[name]": TEXT, "StartTime<": TEXT}
        ),
        of(
            {"required": ["$filter"]}, **{"$filter": TEXT, "filter[name]": TEXT, "StartTime<": TEXT}
        ),
        of({"required": ["_filter"]}, _filter=TEXT, filter_name_=TEXT, StartTime_=TEXT),
        "",
    ),
    "keys that would be the same": (
        of({}, **{"a b": TEXT, "a?b": TEXT, "a_b": TEXT}),
        of({}, **{"a b": TEXT, "a?b": TEXT, "a_b": TEXT}),
        of({}, a_b_2=TEXT, a_b_3=TEXT, a_b=TEXT),
        "",
    ),
    "a long key": (
        of({}, **{"k" * 70: TEXT}),
        of({}, **{"k" * 70: TEXT}),
        of({}, **{"k" * 64: TEXT}),
        "",
    ),
    "a reference to a key": (
        of({}, **{"$a": TEXT, "b": {"$ref": "#/properties/$a"}}),
        of({}, **{"$a": TEXT, "b": {"$ref": "#/properties/$a"}}),
        of({}, _a=TEXT, b={"$ref": "#/properties/_a"}),
        "",
    ),
    "keys that depend on each other": (
        of({"dependentRequired": {"$a": ["$b"]}}, **{"$a": TEXT, "$b": TEXT}),
        of({"dependentRequired": {"$a": ["$b"]}}, **{"$a": TEXT, "$b": TEXT}),
        of({"dependentRequired": {"_a": ["_b"]}}, _a=TEXT, _b=TEXT),
        "",
    ),
    "a key inside an object": (
        of({}, o=of({}, **{"$a": TEXT})),
        of({}, o=of({}, **{"$a": TEXT})),
        of({}, o=of({}, **{"$a": TEXT})),
        "",
    ),
    "arrays without items": (
        of({}, t={"type": "array"}, u={"type": ["array", "null"]}, o=of({}, v={"type": "array"})),
        of(
            {},
            t={"type": "array", "items": {}},
            u={"type": ["array", "null"], "items": {}},
            o=of({}, v={"type": "array", "items": {}}),
        ),
        of({}, t={"type": "array"}, u={"type": ["array", "null"]}, o=of({}, v={"type": "array"})),
        "",
    ),
    "a list of items": (of({}, t=TUPLE), of({}, t=TUPLE_NOW), of({}, t=TUPLE_NOW), ""),
    "draft 4's bounds": (
        of({}, n={"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
        of({}, n={"type": "integer", "exclusiveMinimum": 0}),
        of({}, n={"type": "integer", "exclusiveMinimum": 0}),
        "",
    ),
    "draft 4's bounds that are none": (
        of({}, n={"type": "integer", "maximum": 9, "exclusiveMaximum": False}),
        of({}, n={"type": "integer", "maximum": 9}),
        of({}, n={"type": "integer", "maximum": 9}),
        "",
    ),
    "nothing": (
        of({"required": ["a"]}, a=TEXT, t={"type": "array", "items": TEXT}, n={"anyOf": A_OR_B}),
        of({"required": ["a"]}, a=TEXT, t={"type": "array", "items": TEXT}, n={"anyOf": A_OR_B}),
        of({"required": ["a"]}, a=TEXT, t={"type": "array", "items": TEXT}, n={"anyOf": A_OR_B}),
        "",
    ),
}


@pytest.mark.parametrize("what", ROWS)
def test_each_provider_gets_what_it_takes(what: str) -> None:
    schema, openai, anthropic, sentence = ROWS[what]
    description = f"Does it.\n\n{sentence}" if sentence else "Does it."
    assert shown(schema, "openai") == (description, openai)
    assert shown(schema, "anthropic") == (description, anthropic)
    assert shown(schema, "mcp") == ("Does it.", schema)
    assert unchecked_reason(openai) == unchecked_reason(anthropic) == ""


def test_openai_alone_takes_no_not_at_the_root() -> None:
    schema = of({"not": {"required": ["a", "b"]}}, a=TEXT, b=TEXT)
    assert shown(schema, "anthropic") == ("Does it.", schema)
    description, without = shown(schema, "openai")
    assert description.endswith('This must not hold for the arguments: {"required":["a","b"]}')
    assert without == of({}, a=TEXT, b=TEXT)


def test_a_schema_that_refers_to_its_alternatives_stays_and_is_said() -> None:
    schema = of({"anyOf": [of({}, a=TEXT)]}, b={"$ref": "#/anyOf/0"})
    assert shown(schema, "openai") == ("Does it.", schema)
    assert provider_notes(encode(schema), schema) == (
        "openai and anthropic take no anyOf at the root: its schema refers to it, so it stays: such"
        " a request fails",
    )


def test_what_is_rewritten_is_said_to_who_reviews_it() -> None:
    schema = of({"anyOf": A_OR_B}, **{"$a": TEXT, "t": {"type": "array"}})
    assert provider_notes(encode(schema), schema) == (
        "openai and anthropic take no anyOf at the root: they are shown its properties, and a"
        " sentence about it",
        "anthropic takes no such keys, and is shown '$a' as '_a'",
        "its arrays without items and keywords of older drafts are rewritten",
    )
    plain = of({}, a=TEXT)
    assert provider_notes(encode(plain), plain) == ()


def test_arguments_get_the_keys_that_the_tool_has() -> None:
    schema = of({}, **{"$filter": TEXT, "top": TEXT})
    text = encode(schema)
    as_shown = {"_filter": "x", "top": "y", "more": 1}
    assert with_real_names(as_shown, text) == {"$filter": "x", "top": "y", "more": 1}
    real = {"$filter": "x"}
    assert with_real_names(real, text) is real


_KEYS = st.text(alphabet="ab_$[]", min_size=1, max_size=4)


@given(st.lists(_KEYS, min_size=1, max_size=6, unique=True))
def test_no_two_keys_have_one_name_and_each_leads_back(keys: list[str]) -> None:
    schema = of({}, **dict.fromkeys(keys, TEXT))
    text = encode(schema)
    names = other_names(schema, text)
    as_shown = {names.get(key, key): key for key in keys}
    assert len(as_shown) == len(keys)
    assert with_real_names(as_shown, text) == dict(zip(keys, keys, strict=True))
