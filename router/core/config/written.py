"""The written form: exactly what each config file may say. The first of the two stages, and the source of the schemas.

Rules:
1. Unknown keys are refused, and nothing is coerced: `"yes"` is not true, `"5"` is not a number.
2. A key that is absent is None here or its documented default; what follows from other keys is settled in `resolve`.
3. Every key carries the sentence that editors show. Bounds stand here and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from router.core.catalog import MIN_LABELS, AnswerMode, Durability, FallbackStage, Transport
from router.core.models import BUNDLE_ID, SERVER_NAME, BinaryRule, Effect, Mode, Trust


class Form(BaseModel):
    """Base of the written forms. TOML has types, so nothing needs coercing; only the files read are compiled."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


def _needs_one_of(*keys: str) -> JsonDict:
    """What stage 2 asks for, said for editors as well: that one of the keys is there."""
    return {"anyOf": [{"required": [key]} for key in keys]}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _bundle_id(value: str) -> str:
    if not BUNDLE_ID.fullmatch(value) or len(value) > 128:
        raise ValueError(f"{value[:80]!r} is not a bundle id: lower case words joined by dots, such as 'repo.readonly'")
    return value


def _server_name(value: str) -> str:
    if not SERVER_NAME.fullmatch(value):
        raise ValueError(f"{value[:80]!r} is not a server name: lower case letters, digits, '-' and '_', at most 64")
    return value


def _env_name(value: str) -> str:
    if not value.replace("_", "a").isalnum() or value[:1].isdigit() or not value.isascii():
        raise ValueError(f"{value[:80]!r} is not the name of an environment variable")
    return value


def _without_repetition(value: list[str]) -> list[str]:
    if len(set(value)) == len(value):
        return value
    seen: set[str] = set()
    for index, item in enumerate(value):
        if item in seen:
            raise PydanticCustomError("repeated", "{item} is listed twice", {"item": repr(item[:80]), "index": index})
        seen.add(item)
    return value


Line = Annotated[str, Field(min_length=1, max_length=2000)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
_ONCE: Final[JsonDict] = {"uniqueItems": True}
_IS_PATTERN: Final[JsonDict] = {"pattern": r"^[^!\[\]{}|][^\[\]{}|]*$"}
Words = Annotated[list[Word], Field(max_length=1000, json_schema_extra=_ONCE), AfterValidator(_without_repetition)]
BundleId = Annotated[str, AfterValidator(_bundle_id)]
BundleIds = Annotated[list[BundleId], Field(max_length=1000), AfterValidator(_without_repetition)]
ServerName = Annotated[str, AfterValidator(_server_name)]
EnvName = Annotated[str, Field(max_length=200), AfterValidator(_env_name)]
EnvNames = Annotated[list[EnvName], Field(max_length=100), AfterValidator(_without_repetition)]
_Pattern = Annotated[str, Field(min_length=1, max_length=200, json_schema_extra=_IS_PATTERN)]
_NameOrNames = _Pattern | Annotated[list[_Pattern], Field(min_length=1, max_length=100, json_schema_extra=_ONCE)]
Names = Annotated[
    list[Word],
    Field(min_length=1, max_length=100),
    AfterValidator(_without_repetition),
    BeforeValidator(_as_list, json_schema_input_type=_NameOrNames),
]
"""One name or glob, or a list of them."""
Effects = Annotated[list[Effect], Field(min_length=1, max_length=4), AfterValidator(_without_repetition)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]


# --- servers.toml --------------------------------------------------------------------------------------------------


class WrittenServer(Form):
    transport: Transport = Field(
        default="streamable-http",
        description="How to reach it: over HTTP, as a child process (stdio), over the old HTTP+SSE, or local: "
        "tools that come with the router.",
    )
    trust: Trust = Field(
        default="untrusted",
        description="'trusted' only if you would run this server's text past your agent unread. Untrusted servers are "
        "reached through meta-tools, and bundles name their tools one by one.",
    )
    enabled: bool = Field(default=True, description="false takes all its tools away without deleting the entry.")
    url: Line | None = Field(default=None, description="Where it listens. https, or http on this machine only.")
    command: Line | None = Field(default=None, description="stdio: the program to start.")
    args: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=200)] | None = Field(
        default=None, description="stdio: its arguments. Secrets do not belong here: other users can read them."
    )
    headers: dict[Word, Line] | None = Field(
        default=None, description="HTTP headers. Secrets only as ${ENV_NAME}: 'Bearer ${GITHUB_TOKEN}'."
    )
    env: dict[EnvName, Annotated[str, Field(max_length=4096)]] | None = Field(
        default=None, description="stdio: its environment. Secrets only as ${ENV_NAME}."
    )
    include: Annotated[Words, Field(min_length=1)] | None = Field(
        default=None, description="Only these of its tools exist for us (names or globs)."
    )
    exclude: Words = Field(default_factory=list, description="These of its tools do not exist for us (names or globs).")
    legacy: bool = Field(default=False, description="Must be true for transport 'sse', which MCP has given up.")
    volatile: Words = Field(
        default_factory=list, description="Card fields that change at every start and are left out of pins."
    )
    ttl_s: float | None = Field(
        default=None, ge=0, le=86_400, allow_inf_nan=False, description="Seconds its tool list is kept."
    )
    timeout_s: float | None = Field(
        default=None, gt=0, le=3600, allow_inf_nan=False, description="Seconds one call may take."
    )


class ServersFile(Form):
    """Where tools come from."""

    servers: dict[ServerName, WrittenServer] = Field(default_factory=dict, description="One table per server.")


# --- bundles.toml --------------------------------------------------------------------------------------------------


class WrittenRequires(Form):
    env: EnvNames = Field(default_factory=list, description="Environment variables that must be set.")
    binary: Words = Field(default_factory=list, description="Programs that must be on the path.")


