"""Retries, branches, sub-agents and several workers over one run: what happens once, and what is
judged under what.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from bundle_router import Result, Router, Step
from bundle_router.core.catalog import Bundle, CallLimits, Catalog, Policy, Route, Server, Settings
from bundle_router.core.records.chain import check
from bundle_router.core.servers.transport.tool_servers import RawResult
from bundle_router.core.values import Decision, StepPolicy, Text
from bundle_router.core.values.canonical import encode
from bundle_router.engine import arguments
from bundle_router.engine.made_calls import UNKNOWN_TEXT
from bundle_router.engine.run_records import MOVED_AT_MOST
from bundle_router.errors import (
    KeyConflict,
    RequestError,
    RunBusy,
    StorageError,
    UnknownRun,
    WrongContext,
)
from bundle_router.testing import FakeRouter, MemoryRuns, fake_router, small_catalog
from bundle_router.testing.memory_store import MemoryRunLog

Made = Callable[[Mapping[str, Any]], Any]


def catalog(**limits: Any) -> Catalog:
    """Two roles of two bundles each: `wide` has both, `narrow` only the reader's. `s.again` and
    `s.hinted` may be repeated, by the operator's word and by the server's."""
    made = {
        "read": Bundle("read", "reads", ("s.look",), effects=("read",)),
        "write": Bundle("write", "writes", ("s.again", "s.hinted", "s.once"), effects=("write",)),
    }
    routes = [
        Route("wide", role=("wide",), bundles=("write", "read")),
        Route("narrow", bundles=("read",)),
    ]
    servers = [Server("s", "local", "trusted", idempotent=("again",))]
    small = small_catalog(
        made, routes=routes, servers=servers, settings=Settings(limits=CallLimits(**limits))
    )
    return replace(
        small, cards={**small.cards, "s.hinted": replace(small.cards["s.hinted"], idempotent=True)}
    )


def step(run_id: str = "r", role: str = "wide", **more: Any) -> Step:
    return Step(run_id=run_id, workflow="w", role=role, step="s", **more)


def worker(runs: MemoryRuns, results: Mapping[str, Any] | None = None, **limits: Any) -> FakeRouter:
    return fake_router(catalog(**limits), results=results or {}, runs=runs)


def records(router: FakeRouter, type_: str, run_id: str = "r") -> list[dict[str, Any]]:
    return [record for record in router.fakes.records(run_id) if record["type"] == type_]


# --- keys -----------------------------------------------------------------------------------------


def test_a_step_routed_again_with_its_key_gives_the_recorded_decision_whichever_worker_asks() -> (
    None
):
    runs = MemoryRuns()
    with worker(runs) as one, worker(runs) as other:
        first = one.route_sync(step(key="k"))
        one.route_sync(step(role="narrow"))
        assert other.route_sync(step(key="k")) == first
        assert len(records(one, "route.decided")) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"role": "narrow"},
        {"goal": "another"},
        {"branch": "b"},
        {"policy": StepPolicy(deny=("read",))},
    ],
)
def test_a_key_with_another_step_is_an_error_that_names_what_differs(
    change: dict[str, Any],
) -> None:
    with worker(MemoryRuns()) as router:
        router.route_sync(step(key="k"))
        with pytest.raises(KeyConflict, match=next(iter(change))):
            router.route_sync(step(key="k", **change))
        assert len(records(router, "route.decided")) == 1


def test_a_call_made_again_with_its_key_gives_the_recorded_result() -> None:
    runs, made = MemoryRuns(), list[int]()

    def once(arguments: Mapping[str, Any]) -> str:
        made.append(1)
        return f"made {len(made)} times"

    with worker(runs, {"s.once": once}) as one, worker(runs, {"s.once": once}) as other:
        one.route_sync(step())
        first = one.call_sync("r", "s.once", {"x": 1}, key="k")
        again = other.call_sync("r", "s__once", '{"x": 1}', key="k")
        assert (again.text, again.cached_from, again.call_id) == (
            "made 1 times",
            first.call_id,
            first.call_id,
        )
        assert len(made) == 1
        for name, arguments, what in (
            ("s.once", {"x": 2}, "other arguments"),
            ("s.again", {"x": 1}, "another tool"),
        ):
            with pytest.raises(KeyConflict, match=what):
                other.call_sync("r", name, arguments, key="k")
        assert [record["outcome"] for record in records(one, "call.finished")] == ["ok"]


def test_a_call_that_may_be_made_again_is_so_with_the_same_contents_alone() -> None:
    made: list[Mapping[str, Any]] = []

    def silent(arguments: Mapping[str, Any]) -> RawResult:
        made.append(arguments)
        return RawResult((Text("no answer"),), "timeout")

    with worker(MemoryRuns(), {"s.again": silent, "s.once": silent, "s.hinted": silent}) as router:
        router.route_sync(step())
        assert router.call_sync("r", "s.again", {"x": 1}, key="k").retryable
        assert router.call_sync("r", "s.once", {"x": 1}, key="k2").outcome == "timeout"
        for name, arguments, key in (
            ("s.again", {"x": 2}, "k"),
            ("s.hinted", {"x": 1}, "k"),
            ("s.again", {"x": 1}, "k2"),
        ):
            with pytest.raises(KeyConflict):
                router.call_sync("r", name, arguments, key=key)
        assert len(made) == 2
        router.call_sync("r", "s.again", {"x": 1}, key="k")
        assert len(made) == 3


@pytest.mark.parametrize("dies_while_looked_for", [False, True])
@pytest.mark.parametrize(
    ("tool", "outcome", "times"),
    [("s.once", "unknown", 1), ("s.again", "ok", 2), ("s.hinted", "ok", 2)],
)
def test_a_call_that_began_and_whose_worker_is_gone_is_unknown_unless_it_may_be_made_again(
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    outcome: str,
    times: int,
    dies_while_looked_for: bool,
) -> None:
    runs, made = MemoryRuns(), list[int]()
    entered, killed = threading.Event(), threading.Event()

    def first(arguments: Mapping[str, Any]) -> str:
        made.append(1)
        entered.set()
        assert killed.wait(300)
        return "never heard"

    def second(arguments: Mapping[str, Any]) -> str:
        made.append(1)
        return "done"

    dying, living = worker(runs, {tool: first}), worker(runs, {tool: second})
    dying.route_sync(step())

    def calling() -> None:
        with pytest.raises(StorageError):
            dying.call_sync("r", tool, {}, key="k")

    call = threading.Thread(target=calling)
    call.start()
    assert entered.wait(300)
    if dies_while_looked_for:
        is_alive = living.fakes.store.is_alive

        def last_look(writer: str) -> bool:
            was_alive = is_alive(writer)
            dying.fakes.store.kill()
            return was_alive

        monkeypatch.setattr(living.fakes.store, "is_alive", last_look)
    else:
        dying.fakes.store.kill()
    result = living.call_sync("r", tool, {}, key="k")
    assert (result.outcome, len(made)) == (outcome, times)
    assert (result.text == UNKNOWN_TEXT) == (outcome == "unknown")
    assert living.call_sync("r", tool, {}, key="k").text == result.text
    attempts = [record.get("attempt", 1) for record in records(living, "call.started")]
    assert attempts == list(range(1, times + 1))
    spent = [record["spent"]["calls"] for record in records(living, "call.finished")]
    assert spent == [times]  # whoever records an end says what the step's calls have come to
    dying.fakes.store.before = _dead
    killed.set()
    call.join(300)
    living.close_sync()


def test_a_call_that_others_took_for_lost_has_the_end_that_they_recorded() -> None:
    """Its worker was out of their reach, and comes back with a result: the call has one end, and
    everybody is told the same of it.
    """
    runs, entered, found_dead = MemoryRuns(), threading.Event(), threading.Event()

    def once(arguments: Mapping[str, Any]) -> str:
        entered.set()
        assert found_dead.wait(300)
        return "done"

    with worker(runs, {"s.once": once}) as cut_off, worker(runs) as other:
        cut_off.route_sync(step())
        results: list[Result] = []
        call = threading.Thread(
            target=lambda: results.append(cut_off.call_sync("r", "s.once", {}, key="k"))
        )
        call.start()
        assert entered.wait(300)
        cut_off.fakes.store.kill()
        results.append(other.call_sync("r", "s.once", {}, key="k"))
        found_dead.set()
        call.join(300)
        results.append(cut_off.call_sync("r", "s.once", {}, key="k"))
        assert [(result.outcome, result.text) for result in results] == [
            ("unknown", UNKNOWN_TEXT)
        ] * 3
        assert [record["outcome"] for record in records(other, "call.finished")] == ["unknown"]
        events = [name for _, name, _ in cut_off.fakes.diagnostics.events]
        assert events == ["call.ended_elsewhere"]


def _dead(operation: str, run_id: str) -> None:
    raise StorageError("this process is dead", kind="io_error")


def full(kind: str = "disk_full") -> StorageError:
    return StorageError("the store takes nothing now", kind=kind)


@pytest.mark.parametrize("then", ["again here", "again elsewhere", "closed"])
def test_a_call_whose_end_the_store_did_not_take_is_ended_once_it_does(then: str) -> None:
    runs, made = MemoryRuns(), list[int]()

    def once(arguments: Mapping[str, Any]) -> str:
        made.append(1)
        one.fakes.store.log("r").fail_with = full()
        return "done"

    async def scenario() -> tuple[str, str]:
        with pytest.raises(StorageError):
            await one.call("r", "s.once", {}, key="k")
        if then == "closed":
            await one.close_run("r")
        one.fakes.store.log("r").fail_with = None
        asks = other if then == "again elsewhere" else one
        result = await asyncio.wait_for(asks.call("r", "s.once", {}, key="k"), 300)
        return result.outcome, result.text

    with worker(runs, {"s.once": once}) as one, worker(runs, {"s.once": once}) as other:
        one.route_sync(step())
        ended = ("unknown", UNKNOWN_TEXT) if then == "closed" else ("ok", "done")
        assert asyncio.run(scenario()) == ended
        assert len(made) == 1
        assert [record["outcome"] for record in records(one, "call.finished")] == [ended[0]]


def test_one_thread_waits_for_the_store_whatever_it_did_not_take() -> None:
    with worker(MemoryRuns()) as router:
        router.route_sync(step())
        router.fakes.store.log("r").fail_with = full()
        before = threading.active_count()
        for _ in range(20):
            with pytest.raises(StorageError):
                router.call_sync("r", "s.once", {}, key="k")
        assert threading.active_count() <= before + 2  # and the loop's, of calls without one
        router.fakes.store.log("r").fail_with = None
        assert router.call_sync("r", "s.once", {}, key="k").ok


def test_a_call_whose_event_loop_was_closed_has_ended_for_another_router_of_the_process() -> None:
    runs = MemoryRuns()

    async def forever(*_arguments: Any, **_more: Any) -> Any:
        await asyncio.Event().wait()

    with worker(runs) as one, worker(runs) as other:
        one.route_sync(step())
        one.fakes.sessions.call = forever  # type: ignore[method-assign]  # a fake with another behaviour
        call = one.call("r", "s.once", {}, key="k")
        loop = asyncio.new_event_loop()
        task = loop.create_task(call)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # that it is left undone is what is tested
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        call.close()
        again = asyncio.wait_for(other.call("r", "s.once", {}, key="k"), 300)
        assert asyncio.run(again).outcome == "cancelled"


@pytest.mark.parametrize("was_written", [True, False])
def test_a_call_whose_start_was_not_confirmed_is_made_by_the_retry(
    monkeypatch: pytest.MonkeyPatch, was_written: bool
) -> None:
    runs, made, append = MemoryRuns(), list[int](), MemoryRunLog.append

    def unconfirmed(log: MemoryRunLog, file: Any, record: dict[str, Any], **how: Any) -> Any:
        if record["type"] != "call.started":
            return append(log, file, record, **how)
        monkeypatch.setattr(MemoryRunLog, "append", append)
        if was_written:
            append(log, file, record, **how)
            log._at -= 1  # it comes as a new record
        raise full("unreachable")

    def once(arguments: Mapping[str, Any]) -> str:
        made.append(1)
        return "done"

    with worker(runs, {"s.once": once}) as router:
        router.route_sync(step())
        monkeypatch.setattr(MemoryRunLog, "append", unconfirmed)
        with pytest.raises(StorageError):
            router.call_sync("r", "s.once", {}, key="k")
        assert router.call_sync("r", "s.once", {}, key="k").text == "done"
        assert len(made) == 1
        outcomes = [record["outcome"] for record in records(router, "call.finished")]
        assert outcomes == (["busy", "ok"] if was_written else ["ok"])


def test_a_call_that_is_cancelled_while_its_start_is_written_ends_although_nobody_uses_its_run() -> (
    None
):
    runs, entered, go_on = MemoryRuns(), threading.Event(), threading.Event()

    def hold(operation: str, run_id: str) -> None:
        if operation == "append":
            one.fakes.store.before = lambda *_: None
            entered.set()
            assert go_on.wait(300)

    async def scenario() -> str:
        one.fakes.store.before = hold
        call = asyncio.create_task(one.call("r", "s.once", {}, key="k"))
        await asyncio.to_thread(entered.wait, 300)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
        return (await asyncio.wait_for(other.call("r", "s.once", {}, key="k"), 300)).outcome

    with worker(runs) as one, worker(runs) as other:
        one.route_sync(step())
        one.fakes.store.blocks = True  # as a database
        assert asyncio.run(scenario()) in ("cancelled", "ok")


def test_a_call_goes_on_when_its_run_is_closed_and_routed_again_before_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(value: Any) -> str:
        entered.set()
        assert go_on.wait(300)
        return encode(value)

    async def scenario() -> None:
        async with worker(MemoryRuns()) as router:
            await router.route(step())
            call = asyncio.create_task(router.call("r", "s.once", {"x": "large" * 50_000}))
            await asyncio.to_thread(entered.wait, 300)
            await router.close_run("r")
            await router.route(step())
            go_on.set()
            assert (await call).ok

    monkeypatch.setattr(arguments, "encode", slow)
    asyncio.run(scenario())


def test_who_asks_for_a_call_that_is_under_way_waits_for_it() -> None:
    runs, entered, go_on = MemoryRuns(), threading.Event(), threading.Event()
    made: list[int] = []

    def slow(arguments: Mapping[str, Any]) -> str:
        made.append(1)
        entered.set()
        assert go_on.wait(300)
        return "slow"

    with worker(runs, {"s.once": slow}) as one, worker(runs, {"s.once": slow}) as other:
        one.route_sync(step())
        results: list[Any] = []
        callers = [
            threading.Thread(
                target=lambda router=router: results.append(
                    router.call_sync("r", "s.once", {}, key="k")
                )
            )
            for router in (one, other, one)
        ]
        callers[0].start()
        assert entered.wait(300)
        for caller in callers[1:]:
            caller.start()
        go_on.set()
        for caller in callers:
            caller.join(300)
        assert [result.text for result in results] == ["slow"] * 3
        assert len(made) == 1


def test_a_refused_call_binds_no_key() -> None:
    with worker(MemoryRuns()) as router:
        router.route_sync(step(role="narrow"))
        assert router.call_sync("r", "s.once", {}, key="k").outcome == "denied"
        router.route_sync(step())
        assert router.call_sync("r", "s.once", {}, key="k").ok


def test_a_router_is_closed_after_one_wait_for_a_database_that_is_away_whatever_runs_it_has() -> (
    None
):
    tried: list[str] = []

    def away(operation: str, run_id: str) -> None:
        tried.append(run_id)
        raise full("unreachable")

    router = worker(MemoryRuns())
    for number in range(5):
        router.route_sync(step(f"r-{number}"))
    router.fakes.store.before = away
    with pytest.raises(StorageError):
        router.close_sync()
    assert len(tried) == 1


# --- who gets a recorded result -------------------------------------------------------------------


def keyed(tool: str, policy: StepPolicy | None) -> tuple[str, str]:
    """Return the outcome and the code of a call whose key a call has already, at a later step with
    a policy of its own.
    """
    runs = MemoryRuns()
    with worker(runs, {tool: "done"}) as one, worker(runs) as other:
        one.route_sync(step())
        assert one.call_sync("r", tool, {}, key="k").text == "done"
        other.route_sync(step(policy=policy))
        again = other.call_sync("r", tool, {}, key="k")
        assert (again.text == "done") is again.ok
        assert len(records(one, "call.started")) == 1
        return again.outcome, again.code


@pytest.mark.parametrize("tool", ["s.once", "s.again"])
def test_a_recorded_result_is_denied_where_the_present_step_may_not_call_the_tool(
    tool: str,
) -> None:
    denials = {
        "policy_denied": StepPolicy(deny=(f"tool:{tool}",)),
        "not_allowed": StepPolicy(allow=("read",)),
    }
    for code, policy in denials.items():
        assert keyed(tool, policy) == ("denied", code)
    for permitting in (None, StepPolicy(deny=("read",)), StepPolicy(allow=("write",))):
        assert keyed(tool, permitting) == ("ok", "")


def test_a_refused_second_call_leaves_the_key_to_whoever_may_have_it() -> None:
    with worker(MemoryRuns(), {"s.once": "done"}) as router:
        first = router.route_sync(step())
        router.call_sync("r", "s.once", {}, key="k")
        router.route_sync(step(policy=StepPolicy(deny=("write",))))
        assert router.call_sync("r", "s.once", {}, key="k").code == "policy_denied"
        with pytest.raises(KeyConflict):
            router.call_sync("r", "s.once", {"x": 1}, key="k")
        # An engine that starts over names the decision it had: policy still permits it there.
        again = router.call_sync("r", "s.once", {}, key="k", decision=first.decision_id)
        assert (again.text, bool(again.cached_from)) == ("done", True)
        router.route_sync(step())
        assert router.call_sync("r", "s.once", {}, key="k").text == "done"


def test_a_recorded_result_is_denied_where_policy_has_narrowed_since() -> None:
    runs = MemoryRuns()
    with worker(runs, {"s.once": "done"}) as before:
        decided = before.route_sync(step(key="d"))
        before.call_sync("r", "s.once", {}, key="k")
        narrower = replace(catalog(), policies=(Policy("all", deny=("tool:s.once",)),))
        with fake_router(narrower, runs=runs) as after:
            assert after.route_sync(step(key="d")) == decided
            denied = after.call_sync("r", "s.once", {}, key="k", decision=decided.decision_id)
            assert (denied.outcome, denied.code) == ("denied", "policy_denied")
        assert before.call_sync("r", "s.once", {}, key="k").text == "done"


def test_a_sub_agent_gets_no_recorded_result_that_its_parent_may_not_have_any_more() -> None:
    with worker(MemoryRuns(), {"s.once": "done"}) as router:
        router.route_sync(step("parent"))
        router.route_sync(step("r", parent_run_id="parent"))
        router.call_sync("r", "s.once", {}, key="k")
        assert router.call_sync("r", "s.once", {}, key="k").text == "done"
        router.route_sync(step("parent", policy=StepPolicy(deny=("write",))))
        assert router.call_sync("r", "s.once", {}, key="k").code == "policy_denied"


# --- decisions that are named, and branches -------------------------------------------------------


def test_branches_are_judged_each_under_its_own_decision() -> None:
    with worker(MemoryRuns()) as router:
        router.route_sync(step())
        a = router.route_sync(step(branch="a", role="wide"))
        b = router.route_sync(step(branch="b", role="narrow", policy=StepPolicy(deny=("write",))))
        assert router.call_sync("r", "s.once", {}, decision=a.decision_id).ok
        assert router.call_sync("r", "s.once", {}, decision=b.decision_id).outcome == "denied"
        assert router.call_sync("r", "s.once", {}).ok, "the default branch did not move"
        assert {tool.name for tool in router.tools_sync("r", decision=b.decision_id).active} == {
            "s.look"
        }
        assert router.tools_sync("r", decision=a.decision_id).decision_id == a.decision_id


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("newest", ["y", ""])
def test_a_call_that_names_no_decision_is_judged_by_the_newest_of_whichever_worker(
    newest: str, key: str
) -> None:
    """Of a run with named branches only the branch that decided last is meant, and the default one
    as soon as it decides: also where another worker routed it since this one looked.
    """
    runs = MemoryRuns()
    with worker(runs) as one, worker(runs) as other:
        one.route_sync(step(branch="x"))
        assert one.call_sync("r", "s.once", {}).ok
        other.route_sync(step(branch=newest, role="narrow", policy=StepPolicy(deny=("write",))))
        for _ in range(2):
            assert one.call_sync("r", "s.once", {}, key=key).code == "policy_denied"
        assert len(records(one, "call.started")) == 1
        newest_x = other.route_sync(step(branch="x"))
        is_meant = newest == "y"
        assert one.call_sync("r", "s.once", {}, key=key).ok == is_meant
        assert one.call_sync("r", "s.once", {}, decision=newest_x.decision_id).ok


def test_a_decision_that_its_branch_superseded_is_not_open_any_more() -> None:
    with worker(MemoryRuns()) as router:
        first = router.route_sync(step())
        second = router.route_sync(step())
        result = router.call_sync("r", "s.once", {}, decision=first.decision_id)
        assert (result.outcome, result.code) == ("denied", "not_mapped")
        assert "not open any more" in result.text
        with pytest.raises(RequestError, match="not open any more"):
            router.tools_sync("r", decision=first.decision_id)
        with pytest.raises(RequestError, match="has no decision"):
            router.call_sync("r", "s.once", {}, decision="r.99")
        assert router.call_sync("r", "s.once", {}, decision=second.decision_id).ok


def test_a_decision_of_another_store_is_named_as_such(tmp_path: Path) -> None:
    """As where every machine has a folder of its own."""
    planned = Step(run_id="r", workflow="feature", role="planner", step="plan")
    with ExitStack() as machines:
        one, other = (
            machines.enter_context(Router.open(None, runs=tmp_path / name, workspace=tmp_path))
            for name in ("one", "other")
        )
        decision = one.route_sync(planned)
        with pytest.raises(UnknownRun) as missing:
            other.call_sync("r", "repo.list_dir", {}, decision=decision.decision_id)
        other.route_sync(planned)
        with pytest.raises(RequestError, match="has no decision") as unknown:
            other.call_sync("r", "repo.list_dir", {}, decision=decision.decision_id)
        assert "if another machine did, both need the same store" in missing.value.advice
        assert "all machines that work on a run need the same one" in unknown.value.advice
        with pytest.raises(RequestError) as misspelt:
            other.call_sync("r", "repo.list_dir", {}, decision="r.99")
        assert misspelt.value.advice == "name one that route() returned for it"


def test_a_router_that_closes_a_run_names_another_of_its_process(tmp_path: Path) -> None:
    planned = Step(run_id="r", workflow="feature", role="planner", step="plan")
    with (
        Router.open(None, runs=tmp_path / "runs", workspace=tmp_path) as one,
        Router.open(None, runs=tmp_path / "runs", workspace=tmp_path) as other,
    ):
        one.route_sync(planned)
        other.route_sync(planned)
        (writer,) = one.close_run_sync("r").others
        assert (writer.pid, writer.name) == (os.getpid(), "this process (another Router of it)")


def test_a_clock_that_a_test_has_frozen_uses_up_no_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As freezegun does it: real where `threading` is among the five innermost callers, as it is in
    a worker's thread.
    """
    real = time.monotonic

    def frozen() -> float:
        frame = sys._getframe(1)
        for _ in range(5):
            if frame.f_globals.get("__name__") == "threading":
                return real()
            if frame.f_back is None:
                break
            frame = frame.f_back
        return 1.9e9

    with Router.open(None, runs=tmp_path / "runs", workspace=tmp_path) as router:
        router.route_sync(Step(run_id="r", workflow="feature", role="planner", step="plan"))
        monkeypatch.setattr(time, "monotonic", frozen)
        outcomes = [router.call_sync("r", "repo.list_dir", {"path": "."}).outcome for _ in "123"]
        monkeypatch.undo()
    assert outcomes == ["ok", "ok", "ok"]


