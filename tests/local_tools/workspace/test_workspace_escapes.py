"""Ways out that go round files: sockets, modes and owners, system calls.

By bubblewrap, and by Landlock and seccomp alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.sandbox import seccomp
from bundle_router.adapters.sandbox.plan import FACILITIES
from bundle_router.core.values import BinaryForm, BinaryRule, LocalSettings, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace import survey as survey_module
from bundle_router.local_tools.workspace.execution import ExecArguments, execute
from bundle_router.local_tools.workspace.survey import survey

WITHOUT_BUBBLEWRAP = FACILITIES[1:]


# --- sockets --------------------------------------------------------------------------------------

CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as outside:
    outside.settimeout(60)
    outside.connect(sys.argv[1].replace("abstract:", chr(0)))
    outside.send(b"run this")
"""


@pytest.fixture(
    params=[
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "abstract",
        "readable",
        "workspace",
        "workspace/.git",
        "modules",
    ]
)
def server(
    request: pytest.FixtureRequest, workspace: Path, tmp_path: Path
) -> Iterator[tuple[socket.socket, str, str]]:
    """A server of the host on a unix socket, its address, and a folder that a rule may let programs
    read.
    """
    modules = workspace / ".git" / "modules" / "lib"
    modules.mkdir(parents=True)
    (tmp_path / "readable").mkdir()
    own = {
        "workspace": workspace,
        "workspace/.git": workspace / ".git",
        "readable": tmp_path / "readable",
    }
    own["modules"] = modules
    above = "/tmp" if request.param == "abstract" or request.param in own else request.param
    with tempfile.TemporaryDirectory(dir=above) as made:
        folder = str(own.get(request.param, made))
        address = "abstract:" + made if request.param == "abstract" else f"{folder}/s"
        with socket.socket(socket.AF_UNIX) as listener:
            cwd = Path.cwd()
            os.chdir(folder)  # an address holds 108 bytes
            try:
                listener.bind(
                    address.replace("abstract:", "\0") if request.param == "abstract" else "s"
                )
            finally:
                os.chdir(cwd)
            listener.listen()
            listener.setblocking(False)
            yield listener, address, request.param


def reached(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_no_server_on_a_unix_socket_outside_is_reached(
    run: Any, server: Any, workspace: Path, facilities: Any
) -> None:
    listener, address, kind = server
    source = CONNECT
    if kind.startswith("workspace") or kind == "modules":  # its whole address may be too long
        folder = (
            ".git/modules/lib"
            if kind == "modules"
            else kind.removeprefix("workspace").lstrip("/") or "."
        )
        source = f"import os; os.chdir({folder!r})\n"
        source += CONNECT.replace("sys.argv[1]", "'s'")
    if kind == "readable":
        pytest.skip(
            "a folder that the operator lets programs read is shown as it is (security/files.md)"
        )
    ran = run(source, address, facilities=facilities)
    ran.need("mounts")
    assert ran.failed
    assert not reached(listener)
    assert ran.held("unix sockets")


def test_no_command_reaches_who_reads_a_fifo_of_the_workspace(
    run: Any, workspace: Path, facilities: Any
) -> None:
    os.mkfifo(workspace / "control")
    reader = os.open(workspace / "control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        ran = run(
            "import os; os.write(os.open('control', os.O_WRONLY), b'run this')",
            facilities=facilities,
        )
        ran.need("mounts")
        assert not os.read(reader, 1)
    finally:
        os.close(reader)


def test_without_bubblewrap_unix_sockets_are_refused_altogether(run: Any, server: Any) -> None:
    listener, address, _ = server
    ran = run(CONNECT, address, facilities=WITHOUT_BUBBLEWRAP)
    ran.need("system calls")
    assert "PermissionError" in ran.text
    assert not reached(listener)
    assert ran.held("unix sockets")


def test_where_nothing_bars_them_the_result_says_so(run: Any, workspace: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX) as listener,
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
    ):
        listener.bind(f"{folder}/s")
        listener.listen()
        ran = run(CONNECT, f"{folder}/s", facilities=())
        assert not ran.failed, ran.text
        assert reached(listener)
    assert "NOT: " in ran.text
    assert "unix sockets (sockets and IPC outside can be reached)" in ran.text


