"""How answers leave: what is written together, together. A transport that notes what it is given stands for the socket,
since one in the same process can't tell two packets from one."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("uvicorn", reason="the endpoint needs the 'mcp' extra")

from bundle_router.serving.listener import HELD_BYTES, CoalescingTransport


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
