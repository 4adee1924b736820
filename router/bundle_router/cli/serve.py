"""`bundle-router serve`: serves decisions over HTTP and runs as MCP servers, until it is told to
stop.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle_router.adapters.loop import faster_loop
from bundle_router.cli.local import local_servers
from bundle_router.cli.output import counted, print_json, say
from bundle_router.cli.own_process import hide_environment
from bundle_router.cli.route import new_run_id, wants_warm_up
from bundle_router.cli.shared_arguments import (
    ADDRESS,
    add_opening,
    add_step,
    config_folder,
    open_router,
    step_from,
)
from bundle_router.cli.tools import warn_of_lost
from bundle_router.core.values import RUN_ID, Step
from bundle_router.errors import RequestError, RouterError

if TYPE_CHECKING:
    from bundle_router.service import Endpoint
    from bundle_router.wiring import Router
    from bundle_router.workbench.found_edits import FoundEdits


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mcp-only", action="store_true", help="serve the MCP endpoint alone")
    parser.add_argument("--port", type=int, default=0, help="port (default: any free one)")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)"
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="a further host name of the service, as in its URL; without a port: with the default"
        " ports and its own",
    )
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        help="file with the tokens: [tokens.NAME] with sha256 and scopes",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, with --tls-key")
    parser.add_argument("--tls-key", metavar="FILE", help="private key of the certificate")
    parser.add_argument(
        "--without-tls", action="store_true", help="let something in front of the service do TLS"
    )
    parser.add_argument(
        "--token-env",
        metavar="NAME",
        help="environment variable with the bearer token (default: a new one, on stderr)",
    )
    parser.add_argument(
        "--run", help="the run to print the address of; with a step, the run to route it in"
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a config folder that the pages may compare the config with; may be repeated",
    )
    parser.add_argument(
        "--paste", metavar="CLIENT", help="print how to connect this client, or all, to the run"
    )
    parser.add_argument(
        "--follow", action="store_true", help="route the step again when a list or a pin changes"
    )
    add_step(parser, required=False)
    add_opening(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.service import key_from_env, new_key, require_extra

    require_extra("mcp" if arguments.mcp_only else "service")
    if arguments.run is not None and not RUN_ID.fullmatch(arguments.run):
        raise RequestError(f"--run is not a run id: it must match {RUN_ID.pattern}")
    step = _first_step(arguments)
    clients = _clients(arguments.paste) if arguments.paste else {}
    if arguments.follow and step is None:
        raise RequestError(
            "--follow needs a step to route again", advice="name --workflow, --role and --step"
        )
    if clients and step is None and arguments.run is None:
        raise RequestError("--paste needs a run", advice="name one with --run, or a step to route")
    key = key_from_env(arguments.token_env) if arguments.token_env else new_key()
    if arguments.token_env:
        del os.environ[arguments.token_env]  # so that programs started by tools do not inherit it
    hide_environment()
    with asyncio.Runner(loop_factory=faster_loop()) as runner:
        runner.run(_serve(arguments, step, key, clients))
    return 0


_SHORTEST_S = 1.0
_LONGEST_S = 60.0
_FOLLOWING = """following: the step is routed again when a server that it needs
  - goes, comes back or has other pins: within 5 s; within a minute, if it keeps changing
  - lists other tools: once it says so; else when its list has run out (`ttl_s`: stdio 60 s, HTTP
    10 minutes)
  - dies without a word: when it is called"""
_NOT_FOLLOWING = """the list of tools stays until the run is routed again (--follow does that):
  - a server that comes back, other lists and other pins are not noticed
  - what is gone is refused when it is called"""
Clients = Mapping[str, Mapping[str, str]]


def _clients(name: str) -> Clients:
    """Return the connection texts of one client, or of all. Raises RequestError."""
    clients = tomllib.loads(Path(__file__).with_name("clients.toml").read_text(encoding="utf-8"))
    if name != "all" and name not in clients:
        raise RequestError(
            f"--paste {name!r} is not a known client", advice=f"use all, {', '.join(clients)}"
        )
    return clients if name == "all" else {name: clients[name]}


def _print_pasted(clients: Clients, endpoint: Endpoint, run_id: str) -> None:
    """Print the texts with the run's own token, which opens only this run."""
    for name, client in clients.items():
        text = (
            client["text"]
            .strip()
            .replace("{url}", endpoint.url(run_id))
            .replace("{token}", endpoint.token(run_id))
        )
        print(
            f"\n--- {name}: {client['where']}; its token opens this run alone\n{text}", flush=True
        )


def _first_step(arguments: argparse.Namespace) -> Step | None:
    """Return the step to route before serving; None if the options describe none."""
    missing = [f"--{name}" for name in ADDRESS if not getattr(arguments, name)]
    if len(missing) == len(ADDRESS):
        return None
    if missing:
        raise RequestError(
            f"a step needs {', '.join(missing)}, too",
            advice="or leave all of them out to go on with runs on disk",
        )
    return step_from(arguments, arguments.run or new_run_id())


