"""The verb `bundle-router deferral audit`: reads transcripts and config, and prints its
findings.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.tokenizer import token_counter
from bundle_router.cli.output import heading, print_json, progress, say, table
from bundle_router.errors import NotInstalled, RouterError

from bundle_router_deferral.agent_files import (
    AgentFiles,
    TranscriptReader,
    cause_table,
    router_savings,
)
from bundle_router_deferral.causes import AgentSettings, RequestJudgement
from bundle_router_deferral.findings import Audit, Finding, RouterSavings, command_for, sum_servers
from bundle_router_deferral.transcript import BYTES_PER_TOKEN, RequestFacts

SCHEMA: Final = "bundle-router.deferral/1"
DAY_S: Final = 86_400


def add_sources(parser: argparse.ArgumentParser, *, positional: bool = True) -> None:
    """Add the options for the sources to read."""
    if positional:
        name, options = ("paths", {})
    else:
        name, options = ("--transcripts", {"dest": "paths", "default": []})
    parser.add_argument(
        name,
        nargs="*",
        help="transcripts or folders of them (default: those of Claude Code)",
        **options,  # type: ignore[arg-type]
    )
    parser.add_argument(
        "--days", type=float, default=0, help="only transcripts that were changed in the last DAYS"
    )
    parser.add_argument(
        "--count", action="store_true", help="count tokens with the tokenizer instead of estimating"
    )


def _transcripts(arguments: argparse.Namespace, files: AgentFiles) -> list[Path]:
    since = 0.0
    if arguments.days:
        since = time.time() - arguments.days * DAY_S
    if not arguments.paths:
        return files.transcripts(since)

    paths: list[Path] = []
    for path in map(Path, arguments.paths):
        if path.is_dir():
            paths += sorted(path.rglob("*.jsonl"))
        else:
            paths.append(path)
    return [path for path in paths if path.stat().st_mtime >= since]


class AuditRun:
    """One audit: its sources, judgements and findings."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.files = AgentFiles(Path.home(), os.environ)
        self.table = cause_table()
        self.audit = Audit(self.table)
        self.paths = _transcripts(arguments, self.files)
        count = token_counter() if arguments.count else None
        if arguments.count and count is None:
            raise NotInstalled(
                "no tokenizer is installed", advice="leave out --count: tokens are then estimated"
            )
        self.reader = TranscriptReader(self.table, count)
        self.counted = count is not None

    def judge_all(self) -> Iterator[tuple[RequestFacts, RequestJudgement]]:
        """Read everything once, and yield each request with its judgement."""
        self._add_config("")
        projects: set[str] = set()
        with progress(
            "reading transcripts", sum(path.stat().st_size for path in self.paths)
        ) as advance:
            for request in self.reader.read(self.paths):
                if request.cwd not in projects and len(projects) < 1_000:
                    projects.add(request.cwd)
                    self._add_config(request.cwd)
                settings: AgentSettings = self.files.settings(request.cwd)
                yield request, self.audit.add(request, settings)
                advance(self.reader.at)

    def _add_config(self, project: str) -> None:
        gateway = self.files.settings(project).gateway
        self.audit.add_config(*self.files.config(project), gateway)

    def tokens_are(self) -> dict[str, Any]:
        if self.counted:
            return {"tokens": "counted", "tokenizer": "cl100k_base"}
        return {"tokens": "estimated", "bytes_per_token": BYTES_PER_TOKEN}


def run_audit(arguments: argparse.Namespace) -> int:
    try:
        work = AuditRun(arguments)
        rows = [request_row(*pair) for pair in work.judge_all() if arguments.requests]
        savings = router_savings(Path(arguments.runs))
    except (RouterError, OSError) as error:
        print(f"bundle-router: {error}", file=sys.stderr)
        return 2
    findings = work.audit.findings()
    document = audit_document(work, findings, savings)
    if arguments.json:
        print_json(document | ({"each_request": rows} if arguments.requests else {}))
    else:
        print_audit(work, findings, savings)
        if arguments.requests:
            columns = ("time", "session", "model", "state", "evidence", "outcome", "cause")
            table(columns, (tuple(row[name] for name in columns) for row in rows))
    return 1 if findings else 0


