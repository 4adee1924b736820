"""The examples run, and do what they say."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parent


def test_a_tool_of_ones_own_is_routed_and_called() -> None:
    assert asyncio.run(runpy.run_path(str(EXAMPLES / "own_tool.py"))["main"]()) == "ticket 7: the flag is misnamed"


def test_a_sub_agent_gets_no_more_than_its_parent() -> None:
    parent, child = asyncio.run(runpy.run_path(str(EXAMPLES / "sub_agent.py"))["main"]())
    assert "workspace.exec" not in child
    assert set(child) <= set(parent)
