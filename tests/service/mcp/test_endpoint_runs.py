"""What a run's agent sees and may call, in both eras, with the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest
from bundle_router import StepPolicy
from bundle_router.errors import RequestError
from bundle_router.service import serve_mcp

from tests.profiles import rounds

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

ERAS = ("legacy", "auto")
META_TOOLS = (
    "search_tools",
    "list_tools",
    "get_tool_details",
    "call_tool",
    "read_artifact",
    "search_artifact",
)
SOME = (*META_TOOLS, "kit__echo", "kit__wait")


async def names(connected: Any) -> tuple[str, ...]:
    return tuple(tool.name for tool in (await connected.list_tools()).tools)


def text(result: Any) -> str:
    (block,) = result.content
    return str(block.text)


async def until(condition: Any) -> None:
    """Waits until it holds; the minute of `serve` bounds it."""
    while not condition():  # noqa: ASYNC110 - what is waited for is on another thread
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("era", ERAS)
def test_the_meta_tools_and_the_decisions_direct_tools_are_listed_and_called(
    site: Any, era: str
) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, era) as connected:
            assert await names(connected) == SOME
            result = await connected.call_tool("kit__echo", {"text": "hello"})
            assert (text(result), result.is_error) == ("said hello", False)
            assert (
                text(
                    await connected.call_tool(
                        "call_tool", {"name": "kit.echo", "arguments": {"text": "x"}}
                    )
                )
                == "said x"
            )

    site.serve(work)
    finished = [row for row in site.records() if row["type"] == "call.finished"]
    assert [(row["server"], row["tool"], row["via"]) for row in finished] == [
        ("kit", "echo", ""),
        ("kit", "echo", "call_tool"),
    ]


@pytest.mark.parametrize("era", ERAS)
def test_what_is_not_of_the_decision_is_refused_in_words_and_recorded(site: Any, era: str) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, era) as connected:
            for tool, arguments in (
                ("kit__late", {}),
                ("call_tool", {"name": "kit.late"}),
                ("kit.late", {}),
            ):
                result = await connected.call_tool(tool, arguments)
                assert result.is_error
                assert "'kit.late' is not available at this step" in text(result)
            wrong = await connected.call_tool("kit__echo", {"txt": "said"})
            assert "do not fit" in text(wrong)

    site.serve(work)
    outcomes = [row["outcome"] for row in site.records() if row["type"] == "call.finished"]
    assert outcomes == ["denied", "denied", "denied", "invalid_arguments"]


@pytest.mark.parametrize("era", ERAS)
def test_no_call_changes_the_list_and_a_deferred_tool_is_called_without_being_in_it(
    site: Any, era: str
) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        await router.route(site.step("both"))
        async with site.client(endpoint, era) as connected:
            before = await connected.list_tools()
            assert tuple(tool.name for tool in before.tools) == SOME
            assert "kit.later" in connected.instructions
            assert "kit__late(" in text(
                await connected.call_tool("search_tools", {"query": "say again later"})
            )
            assert "kit__late(" in text(
                await connected.call_tool("search_tools", {"query": "select:kit.late"})
            )
            await connected.call_tool("get_tool_details", {"name": "kit.late"})
            await connected.call_tool("list_tools", {"bundle": "kit.later"})
            assert text(await connected.call_tool("kit.late", {"text": "y"})) == "said y"
            assert (await connected.list_tools()).tools == before.tools

    site.serve(work)


@pytest.mark.parametrize("era", ERAS)
def test_a_list_stays_as_it_was_decided_whatever_the_library_asks_for_meanwhile(
    site: Any, era: str
) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        await router.route(site.step("both"))
        async with site.client(endpoint, era) as connected:
            await router.call("r", "kit.late", {"text": "joins the engine's own array"})
            assert "kit__late" in json.dumps((await router.tools("r", format="mcp")).tools)
            assert await names(connected) == SOME
            await router.route(site.step("both"))
            assert await names(connected) == (*SOME, "kit__late")

    site.serve(work)


@pytest.mark.parametrize("era", ERAS)
def test_what_is_revoked_meanwhile_stays_listed_and_is_refused(
    site: Any, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a decision changes the list; what holds is found out at the call."""
    monkeypatch.setenv("KIT_KEY", "x")
    config = site.folder / "config"
    bundles = (config / "bundles.toml").read_text(encoding="utf-8")
    needs = bundles.replace(
        'effects = ["read"]', 'effects = ["read"]\nrequires = { env = ["KIT_KEY"] }', 1
    )
    (config / "bundles.toml").write_text(needs, encoding="utf-8")
    (config / "router.toml").write_text("[cache]\ncapabilities_ttl_s = 0\n", encoding="utf-8")

    async def work(router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, era) as connected:
            assert await names(connected) == SOME
            monkeypatch.delenv("KIT_KEY")
            assert await names(connected) == SOME
            assert "capability_missing" in text(
                await connected.call_tool("kit__echo", {"text": "x"})
            )
            await router.route(site.step())
            assert await names(connected) == META_TOOLS

    site.serve(work)


