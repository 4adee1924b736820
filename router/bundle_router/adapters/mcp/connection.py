"""One connection to one server: an owner task that enters and leaves everything, and requests that only use it.

Rules:
1. What is entered in a task is left in that task (cancel scopes insist on it): the owner opens the transport and the
   session, waits, and closes them. Requests never do; they run in tasks of their own, so one of them can't hold up,
   cancel or fail another. Those by a `carrier` need none: they touch nothing of the SDK's.
2. A caller that gives up (its time is up, or it was cancelled) is let go at once. Telling the server happens behind
   its back.
3. Closing is bounded, and the processes and sockets are gone when it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bundle_router.adapters.mcp import sdk
from bundle_router.adapters.mcp.faults import EXCHANGE, NOTHING_DONE, RequestState, RpcError, ServerFault
from bundle_router.adapters.mcp.posting import Redirected, RequestCarrier
from bundle_router.core.catalog import Era
from bundle_router.core.tools.transport.bounds import Bounds
from bundle_router.core.tools.transport.pass_through import Client

_CLOSED_CODE: Final = -32000
_FOLLOW_AGAIN_S: Final = 30.0


class Wire(Protocol):
    """What a transport can tell about itself while it is open."""

    @property
    def fault(self) -> ServerFault | None:
        """Why it ended, if it has."""

    @property
    def stateful(self) -> bool:
        """Whether the other side keeps state for us, which nobody else's calls should share."""

    def note_era(self, hears: Callable[[str], bool]) -> None:
        """Note that the era is known: from now on a failing request fails alone. `hears`: whether anybody is there for
        a notification, by its method."""

    @property
    def pid(self) -> int:
        """The server's process; 0 where it has none here."""

    def carrier(self, *, is_modern: bool) -> RequestCarrier | None:
        """Return what carries requests beside the SDK, if anything does."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says of itself, unread: it is shown to operators, never trusted."""

    name: str
    version: str
    protocol: str
    instructions: str


OpenWire = Callable[[], Any]
"""Gives an async context manager of `(streams, Wire)`. Entered and left by the owner task."""


