"""Workers over one store, one at a time in an order that a seed decides, against a model of what
must hold.

A worker is an engine with a store of its own, in a thread that only runs when it is its turn.
Before and after each operation of a store, and inside each effect of a tool, another worker may
come first, and the worker may be killed: it then does nothing any more, and another takes its
place. So a seed gives the same schedule on any machine.

What must hold:
1. A key has one decision, and whoever asks for it is given that one. With other contents it is
   refused.
2. A keyed call of a tool that may not be repeated has one effect at most; `ok` means that it had
   it, `unknown` that nobody knows; whoever asks later is told the same. One that may be repeated is
   never `unknown`.
3. What was returned stands in the log as it was returned. Each chain is whole.
4. A call begins under a decision that is open, and has its effect only where that decision, and for
   a sub-run what its parent has and what it was started under, permitted the tool at some moment
   since it was asked for. It is denied only where one of them did not.
5. The tree of runs makes no more calls than its budget.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from bundle_router import Result, Router, Step
from bundle_router.core.records.chain import check, parse
from bundle_router.errors import KeyConflict, RunBusy, UnknownRun

from tests.engine.interleaving import InlineLoop
from tests.engine.model import ROOT, SUB, TREE_CALLS, Asked, Model
from tests.engine.simulation import Crashed, Place, Worker

WORKERS: Final = 3
TURNS: Final = 6
"""What each worker is asked for in one schedule."""


class Schedule:
    """One run of the simulation."""

    def __init__(self, seed: int, place: Place) -> None:
        self.dice = random.Random(seed)
        self.place = place
        self.model = Model(self.dice)
        self.limit = self.dice.choice((None, TREE_CALLS))
        self.workers = [self._begin(at) for at in range(WORKERS)]
        self._last: dict[int, Callable[[Router], None]] = {}

    def _begin(self, at: int) -> Worker:
        return Worker(at, self.model, self.place, self.limit)

    def run(self, loops: Sequence[InlineLoop]) -> None:
        """Do it, and see that everything held."""
        try:
            self.model.interleaving.run(
                [lambda at=at: self._work(at, loops[at]) for at in range(WORKERS)]  # type: ignore[misc]  # a default
            )
            self.check()
        finally:
            for worker in self.workers:
                worker.end()
            self.place.clear()

    def _work(self, at: int, loop: InlineLoop) -> None:
        for _ in range(TURNS):
            worker = self.workers[at]
            again = self._last.get(at) if self.dice.random() < 0.3 else None
            turn = self._last[at] = again or self._turn(at, loop)
            try:
                turn(worker.router)
            except RunBusy:
                pass  # nothing was recorded
            except Crashed:
                assert worker.dead
                self.workers[at] = self._begin(at)
            finally:
                self.model.asked.pop(at, None)

    # --- what workers are asked for ---------------------------------------------------------------

    def _turn(self, at: int, loop: InlineLoop) -> Callable[[Router], None]:
        roll, run_id = self.dice.random(), self.dice.choice((ROOT, ROOT, SUB))
        if roll < 0.4:
            return self._routing(run_id)
        if roll < 0.5:
            return lambda router: self._close(router, run_id)
        tool = self.dice.choice(("s.once", "s.once", "s.again", "s.look"))
        key = f"c{self.dice.randrange(3)}"
        if self.dice.random() < 0.95:
            key = f"{tool}-{key}"  # else one that other tools may have
        known = [id_ for id_, decided in self.model.decided.items() if decided.run_id == run_id]
        decision = self.dice.choice(known) if known and self.dice.random() < 0.4 else None
        return lambda router: self._call(router, at, loop, Asked(run_id, tool, decision), key)

    def _routing(self, run_id: str) -> Callable[[Router], None]:
        number, parent = self.dice.randrange(4), None
        branch, role = ("", "a")[number % 2], ("wide", "narrow")[number // 2]
        if self.dice.random() < 0.1:
            role = "narrow"  # the key may have been used with the other
        roots = [id_ for id_, decided in self.model.decided.items() if decided.run_id == ROOT]
        if run_id == SUB:
            role = "wide"
            if roots and self.dice.random() < 0.5:
                parent = self.dice.choice(roots)
        key = f"k{number}" if self.dice.random() < 0.8 and parent is None else ""
        step = Step(
            run_id=run_id,
            workflow="w",
            role=role,
            step="s",
            key=key,
            branch=branch,
            parent_run_id=ROOT if run_id == SUB else None,
            parent_decision_id=parent,
        )
        return lambda router: self._route(router, step)

    def _route(self, router: Router, step: Step) -> None:
        try:
            self.model.returned.append(router.route_sync(step))
        except KeyConflict:
            self.model.conflicts.append(
                (step.run_id, step.key, {"role": step.role, "branch": step.branch})
            )
        except UnknownRun:  # of the parent
            assert step.run_id == SUB

    def _call(self, router: Router, at: int, loop: InlineLoop, asked: Asked, key: str) -> None:
        had_decided = bool(self.model.open[asked.run_id])
        self.model.asked[at] = asked = Asked(asked.run_id, asked.tool, asked.decision)
        asked.permitted.add(self.model.permits(asked))
        arguments = {"key": key}
        calling = router.call(asked.run_id, asked.tool, arguments, decision=asked.decision, key=key)
        try:
            result = loop.run_until_complete(calling)
        except KeyConflict:
            self.model.conflicts.append((asked.run_id, key, {"tool": asked.tool.partition(".")[2]}))
        except UnknownRun:
            assert not had_decided
        else:
            self._hear(asked, key, result)

    def _hear(self, asked: Asked, key: str, result: Result) -> None:
        assert result.outcome in ("ok", "unknown", "denied", "budget"), result
        assert result.outcome != "unknown" or asked.tool == "s.once"
        assert result.outcome != "denied" or False in asked.permitted, (
            "denied though it was permitted all along"
        )
        assert result.outcome != "budget" or self.limit is not None
        self.model.results[(asked.run_id, key)].append((asked.tool, result))

    @staticmethod
    def _close(router: Router, run_id: str) -> None:
        with contextlib.suppress(UnknownRun):  # nobody has routed it yet
            router.close_run_sync(run_id)

    # --- at the end -------------------------------------------------------------------------------

    def check(self) -> None:
        """See that what must hold holds of what stands in the store."""
        begun = 0
        for run_id in (ROOT, SUB):
            files = self.place.files(run_id)
            if files is None:
                assert not self.model.open[run_id]
                continue
            report = check(files, run_id, None)
            assert report.broken is None, report.broken
            records = sorted(
                (parse(line) for lines in files.values() for line in lines),
                key=lambda row: row["seq"],
            )
            begun += sum(record["type"] == "call.started" for record in records)
            self._check_decisions(run_id, records)
            self._check_calls(run_id, records)
        assert self.limit is None or sum(self.model.effects.values()) <= self.limit, (
            "more calls than the tree may make"
        )
        for (_, tool, key), count in self.model.effects.items():
            assert tool != "s.once" or count == 1, (tool, key, count)

    def _check_decisions(self, run_id: str, records: list[dict[str, Any]]) -> None:
        made = [record for record in records if record["type"] == "route.decided"]
        by_id = {record["decision_id"]: record for record in made}
        assert by_id.keys() == {
            id_ for id_, decided in self.model.decided.items() if decided.run_id == run_id
        }
        by_key = {record["key"]: record for record in made if record.get("key")}
        assert len(by_key) == sum(bool(record.get("key")) for record in made), (
            "a key has two decisions"
        )
        for decision in (one for one in self.model.returned if one.run_id == run_id):
            there = by_id[decision.decision_id]
            assert (there["seq"], [row["id"] for row in there["bundles"]]) == (
                decision.seq,
                decision.bundle_ids,
            )
        for _, key, asked in (
            row for row in self.model.conflicts if row[0] == run_id and "role" in row[2]
        ):
            assert (by_key[key]["step"]["role"], by_key[key].get("branch") or "") != (
                asked["role"],
                asked["branch"],
            )

    def _check_calls(self, run_id: str, records: list[dict[str, Any]]) -> None:
        started, finished = defaultdict(list), {}
        for record in records:
            if record["type"] == "call.started":
                started[record.get("key", "")].append(record)
            elif record["type"] == "call.finished":
                assert record["call_id"] not in finished, "a call has two ends"
                finished[record["call_id"]] = record
        for key, attempts in started.items():
            assert [record.get("attempt", 1) for record in attempts] == list(
                range(1, len(attempts) + 1)
            )
            assert len({record["tool"] for record in attempts}) == 1
            assert attempts[0]["tool"] != "once" or len(attempts) == 1, (key, "begun twice")
        for (at, key), heard in self.model.results.items():
            if at != run_id:
                continue
            for tool, result in heard:
                there = finished[result.call_id]
                assert (there["outcome"], there["result"], there["tool"]) == (
                    result.outcome, result.text, tool.partition(".")[2],
                ), (key, there, result)  # fmt: skip
                if result.outcome == "ok" and tool == "s.once":
                    assert self.model.effects[(run_id, tool, key)] == 1
            bound = {(result.call_id, result.outcome) for tool, result in heard
                     if tool == "s.once" and result.outcome in ("ok", "unknown")}  # fmt: skip
            assert len(bound) <= 1, bound
        for _, key, asked in (
            row for row in self.model.conflicts if row[0] == run_id and "tool" in row[2]
        ):
            assert started[key][0]["tool"] != asked["tool"]


def simulate(seeds: Iterable[int], place: Callable[[int], Place]) -> int:
    """Run the schedules of the seeds; how many that were.

    Raises AssertionError that names the first that failed.
    """
    loops = [InlineLoop() for _ in range(WORKERS)]
    done = 0
    # what was imported is not looked through again after each schedule: a fifth of the time
    gc.freeze()
    try:
        for seed in seeds:
            try:
                Schedule(seed, place(seed)).run(loops)
            except BaseException as error:
                raise AssertionError(f"BUNDLE_ROUTER_SEED={seed}") from error
            done += 1
    finally:
        gc.unfreeze()
        for loop in loops:
            loop.close()
    return done
