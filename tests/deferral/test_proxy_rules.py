"""The proxy's rules without a network: what is rewritten, what is hidden, and that both together
lose nothing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from bundle_router_deferral.hiding import (
    HiddenBlock,
    StreamFilter,
    client_blocks,
    hide_in_message,
    is_hidden,
    notes_of,
)
from bundle_router_deferral.rewriting import (
    DeferralRules,
    Deferred,
    RequestRewriter,
    UnchangedRequest,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.deferral.fake_api import BadRequest, Block, check_request, events_of, read_stream

REWRITER = RequestRewriter(DeferralRules())
Notes = Mapping[str, Sequence[HiddenBlock]]


def nothing(_keys: Sequence[str]) -> Notes:
    return {}


def rewrite(body: Any, notes: Notes | None = None) -> Deferred | UnchangedRequest:
    known = notes or {}
    text = body if isinstance(body, str) else json.dumps(body)
    return REWRITER.rewrite(text, lambda keys: {key: known[key] for key in keys if key in known})


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"does {name}", "input_schema": {"type": "object"}, **more}


TOOLS = [
    tool("read"),
    *(
        tool(f"github_{verb}_issue")
        for verb in ("list", "get", "create", "close", "search", "label")
    ),
]
TOOLS += [
    tool("bash"),
    *(tool(f"mcp__jira__{verb}") for verb in ("list", "get", "create", "close", "move")),
]


def request(**more: Any) -> dict[str, Any]:
    return {
        "model": "claude-sonnet-4-5", "max_tokens": 100, "tools": copy.deepcopy(TOOLS),
        "messages": [{"role": "user", "content": "go"}], **more,
    }  # fmt: skip


def test_the_search_tool_comes_first_and_deferred_tools_last_in_their_order() -> None:
    found = rewrite(request())
    assert isinstance(found, Deferred)
    tools = json.loads(found.text)["tools"]
    names = [tool["name"] for tool in tools]
    late = [t["name"] for t in TOOLS if "_" in t["name"]]
    assert names == ["tool_search_tool_bm25", "read", "bash", *late]
    assert [tool["name"] for tool in tools if tool.get("defer_loading")] == late
    assert found.upfront_bytes < found.original_upfront_bytes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "claude-3-5-haiku-20241022"}, "model"),
        ({"model": "claude-sonnet-4-20250514"}, "model"),
        ({"model": "some-model"}, "model"),
        ({"tool_choice": {"type": "tool", "name": "read"}}, "forced tool"),
        ({"tool_choice": {"type": "any"}}, "forced tool"),
        ({"tools": TOOLS[:6]}, "too few tools"),
        ({"tools": [*TOOLS, tool("x", input_examples=[{}])]}, "input_examples"),
        ({"tools": [*TOOLS, tool("x", defer_loading=True)]}, "native"),
        ({"tools": [*TOOLS, tool("ToolSearch")]}, "native"),
        ({"tools": [*TOOLS, tool("tool_search")]}, "native"),
        ({"tools": [*TOOLS, {"type": "tool_search_tool_regex_20251119", "name": "s"}]}, "native"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "tool_reference", "tool_name": "read"}]}]}]}, "native"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": [
            {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "read"}}]}]}, "native"),
        ({"tools": []}, "too few tools"),
    ],
)  # fmt: skip
def test_what_forbids_deferral_leaves_the_request_as_it_came(
    change: dict[str, Any], reason: str
) -> None:
    assert rewrite(request(**change)) == UnchangedRequest(reason)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"tools": [], "tools": []}', '{"tools": 1}', "nothing", '{"model": NaN}'],
)
def test_what_is_no_request_is_not_touched(text: str) -> None:
    assert isinstance(rewrite(text), UnchangedRequest)


def test_a_cache_mark_of_a_deferred_tool_goes_to_the_last_tool_that_may_carry_it() -> None:
    body = request()
    body["tools"][-1]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    found = rewrite(body)
    assert isinstance(found, Deferred)
    tools = json.loads(found.text)["tools"]
    assert [t["name"] for t in tools if "cache_control" in t] == ["bash"]
    assert tools[2]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    check_request(json.loads(found.text))


def test_bytes_beside_the_tools_stay_and_the_same_tools_give_the_same_bytes() -> None:
    text = json.dumps(request(), indent=3).replace(
        '"max_tokens": 100', '"max_tokens" : 1E2, "big": 1e999, "s": "\\ud800"'
    )
    found = rewrite(text)
    again = rewrite(text.replace("go", "go on"))
    assert isinstance(found, Deferred)
    assert isinstance(again, Deferred)
    before, _, after = text.partition('"tools": ')
    assert found.text.startswith(before)
    assert after.endswith(found.text[-60:])
    tools = found.text[len(before) :].partition('"messages"')[0]
    assert tools in again.text


def test_a_tool_that_was_called_without_a_search_stays_upfront() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "github_get_issue", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "x"}
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    found = rewrite(request(messages=history))
    assert isinstance(found, Deferred)
    assert "github_get_issue" not in found.deferred
    check_request(json.loads(found.text))


def captured(recordings: Path) -> list[Path]:
    return sorted((recordings / "requests/captured").glob("*.json"))


def test_of_the_recorded_requests_those_of_clients_without_deferral_are_rewritten(
    recordings: Path,
) -> None:
    seen = {}
    for path in captured(recordings):
        body = json.loads(path.read_text())["body"]
        found = rewrite(json.dumps(body))
        seen[path.stem] = found.reason if isinstance(found, UnchangedRequest) else "deferred"
        if isinstance(found, Deferred):
            check_request(json.loads(found.text))
    assert seen == {
        "cc-2.1.329_count_tokens": "deferred",
        "cc-2.1.329_deferral_off_turn1": "deferred",
        "cc-2.1.329_deferral_off_turn2": "deferred",
        "cc-2.1.329_native_after_search": "native",
        "cc-2.1.329_native_turn1": "native",
        "cc-2.1.329_opus48_midconv": "native",
        "cc-2.1.76_native_turn2": "native",
        "cc-2.1.7_mcpsearch_turn2": "native",
        "cline-3.0.65_turn1": "deferred",
        "cline-3.0.65_turn2": "deferred",
        "opencode-1.18.33_replay_after_serverblocks": "deferred",
        "opencode-1.18.33_title": "no tools",
        "opencode-1.18.33_turn1": "deferred",
        "opencode-1.18.33_turn2": "deferred",
        "qwen-0.15.10_turn1": "native",
    }


def streams(recordings: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted((recordings / "sse").glob("*.txt"))}


def filtered(data: bytes, *, size: int, placeholders: bool = False) -> tuple[bytes, StreamFilter]:
    stream = StreamFilter(placeholders=placeholders)
    parts = [stream.feed(data[i : i + size]) for i in range(0, len(data), size)]
    return b"".join(parts) + stream.end(), stream


@pytest.mark.parametrize("size", [1, 7, 64, 1_000_000])
@pytest.mark.parametrize("placeholders", [False, True])
def test_no_recorded_stream_shows_the_client_a_search(
    size: int, placeholders: bool, recordings: Path
) -> None:
    for name, data in streams(recordings).items():
        shown, _ = filtered(data, size=size, placeholders=placeholders)
        whole, _ = filtered(data, size=1_000_000, placeholders=placeholders)
        assert shown == whole, f"{name} depends on how it was cut"
        for mark in (b"tool_search_tool", b"tool_reference", b'"server_tool_use", "id"'):
            assert mark not in shown
        message = read_stream(shown)
        assert message["content"] or name == "error_midstream"
        if name == "no_search_passthrough":
            assert shown == data
        if name == "error_midstream":
            assert message["error"]["type"] == "overloaded_error"


def test_unknown_events_and_blocks_pass(recordings: Path) -> None:
    data = streams(recordings)["unknown_event_and_block"]
    shown, _stream = filtered(data, size=3)
    before, after = read_stream_loosely(data), read_stream_loosely(shown)
    hidden = ("server_tool_use", "tool_search_tool_result")
    assert [kind for kind in before if kind not in hidden] == after


def read_stream_loosely(data: bytes) -> list[str]:
    kinds = []
    for line in data.splitlines():
        if line.startswith(b"data:"):
            step = json.loads(line[5:])
            kinds.append(
                step["content_block"]["type"]
                if step["type"] == "content_block_start"
                else step["type"]
            )
    return [kind for kind in kinds if not kind.startswith("content_block_")]


NAMES = [t["name"] for t in TOOLS if "_" in t["name"]]


@st.composite
def answers(draw: st.DrawFn) -> list[Block]:
    """Blocks of an answer as the API may send them: thinking, texts, searches (also two at once),
    calls.
    """
    blocks: list[Block] = []
    calls = 0
    for number in range(draw(st.integers(1, 6))):
        kind = draw(
            st.sampled_from(("text", "thinking", "search", "two searches", "call", "other"))
        )
        if kind == "text":
            blocks.append(
                {
                    "type": "text",
                    "text": draw(
                        st.sampled_from(("a", "é \u2028 b", "data: x\n\nevent: y", "[x]"))
                    ),
                }
            )
        elif kind == "thinking":
            blocks.append(
                {"type": "thinking", "thinking": "t", "signature": f"signed-{len(blocks)}"}
            )
        elif kind == "call":
            calls += 1
            blocks.append(
                {
                    "type": "tool_use",
                    "id": f"toolu_{calls}",
                    "name": draw(st.sampled_from(NAMES)),
                    "input": {"a": 1},
                }
            )
        elif kind == "other":
            blocks.append(
                {
                    "type": "server_tool_use",
                    "id": f"srvtoolu_w{number}",
                    "name": "web_search",
                    "input": {"q": "x"},
                }
            )
            blocks.append(
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": f"srvtoolu_w{number}",
                    "content": [],
                }
            )
        else:
            ids = [f"srvtoolu_{number}{i}" for i in range(1 + (kind == "two searches"))]
            blocks += [
                {
                    "type": "server_tool_use",
                    "id": i,
                    "name": "tool_search_tool_bm25",
                    "input": {"query": draw(st.text(max_size=4))},
                }
                for i in ids
            ]
            for i in ids:
                names = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
                content: Block = {
                    "type": "tool_search_tool_search_result",
                    "tool_references": [
                        {"type": "tool_reference", "tool_name": name} for name in names
                    ],
                }
                if draw(st.booleans()) and not names:
                    content = {"type": "tool_search_tool_result_error", "error_code": "unavailable"}
                blocks.append(
                    {"type": "tool_search_tool_result", "tool_use_id": i, "content": content}
                )
    return blocks


def message_of(blocks: list[Block]) -> dict[str, Any]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks,
        "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


@given(answers(), st.booleans(), st.sampled_from(("\n", "\r\n", "\r")), st.data())
def test_the_clients_view_and_the_store_give_the_upstreams_message_again(
    blocks: list[Block], placeholders: bool, newline: str, draw: st.DataObject
) -> None:
    data = b"".join(events_of(message_of(blocks), newline))
    whole, stream = filtered(data, size=len(data), placeholders=placeholders)
    assert filtered(data, size=1, placeholders=placeholders)[0] == whole  # cut at every byte
    for cut in draw.draw(st.lists(st.integers(1, len(data) - 1), min_size=5, max_size=5)):
        again = StreamFilter(placeholders=placeholders)
        assert again.feed(data[:cut]) + again.feed(data[cut:]) + again.end() == whole
    seen = read_stream(whole)["content"]
    hidden = any(map(is_hidden, blocks))
    assert seen == client_blocks(blocks, placeholders=placeholders)
    assert (whole == data) or hidden
    body, plain = hide_in_message(
        json.dumps(message_of(blocks)).encode(), placeholders=placeholders
    )
    assert json.loads(body)["content"] == seen
    assert not hidden or (plain == blocks and stream.blocks == blocks)

    prompt = {"role": "user", "content": [{"type": "text", "text": "go"}]}
    first = rewrite(request(messages=[prompt]))
    assert isinstance(first, Deferred)
    notes = notes_of(stream.blocks, first.prompt, placeholders=placeholders)
    marked = copy.deepcopy(seen)
    marked[-1]["cache_control"] = {"type": "ephemeral"}  # as clients do
    back = rewrite(request(messages=[prompt, {"role": "assistant", "content": marked}]), notes)
    if isinstance(back, UnchangedRequest):  # nearly everything was called without a search
        return
    restored = json.loads(back.text)["messages"][1]["content"]
    for block in restored:
        block.pop("cache_control", None)
    keyed = any(block["type"] == "tool_use" or block.get("text", "").strip() for block in seen)
    assert restored == (blocks if keyed else seen)


def test_a_search_whose_tools_are_gone_is_left_out() -> None:
    blocks: list[Block] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "x"}},
        {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": {
            "type": "tool_search_tool_search_result", "tool_references": [
                {"type": "tool_reference", "tool_name": "gone"},
                {"type": "tool_reference", "tool_name": "tool_search_tool_bm25"},
            ]}},
        {"type": "text", "text": "done"},
    ]  # fmt: skip
    seen = client_blocks(blocks, placeholders=False)
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": seen},
        {"role": "user", "content": "on"},
    ]
    first = rewrite(request())
    assert isinstance(first, Deferred)
    found = rewrite(request(messages=history), notes_of(blocks, first.prompt, placeholders=False))
    assert isinstance(found, Deferred)
    assert json.loads(found.text)["messages"][1]["content"] == seen
    check_request(json.loads(found.text))


def test_an_answer_of_searches_alone_shows_something_and_comes_back() -> None:
    blocks: list[Block] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "x"}},
        {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": {
            "type": "tool_search_tool_search_result", "tool_references": []}},
    ]  # fmt: skip
    shown, stream = filtered(b"".join(events_of(message_of(blocks))), size=5)
    seen = read_stream(shown)["content"]
    assert [block["type"] for block in seen] == ["text", "text"]
    notes = notes_of(stream.blocks, "", placeholders=False)
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": seen},
        {"role": "user", "content": "on"},
    ]
    found = rewrite(request(messages=history), notes)
    assert isinstance(found, Deferred)
    assert json.loads(found.text)["messages"][1]["content"] == blocks


def test_placeholders_stay_text_when_the_notes_are_lost() -> None:
    blocks: list[Block] = [
        {"type": "thinking", "thinking": "a", "signature": "signed-0"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "x"}},
        {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "github_list_issue"}]}},
        {"type": "thinking", "thinking": "b", "signature": "signed-3"},
        {"type": "tool_use", "id": "t1", "name": "github_list_issue", "input": {}},
    ]  # fmt: skip
    seen = client_blocks(blocks, placeholders=True)
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}],
    }
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": seen}, result]
    body = request(messages=history, thinking={"type": "enabled", "budget_tokens": 1024})
    found = rewrite(body)
    assert isinstance(found, Deferred)
    check_request(json.loads(found.text))
    check_request(body)  # and without a proxy


def test_the_strict_fake_refuses_what_the_api_refuses() -> None:
    for change, said in (
        ([tool("a", defer_loading=True)], "All tools have defer_loading set"),
        (
            [tool("a"), tool("b", defer_loading=True, cache_control={"type": "ephemeral"})],
            "cannot have both",
        ),
    ):
        with pytest.raises(BadRequest, match=said):
            check_request(request(tools=change))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(("tool_use", "text", "assistant")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("type", "name", "role", "content", "id", "text")), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4), st.lists(JSON, max_size=3), JSON)
def test_no_body_makes_the_rewriting_do_more_than_leave_it(
    messages: list[Any], tools: list[Any], more: Any
) -> None:
    found = rewrite(
        request(messages=messages, tools=[*TOOLS, *tools], thinking=more, tool_choice=more)
    )
    if isinstance(found, Deferred):
        sent = json.loads(found.text)
        assert sent["messages"] == messages
        late = [
            tool for tool in sent["tools"] if isinstance(tool, dict) and tool.get("defer_loading")
        ]
        assert all("cache_control" not in tool for tool in late)
