"""Starts the program, waits for it, and ends everything it left behind.

Rules:
1. The program, and whatever it starts, are descendants of this process: it is either the first process of their
   pid namespace or their subreaper. So "no children left" (ECHILD) means that no process is left, wherever it
   moved: another process group, another session, a double fork.
2. The end is the same for a finished, stopped and abandoned program: TERM to all, a short grace, then KILL until
   there is nobody.
3. The program's own exit is reported as soon as it is known, before the rest is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from bundle_router.tools.sandbox import linux, namespaces, target
from bundle_router.tools.sandbox.plan import Place, Plan, Statement, encode_statements

_KILL_FOR_S: Final = 5.0
_POLL_S: Final = 0.02


class Supervisor:
    """One program's life. `statements` are what already holds when it is made (the namespaces)."""

    def __init__(self, plan: Plan, control_fd: int, statements: list[Statement], *, own_users: bool) -> None:
        self._plan = plan
        self._control = control_fd
        self._statements = statements
        self._own_users = own_users
        self._first = self._holds("process tree")
        self._program = 0
        self._status: int | None = None
        self._leftovers = 0
        self._stopped = False

    def run(self) -> None:
        wake = self._watch_children()
        try:
            if self._holds("mounts"):
                self._arrange_mounts()
            else:
                self._statements += _not_kept(self._plan, self._statements)
        except namespaces.Swapped as swapped:
            self._report(failed=f"{swapped} was replaced while the program was being started")
            return
        except _Unprotected as unprotected:
            self._report(failed=str(unprotected))
            return
        self._program = os.fork()
        if self._program == 0:
            self._be_program()
        try:
            self._wait(wake)
        finally:
            self._end_all(wake)
            target.remove_cgroups(self._plan)
        self._report(leftovers=self._leftovers)

    def _holds(self, name: str) -> bool:
        return any(statement.held for statement in self._statements if statement.name == name)

    def _report(self, **fields: Any) -> None:
        """To the router. One that is gone must not keep this process from ending the program."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._plan.report_fd, json.dumps(fields).encode("ascii") + b"\n")

    def _watch_children(self) -> int:
        """A descriptor that becomes readable when a child ends."""
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        return readable

    def _arrange_mounts(self) -> None:
        plan, grants = self._plan, {}
        if self._first and namespaces.mount_own_proc():
            grants["read"] = (*plan.read, "/proc")
        if namespaces.mount_own_shared_memory():
            grants["write"] = (*plan.write, "/dev/shm")  # noqa: S108  # a mount of our own
        namespaces.mask(plan.masked)
        self._keep_places()
        self._plan = Plan(**{name: grants.get(name, getattr(plan, name)) for name in Plan.__dataclass_fields__})

    def _keep_places(self) -> None:
        """Pins first, so that nothing below is moved away; what could not be hidden is at least made read-only."""
        plan = self._plan
        done: set[Place] = set()
        for place in plan.pinned:
            if refused := namespaces.pin(place):
                self._statements.append(_about(place, False, f"can be moved away ({refused})"))
        for place in plan.hidden:
            if refused := namespaces.hide(place):
                self._statements.append(_about(place, False, f"can be read ({refused})"))
            else:
                self._statements.append(_about(place, True, "hidden"))
                done.add(place)
        for place in plan.protected:
            if place not in done:
                refused = namespaces.protect(place)
                if refused and place.required:
                    raise _Unprotected(place, refused)
                self._statements.append(_about(place, not refused, refused or "read-only"))

    # --- the child ---------------------------------------------------------------------------------------------------

    def _be_program(self) -> None:
        try:
            signal.set_wakeup_fd(-1)
            linux.die_with_parent()
            os.setsid()
            self._give_up_powers()
            target.become(self._plan)
        except OSError as error:
            self._report(failed=str(error.strerror or error))
            os._exit(target.CANT_START)

    def _give_up_powers(self) -> None:
        plan = self._plan
        in_cgroup = target.join_cgroups(plan)
        target.limit(plan)
        self._statements.append(target.limit_processes(plan, in_cgroup=in_cgroup, own_users=self._own_users))
        self._statements.append(Statement("memory", True, f"{plan.memory_bytes >> 20} MiB a process"))
        target.enter_folder(plan)
        linux.forbid_new_privileges()
        self._statements.append(target.restrict_files(plan, network_held=self._holds("network")))
        self._statements.append(target.drop_privileges())
        self._report(**encode_statements(self._statements))

    # --- the parent --------------------------------------------------------------------------------------------------

    def _wait(self, wake: int) -> None:
        """Returns when the program has ended or the router wants it ended."""
        while self._reap() and self._status is None and not self._stopped:
            self._pause(wake, None)

    def _pause(self, wake: int, timeout_s: float | None) -> None:
        watched = [wake] if self._stopped else [wake, self._control]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if self._control in ready:
            self._stopped = True

    def _reap(self) -> bool:
        """Collects every child that has ended. False when there are no children left at all."""
        try:
            while True:
                child, status = os.waitpid(-1, os.WNOHANG)
                if child == 0:
                    return True
                if child == self._program:
                    self._status = os.waitstatus_to_exitcode(status)
                    self._report(exited=self._status)
                else:
                    self._leftovers += self._status is not None
        except ChildProcessError:
            return False

    def _end_all(self, wake: int) -> None:
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + self._plan.grace_s
        while self._reap() and time.monotonic() < deadline:
            self._pause(wake, _POLL_S)
        deadline = time.monotonic() + _KILL_FOR_S
        while self._reap() and time.monotonic() < deadline:
            self._signal_all(signal.SIGKILL)
            self._pause(wake, _POLL_S)

    def _signal_all(self, number: int) -> None:
        """In a pid namespace: everyone but its first process. Elsewhere: everyone who descends from this process."""
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)
            return
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _about(place: Place, held: bool, detail: str) -> Statement:
    return Statement(Path(place.path).name, held, detail)


class _Unprotected(Exception):
    """Code that the router's own process runs lies where the program may write."""

    def __init__(self, place: Place, why: str) -> None:
        super().__init__(
            f"the router's own process runs code in {place.path}, which can't be kept read-only here ({why}): "
            "keep the router's environment outside the workspace"
        )


def _not_kept(plan: Plan, statements: Iterable[Statement]) -> list[Statement]:
    """What is said where there are no mounts of our own: what Landlock grants as a whole it can't take away in part."""
    why = "; ".join(statement.detail for statement in statements if statement.name == "mounts")
    for place in plan.protected:
        if place.required:
            raise _Unprotected(place, f"no mount namespace: {why}")
    hidden = [_about(place, False, "can be read: hiding it needs a mount namespace") for place in plan.hidden]
    kept = [place for place in plan.protected if place not in plan.hidden]
    return [*hidden, *(_about(place, False, "needs a mount namespace") for place in kept)]


def descendants(root: int) -> list[int]:
    """Every process below `root`, nearest first, as /proc shows them now. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after_name = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]
