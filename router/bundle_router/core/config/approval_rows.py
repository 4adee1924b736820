"""Stage 2 for `[[approvals]]`: rows that hold what they say they hold.

A row that covers nothing would let through what somebody believes is held, so each pattern covers
at least one tool of a bundle, and each condition can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bundle_router.core.catalog import ApprovalRow, Bundle, Condition
from bundle_router.core.catalog.conditions import condition_fault
from bundle_router.core.config.bundles import BundleResolver
from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.config.positions import Path
from bundle_router.core.config.problem_report import Report
from bundle_router.core.config.servers import check_globs
from bundle_router.core.values import EFFECTS
from bundle_router.core.values.patterns import first_match, is_glob, matches

_FORMS: Final = "write 'tool:bank.transfer', 'bundle:bank.*' or 'effect:write'"
_WHO: Final = "write 'token:NAME', 'role:ROLE', 'self' or 'client'"
_ALONE: Final = ("self", "client")
"""Approvers that are one person each."""


class ApprovalRowCheck:
    """Reports what is wrong with one row."""

    def __init__(
        self,
        entry: WrittenEntry[ApprovalRow],
        bundles: Mapping[str, Bundle],
        resolver: BundleResolver,
        report: Report,
    ) -> None:
        self._entry = entry
        self._row = entry.value
        self._bundles = bundles
        self._resolver = resolver
        self._report = report

    def check(self) -> None:
        """Report what is wrong with the row."""
        check_globs(self._entry, "calls", self._row.calls, self._report)
        for index, pattern in enumerate(self._row.calls):
            self._check_pattern(("calls", index), pattern)
        self._check_conditions(("unless",), self._row.unless)
        if self._row.standing is not None:
            self._check_conditions(("standing", "where"), self._row.standing.where)
        self._check_approvers()

    # --- calls ------------------------------------------------------------------------------------

    def _check_pattern(self, where: Path, pattern: str) -> None:
        kind, colon, name = pattern.partition(":")
        if not colon or not name or kind not in ("tool", "bundle", "effect"):
            self._add(where, f"{pattern!r} is not a pattern of calls", _FORMS)
        elif kind == "tool":
            self._check_tool(where, name)
        elif kind == "bundle":
            self._check_bundle(where, name)
        else:
            self._check_effect(where, name)

    def _check_tool(self, where: Path, name: str) -> None:
        if "." not in name:
            self._add(where, f"{name!r} is not a tool's name", "write 'tool:server.tool'")
            return
        tools = {tool for bundle in self._bundles.values() for tool in bundle.tools}
        if any(matches(name, tool) for tool in tools) or self._may_cover_open(name):
            return
        if self._resolver.complete:
            hint = self._report.suggester.did_you_mean(name, tools)
            self._add(where, f"no bundle has a tool {name!r}, so nothing would wait", hint)

    def _may_cover_open(self, name: str) -> bool:
        """Return whether the pattern may cover a tool that a glob of a bundle stands for."""
        globs = [glob for bundle in self._bundles.values() for glob in bundle.patterns]
        if is_glob(name):
            servers = _servers_of(globs)
            return any(matches(name.partition(".")[0], server) for server in servers)
        return first_match(globs, name) is not None

    def _check_bundle(self, where: Path, name: str) -> None:
        if any(matches(name, id_) for id_ in self._bundles) or not self._resolver.complete:
            return
        if name in self._resolver.ids:
            hint = f"write its present id: 'bundle:{self._resolver.ids[name]}'"
        else:
            hint = self._report.suggester.did_you_mean(name, self._resolver.ids)
        self._add(where, f"no bundle is called {name!r}, so nothing would wait", hint)

    def _check_effect(self, where: Path, name: str) -> None:
        declared = {effect for bundle in self._bundles.values() for effect in bundle.effects}
        if name in EFFECTS:
            if name not in declared and self._resolver.complete:
                self._add(where, f"no bundle has the effect {name!r}, so nothing would wait")
            return
        hint = self._report.suggester.did_you_mean(name, EFFECTS)
        choices = f"one of {', '.join(EFFECTS)}"
        self._add(where, f"{name!r} is not an effect", hint or choices)

    # --- conditions and approvers -----------------------------------------------------------------

    def _check_conditions(self, where: Path, conditions: Sequence[Condition]) -> None:
        for index, condition in enumerate(conditions):
            fault = condition_fault(condition)
            if fault is not None and self._entry.complete:
                self._add((*where, index), fault)

    def _check_approvers(self) -> None:
        approvers = self._row.approvers
        if approvers is None:
            return
        for index, approver in enumerate(approvers):
            kind, colon, name = approver.partition(":")
            if approver in _ALONE or (colon and name and kind in ("token", "role")):
                continue
            hint = self._report.suggester.did_you_mean(approver, _ALONE)
            self._add(("approvers", index), f"{approver!r} is nobody", hint or _WHO)
        if self._row.persons > len(approvers) and set(approvers) <= set(_ALONE):
            message = f"{self._row.persons} persons have to grant it, and {len(approvers)} may"
            self._add(("persons",), message, "name more approvers")

    def _add(self, where: Path, message: str, suggestion: str = "") -> None:
        self._report.add_about(self._entry, where, message, suggestion)


def _servers_of(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}
