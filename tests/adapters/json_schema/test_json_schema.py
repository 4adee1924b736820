"""Values against schemas: what each keyword means, and that no schema and no value makes it
expensive.

The cases are written after the semantics of the official JSON-Schema-Test-Suite; `jsonschema` is
asked for a second opinion on generated ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
from bundle_router.adapters.json_schema import (
    JsonSchema,
    SchemaChecker,
    Unchecked,
    unchecked_reason,
    validators,
)
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admit import admit
from bundle_router.core.values.schema_tree import schema_at
from hypothesis import given
from hypothesis import strategies as st

D4, D7, D2019 = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
)


def fits(schema: Any, value: Any) -> bool:
    return not JsonSchema(schema).problems(value)


TABLE: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    # what, schema, what fits, what does not
    (
        "unique numbers",
        {"uniqueItems": True},
        [[1, 2], [1, True], [0, False], [1, "1"]],
        [[1, 1.0], [0, -0.0]],
    ),
    (
        "unique booleans",
        {"uniqueItems": True},
        [[True, False], [[1], [True]], [{"a": 1}, {"a": True}]],
        [[True, True]],
    ),
    (
        "unique objects",
        {"uniqueItems": True},
        [[{"a": 1}, {"b": 1}], [{}, []]],
        [[{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]],
    ),
    (
        "unique lists",
        {"uniqueItems": True},
        [[[1], [2]], [["a", "b"], ["b", "a"]], [[], {}]],
        [[[{"a": 1}], [{"a": 1.0}]]],
    ),
    (
        "unique texts",
        {"uniqueItems": True},
        [["a", '"a"'], ["[1]", [1]], ["null", None]],
        [["a", "a"], [None, None]],
    ),
    ("not unique", {"uniqueItems": False}, [[1, 1]], []),
    (
        "enum",
        {"enum": [1, "x", None, [True], {"a": 1}]},
        [1.0, "x", None, [True], {"a": 1.0}],
        [True, "1", [1], {}, 2],
    ),
    ("const", {"const": {"a": [False]}}, [{"a": [False]}], [{"a": [0]}, {"a": []}]),
    ("const 0", {"const": 0}, [0, 0.0], [False, None, ""]),
    ("large numbers", {"const": 9007199254740993}, [9007199254740993], [9007199254740992.0]),
    ("type", {"type": ["integer", "null"]}, [1, 1.0, None], [1.5, True, "1", [], {}]),
    ("number", {"type": "number"}, [1, 1.5], [True, "1", None]),
    ("pattern", {"pattern": "^a+$"}, ["aaa", 5, None], ["b", "", "aaa\n"]),
    ("pattern anywhere", {"pattern": "a+"}, ["xxaayy"], ["xyz"]),
    ("pattern nobody can run", {"pattern": "(?=a)b"}, ["anything"], []),
    ("the rest beside it", {"pattern": "(?=a)b", "maxLength": 3}, ["any"], ["anything"]),
    (
        "pattern properties",
        {"patternProperties": {"f.*o": {"type": "integer"}}},
        [{"foo": 1}, {"x": "y"}],
        [{"fo": "a"}],
    ),
    (
        "additional properties",
        {"properties": {"foo": {}}, "patternProperties": {"^v": {}}, "additionalProperties": False},
        [{"foo": 1}, {"vroom": 2}, "text"],
        [{"foo": 1, "quux": 2}],
    ),
    (
        "additional by schema",
        {"additionalProperties": {"type": "boolean"}},
        [{"a": True}],
        [{"a": 1}],
    ),
    ("property names", {"propertyNames": {"maxLength": 3}}, [{"abc": 1}, {}], [{"abcd": 1}]),
    ("required", {"required": ["a"]}, [{"a": None}, []], [{}]),
    (
        "required, with a default",
        {
            "properties": {"a": {"default": 1}, "b": {}, "c": {"$ref": "#/$defs/c"}},
            "required": ["a", "b", "c"],
            "$defs": {"c": {"default": None}},
        },
        [{"b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}],
        [{"a": 1, "c": 1}, {"a": 1, "b": 1}],
    ),
    (
        "required inside, with a default",
        {"items": {"properties": {"a": {"default": 1, "type": "integer"}}, "required": ["a"]}},
        [[{}]],
        [[{"a": "x"}]],
    ),
    (
        "required, with a default elsewhere",
        {"required": ["a"], "default": {"a": 1}, "examples": [{"default": 1}]},
        [{"a": 1}],
        [{}],
    ),
    (
        "annotations",
        {"format": "date", "contentEncoding": "base64", "contentMediaType": "application/json"},
        ["%"],
        [],
    ),
    (
        "annotations of draft 7",
        {
            "$schema": D7,
            "format": "date",
            "contentEncoding": "base64",
            "contentMediaType": "application/json",
        },
        ["%"],
        [],
    ),
    ("an address of its own", {"$id": "https://example.com/x", "type": "string"}, ["a"], [1]),
    ("a dialect of its own", {"$schema": "https://example.com/x", "type": "string"}, ["a"], [1]),
    ("large numbers are numbers", {"type": "integer", "minimum": 0}, [10**70], [-(10**70)]),
    ("dependent required", {"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {}], [{"a": 1}]),
    (
        "dependent schemas",
        {"dependentSchemas": {"a": {"required": ["b"]}}},
        [{"a": 1, "b": 2}, {"b": 1}],
        [{"a": 1}],
    ),
    (
        "object sizes",
        {"minProperties": 1, "maxProperties": 2},
        [{"a": 1}],
        [{}, {"a": 1, "b": 2, "c": 3}],
    ),
    ("array sizes", {"minItems": 1, "maxItems": 2}, [[1], "x"], [[], [1, 2, 3]]),
    ("text sizes", {"minLength": 1, "maxLength": 2}, ["a", "\U0001f4a9\U0001f4a9", 7], ["", "abc"]),
    ("limits", {"minimum": 1, "exclusiveMaximum": 3}, [1, 2.9, "x"], [0.9, 3]),
    ("limits of draft 4", {"$schema": D4, "minimum": 1, "exclusiveMinimum": True}, [1.1], [1]),
    ("multiples", {"multipleOf": 0.0001}, [0.0075, 1, 0], [0.00751]),
    ("multiples of large", {"multipleOf": 0.5}, [1e308], []),
    (
        "prefix",
        {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
        [[1, "a"], [1], []],
        [["a"], [1, 2]],
    ),
    ("no more", {"prefixItems": [{}, {}], "items": False}, [[1, 2], []], [[1, 2, 3]]),
    (
        "tuples of draft 7",
        {"$schema": D7, "items": [{}], "additionalItems": False},
        [[1]],
        [[1, 2]],
    ),
    ("contains", {"contains": {"minimum": 5}}, [[3, 5], {}], [[], [1, 2]]),
    (
        "contains some",
        {"contains": {"const": 1}, "minContains": 2, "maxContains": 3},
        [[1, 1]],
        [[1], [1, 1, 1, 1]],
    ),
    ("contains none", {"contains": {"const": 1}, "minContains": 0}, [[], [2]], []),
    (
        "all, any, one",
        {"allOf": [{"minimum": 1}], "anyOf": [{"maximum": 5}, {"const": 9}]},
        [3, 9],
        [0, 7],
    ),
    ("exactly one", {"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5], [3, 1.5]),
    ("not", {"not": {"type": "integer"}}, ["a"], [1]),
    (
        "if",
        {"if": {"const": 1}, "then": {"type": "string"}, "else": {"minimum": 3}},
        [3, "x"],
        [1, 2],
    ),
    (
        "references",
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"$anchor": "x", "type": "integer"}}},
        [1],
        ["a"],
    ),
    (
        "anchors",
        {"properties": {"p": {"$ref": "#x"}}, "$defs": {"a": {"$anchor": "x", "type": "integer"}}},
        [{"p": 1}],
        [{"p": ""}],
    ),
    (
        "siblings of a reference",
        {"$ref": "#/$defs/a", "maximum": 2, "$defs": {"a": {"minimum": 1}}},
        [1],
        [0, 3],
    ),
    (
        "siblings of a reference in draft 7",
        {
            "$schema": D7,
            "properties": {"p": {"$ref": "#/definitions/a", "maximum": 2}},
            "definitions": {"a": {"minimum": 1}},
        },
        [{"p": 3}],
        [{"p": 0}],
    ),
    (
        "dependencies of draft 7",
        {"$schema": D7, "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        [{"a": 1, "b": 1}],
        [{"a": 1}, {"c": 1}],
    ),
    ("booleans", {"properties": {"a": True, "b": False}}, [{"a": 1}, {}], [{"b": 1}]),
    # unevaluated*
    ("unevaluated, nothing else", {"unevaluatedProperties": False}, [{}, []], [{"a": 1}]),
    (
        "unevaluated by schema",
        {"unevaluatedProperties": {"maxLength": 2}},
        [{"a": "ab"}],
        [{"a": "abc"}],
    ),
    (
        "unevaluated beside properties and patterns",
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}, "unevaluatedProperties": False},
        [{"a": 1, "xy": 2}],
        [{"b": 1}],
    ),
    (
        "unevaluated after additional",
        {"additionalProperties": True, "unevaluatedProperties": False},
        [{"a": 1}],
        [],
    ),
    (
        "unevaluated under allOf",
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        [{"a": 1}],
        [{"b": 1}],
    ),
    (
        "unevaluated under anyOf: every branch that fits counts",
        {
            "anyOf": [
                {"properties": {"a": {"const": 1}}, "required": ["a"]},
                {"properties": {"b": {}}, "required": ["b"]},
            ],
            "unevaluatedProperties": False,
        },
        [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}],
        [{"a": 2, "b": 2}],
    ),
    (
        "unevaluated under oneOf and not",
        {
            "oneOf": [{"properties": {"a": {}}, "required": ["a"]}],
            "not": {"not": {"properties": {"b": {}}}},
            "unevaluatedProperties": False,
        },
        [{"a": 1}],
        [{"a": 1, "b": 2}],
    ),
    (
        "unevaluated under if",
        {
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": {"properties": {"b": {}}},
            "else": {"properties": {"c": {}}},
            "unevaluatedProperties": False,
        },
        [{"a": 1, "b": 1}, {"c": 1}],
        [{"a": 1, "c": 1}, {"b": 1}],
    ),
    (
        "unevaluated through a reference",
        {
            "$ref": "#/$defs/x",
            "$defs": {"x": {"properties": {"a": {}}}},
            "unevaluatedProperties": False,
        },
        [{"a": 1}],
        [{"b": 1}],
    ),
    (
        "unevaluated under dependentSchemas",
        {
            "properties": {"a": {}},
            "dependentSchemas": {"a": {"properties": {"b": {}}}},
            "unevaluatedProperties": False,
        },
        [{"a": 1, "b": 1}, {}],
        [{"b": 1}],
    ),
    (
        "cousins see nothing",
        {"allOf": [{"properties": {"a": {}}}, {"unevaluatedProperties": False}]},
        [{}],
        [{"a": 1}],
    ),
    (
        "an inner unevaluated counts outside",
        {"allOf": [{"unevaluatedProperties": True}], "unevaluatedProperties": False},
        [{"a": 1}],
        [],
    ),
    (
        "unevaluated inside another value",
        {"properties": {"p": {"unevaluatedProperties": False}}},
        [{"p": {}}],
        [{"p": {"a": 1}}],
    ),
    ("unevaluated items", {"prefixItems": [{}], "unevaluatedItems": False}, [[1], []], [[1, 2]]),
    ("unevaluated items after items", {"items": {}, "unevaluatedItems": False}, [[1, 2]], []),
    (
        "unevaluated items and contains",
        {"contains": {"const": 1}, "unevaluatedItems": False},
        [[1, 1]],
        [[1, 2]],
    ),
    (
        "unevaluated items under anyOf",
        {
            "anyOf": [{"prefixItems": [{}, {"const": 2}]}, {"prefixItems": [{}]}],
            "unevaluatedItems": False,
        },
        [[1], [1, 2]],
        [[1, 3]],
    ),
]


@pytest.mark.parametrize(
    ("schema", "fine", "wrong"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_keyword_takes_what_it_should_and_nothing_else(
    schema: Any, fine: list[Any], wrong: list[Any]
) -> None:
    assert [value for value in fine if not fits(schema, value)] == []
    assert [value for value in wrong if fits(schema, value)] == []


def test_what_is_wrong_is_said_in_one_short_sentence_each() -> None:
    schema = {
        "properties": {"a": {"items": {"type": "string"}}, "b": {"maxLength": 3}},
        "required": ["c"],
    }
    problems = JsonSchema(schema).problems({"a": ["x", 5, {"k": "v" * 500}], "b": "y" * 10_000})
    assert sorted(problems) == [
        "a.1: 5 is not of type 'string'",
        "a.2: an object of 1 is not of type 'string'",
        "arguments: 'c' is a required property",
        f"b: {'y' * 60!r}… is too long",
    ]
    many = JsonSchema({"items": {"type": "null"}}).problems([1] * 1_000)
    assert len(many) == 20


SENTENCES: list[tuple[dict[str, Any], Any, str]] = [
    ({"type": ["null", "string"]}, 5, "arguments: 5 is not of type 'string', 'null'"),
    ({"enum": ["a", 1]}, "b", "arguments: 'b' is not one of ['a', 1]"),
    ({"const": [1]}, "b", "arguments: a list of 1 was expected"),
    (
        {"properties": {"a": {}}, "additionalProperties": False},
        {"b": 1},
        "arguments: Additional properties are not allowed ('b' was unexpected)",
    ),
    (
        {"additionalProperties": False},
        {"b": 1},
        "arguments: Additional properties are not allowed",
    ),
    (
        {"unevaluatedProperties": False},
        {"b": 1, "c": 1},
        "arguments: Unevaluated properties are not allowed ('b', 'c' were unexpected)",
    ),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "ab: 'ab' is too long"),
    ({"properties": {"a": False}}, {"a": 1}, "a: 1 is not allowed here"),
    (
        {"anyOf": [{"const": 1}]},
        2,
        "arguments: 2 is not valid under any of the given schemas",
    ),
    (
        {"oneOf": [{}, {"type": "integer"}]},
        2,
        "arguments: 2 is valid under more than one of the given schemas",
    ),
    (
        {"oneOf": [{"const": 1}]},
        2,
        "arguments: 2 is not valid under any of the given schemas",
    ),
    ({"not": {}}, 2, "arguments: 2 matches a schema that it must not match"),
    ({"minimum": 3}, 2, "arguments: 2 is less than the minimum of 3"),
    ({"maximum": 1}, 2, "arguments: 2 is greater than the maximum of 1"),
    ({"multipleOf": 0.5}, 0.3, "arguments: 0.3 is not a multiple of 0.5"),
    ({"minLength": 3}, "a", "arguments: 'a' is too short"),
    ({"pattern": "^b"}, "a", "arguments: 'a' does not match '^b'"),
    ({"minItems": 3}, [1], "arguments: it has 1 items, at least 3 are expected"),
    ({"minProperties": 3}, {}, "arguments: it has too few properties"),
    (
        {"uniqueItems": True},
        [1, 1],
        "arguments: a list of 2 holds an item more than once: its items must be unique",
    ),
    (
        {"contains": {"const": 1}},
        [2],
        "arguments: a list of 1 does not hold as many of the items it must contain as it should",
    ),
]


@pytest.mark.parametrize(("schema", "value", "sentence"), SENTENCES)
def test_each_error_has_a_sentence(schema: Any, value: Any, sentence: str) -> None:
    assert JsonSchema(schema).problems(value) == [sentence]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 7},
        {"type": "any"},
        {"properties": []},
        {"allOf": {}},
        {"required": "a"},
        {"required": [[]]},
        {"dependentRequired": {"a": [[]]}},
        {"$ref": "http://localhost/x"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"multipleOf": 0},
        {"exclusiveMinimum": "1"},
        {"items": 5},
        {"pattern": 5},
        {"patternProperties": {"x": 7}},
    ],
)
def test_a_schema_that_is_none_is_not_judged_by(schema: Any) -> None:
    with pytest.raises(Unchecked):
        JsonSchema(schema)
    assert unchecked_reason(schema)
    assert SchemaChecker().problems("s.t", schema, {"a": 1}) == ()


LEFT = {
    "contains itself": {
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"items": {"$ref": "#/$defs/n"}}},
    },
    "dynamic reference": {"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n"}}},
    "can't be compiled": {"minimum": 1, "exclusiveMinimum": True},
    "another dialect": {"properties": {"a": {"pattern": "(?=a)b"}}},
}


@pytest.mark.parametrize(("reason", "schema"), LEFT.items())
def test_what_is_left_to_the_server_has_a_reason(reason: str, schema: dict[str, Any]) -> None:
    assert reason in unchecked_reason(schema)
    assert unchecked_reason({"type": "object"}) == ""


LEAVES = st.sampled_from([None, True, False, 0, 1, 1.0, 2, 2.5, "", "a", "ab"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    names = st.lists(st.sampled_from("abc"), max_size=2, unique=True)
    count = st.integers(0, 3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(TYPES),
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "const": VALUES,
            "properties": named,
            "patternProperties": st.dictionaries(
                st.sampled_from(["^a", "b$", "."]), inner, max_size=2
            ),
            "additionalProperties": inner,
            "propertyNames": inner,
            "required": names,
            "dependentRequired": st.dictionaries(st.sampled_from("abc"), names, max_size=2),
            "dependentSchemas": named,
            "prefixItems": several,
            "items": inner,
            "contains": inner,
            "minContains": count,
            "maxContains": count,
            "uniqueItems": st.booleans(),
            "minItems": count,
            "maxItems": count,
            "minimum": count,
            "multipleOf": st.sampled_from([1, 0.5, 2]),
            "maxLength": count,
            "pattern": st.sampled_from(["^a", "b$"]),
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
        },
    )


@given(schema=st.recursive(st.booleans(), _schemas, max_leaves=8), value=VALUES)
def test_the_verdict_is_that_of_the_reference_library(schema: Any, value: Any) -> None:
    # A required property with a default counts as given, but these schemas have no defaults.
    root = schema if isinstance(schema, dict) else {"allOf": [schema]}
    assert fits(root, value) == jsonschema.Draft202012Validator(root).is_valid(value)


MIB = 1024 * 1024
NUMBERS = list(range(150_000))
OBJECTS = [{"id": i, "b": str(i)} for i in range(45_000)]
NAMES = {f"name{i}": i for i in range(65_000)}
LETTERS = f"{random.Random(1).getrandbits(MIB):0{MIB}b}".translate(str.maketrans("01", "ab"))
HOSTILE: dict[str, Callable[[], tuple[Any, Any]]] = {
    "unique objects": lambda: ({"uniqueItems": True}, OBJECTS),
    "numbers of one hash": lambda: (
        {"uniqueItems": True},
        [i * (2**61 - 1) for i in range(50_000)],
    ),
    "unique lists in lists": lambda: (
        {"items": {"uniqueItems": True}, "uniqueItems": True},
        [[[i]] * 2 for i in range(90_000)],
    ),
    "a pattern that explodes": lambda: (
        {"patternProperties": {"^(([a-z])+.)+[A-Z]([a-z])+$": {}}, "additionalProperties": False},
        {"a" * 5_000: 1},
    ),
    "the same, unevaluated": lambda: (
        {"patternProperties": {"^([a-z]+)*$": {}}, "unevaluatedProperties": False},
        {"a" * MIB + "!": 1},
    ),
    "a pattern of many states": lambda: ({"items": {"pattern": "[ab]*a[ab]{900}$"}}, [LETTERS]),
    "the same on many texts": lambda: (
        {"items": {"pattern": "^[ab]*a[ab]{400}$"}},
        [LETTERS[at : at + 2_000] for at in range(0, MIB, 2_000)],
    ),
    "many large patterns": lambda: (
        {"patternProperties": {f"\\pL{{1,{i % 20 + 5}}}{i}": {} for i in range(3_000)}},
        NAMES,
    ),
    "many alternatives": lambda: (
        {"items": {"anyOf": [{"const": i} for i in range(9_000)]}},
        NUMBERS,
    ),
    "many values that are large": lambda: (
        {"anyOf": [{"enum": [[i]]} for i in range(3_000)]},
        NUMBERS,
    ),
    "types that do not fit": lambda: ({"anyOf": [{"type": "string"}] * 9_000}, NUMBERS),
    "names that are missing": lambda: (
        {"items": {"not": {"required": [f"n{i}" for i in range(9_000)]}}},
        [{}] * 200_000,
    ),
    "names that depend": lambda: (
        {"items": {"dependentRequired": {f"n{i}": [] for i in range(2_000)}}},
        [{"a": 1}] * 90_000,
    ),
    "unevaluated through many": lambda: (
        {
            "allOf": [{"properties": {"a": {}}, "patternProperties": {"n": {}}}] * 50,
            "unevaluatedProperties": False,
        },
        NAMES,
    ),
    "unevaluated items": lambda: (
        {"prefixItems": [{}], "contains": {"type": "string"}, "unevaluatedItems": False},
        ["a"] * 250_000,
    ),
    "multiples": lambda: ({"items": {"multipleOf": 0.1}}, [0.3] * 250_000),
    "contains": lambda: ({"contains": {"not": {}}, "minContains": 0}, NUMBERS),
    "property names": lambda: (
        {"propertyNames": {"anyOf": [{"pattern": "x$"}, {"pattern": "^n"}]}},
        NAMES,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_mebibyte_of_arguments_costs_a_bounded_amount_whatever_the_schema(name: str) -> None:
    schema, value = HOSTILE[name]()
    begun = time.thread_time()
    with contextlib.suppress(Unchecked):
        JsonSchema(schema).problems(value)
    # It takes 0.1 s at most on a machine of today; without bounds the library takes 25 s for some.
    assert time.thread_time() - begun < 4


def _nested(depth: int, keyword: str) -> Any:
    schema: Any = {"properties": {"a": {}}}
    for _ in range(depth):
        schema = {keyword: [schema], "unevaluatedProperties": {"type": "null"}}
    return schema


EXPLODING: dict[str, Callable[[], tuple[Any, Any]]] = {
    # Each takes the library 0.5 s to minutes.
    "unevaluated in unevaluated": lambda: (_nested(20, "allOf"), {"a": None, "b": None}),
    "unevaluated in unevaluated, by choice": lambda: (_nested(20, "anyOf"), {"a": None, "b": None}),
    "integers of one hash": lambda: (
        {"uniqueItems": True},
        [2**64 - index for index in range(9_000)],
    ),
    "few items, often": lambda: (
        {"items": {"uniqueItems": True}},
        [[index + 0.5 for index in range(15)]] * 6_000,
    ),
    "numbers of 4,000 digits, unique": lambda: (
        {"uniqueItems": True},
        [10**4_000 + index for index in range(400)],
    ),
    "numbers of 4,000 digits, divided": lambda: (
        {"items": {"multipleOf": 7}},
        [7 * 10**4_000] * 2_000,
    ),
    "numbers of 4,000 digits, limited": lambda: (
        {"items": {"minimum": 7.5}},
        [10**4_000] * 10_000,
    ),
    "tiny divisors": lambda: ({"items": {"multipleOf": 5e-324}}, [1.7e307] * 50_000),
    "options that are numbers": lambda: (
        {"items": {"enum": [index + 0.5 for index in range(3_000)]}},
        [2_999.5] * 3_000,
    ),
    "options that are objects": lambda: (
        {"items": {"enum": [{"a": index} for index in range(3_000)]}},
        [{"a": 2_999}] * 3_000,
    ),
    "a pattern of many states": lambda: ({"pattern": "a[ab]{400}c"}, LETTERS),
    "many Unicode classes": lambda: (
        {"patternProperties": {f"\\p{{L}}[^x]{{50}}{index}": {} for index in range(3_000)}},
        {"a": 1},
    ),
    "conditions": lambda: (
        {"items": {"allOf": [{"if": {"const": 1}, "else": {"oneOf": [{"const": 1.5}]}}] * 900}},
        [1.5] * 1_000,
    ),
    "references written out": lambda: (
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 10}
                for level in range(6)
            }
            | {"d6": {"not": {"const": 1.5}}},
        },
        2.5,
    ),
}


def _matched(pattern: str) -> Callable[[], tuple[Any, Any]]:
    return lambda: ({"pattern": pattern}, LETTERS[:60_000])


EXPLODING |= {
    f"a pattern of many states, {what}": _matched(pattern)
    for what, pattern in (
        ("at least as many", "a[ab]{400,}c"),
        ("with spaces in its count", "a[ab]{1 , 400}c"),
        ("counted twice", "a[ab]{20}{20}c"),
        ("counted twice, lazily", "a[ab]{20}?{20}c"),
        ("in a group", "a(?:b|[ab]{20}){20}c"),
        ("in verbose notation", "(?x)a([ab]{20}) {20}c"),
        ("in verbose notation for a part", "(?ix:a([ab]{20}) {20}c)"),
    )
}


@pytest.mark.parametrize("name", EXPLODING)
def test_what_the_library_could_not_end_is_not_begun(name: str) -> None:
    schema, value = EXPLODING[name]()
    with pytest.raises(Unchecked):
        JsonSchema(schema).problems(value)
    assert SchemaChecker().problems("s.t", schema, value) == ()


def test_a_mebibyte_of_plain_arguments_is_checked() -> None:
    row = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "text": {"type": "string"},
            "kind": {"enum": ["a", "b"]},
        },
        "required": ["id", "text"],
        "additionalProperties": False,
    }
    schema = JsonSchema({"properties": {"rows": {"items": row}}})
    rows: list[Any] = [{"id": i, "text": "x" * 100, "kind": "a"} for i in range(8_000)]
    assert schema.problems({"rows": rows}) == []
    assert schema.problems({"rows": [*rows, {"id": "x", "text": ""}]}) == [
        "arguments: they do not fit the schema, and are too large to say where"
    ]
    text = JsonSchema({"properties": {"text": {"type": "string"}}, "required": ["path"]})
    assert text.problems({"text": "x" * MIB}) == ["arguments: 'path' is a required property"]


def _nested_list(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _endless_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _doubling_list() -> Any:
    value: list[Any] = []
    for _ in range(100):
        value = [value, value]
    return value


NULL = {"type": "null"}
AMBIGUOUS: dict[str, tuple[str, dict[str, Any]]] = {
    # A reference, which leads to `NULL` by one reading, and to a schema for all values by another.
    "two anchors of one name": (
        "#x",
        {"$ref": "#x", "$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x", **NULL}}},
    ),
    "two anchors of one name, the other way round": (
        "#x",
        {"$ref": "#x", "$defs": {"b": {"$anchor": "x", **NULL}, "a": {"$anchor": "x"}}},
    ),
    "two anchors of one name in draft 7": (
        "#x",
        {
            "$schema": D7,
            "allOf": [{"$ref": "#x"}],
            "definitions": {"a": {"$id": "#x"}, "b": {"$id": "#x", **NULL}},
        },
    ),
    "an address of its own": (
        "#/$defs/e",
        {
            "allOf": [{"$id": "http://x/", "$ref": "#/$defs/e", "$defs": {"e": NULL}}],
            "$defs": {"e": {}},
        },
    ),
    "an address of its own in draft 4": (
        "#/definitions/e",
        {
            "$schema": D4,
            "allOf": [
                {
                    "id": "http://x/",
                    "allOf": [{"$ref": "#/definitions/e"}],
                    "definitions": {"e": NULL},
                }
            ],
            "definitions": {"e": {}},
        },
    ),
    "a slash in per cent": (
        "#/$defs/a%2Fb",
        {"$ref": "#/$defs/a%2Fb", "$defs": {"a/b": {}, "a": {"b": NULL}}},
    ),
    "a tilde twice": (
        "#/$defs/a~01b",
        {"$ref": "#/$defs/a~01b", "$defs": {"a~1b": {}, "a/b": NULL}},
    ),
    "an index with a zero": (
        "#/$defs/e/anyOf/01",
        {"$ref": "#/$defs/e/anyOf/01", "$defs": {"e": {"anyOf": [NULL, {}]}}},
    ),
}


@pytest.mark.parametrize(("reference", "schema"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_the_library_follows_no_reference_elsewhere_than_its_work_was_measured(
    reference: str, schema: dict[str, Any]
) -> None:
    measured = schema_at(schema, reference)
    try:
        fitting = JsonSchema(schema).problems(5) == []
    except Unchecked:
        return
    assert fitting is ("type" not in measured)


def test_a_large_schema_is_left_to_the_server_though_most_of_it_is_never_applied() -> None:
    unused = {f"d{index}": {"type": "string"} for index in range(9_000)}
    assert unchecked_reason({"type": "object", "$defs": unused}) == "its schema is too large"


ODD_VALUES: dict[str, Any] = {
    "a lone surrogate": "a\ud800",
    "a name with a lone surrogate": {"a\ud800": 1},
    "no number": math.nan,
    "infinity": [-math.inf],
    "a name that is a number": {1: 2},
    "a name that is a pair": {(1, 2): 2},
    "bytes": b"a",
    "a set": {1},
    "an object of Python": object(),
    "nested too deep": _nested_list(100_000),
    "nested in itself": _endless_list(),
    "nested in itself twice": _doubling_list(),
}


@pytest.mark.parametrize("name", ODD_VALUES)
def test_a_value_that_is_no_json_is_left_to_the_server(name: str) -> None:
    value = ODD_VALUES[name]
    schema = {"type": ["null"], "pattern": "a", "properties": {"b": {}}}
    with pytest.raises(Unchecked):
        JsonSchema(schema).problems(value)
    assert SchemaChecker().problems("s.t", schema, value) == ()


def test_a_schema_that_is_nested_too_deep_is_left_to_the_server() -> None:
    schema: dict[str, Any] = {}
    for _ in range(20_000):
        schema = {"items": schema}
    assert SchemaChecker().problems("s.t", schema, [1]) == ()


def test_a_hostile_schema_causes_no_request_and_reads_no_file(tmp_path: Path) -> None:
    asyncio.run(_count_requests(tmp_path))


async def _count_requests(folder: Path) -> None:
    requests = 0

    async def note(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    http = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/schema"
    (folder / "schema.json").write_text('{"type": "null"}', encoding="utf-8")
    file = (folder / "schema.json").as_uri()
    for address in (http, file):
        hostile: list[dict[str, Any]] = [
            {"$ref": address},
            {"$ref": f"{address}#/a"},
            {"$schema": address},
            {"$id": address, "$ref": "#/a"},
            {"$id": address, "$ref": "other"},
            {"$dynamicRef": address},
            {"$defs": {"a": {"$id": address, "$ref": "other"}}, "$ref": "#/$defs/a"},
            {"items": {"$id": address, "items": {"$ref": "other"}}},
        ]
        for schema in hostile:
            await asyncio.to_thread(SchemaChecker().problems, "s.t", schema, "text")
            with contextlib.suppress(ValueError):  # the library by itself is refused too
                fitting = await asyncio.to_thread(validators.compiled, schema, 2020)
                assert fitting.is_valid("text"), "the file's schema refuses texts"
    server.close()
    await server.wait_closed()
    assert requests == 0


BOMBS = [
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "^(a|a?)+$",
    "^([a-zA-Z0-9]|[a-z])+$",
    "^(\\w|\\d)*!$",
    "^(.|[a-z])*x$",
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_exploding_pattern_of_a_definition_is_refused_or_harmless(bomb: str) -> None:
    schema = {"type": "object", "patternProperties": {bomb: {}}, "additionalProperties": False}
    admitted = admit(Server("s", "stdio"), [{"name": "t", "inputSchema": schema}])
    if admitted.refused:
        assert [row.code for row in admitted.refused] == ["bad_pattern"]
    begun = time.thread_time()
    assert JsonSchema(schema).problems({"a" * 20_000 + "!?": 1})
    assert time.thread_time() - begun < 10, "it would take years"
