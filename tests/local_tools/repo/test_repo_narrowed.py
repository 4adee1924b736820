"""A step narrowed to a folder stays in it, also when it is swapped, moved or removed; hidden
folders stay shut.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.values import (
    BinaryForm,
    BinaryRule,
    LocalSettings,
    Text,
    ToolContext,
    ToolOutput,
)
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo import TOOLS as REPO
from bundle_router.local_tools.repo import rg
from bundle_router.local_tools.repo.beneath import Opener, best_opener, open_by_walk
from bundle_router.local_tools.repo.confinement import Root, workspace
from bundle_router.local_tools.repo.history import GitDiff, git_diff
from bundle_router.local_tools.repo.hits import Ripgrep
from bundle_router.local_tools.repo.text_search import ripgrep
from bundle_router.local_tools.workspace import TOOLS as WORKSPACE

SECRET = "outside: must never be read\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A workspace with a folder `job/part` to narrow to, look-alikes beside it, and what must not
    be read outside.
    """
    top = tmp_path / "top"
    (top / "job" / "part" / "deep").mkdir(parents=True)
    (top / "job" / "part" / "inside.txt").write_text("inside\n")
    for folder in (
        top / "job",
        top / "job" / "part-evil",
        top / "job" / "par",
        tmp_path / "elsewhere",
    ):
        folder.mkdir(exist_ok=True)
        (folder / "inside.txt").write_text(SECRET)
    (top / "job" / "link").symlink_to("part")
    (top / "alias").symlink_to("job")
    return top


def code_of(top: Path, within: str, path: str, opener: Opener) -> str:
    with pytest.raises(ToolFailure) as refused, Root(str(top), within, opener=opener) as root:
        root.read(path, max_bytes=1000)
    return refused.value.code


def test_paths_start_from_the_folder_and_end_beneath_it(tree: Path, opener: Opener) -> None:
    with Root(str(tree), "job/part", opener=opener) as root:
        assert root.read("inside.txt", max_bytes=100) == b"inside\n"
        assert root.read("deep/../inside.txt", max_bytes=100) == b"inside\n"
        assert root.read(f"{tree}/job/part/inside.txt", max_bytes=100) == b"inside\n"


@pytest.mark.parametrize(
    "path", ["../inside.txt", "../part-evil/inside.txt", "deep/../../par/inside.txt"]
)
def test_what_lies_beside_it_is_out_of_reach(tree: Path, opener: Opener, path: str) -> None:
    assert code_of(tree, "job/part", path, opener) == "outside_workspace"


@pytest.mark.parametrize(
    "name", ["job", "job/part-evil", "job/par", "elsewhere", "top/job/part/../inside.txt"]
)
def test_an_absolute_path_beside_it_is_refused(tree: Path, opener: Opener, name: str) -> None:
    assert code_of(tree, "job/part", f"{tree}/{name}/inside.txt", opener) == "outside_workspace"


@pytest.mark.parametrize(
    "within",
    [
        "job/link",
        "alias/part",
        "job/gone",
        "job/part/inside.txt",
        "..",
        "job/../job/part",
        "/",
        "job/p\0",
    ],
)
def test_a_folder_reached_by_a_link_or_not_at_all_is_unavailable(
    tree: Path, opener: Opener, within: str
) -> None:
    assert code_of(tree, within, "inside.txt", opener) == "workspace_unavailable"


def swap_for_link(tree: Path) -> None:
    (tree / "job" / "part").rename(tree / "kept")
    (tree / "job" / "part").symlink_to("../../elsewhere")


def swap_parent_for_link(tree: Path) -> None:
    (tree / "job").rename(tree / "kept")
    (tree / "job").symlink_to("kept")


def move_out(tree: Path) -> None:
    (tree / "job" / "part").rename(tree.parent / "moved")


def remove(tree: Path) -> None:
    (tree / "job" / "part").rename(tree.parent / "elsewhere" / "part")
    (tree / "job" / "part").write_text("a file now")


@pytest.mark.parametrize("change", [swap_for_link, swap_parent_for_link, move_out, remove])
def test_a_folder_changed_between_two_calls_is_unavailable(
    tree: Path, opener: Opener, change: object
) -> None:
    with Root(str(tree), "job/part", opener=opener) as root:
        assert root.read("inside.txt", max_bytes=100) == b"inside\n"
    change(tree)  # type: ignore[operator]  # the four functions above
    assert code_of(tree, "job/part", "inside.txt", opener) == "workspace_unavailable"


