"""A store of one's own keeps the contract of every store, and the verbs and pages read it by its URL
or as an object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, ClassVar

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive.run_transfer import copy_run
from bundle_router.adapters.system import SystemClock
from bundle_router.cli import main
from bundle_router.core.records.read_model import RunQuery
from bundle_router.errors import RequestError
from bundle_router.ports import Clock
from bundle_router.testing.store_contract import MakeStore, RunStoreContract
from bundle_router.wiring.stores import open_archive
from bundle_router.workbench.config_editing import open_editor
from bundle_router.workbench.run_reader import open_reader

from tests.examples.own_store import SqliteRuns
from tests.examples.own_store_reading import ReadableRuns

EDIT = Step(run_id="r", workflow="feature", role="implementer", step="edit")


def stores(kind: Callable[..., SqliteRuns], folder: Path) -> Iterator[MakeStore]:
    made: list[SqliteRuns] = []

    def make() -> SqliteRuns:
        made.append(kind(f"sqlite-runs://{folder}/runs.sqlite", clock=SystemClock()))
        return made[-1]

    yield make
    for store in made:
        store.close()


class TestOwnStore(RunStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[MakeStore]:
        yield from stores(SqliteRuns, tmp_path)


class TestReadableStore(RunStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[MakeStore]:
        yield from stores(ReadableRuns, tmp_path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A distribution with the store is installed; what was asked for by whom is returned."""
    point = EntryPoint(
        "sqlite-runs", "tests.examples.own_store_reading:ReadableRuns", "bundle_router_stores"
    )
    asked: list[dict[str, Any]] = []

    def entry_points(**wanted: Any) -> EntryPoints:
        asked.append(wanted)
        return EntryPoints([point]).select(**wanted)

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return asked


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReadableRuns]:
    """A store in which run r was recorded: a decision, a call and the run's end."""
    (tmp_path / "notes.txt").write_text("a note\n", encoding="utf-8")
    store = ReadableRuns(f"sqlite-runs://{tmp_path}/runs.sqlite", clock=SystemClock())
    with Router.open(None, runs=tmp_path / "runs", store=store, workspace=tmp_path) as router:
        router.route_sync(EDIT)
        assert router.call_sync("r", "repo.read_file", {"path": "notes.txt"}).ok
    yield store
    store.close()


def test_a_router_leaves_the_store_it_was_given_open(store: ReadableRuns) -> None:
    assert store.count_of("r") == 3
    assert store.writers_of("r") == []


def test_an_unknown_scheme_is_asked_of_the_entry_points_and_a_known_one_is_not(
    tmp_path: Path, store: ReadableRuns, installed: list[dict[str, Any]]
) -> None:
    with Router.open(None, runs=tmp_path / "a", workspace=tmp_path):
        open_archive(tmp_path / "runs")
    assert installed == []
    with Router.open(None, runs=tmp_path / "b", store=store.where, workspace=tmp_path) as router:
        assert router.route_sync(EDIT.model_copy(update={"run_id": "s"})).run_id == "s"
    assert installed == [{"group": "bundle_router_stores", "name": "sqlite-runs"}]
    assert open_archive(store.where).run_ids() == ["r", "s"]


def test_a_scheme_that_nobody_knows_is_refused_without_its_url() -> None:
    for opened in (open_archive, lambda url: Router.open(None, store=url)):
        with pytest.raises(RequestError) as refused:
            opened("nowhere://user:hunter2@host/runs")
        assert "'nowhere' is not a store" in str(refused.value)
        assert "hunter2" not in str(refused.value)


def test_a_store_that_can_only_be_written_says_what_it_lacks(tmp_path: Path) -> None:
    store = SqliteRuns(f"sqlite-runs://{tmp_path}/runs.sqlite", clock=SystemClock())
    with pytest.raises(RequestError) as refused:
        open_archive(store)
    assert "the runs of a SqliteRuns can't be read" in str(refused.value)
    assert "bundle_router.ports.StoredRuns" in refused.value.advice
    store.close()


@pytest.mark.usefixtures("installed")
def test_the_reading_verbs_take_the_url(
    store: ReadableRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> Any:
        assert main([*words, "--store", store.where, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert [run["run_id"] for run in said("runs", "list")["runs"]] == ["r"]
    assert [record["type"] for record in said("runs", "show", "r")["records"]][:2] == [
        "route.decided",
        "call.started",
    ]
    assert [report["ok"] for report in said("runs", "verify")] == [True]
    assert said("replay", "r")["differing"] == []
    assert said("explain", "--run", "r", "--seq", "0", "--bundle", "repo.readonly")
    assert said("runs", "receipt", "r", "0")["run_id"] == "r"


def test_the_pages_and_the_editor_take_the_object(store: ReadableRuns, tmp_path: Path) -> None:
    reader = open_reader(store)
    reader.refresh(now=True)
    assert [run.run_id for run in reader.index.runs(RunQuery()).runs] == ["r"]
    reader.close()
    assert open_editor(tmp_path, store)


def test_a_run_is_copied_out_and_in_with_the_same_lines(
    store: ReadableRuns, tmp_path: Path
) -> None:
    folder = open_archive(tmp_path / "copy")
    copy_run(open_archive(store), "r", folder)
    assert folder.verify("r").ok
    other = ReadableRuns(f"sqlite-runs://{tmp_path}/other.sqlite", clock=SystemClock())
    copy_run(folder, "r", open_archive(other))
    for file in ("routing", "calls"):
        assert other.lines_of("r", file, 0) == store.lines_of("r", file, 0)
    assert open_archive(other).catalog("r") == open_archive(store).catalog("r")
    other.close()


# --- an edited config -----------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "router.toml").write_text("[limits]\nrecent_steps = 4\n", encoding="utf-8")
    return folder


def edit_and_reload(router: Router, config: Path) -> None:
    """Route under a config, edit it, and route on."""
    router.route_sync(EDIT)
    (config / "router.toml").write_text("[limits]\nrecent_steps = 3\n", encoding="utf-8")
    assert router.reload()
    router.route_sync(EDIT.model_copy(update={"run_id": "s"}))


class ClosedRuns(ReadableRuns):
    """Counts how often a store was opened and closed."""

    opened: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    def __init__(self, url: str, *, clock: Clock) -> None:
        ClosedRuns.opened += 1
        super().__init__(url, clock=clock)

    def close(self) -> None:
        ClosedRuns.closed += 1
        super().close()


def test_a_reload_opens_no_second_store_and_the_router_closes_the_one_it_opened(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, installed: object
) -> None:
    monkeypatch.setattr("tests.examples.own_store_reading.ReadableRuns", ClosedRuns)
    url = f"sqlite-runs://{tmp_path}/runs.sqlite"
    with Router.open(config, runs=tmp_path / "runs", store=url, workspace=config) as router:
        edit_and_reload(router, config)
        assert (ClosedRuns.opened, ClosedRuns.closed) == (1, 0)
    assert (ClosedRuns.opened, ClosedRuns.closed) == (1, 1)


def test_neither_a_reload_nor_the_router_closes_the_callers_store(
    tmp_path: Path, config: Path
) -> None:
    store = ReadableRuns(f"sqlite-runs://{tmp_path}/runs.sqlite", clock=SystemClock())
    with Router.open(config, runs=tmp_path / "runs", store=store, workspace=config) as router:
        edit_and_reload(router, config)
    assert [(run_id, store.count_of(run_id)) for run_id in store.run_ids()] == [("r", 1), ("s", 1)]
    store.close()
