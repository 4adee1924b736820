"""One connection to a server: its era, its requests, and what the server says besides.

Rules:
1. No request can delay, cancel or fail another. A caller that times out or is cancelled returns at
   once; the server is told in the background.
2. The client declares no capabilities (roots, sampling, elicitation) of its own. It declares those
   of an agent's client only if the server's entry passes `input` on: with each request or, in the
   handshake era, for a session of that client's run. A server that asks for an undeclared one is
   refused.
3. What a server says of itself, asks or announces is unchecked: nothing of it can raise here.
4. Closing is bounded in time, and afterwards no process or socket is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from bundle_router import __version__
from bundle_router.adapters.mcp.exchange import (
    Outgoing,
    Patience,
    Transport,
    encode_params,
    message,
    reply,
)
from bundle_router.adapters.mcp.faults import NOTHING_DONE, RpcError, ServerFault
from bundle_router.adapters.mcp.mirrored import Path, header_value, headers_for, mirrored_arguments
from bundle_router.adapters.mcp.notices import (
    ACKNOWLEDGED,
    LISTS,
    TOOLS,
    TOOLS_CHANGED,
    changed_by,
    forward_log,
    forward_progress,
    is_finer,
)
from bundle_router.adapters.mcp.tracing import trace_request
from bundle_router.core.catalog import Era
from bundle_router.core.servers.reader import LARGE, Notification, RpcRefusal, ServerRequest
from bundle_router.core.servers.reader.agreement import (
    HANDSHAKE_VERSIONS,
    MODERN_VERSIONS,
    UNSUPPORTED_VERSION,
    Agreement,
    next_probe,
    read_discovery,
    read_handshake,
    shares_nothing,
)
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.servers.transport.pass_through import (
    ASKS_FOR,
    CHANGED,
    LOG,
    MAX_PASSED_BYTES,
    PROGRESS,
    Client,
    can_give,
)

_META: Final = "io.modelcontextprotocol"
_CLIENT: Final = {"name": "bundle-router", "version": __version__}
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The param that names what a request is about, which a modern server also wants as a header."""
_COURTESY_S: Final = 2.0
_FOLLOW_AGAIN_S: Final = 30.0
_METHOD_NOT_FOUND: Final = -32601
_INVALID_REQUEST: Final = -32600
_SUBSCRIPTION: Final = f"{_META}/subscriptionId"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says of itself. Unchecked: it is shown to operators and never trusted."""

    name: str
    version: str
    protocol: str
    instructions: str


@dataclass(slots=True, eq=False)
class Probes:
    """What is known of a server's answer to `server/discover`."""

    are_harmful: bool = False
    """Whether the server died of one or did not answer it, in this process or at its review, so
    that the next connection begins with the handshake."""


@dataclass(slots=True, eq=False)
class _Follower:
    """One who follows a resource, or a list under its method's name."""

    uri: str
    updated: Callable[[], None]


class _Subscription:
    """A stream on which a modern server announces changes of one resource or list."""

    def __init__(self, uri: str, updated: Callable[[], None], begun: Callable[[], None]) -> None:
        self._uri = uri
        self._updated = updated
        self._begun = begun
        self._is_agreed = False

    def agree(self) -> None:
        """Note that the server has agreed, or has ended the stream without a word against it."""
        if not self._is_agreed:
            self._is_agreed = True
            self._begun()

    def take(self, method: str, params: Mapping[str, Any]) -> None:
        """Take an announcement; one about something else is nothing."""
        if method == ACKNOWLEDGED:
            self.agree()
        elif self._uri == changed_by(method, params):
            self._updated()


