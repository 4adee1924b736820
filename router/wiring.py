"""The one place that knows both the engine and the adapters. `Router.open` is here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from router.calls import Result
from router.core.catalog import Card, Catalog, Server
from router.core.explain import Explanation, explain
from router.core.exposure import Toolset
from router.core.models import Activation, Decision, LocalTool, Step
from router.core.steppolicy import refuse_unknown
from router.engine import Engine
from router.portal import Portal, refuse_running_loop
from router.ports import (
    ArtifactStore,
    Clock,
    Diagnostics,
    Embedder,
    Embedding,
    Redactor,
    RunStore,
    Selector,
    ToolSearch,
    Vectors,
)
from router.run import Deps

if TYPE_CHECKING:
    from router.adapters.embeddings import VectorStore
    from router.adapters.pinfile import PinFiles
    from router.asking import ModelSelector
    from router.core.admission import Admitted
    from router.core.corpus import Texts
    from router.core.pins import Pins, PinSetting
    from router.core.search.meaning import Passage
    from router.core.search.memory import Memory
    from router.core.search.ranking import Search
    from router.selecting import Meanings, StagedSelector
    from router.servers import Servers

LocalServers = Mapping[str, Sequence[LocalTool]]
SEARCH_LIBRARIES: Final = ("bm25s", "PyStemmer")
REMOTE: Final = ("streamable-http", "stdio", "sse")
MIN_CACHED: Final = 300
"""Bundles and tools from which on an index is kept on disk. Fewer are indexed in less than a tenth of a second."""


def local_cards(local: LocalServers | None = None) -> tuple[dict[str, Sequence[LocalTool]], dict[str, Card]]:
    """The local servers a config may name (first-party ones, and the caller's own over them) and their cards."""
    from router.adapters.local import cards_of, counted_tokens, shipped_servers

    servers = {**shipped_servers(), **(local or {})}
    return servers, cards_of(servers, counted_tokens())


def shipped_argument_problems(server: str, tool: str, arguments: Mapping[str, Any]) -> Sequence[str]:
    """What is wrong with the arguments of a first-party tool's call, one sentence each; empty for any other tool."""
    from router.adapters.local import argument_problems, shipped_servers

    known = next((made for made in shipped_servers().get(server, ()) if made.name == tool), None)
    return argument_problems(known, arguments) if known is not None else ()


def load_catalog(config: str | Path | None = "config", *, local: LocalServers | None = None) -> Catalog:
    """Reads and checks a config folder over the shipped one (None: that alone). Raises ConfigError."""
    _, cards = local_cards(local)
    return with_learned(config, read_catalog(config, cards)[0])[0]


def read_catalog(config: str | Path | None, cards: Mapping[str, Card]) -> tuple[Catalog, dict[str, Pins]]:
    """The catalog of a config folder, with the cards of the pins its servers may be used by, and all its pins.

    Raises ConfigError, CorruptPins.
    """
    from router.adapters.configfiles import read_config
    from router.core.config import load
    from router.core.pins import pinned

    catalog = load(read_config(config), cards=cards)
    pins = open_pins(config).read_all({s.name: s for s in catalog.servers.values() if s.transport != "local"})
    return with_skills(config, pinned(catalog, pins)), pins


def open_pins(config: str | Path | None) -> PinFiles:
    """The pin files that belong to a config folder: those of `bundles/pins` beside it."""
    from router.adapters.pinfile import PinFiles

    return PinFiles(project_folder(config) / "bundles" / "pins")


def project_folder(config: str | Path | None) -> Path:
    """The folder that a config folder lies in, and `bundles` beside it; the current one for the shipped config."""
    return Path(config).resolve().parent if config is not None else Path.cwd()


def open_servers(
    catalog: Catalog,
    pins: Mapping[str, Pins],
    setting: PinSetting,
    clock: Clock,
    diagnostics: Diagnostics,
    *,
    development: bool,
    workspace: Path,
) -> Servers:
    """The tool servers of a catalog, behind their pins. Contacts nobody and loads no SDK yet."""
    from router.adapters.mcp import open_mcp_sessions
    from router.servers import Servers

    schemas: dict[str, Mapping[str, Any]] = {}

    def schema_of(server: str, tool: str) -> Mapping[str, Any] | None:
        name = f"{server}.{tool}"
        card = catalog.cards.get(name)
        if card is None:
            return None
        if name not in schemas:
            schemas[name] = card.input_schema()
        return schemas[name]

    sessions = open_mcp_sessions(
        catalog.servers,
        clock=clock,
        diagnostics=diagnostics,
        limits=catalog.settings.limits,
        development=development,
        workspace=workspace,
        client=("bundle-router", package_version()),
        schema_of=schema_of,
    )
    return Servers(catalog, sessions, pins, setting, clock, diagnostics)


def with_learned(config: str | Path | None, catalog: Catalog) -> tuple[Catalog, Memory | None]:
    """The catalog with the thresholds, and the memory, that were accepted for this config folder.

    Raises ConfigError for a learned file that is not as it was accepted.
    """
    if config is None or not Path(config, "learned").is_dir():
        return catalog, None
    from router.adapters.learned import load_learned

    learned = load_learned(config).fitted_to(catalog)
    return learned.applied_to(catalog), learned.memory


def with_skills(config: str | Path | None, catalog: Catalog) -> Catalog:
    """The catalog with the instructions its bundles name; the same object where they name none."""
    paths = sorted({bundle.skill for bundle in catalog.bundles.values() if bundle.skill is not None})
    if not paths:
        return catalog
    from router.adapters.configfiles import read_content
    from router.core.skills import MAX_BYTES, parse_skill

    texts = {path: read_content(config, path, MAX_BYTES) for path in paths}
    return replace(catalog, skills={p: parse_skill(p, text) for p, text in texts.items() if text is not None})


def open_redactor(catalog: Catalog) -> Redactor:
    """The redactor that knows the values of every environment variable the config names."""
    from router.adapters.redaction import SecretRedactor

    names = {name for server in catalog.servers.values() for name in server.env_names}
    names |= {*catalog.settings.log.redact_env} | catalog.settings.model.env_names
    if catalog.settings.search.embeddings is not None:
        names |= catalog.settings.search.embeddings.env_names
    return SecretRedactor(env_values={name: os.environ[name] for name in sorted(names) if os.environ.get(name)})


def open_store(runs: str | Path, catalog: Catalog, clock: Clock, redactor: Redactor) -> RunStore:
    """The writer of a runs directory."""
    from router.adapters.artifacts import RunArtifacts
    from router.adapters.media import describe
    from router.adapters.runlog import DiskRunStore

    durability = catalog.settings.log.durability

    def artifacts(run_dir: str) -> ArtifactStore:
        return RunArtifacts(run_dir, describe=describe, durable=durability == "disk")

    return DiskRunStore(runs, clock=clock, artifacts=artifacts, redactor=redactor, durability=durability)


def _searched(catalog: Catalog) -> Texts:
    """What search may read. Cards of servers elsewhere are in a catalog because a person pinned them."""
    from router.core.corpus import texts_of

    reviewed = {name for name, card in catalog.cards.items() if catalog.servers[card.server].transport != "local"}
    return texts_of(catalog, reviewed)


def make_search(catalog: Catalog) -> Search:
    """The search over a catalog, its index from the user's cache where making it anew takes longer.

    Raises NotInstalled where its library is not there. Takes up to seconds for thousands of tools.
    """
    from router.adapters.indexcache import IndexCache, cache_folder
    from router.adapters.ranking import LexicalIndex, english_stemmer
    from router.core.corpus import corpus_of, outline_of
    from router.core.search.ranking import Search
    from router.core.search.text import Analyzer
    from router.errors import NotInstalled

    try:
        made_with = [f"{name} {version(name)}" for name in SEARCH_LIBRARIES]
    except PackageNotFoundError as missing:
        raise NotInstalled(f"search needs {missing.name}", advice="install bundle-router anew") from None
    texts, analyzer = _searched(catalog), Analyzer(english_stemmer())
    revision = texts.revision(*made_with)
    cache = IndexCache(cache_folder() if len(texts.bundles) + len(texts.tools) >= MIN_CACHED else None)
    index = cache.load(revision, lambda folder: LexicalIndex.load(folder, revision=revision))
    if index is not None:
        return Search(index, outline_of(texts), analyzer)
    corpus = corpus_of(texts, analyzer)
    index = LexicalIndex.build(corpus.documents, revision=revision)
    cache.save(revision, index.save)
    return Search(index, corpus, analyzer)


def open_selector(
    catalog: Catalog, runs: str | Path, clock: Clock, diagnostics: Diagnostics, memory: Memory | None = None
) -> StagedSelector:
    """What settles questions, in the order of `[fallback]`. Loads nothing yet: the first question begins it."""
    from router.selecting import SearchSelector, StagedSelector

    meanings = open_meanings(catalog, clock, diagnostics, memory)
    search = SearchSelector(make_search, diagnostics, memory, meanings=meanings)
    model = open_model(catalog, runs, clock, diagnostics)
    return StagedSelector(catalog.settings.fallback.order, search=search, model=model)


def open_tool_search(selector: StagedSelector | None, diagnostics: Diagnostics) -> ToolSearch:
    """What ranks tools, over the index that settles questions, where there is one. Loads nothing yet."""
    from router.selecting import RankedTools, SearchSelector

    search = selector.index if selector is not None else None
    return RankedTools(search or SearchSelector(make_search, diagnostics), diagnostics)


def open_embedder(catalog: Catalog) -> Embedder | None:
    """What the config embeds with; None where it names nothing. Loads nothing yet."""
    chosen = catalog.settings.search.embeddings
    if chosen is None:
        return None
    if chosen.local is not None:
        from router.adapters.embeddings import LocalEmbedder

        return LocalEmbedder(chosen.local)
    from router.adapters.llm import LiteLlmEmbedder

    return LiteLlmEmbedder(chosen.model or "", base_url=chosen.base_url, key_env=chosen.key_env)


def make_vectors(catalog: Catalog, embedder: Embedder, remembered: Iterable[Passage] = ()) -> Vectors | Embedding:
    """The vectors of a catalog's texts and of remembered steps, from the user's cache where a text is unchanged.
    Blocks, for minutes when thousands of texts are new."""
    from router.adapters.embeddings import vectors_for
    from router.core.search.meaning import passages_of

    texts = _searched(catalog)
    passages = (*passages_of(texts.bundles, texts.tools), *remembered)
    return vectors_for(passages, embedder, _vector_store(embedder))


def _remembered(memory: Memory | None, embedder: Embedder) -> tuple[Passage, ...]:
    """The past steps that can be recalled. Those measured with another embedder can't: words remember them alone."""
    recollection = memory.recollection if memory is not None else None
    if recollection is None or recollection.embedder != embedder.revision:
        return ()
    return recollection.passages()


def _vector_store(embedder: Embedder) -> VectorStore:
    from router.adapters.embeddings import VectorStore
    from router.adapters.indexcache import cache_folder

    folder = cache_folder()
    return VectorStore(folder.parent / "embeddings" if folder is not None else None, embedder.revision)


def make_search_for(catalog: Catalog, requests: Iterable[str], memory: Memory | None = None) -> Search:
    """`make_search` for requests that are known beforehand, such as past steps: it understands exactly these, where the
    config names an embedder, and recalls these and what `memory` remembers. Where that one fails it searches by words
    alone, as a router would, and warns of it.

    Blocks while what is new is embedded. Raises NotInstalled as `make_search` does.
    """
    search, embedder = make_search(catalog), open_embedder(catalog)
    if embedder is None:
        return search
    from router.adapters.embeddings import embed_texts
    from router.core.search.meaning import Passage, passage
    from router.core.search.recall import key_of

    try:
        passages = {text: passage(text) for text in requests}
        steps = {key_of(text): Passage(key_of(text), "steps", text) for text in passages.values()}
        steps |= {row.id: row for row in _remembered(memory, embedder)}
        vectors = make_vectors(catalog, embedder, steps.values())
        known = embed_texts(passages.values(), embedder, _vector_store(embedder))
    finally:
        embedder.close()
    if isinstance(vectors, Embedding) or isinstance(known, Embedding):
        failures = [made for made in (vectors, known) if isinstance(made, Embedding)]
        diagnostics = open_diagnostics(catalog, open_redactor(catalog))
        diagnostics.event("warning", "embeddings.unavailable", failure=failures[0].failure, detail=failures[0].detail)
        return search
    understood = {text: known[part] for text, part in passages.items() if len(known[part]) == vectors.dimension}
    return replace(search, vectors=vectors, understood=understood)


def open_meanings(
    catalog: Catalog, clock: Clock, diagnostics: Diagnostics, memory: Memory | None = None
) -> Meanings | None:
    """What asks the config's embedder, of a step and of what `memory` remembers; None where it names none."""
    chosen, embedder = catalog.settings.search.embeddings, open_embedder(catalog)
    if chosen is None or embedder is None:
        return None
    from router.selecting import Meanings

    def make(of: Catalog) -> Vectors | Embedding:
        return make_vectors(of, embedder, _remembered(memory, embedder))

    return Meanings(embedder, make, clock, diagnostics, deadline_s=chosen.deadline_s)


def open_model(catalog: Catalog, runs: str | Path, clock: Clock, diagnostics: Diagnostics) -> ModelSelector | None:
    """What asks the config's models; None where it names none. Loads nothing yet."""
    settings = catalog.settings
    if not settings.model.names or "model" not in settings.fallback.order:
        return None
    from router.adapters.answers import SqlAnswers
    from router.adapters.llm import LiteLlm
    from router.asking import ModelSelector

    store = SqlAnswers(runs, diagnostics) if settings.cache.answers == "index" else None
    ttl_s = settings.cache.answers_ttl_s
    return ModelSelector(
        settings.model, LiteLlm(settings.model.choices), clock, diagnostics, answers_ttl_s=ttl_s, store=store
    )


def open_diagnostics(catalog: Catalog, redactor: Redactor) -> Diagnostics:
    from router.adapters.diagnostics import StderrDiagnostics

    return StderrDiagnostics(redactor, level=catalog.settings.log.diagnostics)


def package_version() -> str:
    """The installed version; `0+checkout` when run from a folder that was not installed."""
    try:
        return version("bundle-router")
    except PackageNotFoundError:
        return "0+checkout"


def admitted_now(catalog: Catalog, servers: Sequence[Server], *, development: bool) -> list[Admitted | str]:
    """What each of the servers lists now, asked all at once, its tokens counted where that is possible; or why there is
    nothing. Starts processes (stdio) only with `development`, and ends them."""
    import asyncio

    from router.adapters.clock import SystemClock
    from router.adapters.mcp import open_mcp_sessions
    from router.adapters.tokens import token_counter
    from router.core.admission import admit
    from router.errors import ToolFailure

    sessions = open_mcp_sessions(
        {server.name: server for server in servers},
        clock=SystemClock(),
        diagnostics=open_diagnostics(catalog, open_redactor(catalog)),
        limits=catalog.settings.limits,
        development=development,
        workspace=Path.cwd(),
        client=("bundle-router", package_version()),
    )
    count = token_counter()

    async def one(server: Server) -> Admitted | str:
        try:
            listing = await sessions.definitions(server.name, fresh=True)
        except ToolFailure as failure:
            return failure.message
        return admit(server, listing.tools, listing.instructions, count=count)

    async def all_of_them() -> list[Admitted | str]:
        try:
            return list(await asyncio.gather(*(one(server) for server in servers)))
        finally:
            await sessions.close()

    return asyncio.run(all_of_them())


class Router:
    """Decides which bundles each step may see, hands out their tools, carries out calls, and writes it all down.

    Open one per process. Everything may be called from many threads and tasks at once, for many runs side by side;
    steps of one run are ordered by their records' `seq`. The `*_sync` methods serve engines without an event loop and
    raise WrongContext inside one.
    """

    def __init__(self, engine: Engine, selector: StagedSelector | None = None) -> None:
        self._engine = engine
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
        from router.adapters.capabilities import SystemCapabilities
        from router.adapters.clock import SystemClock
        from router.adapters.local import LocalSessions
        from router.adapters.media import describe
        from router.adapters.patterns import compile_pattern
        from router.errors import RequestError

        if pins not in ("required", "trusted-may-skip"):
            raise RequestError(f"pins={pins!r} is not known", advice="use 'required' or 'trusted-may-skip'")
        if pins != "required" and not development:
            raise RequestError(
                f"pins={pins!r} is for development only", advice="pass development=True, or pin the servers"
            )
        tools, cards = local_cards(local)
        catalog, known_pins = read_catalog(config, cards)
        catalog, memory = with_learned(config, catalog)
        root = Path(workspace if workspace is not None else Path.cwd()).resolve()
        if not root.is_dir():
            raise RequestError(f"the workspace {str(root)!r} is not a folder", advice="name one that exists")
        if root.is_relative_to(Path(runs).resolve()):
            advice = "keep the runs elsewhere: what they left behind is hidden from tools"
            raise RequestError(f"the workspace {str(root)!r} lies in the folder of the runs", advice=advice)
        clock = SystemClock()
        redactor = open_redactor(catalog)
        diagnostics = open_diagnostics(catalog, redactor)
        # Where the policy, the pins, the skills (which pass for the operator's words) and the records lie: tools that
        # may write in the workspace may not write there, and what other runs left behind, unredacted artifacts among
        # it, is not for them to read.
        content = project_folder(config) / "bundles"
        skills = sorted({content / bundle.skill for bundle in catalog.bundles.values() if bundle.skill is not None})
        places = (runs, config or "config", content / "pins", *skills)
        protected = [str(Path(place).resolve()) for place in places]
        servers = open_servers(catalog, known_pins, pins, clock, diagnostics, development=development, workspace=root)
        sessions = LocalSessions(tools, catalog.local, catalog.settings.limits, diagnostics, protected, protected[:1])
        own = open_selector(catalog, runs, clock, diagnostics, memory) if selector is None else None
        engine = Engine(
            catalog=catalog,
            deps=Deps(
                clock=clock,
                redactor=redactor,
                diagnostics=diagnostics,
                sessions={"local": sessions, **dict.fromkeys(REMOTE, servers.sessions)},
                describe=describe,
                patterns=compile_pattern,
                selector=selector or own,
                tools=open_tool_search(own, diagnostics),
            ),
            store=open_store(runs, catalog, clock, redactor),
            capabilities=SystemCapabilities(clock, catalog.settings.cache.capabilities_ttl_s),
            workspace=str(root),
            servers=servers,
            versions={"bundle_router": package_version()},
        )
        return cls(engine, own)

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
        return self._engine.catalog

    # --- routing ---------------------------------------------------------------------------------------------------

    async def route(self, step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None) -> Decision:
        """Decides what the step may see. The decision is in the run directory when this returns.

        `messages` is the agent's own history (OpenAI's or Anthropic's shape), for agents that keep it: what the run has
        active is then derived from the calls in it, in place of what the run remembers.

        Raises UnknownRun (the parent has no decision), RequestError, RunInUse, CorruptRun, and StorageError when the
        decision could not be written; the run is then as it was before.
        """
        return await self._engine.route(step, messages)

    def route_sync(self, step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None) -> Decision:
        """As `route`, for engines without an event loop. A step that the mapping answers never leaves this thread."""
        refuse_running_loop("route_sync()", "await router.route(...)")
        return self._engine.route_from_thread(step, self._portal.run, messages)

    def explain(self, step: Step, target: str) -> Explanation:
        """Why `target` (a bundle id or `server.tool`) is or is not shown at the step. Decides nothing, writes nothing.

        Reads capabilities as they are now; knows nothing of a run's stickiness or of parents. Where search would be
        asked first it is; a model is not.
        """
        refuse_unknown(self.catalog, step.policy)
        hear = self._selector.preview if self._selector is not None else None
        return explain(self.catalog, self._engine.facts(), Activation(), step, target, hear)

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
        return await self._engine.tools(run_id, format, native=native, fixed=fixed)

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
        if self._engine.needs_discovery(run_id):
            return self._portal.run(self._engine.tools(run_id, format, native=native, fixed=fixed))
        return self._engine.toolset(run_id, format, native=native, fixed=fixed)

    async def call(self, run_id: str, name: str, arguments: Mapping[str, Any] | str, *, joins: bool = True) -> Result:
        """Calls a tool by its canonical (`server.tool`) or exposed name, if the run's current decision holds it; or one
        of the router's own (`search_tools`, `call_tool`, `read_artifact` …), which look no further either.

        `arguments` is an object, or the JSON text of one, as some providers hand it over. `joins=False` lets nothing
        that is found or called join the array: for agents whose list of tools is `fixed`. What the agent can see fail
        is a `Result` with another outcome than `ok`. Raises UnknownRun, RequestError (no decision yet) and StorageError
        (the call's record could not be written).
        """
        return await self._engine.call(run_id, name, arguments, joins=joins)

    def call_sync(self, run_id: str, name: str, arguments: Mapping[str, Any] | str, *, joins: bool = True) -> Result:
        """As `call`, for engines without an event loop."""
        refuse_running_loop("call_sync()", "await router.call(...)")
        return self._portal.run(self._engine.call(run_id, name, arguments, joins=joins))

    async def decision_id(self, run_id: str) -> str:
        """The id of the run's current decision. Raises UnknownRun where there is none."""
        return await self._engine.decision_id(run_id)

    def watch(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Calls `heard` with the run's id after each decision, on the thread that took it; it must neither block nor
        raise. Returns what ends it."""
        return self._engine.watch(heard)

    def report(self, level: str, event: str, **fields: object) -> None:
        """An event in the router's diagnostics, redacted. `level` is `debug`, `info`, `warning` or `error`."""
        self._engine.diagnostics.event(level, event, **fields)

    def artifact(self, run_id: str, uri: str) -> bytes:
        """The bytes behind `artifact:sha256:…`, as they came, checked against their digest.

        Raises UnknownRun, RequestError (no such artifact in this run), CorruptRun (they are not what was stored).
        """
        return self._engine.artifact(run_id, uri)

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
        return await asyncio.to_thread(self._engine.media, run_id, uri, format, link=link)

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
        return self._engine.media(run_id, uri, format, link=link)

    # --- ends ------------------------------------------------------------------------------------------------------

    async def close_run(self, run_id: str) -> None:
        """Ends the run: closes what it opened and seals its directory. It may be continued by another `route`."""
        await self._engine.end_run(run_id)

    def close_run_sync(self, run_id: str) -> None:
        """As `close_run`, for engines without an event loop."""
        refuse_running_loop("close_run_sync()", "await router.close_run(...)")
        if self._engine.holds_sessions:
            self._portal.run(self._engine.end_run(run_id))
        else:
            self._engine.close_run(run_id)

    async def close(self) -> None:
        """Ends every run and lets go of everything. The router can't be used afterwards."""
        await self._end()
        self._portal.close()

    async def _end(self) -> None:
        await self._engine.close()
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


__all__ = ["LocalServers", "Router", "load_catalog"]
