"""The engine over the ports: what the machine can do, and the two flows of a run on top.

Rules:
1. Nothing here knows an adapter. `bundle_router.wiring` builds the ports and hands them in.
2. Runs are independent: each has its own lock and log, so many run side by side from many threads and tasks.
3. What a run's ancestors leave it is looked up anew for every step, listing and call
   (`bundle_router.engine.open_runs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bundle_router.core.catalog import Catalog, Feature
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide.step_policy import refuse_unknown
from bundle_router.core.models import Decision, Facts, Step
from bundle_router.core.models.canonical import encode
from bundle_router.core.models.folders import TOP
from bundle_router.core.tools.artifact_handles import PREFIX
from bundle_router.core.tools.exposure import FORMATS, Toolset, names_in
from bundle_router.core.tools.meta_tools import EXECUTE, NAMES, CallTool, parse, resolve
from bundle_router.core.tools.pins import Pins
from bundle_router.core.tools.shaping.media_forms import media_form
from bundle_router.engine.arguments import Arguments, read_arguments, with_artifacts, without_payloads
from bundle_router.engine.calls import (
    CallPorts,
    KeyTaken,
    admit,
    check_arguments,
    may_repeat,
    once,
    perform,
    within_tree,
)
from bundle_router.engine.discovery import ServerDiscovery
from bundle_router.engine.flow import EnginePorts, Flow, InThread, drive, drive_from_thread, in_thread, on_store
from bundle_router.engine.meta_calls import MissedTool, answer, record_missed
from bundle_router.engine.open_runs import FIRST_STEP, OpenRun, RunEnd, RunTable, recorded_decision
from bundle_router.engine.programs import execute
from bundle_router.engine.relay import RelayedRequest, passed_through
from bundle_router.engine.results import AdmittedCall, CallRequest, Result, recordable
from bundle_router.engine.route import RouteRequest, inherited_by, route
from bundle_router.engine.surface import RunState, Surface, SurfaceForm, why_not
from bundle_router.engine.upstreams import Availability, Servers
from bundle_router.errors import RequestError, UnknownArtifact, UnknownRun
from bundle_router.ports import Capabilities, Client, Clock, Diagnostics, Redactor, RunStore, ServerReply

MAX_PRINCIPALS: Final = 1_024
Messages = Sequence[Mapping[str, Any]]


class Engine:
    """Routes steps and carries out calls over the given ports. Create one per process with `Router.open`."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        ports: EnginePorts,
        store: RunStore,
        capabilities: Capabilities,
        workspace: str,
        versions: Mapping[str, str],
        servers: Servers | None = None,
    ) -> None:
        self.catalog = catalog
        self._ports = ports
        self._store = store
        self._capabilities = capabilities
        self._runs = RunTable(catalog, store, ports.clock, ports.diagnostics, workspace, versions)
        self._discovery = ServerDiscovery(catalog, servers)
        self._servers = servers.sessions if servers is not None else None
        self._watchers: tuple[Callable[[str], None], ...] = ()
        self._facts: dict[str, tuple[Availability, Facts]] = {}
        self._capability_names = tuple(
            sorted(
                {f"env:{name}" for bundle in catalog.bundles.values() for name in bundle.requires_env}
                | {f"binary:{name}" for bundle in catalog.bundles.values() for name in bundle.requires_binary}
                | {f"env:{name}" for server in catalog.servers.values() for name in server.env_names}
            )
        )
        known = {tool for bundle in catalog.bundles.values() for tool in bundle.tools} | set(catalog.cards)
        self._surface = Surface(catalog, names_in(catalog, known), ports.tools)

    @property
    def clock(self) -> Clock:
        return self._ports.clock

    @property
    def diagnostics(self) -> Diagnostics:
        return self._ports.diagnostics

    @property
    def redactor(self) -> Redactor:
        return self._ports.redactor

    # --- what the shell looks up -----------------------------------------------------------------------------------

    def facts(self, principal: str = "") -> Facts:
        """What this machine and its servers can do now, as a value. The same object while nothing changed."""
        present = self._capabilities.present(self._capability_names) if self._capability_names else frozenset()
        now = self._discovery.availability(principal)
        known = self._facts.get(principal)
        if known is None or known[0] is not now or known[1].capabilities != present:
            if len(self._facts) >= MAX_PRINCIPALS:
                self._facts.clear()
            rows = {**dict(now.unavailable), **dict(self._unavailable(present))}
            # Redacted here and not only in the record: a decision is taken again from what was recorded.
            why = tuple((name, self._ports.redactor.redact(reason)) for name, reason in sorted(rows.items()))
            made = Facts(present, unavailable=why, drifted=now.drifted)
            known = self._facts[principal] = (now, made)
        return known[1]

    def _surface_for(self, principal: str) -> Surface:
        """The view for whom a run is: more than the router's own where servers that need no pins have answered."""
        catalog = self._discovery.availability(principal).catalog
        if catalog is self.catalog:
            return self._surface
        found = catalog.memo.get("surface")
        if not isinstance(found, Surface):
            names = names_in(catalog, {*self._surface.exposed, *catalog.cards})
            found = catalog.memo["surface"] = Surface(catalog, names, self._ports.tools)
        return found

    def _unavailable(self, present: frozenset[str]) -> tuple[tuple[str, str], ...]:
        rows: list[tuple[str, str]] = []
        for server in self.catalog.servers.values():
            missing = [name for name in server.env_names if f"env:{name}" not in present]
            if not server.enabled:
                continue
            if server.transport not in self._ports.sessions:
                rows.append((server.name, f"this version does not speak {server.transport}"))
            elif missing:
                rows.append((server.name, f"its credential {missing[0]} is not set"))
        return tuple(rows)

    # --- flow 1: a step is routed ----------------------------------------------------------------------------------

    async def route(self, asked: Step, messages: Messages | None = None) -> Decision:
        """See `Router.route`."""
        return await drive(self._route(asked, messages))

    def route_from_thread(
        self, asked: Step, wait: Callable[[Coroutine[Any, Any, Any]], Any], messages: Messages | None = None
    ) -> Decision:
        """As `route`, on the calling thread; `wait` runs a coroutine to its end elsewhere, when something is asked."""
        return drive_from_thread(self._route(asked, messages), wait)

    def _route(self, asked: Step, messages: Messages | None) -> Flow[Decision]:
        started_ns = self._ports.clock.monotonic_ns()
        step = self._accepted(asked)
        run = self._runs.held(step.run_id)
        if run is None:  # opening takes disk work, once; everything after it takes microseconds
            run = yield InThread(lambda: self._runs.hold(step.run_id, step), undo=OpenRun.release)
        try:
            prepare = partial(self._prepare, run, step, messages, started_ns)
            is_quick = run.parent_id is None or not self._store.blocks
            request = prepare() if is_quick else (yield InThread(prepare))
            decision = yield from route(self._ports, self._runs, run, request)
            for heard in self._watchers:
                heard(run.id)
            return decision
        finally:
            run.release()

    def _prepare(self, run: OpenRun, asked: Step, messages: Messages | None, started_ns: int) -> RouteRequest:
        """The step as it is decided on and recorded, and what it is decided with."""
        self._runs.check_parent(run, asked)
        with run.lock:
            is_own = bool(asked.parent_decision_id) and run.fold.branch_of(asked.parent_decision_id or "") is not None
        limits = self._runs.limits(run.parent_id, None if is_own else asked.parent_decision_id)
        facts = self.facts(asked.principal)
        changes: dict[str, Any] = {}
        if run.parent_id is not None:
            facts = replace(facts, grants=limits.grants)
            changes["parent_run_id"] = run.parent_id
        folder = self._runs.folder(asked, limits)
        if asked.workspace is not None or folder != TOP:
            changes["workspace"] = folder
        return RouteRequest(
            catalog=self.catalog,
            asked=asked,
            step=asked.model_copy(update=changes) if changes else asked,
            facts=facts,
            inherited=inherited_by(asked, limits.activation),
            derived=None if messages is None else sticky_set.from_messages(messages, self.catalog),
            root=self._runs.workspace,
            started_ns=started_ns,
        )

    def _accepted(self, asked: Step) -> Step:
        """The step as it may be recorded. Raises RequestError for what can't be understood, before anything is done."""
        if not isinstance(asked, Step):
            advice = "from bundle_router import Step; Step(run_id=..., workflow=..., role=..., step=...)"
            raise RequestError(f"route() takes a Step, not {type(asked).__name__}", advice=advice)
        step = self._redacted(asked)
        refuse_unknown(self.catalog, step.policy)
        return step

    def _redacted(self, step: Step) -> Step:
        """The step without secrets. Raises RequestError for one where a secret can't be taken out without changing
        what the step means, and what a replay would read. A principal is such: results, sessions and tokens are kept
        apart by it, and two that are redacted to the same text would share them."""
        policy = step.policy
        fixed = [step.run_id, step.parent_run_id or "", step.workspace or "", step.principal, step.key, step.branch]
        fixed.append(step.parent_decision_id or "")
        if policy is not None:
            fixed += [*(policy.allow or ()), *policy.deny]
        names = sorted(step.labels)
        texts = [step.workflow, step.role, step.step, step.goal, *step.constraints, *names]
        texts += [step.labels[name] for name in names]
        free = len(texts)
        texts += fixed
        clean = self._ports.redactor.redact_many(texts)
        if clean is texts:
            return step
        if list(clean[free:]) != fixed:
            raise RequestError(
                "the step's run id, parent, workspace, principal, key, branch or policy holds what looks like a secret",
                advice="records keep these as they are: use other words for them (for a principal: a name)",
            )
        workflow, role, at, goal = clean[:4]
        middle, end = 4 + len(step.constraints), 4 + len(step.constraints) + len(names)
        return step.model_copy(
            update={
                "workflow": workflow,
                "role": role,
                "step": at,
                "goal": goal,
                "constraints": tuple(clean[4:middle]),
                "labels": dict(zip(clean[middle:end], clean[end:free], strict=True)),
            }
        )

    def watch(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """See `EndpointAccess.watch`."""
        self._watchers = (*self._watchers, heard)

        def end() -> None:
            self._watchers = tuple(other for other in self._watchers if other is not heard)

        return end

    # --- the run as it stands now ----------------------------------------------------------------------------------

    def state(self, run_id: str, decision_id: str | None = None) -> RunState:
        """The run as it stands now, to be judged under a decision of it (None: the newest). Blocks for as long as
        reading takes. Raises UnknownRun, and RequestError for a decision that is none of this run's."""
        run = self._runs.reading(run_id)
        if run is None:
            raise _no_decision(run_id)
        superseded = ""
        with run.lock:
            branch = run.fold.current_branch if not decision_id else run.fold.branch_of(decision_id)
            if branch is None:
                raise RequestError(
                    f"run {run_id!r} has no decision {decision_id!r}", advice="name one that route() returned for it"
                )
            decided = run.fold.decided(branch)
            if decided is None:
                raise _no_decision(run_id)
            if decision_id and decision_id != decided.id:
                superseded, decided = decision_id, recorded_decision(run, decision_id)
            activation = run.fold.activation(branch)
        limits = self._runs.limits(run.parent_id, decided.parent_decision_id or None)
        principal = decided.step.principal
        return RunState(
            run_id=run_id,
            decided=decided,
            activation=activation,
            surface=self._surface_for(principal),
            facts=replace(self.facts(principal), grants=limits.grants),
            limits=limits,
            root=self._runs.workspace,
            outdated=decided.decision.catalog_revision != self.catalog.revision,
            superseded=superseded,
        )

    async def state_async(self, run_id: str, decision_id: str | None = None) -> RunState:
        """As `state`, without holding an event loop for long."""
        if self._store.blocks or self._runs.get(run_id) is None:
            return await asyncio.to_thread(self.state, run_id, decision_id)
        return self.state(run_id, decision_id)

    # --- what is shown ---------------------------------------------------------------------------------------------

    async def tools(self, run_id: str, how: SurfaceForm, decision_id: str | None = None) -> Toolset:
        """As `toolset`, after servers were asked that show nothing before, and without holding the event loop."""
        state = await self.state_async(run_id, decision_id)
        await self._discovery.discover(state)
        state = await self.state_async(run_id, decision_id)
        if state.surface.may_search(state.bundle_ids):
            return await asyncio.to_thread(_toolset, state, how)
        return _toolset(state, how)

    def toolset(self, run_id: str, how: SurfaceForm, decision_id: str | None = None) -> Toolset:
        """See `Router.tools`. Blocks where search has to be asked; shows of servers what is known of them."""
        return _toolset(self.state(run_id, decision_id), how)

    def needs_discovery(self, run_id: str) -> bool:
        """Whether the run's tools can't be shown before servers were asked for them."""
        return self._discovery.needs_discovery(self.state(run_id))

    # --- flow 2: a tool is called ----------------------------------------------------------------------------------

    async def call(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str,
        decision_id: str | None = None,
        **more: Any,
    ) -> Result:
        """See `Router.call`. `more`: what a `CallRequest` says besides (`key`, `whole`, `joins`, `client`)."""
        asked_ns = self._ports.clock.monotonic_ns()
        run = await self._held(run_id)
        try:
            given = self._read(arguments)
            request = CallRequest(name, given, asked_ns, digest=_digest(run, arguments, more.get("key")), **more)
            if isinstance(name, str) and name in NAMES:
                wanted = parse(name, given.value) if given.wrong is None else None
                if not isinstance(wanted, CallTool):
                    return await self._answer(run, request, decision_id)
                request = replace(request, name=wanted.name, arguments=self._read(wanted.arguments), via=name)
            if name == EXECUTE and self._ports.programs is not None:
                state = await self.state_async(run.id, decision_id)
                if "code" in self._modes_shown(state):
                    await self._discovery.discover(state)
                    return await self._execute(run, request, await self.state_async(run.id, decision_id))
            return await self._call(run, request, decision_id)
        finally:
            run.release()

    def _modes_shown(self, state: RunState) -> set[str]:
        found = ((id_, self.catalog.bundle(id_)) for id_ in state.bundle_ids)
        return {state.modes.get(id_) or bundle.mode for id_, bundle in found if bundle is not None}

    async def _execute(self, run: OpenRun, request: CallRequest, state: RunState) -> Result:
        """Run a program of the agent's; its calls are judged under the same decision."""
        assert self._ports.programs is not None  # noqa: S101 - the caller looked

        async def call(tool: str, arguments: Mapping[str, Any], key: str, via: str) -> Result:
            more: dict[str, Any] = {"key": key, "via": via, "whole": True, "joins": False}
            return await self.call(run.id, tool, arguments, state.decided.id, **more)

        at = CallPorts(self._ports, self._runs, run)
        return await execute(at, self._ports.programs, state, request, call, self._runs.tree_spent(run))

    async def _held(self, run_id: str) -> OpenRun:
        """The open run, which stays so until it is released, whoever closes it meanwhile."""
        run = self._runs.held(run_id)
        if run is not None:
            return run
        return await in_thread(lambda: self._runs.hold(run_id, None), OpenRun.release)

    def _read(self, arguments: Mapping[str, Any] | str) -> Arguments:
        return read_arguments(self._ports.redactor, arguments, self.catalog.settings.limits.max_argument_bytes)

    async def _call(self, run: OpenRun, request: CallRequest, decision_id: str | None) -> Result:
        state = await self.state_async(run.id, decision_id)
        at = CallPorts(self._ports, self._runs, run)
        if isinstance(request.name, str):
            await self._discovery.verify(request.name, partial(self.state, run.id, decision_id))
        given = await without_payloads(self._ports, request.arguments)
        artifact = partial(self._runs.artifact, run.id)
        async with with_artifacts(self._ports, state, artifact, str(request.name), given) as filled:
            filled_request = replace(request, arguments=filled)

            async def make() -> Result | KeyTaken:
                made = await self._admitted(at, filled_request, decision_id)
                if isinstance(made, AdmittedCall):
                    return await perform(at, made)
                await at.on_disk()
                return made

            return await once(at, filled_request, partial(may_repeat, state.catalog), make)

    async def _admitted(
        self, at: CallPorts, request: CallRequest, decision_id: str | None
    ) -> AdmittedCall | KeyTaken | Result:
        """Judge a call by what holds when it begins: meanwhile the run, or an ancestor, may have been routed anew."""
        while True:
            state = await self.state_async(at.run.id, decision_id)
            request = replace(request, joins=request.joins and not state.decided.fixed_list)
            checked = await check_arguments(self._ports, state, request)
            state = await self.state_async(at.run.id, decision_id)
            tree = self._runs.tree_spent(at.run)
            found = await on_store(self._store, partial(admit, at, state, request, checked, tree))
            if isinstance(found, AdmittedCall) and tree is not None:
                return await within_tree(at, found)
            if found is not None:
                return found

    async def _answer(self, run: OpenRun, request: CallRequest, decision_id: str | None) -> Result:
        """What a meta-tool other than `call_tool` gives."""
        await self._discovery.discover(await self.state_async(run.id, decision_id))
        state = await self.state_async(run.id, decision_id)
        request = replace(request, joins=request.joins and not state.decided.fixed_list)
        at = CallPorts(self._ports, self._runs, run)
        return await answer(at, state, request, partial(self._runs.artifact, run.id), self._runs.tree_spent(run))

    async def missed(self, run_id: str, name: str, decision_id: str | None = None) -> Result:
        """See `Router.missed`."""
        run = await self._held(run_id)
        try:
            state = await self.state_async(run_id, decision_id)
            resolved = resolve(recordable(name), state.exposed(), state.surface.canonical)
            code, detail = why_not(state, resolved.name)
            text = f"{recordable(name)!r} is not available at this step ({code}: {detail})."
            at = CallPorts(self._ports, self._runs, run)
            request = CallRequest(name, Arguments({}, "{}"), self._ports.clock.monotonic_ns(), via="missed")

            def record(wait_s: float) -> Result:
                with run.lock:
                    run.read_on()
                    return record_missed(at, request, state, MissedTool(resolved.name, code, text), wait_s)

            result = await on_store(self._store, record)
            await at.on_disk()
            return result
        finally:
            run.release()

    # --- what servers have besides tools ---------------------------------------------------------------------------

    async def passes(self, run_id: str, decision_id: str | None = None) -> frozenset[Feature]:
        """See `EndpointAccess.passes`."""
        await self._discovery.discover(await self.state_async(run_id, decision_id))
        return passed_through(await self.state_async(run_id, decision_id)).features

    async def ask(
        self, run_id: str, method: str, params: Mapping[str, Any], client: Client, decision_id: str | None = None
    ) -> ServerReply:
        """See `EndpointAccess.ask`."""
        async with self._relayed(run_id, client, decision_id) as request:
            return await request.carry_out(method, params)

    async def follow(
        self, run_id: str, uri: str, updated: Callable[[], None], decision_id: str | None = None
    ) -> Callable[[], None] | ServerReply:
        """See `EndpointAccess.follow`."""
        async with self._relayed(run_id, Client(), decision_id) as request:
            return await request.follow(uri, updated)

    @contextlib.asynccontextmanager
    async def _relayed(self, run_id: str, client: Client, decision_id: str | None) -> AsyncIterator[RelayedRequest]:
        run = await self._held(run_id)
        try:
            state = await self.state_async(run_id, decision_id)
            await self._discovery.discover(state)
            asked = [server.name for server in passed_through(await self.state_async(run_id, decision_id)).servers]
            await self._discovery.verify_servers(state, asked)  # they may be no more what was pinned
            at = CallPorts(self._ports, self._runs, run)
            state = await self.state_async(run_id, decision_id)
            yield RelayedRequest(at, self._servers, state, client, self._runs.tree_spent(run))
        finally:
            run.release()

    def artifact(self, run_id: str, uri: str) -> bytes:
        """See `Router.artifact`."""
        sha256 = uri.removeprefix("artifact:").removeprefix("sha256:")
        try:
            return self._runs.artifact(run_id, sha256)
        except KeyError:
            advice = "use a digest that a result of this run names"
            raise UnknownArtifact(f"run {run_id!r} has no artifact {uri!r}", advice=advice) from None

    def artifact_with_type(self, run_id: str, uri: str) -> tuple[bytes, str]:
        """See `EndpointAccess.artifact`. Blocks for as long as reading takes."""
        data = self.artifact(run_id, uri)
        return data, self._ports.describe(data).mime_type

    def check_store(self) -> None:
        """See `EndpointAccess.check_store`. Blocks."""
        self._store.check()

    def media(
        self, run_id: str, uri: str, how: SurfaceForm, decision_id: str | None = None, *, link: bool
    ) -> dict[str, Any]:
        """See `Router.media`. Blocks for as long as reading takes."""
        if decision_id is not None:
            self.state(run_id, decision_id).refuse_superseded()
        data = self.artifact(run_id, uri)
        whole = f"{PREFIX}{uri.removeprefix('artifact:').removeprefix('sha256:')}"
        return media_form(whole, data, self._ports.describe(data), how.form, link=link)

    # --- ends ------------------------------------------------------------------------------------------------------

    def close_run(self, run_id: str) -> RunEnd:
        """Let go of a run. One that is not open here is left alone."""
        return self._runs.close(run_id)

    async def end_run(self, run_id: str) -> RunEnd:
        """As `close_run`; what servers opened for it here is gone, too."""
        try:
            return self.close_run(run_id)
        finally:
            await self._discovery.close_run(run_id)

    def has_open(self, run_id: str) -> bool:
        """Whether steps or calls of the run were made by this engine."""
        return self._runs.uses(run_id)

    @property
    def has_open_runs(self) -> bool:
        return self._runs.any_used

    def close_idle(self, run_id: str) -> bool:
        """Let go of the run if nothing of it is under way; whether it was. What servers opened for it stays."""
        return self._runs.close_idle(run_id)

    def narrow(self, pins: Mapping[str, Pins]) -> None:
        """What these pins took back is not to be had any more, by decisions taken before either."""
        self._discovery.narrow(pins)

    def end_runs(self) -> None:
        """Let go of every run."""
        self._runs.close_all()

    @property
    def holds_sessions(self) -> bool:
        """Whether the end of a run may have something to end besides its records."""
        return self._discovery.were_made

    async def close(self) -> None:
        """Let go of every run and end every session."""
        try:
            self._runs.close_all()
        finally:
            self._store.close()
            for session in {id(session): session for session in self._ports.sessions.values()}.values():
                await session.close()
            if self._ports.programs is not None:
                await self._ports.programs.close()


def _toolset(state: RunState, how: SurfaceForm) -> Toolset:
    state.refuse_stale()
    return state.surface.toolset(state, how)


def surface_form(form: str, *, native: bool = False, fixed: bool = False) -> SurfaceForm:
    """Return the form that a list is asked for in. Raises RequestError for one that is not known."""
    for known in FORMATS:
        if known == form:
            return SurfaceForm(known, native, fixed)
    raise RequestError(f"unknown format {form!r}", advice=f"use one of {', '.join(FORMATS)}")


def _digest(run: OpenRun, arguments: Mapping[str, Any] | str, key: str | None) -> str:
    """The digest of a call's arguments as they came, keyed with the run's nonce; empty for a call without a key."""
    if not key:
        return ""
    try:
        text = encode(json.loads(arguments or "{}") if isinstance(arguments, str) else dict(arguments))
    except (TypeError, ValueError, RecursionError):  # refused later on, and a refused call binds no key
        text = repr(arguments)
    nonce = str(run.log.header.get("nonce") or run.id)
    return hmac.new(nonce.encode("utf-8"), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _no_decision(run_id: str) -> UnknownRun:
    return UnknownRun(f"run {run_id!r} has no decision yet", advice=FIRST_STEP)
