"""Lint rules for `[[approvals]]`: rows that hold nothing, exemptions that overlook something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bundle_router.core.catalog import ApprovalRow, Bundle, Catalog, Condition
from bundle_router.core.catalog.conditions import pointer_parts
from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.values import MODES
from bundle_router.core.values.spelling import Suggester
from bundle_router.review.lint.findings import LintFinding, Subject

Rows = Sequence[WrittenEntry[ApprovalRow]]
Schemas = Mapping[str, Mapping[str, Any]]
"""The input schemas of tools, by their canonical names."""


def approval_never(subject: Subject) -> Iterator[LintFinding]:
    """Yield a row for steps that may see none of its tools."""
    catalog = subject.catalog
    for entry in subject.resolved.written.approvals:
        row = entry.value
        bundles = [one for one in catalog.bundles.values() if _may_hold(catalog, row, one)]
        if any(subject.reach.permitted_on(row, bundle) for bundle in bundles):
            continue
        message = "holds nothing: no step that it covers may see any of its tools"
        yield LintFinding(entry, message, "check its address and the policies")


def _may_hold(catalog: Catalog, row: ApprovalRow, bundle: Bundle) -> bool:
    """Return whether a row is about a tool of a bundle, or may be once its server was asked."""
    return bool(bundle.patterns) or any(row in catalog.approvals_of(tool) for tool in bundle.tools)


def approval_in_code(subject: Subject) -> Iterator[LintFinding]:
    """Yield a row on tools that programs call: each time one is held, its program ends."""
    catalog = subject.catalog
    for entry in subject.resolved.written.approvals:
        for bundle in catalog.bundles.values():
            held_tools = [
                tool for tool in bundle.tools if entry.value in catalog.approvals_of(tool)
            ]
            if held_tools and MODES[bundle.mode].by_program:
                message = (
                    f"programs call {held_tools[0]!r} of {bundle.id!r}, and one that waits ends"
                )
                hint = "show it directly, or have programs called with a key and run again"
                yield LintFinding(entry, message, hint, ("calls",))
                break


def unknown_pointer(subject: Subject) -> Iterator[LintFinding]:
    """Yield a condition on what the schema of no tool of the row has."""
    yield from unknown_places(
        subject.catalog, subject.resolved.written.approvals, _known_schemas(subject.catalog)
    )


def unseen_argument(subject: Subject) -> Iterator[LintFinding]:
    """Yield an exemption that leaves arguments of a tool unlooked at."""
    yield from unseen_places(
        subject.catalog, subject.resolved.written.approvals, _known_schemas(subject.catalog)
    )


def _known_schemas(catalog: Catalog) -> Schemas:
    return {name: card.input_schema() for name, card in catalog.cards.items()}


def unknown_places(catalog: Catalog, rows: Rows, schemas: Schemas) -> Iterator[LintFinding]:
    """Yield a condition whose place a tool's schema does not have: it can never be decided."""
    for entry in rows:
        tools = [tool for tool in schemas if entry.value in catalog.approvals_of(tool)]
        for index, condition in enumerate(entry.value.unless):
            for tool in tools:
                properties = _properties(schemas[tool])
                first = _first_part(condition)
                if properties and first not in properties:
                    message = f"{tool!r} has no argument {first!r}: it always waits"
                    hint = Suggester().did_you_mean(first, properties)
                    yield LintFinding(entry, message, hint, ("unless", index, "at"))
                    break


def unseen_places(catalog: Catalog, rows: Rows, schemas: Schemas) -> Iterator[LintFinding]:
    """Yield an exemption, with the arguments of a tool that it does not look at."""
    for entry in rows:
        looked_at = {_first_part(condition) for condition in entry.value.unless}
        if not looked_at:
            continue
        for tool, schema in schemas.items():
            unseen = sorted(_properties(schema) - looked_at)
            if unseen and entry.value in catalog.approvals_of(tool):
                names = ", ".join(map(repr, unseen[:5])) + (" …" if len(unseen) > 5 else "")
                message = f"exempts calls of {tool!r} whatever is in {names}"
                yield LintFinding(entry, message, "", ("unless",))
                break


def _first_part(condition: Condition) -> str:
    return pointer_parts(condition.at)[0]


def _properties(schema: Mapping[str, Any]) -> set[str]:
    properties = schema.get("properties")
    return set(properties) if isinstance(properties, Mapping) else set()
