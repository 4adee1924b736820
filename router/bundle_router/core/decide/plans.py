"""What the catalog alone says about an address: its route, and what its ceiling makes of the bundles.

A cache, never an input: everything here can be worked out again from the catalog, on which it is kept outside its
value. It is bounded by what it holds, so that steps whose names or policies never repeat can't make it grow: addresses,
verdicts and the characters of step policies weigh `_MAX_WEIGHT` together at most; past that it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog, Route
from bundle_router.core.decide.ceiling import StepCeiling, ceiling_of
from bundle_router.core.decide.mapping import Address, RouteLookup
from bundle_router.core.decide.policy import BundleVerdict, static_verdict, unknown, with_facts
from bundle_router.core.models import Facts, Grant, Step, StepPolicy
from bundle_router.core.models.canonical import digest_of
from bundle_router.core.models.patterns import first_match
from bundle_router.dataclass import dataclass

_MAX_WEIGHT: Final = 4_000_000
"""About the characters that are held."""
_ADDRESS: Final = 1_000
_PATTERN: Final = 50
_VERDICT: Final = 20
_MAX_CANDIDATES: Final = 16
"""Sets of candidates kept for one ceiling: one for each route that asks, times the facts that were seen."""


@dataclass(slots=True)
class _Meter:
    """What the plans of a catalog hold so far."""

    weight: int = 0


class Verdicts:
    """What one ceiling makes of the catalog's bundles, worked out as it is asked for.

    Shared by all addresses under the same policies, so that steps with names of their own don't each pay for it.
    """

    __slots__ = ("_candidates", "_catalog", "_judged", "_meter", "_selectable", "_static", "_tools", "ceiling")

    def __init__(self, catalog: Catalog, ceiling: StepCeiling, meter: _Meter) -> None:
        self._catalog = catalog
        self._static: dict[str, BundleVerdict] = {}
        self._judged: dict[str, tuple[Facts, BundleVerdict]] = {}
        self._tools: dict[tuple[tuple[str, ...], int], tuple[Facts, dict[str, str]]] = {}
        self._selectable: tuple[Bundle, ...] | None = None
        self._candidates: dict[object, Candidates] = {}
        self._meter = meter
        self.ceiling = ceiling

    def of(self, id_: str, facts: Facts) -> BundleVerdict:
        bundle = self._catalog.bundle(id_)
        return unknown(id_) if bundle is None else self._judge(bundle, facts)

    def _judge(self, bundle: Bundle, facts: Facts) -> BundleVerdict:
        judged = self._judged.get(bundle.id)
        if judged is not None and judged[0] is facts:  # facts are one object for as long as nothing changes
            return judged[1]
        known = self._static.get(bundle.id)
        if known is None:
            known = self._static[bundle.id] = static_verdict(self._catalog, self.ceiling, bundle)
            self._meter.weight += _VERDICT
        verdict = with_facts(known, facts, bundle)
        self._judged[bundle.id] = (facts, verdict)
        return verdict

    def tools(self, bundle_ids: tuple[str, ...], facts: Facts) -> Mapping[str, str]:
        """Return the permitted tools of the bundles, each with the first that holds it."""
        key = bundle_ids, id(facts)  # a call asks with those of its decision and with those of now, in turn
        known = self._tools.get(key)
        if known is None or known[0] is not facts:
            tools: dict[str, str] = {}
            for id_ in bundle_ids:
                for tool in self.of(id_, facts).tools:
                    tools.setdefault(tool, id_)
            if len(self._tools) >= _MAX_CANDIDATES:
                self._tools.clear()
            known = self._tools[key] = (facts, tools)
        return known[1]

    def candidates(self, facts: Facts, ask: tuple[str, ...] | None, without: tuple[str, ...]) -> Candidates:
        """Return permitted bundles a selector may pick: those `ask` covers (None: all), without those of `without`."""
        key = (facts.capabilities, facts.unavailable, facts.drifted, ask, without)
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) >= _MAX_CANDIDATES:
                self._candidates.clear()
            found = self._candidates[key] = Candidates(tuple(self._pickable(facts, ask, frozenset(without))))
        return found

    def _pickable(self, facts: Facts, ask: tuple[str, ...] | None, without: frozenset[str]) -> Iterator[str]:
        if self._selectable is None:
            self._selectable = tuple(b for b in self._catalog.bundles.values() if b.selectable and not b.always)
        for bundle in self._selectable:
            asked = bundle.id not in without and (ask is None or first_match(ask, bundle.id) is not None)
            if asked and self._judge(bundle, facts).permitted:
                yield bundle.id


class Candidates:
    """Permitted bundle ids in id order. `key` is their digest: equal keys, the same choice."""

    __slots__ = ("__dict__", "ids")

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids

    @cached_property
    def key(self) -> str:
        return digest_of(self.ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the catalog alone says about one address."""

    route: Route | None
    verdicts: Verdicts


_Key = tuple[Address, StepPolicy | None, tuple[Grant, ...]]


class Indexes:
    """Look-ups of one catalog. `all_tools` and `all_tokens` are what showing everything would come to."""

    def __init__(self, catalog: Catalog) -> None:
        self.all_tools = len(catalog.tool_names)
        self.all_tokens = sum(card.tokens for card in catalog.cards.values())
        self._catalog = catalog
        self._mapping = RouteLookup(catalog.routes)
        self._begin()

    def _begin(self) -> None:
        self._plans: dict[_Key, Plan] = {}
        self._verdicts: dict[StepCeiling, Verdicts] = {}
        self._meter = _Meter()

    def plan(self, key: _Key) -> Plan:
        known = self._plans.get(key)
        if known is None:
            more = _weight(key)
            if self._meter.weight + more > _MAX_WEIGHT:
                self._begin()
            self._meter.weight += more
            address, policy, grants = key
            ceiling = ceiling_of(self._catalog, address, policy, grants)
            verdicts = self._verdicts.setdefault(ceiling, Verdicts(self._catalog, ceiling, self._meter))
            known = self._plans[key] = Plan(self._mapping.match(address), verdicts)
        return known


def _weight(key: _Key) -> int:
    """Return what an address weighs with its step policies, its own and those of the ancestors."""
    _, policy, grants = key
    policies = [one for one in (policy, *(grant.policy for grant in grants)) if one is not None]
    patterns = [pattern for one in policies for pattern in (*(one.allow or ()), *one.deny)]
    return _ADDRESS + sum(len(pattern) + _PATTERN for pattern in patterns)


def indexes_of(catalog: Catalog) -> Indexes:
    """Return the look-ups of the catalog, made when they are first asked for."""
    found = catalog.memo.get("indexes")
    if not isinstance(found, Indexes):
        found = catalog.memo["indexes"] = Indexes(catalog)
    return found


def plan_for(catalog: Catalog, step: Step, grants: tuple[Grant, ...]) -> Plan:
    """Return the plan of the step's address, from the cache where it is known."""
    return indexes_of(catalog).plan(((step.workflow, step.role, step.step), step.policy, grants))


def permitted_tools(catalog: Catalog, facts: Facts, step: Step, bundle_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the tools that the given bundles come to at this step, each with the first bundle that holds it.

    The same verdict as in `decide`: call it at call time with fresh facts to refuse what was revoked since.
    """
    return plan_for(catalog, step, facts.grants).verdicts.tools(tuple(bundle_ids), facts)
