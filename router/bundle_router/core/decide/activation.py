"""The sticky set of a run: what stays visible between steps, and what is evicted.

Rules:
1. Only `apply` changes an activation, once a step, between steps. Nothing is evicted within a step.
2. The cap counts distinct tools: those that bundles show, and those that were asked for. Only what
   a step itself needs may exceed it: the tools visible at the step, and those that stay after it,
   number at most max(cap, what the step needs).
3. Entries that text may have influenced (`UNTRUSTED`) never displace entries of the operator's
   mapping. They are evicted first, however recently they were used, and being picked is no use of a
   trusted entry. So the trusted part of a set depends only on the mapping and on what was called
   and asked for.
4. Within one kind the least recently used entry is evicted first; ties go by id. A bundle is used
   when a step needs it and when one of its tools is called.
5. Time is logical: `used` counts up from the highest in the set. There is no clock.
6. A bundle that was only offered (`shortlist`) is in the set with use 0, so that a call of it
   counts. It leaves at the next step unless one of its tools was called or asked for. Offering a
   present entry does not use it.
7. A tool that was asked for stays until its bundle leaves, or, between steps, until more than `cap`
   were asked for after it. `place` is given once, counting up, and kept: entries keep their order.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import Any, Final

from bundle_router.core.catalog import Card, Catalog
from bundle_router.core.values import Activation, AskedTool, Decision, Entry, Reason, Step

MAX_ASKED: Final = 128
"""Tools that one run may have asked for at a time.

Further ones are found and called, but don't join the array; the answer that names them says so.
"""

UNTRUSTED: Final[frozenset[Reason]] = frozenset(
    ("search", "model", "model_cached", "union", "shortlist", "default")
)
"""Origins that text in an intent may have influenced.

The declared default is one: it is shown when an answer was sought and not found, which text can
bring about.
"""


@dataclass(frozen=True, slots=True)
class Applied:
    """The activation after a step, and what left it (`evicted`, in that order).

    Entries in `aside` stay, but are not visible at this step: a pick of search or a model takes
    their room once. A pick without room even then is visible now and does not stay. `evicted_tools`
    were asked for and left, each after its bundle, which stays.
    """

    after: Activation
    evicted: tuple[str, ...]
    aside: frozenset[str] = frozenset()
    evicted_tools: tuple[tuple[str, str], ...] = ()


def _order_entries(entries: Iterable[Entry]) -> Activation:
    return Activation(tuple(sorted(entries, key=lambda entry: entry.id)))


def _next_tick(activation: Activation) -> int:
    return max((entry.used for entry in activation.entries), default=0) + 1


def touch(activation: Activation, id_: str) -> Activation:
    """Return the activation after a tool of bundle `id_` was called.

    An id that is not in the set changes nothing.
    """
    tick = _next_tick(activation)
    if all(entry.id != id_ for entry in activation.entries):
        return activation
    return Activation(
        tuple(replace(e, used=tick) if e.id == id_ else e for e in activation.entries)
    )


def room_in(activation: Activation) -> int:
    """Return how many more tools may be asked for."""
    return MAX_ASKED - sum(len(entry.tools) for entry in activation.entries)


@dataclass(frozen=True, slots=True)
class Room:
    """The room in the array: a number of tools, and of their definitions' tokens."""

    tools: float = inf
    tokens: float = inf

    def fitting(self, cards: Iterable[Card]) -> list[Card]:
        """Return the cards that fit, in the given order.

        One that is too large does not keep out smaller ones.
        """
        fitting_cards: list[Card] = []
        tokens = self.tokens
        for card in cards:
            if len(fitting_cards) < self.tools and card.tokens <= tokens:
                fitting_cards.append(card)
                tokens -= card.tokens
        return fitting_cards


def room_of(step: Step, tools: int = 0, tokens: int = 0) -> Room:
    """Return the step's room after so many tools with so many tokens."""
    bounds = (inf if bound is None else bound for bound in (step.max_tools, step.max_tokens))
    return Room(next(bounds) - tools, next(bounds) - tokens)


def room_left(
    step: Step, decision: Decision, activation: Activation, cards: Mapping[str, Card]
) -> Room:
    """Return the room in the step's array after what the activation holds."""
    joined = _asked_names(activation) - _asked_names(decision.after)
    joined_cards = [cards[tool] for tool in joined if tool in cards]
    exposure = decision.exposure
    tools = exposure.tools + len(joined_cards)
    tokens = exposure.tokens + sum(card.tokens for card in joined_cards)
    room = room_of(step, tools, tokens)
    return Room(min(room.tools, room_in(activation)), room.tokens)


