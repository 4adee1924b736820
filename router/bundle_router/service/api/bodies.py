"""Bodies and queries of requests under `/v1`.

Unknown keys are refused, so none can name a process or an address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import AliasChoices, BeforeValidator, Field, create_model

from bundle_router.core.exposure.provider_forms import Format
from bundle_router.core.records.read_model import FACETS
from bundle_router.core.values import Step
from bundle_router.core.values.steps import Frozen

ToolName = Annotated[
    str,
    Field(min_length=1, max_length=300, validation_alias=AliasChoices("tool", "name")),
]
"""A tool's name in a body; `name` was its key before results, filters and bodies had one word."""
Narrowed = Annotated[str, Field(max_length=500)]
DecisionId = Annotated[str, Field(min_length=1, max_length=300)]
Flag = Annotated[bool, BeforeValidator({"true": True, "false": False}.get)]
"""A boolean in a query, spelled as in JSON; other words are refused."""
MAX_MESSAGES: Final = 10_000
KEY: Final = r'"[ !#-~]{1,200}"|[!#-~]([ !#-~]{0,198}[!#-~])?'
"""The header `Idempotency-Key`: visible characters, in quotes or not."""


class RouteBody(Step):
    """A step, and the agent's own history where it keeps one (OpenAI's or Anthropic's shape)."""

    messages: tuple[Mapping[str, Any], ...] | None = Field(default=None, max_length=MAX_MESSAGES)
    """The messages of the agent so far, from which a search or a model reads what it needs."""


def route_body(sent: bytes) -> type[Step]:
    """Return the model of a body of `/v1/route`: `Step` itself if no messages are sent, which is
    faster.
    """
    if b"messages" in sent or b"\\" in sent:
        return RouteBody
    return Step


def step_and_messages(body: Step, key: str) -> tuple[Step, Sequence[Mapping[str, Any]] | None]:
    """Return the step with the key of the request's header, if there is one, and the history sent
    with it.
    """
    if not isinstance(body, RouteBody):
        return body.model_copy(update={"key": key}) if key else body, None
    fields = {name: getattr(body, name) for name in Step.model_fields}
    return Step.model_construct(**{**fields, "key": key or body.key}), body.messages


class CallBody(Frozen):
    """A call of a tool."""

    tool: ToolName
    """The tool's canonical (`server.tool`) or exposed name."""
    arguments: Mapping[str, Any] | str = Field(default_factory=dict)
    """Its arguments, as an object or as JSON text."""
    decision: DecisionId | None = None
    """The open decision that the call is judged under; null: the newest of the run's default
    branch.
    """


class MissedBody(Frozen):
    """A name that the agent asked for and that the engine's framework refused by itself."""

    tool: ToolName
    """The name, as the agent wrote it."""
    decision: DecisionId | None = None
    """The open decision that it is recorded under; null: the newest of the run's default branch."""


class ToolsQuery(Frozen):
    """The parameters of a request for the tools of a run."""

    format: Format = "openai"
    native: Flag = False
    decision: DecisionId | None = None


class MediaQuery(Frozen):
    """The parameters of a request for an artifact as a part of a message."""

    format: Format = "openai"
    link: Flag = False
    decision: DecisionId | None = None


RunsQuery = create_model(  # type: ignore[call-overload] # its fields are words of a list
    "RunsQuery",
    __base__=Frozen,
    __doc__="The filters of a list of runs, as on the page of runs. An empty one lets all pass.",
    **dict.fromkeys((*FACETS, "q", "since", "until"), (Narrowed, "")),
    page=(Annotated[int, Field(ge=1, le=1_000_000)], 1),
)


class TimelineQuery(Frozen):
    """The first record of a run that is returned."""

    start: Annotated[int, Field(ge=0, le=2**31)] = 0


class EmptyQuery(Frozen):
    """No parameters."""


class FieldProblem(Frozen):
    """One thing wrong with a body or a query."""

    pointer: str
    """A JSON pointer to it."""
    detail: str
    """What is wrong."""


class Problem9457(Frozen):
    """Why a request was not carried out: problem details of RFC 9457 with our `code`, `advice` and
    `errors`.
    """

    type: str
    """`urn:bundle-router:problem:` and the code."""
    title: str
    """The code in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What is wrong, in a sentence."""
    code: str
    """One of the closed codes of HTTP."""
    advice: str = ""
    """What to do about it; empty: nothing is known."""
    errors: tuple[FieldProblem, ...] = ()
    """What is wrong with a body or a query, one by one."""
