"""A program's confinement as a profile for macOS's sandbox-exec.

Pure. It was never run on a Mac: tests check its text, and the command line that a stand-in for sandbox-exec gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bundle_router.tools.sandbox.plan import SandboxPlan, Statement

SYSTEM: Final = ("/System", "/Library/Apple", "/Library/Frameworks", "/private/var/db/dyld", "/private/var/db/timezone")
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
    """Return the profile of a plan whose program works in the folder `root`. The last matching rule wins."""
    used = (root, *plan.write)
    rules = [
        _rule("allow process-exec file-read*", "subpath", (*SYSTEM, *plan.read, *used)),
        _rule("allow file-write*", "subpath", used),
        _rule("allow file-read* file-write-data", "literal", plan.devices),
        _rule("deny file-write*", "literal", (place.path for place in plan.pinned)),
        _rule("deny file-write*", "subpath", (place.path for place in plan.protected)),
        _rule("deny file-read* file-write*", "subpath", (place.path for place in (*plan.hidden, *plan.masked))),
    ]
    return _BASE + "".join(rules)


def _rule(what: str, kind: str, paths: Iterable[str]) -> str:
    places = "".join(f"\n  ({kind} {_quote_path(path)})" for path in dict.fromkeys(paths))
    return f"({what}{places})\n" if places else ""


def _quote_path(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
