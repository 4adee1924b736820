"""The engine: routes steps and makes calls over the ports, for one config.

Rules:
1. Nothing here knows an adapter. `bundle_router.wiring` builds the ports and passes them in.
2. Runs are independent: each has its own lock and log. Many threads and tasks may use many runs at
   once.
3. The limits that a run's ancestors set are looked up for every step, listing and call
   (`bundle_router.engine.run_tree`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from bundle_router.core.catalog import Catalog, Feature
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.exposure.meta_tools.definitions import EXECUTE, NAMES
from bundle_router.core.exposure.names import names_in
from bundle_router.core.servers.pins.reviewed import Pins
from bundle_router.core.values import Decision, Facts, Seen, Step
from bundle_router.core.values.folders import TOP, relative_folder
from bundle_router.engine.discovery import ServerDiscovery
from bundle_router.engine.engine_ports import CallPorts, EnginePorts
from bundle_router.engine.open_runs import FIRST_STEP, NOTHING_ACTIVE, RunTable
from bundle_router.engine.route import (
    DecisionCache,
    Messages,
    OnLoop,
    OnThread,
    RouteRequest,
    accept_step,
    derive_activation,
    prepare,
    route,
)
from bundle_router.engine.run_records import (
    OpenRun,
    RunEnd,
    in_thread,
    recorded_decision,
)
from bundle_router.engine.run_tree import RunTree
from bundle_router.engine.surface import RunState, Surface, SurfaceForm
from bundle_router.engine.upstreams import MachineFacts, Servers
from bundle_router.errors import UnknownApproval, UnknownArtifact, UnknownRun, expect
from bundle_router.ports import Capabilities, RunStore, Selector

if TYPE_CHECKING:
    from bundle_router.core.exposure.placements import Toolset
    from bundle_router.core.servers.transport.pass_through import Client
    from bundle_router.core.values.approvals import Approval
    from bundle_router.engine.answers import Answers
    from bundle_router.engine.arguments import Arguments
    from bundle_router.engine.idempotency import RequestLayer
    from bundle_router.engine.relay import RelayedRequest
    from bundle_router.engine.results import CallRequest, Result

T = TypeVar("T")
ON_LOOP: Final = OnLoop()
TOGETHER: Final = 4
"""Calls that begin in one turn of an event loop.

