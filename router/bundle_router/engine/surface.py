"""A run's present state, and what names of tools mean in it.

A tool that was revoked since the decision is neither shown nor callable. One that was granted since
is not shown. What the agent is shown is made of it in `toolsets`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from bundle_router.core.catalog import Card, Catalog, Server
from bundle_router.core.decide.activation import Room, room_left
from bundle_router.core.decide.plans import Plans, Verdicts
from bundle_router.core.exposure.placing import (
    as_presented,
    waits,
)
from bundle_router.core.exposure.provider_forms import (
    FORMATS,
    Format,
)
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.servers.transport.tool_servers import Scope
from bundle_router.core.values import Activation, Address, Code, Facts, Mode, Step
from bundle_router.core.values.patterns import matches
from bundle_router.errors import RequestError, expect
from bundle_router.ports import ToolSearch

if TYPE_CHECKING:
    from bundle_router.core.exposure.meta_tools.resolving import ResolvedName

KEPT: Final = 256
"""Decisions whose ranking is kept."""
RANKED: Final = 1_000
OUTDATED: Final = (
    "the config changed since its last step was decided, so the step has to be routed again"
)


@dataclass(frozen=True, slots=True)
class RunState:
    """The present state of a run, for one flow: the decision it is judged under, and all that holds
    besides.

    `facts` are fresh, with the ancestors' present grants. `superseded` is the id of a named
    decision that is not open any more (`decided` is then that decision). `outdated`: the decision
    was made under another config, so it can't be said any more what it showed. `root` confines its
    local tools, to `folder` beneath it (None: no longer permitted). `principals` are those of all
    the run's steps; `decisions` is the number of its decisions. `by_name`: the decision was named,
    and is not just the run's present one.
    """

    run_id: str
    decided: DecisionRecord
    address: Address
    """The address of the decision's step."""
    activation: Activation
    surface: Surface
    facts: Facts
    root: str
    folder: str | None
    principals: frozenset[str]
    outdated: bool = False
    superseded: str = ""
    decisions: int = -1
    by_name: bool = False
    asked_of: dict[str, set[str]] = field(default_factory=dict, compare=False, repr=False)
    """The servers that calls of the catalog's tools go to, as they are worked out."""
    _targets: dict[str, CallTarget] = field(default_factory=dict, compare=False, repr=False)
    _exposed: list[Mapping[str, str]] = field(default_factory=list, compare=False, repr=False)

    @property
    def catalog(self) -> Catalog:
        return self.surface.catalog

    @property
    def plans(self) -> Plans:
        return self.surface.plans

    @property
    def step(self) -> Step:
        return self.decided.step

    @property
    def bundle_ids(self) -> list[str]:
        return [row.id for row in self.decided.decision.bundles]

    @property
    def modes(self) -> dict[str, Mode | None]:
        """The mode of each bundle that the decision presents otherwise than its own `mode`."""
        return {row.id: row.mode for row in self.decided.decision.bundles}

    @property
    def scope(self) -> Scope:
        return Scope(self.run_id, self.step.principal)

    def room(self, activation: Activation) -> Room:
        """Return the room in the step's array for tools besides the activation's."""
        return room_left(self.step, self.decided.decision, activation, self.catalog.cards)

    def exposed(self) -> Mapping[str, str]:
        """Return the tools that may be called now, each with its bundle."""
        if not self._exposed:
            self._exposed.append(exposed_now(self, self.facts, self.plans))
        return self._exposed[0]

    def target(self, name: str) -> CallTarget:
        """Return what a name means now. For a tool's own names it is kept with the state."""
        call_target = self._targets.get(name)
        if call_target is None:
            exposed = self.exposed()
            catalog = self.catalog
            resolved = self.surface.resolve(name, exposed)
            if not resolved.known:
                holder = next(
                    (
                        candidate.id
                        for candidate in catalog.bundles.values()
                        if resolved.name in candidate.tools
                    ),
                    "",
                )
                return CallTarget(resolved, resolved.name, holder)
            bundle = exposed[resolved.name]
            server = catalog.servers[resolved.name.partition(".")[0]]
            waiting = self.surface.waiting(bundle, self.modes.get(bundle), resolved.name)
            card = catalog.cards.get(resolved.name)
            call_target = CallTarget(resolved, resolved.name, bundle, server, waiting, card)
            if name in exposed or name in self.surface.canonical:
                self._targets[name] = call_target
        return call_target

    @property
    def why_nothing(self) -> str:
        """Why the decision can't show anything any more; empty while it can."""
        if self.superseded:
            return superseded_text(self)
        if self.outdated:
            return OUTDATED
        return ""

    def refuse_stale(self) -> None:
        """Raise RequestError for a decision that can't show anything any more."""
        self.refuse_superseded()
        if self.outdated:
            raise RequestError(
                f"run {self.run_id!r}: {OUTDATED}", advice="call route() for the step again"
            )

    def refuse_superseded(self) -> None:
        """Raise RequestError for a named decision that is not open any more."""
        if self.superseded:
            raise RequestError(
                superseded_text(self), advice="name the newest decision of the branch, or none"
            )


