"""The part of a router that only an MCP endpoint uses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle_router.core.catalog import Catalog, Feature
from bundle_router.core.config.last_good import ConfigSnapshot
from bundle_router.core.decide.decide import Question
from bundle_router.core.exposure.placing import may_be_offered
from bundle_router.core.servers.transport.pass_through import Client
from bundle_router.core.values import Answer, Decision, Facts, RecentStep, Reply, Step
from bundle_router.engine.surface import surface_form
from bundle_router.engine.versions import EngineVersions
from bundle_router.errors import RequestError
from bundle_router.ports import RunStore

if TYPE_CHECKING:
    from bundle_router.adapters.issuer_tokens import IssuerTokens
    from bundle_router.core.catalog.settings import IssuerSettings
    from bundle_router.core.exposure.placements import Toolset
    from bundle_router.core.servers.transport.pass_through import ServerReply
    from bundle_router.core.values.approvals import Approval
    from bundle_router.engine.answers import Answers
    from bundle_router.engine.results import Result
    from bundle_router.wiring.opening import Opening


class EndpointAccess:
    """A router for its MCP endpoint: lists that only another decision changes, calls that change no
    list, and requests that are passed on between servers and an agent's client.
    """

    def __init__(
        self,
        engines: EngineVersions,
        opening: Opening | None = None,
        snapshot: ConfigSnapshot | None = None,
    ) -> None:
        self._engines = engines
        self._opening = opening
        self._snapshot = snapshot

    @property
    def runs_place(self) -> tuple[str | Path, str | RunStore | None]:
        """Where the router's runs are: the folder, and the store that keeps them instead.

        Raises RequestError for a router that was not opened from files.
        """
        if self._opening is None:
            raise RequestError(
                "this router was not opened from files", advice="open it with Router.open(...)"
            )
        return self._opening.runs, self._opening.store

    def hide(self, *files: str | None) -> None:
        """Hide these files from every tool from now on."""
        if self._opening is not None:
            self._opening.hidden.extend(
                os.path.realpath(file) for file in files if file is not None
            )

    @property
    def catalog(self) -> Catalog:
        """The config in force."""
        return self._engines.newest.catalog

    def issuer_tokens(self, settings: IssuerSettings) -> IssuerTokens:
        """Return what judges the tokens of an issuer."""
        from bundle_router.adapters.issuer_tokens import IssuerTokens

        def not_fetched(why: str) -> None:
            self.report("error", "issuer.keys_not_fetched", keys=settings.keys, error=why)

        return IssuerTokens(settings, not_fetched)

    @property
    def policy_file(self) -> str:
        """The path of the policy file in force; empty if the config was not read from files."""
        return self._snapshot.policy if self._snapshot is not None else ""

    async def decision_id(self, run_id: str, decision: str | None = None) -> str:
        """Return the id of the run's current decision, or of a named open one.

        Raises UnknownRun, RequestError.
        """
        state = await self._engines.of(run_id).state_async(run_id, decision)
        state.refuse_superseded()
        return state.decided.decision.decision_id

    def decision_id_now(self, run_id: str) -> str:
        """Return the id of the run's current decision. Blocks while the run is read."""
        return self._engines.of(run_id).state(run_id).decided.decision.decision_id

    async def offer(self, step: Step) -> Decision:
        """Route a step whose agent came without an engine, and so without a goal to search by: a
        step that no route covers is offered all that policy permits, behind search. Raises as
        `Router.route` does.
        """
        return await (await self._engines.for_step(step.run_id)).route(
            step, selector=_AllPermitted()
        )

    def is_open(self, run_id: str) -> bool:
        """Return whether this process made a step or a call of the run, and the run was not closed
        since.
        """
        return self._engines.of(run_id).runs.uses(run_id)

    async def close_idle(self, run_id: str) -> bool:
        """Release a run that was not used for a while, unless somebody's word is waited for in it.
        Return whether it was released.

        Whoever comes back to it goes on. Raises as `close_run` does.
        """
        engine = self._engines.of(run_id)
        if engine.has_open_questions(run_id):
            return False
        try:
            await engine.end_run(run_id)
            return True
        finally:
            engine.closed_runs.pop(run_id, None)

    async def answer(
        self, approval_id: str, answer: Callable[[Answers, float], Approval]
    ) -> Approval:
        """Have a question about a held call answered by somebody who is named. Raises as
        `Router.grant` does.
        """
        from bundle_router.engine.answers import run_of

        return await self._engines.of(run_of(approval_id)).answer(approval_id, answer)

    async def is_current(self, run_id: str) -> bool:
        """Return whether the run's decision fits the present config and state of the servers.

        Raises UnknownRun.
        """
        state = await self._engines.of(run_id).state_async(run_id)
        recorded = state.decided.facts
        now = state.facts
        rows = [(facts.capabilities, facts.unavailable, facts.drifted) for facts in (recorded, now)]
        return (
            state.decided.decision.catalog_revision == self.catalog.revision and rows[0] == rows[1]
        )

    async def tools(self, run_id: str, decision: str | None = None) -> Toolset:
        """Return the run's tools, with all meta-tools; only another `route` changes this list."""
        return await self._engines.of(run_id).tools(
            run_id, surface_form("mcp", fixed=True), decision
        )

    async def call(
        self,
        run_id: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        joins: bool = False,
        client: Client | None = None,
        decision: str | None = None,
    ) -> Result:
        """Call a tool (see `Router.call`).

        `joins`: whether found or called tools join the list. `client` is the agent's; it gets the
        answers of servers that pass their `results` on unchanged.
        """
        engine = self._engines.of(run_id)
        return await engine.call(run_id, name, arguments, decision, joins=joins, client=client)

    async def media(
        self, run_id: str, uri: str, link: bool, decision: str | None = None
    ) -> dict[str, Any]:
        """Return an artifact as a part of a message (see `Router.media`)."""
        engine = self._engines.of(run_id)
        return await asyncio.to_thread(
            engine.media, run_id, uri, surface_form("mcp"), decision, link=link
        )

    async def artifact(self, run_id: str, sha256: str) -> tuple[bytes, str]:
        """Return an artifact's bytes, and their MIME type by their contents.

        Raises as `Router.artifact` does.
        """
        engine = self._engines.of(run_id)
        data = await asyncio.to_thread(engine.artifact, run_id, sha256)
        return data, engine.ports.describe(data).mime_type

    async def principal(self, run_id: str) -> str:
        """Return the principal of all the run's steps; empty where there is none, or several.

        Raises UnknownRun.
        """
        principals = (await self._engines.of(run_id).state_async(run_id)).principals
        return next(iter(principals)) if len(principals) == 1 else ""

    def facts(self) -> Facts:
        """Return the present capabilities of this machine and its servers."""
        return self._engines.newest.facts()

    async def check_store(self) -> None:
        """Check that runs can be stored. Raises StorageError."""
        await asyncio.to_thread(self._engines.newest.runs.store.check)

    async def passes(self, run_id: str, decision: str | None = None) -> frozenset[Feature]:
        """Return what the servers of the run's current decision pass on besides tools: what their
        entries name in `pass_through`. Raises UnknownRun.
        """
        return await self._engines.of(run_id).passes(run_id, decision)

    async def ask(
        self,
        run_id: str,
        method: str,
        params: Mapping[str, Any],
        client: Client,
        decision: str | None = None,
    ) -> ServerReply:
        """Pass on a request of an agent's client: `resources/list`, `resources/templates/list`,
        `resources/read`, `prompts/list`, `prompts/get` or `completion/complete`, in MCP's terms.
        Errors are part of the answer, and recorded, those of lists excepted. Raises UnknownRun,
        StorageError.
        """
        async with self._engines.of(run_id).relayed(run_id, client, decision) as request:
            return await request.carry_out(method, params)

    async def follow(
        self, run_id: str, uri: str, updated: Callable[[], None], decision: str | None = None
    ) -> Callable[[], None] | ServerReply:
        """Call `updated`, from any thread, when a resource that is passed on to the run's agent
        changes, until the run ends. Return what ends this sooner, or an answer that says why not.
        Raises UnknownRun, StorageError.
        """
        async with self._engines.of(run_id).relayed(run_id, Client(), decision) as request:
            return await request.follow(uri, updated)

    async def standing(self, run_id: str, *, asks: bool = True) -> tuple[object, ...]:
        """Return the servers' state that routing the run again would depend on; with `asks`, ask
        them first whether their lists still hold. Equal values mean equal decisions. Raises
        UnknownRun.
        """
        self._engines.of(run_id)  # looks at the pins, which the newest engine then holds
        return await self._engines.newest.standing(run_id, asks=asks)

    def lost_servers(self, run_id: str) -> dict[str, str]:
        """Return the servers that the run's newest decision lacks, each with the reason.

        Blocks as it reads the run.
        """
        return self._engines.of(run_id).lost_servers(run_id)

    def watch(self, on_change: Callable[[str], None]) -> Callable[[], None]:
        """Call `on_change` with the run's id after each decision, on the thread that made it; it
        must neither block nor raise. Return what ends this.
        """
        return self._engines.watch(on_change)

    def unusable_servers(self) -> dict[str, str]:
        """Return the servers that can't be used now, each with the reason."""
        facts = self.facts()
        changed = {row.server: "it lists other tools than were reviewed" for row in facts.drifted}
        return {**changed, **dict(facts.unavailable)}

    def report(self, level: str, event: str, **fields: object) -> None:
        """Write an event to the router's diagnostics, redacted.

        `level` is `debug`, `info`, `warning` or `error`.
        """
        self._engines.newest.ports.diagnostics.event(level, event, **fields)

    def keep_secret(self, name: str, value: str) -> None:
        """Redact a token that the caller made from now on, in records and diagnostics, as
        `[redacted:token:<name>]`. Values of fewer than 8 characters are not looked for.
        """
        self._engines.keep_secret(name, value)


class _AllPermitted:
    """A selector that offers every candidate that search may offer, in the order of their ids."""

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        """Answer a question (see `Selector`)."""
        catalog = question.catalog
        ids = tuple(
            id_ for id_ in question.candidates if may_be_offered(catalog, catalog.bundles[id_])
        )
        if not ids or "shortlist" not in catalog.settings.fallback.order:
            return Reply(question.key)
        return Reply(
            question.key, Answer(ids, "shortlist", "shortlist", "its agent came without a goal")
        )
