"""A Router without disk, network, clock or model, so that a workflow engine can test itself.

    from bundle_router.testing import fake_router

    with fake_router(catalog) as router:
        step = Step(run_id="t-1", workflow="feature", role="planner", step="plan")
        decision = router.route_sync(step)
        assert "repo.readonly" in decision.bundle_ids
        assert router.fakes.records("t-1")[0]["source"] == "mapping"

Everything except the ports is real: the same core, the same flows, the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from bundle_router.core.catalog import (
    ApprovalRow,
    Bundle,
    Card,
    Catalog,
    Policy,
    Route,
    Server,
    Settings,
)
from bundle_router.core.decide.decide import Question
from bundle_router.core.servers.transport.tool_servers import (
    EVERYONE,
    NOWHERE,
    CallPlace,
    RawResult,
    Scope,
)
from bundle_router.core.values import Answer, Failure, RecentStep, Reply
from bundle_router.core.values.artifacts import MediaFacts
from bundle_router.core.values.canonical import digest
from bundle_router.core.values.patterns import first_match
from bundle_router.core.values.spelling import Suggester
from bundle_router.engine.engine import Engine
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.versions import EngineVersions
from bundle_router.errors import RequestError, expect
from bundle_router.ports import RunStore, Selector
from bundle_router.testing.memory_store import (
    MemoryArtifacts,
    MemoryRun,
    MemoryRunLog,
    MemoryRuns,
    MemoryRunStore,
)
from bundle_router.wiring import Router
from bundle_router.wiring.catalogs import result_blocks, shipped_argument_problems
from bundle_router.wiring.effects import open_results
from bundle_router.wiring.searching import open_tool_search

T = TypeVar("T")
_NEW_YEAR_2026_NS: Final = 1_767_225_600_000_000_000


class FakeClock:
    """A clock that stands still until `advance` is called.

    >>> from bundle_router.testing import FakeClock
    >>> clock = FakeClock()
    >>> clock.advance(1.5)
    >>> clock.monotonic_ns()
    1500000000
    """

    def __init__(self) -> None:
        self.ns = 0

    def time_ns(self) -> int:
        return _NEW_YEAR_2026_NS + self.ns

    def monotonic_ns(self) -> int:
        return self.ns

    def advance(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


@dataclass
class FakeRedactor:
    """Redacts only the given words.

    >>> from bundle_router.testing import FakeRedactor
    >>> FakeRedactor(("hunter2",)).redact("the password is hunter2")
    'the password is [redacted:test]'
    """

    secrets: tuple[str, ...] = ()
    """The words that are redacted."""

    def redact(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "[redacted:test]")
        return text

    def redact_many(self, texts: Sequence[str]) -> Sequence[str]:
        if self.are_clean(texts):
            return texts
        return [self.redact(text) for text in texts]

    def are_clean(self, texts: Sequence[str]) -> bool:
        return not any(secret in text for secret in self.secrets for text in texts)

    def redact_value(self, value: T) -> T:
        redacted: T = self._redacted(value)
        return redacted

    def _redacted(self, value: Any) -> Any:
        if not self.secrets:
            return value
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {self.redact(key): self._redacted(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._redacted(item) for item in value]
        return value

    def keep(self, name: str, value: str) -> None:
        self.secrets = (*self.secrets, value)


@dataclass
class FakeDiagnostics:
    """Keeps the events that the operator would be told about.

    >>> from bundle_router.testing import FakeDiagnostics
    >>> diagnostics = FakeDiagnostics()
    >>> diagnostics.event("warning", "log.healed", run_id="r-42")
    >>> diagnostics.events
    [('warning', 'log.healed', {'run_id': 'r-42'})]
    """

    events: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)
    """Each event as (level, name, fields)."""

    def event(self, level: str, name: str, **fields: object) -> None:
        self.events.append((level, name, fields))


@dataclass
class FakeCapabilities:
    """Reports only the given names as present.

    >>> from bundle_router.testing import FakeCapabilities
    >>> FakeCapabilities({"binary:git"}).present(["binary:git", "env:GITHUB_TOKEN"])
    (frozenset({'binary:git'}), 0)
    """

    names: set[str] = field(default_factory=set)
    """The present ones (`env:X`, `binary:y`); may be changed at any time."""

    def present(self, names: Sequence[str]) -> tuple[frozenset[str], int]:
        return frozenset(self.names.intersection(names)), 0


Script = Callable[[Question], Answer | Failure | Iterable[str]]


class ScriptedSelector:
    """Answers questions with a function's result: bundle ids (as if a model picked them), an
    Answer, or a Failure.

    >>> from bundle_router.testing import fake_router, small_catalog
    >>> with fake_router(small_catalog({}), selector=lambda question: ["repo.readonly"]) as router:
    ...     type(router.fakes.selector).__name__
    'ScriptedSelector'
    """

    def __init__(self, script: Script) -> None:
        self.questions: list[Question] = []
        self._script = script

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        self.questions.append(question)
        scripted = self._script(question)
        if isinstance(scripted, str):
            return Reply(failure=scripted)  # type: ignore[arg-type]  # a Failure is a Literal of strings
        if isinstance(scripted, Answer):
            return Reply(answer=scripted)
        return Reply(answer=Answer(tuple(scripted), "model", "model", "scripted"))


class FakeSessions:
    """Tools that answer from a table: canonical name → a result, or a function of the arguments
    that returns one.

    A result is a RawResult or any value that a typed function may return. A function's exceptions
    are raised, so that a test sees its bugs. Arguments of first-party tools are validated as by the
    real ones; others are not.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Route, fake_router, small_catalog
    >>> route = Route("all", bundles=("repo.readonly",))
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]}, routes=[route])
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> with fake_router(catalog) as router:
    ...     decision = router.route_sync(step)
    ...     result = router.call_sync("r-42", "repo.read_file", {"path": "a"})
    >>> router.fakes.sessions.calls
    [('repo.read_file', {'path': 'a'})]
    """

    def __init__(self, results: Mapping[str, object]) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.places: list[tuple[str, str, Scope]] = []
        self._results = results

    async def check_arguments(
        self, server: str, tool: str, arguments: Mapping[str, Any]
    ) -> Sequence[str]:
        return shipped_argument_problems(server, tool, arguments)

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        scope: Scope = EVERYONE,
        place: CallPlace = NOWHERE,
    ) -> RawResult:
        name = f"{server}.{tool}"
        self.calls.append((name, arguments))
        self.places.append((place.workspace, place.within, scope))
        result = self._results.get(name, f"{name} was called")
        if callable(result):
            result = result(arguments)
        if isinstance(result, RawResult):
            return result
        return RawResult(result_blocks(result))

    async def close(self) -> None:
        return None


@dataclass(frozen=True)
class Fakes:
    """The fakes behind a router made by `fake_router`.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Route, fake_router, small_catalog
    >>> route = Route("all", bundles=("repo.readonly",))
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]}, routes=[route])
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> with fake_router(catalog) as router:
    ...     decision = router.route_sync(step)
    >>> [record["type"] for record in router.fakes.records("r-42")]
    ['route.decided']
    """

    clock: FakeClock
    """Stands still until it is advanced."""
    redactor: FakeRedactor
    """Redacts the `secrets` of `fake_router`."""
    diagnostics: FakeDiagnostics
    """Keeps the events."""
    capabilities: FakeCapabilities
    """What is present on this machine."""
    store: MemoryRunStore
    """The runs, in memory."""
    sessions: FakeSessions
    """Answers calls, and keeps them."""
    selector: ScriptedSelector | None
    """Answers questions by a script; None without one."""

    def records(self, run_id: str) -> list[dict[str, Any]]:
        """Return all records of a run in order, decisions and calls."""
        return [record for _, record in self.store.log(run_id).lines]


class FakeRouter(Router):
    """A Router with fake ports, which are in `fakes`.

    >>> from bundle_router.testing import fake_router, small_catalog
    >>> with fake_router(small_catalog({})) as router:
    ...     router.fakes.clock.advance(60)
    """

    fakes: Fakes


def small_catalog(
    bundles: Mapping[str, Iterable[str] | Bundle],
    *,
    routes: Iterable[Route] = (),
    policies: Iterable[Policy] = (Policy("everything", allow=("*",)),),
    settings: Settings | None = None,
    servers: Iterable[Server] = (),
    approvals: Iterable[ApprovalRow] = (),
) -> Catalog:
    """Return a catalog from bundle id → canonical tool names (or a whole `Bundle`), with fitting
    servers and cards.

    By default one policy allows everything, so that a test states only its subject.

    >>> from bundle_router.testing import small_catalog
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]})
    >>> catalog.bundles["repo.readonly"].tools, catalog.servers["repo"].trust
    (('repo.read_file',), 'trusted')
    """
    made = {
        id_: value
        if isinstance(value, Bundle)
        else Bundle(id_, f"{id_} tools", tuple(sorted(value)), effects=("read",))
        for id_, value in bundles.items()
    }
    tools = sorted({tool for bundle in made.values() for tool in bundle.tools})
    by_name = {server.name: server for server in servers}
    for tool in tools:
        name = tool.partition(".")[0]
        by_name.setdefault(name, Server(name, "local", "trusted"))
    cards = {}
    for tool in tools:
        server, _, short = tool.partition(".")
        cards[tool] = Card(
            server, short, f"{tool} does it", '{"type":"object"}', digest(tool), tokens=10
        )
    return Catalog(
        servers=by_name,
        bundles=made,
        routes=tuple(routes),
        policies=tuple(policies),
        approvals=tuple(approvals),
        settings=settings or Settings(),
        cards=cards,
    )


def fake_router(
    catalog: Catalog,
    *,
    capabilities: Iterable[str] = (),
    selector: Script | Selector | None = None,
    results: Mapping[str, object] | None = None,
    secrets: Iterable[str] = (),
    workspace: str | Path = "/",
    runs: MemoryRuns | RunStore | None = None,
) -> FakeRouter:
    """Return a Router over `catalog` with every effect faked.

    `selector` (a function, or an implementation of the port) answers questions, `results` answers
    calls. Several over the same `runs` are several workers; a store keeps them instead of memory,
    and `fakes.store` is empty then.

    Load a real config with `bundle_router.load_catalog("config")`, or build a `Catalog` by hand.
    Raises RequestError for a result of a tool that no bundle holds: a test with a typo would pass
    on the fake's default answer.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Route, fake_router, small_catalog
    >>> route = Route("all", bundles=("repo.readonly",))
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]}, routes=[route])
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> with fake_router(catalog, results={"repo.read_file": "# Hello"}) as router:
    ...     decision = router.route_sync(step)
    ...     router.call_sync("r-42", "repo.read_file", {"path": "README.md"}).text
    '# Hello'
    """
    expect("catalog", catalog, Catalog, 'fake_router(load_catalog("config"))')
    expect(
        "results",
        results,
        (Mapping, type(None)),
        'fake_router(..., results={"repo.read_file": "# Hello"})',
    )
    _refuse_unknown_tools(catalog, results or {})
    redactor = FakeRedactor(tuple(secrets))
    answering = ScriptedSelector(selector) if callable(selector) else selector
    memory = MemoryRunStore(runs if isinstance(runs, MemoryRuns) else None)
    store: RunStore = memory
    if runs is not None and not isinstance(runs, MemoryRuns):
        store = runs
    fakes = Fakes(
        clock=FakeClock(),
        redactor=redactor,
        diagnostics=FakeDiagnostics(),
        capabilities=FakeCapabilities(set(capabilities)),
        store=memory,
        sessions=FakeSessions(results or {}),
        selector=answering if isinstance(answering, ScriptedSelector) else None,
    )
    transports = {server.transport for server in catalog.servers.values()}
    ports = EnginePorts(
        clock=fakes.clock,
        redactor=fakes.redactor,
        diagnostics=fakes.diagnostics,
        sessions=dict.fromkeys(transports, fakes.sessions),
        describe=lambda data: MediaFacts("application/octet-stream"),
        selector=answering,
        results=open_results(catalog, fakes.clock),
        tools=open_tool_search(None, fakes.diagnostics),
    )
    engine = Engine(
        catalog=catalog,
        ports=ports,
        store=store,
        capabilities=fakes.capabilities,
        workspace=str(workspace),
    )
    router = FakeRouter(EngineVersions(engine))
    router.fakes = fakes
    return router


def _refuse_unknown_tools(catalog: Catalog, results: Iterable[str]) -> None:
    """Raise RequestError for a result of a tool that no bundle holds."""
    held: set[str] = set()
    globs: list[str] = []
    for bundle in catalog.bundles.values():
        held.update(bundle.tools)
        globs.extend(bundle.patterns)

    for name in results:
        if name in held or first_match(globs, name) is not None:
            continue
        hint = Suggester().did_you_mean(name, held)
        raise RequestError(
            f"results: no bundle holds a tool {name!r}", advice=hint or "name it 'server.tool'"
        )


__all__ = [
    "Bundle",
    "FakeCapabilities",
    "FakeClock",
    "FakeDiagnostics",
    "FakeRedactor",
    "FakeRouter",
    "FakeSessions",
    "Fakes",
    "MemoryArtifacts",
    "MemoryRun",
    "MemoryRunLog",
    "MemoryRunStore",
    "MemoryRuns",
    "Policy",
    "Route",
    "ScriptedSelector",
    "fake_router",
    "small_catalog",
]
