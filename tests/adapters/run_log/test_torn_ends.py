"""Crashes at any byte: what was acknowledged is there after opening again, and nothing else
(F-01).
"""

from __future__ import annotations

from typing import Any

from bundle_router.core.records.chain import FILES, genesis
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.profiles import examples

FILE = st.sampled_from(list(FILES))


def test_any_interleaving_of_appends_and_crashes_reopens_to_what_was_acknowledged(
    make_runs: Any,
) -> None:
    class Crashing(RuleBasedStateMachine):
        """Appends, closes, and dies in the middle of a write; the model is the list of acknowledged
        numbers.
        """

        def __init__(self) -> None:
            super().__init__()
            self.runs = make_runs()
            self.log = self.runs.open()
            self.acknowledged: list[int] = []
            self.number = 0

        def next_record(self, size: int) -> dict[str, Any]:
            self.number += 1
            record: dict[str, Any] = self.runs.record(self.number, filler="x" * size)
            return record

        @rule(file=FILE, size=st.sampled_from([0, 10, 200_000]))
        def append(self, file: Any, size: int) -> None:
            record = self.next_record(size)
            seq = self.log.append(file, record).seq
            assert seq == len(self.acknowledged)
            self.acknowledged.append(record["number"])

        @rule(file=FILE, data=st.data())
        def die_in_the_middle_of_a_write(self, file: Any, data: st.DataObject) -> None:
            path = self.runs.path / "r-1" / FILES[file]
            before = path.stat().st_size
            self.log.append(file, self.next_record(data.draw(st.integers(0, 50))))
            self.log.release()
            after = path.stat().st_size
            with path.open("r+b") as torn:
                torn.truncate(data.draw(st.integers(before, after - 1)))
            left = path.stat().st_size - before
            self.log = self.runs.open()
            self.append("routing", 0)
            assert [h.bytes for h in self.log.healed] == ([left] if left else [])

        @rule()
        def die_between_writes(self) -> None:
            self.log.release()
            self.log = self.runs.open()

        @rule()
        def close_and_go_on(self) -> None:
            self.log.close()
            assert self.runs.archive.verify("r-1").ok
            self.log = self.runs.open()

        @precondition(lambda self: not self.acknowledged)
        @rule()
        def begin(self) -> None:
            assert self.log.head == genesis("r-1")

        @invariant()
        def reads_as_acknowledged(self) -> None:
            assert self.runs.numbers() == self.acknowledged
            assert self.log.next_seq == len(self.acknowledged)

        def teardown(self) -> None:
            report = self.runs.archive.verify("r-1")
            assert report.broken is None
            assert report.records == len(self.acknowledged)
            self.log.release()

    run_state_machine_as_test(
        Crashing,
        settings=examples(
            40,
            stateful_step_count=25,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
