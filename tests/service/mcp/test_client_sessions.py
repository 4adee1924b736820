"""What lives longer than one answer: sessions, streams, slow and cancelled requests, listeners."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

from bundle_router.service.mcp.sessions import ClientSession, ClientSessions, Outbox

from tests.service.mcp.exchanges import (
    META,
    PARAMS,
    Clients,
    Exchange,
    ScriptedRun,
    exchanged,
    modern,
    notification,
    request,
)

WAIT: Final = {"name": "wait"}
STREAM: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "connection": "keep-alive",
    "x-accel-buffering": "no",
}
LIST_CHANGED: Final = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
CANCELLED: Final = {"code": -32800, "message": "Request cancelled"}
NOT_FOUND: Final = 404
EVENTS: Final = {"accept": "text/event-stream"}


async def stream_of(
    clients: Clients, session: dict[str, str]
) -> tuple[Exchange, asyncio.Task[None]]:
    """The session's own stream, open."""
    stream, work = clients.begin({**session, **EVENTS}, None, "GET")
    return await stream.until(lambda stream: stream.status), work


# --- sessions -------------------------------------------------------------------------------------


def test_an_ended_session_is_not_found_and_its_client_begins_another() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        ended = await clients.ask(session, None, "DELETE")
        assert (ended.status, ended.body, ended.headers) == (
            200,
            b"",
            {"content-length": "0", **session},
        )
        for method in ("POST", "GET", "DELETE"):
            answer = await clients.ask(session, request("ping"), method)
            assert answer.status == NOT_FOUND
            assert answer.message["error"] == {"code": -32600, "message": "Session not found"}
        another = await clients.open_session()
        assert another != session

    exchanged(work)


def test_the_end_of_a_session_cancels_its_requests_and_ends_its_stream() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        session = await clients.open_session()
        other = await clients.open_session()
        stream, streamed = await stream_of(clients, session)
        waiting, answered = clients.begin(session, request("tools/call", WAIT))
        others, others_answered = clients.begin(other, request("tools/call", WAIT))
        await run.arrived.acquire()
        await run.arrived.acquire()
        await clients.ask(session, None, "DELETE")
        await asyncio.gather(answered, streamed)
        assert waiting.message["error"] == CANCELLED
        assert (stream.is_over, stream.messages) == (True, [])
        assert run.cancelled == ["wait"]
        run.door.set()
        await others_answered
        assert "result" in others.message

    exchanged(work)


def test_initialize_within_a_session_changes_it_and_opens_none() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        again = {**PARAMS, "protocolVersion": "2024-11-05"}
        answer = await clients.ask(session, request("initialize", again))
        assert answer.message["result"]["protocolVersion"] == "2024-11-05"
        assert answer.headers["mcp-session-id"] == session["mcp-session-id"]

    exchanged(work, max_sessions=1)


def test_a_new_session_takes_the_place_of_the_one_that_was_used_longest_ago() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        first = await clients.open_session()
        second = await clients.open_session()
        await clients.ask(first, request("ping"))
        await clients.open_session()
        assert (await clients.ask(first, request("ping"))).status == 200
        assert (await clients.ask(second, request("ping"))).status == NOT_FOUND

    exchanged(work, max_sessions=2)


def test_sessions_in_use_make_no_room() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        stream, streamed = await stream_of(clients, session)
        refused = await clients.ask({}, request("initialize", PARAMS))
        assert refused.message["error"] == {"code": -32603, "message": "Too many open sessions"}
        assert "mcp-session-id" not in refused.headers
        stream.leaves.set()
        await streamed
        await clients.open_session()

    exchanged(work, max_sessions=1)


def test_a_session_that_nobody_uses_expires_and_one_with_an_open_stream_does_not() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        expired = asyncio.Event()
        run.on_unfollow = lambda _uri: expired.set()
        listening = await clients.open_session()
        _stream, streamed = await stream_of(clients, listening)
        idle = await clients.open_session()
        await clients.ask(idle, request("resources/subscribe", {"uri": "a://b"}))
        await expired.wait()
        assert (await clients.ask(idle, request("ping"))).status == NOT_FOUND
        assert (await clients.ask(listening, request("ping"))).status == 200
        await clients.ask(listening, None, "DELETE")
        await streamed

    exchanged(work, frozenset({"resources"}), idle_session_s=0.1)


def test_sessions_are_used_in_use_and_expired_by_the_times_they_are_given() -> None:
    sessions = ClientSessions(2, 10.0)
    old = ClientSession("old", "2025-11-25", {})
    new = ClientSession("new", "2025-11-25", {})
    sessions.add(old, 0.0)
    sessions.add(new, 4.0)
    assert (sessions.wait_s(4.0), sessions.expired(9.9)) == (6.0, [])
    assert sessions.expired(10.0) == [old]
    assert sessions.replaced_session() is old
    sessions.use(old, 5.0)
    assert sessions.replaced_session() is new
    new.has_stream = True
    assert sessions.replaced_session() is old
    assert sessions.expired(100.0) == [old]
    old.under_way["1"] = lambda: None
    assert sessions.expired(100.0) == []
    with pytest.raises(LookupError):
        sessions.replaced_session()
    sessions.remove(old)
    assert (sessions.get("old"), old.is_ended, len(sessions)) == (None, True, 1)


