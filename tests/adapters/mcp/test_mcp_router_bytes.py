"""What servers send that they should not, as an engine meets it: results that can be used or are
typed, and no end of the run.

Nothing is pinned here (`development="unpinned"`): what is listed is what is callable.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from bundle_router import Router

MIB = 1 << 20


def opened(project: Any) -> Any:
    return project.open(development="unpinned")


def run(project: Any, main: Callable[[Router], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with opened(project) as router:
            await router.route(project.step())
            await main(router)

    asyncio.run(whole())


def ends(project: Any) -> Counter[str]:
    """How often each call that began has ended."""
    rows = project.records()
    finished = Counter(row["call_id"] for row in rows if row["type"] == "call.finished")
    assert {row["call_id"] for row in rows if row["type"] == "call.started"} <= finished.keys()
    return finished


def warnings(said: str, name: str) -> list[dict[str, Any]]:
    """The diagnostics of that name on standard error."""
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [row for row in rows if row["event"] == name]


# --- what is no message ---------------------------------------------------------------------------


def test_noise_megabytes_on_stderr_and_a_slow_start_cost_no_call(project: Any) -> None:
    """F-13, G-08."""
    project.stdio("noise", "slow-start=1")
    with opened(project) as router:
        router.route_sync(project.step())
        assert router.call_sync("r", "s.echo", {"text": "hello"}).text == "hello"


def test_thousands_of_garbled_lines_are_warned_about_once_a_second(
    project: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """F-13."""
    project.stdio("also=garbage", tools='tools = ["s.garbage", "s.echo"]')
    with opened(project) as router:
        router.route_sync(project.step())
        began = time.monotonic()
        assert router.call_sync("r", "s.garbage", {"count": 20_000}).ok
        seconds = time.monotonic() - began
        assert router.call_sync("r", "s.echo", {"text": "next"}).text == "next"
    assert 1 <= len(warnings(capfd.readouterr().err, "server.noise")) <= 2 + seconds


def test_twenty_thousand_log_lines_in_a_call_are_dropped_without_a_word(
    project: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """F-13."""
    project.stdio("also=flood", tools='tools = ["s.flood", "s.echo"]')
    with opened(project) as router:
        router.route_sync(project.step())
        assert router.call_sync("r", "s.flood", {"count": 20_000}).ok
        assert router.call_sync("r", "s.echo", {"text": "next"}).text == "next"
    said = [row for row in capfd.readouterr().err.splitlines() if "server.started" not in row]
    assert [row for row in said if "left_behind" not in row] == []


@pytest.mark.parametrize(
    ("tool", "said"),
    [("bad_utf8", "caf\N{REPLACEMENT CHARACTER}"), ("surrogate", "?!"), ("duplicate", "answer 0")],
)
def test_an_answer_that_is_garbled_or_given_thrice_is_one_result(
    project: Any, tool: str, said: str
) -> None:
    """F-13, F-17."""
    project.stdio(f"also={tool}", tools=f'tools = ["s.{tool}", "s.echo"]')
    with opened(project) as router:
        router.route_sync(project.step())
        result = router.call_sync("r", f"s.{tool}", {})
        assert (result.outcome, result.text) == ("ok", said)
        assert router.call_sync("r", "s.echo", {"text": "next"}).text == "next"
    assert set(ends(project).values()) == {1}


def test_an_answer_under_another_number_is_nobodys_and_a_late_one_is_not_the_next_calls(
    project: Any, leap: Any
) -> None:
    """F-17."""
    project.stdio(
        "also=wrong_id,held,release",
        tools='tools = ["s.wrong_id", "s.held", "s.release", "s.echo"]',
        timeout_s=60.0,
    )

    async def main(router: Router) -> None:
        for tool in ("wrong_id", "held"):
            call = asyncio.create_task(router.call("r", f"s.{tool}", {}))
            assert (await router.call("r", "s.echo", {"text": "after it"})).text == "after it"
            assert not call.done()
            await leap.until(call)
            assert (await call).outcome == "timeout"
        assert (await router.call("r", "s.release", {})).text == "release", (
            "the answer to `held` arrives during this one"
        )
        assert (await router.call("r", "s.echo", {"text": "next"})).text == "next"

    run(project, main)
    assert set(ends(project).values()) == {1}


# --- too much -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "given", "outcome", "code"),
    [
        ("huge_line", {"megabytes": 60}, "tool_error", "too_large"),
        ("deep", {}, "unavailable", "protocol_error"),
    ],
)
def test_what_is_too_large_or_too_deep_ends_its_call_and_a_neighbour_does_not_notice(
    project: Any, bench: Any, tool: str, given: dict[str, Any], outcome: str, code: str
) -> None:
    """F-14; `tests/faults/oversized.py` has the long form, with memory and lag."""
    with bench.faults.serving() as other:
        more = f'[servers.t]\ntrust = "trusted"\nurl = "{other.url}"\n'
        tools = f'tools = ["s.{tool}", "s.echo", "t.echo"]'
        project.stdio(f"also={tool}", tools=tools, more=more, timeout_s=60.0)

        async def main(router: Router) -> None:
            call = asyncio.create_task(router.call("r", f"s.{tool}", given))
            assert (await router.call("r", "t.echo", {"text": "fine"})).text == "fine"
            result = await call
            assert (result.outcome, result.code) == (outcome, code)
            assert (await router.call("r", "s.echo", {"text": "next"})).text == "next"

        run(project, main)


def test_a_large_text_is_an_artifact_and_a_larger_one_is_refused_in_words(
    project: Any, bench: Any
) -> None:
    """G-11."""
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.big", "s.echo"]')
        with opened(project) as router:
            router.route_sync(project.step())
            large = router.call_sync("r", "s.big", {"bytes": 5 * MIB})
            assert large.ok
            assert len(large.text) < 13_000
            (whole,) = large.artifacts
            assert (whole.bytes, router.artifact("r", whole.uri)[:3]) == (5 * MIB, b"xxx")
            larger = router.call_sync("r", "s.big", {"bytes": 20 * MIB})
            assert (larger.outcome, larger.code) == ("tool_error", "too_large")
            assert router.call_sync("r", "s.echo", {"text": "next"}).text == "next"


def test_a_list_of_two_megabytes_is_read_and_its_tools_are_called(project: Any, bench: Any) -> None:
    """G-11."""
    with bench.faults.serving(bench.faults.Faults(big_list=4_000)) as server:
        project.http(server.url, tools='tools = ["s.t1", "s.t3999"]')
        with opened(project) as router:
            router.route_sync(project.step())
            assert [tool.name for tool in router.tools_sync("r").active] == ["s.t1", "s.t3999"]
            assert router.call_sync("r", "s.t3999", {}).text == "t3999"


# --- almost right ---------------------------------------------------------------------------------


def test_a_result_that_misses_its_schema_is_kept_and_the_server_stays_in_use(
    project: Any, bench: Any
) -> None:
    """G-10."""
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.weather"]')
        with opened(project) as router:
            router.route_sync(project.step())
            for _ in range(8):
                result = router.call_sync("r", "s.weather", {})
                assert (result.outcome, "cold" in result.text) == ("ok", True)
            assert router.route_sync(project.step()).left_out == ()


def test_one_malformed_definition_costs_one_tool(
    project: Any, bench: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """G-09."""
    with bench.faults.serving(bench.faults.Faults(bad_tools=True)) as server:
        project.http(server.url, tools='tools = ["s.broken", "s.huge", "s.echo", "s.only_schema"]')
        with opened(project) as router:
            router.route_sync(project.step())
            assert [tool.name for tool in router.tools_sync("r").active] == [
                "s.echo",
                "s.only_schema",
            ]
            assert router.call_sync("r", "s.echo", {"text": "x"}).ok
            assert router.call_sync("r", "s.broken", {}).outcome == "denied"
    named = {row["tool"] for row in warnings(capfd.readouterr().err, "tool.rejected")}
    assert {"broken", "huge"} <= named
