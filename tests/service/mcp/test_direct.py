"""What is answered without the SDK's server, beside what the SDK's server answers to the same.

A request with a plain `Accept` may be answered directly; one whose `Accept` says the same with
parameters never is. So each generated request is made twice, to two runs that are alike, and
whatever differs is wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

from bundle_router.engine.results import Result
from bundle_router.service.mcp.direct import Answers, DirectPath
from mcp.server.lowlevel.server import Server

from tests.profiles import rounds
from tests.service.conftest import Answer, Site, read_answer
from tests.service.mcp.relay import Relay, relayed

MODERN: Final = "2026-07-28"
META: Final = "io.modelcontextprotocol/"
PLAIN: Final = "application/json, text/event-stream"
PARAMETERS: Final = "application/json; q=1, text/event-stream; q=1"
OF_A_RECORD: Final = (
    "time",
    "monotonic_ns",
    "prev",
    "hash",
    "elapsed_ms",
    "ready_ms",
    "writer",
    "run_json",
    "decision_id",
)
WIDE: Final = "[limits]\ncalls_per_step = 1_000_000\n"
PATHS: Final = {"d": PLAIN, "s": PARAMETERS}
"""The two runs, each with the `Accept` that its requests have."""

Json = dict[str, Any]
Headers = list[tuple[str, str]]


class Requests:
    """Requests as chance has them: a quarter well formed, the others wrong in one or two of all the
    ways there are.
    """

    def __init__(self, seed: int, names: tuple[str, ...]) -> None:
        self.random = random.Random(seed)
        self.names = names

    def one_of(self, *some: Any) -> Any:
        return self.random.choice(some)

    def __call__(self) -> tuple[Headers, bytes]:
        """Headers of MCP's own, and a body."""
        message = self.message()
        headers = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", str(message["method"]))]
        name = message["params"].get("name")
        if (
            message["method"] == "tools/call"
            and isinstance(name, str)
            and re.fullmatch("[ -~]*", name)
        ):
            headers.append(("Mcp-Name", name))
        wrongs = self.one_of(0, 1, 1, 2)
        for _ in range(wrongs):
            self.one_of(self.spoil_message, self.spoil_params, self.spoil_meta)(message)
        body = json.dumps(message, ensure_ascii=self.one_of(True, False)).encode(
            "utf-8", "surrogatepass"
        )
        if wrongs and self.one_of(True, False, False):
            headers = self.spoiled_headers(headers)
        if wrongs and self.one_of(True, False, False, False):
            body = self.spoiled_body(body)
        return headers, body

    def message(self) -> Json:
        method = self.one_of("tools/call", "tools/call", "tools/call", "tools/list")
        params: Json = {"_meta": self.meta()}
        if method == "tools/call":
            params["name"] = self.one_of(*self.names)
            arguments = self.arguments(params["name"])
            if arguments is not None:
                params["arguments"] = arguments
        return {
            "jsonrpc": "2.0",
            "id": self.one_of(1, 7, -3, 2**40, "a", "", "x y"),
            "method": method,
            "params": params,
        }

    def meta(self) -> Json:
        found: Json = {
            f"{META}protocolVersion": MODERN,
            f"{META}clientCapabilities": self.one_of({}, {}, {"roots": {}}),
        }
        if self.one_of(True, False):
            found[f"{META}clientInfo"] = {"name": "c", "version": "1"}
        if self.one_of(True, False, False):
            found["progressToken"] = self.one_of("p", 4)
        return found

    def arguments(self, name: str) -> Any:
        if name == "call_tool":
            return {"name": self.one_of(*self.names), "arguments": {"text": "inner"}}
        if name in ("search_tools", "get_tool_details"):
            return self.one_of(
                {"query": "say again"}, {"name": "kit.echo"}, {"query": "select:kit.echo"}
            )
        words = ("", "hi", "ä€𝄞", "\x00\x7f", "line\nline", "a" * 400, "\u2028", '"quoted"')
        return self.one_of(
            {"text": self.one_of(*words)}, {"text": self.one_of(*words)}, {"text": self.one_of(*words)},
            {}, None, {"text": 3}, {"other": 1}, {"text": None}, {"ä": 1}, {"text": ["x"]},
        )  # fmt: skip

    # --- what is wrong ----------------------------------------------------------------------------

    def spoil_message(self, message: Json) -> None:
        key = self.one_of("jsonrpc", "id", "method", "params", "more")
        if self.one_of(True, False):
            message.pop(key, None)
        else:
            message[key] = self.one_of(
                None, True, 1.5, 10**30, [], {}, "ä", "\ud800", "1.0", "ping", "server/discover", "tools/cal",
                "resources/list", "prompts/get", "initialize", "notifications/initialized", "subscriptions/none",
            )  # fmt: skip

    def spoil_params(self, message: Json) -> None:
        params = message.get("params")
        if isinstance(params, dict):
            key = self.one_of(
                "name", "arguments", "_meta", "cursor", "more", "inputResponses", "requestState"
            )
            if self.one_of(True, False):
                params.pop(key, None)
            else:
                deep: Any = "x"
                for _ in range(self.one_of(5, 150, 400)):
                    deep = [deep]
                params[key] = self.one_of(
                    None,
                    True,
                    3,
                    "",
                    "ä",
                    "\ud800",
                    "kit__echo",
                    [],
                    {},
                    {"text": deep},
                    {"\ud800": 1},
                )

    def spoil_meta(self, message: Json) -> None:
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        if isinstance(meta, dict):
            key = self.one_of(
                "protocolVersion", "clientCapabilities", "clientInfo", "logLevel", "other"
            )
            key = self.one_of(META + key, META + key, "progressToken", "traceparent", "own")
            if self.one_of(True, False):
                meta.pop(key, None)
            else:
                meta[key] = self.one_of(
                    None, True, 3, 1.5, "", "info", "2025-11-25", "2027-01-01", [], {}, {"roots": 3}, {"name": "c"},
                    {"name": 1, "version": "1"}, {"sampling": {}, "more": {"x": "\ud800"}},
                    "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
                )  # fmt: skip

    def spoiled_headers(self, headers: Headers) -> Headers:
        at = self.random.randrange(len(headers))
        name, value = headers[at]
        other = self.one_of(
            "",
            "tools/list",
            "tools/call",
            "2025-06-18",
            "x",
            "kit__echo",
            "=?base64?a2l0X19lY2hv?=",
            "=?base64?!?=",
        )
        spoiled: Headers = self.one_of(
            headers[:at] + headers[at + 1 :],
            [*headers, (name, value)],
            [*headers, (name, other)],
            [*headers[:at], (name, other), *headers[at + 1 :]],
            [*headers, ("Mcp-Param-Text", "hi")],
            [*headers, ("Mcp-Session-Id", "none")],
            [(name.upper(), f" {value} ") for name, value in headers],
        )
        return spoiled

    def spoiled_body(self, body: bytes) -> bytes:
        at = self.random.randrange(len(body))
        spoiled: bytes = self.one_of(
            body[:at], body + b"x", b"[" + body + b"]", b"", b"null", b"[" * 3000, b" " + body,
            body.decode("utf-8", "replace").encode("utf-16"),
            body[:at] + self.one_of(b"\xff", b"\x00", b"}", b'"', b"NaN", b"\\ud800") + body[at + 1 :],
            body.replace(b'"jsonrpc"', b'"jsonrpc": "1.0", "jsonrpc"', 1),
            b"\xef\xbb\xbf" + body,
        )  # fmt: skip
        return spoiled


