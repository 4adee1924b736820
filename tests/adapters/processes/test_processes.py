"""How programs are started, read and ended: `local_tools.processes.starting`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundle_router.adapters.processes.starting import (
    Command,
    StartedProcess,
    find_binary,
    run_to_end,
    start,
)

SHELL = "/bin/sh"


def shell(script: str, *words: str) -> Command:
    return Command((SHELL, "-c", script, "sh", *words), env={"PATH": "/usr/bin:/bin"})


def never() -> None:
    """Let it go on."""


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False


@pytest.fixture
def sleeping() -> Iterator[Callable[[str], StartedProcess]]:
    """Start scripts, and end what a test left."""
    started: list[StartedProcess] = []

    def begin(script: str) -> StartedProcess:
        started.append(start(shell(script)))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def test_both_streams_arrive_with_the_exit_status() -> None:
    done = run_to_end(shell("echo out; echo err >&2; exit 3"), timeout_s=60, max_bytes=100)
    assert (done.status, done.stdout, done.stderr, done.is_cut) == (3, b"out\n", b"err\n", False)


def test_the_signal_that_ended_it_is_its_status() -> None:
    assert run_to_end(shell("kill -9 $$"), timeout_s=60, max_bytes=100).status == -signal.SIGKILL


def test_the_environment_and_the_descriptors_are_those_that_were_named(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("given")
    with (tmp_path / "given").open() as given, (tmp_path / "given").open() as other:
        os.set_inheritable(other.fileno(), True)
        listing = (
            "import os; print(os.environ.get('NAME'), len(os.environ), os.listdir('/proc/self/fd'))"
        )
        command = Command(
            (sys.executable, "-I", "-S", "-c", listing),
            env={"NAME": "value", "LC_ALL": "C"},
            inherited=(given.fileno(),),
        )
        said = run_to_end(command, timeout_s=60, max_bytes=1000).stdout.decode()
        assert said.startswith("value 2 ")
        assert f"'{given.fileno()}'" in said
        assert f"'{other.fileno()}'" not in said


def test_it_is_ended_when_its_time_is_up() -> None:
    with pytest.raises(TimeoutError, match="took longer than"):
        run_to_end(shell("sleep 600"), timeout_s=0.2, max_bytes=100)


def test_what_writes_without_end_is_cut_and_ended() -> None:
    done = run_to_end(shell("exec yes"), timeout_s=60, max_bytes=1000)
    assert done.is_cut
    assert done.stdout == b"y\n" * 500


def test_a_child_that_keeps_the_pipe_open_is_waited_for_only_as_long_as_was_said() -> None:
    with pytest.raises(TimeoutError):
        run_to_end(shell("sleep 600 & exit 0"), timeout_s=0.3, max_bytes=100)


def test_what_is_written_after_the_exit_of_the_first_process_arrives() -> None:
    script = "(while kill -0 $1 2>/dev/null; do sleep 0.01; done; echo late) & exit 0"
    command = shell(f"{SHELL} -c 'exec sleep 0.1' & {script.replace('$1', '$!')}")
    assert run_to_end(command, timeout_s=60, max_bytes=100).stdout == b"late\n"


def test_the_end_takes_the_children_also_of_a_process_that_exited_first(
    sleeping: Callable[[str], StartedProcess],
) -> None:
    process = sleeping("sleep 600 >/dev/null 2>&1 & echo $!")
    child = int(b"".join(data for _, data in process.output(never)))
    assert process.status == 0
    assert is_running(child)
    assert process.end() == 0
    deadline = time.monotonic() + 30
    while is_running(child) and time.monotonic() < deadline:
        os.sched_yield()
    assert not is_running(child)


def test_it_gets_the_patience_that_was_said(sleeping: Callable[[str], StartedProcess]) -> None:
    assert sleeping("exec sleep 0.05").end(patience_s=60) == 0
    process = sleeping("exec sleep 600")
    assert not process.wait(0)
    assert process.end() == -signal.SIGKILL
    assert process.end() == -signal.SIGKILL, "again, to no effect"


def test_what_the_check_raises_ends_the_reading(sleeping: Callable[[str], StartedProcess]) -> None:
    def refuse() -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        list(sleeping("exec sleep 600").output(refuse))


def test_a_program_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError):
        start(Command(("/nowhere/program",), env={}))


def test_a_thread_that_can_not_be_confined_starts_nothing() -> None:
    def refuse() -> None:
        raise PermissionError("no filter here")

    with pytest.raises(PermissionError, match="no filter"):
        start(shell("exit 0"), confine=refuse)


def test_no_descriptor_and_no_zombie_stays() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    process = start(shell("exit 0"))
    process.end(patience_s=60)
    assert not Path(f"/proc/{process.pid}").exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_program_that_an_agent_could_write_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("inside", "outside"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").write_text("#!/bin/sh\n")
        (tmp_path / folder / "tool").chmod(0o755)
    monkeypatch.setenv("PATH", f".:{tmp_path / 'inside'}:{tmp_path / 'outside'}")
    assert find_binary("tool", outside=str(tmp_path / "inside")) == str(tmp_path / "outside/tool")
    assert find_binary("tool", outside=str(tmp_path)) is None
