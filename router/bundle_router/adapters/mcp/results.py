"""What became of a call, in the words of the record: outcomes, codes, and one sentence for the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bundle_router.adapters.mcp.faults import RpcError, ServerFault
from bundle_router.core.models import Outcome, Text
from bundle_router.core.tools.transport.blocks import blocks_of, take_out_nan
from bundle_router.core.tools.transport.pass_through import Client, ServerError, ServerReply, unanswerable
from bundle_router.core.tools.transport.tool_servers import RawResult

_CODES: Final = {-32602: "invalid_params", -32601: "not_found"}
MAX_MESSAGE: Final = 2_000
"""Characters of a server's error message that are passed on."""


def answered(name: str, raw: Mapping[str, Any], max_blocks: int, client: Client | None) -> RawResult:
    """Return a result, or a request for input: of the client where there is one, and else of nobody here."""
    take_out_nan(raw)
    answer = ServerReply(raw) if client is not None else None
    if raw.get("resultType") == "input_required":
        if client is not None:
            if wanted := unanswerable(raw, client):
                return RawResult((Text(_no_input(name, wanted)),), "tool_error", "input_required")
            return RawResult(
                (Text(f"{name} asked the client for more: {_wanted(raw)}."),), "ok", "input_required", answer
            )
        text = f"{name} asked for more input in the middle of the call, which is not supported."
        return RawResult((Text(text),), "tool_error", "input_required")
    failed = raw.get("isError") is True
    blocks = blocks_of(raw, max_blocks)
    return RawResult(blocks, "tool_error" if failed else "ok", "failed" if failed else "", answer)


def passed(name: str, raw: Mapping[str, Any], client: Client | None) -> ServerReply:
    """Return the answer to a request other than a call."""
    take_out_nan(raw)
    answer = ServerReply(raw)
    wanted = unanswerable(raw, client or Client(may_be_asked=False)) if answer.wants_input else ""
    if not wanted:
        return answer
    return ServerReply(outcome="tool_error", code="input_required", text=_no_input(name, wanted))


def _no_input(name: str, wanted: str) -> str:
    return f"{name} asked for more input ({wanted}), which it can't have of this client."


def _wanted(raw: Mapping[str, Any]) -> str:
    """Return what a server asks of a client, by method; its words are not repeated."""
    requests = raw.get("inputRequests")
    methods = (
        (one.get("method") for one in requests.values() if isinstance(one, Mapping))
        if isinstance(requests, Mapping)
        else ()
    )
    return ", ".join(sorted({str(method)[:50] for method in methods})) or "another round"


def refused(name: str, error: RpcError, client: Client | None) -> RawResult:
    """Return the server answered with an error instead of a result: its own words, as it may say what to do better."""
    own = own_error(error)
    code = _CODES.get(error.code, "rpc_error")
    answer = ServerReply(error=own) if client is not None else None
    text = f"{name} refused the call (code {error.code}): {own.message}"
    return RawResult((Text(text),), "tool_error", code, answer)


def own_error(error: RpcError) -> ServerError:
    """Return a server's error, its message bounded."""
    message = error.message if len(error.message) <= MAX_MESSAGE else error.message[:MAX_MESSAGE] + " […]"
    return ServerError(error.code, message, error.data)


def unanswered(raw: RawResult) -> ServerReply:
    """Return why there is no answer to a request other than a call."""
    text = " ".join(block.text for block in raw.blocks if isinstance(block, Text))
    return ServerReply(outcome=raw.outcome, code=raw.code, text=text)


def told_no(error: RpcError) -> ServerReply:
    """Return a server's error, as the answer to a request other than a call."""
    own = own_error(error)
    return ServerReply(error=own, outcome="tool_error", code=_CODES.get(error.code, "rpc_error"), text=own.message)


def faulted(name: str, fault: ServerFault, timeout_s: float) -> RawResult:
    """Return the server, or the way to it, failed."""
    if fault.kind == "timeout":
        text = f"{name} took longer than {timeout_s:g} s and was stopped."
        return RawResult((Text(text),), "timeout", "timeout")
    again = " The call may have been carried out." if fault.sent and fault.kind != "unauthorized" else ""
    outcome: Outcome = "tool_error" if fault.kind == "too_large" else "unavailable"
    return RawResult((Text(f"{name} could not be called: {fault.detail}.{again}"),), outcome, fault.kind)


def circuit_open(name: str, server: str, again_in_s: float) -> RawResult:
    text = f"{name} could not be called: server {server!r} kept failing and is left alone for {again_in_s:.0f} s."
    return RawResult((Text(text),), "unavailable", "circuit_open")


def busy(name: str, server: str) -> RawResult:
    text = f"{name} was not called: server {server!r} has more calls waiting than it can take. Try again later."
    return RawResult((Text(text),), "busy", "busy")
