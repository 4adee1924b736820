"""Why a tool or bundle is, or is not, shown at a step: every test in order, passed or failed.

The tests use the functions of the decision itself, so they can't disagree with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plan, Plans
from bundle_router.core.decide.policy import Check, checks
from bundle_router.core.records.replayed import conclude
from bundle_router.core.values import (
    Activation,
    Code,
    Decision,
    Facts,
    LeftOut,
    ModelUse,
    Reason,
    Reply,
    SearchUse,
    Step,
)
from bundle_router.core.values.spelling import Suggester


@dataclass(frozen=True, slots=True)
class Chain:
    """The tests on one bundle or one of its tools."""

    bundle: str
    """The bundle's id."""
    tool: str | None
    """The canonical name where it is one tool; None: the whole bundle."""
    checks: tuple[Check, ...]
    """The tests in their order."""
    reason: Reason | None
    """The code that says why it is shown; None: it is not."""
    code: Code | None
    """The first failed test; None: it is shown."""
    detail: str
    """What failed, in words."""

    @property
    def shown(self) -> bool:
        return self.code is None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The output of `explain`."""

    target: str
    """The bundle or tool that was asked about."""
    route: str | None
    """The route that matched; None: none did."""
    source: str
    """What decides the step."""
    asks: bool
    """Whether the mapping left something open."""
    chains: tuple[Chain, ...]
    """The tests on each bundle that the target names."""
    degraded: bool = False
    """Whether a fallback would be used."""
    justification: str = ""
    """The reasons in a sentence."""
    search: SearchUse | None = None
    """What search found, if it was asked."""
    model: ModelUse | None = None
    """The cost and the answer of the question to a model, if one was asked."""

    @property
    def shown(self) -> bool:
        """Whether the target is shown: as a tool when it names one, else as a bundle."""
        chains = [chain for chain in self.chains if chain.tool is not None] or self.chains
        return any(chain.shown for chain in chains)

    @property
    def is_unknown(self) -> bool:
        """Whether the config has no such target."""
        return [chain.code for chain in self.chains] == ["unknown_bundle"]


def explain(
    catalog: Catalog,
    facts: Facts,
    activation: Activation,
    step: Step,
    target: str,
    reply_for: Callable[[Question], Reply | None] | None = None,
) -> Explanation:
    """Explain one bundle id or canonical tool name, or only one of the two: `bundle:repo.x`,
    `tool:repo.x`.

    An unknown target gives one `unknown_bundle` chain.

    If search or a model is asked, `reply_for` returns the reply; without it, or if it returns None,
    the chains show the step as if nobody had answered.
    """
    plans = Plans(catalog)
    outcome = decide(plans, facts, activation, step)
    asks = isinstance(outcome, Question)
    if isinstance(outcome, Question):
        decision = conclude(outcome, reply_for(outcome) if reply_for is not None else None)
    else:
        decision = outcome
    candidates = outcome.candidates if isinstance(outcome, Question) else ()
    chains = tuple(
        _chain(plans, facts, step, decision, candidates, bundle, tool)
        for bundle, tool in _holders(catalog, target)
    )
    if not chains:
        name = target.partition(":")[2] or target
        detail = _unknown_sentence(catalog, target)
        missing = Check("unknown_bundle", False, detail)
        chains = (Chain(name, None, (missing,), None, "unknown_bundle", detail),)
    return Explanation(
        target.partition(":")[2] or target,
        decision.route,
        decision.source,
        asks,
        chains,
        decision.degraded,
        decision.justification,
        decision.search,
        decision.model,
    )


def _unknown_sentence(catalog: Catalog, target: str) -> str:
    """Return a sentence that the target is unknown, with a suggestion."""
    kind, _, name = target.partition(":")
    tools = [tool for bundle in catalog.bundles.values() for tool in bundle.tools]
    if kind == "tool" and name:
        names = tools
        nothing = "no bundle holds a tool of this name"
    elif kind == "bundle" and name:
        names = list(catalog.bundles)
        nothing = "no bundle has this id"
    else:
        names = [*catalog.bundles, *tools]
        nothing = "no bundle has this id and no bundle holds a tool of this name"

    if kind == "tool" and catalog.bundle(name) is not None:
        return f"{nothing}; it is the id of a bundle"
    if kind == "bundle" and name in tools:
        return f"{nothing}; it is the name of a tool"
    hint = Suggester().did_you_mean(name or target, names)
    return f"{nothing}; {hint}" if hint else nothing


def _holders(catalog: Catalog, target: str) -> list[tuple[str, str | None]]:
    """Return the bundles to examine: the bundle of that id, and every bundle with the tool of that
    name.
    """
    kind, name = _target_parts(target)
    holders: list[tuple[str, str | None]] = []
    bundle = catalog.bundle(name)
    if bundle is not None and kind != "tool":
        holders.append((bundle.id, None))
    if kind != "bundle":
        holders += [
            (bundle.id, name) for bundle in catalog.bundles.values() if name in bundle.tools
        ]
    return holders


def _target_parts(target: str) -> tuple[str, str]:
    """Return the kind that a target names (`bundle:…`, `tool:…`), empty if none, and the name."""
    kind, colon, name = target.partition(":")
    return (kind, name) if colon else ("", target)


def _chain(
    plans: Plans,
    facts: Facts,
    step: Step,
    decision: Decision,
    candidates: tuple[str, ...],
    id_: str,
    tool: str | None,
) -> Chain:
    catalog = plans.catalog
    bundle = catalog.bundles[id_]
    plan = plans.of(step, facts.grants)
    # A bundle is shown as long as one of its tools is, so the best of them decides.
    verdict = plan.verdicts.of(id_, facts)
    best = (*verdict.tools, *verdict.patterns, *bundle.tools, *bundle.patterns, None)[0]
    chain_checks = [
        Check("unknown_bundle", True, ""),
        *checks(
            catalog,
            plan.verdicts.ceiling,
            facts,
            bundle,
            tool or best,
            plan.verdicts.taint_test(facts),
        ),
        _mapping_check(plan, decision, candidates, bundle),
    ]

    choice = next((chosen for chosen in decision.bundles if chosen.id == id_), None)
    left_out = _left_out_row(decision, id_, tool)
    if choice is not None and (left_out is None or tool is None):
        return Chain(id_, tool, tuple(chain_checks), choice.reason, None, "")

    failed = next((check for check in chain_checks if not check.passed), None)
    if failed is None:
        # Permitted and asked for, but not shown: a budget or the activation's cap prevented it.
        row = left_out or LeftOut(id_, "not_selected", "a candidate that nobody picked")
        failed = Check(row.code, False, row.detail)
        chain_checks.append(failed)
    return Chain(id_, tool, tuple(chain_checks), None, failed.code, failed.detail)


def _left_out_row(decision: Decision, id_: str, tool: str | None) -> LeftOut | None:
    """Return why the bundle or the tool is left out. That another tool of it was evicted is no
    reason.
    """
    for row in decision.left_out:
        if row.id != id_ or row.tool not in (None, tool):
            continue
        if row.code != "evicted" or row.tool is None:
            return row
    return None


def _mapping_check(
    plan: Plan, decision: Decision, candidates: tuple[str, ...], bundle: Bundle
) -> Check:
    """Check whether anything brings the bundle to this step at all."""
    route = plan.route
    names = {bundle.id, *bundle.aliases}
    if route is not None and names & set(route.bundles):
        return Check("not_mapped", True, f"route {route.name!r} names it")
    if bundle.always:
        return Check("not_mapped", True, "it is shown always")
    if bundle.id in candidates:
        return Check("not_mapped", True, "a candidate: search or the model may pick it")
    choice = next((chosen for chosen in decision.bundles if chosen.id == bundle.id), None)
    if choice is not None:
        stays = choice.reason in ("sticky", "inherited")
        return Check(
            "not_mapped",
            True,
            f"it stays {choice.evidence}" if stays else "it is the declared default",
        )
    held_back = next(
        (row for row in decision.left_out if (row.id, row.code) == (bundle.id, "not_mapped")), None
    )
    if held_back is not None:
        return Check("not_mapped", False, held_back.detail)
    if route is not None:
        return Check("not_mapped", False, f"route {route.name!r} does not name it")
    if bundle.selectable:
        only = ""
    else:
        only = ", and nothing but a route shows this bundle (selectable = false)"
    return Check("not_mapped", False, f"no route covers this step{only}")