def _asked_names(activation: Activation) -> set[str]:
    """Return the names of the tools that were asked for."""
    return {tool.name for entry in activation.entries for tool in entry.tools}


def ask_for(activation: Activation, id_: str, tools: Iterable[str]) -> Activation:
    """Return the activation after tools of bundle `id_` were asked for.

    A bundle outside the set changes nothing.
    """
    entry = next((entry for entry in activation.entries if entry.id == id_), None)
    if entry is None:
        return activation
    tick = _next_tick(activation)
    tools_by_name = {tool.name: tool for tool in entry.tools}
    room = room_in(activation)
    for name in dict.fromkeys(tools):
        if name in tools_by_name:
            tools_by_name[name] = replace(tools_by_name[name], used=tick)
        elif room > 0:
            room -= 1
            tools_by_name[name] = AskedTool(
                name, _next_place(activation) + len(tools_by_name) - len(entry.tools), tick
            )
    changed = replace(entry, used=tick, tools=tuple(tools_by_name.values()))
    return Activation(
        tuple(changed if old_entry is entry else old_entry for old_entry in activation.entries)
    )


@dataclass(frozen=True, slots=True)
class CallEffect:
    """The effect of a call on an activation.

    `tool`, by its canonical name, was called; `joined` are tools that were asked for, each after
    its bundle.
    """

    bundle: str = ""
    tool: str = ""
    joined: tuple[tuple[str, str], ...] = ()


def resume_activation(after: Activation, calls: Iterable[CallEffect]) -> Activation:
    """Return a continued run's activation: the one its last decision left, with the effects of its
    calls since.
    """
    activation = after
    for call in calls:
        if call.tool:
            activation = touch(activation, call.bundle)
            if call.tool in _asked_names(activation):
                activation = ask_for(activation, call.bundle, (call.tool,))
        groups: dict[str, list[str]] = {}
        for bundle, tool in call.joined:
            groups.setdefault(bundle, []).append(tool)
        for bundle, tools in groups.items():
            activation = ask_for(activation, bundle, tools)
    return activation


def _next_place(activation: Activation) -> int:
    places = [
        place for e in activation.entries for place in (e.place, *(tool.place for tool in e.tools))
    ]
    return max(places, default=-1) + 1


def inherit(parent: Activation) -> Activation:
    """Return what a sub-agent starts with: the parent's set, each entry marked as inherited."""
    return Activation(tuple(replace(entry, inherited=True) for entry in parent.entries))


def rename_bundles(activation: Activation, today: Callable[[str], str]) -> Activation:
    """Return the activation with every bundle under its present id.

    Entries of one bundle are joined: used at the latest use, placed at the earliest place, trusted
    if one is, inherited if all are.
    """
    if all(today(entry.id) == entry.id for entry in activation.entries):
        return activation
    merged: dict[str, Entry] = {}
    for entry in activation.entries:
        renamed = replace(entry, id=today(entry.id))
        other_entry = merged.get(renamed.id)
        merged[renamed.id] = (
            renamed if other_entry is None else _merge_entries(other_entry, renamed)
        )
    return _order_entries(merged.values())


def _merge_entries(one: Entry, other: Entry) -> Entry:
    better = one.origin in UNTRUSTED and other.origin not in UNTRUSTED
    tools = {
        tool.name: tool for tool in sorted((*one.tools, *other.tools), key=lambda tool: tool.used)
    }
    return Entry(
        one.id,
        other.origin if better else one.origin,
        max(one.used, other.used),
        one.inherited and other.inherited,
        min(one.place, other.place),
        tuple(sorted(tools.values(), key=lambda tool: tool.place)),
    )


ToolsOf = Callable[[str], Sequence[str] | None]
"""Returns the tools that a bundle shows without being asked; None for a bundle that the catalog
does not have.
"""


