"""The endpoint: opens a socket, answers on it, and shuts down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal

from bundle_router.errors import NotInstalled
from bundle_router.service.address import ServiceAddress
from bundle_router.service.gate import ROOT, SIGN_IN, Admission, path_of
from bundle_router.service.http import application
from bundle_router.service.keys import Keys, new_key, run_tag
from bundle_router.service.mcp.mount import mcp_routes
from bundle_router.service.mcp.served_runs import ServedRuns
from bundle_router.service.requests import RequestBounds, Requests
from bundle_router.service.sign_in_codes import SignInCodes
from bundle_router.service.tokens import AccessTokens

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from bundle_router.wiring import Router
    from bundle_router.wiring.endpoint_access import EndpointAccess

STOP_S: Final = 5.0
"""Maximum seconds that an endpoint takes to stop."""
GRACE_S: Final = 1.5
"""Seconds of these that calls in progress get to end by themselves."""
HEAD_S: Final = 10.0
BODY_S: Final = 15.0


class Endpoint:
    """A running endpoint: its addresses and tokens.

    >>> import asyncio
    >>> from bundle_router.service import serve_mcp
    >>> from bundle_router.testing import fake_router, small_catalog
    >>> async def address_of_run() -> str:
    ...     async with fake_router(small_catalog({})) as router, serve_mcp(router) as endpoint:
    ...         return endpoint.url("r-42")
    >>> asyncio.run(address_of_run())
    'http://127.0.0.1:.../mcp/runs/r-42'
    """

    __slots__ = ("_access", "_keys", "base", "codes", "key", "port")

    def __init__(
        self, keys: Keys, address: ServiceAddress, port: int, access: EndpointAccess
    ) -> None:
        self.key = keys.key
        self.port = port
        self.base = address.base(port)
        """The URL that all its paths are under."""
        self.codes = SignInCodes()
        """The unused codes of `sign_in_url`."""
        self._keys = keys
        self._access = access

    def __repr__(self) -> str:
        return f"Endpoint(port={self.port})"

    def url(self, run_id: str | None = None, decision: str | None = None) -> str:
        """Return the URL of a run: with its default branch, or with this decision while that is
        open (for agents of branches, each with its own). None: the token's own run.
        """
        return f"{self.base}{path_of(run_id, decision) if run_id is not None else ROOT}"

    def sign_in_url(self) -> str:
        """Return a new URL that signs one browser in at the pages, as the service's own token does.

        It works once, for ten minutes, while this endpoint runs, and only where pages are served.
        """
        return f"{self.base}{SIGN_IN.decode()}?code={self.codes.new()}"

    def token(self, run_id: str, decision: str | None = None) -> str:
        """Return the bearer token that opens only this run, to pass to its agent.

        With a decision, the token opens the run under that decision only. Raises UnknownRun for a
        run without a decision.
        """
        return self._keys.token_for_run(
            run_id, run_tag(self._access.decision_id_now(run_id)), decision
        )


@contextlib.asynccontextmanager
async def serve_mcp(
    router: Router | EndpointAccess,
    *,
    key: str | None = None,
    port: int = 0,
    head_s: float = HEAD_S,
    body_s: float = BODY_S,
    address: ServiceAddress | None = None,
    tokens: AccessTokens | None = None,
) -> AsyncIterator[Endpoint]:
    """Serve the router's runs over MCP on 127.0.0.1, or at `address`, while the context lasts.

    `key` is the bearer token that opens every run (None: a new one), `tokens` a file of others,
    read once; `port` 0 means any free one. `[service]` of the config is not for this endpoint:
    `serve` has its bounds, and takes tokens of its issuer. The head of a request may take `head_s`
    seconds to arrive, its body `body_s`. At the end, calls in progress get `GRACE_S` seconds; then
    they are cancelled, and recorded as such. All of it takes less than `STOP_S`. Leave the context
    before the router is closed.

    Raises RequestError for a port that is taken or an invalid key, NotInstalled without the SDK.

    >>> import asyncio
    >>> from bundle_router.service import serve_mcp
    >>> from bundle_router.testing import fake_router, small_catalog
    >>> async def address_of_run() -> str:
    ...     async with fake_router(small_catalog({})) as router, serve_mcp(router) as endpoint:
    ...         return endpoint.url("r-42")
    >>> asyncio.run(address_of_run())
    'http://127.0.0.1:.../mcp/runs/r-42'
    """
    require_extra("mcp")
    from bundle_router.wiring import Router

    access: EndpointAccess = router.endpoint if isinstance(router, Router) else router
    requests = Requests(RequestBounds(body_s=body_s))
    keys = await opened_keys(access, key, tokens)
    address = address or ServiceAddress(port=port)
    async with (
        served_runs(access) as runs,
        answering(access, requests, runs, keys=keys, address=address, head_s=head_s) as (
            endpoint,
            begin,
        ),
    ):
        begin(mcp_routes(runs), Admission(address.own_names(endpoint.port), keys))
        yield endpoint


async def opened_keys(access: EndpointAccess, key: str | None, tokens: AccessTokens | None) -> Keys:
    """Return the service's tokens, and hide their file from all tools. Raises RequestError."""
    if tokens is None:
        return Keys(new_key() if key is None else key)
    access.hide(str(tokens.path))
    return Keys(new_key() if key is None else key, await asyncio.to_thread(tokens.read))


