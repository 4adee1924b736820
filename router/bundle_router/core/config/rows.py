"""Stage 2 for routes and policies: rows that name what exists, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final

from bundle_router.core.catalog import Policy, Route
from bundle_router.core.config.bundles import BundleResolver
from bundle_router.core.config.globs import check_globs
from bundle_router.core.config.overlay import Written
from bundle_router.core.config.positions import Path
from bundle_router.core.config.reading import Entry
from bundle_router.core.config.report import Report
from bundle_router.core.config.written.entries import WrittenPolicy, WrittenRoute
from bundle_router.core.models import EFFECTS
from bundle_router.core.models.patterns import is_glob, matches

MAX_ADDRESSES: Final = 1_000
"""Combinations of workflow, role and step that one row may list."""


def resolve_routes(written: Written, resolver: BundleResolver, report: Report) -> tuple[Route, ...]:
    _check_names(written.routes, "route", report)
    routes = []
    for entry in written.routes:
        form = entry.form
        check_globs(entry, "ask", form.ask or (), report)
        if entry.whole and form.bundles is None and form.ask is None:
            hint = "add bundles = [...]; bundles = [] gives a step nothing"
            report.add(entry.file, entry.path, "says neither 'bundles' nor 'ask'", hint)
        ids = resolver.check_ids(entry, "bundles", form.bundles or [])
        ask = None
        if form.ask is not None:
            ask = tuple(_ask(entry, index, pattern, resolver, report) for index, pattern in enumerate(form.ask))
        workflow, role, step = _address(entry, report)
        routes.append(Route(form.name, workflow, role, step, tuple(dict.fromkeys(ids)), ask))
    return tuple(routes)


def _ask(entry: Entry[WrittenRoute], index: int, pattern: str, resolver: BundleResolver, report: Report) -> str:
    if pattern in resolver.ids:
        return resolver.ids[pattern]
    where = (*entry.path, "ask", index)
    if not is_glob(pattern):
        if resolver.complete:
            hint = report.suggester.did_you_mean(pattern, resolver.ids)
            report.add(entry.file, where, f"unknown bundle {pattern!r}", hint)
    elif resolver.complete and not any(matches(pattern, id_) for id_ in resolver.ids):
        report.add(entry.file, where, f"{pattern!r} matches no bundle", _some(resolver.ids))
    return pattern


def resolve_policies(
    written: Written, resolver: BundleResolver, local_tools: Mapping[str, Set[str]], report: Report
) -> tuple[Policy, ...]:
    _check_names(written.policies, "policy", report)
    policies = []
    for entry in written.policies:
        form = entry.form
        if form.allow == []:
            hint = "say what you mean with deny = ['*'], or leave 'allow' out"
            report.add(entry.file, (*entry.path, "allow"), "an empty list allows nothing", hint)
        if entry.whole and form.allow is None and not form.deny and form.min_trust is None and form.effects is None:
            report.add(entry.file, entry.path, "says nothing", "add allow, deny, min_trust or effects")
        check_globs(entry, "allow", form.allow or (), report)
        check_globs(entry, "deny", form.deny, report)
        targets = _Targets(entry, written, resolver, local_tools, report)
        workflow, role, step = _address(entry, report)
        policies.append(
            Policy(
                name=form.name,
                workflow=workflow,
                role=role,
                step=step,
                allow=None if form.allow is None else targets.check("allow", form.allow),
                deny=targets.check("deny", form.deny),
                min_trust=form.min_trust,
                effects=None if form.effects is None else tuple(e for e in EFFECTS if e in form.effects),
            )
        )
    return tuple(policies)


class _Targets:
    """Checks the patterns of one policy row. A misspelt denial protects nothing, so names must exist."""

    def __init__(
        self,
        entry: Entry[WrittenPolicy],
        written: Written,
        resolver: BundleResolver,
        local_tools: Mapping[str, Set[str]],
        report: Report,
    ) -> None:
        self._entry = entry
        self._written = written
        self._resolver = resolver
        self._local_tools = local_tools
        self._report = report

    def check(self, key: str, patterns: list[str]) -> tuple[str, ...]:
        return tuple(self._one((*self._entry.path, key, index), pattern) for index, pattern in enumerate(patterns))

    def _one(self, where: Path, pattern: str) -> str:
        kind, colon, rest = pattern.partition(":")
        if colon and (kind not in ("bundle", "tool") or not rest):
            hint = "write 'bundle:repo.*', 'tool:repo.read_file' or 'repo.*'"
            self._report.add(self._entry.file, where, f"{pattern!r} is not a pattern", hint)
            return pattern
        if colon and kind == "tool":
            self._tool(where, rest)
            return pattern
        return self._bundle(where, rest if colon else pattern, pattern)

    def _bundle(self, where: Path, id_: str, pattern: str) -> str:
        now = self._resolver.ids.get(id_)
        if now is not None:
            return f"bundle:{now}" if now != id_ else pattern
        if is_glob(id_) or not self._resolver.complete:
            return pattern  # a glob that matches nothing is legal: lint says so
        server, _, tool = id_.partition(".")
        if tool in self._local_tools.get(server, ()):
            hint = f"for the tool write 'tool:{id_}'"
        else:
            hint = self._report.suggester.did_you_mean(id_, self._resolver.ids)
        self._report.add(self._entry.file, where, f"unknown bundle {id_!r}", hint)
        return pattern

    def _tool(self, where: Path, name: str) -> None:
        server, dot, tool = name.partition(".")
        if is_glob(server):
            return
        if not dot:
            self._report.add(self._entry.file, where, f"{name!r} is not a tool's name", "write 'tool:server.tool'")
            return
        known = self._written.known_servers()
        if server not in known and "servers.toml" not in self._written.unread:
            hint = self._report.suggester.did_you_mean(server, known)
            self._report.add(self._entry.file, where, f"unknown server {server!r} in {name!r}", hint)
        entry = self._written.servers.get(server)
        tools = self._local_tools.get(server) if entry is not None and entry.form.transport == "local" else None
        if tools is not None and not is_glob(tool) and tool not in tools:
            nearest = self._report.suggester.nearest(tool, tools)
            hint = f"did you mean '{server}.{nearest}'?" if nearest else f"it has {', '.join(sorted(tools))}"
            self._report.add(self._entry.file, where, f"unknown tool {name!r}", hint)


def _address(
    entry: Entry[WrittenRoute] | Entry[WrittenPolicy], report: Report
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    form = entry.form
    for key in ("workflow", "role", "step"):
        check_globs(entry, key, getattr(form, key) or (), report)
    workflow, role, step = tuple(form.workflow or ()), tuple(form.role or ()), tuple(form.step or ())
    if max(1, len(workflow)) * max(1, len(role)) * max(1, len(step)) > MAX_ADDRESSES:
        message = f"lists more than {MAX_ADDRESSES:,} combinations of workflow, role and step"
        report.add(entry.file, entry.path, message, "use globs, or split the row")
    return workflow, role, step


def _check_names(
    entries: Iterable[Entry[WrittenRoute]] | Iterable[Entry[WrittenPolicy]], noun: str, report: Report
) -> None:
    seen: dict[str, Path] = {}
    for entry in entries:
        name = entry.form.name
        if name in seen:
            message = f"another {noun} is called {name!r} already"
            report.add(entry.file, (*entry.path, "name"), message, "names tell rows apart in the log")
        seen.setdefault(name, entry.path)


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    return f"there are {', '.join(shown[:6])}{' …' if len(shown) > 6 else ''}" if shown else "there are none"
