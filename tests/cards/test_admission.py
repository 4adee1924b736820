"""From raw definitions to cards: what is let in, what is refused alone, and what it may cost."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Callable
from typing import Any

import pytest
from bundle_router.core.catalog import Server
from bundle_router.core.models.canonical import encode
from bundle_router.core.tools.admission import Admitted, DefinitionLimits, admit
from bundle_router.core.tools.admission.admit import hinted_effects, short_description
from bundle_router.core.tools.admission.backtracking import explosive
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
        found = admit(Server(row["server"], "stdio", command="x"), row["tools"], row["instructions"])
        assert found.refused == ()
        assert {tool.card.tool for tool in found.tools} == {tool["name"] for tool in row["tools"]}


def test_a_server_that_leaves_the_type_out_is_repaired_and_said_so(real_servers: list[dict[str, Any]]) -> None:
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
    "a name of 129 characters": (tool() | {"name": "a" * 129}, "bad_name"),
    "a schema that is a list": (tool([]), "bad_schema"),
    "a schema of another type": (tool({"type": "string"}), "not_object_schema"),
    "a type that is no name": (tool({"type": "object", "properties": {"a": {"type": 7}}}), "bad_schema"),
    "required that is no list": (tool({"type": "object", "properties": {"a": {"required": True}}}), "bad_schema"),
    "a property that is no schema": (tool({"type": "object", "properties": {"a": ["string"]}}), "bad_schema"),
    "an empty anyOf": (tool({"type": "object", "anyOf": []}), "bad_schema"),
    "an http reference": (tool({"type": "object", "properties": {"a": {"$ref": "http://x.example/s"}}}), "remote_ref"),
    "a file reference": (tool({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}), "remote_ref"),
    "a relative reference": (tool({"type": "object", "properties": {"a": {"$ref": "other.json#/a"}}}), "remote_ref"),
    "a new base address inside": (
        tool({"type": "object", "properties": {"a": {"$id": "http://x.example/", "$ref": "#/b"}}}),
        "remote_ref",
    ),
    "a reference to nothing": (tool({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}), "broken_ref"),
    "a reference into a value": (
        tool({"type": "object", "properties": {"a": {"$ref": "#/default"}}, "default": {"$ref": "http://x.example"}}),
        "broken_ref",
    ),
    "a reference to itself": (tool({"type": "object", "$ref": "#"}), "endless_ref"),
    "a circle through anyOf": (
        tool(
            {
                "type": "object",
                "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
            }
        ),
        "endless_ref",
    ),
    "a pattern that never ends": (tool({"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}), "bad_pattern"),
    "a pattern in a property's name": (tool({"type": "object", "patternProperties": {"(x*)*y": {}}}), "bad_pattern"),
    "a very long pattern": (tool({"type": "object", "properties": {"a": {"pattern": "a" * 2001}}}), "bad_pattern"),
    "a hidden property": (tool({"type": "object", "properties": {"a\u200b": {}}}), "hidden_text"),
    "a hidden enum value": (tool({"type": "object", "properties": {"a": {"enum": ["x\U000e0041"]}}}), "hidden_text"),
    "a number that is none": (tool(_meta={"x": float("nan")}), "not_json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_bad_tool_costs_one_tool(case: str) -> None:
    bad, code = REFUSED[case]
    found = admitted(bad, tool() | {"name": "good"})
    assert [row.code for row in found.refused] == [code]
    assert [kept.card.tool for kept in found.tools] == ["good"]
    assert all(row.name.isascii() and row.name.isprintable() and row.detail.isprintable() for row in found.refused)


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
    assert json.dumps(definition) == before, "what was listed is what is pinned"
    assert found.tools[0].definition == encode(definition)


BOMBS: dict[str, Callable[[], Any]] = {
    "10,000 alternatives": lambda: {"type": "object", "anyOf": [{"const": n} for n in range(10_000)]},
    "10,000 levels": lambda: _nested(10_000),
    "100 levels": lambda: _nested(100),
    "ten times ten times ten": lambda: {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(10)} | {"d10": {}},
    },
    "30 doublings": lambda: {
        "type": "object",
        "allOf": [{"$ref": "#/$defs/d0"}],
        "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(30)}
        | {"d30": {}},
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
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 2.0, "CPU seconds, an order above what it takes"


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
            "node": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
        },
    },
    "an anchor": {"type": "object", "properties": {"a": {"$ref": "#x"}, "b": {"$anchor": "x", "type": "string"}}},
    "a reference to a property": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}},
    },
    "null where a string is": {"type": "object", "properties": {"a": {"type": "string", "default": None}}},
    "an empty enum": {"type": "object", "properties": {"a": {"enum": []}}},
    "draft 4": {
        "type": "object",
        "id": "http://x.example/s",
        "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}},
    },
    "line ends to choose from": {"type": "object", "properties": {"a": {"enum": ["\n", "\r\n", "\t"]}}},
    "a property called $ref": {"type": "object", "properties": {"$ref": {"type": "string"}}},
    "a property called enum": {
        "type": "object",
        "properties": {"enum": {"type": "string"}, "type": {"type": "string"}},
    },
}


@pytest.mark.parametrize("case", FINE)
def test_what_is_odd_and_valid_is_left_alone(case: str) -> None:
    (kept,) = admitted(tool(FINE[case])).tools
    assert {**FINE[case], "properties": FINE[case].get("properties", {})} == kept.card.input_schema()


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
    (kept,) = admitted(tool({"type": "object", "properties": {"a": {"description": hidden}}}, description=hidden)).tools
    assert kept.card.description == "Does it.\nNext. \U0001f469\u200d\U0001f52c"
    assert kept.card.input_schema()["properties"]["a"]["description"] == kept.card.description
    assert json.loads(kept.definition)["description"] == hidden
    assert kept.notes == ("invisible characters were left out of its text",)


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


def test_hints_only_add_effects() -> None:
    assert hinted_effects({"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}) == ()
    assert hinted_effects({"readOnlyHint": True, "destructiveHint": True}) == ("write",)
    assert hinted_effects({"openWorldHint": True}) == ("network",)
    assert hinted_effects({"destructiveHint": "yes"}) == hinted_effects(None) == ()


def test_tools_that_the_lists_leave_out_do_not_exist() -> None:
    server = Server("s", "stdio", command="x", include=("get_*",), exclude=("get_secret",))
    found = admit(server, [tool() | {"name": name} for name in ("get_a", "get_secret", "put_a")])
    assert [kept.card.tool for kept in found.tools] == ["get_a"]
    assert found.refused == ()


def test_tokens_are_counted_by_whoever_can_count() -> None:
    assert admitted(tool(), count=lambda text: 7).tools[0].card.tokens == 7
    estimated = admitted(tool()).tools[0].card
    assert (estimated.counted, estimated.tokens > 10) == (False, True)


def test_more_tools_than_the_limit_are_left_out_and_counted() -> None:
    found = admitted(*(tool() | {"name": f"t{n}"} for n in range(5)), limits=DefinitionLimits(max_tools=3))
    assert [kept.card.tool for kept in found.tools] == ["t0", "t1", "t2"]
    assert found.refused[0].detail == "2 definitions after the first 3"


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
            st.sampled_from(["type", "properties", "$ref", "items", "anyOf", "enum", "x"]) | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(_json | st.fixed_dictionaries({"name": st.sampled_from(["a", "b"]), "inputSchema": _json}), max_size=5))
def test_nothing_a_server_says_raises(definitions: list[Any]) -> None:
    found = admit(SERVER, definitions, "x")
    assert len({kept.card.tool for kept in found.tools}) == len(found.tools)
    assert found == admit(SERVER, definitions, "x")
