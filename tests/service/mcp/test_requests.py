"""What each request of a client is answered, in both eras of the protocol: status, headers, body.

Each row has the answer that the specification of its revision asks for, or where it leaves it open,
the one that this endpoint promises.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

from bundle_router import __version__
from bundle_router.service.mcp.jsonrpc import read_message, write_json

from tests.service.mcp.exchanges import (
    HANDSHAKE,
    META,
    MODERN,
    PARAMS,
    TOOLS,
    Clients,
    Exchange,
    Json,
    ScriptedRun,
    exchanged,
    modern,
    notification,
    request,
)

ECHO: Final = {"name": "echo", "arguments": {"text": "hi"}}
SAID: Final = {"content": [{"type": "text", "text": "said hi"}], "isError": False}
SERVER: Final = {"name": "bundle-router", "version": __version__}
STAMP: Final = {"resultType": "complete", "_meta": {f"{META}serverInfo": SERVER}}
"""What each result of the modern era has besides its contents."""
FRESH: Final = {"ttlMs": 0, "cacheScope": "private"}
NO_MESSAGE: Final = (
    -32600,
    "Body must be a single JSON-RPC request, notification or response object",
)
NO_ID: Final = (-32600, "The id of a request must be a string or an integer.")
NOT_BOTH: Final = (
    -32600,
    "Not Acceptable: Client must accept both application/json and text/event-stream",
)
PARSE: Final = (-32700, "Parse error")
WRONG_PARAMS: Final = (-32602, "Invalid request parameters")
NO_METHOD: Final = (-32601, "Method not found")
ONLY_ONCE: Final = (
    -32600,
    "Bad Request: MCP-Protocol-Version and Mcp-Session-Id must occur only once",
)
NO_SESSION: Final = (-32600, "Bad Request: Missing session ID")
MODERN_HEAD: Final = modern("tools/call", ECHO)[0]
Headers = dict[str, str] | list[tuple[str, str]]


@dataclass(frozen=True)
class Row:
    """A request, and its answer."""

    name: str
    body: Any
    """A message; or bytes, as they are."""
    status: int
    result: Json | None = None
    """The result of the answer."""
    error: tuple[int, str] | None = None
    """The error of the answer: its code and message."""
    id: Any = 1
    """The id of the answer."""
    headers: Headers = field(default_factory=dict)
    """The request's headers, in the handshake era beside those of its session."""
    method: str = "POST"
    in_session: bool = True
    """Whether the request names a session of the handshake era."""
    more: dict[str, str] = field(default_factory=dict)
    """Further headers of the answer."""


def row(name: str, sent: tuple[Headers, Json], status: int, **answer: Any) -> Row:
    headers, body = sent
    return Row(name, body, status, headers=headers, in_session=False, **answer)


