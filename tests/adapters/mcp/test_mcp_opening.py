"""How a connection is opened with servers that do not take the question for their era, and which
connection has lost its session.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bundle_router import load_catalog
from bundle_router.adapters.mcp import McpSessions
from bundle_router.adapters.mcp.stdio import StdioTransport
from bundle_router.adapters.mcp.streamable import StreamableHttp, says_session_lost
from bundle_router.adapters.pin_file import PinFiles
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admitted import Admitted
from bundle_router.core.servers.pins.reviewed import approve
from bundle_router.wiring.toolservers import admitted_now

PROGRAM = r"""
import json, os, sys
how, file = sys.argv[1:]
def say(id_, **fields):
    print(json.dumps({"jsonrpc": "2.0", "id": id_, **fields}), flush=True)
modern = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0}
for line in sys.stdin:
    message = json.loads(line)
    method, id_ = message["method"], message.get("id")
    print(method, file=open(file, "a"))
    if method == "server/discover":
        if how == "ends":
            sys.exit(1)
        elif how == "closes":
            os.close(1)
            sys.stdin.read()
            sys.exit()
        elif how == "null":
            say(None, error={"code": -32600, "message": "initialize first"})
        elif how == "noise":
            print("initialize first", flush=True)
        elif how == "garbled":
            say(id_, result="no")
        elif how == "modern":
            say(id_, result=modern)
    elif method == "initialize" and how == "modern":
        say(id_, error={"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}})
    elif method == "initialize":
        info = {"name": "s", "version": "1"}
        agreed = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info}
        say(str(id_) if how == "text" else id_, result=agreed)
    elif method == "tools/list":
        say(id_, result={"tools": [{"name": "a", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        say(id_, result={"content": [{"type": "text", "text": "hi"}]})
"""


def program(how: str, folder: Path, **more: Any) -> Server:
    args = ("-c", PROGRAM, how, str(folder / "asked"))
    return Server(name="s", transport="stdio", command=sys.executable, args=args, **more)


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().split()


@pytest.mark.parametrize(
    ("how", "protocol", "questions"),
    [
        ("ends", "2025-06-18", 1),
        ("closes", "2025-06-18", 1),
        ("silent", "2025-06-18", 1),
        ("noise", "2025-06-18", 1),
        ("null", "2025-06-18", 2),
        ("garbled", "2025-06-18", 2),
        ("text", "2025-06-18", 1),
        ("modern", "2026-07-28", 2),
    ],
)
def test_a_process_that_does_not_take_the_question_is_spoken_to_all_the_same(
    bench: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    protocol: str,
    questions: int,
) -> None:
    """And what has done harm is not asked of its next process."""
    monkeypatch.setattr(StdioTransport, "silence_s", 0.0 if how != "null" else 60.0)

    async def main(sessions: McpSessions) -> None:
        listing = await sessions.definitions("s", fresh=True)
        assert [tool["name"] for tool in listing.tools] == ["a"]
        assert listing.protocol == protocol
        assert listing.begins_with_handshake == (questions == 1)
        assert bench.said(await bench.call(sessions, "a")) == "hi"

    bench.run(main, program(how, tmp_path))
    if how != "modern":
        assert asked(tmp_path).count("server/discover") == 1


def test_that_a_server_takes_no_question_is_remembered_with_its_pins(
    project: Any, tmp_path: Path
) -> None:
    entry = program("ends", tmp_path)
    args = json.dumps(list(entry.args))
    project.write(
        f'transport = "stdio"\ncommand = "{entry.command}"\nargs = {args}\n', 'tools = ["s.a"]'
    )
    catalog = load_catalog(project.config)
    servers = [catalog.servers["s"]]
    [(server, admitted)] = admitted_now(catalog, servers, development=True)
    assert isinstance(admitted, Admitted)
    pins = PinFiles(project.root / "bundles" / "pins")
    assert json.loads(pins.write(approve(server, admitted)).read_text())["era"] == "handshake"
    (tmp_path / "asked").unlink()

    async def main() -> None:
        async with project.open() as router:
            await router.route(project.step())
            assert (await router.call("r", "s.a", {})).text == "hi"

    asyncio.run(main())
    assert asked(tmp_path)[0] == "initialize"
    assert "server/discover" not in asked(tmp_path)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Traceback\\n  File x\\nImportError: no mcp\\n", "; it wrote: ImportError: no mcp"),
        ("\\x1b[31mbad\\u202e", "; it wrote: \\u001b[31mbad\\u202e"),
        (
            "the key is ghp' + '_0123456789abcdefghijABCDEFGHIJ012345",
            "; it wrote: the key is [redacted",
        ),
        ("x" * 400, "; it wrote: " + "x" * 300),
        ("", ""),
    ],
)
def test_a_review_of_a_server_that_ends_says_what_it_wrote_last(
    written: str, said: str, project: Any
) -> None:
    code = f"import sys; sys.stderr.write('{written}'); sys.exit(3)"
    args = json.dumps(["-c", code])
    project.write(
        f'transport = "stdio"\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n',
        'tools = ["s.a"]',
    )
    catalog = load_catalog(project.config)
    [(_, refusal)] = admitted_now(catalog, [catalog.servers["s"]], development=True)
    assert isinstance(refusal, str)
    ended = "server 's' gave no list of its tools: the server's process ended (status 3)"
    assert refusal.startswith(ended + said)
    assert len(refusal) <= len(ended + "; it wrote: ") + 300


def test_a_server_that_was_renewed_since_its_review_is_asked_again(
    bench: Any, tmp_path: Path
) -> None:
    async def main(sessions: McpSessions) -> None:
        sessions.begin_with_handshake("s")
        assert (await sessions.definitions("s", fresh=True)).protocol == "2026-07-28"

    bench.run(main, program("modern", tmp_path))


class ClosesAtTheQuestion:
    """A server over HTTP that closes the connection of `server/discover` without an answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/mcp"

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as read:
                connection.sendall(self._answer(read))

    def _answer(self, read: Any) -> bytes:
        is_post = read.readline().startswith(b"POST")
        length = 0
        while (header := read.readline().strip()) != b"":
            if header.lower().startswith(b"content-length:"):
                length = int(header[15:])
        if not is_post:
            return b"HTTP/1.1 405 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        message = json.loads(read.read(length))
        self.asked.append(message["method"])
        if message["method"] == "server/discover":
            return b""
        if "id" not in message:
            return b"HTTP/1.1 202 Taken\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        tool = {"name": "a", "inputSchema": {"type": "object"}}
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "tools": [tool]}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return f"HTTP/1.1 200 OK\r\n{head}connection: close\r\n\r\n".encode() + body

    def end(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextmanager
def closing_at_the_question() -> Iterator[ClosesAtTheQuestion]:
    server = ClosesAtTheQuestion()
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join()


def test_a_server_over_http_that_closes_at_the_question_gets_the_handshake(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        listing = await sessions.definitions("s", fresh=True)
        assert (listing.protocol, listing.begins_with_handshake) == ("2025-06-18", True)

    with closing_at_the_question() as server:
        bench.run(main, Server(name="s", transport="streamable-http", url=server.url))
        assert server.asked.count("server/discover") == 1


def test_a_server_over_http_that_is_silent_gets_the_handshake_beside_the_question(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamableHttp, "silence_s", 0.0)

    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="x")) == "x"

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server))


@pytest.mark.parametrize(
    ("status", "words", "is_lost"),
    [
        (404, "", True),
        (410, "", True),
        (400, "Bad Request: No valid session ID provided", True),
        (400, "text is missing", False),
        (401, "Invalid session ID", True),
        (401, "Unauthorized: session expired", True),
        (401, "token expired", False),
        (403, "Session not found", True),
        (403, "you may not read session notes", False),
        (409, "The session has been terminated", True),
        (422, "Unknown MCP session", True),
        (429, "Session not found", False),
        (500, "Error: session 0198-ab is closed", True),
        (500, "MCP-Session no longer exists", True),
        (500, "no such thing", False),
        (503, "missing session", True),
    ],
)
def test_which_errors_say_that_a_session_is_forgotten(
    status: int, words: str, is_lost: bool
) -> None:
    assert says_session_lost(status, words.encode(), words) is is_lost
