"""What a model can do to us over HTTP, and what we make of it: each fault played by a real
server.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from bundle_router.adapters.llm.wire import MAX_ERROR_BYTES, Allowance, allowance, open_session
from bundle_router.core.decide.decide import Question
from bundle_router.core.values import Failure, Reply
from bundle_router.engine.asking import ModelSelector
from bundle_router.testing import FakeClock, FakeDiagnostics
from bundle_router.testing.upstream import (
    Act,
    Exchange,
    ScriptedServer,
    body,
    choice,
    completion,
    hang,
    says,
    status,
)

from tests.adapters.llm.broken_upstream import (
    calls_tool,
    cut,
    drip,
    huge,
    redirect,
    reset,
    slow_headers,
    when,
)

Opened = Callable[..., ModelSelector]
Ask = Callable[..., Reply]
Put = Callable[..., Question]


def ids(reply: Reply) -> tuple[str, ...]:
    assert reply.answer is not None, reply.failure
    return reply.answer.ids


def test_a_model_answers_and_the_reply_says_what_it_cost(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([says(choice("b.two", "a.one", rationale="It edits."))]) as server:
        reply = ask(opened(server.base_url))
    assert ids(reply) == ("b.two", "a.one")
    assert reply.answer is not None
    assert (reply.answer.source, reply.answer.reason, reply.answer.justification) == (
        "model",
        "model",
        "It edits.",
    )
    use = reply.model
    assert use is not None
    assert (use.name, use.attempts, use.failure, use.cached) == ("openai/model-0", 1, None, False)
    assert (use.input_tokens, use.output_tokens, use.cost_usd) == (200, 20, 0.0)
    assert use.answer == choice("b.two", "a.one", rationale="It edits.")
    assert use.key.startswith("sha256:")


def test_the_price_list_is_known_offline(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([says(choice("a.one"))]) as server:
        selector = opened(names=("openai/gpt-4o-mini",), base_url=server.base_url)
        reply = ask(selector)
    assert reply.model is not None
    assert reply.model.cost_usd == pytest.approx(200 * 0.15e-6 + 20 * 0.6e-6)


@pytest.mark.parametrize(
    ("mode", "act"),
    [
        ("json_schema", says(choice("b.two"))),
        ("tools", calls_tool(choice("b.two"))),
        ("json", says(choice("b.two"))),
        ("md_json", says(f"```json\n{choice('b.two')}\n```")),
    ],
)
def test_every_mode_reads_its_answer(opened: Opened, ask: Ask, mode: str, act: Act) -> None:
    with ScriptedServer([act]) as server:
        assert ids(ask(opened(server.base_url, mode=mode))) == ("b.two",)
        assert len(server.requests) == 1


def test_the_request_is_strict_bounded_and_constant(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([says(choice("a.one"))]) as server:
        ask(opened(server.base_url))
        sent, headers = server.requests[0].json, server.requests[0].headers
    form = sent["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["strict"] is True
    schema = form["json_schema"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["rationale", "picks", "sure", "missing"]
    ids = ["a.one", "b.two", "c.three", "d.four", "e.five"]
    assert schema["$defs"]["Pick"]["properties"]["id"]["enum"] == [*"12345", *ids]
    assert (sent["max_tokens"], sent["temperature"]) == (1_000, 0.0)
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]
    assert not {"user", "metadata", "store"} & sent.keys()
    assert headers["accept-encoding"] == "identity"


def squeezed(code: int) -> Act:
    """An error whose text is compressed, as some gateways send theirs whatever was asked for."""
    packed = gzip.compress(b'{"error": {"message": "slow down"}}')
    return lambda exchange: exchange.reply(packed, code, {"Content-Encoding": "gzip"})


ONE_CALL: list[tuple[str, Act, Failure]] = [
    ("400", status(400), "bad_request"),
    ("401", status(401), "auth"),
    ("403", status(403), "auth"),
    ("404", status(404), "bad_request"),
    ("408", status(408), "timeout"),
    ("413", status(413), "context_window"),
    ("422", status(422), "bad_request"),
    ("429", status(429), "rate_limited"),
    ("429 with Retry-After", status(429, {"Retry-After": "7"}), "rate_limited"),
    ("500", status(500), "upstream_error"),
    ("502 in HTML", body(b"<html>bad gateway</html>", "text/html"), "upstream_error"),
    ("503", status(503), "upstream_error"),
    ("529", status(529), "upstream_error"),
    (
        "context window",
        status(400, message="This model's maximum context length is 8192 tokens"),
        "context_window",
    ),
    (
        "content filter",
        status(400, message="The response was filtered: content management policy"),
        "refused",
    ),
    ("reset", reset(), "upstream_error"),
    ("cut", cut(), "upstream_error"),
    ("empty body", body(b""), "upstream_error"),
    ("not JSON", body(b"{not json"), "upstream_error"),
    ("JSON of something else", body(b'{"hello": 1}'), "upstream_error"),
    (
        "compressed",
        body(gzip.compress(completion(choice("a.one"))), **{"Content-Encoding": "gzip"}),
        "upstream_error",
    ),
    ("429 compressed", squeezed(429), "rate_limited"),
    ("400 with an endless text", status(400, message="x" * 900_000), "bad_request"),
    (
        "longer than its tokens can be",
        says(choice("a.one", rationale="x" * 200_000)),
        "upstream_error",
    ),
    ("30 MB", huge(), "upstream_error"),
    ("30 MB declared", huge(declared=True), "upstream_error"),
    (
        "an error of 100 KB as an answer",
        body(json.dumps({"error": {"message": "rate limit " * 9_000}}).encode()),
        "upstream_error",
    ),
    ("another protocol", status(101), "upstream_error"),
    ("refusal", body(completion(None, refusal="I can't help with that")), "refused"),
    ("filtered", says("", finish_reason="content_filter"), "refused"),
    ("truncated", says('{"rationale": "because', finish_reason="length"), "truncated"),
]


@pytest.mark.parametrize(
    ("act", "failure"), [row[1:] for row in ONE_CALL], ids=[row[0] for row in ONE_CALL]
)
def test_a_fault_is_a_failure_after_one_call(
    opened: Opened, ask: Ask, capfd: pytest.CaptureFixture[str], act: Act, failure: Failure
) -> None:
    with ScriptedServer([act]) as server:
        reply = ask(opened(server.base_url))
        assert (reply.answer, reply.failure) == (None, failure)
        assert len(server.requests) == 1
    assert reply.model is not None
    assert (reply.model.failure, reply.model.attempts) == (failure, 1)
    assert capfd.readouterr() == ("", "")


UNREADABLE: list[tuple[str, Act]] = [
    (
        "no choices",
        body(b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[]}'),
    ),
    ("null content", says(None)),
    ("blank", says("  \n")),
    ("prose", says("I would take a.one")),
    ("broken JSON", says('{"rationale": "x", "picks": [')),
    ("an array", says("[]")),
    ("no picks", says('{"rationale": "x"}')),
    ("unknown need", says(choice("a.one", need="maybe"))),
    ("hallucinated id", says(choice("z.nine"))),
    ("id of a tool", says(choice("srv.a_one"))),
    ("prefix id", says(choice("a"))),
    ("longer id", says(choice("a.one.more"))),
    ("look-alike", says(choice("а.one"))),
    ("zero width", says(choice("a.\u200bone"))),
    ("deep nesting", says("[" * 100_000)),
]


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [("600", [600]), (" 90 ", [90]), ("7.5", [7.5]), ("Fri, 31 Dec 9999 23:59:59 GMT", [900]),
     ("Wed, 21 Oct 2015 07:28:00 GMT", []), ("Wed, 21 Oct 2099 07:28:00", []),
     ("-7", []), ("nan", []), ("inf", []), ("9" * 400, []), ("soon", []), ("", [])],
)  # fmt: skip
def test_a_model_is_left_alone_for_as_long_as_it_asks(
    opened: Opened, ask: Ask, diagnostics: FakeDiagnostics, asked: str, seconds: list[float]
) -> None:
    with ScriptedServer([status(429, {"Retry-After": asked})]) as server:
        assert ask(opened(server.base_url, clock=FakeClock())).failure == "rate_limited"
    assert [
        fields["seconds"] for _, name, fields in diagnostics.events if name == "model.suspended"
    ] == seconds


def test_no_cookie_is_kept(opened: Opened, ask: Ask, question: Put) -> None:
    def sets_a_cookie(exchange: Exchange) -> None:
        exchange.reply(completion(choice("a.one")), headers={"Set-Cookie": "who=you; Path=/"})

    with ScriptedServer([sets_a_cookie]) as server:
        selector = opened(server.base_url)
        ask(selector)
        ask(selector, question(goal="again"))
        assert [request.headers.get("cookie") for request in server.requests] == [None, None]


@pytest.mark.parametrize("act", [row[1] for row in UNREADABLE], ids=[row[0] for row in UNREADABLE])
def test_an_unreadable_answer_is_asked_for_once_more(
    opened: Opened, ask: Ask, capfd: pytest.CaptureFixture[str], act: Act
) -> None:
    with ScriptedServer([act]) as server:
        reply = ask(opened(server.base_url))
        assert (reply.answer, reply.failure) == (None, "invalid_output")
        assert len(server.requests) == 2
    assert capfd.readouterr() == ("", "")


def test_the_re_ask_shows_the_model_what_it_said(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([says("take a.one"), says(choice("a.one"))]) as server:
        reply = ask(opened(server.base_url))
        first, second = (request.json["messages"] for request in server.requests)
    assert ids(reply) == ("a.one",)
    assert reply.model is not None
    assert (reply.model.attempts, reply.model.input_tokens, reply.model.failure) == (2, 400, None)
    assert second[:2] == first
    assert second[2] == {"role": "assistant", "content": "take a.one"}


def test_a_fenced_answer_is_read_as_it_is(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([says(f"```json\n{choice('c.three')}\n```\n")]) as server:
        assert ids(ask(opened(server.base_url))) == ("c.three",)
        assert len(server.requests) == 1


def test_duplicates_go_required_comes_first_and_the_cap_holds(opened: Opened, ask: Ask) -> None:
    said = (
        '{"rationale": "r", "missing": "", "surprise": 1, "picks": [{"id": "a.one", "need":'
        ' "helpful"}, {"id": "b.two", "need": "required"}, {"id": "b.two", "need":'
        ' "helpful"},{"id": "c.three", "need": "helpful"}, {"id": "d.four", "need": "required",'
        ' "sure": true}]}'
    )
    with ScriptedServer([says(said)]) as server:
        reply = ask(opened(server.base_url))
    assert ids(reply) == ("b.two", "d.four", "a.one")
    assert reply.answer is not None
    assert reply.answer.dropped == (("c.three", "over_budget"),)


@pytest.mark.parametrize(
    ("said", "sure"),
    [
        ("true", True),
        ("false", False),
        ('"yes"', True),
        ('" True "', True),
        ('"no"', False),
        ('"fairly"', False),
        ("null", False),
        ("[]", False),
        (None, False),
    ],
)
@pytest.mark.parametrize("picks", ['[{"id": "1", "need": "required"}]', "[]"])
def test_a_model_is_sure_where_it_says_so_and_picks_something(
    opened: Opened, ask: Ask, said: str | None, sure: bool, picks: str
) -> None:
    doubt = "" if said is None else f', "sure": {said}'
    with ScriptedServer([says(f'{{"picks": {picks}, "missing": ""{doubt}}}')]) as server:
        reply = ask(opened(server.base_url))
        assert len(server.requests) == 1, "a doubt that can't be read is no reason to ask again"
    assert reply.model is not None
    assert reply.model.sure == (sure and picks != "[]")


def test_nothing_fits_is_an_answer(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([says(choice(missing="a database client"))]) as server:
        assert ids(ask(opened(server.base_url))) == ()
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "act", [hang(), drip(), slow_headers()], ids=["hang", "drip", "slow headers"]
)
def test_the_deadline_holds_and_the_connection_is_closed(
    opened: Opened, ask: Ask, act: Act, leap: Any
) -> None:
    with ScriptedServer([act]) as server:
        selector = opened(server.base_url, deadline_s=59.0)
        leap.after(server.asked)
        assert ask(selector).failure == "timeout"
        assert server.gone.wait(300), "the client still holds the connection"
        assert len(server.requests) == 1


def test_a_huge_answer_is_cut_off(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([huge(200)]) as server:
        assert ask(opened(server.base_url)).failure == "upstream_error"
        assert server.gone.wait(300)
        # One megabyte is read; what else was sent fills the buffers of two sockets.
        assert server.bytes_sent < 40 << 20


def test_of_an_error_only_the_beginning_is_read() -> None:
    async def fetched(url: str) -> tuple[int, bytes]:
        token = allowance.set(Allowance(1))
        try:
            async with open_session() as session, session.get(url) as response:
                return response.status, await response.read()
        finally:
            allowance.reset(token)

    for act, length in ((status(400, message="x" * 900_000), MAX_ERROR_BYTES), (squeezed(429), 0)):
        with ScriptedServer([act]) as server:
            code, text = asyncio.run(fetched(server.base_url))
        assert (code >= 400, len(text)) == (True, length)


@pytest.mark.parametrize("tokens", [-5, 10**30], ids=["negative", "absurd"])
def test_a_count_that_somebody_made_up_is_replaced_by_an_estimate(
    opened: Opened, ask: Ask, tokens: int
) -> None:
    whole = json.loads(completion(choice("a.one")))
    whole["usage"] = {
        "prompt_tokens": tokens,
        "completion_tokens": min(tokens, 0),
        "total_tokens": tokens,
    }
    with ScriptedServer([body(json.dumps(whole).encode())]) as server:
        reply = ask(opened(names=("openai/gpt-4o-mini",), base_url=server.base_url))
    assert reply.model is not None
    assert (reply.model.input_tokens, ids(reply)) == (0, ("a.one",))
    assert 0.0 < reply.model.cost_usd < 0.001


def test_a_name_of_slashes_does_not_keep_the_price_look_up_busy(opened: Opened, ask: Ask) -> None:
    whole = json.loads(completion(choice("a.one")))
    whole["model"] = "/" * 60_000
    with ScriptedServer([body(json.dumps(whole).encode())]) as server:
        selector = opened(names=("openai/gpt-4o-mini",), base_url=server.base_url)
        began = time.process_time()
        reply = ask(selector)
        spent = time.process_time() - began
    assert reply.model is not None
    assert reply.model.cost_usd == pytest.approx(200 * 0.15e-6 + 20 * 0.6e-6), (
        "that of the model that was asked"
    )
    assert "base_model" not in server.requests[0].json
    assert spent < 4, "some 0.2 s; 50 by the answer's own name"


@pytest.mark.parametrize("name", ["annotations", "thinking_blocks", "reasoning"])
def test_an_answer_of_many_values_keeps_nobody_busy_and_a_long_text_may_be_in_it(
    opened: Opened, ask: Ask, name: str
) -> None:
    whole = json.loads(completion(choice("a.one")))
    whole["choices"][0]["message"][name] = "[{}]" * 22_000 if name == "reasoning" else [{}] * 22_000
    with ScriptedServer([body(json.dumps(whole).encode())]) as server:
        selector = opened(server.base_url)
        began = time.process_time()
        reply = ask(selector)
        spent = time.process_time() - began
    assert (reply.answer is not None, reply.failure) == (
        (name == "reasoning"),
        None if name == "reasoning" else "upstream_error",
    )
    assert spent < 3, "some 0.02 s; ten by what litellm says of each value"


@pytest.mark.parametrize("field", ["role", "name", "prompt_tokens", "model", "array"])
def test_a_long_text_where_none_belongs_keeps_nobody_busy(
    opened: Opened, ask: Ask, field: str
) -> None:
    whole: Any = json.loads(completion(choice("a.one")))
    place = {"prompt_tokens": whole["usage"], "model": whole}.get(
        field, whole["choices"][0]["message"]
    )
    place[field] = "x y " * 200_000
    with ScriptedServer(
        [body(json.dumps([whole] if field == "array" else whole).encode())]
    ) as server:
        selector = opened(server.base_url, max_output_tokens=16_000)
        began = time.process_time()
        reply = ask(selector)
        spent = time.process_time() - began
    assert reply.failure == "upstream_error"
    assert spent < 1.5, "some 0.03 s; three and more by litellm's expressions"


def test_half_a_character_in_an_answer_does_not_spoil_the_second_call(
    opened: Opened, ask: Ask
) -> None:
    with ScriptedServer([says("no \ud800 JSON"), says(choice("b.two"))]) as server:
        assert ids(ask(opened(server.base_url))) == ("b.two",)
        assert server.requests[1].json["messages"][2]["content"] == "no ? JSON"


def test_a_redirect_is_not_followed(opened: Opened, ask: Ask) -> None:
    with (
        ScriptedServer([says(choice("a.one"))]) as other,
        ScriptedServer([redirect(other.base_url)]) as server,
    ):
        assert ask(opened(server.base_url)).failure == "upstream_error"
        assert (len(server.requests), len(other.requests)) == (1, 0)


@pytest.mark.parametrize(
    "fault",
    [status(500), status(401), status(429), status(400), reset(), says("", finish_reason="length")],
)
def test_the_next_model_is_asked_when_the_first_fails(opened: Opened, ask: Ask, fault: Act) -> None:
    with ScriptedServer([fault]) as bad, ScriptedServer([says(choice("a.one"))]) as good:
        reply = ask(opened(bad.base_url, good.base_url))
        assert ids(reply) == ("a.one",)
        assert (len(bad.requests), len(good.requests)) == (1, 1)
    assert reply.model is not None
    assert (reply.model.name, reply.model.attempts) == ("openai/model-1", 2)


def test_there_is_no_third_call(opened: Opened, ask: Ask) -> None:
    servers = [ScriptedServer([status(500)]) for _ in range(3)]
    with servers[0], servers[1], servers[2]:
        reply = ask(opened(*(server.base_url for server in servers)))
        assert reply.failure == "upstream_error"
        assert [len(server.requests) for server in servers] == [1, 1, 0]


def test_a_server_that_is_not_there_is_a_failure(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([hang()]) as server:
        url = server.base_url
    assert ask(opened(url)).failure == "upstream_error"


def test_fifty_same_questions_are_one_call_and_one_may_leave(
    opened: Opened, ask: Ask, question: Put
) -> None:
    released = threading.Event()
    with ScriptedServer([when(released, says(choice("a.one")))]) as server:
        selector = opened(server.base_url)

        async def ask_all() -> list[Reply | BaseException]:
            tasks = [
                asyncio.create_task(selector.select(question(run_id=f"r-{i}"), ()))
                for i in range(50)
            ]
            assert await asyncio.to_thread(server.asked.wait, 300)
            tasks[0].cancel()
            tasks[7].cancel()
            await asyncio.sleep(0)
            released.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

        replies = asyncio.run(ask_all())
        assert len(server.requests) == 1
    cancelled = [i for i, reply in enumerate(replies) if isinstance(reply, asyncio.CancelledError)]
    assert cancelled == [0, 7]
    assert all(ids(reply) == ("a.one",) for reply in replies if isinstance(reply, Reply))


def test_when_all_have_left_the_call_is_given_up(opened: Opened, ask: Ask, question: Put) -> None:
    with ScriptedServer([hang(), says(choice("a.one"))]) as server:
        selector = opened(server.base_url)

        async def ask_and_leave() -> None:
            tasks = [asyncio.create_task(selector.select(question(), ())) for _ in range(3)]
            assert await asyncio.to_thread(server.asked.wait, 300)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(ask_and_leave())
        assert server.gone.wait(300)
        assert ids(ask(selector)) == ("a.one",)  # nobody is to blame, so the breaker stayed closed


def _as_anthropic(exchange: Exchange) -> None:
    said = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "end_turn",
    }
    content = [{"type": "text", "text": choice("b.two")}]
    exchange.reply(
        json.dumps(
            {**said, "content": content, "usage": {"input_tokens": 9, "output_tokens": 3}}
        ).encode()
    )


@pytest.mark.parametrize(
    ("name", "act"),
    [("anthropic/claude-haiku-4-5", _as_anthropic), ("mistral/m", says(choice("b.two")))],
)
def test_other_providers_are_asked_over_the_same_bounded_wire(
    opened: Opened, ask: Ask, monkeypatch: pytest.MonkeyPatch, name: str, act: Act
) -> None:
    """These are reached through another client of litellm's, which reconnects and follows redirects
    by itself.
    """
    monkeypatch.setenv("SCRIPTED_KEY", "scripted")
    with ScriptedServer(
        [act, reset(), redirect("/elsewhere"), huge(), status(429, {"Retry-After": "7"})]
    ) as server:
        url = (
            server.base_url.removesuffix("/v1") if name.startswith("anthropic") else server.base_url
        )
        selector = opened(names=(name,), base_url=url, key_env="SCRIPTED_KEY")
        assert ids(ask(selector)) == ("b.two",)
        assert [ask(selector).failure for _ in range(3)] == ["upstream_error"] * 3
        assert len(server.requests) == 4
        assert server.bytes_sent < 20 << 20


def test_a_closed_client_leaves_nothing_in_the_library_s_cache(opened: Opened, ask: Ask) -> None:
    with ScriptedServer([says(choice("a.one"))]) as server:
        ask(opened(server.base_url))
        import litellm

        before = len(litellm.in_memory_llm_clients_cache.cache_dict)
        selector = opened(server.base_url)
        ask(selector)
        assert len(litellm.in_memory_llm_clients_cache.cache_dict) > before
        asyncio.run(selector.close())
        assert len(litellm.in_memory_llm_clients_cache.cache_dict) == before
