"""`write_file`: what it writes, what it refuses, and that a refusal changes nothing."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from bundle_router.core.values import Data, LocalSettings, Text, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace.writing import (
    MAX_CONTENT,
    WriteFileArguments,
    replace_or_create,
    write_file,
)
from pydantic import ValidationError

from tests.profiles import rounds


def write(workspace: Path, path: str, content: str = "new", **more: Any) -> dict[str, Any]:
    context = ToolContext(str(workspace), LocalSettings(), timeout_s=60, max_bytes=100_000)
    text, data = write_file(WriteFileArguments(path=path, content=content, **more), context).blocks
    assert isinstance(text, Text)
    assert isinstance(data, Data)
    assert path.rpartition("/")[2] in text.text
    return cast("dict[str, Any]", data.value)


def refusal(workspace: Path, path: str, content: str = "new", **more: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        write(workspace, path, content, **more)
    return caught.value.code


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_new_file_is_made_with_the_folders_it_needs(workspace: Path) -> None:
    assert write(workspace, "src/pkg/a.py", "höi\n") == {
        "path": "src/pkg/a.py",
        "bytes": 5,
        "sha256": digest("höi\n"),
        "done": "created",
    }
    assert (workspace / "src/pkg/a.py").read_text(encoding="utf-8") == "höi\n"
    assert listing(workspace) == ["src", "src/pkg", "src/pkg/a.py"]


def test_an_absolute_path_inside_the_workspace_is_taken(workspace: Path) -> None:
    write(workspace, f"{workspace}/a.py")
    assert (workspace / "a.py").read_text() == "new"


def test_a_replaced_file_keeps_its_mode_and_leaves_other_names_of_it_alone(
    workspace: Path, tmp_path: Path
) -> None:
    script = workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    os.link(script, tmp_path / "other-name")
    assert write(workspace, "run.sh")["done"] == "replaced"
    assert script.read_text() == "new"
    assert script.stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "other-name").read_text() == "old"


def test_create_only_and_the_expected_digest_keep_what_the_caller_has_not_seen(
    workspace: Path,
) -> None:
    (workspace / "a").write_text("theirs")
    assert refusal(workspace, "a", create_only=True) == "exists"
    assert refusal(workspace, "a", expected_sha256=digest("mine")) == "changed_meanwhile"
    assert refusal(workspace, "missing", expected_sha256=digest("mine")) == "changed_meanwhile"
    assert (workspace / "a").read_text() == "theirs"
    assert listing(workspace) == ["a"]
    write(workspace, "a", expected_sha256=digest("theirs"))
    write(workspace, "b", create_only=True)
    assert listing(workspace) == ["a", "b"]
    with pytest.raises(ValidationError, match="exclude each other"):
        WriteFileArguments(path="a", content="", create_only=True, expected_sha256=digest("x"))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../outside/file", "outside_workspace"),
        ("/etc/cron.d/x", "outside_workspace"),
        ("out/file", "outside_workspace"),
        ("out-relative/file", "outside_workspace"),
        ("file-link", "not_a_file"),
        ("inner-link", "not_a_file"),
        ("dangling", "not_a_file"),
        ("pipe", "not_a_file"),
        ("folder", "not_a_file"),
        ("file/below", "not_a_directory"),
        ("loop/file", "too_many_links"),
        ("newdir/../../outside/file", "not_found"),
        (".", "invalid_path"),
        ("folder/", "invalid_path"),
        ("folder/..", "invalid_path"),
        ("a\0b", "invalid_path"),
        ("a\nb", "invalid_path"),
        ("a\x1bb", "invalid_path"),
        ("x" * 300, "invalid_path"),
        ("d/" * 70 + "f", "invalid_path"),
        (".git", "git_internals"),
        (".git/config", "git_internals"),
        (".git/hooks/post-checkout", "git_internals"),
        (".GIT/config", "git_internals"),
        (".git./config", "git_internals"),
        ("sub/.git/config", "git_internals"),
        ("to-git/config", "git_internals"),
        ("to-git/hooks/new", "git_internals"),
        ("bare/config", "git_internals"),
        ("bare/hooks/x", "git_internals"),
    ],
)
def test_what_may_not_be_written_is_refused_and_nothing_changes(
    workspace: Path, tmp_path: Path, path: str, code: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    for folder in (".git/hooks", "folder", "bare/objects", "bare/refs", "bare/hooks"):
        (workspace / folder).mkdir(parents=True)
    (workspace / "file").write_text("old")
    (workspace / "bare" / "HEAD").write_text("ref: refs/heads/main")
    links = {
        "out": str(tmp_path / "outside"),
        "out-relative": "../outside",
        "file-link": "../outside/secret",
    }
    links |= {"inner-link": "file", "dangling": "../outside/new", "loop": "loop", "to-git": ".git"}
    for name, target in links.items():
        (workspace / name).symlink_to(target)
    os.mkfifo(workspace / "pipe")
    before = listing(tmp_path)
    assert refusal(workspace, path) == code
    assert listing(tmp_path) == before
    assert (tmp_path / "outside" / "secret").read_text() == "secret"
    assert (workspace / "file").read_text() == "old"


def test_a_sibling_whose_name_starts_like_the_workspace_is_outside(workspace: Path) -> None:
    assert refusal(workspace, f"{workspace}-evil/file") == "outside_workspace"


def test_content_that_is_too_long_or_not_text_is_refused(workspace: Path) -> None:
    assert refusal(workspace, "a", "ä" * (MAX_CONTENT // 2 + 1)) == "too_large"
    with pytest.raises(ValidationError, match="unicode"):
        WriteFileArguments(path="a", content="\ud800")
    assert listing(workspace) == []


def test_moving_a_link_in_and_out_meanwhile_never_lets_a_write_out(
    workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (workspace / "real").mkdir()
    (workspace / "swap").symlink_to("real")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for target in ("../outside", "real"):
                (workspace / "next").symlink_to(target)
                (workspace / "next").replace(workspace / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        outcomes = {attempt(workspace) for _ in range(rounds(200))}
        while len(outcomes) < 2:  # the link has pointed both ways
            outcomes.add(attempt(workspace))
    finally:
        done.set()
        thread.join()
    assert outcomes == {"ok", "outside_workspace"}
    assert list(outside.iterdir()) == []


def attempt(workspace: Path) -> str:
    try:
        write(workspace, "swap/file")
    except ToolFailure as failure:
        return failure.code
    return "ok"


def test_a_file_that_appears_after_the_check_is_not_overwritten(workspace: Path) -> None:
    (workspace / "a").write_text("theirs")
    folder = os.open(workspace, os.O_PATH | os.O_DIRECTORY)
    try:
        with pytest.raises(FileExistsError):
            replace_or_create(folder, "a", b"mine", None)
    finally:
        os.close(folder)
    assert (workspace / "a").read_text() == "theirs"
    assert listing(workspace) == ["a"]


def test_two_writers_of_a_new_file_do_not_both_win(workspace: Path) -> None:
    results: list[str] = []

    def one(number: int) -> Callable[[], None]:
        def go() -> None:
            try:
                write(workspace, "a", str(number), create_only=True)
                results.append(str(number))
            except ToolFailure as failure:
                results.append(failure.code)

        return go

    threads = [threading.Thread(target=one(number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("exists") == 7
    assert (workspace / "a").read_text() in results
