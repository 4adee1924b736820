"""The records of `tool-calls.jsonl` as values and as JSON: calls, and requests that were passed on.

The rules are those of `decision_record`. `read_record` returns the value of any record of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, get_type_hints

from bundle_router.core.decide.budgets import Totals
from bundle_router.core.records.decision_record import DecisionRecord, Json
from bundle_router.core.records.field_types import checked
from bundle_router.core.values import Outcome
from bundle_router.core.values.artifacts import Artifact
from bundle_router.core.values.canonical import flat_json

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
_EMPTY_AS_NULL: Final = (
    "arguments",
    "bundle",
    "via",
    "key",
    "branch",
    "writer",
    "arguments_digest",
    "cached_from",
)

JoinedTool = tuple[str, str]
"""A tool that joined the array, after the bundle that it was asked for through."""


def line_forms() -> Mapping[str, Any]:
    """Return the forms of the fields of any line (see `field_types`).

    A name has one type in all of them.
    """
    kinds = (CallStarted, CallFinished, RequestPassed, SubRunOpened)
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items()}
    return (
        hints
        | dict.fromkeys(_EMPTY_AS_NULL, str | None)
        | {"joined": [{"bundle": str, "tool": str}]}
    )


@dataclass(frozen=True, slots=True)
class ShapedSize:
    """How a result was shortened: its bytes before and after, the rule, and observations about
    it.
    """

    original_bytes: int
    kept_bytes: int
    rule: str
    flags: tuple[str, ...] = ()

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
    """The fields of every record of a call. `seq` is -1 until it is written."""

    type: ClassVar[str]

    run_id: str
    call_id: str
    decision_id: str
    server: str
    arguments: str
    time: str
    monotonic_ns: int = 0
    seq: int = -1

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
    """The fields of both records of a tool call.

    `via` is the meta-tool it came through; `key` and `branch` are empty where the engine gave none;
    `attempt` counts from 1.
    """

    tool: str
    bundle: str = ""
    via: str = ""
    key: str = ""
    branch: str = ""
    attempt: int = 1

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
    """A call that passed every check and is about to be made.

    With a key, `writer` is the token of the process that makes it, and `arguments_digest` is of the
    raw arguments, keyed with the run's nonce.
    """

    type: ClassVar[str] = "call.started"

    writer: str = ""
    arguments_digest: str = ""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        record = self._call()
        if self.writer or self.arguments_digest:
            later = {"writer": self.writer, "arguments_digest": self.arguments_digest}
            record |= {name: value for name, value in later.items() if value}
        return record

    @classmethod
    @checked(line_forms)
    def from_json(cls, record: Mapping[str, Any]) -> CallStarted:
        """Return the record of a line. Raises CorruptRun for another line."""
        own_fields: Json = {name: record.get(name) or "" for name in ("writer", "arguments_digest")}
        return cls(**cls._call_from(record), **own_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished(_ToolCall):
    """The end of a call, or a refused call.

    `spent` are the totals of the step's calls; `cached_from` names the call whose result was
    reused.
    """

    type: ClassVar[str] = "call.finished"

    outcome: Outcome
    code: str
    result: str | None
    artifacts: tuple[Artifact, ...] = ()
    shaped: ShapedSize | None = None
    joined: tuple[JoinedTool, ...] = ()
    elapsed_ms: float = 0.0
    ready_ms: float | None = None
    spent: Totals | None = None
    cached_from: str = ""

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
        return record

    @classmethod
    @checked(line_forms)
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPassed(_CallLine):
    """A request for a resource, a prompt or a completion that was passed on to a server, and its
    outcome.
    """

    type: ClassVar[str] = "request.passed"

    method: str
    outcome: Outcome
    code: str
    result: str | None
    artifacts: tuple[Artifact, ...] = ()
    elapsed_ms: float = 0.0
    spent: Totals | None = None
    original_bytes: int = 0

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
        return record | ({"spent": self.spent.to_json()} if self.spent is not None else {})

    @classmethod
    @checked(line_forms)
    def from_json(cls, record: Mapping[str, Any]) -> RequestPassed:
        """Return the record of a line. Raises CorruptRun for another line."""
        own_fields = {"method": record["method"], "original_bytes": record.get("original_bytes", 0)}
        return cls(**cls._line_from(record), **_ending_fields(record), **own_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubRunOpened:
    """A run that began below this one, which is the root of their tree: its calls count for the
    tree.
    """

    type: ClassVar[str] = "sub_run.opened"

    run_id: str
    sub_run_id: str
    time: str
    seq: int = -1

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        line = {"schema": CALL_SCHEMA, "type": self.type, "time": self.time}
        return {**line, "run_id": self.run_id, "sub_run_id": self.sub_run_id}

    @classmethod
    @checked(line_forms)
    def from_json(cls, record: Mapping[str, Any]) -> SubRunOpened:
        """Return the record of a line. Raises CorruptRun for another line."""
        line = {name: record[name] for name in ("run_id", "sub_run_id")}
        return cls(**line, time=record.get("time", ""), seq=record.get("seq", -1))


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


CallRecord = CallStarted | CallFinished | RequestPassed | SubRunOpened
Record = DecisionRecord | CallRecord

_KINDS: Final[
    Mapping[str, type[DecisionRecord | CallStarted | CallFinished | RequestPassed | SubRunOpened]]
] = {
    kind.type: kind
    for kind in (DecisionRecord, CallStarted, CallFinished, RequestPassed, SubRunOpened)
}


def read_record(record: Mapping[str, Any]) -> Record | None:
    """Return the value of a line; None for a type that this version does not know.

    Raises CorruptRun for a line that does not fit its type.
    """
    kind = _KINDS.get(str(record.get("type")))
    return kind.from_json(record) if kind is not None else None
