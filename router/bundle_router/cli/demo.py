"""`bundle-router demo`: the main job, on a copy of the current repository.

With `--mcp`, real tool servers from npm and PyPI are reviewed, pinned, called, broken, and
ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bundle_router import Result
from bundle_router.adapters.private_folders import temporary_root
from bundle_router.cli.local import local_servers
from bundle_router.cli.output import heading, say, say_whole, table
from bundle_router.cli.route import new_run_id
from bundle_router.cli.shared_arguments import add_config, add_runs, config_folder
from bundle_router.core.exposure.placements import Toolset
from bundle_router.core.servers.admission.admit import admit
from bundle_router.core.servers.pins.reviewed import approve
from bundle_router.core.values import Decision, Step
from bundle_router.demo import trouble
from bundle_router.demo.real_servers import (
    INSTALL,
    DemoServer,
    MissingServer,
    find_servers,
    write_config,
)
from bundle_router.demo.repository import Repository, copy_of, make
from bundle_router.demo.workflow import (
    DemoStep,
    config_with_model,
    is_installed,
    run_open_questions,
    scripted_server,
)
from bundle_router.demo.workflow import run as run_workflow
from bundle_router.errors import NotInstalled
from bundle_router.review.sentences import selection_lines
from bundle_router.wiring.catalogs import LocalServers
from bundle_router.workbench.server_reviews import Review, remote_servers, review


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mcp", action="store_true", help="use real tool servers of npm and PyPI, where installed"
    )
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
        folder = Path(
            clean_up.enter_context(
                tempfile.TemporaryDirectory(prefix="bundle-router-demo-", dir=temporary_root())
            )
        )
        repository = copy_of(Path.cwd(), folder / "copy") or make(folder / "slug")
        base_url = clean_up.enter_context(scripted_server()).base_url if is_installed() else None
        (folder / "config").mkdir()
        project = config_folder(arguments)
        config = config_with_model(Path(project) if project else None, folder / "config", base_url)
        mapped, unmapped = asyncio.run(_run(config, arguments.runs, run_id, repository, local))
    _show(mapped, repository)
    _show_asked(unmapped)
    _point_on(arguments.runs, run_id)
    return 0


async def _run(
    config: Path, runs: str, run_id: str, repository: Repository, local: LocalServers
) -> tuple[list[DemoStep], list[DemoStep]]:
    """Return the steps that routes cover, and those that they don't.

    A thread loads the model's libraries meanwhile.
    """
    from bundle_router.wiring import Router

    async with Router.open(config, runs=runs, workspace=repository.root, local=local) as router:
        warming = asyncio.create_task(router.warm_up())
        mapped = [step async for step in run_workflow(router, run_id, repository)]
        unmapped = [step async for step in run_open_questions(router, f"{run_id}-spike", warming)]
    return mapped, unmapped


def _show(steps: list[DemoStep], repository: Repository) -> None:
    origin = "a small repository made for this"
    whence = f"a copy of the repository {repository.origin}" if repository.origin else origin
    heading(f"A feature in {len(steps)} steps, on {whence}")
    say()
    rows = []
    for item in steps:
        e = item.decision.exposure
        bundles = ", ".join(_bundle(c.id, c.reason) for c in item.decision.bundles) or "none"
        role = f"{item.planned.role}{' (sub-agent)' if item.planned.sub_agent else ''}"
        rows.append(
            (
                role,
                item.planned.step,
                item.decision.source,
                bundles,
                f"{e.tools} of {e.all_tools}",
                f"{e.tokens:,}",
            )
        )
    table(("role", "step", "source", "bundles", "tools>", "tokens>"), rows)
    say()
    table(
        ("role", "call", "outcome", "ms>", "what came back"),
        [row for item in steps for row in _calls(item)],
    )
    say()
    left_out = [
        (i.planned.role, r.tool or r.id, r.code, r.detail)
        for i in steps
        for r in i.decision.left_out
    ]
    if left_out:
        table(("role", "left out", "code", "why"), left_out)
        say()


def _show_asked(steps: list[DemoStep]) -> None:
    asks = "search, then a model (here a scripted one), then a shortlist"
    heading(
        f"{len(steps)} steps that no route covers:"
        f" {asks if is_installed() else 'search, then a shortlist'}"
    )
    if not is_installed():
        say_whole(
            "",
            "With a model in between, here a scripted one: pip install 'bundle-router[model]'.",
            under=2,
        )
    for item in steps:
        decision = item.decision
        say()
        say_whole("", f"{item.planned.role}, {item.planned.step}: {item.planned.goal!r}", under=2)
        bundles = ", ".join(_bundle(c.id, c.reason) for c in decision.bundles) or "none"
        say_whole(
            "  ",
            f"{decision.source}{' (degraded)' if decision.degraded else ''}: {bundles}",
            under=4,
        )
        for line in (decision.justification, *selection_lines(decision.search, decision.model)):
            say_whole("  ", line, under=4)
    say()


def _bundle(id_: str, reason: str) -> str:
    return id_ if reason == "mapped" else f"{id_} ({reason})"


def _calls(item: DemoStep) -> list[tuple[object, ...]]:
    role = item.planned.role
    return [
        (role, *call_cells(result, f"{len(result.text):,} characters")) for result in item.results
    ]


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
    """Return this program as a user can type it here: by its name if that finds it, else as it was
    started.
    """
    typed = Path(sys.argv[0])
    command = shutil.which("bundle-router")
    if typed.name != "bundle-router" or (
        command is not None and Path(command).resolve() == typed.resolve()
    ):
        return "bundle-router"
    return shlex.quote(str(typed))


def run_mcp(runs: str) -> int:
    """Return the exit status. Raises NotInstalled if no server is found."""
    with tempfile.TemporaryDirectory(prefix="bundle-router-demo-", dir=temporary_root()) as name:
        folder = Path(name).resolve()
        repository = make(folder / "slug")
        servers_found = find_servers(repository.root, repository.image, folder / "scratch")
        servers = [server for server in servers_found if isinstance(server, DemoServer)]
        if not servers:
            raise NotInstalled(
                "no tool server that the demo knows is installed", advice="\n  ".join(INSTALL)
            )
        rows = _pin(folder / "config", servers)
        _show_review(servers, rows)
        _show_missing([server for server in servers_found if isinstance(server, MissingServer)])
        run_id = f"demo-mcp-{new_run_id()}"
        decision, toolset, results = asyncio.run(
            _call_servers(folder / "config", runs, run_id, repository.root, servers)
        )
        _show_run(decision, toolset, results)
        _show_images(runs, run_id, results)
        _show_change(folder / "config", runs, run_id, repository.root, servers[0])
        _pin(folder / "in-trouble", [*trouble.servers(), servers[0]])
        where = (folder / "in-trouble", runs, f"{run_id}-trouble", repository.root, servers[0])
        survived = asyncio.run(trouble.run_faults(*where))
        _show_trouble(survived)
    leftovers = _show_end(runs, run_id)
    good = all(row.admitted is not None for row in rows) and all(result.ok for result in results)
    if good and all(row.well for row in survived) and not leftovers:
        return 0
    return 4


def _pin(config: Path, servers: Sequence[DemoServer]) -> list[Review]:
    """Write a config with these servers, ask for their lists, and approve them unchanged."""
    from bundle_router.wiring.catalogs import open_pins, read_catalog

    write_config(config, servers)
    catalog, pins = read_catalog(config)
    remote = remote_servers(catalog, [server.name for server in servers])
    rows = list(review(catalog, pins, remote, development=True))
    for row in rows:
        if row.admitted is not None:
            open_pins(config).write(approve(row.server, row.admitted))
    return rows


async def _call_servers(
    config: Path, runs: str, run_id: str, workspace: Path, servers: list[DemoServer]
) -> tuple[Decision, Toolset, list[Result]]:
    from bundle_router.wiring import Router

    async with Router.open(config, runs=runs, workspace=workspace, development=True) as router:
        decision = await router.route(
            Step(run_id=run_id, workflow="demo", role="agent", step="look")
        )
        toolset = await router.tools(run_id)
        direct = {tool.name for tool in toolset.active}
        results = []
        for server in servers:
            for tool, call_arguments in server.calls:
                name = f"{server.name}.{tool}"
                through = ("call_tool", {"name": name, "arguments": dict(call_arguments)})
                results.append(
                    await router.call(
                        run_id, *((name, call_arguments) if name in direct else through)
                    )
                )
    return decision, toolset, results


def _titled_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    heading(title)
    say()
    table(columns, rows)
    say()


def _show_review(servers: list[DemoServer], rows: list[Review]) -> None:
    title = (
        f"{len(servers)} real servers, started, reviewed and pinned (you would read this first:"
        " `pin`)"
    )
    packages = {server.name: server.package for server in servers}
    lines = []
    for row in rows:
        tools = row.admitted.tools if row.admitted is not None else ()
        tokens = sum(tool.card.tokens for tool in tools)
        remark = row.error or ", ".join(light.tool for light in row.lights) or "-"
        lines.append(
            (
                row.server.name,
                packages[row.server.name],
                row.server.trust,
                len(tools),
                f"{tokens:,}",
                remark,
            )
        )
    _titled_table(title, ("server", "from", "trust", "tools>", "tokens>", "warning light"), lines)


def _show_missing(missing: list[MissingServer]) -> None:
    if not missing:
        return
    say("Skipped:")
    for server in missing:
        say(f"  {server.name} ({server.package}): {server.why}")
    say("To have them:")
    for command in INSTALL:
        say(f"  {command}")
    say()


def _show_run(decision: Decision, toolset: Toolset, results: list[Result]) -> None:
    heading("One step: its bundles, what its agent is shown of them, and what its calls gave")
    say()
    say(f"bundles: {', '.join(decision.bundle_ids)}")
    names = ", ".join(tool.name for tool in toolset.active) or "none"
    say(f"shown directly: {names}; behind call_tool: {', '.join(toolset.meta) or 'none'}")
    say(
        f"{toolset.tokens:,} tokens in the array, of {toolset.all_tokens:,} for every tool there is"
    )
    say()
    table(("call", "outcome", "ms>", "what came back"), [_line(result) for result in results])
    say()


def _show_images(runs: str, run_id: str, results: list[Result]) -> None:
    """Print the paths of the pictures, so that a person can look at them."""
    rows = [
        (result.tool, f"{a.mime_type} {a.width}x{a.height}", f"{a.bytes:,}", a.sha256)
        for result in results
        for a in result.artifacts
        if a.width
    ]
    if rows:
        folder = Path(runs, run_id, "artifacts", "sha256")
        title = f"The images among it, one file each: {folder}/<2 digits>/<sha256>"
        _titled_table(title, ("from", "what it is", "bytes>", "sha256"), rows)


def _line(result: Result) -> tuple[object, ...]:
    return call_cells(result, " ".join(result.text.split())[:60])


def call_cells(result: Result, preview: str) -> tuple[object, ...]:
    """Return a call as a row: its tool, outcome, milliseconds, and its result with artifacts."""
    for artifact in result.artifacts:
        size = f" {artifact.width}x{artifact.height}" if artifact.width else ""
        preview += f"; artifact {artifact.mime_type}{size}, {artifact.bytes:,} bytes"
    return result.tool, _outcome(result), f"{result.elapsed_ms:.0f}", preview


def _outcome(result: Result) -> str:
    return ": ".join(filter(None, (result.outcome, "" if result.ok else result.code)))


def _show_change(config: Path, runs: str, run_id: str, workspace: Path, server: DemoServer) -> None:
    """Show a tool whose text has changed since it was approved, as after a bad release: it is not
    called.
    """
    from bundle_router.wiring import Router
    from bundle_router.wiring.catalogs import open_pins, read_catalog

    files = open_pins(config)
    (tool, call_arguments) = server.calls[0]
    pins = files.read(server.name)
    entry = read_catalog(config)[0].servers[server.name]
    if pins is None:
        return
    definitions = pins.definitions()
    for definition in definitions:
        if definition["name"] == tool:
            definition["description"] = "What a person read and approved."
    files.write(approve(entry, admit(entry, definitions, pins.instructions)))
    with Router.open(config, runs=runs, workspace=workspace, development=True) as router:
        router.route_sync(
            Step(run_id=f"{run_id}-changed", workflow="demo", role="agent", step="look")
        )
        result = router.call_sync(f"{run_id}-changed", f"{server.name}.{tool}", call_arguments)
    title = (
        f"The same call, where {server.name}.{tool} was approved with another description than"
        " it has"
    )
    _titled_table(title, ("call", "outcome", "ms>", "what came back"), [_line(result)])


def _show_trouble(rows: list[trouble.FaultTrial]) -> None:
    columns = (
        "its trouble",
        "outcome",
        "ms>",
        "what the agent is told",
        "its next call",
        "the other server",
        "ms>",
    )
    _titled_table(
        "A server in trouble, and another that is called at the same time",
        columns,
        [_trial_cells(r) for r in rows],
    )


def _trial_cells(row: trouble.FaultTrial) -> tuple[object, ...]:
    _, outcome, elapsed, preview = _line(row.result)
    comparison = _outcome(row.beside), f"{row.beside.elapsed_ms:.0f}"
    return row.what, outcome, elapsed, preview, _outcome(row.after), *comparison


def _show_end(runs: str, run_id: str) -> int:
    """Return the number of remaining processes."""
    from bundle_router.adapters.processes.family import descendants

    leftovers = descendants(os.getpid())
    say(f"Processes left behind: {len(leftovers) or 'none'}")
    elsewhere = "" if runs == "runs" else f" --runs {runs}"
    say(f"Everything above is on disk: {Path(runs, run_id)}")
    say("Try next:")
    say(f"  bundle-router runs show {run_id}{elsewhere}")
    return len(leftovers)
