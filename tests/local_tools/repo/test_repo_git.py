"""`repo.git_log` and `repo.git_diff` on real repositories, most of them hostile.

Every setting of a repository that names a program is pointed at a script that leaves a canary
behind. A canary would also betray a program we did not think of, since all of them are the same
script.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.processes.starting import Command, find_binary
from bundle_router.core.values import LocalSettings, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo import TOOLS
from bundle_router.local_tools.repo.children import ConfinedCommand, confinement_fault, output_of
from bundle_router.local_tools.repo.confinement import Root
from bundle_router.local_tools.repo.gitrefs import collect_refs, is_ref_name, is_revision
from bundle_router.local_tools.repo.history import git_diff, git_log
from pydantic import ValidationError

from tests.lesser_kernel import LACKING, run_without

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
TOOL = {tool.name: tool for tool in TOOLS}
UNCONFINED: dict[str, Callable[..., ToolOutput]] = {"git_log": git_log, "git_diff": git_diff}
CONFINED = not confinement_fault(shutil.which("git") or "")
ENV = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05+00:00",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05+00:00",
}


def git(folder: Path, *arguments: str, **env: str) -> str:
    options = ("-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", *options, *arguments],
        cwd=folder,
        env=ENV | env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: Path, message: str, files: dict[str, str], **env: str) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message, **env)
    return git(folder, "rev-parse", "HEAD")


def call(
    name: str,
    workspace: Path,
    *,
    hard_links: Any = "allow",
    max_bytes: int = 1 << 20,
    confined: bool = True,
    **arguments: Any,
) -> str:
    context = ToolContext(
        str(workspace), LocalSettings(hard_links=hard_links), timeout_s=30, max_bytes=max_bytes
    )
    run = TOOL[name].run if confined else partial(UNCONFINED[name], confined=False)
    output = run(TOOL[name].arguments(**arguments), context)
    assert isinstance(output, ToolOutput)
    return "\n".join(block.text for block in output.blocks if isinstance(block, Text))


def refused(name: str, workspace: Path, **arguments: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        call(name, workspace, **arguments)
    return caught.value.code


def tree_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest.update(repr((str(path), info.st_mode, info.st_mtime_ns, content)).encode())
    return digest.hexdigest()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, "first", {"a.txt": "one\n", "lib/b.txt": "b\n"})
    commit(
        folder,
        "second: two lines",
        {"a.txt": "one\ntwo\n"},
        GIT_AUTHOR_NAME="Grace (x+y)",
        GIT_COMMITTER_DATE="2026-02-02T00:00:00+00:00",
        GIT_AUTHOR_DATE="2026-02-02T00:00:00+00:00",
    )
    git(folder, "tag", "v1")
    git(folder, "branch", "feature/x-1")
    commit(folder, "third", {"lib/b.txt": "b\nc\n"}, GIT_COMMITTER_DATE="2026-03-03T00:00:00+00:00")
    return folder


# --- the main job ---------------------------------------------------------------------------------


def test_the_log_lists_commits_newest_first_and_says_that_is_all(repo: Path) -> None:
    lines = call("git_log", repo).split("\n")
    assert lines[0] == "3 commits, newest first; that is all."
    assert lines[1].endswith("2026-01-02T03:04:05+00:00 Ada <ada@example.org> (HEAD -> main)")
    assert [line.strip() for line in lines[2::2]] == ["third", "second: two lines", "first"]
    assert "(tag: v1, feature/x-1)" in lines[3]


def test_the_log_pages(repo: Path) -> None:
    assert call("git_log", repo, max_count=2).startswith(
        "2 commits, newest first; there are more: skip=2 reads on."
    )
    rest = call("git_log", repo, max_count=2, skip=2).split("\n")
    assert rest[0] == "1 commit, newest first; that is all."
    assert rest[2].strip() == "first"


@pytest.mark.parametrize(
    ("arguments", "subjects"),
    [
        ({"path": "a.txt"}, ["second: two lines", "first"]),
        ({"path": "lib"}, ["third", "first"]),
        ({"path": "lib/../a.txt"}, None),
        ({"path": "*.txt"}, []),
        ({"path": ":(glob)**"}, []),
        ({"author": "grace (X+Y)"}, ["second: two lines"]),
        ({"author": "--all"}, []),
        ({"since": "2026-02-01"}, ["third", "second: two lines"]),
        ({"until": "2026-02-15"}, ["second: two lines", "first"]),
        ({"revision": "v1"}, ["second: two lines", "first"]),
        ({"revision": "feature/x-1~1"}, ["first"]),
        ({"revision": "v1..main"}, ["third"]),
        ({"revision": "HEAD^"}, ["second: two lines", "first"]),
    ],
)
def test_the_log_is_filtered_by_plain_values(
    repo: Path, arguments: dict[str, Any], subjects: list[str] | None
) -> None:
    if subjects is None:
        assert refused("git_log", repo, **arguments) == "outside_workspace"
        return
    assert [
        line.strip() for line in call("git_log", repo, **arguments).split("\n")[2::2]
    ] == subjects


def test_a_diff_of_the_working_tree_the_index_and_two_revisions(repo: Path) -> None:
    assert (
        call("git_diff", repo)
        == "Changes from the index to the working tree: none. Untracked files are not part of a"
        " diff."
    )
    (repo / "a.txt").write_text("one\n2\n")
    (repo / "untracked").write_text("x")
    shown = call("git_diff", repo)
    assert shown.startswith(
        "Changes from the index to the working tree.\n a.txt | 2 +-\n 1 file changed"
    )
    assert "-two\n+2\n" in shown
    assert call("git_diff", repo, staged=True) == "Changes from HEAD to the index: none."
    git(repo, "add", "a.txt")
    assert "+2\n" in call("git_diff", repo, staged=True)
    between = call("git_diff", repo, base="v1", target="HEAD")
    assert between.startswith("Changes from v1 to HEAD.\n lib/b.txt | 1 +\n")
    assert (
        call("git_diff", repo, base="v1", target="HEAD", path="a.txt")
        == "Changes from v1 to HEAD in a.txt: none."
    )
    assert "+c" not in call("git_diff", repo, base="v1", target="HEAD", stat=True)
    assert "+2\n" in call("git_diff", repo, base="HEAD~2")


def test_a_change_that_keeps_the_size_is_seen(repo: Path) -> None:
    (repo / "a.txt").write_text("one\nTWO\n")
    assert "+TWO" in call("git_diff", repo)


def test_a_diff_over_the_byte_bound_is_cut_and_says_so(repo: Path) -> None:
    (repo / "a.txt").write_text("line\n" * 10_000)
    shown = call("git_diff", repo, max_bytes=3000)
    assert len(shown.encode()) <= 3000
    assert "cut at 3,000 bytes: name a path, or ask for stat" in shown


def test_line_ends_of_the_repositorys_own_setting_are_respected(repo: Path) -> None:
    git(repo, "config", "core.autocrlf", "true")
    (repo / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    assert "none" in call("git_diff", repo)


def test_a_sha256_repository_is_read(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--object-format=sha256")
    commit(tmp_path, "long hashes", {"f": "1"})
    assert "long hashes" in call("git_log", tmp_path)


def test_packed_refs_and_a_detached_head_are_read(repo: Path) -> None:
    git(repo, "pack-refs", "--all")
    git(repo, "gc", "--quiet")
    git(repo, "checkout", "--quiet", "v1")
    assert "(HEAD, tag: v1, feature/x-1)" in call("git_log", repo)
    assert "third" in call("git_log", repo, revision="main")


def test_an_empty_repository_and_no_repository_are_told_apart(tmp_path: Path) -> None:
    assert refused("git_log", tmp_path) == "no_repository"
    git(tmp_path, "init", "--quiet")
    assert refused("git_log", tmp_path) == "unknown_revision"
    assert "none" in call("git_diff", tmp_path)


def test_a_repository_in_a_folder_of_its_own_inside_the_workspace_is_read(repo: Path) -> None:
    (repo / ".git").rename(repo / ".bare")
    (repo / ".git").write_text("gitdir: .bare\n")
    assert "third" in call("git_log", repo)


# --- revisions are never options ------------------------------------------------------------------


@pytest.mark.parametrize(
    "revision",
    ["--all", "-1", "--output=x", "", "a b", "HEAD:a.txt", ":/first", "HEAD@{1}", "HEAD^{/x}", "a...b", "a..b..c",
     "..x", "x..", "$(id)", "HEAD\n", "HEAD\0", "^HEAD", "x" * 300, "main.lock/..", "refs/../x"],
)  # fmt: skip
def test_what_is_not_a_revision_never_reaches_git(revision: str) -> None:
    with pytest.raises(ValidationError):
        TOOL["git_log"].arguments(revision=revision)
    with pytest.raises(ValidationError):
        TOOL["git_diff"].arguments(target=revision, base="main")
    if revision != "a...b":  # where b left a
        with pytest.raises(ValidationError):
            TOOL["git_diff"].arguments(base=revision)


@pytest.mark.parametrize(
    "revision",
    ["HEAD", "@", "main", "v1.0", "feature/x-1", "HEAD~3", "HEAD^2~1", "0a1b2c3", "übung"],
)
def test_what_people_call_revisions_is_accepted(revision: str) -> None:
    assert is_revision(revision)


def test_an_unknown_revision_is_named(repo: Path) -> None:
    assert refused("git_log", repo, revision="nowhere") == "unknown_revision"
    assert refused("git_diff", repo, base="v1", target="0000000") == "unknown_revision"


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "HEAD"},
        {"base": "a", "target": "b", "staged": True},
        {"context": 51},
        {"since": "x"},
        {"base": "a...b", "target": "c"},
        {"base": "a...b", "staged": True},
        {"base": "a...b...c"},
        {"base": "a...--all"},
        {"base": "a..b"},
    ],
)
def test_diff_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TOOL["git_diff"].arguments(**wrong)


@pytest.mark.parametrize(
    "date",
    ["--exec=x", "", "2026\n", "a" * 65, "$(id)", "2026-13-01", "2026-02-30", "last week-ish"],
)
@pytest.mark.parametrize("name", ["since", "until"])
def test_a_date_that_git_would_guess_at_is_refused(name: str, date: str) -> None:
    """git takes the present day for what it can't read."""
    with pytest.raises(ValidationError, match="is not a date: give '2026-01-31'"):
        TOOL["git_log"].arguments(**{name: date})


