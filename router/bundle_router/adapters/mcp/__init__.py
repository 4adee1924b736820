"""Tool servers over MCP: Streamable HTTP, stdio (development only) and SSE (legacy), behind the `ToolServers` port.

    sessions = open_mcp_sessions(catalog.servers, limits=..., clock=..., diagnostics=..., development=True)
    result = await sessions.call("github", "search", {"q": "x"}, workspace="", timeout_s=30)
    await sessions.close()

Importing this costs nothing: the SDK is loaded when the first server is contacted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from bundle_router.adapters.mcp.authorization import Authorization
from bundle_router.adapters.mcp.sessions import McpSessions, SchemaOf
from bundle_router.adapters.mcp.tokens import default_folder
from bundle_router.core.catalog import CallLimits, Server
from bundle_router.core.tools.transport.bounds import Bounds, bounds_for
from bundle_router.ports import Clock, Diagnostics


def open_mcp_sessions(
    servers: Mapping[str, Server],
    *,
    clock: Clock,
    diagnostics: Diagnostics,
    limits: CallLimits | None = None,
    bounds: Bounds | None = None,
    environ: Mapping[str, str] | None = None,
    development: bool = False,
    workspace: str | Path = ".",
    client: tuple[str, str] = ("bundle-router", "0"),
    schema_of: SchemaOf | None = None,
    authorization: Authorization | None = None,
) -> McpSessions:
    """Sessions with the servers of a catalog (its local ones are left out); contacts nobody yet.

    `bounds` are those that follow from `limits` unless given. `environ` is what `${NAME}` refers to (default: this
    process's environment). `development` permits stdio; `workspace` is the folder stdio servers are started in.
    `client` is the name and version that servers are told. `schema_of` gives the schemas that arguments are checked
    against (default: those the server listed last). `authorization` is for servers with `auth` (default: the tokens in
    the user's data folder are used, and nobody is asked for others).
    """
    return McpSessions(
        {name: server for name, server in servers.items() if server.traits.is_remote},
        bounds=bounds or bounds_for(limits or CallLimits()),
        clock=clock,
        diagnostics=diagnostics,
        environ=os.environ if environ is None else environ,
        development=development,
        workspace=str(Path(workspace).resolve()),
        client=client,
        schema_of=schema_of,
        authorization=authorization or Authorization(default_folder(os.environ)),
    )


__all__ = ["McpSessions", "open_mcp_sessions"]