HANDSHAKE_ROWS: Final = [
    Row("ping", request("ping"), 200, result={}),
    Row("list", request("tools/list"), 200, result={"tools": list(TOOLS)}),
    Row("call", request("tools/call", ECHO), 200, result=SAID),
    Row("id of text", request("ping", id="a b"), 200, result={}, id="a b"),
    Row("empty id", request("ping", id=""), 200, result={}, id=""),
    Row("negative id", request("ping", id=-3), 200, result={}, id=-3),
    Row("large id", request("ping", id=2**63), 200, result={}, id=2**63),
    Row("id null", request("tools/call", ECHO, id=None), 400, error=NO_ID, id=None),
    Row("id 1.0", request("tools/call", ECHO, id=1.0), 400, error=NO_ID, id=None),
    Row("id 1.5", request("tools/call", ECHO, id=1.5), 400, error=NO_ID, id=None),
    Row("id true", request("tools/call", ECHO, id=True), 400, error=NO_ID, id=None),
    Row("id of an array", request("ping", id=[1]), 400, error=NO_ID, id=None),
    Row("no params", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, 200, result={}),
    Row("params null", request("ping", params=None), 200, result={}),
    Row("params an array", request("ping", params=[]), 400, error=NO_MESSAGE, id=None),
    Row("own members", request("ping", more=1), 200, result={}),
    Row("jsonrpc 1.0", request("ping", jsonrpc="1.0"), 400, error=NO_MESSAGE, id=None),
    Row("no jsonrpc", {"id": 1, "method": "ping"}, 400, error=NO_MESSAGE, id=None),
    Row("method a number", request("ping", method=3), 400, error=NO_MESSAGE, id=None),
    Row("empty batch", [], 400, error=NO_MESSAGE, id=None),
    Row("batch of one", [request("ping")], 400, error=NO_MESSAGE, id=None),
    Row("null", None, 400, error=NO_MESSAGE, id=None),
    Row("empty body", b"", 400, error=PARSE, id=None),
    Row("half a body", b'{"jsonrpc":"2.0"', 400, error=PARSE, id=None),
    Row("two bodies", b"{}{}", 400, error=PARSE, id=None),
    Row("not UTF-8", b'{"jsonrpc":"2.0","id":"\xff"}', 400, error=PARSE, id=None),
    Row("too deep", b"[" * 100_000, 400, error=PARSE, id=None),
    Row("too long a number", b"9" * 5_000, 400, error=PARSE, id=None),
    Row("byte order mark", b"\xef\xbb\xbf" + json.dumps(request("ping")).encode(), 200, result={}),
    Row("unknown method", request("tools/none"), 200, error=NO_METHOD),
    Row("method of the modern era", request("server/discover"), 200, error=NO_METHOD),
    Row("nothing of its kind", request("prompts/list"), 200, error=NO_METHOD),
    Row("call without a name", request("tools/call"), 200, error=WRONG_PARAMS),
    Row(
        "arguments an array",
        request("tools/call", {"name": "echo", "arguments": []}),
        200,
        error=WRONG_PARAMS,
    ),
    Row(
        "arguments null",
        request("tools/call", {"name": "echo", "arguments": None}),
        200,
        result={**SAID, "content": [{"type": "text", "text": "said "}]},
    ),
    Row(
        "half a pair of surrogates",
        request("tools/call", {"name": "echo", "arguments": {"text": "\ud800"}}),
        200,
        result={**SAID, "content": [{"type": "text", "text": "said \ufffd"}]},
    ),
    Row(
        "cursor",
        request("tools/list", {"cursor": "x"}),
        200,
        error=(-32602, "This list has one page: leave the cursor out."),
    ),
    Row(
        "refused by the router",
        request("tools/call", {"name": "refuse"}),
        200,
        error=(-32600, "no (ask for less)"),
    ),
    Row(
        "defect",
        request("tools/call", {"name": "break"}),
        200,
        error=(-32603, "The router failed: this is a defect of it, named in its log."),
    ),
    Row("notification", notification("notifications/initialized"), 202),
    Row("unknown notification", notification("notifications/none"), 202),
    Row(
        "notification of wrong form",
        notification("notifications/cancelled", {"requestId": []}),
        202,
    ),
    Row("answer to nobody", {"jsonrpc": "2.0", "id": 9, "result": {}}, 202),
    Row("error to nobody", {"jsonrpc": "2.0", "error": {"code": 1, "message": "m"}}, 202),
    Row("neither result nor error", {"jsonrpc": "2.0", "id": 9}, 400, error=NO_MESSAGE, id=None),
    Row("accepts all", request("ping"), 200, result={}, headers={"accept": "*/*"}),
    Row(
        "accepts both with parameters",
        request("ping"),
        200,
        result={},
        headers={"accept": "application/json;q=1, Text/Event-Stream; q=0.5"},
    ),
    Row(
        "accepts JSON alone",
        request("ping"),
        406,
        error=NOT_BOTH,
        id=None,
        headers={"accept": "application/json"},
    ),
    Row(
        "accepts neither",
        request("ping"),
        406,
        error=NOT_BOTH,
        id=None,
        headers={"accept": "text/html"},
    ),
    Row(
        "its revision",
        request("ping"),
        200,
        result={},
        headers={"mcp-protocol-version": HANDSHAKE},
    ),
    Row(
        "revision twice",
        request("ping"),
        400,
        error=ONLY_ONCE,
        id=None,
        headers=[("mcp-protocol-version", HANDSHAKE), ("mcp-protocol-version", HANDSHAKE)],
    ),
    Row(
        "second session",
        request("ping"),
        400,
        error=ONLY_ONCE,
        id=None,
        headers={"mcp-session-id": "other"},
    ),
    Row("no session", request("ping"), 400, error=NO_SESSION, id=None, in_session=False),
    Row(
        "notification without a session",
        notification("notifications/initialized"),
        400,
        error=NO_SESSION,
        id=None,
        in_session=False,
    ),
    Row(
        "GET without a session",
        None,
        400,
        error=NO_SESSION,
        id=None,
        method="GET",
        in_session=False,
    ),
    Row(
        "DELETE without a session",
        None,
        400,
        error=NO_SESSION,
        id=None,
        method="DELETE",
        in_session=False,
    ),
    Row(
        "unknown session",
        request("ping"),
        404,
        error=(-32600, "Session not found"),
        id=None,
        headers={"mcp-session-id": "none"},
        in_session=False,
    ),
    Row(
        "initialize in an unknown session",
        request("initialize", PARAMS),
        404,
        error=(-32600, "Session not found"),
        id=None,
        headers={"mcp-session-id": "none"},
        in_session=False,
    ),
    Row(
        "GET that takes no events",
        None,
        406,
        error=(-32600, "Not Acceptable: Client must accept text/event-stream"),
        id=None,
        headers={"accept": "application/json"},
        method="GET",
    ),
    Row(
        "initialize without parameters",
        request("initialize"),
        200,
        error=WRONG_PARAMS,
        in_session=False,
    ),
]

