"""Runs as MCP servers below `/mcp`: which run a request is for. Knows neither the SDK nor the HTTP server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bundle_router.errors import RequestError, RouterError, UnknownRun
from bundle_router.serving.gate import Destination, Headers, destination_of, is_json
from bundle_router.serving.keys import Caller
from bundle_router.serving.mcp.served_runs import ServedRun, ServedRuns
from bundle_router.serving.refusals import Refusal, Refusing, lacks, refuse

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

METHODS: Final = ("GET", "POST", "DELETE")


def mcp_routes(runs: ServedRuns) -> list[BaseRoute]:
    """Return the routes of the mount."""
    from starlette.routing import Mount, Route

    return [Mount("/mcp/runs", McpMount(runs)), Route("/mcp", Refusing(_NO_ROOT)), Mount("/mcp", Refusing(NO_RUN))]


class McpMount:
    """The ASGI application below `/mcp/runs`."""

    def __init__(self, runs: ServedRuns) -> None:
        self._runs = runs

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        to = destination_of(scope["raw_path"])
        served: ServedRun | Refusal = NO_RUN
        if to is not None:
            refused = _malformed(scope["method"], scope["headers"])
            served = refused or await self._served(to, scope["user"])
        if isinstance(served, Refusal):
            await refuse(served, scope, send)
            return
        served.requests += 1
        try:
            await served.server.handle(scope, receive, send)
        finally:
            served.requests -= 1

    async def _served(self, to: Destination, caller: Caller) -> ServedRun | Refusal:
        if "call" not in caller.scopes:
            return lacks("call")
        try:
            if caller.principal and await self._runs.principal(to.run_id) != caller.principal:
                return Refusal(404, "unknown_run", f"run {to.run_id!r} has no decision yet.")
            return await self._runs.get(to.run_id, to.decision)
        except UnknownRun as unknown:
            return Refusal(404, "unknown_run", f"{unknown.message}.")
        except RouterError as trouble:
            status = 503 if isinstance(trouble, RequestError) else 500
            return Refusal(status, "unavailable", f"{trouble.message}: {trouble.advice}.")


def _malformed(method: str, headers: Headers) -> Refusal | None:
    if method not in METHODS:
        allowed = ", ".join(METHODS)
        sentence = f"The methods here are {allowed}."
        return Refusal(405, "method_not_allowed", sentence, ((b"allow", allowed.encode()),))
    if method == "POST" and not is_json(headers):
        sentence = "Send one JSON-RPC message with 'Content-Type: application/json'."
        return Refusal(400, "malformed", sentence)
    return None


NO_RUN: Final = Refusal(404, "not_found", "There is nothing here: connect to /mcp/runs/ and the id of a run.")
_NO_ROOT: Final = Refusal(404, "not_found", "This version serves runs only: connect to /mcp/runs/ and the id of a run.")
