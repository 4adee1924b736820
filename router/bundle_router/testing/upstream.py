"""An OpenAI-compatible server on the loopback with scripted answers and faults, to test an engine
without a model.

    from bundle_router.testing.upstream import ScriptedServer, choice, hang, says, status

    acts = [says(choice("repo.readonly")), status(429, {"Retry-After": "7"}), hang()]
    with ScriptedServer(acts) as server:
        ...  # [model] names = ["openai/scripted"], base_url = server.base_url
        assert len(server.requests) == 2

The script's acts are played in order, and the last one is repeated. The server itself counts
requests and closed connections, so that a test need not rely on the client. Standard library only,
over real HTTP.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

BOUND_S: Final = 30.0
"""Maximum seconds of any act, whatever the client does."""


@dataclass(frozen=True)
class ReceivedRequest:
    """One received request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.body)
        return loaded

    def message(self, role: str) -> str:
        """Return the content of the first message of a role."""
        return next(str(m["content"]) for m in self.json["messages"] if m["role"] == role)


@dataclass
class Exchange:
    """One request in progress: the socket to answer on, and its server."""

    socket: socket.socket
    server: ScriptedServer
    request: ReceivedRequest

    def send(self, data: bytes) -> None:
        """Send and count the bytes, or note that the client has disconnected."""
        self.socket.sendall(data)
        self.server.bytes_sent += len(data)

    def reply(self, body: bytes, code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        lines = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.send(f"HTTP/1.1 {code} Scripted\r\n{head}\r\n".encode() + body)

    def wait_for_close(self) -> None:
        """Wait until the client closes its end, and set the server's `gone`."""
        while self.socket.recv(4096):
            pass
        raise ConnectionError("the client closed the connection")


Act = Callable[[Exchange], None]


@dataclass
class ScriptedServer:
    """Listens on 127.0.0.1 inside its `with` block.

    A `key`, if set, must be in the Authorization header.
    """

    script: Sequence[Act]
    requests: list[ReceivedRequest] = field(default_factory=list)
    bytes_sent: int = 0
    asked: threading.Event = field(default_factory=threading.Event)
    """Set when the first request has arrived."""
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when a client closed a connection in the middle of an act."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    @property
    def connections(self) -> int:
        """Number of open connections."""
        with self._lock:
            return len(self._open)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the client may have disconnected
                    connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(BOUND_S)
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (request := _read(connection)) is not None:
                with self._lock:
                    act = self.script[min(len(self.requests), len(self.script) - 1)]
                    self.requests.append(request)
                self.asked.set()
                try:
                    act(Exchange(connection, self, request))
                except OSError:
                    self.gone.set()
                    return
        except OSError:
            return
        finally:
            with self._lock:
                self._open.discard(connection)
                connection.close()


def _read(connection: socket.socket) -> ReceivedRequest | None:
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(65_536)
        if not received:
            return None
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    while len(body) < int(headers.get("content-length", "0")):
        received = connection.recv(65_536)
        if not received:
            return None
        body += received
    return ReceivedRequest(first.split(" ")[1], headers, body)


# --- what a model says ----------------------------------------------------------------------------


def choice(
    *ids: str,
    need: str = "required",
    rationale: str = "it fits",
    sure: bool = True,
    missing: str = "",
) -> str:
    """Return an answer in the requested form, as text."""
    picks = [{"id": id_, "need": need} for id_ in ids]
    answer = {"rationale": rationale, "picks": picks, "sure": sure, "missing": missing}
    return json.dumps(answer)


def completion(content: str | None, *, finish_reason: str = "stop", **message: Any) -> bytes:
    """Return the body of a chat completion."""
    document = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": content, **message},
            }
        ],
        "usage": {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220},
    }
    return json.dumps(document).encode()


# --- acts -----------------------------------------------------------------------------------------


def says(content: str | None, **fields: Any) -> Act:
    """Return a completion with this content."""
    return lambda exchange: exchange.reply(completion(content, **fields))


def status(
    code: int, headers: Mapping[str, str] | None = None, message: str = "scripted failure"
) -> Act:
    """Return an error in the form of the large providers."""
    body = json.dumps({"error": {"message": message, "type": "scripted", "code": None}}).encode()
    return lambda exchange: exchange.reply(body, code, headers)


def body(data: bytes, content_type: str = "application/json", **headers: str) -> Act:
    """Return status 200 with these bytes."""
    return lambda exchange: exchange.reply(data, 200, {"Content-Type": content_type, **headers})


def hang() -> Act:
    """Read the request and do not answer."""
    return lambda exchange: exchange.wait_for_close()
