"""A goal that is a whole document is cut, and says so."""

from __future__ import annotations

import pytest
from bundle_router import Step

MAX_GOAL = 32_768

KEY = "sk-" + "a" * 60


def step_of(goal: str) -> Step:
    return Step(run_id="r", workflow="w", role="r", step="s", goal=goal, constraints=(goal,))


@pytest.mark.parametrize(
    ("goal", "kept", "left_out"),
    [
        ("a" * MAX_GOAL, "a" * MAX_GOAL, 0),
        # at a blank: a key is never cut in two
        ("word " * 6_545 + KEY * 3, "word " * 6_544 + "word", 190),
        # without a blank, at the bound
        ("a" * 40_000, "a" * 32_731, 7_269),
    ],
)
def test_a_long_goal_is_cut_at_a_blank_with_a_note(goal: str, kept: str, left_out: int) -> None:
    step = step_of(goal)
    note = f" [… cut here: {left_out:,} more characters]" if left_out else ""
    assert step.goal == kept + note
    assert step.constraints == (kept + note,)
    assert len(step.goal) <= MAX_GOAL
    assert step_of(step.goal) == step, "a recorded step is read as it was written"
