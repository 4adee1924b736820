"""A Google ADK agent that meets its run over MCP.

ADK reads the list once an invocation: search, then `call_tool`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from bundle_router.service import serve_mcp
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.genai.types import Content, Part
from own_tool import STEP, open_router


class Model(BaseLlm):  # yours: model="gemini-2.5-flash"
    async def generate_content_async(
        self, request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        answers = [
            part.function_response
            for turn in request.contents
            for part in turn.parts or []
            if part.function_response
        ]
        call = Part.from_function_call(name="tickets__get_ticket", args={"number": 7})
        yield LlmResponse(
            content=Content(
                role="model", parts=[Part(text=str(answers[0].response)) if answers else call]
            )
        )


async def main(folder: Path) -> list[Any]:
    async with open_router(folder) as router:
        await router.route(STEP)
        async with serve_mcp(router) as endpoint:
            headers = {"Authorization": f"Bearer {endpoint.token('r-1')}"}
            tools = McpToolset(
                connection_params=StreamableHTTPConnectionParams(
                    url=endpoint.url("r-1"), headers=headers
                )
            )
            agent = LlmAgent(name="triager", model=Model(model="test"), tools=[tools])
            async with InMemoryRunner(agent) as runner:
                return [
                    event.content
                    for event in await runner.run_debug("what is ticket 7?", quiet=True)
                ]


if __name__ == "__main__":
    print(asyncio.run(main(Path(sys.argv[1])))[-1])
