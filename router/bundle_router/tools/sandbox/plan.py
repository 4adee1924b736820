"""What the router tells the launcher, and what the launcher reports: two JSON shapes, read by both sides.

The launcher reads one line of plan from its control pipe; any further byte, or the pipe's end, means "end
everything now", so a router that dies takes its programs with it. Reports are JSON lines on a pipe of their own,
which is closed before the program starts: the program can't forge them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Facility = Literal["network", "process tree", "mounts", "files"]
FACILITIES: Final[tuple[Facility, ...]] = ("network", "process tree", "mounts", "files")
"""What can be left out on purpose. Everything else (limits, privileges, ending every process) always applies."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One protection: whether it held for this program, and how or why not."""

    name: str
    held: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder by its path, and what the router saw there: a path alone may lead elsewhere by now.

    Where a `required` place can't be kept from the program, the program is not started.
    """

    path: str
    device: int
    inode: int
    required: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the launcher needs. Descriptors are inherited under the same numbers.

    `binary_fd` is what will be executed (checked by the router, so nothing can be swapped in between); `cwd` must
    still be the folder behind `cwd_fd` when the program starts. Landlock grants writing beneath `root_fd`, the folder
    the program works in, and `write`, and using `read` and `devices`.

    Where there is a mount namespace, `masked` folders are emptied, `hidden` ones too, `protected` places are made
    read-only, and `pinned` folders, which hold some of those, can't be moved away with them. When one of the last three
    kinds was swapped the program does not start.
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
    masked: tuple[str, ...] = ()
    protected: tuple[Place, ...] = ()
    hidden: tuple[Place, ...] = ()
    pinned: tuple[Place, ...] = ()
    cgroups: tuple[str, ...] = ()
    memory_bytes: int = 2 << 30
    file_bytes: int = 256 << 20
    max_processes: int = 256
    open_files: int = 1024
    grace_s: float = 0.5
    facilities: tuple[str, ...] = FACILITIES

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode("ascii") + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Plan:
        fields: dict[str, Any] = json.loads(line)
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = tuple(tuple(item) if isinstance(item, list) else item for item in value)
        for name in ("protected", "hidden", "pinned"):
            fields[name] = tuple(Place(**place) for place in fields[name])
        return cls(**fields)


def encode_statements(statements: Iterable[Statement]) -> dict[str, object]:
    return {"statements": [asdict(statement) for statement in statements]}
