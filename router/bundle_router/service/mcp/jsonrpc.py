"""JSON-RPC messages of agents' clients: bytes in, values out, and back. Pure.

Rules:
1. A body is one JSON object: a request, a notification or a response. An array (a batch), and
   anything else, is none of them.
2. The id of a request is a string or an integer. `null`, `true` and `1.0` are no ids: an answer to
   them would reach nobody.
3. What is written is ASCII, so that no reader of lines or of event streams finds a separator within
   it, and is JSON to every reader: half a pair of surrogates becomes U+FFFD, NaN becomes null.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800
"""The code of a cancelled request's answer, which a POST must have: that of LSP and of the SDK."""
_RETIRED: Final[Mapping[int, int]] = {-32002: INVALID_PARAMS, -32042: INTERNAL_ERROR}
"""Codes of the handshake era that the modern one must not have (a resource that was not found, an
address to be visited), and what stands there instead.
"""

_SURROGATES: Final = re.compile(
    r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\\ud[89a-f][0-9a-f]{2}"
)
"""In JSON of ASCII: an escaped backslash, a pair of surrogates, or one alone."""


class AnswerError(Exception):
    """A JSON-RPC error, to be sent to the client."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def to_json(self) -> Json:
        """Return the error object."""
        error: Json = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


def present_error(error: AnswerError) -> AnswerError:
    """Return the error with a code that the modern era has: two of the handshake's are retired, and
    must not be sent in it, whatever server said them.
    """
    code = _RETIRED.get(error.code)
    if code is None:
        return error
    return AnswerError(code, error.message, error.data)


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """A request: a message that gets an answer."""

    id: int | str
    """Its id, which the client chose."""
    method: str
    """Its method."""
    params: Json
    """Its parameters; empty if it has none."""


@dataclass(frozen=True, slots=True)
class NotificationMessage:
    """A notification: a message without an answer."""

    method: str
    """Its method."""
    params: Json
    """Its parameters; empty if it has none."""


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """The client's answer to a request of the server."""

    id: int | str | None
    """The id of the request; None if the client could not read it."""
    result: Json | None
    """The result; None if the client refused."""
    error: AnswerError | None
    """The client's refusal."""


Message = RequestMessage | NotificationMessage | AnswerMessage


def read_message(body: bytes) -> Message:
    """Return the message in a body. Raises AnswerError, in the words for the client."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):  # ValueError also for a number of too many digits
        raise AnswerError(PARSE_ERROR, "Parse error") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _no_message()
    if "method" in message:
        return _read_call(message)
    return _read_answer(message)


def _read_call(message: Json) -> RequestMessage | NotificationMessage:
    method = message["method"]
    params = message.get("params")
    if params is None:
        params = {}
    if not isinstance(method, str) or not isinstance(params, dict):
        raise _no_message()
    if "id" not in message:
        return NotificationMessage(method, params)
    id_ = message["id"]
    if not is_id(id_):
        raise AnswerError(INVALID_REQUEST, "The id of a request must be a string or an integer.")
    return RequestMessage(id_, method, params)


def _read_answer(message: Json) -> AnswerMessage:
    id_ = message.get("id")
    if id_ is not None and not is_id(id_):
        raise _no_message()
    result = message.get("result")
    error = message.get("error")
    if isinstance(result, dict) and error is None:
        return AnswerMessage(id_, result, None)
    if isinstance(error, dict) and result is None:
        return AnswerMessage(id_, None, _read_error(error))
    raise _no_message()


def _read_error(error: Json) -> AnswerError:
    code = error.get("code")
    if not isinstance(code, int) or isinstance(code, bool):
        code = INTERNAL_ERROR
    return AnswerError(code, str(error.get("message", "")), error.get("data"))


def is_id(value: Any) -> bool:
    """Return whether the value may be the id of a request."""
    return isinstance(value, int | str) and not isinstance(value, bool)


def _no_message() -> AnswerError:
    return AnswerError(
        INVALID_REQUEST, "Body must be a single JSON-RPC request, notification or response object"
    )


def write_json(value: Any) -> str:
    """Return the value as JSON. Raises ValueError for one that nests too deep."""
    try:
        text = _dump(value)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if "\\ud" in text:
        text = _SURROGATES.sub(_pair_or_sign, text)
    return text


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(value), separators=(",", ":"))


def _pair_or_sign(found: re.Match[str]) -> str:
    is_alone = found[0].startswith("\\u") and len(found[0]) == len("\\ud800")
    return "\\ufffd" if is_alone else found[0]


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_without_nan, value))
    return value


def result_message(id_: int | str, result: str) -> bytes:
    """Return the answer to a request: `result` is JSON already."""
    return f'{{"jsonrpc":"2.0","id":{json.dumps(id_)},"result":{result}}}'.encode()


def error_message(id_: int | str | None, error: AnswerError) -> bytes:
    """Return the refusal of a request; without an id where it could not be read."""
    text = write_json(error.to_json())
    return f'{{"jsonrpc":"2.0","id":{json.dumps(id_)},"error":{text}}}'.encode()


def notification_message(method: str, params: Mapping[str, Any] | None) -> bytes:
    """Return a notification of the server."""
    message: Json = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return write_json(message).encode()


def question_message(id_: int, method: str, params: Mapping[str, Any] | None) -> bytes:
    """Return a request of the server to the client."""
    message: Json = {"jsonrpc": "2.0", "id": id_, "method": method}
    if params is not None:
        message["params"] = params
    return write_json(message).encode()
