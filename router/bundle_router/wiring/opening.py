"""`open_engines`, which connects the engine with the adapters."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from bundle_router.core.catalog import Catalog
from bundle_router.core.config.last_good import ConfigSnapshot
from bundle_router.engine.engine import Engine
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.versions import EngineVersions
from bundle_router.errors import RequestError, expect
from bundle_router.ports import RunStore, Selector
from bundle_router.wiring.catalogs import (
    LocalServers,
    expect_path,
    load_unpinned,
    local_cards,
    open_pins,
    project_folder,
    remote_servers,
    warn_of_ignored_file,
    warn_of_unused_tools,
    with_learned,
    with_skills,
)
from bundle_router.wiring.effects import (
    open_diagnostics,
    open_redactor,
    open_results,
    token_folder,
)
from bundle_router.wiring.last_good_config import refuse_lost_files, warn_of_shipped_policy
from bundle_router.wiring.searching import open_selector, open_tool_search
from bundle_router.wiring.shipped import shipped_tools
from bundle_router.wiring.stores import RunStores, scheme_of
from bundle_router.wiring.toolservers import REMOTE, Development, PinnedServers

if TYPE_CHECKING:
    from bundle_router.adapters.pin_file import PinFiles
    from bundle_router.core.servers.pins.reviewed import Pins
    from bundle_router.engine.selecting import StagedSelector

MakeEngine = Callable[[Catalog, "Mapping[str, Pins]", Collection[str]], Engine]
"""Makes an engine for a catalog with these pins' cards.

