"""Real tool servers for the demo: where they may be installed, and a config with their tools in two
bundles.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bundle_router.core.values import Trust

FOLDER_VARIABLE: Final = "BUNDLE_ROUTER_TEST_SERVERS"
FOLDERS: Final = (".servers", ".")
"""Further folders that are searched: that of `.ci/servers/install`, and that of manual installs."""
INSTALL: Final = (
    (
        "npm install --prefix servers @modelcontextprotocol/server-everything"
        " @modelcontextprotocol/server-filesystem @playwright/mcp"
    ),
    "python -m venv servers/venv && servers/venv/bin/pip install mcp-server-time mcp-server-git",
    f"{FOLDER_VARIABLE}=servers bundle-router demo --mcp",
)
_BARS: Final = (("Mon", 3), ("Tue", 5), ("Wed", 4), ("Thu", 8), ("Fri", 6), ("Sat", 9), ("Sun", 12))
_STYLE: Final = (
    "body{font-family:sans-serif;margin:48px;background:#f5f1e8;color:#22303c}"
    ".chart{display:flex;align-items:flex-end;gap:24px;height:360px;border-bottom:3px solid"
    " #22303c}"
    ".bar{flex:1;background:#d9643a;color:#fff;text-align:center;padding-top:8px}.bar:last-child{background:#2a7f78}"
)
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

Calls = tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True, slots=True)
class DemoServer:
    """One server as it is started here, the tools in its bundle, and the calls to make.

    Tools of an `untrusted` one are reached through meta-tools. `reaches`: whether it uses a
    network; `timeout_s` is per call.
    """

    name: str
    package: str
    command: str
    args: tuple[str, ...]
    trust: Trust
    calls: Calls
    reaches: bool = False
    timeout_s: float = 60.0

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(tool for tool, _ in self.calls)


@dataclass(frozen=True, slots=True)
class MissingServer:
    """A known server that is not installed: what is missing, and how to install it."""

    name: str
    package: str
    why: str


def find_servers(repository: Path, image: str, scratch: Path) -> list[DemoServer | MissingServer]:
    """Return each known server as installed in the folder that `BUNDLE_ROUTER_TEST_SERVERS` names,
    in `FOLDERS`, or on the path. `repository` is the folder they are shown, `image` a picture in
    it; `scratch` is a folder for a browser's files.
    """
    root = str(repository)
    everything: Calls = (
        ("echo", {"message": "hello"}),
        ("get-tiny-image", {}),
        ("get-structured-content", {"location": "Chicago"}),
    )
    filesystem: Calls = (("read_media_file", {"path": str(repository / image)}),)
    time: Calls = (("get_current_time", {"timezone": "UTC"}),)
    git: Calls = (("git_log", {"repo_path": root, "max_count": 3}),)
    return [
        _npm("everything", "trusted", everything),
        _npm("filesystem", "untrusted", filesystem, root),
        _pypi("time", time),
        _pypi("git", git, "--repository", root),
        _browser(scratch),
    ]


def _npm(name: str, trust: Trust, calls: Calls, *args: str) -> DemoServer | MissingServer:
    package = f"npm @modelcontextprotocol/server-{name}"
    argv = _node_program(f"@modelcontextprotocol/server-{name}/dist/index.js", f"mcp-server-{name}")
    if isinstance(argv, str):
        return MissingServer(name, package, argv)
    return DemoServer(name, package, argv[0], (*argv[1:], *args), trust, calls)


def _pypi(name: str, calls: Calls, *args: str) -> DemoServer | MissingServer:
    program = f"mcp-server-{name}"
    folders = [folder / "venv" / "bin" for folder in _folders()]
    places = [folder / program for folder in (*folders, Path(sys.prefix, "bin"))]
    installed = [str(place) for place in places if place.is_file()]
    command = installed[0] if installed else shutil.which(program)
    if command is None:
        return MissingServer(name, f"PyPI {program}", "it is not installed")
    return DemoServer(name, f"PyPI {program}", command, args, "untrusted", calls)


def _browser(scratch: Path) -> DemoServer | MissingServer:
    package = "npm @playwright/mcp"
    argv = _node_program("@playwright/mcp/cli.js", "playwright-mcp")
    if isinstance(argv, str):
        return MissingServer("browser", package, argv)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return MissingServer(
            "browser",
            package,
            "there is no chromium or chrome to drive (Debian: apt install chromium)",
        )
    options = [
        "--headless",
        "--isolated",
        "--executable-path",
        browser,
        "--output-dir",
        str(scratch),
    ]
    if os.geteuid() == 0:
        options.append(
            "--no-sandbox"
        )  # chromium refuses to run as root with its sandbox; the page is the demo's own
    calls: Calls = (
        ("browser_navigate", {"url": page_url()}),
        ("browser_take_screenshot", {"type": "png", "scale": "css"}),
    )
    return DemoServer(
        "browser", package, argv[0], (*argv[1:], *options), "untrusted", calls, reaches=True
    )


def _node_program(script: str, program: str) -> tuple[str, ...] | str:
    """Return its start command, or why there is none.

    A folder's own node, if it has one, runs it.
    """
    for folder in _folders():
        modules = folder / "node_modules"
        if (modules / script).is_file():
            bundled = modules / ".bin" / "node"
            node = str(bundled) if bundled.is_file() else shutil.which("node")
            if node is None:
                return "there is no node to run it"
            return (node, str(modules / script))
    found = shutil.which(program)
    return "it is not installed" if found is None else (found,)


def _folders() -> list[Path]:
    named = os.environ.get(FOLDER_VARIABLE, "")
    return [Path(place).resolve() for place in (named, *FOLDERS) if place]


def write_config(folder: Path, servers: Sequence[DemoServer]) -> None:
    """Write a config folder with these servers: the trusted ones in one bundle, the untrusted in
    another.
    """
    bundles = {}
    for id_, trust in (("demo.direct", "trusted"), ("demo.strangers", "untrusted")):
        members = [server for server in servers if server.trust == trust]
        if members:
            bundles[id_] = _bundle_text(id_, members)
    files = {
        "servers.toml": "\n".join(_server_text(server) for server in servers),
        "bundles.toml": "\n".join(bundles.values()),
        "routes.toml": f'[[routes]]\nname = "demo"\nbundles = {json.dumps([*bundles])}\n',
        "policy.toml": '[[policies]]\nname = "demo"\nallow = ["bundle:demo.*"]\n',
    }
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _server_text(server: DemoServer) -> str:
    return (
        f'[servers.{server.name}]\ntransport = "stdio"\ncommand = {json.dumps(server.command)}\n'
        f'args = {json.dumps(server.args)}\ntrust = "{server.trust}"\n'
        f"timeout_s = {server.timeout_s}\n"
    )


def _bundle_text(id_: str, servers: Sequence[DemoServer]) -> str:
    tools = json.dumps([f"{server.name}.{tool}" for server in servers for tool in server.tools])
    what = ", ".join(server.name for server in servers)
    effects = '["read", "network"]' if any(server.reaches for server in servers) else '["read"]'
    return (
        f'[bundles."{id_}"]\ndescription = "Tools of {what}."\ntools = {tools}\neffects ='
        f" {effects}\n"
    )


def page_url() -> str:
    """Return a URL that contains a page with one chart."""
    highest = max(value for _, value in _BARS)
    drawn = "".join(
        f'<div class="bar" style="height:{340 * n // highest}px">{day} {n}</div>'
        for day, n in _BARS
    )
    return "data:text/html," + quote(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Slugs'
        f" made</title><style>{_STYLE}</style><h1>Slugs made, by day</h1><div"
        f' class="chart">{drawn}</div></html>'
    )
