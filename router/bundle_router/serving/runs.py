"""The runs that are served: each with its list, made once for each decision, and its server.

Rules:
1. A run is served from the first request for it on. One that no directory holds, or that has no decision, is unknown.
2. Its list stays until the run's next decision, whatever is called meanwhile; then it is made anew, and those who
   listen are told if it differs. Decisions of this process are heard of at once, those of another when somebody lists.
3. Only so many are kept. The longest unused one makes room, if it has no session and no request under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from bundle_router.core.catalog import Catalog, Feature
from bundle_router.core.tools.exposure import Toolset
from bundle_router.core.tools.transport.passage import Client, ServerReply
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError, RouterError, UnknownRun
from bundle_router.serving.content import content_of, resource_of

if TYPE_CHECKING:
    from bundle_router.serving.protocol import RunServer

MAX_RUNS: Final = 256


class ServedRouter(Protocol):
    """What an endpoint needs of a router."""

    async def decision_id(self, run_id: str) -> str: ...

    async def tools(self, run_id: str, *, format: str, fixed: bool) -> Toolset: ...  # noqa: A002 - the contract's name

    async def call(
        self, run_id: str, name: str, arguments: Mapping[str, Any], *, joins: bool, client: Client | None
    ) -> Result: ...

    async def passes(self, run_id: str) -> frozenset[Feature]: ...

    async def ask(self, run_id: str, method: str, params: Mapping[str, Any], client: Client) -> ServerReply: ...

    async def follow(self, run_id: str, uri: str, updated: Callable[[], None]) -> Callable[[], None] | ServerReply: ...

    async def media(self, run_id: str, uri: str, *, format: str, link: bool) -> dict[str, Any]: ...  # noqa: A002

    @property
    def catalog(self) -> Catalog: ...

    def watch(self, heard: Callable[[str], None]) -> Callable[[], None]: ...

    def report(self, level: str, event: str, **fields: object) -> None: ...

    def keep_secret(self, name: str, value: str) -> None: ...


class ServedRun:
    """One run as its server sees it."""

    def __init__(self, run_id: str, runs: ServedRouter, version: str) -> None:
        from bundle_router.serving.protocol import RunServer

        self.id = run_id
        self.requests = 0
        self.features: frozenset[Feature] = frozenset()
        self._runs = runs
        self._decision = ""
        self._toolset: Toolset | None = None
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._lock = asyncio.Lock()
        self.server: RunServer = RunServer(self, version)

    @property
    def idle(self) -> bool:
        return self.requests == 0 and not self.server.has_sessions

    @property
    def guidance(self) -> str:
        """What a model should be told of the tools."""
        return self._toolset.guidance if self._toolset is not None else ""

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """The schema of a listed tool's arguments."""
        return self._schemas.get(name)

    async def tools(self) -> Sequence[dict[str, Any]]:
        """The list of the current decision. Raises UnknownRun and what listing raises."""
        await self.refresh()
        return self._toolset.tools if self._toolset is not None else ()

    async def refresh(self) -> None:
        """Makes the list anew if the run has gone on to another decision, and announces it if it differs."""
        async with self._lock:
            decision = await self._runs.decision_id(self.id)
            if decision == self._decision:
                return
            before = self._toolset
            # A decision in between is taken for the older one, and so the list for stale when it is next asked for.
            self._toolset = await self._runs.tools(self.id, format="mcp", fixed=True)
            self.features = await self._runs.passes(self.id)
            await self.server.following.renew()
            self._decision = decision
            self._schemas = {tool["name"]: tool["inputSchema"] for tool in self._toolset.tools}
        if before is not None and before.tools != self._toolset.tools:
            await self.server.announce()

    async def call(self, name: str, arguments: Mapping[str, Any], client: Client | None = None) -> Result:
        """As the router's, except that nothing joins the list."""
        return await self._runs.call(self.id, name, arguments, joins=False, client=client)

    async def ask(self, method: str, params: Mapping[str, Any], client: Client) -> ServerReply:
        """As the router's."""
        return await self._runs.ask(self.id, method, params, client)

    async def follow(self, uri: str, updated: Callable[[], None]) -> Callable[[], None] | ServerReply:
        """As the router's."""
        return await self._runs.follow(self.id, uri, updated)

    async def content(self, result: Result, revision: str) -> list[dict[str, Any]]:
        """The result as blocks, for a client of that protocol revision."""
        return await content_of(result, self._media, self._runs.catalog.settings.limits.max_inline_bytes, revision)

    async def artifact(self, uri: str) -> dict[str, Any]:
        """An artifact of the run as the contents of a resource. Raises RequestError."""
        return await resource_of(uri, self._media)

    async def _media(self, uri: str, link: bool) -> dict[str, Any]:
        return await self._runs.media(self.id, uri, format="mcp", link=link)

    def report(self, defect: Exception) -> None:
        self._runs.report("error", "mcp.defect", run_id=self.id, error=defect)

    def warned(self, where: str, untold: int) -> None:
        """The SDK logged something, or did so `untold` times besides."""
        self._runs.report("warning", "mcp.warned", run_id=self.id, where=where, untold=untold)