class Connection:
    """One connection: `open` it, send requests with `request`, end it with `close`.

    `make_transport` returns an unopened transport, or raises ServerFault. `probes` is what is known
    of the server's answer to the question for its era. All on one event loop.
    """

    def __init__(
        self,
        make_transport: Callable[[], Transport],
        bounds: Bounds,
        *,
        on_change: Callable[[], None],
        probes: Probes,
        era: Era = "auto",
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        self._make_transport = make_transport
        self._bounds = bounds
        self._on_change = on_change
        self._probes = probes
        self._skips_probe = era == "auto" and probes.are_harmful
        self._era: Era = era
        self._capabilities = dict(capabilities or {})
        self._transport: Transport | None = None
        self._agreement: Agreement | None = None
        self._number = 0
        self._is_closed = False
        self._clients: dict[int, Client] = {}
        """The agents' clients, by the requests in progress that are theirs."""
        self._followers: list[_Follower] = []
        self._subscriptions: dict[int, _Subscription] = {}
        self._following: asyncio.Task[None] | None = None
        self._level_set = ""
        self._mirrored: dict[str, tuple[Mapping[str, Any], dict[Path, str]]] = {}
        self.identity = Identity("", "", "", "")

    # --- opening ----------------------------------------------------------------------------------

    async def open(self, timeout_s: float) -> None:
        """Connect and agree on the era. Raises ServerFault; the connection is then closed."""
        try:
            await self._open(timeout_s)
        except BaseException:  # an interrupted caller must not leave a half-open connection either
            if self._skips_probe:
                self._probes.are_harmful = False
            await self.close()
            raise

    async def _open(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                self._transport = self._make_transport()
                await self._transport.open(self)
                self._number = self._transport.first_number
                agreement = await self._agree(self._transport)
        except ServerFault as fault:
            fault.sent = False  # of what the connection is for, nothing was
            raise
        except TimeoutError:
            late = f"the server was not ready within {timeout_s:g} s"
            raise ServerFault("timeout", late) from None
        self._agreement = agreement
        self.identity = Identity(
            agreement.name, agreement.release, agreement.version, agreement.instructions
        )
        if agreement.is_modern and agreement.announces_tools:
            self._following = asyncio.get_running_loop().create_task(self._follow_tools())

    async def _agree(self, transport: Transport) -> Agreement:
        """Ask for the era, and return what both sides agree on (see `agreement`)."""
        if self._era == "handshake" or self._skips_probe:
            agreement = await self._shake_hands(transport)
        else:
            agreement = await self._find_era(transport)
        if self._era == "modern" and not agreement.is_modern:
            raise ServerFault(
                "protocol_error", f"era = 'modern', and the server speaks {agreement.version}"
            )
        transport.agreed(agreement)
        if not agreement.is_modern:
            await transport.notify(message("notifications/initialized"))
        return agreement

    async def _find_era(self, transport: Transport) -> Agreement:
        """Ask for the modern era, and shake hands where the server has none.

        A server that stays silent gets `initialize` beside the question: it may ignore that, or be
        slow to start. A server that knows both eras keeps to that of the first message.
        """
        loop = asyncio.get_running_loop()
        probing = loop.create_task(self._probe(transport, MODERN_VERSIONS[-1]))
        tasks: list[asyncio.Task[Any]] = [probing]
        try:
            await asyncio.wait((probing,), timeout=transport.silence_s)
            if probing.done() and (agreement := probing.result()) is not None:
                return agreement
            shaking = loop.create_task(self._shake_hands(transport))
            tasks.append(shaking)
            while not shaking.done():
                running = [task for task in tasks if not task.done()]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if probing.done() and (agreement := probing.result()) is not None:
                    return agreement
            agreement = shaking.result()
            if not probing.done():
                self._probes.are_harmful = True
            return agreement
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, transport: Transport, version: str) -> Agreement | None:
        """Return what the modern era agrees on; None if the server has none."""
        for last in (False, True):
            meta = self._meta(version, {})
            headers = {"mcp-protocol-version": version, "mcp-method": "server/discover"}
            params = {"_meta": meta}
            try:
                result = await self._ask("server/discover", params, headers, self._bounds.connect_s)
            except RpcError as error:
                refusal = RpcRefusal(None, error.code, error.message, error.data)
                other = None if last else next_probe(refusal)
                if other is None and shares_nothing(refusal):
                    raise ServerFault(
                        "protocol_error", "the server speaks no protocol version of ours"
                    ) from error
                if other is None:
                    return None
                version = other
            except ServerFault as fault:
                if fault.kind == "connection_lost":
                    self._probes.are_harmful = True
                if fault.kind in ("timeout", "http_error", "protocol_error"):
                    return None
                if fault.kind == "connection_lost" and transport.fault is None:
                    return None  # only the question's own exchange has ended
                raise
            else:
                return read_discovery(result)
        return None

    async def _shake_hands(self, transport: Transport) -> Agreement:
        params = {
            "protocolVersion": HANDSHAKE_VERSIONS[-1],
            "capabilities": self._capabilities,
            "clientInfo": _CLIENT,
        }
        try:
            result = await self._ask("initialize", params, {}, self._bounds.connect_s)
            return read_handshake(result)
        except ValueError as error:
            raise ServerFault("protocol_error", str(error)) from error
        except RpcError as error:
            version = next_probe(RpcRefusal(None, error.code, error.message, error.data))
            if error.code == UNSUPPORTED_VERSION and version is not None:
                # It took too long for our probe, and has answered it by now: it is modern.
                agreement = await self._probe(transport, version)
                if agreement is not None:
                    return agreement
            raise ServerFault(
                "protocol_error", f"the server refused to connect (code {error.code})"
            ) from error

    async def _ask(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
    ) -> dict[str, Any]:
        """Send a request before the era is known: it may not be cancelled."""
        text = await encode_params(params)
        request = Outgoing(self._next_number(), method, text, headers, cancels=False)
        return await self._exchange(request, timeout_s)

    def _meta(self, version: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
        return {
            f"{_META}/protocolVersion": version,
            f"{_META}/clientInfo": _CLIENT,
            f"{_META}/clientCapabilities": dict(capabilities or self._capabilities),
        }

    # --- requests ---------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        transport = self._transport
        is_open = self._agreement is not None and not self._is_closed
        return is_open and transport is not None and transport.fault is None

    @property
    def begins_with_handshake(self) -> bool:
        """Whether the server can't be asked for its era: it ends at the question, or is silent."""
        return self._probes.are_harmful

    @property
    def stateful(self) -> bool:
        return self._transport is not None and self._transport.stateful

    @property
    def pid(self) -> int:
        return self._transport.pid if self._transport is not None else 0

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout_s: float,
        schema: Mapping[str, Any] | None = None,
        client: Client | None = None,
    ) -> dict[str, Any]:
        """Send a request and return its result, unchecked.

        `schema` is the called tool's input schema; its annotations name the arguments that a modern
        server also wants as headers. `client` is the agent's client, on whose behalf the request is
        made. Raises ServerFault (kind `timeout` too), RpcError.
        """
        agreement = self._agreement
        if agreement is None or not self.alive:
            raise self._why_it_ended()
        number = self._next_number()
        params = self._stamped(params, agreement, client, number)
        headers = self._headers_of(method, params, schema, agreement)
        with trace_request(method, number, params):
            text = await encode_params(params)
            request = Outgoing(number, method, text, headers, client)
            if client is None:
                return await self._exchange(request, timeout_s)
            await self._set_level(client, agreement)
            self._clients[number] = client
            try:
                return await self._exchange(request, timeout_s)
            finally:
                del self._clients[number]

    async def _exchange(self, request: Outgoing, timeout_s: float) -> dict[str, Any]:
        if self._transport is None:
            raise self._why_it_ended()
        try:
            async with Patience(timeout_s) as request.patience:
                return await self._transport.exchange(request)
        except TimeoutError:
            late = f"no answer within {timeout_s:.3g} s"
            unnamed = request.unnamed_error
            raise ServerFault("timeout", late, sent=True, unnamed=unnamed) from None
        except asyncio.CancelledError:
            if self._is_closed and not _is_cancelled():
                raise ServerFault("closed", "the connection was closed", sent=True) from None
            raise
        except ServerFault as fault:
            if fault.kind in NOTHING_DONE:
                fault.sent = False
            raise

    def _next_number(self) -> int:
        number = self._number
        self._number += 1
        return number

    def _stamped(
        self, params: dict[str, Any], agreement: Agreement, client: Client | None, number: int
    ) -> dict[str, Any]:
        """Return the params of a request with what the era and the agent's client want in them."""
        meta = dict(params.get("_meta") or {})
        if agreement.is_modern:
            capabilities = client.capabilities if client is not None else {}
            meta |= self._meta(agreement.version, capabilities)
        if client is not None and agreement.is_modern:
            params = {**params, **client.continuation}
            if client.log_level:
                meta[f"{_META}/logLevel"] = client.log_level
        if client is not None and client.progress:
            meta["progressToken"] = number
        if not meta:
            return params
        return {**params, "_meta": meta}

    def _headers_of(
        self,
        method: str,
        params: Mapping[str, Any],
        schema: Mapping[str, Any] | None,
        agreement: Agreement,
    ) -> dict[str, str]:
        if not agreement.is_modern:
            return {}
        headers = {"mcp-method": method}
        name = params.get(_NAMED_BY.get(method, ""))
        if isinstance(name, str):
            headers["mcp-name"] = header_value(name)
        if schema is not None and isinstance(name, str):
            mirrored = self._mirrored_of(name, schema)
            arguments = params.get("arguments")
            if mirrored and isinstance(arguments, Mapping):
                headers |= headers_for(mirrored, arguments)
        return headers

    def _mirrored_of(self, tool: str, schema: Mapping[str, Any]) -> dict[Path, str]:
        known = self._mirrored.get(tool)
        if known is None or known[0] is not schema:
            known = self._mirrored[tool] = (schema, mirrored_arguments(schema))
        return known[1]

    async def _set_level(self, client: Client, agreement: Agreement) -> None:
        """Set the log level of a session in the handshake era.

        All its clients share it, so it only becomes finer.
        """
        if agreement.is_modern or not agreement.has_log or not client.log_level:
            return
        if not is_finer(client.log_level, self._level_set):
            return
        self._level_set = client.log_level
        with suppress(RpcError):
            await self._ask("logging/setLevel", {"level": client.log_level}, {}, _COURTESY_S)

    def _why_it_ended(self) -> ServerFault:
        fault = self._transport.fault if self._transport is not None else None
        if fault is None and self._is_closed:
            return ServerFault("closed", "the connection was closed")
        if fault is None:
            return ServerFault("connection_lost", "the connection to the server ended")
        return ServerFault(fault.kind, fault.detail)

    # --- what the server says besides its answers -------------------------------------------------

    def notified(self, notification: Notification, request: Outgoing | None) -> None:
        """Take a notification (see `exchange.Session`)."""
        method = notification.method
        params = notification.params
        subscription = self._subscription_of(params, request)
        if subscription is not None:
            subscription.take(method, params)
        elif method == TOOLS_CHANGED:
            self._on_change()
        elif changed := changed_by(method, params):
            for follower in list(self._followers):
                if follower.uri == changed:
                    follower.updated()
        elif method == PROGRESS:
            client = self._clients.get(_number(params.get("progressToken")))
            if client is not None:
                forward_progress(client, params)
        elif method == LOG and notification.size < LARGE:
            self._forward_log(params, request)

    def _forward_log(self, params: Mapping[str, Any], request: Outgoing | None) -> None:
        client = request.client if request is not None else self._first_log_reader()
        if client is not None:
            forward_log(client, params)

    def _first_log_reader(self) -> Client | None:
        """Return the client of the run that gets log lines which name no request."""
        if not self.stateful:
            return None
        for client in self._clients.values():
            if client.log_level:
                return client
        return None

    async def asked(self, question: ServerRequest, request: Outgoing | None) -> bytes:
        """Answer a request of the server, or have the agent's client answer it (see
        `exchange.Session`).
        """
        if question.method == "ping":
            return reply(question.id, result={})
        client = request.client if request is not None else None
        if client is None:
            client = self._only_askable()
        asked = {"method": question.method, "params": dict(question.params)}
        is_passed = question.size <= MAX_PASSED_BYTES
        if client is None or client.ask is None or not (is_passed and can_give(client, asked)):
            error = {"code": _INVALID_REQUEST, "message": "No client here can answer a request."}
            if question.method not in ASKS_FOR:
                error = {"code": _METHOD_NOT_FOUND, "message": "Method not found"}
            return reply(question.id, error=error)
        try:
            return reply(question.id, result=dict(await client.ask(asked)))
        except RpcError as refused:
            error = {"code": refused.code, "message": refused.message, "data": refused.data}
        except Exception as failure:  # noqa: BLE001 - the agent's client is not ours: its failure is the answer
            error = {"code": -32603, "message": f"the client failed ({type(failure).__name__})"}
        return reply(question.id, error=error)

    def _only_askable(self) -> Client | None:
        """Return the one client that may be asked: over stdio a question names no request."""
        askable = [client for client in self._clients.values() if client.ask is not None]
        return askable[0] if len(askable) == 1 else None

    # --- following --------------------------------------------------------------------------------

    async def follow(
        self, uri: str, updated: Callable[[], None], begun: Callable[[], None]
    ) -> None:
        """Call `begun` once the server has agreed to the subscription, and `updated` whenever it
        says that the resource has changed, until the connection ends. Raises ServerFault,
        RpcError.
        """
        agreement = self._agreement
        if agreement is None or not self.alive:
            raise self._why_it_ended()
        if agreement.is_modern:
            await self._listen(uri, updated, begun, agreement)
            return
        follower = _Follower(uri, updated)
        self._followers.append(follower)
        try:
            if uri not in CHANGED:
                await self._ask("resources/subscribe", {"uri": uri}, {}, self._bounds.connect_s)
            begun()
            if self._transport is not None:
                await self._transport.wait_ended()
        finally:
            self._followers.remove(follower)
            is_last = not any(one.uri == uri for one in self._followers)
            if is_last and uri not in CHANGED and self.alive:
                await self._unsubscribe(uri)

    async def _unsubscribe(self, uri: str) -> None:
        task = asyncio.get_running_loop().create_task(
            self._ask("resources/unsubscribe", {"uri": uri}, {}, _COURTESY_S)
        )
        with suppress(ServerFault, RpcError):
            await asyncio.shield(task)

    async def _listen(
        self,
        uri: str,
        updated: Callable[[], None],
        begun: Callable[[], None],
        agreement: Agreement,
    ) -> None:
        """Follow a resource or list on a stream of a modern server, until the server ends it."""
        if uri in LISTS:
            wanted: dict[str, Any] = {LISTS[uri]: True}
        else:
            wanted = {"resourceSubscriptions": [uri]}
        number = self._next_number()
        params = self._stamped({"notifications": wanted}, agreement, None, number)
        headers = self._headers_of("subscriptions/listen", params, None, agreement)
        text = await encode_params(params)
        request = Outgoing(number, "subscriptions/listen", text, headers)
        subscription = self._subscriptions[number] = _Subscription(uri, updated, begun)
        try:
            if self._transport is not None:
                await self._transport.exchange(request)
        finally:
            del self._subscriptions[number]
        subscription.agree()

    def _subscription_of(
        self, params: Mapping[str, Any], request: Outgoing | None
    ) -> _Subscription | None:
        """Return the subscription that a notification belongs to, if to one."""
        if request is not None:
            return self._subscriptions.get(request.number)
        if not self._subscriptions:
            return None
        meta = params.get("_meta")
        named = meta.get(_SUBSCRIPTION) if isinstance(meta, dict) else None
        return self._subscriptions.get(_number(named))

    async def _follow_tools(self) -> None:
        """Call `on_change` for every change of its tools that a modern server announces."""
        while True:
            with suppress(ServerFault, RpcError):
                await self.follow(TOOLS, self._on_change, lambda: None)
            await asyncio.sleep(_FOLLOW_AGAIN_S)

    # --- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the connection. Nothing is left when this returns; never raises."""
        self._is_closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._transport is not None:
            await self._transport.close()


def _number(id_: object) -> int:
    """Return the request that a server's text or number names; -1 if it names none."""
    if isinstance(id_, str) and id_.isascii() and id_.isdecimal() and len(id_) < 19:
        return int(id_)
    return id_ if isinstance(id_, int) and not isinstance(id_, bool) else -1


def _is_cancelled() -> bool:
    """Return whether somebody cancels the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
