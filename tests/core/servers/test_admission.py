"""From raw definitions to cards: what is let in, what is refused alone, and what it may cost."""

from __future__ import annotations

import json
import math
import re
import resource
import socket
from collections.abc import Callable
from typing import Any

import pytest
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admit import admit, hinted_effects, short_description
from bundle_router.core.servers.admission.admitted import Admitted, DefinitionLimits
from bundle_router.core.servers.admission.schemas import explosive
from bundle_router.core.values.canonical import encode
from hypothesis import given
from hypothesis import strategies as st

SERVER = Server("s", "stdio", command="x")


def tool(schema: Any = None, **fields: Any) -> dict[str, Any]:
    return {
        "name": "t",
        "description": "Does it.",
        "inputSchema": {"type": "object"} if schema is None else schema,
        **fields,
    }


def admitted(*definitions: Any, **options: Any) -> Admitted:
    return admit(SERVER, definitions, **options)


def codes(*definitions: Any) -> list[str]:
    return [row.code for row in admitted(*definitions).refused]


def test_every_tool_of_the_real_servers_is_admitted(real_servers: list[dict[str, Any]]) -> None:
    for row in real_servers:
        found = admit(
            Server(row["server"], "stdio", command="x"), row["tools"], row["instructions"]
        )
        assert found.refused == ()
        assert {tool.card.tool for tool in found.tools} == {tool["name"] for tool in row["tools"]}


def test_a_server_that_leaves_the_type_out_is_repaired_and_said_so(
    real_servers: list[dict[str, Any]],
) -> None:
    row = next(row for row in real_servers if row["server"] == "gitlab-ref")
    found = admit(Server("gitlab-ref", "stdio", command="x"), row["tools"])
    assert all(tool.card.input_schema()["type"] == "object" for tool in found.tools)
    assert all("did not say that it is an object" in tool.notes[0] for tool in found.tools)


