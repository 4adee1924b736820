"""What the tests of tool servers share: a bench that opens sessions, and looks after them that
nothing was left.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from bundle_router import Router, Step, load_catalog
from bundle_router.adapters.mcp import ConnectionSetting, McpSessions, open_mcp_sessions
from bundle_router.adapters.pin_file import PinFiles
from bundle_router.core.catalog import Server
from bundle_router.core.servers.pins.reviewed import approve
from bundle_router.core.servers.transport.tool_servers import EVERYONE, RawResult
from bundle_router.core.values import Text
from bundle_router.testing import FakeClock, FakeDiagnostics

from tests.adapters.mcp.own_processes import forget, own_processes

T = TypeVar("T")

FAULT_SERVER = Path(__file__).with_name("fault_server.py")


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


FAULTS = _load(FAULT_SERVER)
ISSUERS = _load(Path(__file__).with_name("oauth_issuer.py"))


SMALL = 'tools = ["s.echo", "s.blocks", "s.pid", "s.crash", "s.count", "s.gone"]'


@dataclass
class Project:
    """A folder with a config that knows one tool server, `s`."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config"

    def write(
        self, server: str, tools: str = SMALL, trust: str = "trusted", more: str = ""
    ) -> None:
        self.config.mkdir(exist_ok=True)
        (self.config / "servers.toml").write_text(
            f'[servers.s]\ntrust = "{trust}"\n{server}\n{more}'
        )
        (self.config / "bundles.toml").write_text(
            f'[bundles.faults]\ndescription = "Tools that fail."\n{tools}\neffects = ["read"]\n'
        )
        (self.config / "routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["faults"]\n')
        (self.config / "policy.toml").write_text(
            '[[policies]]\nname = "all"\nallow = ["bundle:*"]\n'
        )

    def stdio(self, *flags: str, tools: str = SMALL, more: str = "", **keys: Any) -> None:
        args = json.dumps(["-S", str(FAULT_SERVER), *(f"--{flag}" for flag in flags)])
        rest = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        self.write(
            f'transport = "stdio"\ncommand = "{sys.executable}"\nargs = {args}\n{rest}',
            tools,
            more=more,
        )

    def http(
        self, url: str, tools: str = SMALL, trust: str = "trusted", more: str = "", **keys: Any
    ) -> None:
        rest = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        self.write(f'url = "{url}"\n{rest}', tools, trust, more)

    def pin(self) -> None:
        """Approves the servers as they are now."""
        servers = {
            s.name: s for s in load_catalog(self.config).servers.values() if s.transport != "local"
        }
        servers.pop("github")

        async def review() -> None:
            sessions = open_mcp_sessions(
                servers,
                ConnectionSetting(development=True, workspace=self.root),
                clock=FakeClock(),
                diagnostics=FakeDiagnostics(),
            )
            try:
                for name, server in servers.items():
                    listing = await sessions.definitions(name)
                    PinFiles(self.root / "bundles" / "pins").write(
                        approve(server, listing.admitted)
                    )
            finally:
                await sessions.close()

        asyncio.run(review())

    @staticmethod
    def step(run_id: str = "r", **more: Any) -> Step:
        return Step(run_id=run_id, workflow="w", role="r", step="s", **more)

    def open(self, **options: Any) -> Router:
        return Router.open(
            self.config,
            runs=self.root / "runs",
            workspace=self.root,
            **{"development": True, **options},
        )

    def records(self, run_id: str = "r", file: str = "tool-calls.jsonl") -> list[dict[str, Any]]:
        lines = (self.root / "runs" / run_id / file).read_text().splitlines()
        return [json.loads(line) for line in lines]


class Events:
    """Diagnostics that are kept."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, dict[str, Any]]] = []

    def event(self, level: str, name: str, **fields: object) -> None:
        self.rows.append((level, name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for _, found, fields in self.rows if found == name]


class Bench:
    """Opens sessions and runs a coroutine with them.

    The clock of lifetimes and breakers stands still.
    """

    def __init__(self, workspace: Path) -> None:
        self.clock = FakeClock()
        self.events = Events()
        self.workspace = workspace
        self.faults = FAULTS
        self.issuers = ISSUERS

    def stdio(self, *flags: str, name: str = "s", **more: Any) -> Server:
        """The fault server, as a process."""
        arguments = ("-S", str(FAULT_SERVER), *(f"--{flag}" for flag in flags))
        return Server(name=name, transport="stdio", command=sys.executable, args=arguments, **more)

    def http(self, server: Any, name: str = "s", **more: Any) -> Server:
        """The fault server, as it is served in this process."""
        legacy = getattr(server, "legacy", False)
        return Server(
            name=name,
            transport="sse" if legacy else "streamable-http",
            url=server.url,
            legacy=legacy,
            **more,
        )

    def run(
        self, main: Callable[[McpSessions], Awaitable[T]], *servers: Server, **options: Any
    ) -> T:
        """Runs it to the end and closes the sessions; then nothing of them may be left."""
        threads = set(threading.enumerate())
        names = {field.name for field in fields(ConnectionSetting)} & options.keys()
        own = {name: options.pop(name) for name in names}
        setting = replace(ConnectionSetting(development=True, workspace=self.workspace), **own)

        async def whole() -> T:
            sessions = open_mcp_sessions(
                {server.name: server for server in servers},
                setting,
                **{"clock": self.clock, "diagnostics": self.events, **options},
            )
            try:
                return await main(sessions)
            finally:
                await sessions.close()

        result = asyncio.run(whole())
        assert own_processes() == []
        assert [
            t for t in set(threading.enumerate()) - threads if t.name.startswith("bundle-router")
        ] == []
        return result

    @staticmethod
    async def call(
        sessions: McpSessions, tool: str, timeout_s: float = 60.0, server: str = "s", **given: Any
    ) -> RawResult:
        """Calls a tool with what is given, but for `scope`."""
        scope = given.pop("scope", EVERYONE)
        return await sessions.call(server, tool, given, timeout_s=timeout_s, scope=scope)

    @staticmethod
    def said(result: RawResult) -> str:
        """The text of a result."""
        return "\n".join(block.text for block in result.blocks if isinstance(block, Text))

    @staticmethod
    async def until(condition: Callable[[], Any]) -> None:
        """Waits until it holds."""
        while not condition():  # noqa: ASYNC110 - what is waited for is mostly in other processes
            await asyncio.sleep(0.01)

    @staticmethod
    def descriptors() -> int:
        """How many are open in this process; 0 where that is not known."""
        folder = Path("/proc/self/fd")
        return sum(1 for _ in folder.iterdir()) if folder.exists() else 0


@pytest.fixture(autouse=True)
def _processes_of_others() -> None:
    forget()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    yield Project(tmp_path)
    assert own_processes() == [], "no process is left"
