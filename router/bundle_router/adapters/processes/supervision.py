"""The supervisor: one process between the router and all its stdio servers.

It starts them, and ends all their processes.

The router (`adapters.mcp.processes`) hands over a server as four descriptors (its control socket,
standard input, output and error) with one byte, and writes the server's plan to the control socket
as one JSON line. Any byte after it asks for the server's end, `!` for its end at once. The
supervisor answers there with JSON lines: `pid`, `failed`, `exited`. It closes its end of the
control socket when no process of the server is left.

Rules:
1. Every process of a server descends from the supervisor, which adopts orphans. (Linux. Elsewhere:
   the process group.)
2. An orphan is matched to its server by a mark in RLIMIT_LOCKS, a limit that the kernel keeps but
   no longer enforces. It survives a new process group, a new session, a double fork and a cleared
   environment. Orphans of a server that is gone are killed. One that removed its mark (root can) is
   killed with the router at the latest.
3. When the router asks for it, or is gone for any reason (its sockets end), a server gets
   `polite_s` to end by itself with its standard input closed; then all its processes get SIGTERM,
   and after `term_s` SIGKILL until none is left. A server that ended by itself is cleaned up in the
   same way. No server delays another.
4. A server's home is removed last, whether or not the router still exists.
5. The supervisor keeps no end of a server's pipes, so the router sees at once when they close.
6. It uses only the standard library and the sandbox's system calls, and runs without site-packages.
   Only `poll` waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time

from bundle_router.adapters.processes import family

CANT_START = 127
AT_ONCE = b"!"
RLIMIT_LOCKS = 10
"""Linux's number of the limit; Python has no name for it."""
_TOP = 1 << 60
_STRIDE = 1 << 24
"""Distance between the marks of two servers. A nested router marks its servers within it."""


def main(router: int) -> None:
    """Run until the router's socket has ended and no process of any server is left."""
    # Inherited by us alone: a server that had it could receive the descriptors of the next one.
    os.set_inheritable(router, False)
    if sys.platform == "linux":
        from bundle_router.adapters.sandbox import linux

        linux.adopt_orphans()
    Supervision(socket.socket(fileno=router), family.watch_children()).run()


class SupervisedServer:
    """The supervisor's view of one server: its plan, its process, and how far its shutdown is."""

    def __init__(self, number: int, control: socket.socket, pipes: list[int]) -> None:
        self.number = number
        self.control = control
        self.plan: dict[str, object] = {}
        self.pid = 0
        self.ended = False
        self.wanted = True
        self.at_once = False
        self.silent = False
        self.phase = "running"
        self.until = 0.0
        self._pipes = pipes
        self._line = b""

    def read_orders(self) -> None:
        """Read the router's orders. A closed socket counts as an order to end the server."""
        try:
            part = self.control.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.silent = not part
        self.wanted = self.wanted and bool(part)
        if self.plan:
            self.wanted = False
            self.at_once = self.at_once or AT_ONCE in part
            return
        line, newline, rest = (self._line + part).partition(b"\n")
        self._line = line
        if newline:
            self.plan = json.loads(line)
            self.wanted = self.wanted and not rest
            self._start()

    def report(self, **fields: object) -> None:
        """Report to the router.

        If the router is gone, the report is dropped, and the server is still ended.
        """
        with contextlib.suppress(OSError):
            self.control.send(json.dumps(fields).encode("ascii") + b"\n")

    def _start(self) -> None:
        supervisor = os.getpid()
        try:
            self.pid = os.fork()
        except OSError as error:
            self.report(failed=str(error.strerror or error))
            self.ended = True
        if self.pid == 0 and not self.ended:
            self._become(supervisor)
        self.let_go_of_pipes()
        if self.pid:
            self.report(pid=self.pid)

    def _become(self, supervisor: int) -> None:
        """In the child: set its session, folder and environment, then execute the server.

        Does not return.
        """
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            if sys.platform == "linux":
                from bundle_router.adapters.sandbox import linux

                linux.die_with_parent()
                if os.getppid() != supervisor:
                    os._exit(CANT_START)
                _mark(self.number)
            os.setsid()
            for target, descriptor in enumerate(self._pipes):
                os.dup2(descriptor, target)
            os.chdir(str(self.plan["cwd"]))
            argv: list[str] = self.plan["argv"]  # type: ignore[assignment]
            env: dict[str, str] = self.plan["env"]  # type: ignore[assignment]
            os.execve(argv[0], argv, env)  # noqa: S606  # no shell: an argument list
        except BaseException as error:  # noqa: BLE001  # nothing may return to the supervisor's loop in this process
            self.report(
                failed=str(getattr(error, "strerror", None) or error or type(error).__name__)
            )
        finally:
            os._exit(CANT_START)

    def let_go_of_pipes(self) -> None:
        while self._pipes:
            os.close(self._pipes.pop())

    def seconds(self, name: str) -> float:
        return float(str(self.plan[name]))

    def remove_home(self) -> None:
        import shutil  # only here: it is a third of this process's memory

        if self.plan:
            shutil.rmtree(str(self.plan["home"]), ignore_errors=True)


