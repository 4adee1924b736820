"""Rewrites a request of Anthropic's Messages API so that most of its tools are deferred. Pure.

Rules:
1. A request is changed only if its model can search, the client defers nothing itself, nothing in
   it forbids deferral (`input_examples`, a forced tool), and enough tools qualify. Otherwise it is
   sent byte for byte.
2. The search tool comes first, then the tools that stay, then the deferred ones, each part in the
   client's order. So the same tools give the same bytes, and the cached prefix stays valid.
3. A deferred tool carries no `cache_control`; one that is removed moves to the last tool that may
   carry it.
4. Blocks hidden from the client in earlier answers are put back, without references to tools that
   are gone.
5. A tool that the history calls, and that no search there found, stays upfront.
6. All other text of the body stays unchanged, down to spelling and space.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bundle_router_deferral.causes import can_search
from bundle_router_deferral.hiding import (
    BlockKind,
    HiddenBlock,
    message_key,
    placeholder_id,
    shown_blocks,
)
from bundle_router_deferral.json_spans import (
    Element,
    Member,
    members,
    read_elements,
    remove_member,
    set_member,
    start_of,
)

SEARCH_TYPE: Final = "tool_search_tool_bm25_20251119"
SEARCH_NAME: Final = "tool_search_tool_bm25"
NATIVE_NAMES: Final = frozenset(
    ("toolsearch", "mcpsearch", "tool_search", "search_tools", "deferredtoolplaceholder")
)
GROUP: Final = 5
"""Minimum tools with one prefix that count as a server's, if the name does not say so
(`github_create_issue`).
"""
KEPT_TOOL_LISTS: Final = 16
_PREFIX: Final = re.compile(r"[A-Za-z0-9]+(?=[_.-])")
_NATIVE: Final = ("tool_addition", "tool_removal", "tool_search_tool_result", "tool_reference")
"""Types of blocks that only a client that defers tools itself sends."""


@dataclass(frozen=True, slots=True)
class DeferralRules:
    """Which tools are deferred.

    `keep` and `defer` are globs over names; `models` are further ones that can search.
    """

    min_tools: int = 10
    keep: tuple[str, ...] = ()
    defer: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnchangedRequest:
    """A request that is sent unchanged, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """A rewritten request, with facts about it."""

    text: str
    model: str
    tools: int
    deferred: frozenset[str]
    placeholders: bool
    restored: int
    prompt: str
    """Digest of the last user message, which identifies answers without a tool call."""
    conversation: str
    upfront_bytes: int
    original_upfront_bytes: int


@dataclass(frozen=True, slots=True)
class ToolList:
    """A parsed tools array, as it was sent."""

    text: str
    tools: tuple[Element, ...]
    obstacle: str
    qualifying: frozenset[str]


Recall = Callable[[Sequence[str]], Mapping[str, Sequence[HiddenBlock]]]


class UnreadableBody(ValueError):
    """The body is no request that this module can parse."""


