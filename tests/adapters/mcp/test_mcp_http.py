"""HTTP servers that misbehave: bounds before parsing, credentials that stay put, sessions that get
lost.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from typing import Any

import pytest
from bundle_router.adapters.mcp import McpSessions
from bundle_router.core.catalog import Server
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.servers.transport.pass_through import Client
from bundle_router.core.servers.transport.tool_servers import Scope

from tests.adapters.mcp.raw_servers import (
    OK,
    RawServer,
    answering,
    chunked,
    events,
    message,
    rpc,
    text,
)
from tests.ports import free_port


@pytest.mark.parametrize("events", [False, True])
def test_a_call_gives_the_servers_blocks(bench: Any, events: bool) -> None:
    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="hello")) == "hello"

    with bench.faults.serving() as server:
        server.events = events
        bench.run(main, bench.http(server))


# --- bytes ----------------------------------------------------------------------------------------


def test_a_gzip_bomb_of_300_megabytes_is_cut_at_the_cap(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        bomb, other = await asyncio.gather(
            bench.call(sessions, "bomb", megabytes=300), bench.call(sessions, "echo", text="fine")
        )
        assert (bomb.outcome, bomb.code) == ("tool_error", "too_large")
        assert bench.said(other) == "fine"
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))
        assert all(
            headers.get("accept-encoding") == "identity" for _, _, headers in lowered(server)
        )


def test_an_answer_that_is_compressed_all_the_same_is_read(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "zipped")) == "zipped"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


@pytest.mark.parametrize("events", [False, True])
def test_a_result_over_the_cap_costs_that_call_only(bench: Any, events: bool) -> None:
    async def main(sessions: McpSessions) -> None:
        big, other = await asyncio.gather(
            bench.call(sessions, "big", bytes=5_000_000), bench.call(sessions, "echo", text="fine")
        )
        assert big.outcome in ("tool_error", "unavailable")
        assert not any(len(bench.said(result)) > 10_000 for result in (big, other))
        assert bench.said(other) == "fine"

    with bench.faults.serving() as server:
        server.events = events
        bench.run(main, bench.http(server), bounds=Bounds(max_message_bytes=1 << 20))


WAYS = ["json", "events", "legacy", "stdio"]


@pytest.mark.parametrize(
    "client",
    [None, Client(progress=True, log_level="info", on_notification=lambda _method, _params: None)],
)
@pytest.mark.parametrize("way", WAYS)
def test_large_answers_are_whole_on_every_way(bench: Any, way: str, client: Client | None) -> None:
    scope, sizes = Scope("r", client=client), [1_000_000, 10, 3_000_000, 300_000]

    async def main(sessions: McpSessions) -> None:
        first = await bench.call(sessions, "big", bytes=200_000, scope=scope)
        assert len(bench.said(first)) == 200_000, "also where the log level has to be set before"
        results = await asyncio.gather(
            *(bench.call(sessions, "big", bytes=size, scope=scope) for size in sizes)
        )
        assert [len(bench.said(result)) for result in results] == sizes

    with bench.faults.serving() as server:
        server.events, server.legacy = way == "events", way == "legacy"
        bench.run(main, bench.stdio() if way == "stdio" else bench.http(server))


@pytest.mark.parametrize("way", WAYS)
def test_a_server_may_say_more_than_it_was_asked(bench: Any, way: str) -> None:
    """Capabilities without end, and notifications and requests beside an answer: what matters of
    them is there.
    """
    heard: list[tuple[str, Any]] = []
    said: list[tuple[str, Any]] = [("notifications/progress", {"progress": 1.0})]
    if way != "legacy":  # a log line names no request, and the session is for all runs
        said.append(("notifications/message", {"level": "info", "data": "said"}))
    client = Client(
        log_level="info",
        progress=True,
        on_notification=lambda method, params: heard.append((method, dict(params))),
    )

    async def main(sessions: McpSessions) -> None:
        listing = await sessions.definitions("s")
        assert (listing.name, listing.instructions, len(listing.tools) > 5) == (
            "faults",
            "be kind",
            True,
        )
        told = await bench.call(sessions, "tells", values=20_000, scope=Scope("r", client=client))
        assert bench.said(told) == "tells"
        await bench.until(lambda: sessions.fresh("s") is None)  # its list has changed
        await bench.until(lambda: len(heard) == len(said))
        assert bench.said(await bench.call(sessions, "echo", text="more")) == "more", (
            "the connection stands"
        )

    with bench.faults.serving(bench.faults.Faults(experimental=20_000)) as server:
        server.events, server.legacy = way == "events", way == "legacy"
        bench.run(main, bench.stdio("experimental=20000") if way == "stdio" else bench.http(server))
    assert heard == said


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("id_", [999, "x", None, True, [1]])
def test_an_answer_to_another_request_fails_the_call_at_once_and_counts_against_the_server(
    bench: Any, id_: Any, size: int
) -> None:
    other = {
        "jsonrpc": "2.0",
        "id": id_,
        "result": {"content": [{"type": "text", "text": "x" * size}]},
    }

    async def main(sessions: McpSessions) -> None:
        for _ in range(5):
            result = await bench.call(sessions, "echo", text="x", timeout_s=3_600.0)
            assert (result.outcome, result.code) == ("unavailable", "protocol_error")
        assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"

    with bench.faults.serving() as server:
        server.bodies["tools/call"] = "application/json", json.dumps(other).encode()
        bench.run(main, bench.http(server))


@pytest.mark.parametrize("size", [1, 200_000])
@pytest.mark.parametrize(
    "notice",
    [
        {"method": 5},
        {"method": "notifications/message", "params": "x"},
        {"method": "a/b", "params": [1], "id": 7},
    ],
)
def test_a_malformed_notification_beside_an_answer_is_left_out(
    bench: Any, notice: dict[str, Any], size: int
) -> None:
    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="x")) == "said"

    malformed = json.dumps({"jsonrpc": "2.0", **notice, "more": "x" * size}).encode()
    with answering(events(malformed, message(result=text("said")))) as server:
        bench.run(main, bench.http(server))


def test_an_error_whose_body_never_ends_holds_no_connection_when_its_call_is_over(
    bench: Any,
) -> None:
    came, left = threading.Event(), threading.Event()

    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="x")) == "x"
        asked = asyncio.ensure_future(bench.call(sessions, "refused"))
        await bench.until(came.is_set)
        asked.cancel()
        await asyncio.wait_for(bench.until(left.is_set), 60)

    with bench.faults.serving() as server:

        class Endless(server.RequestHandlerClass):  # type: ignore[misc, name-defined]  # a module loaded by its path
            def respond(self, method: str, params: dict[str, Any], ident: Any) -> None:
                if params.get("name") != "refused":
                    super().respond(method, params, ident)
                    return
                self.wfile.write(b"HTTP/1.1 500 No\r\ncontent-length: 9\r\n\r\n")
                self.wfile.flush()
                came.set()
                if not self.connection.recv(1):
                    left.set()
                self.close_connection = True

        server.RequestHandlerClass = Endless
        bench.run(main, bench.http(server))


def test_half_a_pair_of_surrogates_in_an_argument_is_replaced_and_costs_no_other_call(
    bench: Any,
) -> None:
    """The SDK can't encode it, and would end the connection that all runs share."""
    client = Client(progress=True, on_notification=lambda method, params: None)

    async def main(sessions: McpSessions) -> None:
        waiting = asyncio.ensure_future(bench.call(sessions, "gate", text="a"))
        await bench.until(lambda: "a" in server.faults.at_gate)
        for scope in (Scope("r"), Scope("r", client=client)):
            half = await bench.call(
                sessions, "echo", text="half: \ud83d", scope=scope, **{"\ude00": 1}
            )
            assert bench.said(half) == "half: ?"
        server.faults.gates["a"].set()
        assert (await waiting).outcome == "ok"

    with bench.faults.serving() as server:
        server.faults.gates["a"] = threading.Event()
        bench.run(main, bench.http(server))


