"""Arguments as models write them, and what a schema shows was meant."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router.core.values.meant_values import as_meant

TEXT = {"type": "string"}
LIST = {"type": "array", "items": TEXT}
OBJECT = {"type": "object", "properties": {"a": TEXT, "n": {"type": "integer"}}}


def schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    ("described", "written", "meant"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " -5 ", -5),
        ({"type": "number"}, "5.25", 5.25),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        (LIST, '["a"]', ["a"]),
        (OBJECT, '{"a": "b"}', {"a": "b"}),
        (OBJECT, '{"n": "5"}', {"n": 5}),
        (OBJECT, {"n": "5", "more": None}, {"n": 5, "more": None}),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2], [1, 2]),
        ({"type": "array", "items": OBJECT}, ['{"n": 1}'], [{"n": 1}]),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"anyOf": [LIST, {"type": "null"}]}, '["a"]', ["a"]),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "true", True),
        ({"$ref": "#/$defs/L"}, '["a"]', ["a"]),
        ({"anyOf": [{"$ref": "#/$defs/L"}, {"type": "null"}]}, '["a"]', ["a"]),
        ({"enum": [1, 2]}, "2", 2),
        ({"type": "integer"}, 5.0, 5),
        ({"type": ["integer", "null"]}, -5.0, -5),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "array", "items": {"type": "integer"}}, [1.0, 2], [1, 2]),
        (OBJECT, {"n": 1e3}, {"n": 1000}),
    ],
)
def test_a_value_of_another_type_is_read_as_the_schema_shows(
    described: dict[str, Any], written: Any, meant: Any
) -> None:
    whole = {**schema(v=described), "$defs": {"L": LIST}}
    read = as_meant({"v": written}, whole)
    assert read == {"v": meant}
    assert type(read["v"]) is type(meant)


@pytest.mark.parametrize(
    ("described", "written"),
    [
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, "5.5"),
        ({"type": "integer"}, "0x10"),
        ({"type": "integer"}, ""),
        ({"type": "boolean"}, "yes"),
        ({"type": "boolean"}, 1),
        ({"type": "number"}, "NaN"),
        ({"type": "number"}, 5.0),
        ({"type": ["integer", "number"]}, 5.0),
        ({"type": "integer"}, 5.5),
        ({}, 5.0),
        (LIST, "a"),
        (LIST, "a, b"),
        (LIST, '{"a": 1}'),
        (LIST, '["a"'),
        (OBJECT, "['a']"),
        (TEXT, "5"),
        (TEXT, '["a"]'),
        (TEXT, True),
        (TEXT, 5),
        (TEXT, 5.5),
        (TEXT, ["a"]),
        ({"anyOf": [TEXT, LIST]}, '["a"]'),
        ({"type": ["string", "integer"]}, "5"),
        ({}, "5"),
        (True, "5"),
        ({"$ref": "#/$defs/nowhere"}, "5"),
        ({"enum": ["1", "2"]}, "3"),
    ],
)
def test_what_is_permitted_or_not_certain_stays(described: Any, written: Any) -> None:
    sent = {"v": written}
    assert as_meant(sent, schema(v=described)) is sent


@pytest.mark.parametrize(
    ("described", "is_left_out"),
    [
        (TEXT, True),
        (TEXT, 5),
        ({"enum": ["a", "b"]}, True),
        ({"anyOf": [TEXT, LIST]}, True),
        ({"type": ["string", "null"]}, False),
        ({"anyOf": [TEXT, {"type": "null"}]}, False),
        ({"type": "string", "nullable": True}, False),
        ({"enum": ["a", None]}, False),
        ({}, False),
    ],
)
def test_null_is_left_out_where_it_is_not_a_value(described: Any, is_left_out: bool) -> None:
    sent = {"q": "x", "v": None}
    assert as_meant(sent, schema("q", q=TEXT, v=described)) == ({"q": "x"} if is_left_out else sent)
    inside = {"outer": sent}
    assert as_meant(inside, schema(outer=schema(q=TEXT, v=described))) == (
        {"outer": {"q": "x"}} if is_left_out else inside
    )


def test_null_for_what_is_required_stays_unless_it_has_a_default() -> None:
    sent = {"v": None}
    assert as_meant(sent, schema("v", v=TEXT)) is sent
    assert as_meant(sent, schema("v", v={"type": "string", "default": "css"})) == {}


def test_of_several_objects_none_is_chosen() -> None:
    one, other = schema(n={"type": "integer"}), schema(m={"type": "integer"})
    sent = {"v": {"n": "5"}}
    assert as_meant(sent, schema(v={"anyOf": [one, other]})) is sent
    assert as_meant(sent, schema(v={"anyOf": [one, {"type": "null"}]})) == {"v": {"n": 5}}


def test_a_schema_that_contains_itself_is_followed_as_far_as_the_value_goes() -> None:
    node = schema(n={"type": "integer"}, inner={"$ref": "#/$defs/Node"})
    whole = {**node, "$defs": {"Node": node}}
    assert as_meant({"inner": {"inner": {"n": "5"}}}, whole) == {"inner": {"inner": {"n": 5}}}
    circle = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert as_meant({"v": "5"}, circle) == {"v": "5"}
