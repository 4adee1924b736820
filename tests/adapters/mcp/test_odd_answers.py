"""What servers answer that is not quite right, on every transport and in both eras: one table.

Each row is what a server sends in answer to a call, and what the call comes to, by its own column.
`ID` in a row stands for the number of the call. A row is a message (which a line, a body or an event
holds), or what only one kind of framing can get wrong.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from bundle_router.adapters.mcp import McpSessions
from bundle_router.core.catalog import Server
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.servers.transport.tool_servers import RawResult

from tests.adapters.mcp.odd_server import opening
from tests.adapters.mcp.raw_servers import SSE, answering, http

Wire = Literal["stdio", "json", "events"]
Era = Literal["modern", "handshake"]
WIRES: tuple[Wire, ...] = ("stdio", "json", "events")
ERAS: tuple[Era, ...] = ("modern", "handshake")
ODD_SERVER = Path(__file__).with_name("odd_server.py")

OK = {"content": [{"type": "text", "text": "hello"}]}


@dataclass(frozen=True)
class Row:
    """One odd answer."""

    sent: bytes
    """What the server sends: a message, or with `framed` all of the line, body or stream."""
    outcome: str
    code: str
    says: str
    """A part of what the call says."""
    wires: tuple[Wire, ...] = WIRES
    framed: bool = False
    status: str = "200 OK"
    """The status over HTTP."""
    more: str = ""
    """More headers over HTTP."""
    kind: str = ""
    """The content type over HTTP, where it is not that of the framing."""


def said(text: str = "hello") -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def message(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "ID", **fields}).encode().replace(b'"ID"', b"ID")


def ok(sent: bytes, says: str = "hello", **more: Any) -> Row:
    return Row(sent, "ok", "", says, **more)


def refused(sent: bytes, says: str, code: str = "rpc_error", **more: Any) -> Row:
    return Row(sent, "tool_error", code, says, **more)


def garbled(sent: bytes, **more: Any) -> Row:
    return Row(sent, "unavailable", "protocol_error", "may have been carried out", **more)


def lost(sent: bytes, **more: Any) -> Row:
    return Row(sent, "unavailable", "connection_lost", "may have been carried out", **more)


def fault(code: str, says: str, **more: Any) -> Row:
    return Row(b"", "unavailable", code, says, framed=True, wires=("json",), **more)


def told(status: str, sent: bytes, says: str) -> Row:
    code = "unauthorized" if status[:3] == "403" else "http_error"
    return Row(sent, "unavailable", code, says, wires=("json",), framed=True, status=status)


ANSWER = message(result=OK)
HTTP: tuple[Wire, ...] = ("json", "events")
STREAMS: tuple[Wire, ...] = ("stdio", "events")
LOG = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
DEEP = message(result={**OK, "structuredContent": "DEEP"}).replace(
    b'"DEEP"', b'{"a":' * 160 + b"1" + b"}" * 160
)
FAILED = {"code": -32000, "message": "no such thing"}
NO_METHOD = {"code": -32601, "message": "no such method"}
TO_NULL = message(id=None, error={"code": -32700, "message": "unreadable" * 100})

ROWS: dict[str, Row] = {
    # ids
    "an id": ok(ANSWER),
    "an id as text": ok(ANSWER.replace(b"ID", b'"ID"')),
    "an id with a fraction of nothing": ok(ANSWER.replace(b"ID", b"ID.0")),
    "an id as another's text": garbled(ANSWER.replace(b"ID", b'"IDx"'), wires=HTTP),
    "an id of another": garbled(ANSWER.replace(b"ID", b"999999"), wires=HTTP),
    "an id of null": garbled(ANSWER.replace(b"ID", b"null"), wires=HTTP),
    "an id that is true": garbled(ANSWER.replace(b"ID", b"true"), wires=HTTP),
    "an id that is a list": garbled(ANSWER.replace(b"ID", b"[ID]"), wires=HTTP),
    "no id": garbled(json.dumps({"jsonrpc": "2.0", "result": OK}).encode(), wires=HTTP),
    "an error to null": refused(message(id=None, error=FAILED), "no such thing"),
    "no method, to null": refused(
        message(id=None, error=NO_METHOD), "no such method", "not_found", wires=HTTP
    ),
    "no method, to null, then an answer": ok(
        message(id=None, error=NO_METHOD) + b"\n" + ANSWER, wires=("stdio",)
    ),
    "a result to null, then an answer": ok(
        message(id=None, result={}) + b"\n" + ANSWER, wires=("stdio",)
    ),
    "an error to another": garbled(message(id=999_999, error=FAILED), wires=HTTP),
    "two answers": ok(ANSWER + b"\n\ndata: " + message(result=said("second")), wires=("events",)),
    "an answer to another before": ok(
        message(id=999_999, result=said("other")) + b"\n" + ANSWER, wires=("stdio",)
    ),
    # results
    "a result and null for an error": ok(message(result=OK, error=None)),
    "an error and null for a result": refused(message(result=None, error=FAILED), "no such thing"),
    "a result and an error": garbled(message(result=OK, error=FAILED)),
    "neither": garbled(message()),
    "a result that is a list": garbled(message(result=[1])),
    "a result that is text": garbled(message(result="done")),
    "a result of null": garbled(message(result=None)),
    "no version of JSON-RPC": garbled(ANSWER.replace(b'"2.0"', b'"1.0"')),
    "more members than there are": ok(message(result=OK, more={"a": 1}, seq=4)),
    "a result of an unknown type": Row(
        message(result={**OK, "resultType": "task"}), "tool_error", "protocol_error", "hello"
    ),
    "a failure": Row(message(result={**OK, "isError": True}), "tool_error", "failed", "hello"),
    "a failure flag that is text": Row(
        message(result={**OK, "isError": "yes"}), "tool_error", "protocol_error", "hello"
    ),
    # errors
    "an error": refused(message(error=FAILED), "(code -32000): no such thing"),
    "an error that is text": refused(message(error="no such thing"), "no such thing"),
    "an error whose code is text": refused(
        message(error={"code": "-32000", "message": "no"}), "(code -32000): no"
    ),
    "an error whose code is a word": refused(
        message(error={"code": "E_NO", "message": "no such"}), "(code -32603): no such"
    ),
    "an error without a code": refused(message(error={"message": "no such"}), "no such"),
    "an error without a message": refused(message(error={"code": -32000}), "(code -32000)"),
    "an error with data": refused(
        message(error={**FAILED, "data": [{"a": 1}]}), 'no such thing\ndata: [{"a":1}]'
    ),
    "an error with data that is text": refused(
        message(error={**FAILED, "data": "see countryCode"}), "no such thing\ndata: see countryCode"
    ),
    "an error with the address to open": refused(
        message(error={**FAILED, "data": {"elicitations": [{"url": "https://a.example/x"}]}}),
        "https://a.example/x",
    ),
    "an error of wrong arguments": refused(
        message(error={"code": -32602, "message": "text is missing"}),
        "text is missing",
        "invalid_params",
    ),
    "an error of an unknown tool": refused(
        message(error={"code": -32601, "message": "unknown"}), "unknown", "not_found"
    ),
    "an error of megabytes": refused(message(error={**FAILED, "message": "no" * 999_999}), "[…]"),
    "an error that is empty": garbled(message(error={})),
    "an error that is a number": garbled(message(error=5)),
    "an error that says nothing": garbled(message(error={"code": "x", "message": None})),
    # encodings
    "a byte order mark": ok(b"\xef\xbb\xbf" + ANSWER),
    "UTF-16": ok(ANSWER.decode().encode("utf-16"), wires=("json",)),
    "broken UTF-8": ok(message(result=said("caf#")).replace(b"#", b"\xff"), "caf\ufffd"),
    "half a pair of surrogates": ok(message(result=said("half \ud83d")), "half ?"),
    "a pair of surrogates": ok(message(result=said("\U0001f600")), "\U0001f600"),
    "a pair and half a pair": ok(message(result=said("\U0001f600\udfff")), "\U0001f600?"),
    "a large text with half a pair": ok(message(result=said("\ud83d" + "x" * 200_000)), "?xxx"),
    "NaN": ok(message(result={**OK, "structuredContent": {"n": float("nan")}})),
    "an infinity": ok(
        message(result={**OK, "structuredContent": {"n": -1}}).replace(b"-1", b"1e999")
    ),
    "a number of 5,000 digits": garbled(
        message(result={"content": [], "structuredContent": {"n": 7}}).replace(b"7", b"9" * 5_000)
    ),
    "a name twice": ok(ANSWER.replace(b'"result"', b'"result": 5, "result"')),
    "nested 160 levels": ok(DEEP),
    "escapes": ok(message(result=said("a\u2028b\u0000c")), "a\u2028b"),
    "white space around": ok(b"  " + ANSWER + b" \t "),
    # no messages
    "half a message": garbled(ANSWER[:-20]),
    "a comma too many": garbled(ANSWER[:-1] + b",}"),
    "no JSON": garbled(b"<html>log in first</html>", wires=("json",)),
    "an object that is no message": garbled(b'{"status": "ok"}', wires=("json",)),
    "a number": garbled(b"7", wires=("json",)),
    "nothing": garbled(b"", wires=("json",)),
    "text before the answer": ok(b"listening on 8080\n" + ANSWER, wires=("stdio",)),
    "JSON before the answer": ok(b'{"level": "info", "msg": "up"}\n' + ANSWER, wires=("stdio",)),
    "half a log line before the answer": ok(b'{"level": "inf\n' + ANSWER, wires=("stdio",)),
    "blank lines": ok(b"\n\r\n\n" + ANSWER, wires=("stdio",)),
    "a line that ends in CR LF": ok(ANSWER + b"\r", wires=("stdio",)),
    # several messages
    "a batch of one": ok(b"[" + ANSWER + b"]"),
    "a batch with a notification": ok(b"[" + LOG + b"," + ANSWER + b"]"),
    "a batch of nothing": garbled(b"[]", wires=("json",)),
    "a batch with something else": ok(b'[7, "x", null, ' + ANSWER + b"]"),
    # events
    "an event of another name before": ok(
        b"event: ping\ndata: {}\n\ndata: " + ANSWER + b"\n\n", wires=("events",), framed=True
    ),
    "an unnamed keep-alive before": ok(
        b"data: ping\n\ndata: {}\n\ndata: " + ANSWER + b"\n\n", wires=("events",), framed=True
    ),
    "comments between the lines": ok(
        b": hello\n\n: hello\ndata: " + ANSWER + b"\n: bye\n\n", wires=("events",), framed=True
    ),
    "a mark before the first event": ok(
        b"\xef\xbb\xbfdata: " + ANSWER + b"\n\n", wires=("events",), framed=True
    ),
    "events that end in CR": ok(
        b"event: message\rdata: " + ANSWER + b"\r\r", wires=("events",), framed=True
    ),
    "events that end in CR LF": ok(
        b"event: message\r\ndata:" + ANSWER + b"\r\n\r\n", wires=("events",), framed=True
    ),
    "an event of two lines": ok(
        b"data: " + ANSWER[:-1] + b"\ndata: }\n\n", wires=("events",), framed=True
    ),
    "an event without data before": ok(
        b"id: \nretry: 5\ndata:\n\ndata: " + ANSWER + b"\n\n", wires=("events",), framed=True
    ),
    "an event that is named message": ok(
        b"event:message\ndata: " + ANSWER + b"\n\n", wires=("events",), framed=True
    ),
    "an event that does not end": lost(b"data: " + ANSWER, wires=("events",), framed=True),
    "no event": lost(b": nothing\n\n", wires=("events",), framed=True),
    "an event that is no JSON": garbled(b"data: {nothing}\n\n", wires=("events",), framed=True),
    "keep-alives and no answer": garbled(b"data: ping\n\n", wires=("events",), framed=True),
    # what a server says besides
    "a notification before": ok(LOG + b"\n" + ANSWER, wires=("stdio",)),
    "a notification whose params are a list": ok(
        b'{"jsonrpc":"2.0","method":"a/b","params":[1]}\n' + ANSWER, wires=("stdio",)
    ),
    "a method that is a number": ok(b'{"jsonrpc":"2.0","method":5}\n' + ANSWER, wires=("stdio",)),
    "a request of no known method": ok(
        b'{"jsonrpc":"2.0","id":"q","method":"who/knows"}\n' + ANSWER, wires=("stdio",)
    ),
    "a request with an id of null": ok(
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n' + ANSWER, wires=("stdio",)
    ),
    # over HTTP
    "a content type with parameters": ok(ANSWER, wires=("json",), kind="Application/JSON; x=1"),
    "another content type": ok(ANSWER, wires=("json",), kind="text/plain"),
    "a compression nobody asked for": garbled(
        b"x", wires=("json",), framed=True, more="content-encoding: br\r\n"
    ),
    "no gzip": garbled(
        b"nothing of the kind", wires=("json",), framed=True, more="content-encoding: gzip\r\n"
    ),
    "an error with a status": refused(
        message(error=FAILED), "no such thing", wires=("json",), status="400 Bad Request"
    ),
    "an error to null with a status": refused(
        message(id=None, error=FAILED), "no such thing", wires=("json",), status="500 Broken"
    ),
    "a page with a status": fault("http_error", "HTTP 500", status="500 Broken", kind="text/html"),
    "a status with words": told("400 Bad", b"use project=7", "HTTP 400. The call may"),
    "a status with words as JSON": told(
        "403 No", b'{"error": {"code": 7, "message": "no access"}}', "words: no access"
    ),
    "a status with a problem": told(
        "422 No", b'{"title": "Invalid", "detail": "x is missing"}', "words: x is missing"
    ),
    "a status with many errors": told(
        "422 No",
        b'{"detail": [{"loc": ["x"], "msg": "m", "reason": "a"}, {"reason": "b"}]}',
        "a; b",
    ),
    "a status with a title": told(
        "503 Down", b"<html><title>At work\n &amp; back</title><p>x", "words: At work & back"
    ),
    "a status with JSON of another kind": told("500 No", b'{"x": 1}', 'words: {"x": 1}'),
    "a status with a long text": told("500 No", b"y" * 9_000, "y" * 500 + " ["),
    "401": fault("unauthorized", "HTTP 401", status="401 Unauthorized"),
    "403": fault("unauthorized", "HTTP 403", status="403 Forbidden"),
    "429": fault("rate_limited", "HTTP 429", status="429 Slow", more="retry-after: 7\r\n"),
    "202": garbled(b"", wires=("json",), framed=True, status="202 Accepted"),
    "204": garbled(b"", wires=("json",), framed=True, status="204 Nothing"),
    "a redirect to another host": fault(
        "http_error", "not followed", status="307 There", more="location: http://127.0.0.2:9/\r\n"
    ),
    "a redirect to nowhere": fault("http_error", "HTTP 307", status="307 There"),
}


# --- the servers ----------------------------------------------------------------------------------


class OddServer:
    """A server over HTTP that answers each call with a row."""

    def __init__(self, row: Row, wire: Wire, era: Era) -> None:
        self._row = row
        self._wire = wire
        self._era: Era = era
        self.calls = 0
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
            line = read.readline()
            length = 0
            while (header := read.readline().strip()) != b"":
                if header.lower().startswith(b"content-length:"):
                    length = int(header[15:])
            if line.startswith(b"POST"):
                connection.sendall(self._answer(json.loads(read.read(length))))
            else:
                connection.sendall(_http(b"", "405 No", "text/plain"))

    def _answer(self, asked: dict[str, Any]) -> bytes:
        if "id" not in asked:
            return _http(b"", "202 Accepted", "text/plain")
        answer = opening(asked["method"], asked["id"], self._era)
        if answer is not None:
            return _http(json.dumps(answer).encode(), "200 OK", "application/json")
        self.calls += 1
        row = self._row
        number = str(asked["id"])
        sent = row.sent.replace(b"ID", number.encode())
        sent = sent.replace("ID".encode("utf-16-le"), number.encode("utf-16-le"))
        if self._wire == "events" and not row.framed:
            sent = b"event: message\ndata: " + sent + b"\n\n"
        kind = "text/event-stream" if self._wire == "events" else "application/json"
        return _http(sent, row.status, row.kind or kind, row.more)

    def end(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            connection.close()


def _http(body: bytes, status: str, kind: str, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n{more}\r\n"
    return head.encode() + body


@contextmanager
def serving(name: str, row: Row, wire: Wire, era: Era, folder: Path) -> Iterator[Server]:
    """Yield the entry of a server that answers with the row."""
    if wire == "stdio":
        sent = folder / name
        sent.write_bytes(row.sent)
        args = ("-I", "-S", str(ODD_SERVER), str(sent), era)
        yield Server(name=name, transport="stdio", command=sys.executable, args=args)
        return
    server = OddServer(row, wire, era)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield Server(name=name, transport="streamable-http", url=server.url)
        assert server.calls == 1, "what may have been carried out is not sent again"
    finally:
        server.end()


def ask_all(
    bench: Any, folder: Path, wire: Wire, era: Era, table: dict[str, Row], **options: Any
) -> dict[str, RawResult]:
    """Return what each row of a transport and era comes to: a server each, all asked at once."""
    rows = {name: row for name, row in table.items() if wire in row.wires}

    async def main(sessions: McpSessions) -> list[RawResult]:
        calls = [
            bench.call(sessions, "echo", text="x", timeout_s=60.0, server=server.name)
            for server in servers
        ]
        answers: list[RawResult] = await asyncio.gather(*calls)
        return answers

    with ExitStack() as stack:
        servers = [
            stack.enter_context(serving(f"s{number}", row, wire, era, folder))
            for number, row in enumerate(rows.values())
        ]
        return dict(zip(rows, bench.run(main, *servers, **options), strict=True))


CASES = [(name, wire, era) for name, row in ROWS.items() for wire in row.wires for era in ERAS]


def test_the_table_has_sixty_rows() -> None:
    assert len(ROWS) >= 60
    assert {wire for _, wire, _ in CASES} == set(WIRES)


@pytest.fixture(scope="module")
def results() -> dict[tuple[Wire, Era], dict[str, RawResult]]:
    """What rows came to, by transport and era; the first test that wants one asks for all."""
    return {}


@pytest.fixture(scope="module")
def large_results() -> dict[tuple[Wire, Era], dict[str, RawResult]]:
    """The same of `LARGE_ROWS`."""
    return {}


@pytest.mark.parametrize(("name", "wire", "era"), CASES)
def test_an_odd_answer_comes_to_the_same_on_every_transport_and_in_both_eras(
    bench: Any,
    tmp_path: Path,
    results: dict[tuple[Wire, Era], dict[str, RawResult]],
    name: str,
    wire: Wire,
    era: Era,
) -> None:
    if (wire, era) not in results:
        results[wire, era] = ask_all(bench, tmp_path, wire, era, ROWS)
    row, result = ROWS[name], results[wire, era][name]
    assert (result.outcome, result.code) == (row.outcome, row.code), bench.said(result)
    assert row.says in bench.said(result)


@contextmanager
def server_with_an_error_to_null(
    bench: Any, way: str
) -> Iterator[tuple[Server, Callable[..., Any]]]:
    """Yield a server, and what has it answer the next call, after an error that names none."""
    if way == "stdio":
        line = TO_NULL.decode() + "\n" + ANSWER.replace(b"ID", b"#").decode()
        yield bench.stdio(), partial(bench.call, tool="raw", line=line)
        return
    gates = {name: threading.Event() for name in ("0", "1")}
    with bench.faults.serving() as server:
        server.legacy = True
        server.faults.gates = gates

        async def call(sessions: McpSessions) -> RawResult:
            with server.faults.lock:
                server.stream.write(b"event: message\ndata: " + TO_NULL + b"\n\n")
            result: RawResult = await bench.call(sessions, "echo", text="hello")
            return result

        yield bench.http(server), call
        for gate in gates.values():
            gate.set()


@pytest.mark.parametrize("way", ["stdio", "sse"])
def test_an_error_that_names_no_call_ends_none_of_several_and_is_told_with_those_that_get_no_answer(
    bench: Any, leap: Any, way: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="started")
        tool = "hang" if way == "stdio" else "gate"
        hanging = [
            asyncio.ensure_future(bench.call(sessions, tool, text=text)) for text in ("0", "1")
        ]
        await bench.until(lambda: sessions.status()[0].running == len(hanging))
        assert bench.said(await call(sessions)) == "hello"
        await leap.until(*hanging)
        for result in (await hanging[0], await hanging[1]):
            assert (result.outcome, result.code) == ("timeout", "timeout")
            assert bench.said(result).endswith(
                "and was stopped. Meanwhile the server sent an error that named no call: "
                + "unreadable" * 50
                + " […]"
            )
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    with server_with_an_error_to_null(bench, way) as (server, call):
        bench.run(main, server)
    (report,) = bench.events.named("server.unnamed_answer")
    assert (report["error"], report["waiting"]) == ("unreadable" * 50 + " […]", 3)


def test_an_error_that_names_no_call_is_told_with_a_connection_that_is_lost(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="started")
        hanging = asyncio.ensure_future(bench.call(sessions, "hang"))
        await bench.until(lambda: sessions.status()[0].running == 1)
        await call(sessions)
        await bench.call(sessions, "crash")
        result = await hanging
        assert (result.outcome, result.code) == ("unavailable", "connection_lost")
        assert "Meanwhile the server sent an error that named no call: unread" in bench.said(result)

    with server_with_an_error_to_null(bench, "stdio") as (server, call):
        bench.run(main, server)


@pytest.mark.parametrize("kind", ["application/json", SSE])
def test_over_http_an_error_that_names_no_call_is_its_own_requests_and_no_others(
    bench: Any, kind: str
) -> None:
    said = [message(id=None, error=FAILED), message(result={**OK, "resultType": "complete"})]
    answers = [one.replace(b"ID", b'"ID"') for one in said]
    if kind == SSE:
        answers = [b"data: " + one + b"\n\n" for one in answers]
    with answering(*(http(one, kind) for one in answers)) as server:

        async def main(sessions: McpSessions) -> list[str]:
            calls = (bench.call(sessions, "echo", text="x") for _ in range(2))
            return sorted(bench.said(result) for result in await asyncio.gather(*calls))

        texts = bench.run(main, Server(name="s", transport="streamable-http", url=server.url))
    assert texts == ["hello", "s.echo refused the call (code -32000): no such thing"]


# --- large answers --------------------------------------------------------------------------------

LIMIT = 20_000
TEXT = "x" * 15_000
ITEMS: list[Any] = [{"name": f"item {number}", "size": number} for number in range(400)]
assert 10_000 < len(json.dumps(ITEMS)) < LIMIT


def output(*texts: str, **more: Any) -> bytes:
    content = [{"type": "text", "text": text} for text in texts]
    return message(result={"content": content, **more})


def oversized(sent: bytes, says: str = "bytes, more than 20,000", **more: Any) -> Row:
    return refused(sent, says, "too_large", **more)


LARGE_ROWS: dict[str, Row] = {
    "equal as JSON": ok(output(json.dumps({"a": ITEMS}), structuredContent={"a": ITEMS}), "item 7"),
    "equal but for indents": ok(
        output(json.dumps({"a": ITEMS[:170]}, indent=8), structuredContent={"a": ITEMS[:170]}),
        "item 7",
    ),
    "equal below `result`": ok(output(TEXT, structuredContent={"result": TEXT}), TEXT),
    "a list below `result`": ok(
        output(json.dumps(ITEMS), structuredContent={"result": ITEMS}), "item 7"
    ),
    "a text for each of a list": ok(
        output(*map(json.dumps, ITEMS[:200]), structuredContent={"result": ITEMS[:200]}), "item 7"
    ),
    "equal in an error": refused(
        output(TEXT, structuredContent={"result": TEXT}, isError=True), TEXT, "failed"
    ),
    "equal, with another text": ok(
        output("see: ", TEXT, structuredContent={"result": TEXT}), "see: "
    ),
    "another letter": oversized(output(TEXT, structuredContent={"result": TEXT[1:] + "y"})),
    "true for 1": oversized(
        output(json.dumps({"a": ITEMS, "b": 1}), structuredContent={"a": ITEMS, "b": True})
    ),
    "text alone": oversized(output(TEXT + TEXT)),
    "structured output alone": oversized(message(result={"structuredContent": {"a": TEXT + TEXT}})),
    "structured output beside no text": oversized(
        output(structuredContent={"result": TEXT + TEXT})
    ),
    "equal, and much beside": oversized(
        output(TEXT, structuredContent={"result": TEXT}, _meta={"a": "m" * 8_000})
    ),
    "a text that is too large, and equal": oversized(
        output(TEXT + "x" * 5_000, structuredContent={"result": TEXT + "x" * 5_000}),
        "more than",
    ),
    "a text of less, and equal, beside too large a text": oversized(
        output("x" * 15_000, "y" * 6_000, structuredContent={"result": "y" * 6_000})
    ),
    "an error": oversized(message(error={"code": -32000, "message": TEXT + TEXT})),
    "two messages": oversized(
        b"[" + output(TEXT) + b"," + LOG.replace(b'"x"', json.dumps(TEXT).encode()) + b"]"
    ),
    "a notification before": ok(
        LOG.replace(b'"x"', json.dumps(TEXT + TEXT).encode()) + b"\n" + ANSWER, wires=("stdio",)
    ),
}
LARGE_CASES = [
    (name, wire, era) for name, row in LARGE_ROWS.items() for wire in row.wires for era in ERAS
]


@pytest.mark.parametrize(("name", "wire", "era"), LARGE_CASES)
def test_a_large_answer_is_taken_where_what_it_says_twice_counts_once(
    bench: Any,
    tmp_path: Path,
    large_results: dict[tuple[Wire, Era], dict[str, RawResult]],
    name: str,
    wire: Wire,
    era: Era,
) -> None:
    if (wire, era) not in large_results:
        bounds = Bounds(max_message_bytes=LIMIT)
        large_results[wire, era] = ask_all(bench, tmp_path, wire, era, LARGE_ROWS, bounds=bounds)
    row, result = LARGE_ROWS[name], large_results[wire, era][name]
    assert (result.outcome, result.code) == (row.outcome, row.code), bench.said(result)[:200]
    assert row.says in bench.said(result)
