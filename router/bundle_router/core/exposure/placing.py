"""Chooses the permitted tools for the array (rules 3 to 6 of the package)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.catalog import Bundle, Card, Catalog, Skill
from bundle_router.core.decide.activation import Room
from bundle_router.core.exposure.placements import Place, PlacedTool, Placement
from bundle_router.core.values import MODES, Activation, Chosen, Mode, Offer

_OPENNESS: Final[Mapping[Place, int]] = {place: at for at, place in enumerate(MODES)}
_LAST: Final = 1 << 30
READER: Final = "read_artifact"
"""The router's own tool that is activated, under a bundle's name, when one of its results can be
paged.
"""


@dataclass(frozen=True, slots=True)
class ShownBundle:
    """A bundle that the decision shows, and its tools that may be called now."""

    bundle: Bundle
    tools: tuple[str, ...]


def mode_of(catalog: Catalog, bundle: Bundle, tool: str) -> Place:
    """Return the place a bundle wants for a tool, before any budget."""
    server = catalog.servers.get(tool.partition(".")[0])
    if server is None or server.trust == "untrusted":
        return "meta"
    mode = bundle.mode
    traits = MODES[mode]
    if traits.may_join and not traits.in_array and is_named_by_skill(catalog, bundle, tool):
        mode = "direct"
    is_known = tool in catalog.cards
    if is_known or not MODES[mode].in_array:
        return mode
    return "deferred"


def offer_of(catalog: Catalog, bundle: Bundle) -> Offer:
    """Return how search may present the bundle, by its strongest effect.

    Undeclared effects count as `exec`.
    """
    offer = catalog.settings.search.offer
    effects = frozenset(bundle.effects)
    if not effects or "exec" in effects:
        return offer.execute
    return offer.write if "write" in effects else offer.read


def may_be_offered(catalog: Catalog, bundle: Bundle) -> bool:
    """Return whether the bundle may be in a shortlist."""
    return offer_of(catalog, bundle) != "none"


def offered_mode(catalog: Catalog, bundle: Bundle) -> Mode:
    """Return the bundle's mode in a shortlist: behind search, and no more open than its own
    mode.
    """
    if not MODES[bundle.mode].may_join or offer_of(catalog, bundle) == "meta":
        return "meta"
    return "deferred"


def as_presented(bundle: Bundle, mode: Mode | None) -> Bundle:
    """Return the bundle as a decision presents it (`Chosen.mode`): behind search it has no
    instructions.
    """
    if mode is None:
        return bundle
    return replace(bundle, mode=mode, skill=None, bundles=())


def is_named_by_skill(catalog: Catalog, bundle: Bundle, tool: str) -> bool:
    """Return whether a skill of the bundle names the tool, with or without its server."""
    return any(is_named_in(skill, tool) for _, skill in catalog.skills_of(bundle))


def is_named_in(skill: Skill, tool: str) -> bool:
    return tool in skill.tools or tool.partition(".")[2] in skill.tools


def waits(catalog: Catalog, bundle: Bundle, tool: str) -> bool:
    """Return whether the tool joins the array when asked for: the bundle defers it, or may lack the
    budget.
    """
    if MODES[bundle.mode].in_array and bundle.max_tokens is None and tool in catalog.cards:
        return False
    return tool in bundle.tools and MODES[mode_of(catalog, bundle, tool)].may_join


def needs_ranking(catalog: Catalog, held: Sequence[ShownBundle]) -> frozenset[str]:
    """Return the tools of bundles that exceed their own budget: a ranking decides which of them are
    direct.
    """
    return frozenset(
        tool
        for one in held
        if _is_over_budget(catalog, one)
        for tool in one.tools
        if MODES[mode_of(catalog, one.bundle, tool)].in_array
    )


def direct_tools(catalog: Catalog, bundle: Bundle, tools: Iterable[str]) -> list[str]:
    """Return those of the tools that the bundle puts into the array, before its budget is
    applied.
    """
    traits = MODES[bundle.mode]
    if not traits.may_join or (not traits.in_array and not catalog.skills_of(bundle)):
        return []
    return [tool for tool in tools if MODES[mode_of(catalog, bundle, tool)].in_array]


def fitting_size(catalog: Catalog, bundle: Bundle, wanted: Iterable[str]) -> tuple[int, int]:
    """Return how many of the bundle's `direct_tools` are shown, and their tokens: exact if they fit
    its budget, else an upper bound.
    """
    cards = [catalog.cards[tool] for tool in wanted]
    if bundle.max_tokens is not None and _tokens(cards) > bundle.max_tokens:
        cards = Room(tokens=bundle.max_tokens).fitting(cards)
    return len(cards), _tokens(cards)


def _tokens(cards: Iterable[Card]) -> int:
    return sum(card.tokens for card in cards)


def presented_bundles(
    catalog: Catalog, shown: Iterable[Chosen], tools_of: Callable[[str], Iterable[str]]
) -> list[ShownBundle]:
    """Return the shown bundles that the catalog knows, as the decision presents them."""
    pairs = ((catalog.bundle(choice.id), choice) for choice in shown)
    return [
        ShownBundle(as_presented(one, by.mode), tuple(tools_of(by.id)))
        for one, by in pairs
        if one is not None
    ]


def place(
    catalog: Catalog,
    held: Sequence[ShownBundle],
    activation: Activation,
    *,
    room: Room | None = None,
    began: Activation | None = None,
    ranked: Sequence[str] = (),
) -> Placement:
    """Return the place of every permitted tool.

    `room` is the step's, `began` the activation at its start: tools that were in the array then
    stay. `ranked`: tools best first for the step's goal, where `needs_ranking` asks for it; tools
    missing there come last, by name.
    """
    places, homes = _wanted_places(catalog, held)
    direct_tools = _choose_direct(catalog, held, places, homes, ranked)
    activated_places = _asked_places(
        catalog, activation, began or activation, places, set(direct_tools)
    )
    order = _places(activation, held)
    direct: list[tuple[tuple[int, str], PlacedTool]] = []
    activated: set[str] = set()
    for card in (room or Room()).fitting(
        catalog.cards[tool] for tool in (*direct_tools, *activated_places)
    ):
        tool = card.name
        home = homes[card.name]
        direct.append(
            ((activated_places.get(tool, order[home]), tool), PlacedTool(tool, home, card.tokens))
        )
        if tool in activated_places:
            activated.add(tool)
    direct_names = {placed.name for _, placed in direct}
    order_of = sorted(direct, key=lambda row: row[0])
    placed_tools: dict[Place, list[PlacedTool]] = {kind: [] for kind in MODES}
    for tool, kind in places.items():
        if tool not in direct_names:  # a tool without room in the array is deferred
            placed_tools["deferred" if MODES[kind].in_array else kind].append(
                _place_tool(catalog, tool, homes[tool])
            )
    placed_tools["direct"] = [placed for _, placed in order_of]
    return Placement(
        {kind: tuple(rows) for kind, rows in placed_tools.items()},
        activated=frozenset(activated),
        reading_from=_reading_from(catalog, activation, [at for (at, _), _ in order_of]),
        bundles=tuple(one.bundle.id for one in held),
    )


def _reading_from(catalog: Catalog, activation: Activation, places: Sequence[int]) -> int | None:
    """Return the position of the artifact readers: where the first result that can be paged put
    them. Without stickiness no positions are kept, so they are always at the end.
    """
    if not catalog.settings.activation.sticky:
        return len(places) or None
    position = min(
        (tool.place for e in activation.entries for tool in e.tools if tool.name == READER),
        default=None,
    )
    return None if position is None else bisect_left(places, position)


def _place_tool(catalog: Catalog, tool: str, bundle: str) -> PlacedTool:
    card = catalog.cards.get(tool)
    return PlacedTool(tool, bundle, card.tokens if card is not None else 0)


def _wanted_places(
    catalog: Catalog, held: Sequence[ShownBundle]
) -> tuple[dict[str, Place], dict[str, str]]:
    """Return each tool's most open place in any shown bundle, and the first bundle that gives
    it.
    """
    places: dict[str, Place] = {}
    homes: dict[str, str] = {}
    for shown in held:
        for tool in shown.tools:
            mode = mode_of(catalog, shown.bundle, tool)
            if tool not in places or _OPENNESS[mode] < _OPENNESS[places[tool]]:
                places[tool] = mode
                homes[tool] = shown.bundle.id
    return places, homes


def _is_over_budget(catalog: Catalog, one: ShownBundle) -> bool:
    limit = one.bundle.max_tokens
    if limit is None:
        return False
    return (
        sum(
            catalog.cards[t].tokens
            for t in one.tools
            if MODES[mode_of(catalog, one.bundle, t)].in_array
        )
        > limit
    )


def _choose_direct(
    catalog: Catalog,
    held: Sequence[ShownBundle],
    places: Mapping[str, Place],
    homes: Mapping[str, str],
    ranked: Sequence[str],
) -> list[str]:
    """Return the tools that are direct because of their bundles, bundle by bundle, within one by
    name.
    """
    ranks = {tool: rank for rank, tool in enumerate(ranked)}
    direct: list[str] = []
    for shown in held:
        bundle = shown.bundle
        own_tools = [tool for tool in shown.tools if homes[tool] == bundle.id]
        candidates = [tool for tool in own_tools if MODES[places[tool]].in_array]
        if not _is_over_budget(catalog, shown):
            direct += candidates
            continue

        skill_tools = [tool for tool in candidates if is_named_by_skill(catalog, bundle, tool)]
        first = {*bundle.companions, *skill_tools}
        candidates.sort(key=lambda tool: (tool not in first, ranks.get(tool, _LAST), tool))
        room = Room(tokens=bundle.max_tokens or 0)
        cards = room.fitting(catalog.cards[tool] for tool in candidates)
        direct += sorted(card.name for card in cards)
    return direct


def _asked_places(
    catalog: Catalog,
    activation: Activation,
    began: Activation,
    places: Mapping[str, Place],
    chosen: Set[str],
) -> dict[str, int]:
    """Return the positions of tools that the run asked for and that are not direct anyway.

    Those asked for before the step come first, the latest first: if tokens run short, the older
    ones are deferred.
    """
    places_before = {
        tool.name: (0, -tool.used, -tool.place) for entry in began.entries for tool in entry.tools
    }
    rows = [
        (places_before.get(tool.name, (1, tool.place, 0)), tool.name, tool.place)
        for entry in activation.entries
        for tool in entry.tools
        if (place := places.get(tool.name)) is not None
        and MODES[place].may_join
        and tool.name not in chosen
        if tool.name in catalog.cards
    ]
    return {name: place for _, name, place in sorted(rows)}


def _places(activation: Activation, held: Sequence[ShownBundle]) -> dict[str, int]:
    """Return the position of each bundle's block: in the order the run met them, non-sticky ones
    last.
    """
    entry_places = {entry.id: entry.place for entry in activation.entries}
    return {
        one.bundle.id: entry_places.get(one.bundle.id, _LAST + at) for at, one in enumerate(held)
    }
