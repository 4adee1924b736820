"""Calls that wait for somebody's word: the layer of a call that asks for it, and waits.

Rules (those of `core.decide.held_calls`, and):
1. It is asked last: a call is held once nothing else refuses it, and judged again at its use. A
   grant permits nothing; it only lifts the hold.
2. A grant is used by the record of the call's start, which names it and is appended only where
   nothing else was: neither can happen without the other, and two workers can't both use it.
3. A held call binds its key: the same key with another call is refused. Without a key, and with
   `join`, a call takes up the question about the same call that waits or is granted.
4. A waiting call leaves one record, however often it is made again. Whoever waits for the answer
   and gives up ends the waiting, never the question.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bundle_router.core.catalog import ApprovalRow
from bundle_router.core.decide.held_calls import (
    MAX_REFUSALS,
    NOTHING_REQUIRED,
    VOID_SENTENCES,
    HeldCall,
    HeldPlace,
    VoidReason,
    binding_of,
    digest_with,
    requirement_of,
    terms_of,
    void_reason,
)
from bundle_router.core.records.approval_fold import ApprovalFold
from bundle_router.core.records.approval_records import ApprovalAsked
from bundle_router.core.records.call_records import ApprovalUse
from bundle_router.core.values.canonical import encode, time_text
from bundle_router.engine.answers import (
    approval_of,
    chain_now,
    expire,
    later,
    next_approval_id,
)
from bundle_router.engine.arguments import keyed_digest
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.results import CallRequest, Refusal, Result, WaitingCall
from bundle_router.engine.run_records import OpenRun
from bundle_router.engine.surface import CallTarget, RunState
from bundle_router.errors import KeyConflict
from bundle_router.ports import Clock, Redactor

TOLD_TO_STOP: Final = 5
"""Calls of a waiting one after which the agent is told to end its turn."""
FIRST_LOOK_S: Final = 0.02
LONGEST_LOOK_S: Final = 1.0
"""Seconds between two looks whether a question was answered: at first, and at most."""


@dataclass(frozen=True, slots=True)
class Permission:
    """The call may begin."""

    uses: tuple[ApprovalUse, ...] = ()
    """The approvals that it uses."""
    would: tuple[str, ...] = ()
    """The rows with `enforce = false` that would have held it."""


Hold = Permission | WaitingCall | Refusal
"""What holding comes to. Nothing was recorded of a `Refusal` yet."""


class CallHold:
    """Says of one call whether it waits, and asks where it has to.

    For whoever has the run's lock.
    """

    def __init__(
        self, at: CallPorts, state: RunState, request: CallRequest, target: CallTarget
    ) -> None:
        self._at = at
        self._run = at.run
        self._state = state
        self._request = request
        self._target = target
        self._digest = request.digest or keyed_digest(at.run.nonce, request.arguments)
        self._place = HeldPlace(state.decided.branch, state.address, state.step.principal)
        self._shown: Mapping[str, Any] = {}
        self._hidden = 0
        self._requirement = NOTHING_REQUIRED
        rows = state.catalog.approvals_of(target.tool)
        if rows:
            self._shown, self._hidden = shown_arguments(at.ports.redactor, request)
            addresses = [state.address, *(grant.address for grant in state.facts.grants)]
            self._requirement = requirement_of(rows, addresses, self._shown)
        self._terms = terms_of(state.catalog, self._requirement.rows, target.tool)
        self._binding = self._bind()

    def _bind(self) -> str:
        arguments = self._request.arguments
        as_run = arguments.value if arguments.asked is None else arguments.asked
        nonce = self._run.nonce
        return binding_of(
            nonce,
            self._run.id,
            self._place,
            self._target.tool,
            digest_with(nonce, as_run),
            self._terms,
        )

    @property
    def _fold(self) -> ApprovalFold | None:
        return self._run.fold.approvals

    # --- what is known of it ----------------------------------------------------------------------

    def refuse_other_call(self) -> None:
        """Raise KeyConflict where the call's key, or the approval that it names, is another
        call's.
        """
        question = self._named()
        if question is None:
            return
        own_question = (
            f"key {self._request.key!r}" if question.key else f"approval {question.approval_id!r}"
        )
        place_words = f"run {self._run.id!r}: {own_question}"
        if question.place.principal != self._place.principal:
            raise KeyConflict(
                f"{place_words} is of another principal's call",
                advice="use keys that differ between the principals of a run",
            )
        equalities = {
            "another tool": question.tool == self._target.tool,
            "other arguments": question.arguments_digest == self._digest,
        }
        differing = [name for name, is_same in equalities.items() if not is_same]
        if differing:
            raise KeyConflict(
                f"{place_words} is of a call of {question.tool!r} that was held, with"
                f" {' and '.join(differing)}",
                advice="use a new key for another call, or the same call with this key",
            )

    def _named(self) -> HeldCall | None:
        """Return the newest question that the call names, by its approval or its key."""
        if self._fold is None:
            return None
        if self._request.approval:
            return self._fold.question(self._request.approval)
        if not self._request.key:
            return None
        return next(reversed(self._fold.of_key(self._request.key)), None)

    def _known(self) -> HeldCall | None:
        """Return the question about this call; None where it has to be asked."""
        own_question = self._named()
        if own_question is not None:
            return self._latest(own_question)
        if self._request.key and not self._request.join:
            return None
        return self._joinable()

    def _joinable(self) -> HeldCall | None:
        """Return the question about the same call that is open: one that was granted, if any."""
        unsettled = [question for question in self._same_calls() if not question.is_settled]
        grantable = [question for question in unsettled if not question.unanswered]
        return next(reversed(grantable or unsettled), None)

    def _latest(self, own_question: HeldCall) -> HeldCall:
        """Return the newest question of a key about the same call: routed elsewhere and back, an
        earlier one counts again.
        """
        if self._request.approval:
            return own_question
        of_key = [each for each in self._same_calls() if each.key == own_question.key]
        return of_key[-1] if of_key else own_question

    def _same_calls(self) -> Sequence[HeldCall]:
        return self._fold.of_binding(self._binding) if self._fold is not None else ()

    def _refusal(self) -> Refusal | None:
        """Return the refusal of a call that somebody refused before (rule 3 of `held_calls`)."""
        fold = self._fold
        if fold is None:
            return None
        for question in self._same_calls():
            if question.refusal is not None:
                return refused_call(question, self._target.tool)
        if fold.refusals(self._place, self._target.tool) >= MAX_REFUSALS:
            text = (
                f"Not done: calls of {self._target.tool!r} were refused {MAX_REFUSALS} times at"
                " this step, and no further one is asked for. Go on without it."
            )
            return "denied", "approval_refused", text
        return None

    # --- what it comes to -------------------------------------------------------------------------

    def is_granted(self) -> bool:
        """Return whether somebody granted the call, and nobody used the grant yet."""
        moment = chain_now(self._run, self._at.ports.clock)
        question = self._known()
        if question is None or question.state(moment) != "granted":
            return False
        return void_reason(question, self._place, self._terms) is None

    def judge(self, wait_s: float) -> Hold | None:
        """Return what the call comes to; None where others wrote meanwhile, or the question's end
        was recorded, so that it is to be judged again. Raises RunBusy, StorageError.
        """
        requirement = self._requirement
        if not requirement.rows:
            return Permission(would=requirement.would)
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        moment = chain_now(self._run, self._at.ports.clock)
        question = self._known()
        if question is None:
            return self._ask(moment, wait_s)
        if not question.is_settled and question.is_past(moment):
            expire(self._at, question, question.expiry, wait_s)
            return None
        return self._judge_known(question, moment, wait_s)

    def _judge_known(self, question: HeldCall, moment: str, wait_s: float) -> Hold | None:
        state = question.state(moment)
        if state == "used" and self._is_attempt(question):
            return self._permit(question)
        if state == "expired" and self._is_named(question):
            return expired_call(question, self._target.tool)
        void = void_reason(question, self._place, self._terms)
        if state not in ("waiting", "granted"):
            return self._ask(moment, wait_s)
        if void is not None:
            return self._ask(moment, wait_s, void)
        if state == "granted":
            return self._permit(question)
        if self._run.read_on():  # its answer, maybe
            return None
        return self._wait(question, "")

    def _is_named(self, question: HeldCall) -> bool:
        """Return whether the call names the question, which is then over for it."""
        if self._request.approval:
            return self._request.approval == question.approval_id
        return bool(question.key) and question.key == self._request.key

    def _is_attempt(self, question: HeldCall) -> bool:
        """Return whether the call is a further attempt of the one that used the grant."""
        call = self._run.fold.keyed_call(self._request.key) if self._request.key else None
        return call is not None and call.call_id in question.used_by and call.outcome != "unknown"

    def _permit(self, question: HeldCall) -> Permission:
        return Permission((ApprovalUse(question.approval_id),), self._requirement.would)

    def _ask(self, moment: str, wait_s: float, void: VoidReason | None = None) -> Hold | None:
        """Record the question."""
        state = self._state
        tool = self._target.tool
        if "refuse" in (self._at.ports.approvals, state.decided.approvals):
            return needed_call(tool, self._requirement.rows)
        if self._run.read_on():
            return None
        server, _, short = tool.partition(".")
        request = self._request
        within_s = min(row.answer_within_s for row in self._requirement.rows)
        card = self._target.card
        record = ApprovalAsked(
            run_id=self._run.id,
            approval_id=next_approval_id(self._run),
            time=time_text(self._at.ports.clock.time_ns()),
            decision_id=state.decided.decision.decision_id,
            branch=self._place.branch,
            principal=self._place.principal,
            asked_by=request.asked_by,
            server=server,
            tool=short,
            bundle=self._target.bundle,
            via=request.via,
            key=request.key,
            arguments=encode(self._shown),
            hidden=self._hidden,
            arguments_digest=self._digest,
            artifacts=tuple([blob.stored_as(blob.sha256) for blob in request.arguments.blobs]),
            rows=self._requirement.required,
            terms=self._terms,
            card=card.sha256 if card is not None else "",
            catalog_revision=state.catalog.revision,
            binding=self._binding,
            answer_by=later(moment, within_s),
        )
        if self._run.append_call(record, compare=True, wait_s=wait_s) is None:
            return None
        fold = self._fold
        question = fold.question(record.approval_id) if fold is not None else None
        assert question is not None  # noqa: S101 - it was taken in as it was appended
        return self._wait(question, VOID_SENTENCES[void] if void is not None else "")

    def _wait(self, question: HeldCall, changed: str) -> WaitingCall:
        """Return the result of a call that waits."""
        times = self._run.asked_again[question.approval_id] = (
            self._run.asked_again.get(question.approval_id, 0) + 1
        )
        moment = chain_now(self._run, self._at.ports.clock)
        return WaitingCall(
            Result(
                outcome="awaiting_approval",
                text=waiting_text(question, changed, times),
                decision_id=self._state.decided.decision.decision_id,
                tool=question.tool,
                approval=approval_of(question, self._run.id, moment),
            )
        )


# --- what the agent reads -------------------------------------------------------------------------


def waiting_text(question: HeldCall, changed: str, times: int) -> str:
    """Return the text about a call that waits, made for the `times`th time."""
    anew = f" It was asked for anew: {changed}." if changed else ""
    stop = f" This was call {times} of it: end your turn now." if times > TOLD_TO_STOP else ""
    return (
        f"Not done: {question.tool} waits for approval {question.approval_id} until"
        f" {clock_words(question.answer_by)}. Nothing was changed.{anew} Called again with the same"
        f" arguments it says how it stands.{stop}"
    )


def clock_words(time: str) -> str:
    """Return a time of a record for an agent: the minute, with its day."""
    return f"{time[11:16]} UTC on {time[:10]}"


def refused_call(question: HeldCall, tool: str) -> Refusal:
    """Return the refusal of a call that somebody refused."""
    answer = question.refusal
    assert answer is not None  # noqa: S101 - the caller looked
    reason = f" The reason: {answer.reason}." if answer.reason else ""
    advice = f" Instead: {answer.advice}." if answer.advice else ""
    text = f"Not done: {tool!r} was refused with these arguments, and stays so.{reason}{advice}"
    return "denied", "approval_refused", text


def expired_call(question: HeldCall, tool: str) -> Refusal:
    """Return the refusal of a call whose question, or whose grant, has expired."""
    words = {
        "unanswered": "nobody answered in time",
        "unused": "its approval was not used in time",
        "run_closed": "the run was closed while it waited",
    }
    reason_words = words.get(question.expired, "its time is over")
    text = (
        f"Not done: {tool!r} waited for approval, and {reason_words}. Under this key it is not"
        " asked for again."
    )
    return "denied", "approval_expired", text


def needed_call(tool: str, rows: Sequence[ApprovalRow]) -> Refusal:
    """Return the refusal of a call where nobody may be asked."""
    names = ", ".join(repr(row.name) for row in rows)
    text = f"Not done: {tool!r} needs somebody's approval ({names}), and nobody is asked here."
    return "denied", "approval_needed", text


# --- its parts ------------------------------------------------------------------------------------


def shown_arguments(redactor: Redactor, request: CallRequest) -> tuple[Mapping[str, Any], int]:
    """Return the arguments as they will be run, without secrets, and how many values that took."""
    arguments = request.arguments
    value = arguments.value if arguments.asked is None else arguments.asked
    if arguments.blobs:
        value = json.loads(arguments.text)
    shown = redactor.redact_value(value)
    return shown, count_hidden(value, shown)


def count_hidden(value: Any, shown: Any) -> int:
    """Return how many values differ between arguments and what is shown of them."""
    if value == shown:
        return 0
    if isinstance(value, Mapping) and isinstance(shown, Mapping):
        inner = sum(map(count_hidden, value.values(), shown.values()))
        return max(1, inner)  # a name may be one, too
    if isinstance(value, list | tuple):
        return sum(map(count_hidden, value, shown))
    return 1


async def wait_for_answer(run: OpenRun, approval_id: str, clock: Clock, seconds: float) -> bool:
    """Wait until a question does not wait any more; return False where it still does then."""

    def waits(_wait_s: float) -> bool:
        run.read_on()
        fold = run.fold.approvals
        question = fold.question(approval_id) if fold is not None else None
        return question is not None and question.state(chain_now(run, clock)) == "waiting"

    pause_s = FIRST_LOOK_S
    try:
        async with asyncio.timeout(seconds):
            while await run.under_lock(partial(waits)):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_LOOK_S)
    except TimeoutError:
        return False
    return True
