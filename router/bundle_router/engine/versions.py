"""The engines of one router: the one that new decisions are made by, and older ones that runs are still with.

There is an engine for each state of the pin files, so that what a person approves while the router runs can be used
without opening it anew. Almost always there is one.

Rules:
1. A decision stands as it was taken: what was approved since is not shown or callable before the run is routed again.
2. What was taken back, or approved in another form, is refused at once, to decisions taken before as well.
3. A run goes over to the newest engine when it is routed while nothing of it is under way, else with a later step.
4. An edited config is another engine with ports of its own, its own sessions among them. The older one stays until the
   last of its runs has gone over or was closed, and is closed then.
5. The pin files are looked at before decisions and calls, at most once in `LOOK_S`. Ones that can't be read change
   nothing, and that is said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from bundle_router.core.tools.pins import Pins
from bundle_router.engine.engine import Engine
from bundle_router.errors import CorruptPins

LOOK_S: Final = 1.0
Renew = Callable[[], tuple[Engine, Mapping[str, Pins]] | None]
"""A new engine, and the pins it was made for, where the pin files have changed since it was last asked. Reads files,
and blocks for that long. Raises CorruptPins."""


class EngineVersions:
    """`renew=None`: there is nothing that could change. For many threads and tasks at once."""

    def __init__(self, engine: Engine, renew: Renew | None = None) -> None:
        self._engines: tuple[Engine, ...] = (engine,)
        self._first: dict[Engine, Engine] = {engine: engine}
        """For each engine the first one over the same ports, which closes them."""
        self._secrets: dict[str, str] = {}
        self._clock = engine.ports.clock
        self._renew = renew
        self._next_look_ns = 0
        self._lock = threading.Lock()
        self._watchers: tuple[Callable[[str], None], ...] = ()
        engine.watch(self._tell)

    @property
    def newest(self) -> Engine:
        return self._engines[0]

    @property
    def first(self) -> Engine:
        """The first engine of the config in force."""
        return self._first[self._engines[0]]

    def of(self, run_id: str) -> Engine:
        """Return the engine that the run is with, if it is open; else the newest."""
        self._look_at_pins()
        if len(self._engines) > 1:
            for engine in self._engines[1:]:
                if engine.runs.uses(run_id):
                    return engine
        return self._engines[0]

    def for_step(self, run_id: str) -> Engine:
        """As `of`; a run of an older engine with nothing under way is taken from it."""
        engine = self.of(run_id)
        newest = self._engines[0]
        return newest if engine is newest or engine.runs.close_idle(run_id) else engine

    def _look_at_pins(self) -> None:
        now = self._clock.monotonic_ns()
        if self._renew is None or now < self._next_look_ns:
            return
        with self._lock:
            if now < self._next_look_ns:
                return
            self._next_look_ns = now + int(LOOK_S * 1e9)
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
        engine.watch(self._tell)
        self._first[engine] = self._first[self.newest]
        kept = (older for older in self._engines if older.runs.any_used)
        self._engines = (engine, *kept)
        engine.ports.diagnostics.event("info", "pins.adopted", servers=sorted(pins), revision=engine.catalog.revision)

    def supersede(self, newer: EngineVersions) -> None:
        """Have later steps decided by the engine of a router that was opened over an edited config."""
        engine = newer.newest
        for name, value in self._secrets.items():
            engine.ports.redactor.keep(name, value)
        with self._lock:
            engine.watch(self._tell)
            self._first[engine] = engine
            self._renew = newer._renew
            self._engines = (engine, *(older for older in self._engines if older.runs.any_used))

    def keep_secret(self, name: str, value: str) -> None:
        """See `EndpointAccess.keep_secret`."""
        self._secrets[name] = value
        self.newest.ports.redactor.keep(name, value)

    async def retire(self) -> list[Engine]:
        """Close the engines of former configs that have no run any more. Return the first of each config's."""
        with self._lock:
            newest = self._first[self._engines[0]]
            self._engines = (self._engines[0], *(older for older in self._engines[1:] if older.runs.any_used))
            used = {newest, *(self._first[engine] for engine in self._engines)}
            gone = [first for first in dict.fromkeys(self._first.values()) if first not in used]
            self._first = {engine: first for engine, first in self._first.items() if first in used}
        for first in gone:
            await first.close()
        return gone

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """See `Router.watch`."""
        self._watchers = (*self._watchers, watcher)

        def end() -> None:
            self._watchers = tuple(other for other in self._watchers if other is not watcher)

        return end

    def _tell(self, run_id: str) -> None:
        for watcher in self._watchers:
            watcher(run_id)

    async def close(self) -> None:
        """Ends every run of every engine, and the sessions they share."""
        firsts = list(dict.fromkeys(self._first.values()))
        try:
            for older in self._first:
                if older not in firsts:
                    older.runs.close_all()
        finally:
            for first in firsts:
                await first.close()
