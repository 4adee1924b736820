"""What `serve --paste` prints, given to the clients: those that can be installed connect with
it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

from tests.command_line import ROOT, begin, run

STEP: Final = ("--workflow", "feature", "--role", "reviewer", "--step", "review")
TOOL: Final = "repo__read_file"
SERVERS: Final = os.environ.get("BUNDLE_ROUTER_TEST_SERVERS", "")
FRAMEWORKS: Final = os.environ.get("BUNDLE_ROUTER_TEST_FRAMEWORKS", "")
LAST: Final = "await client.close();"


@pytest.fixture(scope="module")
def pasted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What is printed for each client, while the run is served."""
    folder = tmp_path_factory.mktemp("served")
    words = (
        "--mcp-only",
        "--run",
        "r-1",
        *STEP,
        "--config",
        str(ROOT / "config"),
        "--paste",
        "all",
    )
    child = begin(folder, "serve", *words)
    assert child.stdout is not None
    texts: dict[str, str] = {}
    name = ""
    try:
        for line in child.stdout:
            if line.startswith("--- "):
                name = line.removeprefix("--- ").partition(":")[0]
                texts[name] = ""
            elif name:
                texts[name] += line
            if line.strip() == LAST:
                break
        yield texts
    finally:
        child.kill()
        child.communicate()


def said(command: list[str], folder: Path, **env: str) -> str:
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / ".config"), **env}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


def program(*parts: str) -> str:
    path = Path(SERVERS, *parts)
    if not SERVERS or not path.exists():
        pytest.skip(f"BUNDLE_ROUTER_TEST_SERVERS holds no {path.name} (.ci/servers/install)")
    return str(path)


def node() -> str:
    """A Node beside the servers, or the system's."""
    beside = Path(SERVERS, "node_modules", ".bin", "node")
    found = str(beside) if beside.exists() else shutil.which("node")
    return found or pytest.skip("needs node")


def test_the_files_are_of_the_kind_that_their_clients_read(pasted: dict[str, str]) -> None:
    entries = {
        "opencode": json.loads(pasted["opencode"])["mcp"],
        "gemini": json.loads(pasted["gemini"])["mcpServers"],
        "codex": tomllib.loads(pasted["codex"])["mcp_servers"],
        "vscode": json.loads(pasted["vscode"])["servers"],
        "cursor": json.loads(pasted["cursor"])["mcpServers"],
    }
    for name, servers in entries.items():
        (entry,) = servers.values()
        (headers,) = (value for key, value in entry.items() if "headers" in key)
        url = entry.get("httpUrl") or entry["url"]
        assert url.endswith("/mcp/runs/r-1"), name
        assert headers["Authorization"].startswith("Bearer brk_"), name


def test_the_typescript_sdk_connects(pasted: dict[str, str], tmp_path: Path) -> None:
    modules = program("node_modules", "@modelcontextprotocol", "sdk")
    (tmp_path / "node_modules").symlink_to(Path(modules).parents[1])
    (tmp_path / "agent.mjs").write_text(pasted["typescript"], encoding="utf-8")
    assert TOOL in said([node(), "agent.mjs"], tmp_path)


def test_claude_code_connects(pasted: dict[str, str], tmp_path: Path) -> None:
    claude = program("agents", "node_modules", "@anthropic-ai", "claude-code-linux-x64", "claude")
    _, *words = shlex.split(pasted["claude-code"])
    quiet = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
    }
    said([claude, *words], tmp_path, **quiet)
    assert "Connected" in said([claude, "mcp", "list"], tmp_path, **quiet)


def test_opencode_connects(pasted: dict[str, str], tmp_path: Path) -> None:
    opencode = program("agents", "node_modules", "opencode-linux-x64", "bin", "opencode")
    (tmp_path / "opencode.json").write_text(pasted["opencode"], encoding="utf-8")
    listed = said(
        [opencode, "mcp", "list"],
        tmp_path,
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_AUTOUPDATE="1",
    )
    assert "bundle-router" in listed
    assert "connected" in listed, listed


def test_gemini_cli_connects_in_a_folder_that_it_trusts(
    pasted: dict[str, str], tmp_path: Path
) -> None:
    gemini = program("agents", "node_modules", "@google", "gemini-cli", "bundle", "gemini.js")
    project = tmp_path / "project"
    for folder in (project / ".gemini", tmp_path / ".gemini"):
        folder.mkdir(parents=True)
    (project / ".gemini" / "settings.json").write_text(pasted["gemini"], encoding="utf-8")
    trusted = json.dumps({str(project): "TRUST_FOLDER"})
    (tmp_path / ".gemini" / "trustedFolders.json").write_text(trusted, encoding="utf-8")
    listed = said([node(), gemini, "mcp", "list"], project, HOME=str(tmp_path))
    assert "bundle-router" in listed
    assert "Connected" in listed, listed


def test_the_inspector_connects(pasted: dict[str, str], tmp_path: Path) -> None:
    launcher = ("@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
    inspector = program("agents", "node_modules", *launcher)
    _npx, _package, *words = shlex.split(pasted["inspector"].replace("\\\n", " "))
    assert TOOL in said([node(), inspector, *words], tmp_path)


@pytest.mark.parametrize("name", ["fastmcp", "pydantic-ai"])
def test_the_clients_in_python_connect(pasted: dict[str, str], tmp_path: Path, name: str) -> None:
    python = Path(FRAMEWORKS, "clients", "bin", "python")
    if not FRAMEWORKS or not python.exists():
        pytest.skip("BUNDLE_ROUTER_TEST_FRAMEWORKS holds no 'clients' (.ci/frameworks)")
    assert TOOL in said([str(python), "-c", pasted[name]], tmp_path)


def test_clients_connect_without_a_run(tmp_path: Path) -> None:
    """With an address and a token alone: the texts that name a run, with `/mcp` in its place."""
    claude = program("agents", "node_modules", "@anthropic-ai", "claude-code-linux-x64", "claude")
    modules = program("node_modules", "@modelcontextprotocol", "sdk")
    (tmp_path / "node_modules").symlink_to(Path(modules).parents[1])
    texts, token = (
        tomllib.loads((ROOT / "router/bundle_router/cli/clients.toml").read_text()),
        "t" * 40,
    )
    words = ("--mcp-only", "--token-env", "OWN_TOKEN", "--config", str(ROOT / "config"))
    child = begin(tmp_path, "serve", *words, env={"OWN_TOKEN": token})
    try:
        assert child.stdout is not None
        url = child.stdout.readline().split()[1].removesuffix("/runs/RUN")

        def text(name: str) -> str:
            return str(texts[name]["text"]).replace("{url}", url).replace("{token}", token)

        (tmp_path / "agent.mjs").write_text(text("typescript"), encoding="utf-8")
        listed = said([node(), "agent.mjs"], tmp_path)
        assert "search_tools" in listed, listed
        assert TOOL not in listed
        quiet = {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
        }
        said([claude, *shlex.split(text("claude-code"))[1:]], tmp_path, **quiet)
        assert "Connected" in said([claude, "mcp", "list"], tmp_path, **quiet)
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--paste", "emacs", *STEP), "is not a known client"),
        (("--paste", "all"), "--paste needs a run"),
    ],
)
def test_what_cant_be_pasted_is_a_bad_request(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    done = run(tmp_path, "serve", "--mcp-only", *words, "--config", str(ROOT / "config"), code=3)
    assert why in done.stderr
