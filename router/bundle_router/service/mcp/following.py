"""The resources that a run's clients subscribe to: one subscription at the server, however many
clients there are.

Rules:
1. Every decision renews the subscriptions. Clients hear no more of a resource that the new decision
   does not permit.
2. A client may subscribe to a resource that does not exist. As MCP has it, it then never hears of a
   change.
3. A resource that changes without end is announced once in `ANNOUNCE_AGAIN_S`, the last change
   always.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.servers.transport.pass_through import ServerReply

MAX_FOLLOWED: Final = 64
"""Maximum resources that one run's clients may subscribe to."""
ANNOUNCE_AGAIN_S: Final = 0.1
Begin = Callable[[str, Callable[[], None]], Awaitable[Callable[[], None] | ServerReply]]
"""Subscribes to a URI; calls the callback, from any thread, on a change.

Returns its end function, or a refusal.
"""


@dataclass(slots=True)
class _Followed:
    count: int
    end: Callable[[], None] | None = None
    has_changed: bool = False
    is_announced: bool = False


class FollowedResources:
    """The subscribed resources of one run.

    Calls `updated` with the URI of a changed one. Belongs to one event loop.
    """

    def __init__(self, begin: Begin, updated: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin
        self._updated = updated
        self._loop: asyncio.AbstractEventLoop | None = None
        self._followed: dict[str, _Followed] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    async def add(self, uri: str) -> ServerReply | None:
        """Add a subscriber to the resource. Return the refusal if there is one."""
        async with self._lock:
            followed = self._followed.get(uri)
            if followed is not None:
                followed.count += 1
                return None
            if len(self._followed) >= MAX_FOLLOWED:
                return ServerReply(
                    outcome="busy",
                    text=f"{MAX_FOLLOWED} resources are followed in this run, which is the limit.",
                )
            end = await self._begin_following(uri)
            if isinstance(end, ServerReply):
                return end
            self._followed[uri] = _Followed(1, end)
            return None

    def follows(self, uri: str) -> bool:
        """Return whether the run's decision permits the resource, which was subscribed to."""
        return uri in self._followed and self._followed[uri].end is not None

    def drop(self, uris: Iterable[str]) -> None:
        """Remove one subscriber from each."""
        for uri in uris:
            followed = self._followed.get(uri)
            if followed is not None:
                followed.count -= 1
                if not followed.count:
                    del self._followed[uri]
                    _end_held(followed)

    async def renew(self) -> None:
        """Renew all subscriptions under the run's new decision."""
        async with self._lock:
            for uri, followed in list(self._followed.items()):
                _end_held(followed)
                end = await self._begin_following(uri)
                followed.end = None if isinstance(end, ServerReply) else end
                if not followed.count:  # the last subscriber left meanwhile
                    _end_held(followed)

    async def _begin_following(self, uri: str) -> Callable[[], None] | ServerReply:
        self._loop = asyncio.get_running_loop()
        return await self._begin(uri, lambda: self._announce_change(uri))

    def _announce_change(self, uri: str) -> None:
        """Announce that a resource changed. Any thread may call this."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no listener left
                loop.call_soon_threadsafe(self._notify_clients, uri)

    def _notify_clients(self, uri: str) -> None:
        followed = self._followed.get(uri)
        if followed is None:
            return
        followed.has_changed = True
        if not followed.is_announced:
            followed.is_announced = True
            task = asyncio.create_task(self._announce(uri, followed), name="mcp-resource-updated")
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _announce(self, uri: str, followed: _Followed) -> None:
        try:
            while followed.has_changed and self._followed.get(uri) is followed:
                followed.has_changed = False
                await self._updated(uri)
                await asyncio.sleep(ANNOUNCE_AGAIN_S)
        finally:
            followed.is_announced = False

    async def close(self) -> None:
        """End all subscriptions."""
        followed = self._followed
        self._followed = {}
        for one in followed.values():
            _end_held(one)
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)


def _end_held(followed: _Followed) -> None:
    end = followed.end
    followed.end = None
    if end is not None:
        end()
