"""Calls that end badly: cancelled, late, malformed, unstorable, refused with too much.

Each leaves a whole record.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.local import cards_of
from bundle_router.core.catalog import LogSettings, Route, Settings
from bundle_router.core.servers.transport.tool_servers import Scope
from bundle_router.core.values import Data, Media, Text
from bundle_router.errors import CorruptRun, KeyConflict, RequestError, StorageError, UnknownRun
from bundle_router.testing import fake_router, small_catalog
from bundle_router.tool import LocalTool, ToolContext, ToolOutput
from pydantic import AfterValidator, BaseModel, ConfigDict, field_validator


class Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Login(BaseModel):
    model_config = ConfigDict(extra="forbid")
    password: list[str] | int = 0
    note: str = ""


def step(run_id: str = "r-1") -> Step:
    return Step(run_id=run_id, workflow="w", role="r", step="s")


Opened = Callable[..., Router]
PDF = base64.b64encode(b"%PDF-1.4\n" + bytes(range(256)) * 4).decode()


@pytest.fixture
def open_with(tmp_path: Path) -> Opened:
    """A router over the given tools of the local server `mine`, all of them shown at every step."""

    def opened(*tools: LocalTool, limits: str = "", server: str = "") -> Router:
        config = tmp_path / "config"
        config.mkdir(exist_ok=True)
        (config / "servers.toml").write_text(
            f'[servers.mine]\ntransport = "local"\ntrust = "trusted"\n{server}\n', "utf-8"
        )
        listed = json.dumps([f"mine.{tool.name}" for tool in tools])
        (config / "bundles.toml").write_text(
            f'[bundles.mine]\ndescription = "mine"\ntools = {listed}\neffects = ["read"]\n', "utf-8"
        )
        (config / "routes.toml").write_text(
            '[[routes]]\nname = "all"\nbundles = ["mine"]\n', "utf-8"
        )
        (config / "policy.toml").write_text(
            '[[policies]]\nname = "all"\nallow = ["mine"]\n', "utf-8"
        )
        (config / "router.toml").write_text(f"[limits]\n{limits}\n", "utf-8")
        return Router.open(
            config, runs=tmp_path / "runs", workspace=tmp_path, local={"mine": tools}
        )

    return opened


def tool(
    name: str, run: Callable[[Any, ToolContext], Any], arguments: type[BaseModel] = Nothing
) -> LocalTool:
    return LocalTool(name, f"{name} it", arguments, run)


def records(tmp_path: Path, run_id: str = "r-1") -> list[dict[str, Any]]:
    return [
        record
        for record in Archive(tmp_path / "runs").records(run_id)
        if record["type"].startswith("call.")
    ]


def ends(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(outcome, code) of every call that began or was refused, after checking that each has exactly
    one end.
    """
    found = records(tmp_path)
    begun = [record["call_id"] for record in found if record["type"] == "call.started"]
    ended = [record["call_id"] for record in found if record["type"] == "call.finished"]
    assert set(begun) <= set(ended)
    assert len(ended) == len(set(ended))
    assert Archive(tmp_path / "runs").verify("r-1").ok
    return (
        (record["outcome"], record["code"]) for record in found if record["type"] == "call.finished"
    )


@pytest.mark.parametrize(
    "made",
    [
        (Data({1, 2}),),
        (Data(float("nan")),),
        (Data({"deep": object()}),),
        (Text(None),),  # type: ignore[arg-type]  # what a tool may do all the same
        (Media("text"),),  # type: ignore[arg-type]
        ("x",),
        None,
    ],
    ids=[
        "a set",
        "no number",
        "an object",
        "text that is none",
        "bytes that are text",
        "text alone",
        "nothing",
    ],
)
def test_output_that_is_none_ends_its_call_as_a_defect_of_the_tool(
    open_with: Opened, tmp_path: Path, made: Any
) -> None:
    with open_with(tool("odd", lambda arguments, context: ToolOutput(made))) as router:
        router.route_sync(step())
        result = router.call_sync("r-1", "mine.odd", {})
    assert (result.outcome, result.code) == ("tool_error", "crashed")
    assert list(ends(tmp_path)) == [("tool_error", "crashed")]


