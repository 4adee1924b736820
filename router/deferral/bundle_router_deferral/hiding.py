"""Removes tool searches from an answer before the client sees them, and notes what is needed to put
them back. Pure.

Rules:
1. `server_tool_use` of the search tool and `tool_search_tool_result` are hidden; every other block
   passes.
2. Without thinking they are dropped and the later blocks renumbered. With thinking (requested, or
   before the first search) each becomes a short text block, so that signed thinking keeps its place
   even if the notes are lost.
3. A stream without a search passes byte for byte. Notes hold only names and queries of an answer.
4. An answer that would be left without any block gets one placeholder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from bundle_router_deferral.json_spans import members

SEARCH_PREFIX: Final = "tool_search_tool"
RESULT: Final = "tool_search_tool_result"
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of an answer that pass before it is parsed: until then it is known whether there is a
search.
"""
_PLACEHOLDER: Final = re.compile(r"\[tool search (?:result )?(\S+)\]")
_EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE: Final = re.compile(r"\r\n|\n|\r")
_MARKS: Final = (b"tool_search_tool", b"pause_turn")
"""Every event that has to be parsed contains one of these."""


BlockKind = Literal["use", "result"]


class BrokenAnswer(ValueError):
    """The answer is not in the API's documented form, or too large to filter."""


@dataclass(frozen=True, slots=True)
class HiddenBlock:
    """A block hidden from the client: only names and queries, and its place.

    `visible` blocks of the answer came before it; `before` is the id of the tool call right after
    it, if there was one.
    """

    kind: BlockKind
    id: str
    visible: int = 0
    before: str = ""
    name: str = ""
    input: str = "{}"
    references: tuple[str, ...] = ()
    error: str = ""
    error_message: str = ""

    def as_text(self) -> str:
        """Return the block as JSON, as the API sent it."""
        return json.dumps(self.as_block(), separators=(",", ":"))

    def as_block(self) -> dict[str, Any]:
        if self.kind == "use":
            return {
                "type": "server_tool_use",
                "id": self.id,
                "name": self.name,
                "input": json.loads(self.input),
            }
        if self.error:
            content: dict[str, Any] = {
                "type": "tool_search_tool_result_error",
                "error_code": self.error,
            }
            if self.error_message:
                content["error_message"] = self.error_message
        else:
            references = [{"type": "tool_reference", "tool_name": name} for name in self.references]
            content = {"type": "tool_search_tool_search_result", "tool_references": references}
        return {"type": RESULT, "tool_use_id": self.id, "content": content}


def is_hidden(block: Any) -> bool:
    """Return whether a block belongs to a tool search."""
    if not isinstance(block, dict):
        return False
    searching = block.get("type") == "server_tool_use" and str(block.get("name", "")).startswith(
        SEARCH_PREFIX
    )
    return searching or block.get("type") == RESULT


def hidden_block(block: dict[str, Any], visible: int) -> HiddenBlock:
    """Return the note about a block."""
    if block["type"] == "server_tool_use":
        query = json.dumps(block.get("input") or {}, separators=(",", ":"))
        return HiddenBlock(
            "use", str(block.get("id")), visible, name=str(block.get("name")), input=query
        )

    content = _dict(block.get("content"))
    names = []
    for reference in content.get("tool_references") or ():
        name = _dict(reference).get("tool_name")
        if isinstance(name, str):
            names.append(name)
    return HiddenBlock(
        "result",
        str(block.get("tool_use_id")),
        visible,
        references=tuple(names),
        error=str(content.get("error_code") or ""),
        error_message=str(content.get("error_message") or ""),
    )


def placeholder_for(block: HiddenBlock) -> str:
    return f"[tool search {'result ' if block.kind == 'result' else ''}{block.id}]"


def placeholder_id(block: Any) -> str | None:
    """Return the id of the search that a text block is the placeholder of; None for any other
    block.
    """
    if (
        not isinstance(block, dict)
        or block.get("type") != "text"
        or not isinstance(block.get("text"), str)
    ):
        return None
    match = _PLACEHOLDER.fullmatch(block["text"].strip())
    return match[1] if match else None


