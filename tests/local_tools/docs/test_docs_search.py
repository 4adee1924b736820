"""Indexes of documentation sites, read from bytes, and the ranking over them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import pytest
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.site_search import (
    KINDS,
    MAX_INDEX,
    IndexEntry,
    SiteIndex,
    rank,
    read_inventory,
    read_llms,
    read_mkdocs,
    read_sitemap,
    read_sphinx_search,
    resolve_hits,
)
from bundle_router.local_tools.docs.urls import parse_url
from hypothesis import given
from hypothesis import strategies as st

Reader = Callable[[bytes], list[IndexEntry] | None]


def inventory(lines: str, *, version: int = 2) -> bytes:
    head = (
        f"# Sphinx inventory version {version}\n# Project: Tinycache\n# Version: 2.4\n# The rest is"
        " compressed.\n"
    )
    return head.encode() + zlib.compress(lines.encode())


def test_a_sphinx_inventory_gives_pages_sections_and_symbols() -> None:
    body = inventory(
        "tinycache.Store.put py:method 1 api.html#$ -\n"
        "guide/expiry std:doc -1 guide/expiry.html How values expire\n"
        "a name with spaces std:label -1 x.html#a-name A name\n"
        "torn line\n"
        "x py:function one y.html -\n"
    )
    assert read_inventory(body) == [
        IndexEntry("tinycache.Store.put", "api.html#tinycache.Store.put", "py:method"),
        IndexEntry("How values expire", "guide/expiry.html"),
        IndexEntry("A name", "x.html#a-name"),
    ]


def test_a_mkdocs_index_gives_sections_with_their_text() -> None:
    docs = [
        {
            "location": "config/#every-key",
            "title": "Every <b>key</b>",
            "text": "<p>All &amp; sundry\x1b</p>\ud800",
        },
        {"location": "no-title/"},
        "junk",
        {"location": 3, "title": "bad"},
    ]
    body = json.dumps({"config": {}, "docs": docs}).encode()
    assert read_mkdocs(body) == [IndexEntry("Every key", "config/#every-key", "", "All & sundry")]


@pytest.mark.parametrize("quote", ['"', ""], ids=["as JSON", "as JavaScript"])
def test_a_sphinx_search_index_gives_pages_and_sections_in_both_spellings(quote: str) -> None:
    keys = {
        "docnames": ["index", "api/store"],
        "titles": ["Welcome", "The <code>store</code>"],
        "titleterms": {"store": 1},
        "alltitles": {"Back ends": [[1, "back-ends"], [9, "x"], [0, None], "junk"]},
    }
    inner = ",".join(f"{quote}{key}{quote}:{json.dumps(value)}" for key, value in keys.items())
    assert read_sphinx_search(f"Search.setIndex({{{inner}}})".encode()) == [
        IndexEntry("Welcome", "index.html"),
        IndexEntry("The store", "api/store.html"),
        IndexEntry("Back ends", "api/store.html#back-ends"),
    ]


def test_llms_txt_gives_its_links_with_remarks() -> None:
    body = (
        b"# Harbor\n> Docs\n\n## \n- [Retries](https://h.example/retries.md): How to retry\n*"
        b" [Backoff](backoff.md)\n"
    )
    assert read_llms(body) == [
        IndexEntry("Retries", "https://h.example/retries.md", "", "How to retry"),
        IndexEntry("Backoff", "backoff.md"),
    ]


def test_a_sitemap_gives_urls_titled_by_their_words() -> None:
    body = b"""<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><urlset>
    <url><loc> https://h.example/en/rate-limits.html </loc></url><url><loc><![CDATA[https://h.example/a/?b=1&c]]></loc></url>
    <url><loc>https://h.example/</loc></url><url><loc>&e;</loc></url></urlset>"""
    assert read_sitemap(body) == [
        IndexEntry("en rate limits", "https://h.example/en/rate-limits.html"),
        IndexEntry("a b 1 c", "https://h.example/a/?b=1&c"),
        IndexEntry("start page", "https://h.example/"),
        IndexEntry("start page", "&e;"),
    ]


