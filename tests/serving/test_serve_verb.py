"""`bundle-router serve --mcp-only`, as people run it: a process that serves until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.serving import STOP_S, Keys

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

ROOT = Path(__file__).parents[2]
STEP = ("--workflow", "feature", "--role", "reviewer", "--step", "review")


class Process:
    """The verb, running in a folder of its own."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "router", "serve", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line of standard output; an empty one when it has ended."""
        assert self.child.stdout is not None
        return self.child.stdout.readline()

    def stop(self, number: int) -> tuple[int, str]:
        """Its exit status and standard error after the signal."""
        begun = time.monotonic()
        self.child.send_signal(number)
        _, err = self.child.communicate(timeout=60)
        assert time.monotonic() - begun < STOP_S + 10  # what a busy machine may take on top: the end itself is bounded
        return self.child.returncode, err


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def make(*words: str, **env: str) -> Process:
        started.append(Process(tmp_path, *words, **env))
        return started[-1]

    yield make
    for process in started:
        process.child.kill()
        process.child.communicate()


def ask(site: Any, url: str, token: str) -> tuple[list[str], str]:
    """The listed names, and what reading README.md gives."""
    base, _, run_id = url.rpartition("/")
    endpoint = SimpleNamespace(key=token, url=lambda run: f"{base}/{run}")

    async def main() -> tuple[list[str], str]:
        async with site.client(endpoint, run_id=run_id) as connected:
            names = [tool.name for tool in (await connected.list_tools()).tools]
            return names, (await connected.call_tool("repo__read_file", {"path": "README.md"})).content[0].text

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_step_is_routed_and_served_until_a_signal(site: Any, begin: Any, tmp_path: Path, number: int) -> None:
    (tmp_path / "README.md").write_text("# served\n", encoding="utf-8")
    process = begin("--mcp-only", "--run", "r-1", *STEP, "--config", str(ROOT / "config"), "--json")
    said = json.loads(process.line())
    assert (said["run_id"], said["pid"]) == ("r-1", process.child.pid)
    assert said["url"] == f"http://127.0.0.1:{said['port']}/mcp/runs/r-1"
    token = process.child.stderr.readline().removeprefix("bearer token: ").strip()
    names, text = ask(site, said["url"], token)
    assert "repo__read_file" in names
    assert "# served" in text
    assert process.stop(number) == (0, "")
    run = json.loads((tmp_path / "runs" / "r-1" / "run.json").read_text(encoding="utf-8"))
    assert run["closed"]


def test_a_token_from_the_environment_is_not_said_anywhere(site: Any, begin: Any, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# served\n", encoding="utf-8")
    token = "from-the-environment-" + "x" * 32
    words = ("--mcp-only", "--token-env", "ROUTER_TOKEN", "--run", "r-1", *STEP, "--config", str(ROOT / "config"))
    process = begin(*words, ROUTER_TOKEN=token)
    line = process.line()
    url = line.split()[1]
    assert "# served" in ask(site, url, token)[1]
    assert "# served" in ask(site, url, Keys(token).of_run("r-1"))[1]
    status, err = process.stop(signal.SIGTERM)
    assert (status, token in line + err) == (0, False)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "this version serves MCP only"),
        (("--mcp-only", "--run", "none"), "none"),
        (("--mcp-only", "--run", "../x"), "--run is not a run id"),
        (("--mcp-only", "--role", "reviewer"), "--workflow, --step"),
        (("--mcp-only", "--token-env", "NOT_SET_ANYWHERE"), "'NOT_SET_ANYWHERE' is not set"),
        (("--mcp-only", "--port", "99999"), "0 to 65535"),
    ],
)
def test_what_cant_be_served_is_a_bad_request(begin: Any, words: tuple[str, ...], why: str) -> None:
    child = begin(*words).child
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (3, "")
    assert why in err
