"""The budget of a step as arithmetic: what counts, when it is used up, and what going round in
circles means.
"""

from __future__ import annotations

import json

import pytest
from bundle_router.core.catalog import CallLimits
from bundle_router.core.decide.budgets import (
    WINDOW,
    Totals,
    add_call,
    asked_hash,
    bounds_tree,
    count_end,
    count_start,
    over_budget,
    over_total,
    shorten_arguments,
    sum_totals,
)
from bundle_router.core.values.canonical import digest
from hypothesis import given
from hypothesis import strategies as st


def after(calls: list[tuple[int, int]], spent: Totals | None = None) -> Totals:
    """What was spent after calls of (asked, answered), of 10 bytes and 100 ms each."""
    spent = spent or Totals()
    for asked, answered in calls:
        spent = count_end(count_start(spent), asked, answered, 10, 100.0)
    return spent


USED_UP = [("calls", 3, "3 calls, of at most 3"), ("result_bytes", 3_000, "results of 3,000 bytes, of at most 3,000"),
           ("call_seconds", 7_000.0, "7,000 seconds of calls, of at most 7,000")]  # fmt: skip


@pytest.mark.parametrize(("budget", "most", "said"), USED_UP)
@pytest.mark.parametrize(
    ("of", "who"),
    [("step", "This step"), ("run", "This run"), ("tree", "This run and those it belongs with")],
)
def test_the_call_that_finds_a_budget_used_up_is_the_first_that_is_refused(
    budget: str, most: float, said: str, of: str, who: str
) -> None:
    limits = CallLimits(**{f"{budget}_per_{of}": most})  # type: ignore[arg-type] # a table

    def over(spent: Totals) -> tuple[str, str] | None:
        if of == "step":
            return over_budget(limits, spent, 99)
        return (
            over_total(limits, spent, None) if of == "run" else over_total(limits, Totals(), spent)
        )

    used_up = Totals(3, 3_000, 7_000_000.0)
    assert over(Totals(2, 2_999, 6_999_999.0)) is None
    code, told = over(used_up) or ("", "")
    assert code == f"{budget}_per_{of}"
    assert told.startswith(f"{who} has had {said}: it gets no more. ")
    for tree in (None, Totals()):
        assert (over_total(limits, used_up, tree) is not None) is (of == "run")


def test_a_tree_is_bounded_by_any_one_of_its_budgets_and_has_what_its_runs_have_together() -> None:
    bounded = [CallLimits(**{f"{budget}_per_tree": most}) for budget, most, _ in USED_UP]  # type: ignore[arg-type] # a table
    assert [bounds_tree(limits) for limits in (*bounded, CallLimits())] == [True, True, True, False]
    assert sum_totals((Totals(1, 20, 300.0), Totals(4, 50, 600.0))) == Totals(5, 70, 900.0)


def test_each_call_adds_what_it_came_to() -> None:
    spent = after([(1, 1), (2, 2)])
    assert spent == Totals(2, 20, 200.0, 0, ((1, 1), (2, 2)))
    assert add_call(spent, 5, 7.0) == Totals(2, 25, 207.0, 0, ((1, 1), (2, 2)))


def test_long_arguments_of_a_refused_call_are_kept_by_their_head_and_digest() -> None:
    assert shorten_arguments("x" * 4_000) == "x" * 4_000
    long = "x" * 4_001
    assert json.loads(shorten_arguments(long)) == {
        "length": 4_001,
        "digest": digest(long),
        "head": "x" * 1_000,
    }


def test_what_is_asked_is_told_apart_by_name_and_arguments() -> None:
    asked = [
        asked_hash(name, arguments)
        for name, arguments in (("t", None), ("t", "{}"), ("u", None), ("t", "x" * 5_000))
    ]
    assert len({*asked}) == 4
    assert asked_hash("t", "") == asked[0]


def test_what_was_spent_is_recorded_by_name() -> None:
    assert Totals(1, 20, 300.00049, 4).to_json() == {
        "calls": 1,
        "result_bytes": 20,
        "elapsed_ms": 300.0,
        "repeats": 4,
    }


CIRCLES: dict[str, tuple[list[tuple[int, int]], int]] = {
    "the same over and over": ([(1, 1)] * 5, 4),
    "two by turns": ([(1, 1), (2, 2)] * 3, 4),
    "a circle as long as the window": ([(n, n) for n in range(WINDOW)] * 2, WINDOW),
    "a longer one is none": ([(n, n) for n in range(WINDOW + 1)] * 2, 0),
    "another answer each time": ([(1, n) for n in range(9)], 0),
    "another question each time": ([(n, 1) for n in range(9)], 0),
    "two, one of them often": ([(1, 1), *[(2, 2)] * 9, (1, 1)], 9),
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
    limits, spent, made = CallLimits(repeated_calls=limit), Totals(), list[tuple[int, int]]()
    for asked, answered in calls:
        if over_budget(limits, spent, asked) is not None:
            assert len(made) > limit
            assert set(made[-limit:]) <= set(made[:-limit])
            assert asked in [earlier for earlier, _ in made[-WINDOW * 2 :]]
            continue
        spent = after([(asked, answered)], spent)
        made.append((asked, answered))
        assert len(spent.recent) <= WINDOW
