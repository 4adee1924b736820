"""The values of requests and answers: the library's.

An answer's unknown fields are ignored and its unknown words are accepted, so that a newer service
can be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    """The most that one step may have; it only narrows what the service's policy permits.

    >>> from bundle_router_client import StepPolicy
    >>> StepPolicy(allow=["bundle:repo.*"]).allow
    ('bundle:repo.*',)
    """

    allow: tuple[str, ...] | None = None
    """Patterns of what the step may have; None: no narrowing; empty: nothing."""
    deny: tuple[str, ...] = ()
    """Patterns of what the step may not have; they beat `allow`."""
    trust: str | None = None
    """`trusted` keeps tools of untrusted servers out; None: no narrowing."""


class Step(Sent):
    """One routing request. The service checks its fields.

    Raises InvalidStep for a field that is misspelt or of another type.

    >>> from bundle_router_client import Step
    >>> step = Step(run_id="r-42", workflow="feature", role="editor", step="edit", max_tools=10)
    >>> step.to_json()["max_tools"]
    10
    """

    run_id: str
    """The step's run: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.

    The first step of an id begins the run.
    """
    workflow: str
    """The kind of work; routes and policies match by it."""
    role: str
    """Who does the step; routes and policies match by it."""
    step: str
    """The position in the workflow; routes and policies match by it."""
    goal: str = ""
    """What the step is to do, in words, for search and the model; a route that does not ask ignores
    it.
    """
    constraints: tuple[str, ...] = ()
    """What the step must keep to, one sentence each; used like the goal."""
    policy: StepPolicy | None = None
    """The most that this step may have; it only narrows what the config permits."""
    principal: str = ""
    """The person or service that the step is for: sessions, tokens, results and artifacts are
    separate for each. All steps of a run and of its sub-agents name the same one, or none, unless
    the config says `[runs] principals = "mixed"`.
    """
    parent_run_id: str | None = None
    """The run that this one is a sub-agent of; this one never gets more than that one may have."""
    inherit: StrictBool = True
    """Whether a sub-agent begins with its parent's activation."""
    max_bundles: Count | None = None
    """Bundles shown at most (None: no limit)."""
    max_tools: Count | None = None
    """Tools in the array at most (None: no limit)."""
    max_tokens: Count | None = None
    """Tokens of the array at most (None: no limit)."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Your own labels, recorded with the decision; they decide nothing."""
    workspace: str | None = None
    """The folder beneath the root that local tools may work in (None: the root)."""
    key: str = ""
    """Unique in the run: the same key again returns the recorded decision."""
    branch: str = ""
    """The branch of the run that this decision belongs to (empty: the default one)."""
    parent_decision_id: str | None = None
    """The decision that a branch begins at or, in a sub-agent's run, a decision of the parent that
    limits it.
    """
    fixed_list: StrictBool = False
    """Whether the agent reads its list of tools once, so that none joins it."""
    carries: tuple[str, ...] = ()
    """The taints of what the engine hands in with the goal and the messages (`untrusted`: a
    customer's mail). They only ever add to what the branch has seen.
    """
    hands_back: str = ""
    """`checked`, for a sub-agent: what it has seen is not passed to its parent, which gets its
    answer through the library's `Router.hand_back` alone. All steps of its run say so.
    """
    approvals: Literal["ask", "refuse"] = "ask"
    """What becomes of a call that would wait for somebody's word: `refuse` where nobody is there to
    answer.
    """

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values, without fields at their default, which an older service may
        not know.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


class AskedTool(Received):
    """One deferred tool that the run asked for."""

    name: str
    """Its canonical name, `server.tool`."""
    place: int
    """Its number among the bundles and tools that the run came upon, which orders the array."""
    used: int
    """The sequence number of its last use."""


class Entry(Received):
    """One bundle of a run's activation."""

    id: str
    """The bundle's id."""
    origin: str
    """The first reason that brought it in, or the first that text in an intent did not influence.
    """
    used: int
    """The sequence number of its last use: the least recently used goes first."""
    inherited: bool = False
    """Whether it is of the parent run, and no step of this run brought it in (for a trusted one: no
    mapping of this run).
    """
    place: int = 0
    """Its number among the bundles and tools that the run came upon: the array has this order, so
    that later ones are appended.
    """
    tools: tuple[AskedTool, ...] = ()
    """The deferred tools that the run asked for through it, in their order."""


class Activation(Received):
    """The sticky set of a run."""

    entries: tuple[Entry, ...] = ()
    """The bundles."""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.entries)


class Chosen(Received):
    """A bundle the step may see, and why."""

    id: str
    """The bundle's id."""
    rank: int
    """Its position among the chosen ones, from 1."""
    reason: str
    """The code that says why it is shown."""
    evidence: str = ""
    """What the reason rests on, in words."""
    mode: str | None = None
    """Set where the bundle is presented in another mode than its own: a bundle of a shortlist stays
    behind search.
    """


