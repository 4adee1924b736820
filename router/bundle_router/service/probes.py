"""The state of the service: `/healthz`, `/readyz` and `/metrics`.

Rules:
1. The first two answer one word without a token, for whatever monitors processes. With a token,
   `/readyz` gives the details.
2. Ready means able to store a decision and to answer agents: the store is writable, the MCP SDK is
   loaded, and the service is not stopping. An invalid config edit or an unavailable server is
   reported but does not count: the last good config stays in force.
3. `/metrics` counts what all principals do. It needs the scope `metrics` or `review`, and a token
   that speaks for no single principal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bundle_router.errors import RouterError
from bundle_router.service.api.routes import respond
from bundle_router.service.keys import NOBODY, Caller
from bundle_router.service.metrics import CONTENT_TYPE, ServiceMetrics
from bundle_router.service.refusals import refusal_of
from bundle_router.service.reloading import ConfigWatch
from bundle_router.wiring import Router

OPEN_TO_ALL: Final = (b"/healthz", b"/readyz")
CHECK_S: Final = 2.0
"""Seconds that the store may take to answer."""


def probe_routes(
    router: Router, metrics: ServiceMetrics, watch: ConfigWatch, agents: Callable[[], str]
) -> list[BaseRoute]:
    """Return the routes. `agents` returns why no agent can be answered now; empty if they can."""

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        away = agents()
        trouble = await _store_trouble(router)
        is_ready = not away and not trouble
        body: dict[str, Any] = {"ready": is_ready}
        if request.scope["user"] is not NOBODY:
            body["store"] = trouble or "ok"
            body["mcp"] = away or "ok"
            body.update(_about(router, watch.problems))
        return JSONResponse(body, 200 if is_ready else 503)

    async def series(request: Request) -> Response:
        caller: Caller = request.scope["user"]
        # Whoever may see the pages may see this; a scraper needs no more than its own scope.
        refusal = refusal_of(caller, "review" if "review" in caller.scopes else "metrics")
        if refusal is not None:
            return respond(refusal)
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    table = (("/healthz", healthz), ("/readyz", readyz), ("/metrics", series))
    return [Route(path, work, methods=["GET"]) for path, work in table]


async def _store_trouble(router: Router) -> str:
    """Return why no run can be stored now; empty if runs can be."""
    try:
        await asyncio.wait_for(router.endpoint.check_store(), CHECK_S)
    except TimeoutError:
        return f"the store did not answer within {CHECK_S:g} seconds"
    except RouterError as error:
        return error.message
    return ""


def _about(router: Router, problems: Sequence[str]) -> dict[str, Any]:
    """Return the versions in force, and what of them is unusable now."""
    catalog = router.catalog
    away = router.endpoint.unusable_servers()
    servers = [
        {"name": name, "available": name not in away, "why": away.get(name, "")}
        for name, server in sorted(catalog.servers.items())
        if server.enabled
    ]
    return {
        "config": {
            "revision": catalog.revision,
            "policy": router.endpoint.policy_file,
            "problems": list(problems),
        },
        "servers": servers,
    }
