"""Reloads the config and the tokens when their files change, while the service runs.

Rules:
1. A valid edit takes effect between steps; every later decision names its revision.
2. An invalid or half-written edit changes nothing: the last good config stays in force. Its
   problems are logged once, and are in `/readyz` as long as they last.
3. Files are checked often, but read only when their times, sizes or inodes changed and then stayed
   the same from one check to the next, so that an editor that writes in place is not read half-way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bundle_router.errors import ConfigError, RequestError, RouterError
from bundle_router.service.keys import Keys
from bundle_router.service.refusals import Asgi, Message, Receive, Send
from bundle_router.service.tokens import AccessTokens

if TYPE_CHECKING:
    from bundle_router.wiring import Router
    from bundle_router.workbench.found_edits import FoundEdits

LOOK_S: Final = 0.5


class WatchedPages:
    """Pages that show the edits of the config which the service finds while it runs."""

    def __init__(self, app: Asgi, edits: FoundEdits) -> None:
        self._app = app
        self.edits = edits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class ConfigWatch:
    """Watches the config's files.

    Calls `on_event` with `adopted` or `refused`, and notes what it adopted in `edits`. Belongs to
    one event loop.
    """

    def __init__(
        self,
        router: Router,
        keys: Keys,
        tokens: AccessTokens | None,
        on_event: Callable[[str], None],
        edits: FoundEdits | None = None,
    ) -> None:
        self._router = router
        self._keys = keys
        self._tokens = tokens
        self._token_problem = ""
        self._on_event = on_event
        self._edits = edits
        self._seen: object = None
        self._read = router.opened_at
        self._config_problems: tuple[str, ...] = ()
        self._task = asyncio.create_task(self._watch(), name="config-watch")

    async def _watch(self) -> None:
        warmed = ""
        if self._edits is not None:
            await asyncio.to_thread(self._edits.note_start, self._router.catalog)
        while True:
            try:
                catalog = self._router.catalog
                if catalog.revision != warmed:
                    warmed = catalog.revision
                    await self._router.warm_up()
                await asyncio.sleep(LOOK_S)
                await self.look_at_tokens()
                await self.look()
            except Exception as defect:  # noqa: BLE001 - the boundary: whatever it is, the service goes on and is told
                self._router.endpoint.report("error", "config.not_looked_at", error=defect)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of the files as they are now; empty if they are in force."""
        return (*self._config_problems, *((self._token_problem,) if self._token_problem else ()))

    async def look_at_tokens(self) -> bool:
        """Load the token file if it changed; return whether a valid one was loaded.

        One `stat` if unchanged.
        """
        if self._tokens is None or not self._tokens.has_changed():
            return False
        try:
            self._keys.named = await asyncio.to_thread(self._tokens.read)
            self._token_problem = ""
            self._router.endpoint.report(
                "info", "tokens.adopted", names=[row.caller.name for row in self._keys.named]
            )
        except RequestError as error:
            self._token_problem = error.message
            self._router.endpoint.report("error", "tokens.refused", error=error)
        return not self._token_problem

    async def look(self) -> None:
        """Load the edits since the last check."""
        report = self._router.endpoint.report
        stamp = await asyncio.to_thread(self._router.config_stamp)
        if stamp == self._read:
            await self._router.retire()
            return
        if stamp != self._seen:
            self._seen = stamp
            return
        self._read = stamp
        old_catalog = self._router.catalog
        revision = old_catalog.revision
        try:
            changed = await asyncio.to_thread(self._router.reload)
        except RouterError as error:
            found = error.problems if isinstance(error, ConfigError) else (error.message,)
            problems = tuple(str(problem) for problem in found)
            if problems != self._config_problems:
                self._on_event("refused")
                report("error", "config.refused", problems=problems, in_force=revision)
            self._config_problems = problems
            return
        self._config_problems = ()
        if not changed:
            return
        if self._edits is not None:
            await asyncio.to_thread(self._edits.note, old_catalog, self._router.catalog)
        self._on_event("adopted")
        report("info", "config.adopted", revision=self._router.catalog.revision, before=revision)

    async def end(self) -> None:
        """Stop watching."""
        self._task.cancel()
        await asyncio.wait([self._task])