def test_a_folder_swapped_during_a_call_is_still_the_one_that_was_opened(
    tree: Path, opener: Opener
) -> None:
    with Root(str(tree), "job/part", opener=opener) as root:
        swap_for_link(tree)
        assert root.read("inside.txt", max_bytes=100) == b"inside\n"
        assert [entry.name for entry in root.scandir(".", limit=10)] == ["deep", "inside.txt"]
        assert (Path(root.place) / "inside.txt").read_text() == "inside\n"


@contextmanager
def swapping(tree: Path) -> Iterator[None]:
    """Swaps the folder for a link that leads outside, and back, until the block ends."""
    part, kept, link = tree / "job" / "part", tree / "job" / "kept", tree / "job" / "way-out"
    link.symlink_to("../../elsewhere")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            part.rename(kept)
            link.rename(part)
            part.rename(link)
            kept.rename(part)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_folder_swapped_all_the_time_never_leads_outside(tree: Path, opener: Opener) -> None:
    seen = {"inside\n": 0, "workspace_unavailable": 0}
    with swapping(tree):
        for _ in range(50_000):
            try:
                with Root(str(tree), "job/part", opener=opener) as root:
                    text = root.read("inside.txt", max_bytes=100).decode()
            except ToolFailure as failure:
                text = failure.code
            seen[text] += 1  # a KeyError here is the secret, or a refusal for another reason
            if sum(seen.values()) >= 2_000 and min(seen.values()) > 20:
                break
    assert min(seen.values()) > 0, f"the race was never met: {seen}"


# --- hidden folders -------------------------------------------------------------------------------


@pytest.fixture
def hiding(tree: Path) -> Iterator[Root]:
    (tree / "runs" / "r1").mkdir(parents=True)
    (tree / "runs" / "r1" / "routing.jsonl").write_text(SECRET)
    (tree / "runs-old").mkdir()
    (tree / "runs-old" / "notes.txt").write_text("mine\n")
    (tree / "to-runs").symlink_to("runs")
    (tree / "to-record").symlink_to("runs/r1/routing.jsonl")
    (tree / "job" / "up").symlink_to("../runs/r1")
    with Root(str(tree), hidden=[f"{tree}/runs", f"{tree}/not-there"]) as root:
        yield root


@pytest.mark.parametrize(
    "path",
    [
        "runs/r1/routing.jsonl",
        "runs",
        "./runs/../runs/r1/routing.jsonl",
        "job/../runs/r1/routing.jsonl",
        "to-runs/r1/routing.jsonl",
        "to-runs",
        "to-record",
        "job/up/routing.jsonl",
        "runs/../job/inside.txt",
    ],
)
def test_a_hidden_folder_is_not_entered_by_any_name(hiding: Root, path: str) -> None:
    for use in (lambda: hiding.read(path, max_bytes=1000), lambda: hiding.scandir(path, limit=10)):
        with pytest.raises(ToolFailure) as refused:
            use()
        assert refused.value.code == "hidden"


def test_a_hidden_folder_is_left_out_of_a_listing_and_counted(hiding: Root) -> None:
    names = [entry.name for entry in hiding.scandir(".", limit=100)]
    assert names == ["alias", "job", "runs-old", "to-record", "to-runs"]
    assert hiding.hidden.note() == " 1 place hidden: the router's own."
    assert hiding.read("runs-old/notes.txt", max_bytes=100) == b"mine\n"


def test_a_hidden_folder_stays_hidden_under_a_new_name(tree: Path, hiding: Root) -> None:
    (tree / "runs").rename(tree / "innocent")
    with pytest.raises(ToolFailure, match=r"is the router.s own .its records, or a file of .serve"):
        hiding.read("innocent/r1/routing.jsonl", max_bytes=1000)
    assert "innocent" not in [entry.name for entry in hiding.scandir(".", limit=100)]


@pytest.mark.parametrize("within", ["runs", "runs/r1"])
def test_no_step_is_narrowed_to_a_hidden_folder(tree: Path, hiding: Root, within: str) -> None:
    for opener in (open_by_walk, best_opener()):
        with pytest.raises(ToolFailure) as refused:
            Root(str(tree), within, hidden=[f"{tree}/runs"], opener=opener)
        assert refused.value.code == "workspace_unavailable"
        assert "hidden" in refused.value.message


