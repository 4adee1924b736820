"""What a program may not change, or not even see, in the folder it works in: `.git`, the router's config and records.

Each is named to the launcher by its path and by what lies there now, so that a swap in between is noticed. A folder
that holds one of them is pinned: moved away with what it holds, it would make room for a config of the program's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bundles.repo.confinement import Root
from bundles.sandbox.plan import Place
from router.core.models import ToolContext


@dataclass(frozen=True, slots=True)
class Kept:
    """The fields of a plan with these names."""

    protected: tuple[Place, ...]
    hidden: tuple[Place, ...]
    pinned: tuple[Place, ...]


def kept_places(root: Root, context: ToolContext, readable: Iterable[str], *, protect_git: bool) -> Kept:
    """What a program in this root is kept from. What does not exist, or is out of its reach, is left out."""
    top = Path(root.path)
    git = [_seen(top / ".git", parent_fd=root.fd)] if protect_git else []
    real = [Path(os.path.realpath(path)) for path in context.protected]
    protected = [_seen(path) for path in real if path.is_relative_to(top) or top.is_relative_to(path)]
    reach = [top, *(Path(os.path.realpath(path)) for path in readable)]
    hidden = [_seen(path) for path in _within_reach(context.hidden, reach) if not top.is_relative_to(path)]
    places = [place for place in (*git, *protected, *hidden) if place]
    pinned = [_seen(above) for above in dict.fromkeys(above for place in places for above in _between(top, place))]
    return Kept(_present(git + protected), _present(hidden), _present(pinned))


def _present(places: Iterable[Place | None]) -> tuple[Place, ...]:
    return tuple(place for place in places if place)


def _within_reach(hidden: Iterable[str], reach: list[Path]) -> Iterator[Path]:
    for path in map(Path, map(os.path.realpath, hidden)):
        if any(path.is_relative_to(folder) for folder in reach):
            yield path


def _seen(path: Path, *, parent_fd: int | None = None) -> Place | None:
    """What lies at the path now, not followed (`parent_fd`: looked up there by its name); None if nothing does."""
    try:
        info = os.stat(path.name if parent_fd is not None else path, dir_fd=parent_fd, follow_symlinks=False)
    except OSError:
        return None
    return Place(str(path), info.st_dev, info.st_ino)


def _between(top: Path, place: Place) -> list[Path]:
    """The folders above a place and below the top, the highest first."""
    return [above for above in reversed(Path(place.path).parents) if above != top and above.is_relative_to(top)]
