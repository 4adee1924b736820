"""Principals in one run and one tree (S-45): a run serves one principal; where the config lets it
serve several, they share nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.core.catalog import (
    Bundle,
    Catalog,
    Policy,
    Route,
    RunSettings,
    Server,
    Settings,
)
from bundle_router.core.decide.decide import Question
from bundle_router.core.values import RecentStep, Reply, Text
from bundle_router.errors import KeyConflict, RequestError, UnknownArtifact
from bundle_router.testing import MemoryRuns, fake_router, small_catalog
from bundle_router.tool import LocalServer

LONG = "a line of the mail\n" * 2_000
CONFIG = {
    "routes.toml": '[[routes]]\nname = "all"\nbundles = ["mail"]\n',
    "policy.toml": '[[policies]]\nname = "all"\nallow = ["bundle:mail"]\n',
}
STORES = ["memory", "folder"]


def step(run_id: str = "r", **changes: Any) -> Step:
    return Step.model_validate(
        {"run_id": run_id, "workflow": "w", "role": "r", "step": "s"} | changes
    )


class Mail:
    """Routers over one store whose only tool gives each call another text."""

    def __init__(self, store: str, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._runs = MemoryRuns()
        self._calls = 0

    def inbox(self, lines: int = 1) -> str:
        """Read the mail."""
        self._calls += 1
        return f"mail {self._calls}\n" + "a line of the mail\n" * lines

    def open(self, principals: str = "one") -> Router:
        if self._store == "memory":
            return fake_router(
                self._catalog(principals),
                results={"mail.inbox": lambda asked: [Text(self.inbox(**asked))]},
                runs=self._runs,
            )
        config = self._folder / "config"
        config.mkdir(exist_ok=True)
        rows = {**CONFIG, "router.toml": f'[runs]\nprincipals = "{principals}"\n'}
        for name, text in rows.items():
            (config / name).write_text(text, encoding="utf-8")
        local = {"mail": LocalServer([self.inbox], "Mail.", effects=["read"])}
        return Router.open(config, runs=self._folder / "runs", local=local, workspace=self._folder)

    @staticmethod
    def _catalog(principals: Any) -> Catalog:
        return small_catalog(
            {"mail": Bundle("mail", "Mail.", ("mail.inbox",), effects=("read",))},
            routes=[Route("all", bundles=("mail",))],
            policies=[Policy("all", allow=("bundle:mail",))],
            servers=[Server("mail", "local", "trusted")],
            settings=Settings(runs=RunSettings(principals)),
        )


@pytest.fixture(params=STORES)
def mail(request: pytest.FixtureRequest, tmp_path: Path) -> Mail:
    return Mail(request.param, tmp_path)


# --- one principal a run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "later"),
    [("alice", "bob"), ("alice", ""), ("", "bob"), ("alice", "Alice"), ("alice", " alice")],
)
@pytest.mark.parametrize("changes", [{}, {"branch": "b"}, {"key": "k"}, {"role": "other"}], ids=str)
def test_a_step_for_another_principal_than_the_runs_is_refused_and_leaves_no_record(
    mail: Mail, first: str, later: str, changes: dict[str, str]
) -> None:
    with mail.open() as router:
        decided = router.route_sync(step(principal=first, key="k"))
        with pytest.raises(RequestError, match="has steps for another") as refused:
            router.route_sync(step(principal=later, **changes))
        assert "mixed" in refused.value.advice
        assert router.route_sync(step(principal=first, step="next")).seq == decided.seq + 1


@pytest.mark.parametrize(("parent", "child"), [("alice", "bob"), ("alice", ""), ("", "bob")])
@pytest.mark.parametrize("inherit", [True, False])
def test_a_sub_agent_for_another_principal_than_its_trees_is_refused_before_its_run_begins(
    mail: Mail, parent: str, child: str, inherit: bool
) -> None:
    with mail.open() as router:
        router.route_sync(step(principal=parent))
        router.route_sync(step("mid", parent_run_id="r", principal=parent))
        for above in ("r", "mid"):
            asked = step("sub", parent_run_id=above, principal=child, inherit=inherit)
            with pytest.raises(RequestError, match="has steps for another"):
                router.route_sync(asked)
        # The id is free: the refused step began no run and bound it to no parent.
        assert router.route_sync(step("sub", principal="carol")).seq == 0


def test_a_later_step_of_a_sub_agent_that_leaves_its_parent_out_is_held_to_it_all_the_same(
    mail: Mail,
) -> None:
    with mail.open() as router:
        router.route_sync(step(principal="alice"))
        router.route_sync(step("sub", parent_run_id="r", principal="alice"))
        with pytest.raises(RequestError, match="has steps for another"):
            router.route_sync(step("sub", principal="bob"))


def test_another_process_holds_a_run_to_the_principal_that_its_records_name(mail: Mail) -> None:
    with mail.open() as one, mail.open() as other:
        one.route_sync(step(principal="alice"))
        with pytest.raises(RequestError, match="has steps for another"):
            other.route_sync(step(principal="bob"))


# --- several, where the config says so ------------------------------------------------------------


def test_principals_of_one_run_share_no_key_and_no_artifact(mail: Mail) -> None:
    with mail.open("mixed") as router:
        router.route_sync(step(principal="alice"))
        first = router.call_sync("r", "mail.inbox", {"lines": 2_000}, key="k")
        uri = first.artifacts[0].uri
        assert router.call_sync("r", "read_artifact", {"uri": uri}).ok
        for other in ("bob", ""):
            decided = router.route_sync(step(principal=other, step="t")).decision_id
            with pytest.raises(KeyConflict, match="another principal") as refused:
                router.call_sync("r", "mail.inbox", {"lines": 2_000}, key="k")
            assert "mail" not in str(refused.value), "it says nothing about the other one's call"
            for tool, more in (("read_artifact", {}), ("search_artifact", {"pattern": "mail"})):
                read = router.call_sync("r", tool, {"uri": uri, **more})
                assert (read.code, "line of the mail" in read.text) == ("not_found", False)
            for named in (decided, None):
                with pytest.raises(UnknownArtifact):
                    router.media_sync("r", uri, decision=named)
        own = router.call_sync("r", "mail.inbox", {"lines": 2_001}, key="own")
        assert router.call_sync("r", "read_artifact", {"uri": own.artifacts[0].uri}).ok
        again = router.route_sync(step(principal="alice", step="u"))
        assert router.call_sync("r", "read_artifact", {"uri": uri}).ok
        once = router.call_sync("r", "mail.inbox", {"lines": 2_000}, key="k")
        assert (once.cached_from, once.text) == (first.call_id, first.text)
        assert router.media_sync("r", uri, decision=again.decision_id)
        assert router.artifact("r", uri), "whoever runs the router reads all"


def test_principals_of_one_tree_share_no_artifact(mail: Mail) -> None:
    with mail.open("mixed") as router:
        router.route_sync(step(principal="alice"))
        uri = router.call_sync("r", "mail.inbox", {"lines": 2_000}).artifacts[0].uri
        answers = {}
        for who in ("alice", "bob", ""):
            run = f"sub-{who}"
            router.route_sync(step(run, parent_run_id="r", principal=who))
            answers[who] = router.call_sync(run, "read_artifact", {"uri": uri}).code
        assert answers == {"alice": "", "bob": "not_found", "": "not_found"}


def test_bytes_that_two_principals_both_got_are_each_ones_own(tmp_path: Path) -> None:
    catalog = Mail._catalog("mixed")
    with fake_router(catalog, results={"mail.inbox": [Text(LONG)]}) as router:
        for who in ("alice", "bob"):
            router.route_sync(step(principal=who, step=who))
            uri = router.call_sync("r", "mail.inbox", {}).artifacts[0].uri
            assert router.call_sync("r", "read_artifact", {"uri": uri}).ok
        router.route_sync(step(principal="carol"))
        assert router.call_sync("r", "read_artifact", {"uri": uri}).code == "not_found"


def test_a_run_that_serves_several_is_separated_also_where_the_config_no_longer_lets_it(
    mail: Mail,
) -> None:
    with mail.open("mixed") as router:
        decided = router.route_sync(step(principal="alice", branch="a"))
        uri = router.call_sync("r", "mail.inbox", {"lines": 2_000}).artifacts[0].uri
        router.route_sync(step(principal="bob"))
    with mail.open() as router:
        assert router.call_sync("r", "read_artifact", {"uri": uri}).code == "not_found"
        for who in ("alice", "bob"):
            with pytest.raises(RequestError, match="has steps for another"):
                router.route_sync(step(principal=who, step="t"))
    assert decided.bundle_ids == ["mail"]


class Listener:
    """A selector that keeps the earlier steps that it is told of."""

    def __init__(self) -> None:
        self.recent: list[str] = []

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        self.recent.append(",".join(one.goal for one in recent))
        return Reply(question.key)


def test_search_and_the_model_are_told_of_no_other_principals_earlier_steps() -> None:
    catalog = small_catalog(
        {"a": ["s.a"], "b": ["s.b"]},
        routes=[Route("asks", ask=("*",))],
        settings=Settings(runs=RunSettings("mixed")),
    )
    listener = Listener()
    with fake_router(catalog, selector=listener) as router:
        for who, goal in (("alice", "a1"), ("bob", "b1"), ("alice", "a2"), ("bob", "b2")):
            router.route_sync(step(principal=who, goal=goal))
    assert listener.recent == ["", "", "a1", "b1"]
