"""The tool of `own_tool.py` in an agent of the OpenAI Agents SDK: `python tests/examples/openai_agent.py BASE_URL`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from agents import OpenAIChatCompletionsModel, set_tracing_disabled
from bundle_router.ext.openai_agents import RoutedAgent
from openai import AsyncOpenAI
from own_tool import STEP, open_router


async def main(folder: Path, base_url: str) -> str:
    set_tracing_disabled(True)
    async with open_router(folder) as router, AsyncOpenAI(base_url=base_url, api_key="none") as client:
        model = OpenAIChatCompletionsModel("gpt-5-mini", client)
        agent = RoutedAgent(name="triager", model=model, router=router, step=STEP)
        return str((await agent.run("what is ticket 7?")).final_output)


if __name__ == "__main__":
    print(asyncio.run(main(Path(tempfile.mkdtemp()), sys.argv[1])))
