"""What a catalog says about an address: the route, and the ceiling's verdicts on the bundles.

Everything here can be computed again from the catalog. The cache is bounded by its contents, so
that steps whose names or policies never repeat can't fill memory: addresses, verdicts and the
characters of step policies weigh at most `_MAX_WEIGHT` together; then the cache is emptied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from bundle_router.core.catalog import Bundle, Catalog, Route
from bundle_router.core.catalog.step_address import RowLookup, address_of
from bundle_router.core.decide.ceiling import StepCeiling, ceiling_of
from bundle_router.core.decide.policy import (
    BundleVerdict,
    FactChecks,
    static_verdict,
    unknown,
    with_facts,
)
from bundle_router.core.exposure.placing import direct_tools, fitting_size
from bundle_router.core.values import Address, Facts, Grant, Step, StepPolicy, WouldRefuse
from bundle_router.core.values.canonical import digest_of
from bundle_router.core.values.patterns import first_match

if TYPE_CHECKING:
    from bundle_router.core.decide.taints import TaintTest

_MAX_WEIGHT: Final = 4_000_000
"""Characters, roughly, that the cache holds at most."""
_ADDRESS: Final = 1_000
_PATTERN: Final = 50
_VERDICT: Final = 20
_MAX_CANDIDATES: Final = 16
"""Sets of candidates that are kept for one ceiling: one for each route that asks, times the facts
that were seen.
"""


@dataclass(slots=True)
class _Meter:
    """The weight of a catalog's plans so far."""

    weight: int = 0


class _Judged:
    """What one ceiling's verdicts come to under the facts of a moment, as far as it was asked."""

    __slots__ = ("bundles", "checks", "tainted", "tools")

    def __init__(self, facts: Facts, tainted: TaintTest | None) -> None:
        self.checks = FactChecks(facts, tainted)
        self.tainted = tainted
        self.bundles: dict[str, BundleVerdict] = {}
        self.tools: dict[tuple[str, ...], dict[str, str]] = {}


class Verdicts:
    """One ceiling's verdicts on the catalog's bundles, computed when asked for.

    All addresses under the same policies share them, so that steps with new names don't each pay
    for them. The facts are one object for as long as nothing changes on the machine.
    """

    __slots__ = (
        "_candidates",
        "_catalog",
        "_judged",
        "_meter",
        "_selectable",
        "_static",
        "ceiling",
    )

    def __init__(self, catalog: Catalog, ceiling: StepCeiling, meter: _Meter) -> None:
        self._catalog = catalog
        self._static: dict[str, BundleVerdict] = {}
        # A call asks under the facts of its decision and under those of now, in turn.
        self._judged: tuple[_Judged, ...] = ()
        self._selectable: tuple[Bundle, ...] | None = None
        self._candidates: dict[object, Candidates] = {}
        self._meter = meter
        self.ceiling = ceiling

    def of(self, id_: str, facts: Facts) -> BundleVerdict:
        bundle = self._catalog.bundle(id_)
        if bundle is None:
            return unknown(id_)
        return self._judge(bundle, self._under(facts))

    def _under(self, facts: Facts) -> _Judged:
        for judgement in self._judged:
            if judgement.checks.facts == facts:
                return judgement
        tainted = self.taint_test(facts) if self.ceiling.tainted else None
        judgement = _Judged(facts, tainted)
        self._judged = (judgement, *self._judged[:1])
        return judgement

    def _judge(self, bundle: Bundle, judged: _Judged) -> BundleVerdict:
        verdict = judged.bundles.get(bundle.id)
        if verdict is not None:
            return verdict
        static = self._static.get(bundle.id)
        if static is None:
            static = self._static[bundle.id] = static_verdict(self._catalog, self.ceiling, bundle)
            self._meter.weight += _VERDICT
        verdict = judged.bundles[bundle.id] = with_facts(static, judged.checks, bundle)
        return verdict

    def tools(self, bundle_ids: tuple[str, ...], facts: Facts) -> Mapping[str, str]:
        """Return the permitted tools of the bundles, each with the first bundle that holds it."""
        judgement = self._under(facts)
        permitted = judgement.tools.get(bundle_ids)
        if permitted is not None:
            return permitted
        tools: dict[str, str] = {}
        for id_ in bundle_ids:
            for tool in self.of(id_, facts).tools:
                tools.setdefault(tool, id_)
        if len(judgement.tools) >= _MAX_CANDIDATES:
            judgement.tools.clear()
        judgement.tools[bundle_ids] = tools
        return tools

    def taint_test(self, facts: Facts) -> TaintTest | None:
        """Return the test of the rows with `seen` under these facts; None where there is none."""
        if not self.ceiling.tainted:
            return None
        from bundle_router.core.decide.taints import TaintTest  # few configs have such a row

        return TaintTest(self._catalog, self.ceiling.tainted, facts.seen)

    def would_refuse(self, id_: str, facts: Facts) -> tuple[WouldRefuse, ...]:
        """Return what rows with `enforce = false` would not show of a bundle that is permitted."""
        tainted = self._under(facts).tainted
        bundle = self._catalog.bundle(id_)
        if tainted is None or bundle is None:
            return ()
        return tainted.would_refuse(bundle, self.of(id_, facts).tools)

    def candidates(
        self, facts: Facts, ask: tuple[str, ...] | None, without: tuple[str, ...]
    ) -> Candidates:
        """Return the permitted bundles that `ask` covers (None: all), except `without`: a selector
        may pick them.
        """
        key = (facts.capabilities, facts.unavailable, facts.drifted, facts.seen, ask, without)
        candidates = self._candidates.get(key)
        if candidates is None:
            if len(self._candidates) >= _MAX_CANDIDATES:
                self._candidates.clear()
            candidates = self._candidates[key] = Candidates(
                tuple(self._pickable(facts, ask, frozenset(without)))
            )
        return candidates

    def _pickable(
        self, facts: Facts, ask: tuple[str, ...] | None, without: frozenset[str]
    ) -> Iterator[str]:
        judgement = self._under(facts)
        for bundle in self._selectable_bundles():
            if bundle.id in without:
                continue
            if ask is not None and first_match(ask, bundle.id) is None:
                continue
            if self._judge(bundle, judgement).permitted:
                yield bundle.id

    def _selectable_bundles(self) -> tuple[Bundle, ...]:
        """Return the bundles that a selector may pick, listed once."""
        if self._selectable is None:
            self._selectable = tuple(
                bundle
                for bundle in self._catalog.bundles.values()
                if bundle.selectable and not bundle.always
            )
        return self._selectable


