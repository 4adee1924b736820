"""Files of the workspace that have another name outside it: a program that writes to one, or
changes its mode or times, changes what lies outside.

Package managers make such files (pnpm, uv and conda link to their stores), and `git clone --local`.

Rules:
1. A file counts if one of its names can be written to by the program and another was not found in
   the folder, or lies where programs can't write.
2. Up to `MAX_PLACES` of them are read-only one by one. If there are more, a folder that holds
   nothing else is read-only as one place, with what a program could make in it.
3. What can't be protected in this way is refused, unless the rule of the binary says `hard_links =
   "allow"`; then the result says how many there are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from bundle_router.local_tools.repo.file_names import show_name
from bundle_router.local_tools.repo.refusals import count
from bundle_router.local_tools.workspace.survey import Survey

MAX_PLACES: Final = 400
"""Maximum places that are read-only for this reason. Each is a mount, and takes a descriptor."""


@dataclass(frozen=True, slots=True)
class LinkedPlaces:
    """The places that protect the linked files of a folder."""

    files: int = 0
    """How many files there are, by their names in the folder."""
    example: str = ""
    """The first of them, relative to the folder."""
    places: tuple[str, ...] = ()
    """What is to be read-only: at most `MAX_PLACES` files and folders."""
    complete: bool = True
    """Whether these places protect all of the files."""

    def __str__(self) -> str:
        verb = "has another name" if self.files == 1 else "have other names"
        return f"{count(self.files, 'file')} ({self.example}) {verb} outside the workspace"


NO_LINKED_FILES: Final = LinkedPlaces()


def linked_places(found: Survey, top: str, kept: Collection[str]) -> LinkedPlaces:
    """Return the places for what a survey of the folder `top` found.

    `kept` are the paths that the program can't change anyway.
    """
    unchangeable = _Beneath(kept, top)
    linked: list[str] = []
    for file in found.linked:
        paths = [path for path in file.paths if path not in unchangeable]
        if paths and len(paths) < file.links:
            linked += paths
    if not linked:
        return NO_LINKED_FILES
    linked.sort()
    places = linked if len(linked) <= MAX_PLACES else _gathered(linked, found.files, top)
    return LinkedPlaces(
        len(linked),
        show_name(os.path.relpath(linked[0], top)),
        tuple(places[:MAX_PLACES]),
        len(places) <= MAX_PLACES,
    )


class _Beneath:
    """The paths at and beneath some places."""

    def __init__(self, places: Collection[str], top: str) -> None:
        self._places = frozenset(places)
        self._top = top

    def __contains__(self, path: str) -> bool:
        while len(path) > len(self._top):
            if path in self._places:
                return True
            path = os.path.dirname(path)  # noqa: PTH120 - text
        return path in self._places


def _gathered(linked: list[str], files: Counter[str], top: str) -> list[str]:
    """Return the highest folders below the top that hold no other files, and the rest of the
    files.
    """
    counts = Counter(files)
    counts.subtract(os.path.dirname(path) for path in linked)  # noqa: PTH120 - text
    mixed = {top}
    for folder, number in counts.items():
        if number > 0:
            mixed.update(_up_to(folder, top))
    return sorted({_highest(path, mixed, top) for path in linked})


def _highest(path: str, mixed: Collection[str], top: str) -> str:
    """Return the highest folder above a file that is not mixed; the file itself if there is
    none.
    """
    above = [folder for folder in _up_to(os.path.dirname(path), top) if folder not in mixed]  # noqa: PTH120 - text
    return above[-1] if above else path


def _up_to(folder: str, top: str) -> list[str]:
    """Return a folder and those above it, up to the top."""
    files_found = []
    while len(folder) >= len(top):
        files_found.append(folder)
        folder = os.path.dirname(folder)  # noqa: PTH120 - text
    return files_found
