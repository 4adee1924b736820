"""`repo.list_dir`: the content of a folder in a stable order, shallow levels first if there is too
much.

Links are shown with their target and never entered; `.git` is shown and not entered; the router's
own records are left out, and the result says so.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Final

from pydantic import Field

from bundle_router.core.values import Frozen, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.confinement import FolderEntry, Root, workspace
from bundle_router.local_tools.repo.file_names import show_name, with_path_read
from bundle_router.local_tools.repo.refusals import count

SCAN_ENTRIES: Final = 100_000
"""Maximum entries read in one call. Beyond it the total is unknown, and the result says so."""


class ListDir(Frozen):
    """Arguments of `list_dir`."""

    path: str = Field(
        default=".", description="Folder to list, relative to the workspace.", max_length=4096
    )
    depth: int = Field(
        default=1, ge=1, le=10, description="Levels to go down; 1 lists the folder itself."
    )
    max_entries: int = Field(default=200, ge=1, le=2000, description="Most entries to return.")


def list_dir(arguments: ListDir, context: ToolContext) -> ToolOutput:
    """Run `repo.list_dir`."""
    arguments = with_path_read(arguments)
    with workspace(context) as root:
        top = root.relative(arguments.path or ".")
        lines, total = _collect(root, top, arguments, context)
        note = root.hidden.note()
    everything = total < SCAN_ENTRIES
    if len(lines) == total:
        of = ""
    elif everything:
        of = f" of {total:,}"
    else:
        of = f" of more than {total:,}"
    if of:
        head = f"{show_name(top)}: {len(lines):,}{of} entries"
    else:
        head = f"{show_name(top)}: {count(total, 'entry', 'entries')}"
    head += f", depth {arguments.depth}."
    if of:
        head += (
            " Shallow entries come first; for the rest list a subfolder or raise max_entries (at"
            " most 2,000)."
        )
    return ToolOutput((Text("\n".join([head + note, *lines])),))


def _collect(
    root: Root, top: str, arguments: ListDir, context: ToolContext
) -> tuple[list[str], int]:
    """Return the lines to show, in tree order, and how many entries there are."""
    rows: list[tuple[tuple[bytes, ...], str]] = []
    total = 0
    queue: deque[tuple[str, tuple[str, ...]]] = deque([(top, ())])
    while queue and total < SCAN_ENTRIES:
        if context.cancelled():
            raise ToolFailure("the call was cancelled", code="cancelled")
        folder, parts = queue.popleft()
        try:
            entries = root.scandir(folder, limit=SCAN_ENTRIES - total)
        except ToolFailure:
            if not parts:
                raise
            continue  # a subfolder that is gone or unreadable; its name is still shown
        total += len(entries)
        for entry in entries:
            path = (*parts, entry.name)
            if len(rows) < arguments.max_entries:
                rows.append((tuple(os.fsencode(part) for part in path), _line(entry, path)))
            if entry.kind == "dir" and entry.name != ".git" and len(path) < arguments.depth:
                queue.append((f"{folder}/{entry.name}", path))
    return [line for _, line in sorted(rows)], total


def _line(entry: FolderEntry, parts: tuple[str, ...]) -> str:
    name = show_name("/".join(parts))
    if entry.kind == "dir":
        return f"{name}/"
    if entry.kind == "symlink":
        return f"{name} -> {show_name(entry.target)}"
    if entry.kind == "file":
        return f"{name}  {count(entry.size, 'byte')}"
    return f"{name}  (not a regular file)"
