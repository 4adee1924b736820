"""The values of requests and answers: the library's.

An answer's unknown fields are ignored and its unknown words are accepted, so that a newer service
can be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
)

from bundle_router_client.errors import InvalidStep

_Whole = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)
Count = Annotated[StrictInt, _Whole, Field(ge=0)]
"""A number from 0 on, as the library takes it: 5.0 is whole, as in JSON Schema."""


class Sent(BaseModel):
    """Base of requests: immutable, and misspelt keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    if not TYPE_CHECKING:

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as wrong:
                rows = wrong.errors(include_url=False, include_input=False)
                text = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in rows)
                advice = f"it takes {', '.join(type(self).model_fields)}"
                raise InvalidStep(f"{type(self).__name__}(…): {text} ({advice})") from None

        __init__.__pydantic_base_init__ = (
            True  # pydantic's mark of one that `model_validate` need not call
        )


class Received(BaseModel):
    """Base of answers."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values."""
        return self.model_dump(mode="json")


class StepPolicy(Sent):
    """The most that one step may have; it only narrows what the service's policy permits."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    trust: str | None = None


class Step(Sent):
    """One routing request.

    The library's `Step` says what each field means; the service checks them.
    """

    run_id: str
    workflow: str
    role: str
    step: str
    goal: str = ""
    constraints: tuple[str, ...] = ()
    policy: StepPolicy | None = None
    principal: str = ""
    parent_run_id: str | None = None
    inherit: StrictBool = True
    max_bundles: Count | None = None
    max_tools: Count | None = None
    max_tokens: Count | None = None
    labels: Mapping[str, str] = Field(default_factory=dict)
    workspace: str | None = None
    key: str = ""
    branch: str = ""
    parent_decision_id: str | None = None
    fixed_list: StrictBool = False

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values, without fields at their default, which an older service may
        not know.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


class AskedTool(Received):
    """One deferred tool that the run asked for."""

    name: str
    place: int
    used: int


class Entry(Received):
    """One bundle of a run's activation."""

    id: str
    origin: str
    used: int
    inherited: bool = False
    place: int = 0
    tools: tuple[AskedTool, ...] = ()


class Activation(Received):
    """The sticky set of a run."""

    entries: tuple[Entry, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.entries)


class Chosen(Received):
    """A bundle the step may see, and why."""

    id: str
    rank: int
    reason: str
    evidence: str = ""
    mode: str | None = None


class LeftOut(Received):
    """A bundle (with `tool`: one tool of it) that the step may not see, and the code that says
    why.
    """

    id: str
    code: str
    detail: str = ""
    tool: str | None = None


class Candidate(Received):
    """A bundle that search or a model could have picked."""

    id: str
    score: float | None = None


class ModelUse(Received):
    """The cost and the answer of one question to a model."""

    name: str
    prompt_version: str = ""
    key: str = ""
    cached: bool = False
    attempts: int = 0
    failure: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    elapsed_ms: float = 0.0
    answer: str | None = None


class Exposure(Received):
    """How much the step is shown, beside the whole catalog."""

    tools: int
    tokens: int
    all_tools: int
    all_tokens: int


class Decision(Received):
    """What a step may see, why, and why not the rest.

    The service's records have it before you do.
    """

    bundles: tuple[Chosen, ...]
    left_out: tuple[LeftOut, ...]
    source: str
    degraded: bool
    justification: str
    route: str | None
    candidates: tuple[Candidate, ...]
    before: Activation
    after: Activation
    evicted: tuple[str, ...]
    exposure: Exposure
    model: ModelUse | None = None
    search: dict[str, object] | None = None
    run_id: str = ""
    seq: int = -1
    decision_id: str = ""
    catalog_revision: str = ""
    input_digest: str = ""

    @property
    def bundle_ids(self) -> list[str]:
        """The bundles' ids, in order."""
        return [chosen.id for chosen in self.bundles]

    @property
    def evicted_tools(self) -> tuple[str, ...]:
        """The tools that left the array, because too many were asked for later."""
        return tuple(
            row.tool for row in self.left_out if row.code == "evicted" and row.tool is not None
        )


class ActiveTool(Received):
    """One tool the agent sees."""

    name: str
    exposed: str
    bundle: str
    tokens: int


class DeferredTool(Received):
    """One permitted tool that joins the array when it is asked for."""

    name: str
    exposed: str
    bundle: str
    tokens: int
    definition: dict[str, Any] | None = None


class SkillText(Received):
    """Instructions that come with a shown bundle."""

    bundle: str
    name: str
    description: str
    tools: tuple[str, ...]
    text: str


class Toolset(Received):
    """The array in the provider's form, and the guidance for the model."""

    tools: tuple[dict[str, object], ...]
    guidance: str
    tokens: int
    active: tuple[ActiveTool, ...]
    cap: int
    all_tokens: int
    deferred: tuple[DeferredTool, ...] = ()
    meta: tuple[str, ...] = ()
    skills: tuple[SkillText, ...] = ()
    decision_id: str = ""
    digest: str = ""


class Artifact(Received):
    """A stored artifact."""

    uri: str
    sha256: str
    mime_type: str
    bytes: int
    claimed_type: str = ""
    name: str = ""
    width: int | None = None
    height: int | None = None
    duration_s: float | None = None
    role: str = ""


class Result(Received):
    """The result of a call. `text` is for the model, errors included."""

    outcome: str
    text: str
    code: str = ""
    artifacts: tuple[Artifact, ...] = ()
    call_id: str = ""
    decision_id: str = ""
    tool: str = ""
    elapsed_ms: float = 0.0
    joined: tuple[str, ...] = ()
    cached_from: str = ""
    flags: tuple[str, ...] = ()
    retryable: bool = False

    @property
    def ok(self) -> bool:
        """Whether the tool did what it was asked."""
        return self.outcome == "ok"


class Writer(Received):
    """Another process that has a run open."""

    pid: int
    name: str


class RunEnd(Received):
    """The outcome of closing a run."""

    ended: bool
    others: tuple[Writer, ...] = ()
