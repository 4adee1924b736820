"""Which results may be used again, by the rules alone: each condition with the case that lacks just
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import Bundle, Catalog, Reuse, Server
from bundle_router.core.results.reusable_results import (
    HERE,
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    CachedResult,
    ResultCache,
    ReusableCall,
    is_read_only,
    key_of,
    may_keep,
    may_repeat,
    place_of,
    reuse_of,
)
from bundle_router.core.results.shaping import Blob, ShapedResult
from bundle_router.core.values.artifacts import MediaFacts
from bundle_router.testing import small_catalog

TOOLS = ("get", "set", "run", "send", "hinted", "again", "free")
REUSED = Reuse(("get*", "run", "set", "none"), 5.0)


def catalog(bundles: Mapping[str, Bundle] | None = None, **server: Any) -> Catalog:
    row = Server(
        **{"name": "s", "transport": "streamable-http", "trust": "trusted", "reuse": (REUSED,)}
        | server
    )
    made = {
        "read": Bundle("read", "", ("s.get", "s.free"), effects=("read",)),
        "net": Bundle("net", "", ("s.get", "s.send"), effects=("read", "network")),
        "write": Bundle("write", "", ("s.set", "s.hinted", "s.again"), effects=("read", "write")),
        "globs": Bundle("globs", "", (), patterns=("s.get_*",), effects=("read",)),
        "exec": Bundle("exec", "", ("s.run",), effects=("read", "exec")),
    }
    known = small_catalog(made | dict(bundles or {}), servers=[row])
    cards = {
        name: replace(card, idempotent=name == "s.hinted") for name, card in known.cards.items()
    }
    return replace(known, cards=cards)


@pytest.mark.parametrize(
    ("changes", "tool", "row"),
    [
        ({}, "s.get", REUSED),
        ({"trust": "untrusted"}, "s.get", None),
        ({"reuse": ()}, "s.get", None),
        ({"reuse": (Reuse(("get",), 0.0), REUSED)}, "s.get", None),
        ({"reuse": (Reuse(("get",), 0.5), REUSED)}, "s.get", Reuse(("get",), 0.5)),
        ({}, "s.free", None),  # no row names it
        ({}, "s.set", None),
        ({}, "s.run", None),
        ({}, "s.none", None),  # nobody declared it
        ({}, "s.get_x", None),  # what it is now is not known
        ({}, "t.get", None),
    ],
)
def test_a_result_is_used_again_by_the_operators_word_for_what_can_only_read(
    changes: Mapping[str, Any], tool: str, row: Reuse | None
) -> None:
    assert reuse_of(catalog(**changes), tool) == row


def test_a_tool_can_do_what_every_bundle_that_holds_it_declares() -> None:
    by_glob = {"glob": Bundle("glob", "", (), patterns=("s.fr*", "s.x*"), effects=("write",))}
    read_only = {tool for tool in TOOLS if is_read_only(catalog(), f"s.{tool}")}
    assert read_only == {"get", "free", "send"}
    assert not is_read_only(catalog(by_glob), "s.free")
    assert not is_read_only(catalog(), "s.unknown")
    nothing = {"mute": Bundle("mute", "", ("s.mute",), effects=())}
    assert not is_read_only(catalog(nothing), "s.mute")


def test_a_call_may_be_repeated_by_the_operators_word_a_trusted_hint_or_because_it_only_reads() -> (
    None
):
    known = catalog(idempotent=("ag*", "other"))
    assert {tool for tool in TOOLS if may_repeat(known, f"s.{tool}")} == {
        "get",
        "free",
        "send",
        "hinted",
        "again",
    }
    assert not may_repeat(known, "t.get")
    assert not may_repeat(known, "s.unknown")
    assert may_repeat(known, "s.other")  # the operator's word counts before a definition is there


@pytest.mark.parametrize(
    ("transport", "place"),
    [("local", HERE), ("stdio", HERE), ("streamable-http", "s"), ("sse", "s")],
)
def test_what_shares_this_machine_is_one_place(transport: str, place: str) -> None:
    assert place_of(catalog(transport=transport), "s.get") == place


def test_every_part_of_a_call_is_in_its_key() -> None:
    known, asked = catalog(), ReusableCall("s.get", {"path": "a"}, "ann", "r", ("/w",))
    changed = replace(
        known, cards={**known.cards, "s.get": replace(known.cards["s.get"], sha256="sha256:1")}
    )
    others = [
        replace(asked, tool="s.free"),
        replace(asked, arguments={"path": "b"}),
        replace(asked, principal="bob"),
        replace(asked, run_id="q"),
        replace(asked, where=("/x",)),
        replace(asked, principal="", run_id="ann"),
    ]
    keys = [key_of(known, one, REUSED) for one in (asked, *others)] + [
        key_of(changed, asked, REUSED)
    ]
    assert len({*keys}) == len(keys)
    shared = replace(REUSED, across_runs=True)
    across = [
        key_of(known, one, shared)
        for one in (asked, replace(asked, run_id="q"), replace(asked, principal="bob"))
    ]
    assert (across[0] == across[1], across[0] == across[2]) == (True, False)


def test_what_is_too_large_or_seems_to_have_failed_is_not_kept() -> None:
    most = ShapedResult(
        "x" * (MAX_ENTRY_BYTES - 3), (Blob(b"abc", "0" * 64, "media", MediaFacts("image/gif")),)
    )
    assert may_keep(most, "r.1", 9) == CachedResult(most, "r.1", 9)
    assert may_keep(replace(most, text=most.text + "x"), "r.1", 9) is None
    wide = ShapedResult("x" * (MAX_ENTRY_BYTES // 4 - 1) + "\U0001f600")
    assert may_keep(wide, "r.1", 9) == CachedResult(wide, "r.1", 9)
    assert may_keep(replace(wide, text=wide.text + "x"), "r.1", 9) is None, (
        "Python keeps four bytes a character then"
    )
    assert may_keep(ShapedResult("no", flags=("looks_like_error",)), "r.1", 9) is None


def test_what_is_kept_is_bounded_in_entries_and_bytes_and_dropped_by_its_place() -> None:
    def kept(size: int) -> CachedResult:
        return CachedResult(ShapedResult("x" * size), "r.1", 10)

    cache = ResultCache(max_entries=3, max_bytes=100)
    for key, place, size in (("a", "p", 50), ("b", "q", 50), ("a", "p", 50)):
        cache.put(key, place, kept(size))
    assert (len(cache), cache.bytes) == (
        2,
        100,
    )  # put twice, counted once; exactly as much as may be
    cache.put("c", "q", kept(1))
    assert (cache.get("b", 9), len(cache), cache.bytes) == (None, 2, 51)
    for key in "de":
        cache.put(key, "p", kept(1))
    assert (cache.get("a", 9), len(cache)) == (None, 3)
    cache.empty("p")
    assert (cache.get("c", 9), len(cache), cache.bytes) == (kept(1), 1, 1)
    assert (cache.get("c", 10), len(cache), cache.bytes) == (None, 0, 0)
    assert (MAX_ENTRIES, MAX_BYTES, MAX_ENTRY_BYTES) == (1_024, 64 << 20, 4 << 20)
