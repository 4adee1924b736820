"""A run as an MCP server over HTTP (ASGI): carries out what its protocol asks.

Loaded when an endpoint starts. `protocol` says what a request asks, `methods` what it comes to,
`streams` how it is answered; here are the tasks and timers.

Rules:
1. A request is worked on in its own HTTP request's task. In the modern era a client that
   disconnects cancels its request. In the handshake era "Disconnection SHOULD NOT be interpreted as
   the client cancelling its request" ([2025] Transports, Sending Messages to the Server, 6): it
   goes on until the client cancels it (`notifications/cancelled`) or ends its session.
2. A cancelled request of the handshake era is answered with an error, as each POST has an answer.
3. A session that ends takes with it its requests, its stream and what it follows.
4. A change is told to each client that hears of it, once: to sessions on their own streams, to
   clients of the modern era on the streams of their `subscriptions/listen`.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Final

from bundle_router.core.servers.transport.pass_through import CHANGED
from bundle_router.errors import RouterError
from bundle_router.service.mcp.client import PendingRequest, capabilities_of
from bundle_router.service.mcp.following import FollowedResources
from bundle_router.service.mcp.jsonrpc import (
    INTERNAL_ERROR,
    REQUEST_CANCELLED,
    AnswerError,
    Json,
    error_message,
    result_message,
)
from bundle_router.service.mcp.methods import Methods, check_notification
from bundle_router.service.mcp.passage import ServerRun
from bundle_router.service.mcp.protocol import (
    SESSION_HEADER,
    ClientAnswer,
    ClientNotification,
    ClientRequest,
    Rejection,
    ServerProtocol,
    SessionEnd,
    StreamRequest,
)
from bundle_router.service.mcp.result_forms import negotiated_version
from bundle_router.service.mcp.sessions import ClientSession, ClientSessions, Outbox
from bundle_router.service.mcp.streams import (
    PING_S,
    WATCH_S,
    AnswerStream,
    send_notifications,
    watch_client,
)
from bundle_router.service.mcp.tracing import trace_answer
from bundle_router.service.refusals import Message, Receive, Send

SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
"""The `_meta` key that each message of a listener's stream has: the id of its request."""
TOOLS: Final = "tools/list"


@dataclass(slots=True, eq=False)
class Subscriber:
    """A client of the modern era that listens."""

    honored: Json
    """The changes that it hears of, in the protocol's form."""
    outbox: Outbox = field(default_factory=Outbox)
    """What waits for it."""

    def hears_of(self, uri: str) -> bool:
        """Return whether it hears of changes of a list or resource."""
        key = _LISTS.get(uri)
        if key is not None:
            return key in self.honored
        return uri in self.honored.get("resourceSubscriptions", ())


_LISTS: Final = {
    TOOLS: "toolsListChanged",
    "prompts/list": "promptsListChanged",
    "resources/list": "resourcesListChanged",
}
_FILTERS: Final = (*_LISTS.values(), "resourceSubscriptions")


