"""One connection to one server: an owner task opens and closes it, and requests only use it.

Rules:
1. A cancel scope must be left in the task that entered it. So the owner opens the transport and the
   session, waits, and closes them. Each request runs in a task of its own, so that none can delay,
   cancel or fail another. A request by a `carrier` needs no task, because it does not touch the
   SDK.
2. A caller that times out or is cancelled returns at once. The server is notified in the
   background.
3. Closing is bounded in time, and afterwards no process or socket is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bundle_router.adapters.mcp import sdk
from bundle_router.adapters.mcp.faults import (
    EXCHANGE,
    NOTHING_DONE,
    RequestState,
    RpcError,
    ServerFault,
)
from bundle_router.adapters.mcp.posting import (
    Redirected,
    RequestCarrier,
    cut_fault,
    garbled_fault,
    read_result,
)
from bundle_router.core.catalog import Era
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.servers.transport.pass_through import Client

_CLOSED_CODE: Final = -32000
_LEAST_S: Final = 0.01
_FOLLOW_AGAIN_S: Final = 30.0


class Wire(Protocol):
    """The state of an open transport."""

    @property
    def fault(self) -> ServerFault | None:
        """The fault that ended the transport, if it has ended."""

    @property
    def stateful(self) -> bool:
        """Whether the server keeps state for this client, so that other callers must not share the
        connection.
        """

    def note_era(self, accepts: Callable[[str], bool]) -> None:
        """Note that the era is known: from now on a failing request fails alone.

        `accepts` tells whether a notification method has a listener.
        """

    @property
    def pid(self) -> int:
        """The id of the server's process; 0 if it has none on this machine."""

    def carrier(self, on_change: Callable[[], None], *, is_modern: bool) -> RequestCarrier | None:
        """Return the carrier of requests that bypass the SDK, if there is one.

        `on_change`: see `ModernPosts`.
        """


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says of itself. Unchecked: it is shown to operators and never trusted."""

    name: str
    version: str
    protocol: str
    instructions: str


OpenWire = Callable[[], Any]
"""Returns an async context manager of `(streams, Wire)`. The owner task enters and leaves it."""


class Connection:
    """One connection: `open` it, send requests with `request`, end it with `close`.

    All on one event loop.
    """

    def __init__(
        self,
        label: str,
        open_wire: OpenWire,
        bounds: Bounds,
        *,
        on_change: Callable[[], None],
        era: Era = "auto",
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        self._label = label
        self._open_wire = open_wire
        self._bounds = bounds
        self._on_change = on_change
        self._era: Era = era
        self._capabilities = capabilities or {}
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[sdk.RawSession] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self._behind: set[asyncio.Task[Any]] = set()
        self._wire: Wire | None = None
        self._session: sdk.RawSession | None = None
        self._fault: ServerFault | None = None
        self._shared = RequestState(is_shared=True)
        self.identity = Identity("", "", "", "")

    # --- the owner --------------------------------------------------------------------------------

    async def open(self, timeout_s: float) -> None:
        """Connect and negotiate the era. Raises ServerFault; the connection is then closed."""
        self._owner = asyncio.get_running_loop().create_task(
            self._run_session(), name=f"mcp:{self._label}"
        )
        # The reason of the end is in `_fault`; reading the exception here keeps asyncio from
        # logging it.
        self._owner.add_done_callback(lambda owner: owner.cancelled() or owner.exception())
        try:
            await asyncio.wait(
                (self._owner, self._ready), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._ready.done():
                self._session = self._ready.result()
                return
            if not self._owner.done():
                raise ServerFault("timeout", f"the server was not ready within {timeout_s:g} s")
            raise self._why_it_ended()
        except BaseException:  # an interrupted caller must not leave a half-open connection either
            await self.close()
            raise

    async def _run_session(self) -> None:
        exchange = self._shared
        EXCHANGE.set(exchange)
        try:
            async with AsyncExitStack() as stack:
                streams, self._wire = await stack.enter_async_context(self._open_wire())
                dispatcher = sdk.RawDispatcher(*streams, answers=exchange.answers)
                session = sdk.RawSession(dispatcher, self._capabilities, self._on_change)
                await stack.enter_async_context(session)
                await sdk.negotiate(session, self._era)
                exchange.is_open = True
                self._wire.note_era(session.listens_to)
                session.is_own = self._wire.stateful
                session.carrier = self._wire.carrier(self._on_change, is_modern=session.is_modern)
                info = session.server_info
                named = (info.name, info.version) if info else ("", "")
                self.identity = Identity(
                    *named, session.protocol_version or "", session.instructions or ""
                )
                if not self._ready.done():
                    self._ready.set_result(session)
                await self._until_stopped(session)
        except Exception as error:  # noqa: BLE001 - the boundary to the SDK and the server: whatever ends a connection
            # (exception groups, protocol errors, its own assertions) is that connection's fault,
            # and nobody else's
            self._fault = _connect_fault(error, exchange)

    async def _until_stopped(self, session: sdk.RawSession) -> None:
        """Wait for `close` or the connection's end; meanwhile follow the changes that the server
        announces.
        """
        loop = asyncio.get_running_loop()
        ends = [
            loop.create_task(self._stop.wait()),
            loop.create_task(session.dispatcher.ended.wait()),
        ]
        if session.announces_changes:
            tasks = [*ends, loop.create_task(self._follow(session))]
        else:
            tasks = ends
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, session: sdk.RawSession) -> None:
        while True:
            await session.follow_changes()
            await asyncio.sleep(_FOLLOW_AGAIN_S)

    async def follow(
        self, uri: str, updated: Callable[[], None], begun: Callable[[], None]
    ) -> None:
        """Call `begun` once the server has agreed to the subscription, and `updated` whenever it
        says that the resource has changed, until the connection ends. Raises ServerFault,
        RpcError.
        """
        if self._session is None or not self.alive:
            raise self._why_it_ended()
        try:
            await self._session.follow_resource(uri, updated, begun)
        except sdk.MCPError as error:
            raise self._failure(error, RequestState()) from error

    def _why_it_ended(self) -> ServerFault:
        fault = self._wire.fault if self._wire is not None else None
        return (
            fault
            or self._fault
            or ServerFault("connection_lost", "the connection to the server ended")
        )

    # --- requests ---------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return (
            self._session is not None
            and (self._wire is None or self._wire.fault is None)
            and self._owner is not None
            and not self._owner.done()
            and not self._session.dispatcher.closed
            and not self._stop.is_set()
        )

    @property
    def stateful(self) -> bool:
        return self._wire is not None and self._wire.stateful

    @property
    def pid(self) -> int:
        return self._wire.pid if self._wire is not None else 0

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout_s: float,
        schema: Mapping[str, Any] | None = None,
        client: Client | None = None,
    ) -> dict[str, Any]:
        """Send a request and return its result, unchecked.

        Raises ServerFault (kind `timeout` too), RpcError.
        """
        session = self._session
        if session is not None and session.carrier_for(client) is not None and self.alive:
            try:
                return await session.post(method, params, schema, client, timeout_s)
            except Redirected:
                session.carrier = (
                    None  # the SDK follows redirects within the origin, here and from now on
                )
            except (
                UnicodeEncodeError
            ):  # half a pair of surrogates would be in a header: it is replaced below
                pass
        loop = asyncio.get_running_loop()
        exchange = RequestState(client=client)

        def server_time() -> float:
            return (now := loop.time()) - exchange.own_s(now) - self._shared.own_s(now)

        due = server_time() + timeout_s
        work = loop.create_task(self._request(method, params, schema, exchange))
        self._behind.add(work)
        work.add_done_callback(self._forget)
        try:
            while not work.done() and (left := due - server_time()) > 0:
                await asyncio.wait((work,), timeout=max(left, _LEAST_S))
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not work.done():
            work.cancel()
            raise ServerFault("timeout", f"no answer within {timeout_s:.3g} s", sent=True)
        if work.cancelled():
            raise ServerFault("closed", "the connection was closed during the call", sent=True)
        return work.result()

    def bypasses_sdk(self, client: Client | None) -> bool:
        """Return whether a client's answers are read by us, with null for what is no JSON, such as
        NaN.
        """
        return self._session is not None and self._session.carrier_for(client) is not None

    def at_once(self, client: Client | None) -> tuple[sdk.RawSession, RequestCarrier] | None:
        """Return the session, and what carries a client's requests, if this thread can send one
        now.
        """
        session = self._session
        carrier = session.carrier_for(client) if session is not None and self.alive else None
        if session is not None and carrier is not None and carrier.is_ready:
            return (session, carrier)
        return None

    def _forget(self, work: asyncio.Task[Any]) -> None:
        self._behind.discard(work)
        if not work.cancelled():
            work.exception()  # mark it as read: nobody waits for it any more

    async def _request(
        self,
        method: str,
        params: dict[str, Any],
        schema: Mapping[str, Any] | None,
        exchange: RequestState,
    ) -> dict[str, Any]:
        EXCHANGE.set(exchange)
        if self._session is None or not self.alive:
            raise self._why_it_ended()
        try:
            result = await self._session.request(method, params, schema, exchange.client)
        except sdk.MCPError as error:
            failure = self._failure(error, exchange)
            if isinstance(failure, ServerFault):
                failure = ServerFault(
                    failure.kind,
                    failure.detail,
                    retry_after_s=failure.retry_after_s,
                    sent=failure.kind not in NOTHING_DONE,
                )
            raise failure from error
        except asyncio.CancelledError:
            exchange.abort()
            raise
        # the SDK's errors, e.g. a closed stream: the connection's fault, not the caller's
        except Exception as error:
            raise ServerFault(
                "protocol_error", f"{type(error).__name__} in the transport", sent=True
            ) from error
        answer = exchange.answer
        exchange.answer = None
        if answer is not None and not result:
            return read_result(answer, answer.get("id"))
        return result

    def _failure(self, error: sdk.MCPError, exchange: RequestState) -> Exception:
        if exchange.fault is not None:
            return exchange.fault
        if not self.alive and error.code == _CLOSED_CODE:
            return self._why_it_ended()
        if sdk.is_unread(error):
            return cut_fault() if error.code == _CLOSED_CODE else garbled_fault()
        return RpcError(error.code, error.message, error.data)

    # --- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the connection, first politely, then by cancelling.

        Nothing is left when this returns; never raises.
        """
        self._stop.set()
        if self._session is not None and self._session.carrier is not None:
            self._session.carrier.close()
        for work in list(self._behind):
            work.cancel()
        owner = self._owner
        if owner is None or owner is asyncio.current_task():
            return
        if not self._ready.done():
            self._ready.cancel()
            owner.cancel()
        _, late = await asyncio.wait((owner,), timeout=self._bounds.close_s)
        if late:
            owner.cancel()
            await asyncio.wait((owner,), timeout=self._bounds.close_s)


def _connect_fault(error: BaseException, exchange: RequestState) -> ServerFault:
    """Return the fault that ended a connection, in one line and without the server's text."""
    if exchange.fault is not None:
        return exchange.fault
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ServerFault):
        return error
    if isinstance(error, sdk.MCPError):
        return ServerFault("protocol_error", f"the server refused to connect (code {error.code})")
    return ServerFault("connection_lost", f"the connection failed ({type(error).__name__})")