REFUSED: dict[str, tuple[Any, str]] = {
    "no object": ("text", "not_an_object"),
    "no name": ({"description": "x"}, "bad_name"),
    "a name with an escape sequence": (tool() | {"name": "a\x1b[31m"}, "bad_name"),
    "a name in look-alike letters": (tool() | {"name": "re\u0430d"}, "bad_name"),
    "a name with a line end behind it": (tool() | {"name": "read\n"}, "bad_name"),
    "a name with a slash": (tool() | {"name": "repo/list"}, "bad_name"),
    "a name with a colon": (tool() | {"name": "notion:search"}, "bad_name"),
    "a name with a space": (tool() | {"name": "Mower Status"}, "bad_name"),
    "a name in other letters": (tool() | {"name": "gr\u00f6\u00dfe"}, "bad_name"),
    "a name of 129 characters": (tool() | {"name": "a" * 129}, "bad_name"),
    "a schema that is a list": (tool(["x"]), "bad_schema"),
    "a schema of another type": (tool({"type": "string"}), "not_object_schema"),
    "a type that is no name": (
        tool({"type": "object", "properties": {"a": {"type": 7}}}),
        "bad_schema",
    ),
    "required that is no list": (
        tool({"type": "object", "properties": {"a": {"required": "a"}}}),
        "bad_schema",
    ),
    "a property that is no schema": (
        tool({"type": "object", "properties": {"a": ["string"]}}),
        "bad_schema",
    ),
    "an http reference": (
        tool({"type": "object", "properties": {"a": {"$ref": "http://x.example/s"}}}),
        "remote_ref",
    ),
    "a file reference": (
        tool({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}),
        "remote_ref",
    ),
    "a relative reference": (
        tool({"type": "object", "properties": {"a": {"$ref": "other.json#/a"}}}),
        "remote_ref",
    ),
    "a new base address inside": (
        tool({"type": "object", "properties": {"a": {"$id": "http://x.example/", "$ref": "#/b"}}}),
        "remote_ref",
    ),
    "a reference to nothing": (
        tool({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}),
        "broken_ref",
    ),
    "a reference into a value": (
        tool(
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/default"}},
                "default": {"$ref": "http://x.example"},
            }
        ),
        "broken_ref",
    ),
    "a reference into a list of names": (
        tool({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/required/a"}}}),
        "broken_ref",
    ),
    "a reference by number into an object": (
        tool({"type": "object", "properties": {"a": {"$ref": "#/properties/0"}}}),
        "broken_ref",
    ),
    "a reference into text": (tool({"type": "object", "$ref": "#/type/0"}), "broken_ref"),
    "a reference past the end of a list": (
        tool({"type": "object", "anyOf": [{"$ref": "#/anyOf/1"}]}),
        "broken_ref",
    ),
    "a reference by a word into a list": (
        tool({"type": "object", "anyOf": [{"$ref": "#/anyOf/x"}]}),
        "broken_ref",
    ),
    "a reference by a digit of another script": (
        tool({"type": "object", "anyOf": [{"$ref": "#/anyOf/\u00b2"}]}),
        "broken_ref",
    ),
    "a reference that is no text": (
        tool({"type": "object", "properties": {"a": {"$ref": True}}}),
        "bad_schema",
    ),
    "a recursive reference that is off": (
        tool({"type": "object", "properties": {"a": {"$recursiveRef": False}}}),
        "bad_schema",
    ),
    "a base address that is no text": (
        tool({"type": "object", "properties": {"a": {"$id": 5}}}),
        "remote_ref",
    ),
    "a reference to itself": (tool({"type": "object", "$ref": "#"}), "endless_ref"),
    "a circle through anyOf": (
        tool(
            {
                "type": "object",
                "$defs": {
                    "a": {"anyOf": [{"$ref": "#/$defs/b"}]},
                    "b": {"allOf": [{"$ref": "#/$defs/a"}]},
                },
            }
        ),
        "endless_ref",
    ),
    "a pattern that never ends": (
        tool({"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}),
        "bad_pattern",
    ),
    "a pattern in a property's name": (
        tool({"type": "object", "patternProperties": {"(x*)*y": {}}}),
        "bad_pattern",
    ),
    "a very long pattern": (
        tool({"type": "object", "properties": {"a": {"pattern": "a" * 2001}}}),
        "bad_pattern",
    ),
    "a hidden property": (tool({"type": "object", "properties": {"a\u200b": {}}}), "hidden_text"),
    "a hidden enum value": (
        tool({"type": "object", "properties": {"a": {"enum": ["x\U000e0041"]}}}),
        "hidden_text",
    ),
    "a hidden enum value in ASCII": (
        tool({"type": "object", "properties": {"a": {"enum": ["ok", "\x07"]}}}),
        "hidden_text",
    ),
    "a letter that shows nothing": (
        tool({"type": "object", "properties": {"a": {"const": "\u3164"}}}),
        "hidden_text",
    ),
    "a private character": (
        tool({"type": "object", "properties": {"a": {"const": ["ok", "\ue000"]}}}),
        "hidden_text",
    ),
    "a hidden key in a constant": (
        tool({"type": "object", "properties": {"a": {"const": {"ok": 1, "a\u200b": 1}}}}),
        "hidden_text",
    ),
    "a hidden value in a constant": (
        tool({"type": "object", "properties": {"a": {"const": {"ok": 1, "a": "x\u200b"}}}}),
        "hidden_text",
    ),
    "a hidden keyword": (tool({"type": "object", "x\u200b": 1}), "hidden_text"),
    "a number that is none": (tool(_meta={"x": float("nan")}), "not_json"),
    "a key that is no text": (tool() | {5: 1}, "not_json"),
    "a value that JSON does not have": (tool(_meta={1}), "not_json"),
}
ON_ONE_VALUE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), lambda inner: [inner]),
    **dict.fromkeys(("else", "if", "not", "then"), lambda inner: inner),
    **dict.fromkeys(("dependencies", "dependentSchemas"), lambda inner: {"a": inner}),
}
REFUSED |= {
    f"a circle through {keyword}": (
        tool({"type": "object", "$defs": {"a": {keyword: of({"$ref": "#/$defs/a"})}}}),
        "endless_ref",
    )
    for keyword, of in ON_ONE_VALUE.items()
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_bad_tool_costs_one_tool(case: str) -> None:
    bad, code = REFUSED[case]
    found = admitted(bad, tool() | {"name": "good"})
    assert [row.code for row in found.refused] == [code]
    assert [kept.card.tool for kept in found.tools] == ["good"]
    assert all(
        row.name.isascii() and row.name.isprintable() and row.detail.isprintable()
        for row in found.refused
    )


def test_another_language_s_type_names_are_read_as_json_s_and_said_so() -> None:
    properties = {
        "rate": {"type": "float"},
        "range": {"type": "tuple", "items": {"type": "Integer"}},
        "options": {"type": "dict", "additionalProperties": {"type": ["str", "None"]}},
        "either": {"anyOf": [{"type": "bool"}, {"type": "address/ENS", "description": "x"}]},
        "plain": {"type": "string", "enum": ["float"]},
        "type": {"type": "int"},
    }
    definition = tool({"type": "dict", "properties": properties})
    before = json.dumps(definition)
    found = admitted(definition)
    assert found.refused == ()
    schema = found.tools[0].card.input_schema()
    assert schema["type"] == "object"
    assert schema["properties"] == {
        "rate": {"type": "number"},
        "range": {"type": "array", "items": {"type": "integer"}},
        "options": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "either": {"anyOf": [{"type": "boolean"}, {"description": "x"}]},
        "plain": {"type": "string", "enum": ["float"]},
        "type": {"type": "integer"},
    }
    (note,) = found.tools[0].notes
    assert {"'float' as number", "'address/ENS' as any value", "'dict' as object"} <= {
        *note.partition("read ")[2].split(", ")
    }
    assert note.count("' as ") == 8, "of nine"
    named = [
        name for name in ("float", "int", "str", "bool", "None", "dict") if f"'{name}' as" in note
    ]
    assert sorted(named, key=lambda name: note.index(f"'{name}'")) == sorted(named), (
        "in one order, whatever the order of a set"
    )
    assert json.dumps(definition) == before, "what was listed is what is pinned"
    assert found.tools[0].definition == encode(definition)


@pytest.mark.parametrize(
    ("read", "names"),
    [
        ("string", ("str", "text", "date", "datetime", "String")),
        ("object", ("dict", "dictionary", "hashmap", "map", "OBJECT")),
        ("array", ("list", "set", "tuple")),
        ("number", ("double", "float")),
        ("integer", ("int", "long")),
        ("boolean", ("bool",)),
        ("null", ("none", "None")),
    ],
)
def test_the_names_of_types_that_other_languages_have(read: str, names: tuple[str, ...]) -> None:
    for name in names:
        (kept,) = admitted(tool({"type": "object", "properties": {"a": {"type": name}}})).tools
        assert kept.card.input_schema()["properties"]["a"] == {"type": read}


@pytest.mark.parametrize(
    ("bad", "name", "detail"),
    [
        (5, "#0", "the definition is a int"),
        ({"name": 5}, "#0", "5 is not a name: letters, digits, '_', '-' and '.', at most 128"),
        ({"name": "r\u0430"}, "r\\u0430", "'r\\u0430' is not a name: letters, digits, '_', '-' and '.', at most 128"),
        (tool(["x"]), "t", "the input schema is ['x'], not an object"),
        (tool({"type": "object", "x\u200b": 1}), "t",
         "/'x\\u200b' holds invisible characters where they can't be taken out"),
        (tool({"type": "object", "properties": {"a": {"properties": {"b\u200b": {}}}}}), "t",
         "/properties/a/properties/'b\\u200b' holds invisible characters where they can't be taken out"),
        (tool({"type": "object", "properties": {"a": {"const": "b\u200b"}}}), "t",
         "/properties/a/const holds invisible characters where they can't be taken out"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_tool_and_the_place(bad: Any, name: str, detail: str) -> None:
    (row,) = admitted(bad).refused
    assert (row.name, row.detail) == (name, detail)


@pytest.mark.parametrize(
    ("more", "nodes", "depth", "size"),
    [
        ({}, 2, 2, 11),
        ({"x": [1, [2.5, None, True]]}, 8, 4, 57),
        ({"\u00e9": "\u00e9\u00e9"}, 3, 2, 29),
        ({"x": {"y": {}}}, 4, 3, 21),
    ],
)
def test_a_definition_may_be_as_large_as_the_limits_and_no_larger(
    more: dict[str, Any], nodes: int, depth: int, size: int
) -> None:
    definition = {"name": "t", **more}
    for limit, most, code in (
        ("max_nodes", nodes, "too_many_nodes"), ("max_depth", depth, "too_deep"), ("max_bytes", size, "too_large"),
    ):  # fmt: skip
        assert admitted(definition, limits=DefinitionLimits(**{limit: most})).refused == ()
        (row,) = admitted(definition, limits=DefinitionLimits(**{limit: most - 1})).refused
        assert row.code == code


def test_a_number_may_have_a_thousand_bits() -> None:
    assert codes(tool(x=2**1000 - 1), tool(x=2**1000) | {"name": "u"}) == ["too_large"]


WITHIN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
         "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
        lambda inner: inner,
    ),
    **dict.fromkeys(
        ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"),
        lambda inner: {"a": inner},
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), lambda inner: [True, inner]),
}  # fmt: skip


@pytest.mark.parametrize("keyword", WITHIN)
def test_a_reference_is_found_in_every_place_that_a_schema_may_stand_in(keyword: str) -> None:
    inner = WITHIN[keyword]({"$ref": "http://x.example/s"})
    place = "" if "$ref" in inner else "/1" if isinstance(inner, list) else "/a"
    for schema in (
        {"type": "object", keyword: inner},
        {"type": "object", "properties": {"b": {"items": [{keyword: inner}]}}},
    ):
        (row,) = admitted(tool(schema)).refused
        assert (row.code, row.detail.split(" ", 1)[1]) == (
            "remote_ref",
            "leads outside the schema: 'http://x.example/s'",
        )
        assert row.detail.split()[0].endswith(f"/{keyword}{place}/$ref")


FORMS: list[tuple[str, list[Any], list[tuple[Any, str]]]] = [
    ("type", ["array", "boolean", "integer", "null", "number", "object", "string", ["string", "null"]],
     [([], "empty"), (["string", 5], "5, which is no type"), ([{}], "{}, which is no type")]),
    ("properties", [{}, [], None], [(["a"], "['a'], not an object")]),
    ("dependencies", [{"a": ["b"]}, {"a": {}}, {"a": True}],
     [(5, "5, not an object"), ({"a": ["b", 5]}, "['b', 5]")]),
    ("dependentRequired", [{"a": ["b"]}], [([], "[], not an object"), ({"a": {}}, "{}"), ({"a": [5]}, "[5]")]),
    *((key, [[{}], [], None], [({}, "{}, not a list of schemas"), (5, "5, not a list")])
      for key in ("allOf", "anyOf", "oneOf", "prefixItems")),
    ("items", [{}, [], [{}], True], []),
    ("enum", [[], [1]], [({}, "{}, not a list")]),
    ("required", [[], ["a"], {}, None, True], [("a", "'a', not a list of names"), ([5], "[5], not a list of names")]),
    *((key, ["x", None], [(5, "5, not text")]) for key in ("$schema", "description", "format", "title", "pattern")),
    *((key, [-1, 0.5, 0, "1", "-0.5", None], [("x", "'x', not a number that fits"), (True, "True, not a number that fits")])
      for key in ("maximum", "minimum", "multipleOf")),
    *((key, [0, 5], [("x", "'x', not a number that fits"), (-1, "-1, not a number that fits")])
      for key in ("maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength",
                  "minProperties")),
    ("title", ["x"], [({"x" * 73: 1}, ascii({"x" * 73: 1})), ({"x" * 74: 1}, ascii({"x" * 74: 1})[:77] + "...")]),
    ("x-unknown", [5, {"type": 5}], []),
]  # fmt: skip


@pytest.mark.parametrize(("keyword", "fine", "wrong"), FORMS)
def test_a_keyword_has_the_form_that_validators_take(
    keyword: str, fine: list[Any], wrong: list[tuple[Any, str]]
) -> None:
    for value in fine:
        assert (
            admitted(tool({"type": "object", "properties": {"a~/b": {keyword: value}}})).refused
            == ()
        )
    for value, said in wrong:
        (row,) = admitted(
            tool({"type": "object", "properties": {"a~/b": {keyword: value}}})
        ).refused
        assert row.code == "bad_schema"
        assert re.match(
            rf"/properties/a~0~1b/{re.escape(keyword)} (is|has) {re.escape(said)}($|[, ])",
            row.detail,
        )


def test_a_pattern_is_as_long_as_the_limit_at_most() -> None:
    for keyword, fine, long in (
        ("pattern", "aaa", "aaaa"),
        ("patternProperties", {"aaa": {}}, {"aaaa": {}}),
    ):
        limits = DefinitionLimits(max_pattern_chars=3)
        assert admitted(tool({"type": "object", keyword: fine}), limits=limits).refused == ()
        (row,) = admitted(tool({"type": "object", keyword: long}), limits=limits).refused
        assert (row.code, row.detail) == ("bad_pattern", f"/{keyword} is longer than 3 characters")
    (row,) = admitted(tool({"type": "object", "pattern": "(a+)+"})).refused
    assert (
        row.detail
        == "/pattern repeats what already repeats, so that matching it may never end: '(a+)+'"
    )


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({"properties": {"a": {}, "b": True}}, 2),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/d"}, "b": {"$ref": "#/$defs/d"}},
                "$defs": {"d": {"items": {}}},
            },
            9,
        ),
        ({"properties": {"a": {"$ref": "#"}}}, 3),
        ({"properties": {"a": {"$recursiveRef": True}}}, 3),
    ],
)
def test_a_schema_is_as_large_as_with_every_reference_written_out(
    more: dict[str, Any], size: int
) -> None:
    schema = {"type": "object", **more}
    assert admitted(tool(schema), limits=DefinitionLimits(max_expanded_nodes=size)).refused == ()
    (row,) = admitted(tool(schema), limits=DefinitionLimits(max_expanded_nodes=size - 1)).refused
    assert (row.code, row.detail) == (
        "endless_ref",
        f"its references multiply to more than {size - 1} schemas",
    )


