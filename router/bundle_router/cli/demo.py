"""`bundle-router demo`: the main job, on a copy of the current repository."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bundle_router.cli.demo_mcp import call_cells, run_mcp
from bundle_router.cli.local import local_servers
from bundle_router.cli.output import heading, say, say_whole, table
from bundle_router.cli.route import new_run_id
from bundle_router.cli.shared_arguments import add_config, add_runs, config_folder
from bundle_router.demo.repository import Repository, copy_of, make
from bundle_router.demo.workflow import DemoStep, config_with_model, is_installed, run_open_questions, server
from bundle_router.demo.workflow import run as run_workflow
from bundle_router.review.sentences import selection_lines
from bundle_router.wiring.catalogs import LocalServers


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mcp", action="store_true", help="use real tool servers of npm and PyPI, where installed")
    add_config(parser)
    add_runs(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.wiring import load_catalog

    if arguments.mcp:
        return run_mcp(arguments.runs)
    run_id = f"demo-{new_run_id()}"
    local = local_servers(arguments)
    load_catalog(config_folder(arguments), local=local)  # so that errors name the user's own files
    with ExitStack() as clean_up:
        folder = Path(clean_up.enter_context(tempfile.TemporaryDirectory(prefix="bundle-router-demo-")))
        repository = copy_of(Path.cwd(), folder / "copy") or make(folder / "slug")
        base_url = clean_up.enter_context(server()).base_url if is_installed() else None
        (folder / "config").mkdir()
        own = config_folder(arguments)
        config = config_with_model(Path(own) if own else None, folder / "config", base_url)
        mapped, unmapped = asyncio.run(_run(config, arguments.runs, run_id, repository, local))
    _show(mapped, repository)
    _show_asked(unmapped)
    _point_on(arguments.runs, run_id)
    return 0


async def _run(
    config: Path, runs: str, run_id: str, repository: Repository, local: LocalServers
) -> tuple[list[DemoStep], list[DemoStep]]:
    """Return the steps that routes cover, and those that they don't. A thread loads the model's libraries meanwhile."""
    from bundle_router.wiring import Router

    async with Router.open(config, runs=runs, workspace=repository.root, local=local) as router:
        warming = asyncio.create_task(router.warm_up())
        mapped = [step async for step in run_workflow(router, run_id, repository)]
        unmapped = [step async for step in run_open_questions(router, f"{run_id}-spike", warming)]
    return mapped, unmapped


def _show(steps: list[DemoStep], repository: Repository) -> None:
    made = "a small repository made for this"
    whence = f"a copy of the repository {repository.origin}" if repository.origin else made
    heading(f"A feature in {len(steps)} steps, on {whence}")
    say()
    rows = []
    for item in steps:
        e = item.decision.exposure
        shown = ", ".join(_bundle(c.id, c.reason) for c in item.decision.bundles) or "none"
        who = f"{item.planned.role}{' (sub-agent)' if item.planned.sub_agent else ''}"
        rows.append(
            (who, item.planned.step, item.decision.source, shown, f"{e.tools} of {e.all_tools}", f"{e.tokens:,}")
        )
    table(("role", "step", "source", "bundles", "tools>", "tokens>"), rows)
    say()
    table(("role", "call", "outcome", "ms>", "what came back"), [row for item in steps for row in _calls(item)])
    say()
    left_out = [(i.planned.role, r.tool or r.id, r.code, r.detail) for i in steps for r in i.decision.left_out]
    if left_out:
        table(("role", "left out", "code", "why"), left_out)
        say()


def _show_asked(steps: list[DemoStep]) -> None:
    asks = "search, then a model (here a scripted one), then a shortlist"
    heading(f"{len(steps)} steps that no route covers: {asks if is_installed() else 'search, then a shortlist'}")
    if not is_installed():
        say_whole("", "With a model in between, here a scripted one: pip install 'bundle-router[model]'.", under=2)
    for item in steps:
        decision = item.decision
        say()
        say_whole("", f"{item.planned.role}, {item.planned.step}: {item.planned.goal!r}", under=2)
        shown = ", ".join(_bundle(c.id, c.reason) for c in decision.bundles) or "none"
        say_whole("  ", f"{decision.source}{' (degraded)' if decision.degraded else ''}: {shown}", under=4)
        for line in (decision.justification, *selection_lines(decision.search, decision.model)):
            say_whole("  ", line, under=4)
    say()


def _bundle(id_: str, reason: str) -> str:
    return id_ if reason == "mapped" else f"{id_} ({reason})"


def _calls(item: DemoStep) -> list[tuple[object, ...]]:
    role = item.planned.role
    return [(role, *call_cells(result, f"{len(result.text):,} characters")) for result in item.results]


def _point_on(runs: str, run_id: str) -> None:
    heading(f"Everything above is on disk: {Path(runs, run_id)}")
    say()
    elsewhere = "" if runs == "runs" else f" --runs {runs}"
    step = "--workflow feature --role reviewer --step review"
    command = _command()
    say("Try next:")
    say(f"  {command} runs show {run_id}{elsewhere}")
    say(f"  {command} explain --tool workspace.exec {step}")
    say(f"  {command} runs show {run_id}-spike{elsewhere}")


def _command() -> str:
    """Return this program as a user can type it here: by its name if that finds it, else as it was started."""
    typed = Path(sys.argv[0])
    found = shutil.which("bundle-router")
    if typed.name != "bundle-router" or (found is not None and Path(found).resolve() == typed.resolve()):
        return "bundle-router"
    return shlex.quote(str(typed))
