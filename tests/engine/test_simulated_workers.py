"""Workers, branches, retries, crashes and interleavings from a seed, against what must hold. Deterministic: a failing
seed is named, and `BUNDLE_ROUTER_SEED=<seed>` runs it alone. `BUNDLE_ROUTER_LONG=1`: 100,000 schedules."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bundle_router import Step
from bundle_router.core.catalog import Bundle, Route, Server
from bundle_router.core.records.chain import check
from bundle_router.errors import RouterError, RunBusy
from bundle_router.testing import FakeRouter, MemoryRuns, fake_router, small_catalog

COUNT = 100_000 if os.environ.get("BUNDLE_ROUTER_LONG") else 300
BUNDLES = {
    "read": Bundle("read", "reads", ("s.look",), effects=("read",)),
    "write": Bundle("write", "writes", ("s.again", "s.once"), effects=("write",)),
}
CATALOG = small_catalog(
    BUNDLES,
    routes=[Route("all", bundles=("write", "read"))],
    servers=[Server("s", "local", "trusted", idempotent=("again",))],
)


class Crashed(RouterError):
    """The worker is dead: whatever it does on the store from now on fails."""


class Schedule:
    """One run of the simulation."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.runs = MemoryRuns()
        self.effects: Counter[tuple[str, str]] = Counter()
        self.decided: dict[str, str] = {}
        self.nested = False
        self.workers = [self.begin() for _ in range(3)]

    def begin(self) -> FakeRouter:
        def effect(tool: str) -> Any:
            def made(arguments: Mapping[str, Any]) -> str:
                self.effects[(tool, str(arguments.get("key")))] += 1
                return "done"

            return made

        made = fake_router(CATALOG, results={t: effect(t) for t in ("s.once", "s.again")}, runs=self.runs)
        dead = False

        def before(operation: str, run_id: str) -> None:
            nonlocal dead
            if dead or (operation == "append" and self.dice.random() < 0.06):
                if not dead:
                    dead = True
                    made.fakes.store.kill()
                raise Crashed("dead")
            if operation == "append" and not self.nested and self.dice.random() < 0.3:
                self.nested = True
                try:
                    self.meanwhile(made)
                finally:
                    self.nested = False

        made.fakes.store.before = before
        return made

    def meanwhile(self, busy: FakeRouter) -> None:
        """Another process appends between two operations of a worker."""
        log = self.runs.runs.get("r")
        if log is not None:
            other = type(busy.fakes.store)(busy.fakes.redactor, self.runs).open("r")
            assert other is not None
            other.append("calls", {"type": "noted", "by": "another"})

    def turn(self) -> None:
        at = self.dice.randrange(len(self.workers))
        worker, key = self.workers[at], f"k{self.dice.randrange(6)}"
        try:
            if self.dice.random() < 0.5:
                branch = self.dice.choice(["", "a", "b"])
                key = f"{branch}-{key}"
                step = Step(run_id="r", workflow="w", role="x", step="s", key=key, branch=branch)
                decision = worker.route_sync(step)
                assert self.decided.setdefault(key, decision.decision_id) == decision.decision_id
            elif self.decided:
                tool = self.dice.choice(["s.once", "s.again"])
                result = worker.call_sync("r", tool, {"key": key}, key=f"{tool}-{key}")
                assert result.outcome in ("ok", "unknown"), result
                assert tool == "s.once" or result.outcome == "ok"
        except RunBusy:
            pass  # others came first five times in a row: nothing was recorded, and who asked may try again
        except Crashed:
            self.workers[at] = self.begin()

    def check(self) -> None:
        run = self.runs.runs.get("r")
        if run is None:
            return
        assert check(run.files(), "r", None).broken is None
        keys = Counter(record["key"] for _, record in run.lines if record["type"] == "route.decided")
        assert all(count == 1 for count in keys.values()), keys
        for (tool, key), count in self.effects.items():
            assert tool == "s.again" or count == 1, (tool, key, count)


def test_whatever_the_schedule_what_must_hold_holds() -> None:
    one = os.environ.get("BUNDLE_ROUTER_SEED")
    for seed in [int(one)] if one else range(COUNT):
        schedule = Schedule(seed)
        try:
            for _ in range(25):
                schedule.turn()
            schedule.check()
        except BaseException as error:
            raise AssertionError(f"BUNDLE_ROUTER_SEED={seed}") from error