def test_what_leads_to_itself_is_named_by_its_place() -> None:
    assert [row.detail for row in admitted(tool({"type": "object", "$ref": "#"})).refused] == [
        "/ leads in a circle to itself"
    ]


BOMBS: dict[str, Callable[[], Any]] = {
    "10,000 alternatives": lambda: {
        "type": "object",
        "anyOf": [{"const": n} for n in range(10_000)],
    },
    "10,000 levels": lambda: _nested(10_000),
    "100 levels": lambda: _nested(100),
    "ten times ten times ten": lambda: {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": (
            {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(10)}
            | {"d10": {}}
        ),
    },
    "30 doublings": lambda: {
        "type": "object",
        "allOf": [{"$ref": "#/$defs/d0"}],
        "$defs": (
            {
                f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
                for n in range(30)
            }
            | {"d30": {}}
        ),
    },
    "30 doublings, the last first": lambda: {
        "type": "object",
        "$defs": (
            {"d30": {}}
            | {
                f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
                for n in range(29, -1, -1)
            }
        ),
    },
    "a megabyte of text": lambda: {"type": "object", "description": "x" * 1_000_000},
    "a long chain of references": lambda: {
        "type": "object",
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(9_000)},
    },
    "a huge number": lambda: {"type": "object", "maximum": 10**5000},
}


