"""The pure part of talking to servers: queues, leases, lifetimes, lines and blocks."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from bundle_router.adapters.mcp.exchange import next_event
from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.adapters.mcp.lists import RETRY_S, Freshness
from bundle_router.adapters.mcp.wires import resolve_references
from bundle_router.core.servers.reader import (
    LARGE,
    BodyFrame,
    Event,
    EventFrames,
    FrameTooLarge,
    Framing,
    LineFrames,
    RpcResult,
    ServerReader,
)
from bundle_router.core.servers.transport.blocks import blocks_of, take_out_nan
from bundle_router.core.servers.transport.bounds import Bounds, bounds_for, lifetime_s
from bundle_router.core.servers.transport.concurrency import Gate, HeldConnection, Leases
from bundle_router.core.servers.transport.list_pages import Pages
from bundle_router.core.values import Data, Media, Text
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.profiles import examples

S = 10**9

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


# --- lines ----------------------------------------------------------------------------------------


def lines_of(stream: bytes, size: int) -> list[bytes]:
    framing = LineFrames(1_000)
    for start in range(0, len(stream), size):
        framing.receive(stream[start : start + size])
    return [bytes(content) for _, content in framing.frames]


def events_of(stream: bytes, size: int = 1_000_000) -> list[tuple[bytes, bytes]]:
    framing = EventFrames(1_000_000)
    for start in range(0, len(stream), size):
        framing.receive(stream[start : start + size])
    return [(kind, bytes(content)) for kind, content in framing.frames]


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7))
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts: list[bytes], size: int) -> None:
    stream = b"".join(parts)
    whole = stream.split(b"\n")[:-1]
    assert lines_of(stream, size) == [line.strip(b"\r") for line in whole if line.strip(b"\r")]


@given(
    st.lists(
        st.sampled_from(
            [
                *(b"data: a", b"data:", b"data", b"id: 1", b": c", b"x", b"event: e"),
                *(b"\n", b"\n\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"\xef"),
            ]
        )
    ),
    st.integers(1, 7),
)
def test_events_do_not_depend_on_how_the_bytes_arrive(parts: list[bytes], size: int) -> None:
    stream = b"".join(parts)
    assert events_of(stream, size) == events_of(stream)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b": hello\n\nid: 1\r\ndata: {\ndata:}\nnothing\n\ndata: later", [(b"message", b"{\n}")]),
        (b"event: ping\ndata: 1\n\ndata: 2\n\n", [(b"ping", b"1"), (b"message", b"2")]),
        (b"event: ping\n\ndata: 2\n\n", [(b"message", b"2")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"message", b"a")]),
        (b"data: \xef\xbb\xbfa\n\n", [(b"message", b"\xef\xbb\xbfa")]),
        (b"data\ndata: a\n\n", [(b"message", b"\na")]),
        (b"data: a\r\rdata:b\r\r", [(b"message", b"a"), (b"message", b"b")]),
        (b"database: a\n\ndata: b\n\n", [(b"message", b"b")]),
    ],
)
def test_an_events_data_is_that_of_its_lines_and_comments_are_none(
    stream: bytes, expected: list[tuple[bytes, bytes]]
) -> None:
    assert events_of(stream) == expected


@pytest.mark.parametrize(
    ("said", "retry_ms"),
    [
        (b"retry: 0", 100),
        (b"retry:7", 100),
        (b"retry: 5000", 5000),
        (b"retry: -1", None),
        (b"retry: 9999999999", None),
        (b"retry: soon", None),
    ],
)
def test_a_server_that_ends_its_stream_has_it_opened_again_ten_times_a_second_at_most(
    said: bytes, retry_ms: int | None
) -> None:
    """Else it would keep the sessions' loop, and itself, busy for as long as it likes."""
    framing = EventFrames(1_000)
    framing.receive(b"id: 1\n" + said + b"\n\n")
    assert (framing.last_id, framing.retry_ms) == ("1", retry_ms)


def test_many_lines_of_an_event_are_one_value_as_they_arrive_and_blank_lines_are_no_work() -> None:
    """What is read on the sessions' loop holds it up for all servers."""
    steps = 0

    def count(frame: Any, _event: str, _arg: Any) -> Any:
        nonlocal steps
        steps += frame.f_code is EventFrames.receive.__code__
        return count

    framing, before = EventFrames(2_000_000), sys.getallocatedblocks()
    for _ in range(50):
        framing.receive(b"data: [\n" * 8_000)
    assert sys.getallocatedblocks() - before < 10_000, "a line is no object of its own"
    framing.receive(b"\n")
    assert framing.frames.pop()[1] == b"\n".join([b"["] * 400_000)
    sys.settrace(count)
    try:
        framing.receive(b"\n" * 65_536)
        framing.receive(b"\r\n" * 20_000)
    finally:
        sys.settrace(None)
    assert not framing.frames
    assert steps < 1_000


