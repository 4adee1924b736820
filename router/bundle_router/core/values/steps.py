"""The engine's request, and the facts that the shell looks up for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    field_validator,
)
from pydantic_core import PydanticKnownError

from bundle_router.core.values.words import (
    RUN_ID,
    RUN_ID_ADVICE,
    DriftCode,
    Trust,
    not_a_run_id,
)
from bundle_router.errors import InvalidStep, shorten

if TYPE_CHECKING:
    Words = Sequence[str]
else:
    Words = tuple[str, ...]


def _refuse_coercion(value: Any) -> Any:
    if isinstance(value, str | bytes | bool):
        raise PydanticKnownError("int_type")
    return value


Count = Annotated[int, Field(ge=0), BeforeValidator(_refuse_coercion)]
"""A number from 0 on; text and truth values are refused. 5.0 is whole, as in JSON Schema."""


class Frozen(BaseModel):
    """Base of the pydantic values: immutable, and unknown keys are refused.

    Errors don't repeat the input, which may hold secrets, since errors are logged. The validator is
    built with the first value.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, hide_input_in_errors=True, defer_build=True
    )


MAX_GOAL: Final = 32_768
"""Characters of a goal or of one constraint.

A longer text is a document, not an intent: it is cut, and says so.
"""
MAX_ITEMS: Final = 100
MAX_LABEL: Final = 200
MAX_LABEL_TEXT: Final = 4_096


class StepInput(Frozen):
    """Base of values that an engine's code makes.

    Errors are sentences; JSON is read as by `Frozen`. The validator is built with the class, so
    that `inspect` and `help` show the fields.
    """

    model_config = ConfigDict(defer_build=False)

    if not TYPE_CHECKING:  # type checkers derive a stricter one from the fields

        def __new__(cls, /, *positional: Any, **values: Any) -> Any:
            if positional:  # Python's own error would name the class of `__init__`
                first = next(iter(cls.model_fields))
                raise TypeError(
                    f"{cls.__name__}() takes its fields by name: {cls.__name__}({first}=...)"
                )
            return super().__new__(cls)

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as wrong:
                from bundle_router.core.values.form_errors import sentences

                raise InvalidStep(
                    f"{type(self).__name__}(…): {sentences(wrong, type(self))}"
                ) from None

        # pydantic's mark of an `__init__` that `model_validate` need not call: what reads JSON gets
        # a ValidationError with the place of each fault.
        __init__.__pydantic_base_init__ = True


def _is_pattern(text: str) -> bool:
    """Return whether the text has the form of a pattern of `allow` and `deny`."""
    kind, colon, name = text.partition(":")
    if not colon:
        return bool(text.strip())
    return kind in ("bundle", "tool") and bool(name)


_CUT_ROOM: Final = 2_000
"""Characters that are given up for a cut at a blank, so that no token or key is cut in two."""
_CUT_NOTE: Final = " [… cut here: {:,} more characters]"


def _cut(text: str) -> str:
    """Return the text, cut at a blank, with a note, if it is longer than `MAX_GOAL`."""
    if len(text) <= MAX_GOAL:
        return text
    most = MAX_GOAL - len(_CUT_NOTE.format(len(text)))
    blank = max(text.rfind(white, most - _CUT_ROOM, most) for white in " \n\t")
    kept = text[:blank] if blank > 0 else text[:most]
    return kept + _CUT_NOTE.format(len(text) - len(kept))


class StepPolicy(StepInput):
    """The most that one step may have. It only ever narrows what `policy.toml` permits.

    Patterns are those of `policy.toml`: `bundle:docs.*`, `tool:docs.fetch`, or a bare bundle glob;
    at most 200 characters each (see `bundle_router.core.decide.step_policy`). A name without globs
    has to be a bundle's (old ids count) or, with `tool:`, a tool's; `route()` refuses others, since
    a misspelt denial would permit. A glob may match nothing.

    >>> from bundle_router import StepPolicy
    >>> StepPolicy(allow=["bundle:repo.*"], deny=["tool:repo.ripgrep"]).deny
    ('tool:repo.ripgrep',)
    """

    allow: Words | None = Field(default=None, max_length=1000)
    """Patterns of what the step may have; None: no narrowing; empty: nothing."""
    deny: Words = Field(default=(), max_length=1000)
    """Patterns of what the step may not have; they beat `allow`."""
    trust: Trust | None = None
    """`trusted` keeps tools of untrusted servers out; None: no narrowing."""

    @field_validator("allow", "deny")
    @classmethod
    def _patterns(cls, value: Words | None) -> Words | None:
        for pattern in value or ():
            if not _is_pattern(pattern):
                forms = "'bundle:repo.*', 'tool:repo.read_file' or 'repo.*'"
                raise ValueError(f"{shorten(pattern, 200)!r} is not a pattern: write {forms}")
        return value


