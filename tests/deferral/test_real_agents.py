"""Real agents behind the proxy, against the strict fake on loopback: a conversation with a
continuation each.

They come from npm (`.ci/servers/install`) and skip where they are not installed. None of them
reaches the internet: each has a home folder of its own, a made-up key, and a base URL on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bundle_router_deferral.proxy import listen, serve

from tests.command_line import CODE
from tests.deferral.fake_api import FakeApi, blocks_of

ROOT = Path(__file__).parent.parent.parent
SERVERS = os.environ.get("BUNDLE_ROUTER_TEST_SERVERS")
MODULES = (Path(SERVERS) if SERVERS else ROOT / ".servers") / "agents/node_modules"
MCP_SERVER = Path(__file__).parent / "mcp_server.py"
MODEL = "claude-sonnet-4-5"
TIMEOUT_S = 400.0
CPU = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, "")
PROMPTS = ("List the open issues in octo/demo", "And once more, please")


@dataclass(frozen=True)
class Agent:
    """A real agent: where its program is, how its home is prepared, and how it is asked first and
    again.
    """

    program: str
    prepare: Callable[[Path, int], Mapping[str, str]]
    first: Callable[[Path, str], Sequence[str]]
    again: Callable[[Path, str], Sequence[str]]
    terminal: bool = False
    """Whether it continues a conversation only in a terminal, where the prompt is typed."""


def mcp_config(folder: Path) -> Path:
    file = folder / "mcp.json"
    file.write_text(
        json.dumps(
            {"mcpServers": {"github": {"command": sys.executable, "args": [str(MCP_SERVER)]}}}
        )
    )
    return file


def prepare_claude(folder: Path, port: int) -> Mapping[str, str]:
    mcp_config(folder)
    return {
        "ANTHROPIC_API_KEY": "dummy", "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}", "ENABLE_TOOL_SEARCH": "false",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1",
    }  # fmt: skip


def claude_words(folder: Path, prompt: str) -> Sequence[str]:
    rest = (
        "--model",
        MODEL,
        "--dangerously-skip-permissions",
        "--mcp-config",
        str(folder / "mcp.json"),
    )
    return ("-p", prompt, *rest)


def prepare_opencode(folder: Path, port: int) -> Mapping[str, str]:
    config = {
        "model": f"anthropic/{MODEL}", "autoupdate": False, "share": "disabled", "permission": {"*": "allow"},
        "provider": {"anthropic": {"options": {"baseURL": f"http://127.0.0.1:{port}/v1", "apiKey": "dummy"}}},
        "mcp": {"github": {"type": "local", "command": [sys.executable, str(MCP_SERVER)], "enabled": True}},
    }  # fmt: skip
    (folder / "proj/opencode.json").write_text(json.dumps(config))
    return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def prepare_cline(folder: Path, port: int) -> Mapping[str, str]:
    settings = folder / "home/.cline/data/settings"
    settings.mkdir(parents=True)
    chosen = {
        "provider": "anthropic",
        "apiKey": "dummy",
        "model": MODEL,
        "baseUrl": f"http://127.0.0.1:{port}/v1",
    }
    row = {"settings": chosen, "updatedAt": "2026-11-20T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "lastUsedProvider": "anthropic", "providers": {"anthropic": row}}
    (settings / "providers.json").write_text(json.dumps(providers))
    return {"CLINE_MCP_SETTINGS_PATH": str(mcp_config(folder))}


def cline_session(folder: Path) -> str:
    (session,) = (folder / "home/.cline/data/sessions").iterdir()
    return session.name


AGENTS = {
    "claude": Agent(
        f"@anthropic-ai/claude-code-linux-{CPU}/claude",
        prepare_claude,
        claude_words,
        lambda folder, prompt: ("--continue", *claude_words(folder, prompt)),
    ),
    "opencode": Agent(
        f"opencode-linux-{CPU}/bin/opencode",
        prepare_opencode,
        lambda _folder, prompt: ("run", prompt),
        lambda _folder, prompt: ("run", "--continue", prompt),
    ),
    "cline": Agent(
        f"@cline/cli-linux-{CPU}/bin/cline",
        prepare_cline,
        lambda _folder, prompt: ("-P", "anthropic", "-m", MODEL, prompt),
        lambda folder, _prompt: ("-P", "anthropic", "-m", MODEL, "--id", cline_session(folder)),
        terminal=True,
    ),
}


async def type_prompt(
    folder: Path, words: Sequence[str], environment: Mapping[str, str], prompt: str, api: FakeApi
) -> tuple[int, str]:
    """Run an agent in a terminal of its own, type a prompt once it shows the conversation, and wait
    for the answer.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "bundle_router",
            "deferral",
            "run",
            "--runs",
            str(folder / "runs"),
            "--",
            *words,
        ),
        cwd=folder / "proj",
        env={**environment, "TERM": "xterm-256color"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown = bytearray()
    loop = asyncio.get_running_loop()
    loop.add_reader(master, lambda: shown.extend(os.read(master, 65_536)))
    before = len(api.requests)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while b"Ask anything" not in shown or b"issue." not in shown:  # noqa: ASYNC110 - a screen tells no event
                await asyncio.sleep(0.1)
            for letter in prompt:
                os.write(master, letter.encode())
                await asyncio.sleep(0.05)
            shown.clear()
            os.write(master, b"\r")
            while len(api.requests) < before + 2 or b"issue." not in shown:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
    finally:
        loop.remove_reader(master)
        process.terminate()
        await process.wait()
        os.close(master)
    return 0, shown.decode("utf-8", "replace")


async def run_once(
    folder: Path, words: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run `bundle-router deferral run` with an agent, and return its status and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "bundle_router",
            "deferral",
            "run",
            "--runs",
            str(folder / "runs"),
            "--",
            *words,
        ),
        cwd=folder / "proj",
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode or 0, out.decode("utf-8", "replace")


async def converse(agent: Agent, name: str, folder: Path, api: FakeApi) -> None:
    """Hold one conversation and its continuation in a home folder of its own."""
    for part in ("home", "proj"):
        (folder / part).mkdir(parents=True)
    program = folder / "bin" / name
    program.parent.mkdir()
    program.symlink_to(MODULES / agent.program)
    async with serve(api, listen()) as port:
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder / "home"),
            "PYTHONPATH": CODE, "DO_NOT_TRACK": "1", "DISABLE_TELEMETRY": "1", "CI": "1",
            **agent.prepare(folder, port),
        }  # fmt: skip
        for prompt, words in zip(PROMPTS, (agent.first, agent.again), strict=True):
            command = (str(program), *words(folder, prompt))
            if agent.terminal and words is agent.again:
                status, out = await type_prompt(folder, command, environment, prompt, api)
            else:
                status, out = await run_once(folder, command, environment)
            assert status == 0, out
            assert "issue." in out, out