def test_a_program_has_unix_sockets_of_its_own(run: Any, facilities: Any) -> None:
    source = (
        "import multiprocessing.connection as c, os, socket, threading\n"
        "s = socket.socketpair(); s[0].send(b'x')\n"
        "l = c.Listener(os.environ['TMPDIR'] + '/l', 'AF_UNIX')\n"
        "threading.Thread(target=lambda: l.accept().send(42)).start()\n"
        "print(c.Client(l.address).recv())"
    )
    assert "\n42\n" in run(source, facilities=facilities).text


def test_temporary_folders_are_its_own(run: Any, workspace: Path, facilities: Any) -> None:
    folder = (
        "/tmp" if workspace.is_relative_to("/var/tmp") else "/var/tmp"
    )  # one that does not lead to the workspace
    ran = run(
        f"import os; print(os.listdir('{folder}')); open('{folder}/mine-alone', 'w')",
        facilities=facilities,
    )
    ran.need("mounts")
    assert "bundle-router-exec" in ran.text or "\n[]\n" in ran.text
    assert not ran.failed
    assert not Path(folder, "mine-alone").exists()


# --- modes, owners, times -------------------------------------------------------------------------

METADATA = {
    "chmod": "os.chmod(path, 0o777)",
    "chown": "os.chown(path, os.getuid(), os.getgid())",
    "utime": "os.utime(path, (1, 1))",
    "setxattr": "os.setxattr(path, 'user.planted', b'1')",
    "fchmod": "os.fchmod(os.open(path, os.O_RDONLY), 0o777)",
    "futime": "os.utime(os.open(path, os.O_RDONLY), (1, 1))",
    "rename": "os.rename(path, path + '2')",
}


@pytest.mark.parametrize("call", METADATA.values(), ids=METADATA.keys())
def test_metadata_of_files_outside_is_read_only(
    run: Any, tmp_path: Path, facilities: Any, call: str
) -> None:
    path = tmp_path / "readable" / "file"
    path.parent.mkdir()
    path.write_text("x")
    path.chmod(0o644)
    before = path.stat()
    reads = (str(path.parent),)
    ran = run(f"import os; path = {str(path)!r}\n{call}", reads=reads, facilities=facilities)
    ran.need("mounts")
    assert ran.failed
    assert "Read-only file system" in ran.text or call.startswith("os.rename")
    assert path.stat() == before
    assert ran.held("metadata")


def test_what_a_program_was_started_from_is_read_only_too(
    workspace: Path, tmp_path: Path, facilities: Any
) -> None:
    """/proc/self/exe led to the file in the mount in which the router had opened it."""
    tool = tmp_path / "tools" / "chmod"
    tool.parent.mkdir()
    shutil.copy("/bin/chmod", tool)
    tool.chmod(0o755)
    rule = BinaryRule(
        name="chmod", path=str(tool), forms=(BinaryForm(words=("777", "/proc/self/exe")),)
    )
    where = ToolContext(
        str(workspace), LocalSettings(binaries=(rule,)), timeout_s=60, max_bytes=10_000
    )
    arguments = ExecArguments(binary="chmod", args=("777", "/proc/self/exe"))
    text = str(execute(arguments, where, facilities=facilities).blocks[0])
    if "NOT: mounts" not in text:
        assert "Read-only file system" in text
        assert tool.stat().st_mode & 0o777 == 0o755


def test_descriptors_of_what_started_a_program_lead_nowhere(run: Any, facilities: Any) -> None:
    """The kernel without Landlock, under which only bubblewrap keeps a program in."""
    look = (
        "import os\nfor name in os.listdir('/proc/1/fd'):"
        " print(os.listdir(f'/proc/1/fd/{name}/../..'))"
    )
    ran = run(look, facilities=tuple(name for name in facilities if name != "files"))
    ran.need("process tree")
    assert "PermissionError" in ran.text