class Connection:
    """A connection to the endpoint that is opened again when it was closed."""

    def __init__(self, endpoint: Any, run_id: str) -> None:
        self._endpoint = endpoint
        self._run_id = run_id
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, headers: Headers, body: bytes) -> Answer:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._endpoint.port
            )
        own = [
            ("Host", f"127.0.0.1:{self._endpoint.port}"),
            ("Authorization", f"Bearer {self._endpoint.key}"),
            ("Content-Type", "application/json"),
            ("Accept", PATHS[self._run_id]),
            ("Content-Length", str(len(body))),
        ]
        lines = [
            f"POST /mcp/runs/{self._run_id} HTTP/1.1",
            *(f"{name}: {value}" for name, value in [*own, *headers]),
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        answer = await read_answer(self._reader)
        if answer.headers.get("connection") == "close":
            self.close()
        return answer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@asynccontextmanager
async def both(endpoint: Any) -> AsyncIterator[dict[str, Connection]]:
    connections = {run_id: Connection(endpoint, run_id) for run_id in PATHS}
    try:
        yield connections
    finally:
        for connection in connections.values():
            connection.close()


def plain(answer: Answer) -> tuple[int, dict[str, str], str]:
    """The answer without the names of the run and of its sessions, and the hour."""
    kept = {
        name: value
        for name, value in answer.headers.items()
        if name not in ("date", "mcp-session-id")
    }
    return answer.status, kept, re.sub(r"\b[ds]\.[0-9a-f]{8}\.", "r.", answer.body)


def recorded(folder: Path, run_id: str) -> list[Json]:
    """The records of a run's calls without what no two of them share."""
    lines = (folder / "runs" / run_id / "tool-calls.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [
        {name: value for name, value in json.loads(line).items() if name not in OF_A_RECORD}
        for line in lines
    ]
    for row in rows:
        row.get("spent", {}).pop("elapsed_ms", None)
    return [
        json.loads(re.sub(rf'"{run_id}(\.[0-9a-f]{{8}}\.|")', r'"r\1', json.dumps(row)))
        for row in rows
    ]


def without_nonce(rows: list[Json]) -> list[Json]:
    return [json.loads(re.sub(r"r\.[0-9a-f]{8}\.", "r.", json.dumps(row))) for row in rows]


async def nothing(*_given: Any) -> Any:
    raise AssertionError


NOTHING: Final = Answers(nothing, nothing, nothing, lambda _name: None, lambda: False)


def path() -> DirectPath:
    """What judges requests, in front of nothing."""
    return DirectPath(Server("s"), NOTHING)


def is_direct(judge: DirectPath, headers: Headers, body: bytes) -> bool:
    raw = [
        (name.lower().encode(), value.strip().encode("latin-1"))
        for name, value in [("Accept", PLAIN), *headers]
    ]
    return judge.read(raw, body) is not None


@pytest.mark.parametrize("seed", range(rounds(3)))
def test_generated_requests_have_the_same_answers_and_records_on_both_paths(
    site: Site, seed: int
) -> None:
    """Of six thousand requests in all, in parts: 4,500 are wrong."""
    number, seen = rounds(2_000), Counter[str]()

    async def work(router: Any, endpoint: Any) -> None:
        for run_id in PATHS:
            await router.route(site.step("both", run_id))
        names = (
            "kit__echo",
            "kit__late",
            "kit.echo",
            "search_tools",
            "call_tool",
            "get_tool_details",
            "none",
            "",
            "kit",
        )
        make, judge = Requests(20261122 + seed, names), path()
        async with both(endpoint) as connections:
            for _ in range(number):
                headers, body = make()
                answers = [plain(await connections[run_id].ask(headers, body)) for run_id in PATHS]
                assert answers[0] == answers[1], (headers, body)
                seen[f"{is_direct(judge, headers, body)} {answers[0][0]}"] += 1

    site.serve(work, limits=WIDE, limit_s=600)
    assert seen["True 200"] > number / 4, seen  # else one path was asked twice
    assert seen["False 200"] > number / 20, seen
    assert seen["False 400"] > number / 20, seen
    rows = {run_id: without_nonce(recorded(site.folder, run_id)) for run_id in PATHS}
    assert len(rows["d"]) > number / 5
    assert rows["d"] == rows["s"]


def test_results_that_are_passed_on_are_the_same_on_both_paths(tmp_path: Path) -> None:
    async def work(relay: Relay) -> int:
        from bundle_router import Step

        for run_id in PATHS:
            await relay.router.route(Step(run_id=run_id, workflow="w", role="r", step="s"))
        listed = await relay.router.tools("d", format="mcp")
        make = Requests(7, tuple(tool["name"] for tool in listed.tools))
        asked = 0
        async with both(relay.endpoint) as connections:
            for _ in range(rounds(300)):
                headers, body = make()
                if b"slow" in body or b"progress" in body:
                    continue
                answers = [plain(await connections[run_id].ask(headers, body)) for run_id in PATHS]
                assert answers[0] == answers[1], (headers, body)
                asked += 1
        return asked

    assert relayed(tmp_path, work, 600.0, limits="calls_per_step = 1_000_000") > rounds(100)
    assert without_nonce(recorded(tmp_path, "d")) == without_nonce(recorded(tmp_path, "s"))


def request(**changes: Any) -> bytes:
    meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "a", "_meta": meta},
    }
    return json.dumps({**message, **changes}).encode()


