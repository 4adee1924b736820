"""A tool of your own in a LangChain agent: `python tests/examples/langchain_agent.py`, with the
rows in `config`.
"""

import asyncio
from pathlib import Path
from typing import Any

from bundle_router import Router, Step
from bundle_router.ext.langchain import RoutedTools
from bundle_router.tool import LocalServer
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - of its checkpointer
from langchain_core.language_models import BaseChatModel


async def get_ticket(number: int) -> str:
    """Read a ticket of the tracker."""
    return f"ticket {number}: the flag is misnamed"


async def main(folder: Path, model: BaseChatModel | str = "openai:gpt-5-mini") -> str:
    tickets = LocalServer([get_ticket], "Read the tickets of the tracker.")
    config = Path(__file__).parent / "config"
    async with Router.open(config, runs=folder / "runs", local={"tickets": tickets}) as router:
        step = Step(run_id="r-1", workflow="support", role="triager", step="look")
        agent: Any = create_agent(model, middleware=[RoutedTools(router, step)])
        return str(
            (await agent.ainvoke({"messages": [("user", "what is ticket 7?")]}))["messages"][
                -1
            ].text
        )


if __name__ == "__main__":
    print(asyncio.run(main(Path())))
