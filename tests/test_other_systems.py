"""What the README shows runs without Linux: in a process whose `os` has none of Linux's names and
that says `darwin`.

This is no Mac: the kernel, its files and its processes are Linux's. It finds code that asks for
what only Linux has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.command_line import CODE
from tests.test_docs import ROOT, blocks

LINUX_ONLY = (
    *(
        "O_PATH",
        "O_TMPFILE",
        "O_LARGEFILE",
        "O_DIRECT",
        "O_NOATIME",
        "O_RSYNC",
        "EFD_CLOEXEC",
        "GRND_NONBLOCK",
    ),
    *(
        "memfd_create",
        "pidfd_open",
        "sched_getaffinity",
        "sched_setaffinity",
        "eventfd",
        "splice",
        "copy_file_range",
    ),
    *(
        "getxattr",
        "setxattr",
        "listxattr",
        "removexattr",
        "posix_fadvise",
        "posix_fallocate",
        "getrandom",
        "fdatasync",
    ),
    *(
        "setresuid",
        "setresgid",
        "getresuid",
        "getresgid",
        "pipe2",
        "preadv2",
        "pwritev2",
        "sched_getscheduler",
    ),
)
# The standard library is loaded before, since it looks for files that this machine's Python has for
# Linux alone.
LEAVE_LINUX = f"""
import asyncio, ctypes, multiprocessing, os, platform, resource, selectors, shutil, subprocess, sys, sysconfig, tempfile
import urllib.request, uuid, zoneinfo
sysconfig.get_config_vars()
for name in {LINUX_ONLY!r}:
    if hasattr(os, name):
        delattr(os, name)
del resource.prlimit
tempfile._O_TMPFILE_WORKS = False
sys.platform = "darwin"
"""
TOOLS = """
import asyncio
from bundle_router import Router, Step

CALLS = {
    "repo.read_file": {"path": "README.md"},
    "repo.list_dir": {"path": "."},
    "repo.ripgrep": {"pattern": "hello"},
    "repo.git_log": {},
    "workspace.write_file": {"path": "a.txt", "content": "x"},
    "workspace.binaries": {},
    "workspace.exec": {"binary": "python", "args": ["-m", "py_compile", "own.py"]},
}

async def main():
    async with Router.open("config", runs="runs", workspace="work") as router:
        await router.route(Step(run_id="r", workflow="feature", role="implementer", step="edit"))
        for name, arguments in CALLS.items():
            result = await router.call("r", name, arguments)
            print(name, result.outcome, result.code)

asyncio.run(main())
"""


def run_elsewhere(code: str, folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "router")}
    words = [
        sys.executable,
        "-P",
        "-c",
        LEAVE_LINUX + code,
    ]  # nothing may be written where code is imported from
    done = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "crashed" not in done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "work").mkdir()
    for folder in (tmp_path, tmp_path / "work"):
        (folder / "README.md").write_text("# hello\n", encoding="utf-8")
    (tmp_path / "work" / "own.py").write_text("answer = 42\n", encoding="utf-8")
    repository = tmp_path / "work" / ".git"
    (repository / "objects").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (repository / "config").write_text("[core]\n", encoding="utf-8")
    return tmp_path


def test_the_tools_work_or_refuse_with_a_sentence(project: Path) -> None:
    ends = dict(line.split(" ", 1) for line in run_elsewhere(TOOLS, project).splitlines())
    refused = ends.pop("workspace.exec")
    assert refused == "tool_error unsupported_platform"
    for name in ("repo.git_log", "repo.ripgrep"):
        assert ends.pop(name) == "tool_error unavailable", "it can't be confined there"
    assert {end.split()[0] for end in ends.values()} == {"ok"}, ends


@pytest.mark.parametrize(
    "code",
    [
        "from bundle_router import Router",
        "import bundle_router.cli as c; c.main(['demo'])",
        "import bundle_router.cli as c; c.main(['deferral', 'audit'])",
        "import bundle_router_deferral.cli as c; c.main(['audit'])",
    ],
)
def test_windows_is_refused_with_a_sentence(code: str, tmp_path: Path) -> None:
    words = (
        "import sys, asyncio, subprocess; sys.modules['fcntl'] = None; sys.platform = 'win32';"
        f" {code}"
    )
    env = {**os.environ, "PYTHONPATH": CODE}
    done = subprocess.run(
        [sys.executable, "-c", words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    message, advice = done.stderr.splitlines()[-2:]
    assert "does not run on Windows" in message
    assert "run it under WSL" in advice


def test_the_readmes_snippets_run(project: Path) -> None:
    pages = [
        code
        for page, code in blocks("python")
        if page == "README.md" or page.startswith("router/docs/")
    ]
    first, *others = [code for code in pages if "postgresql://" not in code]
    snippet = (
        "import asyncio\nasync def snippet():\n"
        + textwrap.indent(first, "    ")
        + "\nasyncio.run(snippet())\n"
    )
    run_elsewhere("\n".join((snippet, *others)), project)