@pytest.mark.parametrize("path", ["/dev/null", "/dev/urandom", ".git/config"])
def test_devices_can_be_used_and_their_modes_and_times_not_changed(
    run: Any, workspace: Path, facilities: Any, path: str
) -> None:
    (workspace / ".git").mkdir(exist_ok=True)
    (workspace / ".git" / "config").write_text(
        "[remote]\n\turl = https://u:hunter2hunter2@example.org/\n"
    )
    # the mode is the one it has: were it changed, the machine would keep it
    source = (
        f"import os\nopen('/dev/null', 'w').write('x')\nopen({path!r}, 'rb').read(1)\nprint('us'"
        " 'ed')\n"
    )
    ran = run(
        source + f"os.chmod({path!r}, os.stat({path!r}).st_mode & 0o7777)", facilities=facilities
    )
    ran.need("mounts")
    assert "used" in ran.text
    assert ran.failed


def test_without_bubblewrap_the_result_says_that_metadata_can_be_changed(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "readable" / "file"
    path.parent.mkdir()
    path.write_text("x")
    ran = run(
        f"import os; os.chmod({str(path)!r}, 0o600)",
        reads=(str(path.parent),),
        facilities=WITHOUT_BUBBLEWRAP,
    )
    assert not ran.failed
    assert "NOT: " in ran.text
    assert "metadata (modes, owners, times and attributes outside need bubblewrap)" in ran.text


@pytest.mark.parametrize(
    "make",
    [
        "open('f', 'w'); os.chmod('f', 0o4755)",
        "open('f', 'w'); os.chmod('f', 0o2755)",
        "os.fchmod(os.open('f', os.O_CREAT | os.O_WRONLY), 0o4755)",
        "os.open('f', os.O_CREAT | os.O_WRONLY, 0o4755)",
        "os.umask(0); os.close(os.open('f', os.O_CREAT | os.O_RDWR, 0o6777))",
        "os.mknod('f', 0o4755 | stat.S_IFREG)",
        "open('f', 'w'); d = os.open('.', os.O_RDONLY); os.chmod('f', 0o4755, dir_fd=d)",
        (
            "os.chmod('theirs', 0o755); open('theirs', 'wb').write(open('/bin/sh', 'rb').read());"
            " sys.exit(1)"
        ),
        "open('theirs', 'r+b').write(b'x'); os.rename('theirs', 'mine'); sys.exit(1)",
    ],
)
@pytest.mark.parametrize("without_bubblewrap", [False, True])
def test_no_set_user_id_file_is_left_behind(
    run: Any, workspace: Path, make: str, without_bubblewrap: bool
) -> None:
    (workspace / "theirs").write_bytes(b"theirs")
    (workspace / "theirs").chmod(0o4755)
    before = (workspace / "theirs").stat().st_mode & 0o6000
    ran = run(
        f"import os, stat, sys\n{make}",
        facilities=WITHOUT_BUBBLEWRAP if without_bubblewrap else FACILITIES,
    )
    ran.need("system calls")
    assert ran.failed
    for path in workspace.iterdir():
        if path.read_bytes() != b"theirs" or not before:
            assert not path.stat().st_mode & 0o6000, path


def test_a_set_user_id_file_is_not_changed_through_memory(
    run: Any, workspace: Path, facilities: Any
) -> None:
    (workspace / "theirs").write_bytes(b"theirs")
    (workspace / "theirs").chmod(0o4755)
    ran = run(
        "import mmap; file = open('theirs', 'r+b'); mmap.mmap(file.fileno(), 0)[:4] = b'mine'",
        facilities=facilities,
    )
    ran.need("mounts")
    assert (workspace / "theirs").read_bytes() == b"theirs"


# --- system calls ---------------------------------------------------------------------------------

CALL = (
    "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n{call}\nprint('errno',"
    " ctypes.get_errno())"
)
CALLS = {
    "io_uring": ("libc.syscall(425, 4, ctypes.create_string_buffer(512))", 1),
    "add_key": ("libc.syscall(NR_add_key, b'user', b'a', b'b', 1, -4)", 1),
    "keyctl": ("libc.syscall(NR_keyctl, 0, -4, 1)", 1),
    "unshare": ("libc.unshare(0x10000000)", 1),
    "clone": ("libc.syscall(NR_clone, 0x10000000 | 17, 0, 0, 0, 0)", 1),
    "clone3": ("libc.syscall(435, ctypes.create_string_buffer(88), 88)", 38),
    "openat2": ("libc.syscall(437, -100, b'/', ctypes.create_string_buffer(24), 24)", 38),
    "setns": ("libc.setns(0, 0)", 1),
    "mount": ("libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)", 1),
    "open_tree": ("libc.syscall(428, -100, b'/', 1)", 1),
    "ptrace": ("libc.ptrace(0, 0, 0, 0)", 1),
    "bpf": ("libc.syscall(NR_bpf, 0, None, 0)", 1),
    "fallocate": ("libc.fallocate(0, 0, 0, 1)", 95),
    "not dumpable": ("libc.prctl(4, 0, 0, 0, 0)", 1),
    "vsock": ("libc.socket(40, 1, 0)", 1),
    "packet": ("libc.socket(17, 3, 0)", 1),
    "alg": ("libc.socket(38, 5, 0)", 1),
    "MPTCP": ("libc.socket(2, 1, 262)", 1),
    "fast open": ("libc.sendto(0, b'', 0, 0x20000000, None, 0)", 1),
    "datagram pair": ("libc.socketpair(1, 2, 0, ctypes.create_string_buffer(8))", 1),
    "limits of others": ("libc.prlimit(__import__('os').getppid(), 4, None, None)", 1),
    "priority of others": ("libc.setpriority(2, 0, 0)", 1),
    "shared memory": ("libc.shmget(0, 4096, 0o1600)", 1),
    "semaphores": ("libc.semget(0, 1, 0o1600)", 1),
    "queue": ("libc.msgget(0, 0o1600)", 1),
    "named queue": ("libc.syscall(NR_mq_open, b'q', 0, 0, 0)", 1),
    "x32": ("libc.syscall(0x40000000 | 39)", 38),
}


@pytest.mark.parametrize(("call", "number"), CALLS.values(), ids=CALLS.keys())
def test_system_calls_that_lead_out_are_refused(run: Any, call: str, number: int) -> None:
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64") or ("x32" in call and machine != "x86_64"):
        pytest.skip("no filter for this machine")
    at = ("x86_64", "aarch64").index(machine)
    tables = {**seccomp._REFUSED, "clone": (56, 220), "mq_open": (240, 180)}
    for name, numbers in tables.items():
        call = call.replace(f"NR_{name},", f"{numbers[at]},")
    ran = run(CALL.format(call=call), facilities=WITHOUT_BUBBLEWRAP)
    ran.need("system calls")
    assert f"errno {number}\n" in ran.text


def test_no_shared_memory_of_others_is_attached(run: Any, facilities: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x5EC0 << 16 | os.getpid() & 0xFFFF
    made = libc.shmget(key, 4096, 0o1600)
    assert made >= 0
    try:
        source = f"import ctypes; print('id', ctypes.CDLL(None).shmget({key}, 4096, 0o600))"
        for parts in (facilities, WITHOUT_BUBBLEWRAP):
            assert "id -1\n" in run(source, facilities=parts).text
    finally:
        libc.shmctl(made, 0, None)


def test_ordinary_programs_do_not_notice(run: Any, facilities: Any) -> None:
    source = (
        "import asyncio, concurrent.futures, multiprocessing, os, shutil, socket, sqlite3,"
        " subprocess, sys, tempfile\nopen('a', 'w').write('x'); shutil.copy2('a', 'b');"
        " os.chmod('b', 0o755); os.mkdir('d'); os.symlink('a',"
        " 'l')\nprint(subprocess.check_output([sys.executable, '-c',"
        " 'print(1)']))\nprint(asyncio.run(asyncio.sleep(0, 'slept')),"
        " socket.getaddrinfo('127.0.0.1', 80)[0][4])\nwith concurrent.futures.ThreadPoolExecutor()"
        " as pool: print(list(pool.map(abs, [-1])))\nsqlite3.connect('db').execute('create table"
        " t(x)')\np = multiprocessing.get_context('fork').Process(target=print); p.start();"
        " p.join()\ntempfile.NamedTemporaryFile().close(); multiprocessing.Lock()\n"
    )
    ran = run(source, facilities=facilities)
    assert not ran.failed, ran.text


REFUSED = (
    "io_uring_setup io_uring_enter io_uring_register add_key request_key keyctl ptrace"
    " process_vm_readv process_vm_writev kcmp pidfd_getfd mount umount2 pivot_root chroot open_tree"
    " move_mount fsopen fsconfig fsmount fspick mount_setattr open_tree_attr unshare setns"
    " name_to_handle_at open_by_handle_at bpf perf_event_open userfaultfd fanotify_init init_module"
    " finit_module delete_module kexec_load kexec_file_load swapon swapoff reboot acct quotactl"
    " quotactl_fd syslog"
)
SET_USER_ID, SET_GROUP_ID = 0o4755, 0o2755
FILTERED = [
    # numbers on x86_64 and aarch64 (None: there is no such call), arguments, what the call gives;
    # 0: it is let through
    *((seccomp._REFUSED[name], (), errno.EPERM) for name in REFUSED.split()),
    *((numbers, (), errno.ENOSYS) for numbers in ((435, 435), (437, 437))),
    ((285, 47), (), errno.EOPNOTSUPP),
    *(((56, 220), (flag | 17,), errno.EPERM) for flag in (1 << 17, 1 << 25, *(1 << bit for bit in range(26, 31)))),
    ((56, 220), (0x3D0F00,), 0),
    *(
        (numbers, (0,) * at + (mode,), 0 if mode == 0o755 else errno.EPERM)
        for mode in (SET_USER_ID, SET_GROUP_ID, 0o755)
        for numbers, at in (
            ((90, None), 1), ((91, 52), 1), ((268, 53), 2), ((452, 452), 2), ((2, None), 2), ((257, 56), 3),
            ((85, None), 1), ((133, None), 1), ((259, 33), 2),
        )
    ),
    *((numbers, (0,) * at + (value,), errno.EPERM) for numbers, at, value in (
        ((157, 167), 0, 4), ((16, 29), 1, 0x5412), ((16, 29), 1, 0x541C),
    )),
    ((157, 167), (15,), 0), ((16, 29), (0, 0x5413), 0), ((0, 63), (), 0), ((59, 221), (), 0),
    ((41, 198), (16,), 0),
    *(((41, 198), (2, 1, protocol), errno.EPERM) for protocol in (132, 256, 262)),
    *((numbers, (0,) * at + (flags,), errno.EPERM if flags >> 29 else 0) for flags in (0x20000000, 0x4000)
      for numbers, at in (((44, 206), 3), ((46, 211), 2), ((307, 269), 3))),
    ((141, 140), (2,), errno.EPERM), ((251, 30), (3,), errno.EPERM), ((53, 199), (1, 1), 0), ((53, 199), (1, 5), 0),
    *(((41, 198), (family,), errno.EPERM) for family in (0, 3, 15, 17, 31, 38, 40, 44)),
    ((0x40000000 | 39, None), (), errno.ENOSYS),
]  # fmt: skip


IPC = (
    *((29, 194), (30, 196), (31, 195), (64, 190), (65, 193), (66, 191), (220, 192)),
    *((68, 186), (69, 189), (70, 188), (71, 187), (240, 180), (241, 181)),
)
OF_PROCESS = (
    *(((302, 261), 0), ((141, 140), 1), ((144, 119), 0), ((142, 118), 0)),
    *(((314, 274), 0), ((203, 122), 0), ((251, 30), 1)),
)  # fmt: skip


def verdict(program: bytes, architecture: int, number: int, arguments: tuple[int, ...]) -> int:
    """What the kernel would make of a call: the error number it gives, 0 where it is let
    through.
    """
    data = struct.pack("=IIQ6Q", number, architecture, 0, *(*arguments, *[0] * 6)[:6])
    steps, at, register = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x06:
            assert value & 0x7FFF0000 in (0x7FFF0000, 0x00050000)
            return 0 if value == 0x7FFF0000 else value & 0xFFFF
        if code == 0x20:
            [register] = struct.unpack_from("=I", data, value)
        else:
            met = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[
                code
            ]
            at += if_true if met else if_false


@pytest.mark.parametrize(
    ("machine", "architecture"), [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)]
)
def test_the_filter_says_of_each_call_what_it_must(machine: str, architecture: int) -> None:
    column = ("x86_64", "aarch64").index(machine)
    for sockets in (True, False):
        code = seccomp.program(machine, namespaces=sockets)
        only_if = 0 if sockets else errno.EPERM
        rows = [
            *FILTERED,
            *(
                (numbers, args, only_if)
                for numbers, args in (
                    ((41, 198), (1,)),
                    ((41, 198), (2, 1, 6)),
                    ((41, 198), (10,)),
                    ((53, 199), (1, 2)),
                )
            ),
        ]
        rows += [(numbers, (), only_if) for numbers in IPC]
        for numbers, at in OF_PROCESS:
            rows += [
                (numbers, (0,) * at + (pid,), error)
                for pid, error in ((0, 0), (1, errno.EPERM), (7, only_if))
            ]
        wrong = [
            (numbers, arguments)
            for numbers, arguments, error in rows
            if (number := numbers[column]) is not None
            and verdict(code, architecture, number, arguments) != error
        ]
        assert not wrong
        assert verdict(code, 0x40000003, 1, ()) == errno.ENOSYS  # of another architecture
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program("riscv64", namespaces=True)


# --- what else lies in the workspace --------------------------------------------------------------


def test_a_survey_finds_what_a_mount_of_the_whole_does_not_settle(
    workspace: Path, monkeypatch: Any
) -> None:
    for folder in ("sub/.git/hooks", "left/out", "deep/er"):
        (workspace / folder).mkdir(parents=True)
    (workspace / "deep" / ".netrc").write_text("machine example login me password x")
    (workspace / "left" / "out" / ".netrc").write_text("")
    found = survey(str(workspace), {str(workspace / "left")})
    assert found.repositories == [workspace / "sub" / ".git"]
    assert found.credentials == [workspace / "deep" / ".netrc"]
    assert found.complete
    monkeypatch.setattr(survey_module, "MAX_ENTRIES", 2)
    assert not survey(str(workspace), ()).complete


def test_what_was_not_looked_through_is_said(run: Any, workspace: Path, monkeypatch: Any) -> None:
    for number in range(9):
        (workspace / str(number)).touch()
    monkeypatch.setattr(survey_module, "MAX_ENTRIES", 5)
    with pytest.raises(ToolFailure, match="more than 5 entries") as caught:
        run("print(1)")
    assert caught.value.code == "hard_links"
    ran = run("print(1)", hard_links="allow")
    assert "NOT: survey (more than" in ran.text


def test_credentials_are_empty_to_programs_and_nested_repositories_read_only(
    run: Any, workspace: Path, facilities: Any
) -> None:
    (workspace / "sub" / ".git" / "hooks").mkdir(parents=True)
    (workspace / "sub" / ".netrc").write_text("machine example login me password hunter2")
    paths = ("sub/.netrc", ".git/config", ".git/modules/lib/config", "separate/config")
    for path in paths[1:]:
        (workspace / path).parent.mkdir(parents=True)
        (workspace / path).write_text("[remote]\n\turl = https://u:hunter2@example.org/\n")
    for name in ("HEAD", "objects/x", "refs/x"):
        (workspace / "separate" / name).parent.mkdir(exist_ok=True)
        (workspace / "separate" / name).touch()
    ran = run(f"for path in {paths}: print(path, repr(open(path).read()))", facilities=facilities)
    ran.need("mounts")
    assert "hunter2" not in ran.text
    assert run("open('separate/x', 'w')", facilities=facilities).failed
    assert "sub/.netrc ''" in ran.text
    assert ".git/config ''" in ran.text
    assert run("open('sub/.git/hooks/x', 'w')", facilities=facilities).failed
    assert (workspace / "sub" / ".netrc").stat().st_size > 0


def test_another_name_of_the_routers_code_is_read_only(
    run: Any, workspace: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    code = tmp_path / "import-root"
    code.mkdir()
    (code / "module.py").write_text("x = 1")
    os.link(code / "module.py", workspace / "innocent.txt")
    monkeypatch.syspath_prepend(str(code))
    ran = run("open('innocent.txt', 'w').write('planted')")
    ran.need("mounts")
    assert ran.failed
    assert (code / "module.py").read_text() == "x = 1"
    assert stat.S_ISREG((workspace / "innocent.txt").stat().st_mode)