def apply(
    activation: Activation, needed: Sequence[tuple[str, Reason]], tools_of: ToolsOf, cap: int
) -> Applied:
    """Return the activation after a step that needs the given bundles, and what was evicted to keep
    within the cap.

    A bundle that the catalog does not have any more is dropped silently, since there is nothing
    left to show.
    """
    entries = {}
    for entry in _cap_asked_tools(activation, cap):
        is_known = tools_of(entry.id) is not None
        if is_known and not is_unused_offer(entry):
            entries[entry.id] = entry
    _use_needed(entries, needed, _next_tick(activation), _next_place(activation))
    visible_ids = _kept_ids(entries, {id_ for id_, _ in needed}, tools_of, cap)
    staying_ids = _staying_ids(entries, needed, visible_ids, tools_of, cap)
    if len(staying_ids) == len(entries):
        evicted_tools = _evicted_tools(activation, entries.values())
        return Applied(_order_entries(entries.values()), (), evicted_tools=evicted_tools)

    staying = [entry for entry in entries.values() if entry.id in staying_ids]
    old_ids = {entry.id for entry in activation.entries}
    evictable = [entry.id for entry in _eviction_order(entries) if entry.id in old_ids]
    return Applied(
        after=_order_entries(staying),
        evicted=tuple(id_ for id_ in evictable if id_ not in staying_ids),
        aside=frozenset(staying_ids - visible_ids),
        evicted_tools=_evicted_tools(activation, staying),
    )


def _use_needed(
    entries: dict[str, Entry], needed: Sequence[tuple[str, Reason]], tick: int, place: int
) -> None:
    """Add or use again the bundles that a step needs, at this time; new ones from this place on."""
    for id_, reason in needed:
        if id_ in entries:
            entries[id_] = _use_again(entries[id_], reason, tick)
        else:
            used = 0 if reason == "shortlist" else tick
            entries[id_] = Entry(id_, reason, used, False, place)
            place += 1


def _staying_ids(
    entries: Mapping[str, Entry],
    needed: Sequence[tuple[str, Reason]],
    visible_ids: Set[str],
    tools_of: ToolsOf,
    cap: int,
) -> Set[str]:
    """Return the bundles that stay after the step: those that are visible at it, unless text would
    have moved a trusted one (rule 3).
    """
    mapped = {id_ for id_, reason in needed if reason not in UNTRUSTED}
    has_picks = any(id_ not in mapped for id_, _ in needed)
    if not has_picks:
        return visible_ids

    without_picks = _kept_ids(entries, mapped, tools_of, cap)
    difference = visible_ids ^ without_picks
    moves_trusted = any(entries[id_].origin not in UNTRUSTED for id_ in difference)
    if moves_trusted:
        return without_picks
    return visible_ids


def _evicted_tools(before: Activation, staying: Iterable[Entry]) -> tuple[tuple[str, str], ...]:
    """Return (bundle, tool) for the asked-for tools that left bundles which stay, by their places;
    meta-tools, whose names have no server, are not reported.
    """
    entries_before = {entry.id: entry for entry in before.entries}
    evicted: list[tuple[int, str, str]] = []
    for entry in staying:
        earlier = entries_before.get(entry.id)
        if earlier is None:
            continue
        places = {tool.name: tool.place for tool in earlier.tools if "." in tool.name}
        for tool in entry.tools:
            places.pop(tool.name, None)
        evicted += [(place, entry.id, name) for name, place in places.items()]
    return tuple((id_, name) for _, id_, name in sorted(evicted))


def is_unused_offer(entry: Entry) -> bool:
    """Return whether the bundle was only offered, and none of its tools was called or asked for."""
    return entry.origin == "shortlist" and entry.used == 0


def _use_again(entry: Entry, reason: Reason, tick: int) -> Entry:
    """Return the entry of a bundle that a further step needs (rules 3 and 6)."""
    trusted = entry.origin not in UNTRUSTED
    if reason == "shortlist":
        return entry if trusted else replace(entry, inherited=False)
    if entry.origin == "shortlist":
        return replace(entry, used=tick, inherited=False, origin=reason)
    if reason in UNTRUSTED:
        if trusted:
            return entry
        return replace(entry, used=tick, inherited=False)
    return replace(entry, used=tick, inherited=False, origin=entry.origin if trusted else reason)


def _eviction_order(entries: Mapping[str, Entry]) -> list[Entry]:
    """Return the entries in the order of their eviction."""
    return sorted(
        entries.values(), key=lambda entry: (entry.origin not in UNTRUSTED, entry.used, entry.id)
    )


def _kept_ids(
    entries: Mapping[str, Entry], fixed: Set[str], tools_of: ToolsOf, cap: int
) -> set[str]:
    """Return the ids that stay when entries are evicted until at most `cap` tools are left.

    Those in `fixed` stay.
    """
    kept_ids = set(entries)
    counts = Counter(
        chain.from_iterable(_counted_tools(entry, tools_of) for entry in entries.values())
    )
    if len(counts) <= cap:
        return kept_ids
    for entry in _eviction_order(entries):
        if len(counts) <= cap:
            break
        if entry.id not in fixed:
            kept_ids.discard(entry.id)
            counts.subtract(_counted_tools(entry, tools_of))
            counts = +counts
    return kept_ids


