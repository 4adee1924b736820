"""Real servers behind bundles, through `Router`: pinned, routed, found, called, their images
artifacts, and gone.

See tests/adapters/mcp/real_servers.py for how they are installed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.mcp import ConnectionSetting, open_mcp_sessions
from bundle_router.adapters.pin_file import PinFiles
from bundle_router.core.catalog import Server
from bundle_router.core.servers.pins.reviewed import approve
from bundle_router.demo.real_servers import page_url
from bundle_router.testing import FakeClock, FakeDiagnostics

from tests.adapters.mcp.own_processes import own_processes
from tests.adapters.mcp.real_servers import (
    HANDSHAKE,
    INSTALLED,
    MODERN,
    PIXEL,
    browser,
    everything_on_a_port,
    marked,
    npm,
    pypi,
)

pytestmark = INSTALLED


Calls = tuple[tuple[str, Mapping[str, Any], str], ...]


@dataclass(frozen=True)
class Known:
    """A real server: the revision it speaks, words to search for its last tool, and calls, each
    with a part of what it gives. `image` is what the last call's artifact begins with.
    """

    server: Server
    protocol: str
    words: str
    calls: Calls
    image: bytes = b""


def _git(repository: Path) -> Known:
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    server = pypi("git", "--repository", str(repository))
    return Known(
        server,
        MODERN,
        "working tree status",
        (("git_status", {"repo_path": str(repository)}, "branch"),),
    )


def _filesystem(folder: Path) -> Known:
    (folder / "a.png").write_bytes(PIXEL)
    (folder / "a.txt").write_text("hello\n", encoding="utf-8")
    calls: Calls = (
        ("read_text_file", {"path": str(folder / "a.txt")}, "hello"),
        ("read_media_file", {"path": str(folder / "a.png")}, "image/png"),
    )
    return Known(
        npm("filesystem", str(folder)), HANDSHAKE, "read an image or audio file", calls, PIXEL
    )


def _memory(folder: Path) -> Known:
    rows = [{"name": "slug", "entityType": "module", "observations": ["lower case"]}]
    calls: Calls = (
        ("create_entities", {"entities": rows}, "slug"),
        ("search_nodes", {"query": "slug"}, "lower case"),
    )
    server = npm("memory", env=(("MEMORY_FILE_PATH", str(folder / "memory.json")),))
    return Known(server, HANDSHAKE, "search for nodes in the knowledge graph", calls)


TINY: Final[Calls] = (
    ("echo", {"message": "hello"}, "Echo: hello"),
    ("get-tiny-image", {}, "image/png"),
)
KNOWN: Final[Mapping[str, Callable[[Path, str], Known]]] = {
    "everything": lambda _folder, _page: Known(npm("everything"), HANDSHAKE, "tiny image", TINY, PIXEL[:8]),
    "filesystem": lambda folder, _page: _filesystem(folder),
    "memory": lambda folder, _page: _memory(folder),
    "git": lambda folder, _page: _git(folder),
    "time": lambda _folder, _page: Known(
        pypi("time"), MODERN, "current time", (("get_current_time", {"timezone": "UTC"}, "UTC"),)
    ),
    "fetch": lambda _folder, page: Known(
        pypi("fetch", "--ignore-robots-txt", "--allow-private-ips"), MODERN, "fetch a web page",
        (("fetch", {"url": page}, "Sun 12"),),
    ),
    "browser": lambda folder, page: Known(
        browser(folder / "scratch"), HANDSHAKE, "take a screenshot",
        (
            ("browser_navigate", {"url": page}, "Slugs made"),
            ("browser_take_screenshot", {"type": "png", "scale": "css"}, "image/png"),
        ), PIXEL[:8],
    ),
}  # fmt: skip


def written(server: Server) -> str:
    """Its entry in `servers.toml`."""
    rows = {
        "transport": server.transport, "url": server.url, "command": server.command, "args": list(server.args),
        "legacy": server.legacy or None, "timeout_s": server.timeout_s,
    }  # fmt: skip
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items() if value)
    env = "".join(f"{name} = {json.dumps(value)}\n" for name, value in server.env)
    return f'[servers.{server.name}]\ntrust = "trusted"\n{text}' + (
        f"[servers.{server.name}.env]\n{env}" if env else ""
    )


def write(root: Path, known: Known) -> Path:
    """A config whose one bundle holds the tools that are called, deferred, and a policy that
    permits them.
    """
    config = root / "config"
    config.mkdir()
    tools = json.dumps([f"{known.server.name}.{tool}" for tool, _, _ in known.calls])
    (config / "servers.toml").write_text(written(known.server))
    (config / "bundles.toml").write_text(
        f'[bundles.real]\ndescription = "A real server."\nmode = "deferred"\ntools = {tools}\n'
        'effects = ["read", "write", "network"]\n'
    )
    (config / "routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["real"]\n')
    (config / "policy.toml").write_text('[[policies]]\nname = "all"\nallow = ["bundle:real"]\n')
    return config


def pin(root: Path, server: Server, protocol: str) -> None:
    """Approves it as it is, and looks that it speaks the revision it is known for."""

    async def reviewed() -> None:
        sessions = open_mcp_sessions(
            {server.name: server},
            ConnectionSetting(development=True, workspace=root),
            clock=FakeClock(),
            diagnostics=FakeDiagnostics(),
        )
        try:
            listing = await sessions.definitions(server.name)
        finally:
            await sessions.close()
        assert (listing.protocol, listing.rejected) == (protocol, ())
        PinFiles(root / "bundles" / "pins").write(approve(server, listing.admitted))

    asyncio.run(reviewed())


def use(root: Path, known: Known) -> None:
    """Pins it, and takes it through a run: shown unstarted, found by words, called, what it drew
    looked at, gone.
    """
    pin(root, known.server, known.protocol)
    with Router.open(
        write(root, known), runs=root / "runs", workspace=root, development=True
    ) as router:
        assert router.route_sync(Step(run_id="r", workflow="w", role="r", step="s")).bundle_ids == [
            "real"
        ]
        assert router.tools_sync("r").active == (), "it is deferred"
        last = f"{known.server.name}.{known.calls[-1][0]}"
        started = own_processes()
        found = router.call_sync("r", "search_tools", {"query": known.words})
        assert (known.calls[-1][0] in found.text, last in found.joined) == (True, True), found.text
        assert own_processes() == started, "neither routing nor searching starts a server"
        assert last in [tool.name for tool in router.tools_sync("r").active]
        for tool, given, part in known.calls:
            result = router.call_sync("r", f"{known.server.name}.{tool}", given)
            assert (result.outcome, part in result.text) == ("ok", True), result.text
        if known.image:
            (picture,) = result.artifacts
            data = router.artifact("r", picture.uri)
            assert data.startswith(known.image)
            assert (picture.mime_type, picture.sha256) == (
                "image/png",
                hashlib.sha256(data).hexdigest(),
            )
            assert picture.width
            assert router.media_sync("r", picture.uri)["type"] == "image_url"
        router.close_run_sync("r")
        assert len(set(own_processes()) - set(started)) <= 1, (
            "the supervisor, ready for the next server"
        )
    lines = (root / "runs" / "r" / "tool-calls.jsonl").read_text()
    assert "base64," not in lines
    assert base64.b64encode(PIXEL[:12]).decode() not in lines
    outcomes = [
        row["outcome"]
        for line in lines.splitlines()
        if (row := json.loads(line))["type"] == "call.finished"
    ]
    assert outcomes == ["ok"] * (len(known.calls) + 1)


@contextmanager
def serving_page(folder: Path) -> Iterator[str]:
    """Serve the demo's page on 127.0.0.1, until the end of the block."""
    folder.mkdir()
    (folder / "index.html").write_text(unquote(page_url().partition(",")[2]), encoding="utf-8")
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", KNOWN)
def test_a_real_server_is_pinned_routed_found_called_and_gone(name: str, tmp_path: Path) -> None:
    with serving_page(tmp_path / "page") as page:
        use(tmp_path, KNOWN[name](tmp_path, page))
    assert marked(os.getpid()) == []


@pytest.mark.parametrize(
    ("transport", "started_with", "path", "legacy"),
    [("streamable-http", "streamableHttp", "/mcp", False), ("sse", "sse", "/sse", True)],
)
def test_a_real_server_is_used_over_http(
    transport: Any, started_with: str, path: str, legacy: bool, tmp_path: Path
) -> None:
    with everything_on_a_port(started_with, tmp_path) as url:
        server = Server(name="everything", transport=transport, url=url + path, legacy=legacy)
        use(tmp_path, Known(server, HANDSHAKE, "tiny image", TINY, PIXEL[:8]))