@contextlib.asynccontextmanager
async def served_runs(access: EndpointAccess) -> AsyncIterator[ServedRuns]:
    """Yield the runs as MCP servers, and end their sessions at the end.

    The SDK is imported in the background, which takes a second; only the first request may have to
    wait for it.
    """
    loaded = asyncio.ensure_future(
        asyncio.to_thread(import_module, "bundle_router.service.mcp.run_server")
    )
    runs = ServedRuns(access, loaded)
    try:
        yield runs
    finally:
        await runs.close()
        await loaded


Begin = Callable[[Sequence["BaseRoute"], Admission], None]
"""Starts to answer these routes for admitted requests."""


@contextlib.asynccontextmanager
async def answering(
    access: EndpointAccess,
    requests: Requests,
    runs: ServedRuns,
    *,
    keys: Keys,
    address: ServiceAddress,
    head_s: float,
) -> AsyncIterator[tuple[Endpoint, Begin]]:
    """Yield an endpoint with its listening socket, and the function that starts to answer there.

    At the end, requests in progress get `GRACE_S` and are then cancelled. Raises RequestError.
    """
    from bundle_router.wiring.effects import start_listener

    address.refuse_open(has_tokens=bool(keys.named))
    access.hide(address.certificate, address.private_key)
    access.keep_secret("endpoint", keys.key)  # runs' tokens are recognised by their shape
    closing: list[Callable[[], Awaitable[None]]] = []
    listening = address.listen()
    endpoint = Endpoint(keys, address, listening.getsockname()[1], access)

    def begin(routes: Sequence[BaseRoute], admission: Admission) -> None:
        tls = (address.certificate, address.private_key)
        answers = application(routes, admission, requests)
        closing.append(start_listener(answers, listening, head_s, tls).close)

    try:
        yield endpoint, begin
    finally:
        try:
            requests.stop()
            runs.end_listening()
            await requests.wait(GRACE_S)
            await runs.close()
            await requests.cancel()
        finally:
            for close in closing:
                await close()
            listening.close()


def require_extra(extra: Literal["mcp", "service"]) -> None:
    """Raise NotInstalled, which names the extra, if one of its libraries is missing.

    Loads none of them.

    >>> from bundle_router.service import require_extra
    >>> require_extra("mcp")
    """
    purpose, modules = _EXTRAS[extra]
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        message = f"{purpose} needs {' and '.join(missing)}, not installed here"
        raise NotInstalled(message, advice=f"pip install 'bundle-router[{extra}]'")


_EXTRAS: Final = {
    "mcp": ("the MCP endpoint", ("mcp", "starlette", "uvicorn")),
    "service": (
        "the service",
        ("mcp", "starlette", "uvicorn", "prometheus_client", "jinja2", "jwt"),
    ),
}
