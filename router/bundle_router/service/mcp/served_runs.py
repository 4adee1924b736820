"""The served runs, each with its MCP server and its tool list, built once per decision.

Rules:
1. A run is served from its first request on. A run that is in no directory, or has no decision, is
   unknown.
2. Its list stays until the run's next decision, whatever is called meanwhile. Then it is rebuilt,
   and listeners are told if it differs. This process's decisions are noticed at once, others' at
   the next listing or told change.
3. A run may also be served under a decision in its address, for the agents of its branches. Each
   decision has its own list; once its branch has decided again, everything under it is refused.
4. The number of served runs is bounded. The longest unused one without a session or a request makes
   room.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bundle_router.core.catalog import Feature
from bundle_router.core.exposure.placements import Toolset
from bundle_router.core.results.artifact_handles import PREFIX
from bundle_router.core.results.shaping import Part
from bundle_router.core.results.shaping.media_forms import IMAGES
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError, RouterError, UnknownRun

if TYPE_CHECKING:
    from bundle_router.service.mcp.run_server import RunServer
    from bundle_router.wiring.endpoint_access import EndpointAccess

MAX_RUNS: Final = 256
MIRRORED: Final = "x-mcp-header"
"""The keyword of a schema that has clients repeat an argument in a header."""
WARN_S: Final = 1.0
"""Seconds between two reports of a client's wrong notifications: it could fill a disk."""