def shown_blocks(content: Any) -> list[dict[str, Any]]:
    """Return an assistant message's blocks; a plain string counts as one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        return [block for block in content if isinstance(block, dict)]
    return []


def message_key(blocks: Sequence[dict[str, Any]], prompt: str) -> str:
    """Return the key of an answer in its client's later requests: the id of its first tool call,
    else a digest of its text and of the prompt before it. "" if it has neither.
    """
    for block in blocks:
        if block.get("type") == "tool_use" and block.get("id"):
            return f"call:{block['id']}"
    text = "".join(
        str(block.get("text", "")) for block in blocks if block.get("type") == "text"
    ).strip()
    if text:
        whole = f"{prompt} {text}".encode("utf-8", "surrogatepass")
        return f"text:{hashlib.sha256(whole).hexdigest()}"
    return ""


def keeps_places(blocks: Sequence[dict[str, Any]], thinking: bool) -> bool:
    """Return whether searches become placeholders: if thinking was requested, or is before the
    first search.
    """
    for block in blocks:
        if is_hidden(block):
            return thinking
        if block.get("type") in ("thinking", "redacted_thinking"):
            return True
    return thinking


def notes_of(
    blocks: Sequence[dict[str, Any]], prompt: str, *, placeholders: bool
) -> dict[str, tuple[HiddenBlock, ...]]:
    """Return the notes about an answer, by key, from which the client's view is restored to the
    answer.
    """
    placeholders = keeps_places(blocks, placeholders)
    hidden: list[HiddenBlock] = []
    visible: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        if is_hidden(block):
            before = _following_call(blocks[index + 1 :])
            hidden.append(replace(hidden_block(block, len(visible)), before=before))
        else:
            visible.append(block)

    if placeholders or not visible:
        by_id: dict[str, tuple[HiddenBlock, ...]] = {}
        for one in hidden:
            by_id[f"id:{one.id}"] = (*by_id.get(f"id:{one.id}", ()), one)
        return by_id

    key = message_key(visible, prompt)
    if not hidden or not key:
        return {}
    return {key: tuple(hidden)}


def _following_call(later: Sequence[dict[str, Any]]) -> str:
    """Return the id of the tool call that stands first among the visible blocks; empty if another
    block does.
    """
    following = next((block for block in later if not is_hidden(block)), None)
    if following is None or following.get("type") != "tool_use":
        return ""
    return str(following.get("id") or "")


def client_blocks(blocks: Sequence[dict[str, Any]], *, placeholders: bool) -> list[dict[str, Any]]:
    """Return an answer's blocks as the client sees them."""
    placeholders = keeps_places(blocks, placeholders)
    result = []
    for block in blocks:
        if not is_hidden(block):
            result.append(block)
        elif placeholders or all(map(is_hidden, blocks)):
            result.append({"type": "text", "text": placeholder_for(hidden_block(block, 0))})
    return result


def hide_in_message(body: bytes, *, placeholders: bool) -> tuple[bytes, list[dict[str, Any]]]:
    """Return a plain answer as the client sees it, and its original blocks."""
    if not any(mark in body for mark in _MARKS):
        return body, []
    message = json.loads(body)
    blocks = message.get("content") if isinstance(message, dict) else None
    if not isinstance(blocks, list) or not any(map(is_hidden, blocks)):
        return body, blocks if isinstance(blocks, list) else []
    message["content"] = client_blocks(blocks, placeholders=placeholders)
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(), blocks


def split_events(data: bytes, *, final: bool = False) -> tuple[list[bytes], bytes]:
    """Split off the whole events of a stream, each with its final blank line; also return the
    rest.
    """
    if b"\r" not in data:
        parts = data.split(b"\n\n")
        return [part + b"\n\n" for part in parts[:-1]], parts[-1]
    events = []
    offset = 0
    end = (
        len(data) if final or not data.endswith(b"\r") else len(data) - 1
    )  # `\r` may be half of `\r\n`
    while match := _EVENT_END.search(data, offset, end):
        events.append(data[offset : match.end()])
        offset = match.end()
    return events, data[offset:]


def event_data(event: bytes) -> tuple[str, dict[str, Any]] | None:
    """Return an event's data, as text and parsed; None if it is no JSON object."""
    lines = _LINE.split(event.decode("utf-8", "surrogateescape"))
    data = [line.removeprefix("data:") for line in lines if line.startswith("data:")]
    text = "\n".join(line.removeprefix(" ") for line in data)
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    return text, value


