"""The engines of one router, over the states that its config and its pins have had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from bundle_router.core.servers.pins.reviewed import Pins
from bundle_router.engine.engine import Engine
from bundle_router.engine.run_records import in_thread
from bundle_router.errors import CorruptPins

LOOK_S: Final = 1.0
_NEVER: Final = 1 << 63
GRACE_S: Final = 30.0
"""Seconds that a superseded engine stays: a request that was given it may not have opened its run
yet.
"""
Renew = Callable[[], tuple[Engine, Mapping[str, Pins]] | None]
"""Return a new engine and the pins it was made for, if the pin files changed since the last look.

Reads files, and blocks meanwhile. Raises CorruptPins.
"""


class EngineVersions:
    """The engines of one router: the newest, which makes new decisions, and older ones that open
    runs still use. Each state of the pin files has an engine, so that what a person approves can be
    used without a restart.

    1. A decision keeps its engine: a tool approved since is neither shown nor callable until the
       run is routed again. A tool that was withdrawn, or approved in another form, is refused at
       once, also under earlier decisions.
    2. A run moves to the newest engine when it is routed and nothing of it is under way; else at a
       later step.
    3. An edited config makes another engine with its own ports and sessions. The older engine stays
       for `GRACE_S`, and until its last run has moved or was closed.
    4. The pin files are looked at before decisions and calls, at most once in `LOOK_S`. Unreadable
       files change nothing and are reported.

    `renew=None`: the pins never change. Safe for many threads and tasks.
    """

    def __init__(self, engine: Engine, renew: Renew | None = None) -> None:
        self._engines: tuple[Engine, ...] = ()
        self._first: dict[Engine, Engine] = {engine: engine}
        """For each engine, the first engine over the same ports; it closes them."""
        self._kept_until_ns: dict[Engine, int] = {}
        self._secrets: dict[str, str] = {}
        self._clock = engine.ports.clock
        self._renew = renew
        self._next_look_ns = 0
        self._lock = threading.Lock()
        self._watchers: list[Callable[[str], None]] = []
        self._set_engines(engine)

    def _set_engines(self, *engines: Engine) -> None:
        self._engines = engines
        engines[0].watchers = self._watchers
        until_ns = self._next_look_ns if self._renew is not None else _NEVER
        self.standing = engines[0], until_ns if len(engines) == 1 else 0
        """The engine of every run, and until when that holds without another look; 0 while runs
        have several.
        """

    @property
    def newest(self) -> Engine:
        return self._engines[0]

    @property
    def first(self) -> Engine:
        """The first engine of the config in force."""
        return self._first[self._engines[0]]

    def of(self, run_id: str) -> Engine:
        """Return the engine of an open run; the newest where the run is not open."""
        self._look_at_pins()
        return next(
            (engine for engine in self._engines[1:] if engine.runs.uses(run_id)), self._engines[0]
        )

    def moved(self, run_id: str, engine: Engine) -> Engine:
        """Return the engine for the next step of a run that is at `engine`: with nothing under way
        it moves to the newest. Blocks unless it is there.
        """
        newest = self._engines[0]
        if engine is newest or engine.runs.close_idle(run_id):
            return newest
        return engine

    async def for_step(self, run_id: str, engine: Engine | None = None) -> Engine:
        """Do as `moved`, for an event loop."""
        engine = engine or self.of(run_id)
        if engine is self._engines[0]:
            return engine
        return await in_thread(partial(self.moved, run_id, engine))

    def _look_at_pins(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._renew is None or now_ns < self._next_look_ns:
            return
        with self._lock:
            if now_ns < self._next_look_ns:
                return
            self._next_look_ns = now_ns + int(LOOK_S * 1e9)
            self._set_engines(*self._engines)
            try:
                renewed = self._renew()
            except CorruptPins as trouble:
                self.newest.ports.diagnostics.event("error", "pins.unread", error=trouble)
                return
            if renewed is not None:
                self._adopt(*renewed)

    def _adopt(self, engine: Engine, pins: Mapping[str, Pins]) -> None:
        for older in self._engines:
            older.narrow(pins)
        self._add(engine, self.first)
        engine.ports.diagnostics.event(
            "info", "pins.adopted", servers=sorted(pins), revision=engine.catalog.revision
        )

    def supersede(self, newer: EngineVersions) -> None:
        """Let the engine of a router over an edited config decide later steps."""
        engine = newer.newest
        for name, value in self._secrets.items():
            engine.ports.redactor.keep(name, value)
        with self._lock:
            self._renew = newer._renew
            self._add(engine, engine)

    def _add(self, engine: Engine, first: Engine) -> None:
        self._first[engine] = first
        self._kept_until_ns[self.newest] = self._clock.monotonic_ns() + int(GRACE_S * 1e9)
        self._set_engines(engine, *filter(self._is_needed, self._engines))

    def _is_needed(self, older: Engine) -> bool:
        return older.runs.any_used or self._clock.monotonic_ns() < self._kept_until_ns[older]

    def keep_secret(self, name: str, value: str) -> None:
        """See `EndpointAccess.keep_secret`."""
        self._secrets[name] = value
        self.newest.ports.redactor.keep(name, value)

    async def retire(self) -> list[Engine]:
        """Close the engines of former configs that have no run left.

        Return the first engine of each config.
        """
        with self._lock:
            self._set_engines(self.newest, *filter(self._is_needed, self._engines[1:]))
            used = {self._first[engine] for engine in self._engines}
            unused = [first for first in dict.fromkeys(self._first.values()) if first not in used]
            self._first = {engine: first for engine, first in self._first.items() if first in used}
            self._kept_until_ns = {
                engine: self._kept_until_ns[engine] for engine in self._engines[1:]
            }
        for first in unused:
            await first.close()
        return unused

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """See `Router.watch`."""
        self._watchers.append(watcher)

        def end() -> None:
            with suppress(ValueError):
                self._watchers.remove(watcher)

        return end

    async def close(self) -> None:
        """Close every run of every engine, and the sessions they share."""
        firsts = list(dict.fromkeys(self._first.values()))
        try:
            for older in self._first:
                if older not in firsts:
                    await in_thread(older.runs.close_all)
        finally:
            for first in firsts:
                await first.close()
