"""`Router`, which engines use. `Router.open` connects the engine and the adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

from bundle_router.adapters.loop import Portal, refuse_gevent, refuse_running_loop
from bundle_router.core.catalog import Catalog
from bundle_router.core.config.last_good import ConfigSnapshot
from bundle_router.core.decide.step_policy import refuse_unknown
from bundle_router.core.values import Activation, Decision, Seen, Step
from bundle_router.engine.engine import Engine
from bundle_router.engine.run_records import RunEnd
from bundle_router.engine.surface import surface_form
from bundle_router.engine.versions import EngineVersions
from bundle_router.errors import RequestError, UnknownRun, WrongContext, expect
from bundle_router.ports import RunStore, Selector
from bundle_router.wiring.catalogs import LocalServers, expect_path
from bundle_router.wiring.opening import Opening, open_engines
from bundle_router.wiring.stores import RunStores
from bundle_router.wiring.toolservers import Development

if TYPE_CHECKING:
    from bundle_router.core.exposure.placements import Toolset
    from bundle_router.core.records.explanation import Explanation
    from bundle_router.core.values.approvals import Approval
    from bundle_router.engine.answers import Answers
    from bundle_router.engine.results import Result
    from bundle_router.engine.selecting import StagedSelector
    from bundle_router.wiring.endpoint_access import EndpointAccess

T = TypeVar("T")


class ListForm(TypedDict, total=False):
    """The form of a list of tools (see `Router.tools`)."""

    format: str
    native: bool
    decision: str | None


class Unattended(TypedDict, total=False):
    """What a router does where nobody is there to answer (see `Router.open`)."""

    approvals: Literal["ask", "refuse"]


class HeldForm(TypedDict, total=False):
    """How a call goes on that may wait for somebody's word (see `Router.call`)."""

    approval: str
    join: bool
    wait_s: float


