"""S-09: clones, floods and stuffing by a server nobody reviewed, over 47 graded queries on 45 real
tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.search.documents import MAX_UNREAD_CHARS, BundleText, ToolText
from bundle_router.core.search.passes import Weights
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.request import Request
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(__file__).parents[2] / "data" / "routing" / "mcpproxy-go"
HONEST = [
    ToolText(row["tool_id"], row["server"], row["tool"], row["description"])
    for row in json.loads((FOLDER / "corpus_v1.tools.json").read_text(encoding="utf-8"))["tools"]
]
GOLDEN = [
    (row["query"], {label["tool_id"]: label["relevance"] for label in row["labels"]})
    for row in json.loads((FOLDER / "retrieval_golden_v1.json").read_text(encoding="utf-8"))[
        "queries"
    ]
]
SERVERS = sorted({tool.server for tool in HONEST})
BUNDLES = tuple(
    BundleText(s, "", (), tuple(t.id for t in HONEST if t.server == s)) for s in SERVERS
)

Attack = Callable[[str, dict[str, int]], Iterable[ToolText]]


def evil(number: int, name: str, description: str) -> ToolText:
    return ToolText(f"evil.{number}", "evil", name, description, standing="unread")


def target(labels: dict[str, int]) -> ToolText:
    best = max(labels, key=lambda id_: (labels[id_], id_))
    return next(tool for tool in HONEST if tool.id == best)


def clone(query: str, labels: dict[str, int]) -> Iterable[ToolText]:
    return [evil(0, target(labels).name, target(labels).description)]


def flood(query: str, labels: dict[str, int]) -> Iterable[ToolText]:
    return [
        evil(n, f"{target(labels).name}_{n}", f"{target(labels).description} {query}")
        for n in range(20)
    ]


def stuffing(query: str, labels: dict[str, int]) -> Iterable[ToolText]:
    return [evil(0, "do_everything", " ".join([query, *(tool.name for tool in HONEST)] * 20))]


ATTACKS = [clone, flood, stuffing]


@pytest.mark.parametrize("attack", ATTACKS)
def test_unreviewed_text_never_reaches_the_ranking_of_bundles(attack: Attack, build: Any) -> None:
    clean: Search = build(BUNDLES, tuple(HONEST))
    permitted = frozenset(SERVERS)
    for query, labels in GOLDEN[::4]:
        bad = tuple(attack(query, labels))
        # The attacker's tools even stand in a granted bundle beside honest ones: its text still
        # counts for nothing.
        named = (
            *BUNDLES[:-1],
            BundleText(BUNDLES[-1].id, "", (), (*BUNDLES[-1].tools, *(tool.id for tool in bad))),
        )
        attacked: Search = build(named, (*HONEST, *bad))
        assert attacked.rank_bundles(Request(query), permitted) == clean.rank_bundles(
            Request(query), permitted
        )


@pytest.mark.parametrize("attack", ATTACKS)
def test_tools_of_servers_that_were_not_granted_are_never_found(attack: Attack, build: Any) -> None:
    granted = frozenset(tool.id for tool in HONEST)
    for query, labels in GOLDEN[::4]:
        attacked: Search = build(BUNDLES, (*HONEST, *attack(query, labels)))
        assert not [
            s for s in attacked.rank_tools(Request(query), granted) if s.id.startswith("evil.")
        ]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_granted_attacker_stays_behind_and_takes_no_place_of_the_right_tool(
    attack: Attack, build: Any
) -> None:
    clean: Search = build(BUNDLES, tuple(HONEST))
    honest = frozenset(tool.id for tool in HONEST)
    seen, before, after = 0, 0.0, 0.0
    for query, labels in GOLDEN:
        bad = tuple(attack(query, labels))
        attacked: Search = build(BUNDLES, (*HONEST, *bad))
        without = [s.id for s in clean.rank_tools(Request(query), honest)][:5]
        found = [
            s.id for s in attacked.rank_tools(Request(query), honest | {tool.id for tool in bad})
        ][:5]
        assert not found[0].startswith("evil."), f"{query!r}: an unreviewed tool stands first"
        seen += any(id_.startswith("evil.") for id_ in found)
        before += len(labels.keys() & set(without)) / len(labels)
        after += len(labels.keys() & set(found)) / len(labels)
    assert seen / len(GOLDEN) <= 0.15
    assert (before - after) / len(GOLDEN) <= 0.05


def test_one_server_gets_no_more_than_its_quota(build: Any) -> None:
    bad = tuple(
        ToolText(f"{server}.{n}", server, "read_file", "read a file", standing="unread")
        for server in ("evil", "other")
        for n in range(9)
    )
    search: Search = build(BUNDLES, (*HONEST, *bad))
    found = [
        s.id for s in search.rank_tools(Request("read a file"), frozenset(tool.id for tool in bad))
    ]
    quota = Weights().unread_quota
    assert [id_.split(".")[0] for id_ in found].count("evil") == quota
    assert len(found) == 2 * quota


def test_of_an_unreviewed_description_only_the_beginning_is_indexed(build: Any) -> None:
    late = ToolText(
        "evil.0", "evil", "thing", "x " * MAX_UNREAD_CHARS + "quicksilver", standing="unread"
    )
    search: Search = build(BUNDLES, (*HONEST, late))
    assert search.rank_tools(Request("quicksilver"), frozenset({"evil.0"})) == ()


def pinned(tools: Iterable[ToolText]) -> tuple[ToolText, ...]:
    return tuple(replace(tool, standing="pinned") for tool in tools)


@pytest.mark.parametrize("attack", ATTACKS)
def test_pinned_text_of_a_server_that_is_not_trusted_changes_no_score_of_any_bundle(
    attack: Attack, build: Any
) -> None:
    plain = ToolText("evil.0", "evil", "do_things", "Does things.", standing="pinned")
    named = (*BUNDLES, BundleText("evil", "Do things", (), ("evil.0",)))
    clean: Search = build(named, (*HONEST, plain))
    permitted = frozenset((*SERVERS, "evil"))
    for query, labels in GOLDEN[::4]:
        attacked: Search = build(named, (*HONEST, *pinned(attack(query, labels))))
        assert attacked.rank_bundles(Request(query), permitted) == clean.rank_bundles(
            Request(query), permitted
        )


def test_a_word_that_only_pinned_text_knows_is_as_misspelt_as_before(build: Any) -> None:
    named = (*BUNDLES, BundleText("evil", "Do things", (), ("evil.0",)))
    permitted = frozenset((*SERVERS, "evil"))
    request = Request("clone the repostory")
    one, other = (
        build(named, (*HONEST, ToolText("evil.0", "evil", "do_things", said, standing="pinned")))
        for said in ("a repostory", "Does things.")
    )
    assert one.rank_bundles(request, permitted) == other.rank_bundles(request, permitted)


@given(st.text(max_size=300), st.lists(st.text(max_size=40), max_size=5), st.sampled_from(GOLDEN))
def test_no_pinned_text_at_all_changes_a_bundle(
    build: Any, text: str, names: list[str], row: tuple[str, dict[str, int]]
) -> None:
    named = (*BUNDLES, BundleText("evil", "Do things", (), ("evil.0",)))
    permitted = frozenset((*SERVERS, "evil"))
    for request in (Request(row[0]), Request(text)):
        one, other = (
            build(
                named,
                (
                    *HONEST[:9],
                    ToolText("evil.0", "evil", "do_things", said, tuple(names), said, "pinned"),
                ),
            )
            for said in (text, "Does things.")
        )
        assert one.rank_bundles(request, permitted) == other.rank_bundles(request, permitted)


def test_pinned_tools_are_found_as_well_as_if_their_servers_were_trusted(build: Any) -> None:
    everyone = frozenset(tool.id for tool in HONEST)
    trusted, untrusted = build(BUNDLES, tuple(HONEST)), build(BUNDLES, pinned(HONEST))
    shares = [
        sum(len(labels.keys() & {row.id for row in search.rank_tools(Request(query), everyone, k=5)}) / len(labels)
            for query, labels in GOLDEN) / len(GOLDEN)
        for search in (trusted, untrusted)
    ]  # fmt: skip
    assert shares[1] >= shares[0] - 0.03


def test_a_pinned_flood_leaves_places_to_tools_of_others_that_match_half_as_well(
    build: Any,
) -> None:
    places, quota, alike = Weights().first_places, Weights().pinned_quota, Weights().alike
    shares, recalls = [0, 0], [0.0, 0.0]
    for query, labels in GOLDEN:
        bad = tuple(replace(tool, standing="pinned") for tool in flood(query, labels))
        named = (*BUNDLES, BundleText("evil", "", (), tuple(tool.id for tool in bad)))
        search: Search = build(named, (*HONEST, *bad))
        everyone = frozenset(tool.id for tool in (*HONEST, *bad))
        without_quota = replace(search, weights=replace(search.weights, pinned_quota=len(bad)))
        rows = [one.rank_tools(Request(query), everyone) for one in (without_quota, search)]
        assert {row.id for row in rows[0]} == {
            row.id for row in rows[1]
        }  # nothing is lost, only later
        for at, ranked in enumerate(rows):
            first = {row.id for row in ranked[:places]}
            shares[at] += sum(id_.startswith("evil.") for id_ in first)
            recalls[at] += len(labels.keys() & first) / len(labels)
        of_evil = [row for row in rows[0] if row.id.startswith("evil.")]
        others = [row for row in rows[0] if not row.id.startswith("evil.")]
        alikes = sum(row.score >= alike * of_evil[quota].score for row in others[: places - quota])
        assert sum(row.id.startswith("evil.") for row in rows[1][:places]) <= places - alikes
    assert shares[0] >= 0.99 * places * len(GOLDEN), "the flood takes every place"
    assert recalls[0] == 0.0
    assert recalls[1] / len(GOLDEN) >= 0.4


def test_pinned_tools_alone_take_every_place_and_stand_before_what_nobody_has_read(
    build: Any,
) -> None:
    read = tuple(
        ToolText(f"partner.{n}", "partner", "read_file", "read a file", standing="pinned")
        for n in range(9)
    )
    others = tuple(
        ToolText(f"evil.{n}", "evil", "read_file", "read a file", standing="unread")
        for n in range(9)
    )
    named = (*BUNDLES, BundleText("partner", "", (), tuple(tool.id for tool in read)))
    search: Search = build(named, (*HONEST, *read, *others))
    found = [
        row.id
        for row in search.rank_tools(
            Request("read a file"), frozenset(t.id for t in (*read, *others))
        )
    ]
    quota = Weights().unread_quota
    assert [id_.split(".")[0] for id_ in found] == ["partner"] * 9 + ["evil"] * quota
