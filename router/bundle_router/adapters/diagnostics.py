r"""Messages for the operator on standard error: the `Diagnostics` port, and the only user of
structlog.

1. Standard error only, looked up at each event. Standard output may be a protocol stream.
2. structlog is imported at the first event above the threshold, and wrapped around this module's
   own writer. Its global configuration belongs to the host application, and is neither read nor
   changed.
3. Redaction comes after every value has become plain text or JSON, so that it covers every `repr`
   and error message.
4. One record is one line of printable characters: control, escape, bidirectional and tag
   characters, line separators and lone surrogates are shown as `\u001b`, `\u202e`. So there is no
   colour either.
5. An error is shown as its type, message and stack lines, never with the values of variables.
6. Nothing raises: diagnostics that can't be written are dropped and counted.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from itertools import islice
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final, Literal, TextIO

from bundle_router.ports import Redactor

Form = Literal["auto", "json", "console"]
LEVELS: Final[Mapping[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}

MAX_TEXT: Final = 4_000
"""Maximum characters of one text in an event; the rest is only counted."""
MAX_ITEMS: Final = 100
MAX_DEPTH: Final = 8
MAX_FRAMES: Final = 20
MAX_CAUSES: Final = 5
MAX_LOOKED_AT: Final = 200_000
"""Maximum characters of one text that are redacted before it is cut to `MAX_TEXT`."""

Event = MutableMapping[str, Any]


class StderrDiagnostics:
    """Writes events as JSON lines, or as readable lines if standard error is a terminal.

    `level` is the lowest level written. `stream` is for tests and hosts that redirect; the default
    is `sys.stderr` at the time of the event. `dropped` counts the events that could not be written.
    """

    def __init__(
        self,
        redactor: Redactor,
        *,
        level: str = "warning",
        stream: TextIO | None = None,
        form: Form = "auto",
    ) -> None:
        self._redactor = redactor
        self._threshold = LEVELS[level]
        self._stream = stream
        self._form = form
        self._lock = threading.Lock()
        self._logger: Any = None
        self.dropped = 0

    def event(self, level: str, name: str, **fields: object) -> None:
        """Write one record.

        `level` is `debug`, `info`, `warning` or `error` (anything else counts as `error`).

        Fields may be any objects: exceptions are described by rule 5, other non-JSON values by
        their bounded `repr`. A field called `time`, `level` or `event` gets a trailing underscore.
        """
        number = LEVELS.get(level, LEVELS["error"])
        if number < self._threshold:
            return
        try:
            self._structured_logger().log(number, name, fields=fields)
        except Exception:  # noqa: BLE001 - rule 6: a field's own code runs in there, and no caller should pay for it
            self.dropped += 1

    def _structured_logger(self) -> Any:
        if self._logger is None:
            import structlog

            self._logger = structlog.wrap_logger(
                _Writer(self),
                processors=[
                    structlog.processors.add_log_level,
                    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                    _flatten_event,
                    self._redact_event,
                    self._render_event,
                ],
                wrapper_class=structlog.make_filtering_bound_logger(self._threshold),
                context_class=dict,
                cache_logger_on_first_use=False,
            ).bind()
        return self._logger

    def _redact_event(self, _logger: object, _method: str, event: Event) -> Event:
        redacted: Event = _shorten_texts(self._redactor.redact_value(dict(event)))
        return redacted

    def _render_event(self, _logger: object, _method: str, event: Event) -> str:
        form = self._form
        if form == "auto":
            stream = self._output_stream()
            terminal = getattr(
                stream, "rich_proxied_file", stream
            )  # the stream behind a progress bar
            form = "console" if terminal.isatty() else "json"
        return visible(
            json.dumps(event, allow_nan=False, separators=(",", ":"))
            if form == "json"
            else _console_line(event)
        )

    def _output_stream(self) -> TextIO:
        stream = self._stream if self._stream is not None else sys.stderr
        if stream is None:  # no console at all, as under pythonw
            raise OSError("there is no standard error")
        return stream

    def write(self, line: str) -> None:
        """Write one line at once, then flush. Raises what the stream raises."""
        stream = self._output_stream()
        encoding = getattr(stream, "encoding", None) or "utf-8"
        safe = line.encode(encoding, "backslashreplace").decode(encoding)
        with self._lock:
            stream.write(safe + "\n")
            stream.flush()


class _Writer:
    """The logger that structlog calls with the finished line, by a method named like its level."""

    def __init__(self, diagnostics: StderrDiagnostics) -> None:
        self.debug = self.info = self.warning = self.error = diagnostics.write


def visible(text: str) -> str:
    """Return the text with every non-printable character shown as `\\u001b` or `\\U000e0041`.

    Idempotent.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _flatten_event(_logger: object, _method: str, event: Event) -> Event:
    """Return the event with its fields on the same level as its name, all as plain JSON values."""
    fields = event.pop("fields")
    flat: Event = {
        "time": event["time"],
        "level": event["level"],
        "event": _plain_json(event["event"], 0),
    }
    for name, value in fields.items():
        flat[f"{name}_" if name in flat else name] = _plain_json(value, 0)
    return flat


