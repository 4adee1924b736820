"""What a server that is not what was pinned has besides its tools reaches nobody, also before one
was called.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bundle_router.core.servers.transport.pass_through import Client

from tests.service.mcp.plain_server import SCHEMA, plain

READ = {"contents": [{"uri": "a://b", "text": "said"}]}


def tool(description: str) -> dict[str, Any]:
    return {"tools": [{"name": "plain", "description": description, "inputSchema": SCHEMA}]}


def test_nothing_of_a_server_all_of_whose_tools_drifted_is_passed_on(project: Any) -> None:
    with plain(tools_list=tool("As pinned."), resources_read=READ) as (server, url):
        project.http(url, tools='tools = ["s.plain"]', pass_through=["resources"])
        project.pin()

        async def read(run_id: str) -> Any:
            async with project.open() as router:
                await router.route(project.step(run_id))
                return await router.endpoint.ask(
                    run_id, "resources/read", {"uri": "a://b"}, Client()
                )

        assert asyncio.run(read("before")).result == READ
        server.answers["tools/list"] = tool("Another one by now.")
        server.asked.clear()
        answer = asyncio.run(read("after"))
    assert (answer.result, answer.error.code) == (None, -32601)
    assert "resources/read" not in [method for method, _ in server.asked]
