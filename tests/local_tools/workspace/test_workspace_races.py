"""Folders and files that change their place while a tool writes: what is protected is never
written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bundle_router.core.values import LocalSettings, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace.writing import WriteFileArguments, write_file

TRIES = 60


@contextmanager
def meanwhile(change: Callable[[], None]) -> Iterator[None]:
    """Repeats a change in a thread of its own."""
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            change()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def outcomes(workspace: Path, path: str, protected: tuple[str, ...] = ()) -> set[str]:
    """What became of many writes: `ok`, or the code of the refusal."""
    where = ToolContext(
        str(workspace), LocalSettings(), timeout_s=60, max_bytes=10_000, protected=protected
    )

    def attempt(number: int) -> str:
        try:
            write_file(WriteFileArguments(path=path, content=f"new {number}"), where)
        except ToolFailure as failure:
            return failure.code
        return "ok"

    return {attempt(number) for number in range(TRIES)}


def point(link: Path, target: str) -> None:
    (link.parent / "next").symlink_to(target)
    (link.parent / "next").replace(link)


@pytest.mark.parametrize("target", ["config", ".git", ".vscode", "env"])
def test_a_link_that_is_turned_to_a_protected_folder_leads_to_no_write_there(
    workspace: Path, target: str
) -> None:
    for name in ("real", "config", ".git", ".vscode", "env"):
        (workspace / name).mkdir()
    (workspace / "env" / "pyvenv.cfg").write_text("home = /usr/bin")
    before = {path.name for path in (workspace / target).iterdir()}
    (workspace / "swap").symlink_to("real")

    def turn() -> None:
        point(workspace / "swap", target)
        point(workspace / "swap", "real")

    with meanwhile(turn):
        seen = outcomes(workspace, "swap/file", protected=(str(workspace / "config"),))
    assert "ok" in seen
    assert seen <= {"ok", "protected", "git_internals", "autorun", "changed_meanwhile", "not_found"}
    assert {path.name for path in (workspace / target).iterdir()} == before


def test_a_file_that_is_swapped_for_a_link_is_not_written_through(
    workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    (workspace / "file").write_text("mine")

    def swap() -> None:
        point(workspace / "file", "../outside")
        (workspace / "mine").write_text("mine")
        (workspace / "mine").replace(workspace / "file")

    with meanwhile(swap):
        seen = outcomes(workspace, "file")
    assert seen <= {"ok", "not_a_file", "exists", "changed_meanwhile"}
    assert outside.read_text() == "theirs"
    assert not [path for path in workspace.iterdir() if path.name.endswith(".bundle-router-new")]
