"""Where a run stands after its records, as a table: the same whether they are read from lines or
taken as values.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.records.call_records import (
    CallFinished,
    CallStarted,
    Record,
    RequestPassed,
    ShapedSize,
    SubRunOpened,
)
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.fold import MANY_EFFECTS, KeyedCall, RunFold
from bundle_router.core.values import (
    Activation,
    AskedTool,
    Chosen,
    Decision,
    Entry,
    Exposure,
    Facts,
    RecentStep,
    Step,
)
from bundle_router.core.values.canonical import encode

HELD = Activation((Entry("a", "mapped", 1), Entry("b", "mapped", 2, place=1)))


def decided(
    id_: str, *, branch: str = "", key: str = "", held: Activation = HELD, **step: Any
) -> DecisionRecord:
    asked = {"workflow": "w", "role": "r", "step": "s", "goal": f"goal of {id_}", **step}
    bundles = (Chosen("a", 1, "mapped", "row"),)
    outcome = Decision(
        bundles,
        (),
        "mapping",
        False,
        "",
        None,
        (),
        Activation(),
        held,
        (),
        Exposure(1, 2, 3, 4),
        run_id="run",
        decision_id=id_,
    )
    made = Step(run_id="run", principal=asked.pop("principal", "ann"), **asked)
    return DecisionRecord(
        decision=outcome, step=made, facts=Facts(), reply=None, time="t", branch=branch, key=key
    )


def _at(call: str, decision: str, **more: Any) -> dict[str, Any]:
    return {
        "run_id": "run",
        "call_id": call,
        "decision_id": decision,
        "server": "s",
        "time": "t",
        **more,
    }


def started(
    call: str, decision: str = "d", *, tool: str = "t", bundle: str = "a", **more: Any
) -> CallStarted:
    at = _at(call, decision)
    return CallStarted(
        **at, tool=tool, bundle=bundle, arguments=more.pop("arguments", "{}"), **more
    )


def finished(
    call: str, decision: str = "d", *, size: int = 10, outcome: Any = "ok", **more: Any
) -> CallFinished:
    at = _at(call, decision, tool="t")
    end = {"code": "", "result": "r", "elapsed_ms": 2.0, "arguments": "{}", **more}
    return CallFinished(**at, **end, outcome=outcome, shaped=ShapedSize(size, size, "whole"))


def passed(
    call: str, method: str = "resources/read", *, outcome: Any = "ok", decision: str = "d"
) -> RequestPassed:
    at = _at(call, decision, arguments="{}")
    return RequestPassed(
        **at, method=method, outcome=outcome, code="", result="r", elapsed_ms=3.0, original_bytes=20
    )


Fold = Callable[[Sequence[Record]], RunFold]


def from_lines(records: Sequence[Record]) -> RunFold:
    fold = RunFold(2)
    lines = [
        json.loads(encode({**record.to_json(), "seq": seq}))
        for seq, record in enumerate(records, 7)
    ]
    assert fold.take_all(iter(lines)) is bool(lines)
    return fold


def from_values(records: Sequence[Record], *, is_told: bool = False) -> RunFold:
    """As a writer does: each record is taken in once it is written, and an end comes to what was
    said before.
    """
    fold = RunFold(2)
    for seq, record in enumerate(records, 7):
        foreseen = (
            fold.spent_after(record) if isinstance(record, CallFinished | RequestPassed) else None
        )
        if isinstance(record, DecisionRecord):
            record = replace(record, decision=replace(record.decision, seq=seq))
        fold.take(record, seq, foreseen if is_told else None)
        if (
            isinstance(record, CallFinished | RequestPassed)
            and fold.branch_of(record.decision_id) is not None
        ):
            assert fold.spent(record.decision_id) == foreseen
    return fold


@pytest.fixture(params=[from_lines, from_values, partial(from_values, is_told=True)])
def fold(request: pytest.FixtureRequest) -> Fold:
    made: Fold = request.param
    return made


def counts(spent: Totals) -> tuple[int, int, float, int]:
    return spent.calls, spent.result_bytes, spent.elapsed_ms, spent.repeats


def used(activation: Activation) -> dict[str, int]:
    return {entry.id: entry.used for entry in activation.entries}


def test_a_run_without_records_has_nothing(fold: Fold) -> None:
    empty = fold([])
    assert (empty.decisions, empty.current_branch, empty.has_branch("")) == (0, "", False)
    assert (empty.decided(""), empty.activation(""), empty.recent("", "")) == (
        None,
        Activation(),
        (),
    )
    assert (empty.spent("d"), empty.branch_of("d"), empty.run_spent) == (Totals(), None, Totals())
    assert (empty.keyed_decision("k"), empty.keyed_call("k"), empty.principals) == (
        None,
        None,
        frozenset(),
    )
    assert empty.sub_runs == ()


def test_a_type_that_is_not_known_changes_nothing_and_is_news_all_the_same() -> None:
    fold = RunFold()
    assert fold.take_all([{"type": "of.tomorrow", "seq": 0}, {"seq": 1}]) is True
    assert not fold.decisions
    assert fold.take_all([]) is False


def test_a_branch_has_its_newest_decision_its_last_steps_and_the_principals_are_of_the_run(
    fold: Fold,
) -> None:
    changed = Activation((Entry("c", "mapped", 9),))
    run = fold(
        [
            decided("d0", step="one"),
            decided("d1", step="two", principal="bob"),
            decided("e0", branch="side", key="k", held=changed),
            decided("d2", step="three", role="q"),
        ]
    )
    newest = run.decided("")
    assert newest is not None
    assert (newest.decision.decision_id, newest.decision.seq) == ("d2", 10)
    assert newest is run.decided(""), "it is made once"
    assert run.recent("", "ann") == (RecentStep("q", "three", "goal of d2", ("a",)),)
    assert run.recent("", "bob") == (RecentStep("r", "two", "goal of d1", ("a",)),)
    assert run.recent("side", "ann") == (RecentStep("r", "s", "goal of e0", ("a",)),)
    assert (run.activation(""), run.activation("side"), run.activation("none")) == (
        HELD,
        changed,
        Activation(),
    )
    assert run.decided("none") is None
    assert run.recent("none", "ann") == run.recent("", "") == ()
    assert [run.branch_of(one) for one in ("d0", "d2", "e0", "x")] == ["", "", "side", None]
    assert (run.decisions, run.has_branch("side"), run.has_branch("none")) == (4, True, False)
    assert (run.keyed_decision("k"), run.keyed_decision("")) == (9, None)
    assert run.principals == {"ann", "bob"}


def test_a_decision_that_is_only_passed_over_need_not_be_read_whole() -> None:
    early, late = json.loads(encode([decided("d0").to_json(), decided("d1").to_json()]))
    del early["facts"]
    fold = RunFold()
    fold.take_all([early | {"seq": 0, "key": "k"}, late | {"seq": 1}])
    assert (fold.keyed_decision("k"), len(fold.recent("", "ann"))) == (0, 2)
    newest = fold.decided("")
    assert newest is not None
    assert newest.decision.decision_id == "d1"


def test_five_steps_are_remembered_where_nothing_else_is_said() -> None:
    fold = RunFold()
    for number in range(6):
        fold.take(decided(f"d{number}"), number)
    assert [step.goal for step in fold.recent("", "ann")] == [
        f"goal of d{number}" for number in range(1, 6)
    ]


@pytest.mark.parametrize(
    ("branches", "current"),
    [(("",), ""), (("x", "y"), "y"), (("y", "x"), "x"), (("x", "", "y"), "")],
)
def test_the_branch_that_is_meant_is_the_default_or_the_last_that_decided(
    fold: Fold, branches: tuple[str, ...], current: str
) -> None:
    run = fold([decided(f"d{at}", branch=name) for at, name in enumerate(branches)])
    assert run.current_branch == current


def test_a_call_moves_the_activation_of_the_branch_of_the_decision_it_names(fold: Fold) -> None:
    records: list[Record] = [
        decided("d"),
        decided("e", branch="side"),
        started("c1", "e"),
        started("c2", "e", bundle="b"),
    ]
    run = fold(records)
    assert used(run.activation("side")) == {"a": 3, "b": 4}
    assert used(run.activation("side")) == {"a": 3, "b": 4}, "looking twice changes nothing"
    assert used(run.activation("")) == {"a": 1, "b": 2}
    assert used(fold([*records, decided("f", branch="side")]).activation("side")) == {
        "a": 1,
        "b": 2,
    }
    assert used(fold([decided("d"), started("c", "of another run")]).activation("")) == {
        "a": 3,
        "b": 2,
    }
    assert fold([started("c")]).activation("") == Activation(), "no decision: nothing to move"


def test_tools_that_joined_by_an_answer_stay_with_their_bundle(fold: Fold) -> None:
    run = fold([decided("d"), started("c"), finished("c", joined=(("b", "s.x"),)), finished("c2")])
    assert run.activation("").entries[1].tools == (AskedTool("s.x", 2, 4),)


def test_an_activation_is_the_same_however_many_calls_were_made_before_it_is_asked_for(
    fold: Fold,
) -> None:
    many = [
        started(f"c{number}", bundle="a" if number % 3 else "b")
        for number in range(MANY_EFFECTS + 2)
    ]
    assert used(fold([decided("d"), *many]).activation("")) == {
        "a": MANY_EFFECTS + 4,
        "b": MANY_EFFECTS + 2,
    }


def test_calls_that_are_alike_leave_one_object_until_the_activation_is_asked_for(
    fold: Fold,
) -> None:
    """An object of its own for each, among those of a burst of calls, keeps the memory of all of
    them.
    """
    run = fold(
        [
            decided("d"),
            *(started(f"c{number}", tool="abc"[number % 3]) for number in range(MANY_EFFECTS - 2)),
        ]
    )
    kept = gc.get_referents(*(branch.calls for branch in run._branches.values()))
    assert len(kept) == MANY_EFFECTS - 2
    assert len(set(map(id, kept))) == 3
    run.activation("")
    assert not any(branch.calls or branch.effects for branch in run._branches.values())


def test_what_calls_spend_belongs_to_the_address_of_their_decision_and_to_the_run(
    fold: Fold,
) -> None:
    run = fold(
        [
            decided("d"),
            started("c1"),
            finished("c1"),
            decided("again"),  # the same address: nothing is given back
            started("c2", "again"),
            decided("other", step="x"),
            finished("c2", "again", result="other", size=5),
            started("c3", "other"),
            started("c4", "of another run"),
            finished("c4", "of another run", size=1_000),
        ]
    )
    assert counts(run.spent("d")) == counts(run.spent("again")) == (2, 15, 4.0, 0)
    assert counts(run.spent("other")) == (1, 0, 0.0, 0)
    assert run.spent("of another run") == Totals()
    assert counts(run.run_spent) == (4, 1_015, 6.0, 0)


@pytest.mark.parametrize(
    "different", [{"branch": "z"}, {"workflow": "z"}, {"role": "z"}, {"step": "z"}, {"key": "z"}]
)
def test_an_address_is_a_branch_workflow_role_step_and_key(
    fold: Fold, different: dict[str, Any]
) -> None:
    run = fold([decided("d"), started("c"), decided("e", **different)])
    assert (run.spent("d").calls, run.spent("e").calls) == (1, 0)
    keys = [run.budget_key(decision_id) for decision_id in ("d", "e", "of another run")]
    assert len(set(keys)) == 3
    assert keys[2] is None


def test_repetitions_are_counted_by_what_was_asked_and_answered(fold: Fold) -> None:
    same = [record for at in range(3) for record in (started(f"c{at}"), finished(f"c{at}"))]
    assert fold([decided("d"), *same]).spent("d").repeats == 2
    changes: list[dict[str, Any]] = [
        {"result": "z"},
        {"code": "z"},
        {"outcome": "denied"},
        {"arguments": '{"z":1}'},
    ]
    for change in changes:
        assert (
            fold([decided("d"), *same, started("z"), finished("z", **change)]).spent("d").repeats
            == 0
        )


ENDS: list[tuple[str, Record, tuple[int, int, float, int]]] = [
    ("an end without a start", finished("n"), (1, 10, 2.0, 0)),
    ("a refusal", finished("n", outcome="denied"), (1, 10, 2.0, 0)),
    ("one for want of budget", finished("n", outcome="budget"), (0, 0, 0.0, 0)),
    ("a search", finished("n", via="search_tools"), (0, 0, 0.0, 0)),
    ("a look at details", finished("n", via="get_tool_details"), (0, 0, 0.0, 0)),
    ("a name that was missed", finished("n", via="missed"), (0, 0, 0.0, 0)),
    ("a call through a meta-tool", finished("n", via="call_tool"), (1, 10, 2.0, 0)),
    ("a request", passed("n"), (1, 20, 3.0, 0)),
    ("a request for want of budget", passed("n", outcome="budget"), (0, 0, 0.0, 0)),
    ("a list", passed("n", "resources/list"), (1, 20, 3.0, 0)),
]


@pytest.mark.parametrize(("what", "record", "spent"), ENDS, ids=[row[0] for row in ENDS])
def test_what_counts(
    fold: Fold, what: str, record: Any, spent: tuple[int, int, float, int]
) -> None:
    run = fold([decided("d"), record])
    assert counts(run.spent("d")) == counts(run.run_spent) == spent
    ahead = fold([decided("d")])
    assert counts(ahead.spent_after(record)) == spent
    assert ahead.run_spent == Totals(), "it was only asked what it would come to"


def test_a_list_that_is_asked_for_again_is_no_circle_and_another_request_is(fold: Fold) -> None:
    assert (
        fold([decided("d"), *[passed(f"n{at}", "prompts/list") for at in range(3)]])
        .spent("d")
        .repeats
        == 0
    )
    assert fold([decided("d"), *[passed(f"n{at}") for at in range(3)]]).spent("d").repeats == 2


def test_what_a_step_comes_to_is_known_before_its_calls_end_is_written(fold: Fold) -> None:
    run = fold([decided("d"), started("c")])
    assert counts(run.spent_after(finished("c"))) == (1, 10, 2.0, 0)
    assert counts(run.spent_after(finished("of another"))) == (2, 10, 2.0, 0)
    assert counts(run.spent_after(finished("c", outcome="budget"))) == (1, 0, 0.0, 0)


def test_a_key_is_bound_by_the_call_that_began_with_it_and_its_last_attempt_counts(
    fold: Fold,
) -> None:
    first = started("c1", key="k", writer="w1", arguments_digest="x")
    again = started("c2", key="k", writer="w2", arguments_digest="x", attempt=2)
    began = KeyedCall(8, "c1", "s.t", 1, "w1", "x", "ann")
    assert fold([decided("d"), first]).keyed_call("k") == began
    ended = replace(began, finished=9, outcome="unknown")
    assert fold([decided("d"), first, finished("c1", outcome="unknown")]).keyed_call("k") == ended
    second = KeyedCall(9, "c2", "s.t", 2, "w2", "x", "ann")
    assert fold([decided("d"), first, again]).keyed_call("k") == second
    assert fold([decided("d"), finished("c1", key="k", outcome="denied")]).keyed_call("k") is None
    twice = fold([decided("d"), first, finished("c1"), finished("c1", outcome="tool_error")])
    assert twice.keyed_call("k") == replace(began, finished=9, outcome="ok"), (
        "the first end is the end"
    )
    assert counts(twice.spent("d")) == (2, 20, 4.0, 0)
    assert fold([decided("d"), started("c0")]).keyed_call("") is None


def test_runs_below_are_named_once_in_the_order_in_which_they_began(fold: Fold) -> None:
    opened = [SubRunOpened(run_id="run", sub_run_id=id_, time="t") for id_ in ("b", "a", "b", "c")]
    assert fold(opened).sub_runs == ("b", "a", "c")
