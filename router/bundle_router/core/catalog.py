"""The whole validated config as one immutable value: the catalog, and its revision.

Rules:
1. A catalog is resolved: globs over known tools are expanded, compositions are flattened, every id it names exists.
2. Its `revision` is the digest of its canonical form, so two catalogs with the same revision decide the same.
3. Order is meaning only where the config says so: `routes` (first match wins) and a route's `bundles`.
   Everything else is kept sorted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal

from bundle_router.core.models import Effect, LocalSettings, Mode, Trust
from bundle_router.core.models.canonical import digest_of

Transport = Literal["streamable-http", "stdio", "sse", "local"]
ServerAuth = Literal["oauth"]
Durability = Literal["process", "disk"]
Feature = Literal["resources", "prompts", "completion", "results", "logging", "input"]
"""What a trusted server's own may be passed on to agents, besides its tools (see `bundle_router.engine.relay`)."""
FallbackStage = Literal["search", "model", "default"]
AnswerMode = Literal["json_schema", "tools", "json", "md_json"]
"""How a model is held to the answer's shape; the words are instructor's modes."""


@dataclass(frozen=True, slots=True)
class Card:
    """An admitted tool definition. `schema` is the canonical JSON text of its input schema; `tokens` counts the
    definition in OpenAI form with cl100k_base (`counted` is false where it is an estimate from its length)."""

    server: str
    tool: str
    description: str
    schema: str
    sha256: str
    tokens: int
    counted: bool = True

    @property
    def name(self) -> str:
        """The canonical name, `server.tool`."""
        return f"{self.server}.{self.tool}"

    def input_schema(self) -> dict[str, Any]:
        """A fresh copy of the input schema."""
        loaded: dict[str, Any] = json.loads(self.schema)
        return loaded


