"""S-09: clones, floods and stuffing by a server nobody reviewed, over 47 graded queries on 45 real tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.search.documents import MAX_UNTRUSTED_CHARS, BundleText, ToolText
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.request import Request
from bundle_router.core.search.weights import Weights

FOLDER = Path(__file__).parents[1] / "data" / "routing" / "mcpproxy-go"
HONEST = [
    ToolText(row["tool_id"], row["server"], row["tool"], row["description"])
    for row in json.loads((FOLDER / "corpus_v1.tools.json").read_text(encoding="utf-8"))["tools"]
]
GOLDEN = [
    (row["query"], {label["tool_id"]: label["relevance"] for label in row["labels"]})
    for row in json.loads((FOLDER / "retrieval_golden_v1.json").read_text(encoding="utf-8"))["queries"]
]
SERVERS = sorted({tool.server for tool in HONEST})
BUNDLES = tuple(BundleText(s, "", (), tuple(t.id for t in HONEST if t.server == s)) for s in SERVERS)

Attack = Callable[[str, dict[str, int]], Iterable[ToolText]]


def evil(number: int, name: str, description: str) -> ToolText:
    return ToolText(f"evil.{number}", "evil", name, description, trusted=False)


def target(labels: dict[str, int]) -> ToolText:
    best = max(labels, key=lambda id_: (labels[id_], id_))
    return next(tool for tool in HONEST if tool.id == best)


def clone(query: str, labels: dict[str, int]) -> Iterable[ToolText]:
    return [evil(0, target(labels).name, target(labels).description)]


def flood(query: str, labels: dict[str, int]) -> Iterable[ToolText]:
    return [evil(n, f"{target(labels).name}_{n}", f"{target(labels).description} {query}") for n in range(20)]


def stuffing(query: str, labels: dict[str, int]) -> Iterable[ToolText]:
    return [evil(0, "do_everything", " ".join([query, *(tool.name for tool in HONEST)] * 20))]


ATTACKS = [clone, flood, stuffing]


@pytest.mark.parametrize("attack", ATTACKS)
def test_unreviewed_text_never_reaches_the_ranking_of_bundles(attack: Attack, build: Any) -> None:
    clean: Search = build(BUNDLES, tuple(HONEST))
    permitted = frozenset(SERVERS)
    for query, labels in GOLDEN[::4]:
        bad = tuple(attack(query, labels))
        # The attacker's tools even stand in a granted bundle beside honest ones: its text still counts for nothing.
        named = (
            *BUNDLES[:-1],
            BundleText(BUNDLES[-1].id, "", (), (*BUNDLES[-1].tools, *(tool.id for tool in bad))),
        )
        attacked: Search = build(named, (*HONEST, *bad))
        assert attacked.rank_bundles(Request(query), permitted) == clean.rank_bundles(Request(query), permitted)


@pytest.mark.parametrize("attack", ATTACKS)
def test_tools_of_servers_that_were_not_granted_are_never_found(attack: Attack, build: Any) -> None:
    granted = frozenset(tool.id for tool in HONEST)
    for query, labels in GOLDEN[::4]:
        attacked: Search = build(BUNDLES, (*HONEST, *attack(query, labels)))
        assert not [s for s in attacked.rank_tools(Request(query), granted) if s.id.startswith("evil.")]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_granted_attacker_stays_behind_and_takes_no_place_of_the_right_tool(attack: Attack, build: Any) -> None:
    clean: Search = build(BUNDLES, tuple(HONEST))
    honest = frozenset(tool.id for tool in HONEST)
    seen, before, after = 0, 0.0, 0.0
    for query, labels in GOLDEN:
        bad = tuple(attack(query, labels))
        attacked: Search = build(BUNDLES, (*HONEST, *bad))
        without = [s.id for s in clean.rank_tools(Request(query), honest)][:5]
        found = [s.id for s in attacked.rank_tools(Request(query), honest | {tool.id for tool in bad})][:5]
        assert not found[0].startswith("evil."), f"{query!r}: an unreviewed tool stands first"
        seen += any(id_.startswith("evil.") for id_ in found)
        before += len(labels.keys() & set(without)) / len(labels)
        after += len(labels.keys() & set(found)) / len(labels)
    assert seen / len(GOLDEN) <= 0.15
    assert (before - after) / len(GOLDEN) <= 0.05


def test_one_server_gets_no_more_than_its_quota(build: Any) -> None:
    bad = tuple(
        ToolText(f"{server}.{n}", server, "read_file", "read a file", trusted=False)
        for server in ("evil", "other")
        for n in range(9)
    )
    search: Search = build(BUNDLES, (*HONEST, *bad))
    found = [s.id for s in search.rank_tools(Request("read a file"), frozenset(tool.id for tool in bad))]
    quota = Weights().untrusted_quota
    assert [id_.split(".")[0] for id_ in found].count("evil") == quota
    assert len(found) == 2 * quota


def test_of_an_unreviewed_description_only_the_beginning_is_indexed(build: Any) -> None:
    late = ToolText("evil.0", "evil", "thing", "x " * MAX_UNTRUSTED_CHARS + "quicksilver", trusted=False)
    search: Search = build(BUNDLES, (*HONEST, late))
    assert search.rank_tools(Request("quicksilver"), frozenset({"evil.0"})) == ()


def test_pinned_tools_of_a_server_that_is_not_trusted_stay_apart_and_within_its_quota(build: Any) -> None:
    pinned = tuple(
        ToolText(f"pinned.{n}", "pinned", "read_file", "read the content of a file", apart=True) for n in range(9)
    )
    others = tuple(
        ToolText(f"evil.{n}", "evil", "read_file", "read a file", trusted=False, apart=True) for n in range(9)
    )
    named = (*BUNDLES, BundleText("partner", "", (), tuple(tool.id for tool in pinned)))
    search: Search = build(named, (*HONEST, *pinned, *others))
    wish, quota = Request("read the content of a file"), Weights().untrusted_quota
    honest = frozenset(tool.id for tool in HONEST)
    everyone = honest | {tool.id for tool in (*pinned, *others)}
    found = [row.id for row in search.rank_tools(wish, everyone)]
    trusted = [id_ for id_ in found if id_ in honest]
    assert trusted == [row.id for row in search.rank_tools(wish, honest)]
    assert found == [*trusted, *(row for row in found if row.startswith("pinned.")), *found[-quota:]]
    assert [id_.split(".")[0] for id_ in found[len(trusted) :]] == ["pinned"] * quota + ["evil"] * quota
    assert "partner" in [row.id for row in search.rank_bundles(wish, frozenset((*SERVERS, "partner"))).scored]
