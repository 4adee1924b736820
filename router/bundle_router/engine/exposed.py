"""What a run may call now: what its current decision showed and still holds, and why not the rest."""

from __future__ import annotations

from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.decide import permitted_tools, plan_for
from bundle_router.core.models import Code, Facts
from bundle_router.core.models.patterns import matches
from bundle_router.engine.run import Current

OUTDATED: Final = "the config changed since its last step was decided, so the step has to be routed again"


def exposed_now(catalog: Catalog, facts: Facts, current: Current) -> dict[str, str]:
    """The tools of the current decision that are still permitted, each with the bundle that holds it.

    `facts` are fresh, with the ancestors' grants of now. What the decision did not show is not in it, even if it would
    be permitted by now: that takes another `route`.
    """
    if current.outdated:
        return {}
    ids = current.decision.bundle_ids
    shown = permitted_tools(catalog, current.facts, current.step, ids)
    if facts == current.facts:
        return shown
    still = permitted_tools(catalog, facts, current.step, ids)
    return {tool: bundle for tool, bundle in still.items() if tool in shown}


def why_not(catalog: Catalog, facts: Facts, current: Current, tool: str) -> tuple[Code, str]:
    """Why a tool is not exposed by the current decision: the first code of its best bundle, as `explain` would say."""
    holders = [bundle for bundle in catalog.bundles.values() if tool in bundle.tools]
    if not holders:
        return _why_not_listed(catalog, facts, current, tool)
    if current.outdated:
        return "not_mapped", OUTDATED
    plan = plan_for(catalog, current.step, facts.grants)
    shown = set(current.decision.bundle_ids)
    first: tuple[Code, str] | None = None
    for bundle in sorted(holders, key=lambda b: b.id not in shown):
        verdict = plan.verdicts.of(bundle.id, facts)
        for row in verdict.refused:
            if row.tool == tool:
                first = first or (row.code, row.detail)
        if verdict.code is not None:
            first = first or (verdict.code, verdict.detail)
        elif tool in verdict.tools:
            if bundle.id in shown:
                return "not_mapped", "it became available after this step was decided: route the step again"
            return "not_mapped", f"bundle {bundle.id!r} holds it and is not shown at this step"
    return first or ("not_mapped", "no shown bundle holds it")


def _why_not_listed(catalog: Catalog, facts: Facts, current: Current, tool: str) -> tuple[Code, str]:
    """Why a tool that no bundle is known to hold is not there: its server may have had no chance to list it."""
    name = tool if "." in tool else tool.removeprefix("mcp__").replace("__", ".", 1)
    plan = plan_for(catalog, current.step, facts.grants)
    for bundle in catalog.bundles.values():
        if any(matches(pattern, name) for pattern in bundle.patterns):
            verdict = plan.verdicts.of(bundle.id, facts)
            rows = [row for row in verdict.refused if row.tool in bundle.patterns and matches(row.tool, name)]
            if rows:
                return rows[0].code, rows[0].detail
    return "unknown_bundle", "no bundle holds a tool of this name"
