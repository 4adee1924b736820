"""S-18 and the diagnostics' half of S-17: one event is one printable line on standard error,
without secrets.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import pytest
import structlog
from bundle_router.adapters.diagnostics import StderrDiagnostics
from bundle_router.adapters.redaction import SecretRedactor
from rich.console import Console
from rich.file_proxy import FileProxy

TOKEN = "ghp_" + "aB3dE5gH7" * 4
REDACTOR = SecretRedactor({"VENDOR_KEY": "correct horse/battery+staple"})
NAUGHTY: list[str] = json.loads(
    (Path(__file__).parents[1] / "data/blns/blns.json").read_text("utf-8")
)
HOSTILE = [
    "\x1b[2J\x1b]0;title\x07",
    "line\r\nWARNING forged=1",
    "\r\x1b[Aoverwritten",
    "a\u2028b\u2029c\x85d",
    "\u202eevil\u2066\u200f",
    "\U000e0041\U000e0042",
    "\ud800 alone \udfff",
    "\x9b31m c1 \x7f",
    "nul\x00",
    "\ufeff\u200b",
]

Shape = Literal["json", "console"]


def lines_of(
    form: Shape, *events: tuple[str, str, dict[str, Any]], level: str = "debug"
) -> list[str]:
    stream = io.StringIO()
    diagnostics = StderrDiagnostics(REDACTOR, level=level, stream=stream, form=form)
    for severity, name, fields in events:
        diagnostics.event(severity, name, **fields)
    assert diagnostics.dropped == 0
    text = stream.getvalue()
    assert text == "" or text.endswith("\n")
    return text.split("\n")[:-1]


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "place", ["event", "value", "key", "nested value", "nested key", "list", "error"]
)
def test_one_event_is_one_printable_line_wherever_hostile_text_stands(
    form: Shape, place: str
) -> None:
    for text in [*NAUGHTY, *HOSTILE]:
        events: dict[str, tuple[str, str, dict[str, Any]]] = {
            "event": ("warning", text, {}),
            "value": ("warning", "x.y", {"field": text}),
            "key": ("warning", "x.y", {f"k{text}": 1}),
            "nested value": ("warning", "x.y", {"field": {"a": [text]}}),
            "nested key": ("warning", "x.y", {"field": {text: 1}}),
            "list": ("warning", "x.y", {"field": [text, (text,)]}),
            "error": ("warning", "x.y", {"error": ValueError(text)}),
        }
        (line,) = lines_of(form, events[place])
        assert line.isprintable()
        if form == "json":
            assert isinstance(json.loads(line), dict)


def test_a_json_line_holds_time_level_event_and_fields() -> None:
    (line,) = lines_of(
        "json", ("error", "log.healed", {"run_id": "r-1", "bytes": 12, "level_of": {"a": 1.5}})
    )
    record = json.loads(line)
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "error",
        "event": "log.healed",
        "run_id": "r-1",
        "bytes": 12,
        "level_of": {"a": 1.5},
    }


def test_a_console_line_is_readable() -> None:
    (line,) = lines_of(
        "console", ("warning", "log.healed", {"run_id": "r-1", "detail": "two words", "n": 3})
    )
    assert line.split(" ", 1)[1] == 'warning log.healed run_id=r-1 detail="two words" n=3'


def test_a_line_before_a_progress_bar_on_a_terminal_is_readable_too() -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    console = Console(file=terminal, force_terminal=True, width=200)
    StderrDiagnostics(REDACTOR, stream=cast(TextIO, FileProxy(console, terminal))).event(
        "warning", "model.suspended"
    )
    assert "warning model.suspended" in terminal.getvalue()


@pytest.mark.parametrize(
    ("level", "expected"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_events_under_the_level_are_not_written(level: str, expected: int) -> None:
    events: list[tuple[str, str, dict[str, Any]]] = [
        (name, "x", {}) for name in ("debug", "info", "warning", "error")
    ]
    assert len(lines_of("json", *events, level=level)) == expected


def test_fields_named_like_our_own_do_not_replace_them() -> None:
    (line,) = lines_of("json", ("warning", "x", {"time": 1, "event": 2}))
    assert json.loads(line)["event"] == "x"
    assert json.loads(line)["event_"] == 2


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Endless(dict[str, Any]):
    """A mapping that holds itself."""


@pytest.mark.parametrize("form", ["json", "console"])
def test_any_object_can_be_a_field(form: Shape) -> None:
    endless = Endless()
    endless["self"] = endless
    fields = {
        "nan": float("nan"),
        "bytes": b"\x00\xff",
        "object": Unshowable(),
        "keys": {1: "a", None: "b", (1, 2): "c"},
        "endless": endless,
        "huge": 10**5000,
        "set": {1},
        "many": list(range(100_000)),
        "long": "x" * 1_000_000,
    }
    (line,) = lines_of(form, ("warning", "x", fields))
    assert len(line) < 20_000


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_is_written(form: Shape) -> None:
    class Client:
        def __repr__(self) -> str:
            return f"Client(headers={{'Authorization': 'Bearer {TOKEN}'}})"

    fields = {
        "url": f"https://bob:hunter2@example.com/?access_token={TOKEN}",
        "password": "hunter2",
        "client": Client(),
        "error": ValueError(f"refused {TOKEN} of correct horse/battery+staple"),
        "data": {TOKEN: [f"x{TOKEN}", b"token " + TOKEN.encode()]},
        "cut": "x " * 1_985 + TOKEN,
    }
    (line,) = lines_of(form, ("warning", f"x {TOKEN}", fields))
    for secret in (TOKEN[:12], "hunter2", "battery"):
        assert secret not in line


def fail(depth: int) -> None:
    canary = "canary-" + "in-a-local"
    secret = {"local": canary}
    if depth:
        fail(depth - 1)
    try:
        raise KeyError("inner")
    except KeyError as inner:
        raise ValueError(f"outer {len(secret)}") from inner


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_error_shows_where_it_went_and_no_locals(form: Shape) -> None:
    with pytest.raises(ValueError) as caught:
        fail(3)
    (line,) = lines_of(form, ("error", "tool.crashed", {"error": caught.value}))
    assert "canary" not in line
    assert "ValueError" in line
    assert "outer 1" in line
    assert "KeyError" in line
    assert f"{Path(__file__).name}:" in line
    assert " in fail" in line


def test_errors_in_groups_and_endless_causes_are_bounded() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    group = ExceptionGroup("several", [first, second])
    (line,) = lines_of("json", ("error", "x", {"error": group}))
    assert [part["message"] for part in json.loads(line)["error"]["group"]] == ["a", "b"]


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [Broken(), closed()])
def test_a_broken_or_closed_stream_is_survived_and_counted(stream: io.StringIO) -> None:
    diagnostics = StderrDiagnostics(REDACTOR, stream=stream)
    diagnostics.event("error", "x")
    diagnostics.event("error", "y")
    assert diagnostics.dropped == 2


def test_a_stream_that_knows_ascii_only_gets_escapes() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    StderrDiagnostics(REDACTOR, stream=stream, form="console").event("error", "x", field="é")
    assert b"field=\\xe9" in raw.getvalue()


def test_threads_do_not_mix_their_lines() -> None:
    stream = io.StringIO()
    diagnostics = StderrDiagnostics(REDACTOR, stream=stream, form="json")

    def write(number: int) -> None:
        for count in range(50):
            diagnostics.event("error", "x", number=number, count=count)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(records) == 400


@pytest.fixture
def host_configuration() -> Iterator[list[Any]]:
    seen: list[Any] = []

    def keep(
        _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        seen.append(event)
        raise structlog.DropEvent

    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(processors=[keep])
    yield seen
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_the_hosts_structlog_configuration_is_neither_used_nor_changed(
    host_configuration: list[Any],
) -> None:
    before = structlog.get_config()
    assert len(lines_of("json", ("error", "ours", {}))) == 1
    assert structlog.get_config() == before
    assert host_configuration == []
    structlog.get_logger().error("theirs")
    assert [event["event"] for event in host_configuration] == ["theirs"]


PROGRAM = """
import sys
from bundle_router.adapters.diagnostics import StderrDiagnostics
from bundle_router.adapters.redaction import SecretRedactor
from rich.console import Console
from rich.file_proxy import FileProxy
diagnostics = StderrDiagnostics(SecretRedactor())
diagnostics.event("info", "below.threshold")
print("structlog" in sys.modules)
diagnostics.event("error", "x.y", field="\\x1b[31mred\\n", token="ghp_" + "aB3dE5gH7" * 4)
"""


def run(stderr: int) -> subprocess.CompletedProcess[bytes]:
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=stderr,
        check=True,
        timeout=300,
    )


def test_a_process_writes_json_to_a_pipe_and_nothing_to_standard_output() -> None:
    done = run(subprocess.PIPE)
    assert (
        done.stdout == b"False\n"
    )  # and structlog was not imported for an event below the threshold
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["token"] == "[redacted:named-secret]"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_a_process_writes_a_plain_line_to_a_terminal() -> None:
    ours, theirs = os.openpty()
    try:
        done = run(theirs)
        shown = os.read(ours, 65_536)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout == b"False\n"
    line = shown.decode().removesuffix("\r\n")  # the terminal's own translation of the newline
    assert line.isprintable()
    assert 'error   x.y field="\\u001b[31mred\\n" token=[redacted:named-secret]' in line


@pytest.mark.skipif(os.name != "posix", reason="closes a file descriptor by shell syntax")
def test_a_process_without_standard_error_goes_on() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, PROGRAM],
        cwd=root,
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    assert done.stdout == b"False\n"
