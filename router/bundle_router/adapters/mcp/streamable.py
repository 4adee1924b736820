"""The Streamable HTTP transport: one POST a request, in both eras.

Rules:
1. Configured headers go to the configured address alone. A redirect is followed within its origin,
   with the same method; any other is an answer that says so.
2. Every answer is bounded in decoded bytes as it arrives. Compression is not requested.
3. Giving a request up closes its connection, which is how the modern era tells the server. A server
   of the handshake era is told by a notification, which nobody waits for.
4. An answer that breaks off is resumed where the server gave its events ids.
5. A session that the server has forgotten ends the connection: nothing was done.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.http import (
    BodyTooLarge,
    BodyUnreadable,
    HttpClient,
    HttpError,
    HttpResponse,
    NotReached,
    ServerSilent,
)
from bundle_router.adapters.mcp.exchange import (
    CANCELLED,
    Outgoing,
    Session,
    cut_fault,
    garbled_fault,
    message,
    next_event,
    outcome_of,
)
from bundle_router.adapters.mcp.faults import FaultKind, RpcError, ServerFault
from bundle_router.core.servers.reader import (
    BodyFrame,
    Event,
    EventFrames,
    FrameTooLarge,
    Notification,
    RpcRefusal,
    ServerReader,
    ServerRequest,
)
from bundle_router.core.servers.reader.error_body import error_words
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.values.retry_after import retry_after_s

if TYPE_CHECKING:
    from bundle_router.adapters.mcp.oauth import AuthorizedSender, Provider
    from bundle_router.core.servers.reader.agreement import Agreement

MAX_HOPS: Final = 3
MAX_ERROR_BYTES: Final = 64 * 1024
STREAM_FACTOR: Final = 4
"""Maximum size of an event stream, in multiples of the maximum message size."""
COURTESY_S: Final = 2.0
"""Seconds for a message that only spares the server work."""
DRAIN_S: Final = 0.5
"""Seconds that a server has to end a stream after its answer."""
MAX_RESUMES: Final = 2
RESUME_S: Final = 1.0
EVENTS: Final = "text/event-stream"
_ENDLESS: Final = 2**62
_NO_SESSION: Final = (b"session", b"not initialized")
"""Words of a 400 to a request with a session: servers written after the TypeScript SDK's examples
send no 404.
"""
_SESSION_LOST: Final = re.compile(
    r"(?:bad request: |not found: |unauthorized: )?(?:error: )?(?:the |mcp[ -])?"
    r"(?:(?:no |no valid |invalid |unknown |expired |missing |stale )(?:mcp[ -])?session"
    r"|session(?: ?id)?(?: [\w.:-]+)? (?:was |is |has |does )?(?:been )?"
    r"(?:not |no longer |unknown|invalid|expired|terminated|closed|lost|missing))",
    re.IGNORECASE,
)
"""How a message begins by which a server says in other words than a 404 that it has forgotten the
session: under another status, or as the error of an answer.
"""
_TRANSPORT_CODES: Final = (-32000, -32001, -32600)
"""Codes of the errors by which servers say it; a tool's own "session not found" has others."""
_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t\x20-\x7e]*")


