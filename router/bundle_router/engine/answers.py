"""Questions about held calls, and their answers.

Rules (with those of `core.decide.held_calls`):
1. An answer compares and appends: it is judged by all records of the run, and judged again where
   others wrote first. One that can have no effect any more is refused, and recorded nowhere.
2. Every answer reads the run itself. Lists over many runs may be older.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.held_calls import (
    VOID_SENTENCES,
    Answerer,
    Approver,
    HeldCall,
    HeldPlace,
    VoidReason,
    answerable_rows,
    requirement_of,
    terms_of,
    void_reason,
)
from bundle_router.core.records.approval_records import (
    ApprovalAsked,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRecord,
    ApprovalRefused,
    ApprovalWithdrawn,
)
from bundle_router.core.values.approvals import Approval, ApprovalState
from bundle_router.core.values.canonical import time_ns, time_text
from bundle_router.engine.arguments import MAX_NAME
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.run_records import MOVED_AT_MOST, OpenRun
from bundle_router.errors import (
    ApprovalChanged,
    NotAnApprover,
    RequestError,
    UnknownApproval,
    expect,
)
from bundle_router.ports import Clock

PREFIX: Final = "ap_"
MAX_WORDS: Final = 2_000
"""Characters of a reason, and of an advice."""
ENGINE: Final = Answerer("engine")
"""Who takes questions back."""


def approval_of(question: HeldCall, run_id: str, moment: str) -> Approval:
    """Return a question of a run, as it stands at a time of its chain."""
    refusal = question.refusal
    return Approval(
        id=question.approval_id,
        state=question.state(moment),
        tool=question.tool,
        rows=question.rows,
        binding=question.binding,
        hidden=question.hidden,
        answer_by=question.answer_by,
        use_by=question.use_by,
        run_id=run_id,
        principal=question.place.principal,
        key=question.key,
        granted_by=tuple([grant.by.name for grant in question.grants]),
        reason=refusal.reason if refusal is not None else "",
        advice=refusal.advice if refusal is not None else "",
    )


def next_approval_id(run: OpenRun) -> str:
    """Return the id of the next question of a run, which its run's can be read from. The caller has
    the run's lock.
    """
    place = run.next_id().removeprefix(f"{run.id}.").replace(".", "-")
    return f"{PREFIX}{run.id}.{place}"


def run_of(approval_id: str) -> str:
    """Return the run of a question. Raises UnknownApproval for what is no id of one.

    >>> from bundle_router.engine.answers import run_of
    >>> run_of("ap_r-42.1f2e3d4c-7")
    'r-42'
    """
    expect("an approval's id", approval_id, str, "use the `id` of `Result.approval`")
    run_id = approval_id.removeprefix(PREFIX).rpartition(".")[0]
    if not approval_id.startswith(PREFIX) or not run_id:
        raise UnknownApproval(
            f"{approval_id[:200]!r} is not the id of a question",
            advice="use the `id` of `Result.approval`, or of one that `approvals()` lists",
        )
    return run_id


def key_of(run: OpenRun, approval_id: str, key: str) -> str:
    """Return the key under which a held call goes on: its own, or else one that its question gives
    it, so that it happens once. `key`: that of the call that goes on, if it has one. The caller has
    the run's lock. Raises UnknownApproval, RequestError.
    """
    fold = run.fold.approvals
    question = fold.question(approval_id) if fold is not None else None
    if question is None:
        raise UnknownApproval(
            f"run {run.id!r} has no question {approval_id[:200]!r}",
            advice="use the `id` of `Result.approval`, in the run that it belongs to",
        )
    own_key = question.key or question.approval_id
    if key not in ("", own_key):
        raise RequestError(
            f"the call of {approval_id!r} has the key {question.key!r}, and not {key!r}",
            advice="leave the key out: `approval` names the call",
        )
    return own_key


def approver_named(by: object) -> Approver:
    """Return who answers in the engine's own process, which says who that is.

    Raises RequestError for no name.
    """
    if not isinstance(by, str) or not by.strip() or len(by) > MAX_NAME:
        raise RequestError(
            f"by= has to name who answers, in at most {MAX_NAME} characters",
            advice='give the principal of a person: by="lead"',
        )
    return Approver(Answerer(by, by, "library"), is_believed=True)


def approver_here(user: str) -> Approver:
    """Return who answers on the store itself: nothing proves who that is, so nobody in a row that
    names approvers.
    """
    return Approver(Answerer(f"local:{user}", how="local"))


def words(name: str, text: object) -> str:
    """Return the words of an answer. Raises RequestError where they are none, or too many."""
    if not isinstance(text, str) or len(text) > MAX_WORDS:
        raise RequestError(
            f"{name}= has to be text of at most {MAX_WORDS:,} characters",
            advice="say it in a sentence",
        )
    return text


class Answers:
    """Answers the questions of one run, under the config in force. For whoever holds the run."""

    def __init__(self, at: CallPorts, catalog: Catalog) -> None:
        self._at = at
        self._run = at.run
        self._catalog = catalog
        self._rows = {row.name: row for row in catalog.approvals}

    # --- reading ----------------------------------------------------------------------------------

    def read(self, approval_id: str) -> Approval:
        """Return a question as it stands now. The caller has the run's lock."""
        self._run.read_on()
        return self.view(self.find(approval_id))

    def listed(self) -> tuple[Approval, ...]:
        """Return every question of the run, oldest first. The caller has its lock."""
        fold = self._run.fold.approvals
        return tuple([self.view(question) for question in fold.all()]) if fold is not None else ()

    def view(self, question: HeldCall) -> Approval:
        """Return a question with what whoever answers it is shown."""
        question_record = self._asked(question)
        rows = [row for one in question.rows if (row := self._rows.get(one.name)) is not None]
        return replace(
            approval_of(question, self._run.id, self._now()),
            arguments=question_record.arguments,
            messages=tuple([row.message for row in rows if row.message]),
            void=self._void(question) or "",
        )

    def find(self, approval_id: str) -> HeldCall:
        """Return a question of the run. Raises UnknownApproval."""
        fold = self._run.fold.approvals
        question = fold.question(approval_id) if fold is not None else None
        if question is None:
            raise UnknownApproval(
                f"run {self._run.id!r} has no question {approval_id[:200]!r}",
                advice="use the `id` of `Result.approval`, or of one that `approvals()` lists",
            )
        return question

    def _now(self) -> str:
        return chain_now(self._run, self._at.ports.clock)

    def _void(self, question: HeldCall) -> VoidReason | None:
        """Return why an answer would not count any more; None where it would."""
        if question.is_settled and not question.grants:
            return None
        decided = self._run.fold.decided(question.place.branch)
        if decided is None:
            return "superseded"
        address = self._run.fold.address(decided.decision.decision_id)
        place = HeldPlace(decided.branch, address, decided.step.principal)
        addresses = [address, *(grant.address for grant in decided.facts.grants)]
        question_record = self._asked(question)
        about = self._catalog.approvals_of(question.tool)
        rows = requirement_of(about, addresses, json.loads(question_record.arguments)).rows
        return void_reason(question, place, terms_of(self._catalog, rows, question.tool))

    def _asked(self, question: HeldCall) -> ApprovalAsked:
        return ApprovalAsked.from_json(self._run.log.record(question.seq))

    # --- answering --------------------------------------------------------------------------------

    def grant(
        self, approval_id: str, approver: Approver, binding: str, reason: str, wait_s: float
    ) -> Approval:
        """Grant a question, for every row that the approver may answer and did not.

        Raises UnknownApproval, NotAnApprover, ApprovalChanged, RunBusy, StorageError.
        """

        def answer(question: HeldCall, moment: str) -> ApprovalGranted:
            self._refuse_changed(question, moment, binding, ("waiting",))
            rows = self._granting(question, approver)
            within_s = min(self._rows[name].use_within_s for name in rows)
            return ApprovalGranted(
                **self._fields(question),
                by=approver.person,
                reason=reason,
                binding=question.binding,
                rows=rows,
                use_by=later(moment, within_s),
            )

        return self._answer(approval_id, answer, wait_s)

    def _granting(self, question: HeldCall, approver: Approver) -> tuple[str, ...]:
        """Return the rows that an approver newly answers."""
        may = answerable_rows(question, self._rows, approver)
        if not may:
            raise _not_an_approver(question, approver)
        answered = question.rows_granted_by(approver.person)
        rows = tuple([name for name in may if name not in answered])
        if not rows:
            raise ApprovalChanged(
                f"{approver.person.name!r} has granted {question.approval_id!r} already",
                advice="it waits for another person",
            )
        return rows

    def refuse(
        self,
        approval_id: str,
        approver: Approver,
        words: tuple[str, str],
        wait_s: float,
    ) -> Approval:
        """Refuse a question, or take a grant back: also while its call is under way. `words` are
        the reason, and what to do instead. Raises as `grant` does.
        """

        def answer(question: HeldCall, moment: str) -> ApprovalRefused:
            if not self._is_under_way(question):
                self._refuse_changed(question, moment, "", ("waiting", "granted"))
            if not answerable_rows(question, self._rows, approver):
                raise _not_an_approver(question, approver)
            reason, advice = words
            return ApprovalRefused(
                **self._fields(question), by=approver.person, reason=reason, advice=advice
            )

        return self._answer(approval_id, answer, wait_s)

    def _is_under_way(self, question: HeldCall) -> bool:
        is_open = not self._run.fold.open_calls.isdisjoint(question.used_by)
        return is_open and question.refusal is None

    def withdraw(self, approval_id: str, reason: str, wait_s: float) -> Approval:
        """Take a question back that waits or is granted. Raises as `grant` does."""

        def answer(question: HeldCall, moment: str) -> ApprovalWithdrawn:
            if question.state(moment) not in ("waiting", "granted"):
                raise _changed(question, question.state(moment))
            return ApprovalWithdrawn(**self._fields(question), by=ENGINE, reason=reason)

        return self._answer(approval_id, answer, wait_s)

    def expire_all(self, wait_s: float) -> None:
        """Record that the run was closed, for every question that is open, granted or not."""
        fold = self._run.fold.approvals
        if fold is None:
            return
        moment = self._now()
        for question in tuple(fold.open.values()):
            code = question.expiry if question.is_past(moment) else "run_closed"
            expire(self._at, question, code, wait_s)

    # --- its parts --------------------------------------------------------------------------------

    def _answer(
        self,
        approval_id: str,
        answer: Callable[[HeldCall, str], ApprovalRecord],
        wait_s: float,
    ) -> Approval:
        """Append an answer, and return the question as it stands then. The caller has the run's
        lock.
        """
        for _ in range(MOVED_AT_MOST):
            self._run.read_on()
            question = self.find(approval_id)
            moment = self._now()
            if not question.is_settled and question.is_past(moment):
                expire(self._at, question, question.expiry, wait_s)
                continue
            record = answer(question, moment)
            if self._run.append_call(record, compare=True, wait_s=wait_s) is not None:
                return self.view(self.find(approval_id))
        raise self._run.moved_error()

    def _fields(self, question: HeldCall) -> dict[str, Any]:
        time = time_text(self._at.ports.clock.time_ns())
        return {"run_id": self._run.id, "approval_id": question.approval_id, "time": time}

    def _refuse_changed(
        self, question: HeldCall, moment: str, binding: str, states: tuple[ApprovalState, ...]
    ) -> None:
        """Raise ApprovalChanged where an answer can have no effect any more."""
        state = question.state(moment)
        if state not in states:
            raise _changed(question, state)
        if binding and binding != question.binding:
            raise ApprovalChanged(
                f"{question.approval_id!r} is bound to another call than the one that was shown",
                advice="look at it again",
            )
        void = self._void(question)
        if void is not None:
            raise ApprovalChanged(
                f"{question.approval_id!r} does not count any more: {VOID_SENTENCES[void]}",
                advice="the call is asked for anew when it is made again",
            )


