"""Bounds on all of a program's processes together: the watcher."""

from __future__ import annotations

import concurrent.futures as threads
import os
import resource
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.sandbox.plan import FACILITIES

WITHOUT_BUBBLEWRAP = FACILITIES[1:]

GREEDY = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = b"x" * (80 << 20)
        time.sleep(60)
for _ in range(8):
    os.wait()
"""
WRITER = """
import os
for number in range(1000):
    with open(f"{os.environ.get('WHERE', '.')}/part{number}", "wb") as file:
        file.write(b"x" * (1 << 20)); file.flush(); os.fsync(file.fileno())
"""


@pytest.fixture(params=[FACILITIES, WITHOUT_BUBBLEWRAP], ids=["bubblewrap", "landlock"])
def facilities(request: pytest.FixtureRequest) -> Any:
    return request.param


def bound(ran: Any, name: str) -> str:
    return str(next(row["detail"] for row in ran.record["isolation"] if row["name"] == name))


def test_memory_of_all_processes_is_bounded(run: Any, facilities: Any) -> None:
    ran = run(GREEDY, memory_bytes=256 << 20, facilities=facilities)
    assert bound(ran, "memory").endswith(
        "256 MiB together, watched, without what sockets hold and shared mappings that it left"
    )
    assert "it used more than 256 MiB of memory" in ran.text
    assert ran.record["ended"] == "limit", "and not by itself, after a minute"


def test_many_processes_run_behind_what_watches_them_and_can_not_come_forward(
    run: Any, facilities: Any
) -> None:
    """A hundred processes that all take memory took 17 GiB before a watcher of their own priority
    saw 4.
    """
    source = """
import os, time
started = os.nice(0)
for _ in range(30):
    if os.fork() == 0: time.sleep(60)
while os.nice(0) == started: time.sleep(0.05)
print("behind by", os.nice(0) - started)
try:
    os.setpriority(os.PRIO_PROCESS, 0, started)
except PermissionError:
    print("no further")
"""
    shown = run(source, facilities=facilities).text
    assert f"behind by {min(10, 19 - os.nice(0))}" in shown
    assert "no further" in shown


def test_memory_that_processes_share_counts_once(run: Any) -> None:
    shared = GREEDY.replace(
        "for _ in range(8):\n    if", 'held = b"x" * (100 << 20)\nfor _ in range(8):\n    if', 1
    )
    ran = run(
        shared.replace(
            '        held = b"x" * (80 << 20)\n        time.sleep(60)',
            "        time.sleep(1); os._exit(0)",
        )
    )
    assert not ran.failed
    ran = run(
        shared.replace(
            '        held = b"x" * (80 << 20)\n        time.sleep(60)',
            "        time.sleep(1); os._exit(0)",
        ),
        memory_bytes=400 << 20,
    )
    assert not ran.failed, ran.text


def test_the_number_of_processes_is_bounded(run: Any, facilities: Any) -> None:
    source = (
        "import os, time\nfor _ in range(200):\n    if os.fork() == 0:"
        " time.sleep(60)\ntime.sleep(60)"
    )
    ran = run(source, max_processes=30, facilities=facilities)
    assert ran.failed
    assert "it started more than 30 processes" in ran.text or "BlockingIOError" in ran.text
    assert ran.record["ended"] in ("limit", "exited")


def test_threads_count_as_processes(run: Any, facilities: Any) -> None:
    source = (
        "import threading, time\nfor _ in range(100): threading.Thread(target=time.sleep,"
        " args=(60,)).start()"
    )
    ran = run(source, max_processes=30, facilities=facilities)
    assert (
        "it started more than 30 processes and threads" in ran.text
        or "can't start new thread" in ran.text
    )


def test_memory_counts_of_processes_whose_binary_can_not_be_read(run: Any, facilities: Any) -> None:
    """The kernel shows others of the same user only the status of such a process."""
    source = f"""
import os, shutil, subprocess, sys
shutil.copy(os.path.realpath(sys.executable), "x")
os.chmod("x", 0o111)
subprocess.run(["./x", "-c", {GREEDY!r}], env={{"PYTHONHOME": sys.base_prefix}}, check=True)
"""
    assert (
        "it used more than 256 MiB of memory"
        in run(source, memory_bytes=256 << 20, facilities=facilities).text
    )


def test_a_crash_is_not_given_to_the_machines_handler_of_cores(run: Any) -> None:
    """With a limit of 0 the kernel starts such a handler all the same, outside and as root; with 1
    it does not.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    expected = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    shown = run("import resource; print('core', resource.getrlimit(resource.RLIMIT_CORE)[0])").text
    assert f"core {expected}\n" in shown