def _nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": {"a": value}}
    return {"type": "object", **value}


@pytest.mark.parametrize("case", BOMBS)
def test_a_schema_bomb_is_refused_and_costs_little(case: str) -> None:
    bomb = BOMBS[case]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    found = admitted(tool(bomb))
    assert found.tools == ()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 2.0, (
        "CPU seconds, an order above what it takes"
    )


def test_no_reference_opens_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    remote = {
        "$schema": "http://x.example/meta",
        "$id": "http://x.example/s",
        "type": "object",
        "$ref": "http://x.example/t",
    }
    assert codes(tool(remote)) == ["remote_ref"]


FINE: dict[str, Any] = {
    "a tree": {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            }
        },
    },
    "an anchor": {
        "type": "object",
        "properties": {"a": {"$ref": "#x"}, "b": {"$anchor": "x", "type": "string"}},
    },
    "an address of its own": {"$id": "http://x.example/s", "type": "object"},
    "an anchor of an early draft": {
        "type": "object",
        "properties": {"a": {"$id": "#x"}, "b": {"$ref": "#x"}},
    },
    "recursive references": {
        "type": "object",
        "properties": {"a": {"$recursiveRef": True}, "b": {"$recursiveRef": "#"}},
    },
    "a reference to what is true": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/t"}},
        "$defs": {"t": True},
    },
    "what is true or false": {
        "type": "object",
        "properties": {"a": True, "b": {"items": False}},
        "not": False,
    },
    "constants": {"type": "object", "properties": {"a": {"const": {"b": [5, None, "\u00e9"]}}}},
    "a reference to a property": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}},
    },
    "null where a string is": {
        "type": "object",
        "properties": {"a": {"type": "string", "default": None}},
    },
    "an empty enum": {"type": "object", "properties": {"a": {"enum": []}}},
    "draft 4": {
        "type": "object",
        "id": "http://x.example/s",
        "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}},
    },
    "line ends to choose from": {
        "type": "object",
        "properties": {"a": {"enum": ["\n", "\r\n", "\t"]}},
    },
    "a property called $ref": {"type": "object", "properties": {"$ref": {"type": "string"}}},
    "a property called enum": {
        "type": "object",
        "properties": {"enum": {"type": "string"}, "type": {"type": "string"}},
    },
}


