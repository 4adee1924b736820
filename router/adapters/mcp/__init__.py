"""Tool servers over MCP: Streamable HTTP, stdio (development only) and SSE (legacy), behind the `ToolServers` port.

    sessions = open_mcp_sessions(catalog.servers, limits=..., clock=..., diagnostics=..., development=True)
    result = await sessions.call("github", "search", {"q": "x"}, workspace="", timeout_s=30)
    await sessions.close()

Importing this costs nothing: the SDK is loaded when the first server is contacted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from router.adapters.mcp.sessions import McpSessions, SchemaOf
from router.core.catalog import Limits, Server
from router.core.transport.bounds import Bounds, bounds_for
from router.ports import Clock, Diagnostics, Scope


def open_mcp_sessions(
    servers: Mapping[str, Server],
    *,
    clock: Clock,
    diagnostics: Diagnostics,
    limits: Limits | None = None,
    bounds: Bounds | None = None,
    environ: Mapping[str, str] | None = None,
    development: bool = False,
    workspace: str | Path = ".",
    client: tuple[str, str] = ("bundle-router", "0"),
    schema_of: SchemaOf | None = None,
    auth_for: Callable[[Server, Scope], Any] | None = None,
) -> McpSessions:
    """Sessions with the servers of a catalog (its local ones are left out); contacts nobody yet.

    `bounds` are those that follow from `limits` unless given. `environ` is what `${NAME}` refers to (default: this
    process's environment). `development` permits stdio; `workspace` is the folder stdio servers are started in.
    `client` is the name and version that servers are told. `schema_of` gives the schemas that arguments are checked
    against (default: those the server listed last). `auth_for` gives the OAuth flow of a server (see `authorization`).
    """
    return McpSessions(
        {name: server for name, server in servers.items() if server.transport != "local"},
        bounds=bounds or bounds_for(limits or Limits()),
        clock=clock,
        diagnostics=diagnostics,
        environ=os.environ if environ is None else environ,
        development=development,
        workspace=str(Path(workspace).resolve()),
        client=client,
        schema_of=schema_of,
        auth_for=auth_for or (lambda _server, _scope: None),
    )


__all__ = ["McpSessions", "open_mcp_sessions"]
