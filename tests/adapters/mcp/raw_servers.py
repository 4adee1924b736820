"""Servers of bare sockets, which answer with exactly the bytes that a test gives."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(said: bytes) -> bytes:
    """Leaves the connection open, for an id of one digit."""
    return CHUNKED + b"%x\r\n" % (len(said) - len("ID") - len('"')) + said + b"\r\n0\r\n\r\n"
