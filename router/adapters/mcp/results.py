"""What became of a call, in the words of the record: outcomes, codes, and one sentence for the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from router.adapters.mcp.faults import RpcError, ServerFault
from router.core.models import Outcome, Text
from router.core.transport.blocks import blocks_of
from router.ports import RawResult

MAX_MESSAGE: Final = 2_000
"""Characters of a server's error message that are passed on."""


def answered(name: str, raw: Mapping[str, Any], max_blocks: int) -> RawResult:
    """A result, or a request for input that nobody here can answer."""
    if raw.get("resultType") == "input_required":
        text = f"{name} asked for more input in the middle of the call, which is not supported."
        return RawResult((Text(text),), "tool_error", "input_required")
    failed = raw.get("isError") is True
    return RawResult(blocks_of(raw, max_blocks), "tool_error" if failed else "ok", "failed" if failed else "")


def refused(name: str, error: RpcError) -> RawResult:
    """The server answered with an error instead of a result: its own words, as it may say what to do better."""
    message = error.message if len(error.message) <= MAX_MESSAGE else error.message[:MAX_MESSAGE] + " […]"
    code = {-32602: "invalid_params", -32601: "not_found"}.get(error.code, "rpc_error")
    return RawResult((Text(f"{name} refused the call (code {error.code}): {message}"),), "tool_error", code)


def faulted(name: str, fault: ServerFault, timeout_s: float) -> RawResult:
    """The server, or the way to it, failed."""
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
