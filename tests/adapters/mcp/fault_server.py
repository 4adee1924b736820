"""A tool server that misbehaves on request, written without any MCP library so that it can send
what none would.

    python fault_server.py [--FLAG ...]          over stdio
    with serving(Faults(...)) as server: ...     over Streamable HTTP, in a thread of this process

Flags of the stdio server: `ignore-eof`, `ignore-term`, `slow-start=S`, `noise`, `exit-at-start`,
`grandchild=FILE` (starts one that outlives a polite end, and writes its pid there),
`exit-once=FILE` (ends at once where there is no such file, and makes one), `silent-discover` (never
answers `server/discover`), `hang-initialize`, `hang-list`, and what `Faults` takes.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
    )
).decode()
OBJECT = {"type": "object"}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"does {name}", "inputSchema": OBJECT, **more}


TOOLS = [
    tool(
        "echo",
        inputSchema={
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    ),
    tool(
        "weather",
        outputSchema={"type": "object", "properties": {"c": {"type": "number"}}, "required": ["c"]},
    ),
    *(
        tool(n)
        for n in (
            "sleep",
            "hang",
            "crash",
            "blocks",
            "meta",
            "env",
            "pid",
            "fail",
            "rpc_error",
            "count",
            "big",
        )
    ),
]


class Faults:
    """What the server answers.

    `bad_tools`, `deep_list`, `loop_cursor`, `big_list`, `ttl_ms`, `instructions` shape its list,
    `experimental` is how many capabilities of no meaning it has.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.lists = 0
        self.calls = 0
        self.cancelled: list[Any] = []
        self.gates: dict[str, threading.Event] = {}
        self.at_gate: set[str] = set()
        """Calls of `gate` that have come, by their text: each is answered when its event is set."""
        self.together = 0
        self.peak = 0
        """The most calls of `sleep` there were at once."""
        self.extra_tools: list[dict[str, Any]] = []
        self.able: list[str] = []
        """The capabilities of the client that opened the session last."""
        self.overlay: dict[str, dict[str, Any]] = {}
        """What another release would list instead, by tool name."""
        self.lock = threading.Lock()

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result.

        Raises KeyError for a method it does not know: the handshake era knows no
        `server/discover`.
        """
        if method == "initialize":
            self.able = sorted(params["capabilities"])
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {
                    "tools": {"listChanged": True},
                    "logging": {},
                    **self._experimental(),
                },
                "serverInfo": {"name": "faults", "version": "1"},
                "instructions": self.options.get("instructions", "be kind"),
            }
        if method == "tools/list":
            return self._list(params.get("cursor"))
        if method == "tools/call":
            with self.lock:
                self.calls += 1
            return self._call(params["name"], params.get("arguments") or {}, params.get("_meta"))
        if method in ("ping", "logging/setLevel"):
            return {}
        raise KeyError(method)

    def _experimental(self) -> dict[str, Any]:
        count = self.options.get("experimental", 0)
        return {"experimental": {f"x{number}": OBJECT for number in range(count)}} if count else {}

    def _list(self, cursor: str | None) -> dict[str, Any]:
        with self.lock:
            self.lists += 1
        listed = [*TOOLS, *self.extra_tools]
        result: dict[str, Any] = {
            "tools": [{**one, **self.overlay.get(one["name"], {})} for one in listed]
        }
        if "also" in self.options:
            result["tools"] += [tool(name) for name in str(self.options["also"]).split(",")]
        if self.options.get("by_client"):
            result["tools"] += [tool(f"asks_{name}") for name in self.able]
        if self.options.get("reverse"):
            result["tools"] = result["tools"][::-1]
        if gate := self.gates.get("list"):
            gate.wait(60)
        if self.options.get("bad_tools"):
            result["tools"] = [
                {"name": "broken", "inputSchema": "no"},
                {"description": "nameless", "inputSchema": OBJECT},
                "not an object",
                tool("only_schema", inputSchema={"$schema": "x"}),
                tool("huge", description="x" * 300_000),
                *TOOLS,
                TOOLS[0],
            ]
        if self.options.get("deep_list"):
            schema: dict[str, Any] = {"type": "object"}
            for _ in range(int(self.options["deep_list"])):
                schema = {"type": "object", "properties": {"x": schema}}
            result["tools"].insert(0, tool("deep_one", inputSchema=schema))
        if self.options.get("big_list"):
            result["tools"] = [
                tool(f"t{i}", description="d" * 350) for i in range(self.options["big_list"])
            ]
        if self.options.get("loop_cursor"):
            result = {"tools": [tool(f"page{self.lists}")], "nextCursor": f"c{self.lists}"}
        if self.options.get("circle"):
            result["nextCursor"] = "again"
        if "ttl_ms" in self.options:
            result["ttlMs"] = self.options["ttl_ms"]
        return result

    def _sleep(self, seconds: float, together: int, file: str) -> None:
        """Sleep, and until so many calls have been there at once, and the file is there."""
        with self.lock:
            self.together += 1
            self.peak = max(self.peak, self.together)
        time.sleep(seconds)
        deadline = time.monotonic() + 60
        while (
            self.peak < together or (file and not Path(file).exists())
        ) and time.monotonic() < deadline:
            time.sleep(0.01)
        with self.lock:
            self.together -= 1

    def _call(self, name: str, arguments: dict[str, Any], meta: Any) -> dict[str, Any]:
        if name == "sleep":
            self._sleep(
                arguments.get("s", 1), arguments.get("together", 0), arguments.get("file", "")
            )
        if name == "gate":
            self.at_gate.add(arguments["text"])
            self.gates[arguments["text"]].wait(60)
            return text(arguments["text"])
        if name == "hang":
            time.sleep(arguments.get("s", 60))
        if name == "rpc_error":
            raise ValueError("that is not how I am called")
        if name == "fail":
            return {"content": [{"type": "text", "text": "no"}], "isError": True}
        if name == "weather":
            return {
                "content": [{"type": "text", "text": "cold"}],
                "structuredContent": {"c": "cold"},
            }
        if name == "nan":
            return {
                "content": [{"type": "text", "text": "x"}],
                "structuredContent": {"n": [float("nan"), -1e999, 1.5]},
            }
        if name == "blocks":
            return {"content": BLOCKS, "structuredContent": {"n": 1}}
        if name == "big":
            return text("x" * arguments["bytes"])
        answers: dict[str, Callable[[], Any]] = {
            "echo": lambda: arguments.get("text"),
            "meta": lambda: json.dumps(meta),
            "env": lambda: json.dumps({**os.environ, "CWD": str(Path.cwd())}),
            "pid": lambda: str(os.getpid()),
            "count": lambda: str(self.calls),
            "peak": lambda: str(self.peak),
            "again": lambda: "not yet, " + "." * 1_000 + f" call again with token {self.calls}",
            "same": lambda: "not yet, call again with token 0",
        }
        return text(str(answers.get(name, lambda: name)()))


def told(params: dict[str, Any]) -> list[dict[str, Any]]:
    """What the server says before it answers a call of `tells`: messages with as many values as it
    is told.
    """
    values, token = (
        [OBJECT] * params["arguments"]["values"],
        (params.get("_meta") or {}).get("progressToken", 0),
    )
    asked = {
        "maxTokens": 1,
        "messages": [{"role": "user", "content": {"type": "text", "text": "x"}}] * len(values),
    }
    messages: list[dict[str, Any]] = [
        {
            "method": "notifications/progress",
            "params": {"x": values, "progressToken": token, "progress": 1},
        },
        {"method": "notifications/message", "params": {"level": "info", "data": values}},
        {"method": "notifications/message", "params": {"level": "info", "data": "said"}},
        {"method": "notifications/resources/updated", "params": {"uri": "file:///x", "x": values}},
        {"method": "notifications/tools/list_changed", "params": {"x": values}},
        {"params": {"x": values}, "method": "notifications/none"},
        {"id": "asked", "method": "sampling/createMessage", "params": asked},
        {"id": "ping", "method": "ping", "params": {"_meta": {"x": values}}},
    ]
    return [{"jsonrpc": "2.0", **message} for message in messages]


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


BLOCKS = [
    {"type": "text", "text": "hello"},
    {"type": "image", "data": PNG, "mimeType": "image/png"},
    {"type": "image", "data": "", "mimeType": "image/png"},
    {"type": "audio", "data": "!!!", "mimeType": "audio/wav"},
    {
        "type": "resource",
        "resource": {"uri": "file:///a/b.txt", "text": "body", "mimeType": "text/plain"},
    },
    {"type": "resource", "resource": {"uri": "file:///a/c.bin", "blob": "AAEC", "mimeType": "x/y"}},
    {"type": "resource_link", "uri": "https://example.com/x", "name": "x"},
    {"type": "poem", "lines": 3},
    7,
]


# --- stdio ----------------------------------------------------------------------------------------


class Stdio:
    """Each call in a thread of its own, so that one that hangs holds up nobody."""

    def __init__(self, flags: dict[str, str]) -> None:
        self.flags = flags
        self.faults = Faults(**{k: int(v) if v.isdigit() else v or True for k, v in flags.items()})
        self.out = sys.stdout.buffer
        self.lock = threading.Lock()
        self.held: Any = None
        self.cancelled: list[Any] = []

    def write(self, data: bytes) -> None:
        with self.lock:
            self.out.write(data)
            self.out.flush()

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def run(self) -> None:
        self.prepare()
        for line in sys.stdin.buffer:
            message = json.loads(line)
            method, ident = message.get("method", ""), message.get("id")
            if method == "notifications/cancelled":
                self.cancelled.append(message["params"])
                self.send(
                    {
                        "method": "notifications/message",
                        "params": {"level": "info", "data": message["params"]},
                    }
                )
            if ident is None or f"hang-{method.rpartition('/')[2]}" in self.flags:
                continue
            if method == "server/discover" and "silent-discover" in self.flags:
                continue
            params = message.get("params") or {}
            if method == "tools/call" and self.special(
                params["name"], params.get("arguments") or {}, ident, params.get("_meta")
            ):
                continue
            threading.Thread(target=self.respond, args=(method, params, ident), daemon=True).start()
        while "ignore-eof" in self.flags:
            time.sleep(1)

    def prepare(self) -> None:
        if "exit-at-start" in self.flags:
            sys.stderr.write("nothing to serve\n")
            sys.exit(3)
        if "exit-once" in self.flags and not Path(self.flags["exit-once"]).exists():
            Path(self.flags["exit-once"]).touch()
            sys.exit(3)
        if "ignore-term" in self.flags:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "grandchild" in self.flags:
            code = (
                "import os,time,sys; open(sys.argv[1],'w').write(str(os.getpid())); time.sleep(600)"
            )
            subprocess.Popen(
                [sys.executable, "-S", "-c", code, self.flags["grandchild"]], start_new_session=True
            )
        time.sleep(float(self.flags.get("slow-start", 0)))
        if "noise" in self.flags:
            self.write(b'Server ready!\n\n{"half": \n[1,2]\n\xff\xfe\n')
            sys.stderr.write("e" * 4_000_000)
            sys.stderr.flush()

    def respond(self, method: str, params: dict[str, Any], ident: Any) -> None:
        try:
            self.send({"id": ident, "result": self.faults.answer(method, params)})
        except KeyError:
            self.send({"id": ident, "error": {"code": -32601, "message": f"no method {method}"}})
        except ValueError as error:
            self.send({"id": ident, "error": {"code": -32602, "message": str(error)}})

    def special(self, name: str, arguments: dict[str, Any], ident: Any, meta: Any) -> bool:
        """What only a stream of bytes can get wrong. True when that was all of the answer."""
        if name == "crash":
            os._exit(9)
        if name == "fork":
            self.send({"id": ident, "result": text(str(fork_until_refused()))})
            return True
        if name == "huge_line":
            self.write(
                b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % ident
            )
            chunk = b"x" * 1_000_000
            try:
                for _ in range(arguments["megabytes"]):
                    self.write(chunk)
            except BrokenPipeError:
                os._exit(1)
            return True
        if name == "deep":
            self.write(
                b'{"jsonrpc":"2.0","id":%d,"result":%s}\n'
                % (ident, b"[" * 100_000 + b"]" * 100_000)
            )
            return True
        if name == "bad_utf8":
            line = (
                json.dumps({"jsonrpc": "2.0", "id": ident, "result": text("caf#")})
                .encode()
                .replace(b"#", b"\xff")
            )
            self.write(line + b"\n")
            return True
        if name == "answers":  # `fields` in place of a result
            self.send({"id": ident, **arguments["fields"]})
            return True
        if name == "raw":  # a line, with the number of the call in it
            self.write(arguments["line"].replace("#", str(ident)).encode() + b"\n")
            return True
        if name == "refuses":
            self.send(
                {"id": ident, "error": {"code": -32000, "message": "no" * arguments["count"]}}
            )
            return True
        if name == "surrogate":
            self.write(
                b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\ud800!"}]}}\n'
                % ident
            )
            return True
        if name == "flood":
            for i in range(arguments["count"]):
                self.send(
                    {
                        "method": "notifications/message",
                        "params": {"level": "info", "data": f"line {i}"},
                    }
                )
        if name == "garbage":
            for i in range(arguments["count"]):
                self.write(b'{"half": %d, \xff\n' % i)
        if name == "wrong_id":
            for other in (ident + 1_000_000, f"{ident}x", None, -1):
                self.send({"id": other, "result": text("for somebody else")})
            return True
        if name == "pause":  # reads no further until the file is there
            while not Path(arguments["file"]).exists():
                time.sleep(0.01)
        if name == "heard":
            self.send({"id": ident, "result": text(json.dumps(self.cancelled))})
            return True
        if name == "tells":
            for message in told({"arguments": arguments, "_meta": meta}):
                self.send(message)
        if name == "held":
            self.held = ident
            return True
        if name == "release":
            self.send({"id": self.held, "result": text("late")})
        if name == "duplicate":
            for i in range(3):
                self.send({"id": ident, "result": text(f"answer {i}")})
            self.send({"id": 999_999, "result": text("nobody asked")})
            return True
        if name == "change":
            if "fields" in arguments:
                self.faults.overlay[arguments["name"]] = arguments["fields"]
            else:
                self.faults.extra_tools.append(tool(arguments["name"]))
            self.send({"method": "notifications/tools/list_changed"})
        if name == "asks":
            self.send(
                {
                    "id": 1,
                    "method": "sampling/createMessage",
                    "params": {"messages": [], "maxTokens": 1},
                }
            )
        return False


def fork_until_refused() -> int:
    """As many processes as may be, which stay; at most 10,000."""
    for count in range(10_000):
        try:
            if os.fork() == 0:
                while True:
                    signal.pause()
        except OSError:
            return count
    return 10_000


# --- Streamable HTTP ------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: HttpServer

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        self.server.seen.append(("GET", self.path, dict(self.headers)))
        if not self.server.legacy:
            return self.answer(405, b"", "text/plain")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /post\n\n")
        self.wfile.flush()
        self.server.stream = self.wfile
        self.server.ending.wait()
        return None

    def do_DELETE(self) -> None:
        self.server.sessions.discard(self.headers.get("mcp-session-id", ""))
        self.answer(200, b"", "text/plain")

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        message = json.loads(body)
        server.seen.append((message.get("method"), self.path, dict(self.headers)))
        method, ident = message.get("method"), message.get("id")
        if method in server.statuses:
            status = server.statuses[method]
            asks = {"retry-after": server.retry_after} if server.retry_after else None
            return self.answer(status, b"<html>no</html>", "text/html", asks)
        if method in server.bodies:
            kind, said = server.bodies[method]
            return self.answer(200, said, kind)
        if server.redirect_to:
            self.send_response(307)
            self.send_header("location", server.redirect_to + self.path)
            self.send_header("content-length", "0")
            return self.end_headers()
        if method == "notifications/cancelled":
            server.faults.cancelled.append(message["params"]["requestId"])
        if ident is None or method is None:
            return self.answer(202, b"", "application/json")
        session = self.headers.get("mcp-session-id")
        if (
            server.stateful
            and method not in ("initialize", "server/discover")
            and session not in server.sessions
        ):
            status, body = server.of_no_session
            return self.answer(status, body.replace(b"ID", str(ident).encode()))
        self.respond(method, message.get("params") or {}, ident)
        return None

    def respond(self, method: str, params: dict[str, Any], ident: Any) -> None:
        server = self.server
        name = params.get("name") if method == "tools/call" else ""
        if name == "drop":
            self.close_connection = True
            self.connection.close()
            return None
        if name == "half":
            return self.half()
        if name == "bomb":
            return self.bomb(params["arguments"]["megabytes"])
        extra = {}
        try:
            reply: dict[str, Any] = {
                "jsonrpc": "2.0",
                "id": ident,
                "result": server.faults.answer(method, params),
            }
        except KeyError:
            reply = {
                "jsonrpc": "2.0",
                "id": ident,
                "error": {"code": -32601, "message": "no such method"},
            }
        except ValueError as error:
            reply = {
                "jsonrpc": "2.0",
                "id": ident,
                "error": {"code": -32602, "message": str(error)},
            }
        if method == "initialize" and server.stateful:
            extra["mcp-session-id"] = f"s{len(server.seen)}"
            server.sessions.add(extra["mcp-session-id"])
        data = json.dumps(reply).encode()
        sent = [json.dumps(message).encode() for message in told(params)] if name == "tells" else []
        stream = b"".join(b"event: message\ndata: " + one + b"\n\n" for one in (*sent, data))
        if server.legacy:
            self.answer(202, b"", "application/json")
            with server.faults.lock:
                server.stream.write(stream)
                server.stream.flush()
            return None
        if name == "zipped":
            return self.answer(
                200, gzip.compress(data), extra={**extra, "content-encoding": "gzip"}
            )
        if server.events or sent:
            return self.answer(200, stream, "text/event-stream", extra)
        return self.answer(200, data, extra=extra)

    def half(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b'{"jsonrpc": "2.0", ')
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()

    def bomb(self, megabytes: int) -> None:
        self.answer(200, squeezed(megabytes), extra={"content-encoding": "gzip"})

    def answer(
        self,
        status: int,
        body: bytes,
        kind: str = "application/json",
        extra: dict[str, str] | None = None,
    ) -> None:
        try:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            for name, value in (extra or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


@cache
def squeezed(megabytes: int) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(squeeze.compress(b" " * 1_000_000) for _ in range(megabytes)) + squeeze.flush()


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, faults: Faults, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.faults = faults
        self.stateful = False
        self.of_no_session = (
            404,
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"gone"}}',
        )
        self.events = False
        self.legacy = False
        """Whether it speaks the deprecated SSE transport; then `stream` is the client's, until
        `ending`.
        """
        self.stream: Any = None
        self.ending = threading.Event()
        self.redirect_to = ""
        self.statuses: dict[str, int] = {}
        self.retry_after = ""
        """What an answer of `statuses` says of when to come back."""
        self.bodies: dict[str, tuple[str, bytes]] = {}
        self.sessions: set[str] = set()
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.connections: list[Any] = []

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def end(self) -> None:
        """As when the process goes: its connections go with it."""
        self.ending.set()
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what this server is for."""


@contextmanager
def serving(faults: Faults | None = None, port: int = 0) -> Iterator[HttpServer]:
    server = HttpServer(faults or Faults(), port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join()


if __name__ == "__main__":
    Stdio(dict((argument.lstrip("-") + "=").split("=")[:2] for argument in sys.argv[1:])).run()
