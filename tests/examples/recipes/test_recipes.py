"""The recipes run: each in the environment that `.ci/frameworks/install` makes, or with Node, else
skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.http_listener import Listener
from bundle_router.service import serve_mcp
from bundle_router.wiring.stores import open_archive

from tests.deferral.fake_api import Block, FakeApi, blocks_of

RECIPES = Path(__file__).parent
ROOT = RECIPES.parents[2]
FRAMEWORKS = Path(os.environ.get("BUNDLE_ROUTER_TEST_FRAMEWORKS", ROOT / ".frameworks"))
FOUND = "ticket 7: the flag is misnamed"


def python(environment: str) -> str:
    found = FRAMEWORKS / environment / "bin" / "python"
    if not found.exists():
        pytest.skip(f"there is no {environment} environment; .ci/frameworks/install makes it")
    return str(found)


def run(folder: Path, *words: object, ends: tuple[int, ...] = (0,)) -> str:
    """Run a recipe in a home of its own, and return what it prints. `ends`: how it may end."""
    home = {
        "HOME": str(folder),
        "PREFECT_HOME": str(folder / "prefect"),
        "CREWAI_STORAGE_DIR": str(folder / "crew"),
    }
    quiet = {"DO_NOT_TRACK": "1", "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    where = {
        "PYTHONPATH": str(RECIPES.parent),
        "PATH": os.environ["PATH"],
        "PREFECT_LOGGING_LEVEL": "ERROR",
    }
    quiet["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "900"
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        timeout=1800,
        env={**home, **quiet, **where},
        cwd=folder,
    )
    assert done.returncode in ends, (done.stdout, done.stderr[-3000:])
    return done.stdout


def calls(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "runs" / "r-1" / "tool-calls.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        (row["tool"], row["outcome"])
        for row in map(json.loads, lines)
        if row["type"] == "call.finished"
    ]


def decisions(folder: Path) -> int:
    return len((folder / "runs" / "r-1" / "routing.jsonl").read_text(encoding="utf-8").splitlines())


def test_prefect(tmp_path: Path) -> None:
    assert FOUND in run(tmp_path, python("prefect"), RECIPES / "prefect_flow.py", tmp_path)
    assert decisions(tmp_path) == 1, "the task that was tried again gave the recorded decision"
    assert calls(tmp_path) == [("get_ticket", "ok")]


def test_dbos(tmp_path: Path) -> None:
    said = run(tmp_path, python("recipes"), RECIPES / "dbos_workflow.py", tmp_path)
    assert said.count(FOUND) == 2
    assert decisions(tmp_path) == 1
    assert calls(tmp_path) == [("get_ticket", "ok")]


def test_dbos_by_the_plug_in_of_pydantic_ai(tmp_path: Path) -> None:
    program = python("recipes")
    if subprocess.run(
        [program, "-c", "import pydantic_ai"], capture_output=True, check=False
    ).returncode:
        pytest.skip("the recipes environment has no pydantic-ai; .ci/frameworks/install adds it")
    said = run(tmp_path, program, RECIPES / "dbos_agent.py", tmp_path).splitlines()
    assert said[:2] == [FOUND, FOUND]
    listed, called, model = "bundle-router.get_tools", "bundle-router.call_tool", "model.request"
    assert [name.split("__", 1)[1].removeprefix("dynamic_toolset__") for name in said[2].split()] == [
        listed, model, called, listed, model
    ]  # fmt: skip
    assert decisions(tmp_path) == 1
    assert calls(tmp_path) == [("get_ticket", "ok")]


def test_a_dbos_workflow_whose_worker_is_killed_goes_on_elsewhere_and_does_nothing_twice(
    tmp_path: Path,
) -> None:
    """E-10 with DBOS itself, which goes on with what was pending when it is launched again."""
    program, recipe = python("recipes"), RECIPES / "dbos_killed.py"
    for point in range(1, 41) if os.environ.get("BUNDLE_ROUTER_LONG") else (3, 5):
        run(tmp_path, program, recipe, tmp_path, point, ends=(0, -signal.SIGKILL))
    heard = run(tmp_path, program, recipe, tmp_path, 0).split()
    assert len(heard) == 8
    assert set(heard) <= {"ok", "unknown"}
    assert open_archive(tmp_path / "runs").verify("r").ok
    keys = Counter(
        row["key"]
        for row in open_archive(tmp_path / "runs").records("r")
        if row["type"] == "route.decided"
    )
    assert list(keys.values()) == [1] * 4
    effects = Counter((tmp_path / "effects").read_text(encoding="utf-8").split())
    assert all(
        effects[f"s.once-{number}"] <= 1 <= effects[f"s.again-{number}"] for number in range(4)
    )


def test_google_adk(tmp_path: Path) -> None:
    assert FOUND in run(tmp_path, python("recipes"), RECIPES / "adk_agent.py", tmp_path)
    assert calls(tmp_path) == [("get_ticket", "ok")]


class Claude(FakeApi):
    """The Messages API, with a model that reads the ticket and says what it read."""

    def turn(self, body: dict[str, Any]) -> tuple[list[Block], str]:
        results = [
            block
            for message in body["messages"]
            for block in blocks_of(message)
            if block["type"] == "tool_result"
        ]
        if results:
            return [
                {"type": "text", "text": f"I read: {json.dumps(results[-1]['content'])}"}
            ], "end_turn"
        names = [
            tool["name"] for tool in body.get("tools", ()) if tool["name"].endswith("get_ticket")
        ]
        if not names:
            return [{"type": "text", "text": "a title"}], "end_turn"
        return [
            {"type": "tool_use", "id": "toolu_1", "name": names[0], "input": {"number": 7}}
        ], "tool_use"


def test_claude_agent_sdk(tmp_path: Path) -> None:
    program = python("recipes")
    api = Claude()

    async def main() -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        listener = Listener(api, listening, 10.0)
        listener.start()
        try:
            base_url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            return await asyncio.to_thread(
                run, tmp_path, program, RECIPES / "claude_agent.py", tmp_path, base_url
            )
        finally:
            await listener.close()

    assert FOUND in asyncio.run(main())
    assert calls(tmp_path) == [("get_ticket", "ok")]
    assert not api.refusals


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """A run that is served over MCP by a router of this process: its URL and token."""
    import runpy
    import threading

    opened = runpy.run_path(str(RECIPES.parent / "own_tool.py"))
    ready, done = threading.Event(), threading.Event()
    where: list[str] = []

    async def serve() -> None:
        async with opened["open_router"](folder) as router:
            await router.route(opened["STEP"])
            async with serve_mcp(router) as endpoint:
                where.extend((endpoint.url("r-1"), endpoint.token("r-1")))
                ready.set()
                await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(600)
        yield where[0], where[1]
    finally:
        done.set()
        thread.join(600)


def test_crewai(tmp_path: Path) -> None:
    program = python("crewai")
    with served(tmp_path) as (url, token):
        assert "the flag is misnamed" in run(
            tmp_path, program, RECIPES / "crewai_crew.py", url, token
        )
    assert calls(tmp_path) == [("get_ticket", "ok")]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no `node`; .ci/run installs it")
def test_node(tmp_path: Path) -> None:
    with served(tmp_path) as (url, token):
        said = run(tmp_path, "node", RECIPES / "node_client.mjs", url, token)
    listed, text = said.splitlines()
    assert "tickets__get_ticket" in listed.split()
    assert text == FOUND
    assert calls(tmp_path) == [("get_ticket", "ok")]
