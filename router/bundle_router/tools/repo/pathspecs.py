"""Which paths git is asked about: the one that was named, taken literally, and never what lies in a hidden folder.

git knows paths as text, and so does its history; what a folder is, only the disk says. So the names of a diff are
looked up as folders, beneath the root, before git is asked for their content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from bundle_router.tools.repo.confinement import Root
from bundle_router.tools.repo.refusals import hidden, outside


def only(root: Root, path: str | None) -> list[str]:
    """Return the path, checked as text too: it may have been deleted, so there may be nothing to open."""
    if path is None:
        return []
    relative = root.relative(path)
    if ".." in relative.split("/"):
        raise outside(path)
    if root.is_hidden(relative):
        raise hidden(path)
    return [f":(literal){relative}"]


def but_hidden(root: Root, names: Iterable[str]) -> list[str]:
    """Leaves out every hidden folder that one of these paths goes through."""
    known: dict[str, bool] = {}
    return [f":(exclude,literal){folder}" for folder in sorted(set(_hidden(root, names, known)))]


def _hidden(root: Root, names: Iterable[str], known: dict[str, bool]) -> Iterator[str]:
    for name in names:
        for folder in reversed(PurePosixPath(name).parents[:-1]):
            text = str(folder)
            if text not in known:
                known[text] = root.is_hidden(text)
            if known[text]:
                yield text
                break
