"""The values that cross the boundaries: steps in, decisions out, and what tools take and return.

Rules:
1. Everything here is immutable. A value that was recorded can't change after it was recorded.
2. Inputs from outside (`Step`) are pydantic models that refuse unknown keys; values made inside are frozen dataclasses.
3. The closed lists (`REASONS`, `CODES`, `SOURCES`, `FAILURES`) are a contract: the same words stand in the log,
   on the command line, in error text and on the review page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from router.core.search.evidence import Evidence

Source = Literal["mapping", "search", "model", "default", "none"]
Reason = Literal["mapped", "always", "sticky", "inherited", "search", "model", "model_cached", "union", "default"]
Code = Literal[
    "unknown_bundle",
    "disabled",
    "policy_denied",
    "not_allowed",
    "trust_too_low",
    "effect_not_allowed",
    "allowlist_required",
    "capability_missing",
    "pin_drift",
    "server_unavailable",
    "not_mapped",
    "below_floor",
    "not_selected",
    "over_budget",
    "evicted",
]
Failure = Literal[
    "timeout",
    "rate_limited",
    "upstream_error",
    "auth",
    "bad_request",
    "context_window",
    "invalid_output",
    "truncated",
    "refused",
    "circuit_open",
    "not_ready",
    "internal",
]
Hearing = Literal["used"] | Failure
"""What became of an embedder that was asked: its vector was used, or why there is none."""
Verdict = Literal["enough", "union", "ambiguous", "novel"]
Outcome = Literal[
    "ok", "tool_error", "denied", "invalid_arguments", "timeout", "unavailable", "busy", "budget", "cancelled"
]
Trust = Literal["untrusted", "trusted"]
Effect = Literal["read", "write", "exec", "network"]
Mode = Literal["direct", "deferred", "meta"]

SOURCES: Final[tuple[Source, ...]] = get_args(Source)
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
CODES: Final[tuple[Code, ...]] = get_args(Code)
"""Why a bundle or tool is not shown, in the order the tests are made: the first that fails is the one reported."""
FAILURES: Final[tuple[Failure, ...]] = get_args(Failure)
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
EFFECTS: Final[tuple[Effect, ...]] = get_args(Effect)

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
BUNDLE_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*)*")
SERVER_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
WHOLE_SERVER: Final = "*"
"""Stands for every tool of a server in `Facts.drifted`. No tool can have this name."""

MAX_GOAL: Final = 32_768
"""Characters of a goal or of one constraint. Longer intents are refused: they are documents, not intents."""
MAX_ITEMS: Final = 100


class Frozen(BaseModel):
    """Base of the pydantic values: immutable, and unknown keys are refused. Errors don't repeat what was given: it may
    hold secrets, and errors end up in logs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, hide_input_in_errors=True)


# --- what the engine asks ------------------------------------------------------------------------------------------


class StepPolicy(Frozen):
    """What one step may have at most. It only ever narrows what `policy.toml` permits.

    `allow` and `deny` hold patterns as in `policy.toml`: `bundle:docs.*`, `tool:docs.fetch`, or a bare bundle glob.
    `allow=None` means "no narrowing"; an empty `allow` permits nothing. A name without globs has to be a bundle's (old
    ids count) or, with `tool:`, a tool's; `route()` refuses others, since a misspelt denial would permit. A glob may
    match nothing. At most 200 characters a pattern (see `router.core.steppolicy`).
    """

    allow: tuple[str, ...] | None = Field(default=None, max_length=1000)
    deny: tuple[str, ...] = Field(default=(), max_length=1000)
    trust: Trust | None = None

    @field_validator("allow", "deny")
    @classmethod
    def _patterns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for pattern in value or ():
            kind, colon, rest = pattern.partition(":")
            if not pattern.strip() or (colon and (kind not in ("bundle", "tool") or not rest)):
                raise ValueError(
                    f"{pattern!r} is not a pattern: write 'bundle:repo.*', 'tool:repo.read_file' or 'repo.*'"
                )
        return value


