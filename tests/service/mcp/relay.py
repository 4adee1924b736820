"""A router and its endpoint in front of servers with all of MCP, for as long as one test's work
takes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bundle_router import Router, Step
from bundle_router.service import Endpoint, serve_mcp

from tests.service.mcp.everything_server import everything
from tests.service.mcp.plain_server import plain

T = TypeVar("T")
EVERYTHING = ("resources", "prompts", "completion", "results", "logging", "input")


@dataclass(frozen=True)
class Entry:
    """How one server stands in the config.

    `answers`: it is one that answers with these, well-formed or not, each by its method (see
    `plain_server`). `taints`: its statements, under a policy row by which nothing leaves once
    strangers' text was read. `modern`: whether it speaks more than the handshake era. `url`: it is
    another's. `era`: as in its entry. `stdio`: it is a process of the run.
    """

    pass_through: tuple[str, ...] = EVERYTHING
    prefix: bool = False
    trust: str = "trusted"
    shown: bool = True
    tools: tuple[str, ...] = ("*",)
    answers: Mapping[str, Any] | None = None
    modern: bool = True
    url: str = ""
    era: str = "auto"
    stdio: bool = False
    taints: str = ""


class Notifications:
    """A queue of the notifications whose method ends so: the URI of each that names one, else its
    method.
    """

    def __init__(self, ending: str) -> None:
        self._ending = ending
        self.queue: asyncio.Queue[str] = asyncio.Queue()

    async def hear(self, message: Any) -> None:
        """Take a message of the server's, as a client's `message_handler`."""
        if getattr(message, "method", "").endswith(self._ending):
            self.queue.put_nowait(str(getattr(message.params, "uri", message.method)))

    async def next(self) -> str:
        return await asyncio.wait_for(self.queue.get(), 300)


@dataclass
class Relay:
    """What a test's work is given: the servers by name, the router, its endpoint."""

    folder: Path
    entries: dict[str, Entry]
    servers: dict[str, Any] = field(default_factory=dict)
    router: Any = None
    endpoint: Any = None

    def write(self, urls: dict[str, str]) -> None:
        config = self.folder / "config"
        config.mkdir(exist_ok=True)
        servers, bundles = [], []
        for name, entry in self.entries.items():
            servers += [f"[servers.{name}]", urls[name], f'trust = "{entry.trust}"']
            servers += (
                [f"pass_through = {json.dumps(entry.pass_through)}"] if entry.pass_through else []
            )
            servers.append(f'era = "{entry.era}"')
            servers += [] if entry.prefix else ["prefix = false"]
            servers += [f"taints = {entry.taints}"] if entry.taints else []
            tools = json.dumps([f"{name}.{tool}" for tool in entry.tools])
            bundles += [
                f'[bundles."{name}.all"]',
                'description = "All."',
                f"tools = {tools}",
                'effects = ["read"]',
            ]
        shown = json.dumps([f"{name}.all" for name, entry in self.entries.items() if entry.shown])
        policy = '[[policies]]\nname = "all"\nallow = ["*"]\n'
        if any(entry.taints for entry in self.entries.values()):
            row = 'name = "stays"\nseen = ["untrusted"]\ndeny = ["sends:outside"]\n'
            policy += f"[[policies]]\n{row}"
        for file, text in (
            ("servers", "\n".join(servers)),
            ("bundles", "\n".join(bundles)),
            ("routes", f'[[routes]]\nname = "all"\nbundles = {shown}\n'),
            ("policy", policy),
        ):
            (config / f"{file}.toml").write_text(text + "\n", encoding="utf-8")

    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "runs" / "r" / "tool-calls.jsonl"
        return (
            [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if path.exists()
            else []
        )

    def passed(self) -> list[dict[str, Any]]:
        """The records of what was passed on, lists apart."""
        return [
            row for row in self.records() if row["type"] == "request.passed" and not _is_list(row)
        ]

    def listed(self) -> list[dict[str, Any]]:
        """The records of lists that were passed on."""
        return [row for row in self.records() if row["type"] == "request.passed" and _is_list(row)]


def _is_list(row: Mapping[str, Any]) -> bool:
    return str(row["method"]).endswith("/list")


def relayed(
    folder: Path,
    work: Callable[[Relay], Awaitable[T]],
    limit_s: float = 300,
    limits: str = "",
    **entries: Entry,
) -> T:
    """Runs the work beside an endpoint with the run `r`, in front of these servers (one, `every`,
    where none is named), and looks that no task of it is left. `limits` are those of the config.
    """
    relay = Relay(folder, entries or {"every": Entry()})

    async def main() -> T:
        async with AsyncExitStack() as stack:
            urls: dict[str, str] = {}
            for name, entry in relay.entries.items():
                if entry.stdio:
                    args = json.dumps(
                        [str(Path(__file__).with_name("everything_server.py")), "stdio"]
                    )
                    relay.servers[name] = None
                    urls[name] = f'transport = "stdio"\ncommand = "{sys.executable}"\nargs = {args}'
                    continue
                if entry.url:
                    relay.servers[name], urls[name] = None, entry.url
                elif entry.answers is None:
                    relay.servers[name], urls[name] = stack.enter_context(
                        everything(modern=entry.modern)
                    )
                else:
                    relay.servers[name], urls[name] = stack.enter_context(plain(**entry.answers))
                urls[name] = f'url = "{urls[name]}"'
            relay.write(urls)
            (folder / "config" / "router.toml").write_text(
                f"[limits]\n{limits}\n", encoding="utf-8"
            )
            (folder / "workspace").mkdir(exist_ok=True)
            relay.router = await stack.enter_async_context(
                Router.open(
                    folder / "config",
                    runs=folder / "runs",
                    workspace=folder / "workspace",
                    development="unpinned",
                )
            )
            await relay.router.route(Step(run_id="r", workflow="w", role="r", step="s"))
            before = asyncio.all_tasks()
            async with serve_mcp(relay.router) as endpoint:
                relay.endpoint = endpoint
                done = await work(relay)
            left = asyncio.all_tasks() - before
            assert not left, left
            return done

    result = asyncio.run(asyncio.wait_for(main(), limit_s))
    gc.collect()
    return result


__all__ = ["EVERYTHING", "Endpoint", "Entry", "Relay", "relayed"]