# --- the session's own stream ---------------------------------------------------------------------


def test_a_session_hears_of_a_change_on_its_stream_and_of_earlier_ones_once() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        clients.server.announce_change()
        clients.server.announce_change()
        stream, streamed = await stream_of(clients, session)
        assert (stream.status, stream.headers) == (200, {**STREAM, **session})
        await stream.until(lambda stream: stream.body)
        assert stream.messages == [LIST_CHANGED]
        clients.server.announce_change()
        await stream.until(lambda stream: len(stream.messages) == 2)
        stream.leaves.set()
        await streamed
        assert stream.messages == [LIST_CHANGED] * 2

    exchanged(work)


def test_a_session_has_one_stream_and_another_once_that_is_over() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        stream, streamed = await stream_of(clients, session)
        second = await clients.ask({**session, **EVENTS}, None, "GET")
        assert (second.status, second.message["error"]["message"]) == (
            409,
            "Conflict: Only one SSE stream is allowed per session",
        )
        stream.leaves.set()
        await streamed
        another, streamed = await stream_of(clients, session)
        another.leaves.set()
        await streamed

    exchanged(work)


def test_who_has_not_said_that_it_is_ready_hears_of_nothing() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        opened = await clients.ask({}, request("initialize", PARAMS))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        clients.server.announce_change()
        stream, streamed = await stream_of(clients, session)
        await clients.ask(session, notification("notifications/initialized"))
        clients.server.announce_change()
        await stream.until(lambda stream: stream.body)
        stream.leaves.set()
        await streamed
        assert stream.messages == [LIST_CHANGED]

    exchanged(work)


def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        stream, streamed = await stream_of(clients, session)
        await stream.until(lambda stream: stream.body.count(b": ping\r\n\r\n") == 2)
        stream.leaves.set()
        await streamed
        assert stream.messages == []

    exchanged(work, ping_s=0.01)


def test_an_equal_notification_does_not_wait_twice() -> None:
    outbox = Outbox()
    heard: list[str] = []
    outbox.on_change = lambda: heard.append("change")
    for method, params in (("a", None), ("b", {"uri": "1"}), ("a", None), ("b", {"uri": "2"})):
        outbox.put(method, params)
    assert outbox.take() == [("a", None), ("b", {"uri": "1"}), ("b", {"uri": "2"})]
    assert (outbox.take(), len(heard)) == ([], 3)


def test_a_followed_resource_is_announced_to_who_follows_it_until_it_does_not() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        follower = await clients.open_session()
        other = await clients.open_session()
        stream, streamed = await stream_of(clients, follower)
        others, others_streamed = await stream_of(clients, other)
        uri = {"uri": "a://b"}
        assert (await clients.ask(follower, request("resources/subscribe", uri))).message[
            "result"
        ] == {}
        run.change["a://b"]()
        await stream.until(lambda stream: stream.body)
        updated = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": uri}
        assert stream.messages == [updated]
        await clients.ask(follower, request("resources/unsubscribe", uri))
        assert "a://b" not in run.followed
        refused = await clients.ask(
            follower, request("resources/subscribe", {"uri": "a://refused"})
        )
        assert refused.message["error"] == {"code": -32602, "message": "not to be followed"}
        for exchange in (stream, others):
            exchange.leaves.set()
        await asyncio.gather(streamed, others_streamed)
        assert others.messages == []

    exchanged(work, frozenset({"resources"}))


# --- slow and cancelled requests ------------------------------------------------------------------


@pytest.mark.parametrize("id_", [1, "1"])
def test_a_request_is_cancelled_by_its_id_as_a_number_or_as_text(id_: Any) -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        session = await clients.open_session()
        waiting, answered = clients.begin(session, request("tools/call", WAIT))
        await run.arrived.acquire()
        cancel = notification("notifications/cancelled", {"requestId": id_})
        assert (await clients.ask(session, cancel)).status == 202
        await answered
        assert (waiting.status, waiting.message["error"]) == (200, CANCELLED)
        assert run.cancelled == ["wait"]
        assert (await clients.ask(session, request("ping"))).message["result"] == {}

    exchanged(work)


def test_a_session_cancels_no_request_of_another() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        session = await clients.open_session()
        other = await clients.open_session()
        waiting, answered = clients.begin(session, request("tools/call", WAIT))
        await run.arrived.acquire()
        await clients.ask(other, notification("notifications/cancelled", {"requestId": 1}))
        run.door.set()
        await answered
        assert "result" in waiting.message

    exchanged(work)


