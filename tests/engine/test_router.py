"""The router as an engine uses it: on a real disk, with the shipped config and first-party tools,
and over fakes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from bundle_router import Router, Step, StepPolicy, load_catalog
from bundle_router.adapters.archive import Archive
from bundle_router.core.catalog import (
    ActivationSettings,
    LogSettings,
    Policy,
    Route,
    Server,
    Settings,
)
from bundle_router.core.values import Data, Media, Text
from bundle_router.engine.engine import TOGETHER
from bundle_router.errors import RequestError, StorageError, UnknownRun, WrongContext
from bundle_router.testing import fake_router, small_catalog
from bundle_router.tool import LocalTool, ToolContext, ToolFailure, ToolOutput
from pydantic import BaseModel, ConfigDict

CONFIG = Path(__file__).parent.parent.parent / "config"


def step(run_id: str = "r-1", **changes: Any) -> Step:
    base = {"run_id": run_id, "workflow": "feature", "role": "implementer", "step": "edit"}
    return Step.model_validate(base | changes)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "sub").mkdir(parents=True)
    (root / "README.md").write_text("# Hello\n", encoding="utf-8")
    (root / "sub" / "note.txt").write_text("a note\n", encoding="utf-8")
    return root


@pytest.fixture
def router(tmp_path: Path, workspace: Path) -> Iterator[Router]:
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as opened:
        yield opened


def records(tmp_path: Path, run_id: str) -> list[dict[str, Any]]:
    return list(Archive(tmp_path / "runs").records(run_id))


# --- decisions on disk ----------------------------------------------------------------------------


def test_a_decision_is_on_disk_when_route_returns(router: Router, tmp_path: Path) -> None:
    decision = router.route_sync(
        step(goal="rename the flag", constraints=["no network"], labels={"ticket": "T-1"})
    )
    (record,) = records(tmp_path, "r-1")
    assert (
        decision.bundle_ids
        == ["repo.readonly", "workspace.exec"]
        == [row["id"] for row in record["bundles"]]
    )
    assert record["schema"] == "bundle-router.decision/1"
    assert record["type"] == "route.decided"
    assert (record["decision_id"], record["seq"]) == (decision.decision_id, decision.seq)
    assert record["step"]["labels"] == [{"name": "ticket", "value": "T-1"}]
    assert record["input_digest"] == decision.input_digest
    catalog = json.loads((tmp_path / "runs" / "r-1" / "catalog.json").read_text(encoding="utf-8"))
    assert catalog["schema"] == "bundle-router.catalog/1"


def test_equal_inputs_have_equal_digests_in_any_run(router: Router) -> None:
    first, second = router.route_sync(step("a")), router.route_sync(step("b"))
    assert first.input_digest == second.input_digest
    assert first.decision_id != second.decision_id
    assert router.route_sync(step("c", goal="another")).input_digest != first.input_digest


def test_a_decision_that_cannot_be_written_is_not_returned_and_changes_nothing() -> None:
    catalog = small_catalog({"a": ["s.a"], "b": ["s.b"]}, routes=[Route("a", step=("edit",), bundles=("a",)),
                                                                 Route("b", bundles=("b",))])  # fmt: skip
    with fake_router(catalog) as fake:
        fake.route_sync(step())
        log = fake.fakes.store.log("r-1")
        log.fail_with = StorageError("no space", kind="disk_full")
        with pytest.raises(StorageError):
            fake.route_sync(step(step="other"))
        assert [tool.name for tool in fake.tools_sync("r-1").active] == ["s.a"]
        log.fail_with = None
        assert fake.route_sync(step(step="other")).bundle_ids == ["b", "a"]
        assert [record["seq"] for record in fake.fakes.records("r-1")] == [0, 1]


def test_a_run_goes_on_where_it_was_left_in_another_process(
    tmp_path: Path, workspace: Path
) -> None:
    runs = tmp_path / "runs"
    with Router.open(CONFIG, runs=runs, workspace=workspace) as first:
        before = first.route_sync(step())
    with Router.open(CONFIG, runs=runs, workspace=workspace) as second:
        assert [t.name for t in second.tools_sync("r-1").active] != []
        assert second.call_sync("r-1", "repo.read_file", {"path": "README.md"}).ok
        after = second.route_sync(step(role="planner", step="plan"))
    assert after.before.ids == before.after.ids
    used = {entry.id: entry.used for entry in after.before.entries}
    assert used["repo.readonly"] > used["workspace.exec"], (
        "the call of the second process counts as use"
    )
    assert after.seq == 3
    assert Archive(runs).verify("r-1").ok


def test_two_routers_take_turns_on_one_run_and_the_last_to_close_it_ends_it(
    router: Router, tmp_path: Path, workspace: Path
) -> None:
    seqs = [router.route_sync(step()).seq]
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as other:
        for turn in range(20):
            seqs += [(other if turn % 2 else router).route_sync(step(goal=f"turn {turn}")).seq]
        end = other.close_run_sync("r-1")
        assert (end.ended, len(end.others)) == (False, 1)
        assert Archive(tmp_path / "runs").summary("r-1").state == "open"
    assert router.close_run_sync("r-1").ended
    assert seqs == list(range(21))
    assert Archive(tmp_path / "runs").verify("r-1").ok
    assert Archive(tmp_path / "runs").summary("r-1").state == "closed"


def test_reading_a_runs_tools_does_not_open_it(
    router: Router, tmp_path: Path, workspace: Path
) -> None:
    router.route_sync(step())
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as reader:
        assert len(reader.tools_sync("r-1").tools) == 8


def test_what_a_stdio_server_runs_is_not_written_by_tools(tmp_path: Path, workspace: Path) -> None:
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    (workspace / "server.py").write_text(
        "# started by the router, outside the sandbox", encoding="utf-8"
    )
    with (config / "servers.toml").open("a", encoding="utf-8") as servers:
        servers.write(
            '\n[servers.mine]\ntransport = "stdio"\ncommand = "/usr/bin/env"\nargs ='
            ' ["server.py"]\n'
        )
    with Router.open(
        config, runs=tmp_path / "runs", workspace=workspace, development=True
    ) as router:
        router.route_sync(step())
        refused = router.call_sync(
            "r-1", "workspace.write_file", {"path": "server.py", "content": "planted"}
        )
        written = router.call_sync(
            "r-1", "workspace.write_file", {"path": "other.py", "content": "ordinary"}
        )
    assert "belongs to the router" in refused.text
    assert written.outcome == "ok"
    assert "planted" not in (workspace / "server.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_many_runs_from_many_threads_and_tasks_at_once(
    tmp_path: Path, workspace: Path, durability: str
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "router.toml").write_text(f'[log]\ndurability = "{durability}"\n', encoding="utf-8")
    roles = ("planner", "implementer", "reviewer")

    with Router.open(config, runs=tmp_path / "runs", workspace=workspace) as shared:

        def engine(number: int) -> None:
            for turn in range(6):
                run_id = f"run-{(number + turn) % 4}"
                shared.route_sync(step(run_id, role=roles[turn % 3]))
                shared.call_sync(run_id, "repo.read_file", {"path": "README.md"})

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(engine, range(8)))
    archive = Archive(tmp_path / "runs")
    for run_id in archive.run_ids():
        assert archive.verify(run_id).ok
        kinds = [record["type"] for record in archive.records(run_id)]
        assert kinds.count("call.started") == kinds.count("call.finished")
    assert (
        sum(r["type"] == "route.decided" for i in archive.run_ids() for r in archive.records(i))
        == 48
    )


async def _tasks(runs: Path, workspace: Path) -> None:
    async with Router.open(CONFIG, runs=runs, workspace=workspace) as router:

        async def one(number: int) -> None:
            run_id = f"run-{number % 5}"
            decision = await router.route(step(run_id))
            result = await router.call(run_id, "repo__list_dir", {})
            assert result.ok, result.text
            assert decision.run_id == run_id

        await asyncio.gather(*(one(number) for number in range(40)))


def test_many_tasks_share_a_router(tmp_path: Path, workspace: Path) -> None:
    asyncio.run(_tasks(tmp_path / "runs", workspace))
    archive = Archive(tmp_path / "runs")
    for run_id in archive.run_ids():
        assert archive.verify(run_id).ok
        assert [record["seq"] for record in archive.records(run_id)] == list(range(24))


def test_sync_methods_inside_a_running_loop_raise_and_say_what_to_use(tmp_path: Path) -> None:
    async def inside() -> None:
        async with Router.open(CONFIG, runs=tmp_path / "runs") as router:
            for name, call in (
                ("route", lambda: router.route_sync(step())),
                ("tools", lambda: router.tools_sync("r-1")),
                ("call", lambda: router.call_sync("r-1", "repo.list_dir", {})),
                ("close_run", lambda: router.close_run_sync("r-1")),
                ("close", router.close_sync),
            ):
                with pytest.raises(WrongContext) as raised:
                    call()
                assert f"await router.{name}(" in raised.value.advice

    asyncio.run(inside())


# --- sub-agents -----------------------------------------------------------------------------------


def test_a_sub_agent_inherits_when_asked_to_and_never_passes_its_parent(router: Router) -> None:
    router.route_sync(step("parent"))
    inheriting = router.route_sync(
        step("child-1", role="researcher", step="look", parent_run_id="parent")
    )
    fresh = router.route_sync(
        step("child-2", role="researcher", step="look", parent_run_id="parent", inherit=False)
    )
    assert {entry.id for entry in inheriting.before.entries} == {"repo.readonly", "workspace.exec"}
    assert fresh.before.entries == ()
    assert fresh.bundle_ids == inheriting.bundle_ids == ["docs.fetch", "repo.readonly"]
    router.route_sync(step("parent", role="reviewer", step="review"))
    later = router.route_sync(step("child-1", role="implementer"))
    assert later.bundle_ids == ["repo.readonly", "docs.fetch"]
    assert "workspace.exec" in {row.id for row in later.left_out}


def test_a_sub_agent_cannot_shed_its_parent_by_leaving_it_out(
    router: Router, tmp_path: Path
) -> None:
    router.route_sync(step("parent", role="reviewer", step="review"))
    router.route_sync(step("child", parent_run_id="parent", inherit=False))
    assert router.route_sync(step("child")).bundle_ids == ["repo.readonly"]
    assert records(tmp_path, "child")[-1]["step"]["parent_run_id"] == "parent"
    with pytest.raises(RequestError, match="sub-agent of 'parent'"):
        router.route_sync(step("child", parent_run_id="child"))
    with pytest.raises(RequestError, match="not a sub-agent"):
        router.route_sync(step("parent", parent_run_id="child"))


def test_a_grandchild_is_bound_by_every_ancestor_and_a_parent_on_disk_counts(
    tmp_path: Path, workspace: Path
) -> None:
    runs = tmp_path / "runs"
    with Router.open(CONFIG, runs=runs, workspace=workspace) as first:
        first.route_sync(step("top", policy=StepPolicy(deny=("tool:repo.git_log",))))
    with Router.open(CONFIG, runs=runs, workspace=workspace) as second:
        second.route_sync(step("middle", parent_run_id="top"))
        second.route_sync(step("leaf", parent_run_id="middle"))
        names = {tool.name for tool in second.tools_sync("leaf").active}
        assert "repo.git_log" not in names
        assert "repo.read_file" in names
        assert second.call_sync("leaf", "repo.git_log", {}).code == "policy_denied"


def test_a_parent_without_a_decision_is_refused_and_nothing_is_written(
    router: Router, tmp_path: Path
) -> None:
    with pytest.raises(UnknownRun, match="nobody"):
        router.route_sync(step("child", parent_run_id="nobody"))
    with pytest.raises(RequestError, match="its own parent"):
        router.route_sync(step("self", parent_run_id="self"))
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_is_recorded_before_and_after(router: Router, tmp_path: Path) -> None:
    router.route_sync(step())
    result = router.call_sync("r-1", "repo.read_file", {"path": "README.md"})
    assert "# Hello" in result.text
    _, started, finished = records(tmp_path, "r-1")
    assert (started["type"], finished["type"]) == ("call.started", "call.finished")
    assert started["call_id"] == finished["call_id"] == result.call_id
    assert json.loads(started["arguments"]) == {"path": "README.md"}
    assert (finished["outcome"], finished["bundle"], finished["server"], finished["tool"]) == (
        "ok", "repo.readonly", "repo", "read_file",
    )  # fmt: skip
    assert finished["result"] == result.text


@pytest.mark.parametrize(
    ("name", "arguments", "outcome", "code", "hint"),
    [
        ("workspace.exec", {"binary": "python"}, "denied", "not_allowed", "reviewers read"),
        ("docs.fetch", {}, "denied", "policy_denied", "own policy"),
        ("repo.read_fil", {}, "denied", "unknown_bundle", "Did you mean 'repo.read_file'?"),
        ("repo.read_file", {}, "invalid_arguments", "invalid_arguments", "path: Field required"),
        (
            "repo.read_file",
            {"path": 1, "x": 2},
            "invalid_arguments",
            "invalid_arguments",
            "Its schema",
        ),
        ("repo.read_file", {"path": "x" * 2_000_000}, "invalid_arguments", "too_large", "at most"),
        ("repo.read_file", {"path": float("nan")}, "invalid_arguments", "not_json", "not JSON"),
        ("repo.read_file", {"path": object()}, "invalid_arguments", "not_json", "not JSON"),
        (
            "repo.read_file",
            {"path": _nested(200_000)},
            "invalid_arguments",
            "not_json",
            "nested too deep",
        ),
        ("repo.read_file", {"path": "../outside"}, "tool_error", "", ""),
    ],
)
def test_what_an_agent_can_get_wrong_comes_back_as_a_result_and_leaves_one_record(
    router: Router,
    tmp_path: Path,
    name: str,
    arguments: dict[str, Any],
    outcome: str,
    code: str,
    hint: str,
) -> None:
    router.route_sync(step(role="reviewer", step="review", policy=StepPolicy(deny=("docs.*",))))
    result = router.call_sync("r-1", name, arguments)
    assert result.outcome == outcome
    assert not code or result.code == code
    assert hint in result.text
    kinds = [record["type"] for record in records(tmp_path, "r-1")[1:]]
    assert kinds == (
        ["call.finished"]
        if outcome in ("denied", "invalid_arguments")
        else ["call.started", "call.finished"]
    )


def test_policy_runs_again_at_call_time_with_fresh_facts() -> None:
    catalog = small_catalog({"gh": ["gh.read"]}, routes=[Route("r", bundles=("gh",))])
    catalog = replace(
        catalog, bundles={"gh": replace(catalog.bundles["gh"], requires_env=("TOKEN",))}
    )
    with fake_router(catalog, capabilities=["env:TOKEN"], results={"gh.read": "fine"}) as fake:
        fake.route_sync(step())
        assert fake.call_sync("r-1", "gh.read", {}).text == "fine"
        fake.fakes.capabilities.names.clear()
        refused = fake.call_sync("r-1", "gh.read", {})
        assert (refused.outcome, refused.code) == ("denied", "capability_missing")
        assert fake.tools_sync("r-1").tools == ()
        assert len(fake.fakes.sessions.calls) == 1


class _Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _open_with(tmp_path: Path, *tools: LocalTool, limits: str = "") -> Router:
    config = tmp_path / "config"
    config.mkdir()
    (config / "servers.toml").write_text(
        '[servers.mine]\ntransport = "local"\ntrust = "trusted"\n', encoding="utf-8"
    )
    (config / "bundles.toml").write_text(
        '[bundles.mine]\ndescription = "x"\ntools = ["mine.*"]\neffects = ["read"]\n',
        encoding="utf-8",
    )
    (config / "routes.toml").write_text(
        '[[routes]]\nname = "all"\nbundles = ["mine"]\n', encoding="utf-8"
    )
    (config / "policy.toml").write_text(
        '[[policies]]\nname = "all"\nallow = ["bundle:mine"]\n', encoding="utf-8"
    )
    (config / "router.toml").write_text(f"[limits]\n{limits}", encoding="utf-8")
    return Router.open(config, runs=tmp_path / "runs", workspace=tmp_path, local={"mine": tools})


def test_an_engines_own_tools_are_called_like_any_other(tmp_path: Path) -> None:
    def see(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        png = b"\x89PNG\r\n\x1a\n" + b"\0" * 16
        return ToolOutput((Text("seen"), Data({"n": 1}), Media(png, "image/gif", "a.gif")))

    def fail(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        raise ToolFailure("the door is locked", code="locked", advice="bring a key")

    def crash(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        raise ZeroDivisionError("oh")

    tools = [LocalTool(f.__name__, f.__name__, _Nothing, f) for f in (see, fail, crash)]
    with _open_with(tmp_path, *tools) as router:
        router.route_sync(step())
        seen = router.call_sync("r-1", "mine.see", {})
        assert seen.ok
        assert "seen" in seen.text
        assert "artifact:sha256:" in seen.text
        assert len(seen.artifacts) == 1
        assert router.artifact("r-1", seen.artifacts[0].uri).startswith(b"\x89PNG")
        with pytest.raises(RequestError, match="no artifact"):
            router.artifact("r-1", "artifact:sha256:" + "0" * 64)
        failed = router.call_sync("r-1", "mine.fail", {})
        assert (failed.outcome, failed.code) == ("tool_error", "locked")
        assert failed.text == "the door is locked; bring a key"
        crashed = router.call_sync("r-1", "mine.crash", {})
        assert (crashed.outcome, crashed.code) == ("tool_error", "crashed")
        assert "ZeroDivisionError" in crashed.text
        assert "oh" not in crashed.text


class _Written(BaseModel):
    text: str


def test_a_thread_redacts_large_arguments_and_the_loop_does_not_do_so_again(tmp_path: Path) -> None:
    """A megabyte of source code cost the loop seconds with each record."""
    text = 'password = "hunter2hunter2"  # a quote: \\"\n' * 2_000
    seen: list[str] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        data = (
            frame.f_locals.get("data")
            if event == "call" and "redaction" in frame.f_code.co_filename
            else None
        )
        if isinstance(data, bytes) and len(data) > 20_000:
            seen.append(frame.f_code.co_name)

    async def main() -> None:
        tool = LocalTool("write", "w", _Written, lambda _, __: ToolOutput((Text("done"),)))
        async with _open_with(tmp_path, tool) as router:
            await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
            sys.setprofile(watch)
            try:
                result = await router.call("r", "mine.write", {"text": text})
            finally:
                sys.setprofile(None)
            assert result.ok

    asyncio.run(main())
    assert seen == []
    assert "hunter2" not in (tmp_path / "runs" / "r" / "tool-calls.jsonl").read_text("utf-8")


@pytest.mark.parametrize("runs", [1, 50])
def test_calls_that_begin_together_begin_in_several_turns_of_the_loop(
    tmp_path: Path, runs: int
) -> None:
    """What else runs on the engine's loop has its turn between them."""
    gate = threading.Event()

    def wait(_: _Nothing, __: ToolContext) -> ToolOutput:
        gate.wait(300)
        return ToolOutput((Text("done"),))

    def started() -> int:
        records = (tmp_path / "runs").glob("r*/tool-calls.jsonl")
        return sum(record.read_text("utf-8").count("call.started") for record in records)

    async def main() -> None:
        async with _open_with(tmp_path, LocalTool("wait", "w", _Nothing, wait)) as router:
            for number in range(runs):
                await router.route(Step(run_id=f"r{number}", workflow="w", role="r", step="s"))
            calls = [
                asyncio.ensure_future(router.call(f"r{n % runs}", "mine.wait", {}))
                for n in range(50)
            ]
            begun = [0]
            while begun[-1] < 50:
                await asyncio.sleep(0)
                begun.append(started())
            gate.set()
            assert {result.outcome for result in await asyncio.gather(*calls)} <= {"ok", "busy"}
            assert (
                max(after - before for before, after in itertools.pairwise(begun)) <= 2 * TOGETHER
            )

    asyncio.run(main())