def test_json_counts_towards_the_size_of_a_result(open_with: Opened, tmp_path: Path) -> None:
    def flood(arguments: Nothing, context: ToolContext) -> ToolOutput:
        return ToolOutput((Data(["x" * 1000] * (context.max_bytes // 1000 + 1)),))

    with open_with(tool("flood", flood)) as router:
        router.route_sync(step())
        assert router.call_sync("r-1", "mine.flood", {}).code == "too_large"


def test_a_result_that_cannot_be_stored_ends_its_call_and_is_withheld(
    open_with: Opened, tmp_path: Path
) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + b"x" * 64
    with open_with(
        tool("draw", lambda arguments, context: ToolOutput((Media(picture, "image/png"),)))
    ) as router:
        router.route_sync(step())
        (tmp_path / "runs" / "r-1" / "artifacts").write_text("in the way", "utf-8")
        with pytest.raises(CorruptRun, match="another kind of file"):
            router.call_sync("r-1", "mine.draw", {})
        (tmp_path / "runs" / "r-1" / "artifacts").unlink()
        assert router.call_sync("r-1", "mine.draw", {}).ok
    assert list(ends(tmp_path)) == [("tool_error", "storage"), ("ok", "")]


def test_a_call_whose_turn_does_not_come_in_time_is_never_carried_out(
    open_with: Opened, leap: Any
) -> None:
    holding, go_on, carried_out = threading.Event(), threading.Event(), []

    def hold(arguments: Nothing, context: ToolContext) -> ToolOutput:
        holding.set()
        assert go_on.wait(300)
        return ToolOutput((Text("held"),))

    def note(arguments: Nothing, context: ToolContext) -> ToolOutput:
        carried_out.append(context.timeout_s)
        return ToolOutput((Text("noted"),))

    opened = open_with(
        tool("hold", hold),
        tool("note", note),
        limits="max_concurrent_calls = 1\ncall_timeout_s = 60",
    )
    with opened as router, ThreadPoolExecutor(2) as threads:
        router.route_sync(step())
        held = threads.submit(router.call_sync, "r-1", "mine.hold", {})
        assert holding.wait(300)
        waiting = threads.submit(router.call_sync, "r-1", "mine.note", {})
        while not waiting.done():  # it may not wait yet
            leap()
            wait([waiting], 0.01)
        late = waiting.result()
        assert late.outcome == "busy"
        assert "1 other calls are under way" in late.text
        go_on.set()
        held.result(300)
        assert router.call_sync("r-1", "mine.note", {}).ok
    assert len(carried_out) == 1, (
        "the late one was told that nothing happened, so nothing may happen"
    )
    assert 0 < carried_out[0] <= 60


def test_the_time_in_the_routers_own_queue_is_not_counted_as_the_tools(
    open_with: Opened, tmp_path: Path
) -> None:
    holding, go_on = threading.Event(), threading.Event()

    def hold(arguments: Nothing, context: ToolContext) -> ToolOutput:
        holding.set()
        assert go_on.wait(60)
        return ToolOutput((Text("held"),))

    def rows() -> list[dict[str, Any]]:
        lines = (tmp_path / "runs" / "r-1" / "tool-calls.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    async def main() -> None:
        note = tool("note", lambda arguments, context: ToolOutput(()))
        async with open_with(tool("hold", hold), note, limits="max_concurrent_calls = 1") as router:
            await router.route(step())
            held = asyncio.ensure_future(router.call("r-1", "mine.hold", {}))
            await asyncio.to_thread(holding.wait, 60)
            waiting = asyncio.ensure_future(router.call("r-1", "mine.note", {}))
            while len(rows()) < 2:
                await asyncio.wait([waiting], timeout=0.001)
            await asyncio.wait([waiting], timeout=0.1)
            go_on.set()
            await asyncio.gather(held, waiting)

    asyncio.run(main())
    (row,) = (row for row in rows() if row["tool"] == "note" and row["type"] == "call.finished")
    assert row["ready_ms"] > 90  # it waited as long as that, if not longer


def test_closing_tells_the_threads_that_were_calling(open_with: Opened, tmp_path: Path) -> None:
    entered = threading.Event()

    def wait(arguments: Nothing, context: ToolContext) -> ToolOutput:
        entered.set()
        ended = threading.Event()
        while not context.cancelled():
            ended.wait(0.001)
        return ToolOutput(())

    router = open_with(tool("wait", wait))
    router.route_sync(step())
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(router.call_sync, "r-1", "mine.wait", {})
        assert entered.wait(300)
        router.close_sync()
        with pytest.raises(RequestError, match="closed during this call"):
            call.result(300)
    router.close_sync()
    with pytest.raises(RequestError, match="closed"):
        router.call_sync("r-1", "mine.wait", {})
    assert list(ends(tmp_path)) == [("cancelled", "cancelled")]
    assert Archive(tmp_path / "runs").summary("r-1").state == "closed"


def test_a_run_that_is_closed_during_a_call_can_be_gone_on_with_at_once(
    open_with: Opened, tmp_path: Path
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(arguments: Nothing, context: ToolContext) -> ToolOutput:
        entered.set()
        assert go_on.wait(300)
        return ToolOutput((Text("done"),))

    with open_with(tool("wait", wait)) as router, ThreadPoolExecutor(1) as threads:
        router.route_sync(step())
        call = threads.submit(router.call_sync, "r-1", "mine.wait", {})
        assert entered.wait(300)
        router.close_run_sync("r-1")
        router.route_sync(step())
        go_on.set()
        assert call.result(300).ok
        assert Archive(tmp_path / "runs").summary("r-1").state == "open"
        router.route_sync(step())
        router.close_run_sync("r-1")
        assert Archive(tmp_path / "runs").summary("r-1").state == "closed"
    assert list(ends(tmp_path)) == [("ok", "")]


def test_a_cancelled_call_is_cancelled_also_when_its_end_cannot_be_recorded() -> None:
    entered = asyncio.Event()

    async def scenario() -> None:
        catalog = small_catalog({"a": ["s.a"]}, routes=[Route("all", bundles=("a",))])
        router = fake_router(catalog)

        async def forever(server: str, tool: str, arguments: Any, **rest: Any) -> Any:
            entered.set()
            await asyncio.Event().wait()

        router.fakes.sessions.call = forever  # type: ignore[method-assign]  # a fake with another behaviour
        await router.route(step())
        call = asyncio.create_task(router.call("r-1", "s.a", {}))
        await entered.wait()
        router.fakes.store.log("r-1").fail_with = StorageError("the disk is full", kind="disk_full")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [name for _, name, _ in router.fakes.diagnostics.events] == ["call.unrecorded"]
        router.fakes.store.log("r-1").fail_with = None
        await router.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("mine.login", {"note": "x" * 3_000_000}, "too_large"),
        ("mine.login", json.dumps({"note": "x" * 3_000_000}), "too_large"),
        ("mine." + "y" * 500_000, {}, "unknown_bundle"),
        ("mine.nowhere", {"note": "x" * 3_000_000}, "unknown_bundle"),
        ("mine.lo\ud800gin", {}, "unknown_bundle"),
        ("mine.login", '{"note": NaN}', "not_json"),
        ("mine.login", '{"note": ', "not_json"),
        ("mine.login", "[" * 100_000, "not_json"),
        ("mine.login", "[]", "not_an_object"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_refused_call_leaves_one_bounded_record_that_every_reader_can_read(
    open_with: Opened, tmp_path: Path, name: str, arguments: Any, code: str
) -> None:
    with open_with(tool("login", lambda arguments, context: ToolOutput(()), Login)) as router:
        router.route_sync(step())
        result = router.call_sync("r-1", name, arguments)
        assert (result.ok, result.code) == (False, code)
    (record,) = records(tmp_path)
    assert record["code"] == code
    text = json.dumps(record, ensure_ascii=False)
    assert len(text.encode("utf-8")) < 6_000


def test_arguments_that_were_too_large_are_known_by_size_digest_and_beginning(
    open_with: Opened, tmp_path: Path
) -> None:
    token = "ghp_" + "a1B2" * 9
    with open_with(tool("login", lambda arguments, context: ToolOutput(()), Login)) as router:
        router.route_sync(step())
        router.call_sync("r-1", "mine.login", {"note": f"{token} " * 60_000})
    kept = json.loads(records(tmp_path)[0]["arguments"])
    assert kept["too_large"] > 2_000_000
    assert kept["digest"].startswith("sha256:")
    assert kept["head"].startswith('{"note":"[redacted:')
    assert token[:12] not in json.dumps(kept)


def test_secrets_in_arguments_are_taken_out_by_their_names_and_never_repeated(
    open_with: Opened, tmp_path: Path
) -> None:
    with open_with(
        tool("login", lambda arguments, context: ToolOutput((Text("in"),)), Login)
    ) as router:
        router.route_sync(step())
        assert router.call_sync("r-1", "mine.login", {"password": ["correct horse"]}).ok
        refused = router.call_sync("r-1", "mine.login", {"password": "correct horse battery"})
        assert "password" in refused.text
        assert "correct horse" not in refused.text
    assert "correct horse" not in json.dumps(records(tmp_path))


def test_half_a_secret_at_the_cut_is_not_kept(open_with: Opened, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2" * 9
    with open_with(tool("login", lambda arguments, context: ToolOutput(()), Login)) as router:
        router.route_sync(step())
        router.call_sync("r-1", "mine.login", {"note": f"{'-' * 960} {token} {'x' * 3_000_000}"})
    assert "ghp_" not in records(tmp_path)[0]["arguments"]


def test_a_servers_own_time_limit_counts_for_its_tools(open_with: Opened) -> None:
    seen: list[float] = []

    def look(arguments: Nothing, context: ToolContext) -> ToolOutput:
        seen.append(context.timeout_s)
        return ToolOutput((Text("looked"),))

    with open_with(tool("look", look), server="timeout_s = 7") as router:
        router.route_sync(step())
        router.call_sync("r-1", "mine.look", {})
    assert 6 < seen[0] <= 7


def test_a_call_is_made_for_its_run_and_principal_in_the_steps_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    catalog = small_catalog({"a": ["s.a"]}, routes=[Route("all", bundles=("a",))])
    with fake_router(catalog, workspace=tmp_path) as router:
        router.route_sync(
            Step(run_id="r-1", workflow="w", role="r", step="s", principal="ann", workspace="sub")
        )
        router.call_sync("r-1", "s.a", {})
        assert router.fakes.sessions.places == [(str(tmp_path), "sub", Scope("r-1", "ann"))]


@pytest.mark.parametrize("failing", [1, 2])
def test_where_power_loss_counts_a_call_is_on_disk_before_and_after_its_effect(
    failing: int,
) -> None:
    """The first `sync` comes before the tool is called, the second before its result is
    returned.
    """
    settings = Settings(log=LogSettings(durability="disk"))
    catalog = small_catalog(
        {"a": ["s.a"]}, routes=[Route("all", bundles=("a",))], settings=settings
    )
    with fake_router(catalog) as router:
        router.route_sync(step())
        router.fakes.store.log("r-1").fail_sync_after = failing
        with pytest.raises(StorageError):
            router.call_sync("r-1", "s.a", {})
        assert len(router.fakes.sessions.calls) == failing - 1


def test_arguments_may_come_as_json_text_as_some_providers_hand_them_over(
    open_with: Opened,
) -> None:
    echo = tool("echo", lambda arguments, context: ToolOutput((Text(arguments.note),)), Login)
    with open_with(echo) as router:
        router.route_sync(step())
        assert router.call_sync("r-1", "mine.echo", '{"note": "hello"}').text == "hello"
        assert router.call_sync("r-1", "mine.echo", "").ok


def test_the_start_of_a_call_is_on_disk_before_its_effect(
    open_with: Opened, tmp_path: Path
) -> None:
    seen: list[str] = []

    def look(arguments: Nothing, context: ToolContext) -> ToolOutput:
        seen.extend(record["type"] for record in records(tmp_path))
        return ToolOutput((Text("looked"),))

    with open_with(tool("look", look)) as router:
        router.route_sync(step())
        router.call_sync("r-1", "mine.look", {})
    assert seen == ["call.started"]


def test_a_tool_with_a_name_that_is_none_is_refused_when_the_router_is_opened() -> None:
    for name in ("", "a b", "x" * 200, "über"):
        with pytest.raises(RequestError, match="is not a tool name"):
            cards_of(
                {"mine": [LocalTool(name, "d", Nothing, lambda arguments, context: ToolOutput(()))]}
            )


def test_an_artifact_is_read_without_opening_its_run(open_with: Opened, tmp_path: Path) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + b"x" * 64
    draw = tool("draw", lambda arguments, context: ToolOutput((Media(picture, "image/png"),)))
    with open_with(draw) as router:
        router.route_sync(step())
        (stored,) = router.call_sync("r-1", "mine.draw", {}).artifacts
        assert router.artifact("r-1", stored.uri) == picture
        router.close_run_sync("r-1")
        before = (tmp_path / "runs" / "r-1" / "run.json").read_bytes()
        assert router.artifact("r-1", stored.uri) == picture
        assert (tmp_path / "runs" / "r-1" / "run.json").read_bytes() == before
        with pytest.raises(UnknownRun):
            router.artifact("r-2", stored.uri)
        with pytest.raises(RequestError, match="no artifact"):
            router.artifact("r-1", "artifact:sha256:" + "0" * 64)


@pytest.mark.parametrize(
    "raised", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, SystemExit, StopIteration]
)
def test_whatever_a_tool_raises_ends_its_own_call_and_nothing_else(
    open_with: Opened, tmp_path: Path, raised: type[BaseException]
) -> None:
    """An interrupt out of a tool once ended the loop that calls run on: every later call waited for
    ever.
    """

    def burst(arguments: Nothing, context: ToolContext) -> ToolOutput:
        raise raised

    fine = tool("fine", lambda arguments, context: ToolOutput((Text("fine"),)))
    with open_with(tool("burst", burst), fine) as router:
        router.route_sync(step())
        with ThreadPoolExecutor(1) as threads:
            result = threads.submit(router.call_sync, "r-1", "mine.burst", {}).result(300)
        assert (result.outcome, result.code) == ("tool_error", "crashed")
        assert router.call_sync("r-1", "mine.fine", {}).ok
    assert list(ends(tmp_path)) == [("tool_error", "crashed"), ("ok", "")]


def test_a_config_that_changed_takes_another_step_before_anything_is_shown_or_called(
    open_with: Opened,
) -> None:
    made = [
        tool(name, lambda arguments, context: ToolOutput((Text("done"),))) for name in ("a", "b")
    ]
    with open_with(made[0]) as router:
        router.route_sync(step())
    with open_with(*made) as router:
        refused = router.call_sync("r-1", "mine.b", {})
        assert (refused.outcome, refused.code) == ("denied", "not_mapped")
        assert "has to be routed again" in refused.text
        with pytest.raises(RequestError, match="has to be routed again"):
            router.tools_sync("r-1")
        for name, arguments in (("search_tools", {"query": "b"}), ("list_tools", {})):
            assert "has to be routed again" in router.call_sync("r-1", name, arguments).text
        router.route_sync(step())
        assert router.call_sync("r-1", "mine.b", {}).ok


def test_a_workspace_among_the_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs" / "r-1").mkdir(parents=True)
    with pytest.raises(RequestError, match="lies in the folder of the runs"):
        Router.open(None, runs=tmp_path / "runs", workspace=tmp_path / "runs" / "r-1")


def test_a_long_check_of_arguments_holds_neither_the_event_loop_nor_the_run(
    open_with: Opened,
) -> None:
    checking, go_on = threading.Event(), threading.Event()

    class Many(BaseModel):
        model_config = ConfigDict(extra="forbid")
        values: list[int]

        @field_validator("values")
        @classmethod
        def slow(cls, values: list[int]) -> list[int]:
            checking.set()
            assert go_on.wait(300)
            return values

    async def main() -> None:
        async with open_with(
            tool("count", lambda given, _: ToolOutput((Text(str(len(given.values))),)), Many)
        ) as router:
            await router.route(step())
            call = asyncio.create_task(router.call("r-1", "mine.count", {"values": [1] * 5_000}))
            await asyncio.to_thread(checking.wait, 30)
            assert (await asyncio.wait_for(router.route(step()), 300)).seq == 1
            assert not call.done()
            go_on.set()
            assert (await call).text == "5000"

    asyncio.run(main())


class Watched(dict[str, Any]):
    """A part of arguments that notes which threads read it."""

    threads: ClassVar[set[str]] = set()

    def items(self) -> Any:
        self.threads.add(threading.current_thread().name)
        return super().items()


@pytest.mark.parametrize(("many", "where"), [(1, "MainThread"), (20_000, "large-results")])
def test_large_arguments_are_read_in_the_thread_for_large_results(
    open_with: Opened, many: int, where: str
) -> None:
    class Rows(BaseModel):
        rows: list[Any]

    count = tool("count", lambda given, _: ToolOutput((Text(str(len(given.rows))),)), Rows)

    async def main() -> None:
        async with open_with(count) as router:
            await router.route(step())
            Watched.threads.clear()
            for name, given in (("mine.count", {}), ("call_tool", {"name": "mine.count"})):
                rows = {"rows": [Watched(id=n) for n in range(many)]}
                key = f"{name} {many}"
                assert (
                    await router.call(
                        "r-1", name, {**given, "arguments": rows} if given else rows, key=key
                    )
                ).ok
            assert {"MainThread", "large-results"} & Watched.threads == {where}

    asyncio.run(main())


def test_large_arguments_are_recorded_and_bound_to_their_key_as_small_ones_are(
    open_with: Opened, tmp_path: Path
) -> None:
    given = {"rows": [{"id": n, "password": "correct horse"} for n in range(3_000)], "page": PDF}

    class Rows(BaseModel):
        model_config = ConfigDict(extra="allow")

    with open_with(
        tool("take", lambda arguments, context: ToolOutput((Text("taken"),)), Rows)
    ) as router:
        router.route_sync(step())
        assert router.call_sync("r-1", "mine.take", given, key="k").ok
        assert router.call_sync("r-1", "mine.take", json.dumps(given), key="k").cached_from
        with pytest.raises(KeyConflict):
            router.call_sync("r-1", "mine.take", {**given, "more": 1}, key="k")
    recorded = json.loads(records(tmp_path)[0]["arguments"])
    assert recorded["rows"][2_999] == {"id": 2_999, "password": "[redacted:named-secret]"}
    assert "artifact:sha256:" in recorded["page"]


def test_many_wrong_values_are_told_of_without_listing_each(open_with: Opened) -> None:
    class Many(BaseModel):
        model_config = ConfigDict(extra="forbid")
        values: list[int | dict[str, int]] = []
        odd: list[Annotated[int, AfterValidator(_refused)]] = []

    async def main() -> None:
        async with open_with(
            tool("count", lambda _given, _: ToolOutput((Text("counted"),)), Many)
        ) as router:
            await router.route(step())
            wrong = await router.call("r-1", "mine.count", {"values": [None] * 90_000})
            assert wrong.outcome == "invalid_arguments"
            assert len(wrong.text) < 5_000
            right = await router.call("r-1", "mine.count", {"values": [1] * 200_000})
            assert right.text == "counted"
            wrong = await router.call("r-1", "mine.count", {"odd": [1] * 5_000})
            assert "5,000 values are invalid" in wrong.text

    asyncio.run(main())


def _refused(value: int) -> int:
    raise ValueError(f"{value} is odd")
