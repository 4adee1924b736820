"""The service as one ASGI application: middleware that checks and bounds each request, then the
mount for its path.

    RequestGate       Host, Origin, token, path as it was sent (`gate`)
      Requests        number, size and time of requests; shutdown (`requests`)
        /mcp          runs as MCP servers (`mcp`)
        /             other mounts, in the order given

Only the path selects a mount, which finds the caller in `scope["user"]` (`keys.Caller`);
`scope["judge"]` judges it anew. Below the gate a body is whole and bounded. This module knows
neither the MCP SDK nor the HTTP server.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bundle_router.service.gate import (
    PROGRAMS,
    Admission,
    is_misplaced,
    judge,
    without_slash,
)
from bundle_router.service.refusals import Asgi, Message, Receive, Refusal, RefusalApp, Send, refuse
from bundle_router.service.requests import Requests

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

NOTHING = Refusal(
    404, "not_found", "There is nothing at this path.", advice="see /openapi.json for what there is"
)
WRONG_METHOD = Refusal(
    405,
    "method_not_allowed",
    "This path does not take this method.",
    advice="use one that the header Allow lists",
)

OPEN_BODY_BYTES: Final = 4_096
"""Maximum bytes of a body at an address that needs no token: a form with one."""

INERT: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; sandbox"),
)
"""Headers of every answer that does not set its own.

Answers contain tools' results, which no browser may take for a page or a script.
"""


class RequestGate:
    """Middleware that admits a request, or refuses it without reading its body."""

    def __init__(self, app: Asgi, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        address = without_slash(scope["raw_path"])
        if address != scope["raw_path"]:
            scope["raw_path"] = address
            scope["path"] = address.decode("ascii")
        verdict = judge(scope["raw_path"], scope["headers"], self._admission)
        renew = self._admission.renew
        issuer = self._admission.issuer
        if isinstance(verdict, Refusal):
            waits = verdict.status == 401
        else:  # who is known waits for no stranger's token: at most for keys that are too old
            waits = verdict.issued_by is not None and issuer is not None and issuer.is_due
        if waits and renew is not None and await renew():
            verdict = judge(scope["raw_path"], scope["headers"], self._admission)
        if not isinstance(verdict, Refusal) and is_misplaced(scope["raw_path"]):
            verdict = NOTHING
        if issuer is not None and not isinstance(verdict, Refusal):
            verdict = issuer.over_rate(verdict) or verdict

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["begun"] = True
                headers = list(message.get("headers", ()))
                present = dict(headers)
                message["headers"] = headers + [pair for pair in INERT if pair[0] not in present]
            await send(message)

        if isinstance(verdict, Refusal):
            await refuse(verdict, scope, sending)
            return
        if scope["raw_path"] in self._admission.open_to_all:
            scope["max_body_bytes"] = OPEN_BODY_BYTES
        scope["user"] = verdict
        scope["judge"] = partial(judge, scope["raw_path"], scope["headers"], self._admission)
        await self._app(scope, receive, sending)


def application(routes: Sequence[BaseRoute], admission: Admission, requests: Requests) -> Asgi:
    """Return the application over these routes, which are tried in order.

    The first mount, and ASGI applications with one path, are matched without Starlette, whose
    middleware and router cost as much as the gate.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    async def refused(request: Request, error: Exception) -> Response:
        """Answer Starlette's own error: the route does not have the method."""
        headers = dict(getattr(error, "headers", None) or {})
        return Response(
            json.dumps(WRONG_METHOD.to_json()),
            WRONG_METHOD.status,
            headers,
            "application/problem+json",
        )

    def built(served: Sequence[BaseRoute]) -> Asgi:
        app = Starlette(routes=list(served), exception_handlers={HTTPException: refused})
        app.router.redirect_slashes = False
        app.router.default = RefusalApp(NOTHING)
        return app

    every_route = built(routes)
    programs = built(
        [route for route in routes if not isinstance(route, Mount) or route.path]
    )  # no page is beneath
    first = next(route for route in routes if isinstance(route, Mount))
    direct: dict[tuple[str, str], Asgi] = {
        (method, route.path): route.endpoint
        for route in routes
        if isinstance(route, Route) and route.app is route.endpoint and "{" not in route.path
        for method in route.methods or ()
    }

    def dispatched(scope: Message, receive: Receive, send: Send) -> Awaitable[None]:
        path: str = scope["path"]
        if path == first.path or path.startswith(f"{first.path}/"):
            return first.app(scope, receive, send)
        application = programs if scope["raw_path"].startswith(PROGRAMS) else every_route
        return direct.get((scope["method"], path), application)(scope, receive, send)

    return RequestGate(partial(requests.carry_out, dispatched), admission)