def test_a_branch_begins_at_the_decision_it_names() -> None:
    with worker(MemoryRuns()) as router:
        first = router.route_sync(step())
        router.route_sync(step(role="narrow"))
        branch = router.route_sync(
            step(role="narrow", branch="b", parent_decision_id=first.decision_id)
        )
        assert branch.before == first.after
        with pytest.raises(RequestError, match="has no decision"):
            router.route_sync(step(branch="c", parent_decision_id="r.77"))


def test_a_sub_agent_keeps_the_decision_it_names_and_never_gets_more_than_its_parent_has_now() -> (
    None
):
    with worker(MemoryRuns()) as router:
        parent = router.route_sync(step("top", branch="a"))
        router.route_sync(step("top", role="narrow", branch="b"))
        router.route_sync(step("leaf", parent_run_id="top", parent_decision_id=parent.decision_id))
        assert router.call_sync("leaf", "s.once", {}).ok, "branch b is none of its business"
        router.route_sync(step("top", branch="a", policy=StepPolicy(deny=("tool:s.once",))))
        assert router.call_sync("leaf", "s.once", {}).outcome == "denied"
        assert router.call_sync("leaf", "s.again", {}).ok, "both decisions of the parent allow it"


# --- budgets --------------------------------------------------------------------------------------


