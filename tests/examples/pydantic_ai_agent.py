"""A tool of your own in a pydantic-ai agent: `python tests/examples/pydantic_ai_agent.py`, with
`config`.
"""

import asyncio
from pathlib import Path

from bundle_router import Router, Step
from bundle_router.ext.pydantic_ai import RoutedToolset
from bundle_router.tool import LocalServer
from pydantic_ai import Agent
from pydantic_ai.models import Model


async def get_ticket(number: int) -> str:
    """Read a ticket of the tracker."""
    return f"ticket {number}: the flag is misnamed"


async def main(folder: Path, model: Model | str = "openai:gpt-5-mini") -> str:
    tickets = LocalServer([get_ticket], "Read the tickets of the tracker.")
    config = Path(__file__).parent / "config"
    async with Router.open(config, runs=folder / "runs", local={"tickets": tickets}) as router:
        step = Step(run_id="r-1", workflow="support", role="triager", step="look")
        agent = Agent(model, toolsets=[RoutedToolset(router, step=step)])
        return (await agent.run("what is ticket 7?")).output


if __name__ == "__main__":
    print(asyncio.run(main(Path())))
