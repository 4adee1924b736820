"""Calls that wait for somebody's word, at the face of the router: asked, answered, used once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from bundle_router import Catalog, Result, Step
from bundle_router.errors import (
    ApprovalChanged,
    KeyConflict,
    NotAnApprover,
    RequestError,
    StorageError,
    UnknownApproval,
)
from bundle_router.testing import MemoryRuns, fake_router

from tests.engine.bank import DAY_S, DENIAL, EUR, IS_SECRET, OPEN, ROW, STEP, Desk, bank, row


@pytest.fixture(autouse=True)
def _routers_are_closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close_sync()


def test_a_call_that_is_granted_runs_once_and_its_start_names_the_approval() -> None:
    desk = Desk().begin()
    held = desk.call()
    assert (held.outcome, desk.made) == ("awaiting_approval", 0)
    assert "Not done: bank.transfer waits for approval" in held.text
    assert desk.router.grant_sync(desk.id_of(held), by="lead").state == "granted"
    assert (desk.call().outcome, desk.made) == ("ok", 1)
    (started,) = desk.records("call.started")
    assert started["approvals"] == [{"id": desk.id_of(held)}]
    assert desk.router.approval_sync(desk.id_of(held)).state == "used"
    assert desk.call().outcome == "awaiting_approval"  # one grant runs one call


def test_what_an_exemption_covers_does_not_wait_and_what_it_can_not_decide_does() -> None:
    desk = Desk().begin()
    assert desk.call({"amount": 500, "currency": "EUR"}).outcome == "ok"
    assert desk.call({"amount": 500}).outcome == "awaiting_approval"
    assert desk.call({"amount": "5", "currency": "EUR"}).outcome == "awaiting_approval"


def test_other_arguments_are_another_question_and_under_the_key_a_conflict() -> None:
    desk = Desk().begin()
    held = desk.call(key="pay-7")
    desk.router.grant_sync(desk.id_of(held), by="lead")
    with pytest.raises(KeyConflict, match="other arguments"):
        desk.call({**EUR, "amount": 701}, key="pay-7")
    other = desk.call({**EUR, "amount": 701})
    assert other.outcome == "awaiting_approval"
    assert desk.id_of(other) != desk.id_of(held)
    assert desk.made == 0


# --- what an answer rests on ----------------------------------------------------------------------


def moved(catalog: Catalog, before: Desk) -> Desk:
    """Return another worker over the same runs, under another config, at the same step."""
    return Desk(catalog, before.runs).begin()


def test_an_edit_of_the_row_voids_a_grant_and_the_call_is_asked_for_anew() -> None:
    desk = Desk().begin()
    held = desk.call(key="pay-7")
    desk.router.grant_sync(desk.id_of(held), by="lead")
    edited = moved(bank(row(persons=2)), desk)
    again = edited.call(key="pay-7")
    assert again.outcome == "awaiting_approval"
    assert edited.id_of(again) != desk.id_of(held)
    assert "asked for anew: the rows that ask for it were edited since" in again.text
    assert edited.router.approval_sync(desk.id_of(held)).void == "row_changed"
    assert edited.made == 0


def test_another_definition_of_the_tool_voids_a_grant() -> None:
    desk = Desk().begin()
    held = desk.call(key="pay-7")
    desk.router.grant_sync(desk.id_of(held), by="lead")
    catalog = bank()
    card = replace(catalog.cards["bank.transfer"], sha256="sha256:" + "1" * 64)
    edited = moved(replace(catalog, cards={**catalog.cards, card.name: card}), desk)
    again = edited.call(key="pay-7")
    assert "the tool or its server is another one since" in again.text
    assert edited.made == 0


def test_an_edit_elsewhere_voids_nothing() -> None:
    desk = Desk().begin()
    held = desk.call(key="pay-7")
    desk.router.grant_sync(desk.id_of(held), by="lead")
    other = row(name="mails", calls=("tool:mail.send",))
    edited = moved(bank(ROW, other), desk)
    assert edited.router.catalog.revision != desk.router.catalog.revision
    assert (edited.call(key="pay-7").outcome, edited.made) == ("ok", 1)


def test_a_row_that_was_added_voids_a_grant_for_it_was_not_asked() -> None:
    desk = Desk().begin()
    held = desk.call()
    edited = moved(bank(ROW, row(name="also")), desk)
    with pytest.raises(ApprovalChanged, match="the rows that ask for it were edited"):
        edited.router.grant_sync(desk.id_of(held), by="lead")
    assert edited.call().outcome == "awaiting_approval"


def test_policy_that_denies_the_tool_since_refuses_a_granted_call() -> None:
    desk = Desk().begin()
    held = desk.call(key="pay-7")
    desk.router.grant_sync(desk.id_of(held), by="lead")
    stricter = moved(bank(policies=[DENIAL]), desk)
    assert (stricter.call(key="pay-7").code, stricter.made) == ("policy_denied", 0)
    assert stricter.router.approval_sync(desk.id_of(held)).state == "granted"


def test_nobody_is_asked_about_a_call_that_policy_denies() -> None:
    denied = bank(policies=[DENIAL])
    desk = Desk(denied).begin()
    assert desk.call().code == "policy_denied"
    assert desk.records("approval.asked") == []


def test_the_step_routed_again_voids_nothing_and_another_place_does() -> None:
    desk = Desk().begin()
    held = desk.call()
    desk.router.grant_sync(desk.id_of(held), by="lead")
    desk.begin()  # the same address, another decision
    desk.begin(STEP.model_copy(update={"step": "report"}))
    assert desk.call().outcome == "awaiting_approval"  # asked anew at this place
    asked = desk.call(key="x")
    desk.begin()
    with pytest.raises(ApprovalChanged, match="the run stands at another step"):
        desk.router.grant_sync(desk.id_of(asked), by="lead")
    assert (desk.call().outcome, desk.made) == ("ok", 1)  # the earlier grant counts here again


# --- who may answer -------------------------------------------------------------------------------


def test_the_steps_own_principal_may_not_answer_and_somebody_else_may() -> None:
    desk = Desk().begin()
    held = desk.call()
    with pytest.raises(NotAnApprover, match="the side that asked"):
        desk.router.grant_sync(desk.id_of(held), by="ann")
    with pytest.raises(NotAnApprover):
        desk.router.refuse_sync(desk.id_of(held), by="ann")
    assert desk.records("approval.granted") == []
    assert desk.router.grant_sync(desk.id_of(held), by="lead").state == "granted"


def test_a_row_that_names_self_takes_the_principals_own_word() -> None:
    desk = Desk(bank(row(approvers=("self",)))).begin()
    assert desk.router.grant_sync(desk.id_of(desk.call()), by="ann").state == "granted"


def test_two_persons_are_two_and_one_person_twice_is_one() -> None:
    desk = Desk(bank(row(persons=2))).begin()
    id_ = desk.id_of(desk.call())
    assert desk.router.grant_sync(id_, by="lead").state == "waiting"
    with pytest.raises(ApprovalChanged, match="has granted"):
        desk.router.grant_sync(id_, by="lead")
    assert desk.call().outcome == "awaiting_approval"
    assert desk.router.grant_sync(id_, by="chief").granted_by == ("lead", "chief")
    assert (desk.call().outcome, desk.made) == ("ok", 1)


def test_every_row_has_to_be_answered() -> None:
    desk = Desk(bank(ROW, row(name="also", approvers=("self",)))).begin()
    id_ = desk.id_of(desk.call())
    assert desk.router.grant_sync(id_, by="ann").state == "waiting"  # the row that names self
    assert desk.router.grant_sync(id_, by="lead").state == "granted"


def test_a_grant_of_what_was_not_shown_is_refused() -> None:
    desk = Desk().begin()
    held = desk.call()
    with pytest.raises(ApprovalChanged, match="another call than the one that was shown"):
        desk.router.grant_sync(desk.id_of(held), by="lead", binding="sha256:" + "0" * 64)
    assert held.approval is not None
    granted = desk.router.grant_sync(held.approval.id, by="lead", binding=held.approval.binding)
    assert granted.state == "granted"


@pytest.mark.parametrize("by", ["", " ", "x" * 201])
def test_an_answer_names_who_gives_it(by: str) -> None:
    desk = Desk().begin()
    with pytest.raises(RequestError, match="by= has to name"):
        desk.router.grant_sync(desk.id_of(desk.call()), by=by)


# --- time -----------------------------------------------------------------------------------------


def test_silence_is_no_for_the_key_for_good_and_a_late_grant_counts_nowhere() -> None:
    desk = Desk().begin()
    held = desk.call(key="pay-7")
    desk.router.fakes.clock.advance(DAY_S + 1)
    with pytest.raises(ApprovalChanged, match="has expired"):
        desk.router.grant_sync(desk.id_of(held), by="lead")
    again = desk.call(key="pay-7")
    assert (again.outcome, again.code, again.decision_id) == (
        "denied",
        "approval_expired",
        held.decision_id,
    )
    (expired,) = desk.records("approval.expired")
    assert (expired["code"], desk.records("approval.granted")) == ("unanswered", [])
    assert desk.call(key="pay-8").outcome == "awaiting_approval"
    assert desk.call().outcome == "awaiting_approval"


def test_a_grant_that_is_not_used_in_time_expires() -> None:
    desk = Desk().begin()
    held = desk.call()
    desk.router.grant_sync(desk.id_of(held), by="lead")
    desk.router.fakes.clock.advance(3_601)
    again = desk.call()
    assert again.outcome == "awaiting_approval"
    assert desk.id_of(again) != desk.id_of(held)
    assert [row["code"] for row in desk.records("approval.expired")] == ["unused"]


def test_a_slow_clock_does_not_stretch_a_grant_and_a_fast_one_says_how_far_it_was_ahead() -> None:
    runs = MemoryRuns()
    slow, right, fast = Desk(runs=runs), Desk(runs=runs), Desk(runs=runs)
    right.router.fakes.clock.advance(600)
    fast.router.fakes.clock.advance(600 + 10 * DAY_S)
    right.begin()
    held = right.call(key="a")
    right.router.grant_sync(right.id_of(held), by="lead")
    right.router.fakes.clock.advance(3_601)
    right.call({"amount": 1, "currency": "EUR"})  # the chain knows the time now
    assert slow.call(key="a").code == "approval_expired"

    held = right.call(key="b")
    right.router.grant_sync(right.id_of(held), by="lead")
    assert fast.call(key="b").code == "approval_expired"
    (_, expired) = right.records("approval.expired")
    assert expired["own_clock"] > right.records("approval.granted")[-1]["use_by"]


# --- refusal --------------------------------------------------------------------------------------


def test_a_refusal_stays_and_other_arguments_are_asked_for() -> None:
    desk = Desk().begin()
    held = desk.call()
    desk.router.refuse_sync(desk.id_of(held), by="lead", reason="too much", advice="split it")
    for key in ("", "a", "b"):
        again = desk.call(key=key)
        assert (again.code, again.retryable) == ("approval_refused", False)
        assert "The reason: too much. Instead: split it." in again.text
    assert len(desk.records("approval.asked")) == 1
    assert desk.call({**EUR, "amount": 701}).outcome == "awaiting_approval"


def test_three_refusals_of_a_tool_at_a_place_refuse_it_there() -> None:
    desk = Desk().begin()
    for amount in (701, 702, 703):
        held = desk.call({**EUR, "amount": amount})
        desk.router.refuse_sync(desk.id_of(held), by="lead")
    assert desk.call({**EUR, "amount": 704}).code == "approval_refused"
    assert len(desk.records("approval.asked")) == 3
    desk.begin(STEP.model_copy(update={"step": "report"}))
    assert desk.call({**EUR, "amount": 704}).outcome == "awaiting_approval"


def test_what_was_refused_at_one_place_is_asked_for_at_another() -> None:
    desk = Desk().begin()
    desk.router.refuse_sync(desk.id_of(desk.call()), by="lead")
    desk.begin(STEP.model_copy(update={"step": "report"}))
    assert desk.call().outcome == "awaiting_approval"
    desk.begin()
    assert desk.call().code == "approval_refused"


def test_a_grant_may_be_taken_back_before_its_use_and_not_after_its_end() -> None:
    desk = Desk().begin()
    id_ = desk.id_of(desk.call())
    desk.router.grant_sync(id_, by="lead")
    assert desk.router.refuse_sync(id_, by="chief").state == "refused"
    assert (desk.call().code, desk.made) == ("approval_refused", 0)

    other = desk.id_of(desk.call({**EUR, "amount": 800}))
    desk.router.grant_sync(other, by="lead")
    assert desk.call({**EUR, "amount": 800}).ok
    with pytest.raises(ApprovalChanged, match="was used"):
        desk.router.refuse_sync(other, by="lead")


def test_a_grant_taken_back_while_its_call_runs_is_on_record_and_the_call_goes_on() -> None:
    runs = MemoryRuns()
    chief = Desk(runs=runs)
    states: list[str] = []

    def transfer(arguments: Mapping[str, Any]) -> str:
        def take_back() -> None:
            states.append(chief.router.refuse_sync(id_, by="chief").state)

        thread = threading.Thread(target=take_back)
        thread.start()
        thread.join(60)
        return "done"

    desk = Desk(runs=runs, transfer=transfer).begin()
    id_ = desk.id_of(desk.call())
    desk.router.grant_sync(id_, by="lead")
    assert desk.call().ok
    assert (states, len(desk.records("approval.refused"))) == (["used"], 1)
    assert desk.call().code == "approval_refused"


def test_a_question_that_was_withdrawn_asks_nobody_and_may_be_asked_again() -> None:
    desk = Desk().begin()
    held = desk.call(key="pay-7")
    assert desk.router.withdraw_sync(desk.id_of(held), reason="not needed").state == "withdrawn"
    with pytest.raises(ApprovalChanged, match="is withdrawn"):
        desk.router.grant_sync(desk.id_of(held), by="lead")
    assert desk.router.approvals_sync() == ()
    assert desk.call(key="pay-7").outcome == "awaiting_approval"


# --- several workers, and who goes on -------------------------------------------------------------


def test_sixteen_workers_call_a_granted_call_at_once_and_it_runs_once() -> None:
    runs = MemoryRuns()
    desks = [Desk(runs=runs) for _ in range(16)]
    desks[0].begin()
    held = desks[0].call(key="pay-7")
    desks[1].router.grant_sync(desks[0].id_of(held), by="lead")

    async def all_at_once() -> list[Result]:
        calls = [desk.router.call("r-1", "bank.transfer", EUR, key="pay-7") for desk in desks]
        return await asyncio.gather(*calls)

    results = asyncio.run(all_at_once())
    assert {result.outcome for result in results} == {"ok"}
    assert sum(desk.made for desk in desks) == 1
    assert len(desks[0].records("call.started")) == 1


def test_identical_calls_without_a_key_share_a_question_and_one_grant_runs_one() -> None:
    desk = Desk().begin()

    async def both() -> list[Result]:
        call = desk.router.call
        return await asyncio.gather(*[call("r-1", "bank.transfer", EUR) for _ in range(2)])

    first = asyncio.run(both())
    assert {desk.id_of(result) for result in first} == {desk.id_of(first[0])}
    desk.router.grant_sync(desk.id_of(first[0]), by="lead")
    assert sorted(result.outcome for result in asyncio.run(both())) == ["awaiting_approval", "ok"]
    assert (desk.made, len(desk.records("approval.asked"))) == (1, 2)


def test_two_keys_are_two_questions_unless_the_second_joins() -> None:
    desk = Desk().begin()
    first, second = desk.call(key="a"), desk.call(key="b")
    assert desk.id_of(first) != desk.id_of(second)
    desk.router.grant_sync(desk.id_of(first), by="lead")
    assert desk.call(key="b").outcome == "awaiting_approval"
    joined = desk.call(key="c", join=True)
    assert (joined.outcome, desk.made) == ("ok", 1)
    assert desk.call(key="a").outcome == "awaiting_approval"


def test_a_held_call_goes_on_by_its_approval_hours_later_in_another_worker() -> None:
    runs = MemoryRuns()
    desk, later = Desk(runs=runs).begin(), Desk(runs=runs)
    id_ = desk.id_of(desk.call())
    desk.router.grant_sync(id_, by="lead")
    later.router.fakes.clock.advance(3_000)
    assert later.call(approval=id_).ok
    again = later.call(approval=id_)  # once, as with a key
    assert (again.cached_from != "", later.made) == (True, 1)
    with pytest.raises(KeyConflict, match="other arguments"):
        later.call({**EUR, "amount": 1}, approval=id_)


def test_the_handle_of_another_run_is_refused() -> None:
    desk = Desk().begin()
    id_ = desk.id_of(desk.call())
    desk.router.route_sync(STEP.model_copy(update={"run_id": "r-2"}))
    with pytest.raises(UnknownApproval, match="in the run that it belongs to"):
        desk.router.call_sync("r-2", "bank.transfer", EUR, approval=id_)
    with pytest.raises(UnknownApproval):
        desk.router.grant_sync("ap_r-9.1", by="lead")
    with pytest.raises(UnknownApproval, match="is not the id of a question"):
        desk.router.grant_sync("r-1", by="lead")


def test_a_worker_that_dies_after_the_grant_loses_nothing_and_after_the_start_asks_anew() -> None:
    runs, entered, is_over = MemoryRuns(), threading.Event(), threading.Event()

    def transfer(arguments: Mapping[str, Any]) -> str:
        entered.set()
        assert is_over.wait(60)
        return "never heard"

    first, second = Desk(runs=runs, transfer=transfer).begin(), Desk(runs=runs)
    id_ = first.id_of(first.call(key="pay-7"))
    second.router.grant_sync(id_, by="lead")

    def call_and_die() -> None:
        with pytest.raises(StorageError):
            first.call(key="pay-7")

    dying = threading.Thread(target=call_and_die)
    dying.start()
    assert entered.wait(60)
    first.router.fakes.store.kill()
    assert second.call(key="pay-7").outcome == "unknown"
    assert second.call(key="pay-8").outcome == "awaiting_approval"
    assert second.made == 0

    def dead(*_: object) -> None:
        raise StorageError("the worker is gone", kind="io_error")

    first.router.fakes.store.before = dead
    is_over.set()
    dying.join(60)
    OPEN.remove(first.router)


def test_whoever_waits_for_the_answer_gets_the_result_or_gives_up_without_an_answer() -> None:
    desk = Desk().begin()

    async def wait() -> tuple[Result, Result]:
        given_up = await desk.router.call("r-1", "bank.transfer", EUR, wait_s=0.01)
        waiting = asyncio.create_task(desk.router.call("r-1", "bank.transfer", EUR, wait_s=30.0))
        await asyncio.sleep(0)
        await desk.router.grant(desk.id_of(given_up), by="lead")
        return given_up, await waiting

    given_up, result = asyncio.run(wait())
    assert (given_up.outcome, result.outcome, desk.made) == ("awaiting_approval", "ok", 1)
    assert len(desk.records("approval.asked")) == 1


def test_a_cancelled_wait_leaves_the_question() -> None:
    desk = Desk().begin()

    async def cancel() -> None:
        waiting = asyncio.create_task(desk.router.call("r-1", "bank.transfer", EUR, wait_s=30.0))
        while not desk.records("approval.asked"):  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel())
    (waiting,) = desk.router.approvals_sync("r-1")
    assert desk.router.grant_sync(waiting.id, by="lead").state == "granted"


def test_a_waiting_call_leaves_one_record_and_after_the_fifth_call_is_told_to_stop() -> None:
    desk = Desk().begin()
    texts = [desk.call().text for _ in range(60)]
    lines = desk.router.fakes.store.log("r-1").lines
    assert [record["type"] for _, record in lines] == ["route.decided", "approval.asked"]
    assert "end your turn" not in texts[4]
    assert "This was call 6 of it: end your turn now." in texts[5]


# --- ends, and where nobody is --------------------------------------------------------------------


def test_a_run_that_is_closed_lets_its_questions_expire() -> None:
    desk = Desk().begin()
    waiting, granted = desk.call(key="a"), desk.call({**EUR, "amount": 701}, key="b")
    desk.router.grant_sync(desk.id_of(granted), by="lead")
    desk.router.close_run_sync("r-1")
    assert [row["code"] for row in desk.records("approval.expired")] == ["run_closed"] * 2
    desk.begin()
    assert desk.call(key="a").code == "approval_expired"
    assert desk.router.approval_sync(desk.id_of(waiting)).state == "expired"


def test_an_idle_run_is_kept_open_while_somebodys_word_is_waited_for() -> None:
    desk = Desk().begin()
    desk.call()

    async def idle() -> tuple[bool, bool]:
        first = await desk.router.endpoint.close_idle("r-1")
        desk.router.fakes.clock.advance(DAY_S + 1)
        return first, await desk.router.endpoint.close_idle("r-1")

    assert asyncio.run(idle()) == (False, True)
    assert [row["code"] for row in desk.records("approval.expired")] == ["unanswered"]


def test_where_nobody_is_asked_a_call_that_would_wait_is_refused_at_once() -> None:
    desk = Desk().begin(STEP.model_copy(update={"approvals": "refuse"}))
    refused = desk.call()
    assert (refused.outcome, refused.code) == ("denied", "approval_needed")
    assert "needs somebody's approval ('over 500')" in refused.text
    assert desk.records("approval.asked") == []
    assert desk.call({"amount": 1, "currency": "EUR"}).ok


def test_a_step_keeps_under_its_key_whether_anybody_is_asked() -> None:
    desk = Desk().begin(STEP.model_copy(update={"approvals": "refuse", "key": "s"}))
    with pytest.raises(KeyConflict, match="approvals"):
        desk.begin(STEP.model_copy(update={"key": "s"}))


def test_a_budget_that_is_used_up_meanwhile_refuses_a_granted_call() -> None:
    catalog = bank()
    limits = replace(catalog.settings.limits, calls_per_step=1)
    bounded = replace(catalog, settings=replace(catalog.settings, limits=limits))
    desk = Desk(bounded).begin()
    desk.router.grant_sync(desk.id_of(desk.call()), by="lead")
    assert desk.call({"amount": 1, "currency": "EUR"}).ok
    assert desk.call().outcome == "budget"


def test_a_granted_call_is_not_refused_as_a_repeated_one() -> None:
    catalog = bank()
    limits = replace(catalog.settings.limits, repeated_calls=2)
    bounded = replace(catalog, settings=replace(catalog.settings, limits=limits))
    desk = Desk(bounded).begin()
    for _ in range(3):
        desk.router.grant_sync(desk.id_of(desk.call(key="")), by="lead")
        assert desk.call().ok
    assert desk.call().code == "repeated_calls"  # not granted: nobody is asked about it


def test_a_row_that_is_not_enforced_holds_nothing_and_is_on_record() -> None:
    desk = Desk(bank(row(enforce=False))).begin()
    assert desk.call().ok
    (started,) = desk.records("call.started")
    assert started["would"] == ["over 500"]
    assert "approvals" not in started


def test_a_row_of_an_ancestors_address_holds_the_childs_call() -> None:
    desk = Desk(bank(row(role=("clerk",)))).begin()
    child = Step(
        run_id="r-2",
        workflow="payments",
        role="helper",
        step="pay",
        principal="ann",
        parent_run_id="r-1",
    )
    desk.router.route_sync(child)
    held = desk.router.call_sync("r-2", "bank.transfer", EUR)
    assert held.outcome == "awaiting_approval"
    (listed,) = desk.router.approvals_sync("r-1")  # the child's is listed at its root
    assert listed.id == desk.id_of(held)
    desk.router.grant_sync(listed.id, by="lead")
    assert desk.router.call_sync("r-2", "bank.transfer", EUR).ok


def test_lists_have_the_soonest_bound_first_and_one_state() -> None:
    soon = row(name="soon", calls=("tool:mail.send",), unless=(), answer_within_s=60)
    desk = Desk(bank(ROW, soon)).begin()
    late = desk.call()
    desk.router.route_sync(STEP.model_copy(update={"run_id": "r-2"}))
    early = desk.router.call_sync("r-2", "mail.send", {"to": "x"})
    ids = [one.id for one in desk.router.approvals_sync()]
    assert ids == [desk.id_of(early), desk.id_of(late)]
    assert [one.arguments for one in desk.router.approvals_sync("r-2")] == ['{"to":"x"}']
    assert desk.router.approvals_sync(state="granted") == ()
    with pytest.raises(RequestError, match="unknown state 'open'"):
        desk.router.approvals_sync(state="open")


def test_a_toolset_names_the_tools_that_a_row_may_hold_and_shows_them_as_ever() -> None:
    held = Desk().begin().router.tools_sync("r-1")
    plain = Desk(replace(bank(), approvals=())).begin().router.tools_sync("r-1")
    assert (held.held, plain.held) == (("bank.transfer",), ())
    assert held.digest == plain.digest


def test_secrets_are_counted_and_never_exempt() -> None:
    router = fake_router(bank(row(unless=(IS_SECRET,))), secrets=["topsecret"])
    OPEN.append(router)
    router.route_sync(STEP)
    held = router.call_sync("r-1", "bank.transfer", {"memo": "topsecret", "amount": 1})
    assert held.approval is not None
    assert held.approval.hidden == 1
    (listed,) = router.approvals_sync()
    assert "topsecret" not in listed.arguments


def test_without_rows_a_run_is_recorded_as_ever() -> None:
    desk = Desk(replace(bank(), approvals=())).begin()
    assert desk.call().ok
    for _, record in desk.router.fakes.store.log("r-1").lines:
        assert not {"approvals", "would"} & record.keys()
    assert desk.router.approvals_sync(state=None) == ()