def test_what_a_step_has_spent_stays_spent_when_it_is_routed_again() -> None:
    with worker(MemoryRuns(), calls_per_step=3) as router:
        outcomes = []
        for _ in range(5):
            router.route_sync(step())
            outcomes.append(router.call_sync("r", "s.once", {}).outcome)
        assert outcomes == ["ok"] * 3 + ["budget"] * 2
        router.route_sync(step(role="narrow"))
        assert router.call_sync("r", "s.look", {}).ok, "another role has its own"
        router.route_sync(step(key="next"))
        assert router.call_sync("r", "s.once", {}).ok, "another key, too"


def test_equal_calls_are_refused_although_the_step_is_routed_before_each() -> None:
    with worker(MemoryRuns(), {"s.look": "the same"}, repeated_calls=3) as router:
        outcomes = []
        for _ in range(8):
            router.route_sync(step())
            outcomes.append(router.call_sync("r", "s.look", {}).outcome)
        assert outcomes == ["ok"] * 4 + ["budget"] * 4


def test_a_run_and_a_tree_of_runs_have_budgets_of_their_own() -> None:
    runs = MemoryRuns()
    with worker(runs, calls_per_run=3) as router:
        for role in ("wide", "narrow", "wide", "narrow"):
            router.route_sync(step(role=role))
            last = router.call_sync("r", "s.look", {})
        assert (last.outcome, last.code) == ("budget", "calls_per_run")
    with worker(MemoryRuns(), calls_per_tree=50) as router:
        router.route_sync(step("top"))
        made = 0
        for number in range(50):
            router.route_sync(step(f"leaf-{number}", parent_run_id="top"))
            for _ in range(2):
                made += router.call_sync(f"leaf-{number}", "s.look", {}).ok
        assert made == 50
        assert router.call_sync("top", "s.look", {}).code == "calls_per_tree"


