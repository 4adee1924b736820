"""What the sessions promise over any transport: cached lists, queues that end, circuits that open,
no leaks.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.mcp import McpSessions
from bundle_router.adapters.mcp.faults import Busy
from bundle_router.adapters.mcp.hub import Guards
from bundle_router.adapters.workers import _one_at_a_time, run_in_turn
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.servers.transport.list_pages import Pages
from bundle_router.core.servers.transport.pass_through import Client
from bundle_router.core.servers.transport.tool_servers import RawResult, Scope
from bundle_router.core.values import Data, Media, Text
from bundle_router.core.values.breaker import BreakerTerms
from bundle_router.errors import RequestError, ToolFailure
from bundle_router.testing import FakeClock

from tests.adapters.mcp.raw_servers import answering, rpc, text
from tests.profiles import rounds

ROOT = Path(__file__).parents[3]


def test_importing_and_opening_load_nothing_and_start_nothing() -> None:
    script = (
        "import sys, threading\n"
        "from bundle_router.adapters.mcp import open_mcp_sessions\n"
        "from bundle_router.testing import FakeClock\n"
        "class Nobody:\n"
        "    event = None\n"
        "s = open_mcp_sessions({}, clock=FakeClock(), diagnostics=Nobody())\n"
        "heavy = ('mcp', 'anyio', 'httpx2', 'jsonschema', 'opentelemetry')\n"
        "print([m for m in heavy if m in sys.modules], threading.active_count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] 1"


# --- results --------------------------------------------------------------------------------------


def test_media_are_bytes_and_what_is_no_media_says_so(bench: Any) -> None:
    async def main(sessions: McpSessions) -> RawResult:
        result: RawResult = await bench.call(sessions, "blocks")
        return result

    with bench.faults.serving() as server:
        blocks = bench.run(main, bench.http(server)).blocks
    assert blocks[0] == Text("hello")
    assert isinstance(blocks[1], Media)
    assert blocks[1].data.startswith(b"\x89PNG")
    assert "empty" in blocks[2].text
    assert blocks[3] == Data({"type": "audio", "data": "!!!", "mimeType": "audio/wav"})
    assert blocks[4] == Text("body", uri="file:///a/b.txt", mime_type="text/plain")
    assert blocks[5] == Media(b"\0\1\2", "x/y", "c.bin")
    assert blocks[6] == Data({"type": "resource_link", "uri": "https://example.com/x", "name": "x"})
    assert blocks[7] == Data({"type": "poem", "lines": 3})
    assert blocks[-1] == Data({"n": 1})


@pytest.mark.parametrize(
    ("tool", "outcome", "code", "text"),
    [
        ("fail", "tool_error", "failed", "no"),
        ("rpc_error", "tool_error", "invalid_params", "that is not how I am called"),
    ],
)
def test_a_tools_own_failure_is_its_own(
    bench: Any, tool: str, outcome: str, code: str, text: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        for _ in range(10):
            result = await bench.call(sessions, tool)
            assert (result.outcome, result.code) == (outcome, code)
            assert text in bench.said(result)
        assert sessions.status()[0].circuit == "closed"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_a_result_that_misses_its_schema_is_kept_and_the_miss_is_reported(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        await sessions.definitions("s")
        result = await bench.call(sessions, "weather")
        assert result.outcome == "ok"
        assert result.blocks == (Text("cold"), Data({"c": "cold"}))
        assert sessions.status()[0].circuit == "closed"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))
        assert server.faults.lists == 1
    assert "'cold' is not of type 'number'" in bench.events.named("result.unexpected")[0]["wrong"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_what_is_no_json_number_is_null_for_the_agent(bench: Any, transport: str) -> None:
    async def main(sessions: McpSessions) -> None:
        for client in (None, Client()):
            result = await sessions.call(
                "s", "nan", {}, timeout_s=60, scope=Scope(run_id="r", client=client)
            )
            assert result.blocks == (Text("x"), Data({"n": [None, None, 1.5]}))
        assert result.answer is not None
        assert result.answer.result is not None
        assert result.answer.result["structuredContent"] == {"n": [None, None, 1.5]}

    with bench.faults.serving() as server:
        bench.run(main, bench.stdio() if transport == "stdio" else bench.http(server))


def test_calling_a_tool_that_was_never_listed_lists_nothing(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "weather")).outcome == "ok"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))
        assert server.faults.lists == 0


# --- lists ----------------------------------------------------------------------------------------


def test_one_bad_definition_costs_one_tool_and_is_named(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        listing = await sessions.definitions("s")
        names = [tool["name"] for tool in listing.tools]
        assert {"echo", "only_schema", "blocks"} <= set(names)
        assert len(names) == len(set(names))
        refused = dict(listing.rejected)
        assert "broken" in names, "admission says what is wrong with its schema"
        assert "300," in refused["huge"]
        assert refused["echo"] == "the name is taken by an earlier tool"
        assert [why for name, why in listing.rejected if not name] == [
            "it has no name",
            "it is no object",
        ]

    with bench.faults.serving(bench.faults.Faults(bad_tools=1)) as server:
        bench.run(main, bench.http(server))
    assert "broken" in [row["tool"] for row in bench.events.named("tool.rejected")]


@pytest.mark.parametrize(
    ("options", "tools", "cut"),
    [
        ({"loop_cursor": 1}, 50, "only the first 50 pages were read"),
        ({"circle": 1}, None, "the server's pages go round in a circle"),
        ({"big_list": 6_000}, 5_000, "only the first 5,000 tools were read"),
    ],
)
def test_a_list_without_end_is_cut_and_says_so(
    bench: Any, options: Any, tools: int | None, cut: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        listing = await sessions.definitions("s")
        assert listing.cut == cut
        assert tools is None or len(listing.tools) == tools

    with bench.faults.serving(bench.faults.Faults(**options)) as server:
        bench.run(main, bench.http(server))


def test_a_fresh_list_is_read_once_however_many_ask(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        listings = await asyncio.gather(*(sessions.definitions("s") for _ in range(20)))
        assert all(listing is listings[0] for listing in listings)
        assert (listings[0].name, listings[0].protocol, listings[0].instructions) == (
            "faults",
            "2025-11-25",
            "be kind",
        )
        assert await sessions.definitions("s") is listings[0]

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))
        assert server.faults.lists == 1


@pytest.mark.parametrize(
    ("options", "entry", "holds_s", "over_s"),
    [
        ({}, {}, 599, 2),
        ({}, {"ttl_s": 20.0}, 19, 2),
        ({"ttl_ms": 5_000}, {}, 4, 2),
        ({"ttl_ms": 0}, {}, 599, 2),
        ({"ttl_ms": 10**400}, {}, 599, 2),
        ({"ttl_ms": 900_000}, {"ttl_s": 20.0}, 19, 2),
    ],
)
def test_a_list_holds_for_its_lifetime_and_is_served_while_it_is_read_again(
    bench: Any, options: Any, entry: Any, holds_s: float, over_s: float
) -> None:
    async def main(sessions: McpSessions) -> None:
        first = await sessions.definitions("s")
        bench.clock.advance(holds_s)
        assert await sessions.definitions("s") is first
        bench.clock.advance(over_s)
        server.faults.extra_tools.append(bench.faults.tool("new"))
        stale = await sessions.definitions("s")
        assert stale.stale
        assert stale.tools == first.tools
        await bench.until(
            lambda: (
                (listing := sessions.known("s")) is not None
                and len(listing.tools) == len(first.tools) + 1
            )
        )
        fresh = await sessions.definitions("s")
        assert not fresh.stale
        assert server.faults.lists == 2

    with bench.faults.serving(bench.faults.Faults(**options)) as server:
        bench.run(main, bench.http(server, **entry))


def test_a_server_that_says_its_list_changed_is_listed_again(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        before = await sessions.definitions("s")
        await bench.call(sessions, "change", name="added")
        while True:
            listing = await sessions.definitions("s")
            if "added" in [tool["name"] for tool in listing.tools]:
                break
            assert listing.tools == before.tools
            await asyncio.sleep(0.01)

    bench.run(main, bench.stdio())


def test_when_a_list_can_not_be_read_again_the_last_one_is_kept_and_says_why(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        first = await sessions.definitions("s")
        server.statuses = {"tools/list": 500}
        bench.clock.advance(601)
        await sessions.definitions("s")
        await bench.until(lambda: (listing := sessions.known("s")) is not None and listing.error)
        kept = await sessions.definitions("s")
        assert kept.tools == first.tools
        assert kept.stale
        assert "HTTP 500" in kept.error

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_one_server_that_never_lists_delays_no_other(bench: Any, leap: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        stuck = asyncio.ensure_future(sessions.definitions("stuck"))
        assert (await sessions.definitions("s")).tools
        assert not stuck.done()
        await leap.until(stuck)
        with pytest.raises(ToolFailure) as failure:
            await stuck
        assert failure.value.code == "timeout"

    bench.run(
        main, bench.stdio(), bench.stdio("hang-list", name="stuck"), bounds=Bounds(list_s=60.0)
    )


def test_a_server_that_is_not_in_the_catalog_is_the_callers_mistake(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        with pytest.raises(RequestError, match="no server 'nope'"):
            await bench.call(sessions, "echo", server="nope")

    bench.run(main)


# --- many at once ---------------------------------------------------------------------------------


def test_a_call_says_how_long_it_waited_for_its_turn(bench: Any) -> None:
    async def main(sessions: McpSessions) -> list[float]:
        calls = [bench.call(sessions, "hang", s=0.1) for _ in range(3)]
        return [result.queued_ms for result in await asyncio.gather(*calls)]

    with bench.faults.serving() as server:
        first, second, third = bench.run(main, bench.http(server), bounds=Bounds(per_server=1))
    assert first < second < third
    assert third >= 200  # the server took as long for the two before


def test_calls_beyond_the_queue_are_busy_and_those_within_it_are_done(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        gate = server.faults.gates["shut"] = threading.Event()
        calls = [asyncio.ensure_future(bench.call(sessions, "gate", text="shut")) for _ in range(9)]
        await bench.until(lambda: sum(call.done() for call in calls) == 4)
        gate.set()
        results = await asyncio.gather(*calls)
        outcomes = [result.outcome for result in results]
        assert outcomes == ["ok"] * 5 + ["busy"] * 4
        assert results[-1].code == "busy"
        assert sessions.status()[0].running == 0

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server), bounds=Bounds(per_server=2, queue_per_server=3))


def test_a_call_whose_time_is_up_before_its_turn_is_busy_and_never_made(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        gate = server.faults.gates["shut"] = threading.Event()
        first = asyncio.ensure_future(bench.call(sessions, "gate", text="shut"))
        await bench.until(lambda: server.faults.calls)
        late = await bench.call(sessions, "echo", text="x", timeout_s=0.1)
        assert late.outcome == "busy"
        gate.set()
        await first
        assert server.faults.calls == 1

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server), bounds=Bounds(per_server=1))


@pytest.mark.parametrize("way", ["it is cancelled", "its time is up"])
def test_a_place_that_comes_in_the_very_turn_in_which_its_call_gives_up_goes_to_the_next(
    way: str,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        guards = Guards(Bounds(per_server=1), FakeClock())
        await guards.enter("s", loop.time())
        left_s = 0.0 if way == "its time is up" else 600.0
        second = loop.create_task(guards.enter("s", loop.time() + left_s))
        third = loop.create_task(guards.enter("s", loop.time() + 600))
        await asyncio.sleep(0)
        assert guards.counts("s") == (1, 2)
        if way == "its time is up":
            loop.call_later(
                0, guards.leave, "s"
            )  # in one turn with the timer, which was set before
        else:
            guards.leave("s")
            second.cancel()
        gave_up = (await asyncio.gather(second, return_exceptions=True))[0]
        assert isinstance(gave_up, Busy if way == "its time is up" else asyncio.CancelledError)
        await asyncio.sleep(0)
        assert third.done()
        assert guards.counts("s") == (1, 0)
        guards.leave("s")
        assert guards.counts("s") == (0, 0)

    asyncio.run(main())


def test_servers_that_hang_leave_room_for_the_others(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        hanging = [
            asyncio.ensure_future(bench.call(sessions, "hang", server="h")) for _ in range(4)
        ]
        await bench.until(lambda: sessions.status()[0].running == 4)
        assert bench.said(await bench.call(sessions, "echo", text="fine")) == "fine"
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)

    with bench.faults.serving() as server, bench.faults.serving() as stuck:
        bounds = Bounds(per_server=4, in_total=4)
        bench.run(main, bench.http(stuck, name="h"), bench.http(server), bounds=bounds)


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_a_thousand_calls_with_some_hung_and_half_cancelled_never_mix_up_answers_or_leak(
    bench: Any, kind: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="x")
        before = bench.descriptors()

        async def one(i: int) -> None:
            if i % 10 == 0:
                assert (await bench.call(sessions, "hang", timeout_s=0.5)).outcome in (
                    "timeout",
                    "busy",
                )
                return
            result = await bench.call(sessions, "echo", timeout_s=50.0, text=str(i))
            assert (result.outcome, bench.said(result)) in (
                ("ok", str(i)),
                ("busy", bench.said(result)),
            )

        tasks = [asyncio.ensure_future(one(i)) for i in range(1_000)]
        await asyncio.sleep(0)
        for i, task in enumerate(tasks):
            if i % 2:
                task.cancel()
        for i, end in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
            assert end is None or (i % 2 and isinstance(end, asyncio.CancelledError)), end
        assert bench.said(await bench.call(sessions, "echo", text="after")) == "after"
        assert sessions.status()[0].running == 0
        if kind == "stdio":
            assert bench.descriptors() <= before, (
                "fewer where something of before was collected meanwhile"
            )

    never_opens = BreakerTerms(errors_in_a_row=10_000, failing_share=2.0)
    bounds = Bounds(queue_per_server=2_000, queue_in_total=2_000, breaker=never_opens)
    with bench.faults.serving() as server:
        bench.run(main, bench.stdio() if kind == "stdio" else bench.http(server), bounds=bounds)


def test_connecting_cancelling_and_closing_from_many_tasks_leaves_nothing(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        for i in range(rounds(30)):
            scope = Scope(run_id=f"r-{i}")
            task = asyncio.ensure_future(bench.call(sessions, "echo", text="x", scope=scope))
            await asyncio.sleep(0.002 * (i % 10))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await sessions.close_run(f"r-{i}")
        assert bench.said(await bench.call(sessions, "echo", text="after")) == "after"

    bench.run(main, bench.stdio())


def test_calls_from_several_loops_and_threads_share_one_connection(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        pids: list[str] = []

        def from_a_thread() -> None:
            pids.append(bench.said(asyncio.run(bench.call(sessions, "pid"))))

        threads = [threading.Thread(target=from_a_thread) for _ in range(8)]
        for thread in threads:
            thread.start()
        pids.append(bench.said(await bench.call(sessions, "pid")))
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert len(pids) == 9
        assert len(set(pids)) == 1

    bench.run(main, bench.stdio())


def test_closing_during_calls_ends_them_with_a_word(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        hanging = asyncio.ensure_future(bench.call(sessions, "hang"))
        await bench.until(lambda: sessions.status()[0].running)
        await sessions.close()
        result = await hanging
        assert (result.outcome, result.code) == ("unavailable", "closed")

    bench.run(main, bench.stdio())


# --- circuits -------------------------------------------------------------------------------------


def calls_of(server: Any) -> int:
    """How many calls reached the server; other requests may still be on their way."""
    return sum(method == "tools/call" for method, *_ in server.seen)


def test_after_five_failures_a_server_is_left_alone_and_asked_once_after_1_2_4_and_every_5_seconds(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        server.statuses = {"tools/call": 500}
        for _ in range(5):
            assert (await bench.call(sessions, "echo", text="x")).code == "http_error"
        asked = calls_of(server)
        refused = await bench.call(sessions, "echo", text="x")
        assert (refused.outcome, refused.code) == ("unavailable", "circuit_open")
        assert "left alone for 1 s" in bench.said(refused)
        assert calls_of(server) == asked
        status = sessions.status()[0]
        assert (status.circuit, status.retry_in_s) == ("open", 1.0)
        assert bench.said(await bench.call(sessions, "echo", server="other", text="fine")) == "fine"

        waits = []
        for _ in range(5):
            waits.append(sessions.status()[0].retry_in_s)
            bench.clock.advance(waits[-1])
            assert (await bench.call(sessions, "echo", text="x")).code == "http_error"
            assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"
        assert waits == [1, 2, 4, 5, 5]

        bench.clock.advance(5)
        server.statuses = {}
        assert bench.said(await bench.call(sessions, "echo", text="back")) == "back"
        assert sessions.status()[0].circuit == "closed"

    with bench.faults.serving() as server, bench.faults.serving() as other:
        bench.run(main, bench.http(server), bench.http(other, name="other"))
    assert len(bench.events.named("server.left_alone")) == 6


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/html", b"<html>log in first</html>"),
        ("application/json", b"<html>log in first</html>"),
        ("application/json", b'{"jsonrpc": "2.0", "id"'),
        ("application/json", b'{"status": "ok"}'),
        ("text/event-stream", b"event: message\ndata: {nothing}\n\n"),
    ],
)
def test_answers_that_are_no_message_count_against_the_server_and_are_not_the_tools_error(
    bench: Any, kind: str, body: bytes
) -> None:
    async def main(sessions: McpSessions) -> None:
        await sessions.definitions("s")
        server.bodies = {"tools/call": (kind, body)}
        for _ in range(5):
            result = await bench.call(sessions, "echo", text="x")
            assert (result.outcome, result.code) == ("unavailable", "protocol_error")
        assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (202, b"", "protocol_error"),
        (200, b": nothing\n\n", "connection_lost"),
        (200, b"id: 7\nretry: 1\ndata:\n\n", "connection_lost"),
    ],
)
def test_answers_without_a_response_count_against_the_server(
    bench: Any, status: int, body: bytes, code: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        await sessions.definitions("s")
        server.statuses = {"tools/call": status} if status != 200 else {}
        server.bodies = {"tools/call": ("text/event-stream", body)}
        for _ in range(5):
            result = await bench.call(sessions, "echo", text="x")
            assert (result.outcome, result.code) == ("unavailable", code)
        assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_a_server_that_crashes_on_every_call_is_left_alone_and_started_afresh_for_the_probe(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        for _ in range(5):
            assert (await bench.call(sessions, "crash")).code == "connection_lost"
        assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"
        bench.clock.advance(30)
        assert bench.said(await bench.call(sessions, "echo", text="x")) == "x"

    bench.run(main, bench.stdio())


def test_a_process_that_hangs_on_every_call_is_replaced_for_the_probe(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        first = bench.said(await bench.call(sessions, "pid"))
        for _ in range(5):
            assert (await bench.call(sessions, "hang", timeout_s=0.1)).outcome == "timeout"
        bench.clock.advance(30)
        assert bench.said(await bench.call(sessions, "pid")) != first

    bench.run(main, bench.stdio())


def test_cancelling_a_probe_lets_the_next_one_through(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        server.statuses = {"tools/call": 500}
        for _ in range(5):
            await bench.call(sessions, "echo", text="x")
        server.statuses = {}
        bench.clock.advance(30)
        probe = asyncio.ensure_future(bench.call(sessions, "hang", s=2))
        await bench.until(lambda: sessions.status()[0].running)
        assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"
        probe.cancel()
        await bench.until(lambda: sessions.status()[0].running == 0)
        assert bench.said(await bench.call(sessions, "echo", text="x")) == "x"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


# --- arguments ------------------------------------------------------------------------------------

NESTED: dict[str, Any] = {"type": "object"}
for _ in range(200):
    NESTED = {"type": "object", "properties": {"a": NESTED}}

SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "file": {"$ref": "file:///etc/passwd"},
    "endless": {"$ref": "#"},
    "recursive": {
        "$ref": "#/$defs/t",
        "$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}},
    },
    "broken": {"type": 7},
    "regex": {
        "type": "object",
        "properties": {"s": {"pattern": "^(a+)+$"}},
        "patternProperties": {"^x": False},
    },
    "nested": NESTED,
    "costly": {
        "type": "object",
        "properties": {"l": {"items": {"anyOf": [{"const": i} for i in range(10_000)]}}},
    },
}


@pytest.mark.parametrize(
    ("schema", "arguments", "wrong"),
    [
        ("plain", {"n": 1}, []),
        ("plain", {"n": "one"}, ["n: 'one' is not of type 'integer'"]),
        ("plain", {}, ["arguments: 'n' is a required property"]),
        (
            "plain",
            {"n": 1, "m": 2},
            ["arguments: Additional properties are not allowed ('m' was unexpected)"],
        ),
        ("file", {}, []),
        ("endless", {}, []),
        ("recursive", {"t": {"t": 5}}, []),
        ("broken", {}, []),
        ("regex", {"s": "b"}, ["s: 'b' does not match '^(a+)+$'"]),
        ("regex", {"s": "aa", "x": 1}, ["x: 1 is not allowed here"]),
        ("regex", {"s": "a" * 5_000}, []),
        ("nested", {"a": 1}, []),
        ("costly", {"l": [9_999] * 10_000}, []),
        ("absent", {"x": 1}, []),
    ],
)
def test_arguments_are_checked_within_bounds_and_what_can_not_be_checked_is_left_to_the_server(
    bench: Any, schema: str, arguments: Any, wrong: list[str]
) -> None:
    async def main(sessions: McpSessions) -> None:
        assert list(await sessions.check_arguments("s", schema, arguments)) == wrong

    bench.run(main, bench.stdio(), schema_of=lambda _server, tool: SCHEMAS.get(tool))


def test_a_reference_to_elsewhere_is_never_fetched(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        assert await sessions.check_arguments("s", "remote", {"n": 1}) == ()

    with bench.faults.serving() as server:
        schema = {"properties": {"n": {"$ref": server.url + "/schema.json"}}}
        bench.run(main, bench.stdio(), schema_of=lambda _server, _tool: schema)
        assert server.seen == []


def test_arguments_are_checked_against_the_list_when_nothing_else_is_known(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        assert await sessions.check_arguments("s", "echo", {}) == ()
        await sessions.definitions("s")
        assert list(await sessions.check_arguments("s", "echo", {})) == [
            "arguments: 'text' is a required property"
        ]

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_nothing_of_a_server_is_logged(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "bomb", megabytes=30)

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))
    assert caplog.records == []


def test_the_status_of_what_was_never_contacted_says_what_is_known(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        (status,) = sessions.status()
        assert (status.server, status.transport, status.connections, status.tools) == (
            "s",
            "stdio",
            0,
            None,
        )
        assert json.dumps(status.command)

    bench.run(main, bench.stdio())


def test_a_large_page_of_a_list_is_taken_in_off_the_loop(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of tools, each measured, would stop the loop for all servers."""
    threads: dict[int, str] = {}
    add = Pages.add

    def note(pages: Pages, page: Any) -> str | None:
        threads[len(page["tools"])] = threading.current_thread().name
        return add(pages, page)

    async def main(sessions: McpSessions) -> None:
        assert len((await sessions.definitions("s")).tools) == 1_000
        assert len((await sessions.definitions("t")).tools) < 20

    monkeypatch.setattr(Pages, "add", note)
    faults = bench.faults.Faults
    with bench.faults.serving(faults(big_list=1_000)) as large, bench.faults.serving() as small:
        bench.run(main, bench.http(large), bench.http(small, name="t"))
    assert threads.pop(1_000) == "large-results"
    assert list(threads.values()) == ["bundle-router-mcp"]


