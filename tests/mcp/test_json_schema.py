"""Values against schemas: what each keyword means, and that no schema and no value makes it
expensive.

The cases are written after the semantics of the official JSON-Schema-Test-Suite; `jsonschema` is
asked for a second opinion on generated ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
from bundle_router.adapters import json_schema
from bundle_router.adapters.json_schema import (
    CHECK_STEPS,
    INLINE_STEPS,
    JsonSchema,
    OutOfSteps,
    SchemaChecker,
    Unchecked,
    verdicts,
)
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission import admit
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import ALL, PART

D4, D7, D2019 = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
)


def fits(schema: Any, value: Any) -> bool:
    return not JsonSchema(schema).problems(value, CHECK_STEPS)


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
        "dynamic references",
        {"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n", "type": "null"}}},
        [None],
        [1],
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
        "unevaluated items of 2019 do not count contains",
        {"$schema": D2019, "contains": {"const": 1}, "unevaluatedItems": False},
        [],
        [[1]],
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
    problems = JsonSchema(schema).problems(
        {"a": ["x", 5, {"k": "v" * 500}], "b": "y" * 10_000}, CHECK_STEPS
    )
    assert problems == [
        "arguments: 'c' is a required property",
        "a.1: 5 is not of type 'string'",
        "a.2: an object of 1 is not of type 'string'",
        f"b: {'y' * 60!r}… is too long",
    ]
    many = JsonSchema({"items": {"type": "null"}}).problems([1] * 1_000, CHECK_STEPS)
    assert len(many) == 20


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
    unchecked = []
    for value in ({"a": 1, "x": 2}, [1], "text", 5):
        try:
            JsonSchema(schema).problems(value, CHECK_STEPS)
        except Unchecked as reason:
            unchecked.append(str(reason))
    assert unchecked


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
    root = schema if isinstance(schema, dict) else {"allOf": [schema]}
    assert fits(root, value) == jsonschema.Draft202012Validator(root).is_valid(value)


_texts = st.sampled_from("abc")
_parts = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES) | st.lists(st.sampled_from([*TYPES, "text"]), max_size=2)},
    optional={
        "enum": st.lists(_texts | VALUES, max_size=3),
        "title": _texts,
        "format": st.just("date"),
    },
)
_objects = st.fixed_dictionaries(
    {"type": st.sampled_from(["object", "object", "array"])},
    optional={
        "properties": st.dictionaries(_texts, _parts | _schemas(st.booleans()), max_size=3),
        "required": st.lists(_texts, max_size=2),
        "additionalProperties": st.booleans(),
        "description": _texts,
        "$schema": st.sampled_from([D4, D7, D2019]),
    },
)


@given(
    schema=_objects
    | st.recursive(st.booleans(), _schemas, max_leaves=8).filter(lambda one: isinstance(one, dict)),
    value=st.dictionaries(_texts, _texts | VALUES, max_size=3) | VALUES,
)
def test_what_is_accepted_at_a_glance_is_accepted_by_the_whole_check(
    schema: Any, value: Any
) -> None:
    ready = JsonSchema(schema)
    if ready.accepts(value):
        with contextlib.suppress(Unchecked):  # that counts as valid
            assert ready.problems(value, CHECK_STEPS) == []


FLAT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "n": {"type": "number"},
    },
    "required": ["text"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        ({"text": "x"}, True),
        ({"text": "x", "kind": "a", "n": 1}, True),
        ({"text": "x", "kind": "c"}, False),
        ({"text": "x", "kind": ["a"]}, False),
        ({"text": "x", "n": True}, False),
        ({"text": "x", "more": 1}, False),
        ({"kind": "a"}, False),
        ({"text": 1}, False),
        ([], False),
    ],
)
def test_plain_arguments_are_accepted_at_a_glance_and_others_are_checked(
    value: Any, accepted: bool
) -> None:
    assert JsonSchema(FLAT).accepts(value) is accepted is fits(FLAT, value)


@pytest.mark.parametrize(
    "more", [{"minProperties": 0}, {"$ref": "#"}, {"required": "text"}, {"properties": []}]
)
def test_a_schema_that_says_more_accepts_nothing_at_a_glance(more: dict[str, Any]) -> None:
    assert not JsonSchema(FLAT | more).accepts({"text": "x"})


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
        JsonSchema(schema).problems(value, CHECK_STEPS if ALL else CHECK_STEPS // (2 * PART))
    # It stops itself at 0.6 s, or a tenth of that, of a machine of today; what it replaced took 15
    # s to hours.
    assert time.thread_time() - begun < 10


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a check take as long as a loaded machine makes it."""
    monkeypatch.setattr(json_schema, "WAIT_S", 120.0)


@pytest.mark.usefixtures("patient")
def test_a_long_check_is_made_in_a_thread_and_the_event_loop_goes_on() -> None:
    class Watched(dict[str, Any]):
        """A schema's part that notes where it is looked at."""

        threads: ClassVar[set[int]] = set()

        def get(self, *arguments: Any) -> Any:
            self.threads.add(threading.get_ident())
            return super().get(*arguments)

    schema = {
        "additionalProperties": False,
        "properties": {"l": Watched(items={"type": "integer"})},
    }

    async def main() -> None:
        checker = SchemaChecker()
        wrong = await checker.problems("s.t", schema, {"l": [1] * 100_000 + ["x"]})
        assert wrong == ["l.100000: 'x' is not of type 'integer'"]
        assert Watched.threads - {threading.get_ident()}, "nothing was looked at off the loop"
        Watched.threads.clear()
        assert await checker.problems("s.t", schema, {"l": [1, "x"]}) == [
            "l.1: 'x' is not of type 'integer'"
        ]
        assert Watched.threads == {threading.get_ident()}, "a small check needs no thread"
        checker.close()

    asyncio.run(main())