@dataclass(frozen=True, slots=True)
class Reuse:
    """Results of these tools of a server (names or globs) may be used again for `ttl_s` seconds: within their run or,
    by the same principal, `across_runs`."""

    tools: tuple[str, ...]
    ttl_s: float
    across_runs: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """One entry of `servers.toml`, with what follows from it (`env_names`). `client_id`: what a server with `auth`
    knows us as; None where it registers clients by itself."""

    name: str
    transport: Transport
    trust: Trust = "untrusted"
    enabled: bool = True
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    auth: ServerAuth | None = None
    client_id: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    legacy: bool = False
    volatile: tuple[str, ...] = ()
    ttl_s: float | None = None
    timeout_s: float | None = None
    reuse: tuple[Reuse, ...] = ()
    files: str | None = None
    """A folder that a stdio server may read, for the files that are handed to it; relative to the workspace. None: a
    temporary one."""
    pass_through: tuple[Feature, ...] = ()
    prefix: bool = True
    env_names: tuple[str, ...] = ()
    """Environment variables its headers and env refer to; their values are secrets and are redacted everywhere."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One resolved bundle. `tools` are canonical names (`server.tool`), sorted and without repetition, its own and
    those of the bundles it is composed of; `companions` are those among them that are shown first, and with any other
    that is asked for; `patterns` are globs over servers whose tools are not known yet."""

    id: str
    description: str
    tools: tuple[str, ...]
    avoid: str = ""
    examples: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    mode: Mode = "direct"
    effects: tuple[Effect, ...] = ()
    requires_env: tuple[str, ...] = ()
    requires_binary: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    always: bool = False
    selectable: bool = True
    skill: str | None = None
    max_tokens: int | None = None
    aliases: tuple[str, ...] = ()
    enabled: bool = True
    trust: Trust = "trusted"
    """The lowest trust of the servers its tools live on."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A bundle's instructions (see `core.tools.skills`). `path` is as bundles name it; `tools` are names as written:
    `server.tool`, or a tool's name alone."""

    path: str
    name: str
    description: str
    tools: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the mapping. Each of `workflow`, `role`, `step` is a tuple of names or globs; empty means any.
    `ask` is None, or the candidates (globs over bundle ids) that search and the model may add."""

    name: str
    workflow: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    bundles: tuple[str, ...] = ()
    ask: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy row. All rows that match a step apply: denials unite, allowances intersect.

    `allow=None`: the row grants nothing and only narrows. `effects=None`: it does not look at effects.
    """

    name: str
    workflow: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    min_trust: Trust | None = None
    effects: tuple[Effect, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fallback:
    order: tuple[FallbackStage, ...] = ("search", "model", "default")
    default: tuple[str, ...] = ()


MIN_LABELS: Final = 300
"""Labels that a calibration takes: fewer say too little about the rare wrong ones."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted on `labels` of a deployment's own steps: how likely the best-ranked bundle is the right one, as a logistic
    function of the named features of a ranking's evidence. `version` stands in every decision that rests on it."""

    version: str
    labels: int
    bias: float
    weights: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """What embeds the operator's words and a step's goal, beside the search by words: a `model` elsewhere, by litellm's
    name, reached at `base_url` with the key in `key_env` (None: as its provider does); or a `local` one, a folder or an
    installed package. `deadline_s`: what a step waits for its goal to be embedded."""

    model: str | None = None
    local: str | None = None
    base_url: str | None = None
    key_env: str | None = None
    deadline_s: float = 1.0

    @property
    def env_names(self) -> frozenset[str]:
        """Variables whose values are keys of the model."""
        if self.model is None:
            return frozenset()
        return frozenset({_key_name(self.model)} | ({self.key_env} if self.key_env else set()))


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """When search settles a question by itself (see `core.search.sufficiency`). `floor`: relevance under which nothing
    fits. `read_threshold` and `write_threshold`: how likely a bundle with these effects has to be the right one.
    `max_union`, `max_union_tokens`: bundles, and tokens of their tools, that may be shown together when unsure.
    `embeddings`: None for words alone."""

    floor: float = 0.25
    read_threshold: float = 0.90
    write_threshold: float = 0.97
    max_union: int = 3
    max_union_tokens: int = 4_000
    calibration: Calibration | None = None
    embeddings: EmbeddingSettings | None = None


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model with everything that is set for it. `key_env` names the variable that holds its key (None: the one its
    provider is known by); `base_url` is where it is reached (None: its provider's own address)."""

    name: str
    mode: AnswerMode = "json_schema"
    base_url: str | None = None
    key_env: str | None = None
    max_output_tokens: int = 1_000
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What one model has of its own; None: as `[model]` says for all."""

    name: str
    mode: AnswerMode | None = None
    base_url: str | None = None
    key_env: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`names`: the models to ask, best first (none: no model is asked). `deadline_s` bounds a whole question, second
    calls included. `max_picks`: bundles one answer may add. The rest holds for every model without `options`."""

    names: tuple[str, ...] = ()
    deadline_s: float = 2.5
    max_picks: int = 3
    mode: AnswerMode = "json_schema"
    base_url: str | None = None
    key_env: str | None = None
    max_output_tokens: int = 1_000
    temperature: float = 0.0
    options: tuple[ModelOptions, ...] = ()

    @property
    def choices(self) -> tuple[ModelChoice, ...]:
        """The models in order, each with what holds for it."""
        own = {options.name: options for options in self.options}
        shared = ModelChoice("", self.mode, self.base_url, self.key_env, self.max_output_tokens, self.temperature)
        return tuple(
            replace(shared, name=name, **_set_fields(own[name])) if name in own else replace(shared, name=name)
            for name in self.names
        )

    @property
    def env_names(self) -> frozenset[str]:
        """Variables whose values are keys of these models: those named, and those the providers are known by."""
        named = {choice.key_env for choice in self.choices if choice.key_env}
        return frozenset(named | {_key_name(choice.name) for choice in self.choices})


def _key_name(model: str) -> str:
    """The variable that litellm reads a provider's key from: `openai/gpt-5-mini` → `OPENAI_API_KEY`."""
    return f"{re.sub('[^A-Z0-9]', '_', model.partition('/')[0].upper())}_API_KEY"


def _set_fields(options: ModelOptions) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if name != "name" and value is not None}


@dataclass(frozen=True, slots=True)
class ActivationSettings:
    sticky: bool = True
    max_tools: int = 24


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_result_chars`: text the model sees of one result. `max_result_bytes`: what is read of a result at all.
    `max_inline_bytes`: an image or sound up to this size is handed to MCP clients as such; larger ones are linked. The
    last four are the budget of a step (see `bundle_router.core.decide.budgets`)."""

    recent_steps: int = 5
    call_timeout_s: float = 60.0
    max_result_chars: int = 12_000
    max_result_bytes: int = 8 * 1024 * 1024
    max_inline_bytes: int = 500_000
    max_argument_bytes: int = 1024 * 1024
    max_concurrent_calls: int = 32
    calls_per_step: int = 2_000
    result_bytes_per_step: int = 1024**3
    call_seconds_per_step: float = 7_200.0
    repeated_calls: int = 50


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`durability`: `process` survives kill -9, `disk` also power loss. `redact_env`: variables that hold secrets."""

    durability: Durability = "process"
    redact_env: tuple[str, ...] = ()
    diagnostics: Literal["debug", "info", "warning", "error"] = "warning"


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """`capabilities_ttl_s`: how long a look-up of environment, binaries and servers holds. `answers_ttl_s`: how long a
    model's answer is used again for the same question; 0: never. `answers`: where answers are kept."""

    capabilities_ttl_s: float = 30.0
    answers_ttl_s: float = 3_600.0
    answers: Literal["memory", "index"] = "memory"


@dataclass(frozen=True, slots=True)
class Settings:
    fallback: Fallback = Fallback()
    search: SearchSettings = SearchSettings()
    model: ModelSettings = ModelSettings()
    activation: ActivationSettings = ActivationSettings()
    limits: Limits = Limits()
    log: LogSettings = LogSettings()
    cache: CacheSettings = CacheSettings()


@dataclass(frozen=True, eq=False)
class Catalog:
    """Everything decisions rest on. Build one with `bundle_router.core.config.load`, or by hand in tests.

    A value but for `memo`: never changed after it was made, and safe to share between threads.
    """

    servers: Mapping[str, Server] = field(default_factory=dict)
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    policies: tuple[Policy, ...] = ()
    settings: Settings = Settings()
    local: LocalSettings = field(default_factory=LocalSettings)
    cards: Mapping[str, Card] = field(default_factory=dict)
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """By path. A skill whose file is not there is not in it."""
    memo: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Look-ups derived from the value above by the functions of this package. Never an input."""

    def __post_init__(self) -> None:
        for name in ("servers", "bundles", "cards", "skills"):
            value: Mapping[str, Any] = getattr(self, name)
            object.__setattr__(self, name, MappingProxyType(dict(sorted(value.items()))))

    @cached_property
    def revision(self) -> str:
        """`sha256:…` of the canonical form (see `to_json`)."""
        return digest_of(self.to_json())

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """Old bundle ids and what they are called now."""
        return {alias: bundle.id for bundle in self.bundles.values() for alias in bundle.aliases}

    def id_today(self, id_: str) -> str:
        """What the bundle of that id, or of that old id, is called now; `id_` itself where there is none."""
        return id_ if id_ in self.bundles else self.aliases.get(id_, id_)

    def bundle(self, id_: str) -> Bundle | None:
        """The bundle of that id, or of that old id."""
        found = self.bundles.get(id_)
        return found if found is not None else self.bundles.get(self.aliases.get(id_, ""))

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """The canonical names of all tools that are known: those that bundles hold, and those that have a card."""
        return frozenset(tool for bundle in self.bundles.values() for tool in bundle.tools) | self.cards.keys()

    def skill_of(self, bundle: Bundle) -> Skill | None:
        """The instructions that come with the bundle."""
        return self.skills.get(bundle.skill) if bundle.skill is not None else None

    @cached_property
    def always(self) -> tuple[Bundle, ...]:
        return tuple(bundle for bundle in self.bundles.values() if bundle.always)

    def to_json(self) -> dict[str, Any]:
        """The canonical form as JSON values: lists of objects, never objects keyed by ids."""
        return {
            "schema": "bundle-router.catalog/1",
            "servers": [asdict(server) for server in self.servers.values()],
            "bundles": [asdict(bundle) for bundle in self.bundles.values()],
            "routes": [asdict(route) for route in self.routes],
            "policies": [asdict(policy) for policy in self.policies],
            "settings": asdict(self.settings),
            "local": self.local.model_dump(mode="json"),
            "cards": [asdict(card) for card in self.cards.values()],
            "skills": [asdict(skill) for skill in self.skills.values()],
        }