@pytest.mark.parametrize("where", [".", "/dev/shm"])
def test_what_is_written_in_all_is_bounded(
    run: Any, workspace: Path, facilities: Any, where: str
) -> None:
    ran = run(WRITER, file_bytes=16 << 20, facilities=facilities, set_env=(f"WHERE={where}",))
    assert ran.failed
    if where == ".":
        assert "it wrote more than 32 MiB" in ran.text
        assert ran.record["ended"] == "limit"
    total = sum(path.stat().st_size for path in workspace.iterdir())
    assert total < 1 << 30


UNSEEN = {
    "a child that nobody waits for": (
        """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(400):
    if os.fork() == 0:
        file = os.open(f"part{number}", os.O_CREAT | os.O_WRONLY)
        os.write(file, bytes(1 << 20))
        os._exit(0)
    if number % 4 == 3:
        try: os.wait()
        except ChildProcessError: pass
"""
    ),
    "an orphan": (
        """
for number in range(100):
    if os.fork() == 0:
        if os.fork() == 0:
            file = os.open("x", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.write(file, bytes(1 << 20))
        os._exit(0)
    os.wait()
    time.sleep(0.01)
time.sleep(60)
"""
    ),
    "room that is reserved": (
        """
for number in range(200):
    os.posix_fallocate(os.open(f"part{number}", os.O_CREAT | os.O_WRONLY), 0, 4 << 20)
    time.sleep(0.02)
"""
    ),
    "a file without a name": (
        """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
held = []
for number in range(100):
    held.append(os.open("x", os.O_CREAT | os.O_RDWR)); os.unlink("x")
    if os.fork() == 0:
        os.write(held[-1], bytes(4 << 20))
        os._exit(0)
    time.sleep(0.01)
time.sleep(60)
"""
    ),
}


@pytest.mark.parametrize("source", UNSEEN.values(), ids=UNSEEN.keys())
def test_what_the_kernel_does_not_account_is_found_by_the_room_it_takes(
    run: Any, source: str, facilities: Any
) -> None:
    ran = run(f"import os, time\n{source}", file_bytes=16 << 20, facilities=facilities)
    assert "it wrote more than 32 MiB" in ran.text


def test_a_workspace_in_memory_is_bounded_too(run: Any) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        run.workspace = Path(folder).resolve()
        ran = run(WRITER, file_bytes=16 << 20)
    assert "it wrote more than 32 MiB" in ran.text


def test_what_others_write_meanwhile_ends_no_program(run: Any, tmp_path: Path) -> None:
    go, source = (
        threading.Event(),
        "import time\nprint('began', flush=True); time.sleep(1.5); print('whole')",
    )
    with threads.ThreadPoolExecutor() as pool:
        ran = pool.submit(run, source, file_bytes=4 << 20)
        with (tmp_path / "theirs").open("wb") as theirs:
            while not ran.done():
                theirs.write(bytes(8 << 20))
                go.wait(0.1)
    assert "\nwhole" in ran.result().text


HELD = {
    "files in memory": (
        "held = [os.memfd_create('x') for _ in range(60)]\nfor f in held: os.write(f, bytes(15 <<"
        " 20))"
    ),
    "segments": (
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for number in range(60):
    at = libc.shmat(libc.shmget(0, 15 << 20, 0o1600), None, 0)
    ctypes.memset(at, 1, 15 << 20)
    libc.shmdt(ctypes.c_void_p(at))
"""
    ),
}


@pytest.mark.parametrize("source", HELD.values(), ids=HELD.keys())
def test_memory_that_no_process_is_charged_for_is_bounded(run_either: Any, source: str) -> None:
    ran = run_either(f"import os, time\n{source}\ntime.sleep(60)", memory_bytes=256 << 20)
    if "shmget" in source:
        ran.need("mounts")  # segments are refused without it
    assert "it used more than 256 MiB of memory" in ran.text


def test_what_children_that_have_ended_wrote_counts(run: Any) -> None:
    child = "f = open('x', 'wb'); f.write(bytes(1 << 20))"
    source = (
        "import subprocess, sys\nfor _ in range(100): subprocess.run([sys.executable, '-c',"
        f" {child!r}])"
    )
    ran = run(source, file_bytes=4 << 20)
    assert "it wrote more than 8 MiB" in ran.text


@pytest.mark.parametrize("where", [".", "/dev/shm"])
def test_the_number_of_files_is_bounded(
    run_either: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    from bundle_router.adapters.sandbox.plan import SandboxPlan
    from bundle_router.local_tools.workspace import execution

    monkeypatch.setattr(
        execution, "SandboxPlan", lambda **fields: SandboxPlan(**fields, max_new_files=2000)
    )
    ran = run_either(f"for n in range(10_000_000): open(f'{where}/f{{n}}', 'w').close()")
    if where == "/dev/shm":
        ran.need("mounts")  # the machine's own can't be written without it
    assert "it made more than 2,000 files" in ran.text