def test_no_descriptor_stays_open(tree: Path, hiding: Root, opener: Opener) -> None:
    before = open_descriptors()
    for path in ("runs/r1", "to-record", "job/part"):
        for within in (".", "job/part", "job/link", "runs"):
            try:
                with Root(str(tree), within, hidden=[f"{tree}/runs"], opener=opener) as root:
                    root.scandir(path, limit=10)
            except ToolFailure:
                pass
    assert open_descriptors() == before


def open_descriptors() -> int:
    return sum(Path(f"/dev/fd/{number}").exists() for number in range(256))


# --- the tools ------------------------------------------------------------------------------------

TOOL = {tool.name: tool for tool in (*REPO, *WORKSPACE)}
EVERY_TOOL: dict[str, dict[str, Any]] = {
    "read_file": {"path": "inside.txt"},
    "list_dir": {},
    "ripgrep": {"pattern": "."},
    "git_log": {},
    "git_diff": {},
    "write_file": {"path": "new.txt", "content": "x"},
    "exec": {"binary": "python", "args": ("-c",)},
}


def context(top: Path, **changes: Any) -> ToolContext:
    python = BinaryRule(
        name="python", path="@python", forms=(BinaryForm(words=("-c",), positionals="(?s).*"),)
    )
    return ToolContext(
        str(top), LocalSettings(binaries=(python,)), timeout_s=30, max_bytes=1 << 20, **changes
    )


def call(name: str, where: ToolContext, **arguments: Any) -> str:
    output = TOOL[name].run(TOOL[name].arguments(**arguments), where)
    assert isinstance(output, ToolOutput)
    return "\n".join(block.text for block in output.blocks if isinstance(block, Text))


def refusal(name: str, where: ToolContext, **arguments: Any) -> str:
    with pytest.raises(ToolFailure) as refused:
        call(name, where, **arguments)
    return refused.value.code


@pytest.mark.parametrize("change", [swap_for_link, swap_parent_for_link, move_out, remove])
@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_no_tool_works_in_a_folder_that_was_changed(tree: Path, tool: str, change: Any) -> None:
    if tool == "exec" and sys.platform != "linux":
        pytest.skip("programs are only started on Linux")
    change(tree)
    assert (
        refusal(tool, context(tree, within="job/part"), **EVERY_TOOL[tool])
        == "workspace_unavailable"
    )
    assert [path.name for path in (tree.parent / "elsewhere").glob("*.txt")] == ["inside.txt"]


def test_every_tool_starts_from_the_narrowed_folder(tree: Path) -> None:
    where = context(tree, within="job/part")
    assert call("read_file", where, path="inside.txt").endswith("\ninside\n")
    assert call("list_dir", where).splitlines() == [
        ".: 2 entries, depth 1.",
        "deep/",
        "inside.txt  7 bytes",
    ]
    assert call("ripgrep", where, pattern=".").splitlines()[1:] == ["inside.txt", "  1: inside"]
    assert "created deep/new.txt" in call("write_file", where, path="deep/new.txt", content="x")
    assert (tree / "job" / "part" / "deep" / "new.txt").read_text() == "x"
    assert "replaced inside.txt" in call(
        "write_file", where, path=f"{tree}/job/part/inside.txt", content="y"
    )


@pytest.mark.parametrize("path", ["../inside.txt", "../part-evil/inside.txt"])
@pytest.mark.parametrize("tool", ["read_file", "list_dir", "ripgrep", "write_file"])
def test_no_tool_reaches_beside_the_narrowed_folder(tree: Path, tool: str, path: str) -> None:
    arguments = {**EVERY_TOOL[tool], "path": path}
    assert refusal(tool, context(tree, within="job/part"), **arguments) == "outside_workspace"
    assert (tree / "job" / "part-evil" / "inside.txt").read_text() == SECRET


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.mark.parametrize(
    "arguments", [{}, {"path": "deep"}, {"path": "deep/x.txt"}, {"path": "deep", "glob": "deep/x*"}]
)
def test_rg_alone_searches_the_folder_that_was_opened(
    tree: Path, arguments: dict[str, Any]
) -> None:
    (tree / "job" / "part" / "deep" / "x.txt").write_text("must be found\n")
    (tree.parent / "elsewhere" / "deep").mkdir()
    (tree.parent / "elsewhere" / "deep" / "x.txt").write_text(SECRET)
    query = Ripgrep(pattern="must", **arguments)
    where = context(tree, within="job/part")
    with workspace(where) as root:
        swap_for_link(tree)
        binary = rg.find_rg("/")
        hits = list(rg.search(binary, query, root, where, confined=False))
    assert [(file.path, [line.text for line in file.lines]) for file in hits] == [
        ("deep/x.txt", [b"must be found"])
    ]