def test_a_challenge_that_no_header_can_hold_costs_that_call_only(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        waiting = asyncio.ensure_future(bench.call(sessions, "gate", text="a"))
        await bench.until(lambda: "a" in server.faults.at_gate)
        refused = await bench.call(sessions, "refused")
        assert (refused.outcome, refused.code) == ("unavailable", "unauthorized")
        server.faults.gates["a"].set()
        assert (await waiting).outcome == "ok"

    with bench.faults.serving() as server:
        server.faults.gates["a"] = threading.Event()

        class Challenging(server.RequestHandlerClass):  # type: ignore[misc, name-defined]  # see above
            def respond(self, method: str, params: dict[str, Any], ident: Any) -> None:
                if params.get("name") == "refused":
                    self.answer(401, b"", extra={"www-authenticate": "Bearer realm=\xe9"})
                else:
                    super().respond(method, params, ident)

        server.RequestHandlerClass = Challenging
        bench.run(main, bench.http(server))


# --- the way there --------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["drop", "half"])
def test_a_connection_that_breaks_off_costs_that_call_only(bench: Any, tool: str) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="x")
        slow, broken = await asyncio.gather(
            bench.call(sessions, "sleep", s=0.5), bench.call(sessions, tool)
        )
        assert (broken.outcome, broken.code) == ("unavailable", "connection_lost")
        assert "may have been carried out" in bench.said(broken)
        assert slow.outcome == "ok"
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_a_server_that_is_not_there_is_unreachable_and_the_others_are_not(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        gone, other = await asyncio.gather(
            bench.call(sessions, "echo", server="gone", text="x"),
            bench.call(sessions, "echo", text="fine"),
        )
        assert (gone.outcome, gone.code) == ("unavailable", "unreachable")
        assert bench.said(other) == "fine"

    gone = Server(
        name="gone", transport="streamable-http", url=f"http://127.0.0.1:{free_port()}/mcp"
    )
    with bench.faults.serving() as server:
        bench.run(main, bench.http(server), gone)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, '{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"gone"}}'),
        # what servers that were written after the TypeScript SDK's examples say, and older ones of
        # the Python SDK
        (
            400,
            (
                '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session'
                ' ID provided"},"id":null}'
            ),
        ),
        (
            400,
            (
                '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not'
                ' initialized"},"id":null}'
            ),
        ),
        (400, "Bad Request: No valid session ID provided"),
        (410, ""),
        (500, '{"error": {"message": "Session not found"}}'),
        (200, '{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"Session terminated"}}'),
    ],
)
def test_a_server_that_restarts_and_forgets_its_sessions_is_initialised_again_and_the_call_made_once(
    bench: Any, status: int, body: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="x")
        server.sessions.clear()
        assert bench.said(await bench.call(sessions, "echo", text="again")) == "again"
        assert bench.said(await bench.call(sessions, "count")) == "3"
        server.sessions.clear()
        assert (await sessions.definitions("s", fresh=True)).tools

    with bench.faults.serving() as server:
        server.stateful, server.of_no_session = True, (status, body.encode())
        bench.run(main, bench.http(server))
        assert [method for method, _, _ in server.seen].count("initialize") == 3