class WrittenBundle(Form):
    model_config = ConfigDict(
        json_schema_extra={**_needs_one_of("tools", "bundles"), "dependencies": {"tools": ["effects"]}}
    )

    description: Line = Field(
        description="In your words: what it is for. The router's model reads this, and only this."
    )
    avoid: Annotated[str, Field(max_length=2000)] = Field(default="", description="When not to pick it.")
    examples: Annotated[list[Line], Field(max_length=100)] = Field(
        default_factory=list, description="Intents it is right for, as people write them."
    )
    tools: Words = Field(
        default_factory=list, description="'server.tool', or a glob 'server.get_*' where the server is trusted."
    )
    bundles: BundleIds = Field(
        default_factory=list, description="Bundles this one is made of; their tools come with it."
    )
    mode: Mode | None = Field(
        default=None,
        description="How agents see its tools: each one (direct, the default), by name only until asked for "
        "(deferred), or behind meta-tools (meta, which untrusted servers need and get by default).",
    )
    effects: Effects | None = Field(
        default=None,
        description="What its tools can do. Policies rest on it, so a bundle with tools of its own must say it.",
    )
    requires: WrittenRequires = Field(
        default_factory=WrittenRequires, description="What must be present on this machine, or the bundle is left out."
    )
    companions: Words = Field(
        default_factory=list, description="Tools ('server.tool') that must come along to make sense."
    )
    always: bool = Field(default=False, description="true: every step that policy permits it to gets it.")
    selectable: bool = Field(default=True, description="false: search and the model may not pick it; routes may.")
    skill: Annotated[str, Field(max_length=400)] | None = Field(
        default=None, description="A SKILL.md under bundles/ whose text goes with it."
    )
    max_tokens: Positive | None = Field(
        default=None,
        description="Tokens of definitions it shows at most: its companions, and what search ranks best for the step. "
        "The rest is deferred. `check` warns when not all of them fit.",
    )
    aliases: BundleIds = Field(default_factory=list, description="Ids it had before.")
    enabled: bool = Field(default=True, description="false takes it out of use without deleting the entry.")


class BundlesFile(Form):
    """Named sets of tools."""

    bundles: dict[BundleId, WrittenBundle] = Field(default_factory=dict, description="One table per bundle.")


# --- routes.toml ---------------------------------------------------------------------------------------------------


class _Addressed(Form):
    name: Word = Field(description="What the log calls this row. Unique in the file.")
    workflow: Names | None = Field(default=None, description="Names or globs; leave out for any.")
    role: Names | None = Field(default=None, description="Names or globs; leave out for any.")
    step: Names | None = Field(default=None, description="Names or globs; leave out for any.")


class WrittenRoute(_Addressed):
    model_config = ConfigDict(json_schema_extra=_needs_one_of("bundles", "ask"))

    bundles: Words | None = Field(default=None, description="What the step gets, in this order. [] gives it nothing.")
    ask: Annotated[Words, Field(min_length=1)] | None = Field(
        default=None, description="Bundles (ids or globs) that search and the model may add to those."
    )


class RoutesFile(Form):
    """Which step gets which bundles. The first row that matches wins."""

    routes: list[WrittenRoute] = Field(default_factory=list, description="Rows in order.")


# --- policy.toml ---------------------------------------------------------------------------------------------------


class WrittenPolicy(_Addressed):
    model_config = ConfigDict(json_schema_extra=_needs_one_of("allow", "deny", "min_trust", "effects"))

    allow: Words | None = Field(
        default=None,
        json_schema_extra={"minItems": 1},
        description="What may be seen at most: 'bundle:docs.*', 'tool:docs.fetch'. Absent: only narrows.",
    )
    deny: Words = Field(
        default_factory=list, description="What may never be seen. Deny beats allow, whatever the order."
    )
    min_trust: Trust | None = Field(default=None, description="'trusted' keeps tools of untrusted servers out.")
    effects: Effects | None = Field(default=None, description="Only bundles whose effects are all in this list.")


class WrittenDocs(Form):
    hosts: Words = Field(default_factory=list, description="Hosts docs.fetch may read from. Nothing else is reachable.")


class WrittenRepo(Form):
    hard_links: Literal["allow", "refuse"] = Field(
        default="allow", description="'refuse': files with more than one name are not read (they may live outside)."
    )


class PolicyFile(Form):
    """Who may see what. All rows that match apply: denials unite, allowances intersect."""

    policies: list[WrittenPolicy] = Field(default_factory=list, description="Rows; order does not matter.")
    docs: WrittenDocs = Field(default=WrittenDocs(), description="Limits of the docs tools.")
    repo: WrittenRepo = Field(default=WrittenRepo(), description="Limits of the repo tools.")
    binaries: list[BinaryRule] = Field(default_factory=list, description="Programs workspace.exec may start, and how.")


# --- router.toml: absent keys stay unset, so that two files merge key by key ---------------------------------------


class WrittenFallback(Form):
    order: Annotated[list[FallbackStage], Field(max_length=3), AfterValidator(_without_repetition)] = Field(
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
    names: Annotated[list[ModelName], Field(max_length=10), AfterValidator(_without_repetition)] = Field(
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
    max_argument_bytes: int = Field(
        default=1024 * 1024, ge=1024, le=64 * 1024**2, description="Bytes of arguments one call may carry."
    )
    max_concurrent_calls: int = Field(default=32, ge=1, le=10_000, description="Calls under way at once.")


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


FORMS: Final[dict[str, type[Form]]] = {
    "servers.toml": ServersFile,
    "bundles.toml": BundlesFile,
    "routes.toml": RoutesFile,
    "policy.toml": PolicyFile,
    "router.toml": RouterFile,
}
