"""The service: decisions over HTTP (`/v1`), runs over MCP (`/mcp`), probes and pages. `serve` begins it,
`serve_mcp` the MCP endpoint alone.

Rules:
1. Before anything else of a request is read: Host and Origin are compared whole, then the token, in constant time; then
   path and method. What fails is answered with a sentence and a closed connection, and its body is not read.
2. Bodies are bounded in bytes and in time, and so are headers. No body can name a server, a command or a path to one.
3. A list belongs to a decision: it is made when it is first asked for and stays, byte for byte, until the engine's next
   `route()`, which is announced to those who listen. A call through a meta-tool changes nothing of it.
4. Calls take the router's own way: policy, records and artifacts are as for the library.
5. One run, one server: a session that was opened for one run is unknown to every other.
6. What is begun is ended: `serve_mcp` leaves no task, socket or session behind, and takes less than `STOP_S` for it.
"""

from bundle_router.serving.address import ServiceAddress
from bundle_router.serving.endpoint import STOP_S, Endpoint, require_extra, serve_mcp
from bundle_router.serving.keys import Keys, key_from_env, new_key
from bundle_router.serving.service import serve
from bundle_router.serving.tokens import AccessTokens

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
