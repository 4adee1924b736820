"""A tool server with every kind of fault, for the demo. Run by its path, as a process of its own:

    python -I -S faulty.py

It speaks MCP over stdio (revision 2025-11-25) by hand, so that it can send what no library would.
It ignores the end of its input and SIGTERM, and so does a process that it leaves behind in another
session. `FAULTS` names its tools.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

FAULTS = {
    "crash": "its process ends in the middle of the call",
    "hang": "it never answers",
    "noise": "log lines, half a JSON text and invalid UTF-8 before its answer",
    "twice": "it answers twice, and to calls that nobody made",
    "flood": "a line of 200 MB",
    "liar": "a result that breaks its own output schema",
    "smuggle": "an image as base64 within text",
}
FLOOD_BYTES = 200_000_000
HANG_S = 60
"""Also the maximum life of the process it left behind."""
_ANY = {"type": "object"}
_NUMBER = {"type": "object", "properties": {"degrees": {"type": "number"}}, "required": ["degrees"]}
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgAAACAAAB4iG8MwAAAABJRU5ErkJggg=="
)


def tools() -> list[dict[str, object]]:
    """Return its list: `echo`, the faults, and an invalid definition."""
    listed: list[dict[str, object]] = [
        {"name": name, "description": f"A fault: {what}.", "inputSchema": _ANY}
        for name, what in FAULTS.items()
    ]
    next(tool for tool in listed if tool["name"] == "liar")["outputSchema"] = _NUMBER
    echo: dict[str, object] = {
        "name": "echo",
        "description": "Says that it is there.",
        "inputSchema": _ANY,
    }
    return [echo, *listed, {"name": "broken", "description": "No tool.", "inputSchema": "no"}]


def main() -> None:
    """Answer until its input ends; then keep running, as some servers do."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _leave_somebody_behind()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message:
            _answer(message["id"], message.get("method"), message.get("params") or {})
    time.sleep(HANG_S)


def _leave_somebody_behind() -> None:
    if os.fork() == 0:
        os.setsid()
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        time.sleep(HANG_S)
        os._exit(0)


def _answer(id_: object, method: object, params: dict[str, object]) -> None:
    if method == "initialize":
        _result(
            id_,
            protocolVersion="2025-11-25",
            capabilities={"tools": {}},
            serverInfo={"name": "faulty", "version": "1"},
        )
    elif method == "tools/list":
        _result(id_, tools=tools())
    elif method == "tools/call":
        _call(id_, str(params.get("name")))
    else:
        _send(
            {
                "jsonrpc": "2.0",
                "id": id_,
                "error": {"code": -32601, "message": "there is no such method"},
            }
        )


def _call(id_: object, name: str) -> None:
    if name == "crash":
        os._exit(3)
    if name == "hang":
        return
    if name == "noise":
        _write(b'starting up...\n{"jsonrpc": "2.0", "id"\n\xff\xfe\x80 no text\n')
    if name == "flood":
        _write(b'{"jsonrpc":"2.0","result":"' + b"x" * FLOOD_BYTES + b'"}\n')
    if name == "twice":
        _text(987_654, "an answer to nobody")
        _text(id_, "the first answer")
    if name == "liar":
        _result(
            id_, content=[{"type": "text", "text": "cold"}], structuredContent={"degrees": "cold"}
        )
    elif name == "smuggle":
        _text(id_, f"here it is: data:image/png;base64,{_PIXEL}")
    else:
        _text(id_, f"{name}: answered")


def _text(id_: object, text: str) -> None:
    _result(id_, content=[{"type": "text", "text": text}])


def _result(id_: object, **result: object) -> None:
    _send({"jsonrpc": "2.0", "id": id_, "result": result})


def _send(message: dict[str, object]) -> None:
    _write(json.dumps(message).encode() + b"\n")


def _write(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main()
