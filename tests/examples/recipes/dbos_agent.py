"""A pydantic-ai agent under DBOS, by pydantic-ai's plug-in: listing, each model request and each
call are steps.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bundle_router.ext.pydantic_ai import RoutedToolset
from dbos import DBOS, DBOSConfig, SetWorkflowID
from own_tool import STEP, open_router
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

agents: dict[str, Agent[None, str]] = {}


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stand in for a model: read the ticket, then say what it read."""
    results = [
        part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)
    ]
    if not results:
        return ModelResponse(
            [ToolCallPart(info.function_tools[0].name, {"number": 7}, tool_call_id="c-1")]
        )
    return ModelResponse([TextPart(results[-1].model_response_str())])


@DBOS.workflow()
async def triage() -> str:
    return (await agents["triager"].run("read ticket 7")).output


async def main(folder: Path) -> None:
    async with open_router(folder) as router:
        tools = RoutedToolset(router, step=STEP)
        agents["triager"] = Agent(
            FunctionModel(respond),
            name="triager",
            toolsets=[tools],
            capabilities=[DBOSDurability()],
        )
        DBOS.launch()
        for _ in range(2):  # the same workflow again: the recorded answer
            with SetWorkflowID("triage-7"):
                print(await triage())
        print(*(step["function_name"] for step in await DBOS.list_workflow_steps_async("triage-7")))


if __name__ == "__main__":
    config: DBOSConfig = {
        "name": "triage",
        "system_database_url": f"sqlite:///{sys.argv[1]}/dbos.sqlite",
    }
    DBOS(config=config)
    asyncio.run(main(Path(sys.argv[1])))
    DBOS.destroy()