def test_those_who_listen_are_told_when_a_decision_changes_the_list_and_only_then(
    site: Any,
) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        told: dict[str, list[str]] = {"modern": [], "legacy": []}

        async def heard(message: Any) -> None:
            told["legacy"].append(type(message).__name__)

        async def listen(subscription: Any) -> None:
            async for event in subscription:
                told["modern"].append(type(event).__name__)

        async with (
            site.client(endpoint, "legacy", message_handler=heard) as old,
            site.client(endpoint) as new,
            new.listen(tools_list_changed=True) as subscription,
        ):
            assert old.server_capabilities.tools.list_changed
            listener = asyncio.create_task(listen(subscription))
            assert await names(old) == await names(new) == SOME
            await router.route(site.step("some"))  # another decision, the same list
            await new.call_tool("search_tools", {"query": "anything"})
            await router.route(site.step("some", policy=StepPolicy(deny=("tool:kit.wait",))))
            await until(lambda: all(told.values()))
            assert await names(old) == await names(new) == SOME[:-1]
            await asyncio.to_thread(_route_elsewhere, router, site.step("some"))
            await until(lambda: all(len(rows) == 2 for rows in told.values()))
            assert told == {
                "modern": ["ToolsListChanged"] * 2,
                "legacy": ["ToolListChangedNotification"] * 2,
            }
            listener.cancel()
            await asyncio.wait([listener])

    site.serve(work)


def _route_elsewhere(router: Any, step: Any) -> None:
    router.route_sync(step)


@pytest.mark.parametrize("era", ERAS)
def test_runs_are_continued_from_disk_and_unknown_ones_are_not_there(site: Any, era: str) -> None:
    async def first(_router: Any, endpoint: Any) -> None:
        for run_id in ("none", ".", "r.lock"):
            answer = await site.raw(
                endpoint.port, site.request(endpoint, target=f"/mcp/runs/{run_id}")
            )
            assert answer.status == 404, run_id
        assert (
            "'none'"
            in (
                await site.raw(endpoint.port, site.request(endpoint, target="/mcp/runs/none"))
            ).sentence
        )

    site.serve(first)
    seqs = [row["seq"] for row in site.records(file="routing.jsonl")]

    async def later() -> None:
        async with (
            site.open() as router,
            serve_mcp(router) as endpoint,
            site.client(endpoint, era) as connected,
        ):
            assert await names(connected) == SOME
            assert text(await connected.call_tool("kit__echo", {"text": "again"})) == "said again"

    asyncio.run(asyncio.wait_for(later(), 300))
    assert [row["seq"] for row in site.records(file="routing.jsonl")] == seqs
    assert not (site.folder / "runs" / "none").exists()


@pytest.mark.parametrize("era", ERAS)
def test_a_run_that_another_process_writes_is_served_here_too(site: Any, era: str) -> None:
    async def work(_router: Any, _endpoint: Any) -> None:
        async with (
            site.open() as other,
            serve_mcp(other) as second,
            site.client(second, era) as connected,
        ):
            assert await names(connected) == SOME
            assert text(await connected.call_tool("kit__echo", {"text": "x"})) == "said x"

    site.serve(work)


@pytest.mark.parametrize("era", ERAS)
def test_sixty_four_callers_at_once_get_their_own_answers(site: Any, era: str) -> None:
    calls = 64 * rounds(4)

    async def work(_router: Any, endpoint: Any) -> None:
        async def one(connected: Any, number: int) -> str:
            return text(await connected.call_tool("kit__echo", {"text": f"{number}"}))

        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(site.client(endpoint, era)) for _ in range(4)
            ]
            said = await asyncio.gather(*(one(clients[n % 4], n) for n in range(calls)))
        assert said == [f"said {n}" for n in range(calls)]

    site.serve(work)
    rows = site.records()
    assert [row["type"] for row in rows].count("call.finished") == calls
    assert [row["seq"] for row in rows] == list(range(1, 2 * calls + 1))


