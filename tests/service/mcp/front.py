"""A front for clients that can't send a token: it adds one to each request, and is otherwise a
wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def front(port: int, token: str) -> AsyncIterator[int]:
    """Listens on a free port of 127.0.0.1 (given) for what is meant for another.

    A Host or an Origin that names the front's own port names the other's then; anything else in
    them stays, for the other to judge.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await _carry(reader, writer, (port, own, token))
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    own = server.sockets[0].getsockname()[1]
    try:
        yield own
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, between: tuple[int, int, str]
) -> None:
    """One request and its answer; the connection ends with it."""
    port, own, token = between
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
    kept = [
        line for line in lines if not line.lower().startswith((b"connection:", b"authorization:"))
    ]
    for at, line in enumerate(kept):
        if line.lower().startswith((b"host:", b"origin:")):
            kept[at] = line.replace(b":%d" % own, b":%d" % port)
    length = next(
        (int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:")),
        0,
    )
    head = b"\r\n".join(
        [first, *kept, b"Connection: close", f"Authorization: Bearer {token}".encode(), b"", b""]
    )
    there, back = await asyncio.open_connection("127.0.0.1", port)
    try:
        back.write(head + await reader.readexactly(length))
        await back.drain()
        gone = asyncio.create_task(reader.read(1))
        while True:
            piece = asyncio.create_task(there.read(65_536))
            await asyncio.wait((piece, gone), return_when=asyncio.FIRST_COMPLETED)
            if not piece.done():  # the client went away, so the other is to notice
                piece.cancel()
                break
            if not (data := piece.result()):
                break
            writer.write(data)
            await writer.drain()
        gone.cancel()
    finally:
        back.close()