@pytest.mark.parametrize(
    ("tool", "wrong"),
    [
        ("see", "'see' is not a tool"),
        (LocalTool("see", "see", dict, print), "'see' are not a pydantic model's class"),  # type: ignore[arg-type]  # untyped code does this
        (LocalTool("see", "see", _Nothing, None), "'see' has no function"),  # type: ignore[arg-type]  # as above
    ],
)
def test_a_local_tool_that_is_none_is_refused_when_the_router_opens(
    tmp_path: Path, tool: Any, wrong: str
) -> None:
    with pytest.raises(RequestError, match=wrong):
        _open_with(tmp_path, tool)


def test_what_is_no_step_is_refused_in_words(router: Router, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"route\(\) takes a Step, not dict"):
        router.route_sync({"run_id": "r-1"})  # type: ignore[arg-type]  # untyped code does this
    assert not (tmp_path / "runs").exists()


UNTYPED_OPEN: Any = Router.open
UNTYPED_LOAD: Any = load_catalog
WRONG_CALLS: dict[str, Any] = {
    "config": lambda _: UNTYPED_OPEN(7),
    "local": lambda _: UNTYPED_OPEN(None, local=[print]),
    "runs": lambda _: UNTYPED_OPEN(None, runs=None),
    "workspace": lambda _: UNTYPED_OPEN(None, workspace=7),
    "selector": lambda _: UNTYPED_OPEN(None, selector=7),
    "load_catalog": lambda _: UNTYPED_LOAD(7),
    "run id": lambda router: router.tools_sync(None),
    "artifact": lambda router: router.media_sync("r-1", None),
    "messages": lambda router: router.route_sync(step(), messages=7),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_parameter_of_another_kind_is_refused_in_words(router: Router, name: str) -> None:
    router.route_sync(step())
    with pytest.raises(RequestError, match=r"7|None|print") as raised:
        WRONG_CALLS[name](router)
    assert raised.value.advice


def test_a_runs_folder_that_is_a_file_is_said_to_be_one(tmp_path: Path, workspace: Path) -> None:
    (tmp_path / "runs").write_text("", encoding="utf-8")
    with (
        Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as router,
        pytest.raises(StorageError) as raised,
    ):
        router.route_sync(step())
    assert "there is a file where a folder is needed" in raised.value.advice


def test_a_tool_that_exits_returns_rubbish_or_too_much_ends_nothing_but_itself(
    tmp_path: Path,
) -> None:
    def leave(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        raise SystemExit(3)

    def rubbish(arguments: _Nothing, context: ToolContext) -> Any:
        return "text"

    def flood(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        return ToolOutput((Media(b"x" * (context.max_bytes + 1)),))

    tools = [LocalTool(f.__name__, f.__name__, _Nothing, f) for f in (leave, rubbish, flood)]
    with _open_with(tmp_path, *tools) as router:
        router.route_sync(step())
        assert router.call_sync("r-1", "mine.leave", {}).code == "crashed"
        assert "TypeError" in router.call_sync("r-1", "mine.rubbish", {}).text
        assert router.call_sync("r-1", "mine.flood", {}).code == "too_large"
        wrong: Any
        for wrong in ([], "[]", 3):
            assert router.call_sync("r-1", "mine.leave", wrong).code == "not_an_object"
    assert Archive(tmp_path / "runs").verify("r-1").ok


def test_no_tool_changes_the_routers_own_config_or_records(tmp_path: Path, workspace: Path) -> None:
    shutil.copytree(CONFIG, workspace / "config")
    with Router.open(workspace / "config", runs=workspace / "runs", workspace=workspace) as router:
        router.route_sync(step())
        before = {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}
        for path in (
            "config/policy.toml",
            "config/new/x",
            "runs/r-1/run.json",
            "runs/r-2/x",
            "sub/../config/x",
        ):
            result = router.call_sync(
                "r-1", "workspace.write_file", {"path": path, "content": "mine now"}
            )
            assert (result.outcome, result.code) in (
                ("tool_error", "protected"),
                ("tool_error", "hidden"),
            ), path
        (workspace / "way").symlink_to("config")
        assert (
            router.call_sync("r-1", "workspace.write_file", {"path": "way/x", "content": "x"}).code
            == "protected"
        )
        (workspace / "t.py").write_text(
            "open('config/policy.toml', 'w').write('x')\n", encoding="utf-8"
        )
        ran = router.call_sync(
            "r-1", "workspace.exec", {"binary": "python", "args": ["-m", "unittest", "t"]}
        )
        if "read-only" in ran.text or "Read-only" in ran.text:
            assert (workspace / "config" / "policy.toml").read_bytes() == before[
                workspace / "config" / "policy.toml"
            ]
    assert Archive(workspace / "runs").verify("r-1").ok


def test_no_tool_reads_what_the_runs_left_behind(tmp_path: Path, workspace: Path) -> None:
    with Router.open(CONFIG, runs=workspace / "runs", workspace=workspace) as router:
        router.route_sync(step("other", goal="the other run's secret plan"))
        router.route_sync(step())
        for path in ("runs/other/routing.jsonl", "sub/../runs/other/run.json"):
            assert not router.call_sync("r-1", "repo.read_file", {"path": path}).ok, path
        assert not router.call_sync("r-1", "repo.list_dir", {"path": "runs"}).ok
        found = router.call_sync("r-1", "repo.ripgrep", {"pattern": "secret plan", "hidden": True})
        assert "routing.jsonl" not in found.text


def test_a_closed_router_routes_no_more_and_a_refused_step_writes_nothing(
    tmp_path: Path, workspace: Path
) -> None:
    router = Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace)
    with pytest.raises(RequestError, match="not a folder inside"):
        router.route_sync(step(workspace="/etc"))
    assert not (tmp_path / "runs").exists()
    router.close_sync()
    with pytest.raises(RequestError, match="closed"):
        router.route_sync(step())


def test_a_sub_agents_calls_are_judged_by_what_its_parent_may_have_now(router: Router) -> None:
    router.route_sync(step("parent"))
    router.route_sync(step("child", parent_run_id="parent"))
    assert router.call_sync("child", "workspace.binaries", {}).ok
    router.route_sync(step("parent", role="reviewer", step="review"))
    assert router.call_sync("child", "workspace.binaries", {}).code == "not_allowed"


def test_a_tool_that_takes_too_long_is_a_timeout_and_is_told_to_stop(
    tmp_path: Path, leap: Any
) -> None:
    stopped = threading.Event()

    def wait(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        while not context.cancelled():
            leap()
            stopped.wait(0.01)
        stopped.set()
        return ToolOutput(())

    with _open_with(
        tmp_path, LocalTool("wait", "w", _Nothing, wait), limits="call_timeout_s = 60\n"
    ) as router:
        router.route_sync(step())
        result = router.call_sync("r-1", "mine.wait", {})
        assert result.outcome == "timeout"
        assert stopped.wait(300)


def test_closing_a_run_lets_its_calls_be_recorded_first(tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        entered.set()
        assert go_on.wait(300)
        return ToolOutput((Text("done"),))

    with (
        _open_with(tmp_path, LocalTool("wait", "w", _Nothing, wait)) as router,
        ThreadPoolExecutor(1) as thread,
    ):
        router.route_sync(step())
        call = thread.submit(router.call_sync, "r-1", "mine.wait", {})
        assert entered.wait(300)
        router.close_run_sync("r-1")
        assert Archive(tmp_path / "runs").summary("r-1").state == "open"
        go_on.set()
        assert call.result(300).text == "done"
    assert records(tmp_path, "r-1")[-1]["outcome"] == "ok"
    assert Archive(tmp_path / "runs").summary("r-1").state == "closed"


async def cancel_a_call(router: Router, entered: threading.Event) -> None:
    """Cancel a call of `mine.wait` after the tool was entered."""
    await router.route(step())
    call = asyncio.create_task(router.call("r-1", "mine.wait", {}))
    await asyncio.to_thread(entered.wait, 300)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def test_closing_waits_for_a_tool_that_was_told_to_stop(tmp_path: Path) -> None:
    """A process that ended first would take an extension down in that thread, and abort by it."""
    entered, ended = threading.Event(), threading.Event()

    def wait(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        entered.set()
        while not context.cancelled():
            os.sched_yield()
        threading.Event().wait(0.2)  # it tidies up
        ended.set()
        return ToolOutput(())

    async def scenario(router: Router) -> None:
        await cancel_a_call(router, entered)
        await router.close()
        assert ended.is_set()

    asyncio.run(scenario(_open_with(tmp_path, LocalTool("wait", "w", _Nothing, wait))))


def test_a_cancelled_call_is_recorded_as_cancelled_and_the_tool_is_told(tmp_path: Path) -> None:
    entered, stopped = threading.Event(), threading.Event()

    def wait(arguments: _Nothing, context: ToolContext) -> ToolOutput:
        entered.set()
        while not context.cancelled():
            stopped.wait(0.001)
        stopped.set()
        return ToolOutput(())

    async def scenario(router: Router) -> None:
        await cancel_a_call(router, entered)
        await router.close()

    asyncio.run(scenario(_open_with(tmp_path, LocalTool("wait", "w", _Nothing, wait))))
    assert stopped.wait(300)
    last = records(tmp_path, "r-1")[-1]
    assert (last["type"], last["outcome"], last["result"]) == ("call.finished", "cancelled", None)


# --- secrets, workspaces, formats -----------------------------------------------------------------


def test_secrets_are_redacted_before_deciding_and_in_every_record(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "correct-horse-battery")
    token = "ghp_" + "a1B2" * 9
    (workspace / "leak.txt").write_text(
        f"token {token} and correct-horse-battery\n", encoding="utf-8"
    )
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as router:
        router.route_sync(step(
            goal=f"use {token}", constraints=["Authorization: Bearer abcdefghijklmnop"],
            principal="ci", labels={"url": "https://me:hunter2hunter2@example.com"},
        ))  # fmt: skip
        result = router.call_sync("r-1", "repo.read_file", {"path": "leak.txt"})
        router.call_sync("r-1", "repo.ripgrep", {"pattern": token})
        assert token not in result.text
        assert "token [redacted:github-pat]" in result.text
    written = b"".join(path.read_bytes() for path in (tmp_path / "runs" / "r-1").glob("*.json*"))
    for secret in (token, "correct-horse-battery", "abcdefghijklmnop", "hunter2hunter2"):
        assert secret.encode() not in written
    assert b"[redacted:" in written


@pytest.mark.parametrize("name", ["principal", "key", "branch", "parent_decision_id"])
def test_what_runs_are_kept_apart_by_may_not_look_like_a_secret(
    router: Router, name: str, tmp_path: Path
) -> None:
    """Redacted, two of them would be one: they would share results, sessions and tokens (S-32)."""
    for secret in ("ghp_" + "a1B2" * 9, "ghp_" + "c3D4" * 9):
        with pytest.raises(RequestError, match="looks like a secret"):
            router.route_sync(step(**{name: secret}))
    assert not (tmp_path / "runs" / "r-1").exists()
    router.route_sync(step())
    with pytest.raises(RequestError, match="look like a secret"):
        router.call_sync("r-1", "repo.read_file", {"path": "README.md"}, key="ghp_" + "a1B2" * 9)


@pytest.mark.parametrize(
    "key", ["612b0cee147e306b119e1ace6cdf9e3b", "c8e37435cfe35c0ef814df831095cf8d"]
)
def test_a_digest_is_a_key_also_where_it_might_have_held_something_encoded(
    router: Router, key: str
) -> None:
    """The first makes the probe look closer, as one in ten thousand digests does: there is nothing
    in it.
    """
    decision = router.route_sync(step(key=key))
    assert router.call_sync("r-1", "repo.list_files", {}, key=key).call_id != decision.decision_id


@pytest.mark.parametrize("here", [".", "sub/.."])
def test_a_workspace_that_names_the_root_is_the_root_and_not_the_processs_folder(
    router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.txt").write_text("not yours", encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    router.route_sync(step(workspace=here))
    assert router.call_sync("r-1", "repo.read_file", {"path": "secret.txt"}).outcome == "tool_error"
    assert router.call_sync("r-1", "repo.read_file", {"path": "README.md"}).ok
    assert router.call_sync("r-1", "workspace.write_file", {"path": "made.txt", "content": "x"}).ok
    assert not (elsewhere / "made.txt").exists()


def test_a_step_narrows_its_workspace_and_a_sub_agent_stays_inside(
    router: Router, workspace: Path
) -> None:
    router.route_sync(step(workspace="sub"))
    assert router.call_sync("r-1", "repo.read_file", {"path": "note.txt"}).ok
    assert (
        router.call_sync("r-1", "repo.read_file", {"path": "../README.md"}).outcome == "tool_error"
    )
    router.route_sync(step("child", parent_run_id="r-1"))
    assert not router.call_sync("child", "repo.read_file", {"path": "README.md"}).ok
    for outside in ("..", "/", str(workspace), "nowhere"):
        with pytest.raises(RequestError, match="not a folder inside"):
            router.route_sync(step("child", workspace=outside))


@pytest.mark.parametrize(
    ("form", "name_of"),
    [
        ("openai", lambda tool: tool["function"]["name"]),
        ("anthropic", lambda tool: tool["name"]),
        ("mcp", lambda tool: tool["name"]),
    ],
)
def test_tools_come_in_each_providers_form_under_names_that_can_be_called(
    router: Router, form: str, name_of: Any
) -> None:
    router.route_sync(step())
    toolset = router.tools_sync("r-1", format=form)
    names = [name_of(tool) for tool in toolset.tools]
    assert names[0] == "repo__git_diff"
    assert all(
        len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in names
    )
    assert router.call_sync("r-1", "repo__read_file", {"path": "README.md"}).ok
    assert toolset.tokens == sum(tool.tokens for tool in toolset.active) < toolset.all_tokens


def test_an_unknown_format_run_and_a_step_without_a_decision_are_refused(router: Router) -> None:
    with pytest.raises(UnknownRun):
        router.tools_sync("nobody")
    with pytest.raises(UnknownRun):
        router.call_sync("nobody", "repo.read_file", {})
    router.route_sync(step())
    with pytest.raises(RequestError, match="unknown format"):
        router.tools_sync("r-1", format="gemini")


def test_a_selector_is_asked_outside_the_lock_and_heard_only_within_what_is_permitted() -> None:
    catalog = small_catalog({"a": ["s.a"], "b": ["s.b"], "c": ["s.c"]},
                            policies=[Policy("p", allow=("a", "b"))])  # fmt: skip
    with fake_router(catalog, selector=lambda question: ["c", "b", "zzz"]) as fake:
        decision = fake.route_sync(step(step="unmapped"))
        record = fake.fakes.records("r-1")[0]
        assert (decision.bundle_ids, decision.source) == (["b"], "model")
        assert record["reply"]["ids"] == ["c", "b", "zzz"]
    with fake_router(catalog, selector=lambda question: "timeout") as failing:
        decision = failing.route_sync(step(step="unmapped"))
        assert (decision.bundle_ids, decision.source, decision.degraded) == ([], "none", True)


def test_a_hundred_thousand_decisions_would_not_leak_descriptors(tmp_path: Path) -> None:
    catalog = small_catalog({"a": ["s.a"]}, routes=[Route("all", bundles=("a",))],
                            settings=Settings(activation=ActivationSettings(), log=LogSettings()),
                            servers=[Server("s", "local", "trusted")])  # fmt: skip
    with fake_router(catalog) as fake:
        for number in range(50):
            fake.route_sync(step(f"run-{number}"))
            fake.close_run_sync(f"run-{number}")
        assert all(fake.fakes.store.log(f"run-{number}").closed for number in range(50))


def test_a_fake_router_refuses_a_result_of_a_tool_that_is_not_there() -> None:
    with pytest.raises(RequestError, match=r"no bundle holds a tool 'repo\.read_fil'") as raised:
        fake_router(load_catalog(CONFIG), results={"repo.read_fil": "# Hello"})
    assert raised.value.advice == "did you mean 'repo.read_file'?"


def test_a_fakes_result_is_what_a_typed_function_may_return() -> None:
    results = {
        "repo.read_file": {"lines": [1]},
        "repo.list_dir": lambda arguments: [arguments["path"]],
    }
    with fake_router(load_catalog(CONFIG), results=results) as router:
        router.route_sync(step())
        assert json.loads(router.call_sync("r-1", "repo.read_file", {"path": "x"}).text) == {
            "lines": [1]
        }
        assert json.loads(router.call_sync("r-1", "repo.list_dir", {"path": "x"}).text) == ["x"]


def test_what_to_do_about_an_error_stands_below_it_in_a_traceback() -> None:
    with fake_router(load_catalog(CONFIG)) as router:
        router.route_sync(step())
        with pytest.raises(RequestError) as raised:
            router.tools_sync("r-1", format="x")
    assert "use one of openai, anthropic, mcp" in "".join(traceback.format_exception(raised.value))


def test_a_fake_router_refuses_arguments_that_a_first_party_tool_would() -> None:
    with fake_router(load_catalog(CONFIG)) as router:
        router.route_sync(step())
        assert (
            router.call_sync("r-1", "repo.read_file", {"paht": "x"}).outcome == "invalid_arguments"
        )
        assert router.call_sync("r-1", "repo.read_file", {"path": "x"}).ok


def test_the_shipped_catalog_loads_and_its_revision_does_not_depend_on_the_machine() -> None:
    first, second = load_catalog(CONFIG), load_catalog(None)
    assert first.revision == second.revision
    script = "from bundle_router import load_catalog; print(load_catalog(None).revision)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CONFIG.parent, capture_output=True, text=True, check=True,
        env={
            "PATH": "/usr/bin", "PYTHONHASHSEED": "7",
            "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", ""),
        },
    )  # fmt: skip
    assert done.stdout.strip() == first.revision


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "y/" * 2_000])
def test_a_workspace_that_no_disk_can_have_is_refused_in_words(router: Router, name: str) -> None:
    with pytest.raises(RequestError, match="is not a folder inside"):
        router.route_sync(Step(run_id="r-w", workflow="w", role="r", step="s", workspace=name))
