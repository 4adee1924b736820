"""What router.toml may say. Absent keys stay unset, so that two files merge key by key."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from bundle_router.core.catalog import MIN_LABELS, AnswerMode, Durability, FallbackStage
from bundle_router.core.config.written.forms import (
    BundleIds,
    EnvName,
    EnvNames,
    Form,
    Positive,
    Word,
    without_repetition,
)


class WrittenFallback(Form):
    order: Annotated[list[FallbackStage], Field(max_length=3), AfterValidator(without_repetition)] = Field(
        default=["search", "model", "default"], description="What is tried, in order, when a route asks."
    )
    default: BundleIds = Field(
        default_factory=list, description="The safe set when nothing else answered. [] means none."
    )


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
FeatureName = Literal[
    "strength", "known", "coverage", "margin", "entropy", "agreement", "remembered", "relevance", "likeness"
]  # fmt: skip


ModelName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
BaseUrl = Annotated[str, Field(min_length=1, max_length=2000)]


class WrittenCalibration(Form):
    version: Word = Field(description="What records call it.")
    labels: Annotated[int, Field(ge=MIN_LABELS)] = Field(
        description=f"Past steps it was fitted on, at least {MIN_LABELS}: fewer say too little."
    )
    bias: Weight = Field(description="The log-odds where all features are 0.")
    weights: dict[FeatureName, Weight] = Field(description="What each feature of a ranking adds to the log-odds.")


class WrittenEmbeddings(Form):
    model: ModelName | None = Field(
        default=None, description="An embedding model as litellm names it: 'openai/text-embedding-3-small'."
    )
    local: Annotated[str, Field(min_length=1, max_length=1_000)] | None = Field(
        default=None, description="A model on this machine: an absolute folder, or an installed package."
    )
    base_url: BaseUrl | None = Field(
        default=None, description="Where an OpenAI-compatible server listens. Leave out for the provider's own."
    )
    key_env: EnvName | None = Field(
        default=None, description="The variable with the key. Leave out for the provider's own (OPENAI_API_KEY)."
    )
    deadline_s: float = Field(
        default=1.0, gt=0, le=60, allow_inf_nan=False, description="Seconds a step waits for its goal to be embedded."
    )


class WrittenSearch(Form):
    floor: Share = Field(default=0.25, description="Relevance under which nothing fits a step.")
    read_threshold: Share = Field(
        default=0.90, description="How likely a bundle that only reads has to be right to be shown unasked."
    )
    write_threshold: Share = Field(
        default=0.97, description="The same for a bundle that writes. What executes is never shown unasked."
    )
    max_union: int = Field(
        default=3, ge=0, le=20, description="Bundles that only read and may be shown together when search is unsure."
    )
    max_union_tokens: int = Field(
        default=4_000, ge=0, le=1_000_000, description="Tokens that their tools' definitions may come to."
    )
    calibration: WrittenCalibration | None = Field(
        default=None, description="Fitted on this deployment's runs. Without one a conservative rule decides."
    )
    embeddings: WrittenEmbeddings | None = Field(
        default=None, description="Ranks by likeness of meaning too. Without it, by words alone."
    )


OutputTokens = Annotated[int, Field(ge=16, le=100_000)]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]


class WrittenModelOptions(Form):
    mode: AnswerMode | None = Field(default=None, description="As [model] mode, for this model.")
    base_url: BaseUrl | None = Field(default=None, description="As [model] base_url, for this model.")
    key_env: EnvName | None = Field(default=None, description="As [model] key_env, for this model.")
    max_output_tokens: OutputTokens | None = Field(default=None, description="As [model] max_output_tokens.")
    temperature: Temperature | None = Field(default=None, description="As [model] temperature, for this model.")


class WrittenModel(Form):
    names: Annotated[list[ModelName], Field(max_length=10), AfterValidator(without_repetition)] = Field(
        default=[], description="Models to ask, best first, as litellm names them: 'openai/gpt-5-mini'. [] asks none."
    )
    deadline_s: float = Field(
        default=2.5, gt=0, le=300, allow_inf_nan=False, description="Seconds one question may take in all."
    )
    max_picks: int = Field(default=3, ge=1, le=20, description="Bundles one answer may add at most.")
    mode: AnswerMode = Field(
        default="json_schema",
        description="How the answer is held to its shape: by the provider (json_schema), as the arguments of a tool "
        "call (tools), or by words alone (json, md_json) for models that know neither.",
    )
    base_url: BaseUrl | None = Field(
        default=None, description="Where an OpenAI-compatible server listens. Leave out for the provider's own."
    )
    key_env: EnvName | None = Field(
        default=None, description="The variable with the key. Leave out for the provider's own (OPENAI_API_KEY)."
    )
    max_output_tokens: OutputTokens = Field(
        default=1_000, description="Tokens one answer may have. Models that think need more."
    )
    temperature: Temperature = Field(default=0.0, description="Left out for models that do not take one.")
    options: Annotated[dict[ModelName, WrittenModelOptions], Field(max_length=10)] = Field(
        default={}, description='What one model has of its own: [model.options."openai/gpt-5-mini"].'
    )


class WrittenActivation(Form):
    sticky: bool = Field(default=True, description="Bundles a run has used stay active in later steps.")
    max_tools: int = Field(
        default=24, ge=0, le=1000, description="Tools that may be active; the least recently used go first."
    )


class WrittenLimits(Form):
    recent_steps: int = Field(default=5, ge=0, le=100, description="Earlier steps that search and the model may see.")
    call_timeout_s: float = Field(
        default=60.0, gt=0, le=3600, allow_inf_nan=False, description="Seconds one tool call may take."
    )
    max_result_chars: int = Field(
        default=12_000, ge=100, le=10_000_000, description="Characters of a result the agent sees; the rest is stored."
    )
    max_result_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1024, le=1024**3, description="Bytes read of one result at all."
    )
    max_inline_bytes: int = Field(
        default=500_000,
        ge=0,
        le=700_000,
        description="An image or sound up to this size goes to MCP clients as such, a larger one as a link.",
    )
    max_argument_bytes: int = Field(
        default=1024 * 1024, ge=1024, le=64 * 1024**2, description="Bytes of arguments one call may carry."
    )
    max_concurrent_calls: int = Field(default=32, ge=1, le=10_000, description="Calls under way at once.")
    calls_per_step: Positive = Field(default=2_000, description="Calls that may be made at one step.")
    result_bytes_per_step: Annotated[int, Field(ge=1, le=1024**4)] = Field(
        default=1024**3, description="Bytes that the results of one step may come to, as they came."
    )
    call_seconds_per_step: float = Field(
        default=7_200.0,
        gt=0,
        le=31_536_000,
        allow_inf_nan=False,
        description="Seconds that the calls of one step may take, added up.",
    )
    repeated_calls: Positive = Field(
        default=50, description="Calls in a row that only repeat one of the last 8, answer and all, before they stop."
    )


class WrittenLog(Form):
    durability: Durability = Field(
        default="process", description="'process' survives a killed process, 'disk' also a power failure (slower)."
    )
    redact_env: EnvNames = Field(default_factory=list, description="Further variables whose values are secrets.")
    diagnostics: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="How much the router says on stderr."
    )


class WrittenCache(Form):
    capabilities_ttl_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds a look-up of variables and programs holds.",
    )
    answers_ttl_s: float = Field(
        default=3600.0,
        ge=0,
        le=31_536_000,
        allow_inf_nan=False,
        description="Seconds a model's answer is used again for the same question. 0 asks every time.",
    )
    answers: Literal["memory", "index"] = Field(
        default="memory", description="Where answers are kept: in this process, or in the index beside the runs too."
    )


class RouterFile(Form):
    """How the router itself behaves."""

    fallback: WrittenFallback = Field(default=WrittenFallback(), description="What happens when a route asks.")
    search: WrittenSearch = Field(default=WrittenSearch(), description="When search settles a question by itself.")
    model: WrittenModel = Field(default=WrittenModel(), description="The router's own model.")
    activation: WrittenActivation = Field(default=WrittenActivation(), description="What stays active in a run.")
    limits: WrittenLimits = Field(default=WrittenLimits(), description="Bounds on calls and results.")
    log: WrittenLog = Field(default=WrittenLog(), description="Records and diagnostics.")
    cache: WrittenCache = Field(default=WrittenCache(), description="How long look-ups hold.")
