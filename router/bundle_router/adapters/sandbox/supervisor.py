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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.processes import family
from bundle_router.adapters.sandbox import linux, target
from bundle_router.adapters.sandbox.plan import (
    NEEDS_BUBBLEWRAP,
    Place,
    SandboxPlan,
    Statement,
    encode_statements,
)
from bundle_router.adapters.sandbox.tree import SHARED_MEMORY, PathSwapped, check_mounts
from bundle_router.adapters.sandbox.watcher import INTERVAL_S, Watcher


class Supervisor:
    """One program's life."""

    def __init__(self, plan: SandboxPlan, control_fd: int) -> None:
        self._plan = plan
        self._control = control_fd
        self._entered = not plan.without_bubblewrap
        self._statements = _about_namespaces(plan)
        self._program = 0
        self._status: int | None = None
        self._leftovers = 0
        self._stopped = False

    def run(self) -> None:
        linux.hide_from_program()
        wake = family.watch_children()
        try:
            self._arrange_mounts()
        except (OSError, PathSwapped, _Unprotected) as error:
            self._report(failed=str(error))
            return
        self._watcher = Watcher(self._plan, self._others)
        self._program = os.fork()
        if self._program == 0:
            self._be_program()
        try:
            self._wait(wake)
        finally:
            self._end_all(wake)
        self._report(leftovers=self._leftovers)

    def _others(self) -> list[int]:
        """Return the program's processes: with bubblewrap, all of the pid namespace but this."""
        if self._entered:
            return _everyone_else()
        return family.descendants(os.getpid())

    def _report(self, **fields: Any) -> None:
        """Report to the router.

        If the router is gone, the report is dropped, and the program is still ended.
        """
        with contextlib.suppress(BrokenPipeError):
            os.write(self._plan.report_fd, json.dumps(fields).encode("ascii") + b"\n")

    def _arrange_mounts(self) -> None:
        """Check and complete what bubblewrap mounted. Raises OSError, PathSwapped, _Unprotected."""
        plan = self._plan
        if not self._entered:
            self._statements += _not_kept(plan)
            return
        check_mounts(plan)
        _protect_devices(plan)
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
        self._plan = plan._replace(
            read=(*plan.read, "/proc"), write=(*plan.write, *_own_writable(plan))
        )

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
        except target.Unconfined as error:
            self._report(failed=str(error))
            os._exit(target.CANT_START)

    def _give_up_powers(self) -> None:
        plan = self._plan
        statements = self._statements
        target.limit(plan)
        statements += self._watcher.statements()
        target.enter_folder(plan)
        linux.forbid_new_privileges()
        files = target.restrict_files(plan)
        statements += [files, target.drop_privileges()]
        calls = target.filter_calls(plan)
        target.require_confinement(plan, files, calls)
        statements += [calls, *target.consequences(plan, calls)]
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
            family.clear(wake)
        if self._control in ready:
            self._stopped = True

    def _reap(self) -> bool:
        """Collect every child that has ended. Return False if there are no children left at all."""
        return family.reap(self._note_exit)

    def _note_exit(self, pid: int, status: int) -> None:
        if pid == self._program:
            self._status = status
            self._report(exited=status)
        elif self._status is not None:
            self._leftovers += 1

    def _end_all(self, wake: int) -> None:
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + self._plan.grace_s
        while self._reap() and time.monotonic() < deadline:
            self._pause(wake, family.POLL_S)
        deadline = time.monotonic() + family.KILL_FOR_S
        while self._reap() and time.monotonic() < deadline:
            self._signal_all(signal.SIGKILL)
            self._pause(wake, family.POLL_S)

    def _signal_all(self, number: int) -> None:
        """Signal all processes: in a pid namespace all but its first; elsewhere all descendants of
        this process.
        """
        if self._entered:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)
            return
        family.signal_all(family.descendants(os.getpid()), number)


def _about_namespaces(plan: SandboxPlan) -> list[Statement]:
    """Return the statements about bubblewrap and what it gives, or why it is missing."""
    details = {
        "bubblewrap": "made the root folder and the namespaces",
        "process tree": "own pid namespace",
        "mounts": (
            "own root folder: only the workspace, /tmp, /var/tmp and a private folder are writable"
        ),
    }
    reason = plan.without_bubblewrap
    if not reason:
        return [Statement(name, True, detail) for name, detail in details.items()]
    missing = [Statement(name, False, NEEDS_BUBBLEWRAP) for name in details if name != "bubblewrap"]
    return [Statement("bubblewrap", False, reason), *missing]


def _protect_devices(plan: SandboxPlan) -> None:
    """Make the devices' modes and times read-only: they are the machine's own, and root's.

    Bubblewrap can't: a device that it mounts read-only can't be opened. Other users have neither
    the right to mount here nor that to change them.
    """
    if os.geteuid() != 0:
        return
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NOEXEC
    for mount in plan.mounts:
        if mount.kind == "device":
            linux.mount(None, mount.target, None, flags)


def _reopen(descriptor: int, paths: Sequence[str], flags: int) -> None:
    """Replace what the router opened by the same file in the own root: by the old one (also as
    /proc/self/exe) a program would reach a mount outside, which is not read-only. Raises
    PathSwapped if it is at none of the paths.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):  # noqa: PTH116  # text
                os.dup2(opened_fd := os.open(path, flags), descriptor, inheritable=False)
                return os.close(opened_fd)
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


def _not_kept(plan: SandboxPlan) -> list[Statement]:
    """Return the statements for a sandbox without mounts: Landlock can't exclude parts of what it
    grants. Raises _Unprotected.
    """
    reason = plan.without_bubblewrap
    for place in plan.protected:
        if place.required:
            raise _unprotected_code(place, f"bubblewrap: {reason}")
    if any(place.required for place in plan.linked):
        raise _unprotected_links(plan, f"bubblewrap: {reason}")
    hidden = [*plan.hidden, *plan.masked]
    protected = [place for place in plan.protected if place not in hidden]
    readable = [_about(place, False, "can be read: hiding it needs bubblewrap") for place in hidden]
    changeable = [_about(place, False, NEEDS_BUBBLEWRAP) for place in protected]
    if plan.linked:
        detail = f"{plan.linked_details}: what lies outside can be changed"
        changeable.append(Statement(HARD_LINKS, False, detail))
    return [*readable, *changeable]


def _path_of_root(plan: SandboxPlan) -> str:
    """Return the mount point of the program's working root: the only mount with its identity."""
    info = os.fstat(plan.root_fd)
    targets = [
        mount.target
        for mount in plan.mounts
        if (mount.device, mount.inode) == (info.st_dev, info.st_ino)
    ]
    return targets[0] if targets else plan.cwd


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
