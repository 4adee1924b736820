"""Runs one program under macOS's sandbox-exec: starts it, feeds and reads it, and ends its process
group in time.

It was never run on a Mac: tests check the profile's text, and the command line that a stand-in for
sandbox-exec gets.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Final

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.sandbox.plan import SandboxPlan, Statement
from bundle_router.local_tools.workspace.process import Capture, Ended, ProcessExit

_POLL_S: Final = 0.05
_DRAIN_S: Final = 1.0  # for output, once the program has ended


def run(
    program: str,
    plan: SandboxPlan,
    root: str,
    *,
    stdin: str | None,
    timeout_s: float,
    cancelled: Callable[[], bool],
    max_bytes: int,
) -> ProcessExit:
    """Run a program by sandbox-exec (`program`); else as `process.run`.

    Raises ToolFailure `not_started`.
    """
    real = plan._replace(read=tuple(map(os.path.realpath, plan.read)))
    began = time.monotonic()
    with tempfile.TemporaryFile() as source:
        source.write((stdin or "").encode("utf-8"))
        source.seek(0)
        try:
            process = subprocess.Popen(
                [program, "-p", profile(real, root), *plan.argv],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(plan.env),
                cwd=plan.cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolFailure(
                f"the program was not started: {error.strerror}", code="not_started"
            ) from error
    with process:
        ended, streams = _follow(process, began + timeout_s, cancelled, max_bytes)
    status = process.returncode
    took_ms = (time.monotonic() - began) * 1000
    code, number = (status, None) if status >= 0 else (None, -status)
    how: Ended = "killed" if ended == "exited" and number else ended
    return ProcessExit(
        how, code, number, took_ms, streams[0].output(), streams[1].output(), STATEMENTS, 0
    )


def _follow(
    process: subprocess.Popen[bytes], deadline: float, cancelled: Callable[[], bool], max_bytes: int
) -> tuple[Ended, list[Capture]]:
    """Read both streams until the program ends, runs out of time or is cancelled; then end its
    group.
    """
    ended: Ended | None = None
    streams = [Capture(max_bytes), Capture(max_bytes)]
    with selectors.DefaultSelector() as selector:
        for pipe, capture in zip((process.stdout, process.stderr), streams, strict=True):
            if pipe is None:
                raise AssertionError("the program was started without pipes")
            selector.register(pipe, selectors.EVENT_READ, capture)
        while selector.get_map() or ended is None:
            for key, _ in selector.select(_POLL_S):
                data = os.read(key.fd, 65_536)
                key.data.feed(data)
                if not data:
                    selector.unregister(key.fileobj)
            now = time.monotonic()
            if ended is None and (process.poll() is not None or now >= deadline or cancelled()):
                if process.poll() is not None:
                    ended = "exited"
                elif now >= deadline:
                    ended = "timeout"
                else:
                    ended = "cancelled"
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                deadline = now + _DRAIN_S
            elif ended is not None and now >= deadline:
                break
    return ended, streams


# --- the profile of sandbox-exec ------------------------------------------------------------------

SYSTEM: Final = (
    "/System",
    "/Library/Apple",
    "/Library/Frameworks",
    "/private/var/db/dyld",
    "/private/var/db/timezone",
)
"""What programs load on macOS besides the plan's readable paths."""
_BASE: Final = """(version 1)
(deny default)
(allow process-fork)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow sysctl-read)
(allow ipc-posix-sem)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow file-read-metadata)
(allow file-read* (literal "/"))
"""
STATEMENTS: Final = (
    Statement("files", True, "sandbox-exec: writes only in the workspace and private folders"),
    Statement("network", True, "sandbox-exec refuses it"),
    Statement("process tree", False, "only its process group is ended"),
    Statement("limits", False, "memory, files and processes are bounded on Linux alone"),
    Statement("metadata", False, "names, sizes and times of files outside can be read"),
)
"""Statements about what a profile protects, and what it does not."""


def profile(plan: SandboxPlan, root: str) -> str:
    """Return the profile of a plan whose program works in the folder `root`.

    The last matching rule wins.
    """
    used = (root, *plan.write)
    rules = [
        _rule("allow process-exec file-read*", "subpath", (*SYSTEM, *plan.read, *used)),
        _rule("allow file-write*", "subpath", used),
        _rule("allow file-read* file-write-data", "literal", plan.devices),
        _rule("deny file-write*", "literal", (place.path for place in plan.pinned)),
        _rule(
            "deny file-write*", "subpath", (place.path for place in (*plan.protected, *plan.linked))
        ),
        _rule(
            "deny file-read* file-write*",
            "subpath",
            (place.path for place in (*plan.hidden, *plan.masked)),
        ),
    ]
    return _BASE + "".join(rules)


def _rule(what: str, kind: str, paths: Iterable[str]) -> str:
    escaped = (path.replace("\\", "\\\\").replace('"', '\\"') for path in dict.fromkeys(paths))
    places = "".join(f'\n  ({kind} "{path}")' for path in escaped)
    return f"({what}{places})\n" if places else ""
