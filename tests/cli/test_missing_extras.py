"""A missing extra is a sentence that names it, for every verb that needs one; `check` says it
before.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ROOT

BLOCKED = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from bundle_router.cli import main
sys.exit(main(sys.argv[2:]))
"""
SDK = "mcp,mcp_types,anyio,uvicorn,httpx2,httpcore2"
PAGES = "starlette,jinja2,prometheus_client"
SERVERS = """
[servers.clock]
transport = "stdio"
command = "mcp-server-time"
args = ["--local-timezone", "UTC"]
env = { LANG = "C.UTF-8" }
[servers.board]
url = "http://127.0.0.1:9/mcp"
auth = "oauth"
enabled = false
"""
BUNDLES = """
[bundles.clock]
description = "What time it is."
tools = ["clock.get_current_time"]
effects = ["read"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config, pins = tmp_path / "config", tmp_path / "bundles" / "pins"
    config.mkdir()
    pins.mkdir(parents=True)
    (pins / "clock.json").write_bytes((ROOT / "bundles" / "pins" / "clock.json").read_bytes())
    (config / "servers.toml").write_text(SERVERS)
    (config / "bundles.toml").write_text(BUNDLES)
    (config / "routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["clock"]\n')
    (config / "policy.toml").write_text('[[policies]]\nname = "all"\nallow = ["bundle:clock"]\n')
    return tmp_path


def without(folder: Path, modules: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command where these modules are not installed."""
    command = [sys.executable, "-c", BLOCKED, modules, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("modules", "words", "extra"),
    [
        pytest.param(SDK, "serve --mcp-only", "mcp", id="serve --mcp-only"),
        pytest.param(f"{SDK},{PAGES}", "serve", "service", id="serve: no extra"),
        pytest.param(PAGES, "serve", "service", id="serve: mcp alone"),
        pytest.param(
            "psycopg", "runs list --runs postgresql://127.0.0.1:9/x", "postgresql", id="postgresql"
        ),
        pytest.param("pyarrow", "runs export --to out --format parquet", "parquet", id="parquet"),
    ],
)
def test_a_verb_that_needs_an_extra_names_it(
    folder: Path, modules: str, words: str, extra: str
) -> None:
    done = without(folder, modules, *words.split())
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert f"pip install 'bundle-router[{extra}]'" in done.stderr


@pytest.mark.parametrize("words", ["pin --development", "check --live --development"])
def test_a_tool_server_is_reached_without_an_extra(folder: Path, words: str) -> None:
    """The program of this one is missing, which is all that is said."""
    servers = (folder / "config" / "servers.toml").read_text()
    servers = servers.replace("mcp-server-time", "no-such-program")
    (folder / "config" / "servers.toml").write_text(servers)
    done = without(folder, f"{SDK},{PAGES}", *words.split())
    assert "no-such-program" in done.stdout + done.stderr
    assert "pip install" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_check_says_before_what_is_missing(folder: Path) -> None:
    servers = (folder / "config" / "servers.toml").read_text()
    (folder / "config" / "servers.toml").write_text(servers.replace("enabled = false", ""))
    said = without(folder, SDK, "check").stdout
    assert "servers with auth (board) can't be used without mcp and httpx2" in said
    assert "pip install 'bundle-router[mcp]'" in said
    assert "not-installed" not in without(folder, "psycopg", "check").stdout


def test_the_demo_of_a_plain_installation_begins_with_its_job_and_says_no_error(
    tmp_path: Path,
) -> None:
    done = without(tmp_path, "litellm,instructor", "demo")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("A feature in 6 steps")
    assert "pip install 'bundle-router[model]'" in done.stdout
    assert "nothing is shown" not in done.stdout, "without a model, too, no step ends empty-handed"