def test_rg_alone_obeys_no_ignore_file_above_the_root(tree: Path) -> None:
    (tree.parent / ".gitignore").write_text("*.txt\n")
    (tree / "job" / ".gitignore").write_text("*.txt\n")
    where = context(tree, within="job/part")
    with workspace(where) as root:
        binary = rg.find_rg("/")
        hits = list(rg.search(binary, Ripgrep(pattern="inside"), root, where, confined=False))
    assert [file.path for file in hits] == ["inside.txt"]


def git(folder: Path, *arguments: str) -> None:
    options = [
        "-c",
        "init.defaultBranch=main",
        "-c",
        "user.name=Ada",
        "-c",
        "user.email=ada@example.org",
    ]
    subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True)


def make_repository(folder: Path, **files: str) -> None:
    git(folder, "init", "--quiet")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", f"first of {folder.name}")


@needs_git
def test_git_shows_the_repository_that_was_opened(tree: Path) -> None:
    part, other = tree / "job" / "part", tree.parent / "elsewhere"
    make_repository(part, a="1\n")
    make_repository(other, a="secret\n")
    (part / "a").write_text("2\n")
    (other / "a").write_text("another secret\n")
    where = context(tree, within="job/part")
    assert "first of part" in call("git_log", where)
    assert "+2" in call("git_diff", where)


