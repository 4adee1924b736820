"""Both stages: files in, a catalog or every problem out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from bundle_router.core.catalog import ApprovalRow, Bundle, Card, Catalog, Policy, Route
from bundle_router.core.catalog.step_address import PARTS, AddressedRow, part_names
from bundle_router.core.config.bundles import BundleResolver
from bundle_router.core.config.config_text import ConfigFile
from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.config.overlay import WrittenConfig, in_order, merge_files
from bundle_router.core.config.positions import Path
from bundle_router.core.config.problem_report import Report
from bundle_router.core.config.router_settings import (
    CheckBinary,
    no_check,
    resolve_local,
    resolve_settings,
)
from bundle_router.core.config.servers import check_globs, check_prefixes, resolve_server
from bundle_router.core.values import EFFECTS, SINKS
from bundle_router.core.values.patterns import is_glob, matches

MAX_ADDRESSES: Final = 1_000
"""Addresses that one row may list."""
MAX_TAINTS: Final = 14
"""Taints that a config may declare. Rows tell sets of taints apart, and `diff` compares each."""


def resolve_routes(
    written: WrittenConfig, resolver: BundleResolver, report: Report
) -> tuple[Route, ...]:
    _check_names(written.routes, "route", report)
    routes = []
    for entry in written.routes:
        value = entry.value
        check_globs(entry, "ask", value.ask or (), report)
        if entry.complete and entry.keys.isdisjoint(("bundles", "ask")):
            hint = "add bundles = [...]; bundles = [] gives a step nothing"
            report.add_about(entry, "", "says neither 'bundles' nor 'ask'", hint)
        ids = resolver.check_ids(entry, "bundles", value.bundles)
        ask = None
        if value.ask is not None:
            ask = tuple(
                _ask(entry, index, pattern, resolver, report)
                for index, pattern in enumerate(value.ask)
            )
        _check_address(entry, report)
        routes.append(replace(value, bundles=tuple(dict.fromkeys(ids)), ask=ask))
    return tuple(routes)


def _ask(
    entry: WrittenEntry[Route], index: int, pattern: str, resolver: BundleResolver, report: Report
) -> str:
    if pattern in resolver.ids:
        return resolver.ids[pattern]
    if not is_glob(pattern):
        if resolver.complete:
            hint = report.suggester.did_you_mean(pattern, resolver.ids)
            report.add_about(entry, ("ask", index), f"unknown bundle {pattern!r}", hint)
    elif resolver.complete and not any(matches(pattern, id_) for id_ in resolver.ids):
        report.add_about(
            entry, ("ask", index), f"{pattern!r} matches no bundle", _list_some(resolver.ids)
        )
    return pattern


def resolve_policies(
    written: WrittenConfig,
    resolver: BundleResolver,
    local_tools: Mapping[str, Set[str]],
    report: Report,
) -> tuple[Policy, ...]:
    _check_names(written.policies, "policy", report)
    policies = []
    for entry in written.policies:
        value = entry.value
        if value.allow == ():
            hint = "say what you mean with deny = ['*'], or leave 'allow' out"
            report.add_about(entry, "allow", "an empty list allows nothing", hint)
        if (
            entry.complete
            and (value.allow, value.min_trust, value.effects) == (None, None, None)
            and not value.deny
        ):
            report.add_about(entry, "", "says nothing", "add allow, deny, min_trust or effects")
        _check_seen(entry, written, report)
        check_globs(entry, "allow", value.allow or (), report)
        check_globs(entry, "deny", value.deny, report)
        targets = _Targets(entry, written, resolver, local_tools, report)
        _check_address(entry, report)
        policies.append(
            replace(
                value,
                allow=None if value.allow is None else targets.check("allow", value.allow),
                deny=targets.check("deny", value.deny),
                effects=None
                if value.effects is None
                else tuple(e for e in EFFECTS if e in value.effects),
            )
        )
    return tuple(policies)


def resolve_approvals(
    written: WrittenConfig,
    bundles: Mapping[str, Bundle],
    resolver: BundleResolver,
    report: Report,
) -> tuple[ApprovalRow, ...]:
    if not written.approvals:
        return ()
    from bundle_router.core.config.approval_rows import ApprovalRowCheck  # few configs have rows

    _check_names(written.approvals, "approvals row", report)
    for entry in written.approvals:
        _check_address(entry, report)
        ApprovalRowCheck(entry, bundles, resolver, report).check()
    return tuple([entry.value for entry in written.approvals])


def _check_seen(entry: WrittenEntry[Policy], written: WrittenConfig, report: Report) -> None:
    """Report what a row says of taints and can't mean."""
    value = entry.value
    _check_taint_words(entry, ("seen",), value.seen, written, report)
    if "seen" not in entry.keys and entry.complete and not value.enforce:
        message = "false is for rows with `seen`: this one would never count"
        report.add_about(entry, "enforce", message, "add seen = [...], or remove it")
    if value.seen and value.untrusted_in_code is not None:
        message = "says what programs may call, and a row with `seen` only narrows later"
        report.add_about(entry, "untrusted_in_code", message, "put it into a row of its own")