@pytest.mark.parametrize("of", ["step", "run", "tree"])
def test_meta_tools_that_are_called_at_the_same_time_do_not_exceed_the_budget(of: str) -> None:
    """Each is recorded when it is over: until then it counts all the same."""

    async def main() -> list[str]:
        return [
            result.outcome
            for result in await asyncio.gather(*(router.call("r", "list_tools") for _ in range(12)))
        ]

    limits: dict[str, Any] = {f"calls_per_{of}": 3}
    with worker(MemoryRuns(), **limits) as router:
        router.route_sync(step())
        assert sorted(asyncio.run(main())) == ["budget"] * 9 + ["ok"] * 3


# --- what else an engine needs --------------------------------------------------------------------


def test_a_name_that_a_framework_refused_is_recorded_as_a_gap_and_costs_no_budget() -> None:
    with worker(MemoryRuns(), calls_per_step=1) as router:
        router.route_sync(step(role="narrow"))
        for _ in range(3):
            result = router.missed_sync("r", "s.once")
        assert (result.outcome, result.code) == ("denied", "not_mapped")
        assert "Did you mean 's.look'?" in router.missed_sync("r", "s.loook").text
        gaps = records(router, "call.finished")
        assert [(gap["tool"], gap["via"]) for gap in gaps] == [("once", "missed")] * 3 + [
            ("loook", "missed")
        ]
        assert router.call_sync("r", "s.look", {}).ok