class Step(Frozen):
    """One routing request: where the workflow stands, what it wants, and how far it may go.

    `max_bundles`, `max_tools` and `max_tokens` bound what the decision exposes; what does not fit is left out as
    `over_budget`. `parent_run_id` makes this run a sub-agent of another: it never gets more than the parent's
    current step may have, and starts from the parent's activation when `inherit` is true.
    """

    run_id: str
    workflow: str = Field(min_length=1, max_length=200)
    role: str = Field(min_length=1, max_length=200)
    step: str = Field(min_length=1, max_length=200)
    goal: str = Field(default="", max_length=MAX_GOAL)
    constraints: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    policy: StepPolicy | None = None
    principal: str = Field(default="", max_length=200)
    parent_run_id: str | None = None
    inherit: bool = True
    max_bundles: int | None = Field(default=None, ge=0)
    max_tools: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=0)
    labels: Mapping[str, str] = Field(default_factory=dict, max_length=MAX_ITEMS)
    workspace: str | None = Field(default=None, max_length=4096)

    @field_validator("run_id", "parent_run_id")
    @classmethod
    def _run_id(cls, value: str | None) -> str | None:
        if value is not None and not RUN_ID.fullmatch(value):
            raise ValueError(f"{value!r} is not a run id: it must match {RUN_ID.pattern}")
        return value

    @field_validator("constraints")
    @classmethod
    def _constraints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(len(item) > MAX_GOAL for item in value):
            raise ValueError(f"a constraint is longer than {MAX_GOAL} characters")
        return value

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if any(len(name) > 200 or len(text) > 4096 for name, text in value.items()):
            raise ValueError("a label is too long (name 200 characters, value 4,096)")
        return value


# --- what the shell looked up --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """One ancestor's ceiling: where it stood and its step policy. A child is judged under all of them."""

    workflow: str
    role: str
    step: str
    policy: StepPolicy | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the shell looked up for one decision, recorded with it so that the decision can be taken again.

    `capabilities` names those present (`env:GITHUB_TOKEN`, `binary:git`); one that is not named is missing.
    `unavailable` holds `(server, why)` for servers that can't be used now; `drifted` holds `(server, tool)` pairs
    whose pin does not match, or `(server, "*")` for all of a server's tools. `grants` is the chain of ancestors'
    ceilings, nearest first. `revisions` holds `(name, revision)` of learned artifacts (index, memory, thresholds) that
    the decision rests on.
    """

    capabilities: frozenset[str] = frozenset()
    unavailable: tuple[tuple[str, str], ...] = ()
    drifted: tuple[tuple[str, str], ...] = ()
    grants: tuple[Grant, ...] = ()
    revisions: tuple[tuple[str, str], ...] = ()


# --- what is sticky ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A deferred tool (canonical name) that the run asked for: by search, by name or by calling it."""

    name: str
    place: int
    used: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundle of a run's activation. `used` is the sequence number of its last use, for least-recently-used order.

    `origin` is the reason that first brought it in, or the first that text in an intent had no hand in; `inherited`
    marks what came from the parent run and was not yet brought in by a step of this run (for what is there by trust:
    by its mapping). `place` numbers bundles and asked-for tools (`tools`, in their order) as the
    run came upon them: the array of tools is in this order, so that what comes later is appended.
    """

    id: str
    origin: Reason
    used: int
    inherited: bool = False
    place: int = 0
    tools: tuple[Asked, ...] = ()


@dataclass(frozen=True, slots=True)
class Activation:
    """The sticky set of a run, ordered by id so that equal sets have equal bytes."""

    entries: tuple[Entry, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.entries)


# --- what the router decides ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """A bundle the step may see. `evidence` says in words what the reason rests on."""

    id: str
    rank: int
    reason: Reason
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A bundle (with `tool`: one tool of a shown bundle) that the step may not see, and the first test it failed."""

    id: str
    code: Code
    detail: str = ""
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A permitted bundle that search or the model may pick, with its score where one was given."""

    id: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What one question to a model cost and gave. Holds the raw answer, so that replay needs no model."""

    name: str
    prompt_version: str = ""
    key: str = ""
    cached: bool = False
    attempts: int = 0
    failure: Failure | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    elapsed_ms: float = 0.0
    answer: str | None = None