MODERN_ROWS: Final = [
    row("call", modern("tools/call", ECHO), 200, result={**SAID, **STAMP}),
    row("list", modern("tools/list"), 200, result={"tools": list(TOOLS), **FRESH, **STAMP}),
    row(
        "discover",
        modern("server/discover"),
        200,
        result={
            "supportedVersions": [MODERN],
            "capabilities": {"tools": {"listChanged": True}},
            "instructions": "Use them.",
            **FRESH,
            **STAMP,
        },
    ),
    row(
        "encoded name",
        ({**MODERN_HEAD, "mcp-name": "=?base64?ZWNobw==?="}, modern("tools/call", ECHO)[1]),
        200,
        result={**SAID, **STAMP},
    ),
    row(
        "own keys of _meta",
        modern("tools/call", {**ECHO, "_meta": {"own": 1, "progressToken": None}}),
        200,
        result={**SAID, **STAMP},
    ),
    row(
        "session of the other era",
        ({**MODERN_HEAD, "mcp-session-id": "none"}, modern("tools/call", ECHO)[1]),
        200,
        result={**SAID, **STAMP},
    ),
    row("id of text", modern("tools/call", ECHO, id="7"), 200, result={**SAID, **STAMP}, id="7"),
    row("id null", modern("tools/call", ECHO, id=None), 400, error=NO_ID, id=None),
    row("id 1.0", modern("tools/call", ECHO, id=1.0), 400, error=NO_ID, id=None),
    row("id true", modern("tools/call", ECHO, id=True), 400, error=NO_ID, id=None),
    Row(
        "batch",
        [modern("tools/call", ECHO)[1]],
        400,
        None,
        NO_MESSAGE,
        None,
        MODERN_HEAD,
        "POST",
        False,
    ),
    Row("half a body", b'{"jsonrpc":', 400, None, PARSE, None, MODERN_HEAD, "POST", False),
    row(
        "response",
        (MODERN_HEAD, {"jsonrpc": "2.0", "id": 1, "result": {}}),
        400,
        error=(-32600, "Body must be a single JSON-RPC request or notification object"),
        id=None,
    ),
    row(
        "notification",
        modern("notifications/cancelled", {"requestId": 1}, id=1),
        404,
        error=NO_METHOD,
    ),
    row("unknown method", modern("tools/none"), 404, error=NO_METHOD),
    row("method of the handshake era", modern("ping"), 404, error=NO_METHOD),
    row("initialize", modern("initialize", PARAMS), 404, error=NO_METHOD),
    row("nothing of its kind", modern("prompts/list"), 404, error=NO_METHOD),
    row("call without a name", modern("tools/call"), 400, error=WRONG_PARAMS),
    row(
        "refused by the router",
        modern("tools/call", {"name": "refuse"}),
        400,
        error=(-32600, "no (ask for less)"),
    ),
    row(
        "defect",
        modern("tools/call", {"name": "break"}),
        200,
        error=(-32603, "The router failed: this is a defect of it, named in its log."),
    ),
    row(
        "no _meta",
        (MODERN_HEAD, request("tools/call", ECHO)),
        400,
        error=(
            -32602,
            "params._meta must be an object carrying the required"
            f" '{META}protocolVersion' and '{META}clientCapabilities' envelope keys",
        ),
    ),
    row(
        "no capabilities",
        (MODERN_HEAD, request("tools/call", {**ECHO, "_meta": {f"{META}protocolVersion": MODERN}})),
        400,
        error=(
            -32602,
            f"params._meta is missing the required envelope key(s): {META}clientCapabilities",
        ),
    ),
    row(
        "another revision in the headers",
        modern("tools/list", {"_meta": {f"{META}protocolVersion": "2027-01-01"}}),
        400,
        error=(
            -32020,
            "mcp-protocol-version header does not match the request envelope's protocol version",
        ),
    ),
    row(
        "no method in the headers",
        ({"mcp-protocol-version": MODERN, "mcp-name": "echo"}, modern("tools/call", ECHO)[1]),
        400,
        error=(-32020, "mcp-method header does not match the request body's method"),
    ),
    row(
        "another name in the headers",
        ({**MODERN_HEAD, "mcp-name": "other"}, modern("tools/call", ECHO)[1]),
        400,
        error=(-32020, "mcp-name header does not match the request body's 'name' parameter"),
    ),
    row(
        "name twice in the headers",
        ([*MODERN_HEAD.items(), ("mcp-name", "echo")], modern("tools/call", ECHO)[1]),
        400,
        error=(-32020, "mcp-name header appears more than once"),
    ),
    row(
        "argument that its header does not repeat",
        modern("tools/call", {"name": "mirrored", "arguments": {"text": "hi"}}),
        400,
        error=(
            -32020,
            "Mcp-Param-Text header is missing but the request body's 'text' argument is present",
        ),
    ),
    row(
        "accepts JSON alone",
        ({**MODERN_HEAD, "accept": "application/json"}, modern("tools/call", ECHO)[1]),
        406,
        error=NOT_BOTH,
        id=None,
    ),
    *(
        Row(
            method,
            None,
            405,
            None,
            (-32600, "Method Not Allowed: this revision has POST alone"),
            None,
            {"mcp-protocol-version": MODERN},
            method,
            False,
            {"allow": "POST"},
        )
        for method in ("GET", "DELETE")
    ),
]