def test_a_step_and_its_decision_go_through_json() -> None:
    with worker(MemoryRuns()) as router:
        asked = step(key="k", labels={"a": "b"}, policy=StepPolicy(deny=("read",)))
        decision = router.route_sync(asked)
        assert Step.from_json(json.loads(json.dumps(asked.to_json()))) == asked
        assert type(decision).from_json(json.loads(json.dumps(decision.to_json()))) == decision


def test_a_list_is_handed_out_again_only_where_it_changed() -> None:
    with worker(MemoryRuns()) as router:
        router.route_sync(step())
        first = router.tools_sync("r")
        assert router.tools_sync("r", if_changed=first.digest) is None
        router.route_sync(step(role="narrow", policy=StepPolicy(deny=("write",))))
        changed = router.tools_sync("r", if_changed=first.digest)
        assert changed is not None
        assert type(changed).from_json(changed.to_json()) == changed


def test_the_whole_result_is_had_on_request_and_results_say_whether_to_try_again() -> None:
    from bundle_router.core.servers.transport.tool_servers import RawResult
    from bundle_router.engine.results import Result

    busy = RawResult((), "busy", "busy")
    with worker(MemoryRuns(), {"s.look": "x" * 50_000, "s.once": busy}) as router:
        router.route_sync(step())
        result = router.call_sync("r", "s.look", {}, whole=True)
        assert result.whole is not None
        assert len(result.whole[0].text) == 50_000  # type: ignore[union-attr]  # it is text
        assert len(result.text) < 50_000
        assert not result.retryable
        again = Result.from_json(result.to_json())
        assert again == replace(result, whole=None, parts=())
        assert router.call_sync("r", "s.once", {}).retryable


