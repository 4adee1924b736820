"""What a started program can't reach.

Each test has its counterpart without the protection, so that it can fail.
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run(run_either: Any) -> Any:
    return run_either


WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('escaped')"
CONNECT = """
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60).close()
print("connected")
"""


def test_writes_outside_the_workspace_are_refused(run: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    ran = run(WRITE, str(outside))
    ran.need("files")
    assert ran.failed
    assert not outside.exists()


def test_without_landlock_the_same_write_succeeds(run: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    assert not run(WRITE, str(outside), facilities=()).failed
    assert outside.exists()


def test_writes_inside_the_workspace_succeed(run: Any, workspace: Path) -> None:
    ran = run(
        "import os; os.makedirs('a/b'); open('a/b/c', 'w').write('x'); os.rename('a/b/c', 'd')"
    )
    assert not ran.failed
    assert (workspace / "d").read_text() == "x"


@pytest.mark.parametrize(
    "attack",
    [
        "open('link/file', 'w')",
        "os.link('../outside/secret', 'mine')",
        "os.rename('mine.txt', '../outside/moved')",
        "os.truncate('../outside/secret', 0)",
        "os.unlink('../outside/secret')",
        "open('../outside/secret').read()",
        "os.listdir('../outside')",
        "os.chdir('/'); open('/etc/shadow').read()",
        "os.mknod('device', 0o600 | stat.S_IFBLK, os.makedev(254, 0)); open('device', 'rb')",
        "os.chroot('.')",
        "os.setuid(12345)",
        "open('/proc/1/environ').read() or sys.exit(1)",
        "open('/proc/1/mem', 'r+b')",
    ],
)
def test_other_ways_out_are_refused(run: Any, workspace: Path, tmp_path: Path, attack: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (workspace / "link").symlink_to(outside)
    (workspace / "mine.txt").write_text("mine")
    ran = run(f"import os, stat, sys\n{attack}\n")
    ran.need("files")
    assert ran.failed, ran.text
    assert [entry.name for entry in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"


def test_the_network_outside_is_not_there(run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = str(listener.getsockname()[1])
        ran = run(CONNECT, port)
        ran.need("network")
        assert ran.failed
        assert "ConnectionRefusedError" in ran.text or "PermissionError" in ran.text
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_no_datagram_reaches_the_network_outside(run: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setblocking(False)
        address = listener.getsockname()
        ran = run(
            "import socket\nwith socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:"
            f" s.sendto(b'x', {address!r})"
        )
        ran.need("network")
        with pytest.raises(BlockingIOError):
            listener.recv(1)


def test_without_bubblewrap_landlock_refuses_tcp(run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ran = run(CONNECT, str(listener.getsockname()[1]), facilities=("files",))
        ran.need("files")
        if not any("TCP refused" in row["detail"] for row in ran.record["isolation"]):
            pytest.skip("this kernel's Landlock is older than ABI 4")
        assert ran.failed
        assert "PermissionError" in ran.text


def test_without_either_the_same_connection_succeeds(run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ran = run(CONNECT, str(listener.getsockname()[1]), facilities=())
        assert not ran.failed
        assert "connected" in ran.text
        assert not ran.held("network")


def test_a_program_can_talk_to_itself_over_loopback(run: Any) -> None:
    ran = run(
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        " socket.create_connection(s.getsockname())"
    )
    ran.need("mounts")
    assert not ran.failed


def test_other_processes_are_neither_seen_nor_reached(run: Any) -> None:
    ran = run(
        "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()));"
        f" os.kill({os.getpid()}, 0)"
    )
    ran.need("process tree")
    assert "[1, 2]" in ran.text
    assert "ProcessLookupError" in ran.text


def test_shared_memory_of_other_programs_is_neither_seen_nor_reached(run: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, 4096, 0o1666)
    assert segment >= 0
    try:
        source = (
            f"import ctypes; libc = ctypes.CDLL(None); print('found', libc.shmctl({segment}, 2,"
            " bytes(256)))"
        )
        assert "found 0" in run(source, facilities=("files",)).text
        ran = run(source)
    finally:
        libc.shmctl(segment, 0, None)
    ran.need("mounts")
    assert "found -1" in ran.text


def test_git_internals_are_read_only_unless_the_rule_says_otherwise(
    run: Any, workspace: Path
) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    ran = run("open('.git/hooks/post-checkout', 'w')")
    ran.need(".git")
    assert ran.failed
    assert not (workspace / ".git" / "hooks" / "post-checkout").exists()
    assert not run("open('.git/hooks/post-checkout', 'w')", protect_git=False).failed


def test_capabilities_are_given_up_and_none_can_be_gained(run: Any) -> None:
    status = (
        "print(*[l for l in open('/proc/self/status') if l.startswith(('CapEff', 'CapBnd',"
        " 'NoNewPrivs'))], sep='')"
    )
    ran = run(status, facilities=())
    assert ran.held("privileges")
    values = {
        line.split(":")[0]: int(line.split()[1], 16)
        for line in ran.text.splitlines()
        if ":\t" in line
    }
    allowed = 0b11011 if os.geteuid() == 0 else 0
    assert values["CapEff"] & ~allowed == 0
    assert values["NoNewPrivs"] == 1


def test_a_hidden_folder_is_empty(run: Any) -> None:
    ran = run("import os; print('seen', os.listdir('/run'))", reads=("/run/nothing-here",))
    assert (
        ran.failed
    )  # `reads` names something beneath /run, so it stays; Landlock refuses to list it
    ran = run("import os; print('seen', os.listdir('/run'))", facilities=("bubblewrap",))
    ran.need("mounts")
    assert "seen []" in ran.text
