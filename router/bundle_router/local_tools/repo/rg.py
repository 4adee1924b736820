"""Searches by the real `rg`, started once per search and ended as soon as enough was
found.

`rg` gets everything as arguments: no config file, no preprocessor, no links followed, no
decompression. Its JSON output is read as it arrives; the format is documented in the crate
grep-printer ("JSON").

Rules:
1. It is started in the folder to search, or gets the open file, by a descriptor: no path is passed
   that could mean something else when it is looked up. Only the `.gitignore` files above that
   folder are found by name.
2. It is told to skip hidden folders, by their known names. It opens files by name, so it may follow
   a link that was put there meanwhile. So every hit is read again beneath the root, and dropped if
   it is not there.
3. A glob with folders is relative to the workspace, and rg's are relative to the folder that it
   searches: it gets what is left of the glob there (`local_tools.repo.globs`).
4. The binary is that of the distribution `ripgrep`, which is installed with the router, and as safe
   from an agent as the router's own code beside it (`workspace.router_code`); where there is none,
   the first on `PATH` outside the workspace.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from bundle_router.adapters.descriptors import Opened
from bundle_router.adapters.processes.starting import Command, find_binary
from bundle_router.core.values import ToolContext, shorten
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.beneath import PATH_ONLY, components
from bundle_router.local_tools.repo.children import Child, ConfinedCommand, start_child
from bundle_router.local_tools.repo.confinement import Root
from bundle_router.local_tools.repo.globs import globs_beneath
from bundle_router.local_tools.repo.hits import MAX_FILE_BYTES, FileHits, Line, Ripgrep, bad_pattern
from bundle_router.local_tools.repo.rereading import holds

_MAX_EVENT_BYTES: Final = 8 * MAX_FILE_BYTES
"""Maximum bytes of one JSON event: a file of one line, with escapes."""

_OPTIONS: Final = (
    "--no-config",
    "--json",
    "--sort=path",
    "--no-follow",
    "--no-pre",
    "--no-search-zip",
    "--no-mmap",  # a file cut short while mapped would kill it
    "--hidden",
    "--no-ignore-dot",
    "--no-ignore-exclude",
    "--no-ignore-global",
    "--no-ignore-messages",
    "--no-messages",
    "--engine=default",  # never PCRE2: it backtracks
    "--crlf",  # `$` matches before the carriage return of Windows' files, too
    f"--max-filesize={MAX_FILE_BYTES}",
)


def find_rg(workspace: str) -> str:
    """Return the absolute path of rg. Raises ToolFailure `unavailable`."""
    binary = _installed_rg() or find_binary("rg", outside=workspace)
    if binary is None:
        raise ToolFailure(
            "ripgrep is not installed here",
            code="unavailable",
            advice="pip install 'ripgrep>=14.1,<15', or read files instead",
        )
    return binary


@cache
def _installed_rg() -> str | None:
    """Return the binary that the distribution `ripgrep` has installed in this environment."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        listed = files("ripgrep") or []
    except PackageNotFoundError:
        return None
    for file in listed:
        path = os.path.realpath(file.locate())
        if file.name == "rg" and os.access(path, os.X_OK):
            return path
    return None


def search(
    binary: str, query: Ripgrep, root: Root, context: ToolContext, *, confined: bool = True
) -> Generator[FileHits, None, None]:
    """Yield the files with hits in path order; closing the generator ends the search.

    `binary` is the absolute path of rg. Raises ToolFailure.
    """
    with _scope(query, root) as (fd, is_folder):
        globs = _globs(query) if is_folder else []
        if globs is None:
            return
        place = root.place_of(fd, query.path)
        command = Command(
            # Started in the folder itself: for a folder below its own, rg 13 misapplies the
            # .gitignore files between.
            argv=(
                binary,
                *_OPTIONS,
                *_query_options(query, globs, root, fd),
                "--",
                "./" if is_folder else place,
            ),
            cwd=place if is_folder else root.place,
            env={"LC_ALL": "C.UTF-8", "PATH": "", "HOME": "/nonexistent"},
            inherited=(fd,),
        )
        with start_child(ConfinedCommand(command, (root.fd,), confined), context) as child:
            for hits in _files(_events(child), query.path, is_folder=is_folder):
                if not root.is_hidden(hits.path.rpartition("/")[0] or ".") and holds(root, hits):
                    yield hits
            _check_end(child, query)


