"""`bundle-router login`: lets a person authorize a tool server, once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from bundle_router.cli.local import local_servers
from bundle_router.cli.output import counted, print_result
from bundle_router.cli.shared_arguments import add_config, add_json, config_folder
from bundle_router.core.catalog import Catalog, Server
from bundle_router.core.values.visible import visible
from bundle_router.errors import RequestError, ToolFailure
from bundle_router.workbench.server_reviews import remote_servers

MAX_TIMEOUT_S = 3_600.0


def declare(parser: argparse.ArgumentParser) -> None:
    from bundle_router.workbench.logins import LOGIN_S

    parser.add_argument("server", metavar="SERVER", help="a server of servers.toml")
    parser.add_argument(
        "--principal", default="", help="whose authorization it is (default: everybody's)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        help="port on 127.0.0.1 for the browser's return (default: any free one)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=LOGIN_S,
        metavar="S",
        help=f"seconds (default: {LOGIN_S:g})",
    )
    parser.add_argument(
        "--forget", action="store_true", help="delete the stored authorization, and do nothing else"
    )
    add_config(parser)
    add_json(parser)
    parser.epilog = (
        "Prints an address on standard error and opens nothing by itself. On another machine than"
        " your browser's, choose a --port and forward it (ssh -L PORT:127.0.0.1:PORT). Tokens are"
        " kept in $XDG_DATA_HOME/bundle-router/tokens, for you alone to read, and renewed while"
        " their issuer permits."
    )


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.wiring import load_catalog
    from bundle_router.workbench.logins import log_in, log_out

    catalog = load_catalog(config_folder(arguments), local=local_servers(arguments))
    server = _server(catalog, arguments.server)
    if arguments.forget:
        was_logged_in = log_out(server, arguments.principal)
        _print_sentence(
            arguments,
            server,
            "forgotten" if was_logged_in else "nothing was kept",
            {"forgotten": was_logged_in},
        )
        return 0
    if not 0 < arguments.timeout <= MAX_TIMEOUT_S:
        raise RequestError(f"--timeout must be above 0 and at most {MAX_TIMEOUT_S:g} seconds")
    login = log_in(
        catalog,
        server,
        principal=arguments.principal,
        show=_show,
        port=arguments.port,
        timeout_s=arguments.timeout,
    )
    facts = {"authorized": login.kept, "asked": login.asked, "tools": login.tools}
    if not login.kept:
        if login.asked:
            raise ToolFailure(
                f"server {server.name!r} was authorized, but its tokens could not be kept",
                code="unauthorized",
                advice="see that $XDG_DATA_HOME, or ~/.local/share, can be written to",
            )
        _print_sentence(
            arguments, server, "it asks for no authorization; auth = 'oauth' can go", facts
        )
        return 0
    outcome = "authorized" if login.asked else "authorized before (--forget to begin anew)"
    _print_sentence(arguments, server, f"{outcome}; it lists {counted(login.tools, 'tool')}", facts)
    return 0


def _server(catalog: Catalog, name: str) -> Server:
    server = remote_servers(catalog, [name])[0]
    if server.auth is None:
        raise RequestError(
            f"server {name!r} has no auth = 'oauth'", advice="add it to its entry in servers.toml"
        )
    if not server.enabled:
        raise RequestError(
            f"server {name!r} is switched off", advice="see 'enabled' in servers.toml"
        )
    return server


def _show(url: str) -> None:
    """Print the address for the person, who decides whether to open it."""
    print(
        f"Open this address in your browser, and come back here:\n\n  {visible(url)}\n",
        file=sys.stderr,
        flush=True,
    )


def _print_sentence(
    arguments: argparse.Namespace, server: Server, sentence: str, facts: Mapping[str, object]
) -> None:
    print_result(
        arguments,
        {"server": server.name, "principal": arguments.principal, **facts},
        f"{server.name}: {sentence}",
    )