class _Targets:
    """Checks the patterns of one policy row.

    A misspelt denial protects nothing, so names must exist.
    """

    def __init__(
        self,
        entry: WrittenEntry[Policy],
        written: WrittenConfig,
        resolver: BundleResolver,
        local_tools: Mapping[str, Set[str]],
        report: Report,
    ) -> None:
        self._entry = entry
        self._written = written
        self._resolver = resolver
        self._local_tools = local_tools
        self._report = report

    def check(self, key: str, patterns: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            self._check_pattern((key, index), pattern) for index, pattern in enumerate(patterns)
        )

    def _check_pattern(self, where: Path, pattern: str) -> str:
        kind, colon, rest = pattern.partition(":")
        if colon and (kind not in ("bundle", "tool", "sends") or not rest):
            hint = "write 'bundle:repo.*', 'tool:repo.read_file', 'sends:outside' or 'repo.*'"
            self._report.add_about(self._entry, where, f"{pattern!r} is not a pattern", hint)
            return pattern
        if colon and kind == "sends":
            self._sink(where, rest)
            return pattern
        if colon and kind == "tool":
            self._tool(where, rest)
            return pattern
        return self._bundle(where, rest if colon else pattern, pattern)

    def _bundle(self, where: Path, id_: str, pattern: str) -> str:
        present_id = self._resolver.ids.get(id_)
        if present_id is not None:
            return f"bundle:{present_id}" if present_id != id_ else pattern
        if is_glob(id_) or not self._resolver.complete:
            return pattern  # a glob that matches nothing is legal: lint says so
        hint = self._meant(id_, is_bare=id_ == pattern)
        self._report.add_about(self._entry, where, f"unknown bundle {id_!r}", hint)
        return pattern

    def _meant(self, id_: str, *, is_bare: bool) -> str:
        """Return what an unknown id is like most: a bundle or, where the pattern does not say which
        is meant, a tool of a server that runs here.
        """
        server, _, tool = id_.partition(".")
        known = self._local_tools.get(server, ())
        tools = [f"{server}.{name}" for name in known if is_bare or name == tool]
        nearest = self._report.suggester.nearest(id_, [*self._resolver.ids, *tools])
        if nearest is None:
            return ""
        if nearest in self._resolver.ids:
            return f"did you mean {nearest!r}?"
        return f"for the tool write 'tool:{nearest}'"

    def _sink(self, where: Path, name: str) -> None:
        if not any(matches(name, sink) for sink in SINKS):
            hint = self._report.suggester.did_you_mean(name, SINKS) or _list_some(SINKS)
            self._report.add_about(self._entry, where, f"unknown sink {name!r}", hint)

    def _tool(self, where: Path, name: str) -> None:
        server, dot, tool = name.partition(".")
        if is_glob(server):
            return
        if not dot:
            self._report.add_about(
                self._entry, where, f"{name!r} is not a tool's name", "write 'tool:server.tool'"
            )
            return
        servers = self._written.known_servers()
        if server not in servers and "servers.toml" not in self._written.unread:
            hint = self._report.suggester.did_you_mean(server, servers)
            self._report.add_about(
                self._entry, where, f"unknown server {server!r} in {name!r}", hint
            )
        entry = self._written.servers.get(server)
        if entry is not None and not entry.value.traits.is_remote:
            tools = self._local_tools.get(server)
        else:
            tools = None
        if tools is not None and not is_glob(tool) and tool not in tools:
            nearest = self._report.suggester.nearest(tool, tools)
            if nearest:
                hint = f"did you mean '{server}.{nearest}'?"
            else:
                hint = f"it has {', '.join(sorted(tools))}"
            self._report.add_about(self._entry, where, f"unknown tool {name!r}", hint)


def _check_address(entry: WrittenEntry[AddressedRow], report: Report) -> None:
    combinations = 1
    for part, names in zip(PARTS, entry.value.patterns, strict=True):
        check_globs(entry, part.name, names, report)
        combinations *= max(1, len(names))
    if combinations > MAX_ADDRESSES:
        message = f"lists more than {MAX_ADDRESSES:,} combinations of {part_names()}"
        report.add_about(entry, "", message, "use globs, or split the row")


