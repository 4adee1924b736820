"""A server of the handshake era that answers with whatever it was told to, well-formed or not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

Json = dict[str, Any]
SCHEMA: Final = {"type": "object", "properties": {}}
ANSWERS: Final[Mapping[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "completions": {}},
        "serverInfo": {"name": "plain", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "plain", "description": "Plain.", "inputSchema": SCHEMA}]},
    "tools/call": {"content": [{"type": "text", "text": "Plain."}]},
    "ping": {},
}


class Plain:
    """`answers`: a result by method, or a function of the params that gives one.

    What is not there is not known.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = {**ANSWERS, **answers}
        self.asked: list[tuple[str, Json]] = []

    def answer(self, message: Json) -> Json:
        method, params = str(message.get("method")), message.get("params") or {}
        self.asked.append((method, params))
        found = self.answers.get(method)
        if found is None:
            return {
                "jsonrpc": "2.0",
                "id": message["id"],
                "error": {"code": -32601, "message": "Method not found"},
            }
        return {
            "jsonrpc": "2.0",
            "id": message["id"],
            "result": found(params) if callable(found) else found,
        }


@contextmanager
def plain(**answers: Any) -> Iterator[tuple[Plain, str]]:
    """The server and its address while the context lasts.

    `resources_list` names the method `resources/list`.
    """
    server = Plain({name.replace("_", "/"): answer for name, answer in answers.items()})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps(server.answer(message)).encode() if "id" in message else b""
            self.send_response(200 if body else 202)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_response(405)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_given: Any) -> None:
            """Nothing on the streams of a test."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,), name="plain")
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{listening.server_address[1]}/mcp"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
