"""The service: decisions over HTTP (`/v1`), runs over MCP (`/mcp`), probes and pages.

`serve` starts it, `serve_mcp` starts only the MCP endpoint.

Rules:
1. The head of a request is checked first: Host and Origin are compared whole, then the token in
   constant time, then path and method. A failing request gets a sentence and a closed connection;
   its body is not read.
2. Bodies and headers are bounded in bytes and in time. No body can name a server's command or
   address, or a path.
3. A tool list belongs to a decision. It is built on first request and stays the same, byte for
   byte, until the engine's next `route()`, which is announced to listeners. Calling a meta-tool
   does not change it.
4. Calls go through the router: policy, records and artifacts are the same as for the library.
5. A session belongs to one run, and is unknown to all others.
6. `serve_mcp` ends everything it began: no task, socket or session is left, within `STOP_S`.
"""

from bundle_router.service.address import ServiceAddress
from bundle_router.service.endpoint import STOP_S, Endpoint, require_extra, serve_mcp
from bundle_router.service.keys import Keys, key_from_env, new_key
from bundle_router.service.service import serve
from bundle_router.service.tokens import AccessTokens

__all__ = [
    "STOP_S",
    "AccessTokens",
    "Endpoint",
    "Keys",
    "ServiceAddress",
    "key_from_env",
    "new_key",
    "require_extra",
    "serve",
    "serve_mcp",
]