@pytest.mark.parametrize("era", ERAS)
def test_a_call_whose_caller_goes_away_is_cancelled_and_recorded(site: Any, era: str) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, era) as connected:
            call = asyncio.create_task(connected.call_tool("kit__wait", {}))
            await until(lambda: site.kit.arrived.acquire(blocking=False))
            call.cancel()
            await asyncio.wait([call])
            await until(lambda: "cancelled" in [row.get("outcome") for row in site.records()])
            assert text(await connected.call_tool("kit__echo", {"text": "on"})) == "said on"

    site.serve(work)


@pytest.mark.parametrize("era", ERAS)
def test_stopping_lets_a_call_end_that_ends_in_time(site: Any, era: str) -> None:
    async def main() -> None:
        async with site.open() as router:
            await router.route(site.step())
            serving = serve_mcp(router)
            endpoint = await serving.__aenter__()
            async with site.client(endpoint, era) as connected:
                await names(connected)
                call = asyncio.create_task(connected.call_tool("kit__wait", {}))
                await until(lambda: site.kit.arrived.acquire(blocking=False))
                ending = asyncio.create_task(serving.__aexit__(None, None, None))
                answer = await _after(
                    ending, lambda: site.raw(endpoint.port, site.request(endpoint))
                )
                assert answer is None or answer.status == 503
                site.kit.door.set()
                assert text(await call) == "waited"
                await asyncio.wait_for(ending, 300)

    asyncio.run(asyncio.wait_for(main(), 300))


async def _after(ending: asyncio.Task[Any], ask: Any) -> Any:
    """What a request gets once the end has begun; None when nobody listens any more."""
    await asyncio.sleep(0)
    assert not ending.done()
    try:
        return await ask()
    except OSError:
        return None


@pytest.mark.parametrize("era", ERAS)
def test_stopping_cancels_calls_that_hang_and_ends_who_listens_in_time(site: Any, era: str) -> None:
    async def main() -> None:
        async with site.open() as router:
            await router.route(site.step())
            before = asyncio.all_tasks()
            serving = serve_mcp(router)
            endpoint = await serving.__aenter__()
            agents = [asyncio.create_task(_hang(site, endpoint, era)) for _ in range(4)]
            for _ in agents:
                await until(lambda: site.kit.arrived.acquire(blocking=False))
            await asyncio.wait_for(serving.__aexit__(None, None, None), 300)
            for agent in agents:
                agent.cancel()
            await asyncio.wait(agents)
            assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(main(), 300))
    assert [row["outcome"] for row in site.records() if row["type"] == "call.finished"] == [
        "cancelled"
    ] * 4


async def _hang(site: Any, endpoint: Any, era: str) -> None:
    async with site.client(endpoint, era) as connected, AsyncExitStack() as stack:
        if era == "auto":
            await stack.enter_async_context(connected.listen(tools_list_changed=True))
        await connected.call_tool("kit__wait", {})


def test_what_is_not_served_is_an_error_in_words(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint) as connected:
            with pytest.raises(Exception, match="one page"):
                await connected.list_tools(cursor="2")
            with pytest.raises(Exception, match="Method not found"):
                await connected.list_resources()

    site.serve(work)