@pytest.mark.parametrize(
    ("arguments", "subjects"),
    [
        ({"since": "2026-02-02", "until": "2026-02-02"}, ["noon", "midnight"]),
        ({"since": "2026-02-02T12:00:00"}, ["next day", "noon"]),
        ({"since": "2026-02-02T12:00:00+01:00"}, ["next day", "noon"]),
        ({"until": "2026-02-02T11:59:59Z"}, ["midnight"]),
        ({"since": "1 day ago"}, []),
        ({"since": "yesterday"}, []),
    ],
)
def test_a_day_is_the_whole_day(
    tmp_path: Path, arguments: dict[str, Any], subjects: list[str]
) -> None:
    git(tmp_path, "init", "--quiet")
    for subject, when in (
        ("midnight", "2026-02-02T00:00:00+00:00"),
        ("noon", "2026-02-02T12:00:00+00:00"),
        ("next day", "2026-02-03T00:00:00+00:00"),
    ):
        commit(tmp_path, subject, {"a.txt": subject}, GIT_COMMITTER_DATE=when)
    lines = call("git_log", tmp_path, **arguments).split("\n")
    assert [line.strip() for line in lines[2::2]] == subjects


# --- what a branch changed, and submodules --------------------------------------------------------


def test_a_branch_is_compared_with_where_it_left_the_other(repo: Path) -> None:
    git(repo, "checkout", "--quiet", "feature/x-1")
    commit(repo, "mine", {"mine.txt": "m\n"})
    left_at = git(repo, "merge-base", "main", "feature/x-1")
    shown = call("git_diff", repo, base="main...feature/x-1", stat=True)
    assert shown.startswith(f"Changes from {left_at[:12]}, where feature/x-1 left main, to feature")
    assert "mine.txt" in shown
    assert "lib/b.txt" not in shown

    as_they_are = call("git_diff", repo, base="main", target="feature/x-1", stat=True)
    assert "lib/b.txt" in as_they_are
    assert "What main got since they parted counts as taken back; base='main...fea" in as_they_are
    assert "since they parted" not in call("git_diff", repo, base="v1", target="feature/x-1")

    git(repo, "checkout", "--quiet", "--orphan", "alone")
    commit(repo, "alone", {"alone.txt": "a\n"})
    assert refused("git_diff", repo, base="main...alone") == "unknown_revision"
    assert "since they parted" not in call("git_diff", repo, base="main", target="alone")