class ServedRun:
    """One run as its server sees it, under the decision in its address if there is one."""

    def __init__(self, run_id: str, decision: str | None, runs: EndpointAccess) -> None:
        from bundle_router.service.mcp.run_server import RunServer

        self.id = run_id
        self._named = decision
        self.requests = self.streams = 0
        self.features: frozenset[Feature] = frozenset()
        self._runs = runs
        self._shown = ""
        self._toolset: Toolset | None = None
        self._mirrored: dict[str, Mapping[str, Any]] = {}
        self._warned_s = -WARN_S
        self._lock = asyncio.Lock()
        self.call = partial(runs.call, run_id, joins=False, decision=decision)
        self.ask = partial(runs.ask, run_id, decision=decision)
        self.follow = partial(runs.follow, run_id, decision=decision)
        self._media = partial(runs.media, run_id, decision=decision)
        bounds = runs.catalog.settings.service
        self.server: RunServer = RunServer(self, bounds.max_sessions, bounds.idle_session_s)

    @property
    def idle(self) -> bool:
        return self.requests == 0 and not self.server.has_sessions

    @property
    def guidance(self) -> str:
        """Text for the model about the tools."""
        return self._toolset.guidance if self._toolset is not None else ""

    def mirrored_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of a listed tool of which clients repeat arguments in headers; None for
        other tools.
        """
        return self._mirrored.get(name)

    async def tools(self) -> Sequence[dict[str, Any]]:
        """Return the list of the current decision. Raises UnknownRun and the errors of listing."""
        await self.refresh()
        return self._toolset.tools if self._toolset is not None else ()

    async def refresh(self) -> None:
        """Rebuild the list if the run has another decision, and announce it if it differs."""
        async with self._lock:
            decision = await self._runs.decision_id(self.id, self._named)
            if decision == self._shown:
                return
            toolset = self._toolset
            # If a decision came in between, the older one is stored, so the next listing finds the
            # list stale.
            self._toolset = await self._runs.tools(self.id, self._named)
            self.features = await self._runs.passes(self.id, self._named)
            await self.server.following.renew()
            self._shown = decision
            rows: Sequence[Mapping[str, Any]] = self._toolset.tools
            self._mirrored = {
                tool["name"]: tool["inputSchema"]
                for tool in rows
                if MIRRORED in json.dumps(tool["inputSchema"])
            }
        if toolset is not None and toolset.tools != self._toolset.tools:
            self.server.announce_change()

    async def end_list(self) -> None:
        """Tell listeners, once, that the list has ended."""
        if self._shown:
            self._shown = ""
            self._toolset = None
            self.server.announce_change()

    async def content(self, result: Result, revision: str) -> list[dict[str, Any]]:
        """Return the result as content blocks for a client of that protocol revision."""
        return await content_of(
            result, self._media, self._runs.catalog.settings.limits.max_inline_bytes, revision
        )

    async def artifact(self, uri: str) -> dict[str, Any]:
        """Return an artifact of the run as contents of a resource. Raises RequestError."""
        return await resource_of(uri, self._media)

    def warn_client(self, where: str) -> None:
        """Report that a client sent what is not of the protocol, without its text."""
        now_s = time.monotonic()
        if now_s - self._warned_s >= WARN_S:
            self._warned_s = now_s
            self._runs.report("warning", "mcp.warned", run_id=self.id, where=where)

    def report(self, defect: Exception) -> None:
        self._runs.report("error", "mcp.defect", run_id=self.id, error=defect)


class ServedRuns:
    """The served runs by id and named decision.

    Belongs to one event loop; only the callbacks of `watch` may come from other threads.
    """

    def __init__(self, runs: EndpointAccess, loaded: asyncio.Future[Any]) -> None:
        self._loaded = loaded
        self.access = runs
        self._served: OrderedDict[tuple[str, str | None], ServedRun] = OrderedDict()
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._hearing: set[asyncio.Task[None]] = set()
        self._unwatch = runs.watch(self._note_decided)
        self._ended = False

    @property
    def trouble(self) -> str:
        """Why no run can be served now; empty if runs can be."""
        if self._ended:
            return "the service is being stopped"
        if not self._loaded.done():
            return "the MCP SDK is still being loaded"
        if (error := self._loaded.exception()) is not None:
            return f"the MCP SDK can't be loaded: {error}"
        return ""

    async def get(self, run_id: str, decision: str | None = None) -> ServedRun:
        """Return the run, served.

        Raises UnknownRun, also for a decision that is not open; RequestError if too many runs are
        in use.
        """
        key = run_id, decision
        served = self._served.get(key)
        if served is not None:
            self._served.move_to_end(key)
            return served
        try:  # before all else: an unknown run must cost no lock, no server and no room
            await self.access.decision_id(run_id, decision)
        except RequestError as refused:
            raise UnknownRun(refused.message, advice=refused.advice) from None
        async with self._lock:
            if key not in self._served:
                await self._make_room()
                self._served[key] = await self._begin(run_id, decision)
            return self._served[key]

    def is_used(self, run_id: str) -> bool:
        """Return whether the run has an open session or a request in progress."""
        return any(not served.idle for served in self._served.values() if served.id == run_id)

    async def _begin(self, run_id: str, decision: str | None) -> ServedRun:
        await asyncio.shield(self._loaded)
        served = ServedRun(run_id, decision, self.access)
        await served.refresh()
        return served

    async def _make_room(self) -> None:
        if len(self._served) < MAX_RUNS:
            return
        unused = next((key for key, served in self._served.items() if served.idle), None)
        if unused is None:
            raise RequestError(
                f"{MAX_RUNS} runs are being served, all in use", advice="end some sessions first"
            )
        await self._served.pop(unused).server.close()

    # --- decisions --------------------------------------------------------------------------------

    def _note_decided(self, run_id: str) -> None:
        """Note that a run was routed. Any thread may call this."""
        if self._served:  # a run that is served later reads the newest decision anyway
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no listener left
                self._loop.call_soon_threadsafe(self._schedule_refresh, run_id)

    def _schedule_refresh(self, run_id: str) -> None:
        for served in [served for served in self._served.values() if served.id == run_id]:
            task = asyncio.create_task(self._refresh(served), name="mcp-refresh")
            self._hearing.add(task)
            task.add_done_callback(self._hearing.discard)

    async def _refresh(self, served: ServedRun) -> None:
        try:
            await served.refresh()
        except RequestError:  # the named decision is not open any more: the next listing reports it
            await served.end_list()
        except RouterError as trouble:
            self.access.report("warning", "mcp.list_failed", run_id=served.id, error=trouble)

    # --- its end ----------------------------------------------------------------------------------

    def end_listening(self) -> None:
        """Stop listening for decisions, and end the streams of listeners."""
        self._unwatch()
        self._ended = True
        for task in self._hearing:
            task.cancel()
        for served in self._served.values():
            served.server.end_listening()

    async def close(self) -> None:
        """End every session, and wait for its end."""
        self.end_listening()
        if self._hearing:
            await asyncio.wait(self._hearing)
        async with self._lock:
            while self._served:
                _, served = self._served.popitem()
                await served.server.close()


# --- a result as MCP content ----------------------------------------------------------------------
# 1. The text comes first and names every artifact by its handle. So clients that drop unknown
#    blocks lose nothing, and a model can pass the handle on.
# 2. An image or a sound is sent inline if it is small enough and its bytes (not the server's claim)
#    are of a type that all clients show. Other media are linked. The full text of results that were
#    cut is only named.
# 3. The media of one answer stay under one MiB in all (`MAX_INLINE`). A client of an older protocol
#    revision gets no block that its revision does not have.
# 4. A resource's text has a type that no client renders as a page or an app, whatever its server
#    calls it.
# 5. Unreadable media are left out of the answer.

MAX_INLINE: Final = 700_000
"""Maximum bytes of media in one answer.