# --- where a router can't be used -----------------------------------------------------------------

ASKED: Final[dict[str, Any]] = {
    "step": step(), "run_id": "r", "name": "s.look", "arguments": {}, "target": "read",
    "uri": f"artifact:sha256:{0:064}", "taints": ["private"], "by": "lead", "reason": "why",
    "value": {}, "form": "triage", "approval_id": "ap_r.1",
}  # fmt: skip
"""What the entry points of a router are given, by the names of their parameters."""
HARMLESS: Final = {
    "open": "makes a router of the process's own",
    "close": "what there is to end is the parent's",
    "close_sync": "what there is to end is the parent's",
    "config_stamp": "looks at the config's files only",
    "opened_at": "is a value that was read before",
}
ENTRIES: Final = sorted(
    name for name in dir(Router) if not name.startswith("_") and name not in HARMLESS
)


def enter(router: Router, name: str) -> Any:
    """Use an entry point: read the property, call the method."""
    entry = getattr(router, name)
    if not callable(entry):
        return entry
    wanted = [
        one.name for one in inspect.signature(entry).parameters.values() if one.default is one.empty
    ]
    return entry(**{parameter: ASKED[parameter] for parameter in wanted if parameter != "how"})


def carry_out(made: Any, drive: Callable[[Coroutine[Any, Any, Any]], object]) -> None:
    if isinstance(made, contextlib.AbstractAsyncContextManager):
        drive(made.__aenter__())
    elif inspect.iscoroutine(made):
        drive(made)