@pytest.mark.usefixtures("patient")
def test_a_long_check_waits_for_turns_of_the_event_loop_and_a_short_one_does_not() -> None:
    """RE2 lets go of the interpreter so often that a loop which waits for it would be passed
    over.
    """
    schema, names = {"propertyNames": {"pattern": "^n"}}, {f"name{n}": n for n in range(60_000)}

    async def main() -> None:
        checker, loop, asked = SchemaChecker(), asyncio.get_running_loop(), 0
        soon = loop.call_soon_threadsafe

        def count_wishes(*what: Any, **how: Any) -> asyncio.Handle:
            nonlocal asked
            asked += 1
            return soon(*what, **how)

        loop.call_soon_threadsafe = count_wishes  # type: ignore[method-assign,assignment]  # what a thread asks of it
        assert not await checker.problems("s.t", schema, names)
        assert asked >= 10
        asked = 0
        assert await checker.problems("s.t", schema, {"name": 1}) == []
        assert asked == 0
        checker.close()

    asyncio.run(main())


def test_what_is_done_on_the_event_loop_is_a_small_part_of_a_check() -> None:
    assert INLINE_STEPS * 100 <= CHECK_STEPS


def test_looking_through_many_schemas_for_the_first_time_is_not_done_on_the_event_loop() -> None:
    schema = {"properties": {name: {"type": "integer"} for name in NAMES}}
    with pytest.raises(OutOfSteps):
        JsonSchema(schema).problems(dict(list(NAMES.items())[:100]), INLINE_STEPS)
    assert (
        JsonSchema({"properties": schema["properties"]}).problems(
            dict(list(NAMES.items())[:20]), INLINE_STEPS
        )
        == []
    )


def test_a_schema_is_not_searched_for_anchors_on_the_event_loop() -> None:
    anchored = {f"d{n}": {"$anchor": f"a{n}", "type": "string"} for n in range(3_000)}
    schema = JsonSchema({"$ref": "#a2999", "$defs": anchored})
    with pytest.raises(OutOfSteps):
        schema.problems(1, INLINE_STEPS)
    assert len(schema.problems(1, CHECK_STEPS)) == 1
    assert (
        JsonSchema({"$ref": "#/$defs/d5", "$defs": anchored}).problems("x", INLINE_STEPS) == []
    ), "it is not needed"


def test_numbers_of_thousands_of_digits_are_not_divided_on_the_event_loop() -> None:
    schema = JsonSchema({"items": {"multipleOf": 7}})
    assert schema.problems([7 * 10**20] * 50, INLINE_STEPS) == []
    with pytest.raises(OutOfSteps):
        schema.problems([7 * 10**4_000] * 50, INLINE_STEPS)


WIDE: dict[str, tuple[Any, Any]] = {
    "items that nothing may be": ({"contains": False, "minContains": 0}, [1] * 3_000),
    "alternatives that nothing is": ({"items": {"oneOf": [False] * 300 + [True]}}, [1] * 10),
    "the same, any": ({"items": {"not": {"anyOf": [False] * 300}}}, [1] * 10),
    "many types": ({"items": {"type": ["string"] * 900 + ["integer"]}}, [1] * 50),
    "many patterns nobody can run": (
        {"patternProperties": {f"(?=a{i})": {} for i in range(400)}},
        {f"n{i}": 1 for i in range(9)},
    ),
    "numbers of many digits": ({"uniqueItems": True}, [10**4_000 + i for i in range(20)]),
    "large fractions": ({"const": [0]}, [1e308] * 100),
    "a long list": ({"const": [0]}, [[]] * 1_000),
}


@pytest.mark.parametrize("name", WIDE)
def test_every_part_of_a_wide_schema_and_of_a_value_counts(name: str) -> None:
    """What costs no step is neither bounded nor moved off the event loop: 520,000 items took it 5
    s.
    """
    schema, value = WIDE[name]
    ready = JsonSchema(schema)
    assert ready.problems(value, CHECK_STEPS) is not None, "and patterns are compiled by now"
    with pytest.raises(OutOfSteps):
        ready.problems(value, INLINE_STEPS)


@pytest.mark.parametrize("many", [10, 300])
def test_long_values_are_equal_as_short_ones_are(many: int) -> None:
    rows = [{"a": 1, "b": str(i)} for i in range(many)]
    names = {f"n{i}": 1 for i in range(many)}
    same = [{"b": str(i), "a": 1.0} for i in range(many)]
    for value, other, fits_it in [
        (rows, same, True),
        (rows, [*same[:-1], {"b": "x", "a": 1}], False),
        (names, dict(reversed(names.items())), True),
        (names, {**names, "n0": True}, False),
        (["a", "b"] * many, ['a", "b'] * many, False),
    ]:
        assert (JsonSchema({"const": value}).problems(other, CHECK_STEPS) == []) is fits_it


def test_a_long_value_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []

    def recorded(value: Any, **how: Any) -> str:
        parts.append(len(text := json.dumps(value, **how)))
        return text

    monkeypatch.setattr(verdicts, "json", SimpleNamespace(dumps=recorded))
    rows = {
        "list": [{"a": i, "b": "x"} for i in range(5_000)],
        "names": {f"n{i}": i for i in range(5_000)},
    }
    for value in rows.values():
        assert (
            JsonSchema({"const": value}).problems(json.loads(json.dumps(value)), CHECK_STEPS) == []
        )
    assert sum(parts) > 100_000
    assert max(parts) < 100, "the encoder holds the interpreter until it is through"


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
    assert JsonSchema(schema).problems({"a" * 50_000 + "!?": 1}, CHECK_STEPS)
    assert time.thread_time() - begun < 10, "it would take years"