class LeftOut(Received):
    """A bundle (with `tool`: one tool of it) that the step may not see, and the code that says
    why.
    """

    id: str
    """The bundle's id."""
    code: str
    """The first test that it failed."""
    detail: str = ""
    """What failed, in words."""
    tool: str | None = None
    """The canonical name where it is one tool; None: the whole bundle."""


class WouldRefuse(Received):
    """A bundle or tool that a policy row with `enforce = false` would not have shown."""

    row: str
    """The name of the row."""
    id: str
    """The bundle's id."""
    tool: str | None = None
    """The canonical name where it is one tool; None: the whole bundle."""


class Candidate(Received):
    """A bundle that search or a model could have picked."""

    id: str
    """The bundle's id."""
    score: float | None = None
    """What search gave it; None where nothing ranked."""


class ModelUse(Received):
    """The cost and the answer of one question to a model."""

    name: str
    """The model, as litellm names it."""
    prompt_version: str = ""
    """The version of the prompt."""
    key: str = ""
    """The key that the answer is cached under."""
    cached: bool = False
    """Whether the answer came from the cache."""
    attempts: int = 0
    """Calls that were made."""
    failure: str | None = None
    """Why there is no answer; None where there is one."""
    input_tokens: int = 0
    """Tokens sent, over all attempts."""
    output_tokens: int = 0
    """Tokens received, over all attempts."""
    cost_usd: float = 0.0
    """US dollars, as far as the model's price is known."""
    elapsed_ms: float = 0.0
    """Milliseconds in all."""
    answer: str | None = None
    """The answer as the model gave it."""


class Exposure(Received):
    """How much the step is shown, beside the whole catalog."""

    tools: int
    """Tools in the array."""
    tokens: int
    """Tokens of their definitions (cl100k_base where counted)."""
    all_tools: int
    """All known tools."""
    all_tokens: int
    """Tokens of all known definitions."""


class Decision(Received):
    """What a step may see, why, and why not the rest.

    The service's records have it before you do.
    """

    bundles: tuple[Chosen, ...]
    """The bundles shown, each with its rank, its reason and the evidence."""
    left_out: tuple[LeftOut, ...]
    """Bundles and tools that are not shown, each with the first test it failed."""
    source: str
    """What decided it: `mapping`, `search`, `model`, `shortlist`, `default` or `none`."""
    degraded: bool
    """Whether a fallback was used because search or the model gave no usable answer."""
    justification: str
    """The reasons in a sentence."""
    route: str | None
    """The name of the route that matched, or None."""
    candidates: tuple[Candidate, ...]
    """The permitted bundles that search or the model could pick."""
    before: Activation
    """The activation before the step."""
    after: Activation
    """The activation after the step."""
    evicted: tuple[str, ...]
    """Ids of bundles that left the activation."""
    exposure: Exposure
    """How much the step is shown, beside everything there is."""
    model: ModelUse | None = None
    """The cost and the answer of the question to a model, if one was asked."""
    search: dict[str, object] | None = None
    """What search found, if it was asked; a JSON object."""
    would: tuple[WouldRefuse, ...] = ()
    """What policy rows with `enforce = false` would not have shown."""
    run_id: str = ""
    """The id of its run."""
    seq: int = -1
    """The number of its record in the run."""
    decision_id: str = ""
    """Its id, which `tools` and `call` take as `decision`."""
    catalog_revision: str = ""
    """The revision of the config that it was made under."""
    input_digest: str = ""
    """The digest of all inputs of the decision."""

    @property
    def bundle_ids(self) -> list[str]:
        """The ids of the bundles that are shown, in order."""
        return [chosen.id for chosen in self.bundles if chosen.reason != "shortlist"]

    @property
    def offered(self) -> list[str]:
        """The ids of the bundles that are offered behind search beside them, best first."""
        return [chosen.id for chosen in self.bundles if chosen.reason == "shortlist"]

    @property
    def evicted_tools(self) -> tuple[str, ...]:
        """The tools that left the array, because too many were asked for later."""
        return tuple(
            row.tool for row in self.left_out if row.code == "evicted" and row.tool is not None
        )


class ActiveTool(Received):
    """One tool the agent sees."""

    name: str
    """Its canonical name, `server.tool`."""
    exposed: str
    """The name that the model sees."""
    bundle: str
    """The bundle that it is shown for."""
    tokens: int
    """Tokens of its definition."""


class DeferredTool(Received):
    """One permitted tool that joins the array when it is asked for."""

    name: str
    """Its canonical name, `server.tool`."""
    exposed: str
    """The name that the model calls it by."""
    bundle: str
    """The bundle that it is permitted through."""
    tokens: int
    """Tokens of its definition."""
    definition: dict[str, Any] | None = None
    """Its definition in the provider's form; None if only the tool's name is known."""


class SkillText(Received):
    """Instructions that come with a shown bundle."""

    bundle: str
    """The bundle that brings it."""
    name: str
    """Its name."""
    description: str
    """What it is for."""
    tools: tuple[str, ...]
    """The exposed names of the permitted tools that it names."""
    text: str
    """The instructions."""