def test_a_defect_is_told_to_the_client_as_ours_and_to_the_operator_by_name(
    site: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        """A router whose calls fail in a way that nobody foresaw."""

        def __init__(self, whole: Any) -> None:
            router = whole.endpoint
            self.decision_id, self.tools = router.decision_id, router.tools
            self.watch, self.report, self.keep_secret = (
                router.watch,
                router.report,
                router.keep_secret,
            )
            self.media, self.catalog, self.principal = (
                router.media,
                router.catalog,
                router.principal,
            )
            self.passes, self.ask, self.follow = router.passes, router.ask, router.follow
            self.hide = router.hide

        async def call(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("secret of the inside")

    async def work(router: Any, _endpoint: Any) -> None:
        for era in ERAS:
            broken: Any = Broken(router)
            async with serve_mcp(broken) as endpoint, site.client(endpoint, era) as connected:
                with pytest.raises(Exception, match="a defect of it, named in its log") as told:
                    await connected.call_tool("kit__echo", {})
                assert "inside" not in str(told.value)

    site.serve(work)
    assert capfd.readouterr().err.count("ZeroDivisionError") == 2


def test_an_endpoint_may_be_begun_and_ended_many_times_in_one_process(site: Any) -> None:
    threads = threading.active_count()
    for _ in range(3):
        site.serve(_greet(site))
    assert threading.active_count() <= threads + 1


def _greet(site: Any) -> Any:
    async def work(_router: Any, endpoint: Any) -> None:
        for era in ERAS:
            async with site.client(endpoint, era) as connected:
                assert text(await connected.call_tool("kit__echo", {"text": "hi"})) == "said hi"

    return work


def test_a_port_that_is_taken_is_refused_in_words(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        for port, why in ((endpoint.port, "in use"), (99_999, "0 to 65535")):
            with pytest.raises(RequestError, match=why):
                await serve_mcp(router, port=port).__aenter__()

    site.serve(work)


def test_an_ended_endpoint_hears_of_no_decision_any_more(site: Any) -> None:
    class Watched:
        """A router that knows who watches it."""

        def __init__(self, router: Any) -> None:
            router = router.endpoint
            self.watchers: set[Any] = set()
            self.decision_id, self.tools = router.decision_id, router.tools
            self.call, self.report, self.keep_secret = (
                router.call,
                router.report,
                router.keep_secret,
            )
            self.media, self.catalog, self.principal = (
                router.media,
                router.catalog,
                router.principal,
            )
            self.passes, self.ask, self.follow = router.passes, router.ask, router.follow
            self.hide = router.hide

        def watch(self, heard: Any) -> Any:
            self.watchers.add(heard)
            return lambda: self.watchers.discard(heard)

    async def work(router: Any, _endpoint: Any) -> None:
        watched: Any = Watched(router)
        async with serve_mcp(watched) as endpoint, site.client(endpoint):
            assert len(watched.watchers) == 1
        assert not watched.watchers

    site.serve(work)


def test_a_second_request_of_a_session_under_the_id_of_one_under_way_is_refused_and_the_first_is_answered(
    site: Any,
) -> None:
    opening = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }

    async def work(router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            headers = {"accept": "application/json, text/event-stream"}

            def posted(message: dict[str, Any]) -> Any:
                return http.post("/mcp/runs/r", json={"jsonrpc": "2.0", **message}, headers=headers)

            begun = await posted({"id": 1, "method": "initialize", "params": opening})
            headers["mcp-session-id"] = begun.headers["mcp-session-id"]
            await posted({"method": "notifications/initialized"})
            call = {
                "id": 7,
                "method": "tools/call",
                "params": {"name": "kit__wait", "arguments": {}},
            }
            first = asyncio.create_task(posted(call))
            await asyncio.to_thread(site.kit.arrived.acquire)
            second = await posted({"id": "7", "method": "tools/list"})
            assert (second.status_code, "its own" in second.json()["error"]["message"]) == (
                400,
                True,
            )
            assert (await posted({"id": 8, "method": "tools/list"})).status_code == 200
            site.kit.door.set()
            assert "waited" in (await first).text
            assert (await posted({"id": 7, "method": "tools/list"})).status_code == 200, (
                "it is free again"
            )

    site.serve(work)


@pytest.mark.parametrize("era", ERAS)
def test_a_held_call_is_one_question_with_its_handle_however_often_it_is_made(
    site: Any, era: str
) -> None:
    policy = site.folder / "config" / "policy.toml"
    row = '\n[[approvals]]\nname = "somebody looks"\ncalls = ["tool:kit.echo"]\n'
    policy.write_text(policy.read_text(encoding="utf-8") + row, encoding="utf-8")

    async def work(router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, era) as connected:
            results = [await connected.call_tool("kit__echo", {"text": "x"}) for _ in range(5)]
            questions = [result.meta["bundle-router/approval"] for result in results]
            assert {result.is_error for result in results} == {True}
            assert f"waits for approval {questions[0]['id']}" in text(results[0])
            assert len({question["id"] for question in questions}) == 1
            assert [record["type"] for record in site.records()] == ["approval.asked"]

            await router.grant(questions[0]["id"], by="lead", binding=questions[0]["binding"])
            done = await connected.call_tool("kit__echo", {"text": "x"})
            assert (text(done), done.is_error) == ("said x", False)

    site.serve(work)