class StreamFilter:
    """Filters one answer that is a stream of events.

    `feed` takes pieces of any size and returns the client's bytes; `blocks` are the answer's blocks
    once it contained a search.
    """

    def __init__(self, *, placeholders: bool, may_continue: bool = False) -> None:
        self._placeholders = placeholders
        self._may_continue = may_continue
        self._rest = b""
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._reading = False
        self._by_index: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._shown: dict[int, int] = {}
        self._hidden: set[int] = set()
        self._next = 0
        self._earlier: list[dict[str, Any]] = []
        self._earlier_output = 0
        self.searches = 0
        self.stop_reason = ""
        self.paused = False
        self.usage: dict[str, Any] = {}

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The original blocks of the answer; none for an answer without a search."""
        return [*self._earlier, *(self._by_index[index] for index in sorted(self._by_index))]

    def feed(self, data: bytes) -> bytes:
        data = self._rest + data if self._rest else data
        if (
            not self._reading
            and data.endswith(b"\n\n")
            and not any(mark in data for mark in _MARKS)
        ):
            self._rest = b""  # whole events without a mark, like most pieces
            return self._keep_passing(data)
        events, self._rest = split_events(data)
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BrokenAnswer("an event is too large")
        if not events:
            return b""
        if self._reading:
            return b"".join(self._filter_events(events))
        passed = b"".join(events)
        if any(mark in passed for mark in _MARKS):
            self._catch_up()
            return b"".join(self._filter_events(events))
        return self._keep_passing(passed)

    def _keep_passing(self, events: bytes) -> bytes:
        """Keep passing events, in case a later one has to be parsed with them."""
        self._kept.append(events)
        self._kept_bytes += len(events)
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._catch_up()
        return events

    def end(self) -> bytes:
        """Return the rest when the upstream has closed the stream."""
        events, rest = split_events(self._rest, final=True)
        self._rest = b""
        return b"".join(self._filter_events(events) if self._reading else events) + rest

    def _catch_up(self) -> None:
        """Parse what has passed so far: it contained no search, so it passed unchanged."""
        self._reading = True
        events, _rest = split_events(b"".join(self._kept), final=True)
        self._kept.clear()
        for _event in self._filter_events(events):
            pass

    def final_usage(self) -> dict[str, Any]:
        """Return the usage in the answer's first and last events."""
        if self._reading:
            return self.usage

        for kept in self._kept[:1] + self._kept[-1:]:
            events, _rest = split_events(kept, final=True)
            for event in events:
                parsed = event_data(event) if b'"usage"' in event else None
                if parsed is not None:
                    self.usage.update(_usage_in(parsed[1]))
        return self.usage

    def _filter_events(self, events: Sequence[bytes]) -> Iterator[bytes]:
        for event in events:
            parsed = event_data(event)
            if parsed is None:
                yield event
                continue
            text, data = parsed
            kind = data.get("type")
            if kind in ("content_block_start", "content_block_delta", "content_block_stop"):
                yield from self._block_event(event, text, data)
            elif kind == "message_start":
                self.usage.update(_dict(_dict(data.get("message")).get("usage")))
                if not self._earlier:
                    yield event
            elif kind == "message_delta":
                yield from self._end_of_message(event, text, data)
            elif kind == "message_stop":
                if not self.paused:
                    yield event
            else:
                yield event

    def _block_event(self, event: bytes, text: str, data: dict[str, Any]) -> Iterator[bytes]:
        index = data.get("index")
        if not isinstance(index, int):
            raise BrokenAnswer("an event of a block has no index")
        kind = data["type"]
        if kind == "content_block_start":
            block = _dict(data.get("content_block"))
            self._by_index[index] = dict(block)
            if is_hidden(block):
                self._placeholders = keeps_places(self.blocks, self._placeholders)
                self._hidden.add(index)
                self.searches += block["type"] == RESULT
            if index not in self._hidden or self._placeholders:
                self._shown[index] = self._next
                self._next += 1
        elif kind == "content_block_delta":
            self._grow_block(index, _dict(data.get("delta")))
        elif index in self._inputs:
            self._by_index[index]["input"] = _parse_pieces(self._inputs.pop(index))
        if index not in self._hidden:
            yield self._renumber_event(event, text, index)
        elif self._placeholders and kind == "content_block_stop":
            placeholder = placeholder_for(hidden_block(self._by_index[index], 0))
            yield _text_block(self._shown[index], placeholder)

    def _grow_block(self, index: int, delta: dict[str, Any]) -> None:
        """Append a delta to its block."""
        block = self._by_index.get(index)
        if block is None:
            raise BrokenAnswer("a delta of a block that did not begin")
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._inputs.setdefault(index, []).append(str(delta.get("partial_json", "")))
        elif kind in ("text_delta", "thinking_delta", "signature_delta"):
            name = kind.removesuffix("_delta")
            block[name] = str(block.get(name) or "") + str(delta.get(name, ""))
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]

    def _renumber_event(self, event: bytes, text: str, index: int) -> bytes:
        number = self._shown.get(index)
        if number is None:
            raise BrokenAnswer("an event of a block that did not begin")
        if number == index:
            return event
        member = next(
            member
            for member in members(text, len(text) - len(text.lstrip()))
            if member.key == "index"
        )
        return _with_data(event, text[: member.start] + str(number) + text[member.end :])

    def _end_of_message(self, event: bytes, text: str, data: dict[str, Any]) -> Iterator[bytes]:
        usage = _dict(data.get("usage"))
        self.usage.update(usage)
        self.stop_reason = str(_dict(data.get("delta")).get("stop_reason") or "")
        blocks = self.blocks
        if self.stop_reason == "pause_turn" and self._may_continue and _only_searches(blocks):
            self.paused = True
            return
        if self._next == 0 and self._hidden:
            for number, block in enumerate(blocks):
                yield _text_block(number, placeholder_for(hidden_block(block, 0)))
        if self._earlier_output and isinstance(usage.get("output_tokens"), int):
            data["usage"]["output_tokens"] += self._earlier_output
            yield _with_data(event, json.dumps(data, ensure_ascii=False))
            return
        yield event

    def resume(self, *, may_continue: bool) -> list[dict[str, Any]]:
        """Begin the continuation of a paused answer: its events follow as if the answer had gone
        on. Return the blocks so far, which end the continuing request.
        """
        so_far = self.blocks
        self._earlier = so_far
        self._earlier_output += int(self.usage.get("output_tokens") or 0)
        self._by_index = {}
        self._inputs = {}
        self._shown = {}
        self._hidden = set()
        self._may_continue = may_continue
        self.paused = False
        self._rest = b""
        self._reading = True
        return so_far