class Connection:
    """Open one with `open`, use it with `request`, end it with `close`. Everything on one event loop."""

    def __init__(
        self,
        label: str,
        open_wire: OpenWire,
        bounds: Bounds,
        *,
        client: tuple[str, str],
        on_change: Callable[[], None],
        era: Era = "auto",
        gives: Mapping[str, Any] | None = None,
    ) -> None:
        self._label = label
        self._open_wire = open_wire
        self._bounds = bounds
        self._client = client
        self._on_change = on_change
        self._era: Era = era
        self._gives = gives or {}
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[sdk.RawSession] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self._behind: set[asyncio.Task[Any]] = set()
        self._wire: Wire | None = None
        self._session: sdk.RawSession | None = None
        self._fault: ServerFault | None = None
        self.identity = Identity("", "", "", "")

    # --- the owner ---------------------------------------------------------------------------------------------------

    async def open(self, timeout_s: float) -> None:
        """Connect and find the era. Raises ServerFault; the connection is then closed."""
        self._owner = asyncio.get_running_loop().create_task(self._run_session(), name=f"mcp:{self._label}")
        # What ended it is in `_fault`; what escaped from there (an outer cancellation's group) has been waited for.
        self._owner.add_done_callback(lambda owner: owner.cancelled() or owner.exception())
        try:
            await asyncio.wait((self._owner, self._ready), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._ready.done():
                self._session = self._ready.result()
                return
            if not self._owner.done():
                raise ServerFault("timeout", f"the server was not ready within {timeout_s:g} s")
            raise self._why_it_ended()
        except BaseException:  # who is interrupted leaves no connection half open, too
            await self.close()
            raise

    async def _run_session(self) -> None:
        exchange = RequestState(many=True)
        EXCHANGE.set(exchange)
        try:
            async with AsyncExitStack() as stack:
                streams, self._wire = await stack.enter_async_context(self._open_wire())
                dispatcher = sdk.RawDispatcher(*streams)
                session = sdk.RawSession(dispatcher, self._client, self._gives, self._on_change)
                await stack.enter_async_context(session)
                await sdk.negotiate(session, self._era)
                self._wire.note_era(session.listens_to)
                session.is_own = self._wire.stateful
                session.carrier = self._wire.carrier(is_modern=session.is_modern)
                self.identity = _identity(session)
                if not self._ready.done():
                    self._ready.set_result(session)
                await self._until_stopped(session)
        except Exception as error:  # noqa: BLE001 - the boundary to the SDK and the server: whatever ends a connection
            # (exception groups, protocol errors, its own assertions) is that connection's fault, and nobody else's
            self._fault = _connect_fault(error, exchange)

    async def _until_stopped(self, session: sdk.RawSession) -> None:
        """Wait for `close`, or for the connection to end by itself; meanwhile follow what the server announces."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._stop.wait()), loop.create_task(session.dispatcher.ended.wait())]
        following = loop.create_task(self._follow(session)) if session.is_modern and session.announces_changes else None
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, *([following] if following else [])):
                task.cancel()
            await asyncio.gather(*tasks, *([following] if following else []), return_exceptions=True)

    async def _follow(self, session: sdk.RawSession) -> None:
        while True:
            await session.follow_changes()
            await asyncio.sleep(_FOLLOW_AGAIN_S)

    async def follow(self, uri: str, updated: Callable[[], None], begun: Callable[[], None]) -> None:
        """Call `updated` whenever the server says that the resource is another now, until the connection ends; and
        `begun` once the server has agreed. Raises ServerFault, RpcError."""
        if self._session is None or not self.alive:
            raise self._why_it_ended()
        try:
            await self._session.follow_resource(uri, updated, begun)
        except sdk.MCPError as error:
            raise self._failure(error, RequestState()) from error

    def _why_it_ended(self) -> ServerFault:
        fault = self._wire.fault if self._wire is not None else None
        return fault or self._fault or ServerFault("connection_lost", "the connection to the server ended")

    # --- requests ----------------------------------------------------------------------------------------------------

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
        """Return the result, unread. Raises ServerFault (`timeout` among them), RpcError."""
        session = self._session
        if session is not None and session.carrier_for(client) is not None and self.alive:
            try:
                async with asyncio.timeout(timeout_s):
                    return await session.post(method, params, schema, client)
            except TimeoutError:
                raise ServerFault("timeout", f"no answer within {timeout_s:.3g} s", sent=True) from None
            except Redirected:
                session.carrier = None  # the SDK follows redirects within the origin, here and from now on
        work = asyncio.get_running_loop().create_task(self._request(method, params, schema, client))
        self._behind.add(work)
        work.add_done_callback(self._forget)
        try:
            done, _ = await asyncio.wait((work,), timeout=timeout_s)
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not done:
            work.cancel()
            raise ServerFault("timeout", f"no answer within {timeout_s:.3g} s", sent=True)
        if work.cancelled():
            raise ServerFault("closed", "the connection was closed during the call", sent=True)
        return work.result()

    def _forget(self, work: asyncio.Task[Any]) -> None:
        self._behind.discard(work)
        if not work.cancelled():
            work.exception()  # of one that nobody waits for any more

    async def _request(
        self, method: str, params: dict[str, Any], schema: Mapping[str, Any] | None, client: Client | None
    ) -> dict[str, Any]:
        exchange = RequestState(client=client)
        EXCHANGE.set(exchange)
        if self._session is None or not self.alive:
            raise self._why_it_ended()
        try:
            return await self._session.request(method, params, schema, client)
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
        except Exception as error:  # the SDK's own, e.g. a closed stream: the connection's fault, not the caller's
            raise ServerFault("protocol_error", f"{type(error).__name__} in the transport", sent=True) from error

    def _failure(self, error: sdk.MCPError, exchange: RequestState) -> Exception:
        if exchange.fault is not None:
            return exchange.fault
        if not self.alive and error.code == _CLOSED_CODE:
            return self._why_it_ended()
        if sdk.is_unread(error):
            return ServerFault("protocol_error", "the server's answer is no JSON-RPC message")
        return RpcError(error.code, error.message, error.data)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End it: politely, then by cancelling. Return when nothing of it is left; never raises."""
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


def _identity(session: sdk.RawSession) -> Identity:
    info = session.server_info
    return Identity(
        info.name if info else "",
        info.version if info else "",
        session.protocol_version or "",
        session.instructions or "",
    )


def _connect_fault(error: BaseException, exchange: RequestState) -> ServerFault:
    """Return what ended a connection, in one line and without the server's text."""
    if exchange.fault is not None:
        return exchange.fault
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ServerFault):
        return error
    if isinstance(error, sdk.MCPError):
        return ServerFault("protocol_error", f"the server refused to connect (code {error.code})")
    return ServerFault("connection_lost", f"the connection failed ({type(error).__name__})")