def _changed(question: HeldCall, state: ApprovalState) -> ApprovalChanged:
    words = {"used": "was used", "waiting": "waits"}.get(state, f"is {state}")
    if state == "expired":
        words = "has expired"
    return ApprovalChanged(
        f"{question.approval_id!r} {words}: an answer would have no effect",
        advice="a call that is made again may be asked for anew",
    )


def _not_an_approver(question: HeldCall, approver: Approver) -> NotAnApprover:
    return NotAnApprover(
        f"{approver.person.name!r} may not answer {question.approval_id!r}: it is the side that"
        " asked, or none of its rows names that one",
        advice="somebody else has to: another principal and token than those that asked",
    )


# --- time -----------------------------------------------------------------------------------------


def chain_now(run: OpenRun, clock: Clock) -> str:
    """Return the time of a run's chain (rule 4 of `core.decide.held_calls`)."""
    return max(time_text(clock.time_ns()), run.fold.newest_time)


def later(time: str, seconds: float) -> str:
    """Return the time that many seconds after a record's."""
    return time_text(time_ns(time) + int(seconds * 1e9))


def expire(at: CallPorts, question: HeldCall, code: Any, wait_s: float) -> None:
    """Record that the time of a question is over, unless others wrote first."""
    own_clock = time_text(at.ports.clock.time_ns())
    record = ApprovalExpired(
        run_id=at.run.id,
        approval_id=question.approval_id,
        time=own_clock,
        code=code,
        now=chain_now(at.run, at.ports.clock),
        own_clock=own_clock,
    )
    at.run.append_call(record, compare=True, wait_s=wait_s)
