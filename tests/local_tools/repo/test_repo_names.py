"""A name of a file is shown in one spelling by all tools, and that spelling can be given back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.values import LocalSettings, Text, ToolContext, ToolOutput
from bundle_router.local_tools.repo import TOOLS
from bundle_router.local_tools.repo.file_names import read_name, show_name
from hypothesis import given
from hypothesis import strategies as st

from tests.local_tools.repo.test_repo_git import git

TOOL = {tool.name: tool for tool in TOOLS}
SHOWN = {
    b"plain.txt": "plain.txt",
    b"with blanks.txt": "with blanks.txt",
    "café/文.py".encode(): "café/文.py",
    b"tab\tx.txt": r"tab\x09x.txt",
    b"line\nend.txt": r"line\x0aend.txt",
    b"caf\xe9.txt": r"caf\xe9.txt",
    b"\xc2\x85.txt": r"\u0085.txt",
    b"\x85.txt": r"\x85.txt",
    b'quo"te.txt': 'quo"te.txt',
    b"back\\slash.txt": r"back\x5cslash.txt",
    b"caf\\xe9.txt": r"caf\x5cxe9.txt",
}


@pytest.mark.parametrize(("name", "shown"), SHOWN.items())
def test_a_name_is_shown_on_one_line_and_read_back(name: bytes, shown: str) -> None:
    assert show_name(os.fsdecode(name)) == shown
    assert os.fsencode(read_name(shown)) == name


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name))
def test_every_name_is_shown_printable_and_read_back(name: bytes) -> None:
    shown = show_name(os.fsdecode(name))
    assert shown.isprintable()
    assert os.fsencode(read_name(shown)) == name


@pytest.mark.parametrize("path", [r"a\b.txt", r"a\x41.txt", r"..\x2f..", r"a\U00110000", r"\xE9"])
def test_an_escape_that_no_shown_name_has_is_part_of_the_name(path: str) -> None:
    assert read_name(path) == path


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    for name in SHOWN:
        file = folder / os.fsdecode(name)
        file.parent.mkdir(exist_ok=True)
        file.write_text("needle\n", encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    for name in SHOWN:
        (folder / os.fsdecode(name)).write_text("changed\n", encoding="utf-8")
    return folder


def call(workspace: Path, name: str, **arguments: Any) -> str:
    context = ToolContext(str(workspace), LocalSettings(), timeout_s=30, max_bytes=1 << 20)
    output = TOOL[name].run(TOOL[name].arguments(**arguments), context)
    assert isinstance(output, ToolOutput)
    return "\n".join(block.text for block in output.blocks if isinstance(block, Text))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("shown", SHOWN.values())
def test_every_tool_shows_a_name_alike_and_takes_it(workspace: Path, shown: str) -> None:
    assert shown in call(workspace, "ripgrep", pattern="changed").split("\n")
    listed = call(workspace, "list_dir", depth=2)
    assert shown in [line.partition("  ")[0].strip() for line in listed.split("\n")]

    assert call(workspace, "read_file", path=shown).endswith("\nchanged\n")
    assert call(workspace, "ripgrep", pattern="changed", path=shown).split("\n")[1] == shown
    assert "touching" in call(workspace, "git_log", path=shown)
    lines = call(workspace, "git_diff", path=shown).split("\n")
    for head in (f"diff --git a/{shown} b/{shown}", f"--- a/{shown}", f"+++ b/{shown}"):
        assert head in lines
    assert lines[-3:] == ["-needle", "+changed", ""]