@needs_git
def test_a_diff_of_a_folder_that_is_swapped_meanwhile_shows_what_was_opened(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a git that swaps it before it is started for the content: it goes to the folder by
    name. It is a script, so it can't be confined.
    """
    part, other = tree / "job" / "part", tree.parent / "elsewhere"
    make_repository(part, a="1\n", b="1\n")
    (part / "a").write_text("2\n")
    (other / "a").write_text("a secret\n")
    (other / "b").write_text("a secret\n")
    swap = f"/bin/mv {part} {tree}/kept; /bin/ln -s {other} {part}"
    (tmp_path / "git").write_text(
        f'#!/bin/sh\ncase "$*" in *--patch*) {swap};; esac\nexec {shutil.which("git")} "$@"\n'
    )
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = git_diff(GitDiff(), context(tree, within="job/part"), confined=False).blocks[1]
    assert part.is_symlink()
    assert isinstance(shown, Text)
    assert "+2" in shown.text
    assert "secret" not in shown.text
    assert "b/b" not in shown.text


# --- hidden folders, by every tool ----------------------------------------------------------------


@pytest.fixture
def records(tree: Path) -> ToolContext:
    """A workspace with the router's own records in it, some links to them, and files of the same
    kind beside them.
    """
    for name in ("runs", "runs-old", "job/runs"):
        (tree / name / "r1").mkdir(parents=True)
        (tree / name / "r1" / "routing.jsonl").write_text(f"record of {name}\n")
    (tree / "to-runs").symlink_to("runs")
    return context(tree, hidden=(f"{tree}/runs",))


def test_a_listing_says_that_a_folder_is_hidden(records: ToolContext) -> None:
    head, *names = call("list_dir", records, depth=3).splitlines()
    assert head.endswith(" 1 place hidden: the router's own.")
    assert not [name for name in names if name.startswith("runs/")]
    assert "runs-old/r1/routing.jsonl  19 bytes" in names
    assert "job/runs/r1/" in names
    assert "hidden" not in call("list_dir", records, path="job")


def found(where: ToolContext, **arguments: Any) -> tuple[str, list[str]]:
    return shown_of(ripgrep(Ripgrep(pattern="record of", **arguments), where))


def shown_of(output: ToolOutput) -> tuple[str, list[str]]:
    (block,) = output.blocks
    assert isinstance(block, Text)
    head, *lines = block.text.splitlines()
    return head, [line for line in lines if not line.startswith(" ")]


@pytest.mark.parametrize(
    ("by_link", "really"),
    [("job/r1/routing.jsonl", "runs/r1/routing.jsonl"), ("job/notes", ".git/config")],
)
def test_what_a_searcher_read_through_a_link_that_is_gone_again_is_not_shown(
    tree: Path, tmp_path: Path, records: ToolContext, by_link: str, really: str
) -> None:
    """A searcher opens files by name: what it gets may be another file than the one that is there
    before and after.
    """
    for path, content in ((by_link, "ours\n"), (really, "theirs\n")):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(content)
    swapped = tmp_path / "rg"
    swapped.write_text(
        f"#!/bin/sh\nwhile read -r line; do printf '%s\\n' \"$line\"; done < {tmp_path}/events\n"
    )
    swapped.chmod(0o755)
    for opened, shown in ((by_link, 1), (really, 0)):
        match = {
            "lines": {"text": (tree / opened).read_text()},
            "line_number": 1,
            "submatches": [{"start": 0}],
        }
        end = {"binary_offset": None, "path": {"text": f"./{by_link}"}}
        events = [{"type": "match", "data": match}, {"type": "end", "data": end}]
        (tmp_path / "events").write_text("".join(json.dumps(event) + "\n" for event in events))
        query = Ripgrep(pattern="record of")
        output = ripgrep(query, records, binary=str(swapped), confined=False)
        assert len(shown_of(output)[1]) == shown


HIDDEN_NOTE = " 1 place hidden: the router's own."


def test_a_search_leaves_hidden_folders_out_and_says_so(records: ToolContext) -> None:
    head, files = found(records)
    assert files == ["job/runs/r1/routing.jsonl", "runs-old/r1/routing.jsonl"]
    assert head.endswith(HIDDEN_NOTE)
    head, files = found(records, glob="runs/**")
    assert files == []  # the glob has a folder, so it starts at the root
    assert "hidden" not in found(records, path="job")[0]


@pytest.mark.parametrize("pattern", ["record of runs$", "nowhere to be found"])
def test_a_search_that_finds_nothing_says_what_was_hidden(
    records: ToolContext, pattern: str
) -> None:
    (block,) = ripgrep(Ripgrep(pattern=pattern), records).blocks
    assert isinstance(block, Text)
    assert block.text.startswith("No match")
    assert block.text.endswith(HIDDEN_NOTE)
    by_link = replace(records, hidden=(f"{records.workspace}/to-runs",))
    assert ripgrep(Ripgrep(pattern=pattern), by_link).blocks == (block,)


def test_a_search_knows_a_hidden_folder_by_what_it_is(tree: Path, records: ToolContext) -> None:
    """The router's name for it may be a link by now, and another name may be a link to it."""
    (tree / "alias-of-runs").symlink_to("runs")
    (tree / "runs").rename(tree / "innocent")
    (tree / "runs").symlink_to("innocent")
    for name in ("runs", "alias-of-runs", "innocent"):
        with pytest.raises(ToolFailure) as refused:
            found(records, path=name)
        assert refused.value.code == "hidden"
    head, files = found(records)
    assert files == ["job/runs/r1/routing.jsonl", "runs-old/r1/routing.jsonl"]
    assert head.endswith(HIDDEN_NOTE)


BOUND = """
import json, os, sys
from bundle_router.local_tools.repo import TOOLS
from bundle_router.local_tools.repo.hits import Ripgrep
from bundle_router.local_tools.repo.text_search import ripgrep
from bundle_router.adapters.sandbox import linux
from bundle_router.core.values import LocalSettings, ToolContext
from bundle_router.errors import ToolFailure

top = sys.argv[1]
linux.mount(f"{top}/runs", f"{top}/job/other-name", None, linux.MS_BIND)
where = ToolContext(top, LocalSettings(), timeout_s=30, max_bytes=1 << 20, hidden=(f"{top}/runs",))
said = [ripgrep(Ripgrep(pattern="record of", path="job"), where).blocks[0].text]
tools = {tool.name: tool for tool in TOOLS}
said.append(tools["list_dir"].run(tools["list_dir"].arguments(path="job"), where).blocks[0].text)
said.append(tools["git_diff"].run(tools["git_diff"].arguments(), where).blocks[0].text)
try:
    tools["read_file"].run(tools["read_file"].arguments(path="job/other-name/r1/routing.jsonl"), where)
except ToolFailure as failure:
    said.append(failure.code)
print(json.dumps(said))
"""
MOUNTING = ["unshare", "--map-root-user", "--mount"]


def can_mount() -> bool:
    found = shutil.which("unshare") is not None
    return (
        found
        and subprocess.run([*MOUNTING, "true"], check=False, capture_output=True).returncode == 0
    )


@needs_git
def test_a_bind_mount_of_a_hidden_folder_is_hidden_too(tree: Path, records: ToolContext) -> None:
    if not can_mount():
        pytest.skip("no mount namespace can be made here")
    (tree / "job" / "other-name" / "r1").mkdir(parents=True)
    (tree / "job" / "other-name" / "r1" / "routing.jsonl").write_text(
        "tracked under the mount point\n"
    )
    make_repository(tree)
    script = [sys.executable, "-c", BOUND, str(tree)]
    done = subprocess.run([*MOUNTING, *script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *shown, code = json.loads(done.stdout)
    assert code == "hidden"
    for text in shown:
        assert HIDDEN_NOTE in text
        assert "other-name" not in text
        assert "record of runs" not in text


def test_names_with_glob_characters_hide_only_themselves(tree: Path) -> None:
    for name in ("r[u]n?{a,b}*!s", "run", "rux", "runxa!s"):
        (tree / name).mkdir()
        (tree / name / "f").write_text("record of\n")
    _, files = found(context(tree, hidden=(f"{tree}/r[u]n?{{a,b}}*!s",)))
    assert files == ["run/f", "runxa!s/f", "rux/f"]


@pytest.mark.parametrize(
    "path", ["runs", "runs/r1", "to-runs", "to-runs/r1", "job/../runs", "runs/r1/routing.jsonl"]
)
@pytest.mark.parametrize(
    "tool", ["read_file", "list_dir", "ripgrep", "git_log", "git_diff", "write_file"]
)
def test_no_tool_takes_a_path_into_a_hidden_folder(
    tree: Path, records: ToolContext, tool: str, path: str
) -> None:
    if tool.startswith("git"):
        if shutil.which("git") is None:
            pytest.skip("git is not installed")
        make_repository(tree)
    arguments = {**EVERY_TOOL[tool], "path": f"{path}/new" if tool == "write_file" else path}
    wanted = (
        {"hidden", "outside_workspace"} if tool.startswith("git") and ".." in path else {"hidden"}
    )
    assert refusal(tool, records, **arguments) in wanted
    assert not list((tree / "runs").rglob("new"))


@needs_git
def test_a_diff_leaves_out_tracked_records(tree: Path, records: ToolContext) -> None:
    make_repository(tree, mine="1\n")
    (tree / "runs" / "r1" / "routing.jsonl").write_text("record of another run\n")
    assert "none." in call("git_diff", records)
    assert call("git_diff", records).endswith(HIDDEN_NOTE)
    (tree / "mine").write_text("2\n")
    (tree / "job" / "runs" / "r1" / "routing.jsonl").write_text("mine too\n")
    kinds: list[dict[str, Any]] = [{}, {"stat": True}, {"base": "HEAD"}, {"path": "."}]
    for arguments in kinds:
        text = call("git_diff", records, **arguments)
        assert HIDDEN_NOTE in text
        assert "mine" in text
        assert "job/runs/r1/routing.jsonl" in text
        assert "another run" not in text
        assert " runs/r1" not in text
        assert "a/runs" not in text
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "second")
    kinds = [{"base": "HEAD~1", "target": "HEAD"}, {"base": "HEAD~1", "staged": True}]
    for arguments in kinds:
        text = call("git_diff", records, **arguments)
        assert HIDDEN_NOTE in text
        assert "+2" in text
        assert "another run" not in text
    assert "second" in call("git_log", records)
    assert "another run" in call(
        "git_diff", context(tree), base="HEAD~1", target="HEAD"
    )  # nothing hidden: it is there


@needs_git
def test_a_record_renamed_in_history_is_not_shown_as_a_rename(
    tree: Path, records: ToolContext
) -> None:
    text = "".join(f"record line {number}\n" for number in range(50))
    (tree / "runs" / "r1" / "routing.jsonl").write_text(text)
    make_repository(tree)
    (tree / "runs" / "r1" / "routing.jsonl").unlink()
    (tree / "moved").write_text(text.replace("line 7\n", "line seven\n"))
    git(tree, "add", "--all")
    shown = call("git_diff", records, staged=True)
    assert "-record line 7" not in shown
    assert "rename from" not in shown