def test_a_server_that_comes_back_on_its_port_is_found_again(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        with bench.faults.serving(port=port):
            assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"
        assert (await bench.call(sessions, "echo", text="x")).outcome == "unavailable"
        with bench.faults.serving(port=port):
            assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"

    port = free_port()
    bench.run(
        main, Server(name="s", transport="streamable-http", url=f"http://127.0.0.1:{port}/mcp")
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "unauthorized"), (403, "unauthorized"), (429, "rate_limited"), (500, "http_error")],
)
def test_an_error_status_is_said_so(bench: Any, status: int, code: str) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome, result.code) == ("unavailable", code)
        assert f"HTTP {status}" in bench.said(result)
        assert "<html>" not in bench.said(result)

    with bench.faults.serving() as server:
        server.statuses = {"tools/call": status}
        bench.run(main, bench.http(server))


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_says_when_to_come_back_is_left_alone_for_just_that_time(
    bench: Any, status: int
) -> None:
    async def main(sessions: McpSessions) -> None:
        server.statuses, server.retry_after = {"tools/call": status}, "7"
        assert (await bench.call(sessions, "echo", text="x")).code != "circuit_open"
        assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"
        assert sessions.status()[0].retry_in_s == 7
        server.statuses = {}
        bench.clock.advance(7)
        assert bench.said(await bench.call(sessions, "echo", text="back")) == "back"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_one_429_without_a_time_is_one_failure_of_five(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        server.statuses = {"tools/call": 429}
        for _ in range(5):
            assert (await bench.call(sessions, "echo", text="x")).code == "rate_limited"
        assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_a_hung_call_is_broken_off_and_its_server_is_told(bench: Any, leap: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        gate = server.faults.gates["shut"] = threading.Event()
        await bench.call(sessions, "echo", text="connected")
        hung = asyncio.ensure_future(bench.call(sessions, "gate", text="shut"))
        await bench.until(lambda: "shut" in server.faults.at_gate)
        await leap.until(hung)
        assert (await hung).outcome == "timeout"
        await bench.until(lambda: server.faults.cancelled)
        gate.set()
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_a_caller_that_goes_away_is_let_go_at_once_and_the_server_is_told(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="x")
        hanging = asyncio.ensure_future(bench.call(sessions, "hang"))
        await bench.until(lambda: sessions.status()[0].running)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        await bench.until(lambda: server.faults.cancelled)
        await bench.until(lambda: sessions.status()[0].running == 0)

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


# --- credentials ----------------------------------------------------------------------------------


def lowered(server: Any) -> list[tuple[str, str, dict[str, str]]]:
    return [
        (m, p, {name.lower(): value for name, value in headers.items()})
        for m, p, headers in server.seen
    ]


def bearer(bench: Any, server: Any) -> Server:
    entry: Server = bench.http(
        server, headers=(("Authorization", "Bearer ${TOKEN}"),), env_names=("TOKEN",)
    )
    return entry


def test_a_header_holds_the_environments_value_at_the_time_of_connecting(bench: Any) -> None:
    environ = {"TOKEN": ""}

    async def main(sessions: McpSessions) -> None:
        missing = await bench.call(sessions, "echo", text="x")
        assert (missing.outcome, missing.code) == ("unavailable", "credential_missing")
        assert sessions.status()[0].reason == "its credential TOKEN is not set"
        environ["TOKEN"] = "t-1\n"
        assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"
        assert sessions.status()[0].reason == ""

    with bench.faults.serving() as server:
        bench.run(main, bearer(bench, server), environ=environ)
        assert {headers.get("authorization") for _, _, headers in lowered(server)} == {"Bearer t-1"}
    assert "t-1" not in repr(bench.events.rows)


def test_a_redirect_to_another_origin_is_not_followed_and_sees_no_credential(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert result.outcome == "unavailable"

    with bench.faults.serving() as thief, bench.faults.serving() as server:
        server.redirect_to = f"http://127.0.0.1:{thief.server_port}"
        bench.run(main, bearer(bench, server), environ={"TOKEN": "t-1"})
        assert server.seen
        assert thief.seen == []


def test_the_credentials_of_the_environment_are_not_used(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """`.netrc` and the proxy settings belong to whoever started the router, not to a server's
    entry.
    """
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))
        assert not any("authorization" in headers for _, _, headers in lowered(server))


# what the variable holds: what the server is sent (None: nothing)
TOKENS = {
    "t-1": "Bearer t-1; v=1",
    "t-1\n": "Bearer t-1; v=1",
    "t-1 \r\n": "Bearer t-1; v=1",
    "": None,
    " ": None,
    "\n": None,
    "t\n1": None,
    "\ufefft-1": None,
}


@pytest.mark.parametrize("token", TOKENS)
def test_a_header_holds_a_variables_value_without_the_white_space_at_its_end_or_is_not_sent(
    bench: Any, token: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome == "ok") == (TOKENS[token] is not None)
        if not token.strip():
            assert sessions.status()[0].reason == "its credential TOKEN is not set"

    with bench.faults.serving() as server:
        entry = bench.http(
            server, headers=(("Authorization", "Bearer ${TOKEN}; v=1"),), env_names=("TOKEN",)
        )
        bench.run(main, entry, environ={"TOKEN": token})
        seen = {headers.get("authorization") for _, _, headers in lowered(server)}
        assert seen == (set() if TOKENS[token] is None else {TOKENS[token]})


def test_a_value_that_no_header_can_hold_is_refused_without_being_shown(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert result.code == "credential_missing"
        assert "s3cret" not in bench.said(result)

    with bench.faults.serving() as server:
        bench.run(main, bearer(bench, server), environ={"TOKEN": "s3cret\r\nHost: evil"})
        assert server.seen == []


def test_runs_share_a_server_that_keeps_nothing_and_principals_share_no_connection(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        for scope in (Scope("r-1", "ann"), Scope("r-2", "ann"), Scope("r-3", "ben")):
            assert (await bench.call(sessions, "echo", text="x", scope=scope)).outcome == "ok"
        assert sessions.status()[0].connections == 2

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


def test_runs_share_no_session_that_a_server_keeps(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        scopes = [Scope("r-1"), Scope("r-2"), Scope("r-1"), Scope("r-3")]
        await asyncio.gather(
            *(bench.call(sessions, "echo", text="x", scope=scope) for scope in scopes)
        )
        assert sessions.status()[0].connections == 3
        calls = [row for row in lowered(server) if row[0] == "tools/call"]
        assert len({headers["mcp-session-id"] for _, _, headers in calls}) == 3
        await sessions.close_run("r-1")
        assert sessions.status()[0].connections == 2
        assert len(server.sessions) == 2

    with bench.faults.serving() as server:
        server.stateful = True
        bench.run(main, bench.http(server))


def test_sse_is_for_servers_that_are_marked_legacy(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome, result.code) == ("unavailable", "not_permitted")

    bench.run(main, Server(name="s", transport="sse", url="http://127.0.0.1:9/sse"))


def test_a_server_is_never_asked_for_what_the_host_keeps_in_its_trace_baggage(bench: Any) -> None:
    from opentelemetry import baggage, context

    async def main(sessions: McpSessions) -> str:
        token = context.attach(baggage.set_baggage("customer", "ann"))
        try:
            return str(bench.said(await bench.call(sessions, "meta")))
        finally:
            context.detach(token)

    with bench.faults.serving() as server:
        assert "ann" not in bench.run(main, bench.http(server))


# --- on the wire ----------------------------------------------------------------------------------


def test_a_connection_is_used_again_and_one_that_was_closed_meanwhile_costs_no_call(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        for _ in range(3):
            assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"

    with answering(chunked(message(result=OK))) as server:
        bench.run(main, bench.http(server))
        assert len(server._open) == 2, "discovery ends its connection, and all calls have one"
    with answering(rpc(result=OK)) as server:
        bench.run(main, bench.http(server))
        assert len(server.calls) == 3


def test_a_call_that_is_given_up_closes_its_connection(bench: Any, leap: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        call = asyncio.ensure_future(bench.call(sessions, "echo", text="x"))
        await bench.until(lambda: len(server.calls) == 1)
        await leap.until(call)
        assert (await call).outcome == "timeout"
        call = asyncio.ensure_future(bench.call(sessions, "echo", text="x"))
        await bench.until(lambda: len(server.calls) == 2)
        call.cancel()
        await bench.until(lambda: all(is_closed(one) for one in server._open[1:]))
        assert [(one.running, one.waiting) for one in sessions.status()] == [(0, 0)]

    def is_closed(connection: socket.socket) -> bool:
        return connection.fileno() < 0

    with answering(b"HTTP/1.1 200 OK\r\n") as server:
        bench.run(main, bench.http(server))


class HastyServer(RawServer):
    """Answers a large request as soon as it knows its id, and reads no more of it."""

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as read:
            while line := read.readline():
                length = 0
                while (header := read.readline().strip()) != b"":
                    length = (
                        int(header[15:])
                        if header.lower().startswith(b"content-length:")
                        else length
                    )
                if length > 1_000_000:
                    number = re.findall(rb'"id":([0-9]+)', read.read1(200))[0]
                    connection.sendall(chunked(message(result=OK)).replace(b'"ID"', number))
                    return
                if not self._answer(connection, line, {}, json.loads(read.read(length) or b"{}")):
                    connection.shutdown(socket.SHUT_WR)
                    return


def test_no_call_waits_behind_a_request_that_was_answered_before_it_was_sent(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        for said in ("x", "x" * 30_000_000, "x"):
            assert (await bench.call(sessions, "echo", text=said)).outcome == "ok"

    server = HastyServer(chunked(message(result=OK)))
    threading.Thread(target=server.run, daemon=True).start()
    try:
        bench.run(main, bench.http(server))
    finally:
        server.end()


def test_a_name_with_half_a_pair_is_sent_with_a_header_that_can_be_written(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "echo")).outcome == "ok"
        assert (await bench.call(sessions, "half \ud83d")).outcome == "ok"
        assert (
            await sessions.ask("s", "prompts/get", {"name": "\ud83d"}, timeout_s=60.0)
        ).code == "http_error"

    with answering(chunked(message(result=OK)), rpc(result=OK)) as server:
        bench.run(main, bench.http(server))
        assert [headers["mcp-name"] for headers in server.calls] == ["echo", "half ?"]
