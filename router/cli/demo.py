"""`bundle-router demo`: the main job, on the repository you stand in."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path

from router.cli.arguments import add_config, add_runs, config_folder
from router.cli.output import heading, say, table
from router.cli.route import new_run_id
from router.demo.repository import Repository, make, standing_in
from router.demo.workflow import Taken
from router.demo.workflow import run as run_workflow

SUMMARY = "run a small workflow end to end and show what happened"


def declare(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_runs(parser)


def run(arguments: argparse.Namespace) -> int:
    run_id = f"demo-{new_run_id()}"
    with ExitStack() as clean_up:
        repository = standing_in(Path.cwd())
        if repository is None:
            folder = clean_up.enter_context(tempfile.TemporaryDirectory(prefix="bundle-router-demo-"))
            repository = make(Path(folder, "slug"))
        taken = asyncio.run(_run(arguments, run_id, repository))
    _show(taken, repository)
    _point_on(arguments.runs, run_id)
    return 0


async def _run(arguments: argparse.Namespace, run_id: str, repository: Repository) -> list[Taken]:
    from router.wiring import Router

    async with Router.open(config_folder(arguments), runs=arguments.runs, workspace=repository.root) as router:
        return [taken async for taken in run_workflow(router, run_id, repository)]


def _show(taken: list[Taken], repository: Repository) -> None:
    whence = (
        "a small repository made for this (and gone again)" if repository.made else f"the repository {repository.root}"
    )
    heading(f"A feature in {len(taken)} steps, on {whence}")
    say()
    rows = []
    for item in taken:
        e = item.decision.exposure
        shown = ", ".join(_bundle(c.id, c.reason) for c in item.decision.bundles) or "none"
        who = f"{item.planned.role}{' (sub-agent)' if item.planned.sub_agent else ''}"
        rows.append((who, item.planned.step, item.decision.source, shown, f"{e.tools} of {e.all_tools}", item.tokens))
    table(("role", "step", "source", "bundles", "tools>", "tokens>"), rows)
    say()
    table(("role", "call", "outcome", "ms>", "what came back"), [row for item in taken for row in _calls(item)])
    say()
    left_out = [(i.planned.role, r.tool or r.id, r.code, r.detail) for i in taken for r in i.decision.left_out]
    if left_out:
        table(("role", "left out", "code", "why"), left_out)
        say()


def _bundle(id_: str, reason: str) -> str:
    return id_ if reason == "mapped" else f"{id_} ({reason})"


def _calls(item: Taken) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for result in item.results:
        outcome = result.outcome if result.ok or not result.code else f"{result.outcome}: {result.code}"
        came = f"{len(result.text):,} characters"
        for artifact in result.artifacts:
            size = f" {artifact.width}x{artifact.height}" if artifact.width else ""
            came += f"; artifact {artifact.mime_type}{size}, {artifact.bytes:,} bytes"
        rows.append((item.planned.role, result.tool, outcome, f"{result.elapsed_ms:.0f}", came))
    return rows


def _point_on(runs: str, run_id: str) -> None:
    heading(f"Everything above is on disk: {Path(runs, run_id)}")
    say()
    elsewhere = "" if runs == "runs" else f" --runs {runs}"
    step = "--workflow feature --role reviewer --step review"
    say("Try next:")
    say(f"  bundle-router runs show {run_id}{elsewhere}")
    say(f"  bundle-router explain --tool workspace.exec {step}")
    say(f"  bundle-router runs verify {run_id}{elsewhere}")
