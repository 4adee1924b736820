"""The service as one ASGI application: middleware that judges and bounds each request, then the mount it is for.

    RequestGate       Host, Origin, token, path as it was sent (`gate`)
      LimitedRequests how many, how large, how slow; their end (`requests`)
        /mcp          runs as MCP servers (`mcp`)
        /             what else is mounted, in the order given

A mount is found by the path alone, and knows from `scope["user"]` who asks (`keys.Caller`). Below the gate a body is
whole and bounded. Knows neither the MCP SDK nor the HTTP server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bundle_router.serving.gate import judge, misplaced
from bundle_router.serving.keys import Keys
from bundle_router.serving.refusals import Asgi, Message, Receive, Refusal, Refusing, Send, refuse
from bundle_router.serving.requests import LimitedRequests, Requests

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

NOTHING = Refusal(404, "not_found", "There is nothing here.", advice="see /openapi.json for what there is")


class RequestGate:
    """The middleware that lets a request in, or answers it without having read its body."""

    def __init__(self, app: Asgi, keys: Keys, port: int) -> None:
        self._app = app
        self._keys = keys
        self._port = port

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        judged = judge(scope["raw_path"], scope["headers"], keys=self._keys, port=self._port)
        if not isinstance(judged, Refusal) and misplaced(scope["raw_path"]):
            judged = NOTHING
        if isinstance(judged, Refusal):
            await refuse(judged, scope, send)
            return
        scope["user"] = judged
        await self._app(scope, receive, send)


def application(routes: Sequence[BaseRoute], keys: Keys, port: int, requests: Requests) -> Asgi:
    """Return the application over these routes, asked in order."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware

    app = Starlette(
        routes=list(routes),
        middleware=[Middleware(RequestGate, keys=keys, port=port), Middleware(LimitedRequests, requests=requests)],
    )
    app.router.redirect_slashes = False
    app.router.default = Refusing(NOTHING)
    return app
