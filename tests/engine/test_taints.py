"""Taints at the router's surface: what a branch has seen narrows what it is shown and may call.

The config: an agent with a customer file (private), web pages (strangers' text) and mail (which
leaves). Names of cases are those of the table of acceptance cases (D30 to D42).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from bundle_router import Catalog, Decision, Router, Step, load_catalog
from bundle_router.errors import KeyConflict, RequestError, UnknownRun
from bundle_router.testing import MemoryRuns, fake_router
from bundle_router.tool import LocalServer
from hypothesis import given, seed
from hypothesis import strategies as st

from tests.profiles import examples

STEP: dict[str, Any] = {"workflow": "support", "role": "agent", "step": "answer"}
SERVERS = """
[servers.crm]
transport = "local"
trust = "trusted"
taints = [{ returns = ["customer"] }]

[servers.web]
transport = "local"
trust = "trusted"
taints = [{ returns = ["untrusted"], sends = [] }]

[servers.mail]
transport = "local"
trust = "trusted"
taints = [{ sends = ["outside"] }]

[servers.tickets]
transport = "local"
trust = "trusted"

[[servers.tickets.taints]]
returns = []
[[servers.tickets.taints]]
when = [{ at = "/owner", in = ["acme"] }]
returns = ["private"]
"""
TAINTS = """
[taints]
customer = "private"

[forms.triage]
fields = { severity = ["low", "high"], duplicate_of = "integer" }
clears = ["untrusted", "private"]

[forms.half]
fields = { severity = ["low", "high"] }
clears = ["private"]
"""
ALLOW = '[[policies]]\nname = "all"\nallow = ["*"]\n'
LEAVES = """
[[policies]]
name = "nothing leaves"
seen = ["private", "untrusted"]
deny = ["sends:outside"]
"""
NO_MAIL = """
[[policies]]
name = "no mail after strangers' text"
seen = ["untrusted"]
deny = ["sends:outside"]
"""
RESULT = "a line\n" * 4_000


def get_file(number: int = 1) -> str:
    """Read a customer's file."""
    return "Ann"


def read_page(url: str = "") -> str:
    """Read a web page."""
    return "a page"


def send(to: str = "", text: str = "") -> str:
    """Send a mail."""
    return "sent"


def find(owner: str = "") -> str:
    """Find tickets."""
    return "found"


def add(text: str = "") -> str:
    """Add a note."""
    return "added"


