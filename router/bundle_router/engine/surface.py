"""What a run shows now: its current decision, placed, with what search has to say where a budget asks for it.

Rules:
1. A surface is a view: nothing is recorded here, and the same decision, activation and facts give the same bytes.
2. What was revoked since the decision is not shown; what improved since is not shown either (`calls.exposed_now`).
3. Search is only asked where a bundle does not fit its own budget, once for each decision.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.decide import plan_for
from bundle_router.core.models import Activation, Facts
from bundle_router.core.tools.exposure import (
    ActiveTool,
    Format,
    Placement,
    ShownBundle,
    SkillText,
    Toolset,
    as_presented,
    is_named_in,
    listing,
    needs_ranking,
    place,
)
from bundle_router.core.tools.exposure.forms import NATIVE, with_deferred
from bundle_router.core.tools.meta_tools import NAMES, READERS, VisibleTools, guidance, meta_definitions, meta_tokens
from bundle_router.engine.exposed import exposed_now
from bundle_router.engine.run import Current
from bundle_router.ports import ToolSearch

KEPT: Final = 256
"""Decisions whose ranking is remembered."""
RANKED: Final = 1_000


@dataclass(frozen=True, slots=True)
class View:
    """How a surface is asked for: the provider's form, whether the provider defers by itself, and `fixed`: a list that
    only another decision changes."""

    form: Format
    native: bool = False
    fixed: bool = False


class Surface:
    """The views of all runs over one catalog. `exposed` and `canonical` lead from one kind of name to the other."""

    def __init__(self, catalog: Catalog, exposed: Mapping[str, str], search: ToolSearch | None) -> None:
        self.catalog = catalog
        self.exposed = exposed
        self.canonical = {short: name for name, short in exposed.items()}
        self._search = search
        self._ranked: OrderedDict[tuple[str, frozenset[str]], Sequence[str]] = OrderedDict()

    def rank(self, query: str, permitted: frozenset[str], k: int) -> Sequence[str]:
        """Permitted tools, best first for a query. Blocks: the first time for as long as the index takes."""
        found = self._search.rank_tools(self.catalog, query, permitted, k) if self._search is not None else None
        if found is not None:
            return found
        from bundle_router.core.tools.meta_tools.plain import plain_ranking

        return plain_ranking(self.catalog, query, permitted, k)

    def may_ask(self, current: Current) -> bool:
        """Whether a view of the decision may have to wait for search."""
        shown = (self.catalog.bundle(id_) for id_ in current.decision.bundle_ids)
        return any(bundle is not None and bundle.max_tokens is not None for bundle in shown)

    def shelf(self, facts: Facts, current: Current, activation: Activation, *, joins: bool = True) -> VisibleTools:
        """Where the tools of the current decision are. Blocks where search has to be asked (rule 3)."""
        exposed = exposed_now(self.catalog, facts, current)
        verdicts = plan_for(self.catalog, current.step, facts.grants).verdicts
        held = [
            ShownBundle(
                as_presented(bundle, chosen.mode),
                tuple(tool for tool in verdicts.of(chosen.id, facts).tools if tool in exposed),
            )
            for chosen in current.decision.bundles
            if (bundle := self.catalog.bundle(chosen.id)) is not None
        ]
        unranked = needs_ranking(self.catalog, held)
        ranked = self._ranking(current, unranked) if unranked else ()
        placement = place(self.catalog, held, activation, ranked=ranked, max_tokens=current.step.max_tokens)
        return VisibleTools(self.catalog, placement, self.exposed, joins)

    def _ranking(self, current: Current, tools: frozenset[str]) -> Sequence[str]:
        key = (current.decision.decision_id, tools)
        known = self._ranked.get(key)
        if known is None:
            from bundle_router.core.search.corpus import (
                request_of,  # what search reads; a list that fits needs none of it
            )

            known = self._ranked[key] = self.rank(request_of(current.step, ()).text, tools, RANKED)
            while len(self._ranked) > KEPT:
                self._ranked.popitem(last=False)
        return known

    def toolset(self, facts: Facts, current: Current, activation: Activation, view: View) -> Toolset:
        """See `Router.tools`."""
        form, native = view.form, view.native
        shelf = self.shelf(facts, current, current.decision.after if view.fixed else activation)
        placement, cards = shelf.placement, self.catalog.cards
        by_provider = native and form in NATIVE
        ours = Placement(placement.direct, (), placement.meta) if by_provider else placement
        own, at = (NAMES, 0) if view.fixed else _meta_names(ours)
        direct = [cards[row.name] for row in placement.direct]
        listed = listing(direct, self.exposed, form)
        tools = (*listed[:at], *meta_definitions(own, form), *listed[at:])
        if by_provider:
            tools = with_deferred(tools, self._deferred(placement), self.exposed, form)
        return Toolset(
            tools=tools,
            guidance=guidance(self.catalog, ours, self.exposed),
            tokens=meta_tokens(own) + sum(card.tokens for card in direct),
            active=tuple(ActiveTool(r.name, self.exposed[r.name], r.bundle, r.tokens) for r in placement.direct),
            cap=self.catalog.settings.activation.max_tools,
            all_tokens=current.decision.exposure.all_tokens,
            deferred=tuple(row.name for row in placement.deferred),
            meta=tuple(row.name for row in placement.meta),
            skills=tuple(self._skills(current, shelf.places)),
        )

    def _skills(self, current: Current, places: Mapping[str, str]) -> Iterator[SkillText]:
        """The instructions of shown bundles of which something may be called now, in the decision's order."""
        told: set[str] = set()
        for chosen in current.decision.bundles:
            bundle = self.catalog.bundle(chosen.id) if chosen.mode is None else None
            for part, skill in self.catalog.skills_of(bundle) if bundle is not None else ():
                here = [tool for tool in part.tools if tool in places]
                if here and skill.path not in told:
                    told.add(skill.path)
                    named = [tool for tool in here if is_named_in(skill, tool)]
                    tools = tuple(self.exposed[tool] for tool in named)
                    yield SkillText(part.id, skill.name, skill.description, tools, skill.text)

    def _deferred(self, placement: Placement) -> list[tuple[str, str, list[Any]]]:
        """What a provider defers, bundle by bundle, as far as its definitions are known."""
        by_bundle: dict[str, list[Any]] = {}
        for row in placement.deferred:
            if row.name in self.catalog.cards:
                by_bundle.setdefault(row.bundle, []).append(self.catalog.cards[row.name])
        return [(id_, self.catalog.bundles[id_].description, cards) for id_, cards in by_bundle.items()]


def _meta_names(placement: Placement) -> tuple[tuple[str, ...], int]:
    """The meta-tools an array needs, and where in it they stand. All of them where there is something to find, before
    everything else, so that it grows behind them; else the readers alone, from the first result that can be read on.
    """
    if placement.behind:
        return NAMES, 0
    return (READERS, placement.reading_from) if placement.reading_from is not None else ((), 0)
