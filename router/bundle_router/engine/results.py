"""The values of a call: as it was asked for, what judging it came to, as it began, and its
result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from bundle_router.core.records.call_records import CallStarted
from bundle_router.core.records.fold import KeyedCall
from bundle_router.core.results.shaping import Part
from bundle_router.core.servers.transport.pass_through import Client, ServerReply
from bundle_router.core.servers.transport.tool_servers import Scope
from bundle_router.core.values import Block, Outcome
from bundle_router.core.values.approvals import Approval
from bundle_router.core.values.artifacts import Artifact
from bundle_router.engine.arguments import MAX_NAME, Arguments
from bundle_router.engine.surface import RunState
from bundle_router.ports import Redactor

Joined = tuple[tuple[str, str], ...]
"""Tools that joined the array, each with the bundle that it was asked for through."""


Refusal = tuple[Outcome, str, str]
"""Why a call is refused: its outcome, the code, and the text for the agent."""


@dataclass(frozen=True, slots=True)
class CallTaints:
    """What the rows with `seen` say of one call, and what it brings in."""

    returns: tuple[str, ...] = ()
    """The taints that the branch takes on by it."""
    sends: tuple[str, ...] = ()
    """The sinks that its arguments go to."""
    would: tuple[str, ...] = ()
    """The rows with `enforce = false` that refuse it."""
    refusal: Refusal | None = None
    """Why a row refuses it; None where none does."""


NO_TAINTS: Final = CallTaints()


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call. Artifacts hold its media and its full text.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Route, fake_router, small_catalog
    >>> route = Route("all", bundles=("repo.readonly",))
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]}, routes=[route])
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> with fake_router(catalog, results={"repo.read_file": "# Hello"}) as router:
    ...     decision = router.route_sync(step)
    ...     result = router.call_sync("r-42", "repo.read_file", {"path": "README.md"})
    >>> result.outcome, result.text
    ('ok', '# Hello')
    """

    outcome: Outcome | Literal["awaiting_approval"]
    """`ok`, or how else the call ended; `awaiting_approval` where it did not begin: it waits for
    somebody's word.
    """
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
    parts: tuple[Part, ...] = ()
    """The text in pieces where the result contains a resource, for clients that take pieces; else
    empty.
    """
    cached_from: str = ""
    """The earlier call that this result was recorded for."""
    flags: tuple[str, ...] = ()
    """Observations about the result (`looks_like_error`: a failure that was reported as a
    success).
    """
    retryable: bool = False
    """Whether repeating the call may help and does no harm."""
    whole: tuple[Block, ...] | None = None
    """The unshaped result, where the call asked for it."""
    answer: ServerReply | None = None
    """The server's own answer, where the operator passes it on to the client that made the call."""
    approval: Approval | None = None
    """The question that the call waits for; None where it does not wait."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values, without the fields that are of use in this process alone
        (`parts`, `whole`, `answer`).
        """
        row = {name: getattr(self, name) for name in _PLAIN}
        return {
            **row,
            "artifacts": [asdict(artifact) for artifact in self.artifacts],
            **{n: list(row[n]) for n in _LISTS},
            **({"approval": self.approval.to_json()} if self.approval is not None else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Result:
        """Return the result that `to_json` wrote.

        Raises KeyError or TypeError for anything else.
        """
        row = {name: value[name] for name in _PLAIN} | {name: tuple(value[name]) for name in _LISTS}
        artifacts = tuple(Artifact(**fields) for fields in value["artifacts"])
        held = value.get("approval")
        approval = Approval.from_json(held) if held is not None else None
        return cls(**row, artifacts=artifacts, approval=approval)


_LISTS: Final = ("joined", "flags")
_PLAIN: Final = (
    "outcome",
    "text",
    "code",
    "call_id",
    "decision_id",
    "tool",
    "elapsed_ms",
    "cached_from",
    "retryable",
    *_LISTS,
)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call as it was requested.

    `via`: the meta-tool it came through. `joins`: whether a called deferred tool joins the array.
    `client`: who gets the server's own answer, where that is passed on. `key` makes the call happen
    once; `digest` identifies its contents. `whole`: keep the unshaped result. `asked_ns`: when it
    was requested, before its server was made ready. `approval`: the question about a held call that
    it goes on with; `join`: take up a question about the same call of another key. `asked_by`: the
    name of the token that calls.
    """

    name: str
    arguments: Arguments
    asked_ns: int
    via: str = ""
    joins: bool = True
    client: Client | None = None
    key: str = ""
    digest: str = ""
    whole: bool = False
    approval: str = ""
    join: bool = False
    asked_by: str = ""


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call that passed exposure, policy and validation, and whose `call.started` is on disk
    (`started`); before that it has no id. `joined` is how the array changed when it began.
    `attempt` counts from 1 for a call with a key. `ready_ms` is the time that making its server
    ready took before.
    """

    tool: str
    bundle: str
    request: CallRequest
    state: RunState
    scope: Scope
    started_ns: int
    joined: Joined = ()
    attempt: int = 1
    ready_ms: float = 0.0
    started: CallStarted | None = None

    @property
    def call_id(self) -> str:
        return self.started.call_id if self.started is not None else ""


class CallJudgement:
    """What judging a call came to: one of the classes below."""


@dataclass(frozen=True, slots=True)
class BegunCall(CallJudgement):
    """The call may be made, and its start is recorded."""

    call: AdmittedCall


@dataclass(frozen=True, slots=True)
class RefusedCall(CallJudgement):
    """The call may not be made, and its refusal is recorded."""

    result: Result


@dataclass(frozen=True, slots=True)
class KeyTaken(CallJudgement):
    """The key of the call is taken. Nothing was recorded."""

    call: KeyedCall
    """The last attempt at the call that has the key."""
    same_tool: bool
    """Whether that attempt was of the tool that is called now."""
    same_principal: bool
    """Whether that attempt was for the principal that the present call is for."""


@dataclass(frozen=True, slots=True)
class WaitingCall(CallJudgement):
    """The call waits for somebody's word. Nothing was recorded but the question."""

    result: Result


class OutdatedCall(CallJudgement):
    """The run was routed meanwhile, or the name means another tool now: judge the call again, under
    the present state. Nothing was recorded.
    """


def recordable_name(name: object) -> str:
    """Return a tool name that can be recorded, since an agent may ask for anything."""
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


MAX_LOOKED_AT: Final = 16 * MAX_NAME
"""Characters of a name in which secrets are looked for, before it is cut: half a secret is not
recognised as one.
"""


def called_name(redactor: Redactor, name: object) -> str:
    """Return the name of a tool that an agent asked for, bounded and without secrets.

    Done before anything takes the name apart: a record holds server and tool on their own, and
    half a secret is not recognised as one. `__` stands for a dot in the names that agents are
    shown.
    """
    text = name if isinstance(name, str) else recordable_name(name)
    head = text[:MAX_LOOKED_AT]
    clean = redactor.redact(head)
    dotted = clean.replace("__", ".")
    redacted = redactor.redact(dotted)
    if redacted != dotted:
        clean = redacted
    return recordable_name(clean)