async def answer_to(row: Row, clients: Clients) -> tuple[Exchange, dict[str, str]]:
    """The answer to a row's request, and the headers of its session."""
    session = await clients.open_session() if row.in_session else {}
    more = list(row.headers.items()) if isinstance(row.headers, dict) else row.headers
    return await clients.ask([*session.items(), *more], row.body, row.method), session


@pytest.mark.parametrize(
    "row",
    [
        *(pytest.param(row, id=f"handshake {row.name}") for row in HANDSHAKE_ROWS),
        *(pytest.param(row, id=f"modern {row.name}") for row in MODERN_ROWS),
    ],
)
def test_a_request_has_the_answer_of_its_revision(row: Row) -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        answer, session = await answer_to(row, clients)
        assert answer.status == row.status, answer.body
        expected = dict(row.more)
        if row.result is None and row.error is None:
            expected["content-length"] = "0"
            assert answer.body == b""
        else:
            expected["content-type"] = "application/json"
            expected["content-length"] = str(len(answer.body))
        if row.status in (200, 202):
            expected |= session
        assert answer.headers == expected
        if row.result is not None:
            assert answer.message == {"jsonrpc": "2.0", "id": row.id, "result": row.result}
        if row.error is not None:
            error = answer.message["error"]
            assert (error["code"], error["message"]) == row.error
            assert (answer.message["jsonrpc"], answer.message["id"]) == ("2.0", row.id)

    exchanged(work)


