"""What a model's server can do, beyond what `bundle_router.testing.upstream` plays."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from bundle_router.testing.upstream import BOUND_S, Act, Exchange, choice, completion


def _send_slowly(exchange: Exchange, data: bytes) -> None:
    """Send a piece, and wait a moment. Raises ConnectionError where the client leaves meanwhile."""
    exchange.send(data)
    try:
        if not exchange.socket.recv(1):
            raise ConnectionError("the client closed the connection")
    except TimeoutError:
        pass


def drip() -> Act:
    """Return a good answer, one byte at a time, so slowly that no read ever times out."""

    def act(exchange: Exchange) -> None:
        data = completion(choice("a.one"))
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:"
            f" {len(data)}\r\n\r\n"
        )
        exchange.send(head.encode())
        exchange.socket.settimeout(0.05)
        for byte in data * 2:
            _send_slowly(exchange, bytes([byte]))

    return act


def slow_headers() -> Act:
    """Header lines without end, one by one."""

    def act(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\n")
        exchange.socket.settimeout(0.05)
        for number in range(int(BOUND_S / 0.05)):
            _send_slowly(exchange, f"X-Slow-{number}: yes\r\n".encode())

    return act


def huge(megabytes: int = 30, *, declared: bool = False) -> Act:
    """Return an answer of many megabytes, in chunks or with its length declared."""

    def act(exchange: Exchange) -> None:
        size = megabytes << 20
        chunk = b"x" * 65_536
        length = f"Content-Length: {size}" if declared else "Transfer-Encoding: chunked"
        exchange.send(
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{length}\r\n\r\n".encode()
        )
        for _ in range(size // len(chunk)):
            exchange.send(chunk if declared else b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if not declared:
            exchange.send(b"0\r\n\r\n")

    return act


def reset() -> Act:
    """Closes the connection with a reset in place of an answer."""

    def act(exchange: Exchange) -> None:
        exchange.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        exchange.socket.close()
        raise ConnectionError("reset by script")

    return act


def cut(after: int = 40) -> Act:
    """Promises a body and closes in the middle of it."""

    def act(exchange: Exchange) -> None:
        data = completion(choice("a.one"))
        exchange.send(
            f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data[:after]
        )
        exchange.socket.shutdown(socket.SHUT_RDWR)
        raise ConnectionError("cut by script")

    return act


def redirect(to: str) -> Act:
    return lambda exchange: exchange.reply(b"", 307, {"Location": to})


def when(released: threading.Event, then: Act) -> Act:
    """Waits until the test releases it."""

    def act(exchange: Exchange) -> None:
        released.wait(BOUND_S)
        then(exchange)

    return act


def calls_tool(arguments: str) -> Act:
    """Return a completion that calls the tool it was offered, with these arguments."""

    def act(exchange: Exchange) -> None:
        name = exchange.request.json["tools"][0]["function"]["name"]
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        exchange.reply(completion(None, finish_reason="tool_calls", tool_calls=[call]))

    return act


def embeds(vector_of: Callable[[str], Sequence[float]], *, lose: int = 0) -> Act:
    """Return a vector for each text that was sent to `/embeddings`, less the last `lose`.

    NaN and infinities go out as bare words, which JSON does not have and servers send.
    """

    def act(exchange: Exchange) -> None:
        texts = exchange.request.json["input"]
        texts = [texts] if isinstance(texts, str) else texts
        rows = [
            {"object": "embedding", "index": index, "embedding": list(vector_of(text))}
            for index, text in enumerate(texts[: len(texts) - lose])
        ]
        usage = {"prompt_tokens": 7 * len(texts), "total_tokens": 7 * len(texts)}
        whole = {"object": "list", "model": "scripted", "data": rows, "usage": usage}
        exchange.reply(json.dumps(whole).encode())

    return act
