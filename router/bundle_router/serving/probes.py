"""How the service is: `/healthz`, `/readyz` and `/metrics`.

Rules:
1. The first two answer without a token, for whoever watches processes, and then say one word. With one, `/readyz` says
   the rest.
2. Ready is who can keep a decision and answer agents: the store can be written, what MCP takes is loaded, and the
   service is not being stopped. A config that was edited to an invalid one and a server that is away are told of, and
   change nothing: the last good one serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bundle_router.errors import RouterError
from bundle_router.serving.keys import NOBODY
from bundle_router.serving.metrics import CONTENT_TYPE, ServiceMetrics
from bundle_router.serving.reloading import ConfigWatch
from bundle_router.wiring import Router

OPEN_TO_ALL: Final = (b"/healthz", b"/readyz")
CHECK_S: Final = 2.0
"""How long the store may take to answer."""


def probe_routes(
    router: Router, metrics: ServiceMetrics, watch: ConfigWatch, agents: Callable[[], str]
) -> list[BaseRoute]:
    """Return the routes. `agents` says why none can be answered now; empty where they can."""

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        away, trouble = agents(), await _store_trouble(router)
        body: dict[str, Any] = {"ready": not (away or trouble)}
        if request.scope["user"] is not NOBODY:
            body |= {"store": trouble or "ok", "mcp": away or "ok", **_about(router, watch.problems)}
        return JSONResponse(body, 200 if body["ready"] else 503)

    async def series(_request: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    table = (("/healthz", healthz), ("/readyz", readyz), ("/metrics", series))
    return [Route(path, work, methods=["GET"]) for path, work in table]


async def _store_trouble(router: Router) -> str:
    """Return why no run can be kept now; empty where it can."""
    try:
        await asyncio.wait_for(router.endpoint.check_store(), CHECK_S)
    except TimeoutError:
        return f"the store did not answer within {CHECK_S:g} seconds"
    except RouterError as error:
        return error.message
    return ""


def _about(router: Router, problems: Sequence[str]) -> dict[str, Any]:
    """Return what is in force, and what of it can't be used now."""
    catalog, away = router.catalog, router.endpoint.unusable_servers()
    servers = [
        {"name": name, "available": name not in away, "why": away.get(name, "")}
        for name, server in sorted(catalog.servers.items())
        if server.enabled
    ]
    return {"config": {"revision": catalog.revision, "problems": list(problems)}, "servers": servers}
