"""Starts the program, waits for it, and ends all its remaining processes.

Rules:
1. The program and all its children descend from this process, which is either the first process of
   their pid namespace or their subreaper. So "no children left" (ECHILD) means that no process is
   left, wherever it moved: another process group, another session, a double fork.
2. Finished, stopped and abandoned programs end in the same way: TERM to all, a short grace, then
   KILL until none is left.
3. The program's own exit is reported as soon as it is known, before the rest is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from bundle_router.local_tools.sandbox import linux, namespaces, target
from bundle_router.local_tools.sandbox.bounds import INTERVAL_S, Watcher
from bundle_router.local_tools.sandbox.plan import Place, SandboxPlan, Statement, encode_statements
from bundle_router.local_tools.sandbox.tree import SHARED_MEMORY, PathSwapped

_KILL_FOR_S: Final = 5.0
_POLL_S: Final = 0.02


class Supervisor:
    """One program's life. `statements` are those already made (about the namespaces)."""

    def __init__(
        self, plan: SandboxPlan, control_fd: int, statements: list[Statement], *, own_users: bool
    ) -> None:
        self._plan = plan
        self._control = control_fd
        self._statements = statements
        self._own_users = own_users
        self._first = self._is_held("process tree")
        self._program = 0
        self._status: int | None = None
        self._leftovers = 0
        self._stopped = False

    def run(self) -> None:
        linux.hide_from_program()
        wake = self._watch_children()
        try:
            own_proc = self._arrange_mounts()
        except (OSError, PathSwapped, _Unprotected) as error:
            self._report(failed=str(error))
            return
        others = _everyone_else if self._first else partial(descendants, os.getpid())
        self._watcher = Watcher(self._plan, others if own_proc else None)
        self._program = os.fork()
        if self._program == 0:
            self._be_program()
        try:
            self._wait(wake)
        finally:
            self._end_all(wake)
        self._report(leftovers=self._leftovers)

    def _is_held(self, name: str) -> bool:
        return any(statement.held for statement in self._statements if statement.name == name)

    def _report(self, **fields: Any) -> None:
        """Report to the router.

        If the router is gone, the report is dropped, and the program is still ended.
        """
        with contextlib.suppress(BrokenPipeError):
            os.write(self._plan.report_fd, json.dumps(fields).encode("ascii") + b"\n")

    def _watch_children(self) -> int:
        """Return a descriptor that becomes readable when a child ends."""
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        return readable

    def _arrange_mounts(self) -> bool:
        """Return whether /proc shows this process's own pid namespace.

        Raises OSError, PathSwapped, _Unprotected.
        """
        plan = self._plan
        if not self._is_held("mounts"):
            self._statements += _not_kept(plan, self._statements)
            return not self._first
        own_proc = plan.entered or namespaces.build_root(plan.mounts)
        _reopen(plan.root_fd, [_path_of_root(plan)], os.O_PATH | os.O_DIRECTORY)
        _reopen(plan.binary_fd, plan.read, os.O_RDONLY)
        covered = {mount.target for mount in plan.mounts}
        hidden = (*plan.hidden, *plan.masked)
        for place in (*hidden, *(place for place in plan.protected if place not in hidden)):
            safe = place.path in covered or Path(_path_of_root(plan)).is_relative_to(place.path)
            detail = "hidden" if place in hidden else "read-only"
            if place.required and not safe:
                raise _unprotected_code(place, "it is a symbolic link")
            self._statements.append(
                _about(place, safe, detail if safe else "a symbolic link, which can be replaced")
            )
        if plan.linked:
            self._statements.append(
                Statement(HARD_LINKS, True, f"{plan.linked_details}: read-only")
            )
        read = (*plan.read, "/proc") if own_proc else plan.read
        self._plan = plan._replace(read=read, write=(*plan.write, *_own_writable(plan)))
        return own_proc

    # --- the child --------------------------------------------------------------------------------

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
        statements = self._statements
        target.limit(plan, own_users=self._own_users)
        statements += self._watcher.statements()
        target.enter_folder(plan)
        linux.forbid_new_privileges()
        files, abi = target.restrict_files(plan, network_held=self._is_held("network"))
        statements += [files, target.drop_privileges()]
        sockets = self._is_held("mounts") and (self._is_held("network") or abi >= 6)
        calls = target.filter_calls(plan, unix_sockets=sockets, own_pids=self._first)
        statements += [
            calls,
            *target.consequences(sockets=sockets, calls=calls.held, mounts=self._is_held("mounts")),
        ]
        self._report(**encode_statements(statements))

    # --- the parent -------------------------------------------------------------------------------

    def _wait(self, wake: int) -> None:
        """Return when the program has ended or exceeded a bound, or the router asks for its end."""
        while self._reap() and self._status is None and not self._stopped:
            if exceeded := self._watcher.exceeded_bound():
                self._report(exceeded=exceeded)
                return
            self._pause(wake, INTERVAL_S)

    def _pause(self, wake: int, timeout_s: float | None) -> None:
        poll = (
            select.poll()
        )  # not `select`: the control's number is the router's, which may be over 1,023
        poll.register(wake, select.POLLIN)
        if not self._stopped:
            poll.register(self._control, select.POLLIN)
        ready = [
            descriptor
            for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)
        ]
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if self._control in ready:
            self._stopped = True

    def _reap(self) -> bool:
        """Collect every child that has ended. Return False if there are no children left at all."""
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
        """Signal all processes: in a pid namespace all but its first; elsewhere all descendants of
        this process.
        """
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)
            return
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _reopen(descriptor: int, paths: Sequence[str], flags: int) -> None:
    """Replace what the router opened by the same file in the own root: by the old one (also as
    /proc/self/exe) a program would reach a mount outside, which is not read-only. Raises
    PathSwapped if it is at none of the paths.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):  # noqa: PTH116  # text
                os.dup2(found := os.open(path, flags), descriptor, inheritable=False)
                return os.close(found)
    raise PathSwapped(paths[0])


def _about(place: Place, safe: bool, detail: str) -> Statement:
    return Statement(Path(place.path).name, safe, detail)


HARD_LINKS: Final = "hard links"
"""The name of the statement about files with other names outside."""


class _Unprotected(Exception):
    """The program could write to what it must not change: the reason not to start it."""


def _unprotected_code(place: Place, why: str) -> _Unprotected:
    return _Unprotected(
        f"the router's own process runs code in {place.path}, which can't be kept read-only"
        f" here ({why}): keep the router's environment outside the workspace"
    )


def _unprotected_links(plan: SandboxPlan, why: str) -> _Unprotected:
    return _Unprotected(
        f"{plan.linked_details}, so a program could change what lies outside, and they can't be"
        f" kept read-only here ({why}): install bubblewrap, copy these files, or set hard_links ="
        ' "allow" for this binary in policy.toml'
    )


def _not_kept(plan: SandboxPlan, statements: Iterable[Statement]) -> list[Statement]:
    """Return the statements for a sandbox without mounts: Landlock can't exclude parts of what it
    grants.
    """
    why = "; ".join(statement.detail for statement in statements if statement.name == "mounts")
    for place in plan.protected:
        if place.required:
            raise _unprotected_code(place, f"no mount namespace: {why}")
    if any(place.required for place in plan.linked):
        raise _unprotected_links(plan, f"no mount namespace: {why}")
    hidden = [*plan.hidden, *plan.masked]
    kept = [place for place in plan.protected if place not in hidden]
    readable = [
        _about(place, False, "can be read: hiding it needs a mount namespace") for place in hidden
    ]
    changeable = [_about(place, False, "needs a mount namespace") for place in kept]
    if plan.linked:
        detail = f"{plan.linked_details}: what lies outside can be changed"
        changeable.append(Statement(HARD_LINKS, False, detail))
    return [*readable, *changeable]


def _path_of_root(plan: SandboxPlan) -> str:
    """Return the mount point of the program's working root: the only mount with its identity."""
    info = os.fstat(plan.root_fd)
    found = [
        mount.target
        for mount in plan.mounts
        if (mount.device, mount.inode) == (info.st_dev, info.st_ino)
    ]
    return found[0] if found else plan.cwd


def _own_writable(plan: SandboxPlan) -> Iterator[str]:
    """Yield the writable folders of the own root, without /tmp if the workspace is reached through
    it.
    """
    yield SHARED_MEMORY
    for _, folder in plan.temporary:
        if not Path(_path_of_root(plan)).is_relative_to(folder):
            yield folder


def _everyone_else() -> list[int]:
    """Return all processes of this pid namespace but the first, by its own /proc."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if entry.name != "1"]


def descendants(root: int) -> list[int]:
    """Return all descendants of `root`, nearest first, as /proc shows them now.

    Empty without /proc.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after_name = (
                (entry / "stat")
                .read_text(encoding="utf-8", errors="replace")
                .rpartition(")")[2]
                .split()
            )
            children.setdefault(int(after_name[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]