@pytest.mark.parametrize("row", [row for row in HANDSHAKE_ROWS + MODERN_ROWS if row.status >= 400])
def test_what_is_refused_before_any_work_calls_nothing(row: Row) -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        await answer_to(row, clients)
        assert run.calls in ([], [("refuse", {})])
        assert (await clients.ask(*modern("tools/call", ECHO))).status == 200

    exchanged(work)


def test_a_revision_that_is_not_served_is_refused_with_those_that_are() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        headers, body = modern("tools/list", {"_meta": {f"{META}protocolVersion": "2027-01-01"}})
        headers["mcp-protocol-version"] = "2027-01-01"
        noted = notification("notifications/cancelled")
        for sent, id_ in ((body, 1), (noted, None)):
            answer = await clients.ask(headers, sent)
            assert answer.status == 400
            assert answer.message == {
                "jsonrpc": "2.0",
                "id": id_,
                "error": {
                    "code": -32022,
                    "message": "Unsupported protocol version",
                    "data": {"supported": [MODERN], "requested": "2027-01-01"},
                },
            }

    exchanged(work)


def test_a_notification_of_the_modern_era_is_accepted_and_cancels_nothing() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        waiting, answered = clients.begin(*modern("tools/call", {"name": "wait"}))
        await run.arrived.acquire()
        body = notification("notifications/cancelled", {"requestId": 1})
        accepted = await clients.ask({"mcp-protocol-version": MODERN}, body)
        assert (accepted.status, accepted.headers) == (202, {"content-length": "0"})
        run.door.set()
        await answered
        assert waiting.message["result"]["content"][0]["text"] == "said "

    exchanged(work)


@pytest.mark.parametrize(
    ("requested", "negotiated"),
    [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("2026-07-28", "2025-11-25"),
        ("1.0", "2025-11-25"),
    ],
)
def test_initialize_opens_a_session_in_the_revision_that_both_know(
    requested: str, negotiated: str
) -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        opening = request("initialize", {**PARAMS, "protocolVersion": requested})
        answer = await clients.ask({}, opening)
        assert answer.status == 200
        assert len(answer.headers["mcp-session-id"]) == 32
        assert answer.message["result"] == {
            "protocolVersion": negotiated,
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": SERVER,
            "instructions": "Use them.",
        }
        session = {"mcp-session-id": answer.headers["mcp-session-id"]}
        again = await clients.ask(session, request("tools/list"))
        assert again.message["result"] == {"tools": list(TOOLS)}

    exchanged(work)


def test_the_capabilities_are_what_the_run_passes_on() -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> Json:
        opened = await clients.ask({}, request("initialize", PARAMS))
        discovered = await clients.ask(*modern("server/discover"))
        said: Json = discovered.message["result"]["capabilities"]
        assert opened.message["result"]["capabilities"] == said
        return said

    every = frozenset({"resources", "prompts", "completion", "logging", "results", "input"})
    assert exchanged(work, every) == {  # type: ignore[arg-type] # a set of literals
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "completions": {},
        "logging": {},
    }


@pytest.mark.parametrize("sent", ["2025-06-18", "2024-11-05"])
def test_a_session_may_name_any_revision_of_its_era(sent: str) -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        answer = await clients.ask({**session, "mcp-protocol-version": sent}, request("ping"))
        assert (answer.status, answer.message["result"]) == (200, {})

    exchanged(work)


