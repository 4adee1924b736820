"""The examples run, and do what they say."""

from __future__ import annotations

import asyncio
import json
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parent


def test_a_tool_of_ones_own_is_routed_called_and_in_a_record_within_twenty_lines(
    tmp_path: Path,
) -> None:
    program = EXAMPLES / "own_tool.py"
    assert (
        asyncio.run(runpy.run_path(str(program))["main"](tmp_path))
        == "ticket 7: the flag is misnamed"
    )
    records = [
        json.loads(line)
        for line in (tmp_path / "runs" / "r-1" / "tool-calls.jsonl").read_text().splitlines()
    ]
    assert [row["type"] for row in records] == ["call.started", "call.finished"]
    lines = program.read_text(encoding="utf-8").splitlines()
    assert (
        len([line for line in lines[1:] if line.strip() and not line.startswith("from __future__")])
        <= 20
    )


def test_a_sub_agent_gets_no_more_than_its_parent() -> None:
    parent, child = asyncio.run(runpy.run_path(str(EXAMPLES / "sub_agent.py"))["main"]())
    assert "workspace.exec" not in child
    assert set(child) <= set(parent)
