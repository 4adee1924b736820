"""The engine over the ports: what the machine can do, and the two flows of a run on top.

Rules:
1. Nothing here knows an adapter. `bundle_router.wiring` builds the ports and hands them in.
2. Runs are independent: each has its own lock and log, so many run side by side from many threads and tasks.
3. What a run's ancestors leave it is looked up anew for every step, listing and call (`bundle_router.engine.runs`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bundle_router.core.catalog import Catalog, Feature
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide.decide import Question
from bundle_router.core.decide.step_policy import refuse_unknown
from bundle_router.core.models import Activation, Decision, Facts, Reply, Step
from bundle_router.core.models.folders import TOP
from bundle_router.core.tools.artifact_handles import PREFIX
from bundle_router.core.tools.exposure import FORMATS, Format, Toolset, names_in
from bundle_router.core.tools.meta_tools import NAMES, CallTool, parse
from bundle_router.core.tools.pins import Pins
from bundle_router.core.tools.shaping.forms import media_form
from bundle_router.engine.ancestry import Ceiling
from bundle_router.engine.arguments import Arguments, read_arguments
from bundle_router.engine.artifact_arguments import with_artifacts, without_payloads
from bundle_router.engine.calls import admit_call, check_arguments, perform
from bundle_router.engine.discovery import Contacts
from bundle_router.engine.exposed import OUTDATED
from bundle_router.engine.meta_calls import answer
from bundle_router.engine.outcomes import Admitted, Result
from bundle_router.engine.relay import Errand, Passing, passing_now
from bundle_router.engine.run import Current, Deps, Run, ask, begin_route, finish_route, on_disk
from bundle_router.engine.runs import Runs
from bundle_router.engine.surface import Surface, View
from bundle_router.engine.upstreams import Availability, Servers
from bundle_router.errors import RequestError, StorageError
from bundle_router.ports import Capabilities, Client, Clock, Diagnostics, Redactor, RunStore, ServerReply

NO_CEILING: Final = Ceiling()
MAX_PRINCIPALS: Final = 1_024
Messages = Sequence[Mapping[str, Any]]


class Engine:
    """Routes steps and carries out calls over the given ports. Create one per process with `Router.open`."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        deps: Deps,
        store: RunStore,
        capabilities: Capabilities,
        workspace: str,
        versions: Mapping[str, str],
        servers: Servers | None = None,
    ) -> None:
        self.catalog = catalog
        self._deps = deps
        self._capabilities = capabilities
        self._runs = Runs(catalog, store, deps.diagnostics, workspace, versions)
        self._contacts = Contacts(catalog, servers)
        self._servers = servers.sessions if servers is not None else None
        self._watchers: tuple[Callable[[str], None], ...] = ()
        self._facts: dict[str, tuple[Availability, Facts]] = {}
        self._adopt(catalog)

    def _adopt(self, catalog: Catalog) -> None:
        """Derives what every step needs from the catalog, once."""
        self._capability_names = tuple(
            sorted(
                {f"env:{name}" for bundle in catalog.bundles.values() for name in bundle.requires_env}
                | {f"binary:{name}" for bundle in catalog.bundles.values() for name in bundle.requires_binary}
                | {f"env:{name}" for server in catalog.servers.values() for name in server.env_names}
            )
        )
        known = {tool for bundle in catalog.bundles.values() for tool in bundle.tools} | set(catalog.cards)
        self._surface = Surface(catalog, names_in(catalog, known), self._deps.tools)

    @property
    def clock(self) -> Clock:
        return self._deps.clock

    @property
    def diagnostics(self) -> Diagnostics:
        return self._deps.diagnostics

    @property
    def redactor(self) -> Redactor:
        return self._deps.redactor

    # --- what the shell looks up -----------------------------------------------------------------------------------

    def facts(self, principal: str = "") -> Facts:
        """What this machine and its servers can do now, as a value. The same object while nothing changed."""
        present = self._capabilities.present(self._capability_names) if self._capability_names else frozenset()
        now = self._contacts.now(principal)
        known = self._facts.get(principal)
        if known is None or known[0] is not now or known[1].capabilities != present:
            if len(self._facts) >= MAX_PRINCIPALS:
                self._facts.clear()
            rows = {**dict(now.unavailable), **dict(self._unavailable(present))}
            # Redacted here and not only in the record: a decision is taken again from what was recorded.
            why = tuple((name, self._deps.redactor.redact(reason)) for name, reason in sorted(rows.items()))
            made = Facts(present, unavailable=why, drifted=now.drifted)
            known = self._facts[principal] = (now, made)
        return known[1]

    def _surface_for(self, current: Current | None) -> Surface:
        """The view for whom the run is: more than the router's own where servers that need no pins have answered."""
        catalog = self._contacts.now(current.step.principal).catalog if current is not None else self.catalog
        if catalog is self.catalog:
            return self._surface
        found = catalog.memo.get("surface")
        if not isinstance(found, Surface):
            names = names_in(catalog, {*self._surface.exposed, *catalog.cards})
            found = catalog.memo["surface"] = Surface(catalog, names, self._deps.tools)
        return found

    def _unavailable(self, present: frozenset[str]) -> tuple[tuple[str, str], ...]:
        rows: list[tuple[str, str]] = []
        for server in self.catalog.servers.values():
            missing = [name for name in server.env_names if f"env:{name}" not in present]
            if not server.enabled:
                continue
            if server.transport not in self._deps.sessions:
                rows.append((server.name, f"this version does not speak {server.transport}"))
            elif missing:
                rows.append((server.name, f"its credential {missing[0]} is not set"))
        return tuple(rows)

    # --- flow 1 ----------------------------------------------------------------------------------------------------

    def _prepare(self, run: Run, asked: Step) -> tuple[Facts, Step, Activation]:
        """The facts, the step as it is decided on and recorded, and what a run's first step starts from."""
        self._runs.check_parent(run.id, run.parent_id, asked)
        ceiling = self._runs.ceiling(run.parent_id)
        facts = self.facts(asked.principal)
        changes: dict[str, Any] = {}
        if run.parent_id is not None:
            facts = replace(facts, grants=ceiling.grants)
            changes["parent_run_id"] = run.parent_id
        folder = self._runs.folder(asked, ceiling)
        if asked.workspace is not None or folder != TOP:
            changes["workspace"] = folder
        inherited = sticky_set.inherit(ceiling.activation) if asked.inherit else Activation()
        return facts, asked.model_copy(update=changes) if changes else asked, inherited

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
        what the step means, and what a replay would read."""
        policy = step.policy
        fixed = [step.run_id, step.parent_run_id or "", step.workspace or ""]
        if policy is not None:
            fixed += [*(policy.allow or ()), *policy.deny]
        names = sorted(step.labels)
        texts = [step.workflow, step.role, step.step, step.goal, step.principal, *step.constraints, *names]
        texts += [step.labels[name] for name in names]
        free = len(texts)
        texts += fixed
        clean = self._deps.redactor.redact_many(texts)
        if clean is texts:
            return step
        if list(clean[free:]) != fixed:
            raise RequestError(
                "the step's run id, parent, workspace or policy holds what looks like a secret",
                advice="records keep these as they are: use other words for them",
            )
        workflow, role, at, goal, principal = clean[:5]
        middle, end = 5 + len(step.constraints), 5 + len(step.constraints) + len(names)
        return step.model_copy(
            update={
                "workflow": workflow,
                "role": role,
                "step": at,
                "goal": goal,
                "principal": principal,
                "constraints": tuple(clean[5:middle]),
                "labels": dict(zip(clean[middle:end], clean[end:free], strict=True)),
            }
        )

    async def route(self, asked: Step, messages: Messages | None = None) -> Decision:
        """See `Router.route`."""
        started = self._deps.clock.monotonic_ns()
        step = self._accepted(asked)
        run = await self._hold(step.run_id, step)
        try:
            facts, step, inherited = self._prepare(run, step)
            derived = None if messages is None else sticky_set.from_messages(messages, self.catalog)
            taken = begin_route(self._deps, self.catalog, facts, run, step, inherited, derived)
            if isinstance(taken, Question):
                reply = await ask(self._deps, taken, tuple(run.recent))
                taken = finish_route(self._deps, run, taken, reply, started)
            if run.durable:
                await asyncio.to_thread(self._settle, run, taken)
            self._tell(run.id)
            return taken
        finally:
            run.release()

    async def _hold(self, run_id: str, step: Step | None) -> Run:
        """The open run, which stays so until it is released, whoever closes it meanwhile."""
        # Opening a run takes disk work, once; everything after it takes microseconds.
        while True:
            run = self._runs.get(run_id)
            if run is None:
                run = await asyncio.to_thread(self._runs.open, run_id, step)
            if run.hold():
                return run

    def route_from_thread(
        self, asked: Step, wait: Callable[[Coroutine[Any, Any, Reply]], Reply], messages: Messages | None = None
    ) -> Decision:
        """As `route`, on the calling thread; `wait` runs a coroutine to its end elsewhere, when something is asked."""
        started = self._deps.clock.monotonic_ns()
        step = self._accepted(asked)
        while not (run := self._runs.get(step.run_id) or self._runs.open(step.run_id, step)).hold():
            pass  # somebody closed it just now
        try:
            facts, step, inherited = self._prepare(run, step)
            derived = None if messages is None else sticky_set.from_messages(messages, self.catalog)
            taken = begin_route(self._deps, self.catalog, facts, run, step, inherited, derived)
            if isinstance(taken, Question):
                reply = wait(ask(self._deps, taken, tuple(run.recent)))
                taken = finish_route(self._deps, run, taken, reply, started)
            if run.durable:
                self._settle(run, taken)
            self._tell(run.id)
            return taken
        finally:
            run.release()

    def watch(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """See `Router.watch`."""
        self._watchers = (*self._watchers, heard)

        def end() -> None:
            self._watchers = tuple(other for other in self._watchers if other is not heard)

        return end

    def _tell(self, run_id: str) -> None:
        for heard in self._watchers:
            heard(run_id)

    def _settle(self, run: Run, decision: Decision) -> None:
        """Returns when the decision survives power loss; where it does not, it was not taken."""
        try:
            run.log.sync()
        except StorageError:
            run.withdraw(decision.seq)
            raise
        run.settle(decision.seq)

    # --- flow 2 ----------------------------------------------------------------------------------------------------

    async def tools(self, run_id: str, form: str, *, native: bool = False, fixed: bool = False) -> Toolset:
        """As `toolset`, after servers were asked that show nothing before, and without holding the event loop."""
        current, _, _ = self._runs.stands(run_id)
        await self._contacts.discover(run_id, current)
        if self._surface_for(current).may_ask(current):
            return await asyncio.to_thread(self.toolset, run_id, form, native=native, fixed=fixed)
        return self.toolset(run_id, form, native=native, fixed=fixed)

    async def decision_id(self, run_id: str) -> str:
        """See `Router.decision_id`. Reads the run's directory only where it is not open here."""
        run = self._runs.get(run_id)
        if run is not None and (current := run.current) is not None:
            return current.decision.decision_id
        stands, _, _ = await asyncio.to_thread(self._runs.stands, run_id)
        return stands.decision.decision_id

    def needs_discovery(self, run_id: str) -> bool:
        """Whether the run's tools can't be shown before servers were asked for them."""
        current, _, _ = self._runs.stands(run_id)
        return self._contacts.needs_discovery(run_id, current)

    def toolset(self, run_id: str, form: str, *, native: bool = False, fixed: bool = False) -> Toolset:
        """See `Router.tools`. Blocks where search has to be asked; shows of servers what is known of them."""
        if form not in FORMATS:
            raise RequestError(f"unknown format {form!r}", advice=f"use one of {', '.join(FORMATS)}")
        current, activation, parent_id = self._runs.stands(run_id)
        if current.outdated:
            raise RequestError(f"run {run_id!r}: {OUTDATED}", advice="call route() for the step again")
        facts = replace(self.facts(current.step.principal), grants=self._runs.ceiling(parent_id).grants)
        chosen: Format = form
        return self._surface_for(current).toolset(facts, current, activation, View(chosen, native, fixed))

    async def call(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        joins: bool = True,
        client: Client | None = None,
    ) -> Result:
        """See `Router.call`. `joins`: whether a deferred tool joins the array when it is found or called; an MCP
        endpoint says no, since a call may not change a list there."""
        run = await self._hold(run_id, None)
        try:
            return await self._call(run, name, arguments, joins=joins, client=client)
        finally:
            run.release()

    async def _call(
        self, run: Run, name: str, arguments: Mapping[str, Any] | str, *, joins: bool, client: Client | None
    ) -> Result:
        asked_ns = self._deps.clock.monotonic_ns()
        ceiling = self._runs.ceiling(run.parent_id)
        via = ""
        if isinstance(name, str) and name in NAMES:
            given = read_arguments(self._deps.redactor, arguments, self.catalog.settings.limits.max_argument_bytes)
            wanted = parse(name, given.value) if given.wrong is None else None
            if not isinstance(wanted, CallTool):
                return await self._answer(run, ceiling, name, given, joins=joins)
            name, arguments, via = wanted.name, wanted.arguments, name
        current = run.current
        if current is not None and isinstance(name, str):
            await self._contacts.verify(
                run.id, current, name, lambda: (self._surface_for(current), self._facts_now(run, ceiling))
            )
        facts, surface = self._facts_now(run, ceiling), self._surface_for(run.current)
        catalog, names = surface.catalog, surface.canonical
        given = read_arguments(self._deps.redactor, arguments, catalog.settings.limits.max_argument_bytes)
        given = await without_payloads(self._deps, given)
        async with with_artifacts(self._deps, surface, run, self._artifacts_of(run), name, given) as given:
            taken = None
            while taken is None:
                facts, surface = self._facts_now(run, ceiling), self._surface_for(run.current)
                checked = await check_arguments(self._deps, surface.catalog, facts, run, surface.canonical, name, given)
                # Meanwhile the run, or an ancestor, may have been routed anew: what counts is what holds when the call
                # begins.
                ceiling = self._runs.ceiling(run.parent_id)
                facts, surface = self._facts_now(run, ceiling), self._surface_for(run.current)
                catalog, names = surface.catalog, surface.canonical
                taken = admit_call(
                    self._deps,
                    catalog,
                    facts,
                    ceiling,
                    run,
                    names,
                    name,
                    given,
                    checked,
                    via=via,
                    joins=joins,
                    client=client,
                    asked_ns=asked_ns,
                )
            if isinstance(taken, Admitted):
                return await perform(self._deps, catalog, run, taken)
        await on_disk(run)
        return taken

    def _artifacts_of(self, run: Run) -> Callable[[str], bytes]:
        """The artifacts that the run may use, by digest."""
        return partial(self._runs.artifact, run.id)

    def _facts_now(self, run: Run, ceiling: Ceiling) -> Facts:
        principal = run.current.step.principal if run.current is not None else ""
        return replace(self.facts(principal), grants=ceiling.grants)

    async def _answer(self, run: Run, ceiling: Ceiling, name: str, given: Arguments, *, joins: bool) -> Result:
        """What a meta-tool other than `call_tool` gives."""
        if run.current is not None:
            await self._contacts.discover(run.id, run.current)
        facts, surface = self._facts_now(run, ceiling), self._surface_for(run.current)
        return await answer(self._deps, surface, facts, run, self._artifacts_of(run), name, given, joins=joins)

    # --- what servers have besides tools ---------------------------------------------------------------------------

    async def passes(self, run_id: str) -> frozenset[Feature]:
        """See `Router.passes`."""
        current, _, parent_id = self._runs.stands(run_id)
        await self._contacts.discover(run_id, current)
        return self._passing(current, parent_id).features

    async def ask(self, run_id: str, method: str, params: Mapping[str, Any], client: Client) -> ServerReply:
        """See `Router.ask`."""
        async with self._errand(run_id, client) as errand:
            return await errand.carry_out(method, params)

    async def follow(self, run_id: str, uri: str, updated: Callable[[], None]) -> Callable[[], None] | ServerReply:
        """See `Router.follow`."""
        async with self._errand(run_id, Client()) as errand:
            return await errand.follow(uri, updated)

    @contextlib.asynccontextmanager
    async def _errand(self, run_id: str, client: Client) -> AsyncIterator[Errand]:
        run = await self._hold(run_id, None)
        try:
            current, _, parent_id = self._runs.stands(run_id)
            await self._contacts.discover(run_id, current)
            asked = [server.name for server in self._passing(current, parent_id).servers]
            await self._contacts.verify_servers(run_id, current, asked)  # they may be no more what was pinned
            yield Errand(self._deps, self._servers, self._passing(current, parent_id), run, current, client)
        finally:
            run.release()

    def _passing(self, current: Current, parent_id: str | None) -> Passing:
        facts = replace(self.facts(current.step.principal), grants=self._runs.ceiling(parent_id).grants)
        return passing_now(self._surface_for(current).catalog, facts, current)

    def artifact(self, run_id: str, uri: str) -> bytes:
        """See `Router.artifact`."""
        sha256 = uri.removeprefix("artifact:").removeprefix("sha256:")
        try:
            return self._runs.artifact(run_id, sha256)
        except KeyError:
            raise RequestError(f"run {run_id!r} has no artifact {uri!r}") from None

    def media(self, run_id: str, uri: str, form: str, *, link: bool) -> dict[str, Any]:
        """See `Router.media`. Blocks for as long as reading takes."""
        if form not in FORMATS:
            raise RequestError(f"unknown format {form!r}", advice=f"use one of {', '.join(FORMATS)}")
        data = self.artifact(run_id, uri)
        chosen: Format = form
        whole = f"{PREFIX}{uri.removeprefix('artifact:').removeprefix('sha256:')}"
        return media_form(whole, data, self._deps.describe(data), chosen, link=link)

    # --- ends ------------------------------------------------------------------------------------------------------

    def close_run(self, run_id: str) -> None:
        """Ends a run and lets go of its directory. A run that is not open is left alone."""
        self._runs.close(run_id)

    async def end_run(self, run_id: str) -> None:
        """As `close_run`; what servers opened for it is gone, too."""
        try:
            self.close_run(run_id)
        finally:
            await self._contacts.close_run(run_id)

    def has_open(self, run_id: str) -> bool:
        """Whether the run is open here."""
        return self._runs.holds(run_id)

    @property
    def has_open_runs(self) -> bool:
        return len(self._runs) > 0

    def let_go(self, run_id: str) -> bool:
        """Ends the run if nothing of it is under way; whether it has ended. What servers opened for it stays."""
        return self._runs.let_go(run_id)

    def retire(self, pins: Mapping[str, Pins]) -> None:
        """Another engine over the same ports takes over, made for these pins: no run is opened here any more, and what
        they took back is not to be had by those that are."""
        self._runs.retire()
        self._contacts.narrow(pins)

    def end_runs(self) -> None:
        """Ends every run."""
        self._runs.close_all()

    @property
    def holds_sessions(self) -> bool:
        """Whether the end of a run may have something to end besides its directory."""
        return self._contacts.were_made

    async def close(self) -> None:
        """Ends every run and every session."""
        try:
            self._runs.close_all()
        finally:
            for session in {id(session): session for session in self._deps.sessions.values()}.values():
                await session.close()