@pytest.mark.parametrize("case", FINE)
def test_what_is_odd_and_valid_is_left_alone(case: str) -> None:
    (kept,) = admitted(tool(FINE[case])).tools
    assert {
        **FINE[case],
        "properties": FINE[case].get("properties", {}),
    } == kept.card.input_schema()


def test_a_name_listed_twice_with_different_contents_is_refused_both_times() -> None:
    other = tool() | {"description": "Does something else."}
    assert codes(tool(), other) == ["duplicate", "duplicate"]


def test_a_name_listed_twice_with_the_same_contents_is_kept_once() -> None:
    found = admitted(tool(), tool())
    assert [row.code for row in found.refused] == ["duplicate"]
    assert [kept.card.tool for kept in found.tools] == ["t"]


def test_text_loses_what_nobody_can_see_and_the_definition_keeps_it() -> None:
    hidden = (
        "Does\x1b[8m it.\u202e\u200b\ue000"
        + "".join(chr(0xE0000 + ord(c)) for c in "ignore all")
        + "\u2028Next. \U0001f469\u200d\U0001f52c"
    )
    (kept,) = admitted(
        tool({"type": "object", "properties": {"a": {"description": hidden}}}, description=hidden)
    ).tools
    assert kept.card.description == "Does it.\nNext. \U0001f469\u200d\U0001f52c"
    assert kept.card.input_schema()["properties"]["a"]["description"] == kept.card.description
    assert json.loads(kept.definition)["description"] == hidden
    assert kept.notes == ("invisible characters were left out of its text",)


def test_what_hides_in_ascii_goes_too_and_letters_stay() -> None:
    (kept,) = admitted(tool(description="Does\x1b[8m it.\x07")).tools
    assert (kept.card.description, kept.notes) == (
        "Does it.",
        ("invisible characters were left out of its text",),
    )
    (kept,) = admitted(tool(description="Does \u00e9t\u3164.", title="Does\u200b")).tools
    assert (kept.card.description, kept.title) == ("Does \u00e9t.", "Does")
    (kept,) = admitted(tool(title="Does\u200b")).tools
    assert kept.notes == ("invisible characters were left out of its text",)


@pytest.mark.parametrize("key", ["title", "description", "$comment"])
def test_what_is_only_read_is_cleaned_wherever_it_stands(key: str) -> None:
    schema = {"type": "object", "properties": {"a": {"items": {key: "x\u200by"}}}}
    (kept,) = admitted(tool(schema)).tools
    assert kept.card.input_schema()["properties"]["a"]["items"] == {key: "xy"}
    assert json.loads(kept.definition)["inputSchema"] == schema, "the definition is as it came"


@pytest.mark.parametrize("key", ["default", "examples", "example"])
def test_values_that_are_only_read_are_cleaned_all_the_way_down(key: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {key: ["x\u200by", {"k\u200b": ["v\u200b", 5, None]}]}},
    }
    (kept,) = admitted(tool(schema)).tools
    assert kept.card.input_schema()["properties"]["a"][key] == ["xy", {"k": ["v", 5, None]}]


