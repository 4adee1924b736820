"""The declarations of router.toml: how the router itself behaves.

Annotations are values here (no `from __future__`): forms are made from them at each start, and
evaluating text costs more.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, WrapValidator

from bundle_router.core.catalog.config_keys import (
    REQUIRED,
    BundleIds,
    EnvName,
    EnvNames,
    Languages,
    Line,
    ModelName,
    Weight,
    Word,
    key,
    without_repetition,
)
from bundle_router.core.values import Offer

Durability = Literal["process", "disk"]
FallbackStage = Literal["search", "model", "shortlist", "default"]
AnswerMode = Literal["json_schema", "tools", "json", "md_json"]
"""How a model is held to the answer's schema, in instructor's words."""
Beside = Literal["doubt", "always", "never"]
"""When a shortlist is offered beside what a model picked."""
CalibrationFeature = Literal[
    "strength",
    "known",
    "coverage",
    "margin",
    "entropy",
    "agreement",
    "remembered",
    "relevance",
    "likeness",
]

MIN_LABELS: Final = 300
"""Labels that a calibration needs: fewer say too little about the rare wrong answers."""

SignatureAlgorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Algorithms in which whoever checks a signature can't make one."""

_Algorithms = Annotated[
    list[SignatureAlgorithm], Field(min_length=1, max_length=10), AfterValidator(without_repetition)
]
_Stages = Annotated[list[FallbackStage], Field(max_length=4), AfterValidator(without_repetition)]
_ModelNames = Annotated[list[ModelName], Field(max_length=10), AfterValidator(without_repetition)]
_EnvReference = Annotated[str, Field(pattern=r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$", max_length=200)]
_SIGNING_KEY: Final = partial(
    key, None, "The key that signs the heads, as '${ENV_NAME}'.", _EnvReference
)
_BASE_URL: Final = partial(
    key,
    None,
    "The address of an OpenAI-compatible server. Absent: the provider's own, or what its usual"
    " variable (OPENAI_BASE_URL) says.",
    Line,
)
_KEY_ENV: Final = partial(
    key,
    None,
    "The variable that holds the key; without a value nothing is asked. Absent: the provider's"
    " usual one (OPENAI_API_KEY), or no key where base_url is set.",
    EnvName,
)


def _or_none(value: object, read: Callable[[object], object]) -> object:
    """Return the word for what is left out, or else the value that was read."""
    return value if value == "none" else read(value)


_Tokens = Annotated[int, Field(ge=16, le=100_000)]
_OutputTokens = Annotated[
    _Tokens, WrapValidator(_or_none, json_schema_input_type=_Tokens | Literal["none"])
]
_Degree = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
_Temperature = Annotated[
    _Degree, WrapValidator(_or_none, json_schema_input_type=_Degree | Literal["none"])
]
"""A number that is sent to a model, or the word for sending none."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """What is tried when a route asks: the table `[fallback]`."""

    order: tuple[FallbackStage, ...] = key(
        ("search", "model", "shortlist", "default"),
        "What is tried, in this order, when a route asks.",
        _Stages,
    )
    default: tuple[str, ...] = key(
        (), "The bundles for when nothing else answered. [] means none.", BundleIds
    )


@dataclass(frozen=True, slots=True)
class Calibration:
    """The probability that the best-ranked bundle is right, as a logistic function of the named
    features of a ranking's evidence, fitted on `labels` labelled steps. Every decision that rests
    on it has its `version`.
    """

    version: str = key(REQUIRED, "Its name in records.", Word)
    labels: int = key(
        REQUIRED,
        f"Past steps it was fitted on, at least {MIN_LABELS}: fewer say too little.",
        ge=MIN_LABELS,
    )
    bias: float = key(REQUIRED, "The log-odds where all features are 0.", Weight)
    weights: tuple[tuple[str, float], ...] = key(
        (),
        "What each feature of a ranking adds to the log-odds.",
        dict[CalibrationFeature, Weight],
        absent=...,
    )


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """What embeds the operator's words and a step's goal, beside the search by words: a `model`
    elsewhere, or a `local` one.
    """

    ADDED: ClassVar = ("rank",)

    model: str | None = key(
        None, "An embedding model as litellm names it: 'openai/text-embedding-3-small'.", ModelName
    )
    local: str | None = key(
        None,
        "A model on this machine: an absolute folder, or an installed package.",
        min_length=1,
        max_length=1_000,
    )
    base_url: str | None = _BASE_URL()
    key_env: str | None = _KEY_ENV()
    deadline_s: float = key(
        1.0, "Seconds that a step waits until its goal is embedded.", gt=0, le=60
    )
    rank: Literal["always", "never", "learned"] = key(
        "always",
        "Whether embeddings rank. never: they only recall past steps. learned, of earlier versions,"
        " is read as always.",
    )

    @property
    def name(self) -> str:
        """What the config calls the embedder."""
        return self.local or self.model or ""

    @property
    def env_names(self) -> frozenset[str]:
        """Environment variables that hold the model's keys."""
        if self.model is None:
            return frozenset()
        return frozenset(
            {provider_key_name(self.model)} | ({self.key_env} if self.key_env else set())
        )


_HiddenOffer = Literal["deferred", "meta", "none"]


@dataclass(frozen=True, slots=True)
class OfferSettings:
    """How search may present a bundle, by the most that it can do: what is shown directly is
    harmless, or the right one with the probability that its effects ask for; a shortlist is never
    direct.
    """

    read: Offer = key("direct", "Bundles that only read, here or over the network.")
    write: Offer = key("deferred", "Bundles that write.", _HiddenOffer)
    execute: Offer = key(
        "deferred", "Bundles that execute, and bundles without declared effects.", _HiddenOffer
    )


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """When search settles a question by itself (see `core.search.sufficiency`)."""

    ADDED: ClassVar = ("max_shortlist", "offer", "languages")

    floor: float = key(0.25, "Relevance below which no bundle counts as fitting.", ge=0, le=1)
    read_threshold: float = key(
        0.90,
        "The probability of being right from which search decides alone, for bundles that only"
        " read.",
        ge=0,
        le=1,
    )
    write_threshold: float = key(
        0.97,
        "The same for bundles that write. For bundles that execute, search never decides alone.",
        ge=0,
        le=1,
    )
    max_union: int = key(
        3,
        "Most bundles that search may show together when it is unsure. They must only read.",
        ge=0,
        le=20,
    )
    max_union_tokens: int = key(
        4_000, "Most tokens of the definitions of their tools.", ge=0, le=1_000_000
    )
    calibration: Calibration | None = key(
        None,
        "How the probabilities are computed, fitted on this deployment's runs. Absent: as shipped.",
    )
    embeddings: EmbeddingSettings | None = key(
        None, "The model whose embeddings rank, too. Absent: words alone rank."
    )
    max_shortlist: int | None = key(
        None,
        "Most bundles of a shortlist, which is offered behind search when nothing is certain."
        " Absent: 8 of up to 50 bundles, 16 of up to 200, 24 of more.",
        ge=0,
        le=50,
    )
    offer: OfferSettings = key(
        OfferSettings(),
        "How search may present a bundle, by its effects: direct, deferred, meta, or none.",
    )
    languages: tuple[str, ...] = key(
        (),
        "Codes of the languages, besides English, in which steps are worded: ['de', 'pt-BR']."
        " `bundle-router examples` has a model write each bundle's `words` in them.",
        Languages,
    )

    @property
    def ranks_by_meaning(self) -> bool:
        """Whether vectors rank, where there are any."""
        return self.embeddings is None or self.embeddings.rank != "never"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model with its settings."""

    name: str
    """The model, as litellm names it: `openai/gpt-5-mini`."""
    mode: AnswerMode = "json_schema"
    """How the form of the answer is enforced."""
    base_url: str | None = None
    """Its address; None: its provider's."""
    key_env: str | None = None
    """The variable that holds its key; None: its provider's usual one, or no key where there is a
    `base_url`.
    """
    max_output_tokens: int | Literal["none"] = 1_000
    """Most tokens of one answer; "none": no limit is sent."""
    temperature: float | Literal["none"] = 0.0
    """Not sent to models that do not take one; "none": to no model."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """One model's own settings; None: as `[model]` says for all."""

    name: str
    """The model, as `[model] names` has it."""
    mode: AnswerMode | None = key(None, "As [model] mode, for this model.")
    base_url: str | None = key(None, "As [model] base_url, for this model.", Line)
    key_env: str | None = key(None, "As [model] key_env, for this model.", EnvName)
    max_output_tokens: int | Literal["none"] | None = key(
        None, "As [model] max_output_tokens.", _OutputTokens
    )
    temperature: float | Literal["none"] | None = key(
        None, "As [model] temperature, for this model.", _Temperature
    )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The models that may be asked. A key that is not in `options` applies to all of them."""

    ADDED: ClassVar = ("max_cost_per_day", "max_questions_per_run", "beside")

    names: tuple[str, ...] = key(
        (),
        "Models to ask, best first, as litellm names them: 'openai/gpt-5-mini'. [] asks none.",
        _ModelNames,
    )
    deadline_s: float = key(2.5, "Seconds one question may take in all.", gt=0, le=300)
    max_cost_per_day: float | None = key(
        None,
        "US dollars that questions may cost in a UTC day, over all processes that share the folder"
        " of runs. Beyond it no model is asked (over_limit). Models without a price count as free.",
        gt=0,
        le=1_000_000,
    )
    max_questions_per_run: int | None = key(
        None,
        "Steps of one run for which a model may be asked; answers from the cache do not count."
        " Beyond it no model is asked (over_limit).",
        ge=0,
        le=1_000_000,
    )
    max_picks: int = key(3, "Most bundles that one answer may add.", ge=1, le=20)
    beside: Beside = key(
        "doubt",
        "When search's shortlist is offered behind search beside what the model picked: where the"
        " model is not sure (doubt), always or never. Never needs a model that is nearly always"
        " right.",
    )
    mode: AnswerMode = key(
        "json_schema",
        "How the form of the answer is enforced: by the provider (json_schema), as the arguments of"
        " a tool call (tools), by instructions where the provider enforces JSON alone (json), or by"
        " instructions alone (md_json) for models that support none of these.",
    )
    base_url: str | None = _BASE_URL()
    key_env: str | None = _KEY_ENV()
    max_output_tokens: int | Literal["none"] = key(
        1_000,
        "Most tokens of one answer. Models that reason need more. 'none': no limit is sent, for"
        " models behind a name of a gateway's that refuse one.",
        _OutputTokens,
    )
    temperature: float | Literal["none"] = key(
        0.0,
        "Not sent to models that do not take one, as far as litellm knows them by name, nor to any"
        " with 'none'.",
        _Temperature,
    )
    options: tuple[ModelOptions, ...] = key(
        (),
        'Settings of single models: [model.options."openai/gpt-5-mini"].',
        dict[ModelName, ModelOptions],
        absent=None,
        max_length=10,
    )

    @property
    def choices(self) -> tuple[ModelChoice, ...]:
        """The models in order, each with its settings."""
        options = {
            one.name: {k: v for k, v in asdict(one).items() if v is not None}
            for one in self.options
        }
        shared = ModelChoice(
            "", self.mode, self.base_url, self.key_env, self.max_output_tokens, self.temperature
        )
        return tuple(
            replace(shared, **{"name": name, **options.get(name, {})}) for name in self.names
        )

    @property
    def env_names(self) -> frozenset[str]:
        """Environment variables that hold these models' keys: the named ones, and the providers'
        usual ones.
        """
        names = {choice.key_env for choice in self.choices if choice.key_env}
        return frozenset(names | {provider_key_name(choice.name) for choice in self.choices})


def provider_key_name(model: str) -> str:
    """Return the variable that litellm reads a provider's key from: `openai/gpt-5-mini` →
    `OPENAI_API_KEY`.
    """
    return f"{re.sub('[^A-Z0-9]', '_', model.partition('/')[0].upper())}_API_KEY"


@dataclass(frozen=True, slots=True)
class ActivationSettings:
    """What stays active in a run: the table `[activation]`."""

    sticky: bool = key(True, "Bundles a run has used stay active in later steps.")
    max_tools: int = key(
        24, "Most tools of active bundles; the least recently used bundles go first.", ge=0, le=1000
    )


_STEP = "one step"
_RUN = "one run"
_TREE = "a run and all runs below it (sub-agents)"


def _calls(of: str, default: int | None = None) -> Any:
    return key(default, f"Most calls of {of}.", ge=1, le=1_000_000_000)


def _result_bytes(of: str, default: int | None = None, most: int = 1024**5) -> Any:
    return key(
        default, f"Most bytes of all results of {of}, before they are shortened.", ge=1, le=most
    )


def _call_seconds(of: str, default: float | None = None) -> Any:
    return key(default, f"Most seconds of all calls of {of}, added up.", gt=0, le=31_536_000)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Bounds on calls and results.

    The last four are the budget of a step (see `core.decide.budgets`).
    """

    recent_steps: int = key(5, "Earlier steps that search and the model may see.", ge=0, le=100)
    call_timeout_s: float = key(60.0, "Seconds one tool call may take.", gt=0, le=3600)
    max_result_chars: int = key(
        12_000,
        "Characters of a result that the agent sees; the rest is stored.",
        ge=100,
        le=10_000_000,
    )
    max_result_bytes: int = key(
        8 * 1024 * 1024,
        "Most bytes of one result. A server's text that repeats its structured output counts apart:"
        " up to twice as many are read.",
        ge=1024,
        le=1024**3,
    )
    max_inline_bytes: int = key(
        500_000,
        "An image or sound up to this size is sent to MCP clients in the result, a larger one as a"
        " link.",
        ge=0,
        le=700_000,
    )
    max_argument_bytes: int = key(
        1024 * 1024, "Most bytes of the arguments of one call.", ge=1024, le=64 * 1024**2
    )
    max_concurrent_calls: int = key(32, "Most calls at a time.", ge=1, le=10_000)
    calls_per_step: int = _calls(_STEP, 2_000)
    result_bytes_per_step: int = _result_bytes(_STEP, 1024**3, most=1024**4)
    call_seconds_per_step: float = _call_seconds(_STEP, 7_200.0)
    repeated_calls: int = key(
        50,
        "Most calls in a row that repeat one of the last 8 and get the same answer.",
        ge=1,
        le=1_000_000_000,
    )
    calls_per_run: int | None = _calls(_RUN)
    result_bytes_per_run: int | None = _result_bytes(_RUN)
    call_seconds_per_run: float | None = _call_seconds(_RUN)
    calls_per_tree: int | None = _calls(_TREE)
    result_bytes_per_tree: int | None = _result_bytes(_TREE)
    call_seconds_per_tree: float | None = _call_seconds(_TREE)
    code_seconds: float = key(
        10.0, 'Seconds that an agent\'s program may compute (`mode = "code"`).', gt=0, le=600
    )
    code_timeout_s: float = key(
        120.0, "Seconds that a program may take with its calls.", gt=0, le=3600
    )
    code_memory_mb: int = key(128, "Megabytes of memory that a program may use.", ge=1, le=4096)
    code_calls: int = key(200, "Calls that one program may make.", ge=1, le=100_000)

    ADDED: ClassVar[tuple[str, ...]] = (
        "code_seconds",
        "code_timeout_s",
        "code_memory_mb",
        "code_calls",
        "calls_per_run",
        "result_bytes_per_run",
        "call_seconds_per_run",
        "calls_per_tree",
        "result_bytes_per_tree",
        "call_seconds_per_tree",
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Records and diagnostics: the table `[log]`."""

    durability: Durability = key(
        "process", "'process' survives a killed process, 'disk' also a power failure (slower)."
    )
    redact_env: tuple[str, ...] = key((), "Further variables whose values are secrets.", EnvNames)
    diagnostics: Literal["debug", "info", "warning", "error"] = key(
        "warning", "The lowest level of the messages on stderr."
    )


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Whom a run serves: the table `[runs]`."""

    principals: Literal["one", "mixed"] = key(
        "one",
        "Whose steps a run, and the runs below it, may have. one: those of one principal. mixed:"
        " those of several, who share no result, artifact, key or session.",
    )


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """What shows that somebody cut or took away recorded runs: the table `[records]`."""

    heads: str | None = key(
        None, "A folder for the head of each run. With a key and no folder: beside the runs.", Line
    )
    key: str | None = _SIGNING_KEY()


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How long look-ups hold: the table `[cache]`."""

    capabilities_ttl_s: float = key(
        30.0, "Seconds that the presence of variables and programs is remembered.", ge=0, le=3600
    )
    answers_ttl_s: float = key(
        3_600.0,
        "Seconds that a model's answer is used again for the same question. 0: never.",
        ge=0,
        le=31_536_000,
    )
    answers: Literal["memory", "index"] = key(
        "memory", "Where answers are kept: in this process, or also in the index beside the runs."
    )


@dataclass(frozen=True, slots=True)
class IssuerSettings:
    """Whose access tokens (JWT) the service takes beside its own: the table `[service.issuer]`."""

    issuer: str = key(REQUIRED, "The issuer, exactly as `iss` of its tokens names it.", Line)
    audience: str = key(
        REQUIRED,
        "What `aud` of a token has to name: with clients that follow RFC 8707 the service's own"
        " address, 'https://router.example/mcp'.",
        Line,
    )
    keys: str = key(
        REQUIRED,
        "The address of the issuer's public keys (JWKS): https, or http on this machine only.",
        Line,
    )
    algorithms: tuple[SignatureAlgorithm, ...] = key(
        ("RS256", "ES256"), "The algorithms that a token may be signed with.", _Algorithms
    )
    principal: str = key("sub", "The claim that names the principal a caller speaks for.", Word)
    role: str | None = key(
        None,
        "The claim that names the role of an agent at /mcp. Absent: all have the role 'issuer'.",
        Word,
    )
    scope: str = key(
        "scope", "The claim that holds the scopes, as a text with blanks or as a list.", Word
    )
    scope_prefix: str = key(
        "",
        "What is before this service's scopes there: 'router.' for 'router.call'.",
        max_length=200,
    )
    leeway_s: float = key(
        30.0, "Seconds by which the issuer's clock may differ from this one.", ge=0, le=300
    )
    requests_per_minute: int = key(
        600, "Most requests of one principal in a minute; further ones get 429.", ge=1, le=100_000
    )


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What `bundle-router serve` is held to: the table `[service]`."""

    ADDED: ClassVar = ("max_sessions", "idle_session_s", "issuer")

    max_body_bytes: int = key(4 * 1024**2, "Most bytes of one request.", ge=1024, le=64 * 1024**2)
    body_s: float = key(15.0, "Seconds a request's body may take to arrive.", gt=0, le=3600)
    max_requests: int = key(
        1_024,
        "Most requests at a time, event streams included; further ones get 503.",
        ge=1,
        le=100_000,
    )
    request_s: float = key(
        600.0, "Seconds one request of the decision API may take.", gt=0, le=86_400
    )
    idle_run_s: float = key(
        3_600.0,
        "Seconds without a request for it after which a run is closed.",
        gt=0,
        le=31_536_000,
    )
    max_sessions: int = key(
        64,
        "Most sessions of a run's MCP clients; a new one ends the one that is unused for longest.",
        ge=1,
        le=10_000,
    )
    idle_session_s: float = key(
        1_800.0, "Seconds without a request after which a session ends.", gt=0, le=86_400
    )
    traces: str | None = key(
        None,
        "The address for spans (OTLP over HTTP): 'http://127.0.0.1:4318/v1/traces'. Absent: none"
        " are sent.",
        Line,
    )
    issuer: IssuerSettings | None = key(
        None, "Whose access tokens open the service, too. Absent: only its own do."
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """How the router itself behaves."""

    ADDED: ClassVar[tuple[str, ...]] = ("records", "runs", "service")

    fallback: Fallback = key(Fallback(), "What happens when a route asks.", absent=None)
    search: SearchSettings = key(
        SearchSettings(), "When search decides alone, and what it may offer.", absent=None
    )
    model: ModelSettings = key(ModelSettings(), "The router's own model.", absent=None)
    activation: ActivationSettings = key(
        ActivationSettings(), "What stays active in a run.", absent=None
    )
    limits: CallLimits = key(CallLimits(), "Limits of calls and results.", absent=None)
    runs: RunSettings = key(RunSettings(), "Whom a run serves.", absent=None)
    records: RecordSettings = key(RecordSettings(), "Protection of recorded runs.", absent=None)
    log: LogSettings = key(LogSettings(), "Records and diagnostics.", absent=None)
    cache: CacheSettings = key(
        CacheSettings(), "How long the results of look-ups are kept.", absent=None
    )
    service: ServiceSettings = key(ServiceSettings(), "Limits of the service.", absent=None)