The last argument names the servers whose pins changed.
"""
_STORE: Final = 'Router.open(..., store="postgresql://…"), or a store that you opened'


class PinnedCatalog:
    """The catalog of a config that was read once, and its pin files.

    `unpinned` is the catalog without pins; new pins are applied to that, and everything else stays
    as it was when the router was opened.
    """

    def __init__(self, files: PinFiles, unpinned: Catalog) -> None:
        self._files = files
        self._unpinned = unpinned
        self._servers = remote_servers(unpinned)
        self._stamp = files.stamp(self._servers)
        self.pins: Mapping[str, Pins] = files.read_all(self._servers)

    def catalog(self) -> Catalog:
        """Return the catalog with the cards of the pins that were read last."""
        from bundle_router.core.servers.pins.usable import with_pinned_cards

        return with_pinned_cards(self._unpinned, self.pins)

    def has_changed(self) -> bool:
        """Return whether the pins changed since the last read, and read them.

        Raises CorruptPins once.
        """
        stamp = self._files.stamp(self._servers)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        old_pins = self.pins
        self.pins = self._files.read_all(self._servers)
        return old_pins != self.pins

    def renew(
        self, in_force: Catalog, make: MakeEngine
    ) -> tuple[Engine, Mapping[str, Pins]] | None:
        """Return an engine for changed pins (`bundle_router.engine.engine.Renew`).

        `in_force`: the router's catalog.
        """
        old_pins = self.pins
        if not self.has_changed():
            return None
        approved = {name for name in self._servers if old_pins.get(name) != self.pins.get(name)}
        catalog = replace(self.catalog(), skills=in_force.skills, settings=in_force.settings)
        return make(catalog, self.pins, approved), self.pins


@dataclass(frozen=True, slots=True)
class Opening:
    """The parameters of `Router.open`. Raises RequestError for impossible ones."""

    config: str | Path | None
    runs: str | Path
    store: str | RunStore | None
    workspace: Path
    development: Development
    local: LocalServers | None
    selector: Selector | None
    approvals: Literal["ask", "refuse"] = "ask"
    hidden: list[str] = field(default_factory=list)
    """Places that no tool reads or changes: the records, tokens of tool servers, and what `hide`
    adds.
    """

    def stamp(self) -> object:
        """See `Router.config_stamp`."""
        from bundle_router.adapters.config_files import stamp_of

        return stamp_of(self.config) if self.config is not None else ()

    def __post_init__(self) -> None:
        expect_path(
            "config", self.config, 'Router.open("config"), or None: the shipped one', type(None)
        )
        expect_path("runs", self.runs, 'Router.open(..., runs="runs")')
        self._check_store()
        if self.selector is not None and not hasattr(self.selector, "select"):
            raise RequestError(
                f"selector={self.selector!r:.100} has no method `select`",
                advice="leave it out for search",
            )
        if self.development not in (False, True, "unpinned"):
            raise RequestError(
                f"development can't be {self.development!r}", advice="use True, False or 'unpinned'"
            )
        if not self.workspace.is_dir():
            raise RequestError(
                f"the workspace {str(self.workspace)!r} is not a folder",
                advice="name one that exists",
            )
        if self.workspace.is_relative_to(Path(self.runs).resolve()):
            raise RequestError(
                f"the workspace {str(self.workspace)!r} lies in the folder of the runs",
                advice="name another workspace or folder of runs: tools can't see files of runs",
            )
        self.hidden.extend(str(Path(place).resolve()) for place in (self.runs, token_folder()))

    def _check_store(self) -> None:
        if not hasattr(self.store, "create"):
            expect("store", self.store, (str, type(None)), _STORE)
        if isinstance(self.store, str) and not scheme_of(self.store):
            raise RequestError(
                f"{self.store[:20]!r} is not a store", advice="give a folder, or postgresql://…"
            )

    def open_stores(self) -> RunStores:
        """Return the store of the runs, which is opened when it is first asked for."""
        return RunStores(self.runs if self.store is None else self.store, self.runs)


@dataclass(frozen=True, slots=True)
class OpenedEngines:
    """What a config was opened to."""

    engines: EngineVersions
    selector: StagedSelector | None
    """The search of these engines; None where the caller selects."""
    snapshot: ConfigSnapshot
    """The files that the config was loaded from."""


def open_engines(
    opening: Opening, stores: RunStores, last_good: ConfigSnapshot | None = None
) -> OpenedEngines:
    """Return the engines of a router, over the store that `stores` keeps.

    `last_good` has the files of the config in force, where there is one: if one of these is gone,
    the config is refused, and without it the diagnostics say where the shipped policy rules. No
    server is contacted and nothing is written. Raises ConfigError, RequestError, CorruptPins.
    """
    from bundle_router.adapters.artifact_files import ScratchFolder
    from bundle_router.adapters.config_files import read_config
    from bundle_router.adapters.expressions import compile_pattern
    from bundle_router.adapters.json_query import query_json
    from bundle_router.adapters.learned_folder import ignored_path, learned_paths
    from bundle_router.adapters.local import KeptPlaces, LocalSessions
    from bundle_router.adapters.media import describe
    from bundle_router.adapters.monty import MontyPrograms
    from bundle_router.adapters.system import SystemCapabilities, SystemClock
    from bundle_router.adapters.workers import run_in_turn

    tools, _ = local_cards(opening.local)
    files = tuple(read_config(opening.config))
    pinned = PinnedCatalog(open_pins(opening.config), load_unpinned(files, opening.local))
    catalog, memories = with_learned(opening.config, with_skills(opening.config, pinned.catalog()))
    snapshot = ConfigSnapshot(files, learned_paths(opening.config))
    if last_good is not None:
        refuse_lost_files(opening.config, last_good, snapshot)
    clock = SystemClock()
    redactor = open_redactor(catalog)
    diagnostics = open_diagnostics(catalog, redactor)
    if last_good is None:
        runs = opening.runs if opening.store is None else None
        warn_of_shipped_policy(opening.config, runs, snapshot, catalog, diagnostics)
    warn_of_ignored_file(ignored_path(opening.config), diagnostics)
    warn_of_unused_tools(opening.local, catalog, diagnostics)
    servers = PinnedServers(
        catalog,
        clock,
        diagnostics,
        redactor,
        development=opening.development,
        workspace=opening.workspace,
    )
    protected = _protected_places(catalog, opening)
    sessions = LocalSessions(
        tools,
        shipped_tools,
        catalog.local,
        catalog.settings.limits,
        diagnostics,
        redactor,
        KeptPlaces(protected, opening.hidden),
    )
    if opening.selector is None:
        searching = open_selector(catalog, opening.runs, clock, diagnostics, memories)
    else:
        searching = None
    ports = EnginePorts(
        clock=clock,
        redactor=redactor,
        diagnostics=diagnostics,
        sessions={"local": sessions, **dict.fromkeys(REMOTE, servers.sessions)},
        describe=describe,
        patterns=compile_pattern,
        selector=opening.selector or searching,
        tools=open_tool_search(searching, diagnostics),
        results=open_results(catalog, clock),
        approvals=opening.approvals,
        scratch=ScratchFolder,
        programs=MontyPrograms(),
        queries=query_json,
        in_thread=partial(run_in_turn, "shaped"),
    )
    store = stores.under(catalog, clock)
    capabilities = SystemCapabilities(clock, catalog.settings.cache.capabilities_ttl_s)

    def engine_over(
        catalog: Catalog, pins: Mapping[str, Pins], approved: Collection[str] = ()
    ) -> Engine:
        return Engine(
            catalog=catalog,
            ports=ports,
            store=store,
            capabilities=capabilities,
            workspace=str(opening.workspace),
            servers=servers.servers_behind(catalog, pins, approved),
        )

    engines = EngineVersions(
        engine_over(catalog, pinned.pins), lambda: pinned.renew(catalog, engine_over)
    )
    return OpenedEngines(engines, searching, snapshot)


def _protected_places(catalog: Catalog, opening: Opening) -> list[str]:
    """Return the places that tools may read but not change."""
    # Where the policy, the pins, the skills (which pass for the operator's words) and the records
    # lie: tools that may write in the workspace may not write there, and what other runs left
    # behind, unredacted artifacts among it, is not for them to read, nor are the tokens of tool
    # servers. What stdio servers run is run outside.
    content = project_folder(opening.config) / "bundles"
    places: list[str | Path] = [opening.config or "config", content / "pins"]
    for bundle in catalog.bundles.values():
        if bundle.skill is not None:
            places.append(content / bundle.skill)
    for server in catalog.servers.values():
        for word in (server.command or "", *server.args):
            program = opening.workspace / word
            if os.path.isfile(program):  # noqa: PTH113  # any text is no error
                places.append(program)
    return list(dict.fromkeys(str(Path(place).resolve()) for place in places))
