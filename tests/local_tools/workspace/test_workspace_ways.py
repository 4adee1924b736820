"""Which way a program is confined: by bubblewrap, else by Landlock and seccomp, else not started."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from bundle_router.errors import ToolFailure

from tests.lesser_kernel import LACKING, run_without

RUN = """
import json
from bundle_router.core.values import BinaryForm, BinaryRule, LocalSettings, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace.execution import ExecArguments, execute

workspace, facilities = json.loads(sys.argv[1])
rule = BinaryRule(name="touch", path="/usr/bin/touch", forms=(BinaryForm(words=("started",)),))
context = ToolContext(workspace, LocalSettings(binaries=(rule,)), timeout_s=60, max_bytes=9999)
arguments = ExecArguments(binary="touch", args=("started",))
try:
    print(execute(arguments, context, facilities=tuple(facilities)).blocks[0].text)
except ToolFailure as failure:
    print(failure.code, failure)
"""


def exec_without(missing: str, workspace: Path, facilities: tuple[str, ...]) -> str:
    """What `exec` says on a kernel that lacks Landlock or seccomp."""
    return run_without(missing, RUN, json.dumps([str(workspace), facilities]))


@pytest.mark.parametrize("missing", LACKING)
def test_without_bubblewrap_and_one_of_the_others_nothing_is_started(
    workspace: Path, missing: str
) -> None:
    shown = exec_without(missing, workspace, ("files", "system calls"))
    assert shown.startswith("not_started the program was not started: nothing here confines it")
    assert f"no {missing}" in shown
    assert "install bubblewrap" in shown
    assert not (workspace / "started").exists()


@pytest.mark.parametrize(
    ("missing", "said"), [("Landlock", "NOT: files (no Landlock"), ("seccomp", "NOT: system calls")]
)
def test_with_bubblewrap_the_result_says_what_is_missing_besides(
    workspace: Path, facilities: tuple[str, ...], missing: str, said: str
) -> None:
    shown = exec_without(missing, workspace, facilities)
    assert shown.startswith("exit 0")
    assert said in shown
    assert (workspace / "started").exists()


def bubblewrap_on_path(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program `bwrap` of one's own, before the machine's on PATH."""
    program = folder / "bwrap"
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_where_bubblewrap_is_not_installed_each_protection_that_is_missing_says_so(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = run("print(6 * 7)")
    assert "42" in ran.text
    needs = "(needs bubblewrap)"
    missing = f"process tree {needs}, mounts {needs}, metadata ("
    assert f"NOT: bubblewrap (not installed), {missing}" in ran.text


def test_a_bubblewrap_that_fails_here_is_not_used_and_its_words_are_said(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "#!/bin/sh\necho 'bwrap: No permissions' >&2\nexit 1\n"
    bubblewrap_on_path(tmp_path, script, monkeypatch)
    ran = run("print(6 * 7)")
    assert "42" in ran.text
    assert (
        "NOT: bubblewrap (it does not work here: bwrap: No permissions), process tree" in ran.text
    )


def test_a_bubblewrap_that_others_may_change_is_not_used(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bubblewrap_on_path(tmp_path, f"#!/bin/sh\ntouch {tmp_path}/ran\n", monkeypatch)
    (tmp_path / "bwrap").chmod(0o777)
    ran = run("print(6 * 7)")
    assert f"NOT: bubblewrap (others may change {tmp_path}/bwrap)" in ran.text
    assert not (tmp_path / "ran").exists()


MISLED = """#!{python} -IS
import os, sys
words = sys.argv[1:]
if words[-1] == "--version":
    words[-2] = {program!r}
for at in range(len(words) - 2, -1, -1):
    if words[at + 1:at + 3] == [{place!r}, {place!r}]:
        words[at:at + 2] = [{mount!r}, {source!r}]
    if words[at:at + 2] == ["--tmpfs", {place!r}]:
        del words[at - 2:at + 4]
os.execv({program!r}, ["bwrap", *words])
"""


@pytest.mark.parametrize("kind", ["protected", "hidden"])
@pytest.mark.parametrize("way", ["elsewhere", "writable"])
def test_a_mount_that_was_led_elsewhere_for_a_moment_starts_nothing(
    run: Any, workspace: Path, tmp_path: Path, facilities: Any, kind: str, way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Bubblewrap mounts by path. Whoever swaps a folder and swaps it back leaves no trace at the
    path itself.
    """
    places = {"protected": workspace / "kept", "hidden": workspace / "runs"}
    for place in places.values():
        place.mkdir()
    (tmp_path / "other").mkdir()
    script = MISLED.format(
        python=sys.executable,
        place=str(places[kind]),
        mount="--ro-bind" if way == "elsewhere" else "--bind",
        source=str(tmp_path / "other" if way == "elsewhere" else places[kind]),
        program=shutil.which("bwrap"),
    )
    settings = {name: (str(place),) for name, place in places.items()}
    bubblewrap_on_path(tmp_path, script, monkeypatch)
    with pytest.raises(ToolFailure, match="was replaced while the program was being") as refused:
        run("open('started', 'w')", facilities=facilities, **settings)
    assert refused.value.code == "not_started"
    assert not (workspace / "started").exists()