class RequestRewriter:
    """Rewrites requests under one set of rules.

    Caches only what follows from the latest arrays of tools.
    """

    def __init__(self, rules: DeferralRules) -> None:
        self._rules = rules
        self._lists: OrderedDict[str, ToolList] = OrderedDict()
        self._texts: OrderedDict[tuple[str, frozenset[str]], tuple[str, int, int]] = OrderedDict()

    def rewrite(self, text: str, recall: Recall) -> Deferred | UnchangedRequest:
        """Return the rewritten request.

        `recall` returns hidden blocks by the keys of messages and placeholders.
        """
        try:
            parts = self._parts(text)
        except (ValueError, IndexError, RecursionError):
            return UnchangedRequest("not read")
        parsed = self._read(parts)
        if isinstance(parsed, UnchangedRequest):
            return parsed
        tools, messages = parsed
        keys = [
            _keys_of(message.value, messages[i - 1].value if i else None)
            for i, message in enumerate(messages)
        ]
        all_keys = [key for some in keys for key in some]
        hidden = recall(all_keys) if all_keys else {}
        called = set[str]()
        searched = set[str]()
        edits: list[tuple[int, int, str]] = []
        restored = 0
        for message, message_keys in zip(messages, keys, strict=True):
            called.update(_called_tools(message.value))
            put_back = [(key, hidden[key]) for key in message_keys if key in hidden]
            if put_back:
                blocks = [block for _key, kept in put_back for block in kept]
                usable = _usable_blocks(blocks, tools.qualifying)
                searched.update(name for block in usable for name in block.references)
                new = _restore_blocks(text, message, put_back, usable)
                edits += new
                restored += len(new)
        deferred = tools.qualifying - (called - searched)
        if len(deferred) < self._rules.min_tools:
            return UnchangedRequest("too few tools")
        member = parts["tools"]
        tools_text, original_bytes, upfront_bytes = self._tools_text(tools, deferred)
        edits.append((member.start, member.end, tools_text))
        thinking = parts["thinking"].value if "thinking" in parts else None
        return Deferred(
            text=_apply_edits(text, edits),
            model=parts["model"].value,
            tools=len(tools.tools),
            deferred=deferred,
            placeholders=isinstance(thinking, dict)
            and thinking.get("type") in ("enabled", "adaptive"),
            restored=restored,
            prompt=_prompt_digest(messages[-1].value) if messages else "",
            conversation=_prompt_digest(messages[0].value) if messages else "",
            upfront_bytes=upfront_bytes,
            original_upfront_bytes=original_bytes,
        )

    def _parts(self, text: str) -> dict[str, Member]:
        parts: dict[str, Member] = {}
        for member in members(text, start_of(text), self._split):
            if member.key in parts:
                raise UnreadableBody("a key stands in it twice")
            parts[member.key] = member
        return parts

    def _split(self, text: str, key: str, start: int) -> tuple[Any, int] | None:
        """Parse the arrays of tools and messages by element; a cached array of tools is not parsed
        again.
        """
        if text[start : start + 1] != "[":
            return None
        if key == "messages":
            return read_elements(text, start)
        if key != "tools":
            return None
        for tool_list in reversed(self._lists):
            if text.startswith(tool_list, start):
                self._lists.move_to_end(tool_list)
                return self._lists[tool_list], start + len(tool_list)
        elements, end = read_elements(text, start)
        message_text = text[start:end]
        made = ToolList(
            message_text, tuple(elements), _obstacle(elements), self._deferrable_tools(elements)
        )
        self._lists[message_text] = made
        if len(self._lists) > KEPT_TOOL_LISTS:
            self._lists.popitem(last=False)
        return made, end

    def _read(
        self, parts: Mapping[str, Member]
    ) -> tuple[ToolList, list[Element]] | UnchangedRequest:
        values = {key: member.value for key, member in parts.items()}
        tools = values.get("tools")
        messages = values.get("messages")
        model = values.get("model")
        if not isinstance(tools, ToolList):
            return UnchangedRequest("no tools")
        if not isinstance(messages, list) or not isinstance(model, str):
            return UnchangedRequest("no tools")

        if tools.obstacle:
            return UnchangedRequest(tools.obstacle)
        if not can_search(model) and model not in self._rules.models:
            return UnchangedRequest("model")
        choice = values.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
            return UnchangedRequest("forced tool")
        if any(_defers(message.value) for message in messages):
            return UnchangedRequest("native")
        if len(tools.qualifying) < self._rules.min_tools:
            return UnchangedRequest("too few tools")
        return tools, messages

    def _deferrable_tools(self, tools: Sequence[Element]) -> frozenset[str]:
        """Return the tools that may be deferred: those of servers, by their names.

        A name that two tools share is none: a reference to it would mean either.
        """
        names = Counter(tool.value.get("name", "") for tool in tools if _is_plain(tool.value))
        group_sizes = _group_sizes(names.elements())
        unique_names = [name for name, count in names.items() if count == 1]
        return frozenset(name for name in unique_names if self._is_deferrable(name, group_sizes))

    def _is_deferrable(self, name: str, group_sizes: Counter[str]) -> bool:
        """Return whether a tool has the name of a server's, by the rules or by its siblings."""
        if _matches_any(name, self._rules.keep):
            return False
        if "__" in name or _matches_any(name, self._rules.defer):
            return True
        return group_sizes[_prefix_of(name)] >= GROUP

    def _tools_text(self, tools: ToolList, deferred: frozenset[str]) -> tuple[str, int, int]:
        key = (tools.text, deferred)
        if key not in self._texts:
            self._texts[key] = _order(tools.tools, tools.text, deferred)
            if len(self._texts) > KEPT_TOOL_LISTS:
                self._texts.popitem(last=False)
        return self._texts[key]