# --- time that is ours ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["json", "events", "legacy", "stdio", "modern"])
def test_an_answer_that_waits_for_our_thread_is_late_for_no_deadline(
    bench: Any, leap: Any, way: str
) -> None:
    """Fifty nested results of 5 MB take the thread half a minute: the server answered each in
    time.
    """

    async def main(sessions: McpSessions) -> None:
        done = threading.Event()
        occupied = run_in_turn("shaped", lambda: done.wait(300))
        try:
            call = asyncio.ensure_future(bench.call(sessions, "big", timeout_s=50, bytes=300_000))
            await bench.until(lambda: _one_at_a_time(os.getpid())._busy == 2)
            leap()
            assert (
                await bench.call(sessions, "echo", server="other", text="the loop goes on")
            ).outcome == "ok"
        finally:
            done.set()
            await occupied
        assert (await call).outcome == "ok"

    with ExitStack() as stack:
        server, other = (stack.enter_context(bench.faults.serving()) for _ in range(2))
        server.events, server.legacy = way == "events", way == "legacy"
        if way == "modern":
            server = stack.enter_context(answering(rpc(result=text("x" * 300_000))))
        bench.run(
            main,
            bench.stdio() if way == "stdio" else bench.http(server),
            bench.http(other, name="other"),
        )


@pytest.mark.parametrize(("timeout_s", "circuit"), [(100, "closed"), (200, "open")])
def test_what_waited_in_our_queue_for_half_its_time_says_nothing_about_the_server(
    bench: Any, leap: Any, timeout_s: float, circuit: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        first = [
            asyncio.ensure_future(bench.call(sessions, "gate", timeout_s=900, text=text))
            for text in "abcde"
        ]
        await bench.until(lambda: len(faults.at_gate) == 5)
        queued = [
            asyncio.ensure_future(bench.call(sessions, "hang", timeout_s=timeout_s))
            for _ in range(5)
        ]
        await bench.until(lambda: sessions.status()[0].waiting == 5)
        leap()
        opened.set()
        assert {(await call).outcome for call in first} == {"ok"}
        await leap.until(*queued)
        assert [(await call).code for call in queued] == ["timeout"] * 5
        assert sessions.status()[0].circuit == circuit

    faults, opened = bench.faults.Faults(), threading.Event()
    faults.gates = dict.fromkeys("abcde", opened)
    with bench.faults.serving(faults) as server:
        bench.run(main, bench.http(server), bounds=Bounds(per_server=5))
