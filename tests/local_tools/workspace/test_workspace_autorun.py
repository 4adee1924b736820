"""What is run outside the sandbox later, by the router's own process and by other programs, and so
is not written.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import types
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.sandbox.plan import FACILITIES
from bundle_router.core.values import LocalSettings, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.hiding import CREDENTIALS
from bundle_router.local_tools.workspace import autorun
from bundle_router.local_tools.workspace.router_code import (
    RouterCode,
    base_interpreter,
    router_code,
)
from bundle_router.local_tools.workspace.writing import WriteFileArguments, write_file

REPOSITORY = Path(__file__).parents[3]
WITHOUT_BUBBLEWRAP = FACILITIES[1:]


def refusal(workspace: Path, path: str, content: str = "planted") -> str:
    """The code of the refusal; empty if the file was written."""
    context = ToolContext(str(workspace), LocalSettings(), timeout_s=60, max_bytes=10_000)
    try:
        write_file(WriteFileArguments(path=path, content=content), context)
    except ToolFailure as failure:
        return failure.code
    return ""


# --- the layout of the README: the router's environment in the workspace --------------------------

ROUTER = """
import sys, json
sys.path += json.loads(sys.argv[2])
from pathlib import Path
from bundle_router.core.values import BinaryForm, BinaryRule, LocalSettings, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace.execution import ExecArguments, execute
from bundle_router.local_tools.workspace.writing import WriteFileArguments, write_file

python = BinaryRule(name="python", path="@python", forms=(BinaryForm(words=("-",)),))
context = ToolContext(sys.argv[1], LocalSettings(binaries=(python,)), timeout_s=60, max_bytes=100_000)

def write(path, content="planted"):
    try:
        write_file(WriteFileArguments(path=path, content=content), context)
    except ToolFailure as failure:
        return failure.code

def run(source, **more):
    try:
        return execute(ExecArguments(binary="python", args=("-",), stdin=source), context, **more).blocks[0].text
    except ToolFailure as failure:
        return f"{failure.code}: {failure.message}"

"""


@pytest.fixture(scope="module")
def made_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with the environment `.venv` in it, whose Python has this package by an editable
    install.
    """
    workspace = tmp_path_factory.mktemp("clone")
    venv.create(workspace / ".venv", symlinks=True)
    return workspace


