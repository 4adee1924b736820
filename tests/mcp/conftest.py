"""What the tests of tool servers share: a bench that opens sessions, and looks after them that nothing was left."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from router.adapters.mcp import McpSessions, open_mcp_sessions
from router.adapters.mcp.supervision import descendants
from router.core.catalog import Server
from router.core.models import Text
from router.ports import EVERYONE, RawResult
from router.testing import FakeClock

T = TypeVar("T")

FAULT_SERVER = Path(__file__).with_name("fault_server.py")


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("fault_server", FAULT_SERVER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fault_server"] = module
    spec.loader.exec_module(module)
    return module


FAULTS = _load()


class Events:
    """Diagnostics that are kept."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, dict[str, Any]]] = []

    def event(self, level: str, name: str, **fields: object) -> None:
        self.rows.append((level, name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for _, found, fields in self.rows if found == name]


class Bench:
    """Opens sessions and runs a coroutine with them. The clock of lifetimes and breakers stands still."""

    def __init__(self, workspace: Path) -> None:
        self.clock = FakeClock()
        self.events = Events()
        self.workspace = workspace
        self.faults = FAULTS

    def stdio(self, *flags: str, name: str = "s", **more: Any) -> Server:
        """The fault server, as a process."""
        arguments = ("-S", str(FAULT_SERVER), *(f"--{flag}" for flag in flags))
        return Server(name=name, transport="stdio", command=sys.executable, args=arguments, **more)

    def http(self, server: Any, name: str = "s", **more: Any) -> Server:
        """The fault server, as it is served in this process."""
        return Server(name=name, transport="streamable-http", url=server.url, **more)

    def run(self, main: Callable[[McpSessions], Awaitable[T]], *servers: Server, **options: Any) -> T:
        """Runs it to the end (a minute at most) and closes the sessions; then nothing of them may be left."""
        threads = set(threading.enumerate())

        async def whole() -> T:
            sessions = open_mcp_sessions(
                {server.name: server for server in servers},
                **{
                    "clock": self.clock,
                    "diagnostics": self.events,
                    "development": True,
                    "workspace": self.workspace,
                    **options,
                },
            )
            try:
                async with asyncio.timeout(60):
                    return await main(sessions)
            finally:
                await sessions.close()

        result = asyncio.run(whole())
        assert descendants(os.getpid()) == []
        assert [t for t in set(threading.enumerate()) - threads if t.name.startswith("bundle-router")] == []
        return result

    @staticmethod
    async def call(
        sessions: McpSessions, tool: str, timeout_s: float = 20.0, server: str = "s", **given: Any
    ) -> RawResult:
        """Calls a tool with what is given, but for `scope`."""
        scope = given.pop("scope", EVERYONE)
        return await sessions.call(server, tool, given, workspace="", timeout_s=timeout_s, scope=scope)

    @staticmethod
    def said(result: RawResult) -> str:
        """The text of a result."""
        return "\n".join(block.text for block in result.blocks if isinstance(block, Text))

    @staticmethod
    async def until(condition: Callable[[], Any]) -> None:
        """Waits until it holds; the minute of `run` bounds it."""
        while not condition():  # noqa: ASYNC110 - what is waited for is mostly in other processes
            await asyncio.sleep(0.01)

    @staticmethod
    def descriptors() -> int:
        """How many are open in this process; 0 where that is not known."""
        folder = Path("/proc/self/fd")
        return sum(1 for _ in folder.iterdir()) if folder.exists() else 0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