def test_what_was_repaired_is_said() -> None:
    bare, cut = tool(), tool({"type": "object"}, description="x" * 30) | {"name": "u"}
    del bare["inputSchema"]
    kept = admitted(bare, cut, limits=DefinitionLimits(max_description_chars=20)).tools
    assert kept[0].notes == (
        "it declares no input schema: taken as without arguments",
        "its input schema did not say that it is an object",
    )
    assert [json.loads(one.card.schema) for one in kept] == [
        {"type": "object", "properties": {}}
    ] * 2
    assert kept[1].notes == ("its description was cut from 30 to 20 characters",)
    assert kept[1].card.description == "x" * 20 + "\n[cut: 10 more characters]"
    (whole,) = admitted(
        tool(description="x" * 20), limits=DefinitionLimits(max_description_chars=20)
    ).tools
    assert (whole.card.description, whole.notes) == ("x" * 20, ())


def test_a_title_stands_in_one_of_two_places_and_is_short() -> None:
    inner = {"annotations": {"title": "inner"}}
    for fields, title in (({"title": "outer"} | inner, "outer"), (inner, "inner"), ({"title": 5}, ""),
                          ({"title": "x" * 300}, "x" * 200)):  # fmt: skip
        assert admitted(tool(**fields)).tools[0].title == title


@pytest.mark.parametrize(
    ("trust", "annotations", "idempotent"),
    [
        ("trusted", {"idempotentHint": True}, True),
        ("untrusted", {"idempotentHint": True}, False),
        ("trusted", {"idempotentHint": False}, False),
        ("trusted", {"idempotentHint": 1}, False),
        ("trusted", None, False),
    ],
)
def test_only_a_trusted_server_is_believed_that_a_tool_may_be_called_again(
    trust: Any, annotations: Any, idempotent: bool
) -> None:
    found = admit(Server("s", "stdio", trust, command="x"), [tool(annotations=annotations)])
    assert found.tools[0].card.idempotent is idempotent


GOLDEN = "sha256:8228c318e709b6b00df56d70231bc5ff0c87276b7faed80011c66975286d470b"


def test_a_digest_that_was_pinned_earlier_is_made_again() -> None:
    definition = tool({"type": "object", "required": ["b", "a"], "properties": {"a": {}, "b": {}}})
    assert admitted(definition, instructions="Ask first.").tools[0].card.sha256 == GOLDEN


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"required": ["a", "b"]}, {"required": ["b", "a"]}),
        ({"enum": [1, "a"]}, {"enum": ["a", 1]}),
        ({"type": ["string", "null"]}, {"type": ["null", "string"]}),
        *(
            ({key: [{"title": "a"}, {}]}, {key: [{}, {"title": "a"}]})
            for key in ("anyOf", "oneOf", "allOf")
        ),
    ],
)
def test_order_without_meaning_changes_no_digest(one: Any, other: Any) -> None:
    digests = [
        admitted(tool({"type": "object", "properties": {"a": inner}}), limits=DefinitionLimits())
        .tools[0]
        .card.sha256
        for inner in (one, other)
    ]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("path", "changed", "same"),
    [
        ("/x/1", {"x": [1, 9, 3]}, True),
        ("/x/1", {"x": [1, 2, 9]}, False),
        ("/x/1", {"x": [1, 2]}, False),
        ("/y/*/a", {"y": [{"a": 9, "b": 1}, {"a": 9}]}, True),
        ("/y/*/a", {"y": [{"a": 1, "b": 9}, {"a": 2}]}, False),
        ("/y/0/b", {"y": [{"a": 1, "b": 9}, {"a": 2}]}, True),
        ("/y/0/b/c", {"y": [{"a": 1, "b": 9}, {"a": 2}]}, False),
        ("/z/*", {"z": {"k": 9}}, True),
        ("t:/x", {"x": 9}, True),
        ("other:/x", {"x": 9}, False),
    ],
)
def test_only_what_was_declared_volatile_may_change(
    path: str, changed: dict[str, Any], same: bool
) -> None:
    server = Server("s", "stdio", command="x", volatile=(path,))
    before = {"x": [1, 2, 3], "y": [{"a": 1, "b": 1}, {"a": 2}], "z": {"k": 1}}
    digests = [
        admit(server, [tool(**fields)]).tools[0].card.sha256
        for fields in (before, before | changed)
    ]
    assert (digests[0] == digests[1]) is same


def test_a_long_description_is_cut_with_a_notice() -> None:
    (kept,) = admitted(tool(description="word " * 10_000)).tools
    assert len(kept.card.description) < 16_500
    assert kept.card.description.endswith("more characters]")


def test_a_short_description_is_whole_sentences_on_one_line() -> None:
    text = "Reads a file.\n\nReturns its text. " + "Lines are numbered from one. " * 20
    short = short_description(text)
    assert len(short) <= 300
    assert "\n" not in short
    assert short.endswith("one.")
    assert short_description("Fine.") == "Fine."
    assert len(short_description("x" * 1000)) <= 300


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("a" * 20, "a" * 20),
        ("a" * 21, "a" * 19 + "\u2026"),
        ("0123456789. abcdefghij", "0123456789."),
        ("012345678. abcdefghijkl", "012345678."),
        ("01234567. abcdefghijklm", "01234567.\u2026"),
        ("Ab. word word word word", "Ab. word word word\u2026"),
        ("aaaa bbbb cccc ddd, eeee", "aaaa bbbb cccc\u2026"),
        ("aaaa bbbb cccc, dddd eeee", "aaaa bbbb cccc\u2026"),
    ],
)
def test_a_short_description_ends_with_a_sentence_where_half_of_it_is_one_and_else_with_a_word(
    text: str, short: str
) -> None:
    assert short_description(text, 20) == short