class Step(StepInput):
    """One routing request: the position in the workflow, the intent, and the limits.

    What `max_bundles`, `max_tools` or `max_tokens` keeps out is in the decision's `left_out`, as
    `over_budget`.

    Raises InvalidStep for a field that is misspelt or does not fit.

    >>> from bundle_router import Step
    >>> step = Step(run_id="r-42", workflow="feature", role="editor", step="edit", max_tools=10)
    >>> step.max_tools, step.goal
    (10, '')
    """

    run_id: str
    """The step's run: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.

    The first step of an id begins the run.
    """
    workflow: str = Field(min_length=1, max_length=200)
    """The kind of work; routes and policies match by it."""
    role: str = Field(min_length=1, max_length=200)
    """Who does the step; routes and policies match by it."""
    step: str = Field(min_length=1, max_length=200)
    """The position in the workflow; routes and policies match by it."""
    goal: str = ""
    """What the step is to do, in words, for search and the model; a route that does not ask ignores
    it. Over 32,768 characters it is cut, with a note at its end.
    """
    constraints: Words = Field(default=(), max_length=MAX_ITEMS)
    """What the step must keep to, one sentence each; used like the goal."""
    policy: StepPolicy | None = None
    """The most that this step may have; it only narrows what the config permits."""
    principal: str = Field(default="", max_length=200)
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
    labels: Mapping[str, str] = Field(default_factory=dict, max_length=MAX_ITEMS)
    """Your own labels, recorded with the decision; they decide nothing."""
    workspace: str | None = Field(default=None, max_length=4096)
    """The folder beneath the root that local tools may work in (None: the root)."""
    key: str = Field(default="", max_length=200)
    """Unique in the run: the same key again returns the recorded decision."""
    branch: str = Field(default="", max_length=200)
    """The branch of the run that this decision belongs to (empty: the default one)."""
    parent_decision_id: str | None = Field(default=None, max_length=300)
    """The decision that a branch begins at or, in a sub-agent's run, a decision of the parent that
    limits it.
    """
    fixed_list: StrictBool = False
    """Whether the agent reads its list of tools once, so that none joins it."""
    carries: Words = Field(default=(), max_length=16)
    """The taints of what the engine hands in with the goal and the messages (`untrusted`: a
    customer's mail). They only ever add to what the branch has seen.
    """
    hands_back: Literal["", "checked"] = ""
    """`checked`, for a sub-agent: what it has seen is not passed to its parent, which gets its
    answer through `Router.hand_back` alone. All steps of its run say so.
    """
    approvals: Literal["ask", "refuse"] = "ask"
    """What becomes of a call that would wait for somebody's word: `refuse` where nobody is there to
    answer.
    """

    @field_validator("run_id", "parent_run_id")
    @classmethod
    def _run_id(cls, value: str | None) -> str | None:
        if value is not None and not RUN_ID.fullmatch(value):
            raise ValueError(f"{not_a_run_id(value)}: {RUN_ID_ADVICE}")
        return value

    @field_validator("goal")
    @classmethod
    def _goal(cls, value: str) -> str:
        return _cut(value)

    @field_validator("constraints")
    @classmethod
    def _constraints(cls, value: Words) -> Words:
        return tuple(map(_cut, value))

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if any(len(name) > MAX_LABEL or len(text) > MAX_LABEL_TEXT for name, text in value.items()):
            raise ValueError("a label is too long (name 200 characters, value 4,096)")
        return value

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Step:
        """Return the step that `to_json` wrote.

        Raises pydantic's ValidationError for anything else.
        """
        return cls.model_validate(value)


class Address(tuple[str, ...]):
    """The address of a step, by which routes and policy rows match.

    It has one word for each part that `core.catalog.step_address` declares (workflow, role, step),
    in that order.
    """

    __slots__ = ()

    def __str__(self) -> str:
        """Return the words for people: `feature / reviewer / review`."""
        return " / ".join(filter(None, self))


@dataclass(frozen=True, slots=True)
class Grant:
    """One ancestor's ceiling. A child is judged under all of them."""

    address: Address
    """The address of the ancestor's step."""
    policy: StepPolicy | None = None
    """The policy of the ancestor's step, if it had one."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A tool that may not be used, and why."""

    server: str
    """Its server."""
    tool: str
    """Its name there; `"*"`: all of the server's."""
    code: DriftCode = "pin_drift"
    """The code that records it."""
    why: str = ""
    """The reason in words."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A taint that a branch of a run has seen, and where it came from first."""

    taint: str
    """`private`, `untrusted`, or a declared one."""
    tool: str
    """The canonical name of the tool that was called; `goal` for what the engine handed in."""
    seq: int
    """The record of that call in its run; the decision's, of what the engine handed in."""
    run: str = ""
    """The run of that record, where it is another one: a parent's, or a sub-run's."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that the shell looked up for one decision, recorded with it so that the decision
    can be replayed.
    """

    capabilities: frozenset[str] = frozenset()
    """Those that are present (`env:GITHUB_TOKEN`, `binary:git`); others are missing."""
    unavailable: tuple[tuple[str, str], ...] = ()
    """`(server, why)` for servers that can't be used now."""
    drifted: tuple[Drift, ...] = ()
    """The tools that are not as reviewed, or not there."""
    pending: tuple[str, ...] = ()
    """The unavailable servers whose first list is still awaited: a decision without them is
    degraded.
    """
    grants: tuple[Grant, ...] = ()
    """The ancestors' ceilings, nearest first."""
    revisions: tuple[tuple[str, str], ...] = ()
    """`(name, revision)` of the learned artifacts (index, memory, thresholds) that the decision
    rests on.
    """
    seen: tuple[Seen, ...] = ()
    """The taints that the step's branch has seen, where some policy row has `seen`; ordered by
    name.
    """