@pytest.mark.parametrize("framing", [LineFrames(10), BodyFrame(10), EventFrames(10)])
def test_a_frame_over_the_cap_is_refused_before_its_end_is_seen(framing: Framing) -> None:
    framing.receive(b"01234567")
    with pytest.raises(FrameTooLarge, match="more than 10 bytes"):
        framing.receive(b"890")


class Watched(ServerReader):
    """A reader that knows which thread read each event."""

    threads: list[int]

    def next_event(self) -> Event:
        self.threads.append(threading.get_ident())
        return super().next_event()


@pytest.mark.parametrize(("size", "elsewhere"), [(1_000, False), (LARGE, True)])
def test_a_large_frame_is_parsed_in_another_thread(size: int, elsewhere: bool) -> None:
    """There it holds up no event loop for longer than its parser keeps the interpreter."""
    reader = Watched(BodyFrame(10_000_000))
    reader.threads = []
    reader.receive_data(b'{"jsonrpc":"2.0","id":1,"result":{"a":"' + b"x" * size + b'"}}')
    reader.receive_end()
    event = asyncio.run(next_event(reader))
    assert isinstance(event, RpcResult)
    assert event.result == {"a": "x" * size}
    assert (reader.threads != [threading.get_ident()]) == elsewhere


# --- lifetimes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "configured", "server_ms", "expected"),
    [
        ("stdio", None, None, 60.0),
        ("streamable-http", None, None, 600.0),
        ("streamable-http", None, 0, 600.0),
        ("streamable-http", None, -5, 600.0),
        ("streamable-http", None, 30_000, 30.0),
        ("streamable-http", None, 10**9, 600.0),
        ("streamable-http", 20.0, 30_000, 20.0),
        ("streamable-http", 0.0, None, 0.0),
        ("stdio", None, 1, 1.0),
    ],
)
def test_a_servers_own_lifetime_only_shortens(
    transport: Any, configured: float | None, server_ms: float | None, expected: float
) -> None:
    assert lifetime_s(transport, configured, server_ms) == expected


def test_a_list_is_fresh_then_stale_and_a_notice_makes_it_stale_at_once() -> None:
    empty = Freshness()
    assert empty.state(0) == "absent"
    listed = empty.after_listing(0, 10.0, 0)
    assert (listed.state(10 * S - 1), listed.state(10 * S)) == ("fresh", "stale")
    assert listed.after_change(S).state(S) == "stale"
    assert empty.after_change(S).state(S) == "absent"


def test_a_list_that_was_being_read_when_the_notice_came_is_stale() -> None:
    reading = Freshness().after_listing(0, 10.0, 0)
    changes_before = reading.changes
    noticed = reading.after_change(S)
    assert noticed.after_listing(2 * S, 10.0, changes_before).state(2 * S) == "stale"
    assert noticed.after_listing(2 * S, 10.0, noticed.changes).state(2 * S) == "fresh"


def test_a_refresh_that_failed_is_not_tried_again_at_once() -> None:
    failed = Freshness().after_listing(0, 1.0, 0).failed(2 * S)
    assert failed.state(2 * S) == "stale"
    assert not failed.may_refresh(2 * S + int(RETRY_S * S) - 1)
    assert failed.may_refresh(2 * S + int(RETRY_S * S))
    assert failed.after_change(3 * S).may_refresh(3 * S)


def test_bounds_follow_from_the_limits_of_the_config() -> None:
    from bundle_router.core.catalog import CallLimits

    bounds = bounds_for(CallLimits(max_concurrent_calls=4, max_result_bytes=1000))
    assert (bounds.per_server, bounds.in_total, bounds.max_message_bytes) == (4, 16, 1000)
    assert bounds.polite_s + bounds.term_s < 5


# --- the queue ------------------------------------------------------------------------------------