class Toolset(Received):
    """The array in the provider's form, and the guidance for the model."""

    tools: tuple[dict[str, object], ...]
    """The array, in the provider's form."""
    guidance: str
    """Text for the model; empty if every permitted tool is in the array, and there is one."""
    tokens: int
    """Tokens of the array (cl100k_base, OpenAI form)."""
    active: tuple[ActiveTool, ...]
    """The catalog's tools that are in the array."""
    cap: int
    """Maximum tools in the array that were asked for."""
    all_tokens: int
    """Tokens of an array with every tool of the catalog."""
    deferred: tuple[DeferredTool, ...] = ()
    """Permitted tools that join the array when asked for, with their definitions."""
    meta: tuple[str, ...] = ()
    """Canonical names of permitted tools that never join the array."""
    skills: tuple[SkillText, ...] = ()
    """Instructions of the shown bundles."""
    decision_id: str = ""
    """The decision that this is a view of."""
    held: tuple[str, ...] = ()
    """Canonical names of tools that a row of approvals may hold: shown as ever, this is for the
    engine.
    """
    digest: str = ""
    """Digest of the array and the guidance; unchanged while the model sees the same."""

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values, without `held` where it is empty."""
        return self.model_dump(mode="json", exclude=set() if self.held else {"held"})


class Artifact(Received):
    """A stored artifact."""

    uri: str
    """`artifact:sha256:<hex>`, the name that a model may pass as an argument."""
    sha256: str
    """The digest in hexadecimal."""
    mime_type: str
    """The type that the bytes have."""
    bytes: int
    """Their number."""
    claimed_type: str = ""
    """The type that the tool claims."""
    name: str = ""
    """The name that the tool gives it."""
    width: int | None = None
    """Pixels, where cheaply known."""
    height: int | None = None
    """Pixels, where cheaply known."""
    duration_s: float | None = None
    """Seconds, where cheaply known."""
    role: str = ""
    """What it is in a result: `media`, `embedded`, `full_result` or `program`."""


class RequiredRow(Received):
    """A row of policy that a question has to have answered."""

    name: str
    """The row's name."""
    persons: int
    """How many have to grant it."""


class Approval(Received):
    """A question about a call that waits for somebody's word, as it stood."""

    id: str
    """Its id, by which it is answered."""
    state: str
    """`waiting`, `granted`, `used`, `refused`, `withdrawn` or `expired`."""
    tool: str
    """The canonical name of the tool."""
    rows: tuple[RequiredRow, ...]
    """The rows of policy that have to be answered, and by how many persons."""
    binding: str
    """The digest of what an answer is bound to."""
    hidden: int
    """How many values of the arguments nobody is shown, since they are secrets."""
    answer_by: str
    """Until when it may be answered, in UTC."""
    use_by: str = ""
    """Until when its grant may be used; empty while it is not granted."""
    url: str = ""
    """The page where it is answered; empty where there is none."""


class Result(Received):
    """The result of a call. `text` is for the model, errors included.

    >>> from bundle_router_client import Result
    >>> Result(outcome="denied", text="no bundle of this step has it", code="not_mapped").ok
    False
    """

    outcome: str
    """`ok`, or how else the call ended."""
    text: str
    """The text for the model, errors included."""
    code: str = ""
    """The reason of an outcome other than `ok`: a denial's code, or the tool's own."""
    artifacts: tuple[Artifact, ...] = ()
    """Media and full results that were stored."""
    call_id: str = ""
    """The id of the call's record; empty where it has none."""
    decision_id: str = ""
    """The decision that the call was judged under."""
    tool: str = ""
    """The canonical name of the called tool."""
    elapsed_ms: float = 0.0
    """Milliseconds that the call took."""
    joined: tuple[str, ...] = ()
    """Deferred tools that joined the array: get the array again before the model's next turn."""
    cached_from: str = ""
    """The earlier call that this result was recorded for."""
    flags: tuple[str, ...] = ()
    """Observations about the result (`looks_like_error`: a failure that was reported as a success).
    """
    retryable: bool = False
    """Whether repeating the call may help and does no harm."""
    approval: Approval | None = None
    """The question that the call waits for (`awaiting_approval`); None where it does not wait."""

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values, without `approval` where there is none."""
        return self.model_dump(mode="json", exclude=set() if self.approval else {"approval"})

    @property
    def ok(self) -> bool:
        """Whether the tool did what it was asked."""
        return self.outcome == "ok"


class Writer(Received):
    """Another process that has a run open."""

    pid: int
    """Its process id on this machine, else 0."""
    name: str
    """Words for it, for people."""


class RunEnd(Received):
    """The outcome of closing a run.

    >>> from bundle_router_client import RunEnd
    >>> RunEnd(ended=True).others
    ()
    """

    ended: bool
    """Whether the run's end was written."""
    others: tuple[Writer, ...] = ()
    """The processes that still have the run open, so that it did not end."""
