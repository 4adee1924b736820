"""From a server's entry to its transport, with its command or headers, and whether connecting is
permitted at all. `WIRES` has a row for each transport.

Rules:
1. What a config can't grant itself is refused here: stdio outside of development mode, SSE that is
   not marked legacy.
2. References to the environment are resolved when a connection is made; only that connection holds
   the values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.core.catalog import CallLimits, Server, Transport
from bundle_router.core.servers.transport.bounds import Bounds, bounds_for
from bundle_router.core.servers.transport.tool_servers import Scope

if TYPE_CHECKING:
    from bundle_router.adapters.http import HttpClient
    from bundle_router.adapters.mcp import exchange
    from bundle_router.adapters.mcp.oauth import Provider
    from bundle_router.adapters.mcp.server_processes import ProcessSupervisor, ServerCommand
    from bundle_router.adapters.mcp.streamable import HttpSender


DEFAULT_BOUNDS: Final = bounds_for(CallLimits())


@dataclass(frozen=True, slots=True)
class ConnectionSetting:
    """How to connect to servers.

    `environ` resolves `${NAME}`; `development` permits stdio; `workspace` is the folder that stdio
    servers start in.
    """

    bounds: Bounds = DEFAULT_BOUNDS
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    development: bool = False
    workspace: Path = Path()


@dataclass(frozen=True, slots=True)
class WireParts:
    """What connections are made of besides their server's entry: all that its transport may
    need.
    """

    setting: ConnectionSetting
    supervisor: ProcessSupervisor
    http_client: Callable[[str], HttpClient]
    authorize: Callable[[Server, Scope], Provider | None]
    report: Callable[..., None]
    """Takes a level, an event's name and its fields."""


MakeTransport = Callable[[], "exchange.Transport"]


def refusal(server: Server, *, development: bool) -> ServerFault | None:
    """Return why connecting to the server is not permitted, whatever its state; None if it is."""
    if not server.enabled:
        return ServerFault("not_permitted", "it is switched off")
    if server.traits.starts_process and not development:
        why = (
            f"it runs a local process ({server.transport}), which needs development mode"
            " (--development)"
        )
        return ServerFault("not_permitted", why)
    if server.traits.legacy and not server.legacy:
        return ServerFault("not_permitted", f"transport {server.transport!r} needs legacy = true")
    if server.traits.is_remote:
        return None
    return ServerFault("not_permitted", "it is not a tool server")


def command_of(server: Server, setting: ConnectionSetting, principal: str = "") -> ServerCommand:
    """Return the command of a stdio server for a principal. Raises ServerFault."""
    from bundle_router.adapters.mcp.server_caches import cache_folder
    from bundle_router.adapters.mcp.server_processes import DEFAULT_PATH, ServerCommand

    environ = setting.environ
    bounds = setting.bounds
    argv = (server.command or "", *server.args)
    env = resolve_references(server.env, environ)
    has_own_home = "HOME" in env
    return ServerCommand(
        server=server.name,
        argv=argv,
        env=env,
        cwd=str(setting.workspace.resolve()),
        path=environ.get("PATH") or DEFAULT_PATH,
        polite_s=bounds.polite_s,
        term_s=bounds.term_s,
        cache=None if has_own_home else cache_folder(environ, server.name, argv, principal),
    )


def headers_of(server: Server, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the configured headers of an HTTP server. Raises ServerFault."""
    headers = {
        name: value.strip() for name, value in resolve_references(server.headers, environ).items()
    }
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable():
            raise ServerFault(
                "credential_missing",
                f"the value for header {name} has characters that a header can't carry",
            )
    return headers


def _prepare_stdio(server: Server, scope: Scope, parts: WireParts) -> MakeTransport:
    from bundle_router.adapters.mcp.stdio import StdioTransport

    command = command_of(server, parts.setting, scope.principal)
    report = parts.report
    report(
        "info",
        "server.started",
        command=list(command.argv),
        env=sorted(command.env),
        cwd=command.cwd,
    )
    return lambda: StdioTransport(command, parts.supervisor, parts.setting.bounds, report)


def _prepare_http(server: Server, scope: Scope, parts: WireParts) -> MakeTransport:
    from bundle_router.adapters.mcp.streamable import StreamableHttp

    sender = _http_sender(server, scope, parts)
    return lambda: StreamableHttp(sender, parts.setting.bounds)


def _prepare_sse(server: Server, scope: Scope, parts: WireParts) -> MakeTransport:
    from bundle_router.adapters.mcp.legacy_sse import LegacySse

    sender = _http_sender(server, scope, parts)
    return lambda: LegacySse(sender, parts.setting.bounds, parts.report)


def _http_sender(server: Server, scope: Scope, parts: WireParts) -> HttpSender:
    from bundle_router.adapters.mcp.streamable import HttpSender

    headers = headers_of(server, parts.setting.environ)
    url = server.url or ""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ServerFault("not_permitted", "its address is neither http nor https")
    provider = parts.authorize(server, scope)
    return HttpSender(url, headers, parts.http_client(server.name), provider)


WIRES: Final[Mapping[Transport, Callable[[Server, Scope, WireParts], MakeTransport]]] = {
    "streamable-http": _prepare_http,
    "sse": _prepare_sse,
    "stdio": _prepare_stdio,
}
"""How a connection is prepared (raises ServerFault, contacts nobody); what is returned makes its
transport.
"""
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""`${NAME}` in headers and environments. The values themselves are never in the config."""


def resolve_references(
    pairs: Iterable[tuple[str, str]], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the pairs with every reference resolved.

    White space at the end of a value is no part of it: a secret that is mounted as a file ends in a
    newline. Raises ServerFault for a variable that is unset, empty or blank.
    """

    def value_of(match: re.Match[str]) -> str:
        value = environ.get(match[1], "").rstrip()
        if not value:
            raise ServerFault("credential_missing", f"its credential {match[1]} is not set")
        return value

    return {name: _REFERENCE.sub(value_of, value) for name, value in pairs}
