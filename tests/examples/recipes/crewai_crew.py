"""A CrewAI agent that meets its run over MCP: `python crewai_crew.py URL TOKEN`, as
`bundle-router serve` prints them.

CrewAI pins mcp below 2, and its own MCP tools fail on closing (1.15.30: "no running event loop"),
so a tool of a few lines asks: each request is one POST, in the protocol's revision of 2026-07-28.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import BaseTool
from pydantic import PrivateAttr, create_model

REVISION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
META = {
    f"{PREFIX}protocolVersion": REVISION,
    f"{PREFIX}clientInfo": {"name": "recipe", "version": "1"},
    f"{PREFIX}clientCapabilities": {},
}


def ask(url: str, token: str, method: str, **params: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    headers |= {"MCP-Protocol-Version": REVISION, "Mcp-Method": method}
    headers |= {"Mcp-Name": params["name"]} if "name" in params else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    text = httpx.post(url, headers=headers, json=body, timeout=300).text
    line = (
        text
        if text.startswith("{")
        else next(row[5:] for row in text.splitlines() if row.startswith("data:"))
    )
    return json.loads(line)["result"]


class RoutedTool(BaseTool):
    _where: tuple[str, str] = PrivateAttr()

    def _run(self, **arguments: Any) -> str:
        result = ask(*self._where, "tools/call", name=self.name, arguments=arguments)
        return "\n".join(block.get("text", "") for block in result["content"])


def routed_tools(url: str, token: str) -> list[BaseTool]:
    tools: list[BaseTool] = []
    for row in ask(url, token, "tools/list")["tools"]:
        required = row["inputSchema"].get("required", [])
        fields: Any = {
            name: (Any, ... if name in required else None)
            for name in row["inputSchema"].get("properties", {})
        }
        tool = RoutedTool(
            name=row["name"],
            description=row["description"],
            args_schema=create_model(row["name"], **fields),
        )
        tool._where = (url, token)
        tools.append(tool)
    return tools


class Model(BaseLLM):  # yours: llm="openai/gpt-5-mini"
    def call(self, messages: Any, tools: Any = None, *_: Any, **__: Any) -> str:
        if "misnamed" in str(messages):
            return "Thought: I know.\nFinal Answer: the flag is misnamed"
        return 'Thought: look.\nAction: tickets__get_ticket\nAction Input: {"number": 7}'

    def supports_function_calling(self) -> bool:
        return False


def main(url: str, token: str) -> str:
    tools = routed_tools(url, token)
    agent = Agent(
        role="triager", goal="read tickets", backstory="", llm=Model(model="test"), tools=tools
    )
    task = Task(description="what is ticket 7?", expected_output="a sentence", agent=agent)
    return str(Crew(agents=[agent], tasks=[task]).kickoff())


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
