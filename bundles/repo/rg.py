"""The search engine over the real `rg`, started once per search and ended as soon as enough was found.

`rg` is told everything by arguments: no config file, no preprocessor, no links followed, no decompression. Its JSON
output is read as it comes; the format is documented in the crate grep-printer ("JSON").
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Generator, Iterator
from typing import Any, Final

from bundles.repo.children import Child, Command, started
from bundles.repo.confinement import Root
from bundles.repo.hits import MAX_FILE_BYTES, FileHits, Line, Ripgrep
from bundles.repo.regexes import bad_pattern
from router.core.models import ToolContext
from router.errors import ToolFailure

_MAX_EVENT_BYTES: Final = 8 * MAX_FILE_BYTES
"""One line of a file that is all one line, in JSON, with escapes."""

_OPTIONS: Final = (
    "--no-config",
    "--json",
    "--sort=path",
    "--no-follow",
    "--no-pre",
    "--no-search-zip",
    "--no-mmap",  # a file cut short while mapped would kill it
    "--hidden",
    "--no-ignore-dot",  # rg 13 still honours .rgignore, rg 14 no longer does
    "--no-ignore-exclude",
    "--no-ignore-global",
    "--no-require-git",
    "--no-ignore-messages",
    "--no-messages",
    "--engine=default",  # never PCRE2: it backtracks
    f"--max-filesize={MAX_FILE_BYTES}",
)


def search(binary: str, query: Ripgrep, root: Root, context: ToolContext) -> Generator[FileHits, None, None]:
    """Implements `bundles.repo.hits.Engine`, once bound to the absolute path of the binary."""
    _check_scope(query, root)
    prefix = root.path.rstrip("/") + "/"
    command = Command(
        # Absolute: with a relative folder rg 13 misapplies the .gitignore files above it.
        argv=(binary, *_OPTIONS, *_query_options(query), "--", prefix + ("" if query.path == "." else query.path)),
        cwd=root.path,
        env={"LC_ALL": "C.UTF-8", "PATH": "", "HOME": "/nonexistent"},
        readable=(root.fd,),
    )
    with started(command, context) as child:
        yield from _files(_events(child), os.fsencode(prefix))
        _check_end(child, query)


def _check_scope(query: Ripgrep, root: Root) -> None:
    """What is named must exist beneath the root and be a folder or a regular file; rg would follow it anywhere."""
    try:
        root.scandir(query.path, limit=0)
    except ToolFailure as failure:
        if failure.code != "not_a_directory":
            raise
        root.open_file(query.path).close()


def _query_options(query: Ripgrep) -> Iterator[str]:
    yield "--ignore-case" if query.ignore_case else "--case-sensitive"
    yield f"--max-count={query.max_matches + 1}"
    yield f"--context={query.context}"
    if query.literal:
        yield "--fixed-strings"
    if query.glob:
        yield f"--glob={query.glob}"
    yield "--glob=!.git"
    yield f"--regexp={query.pattern}"


def _events(child: Child) -> Iterator[dict[str, Any]]:
    pending = bytearray()
    for chunk in child.chunks():
        pending += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            yield from map(json.loads, whole)
        elif len(pending) > _MAX_EVENT_BYTES:
            raise ToolFailure("rg gave a line that is too long", code="too_large", advice="narrow it with a glob")


def _files(events: Iterator[dict[str, Any]], prefix: bytes) -> Iterator[FileHits]:
    lines: list[Line] = []
    for event in events:
        kind, data = event["type"], event["data"]
        if kind in ("match", "context"):
            starts = [match["start"] for match in data["submatches"]]
            text = _bytes(data["lines"]).removesuffix(b"\n")
            lines.append(Line(data["line_number"], text, starts[0] if kind == "match" and starts else None))
        elif kind == "end":
            # A NUL byte anywhere makes it binary, also when rg had matched lines before it came to it.
            if lines and data["binary_offset"] is None:
                yield FileHits(os.fsdecode(_bytes(data["path"]).removeprefix(prefix)), tuple(lines))
            lines = []


def _bytes(value: dict[str, str]) -> bytes:
    """rg writes what is not UTF-8 as base64."""
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _check_end(child: Child, query: Ripgrep) -> None:
    """Exit status 2 is an error, but also a folder it could not read: only the first says anything on stderr."""
    if child.code in (0, 1) or not child.stderr:
        return
    words = " ".join(bytes(child.stderr).decode("utf-8", "replace").split())
    if "error parsing glob" in words or "glob" in words.partition(":")[0]:
        raise ToolFailure(f"{query.glob!r} is not a usable glob: {words}", code="bad_glob")
    raise bad_pattern(words.partition(" Consider enabling")[0].partition(" error: ")[2] or words[:300])
