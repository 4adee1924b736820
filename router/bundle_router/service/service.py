"""The whole service: the decision API, runs over MCP, probes, and pages if they are passed in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from bundle_router.core.values import Decision, Step
from bundle_router.engine.results import Result
from bundle_router.service.address import ServiceAddress
from bundle_router.service.endpoint import (
    HEAD_S,
    Endpoint,
    answering,
    opened_keys,
    require_extra,
    served_runs,
)
from bundle_router.service.gate import Admission
from bundle_router.service.idling import IdleRuns
from bundle_router.service.mcp.mount import mcp_routes
from bundle_router.service.refusals import Asgi, ScopedMount
from bundle_router.service.reloading import ConfigWatch, WatchedPages
from bundle_router.service.requests import RequestBounds, Requests
from bundle_router.service.telemetry import SpanExport, Telemetry
from bundle_router.service.tokens import AccessTokens

if TYPE_CHECKING:
    from bundle_router.wiring import Router
    from bundle_router.wiring.endpoint_access import EndpointAccess


class ObservedRouter:
    """A router for the MCP endpoint that reports its calls, and keeps their runs from counting as
    idle.
    """

    def __init__(self, access: EndpointAccess, telemetry: Telemetry, idle: IdleRuns) -> None:
        self._access = access
        self._telemetry = telemetry
        self._idle = idle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._access, name)

    async def offer(self, step: Step) -> Decision:
        """See the router's `offer`."""
        return await self._telemetry.decision(self._access.offer(step))

    async def call(
        self, run_id: str, name: str, arguments: Mapping[str, Any], **options: Any
    ) -> Result:
        """See the router's `call`."""
        with self._idle.use(run_id):
            return await self._telemetry.call(
                run_id, name, self._access.call(run_id, name, arguments, **options)
            )


@contextlib.asynccontextmanager
async def serve(
    router: Router,
    *,
    key: str | None = None,
    port: int = 0,
    pages: Asgi | None = None,
    head_s: float = HEAD_S,
    address: ServiceAddress | None = None,
    tokens: AccessTokens | None = None,
) -> AsyncIterator[Endpoint]:
    """Serve a router to engines (`/v1`), to agents (`/mcp`) and, with `pages`, to people (`/`)
    while the context lasts.

    `key` is the bearer token for everything (None: a new one), `tokens` a file of others, read
    again when it changes; `port` 0 means any free one, `address` sets more. `[service]` of the
    config has the bounds. At the end, requests in progress get `GRACE_S` seconds; then they are
    cancelled, and recorded as such. All of it takes less than `STOP_S`. Leave the context before
    the router is closed.

    Raises RequestError for a port that is taken or an invalid key, NotInstalled if a library is
    missing.

    >>> import asyncio
    >>> from bundle_router.service import serve
    >>> from bundle_router.testing import fake_router, small_catalog
    >>> async def address_of_run() -> str:
    ...     async with fake_router(small_catalog({})) as router, serve(router) as endpoint:
    ...         return endpoint.url("r-42")
    >>> asyncio.run(address_of_run())
    'http://127.0.0.1:.../mcp/runs/r-42'
    """
    require_extra("service")
    from starlette.routing import Mount

    from bundle_router.service.api.routes import DecisionApi
    from bundle_router.service.issuer import Issuer
    from bundle_router.service.metrics import ServiceMetrics
    from bundle_router.service.probes import OPEN_TO_ALL, probe_routes

    keys = await opened_keys(router.endpoint, key, tokens)
    address = address or ServiceAddress(port=port)
    settings = router.catalog.settings.service
    requests = Requests(
        RequestBounds(settings.max_requests, settings.max_body_bytes, settings.body_s)
    )
    metrics = ServiceMetrics(lambda: requests.under_way)
    async with contextlib.AsyncExitStack() as stack:
        report = router.endpoint.report
        traces = settings.traces
        spans = await asyncio.to_thread(SpanExport, traces) if traces is not None else None
        telemetry = Telemetry(metrics, spans, report, lambda: router.catalog.servers)
        stack.push_async_callback(asyncio.to_thread, telemetry.close)
        idle = IdleRuns(settings.idle_run_s, router.endpoint.close_idle, report)
        stack.push_async_callback(idle.end)
        stack.callback(router.endpoint.watch(idle.note))
        edits = pages.edits if isinstance(pages, WatchedPages) else None
        watch = ConfigWatch(router, keys, tokens, metrics.reloaded, edits)
        stack.push_async_callback(watch.end)
        access = cast("EndpointAccess", ObservedRouter(router.endpoint, telemetry, idle))
        runs = await stack.enter_async_context(served_runs(access))
        endpoint, begin = await stack.enter_async_context(
            answering(access, requests, runs, keys=keys, address=address, head_s=head_s)
        )
        api = DecisionApi(router, telemetry, idle, request_s=settings.request_s)
        stack.callback(api.close)
        routes = [
            *mcp_routes(runs),
            *api.routes(),
            *probe_routes(router, metrics, watch, lambda: runs.trouble),
        ]
        admission = Admission(
            address.own_names(endpoint.port),
            keys,
            frozenset(OPEN_TO_ALL),
            probes=frozenset(OPEN_TO_ALL),
            renew=watch.look_at_tokens,
        )
        if settings.issuer is not None:
            issuer = Issuer(
                router.endpoint.issuer_tokens(settings.issuer), settings.issuer, endpoint.base
            )
            routes += issuer.routes()
            admission = issuer.admitting(admission)
        if pages is not None:
            from bundle_router.service.sign_in import PATH, BrowserSessions

            browsers = BrowserSessions(
                keys,
                endpoint.codes,
                endpoint.port,
                secure=endpoint.base.startswith("https:"),
            )
            routes += [
                *browsers.routes(),
                Mount("/", ScopedMount(pages, "review", lambda: watch.problems)),
            ]
            opened = admission.open_to_all | {PATH.encode()}
            admission = replace(admission, open_to_all=opened, browsers=browsers.caller)
        begin(routes, admission)
        yield endpoint
