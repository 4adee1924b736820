"""The Claude Agent SDK (and Claude Code, which it starts) over MCP.

`fixed_list`: Claude reads the list once.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bundle_router.service import serve_mcp
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from own_tool import STEP, open_router


async def main(folder: Path, base_url: str) -> str:
    async with open_router(folder) as router:
        await router.route(STEP.model_copy(update={"fixed_list": True}))
        async with serve_mcp(router) as endpoint:
            server = {
                "type": "http",
                "url": endpoint.url("r-1"),
                "headers": {"Authorization": f"Bearer {endpoint.token('r-1')}"},
            }
            options = ClaudeAgentOptions(
                mcp_servers={"router": server},  # type: ignore[dict-item]  # a dict of the declared form
                allowed_tools=["mcp__router__*"],
                tools=[],
                cwd=folder,
                env={
                    "ANTHROPIC_BASE_URL": base_url,
                    "ANTHROPIC_API_KEY": "none",
                },  # for a test; leave it out
            )
            said = [message async for message in query(prompt="what is ticket 7?", options=options)]
    return next(str(message.result) for message in said if isinstance(message, ResultMessage))


if __name__ == "__main__":
    print(asyncio.run(main(Path(sys.argv[1]), sys.argv[2])))
