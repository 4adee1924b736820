"""Right answers in the forms that servers give them: read with one call, and nobody's fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from bundle_router.core.decide.asking.answer_text import json_text
from bundle_router.core.values import Reply
from bundle_router.engine.asking import ModelSelector
from bundle_router.testing.upstream import Act, Exchange, ScriptedServer, choice, completion, says
from hypothesis import given
from hypothesis import strategies as st

Opened = Callable[..., ModelSelector]
Ask = Callable[..., Reply]

GOOD = choice("b.two")


def replies(**document: Any) -> Act:
    body = json.dumps({**json.loads(completion(GOOD)), **document}).encode()
    return lambda exchange: exchange.reply(body)


def message(**fields: Any) -> Act:
    answer = json.loads(completion(None))["choices"][0]
    return replies(choices=[{**answer, "message": {"role": "assistant", **fields}}])


def calls_tool(arguments: str) -> Act:
    def act(exchange: Exchange) -> None:
        name = exchange.request.json["tools"][0]["function"]["name"]
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        exchange.reply(completion(None, finish_reason="tool_calls", tool_calls=[call]))

    return act


def picks(value: Any, **fields: Any) -> Act:
    return says(
        json.dumps({"rationale": "", "picks": value, "sure": True, "missing": "", **fields})
    )


FORMS: dict[str, Act] = {
    "in reasoning_content": message(content=None, reasoning_content=GOOD),
    "in reasoning": message(content="", reasoning=GOOD),
    "in parts": message(content=[{"type": "text", "text": GOOD}]),
    "in parts behind thoughts": message(
        content=[
            {"type": "thinking", "thinking": [{"type": "text", "text": "{hm}"}]},
            {"type": "text", "text": GOOD[:20]},
            {"type": "text", "text": GOOD[20:]},
        ]
    ),
    "thoughts without a beginning": says("I consider {files}.</think>\n" + GOOD),
    "thoughts": says("<think>{hm}</think>" + GOOD),
    "a sentence before": says("Here is the {JSON}: " + GOOD),
    "a sentence behind": says(GOOD + "\nI hope that helps."),
    "a byte order mark": says("\ufeff" + GOOD),
    "a fence and prose": says(f"Sure!\n```json\n{GOOD}\n```\nDone."),
    "counts as fractions": replies(
        usage={"prompt_tokens": 199.5, "completion_tokens": 20.0, "total_tokens": 219.5}
    ),
    "no counts": replies(usage=None),
    "picks as JSON text": picks(json.dumps([{"id": "2", "need": "required"}])),
    "one pick": picks({"id": "2", "need": "required"}),
    "ids alone": picks(["b.two"]),
    "a number": picks([{"id": 2, "need": "required"}]),
    "numbers alone": picks([2]),
    "capitals and spaces": picks([{"id": " B.Two ", "need": "Required"}]),
    "no need": picks([{"id": "2"}]),
    "null for texts": picks([{"id": "2", "need": None}], rationale=None, missing=None),
    "in an object of its name": says(json.dumps({"BundleChoice": json.loads(GOOD)})),
    "in a schema's place": says(json.dumps({"properties": json.loads(GOOD)})),
    "a list of picks": says(json.dumps([{"id": "b.two", "need": "required"}])),
}


@pytest.mark.parametrize("act", FORMS.values(), ids=FORMS)
def test_a_right_answer_is_read_in_the_form_that_it_has(act: Act, opened: Opened, ask: Ask) -> None:
    with ScriptedServer([act]) as server:
        reply = ask(opened(server.base_url))
        assert len(server.requests) == 1
    assert reply.answer is not None, reply.failure
    assert reply.answer.ids == ("b.two",)
    assert reply.model is not None
    assert reply.model.answer, "the record has what the model said"


@pytest.mark.parametrize("arguments", [GOOD, json.dumps(GOOD)], ids=["plain", "JSON in JSON"])
def test_a_tool_calls_arguments_are_read(arguments: str, opened: Opened, ask: Ask) -> None:
    with ScriptedServer([calls_tool(arguments)]) as server:
        reply = ask(opened(server.base_url, mode="tools"))
        assert len(server.requests) == 1
    assert reply.answer is not None, reply.failure
    assert reply.answer.ids == ("b.two",)


@pytest.mark.parametrize(
    "act",
    [
        picks(None),
        picks([]),
        says(json.dumps({"rationale": "", "picks": [], "sure": True, "missing": "a robot arm"})),
    ],
    ids=["null", "empty", "says what is missing"],
)
def test_no_picks_are_an_answer_and_never_sure(act: Act, opened: Opened, ask: Ask) -> None:
    with ScriptedServer([act]) as server:
        reply = ask(opened(server.base_url))
    assert (reply.failure, reply.answer is not None and reply.answer.ids) == (None, ())
    assert reply.model is not None
    assert reply.model.sure is False


@pytest.mark.parametrize(
    "act",
    [
        says("I'd take the second one."),
        message(content=None, reasoning_content="I'd take {the second} one."),
        picks([{"id": True}]),
        picks([{"id": 17}]),
        message(content=[{"type": "image", "url": "x"}]),
    ],
    ids=["prose", "thoughts alone", "a truth value", "no candidate", "no text part"],
)
def test_what_names_no_candidate_is_invalid_output(act: Act, opened: Opened, ask: Ask) -> None:
    with ScriptedServer([act]) as server:
        assert ask(opened(server.base_url)).failure == "invalid_output"


def refuses(parameter: str) -> Act:
    """Answer as the server of a model that refuses a parameter."""

    def act(exchange: Exchange) -> None:
        if parameter not in exchange.request.json:
            exchange.reply(completion(GOOD))
            return
        text = f"Unsupported parameter: '{parameter}' is not supported with this model."
        error = {"message": text, "type": "invalid_request_error", "param": parameter}
        exchange.reply(json.dumps({"error": error}).encode(), 400)

    return act


@pytest.mark.parametrize(
    ("parameter", "mode", "key", "value"),
    [
        ("max_tokens", "json_schema", "max_output_tokens", "none"),
        ("temperature", "json_schema", "temperature", "none"),
        ("response_format", "json_schema", "mode", "md_json"),
        ("response_format", "json", "mode", "md_json"),
        ("tool_choice", "tools", "mode", "md_json"),
        ("tools", "tools", "mode", "md_json"),
    ],
)
def test_a_parameter_that_a_model_refuses_can_be_left_out_and_the_log_says_how(
    parameter: str,
    mode: str,
    key: str,
    value: str,
    opened: Opened,
    ask: Ask,
    diagnostics: Any,
) -> None:
    with ScriptedServer([refuses(parameter)]) as server:
        assert ask(opened(server.base_url, mode=mode)).failure == "bad_request"
        (fields,) = [row[2] for row in diagnostics.events if row[1] == "model.failed"]
        assert fields["advice"] == (
            f'it refuses {parameter}: [model] {key} = "{value}" leaves it out'
        )
        reply = ask(opened(server.base_url, **{"mode": mode, key: value}))
    assert reply.answer is not None, reply.failure


# --- the JSON of an answer in the text around it


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('\ufeff {"a": 1}', '{"a": 1}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('hm {x}</think>\n{"a": 1}', '{"a": 1}'),
        ('Take {x}, so {"a": {"b": 1}} it is.', '{"a": {"b": 1}}'),
        ("nothing {} here", "nothing {} here"),
        ('[{"a": 1}]', '[{"a": 1}]'),
        ("", ""),
    ],
)
def test_the_object_is_found_and_other_text_stays(text: str, found: str) -> None:
    assert json_text(text) == found


@given(st.text(), st.dictionaries(st.text(), st.integers(), min_size=1))
def test_an_object_at_the_end_of_thoughts_is_always_found(
    thoughts: str, answer: dict[str, int]
) -> None:
    text = json.dumps(answer)
    if "</think>" not in text:
        assert json.loads(json_text(f"{thoughts}</think>{text}")) == answer


def test_a_text_of_brackets_takes_no_time() -> None:
    assert json_text("x" + "{" * 100_000).startswith("x{")
