"""The proxy on loopback, between a client that knows no deferral and a strict fake of the API."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from bundle_router_deferral.hidden_store import KEPT_S, HiddenStore
from bundle_router_deferral.hiding import HiddenBlock
from bundle_router_deferral.rewriting import DeferralRules, RequestRewriter
from bundle_router_deferral.upstream import MAX_BODY_BYTES
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.deferral.fake_api import FakeApi, events_of, read_stream
from tests.deferral.serving import Rig, rig, send, with_rig
from tests.deferral.test_proxy_rules import TOOLS, request

CANARY = "sk-ant-CANARY-0123456789"


def turn(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the client's next request: what it saw, and the results of the calls in it."""
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": "one issue"} for call in calls
    ]
    more = results or [{"type": "text", "text": "go on"}]
    history = [
        *body["messages"],
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": more},
    ]
    return {**body, "messages": history}


async def converse(made: Rig, **more: Any) -> list[dict[str, Any]]:
    """Hold a conversation of four requests, and return the answers."""
    body, answers = request(**more), []
    for _ in range(4):
        answer = await made.ask(body)
        assert answer["status"] == 200, answer
        answers.append(answer)
        body = turn(body, answer)
    return answers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("pauses", [0, 1])
def test_a_conversation_finds_and_calls_tools_with_every_request_valid(
    stream: bool, thinking: bool, pauses: int, tmp_path: Path
) -> None:
    api = FakeApi(pauses=pauses)

    async def work(made: Rig) -> None:
        more: dict[str, Any] = {"stream": stream}
        if thinking:
            more["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        answers = await converse(made, **more)
        assert api.refusals == []
        assert [a["stop_reason"] for a in answers] == [
            "tool_use",
            "end_turn",
            "tool_use",
            "end_turn",
        ]
        assert "tool_search" not in json.dumps(answers)
        assert all(any(t.get("defer_loading") for t in sent["tools"]) for sent in api.requests)
        history = json.dumps(api.requests[-1]["messages"])
        assert history.count("tool_search_tool_search_result") == 2
        assert "[tool search" not in history
        prefixes = {raw.partition(b'"messages"')[0] for raw in api.bodies}
        assert len(prefixes) == (1 if not pauses else 2), "the prefix stays byte for byte"

    with_rig(tmp_path, work, api)


@pytest.mark.parametrize("thinking", [False, True])
def test_a_conversation_goes_on_when_the_notes_are_lost(thinking: bool, tmp_path: Path) -> None:
    api = FakeApi()
    more = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinking else {}

    async def first() -> dict[str, Any]:
        async with rig(tmp_path / "one", api) as made:
            body = request(stream=True, **more)
            return turn(body, await made.ask(body))

    async def second(body: dict[str, Any]) -> None:
        async with rig(tmp_path / "two", api) as made:
            assert (await made.ask(body))["status"] == 200

    asyncio.run(second(asyncio.run(first())))
    assert api.refusals == []
    assert "github_list_issue" in [
        t["name"] for t in api.requests[-1]["tools"] if not t.get("defer_loading")
    ]


def test_notes_outlive_the_proxy_and_hold_names_and_queries_only(tmp_path: Path) -> None:
    api = FakeApi()

    async def once(body: dict[str, Any]) -> dict[str, Any]:
        async with rig(tmp_path, api) as made:
            return turn(body, await made.ask(body, x_api_key=CANARY))

    asyncio.run(once(asyncio.run(once(request(stream=True)))))
    assert "tool_search_tool_search_result" in json.dumps(api.requests[-1]["messages"])
    assert api.headers[-1]["x-api-key"] == CANARY
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert CANARY.encode() not in data
            assert b"octo" not in data
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "runs").iterdir().__next__().stat().st_mode) == 0o700


def test_a_refusal_is_answered_by_the_original_and_remembered(tmp_path: Path) -> None:
    api = FakeApi(refuses_deferral=True)

    async def work(made: Rig) -> None:
        for _ in range(3):
            assert (await made.ask(request()))["status"] == 200
        assert len(api.refusals) == 1
        assert [json.loads(raw)["tools"][0]["name"] for raw in api.bodies] == [
            "tool_search_tool_bm25", "read", "read", "read"
        ]  # fmt: skip
        assert [row.get("untouched", "") for row in made.rows()] == [
            "",
            "refused before",
            "refused before",
        ]
        assert made.rows()[0]["retried"] == 1

    with_rig(tmp_path, work, api)


def test_a_request_that_is_bad_by_itself_gets_its_own_400_and_nothing_is_remembered(
    tmp_path: Path,
) -> None:
    api = FakeApi()

    async def work(made: Rig) -> None:
        bad = request(messages=[{"role": "user", "content": [{"type": "text", "text": ""}]}])
        assert (await made.ask(bad))["status"] == 400
        assert (await made.ask(request()))["status"] == 200
        assert any(tool.get("defer_loading") for tool in api.requests[-1]["tools"])

    with_rig(tmp_path, work, api)


class Explodes(RequestRewriter):
    def rewrite(self, text: str, recall: Any) -> Any:
        raise ZeroDivisionError


class Garbled(FakeApi):
    """Answers deferred requests with something that is no stream of this API."""

    async def _answer(self, request: Request) -> Response:
        raw = await request.body()
        if b"defer_loading" in raw:
            delta = {"type": "text_delta", "text": "tool_search_tool"}
            step = {"type": "content_block_delta", "index": 4, "delta": delta}

            async def pieces() -> Any:
                yield f"data: {json.dumps(step)}\n\n".encode()

            return StreamingResponse(pieces(), media_type="text/event-stream")
        return await super()._answer(request)