class Candidates:
    """Permitted bundle ids in id order. `key` is their digest."""

    __slots__ = ("__dict__", "ids")

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids

    @cached_property
    def key(self) -> str:
        return digest_of(self.ids)


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """What a bundle puts into the array of tools."""

    names: tuple[str, ...]
    """Its permitted tools that belong there."""
    tools: int
    """How many of them are shown: those that fit the bundle's own budget."""
    tokens: int
    """The tokens of these."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the catalog says about one address."""

    route: Route | None
    verdicts: Verdicts


_Key = tuple[Address, StepPolicy | None, tuple[Grant, ...]]


class Plans:
    """The plans of one catalog: what it says about each address that was asked for.

    Whoever decides many steps keeps one. It is safe to share between threads: two that ask for the
    same compute it twice, and keep one of both.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._mapping = RowLookup(catalog.routes)
        self._in_array: dict[str, tuple[Bundle, tuple[str, ...], ArrayPart]] = {}
        self._begin()

    @cached_property
    def all_tools(self) -> int:
        """The number of tools of the catalog: what showing everything would show."""
        return len(self.catalog.tool_names)

    @cached_property
    def all_tokens(self) -> int:
        """The tokens of their definitions."""
        return sum(card.tokens for card in self.catalog.cards.values())

    def of(self, step: Step, grants: tuple[Grant, ...]) -> Plan:
        """Return the plan of a step below these ancestors."""
        return self.for_address(address_of(step), step.policy, grants)

    def for_address(
        self, address: Address, policy: StepPolicy | None = None, grants: tuple[Grant, ...] = ()
    ) -> Plan:
        """Return the plan of an address, under a step's own policy and its ancestors."""
        key = (address, policy, grants)
        kept_plan = self._plans.get(key)
        if kept_plan is not None:
            return kept_plan
        weight = _weight(key)
        if self._meter.weight + weight > _MAX_WEIGHT:
            self._begin()
        self._meter.weight += weight
        ceiling = ceiling_of(self.catalog, address, policy, grants)
        verdicts = self._verdicts.setdefault(ceiling, Verdicts(self.catalog, ceiling, self._meter))
        plan = self._plans[key] = Plan(self._mapping.match(address), verdicts)
        return plan

    def in_array(self, bundle: Bundle, permitted: tuple[str, ...]) -> ArrayPart:
        """Return what of a bundle's permitted tools goes into the array. What was asked for last is
        kept for each bundle, since the next step usually permits the same.
        """
        last = self._in_array.get(bundle.id)
        if last is not None and last[0] is bundle and last[1] == permitted:
            return last[2]
        names = tuple(direct_tools(self.catalog, bundle, permitted))
        part = ArrayPart(names, *fitting_size(self.catalog, bundle, names))
        self._in_array[bundle.id] = (bundle, permitted, part)
        return part

    def _begin(self) -> None:
        self._plans: dict[_Key, Plan] = {}
        self._verdicts: dict[StepCeiling, Verdicts] = {}
        self._meter = _Meter()


def _weight(key: _Key) -> int:
    """Return the weight of an address with its step policies: its own and the ancestors'."""
    _, policy, grants = key
    policies = [
        step_policy
        for step_policy in (policy, *(grant.policy for grant in grants))
        if step_policy is not None
    ]
    patterns = [
        pattern
        for step_policy in policies
        for pattern in (*(step_policy.allow or ()), *step_policy.deny)
    ]
    return _ADDRESS + sum(len(pattern) + _PATTERN for pattern in patterns)


def permitted_tools(
    plans: Plans, facts: Facts, step: Step, bundle_ids: Sequence[str]
) -> Mapping[str, str]:
    """Return the tools of the given bundles that this step permits, each with the first bundle that
    holds it.

    The verdict is that of `decide`: with fresh facts, at call time, it refuses what was revoked
    since.
    """
    return plans.of(step, facts.grants).verdicts.tools(tuple(bundle_ids), facts)
