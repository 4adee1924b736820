"""A tool of your own in an agent of the OpenAI Agents SDK: `python tests/examples/openai_agent.py`,
with `config`.
"""

import asyncio
from pathlib import Path

from agents import Model
from bundle_router import Router, Step
from bundle_router.ext.openai_agents import RoutedAgent
from bundle_router.tool import LocalServer


async def get_ticket(number: int) -> str:
    """Read a ticket of the tracker."""
    return f"ticket {number}: the flag is misnamed"


async def main(folder: Path, model: Model | str = "gpt-5-mini") -> str:
    tickets = LocalServer([get_ticket], "Read the tickets of the tracker.")
    config = Path(__file__).parent / "config"
    async with Router.open(config, runs=folder / "runs", local={"tickets": tickets}) as router:
        step = Step(run_id="r-1", workflow="support", role="triager", step="look")
        agent = RoutedAgent(name="triager", model=model, router=router, step=step)
        return str((await agent.run("what is ticket 7?")).final_output)


if __name__ == "__main__":
    print(asyncio.run(main(Path())))
