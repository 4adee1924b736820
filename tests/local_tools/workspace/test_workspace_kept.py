"""`exec` in a narrowed folder, and what is kept from programs there: `.git`, the router's config,
its records.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.sandbox.plan import FACILITIES, Place, SandboxPlan
from bundle_router.core.values import BinaryForm, BinaryRule, LocalSettings, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.confinement import Root
from bundle_router.local_tools.workspace import confine
from bundle_router.local_tools.workspace.binary import opened
from bundle_router.local_tools.workspace.execution import ExecArguments, execute, program_folder
from bundle_router.local_tools.workspace.process import ProcessExit
from bundle_router.local_tools.workspace.process import run as run_plan
from bundle_router.local_tools.workspace.writing import WriteFileArguments, write_file

WITHOUT_BUBBLEWRAP = FACILITIES[1:]


@pytest.fixture
def run(run_either: Any) -> Any:
    return run_either


@pytest.fixture
def job(workspace: Path) -> Path:
    """The folder `job/part` of the workspace, which steps here are narrowed to, with look-alikes
    beside it.
    """
    for name in ("part", "part-evil", "par"):
        (workspace / "job" / name).mkdir(parents=True)
        (workspace / "job" / name / "inside.txt").write_text(name)
    return workspace / "job" / "part"


def test_a_program_works_in_the_narrowed_folder_only(run: Any, workspace: Path, job: Path) -> None:
    ran = run("print(open('inside.txt').read()); open('new', 'w').write('x')", within="job/part")
    assert "\npart\n" in ran.text
    assert (job / "new").read_text() == "x"
    ran.need("files")
    for path in (
        "../inside",
        "../part-evil/inside.txt",
        str(workspace / "job" / "par" / "inside.txt"),
    ):
        assert run(f"open({path!r}, 'a').write('escaped')", within="job/part").failed
        assert run(f"open({path!r}).read()", within="job/part").failed
    assert (workspace / "job" / "part-evil" / "inside.txt").read_text() == "part-evil"


def test_a_program_in_a_folder_below_may_write_in_all_of_the_workspace(
    run: Any, workspace: Path, job: Path
) -> None:
    assert not run("open('../beside', 'w')", within="job", cwd="part").failed
    assert (workspace / "job" / "beside").exists()


def test_the_folder_a_step_works_in_is_not_hidden_from_it(
    run: Any, workspace: Path, job: Path
) -> None:
    look = "open('inside.txt')"
    assert not run(
        look, within="job/part", hidden=(str(workspace),), reads=(str(workspace),)
    ).failed


def test_a_binary_elsewhere_in_the_workspace_is_not_started(workspace: Path, job: Path) -> None:
    shutil.copy(os.path.realpath("/bin/true"), workspace / "mine")
    rule = BinaryRule(name="mine", path=str(workspace / "mine"), forms=(BinaryForm(),))
    settings = LocalSettings(binaries=(rule,))
    where = ToolContext(str(workspace), settings, timeout_s=60, max_bytes=10_000, within="job/part")
    with pytest.raises(ToolFailure, match="inside the workspace") as refused:
        execute(ExecArguments(binary="mine"), where)
    assert refused.value.code == "unsafe_binary"


@pytest.mark.parametrize("cwd", ["..", "../part-evil", "link", "/"])
def test_no_program_starts_in_a_folder_beside_it(run: Any, job: Path, cwd: str) -> None:
    (job / "link").symlink_to("../par")
    with pytest.raises(ToolFailure) as refused:
        run("", cwd=cwd, within="job/part")
    assert refused.value.code == "outside_workspace"


def test_a_git_folder_that_is_a_link_is_said_not_to_be_kept(run: Any, job: Path) -> None:
    (job / ".git").symlink_to("elsewhere")
    ran = run("print('ran')", within="job/part")
    assert "ran" in ran.text
    assert not ran.held(".git")
    assert "symbolic link" in ran.text or "needs bubblewrap" in ran.text


def test_git_internals_of_the_narrowed_folder_are_read_only(run: Any, job: Path) -> None:
    (job / ".git" / "hooks").mkdir(parents=True)
    ran = run("open('.git/hooks/post-checkout', 'w')", within="job/part")
    ran.need(".git")
    assert ran.failed
    assert not list((job / ".git" / "hooks").iterdir())


def test_a_step_narrowed_to_a_protected_folder_changes_nothing_there(
    run: Any, workspace: Path
) -> None:
    (workspace / "config" / "cases").mkdir(parents=True)
    protected = (str(workspace / "config"),)
    ran = run("open('policy.toml', 'w')", within="config/cases", protected=protected)
    ran.need("config")
    assert ran.failed
    assert not run("open('policy.toml', 'w')", within="config/cases").failed


# --- hidden folders -------------------------------------------------------------------------------

LOOK = """
import os
for path in ("runs/r1/routing.jsonl", "to-runs/r1/routing.jsonl", "job/../runs/r1/routing.jsonl", {absolute!r}):
    try:
        print("read", open(path).read())
    except OSError as error:
        print("refused", type(error).__name__)
