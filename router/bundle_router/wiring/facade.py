"""`Router`: what an engine holds. `Router.open` brings the engine and the adapters together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bundle_router.adapters.loop import Portal, refuse_running_loop
from bundle_router.core.catalog import Catalog, Feature
from bundle_router.core.decide.step_policy import refuse_unknown
from bundle_router.core.models import Activation, Decision, Step
from bundle_router.core.tools.exposure import Toolset
from bundle_router.core.tools.transport.passage import Client, ServerReply
from bundle_router.engine.engine import Engine
from bundle_router.engine.outcomes import Result
from bundle_router.engine.run import Deps
from bundle_router.engine.versions import Generations, Renew
from bundle_router.ports import Selector
from bundle_router.wiring.catalogs import (
    LocalServers,
    declared_files,
    local_cards,
    open_pins,
    project_folder,
    read_unpinned,
    warn_of_unused_tools,
    with_learned,
    with_skills,
)
from bundle_router.wiring.effects import open_diagnostics, open_redactor, open_results, open_store, package_version
from bundle_router.wiring.logins import token_folder
from bundle_router.wiring.repinning import PinnedFrom
from bundle_router.wiring.searching import open_selector, open_tool_search
from bundle_router.wiring.toolservers import REMOTE, PinnedServers

if TYPE_CHECKING:
    from bundle_router.core.tools.pins import Pins, PinSetting
    from bundle_router.engine.selecting import StagedSelector
    from bundle_router.review.explain import Explanation


class Router:
    """Decides which bundles each step may see, hands out their tools, carries out calls, and writes it all down.

    Open one per process. Everything may be called from many threads and tasks at once, for many runs side by side;
    steps of one run are ordered by their records' `seq`. The `*_sync` methods serve engines without an event loop and
    raise WrongContext inside one.
    """

    def __init__(self, engine: Engine, selector: StagedSelector | None = None, renew: Renew | None = None) -> None:
        self._engines = Generations(engine, engine.clock, renew)
        self._selector = selector
        self._portal = Portal()

    @classmethod
    def open(
        cls,
        config: str | Path | None = "config",
        *,
        runs: str | Path = "runs",
        workspace: str | Path | None = None,
        development: bool = False,
        pins: PinSetting = "required",
        local: LocalServers | None = None,
        selector: Selector | None = None,
    ) -> Self:
        """Reads the config (None: the shipped one alone) and gets ready; contacts nobody and writes nothing yet.

        `runs` is where run directories go. `workspace` is the root that local tools are confined to (the current
        folder by default). `local` adds local tool servers by name, `selector` answers what the mapping can't (None:
        search and the models that the config names, as `[fallback]` orders them).
        `development` permits what a config file can't grant itself: servers that are started as processes (stdio), and
        `pins="trusted-may-skip"`, which takes trusted servers that nobody has pinned as they come. Without it, a server
        is used only as far as its pins go (`bundles/pins` beside the config, written by `bundle-router pin`).
        Raises ConfigError, RequestError, CorruptPins.
        """
        from bundle_router.adapters.capabilities import SystemCapabilities
        from bundle_router.adapters.clock import SystemClock
        from bundle_router.adapters.local import LocalSessions
        from bundle_router.adapters.media import describe
        from bundle_router.adapters.patterns import compile_pattern
        from bundle_router.adapters.scratch import ScratchFolder
        from bundle_router.errors import RequestError

        if pins not in ("required", "trusted-may-skip"):
            raise RequestError(f"pins={pins!r} is not known", advice="use 'required' or 'trusted-may-skip'")
        if pins != "required" and not development:
            raise RequestError(
                f"pins={pins!r} is for development only", advice="pass development=True, or pin the servers"
            )
        tools, cards = local_cards(local)
        pinned = PinnedFrom(open_pins(config), read_unpinned(config, cards, declared_files(local)))
        catalog, memory = with_learned(config, with_skills(config, pinned.catalog()))
        root = Path(workspace if workspace is not None else Path.cwd()).resolve()
        if not root.is_dir():
            raise RequestError(f"the workspace {str(root)!r} is not a folder", advice="name one that exists")
        if root.is_relative_to(Path(runs).resolve()):
            advice = "keep the runs elsewhere: what they left behind is hidden from tools"
            raise RequestError(f"the workspace {str(root)!r} lies in the folder of the runs", advice=advice)
        clock = SystemClock()
        redactor = open_redactor(catalog)
        diagnostics = open_diagnostics(catalog, redactor)
        warn_of_unused_tools(local, catalog, diagnostics)
        # Where the policy, the pins, the skills (which pass for the operator's words) and the records lie: tools that
        # may write in the workspace may not write there, and what other runs left behind, unredacted artifacts among
        # it, is not for them to read, nor are the tokens of tool servers. What stdio servers run is run outside.
        content = project_folder(config) / "bundles"
        skills = sorted({content / bundle.skill for bundle in catalog.bundles.values() if bundle.skill is not None})
        words = [word for server in catalog.servers.values() for word in (server.command or "", *server.args)]
        programs = [root / word for word in words if os.path.isfile(root / word)]  # noqa: PTH113  # any text is no error
        places = (runs, token_folder(), config or "config", content / "pins", *skills, *programs)
        protected = [str(Path(place).resolve()) for place in places]
        servers = PinnedServers(catalog, pins, clock, diagnostics, redactor, development=development, workspace=root)
        sessions = LocalSessions(tools, catalog.local, catalog.settings.limits, diagnostics, protected, protected[:2])
        own = open_selector(catalog, runs, clock, diagnostics, memory) if selector is None else None
        deps = Deps(
            clock=clock,
            redactor=redactor,
            diagnostics=diagnostics,
            sessions={"local": sessions, **dict.fromkeys(REMOTE, servers.sessions)},
            describe=describe,
            patterns=compile_pattern,
            selector=selector or own,
            tools=open_tool_search(own, diagnostics),
            results=open_results(catalog, clock),
            scratch=ScratchFolder,
        )
        store = open_store(runs, catalog, clock, redactor)
        capabilities = SystemCapabilities(clock, catalog.settings.cache.capabilities_ttl_s)

        def engine_over(catalog: Catalog, pins: Mapping[str, Pins], approved: Collection[str] = ()) -> Engine:
            return Engine(
                catalog=catalog,
                deps=deps,
                store=store,
                capabilities=capabilities,
                workspace=str(root),
                servers=servers.behind(catalog, pins, approved),
                versions={"bundle_router": package_version()},
            )

        return cls(engine_over(catalog, pinned.pins), own, lambda: pinned.renew(catalog, engine_over))

    async def warm_up(self) -> bool:
        """Makes the search index, and waits (seconds) until models can be asked; gives whether they can be. Contacts
        nobody but an embedding model that is elsewhere, which is sent the catalog's texts that are new.

        Without it the first questions of a process are answered by `[fallback]`, with `not_ready` in the record.
        """
        return self._selector is not None and await self._selector.warm_up(self.catalog) == "ready"

    def warm_up_sync(self) -> bool:
        """As `warm_up`, for engines without an event loop."""
        refuse_running_loop("warm_up_sync()", "await router.warm_up(...)")
        return self._portal.run(self.warm_up())

    @property
    def catalog(self) -> Catalog:
        """The config in force."""
        return self._engines.newest.catalog

    # --- routing ---------------------------------------------------------------------------------------------------

    async def route(self, step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None) -> Decision:
        """Decides what the step may see. The decision is in the run directory when this returns.

        `messages` is the agent's own history (OpenAI's or Anthropic's shape), for agents that keep it: what the run has
        active is then derived from the calls in it, in place of what the run remembers.

        Raises UnknownRun (the parent has no decision), RequestError, RunInUse, CorruptRun, and StorageError when the
        decision could not be written; the run is then as it was before.
        """
        return await self._engines.route(_run_id(step), lambda engine: engine.route(step, messages))

    def route_sync(self, step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None) -> Decision:
        """As `route`, for engines without an event loop. A step that the mapping answers never leaves this thread."""
        refuse_running_loop("route_sync()", "await router.route(...)")
        return self._engines.route_sync(
            _run_id(step), lambda engine: engine.route_from_thread(step, self._portal.run, messages)
        )

    def explain(self, step: Step, target: str) -> Explanation:
        """Why `target` (a bundle id or `server.tool`) is or is not shown at the step. Decides nothing, writes nothing.

        Reads capabilities as they are now; knows nothing of a run's stickiness or of parents. Where search would be
        asked first it is; a model is not.
        """
        from bundle_router.review.explain import explain

        refuse_unknown(self.catalog, step.policy)
        hear = self._selector.preview if self._selector is not None else None
        return explain(self.catalog, self._engines.newest.facts(), Activation(), step, target, hear)

    # --- tools -----------------------------------------------------------------------------------------------------

    async def tools(
        self,
        run_id: str,
        *,
        format: str = "openai",  # noqa: A002 - the contract's name
        native: bool = False,
        fixed: bool = False,
    ) -> Toolset:
        """What the run's current decision shows, as definitions for `openai`, `anthropic` or `mcp`, and what the model
        should be told besides.

        Ask again after a call whose `joined` is not empty. `native` leaves deferred tools to the provider: their
        definitions are in the array with `defer_loading`, beside its own search tool (`openai`: in the form of the
        Responses API, a namespace for each bundle). `fixed` gives the list as MCP wants it: with all of the router's
        own tools, and changed by nothing but another `route`. Raises UnknownRun, RequestError.
        """
        return await self._engines.of(run_id).tools(run_id, format, native=native, fixed=fixed)

    def tools_sync(
        self,
        run_id: str,
        *,
        format: str = "openai",  # noqa: A002 - the contract's name
        native: bool = False,
        fixed: bool = False,
    ) -> Toolset:
        """As `tools`, for engines without an event loop."""
        refuse_running_loop("tools_sync()", "await router.tools(...)")
        engine = self._engines.of(run_id)
        if engine.needs_discovery(run_id):
            return self._portal.run(engine.tools(run_id, format, native=native, fixed=fixed))
        return engine.toolset(run_id, format, native=native, fixed=fixed)

    async def call(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        joins: bool = True,
        client: Client | None = None,
    ) -> Result:
        """Calls a tool by its canonical (`server.tool`) or exposed name, if the run's current decision holds it; or one
        of the router's own (`search_tools`, `call_tool`, `read_artifact` …), which look no further either.

        `arguments` is an object, or the JSON text of one, as some providers hand it over. `joins=False` lets nothing
        that is found or called join the array: for agents whose list of tools is `fixed`. `client` is the agent's own,
        which has the answers of servers that pass their `results` on as they came. What the agent can see fail is a
        `Result` with another outcome than `ok`. Raises UnknownRun, RequestError (no decision yet) and StorageError
        (the call's record could not be written).
        """
        return await self._engines.call(
            run_id, lambda engine: engine.call(run_id, name, arguments, joins=joins, client=client)
        )

    async def passes(self, run_id: str) -> frozenset[Feature]:
        """What servers of the run's current decision pass on to its agent, besides their tools: what their entries name
        in `pass_through`. Raises UnknownRun."""
        return await self._engines.of(run_id).passes(run_id)

    async def ask(self, run_id: str, method: str, params: Mapping[str, Any], client: Client) -> ServerReply:
        """Passes a request of an agent's client on: `resources/list`, `resources/templates/list`, `resources/read`,
        `prompts/list`, `prompts/get` or `completion/complete`, in MCP's words. What came of it is in the answer, and
        recorded, lists excepted. Raises UnknownRun, StorageError."""
        return await self._engines.call(run_id, lambda engine: engine.ask(run_id, method, params, client))

    async def follow(self, run_id: str, uri: str, updated: Callable[[], None]) -> Callable[[], None] | ServerReply:
        """Has `updated` called, from any thread, when a resource that is passed on to the run's agent changes. Gives
        what ends that, or an answer that says why it can't be. Ends with the run. Raises UnknownRun, StorageError."""
        return await self._engines.call(run_id, lambda engine: engine.follow(run_id, uri, updated))

    def call_sync(self, run_id: str, name: str, arguments: Mapping[str, Any] | str, *, joins: bool = True) -> Result:
        """As `call`, for engines without an event loop."""
        refuse_running_loop("call_sync()", "await router.call(...)")
        return self._portal.run(self.call(run_id, name, arguments, joins=joins))

    async def decision_id(self, run_id: str) -> str:
        """The id of the run's current decision. Raises UnknownRun where there is none."""
        return await self._engines.of(run_id).decision_id(run_id)

    def watch(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Calls `heard` with the run's id after each decision, on the thread that took it; it must neither block nor
        raise. Returns what ends it."""
        return self._engines.watch(heard)

    def report(self, level: str, event: str, **fields: object) -> None:
        """An event in the router's diagnostics, redacted. `level` is `debug`, `info`, `warning` or `error`."""
        self._engines.newest.diagnostics.event(level, event, **fields)

    def keep_secret(self, name: str, value: str) -> None:
        """Has a token that the caller made redacted from now on, wherever it turns up in a record or in diagnostics:
        as `[redacted:token:<name>]`. Values of fewer than 8 characters are not looked for."""
        self._engines.newest.redactor.keep(name, value)

    def artifact(self, run_id: str, uri: str) -> bytes:
        """The bytes behind `artifact:sha256:…`, as they came, checked against their digest.

        Raises UnknownRun, RequestError (neither the run nor an ancestor has it), CorruptRun (not what was stored).
        """
        return self._engines.of(run_id).artifact(run_id, uri)

    async def media(
        self,
        run_id: str,
        uri: str,
        *,
        format: str = "openai",  # noqa: A002 - the contract's word
        link: bool = False,
    ) -> dict[str, Any]:
        """An artifact as a part of a message in a provider's form: OpenAI `image_url`, `input_audio` or `file`,
        Anthropic `image` or `document`, MCP blocks (`link`: a resource link). What a provider does not take, is empty
        or too large, becomes a text part that says so. Raises as `artifact`.
        """
        return await asyncio.to_thread(self._engines.of(run_id).media, run_id, uri, format, link=link)

    def media_sync(
        self,
        run_id: str,
        uri: str,
        *,
        format: str = "openai",  # noqa: A002 - the contract's word
        link: bool = False,
    ) -> dict[str, Any]:
        """As `media`, for engines without an event loop."""
        refuse_running_loop("media_sync()", "await router.media(...)")
        return self._engines.of(run_id).media(run_id, uri, format, link=link)

    # --- ends ------------------------------------------------------------------------------------------------------

    async def close_run(self, run_id: str) -> None:
        """Ends the run: closes what it opened and seals its directory. It may be continued by another `route`."""
        await self._engines.of(run_id).end_run(run_id)

    def close_run_sync(self, run_id: str) -> None:
        """As `close_run`, for engines without an event loop."""
        refuse_running_loop("close_run_sync()", "await router.close_run(...)")
        engine = self._engines.of(run_id)
        if engine.holds_sessions:
            self._portal.run(engine.end_run(run_id))
        else:
            engine.close_run(run_id)

    async def close(self) -> None:
        """Ends every run and lets go of everything. The router can't be used afterwards."""
        await self._end()
        self._portal.close()

    async def _end(self) -> None:
        await self._engines.close()
        if self._selector is not None:
            await self._selector.close()

    def close_sync(self) -> None:
        """As `close`, for engines without an event loop."""
        refuse_running_loop("close_sync()", "await router.close(...)")
        if not self._portal.closed:
            self._portal.run(self._end())
            self._portal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        refuse_running_loop("with Router.open(...)", "async with Router.open(...)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_sync()


def _run_id(step: object) -> str:
    """Of what may be no step: the engine says so."""
    return step.run_id if isinstance(step, Step) else ""
