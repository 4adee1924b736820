"""The messages between router and launcher: two JSON shapes, read by both sides.

The launcher reports that it is ready, reads one line of plan from its control pipe and carries it
out. Any further byte, or the pipe's end, means "end everything now", so a dying router takes its
programs with it. Reports are JSON lines on a pipe of their own, which is closed before the program
starts: the program can't forge them. Values are named tuples: a launcher that loads `dataclasses`
takes a third longer to start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

Facility = Literal["bubblewrap", "files", "system calls"]
FACILITIES: Final[tuple[Facility, ...]] = ("bubblewrap", "files", "system calls")
"""Facilities that can be omitted on purpose: bubblewrap, Landlock, seccomp.

All others (limits, privileges, ending every process) always apply.
"""
SWITCHED_OFF: Final = "switched off"
"""What is said of a facility that was omitted."""
NEEDS_BUBBLEWRAP: Final = "needs bubblewrap"
"""What is said of a protection that nothing else gives."""

MountKind = Literal["folder", "link", "read", "write", "device", "memory", "hide"]


class Statement(NamedTuple):
    """One protection: whether it was in force for this program, and how or why not."""

    name: str
    held: bool
    detail: str


class Place(NamedTuple):
    """A file or folder by its path, with the identity that the router saw there: the path may be
    swapped meanwhile.

    If a `required` place can't be protected from the program, the program is not started.
    """

    path: str
    device: int
    inode: int
    required: bool = False


class Mount(NamedTuple):
    """One step of building the program's own root folder, which begins empty; see `tree.mounts_of`.

    `read`, `write` and `device` show `source` at `target`, with everything beneath; `device` and
    `inode` identify the expected source (0: any). `link` makes a symlink with the text `source`,
    `folder` an empty folder, `memory` an empty writable one of `MEMORY_FOLDER_BYTES`; `hide` covers
    the target by an empty read-only one.
    """

    kind: MountKind
    target: str
    source: str = ""
    device: int = 0
    inode: int = 0


MEMORY_FOLDER_BYTES: Final = 64 << 20


class SandboxPlan(NamedTuple):
    """Everything that the launcher needs. Descriptors are inherited under the same numbers.

    `binary_fd` is executed (the router checked it, so nothing can be swapped in between); `cwd`
    must still be the folder behind `cwd_fd` when the program starts. Landlock grants writing
    beneath `root_fd`, the folder that the program works in, and `write`, and using `read` and
    `devices`.

    With bubblewrap, the program has a root of its own (`mounts`, filled in by the router):
    it sees `read`, `devices`, `write`, the folder behind `root_fd` and the `temporary` folders
    (source, target). `hidden` and `masked` places are emptied, `protected` ones read-only, and
    `pinned` folders, which hold some of those, can't be moved away with them. If one of these was
    swapped the program does not start. `linked` ones have other names outside: they are read-only,
    and `linked_details` is said of them. `without_bubblewrap` is the reason why none of that holds;
    it is empty if bubblewrap has done it before the launcher starts. `loader` are folders that only
    the launcher itself needs.

    `memory_bytes` bounds one process's address space, `total_memory_bytes` the memory of all;
    `file_bytes` one file, `total_written_bytes` and `max_new_files` all writing.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    binary_fd: int
    cwd: str
    cwd_fd: int
    root_fd: int
    report_fd: int
    write: tuple[str, ...]
    read: tuple[str, ...]
    devices: tuple[str, ...]
    loader: tuple[str, ...] = ()
    temporary: tuple[tuple[str, str], ...] = ()
    protected: tuple[Place, ...] = ()
    hidden: tuple[Place, ...] = ()
    masked: tuple[Place, ...] = ()
    pinned: tuple[Place, ...] = ()
    linked: tuple[Place, ...] = ()
    linked_details: str = ""
    mounts: tuple[Mount, ...] = ()
    without_bubblewrap: str = ""
    memory_bytes: int = 2 << 30
    total_memory_bytes: int = 2 << 30
    file_bytes: int = 256 << 20
    total_written_bytes: int = 512 << 20
    max_new_files: int = 50_000
    max_processes: int = 256
    open_files: int = 1024
    grace_s: float = 0.5
    facilities: tuple[str, ...] = FACILITIES

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode("ascii") + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> SandboxPlan:
        fields: dict[str, Any] = json.loads(line)
        for name, value in fields.items():
            fields[name] = _with_tuples(value)
        for name in ("protected", "hidden", "masked", "pinned", "linked"):
            fields[name] = tuple(Place(*place) for place in fields[name])
        fields["mounts"] = tuple(Mount(*mount) for mount in fields["mounts"])
        return cls(**fields)


def _with_tuples(value: Any) -> Any:
    """Return a field's value with its lists, and those within them, as tuples."""
    if not isinstance(value, list):
        return value
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def encode_statements(statements: Iterable[Statement]) -> dict[str, object]:
    return {"statements": [statement._asdict() for statement in statements]}