NO_EVIDENCE: Final = Evidence()


@dataclass(frozen=True, slots=True)
class SearchUse:
    """What search found for one question and what was made of it. Recorded whoever answered in the end.

    `thresholds` is the version of what `verdict` rests on, `probability` that the best bundle is the right one (None:
    no calibration) and `threshold` what it was held against (None: a bundle like that is never shown by search alone).
    `ranked` holds the best candidates with their scores; under `cut` they are not plausible. `embeddings`: whether an
    embedder was `used`, or why not and words alone were ranked by (None: none is configured).
    """

    verdict: Verdict
    why: str
    thresholds: str
    probability: float | None = None
    threshold: float | None = None
    cut: float = 0.0
    evidence: Evidence = NO_EVIDENCE
    ranked: tuple[Candidate, ...] = ()
    embeddings: Hearing | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a selector said to a question: bundle ids in order of preference, and how it came to them.

    The core treats it as a wish: ids that are not candidates are dropped, whoever sent them.
    """

    ids: tuple[str, ...]
    source: Source
    reason: Reason
    justification: str = ""
    scores: tuple[Candidate, ...] = ()
    model: ModelUse | None = None
    dropped: tuple[tuple[str, Code], ...] = ()
    """Ids the selector itself left out, with the code to record (`below_floor`, `over_budget`)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a question: answered (`answer`), failed (`failure`), or nobody was there to ask (neither).

    Both: a model failed and search stands in for it, so the decision is degraded. `key` is the key of the question that
    was put, so that a replay knows whether it would be put again. `search` is what search found, if it was asked;
    `revisions` are those of the learned artifacts it used (see `Facts`).
    """

    key: str = ""
    answer: Answer | None = None
    failure: Failure | None = None
    model: ModelUse | None = None
    search: SearchUse | None = None
    revisions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much the step is shown: tools in the array and their tokens (cl100k_base where counted), against all of the
    catalog. What is deferred or behind meta-tools counts when it is asked for; see `router.core.exposure`."""

    tools: int
    tokens: int
    all_tools: int
    all_tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step may see, why, and why not the rest. Already in the run directory when you hold it.

    `bundle_ids` is ordered: what the step asked for first, sticky bundles last. `degraded` is true when a fallback
    was used because search or the model gave no usable answer.
    """

    bundles: tuple[Chosen, ...]
    left_out: tuple[LeftOut, ...]
    source: Source
    degraded: bool
    justification: str
    route: str | None
    candidates: tuple[Candidate, ...]
    before: Activation
    after: Activation
    evicted: tuple[str, ...]
    exposure: Exposure
    model: ModelUse | None = None
    search: SearchUse | None = None
    run_id: str = ""
    seq: int = -1
    decision_id: str = ""
    catalog_revision: str = ""
    input_digest: str = ""

    @property
    def bundle_ids(self) -> list[str]:
        return [chosen.id for chosen in self.bundles]


@dataclass(frozen=True, slots=True)
class RecentStep:
    """A step this run took before, as search and the model may see it."""

    role: str
    step: str
    goal: str
    bundle_ids: tuple[str, ...]


# --- local tools ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Data:
    """A JSON value (objects, arrays, numbers, strings, booleans, null)."""

    value: Any


@dataclass(frozen=True, slots=True)
class Media:
    """Bytes that become an artifact. `mime_type` is the tool's claim: recorded, not believed. `name` is for people."""

    data: bytes
    mime_type: str = ""
    name: str = ""


