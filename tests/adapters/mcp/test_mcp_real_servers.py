"""Real servers from npm and PyPI, over sessions (see tests/adapters/mcp/real_servers.py for how they are
installed).
"""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

from bundle_router.adapters.mcp import McpSessions
from bundle_router.core.values import Data, Media, Text

from tests.adapters.mcp.real_servers import HANDSHAKE, INSTALLED, MODERN, PIXEL, npm, pypi

pytestmark = INSTALLED


def test_everything_gives_images_links_resources_and_structured_content(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        def call(tool: str, **given: Any) -> Any:
            return bench.call(sessions, tool, server="everything", **given)

        listing = await sessions.definitions("everything")
        assert len(listing.tools) >= 10
        assert listing.rejected == ()
        assert bench.said(await call("echo", message="hello")) == "Echo: hello"
        image = next(
            block for block in (await call("get-tiny-image")).blocks if isinstance(block, Media)
        )
        assert image.data.startswith(b"\x89PNG")
        links: list[Any] = [
            block.value
            for block in (await call("get-resource-links")).blocks
            if isinstance(block, Data)
        ]
        assert links
        assert all(link["type"] == "resource_link" for link in links)
        weather = await call("get-structured-content", location="New York")
        assert [type(block) for block in weather.blocks] == [Text, Data]
        assert (await call("no-such-tool")).outcome == "tool_error"

    bench.run(main, npm("everything"))


def test_filesystem_reads_text_and_images_of_the_folder_it_was_given(bench: Any) -> None:
    (bench.workspace / "a.txt").write_text("hello\n")
    (bench.workspace / "a.png").write_bytes(PIXEL)

    async def main(sessions: McpSessions) -> None:
        def call(tool: str, **given: Any) -> Any:
            return bench.call(sessions, tool, server="filesystem", **given)

        assert "hello" in bench.said(
            await call("read_text_file", path=str(bench.workspace / "a.txt"))
        )
        image = await call("read_media_file", path=str(bench.workspace / "a.png"))
        assert Media(PIXEL, "image/png") in image.blocks
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
        assert {listing.protocol for listing in listings} == {HANDSHAKE, MODERN}
        assert all(listing.tools and not listing.rejected for listing in listings)
        assert "branch" in bench.said(
            await bench.call(sessions, "git_status", server="git", repo_path=str(bench.workspace))
        )
        assert "UTC" in bench.said(
            await bench.call(sessions, "get_current_time", server="time", timezone="UTC")
        )
        assert sum(len(status.pids) for status in sessions.status()) == len(servers)

    bench.run(main, *servers)
