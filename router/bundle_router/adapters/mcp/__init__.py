"""Tool servers over MCP: Streamable HTTP, stdio (development only) and SSE (legacy), behind the
`ToolServers` port.

    setting = ConnectionSetting(bounds_for(limits), development=True)
    sessions = open_mcp_sessions(catalog.servers, setting, clock=..., diagnostics=...)
    result = await sessions.call("github", "search", {"q": "x"}, timeout_s=30)
    await sessions.close()

Importing this costs nothing: the SDK is loaded when the first server is contacted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from bundle_router.adapters.mcp.authorization import Authorization
from bundle_router.adapters.mcp.sessions import McpSessions, SchemaOf
from bundle_router.adapters.mcp.tokens import default_folder
from bundle_router.adapters.mcp.wires import ConnectionSetting
from bundle_router.core.catalog import Server
from bundle_router.ports import Clock, Diagnostics


def open_mcp_sessions(
    servers: Mapping[str, Server],
    setting: ConnectionSetting | None = None,
    *,
    clock: Clock,
    diagnostics: Diagnostics,
    schema_of: SchemaOf | None = None,
    authorization: Authorization | None = None,
) -> McpSessions:
    """Return sessions with the servers of a catalog, without its local ones.

    Nothing is contacted yet.

    `schema_of` gives the schemas that arguments are checked against (default: those the server
    listed last). `authorization` is for servers with `auth` (default: use the tokens in the user's
    data folder, ask nobody for new ones).
    """
    return McpSessions(
        {name: server for name, server in servers.items() if server.traits.is_remote},
        setting or ConnectionSetting(),
        clock=clock,
        diagnostics=diagnostics,
        schema_of=schema_of,
        authorization=authorization or Authorization(default_folder(os.environ)),
    )


__all__ = ["ConnectionSetting", "McpSessions", "open_mcp_sessions"]
