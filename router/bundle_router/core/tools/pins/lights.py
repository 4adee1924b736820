"""The warning light over what nobody has reviewed as it is now. It warns and decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from bundle_router.core.tools.admission import Admitted
from bundle_router.core.tools.pins.compare import Comparison
from bundle_router.core.tools.warning_light import LightVerdict, Neighbourhood, inspect


@dataclass(frozen=True, slots=True)
class Light:
    """What the warning light makes of one tool."""

    tool: str
    verdict: LightVerdict


def lights(found: Admitted, comparison: Comparison, everyone: Neighbourhood) -> Iterator[Light]:
    """Yield what warns among the tools of `found` that are new or changed; among all of them where the server itself is
    another than was reviewed. `everyone` are the tools there are, of any server: texts may speak of them."""
    unread = {change.tool for change in comparison.tools if change.kind != "unchanged"}
    for tool in found.tools:
        if tool.card.tool in unread or comparison.server:
            verdict = inspect(
                json.loads(tool.definition), server=found.server, instructions=found.instructions, neighbours=everyone
            )
            if verdict.warns:
                yield Light(tool.card.tool, verdict)