def _counted_tools(entry: Entry, tools_of: ToolsOf) -> Set[str]:
    """Return the entry's tools that count towards the cap: not meta-tools, whose names have no
    server.
    """
    return {*(tools_of(entry.id) or ()), *(tool.name for tool in entry.tools if "." in tool.name)}


def tools_past_cap(activation: Activation, cap: int) -> tuple[str, ...]:
    """Return the tools that leave when the next step begins, since more than `cap` were asked for
    after them: those asked for longest ago first. Meta-tools are not reported.
    """
    newest = _newest_asked(activation, cap)
    asked = chain.from_iterable(entry.tools for entry in activation.entries)
    leaving = [tool for tool in asked if (tool.used, tool.place) not in newest and "." in tool.name]
    return tuple(tool.name for tool in sorted(leaving, key=lambda tool: (tool.used, tool.place)))


def _cap_asked_tools(activation: Activation, cap: int) -> Iterator[Entry]:
    """Yield the entries with the `cap` tools that were asked for last."""
    newest = _newest_asked(activation, cap)
    for entry in activation.entries:
        tools = tuple(tool for tool in entry.tools if (tool.used, tool.place) in newest)
        yield entry if tools == entry.tools else replace(entry, tools=tools)


def _newest_asked(activation: Activation, cap: int) -> frozenset[tuple[int, int]]:
    """Return the times and places of the `cap` tools that were asked for last."""
    every = chain.from_iterable(entry.tools for entry in activation.entries)
    newest_first = sorted(((tool.used, tool.place) for tool in every), reverse=True)
    return frozenset(newest_first[: max(cap, 0)])


# --- the active set of an agent that keeps its own history, derived from that: nothing needs to be
# 1. Only calls count, and what `search_tools` answered to one of them: text of any other result
#    activates nothing.
# 2. What is derived is a wish, like every activation: policy and the step's route say what is
#    shown.
# 3. Messages may be OpenAI's (chat completions or Responses items) or Anthropic's, and may be cut
#    off anywhere. What is not understood is passed over.

MAX_MESSAGES: Final = 2_000
"""Messages that are read, the latest ones."""
_FOUND: Final = re.compile(
    r"(?m)^([A-Za-z0-9_-]{1,64})(?:\(|: (?:already in your tool list|shown earlier)$)"
)
_SELECT: Final = "select:"


def from_messages(
    messages: Sequence[Mapping[str, Any]], catalog: Catalog, canonical: Mapping[str, str]
) -> Activation:
    """Return what the calls in the messages asked for: the bundles of the tools called, found or
    selected, in that order, and the tools themselves. Tools that the catalog does not have are
    skipped.

    `canonical`: the tools by the names under which agents see them.
    """
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
        tools_by_name = {tool.name: tool for tool in entry.tools}
        tool_place = tools_by_name[tool].place if tool in tools_by_name else place
        place += tool not in tools_by_name
        tools_by_name[tool] = AskedTool(tool, tool_place, tick)
        entries[home] = Entry(
            home, entry.origin, tick, place=entry.place, tools=tuple(tools_by_name.values())
        )
    return Activation(tuple(entries[id_] for id_ in sorted(entries)))


def _homes(catalog: Catalog) -> dict[str, str]:
    """Return the most specific bundle of each tool: the one with the fewest tools, ties by id."""
    homes: dict[str, str] = {}
    for bundle in sorted(catalog.bundles.values(), key=lambda one: (len(one.tools), one.id)):
        for tool in bundle.tools:
            homes.setdefault(tool, bundle.id)
    return homes


def _wanted(messages: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the tools that were asked for, in order."""
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
    """Yield (id, name, arguments) of the calls in a message, in any of the three forms."""
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
    """Yield (call id, text) of the results in a message."""
    if message.get("role") == "tool":
        yield str(message.get("tool_call_id")), _text(message.get("content"))
    if message.get("type") == "function_call_output":
        yield str(message.get("call_id")), _text(message.get("output"))
    for block in _items(message.get("content")):
        if block.get("type") == "tool_result":
            yield str(block.get("tool_use_id")), _text(block.get("content"))


def _items(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, list | tuple):
        return [item for item in value if isinstance(item, Mapping)]
    return []


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
