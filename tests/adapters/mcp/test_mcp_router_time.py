"""Servers that hang, die, forget or come back, as an engine meets them: what a call comes to, and
what is left.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router
from bundle_router.engine.upstreams import Servers

from tests.adapters.mcp.own_processes import own_processes

ROOT = Path(__file__).parents[3]
MORE = '[servers.{name}]\ntrust = "trusted"\nurl = "{url}"\n'
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")


def run(project: Any, main: Callable[[Router], Awaitable[Any]]) -> Any:
    """What it gives, with a router that takes servers as they come."""

    async def whole() -> Any:
        async with project.open(development="unpinned") as router:
            await router.route(project.step())
            return await main(router)

    return asyncio.run(whole())


def state(pid: int) -> str:
    """A letter, as in /proc; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ""


# --- death ----------------------------------------------------------------------------------------


@linux
def test_a_process_that_dies_in_a_call_is_replaced_and_leaves_no_zombie(project: Any) -> None:
    """F-11, G-03."""
    project.stdio()

    async def main(router: Router) -> None:
        first = int((await router.call("r", "s.pid", {})).text)
        crashed = await router.call("r", "s.crash", {})
        assert (crashed.outcome, crashed.code) == ("unavailable", "connection_lost")
        assert "may have been carried out" in crashed.text
        assert int((await router.call("r", "s.pid", {})).text) != first
        assert state(first) == ""
        assert [pid for pid in own_processes() if state(pid) == "Z"] == []

    run(project, main)


@pytest.mark.parametrize("tool", ["drop", "half"])
def test_a_connection_that_breaks_in_a_call_costs_that_call(
    project: Any, bench: Any, tool: str
) -> None:
    """F-11, G-03."""
    with bench.faults.serving() as server:
        server.faults.extra_tools.append(bench.faults.tool(tool))
        project.http(server.url, tools=f'tools = ["s.{tool}", "s.sleep", "s.echo"]')

        async def main(router: Router) -> None:
            slow, broken = await asyncio.gather(
                router.call("r", "s.sleep", {"s": 0.5}), router.call("r", f"s.{tool}", {})
            )
            assert (broken.outcome, broken.code, slow.outcome) == (
                "unavailable",
                "connection_lost",
                "ok",
            )
            assert (await router.call("r", "s.echo", {"text": "next"})).text == "next"

        run(project, main)


def test_a_process_that_fails_to_start_is_started_once_more(project: Any) -> None:
    """F-11."""
    project.stdio(f"exit-once={project.root / 'tried'}")
    assert run(project, lambda router: router.call("r", "s.echo", {"text": "x"})).text == "x"


def test_a_process_that_never_starts_is_unavailable_in_words(project: Any) -> None:
    """F-11."""
    project.stdio("exit-at-start")
    result = run(project, lambda router: router.call("r", "s.echo", {"text": "x"}))
    assert (result.outcome, result.code) == ("unavailable", "server_unavailable")
    assert "the server's process ended (status 3)" in result.text


def test_a_server_that_forgets_its_sessions_is_initialised_again_and_the_call_is_made_once(
    project: Any, bench: Any
) -> None:
    """G-04."""
    with bench.faults.serving() as server:
        server.stateful = True
        project.http(server.url)

        async def main(router: Router) -> None:
            assert (await router.call("r", "s.echo", {"text": "x"})).ok
            server.sessions.clear()
            assert (await router.call("r", "s.echo", {"text": "again"})).text == "again"
            assert (await router.call("r", "s.count", {})).text == "3"

        run(project, main)


# --- hanging --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["initialize", "list", "tool"])
def test_a_server_that_hangs_keeps_its_own_calls_waiting_and_nobody_elses(
    project: Any, bench: Any, leap: Any, trouble: str
) -> None:
    """F-12, G-01, G-02.

    The neighbours' calls are all done while the hanging one is still under way.
    """
    with bench.faults.serving() as other:
        flags = () if trouble == "tool" else (f"hang-{trouble}",)
        tools = 'tools = ["s.hang", "s.echo", "t.echo"]'
        project.stdio(
            *flags, tools=tools, more=MORE.format(name="t", url=other.url), timeout_s=60.0
        )

        async def main(router: Router) -> Any:
            hanging = asyncio.create_task(router.call("r", "s.hang", {}))
            for number in range(20):
                assert (await router.call("r", "t.echo", {"text": str(number)})).text == str(number)
            if trouble == "tool":
                assert (
                    await router.call("r", "s.echo", {"text": "same server"})
                ).text == "same server"
            assert not hanging.done()
            await leap.until(hanging)
            return await hanging

        result = run(project, main)
    expected = {"tool": ("timeout", "timeout")}.get(trouble, ("unavailable", "server_unavailable"))
    assert (result.outcome, result.code) == expected