print("listed", os.listdir("runs"))
"""


@pytest.fixture
def records(workspace: Path) -> Path:
    (workspace / "job").mkdir()
    (workspace / "runs" / "r1").mkdir(parents=True)
    (workspace / "runs" / "r1" / "routing.jsonl").write_text("a record")
    (workspace / "to-runs").symlink_to("runs")
    return workspace / "runs"


def test_a_program_sees_nothing_of_a_hidden_folder(run: Any, records: Path) -> None:
    look = LOOK.format(absolute=str(records / "r1" / "routing.jsonl"))
    ran = run(look, hidden=(str(records),), protected=(str(records),))
    ran.need("mounts")
    assert ran.text.count("refused FileNotFoundError") == 4
    assert "listed []" in ran.text
    assert "a record" not in ran.text
    assert [row for row in ran.record["isolation"] if row["name"] == "runs"] == [
        {"name": "runs", "held": True, "detail": "hidden"}
    ]
    assert run("open('runs/x', 'w')", hidden=(str(records),)).failed
    assert [path.name for path in records.iterdir()] == ["r1"]


def test_without_bubblewrap_the_result_says_that_it_can_be_read(run: Any, records: Path) -> None:
    look = LOOK.format(absolute=str(records / "r1" / "routing.jsonl"))
    ran = run(
        look, hidden=(str(records),), protected=(str(records),), facilities=WITHOUT_BUBBLEWRAP
    )
    assert "read a record" in ran.text
    assert "NOT: " in ran.text
    assert "runs (can be read: hiding it needs bubblewrap)" in ran.text
    assert [row["name"] for row in ran.record["isolation"]].count("runs") == 1


def test_a_hidden_folder_by_a_link_to_it_is_hidden_too(
    run: Any, workspace: Path, records: Path
) -> None:
    ran = run("print(open('runs/r1/routing.jsonl').read())", hidden=(str(workspace / "to-runs"),))
    ran.need("mounts")
    assert ran.failed
    assert "a record" not in ran.text


def test_a_hidden_folder_outside_the_workspace_is_hidden_where_a_rule_lets_programs_read(
    run: Any, tmp_path: Path
) -> None:
    (tmp_path / "shared" / "runs").mkdir(parents=True)
    (tmp_path / "shared" / "runs" / "record").write_text("a record")
    source = f"print(open({str(tmp_path / 'shared' / 'runs' / 'record')!r}).read())"
    reads = (str(tmp_path / "shared"),)
    assert "a record" in run(source, reads=reads).text
    ran = run(source, reads=reads, hidden=(str(tmp_path / "shared" / "runs"),))
    ran.need("mounts")
    assert ran.failed


@pytest.mark.parametrize("cwd", ["runs", "to-runs/r1"])
def test_no_program_starts_in_a_hidden_folder(run: Any, records: Path, cwd: str) -> None:
    with pytest.raises(ToolFailure) as refused:
        run("", cwd=cwd, hidden=(str(records),))
    assert refused.value.code == "hidden"


@pytest.mark.parametrize("kind", ["hidden", "protected"])
def test_a_kept_folder_is_not_moved_away_with_the_folder_above_it(
    run: Any, workspace: Path, kind: str
) -> None:
    kept = workspace / "tools" / "router" / "kept"
    kept.mkdir(parents=True)
    every = "import os, contextlib\n" + "".join(
        f"with contextlib.suppress(OSError): os.rename({path!r}, {path + '-away'!r});"
        " print('moved')\n"
        for path in ("tools/router/kept", "tools/router", "tools")
    )
    ran = run(every, **{kind: (str(kept),)})
    ran.need("mounts")
    assert "moved" not in ran.text
    assert kept.is_dir()
    assert "moved" in run(every).text  # nothing is kept then
    assert not kept.exists()


# --- what a router that was killed left -----------------------------------------------------------


def test_the_next_exec_deletes_the_folders_of_routers_that_were_killed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, fresh, other = (
        tmp_path / name for name in ("bundle-router-exec-killed", "bundle-router-exec-new", "mine")
    )
    for folder in (killed, fresh, other):
        (folder / "tmp").mkdir(parents=True)
        (folder / "tmp" / "large").write_bytes(b"0" * 1000)
    (tmp_path / "bundle-router-exec-link").symlink_to(other)
    (killed / "tmp").chmod(0o500)
    with program_folder() as in_use:
        for folder in (killed, other, Path(in_use)):
            os.utime(folder, (0, 0))
        with program_folder() as next_one:
            assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
                [
                    Path(in_use).name,
                    Path(next_one).name,
                    fresh.name,
                    "bundle-router-exec-link",
                    "mine",
                ]
            )
            assert Path(in_use, "tmp").is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "bundle-router-exec-link",
        fresh.name,
        "mine",
    ]


def test_a_program_that_makes_folders_too_deep_to_walk_leaves_nothing(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = (
        "import os; os.chdir(os.environ['TMPDIR'])\nfor _ in range(2500): os.mkdir('d');"
        " os.chdir('d')"
    )
    assert not run(source).failed
    assert not list(tmp_path.glob("bundle-router-exec-*"))


# --- what was swapped while a program was being started -------------------------------------------


@contextmanager
def plan_for(folder: Path, source: str, **changes: Any) -> Iterator[SandboxPlan]:
    """A plan as `exec` makes it, for a program in a folder that may be swapped before it is
    started.
    """
    rule = BinaryRule(name="python", path="@python", forms=(BinaryForm(words=("-c",)),))
    with (
        Root(str(folder)) as root,
        opened(rule, workspace=str(folder)) as binary,
        program_folder() as private,
    ):
        yield SandboxPlan(
            argv=(binary.path, "-c", source),
            env=(),
            binary_fd=binary.fd,
            cwd=str(folder),
            cwd_fd=root.fd,
            root_fd=root.fd,
            report_fd=-1,
            write=(private,),
            read=confine.readable_paths(rule, binary),
            devices=confine.DEVICES,
        )._replace(**changes)


def finish(plan: SandboxPlan) -> ProcessExit:
    return run_plan(plan, stdin=None, timeout_s=30, cancelled=lambda: False, max_bytes=10_000)


def swap(folder: Path, outside: Path) -> None:
    folder.rename(folder.with_name("kept"))
    folder.symlink_to(outside)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="programs are only started on Linux"
)


@linux_only
def test_what_is_granted_is_the_folder_that_was_opened_whatever_its_name_leads_to(
    workspace: Path, outside: Path
) -> None:
    source = f"open('here', 'w'); open({str(workspace / 'there')!r}, 'w')"
    with plan_for(workspace, source) as plan:
        swap(workspace, outside)
        finished = finish(plan._replace(cwd=str(workspace.with_name("kept"))))
    if not any(statement.held for statement in finished.statements if statement.name == "files"):
        pytest.skip("no Landlock here")
    assert finished.exit_code == 1
    assert "PermissionError" in finished.stderr.text or "FileNotFoundError" in finished.stderr.text
    assert (workspace.with_name("kept") / "here").exists()
    assert not list(outside.iterdir())


@linux_only
def test_a_program_does_not_start_in_a_folder_that_was_swapped(
    workspace: Path, outside: Path
) -> None:
    with plan_for(workspace, "open('here', 'w')") as plan:
        swap(workspace, outside)
        with pytest.raises(
            ToolFailure, match="replaced while the program was being started"
        ) as refused:
            finish(plan)
    assert refused.value.code == "not_started"
    assert not list(outside.iterdir())


@linux_only
@pytest.mark.parametrize("facilities", [FACILITIES, FACILITIES[1:]], ids=["bubblewrap", "landlock"])
@pytest.mark.parametrize("kind", ["protected", "hidden", "pinned"])
@pytest.mark.parametrize("change", ["swapped", "removed", "replaced"])
def test_a_program_does_not_start_when_what_it_is_kept_from_was_swapped(
    workspace: Path, outside: Path, kind: str, change: str, facilities: tuple[str, ...]
) -> None:
    folder = workspace / "runs"
    folder.mkdir()
    info = folder.lstat()
    places = {kind: (Place(str(folder), info.st_dev, info.st_ino),)}
    with plan_for(workspace, "open('started', 'w')", facilities=facilities, **places) as plan:
        finished = finish(plan)
        if not any(
            statement.held for statement in finished.statements if statement.name == "mounts"
        ):
            pytest.skip("without bubblewrap")
        (workspace / "started").unlink()
        if change == "swapped":
            swap(folder, outside)
        else:
            folder.rename(folder.with_name("kept"))
        if change == "replaced":
            folder.mkdir()
        with pytest.raises(
            ToolFailure, match="was replaced while the program was being started"
        ) as refused:
            finish(plan)
    assert refused.value.code == "not_started"
    assert not (workspace / "started").exists()
    assert os.access(outside, os.W_OK)


# --- writing a file -------------------------------------------------------------------------------


def write(workspace: Path, path: str, **context: Any) -> str:
    """The code of the refusal, empty if it was written."""
    try:
        where = ToolContext(
            str(workspace), LocalSettings(), timeout_s=60, max_bytes=10_000, **context
        )
        write_file(WriteFileArguments(path=path, content="x"), where)
    except ToolFailure as failure:
        return failure.code
    return ""


def test_a_protected_folder_is_not_written_by_whatever_name_it_was_named(workspace: Path) -> None:
    (workspace / "config" / "cases").mkdir(parents=True)
    (workspace / "config" / "policy.toml").write_text("before")
    (workspace / "to-config").symlink_to("config")
    for named in (
        "config",
        "to-config",
        "../workspace/config",
        "config/policy.toml",
        "to-config/policy.toml",
    ):
        protected = (f"{workspace}/{named}",)
        for path in ("config/policy.toml", "to-config/policy.toml"):
            assert write(workspace, path, protected=protected) == "protected"
    for path in ("config/cases/a", "to-config/new/a", "config/cases/../a"):
        assert write(workspace, path, protected=(f"{workspace}/to-config",)) == "protected"
    assert (workspace / "config" / "policy.toml").read_text() == "before"
    assert write(workspace, "config-mine/policy.toml", protected=(f"{workspace}/to-config",)) == ""


@pytest.mark.parametrize("within", [".git", "sub/.git/hooks"])
def test_a_step_narrowed_into_git_internals_writes_nothing(workspace: Path, within: str) -> None:
    (workspace / within).mkdir(parents=True)
    assert write(workspace, "pre-commit", within=within) == "git_internals"


def test_a_protected_place_that_does_not_exist_yet_is_not_made(workspace: Path) -> None:
    protected = (f"{workspace}/config",)
    assert write(workspace, "config", protected=protected) == "protected"
    assert write(workspace, "config/policy.toml", protected=protected) == "protected"
    assert not list(workspace.iterdir())


@pytest.mark.parametrize(
    "source",
    [
        (
            "import os; os.makedirs('bundles/pins'); open('bundles/pins/x.lock',"
            " 'w').write('approved')"
        ),
        "import os; os.makedirs('elsewhere/pins'); os.symlink('elsewhere', 'bundles')",
        (
            "import os; os.makedirs('bundles'); os.makedirs('elsewhere');"
            " os.symlink('../elsewhere', 'bundles/pins')"
        ),
        "open('bundles', 'w'); import os; os.unlink('bundles'); os.makedirs('bundles/pins/deep')",
    ],
)
def test_a_protected_place_that_a_program_makes_is_moved_aside(
    run: Any, workspace: Path, source: str
) -> None:
    ran = run(source, protected=(str(workspace / "bundles" / "pins"),))
    assert not ran.failed
    assert "was moved to bundles" in ran.text
    assert not (workspace / "bundles" / "pins").exists()
    assert [path for path in workspace.rglob("*") if ".not-taken-" in path.name], "nothing is lost"


def test_what_lies_beside_a_protected_place_is_the_programs_to_make(
    run: Any, workspace: Path
) -> None:
    ran = run(
        "import os; os.makedirs('bundles/own')", protected=(str(workspace / "bundles" / "pins"),)
    )
    assert "moved" not in ran.text
    assert (workspace / "bundles" / "own").is_dir()