def test_every_entry_point_of_a_forked_process_says_that_it_is_to_open_a_router_of_its_own() -> (
    None
):
    with worker(MemoryRuns()) as router:
        router.route_sync(step())
        heard, say = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover (in the child)
            for name in ENTRIES:
                try:
                    carry_out(enter(router, name), asyncio.run)
                    said = "nothing"
                except RequestError as error:
                    said = f"{error.message}; {error.advice}"
                except Exception as error:  # noqa: BLE001 - the parent reads it
                    said = repr(error)
                os.write(say, f"{name}: {said}\n".encode())
            router.close_sync()
            asyncio.run(router.close())
            os._exit(0)
        os.close(say)
        with os.fdopen(heard, encoding="utf-8") as lines:
            told = [
                line
                for line in lines
                if "forked" not in line or "open a router of its own" not in line
            ]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert told == []
        assert router.route_sync(step()).seq == 1


ASYNC: Final = [name for name in ENTRIES if inspect.iscoroutinefunction(getattr(Router, name))]


@pytest.mark.parametrize("name", [*ASYNC, "close", "__aenter__"])
def test_a_coroutine_on_another_event_loop_gets_a_sentence(name: str) -> None:
    with worker(MemoryRuns()) as router, pytest.raises(WrongContext, match="asyncio"):
        carry_out(enter(router, name), lambda coroutine: coroutine.send(None))


def test_the_chain_of_a_run_that_many_workers_wrote_is_whole() -> None:
    runs = MemoryRuns()
    workers = [worker(runs) for _ in range(4)]

    def route_25_steps(router: FakeRouter) -> None:
        routed = 0
        while routed < 25:
            with contextlib.suppress(
                RunBusy
            ):  # who has lost a race has more to do until the next, and may lose 50
                router.route_sync(step())
                routed += 1

    with ThreadPoolExecutor(4) as threads:
        for routed in [threads.submit(route_25_steps, router) for router in workers]:
            routed.result(300)
    checked = check(runs.runs["r"].files(), "r", None)
    assert (checked.count, checked.broken) == (100, None)
    for router in workers:
        router.close_sync()


@pytest.mark.parametrize("others", [MOVED_AT_MOST - 1, MOVED_AT_MOST])
def test_a_step_is_decided_again_until_others_came_first_too_often_and_nothing_of_it_is_recorded(
    others: int,
) -> None:
    runs, came = MemoryRuns(), list[Decision]()
    with worker(runs) as one, worker(runs) as other:
        one.route_sync(step())

        def others_first(operation: str, run_id: str) -> None:
            if operation == "append" and len(came) < others:
                came.append(other.route_sync(step()))

        one.fakes.store.before = others_first
        if others == MOVED_AT_MOST:
            with pytest.raises(RunBusy, match="nothing was recorded") as busy:
                one.route_sync(step())
            assert busy.value.advice == "try again; it is safe"
            assert len(records(one, "route.decided")) == 1 + others
        assert one.route_sync(step()).seq == 1 + others
        assert check(runs.runs["r"].files(), "r", None).broken is None


