"""What `bundle-router demo --mcp` finds of the servers it knows, and says of those that are not
there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_router.demo.real_servers import DemoServer, MissingServer, find_servers

SCRIPTS = (
    "node_modules/@modelcontextprotocol/server-everything/dist/index.js",
    "node_modules/@playwright/mcp/cli.js",
    "venv/bin/mcp-server-time",
)


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, DemoServer | MissingServer]:
    """What is found where `.servers` holds three of them, and the path a node, but no browser."""
    for script in SCRIPTS:
        program(tmp_path / ".servers" / script)
    program(tmp_path / "bin" / "node")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("BUNDLE_ROUTER_TEST_SERVERS", raising=False)
    return {server.name: server for server in find_servers(tmp_path, "a.png", tmp_path)}


def test_servers_are_found_in_the_folder_that_the_install_script_fills(
    found: dict[str, DemoServer | MissingServer], tmp_path: Path
) -> None:
    everything, time = found["everything"], found["time"]
    assert isinstance(everything, DemoServer)
    assert everything.command == str(tmp_path / "bin" / "node")
    assert isinstance(time, DemoServer)
    assert time.command == str(tmp_path / ".servers" / "venv" / "bin" / "mcp-server-time")


def test_a_node_that_is_installed_beside_the_servers_runs_them(
    found: dict[str, DemoServer | MissingServer], tmp_path: Path
) -> None:
    program(tmp_path / ".servers" / "node_modules" / ".bin" / "node")
    everything = find_servers(tmp_path, "a.png", tmp_path)[0]
    assert isinstance(everything, DemoServer)
    assert everything.command == str(tmp_path / ".servers" / "node_modules" / ".bin" / "node")


def test_a_browser_server_without_a_browser_is_skipped_with_what_to_install(
    found: dict[str, DemoServer | MissingServer], tmp_path: Path
) -> None:
    missing = found["browser"]
    assert isinstance(missing, MissingServer)
    assert "apt install chromium" in missing.why
    program(tmp_path / "bin" / "chromium")
    browser = find_servers(tmp_path, "a.png", tmp_path)[-1]
    assert isinstance(browser, DemoServer)
    assert str(tmp_path / "bin" / "chromium") in browser.args
