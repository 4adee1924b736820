"""Whether one way of ranking past steps was better than another, and what one id's steps may say to
that.
"""

from __future__ import annotations

import pytest
from bundle_router.core.search.trials import (
    MIN_GAIN,
    Trial,
    Witness,
    choose_trial,
    difference,
    quality_of,
)
from hypothesis import given
from hypothesis import strategies as st


def steps_of(*ids: str) -> list[Witness]:
    return [Witness(frozenset({id_}), f"run-{at}") for at, id_ in enumerate(ids)]


@pytest.mark.parametrize(
    ("scores", "needed", "quality"),
    [
        ({"a": 2.0, "b": 1.0}, {"a"}, 1.0),
        ({"a": 2.0, "b": 1.0}, {"a", "b"}, 1.0),
        ({"a": 2.0, "b": 1.0}, {"b"}, 0.63093),
        ({"a": 1.0, "b": 1.0}, {"b"}, 0.63093),  # equal scores by id
        ({"a": 2.0}, {"b"}, 0.0),
        ({}, {"b"}, 0.0),
    ],
)
def test_quality_is_how_near_the_top_all_that_was_needed_stands(
    scores: dict[str, float], needed: set[str], quality: float
) -> None:
    assert quality_of(scores, frozenset(needed)) == pytest.approx(quality, abs=1e-5)


def test_a_gain_that_one_id_alone_makes_does_not_pay_where_it_costs_the_others() -> None:
    steps = steps_of("bait", "bait", "bait", "a", "b", "c", "d")
    none, after = [0.0] * 7, [1.0, 1.0, 1.0, -0.2, -0.2, -0.2, -0.2]
    found = difference(after, none, steps)
    assert found.mean > 0.3
    assert found.least == pytest.approx(-0.2)
    assert not Trial.of(1.0, after, found).pays


def test_one_id_does_not_choose_how_much_past_steps_count() -> None:
    """Without the bait's own steps, counting them more is worse; so the careful way is taken."""
    steps = steps_of("bait", "bait", "bait", "a", "b", "c", "d")
    none = [0.0] * 7
    careful, bold = [0.1] * 7, [1.0, 1.0, 1.0, 0.05, 0.05, 0.05, 0.05]
    trials = [
        Trial.of(trust, got, difference(got, none, steps))
        for trust, got in ((4.0, careful), (0.35, bold))
    ]
    assert all(trial.pays for trial in trials)
    assert choose_trial(trials, [careful, bold], steps) == trials[0]
    honest = steps_of(*"abcdefg")
    trials = [
        Trial.of(trust, got, difference(got, none, honest))
        for trust, got in ((4.0, careful), (0.35, [0.9] * 7))
    ]
    assert choose_trial(trials, [careful, [0.9] * 7], honest) == trials[1]


qualities = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.floats(0, 1), st.floats(0, 1))
)


@given(rows=qualities)
def test_what_is_chosen_never_replays_worse_than_nothing(
    rows: list[tuple[str, str, float, float]],
) -> None:
    steps = [Witness(frozenset({id_}), run) for id_, run, _, _ in rows]
    none, after = [before for *_, before, _ in rows], [after for *_, after in rows]
    found = difference(after, none, steps)
    taken = choose_trial([Trial.of(1.0, after, found)], [after], steps)
    assert found.least <= found.mean
    assert taken is None or (taken.gain >= MIN_GAIN and found.least >= 0.0)
