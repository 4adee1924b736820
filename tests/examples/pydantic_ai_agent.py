"""The tool of `own_tool.py` in a pydantic-ai agent: `python tests/examples/pydantic_ai_agent.py`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from bundle_router.ext.pydantic_ai import RoutedToolset
from own_tool import STEP, open_router
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel


async def main(folder: Path) -> str:
    async with open_router(folder) as router:
        model = TestModel(call_tools=["tickets__get_ticket"])  # yours: "openai:gpt-5-mini"
        agent = Agent(model, toolsets=[RoutedToolset(router, step=STEP)])
        return (await agent.run("what is ticket 7?")).output


if __name__ == "__main__":
    print(asyncio.run(main(Path(tempfile.mkdtemp()))))
