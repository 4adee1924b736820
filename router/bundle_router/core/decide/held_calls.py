"""Calls that wait for somebody's word: which do, what a word rests on, and what it comes to.

Rules:
1. Rows unite: every row that covers the step and the tool, and whose exemption does not hold, has
   to be answered. An exemption that can't be decided does not hold.
2. A question is bound to one call (`binding`): its run, place, principal, tool, arguments, terms.
   The terms are the rows as written, the tool's definition and its server's address. The decision
   and the catalog are not in it: an edit elsewhere voids nothing.
3. Refused beats expired, expired beats granted. What was refused stays refused for the same call at
   that place; after `MAX_REFUSALS` the tool is refused there.
4. Time is the chain's: the later of the own clock and of the newest record. A question that nobody
   answered by `answer_by`, and a grant that nobody used by `use_by`, have expired.
5. An answer counts where it can still have an effect: while the question waits, in time, and while
   its terms and its place are those of the run. It never counts from the step's own principal or
   from the token that asked, unless a row names `self` or `client`.
6. A person is a principal; where there is none, the name of a token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bundle_router.core.catalog import ApprovalRow, Catalog, canonical_value
from bundle_router.core.catalog.conditions import evaluate_all
from bundle_router.core.servers.pins.reviewed import origin_of
from bundle_router.core.values import Address
from bundle_router.core.values.approvals import ApprovalState, RequiredRow
from bundle_router.core.values.canonical import digest_of, encode

MAX_REFUSALS: Final = 3
"""Refusals of one tool at one place after which it is refused there for good."""

ExpiryCode = Literal["unanswered", "unused", "run_closed"]
AnsweredBy = Literal["token", "client", "library", "local"]
VoidReason = Literal["superseded", "row_changed", "tool_changed"]


@dataclass(frozen=True, slots=True)
class Answerer:
    """Who answered a question."""

    name: str
    """The name that was given, or of the token."""
    principal: str = ""
    """The principal; empty where there is none."""
    how: AnsweredBy = "library"
    """By a token, in the agent's client, by the engine's own process, or on the store."""

    @property
    def identity(self) -> tuple[bool, str]:
        """What tells persons apart (rule 6)."""
        return bool(self.principal), self.principal or self.name


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """Where a call is made: what a word is given for."""

    branch: str
    address: Address
    principal: str


@dataclass(frozen=True, slots=True)
class ApprovalTerms:
    """What a word rests on, beside the call itself; each part as a digest."""

    rows: str
    """Of the requiring rows as they are written."""
    card: str
    """Of the tool's definition."""
    server: str
    """Of the server's address."""

    @property
    def digest(self) -> str:
        """The digest of all of it."""
        return digest_of([self.rows, self.card, self.server])


@dataclass(frozen=True, slots=True)
class Requirement:
    """What the rows ask of one call."""

    rows: tuple[ApprovalRow, ...] = ()
    """The rows that have to be answered."""
    would: tuple[str, ...] = ()
    """The names of rows with `enforce = false` that would have to be."""

    @property
    def required(self) -> tuple[RequiredRow, ...]:
        """The rows, as a question names them."""
        return tuple([RequiredRow(row.name, row.persons) for row in self.rows])


NOTHING_REQUIRED: Final = Requirement()


def requirement_of(
    rows: Sequence[ApprovalRow], addresses: Sequence[Address], arguments: Mapping[str, Any]
) -> Requirement:
    """Return what the rows of a tool ask of a call with these arguments, without secrets.

    `addresses` are the step's and its ancestors': a sub-agent waits where they would.
    """
    matching = [
        row
        for row in rows
        if any(row.covers(address) for address in addresses)
        and not (row.unless and evaluate_all(row.unless, arguments) == "holds")
    ]
    return Requirement(
        tuple([row for row in matching if row.enforce]),
        tuple([row.name for row in matching if not row.enforce]),
    )


def terms_of(catalog: Catalog, rows: Iterable[ApprovalRow], tool: str) -> ApprovalTerms:
    """Return the terms under which a call of a tool is granted."""
    card = catalog.cards.get(tool)
    server = catalog.servers.get(tool.partition(".")[0])
    return ApprovalTerms(
        digest_of([canonical_value(row) for row in rows]),
        card.sha256 if card is not None else "",
        digest_of(canonical_value(origin_of(server))) if server is not None else "",
    )


def digest_with(nonce: str, value: Any) -> str:
    """Return the digest of a value that may hold secrets, keyed with the run's nonce."""
    return hmac.new(
        nonce.encode("utf-8"), encode(value).encode("utf-8", "surrogatepass"), hashlib.sha256
    ).hexdigest()


def binding_of(
    nonce: str, run_id: str, place: HeldPlace, tool: str, run_digest: str, terms: ApprovalTerms
) -> str:
    """Return the digest of what a question is bound to. `run_digest`: of the arguments as they
    will be run.
    """
    parts = [place.branch, list(place.address), place.principal, tool, run_digest, terms.digest]
    return f"sha256:{digest_with(nonce, [run_id, *parts])}"


