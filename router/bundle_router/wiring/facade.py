"""`Router`: what an engine holds. `Router.open` brings the engine and the adapters together."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from bundle_router.adapters.loop import Portal, refuse_running_loop
from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.step_policy import refuse_unknown
from bundle_router.core.models import Activation, Decision, Step
from bundle_router.core.tools.exposure import Toolset
from bundle_router.engine.engine import Engine, surface_form
from bundle_router.engine.flow import EnginePorts
from bundle_router.engine.open_runs import RunEnd
from bundle_router.engine.results import Result
from bundle_router.engine.versions import EngineVersions, Renew
from bundle_router.errors import RequestError, WrongContext
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
from bundle_router.wiring.endpoint_access import EndpointAccess
from bundle_router.wiring.logins import token_folder
from bundle_router.wiring.repinning import PinnedFrom
from bundle_router.wiring.searching import open_selector, open_tool_search
from bundle_router.wiring.toolservers import REMOTE, PinnedServers

if TYPE_CHECKING:
    from bundle_router.core.tools.pins import Pins
    from bundle_router.engine.selecting import StagedSelector
    from bundle_router.review.explanation import Explanation

T = TypeVar("T")
MAX_KEY: Final = 200


class Router:
    """Decides which bundles each step may see, hands out their tools, carries out calls, and writes it all down.

    Open one per process. Everything may be called from many threads and tasks at once, for many runs side by side;
    steps of one run are ordered by their records' `seq`. The `*_sync` methods serve engines without an event loop and
    raise WrongContext inside one.
    """

    def __init__(
        self,
        engine: Engine,
        selector: StagedSelector | None = None,
        renew: Renew | None = None,
        again: Callable[[], Router] | None = None,
        config: str | Path | None = None,
    ) -> None:
        self._versions = EngineVersions(engine, engine.clock, renew)
        self._selector = selector
        self._older: dict[Engine, StagedSelector | None] = {}
        self._again = again
        self._config = config
        self._portal = Portal()
        self._forked = False
        _OPEN.add(self)

    @classmethod
    def open(
        cls,
        config: str | Path | None = "config",
        *,
        runs: str | Path = "runs",
        store: str | None = None,
        workspace: str | Path | None = None,
        development: bool | Literal["unpinned"] = False,
        local: LocalServers | None = None,
        selector: Selector | None = None,
    ) -> Self:
        """Reads the config (None: the shipped one alone) and gets ready; contacts nobody and writes nothing yet.

        `runs` is where run directories go; `store` is where they are kept instead (`postgresql://…`), for workers on
        several machines. `workspace` is the root that local tools are confined to (the current
        folder by default). `local` adds local tool servers by name, `selector` answers what the mapping can't (None:
        search and the models that the config names, as `[fallback]` orders them).
        `development` permits what a config file can't grant itself: servers that are started as processes (stdio);
        `"unpinned"` besides takes trusted servers that nobody has pinned as they come. Else a server is used only as
        far as its pins go (`bundles/pins` beside the config, written by `bundle-router pin`).
        Raises ConfigError, RequestError, CorruptPins.
        """
        from bundle_router.adapters.capabilities import SystemCapabilities
        from bundle_router.adapters.clock import SystemClock
        from bundle_router.adapters.handed_files import ScratchFolder
        from bundle_router.adapters.json_query import query_json
        from bundle_router.adapters.linear_patterns import compile_pattern
        from bundle_router.adapters.local import LocalSessions
        from bundle_router.adapters.media import describe
        from bundle_router.adapters.monty import MontyPrograms

        if development not in (False, True, "unpinned"):
            raise RequestError(f"development={development!r} is not known", advice="use True or 'unpinned'")
        tools, cards = local_cards(local)
        pinned = PinnedFrom(open_pins(config), read_unpinned(config, cards, declared_files(local)))
        catalog, memories = with_learned(config, with_skills(config, pinned.catalog()))
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
        servers = PinnedServers(catalog, clock, diagnostics, redactor, development=development, workspace=root)
        sessions = LocalSessions(tools, catalog.local, catalog.settings.limits, diagnostics, protected, protected[:2])
        own = open_selector(catalog, runs, clock, diagnostics, memories) if selector is None else None
        ports = EnginePorts(
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
            programs=MontyPrograms(),
            queries=query_json,
        )
        kept = open_store(runs, catalog, clock, redactor, store)
        capabilities = SystemCapabilities(clock, catalog.settings.cache.capabilities_ttl_s)

        def engine_over(catalog: Catalog, pins: Mapping[str, Pins], approved: Collection[str] = ()) -> Engine:
            return Engine(
                catalog=catalog,
                ports=ports,
                store=kept,
                capabilities=capabilities,
                workspace=str(root),
                servers=servers.behind(catalog, pins, approved),
                versions={"bundle_router": package_version()},
            )

        again = partial(
            cls.open,
            config,
            runs=runs,
            store=store,
            workspace=root,
            development=development,
            local=local,
            selector=selector,
        )
        return cls(engine_over(catalog, pinned.pins), own, lambda: pinned.renew(catalog, engine_over), again, config)

    def reload(self) -> bool:
        """Read the config anew, and return whether it is another one than before.

        A valid edit counts from each run's next step on; calls until then are judged by the decision they belong to.
        An invalid one raises ConfigError (CorruptPins, RequestError) and changes nothing.

        What was opened over the former config is closed by `retire`, once no run needs it any more.
        """
        if self._again is None:
            raise RequestError("this router was not opened from files", advice="open it with Router.open(...)")
        newer = self._again()  # has contacted nobody and opened nothing yet
        if newer.catalog.revision == self.catalog.revision:
            return False
        self._older[self._engines.first], self._selector = self._selector, newer._selector
        self._engines.supersede(newer._versions)
        return True

    def config_stamp(self) -> object:
        """What tells, by being another than before, that the config's files may have changed."""
        from bundle_router.adapters.config_files import stamp_of

        return stamp_of(self._config) if self._config is not None else ()

    async def retire(self) -> None:
        """Close what was opened over former configs and has no run any more. `close` does it, too."""
        for engine in await self._engines.retire():
            selector = self._older.pop(engine, None)
            if selector is not None:
                await selector.close()

    @property
    def _engines(self) -> EngineVersions:
        """The engines, for every entry point. Raises RequestError in a process that was forked from the one that opened
        this router: what it holds (locks, threads, connections) belongs to the parent."""
        if self._forked:
            raise RequestError(
                "this router was opened before the process was forked, and belongs to the parent",
                advice="open a router of its own in the child: Router.open(...)",
            )
        return self._versions

    @property
    def _on_loop(self) -> EngineVersions:
        """As `_engines`, for coroutines. Raises WrongContext where no asyncio loop runs them (trio, curio)."""
        if asyncio._get_running_loop() is None:
            raise WrongContext(
                "Bundle Router's coroutines run on asyncio, and this event loop is another (trio?)",
                advice="use the *_sync methods from a thread: await trio.to_thread.run_sync(router.route_sync, step)",
            )
        return self._engines

    async def warm_up(self) -> bool:
        """Gets search's index and the libraries behind the model ready, and waits for the latter (about a second and a
        half once per process; an index that has to be made is made meanwhile). Whether models can be. Contacts nobody
        but an embedding model that is elsewhere, which is sent the catalog's texts that are new.

        Without it the first questions of a process are answered by `[fallback]`, with `not_ready` in the record.
        """
        catalog = self._on_loop.newest.catalog
        return self._selector is not None and await self._selector.warm_up(catalog) == "ready"

    def warm_up_sync(self) -> bool:
        """As `warm_up`, for engines without an event loop."""
        refuse_running_loop("warm_up_sync()", "await router.warm_up(...)")
        return self._in_loop(self.warm_up())

    @property
    def catalog(self) -> Catalog:
        """The config in force."""
        return self._engines.newest.catalog

    @property
    def endpoint(self) -> EndpointAccess:
        """What only an MCP endpoint asks of a router."""
        return EndpointAccess(self._engines)

    def serve(self, **how: Any) -> AbstractAsyncContextManager[Any]:
        """Serves the runs over MCP on 127.0.0.1 while the context lasts, which gives the endpoint:
        `bundle_router.serving.serve_mcp`, with its parameters (`key`, `port`)."""
        from importlib import import_module

        served: AbstractAsyncContextManager[Any] = import_module("bundle_router.serving").serve_mcp(self, **how)
        return served

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the router's own loop."""
        try:
            _ = self._engines
        except BaseException:
            work.close()
            raise
        return self._portal.run(work)

    # --- routing ---------------------------------------------------------------------------------------------------

    async def route(self, step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None) -> Decision:
        """Decides what the step may see. The decision is in the run's records when this returns.

        `messages` is the agent's own history (OpenAI's or Anthropic's shape), for agents that keep it: what the run has
        active is then derived from the calls in it, in place of what the run remembers.

        Raises UnknownRun (the parent has no decision), RequestError, KeyConflict (the step's key was used with other
        contents), RunBusy, CorruptRun, and StorageError when the decision could not be written; the run is then as it
        was before.
        """
        return await self._on_loop.for_step(_run_id(step)).route(step, messages)

    def route_sync(self, step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None) -> Decision:
        """As `route`, for engines without an event loop. A step that the mapping answers never leaves this thread."""
        refuse_running_loop("route_sync()", "await router.route(...)")
        return self._engines.for_step(_run_id(step)).route_from_thread(step, self._portal.run, messages)

    def explain(self, step: Step, target: str) -> Explanation:
        """Why `target` (a bundle id or `server.tool`) is or is not shown at the step. Decides nothing, writes nothing.

        Reads capabilities as they are now; knows nothing of a run's stickiness or of parents. Where search would be
        asked first it is; a model is not.
        """
        from bundle_router.review.explanation import explain

        refuse_unknown(self.catalog, step.policy)
        hear = self._selector.preview if self._selector is not None else None
        return explain(self.catalog, self._engines.newest.facts(), Activation(), step, target, hear)

    # --- tools -----------------------------------------------------------------------------------------------------

    @overload
    async def tools(
        self,
        run_id: str,
        *,
        format: str = ...,
        native: bool = ...,
        decision: str | None = ...,
        if_changed: None = ...,
    ) -> Toolset: ...

    @overload
    async def tools(
        self,
        run_id: str,
        *,
        format: str = ...,
        native: bool = ...,
        decision: str | None = ...,
        if_changed: str,
    ) -> Toolset | None: ...

    async def tools(
        self,
        run_id: str,
        *,
        format: str = "openai",  # noqa: A002 - the contract's name
        native: bool = False,
        decision: str | None = None,
        if_changed: str | None = None,
    ) -> Toolset | None:
        """What a decision of the run shows, as definitions for `openai`, `anthropic` or `mcp`, and what the model is to
        be told besides. `decision` is the id of an open one (None: the newest of the run's default branch).

        Ask again after a call whose `joined` is not empty. `native` leaves deferred tools to the provider: their
        definitions are in the array with `defer_loading`, beside its own search tool (`openai`: in the form of the
        Responses API, a namespace for each bundle). `if_changed` is the `digest` of the list the agent has: None comes
        back while it is the same. Raises UnknownRun, RequestError.
        """
        form = surface_form(format, native=native)
        toolset = await self._on_loop.of(run_id).tools(run_id, form, decision)
        return None if if_changed is not None and toolset.digest == if_changed else toolset

    @overload
    def tools_sync(
        self,
        run_id: str,
        *,
        format: str = ...,
        native: bool = ...,
        decision: str | None = ...,
        if_changed: None = ...,
    ) -> Toolset: ...

    @overload
    def tools_sync(
        self,
        run_id: str,
        *,
        format: str = ...,
        native: bool = ...,
        decision: str | None = ...,
        if_changed: str,
    ) -> Toolset | None: ...

    def tools_sync(
        self,
        run_id: str,
        *,
        format: str = "openai",  # noqa: A002 - the contract's name
        native: bool = False,
        decision: str | None = None,
        if_changed: str | None = None,
    ) -> Toolset | None:
        """As `tools`, for engines without an event loop."""
        refuse_running_loop("tools_sync()", "await router.tools(...)")
        form = surface_form(format, native=native)
        engine = self._engines.of(run_id)
        if engine.needs_discovery(run_id):
            toolset = self._portal.run(engine.tools(run_id, form, decision))
        else:
            toolset = engine.toolset(run_id, form, decision)
        return None if if_changed is not None and toolset.digest == if_changed else toolset

    async def call(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        decision: str | None = None,
        key: str = "",
        whole: bool = False,
    ) -> Result:
        """Calls a tool by its canonical (`server.tool`) or exposed name, if a decision of the run holds it; or one of
        the router's own (`search_tools`, `call_tool`, `read_artifact` …), which look no further either.

        `arguments` is an object, or the JSON text of one, as some providers hand it over. `decision` is the id of the
        open decision that it is judged under (None: the newest of the run's default branch). `key` makes it happen
        once: the same key again gives the recorded result, whichever process asks; a call that began and has no end,
        and whose process is gone, has the outcome `unknown`, unless the tool may be called again. `whole` adds the
        unshaped result. What the agent can see fail is a `Result` with another outcome than `ok`.

        Raises UnknownRun, RequestError, KeyConflict, RunBusy and StorageError (the call's record could not be written).
        """
        engine = self._on_loop.of(run_id)
        return await engine.call(run_id, name, arguments, decision, key=_key(engine, key), whole=whole)

    def call_sync(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        decision: str | None = None,
        key: str = "",
        whole: bool = False,
    ) -> Result:
        """As `call`, for engines without an event loop."""
        refuse_running_loop("call_sync()", "await router.call(...)")
        return self._in_loop(self.call(run_id, name, arguments, decision=decision, key=key, whole=whole))

    async def missed(self, run_id: str, name: str, *, decision: str | None = None) -> Result:
        """Records that the agent asked for a tool by a name that is not in its list, and that a framework refused by
        itself: reviewers see it as a gap. The result says why it is not there."""
        return await self._on_loop.of(run_id).missed(run_id, name, decision)

    def missed_sync(self, run_id: str, name: str, *, decision: str | None = None) -> Result:
        """As `missed`, for engines without an event loop."""
        refuse_running_loop("missed_sync()", "await router.missed(...)")
        return self._in_loop(self.missed(run_id, name, decision=decision))

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
        decision: str | None = None,
    ) -> dict[str, Any]:
        """An artifact as a part of a message in a provider's form: OpenAI `image_url`, `input_audio` or `file`,
        Anthropic `image` or `document`, MCP blocks (`link`: a resource link). What a provider does not take, is empty
        or too large, becomes a text part that says so. `decision` is the id of the open decision that it is asked
        for under (None: of any). Raises as `artifact`, and RequestError for a decision that is not open.
        """
        engine = self._on_loop.of(run_id)
        return await asyncio.to_thread(engine.media, run_id, uri, surface_form(format), decision, link=link)

    def media_sync(
        self,
        run_id: str,
        uri: str,
        *,
        format: str = "openai",  # noqa: A002 - the contract's word
        link: bool = False,
        decision: str | None = None,
    ) -> dict[str, Any]:
        """As `media`, for engines without an event loop."""
        refuse_running_loop("media_sync()", "await router.media(...)")
        return self._engines.of(run_id).media(run_id, uri, surface_form(format), decision, link=link)

    # --- ends ------------------------------------------------------------------------------------------------------

    async def close_run(self, run_id: str) -> RunEnd:
        """Ends the run: closes what was opened for it here, and writes its end, unless other processes have it open;
        the last of them does that then, and what is returned says who they are. It may be continued by another `route`.
        """
        return await self._on_loop.of(run_id).end_run(run_id)

    def close_run_sync(self, run_id: str) -> RunEnd:
        """As `close_run`, for engines without an event loop."""
        refuse_running_loop("close_run_sync()", "await router.close_run(...)")
        engine = self._engines.of(run_id)
        return self._portal.run(engine.end_run(run_id)) if engine.holds_sessions else engine.close_run(run_id)

    async def close(self) -> None:
        """Ends every run and lets go of everything. The router can't be used afterwards."""
        if self._forked:
            return  # what it holds is the parent's
        await self._end()
        self._portal.close()

    async def _end(self) -> None:
        await self._versions.close()
        for selector in (self._selector, *self._older.values()):
            if selector is not None:
                await selector.close()

    def close_sync(self) -> None:
        """As `close`, for engines without an event loop."""
        refuse_running_loop("close_sync()", "await router.close(...)")
        if not self._forked and not self._portal.closed:
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


_OPEN: weakref.WeakSet[Router] = weakref.WeakSet()


def _note_fork() -> None:
    for router in list(_OPEN):
        router._forked = True


os.register_at_fork(after_in_child=_note_fork)


def _key(engine: Engine, key: str) -> str:
    """The key of a call, which records keep as it is. Raises RequestError for what looks like a secret or is no key."""
    if not isinstance(key, str) or len(key) > MAX_KEY or engine.redactor.redact(key) != key:
        raise RequestError(
            f"a call's key is a text of at most {MAX_KEY} characters that does not look like a secret",
            advice="records keep it as it is: use other words for it",
        )
    return key


def _run_id(step: object) -> str:
    """Of what may be no step: the engine says so."""
    return step.run_id if isinstance(step, Step) else ""
