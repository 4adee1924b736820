"""The verbs `deferral run | install | uninstall | status | probe`: the proxy beside an agent, and
testing a gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.system import missing_modules
from bundle_router.cli.output import print_json, print_result, say, table
from bundle_router.errors import NotInstalled, RequestError

from bundle_router_deferral.agents import (
    AgentPlaces,
    agent_of,
    find_agent,
    launcher_text,
    run_agent,
)
from bundle_router_deferral.cli.change_verbs import carry_out, journal
from bundle_router_deferral.journal import state_folder
from bundle_router_deferral.numbers import FILE, read_numbers
from bundle_router_deferral.plans import NEXT_SESSION, FileEdit
from bundle_router_deferral.probe import TOOLS, keep_result, probe, read_results
from bundle_router_deferral.rewriting import DeferralRules

EXTRA: Final = ("starlette", "uvicorn", "httptools")


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- AGENT …",
        help="the agent and its arguments",
    )
    parser.add_argument(
        "--upstream",
        default="",
        help="base URL to forward to (default: the one the agent would ask)",
    )
    parser.add_argument(
        "--runs", default="", help="folder for the numbers (default: runs where it exists)"
    )
    parser.add_argument(
        "--keep", action="append", default=[], metavar="GLOB", help="tools that stay upfront"
    )
    parser.add_argument(
        "--defer", action="append", default=[], metavar="GLOB", help="tools to defer, too"
    )
    parser.add_argument(
        "--model", action="append", default=[], help="a further model that can search tools"
    )
    parser.add_argument(
        "--min-tools", type=int, default=10, help="least number of tools to defer (default: 10)"
    )


def _state() -> Path:
    return state_folder(os.environ, Path.home())


def _runs(named: str) -> Path:
    if named:
        return Path(named)
    if Path("runs").is_dir():
        return Path("runs")
    return _state() / "runs"


def run_run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise RequestError(
            "no agent is named", advice="write e.g. `bundle-router deferral run -- opencode`"
        )
    places = AgentPlaces(Path.home(), Path.cwd(), os.environ)
    rules = DeferralRules(
        arguments.min_tools, tuple(arguments.keep), tuple(arguments.defer), tuple(arguments.model)
    )
    runs = _runs(arguments.runs)
    old_files = set(runs.glob(f"deferral-*/{FILE}"))
    say = partial(print, "bundle-router:", file=sys.stderr)
    status = asyncio.run(
        run_agent(command, places, rules, _state(), runs, upstream=arguments.upstream, say=say)
    )
    if arguments.json:
        folders = [path.parent for path in set(runs.glob(f"deferral-*/{FILE}")) - old_files]
        sums = [{"folder": str(folder), **read_numbers(folder)} for folder in folders]
        print_json({"agent": agent_of(command), "status": status, "proxies": sums})
    return status


def run_install(arguments: argparse.Namespace) -> int:
    if missing := missing_modules(EXTRA):
        raise NotInstalled(
            f"the proxy needs {' and '.join(missing)}",
            advice="pip install ../checkout '../checkout/router/deferral[proxy]'",
        )
    folder = _state() / "bin"
    launcher = folder / arguments.agent
    program = find_agent(arguments.agent, os.environ.get("PATH", ""), folder)
    if program is None:
        raise RequestError(f"{arguments.agent!r} is not on the path")
    if launcher.exists():
        raise RequestError(f"{arguments.agent} is installed already", advice="uninstall it first")
    edit = FileEdit(str(launcher), None, launcher_text(arguments.agent, program), 0o755)
    about = {
        "kind": "proxy",
        "description": f"launcher of {arguments.agent}",
        "agent": arguments.agent,
    }
    entry = carry_out([edit], about) if arguments.yes else None
    line = f'export PATH="{folder}:$PATH"'
    on_path = str(folder) in os.environ.get("PATH", "").split(os.pathsep)
    if arguments.json:
        print_json(
            {
                "installed": entry is not None,
                "change": entry["id"] if entry else None,
                "launcher": str(launcher),
                "program": program,
                "profile_line": None if on_path else line,
                "notes": [NEXT_SESSION],
            }
        )
        return 0
    verb = "starts" if entry else "would start"
    say(f"{launcher} {verb} {program} behind a proxy of its own, and alone where that fails")
    if not on_path:
        say(f"add this line to your shell's profile (it is never edited here): {line}")
    say(f"note: {NEXT_SESSION}")
    if entry is None:
        say("a dry run: nothing was written; --yes carries it out")
    return 0


def run_uninstall(arguments: argparse.Namespace) -> int:
    changes = journal()
    with changes.locked():
        settings = [
            entry
            for entry in _installed(changes.entries())
            if entry.get("agent") == arguments.agent
        ]
        if not settings:
            raise RequestError(
                f"{arguments.agent} is not installed", advice="see `bundle-router deferral status`"
            )
        change = settings[-1]["id"]
        if arguments.yes:
            changes.undo(change)
    if arguments.yes:
        lines = [f"uninstalled: {arguments.agent} starts as it did before"]
    else:
        lines = [f"{arguments.agent} would start as it did before"]
    lines.append(f"note: {NEXT_SESSION}")
    if not arguments.yes:
        lines.append("a dry run: nothing was written; --yes carries it out")
    print_result(
        arguments,
        {
            "agent": arguments.agent,
            "uninstalled": arguments.yes,
            "change": change,
            "notes": [NEXT_SESSION],
        },
        "\n".join(lines),
    )
    return 0


def run_status(arguments: argparse.Namespace) -> int:
    state = _state()
    entries = journal().entries()
    agents = [_agent_row(entry, state / "bin") for entry in _installed(entries)]
    runs = _runs(arguments.runs)
    proxies = [
        {"folder": str(path.parent), **read_numbers(path.parent)}
        for path in sorted(runs.glob(f"deferral-*/{FILE}"))[-5:]
    ]
    changes = [
        {name: entry.get(name) for name in ("id", "state", "kind", "description", "time")}
        for entry in entries
    ]
    tables = {
        "agents": agents,
        "changes": changes,
        "probes": [*read_results(state).values()],
        "proxies": proxies,
    }
    if not missing_modules(EXTRA):
        extra = "installed"
    else:
        extra = f"missing: {', '.join(missing_modules(EXTRA))}"
    if arguments.json:
        print_json({"state_folder": str(state), "proxy_extra": extra, **tables})
        return 0
    say(f"proxy extra: {extra}; state: {state}")
    for title, rows in tables.items():
        if rows:
            say()
            table(tuple(rows[0]), (tuple(row.values()) for row in rows), title=title)
    return 0


def _installed(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        entry for entry in entries if entry.get("kind") == "proxy" and entry["state"] == "applied"
    ]


def _agent_row(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    launcher = folder / entry["agent"]
    program = find_agent(entry["agent"], os.environ.get("PATH", ""), folder)
    first = next(
        (
            f
            for f in os.environ.get("PATH", "").split(os.pathsep)
            if (Path(f) / entry["agent"]).is_file()
        ),
        "",
    )
    return {
        "agent": entry["agent"],
        "launcher": str(launcher) if launcher.exists() else "gone",
        "program": program or "not found",
        "in_use": (
            "yes" if first and Path(first) == folder else "no: its folder is not first on the path"
        ),
        "change": entry["id"],
    }


def add_probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default="", help="base URL to ask (default: the one Claude Code would ask)"
    )
    parser.add_argument(
        "--form", choices=("anthropic", "openai"), default="anthropic", help="the API it speaks"
    )
    parser.add_argument(
        "--model", default="", help="the model to name (default: claude-sonnet-4-5, or gpt-5.4)"
    )


def run_probe(arguments: argparse.Namespace) -> int:
    base = arguments.url or (
        AgentPlaces(Path.home(), Path.cwd(), os.environ).upstream("claude")
        if arguments.form == "anthropic"
        else os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com"
    )
    model = arguments.model or ("claude-sonnet-4-5" if arguments.form == "anthropic" else "gpt-5.4")
    address = base.rpartition("@")[2].split("?")[0]
    if not arguments.yes:
        sentence = (
            f"two requests of {TOOLS} made-up tools, 16 tokens of answer each, to {address} with"
            f" model {model}"
        )
        print_result(
            arguments,
            {"asked": False, "would_send": sentence},
            f"this would send {sentence}; --yes sends them (they are billed)",
        )
        return 0
    result = probe(base, arguments.form, model, os.environ)
    keep_result(_state(), result)
    if arguments.json:
        print_json(asdict(result))
    else:
        words = {
            "pass": "it takes deferral, and bills less",
            "ignored": "it takes the request, and bills all the same",
            "refused": f"it refuses the request ({result.status})",
        }
        say(f"{result.host}: {result.result}: {words[result.result]}")
        say(f"input tokens: {result.tokens_upfront:,} upfront, {result.tokens_deferred:,} deferred")
        if result.form == "openai":
            say("a report only: the proxy speaks Anthropic's Messages API")
    return 0 if result.result == "pass" else 1
