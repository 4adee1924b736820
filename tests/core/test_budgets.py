"""The budget of a step as arithmetic: what counts, when it is used up, and what going round in circles means."""

from __future__ import annotations

import pytest
from bundle_router.core.catalog import CallLimits
from bundle_router.core.decide.budgets import WINDOW, Spent, begun, ended, over_budget
from hypothesis import given
from hypothesis import strategies as st


def after(calls: list[tuple[int, int]], spent: Spent | None = None) -> Spent:
    """What was spent after calls of (asked, answered), of 10 bytes and 100 ms each."""
    spent = spent or Spent()
    for asked, answered in calls:
        spent = ended(begun(spent), asked, answered, 10, 100.0)
    return spent


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (CallLimits(calls_per_step=3), "calls_per_step"),
        (CallLimits(result_bytes_per_step=30), "result_bytes_per_step"),
        (CallLimits(call_seconds_per_step=0.3), "call_seconds_per_step"),
    ],
)
def test_the_call_that_finds_a_budget_used_up_is_the_first_that_is_refused(limits: CallLimits, code: str) -> None:
    calls = [(n, n) for n in range(3)]
    assert over_budget(limits, after(calls[:2]), 99) is None
    refused = over_budget(limits, after(calls), 99)
    assert refused is not None
    assert refused[0] == code


CIRCLES: dict[str, tuple[list[tuple[int, int]], int]] = {
    "the same over and over": ([(1, 1)] * 5, 4),
    "two by turns": ([(1, 1), (2, 2)] * 3, 4),
    "a circle as long as the window": ([(n, n) for n in range(WINDOW)] * 2, WINDOW),
    "a longer one is none": ([(n, n) for n in range(WINDOW + 1)] * 2, 0),
    "another answer each time": ([(1, n) for n in range(9)], 0),
    "another question each time": ([(n, 1) for n in range(9)], 0),
    "something new in between": ([(1, 1)] * 5 + [(2, 2)], 0),
}


@pytest.mark.parametrize("case", CIRCLES)
def test_repetitions_in_a_row_are_counted(case: str) -> None:
    calls, repeats = CIRCLES[case]
    assert after(calls).repeats == repeats


def test_the_calls_of_a_circle_are_refused_and_anything_else_is_the_way_out() -> None:
    limits = CallLimits(repeated_calls=4)
    round_and_round = after([(1, 1), (2, 2)] * 3)
    assert (over_budget(limits, round_and_round, 1) or ("",))[0] == "repeated_calls"
    assert (over_budget(limits, round_and_round, 2) or ("",))[0] == "repeated_calls"
    assert over_budget(limits, round_and_round, 3) is None
    assert over_budget(limits, after([(3, 3)], round_and_round), 1) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40), st.integers(1, 12))
def test_whoever_is_refused_for_repeating_has_asked_that_and_got_that_before(
    calls: list[tuple[int, int]], limit: int
) -> None:
    limits, spent, made = CallLimits(repeated_calls=limit), Spent(), list[tuple[int, int]]()
    for asked, answered in calls:
        if over_budget(limits, spent, asked) is not None:
            assert len(made) > limit
            assert set(made[-limit:]) <= set(made[:-limit])
            assert asked in [earlier for earlier, _ in made[-WINDOW * 2 :]]
            continue
        spent = after([(asked, answered)], spent)
        made.append((asked, answered))
        assert len(spent.recent) <= WINDOW