def _check_names(
    entries: Iterable[WrittenEntry[AddressedRow]],
    noun: str,
    report: Report,
) -> None:
    names: set[str] = set()
    for entry in entries:
        name = entry.value.name
        if name in names:
            message = f"another {noun} is called {name!r} already"
            report.add_about(entry, "name", message, "names tell rows apart in the log")
        names.add(name)


def _check_taints(written: WrittenConfig, report: Report) -> None:
    """Report declared taints that are too many, and what statements of servers say wrongly."""
    for entry in list(written.taints.values())[MAX_TAINTS:]:
        message = f"is one taint too many: at most {MAX_TAINTS} are declared"
        report.add_about(entry, "", message, "join some that no row tells apart")
    for form in written.forms.values():
        _check_taint_words(form, ("clears",), form.value.clears, written, report)
    for server in (*written.servers.values(), *written.broken_servers):
        for index, row in enumerate(server.value.taints):
            where = ("taints", index)
            check_globs(server, (*where, "tools"), row.tools, report)
            if row.when:  # few configs have one
                from bundle_router.core.catalog.conditions import condition_fault
            for number, condition in enumerate(row.when):
                fault = condition_fault(condition)
                if fault is not None:
                    report.add_about(server, (*where, "when", number), fault)
            if row.returns is None and row.sends is None:
                hint = "add returns = [...] or sends = [...]"
                report.add_about(server, where, "says nothing of these tools", hint)
            _check_taint_words(server, (*where, "returns"), row.returns or (), written, report)


def _check_taint_words(
    entry: WrittenEntry[Any],
    where: Path,
    words: Sequence[str],
    written: WrittenConfig,
    report: Report,
) -> None:
    """Report each word that is no taint: a misspelt one would protect nothing."""
    if "policy.toml" in written.unread:
        return
    known = written.known_taints()
    for index, word in enumerate(words):
        if word not in known:
            hint = report.suggester.did_you_mean(word, sorted(known))
            hint = hint or f"declare it in policy.toml: [taints] {word[:64]} = 'private'"
            report.add_about(entry, (*where, index), f"unknown taint {word[:80]!r}", hint)


def _list_some(names: Iterable[str]) -> str:
    listed = sorted(names)
    if listed:
        return f"there are {', '.join(listed[:6])}{' …' if len(listed) > 6 else ''}"
    return "there are none"


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The result of both stages. The catalog may be used only when the report has no errors."""

    files: tuple[ConfigFile, ...]
    written: WrittenConfig
    catalog: Catalog
    report: Report


def resolve(
    files: Sequence[ConfigFile], cards: Mapping[str, Card], check_binary: CheckBinary = no_check
) -> ResolvedConfig:
    """Read the files, lay them over each other, check them.

    `cards`: the local tools', by canonical name.
    """
    ordered = in_order(files)
    report = Report(ordered)
    written = merge_files(ordered, report)
    local_tools = tools_by_server(cards.values())
    servers = {
        name: resolve_server(entry, local_tools, report) for name, entry in written.servers.items()
    }
    for entry in written.broken_servers:
        # Its transport may be what was wrong: reported, and what is meant is clear.
        is_process = entry.keys.isdisjoint(("transport", "url")) and not entry.keys.isdisjoint(
            ("command", "args", "env")
        )
        repaired = replace(entry.value, transport="stdio") if is_process else entry.value
        resolve_server(replace(entry, value=repaired), local_tools, report)
    check_prefixes(written.servers.values(), report)
    _check_taints(written, report)
    resolver = BundleResolver(written, servers, local_tools, report)
    bundles = resolver.resolve()
    catalog = Catalog(
        servers=servers,
        bundles=bundles,
        routes=resolve_routes(written, resolver, report),
        policies=resolve_policies(written, resolver, local_tools, report),
        approvals=resolve_approvals(written, bundles, resolver, report),
        settings=resolve_settings(written, resolver, report),
        local=resolve_local(written, report, check_binary),
        cards={
            name: card
            for name, card in cards.items()
            if card.server in servers
            and not servers[card.server].traits.is_remote
            and servers[card.server].includes(card.tool)
        },
        taints=tuple(sorted((name, entry.value) for name, entry in written.taints.items())),
        forms=tuple(entry.value for _, entry in sorted(written.forms.items())),
    )
    return ResolvedConfig(tuple(ordered), written, catalog, report)


def tools_by_server(cards: Iterable[Card]) -> dict[str, set[str]]:
    tools: dict[str, set[str]] = {}
    for card in cards:
        tools.setdefault(card.server, set()).add(card.tool)
    return tools
