"""The verbs `deferral apply | undo | report`: change an agent's settings, and measure the
effect.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from bundle_router.cli.output import heading, print_json, print_result, say, table
from bundle_router.errors import RequestError

from bundle_router_deferral.agent_files import AgentFiles
from bundle_router_deferral.cli.audit_verb import DAY_S, AuditRun
from bundle_router_deferral.comparison import Effect, effect_of
from bundle_router_deferral.findings import Finding
from bundle_router_deferral.journal import Journal, state_folder
from bundle_router_deferral.plans import NEXT_SESSION, ChangePlan, FileEdit, make_plan, show_diff
from bundle_router_deferral.probe import read_results


def journal() -> Journal:
    return Journal(state_folder(os.environ, Path.home()))


def passed_probes(folder: Path) -> dict[str, float]:
    """Return the age in days of each host's newest probe, if that one passed."""
    probes = {}
    for (host, form), row in read_results(folder).items():
        if form == "anthropic" and row.get("result") == "pass":
            with suppress(ValueError, TypeError, KeyError):
                probes[host] = (
                    time.time() - datetime.fromisoformat(row["time"]).timestamp()
                ) / DAY_S
    return probes


def run_apply(arguments: argparse.Namespace) -> int:
    work = AuditRun(arguments)
    for _judged in work.judge_all():
        pass
    findings = work.audit.findings()
    selection = [f for f in findings if not arguments.causes or f.cause in arguments.causes]
    missing = set(arguments.causes) - {finding.cause for finding in selection}
    if missing:
        raise RequestError(
            f"not found: {', '.join(sorted(missing))}",
            advice="`bundle-router deferral audit` lists what is there",
        )
    changes = journal()
    plan = make_plan(
        selection,
        _read,
        work.files.profiles(),
        passed_probes(changes.folder),
        str((work.files.folder / "settings.json").resolve()),
    )
    entry = None
    if arguments.yes and plan.edits:
        with changes.locked():
            entry = changes.apply(plan.edits, _change_facts(plan, work.files, findings))
    _print_plan(plan, entry, arguments)
    if plan.refused and not plan.edits:
        return RequestError.exit_code
    return 0


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def _change_facts(plan: ChangePlan, files: AgentFiles, found: Sequence[Finding]) -> dict[str, Any]:
    """Return the journal's facts about a change: the findings behind it, and the audit's figures as
    the baseline.
    """
    causes = sorted({finding.cause for finding in plan.done})
    projects = {_project_of(edit.path, files) for edit in plan.edits}
    return {
        "kind": "settings",
        "description": ", ".join(causes),
        "findings": [{"cause": finding.cause, "where": finding.where} for finding in plan.done],
        "project": projects.pop() if len(projects) == 1 else "",
        "baseline": [
            {
                "cause": finding.cause,
                "requests": finding.requests,
                "tokens_a_session": finding.tokens_a_session,
            }
            for finding in found
        ],
    }


def _project_of(path: str, files: AgentFiles) -> str:
    """Return the project of a settings file; "" for a file that applies everywhere."""
    file = Path(path)
    if file.parent == files.folder or file.name == ".claude.json":
        return ""
    return str(file.parent if file.name == ".mcp.json" else file.parent.parent)


def _print_plan(
    plan: ChangePlan, entry: dict[str, Any] | None, arguments: argparse.Namespace
) -> None:
    diffs = [show_diff(edit) for edit in plan.edits]
    if arguments.json:
        print_json(
            {
                "applied": entry is not None,
                "change": entry["id"] if entry else None,
                "files": [edit.path for edit in plan.edits],
                "diff": "".join(diffs),
                "refused": [{"file": path, "reason": reason} for path, reason in plan.refused],
                "by_hand": list(plan.manual),
                "notes": list(plan.notes),
            }
        )
        return
    for diff in diffs:
        for line in diff.splitlines():
            say(line)
    for path, reason in plan.refused:
        say(f"{path} is left as it is: {reason}")
    for line in plan.manual:
        say(f"by hand: {line}")
    for line in plan.notes:
        say(f"note: {line}")
    if entry is not None:
        say(f"done as {entry['id']}; `bundle-router deferral undo {entry['id']}` takes it back")
    elif plan.edits:
        say("a dry run: nothing was changed; --yes carries it out")
    elif not plan.refused and not plan.manual:
        say("there is nothing to change")


def carry_out(edits: Sequence[FileEdit], about: dict[str, Any]) -> dict[str, Any]:
    """Change files without an audit's finding, journaled in the same way."""
    changes = journal()
    with changes.locked():
        return changes.apply(edits, about)


def run_undo(arguments: argparse.Namespace) -> int:
    changes = journal()
    with changes.locked():
        identity = arguments.change
        if identity is None:
            applied = [entry["id"] for entry in changes.entries() if entry["state"] == "applied"]
            if not applied:
                raise RequestError("there is no change to undo")
            identity = applied[-1]
        entry = changes.undo(identity)
    paths = [change["path"] for change in entry["changes"]]
    print_result(
        arguments,
        {"undone": identity, "files": paths, "notes": [NEXT_SESSION]},
        f"undone: {identity} ({', '.join(paths)}); {NEXT_SESSION}",
    )
    return 0


def run_report(arguments: argparse.Namespace) -> int:
    entries = journal().entries()
    effects = [effect for entry in entries if (effect := effect_of(entry)) is not None]
    work = AuditRun(arguments)
    for request, _judgement in work.judge_all() if effects else ():
        for effect in effects:
            effect.add(request)
    if arguments.json:
        print_json({**work.tokens_are(), "changes": [effect.as_json() for effect in effects]})
        return 0
    if not effects:
        say("no change was applied yet")
        return 0
    for effect in sorted(effects, key=lambda effect: not effect.hit_rate_fell):
        _print_effect(effect)
    return 0


def _print_effect(effect: Effect) -> None:
    if effect.hit_rate_fell:
        say(
            f"{effect.identity}: the cache hit rate FELL, {effect.before.hit_rate:.0%} →"
            f" {effect.after.hit_rate:.0%}"
        )
    undone = f", undone {effect.undone[:10]}" if effect.undone else ""
    heading(
        f"{effect.identity} {effect.description} (since {effect.applied[:10]}{undone}):"
        f" {effect.state}"
    )
    columns = (
        "",
        "requests>",
        "sessions>",
        "definition tokens a request>",
        "cache-read share>",
        "searches a request>",
    )
    rows = []
    for name, sample in (("before", effect.before), ("after", effect.after)):
        figures = sample.as_json()
        share = f"{sample.hit_rate:.1%}"
        searches = f"{figures['searches_a_request']:.2f}"
        tokens = f"{figures['definition_tokens_a_request']:,}"
        rows.append((name, figures["requests"], figures["sessions"], tokens, share, searches))
    table(columns, rows)
    if effect.state == "pending":
        needed = effect.as_json()["needs_requests"]
        say(f"pending: {needed} requests with recorded definitions are needed on each side")
