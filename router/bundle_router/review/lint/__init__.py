"""Reports what is legal in a config but dead or risky, beside its errors: `bundle-router check`.

Each lint rule is one function, with a stable word in the output. Rules for the rules:
1. They run on config without errors, and never make config invalid.
2. They report only the project's own entries, or the shipped ones if there are no others. Rules
   `ACROSS` files also report a shipped entry that a file of the project has made dead or risky:
   their findings in the shipped files, less those when these stand alone.
3. `warning`: it does not do what it appears to do. `risk`: it does, and someone should have
   checked.
4. Each takes about linear time; those that compare pairs compare only pairs that could be alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from bundle_router.core.catalog import Card, Catalog
from bundle_router.core.config.config_text import ConfigFile
from bundle_router.core.config.overlay import WrittenConfig
from bundle_router.core.config.positions import Path
from bundle_router.core.config.problem_report import Report
from bundle_router.core.config.resolve import ResolvedConfig, resolve
from bundle_router.core.config.router_settings import CheckBinary, no_check
from bundle_router.core.decide.reach import Reach
from bundle_router.core.servers.pins.compare import server_differences
from bundle_router.core.servers.pins.reviewed import Pins
from bundle_router.core.servers.warning_light import Neighbourhood, inspect
from bundle_router.core.values.patterns import is_glob, matches
from bundle_router.errors import Problem
from bundle_router.review.lint import approval_rules as approvals
from bundle_router.review.lint import bundle_rules as bundles
from bundle_router.review.lint import row_rules as rows
from bundle_router.review.lint import taint_rules as taints
from bundle_router.review.lint.findings import LintFinding, ReadContent, Subject

__all__ = ["ReadContent", "check", "unused_local"]


def check(
    files: Sequence[ConfigFile],
    *,
    cards: Mapping[str, Card],
    check_binary: CheckBinary = no_check,
    read_content: ReadContent | None = None,
) -> list[Problem]:
    """Return every error or, without errors, what is dead (`warning`) or dangerous (`risk`) in the
    project's own files.

    The shipped files are linted if there are no project files. `read_content` returns
    a skill's file, None if there is none (None itself: not checked, and none is reported as
    missing).
    """
    resolved = resolve(files, cards, check_binary)
    if not resolved.report.has_errors:
        shipped = [file for file in files if file.layer == "shipped"]
        lint(resolved, lambda: resolve(shipped, cards, check_binary), read_content)
    return resolved.report.problems()


_Rule = Callable[[Subject], Iterator[LintFinding]]

RULES: Final[dict[str, tuple[str, _Rule]]] = {
    "unused-server": ("warning", rows.unused_server),
    "plain-http": ("risk", rows.plain_http),
    "stdio-server": ("risk", rows.stdio_server),
    "command-line": ("warning", rows.command_line),
    "dead-reuse": ("warning", rows.dead_reuse),
    "never-permitted": ("warning", bundles.never_permitted),
    "disabled-server": ("warning", bundles.disabled_server),
    "disabled-part": ("risk", bundles.disabled_part),
    "excluded-tool": ("warning", bundles.excluded_tool),
    "over-budget": ("warning", bundles.over_budget),
    "missing-companion": ("warning", bundles.missing_companion),
    "missing-skill": ("warning", bundles.missing_skill),
    "unread-skill": ("warning", bundles.unread_skill),
    "hidden-tool": ("warning", bundles.hidden_tool),
    "alike-bundles": ("warning", bundles.alike_bundles),
    "effects-differ": ("risk", bundles.effects_differ),
    "always-effects": ("risk", bundles.always_effects),
    "alias-shadowed": ("warning", bundles.alias_shadowed),
    "unreachable-route": ("warning", rows.unreachable_route),
    "denied-route": ("warning", rows.denied_route),
    "disabled-in-route": ("warning", rows.disabled_in_route),
    "missing-table": ("warning", rows.missing_table),
    "grantless-policy": ("warning", rows.grantless_policy),
    "unrouted-name": ("warning", rows.unrouted_name),
    "unmatched-pattern": ("warning", rows.unmatched_pattern),
    "allow-everything": ("risk", rows.allow_everything),
    "exec-everywhere": ("risk", rows.exec_everywhere),
    "denied-elsewhere": ("risk", rows.denied_elsewhere),
    "approval-never": ("warning", approvals.approval_never),
    "approval-in-code": ("risk", approvals.approval_in_code),
    "unknown-pointer": ("risk", approvals.unknown_pointer),
    "unseen-argument": ("risk", approvals.unseen_argument),
    "never-in-force": ("warning", taints.never_in_force),
    "unstated-taint": ("warning", taints.unstated_taint),
    "trifecta": ("risk", taints.trifecta),
    "hosts-of-strangers": ("risk", taints.hosts_of_strangers),
    "no-room": ("warning", rows.no_room),
    "learned-rank": ("warning", rows.learned_rank),
    "risky-default": ("risk", rows.risky_default),
    "disabled-default": ("warning", rows.disabled_default),
}
"""Every rule: its word, its level, its function.

