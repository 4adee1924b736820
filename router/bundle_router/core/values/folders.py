"""Folders beneath the router's workspace, as relative paths: `.` is the workspace itself, `a/b` a
folder in it.

They are relative because a record must mean the same folder to whoever opens the run next, and must
never lead out of their workspace. Whether a folder exists, and is no link, is checked when it is
opened.
"""

from __future__ import annotations

from typing import Final

TOP: Final = "."


def is_beneath(folder: str, ceiling: str) -> bool:
    """Return whether `folder` is `ceiling` or inside it, component by component."""
    return ceiling == TOP or folder == ceiling or folder.startswith(ceiling + "/")


def relative_folder(root: str, recorded: str | None) -> str | None:
    """Return the folder that a step names, relative to `root`: `.` where it names none, None where
    it is outside.

    Takes absolute paths too, which older records have.
    """
    if recorded is None:
        return TOP
    if recorded.startswith("/"):
        base = root.rstrip("/")
        if recorded != root and not recorded.startswith(base + "/"):
            return None
        recorded = recorded[len(base) :]
    parts = [part for part in recorded.split("/") if part not in ("", TOP)]
    if ".." in parts:
        return None
    return "/".join(parts) or TOP


def folder_seen_from(root: str, other: str, recorded: str | None) -> str | None:
    """Return the folder that a step names in the workspace `other`, as seen from the workspace
    `root`: relative to it, or `.` where that folder contains all of `root`. None elsewhere: nothing
    is permitted there.
    """
    folder = relative_folder(other, recorded)
    if folder is None or other == root:
        return folder
    place = other if folder == TOP else f"{other.rstrip('/')}/{folder}"
    if relative_folder(place, root) is not None:
        return TOP
    return relative_folder(root, place)


__all__ = ["TOP", "folder_seen_from", "is_beneath", "relative_folder"]