class Supervision:
    """All servers of one router."""

    def __init__(self, router: socket.socket, wake: int) -> None:
        self._router: socket.socket | None = router
        self._wake = wake
        self._servers: dict[int, SupervisedServer] = {}
        self._count = 0
        router.setblocking(False)

    def run(self) -> None:
        try:
            while self._router is not None or self._servers:
                self._pause()
                self._reap()
                self._advance_all(time.monotonic())
        except Exception as error:  # report an unforeseen error, and leave no server behind
            for server in self._servers.values():
                server.report(failed=f"the supervisor failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._kill_strays()

    def _kill_strays(self) -> None:
        deadline = time.monotonic() + family.KILL_FOR_S
        while (strays := family.descendants(os.getpid())) and time.monotonic() < deadline:
            family.signal_all(strays, signal.SIGKILL)
            time.sleep(family.POLL_S)
            self._reap()

    def _pause(self) -> None:
        """Wait until the router writes, a child ends, or the next shutdown step is due."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._router is not None:
            poll.register(self._router, select.POLLIN)
        for descriptor, server in self._servers.items():
            if not server.silent:
                poll.register(descriptor, select.POLLIN)
        ending = any(server.phase != "running" for server in self._servers.values())
        for descriptor, _ in poll.poll(family.POLL_S * 1000 if ending else None):
            if descriptor == self._wake:
                family.clear(self._wake)
            elif descriptor in self._servers:
                self._servers[descriptor].read_orders()
            elif self._router is not None:
                self._take_over(self._router)

    def _take_over(self, router: socket.socket) -> None:
        """Accept one server from the router, or note that the router is gone."""
        try:
            message, descriptors, _, _ = socket.recv_fds(router, 1, 4)
        except BlockingIOError:
            return
        except OSError:
            message = b""
            descriptors = []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if not message:
            router.close()
            self._router = None
        elif len(descriptors) == 4:
            control = socket.socket(fileno=descriptors[0])
            control.setblocking(False)
            self._servers[control.fileno()] = SupervisedServer(
                self._count, control, descriptors[1:]
            )
            self._count += 1
        else:  # no descriptor was free: the router sees the control socket end
            for descriptor in descriptors:
                os.close(descriptor)

    # --- ends -------------------------------------------------------------------------------------

    def _reap(self) -> None:
        family.reap(self._note_exit)

    def _note_exit(self, pid: int, status: int) -> None:
        for server in self._servers.values():
            if server.pid == pid:
                server.ended = True
                server.report(exited=status)

    def _advance_all(self, now: float) -> None:
        due = []
        for server in self._servers.values():
            if not server.ended and server.wanted:
                continue
            if server.phase == "running":
                server.phase = "polite"
                server.until = now
                if server.plan:
                    server.until += server.seconds("polite_s")
            is_waited_for = server.phase == "polite" and now < server.until
            if server.ended or server.at_once or not is_waited_for:
                due.append(server)
        if not due:
            return

        left = self._remaining_processes(all_ended=all(server.ended for server in due))
        for server in due:
            self._advance(server, now, left.get(server.number, []))

    def _advance(self, server: SupervisedServer, now: float, left: list[int]) -> None:
        if server.phase == "polite" and left:
            self._signal_all(server, left, signal.SIGTERM)
            server.phase, server.until = "terminating", now + server.seconds("term_s")
        if server.phase == "terminating" and (server.at_once or now >= server.until):
            server.phase = "killing"
            server.until = now + family.KILL_FOR_S
        if server.phase == "killing" and left:
            self._signal_all(server, left, signal.SIGKILL)
        if not left or (server.phase == "killing" and now >= server.until):
            del self._servers[server.control.fileno()]
            server.let_go_of_pipes()
            if self._router is None:
                server.remove_home()
            server.control.close()

    def _remaining_processes(self, *, all_ended: bool) -> dict[int, list[int]]:
        """Return the remaining processes by server number, nearest first.

        Kills those of servers that are gone.
        """
        of_pid = {
            server.pid: server.number
            for server in self._servers.values()
            if server.pid and not server.ended
        }
        if sys.platform != "linux":
            return {number: [pid] for pid, number in of_pid.items()}
        if all_ended and _children_of_this_process() <= set(of_pid):
            return {}
        numbers = {server.number for server in self._servers.values()}
        found: dict[int, list[int]] = {}
        children = family.processes_by_parent()
        for child in children.get(os.getpid(), ()):
            number = of_pid[child] if child in of_pid else _mark_of(child)
            members = [child, *family.descendants_among(child, children)]
            if number in numbers:
                found.setdefault(number, []).extend(members)
            elif number is not None:
                family.signal_all(members, signal.SIGKILL)
        return found

    @staticmethod
    def _signal_all(server: SupervisedServer, left: list[int], number: int) -> None:
        if sys.platform != "linux":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(server.pid, number)
        family.signal_all(left, number)


# --- whose a process is ---------------------------------------------------------------------------


def _top() -> int:
    """Return the upper bound of the servers' marks: this process's own mark if it has one."""
    import resource

    own = resource.getrlimit(RLIMIT_LOCKS)[1]
    return _TOP if own == resource.RLIM_INFINITY else own


def _mark(number: int) -> None:
    """Give this process, and so all its descendants, the mark of the server with this number."""
    import resource

    mark = _top() - 1 - number * _STRIDE
    with contextlib.suppress(
        OSError, ValueError
    ):  # an unmarked server's orphans are killed with the router
        resource.setrlimit(RLIMIT_LOCKS, (mark, mark))


def _mark_of(pid: int) -> int | None:
    """Return the number of the server whose mark the process carries, or None."""
    try:
        with open(f"/proc/{pid}/limits", encoding="ascii") as limits:  # noqa: PTH123  # pathlib costs 5 ms here
            mark = next(line.split()[-2] for line in limits if line.startswith("Max file locks"))
        return (_top() - 1 - int(mark)) // _STRIDE
    except (OSError, ValueError, StopIteration):
        return None


def _children_of_this_process() -> set[int]:
    """Return the pids of its direct children, or {-1} if the kernel does not say."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:  # noqa: PTH123  # as above
            return {int(child) for child in children.read().split()}
    except OSError:
        return {-1}
