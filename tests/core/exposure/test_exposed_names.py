"""Exposed names: short, safe, and leading back to one tool, whoever else is there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from bundle_router.core.exposure.meta_tools.definitions import EXECUTE, NAMES
from bundle_router.core.exposure.names import RESERVED, exposed_names
from bundle_router.core.servers.admission.cleaning import reveal, skeleton
from hypothesis import given
from hypothesis import strategies as st

_servers = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True)
_tools = st.from_regex(r"[A-Za-z0-9_.-]{1,128}", fullmatch=True)
_names = st.lists(st.tuples(_servers, _tools).map(".".join), min_size=1, max_size=20, unique=True)


@given(_names)
def test_names_are_bounded_and_tell_tools_apart_even_without_case(names: list[str]) -> None:
    exposed = exposed_names(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in exposed.values())
    assert len({name.lower() for name in exposed.values()}) == len(names)


@given(_names)
def test_a_plain_name_reads_back_and_no_other_looks_plain(names: list[str]) -> None:
    for name, exposed in exposed_names(names).items():
        if not re.search(r"_[0-9a-f]{8}([0-9a-f]{24})?$", exposed):
            assert ".".join(exposed.split("__", 1)) == name


@given(_names, _names)
def test_a_server_that_comes_later_changes_no_name(known: list[str], later: list[str]) -> None:
    servers = {name.partition(".")[0] for name in known}
    others = [name for name in later if name.partition(".")[0] not in servers]
    before, after = exposed_names(known), exposed_names([*others, *known])
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a.b__c", "a__b.c"),
        ("a_.b", "a._b"),
        ("s.a.b", "s.a_b"),
        ("s.Read", "s.read"),
        ("node.__node_version", "node__.node_version"),
        ("s." + "x" * 100, "s." + "x" * 101),
    ],
)
def test_pairs_made_to_collide_do_not(one: str, other: str) -> None:
    alone = {**exposed_names([one]), **exposed_names([other])}
    assert len({name.lower() for name in alone.values()}) == 2 or one.lower() == other.lower()
    assert len({name.lower() for name in exposed_names([one, other]).values()}) == 2


def test_a_tool_can_not_be_named_into_anothers_marked_name() -> None:
    marked = exposed_names(["s.a.b"])["s.a.b"]
    impostor = f"s.{marked.removeprefix('s__')}"
    assert exposed_names([impostor])[impostor] != marked


def test_ordinary_names_stand_as_they_are(real_servers: list[dict[str, Any]]) -> None:
    names = [f"{row['server']}.{tool['name']}" for row in real_servers for tool in row["tools"]]
    exposed = exposed_names(names)
    marked = [name for name in names if exposed[name] != name.replace(".", "__", 1)]
    assert all(len(name) + 1 > 64 for name in marked)
    assert {name: exposed_names([name])[name] for name in names} == exposed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("send_email", "send-emaiI"),
        ("read_file", "readfile"),
        ("burn", "bum"),
        ("vvrite", "write"),
        ("t0ken", "token"),
        ("fi1e", "file"),
        ("fiie", "file"),
        ("5end", "send"),
    ],
)
def test_names_that_look_alike_have_one_skeleton(one: str, other: str) -> None:
    assert skeleton(one) == skeleton(other) != skeleton("nothing")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("send paypal", "send paypal"),
        ("send p\u0430ypal", "send p\\u0430ypal"),
        ("\u0441\u043e\u0440", "\u0441\u043e\u0440"),
        ("na\u00efve", "na\u00efve"),
        ("\uff41bc", "\\uff41bc"),
        ("a\ue000b", "a\\ue000b"),
    ],
)
def test_a_letter_of_another_script_is_written_out_where_it_stands_among_latin_ones(
    text: str, shown: str
) -> None:
    assert reveal(text) == shown


def test_one_server_may_go_without_its_name_where_its_tools_can_not_be_mistaken() -> None:
    tools = [
        "s.read",
        "s.a__b",
        "s.call_tool",
        "s.Write",
        "s.write",
        "s.x.y",
        "s.z_0123abcd",
        "t.read",
    ]
    exposed = exposed_names(tools, "s")
    assert (exposed["s.read"], exposed["t.read"]) == ("read", "t__read")
    assert all(name == "s.read" or exposed[name] == exposed_names(tools)[name] for name in tools)


@given(_names, _names)
def test_without_a_prefix_too_names_are_apart_and_hold_whoever_comes_later(
    known: list[str], later: list[str]
) -> None:
    bare = known[0].partition(".")[0]
    servers = {name.partition(".")[0] for name in known}
    others = [name for name in later if name.partition(".")[0] not in servers]
    before, after = exposed_names(known, bare), exposed_names([*others, *known], bare)
    assert {name: after[name] for name in before} == before
    assert len({name.lower() for name in after.values()}) == len(after)


def test_no_server_can_take_the_name_of_one_of_the_routers_own_tools() -> None:
    assert {*NAMES, EXECUTE} == RESERVED