@dataclass(frozen=True, slots=True)
class CallTarget:
    """What a call of a name goes to, while the run's state stands: the tool, the bundle that shows
    it, its server (None where the tool is not permitted), the deferred tools that join the array
    when it is called, and its definition, if it is known.
    """

    resolved: ResolvedName
    tool: str
    bundle: str
    server: Server | None = None
    waiting: tuple[str, ...] = ()
    card: Card | None = None


def superseded_text(state: RunState) -> str:
    """Return the sentence about a named decision that is not open any more."""
    branch = f"branch {state.decided.branch!r}" if state.decided.branch else "its branch"
    return (
        f"decision {state.superseded!r} of run {state.run_id!r} is not open any more: {branch} has"
        " decided again"
    )


def exposed_now(state: RunState, facts: Facts, plans: Plans) -> Mapping[str, str]:
    """Return the decision's tools that these facts still permit, each with its bundle.

    A tool that the decision did not show is left out, even if it is permitted now: that takes
    another `route`.
    """
    if state.outdated or state.superseded:
        return {}
    bundle_ids = tuple(state.bundle_ids)
    exposed = verdicts_of(state, state.decided.facts, plans).tools(bundle_ids, state.decided.facts)
    if facts is state.decided.facts or facts == state.decided.facts:
        return exposed
    still = verdicts_of(state, facts, plans).tools(bundle_ids, facts)
    if still == exposed:
        return exposed
    return {tool: bundle for tool, bundle in still.items() if tool in exposed}


def verdicts_of(state: RunState, facts: Facts, plans: Plans) -> Verdicts:
    """Return the verdicts of `decide` on the bundles, at the run's address and below the ancestors
    that the facts name. With fresh facts, at call time, they refuse what was revoked since.
    """
    return plans.for_address(state.address, state.step.policy, facts.grants).verdicts


def why_not(state: RunState, tool: str) -> tuple[Code, str]:
    """Return why a tool is not exposed now: the first code of its best bundle, as `explain` says
    it.
    """
    catalog = state.catalog
    if state.superseded:
        return "not_mapped", superseded_text(state)
    holders = [bundle for bundle in catalog.bundles.values() if tool in bundle.tools]
    if not holders:
        return _why_not_listed(state, tool)
    if state.outdated:
        return "not_mapped", OUTDATED
    facts = state.facts
    if state.decided.facts.seen:  # what the step was decided with is still why
        facts = replace(facts, seen=state.decided.facts.seen)
    verdicts = verdicts_of(state, facts, state.plans)
    shown_ids = set(state.bundle_ids)
    first: tuple[Code, str] | None = None
    for bundle in sorted(holders, key=lambda b: b.id not in shown_ids):
        verdict = verdicts.of(bundle.id, facts)
        for row in verdict.refused:
            if row.tool == tool:
                first = first or (row.code, row.detail)
        if verdict.code is not None:
            first = first or (verdict.code, verdict.detail)
        elif tool in verdict.tools:
            if bundle.id in shown_ids:
                return (
                    "not_mapped",
                    "it became available after this step was decided: route the step again",
                )
            return "not_mapped", f"bundle {bundle.id!r} holds it and is not shown at this step"
    return first or ("not_mapped", "no shown bundle holds it")


def why_withheld(state: RunState, tool: str) -> tuple[Code, str] | None:
    """Return why the recorded result of a tool is not given under a decision; None where it is.

    What the decision shows is judged by present policy, as for a new call. Unlike that, it takes
    neither an open decision (an engine that starts over names those that it had) nor the server.
    """
    if state.why_nothing:
        state = replace(state, superseded="", outdated=False, _targets={}, _exposed=[])
    if tool in state.exposed():
        return None
    code, detail = why_not(state, tool)
    return None if code == "server_unavailable" else (code, detail)


