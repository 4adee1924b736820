"""Files of the workspace that have another name outside it, as pnpm, uv, conda and `git clone
--local` make them: a program changes nothing outside through them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.sandbox.plan import FACILITIES
from bundle_router.core.values import LocalSettings, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace.linked import MAX_PLACES
from bundle_router.local_tools.workspace.writing import WriteFileArguments, write_file

WITHOUT_BUBBLEWRAP = FACILITIES[1:]
NAME = "node_modules/dep/index.js"
CHANGES = {
    "append": "open(p, 'a').write('EVIL')",
    "truncate": "open(p, 'w').close()",
    "truncate by name": "os.truncate(p, 0)",
    "through a link": "os.symlink(p, 'link'); open('link', 'a').write('EVIL')",
    "by a descriptor's path": "d = os.open(p, os.O_RDONLY)\n"
    "open(f'/proc/self/fd/{d}', 'a').write('EVIL')",
    "through memory": "import mmap\nmmap.mmap(os.open(p, os.O_RDWR), 0)[0:4] = b'EVIL'",
    "mode": "os.chmod(p, 0o777)",
    "mode by a descriptor": "os.fchmod(os.open(p, os.O_RDONLY), 0o777)",
    "times": "os.utime(p, (1, 1))",
    "owner": "os.chown(p, os.getuid(), os.getgid())",
    "an attribute": "os.setxattr(p, 'user.x', b'EVIL')",
    "another link": "os.link(p, 'other'); open('other', 'a').write('EVIL')",
    "another link by a descriptor": "d = os.open(p, os.O_RDONLY)\n"
    "os.link(f'/proc/self/fd/{d}', 'other', follow_symlinks=True)\nopen('other', 'a').write('EVIL')",
    "in a folder that was moved": "os.rename('node_modules', 'moved')\n"
    "open('moved/dep/index.js', 'a').write('EVIL')",
    "another name of it": "open('second.js', 'a').write('EVIL')",
}


@pytest.fixture
def store(workspace: Path) -> Path:
    """A file outside that has two names in the workspace."""
    file = workspace.parent / "store" / "abc.js"
    file.parent.mkdir()
    file.write_text("module.exports = 1\n")
    file.chmod(0o644)
    os.utime(file, (1_000_000_000, 1_000_000_000))
    (workspace / NAME).parent.mkdir(parents=True)
    (workspace / NAME).hardlink_to(file)
    (workspace / "second.js").hardlink_to(file)
    return file


def state(file: Path) -> tuple[str, int, float, list[str]]:
    info = file.stat()
    return file.read_text(), info.st_mode & 0o7777, info.st_mtime, os.listxattr(file)


@pytest.mark.parametrize("how", CHANGES)
def test_a_program_changes_no_file_outside_through_another_name_of_it(
    run: Any, facilities: Any, store: Path, how: str
) -> None:
    before = state(store)
    source = f"import os\np = {NAME!r}\nprint(os.stat(p).st_nlink)\n{CHANGES[how]}"
    ran = run(source, facilities=facilities)
    assert ran.text.count("\n3\n") == 1
    assert ran.held("hard links")
    assert state(store) == before


@pytest.mark.usefixtures("facilities")
def test_what_was_kept_read_only_is_said(run: Any, store: Path) -> None:
    ran = run("print(1)")
    ran.need("mounts")
    (said,) = [row["detail"] for row in ran.record["isolation"] if row["name"] == "hard links"]
    assert said == f"2 files ({NAME}) have other names outside the workspace: read-only"


def test_without_bubblewrap_a_program_is_not_started_unless_policy_says_so(
    run: Any, store: Path
) -> None:
    program = f"open({NAME!r}, 'a').write('x')"
    with pytest.raises(ToolFailure, match=r'2 files .* outside .*hard_links = "allow"') as caught:
        run(program, facilities=WITHOUT_BUBBLEWRAP)
    assert caught.value.code == "not_started"
    ran = run(program, facilities=WITHOUT_BUBBLEWRAP, hard_links="allow")
    assert not ran.held("hard links")
    assert f"hard links (2 files ({NAME}) have other names outside" in ran.text


def test_a_file_whose_names_are_all_in_the_workspace_can_be_changed(
    run: Any, workspace: Path
) -> None:
    (workspace / "a").write_text("x")
    (workspace / "b").hardlink_to(workspace / "a")
    assert not run("open('a', 'a').write('y')").failed
    assert (workspace / "b").read_text() == "xy"


@pytest.mark.usefixtures("facilities")
def test_a_name_of_a_protected_file_is_read_only_too(run: Any, workspace: Path) -> None:
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("true\n")
    (workspace / "hook").hardlink_to(hook)
    ran = run("open('hook', 'a').write('EVIL')")
    ran.need("mounts")
    assert "Read-only file system" in ran.text
    assert hook.read_text() == "true\n"


@pytest.mark.usefixtures("facilities")
def test_a_step_in_one_folder_changes_no_file_of_another_folder(run: Any, workspace: Path) -> None:
    (workspace / "one").mkdir()
    (workspace / "two").write_text("x")
    (workspace / "one" / "name").hardlink_to(workspace / "two")
    ran = run("open('name', 'a').write('EVIL')", within="one")
    ran.need("mounts")
    assert (workspace / "two").read_text() == "x"


def linked_files(workspace: Path, folder: str, number: int) -> list[Path]:
    store = workspace.parent / "store"
    store.mkdir(exist_ok=True)
    (workspace / folder).mkdir(parents=True)
    files = [store / f"{folder.replace('/', '-')}-{name}" for name in range(number)]
    for name, file in enumerate(files):
        file.write_text("x")
        (workspace / folder / str(name)).hardlink_to(file)
    return files


@pytest.mark.usefixtures("facilities")
def test_a_folder_of_nothing_else_is_read_only_as_one_place(run: Any, workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src" / "own.py").touch()
    files = linked_files(workspace, "node_modules/a/lib", MAX_PLACES)
    files += linked_files(workspace, "node_modules/b", 3)
    program = (
        "import os\nopen('src/own.py', 'a').write('y')\nopen('new', 'w').close()\n"
        "for folder, _, names in os.walk('node_modules'):\n    for name in names:\n        try:\n"
        "            open(f'{folder}/{name}', 'a').write('EVIL')\n            print('wrote')\n"
        "        except OSError:\n            pass\n"
    )
    ran = run(program)
    ran.need("mounts")
    assert not ran.failed
    assert ran.held("hard links")
    assert {file.read_text() for file in files} == {"x"}
    assert (workspace / "src" / "own.py").read_text() == "y"


@pytest.mark.usefixtures("facilities")
def test_more_than_can_be_protected_are_refused_unless_policy_says_so(
    run: Any, workspace: Path
) -> None:
    files = linked_files(workspace, "mixed", MAX_PLACES + 1)
    (workspace / "mixed" / "own").touch()
    program = "import os\nfor name in os.listdir('mixed'):\n    try:\n        open(f'mixed/{name}',"
    program += " 'a').write('y')\n    except OSError:\n        pass"
    with pytest.raises(ToolFailure, match=rf"{MAX_PLACES + 1} files .* too many") as caught:
        run(program)
    assert caught.value.code == "hard_links"
    ran = run(program, hard_links="allow")
    assert f"NOT: hard links ({MAX_PLACES + 1} files" in ran.text
    if ran.held("mounts"):
        assert sum(file.read_text() != "x" for file in files) == 1


@pytest.mark.usefixtures("facilities")
def test_objects_of_a_local_clone_are_read_only_where_git_may_be_changed(
    run: Any, workspace: Path
) -> None:
    source = workspace.parent / "source"
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (
        ["init", "-q", str(source)],
        ["-C", str(source), "commit", "-q", "--allow-empty", "-m", "x"],
        ["clone", "-q", "--local", str(source), str(workspace / "clone")],
    ):
        subprocess.run(["git", *who, *arguments], check=True)
    objects = [path for path in (source / ".git" / "objects").rglob("*") if path.is_file()]
    before = [(path.read_bytes(), path.stat().st_mode) for path in objects]
    program = (
        "import os, pathlib\nfor path in pathlib.Path('clone/.git/objects').rglob('*'):\n"
        "    if path.is_file():\n        try:\n            path.chmod(0o666)\n"
        "            path.write_text('EVIL')\n        except OSError:\n            pass\n"
        "    elif path.is_dir():\n        (path / 'new').touch()\n"
    )
    ran = run(program, protect_git=False)
    ran.need("mounts")
    assert not ran.failed
    assert [(path.read_bytes(), path.stat().st_mode) for path in objects] == before


LINKS = {
    "a file of the system": "os.link('/usr/bin/env', 'made')",
    "a file of the router's interpreter": "os.link(sys.executable, 'made')",
    "a file in its own temporary folder": "open('/tmp/x', 'w').close()\nos.link('/tmp/x', 'made')",
    "its own binary": "os.link('/proc/self/exe', 'made', follow_symlinks=True)",
}


@pytest.mark.parametrize("facilities", [FACILITIES, WITHOUT_BUBBLEWRAP])
@pytest.mark.parametrize("what", LINKS)
def test_a_program_makes_no_link_to_a_file_outside(
    run: Any, workspace: Path, what: str, facilities: tuple[str, ...]
) -> None:
    ran = run(f"import os, sys\n{LINKS[what]}", facilities=facilities)
    ran.need("files")
    assert ran.failed
    assert not (workspace / "made").exists()


def test_write_file_gives_a_file_with_other_names_a_content_of_its_own(
    workspace: Path, store: Path
) -> None:
    before = state(store)
    context = ToolContext(str(workspace), LocalSettings(), timeout_s=60, max_bytes=9_999)
    write_file(WriteFileArguments(path=NAME, content="mine\n"), context)
    assert (workspace / NAME).read_text() == "mine\n"
    assert state(store) == before
