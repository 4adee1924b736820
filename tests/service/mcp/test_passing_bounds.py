"""What bounds the passing on: the step's budget, the time of a list, and rows and words that are
not the server's.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

from tests.service.mcp.everything_server import RESOURCES
from tests.service.mcp.relay import Entry, Relay, relayed

ERAS = ("legacy", "auto")


async def refused(request: Any) -> Any:
    """The error of a request that is refused."""
    from mcp.shared.exceptions import MCPError

    with pytest.raises(MCPError) as told:
        await request
    return told.value.error


def test_what_is_passed_on_counts_in_the_steps_budget_and_ends_with_it(
    site: Any, tmp_path: Path
) -> None:
    from bundle_router import Step

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            await connected.read_resource("test://static-text")
            await connected.call_tool("test_simple_text", {})
            await connected.get_prompt("test_simple_prompt")
            for request in (
                connected.read_resource("test://static-text"),
                connected.get_prompt("test_simple_prompt"),
            ):
                assert "3 calls, of at most 3" in (await refused(request)).message
            assert (
                "at most 3" in (await connected.call_tool("test_simple_text", {})).content[0].text
            )
            assert [
                (row["outcome"], row["code"], row["spent"]["calls"]) for row in relay.passed()
            ] == [
                ("ok", "", 1),
                ("ok", "", 3),
                ("budget", "calls_per_step", 3),
                ("budget", "calls_per_step", 3),
            ]
            await relay.router.close_run("r")
            assert (
                "at most 3"
                in (await refused(connected.read_resource("test://static-text"))).message
            )
            await relay.router.route(Step(run_id="r", workflow="w", role="r", step="another"))
            assert (await connected.read_resource("test://static-text")).contents

    relayed(tmp_path, work, limits="calls_per_step = 3")


def test_what_is_passed_on_at_the_same_time_does_not_exceed_the_budget(
    site: Any, tmp_path: Path
) -> None:
    """Each is recorded when it is over: until then it counts all the same."""

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            reads = [
                connected.read_resource(f"test://template/{number}/data") for number in range(12)
            ]
            answers = await asyncio.gather(*reads, return_exceptions=True)
            assert sum(not isinstance(answer, Exception) for answer in answers) == 3
            assert relay.servers["every"].asked == ["resources/read"] * 3
            assert (await connected.call_tool("test_simple_text", {})).is_error

    relayed(tmp_path, work, limits="calls_per_step = 3")


def test_lists_that_are_passed_on_are_recorded_and_count_and_are_no_circle(
    site: Any, tmp_path: Path
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            for _ in range(12):
                await connected.list_resources()
            assert "at most 12" in (await refused(connected.list_prompts())).message
            assert (
                "at most 12" in (await connected.call_tool("test_simple_text", {})).content[0].text
            )
            *listed, over = relay.listed()
            assert {(row["server"], row["method"], row["outcome"]) for row in listed} == {
                ("every", "resources/list", "ok")
            }
            assert [row["spent"]["calls"] for row in listed] == [*range(1, 13)]
            assert all(uri in listed[0]["result"] for uri in RESOURCES)
            assert (over["method"], over["outcome"], over["code"]) == (
                "prompts/list",
                "budget",
                "calls_per_step",
            )

    relayed(tmp_path, work, limits="calls_per_step = 12\nrepeated_calls = 4")


def test_reading_the_same_again_and_again_is_a_circle(site: Any, tmp_path: Path) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            for _ in range(5):
                await connected.read_resource("test://static-text")
            assert (
                "made before"
                in (await refused(connected.read_resource("test://static-text"))).message
            )
            assert (await connected.read_resource("test://static-binary")).contents
            assert [row["code"] for row in relay.passed()] == [*[""] * 5, "repeated_calls", ""]

    relayed(tmp_path, work, limits="repeated_calls = 4")


@pytest.mark.parametrize("era", ERAS)
def test_a_row_that_is_none_costs_itself_and_no_other(site: Any, tmp_path: Path, era: str) -> None:
    rows = [
        {"uri": "test://unnamed"},
        {"uri": "test://sized", "name": "n", "size": "x"},
        {"uri": "plain://", "name": "n"},
    ]

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            listed = [str(one.uri) for one in (await connected.list_resources()).resources]
            assert listed == [*RESOURCES, "plain://"]

    mixed = Entry(prefix=True, answers={"resources_list": {"resources": rows}})
    relayed(tmp_path, work, every=Entry(), plain=mixed)


def test_a_prompt_that_takes_another_servers_name_is_not_listed(site: Any, tmp_path: Path) -> None:
    listed = {
        "prompts": [{"name": "every__test_simple_prompt", "description": "Mine."}, {"name": "own"}]
    }

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            rows = {row.name: row.description for row in (await connected.list_prompts()).prompts}
            assert rows["every__test_simple_prompt"] == "The prompt test_simple_prompt."
            assert "own" in rows

    relayed(tmp_path, work, every=Entry(prefix=True), plain=Entry(answers={"prompts_list": listed}))


def test_a_server_that_never_ends_its_list_has_the_time_of_one_call_for_all_pages(
    site: Any, tmp_path: Path, leap: Any
) -> None:
    pages: list[str] = []
    done = threading.Event()

    def page(_params: dict[str, Any]) -> dict[str, Any]:
        pages.append("")
        if len(pages) > 1:
            leap()  # by a minute, so that no page alone takes longer than a call may
        if len(pages) > 2:
            done.wait(300)
        return {
            "resources": [{"uri": f"plain://{len(pages)}", "name": "n"}],
            "nextCursor": str(len(pages)),
        }

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            listed = [str(one.uri) for one in (await connected.list_resources()).resources]
            assert "plain://1" in listed
            assert len(listed) < 10
        done.set()

    endless = Entry(prefix=True, answers={"resources_list": page})
    relayed(tmp_path, work, limits="call_timeout_s = 100", plain=endless)


def test_what_is_no_json_number_is_null_in_what_is_passed_on(site: Any, tmp_path: Path) -> None:
    odd = {"n": float("nan"), "list": [float("inf"), 1]}
    row = {"uri": "plain://", "name": "n", "_meta": odd}
    read = {"contents": [{"uri": "plain://", "text": "t", "_meta": odd}]}

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            (listed,) = (await connected.list_resources()).model_dump(by_alias=True)["resources"]
            (given,) = (await connected.read_resource("plain://")).model_dump(by_alias=True)[
                "contents"
            ]
            for meta in (listed["_meta"], given["_meta"]):
                assert (meta.get("n"), meta["list"]) == (None, [None, 1])
        assert "NaN" not in json.dumps(relay.records())

    relayed(
        tmp_path,
        work,
        plain=Entry(
            prefix=True, answers={"resources_list": {"resources": [row]}, "resources_read": read}
        ),
    )


def test_a_list_that_is_too_large_to_be_passed_on_is_not_read_to_its_end(
    site: Any, tmp_path: Path
) -> None:
    def page(params: dict[str, Any]) -> dict[str, Any]:
        at = int(params.get("cursor", 0))
        row = {"uri": f"test://{at}", "name": "x", "description": "x" * 500_000}
        return {"resources": [row], "nextCursor": str(at + 1)}

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            assert "more than 786,432 bytes" in (await refused(connected.list_resources())).message
        asked = [method for method, _ in relay.servers["plain"].asked if method == "resources/list"]
        assert len(asked) == 2

    relayed(tmp_path, work, plain=Entry(prefix=True, answers={"resources_list": page}))


def test_how_long_an_answer_may_be_kept_and_the_protocols_own_words_are_the_endpoints(
    site: Any, tmp_path: Path
) -> None:
    protocol = "io.modelcontextprotocol"
    said = {f"{protocol}/subscriptionId": "7", f"{protocol}/serverInfo": {"name": "x"}, "own": 1}
    read = {
        "contents": [{"uri": "plain://", "text": "t"}],
        "_meta": said,
        "ttlMs": 9_999_999,
        "cacheScope": "public",
    }

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            given = (await connected.read_resource("plain://")).model_dump(by_alias=True)
            assert (given["ttlMs"], given["cacheScope"]) == (0, "private")
            assert f"{protocol}/subscriptionId" not in given["_meta"]
            assert given["_meta"]["own"] == 1
            assert given["_meta"][f"{protocol}/serverInfo"]["name"] == "bundle-router"

    relayed(tmp_path, work, plain=Entry(prefix=True, answers={"resources_read": read}))


@pytest.mark.parametrize(("rows", "is_large"), [(10, False), (40_000, True)])
def test_a_large_answer_is_looked_through_off_every_event_loop(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, is_large: bool
) -> None:
    from bundle_router.adapters.mcp import call_results
    from bundle_router.core.servers.transport import pass_through

    seen: set[str] = set()

    def spied(function: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*values: Any, **named: Any) -> Any:
            seen.add(threading.current_thread().name)
            return function(*values, **named)

        return spy

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            monkeypatch.setattr(
                "bundle_router.adapters.mcp.hub.read_reply", spied(call_results.read_reply)
            )
            monkeypatch.setattr(pass_through, "_size", spied(pass_through._size))
            await connected.read_resource("plain://any")
        assert seen == {"large-results"} if is_large else seen.isdisjoint({"large-results"})
        assert seen

    content = {
        "uri": "plain://any",
        "text": "x",
        "_meta": {"rows": [{"a": n} for n in range(rows)]},
    }
    relayed(tmp_path, work, plain=Entry(answers={"resources_read": {"contents": [content]}}))


def test_an_error_whose_data_nest_deeper_than_can_be_written_comes_without_them() -> None:
    from bundle_router.core.servers.transport.pass_through import ServerError, ServerReply
    from bundle_router.service.mcp.jsonrpc import AnswerError
    from bundle_router.service.mcp.passage import as_sent

    for depth, data in ((100, nested(100)), (100_000, None)):
        with pytest.raises(AnswerError) as told:
            as_sent(ServerReply(error=ServerError(-32000, "refused", nested(depth))))
        error = told.value
        assert (error.code, error.message, error.data) == (-32000, "refused", data)


def test_an_answer_that_nests_deeper_than_can_be_written_is_out_of_form() -> None:
    from bundle_router.service.mcp.passage import has_form

    for depth, fits in ((100, True), (400, False)):
        content = {"uri": "plain://", "text": "t", "_meta": {"deep": nested(depth)}}
        answer = {"resultType": "complete", "contents": [content]}
        assert has_form("resources/read", "2026-07-28", answer) is fits


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize("era", ERAS)
def test_an_answer_out_of_form_is_an_error_and_stays_out_of_the_hosts_log(
    site: Any, tmp_path: Path, era: str, caplog: Any, capfd: Any
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            for request in (connected.read_resource("plain://"), connected.get_prompt("plain__p")):
                assert "does not have a form of the protocol" in (await refused(request)).message
            result = await connected.call_tool("plain__plain", {})
            assert [block.type for block in result.content] == ["text"]

    wrong = {
        "resources_read": {"contents": "canary"},
        "prompts_get": {"messages": ["canary"]},
        "tools_call": {"content": "canary"},
    }
    with caplog.at_level("DEBUG", "mcp.server"):
        relayed(tmp_path, work, plain=Entry(prefix=True, answers=wrong))
    told = capfd.readouterr()
    assert "canary" not in caplog.text + told.out + told.err


def test_a_clients_wrong_notification_is_told_of_by_its_method_and_without_its_text(
    site: Any, tmp_path: Path, caplog: Any, capfd: Any
) -> None:
    from tests.service.conftest import raw, request

    client = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }

    async def post(relay: Relay, method: str, params: Any, session: str = "", **more: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        head = f"Mcp-Session-Id: {session}" if session else ""
        return await raw(relay.endpoint.port, request(relay.endpoint, body=body, more=head))

    async def work(relay: Relay) -> None:
        session = (await post(relay, "initialize", client, id=1)).headers["mcp-session-id"]
        assert (await post(relay, "notifications/initialized", {}, session)).status == 202
        assert (
            await post(relay, "notifications/progress", {"progressToken": ["canary"]}, session)
        ).status == 202
        assert (await post(relay, "ping", {}, session, id=2)).status == 200

    relayed(tmp_path, work)
    # The server behind it is in this process too, and tells of a connection that ends while it
    # reads.
    assert not [record for record in caplog.records if record.name.startswith("mcp")]
    told = capfd.readouterr()
    assert '"event":"mcp.warned","run_id":"r","where":"notifications/progress"' in told.err
    assert "canary" not in caplog.text + told.out + told.err


def test_a_host_that_uses_the_sdk_itself_keeps_its_log(
    site: Any, tmp_path: Path, caplog: Any
) -> None:
    import logging

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            await connected.read_resource("test://static-text")
        logging.getLogger("mcp.server.runner").warning("the host's own")

    relayed(tmp_path, work)
    assert "the host's own" in caplog.text


def test_a_resource_that_changes_without_end_is_announced_now_and_then_and_the_last_change_always() -> (
    None
):
    from bundle_router.service.mcp.following import FollowedResources

    async def main() -> None:
        announced, may_go_on = asyncio.Queue[str](), asyncio.Event()
        change: list[Any] = []

        async def begin(_uri: str, changed: Any) -> Any:
            change.append(changed)
            return lambda: None

        async def updated(uri: str) -> None:
            announced.put_nowait(uri)
            await may_go_on.wait()

        followed = FollowedResources(begin, updated)
        assert await followed.add("a://b") is None
        change[0]()
        await announced.get()
        for _ in range(1_000):
            change[0]()
        await anyio.wait_all_tasks_blocked()
        assert announced.empty()
        may_go_on.set()
        await announced.get()
        change[0]()
        await announced.get()
        await followed.close()
        assert announced.empty()

    asyncio.run(asyncio.wait_for(main(), 300))