class Router:
    """Decides which bundles each step may see, returns their tools, makes calls, and records all of
    it.

    Open one per process. Everything may be called from many threads and tasks at once, for many
    runs; the steps of a run are ordered by their records' `seq`. The `*_sync` methods serve engines
    without an event loop and raise WrongContext inside one.

    >>> from pathlib import Path
    >>> from bundle_router import Router, Step
    >>> _ = Path("README.md").write_text("# Hello", "utf-8")
    >>> with Router.open(None, runs="runs") as router:  # None: the shipped config
    ...     step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    ...     decision = router.route_sync(step)
    ...     result = router.call_sync("r-42", "repo.read_file", {"path": "README.md"})
    >>> "repo.readonly" in decision.bundle_ids, "# Hello" in result.text
    (True, True)
    """

    opened_at: object = None
    """The value of `config_stamp` just before the config was read."""

    def __init__(
        self,
        engines: EngineVersions,
        selector: StagedSelector | None = None,
        opening: Opening | None = None,
    ) -> None:
        """Open one with `Router.open("config")` instead."""
        expect("engines", engines, EngineVersions, 'open a router with Router.open("config")')
        self._versions = engines
        self._selector = selector
        self._older: dict[Engine, StagedSelector | None] = {}
        self._opening = opening
        self._snapshot: ConfigSnapshot | None = None
        self._stores: RunStores | None = None
        self._portal = Portal()
        self._ran_on_loop = False

    @classmethod
    def open(
        cls,
        config: str | Path | None = "config",
        *,
        runs: str | Path = "runs",
        store: str | RunStore | None = None,
        workspace: str | Path | None = None,
        development: Development = False,
        local: LocalServers | None = None,
        selector: Selector | None = None,
        **how: Unpack[Unattended],
    ) -> Self:
        """Read the config (None: the shipped one alone) and prepare a router.

        No server is contacted and nothing is written.

        `runs` is the folder of run directories; `store` keeps the runs instead: a database
        (`postgresql://…`), for workers on several machines, or a store of your own
        (`ports.RunStore`), which you close after the router. `workspace` is the folder that
        confines local tools (default: the current folder). `local` adds local tool servers by name.
        `selector` answers what the mapping can't (None: search and the config's models, in the
        order of `[fallback]`). `approvals="refuse"`: a call that would wait for somebody's word is
        refused at once, where nobody is there to answer. `development` permits what a config file
        can't grant itself: servers that are started as processes (stdio), and with `"unpinned"`
        also trusted servers without pins. Otherwise a server is used only as far as its pins go
        (`bundles/pins` beside the config, written by `bundle-router pin`). Raises ConfigError,
        RequestError, CorruptPins.
        """
        refuse_gevent()
        expect_path("workspace", workspace, 'Router.open(..., workspace=".")', type(None))
        root = Path(workspace if workspace is not None else Path.cwd()).resolve()
        opening = Opening(config, runs, store, root, development, local, selector, **how)
        opened_at = opening.stamp()
        stores = opening.open_stores()
        opened = open_engines(opening, stores)
        router = cls(opened.engines, opened.selector, opening)
        router._stores = stores
        router.opened_at = opened_at
        router._snapshot = opened.snapshot
        return router

    def reload(self) -> bool:
        """Read the config again, and return whether it changed.

        A valid edit applies from each run's next step on; until then calls are judged by the
        decision they belong to. An invalid one raises ConfigError (CorruptPins, RequestError) and
        changes nothing. So does a folder in which a file is gone that the config in force was read
        from: the shipped one, which would rule in its place, may permit more. Such a file comes
        back, or the router is opened anew.

        `retire` closes what was opened for the former config, once nothing needs it any more.
        """
        engines = self._engines
        if self._opening is None or self._stores is None:
            raise RequestError(
                "this router was not opened from files", advice="open it with Router.open(...)"
            )
        # What is opened has contacted nobody and written nothing yet.
        newer = open_engines(self._opening, self._stores, self._snapshot)
        self._snapshot = newer.snapshot
        if newer.engines.newest.catalog.revision == self.catalog.revision:
            return False
        self._older[engines.first] = self._selector
        self._selector = newer.selector
        engines.supersede(newer.engines)
        return True

    def config_stamp(self) -> object:
        """Return a value that differs from an earlier one if the config's files may have
        changed.
        """
        return self._opening.stamp() if self._opening is not None else ()

    async def retire(self) -> None:
        """Close what was opened for former configs, has no run any more and was superseded half a
        minute ago. `close` does it, too.
        """
        for engine in await self._on_loop.retire():
            selector = self._older.pop(engine, None)
            if selector is not None:
                await selector.close()

    @property
    def _engines(self) -> EngineVersions:
        """The engines, for every entry point.

        Raises RequestError in a process that was forked from the one that opened this router: its
        locks, threads and connections belong to the parent.
        """
        if self._portal.is_forked:
            raise RequestError(
                "this router belongs to the process that forked this one",
                advice="open a router of its own in the child: Router.open(...)",
            )
        return self._versions

    def _engine_of(self, engines: EngineVersions, run_id: str) -> Engine:
        """Return the engine of an open run (the newest where it is not open)."""
        engine, until_ns = engines.standing
        if engine.ports.clock.monotonic_ns() < until_ns:
            return engine
        return engines.of(run_id)

    @property
    def _on_loop(self) -> EngineVersions:
        """The engines, for coroutines.

        Raises WrongContext outside an asyncio loop (trio, curio).
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise WrongContext(
                "Bundle Router runs on asyncio, and this event loop is another (trio?)",
                advice=(
                    "use the *_sync methods from a thread: await"
                    " trio.to_thread.run_sync(router.route_sync, step)"
                ),
            ) from None
        self._ran_on_loop = True
        return self._engines

    async def warm_up(self) -> bool:
        """Prepare search's index, and load the modules of calls and the models' library; wait for
        the library (about a second and a half once per process). Return whether models can be asked
        now. Contacts only a remote embedding model, with the catalog's new texts.

        Without this, `[fallback]` answers the first questions of a process, with `not_ready` in the
        record, and the first call loads its modules on the caller's event loop (about 0.1 s).
        """
        from bundle_router.wiring.call_modules import load_call_modules

        catalog = self._on_loop.newest.catalog
        own_servers = (self._opening.local if self._opening is not None else None) or {}
        loading = asyncio.to_thread(load_call_modules, catalog, own_servers)
        if self._selector is None:
            await loading
            return False
        readiness, _ = await asyncio.gather(self._selector.warm_up(catalog), loading)
        return readiness == "ready"

    def warm_up_sync(self) -> bool:
        """Do as `warm_up` does, for engines without an event loop."""
        refuse_running_loop("warm_up_sync()", "await router.warm_up(...)")
        return self._in_loop(self.warm_up())

    @property
    def catalog(self) -> Catalog:
        """The config in force."""
        return self._engines.newest.catalog

    @property
    def endpoint(self) -> EndpointAccess:
        """The part of the router that only an MCP endpoint uses."""
        from bundle_router.wiring.endpoint_access import EndpointAccess

        return EndpointAccess(self._engines, self._opening, self._snapshot)

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the router's own loop."""
        try:
            _ = self._engines  # raises in a forked process
        except BaseException:
            work.close()
            raise
        return self._portal.run(work)

    # --- routing ----------------------------------------------------------------------------------

    async def route(
        self, step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None
    ) -> Decision:
        """Decide what the step may see. When this returns, the run's records contain the decision.

        `messages` is the agent's own history (in OpenAI's or Anthropic's form), for agents that
        keep one: the active tools are then derived from the calls in it instead of from the run.

        Raises UnknownRun (the parent has no decision), RequestError, KeyConflict (the step's key
        was used with other contents), RunBusy, CorruptRun, and StorageError when the decision could
        not be written; the run is then unchanged.
        """
        run_id = getattr(step, "run_id", "")
        engine = self._engine_of(self._on_loop, run_id)
        if engine is not self._versions.standing[0]:
            engine = await self._versions.for_step(run_id, engine)
        return await engine.route(step, messages)

    def route_sync(
        self, step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None
    ) -> Decision:
        """Do as `route` does, without an event loop.

        A step that the mapping answers never leaves this thread.
        """
        refuse_running_loop("route_sync()", "await router.route(...)")
        run_id = getattr(step, "run_id", "")
        engine = self._engine_of(self._engines, run_id)
        if engine is not self._versions.standing[0]:
            engine = self._versions.moved(run_id, engine)
        return engine.route_from_thread(step, self._portal.run, messages)

    def explain(self, step: Step, target: str) -> Explanation:
        """Return why `target` (a bundle id or `server.tool`) is or is not shown at the step.

        Decides and writes nothing.

        Uses the present capabilities, but no run: neither its stickiness nor its parents. Asks
        search where a decision would, never a model.
        """
        from bundle_router.core.records.explanation import explain

        expect("a step", step, Step, "explain(Step(run_id=…, workflow=…, role=…, step=…), …)")
        expect(
            "a target", target, str, 'explain(step, "repo.readonly"), or a tool, "repo.read_file"'
        )
        refuse_unknown(self.catalog, step.policy)
        reply_for = self._selector.preview if self._selector is not None else None
        return explain(
            self.catalog, self._engines.newest.facts(), Activation(), step, target, reply_for
        )

    # --- tools ------------------------------------------------------------------------------------

    @overload
    async def tools(
        self, run_id: str, *, if_changed: None = ..., **form: Unpack[ListForm]
    ) -> Toolset: ...

    @overload
    async def tools(
        self, run_id: str, *, if_changed: str, **form: Unpack[ListForm]
    ) -> Toolset | None: ...

    async def tools(
        self,
        run_id: str,
        *,
        format: str = "openai",
        native: bool = False,
        decision: str | None = None,
        if_changed: str | None = None,
    ) -> Toolset | None:
        """Return the tools that a decision of the run shows, as definitions for `openai`,
        `anthropic` or `mcp`, and guidance for the model. `decision` is the id of an open one (None:
        the newest of the run's default branch).

        Get the tools again after a call whose `joined` is not empty. With `native`, the provider
        defers tools itself: their definitions are in the array with `defer_loading`, beside its own
        search tool (`openai`: in the Responses API's form, a namespace for each bundle).
        `if_changed` is the `digest` of the agent's list: the result is None while the list is the
        same. Raises UnknownRun, RequestError.
        """
        expect(
            "if_changed",
            if_changed,
            (str, type(None)),
            "give the `digest` of the list that the agent has",
        )
        form = surface_form(format, native=native)
        toolset = await self._engine_of(self._on_loop, run_id).tools(
            run_id, form, decision, decides=True
        )
        if if_changed is not None and toolset.digest == if_changed:
            return None
        return toolset

    @overload
    def tools_sync(
        self, run_id: str, *, if_changed: None = ..., **form: Unpack[ListForm]
    ) -> Toolset: ...

    @overload
    def tools_sync(
        self, run_id: str, *, if_changed: str, **form: Unpack[ListForm]
    ) -> Toolset | None: ...

    def tools_sync(
        self,
        run_id: str,
        *,
        format: str = "openai",
        native: bool = False,
        decision: str | None = None,
        if_changed: str | None = None,
    ) -> Toolset | None:
        """Do as `tools` does, for engines without an event loop."""
        refuse_running_loop("tools_sync()", "await router.tools(...)")
        expect(
            "if_changed",
            if_changed,
            (str, type(None)),
            "give the `digest` of the list that the agent has",
        )
        form = surface_form(format, native=native)
        engine = self._engine_of(self._engines, run_id)
        if engine.needs_discovery(run_id):
            toolset = self._portal.run(engine.tools(run_id, form, decision, decides=True))
        else:
            toolset = engine.toolset(run_id, form, decision)
        if if_changed is not None and toolset.digest == if_changed:
            return None
        return toolset

    async def call(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str = "",
        *,
        decision: str | None = None,
        key: str = "",
        whole: bool = False,
        **how: Unpack[HeldForm],
    ) -> Result:
        """Call a tool by its canonical (`server.tool`) or exposed name, if a decision of the run
        shows it; or a meta-tool (`search_tools`, `call_tool`, `read_artifact` …), which is limited
        to that decision too.

        `arguments` is an object, or its JSON text, which some providers send (default: none).
        `decision` is the id of the open decision that judges the call (None: the newest of the
        run's default branch, or of all where that never decided). `key` makes the call happen once:
        the same key again returns the recorded result, in any process; if a call began and its
        process died before the end, the outcome is `unknown`, unless the tool is idempotent.
        `whole` adds the unshaped result. A failure that the agent may see is a `Result` with
        another outcome than `ok`.

        A call that needs somebody's word (`[[approvals]]`) has the outcome `awaiting_approval`, and
        its `approval`: it did not begin. Made again once it was granted, it runs, once: without a
        key or with `join`, as the same call; with its key; or with `approval`, in any process.
        `wait_s`: the most seconds to wait for the answer here.

        Raises UnknownRun, UnknownApproval, RequestError, KeyConflict, RunBusy and StorageError (the
        call's record could not be written).
        """
        engine = self._engine_of(self._on_loop, run_id)
        if not how:
            return await engine.call(run_id, name, arguments, decision, key=key, whole=whole)
        fields: dict[str, Any] = {"key": key, "whole": whole, **how}
        wait_s = fields.pop("wait_s", 0.0)
        return await engine.call_when_granted(run_id, name, arguments, decision, wait_s, **fields)

    def call_sync(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str = "",
        *,
        decision: str | None = None,
        key: str = "",
        whole: bool = False,
        **how: Unpack[HeldForm],
    ) -> Result:
        """Do as `call` does, for engines without an event loop."""
        refuse_running_loop("call_sync()", "await router.call(...)")
        return self._in_loop(
            self.call(run_id, name, arguments, decision=decision, key=key, whole=whole, **how)
        )

    # --- calls that wait for somebody's word ------------------------------------------------------

    async def approvals(
        self, run_id: str | None = None, *, state: str | None = "waiting"
    ) -> tuple[Approval, ...]:
        """Return the questions about held calls in one state (None: in any), the soonest bound
        first: of a run and of those below it, or of all runs (None), which reads their logs.

        Raises UnknownRun.
        """
        from bundle_router.wiring.approval_lists import list_approvals

        engine = self._engine_of(self._on_loop, run_id or "")
        return await asyncio.to_thread(list_approvals, engine, run_id, state)

    def approvals_sync(
        self, run_id: str | None = None, *, state: str | None = "waiting"
    ) -> tuple[Approval, ...]:
        """Do as `approvals` does, for engines without an event loop."""
        refuse_running_loop("approvals_sync()", "await router.approvals(...)")
        return self._in_loop(self.approvals(run_id, state=state))

    async def approval(self, approval_id: str) -> Approval:
        """Return a question as it stands now. Raises UnknownApproval."""
        return await self._answer(approval_id, lambda answers, _: answers.read(approval_id))

    def approval_sync(self, approval_id: str) -> Approval:
        """Do as `approval` does, for engines without an event loop."""
        refuse_running_loop("approval_sync()", "await router.approval(...)")
        return self._in_loop(self.approval(approval_id))

    async def grant(
        self, approval_id: str, *, by: str, binding: str = "", reason: str = ""
    ) -> Approval:
        """Grant a held call, and return the question as it stands then: `granted`, or `waiting` for
        further persons.

        `by` is who granted it, which is taken at its word: the principal of a person, another than
        the step's own. `binding` is that of the question that was shown. The grant is used by the
        start of the call, once, within the row's `use_within_s`.

        Raises UnknownApproval, NotAnApprover, ApprovalChanged (an answer would have no effect;
        nothing was recorded), RequestError, RunBusy and StorageError.
        """
        from bundle_router.engine.answers import approver_named, words

        approver = approver_named(by)
        text = words("reason", reason)
        return await self._answer(
            approval_id,
            lambda answers, wait_s: answers.grant(approval_id, approver, binding, text, wait_s),
        )

    def grant_sync(
        self, approval_id: str, *, by: str, binding: str = "", reason: str = ""
    ) -> Approval:
        """Do as `grant` does, for engines without an event loop."""
        refuse_running_loop("grant_sync()", "await router.grant(...)")
        return self._in_loop(self.grant(approval_id, by=by, binding=binding, reason=reason))

    async def refuse(
        self, approval_id: str, *, by: str, reason: str = "", advice: str = ""
    ) -> Approval:
        """Refuse a held call, or take its grant back. The same call is refused from then on,
        unasked; the agent reads the reason, and the advice what to do instead. A call that is under
        way goes on, and the record says both.

        Raises as `grant` does.
        """
        from bundle_router.engine.answers import approver_named, words

        approver = approver_named(by)
        texts = words("reason", reason), words("advice", advice)
        return await self._answer(
            approval_id,
            lambda answers, wait_s: answers.refuse(approval_id, approver, texts, wait_s),
        )

    def refuse_sync(
        self, approval_id: str, *, by: str, reason: str = "", advice: str = ""
    ) -> Approval:
        """Do as `refuse` does, for engines without an event loop."""
        refuse_running_loop("refuse_sync()", "await router.refuse(...)")
        return self._in_loop(self.refuse(approval_id, by=by, reason=reason, advice=advice))

    async def withdraw(self, approval_id: str, *, reason: str = "") -> Approval:
        """Take a question back, or a grant that was not used: nobody is asked any more.

        Raises UnknownApproval, ApprovalChanged, RunBusy and StorageError.
        """
        from bundle_router.engine.answers import words

        text = words("reason", reason)
        return await self._answer(
            approval_id, lambda answers, wait_s: answers.withdraw(approval_id, text, wait_s)
        )

    def withdraw_sync(self, approval_id: str, *, reason: str = "") -> Approval:
        """Do as `withdraw` does, for engines without an event loop."""
        refuse_running_loop("withdraw_sync()", "await router.withdraw(...)")
        return self._in_loop(self.withdraw(approval_id, reason=reason))

    async def _answer(
        self, approval_id: str, answer: Callable[[Answers, float], Approval]
    ) -> Approval:
        from bundle_router.engine.answers import run_of

        engines = self._on_loop
        engine = self._engine_of(engines, run_of(approval_id))
        return await engine.answer(approval_id, answer)

    async def missed(self, run_id: str, name: str, *, decision: str | None = None) -> Result:
        """Record that a framework refused a name that the agent called and that is not in its list;
        reviewers see it as a gap. The result says why the tool is not there.
        """
        return await self._engine_of(self._on_loop, run_id).missed(run_id, name, decision)

    def missed_sync(self, run_id: str, name: str, *, decision: str | None = None) -> Result:
        """Do as `missed` does, for engines without an event loop."""
        refuse_running_loop("missed_sync()", "await router.missed(...)")
        return self._in_loop(self.missed(run_id, name, decision=decision))

    def artifact(self, run_id: str, uri: str) -> bytes:
        """Return the bytes of `artifact:sha256:…`, unchanged and checked against their digest, for
        whoever runs the router: whichever principal's call stored them.

        Raises UnknownRun, RequestError (neither the run nor an ancestor has it), CorruptRun (the
        bytes were changed).
        """
        return self._engine_of(self._engines, run_id).artifact(run_id, uri)

    async def media(
        self,
        run_id: str,
        uri: str,
        *,
        format: str = "openai",
        link: bool = False,
        decision: str | None = None,
    ) -> dict[str, object]:
        """Return an artifact as a part of a message in a provider's form: OpenAI `image_url`,
        `input_audio` or `file`, Anthropic `image` or `document`, MCP blocks (`link`: a resource
        link). An artifact that the provider does not take, or that is empty or too large, becomes a
        text part that says so. `decision` is the id of an open decision that the artifact is asked
        for under (None: the run's present one). In a run of several principals its principal has to
        be one whose call stored the artifact. Raises as `artifact` does, and RequestError for a
        decision that is not open.
        """
        engine = self._engine_of(self._on_loop, run_id)
        return await asyncio.to_thread(
            engine.media, run_id, uri, surface_form(format), decision, link=link
        )

    def media_sync(
        self,
        run_id: str,
        uri: str,
        *,
        format: str = "openai",
        link: bool = False,
        decision: str | None = None,
    ) -> dict[str, object]:
        """Do as `media` does, for engines without an event loop."""
        refuse_running_loop("media_sync()", "await router.media(...)")
        return self._engine_of(self._engines, run_id).media(
            run_id, uri, surface_form(format), decision, link=link
        )

    # --- what a run has seen ----------------------------------------------------------------------

    async def seen(self, run_id: str, branch: str = "") -> tuple[Seen, ...]:
        """Return the taints that a branch of a run has seen, each with the call that it came from.

        Empty where no policy row has `seen`: nothing is looked at then. Raises UnknownRun.
        """
        engine = self._engine_of(self._on_loop, run_id)
        return await asyncio.to_thread(engine.seen, run_id, branch)

    def seen_sync(self, run_id: str, branch: str = "") -> tuple[Seen, ...]:
        """Do as `seen` does, for engines without an event loop."""
        refuse_running_loop("seen_sync()", "await router.seen(...)")
        return self._engine_of(self._engines, run_id).seen(run_id, branch)

    async def clear(
        self, run_id: str, taints: Sequence[str], *, by: str, reason: str, branch: str = ""
    ) -> tuple[Seen, ...]:
        """Record a person's word that what a branch has seen of these taints, and of the sorts of
        them, counts no more; return what it has still seen.

        The next decision is made without them; a call that reads such content brings them back.
        `by` is taken at its word, and never one of the run's own principals. Raises UnknownRun, and
        RequestError where the branch has seen none of them.
        """
        engine = self._engine_of(self._on_loop, run_id)
        return await engine.clear(run_id, taints, by, reason, branch)

    def clear_sync(
        self, run_id: str, taints: Sequence[str], *, by: str, reason: str, branch: str = ""
    ) -> tuple[Seen, ...]:
        """Do as `clear` does, for engines without an event loop."""
        refuse_running_loop("clear_sync()", "await router.clear(...)")
        return self._in_loop(self.clear(run_id, taints, by=by, reason=reason, branch=branch))

    async def hand_back(self, run_id: str, value: T, *, form: str) -> T:
        """Return a checked answer of a sub-agent, whose steps say `hands_back="checked"`, for its
        parent, if it fits a form of the config.

        What the sub-agent has seen and the form does not clear, the parent has then seen too.
        Raises UnknownRun, and RequestError for an answer that does not fit; nothing is passed on
        then.
        """
        return await self._engine_of(self._on_loop, run_id).hand_back(run_id, value, form)

    def hand_back_sync(self, run_id: str, value: T, *, form: str) -> T:
        """Do as `hand_back` does, for engines without an event loop."""
        refuse_running_loop("hand_back_sync()", "await router.hand_back(...)")
        return self._in_loop(self.hand_back(run_id, value, form=form))

    # --- ends -------------------------------------------------------------------------------------

    async def close_run(self, run_id: str, *, missing_ok: bool = False) -> RunEnd:
        """End the run: close what was opened for it here, and write its end, unless other processes
        have it open; the last of them writes it then, and the return value names them. A call under
        way is not interrupted, and what it uses ends with it. Another `route` may continue the run;
        until then a call starts a server of its own.

        Raises UnknownRun for a run that no step began, unless `missing_ok`: in a `finally` it would
        replace the error for which there is no run.
        """
        self._on_loop.newest.mark_closed(run_id)  # where later calls of the run go
        with suppress(*[UnknownRun] if missing_ok else []):
            return await self._engine_of(self._on_loop, run_id).end_run(run_id)
        return RunEnd(ended=False)

    def close_run_sync(self, run_id: str, *, missing_ok: bool = False) -> RunEnd:
        """Do as `close_run` does, for engines without an event loop."""
        refuse_running_loop("close_run_sync()", "await router.close_run(...)")
        self._engines.newest.mark_closed(run_id)
        engine = self._engine_of(self._engines, run_id)
        with suppress(*[UnknownRun] if missing_ok else []):
            if engine.may_wait(run_id):
                engine.expire_questions(run_id)
            if engine.mark_closed(run_id):
                return self._portal.run(engine.end_run(run_id))
            return engine.runs.close(run_id)
        return RunEnd(ended=False)

    async def close(self) -> None:
        """End every run and release everything. The router can't be used afterwards."""
        if self._portal.is_forked:
            return  # what it holds is the parent's
        _ = self._on_loop  # raises where no asyncio loop runs, or in a forked process
        await self._end()
        self._portal.close()

    async def _end(self) -> None:
        try:
            await self._versions.close()
        finally:
            if self._stores is not None:
                self._stores.close()
        for selector in (self._selector, *self._older.values()):
            if selector is not None:
                await selector.close()

    def close_sync(self) -> None:
        """Do as `close` does, for engines without an event loop."""
        refuse_running_loop("close_sync()", "await router.close(...)")
        if self._portal.is_forked or self._portal.closed:
            return

        if self._needs_loop_to_end():
            self._portal.run(self._end())
        else:
            # Nothing was ever awaited, so there is nothing to wait for: no loop is begun to end at
            # once.
            with suppress(StopIteration):
                self._end().send(None)
        self._portal.close()

    def _needs_loop_to_end(self) -> bool:
        """Return whether anything ran on a loop, or may wait for one to end."""
        if self._portal.is_started or self._ran_on_loop:
            return True
        selectors = (self._selector, *self._older.values())
        return any(one is not None and one.has_upstream for one in selectors)

    async def __aenter__(self) -> Self:
        _ = self._on_loop  # raises where no asyncio loop runs, or in a forked process
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        refuse_running_loop("with Router.open(...)", "async with Router.open(...)")
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close_sync()
