"""The bundles of one step as they are collected: what it is shown and what is left out, within its
budgets.

The order in which bundles are added is the order in which they are shown, and in which they claim
the budgets. The first reason for an id wins, shown or not; so does the first reason why not.
"""

from __future__ import annotations

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.decide.activation import room_of
from bundle_router.core.decide.plans import Verdicts, indexes_of
from bundle_router.core.decide.policy import BundleVerdict
from bundle_router.core.exposure.placing import (
    as_presented,
    direct_tools,
    fitting_size,
    offered_mode,
    place,
    presented_bundles,
)
from bundle_router.core.values import Activation, Chosen, Exposure, Facts, LeftOut, Reason, Step


class StepBundles:
    """Collects the bundles of one step."""

    def __init__(self, catalog: Catalog, step: Step) -> None:
        self._catalog = catalog
        self._step = step
        self.bundles: list[Chosen] = []
        self.left_out: list[LeftOut] = []
        self.ids: set[str] = set()
        self._out: set[str] = set()
        self._wanted: set[str] = set()  # by a bundle that is shown, in the array
        self.direct: set[str] = set()
        """Tools that are certainly in the array: those of bundles that fit their own budgets."""
        self._count = 0
        self._tokens = 0

    def add(
        self, verdict: BundleVerdict, reason: Reason, evidence: str, *, offered: bool = False
    ) -> None:
        """Show the bundle where its verdict and the budgets permit it, else leave it out with the
        reason. `offered`: behind search alone, whatever its mode is.
        """
        if verdict.id in self.ids:
            return
        if verdict.code is not None:
            self.leave_out(verdict.as_left_out())
            return
        bundle = self._catalog.bundle(verdict.id)
        assert bundle is not None, "a permitted bundle exists"  # noqa: S101 - a caller's bug, not input
        mode = offered_mode(self._catalog, bundle) if offered else None
        presented = as_presented(bundle, mode) if mode is not None else bundle
        wanted, tools, tokens = _in_array(self._catalog, presented, verdict.tools)
        if self._wanted.isdisjoint(wanted):
            fresh = wanted
        else:
            fresh = tuple(t for t in wanted if t not in self._wanted)
        if fresh is not wanted:
            tools, tokens = fitting_size(self._catalog, presented, fresh)
        over = self._over_budget(tools, tokens)
        if over:
            self.leave_out(LeftOut(verdict.id, "over_budget", over))
            return
        self.ids.add(verdict.id)
        self.bundles.append(Chosen(verdict.id, len(self.bundles) + 1, reason, evidence, mode))
        self._wanted.update(fresh)
        self.direct.update(fresh if tools == len(fresh) else ())
        self._count += tools
        self._tokens += tokens
        self.left_out.extend(verdict.refused)

    def leave_out(self, row: LeftOut) -> None:
        """Record why a bundle is not shown, unless it is shown or has a reason already."""
        if row.id not in self._out and row.id not in self.ids:
            self._out.add(row.id)
            self.left_out.append(row)

    def withhold(self, verdict: BundleVerdict, otherwise: LeftOut) -> None:
        """Leave a bundle out with its verdict's reason or, where the verdict permits it, with the
        other reason.
        """
        self.leave_out(otherwise if verdict.permitted else verdict.as_left_out())

    def exposure(self, after: Activation, verdicts: Verdicts, facts: Facts) -> Exposure:
        """Return how much the step is shown, with what earlier steps asked for; leave out what has
        no room.
        """
        if any(entry.tools for entry in after.entries):
            asked = {asked.name for entry in after.entries for asked in entry.tools} - self.direct
            presented = presented_bundles(
                self._catalog,
                self.bundles,
                lambda id_: sorted(asked & {*verdicts.of(id_, facts).tools}),
            )
            placed = place(
                self._catalog, presented, after, room=room_of(self._step, self._count, self._tokens)
            )
            self._count += len(placed.direct)
            self._tokens += sum(row.tokens for row in placed.direct)
            for row in placed.deferred:
                detail = (
                    "asked for before, and the step has no room for it in the array; search still"
                    " finds it"
                )
                self.left_out.append(LeftOut(row.bundle, "over_budget", detail, row.name))
        indexes = indexes_of(self._catalog)
        return Exposure(self._count, self._tokens, indexes.all_tools, indexes.all_tokens)

    def _over_budget(self, tools: int, tokens: int) -> str:
        step = self._step
        if step.max_bundles is not None and len(self.bundles) + 1 > step.max_bundles:
            return f"the step takes at most {step.max_bundles} bundles"
        if step.max_tools is not None and self._count + tools > step.max_tools:
            return (
                f"with it the step would see {self._count + tools} tools, it takes at most"
                f" {step.max_tools}"
            )
        if step.max_tokens is not None and self._tokens + tokens > step.max_tokens:
            return (
                f"with it the step would pay {self._tokens + tokens} tokens, it takes at most"
                f" {step.max_tokens}"
            )
        return ""


def _in_array(
    catalog: Catalog, bundle: Bundle, permitted: tuple[str, ...]
) -> tuple[tuple[str, ...], int, int]:
    """Return the bundle's permitted tools that go into the array, the number that is shown, and
    their tokens. Cached, since the next step usually permits the same.
    """
    known = catalog.memo.setdefault("in_array", {})
    assert isinstance(known, dict)  # noqa: S101 - nobody else writes it
    found = known.get(bundle.id)
    if found is None or found[0] is not bundle or found[1] != permitted:
        wanted = tuple(direct_tools(catalog, bundle, permitted))
        found = known[bundle.id] = (
            bundle,
            permitted,
            (wanted, *fitting_size(catalog, bundle, wanted)),
        )
    in_array: tuple[tuple[str, ...], int, int] = found[2]
    return in_array