def called(body: dict[str, Any]) -> int:
    blocks = [block for message in body["messages"] for block in blocks_of(message)]
    return sum(block["type"] == "tool_use" and "list_issue" in block["name"] for block in blocks)


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """End what agents left running: Cline starts a daemon that outlives it.

    All name the folder of the test.
    """
    yield
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(tmp_path) in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_without_deferral_finds_and_calls_its_tools_through_the_proxy(
    name: str, tmp_path: Path
) -> None:
    agent = AGENTS[name]
    if not CPU or not (MODULES / agent.program).is_file():
        pytest.skip(f"{name} is not installed (.ci/servers/install brings it from npm)")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    api = FakeApi()
    asyncio.run(converse(agent, name, tmp_path, api))
    assert api.refusals == []
    longest = max(api.requests, key=lambda body: len(body["messages"]))
    assert called(longest) == 2
    history = json.dumps(longest["messages"])
    assert history.count("tool_search_tool_search_result") == 2, "what was hidden is put back"
    with_tools = [
        body for body in api.requests if "list_issue" in json.dumps(body.get("tools", []))
    ]
    assert len(with_tools) >= 4
    assert all(any(tool.get("defer_loading") for tool in body["tools"]) for body in with_tools)
    assert len(list((tmp_path / "runs").rglob("deferral.jsonl"))) == 2
