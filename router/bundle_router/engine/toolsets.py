"""What an agent is shown of a run's present state: where each tool stands, and the array.

Rules:
1. A toolset is a view. It records nothing, and equal decisions, activations and facts give equal
   bytes.
2. Search is asked only for a bundle that exceeds its own budget, once a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bundle_router.core.decide.activation import room_of
from bundle_router.core.exposure.meta_tools.definitions import (
    meta_definitions,
    meta_names,
    meta_tokens,
)
from bundle_router.core.exposure.meta_tools.descriptions import VisibleTools
from bundle_router.core.exposure.meta_tools.guidance import guidance, without_tools, words_behind
from bundle_router.core.exposure.placements import (
    ActiveTool,
    DeferredTool,
    Placement,
    SkillText,
    Toolset,
)
from bundle_router.core.exposure.placing import (
    is_named_in,
    needs_ranking,
    place,
    presented_bundles,
)
from bundle_router.core.exposure.provider_forms import NATIVE, Format, listing, with_deferred
from bundle_router.engine.surface import RunState, SurfaceForm, verdicts_of


def toolset_of(state: RunState, surface_form: SurfaceForm) -> Toolset:
    """Return the run's tools (see `Router.tools`)."""
    surface = state.surface
    form = surface_form.form
    native = surface_form.native
    fixed = surface_form.fixed or state.decided.fixed_list
    visible = visible_tools(
        replace(state, activation=state.decided.decision.after) if fixed else state
    )
    placement = visible.placement
    cards = surface.catalog.cards
    by_provider = native and form in NATIVE
    if by_provider:
        ours = replace(
            placement,
            placed={**placement.placed, "deferred": ()},
            activated=frozenset(),
            reading_from=None,
        )
    else:
        ours = placement
    meta_tools, position = meta_names(ours, fixed=fixed)
    behind = words_behind(surface.catalog, ours)
    direct = [cards[row.name] for row in placement.direct]
    evicted = [tool for tool in state.decided.decision.evicted_tools if tool in visible.places]
    listed = listing(direct, surface.exposed, form)
    meta = meta_definitions(meta_tools, form, behind)
    tools = (*listed[:position], *meta, *listed[position:])
    if by_provider:
        tools = with_deferred(tools, _deferred_groups(state, placement), surface.exposed, form)
    return Toolset(
        tools=tools,
        guidance=(
            guidance(surface.catalog, ours, surface.exposed, evicted)
            if visible.places
            else _why_empty(state)
        ),
        tokens=meta_tokens(meta_tools, behind) + sum(card.tokens for card in direct),
        active=tuple(
            ActiveTool(r.name, surface.exposed[r.name], r.bundle, r.tokens)
            for r in placement.direct
        ),
        cap=surface.catalog.settings.activation.max_tools,
        all_tokens=state.decided.decision.exposure.all_tokens,
        deferred=tuple(_definitions(state, placement, form)),
        meta=tuple(row.name for row in placement.by_name),
        skills=tuple(_skills(state, visible.places)),
        decision_id=state.decided.decision.decision_id,
        held=_held(state, placement) if surface.catalog.approvals else (),
    )


def _held(state: RunState, placement: Placement) -> tuple[str, ...]:
    """Return the tools that a row of approvals covers at the step, or at an ancestor's."""
    addresses = [state.address, *(grant.address for grant in state.facts.grants)]
    shown = [row.name for rows in placement.placed.values() for row in rows]
    return tuple(
        [
            name
            for name in dict.fromkeys(shown)
            if any(
                row.enforce and any(map(row.covers, addresses))
                for row in state.surface.catalog.approvals_of(name)
            )
        ]
    )


def visible_tools(state: RunState, *, joins: bool = True) -> VisibleTools:
    """Return where each tool of the decision is presented.

    Blocks where search is needed (rule 2).
    """
    surface = state.surface
    exposed = state.exposed()
    facts = state.facts
    of = verdicts_of(state, state.facts, surface.plans).of
    presented = presented_bundles(
        surface.catalog,
        state.decided.decision.bundles,
        lambda id_: filter(exposed.__contains__, of(id_, facts).tools),
    )
    unranked = needs_ranking(surface.catalog, presented)
    ranked = surface.ranking(state.decided, unranked) if unranked else ()
    began = state.decided.decision.after
    room = room_of(state.step)
    placement = place(
        surface.catalog, presented, state.activation, room=room, began=began, ranked=ranked
    )
    return VisibleTools(
        surface.catalog, placement, surface.exposed, joins, room=state.room(state.activation)
    )


def _why_empty(state: RunState) -> str:
    of = verdicts_of(state, state.facts, state.plans).of
    lost = (id_ for id_ in state.bundle_ids if of(id_, state.facts).code == "server_unavailable")
    return without_tools(state.decided.decision, lost)


def _definitions(state: RunState, placement: Placement, form: Format) -> Iterator[DeferredTool]:
    """Yield the deferred tools whose definitions are known, each with its definition."""
    surface = state.surface
    for row in placement.deferred:
        card = surface.catalog.cards.get(row.name)
        definition = listing([card], surface.exposed, form)[0] if card is not None else None
        yield DeferredTool(row.name, surface.exposed[row.name], row.bundle, row.tokens, definition)


def _skills(state: RunState, places: Mapping[str, str]) -> Iterator[SkillText]:
    """Yield the skills of shown bundles with a callable tool, in the decision's order."""
    surface = state.surface
    yielded: set[str] = set()
    for choice in state.decided.decision.bundles:
        bundle = surface.catalog.bundle(choice.id)
        if bundle is None or choice.mode is not None:
            continue
        for part, skill in surface.catalog.skills_of(bundle):
            placed_tools = [tool for tool in part.tools if tool in places]
            if not placed_tools or skill.path in yielded:
                continue
            yielded.add(skill.path)
            named_tools = [tool for tool in placed_tools if is_named_in(skill, tool)]
            exposed_names = tuple(surface.exposed[tool] for tool in named_tools)
            yield SkillText(part.id, skill.name, skill.description, exposed_names, skill.text)


def _deferred_groups(state: RunState, placement: Placement) -> list[tuple[str, str, list[Any]]]:
    """Return the tools that a provider defers, by bundle, as far as their definitions are
    known.
    """
    surface = state.surface
    by_bundle: dict[str, list[Any]] = {}
    for row in placement.deferred:
        if row.name in surface.catalog.cards:
            by_bundle.setdefault(row.bundle, []).append(surface.catalog.cards[row.name])
    return [
        (id_, surface.catalog.bundles[id_].description, cards) for id_, cards in by_bundle.items()
    ]