class HttpSender:
    """Sends the requests of one connection to its configured address, authorized if it has to be.

    `provider` is the flow of the server's authorization.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], client: HttpClient, provider: Provider | None
    ) -> None:
        self.url = url
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._client = client
        self._authorized: AuthorizedSender | None = None
        if provider is not None:
            from bundle_router.adapters.mcp.oauth import AuthorizedSender

            provider.headers = self._headers
            self._authorized = AuthorizedSender(provider, client)

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> HttpResponse:
        """Send a request and return its response. `url` has the origin of the configured one.

        Raises ServerFault.
        """
        fields = {"accept-encoding": "identity", "user-agent": "bundle-router", **headers}
        fields |= self._headers
        for pair in fields.items():
            if not _HEADER.fullmatch(f"{pair[0]}: {pair[1]}"):
                raise ServerFault("protocol_error", "an argument or name can't be sent in a header")
        if self._authorized is None:
            return await self._send(method, url, fields, body)
        from bundle_router.adapters.mcp.oauth import Request

        async def send(fields: Mapping[str, str]) -> HttpResponse:
            return await self._send(method, url, fields, body)

        return await self._authorized.send(Request(method, url, headers=fields), send)

    async def close(self) -> None:
        """Wait for what goes on when its request has ended."""
        if self._authorized is not None:
            await self._authorized.close()

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> HttpResponse:
        try:
            return await self._client.send(
                method,
                url,
                headers=headers.items(),
                body=body,
                hops=MAX_HOPS,
            )
        except HttpError as error:
            raise fault_of(error) from error


class StreamableHttp:
    """One server over Streamable HTTP (a `Transport`)."""

    first_number = 1
    pid = 0
    silence_s = 10.0
    """A server elsewhere may start for the question, and answers in any order."""

    def __init__(self, sender: HttpSender, bounds: Bounds) -> None:
        self._sender = sender
        self._max_bytes = bounds.max_message_bytes
        self._max_frame = bounds.max_frame_bytes
        self._behind: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._session_id = ""
        self._version = ""
        self._is_modern = True
        self._ended = asyncio.Event()
        self.stateful = False
        self.fault: ServerFault | None = None

    async def open(self, session: Session) -> None:
        self._session = session

    def agreed(self, agreement: Agreement) -> None:
        """Send the version from now on; a server of the handshake era may speak unasked."""
        self._version = agreement.version
        self._is_modern = agreement.is_modern
        if not agreement.is_modern:
            self._listening = asyncio.get_running_loop().create_task(self._listen())

    # --- requests ---------------------------------------------------------------------------------

    async def exchange(self, request: Outgoing) -> dict[str, Any]:
        if self.fault is not None:
            raise ServerFault(self.fault.kind, self.fault.detail)
        try:
            return await self._exchange(request)
        except asyncio.CancelledError:
            if request.cancels and not self._is_modern:
                params = {"requestId": request.number, "reason": "caller cancelled"}
                self._do_behind(partial(self.notify, message(CANCELLED, params)))
            raise

    async def _exchange(self, request: Outgoing) -> dict[str, Any]:
        headers = self._headers_of(request)
        response = await self._sender.send("POST", self._sender.url, headers, request.body)
        is_stream = False
        try:
            self._note_session(request, response)
            if response.status >= 300:
                return await self._read_refusal(response, request)
            if response.status == 202:
                raise garbled_fault("the server gave no answer to a request (HTTP 202)")
            is_stream = response.media_type == EVENTS
            if not is_stream:
                return await self._read_body(response, request)
        finally:
            if not is_stream:
                response.close()
        return await self._read_events(response, request)

    def _headers_of(self, request: Outgoing | None) -> dict[str, str]:
        headers = {
            "accept": f"application/json, {EVENTS}",
            "content-type": "application/json",
        }
        if self._session_id:
            headers["mcp-session-id"] = self._session_id
        if self._version:
            headers["mcp-protocol-version"] = self._version
        if request is not None:
            headers |= {name.lower(): value for name, value in request.headers.items()}
        return headers

    def _note_session(self, request: Outgoing, response: HttpResponse) -> None:
        session_id = response.headers.get("mcp-session-id", "")
        if not session_id:
            return
        self.stateful = True
        if request.method == "initialize" and _HEADER.fullmatch(f"x: {session_id}"):
            self._session_id = session_id

    async def _read_body(self, response: HttpResponse, request: Outgoing) -> dict[str, Any]:
        reader = ServerReader(BodyFrame(self._max_frame), self._max_bytes)
        result = await self._read(response.pieces(self._max_frame), reader, request)
        if result is None:
            raise garbled_fault()
        return result

    async def _read_events(self, response: HttpResponse, request: Outgoing) -> dict[str, Any]:
        """Read an event stream until the answer, and resume it where it can be resumed."""
        framing = EventFrames(self._max_frame)
        reader = ServerReader(framing, self._max_bytes)
        resumes = 0
        while True:
            pieces = response.pieces(self._max_bytes * STREAM_FACTOR)
            try:
                result = await self._read(pieces, reader, request)
            except ServerFault as fault:
                response.close()
                if fault.kind != "connection_lost" or not framing.last_id:
                    raise
                result = None
            except BaseException:  # a refusal, or the caller's end: nothing more is read
                response.close()
                raise
            if result is not None:
                self._do_behind(partial(self._read_rest, response, pieces), DRAIN_S)
                return result
            response.close()
            if not framing.last_id or resumes >= MAX_RESUMES:
                raise garbled_fault() if reader.noise else cut_fault()
            resumes += 1
            response = await self._resume(framing)

    async def _read(
        self, pieces: AsyncIterator[bytes], reader: ServerReader, request: Outgoing | None
    ) -> dict[str, Any] | None:
        """Read a stream until the answer to a request, and return its result; None if the stream
        ends without it. Raises ServerFault, RpcError.
        """
        try:
            async for piece in pieces:
                reader.receive_data(piece)
                result = await self._take_events(reader, request)
                if result is not None:
                    return result
            reader.receive_end()
        except FrameTooLarge as error:
            raise ServerFault("too_large", f"the server sent {error}", sent=True) from error
        except HttpError as error:
            raise fault_of(error) from error
        return await self._take_events(reader, request)

    async def _take_events(
        self, reader: ServerReader, request: Outgoing | None
    ) -> dict[str, Any] | None:
        """Take the events at hand, up to the answer to the request, and return its result."""
        patience = request.patience if request is not None else None
        waiting = () if patience is None else (patience,)
        while reader.next_size:
            result = await self._take(await next_event(reader, waiting), request)
            if result is not None:
                return result
        return None

    async def _read_rest(self, response: HttpResponse, pieces: AsyncIterator[bytes]) -> None:
        """Read what follows an answer, so that its connection can be used again."""
        try:
            async for _ in pieces:
                pass
        except HttpError:
            pass  # it is closed below
        finally:
            response.close()

    async def _resume(self, framing: EventFrames) -> HttpResponse:
        retry_ms = framing.retry_ms
        await asyncio.sleep(RESUME_S if retry_ms is None else retry_ms / 1000)
        headers = {**self._headers_of(None), "accept": EVENTS, "last-event-id": framing.last_id}
        try:
            response = await self._sender.send("GET", self._sender.url, headers)
        except ServerFault as fault:
            raise cut_fault() from fault
        if response.status != 200 or response.media_type != EVENTS:
            response.close()
            raise cut_fault()
        return response

    async def _take(self, event: Event, request: Outgoing | None) -> dict[str, Any] | None:
        """Return the result in an event; give another one to the session. Raises what it says."""
        if isinstance(event, Notification) and self._session is not None:
            self._session.notified(event, request)
        elif isinstance(event, ServerRequest) and self._session is not None:
            await self._answer(event, request)
        elif request is not None:
            if isinstance(event, RpcRefusal) and _says_session_lost(event):
                self._raise_if_session_lost()
            return outcome_of(event, request.number)
        return None

    async def _answer(self, question: ServerRequest, request: Outgoing | None) -> None:
        """Answer a request of the server, which is read no further meanwhile."""
        if self._session is not None:
            reply = await self._session.asked(question, request)
            with suppress(ServerFault):
                await self.notify(reply)

    async def _read_refusal(self, response: HttpResponse, request: Outgoing) -> dict[str, Any]:
        """Raise what an error status means: the server's JSON-RPC error, else one of the status."""
        body = await read_cut(response)
        error = _rpc_error_in(body)
        words = error_words(body) if error is None else error.message
        if says_session_lost(response.status, body, words):
            self._raise_if_session_lost()
        if error is not None:
            raise error
        raise fault_for(response, words)

    def _raise_if_session_lost(self) -> None:
        """End the connection, whose session the server has forgotten, if it has one."""
        if self._session_id:
            self.fault = ServerFault("session_lost", "the server has forgotten the session")
            self._ended.set()
            raise ServerFault(self.fault.kind, self.fault.detail)

    # --- what the server says unasked -------------------------------------------------------------

    async def _listen(self) -> None:
        """Read the stream that a server of the handshake era may speak on, until it has none."""
        failures = 0
        framing = EventFrames(self._max_frame)
        while failures < MAX_RESUMES:
            headers = {**self._headers_of(None), "accept": EVENTS}
            if framing.last_id:
                headers["last-event-id"] = framing.last_id
            try:
                response = await self._sender.send("GET", self._sender.url, headers)
            except ServerFault:
                failures += 1
            else:
                if response.status != 200 or response.media_type != EVENTS:
                    response.close()
                    return
                failures = 0
                framing = await self._read_unasked(response, framing)
            retry_ms = framing.retry_ms
            await asyncio.sleep(RESUME_S if retry_ms is None else retry_ms / 1000)

    async def _read_unasked(self, response: HttpResponse, before: EventFrames) -> EventFrames:
        framing = EventFrames(self._max_frame)
        framing.last_id = before.last_id
        framing.retry_ms = before.retry_ms
        try:
            await self._read(
                response.pieces(_ENDLESS), ServerReader(framing, self._max_bytes), None
            )
        except ServerFault:
            pass  # the stream is opened again
        finally:
            response.close()
        return framing

    async def notify(self, message: bytes) -> None:
        async with asyncio.timeout(COURTESY_S * 5):
            response = await self._sender.send(
                "POST", self._sender.url, self._headers_of(None), message
            )
            response.close()

    def _do_behind(self, work: Callable[[], Awaitable[None]], within_s: float = COURTESY_S) -> None:
        """Do something that nobody waits for."""

        async def bounded() -> None:
            with suppress(ServerFault, TimeoutError):
                async with asyncio.timeout(within_s):
                    await work()

        task = asyncio.get_running_loop().create_task(bounded())
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        """Tell the server that the session is over, and end what is under way."""
        self._ended.set()
        tasks = set(self._behind)
        if self._listening is not None:
            tasks.add(self._listening)
        for task in tasks:
            task.cancel()
        if self._session_id and self.fault is None:
            self._do_behind(self._delete_session)
            tasks |= self._behind
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sender.close()

    async def _delete_session(self) -> None:
        response = await self._sender.send("DELETE", self._sender.url, self._headers_of(None))
        response.close()