def request_row(request: RequestFacts, judgement: RequestJudgement) -> dict[str, Any]:
    return {
        **{
            name: getattr(request, name)
            for name in ("session", "time", "version", "model", "sub_agent")
        },
        **{name: getattr(judgement, name) for name in ("state", "evidence")},
        "outcome": request.outcome,
        **{name: getattr(judgement, name) for name in ("cause", "where")},
        **{name: getattr(request, name) for name in ("inventory", "searches")},
        "upfront": [asdict(size) for size in (request.tools.upfront if request.tools else ())],
        "deferred": request.tools.deferred if request.tools else None,
    }


def audit_document(
    work: AuditRun, findings: list[Finding], savings: RouterSavings
) -> dict[str, Any]:
    audit = work.audit
    return {
        "schema": SCHEMA,
        "transcripts": len(work.paths),
        "lines": work.reader.lines,
        "damaged_lines": work.reader.damaged,
        "unreadable_files": work.reader.unreadable,
        **work.tokens_are(),
        "requests": {
            "served": audit.served,
            "refused": audit.outcomes["refused"],
            "unanswered": audit.outcomes["unanswered"],
            "states": [
                {"state": state, "evidence": evidence, "requests": count}
                for (state, evidence), count in sorted(audit.states.items())
            ],
        },
        "findings": [{**finding.as_json(), "type": command_for(finding)} for finding in findings],
        "servers": [{"server": server, **share} for server, share in sum_servers(findings)],
        "profiles": [
            {"file": line.path, "line": line.line, "name": line.name, "text": line.text}
            for line in work.files.profiles()
        ],
        "router": savings.as_json(),
    }


def print_audit(work: AuditRun, findings: list[Finding], savings: RouterSavings) -> None:
    audit = work.audit
    states = {
        state: sum(n for (s, _), n in audit.states.items() if s == state)
        for state, _ in audit.states
    }
    counts = ", ".join(
        f"{states[state]:,} {state}"
        for state in ("on", "off", "unknown", "none")
        if state in states
    )
    say(
        f"{audit.served:,} requests in {len(work.paths):,} transcripts:"
        f" {counts or 'nothing recorded'}"
    )
    for count, noun in (
        (audit.outcomes["refused"], "refused and made again"),
        (audit.outcomes["unanswered"], "without an answer"),
        (work.reader.damaged, "damaged lines, skipped"),
        (work.reader.unreadable, "unreadable files"),
    ):
        if count:
            say(f"{noun}: {count:,}")
    if findings:
        say()
        heading("what was found")
        columns = (
            "finding",
            "since",
            "requests>",
            "sessions>",
            "tokens a session>",
            "why",
            "what to type",
        )
        table(columns, map(_finding_cells, findings))
        for finding in findings:
            facts = "; ".join(
                filter(None, (finding.where, finding.detail.replace("recorded", "", 1).strip(": ")))
            )
            say(f"  {finding.cause}: {f'{facts}. ' if facts else ''}{finding.fix}")
        print_servers(findings, work)
    for line in work.files.profiles():
        say(
            f"{line.path}:{line.line}: {line.text}   (shell profiles are never edited: change this"
            " line yourself)"
        )
    if savings.decisions:
        say()
        say(
            f"the router's own runs: {savings.decisions:,} decisions in {savings.runs:,} runs"
            f" showed {savings.shown_tokens:,} of {savings.all_tokens:,} tokens of definitions"
        )


def _finding_cells(finding: Finding) -> tuple[object, ...]:
    frequency = (
        f"{finding.requests:,} of {finding.of:,}" if finding.requests else "set, not seen yet"
    )
    cost = f"{finding.tokens_a_session:,}" if finding.tokens_a_session else ""
    return (
        finding.cause,
        finding.since[:10],
        frequency,
        finding.sessions or "",
        cost,
        finding.title,
        command_for(finding),
    )


def print_servers(findings: list[Finding], work: AuditRun) -> None:
    servers = sum_servers(findings)
    if not servers:
        return
    if work.counted:
        how = "tokens are counted (cl100k_base)"
    else:
        how = f"tokens are estimated: {BYTES_PER_TOKEN} bytes each"
    say()
    heading(f"definitions that went out and need not have ({how})")
    columns = (
        "server",
        "tools>",
        "bytes>",
        "tokens>",
        "of these cache writes>",
        "cache reads>",
        "uncached>",
    )
    names = ("tools", "bytes", "tokens", "cache_write", "cache_read", "plain")
    table(columns, ((server, *(f"{share[name]:,}" for name in names)) for server, share in servers))