def test_hints_only_add_effects() -> None:
    assert hinted_effects({"readOnlyHint": False}) == ("write",)
    assert admitted(tool(annotations={"openWorldHint": True})).tools[0].effects == ("network",)
    assert (
        hinted_effects({"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False})
        == ()
    )
    assert hinted_effects({"readOnlyHint": True, "destructiveHint": True}) == ("write",)
    assert hinted_effects({"openWorldHint": True}) == ("network",)
    assert hinted_effects({"destructiveHint": "yes"}) == hinted_effects(None) == ()


def test_tools_that_the_lists_leave_out_do_not_exist() -> None:
    server = Server("s", "stdio", command="x", include=("get_*",), exclude=("get_secret",))
    found = admit(server, [tool() | {"name": name} for name in ("get_a", "get_secret", "put_a")])
    assert [kept.card.tool for kept in found.tools] == ["get_a"]
    assert found.refused == ()


def test_tokens_are_counted_by_whoever_can_count() -> None:
    counted: list[str] = []
    assert admitted(tool(), count=lambda text: counted.append(text) or 7).tools[0].card.tokens == 7  # type: ignore[func-returns-value] # noted, and counted as 7
    assert json.loads(counted[0])["function"]["name"] == "s__t", "as OpenAI's array has it"
    for filler in ("", "x", "xx", "xxx"):
        counted.clear()
        described = tool(description=filler)
        admitted(described, count=lambda text: counted.append(text) or 7)  # type: ignore[func-returns-value] # as above
        estimated = admitted(described).tools[0].card
        assert (estimated.counted, estimated.tokens) == (False, math.ceil(len(counted[0]) / 4))


def test_more_tools_than_the_limit_are_left_out_and_counted() -> None:
    found = admitted(
        *(tool() | {"name": f"t{n}"} for n in range(5)), limits=DefinitionLimits(max_tools=3)
    )
    assert [kept.card.tool for kept in found.tools] == ["t0", "t1", "t2"]
    assert [(row.name, row.code, row.detail) for row in found.refused] == [
        ("*", "too_many_tools", "2 definitions after the first 3")
    ]
    assert (
        admitted(
            *(tool() | {"name": f"t{n}"} for n in range(3)), limits=DefinitionLimits(max_tools=3)
        ).refused
        == ()
    )


EXPLOSIVE = [
    "(a+)+$",
    "(a|aa)*b",
    "(a*)*",
    r"(\w*\s?)*x",
    "([a-zA-Z]+)*$",
    "(a{1,30}){1,30}",
    "((ab)+)+",
    "(x+x+)+y",
    "(.*)*",
    "(a|a)*",
    "(a+b?)*c",
    r"(\d+)+",
    r"(\d+.)+",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(?:(?:a+)b?)*",
    "(a|b|ab)*c|(x+)+",
    "(a{1,10})*",
    "(a{2,}){3,}",
    "(a{,30})+",
    "(a+?)+?",
    "(a+|b)*",
    "((a)a+)*",
    "((b|a)+b)*",
    r"(\d+\d)*",
    "([a-z]+[a-z])*",
    r"([\]a]+[\]a])*",
    "([]a]+[]a])*",
    "(a*b{0,5})*",
    "(a*b?)*",
    "(a*b{,5})*",
    "x)(a+)+",
]
HARMLESS = [
    "(,[^,]+)*",
    r"(?:[a-z-]+\.)*",
    "(abc)+",
    "(a|b)*",
    "([0-9]+)|(a+)",
    "^[^,]+(,[^,]+)*$",
    "([01][0-9]|2[0-3]):[0-5]",
    r"^(?!.*(?:^|,)(team|scim),(?:.*,)?\1(?:$|,))(team|scim)(,(team|scim))*$",
    "(",
    "[",
    "\\",
    "a{",
    "(?P<x>a)+",
    "(a{30}){30}",
    "(a{30,30}){30,30}",
    "(a{})+",
    "(a{,})+",
    "(a*b{1}c?)*",
    "(aba)*",
    "(a?)*",
    "((,|;)[^,;]+)*",
    r"(\d+\s)*",
    r"(\(+\))*",
    "([ab]+[cd])*",
    r"([^\]]+\])*",
    ")*",
]


@pytest.mark.parametrize("pattern", EXPLOSIVE)
def test_patterns_that_backtrack_without_end_are_told(pattern: str) -> None:
    assert explosive(pattern)


@pytest.mark.parametrize("pattern", HARMLESS)
def test_patterns_that_real_servers_use_are_not(pattern: str) -> None:
    assert not explosive(pattern)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "$ref", "items", "anyOf", "enum", "x"])
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(
    st.lists(
        _json | st.fixed_dictionaries({"name": st.sampled_from(["a", "b"]), "inputSchema": _json}),
        max_size=5,
    )
)
def test_nothing_a_server_says_raises(definitions: list[Any]) -> None:
    found = admit(SERVER, definitions, "x")
    assert len({kept.card.tool for kept in found.tools}) == len(found.tools)
    assert found == admit(SERVER, definitions, "x")