@pytest.mark.parametrize(
    ("api", "rewriter"), [(FakeApi(), Explodes(DeferralRules())), (Garbled(), None)]
)
def test_an_exception_before_the_first_byte_sends_the_original(
    api: FakeApi, rewriter: Any, tmp_path: Path
) -> None:
    async def work(made: Rig) -> None:
        body = request(stream=True)
        answer = await made.ask(body)
        assert answer["stop_reason"] == "tool_use"
        assert api.bodies[-1] == json.dumps(body).encode()

    with_rig(tmp_path, work, api, rewriter)


def test_every_method_and_path_is_forwarded_as_it_came(tmp_path: Path) -> None:
    api = FakeApi()

    async def work(made: Rig) -> None:
        for method, target in (
            ("GET", "/v1/models?limit=2"),
            ("HEAD", "/"),
            ("PUT", "/x/%2e%2E/y%2Fz"),
            ("DELETE", "/a"),
        ):
            answer = await send(
                made.port,
                method,
                target,
                b"" if method in ("GET", "HEAD") else b"body",
                {"x-own": "1"},
            )
            assert answer.status == 200
            assert answer.header("x-seen") == "yes"
            assert answer.header("set-cookie") is None
            assert api.headers[-1]["x-own"] == "1"
        body = json.dumps({"model": "m", "messages": [], "tools": TOOLS}).encode()
        counted = await send(made.port, "POST", "/v1/messages/count_tokens?beta=true", body)
        assert json.loads(counted.body) == {"input_tokens": len(body) // 4}
        assert api.paths[0] == "GET /v1/models"

    with_rig(tmp_path, work, api)


def test_a_stream_without_a_search_passes_byte_for_byte(tmp_path: Path) -> None:
    api = FakeApi(blocks=[{"type": "text", "text": "hello é\u2028 world"}])
    api.cut = 5

    async def work(made: Rig) -> None:
        answer = await send(
            made.port, "POST", "/v1/messages", json.dumps(request(stream=True)).encode()
        )
        identity = read_stream(answer.body)["id"]
        message = api.message(request(), api.blocks or [], "end_turn") | {"id": identity}
        message["usage"] = read_stream(answer.body)["usage"] | {"output_tokens": 7}
        message["usage"].pop("server_tool_use")
        assert answer.body == b"".join(events_of(message))
        assert made.rows()[-1]["usage"]["cache_read_input_tokens"] > 0

    with_rig(tmp_path, work, api)


def test_redirects_are_not_followed_and_other_hosts_are_not_answered(tmp_path: Path) -> None:
    async def work(made: Rig) -> None:
        assert (await send(made.port, "GET", "/redirect")).status == 307
        assert (await send(made.port, "GET", "/", headers={"host": "evil.example"})).status == 403
        assert (await send(made.port, "GET", "/.bundle-router/health")).status == 200

    with_rig(tmp_path, work)


def test_a_body_over_the_bound_is_refused_and_a_dead_upstream_is_a_502(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router_deferral.proxy.MAX_BODY_BYTES", 1_000)
    assert MAX_BODY_BYTES > 1_000_000

    async def gone(scope: Scope, receive: Receive, send: Send) -> None:
        raise ConnectionError

    async def work(made: Rig) -> None:
        assert (await send(made.port, "POST", "/v1/messages", b"x" * 1_001)).status == 413

    with_rig(tmp_path / "bound", work)

    async def unreachable() -> None:
        from bundle_router_deferral.proxy import DeferralProxy, listen, serve
        from bundle_router_deferral.upstream import Upstream

        async with Upstream("http://127.0.0.1:1") as upstream:
            proxy = DeferralProxy(upstream, RequestRewriter(DeferralRules()), None, None)
            async with serve(proxy, listen()) as port:
                answer = await send(port, "POST", "/v1/messages", b"{}")
                assert (answer.status, json.loads(answer.body)["error"]["type"]) == (
                    502,
                    "api_error",
                )

    asyncio.run(unreachable())


def test_the_pieces_of_a_stream_do_not_wait_for_acknowledgements() -> None:
    """Ten pieces, 3 ms apart, came to the agent as two, 46 ms apart."""

    async def set_on_accepted() -> int:
        from bundle_router_deferral.proxy import listen

        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = listen()
        async with await asyncio.start_server(answer, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return await accepted

    assert asyncio.run(set_on_accepted()) == 1


def test_the_store_forgets_after_its_time_and_survives_its_file_going_bad(tmp_path: Path) -> None:
    clock = [1_000.0]
    store = HiddenStore(tmp_path / "hidden.sqlite", now=lambda: clock[0])
    block = HiddenBlock("use", "srvtoolu_1", 1, "toolu_1", "tool_search_tool_bm25", '{"query":"x"}')
    store.remember({"call:toolu_1": [block]})
    assert store.recall(["call:toolu_1", "call:other"]) == {"call:toolu_1": (block,)}
    clock[0] += KEPT_S + 1
    assert store.recall(["call:toolu_1"]) == {}
    store.prune()
    store._database.execute("DROP TABLE hidden")
    assert store.recall(["call:toolu_1"]) == {}
    store.remember({"call:toolu_1": [block]})
    assert store.failures == 2
    store.close()
