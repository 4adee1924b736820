"""What a client's HTTP request asks of a run, in both eras of the protocol. Pure.

In the manner of h11: heads, bodies and times go in, values come out, and `run_server` does what
they ask. [2025] is revision 2025-11-25 of the MCP specification, the last of the handshake era,
[2026] is revision 2026-07-28, the first of the modern one. Their marks (bold, italic, code) are
left out of the quotations.

Rules:
1. The header `MCP-Protocol-Version` tells the era. Without it, and with a revision of the handshake
   era, a request belongs to a session. With any other value it is judged as a modern one, whose
   refusal has status 400 and names the revisions that are served ([2025] Transports, Protocol
   Version Header; [2026] Streamable HTTP, Protocol Version Header).
2. "The client MUST include an Accept header, listing both application/json and text/event-stream"
   ([2025] Transports, Sending Messages to the Server, 2; [2026] Streamable HTTP, Sending Messages,
   2). Who lists one alone gets 406.
3. "The body of the POST request MUST be a single JSON-RPC request, notification, or response"
   ([2025] the same, 3). A batch, and an id that is none ("Unlike base JSON-RPC, the ID MUST NOT be
   null", [2025] Overview, Requests), get 400 with -32600 in both eras.
4. What has no answer gets 202 ([2025] the same, 4). In the modern era clients post no responses,
   and their notifications mean nothing: a request is cancelled by closing its stream ([2026]
   Streamable HTTP, Sending Messages, 4 and note).
5. A session begins with `initialize`. "Servers that require a session ID SHOULD respond to requests
   without an MCP-Session-Id header (other than initialization) with HTTP 400 Bad Request"; a
   session that has ended is "HTTP 404 Not Found" ([2025] Transports, Session Management, 2 and 3).
   DELETE ends it (the same, 5). The modern era ignores the header ([2026] Streamable HTTP, Earlier
   Streamable HTTP Revisions).
6. The id of a request may be used again once the request was answered, although [2025] Overview,
   Requests, forbids it: some clients count anew. Until then it may not. Ids are compared as text,
   since some clients cancel `7` as `"7"`.
7. A session has one stream of its own (GET). A second one gets 409. The modern era has none: GET
   and DELETE get 405.
8. A modern request says who asks: "_meta" has the protocol version and the client's capabilities
   ([2026] Overview, `_meta`). The headers that repeat a part of the body, by which proxies route,
   must equal it ([2026] Streamable HTTP, Server Validation). They must occur once, or two readers
   could see two values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp  # noqa: F401 - first, as a whole: threads that begin with its parts are given half of them
import mcp_types as types
from mcp.shared.inbound import (
    InboundLadderRejection,
    classify_inbound_request,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from bundle_router.service.gate import Headers, values_of
from bundle_router.service.mcp.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    AnswerError,
    AnswerMessage,
    Json,
    NotificationMessage,
    RequestMessage,
    read_message,
)
from bundle_router.service.mcp.sessions import ClientSession, ClientSessions

VERSION_HEADER: Final = b"mcp-protocol-version"
SESSION_HEADER: Final = b"mcp-session-id"
_JSON: Final = frozenset(("application/json", "application/*", "*/*"))
_EVENTS: Final = frozenset(("text/event-stream", "text/*", "*/*"))
_STATUSES: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    types.INVALID_PARAMS: 400,
    types.HEADER_MISMATCH: 400,
    types.MISSING_REQUIRED_CLIENT_CAPABILITY: 400,
    types.UNSUPPORTED_PROTOCOL_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
"""The HTTP status of each error in the modern era; others have 200."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that is refused before any work."""

    status: int
    """The HTTP status."""
    error: AnswerError
    """Why, for the client."""
    id: int | str | None = None
    """The id of the refused message, where it could be read."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further headers of the answer."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request of a client, to be answered."""

    id: int | str
    """Its id."""
    method: str
    """Its method."""
    params: Json
    """Its parameters."""
    version: str
    """The revision of the protocol that it is answered in."""
    session: ClientSession | None
    """Its session; None in the modern era, and for the first `initialize`."""
    is_modern: bool
    """Whether it is of the modern era."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """What it says about itself; empty if nothing, or nothing sensible."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def progress_token(self) -> int | str | None:
        """What its client tells progress by; None if it wants to hear none."""
        token = self.meta.get("progressToken")
        return token if isinstance(token, int | str) and not isinstance(token, bool) else None

    def status_of(self, error: AnswerError) -> int:
        """Return the HTTP status of an answer with this error."""
        return _STATUSES.get(error.code, 200) if self.is_modern else 200