def test_a_servers_error_and_an_odd_row_of_its_list_are_passed_on_as_they_are_and_not_at_all() -> (
    None
):
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        session = await clients.open_session()
        read = request("resources/read", {"uri": "a://b"})
        assert (await clients.ask(session, read)).message["error"] == {
            "code": -32002,
            "message": "no such resource",
            "data": {"uri": "a://b"},
        }
        visit = request("resources/read", {"uri": "a://visit"})
        assert (await clients.ask(session, visit)).message["error"]["code"] == -32042
        listed = await clients.ask(session, request("prompts/list"))
        assert listed.message["result"]["prompts"] == [{"name": "p"}]

    exchanged(work, frozenset({"resources", "prompts"}))


def test_what_a_client_says_of_itself_in_meta_reaches_no_server() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        own = {"_meta": {"example.com/user": "ann"}}
        await clients.ask(*modern("resources/read", {"uri": "a://b", **own}))
        await clients.ask(*modern("tools/call", {**ECHO, **own}))
        assert run.passed_on == [("resources/read", {"uri": "a://b"})]
        assert run.calls == [(ECHO["name"], ECHO["arguments"])]

    exchanged(work, frozenset({"resources"}))


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("a://b", {"code": -32602, "message": "no such resource", "data": {"uri": "a://b"}}),
        ("a://visit", {"code": -32603, "message": "visit it first", "data": {"urls": []}}),
    ],
)
def test_a_code_that_the_modern_era_retired_is_another_one_there(
    uri: str, error: dict[str, Any]
) -> None:
    async def work(clients: Clients, _run: ScriptedRun) -> None:
        answer = await clients.ask(*modern("resources/read", {"uri": uri}))
        assert answer.message["error"] == error

    exchanged(work, frozenset({"resources"}))


def test_a_defect_is_told_to_the_operator_and_a_wrong_notification_by_its_method_alone() -> None:
    async def work(clients: Clients, run: ScriptedRun) -> None:
        answer = await clients.ask(*modern("tools/call", {"name": "break"}))
        assert b"secret" not in answer.body
        assert [type(defect) for defect in run.defects] == [ZeroDivisionError]
        session = await clients.open_session()
        wrong = notification("notifications/progress", {"progressToken": ["canary"]})
        assert (await clients.ask(session, wrong)).status == 202
        assert run.warned == ["notifications/progress"]

    exchanged(work)


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        ("ä\u2028\n", r'"\u00e4\u2028\n"'),
        ("\ud83d\ude00", r'"\ud83d\ude00"'),
        ("\U0001f600", r'"\ud83d\ude00"'),
        ("a\ud800b", r'"a\ufffdb"'),
        ("\udc00", r'"\ufffd"'),
        (r"\ud800", r'"\\ud800"'),
        ({"\ud800": 1}, r'{"\ufffd":1}'),
        ([float("nan"), float("inf"), {"x": (-float("inf"),)}], '[null,null,{"x":[null]}]'),
    ],
)
def test_what_is_written_is_ascii_and_json_to_every_reader(value: Any, text: str) -> None:
    assert write_json(value) == text
    assert text.isascii()
    json.loads(text.encode())


def test_what_nests_too_deep_to_be_written_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nests too deep"):
        write_json(value)
    while value:
        value = value.pop()


def test_the_kinds_of_messages_are_told_apart() -> None:
    asked = read_message(b'{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}')
    assert (type(asked).__name__, asked.id, asked.method, asked.params) == (  # type: ignore[union-attr]
        "RequestMessage",
        "a",
        "m",
        {"x": 1},
    )
    told = read_message(b'{"jsonrpc":"2.0","method":"m"}')
    assert (type(told).__name__, told.params) == ("NotificationMessage", {})  # type: ignore[union-attr]
    answered = read_message(b'{"jsonrpc":"2.0","id":1,"error":{"code":true,"message":"no"}}')
    assert type(answered).__name__ == "AnswerMessage"
    assert answered.error is not None  # type: ignore[union-attr]
    assert (answered.error.code, answered.error.message) == (-32603, "no")  # type: ignore[union-attr]