def _why_not_listed(state: RunState, tool: str) -> tuple[Code, str]:
    """Return why a tool that no bundle is known to hold is missing: its server may not have listed
    it yet.
    """
    name = tool if "." in tool else tool.removeprefix("mcp__").replace("__", ".", 1)
    verdicts = verdicts_of(state, state.facts, state.plans)
    for bundle in state.catalog.bundles.values():
        patterns = [pattern for pattern in bundle.patterns if matches(pattern, name)]
        if not patterns:
            continue
        for row in verdicts.of(bundle.id, state.facts).refused:
            if row.tool in patterns:
                return row.code, row.detail
    return "unknown_bundle", "no bundle holds a tool of this name"


@dataclass(frozen=True, slots=True)
class SurfaceForm:
    """The form in which tools are requested: the provider's format, whether the provider defers
    tools itself, and `fixed` for a list that only another decision changes.
    """

    form: Format
    native: bool = False
    fixed: bool = False


def surface_form(form: str, *, native: bool = False, fixed: bool = False) -> SurfaceForm:
    """Return the form of a requested list. Raises RequestError for an unknown one."""
    expect("native", native, bool, 'tools(run_id, format="anthropic", native=True)')
    for name in FORMATS:
        if name == form:
            return SurfaceForm(name, native, fixed)
    raise RequestError(f"unknown format {form!r}", advice=f"use one of {', '.join(FORMATS)}")


class Surface:
    """The surfaces of all runs over one catalog.

    `exposed` maps canonical names to exposed ones, `canonical` back.
    """

    def __init__(
        self, catalog: Catalog, exposed: Mapping[str, str], search: ToolSearch | None
    ) -> None:
        self.catalog = catalog
        self.exposed = exposed
        self.canonical = {short: name for name, short in exposed.items()}
        self.plans = Plans(catalog)
        """What the catalog says about each address."""
        self._trusted = frozenset(
            name for name, server in catalog.servers.items() if server.trust == "trusted"
        )
        self._local = frozenset(
            name for name, server in catalog.servers.items() if not server.traits.is_remote
        )
        self._search = search
        self._ranked: OrderedDict[tuple[str, frozenset[str]], Sequence[str]] = OrderedDict()
        self._waiting: dict[tuple[str, Mode | None, str], tuple[str, ...]] = {}

    def waiting(self, bundle_id: str, mode: Mode | None, tool: str) -> tuple[str, ...]:
        """Return what joins the array when a bundle's tool is called: a deferred one, and its
        companions.
        """
        names = self._waiting.get(key := (bundle_id, mode, tool))
        if names is None:
            bundle = as_presented(self.catalog.bundles[bundle_id], mode)
            candidates = (tool, *bundle.companions) if waits(self.catalog, bundle, tool) else ()
            names = self._waiting[key] = tuple(
                name for name in candidates if waits(self.catalog, bundle, name)
            )
        return names

    def rank(
        self, query: str, permitted: frozenset[str], k: int, *, answering: bool = False
    ) -> Sequence[str]:
        """Return the `k` best permitted tools for a query; with `answering`, without irrelevant
        ones. None where no search was given. May block.
        """
        if self._search is None:
            return ()
        return self._search.rank_tools(self.catalog, query, permitted, k, answering=answering)

    def resolve(self, name: str, permitted: Collection[str]) -> ResolvedName:
        """Resolve a name that an agent wrote to a permitted tool."""
        from bundle_router.core.exposure.meta_tools.resolving import resolve

        return resolve(name, permitted, self.canonical, self._trusted)

    def is_local(self, name: str) -> bool:
        """Return whether a name is that of a tool of this process: no server is asked for it."""
        tool = self.canonical.get(name, name)
        return tool in self.catalog.cards and tool.partition(".")[0] in self._local

    def may_search(self, bundle_ids: Sequence[str]) -> bool:
        """Return whether showing these bundles may need search."""
        bundles = (self.catalog.bundle(id_) for id_ in bundle_ids)
        return any(bundle is not None and bundle.max_tokens is not None for bundle in bundles)

    def ranking(self, decided: DecisionRecord, tools: frozenset[str]) -> Sequence[str]:
        """Return the tools that rank best for a step's goal. Blocks where search is asked, which it
        is once a decision.
        """
        key = (decided.decision.decision_id, tools)
        ranking = self._ranked.get(key)
        if ranking is None:
            from bundle_router.core.search.corpus import (
                request_of,  # what search reads; a list that fits needs none of it
            )

            ranking = self._ranked[key] = self.rank(
                request_of(decided.step, ()).text, tools, RANKED
            )
            while len(self._ranked) > KEPT:
                self._ranked.popitem(last=False)
        return ranking