`stray-file` is reported while reading (see `overlay`).
"""

ACROSS: Final = frozenset(
    {
        "denied-route",
        "disabled-in-route",
        "missing-table",
        "denied-elsewhere",
        "effects-differ",
        "exec-everywhere",
        "disabled-part",
    }
)


def lint(
    resolved: ResolvedConfig,
    shipped: Callable[[], ResolvedConfig],
    read_content: ReadContent | None = None,
) -> None:
    """Add all rules' findings to the report.

    `shipped` resolves the shipped files alone, when needed.
    """
    alone = all(file.layer == "shipped" for file in resolved.files)
    before: set[tuple[str, str, Path]] | None = None
    shipped = cache(shipped)
    for word, finding in _findings(resolved, shipped, read_content):
        file = finding.entry.file
        hint = finding.suggestion
        if file.layer == "shipped" and not alone:
            if word not in ACROSS:
                continue
            if before is None:
                before = {_place(*pair) for pair in _findings(shipped(), shipped, read_content)}
            if _place(word, finding) in before:
                continue
            hint += f"; this is the shipped file, which your own {file.name} would lie over"
        path = (*finding.entry.path, *finding.path)
        resolved.report.add(file, path, finding.message, hint, level=RULES[word][0], rule=word)


def _findings(
    resolved: ResolvedConfig,
    shipped: Callable[[], ResolvedConfig],
    read_content: ReadContent | None,
) -> Iterator[tuple[str, LintFinding]]:
    subject = Subject(resolved, Reach(resolved.catalog), shipped, read_content)
    for word, (_, rule) in RULES.items():
        yield from ((word, finding) for finding in rule(subject))


def _place(word: str, finding: LintFinding) -> tuple[str, str, Path]:
    return word, finding.entry.file.name, (*finding.entry.path, *finding.path)


def unpinned_servers(catalog: Catalog, pins: Mapping[str, Pins]) -> tuple[str, ...]:
    """Return the servers that bundles use and nobody has reviewed: none of their tools can be
    used.
    """
    used = {name for bundle in catalog.bundles.values() for name in bundle.servers}
    return tuple(
        server.name
        for server in catalog.servers.values()
        if server.enabled
        and server.traits.is_remote
        and server.name in used
        and server.name not in pins
    )


def pin_problems(
    catalog: Catalog, pins: Mapping[str, Pins], folder: str, written: WrittenConfig
) -> Iterator[Problem]:
    """Yield warnings and risks, by server.

    `folder` is the folder of pin files as messages name it; `written` is the parsed config.
    """
    everyone = Neighbourhood(catalog.cards.values())
    for name, server_pins in pins.items():
        server = catalog.servers.get(name)
        if server is None:
            continue
        development = "--development " if server.traits.starts_process else ""
        file = f"{folder}/{name}.json"
        again = f"review it: bundle-router pin {development}{name}"
        for row in server_differences(server_pins, None, server, ()):
            message = (
                f"server {name!r} was reviewed with another {row.path.rpartition('/')[2]}: no tool"
                " of it can be used"
            )
            yield Problem(file, 0, "origin", message, again, "warning", "pin-origin")
        yield from _unpinned(written, server_pins, again)
        yield from _pinned_places(catalog, written, server_pins)
        yield from _lights(server_pins, file, everyone)


def _unpinned(written: WrittenConfig, known: Pins, again: str) -> Iterator[Problem]:
    """Yield the places where bundles name, or mean by a glob, no pinned tool of a server, and those
    where a policy names one that is spelt like a pinned tool.
    """
    report = Report(())
    names = [f"{known.server}.{tool}" for tool in known.names]
    for entry in written.bundles.values():
        for index, tool in enumerate(entry.value.tools):
            if tool.startswith(f"{known.server}.") and not any(
                matches(tool, name) for name in names
            ):
                message = f"{tool!r} is none of the {len(names)} pinned tools"
                hint = report.suggester.did_you_mean(tool, names) or again
                place = (*entry.path, "tools", index)
                report.add(entry.file, place, message, hint, level="warning", rule="unpinned-tool")
    for policy in written.policies:
        for key, index, pattern in rows.targets_of(policy.value):
            kind, _, tool = pattern.partition(":")
            if kind != "tool" or not tool.startswith(f"{known.server}."):
                continue
            if is_glob(tool) or tool in names:
                continue
            nearest = report.suggester.nearest(tool.partition(".")[2], known.names)
            if nearest is not None:  # else it may be a tool that nobody approved yet
                place = (*policy.path, key, index)
                message = f"{tool!r} is none of the {len(names)} pinned tools"
                hint = f"did you mean '{known.server}.{nearest}'?"
                report.add(policy.file, place, message, hint, level="warning", rule="unpinned-tool")
    yield from report.problems()


def _pinned_places(catalog: Catalog, written: WrittenConfig, known: Pins) -> Iterator[Problem]:
    """Yield what the pinned schemas show of the conditions in rows of approvals."""
    report = Report(())
    schemas = {
        f"{known.server}.{pin.tool}": json.loads(pin.definition).get("inputSchema", {})
        for pin in known.pins
    }
    for word, rule in (
        ("unknown-pointer", approvals.unknown_places),
        ("unseen-argument", approvals.unseen_places),
    ):
        for finding in rule(catalog, written.approvals, schemas):
            path = (*finding.entry.path, *finding.path)
            report.add(
                finding.entry.file,
                path,
                finding.message,
                finding.suggestion,
                level="risk",
                rule=word,
            )
    yield from report.problems()


def _lights(known: Pins, file: str, everyone: Neighbourhood) -> Iterator[Problem]:
    for pin in known.pins:
        verdict = inspect(
            json.loads(pin.definition),
            server=known.server,
            instructions=known.instructions,
            neighbours=everyone,
        )
        if verdict.warns:
            excerpts = "; ".join(f"{f.rule}: {f.seen!r}" for f in verdict.findings[:3])
            message = f"the text of {known.server}.{pin.tool} {verdict.charge} ({excerpts})"
            yield Problem(file, 0, f"tools.{pin.tool}", message, "", "risk", "poisoned-text")
