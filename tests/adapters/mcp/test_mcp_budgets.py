"""F-27: a server whose every answer asks for another call is stopped by the step's budget, and the
records say so.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


def limited(project: Any, bench: Any, server: Any, limits: str) -> None:
    """A project with one tool that always says to be called again, and those limits."""
    server.faults.extra_tools += [bench.faults.tool("again"), bench.faults.tool("same")]
    project.http(server.url, tools='tools = ["s.again", "s.same", "s.echo"]')
    (project.config / "router.toml").write_text(f"[limits]\n{limits}\n")
    project.pin()


def obey(router: Any, tool: str = "s.again", turns: int = 40) -> list[Any]:
    """An agent that does whatever a result says."""
    given: dict[str, Any] = {}
    results = []
    for _ in range(turns):
        results.append(router.call_sync("r", tool, given))
        if "call again" not in results[-1].text:
            break
        given = {"token": results[-1].text.rpartition(" ")[2]}
    return results


@pytest.mark.parametrize(
    ("limits", "code", "made"),
    [
        ("calls_per_step = 7", "calls_per_step", 7),
        ("result_bytes_per_step = 2000", "result_bytes_per_step", 2),
        ("call_seconds_per_step = 0.0001", "call_seconds_per_step", 1),
    ],
)
def test_a_server_that_always_says_call_again_is_stopped_by_the_budget(
    project: Any, bench: Any, limits: str, code: str, made: int
) -> None:
    with bench.faults.serving() as server:
        limited(project, bench, server, limits)
        with project.open() as router:
            router.route_sync(project.step())
            *_, last = obey(router)
            assert (last.outcome, last.code, server.faults.calls) == ("budget", code, made)
            assert "It gets no more".lower() in last.text.lower()
            assert router.call_sync("r", "search_tools", {"query": "echo"}).outcome == "budget", (
                "searching costs too"
            )
            assert router.call_sync("r", "s.nowhere", {}).outcome == "budget"
            router.route_sync(project.step())
            assert obey(router, turns=1)[0].outcome == "budget", (
                "routed again, what was spent stays spent"
            )
            router.route_sync(project.step().model_copy(update={"step": "another"}))
            assert obey(router, turns=1)[0].ok, "another step has a budget of its own"
    rows = [row for row in project.records() if row["type"] == "call.finished"]
    assert Counter(row["outcome"] for row in rows) == {"ok": made + 1, "budget": 4}
    spent = [row["spent"] for row in rows]
    assert [row["calls"] for row in spent] == [*range(1, made + 1), made, made, made, made, 1]
    assert spent[made - 1]["result_bytes"] == sum(
        row["shaped"]["original_bytes"] for row in rows[:made]
    )
    assert spent[made - 1]["elapsed_ms"] == pytest.approx(
        sum(row["elapsed_ms"] for row in rows[:made]), abs=0.01
    )


def test_a_call_that_the_budget_refuses_contacts_nobody(project: Any, bench: Any) -> None:
    with bench.faults.serving() as server:
        limited(project, bench, server, "calls_per_step = 1")
        with project.open() as router:
            router.route_sync(project.step())
            assert router.call_sync("r", "s.echo", {"text": "x"}).ok
        listed = server.faults.lists
        with project.open() as router:
            assert router.call_sync("r", "s.echo", {"text": "x"}).outcome == "budget"
        assert server.faults.lists == listed, (
            "a router that knows no list asks for none to refuse a call"
        )


def test_refusals_count_so_that_asking_for_what_is_not_there_ends_too(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        limited(project, bench, server, "calls_per_step = 5")
        with project.open() as router:
            router.route_sync(project.step())
            outcomes = [router.call_sync("r", f"s.nowhere{n}", {}).outcome for n in range(6)]
    assert outcomes == ["denied"] * 5 + ["budget"]
    assert server.faults.calls == 0


def test_the_same_call_with_the_same_answer_is_stopped_and_other_calls_are_not(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        limited(project, bench, server, "repeated_calls = 6")
        with project.open() as router:
            router.route_sync(project.step())
            results = obey(router, "s.same")
            assert (results[-1].outcome, results[-1].code) == ("budget", "repeated_calls")
            assert len(results) == 1 + 1 + 6 + 1, (
                "first without a token, then the same token again and again"
            )
            assert router.call_sync("r", "s.echo", {"text": "x"}).ok
            assert len(obey(router, "s.same", turns=3)) == 3, (
                "after something else it may be tried again"
            )


def test_a_run_that_is_opened_again_has_what_is_left_of_its_budget(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        limited(project, bench, server, "calls_per_step = 4")
        with project.open() as router:
            router.route_sync(project.step())
            assert len(obey(router, turns=3)) == 3
        with project.open() as router:
            assert [result.outcome for result in obey(router)] == ["ok", "budget"]
    assert server.faults.calls == 4