class GateMachine(RuleBasedStateMachine):
    """Against a model: who runs and who waits, per server."""

    bounds = Bounds(per_server=3, in_total=4, assured=1, queue_per_server=3, queue_in_total=5)
    servers = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate[int] = Gate(self.bounds)
        self.next = 0
        self.running: dict[int, str] = {}
        self.waiting: dict[int, str] = {}

    def waiters(self, server: str) -> list[int]:
        return [waiter for waiter, of in self.waiting.items() if of == server]

    @rule(server=st.sampled_from(servers))
    def enter(self, server: str) -> None:
        self.next += 1
        verdict = self.gate.enter(server, self.next)
        mine = sum(1 for of in self.running.values() if of == server)
        room = mine < 3 and (len(self.running) < 4 or mine < 1)
        if not self.waiters(server) and room:
            assert verdict == "run"
            self.running[self.next] = server
        elif len(self.waiters(server)) >= 3 or len(self.waiting) >= 5:
            assert verdict == "busy"
        else:
            assert verdict == "wait"
            self.waiting[self.next] = server

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.running)))
        for waiter in self.gate.leave(self.running.pop(who)):
            server = self.waiting.pop(waiter)
            assert all(waiter < other for other in self.waiters(server)), "in order of arrival"
            self.running[waiter] = server

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.gate.cancel(self.waiting.pop(who), who)

    @rule(server=st.sampled_from(servers))
    def withdraw_who_is_not_there(self, server: str) -> None:
        assert not self.gate.cancel(server, -1)

    @invariant()
    def counts_agree(self) -> None:
        assert (self.gate.running, self.gate.waiting) == (len(self.running), len(self.waiting))
        for server in self.servers:
            mine = sum(1 for of in self.running.values() if of == server)
            assert self.gate.count(server) == (mine, len(self.waiters(server)))
            assert mine <= 3
        assert len(self.running) <= 4 + len(self.servers)

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        for server in set(self.waiting.values()):
            mine = sum(1 for of in self.running.values() if of == server)
            assert mine > 0
            assert mine >= 3 or len(self.running) >= 4


TestGate = GateMachine.TestCase
TestGate.settings = examples(60, stateful_step_count=60)


# --- leases ---------------------------------------------------------------------------------------


