"""The records of `tool-calls.jsonl` as values and as JSON: calls, and requests that were passed on.

The rules are those of `decision_record`. `read_record` returns the value of any record of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from bundle_router.core.decide.budgets import Totals
from bundle_router.core.records.decision_record import DecisionRecord, Json
from bundle_router.core.records.field_types import FieldForm, checked, fields_of
from bundle_router.core.values import Outcome
from bundle_router.core.values.artifacts import Artifact
from bundle_router.core.values.canonical import flat_json

if TYPE_CHECKING:
    from bundle_router.core.records.approval_records import ApprovalRecord

CALL_SCHEMA: Final = "bundle-router.call/1"
_SHARED: Final = (
    "run_id",
    "call_id",
    "decision_id",
    "server",
    "arguments",
    "tool",
    "bundle",
    "via",
    "key",
    "branch",
    "attempt",
)
"""The fields that the start and the end of a call have with one value."""
_ENDING: Final = ("outcome", "code", "result")


@dataclass(frozen=True, slots=True)
class ApprovalUse:
    """An approval that a call used by its start."""

    id: str
    """The question that was granted, or the grant in advance."""
    n: int = 0
    """The number of the use of a grant in advance, from 1; absent for a question."""

    def to_json(self) -> Json:
        return {"id": self.id, "n": self.n} if self.n else {"id": self.id}


JoinedTool = tuple[str, str]
"""A tool that joined the array, after the bundle that it was asked for through."""


@dataclass(frozen=True, slots=True)
class ShapedSize:
    """How a result was shortened."""

    original_bytes: int
    """Bytes of the result as the server sent it."""
    kept_bytes: int
    """Bytes of what the model saw."""
    rule: str
    """The rules of shaping that changed it, joined by `+`; `as_is` where none did."""
    flags: tuple[str, ...] = ()
    """Observations about it: `looks_like_error`, where a result that is no error speaks of one."""

    @property
    def is_framed(self) -> bool:
        """Whether the model saw the result in the frame of what untrusted servers say."""
        return "framed" in self.rule.split("+")

    def to_json(self) -> Json:
        return flat_json(self) | {"flags": list(self.flags)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ShapedSize:
        return cls(
            row["original_bytes"], row["kept_bytes"], row["rule"], tuple(row.get("flags", ()))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallLine:
    """The fields of every record of a call."""

    type: ClassVar[str]

    run_id: str
    """The id of its run."""
    call_id: str
    """The call's id, which its start and its end share."""
    decision_id: str
    """The decision under which it was made."""
    server: str
    """The server that it went to; `router` for the router's own tools."""
    arguments: str
    """The arguments as JSON text, redacted; of a refused call's long ones size, digest and
    beginning.
    """
    time: str
    """When this was recorded, in UTC."""
    monotonic_ns: int = 0
    """Nanoseconds of the machine's monotonic clock, by which records of one process are timed."""
    seq: int = -1
    """The record's number in the run; -1 until it is written."""

    def _line(self) -> Json:
        return {
            "schema": CALL_SCHEMA,
            "type": self.type,
            "time": self.time,
            "monotonic_ns": self.monotonic_ns,
            "run_id": self.run_id,
            "call_id": self.call_id,
            "decision_id": self.decision_id,
            "server": self.server,
            "arguments": self.arguments,
        }

    @staticmethod
    def _line_from(record: Mapping[str, Any]) -> Json:
        return {
            **{name: record[name] for name in ("run_id", "call_id", "decision_id", "server")},
            "arguments": record.get("arguments") or "",
            "time": record.get("time", ""),
            "monotonic_ns": record.get("monotonic_ns", 0),
            "seq": record.get("seq", -1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolCall(_CallLine):
    """The fields of both records of a tool call."""

    tool: str
    """The tool's name at its server."""
    bundle: str = ""
    """The bundle that it was called through; empty for the router's own tools."""
    via: str = ""
    """The meta-tool that it came through, `missed` where a name was called that is not shown; empty
    for a direct call.
    """
    key: str = ""
    """The call's key; empty where the engine gave none."""
    branch: str = ""
    """The branch that the call named; empty where it named none."""
    attempt: int = 1
    """The number of the attempt with this key, from 1."""

    @property
    def name(self) -> str:
        """The tool's canonical name."""
        return f"{self.server}.{self.tool}" if self.tool else self.server

    def _call(self) -> Json:
        record = {**self._line(), "tool": self.tool, "bundle": self.bundle, "via": self.via}
        if self.key or self.branch or self.attempt != 1:
            record |= {
                name: value
                for name, value in flat_json(self, _SHARED[-3:]).items()
                if value not in ("", 1)
            }
        return record

    def shared(self) -> Json:
        """Return the fields that the start and the end of a call have with one value."""
        return flat_json(self, _SHARED)

    @classmethod
    def _call_from(cls, record: Mapping[str, Any]) -> Json:
        return {
            **cls._line_from(record),
            **{name: record.get(name) or "" for name in ("bundle", "via", "key", "branch")},
            "tool": record["tool"],
            "attempt": record.get("attempt", 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted(_ToolCall):
    """A call that passed every check and is about to be made."""

    type: ClassVar[str] = "call.started"

    writer: str = ""
    """The token of the process that makes it; empty without a key."""
    arguments_digest: str = ""
    """A digest of the arguments before redaction, keyed with the run's nonce, by which a second
    call with the key is compared; empty without a key.
    """
    returns: tuple[str, ...] = ()
    """The taints that the branch takes on by it, where some policy row has `seen`: of what the tool
    returns, and of the artifacts in its arguments.
    """
    sends: tuple[str, ...] = ()
    """The sinks that its arguments go to, where some policy row has `seen`."""
    would: tuple[str, ...] = ()
    """The rows with `enforce = false` that would have refused it, or held it."""
    approvals: tuple[ApprovalUse, ...] = ()
    """The approvals that lifted its hold, and are used by this start; absent where none had to."""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        record = self._call()
        if self.writer or self.arguments_digest:
            later = {"writer": self.writer, "arguments_digest": self.arguments_digest}
            record |= {name: value for name, value in later.items() if value}
        if self.returns or self.sends or self.would:
            record |= self._taints_json()
        if self.approvals:
            record["approvals"] = [use.to_json() for use in self.approvals]
        return record

    def _taints_json(self) -> Json:
        lists = {"returns": self.returns, "sends": self.sends, "would": self.would}
        return {name: list(words) for name, words in lists.items() if words}

    @classmethod
    @checked(lambda: LINE_FORMS[CallStarted.type]())
    def from_json(cls, record: Mapping[str, Any]) -> CallStarted:
        """Return the record of a line. Raises CorruptRun for another line."""
        uses = [ApprovalUse(row["id"], row.get("n", 0)) for row in record.get("approvals") or ()]
        return cls(
            **cls._call_from(record),
            writer=record.get("writer") or "",
            arguments_digest=record.get("arguments_digest") or "",
            returns=tuple(record.get("returns") or ()),
            sends=tuple(record.get("sends") or ()),
            would=tuple(record.get("would") or ()),
            approvals=tuple(uses),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished(_ToolCall):
    """The end of a call, or a refused call."""

    type: ClassVar[str] = "call.finished"

    outcome: Outcome
    """What it came to."""
    code: str
    """Why it was refused or failed, in one word; empty where the outcome says it all."""
    result: str | None
    """The text that the model saw, redacted; null for a call that was cancelled."""
    artifacts: tuple[Artifact, ...] = ()
    """The bytes that were stored of the result."""
    shaped: ShapedSize | None = None
    """How the result was shortened; absent where there was none."""
    joined: tuple[JoinedTool, ...] = ()
    """The tools that joined the array by this call."""
    elapsed_ms: float = 0.0
    """Milliseconds at the server; 0 for a call that was refused."""
    ready_ms: float | None = None
    """Milliseconds from the request until it went to the server: checks, and waiting for a free
    place.
    """
    spent: Totals | None = None
    """The totals of the step's calls after this one."""
    cached_from: str = ""
    """The call whose result was reused; null where the tool was called."""
    returns: tuple[str, ...] = ()
    """Taints of the result that its start does not say: the server's own word for it, and those of
    an artifact that was read.
    """

    @property
    def original_bytes(self) -> int:
        """The bytes of the unshaped result; 0 where that was not recorded."""
        return self.shaped.original_bytes if self.shaped is not None else 0

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        record = self._call()
        record |= {
            "outcome": self.outcome,
            "code": self.code,
            "result": self.result,
            "elapsed_ms": self.elapsed_ms,
            "artifacts": [artifact.to_json() for artifact in self.artifacts],
            "joined": [{"bundle": bundle, "tool": tool} for bundle, tool in self.joined],
            "cached": self.cached_from != "",
            "cached_from": self.cached_from or None,
        }
        if self.shaped is not None:
            record["shaped"] = self.shaped.to_json()
        if self.ready_ms is not None:
            record["ready_ms"] = self.ready_ms
        if self.spent is not None:
            record["spent"] = self.spent.to_json()
        if self.returns:
            record["returns"] = list(self.returns)
        return record

    @classmethod
    @checked(lambda: LINE_FORMS[CallFinished.type]())
    def from_json(cls, record: Mapping[str, Any]) -> CallFinished:
        """Return the record of a line. Raises CorruptRun for another line."""
        shaped = record.get("shaped")
        return cls(
            **cls._call_from(record),
            **_ending_fields(record),
            shaped=ShapedSize.from_json(shaped) if shaped else None,
            joined=tuple((row["bundle"], row["tool"]) for row in record.get("joined", ())),
            ready_ms=record.get("ready_ms"),
            cached_from=record.get("cached_from") or "",
            returns=tuple(record.get("returns") or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPassed(_CallLine):
    """A request for a resource, a prompt or a completion that was passed on to a server, and its
    outcome.
    """

    type: ClassVar[str] = "request.passed"

    method: str
    """The method of MCP, such as `resources/read`."""
    outcome: Outcome
    """What it came to."""
    code: str
    """Why it was refused or failed, in one word; empty where the outcome says it all."""
    result: str | None
    """The text that was passed back, redacted; null for none."""
    artifacts: tuple[Artifact, ...] = ()
    """The bytes that were stored of the answer."""
    elapsed_ms: float = 0.0
    """Milliseconds at the server; 0 for a request that was refused."""
    spent: Totals | None = None
    """The totals of the step's calls after this one."""
    original_bytes: int = 0
    """Bytes of the answer; absent for none."""
    returns: tuple[str, ...] = ()
    """The taints of the answer, where some policy row has `seen`."""

    @property
    def name(self) -> str:
        return f"{self.server}.{self.method}"

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        record = {
            **self._line(),
            **flat_json(self, ("method", *_ENDING)),
            "artifacts": [artifact.to_json() for artifact in self.artifacts],
            "elapsed_ms": self.elapsed_ms,
        }
        record |= {"original_bytes": self.original_bytes} if self.original_bytes else {}
        record |= {"returns": list(self.returns)} if self.returns else {}
        return record | ({"spent": self.spent.to_json()} if self.spent is not None else {})

    @classmethod
    @checked(lambda: LINE_FORMS[RequestPassed.type]())
    def from_json(cls, record: Mapping[str, Any]) -> RequestPassed:
        """Return the record of a line. Raises CorruptRun for another line."""
        own_fields = {"method": record["method"], "original_bytes": record.get("original_bytes", 0)}
        own_fields["returns"] = tuple(record.get("returns") or ())
        return cls(**cls._line_from(record), **_ending_fields(record), **own_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubRunOpened:
    """A run that began below this one, which is the root of their tree: its calls count for the
    tree.
    """

    type: ClassVar[str] = "sub_run.opened"

    run_id: str
    """The id of the run that is the root of the tree."""
    sub_run_id: str
    """The id of the run that began below it."""
    time: str
    """When this was recorded, in UTC."""
    seq: int = -1
    """The record's number in the run; -1 until it is written."""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        line = {"schema": CALL_SCHEMA, "type": self.type, "time": self.time}
        return {**line, "run_id": self.run_id, "sub_run_id": self.sub_run_id}

    @classmethod
    @checked(lambda: LINE_FORMS[SubRunOpened.type]())
    def from_json(cls, record: Mapping[str, Any]) -> SubRunOpened:
        """Return the record of a line. Raises CorruptRun for another line."""
        line = {name: record[name] for name in ("run_id", "sub_run_id")}
        return cls(**line, time=record.get("time", ""), seq=record.get("seq", -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintPassed:
    """Content that came into a branch from another run or branch: its taints, which the branch
    takes on.
    """

    type: ClassVar[str] = "taint.passed"

    run_id: str
    """The run that takes them on."""
    branch: str
    """Its branch; empty for the default one."""
    from_run: str
    """The run that they came from: a sub-run, or this one for another branch of it."""
    taints: tuple[str, ...]
    """The taints."""
    tool: str
    """The canonical name of the tool whose call brought them."""
    form: str = ""
    """The form that a checked answer was handed back in; absent for none."""
    time: str = ""
    """When this was recorded, in UTC."""
    seq: int = -1
    """The record's number in the run; -1 until it is written."""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        record = {
            "schema": CALL_SCHEMA,
            "type": self.type,
            "time": self.time,
            **flat_json(self, ("run_id", "branch", "from_run", "tool")),
            "taints": list(self.taints),
        }
        return record | ({"form": self.form} if self.form else {})

    @classmethod
    @checked(lambda: LINE_FORMS[TaintPassed.type]())
    def from_json(cls, record: Mapping[str, Any]) -> TaintPassed:
        """Return the record of a line. Raises CorruptRun for another line."""
        return cls(
            **{name: record[name] for name in ("run_id", "branch", "from_run", "tool")},
            taints=tuple(record["taints"]),
            form=record.get("form") or "",
            time=record.get("time", ""),
            seq=record.get("seq", -1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintCleared:
    """A person's word that what a branch has seen of these taints counts no more."""

    type: ClassVar[str] = "taint.cleared"

    run_id: str
    """The run."""
    branch: str
    """Its branch; empty for the default one."""
    taints: tuple[str, ...]
    """The taints, with the sorts of them."""
    by: str
    """Who said so."""
    reason: str
    """Why."""
    time: str = ""
    """When this was recorded, in UTC."""
    seq: int = -1
    """The record's number in the run; -1 until it is written."""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        return {
            "schema": CALL_SCHEMA,
            "type": self.type,
            "time": self.time,
            **flat_json(self, ("run_id", "branch", "by", "reason")),
            "taints": list(self.taints),
        }

    @classmethod
    @checked(lambda: LINE_FORMS[TaintCleared.type]())
    def from_json(cls, record: Mapping[str, Any]) -> TaintCleared:
        """Return the record of a line. Raises CorruptRun for another line."""
        return cls(
            **{name: record[name] for name in ("run_id", "branch", "by", "reason")},
            taints=tuple(record["taints"]),
            time=record.get("time", ""),
            seq=record.get("seq", -1),
        )


def _ending_fields(record: Mapping[str, Any]) -> Json:
    """Return the fields that the ends of calls and of requests share."""
    row = record.get("spent")
    return {
        **{name: record[name] for name in _ENDING},
        "artifacts": tuple(Artifact.from_json(row) for row in record.get("artifacts", ())),
        "elapsed_ms": record.get("elapsed_ms", 0.0),
        "spent": Totals(row["calls"], row["result_bytes"], row["elapsed_ms"], row.get("repeats", 0))
        if row
        else None,
    }


# --- written forms --------------------------------------------------------------------------------


def _line_form(kind: type[CallStarted | CallFinished | RequestPassed]) -> dict[str, FieldForm]:
    """Return the written form of the fields that every record of a call has."""
    return {
        **_type_form(kind.type),
        **fields_of(
            kind,
            ("time", "monotonic_ns", "run_id", "call_id", "decision_id", "server", "arguments"),
        ),
    }


def _type_form(type_: str) -> dict[str, FieldForm]:
    return {
        "schema": FieldForm(Literal[CALL_SCHEMA], "The form of the line, with its version."),
        "type": FieldForm(Literal[type_], "The type of the record."),
    }


def _call_form(kind: type[CallStarted | CallFinished]) -> dict[str, FieldForm]:
    later = ("key", "branch", "attempt")
    return {
        **_line_form(kind),
        **fields_of(kind, ("tool", "bundle", "via", *later), optional=later),
    }


def _end_form(kind: type[CallFinished | RequestPassed]) -> dict[str, FieldForm]:
    """Return the written form of the fields that ends of calls and of requests share."""
    artifact = fields_of(
        Artifact, optional=("claimed_type", "name", "width", "height", "duration_s")
    )
    spent = fields_of(
        Totals, ("calls", "result_bytes", "elapsed_ms", "repeats"), optional=("repeats",)
    )
    names = (*_ENDING, "elapsed_ms", "artifacts", "spent")
    return fields_of(kind, names, optional=("spent",), artifacts=[artifact], spent=spent)


def _started_form() -> dict[str, FieldForm]:
    later = ("writer", "arguments_digest", "returns", "sends", "would", "approvals")
    lists = {name: [str] for name in ("returns", "sends", "would")}
    uses = [fields_of(ApprovalUse, optional=("n",))]
    return {
        **_call_form(CallStarted),
        **fields_of(CallStarted, later, optional=later, approvals=uses, **lists),
    }


def _finished_form() -> dict[str, FieldForm]:
    joined = {
        "bundle": FieldForm(str, "The bundle that it was asked for through."),
        "tool": FieldForm(str, "Its canonical name."),
    }
    return {
        **_call_form(CallFinished),
        **_end_form(CallFinished),
        **fields_of(
            CallFinished,
            ("joined", "cached_from", "shaped", "ready_ms", "returns"),
            optional=("shaped", "ready_ms", "returns"),
            returns=[str],
            joined=[joined],
            cached_from=(str, None),
            shaped=fields_of(ShapedSize, optional=("flags",)),
            ready_ms=float,
        ),
        "cached": FieldForm(bool, "Whether the result of an earlier call was reused."),
    }


def _passed_form() -> dict[str, FieldForm]:
    return {
        **_line_form(RequestPassed),
        **_end_form(RequestPassed),
        **fields_of(
            RequestPassed,
            ("method", "original_bytes", "returns"),
            optional=("original_bytes", "returns"),
            returns=[str],
        ),
    }


def _opened_form() -> dict[str, FieldForm]:
    names = ("time", "run_id", "sub_run_id")
    return {**_type_form(SubRunOpened.type), **fields_of(SubRunOpened, names)}


def _passed_on_form() -> dict[str, FieldForm]:
    names = ("time", "run_id", "branch", "from_run", "tool", "taints", "form")
    fields = fields_of(TaintPassed, names, optional=("form",), taints=[str])
    return {**_type_form(TaintPassed.type), **fields}


def _cleared_form() -> dict[str, FieldForm]:
    names = ("time", "run_id", "branch", "by", "reason", "taints")
    return {**_type_form(TaintCleared.type), **fields_of(TaintCleared, names, taints=[str])}


LINE_FORMS: Final[Mapping[str, Callable[[], Mapping[str, FieldForm]]]] = {
    CallStarted.type: _started_form,
    CallFinished.type: _finished_form,
    RequestPassed.type: _passed_form,
    SubRunOpened.type: _opened_form,
    TaintPassed.type: _passed_on_form,
    TaintCleared.type: _cleared_form,
}
"""What makes the written form of a line, without the chain's fields, by the record's type."""

CallRecord = CallStarted | CallFinished | RequestPassed | SubRunOpened | TaintPassed | TaintCleared
Record: TypeAlias = "DecisionRecord | CallRecord | ApprovalRecord"

_KINDS: Final[Mapping[str, type[DecisionRecord | CallRecord]]] = {
    kind.type: kind
    for kind in (
        DecisionRecord,
        CallStarted,
        CallFinished,
        RequestPassed,
        SubRunOpened,
        TaintPassed,
        TaintCleared,
    )
}


def read_record(record: Mapping[str, Any]) -> Record | None:
    """Return the value of a line; None for a type that this version does not know.

    Raises CorruptRun for a line that does not fit its type.
    """
    type_ = str(record.get("type"))
    kind = _KINDS.get(type_)
    if kind is not None:
        return kind.from_json(record)
    if not type_.startswith("approval."):
        return None
    from bundle_router.core.records.approval_records import APPROVAL_KINDS  # few runs have any

    approval_kind = APPROVAL_KINDS.get(type_)
    return approval_kind.from_json(record) if approval_kind is not None else None
