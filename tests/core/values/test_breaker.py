"""The circuit breaker of models, embedders and tool servers, as a state machine."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Any

import pytest
from bundle_router.core.decide.asking.model_breaker import TERMS
from bundle_router.core.values.breaker import Breaker, BreakerTerms, End, Ticket
from hypothesis import given
from hypothesis import strategies as st

S = 10**9
FAILED_5: tuple[End, ...] = ("failed",) * 5
ANSWERED_20: tuple[End, ...] = ("answered",) * 20


def after(breaker: Breaker, *ends: End, now_ns: int = 0) -> Breaker:
    for end in ends:
        breaker, ticket = breaker.admit(now_ns)
        assert ticket is not None
        breaker = breaker.settle(ticket, end, now_ns)
    return breaker


def test_five_failures_in_a_row_open_it_and_a_success_between_them_does_not() -> None:
    assert after(Breaker(), *FAILED_5[1:]).open_until_ns is None
    assert after(Breaker(), *FAILED_5[1:], "answered", *FAILED_5[1:]).open_until_ns is None
    assert after(Breaker(), *FAILED_5).open_until_ns == 30 * S


def test_where_many_calls_ended_it_opens_by_their_share_and_not_by_a_row() -> None:
    busy = after(Breaker(), *ANSWERED_20)
    assert after(busy, *FAILED_5 * 3).open_until_ns is None, "15 of the last 20"
    assert after(busy, *FAILED_5 * 3, "failed").open_until_ns == 30 * S, "16 of the last 20"

    fails_mostly: tuple[End, ...] = ("failed", "failed", "failed", "answered")
    changing = after(busy, *fails_mostly * 20)
    assert changing.open_until_ns is None, "three of four fail, for ever"
    fails_more: tuple[End, ...] = ("failed", *fails_mostly)
    failing = after(busy, *fails_more * 3, *FAILED_5[1:])
    assert failing.open_until_ns == 30 * S, "four of five fail"


def test_calls_that_ended_a_minute_ago_are_not_of_the_share() -> None:
    busy = after(Breaker(), *ANSWERED_20)
    assert after(busy, *FAILED_5, now_ns=60 * S).open_until_ns is None, "the twenty count still"
    assert after(busy, *FAILED_5, now_ns=60 * S + 1).open_until_ns == 90 * S + 1


def test_failures_in_a_row_count_however_long_ago_the_first_was() -> None:
    breaker = Breaker()
    for number in range(5):
        assert breaker.open_until_ns is None
        breaker = after(breaker, "failed", now_ns=number * 300 * S)
    assert breaker.open_until_ns == 1_230 * S


def test_blameless_ends_are_counted_neither_way() -> None:
    blameless_30: tuple[End, ...] = ("blameless",) * 30
    assert after(Breaker(), *blameless_30) == Breaker()
    assert after(Breaker(), *FAILED_5[1:], "blameless", "failed").open_until_ns == 30 * S


def test_a_grave_failure_opens_it_at_once() -> None:
    busy = after(Breaker(), *ANSWERED_20)
    assert after(busy, "grave").open_until_ns == 30 * S


@pytest.mark.parametrize(
    ("asked_s", "open_s"), [(7.5, 7.5), (600.0, 600.0), (1e9, 900.0), (0.0, None), (None, None)]
)
def test_a_failure_that_says_when_to_come_back_is_obeyed(
    asked_s: float | None, open_s: float | None
) -> None:
    opened = Breaker().settle(Ticket(0, probe=False), "failed", 0, asked_s)
    assert opened.open_until_ns == (None if open_s is None else open_s * S)


def test_a_pause_that_was_asked_for_makes_no_later_one_longer() -> None:
    terms = BreakerTerms(base_s=10.0, growth=2.0)
    opened = Breaker(terms).settle(Ticket(0, probe=False), "failed", 0, 1.0)
    failed_probe = after(opened, "failed", now_ns=S)
    assert failed_probe.open_until_ns == 11 * S
    assert after(failed_probe, "failed", now_ns=11 * S).open_until_ns == 31 * S


@pytest.mark.parametrize(
    ("end", "epoch", "open_until_s"),
    [("answered", 2, None), ("blameless", 2, None), ("failed", 2, 60), ("grave", 2, 60)],
)
def test_half_open_lets_one_probe_through_and_its_end_decides(
    end: End, epoch: int, open_until_s: int | None
) -> None:
    breaker = after(Breaker(), *FAILED_5)
    assert breaker.admit(30 * S - 1)[1] is None
    breaker, probe = breaker.admit(30 * S)
    assert probe == Ticket(1, probe=True)
    assert breaker.admit(31 * S)[1] is None
    breaker = breaker.settle(probe, end, 30 * S)
    assert (breaker.epoch, breaker.open_until_ns) == (
        epoch,
        None if open_until_s is None else open_until_s * S,
    )


def test_what_a_call_of_an_earlier_epoch_came_to_is_not_heard() -> None:
    breaker, early = Breaker().admit(0)
    assert early is not None
    breaker = after(breaker, *FAILED_5)
    assert breaker.settle(early, "answered", 0) is breaker


def test_a_probe_nobody_waited_for_is_free_again() -> None:
    breaker, probe = after(Breaker(), *FAILED_5).admit(30 * S)
    assert probe is not None
    assert breaker.release(probe).admit(30 * S)[1] is not None


def test_it_stays_open_longer_with_every_failed_probe_up_to_a_limit_and_as_asked_up_to_another() -> (
    None
):
    terms = BreakerTerms(errors_in_a_row=1, base_s=10, growth=2.0, max_open_s=35, max_asked_s=50)
    breaker, now, waits = Breaker(terms), 0, []
    for asked in (None, None, None, 40.0, 1e9):
        breaker, ticket = breaker.admit(now)
        assert ticket is not None
        breaker = breaker.settle(ticket, "failed", now, asked)
        waits.append(breaker.opens_again_in_s(now))
        now = breaker.open_until_ns or 0
    assert waits == [10, 20, 35, 40, 50]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answered", "blameless", "failed", "grave", "abandoned"]),
            st.integers(0, 40),
        )
    )
)
def test_never_two_probes_and_never_a_call_while_it_is_open(steps: list[tuple[Any, int]]) -> None:
    breaker, now = Breaker(), 0
    for end, seconds in steps:
        now += seconds * S
        breaker, ticket = breaker.admit(now)
        if ticket is None:
            assert breaker.open_until_ns is not None
            assert now < breaker.open_until_ns
            continue
        if ticket.probe:
            assert breaker.admit(now)[1] is None
        breaker = (
            breaker.release(ticket) if end == "abandoned" else breaker.settle(ticket, end, now)
        )


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=80))
def test_it_opens_exactly_when_the_rule_read_over_all_ends_says_so(
    calls: list[tuple[bool, int]],
) -> None:
    """Rule 3, read anew over the whole history at each end."""
    breaker, history, now = Breaker(), list[tuple[int, bool]](), 0
    for failed, seconds in calls:
        now += seconds * S
        history.append((now, failed))
        breaker = breaker.settle(Ticket(0, probe=False), "failed" if failed else "answered", now)

        lately = [fails for at, fails in history[-20:] if now - at <= 60 * S]
        if len(lately) == 20:
            too_many = sum(lately) >= 16
        else:
            too_many = [fails for _, fails in history[-5:]] == [True] * 5
        assert (breaker.open_until_ns is not None) == (failed and too_many)
        if breaker.open_until_ns is not None:
            return


# --- what is lost by asking, and by not asking ----------------------------------------------------


@dataclass
class Sums:
    """Shares of all questions, in percent."""

    answered: float = 0.0
    failed: float = 0.0
    """Lost by asking: asked, waited for, and not answered."""
    not_asked: float = 0.0
    """Lost by not asking: the model would have answered."""


def simulate(rate: float, per_s: float, single_failure: End) -> Sums:
    """Return what comes of 6,000 questions to a model that fails `rate` of them, after 2.5 s; it
    answers the others after 0.5 s.
    """
    chance = random.Random(1)
    breaker, sums, share = Breaker(TERMS), Sums(), 100 / 6_000
    under_way: list[tuple[int, int, Ticket, End]] = []
    for number in range(6_000):
        now = int(number / per_s * S)
        while under_way and under_way[0][0] <= now:
            ended, _, ticket, end = heapq.heappop(under_way)
            breaker = breaker.settle(ticket, end, ended)

        fails = chance.random() < rate
        breaker, leave = breaker.admit(now)
        if leave is None:
            sums.not_asked += 0.0 if fails else share
        elif fails:
            sums.failed += share
            heapq.heappush(under_way, (now + 5 * S // 2, number, leave, single_failure))
        else:
            sums.answered += share
            heapq.heappush(under_way, (now + S // 2, number, leave, "answered"))
    return sums


@pytest.mark.parametrize("per_s", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    ("rate", "may_lose"),
    [(0.005, 0), (0.02, 0), (0.05, 0), (0.1, 0.1), (0.2, 0.2), (0.3, 0.5), (0.4, 3), (0.5, 15)],
)
def test_a_model_that_fails_up_to_half_of_its_questions_answers_the_others(
    rate: float, may_lose: float, per_s: float
) -> None:
    """`may_lose`: percent of the questions that were not asked and would have been answered."""
    sums = simulate(rate, per_s, "failed")
    assert sums.not_asked <= may_lose
    assert sums.answered == pytest.approx(100 * (1 - rate), abs=may_lose + 0.6)


def test_opening_at_one_failure_would_lose_most_answers() -> None:
    """What the simulation says of the rule that was: it tells the two apart."""
    assert simulate(0.02, 10.0, "grave").not_asked > 55.0


@pytest.mark.parametrize(("per_s", "asked"), [(0.1, 5), (1.0, 19), (10.0, 42)])
def test_an_outage_of_a_minute_is_noticed_after_a_few_questions(per_s: float, asked: int) -> None:
    """A minute of answers, a minute in which each question is a timeout of 2.5 s."""
    breaker, count = Breaker(TERMS), 0
    under_way: list[tuple[int, int, Ticket, End]] = []
    for number in range(int(120 * per_s)):
        now = int(number / per_s * S)
        is_down = now >= 60 * S
        while under_way and under_way[0][0] <= now:
            ended, _, ticket, end = heapq.heappop(under_way)
            breaker = breaker.settle(ticket, end, ended)
        breaker, leave = breaker.admit(now)
        if leave is None:
            continue
        count += is_down
        if is_down:
            heapq.heappush(under_way, (now + 5 * S // 2, number, leave, "failed"))
        else:
            heapq.heappush(under_way, (now + S // 2, number, leave, "answered"))
    assert count == asked
