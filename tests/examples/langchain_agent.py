"""The tool of `own_tool.py` in a LangChain agent: `python tests/examples/langchain_agent.py`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bundle_router.ext.langchain import RoutedTools
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - of its checkpointer
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from own_tool import STEP, open_router


class Model(FakeMessagesListChatModel):  # yours: init_chat_model("openai:gpt-5-mini")
    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


CALL = {"id": "1", "name": "tickets__get_ticket", "args": {"number": 7}}


async def main(folder: Path) -> str:
    async with open_router(folder) as router:
        model = Model(responses=[AIMessage("", tool_calls=[CALL]), AIMessage("done")])
        agent: Any = create_agent(model, middleware=[RoutedTools(router, STEP)])
        return str((await agent.ainvoke({"messages": [("user", "what is ticket 7?")]}))["messages"][2].text)


if __name__ == "__main__":
    print(asyncio.run(main(Path(tempfile.mkdtemp()))))
