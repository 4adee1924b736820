"""Runs as a process of its own between the router and a stdio server: starts it, and ends all it ever started.

    python -I -S supervision.py CONTROL_FD IMPORT_ROOT

Rules:
1. Whatever the server starts descends from this process, which adopts orphans: so "no children left" means that
   nothing is left, whatever group, session or double fork it moved to. (Linux. Elsewhere the process group is all.)
2. When the router says so, or is gone, however it went (the control socket ends), the server gets `polite_s` to end
   by itself, as its standard input has ended too; then SIGTERM to all that is left and `term_s`; then SIGKILL, until
   there is nobody. A server that ended by itself takes what it left running with it.
3. The server's home goes last, whether or not the router is still there.
4. This process holds neither end of the server's pipes: their ends are seen by the router at once.
5. The standard library and the sandbox's calls only: it is started without site-packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time

KILL_FOR_S = 5.0
POLL_S = 0.02
CANT_START = 127


def main(control: int, import_root: str) -> None:
    """Reads the plan from the control socket, one JSON line, and carries it out."""
    line, told = _read_line(control)
    plan = json.loads(line)
    if sys.platform == "linux":
        sys.path.append(import_root)
        from bundle_router.tools.sandbox import linux

        linux.adopt_orphans()
    wake = _watch_children()
    server = os.fork()
    if server == 0:
        _become(plan, control)
    _let_go_of_pipes()
    Watch(server, plan, control, wake, told=told).run()


def _read_line(control: int) -> tuple[bytes, bool]:
    """The first line, and whether something was said after it already: then it is to end as soon as it has begun."""
    said = b""
    while b"\n" not in said:
        part = os.read(control, 65_536)
        if not part:
            os._exit(CANT_START)
        said += part
    line, _, rest = said.partition(b"\n")
    return line, bool(rest)


def _watch_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe()
    for descriptor in (readable, writable):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def _become(plan: dict[str, object], control: int) -> None:
    """In the child: its own session, its folder, its environment, and then the server. Does not return."""
    argv, env, cwd = plan["argv"], plan["env"], plan["cwd"]
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if sys.platform == "linux":
            from bundle_router.tools.sandbox import linux

            linux.die_with_parent()
        os.setsid()
        os.chdir(str(cwd))
        os.set_inheritable(control, False)
        os.execve(argv[0], argv, env)  # type: ignore[index,arg-type]  # noqa: S606  # no shell: an argument list
    except OSError as error:
        _say(control, failed=str(error.strerror or error))
    finally:
        os._exit(CANT_START)


def _let_go_of_pipes() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _say(control: int, **fields: object) -> None:
    """To the router. One that is gone must not keep this process from ending the server."""
    with contextlib.suppress(OSError):
        os.write(control, json.dumps(fields).encode("ascii") + b"\n")


class Watch:
    """The parent's side: waits, reaps, ends."""

    def __init__(self, server: int, plan: dict[str, object], control: int, wake: int, *, told: bool) -> None:
        self._server = server
        self._polite_s = float(str(plan["polite_s"]))
        self._term_s = float(str(plan["term_s"]))
        self._home = str(plan["home"])
        self._control = control
        self._wake = wake
        self._ended = False
        self._told = told

    def run(self) -> None:
        _say(self._control, pid=self._server)
        while self._reap() and not self._ended and not self._told:
            self._pause(None)
        deadline = time.monotonic() + self._polite_s
        while self._reap() and not self._ended and time.monotonic() < deadline:
            self._pause(POLL_S)
        if self._reap():
            self._end_all()
        import shutil  # only now: it would be half of what this process weighs

        shutil.rmtree(self._home, ignore_errors=True)

    def _end_all(self) -> None:
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + self._term_s
        while self._reap() and time.monotonic() < deadline:
            self._pause(POLL_S)
        deadline = time.monotonic() + KILL_FOR_S
        while self._reap() and time.monotonic() < deadline:
            self._signal_all(signal.SIGKILL)
            self._pause(POLL_S)

    def _pause(self, timeout_s: float | None) -> None:
        poll = select.poll()  # not `select`: the control's number is the router's, which may be over 1,023
        poll.register(self._wake, select.POLLIN)
        if not self._told:
            poll.register(self._control, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if self._control in ready:
            self._told = True

    def _reap(self) -> bool:
        """Collects every child that has ended. False when there are none left at all."""
        try:
            while True:
                child, status = os.waitpid(-1, os.WNOHANG)
                if child == 0:
                    return True
                if child == self._server:
                    self._ended = True
                    _say(self._control, exited=os.waitstatus_to_exitcode(status))
        except ChildProcessError:
            return False

    def _signal_all(self, number: int) -> None:
        if sys.platform != "linux":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._server, number)
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def descendants(root: int) -> list[int]:
    """Every process below `root`, nearest first, as /proc shows them now. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # pathlib costs 5 ms here
    except OSError:
        return []
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123  # as above
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(int(name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
