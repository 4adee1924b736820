"""The model's view at a recorded decision: the array of definitions, the guidance, and the place of
every tool.

Rules:
1. It is computed from the record and its catalog, by the functions that made the surface at the
   time.
2. It is the surface at the time of the decision. Tools that calls brought into the array later are
   in the next decision's activation.
3. A bundle over its own budget shows what search ranked best, but rankings are not recorded:
   `estimated` says that there was such a bundle, and that its tools are listed here by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.activation import room_of
from bundle_router.core.decide.plans import Plans
from bundle_router.core.exposure.meta_tools.definitions import (
    meta_definitions,
    meta_names,
    meta_tokens,
)
from bundle_router.core.exposure.meta_tools.guidance import guidance, without_tools, words_behind
from bundle_router.core.exposure.names import names_in
from bundle_router.core.exposure.placements import Placement
from bundle_router.core.exposure.placing import needs_ranking, place, presented_bundles
from bundle_router.core.exposure.provider_forms import Format, listing
from bundle_router.core.records.decision_record import DecisionRecord


@dataclass(frozen=True, slots=True)
class ModelView:
    """The array in a provider's form, its tokens (cl100k_base if counted), the guidance, and the
    place of each tool.
    """

    tools: tuple[dict[str, Any], ...]
    guidance: str
    tokens: int
    placement: Placement
    estimated: bool


def placement_of(catalog: Catalog, record: DecisionRecord) -> tuple[Placement, bool]:
    """Return the places of the decision's permitted tools, and whether a ranking is missing (rule
    3).
    """
    verdicts = Plans(catalog).of(record.step, record.facts.grants).verdicts
    presented = presented_bundles(
        catalog, record.decision.bundles, lambda id_: verdicts.of(id_, record.facts).tools
    )
    placement = place(catalog, presented, record.decision.after, room=room_of(record.step))
    return placement, bool(needs_ranking(catalog, presented))


def model_view(catalog: Catalog, record: DecisionRecord, form: Format = "openai") -> ModelView:
    """Return what the model was shown under the decision."""
    placement, estimated = placement_of(catalog, record)
    tools = {*catalog.cards}
    for bundle in catalog.bundles.values():
        tools.update(bundle.tools)
    names = names_in(catalog, sorted(tools))

    meta, place = meta_names(placement, fixed=record.fixed_list)
    behind = words_behind(catalog, placement)
    cards = [catalog.cards[row.name] for row in placement.direct]
    definitions = listing(cards, names, form)
    placed = {row.name for _, row in placement.rows()}
    if placed:
        evicted = [tool for tool in record.decision.evicted_tools if tool in placed]
        text = guidance(catalog, placement, names, evicted)
    else:
        text = without_tools(record.decision)
    return ModelView(
        tools=(*definitions[:place], *meta_definitions(meta, form, behind), *definitions[place:]),
        guidance=text,
        tokens=meta_tokens(meta, behind) + sum(card.tokens for card in cards),
        placement=placement,
        estimated=estimated,
    )
