"""What the TCP connections to servers put on the wire, seen by a server of bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

pytest.importorskip("mcp", reason="the tool servers need the 'mcp' extra")

import httpx2
from bundle_router.adapters.mcp.channels import PIECE_BYTES, Channel, ChannelPool, Headers
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
        async with asyncio.timeout(300), await asyncio.start_server(serving, "127.0.0.1", 0) as server:
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
        await reader.read()  # what is still on its way, so that the answer is not lost with the connection

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
    assert max(pieces) <= PIECE_BYTES
    assert len(Channel().get_buffer(256 * 1024)) == PIECE_BYTES


def test_an_unused_connection_is_closed_without_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
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

        async with asyncio.timeout(300), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            pool = ChannelPool("127.0.0.1", server.sockets[0].getsockname()[1], None, 1)
            await pool.exchange(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", Whole())
            return await rest

    assert asyncio.run(main()) == b""


def test_a_request_that_is_cancelled_leaves_no_reference_cycle() -> None:
    """In one, its buffer of 64 KiB and the tasks of its connecting would stay until a full collection."""

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

        async with asyncio.timeout(300), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            pool = ChannelPool("127.0.0.1", server.sockets[0].getsockname()[1], None, 1)
            request = asyncio.create_task(pool.exchange(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", Unread()))
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