CALL: Final = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", "a")]
HEAD: Final = [(name.lower().encode(), value.encode()) for name, value in CALL]


@pytest.mark.parametrize(
    ("headers", "body", "direct"),
    [
        (CALL, request(), True),
        (CALL, request(id="x"), True),
        (CALL, request(id=None), False),
        (CALL, request(more=1), False),
        (CALL[:2], request(), False),
        ([("MCP-Protocol-Version", "2025-11-25"), *CALL[1:]], request(), False),
        ([*CALL, ("Mcp-Param-X", "1")], request(), False),
        ([*CALL, ("Accept", PLAIN)], request(), False),
        (CALL, b"[" + request() + b"]", False),
        (CALL, request(params={}), False),
    ],
)
def test_only_what_is_in_the_plain_form_is_answered_directly(
    headers: Headers, body: bytes, direct: bool
) -> None:
    assert is_direct(path(), headers, body) is direct


def test_a_slow_answer_is_a_stream_that_is_kept_alive() -> None:
    async def main() -> list[Json]:
        sent: list[Json] = []
        pinged = asyncio.Event()

        async def send(message: Json) -> None:
            sent.append(message)
            if message.get("body") == b": ping\r\n\r\n":
                pinged.set()

        async def called(*_given: Any) -> Any:
            await pinged.wait()
            return Result("ok", "late")

        slow = DirectPath(Server("s"), replace(NOTHING, called=called), ping_s=0.01)
        plain_request = slow.read([(b"accept", PLAIN.encode()), *HEAD], request())
        assert plain_request is not None
        await asyncio.wait_for(slow.answer(plain_request, asyncio.Event().wait, send), 300)
        assert len(asyncio.all_tasks()) <= 2
        return sent

    start, *pings, last = asyncio.run(main())
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (200, b"text/event-stream")
    assert [ping["more_body"] for ping in pings] == [True] * len(pings)
    event, data = last["body"].decode().rstrip().split("\r\n")
    assert (event, json.loads(data.removeprefix("data: "))["result"]["content"]) == (
        "event: message",
        [{"type": "text", "text": "late"}],
    )


def test_a_client_that_goes_away_cancels_its_call() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        begun = asyncio.Event()

        async def called(*_given: Any) -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                said.append("cancelled")
                raise

        async def receive() -> Json:
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Json) -> None:
            said.append("sent")

        left = DirectPath(Server("s"), replace(NOTHING, called=called))
        plain_request = left.read([(b"accept", PLAIN.encode()), *HEAD], request())
        assert plain_request is not None
        await asyncio.wait_for(left.answer(plain_request, receive, send), 300)
        return said

    assert asyncio.run(main()) == ["cancelled"]
