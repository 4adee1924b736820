"""Runs as MCP servers at `/mcp` and below: finds the run of a request.

Knows neither the SDK nor the HTTP server.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from bundle_router.core.values import Step
from bundle_router.errors import CorruptRun, RequestError, RouterError, UnknownRun
from bundle_router.service.gate import (
    ROOT,
    UNAUTHORIZED,
    Destination,
    Headers,
    destination_of,
    is_json,
)
from bundle_router.service.keys import Caller, run_tag
from bundle_router.service.mcp.served_runs import ServedRun, ServedRuns
from bundle_router.service.refusals import NO_SUCH_RUN, Refusal, missing_scope, refuse
from bundle_router.wiring.endpoint_access import EndpointAccess

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

METHODS: Final = ("GET", "POST", "DELETE")


def mcp_routes(runs: ServedRuns) -> list[BaseRoute]:
    """Return the routes of the mount."""
    from starlette.routing import Mount

    return [Mount(ROOT, McpMount(runs))]


TOGETHER: Final = 8
"""Number of a run's requests above which a new one waits some turns of the loop before it begins,
where it takes least memory. Open event streams do not count.
"""
_LISTENING: Final = (b"mcp-method", b"subscriptions/listen")


class McpMount:
    """The ASGI application at `/mcp` for the token's run, and at `/mcp/runs` for the run in the
    path.
    """

    def __init__(self, runs: ServedRuns) -> None:
        self._runs = runs
        self._token_runs = TokenRuns(runs.access, runs)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        to = destination_of(scope["raw_path"])
        served: ServedRun | Refusal = NO_RUN
        if to is not None or scope["raw_path"] == ROOT.encode():
            served = _refuse_malformed(
                scope["method"], scope["headers"]
            ) or await self._find_served(to, scope["user"])
        if isinstance(served, Refusal):
            await refuse(served, scope, send)
            return
        listens = scope["method"] == "GET" or _LISTENING in scope["headers"]
        served.requests += 1
        served.streams += listens
        try:
            for _ in range((served.requests - served.streams) // TOGETHER):
                await asyncio.sleep(0)
            await served.server.handle(scope, receive, self._checked(to, scope, send))
        finally:
            served.requests -= 1
            served.streams -= listens

    def _checked(self, to: Destination | None, scope: Any, send: Any) -> Any:
        """Return a `send` that ends a stream before its first event, or ping, that a new request
        would not be given.
        """
        is_ended = False

        async def sending(message: Any) -> None:
            nonlocal is_ended
            if message.get("more_body") and not is_ended:
                caller = scope["judge"]()
                if to is None or isinstance(caller, Refusal):
                    target = caller
                else:
                    target = await self._find_served(to, caller)
                is_ended = isinstance(target, Refusal) or (to is None and caller != scope["user"])
                await send({"type": message["type"]} if is_ended else message)
            elif not is_ended:
                await send(message)

        return sending

    async def _find_served(self, to: Destination | None, caller: Caller) -> ServedRun | Refusal:
        if "call" not in caller.scopes:
            return missing_scope("call", caller)
        if to is None and not caller.role and "route" not in caller.scopes:
            return _no_role(caller)
        try:
            if to is None:
                return await self._token_runs.get(caller)
            if caller.principal and not await self._belongs_to(to.run_id, caller.principal):
                return NO_SUCH_RUN
            if (
                caller.run_id is not None
                and run_tag(await self._runs.access.decision_id(to.run_id)) != caller.begun
            ):
                return UNAUTHORIZED
            return await self._runs.get(to.run_id, to.decision)
        except UnknownRun as unknown:
            return Refusal(404, "unknown_run", f"{unknown.message}.")
        except RouterError as trouble:
            status = 503 if isinstance(trouble, RequestError) else 500
            return Refusal(status, "unavailable", f"{trouble.message}: {trouble.advice}.")

    async def _belongs_to(self, run_id: str, principal: str) -> bool:
        """Return whether a run exists and all its steps are this principal's.

        Of a damaged one nobody knows whose it was.
        """
        try:
            return await self._runs.access.principal(run_id) == principal
        except UnknownRun:
            return False
        except CorruptRun as error:
            self._runs.access.report("error", "request.failed", error=error)
            return False


def _refuse_malformed(method: str, headers: Headers) -> Refusal | None:
    if method not in METHODS:
        return _WRONG_METHOD
    return _NOT_JSON if method == "POST" and not is_json(headers) else None


def _no_role(caller: Caller) -> Refusal:
    refusal = missing_scope("route", caller)
    if caller.issued_by is not None:
        return refusal
    return replace(
        refusal, advice="use one that has it, or give this one a `role` in the token file"
    )


_ALLOWED: Final = ", ".join(METHODS)
_WRONG_METHOD: Final = Refusal(
    405,
    "method_not_allowed",
    f"This path takes the methods {_ALLOWED}.",
    ((b"allow", _ALLOWED.encode()),),
)
_NOT_JSON: Final = Refusal(
    400, "malformed", "Send one JSON-RPC message with 'Content-Type: application/json'."
)
NO_RUN: Final = Refusal(
    404,
    "not_found",
    f"There is nothing here: connect to {ROOT}, or to {ROOT}/runs/ and a run's id.",
)


class TokenRuns:
    """The tokens' own runs, which agents use at `/mcp`.

    No engine routes their steps. Belongs to one event loop.

    1. A token has one run for all its sessions, begun with its first request. Its step is: workflow
       `mcp`, step `session`, the token's role and principal. Policy and routes for that step decide
       what the run is given. Without a route, all that policy permits is available through the
       router's own tools.
    2. The run is routed again when the config, or the facts about servers, have changed since its
       decision.
    3. After it was closed, as idle runs are, the next request begins a new one; an open session
       continues the old one.
    """

    def __init__(self, access: EndpointAccess, served: ServedRuns) -> None:
        self._access = access
        self._find_served = served
        self._runs: dict[Caller, str] = {}
        self._lock = asyncio.Lock()

    async def get(self, caller: Caller) -> ServedRun:
        """Return the token's run, served.

        Raises RequestError, StorageError and the errors of routing.
        """
        if not await self._is_current(self._runs.get(caller)):
            async with self._lock:
                run_id = self._runs.get(caller)
                if not await self._is_current(run_id):
                    await self._route(caller, run_id)
        return await self._find_served.get(self._runs[caller])

    async def _is_current(self, run_id: str | None) -> bool:
        return (
            run_id is not None
            and self._access.is_open(run_id)
            and await self._access.is_current(run_id)
        )

    async def _route(self, caller: Caller, run_id: str | None) -> None:
        if run_id is None or not self._is_in_use(run_id):
            self._runs = {
                other: id_ for other, id_ in self._runs.items() if self._access.is_open(id_)
            }
            began = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
            run_id = f"mcp-{caller.name.replace('@', '-')}-{began}-{secrets.token_hex(3)}"
        place = {"workflow": "mcp", "role": caller.role or caller.name, "step": "session"}
        await self._access.offer(
            Step(run_id=run_id, principal=caller.principal, fixed_list=True, **place)
        )
        self._runs[caller] = run_id

    def _is_in_use(self, run_id: str) -> bool:
        return self._access.is_open(run_id) or self._find_served.is_used(run_id)
