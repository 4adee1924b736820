"""What a recorded decision put before the model: the array of definitions, the guidance, and where every tool was.

Rules:
1. It is worked out from the record and the catalog beside it, by the functions that made the surface at the time.
2. It is the surface as it was when the step was decided. What calls brought into the array later stands in the next
   decision's activation.
3. A bundle over its own budget shows what search ranked best, and no ranking is recorded: `estimated` says that such a
   bundle was there, and that its tools stand here by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.activation import room_of
from bundle_router.core.decide.decide import plan_for
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.tools.exposure.names import names_in
from bundle_router.core.tools.exposure.placements import Placement
from bundle_router.core.tools.exposure.placing import held_by, needs_ranking, place
from bundle_router.core.tools.exposure.provider_forms import Format, listing
from bundle_router.core.tools.meta_tools.definitions import meta_definitions, meta_names, meta_tokens
from bundle_router.core.tools.meta_tools.guidance import guidance


@dataclass(frozen=True, slots=True)
class ModelView:
    """The array in a provider's form, its tokens (cl100k_base where counted), the guidance, and where each tool was."""

    tools: tuple[dict[str, Any], ...]
    guidance: str
    tokens: int
    placement: Placement
    estimated: bool


def placement_of(catalog: Catalog, record: DecisionRecord) -> tuple[Placement, bool]:
    """Return where the permitted tools of the decision were, and whether a ranking is missing (rule 3)."""
    verdicts = plan_for(catalog, record.step, record.facts.grants).verdicts
    held = held_by(catalog, record.decision.bundles, lambda id_: verdicts.of(id_, record.facts).tools)
    placement = place(catalog, held, record.decision.after, room=room_of(record.step))
    return placement, bool(needs_ranking(catalog, held))


def model_view(catalog: Catalog, record: DecisionRecord, form: Format = "openai") -> ModelView:
    """Return what the model was shown under the decision."""
    placement, estimated = placement_of(catalog, record)
    known = {tool for bundle in catalog.bundles.values() for tool in bundle.tools} | catalog.cards.keys()
    names = names_in(catalog, sorted(known))
    own, at = meta_names(placement, fixed=record.fixed_list)
    cards = [catalog.cards[row.name] for row in placement.direct]
    listed = listing(cards, names, form)
    places = {row.name for _, row in placement.rows()}
    evicted = [tool for tool in record.decision.evicted_tools if tool in places]
    return ModelView(
        tools=(*listed[:at], *meta_definitions(own, form), *listed[at:]),
        guidance=guidance(catalog, placement, names, evicted),
        tokens=meta_tokens(own) + sum(card.tokens for card in cards),
        placement=placement,
        estimated=estimated,
    )
