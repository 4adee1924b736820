"""Running a program: what it gets, what comes back, what bounds it, and that nothing of it
stays.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bundle_router.adapters.sandbox.plan import FACILITIES
from bundle_router.core.values import (
    BinaryForm,
    BinaryRule,
    Data,
    LocalSettings,
    Text,
    ToolContext,
    ToolOutput,
)
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace import TOOLS
from bundle_router.local_tools.workspace.execution import (
    BinariesArguments,
    ExecArguments,
    execute,
    list_binaries,
)
from pydantic import ValidationError

EVERYWHERE = pytest.mark.parametrize(
    "facilities",
    [FACILITIES, FACILITIES[1:], ()],
    ids=["bubblewrap", "landlock", "bare"],
)
PAYLOADS = Path(__file__).parents[2] / "data" / "payloads" / "command_injection.txt"
SPAWN_STUBBORN = """
import os, signal, subprocess, sys, time
stubborn = "import os,signal,sys,time;signal.signal(15,signal.SIG_IGN);os.write(1,b'up\\\\n');time.sleep(600)"
def spawn(**how):
    child = subprocess.Popen([sys.executable, "-c", stubborn, sys.argv[1]], stdout=subprocess.PIPE, **how)
    child.stdout.readline()
    return child
spawn(); spawn(start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        spawn(start_new_session=True); open("ready", "w").close(); time.sleep(600)
    os._exit(0)
while not os.path.exists("ready"): time.sleep(0.01)
"""


def test_the_server_offers_its_three_tools() -> None:
    assert [tool.name for tool in TOOLS] == ["exec", "binaries", "write_file"]
    assert all(tool.arguments.model_json_schema()["type"] == "object" for tool in TOOLS)


# --- what the model gets back ---------------------------------------------------------------------


def test_output_and_exit_code_come_back(run: Any) -> None:
    ran = run("import sys; print('to out'); print('to err', file=sys.stderr); sys.exit(3)")
    assert ran.failed
    assert ran.text.startswith("exit 3 after ")
    assert "--- stdout, 7 bytes ---\nto out\n--- stderr, 7 bytes ---\nto err\n" in ran.text
    assert (ran.record["ended"], ran.record["exit_code"], ran.record["signal"]) == (
        "exited",
        3,
        None,
    )


def test_success_is_not_a_failure(run: Any) -> None:
    assert not run("print(1)").failed


def test_a_signal_is_named(run: Any) -> None:
    ran = run("import os; os.kill(os.getpid(), 11)")
    assert ran.failed
    assert (ran.record["ended"], ran.record["exit_code"], ran.record["signal"]) == (
        "killed",
        None,
        "SIGSEGV",
    )


def test_the_last_line_says_what_isolation_held(run: Any) -> None:
    ran = run("print(1)", facilities=())
    last = ran.text.splitlines()[-1]
    assert last.startswith("isolated or limited: ")
    assert "NOT: bubblewrap (switched off), " in last
    assert {row["name"] for row in ran.record["isolation"]} >= {
        "network",
        "process tree",
        "files",
        "memory",
    }


def test_control_characters_are_shown_and_not_sent(run: Any) -> None:
    ran = run(r"import os; os.write(1, b'a\x1b[2Jb\r\nc\xe2\x80\xaed\xff\te\x00\n')")
    assert "a\\x1b[2Jb\nc\\u202ed\\xff\te\\x00" in ran.text


def test_a_flood_of_output_keeps_its_beginning_and_end_in_bounded_memory(run: Any) -> None:
    tracemalloc.start()
    try:
        ran = run(
            "print('first'); print(('x' * 999 + '\\n') * 64000); print('last')", max_bytes=100_000
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    [stdout, _] = ran.record["streams"]
    assert stdout["bytes"] == 64_000_000 + 1 + 6 + 5
    assert stdout["dropped"] > 63_000_000
    assert len(ran.text.encode()) <= 100_000
    assert "first\nx" in ran.text
    assert "x\n\nlast\n" in ran.text
    assert f"[… {stdout['dropped']:,} bytes left out …]" in ran.text
    assert peak < 8_000_000


def test_colours_and_a_progress_bar_come_as_they_look_at_last(run: Any) -> None:
    ran = run(
        r"import os; os.write(1, b'\x1b[1;32mok\x1b[0m\n'"
        r" b'  0%\r 50%\r100%\x1b[K\r\ndone\n' b'same\rsame\r\n')"
    )
    assert "ok\n100% [2 earlier states of this line]\ndone\nsame\n" in ran.text


def test_a_flood_of_escapes_stays_within_the_limit_too(run: Any) -> None:
    ran = run(r"import os; os.write(1, b'\x1b' * 60000)", max_bytes=20_000)
    assert len(ran.text.encode()) <= 20_000


# --- what the program gets ------------------------------------------------------------------------


def test_the_environment_is_clean(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = (
        "LD_PRELOAD",
        "LD_AUDIT",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "GIT_SSH_COMMAND",
        "NODE_OPTIONS",
        "BASH_ENV",
        "PAGER",
    )
    for name in (*bad, "PASSED_ON", "NOT_LISTED"):
        monkeypatch.setenv(name, "/nonexistent")
    ran = run(
        "import os, json; print(json.dumps(dict(os.environ)))",
        env=(*bad, "PASSED_ON"),
        set_env=("FIXED=1=2",),
    )
    seen = json.loads(ran.text.splitlines()[2])
    seen.pop("LC_CTYPE", None)  # Python's own
    assert set(seen) == {"PATH", "HOME", "TMPDIR", "LANG", "PASSED_ON", "FIXED"}
    # the run's binary is `@python`: its environment's programs come first
    assert seen["PATH"] == f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    assert seen["FIXED"] == "1=2"
    assert (
        "LD_PRELOAD" not in ran.text
    )  # nor did the launcher get it: the loader would complain on stderr


def test_home_and_temporary_files_are_its_own_and_gone_afterwards(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = (
        "import os, pathlib; d = pathlib.Path.home() / 'a' / 'b'; d.mkdir(parents=True); (d /"
        " 'f').write_text('x')"
    )
    ran = run(source + "; d.chmod(0); print(d)")
    assert not ran.failed
    assert ran.text.splitlines()[2].startswith(str(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["workspace"]


def test_standard_input_is_the_given_text_or_closed(workspace: Path) -> None:
    form = BinaryForm(words=("-c", "import sys; print(repr(sys.stdin.read()))"))
    rule = BinaryRule(name="python", path="@python", forms=(form,))
    context = ToolContext(
        str(workspace), LocalSettings(binaries=(rule,)), timeout_s=30, max_bytes=100_000
    )
    for given, seen in (("höi\n" * 30_000, None), ("a\n", "'a\\n'"), (None, "''")):
        text = execute(
            ExecArguments(binary="python", args=form.words, stdin=given), context
        ).blocks[0]
        assert isinstance(text, Text)
        assert (seen or "höi") in text.text


OPEN_DESCRIPTORS = """
import os
def is_open(number):
    try: return bool(os.fstat(number))
    except OSError: return False
print([number for number in range(1024) if is_open(number)])
"""


def test_no_descriptor_of_the_router_is_inherited(run: Any, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        ran = run(OPEN_DESCRIPTORS)
    assert "[0, 1, 2]" in ran.text


def test_it_runs_in_the_folder_asked_for(run: Any, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    assert f"{workspace}/sub\n" in run("import os; print(os.getcwd())", cwd="sub").text


@pytest.mark.parametrize(
    ("cwd", "code"),
    [
        ("..", "outside_workspace"),
        ("/etc", "outside_workspace"),
        ("out", "outside_workspace"),
        ("no", "not_found"),
    ],
)
def test_a_folder_outside_the_workspace_is_refused(
    run: Any, workspace: Path, cwd: str, code: str
) -> None:
    (workspace / "out").symlink_to(workspace.parent)
    with pytest.raises(ToolFailure) as caught:
        run("print(1)", cwd=cwd)
    assert caught.value.code == code


def test_an_argument_that_leads_outside_through_a_link_is_refused(
    workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.py").write_text("secret")
    (workspace / "link.py").symlink_to("../secret.py")
    (workspace / "sub").mkdir()
    (workspace / "sub" / "link.py").symlink_to("../../secret.py")
    (workspace / "inner.py").write_text("x = 1")
    (workspace / "sub" / "inner.py").symlink_to("../inner.py")
    form = BinaryForm(words=("-m", "py_compile"), positionals=".+", max_positionals=1)
    rule = BinaryRule(name="python", path="@python", forms=(form,))
    context = ToolContext(
        str(workspace), LocalSettings(binaries=(rule,)), timeout_s=30, max_bytes=100_000
    )

    def compile_file(name: str, cwd: str) -> ToolOutput:
        return execute(
            ExecArguments(binary="python", args=("-m", "py_compile", name), cwd=cwd), context
        )

    for name, cwd in (("link.py", "."), ("sub/link.py", "."), ("link.py", "sub")):
        with pytest.raises(ToolFailure) as caught:
            compile_file(name, cwd)
        assert caught.value.code == "outside_workspace"
    (workspace / "a::link.py").symlink_to("../secret.py")
    (workspace / "b::c").mkdir()
    for name in (
        "a::link.py",
        "b::c/../../secret.py",
    ):  # only pytest takes the path to end before '::'
        with pytest.raises(ToolFailure) as caught:
            compile_file(name, ".")
        assert caught.value.code == "outside_workspace"
    assert compile_file("missing.py::" + "x" * 300, ".").failed  # started: such a name can't exist
    assert not compile_file("inner.py", "sub").failed
    assert compile_file("missing.py", ".").failed


def test_every_argument_arrives_as_it_was_given(run: Any, workspace: Path) -> None:
    canary = workspace / "canary"
    made = [
        shell.replace("CMD", f"touch {canary}")
        for shell in (";CMD", "$(CMD)", "`CMD`", "|CMD", "&&CMD", "a;CMD;#", "{CMD,}")
    ]
    lines = [*made, *PAYLOADS.read_text(encoding="utf-8", errors="replace").split("\n")]
    sent = [
        line for line in lines if line and line.isprintable() and not line.startswith(("-", "@"))
    ]
    assert len(sent) > 400
    ran = run("import json, sys; print(json.dumps(sys.argv[1:]))", *sent)
    assert json.loads(ran.text.splitlines()[2]) == sent
    assert not canary.exists()


def test_nothing_but_the_launcher_and_the_binary_is_executed(
    workspace: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    code = (
        "from bundle_router.local_tools.workspace.execution import *; from bundle_router.core.values"
        " import *\nform = BinaryForm(words=('-',), positionals='.*', max_positionals=9,"
        " paths=False)\nrule = BinaryRule(name='python', path='@python', forms=(form,))\ncontext ="
        f" ToolContext({str(workspace)!r}, LocalSettings(binaries=(rule,)), timeout_s=60,"
        " max_bytes=9999)\narguments = ExecArguments(binary='python', args=('-', '$(id)', ';id',"
        " '`id`', '|id'), stdin='print(40 + 2)')\nprint(execute(arguments, context,"
        " facilities=FACILITIES[1:]).blocks[0].text)"
    )
    strace = [
        "strace",
        "--seccomp-bpf",
        "-f",
        "-qq",
        "-e",
        "trace=execve,execveat",
        "-o",
        str(trace),
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(
        strace, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    if "42" not in done.stdout:
        pytest.skip(f"strace can't follow here: {done.stderr[-300:]}")
    started = [
        line for line in trace.read_text().splitlines() if "exec" in line and line.endswith("= 0")
    ]
    assert len(started) == 3, started  # the router itself, the launcher, the program
    assert "AT_EMPTY_PATH" in started[2]


# --- which binary ---------------------------------------------------------------------------------


def execute_binary(workspace: Path, path: str, **more: Any) -> Any:
    rule = BinaryRule(name="it", path=path, forms=(BinaryForm(),))
    context = ToolContext(
        str(workspace), LocalSettings(binaries=(rule,)), timeout_s=30, max_bytes=100_000
    )
    return execute(ExecArguments(binary="it", **more), context)


def test_a_relative_binary_is_not_a_rule() -> None:
    for path in ("git", "./git", "", "@node"):
        with pytest.raises(ValidationError):
            BinaryRule(name="git", path=path, forms=(BinaryForm(),))


def test_an_unknown_binary_is_refused_with_those_that_are_known(workspace: Path) -> None:
    with pytest.raises(ToolFailure, match="'rm' is not an allowed binary") as caught:
        execute(
            ExecArguments(binary="rm"),
            ToolContext(str(workspace), LocalSettings(), timeout_s=1, max_bytes=1),
        )
    assert (caught.value.code, caught.value.advice) == ("unknown_binary", "allowed: none")


def test_a_linked_binary_runs_and_its_real_path_is_stated(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr/bin/env")
    output = execute_binary(workspace, str(tmp_path / "link"))
    data = output.blocks[1]
    assert isinstance(data, Data)
    assert not output.failed
    assert isinstance(data.value, dict)
    assert data.value["binary"]["real_path"] == os.path.realpath("/usr/bin/env")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.mkdir(), "regular"),
        (lambda path: os.mkfifo(path, 0o755), "regular"),
        (lambda path: path.write_bytes(b"\x7fELF"), "not executable"),
        (lambda path: (path.write_text("#!/bin/sh\nid"), path.chmod(0o755)), "script"),
        (lambda path: (path.write_bytes(b"\x7fELF"), path.chmod(0o777)), "may change it"),
        (lambda path: (path.write_bytes(b"not a program"), path.chmod(0o755)), "Exec format error"),
        (lambda path: None, "can't be opened"),
    ],
)
def test_what_is_not_a_sound_binary_is_not_started(
    workspace: Path, tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    make(tmp_path / "it")
    with pytest.raises(ToolFailure, match=why):
        execute_binary(workspace, str(tmp_path / "it"))


def test_a_binary_inside_the_workspace_is_not_started(workspace: Path, tmp_path: Path) -> None:
    (workspace / "tool").write_bytes(Path("/usr/bin/env").read_bytes())
    (workspace / "tool").chmod(0o755)
    (tmp_path / "link").symlink_to(workspace / "tool")
    for path in (workspace / "tool", tmp_path / "link"):
        with pytest.raises(ToolFailure, match="inside the workspace"):
            execute_binary(workspace, str(path))


def test_a_binary_swapped_after_the_check_is_not_what_runs(workspace: Path, tmp_path: Path) -> None:
    from bundle_router.local_tools.workspace.binary import opened

    link = tmp_path / "it"
    link.symlink_to("/usr/bin/env")
    with opened(
        BinaryRule(name="it", path=str(link), forms=(BinaryForm(),)), workspace=str(workspace)
    ) as binary:
        link.unlink()
        link.symlink_to("/usr/bin/id")
        assert os.path.samestat(os.fstat(binary.fd), Path("/usr/bin/env").stat())


# --- limits ---------------------------------------------------------------------------------------


def test_memory_is_bounded(run: Any) -> None:
    ran = run("x = bytearray(1 << 30)", memory_bytes=256 << 20)
    assert ran.failed
    assert "MemoryError" in ran.text


def test_the_size_of_a_file_is_bounded(run: Any, workspace: Path) -> None:
    ran = run("open('big', 'wb').write(bytes(3 << 20))", file_bytes=1 << 20)
    assert ran.failed
    assert (workspace / "big").stat().st_size <= 1 << 20


FORK_MANY = """
import os, time
count = 0
try:
    while count < 200:
        if os.fork() == 0: time.sleep(600)
        count += 1
except OSError: pass
print("forked", count, flush=True)
if count == 200: time.sleep(600)
"""


def test_a_fork_bomb_is_bounded_and_ended(run: Any) -> None:
    """By the kernel in a user namespace of its own, else by the watcher."""
    ran = run(FORK_MANY, max_processes=30)
    ran.need("process count")
    if ran.record["ended"] == "limit":
        assert "it started more than 30 processes and threads" in ran.text
        return
    forked = int(ran.text.partition("forked ")[2].split()[0])
    assert 20 < forked < 30  # the kernel's limit counts the launcher as well
    assert ran.record["leftovers"] == forked


# --- the end --------------------------------------------------------------------------------------


@EVERYWHERE
def test_what_a_finished_program_left_running_is_ended(
    run: Any, alive: Callable[[str], list[int]], tmp_path: Path, facilities: tuple[str, ...]
) -> None:
    marker = f"marker-{tmp_path.name}-{os.getpid()}"
    ran = run(SPAWN_STUBBORN, marker, facilities=facilities)
    assert ran.record["ended"] == "exited"
    assert ran.record["leftovers"] >= 4
    assert alive(marker) == []


@EVERYWHERE
def test_a_timeout_ends_children_that_ignore_it_and_changed_their_session(
    run: Any, alive: Callable[[str], list[int]], workspace: Path, tmp_path: Path, facilities: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip

    def later() -> float:
        return time.monotonic() + (60 if (workspace / "printed").exists() else 0)

    monkeypatch.setattr(
        "bundle_router.local_tools.workspace.process.time", SimpleNamespace(monotonic=later)
    )
    marker = f"marker-{tmp_path.name}-{os.getpid()}"
    ran = run(
        SPAWN_STUBBORN + "print('partial', flush=True)\nsignal.signal(15, signal.SIG_IGN)\n"
        "open('printed', 'w').close(); time.sleep(600)",
        marker,
        facilities=facilities,
        timeout_s=59,
    )
    assert ran.failed
    assert ran.record["ended"] == "timeout"
    assert (workspace / "ready").exists()
    assert "partial" in ran.text
    assert alive(marker) == []


@EVERYWHERE
def test_a_caller_who_has_gone_ends_it(
    run: Any,
    alive: Callable[[str], list[int]],
    workspace: Path,
    tmp_path: Path,
    facilities: tuple[str, ...],
) -> None:
    marker = f"marker-{tmp_path.name}-{os.getpid()}"
    ran = run(
        SPAWN_STUBBORN + "time.sleep(600)",
        marker,
        facilities=facilities,
        cancelled=(workspace / "ready").exists,
    )
    assert ran.record["ended"] == "cancelled"
    assert ran.failed
    assert alive(marker) == []


@EVERYWHERE
def test_a_killed_router_takes_its_programs_with_it(
    workspace: Path, tmp_path: Path, alive: Any, eventually: Any, facilities: tuple[str, ...]
) -> None:
    marker = f"marker-{tmp_path.name}-{os.getpid()}"
    code = (
        "from bundle_router.local_tools.workspace.execution import *; from bundle_router.core.values"
        " import *; import sys\nform = BinaryForm(words=('-',), positionals='.*',"
        " max_positionals=9, paths=False)\nrule = BinaryRule(name='python', path='@python',"
        f" forms=(form,))\ncontext = ToolContext({str(workspace)!r},"
        " LocalSettings(binaries=(rule,)), timeout_s=60, max_bytes=9999)\narguments ="
        f" ExecArguments(binary='python', args=('-', {marker!r}),"
        f" stdin=sys.stdin.read())\nexecute(arguments, context, facilities={facilities!r})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as router:
        assert router.stdin is not None
        router.stdin.write((SPAWN_STUBBORN + "time.sleep(600)").encode())
        router.stdin.close()
        assert eventually((workspace / "ready").exists)
        assert alive(marker)
        router.send_signal(signal.SIGKILL)
    assert eventually(lambda: not alive(marker))


@pytest.mark.usefixtures("many_descriptors")
@EVERYWHERE
def test_a_program_runs_in_a_host_with_more_descriptors_than_select_knows(
    run: Any, facilities: tuple[str, ...]
) -> None:
    assert "42" in run("print(6 * 7)", facilities=facilities).text


def test_no_zombie_and_no_descriptor_stays(run: Any, workspace: Path) -> None:
    def children() -> set[str]:
        return {
            pid
            for path in Path("/proc/self/task").glob("*/children")
            for pid in path.read_text().split()
        }

    run("print(1)")
    before, others = len(list(Path("/proc/self/fd").iterdir())), children()
    with pytest.raises(ToolFailure):
        run("print(1)", cwd="missing")
    with pytest.raises(ToolFailure):
        execute_binary(workspace, "/etc/passwd")
    run("print(1)")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert children() <= others, "another test's may still be there"


def test_the_time_of_the_rule_counts_when_it_is_the_smaller(workspace: Path) -> None:
    form = BinaryForm(words=("-c", "import time; time.sleep(600)"))
    rule = BinaryRule(name="python", path="@python", forms=(form,), timeout_s=0.3)
    context = ToolContext(
        str(workspace), LocalSettings(binaries=(rule,)), timeout_s=300, max_bytes=100_000
    )
    output = execute(ExecArguments(binary="python", args=form.words), context)
    text = output.blocks[0]
    assert isinstance(text, Text)
    assert "out of time" in text.text
    assert output.failed


def test_the_model_is_told_what_it_may_run(workspace: Path) -> None:
    rule = BinaryRule(name="git", path="/usr/bin/git", forms=(BinaryForm(words=("status",)),))
    context = ToolContext(
        str(workspace), LocalSettings(binaries=(rule,)), timeout_s=1, max_bytes=100_000
    )
    assert list_binaries(BinariesArguments(), context).blocks[0] == Text("git status")


def test_the_launcher_starts_without_the_slow_half_of_the_standard_library() -> None:
    root = Path(__file__).parents[3] / "router"
    code = (
        "import sys; sys.path.append(sys.argv[1]); import bundle_router.adapters.sandbox.launcher\n"
        "print(*{'dataclasses', 'inspect', 'ast', 'subprocess', 'asyncio'} & set(sys.modules))"
    )
    words = [sys.executable, "-I", "-S", "-c", code, str(root)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "\n"
