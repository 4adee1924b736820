"""`repo.read_file` and `repo.list_dir`, called as the router calls them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from bundle_router.core.values import LocalSettings, Media, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo import TOOLS
from bundle_router.local_tools.repo.confinement import Root
from bundle_router.local_tools.repo.hiding import CREDENTIALS
from bundle_router.local_tools.repo.hits import Ripgrep
from bundle_router.local_tools.repo.text_search import ripgrep
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.profiles import examples

TOOL = {tool.name: tool for tool in TOOLS}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def call(name: str, workspace: Path, *, max_bytes: int = 1 << 20, **arguments: Any) -> ToolOutput:
    context = ToolContext(str(workspace), LocalSettings(), timeout_s=60, max_bytes=max_bytes)
    output = TOOL[name].run(TOOL[name].arguments(**arguments), context)
    assert isinstance(output, ToolOutput)
    return output


def texts(output: ToolOutput) -> list[str]:
    return [block.text for block in output.blocks if isinstance(block, Text)]


def test_the_server_offers_five_tools_that_only_read() -> None:
    assert [tool.name for tool in TOOLS] == [
        "read_file",
        "list_dir",
        "ripgrep",
        "git_log",
        "git_diff",
    ]


def test_importing_the_tools_loads_nothing_heavy() -> None:
    heavy = (
        "[m for m in ('re2', 'ctypes', 'structlog', 'sqlmodel', 'litellm', 'mcp') if m in"
        " sys.modules]"
    )
    load = "import sys, pydantic; before = {heavy}; import bundle_router.local_tools.repo; "
    code = f"{load.format(heavy=heavy)}print([m for m in {heavy} if m not in before])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert done.stdout.strip() == "[]", done.stderr


# --- read_file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "arguments", "head", "body"),
    [
        (b"a\nb\nc\n", {}, "f.txt: lines 1-3 of 3 (6 bytes).", "a\nb\nc\n"),
        (b"a\nb\nc", {}, "f.txt: lines 1-3 of 3 (5 bytes).", "a\nb\nc"),
        (
            b"a\nb\nc\n",
            {"start": 2, "end": 2},
            "f.txt: lines 2-2 of 3 (6 bytes). For more: start=3.",
            "b\n",
        ),
        (b"a\nb\nc\n", {"start": 3}, "f.txt: lines 3-3 of 3 (6 bytes).", "c\n"),
        (b"a\nb\nc\n", {"end": 99}, "f.txt: lines 1-3 of 3 (6 bytes).", "a\nb\nc\n"),
        (b"one", {}, "f.txt: lines 1-1 of 1 (3 bytes).", "one"),
        (b"\n", {}, "f.txt: lines 1-1 of 1 (1 bytes).", "\n"),
        ("é\r\nü\r\n".encode(), {"start": 2}, "f.txt: lines 2-2 of 2 (8 bytes).", "ü\r\n"),
        (b"\xef\xbb\xbfx\n", {}, "f.txt: lines 1-1 of 1 (5 bytes).", "x\n"),
        ("a\nß\n".encode("utf-16"), {}, "f.txt: lines 1-2 of 2 (10 bytes).", "a\nß\n"),
    ],
)
def test_a_range_of_lines_says_where_it_stands(
    tmp_path: Path, content: bytes, arguments: dict[str, int], head: str, body: str
) -> None:
    (tmp_path / "f.txt").write_bytes(content)
    assert texts(call("read_file", tmp_path, path="f.txt", **arguments)) == [head, body]


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert texts(call("read_file", tmp_path, path="empty")) == ["empty: empty file."]


def test_a_start_beyond_the_end_says_how_many_lines_there_are(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\nb\n")
    with pytest.raises(ToolFailure, match="has 2 lines") as caught:
        call("read_file", tmp_path, path="f", start=3)
    assert caught.value.code == "out_of_range"


def test_a_long_file_comes_in_pages_that_join_to_the_whole(tmp_path: Path) -> None:
    content = "".join(f"line {number}\n" for number in range(1, 4501))
    (tmp_path / "long").write_text(content)
    first = texts(call("read_file", tmp_path, path="long"))
    assert first[0].startswith("long: lines 1-2,000 of 4,500") and first[0].endswith(  # noqa: PT018
        "For more: start=2001."
    )
    pages = [
        texts(call("read_file", tmp_path, path="long", start=start))[1] for start in (1, 2001, 4001)
    ]
    assert "".join(pages) == content


def test_the_byte_bound_cuts_and_says_where_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "wide").write_text("0123456789\n" * 100)
    head, body = texts(call("read_file", tmp_path, path="wide", max_bytes=25))
    assert body == "0123456789\n0123456789\n012"
    assert (  # noqa: PT018
        head.startswith("wide: lines 1-3 of 100")
        and "Cut at 25 bytes inside line 3. For more: start=3." in head
    )


def test_a_file_larger_than_memory_may_hold_is_read_within_the_bound(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"first\nsecond\n" + b"x" * 9000)
        file.truncate(1 << 40)
    head, body = texts(call("read_file", tmp_path, path="sparse", end=2))
    assert body == "first\nsecond\n"
    assert head.startswith("sparse: lines 1-2 of more than 3 (")


def test_a_character_cut_in_half_by_the_bound_is_not_called_invalid(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("é" * 10, encoding="utf-8")
    head, body = texts(call("read_file", tmp_path, path="f", max_bytes=5))
    assert body == "éé"
    assert "UTF-8" not in head


def test_text_that_is_not_utf8_is_shown_and_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("naïve\n".encode("latin-1"))
    head, body = texts(call("read_file", tmp_path, path="latin"))
    assert "Not valid UTF-8 (first bad byte 0xef" in head
    assert body == "na�ve\n"


@pytest.mark.parametrize(
    ("name", "content", "mime_type"),
    [
        ("logo.png", PNG, "image/png"),
        ("logo", PNG, "image/png"),
        ("clip.wav", b"RIFF\0\0\0\0WAVE", "audio/x-wav"),
        ("doc.pdf", b"%PDF-1.7 no nul here", "application/pdf"),
        ("blob", b"a\0b", "application/octet-stream"),
        ("lie.txt", PNG, "text/plain"),
    ],
)
def test_binary_files_become_artifacts_byte_for_byte(
    tmp_path: Path, name: str, content: bytes, mime_type: str
) -> None:
    (tmp_path / name).write_bytes(content)
    text, media = call("read_file", tmp_path, path=name).blocks
    assert media == Media(content, mime_type, name)
    assert isinstance(text, Text)
    assert "artifact" in text.text


def test_a_binary_file_over_the_bound_is_refused_not_cut(tmp_path: Path) -> None:
    (tmp_path / "big.png").write_bytes(PNG * 10)
    with pytest.raises(ToolFailure) as caught:
        call("read_file", tmp_path, path="big.png", max_bytes=100)
    assert caught.value.code == "too_large"


def test_a_caller_that_went_away_stops_the_scan(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x\n" * 1_000_000)
    context = ToolContext(str(tmp_path), LocalSettings(), 20, 1000, cancelled=lambda: True)
    with pytest.raises(ToolFailure) as caught:
        TOOL["read_file"].run(TOOL["read_file"].arguments(path="f"), context)
    assert caught.value.code == "cancelled"


@pytest.mark.parametrize(
    "wrong", [{"path": ""}, {"path": "f", "start": 0}, {"path": "f", "start": 5, "end": 4}]
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TOOL["read_file"].arguments(**wrong)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.text("ab\rß", max_size=6), min_size=1, max_size=12),
    start=st.integers(1, 14),
    size=st.integers(0, 12),
)
def test_any_range_is_that_slice_of_the_lines(
    tmp_path: Path, lines: list[str], start: int, size: int
) -> None:
    content = "\n".join(lines)
    (tmp_path / "f").write_text(content, encoding="utf-8", newline="")
    expected = "".join(
        content.split("\n")[i] + ("\n" if i < len(lines) - 1 else "")
        for i in range(start - 1, min(len(lines), start + size))
    )
    if start > max(1, content.count("\n") + (not content.endswith("\n") and content != "")):
        with pytest.raises(ToolFailure, match="is beyond that"):
            call("read_file", tmp_path, path="f", start=start, end=start + size)
    else:
        assert (
            "".join(texts(call("read_file", tmp_path, path="f", start=start, end=start + size))[1:])
            == expected
        )


# --- list_dir -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/inner/deepest", "a", ".git/objects"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "b" / "inner" / "leaf.txt").write_text("12345")
    (tmp_path / "z.txt").write_text("1")
    (tmp_path / "Big.txt").write_bytes(b"x" * 1234)
    (tmp_path / "link").symlink_to("b/inner")
    (tmp_path / "evil\n[2Jname").touch()
    return tmp_path


def test_a_folder_is_listed_in_byte_order_with_kinds_and_sizes(folder: Path) -> None:
    assert texts(call("list_dir", folder))[0].split("\n") == [
        ".: 7 entries, depth 1.",
        ".git/",
        "Big.txt  1,234 bytes",
        "a/",
        "b/",
        "evil\\x0a[2Jname  0 bytes",
        "link -> b/inner",
        "z.txt  1 byte",
    ]


def test_depth_goes_down_but_not_into_links_or_git(folder: Path) -> None:
    shown = texts(call("list_dir", folder, depth=3))[0].split("\n")
    assert "b/inner/deepest/" in shown
    assert "b/inner/leaf.txt  5 bytes" in shown
    assert not any(line.startswith((".git/o", "link/")) for line in shown)


def test_too_many_entries_keep_the_shallow_ones_and_count_the_rest(folder: Path) -> None:
    head, *shown = texts(call("list_dir", folder, depth=3, max_entries=8))[0].split("\n")
    assert head.startswith(".: 8 of 10 entries, depth 3.")
    assert "z.txt  1 byte" in shown and "b/inner/" in shown  # noqa: PT018
    assert "b/inner/deepest/" not in shown


def test_listing_a_file_says_it_is_no_folder(folder: Path) -> None:
    with pytest.raises(ToolFailure) as caught:
        call("list_dir", folder, path="z.txt")
    assert caught.value.code == "not_a_directory"


# --- credentials ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(name for name, _ in CREDENTIALS),
        ".git/modules/sub/config",
        "deep/.GIT/Config",
        "deep/.netrc",
        "by-a-link",
        "folder-link/config",
        "hard-link",
    ],
)
def test_files_of_credentials_are_neither_read_nor_searched(tmp_path: Path, name: str) -> None:
    places = {
        "by-a-link": ".netrc",
        "folder-link/config": ".git/config",
        "hard-link": ".git/config",
    }
    path = tmp_path / places.get(name, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("https://me:hunter2@example.org")
    (tmp_path / "by-a-link").symlink_to(".netrc")
    (tmp_path / "folder-link").symlink_to(".git")
    if name == "hard-link":
        (tmp_path / "hard-link").hardlink_to(path)
    with pytest.raises(ToolFailure) as caught:
        call("read_file", tmp_path, path=name)
    assert caught.value.code == "credentials"
    if name == "hard-link":
        # searching does not open what it finds again; a program can't make such a link (the .git is
        # read-only)
        return
    context = ToolContext(str(tmp_path), LocalSettings(), timeout_s=60, max_bytes=1 << 20)
    found = ripgrep(Ripgrep(pattern="hunter2"), context)
    assert "hunter2@" not in texts(found)[0]
    for folder in (path.parent, tmp_path / "folder-link"):
        if folder.exists():
            inside = Ripgrep(pattern="hunter2", path=str(folder.relative_to(tmp_path)))
            assert "hunter2@" not in texts(ripgrep(inside, context))[0]


@pytest.mark.parametrize("name", [".git/config", "separate/config"])
def test_a_file_of_credentials_that_is_replaced_while_it_is_read_is_not_shown(
    tmp_path: Path, name: str
) -> None:
    """The kernel calls it `… (deleted)` then; git replaces its config at each change."""
    config = tmp_path / name
    for path in (config, *(config.parent / beside for beside in ("HEAD", "objects", "refs"))):
        path.parent.mkdir(exist_ok=True)
        path.write_text("hunter2")

    class Replaced(Root):
        def open_file(self, path: str) -> BinaryIO:
            file = super().open_file(path)
            config.with_name("new").write_text("hunter2")
            config.with_name("new").replace(config)
            return file

    with Replaced(str(tmp_path)) as root, pytest.raises(ToolFailure) as caught:
        root.open_for_reader(name)
    assert caught.value.code == "credentials"


@pytest.mark.parametrize(
    "name",
    [
        ".git/hooks/pre-commit",
        ".env.example",
        "id_rsa.pub",
        "config",
        "docs/config",
        ".github/config",
    ],
)
def test_hooks_examples_and_public_keys_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("ordinary")
    assert "ordinary" in texts(call("read_file", tmp_path, path=name))