@dataclass(frozen=True, slots=True)
class ClientNotification:
    """A notification of a client. It has been accepted, whatever it comes to."""

    method: str
    """Its method."""
    params: Json
    """Its parameters."""
    session: ClientSession | None
    """Its session; None in the modern era."""


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """A client's answer to a question of a server, asked in the middle of a request."""

    session: ClientSession
    """Its session."""
    message: AnswerMessage
    """The answer."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A client opens the stream of its session, for what it is told unasked."""

    session: ClientSession
    """The session."""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A client ends its session."""

    session: ClientSession
    """The session, which is open no more."""


Received = (
    Rejection | ClientRequest | ClientNotification | ClientAnswer | StreamRequest | SessionEnd
)


class ServerProtocol:
    """The protocol of one run, as its clients speak it.

    `schema_of` returns the schema of a tool of which arguments are repeated in headers, and None
    for other tools.
    """

    def __init__(
        self, sessions: ClientSessions, schema_of: Callable[[str], Mapping[str, Any] | None]
    ) -> None:
        self.sessions = sessions
        self._schema_of = schema_of

    def receive(self, method: str, headers: Headers, body: bytes, now_s: float) -> Received:
        """Return what a request asks: `method` is GET, POST or DELETE."""
        versions = values_of(headers, VERSION_HEADER)
        if versions and versions[0].decode("latin-1") not in HANDSHAKE_PROTOCOL_VERSIONS:
            return self._modern(method, headers, body)
        if len(versions) > 1 or len(values_of(headers, SESSION_HEADER)) > 1:
            return _rejection(
                400, "Bad Request: MCP-Protocol-Version and Mcp-Session-Id must occur only once"
            )
        received = self._of_session(method, headers, body)
        session = None if isinstance(received, Rejection) else received.session
        if session is not None:
            self.sessions.use(session, now_s)
        return received

    # --- the handshake era ------------------------------------------------------------------------

    def _of_session(self, method: str, headers: Headers, body: bytes) -> Received:
        session = self._session_of(headers)
        if isinstance(session, Rejection):
            return session
        if method == "POST":
            return _posted(session, headers, body)
        if method == "GET" and not accepts(headers, _EVENTS):
            return _rejection(406, "Not Acceptable: Client must accept text/event-stream")
        if session is None:
            return _rejection(400, "Bad Request: Missing session ID")
        if method == "DELETE":
            self.sessions.remove(session)
            return SessionEnd(session)
        if session.has_stream:
            return _rejection(409, "Conflict: Only one SSE stream is allowed per session")
        return StreamRequest(session)

    def _session_of(self, headers: Headers) -> ClientSession | Rejection | None:
        """Return the session that a request names, None if it names none."""
        ids = values_of(headers, SESSION_HEADER)
        if not ids:
            return None
        session = self.sessions.get(ids[0].decode("latin-1"))
        return session if session is not None else _rejection(404, "Session not found")

    # --- the modern era ---------------------------------------------------------------------------

    def _modern(self, method: str, headers: Headers, body: bytes) -> Received:
        if method != "POST":
            return Rejection(
                405,
                AnswerError(INVALID_REQUEST, "Method Not Allowed: this revision has POST alone"),
                headers=((b"allow", b"POST"),),
            )
        message = _message_of(headers, body)
        if isinstance(message, Rejection):
            return message
        if isinstance(message, AnswerMessage):
            return _rejection(400, "Body must be a single JSON-RPC request or notification object")
        if isinstance(message, NotificationMessage):
            version = values_of(headers, VERSION_HEADER)[0].decode("latin-1")
            unsupported = unsupported_protocol_version_rejection(version)
            if unsupported is not None:
                return _refused(unsupported, None)
            return ClientNotification(message.method, message.params, None)
        return self._modern_request(headers, message)

    def _modern_request(self, headers: Headers, message: RequestMessage) -> Received:
        head: dict[str, str] = {}
        for raw_name, value in headers:
            name = raw_name.decode("latin-1")
            if name in head and name.startswith("mcp-"):
                error = AnswerError(types.HEADER_MISMATCH, f"{name} header appears more than once")
                return Rejection(400, error, message.id)
            head[name] = value.decode("latin-1")
        request = {"method": message.method, "params": message.params}
        route = classify_inbound_request(request, headers=head)
        if isinstance(route, InboundLadderRejection):
            return _refused(route, message.id)
        if message.method == "tools/call":
            wrong = self._wrong_arguments(head, message.params)
            if wrong is not None:
                return _refused(wrong, message.id)
        return ClientRequest(
            message.id,
            message.method,
            message.params,
            version=route.protocol_version,
            session=None,
            is_modern=True,
        )

    def _wrong_arguments(
        self, head: Mapping[str, str], params: Json
    ) -> InboundLadderRejection | None:
        """Return why headers that repeat arguments of a call do not fit them."""
        name = params.get("name")
        arguments = params.get("arguments")
        if arguments is None:
            arguments = {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None  # the parameters are refused as what they are
        schema = self._schema_of(name)
        if schema is None:
            return None
        return validate_mcp_param_headers(schema, arguments, head)


def _posted(session: ClientSession | None, headers: Headers, body: bytes) -> Received:
    message = _message_of(headers, body)
    if isinstance(message, Rejection):
        return message
    if isinstance(message, RequestMessage) and message.method == "initialize" and session is None:
        return _client_request(message, None)
    if session is None:
        return _rejection(400, "Bad Request: Missing session ID")
    if isinstance(message, AnswerMessage):
        return ClientAnswer(session, message)
    if isinstance(message, NotificationMessage):
        return ClientNotification(message.method, message.params, session)
    if str(message.id) in session.under_way:
        sentence = "A request of this session with this id is under way: give each its own."
        return _rejection(400, sentence)
    return _client_request(message, session)


def _client_request(message: RequestMessage, session: ClientSession | None) -> ClientRequest:
    version = session.version if session is not None else HANDSHAKE_PROTOCOL_VERSIONS[-1]
    return ClientRequest(
        message.id,
        message.method,
        message.params,
        version=version,
        session=session,
        is_modern=False,
    )


def _message_of(headers: Headers, body: bytes) -> Any:
    """Return the message of a POST, or why it is refused."""
    if not (accepts(headers, _JSON) and accepts(headers, _EVENTS)):
        return _rejection(
            406,
            "Not Acceptable: Client must accept both application/json and text/event-stream",
        )
    try:
        return read_message(body)
    except AnswerError as error:
        return Rejection(400, error)


def accepts(headers: Headers, kinds: frozenset[str]) -> bool:
    """Return whether the client accepts a content of one of these kinds."""
    for value in values_of(headers, b"accept"):
        for part in value.decode("latin-1").split(","):
            if part.partition(";")[0].strip().lower() in kinds:
                return True
    return False


def _rejection(status: int, sentence: str) -> Rejection:
    return Rejection(status, AnswerError(INVALID_REQUEST, sentence))


def _refused(by: InboundLadderRejection, id_: int | str | None) -> Rejection:
    error = AnswerError(by.code, by.message, by.data)
    return Rejection(_STATUSES.get(by.code, 200), error, id_)
