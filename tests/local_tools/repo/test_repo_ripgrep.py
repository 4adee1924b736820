"""`repo.ripgrep`, and S-14: patterns that blow up elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.processes.starting import find_binary
from bundle_router.core.values import LocalSettings, Text, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo import rg
from bundle_router.local_tools.repo.globs import globs_beneath
from bundle_router.local_tools.repo.hits import Ripgrep
from bundle_router.local_tools.repo.text_search import ripgrep

PATTERNS = json.loads(
    (Path(__file__).parents[2] / "data" / "redos" / "patterns.json").read_text("utf-8")
)


def context_for(workspace: Path, **changes: Any) -> ToolContext:
    values: dict[str, Any] = {"settings": LocalSettings(), "timeout_s": 30.0, "max_bytes": 1 << 20}
    return ToolContext(str(workspace), **{**values, **changes})


def find(
    workspace: Path,
    pattern: str,
    *,
    limits: dict[str, Any] | None = None,
    **arguments: Any,
) -> list[str]:
    query = Ripgrep(pattern=pattern, **arguments)
    (block,) = ripgrep(query, context_for(workspace, **(limits or {}))).blocks
    assert isinstance(block, Text)
    return block.text.split("\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    files = {
        ".gitignore": (
            b"*.log\n/build/\nnode_modules/\n!keep.log\nsub/only.txt\n**/cache/*.tmp\n#"
            b" comment\n\\#hash\n"
        ),
        "a.py": b"import os\n\ndef alpha():\n    return 1\n\ndef beta():\n    return alpha()\n",
        "b.txt": b"Alpha\nalpha\nALPHA\n",
        "noend.txt": b"x\nalpha at the end",
        "crlf.txt": b"one\r\nalpha\r\n",
        "debug.log": b"alpha\n",
        "keep.log": b"alpha\n",
        "#hash": b"alpha\n",
        "build/out.txt": b"alpha\n",
        "src/build/in.txt": b"alpha\n",
        "node_modules/m/x.js": b"alpha\n",
        "src/node_modules/x.js": b"alpha\n",
        "sub/only.txt": b"alpha\n",
        "sub/.gitignore": b"local.txt\n!special.log\n",
        "sub/local.txt": b"alpha\n",
        "sub/special.log": b"alpha\n",
        "x/cache/a.tmp": b"alpha\n",
        ".github/ci.yml": b"alpha\n",
        ".git/config": b"alpha\n",
        "nested/.git/HEAD": b"alpha\n",
        "nested/n.log": b"alpha\n",
        "binary.dat": b"alpha\n" + b"x" * 100_000 + b"\0\n",
        "utf16.txt": "alpha\n".encode("utf-16"),
        "bom.txt": b"\xef\xbb\xbfalpha\n",
        "latin.txt": b"na\xefve alpha\n",
        "blank.txt": b"\n\nz\n",
    }
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "outside.txt").write_bytes(b"alpha outside\n")
    (root / "link.txt").symlink_to("../outside.txt")
    (root / "linkdir").symlink_to("src")
    return root


def test_a_search_goes_where_it_should_and_nowhere_else(project: Path) -> None:
    shown = find(project, "alpha")
    assert shown == [
        "13 matching lines in 12 files.",
        ".github/ci.yml",
        "  1: alpha",
        "a.py",
        "  3: def alpha():",
        "  7:     return alpha()",
        "b.txt",
        "  2: alpha",
        "bom.txt",
        "  1: alpha",
        "crlf.txt",
        "  2: alpha",
        "keep.log",
        "  1: alpha",
        "latin.txt",
        "  1: na�ve alpha",
        "nested/n.log",
        "  1: alpha",
        "noend.txt",
        "  2: alpha at the end",
        "src/build/in.txt",
        "  1: alpha",
        "sub/special.log",
        "  1: alpha",
        "utf16.txt",
        "  1: alpha",
    ]


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ({"pattern": "alpha", "glob": "*.py"}, ["a.py"]),
        ({"pattern": "alpha", "glob": "*.{py,yml}"}, [".github/ci.yml", "a.py"]),
        ({"pattern": "alpha", "glob": "src/*/in.*"}, ["src/build/in.txt"]),
        (
            {"pattern": "alpha", "glob": "!*.t*t", "path": "."},
            [".github/ci.yml", "a.py", "keep.log", "nested/n.log", "sub/special.log"],
        ),
        ({"pattern": "alpha", "glob": "debug.log"}, ["debug.log"]),
        ({"pattern": "alpha", "glob": "[ab].[pt][yx]*"}, ["a.py", "b.txt"]),
        ({"pattern": "alpha", "path": "src", "glob": "src/*/in.*"}, ["src/build/in.txt"]),
        ({"pattern": "alpha", "path": "src", "glob": "/src/**/*.js"}, []),
        ({"pattern": "alpha", "path": "src", "glob": "**/in.txt"}, ["src/build/in.txt"]),
        ({"pattern": "alpha", "path": "src/build", "glob": "src/**"}, ["src/build/in.txt"]),
        ({"pattern": "alpha", "path": "src", "glob": "build/*.txt"}, []),
        ({"pattern": "alpha", "path": "src", "glob": "!src/build/**"}, []),
        ({"pattern": "alpha", "path": "src", "glob": "!build/*.txt"}, ["src/build/in.txt"]),
        ({"pattern": "alpha", "path": "src", "glob": "{sub,src/b*}/*.txt"}, ["src/build/in.txt"]),
        ({"pattern": "alpha", "path": "a.py", "glob": "src/*"}, ["a.py"]),
        ({"pattern": "alpha", "path": "sub"}, ["sub/special.log"]),
        ({"pattern": "alpha", "path": "src"}, ["src/build/in.txt"]),
        ({"pattern": "alpha", "path": "src/build/in.txt"}, ["src/build/in.txt"]),
        ({"pattern": "alpha", "path": "build"}, ["build/out.txt"]),
        ({"pattern": "alpha", "path": "linkdir"}, ["linkdir/build/in.txt"]),
        ({"pattern": "alpha", "path": "debug.log"}, ["debug.log"]),
        ({"pattern": "ALPHA", "path": "b.txt"}, ["b.txt"]),
        ({"pattern": "^$", "path": "blank.txt"}, ["blank.txt"]),
        ({"pattern": "alpha()", "literal": True}, ["a.py"]),
        ({"pattern": "a.*a$", "path": "b.txt"}, ["b.txt"]),
        ({"pattern": "-e", "literal": True}, []),
        ({"pattern": "--files"}, []),
    ],
)
def test_path_and_glob_narrow_the_search(
    project: Path, arguments: dict[str, Any], files: list[str]
) -> None:
    shown = find(project, **arguments)
    assert [line for line in shown[1:] if not line.startswith("  ")] == files


def test_only_gitignore_files_count_and_they_do_without_a_repository(tmp_path: Path) -> None:
    (tmp_path / ".git" / "info").mkdir(parents=True)
    for name, content in ((".gitignore", "a\n"), (".ignore", "b\n"), (".git/info/exclude", "c\n")):
        (tmp_path / name).write_text(content)
    for name in "abc":
        (tmp_path / name).write_text("hit\n")
    assert [line for line in find(tmp_path, "hit")[1:] if line[0] != " "] == ["b", "c"]
    shutil.rmtree(tmp_path / ".git")
    assert [line for line in find(tmp_path, "hit")[1:] if line[0] != " "] == ["b", "c"]


def test_empty_lines_are_found_and_the_end_of_a_file_is_none(project: Path) -> None:
    assert find(project, "^$", path="blank.txt")[1:] == ["blank.txt", "  1: ", "  2: "]


def test_case_is_ignored_when_asked(project: Path) -> None:
    assert (
        find(project, "aLPHa", path="b.txt", ignore_case=True)[0] == "3 matching lines in 1 file."
    )
    assert find(project, "aLPHa", path="b.txt")[0].startswith("No match in b.txt.")


def test_context_lines_stand_round_matches_and_gaps_are_marked(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(
        "".join(f"{n}{' hit' if n in (3, 4, 9) else ''}\n" for n in range(1, 12))
    )
    assert find(tmp_path, "hit", context=1)[2:] == [
        "  2- 2",
        "  3: 3 hit",
        "  4: 4 hit",
        "  5- 5",
        "  --",
        "  8- 8",
        "  9: 9 hit",
        "  10- 10",
    ]


@pytest.mark.parametrize("context", [0, 2])
def test_the_match_limit_holds_over_files_and_says_there_is_more(
    tmp_path: Path, context: int
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("hit\nhit\nmiss\nhit\n")
    shown = find(tmp_path, "hit", max_matches=2, context=context)
    assert shown[0].startswith(
        "2 matching lines in 1 file, stopped at max_matches=2: there are more."
    )
    assert shown[1:] == ["a", "  1: hit", "  2: hit", *(["  3- miss"] if context else [])]
    assert find(tmp_path, "hit", max_matches=6)[0] == "6 matching lines in 2 files."


def test_the_byte_bound_holds(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("hit and some more text\n" * 1000)
    shown = find(tmp_path, "hit", max_matches=2000, limits={"max_bytes": 2000})
    assert len("\n".join(shown)) <= 2000
    assert "stopped at 2,000 bytes" in shown[0]


def test_a_long_line_is_shown_round_its_match(tmp_path: Path) -> None:
    (tmp_path / "min.js").write_text("x" * 50_000 + "needle" + "y" * 50_000)
    line = find(tmp_path, "needle")[2]
    assert "needle" in line
    assert len(line) < 500
    assert "(100,006 bytes)" in line


def test_files_over_the_size_bound_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"hit\n" + b"x" * (10 * 1024 * 1024))
    assert find(tmp_path, "hit")[0].startswith("No match")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"path": ".."}, "outside_workspace"),
        ({"path": "link.txt"}, "outside_workspace"),
        ({"path": "/etc"}, "outside_workspace"),
        ({"path": "missing"}, "not_found"),
        ({"path": "fifo"}, "not_a_file"),
        ({"glob": "[a"}, "bad_glob"),
        ({"glob": "{a,b"}, "bad_glob"),
        ({"pattern": "a\0b"}, "bad_pattern"),
        ({"pattern": "a\nb"}, "bad_pattern"),
        ({"pattern": "a\\nb"}, "bad_pattern"),
    ],
)
def test_what_can_not_be_searched_is_refused_with_its_code(
    project: Path, arguments: dict[str, Any], code: str
) -> None:
    os.mkfifo(project / "fifo")
    with pytest.raises(ToolFailure) as caught:
        find(project, **{"pattern": "alpha", **arguments})
    assert caught.value.code == code


def test_a_fifo_in_a_searched_folder_does_not_hang(project: Path) -> None:
    os.mkfifo(project / "src" / "fifo")
    assert find(project, "alpha", path="src")[0] == "1 matching line in 1 file."


def test_file_names_are_shown_on_one_line(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"bad\xff\nname")).write_text("hit\n")
    assert find(tmp_path, "hit")[1] == "bad\\xff\\x0aname"


# --- S-14 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", PATTERNS, ids=[row["name"] for row in PATTERNS])
def test_no_pattern_blows_up_and_none_is_half_supported(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    (tmp_path / "f").write_text((row["fill"] * 5000 + "!\n") * 20)
    if row["supported"]:
        assert find(tmp_path, row["pattern"], limits={"timeout_s": 20.0})
        return
    with pytest.raises(ToolFailure) as caught:
        find(tmp_path, row["pattern"])
    assert caught.value.code == "bad_pattern"
    assert "back-references and look-around are not supported" in caught.value.advice


def test_ten_thousand_alternatives_are_searched(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("word99 word9999x word\n" * 5000)
    pattern = "|".join(f"word{number}x" for number in range(10_000))
    assert find(tmp_path, pattern, max_matches=3)[0].startswith(
        "3 matching lines in 1 file, stopped"
    )


def test_a_gitignore_of_stars_does_not_blow_up(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*a" * 60 + "*b\n" + "[\n" + "x" * 5000 + "\n")
    (tmp_path / ("a" * 200)).write_text("hit\n")
    assert find(tmp_path, "hit")[0] == "1 matching line in 1 file."


# --- time, program --------------------------------------------------------------------------------


def test_a_search_out_of_time_says_so(project: Path) -> None:
    with pytest.raises(ToolFailure) as caught:
        find(project, "alpha", limits={"timeout_s": 0.0})
    assert caught.value.code == "timeout"


def test_a_search_whose_caller_went_away_stops(project: Path) -> None:
    with pytest.raises(ToolFailure) as caught:
        find(project, "alpha", limits={"cancelled": lambda: True})
    assert caught.value.code == "cancelled"


def test_hard_links_are_not_searched_when_they_are_refused(project: Path) -> None:
    (project / "hard.txt").hardlink_to(project.parent / "outside.txt")
    context = context_for(project, settings=LocalSettings(hard_links="refuse"))
    (block,) = ripgrep(Ripgrep(pattern="outside"), context).blocks
    assert isinstance(block, Text)
    assert block.text.startswith("No match")


@pytest.mark.parametrize(
    ("glob", "folder", "expected"),
    [
        ("*.py", "src/core", ["*.py"]),
        ("src/*.py", "src", ["/*.py"]),
        ("src/*.py", "src/core", []),
        ("src/*.py", "lib", []),
        ("/src/core/x.py", "src/core", ["/x.py"]),
        ("src/**", "src/core", ["/**"]),
        ("src/**/x.py", "src/core", ["/**/x.py"]),
        ("**/core/x.py", "src/core", ["/**/core/x.py", "/x.py"]),
        ("**/x.py", "src/core", ["/**/x.py"]),
        ("s[a-r]c/x", "src", ["/x"]),
        ("s[^a-r]c/x", "src", []),
        ("s[!a-r]c/x", "src", []),
        ("s?c/x", "src", ["/x"]),
        (r"s\*c/x", "src", []),
        (r"s\*c/x", "s*c", ["/x"]),
        ("{src,lib}/{a,b}", "lib", ["/a", "/b"]),
        ("{src/core,lib}/x", "src/core", ["/x"]),
        ("src", "src", ["src"]),
        ("src/core", "src/core", []),
        ("src/", "src", ["src/"]),
    ],
)
def test_a_glob_means_in_a_folder_what_it_means_in_the_workspace(
    glob: str, folder: str, expected: list[str]
) -> None:
    assert sorted(globs_beneath(glob, folder)) == sorted(expected)


@pytest.mark.parametrize("glob", ["{src/x,a", "src}/x", "s[rc/x", "{a,b}/" * 9])
def test_a_glob_that_can_not_be_used_in_a_folder_is_refused(project: Path, glob: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        find(project, "alpha", path="src", glob=glob)
    assert caught.value.code == "bad_glob"


def test_the_program_is_the_one_that_was_installed_with_the_router() -> None:
    found = Path(rg.find_rg("/"))
    assert found == Path(sys.prefix, "bin", "rg").resolve()


def test_where_it_can_not_be_confined_nothing_is_searched(project: Path, tmp_path: Path) -> None:
    wrapper = tmp_path / "rg"
    wrapper.write_text(f'#!/bin/sh\ntouch {tmp_path}/started\nexec rg "$@"\n')
    wrapper.chmod(0o755)
    with pytest.raises(ToolFailure, match="can't be confined here") as caught:
        ripgrep(Ripgrep(pattern="alpha"), context_for(project), binary=str(wrapper))
    assert caught.value.code == "unavailable"
    assert "Landlock" in caught.value.advice
    assert not (tmp_path / "started").exists()


def test_a_binary_inside_the_workspace_is_never_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "rg"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\ntouch canary\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:.:bin")
    assert find_binary("rg", outside=str(tmp_path)) is None
    assert find_binary("rg", outside=str(tmp_path / "elsewhere")) == str(fake)


def test_searches_from_many_threads_do_not_disturb_each_other(project: Path) -> None:
    results: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: results.append(find(project, "alpha"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(result == results[0] for result in results)
    assert Path("/etc/passwd").read_bytes()  # this process itself was never confined


@pytest.mark.parametrize("pattern", ["0;$", "^return 0;$", r"0;\s*$"])
def test_the_end_of_a_line_of_windows_is_matched(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "dos.c").write_bytes(b"int a;\r\nreturn 0;\r\n")
    (tmp_path / "unix.c").write_bytes(b"int a;\nreturn 0;\n")
    assert find(tmp_path, pattern) == [
        "2 matching lines in 2 files.",
        "dos.c",
        "  2: return 0;",
        "unix.c",
        "  2: return 0;",
    ]
