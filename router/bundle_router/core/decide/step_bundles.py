"""The bundles of one step as they are collected: what it is shown and what is left out, within its
budgets.

The order in which bundles are added is the order in which they are shown, and in which they claim
the budgets. The first reason for an id wins, shown or not; so does the first reason why not.
"""

from __future__ import annotations

from bundle_router.core.decide.activation import room_of
from bundle_router.core.decide.plans import ArrayPart, Plans, Verdicts
from bundle_router.core.decide.policy import BundleVerdict
from bundle_router.core.exposure.placing import (
    as_presented,
    fitting_size,
    offered_mode,
    place,
    presented_bundles,
)
from bundle_router.core.values import Activation, Chosen, Exposure, Facts, LeftOut, Reason, Step


class StepBundles:
    """Collects the bundles of one step."""

    def __init__(self, plans: Plans, step: Step) -> None:
        self._plans = plans
        self._catalog = plans.catalog
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
        part = self._plans.in_array(presented, verdict.tools)
        if not self._wanted.isdisjoint(part.names):
            fresh = tuple(tool for tool in part.names if tool not in self._wanted)
            part = ArrayPart(fresh, *fitting_size(self._catalog, presented, fresh))
        over = self._over_budget(part)
        if over:
            self.leave_out(LeftOut(verdict.id, "over_budget", over))
            return
        self.ids.add(verdict.id)
        self.bundles.append(Chosen(verdict.id, len(self.bundles) + 1, reason, evidence, mode))
        self._wanted.update(part.names)
        if part.tools == len(part.names):
            self.direct.update(part.names)
        self._count += part.tools
        self._tokens += part.tokens
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
            every = {tool.name for entry in after.entries for tool in entry.tools}
            asked_names = every - self.direct
            presented = presented_bundles(
                self._catalog,
                self.bundles,
                lambda id_: sorted(asked_names & {*verdicts.of(id_, facts).tools}),
            )
            placement = place(
                self._catalog, presented, after, room=room_of(self._step, self._count, self._tokens)
            )
            self._count += len(placement.direct)
            self._tokens += sum(row.tokens for row in placement.direct)
            for row in placement.deferred:
                detail = (
                    "asked for before, and the step has no room for it in the array; search still"
                    " finds it"
                )
                self.left_out.append(LeftOut(row.bundle, "over_budget", detail, row.name))
        plans = self._plans
        return Exposure(self._count, self._tokens, plans.all_tools, plans.all_tokens)

    def _over_budget(self, part: ArrayPart) -> str:
        step = self._step
        tools = self._count + part.tools
        tokens = self._tokens + part.tokens
        if step.max_bundles is not None and len(self.bundles) + 1 > step.max_bundles:
            return f"the step takes at most {step.max_bundles} bundles"
        if step.max_tools is not None and tools > step.max_tools:
            return f"with it the step would see {tools} tools, it takes at most {step.max_tools}"
        if step.max_tokens is not None and tokens > step.max_tokens:
            return f"with it the step would pay {tokens} tokens, it takes at most {step.max_tokens}"
        return ""