def says_session_lost(status: int, body: bytes, words: str) -> bool:
    """Return whether an error status, its body and the words in it mean that a session is gone."""
    if status in (404, 410):
        return True
    if status == 429:
        return False
    lower = body.lower()
    if status == 400 and any(word in lower for word in _NO_SESSION):
        return True
    return _SESSION_LOST.match(words.strip()) is not None


def _says_session_lost(refusal: RpcRefusal) -> bool:
    """Return whether an answer's error is about the session, and not the tool's own."""
    is_transports = refusal.code in _TRANSPORT_CODES
    return is_transports and _SESSION_LOST.match(refusal.message.strip()) is not None


def _rpc_error_in(body: bytes) -> RpcError | None:
    """Return the JSON-RPC error in the body of an error status, if it holds one."""
    reader = ServerReader(BodyFrame(MAX_ERROR_BYTES + 1))
    reader.receive_data(body)
    reader.receive_end()
    while reader.next_size:
        event = reader.next_event()
        if isinstance(event, RpcRefusal):
            return RpcError(event.code, event.message, event.data)
    return None


async def read_cut(response: HttpResponse, max_bytes: int = MAX_ERROR_BYTES) -> bytes:
    """Return the first bytes of a body; what can't be read of it is left out."""
    body = bytearray()
    with suppress(HttpError):
        async for piece in response.pieces(max_bytes):
            body += piece
    return bytes(body)


def fault_of(error: HttpError) -> ServerFault:
    """Return the fault for a request that failed in the client."""
    if isinstance(error, NotReached):
        return ServerFault("unreachable", error.detail)
    if isinstance(error, BodyTooLarge):
        return ServerFault("too_large", f"the server's {error.detail[4:]}", sent=True)
    if isinstance(error, BodyUnreadable):
        return garbled_fault(f"the server's {error.detail[4:]}")
    if isinstance(error, ServerSilent):
        return ServerFault("timeout", error.detail, sent=True)
    return ServerFault("connection_lost", error.detail, sent=True)


def fault_for(response: HttpResponse, words: str = "") -> ServerFault:
    """Return the fault for an error status whose body is no JSON-RPC error, and says `words`."""
    status = response.status
    reason = f"the server answered HTTP {status}"
    if response.redirects:
        reason = f"{reason}: a redirect that is not followed"
    if status in (401, 403):
        return ServerFault("unauthorized", reason, sent=True, words=words)
    seconds = retry_after_s(response.headers.get("retry-after", ""), datetime.now(UTC))
    kind: FaultKind = "rate_limited" if status == 429 else "http_error"
    return ServerFault(kind, reason, retry_after_s=seconds, sent=True, words=words)
