"""The runs that are served: each with its list, made once for each decision, and its server.

Rules:
1. A run is served from the first request for it on. One that no directory holds, or that has no decision, is unknown.
2. Its list stays until the run's next decision, whatever is called meanwhile; then it is made anew, and those who
   listen are told if it differs. Decisions of this process are heard of at once, those of another when somebody lists.
3. A run may also be served under one decision that the address names, as the agents of its branches need it: for each
   a list of its own, and all of it refused from when its branch decides again.
4. Only so many are kept. The longest unused one makes room, if it has no session and no request under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bundle_router.core.catalog import Feature
from bundle_router.core.tools.artifact_handles import PREFIX
from bundle_router.core.tools.exposure.placements import Toolset
from bundle_router.core.tools.shaping import Part
from bundle_router.core.tools.shaping.media_forms import IMAGES
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError, RouterError, UnknownRun

if TYPE_CHECKING:
    from bundle_router.serving.mcp.protocol import RunServer
    from bundle_router.wiring.endpoint_access import EndpointAccess

MAX_RUNS: Final = 256


class ServedRun:
    """One run as its server sees it, under the decision that its address names, if it names one."""

    def __init__(self, run_id: str, decision: str | None, runs: EndpointAccess, version: str) -> None:
        from bundle_router.serving.mcp.protocol import RunServer

        self.id = run_id
        self._named = decision
        self.requests = 0
        self.features: frozenset[Feature] = frozenset()
        self._runs = runs
        self._shown = ""
        self._toolset: Toolset | None = None
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._lock = asyncio.Lock()
        self.call = partial(runs.call, run_id, joins=False, decision=decision)
        self.ask = partial(runs.ask, run_id, decision=decision)
        self.follow = partial(runs.follow, run_id, decision=decision)
        self._media = partial(runs.media, run_id, decision=decision)
        warn = partial(runs.report, "warning", "mcp.warned", run_id=run_id)
        self.listen_to_log = runs.log_listener(lambda where, untold: warn(where=where, untold=untold))
        self.server: RunServer = RunServer(self, version)

    @property
    def idle(self) -> bool:
        return self.requests == 0 and not self.server.has_sessions

    @property
    def guidance(self) -> str:
        """What a model should be told of the tools."""
        return self._toolset.guidance if self._toolset is not None else ""

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of a listed tool's arguments."""
        return self._schemas.get(name)

    async def tools(self) -> Sequence[dict[str, Any]]:
        """Return the list of the current decision. Raises UnknownRun and what listing raises."""
        await self.refresh()
        return self._toolset.tools if self._toolset is not None else ()

    async def refresh(self) -> None:
        """Make the list anew if the run has gone on to another decision, and announce it if it differs."""
        async with self._lock:
            decision = await self._runs.decision_id(self.id, self._named)
            if decision == self._shown:
                return
            before = self._toolset
            # A decision in between is taken for the older one, and so the list for stale when it is next asked for.
            self._toolset = await self._runs.tools(self.id, self._named)
            self.features = await self._runs.passes(self.id, self._named)
            await self.server.following.renew()
            self._shown = decision
            self._schemas = {tool["name"]: tool["inputSchema"] for tool in self._toolset.tools}
        if before is not None and before.tools != self._toolset.tools:
            await self.server.announce_change()

    async def end_list(self) -> None:
        """Tell those who listen, once, that there is no list any more."""
        if self._shown:
            self._shown, self._toolset = "", None
            await self.server.announce_change()

    async def content(self, result: Result, revision: str) -> list[dict[str, Any]]:
        """Return the result as blocks, for a client of that protocol revision."""
        return await content_of(result, self._media, self._runs.catalog.settings.limits.max_inline_bytes, revision)

    async def artifact(self, uri: str) -> dict[str, Any]:
        """Return an artifact of the run as the contents of a resource. Raises RequestError."""
        return await resource_of(uri, self._media)

    def report(self, defect: Exception) -> None:
        self._runs.report("error", "mcp.defect", run_id=self.id, error=defect)


