"""A whole router over PostgreSQL: what it routes and calls is read by another machine and by every
verb.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Result, Router, Step
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.cli import main
from bundle_router.core.catalog import Bundle, Route
from bundle_router.core.values import Effect
from bundle_router.errors import KeyConflict, RequestError, StorageError
from bundle_router.testing import FakeRouter, fake_router, small_catalog
from bundle_router.tool import LocalServer

from tests.adapters.postgres.conftest import break_session

Make = Callable[..., PostgresRunStore]


def step(name: str, key: str = "") -> Step:
    return Step(run_id="r", workflow="feature", role="planner", step=name, key=key)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("# Long\n" + "a line of the file\n" * 20_000)
    return tmp_path


def test_a_run_goes_on_on_another_machine(
    url: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Router.open(None, store=url, workspace=workspace) as one:
        first = one.route_sync(step("plan", "k1"))
        result = one.call_sync("r", "repo.read_file", {"path": "README.md"}, key="c1")
        assert result.ok
        with Router.open(None, store=url, workspace=workspace) as other:
            assert other.route_sync(step("plan", "k1")).decision_id == first.decision_id
            again = other.call_sync("r", "repo.read_file", {"path": "README.md"}, key="c1")
            assert (again.cached_from, again.text) == (result.call_id, result.text)
            second = other.route_sync(step("look-up", "k2"))
            assert second.seq > first.seq
        assert one.route_sync(step("look-up", "k2")).decision_id == second.decision_id
        one.close_run_sync("r")
    for words in (["runs", "verify"], ["replay"], ["runs", "list"]):
        assert main([*words, "--store", url, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert [(run["run_id"], run["state"], run["records"]) for run in listed] == [("r", "closed", 4)]
    assert not (workspace / "runs").exists(), "nothing is written beside the database"


def test_one_key_from_many_threads_of_two_machines_is_one_decision(
    url: str, workspace: Path
) -> None:
    found: list[str] = []
    with (
        Router.open(None, store=url, workspace=workspace) as one,
        Router.open(None, store=url, workspace=workspace) as other,
    ):

        def work(router: Router) -> None:
            found.extend(
                router.route_sync(step("plan", f"k{number}")).decision_id for number in range(5)
            )

        threads = [threading.Thread(target=work, args=(router,)) for router in (one, other) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 30
    assert len(set(found)) == 5


def test_a_database_that_is_away_is_a_typed_error_of_the_router(
    workspace: Path, tmp_path: Path
) -> None:
    with Router.open(
        None, store=f"postgresql://tests@/none?host={tmp_path}", workspace=workspace
    ) as router:
        with pytest.raises(StorageError) as raised:
            router.route_sync(step("plan"))
        assert raised.value.kind == "unreachable"


@pytest.mark.parametrize("principals", ["one", "mixed"])
def test_principals_of_one_run_share_nothing(url: str, tmp_path: Path, principals: str) -> None:
    def inbox(lines: int) -> str:
        """Read the mail."""
        return "a line of the mail\n" * lines

    config = tmp_path / "config"
    config.mkdir()
    rows = {
        "routes.toml": '[[routes]]\nname = "all"\nbundles = ["mail"]\n',
        "policy.toml": '[[policies]]\nname = "all"\nallow = ["bundle:mail"]\n',
        "router.toml": f'[runs]\nprincipals = "{principals}"\n',
    }
    for name, text in rows.items():
        (config / name).write_text(text, encoding="utf-8")
    local = {"mail": LocalServer([inbox], "Mail.", effects=["read"])}

    def opened() -> Router:
        return Router.open(config, store=url, workspace=tmp_path, local=local)

    with opened() as one, opened() as other:
        one.route_sync(step("plan").model_copy(update={"principal": "alice"}))
        first = one.call_sync("r", "mail.inbox", {"lines": 2_000}, key="k")
        second = step("look-up").model_copy(update={"principal": "bob"})
        if principals == "one":
            with pytest.raises(RequestError, match="has steps for another"):
                other.route_sync(second)
            return
        other.route_sync(second)
        with pytest.raises(KeyConflict, match="another principal"):
            other.call_sync("r", "mail.inbox", {"lines": 2_000}, key="k")
        read = other.call_sync("r", "read_artifact", {"uri": first.artifacts[0].uri})
        assert read.code == "not_found"


@pytest.mark.parametrize("effect", ["read", "write"])
def test_a_worker_whose_connection_breaks_inside_a_call_still_ends_it(
    make_store: Make, monkeypatch: pytest.MonkeyPatch, effect: Effect
) -> None:
    """Another worker that has the key waits for it, and is given what it came to."""
    entered, released = threading.Event(), threading.Event()

    def slow(_arguments: Mapping[str, Any]) -> str:
        entered.set()
        assert released.wait(300)
        return "done once"

    def again(_arguments: Mapping[str, Any]) -> str:
        return "done twice"

    stores = make_store(), make_store()
    is_alive, looks = stores[1].is_alive, itertools.count(1)

    def looked(writer: str) -> bool:
        alive = is_alive(writer)
        if next(looks) == 3:
            released.set()
        return alive

    notes = Bundle("notes", "Notes.", ("notes.add",), effects=(effect,))
    catalog = small_catalog({"notes": notes}, routes=[Route("all", bundles=("notes",))])
    one = fake_router(catalog, runs=stores[0], results={"notes.add": slow})
    other = fake_router(catalog, runs=stores[1], results={"notes.add": again})
    results: list[Result] = []

    def call(router: FakeRouter) -> None:
        results.append(router.call_sync("r", "notes.add", {}, key="k"))

    monkeypatch.setattr(stores[1], "is_alive", looked)
    with one, other:
        one.route_sync(step("plan"))
        first = threading.Thread(target=call, args=(one,))
        first.start()
        assert entered.wait(300)
        assert len(break_session(stores[1], stores[0].writer)) == 1
        second = threading.Thread(target=call, args=(other,))
        second.start()
        second.join(300)
        released.set()
        first.join(300)
    assert [(result.outcome, result.text) for result in results] == [("ok", "done once")] * 2
    log = make_store().open("r")
    assert log is not None
    ends = [record for record in log.news() if record["type"] == "call.finished"]
    assert [end["outcome"] for end in ends] == ["ok"]