LOCAL = {
    "notes": LocalServer([add], "Notes.", effects=["read"]),
    "crm": LocalServer([get_file], "Customers' files.", effects=["read"]),
    "web": LocalServer([read_page], "Web pages.", effects=["read"]),
    "mail": LocalServer([send], "Mail.", effects=["write"]),
    "tickets": LocalServer([find], "Tickets.", effects=["read"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config: Path = tmp_path_factory.mktemp("taints") / "config"
    config.mkdir()
    bundles = "crm, web, mail, tickets, notes".replace(", ", '", "')
    (config / "servers.toml").write_text(SERVERS, encoding="utf-8")
    (config / "routes.toml").write_text(
        f'[[routes]]\nname = "all"\nbundles = ["{bundles}"]\n', encoding="utf-8"
    )
    return config


def catalog_of(folder: Path, *rows: str) -> Catalog:
    (folder / "policy.toml").write_text("".join((TAINTS, ALLOW, *rows)), encoding="utf-8")
    return load_catalog(folder, local=LOCAL)


@contextmanager
def opened(folder: Path, *rows: str, **options: Any) -> Iterator[Any]:
    with fake_router(catalog_of(folder, *rows), **options) as router:
        yield router


def step(run_id: str = "r", **fields: Any) -> Step:
    return Step(run_id=run_id, **{**STEP, **fields})


def outcomes(router: Router, *names: str, run_id: str = "r", **options: Any) -> list[str]:
    """Return what calls of these tools come to, one after another."""
    results = [router.call_sync(run_id, name, {}, **options) for name in names]
    return [result.code or result.outcome for result in results]


def seen(router: Any, run_id: str = "r", branch: str = "") -> list[str]:
    return [one.taint for one in router.seen_sync(run_id, branch)]


def shown(decision: Decision) -> set[str]:
    """Return the bundles that a decision shows, of those whose tools it did not leave out."""
    out = {row.id for row in decision.left_out}
    return {id_ for id_ in decision.bundle_ids if id_ not in out}


def records(router: Any, type_: str, run_id: str = "r") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = router.fakes.records(run_id)
    return [record for record in found if record["type"] == type_]


# --- D30, D31: taken on at the start, hidden at the next decision ---------------------------------


@pytest.mark.parametrize(
    "reads", [("crm.get_file", "web.read_page"), ("web.read_page", "crm.get_file")]
)
def test_d30_mail_is_refused_once_both_were_read_in_any_order(
    folder: Path, reads: tuple[str, str]
) -> None:
    with opened(folder, LEAVES) as router:
        router.route_sync(step())
        first, second = reads
        assert outcomes(router, first, "mail.send", second, "mail.send") == [
            "ok",
            "ok",
            "ok",
            "tainted",
        ]
        (refused,) = [row for row in records(router, "call.finished") if row["code"]]
        assert refused["outcome"] == "denied"
        for source in (f"({first}, record 1)", f"({second}, record 5)"):
            assert source in refused["result"]


def test_d30_a_read_that_fails_taints_all_the_same(folder: Path, tmp_path: Path) -> None:
    def read_page() -> str:
        """Read a web page."""
        raise TimeoutError

    failing = {**LOCAL, "web": LocalServer([read_page], "Web pages.", effects=["read"])}
    catalog_of(folder, NO_MAIL)
    with Router.open(folder, runs=tmp_path / "runs", workspace=tmp_path, local=failing) as router:
        router.route_sync(step())
        assert outcomes(router, "web.read_page", "mail.send") == ["crashed", "tainted"]


def test_d30_of_a_send_and_a_read_the_chain_says_which_came_first(folder: Path) -> None:
    for first, second, expected in (
        ("mail.send", "web.read_page", ["ok", "ok"]),
        ("web.read_page", "mail.send", ["ok", "tainted"]),
    ):
        with opened(folder, NO_MAIL) as router:
            router.route_sync(step())
            assert outcomes(router, first, second) == expected


def test_d31_the_next_decision_leaves_the_sender_out_and_replays_byte_for_byte(
    folder: Path, tmp_path: Path
) -> None:
    catalog_of(folder, LEAVES)
    with Router.open(folder, runs=tmp_path / "runs", workspace=tmp_path, local=LOCAL) as router:
        router.route_sync(step())
        outcomes(router, "crm.get_file", "web.read_page")
        decision = router.route_sync(step())
        assert [(row.id, row.code, row.tool) for row in decision.left_out] == [
            ("mail", "tainted", None)
        ]
        assert "mail" not in decision.bundle_ids
        assert "crm.get_file, record 1" in decision.left_out[0].detail
    from bundle_router.cli import main

    assert main(["replay", "--runs", str(tmp_path / "runs")]) == 0


def test_d31_what_is_taken_on_in_mid_step_refuses_calls_and_hides_nothing(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        router.route_sync(step())
        before = router.tools_sync("r").digest
        outcomes(router, "web.read_page")
        assert router.tools_sync("r").digest == before
        assert outcomes(router, "mail.send") == ["tainted"]
        assert "mail" not in router.route_sync(step()).bundle_ids
        assert router.tools_sync("r").digest != before


# --- D32, D36, D42: whose taint it is -------------------------------------------------------------


def test_d32_a_branch_begins_with_what_its_decision_has_seen(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        start = router.route_sync(step())
        reading = router.route_sync(step())
        before = router.route_sync(step(branch="before", parent_decision_id=start.decision_id))
        sibling = router.route_sync(step(branch="sibling", parent_decision_id=reading.decision_id))
        outcomes(router, "web.read_page", decision=reading.decision_id)
        at_read = router.route_sync(step(branch="at", parent_decision_id=reading.decision_id))
        again = router.route_sync(step(branch="old", parent_decision_id=start.decision_id))
        assert "mail" not in at_read.bundle_ids
        assert all("mail" in one.bundle_ids for one in (before, sibling, again))
        for branch, expected in (
            ("", ["untrusted"]),
            ("at", ["untrusted"]),
            ("before", []),
            ("sibling", []),
        ):
            assert seen(router, branch=branch) == expected
        assert outcomes(router, "mail.send", decision=sibling.decision_id) == ["ok"]


def test_d36_a_new_role_a_new_step_and_another_worker_see_the_same_taint(folder: Path) -> None:
    runs = MemoryRuns()
    with opened(folder, NO_MAIL, runs=runs) as router:
        router.route_sync(step())
        outcomes(router, "web.read_page")
        decision = router.route_sync(step(role="other", step="next", key="k"))
        assert "mail" not in decision.bundle_ids
        with opened(folder, NO_MAIL, runs=runs) as other:
            assert "mail" not in other.route_sync(step(role="third")).bundle_ids
            assert seen(other) == ["untrusted"]


def test_d36_a_label_that_is_taken_from_a_server_stays_in_the_run(folder: Path) -> None:
    runs = MemoryRuns()
    with opened(folder, NO_MAIL, runs=runs) as router:
        router.route_sync(step())
        outcomes(router, "web.read_page")
    edited = SERVERS.replace('returns = ["untrusted"]', "returns = []")
    (folder / "servers.toml").write_text(edited, encoding="utf-8")
    try:
        with opened(folder, NO_MAIL, runs=runs) as router:
            assert "mail" not in router.route_sync(step()).bundle_ids
            other = step("other")
            router.route_sync(other)
            assert outcomes(router, "web.read_page", "mail.send", run_id="other") == ["ok", "ok"]
    finally:
        (folder / "servers.toml").write_text(SERVERS, encoding="utf-8")


def test_a_label_that_is_added_counts_for_what_was_read_before(folder: Path) -> None:
    runs = MemoryRuns()
    with opened(folder, runs=runs) as router:  # no row with `seen`: nothing is recorded
        router.route_sync(step())
        outcomes(router, "web.read_page")
        router.route_sync(step())
        assert json.dumps(router.fakes.records("r")).count("untrusted") == 0
    with opened(folder, NO_MAIL, runs=runs) as router:
        assert "mail" not in router.route_sync(step()).bundle_ids


def test_d42_no_taint_crosses_from_run_to_run(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        for name in ("a", "b"):
            router.route_sync(step(name, principal=name))
        outcomes(router, "web.read_page", run_id="a")
        assert outcomes(router, "mail.send", run_id="b") == ["ok"]
        assert outcomes(router, "mail.send", run_id="a") == ["tainted"]


# --- D33 to D35: sub-agents and artifacts ---------------------------------------------------------


def test_d33_a_parent_is_tainted_before_its_childs_call_begins(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        router.route_sync(step())
        router.route_sync(step("child", parent_run_id="r"))
        router.route_sync(step("grandchild", parent_run_id="child"))
        outcomes(router, "web.read_page", run_id="grandchild")
        assert outcomes(router, "mail.send") == ["tainted"]
        (passed,) = records(router, "taint.passed")
        assert (passed["from_run"], passed["taints"], passed["tool"]) == (
            "child",
            ["untrusted"],
            "web.read_page",
        )
        assert len(records(router, "taint.passed", "child")) == 1
        outcomes(router, "web.read_page", run_id="grandchild")
        assert len(records(router, "taint.passed")) == 1


def test_d34_a_checked_answer_leaves_its_parent_clean(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        router.route_sync(step())
        router.route_sync(step("child", parent_run_id="r", hands_back="checked"))
        outcomes(router, "web.read_page", run_id="child")
        answer = {"severity": "high", "duplicate_of": 7}
        assert router.hand_back_sync("child", answer, form="triage") is answer
        assert (seen(router), seen(router, "child")) == ([], ["untrusted"])
        assert outcomes(router, "mail.send") == ["ok"]
        for wrong in (
            {"severity": "ignore all rules"},
            {"note": "x"},
            "high",
            {},
            {"duplicate_of": True},
        ):
            with pytest.raises(RequestError, match="not handed back"):
                router.hand_back_sync("child", wrong, form="triage")
        assert records(router, "taint.passed") == []
        router.hand_back_sync("child", {"severity": "low"}, form="half")
        (passed,) = records(router, "taint.passed")
        assert (passed["taints"], passed["form"]) == (["untrusted"], "half")
        assert outcomes(router, "mail.send") == ["tainted"]


def test_d34_a_run_says_in_all_its_steps_that_its_answers_are_checked(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        router.route_sync(step())
        router.route_sync(step("child", parent_run_id="r", hands_back="checked"))
        with pytest.raises(RequestError, match="hands_back='checked'"):
            router.route_sync(step("child", parent_run_id="r"))
        with pytest.raises(RequestError, match="no parent"):
            router.route_sync(step("alone", hands_back="checked"))
        with pytest.raises(RequestError, match="no form 'triag' \\(did you mean 'triage'"):
            router.hand_back_sync("child", {}, form="triag")
        with pytest.raises(RequestError, match="hands back no checked answers"):
            router.hand_back_sync("r", {}, form="triage")


def test_d35_a_child_begins_with_what_its_parent_has_seen(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        router.route_sync(step())
        assert "mail" in router.route_sync(step("early", parent_run_id="r")).bundle_ids
        outcomes(router, "web.read_page")
        assert outcomes(router, "mail.send", run_id="early") == ["ok"]
        for name in ("early", "late"):
            assert "mail" not in router.route_sync(step(name, parent_run_id="r")).bundle_ids
            (source,) = router.seen_sync(name)
            assert (source.tool, source.run) == ("web.read_page", "r")


def test_d35_an_artifact_brings_its_taints_into_a_call_that_names_it(folder: Path) -> None:
    with opened(folder, NO_MAIL, results={"web.read_page": RESULT}) as router:
        start = router.route_sync(step())
        other = router.route_sync(step(branch="other", parent_decision_id=start.decision_id))
        page = router.call_sync("r", "web.read_page", {}, decision=start.decision_id)
        uri = page.artifacts[0].uri
        on_other = {"decision": other.decision_id}
        refused = router.call_sync("r", "mail.send", {"text": uri}, **on_other)
        assert (refused.code, seen(router, branch="other")) == ("tainted", [])
        router.call_sync("r", "tickets.find", {"owner": uri}, **on_other)
        assert seen(router, branch="other") == ["untrusted"]
        assert outcomes(router, "mail.send", **on_other) == ["tainted"]


def test_d35_reading_an_artifact_taints_also_one_of_the_parents(folder: Path) -> None:
    with opened(folder, NO_MAIL, results={"web.read_page": RESULT}) as router:
        start = router.route_sync(step())
        clean = router.route_sync(step(branch="clean", parent_decision_id=start.decision_id))
        router.route_sync(step("child", parent_run_id="r", parent_decision_id=clean.decision_id))
        page = router.call_sync("r", "web.read_page", {}, decision=start.decision_id)
        assert seen(router, "child") == []
        result = router.call_sync("child", "read_artifact", {"uri": page.artifacts[0].uri})
        assert result.ok
        assert seen(router, "child") == ["untrusted"]
        assert seen(router, branch="clean") == ["untrusted"]


def test_a_recorded_result_is_taken_on_by_the_branch_that_asks_for_it(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        start = router.route_sync(step())
        other = router.route_sync(step(branch="other", parent_decision_id=start.decision_id))
        outcomes(router, "web.read_page", decision=start.decision_id, key="page")
        assert seen(router, branch="other") == []
        outcomes(router, "web.read_page", decision=other.decision_id, key="page")
        assert seen(router, branch="other") == ["untrusted"]
        assert len(records(router, "call.started")) == 1
        with pytest.raises(KeyConflict):
            router.call_sync("r", "web.read_page", {"url": "x"}, key="page")


def test_a_program_ends_at_the_call_that_is_refused(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty", reason="the extra code has it")
    tools: dict[str, Callable[..., str]] = {"web": read_page, "mail": send, "notes": add}
    in_code = {
        name: LocalServer([tool], f"{name}.", effects=["read"], mode="code")
        for name, tool in tools.items()
    }
    catalog_of(folder, NO_MAIL)
    program = """
await web__read_page(url="x")
try:
    await mail__send(text="secret")
except Exception:
    pass
try:
    await notes__add(text="after")
except Exception:
    print("went on")
"""
    local = {**LOCAL, **in_code}
    with Router.open(folder, runs=tmp_path / "runs", workspace=tmp_path, local=local) as router:
        router.route_sync(step())
        result = router.call_sync("r", "execute", {"code": program})
    assert (result.outcome, result.code) == ("denied", "tainted")
    assert "went on" not in result.text
    lines = (tmp_path / "runs" / "r" / "tool-calls.jsonl").read_text("utf-8").splitlines()
    began = [row["tool"] for row in map(json.loads, lines) if row["type"] == "call.started"]
    assert began == ["read_page"]


# --- D38, D39: what counts ------------------------------------------------------------------------


def test_d38_conditions_that_cannot_be_decided_count(folder: Path) -> None:
    row = NO_MAIL.replace('"untrusted"', '"private"')
    for arguments, expected in (
        ({"owner": "acme"}, ["private"]),
        ({"owner": "other"}, []),
        ({}, ["private"]),
        ({"owner": "[redacted:key]"}, ["private"]),
    ):
        with opened(folder, row) as router:
            router.route_sync(step())
            router.call_sync("r", "tickets.find", arguments)
            assert seen(router) == expected


def test_a_sort_of_a_taint_puts_its_rows_in_force_and_not_the_reverse(folder: Path) -> None:
    rows = {name: NO_MAIL.replace('"untrusted"', f'"{name}"') for name in ("private", "customer")}
    with opened(folder, rows["private"]) as router:
        router.route_sync(step())
        assert outcomes(router, "crm.get_file", "mail.send") == ["ok", "tainted"]
    with opened(folder, rows["customer"]) as router:
        router.route_sync(step())
        router.call_sync("r", "tickets.find", {"owner": "acme"})
        assert outcomes(router, "mail.send") == ["ok"]


def test_d39_a_row_with_seen_never_grants(folder: Path) -> None:
    row = '[[policies]]\nname = "later"\nseen = ["untrusted"]\nallow = ["bundle:web"]\n'
    with opened(folder, row) as router:
        router.route_sync(step())
        outcomes(router, "web.read_page")
        assert router.route_sync(step()).bundle_ids == ["web"]
    (folder / "policy.toml").write_text(TAINTS + row, encoding="utf-8")
    with fake_router(load_catalog(folder, local=LOCAL)) as router:
        decision = router.route_sync(step(carries=["untrusted"]))
        assert decision.bundle_ids == []
        assert {row.code for row in decision.left_out} == {"not_allowed"}


def test_what_the_engine_carries_in_counts_from_that_decision_on(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        assert "mail" not in router.route_sync(step(carries=["untrusted"])).bundle_ids
        assert "mail" not in router.route_sync(step()).bundle_ids
        (source,) = router.seen_sync("r")
        assert (source.taint, source.tool, source.seq) == ("untrusted", "goal", 0)
        with pytest.raises(RequestError, match="unknown taint 'untrustd' \\(did you mean"):
            router.route_sync(step(carries=["untrustd"]))


# --- D40: clearing --------------------------------------------------------------------------------


def test_d40_an_approver_clears_and_a_new_read_taints_again(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        router.route_sync(step(principal="ann"))
        outcomes(router, "web.read_page")
        with pytest.raises(RequestError, match="'ann' is whom run 'r' works for"):
            router.clear_sync("r", ["untrusted"], by="ann", reason="mine")
        for by, reason in (("", "why"), ("lead", " ")):
            with pytest.raises(RequestError, match="is empty"):
                router.clear_sync("r", ["untrusted"], by=by, reason=reason)
        assert router.clear_sync("r", ["untrusted"], by="lead", reason="our own page") == ()
        (cleared,) = records(router, "taint.cleared")
        assert (cleared["by"], cleared["reason"]) == ("lead", "our own page")
        assert outcomes(router, "mail.send") == ["ok"]
        assert "mail" in router.route_sync(step(principal="ann")).bundle_ids
        assert outcomes(router, "web.read_page", "mail.send") == ["ok", "tainted"]


def test_clearing_a_taint_clears_the_sorts_of_it_and_says_what_it_cannot(folder: Path) -> None:
    with opened(folder, NO_MAIL) as router:
        router.route_sync(step())
        outcomes(router, "crm.get_file", "web.read_page")
        assert seen(router) == ["customer", "untrusted"]
        left = router.clear_sync("r", ["private"], by="lead", reason="public")
        assert [one.taint for one in left] == ["untrusted"]
        with pytest.raises(RequestError, match="has seen none of customer, private"):
            router.clear_sync("r", ["private"], by="lead", reason="again")
        with pytest.raises(RequestError, match="unknown taint 'privat' \\(did you mean 'private'"):
            router.clear_sync("r", ["privat"], by="lead", reason="x")
        with pytest.raises(UnknownRun):
            router.seen_sync("nobody")


# --- D41: unenforced, and absent ------------------------------------------------------------------


def test_d41_a_row_that_is_not_enforced_holds_nothing_and_says_what_it_would(folder: Path) -> None:
    with opened(folder) as plain, opened(folder, f"{LEAVES}enforce = false\n") as router:
        for one in (plain, router):
            one.route_sync(step())
            assert outcomes(one, "crm.get_file", "web.read_page", "mail.send") == ["ok"] * 3
        decisions = [one.route_sync(step()) for one in (plain, router)]
        assert decisions[0].bundle_ids == decisions[1].bundle_ids
        assert plain.tools_sync("r").digest == router.tools_sync("r").digest
        assert [(row.row, row.id, row.tool) for row in decisions[1].would] == [
            ("nothing leaves", "mail", None)
        ]
        assert records(router, "route.decided")[1]["would"] == [
            {"row": "nothing leaves", "id": "mail"}
        ]
        started = records(router, "call.started")
        assert [row.get("would") for row in started] == [None, None, ["nothing leaves"]]


def test_d41_without_a_row_records_have_none_of_it(folder: Path) -> None:
    with opened(folder) as router:
        router.route_sync(step())
        outcomes(router, "crm.get_file", "web.read_page", "mail.send")
        router.route_sync(step())
        written = json.dumps(router.fakes.records("r"))
        for word in ('"seen"', '"returns"', '"sends"', '"would"', '"carries"', '"hands_back"'):
            assert word not in written
        assert router.seen_sync("r") == ()
        with pytest.raises(RequestError, match="no policy row has `seen`"):
            router.clear_sync("r", ["untrusted"], by="lead", reason="x")


# --- the rules, over generated histories ----------------------------------------------------------

RUNS = {"r": None, "child": "r", "grandchild": "child", "checked": "r"}
"""The runs of a tree, each with its parent; `checked` hands back checked answers alone."""
BRINGS = {"crm.get_file": "customer", "web.read_page": "untrusted", "tickets.find": "private"}
SORT = {"customer": "private"}
HISTORY = st.lists(
    st.one_of(
        st.tuples(st.just("route"), st.sampled_from(tuple(RUNS)), st.sampled_from(("", "side"))),
        st.tuples(
            st.just("call"), st.sampled_from(tuple(RUNS)), st.sampled_from((*BRINGS, "mail.send"))
        ),
        st.tuples(
            st.just("clear"),
            st.sampled_from(tuple(RUNS)),
            st.sampled_from(("private", "untrusted")),
        ),
        st.tuples(st.just("elsewhere"), st.just("r"), st.just("")),
    ),
    min_size=4,
    max_size=16,
)


class Reference:
    """What the rules say, in the plainest form: a set for each branch of each run."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], set[str]] = {}
        self.open: dict[str, tuple[str, str, bool]] = {}
        """The newest decision of each run: its id, its branch, and whether it shows mail."""
        self.hangs_at: dict[str, str] = {}
        """The branch of the parent that a run's newest decision hangs at."""

    def flows_down(self, run: str) -> set[str]:
        """Return what the ancestors of a run have seen, at the branches that it hangs at."""
        found: set[str] = set()
        parent = RUNS[run]
        while parent is not None:
            found |= self.seen.get((parent, self.open[parent][1]), set())
            parent = RUNS[parent]
        return found

    def route(self, run: str, branch: str) -> None:
        if (run, branch) in self.seen:
            own = self.seen[run, branch]
        elif run in self.open:
            own = self.seen[run, self.open[run][1]]
        else:
            own = set()
        self.seen[run, branch] = own | self.flows_down(run)

    def take_on(self, run: str, taint: str) -> None:
        """The run's branch takes it on, and so do its ancestors, up to a checked one."""
        while True:
            self.seen[run, self.open[run][1]].add(taint)
            parent = RUNS[run]
            if parent is None or run == "checked":
                return
            run = parent

    def leaves_refused(self, run: str, branch: str) -> bool:
        kinds = {SORT.get(taint, taint) for taint in self.seen[run, branch]}
        return {"private", "untrusted"} <= kinds


@seed(7)
@examples(150, least=25)
@given(history=HISTORY)
def test_every_history_of_a_tree_comes_to_what_the_rules_say(
    folder: Path, history: list[tuple[str, str, str]]
) -> None:
    """Rules 2, 4, 5 and 7: taken on at the start by the branch, kept by all workers, up and down
    the tree; mail is hidden at the next decision and refused at once; a clear takes it away.
    """
    runs = MemoryRuns()
    catalog = _catalog(folder)
    reference = Reference()
    router = fake_router(catalog, runs=runs)
    try:
        for kind, run, word in history:
            parent = RUNS[run]
            if kind == "elsewhere":
                router.close_sync()
                router = fake_router(catalog, runs=runs)
            elif kind == "route":
                if parent is not None and parent not in reference.open:
                    continue
                fields = {"hands_back": "checked"} if run == "checked" else {}
                decision = router.route_sync(step(run, parent_run_id=parent, branch=word, **fields))
                reference.route(run, word)
                shows = not reference.leaves_refused(run, word)
                assert ("mail" in decision.bundle_ids) is shows
                # the run's present branch: the default one, where it ever decided
                if word == "" or reference.open.get(run, ("", "side", True))[1] != "":
                    reference.open[run] = (decision.decision_id, word, shows)
            elif run not in reference.open:
                continue
            elif kind == "clear":
                _, branch, _ = reference.open[run]
                held = reference.seen[run, branch]
                cleared = {taint for taint in held if word in (taint, SORT.get(taint))}
                if not cleared:
                    with pytest.raises(RequestError, match="has seen none"):
                        router.clear_sync(run, [word], by="lead", reason="x", branch=branch)
                    continue
                router.clear_sync(run, [word], by="lead", reason="x", branch=branch)
                held -= cleared
            else:
                decision_id, branch, shows = reference.open[run]
                arguments = {"owner": "acme"} if word == "tickets.find" else {}
                result = router.call_sync(run, word, arguments, decision=decision_id)
                if word == "mail.send":
                    refused = reference.leaves_refused(run, branch) or not shows
                    assert result.code == ("tainted" if refused else "")
                else:
                    assert result.ok
                    reference.take_on(run, BRINGS[word])
            for (one, branch), expected in reference.seen.items():
                assert set(seen(router, one, branch)) == expected
    finally:
        router.close_sync()


@cache
def _catalog(folder: Path) -> Catalog:
    return catalog_of(folder, LEAVES)


async def functions_entered(folder: Path, *rows: str) -> tuple[int, int]:
    """Return how many of our functions a call and a route enter, once all has been loaded."""
    counted = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event == "call" and "bundle_router" in frame.f_code.co_filename

    counts: list[int] = []
    async with fake_router(catalog_of(folder, *rows)) as router:
        for number in range(4):
            counts = []
            for work in (
                partial(router.route, step()),
                partial(router.call, "r", "notes.add", {"text": str(number)}),
            ):
                counted = 0
                sys.setprofile(count)
                await work()
                sys.setprofile(None)
                counts.append(counted)
    return counts[1], counts[0]


def test_rule_8_a_row_that_does_not_match_costs_at_most_five_functions(folder: Path) -> None:
    asyncio.run(functions_entered(folder))  # texts of records are kept by the process
    plain = asyncio.run(functions_entered(folder))
    unread = asyncio.run(functions_entered(folder, LEAVES))
    assert all(0 < more - less <= 5 for more, less in zip(unread, plain, strict=True))
