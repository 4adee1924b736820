"""Real tool servers for the demo: where they may be installed, and a config that puts their tools into two bundles."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from router.core.models import Trust

FOLDER_VARIABLE: Final = "BUNDLE_ROUTER_TEST_SERVERS"
INSTALL: Final = (
    "npm install --prefix servers @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem",
    "python -m venv servers/venv && servers/venv/bin/pip install mcp-server-time mcp-server-git",
    f"{FOLDER_VARIABLE}=servers bundle-router demo --mcp",
)


@dataclass(frozen=True, slots=True)
class DemoServer:
    """One server as it is started here, the tools that its bundle names, and the calls that are made. A stranger's
    tools (`untrusted`) are reached through meta-tools."""

    name: str
    package: str
    command: str
    args: tuple[str, ...]
    trust: Trust
    tools: tuple[str, ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...]


def find_servers(repository: Path, image: str) -> list[DemoServer]:
    """Those of the known servers that are installed: in the folder that `BUNDLE_ROUTER_TEST_SERVERS` names, here, or on
    the path. `repository` is what they are shown, `image` a picture in it."""
    return list(_found(repository, image))


def _found(repository: Path, image: str) -> Iterator[DemoServer]:
    everything = _npm("server-everything")
    if everything is not None:
        calls: tuple[tuple[str, Mapping[str, Any]], ...] = (
            ("echo", {"message": "hello"}),
            ("get-tiny-image", {}),
            ("get-structured-content", {"location": "Chicago"}),
        )
        yield _server("everything", "npm @modelcontextprotocol/server-everything", everything, "trusted", calls)
    filesystem = _npm("server-filesystem", str(repository))
    if filesystem is not None:
        calls = (("read_media_file", {"path": str(repository / image)}),)
        yield _server("filesystem", "npm @modelcontextprotocol/server-filesystem", filesystem, "untrusted", calls)
    time = _pypi("mcp-server-time")
    if time is not None:
        calls = (("get_current_time", {"timezone": "UTC"}),)
        yield _server("time", "PyPI mcp-server-time", time, "untrusted", calls)
    git = _pypi("mcp-server-git", "--repository", str(repository))
    if git is not None:
        calls = (("git_log", {"repo_path": str(repository), "max_count": 3}),)
        yield _server("git", "PyPI mcp-server-git", git, "untrusted", calls)


def _server(
    name: str, package: str, argv: Sequence[str], trust: Trust, calls: tuple[tuple[str, Mapping[str, Any]], ...]
) -> DemoServer:
    return DemoServer(name, package, argv[0], tuple(argv[1:]), trust, tuple(tool for tool, _ in calls), calls)


def _npm(name: str, *args: str) -> tuple[str, ...] | None:
    node = shutil.which("node")
    for folder in _folders():
        script = folder / "node_modules" / "@modelcontextprotocol" / name / "dist" / "index.js"
        if node is not None and script.is_file():
            return (node, str(script), *args)
    program = shutil.which(f"mcp-{name}")
    return None if program is None else (program, *args)


def _pypi(name: str, *args: str) -> tuple[str, ...] | None:
    places = [*(folder / "venv" / "bin" / name for folder in _folders()), Path(sys.prefix, "bin", name)]
    found = next((str(place) for place in places if place.is_file()), None) or shutil.which(name)
    return None if found is None else (found, *args)


def _folders() -> list[Path]:
    named = os.environ.get(FOLDER_VARIABLE, "")
    return [Path(place).resolve() for place in (named, ".") if place]


def write_config(folder: Path, servers: Sequence[DemoServer]) -> None:
    """A config folder that knows these servers: those that are trusted in one bundle, strangers in another."""
    folder.mkdir(parents=True)
    (folder / "servers.toml").write_text("\n".join(_server_text(server) for server in servers), encoding="utf-8")
    bundles = [
        _bundle_text(id_, [server for server in servers if server.trust == trust])
        for id_, trust in (("demo.direct", "trusted"), ("demo.strangers", "untrusted"))
        if any(server.trust == trust for server in servers)
    ]
    (folder / "bundles.toml").write_text("\n".join(bundles), encoding="utf-8")
    ids = json.dumps([text.split('"')[1] for text in bundles])
    (folder / "routes.toml").write_text(f'[[routes]]\nname = "demo"\nbundles = {ids}\n', encoding="utf-8")
    policy = '[[policies]]\nname = "demo"\nallow = ["bundle:demo.*"]\n'
    (folder / "policy.toml").write_text(policy, encoding="utf-8")


def _server_text(server: DemoServer) -> str:
    return (
        f'[servers.{server.name}]\ntransport = "stdio"\ncommand = {json.dumps(server.command)}\n'
        f'args = {json.dumps(server.args)}\ntrust = "{server.trust}"\n'
    )


def _bundle_text(id_: str, servers: Sequence[DemoServer]) -> str:
    tools = json.dumps([f"{server.name}.{tool}" for server in servers for tool in server.tools])
    what = ", ".join(server.name for server in servers)
    return f'[bundles."{id_}"]\ndescription = "Tools of {what}."\ntools = {tools}\neffects = ["read"]\n'