class ServedRuns:
    """The served runs by id. Belongs to one event loop; only what `watch` calls may come from elsewhere."""

    def __init__(self, runs: ServedRouter, version: str) -> None:
        self._runs = runs
        self._version = version
        self._served: OrderedDict[str, ServedRun] = OrderedDict()
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._hearing: set[asyncio.Task[None]] = set()
        self._unwatch = runs.watch(self._decided)

    async def get(self, run_id: str) -> ServedRun:
        """The run, served. Raises UnknownRun; RequestError when too many are being used."""
        known = self._served.get(run_id)
        if known is not None:
            self._served.move_to_end(run_id)
            return known
        await self._runs.decision_id(run_id)  # an unknown run costs no lock, no server and no room
        async with self._lock:
            if run_id not in self._served:
                await self._make_room()
                self._served[run_id] = await self._begin(run_id)
            return self._served[run_id]

    async def _begin(self, run_id: str) -> ServedRun:
        served = ServedRun(run_id, self._runs, self._version)
        await served.refresh()
        await served.server.start()
        return served

    async def _make_room(self) -> None:
        if len(self._served) < MAX_RUNS:
            return
        unused = next((served for served in self._served.values() if served.idle), None)
        if unused is None:
            raise RequestError(f"{MAX_RUNS} runs are being served, all in use", advice="end some sessions first")
        del self._served[unused.id]
        await unused.server.close()

    # --- decisions -------------------------------------------------------------------------------------------------

    def _decided(self, run_id: str) -> None:
        """A run was routed, on whatever thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._hear, run_id)

    def _hear(self, run_id: str) -> None:
        served = self._served.get(run_id)
        if served is not None:
            task = asyncio.create_task(self._refresh(served), name="mcp-refresh")
            self._hearing.add(task)
            task.add_done_callback(self._hearing.discard)

    async def _refresh(self, served: ServedRun) -> None:
        try:
            await served.refresh()
        except RouterError as trouble:  # whoever lists next is told
            if not isinstance(trouble, UnknownRun):
                self._runs.report("warning", "mcp.list_failed", run_id=served.id, error=trouble)

    # --- its end ---------------------------------------------------------------------------------------------------

    def end_listening(self) -> None:
        """Hears of no decision any more, and ends the streams of those who only listen."""
        self._unwatch()
        for task in self._hearing:
            task.cancel()
        for served in self._served.values():
            served.server.end_listening()

    async def close(self) -> None:
        """Ends every session and waits for it."""
        self.end_listening()
        if self._hearing:
            await asyncio.wait(self._hearing)
        async with self._lock:
            while self._served:
                _, served = self._served.popitem()
                await served.server.close()
