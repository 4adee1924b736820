"""Two runs aligned: which step goes with which, and what is told of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import Policy, Route
from bundle_router.review.alignment import align, in_order
from bundle_router.review.run_comparison import (
    ComparedCall,
    ComparedStep,
    SetDifference,
    ValueDifference,
    compare_steps,
    config_difference,
)
from bundle_router.testing import small_catalog
from hypothesis import given
from hypothesis import strategies as st


def step(word: str, seq: int = 0, **more: Any) -> ComparedStep:
    return ComparedStep(seq, ("w", "r", word), **more)


def call(tool: str, arguments: str = "{}", outcome: str = "ok", **more: Any) -> ComparedCall:
    return ComparedCall(0, tool, arguments, outcome, **more)


def aligned(a: Sequence[ComparedStep], b: Sequence[ComparedStep]) -> list[tuple[Any, Any, str]]:
    return [
        (pair.a.seq if pair.a else None, pair.b.seq if pair.b else None, pair.by)
        for pair in compare_steps(a, b)
    ]


ALIGNMENTS: list[tuple[str, list[ComparedStep], list[ComparedStep], list[tuple[Any, Any, str]]]] = [
    ("two empty runs", [], [], []),
    (
        "a key says more than the address",
        [step("x", 1, key="k1"), step("x", 2, key="k2")],
        [step("y", 3, key="k2"), step("x", 4, key="k1")],
        [(1, 4, "key"), (2, 3, "key")],
    ),
    (
        "two steps with other keys are two steps",
        [step("x", 1, key="k1")],
        [step("x", 2, key="k2")],
        [(None, 2, ""), (1, None, "")],
    ),
    (
        "a step with a key and one of an engine without keys",
        [step("x", 1, key="k1")],
        [step("x", 2)],
        [(1, 2, "goal")],
    ),
    (
        "a loop that went round once less",
        [step("x", 1, goal="a"), step("x", 2, goal="b"), step("x", 3, goal="c")],
        [step("x", 4, goal="b"), step("x", 5, goal="c")],
        [(1, None, ""), (2, 4, "goal"), (3, 5, "goal")],
    ),
    (
        "another goal at the same address",
        [step("x", 1, goal="a"), step("z", 2)],
        [step("x", 3, goal="b")],
        [(1, 3, "branch"), (2, None, "")],
    ),
    (
        "branches keep apart, whichever was decided first",
        [step("x", 1, branch="l"), step("x", 2, branch="r")],
        [step("x", 3, branch="r"), step("x", 4, branch="l")],
        [(1, 4, "goal"), (2, 3, "goal")],
    ),
    (
        "branches with other names",
        [step("x", 1, branch="l-1")],
        [step("x", 2, branch="l-2")],
        [(1, 2, "address")],
    ),
    (
        "what is new stands where it happened",
        [step("x", 1), step("z", 2)],
        [step("n", 3), step("x", 4), step("y", 5), step("z", 6), step("e", 7)],
        [(None, 3, ""), (1, 4, "goal"), (None, 5, ""), (2, 6, "goal"), (None, 7, "")],
    ),
]


@pytest.mark.parametrize(("a", "b", "expected"), [case[1:] for case in ALIGNMENTS])
def test_steps_are_aligned_by_key_then_by_their_address(
    a: list[ComparedStep], b: list[ComparedStep], expected: list[tuple[Any, Any, str]]
) -> None:
    assert aligned(a, b) == expected


STEPS = st.lists(
    st.builds(
        lambda word, key, branch, goal: step(word, key=key, branch=branch, goal=goal),
        st.sampled_from("xy"),
        st.sampled_from(["", "", "k1", "k2"]),
        st.sampled_from(["", "l"]),
        st.sampled_from(["", "g"]),
    ),
    max_size=8,
).map(lambda steps: [replace(each, seq=at) for at, each in enumerate(steps)])


@given(STEPS, STEPS)
def test_each_step_is_told_once_and_keys_are_never_crossed(
    a: list[ComparedStep], b: list[ComparedStep]
) -> None:
    pairs = compare_steps(a, b)
    assert [pair.a.seq for pair in pairs if pair.a is not None] == [each.seq for each in a]
    assert sorted(pair.b.seq for pair in pairs if pair.b is not None) == [each.seq for each in b]
    for pair in pairs:
        if pair.a is not None and pair.b is not None and pair.a.key and pair.b.key:
            assert pair.a.key == pair.b.key
            assert pair.by == "key"
        if pair.by and pair.by != "key":
            assert pair.a is not None
            assert pair.b is not None
            assert pair.a.address == pair.b.address


@given(STEPS)
def test_a_run_differs_from_itself_in_nothing(steps: list[ComparedStep]) -> None:
    pairs = compare_steps(steps, steps)
    assert len(pairs) == len(steps)
    assert not any(pair.differs for pair in pairs)


def test_a_long_run_is_aligned_in_one_pass() -> None:
    a = [step("x", at, goal="the same") for at in range(20_000)]
    pairs = align(a, a[1:], {"goal": lambda each: each.goal})
    assert len(pairs) == 19_999
    assert len(list(in_order(a, a[1:], pairs))) == 20_000


def test_a_pair_says_what_differs_and_what_does_not() -> None:
    a = step(
        "x",
        source="mapping",
        bundles=("repo", "docs"),
        tools=("repo.read", "docs.fetch"),
        tokens=1200,
        elapsed_ms=100.0,
        calls=(
            call("repo.read", '{"path":"a"}', result="text", elapsed_ms=5.0),
            call("repo.read", '{"path":"b"}', result="text"),
            call("docs.fetch", '{"url":"u"}'),
        ),
    )
    b = step(
        "x",
        source="model",
        doubt="model_unsure",
        bundles=("repo", "exec"),
        tools=("repo.read", "exec.run"),
        tokens=900,
        elapsed_ms=420.0,
        calls=(
            call("repo.read", '{"path":"b"}', "timeout", result="no answer"),
            call("repo.read", '{"path":"c"}', result="text", elapsed_ms=9.0),
            call("exec.run", '{"args":[]}', "denied", code="not_allowed"),
        ),
    )
    (pair,) = compare_steps([a], [b])
    assert pair.differences == (
        ValueDifference("decided by", "mapping", "model"),
        ValueDifference("doubt", "", "model_unsure"),
        ValueDifference("tokens", "1,200", "900"),
    )
    assert (pair.time, pair.longer) == (ValueDifference("time", "100 ms", "420 ms"), "B")
    assert pair.sets == (
        SetDifference("bundles", ("docs",), ("exec",)),
        SetDifference("tools", ("docs.fetch",), ("exec.run",)),
    )
    assert [
        (each.a and each.a.arguments, each.b and each.b.arguments, each.by) for each in pair.calls
    ] == [
        ('{"path":"a"}', '{"path":"c"}', "tool"),
        (None, '{"args":[]}', ""),
        ('{"path":"b"}', '{"path":"b"}', "arguments"),
        ('{"url":"u"}', None, ""),
    ]
    assert pair.calls[0].differences == (
        ValueDifference("arguments", '{"path":"a"}', '{"path":"c"}'),
    )
    assert pair.calls[2].differences == (
        ValueDifference("outcome", "ok", "timeout"),
        ValueDifference("result", "text", "no answer"),
    )


def test_tools_are_not_compared_where_a_run_does_not_hold_its_config() -> None:
    (pair,) = compare_steps([step("x", tools=None)], [step("x", tools=("a.b",))])
    assert not pair.differs


TIMES = [
    (10.0, 90.0, ""),
    (100.0, 140.0, ""),
    (100.0, 260.0, "B"),
    (1000.0, 1400.0, ""),
    (1400.0, 100.0, "A"),
]


@pytest.mark.parametrize(("a_ms", "b_ms", "longer"), TIMES)
def test_a_notably_longer_time_is_told_and_makes_no_step_differ(
    a_ms: float, b_ms: float, longer: str
) -> None:
    a, b = [
        step("x", elapsed_ms=took, calls=(call("repo.read", elapsed_ms=took),))
        for took in (a_ms, b_ms)
    ]
    (pair,) = compare_steps([a], [b])
    assert (pair.longer, pair.calls[0].longer) == (longer, longer)
    assert not pair.differs


def test_the_difference_of_two_configs_is_told_by_entry_and_power() -> None:
    old = small_catalog({"notes": ["s.read"]}, routes=[Route("all", bundles=("notes",))])
    new = replace(old, policies=(Policy("nobody", deny=("bundle:notes",)),))
    found = config_difference(("r1", "r2"), 4, old, new)
    assert (found.a_revision, found.b_revision, found.steps, found.unknown) == ("r1", "r2", 4, "")
    assert "policy 'nobody' added" in found.edits
    assert any(line.startswith("- ") and "notes" in line for line in found.powers)
    assert config_difference(("r1", "r1"), 1, old, old).powers == ()
    unknown = config_difference(("r1", "r2"), 1, None, new).unknown
    assert unknown == "the config r1 is not kept with its run"