def _plain_json(value: object, depth: int) -> Any:
    """Return the value as JSON values, with bounded depth, length and number."""
    if value is None or isinstance(value, (bool, int)):
        if not isinstance(value, int) or abs(value) < 1 << 63:
            return value
        return _show_safely(repr, value)
    if isinstance(value, str):
        return value[:MAX_LOOKED_AT]
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, BaseException):
        return _describe_error(value, MAX_CAUSES)
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        pairs = list(islice(value.items(), MAX_ITEMS))
        return {
            k if isinstance(k, str) else _show_safely(repr, k): _plain_json(item, depth + 1)
            for k, item in pairs
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain_json(item, depth + 1) for item in islice(value, MAX_ITEMS)]
    return _show_safely(repr, value)


def _show_safely(show: Callable[[Any], str], value: object) -> str:
    try:
        return show(value)[:MAX_LOOKED_AT]
    except Exception as failure:  # noqa: BLE001 - a foreign object's own `__repr__` or `__str__`
        return f"<{type(value).__name__} that can't be shown: {type(failure).__name__}>"


def _describe_error(error: BaseException, causes: int) -> dict[str, Any]:
    """Return type, message and stack of an exception and of its causes.

    No locals, no source lines.
    """
    described: dict[str, Any] = {
        "type": type(error).__qualname__,
        "message": _show_safely(str, error),
        "stack": _stack(error.__traceback__),
    }
    if not causes:
        return described

    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    if cause is not None:
        described["cause"] = _describe_error(cause, causes - 1)
    if isinstance(error, BaseExceptionGroup):
        described["group"] = [
            _describe_error(part, causes - 1) for part in error.exceptions[:MAX_CAUSES]
        ]
    return described


def _stack(trace: TracebackType | None) -> list[str]:
    """Return `file:line in function` of the innermost frames, the error's own last."""
    frames = deque(walk_tb(trace), maxlen=MAX_FRAMES)
    return [
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}" for frame, line in frames
    ]


def _shorten_texts(value: Any) -> Any:
    """Return the value with texts cut to `MAX_TEXT`.

    Runs after redaction, which can't recognise half a token.
    """
    if isinstance(value, dict):
        return {_shorten_texts(key): _shorten_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shorten_texts(item) for item in value]
    if not isinstance(value, str):
        return value
    if len(value) <= MAX_TEXT:
        return value
    return f"{value[:MAX_TEXT]}… ({len(value)} characters)"


def _console_line(event: Event) -> str:
    rest = dict(event)
    head = f"{rest.pop('time')} {rest.pop('level'):<7} {rest.pop('event')}"
    return " ".join([head, *(f"{name}={_console_value(value)}" for name, value in rest.items())])


def _console_value(value: Any) -> str:
    if isinstance(value, dict) and {"type", "message", "stack"} <= value.keys():
        return _console_error(value)

    quoted = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str) or not value:
        return quoted
    if not value.isprintable() or set(value) & set(' ="\\'):
        return quoted
    return value


def _console_error(error: dict[str, Any]) -> str:
    where = " < ".join(reversed(error["stack"]))
    text = json.dumps(f"{error['type']}: {error['message']}", ensure_ascii=False) + (
        f" at {where}" if where else ""
    )
    if "cause" in error:
        text += f" caused by {_console_error(error['cause'])}"
    for part in error.get("group", ()):
        text += f" with {_console_error(part)}"
    return text
