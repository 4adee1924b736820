"""From a frame's JSON to the events it means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bundle_router.core.servers.reader.events import (
    Answer,
    Event,
    GarbledAnswer,
    Noise,
    Notification,
    OversizedAnswer,
    RequestId,
    RpcRefusal,
    RpcResult,
    ServerRequest,
)
from bundle_router.core.servers.reader.json_values import read_json
from bundle_router.core.servers.reader.repeated_output import fits_once

INTERNAL_ERROR: Final = -32603
_EXCERPT: Final = 200
_HEAD: Final = 200
_ID: Final = re.compile(rb'"id"\s*:\s*"?(\d{1,18})(?!\d)')


def read_frame(
    frame: bytes | bytearray, *, is_answer: bool, max_bytes: int | None = None
) -> list[Event]:
    """Return the events of a frame: at least one.

    `is_answer`: nothing follows it, so what is no message was meant as the answer. A message of
    more than `max_bytes` is a result that says the same twice, or too large. Never raises.
    """
    try:
        value = read_json(frame)
    except ValueError:
        return [_unreadable(frame, is_answer=is_answer)]
    messages = value if isinstance(value, list) else [value]
    events = list(_events_of(messages, frame))
    if max_bytes is not None and len(frame) > max_bytes:
        events = [_bounded(event, frame, max_bytes) for event in events]
    if is_answer and not any(isinstance(event, Answer) for event in events):
        events.append(GarbledAnswer(None))
    return events or [_noise(frame)]


def _events_of(messages: list[Any], frame: bytes | bytearray) -> Iterator[Event]:
    for message in messages:
        if not isinstance(message, dict):
            yield _noise(frame)
        elif "method" in message:
            yield _event_of_the_servers(message, frame)
        elif "id" in message or "result" in message or "error" in message:
            yield _event_of_an_answer(message, len(frame))
        else:
            yield _noise(frame)


def _bounded(event: Event, frame: bytes | bytearray, max_bytes: int) -> Event:
    """Return the event of a frame of more than `max_bytes`, where it may be so large."""
    if isinstance(event, GarbledAnswer | Noise):
        return event
    if isinstance(event, RpcResult) and fits_once(event.result, event.size, max_bytes):
        return event
    if isinstance(event, RpcResult | RpcRefusal):
        return OversizedAnswer(event.id, len(frame), max_bytes)
    return _noise(frame)


def _event_of_the_servers(message: Mapping[str, Any], frame: bytes | bytearray) -> Event:
    method = message["method"]
    params = message.get("params")
    if params is None:
        params = {}
    if not isinstance(method, str) or not isinstance(params, dict):
        return _noise(frame)
    id_ = message.get("id")
    if "id" not in message:
        return Notification(method, params, len(frame))
    if isinstance(id_, bool) or not isinstance(id_, int | str):
        return _noise(frame)
    return ServerRequest(id_, method, params, len(frame))


def _event_of_an_answer(message: Mapping[str, Any], size: int) -> Event:
    id_ = request_id_of(message.get("id"))
    result = message.get("result")
    error = message.get("error")
    if message.get("jsonrpc") != "2.0":
        return GarbledAnswer(id_)
    if error is not None:
        refusal = _refusal(id_, error)
        return refusal if refusal is not None and result is None else GarbledAnswer(id_)
    if isinstance(result, dict) and id_ is not None:
        return RpcResult(id_, result, size)
    return GarbledAnswer(id_)


def _refusal(id_: RequestId | None, error: object) -> RpcRefusal | None:
    """Return what an error says, in whatever form; None if it says nothing."""
    if isinstance(error, str) and error:
        return RpcRefusal(id_, INTERNAL_ERROR, error, None)
    if not isinstance(error, dict):
        return None
    code = _code_of(error.get("code"))
    message = error.get("message")
    if isinstance(message, str) and message:
        return RpcRefusal(id_, INTERNAL_ERROR if code is None else code, message, error.get("data"))
    if code is None:
        return None
    return RpcRefusal(id_, code, "(the server gave no message)", error.get("data"))


def _code_of(code: object) -> int | None:
    if isinstance(code, bool):
        return None
    if isinstance(code, int):
        return code
    if isinstance(code, float) and code.is_integer():
        return int(code)
    if isinstance(code, str) and re.fullmatch(r"-?[0-9]{1,9}", code):
        return int(code)
    return None


def request_id_of(id_: object) -> RequestId | None:
    """Return the id that an answer names: a number also where it is written as text or `1.0`."""
    if isinstance(id_, bool):
        return None
    if isinstance(id_, int):
        return id_
    if isinstance(id_, float) and id_.is_integer():
        return int(id_)
    if not isinstance(id_, str):
        return None
    if id_.isascii() and id_.isdecimal() and len(id_) < 19:
        return int(id_)
    return id_


def _unreadable(frame: bytes | bytearray, *, is_answer: bool) -> Event:
    """Return what a frame is that can't be parsed: it may have been meant as an answer."""
    if is_answer:
        return GarbledAnswer(None)
    if not frame.startswith(b"{") or b'"method"' in frame:
        return _noise(frame)
    match = _ID.search(frame[:_HEAD]) or _ID.search(frame[-_HEAD:])
    if match is None:
        return _noise(frame)
    return GarbledAnswer(int(match[1]))


def _noise(frame: bytes | bytearray) -> Noise:
    return Noise(bytes(frame[:_EXCERPT]))