What else it has to do has its turn before the next ones begin.
"""
SURFACES: Final = 256
"""Surfaces of principals that are kept at most; then all are dropped, and made when asked for."""


class Engine:
    """Routes steps and makes calls over the given ports.

    Create one per process with `Router.open`.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        ports: EnginePorts,
        store: RunStore,
        capabilities: Capabilities,
        workspace: str,
        servers: Servers | None = None,
    ) -> None:
        self.catalog = catalog
        self.ports = ports
        self.runs = RunTable(catalog, store, ports.diagnostics, ports.redactor, workspace)
        self._tree = RunTree(self.runs, catalog, ports.clock)
        self._discovery = ServerDiscovery(catalog, servers)
        self._servers = servers
        self.closed_runs = servers.sessions.closed_runs if servers is not None else {}
        self.watchers: Sequence[Callable[[str], None]] = ()
        """Functions that are called with the id of each run that is routed from now on."""
        self._machine = MachineFacts(
            catalog, servers, capabilities, ports.clock, ports.redactor, ports.sessions
        )
        tool_names = {tool for bundle in catalog.bundles.values() for tool in bundle.tools} | set(
            catalog.cards
        )
        self._surface = Surface(catalog, names_in(catalog, tool_names), ports.tools)
        self._decisions = DecisionCache(self._surface.plans)
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        """What calls of each event loop wait for before they begin."""
        self._surfaces: dict[str, Surface] = {}
        """Those with the tools of servers that need no pins, by principal."""

    # --- what the shell looks up ------------------------------------------------------------------

    def facts(self, principal: str = "") -> Facts:
        """Return the present capabilities of this machine and its servers."""
        return self._machine.facts(principal)

    def _surface_for(self, principal: str) -> Surface:
        """Return the surface for a principal: the router's own, or one with the tools of servers
        that need no pins and have answered.
        """
        catalog = self._machine.known_availability(principal).availability.catalog
        if catalog is self.catalog:
            return self._surface
        cached = self._surfaces.get(principal)
        if cached is not None and cached.catalog is catalog:
            return cached
        if len(self._surfaces) >= SURFACES:
            self._surfaces.clear()
        names = names_in(catalog, {*self._surface.exposed, *catalog.cards})
        surface = self._surfaces[principal] = Surface(catalog, names, self.ports.tools)
        return surface

    # --- flow 1: a step is routed -----------------------------------------------------------------

    async def route(
        self, requested: Step, messages: Messages | None = None, *, selector: Selector | None = None
    ) -> Decision:
        """Route a step (see `Router.route`). `selector` replaces the engine's own."""
        return await self._route(ON_LOOP, requested, messages, selector)

    def route_from_thread(
        self,
        requested: Step,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        messages: Messages | None = None,
    ) -> Decision:
        """Do as `route` does, on the calling thread.

        `wait` runs a coroutine elsewhere and returns its result.
        """
        return OnThread.finish(self._route(OnThread(wait), requested, messages, None))

    async def _route(
        self,
        how: OnLoop | OnThread,
        requested: Step,
        messages: Messages | None,
        selector: Selector | None,
    ) -> Decision:
        started_ns = self.ports.clock.monotonic_ns()
        step = accept_step(self.catalog, self.ports.redactor, requested)
        self.closed_runs.pop(step.run_id, None)
        run = self.runs.hold_known(step.run_id)
        if run is None:  # opening takes disk work, once; everything after it takes microseconds
            run = await how.in_thread(
                lambda: self.runs.hold(step.run_id, partial(self._tree.begin_run, step)),
                OpenRun.release,
            )
        try:

            def prepared() -> RouteRequest:
                derived = derive_activation(self._surface, messages)
                return prepare(
                    self._decisions, run, self._tree, step, self._machine, derived, started_ns
                )

            is_quick = run.parent_id is None or not self.runs.store.blocks
            request = prepared() if is_quick else await how.in_thread(prepared)
            ports = self.ports if selector is None else replace(self.ports, selector=selector)
            decision = await route(how, ports, run, request)
            for watcher in tuple(self.watchers):
                watcher(run.id)
            return decision
        finally:
            await run.leave(how.in_thread)

    # --- the run as it stands now -----------------------------------------------------------------

    def state(
        self, run_id: str, decision_id: str | None = None, *, reads_on: bool = True
    ) -> RunState:
        """Return the present state of a run, under one of its decisions (None: the newest).

        Blocks while records are read; with `reads_on=False` nothing is read, for an append that
        compares. Raises UnknownRun, and RequestError for a decision of another run.
        """
        run = None if reads_on else self.runs.get(run_id)
        if run is not None and (cached := self._kept_state(run, decision_id)) is not None:
            return cached
        if run is None or not run.knows(decision_id):
            run = self.runs.reading(run_id)
        if run is None:
            raise self._no_decision(run_id)
        superseded = ""
        with run.lock:
            branch = run.branch_of(decision_id)
            decided = run.fold.decided(branch)
            if decided is None:
                raise self._no_decision(run_id)
            if decision_id and decision_id != decided.decision.decision_id:
                superseded = decision_id
                decided = recorded_decision(run, decision_id)
            activation = (
                run.fold.activation(branch) if reads_on else NOTHING_ACTIVE
            )  # a call asks the fold itself
            decisions = run.fold.decisions
            address = run.fold.address(decided.decision.decision_id)
        principal = decided.step.principal
        facts = self._machine.facts(principal)
        workspace = decided.step.workspace
        folder = relative_folder(self.runs.workspace, workspace) if workspace is not None else TOP
        if run.parent_id is not None:
            limits = self._tree.limits(run.parent_id, decided.parent_decision_id or None)
            facts = replace(facts, grants=limits.grants)
            folder = folder if folder is not None and limits.permits_folder(folder) else None
        state = RunState(
            run_id=run_id,
            decided=decided,
            address=address,
            activation=activation,
            surface=self._surface_for(principal),
            facts=facts,
            root=self.runs.workspace,
            folder=folder,
            principals=run.fold.principals,
            outdated=decided.decision.catalog_revision != self.catalog.revision,
            superseded=superseded,
            decisions=decisions,
            by_name=bool(decision_id),
        )
        if not reads_on and run.parent_id is None:
            run.kept_state = decision_id, state
        return state

    def _kept_state(self, run: OpenRun, decision_id: str | None) -> RunState | None:
        """Return the state that the run's last call was judged by, if everything that it was made
        of is unchanged, as far as this process knows. What a sub-agent's state was made of is its
        ancestors' too: it is not kept.
        """
        kept_id, cached = run.kept_state
        if cached is None or kept_id != decision_id or cached.decisions != run.fold.decisions:
            return None
        facts = self._machine.facts(cached.decided.step.principal)
        return cached if facts is cached.facts else None

    def _no_decision(self, run_id: str) -> UnknownRun:
        return UnknownRun(
            f"run {self.runs.quote_run(run_id)} has no decision yet", advice=FIRST_STEP
        )

    async def state_async(
        self, run_id: str, decision_id: str | None = None, *, reads_on: bool = True
    ) -> RunState:
        """Return what `state` does, without holding the event loop for long."""
        if self.runs.store.blocks or self.runs.get(run_id) is None:
            return await asyncio.to_thread(
                partial(self.state, run_id, decision_id, reads_on=reads_on)
            )
        return self.state(run_id, decision_id, reads_on=reads_on)

    async def _discovered_state(self, run_id: str, decision_id: str | None) -> RunState:
        """Return what `state` does, after asking the servers that show nothing before they are
        asked.
        """
        await self._discovery.discover(await self.state_async(run_id, decision_id))
        return await self.state_async(run_id, decision_id)

    # --- what is shown ----------------------------------------------------------------------------

    async def tools(
        self,
        run_id: str,
        surface_form: SurfaceForm,
        decision_id: str | None = None,
        *,
        decides: bool = False,
    ) -> Toolset:
        """Return what `toolset` does, after asking the servers that show nothing before they are
        asked. `decides`: route a step without a key again when one of them stayed silent, so that
        the decision says so.
        """
        state = await self._discovered_state(run_id, decision_id)
        if (
            decides
            and decision_id is None
            and not state.decided.key
            and self._discovery.has_lost_server(state)
        ):
            await self.route(state.step.model_copy(update={"branch": state.decided.branch}))
            state = await self.state_async(run_id)
        if state.surface.may_search(state.bundle_ids):
            return await asyncio.to_thread(_toolset, state, surface_form)
        return _toolset(state, surface_form)

    async def standing(self, run_id: str, *, asks: bool) -> tuple[object, ...]:
        """Return the facts about servers that would decide the run's step, for the servers that its
        newest decision shows or misses. Equal values mean an equal decision. `asks`: ask those
        servers first whether their lists still hold.
        """
        state = await self.state_async(run_id)
        servers = self._discovery.wanted_servers(state)
        unavailable = dict(self.facts(state.step.principal).unavailable)
        await self._discovery.verify_servers(state, servers - unavailable.keys() if asks else ())
        availability = self._machine.known_availability(state.step.principal).availability
        unavailable = dict(self.facts(state.step.principal).unavailable)
        cards = tuple(
            sorted(
                (card.server, card.tool, card.sha256)
                for card in availability.catalog.cards.values()
            )
        )
        drifted = tuple(row for row in availability.drifted if row.server in servers)
        return (
            self.catalog.revision,
            servers & unavailable.keys(),
            drifted,
            tuple(row for row in cards if row[0] in servers),
        )

    def lost_servers(self, run_id: str) -> dict[str, str]:
        """Return the servers that the run's newest decision lacks, each with the reason."""
        state = self.state(run_id)
        servers = self._discovery.wanted_servers(state)
        return {name: reason for name, reason in state.decided.facts.unavailable if name in servers}

    def toolset(
        self, run_id: str, surface_form: SurfaceForm, decision_id: str | None = None
    ) -> Toolset:
        """Return the run's tools as known now, without asking a server.

        Blocks where search is needed.
        """
        return _toolset(self.state(run_id, decision_id), surface_form)

    def needs_discovery(self, run_id: str) -> bool:
        """Return whether servers have to be asked before the run's tools can be shown."""
        return self._discovery.needs_discovery(self.state(run_id))

    # --- flow 2: a tool is called -----------------------------------------------------------------

    async def call(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str,
        decision_id: str | None = None,
        **fields: Any,
    ) -> Result:
        """Call a tool (see `Router.call`).

        `fields` are further ones of `CallRequest` (`key`, `whole`, `joins`, `client`).
        """
        from bundle_router.core.exposure.meta_tools.coercion import CallTool, parse
        from bundle_router.engine.arguments import check_key, keyed_digest
        from bundle_router.engine.results import CallRequest

        asked_ns = self.ports.clock.monotonic_ns()
        key = fields.get("key", "")
        if key != "":
            check_key(self.ports.redactor, key)
        run = await self._hold_run(run_id)
        try:
            loop = asyncio.get_running_loop()
            turns = self._turns.get(loop)
            if turns is None:
                turns = self._turns[loop] = asyncio.Semaphore(TOGETHER)
            await turns.acquire()
            loop.call_soon(turns.release)
            name = self._called_name(name)
            read = await self._read(arguments)
            if fields.get("approval"):
                key = fields["key"] = await self._key_of_approval(run, fields["approval"], key)
            request = CallRequest(
                name, read, asked_ns, digest=keyed_digest(run.nonce, read) if key else "", **fields
            )
            if name in NAMES:
                meta_request = parse(name, read.value) if read.wrong is None else None
                if not isinstance(meta_request, CallTool):
                    return await self._answer_meta(run, request, decision_id)
                inner = await self._read(meta_request.arguments)
                request = replace(
                    request, name=self._called_name(meta_request.name), arguments=inner, via=name
                )
            if name == EXECUTE and self.ports.programs is not None:
                from bundle_router.engine.programs import bundles_in_code

                if bundles_in_code(await self.state_async(run.id, decision_id)):
                    return await self._execute(
                        run, request, await self._discovered_state(run.id, decision_id)
                    )
            return await self._call(run, request, decision_id)
        finally:
            await run.leave()

    async def _key_of_approval(self, run: OpenRun, approval_id: str, key: str) -> str:
        """Return the key under which a held call goes on. Raises UnknownApproval, RequestError."""
        from bundle_router.engine.answers import key_of

        def read(_wait_s: float) -> str:
            run.read_on()
            return key_of(run, approval_id, key)

        return await run.under_lock(read)

    async def call_when_granted(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str,
        decision_id: str | None,
        wait_s: float,
        **fields: Any,
    ) -> Result:
        """Do as `call`, and wait for somebody's word where the call needs it, at most that long."""
        from bundle_router.engine.holds import wait_for_answer

        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            result = await self.call(run_id, name, arguments, decision_id, **fields)
            if result.approval is None:
                return result
            fields["approval"] = result.approval.id
            rest_s = max(0.0, until_s - loop.time())
            run = await self._hold_run(run_id)
            try:
                if not await wait_for_answer(run, result.approval.id, self.ports.clock, rest_s):
                    return result
            finally:
                await run.leave()

    # --- calls that wait for somebody's word ------------------------------------------------------

    async def answer(
        self, approval_id: str, answer: Callable[[Answers, float], Approval]
    ) -> Approval:
        """Have a question answered, or read, as it stands now. Raises UnknownApproval."""
        from bundle_router.engine.answers import Answers, run_of

        run_id = run_of(approval_id)
        try:
            run = await self._hold_run(run_id)
        except UnknownRun:
            raise UnknownApproval(
                f"there is no question {self.runs.quote(approval_id)} here",
                advice="its run was pruned, or is in another store",
            ) from None
        try:
            answers = Answers(CallPorts(self.ports, run, self._tree), self._catalog_of(run))
            return await run.record(partial(answer, answers))
        finally:
            await run.leave()

    def approvals(self, run_id: str) -> tuple[Approval, ...]:
        """Return the questions of a run and of those below it, oldest first. Blocks."""
        from bundle_router.engine.answers import Answers

        run = self.runs.reading(run_id)
        if run is None:
            raise UnknownRun(f"there is no run {self.runs.quote_run(run_id)}", advice=FIRST_STEP)
        answers = Answers(CallPorts(self.ports, run, self._tree), self._catalog_of(run))
        with run.lock:
            return answers.listed()

    def _catalog_of(self, run: OpenRun) -> Catalog:
        """Return the config in force, with what servers list to the run's principal."""
        with run.lock:
            decided = run.fold.decided(run.fold.current_branch)
        return self._surface_for(decided.step.principal if decided is not None else "").catalog

    def _called_name(self, name: object) -> str:
        """Return a name that may be recorded. One that the config knows is no secret."""
        from bundle_router.engine.results import called_name

        surface = self._surface
        if isinstance(name, str) and (name in surface.exposed or name in surface.canonical):
            return name
        return called_name(self.ports.redactor, name)

    async def _execute(self, run: OpenRun, request: CallRequest, state: RunState) -> Result:
        """Run an agent's program; its calls are judged under the same decision."""
        from bundle_router.engine.programs import execute

        assert self.ports.programs is not None  # noqa: S101 - the caller looked

        async def call(tool: str, arguments: str, key: str, via: str) -> Result:
            fields: dict[str, Any] = {"key": key, "via": via, "whole": True, "joins": False}
            return await self.call(
                run.id, tool, arguments, state.decided.decision.decision_id, **fields
            )

        call_ports = CallPorts(self.ports, run, self._tree)
        return await execute(call_ports, self.ports.programs, state, request, call)

    async def _hold_run(self, run_id: str) -> OpenRun:
        """Return the open run, and keep it open until it is released, even if it is closed
        meanwhile.
        """
        run = self.runs.hold_known(run_id)
        if run is not None:
            return run
        return await in_thread(lambda: self.runs.hold(run_id), OpenRun.release)

    def _read(self, arguments: Mapping[str, Any] | str) -> Awaitable[Arguments]:
        from bundle_router.engine.arguments import read_arguments

        return read_arguments(
            self.ports, arguments, self.catalog.settings.limits.max_argument_bytes
        )

    async def _call(self, run: OpenRun, request: CallRequest, decision_id: str | None) -> Result:
        from bundle_router.engine.arguments import (
            may_hold_handles,
            with_artifacts,
            without_payloads,
        )

        call_ports = CallPorts(self.ports, run, self._tree)
        state = await self.present_state(run, decision_id)
        await self._verify(run, request, state, decision_id)
        recorded = await without_payloads(self.ports, request.arguments)
        if recorded is not request.arguments:
            request = replace(request, arguments=recorded)
        if not may_hold_handles(recorded):
            return await self._layers(call_ports, state, request, decision_id)(request)
        artifact = partial(self._tree.artifact, run.id, principal=state.step.principal)
        async with with_artifacts(self.ports, state, artifact, request.name, recorded) as filled:
            request = replace(request, arguments=filled)
            return await self._layers(call_ports, state, request, decision_id)(request)

    async def present_state(self, run: OpenRun, decision_id: str | None) -> RunState:
        """Return the state that a call is judged by.

        Records that came since are not read: `CallAdmission` hears of them.
        """
        state = self._kept_state(run, decision_id)
        if state is not None:
            return state
        return await self.state_async(run.id, decision_id, reads_on=False)

    async def _verify(
        self, run: OpenRun, request: CallRequest, state: RunState, decision_id: str | None
    ) -> None:
        if state.surface.is_local(request.name) or self._discovery.is_verified(request.name, state):
            return
        if await self._has_budget(run, state, request):
            await self._discovery.verify(
                request.name, state, partial(self.state, run.id, decision_id)
            )

    def _layers(
        self, at: CallPorts, state: RunState, request: CallRequest, decision_id: str | None
    ) -> RequestLayer:
        """Return what makes a call from its judgement on (see `calls`)."""
        from bundle_router.core.results.reusable_results import may_repeat
        from bundle_router.engine.calls import JudgedCall
        from bundle_router.engine.idempotency import OnceByKey

        innermost = JudgedCall(at, self, state, decision_id)
        if not request.key:
            return innermost
        return OnceByKey(at, partial(may_repeat, state.catalog), innermost)

    async def verified_state(
        self, run: OpenRun, request: CallRequest, decision_id: str | None
    ) -> RunState:
        """Return the state after reading on, with the call's server asked where that is due."""
        state = await self.state_async(run.id, decision_id)
        await self._verify(run, request, state, decision_id)
        return state

    async def tree_spent(self, run: OpenRun) -> Totals | None:
        """Return what the run's tree of runs has spent; None where no tree is bounded."""
        if self._tree.is_bounded:
            return await run.on_store(lambda _: self._tree.spent(run))
        return None

    async def _has_budget(
        self, run: OpenRun, state: RunState, request: CallRequest | None = None
    ) -> bool:
        """Return whether a budget has room for a call; a call without room contacts no server."""
        from bundle_router.engine.calls import over_budget

        name, text = (request.name, request.arguments.text) if request is not None else ("", "")
        tree = await self.tree_spent(run)
        tool = state.surface.canonical.get(name, name)
        return await run.under_lock(lambda _: over_budget(run, state, tool, text, tree) is None)

    async def _answer_meta(
        self, run: OpenRun, request: CallRequest, decision_id: str | None
    ) -> Result:
        """Return the answer of a meta-tool other than `call_tool`."""
        from bundle_router.engine.meta_calls import answer

        state = await self._discovered_state(run.id, decision_id)
        request = replace(request, joins=request.joins and not state.decided.fixed_list)
        return await answer(CallPorts(self.ports, run, self._tree), state, request)

    async def missed(self, run_id: str, name: str, decision_id: str | None = None) -> Result:
        """See `Router.missed`."""
        from bundle_router.engine.meta_calls import refuse_missed

        run = await self._hold_run(run_id)
        try:
            call_ports = CallPorts(self.ports, run, self._tree)
            return await refuse_missed(
                call_ports, await self.state_async(run_id, decision_id), name
            )
        finally:
            await run.leave()

    # --- what servers have besides tools ----------------------------------------------------------

    async def passes(self, run_id: str, decision_id: str | None = None) -> frozenset[Feature]:
        """See `EndpointAccess.passes`."""
        from bundle_router.engine.relay import passed_through

        return passed_through(await self._discovered_state(run_id, decision_id)).features

    @contextlib.asynccontextmanager
    async def relayed(
        self, run_id: str, client: Client, decision_id: str | None = None
    ) -> AsyncIterator[RelayedRequest]:
        """Yield what passes a request of the run's agent on to its servers."""
        from bundle_router.engine.relay import RelayedRequest, passed_through

        run = await self._hold_run(run_id)
        requests = list[object]()
        try:
            state = await self._discovered_state(run_id, decision_id)
            names = [server.name for server in passed_through(state).servers]
            if await self._has_budget(run, state):
                await self._discovery.verify_servers(
                    state, names
                )  # they may be no more what was pinned
            call_ports = CallPorts(self.ports, run, self._tree)
            state = await self.state_async(run_id, decision_id)
            sessions = self._servers.sessions if self._servers is not None else None
            yield RelayedRequest(call_ports, sessions, state, client, requests)
        finally:
            for request in requests:
                run.passing.pop(id(request), None)
            await run.leave()

    # --- what a run has seen ----------------------------------------------------------------------

    def seen(self, run_id: str, branch: str) -> tuple[Seen, ...]:
        """See `Router.seen`. Blocks."""
        run = self._reading(run_id)
        with run.lock:
            ledger = run.fold.ledger
            return ledger.seen(branch) if ledger is not None else ()

    async def clear(
        self, run_id: str, taints: Sequence[str], by: str, reason: str, branch: str
    ) -> tuple[Seen, ...]:
        """See `Router.clear`."""
        from bundle_router.engine.clearing import clear

        run = await self._hold_run(run_id)
        try:
            return await clear(CallPorts(self.ports, run, self._tree), taints, by, reason, branch)
        finally:
            await run.leave()

    async def hand_back(self, run_id: str, value: T, form: str) -> T:
        """See `Router.hand_back`."""
        from bundle_router.engine.clearing import hand_back

        run = await self._hold_run(run_id)
        try:
            await hand_back(CallPorts(self.ports, run, self._tree), self.catalog, value, form)
        finally:
            await run.leave()
        return value

    def _reading(self, run_id: str) -> OpenRun:
        run = self.runs.reading(run_id)
        if run is None:
            raise UnknownRun(f"there is no run {self.runs.quote_run(run_id)}", advice=FIRST_STEP)
        return run

    def artifact(self, run_id: str, uri: str, principal: str | None = None) -> bytes:
        """See `Router.artifact`. `principal`: only what that one may read."""
        expect("an artifact's address", uri, str, "use the `uri` of one of `Result.artifacts`")
        sha256 = uri.removeprefix("artifact:").removeprefix("sha256:")
        try:
            return self._tree.artifact(run_id, sha256, principal)
        except KeyError:
            raise UnknownArtifact(
                f"run {run_id!r} has no artifact {self.runs.quote(uri)}",
                advice="use a digest that a result of this run names",
            ) from None

    def media(
        self,
        run_id: str,
        uri: str,
        surface_form: SurfaceForm,
        decision_id: str | None = None,
        *,
        link: bool,
    ) -> dict[str, Any]:
        """See `Router.media`. Blocks for as long as reading takes."""
        if decision_id is None:
            principal = self._present_principal(run_id)
        else:
            state = self.state(run_id, decision_id)
            state.refuse_superseded()
            principal = state.step.principal
        # A route makes no parts of messages: loaded with the first one.
        from bundle_router.core.results.artifact_handles import PREFIX
        from bundle_router.core.results.shaping.media_forms import media_form

        data = self.artifact(run_id, uri, principal)
        handle = f"{PREFIX}{uri.removeprefix('artifact:').removeprefix('sha256:')}"

        return media_form(handle, data, self.ports.describe(data), surface_form.form, link=link)

    def _present_principal(self, run_id: str) -> str | None:
        """Return the principal of the run's present decision; None where it has none."""
        run = self.runs.reading(run_id)
        if run is None:
            return None
        with run.lock:
            decided = run.fold.decided(run.fold.current_branch)
        return decided.step.principal if decided is not None else None

    # --- ends -------------------------------------------------------------------------------------

    async def end_run(self, run_id: str) -> RunEnd:
        """Close a run, and end what servers opened for it."""
        holds_sessions = self.mark_closed(run_id)
        if self.may_wait(run_id):
            await in_thread(partial(self.expire_questions, run_id))
        try:
            return await in_thread(partial(self.runs.close, run_id))
        finally:
            if holds_sessions and self._servers is not None:
                await self._servers.sessions.close_run(run_id)

    def may_wait(self, run_id: str) -> bool:
        """Return whether a call of the run may wait for somebody's word, as far as is known."""
        run = self.runs.get(run_id)
        return bool(self.catalog.approvals) or (run is not None and run.fold.approvals is not None)

    def has_open_questions(self, run_id: str) -> bool:
        """Return whether a call of a run that is open here waits, or was granted and not made."""
        run = self.runs.get(run_id)
        if run is None or run.fold.approvals is None:
            return False
        from bundle_router.engine.answers import chain_now

        now = chain_now(run, self.ports.clock)
        with run.lock:
            return any(not question.is_past(now) for question in run.fold.approvals.open.values())

    def expire_questions(self, run_id: str) -> None:
        """Have the questions of a run that is closed expire. Blocks."""
        from bundle_router.engine.answers import Answers

        run = self.runs.reading(run_id)
        if run is None or run.fold.approvals is None or not run.uses.hold():
            return
        try:
            answers = Answers(CallPorts(self.ports, run, self._tree), self._catalog_of(run))
            run.under_lock_sync(answers.expire_all)
        finally:
            run.release()

    def mark_closed(self, run_id: str) -> bool:
        """See `ToolServers.mark_closed`."""
        expect("a run id", run_id, str, "use the `run_id` of the step that was routed")
        return self._servers is not None and self._servers.sessions.mark_closed(run_id)

    def narrow(self, pins: Mapping[str, Pins]) -> None:
        """Withdraw the tools that these pins no longer hold, also from earlier decisions."""
        if self._servers is not None:
            self._servers.narrow(pins)

    async def close(self) -> None:
        """Close every run and end every session. The store stays open."""
        try:
            await in_thread(self.runs.close_all)
        finally:
            for session in {
                id(session): session for session in self.ports.sessions.values()
            }.values():
                await session.close()
            if self.ports.programs is not None:
                await self.ports.programs.close()


def _toolset(state: RunState, surface_form: SurfaceForm) -> Toolset:
    from bundle_router.engine.toolsets import toolset_of

    state.refuse_stale()
    return toolset_of(state, surface_form)