def _only_searches(blocks: Sequence[dict[str, Any]]) -> bool:
    """Return whether search is the only server tool in an answer, so that only this proxy can
    continue it.
    """
    uses = [block for block in blocks if block.get("type") == "server_tool_use"]
    return bool(uses) and all(map(is_hidden, uses))


def _usage_in(data: dict[str, Any]) -> dict[str, Any]:
    """Return the usage that an event tells: the first one in its message, the last one itself."""
    return _dict(_dict(data.get("message")).get("usage")) or _dict(data.get("usage"))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse_pieces(pieces: Sequence[str]) -> Any:
    try:
        return json.loads("".join(pieces) or "{}")
    except ValueError:
        return {}


def _with_data(event: bytes, text: str) -> bytes:
    """Return an event with its data replaced; its other lines and line ends stay."""
    lines = re.split(rb"(\r\n|\n|\r)", event)
    first = next(i for i, line in enumerate(lines) if line.startswith(b"data:"))
    lines[first] = b"data: " + text.encode("utf-8", "surrogateescape")
    return b"".join(
        line for i, line in enumerate(lines) if i <= first or not line.startswith(b"data:")
    )


def _text_block(index: int, text: str) -> bytes:
    """Return the events of a whole text block."""
    steps: tuple[dict[str, Any], ...] = (
        {
            "type": "content_block_start",
            "index": index,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": "text_delta", "text": text},
        },
        {"type": "content_block_stop", "index": index},
    )
    return b"".join(
        f"event: {step['type']}\ndata: {json.dumps(step)}\n\n".encode() for step in steps
    )
