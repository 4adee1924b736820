"""What the transports and a connection's session agree on: a request, its time, and who hears what
the server says besides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from bundle_router.adapters.mcp.faults import RpcError, ServerFault
from bundle_router.adapters.workers import run_in_turn
from bundle_router.core.servers.reader import (
    LARGE,
    Event,
    GarbledAnswer,
    Notification,
    OversizedAnswer,
    RequestId,
    RpcRefusal,
    RpcResult,
    ServerReader,
    ServerRequest,
)
from bundle_router.core.values.canonical import PIECE, budget_left

if TYPE_CHECKING:
    from bundle_router.core.servers.reader.agreement import Agreement
    from bundle_router.core.servers.transport.pass_through import Client

CANCELLED: Final = "notifications/cancelled"


class Patience:
    """The time that a server has for one request, less what we need ourselves to read answers.

    `async with Patience(30.0) as patience:` raises TimeoutError in its task when the time is up.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._timeout = asyncio.timeout(timeout_s)
        self._left_s = 0.0

    async def __aenter__(self) -> Patience:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._timeout.__aexit__(*failure)

    def pause(self) -> None:
        """Stop the clock: from now on it is our own time."""
        due = self._timeout.when()
        if due is not None and not self._timeout.expired():
            self._left_s = due - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def resume(self) -> None:
        """Let the clock go on."""
        if self._timeout.when() is None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)


@dataclass(slots=True, eq=False)
class Outgoing:
    """One request on its way to a server."""

    number: int
    """Its id, which the answer names."""
    method: str
    params: str
    """Its params, as JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that HTTP servers want besides."""
    client: Client | None = None
    """The agent's client on whose behalf it is made."""
    patience: Patience | None = None
    """The server's time for it; None if nobody counts."""
    cancels: bool = True
    """Whether the server is told when nobody waits for the answer any more."""
    unnamed_error: str = ""
    """What the server said in an error that named no request, while this one waited."""

    @property
    def body(self) -> bytes:
        """The whole message. Lone surrogates are replaced: they are no UTF-8."""
        text = (
            f'{{"jsonrpc":"2.0","id":{self.number},"method":"{self.method}"'
            f',"params":{self.params}}}'
        )
        return text.encode("utf-8", "replace")


class Session(Protocol):
    """Who hears what a server says besides its answers. Nothing here may raise."""

    def notified(self, notification: Notification, request: Outgoing | None) -> None:
        """Take a notification. `request`: the one whose stream it came on, if that is known."""

    async def asked(self, question: ServerRequest, request: Outgoing | None) -> bytes:
        """Return the message that answers a request of the server."""


class Transport(Protocol):
    """Moves the bytes of one connection. On one event loop."""

    first_number: int
    """The id of the first request."""
    stateful: bool
    """Whether the server keeps state for this client, so that other callers must not share it."""
    fault: ServerFault | None
    """Why the connection has ended, if it has."""
    silence_s: float
    """Seconds without an answer to the question for its era after which a server gets the
    handshake too: servers without the modern era may ignore it.
    """

    @property
    def pid(self) -> int:
        """The id of the server's process; 0 if it has none on this machine."""

    async def open(self, session: Session) -> None:
        """Reach the server, as far as that is possible without a request. Raises ServerFault."""

    async def exchange(self, request: Outgoing) -> dict[str, Any]:
        """Send a request and return its result, unchecked.

        Raises ServerFault, RpcError. Cancelling tells the server, if the request says so.
        """

    async def notify(self, message: bytes) -> None:
        """Send a message that has no answer. Raises ServerFault."""

    def agreed(self, agreement: Agreement) -> None:
        """Note what the connection was opened with."""

    async def wait_ended(self) -> None:
        """Wait until the connection has ended, if it can end by itself."""

    async def close(self) -> None:
        """End everything. Nothing is left when this returns; never raises."""


def message(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """Return a notification as its bytes."""
    fields: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        fields["params"] = dict(params)
    return encode_json(fields).encode("utf-8", "replace")


def reply(id_: RequestId, **fields: Any) -> bytes:
    """Return the answer to a request of the server, with a `result` or an `error`."""
    return encode_json({"jsonrpc": "2.0", "id": id_, **fields}).encode("utf-8", "replace")


def encode_json(value: Any) -> str:
    """Return a value as compact JSON in its own order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def encode_params(params: Mapping[str, Any]) -> str:
    """Return a request's params as JSON; those with large arguments are encoded in a thread."""
    if budget_left(params.get("arguments"), PIECE) >= 0:
        return encode_json(params)
    return await run_in_turn("shaped", partial(encode_json, params))


async def next_event(reader: ServerReader, waiting: tuple[Patience, ...] = ()) -> Event:
    """Return a reader's next event; a large frame is read in the thread for them.

    That time is ours: the `waiting` requests do not lose it.
    """
    if reader.next_size < LARGE:
        return reader.next_event()
    for patience in waiting:
        patience.pause()
    try:
        return await run_in_turn("read", reader.next_event)
    finally:
        for patience in waiting:
            patience.resume()


def outcome_of(event: Event, number: int) -> dict[str, Any] | None:
    """Return the result in the answer to a request that had a stream to itself; None for an event
    that is no answer.

    Raises RpcError for a refusal, ServerFault for what is no answer to it.
    """
    if isinstance(event, RpcResult):
        if event.id != number:
            raise garbled_fault()
        return event.result
    if isinstance(event, RpcRefusal):
        if event.id not in (number, None):
            raise garbled_fault()
        raise RpcError(event.code, event.message, event.data)
    if isinstance(event, GarbledAnswer):
        raise garbled_fault()
    if isinstance(event, OversizedAnswer):
        raise oversized_fault(event)
    return None


def garbled_fault(why: str = "the server's answer is not a JSON-RPC message") -> ServerFault:
    return ServerFault("protocol_error", why, sent=True)


def oversized_fault(answer: OversizedAnswer) -> ServerFault:
    sizes = f"{answer.size:,} bytes, more than {answer.max_bytes:,}"
    return ServerFault("too_large", f"the server sent an answer of {sizes}", sent=True)


def cut_fault() -> ServerFault:
    return ServerFault(
        "connection_lost", "the server ended its answer before it was whole", sent=True
    )
