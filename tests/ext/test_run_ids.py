"""An engine's own name for a piece of work becomes a run id: readable, distinct, and the same
everywhere.
"""

from __future__ import annotations

import pytest
from bundle_router import Step
from bundle_router.errors import InvalidStep, RequestError
from bundle_router.ext.step_tools import run_id_of
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("name", "run_id"),
    [
        ("r-42", "r-42"),
        ("3f1c7f8e-0d3c-4a1e-9d5e-0a2f4cf0e9aa", "3f1c7f8e-0d3c-4a1e-9d5e-0a2f4cf0e9aa"),
        (
            "manual__2026-11-28T16:00:00+00:00",
            "manual__2026-11-28T16-00-00-00-00-66a0cec67000",
        ),
        ("order/42#a", "order-42-a-03f33a06855d"),
        ("fancy penguin", "fancy-penguin-54c718323ccf"),
        (
            "arn:aws:states:eu-west-1:1234:execution:x:y",
            "arn-aws-states-eu-west-1-1234-execution-x-y-df205282864a",
        ),
        ("ü", "run-607474ca475a"),
        ("a\n", "a-87428fc52280"),
        (".hidden", "hidden-1692419006a8"),
        ("x" * 300, "x" * 100 + "-0d4e2ca9e9cb"),
    ],
)
def test_a_name_of_an_engine_becomes_a_readable_run_id(name: str, run_id: str) -> None:
    assert run_id_of(name) == run_id
    assert Step(run_id=run_id, workflow="w", role="r", step="s").run_id == run_id


@given(st.text(min_size=1), st.text(min_size=1))
def test_ids_are_valid_distinct_and_stay_as_they_are(one: str, other: str) -> None:
    run_id = run_id_of(one)
    assert Step(run_id=run_id, workflow="w", role="r", step="s").run_id == run_id
    assert run_id_of(run_id_of(one)) == run_id_of(one)
    assert (run_id_of(one) == run_id_of(other)) == (one == other)


def test_an_empty_name_is_refused_and_a_bad_id_is_told_what_to_do() -> None:
    with pytest.raises(RequestError, match="an empty name"):
        run_id_of("")
    with pytest.raises(InvalidStep, match=r"step_tools\.run_id_of\(name\)"):
        Step(run_id="order/42", workflow="w", role="r", step="s")