def test_an_id_may_be_used_again_once_its_request_was_answered() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        session = await clients.open_session()
        waiting, answered = clients.begin(session, request("tools/call", WAIT, id=7))
        await run.arrived.acquire()
        second = await clients.ask(session, request("ping", id="7"))
        assert second.status == 400
        assert second.message["error"]["message"] == (
            "A request of this session with this id is under way: give each its own."
        )
        run.door.set()
        await answered
        assert waiting.message["id"] == 7
        assert (await clients.ask(session, request("ping", id=7))).status == 200

    exchanged(work)


def test_a_modern_client_that_leaves_cancels_its_request() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        waiting, answered = clients.begin(*modern("tools/call", WAIT))
        await run.arrived.acquire()
        waiting.leaves.set()
        await answered
        assert run.cancelled == ["wait"]
        assert (waiting.status, waiting.body) == (0, b"")

    exchanged(work)


def test_a_client_of_the_handshake_era_that_leaves_cancels_nothing() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        session = await clients.open_session()
        waiting, answered = clients.begin(session, request("tools/call", WAIT))
        await run.arrived.acquire()
        waiting.leaves.set()
        await waiting.until(lambda waiting: waiting.has_left)
        run.door.set()
        await answered
        assert run.cancelled == []
        assert waiting.message["result"]["content"][0]["text"] == "said "

    exchanged(work)


@pytest.mark.parametrize("era", ["handshake", "modern"])
def test_a_slow_answer_is_a_stream_that_is_kept_alive(era: str) -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        session: dict[str, str] = {}
        if era == "handshake":
            session = await clients.open_session()
            waiting, answered = clients.begin(session, request("tools/call", WAIT))
        else:
            waiting, answered = clients.begin(*modern("tools/call", WAIT))
        await waiting.until(lambda waiting: b": ping\r\n\r\n" in waiting.body)
        assert (waiting.status, waiting.headers) == (200, {**STREAM, **session})
        run.door.set()
        await answered
        assert waiting.is_over
        assert waiting.message["result"]["content"] == [{"type": "text", "text": "said "}]

    exchanged(work, ping_s=0.01)


def test_the_end_of_the_server_cancels_what_waits_in_its_sessions() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        session = await clients.open_session()
        waiting, answered = clients.begin(session, request("tools/call", WAIT))
        stream, streamed = await stream_of(clients, session)
        await run.arrived.acquire()
        await clients.server.close()
        await asyncio.gather(answered, streamed)
        assert waiting.message["error"] == CANCELLED
        assert stream.is_over

    exchanged(work)


# --- what is told during a request ----------------------------------------------------------------


def test_progress_and_log_lines_come_before_the_answer_to_who_asked_for_them() -> None:
    token = {"progressToken": "t"}
    progress = {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "t", "progress": 1, "total": 2, "message": "half"},
    }
    line = {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {"level": "info", "data": "line"},
    }

    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        levelled = await clients.ask(session, request("logging/setLevel", {"level": "info"}))
        assert levelled.message["result"] == {}
        meta = {**token, f"{META}logLevel": "info"}
        answers = [
            await clients.ask(session, request("tools/call", {"name": "tell", "_meta": token})),
            await clients.ask(*modern("tools/call", {"name": "tell", "_meta": meta})),
        ]
        for answer in answers:
            first, second, last = answer.messages
            assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
            assert (first, second) == (progress, line)
            assert (last["id"], last["result"]["content"][0]["text"]) == (1, "told")

    exchanged(work, frozenset({"results", "logging"}))


# --- listeners of the modern era ------------------------------------------------------------------


def test_a_listener_hears_of_what_it_asked_for_with_its_id_until_it_leaves() -> None:
    meta = {f"{META}subscriptionId": "l"}
    honored = {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}

    async def work(clients: Clients, run: ScriptedRun) -> None:
        asked = {"notifications": {**honored, "promptsListChanged": False}}
        listening, listened = clients.begin(*modern("subscriptions/listen", asked, id="l"))
        await listening.until(lambda listening: listening.body)
        assert listening.message == {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {"notifications": honored, "_meta": meta},
        }
        clients.server.announce_change()
        await listening.until(lambda listening: len(listening.messages) == 2)
        assert listening.messages[1] == {**LIST_CHANGED, "params": {"_meta": meta}}
        run.change["a://b"]()
        await listening.until(lambda listening: len(listening.messages) == 3)
        assert listening.messages[2]["params"] == {"uri": "a://b", "_meta": meta}
        listening.leaves.set()
        await listened
        assert (listening.is_over, run.followed) == (False, [])

    exchanged(work, frozenset({"resources"}))


def test_listeners_are_bounded_and_end_with_the_service() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        asked = {"notifications": {"toolsListChanged": True}}
        listening, listened = clients.begin(*modern("subscriptions/listen", asked))
        await listening.until(lambda listening: listening.body)
        refused = await clients.ask(*modern("subscriptions/listen", asked))
        assert refused.message["error"] == {"code": -32603, "message": "Subscription limit reached"}
        clients.server.end_listening()
        await listened
        assert listening.is_over
        assert listening.messages[-1]["result"]["_meta"][f"{META}subscriptionId"] == 1

    exchanged(work, max_sessions=1)
