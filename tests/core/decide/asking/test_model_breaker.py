"""The circuit breaker and the budget for second calls, as state machines."""

from __future__ import annotations

import pytest
from bundle_router.core.decide.asking.model_breaker import (
    BASE_S,
    MAX_ASKED_S,
    MAX_OPEN_S,
    TERMS,
    RetryBudget,
    classify,
    end_of,
)
from bundle_router.core.values import FAILURES, Failure
from bundle_router.core.values.breaker import Breaker, Ticket
from hypothesis import given
from hypothesis import strategies as st

SECOND = 10**9


def call(
    breaker: Breaker, failure: Failure | None, now: int, retry_after_s: float | None = None
) -> Breaker:
    breaker, ticket = breaker.admit(now)
    assert ticket is not None
    return breaker.settle(ticket, end_of(failure), now, retry_after_s)


def call_times(number: int, breaker: Breaker, failure: Failure) -> Breaker:
    for _ in range(number):
        breaker = call(breaker, failure, 0)
    return breaker


def test_a_key_that_is_refused_opens_it_at_once() -> None:
    breaker = call(Breaker(TERMS), "auth", 0)
    assert breaker.admit(int(BASE_S * SECOND) - 1)[1] is None
    assert breaker.admit(int(BASE_S * SECOND))[1] is not None


@pytest.mark.parametrize(
    "failure",
    [
        *("timeout", "rate_limited", "upstream_error", "invalid_output", "bad_request"),
        *("truncated", "internal"),
    ],
)
def test_five_of_these_in_a_row_open_it(failure: Failure) -> None:
    breaker = call_times(4, Breaker(TERMS), failure)
    after_a_success = call_times(4, call(breaker, None, 0), failure)
    assert after_a_success.admit(0)[1] is not None
    assert call(breaker, failure, 0).admit(0)[1] is None


@pytest.mark.parametrize("failure", ["context_window", "refused"])
def test_what_the_question_is_to_blame_for_does_not_count(failure: Failure) -> None:
    breaker = Breaker(TERMS)
    for _ in range(10):
        breaker = call(breaker, failure, 0)
    assert breaker == Breaker(TERMS)


def test_one_probe_at_a_time_and_its_answer_closes_it() -> None:
    breaker = call_times(5, Breaker(TERMS), "timeout")
    later = int(BASE_S * SECOND)
    breaker, probe = breaker.admit(later)
    assert probe is not None
    assert breaker.admit(later)[1] is None
    closed = breaker.settle(probe, end_of(None), later)
    assert closed.admit(later)[1] is not None
    assert closed.admit(later)[1] is not None


def test_a_failed_probe_doubles_the_wait_up_to_a_limit() -> None:
    breaker, now, waits = call_times(5, Breaker(TERMS), "timeout"), 0, []
    for _ in range(8):
        assert breaker.open_until_ns is not None
        waits.append((breaker.open_until_ns - now) / SECOND)
        now = breaker.open_until_ns
        breaker = call(breaker, "upstream_error", now)
    assert waits == [15, 30, 60, 120, 240, 300, 300, 300]


@pytest.mark.parametrize(
    ("asked", "wait"), [(7, 7), (60, 60), (10**9, MAX_ASKED_S), (0, None), (None, None)]
)
def test_retry_after_is_honoured_within_reason(asked: float | None, wait: float | None) -> None:
    breaker = call(Breaker(TERMS), "rate_limited", 0, asked)
    assert breaker.open_until_ns == (None if wait is None else wait * SECOND)


def test_a_late_answer_from_before_the_outage_is_not_heard() -> None:
    breaker, slow = Breaker(TERMS).admit(0)
    assert slow is not None
    opened = call(breaker, "auth", 0)
    assert opened.settle(slow, end_of(None), 1) == opened
    assert opened.settle(slow, end_of("timeout"), 1) == opened


def test_a_probe_that_was_given_up_frees_its_place() -> None:
    breaker, probe = call(Breaker(TERMS), "auth", 0).admit(int(BASE_S * SECOND))
    assert probe is not None
    assert breaker.release(probe).admit(int(BASE_S * SECOND))[1] is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "settle", "release"]),
            st.integers(0, 400 * SECOND),
            st.sampled_from([None, *FAILURES]),
            st.integers(0, 10),
        ),
        max_size=60,
    )
)
def test_whatever_happens_it_lets_nothing_through_while_open_and_never_two_probes(
    events: list[tuple[str, int, Failure | None, int]],
) -> None:
    breaker, now, out = Breaker(TERMS), 0, list[Ticket]()
    for what, passed, failure, which in events:
        now += passed
        if what == "admit":
            was = breaker
            breaker, ticket = breaker.admit(now)
            if ticket is not None:
                assert was.open_until_ns is None or now >= was.open_until_ns
                assert not (ticket.probe and any(t.probe and t.epoch == ticket.epoch for t in out))
                out.append(ticket)
        elif out:
            ticket = out.pop(which % len(out))
            breaker = (
                breaker.settle(ticket, end_of(failure), now)
                if what == "settle"
                else breaker.release(ticket)
            )
        if breaker.open_until_ns is not None:
            assert breaker.open_until_ns <= now + MAX_OPEN_S * SECOND, "it never closes for good"
    if breaker.probing:
        assert any(t.probe and t.epoch == breaker.epoch for t in out), "a probe that nobody holds"


@given(st.lists(st.booleans(), max_size=3_000))
def test_second_calls_stay_within_their_budget(wanted: list[bool]) -> None:
    budget, taken = RetryBudget(), 0
    for wants in wanted:
        budget = budget.deposit()
        after = budget.take() if wants else None
        if after is not None:
            budget, taken = after, taken + 1
    assert taken <= 10 + 0.08 * len(wanted)


@pytest.mark.parametrize(
    ("status", "kind", "text", "failure"),
    [
        (401, "BadRequestError", "", "auth"),
        (500, "AuthenticationError", "", "upstream_error"),
        (None, "APITimeoutError", "", "timeout"),
        (None, "ClientConnectorError", "", "upstream_error"),
        (None, "KeyError", "", "internal"),
        (400, "ContextWindowExceededError", "", "context_window"),
        (400, "BadRequestError", "prompt is too long: 9 tokens > 8", "context_window"),
        (400, "ContentPolicyViolationError", "", "refused"),
        (400, "BadRequestError", "x" * 1_000_000 + "context length", "bad_request"),
        (418, "Teapot", "", "bad_request"),
        (307, "APIStatusError", "", "upstream_error"),
    ],
)
def test_the_status_decides_and_then_the_words(
    status: int | None, kind: str, text: str, failure: Failure
) -> None:
    assert classify(status, kind, text) == failure


@given(st.none() | st.integers(0, 999), st.text(), st.text())
def test_every_error_is_one_of_the_closed_failures(
    status: int | None, kind: str, text: str
) -> None:
    assert classify(status, kind, text) in FAILURES
