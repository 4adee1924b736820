"""Real servers from npm and PyPI. They have to be installed first:

    npm install --prefix DIR @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem \\
        @modelcontextprotocol/server-memory
    python -m venv DIR/venv && DIR/venv/bin/pip install mcp-server-git mcp-server-time mcp-server-fetch

Then `BUNDLE_ROUTER_TEST_SERVERS=DIR` runs these; elsewhere they skip.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from router.adapters.mcp import McpSessions
from router.core.catalog import Server
from router.core.models import Data, Media, Text

FOLDER = os.environ.get("BUNDLE_ROUTER_TEST_SERVERS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="BUNDLE_ROUTER_TEST_SERVERS names no folder with installed servers")

MODULES = Path(FOLDER, "node_modules", "@modelcontextprotocol")


def npm(name: str, *args: str) -> Server:
    script = MODULES / f"server-{name}" / "dist" / "index.js"
    if shutil.which("node") is None or not script.exists():
        pytest.skip(f"needs node and @modelcontextprotocol/server-{name}")
    return Server(name=name, transport="stdio", command="node", args=(str(script), *args))


def pypi(name: str, *args: str) -> Server:
    script = Path(FOLDER, "venv", "bin", f"mcp-server-{name}")
    if not script.exists():
        pytest.skip(f"needs mcp-server-{name}")
    return Server(name=name, transport="stdio", command=str(script), args=args)


def test_everything_gives_images_links_resources_and_structured_content(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        def call(tool: str, **given: Any) -> Any:
            return bench.call(sessions, tool, server="everything", **given)

        listing = await sessions.definitions("everything")
        assert len(listing.tools) >= 10
        assert listing.rejected == ()
        assert bench.said(await call("echo", message="hello")) == "Echo: hello"
        image = next(block for block in (await call("get-tiny-image")).blocks if isinstance(block, Media))
        assert image.data.startswith(b"\x89PNG")
        links = [block.value for block in (await call("get-resource-links")).blocks if isinstance(block, Data)]
        assert links
        assert all(link["type"] == "resource_link" for link in links)
        weather = await call("get-structured-content", location="New York")
        assert [type(block) for block in weather.blocks] == [Text, Data]
        assert (await call("no-such-tool")).outcome == "tool_error"

    bench.run(main, npm("everything"))


def test_everything_over_streamable_http_keeps_runs_apart(bench: Any) -> None:
    npm("everything")
    script = MODULES / "server-everything" / "dist" / "index.js"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"PATH": os.environ["PATH"], "PORT": str(port), "HOME": str(bench.workspace)}
    process = subprocess.Popen(
        ["node", str(script), "streamableHttp"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    async def main(sessions: McpSessions) -> None:
        while (result := await bench.call(sessions, "echo", message="hello")).outcome != "ok":
            assert process.poll() is None
            bench.clock.advance(60)
            await asyncio.sleep(0.1)
        assert bench.said(result) == "Echo: hello"
        assert (await sessions.definitions("s")).tools

    try:
        # Stopped before `run` looks for processes that were left.
        async def then_stopped(sessions: McpSessions) -> None:
            try:
                await main(sessions)
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait)

        bench.run(then_stopped, Server(name="s", transport="streamable-http", url=f"http://127.0.0.1:{port}/mcp"))
    finally:
        process.kill()
        process.wait()


def test_filesystem_reads_text_and_images_of_the_folder_it_was_given(bench: Any) -> None:
    (bench.workspace / "a.txt").write_text("hello\n")
    pixel = bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
    )
    (bench.workspace / "a.png").write_bytes(pixel)

    async def main(sessions: McpSessions) -> None:
        def call(tool: str, **given: Any) -> Any:
            return bench.call(sessions, tool, server="filesystem", **given)

        assert "hello" in bench.said(await call("read_text_file", path=str(bench.workspace / "a.txt")))
        image = await call("read_media_file", path=str(bench.workspace / "a.png"))
        assert Media(pixel, "image/png") in image.blocks
        denied = await call("read_text_file", path="/etc/passwd")
        assert (denied.outcome, denied.code) == ("tool_error", "failed")

    bench.run(main, npm("filesystem", str(bench.workspace)))


def test_six_servers_of_both_eras_open_side_by_side_and_close_without_a_trace(bench: Any) -> None:
    subprocess.run(["git", "init", "-q", str(bench.workspace)], check=True)
    servers = [
        npm("everything"),
        npm("filesystem", str(bench.workspace)),
        npm("memory"),
        pypi("git", "--repository", str(bench.workspace)),
        pypi("time"),
        pypi("fetch"),
    ]

    async def main(sessions: McpSessions) -> None:
        listings = await asyncio.gather(*(sessions.definitions(server.name) for server in servers))
        assert {listing.protocol for listing in listings} == {"2025-11-25", "2026-07-28"}
        assert all(listing.tools and not listing.rejected for listing in listings)
        assert "branch" in bench.said(
            await bench.call(sessions, "git_status", server="git", repo_path=str(bench.workspace))
        )
        assert "UTC" in bench.said(await bench.call(sessions, "get_current_time", server="time", timezone="UTC"))
        assert sum(len(status.pids) for status in sessions.status()) == len(servers)

    bench.run(main, *servers)


def test_the_demo_pins_and_calls_what_is_installed_and_leaves_no_process_behind(tmp_path: Path) -> None:
    npm("everything")
    pypi("time")
    done = subprocess.run(
        [sys.executable, "-m", "router", "demo", "--mcp"],
        cwd=tmp_path, env={**os.environ, "BUNDLE_ROUTER_TEST_SERVERS": str(Path(FOLDER).resolve())},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"everything\.get-tiny-image +ok .*artifact image/png \d+x\d+, [\d,]+ bytes", done.stdout)
    assert re.search(r"time\.get_current_time +ok", done.stdout), "a stranger's tool, through call_tool"
    assert re.search(r"everything\.echo +denied: pin_drift", done.stdout)
    assert "Processes left behind: none" in done.stdout
