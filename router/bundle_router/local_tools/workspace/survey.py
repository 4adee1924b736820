"""Searches the workspace before a program starts, for entries that one mount of the whole does not
protect.

A socket or FIFO may belong to another program, which waits for commands. A file may be another name
of code that the router's process runs, or have powers of its own (set-user-ID), which it keeps when
it is changed through memory. A repository or environment below the top has its own hooks, config
and startup files.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from bundle_router.adapters.descriptors import Opened
from bundle_router.local_tools.repo.beneath import Identity
from bundle_router.local_tools.repo.hiding import (
    SCANNED_BYTES,
    holds_private_key,
    is_credential_file,
    is_git_folder,
)

MAX_ENTRIES: Final = 200_000
_LARGE_IN_GIT: Final = frozenset({"objects", "refs", "logs", "lfs"})


@dataclass(slots=True)
class LinkedFile:
    """A file with more than one name."""

    links: int
    """How many names it has, wherever they are."""
    paths: list[str] = field(default_factory=list)
    """Its names that were found."""


@dataclass(slots=True)
class Survey:
    """The findings, by path. `complete` is False if there were too many entries to check."""

    sockets: list[Path] = field(default_factory=list)
    """And FIFOs."""
    credentials: list[Path] = field(default_factory=list)
    router_code: list[Path] = field(default_factory=list)
    repositories: list[Path] = field(default_factory=list)
    powers: list[Path] = field(default_factory=list)
    """Files with powers, and environments."""
    linked: list[LinkedFile] = field(default_factory=list)
    """Files with more than one name."""
    files: Counter[str] = field(default_factory=Counter)
    """Number of files directly in each folder."""
    complete: bool = True


def survey(top: str, leave_out: Collection[str], *, git_objects: bool = False) -> Survey:
    """Check every entry below the folder `top`, without following links or entering the folders in
    `leave_out`; nor, unless `git_objects`, those of a `.git` that hold its objects and refs.
    """
    survey_result = Survey()
    linked: dict[Identity, LinkedFile] = {}
    for number, entry in enumerate(_entries([top], leave_out, git_objects=git_objects)):
        if entry.is_dir(follow_symlinks=False):
            if entry.name == ".git":
                survey_result.repositories.append(Path(entry.path))
            elif entry.name == "conda-meta":
                survey_result.powers.append(Path(entry.path).parent)
        elif entry.is_file(follow_symlinks=False):
            if is_credential_file(entry.path) or _is_key_file(entry):
                survey_result.credentials.append(Path(entry.path))
            info = entry.stat(follow_symlinks=False)
            if entry.name == "HEAD" and is_git_folder(Path(entry.path).parent):
                survey_result.repositories.append(Path(entry.path).parent)
            elif entry.name == "pyvenv.cfg":
                survey_result.powers.append(Path(entry.path).parent)
            elif info.st_mode & 0o6000 or (info.st_mode & 0o111 and _has_capabilities(entry.path)):
                survey_result.powers.append(Path(entry.path))
            survey_result.files[os.path.dirname(entry.path)] += 1  # noqa: PTH120 - text
            if info.st_nlink > 1:
                linked_file = linked.setdefault(_identity(info), LinkedFile(info.st_nlink))
                linked_file.paths.append(entry.path)
        elif entry.is_symlink():
            if is_credential_file(entry.path):
                survey_result.credentials += _target_inside(entry.path, top)
        else:
            mode = entry.stat(follow_symlinks=False).st_mode
            survey_result.sockets += (
                [Path(entry.path)] if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) else []
            )
        if number > MAX_ENTRIES:
            survey_result.complete = False
            break
    survey_result.credentials += _other_names(survey_result.credentials, linked.values())
    if linked:
        code = linked_code(tuple(sys.path), Path(top).stat().st_dev)
        survey_result.router_code = [
            Path(path)
            for identity, linked_file in linked.items()
            if identity in code
            for path in linked_file.paths
        ]
        survey_result.linked = list(linked.values())
    return survey_result


def _target_inside(link: str, top: str) -> list[Path]:
    """Return the file in the folder `top` that a link leads to, if it leads to one."""
    target = Path(link).resolve()
    if target.is_relative_to(top) and target.is_file():
        return [target]
    return []


def _other_names(named: Collection[Path], linked: Iterable[LinkedFile]) -> list[Path]:
    """Return the further names of these files, which may be any."""
    known_paths = frozenset(map(str, named))
    return [
        Path(path)
        for file in linked
        if not known_paths.isdisjoint(file.paths)
        for path in file.paths
        if path not in known_paths
    ]


@lru_cache(maxsize=4)
def linked_code(import_path: tuple[str, ...], device: int) -> frozenset[Identity]:
    """Return the files on the import path, and in environments, that have more than one name on
    this device.

    uv and conda link installed files to a cache; most other installers copy.
    """
    tops = {
        top for top in (sys.prefix, sys.base_prefix, *import_path) if top and Path(top).is_dir()
    }
    files = _entries([top for top in tops if Path(top).stat().st_dev == device], ())
    every = (
        entry.stat(follow_symlinks=False) for entry in files if entry.is_file(follow_symlinks=False)
    )
    return frozenset(_identity(info) for info in every if info.st_nlink > 1)


def _entries(
    folders: list[str], leave_out: Collection[str], *, git_objects: bool = False
) -> Iterator[os.DirEntry[str]]:
    """Yield every entry, the highest first; unless `git_objects`, below a `.git`, and the
    submodules in it, no objects, refs and logs.
    """
    visited = set(leave_out)
    while folders:
        folder = folders.pop(0)  # what is deepest comes last, and is left out first
        if folder in visited:
            continue
        visited.add(folder)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # it is gone
                        yield entry
                        inner = "/.git/" in entry.path and entry.name in _LARGE_IN_GIT
                        inner = inner and not git_objects
                        if entry.is_dir(follow_symlinks=False) and not inner:
                            folders.append(entry.path)
        except OSError:
            continue  # unreadable for us, and so for the program; or gone


def _is_key_file(entry: os.DirEntry[str]) -> bool:
    """Return whether a file that is named like a key holds a private one.

    Others are not opened: there may be 200,000.
    """
    if not entry.name.casefold().endswith((".pem", ".key")):
        return False
    try:
        with Opened(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as fd:
            return holds_private_key(os.read(fd, SCANNED_BYTES))
    except OSError:
        return False  # unreadable for us, and so for the program; or gone


def _has_capabilities(path: str) -> bool:
    try:
        return "security.capability" in os.listxattr(path, follow_symlinks=False)
    except (OSError, AttributeError):  # AttributeError: not on Linux
        return False


def _identity(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino
