"""How requests begin and answers leave: those of a crowd in turns; what is written together,
together. A transport that notes what it is given stands for the socket, since one in the same
process can't tell two packets from one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the endpoint needs the 'mcp' extra")

from bundle_router.adapters.http_listener import HELD_BYTES, CoalescingTransport
from bundle_router.service.keys import Caller
from bundle_router.service.mcp.mount import TOGETHER, McpMount

JSON = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]


class Noting(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.noted: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.noted.append(bytes(data))

    def is_closing(self) -> bool:
        return b"closed" in self.noted

    def close(self) -> None:
        self.noted.append(b"closed")


def test_what_is_written_in_one_turn_of_the_loop_leaves_in_one_piece_and_in_order() -> None:
    async def main() -> list[bytes]:
        noting = Noting()
        merged = CoalescingTransport(noting, asyncio.get_running_loop())
        for turn in (b"ab", b"c", b""):
            for byte in turn:
                merged.write(bytes([byte]))
            assert turn[:1] not in noting.noted
            await asyncio.sleep(0)
        return noting.noted

    assert asyncio.run(main()) == [b"ab", b"c"]


def test_what_is_held_leaves_before_the_connection_is_closed_and_once() -> None:
    async def main() -> list[bytes]:
        noting = Noting()
        merged = CoalescingTransport(noting, asyncio.get_running_loop())
        merged.write(b"last words")
        assert not merged.is_closing()
        merged.close()
        assert merged.is_closing()
        await asyncio.sleep(0)
        return noting.noted

    assert asyncio.run(main()) == [b"last words", b"closed"]


def test_no_more_is_held_than_a_bounded_piece() -> None:
    async def main() -> list[int]:
        noting = Noting()
        merged = CoalescingTransport(noting, asyncio.get_running_loop())
        for _ in range(5):
            merged.write(b"x" * HELD_BYTES)
        at_once = [len(piece) for piece in noting.noted]
        await asyncio.sleep(0)
        assert sum(len(piece) for piece in noting.noted) == 5 * HELD_BYTES
        return at_once

    assert asyncio.run(main()) == [2 * HELD_BYTES, 2 * HELD_BYTES]


def test_a_crowds_requests_begin_in_turns_and_those_before_them_are_answered_meanwhile() -> None:
    """Where all had begun before the first was answered, they took the memory of all."""

    async def main() -> tuple[Counter[int], int]:
        turn = under_way = most = 0
        done = asyncio.Event()
        begun = Counter[int]()

        async def handle(*_: Any) -> None:
            nonlocal under_way, most
            begun[turn] += 1
            under_way += 1
            most = max(most, under_way)
            for _turn in range(3):  # what a request waits for
                await asyncio.sleep(0)
            under_way -= 1

        async def count_turns() -> None:
            nonlocal turn
            while not done.is_set():
                turn += 1
                await asyncio.sleep(0)

        async def get(*_: Any) -> Any:
            return served

        served = SimpleNamespace(requests=0, streams=0, server=SimpleNamespace(handle=handle))
        mount = McpMount(SimpleNamespace(access=None, get=get))  # type: ignore[arg-type] # all that a request needs of it
        counting = asyncio.create_task(count_turns())
        user = Caller("agent", frozenset({"call"}))
        scope = {"raw_path": b"/mcp/runs/r", "method": "POST", "headers": JSON, "user": user}
        await asyncio.gather(*(mount(dict(scope), None, None) for _ in range(40 * TOGETHER)))
        done.set()
        await counting
        assert served.requests == served.streams == 0
        return begun, most

    begun, most = asyncio.run(main())
    assert begun.total() == 40 * TOGETHER
    assert max(begun.values()) <= 2 * TOGETHER
    assert most < 8 * TOGETHER


@pytest.mark.parametrize(
    "how", [("GET", []), ("POST", [*JSON, (b"mcp-method", b"subscriptions/listen")])]
)
def test_open_event_streams_make_no_request_wait(
    how: tuple[str, list[tuple[bytes, bytes]]],
) -> None:
    async def main() -> bool:
        begun, all_begun, end = set[str](), asyncio.Event(), asyncio.Event()

        async def handle(scope: Any, *_: Any) -> None:
            begun.add(scope["id"])
            if len(begun) == 40 * TOGETHER:
                all_begun.set()
            await end.wait()

        async def get(*_: Any) -> Any:
            return served

        served = SimpleNamespace(requests=0, streams=0, server=SimpleNamespace(handle=handle))
        mount = McpMount(SimpleNamespace(access=None, get=get))  # type: ignore[arg-type] # all that a request needs of it
        scope = {"raw_path": b"/mcp/runs/r", "user": Caller("agent", frozenset({"call"}))}
        stream = {**scope, "method": how[0], "headers": how[1]}
        work = [
            asyncio.create_task(mount({**stream, "id": str(n)}, None, None))
            for n in range(40 * TOGETHER)
        ]
        await all_begun.wait()
        call = {**scope, "method": "POST", "headers": JSON, "id": "call"}
        work.append(asyncio.create_task(mount(call, None, None)))
        await asyncio.sleep(0)
        found = "call" in begun
        end.set()
        await asyncio.gather(*work)
        assert served.requests == served.streams == 0
        return found

    assert asyncio.run(main())
