"""A call to a modern server over HTTP, carried by our own connections and by the SDK's: the same
comes of both.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bundle_router.adapters.loop import share_running_loop
from bundle_router.adapters.mcp import McpSessions, posting
from bundle_router.adapters.mcp.http import OriginClient
from bundle_router.adapters.mcp.posting import _Answer, read_object
from bundle_router.core.results.shaping.json_text import LARGE
from bundle_router.core.servers.transport.tool_servers import RawResult

DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
    "resultType": "complete",
    "ttlMs": 0,
    "cacheScope": "private",
}
SSE = "text/event-stream"
OK = {"content": [{"type": "text", "text": "hello"}], "resultType": "complete"}
FAILED = {"code": -32602, "message": "no such thing"}


class RawServer:
    """Answers `server/discover` as a modern server, and each call with the bytes it is given (the
    last for all others): `ID` in them stands for the request's id. What follows `CLOSE` is not
    sent: the connection ends there.
    """

    def __init__(self, *answers: bytes) -> None:
        self.answers = [*answers]
        self.calls: list[dict[str, str]] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/mcp"

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as read:
            while line := read.readline():
                headers = {}
                while (header := read.readline().strip()) != b"":
                    name, _, value = header.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                message = json.loads(read.read(int(headers.get("content-length", 0))) or b"{}")
                if not self._answer(connection, line, headers, message):
                    return

    def _answer(
        self, connection: socket.socket, line: bytes, headers: dict[str, str], message: Any
    ) -> bool:
        if message.get("method") == "server/discover":
            said = http(
                json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": DISCOVERED}).encode()
            )
        elif message.get("method") == "tools/call" and line.startswith(b"POST /mcp "):
            self.calls.append(headers)
            said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        elif message.get("method") == "tools/call":
            said = rpc(result=OK)
        else:
            said = http(b"", status="404 Not Found")
        said, closes, _ = said.partition(b"CLOSE")
        try:
            connection.sendall(said.replace(b'"ID"', json.dumps(message.get("id")).encode()))
        except OSError:  # the client has had enough of it
            return False
        return not closes

    def end(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            connection.close()


@contextmanager
def answering(*answers: bytes) -> Iterator[RawServer]:
    server = RawServer(*answers)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield server
    finally:
        server.end()


def http(
    body: bytes, kind: str = "application/json", status: str = "200 OK", more: str = ""
) -> bytes:
    """Framed by the end of the connection, as the id that is put in may have any length."""
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n{more}\r\n".encode()
        + body
        + b"CLOSE"
    )


def rpc(**fields: Any) -> bytes:
    return http(message(**fields))


def message(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "ID", **fields}).encode()


def events(*said: bytes) -> bytes:
    return http(b"".join(b"event: message\ndata: " + one + b"\n\n" for one in said), SSE)


def text(said: str) -> dict[str, Any]:
    return {**OK, "content": [{"type": "text", "text": said}]}


LOG = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
DEEP = (
    b'{"jsonrpc":"2.0","id":"ID","result":{"content":[],"structuredContent":'
    + b'{"a":' * 150
    + b"1"
    + b"}" * 152
)
MANY = {**OK, "structuredContent": {"rows": [{"n": [1.5, 2], "text": "x" * 100}] * 2_000}}
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWERS: dict[str, bytes] = {
    "a result": rpc(result=OK),
    "an error result": rpc(result={**OK, "isError": True}),
    "an error flag that is none": rpc(result={**OK, "isError": "yes"}),
    "a result of an unknown type": rpc(result={**OK, "resultType": "task"}),
    "an error": rpc(error=FAILED),
    "an error with an error status": http(message(error=FAILED), status="400 Bad Request"),
    "an error without an id": http(
        message(error=FAILED).replace(b'"ID"', b"null"), status="400 Bad Request"
    ),
    "events": events(message(result=OK)),
    "events with a log line before": events(LOG, message(result=OK)),
    "lines ended by CR LF": http(
        events(LOG, message(result=OK))[:-5].partition(b"\r\n\r\n")[2].replace(b"\n", b"\r\n"), SSE
    ),
    "lines ended by CR": http(
        events(LOG, message(result=OK))[:-5].partition(b"\r\n\r\n")[2].replace(b"\n", b"\r")
        + b"\r",
        SSE,
    ),
    "a large event ended by CR LF": http(b"data: " + message(result=MANY) + b"\r\n\r\n", SSE),
    "a large event in two lines": http(
        b"data: " + message(result=MANY)[:-1] + b"\ndata:}\n\n", SSE
    ),
    "a large result with emoji": http(message(result=MANY).replace(b"xxx", b"\\ud83d\\ude00", 1)),
    "half a pair of surrogates": rpc(result=text("half: \ud83d")),
    "half a pair of surrogates in an event": events(
        message(result=text("half: \ud83d, whole: \U0001f600"))
    ),
    "half a pair of surrogates in an error": rpc(error={**FAILED, "message": "half: \udfff"}),
    "an error as an event": events(message(error=FAILED)),
    "a nested result": http(DEEP),
    "an interim response": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + rpc(result=OK),
    "a large result": rpc(result=MANY),
    "no number in a large result": http(message(result=MANY).replace(b"1.5", b"1e999")),
    "NaN in a large result": http(message(result=MANY).replace(b"1.5", b"NaN")),
    "a large event": events(LOG, message(result=MANY)),
    "a large event with the word method": events(message(result=text('"method"' + "x" * 200_000))),
    "a large event with a key named method": events(
        message(result={**MANY, "structuredContent": {"method": [MANY["structuredContent"]]}})
    ),
    "a large error": rpc(error={**FAILED, "data": "x" * 200_000}),
    "a large error as an event": events(message(error={**FAILED, "data": "x" * 200_000})),
    "large and no JSON": rpc(result=text("x" * 200_000)).replace(b"}CLOSE", b"CLOSE"),
    "a large answer to another": events(message(result=MANY).replace(b'"ID"', b"[]")),
    "too much in an event": events(message(result=text("x" * 9_000_000))),
    "a large event that is no message": events(b"{" + b" " * 200_000 + b"}"),
    "half a result": (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{CLOSE"
    ),
    "half a chunk": CHUNKED + b"ff\r\n{CLOSE",
    "nothing": b"CLOSE",
    "no HTTP": b"+OK POP3 ready\r\n\r\nCLOSE",
    "a page": http(b"<html>log in first</html>", "text/html"),
    "no JSON": http(b"<html>"),
    "no message": http(b'{"status": "ok"}'),
    "a list": http(b"[]"),
    "bad UTF-8": http(b'{"jsonrpc":"2.0","id":"ID","result":{"content":[],"x":"\xff"}}'),
    "no event": events(b"{nothing}"),
    "accepted": http(b"", status="202 Accepted"),
    "401": http(b"", status="401 Unauthorized"),
    "403": http(b"no", "text/plain", "403 Forbidden"),
    "429": http(b"", status="429 Slow Down", more="retry-after: 7\r\n"),
    "500": http(b"<html>", "text/html", "500 Broken"),
    "gzip": http(
        gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":{}}'), more="content-encoding: br\r\n"
    ),
    "no gzip": http(b"nothing of the kind", more="content-encoding: gzip\r\n"),
    "too much": http(b'{"jsonrpc":"2.0","id":"ID","result":{"x":"' + b"x" * 9_000_000 + b'"}}'),
    "too much, zipped": http(gzip.compress(b" " * 9_000_000), more="content-encoding: gzip\r\n"),
    "a redirect to another path": http(b"", status="307 There", more="location: /mcp/\r\n"),
    "a redirect to another host": http(
        b"", status="307 There", more="location: http://127.0.0.2:9/mcp\r\n"
    ),
}


def chunked(said: bytes) -> bytes:
    """Leaves the connection open, for an id of one digit."""
    return CHUNKED + b"%x\r\n" % (len(said) - len("ID") - len('"')) + said + b"\r\n0\r\n\r\n"


def outcome(bench: Any, answer: bytes, *, at_once: bool = False) -> tuple[str, str, str]:
    """How a call ended, and what was said of it but for the names of a library's exceptions.

    `at_once`: the sessions run on the caller's loop, and a connection is open already.
    """

    async def main(sessions: McpSessions) -> RawResult:
        if at_once:
            share_running_loop()
            assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"
        result: RawResult = await bench.call(sessions, "echo", text="x")
        assert [(one.running, one.waiting) for one in sessions.status()] == [(0, 0)]
        return result

    first = [chunked(message(result=OK))] if at_once else []
    with answering(*first, answer) as server:
        result = bench.run(main, bench.http(server))
        is_redirect = b"307" in answer[:20]
        sent = len(server.calls) - len(first)
        assert 1 <= sent <= 1 + is_redirect, "what may have been carried out is not sent again"
        return (
            result.outcome,
            result.code,
            re.sub(r" \(\w*Error\)| \(its answer is not HTTP\)", "", bench.said(result)),
        )


@pytest.mark.parametrize("name", ANSWERS)
def test_whatever_a_modern_server_answers_comes_to_the_same_over_both_ways(
    bench: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ours = outcome(bench, ANSWERS[name])
    assert ours == outcome(bench, ANSWERS[name], at_once=True)
    monkeypatch.setattr(OriginClient, "modern_posts", lambda *_given: None)
    assert ours == outcome(bench, ANSWERS[name])


@pytest.mark.parametrize(
    "more",
    [{"isError": "yes"}, {"isError": 1}, {"resultType": "task"}, {"resultType": ["complete"]}],
)
def test_a_result_of_no_known_kind_is_no_success_and_is_shown(
    bench: Any, more: dict[str, Any]
) -> None:
    *ended, said = outcome(bench, rpc(result={**OK, **more}))
    assert ended == ["tool_error", "protocol_error"]
    assert said.endswith("hello")


def test_a_connection_is_used_again_and_one_that_was_closed_meanwhile_costs_no_call(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        for _ in range(3):
            assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"

    with answering(chunked(message(result=OK))) as server:
        bench.run(main, bench.http(server))
        assert len(server._open) == 2, "one of the SDK's, which discovered, and one for all calls"
    with answering(rpc(result=OK)) as server:
        bench.run(main, bench.http(server))
        assert len(server.calls) == 3


@pytest.mark.parametrize("at_once", [False, True])
def test_a_call_that_is_given_up_closes_its_connection(
    bench: Any, leap: Any, at_once: bool
) -> None:
    async def main(sessions: McpSessions) -> None:
        if at_once:
            share_running_loop()
            assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"
            del server.calls[:]
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

    with answering(
        *([chunked(message(result=OK))] if at_once else []), b"HTTP/1.1 200 OK\r\n"
    ) as server:
        bench.run(main, bench.http(server))


@pytest.mark.parametrize("filler", [b"", b"x" * 200_000])
def test_half_a_pair_of_surrogates_is_replaced_and_a_whole_one_kept(filler: bytes) -> None:
    half, whole = b"\\ud83d", b"\\uD83D\\uDE00"
    assert read_object(b'{"a": "' + whole + filler + b'"}') == {"a": "\U0001f600" + filler.decode()}
    assert read_object(b'{"a": "' + whole + half + filler + b'"}') == {
        "a": "\U0001f600?" + filler.decode()
    }


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
        for text in ("x", "x" * 30_000_000, "x"):
            assert (await bench.call(sessions, "echo", text=text)).outcome == "ok"

    server = HastyServer(chunked(message(result=OK)))
    threading.Thread(target=server.run, daemon=True).start()
    try:
        bench.run(main, bench.http(server))
    finally:
        server.end()


@pytest.mark.parametrize("at_once", [False, True])
def test_a_name_with_half_a_pair_is_sent_with_a_header_that_can_be_written(
    bench: Any, at_once: bool
) -> None:
    async def main(sessions: McpSessions) -> None:
        if at_once:
            share_running_loop()
        assert (await bench.call(sessions, "echo")).outcome == "ok"
        assert (await bench.call(sessions, "half \ud83d")).outcome == "ok"
        assert (
            await sessions.ask("s", "prompts/get", {"name": "\ud83d"}, timeout_s=60.0)
        ).code == "http_error"

    with answering(chunked(message(result=OK)), rpc(result=OK)) as server:
        bench.run(main, bench.http(server))
        assert [headers["mcp-name"] for headers in server.calls] == ["echo", "half ?"]


def test_a_large_answer_with_a_key_named_method_is_left_to_a_thread() -> None:
    answer = _Answer(1, 8_000_000, lambda: None)
    answer.head(200, {b"content-type": SSE.encode()})
    answer.body(
        b'data: {"jsonrpc": "2.0", "id": 1, "result": {"method": "' + b"x" * 200_000 + b'"}}\n\n'
    )
    assert answer.done
    assert len(answer.held) >= LARGE
    assert answer.result() == {"method": "x" * 200_000}


class Heads:
    """A pattern, with the lengths of what it was asked for."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern = pattern
        self.lengths: list[int] = []

    def match(self, data: bytes) -> re.Match[bytes] | None:
        self.lengths.append(len(data))
        return self.pattern.match(data)