ANY = {"type": "string"}
MEANT: dict[str, tuple[Any, dict[str, Any]]] = {
    "required is null": ({"properties": {"a": ANY}, "required": None}, {"properties": {"a": ANY}}),
    "required is an object": (
        {"properties": {"a": ANY}, "required": {}},
        {"properties": {"a": ANY}},
    ),
    "properties is a list": ({"properties": []}, {"properties": {}}),
    "properties is null": ({"properties": None}, {"properties": {}}),
    "additionalProperties is null": (
        {"properties": {"a": ANY}, "additionalProperties": None},
        {"properties": {"a": ANY}},
    ),
    "a property is null": ({"properties": {"a": None}}, {"properties": {"a": {}}}),
    "texts are null": (
        {"properties": {"a": ANY | {"title": None, "description": None, "pattern": None}}},
        {"properties": {"a": ANY}},
    ),
    "null is a value": (
        {"properties": {"a": {"default": None, "const": None, "format": None}}},
        {"properties": {"a": {"default": None, "const": None}}},
    ),
    "items are null": (
        {"properties": {"a": {"type": "array", "items": None}}},
        {"properties": {"a": {"type": "array"}}},
    ),
    "no alternatives": ({"properties": {"a": {"anyOf": []}}}, {"properties": {"a": {}}}),
    "numbers are text": (
        {"properties": {"a": {"minimum": "1", "maximum": "2.5", "minLength": "3"}}},
        {"properties": {"a": {"minimum": 1, "maximum": 2.5, "minLength": 3}}},
    ),
    "required stands inside": (
        {"properties": {"a": ANY | {"required": True}, "b": ANY | {"required": False}}},
        {"properties": {"a": ANY, "b": ANY}, "required": ["a"]},
    ),
    "required stands at both": (
        {"properties": {"a": ANY | {"required": True}, "b": ANY}, "required": ["b"]},
        {"properties": {"a": ANY, "b": ANY}, "required": ["b", "a"]},
    ),
    "required stands inside an item": (
        {"properties": {"a": {"items": {"properties": {"b": ANY | {"required": True}}}}}},
        {"properties": {"a": {"items": {"properties": {"b": ANY}, "required": ["b"]}}}},
    ),
    "the root may be null": ({"type": ["object", "null"], "properties": {}}, {"properties": {}}),
    "references into components": (
        {
            "properties": {"a": {"$ref": "#/components/schemas/A"}},
            "components": {
                "schemas": {"A": {"items": {"$ref": "#/components/schemas/B"}}, "B": ANY}
            },
        },
        {
            "properties": {"a": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"items": {"$ref": "#/$defs/B"}}, "B": ANY},
        },
    ),
}


@pytest.mark.parametrize("form", MEANT)
def test_keywords_that_say_nothing_are_as_if_they_were_left_out(form: str) -> None:
    sent, meant = MEANT[form]
    (found,) = admitted(tool({"type": "object"} | sent)).tools
    assert found.card.input_schema() == {"type": "object"} | meant
    assert found.notes[0] == "keywords of its schema that say nothing were left out"


@pytest.mark.parametrize("sent", [None, []])
def test_no_input_schema_is_one_without_arguments(sent: Any) -> None:
    (found,) = admitted(tool() | {"inputSchema": sent}).tools
    assert found.card.input_schema() == {"type": "object", "properties": {}}
    without = {key: value for key, value in tool().items() if key != "inputSchema"}
    (found,) = admitted(without).tools
    assert found.card.input_schema() == {"type": "object", "properties": {}}


def test_components_of_the_same_names_are_not_certain_and_refused() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/components/schemas/A"}},
        "components": {"schemas": {"A": ANY}},
        "$defs": {"A": {"type": "integer"}},
    }
    (row,) = admitted(tool(schema)).refused
    assert (row.code, row.detail) == (
        "broken_ref",
        "/properties/a/$ref leads to no schema: '#/components/schemas/A'",
    )


@pytest.mark.parametrize(
    ("output", "returns", "wraps_result"),
    [
        ({"type": "object", "properties": {"c": {"type": "number"}}}, "{c?: num}", False),
        ({"type": "object", "properties": {"result": {"type": "string"}}}, "str", True),
        ({"type": "object", "properties": {"c\u200b": {"type": "number"}}}, "", False),
        ({"type": "object", "properties": {"c": {"enum": ["a\u202eb"]}}}, "", False),
        ("object", "", False),
        (None, "", False),
    ],
)
def test_a_card_says_what_a_tool_returns(output: Any, returns: str, wraps_result: bool) -> None:
    (found,) = admitted(tool(outputSchema=output)).tools
    assert (found.card.returns, found.card.wraps_result) == (returns, wraps_result)