Base64 adds a third, and some clients take no event over 1 MiB.
"""
MAX_BLOCKS: Final = 64
"""Maximum blocks of media in one answer. The text names the others."""
INERT: Final = frozenset(
    (
        "text/plain",
        "text/markdown",
        "text/csv",
        "application/json",
        "application/yaml",
        "application/toml",
    )
)
AUDIO_SINCE: Final = "2025-03-26"
LINKS_SINCE: Final = "2025-06-18"
"""The first protocol revision with resource links. Revisions compare as text."""

Json = dict[str, Any]
Media = Callable[[str, bool], Awaitable[Json]]
"""Returns an artifact as an MCP block, by its URI; as a resource link if the second argument is
true.
"""


async def content_of(result: Result, media: Media, max_inline: int, revision: str) -> list[Json]:
    """Return the content blocks of a result for a client of that protocol revision.

    At most `max_inline` bytes of one artifact are sent inline.
    """
    blocks = [_block(part) for part in result.parts] or [{"type": "text", "text": result.text}]
    if not result.artifacts:
        return blocks
    return [*blocks, *[block async for block in _shown(result, media, max_inline, revision)]]


def _block(part: Part) -> Json:
    if not part.uri:
        return {"type": "text", "text": part.text}
    mime_type = part.mime_type if part.mime_type in INERT else "text/plain"
    return {
        "type": "resource",
        "resource": {"uri": part.uri, "mimeType": mime_type, "text": part.text},
    }


async def _shown(
    result: Result, media: Media, max_inline: int, revision: str
) -> AsyncIterator[Json]:
    room = MAX_INLINE
    artifacts = [stored for stored in result.artifacts if stored.role != "full_result"]
    for stored in artifacts[:MAX_BLOCKS]:
        fits = stored.bytes <= min(room, max_inline)
        inline = fits and _is_shown(stored.mime_type, revision)
        if not inline and revision < LINKS_SINCE:
            continue
        try:
            block = await media(stored.uri, not inline)
        except RouterError:
            continue  # the text still names it, and reading it gives the error
        if inline:
            room -= stored.bytes
        yield block


def _is_shown(mime_type: str, revision: str) -> bool:
    """Return whether clients of a revision of the protocol show media of this type."""
    is_audio = mime_type.startswith("audio/") and revision >= AUDIO_SINCE
    return is_audio or mime_type in IMAGES


async def resource_of(uri: str, media: Media) -> Json:
    """Return an artifact as contents for `resources/read`, with the type that its bytes have.

    Raises RequestError if it is no artifact of the run, is empty, or is larger than one answer.
    """
    if not uri.startswith(PREFIX):
        raise RequestError(
            f"{uri[:200]!r} is not an artifact", advice=f"give {PREFIX} and 64 hex digits"
        )
    block = await media(uri, False)
    if block["type"] == "resource":
        resource: Json = block["resource"]
        return resource
    if block["type"] == "resource_link":
        description = f"{block['mimeType']}, {block['size']:,} bytes"
        raise RequestError(
            f"{uri} is {description}: too much for one answer",
            advice="read_artifact reads text in pages",
        )
    if "data" not in block:
        raise RequestError(block["text"].strip("[]"))
    return {"uri": uri, "mimeType": block["mimeType"], "blob": block["data"]}