JUNK = {
    "nothing": b"",
    "a page": b"<!doctype html><title>Docs</title>",
    "deep JSON": b"[" * 200_000,
    "deep JSON in JavaScript": b"Search.setIndex({docnames:" + b"[" * 200_000,
    "JSON of another kind": b'{"docs": 3}',
    "a number as long as a page": b'{"docs": ' + b"1" * 100_000 + b"}",
    "an old inventory": inventory("x", version=1),
    "an inventory that does not inflate": b"# Sphinx inventory version 2\n#\n#\n#\nhello",
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.path))
@pytest.mark.parametrize("what", JUNK)
def test_what_is_no_index_is_not_read_as_one(kind: object, what: str) -> None:
    read: Reader = kind.read  # type: ignore[attr-defined]  # pytest hands parameters over untyped
    assert not read(JUNK[what])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.path))
@given(st.binary(max_size=300))
def test_no_bytes_make_a_reader_raise(kind: object, body: bytes) -> None:
    read: Reader = kind.read  # type: ignore[attr-defined]  # as above
    for start in (
        b"",
        b"# Sphinx inventory version 2\n\n\n\n",
        b"Search.setIndex({titles:",
        b"<urlset><loc>",
        b'{"docs":[',
    ):
        read(start + body)


def test_an_inventory_bomb_inflates_no_further_than_the_cap() -> None:
    line = f"{'a' * 80} py:function 1 b.html -\n"
    entries = read_inventory(inventory(line * 200_000))
    assert entries is not None
    assert 0 < len(entries) * len(line) <= MAX_INDEX + len(line)


SITE = [
    IndexEntry("json", "library/json.html", "py:module"),
    IndexEntry("json.JSONEncoder", "library/json.html#json.JSONEncoder", "py:class"),
    IndexEntry(
        "json.JSONEncoder.default", "library/json.html#json.JSONEncoder.default", "py:method"
    ),
    IndexEntry("json — JSON encoder and decoder", "library/json.html"),
    IndexEntry("The default behaviour of everything", "howto/default.html"),
    IndexEntry("Retry with back-off", "howto/retry.html", "", "wait longer after each failure"),
    IndexEntry("socket.socket.connect_ex", "library/socket.html#x", "py:method"),
]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("json", "json"),
        ("JSONEncoder", "json.JSONEncoder"),
        ("json.JSONEncoder.default", "json.JSONEncoder.default"),
        ("default jsonencoder", "json.JSONEncoder.default"),
        ("decoder", "json — JSON encoder and decoder"),
        ("retry back-off", "Retry with back-off"),
        ("failure longer", "Retry with back-off"),
        ("connect_ex", "socket.socket.connect_ex"),
        ("howto default", "The default behaviour of everything"),
        ("decod", "json — JSON encoder and decoder"),
    ],
)
def test_the_best_match_comes_first(query: str, first: str) -> None:
    assert rank(SITE, query)[0].title == first


@given(
    st.permutations(SITE),
    st.sampled_from(["json", "default", "json encoder default", "howto library"]),
)
def test_the_order_does_not_depend_on_the_order_of_the_index(
    entries: list[IndexEntry], query: str
) -> None:
    assert rank(entries, query) == rank(SITE, query)


def test_entries_without_any_word_of_the_query_are_left_out() -> None:
    assert rank(SITE, "quantum") == []
    with pytest.raises(ToolFailure):
        rank(SITE, " -_- ")


def test_each_url_is_named_once_with_its_fragment() -> None:
    root = parse_url("https://docs.example.org/")
    index = SiteIndex("x", root, root, [], cut=False)
    entries = [
        IndexEntry("a", "x.html#1"),
        IndexEntry("b", "x.html#1"),
        IndexEntry("c", "x.html#2"),
        IndexEntry("d", "a b.html"),
    ]
    assert [hit.url for hit in resolve_hits(index, entries, 10)] == [
        "https://docs.example.org/x.html#1",
        "https://docs.example.org/x.html#2",
        "https://docs.example.org/a%20b.html",
    ]
    assert len(resolve_hits(index, entries, 1)) == 1
