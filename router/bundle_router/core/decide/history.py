"""The active set of an agent that keeps its own history, derived from it, so that nothing needs to be stored.

Rules:
1. Only calls count, and what `search_tools` answered to one of them: text of any other result activates nothing.
2. What is derived is a wish, like every activation: policy and the step's route say what is shown.
3. Messages may be OpenAI's (chat completions or Responses items) or Anthropic's, and may be cut off anywhere. What is
   not understood is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.models import Activation, AskedTool, Entry
from bundle_router.core.tools.exposure.names import names_in

MAX_MESSAGES: Final = 2_000
"""The last messages are looked at."""
_FOUND: Final = re.compile(r"(?m)^([A-Za-z0-9_-]{1,64})(?:\(|: (?:already in your tool list|shown earlier)$)")
_SELECT: Final = "select:"


def from_messages(messages: Sequence[Mapping[str, Any]], catalog: Catalog) -> Activation:
    """Return what the calls in the messages asked for: the bundles of the tools called, found or selected, in that
    order, and in each the tools themselves. Tools the catalog does not know are passed over."""
    canonical = _names(catalog)
    homes = _homes(catalog)
    entries: dict[str, Entry] = {}
    place = 0
    for tick, name in enumerate(_wanted(messages[-MAX_MESSAGES:]), start=1):
        tool = canonical.get(name, name)
        home = homes.get(tool)
        if home is None:
            continue
        entry = entries.get(home)
        if entry is None:
            entry = Entry(home, "search", tick, place=place)
            place += 1
        known = {asked.name: asked for asked in entry.tools}
        at = known[tool].place if tool in known else place
        place += tool not in known
        known[tool] = AskedTool(tool, at, tick)
        entries[home] = Entry(home, entry.origin, tick, place=entry.place, tools=tuple(known.values()))
    return Activation(tuple(entries[id_] for id_ in sorted(entries)))


def _names(catalog: Catalog) -> Mapping[str, str]:
    known = catalog.memo.get("canonical")
    if not isinstance(known, dict):
        tools = {tool for bundle in catalog.bundles.values() for tool in bundle.tools} | set(catalog.cards)
        known = catalog.memo["canonical"] = {short: name for name, short in names_in(catalog, tools).items()}
    return known


def _homes(catalog: Catalog) -> dict[str, str]:
    """Return the most specific bundle of each tool: the one with the fewest tools, ties by id."""
    homes: dict[str, str] = {}
    for bundle in sorted(catalog.bundles.values(), key=lambda one: (len(one.tools), one.id)):
        for tool in bundle.tools:
            homes.setdefault(tool, bundle.id)
    return homes


def _wanted(messages: Iterable[Any]) -> Iterator[str]:
    """Yield the names of tools in the order they were asked for."""
    searches: set[str] = set()
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        for id_, name, arguments in _calls(message):
            if name == "search_tools":
                searches.add(id_)
                yield from _selected(arguments.get("query"))
            elif name in ("call_tool", "get_tool_details"):
                inner = arguments.get("name")
                yield from (inner,) if isinstance(inner, str) else ()
            else:
                yield name
        for id_, text in _results(message):
            if id_ in searches:
                yield from _FOUND.findall(text)


def _selected(query: Any) -> Iterator[str]:
    if isinstance(query, str) and query.strip().lower().startswith(_SELECT):
        yield from (name.strip() for name in query.strip()[len(_SELECT) :].split(","))


def _calls(message: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(id, name, arguments) of the calls in a message, in any of the three shapes."""
    rows: list[tuple[Any, Any, Any]] = []
    for call in _items(message.get("tool_calls")):
        function = call.get("function")
        if isinstance(function, Mapping):
            rows.append((call.get("id"), function.get("name"), function.get("arguments")))
    if message.get("type") == "function_call":
        rows.append((message.get("call_id"), message.get("name"), message.get("arguments")))
    for block in _items(message.get("content")):
        if block.get("type") == "tool_use":
            rows.append((block.get("id"), block.get("name"), block.get("input")))
    for id_, name, arguments in rows:
        if isinstance(name, str):
            yield str(id_), name, _object(arguments)


def _results(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(call id, text) of the results in a message."""
    if message.get("role") == "tool":
        yield str(message.get("tool_call_id")), _text(message.get("content"))
    if message.get("type") == "function_call_output":
        yield str(message.get("call_id")), _text(message.get("output"))
    for block in _items(message.get("content")):
        if block.get("type") == "tool_result":
            yield str(block.get("tool_use_id")), _text(block.get("content"))


def _items(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(text for item in _items(value) if isinstance(text := item.get("text"), str))


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}