# --- a question -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """One answer to a question, as it is recorded."""

    by: Answerer
    time: str
    rows: tuple[str, ...] = ()
    """The rows that it answers; of a grant."""
    use_by: str = ""
    """Until when it may be used; of a grant."""
    reason: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """One held call and its answers, as the records have them."""

    approval_id: str
    seq: int
    decision_id: str
    place: HeldPlace
    tool: str
    key: str
    arguments_digest: str
    """Of the arguments as they were given, by which a second call with the key is compared."""
    rows: tuple[RequiredRow, ...]
    terms: ApprovalTerms
    binding: str
    answer_by: str
    asked_by: str = ""
    """The name of the token that asked."""
    asked_at: str = ""
    bundle: str = ""
    via: str = ""
    hidden: int = 0
    grants: tuple[GivenAnswer, ...] = ()
    refusal: GivenAnswer | None = None
    withdrawal: GivenAnswer | None = None
    expired: str = ""
    """Why it expired, where that is recorded."""
    used_by: tuple[str, ...] = ()
    """The calls that began by it: one, or the attempts of one with a key."""

    @property
    def unanswered(self) -> tuple[RequiredRow, ...]:
        """The rows that fewer persons granted than have to."""
        return tuple([row for row in self.rows if len(self._persons(row)) < row.persons])

    def rows_granted_by(self, person: Answerer) -> set[str]:
        """Return the names of the rows that somebody granted."""
        own_grants = [grant for grant in self.grants if grant.by.identity == person.identity]
        return {name for grant in own_grants for name in grant.rows}

    def _persons(self, row: RequiredRow) -> set[tuple[bool, str]]:
        return {grant.by.identity for grant in self.grants if row.name in grant.rows}

    @property
    def use_by(self) -> str:
        """Until when its grant may be used; empty while it is not granted."""
        if self.unanswered:
            return ""
        return max([grant.use_by for grant in self.grants], default="")

    def state(self, now: str) -> ApprovalState:
        """Return its state at a time of the chain (rules 3 and 4)."""
        if self.used_by:
            return "used"
        if self.refusal is not None:
            return "refused"
        if self.withdrawal is not None:
            return "withdrawn"
        if self.expired or self.is_past(now):
            return "expired"
        return "waiting" if self.unanswered else "granted"

    def is_past(self, now: str) -> bool:
        """Return whether nobody may answer it, or use its grant, any more."""
        if self.unanswered:
            return now > self.answer_by
        return now > self.use_by

    @property
    def is_settled(self) -> bool:
        """Whether it has been used, refused, withdrawn, or has expired on record."""
        return bool(
            self.used_by or self.refusal is not None or self.withdrawal is not None or self.expired
        )

    @property
    def expiry(self) -> ExpiryCode:
        """Why it expires by time."""
        return "unanswered" if self.unanswered else "unused"


def void_reason(question: HeldCall, place: HeldPlace, terms: ApprovalTerms) -> VoidReason | None:
    """Return why a question does not count any more at this place and under these terms; None
    where it does.
    """
    if question.place != place:
        return "superseded"
    if question.terms.rows != terms.rows:
        return "row_changed"
    return None if question.terms == terms else "tool_changed"


VOID_SENTENCES: Final[Mapping[VoidReason, str]] = {
    "superseded": "the run stands at another step than when it was asked",
    "row_changed": "the rows that ask for it were edited since",
    "tool_changed": "the tool or its server is another one since",
}


# --- who may answer -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Approver:
    """Somebody who wants to answer, and what is known of him."""

    person: Answerer
    token: str = ""
    """The name of the token; empty for the engine's own process."""
    role: str = ""
    """The token's role."""
    may_approve: bool = True
    """Whether the token has the scope `approve`; the engine's own process has it."""
    is_believed: bool = False
    """Whether who is named counts for every row: the engine's own process says who it is."""


def answerable_rows(
    question: HeldCall, rows: Mapping[str, ApprovalRow], approver: Approver
) -> tuple[str, ...]:
    """Return the rows of a question that somebody may answer (rule 5), answered or not."""
    return tuple(
        [
            required.name
            for required in question.rows
            if (row := rows.get(required.name)) is not None and _may_answer(question, row, approver)
        ]
    )


def _may_answer(question: HeldCall, row: ApprovalRow, approver: Approver) -> bool:
    approvers = row.approvers or ()
    is_own = _is_own(question, approver)
    if approver.person.how == "client":
        return "client" in approvers
    if is_own:
        return "self" in approvers
    if approver.is_believed or row.approvers is None:
        return approver.may_approve
    names = {f"token:{approver.token}", f"role:{approver.role}"} & set(approvers)
    return approver.may_approve and bool(names)


def _is_own(question: HeldCall, approver: Approver) -> bool:
    """Return whether somebody is on the side that asked."""
    person = approver.person
    if question.asked_by and approver.token == question.asked_by:
        return True
    return bool(question.place.principal) and question.place.principal == person.principal