class ServedRuns:
    """The served runs by id and named decision. Belongs to one event loop; only what `watch` calls may come from
    elsewhere."""

    def __init__(self, runs: EndpointAccess, version: str, loaded: asyncio.Future[Any]) -> None:
        self._loaded = loaded
        self.access = runs
        self._version = version
        self._served: OrderedDict[tuple[str, str | None], ServedRun] = OrderedDict()
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._hearing: set[asyncio.Task[None]] = set()
        self._unwatch = runs.watch(self._note_decided)
        self._ended = False

    @property
    def trouble(self) -> str:
        """Why no run can be served now; empty where one can."""
        if self._ended:
            return "the service is being stopped"
        if not self._loaded.done():
            return "the MCP SDK is still being loaded"
        return f"the MCP SDK can't be loaded: {error}" if (error := self._loaded.exception()) is not None else ""

    async def get(self, run_id: str, decision: str | None = None) -> ServedRun:
        """Return the run, served. Raises UnknownRun, also for a decision that is not open; RequestError when too many
        are being used."""
        named = run_id, decision
        known = self._served.get(named)
        if known is not None:
            self._served.move_to_end(named)
            return known
        try:  # what is unknown costs no lock, no server and no room
            await self.access.decision_id(run_id, decision)
        except RequestError as refused:
            raise UnknownRun(refused.message, advice=refused.advice) from None
        async with self._lock:
            if named not in self._served:
                await self._make_room()
                self._served[named] = await self._begin(run_id, decision)
            return self._served[named]

    def is_used(self, run_id: str) -> bool:
        """Return whether a session of the run, or a request for it, is under way."""
        return any(not served.idle for served in self._served.values() if served.id == run_id)

    async def _begin(self, run_id: str, decision: str | None) -> ServedRun:
        await asyncio.shield(self._loaded)
        served = ServedRun(run_id, decision, self.access, self._version)
        await served.refresh()
        await served.server.start()
        return served

    async def _make_room(self) -> None:
        if len(self._served) < MAX_RUNS:
            return
        unused = next((named for named, served in self._served.items() if served.idle), None)
        if unused is None:
            raise RequestError(f"{MAX_RUNS} runs are being served, all in use", advice="end some sessions first")
        await self._served.pop(unused).server.close()

    # --- decisions -------------------------------------------------------------------------------------------------

    def _note_decided(self, run_id: str) -> None:
        """Note that a run was routed, on whatever thread."""
        if self._served:  # who begins to be served reads the newest decision anyway
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._schedule_refresh, run_id)

    def _schedule_refresh(self, run_id: str) -> None:
        for served in [served for served in self._served.values() if served.id == run_id]:
            task = asyncio.create_task(self._refresh(served), name="mcp-refresh")
            self._hearing.add(task)
            task.add_done_callback(self._hearing.discard)

    async def _refresh(self, served: ServedRun) -> None:
        try:
            await served.refresh()
        except RequestError:  # the named decision is not open any more: whoever lists next is told
            await served.end_list()
        except RouterError as trouble:
            self.access.report("warning", "mcp.list_failed", run_id=served.id, error=trouble)

    # --- its end ---------------------------------------------------------------------------------------------------

    def end_listening(self) -> None:
        """Stop listening for decisions, and end the streams of those who only listen."""
        self._unwatch()
        self._ended = True
        for task in self._hearing:
            task.cancel()
        for served in self._served.values():
            served.server.end_listening()

    async def close(self) -> None:
        """End every session and wait for it."""
        self.end_listening()
        if self._hearing:
            await asyncio.wait(self._hearing)
        async with self._lock:
            while self._served:
                _, served = self._served.popitem()
                await served.server.close()


# --- a result as MCP content ------------------------------------------------------------------------------------------
# 1. The text comes first and names every artifact by its handle, whatever follows: clients that drop what they do not
#    know lose nothing, and a model can hand the handle on.
# 2. An image or a sound is sent as such where its bytes (not what a server calls them) are of a kind that is shown
#    everywhere, and small enough; any other media is linked. Whole results that were cut are only named.
# 3. The media of one answer stay under one MiB, however many there are (`MAX_INLINE`); a client that speaks an older
#    revision gets no block that its revision does not know.
# 4. A resource's text is of a type that no client renders as a page or an app, whatever its server calls it.
# 5. Media that can't be read any more costs itself, not the answer.

MAX_INLINE: Final = 700_000
"""Bytes of media in one answer. Base64 adds a third, and some clients take no event over 1 MiB."""
MAX_BLOCKS: Final = 64
"""Blocks of media in one answer. The text names the others."""
INERT: Final = frozenset(
    ("text/plain", "text/markdown", "text/csv", "application/json", "application/yaml", "application/toml")
)
AUDIO_SINCE: Final = "2025-03-26"
LINKS_SINCE: Final = "2025-06-18"
"""Protocol revisions, which compare as text."""

Json = dict[str, Any]
Media = Callable[[str, bool], Awaitable[Json]]
"""An artifact as an MCP block, by its URI; as a resource link where the second is true."""


async def content_of(result: Result, media: Media, max_inline: int, revision: str) -> list[Json]:
    """Return the content blocks of a result, for a client of that protocol revision. At most `max_inline` bytes go
    inline of any one artifact."""
    blocks = [_block(part) for part in result.parts] or [{"type": "text", "text": result.text}]
    if not result.artifacts:
        return blocks
    return [*blocks, *[block async for block in _shown(result, media, max_inline, revision)]]


def _block(part: Part) -> Json:
    if not part.uri:
        return {"type": "text", "text": part.text}
    mime_type = part.mime_type if part.mime_type in INERT else "text/plain"
    return {"type": "resource", "resource": {"uri": part.uri, "mimeType": mime_type, "text": part.text}}


async def _shown(result: Result, media: Media, max_inline: int, revision: str) -> AsyncIterator[Json]:
    left = MAX_INLINE
    for stored in [one for one in result.artifacts if one.role != "full_result"][:MAX_BLOCKS]:
        inline = stored.bytes <= min(left, max_inline) and _is_shown(stored.mime_type, revision)
        if not inline and revision < LINKS_SINCE:
            continue
        try:
            block = await media(stored.uri, not inline)
        except RouterError:
            continue  # the text still names it, and reading it says what is wrong
        left -= stored.bytes if inline else 0
        yield block


def _is_shown(mime_type: str, revision: str) -> bool:
    return mime_type in IMAGES or (mime_type.startswith("audio/") and revision >= AUDIO_SINCE)


async def resource_of(uri: str, media: Media) -> Json:
    """Return the contents of an artifact as `resources/read` gives them, with the type that its bytes have.

    Raises RequestError for what is no artifact of the run, is empty, or is more than one answer holds.
    """
    if not uri.startswith(PREFIX):
        raise RequestError(f"{uri[:200]!r} is not an artifact", advice=f"give {PREFIX} and 64 hex digits")
    block = await media(uri, False)
    if block["type"] == "resource":
        resource: Json = block["resource"]
        return resource
    if block["type"] == "resource_link":
        what = f"{block['mimeType']}, {block['size']:,} bytes"
        raise RequestError(f"{uri} is {what}: too much for one answer", advice="read_artifact reads text in pages")
    if "data" not in block:
        raise RequestError(block["text"].strip("[]"))
    return {"uri": uri, "mimeType": block["mimeType"], "blob": block["data"]}