def test_tools_of_servers_that_answer_are_shown_while_another_one_never_does(
    project: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-01: what is shown is not held up for as long as a server may take."""
    with bench.faults.serving() as other:
        tools = 'tools = ["s.echo", "t.echo", "t.pid"]'
        project.stdio("hang-list", tools=tools, more=MORE.format(name="t", url=other.url))

        async def main(router: Router) -> None:
            await router.call("r", "t.echo", {"text": "the SDK is loaded by this"})
            # The whole wait is for when nobody has answered: who has it here ends after the test.
            monkeypatch.setattr(Servers.discover, "__defaults__", (3_600.0,))
            assert [tool.name for tool in (await router.tools("r")).active] == ["t.echo", "t.pid"]
            (row,) = [row for row in (await router.route(project.step())).left_out if row.tool]
            assert (row.tool, row.code) == ("s.echo", "server_unavailable")

        run(project, main)


def test_a_first_list_that_takes_too_long_is_a_decision_that_says_so_and_not_an_empty_one(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Servers.discover, "__defaults__", (0.2,))
    project.stdio("hang-list", tools='tools = ["s.*"]')
    with project.open(development="unpinned") as router:
        decision = router.route_sync(project.step())
        assert decision.left_out == ()
        assert router.tools_sync("r").active == ()
        shown = router.tools_sync("r", decision=None)
        assert shown.active == ()
    *_, last = project.records(file="routing.jsonl")
    assert [row["code"] for row in last["left_out"]] == ["server_unavailable"]
    assert "it is still being asked for its tools, after" in last["left_out"][0]["detail"]
    assert (last["degraded"], last["facts"]["pending"]) == (True, ["s"])
    assert last["seq"] == 1, "decided again once, and not at every look"


def test_a_step_with_a_key_is_decided_once_and_another_key_has_the_list_that_came_meanwhile(
    project: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Servers.discover, "__defaults__", (0.2,))

    class SlowList(bench.faults.Faults):  # type: ignore[misc]  # a class of a module, by its fixture
        listed = threading.Event()

        def _list(self, cursor: str | None) -> dict[str, Any]:
            assert self.listed.wait(300)
            found: dict[str, Any] = super()._list(cursor)
            return found

    with bench.faults.serving(SlowList()) as server:
        project.http(server.url, tools='tools = ["s.*"]')
        with project.open(development="unpinned") as router:
            early = router.route_sync(project.step(key="early"))
            assert router.tools_sync("r").active == ()
            late = router.route_sync(project.step(key="late", branch="late"))
            assert (early.degraded, late.degraded) == (False, True)
            server.faults.listed.set()
            decisions = (
                router.route_sync(project.step(key=f"next-{n}", branch="next"))
                for n in itertools.count()
            )
            whole = next(one for one in decisions if not one.degraded)
            assert (
                router.route_sync(project.step(key="late", branch="late")).decision_id
                == late.decision_id
            )
            counts = [
                len(router.tools_sync("r", decision=one.decision_id).active)
                for one in (early, late, whole)
            ]
    assert counts[1] == 0, "a key's decision is not widened afterwards"
    assert counts[0] == counts[2] > 0, "what it holds is shown when its list has come"


def test_a_caller_that_goes_away_is_recorded_as_such_and_its_server_is_told(
    project: Any, bench: Any
) -> None:
    """G-05."""
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.hang", "s.echo"]')

        async def main(router: Router) -> None:
            hanging = asyncio.create_task(router.call("r", "s.hang", {}))
            await bench.until(lambda: server.faults.calls)
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            await bench.until(lambda: server.faults.cancelled)
            assert (await router.call("r", "s.echo", {"text": "next"})).text == "next"

        run(project, main)
    assert [row["outcome"] for row in project.records() if row["type"] == "call.finished"] == [
        "cancelled",
        "ok",
    ]


@linux
def test_runs_that_are_begun_given_up_and_ended_from_many_tasks_leave_nothing(
    project: Any, bench: Any
) -> None:
    """G-06."""
    project.stdio()
    before = bench.descriptors()

    async def main(router: Router) -> None:
        async def one(number: int) -> None:
            await router.route(project.step(f"r-{number}"))
            call = asyncio.create_task(router.call(f"r-{number}", "s.echo", {"text": "x"}))
            await asyncio.wait((call,), timeout=0.01 * (number % 10))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await router.close_run(f"r-{number}")

        for first in range(0, 30, 5):
            await asyncio.gather(*(one(number) for number in range(first, first + 5)))
        assert (await router.call("r", "s.echo", {"text": "after"})).text == "after"

    run(project, main)
    assert own_processes() == []
    assert bench.descriptors() <= before + 2, "what the event loop and the SDK keep for good"


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_calls_of_one_run_are_made_side_by_side(project: Any, bench: Any, kind: str) -> None:
    """G-15."""
    with bench.faults.serving() as server:
        tools = 'tools = ["s.sleep", "s.peak"]'
        if kind == "stdio":
            project.stdio("also=peak", tools=tools)
        else:
            server.faults.extra_tools.append(bench.faults.tool("peak"))
            project.http(server.url, tools=tools)

        async def main(router: Router) -> str:
            assert (await router.call("r", "s.peak", {})).text == "0"
            await asyncio.gather(
                *(router.call("r", "s.sleep", {"together": 16}) for _ in range(16))
            )
            return (await router.call("r", "s.peak", {})).text

        assert run(project, main) == "16"


# --- ends -----------------------------------------------------------------------------------------

HOST = """
import signal, sys
from bundle_router import Router, Step
router = Router.open(sys.argv[1] + "/config", runs=sys.argv[1] + "/runs", workspace=sys.argv[1], development="unpinned")
router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
pids = {router.call_sync("r", "s.pid", {}).text for _ in range(5)}
print(" ".join(pids), flush=True)
if sys.argv[2] == "close":
    sys.stdin.readline()
    router.close_sync()
    print("closed", flush=True)
signal.pause()
"""


@linux
@pytest.mark.parametrize("end", ["close", "SIGTERM", "SIGKILL"])
def test_a_process_and_what_it_started_are_gone_however_the_host_ends(
    project: Any, bench: Any, end: str
) -> None:
    """F-12, G-07: a server that ignores the end of its input and SIGTERM, and what it started in
    another session.
    """
    written = project.root / "grandchild"
    project.stdio("ignore-eof", "ignore-term", f"grandchild={written}")
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(project.root), end],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdin is not None
    assert host.stdout is not None
    try:
        (server,) = host.stdout.readline().split()
        pids = (int(server), int(written.read_text()))
        assert all(state(pid) for pid in pids)
        if end == "close":
            host.stdin.write("go\n")
            host.stdin.flush()
            assert host.stdout.readline() == "closed\n"
            assert [state(pid) for pid in pids] == ["", ""], "gone when close returns"
        else:
            host.send_signal(signal.Signals[end])
            assert host.wait(300) == -signal.Signals[end]
            asyncio.run(
                asyncio.wait_for(bench.until(lambda: not any(state(pid) for pid in pids)), 300)
            )
    finally:
        host.kill()
        host.wait()
        host.stdin.close()
        host.stdout.close()


@linux
def test_what_got_away_from_a_router_that_is_gone_is_reported_at_the_next_start(
    project: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    project.stdio()
    env = {"BUNDLE_ROUTER_OWNER": "1-12345 lost", "PATH": os.environ["PATH"]}
    left = subprocess.Popen(["sleep", "60"], env=env)
    try:
        with project.open(development="unpinned") as router:
            router.route_sync(project.step())
            assert router.call_sync("r", "s.echo", {"text": "x"}).ok
        assert left.poll() is None, "a pid may be anything by now, so it is left alone"
    finally:
        left.kill()
        left.wait()
    rows = [
        json.loads(line)
        for line in capfd.readouterr().err.splitlines()
        if "server.left_behind" in line
    ]
    assert [(row["server"], row["pid"]) for row in rows if row["pid"] == left.pid] == [
        ("lost", left.pid)
    ]


def test_the_time_until_a_server_was_ready_is_recorded_apart_from_the_calls_own(
    project: Any,
) -> None:
    project.stdio("slow-start=1")

    async def main(router: Router) -> None:
        for _ in range(2):
            assert (await router.call("r", "s.echo", {"text": "x"})).ok

    run(project, main)
    first, second = (row for row in project.records() if row["type"] == "call.finished")
    assert first["ready_ms"] > 1_000, "it takes a second to start"
    assert second["ready_ms"] < first["ready_ms"]
