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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.core.catalog import CallLimits, Server, Transport
from bundle_router.core.servers.transport.bounds import Bounds, bounds_for
from bundle_router.core.servers.transport.tool_servers import Scope

if TYPE_CHECKING:
    from bundle_router.adapters.mcp.http import OriginClient, TcpPool
    from bundle_router.adapters.mcp.posting import ModernPosts
    from bundle_router.adapters.mcp.server_processes import ProcessSupervisor, ServerCommand
    from bundle_router.adapters.mcp.stdio import Pipes


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
    pool: Callable[[str], TcpPool]
    authorize: Callable[[Server, Scope], Any]
    report: Callable[..., None]
    """Takes a level, an event's name and its fields."""


OpenWire = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]


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


def command_of(server: Server, setting: ConnectionSetting) -> ServerCommand:
    """Return the command of a stdio server. Raises ServerFault."""
    from bundle_router.adapters.mcp.server_processes import DEFAULT_PATH, ServerCommand

    environ = setting.environ
    bounds = setting.bounds
    return ServerCommand(
        server=server.name,
        argv=(server.command or "", *server.args),
        env=resolve_references(server.env, environ),
        cwd=str(setting.workspace.resolve()),
        path=environ.get("PATH") or DEFAULT_PATH,
        polite_s=bounds.polite_s,
        term_s=bounds.term_s,
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


@dataclass(slots=True)
class HttpWire:
    transport: OriginClient
    posting_pool: TcpPool | None = None
    pid: int = 0
    fault: ServerFault | None = None

    @property
    def stateful(self) -> bool:
        return self.transport.stateful

    def note_era(self, accepts: Callable[[str], bool]) -> None:
        self.transport.ready = True

    def carrier(self, on_change: Callable[[], None], *, is_modern: bool) -> ModernPosts | None:
        if is_modern and self.posting_pool:
            return self.transport.modern_posts(self.posting_pool, on_change)
        return None


def _prepare_stdio(server: Server, _scope: Scope, parts: WireParts) -> OpenWire:
    command = command_of(server, parts.setting)
    report = parts.report
    report(
        "info",
        "server.started",
        command=list(command.argv),
        env=sorted(command.env),
        cwd=command.cwd,
    )
    return lambda: _stdio_wire(command, parts.supervisor, parts.setting.bounds, report)


@asynccontextmanager
async def _stdio_wire(
    command: ServerCommand,
    supervisor: ProcessSupervisor,
    bounds: Bounds,
    report: Callable[..., None],
) -> AsyncIterator[tuple[Any, Pipes]]:
    from bundle_router.adapters.mcp.stdio import open_stdio

    async with open_stdio(command, supervisor, bounds, report) as (streams, pipes):
        try:
            yield streams, pipes
        finally:
            if pipes.fault is not None and pipes.fault.kind in ("connection_lost", "not_started"):
                report(
                    "warning",
                    "server.ended",
                    reason=pipes.fault.detail,
                    last_words=pipes.last_words[-500:],
                )


def _prepare_http(
    open_wire: Callable[..., Any], server: Server, scope: Scope, parts: WireParts
) -> OpenWire:
    from bundle_router.adapters.mcp.http import OriginClient

    headers = headers_of(server, parts.setting.environ)
    bounds = parts.setting.bounds
    auth = parts.authorize(server, scope)
    pool = parts.pool(server.name)
    url = server.url or ""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ServerFault("not_permitted", "its address is neither http nor https")
    return lambda: open_wire(
        OriginClient(url, headers, bounds.max_message_bytes, pool), url, pool, auth, bounds
    )


@asynccontextmanager
async def _http_wire(
    transport: OriginClient, url: str, pool: TcpPool, auth: Any, bounds: Bounds
) -> AsyncIterator[tuple[Any, HttpWire]]:
    from bundle_router.adapters.mcp import sdk
    from bundle_router.adapters.mcp.http import open_client

    async with (
        open_client(transport, auth) as client,
        sdk.open_http(url, client, bounds.max_message_bytes) as streams,
    ):
        yield streams, HttpWire(transport, pool if auth is None else None)


@asynccontextmanager
async def _sse_wire(
    transport: OriginClient, url: str, _pool: TcpPool, auth: Any, _bounds: Bounds
) -> AsyncIterator[tuple[Any, HttpWire]]:
    from bundle_router.adapters.mcp import sdk
    from bundle_router.adapters.mcp.http import open_client

    async with sdk.open_sse(url, lambda: open_client(transport, auth)) as streams:
        yield streams, HttpWire(transport)


WIRES: Final[Mapping[Transport, Callable[[Server, Scope, WireParts], OpenWire]]] = {
    "streamable-http": partial(_prepare_http, _http_wire),
    "sse": partial(_prepare_http, _sse_wire),
    "stdio": _prepare_stdio,
}
"""How a connection is prepared (raises ServerFault, contacts nobody); what is returned opens it."""
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
