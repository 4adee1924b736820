"""The declarations of router.toml: how the router itself behaves.

Annotations are values here (no `from __future__`): forms are made from them at each start, and evaluating text costs
more.
"""

import re
from dataclasses import asdict
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field

from bundle_router.core.catalog.keys import (
    BundleIds,
    EnvName,
    EnvNames,
    Line,
    ModelName,
    Weight,
    Word,
    key,
    without_repetition,
)
from bundle_router.core.models import Offer
from bundle_router.dataclass import dataclass, replace

Durability = Literal["process", "disk"]
FallbackStage = Literal["search", "model", "shortlist", "default"]
AnswerMode = Literal["json_schema", "tools", "json", "md_json"]
"""How a model is held to the answer's schema, in instructor's words."""
CalibrationFeature = Literal[
    "strength", "known", "coverage", "margin", "entropy", "agreement", "remembered", "relevance", "likeness"
]  # fmt: skip

MIN_LABELS: Final = 300
"""Labels that a calibration needs: fewer say too little about the rare wrong answers."""

_Stages = Annotated[list[FallbackStage], Field(max_length=4), AfterValidator(without_repetition)]
_ModelNames = Annotated[list[ModelName], Field(max_length=10), AfterValidator(without_repetition)]
_EnvReference = Annotated[str, Field(pattern=r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$", max_length=200)]
_SIGNING_KEY: Final = key("What the heads are signed with, as '${ENV_NAME}'.", _EnvReference)
_BASE_URL: Final = key("Where an OpenAI-compatible server listens. Leave out for the provider's own.", Line)
_KEY_ENV: Final = key("The variable with the key. Leave out for the provider's own (OPENAI_API_KEY).", EnvName)
_MODE: Final = key(
    "How the answer is held to its shape: by the provider (json_schema), as the arguments of a tool call (tools), or "
    "by words alone (json, md_json) for models that know neither."
)
_OUTPUT: Final = {"ge": 16, "le": 100_000}
_TEMPERATURE: Final = {"ge": 0, "le": 2}


@dataclass(frozen=True, slots=True)
class Fallback:
    """What is tried when a route asks: the table `[fallback]`."""

    order: Annotated[tuple[FallbackStage, ...], key("What is tried, in order, when a route asks.", _Stages)] = (
        "search", "model", "shortlist", "default",
    )  # fmt: skip
    default: Annotated[tuple[str, ...], key("The safe set when nothing else answered. [] means none.", BundleIds)] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """The probability that the best-ranked bundle is right, as a logistic function of the named features of a ranking's
    evidence, fitted on `labels` labelled steps. Every decision that rests on it has its `version`."""

    version: Annotated[str, key("What records call it.", Word)]
    labels: Annotated[
        int, key(f"Past steps it was fitted on, at least {MIN_LABELS}: fewer say too little.", ge=MIN_LABELS)
    ]
    bias: Annotated[float, key("The log-odds where all features are 0.", Weight)]
    weights: Annotated[
        tuple[tuple[str, float], ...],
        key("What each feature of a ranking adds to the log-odds.", dict[CalibrationFeature, Weight], default=...),
    ] = ()


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """What embeds the operator's words and a step's goal, beside the search by words: a `model` elsewhere, by litellm's
    name, reached at `base_url` with the key in `key_env` (None: as its provider does); or a `local` one, a folder or an
    installed package. `deadline_s`: what a step waits for its goal to be embedded."""

    model: Annotated[
        str | None, key("An embedding model as litellm names it: 'openai/text-embedding-3-small'.", ModelName)
    ] = None
    local: Annotated[
        str | None,
        key("A model on this machine: an absolute folder, or an installed package.", min_length=1, max_length=1_000),
    ] = None
    base_url: Annotated[str | None, _BASE_URL] = None
    key_env: Annotated[str | None, _KEY_ENV] = None
    deadline_s: Annotated[float, key("Seconds a step waits for its goal to be embedded.", gt=0, le=60)] = 1.0

    @property
    def env_names(self) -> frozenset[str]:
        """Environment variables that hold the model's keys."""
        if self.model is None:
            return frozenset()
        return frozenset({_key_name(self.model)} | ({self.key_env} if self.key_env else set()))


_HiddenOffer = Literal["deferred", "meta", "none"]


@dataclass(frozen=True, slots=True)
class OfferSettings:
    """How search may present a bundle, by the most that it can do: what is shown directly is harmless, or the right one
    with the probability that its effects ask for; a shortlist is never direct."""

    read: Annotated[Offer, key("What only reads, here or over the network.")] = "direct"
    write: Annotated[Offer, key("What writes.", _HiddenOffer)] = "deferred"
    execute: Annotated[Offer, key("What executes, and effects that nobody declared.", _HiddenOffer)] = "deferred"


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """When search settles a question by itself (see `core.search.sufficiency`)."""

    ADDED: ClassVar = ("max_shortlist", "offer")

    floor: Annotated[float, key("Relevance under which nothing fits a step.", ge=0, le=1)] = 0.25
    read_threshold: Annotated[
        float, key("How likely a bundle that only reads has to be right to be shown unasked.", ge=0, le=1)
    ] = 0.90
    write_threshold: Annotated[
        float, key("The same for a bundle that writes. What executes is never shown unasked.", ge=0, le=1)
    ] = 0.97
    max_union: Annotated[
        int, key("Bundles that only read and may be shown together when search is unsure.", ge=0, le=20)
    ] = 3
    max_union_tokens: Annotated[int, key("Tokens that their tools' definitions may come to.", ge=0, le=1_000_000)] = (
        4_000
    )
    calibration: Annotated[
        Calibration | None, key("Fitted on this deployment's runs. Without one, what ships with the package decides.")
    ] = None
    embeddings: Annotated[
        EmbeddingSettings | None, key("Ranks by likeness of meaning too. Without it, by words alone.")
    ] = None
    max_shortlist: Annotated[int, key("Bundles that are offered behind search when nothing is sure.", ge=0, le=50)] = 8
    offer: Annotated[
        OfferSettings, key("How search may present a bundle, by effect: direct, deferred, meta, or none.")
    ] = OfferSettings()


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model with its settings. `key_env` names the variable that holds its key (None: its provider's usual one);
    `base_url` is its address (None: its provider's)."""

    name: str
    mode: AnswerMode = "json_schema"
    base_url: str | None = None
    key_env: str | None = None
    max_output_tokens: int = 1_000
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """One model's own settings; None: as `[model]` says for all."""

    name: str
    mode: Annotated[AnswerMode | None, key("As [model] mode, for this model.")] = None
    base_url: Annotated[str | None, key("As [model] base_url, for this model.", Line)] = None
    key_env: Annotated[str | None, key("As [model] key_env, for this model.", EnvName)] = None
    max_output_tokens: Annotated[int | None, key("As [model] max_output_tokens.", **_OUTPUT)] = None
    temperature: Annotated[float | None, key("As [model] temperature, for this model.", **_TEMPERATURE)] = None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The models that may be asked. A key that is not in `options` applies to all of them."""

    names: Annotated[
        tuple[str, ...],
        key("Models to ask, best first, as litellm names them: 'openai/gpt-5-mini'. [] asks none.", _ModelNames),
    ] = ()
    deadline_s: Annotated[float, key("Seconds one question may take in all.", gt=0, le=300)] = 2.5
    max_picks: Annotated[int, key("Bundles one answer may add at most.", ge=1, le=20)] = 3
    mode: Annotated[AnswerMode, _MODE] = "json_schema"
    base_url: Annotated[str | None, _BASE_URL] = None
    key_env: Annotated[str | None, _KEY_ENV] = None
    max_output_tokens: Annotated[int, key("Tokens one answer may have. Models that think need more.", **_OUTPUT)] = (
        1_000
    )
    temperature: Annotated[float, key("Left out for models that do not take one.", **_TEMPERATURE)] = 0.0
    options: Annotated[
        tuple[ModelOptions, ...],
        key(
            'What one model has of its own: [model.options."openai/gpt-5-mini"].',
            dict[ModelName, ModelOptions],
            default=None,
            max_length=10,
        ),
    ] = ()

    @property
    def choices(self) -> tuple[ModelChoice, ...]:
        """The models in order, each with its settings."""
        own = {one.name: {k: v for k, v in asdict(one).items() if v is not None} for one in self.options}
        shared = ModelChoice("", self.mode, self.base_url, self.key_env, self.max_output_tokens, self.temperature)
        return tuple(replace(shared, **{"name": name, **own.get(name, {})}) for name in self.names)

    @property
    def env_names(self) -> frozenset[str]:
        """Environment variables that hold these models' keys: the named ones, and the providers' usual ones."""
        named = {choice.key_env for choice in self.choices if choice.key_env}
        return frozenset(named | {_key_name(choice.name) for choice in self.choices})


def _key_name(model: str) -> str:
    """Return the variable that litellm reads a provider's key from: `openai/gpt-5-mini` → `OPENAI_API_KEY`."""
    return f"{re.sub('[^A-Z0-9]', '_', model.partition('/')[0].upper())}_API_KEY"


@dataclass(frozen=True, slots=True)
class ActivationSettings:
    """What stays active in a run: the table `[activation]`."""

    sticky: Annotated[bool, key("Bundles a run has used stay active in later steps.")] = True
    max_tools: Annotated[int, key("Tools that may be active; the least recently used go first.", ge=0, le=1000)] = 24


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Bounds on calls and results. The last four are the budget of a step (see `core.decide.budgets`)."""

    recent_steps: Annotated[int, key("Earlier steps that search and the model may see.", ge=0, le=100)] = 5
    call_timeout_s: Annotated[float, key("Seconds one tool call may take.", gt=0, le=3600)] = 60.0
    max_result_chars: Annotated[
        int, key("Characters of a result the agent sees; the rest is stored.", ge=100, le=10_000_000)
    ] = 12_000
    max_result_bytes: Annotated[int, key("Bytes read of one result at all.", ge=1024, le=1024**3)] = 8 * 1024 * 1024
    max_inline_bytes: Annotated[
        int,
        key("An image or sound up to this size goes to MCP clients as such, a larger one as a link.", ge=0, le=700_000),
    ] = 500_000
    max_argument_bytes: Annotated[int, key("Bytes of arguments one call may carry.", ge=1024, le=64 * 1024**2)] = (
        1024 * 1024
    )
    max_concurrent_calls: Annotated[int, key("Calls under way at once.", ge=1, le=10_000)] = 32
    calls_per_step: Annotated[int, key("Calls that may be made at one step.", ge=1, le=1_000_000_000)] = 2_000
    result_bytes_per_step: Annotated[
        int, key("Bytes that the results of one step may come to, as they came.", ge=1, le=1024**4)
    ] = 1024**3
    call_seconds_per_step: Annotated[
        float, key("Seconds that the calls of one step may take, added up.", gt=0, le=31_536_000)
    ] = 7_200.0
    repeated_calls: Annotated[
        int,
        key(
            "Calls in a row that only repeat one of the last 8, answer and all, before they stop.",
            ge=1,
            le=1_000_000_000,
        ),
    ] = 50
    calls_per_run: Annotated[int | None, key("Calls that may be made in one run.", ge=1, le=1_000_000_000)] = None
    result_bytes_per_run: Annotated[
        int | None, key("Bytes that the results of one run may come to, as they came.", ge=1, le=1024**5)
    ] = None
    call_seconds_per_run: Annotated[
        float | None, key("Seconds that the calls of one run may take, added up.", gt=0, le=31_536_000)
    ] = None
    calls_per_tree: Annotated[
        int | None, key("Calls that may be made in a run and all runs below it (sub-agents).", ge=1, le=1_000_000_000)
    ] = None
    result_bytes_per_tree: Annotated[
        int | None,
        key("Bytes that the results of a run and all runs below it may come to, as they came.", ge=1, le=1024**5),
    ] = None
    call_seconds_per_tree: Annotated[
        float | None,
        key("Seconds that the calls of a run and all runs below it may take, added up.", gt=0, le=31_536_000),
    ] = None

    code_seconds: Annotated[
        float, key('Seconds that an agent\'s program may compute (`mode = "code"`).', gt=0, le=600)
    ] = 10.0
    code_timeout_s: Annotated[float, key("Seconds that a program may take with its calls.", gt=0, le=3600)] = 120.0
    code_memory_mb: Annotated[int, key("Megabytes of memory that a program may use.", ge=1, le=4096)] = 128
    code_calls: Annotated[int, key("Calls that one program may make.", ge=1, le=100_000)] = 200

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

    durability: Annotated[
        Durability, key("'process' survives a killed process, 'disk' also a power failure (slower).")
    ] = "process"
    redact_env: Annotated[tuple[str, ...], key("Further variables whose values are secrets.", EnvNames)] = ()
    diagnostics: Annotated[Literal["debug", "info", "warning", "error"], key("How much the router says on stderr.")] = (
        "warning"
    )


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """What shows that somebody cut or took away recorded runs: the table `[records]`."""

    heads: Annotated[
        str | None, key("A folder in which the head of each run is kept. With a key: by default beside the runs.", Line)
    ] = None
    key: Annotated[str | None, _SIGNING_KEY] = None


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How long look-ups hold: the table `[cache]`."""

    capabilities_ttl_s: Annotated[float, key("Seconds a look-up of variables and programs holds.", ge=0, le=3600)] = (
        30.0
    )
    answers_ttl_s: Annotated[
        float,
        key("Seconds a model's answer is used again for the same question. 0 asks every time.", ge=0, le=31_536_000),
    ] = 3_600.0
    answers: Annotated[
        Literal["memory", "index"], key("Where answers are kept: in this process, or in the index beside the runs too.")
    ] = "memory"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What `bundle-router serve` is held to: the table `[service]`."""

    max_body_bytes: Annotated[int, key("Bytes one request may carry.", ge=1024, le=64 * 1024**2)] = 4 * 1024**2
    body_s: Annotated[float, key("Seconds a request's body may take to arrive.", gt=0, le=3600)] = 15.0
    max_requests: Annotated[
        int, key("Requests under way at once, listeners included; what comes on top gets 503.", ge=1, le=100_000)
    ] = 1_024
    request_s: Annotated[float, key("Seconds one request of the decision API may take.", gt=0, le=86_400)] = 600.0
    idle_run_s: Annotated[
        float, key("Seconds after which a run that nobody asks for is closed.", gt=0, le=31_536_000)
    ] = 3_600.0
    traces: Annotated[
        str | None,
        key("Where spans are sent (OTLP over HTTP): 'http://127.0.0.1:4318/v1/traces'. Left out: nowhere.", Line),
    ] = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How the router itself behaves."""

    ADDED: ClassVar[tuple[str, ...]] = ("records", "service")

    fallback: Annotated[Fallback, key("What happens when a route asks.", default=None)] = Fallback()
    search: Annotated[SearchSettings, key("When search settles a question by itself.", default=None)] = SearchSettings()
    model: Annotated[ModelSettings, key("The router's own model.", default=None)] = ModelSettings()
    activation: Annotated[ActivationSettings, key("What stays active in a run.", default=None)] = ActivationSettings()
    limits: Annotated[CallLimits, key("Bounds on calls and results.", default=None)] = CallLimits()
    records: Annotated[RecordSettings, key("Heads of runs, kept.", default=None)] = RecordSettings()
    log: Annotated[LogSettings, key("Records and diagnostics.", default=None)] = LogSettings()
    cache: Annotated[CacheSettings, key("How long look-ups hold.", default=None)] = CacheSettings()
    service: Annotated[ServiceSettings, key("Bounds of the service.", default=None)] = ServiceSettings()
