"""A server over stdio that answers each call with the bytes of a file:
`python odd_server.py FILE ERA`.

It is started for every row of a table, so it imports nothing that takes time.
"""

from __future__ import annotations

import json
import sys


def opening(method: str, id_: object, era: str) -> dict[str, object] | None:
    """The answer to a request that opens a connection; None to another."""
    if method == "server/discover" and era == "modern":
        result = {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        }
        return {"jsonrpc": "2.0", "id": id_, "result": result}
    if method == "server/discover":
        error = {"code": -32601, "message": "Method not found"}
        return {"jsonrpc": "2.0", "id": id_, "error": error}
    if method == "initialize":
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        }
        return {"jsonrpc": "2.0", "id": id_, "result": result}
    return None


def serve(sent: bytes, era: str) -> None:
    """Answer line by line until the input ends; `ID` in `sent` becomes the number of the call."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        answer = opening(message["method"], message["id"], era)
        if answer is not None:
            said = json.dumps(answer).encode()
        else:
            said = sent.replace(b"ID", str(message["id"]).encode())
        sys.stdout.buffer.write(said + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:  # noqa: PTH123 - pathlib takes as long as all the rest
        content = file.read()
    serve(content, sys.argv[2])