Block = Text | Data | Media


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a local tool returns. `failed` marks an error the agent should see (a failing test run, say)."""

    blocks: tuple[Block, ...]
    failed: bool = False


class BinaryOption(Frozen):
    """One option an allow-listed binary may be given: `name` alone, or with a value that fully matches `value`.

    `value=None`: a flag. `joined`: the value may come as `--name=value` (`-nvalue` for a one-letter option);
    `separate`: as the next argument, which then can't start with `-`. `path` keeps the value inside the workspace.
    After the flag `--`, where a form has it, only positionals may follow.
    """

    name: str = Field(pattern=r"^--?[A-Za-z0-9][A-Za-z0-9_.-]*$|^--$", max_length=100)
    value: str | None = Field(default=None, max_length=1000)
    joined: bool = True
    separate: bool = True
    path: bool = False


class BinaryForm(Frozen):
    """One permitted shape of a command line: fixed leading words, then options and positionals in any order.

    `words` must stand first and in order (`["-m", "pytest"]`, `["status"]`). `positionals` is a regular expression
    (google-re2, full match) for each remaining argument; absent means none may follow. Arguments that start with
    `-` are only ever options, and arguments that start with `@` (files of further arguments) are refused unless
    `at_files`. `paths` keeps positionals inside the workspace (what stands before `::`, as in pytest's node ids).
    """

    words: tuple[str, ...] = Field(default=(), max_length=50)
    options: tuple[BinaryOption, ...] = Field(default=(), max_length=200)
    positionals: str | None = Field(default=None, max_length=1000)
    max_positionals: int = Field(default=0, ge=0, le=1000)
    paths: bool = True
    at_files: bool = False


class BinaryRule(Frozen):
    """One binary that `workspace.exec` may start, the command lines it may be started with, and its limits.

    `path` is absolute, or `@python` for the interpreter that runs the router. Nothing else is looked up on `PATH`.
    `env` names variables passed on from the router (never those that make programs load or run something: `LD_*`,
    `PYTHON*`, `GIT_*` …); `set_env` holds fixed `NAME=value` pairs. `reads` names folders outside the workspace
    that it needs to read. `memory_bytes` counts one process's address space, `file_bytes` one file.
    `protect_git` keeps the workspace's `.git` read-only while it runs.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$")
    path: str = Field(pattern=r"^(/.*|@python)$", max_length=4096)
    forms: tuple[BinaryForm, ...] = Field(min_length=1, max_length=100)
    env: tuple[str, ...] = ()
    set_env: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    memory_bytes: int = Field(default=4 << 30, ge=64 << 20)
    file_bytes: int = Field(default=256 << 20, ge=0)
    max_processes: int = Field(default=256, ge=1, le=100_000)
    protect_git: bool = True

    @field_validator("set_env")
    @classmethod
    def _set_env(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pair in value:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=[^\x00]*", pair) or pair.startswith("LD_"):
                raise ValueError(f"{pair!r} is not an environment setting: write 'NAME=value' (LD_* is never set)")
        return value

    @field_validator("reads")
    @classmethod
    def _reads(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            parts = [part for part in path.split("/") if part not in ("", ".")]
            if not path.startswith("/") or not parts or ".." in parts:
                raise ValueError(f"{path!r} can't be read: write an absolute folder other than '/'")
        return value


class LocalSettings(Frozen):
    """What the config says about the first-party tools."""

    docs_hosts: tuple[str, ...] = ()
    binaries: tuple[BinaryRule, ...] = ()
    hard_links: Literal["allow", "refuse"] = "allow"


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a local tool is handed with its arguments.

    `workspace` is the absolute path of the root, and `within` the folder beneath it that this step's tools are confined
    to and that relative paths start from: relative, without `..`, and real, so that a symlink in it means that it was
    swapped since it was decided on. Tools open it anew at each call and hold the descriptor; they never join the two.
    `timeout_s` is what is left for the whole call; `max_bytes` bounds what the tool may return; `cancelled()` turns
    true when the caller has gone away. `protected` are absolute paths that no tool changes, also inside the workspace:
    the router's config and its runs. `hidden` are absolute paths of folders that no tool reads, lists, searches or
    writes; they are known by device and inode, so another name for one does not help.
    """

    workspace: str
    settings: LocalSettings
    timeout_s: float
    max_bytes: int
    cancelled: Callable[[], bool] = field(default=lambda: False)
    protected: tuple[str, ...] = ()
    within: str = "."
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalTool:
    """A first-party tool: a name without its server, the operator's description, arguments, and a function.

    `run(arguments, context)` is called in a worker thread with a validated instance of `arguments`. It raises
    `ToolFailure` for what the agent should see; any other exception is a programming error.
    """

    name: str
    description: str
    arguments: type[BaseModel]
    run: Callable[[Any, ToolContext], ToolOutput]