@contextmanager
def _scope(query: Ripgrep, root: Root) -> Iterator[tuple[int, bool]]:
    """Yield a descriptor of the searched folder or regular file, and whether it is a folder."""
    try:
        folder = root.open_fd(query.path, PATH_ONLY | os.O_DIRECTORY)
    except ToolFailure as failure:
        if failure.code != "not_a_directory":
            raise
        with root.open_for_reader(query.path) as file:
            yield file.fileno(), False
        return
    with Opened(folder):
        yield folder, True


def _globs(query: Ripgrep) -> list[str] | None:
    """Return the globs for rg, relative to the searched folder; None if no file there can match."""
    if query.glob is None:
        return []
    if query.path == ".":
        return [query.glob]
    if query.glob.startswith("!"):
        beneath = globs_beneath(query.glob.removeprefix("!"), query.path)
        return [f"!{glob}" for glob in beneath]
    return globs_beneath(query.glob, query.path) or None


def _query_options(query: Ripgrep, globs: list[str], root: Root, fd: int) -> Iterator[str]:
    yield "--ignore-case" if query.ignore_case else "--case-sensitive"
    yield f"--max-count={query.max_matches + 1}"
    yield f"--context={query.context}"
    if query.path == ".":
        yield "--no-ignore-parent"
    if not _is_in_repository(root, query.path):
        yield "--no-require-git"  # with which rg 14 does not notice that a repository begins
    if query.literal:
        yield "--fixed-strings"
    yield from (f"--glob={glob}" for glob in globs)
    yield "--glob=!.git"
    for name in root.hidden.names_beneath(root.real_path(fd, query.path)):
        yield "--glob=!/" + re.sub(r"([\\*?\[\]{}!])", r"\\\1", name)
    yield f"--regexp={query.pattern}"


def _is_in_repository(root: Root, path: str) -> bool:
    """Return whether the path, or a folder of the workspace above it, is that of a repository."""
    parts = [] if path == "." else path.split("/")
    folders = ["/".join(parts[:length]) or "." for length in range(len(parts) + 1)]
    return any(root.entry(f"{folder}/.git") is not None for folder in folders)


def _events(child: Child) -> Iterator[dict[str, Any]]:
    pending = bytearray()
    for chunk in child.chunks():
        pending += chunk
        if b"\n" in chunk:
            *complete, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            yield from map(json.loads, complete)
        elif len(pending) > _MAX_EVENT_BYTES:
            raise ToolFailure(
                "rg returned a line that is too long",
                code="too_large",
                advice="narrow it with a glob",
            )


def _files(
    events: Iterator[dict[str, Any]], searched: str, *, is_folder: bool
) -> Iterator[FileHits]:
    """Yield rg's results with paths relative to the root; rg's paths are relative to the folder it
    was started in.
    """
    lines: list[Line] = []
    for event in events:
        kind = event["type"]
        data = event["data"]
        if kind in ("match", "context"):
            starts = [match["start"] for match in data["submatches"]]
            text = _bytes(data["lines"]).removesuffix(b"\n")
            lines.append(
                Line(data["line_number"], text, starts[0] if kind == "match" and starts else None)
            )
        elif kind == "end":
            # A NUL byte anywhere makes the file binary, even if rg matched lines before it.
            if lines and data["binary_offset"] is None:
                name = os.fsdecode(_bytes(data["path"]).removeprefix(b"./"))
                yield FileHits(
                    "/".join(components(f"{searched}/{name}")) if is_folder else searched,
                    tuple(lines),
                )
            lines = []


def _bytes(value: dict[str, str]) -> bytes:
    """Return rg's value as bytes; rg writes non-UTF-8 as base64."""
    if "text" in value:
        return value["text"].encode()
    return base64.b64decode(value["bytes"])


def _check_end(child: Child, query: Ripgrep) -> None:
    """Raise if rg failed.

    Exit status 2 with a message is an error; without one, a folder was unreadable.
    """
    if child.code in (0, 1) or not child.stderr:
        return
    words = " ".join(bytes(child.stderr).decode("utf-8", "replace").split())
    is_about_glob = "error parsing glob" in words or "glob" in words.partition(":")[0]
    if is_about_glob:
        raise ToolFailure(f"{query.glob!r} is not a usable glob: {words}", code="bad_glob")
    sentence = words.partition(" Consider enabling")[0].partition(" error: ")[2]
    raise bad_pattern(sentence or shorten(words, 300))
