"""S-13: reading stays beneath the root, by the kernel's openat2 and by our own walk alike."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.beneath import Opener
from bundle_router.local_tools.repo.confinement import Root, read_up_to

RACE = Path(__file__).parents[2] / "faults" / "path_race.py"
SECRET = b"outside: must never be read\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root full of ways out, beside what must not be read."""
    root = tmp_path / "root"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "plain.txt").write_bytes(b"inside\n")
    (root / "sub" / "deep" / "file.txt").write_bytes(b"deep\n")
    (tmp_path / "root-evil").mkdir()
    for secret in (tmp_path / "secret.txt", tmp_path / "root-evil" / "secret.txt"):
        secret.write_bytes(SECRET)
    links = {
        "in": "plain.txt",
        "sub/up": "../plain.txt",
        "chain1": "chain2",
        "chain2": "sub/up",
        "dirlink": "sub/deep",
        "out": "../secret.txt",
        "outdir": "..",
        "absolute": str(tmp_path / "secret.txt"),
        "absolute_inside": str(root / "plain.txt"),
        "chain_out": "chain_out2",
        "chain_out2": "sub/../../secret.txt",
        "loop1": "loop2",
        "loop2": "loop1",
        "self": "self",
        "dangling": "nowhere",
        "proc": "/proc/self/root",
        "procfd": "/proc/self/environ",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    for number in range(45):
        (root / f"long{number}").symlink_to(f"long{number + 1}" if number < 44 else "plain.txt")
    (root / "secret_link").hardlink_to(tmp_path / "secret.txt")
    os.mkfifo(root / "fifo")
    return root


@pytest.fixture
def root(tree: Path, opener: Opener) -> Iterator[Root]:
    with Root(str(tree), opener=opener) as root:
        yield root


def read(root: Root, path: str) -> bytes:
    with root.open_file(path) as file:
        return read_up_to(file, 1 << 20)


def tree_hash(folder: Path) -> str:
    """Names, kinds, contents, times and modes of everything beneath a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest.update(
            repr((str(path), info.st_mode, info.st_mtime_ns, info.st_size, content)).encode()
        )
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("plain.txt", b"inside\n"),
        ("./plain.txt", b"inside\n"),
        ("sub//deep/./file.txt", b"deep\n"),
        ("sub/../plain.txt", b"inside\n"),
        ("sub/deep/../../plain.txt", b"inside\n"),
        ("in", b"inside\n"),
        ("sub/up", b"inside\n"),
        ("chain1", b"inside\n"),
        ("dirlink/file.txt", b"deep\n"),
        ("dirlink/../deep/file.txt", b"deep\n"),
        ("dirlink/../up", b"inside\n"),
        ("long5", b"inside\n"),
    ],
)
def test_what_lies_inside_is_read(root: Root, path: str, content: bytes) -> None:
    assert read(root, path) == content


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("..", "outside_workspace"),
        ("../secret.txt", "outside_workspace"),
        ("../root-evil/secret.txt", "outside_workspace"),
        ("../root/plain.txt", "outside_workspace"),
        ("sub/../../secret.txt", "outside_workspace"),
        ("out", "outside_workspace"),
        ("outdir/secret.txt", "outside_workspace"),
        ("absolute", "outside_workspace"),
        ("absolute_inside", "outside_workspace"),
        ("chain_out", "outside_workspace"),
        ("proc/etc/passwd", "outside_workspace"),
        ("procfd", "outside_workspace"),
        ("/etc/passwd", "outside_workspace"),
        ("/proc/self/root/etc/passwd", "outside_workspace"),
        ("/", "outside_workspace"),
        ("loop1", "too_many_links"),
        ("self", "too_many_links"),
        ("long0", "too_many_links"),
        ("dangling", "not_found"),
        ("PLAIN.TXT", "not_found"),
        ("missing/file", "not_found"),
        ("plain.txt/x", "not_a_directory"),
        ("plain.txt/..", "not_a_directory"),
        ("sub", "is_directory"),
        (".", "is_directory"),
        ("fifo", "not_a_file"),
        ("pl\0ain.txt", "invalid_path"),
        ("n" * 256, "invalid_path"),
        ("n" * 4096, "invalid_path"),
        ("sub/" * 1100 + "x", "invalid_path"),
        ("lone\ud800surrogate", "invalid_path"),
    ],
)
def test_every_way_out_is_refused_with_its_code(root: Root, path: str, code: str) -> None:
    if path == "PLAIN.TXT" and (Path(root.path) / path).exists():
        pytest.skip("this file system ignores case")
    with pytest.raises(ToolFailure) as caught:
        read(root, path)
    assert caught.value.code == code


def test_a_prefix_sibling_given_as_absolute_path_is_outside(root: Root, tree: Path) -> None:
    with pytest.raises(ToolFailure, match="outside") as caught:
        read(root, f"{tree}-evil/secret.txt")
    assert caught.value.code == "outside_workspace"


def test_an_absolute_path_inside_the_root_is_taken_as_relative(root: Root, tree: Path) -> None:
    assert root.relative(f"{tree}/sub/deep") == "sub/deep"
    assert read(root, f"{tree}/plain.txt") == b"inside\n"


def test_a_root_reached_through_a_link_accepts_both_spellings(
    tmp_path: Path, tree: Path, opener: Opener
) -> None:
    (tmp_path / "alias").symlink_to(tree)
    with Root(str(tmp_path / "alias"), opener=opener) as root:
        assert (
            read(root, f"{tmp_path}/alias/plain.txt")
            == read(root, f"{tree}/plain.txt")
            == b"inside\n"
        )


def test_devices_are_refused_unopened(tree: Path, root: Root) -> None:
    try:
        os.mknod(tree / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device takes root")
    with pytest.raises(ToolFailure) as caught:
        read(root, "zero")
    assert caught.value.code == "not_a_file"


def test_a_socket_is_refused(tree: Path, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(ToolFailure) as caught:
            read(root, "socket")
    assert caught.value.code == "not_a_file"


def test_a_writer_waiting_on_a_fifo_is_not_woken(tree: Path, root: Root) -> None:
    with pytest.raises(ToolFailure):
        read(root, "fifo")
    with pytest.raises(OSError, match="No such device"):  # ENXIO: nobody has it open for reading
        os.open(tree / "fifo", os.O_WRONLY | os.O_NONBLOCK)


def test_hard_links_are_read_or_refused_as_the_setting_says(tree: Path, opener: Opener) -> None:
    with Root(str(tree), opener=opener) as root:
        assert read(root, "secret_link") == SECRET
    with Root(str(tree), opener=opener, hard_links="refuse") as root:
        with pytest.raises(ToolFailure) as caught:
            read(root, "secret_link")
        assert caught.value.code == "hard_link"
        assert read(root, "plain.txt") == b"inside\n"


def test_folders_are_listed_through_the_same_door(root: Root) -> None:
    assert [entry.name for entry in root.scandir("dirlink", limit=10)] == ["file.txt"]
    for path in ("outdir", "proc", "..", "/etc"):
        with pytest.raises(ToolFailure) as caught:
            root.scandir(path, limit=10)
        assert caught.value.code == "outside_workspace"


def test_an_entry_is_described_without_being_followed(root: Root) -> None:
    link = root.entry("out")
    assert link is not None
    assert (link.kind, link.target) == ("symlink", "../secret.txt")
    assert root.entry("nothing") is None
    assert root.entry("plain.txt/below") is None


def test_reading_leaves_no_trace_and_no_descriptor(tree: Path, root: Root) -> None:
    before, open_before = tree_hash(tree), len(list(Path("/dev/fd").iterdir()))
    for path in (
        "plain.txt",
        "chain1",
        "out",
        "loop1",
        "fifo",
        "dirlink/file.txt",
        "../secret.txt",
        "sub",
        "missing/x",
    ):
        try:
            read(root, path)
        except ToolFailure:
            continue
    assert tree_hash(tree) == before
    assert len(list(Path("/dev/fd").iterdir())) == open_before


def test_a_missing_workspace_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolFailure, match="can't be opened") as caught:
        Root(str(tmp_path / "gone"))
    assert caught.value.code == "workspace_unavailable"


def test_a_short_race_does_not_escape() -> None:
    """The long one is `python tests/faults/path_race.py` (6 s, at least 100,000 attempts)."""
    done = subprocess.run(
        [sys.executable, RACE, "--attempts", "4000", "--seconds", "0"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 escapes" in done.stdout
