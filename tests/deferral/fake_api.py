"""A strict fake of the Messages API: the documented 400s of tool search, and a scripted model that
searches and calls.

What is assumed beyond the documentation: signed thinking keeps its place in the latest assistant
message, and a call of a deferred tool needs a reference to it before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

Block = dict[str, Any]
WANTED = "list_issue"


class BadRequest(Exception):
    """What the API would refuse, in its words."""


def check_request(body: dict[str, Any]) -> None:
    """Raise BadRequest for what the API refuses."""
    tools = body.get("tools", [])
    deferred = {tool["name"] for tool in tools if tool.get("defer_loading")}
    names = [tool["name"] for tool in tools]
    if len(set(names)) != len(names):
        raise BadRequest("tools: Tool names must be unique.")
    if tools and len(deferred) == len(tools):
        raise BadRequest(
            "All tools have defer_loading set. At least one tool must be non-deferred."
        )
    for number, tool in enumerate(tools):
        if tool.get("defer_loading") and tool.get("cache_control"):
            raise BadRequest(
                f"Tool 'tool_{number}' cannot have both defer_loading=true and cache_control set."
            )
        if tool.get("defer_loading") and tool.get("input_examples"):
            raise BadRequest("tool search is not compatible with input_examples")
    if (
        sum(
            part.count('"cache_control": {')
            for part in map(json.dumps, (tools, body["messages"], body.get("system")))
        )
        > 4
    ):
        raise BadRequest("A maximum of 4 blocks with cache_control may be provided.")
    check_history(body["messages"], names, deferred)


def check_history(messages: list[dict[str, Any]], names: list[str], deferred: set[str]) -> None:
    found: set[str] = set()
    open_calls: set[str] = set()
    turns = [message for message in messages if message["role"] != "system"]
    if not turns or turns[0]["role"] != "user":
        raise BadRequest("messages: first message must use the user role")
    last_answer = max((i for i, m in enumerate(turns) if m["role"] == "assistant"), default=-1)
    for number, message in enumerate(turns):
        blocks = blocks_of(message)
        if not blocks:
            raise BadRequest(f"messages.{number}: content must not be empty")
        if message["role"] == "user":
            answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
            if answered != open_calls:
                raise BadRequest(
                    f"messages.{number}: tool_use ids without tool_result:"
                    f" {sorted(open_calls ^ answered)}"
                )
            open_calls = set()
        searches: set[str] = set()
        for index, block in enumerate(blocks):
            kind = block["type"]
            if kind == "text" and not block["text"].strip():
                raise BadRequest("messages: text content blocks must be non-empty")
            signed = kind in ("thinking", "redacted_thinking") and number == last_answer
            if signed and block.get("signature") != f"signed-{index}":
                raise BadRequest(
                    f"messages.{number}.content.{index}: `thinking` blocks cannot be modified."
                )
            if kind == "server_tool_use":
                searches.add(block["id"])
            if kind == "tool_search_tool_result":
                if block["tool_use_id"] not in searches:
                    raise BadRequest("a tool_search_tool_result without its server_tool_use")
                searches.remove(block["tool_use_id"])
            for name in references_of(block):
                if name not in names:
                    raise BadRequest(f"Tool reference '{name}' not found in available tools")
                if name not in deferred:
                    raise BadRequest(
                        f"Tool reference '{name}' has no corresponding tool definition"
                    )
                found.add(name)
            if kind == "tool_use":
                open_calls.add(block["id"])
                if block["name"] in deferred and block["name"] not in found:
                    raise BadRequest(f"tool '{block['name']}' was called and never loaded")
        if searches and number != len(turns) - 1:
            raise BadRequest("a server_tool_use without its result")


def blocks_of(message: dict[str, Any]) -> list[Block]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def references_of(block: Block) -> Iterator[str]:
    inner = block.get("content")
    if block["type"] == "tool_search_tool_result" and isinstance(inner, dict):
        inner = inner.get("tool_references", [])
    for part in inner if isinstance(inner, list) else []:
        if part.get("type") == "tool_reference":
            yield part["tool_name"]


class FakeApi:
    """The API as an ASGI application.

    `requests` are the bodies that were served, `refusals` the texts of its 400s.
    """

    def __init__(
        self, *, refuses_deferral: bool = False, pauses: int = 0, blocks: list[Block] | None = None
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.refusals: list[str] = []
        self.refuses_deferral = refuses_deferral
        self.pauses = pauses
        self.blocks = blocks
        self.cut: int | None = None
        """Bytes to a piece of a stream; None: one event."""
        self._ids = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        raw = await request.body()
        self.paths.append(f"{request.method} {request.url.path}")
        self.headers.append(dict(request.headers))
        if request.url.path == "/redirect":
            return Response(status_code=307, headers={"location": "http://127.0.0.1:9/elsewhere"})
        if request.url.path.endswith("/count_tokens"):
            return JSONResponse({"input_tokens": len(raw) // 4})
        if request.method != "POST" or not request.url.path.endswith("/v1/messages"):
            return Response(b"other " + raw, headers={"x-seen": "yes", "set-cookie": "a=b"})
        self.bodies.append(raw)
        body = json.loads(raw)
        try:
            if self.refuses_deferral and any(
                tool.get("defer_loading") for tool in body.get("tools", [])
            ):
                raise BadRequest("tools.0: Extra inputs are not permitted: defer_loading")
            check_request(body)
        except BadRequest as refusal:
            self.refusals.append(str(refusal))
            error = {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": str(refusal)},
            }
            return JSONResponse(error, 400)
        self.requests.append(body)
        blocks, reason = (self.blocks and (self.blocks, "end_turn")) or self.turn(body)
        message = self.message(body, blocks, reason)
        if not body.get("stream"):
            return JSONResponse(message)
        return StreamingResponse(self._pieces(events_of(message)), media_type="text/event-stream")

    async def _pieces(self, events: list[bytes]) -> AsyncIterator[bytes]:
        whole = b"".join(events)
        pieces = (
            [whole[i : i + self.cut] for i in range(0, len(whole), self.cut)]
            if self.cut
            else events
        )
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)

    def message(self, body: dict[str, Any], blocks: list[Block], reason: str) -> dict[str, Any]:
        upfront = sum(
            len(json.dumps(tool)) for tool in body.get("tools", []) if not tool.get("defer_loading")
        )
        usage = {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": upfront // 4,
        }
        usage["output_tokens"] = 7
        return {
            "id": f"msg_{next(self._ids)}", "type": "message", "role": "assistant", "model": body["model"],
            "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage,
        }  # fmt: skip

    def turn(self, body: dict[str, Any]) -> tuple[list[Block], str]:
        """Play the model: search where that is offered, call what was found, then answer."""
        tools = body.get("tools", [])
        last = body["messages"][-1]
        turns = [message for message in body["messages"] if message["role"] != "system"]
        last = turns[-1]
        thinking = body.get("thinking", {}).get("type") in ("enabled", "adaptive")
        blocks: list[Block] = []
        paused = last["role"] == "assistant"
        if thinking and not paused:
            blocks.append({"type": "thinking", "thinking": "hm", "signature": "signed-0"})
        if not paused and any(block["type"] == "tool_result" for block in blocks_of(last)):
            return [*blocks, {"type": "text", "text": "There is one open issue."}], "end_turn"
        wanted = next(
            (
                tool
                for tool in tools
                if WANTED in tool["name"] and not tool["name"].endswith("requests")
            ),
            None,
        )
        if wanted is None:
            return [*blocks, {"type": "text", "text": "Nothing to call."}], "end_turn"
        searcher = next(
            (tool for tool in tools if str(tool.get("type", "")).startswith("tool_search_tool")),
            None,
        )
        if searcher is not None and wanted.get("defer_loading") and not paused:
            blocks.append({"type": "text", "text": "Looking."})
            blocks += self.search(searcher["name"], wanted["name"])
            if thinking:
                blocks.append(
                    {"type": "thinking", "thinking": "found", "signature": f"signed-{len(blocks)}"}
                )
            if self.pauses:
                return blocks, "pause_turn"
        call = {"type": "tool_use", "id": f"toolu_{next(self._ids)}", "name": wanted["name"]}
        return [*blocks, {**call, "input": {"owner": "octo", "repo": "demo"}}], "tool_use"

    def search(self, searcher: str, found: str) -> list[Block]:
        identity = f"srvtoolu_{next(self._ids)}"
        content = {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": found}],
        }
        return [
            {
                "type": "server_tool_use",
                "id": identity,
                "name": searcher,
                "input": {"query": "list issues"},
            },
            {"type": "tool_search_tool_result", "tool_use_id": identity, "content": content},
        ]


def events_of(message: dict[str, Any], newline: str = "\n") -> list[bytes]:
    """Return a message as the events of a stream."""
    start = {**message, "content": [], "stop_reason": None}
    steps: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        began, deltas = _streamed(block)
        steps.append({"type": "content_block_start", "index": index, "content_block": began})
        steps += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        steps.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    usage = {
        "output_tokens": message["usage"]["output_tokens"],
        "server_tool_use": {"web_search_requests": 0},
    }
    steps += [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]
    return [
        f"event: {s['type']}{newline}data: {json.dumps(s)}{newline}{newline}".encode()
        for s in steps
    ]


def _streamed(block: Block) -> tuple[Block, list[Block]]:
    if block["type"] == "text":
        halves = (block["text"][:3], block["text"][3:])
        return {**block, "text": ""}, [
            {"type": "text_delta", "text": half} for half in halves if half
        ]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if block["type"] in ("tool_use", "server_tool_use"):
        text = json.dumps(block["input"])
        pieces = (text[: len(text) // 2], text[len(text) // 2 :])
        return {**block, "input": {}}, [
            {"type": "input_json_delta", "partial_json": piece} for piece in pieces
        ]
    return block, []


def read_stream(data: bytes) -> dict[str, Any]:
    """Put a stream together as a client does."""
    message: dict[str, Any] = {}
    texts: dict[int, str] = {}
    for event in data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
        if not lines:
            continue
        step = json.loads(b"\n".join(lines))
        if step["type"] == "message_start":
            assert not message, "a second message_start"
            message = step["message"]
        elif step["type"] == "content_block_start":
            assert step["index"] == len(message["content"]), "blocks are numbered without gaps"
            message["content"].append(step["content_block"])
        elif step["type"] == "content_block_delta":
            _grow(message["content"][step["index"]], step["delta"], texts, step["index"])
        elif step["type"] == "content_block_stop" and step["index"] in texts:
            message["content"][step["index"]]["input"] = json.loads(texts.pop(step["index"]))
        elif step["type"] == "message_delta":
            message |= step["delta"]
            message["usage"] |= step["usage"]
        elif step["type"] == "error":
            message["error"] = step["error"]
    return message


def _grow(block: Block, delta: Block, texts: dict[int, str], index: int) -> None:
    if delta["type"] == "input_json_delta":
        texts[index] = texts.get(index, "") + delta["partial_json"]
    elif (name := delta["type"].removesuffix("_delta")) in delta:
        block[name] = block.get(name, "") + delta[name]