def test_a_large_event_is_gone_over_a_few_times_and_by_no_regular_expression_but_for_its_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is read on the sessions' loop holds it up for all servers."""
    heads = Heads(posting._NOTICE)
    monkeypatch.setattr(posting, "_NOTICE", heads)
    body = b"data: " + b"x" * 4_000_000 + b"\r\n\r\n"
    answer = _Answer(1, 8_000_000, lambda: None)
    answer.head(200, {b"content-type": SSE.encode()})
    gone_over: list[tuple[type, int]] = []

    def note(frame: object, event: str, called: Any) -> None:
        of = getattr(called, "__self__", None)
        if event == "c_call" and isinstance(of, bytes | bytearray | re.Pattern):
            gone_over.append((type(of), 0 if isinstance(of, re.Pattern) else len(of)))

    sys.setprofile(note)
    try:
        for at in range(0, len(body), 262_144):
            answer.body(body[at : at + 262_144])
    finally:
        sys.setprofile(None)
    assert answer.done
    assert len(answer.held) >= LARGE
    assert [kind for kind, _ in gone_over].count(re.Pattern) == len(heads.lengths)
    assert heads.lengths == [1_000]
    assert len(body) < sum(size for _, size in gone_over) < 10 * len(body)


def test_a_large_notification_beside_an_answer_is_told_by_its_head_and_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []

    def note(data: bytes) -> dict[str, Any] | None:
        parsed.append(len(data))
        return read_object(data)

    monkeypatch.setattr(posting, "read_object", note)
    changes: list[bool] = []
    answer = _Answer(1, 8_000_000, lambda: changes.append(True))
    answer.head(200, {b"content-type": SSE.encode()})
    params = b'"params": {"x": [' + b"{}," * 100_000 + b"{}]}"
    for head in (
        b'{"jsonrpc": "2.0", "method": "notifications/progress", ',
        b'{"method": "notifications/message", ',
        b'{"jsonrpc": "2.0", "id": 7, "method": "ping", ',
        b'{"jsonrpc": "2.0", ',
    ):
        answer.body(b"data: " + head + params + b"}\n\n")
    assert (answer.done, changes) == (False, [])
    answer.body(
        b'data: {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", '
        + params
        + b"}\n\n"
    )
    assert (answer.done, changes, parsed) == (False, [True], [])
    answer.body(b"data: " + message(result=OK).replace(b'"ID"', b"1") + b"\n\n")
    assert answer.result() == OK
