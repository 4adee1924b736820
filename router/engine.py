"""The engine over the ports: which runs are open, what the machine can do, and the flows of `router.run` on top.

Rules:
1. Nothing here knows an adapter. `router.wiring` builds the ports and hands them in.
2. Runs are independent: each has its own lock and log, so many run side by side from many threads and tasks.
3. A run's parent is fixed when the run is first routed. Its ceiling is looked up anew for every step, so a child never
   outlives what its parent may have now, and can't shed it by leaving `parent_run_id` out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from router.core import activation as sticky_set
from router.core.canonical import encode
from router.core.catalog import Catalog
from router.core.decide import Question, permitted_tools
from router.core.exposure import FORMATS, ActiveTool, Format, Toolset, exposed_names, listing
from router.core.models import Activation, Decision, Facts, Grant, RecentStep, Reply, Step
from router.core.records import activation_from, decision_from, facts_from, step_from
from router.errors import RequestError, RouterError, UnknownRun
from router.ports import Capabilities, RunStore
from router.run import (
    Admitted,
    Current,
    Deps,
    Result,
    Run,
    admit_call,
    ask,
    begin_route,
    finish_route,
    on_disk,
    perform,
)

MAX_ANCESTORS = 16
"""How deep sub-agents may nest. Deeper is a loop, not a plan."""


@dataclass(frozen=True, slots=True)
class Parent:
    """What a sub-agent's run takes from its parent's current step."""

    grants: tuple[Grant, ...]
    activation: Activation
    workspace: str


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
    ) -> None:
        self.catalog = catalog
        self._deps = deps
        self._store = store
        self._capabilities = capabilities
        self._workspace = workspace
        self._versions = dict(versions)
        self._runs: dict[str, Run] = {}
        self._opening = threading.Lock()
        self._closed = False
        self._facts: Facts | None = None
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
        self._names = exposed_names(known)
        self._canonical = {exposed: name for name, exposed in self._names.items()}
        self._catalog_text = encode(catalog.to_json()) + "\n"

    # --- what the shell looks up -----------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """What this machine and its servers can do now, as a value. The same object while nothing changed."""
        present = self._capabilities.present(self._capability_names) if self._capability_names else frozenset()
        known = self._facts
        if known is None or known.capabilities != present:
            known = self._facts = Facts(capabilities=present, unavailable=self._unavailable(present))
        return known

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

    # --- runs ------------------------------------------------------------------------------------------------------

    def _run_for(self, step: Step) -> tuple[Run, Parent | None]:
        """The step's run, opened if need be, and what its parent grants now."""
        run = self._runs.get(step.run_id) or self._open_run(step.run_id, step)
        if step.parent_run_id is not None and step.parent_run_id != run.parent_id:
            was = f"a sub-agent of {run.parent_id!r}" if run.parent_id else "not a sub-agent"
            raise RequestError(
                f"run {run.id!r} is {was}, this step names {step.parent_run_id!r} as its parent",
                advice="give the sub-agent a run of its own",
            )
        return run, self._parent(run.parent_id) if run.parent_id else None

    def _open_run(self, run_id: str, step: Step | None) -> Run:
        """Opens a run: a new one for a step, or one on disk to go on with. The caller may race; one wins."""
        with self._opening:
            if self._closed:
                raise RequestError("this router is closed", advice="open another with Router.open(...)")
            run = self._runs.get(run_id)
            if run is not None:
                return run
            before = self._store.last_decision(run_id)
            if before is None and step is None:
                raise UnknownRun(f"no run {run_id!r} here", advice="call route() for its first step")
            parent_id = step_from(before).parent_run_id if before is not None else step.parent_run_id if step else None
            if parent_id == run_id:
                raise RequestError(f"run {run_id!r} can't be its own parent")
            parent = self._parent(parent_id) if parent_id else None
            if step is not None:
                self._workspace_of(step, parent)  # refused before anything is written
            inherited = parent.activation if parent is not None and step is not None and step.inherit else Activation()
            run = self._create(run_id, parent_id, sticky_set.inherit(inherited))
            self._runs[run_id] = run
            return run

    def _create(self, run_id: str, parent_id: str | None, inherited: Activation) -> Run:
        header = {**self._versions, "catalog_revision": self.catalog.revision, "parent_run_id": parent_id}
        log = self._store.open(run_id, header=header, catalog=self._catalog_text)
        for torn in log.healed:
            self._deps.diagnostics.event("warning", "log.healed", run_id=run_id, file=torn.file, saved=torn.saved)
        run = Run(
            run_id,
            log,
            log.artifacts(),
            parent_id=parent_id,
            activation=inherited,
            root=self._workspace,
            recent_steps=self.catalog.settings.limits.recent_steps,
            durable=self.catalog.settings.log.durability == "disk",
        )
        # Asked of the log and not of the directory: nobody else can write the run any more.
        before = log.last_decision()
        if before is not None:
            self._restore(run, before)
        return run

    def _restore(self, run: Run, record: Mapping[str, Any]) -> None:
        """Puts a run that was opened again where its last decision left it."""
        step, facts = step_from(record), facts_from(record)
        run.activation = activation_from(record["activation"]["after"])
        run.current = Current(step, decision_from(record), facts)
        bundle_ids = tuple(run.current.decision.bundle_ids)
        run.recent.append(RecentStep(step.role, step.step, step.goal, bundle_ids))

    def _parent(self, run_id: str) -> Parent:
        """The parent's ceiling and activation as they are now: from the open run, or from its directory."""
        run = self._runs.get(run_id)
        if run is not None and run.current is not None:
            step, facts, activation = run.current.step, run.current.facts, run.activation
        else:
            record = self._store.last_decision(run_id)
            if record is None:
                raise UnknownRun(
                    f"the parent run {run_id!r} has no decision, so there is nothing its sub-agent may have",
                    advice="route the parent's step first",
                )
            step, facts = step_from(record), facts_from(record)
            activation = activation_from(record["activation"]["after"])
        if len(facts.grants) >= MAX_ANCESTORS:
            raise RequestError(f"run {run_id!r} is {MAX_ANCESTORS} sub-agents deep; it can't have another")
        own = Grant(step.workflow, step.role, step.step, step.policy)
        return Parent((own, *facts.grants), activation, step.workspace or self._workspace)

    def _workspace_of(self, step: Step, parent: Parent | None) -> str:
        """The folder the step's local tools are confined to. A step, and a sub-agent, can only narrow it."""
        ceiling = parent.workspace if parent else self._workspace
        if step.workspace is None:
            return ceiling
        asked = Path(ceiling, step.workspace).resolve()
        if not asked.is_relative_to(ceiling) or not asked.is_dir():
            raise RequestError(
                f"the step's workspace {step.workspace!r} is not a folder inside {ceiling!r}",
                advice="name a folder beneath the router's workspace, or leave it out",
            )
        return str(asked)

    # --- flow 1 ----------------------------------------------------------------------------------------------------

    def _prepare(self, asked: Step) -> tuple[Run, Facts, Step]:
        """Redacts the step and finds its run, its facts and its workspace. What is recorded is what was decided on."""
        step = self._redacted(asked)
        run, parent = self._run_for(step)
        facts = self.facts()
        changes: dict[str, Any] = {}
        if parent is not None:
            facts = replace(facts, grants=parent.grants)
            changes["parent_run_id"] = run.parent_id
        workspace = self._workspace_of(step, parent)
        if step.workspace is not None or workspace != self._workspace:
            changes["workspace"] = workspace  # always absolute: a relative one would mean this process's folder
        return run, facts, step.model_copy(update=changes) if changes else step

    def _redacted(self, step: Step) -> Step:
        names = sorted(step.labels)
        texts = [step.workflow, step.role, step.step, step.goal, step.principal, *step.constraints, *names]
        texts += [step.labels[name] for name in names]
        clean = self._deps.redactor.redact_many(texts)
        if clean is texts:
            return step
        workflow, role, at, goal, principal = clean[:5]
        middle = 5 + len(step.constraints)
        return step.model_copy(
            update={
                "workflow": workflow,
                "role": role,
                "step": at,
                "goal": goal,
                "principal": principal,
                "constraints": tuple(clean[5:middle]),
                "labels": dict(zip(clean[middle : middle + len(names)], clean[middle + len(names) :], strict=True)),
            }
        )

    async def route(self, asked: Step) -> Decision:
        """See `Router.route`."""
        started = self._deps.clock.monotonic_ns()
        run, facts, step = self._prepare(asked)
        taken = begin_route(self._deps, self.catalog, facts, run, step)
        if isinstance(taken, Question):
            reply = await ask(self._deps.selector, taken, tuple(run.recent))
            taken = finish_route(self._deps, self.catalog, facts, run, step, reply, started)
        await on_disk(run)
        return taken

    def route_from_thread(self, asked: Step, wait: Callable[[Coroutine[Any, Any, Reply]], Reply]) -> Decision:
        """As `route`, on the calling thread; `wait` runs a coroutine to its end elsewhere, when something is asked."""
        started = self._deps.clock.monotonic_ns()
        run, facts, step = self._prepare(asked)
        taken = begin_route(self._deps, self.catalog, facts, run, step)
        if isinstance(taken, Question):
            reply = wait(ask(self._deps.selector, taken, tuple(run.recent)))
            taken = finish_route(self._deps, self.catalog, facts, run, step, reply, started)
        if run.durable:
            run.log.sync()
        return taken

    # --- flow 2 ----------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> Run:
        """The open run, or the one on disk, opened to go on with. Raises UnknownRun."""
        return self._runs.get(run_id) or self._open_run(run_id, None)

    def _current(self, run_id: str) -> Current:
        """Where a run stands. Read from its directory, without opening it, when it is not open here."""
        run = self._runs.get(run_id)
        current = None
        if run is not None:
            with run.lock:
                current = run.current
        elif (record := self._store.last_decision(run_id)) is not None:
            current = Current(step_from(record), decision_from(record), facts_from(record))
        if current is None:
            raise UnknownRun(f"run {run_id!r} has no decision yet", advice="call route() for its first step")
        return current

    def toolset(self, run_id: str, form: str) -> Toolset:
        """See `Router.tools`."""
        if form not in FORMATS:
            raise RequestError(f"unknown format {form!r}", advice=f"use one of {', '.join(FORMATS)}")
        current = self._current(run_id)
        facts = replace(self.facts(), grants=current.facts.grants)
        exposed = permitted_tools(self.catalog, facts, current.step, current.decision.bundle_ids)
        cards = [(self.catalog.cards[name], bundle) for name, bundle in exposed.items() if name in self.catalog.cards]
        chosen: Format = form
        return Toolset(
            tools=listing(cards, self._names, chosen),
            guidance="",
            tokens=sum(card.tokens for card, _ in cards),
            active=tuple(ActiveTool(c.name, self._names[c.name], bundle, c.tokens) for c, bundle in cards),
            cap=self.catalog.settings.activation.max_tools,
            all_tokens=current.decision.exposure.all_tokens,
        )

    async def call(self, run_id: str, name: str, arguments: Mapping[str, Any]) -> Result:
        """See `Router.call`."""
        run = self.run(run_id)
        facts = self.facts()
        if run.parent_id:
            # The parent may have moved on to where it may have less.
            facts = replace(facts, grants=self._parent(run.parent_id).grants)
        taken = admit_call(self._deps, self.catalog, facts, run, self._canonical, name, arguments)
        if isinstance(taken, Admitted):
            return await perform(self._deps, self.catalog, run, taken)
        await on_disk(run)
        return taken

    def artifact(self, run_id: str, uri: str) -> bytes:
        """See `Router.artifact`."""
        sha256 = uri.removeprefix("artifact:").removeprefix("sha256:")
        try:
            return self.run(run_id).artifacts.get(sha256)
        except KeyError:
            raise RequestError(f"run {run_id!r} has no artifact {uri!r}") from None

    # --- ends ------------------------------------------------------------------------------------------------------

    def close_run(self, run_id: str) -> None:
        """Ends a run and lets go of its directory. A run that is not open is left alone."""
        with self._opening:
            run = self._runs.pop(run_id, None)
        if run is not None:
            run.close()

    async def close(self) -> None:
        """Ends every run and every session."""
        self._closed = True
        troubles: list[RouterError] = []
        for run_id in list(self._runs):
            try:
                self.close_run(run_id)
            except RouterError as trouble:  # the other runs still want to be ended
                troubles.append(trouble)
        for session in self._deps.sessions.values():
            await session.close()
        if troubles:
            raise troubles[0]