class RunServer:
    """One run as an MCP server, until `close`.

    It has at most `max_sessions` sessions, and as many listeners of the modern era. A session that
    nobody uses for `idle_session_s` seconds ends.
    """

    def __init__(
        self, run: ServerRun, max_sessions: int, idle_session_s: float, *, ping_s: float = PING_S
    ) -> None:
        self._run = run
        self._max_listeners = max_sessions
        self._ping_s = ping_s
        self._sessions = ClientSessions(max_sessions, idle_session_s)
        self._protocol = ServerProtocol(self._sessions, run.mirrored_schema)
        self.following = FollowedResources(run.follow, self._announce_update)
        self._methods = Methods(
            run, self.following, open_session=self._open_session, listen=self._listen
        )
        self._listeners: set[Subscriber] = set()
        self._expiry: asyncio.TimerHandle | None = None

    # --- its life ---------------------------------------------------------------------------------

    @property
    def has_sessions(self) -> bool:
        """Whether clients of the handshake era are connected."""
        return len(self._sessions) > 0

    def end_listening(self) -> None:
        """End the streams of listeners."""
        for listener in self._listeners:
            listener.outbox.close()

    async def close(self) -> None:
        """End every session, and cancel its requests."""
        self.end_listening()
        for session in self._sessions:
            self._sessions.remove(session)
            self._end_session(session)
        if self._expiry is not None:
            self._expiry.cancel()
        await self.following.close()

    # --- requests ---------------------------------------------------------------------------------

    async def handle(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one HTTP request (ASGI), whose body was read before."""
        now_s = asyncio.get_running_loop().time()
        received = self._protocol.receive(
            scope["method"], scope["headers"], scope.get("body", b""), now_s
        )
        match received:
            case Rejection():
                await _refuse(received, send)
            case ClientRequest():
                await self._answer(received, receive, send)
            case ClientNotification():
                await _accept(send, 202, received.session)
                await self._take_notification(received)
            case ClientAnswer(session, message):
                take = session.questions.get(str(message.id))
                if take is not None:
                    take(message)
                await _accept(send, 202, session)
            case StreamRequest(session):
                await self._stream(session, receive, send)
            case SessionEnd(session):
                self._end_session(session)
                await _accept(send, 200, session)

    async def _answer(self, request: ClientRequest, receive: Receive, send: Send) -> None:
        session = request.session
        stream = AnswerStream(send, session.id if session is not None else None)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - ASGI servers run applications in tasks
        is_cancelled = has_left = False
        watches: list[asyncio.Task[None]] = []

        def cancel() -> None:
            nonlocal is_cancelled
            is_cancelled = True
            task.cancel()

        def leave() -> None:
            nonlocal has_left
            if request.is_modern:
                has_left = True
                task.cancel()

        def begin_watch() -> None:
            watching = watch_client(receive, stream, leave, self._ping_s)
            watches.append(asyncio.create_task(watching, name="mcp-client-watch"))

        timer = asyncio.get_running_loop().call_later(WATCH_S, begin_watch)
        if session is not None:
            session.under_way[str(request.id)] = cancel
        try:
            status, message = await self._message(PendingRequest(request, stream))
        except asyncio.CancelledError:
            if not (is_cancelled or has_left) or task.uncancel():
                raise  # the service cancelled it
            if has_left:
                return
            error = AnswerError(REQUEST_CANCELLED, "Request cancelled")
            status, message = 200, error_message(request.id, error)
        finally:
            timer.cancel()
            for watch in watches:
                watch.cancel()
            if session is not None:
                del session.under_way[str(request.id)]
                self._note_use(session)
        await stream.end(status, message)

    async def _message(self, pending: PendingRequest) -> tuple[int, bytes]:
        """Return the HTTP status and the message that answer a request."""
        request = pending.request
        try:
            with trace_answer(request):
                result = await self._methods.answer(pending)
        except AnswerError as error:
            return request.status_of(error), error_message(request.id, error)
        return 200, result_message(request.id, result)

    async def _take_notification(self, notification: ClientNotification) -> None:
        session = notification.session
        if session is None:
            return
        method = notification.method
        params = notification.params
        try:
            if not check_notification(method, session.version, params):
                return
        except AnswerError:
            self._run.warn_client(method)
            return
        if method == "notifications/cancelled":
            cancel = session.under_way.get(str(params.get("requestId")))
            if cancel is not None:
                cancel()
        elif method == "notifications/initialized":
            await self._greet(session)

    # --- sessions ---------------------------------------------------------------------------------

    async def _open_session(self, pending: PendingRequest) -> Json:
        """Answer `initialize`."""
        params = pending.request.params
        version = negotiated_version(params["protocolVersion"])
        capabilities = capabilities_of(params["capabilities"])
        session = pending.request.session
        if session is not None:
            session.version = version
            session.capabilities = capabilities
            return self._methods.initialize_result(version)
        try:
            replaced = self._sessions.replaced_session()
        except LookupError:
            raise AnswerError(INTERNAL_ERROR, "Too many open sessions") from None
        if replaced is not None:
            self._sessions.remove(replaced)
            self._end_session(replaced)
        session = ClientSession(secrets.token_hex(16), version, capabilities)
        self._sessions.add(session, asyncio.get_running_loop().time())
        self._note_use(session)
        pending.stream.session_id = session.id
        return self._methods.initialize_result(version)

    def _note_use(self, session: ClientSession) -> None:
        loop = asyncio.get_running_loop()
        self._sessions.use(session, loop.time())
        if self._expiry is None and self.has_sessions:
            self._expiry = loop.call_later(self._sessions.wait_s(loop.time()), self._expire)

    def _expire(self) -> None:
        """End the sessions that nobody uses, and look again when another may have expired."""
        loop = asyncio.get_running_loop()
        self._expiry = None
        for session in self._sessions.expired(loop.time()):
            self._sessions.remove(session)
            self._end_session(session)
        if self.has_sessions:
            self._expiry = loop.call_later(self._sessions.wait_s(loop.time()), self._expire)

    def _end_session(self, session: ClientSession) -> None:
        """Cancel what is under way in a session that is over, and end its stream."""
        for cancel in list(session.under_way.values()):
            cancel()
        followed = list(session.followed)
        session.followed.clear()
        self.following.drop(followed)
        session.outbox.close()

    async def _greet(self, session: ClientSession) -> None:
        """Subscribe a session that is ready now to the changes of lists."""
        if session.is_ready:
            return
        session.is_ready = True
        for name, feature in CHANGED.items():
            if feature not in self._run.features or await self.following.add(name) is not None:
                continue
            if session.is_ended:  # meanwhile
                self.following.drop([name])
            else:
                session.followed.add(name)

    async def _stream(self, session: ClientSession, receive: Receive, send: Send) -> None:
        """Send a session what it is told unasked, until its client has left or it is over."""
        session.has_stream = True
        stream = AnswerStream(send, session.id)
        sending = asyncio.create_task(send_notifications(session.outbox, stream), name="mcp-stream")
        watching = asyncio.create_task(
            watch_client(receive, stream, sending.cancel, self._ping_s), name="mcp-client-watch"
        )
        try:
            await stream.begin()
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            await stream.close()
        finally:
            sending.cancel()
            watching.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
            session.has_stream = False
            self._note_use(session)

    # --- what is told unasked ---------------------------------------------------------------------

    async def _listen(self, pending: PendingRequest) -> Json:
        """Tell a client of the modern era what it asked to hear, until it leaves or all end."""
        requested = pending.request.params.get("notifications") or {}
        if len(self._listeners) >= self._max_listeners:
            raise AnswerError(INTERNAL_ERROR, "Subscription limit reached")
        honored = {name: value for name, value in requested.items() if value and name in _FILTERS}
        listener = Subscriber(honored)
        meta = {SUBSCRIPTION: pending.request.id}
        followed: list[str] = []
        self._listeners.add(listener)
        try:
            followed += await self._follow(honored)
            acknowledged = {"notifications": honored, "_meta": meta}
            await pending.notify("notifications/subscriptions/acknowledged", acknowledged)
            await send_notifications(listener.outbox, pending.stream, meta=meta)
        finally:
            self._listeners.discard(listener)
            self.following.drop(followed)
        return {"_meta": meta}

    async def _follow(self, honored: Json) -> list[str]:
        """Follow the lists and resources that a listener asked for; return those."""
        uris: list[str] = []
        for name, feature in CHANGED.items():
            if feature in self._run.features and _LISTS[name] in honored:
                uris.append(name)
        if "resources" in self._run.features:
            uris += honored.get("resourceSubscriptions", ())

        followed: list[str] = []
        for uri in dict.fromkeys(uris):
            refusal = await self.following.add(uri)
            if refusal is None:
                followed.append(uri)
        return followed

    async def _announce_update(self, uri: str) -> None:
        """Tell the subscribers of a resource, or of a list, that it has changed, if the run still
        permits it.
        """
        try:
            await self._run.tools()  # another process may have decided
        except RouterError:  # the run, or the decision in its address, is gone
            return
        if self.following.follows(uri):
            self._announce(uri)

    def announce_change(self) -> None:
        """Tell all listeners that the list of tools has changed."""
        self._announce(TOOLS)

    def _announce(self, uri: str) -> None:
        if uri in _LISTS:
            method = f"notifications/{uri}_changed"
            params = None
        else:
            method = "notifications/resources/updated"
            params = {"uri": uri}
        for session in self._sessions:
            if session.is_ready and (uri == TOOLS or uri in session.followed):
                session.outbox.put(method, params)
        for listener in self._listeners:
            if listener.hears_of(uri):
                listener.outbox.put(method, params)


async def _refuse(rejection: Rejection, send: Send) -> None:
    body = error_message(rejection.id, rejection.error)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *rejection.headers,
    ]
    await send({"type": "http.response.start", "status": rejection.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _accept(send: Send, status: int, session: ClientSession | None) -> None:
    """Answer without a body."""
    headers = [(b"content-length", b"0")]
    if session is not None:
        headers.append((SESSION_HEADER, session.id.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
