"""The results of calls and of other requests to a server, with the outcomes and codes of the
records, and one sentence for the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from bundle_router.adapters.mcp.faults import MAX_MESSAGE, RpcError, ServerFault
from bundle_router.core.servers.transport.blocks import blocks_of
from bundle_router.core.servers.transport.pass_through import (
    Client,
    ServerError,
    ServerReply,
    why_unanswerable,
)
from bundle_router.core.servers.transport.tool_servers import RawResult
from bundle_router.core.values import Outcome, Text

_CODES: Final = {-32602: "invalid_params", -32601: "not_found"}


def read_answer(
    name: str, raw: dict[str, Any], max_blocks: int, client: Client | None
) -> RawResult:
    """Return the result of a call.

    A request for input is passed to the client; without a client it is an error.
    """
    answer = ServerReply(raw) if client is not None else None
    if raw.get("resultType") == "input_required":
        if client is not None:
            if wanted := why_unanswerable(raw, client):
                return RawResult((Text(_no_input(name, wanted)),), "tool_error", "input_required")
            return RawResult(
                (Text(f"{name} asked the client for more: {_wanted_inputs(raw)}."),),
                "ok",
                "input_required",
                answer,
            )
        text = f"{name} asked for more input in the middle of the call, which is not supported."
        return RawResult((Text(text),), "tool_error", "input_required")
    blocks = blocks_of(raw, max_blocks)
    failed = raw.get("isError")
    if unknown := _why_unknown(name, raw):
        return RawResult((Text(unknown), *blocks), "tool_error", "protocol_error", answer)
    return RawResult(blocks, "tool_error" if failed else "ok", "failed" if failed else "", answer)


def read_reply(name: str, raw: dict[str, Any], client: Client | None) -> ServerReply:
    """Return the reply to a request other than a call."""
    answer = ServerReply(raw)
    if answer.wants_input:
        wanted = why_unanswerable(raw, client or Client(may_be_asked=False))
        code = "input_required"
        text = wanted and _no_input(name, wanted)
    else:
        code = "protocol_error"
        text = _why_unknown(name, raw)
    return ServerReply(outcome="tool_error", code=code, text=text) if text else answer


def _why_unknown(name: str, raw: Mapping[str, Any]) -> str:
    """Return why a result is none of a known kind, and so invalid by the specification; nothing if
    it is of one.
    """
    is_known = raw.get("resultType") in (None, "complete") and isinstance(
        raw.get("isError"), bool | None
    )
    return "" if is_known else f"{name}: its result is of an unknown kind, and may be a failure."


def _no_input(name: str, wanted: str) -> str:
    return f"{name} asked for more input ({wanted}), which it can't have of this client."


def _wanted_inputs(raw: Mapping[str, Any]) -> str:
    """Return the methods of a server's input requests, without the server's text."""
    requests = raw.get("inputRequests")
    inputs = requests.values() if isinstance(requests, Mapping) else ()
    methods = [one.get("method") for one in inputs if isinstance(one, Mapping)]
    return ", ".join(sorted({str(method)[:50] for method in methods})) or "another round"


def error_result(name: str, error: RpcError, client: Client | None) -> RawResult:
    """Return the result of a call that the server answered with an error.

    It quotes the server's own words.
    """
    own = own_error(error)
    code = _CODES.get(error.code, "rpc_error")
    answer = ServerReply(error=own) if client is not None else None
    text = f"{name} refused the call (code {error.code}): {own.message}{_data_of(error)}"
    return RawResult((Text(text),), "tool_error", code, answer)


def _data_of(error: RpcError) -> str:
    """Return what else a server said of its error, as compact JSON on a line of its own.

    It names the field that is wrong, or the address where a person has to agree.
    """
    if error.data in (None, "", [], {}, error.message):
        return ""
    if isinstance(error.data, str):
        text = error.data
    else:
        text = json.dumps(error.data, ensure_ascii=False, separators=(",", ":"))
    return f"\ndata: {text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + ' […]'}"


def own_error(error: RpcError) -> ServerError:
    """Return a server's error with its message bounded."""
    if len(error.message) <= MAX_MESSAGE:
        message = error.message
    else:
        message = error.message[:MAX_MESSAGE] + " […]"
    return ServerError(error.code, message, error.data)


def no_answer_reply(raw: RawResult) -> ServerReply:
    """Return the reply to a request (other than a call) that got no answer."""
    text = " ".join(block.text for block in raw.blocks if isinstance(block, Text))
    return ServerReply(outcome=raw.outcome, code=raw.code, text=text)


def error_reply(error: RpcError) -> ServerReply:
    """Return the reply to a request (other than a call) that the server answered with an error."""
    own = own_error(error)
    return ServerReply(
        error=own, outcome="tool_error", code=_CODES.get(error.code, "rpc_error"), text=own.message
    )


def fault_result(name: str, fault: ServerFault, timeout_s: float) -> RawResult:
    """Return the result of a call that failed because of the server, or of the way to it."""
    unnamed = ""
    if fault.unnamed:
        unnamed = f" Meanwhile the server sent an error that named no call: {fault.unnamed}"
    if fault.kind == "timeout":
        text = f"{name} took longer than {timeout_s:g} s and was stopped.{unnamed}"
        return RawResult((Text(text),), "timeout", "timeout")
    if fault.sent and fault.kind != "unauthorized":
        again = " The call may have been carried out."
    else:
        again = ""
    outcome: Outcome = "tool_error" if fault.kind == "too_large" else "unavailable"
    words = f" The server's words: {fault.words}" if fault.words else ""
    text = f"{name} could not be called: {fault.detail}.{again}{words}{unnamed}"
    return RawResult((Text(text),), outcome, fault.kind)


def circuit_open(name: str, server: str, again_in_s: float) -> RawResult:
    text = (
        f"{name} could not be called: server {server!r} kept failing and is left alone for"
        f" {again_in_s:.0f} s."
    )
    return RawResult((Text(text),), "unavailable", "circuit_open")


def busy_result(name: str, server: str) -> RawResult:
    text = (
        f"{name} was not called: server {server!r} has more calls waiting than it can take. Try"
        " again later."
    )
    return RawResult((Text(text),), "busy", "busy")