# --- others come first ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("s.unknown", {}), ("s.look", "no JSON"), ("search_tools", {"query": "look"}), (None, {})],
)
def test_what_is_refused_or_answered_here_is_named_after_its_own_record_though_others_came_first(
    name: str | None, arguments: Any
) -> None:
    runs = MemoryRuns()
    with worker(runs) as one, worker(runs) as other:
        one.route_sync(step())
        log, came = other.fakes.store.open("r"), list[str]()
        assert log is not None

        def others_first(operation: str, run_id: str) -> None:
            if operation == "append" and not came:
                came.append(run_id)
                log.append("calls", {"type": "noted"})

        one.fakes.store.before = others_first
        result = (
            one.missed_sync("r", "s.unknown")
            if name is None
            else one.call_sync("r", name, arguments)
        )
        (record,) = records(one, "call.finished")
        assert came
        assert record["call_id"] == result.call_id == f"r.{record['seq']}"


def test_a_tree_makes_no_more_calls_than_it_may_though_two_of_its_runs_begin_one_at_once() -> None:
    runs, made = MemoryRuns(), list[str]()

    def make(arguments: Mapping[str, Any]) -> str:
        made.append(str(arguments))
        return "done"

    tools = {"s.again": make}
    with (
        worker(runs, tools, calls_per_tree=1) as one,
        worker(runs, tools, calls_per_tree=1) as other,
    ):
        one.route_sync(step())
        one.route_sync(step("sub", parent_run_id="r"))
        at_append, go_on = threading.Event(), threading.Event()

        def held_up(operation: str, run_id: str) -> None:
            if operation == "append" and not at_append.is_set():
                at_append.set()
                assert go_on.wait(300)

        one.fakes.store.before = held_up
        results: list[Any] = []
        call = threading.Thread(
            target=lambda: results.append(one.call_sync("r", "s.again", {"by": "one"}))
        )
        call.start()
        assert at_append.wait(300)
        assert other.call_sync("sub", "s.again", {"by": "other"}).ok
        go_on.set()
        call.join(300)
        (refused,) = results
        assert (refused.outcome, refused.code, len(made)) == ("budget", "calls_per_tree", 1)
        assert [record["type"] for record in records(one, "call.started")] == ["call.started"], (
            "its end stands, too"
        )
        assert one.call_sync("r", "s.again", {}).code == "calls_per_tree"


def test_a_sub_run_counts_for_its_tree_though_its_worker_died_as_it_began() -> None:
    runs = MemoryRuns()
    with worker(runs, calls_per_tree=1) as living:
        living.route_sync(step())
        dying = worker(runs, calls_per_tree=1)

        def dies(operation: str, run_id: str) -> None:
            if run_id == "sub" and runs.runs.get("sub") is not None:
                raise StorageError("this process is dead", kind="io_error")

        dying.fakes.store.before = dies
        with pytest.raises(StorageError):
            dying.route_sync(step("sub", parent_run_id="r"))
        dying.fakes.store.kill()
        living.route_sync(step("sub", parent_run_id="r"))
        assert living.call_sync("sub", "s.look", {}).ok
        assert living.call_sync("r", "s.look", {}).code == "calls_per_tree"
        dying.fakes.store.before = _nothing
        dying.close_sync()


def _nothing(operation: str, run_id: str) -> None:
    return None


def test_a_bare_name_is_not_called_of_an_untrusted_server_while_a_trusted_one_has_such_a_tool() -> (
    None
):
    made = {
        "files": Bundle("files", "writes", ("fs.write_file",), effects=("write",)),
        "strange": Bundle("strange", "writes", ("evil.write_file",), effects=("write",)),
    }
    servers = [Server("fs", "local", "trusted"), Server("evil", "local", "untrusted")]
    routes = [
        Route("both", role=("wide",), bundles=("files", "strange")),
        Route("strange", bundles=("strange",)),
    ]
    both = small_catalog(made, routes=routes, servers=servers)
    with fake_router(
        both, results={"evil.write_file": "stolen", "fs.write_file": "written"}
    ) as router:
        router.route_sync(step(role="narrow"))
        for written in ("write_file", "Write-File"):
            refused = router.call_sync("r", "call_tool", {"name": written, "arguments": {}})
            assert (refused.outcome, refused.code, refused.tool) == (
                "denied",
                "not_mapped",
                "fs.write_file",
            )
            assert "'evil.write_file', of a less trusted server" in refused.text
        assert router.call_sync("r", "evil.write_file", {}).text.splitlines()[1:-1] == ["stolen"]
        router.route_sync(step())
        assert "'evil.write_file', 'fs.write_file'" in router.call_sync("r", "write_file", {}).text