def _order(tools: Sequence[Element], text: str, deferred: frozenset[str]) -> tuple[str, int, int]:
    """Return the new array of tools, and the bytes of definitions upfront before and after."""
    offset = tools[0].start - text.index("{")
    raw = [(tool.value, text[tool.start - offset : tool.end - offset]) for tool in tools]
    is_late = [
        isinstance(value.get("name"), str) and value["name"] in deferred for value, _part in raw
    ]
    staying = [row for row, goes_late in zip(raw, is_late, strict=True) if not goes_late]
    search = json.dumps({"type": SEARCH_TYPE, "name": SEARCH_NAME}, separators=(",", ":"))
    upfront = [search, *(part for _value, part in staying)]
    late = []
    cache_control = None
    for (value, part), goes_late in zip(raw, is_late, strict=True):
        if goes_late:
            if value.get("cache_control") is not None:
                cache_control = value["cache_control"]
            if "cache_control" in value:
                part = remove_member(part, ("cache_control",))
            late.append(set_member(part, ("defer_loading",), True))
    if cache_control is not None and not any(
        value.get("cache_control") for value, _part in staying[-1:]
    ):
        upfront[-1] = set_member(upfront[-1], ("cache_control",), cache_control)
    old_bytes = sum(len(part.encode()) for _value, part in raw)
    return (
        "[" + ",".join((*upfront, *late)) + "]",
        old_bytes,
        sum(len(part.encode()) for part in upfront),
    )


def _is_plain(tool: Any) -> bool:
    """Return whether a tool is an ordinary one, which the client executes."""
    return (
        isinstance(tool, dict)
        and tool.get("type", "custom") == "custom"
        and isinstance(tool.get("name"), str)
    )


def _obstacle(tools: Iterable[Element]) -> str:
    for element in tools:
        tool = element.value
        if not isinstance(tool, dict):
            return "not read"
        name = str(tool.get("name", "")).lower()
        kind = str(tool.get("type", ""))
        if tool.get("defer_loading") or kind.startswith("tool_search_tool") or name in NATIVE_NAMES:
            return "native"
        if name == SEARCH_NAME or kind == "mcp_toolset":
            return "native"
        if tool.get("input_examples"):
            return "input_examples"
    return ""