async def _serve(
    arguments: argparse.Namespace, step: Step | None, key: str, clients: Clients
) -> None:
    from bundle_router.service import AccessTokens, ServiceAddress, serve, serve_mcp

    begin = serve_mcp if arguments.mcp_only else serve
    tls = (arguments.tls_cert, arguments.tls_key)
    address = ServiceAddress(
        arguments.host, arguments.port, tuple(arguments.name), *tls, arguments.without_tls
    )
    tokens = AccessTokens(arguments.tokens) if arguments.tokens else None
    address.refuse_open(has_tokens=tokens is not None)
    from bundle_router.adapters.loop import share_running_loop

    share_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_router(arguments) as router:
        run_id = await _begin_run(router, step, arguments.run)
        standing = await router.endpoint.standing(step.run_id, asks=False) if step else ()
        with _pages(arguments, router) as pages:
            async with begin(router, key=key, address=address, tokens=tokens, **pages) as endpoint:
                asyncio.get_running_loop().run_in_executor(
                    None, _spare_collector
                )  # `asyncio.run` waits for it
                _announce(arguments, endpoint, run_id)
                _print_pasted(clients, endpoint, run_id or "")
                if step is not None:
                    warn_of_lost(router, step.run_id, follows=arguments.follow)
                if arguments.follow and step:
                    following = asyncio.create_task(_follow(router, step, standing))
                else:
                    following = None
                await stop.wait()
                if following is not None:
                    following.cancel()
                    await asyncio.wait((following,))


def _spare_collector() -> None:
    """Exclude permanent objects from garbage collections, during which no request is answered."""
    import_module(
        "bundle_router.service.mcp.run_server"
    )  # loaded in another thread: this waits for it
    gc.freeze()


@contextmanager
def _pages(arguments: argparse.Namespace, router: Router) -> Iterator[dict[str, Any]]:
    """Yield the pages' arguments of `serve`; none if only agents are served."""
    if arguments.mcp_only:
        yield {}
        return
    from bundle_router.service.pages.service_pages import PageSources, service_pages

    sources = PageSources(
        runs=arguments.runs,
        store=arguments.store,
        config=config_folder(arguments),
        local=local_servers(arguments),
        development=bool(arguments.development or arguments.unpinned),
        others=dict(map(_named_folder, arguments.compare)),
        away=router.endpoint.unusable_servers,
        edits=_found_edits(arguments),
    )
    with service_pages(sources) as pages:
        yield {"pages": pages}


def _found_edits(arguments: argparse.Namespace) -> FoundEdits | None:
    """Return what keeps the edits of the config that the service finds; None for the shipped
    config, which nobody edits.
    """
    from bundle_router.workbench.found_edits import FoundEdits

    config = config_folder(arguments)
    if config is None:
        return None
    return FoundEdits(Path(config), Path(arguments.runs) if arguments.store is None else None)


def _named_folder(text: str) -> tuple[str, Path]:
    """Return the name and folder of `--compare NAME=FOLDER`. Raises RequestError."""
    name, equals, folder = text.partition("=")
    if not equals or not name or not Path(folder).is_dir():
        raise RequestError(
            f"--compare {text!r} names no folder", advice="write --compare branch=../branch/config"
        )
    return name, Path(folder)


async def _begin_run(router: Router, step: Step | None, run_id: str | None) -> str | None:
    """Return the run to name: newly routed, or found on disk. Raises UnknownRun."""
    if step is not None:
        if wants_warm_up(router, step):
            await router.warm_up()
        await router.route(step)
        await router.tools(
            step.run_id
        )  # contacts the servers that must be asked before their tools are shown
        return step.run_id
    if run_id is not None:
        await router.endpoint.decision_id(run_id)
    return run_id


async def _follow(router: Router, step: Step, standing: tuple[object, ...]) -> None:
    """Route the step again when the facts about its servers change; less often, the more often they
    do.
    """
    pause_s = _SHORTEST_S
    while True:
        await asyncio.sleep(pause_s)
        try:
            if await router.endpoint.standing(step.run_id) == standing:
                pause_s = max(pause_s / 2, _SHORTEST_S)
                continue
            pause_s = min(pause_s * 2, _LONGEST_S)
            await router.route(step)
            standing = await router.endpoint.standing(step.run_id)
            tools = (await router.tools(step.run_id)).active
        except RouterError as trouble:
            router.endpoint.report("warning", "follow.failed", run_id=step.run_id, error=trouble)
        else:
            print(f"routed again: {counted(len(tools), 'tool')}", file=sys.stderr, flush=True)
            warn_of_lost(router, step.run_id, follows=True)


def _announce(arguments: argparse.Namespace, endpoint: Endpoint, run_id: str | None) -> None:
    """Print the address on standard output; a generated token, and a link that signs in with it, on
    standard error.
    """
    if not arguments.token_env and not arguments.tokens:
        print(f"bearer token: {endpoint.key}", file=sys.stderr, flush=True)
        if not arguments.mcp_only:
            link = endpoint.sign_in_url()
            print(f"sign in (once, within 10 minutes): {link}", file=sys.stderr, flush=True)
    url = endpoint.url(run_id or "RUN")
    notices = ""
    if run_id is not None:
        notices = _FOLLOWING if arguments.follow else _NOT_FOLLOWING
    if arguments.json:
        print_json(
            {
                "url": url,
                "port": endpoint.port,
                "run_id": run_id,
                "pid": os.getpid(),
                "notices": notices,
            }
        )
    else:
        if arguments.mcp_only:
            addresses = ""
        else:
            addresses = f"{endpoint.base}/ for people, {endpoint.base}/v1, {endpoint.url()} and "
        say(f"serving {addresses}{url} until interrupted")
        if notices:
            say(notices)
    sys.stdout.flush()
