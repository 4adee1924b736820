"""What the TCP connections to servers put on the wire, seen by a server of bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Set
from functools import partial
from typing import Any, Self, TypeVar

import pytest

pytest.importorskip("mcp", reason="the tool servers need the 'mcp' extra")

import httpx2
import trustme
from bundle_router.adapters.loop import faster_loop
from bundle_router.adapters.mcp.channels import (
    LARGE_PIECE_BYTES,
    PER_TURN,
    PIECE_BYTES,
    Channel,
    ChannelPool,
    Headers,
)
from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.adapters.mcp.http import TcpPool

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def against(serve: Serve, work: Callable[[httpx2.AsyncClient, str], Awaitable[T]]) -> T:
    served: set[asyncio.Task[None] | None] = set()

    async def serving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def main() -> T:
        async with (
            asyncio.timeout(300),
            await asyncio.start_server(serving, "127.0.0.1", 0) as server,
        ):
            port = server.sockets[0].getsockname()[1]
            async with httpx2.AsyncClient(transport=TcpPool(4), trust_env=False) as client:
                done = await work(client, f"http://127.0.0.1:{port}/mcp")
            await asyncio.gather(*(task for task in served if task is not None))
            return done

    return asyncio.run(main())


def test_a_large_request_arrives_whole() -> None:
    body = bytes(range(256)) * 4_096

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        came = await reader.readexactly(len(body))
        assert f"content-length: {len(body)}".encode() in head.lower()
        writer.write(OK if came == body else b"HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n")

    async def work(client: httpx2.AsyncClient, url: str) -> int:
        async def parts() -> object:
            for at in range(0, len(body), 10_000):
                yield body[at : at + 10_000]

        sized = {"content-length": str(len(body))}
        whole = await client.post(url, content=body)
        streamed = await client.post(url, content=parts(), headers=sized)  # type: ignore[arg-type] # an iterator
        return whole.status_code + streamed.status_code

    assert against(serve, work) == 400


def test_a_server_may_answer_before_it_has_read_everything() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too much\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        await (
            reader.read()
        )  # what is still on its way, so that the answer is not lost with the connection

    async def work(client: httpx2.AsyncClient, url: str) -> int:
        return (await client.post(url, content=b"x" * 60_000)).status_code

    assert against(serve, work) == 413


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        writer.close()
        closed.set()

    async def work(client: httpx2.AsyncClient, url: str) -> None:
        for _ in range(5):
            closed.clear()
            assert (await client.get(url)).text == "ok"
            await closed.wait()

    against(serve, work)


def test_no_more_than_a_piece_is_read_from_a_connection_at_a_time() -> None:
    """With asyncio's own size 50 connections that send 5 MB each take a loop 20 ms a turn."""
    pieces: list[int] = []

    class Counting:
        done = False
        end: Callable[[ServerFault], None]

        def head(self, status: int, headers: Headers) -> None: ...

        def body(self, piece: bytes) -> None:
            pieces.append(len(piece))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4000000\r\n\r\n" + bytes(4_000_000))
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            pool = ChannelPool("127.0.0.1", server.sockets[0].getsockname()[1], None, 1)
            await pool.exchange(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", Counting())
            pool.close()

    asyncio.run(main())
    assert sum(pieces) == 4_000_000
    assert pieces[0] <= PIECE_BYTES
    assert max(pieces) <= LARGE_PIECE_BYTES
    assert len(Channel().get_buffer(256 * 1024)) == PIECE_BYTES


def test_an_unused_connection_is_closed_without_another_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bundle_router.adapters.mcp.channels.KEEP_S", 0.0)

    class Whole:
        done = False
        end: Callable[[ServerFault], None]

        def head(self, status: int, headers: Headers) -> None: ...

        def body(self, piece: bytes) -> None: ...

    async def main() -> bytes:
        rest: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            rest.set_result(await reader.read())
            writer.close()

        async with (
            asyncio.timeout(300),
            await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        ):
            pool = ChannelPool("127.0.0.1", server.sockets[0].getsockname()[1], None, 1)
            await pool.exchange(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", Whole())
            return await rest

    assert asyncio.run(main()) == b""


def test_a_request_that_is_cancelled_leaves_no_reference_cycle() -> None:
    """In one, its buffer of 64 KiB and the tasks of its connecting would stay until a full
    collection.
    """

    class Unread:
        done = False
        end: Callable[[ServerFault], None]

        def head(self, status: int, headers: Headers) -> None: ...

        def body(self, piece: bytes) -> None: ...

    async def main() -> None:
        arrived, gone = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            arrived.set()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            gone.set()

        async with (
            asyncio.timeout(300),
            await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        ):
            pool = ChannelPool("127.0.0.1", server.sockets[0].getsockname()[1], None, 1)
            request = asyncio.create_task(
                pool.exchange(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", Unread())
            )
            await arrived.wait()
            request.cancel()
            await asyncio.wait([request])
            await gone.wait()
            pool.close()

    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        asyncio.run(main())
        gc.collect()
        left = [type(one).__name__ for one in gc.garbage if isinstance(one, Channel | asyncio.Task)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not left


# --- many large bodies at once --------------------------------------------------------------------

Make = Callable[[], asyncio.AbstractEventLoop]
LARGE = b"x" * (320 * 1024)
LOOPS = [asyncio.new_event_loop, *filter(None, (faster_loop(),))]


def body_of(data: bytes, length: int | None = None) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(data) if length is None else length)
        + data
    )


class Reading:
    """A reader that notes the pieces of its body."""

    done = False
    end: Callable[[ServerFault], None]

    def __init__(self, note: Callable[[], object]) -> None:
        self.size = 0
        self.letters: set[int] = set()
        self._note = note

    def head(self, status: int, headers: Headers) -> None: ...

    def body(self, piece: bytes) -> None:
        self.letters |= {*piece}
        self._note()
        self.size += len(piece)


class Sent:
    """Requests to a server that has sent all it will before any of it is read.

    `turn`: of the loop, from then on.
    """

    def __init__(
        self, answers: list[bytes], authority: trustme.CA | None, closed: Set[int] = frozenset()
    ) -> None:
        self.turn = 0
        self.gone = asyncio.Event()
        self._answers = answers
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._stopped, self._sent = threading.Event(), threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=len(answers))
        self._context = trusting = None
        if authority is not None:
            self._context, trusting = (
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
                ssl.create_default_context(),
            )
            authority.issue_cert("127.0.0.1").configure_cert(self._context)
            authority.configure_trust(trusting)
        self.pool = ChannelPool(
            "127.0.0.1", self._listening.getsockname()[1], trusting, len(answers)
        )
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with self._listening, contextlib.ExitStack() as stack:
            connections: dict[int, socket.socket] = {}
            while len(connections) < len(self._answers):
                connection = self._listening.accept()[0]
                connection.settimeout(60)
                if self._context is not None:
                    connection = self._context.wrap_socket(connection, server_side=True)
                stack.enter_context(connection)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                connections[int(connection.recv(1_000).split()[1])] = connection
            self._loop.call_soon_threadsafe(self._stop)
            self._stopped.wait(60)
            for number, connection in connections.items():
                connection.sendall(self._answers[number])
            for number in self._closed:
                connections.pop(number).close()
            self._sent.set()
            for connection in connections.values():
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    assert connection.recv(1) == b""
        self._loop.call_soon_threadsafe(self.gone.set)

    def _stop(self) -> None:
        self._stopped.set()
        self._sent.wait(60)
        self._count()

    def _count(self) -> None:
        self.turn += 1
        self._loop.call_soon(self._count)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.pool.close()
        async with asyncio.timeout(60):
            await self.gone.wait()
        self._thread.join()

    def ask(self, number: int, reading: Reading) -> asyncio.Task[None]:
        request = b"GET %d HTTP/1.1\r\nhost: x\r\n\r\n" % number
        return asyncio.create_task(self.pool.exchange(request, reading))


def on_loop(make: Make, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    ("make", "authority"), [*((make, None) for make in LOOPS), (LOOPS[0], trustme.CA())]
)
def test_a_turn_of_the_loop_reads_on_in_few_large_bodies(
    make: Make, authority: trustme.CA | None
) -> None:
    """Each read lets a busy thread have the interpreter; small answers and silent servers are no
    reason to wait.
    """

    async def main() -> None:
        large, small, silent = range(20), 20, 21
        further: Counter[int] = Counter()
        ended: list[int] = []
        answers = [body_of(bytes([number]) * len(LARGE)) for number in large]
        answers += [body_of(b"ok"), body_of(LARGE, len(LARGE) + 1)]

        def count(number: int) -> None:
            further[sent.turn] += readings[number].size >= PIECE_BYTES - 1_000  # less its head

        readings = {number: Reading(partial(count, number)) for number in range(len(answers))}
        async with Sent(answers, authority) as sent:
            tasks = {}
            for number in (silent, *large, small):
                tasks[number] = sent.ask(number, readings[number])
                tasks[number].add_done_callback(
                    partial(lambda one, _task: ended.append(one), number)
                )
            async with asyncio.timeout(60):
                await asyncio.gather(*(tasks[number] for number in (*large, small)))
            assert not tasks[silent].done()
            tasks[silent].cancel()
            await asyncio.wait([tasks[silent]])
        assert further.total() >= len(large)
        assert max(further.values()) <= PER_TURN
        assert ended[0] == small
        assert [readings[number].letters for number in large] == [{number} for number in large]

    on_loop(make, main)


@pytest.mark.parametrize("make", LOOPS)
@pytest.mark.parametrize("authority", [None, trustme.CA()], ids=["plain", "tls"])
def test_a_connection_that_ends_while_its_body_waits_is_lost(
    make: Make, authority: trustme.CA | None
) -> None:
    async def main() -> None:
        cut = range(4)
        async with Sent([body_of(LARGE, 2 * len(LARGE))] * len(cut), authority, set(cut)) as sent:
            readings = [Reading(lambda: None) for _ in cut]
            async with asyncio.timeout(60):
                ends = await asyncio.gather(*map(sent.ask, cut, readings), return_exceptions=True)
        assert [(end.kind, end.sent) for end in ends if isinstance(end, ServerFault)] == [
            ("connection_lost", True)
        ] * 4
        assert [reading.size for reading in readings] == [len(LARGE)] * 4

    on_loop(make, main)


@pytest.mark.parametrize("make", LOOPS)
@pytest.mark.parametrize("authority", [None, trustme.CA()], ids=["plain", "tls"])
def test_a_whole_body_is_read_although_its_connection_has_ended(
    make: Make, authority: trustme.CA | None
) -> None:
    async def main() -> None:
        whole = range(4)
        async with Sent([body_of(LARGE)] * len(whole), authority, set(whole)) as sent:
            readings = [Reading(lambda: None) for _ in whole]
            async with asyncio.timeout(60):
                await asyncio.gather(*map(sent.ask, whole, readings))
        assert [reading.size for reading in readings] == [len(LARGE)] * 4

    on_loop(make, main)


@pytest.mark.parametrize("make", LOOPS)
@pytest.mark.parametrize("authority", [None, trustme.CA()], ids=["plain", "tls"])
def test_a_request_that_is_cancelled_while_its_body_waits_closes_its_connection(
    make: Make, authority: trustme.CA | None
) -> None:
    async def main() -> None:
        left, kept = range(4), range(4, 8)
        async with Sent([body_of(LARGE)] * 8, authority) as sent:
            tasks: dict[int, asyncio.Task[None]] = {}
            readings = {
                number: Reading(partial(lambda one: tasks[one].cancel(), number)) for number in left
            }
            readings |= {number: Reading(lambda: None) for number in kept}
            tasks |= {number: sent.ask(number, reading) for number, reading in readings.items()}
            async with asyncio.timeout(60):
                await asyncio.wait(tasks.values())
        assert [task.cancelled() for task in tasks.values()] == [True] * 4 + [False] * 4
        assert all(
            reading.size < len(LARGE) for number, reading in readings.items() if number in left
        )
        assert all(readings[number].size == len(LARGE) for number in kept)

    on_loop(make, main)
