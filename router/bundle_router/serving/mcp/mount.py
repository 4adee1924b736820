"""Runs as MCP servers at `/mcp` and below: which run a request is for. Knows neither the SDK nor the HTTP server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bundle_router.errors import RequestError, RouterError, UnknownRun
from bundle_router.serving.gate import ROOT, UNAUTHORIZED, Destination, Headers, destination_of, is_json
from bundle_router.serving.keys import Caller, begun
from bundle_router.serving.mcp.served_runs import ServedRun, ServedRuns
from bundle_router.serving.mcp.token_runs import TokenRuns
from bundle_router.serving.refusals import Refusal, lacks, refuse

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

METHODS: Final = ("GET", "POST", "DELETE")


def mcp_routes(runs: ServedRuns) -> list[BaseRoute]:
    """Return the routes of the mount."""
    from starlette.routing import Mount

    return [Mount(ROOT, McpMount(runs))]


class McpMount:
    """The ASGI application at `/mcp`, for the run of the token, and below `/mcp/runs`, for the run that is named."""

    def __init__(self, runs: ServedRuns) -> None:
        self._runs = runs
        self._own = TokenRuns(runs.access, runs)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        to = destination_of(scope["raw_path"])
        served: ServedRun | Refusal = NO_RUN
        if to is not None or scope["raw_path"] == ROOT.encode():
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

    async def _served(self, to: Destination | None, caller: Caller) -> ServedRun | Refusal:
        if "call" not in caller.scopes:
            return lacks("call")
        if to is None and not caller.role and "route" not in caller.scopes:
            return _NO_ROLE
        try:
            if to is None:
                return await self._own.get(caller)
            if caller.principal and await self._runs.access.principal(to.run_id) != caller.principal:
                return Refusal(404, "unknown_run", f"run {to.run_id!r} has no decision yet.")
            if caller.run_id is not None and begun(await self._runs.access.decision_id(to.run_id)) != caller.begun:
                return UNAUTHORIZED
            return await self._runs.get(to.run_id, to.decision)
        except UnknownRun as unknown:
            return Refusal(404, "unknown_run", f"{unknown.message}.")
        except RouterError as trouble:
            status = 503 if isinstance(trouble, RequestError) else 500
            return Refusal(status, "unavailable", f"{trouble.message}: {trouble.advice}.")


def _malformed(method: str, headers: Headers) -> Refusal | None:
    if method not in METHODS:
        return _WRONG_METHOD
    return _NOT_JSON if method == "POST" and not is_json(headers) else None


_ALLOWED: Final = ", ".join(METHODS)
_WRONG_METHOD: Final = Refusal(
    405, "method_not_allowed", f"The methods here are {_ALLOWED}.", ((b"allow", _ALLOWED.encode()),)
)
_NOT_JSON: Final = Refusal(400, "malformed", "Send one JSON-RPC message with 'Content-Type: application/json'.")
_NO_ROLE: Final = replace(lacks("route"), advice="use one that has it, or give this one a `role` in the token file")
NO_RUN: Final = Refusal(
    404, "not_found", f"There is nothing here: connect to {ROOT}, or to {ROOT}/runs/ and a run's id."
)