def test_a_submodule_is_named_as_not_looked_into(repo: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    commit(inner, "inner", {"a.txt": "one\n"})
    assert "Not looked into" not in call("git_diff", repo)
    git(repo, "submodule", "--quiet", "add", str(inner), "vendor/m")
    commit(repo, "with a submodule", {})
    (repo / "vendor" / "m" / "a.txt").write_text("two\n")
    assert call("git_diff", repo).endswith(" Not looked into: submodule vendor/m.")
    assert "Not looked into" not in call("git_diff", repo, base="v1", target="main")
    for path in ("vendor/m", "vendor/m/a.txt", "vendor/m/gone.txt"):
        assert refused("git_diff", repo, path=path) == "in_submodule"
        assert refused("git_log", repo, path=path) == "in_submodule"
    assert call("git_diff", repo, path="vendor/more.txt").endswith("vendor/m.")


# --- hostile repositories -------------------------------------------------------------------------

Booby = Callable[[Path, str, Path], None]
"""Given the repository, the canary script and a folder outside, sets one trap."""


def _set(**settings: str) -> Booby:
    def trap(repo: Path, canary: str, _outside: Path) -> None:
        for key, value in settings.items():
            git(repo, "config", key.replace("__", "."), value.replace("CANARY", canary))

    return trap


def _filters(repo: Path, canary: str, _outside: Path) -> None:
    for kind in ("clean", "smudge", "process"):
        git(repo, "config", f"filter.evil.{kind}", canary)
    git(repo, "config", "filter.evil.required", "true")
    (repo / ".gitattributes").write_text("* filter=evil\n")


def _diff_drivers(repo: Path, canary: str, _outside: Path) -> None:
    for kind in ("command", "textconv"):
        git(repo, "config", f"diff.evil.{kind}", canary)
    git(repo, "config", "merge.evil.driver", canary)
    (repo / ".git" / "info" / "attributes").write_text("* diff=evil merge=evil\n")
    (repo / ".gitattributes").write_text("* diff=evil merge=evil\n")


def _include(repo: Path, canary: str, outside: Path) -> None:
    (outside / "inc").write_text(
        f"[core]\n fsmonitor = {canary}\n pager = {canary}\n[diff]\n external = {canary}\n"
    )
    (repo / "inc").write_text((outside / "inc").read_text())
    with (repo / ".git" / "config").open("a") as config:
        config.write(
            f'[include]\n path = {outside}/inc\n path = ../inc\n[includeIf "gitdir:/"]\n path ='
            f" {outside}/inc\n"
        )


def _hooks(repo: Path, canary: str, outside: Path) -> None:
    for folder in (repo / ".git" / "hooks", outside / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in (
            "post-index-change",
            "fsmonitor-watchman",
            "pre-commit",
            "post-checkout",
            "reference-transaction",
        ):
            shutil.copy(canary, folder / name)
    git(repo, "config", "core.hooksPath", str(outside / "hooks"))


def _worktree_config(repo: Path, canary: str, _outside: Path) -> None:
    git(repo, "config", "extensions.worktreeConfig", "true")
    (repo / ".git" / "config.worktree").write_text(f"[core]\n fsmonitor = {canary}\n")


def _promisor(repo: Path, canary: str, _outside: Path) -> None:
    git(repo, "config", "core.repositoryformatversion", "1")
    git(repo, "config", "extensions.partialClone", "origin")
    git(repo, "config", "remote.origin.url", f"ext::{canary}")
    git(repo, "config", "remote.origin.promisor", "true")
    git(repo, "config", "remote.origin.uploadpack", canary)
    blob = git(repo, "rev-parse", "HEAD~2:a.txt")
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


def _submodule(repo: Path, canary: str, outside: Path) -> None:
    inner = outside / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    commit(inner, "inner", {"x": "1"})
    git(repo, "submodule", "--quiet", "add", str(inner), "mod")
    git(repo, "commit", "--quiet", "-m", "module")
    for key in ("core.fsmonitor", "diff.external", "core.pager"):
        git(repo / "mod", "config", key, canary)
    git(repo, "config", "submodule.mod.update", f"!{canary}")
    git(repo, "config", "diff.ignoreSubmodules", "none")
    git(repo, "config", "status.submoduleSummary", "true")
    (repo / "mod" / "x").write_text("2")


TRAPS: dict[str, Booby] = {
    "fsmonitor": _set(core__fsmonitor="CANARY"),
    "fsmonitor with query": _set(core__fsmonitor="CANARY", core__fsmonitorHookVersion="2"),
    "pager": _set(core__pager="CANARY", pager__log="CANARY", pager__diff="CANARY"),
    "external diff": _set(diff__external="CANARY"),
    "diff drivers and textconv": _diff_drivers,
    "filters": _filters,
    "ssh, askpass, editor": _set(
        core__sshCommand="CANARY", core__askPass="CANARY", core__editor="CANARY"
    ),
    "signatures": _set(
        gpg__program="CANARY", log__showSignature="true", gpg__ssh__program="CANARY"
    ),
    "credential helper and alias": _set(
        credential__helper="!CANARY", alias__log="!CANARY", alias__diff="!CANARY"
    ),
    "alternate refs": _set(core__alternateRefsCommand="CANARY", core__gitProxy="CANARY"),
    "trailers": _set(trailer__x__command="CANARY", trailer__x__cmd="CANARY"),
    "includes": _include,
    "hooks": _hooks,
    "worktree config": _worktree_config,
    "promisor remote": _promisor,
    "submodule": _submodule,
}


@pytest.fixture
def canary(tmp_path: Path) -> tuple[str, Path]:
    """A script that leaves a mark when it runs, and where the mark would be."""
    outside = tmp_path / "outside"
    outside.mkdir()
    script, mark = outside / "canary.sh", outside / "sang"
    script.write_text(f'#!/bin/sh\necho "$0 $*" >> {mark}\ncat\n')
    script.chmod(0o755)
    return str(script), mark


def exercise(repo: Path, *, confined: bool = True) -> list[str]:
    """Every way the two tools read a repository; failures are fine, as long as nothing runs."""
    outcomes = []
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("git_log", {}),
        ("git_log", {"path": "a.txt"}),
        ("git_diff", {}),
        ("git_diff", {"staged": True}),
        ("git_diff", {"stat": True}),
        ("git_diff", {"base": "HEAD~2", "target": "HEAD"}),
        ("git_diff", {"base": "HEAD~2"}),
    )
    for name, arguments in ways:
        try:
            outcomes.append(call(name, repo, confined=confined, **arguments))
        except ToolFailure as failure:
            outcomes.append(failure.code)
    return outcomes


@pytest.fixture(params=["landlock", "bare"])
def confined(request: pytest.FixtureRequest) -> bool:
    """With the second wall, and without: the first has to hold alone."""
    if request.param == "landlock" and not CONFINED:
        pytest.skip("this kernel has no Landlock")
    return bool(request.param == "landlock")


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_a_repository_names_is_ever_run(
    trap: str, repo: Path, canary: tuple[str, Path], confined: bool
) -> None:
    script, mark = canary
    TRAPS[trap](repo, script, mark.parent)
    mark.unlink(missing_ok=True)  # setting a trap may set it off
    (repo / "a.txt").write_text("one\nchanged\n")
    before = tree_hash(repo)
    outcomes = exercise(repo, confined=confined)
    assert not mark.exists(), mark.read_text()
    assert tree_hash(repo) == before
    assert "third" in outcomes[0]
    assert "+changed" in outcomes[2]


@pytest.mark.parametrize(
    "trap", ["fsmonitor", "external diff", "diff drivers and textconv", "filters", "includes"]
)
def test_the_traps_work_on_a_git_that_obeys(
    trap: str, repo: Path, canary: tuple[str, Path]
) -> None:
    """Otherwise the test above would prove nothing."""
    script, mark = canary
    TRAPS[trap](repo, script, mark.parent)
    mark.unlink(missing_ok=True)
    (repo / "a.txt").write_text("one\nchanged\n")
    subprocess.run(["git", "diff"], cwd=repo, env=ENV, capture_output=True, check=False)
    assert mark.exists()


def test_a_worktree_setting_does_not_lead_the_diff_outside(repo: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.txt").write_text("SECRET\n")
    git(repo, "config", "core.worktree", str(elsewhere))
    assert "SECRET" not in "".join(exercise(repo))
    assert "none" in call("git_diff", repo)


def _other(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    commit(other, "OUTSIDE", {"s": "SECRET\n"})
    return other


def _alternates(repo: Path, other: Path) -> None:
    (repo / ".git" / "objects" / "info" / "alternates").write_text(f"{other}/.git/objects\n")


def _relative_alternates(repo: Path, _other: Path) -> None:
    (repo / ".git" / "objects" / "info" / "alternates").write_text("../../../other/.git/objects\n")


def _git_file(repo: Path, other: Path) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").write_text(f"gitdir: {other}/.git\n")


def _relative_git_file(repo: Path, _other: Path) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").write_text("gitdir: ../other/.git\n")


def _git_link(repo: Path, _other: Path) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").symlink_to("../other/.git")


def _commondir(repo: Path, _other: Path) -> None:
    (repo / ".git" / "commondir").write_text("../../other/.git\n")


def _linked_objects(repo: Path, other: Path) -> None:
    shutil.rmtree(repo / ".git" / "objects")
    (repo / ".git" / "objects").symlink_to(other / ".git" / "objects")


def _linked_fan_out(repo: Path, other: Path) -> None:
    for folder in (other / ".git" / "objects").iterdir():
        target = repo / ".git" / "objects" / folder.name
        if not target.exists():
            target.symlink_to(folder)


def _linked_object(repo: Path, other: Path) -> None:
    for found in (other / ".git" / "objects").glob("??/*"):
        target = repo / ".git" / "objects" / found.parent.name / found.name
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            target.symlink_to(found)


def _linked_index(repo: Path, _other: Path) -> None:
    (repo / ".git" / "index").unlink()
    (repo / ".git" / "index").symlink_to("../../other/.git/index")


def _linked_head(repo: Path, _other: Path) -> None:
    (repo / ".git" / "HEAD").unlink()
    (repo / ".git" / "HEAD").symlink_to("../../other/.git/HEAD")


@pytest.mark.parametrize(
    "borrow",
    [
        _alternates, _relative_alternates, _git_file, _relative_git_file, _git_link, _commondir, _linked_objects,
        _linked_fan_out, _linked_object, _linked_head,
    ],
)  # fmt: skip
def test_a_repository_that_reaches_outside_is_refused(
    borrow: Callable[[Path, Path], None], repo: Path, tmp_path: Path
) -> None:
    other = _other(tmp_path)
    borrow(repo, other)
    outcomes = exercise(repo)
    assert set(outcomes) <= {"repository_refused", "outside_workspace"}


def test_a_linked_index_is_not_followed(repo: Path, tmp_path: Path) -> None:
    _linked_index(repo, _other(tmp_path))
    assert "SECRET" not in "".join(exercise(repo))


def test_refs_that_are_links_or_malformed_are_left_out(repo: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(git(repo, "rev-parse", "HEAD") + "\n")
    heads = repo / ".git" / "refs" / "heads"
    (heads / "linked").symlink_to(secret)
    (heads / "odd name").write_text(secret.read_text())
    (heads / "broken").write_text("not a hash\n")
    (heads / "alias").write_text("ref: refs/heads/main\n")
    (heads / "loop").write_text("ref: refs/heads/loop\n")
    with Root(str(repo)) as root:
        names = [line.split(" ", 1)[1] for line in collect_refs(root, ".git").splitlines()[1:]]
    assert names == [
        "refs/heads/alias",
        "refs/heads/feature/x-1",
        "refs/heads/main",
        "refs/tags/v1",
    ]
    assert "third" in call("git_log", repo, revision="alias")


def test_replace_refs_do_not_hide_what_was_committed(repo: Path) -> None:
    git(repo, "replace", "HEAD", "HEAD~2")
    assert "third" in call("git_log", repo)


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("refs/heads/main", True),
        ("refs/heads/a/b-c.d", True),
        ("refs/heads/ü", True),
        ("refs/heads/", False),
        ("refs/heads/a..b", False),
        ("refs/heads/.a", False),
        ("refs/heads/a.lock", False),
        ("refs/heads/a b", False),
        ("refs/heads/a\nb", False),
        ("refs/heads/a@{1}", False),
        ("../x", False),
        ("HEAD", False),
    ],
)
def test_ref_names_follow_gits_rules(name: str, valid: bool) -> None:
    assert is_ref_name(name) is valid


def test_a_fifo_in_place_of_a_tracked_file_does_not_hang(repo: Path) -> None:
    (repo / "a.txt").unlink()
    os.mkfifo(repo / "a.txt")
    assert refused("git_diff", repo) == "not_a_file"


def test_a_tracked_file_replaced_by_a_link_shows_the_link_not_its_target(
    repo: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("SECRET\n")
    (repo / "a.txt").unlink()
    (repo / "a.txt").symlink_to("../secret")
    shutil.rmtree(repo / "lib")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "b.txt").write_text("SECRET\n")
    (repo / "lib").symlink_to("../lib")
    shown = call("git_diff", repo)
    assert "SECRET" not in shown
    assert "+../secret" in shown


def test_a_diff_shows_what_was_copied_whatever_is_swapped_for_a_link_meanwhile(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git opens files by name after it looked at them: swapped then, one run in twenty showed
    `.git/config`.
    """
    (repo / "a.txt").write_text("mine\n")
    (repo / "lib" / "b.txt").write_text("mine too\n")
    (repo / ".netrc").write_text("password SECRET\n")
    programs = tmp_path / "programs"
    programs.mkdir()
    swap = (
        f"/bin/rm -rf {repo}/a.txt {repo}/lib; /bin/ln -s .netrc {repo}/a.txt; /bin/ln -s .git"
        f" {repo}/lib"
    )
    script = f'#!/bin/sh\ncase "$*" in *--patch*) {swap};; esac\nexec {shutil.which("git")} "$@"\n'
    (programs / "git").write_text(script)
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    shown = call("git_diff", repo, confined=False)
    assert (repo / "a.txt").is_symlink()
    assert "+mine\n" in shown
    assert "+mine too\n" in shown
    assert "SECRET" not in shown
    assert ".netrc" not in shown


def test_what_a_killed_router_left_of_a_repository_is_deleted_by_the_next_call(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "bundle-router-git-killed"
    (left / "tree").mkdir(parents=True)
    (left / "tree" / "a.txt").write_text("a copy\n")
    os.utime(left, (0, 0))
    assert "none" in call("git_diff", repo)
    assert list(tmp_path.glob("bundle-router-git-*")) == []


def test_a_tracked_file_of_credentials_is_left_out_of_a_diff_of_the_working_tree(
    repo: Path,
) -> None:
    commit(repo, "by mistake", {".netrc": "password OLD\n", "conf/.netrc": "x\n"})
    (repo / ".netrc").write_text("password SECRET\n")
    (repo / "a.txt").write_text("mine\n")
    assert "2 files" not in (shown := call("git_diff", repo))
    assert "SECRET" not in shown
    assert "+mine" in shown
    assert "1 file with credentials left out" in shown
    (repo / "a.txt").write_text("one\ntwo\n")
    assert call("git_diff", repo).endswith(" 1 file with credentials left out.")


def test_attributes_of_the_working_tree_count_in_a_diff(repo: Path) -> None:
    commit(repo, "attributes", {"lib/c.bin": "1\n", "lib/d.txt": "1\n"})
    (repo / "lib" / ".gitattributes").write_text("*.bin -diff\n")
    for name in ("c.bin", "d.txt"):
        (repo / "lib" / name).write_text("SEEN\n")
    shown = call("git_diff", repo)
    assert "Binary files a/lib/c.bin and b/lib/c.bin differ" in shown
    assert shown.count("+SEEN") == 1


def test_modes_deleted_files_and_renames_are_shown_as_git_shows_them(repo: Path) -> None:
    (repo / "a.txt").chmod(0o755)
    (repo / "lib" / "b.txt").unlink()
    (repo / "lib").rmdir()
    (repo / "lib").symlink_to(".")
    shown = call("git_diff", repo)
    assert shown.split("\n", 1)[1].strip() in git(repo, "diff", "--stat=120", "--patch")
    git(repo, "mv", "a.txt", "moved.txt")
    assert "rename to moved.txt" in call("git_diff", repo, base="HEAD")


def test_hard_linked_files_are_not_diffed_when_they_are_refused(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET\n")
    (repo / "a.txt").unlink()
    (repo / "a.txt").hardlink_to(tmp_path / "secret")
    assert "SECRET" in call("git_diff", repo)
    assert refused("git_diff", repo, hard_links="refuse") == "hard_link"
    assert "none" in call("git_diff", repo, hard_links="refuse", path="lib")


def test_a_config_that_can_not_be_parsed_is_said_to_be_so(repo: Path) -> None:
    (repo / ".git" / "config").write_text("[core\n")
    assert refused("git_log", repo) == "repository_refused"


def test_a_missing_object_is_not_fetched_and_is_named(repo: Path) -> None:
    blob = git(repo, "rev-parse", "HEAD~2:a.txt")
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert refused("git_diff", repo, base="HEAD~2", target="HEAD") == "missing_object"


@pytest.mark.skipif(not CONFINED, reason="this kernel has no Landlock")
def test_a_confined_child_reads_nothing_outside_and_starts_nothing(tmp_path: Path) -> None:
    """The second wall by itself: a git that is told to run a shell and to read elsewhere, and can
    do neither.
    """
    binary = find_binary("git", outside=str(tmp_path))
    assert binary is not None
    mark = tmp_path / "mark"
    context = ToolContext(str(tmp_path), LocalSettings(), timeout_s=60, max_bytes=1000)
    env = {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    for arguments in (
        ("-c", f"alias.x=!touch {mark}", "x"),
        ("config", "--file", "/etc/passwd", "--list"),
        ("init", "new"),
    ):
        command = Command((binary, *arguments), env, cwd=str(tmp_path))
        _, _, child = output_of(ConfinedCommand(command, (str(tmp_path),)), context, max_bytes=1000)
        assert child.code != 0
        assert b"denied" in child.stderr or b"cannot run" in child.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not CONFINED, reason="git can't be confined here")
def test_a_confined_child_has_no_sockets(tmp_path: Path) -> None:
    """Landlock alone refuses TCP: a datagram left the machine."""
    python = os.path.realpath(sys.executable)
    source = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
    command = ConfinedCommand(
        Command((python, "-I", "-S", "-c", source), env={}), (sys.base_prefix,)
    )
    context = ToolContext(str(tmp_path), LocalSettings(), timeout_s=60, max_bytes=1000)
    _, _, child = output_of(command, context, max_bytes=1000)
    assert b"PermissionError" in child.stderr


def test_a_cancelled_call_is_not_said_to_have_met_a_bad_config(repo: Path) -> None:
    context = ToolContext(
        str(repo), LocalSettings(), timeout_s=30, max_bytes=1000, cancelled=lambda: True
    )
    with pytest.raises(ToolFailure) as caught:
        TOOL["git_log"].run(TOOL["git_log"].arguments(), context)
    assert caught.value.code == "cancelled"


READ = """
from bundle_router.core.values import LocalSettings, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo import TOOLS

context = ToolContext(sys.argv[1], LocalSettings(), timeout_s=60, max_bytes=9999)
tools = {tool.name: tool for tool in TOOLS}
for name, arguments in (("git_log", {}), ("git_diff", {}), ("ripgrep", {"pattern": "one"})):
    try:
        print(name, tools[name].run(tools[name].arguments(**arguments), context).blocks[0].text)
    except ToolFailure as failure:
        print(name, failure.code, failure)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.parametrize("missing", LACKING)
def test_without_landlock_or_seccomp_neither_git_nor_rg_is_started(
    repo: Path, missing: str
) -> None:
    (repo / "b.txt").write_text("one\n")
    shown = run_without(missing, READ, str(repo))
    for name in ("git_log", "git_diff", "ripgrep"):
        assert f"{name} unavailable " in shown
    assert shown.count("is not started, since it can't be confined here: ") == 3
    assert "b.txt" not in shown
