"""The records of calls that wait for somebody's word, as values and as JSON.

They stand in `tool-calls.jsonl`, among the calls that they are about. There is none of a use:
`call.started` names the approval that it uses. The rules are those of `call_records`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from bundle_router.core.decide.held_calls import (
    Answerer,
    ApprovalTerms,
    ExpiryCode,
)
from bundle_router.core.records.field_types import FieldForm, checked, fields_of
from bundle_router.core.values.approvals import RequiredRow
from bundle_router.core.values.artifacts import Artifact

APPROVAL_SCHEMA: Final = "bundle-router.approval/1"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ApprovalLine:
    """The fields of every record of a question."""

    type: ClassVar[str]

    run_id: str
    """The id of its run."""
    approval_id: str
    """The id of the question."""
    time: str
    """When this was recorded, in UTC."""
    seq: int = -1
    """The record's number in the run; -1 until it is written."""

    def _line(self) -> Json:
        return {
            "schema": APPROVAL_SCHEMA,
            "type": self.type,
            "time": self.time,
            "run_id": self.run_id,
            "approval_id": self.approval_id,
        }

    @staticmethod
    def _line_from(record: Mapping[str, Any]) -> Json:
        return {
            **{name: record[name] for name in ("run_id", "approval_id")},
            "time": record.get("time", ""),
            "seq": record.get("seq", -1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(_ApprovalLine):
    """A call that passed every check, and waits for somebody's word."""

    type: ClassVar[str] = "approval.asked"

    decision_id: str
    """The decision under which it was called."""
    branch: str
    """The branch of that decision."""
    principal: str
    """Whom the step is for."""
    asked_by: str
    """The name of the token that called; empty for the engine's own process."""
    server: str
    """The server that it would go to."""
    tool: str
    """The tool's name at its server."""
    bundle: str
    """The bundle that it was called through."""
    via: str
    """The meta-tool or program that it came through; empty for a direct call."""
    key: str
    """The call's key, which the question binds; empty where the engine gave none."""
    arguments: str
    """The arguments as JSON text, as they will be run: whole, but for secrets."""
    hidden: int
    """How many values of the arguments redaction took."""
    arguments_digest: str
    """A digest of the arguments as they were given, keyed with the run's nonce, by which a second
    call with the key is compared.
    """
    artifacts: tuple[Artifact, ...] = ()
    """The bytes that the arguments name by handle in place of themselves."""
    rows: tuple[RequiredRow, ...]
    """The rows of policy that have to be answered, and by how many persons."""
    terms: ApprovalTerms
    """What an answer rests on beside the call itself, as digests."""
    card: str
    """The digest of the tool's definition."""
    catalog_revision: str
    """The config under which it was asked."""
    binding: str
    """The digest of what an answer is bound to: run, place, principal, tool, arguments, terms."""
    answer_by: str
    """Until when it may be answered, in UTC."""

    @property
    def name(self) -> str:
        """The tool's canonical name."""
        return f"{self.server}.{self.tool}"

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        return {
            **self._line(),
            **{name: getattr(self, name) for name in _ASKED},
            "artifacts": [artifact.to_json() for artifact in self.artifacts],
            "rows": [{"name": row.name, "persons": row.persons} for row in self.rows],
            "terms": {name: getattr(self.terms, name) for name in _TERMS},
        }

    @classmethod
    @checked(lambda: APPROVAL_FORMS[ApprovalAsked.type]())
    def from_json(cls, record: Mapping[str, Any]) -> ApprovalAsked:
        """Return the record of a line. Raises CorruptRun for another line."""
        return cls(
            **cls._line_from(record),
            **{name: record[name] for name in _ASKED},
            artifacts=tuple([Artifact.from_json(row) for row in record["artifacts"]]),
            rows=tuple([RequiredRow(row["name"], row["persons"]) for row in record["rows"]]),
            terms=ApprovalTerms(**{name: record["terms"][name] for name in _TERMS}),
        )


_ASKED: Final = (
    "decision_id",
    "branch",
    "principal",
    "asked_by",
    "server",
    "tool",
    "bundle",
    "via",
    "key",
    "arguments",
    "hidden",
    "arguments_digest",
    "card",
    "catalog_revision",
    "binding",
    "answer_by",
)
_TERMS: Final = ("rows", "card", "server")
_PERSON: Final = ("name", "principal", "how")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer(_ApprovalLine):
    """The fields of every answer."""

    by: Answerer
    """Who answered."""
    reason: str = ""
    """Why, in that one's words."""

    def _answer(self) -> Json:
        by = {name: getattr(self.by, name) for name in _PERSON}
        return {**self._line(), "by": by, "reason": self.reason}

    @classmethod
    def _answer_from(cls, record: Mapping[str, Any]) -> Json:
        return {
            **cls._line_from(record),
            "by": Answerer(**{name: record["by"][name] for name in _PERSON}),
            "reason": record["reason"],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalGranted(_Answer):
    """Somebody granted a call that waits."""

    type: ClassVar[str] = "approval.granted"

    binding: str
    """What the grant is bound to: that of the question."""
    rows: tuple[str, ...]
    """The rows that it answers."""
    use_by: str
    """Until when the call may begin, in UTC."""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        later = {"binding": self.binding, "rows": list(self.rows), "use_by": self.use_by}
        return {**self._answer(), **later}

    @classmethod
    @checked(lambda: APPROVAL_FORMS[ApprovalGranted.type]())
    def from_json(cls, record: Mapping[str, Any]) -> ApprovalGranted:
        """Return the record of a line. Raises CorruptRun for another line."""
        return cls(
            **cls._answer_from(record),
            binding=record["binding"],
            rows=tuple(record["rows"]),
            use_by=record["use_by"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRefused(_Answer):
    """Somebody refused a call that waits, or took a grant back."""

    type: ClassVar[str] = "approval.refused"

    advice: str = ""
    """What the agent may do instead."""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        return {**self._answer(), "advice": self.advice}

    @classmethod
    @checked(lambda: APPROVAL_FORMS[ApprovalRefused.type]())
    def from_json(cls, record: Mapping[str, Any]) -> ApprovalRefused:
        """Return the record of a line. Raises CorruptRun for another line."""
        return cls(**cls._answer_from(record), advice=record["advice"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalWithdrawn(_Answer):
    """The engine took a question back."""

    type: ClassVar[str] = "approval.withdrawn"

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        return self._answer()

    @classmethod
    @checked(lambda: APPROVAL_FORMS[ApprovalWithdrawn.type]())
    def from_json(cls, record: Mapping[str, Any]) -> ApprovalWithdrawn:
        """Return the record of a line. Raises CorruptRun for another line."""
        return cls(**cls._answer_from(record))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalExpired(_ApprovalLine):
    """A question, or an unused grant, whose time is over."""

    type: ClassVar[str] = "approval.expired"

    code: ExpiryCode
    """Why: nobody answered, nobody used the grant, or the run was closed."""
    now: str
    """The time of the chain by which it was over."""
    own_clock: str
    """The clock of the process that found it; a fast one shows here."""

    def to_json(self) -> Json:
        """Return the record as JSON, without the chain's fields."""
        return {
            **self._line(),
            "code": self.code,
            "now": self.now,
            "own_clock": self.own_clock,
        }

    @classmethod
    @checked(lambda: APPROVAL_FORMS[ApprovalExpired.type]())
    def from_json(cls, record: Mapping[str, Any]) -> ApprovalExpired:
        """Return the record of a line. Raises CorruptRun for another line."""
        own_fields = {name: record[name] for name in ("code", "now", "own_clock")}
        return cls(**cls._line_from(record), **own_fields)


ApprovalRecord = (
    ApprovalAsked | ApprovalGranted | ApprovalRefused | ApprovalWithdrawn | ApprovalExpired
)

# --- written forms --------------------------------------------------------------------------------


def _line_form(kind: type[_ApprovalLine]) -> dict[str, FieldForm]:
    return {
        "schema": FieldForm(Literal[APPROVAL_SCHEMA], "The form of the line, with its version."),
        "type": FieldForm(Literal[kind.type], "The type of the record."),
        **fields_of(kind, ("time", "run_id", "approval_id")),
    }


def _asked_form() -> dict[str, FieldForm]:
    artifact = fields_of(
        Artifact, optional=("claimed_type", "name", "width", "height", "duration_s")
    )
    return {
        **_line_form(ApprovalAsked),
        **fields_of(
            ApprovalAsked,
            (*_ASKED, "artifacts", "rows", "terms"),
            artifacts=[artifact],
            rows=[fields_of(RequiredRow)],
            terms=fields_of(ApprovalTerms),
        ),
    }


def _answer_form(kind: type[_Answer], *names: str) -> Callable[[], dict[str, FieldForm]]:
    return lambda: {
        **_line_form(kind),
        **fields_of(kind, ("by", "reason", *names), by=fields_of(Answerer)),
    }


def _expired_form() -> dict[str, FieldForm]:
    return {
        **_line_form(ApprovalExpired),
        **fields_of(ApprovalExpired, ("code", "now", "own_clock")),
    }


APPROVAL_FORMS: Final[Mapping[str, Callable[[], Mapping[str, FieldForm]]]] = {
    ApprovalAsked.type: _asked_form,
    ApprovalGranted.type: _answer_form(ApprovalGranted, "binding", "rows", "use_by"),
    ApprovalRefused.type: _answer_form(ApprovalRefused, "advice"),
    ApprovalWithdrawn.type: _answer_form(ApprovalWithdrawn),
    ApprovalExpired.type: _expired_form,
}
"""What makes the written form of a line, without the chain's fields, by the record's type."""
APPROVAL_KINDS: Final[Mapping[str, type[ApprovalRecord]]] = {
    kind.type: kind
    for kind in (
        ApprovalAsked,
        ApprovalGranted,
        ApprovalRefused,
        ApprovalWithdrawn,
        ApprovalExpired,
    )
}
