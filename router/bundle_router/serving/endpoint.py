"""The endpoint, from its socket to its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from bundle_router.errors import RequestError
from bundle_router.serving.gate import path_of
from bundle_router.serving.http import application
from bundle_router.serving.keys import Keys, new_key
from bundle_router.serving.mcp.mount import mcp_routes
from bundle_router.serving.mcp.runs import ServedRouter, ServedRuns
from bundle_router.serving.requests import RequestBounds, Requests

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from bundle_router.wiring import Router

HOST: Final = "127.0.0.1"
"""Loopback alone: what serves other machines needs more than a token."""
STOP_S: Final = 5.0
"""An endpoint has ended this many seconds after it was told to."""
GRACE_S: Final = 1.5
"""Of these, what calls under way have to end by themselves."""
BACKLOG: Final = 128
HEAD_S: Final = 10.0
BODY_S: Final = 15.0


class Endpoint:
    """A running endpoint: where it is, and what opens it."""

    __slots__ = ("_keys", "key", "port")

    def __init__(self, key: str, port: int) -> None:
        self.key = key
        self.port = port
        self._keys = Keys(key)

    def __repr__(self) -> str:
        return f"Endpoint(port={self.port})"

    @property
    def base(self) -> str:
        """Where the service is."""
        return f"http://{HOST}:{self.port}"

    def url(self, run_id: str, decision: str | None = None) -> str:
        """Where a run is served: as its default branch stands, or under this decision of it while that is open (for
        the agents of branches, each at its own)."""
        return f"{self.base}{path_of(run_id, decision)}"

    def token(self, run_id: str, decision: str | None = None) -> str:
        """The bearer token that opens this run and no other: what to hand to its agent. With a decision, the one that
        opens the run under that decision alone."""
        return self._keys.of_run(run_id, decision)


@contextlib.asynccontextmanager
async def serve_mcp(
    router: Router | ServedRouter,
    *,
    key: str | None = None,
    port: int = 0,
    head_s: float = HEAD_S,
    body_s: float = BODY_S,
) -> AsyncIterator[Endpoint]:
    """Serves the router's runs over MCP on 127.0.0.1 while the context lasts.

    `key` is the bearer token that opens every run (None: a new one); `port` 0 means any free one. The head of a request
    may take `head_s` seconds to arrive, its body `body_s`. At the end calls under way get `GRACE_S` seconds, then they
    are cancelled, and recorded as such; the whole takes less than `STOP_S`. Leave it before the router is closed.

    Raises RequestError for a port that is taken or a key that is none, NotInstalled where the SDK is missing.
    """
    await load_sdk()
    from bundle_router.wiring import Router

    access: ServedRouter = router.endpoint if isinstance(router, Router) else router
    requests = Requests(RequestBounds(body_s=body_s))
    async with (
        served_runs(access) as runs,
        answering(access, requests, runs, key=key, port=port, head_s=head_s) as (endpoint, begin),
    ):
        begin(mcp_routes(runs), ())
        yield endpoint


@contextlib.asynccontextmanager
async def served_runs(access: ServedRouter) -> AsyncIterator[ServedRuns]:
    """The runs as MCP servers, every session of which is ended at the end."""
    from bundle_router.wiring import package_version

    runs = ServedRuns(access, package_version())
    try:
        yield runs
    finally:
        await runs.close()


Begin = Callable[[Sequence["BaseRoute"], Collection[str]], None]
"""Begins to answer on these routes, some of whose paths nobody needs a token for."""


@contextlib.asynccontextmanager
async def answering(
    access: ServedRouter, requests: Requests, runs: ServedRuns, *, key: str | None, port: int, head_s: float
) -> AsyncIterator[tuple[Endpoint, Begin]]:
    """A socket that is listened on, and what begins to answer there. At the end it is answered no more: what is under
    way gets `GRACE_S`, then it is cancelled."""
    from bundle_router.serving.listener import Listener

    key = new_key() if key is None else key
    keys = Keys(key)
    access.keep_secret("endpoint", key)  # those of runs are known by their shape
    listeners: list[Listener] = []
    listening = _listen(port)
    port = listening.getsockname()[1]

    def begin(routes: Sequence[BaseRoute], open_to_all: Collection[str]) -> None:
        listeners.append(Listener(application(routes, keys, port, requests, open_to_all), listening, head_s))
        listeners[0].start()

    try:
        yield Endpoint(key, port), begin
    finally:
        try:
            requests.stop()
            runs.end_listening()
            await requests.wait(GRACE_S)
            await runs.close()
            await requests.cancel()
        finally:
            for listener in listeners:
                await listener.close()
            listening.close()


async def load_sdk() -> None:
    """Load what MCP takes, half a second that no request has to wait for. Raises NotInstalled."""
    _require_sdk()
    await asyncio.to_thread(import_module, "bundle_router.serving.mcp.protocol")


def _require_sdk() -> None:
    from importlib.util import find_spec

    from bundle_router.errors import NotInstalled

    missing = [name for name in ("mcp", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise NotInstalled(f"the MCP endpoint needs {' and '.join(missing)}", advice="pip install 'bundle-router[mcp]'")


def _listen(port: int) -> socket.socket:
    try:
        # Said to be TCP, so that asyncio sends small answers at once: else each waits 40 ms for an acknowledgement.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((HOST, port))
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        return listening
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "ports go from 0 to 65535"
        raise RequestError(
            f"port {port} of {HOST} can't be listened on: {why}", advice="choose another port, or 0 for any free one"
        ) from None