def _blocks(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return [block for block in content if isinstance(block, dict)]
    return []


def _matches_any(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _group_sizes(names: Iterable[str]) -> Counter[str]:
    """Return the number of names with each prefix."""
    prefixes = [_prefix_of(name) for name in names]
    return Counter(prefix for prefix in prefixes if prefix)


def _prefix_of(name: str) -> str:
    """Return what a tool's name begins with (`github` of `github_create_issue`); empty if it is one
    word.
    """
    found = _PREFIX.match(name)
    if found is None:
        return ""
    return found[0]


def _defers(message: Any) -> bool:
    """Return whether a message shows that the client defers tools itself."""
    for block in _blocks(message):
        kind = block.get("type")
        if kind in _NATIVE:
            return True
        if kind == "tool_result" and _holds_reference(block.get("content")):
            return True
    return False


def _holds_reference(content: Any) -> bool:
    """Return whether the content of a tool's result refers to a tool."""
    if not isinstance(content, list):
        return False
    return any(isinstance(part, dict) and part.get("type") == "tool_reference" for part in content)


def _called_tools(message: Any) -> Iterator[str]:
    for block in _blocks(message):
        if block.get("type") == "tool_use" and isinstance(block.get("name"), str):
            yield block["name"]


def _prompt_digest(message: Any) -> str:
    """Return a digest of a user message without marks that a client moves (`cache_control`)."""
    content = message.get("content") if isinstance(message, dict) else None
    parts = [content] if isinstance(content, str) else []
    for block in _blocks(message):
        parts.append(str(block.get("text", "")) + str(block.get("tool_use_id", "")))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _keys_of(value: Any, previous: Any) -> list[str]:
    """Return the keys under which hidden blocks of an assistant message may be stored."""
    if not isinstance(value, dict) or value.get("role") != "assistant":
        return []

    places = map(placeholder_id, _blocks(value))
    keys = [f"id:{identity}" for identity in places if identity is not None]
    whole = message_key(shown_blocks(value.get("content")), _prompt_digest(previous))
    if whole:
        keys.append(whole)
    return list(dict.fromkeys(keys))


def _usable_blocks(blocks: Sequence[HiddenBlock], names: frozenset[str]) -> list[HiddenBlock]:
    """Return the hidden blocks that may be put back.

    References to missing tools are removed, and also searches without remaining references, with
    their results; and searches without a result.
    """
    results: dict[str, HiddenBlock] = {}
    for block in blocks:
        if block.kind != "result":
            continue
        present = tuple(name for name in block.references if name in names)
        if present or block.error or not block.references:
            results[block.id] = replace(block, references=present)

    usable = []
    for block in blocks:
        result = results.get(block.id)
        if result is None:
            continue
        usable.append(result if block.kind == "result" else block)
    return usable


def _restore_blocks(
    text: str,
    message: Element,
    put_back: Sequence[tuple[str, Sequence[HiddenBlock]]],
    usable: Sequence[HiddenBlock],
) -> list[tuple[int, int, str]]:
    """Return the edits that put hidden blocks back into an assistant message."""
    content = next((m for m in members(text, message.start) if m.key == "content"), None)
    if content is None or text[content.start] not in '["':
        return []

    by_kind = {(block.kind, block.id): block for block in usable}
    without_place = [  # those of a message whose client kept no places for them
        [by_kind[block.kind, block.id] for block in kept if (block.kind, block.id) in by_kind]
        for key, kept in put_back
        if not key.startswith("id:")
    ]
    if text[content.start] == '"':  # the client joined the blocks into one text
        return _into_text(text, content, list(itertools.chain(*without_place)))

    places, _end = read_elements(text, content.start)
    edits = _into_places(places, {key for key, _ in put_back}, by_kind)
    for blocks in without_place:
        edits += _insert(places, content, blocks)
    return edits


def _into_places(
    places: Sequence[Element], keys: set[str], by_kind: Mapping[tuple[BlockKind, str], HiddenBlock]
) -> list[tuple[int, int, str]]:
    """Return the edits that replace placeholders by the blocks that they stand for."""
    edits = []
    for place in places:
        identity = placeholder_id(place.value)
        if identity is None or f"id:{identity}" not in keys:
            continue
        kind: BlockKind = "use"
        if place.value["text"].strip().startswith("[tool search result"):
            kind = "result"
        block = by_kind.get((kind, identity))
        if block is not None:
            edits.append((place.start, place.end, block.as_text()))
    return edits


def _into_text(
    text: str, content: Member, blocks: Sequence[HiddenBlock]
) -> list[tuple[int, int, str]]:
    if not blocks:
        return []

    before = [block.as_text() for block in blocks if block.visible == 0]
    visible_text = f'{{"type":"text","text":{text[content.start : content.end]}}}'
    after = [block.as_text() for block in blocks if block.visible > 0]
    joined = ",".join([*before, visible_text, *after])
    return [(content.start, content.end, f"[{joined}]")]


def _insert(
    places: Sequence[Element], content: Member, blocks: Sequence[HiddenBlock]
) -> list[tuple[int, int, str]]:
    """Return insertions of blocks before the tool call that followed them, else after as many
    blocks as preceded.
    """
    edits = []
    for block in blocks:
        index = next(
            (i for i, p in enumerate(places) if block.before and p.value.get("id") == block.before),
            None,
        )
        if index is None:
            index = min(block.visible, len(places))
        if index < len(places):
            edits.append((places[index].start, places[index].start, block.as_text() + ","))
        elif places:
            edits.append((places[-1].end, places[-1].end, "," + block.as_text()))
        else:
            edits.append((content.start + 1, content.start + 1, block.as_text()))
    return edits


def _apply_edits(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    parts: list[str] = []
    offset = 0
    for start, end, new in sorted(
        edits, key=lambda edit: edit[:2]
    ):  # stable: insertions at one place stay in order
        parts += (text[offset:start], new)
        offset = end
    return "".join((*parts, text[offset:]))