def as_router(workspace: Path, source: str, python: str = ".venv/bin/python") -> str:
    """What a router prints that runs on the workspace's own Python."""
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    roots = [str(REPOSITORY / "router"), f"{sys.prefix}/{site}"]
    done = subprocess.run(
        [str(workspace / python), "-P", "-c", ROUTER + source, str(workspace), json.dumps(roots)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("facilities", [FACILITIES, FACILITIES[1:]], ids=["bubblewrap", "landlock"])
def test_no_code_planted_in_the_routers_environment_runs_outside(
    made_environment: Path, tmp_path: Path, facilities: tuple[str, ...]
) -> None:
    canary = tmp_path / "escaped"
    stdlib = (
        made_environment
        / "evil"
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
    )
    for planted in ("encodings/__init__.py", "os.py"):
        (stdlib / planted).parent.mkdir(parents=True, exist_ok=True)
        (stdlib / planted).write_text(f"import posix; posix.open({str(canary)!r}, 65)\n")
    said = as_router(
        made_environment,
        'print(write(".venv/pyvenv.cfg", "home = evil/bin\\n"), write(".venv/new/x"),'
        ' write("evil/fine"))\n'
        f"config = Path({str(made_environment / '.venv' / 'pyvenv.cfg')!r}); before ="
        " config.read_text()\n"
        f'config.write_text("home = {made_environment}/evil/bin\\n")\n'
        f'print(run("print(6 * 7)", facilities={facilities!r}))\n'
        "config.write_text(before)\n",
    )
    assert said.startswith("autorun autorun None\n")
    assert not canary.exists(), "the launcher ran on an interpreter that obeys pyvenv.cfg"


def test_a_program_sees_the_routers_environment_read_only(made_environment: Path) -> None:
    attacks = (
        "open('.venv/pyvenv.cfg', 'a')",
        "open('.venv/x.pth', 'w')",
        "__import__('os').rename('.venv', 'away')",
        "__import__('os').link('.venv/pyvenv.cfg', 'mine')",
        "__import__('os').unlink('.venv/bin/python')",
    )
    said = as_router(
        made_environment, "".join(f"print(run({attack!r}).splitlines()[0])\n" for attack in attacks)
    )
    assert [line.split(" after")[0] for line in said.splitlines()] == ["exit 1"] * len(attacks), (
        said
    )
    assert not (made_environment / "mine").exists()


def test_where_it_cant_be_kept_read_only_no_program_is_started(made_environment: Path) -> None:
    said = as_router(made_environment, f"print(run('print(1)', facilities={WITHOUT_BUBBLEWRAP!r}))")
    assert said.startswith("not_started: ")
    assert ".venv, which can't be kept read-only here" in said
    assert "keep the router's environment outside the workspace" in said


def test_the_launchers_code_is_what_it_was_when_the_router_started(tmp_path: Path) -> None:
    """A copy of the package on the import path of a router, in its workspace: an editable
    install.
    """
    workspace = tmp_path / "workspace"
    (workspace / "src").mkdir(parents=True)
    copy = workspace / "src" / "bundle_router"
    subprocess.run(
        ["cp", "-r", str(REPOSITORY / "router" / "bundle_router"), str(copy)], check=True
    )
    source = ROUTER.replace(
        "sys.path += ", f"sys.path.insert(0, {str(workspace / 'src')!r}); sys.path += "
    )
    site = [entry for entry in sys.path if entry.endswith("site-packages")]
    code = (
        'print(write("src/bundle_router/adapters/sandbox/linux.py"), write("src/sitecustomize.py"),'
        f' write("lib/a.py"))\nlauncher = Path({str(copy)!r},'
        ' "adapters/sandbox/launcher.py")\nlauncher.write_text("raise'
        " SystemExit(99)\")\nprint(run(\"open('src/new.py', 'w')\"))\nprint(run(\"print(6 *"
        ' 7)"))\n'
    )
    done = subprocess.run(
        [base_interpreter(), "-P", "-c", source + code, str(workspace), json.dumps(site)],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert done.stdout.startswith("protected autorun None\n")
    assert "Read-only file system" in done.stdout
    assert "\n42\n" in done.stdout


def test_who_holds_the_launchers_code_can_not_change_it(made_environment: Path) -> None:
    said = as_router(
        made_environment,
        "import os\nrun(\"print(6 * 7)\")\nfor name in os.listdir('/proc/self/fd'):\n    if"
        " os.path.exists(f'/proc/self/fd/{name}') and 'memfd:launcher' in"
        " os.readlink(f'/proc/self/fd/{name}'):\n        for change in (lambda fd: os.pwrite(fd,"
        " b'x', 0), lambda fd: os.ftruncate(fd, 0)):\n            try:\n               "
        " print(change(int(name)))\n            except PermissionError:\n               "
        " print('sealed')\n",
    )
    assert said == "sealed\nsealed\n"


# --- layouts --------------------------------------------------------------------------------------


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RouterCode]:
    """What is the router's code in a folder, if Python says these things of itself."""

    def found(top: Path, **said: Any) -> RouterCode:
        outside = "/nowhere/python"
        names = ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix")
        for name in names:
            monkeypatch.setattr(sys, name, str(said.get(name, said.get("prefix", outside))))
        monkeypatch.setattr(sys, "executable", str(said.get("executable", f"{outside}/bin/python")))
        monkeypatch.setattr(sys, "_base_executable", str(said.get("base", f"{outside}/bin/python")))
        monkeypatch.setattr(sys, "path", [str(entry) for entry in said.get("path", ())])
        return router_code(str(top))

    return found


def inside(top: Path, code: RouterCode) -> list[str]:
    return [os.path.relpath(path, top) for path in code.places]


def test_nothing_outside_the_workspace_counts(tmp_path: Path, layout: Any) -> None:
    assert layout(tmp_path / "ws") == RouterCode((), ())
    assert layout(tmp_path / "usr" / "src" / "app", prefix=tmp_path / "usr") == RouterCode((), ())


@pytest.mark.parametrize("name", [".venv", "env", ".conda", "tools/python", ".pyenv/versions/3.12"])
def test_an_environment_in_the_workspace_is_protected_as_a_whole(
    tmp_path: Path, layout: Any, name: str
) -> None:
    code = layout(tmp_path, prefix=tmp_path / name, executable=tmp_path / name / "bin" / "python")
    assert name in inside(tmp_path, code)
    assert all(place == name or place.endswith("pyvenv.cfg") for place in inside(tmp_path, code))


def test_the_base_interpreter_of_uv_or_pyenv_in_the_workspace_is_protected_too(
    tmp_path: Path, layout: Any
) -> None:
    base = tmp_path / ".python" / "cpython-3.12"
    code = layout(
        tmp_path, prefix=tmp_path / ".venv", base_prefix=base, base=base / "bin" / "python3.12"
    )
    assert {".venv", ".python/cpython-3.12"} <= set(inside(tmp_path, code))


def test_of_a_workspace_that_is_itself_an_environment_its_code_is_protected(
    tmp_path: Path, layout: Any
) -> None:
    code = layout(tmp_path, prefix=tmp_path, executable=tmp_path / "bin" / "python")
    assert {"bin", "lib", "conda-meta", "pyvenv.cfg"} <= set(inside(tmp_path, code))
    assert "src" not in inside(tmp_path, code)


def test_import_roots_count_those_that_do_not_exist_yet_too(tmp_path: Path, layout: Any) -> None:
    code = layout(
        tmp_path, path=[tmp_path / "src", tmp_path / "lib" / "python312.zip", "/usr/lib/python3"]
    )
    assert inside(tmp_path, code) == ["lib/python312.zip", "src"]


def test_packages_that_a_link_or_a_finder_leads_to_count_too(
    tmp_path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flit links a package into site-packages; hatch and PDM may install a finder of their own."""
    workspace, site = tmp_path / "ws", tmp_path / "site-packages"
    for folder in (site, workspace / "src" / "linked", workspace / "lib" / "loaded"):
        folder.mkdir(parents=True)
    (site / "linked").symlink_to(workspace / "src" / "linked")
    module = types.ModuleType("loaded")
    module.__path__ = [str(workspace / "lib" / "loaded")]
    monkeypatch.setitem(sys.modules, "loaded", module)
    code = layout(workspace, path=[site])
    assert inside(workspace, code) == ["lib/loaded", "src/linked"]


def test_a_workspace_on_the_import_path_is_a_place_itself(
    tmp_path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal(
        tmp_path, "before.py"
    )  # what is imported late is imported now: the path is gone in a moment
    monkeypatch.chdir(tmp_path)
    assert inside(tmp_path, layout(tmp_path, path=[""])) == ["."]
    assert refusal(tmp_path, "litellm.py") == "protected"


def test_the_folder_of_a_link_to_the_interpreter_is_kept_with_it(
    tmp_path: Path, layout: Any
) -> None:
    real = tmp_path / "elsewhere" / "venv"
    (real / "bin").mkdir(parents=True)
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / ".venv").symlink_to(real)
    code = layout(
        workspace, prefix=workspace / ".venv", executable=workspace / ".venv" / "bin" / "python"
    )
    assert code.holders == (str(workspace),)
    (workspace / "own").mkdir()
    (workspace / "own" / "link").symlink_to("../other")
    (workspace / "other" / "bin").mkdir(parents=True)
    code = layout(workspace, prefix=workspace / "own" / "link")
    assert code.holders == (str(workspace / "own"),)
    assert "other" in inside(workspace, code)


def test_a_link_to_the_interpreter_is_not_replaced_by_a_program(
    run: Any, workspace: Path, layout: Any
) -> None:
    python, base, base_prefix = sys.executable, base_interpreter(), sys.base_prefix
    prefix = sys.prefix
    (workspace / ".venv").symlink_to(prefix)
    site_packages = [entry for entry in sys.path if entry and not entry.startswith(str(workspace))]
    layout(
        workspace,
        prefix=base_prefix,
        executable=workspace / ".venv" / Path(python).relative_to(prefix),
        base=base,
    )
    sys.path[:] = site_packages
    ran = run("import os; os.unlink('.venv')", reads=(prefix, base_prefix))
    ran.need("mounts")
    assert "Read-only file system: '.venv'" in ran.text
    assert (workspace / ".venv").is_symlink()


# --- what other programs run ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in autorun.NAMES if name != "HEAD"])
def test_write_file_writes_nothing_that_programs_outside_run_unasked(
    workspace: Path, name: str
) -> None:
    expected = {"git_internals"} if name == ".git" else {"autorun"}
    assert {
        refusal(workspace, name),
        refusal(workspace, f"{name}/x"),
        refusal(workspace, f"deep/{name}"),
    } == expected
    assert refusal(workspace, name.upper() + "/x") in expected
    assert not list(workspace.rglob("*x"))


def test_by_another_name_they_are_not_written_either(workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / "settings").symlink_to(".vscode")
    (workspace / "my-env").mkdir()
    (workspace / "my-env" / "pyvenv.cfg").write_text("home = /usr/bin")
    for path in (
        *(
            "settings/tasks.json",
            "my-env/lib/x.pth",
            "other/pyvenv.cfg",
            "a.code-workspace",
            "mise.local.toml",
        ),
        *(
            ".mise.production.local.toml",
            ".rprofile",
            "deep/.RDATA",
            "lefthook-local.yaml",
            ".lefthook.toml",
        ),
        *(".vs\u00adcode/tasks.json", "deep/.local/share/systemd/user/x.service"),
    ):
        assert refusal(workspace, path) == "autorun", path


def test_what_git_runs_by_link_or_config_is_protected_like_its_hooks(
    run: Any, workspace: Path
) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / ".git" / "hooks" / "pre-commit").symlink_to("../../scripts/check")
    (workspace / ".git" / "config").write_text(
        "[core]\n\thooksPath = tools/hooks\n[include]\n\tpath = ../shared.cfg\n"
        '[filter "x"]\n\tclean = sh ./scripts/clean.sh %f\n'
    )
    (workspace / "scripts").mkdir()
    for name in ("check", "clean.sh", "other"):
        (workspace / "scripts" / name).touch()
    paths = ("scripts/check", "scripts/clean.sh", "tools/hooks/pre-commit", "shared.cfg")
    assert [refusal(workspace, path) for path in (*paths, "scripts/other", "sh")] == [
        "protected"
    ] * 4 + ["", ""]
    attack = "import os\nos.makedirs('tools/hooks')\nfor path in {}: open(path, 'w')"
    ran = run(attack.format(paths[2:]))
    assert ran.text.count("was moved to") == 2
    for path in paths[:2]:
        ran = run(f"open({path!r}, 'w')")
        ran.need("mounts")
        assert ran.failed


FILES = {
    "config": '[core]\nrepositoryformatversion = 0\nbare = false\nworktree = "."\nfsmonitor = "touch ran; false"\n',
    "refs/heads/x": "", "objects/x": "", "HEAD": "ref: refs/heads/main\n",
}  # fmt: skip


@pytest.mark.parametrize("order", list(itertools.permutations(FILES)))
def test_a_repository_without_a_git_folder_is_not_made_by_write_file(
    workspace: Path, order: tuple[str, ...]
) -> None:
    """git takes such a folder for a repository, and a prompt that asks it for the branch runs what
    its config names.
    """
    refused = [name for name in order if refusal(workspace, f"sub/{name}", FILES[name])]
    subprocess.run(["git", "-C", workspace / "sub", "status"], check=False, capture_output=True)
    assert not list(workspace.rglob("ran"))
    assert "HEAD" in refused
    assert refusal(workspace, "src/head/x.py") == ""


ORDINARY = (
    (
        ("Makefile", "justfile", "Taskfile.yml", "CMakeLists.txt"),
        "build tools, when somebody builds",
    ),
    (
        ("package.json", ".npmrc", ".yarnrc.yml", ".pnpmfile.cjs", "node_modules"),
        "npm, yarn, pnpm, when asked",
    ),
    (
        ("pyproject.toml", "setup.py", "conftest.py", "noxfile.py", "tox.ini"),
        "build and test tools, when asked",
    ),
    (
        ("Cargo.toml", "build.rs", ".cargo/config.toml"),
        "cargo, when asked (and rust-analyzer when it is opened)",
    ),
    (
        ("Dockerfile", "docker-compose.yml", ".github/workflows", ".gitlab-ci.yml"),
        "containers and CI, after a push",
    ),
    (
        ("build.gradle", "pom.xml", "Package.swift", "mix.exs", "tsconfig.json"),
        "build tools, and editors' language servers",
    ),
    (
        ("flake.nix", "shell.nix", "devenv.nix", "devbox.json"),
        "nix, when asked, or where an .envrc says so",
    ),
    (
        ("eslint.config.js", ".prettierrc.js", ".pylintrc", ".rubocop.yml"),
        "linters, when asked, and editors'",
    ),
    (
        ("CLAUDE.md", "AGENTS.md", ".env", ".tool-versions", ".python-version", ".nvmrc"),
        "read as text or values",
    ),
)
"""Paths that agents may change, and the programs that run them."""


@pytest.mark.parametrize("name", [name for names, _ in ORDINARY for name in names])
def test_ordinary_content_is_written(workspace: Path, name: str) -> None:
    assert refusal(workspace, name) == ""


def test_a_program_can_neither_change_nor_make_them(run: Any, workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / "env" / "conda-meta").mkdir(parents=True)
    (workspace / ".envrc").write_text("export A=1")
    (workspace / "service" / "own").mkdir(parents=True)
    (workspace / "service" / "own" / "pyvenv.cfg").touch()
    attacks = ("open('.vscode/tasks.json', 'w')", "open('.envrc', 'a')", "open('env/x', 'w')")
    for attack in (*attacks, "open('service/own/x.pth', 'w')"):
        ran = run(attack)
        ran.need("mounts")
        assert ran.failed, attack
    ran = run(
        "import os; os.makedirs('.claude'); open('.claude/settings.json', 'w'); open('Makefile',"
        " 'w')"
    )
    assert "was moved to .claude.not-taken-" in ran.text
    assert not (workspace / ".claude").exists()
    assert (workspace / "Makefile").exists()


def test_a_program_keeps_nothing_there_by_taking_the_right_to_move_it(
    run: Any, workspace: Path
) -> None:
    ran = run(
        "import os; open('.envrc', 'w'); os.makedirs('.config/mise'); os.chmod('.config', 0);"
        " os.chmod('.', 0o555)"
    )
    assert ran.text.count("was moved to") == 2
    assert not (workspace / ".envrc").exists()
    assert not (workspace / ".config" / "mise").exists()


def test_two_programs_at_once_leave_nothing_there_either(
    run: Any, workspace: Path, eventually: Any
) -> None:
    """The second finds what the first made, which is moved away when the first ends, and makes it
    again.
    """
    wait = "import os, time\nwhile {}: time.sleep(0.01)\n"
    first = "import os; os.mkdir('.vscode'); open('made', 'w')\n" + wait.format(
        "not os.path.exists('second')"
    )
    second = (
        "open('second', 'w')\n" + wait.format("os.path.exists('.vscode')") + "os.mkdir('.vscode')"
    )
    with concurrent.futures.ThreadPoolExecutor() as pool:
        one = pool.submit(run, first)
        assert eventually((workspace / "made").exists)
        other = pool.submit(run, second)
        assert "was moved to" in one.result().text
        assert "was moved to" in other.result().text
    assert not (workspace / ".vscode").exists()


def test_where_somebody_replaces_a_protected_file_meanwhile_the_result_says_so(
    run: Any, workspace: Path, eventually: Any
) -> None:
    (workspace / ".envrc").write_text("before")
    source = (
        "import os, time\nopen('go', 'w')\nwhile not os.path.exists('replaced'): time.sleep(0.01)\n"
    )
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ran = pool.submit(run, source)
        assert eventually((workspace / "go").exists)
        (workspace / "new").write_text("after")
        (workspace / "new").replace(workspace / ".envrc")
        (workspace / "replaced").touch()
        assert (
            ".envrc (was replaced from outside meanwhile: the new one"
            in ran.result().text.partition("NOT: ")[2]
        )


def test_no_program_is_started_where_it_could_make_what_the_router_imports(
    run: Any, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(workspace / "src"))
    with pytest.raises(ToolFailure, match=r"imports from .*src, which a program could make"):
        run("import os; os.mkdir('src')")
    (workspace / "src").mkdir()
    assert run("open('src/x.py', 'w')").failed


def test_the_tables_on_the_pages_about_security_are_these() -> None:
    pages = REPOSITORY / "router" / "docs" / "security"
    text = (pages / "protected-files.md").read_text("utf-8")
    for rows in (autorun.PROTECTED, ORDINARY):
        for names, who in rows:
            assert f"| {', '.join(f'`{name}`' for name in names)} | {who} |" in text
    text = (pages / "credentials.md").read_text("utf-8")
    assert all(f"| `{name}` | {who} |" in text for name, who in CREDENTIALS)


def test_where_the_kernel_has_no_path_descriptors_a_file_is_written_all_the_same(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS: neither os.O_PATH nor /proc."""
    code = (
        "import os, sys; del os.O_PATH\nimport pathlib; readlink = pathlib.Path.readlink\ndef"
        " none(self):\n    if str(self).startswith('/proc'): raise FileNotFoundError(2, 'no"
        " /proc')\n    return readlink(self)\npathlib.Path.readlink = none\nfrom"
        " bundle_router.core.values import LocalSettings, ToolContext\nfrom bundle_router.errors"
        " import ToolFailure\nfrom bundle_router.local_tools.workspace.writing import WriteFileArguments,"
        " write_file\ncontext = ToolContext(sys.argv[1], LocalSettings(), timeout_s=60,"
        " max_bytes=9999, protected=(sys.argv[2],))\nfor path in ('a/b/c.py', 'a/b/c.py',"
        " 'config/policy.toml', 'link/hooks/x'):\n    try:"
        " print(write_file(WriteFileArguments(path=path, content='x'),"
        " context).blocks[1].value['done'])\n    except ToolFailure as failure:"
        " print(failure.code)\n"
    )
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / "link").symlink_to(".git")
    (workspace / "config").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, str(workspace), str(workspace / "config")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["created", "replaced", "protected", "git_internals"], done.stderr