class LeaseMachine(RuleBasedStateMachine):
    """A connection is closed exactly once, never while it is held, and always when it is doomed and
    let go.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leases: Leases[str] = Leases(idle_s=10, max_open=3)
        self.now = 0
        self.taken: list[HeldConnection[str]] = []
        self.seen: dict[int, HeldConnection[str]] = {}
        self.closed: set[int] = set()

    def close(self, held: HeldConnection[str]) -> None:
        assert held.number not in self.closed, "closed twice"
        assert held not in self.taken, "closed while held"
        self.closed.add(held.number)

    @rule(key=st.sampled_from("abcde"), seconds=st.integers(0, 4))
    def acquire(self, key: str, seconds: int) -> None:
        self.now += seconds * S
        held, new = self.leases.acquire(key, self.now)
        assert new == (held.number not in self.seen)
        assert held.number not in self.closed
        assert not held.doomed
        self.seen[held.number] = held
        self.taken.append(held)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        if self.leases.release(held, self.now):
            self.close(held)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def doom(self, data: st.DataObject) -> None:
        held = self.seen[data.draw(st.sampled_from(sorted(self.seen)))]
        if held.number not in self.closed and self.leases.retire(held):
            self.close(held)

    @rule(key=st.sampled_from("abcde"))
    def doom_key(self, key: str) -> None:
        for held in self.leases.retire_where(lambda other: other == key):
            self.close(held)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), key=st.sampled_from("abcde"))
    def move(self, data: st.DataObject, key: str) -> None:
        self.leases.move(self.taken[data.draw(st.integers(0, len(self.taken) - 1))], key)

    @rule(seconds=st.integers(0, 30))
    def idle(self, seconds: int) -> None:
        self.now += seconds * S
        for held in self.leases.idle(self.now):
            self.close(held)
        assert sum(1 for held in self.leases.all() if not held.leases) <= 3
        assert all(held.leases or self.now - held.used_ns < 10 * S for held in self.leases.all())

    @invariant()
    def every_one_is_kept_or_closed(self) -> None:
        kept = {held.number for held in self.leases.all()}
        assert kept == set(self.seen) - self.closed
        assert len(self.leases) == len(kept)
        current = [held.key for held in self.leases.all() if not held.doomed]
        assert len(current) == len(set(current))


TestLeases = LeaseMachine.TestCase
TestLeases.settings = examples(40, stateful_step_count=100)


# --- results and definitions ----------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(["content", "structuredContent", "isError", "x"]), JSON))
def test_no_result_can_raise(result: Mapping[str, Any]) -> None:
    assert all(isinstance(block, Text | Data | Media) for block in blocks_of(result, 10))


KINDS = st.sampled_from(["text", "image", "audio", "resource", "resource_link", "poem"])


@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": KINDS}, optional=dict.fromkeys(("text", "data", "mimeType", "resource"), JSON)
        )
    )
)
def test_no_block_can_raise_and_none_is_lost(content: list[dict[str, Any]]) -> None:
    assert len(blocks_of({"content": content}, 1_000)) >= len(content)


IMAGES = [{"type": "image", "data": "AAEC"}]


@pytest.mark.parametrize(
    ("result", "blocks"),
    [
        ({"content": []}, ()),
        ({"content": [{"type": "text", "text": ""}]}, (Text(""),)),
        (
            {"content": [{"type": "image", "data": "AAEC", "mimeType": "image/png"}]},
            (Media(b"\0\1\2", "image/png"),),
        ),
        ({"content": [{"type": "image", "data": "AA\nEC"}]}, (Media(b"\0\1\2"),)),
        ({"content": [{"type": "image", "data": "_-8"}]}, (Media(b"\xff\xef"),)),
        (
            {"content": [{"type": "image"}]},
            (Text("[image block: empty, the server sent no data]"),),
        ),
        (
            {
                "content": [
                    {"type": "text", "text": "a", "annotations": {"audience": ["user"]}},
                    {"type": "text", "text": "b", "annotations": {"audience": ["assistant"]}},
                    {**IMAGES[0], "annotations": {"audience": ["user"]}, "_meta": {"own": 1}},
                ]
            },
            (Text("a"), Text("b"), Media(b"\0\1\2")),
        ),
        ({"content": [{"type": "text", "text": 5}]}, (Data({"type": "text", "text": 5}),)),
        ({"content": "all of it"}, (Data("all of it"),)),
        ({"toolResult": 7, "_meta": {}}, (Data({"toolResult": 7}),)),
        ({"structuredContent": [1]}, (Data([1]),)),
        ({"content": IMAGES, "structuredContent": {"content": IMAGES}}, (Media(b"\0\1\2"),)),
        (
            {"content": IMAGES, "structuredContent": {"content": IMAGES, "n": 1}},
            (Media(b"\0\1\2"), Data({"content": IMAGES, "n": 1})),
        ),
        ({"content": [], "structuredContent": {"content": []}}, (Data({"content": []}),)),
        (
            {
                "content": [
                    {
                        "type": "resource",
                        "resource": {"uri": "x:1", "text": "a", "mimeType": "text/plain"},
                    }
                ]
            },
            (Text("a", "x:1", "text/plain"),),
        ),
        (
            {"content": [{"type": "text", "text": str(i)} for i in range(4)]},
            (Text("0"), Text("1"), Text("2"), Text("[1 more blocks were dropped: 3 are taken]")),
        ),
    ],
)
def test_blocks_of_a_result(result: dict[str, Any], blocks: tuple[Any, ...]) -> None:
    assert blocks_of(result, 3) == blocks


NOTHING, INFINITE = float("nan"), float("-inf")


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_what_is_no_number_becomes_null_wherever_it_is(value: dict[str, Any]) -> None:
    held = {"a": [value, NOTHING, {"b": INFINITE}], "c": NOTHING, "d": [[value]]}
    assert take_out_nan(held)
    assert held == {"a": [value, None, {"b": None}], "c": None, "d": [[value]]}


@pytest.mark.parametrize(
    ("value", "is_small"),
    [
        ({"a": ["x" * 400]}, True),
        ({"a": ["x" * 500]}, False),
        ({"x" * 500: 1}, False),
        ({"a": [{"b": 1}] * 20}, False),
        ({"a": {"b": {"c": [1] * 40}}}, False),
        ({"a": [1] * 20, "b": {"c": "x" * 40}}, True),
    ],
)
def test_looking_for_what_is_no_number_stops_in_a_large_result(
    value: dict[str, Any], is_small: bool
) -> None:
    assert take_out_nan(value, 500) is is_small


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"tools": JSON, "nextCursor": JSON, "ttlMs": JSON}),
        max_size=5,
    )
)
def test_no_page_can_raise_and_what_is_admitted_can_be_called(found: list[dict[str, Any]]) -> None:
    pages = Pages(Bounds())
    for page in found:
        cursor = pages.add(page)
        assert cursor is None or isinstance(cursor, str)
    for name, tool in pages.tools.items():
        assert name
        assert isinstance(tool["inputSchema"], Mapping)
        assert json.dumps(tool)


def test_references_are_replaced_by_values_that_are_set() -> None:
    environ = {"A": "1", "B": "${A}", "EMPTY": ""}
    assert resolve_references([("x", "Bearer ${A}"), ("y", "${B}-${A}")], environ) == {
        "x": "Bearer 1",
        "y": "${A}-1",
    }
    for missing in ("${EMPTY}", "${NOPE}"):
        with pytest.raises(ServerFault, match="is not set"):
            resolve_references([("x", missing)], environ)
