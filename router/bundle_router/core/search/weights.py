"""The parameters of the ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bundle_router.core.search.text import Scale

TOOL_SCALE: Final = Scale(generic=0.9, conversation=0.7, synonym=0.35, pair=0.3)
BUNDLE_SCALE: Final = Scale(generic=0.5, conversation=0.6, synonym=0.35, pair=0.15)


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of the ranking. One set for every catalog; `fit` may change `history` and `memory` by own logs.

    `text_share` is the share of a bundle's own text against its best tool; `whole` that of the whole request against
    its clauses; `sharpness` the power that a clause's scores are raised to; `bundle_pull` the share of its bundle's
    score that a tool gets at full coherence; `action` the factor for a tool whose name says that it does what the
    request asks to be done; `coverage` how much a short request must be covered (an exponent). `meaning` is the weight
    of an embedder's similarity beside words that match like one rarest word in full: of 0.8 to 1.2 each gains in the
    mean of six labelled sets. `depth` is the number of documents in a pass over the whole request, `clause_depth` in
    one over a clause.
    """

    tool_scale: Scale = TOOL_SCALE
    bundle_scale: Scale = BUNDLE_SCALE
    text_share: float = 0.5
    whole: float = 0.3
    tool_sharpness: float = 3.0
    bundle_sharpness: float = 2.0
    bundle_pull: float = 0.6
    action: float = 1.1
    coherence_power: float = 3.0
    coverage: float = 0.6
    short_request: int = 10
    history: float = 0.1
    history_decay: float = 0.6
    context: float = 0.2
    meaning: float = 1.0
    unread_quota: int = 2
    depth: int = 100
    clause_depth: int = 40


WEIGHTS: Final = Weights()
