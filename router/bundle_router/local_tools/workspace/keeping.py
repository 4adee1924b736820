"""The places that a program may not change, or not even see, in its folder.

Read-only are the router's config, the code of its process (`router_code`) and files that outside
programs run by themselves (`autorun`); its records are hidden. Without bubblewrap none of
this is enforced: the result says so, and if the router's code is in the folder the program is not
started.

The launcher gets each place by path and present identity, so that a swap in between is noticed. A
folder that holds one of them is pinned: moving it away with its content would make room for a
config of the program's own.

Places that do not exist yet can't be made read-only. If one exists when the program has ended, the
program made it, and it is moved aside: a pin or a skill that a program wrote would pass for an
operator's.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from bundle_router.adapters.sandbox.plan import Place, Statement
from bundle_router.core.values import BinaryRule, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.beneath import PATH_ONLY
from bundle_router.local_tools.repo.confinement import Root
from bundle_router.local_tools.workspace import survey as surveying
from bundle_router.local_tools.workspace.autorun import NAMES, autorun_part, reached
from bundle_router.local_tools.workspace.linked import NO_LINKED_FILES, LinkedPlaces, linked_places
from bundle_router.local_tools.workspace.router_code import RouterCode, router_code
from bundle_router.local_tools.workspace.survey import Survey, survey


@dataclass(frozen=True, slots=True)
class ProtectedPlaces:
    """The plan's fields with these names; `absent`: protected places that do not exist, beneath the
    root; whether the whole folder was searched; and what is said of the linked files.
    """

    protected: tuple[Place, ...]
    hidden: tuple[Place, ...]
    masked: tuple[Place, ...]
    pinned: tuple[Place, ...]
    absent: tuple[str, ...] = ()
    surveyed: bool = True
    linked: tuple[Place, ...] = ()
    linked_files: LinkedPlaces = NO_LINKED_FILES


def protected_places(
    root: Root, context: ToolContext, readable: Iterable[str], rule: BinaryRule
) -> ProtectedPlaces:
    """Return the places to protect from a program in this root.

    Nonexistent and unreachable ones are left out. Raises ToolFailure where files with other names
    outside are too many to protect.
    """
    top = Path(root.path)
    code = router_code(root.path)
    _refuse_unmade_imports(code)
    code_places = list(map(Path, code.places))
    config = [Path(os.path.realpath(path)) for path in context.protected]
    records = [Path(os.path.realpath(path)) for path in context.hidden]

    # What is known without a look: autorun files of the root, the config, the router's code.
    known = _known_autorun(root, rule)
    autorun = [_place_at(path) for path in known if path not in code_places]
    protected = [
        _place_at(path) for path in config if path.is_relative_to(top) or top.is_relative_to(path)
    ]
    protected += [_place_at(Path(path), required=True) for path in (*code.places, *code.holders)]
    if autorun_part(PurePosixPath(root.within).parts):
        protected.append(_place_at(top))
    reach = [top, *(Path(os.path.realpath(path)) for path in readable)]
    hidden = [_place_at(path) for path in records if _is_in_reach(path, top, reach)]

    # What the folder is searched for.
    left_out = {*code.places, *map(str, records)} - {root.path}
    surveyed = survey(root.path, left_out, git_objects=not rule.protect_git)
    autorun += [
        _place_at(path)
        for path in _surveyed_autorun(surveyed, rule)
        if path not in (top, *known, *code_places)
    ]
    protected += [_place_at(path, required=True) for path in surveyed.router_code]
    unreadable = list(surveyed.sockets)
    if root.credentials == "hide":
        unreadable += surveyed.credentials
    masked = _present(map(_place_at, unreadable))

    places = [place for place in (*autorun, *protected, *hidden) if place]
    above = dict.fromkeys(folder for place in places for folder in _between(top, place))
    unchangeable = {place.path for place in (*places, *masked)}
    linked = linked_places(surveyed, root.path, unchangeable)
    must_protect_links = rule.hard_links == "protect"
    if must_protect_links:
        _refuse_links(linked, surveyed)

    return ProtectedPlaces(
        protected=_present(autorun + protected),
        hidden=_present(hidden),
        masked=masked,
        pinned=_present(map(_place_at, above)),
        absent=_absent(root, [*config, *code_places, *known]),
        surveyed=surveyed.complete,
        linked=_present(
            _place_at(Path(path), required=must_protect_links) for path in linked.places
        ),
        linked_files=linked,
    )


def _refuse_unmade_imports(code: RouterCode) -> None:
    """Raise ToolFailure if the router imports from a folder that a program could make."""
    imported = set(map(os.path.realpath, filter(None, sys.path)))
    for place in code.places:
        if place in imported and not os.path.lexists(place):
            reason = f"the router imports from {place}, which a program could make"
            raise ToolFailure(
                f"the program was not started: {reason}",
                code="not_started",
                advice="make that folder",
            )


def _known_autorun(root: Root, rule: BinaryRule) -> list[Path]:
    """Return the places in the root's folder that outside programs run by themselves, and where
    git's settings lead; those of git only where the rule protects them.
    """
    top = Path(root.path)
    places = [top / name for name in NAMES]
    if not rule.protect_git:
        of_git = (top / ".git", top / "HEAD")
        return [place for place in places if place not in of_git]

    for path in map(Path, reached(root.top)):
        if path.is_relative_to(top):
            places.append(path)
    return places


def _surveyed_autorun(surveyed: Survey, rule: BinaryRule) -> Iterator[Path]:
    """Yield the places deeper in the folder that outside programs run by themselves."""
    if rule.protect_git:
        yield from surveyed.repositories
    yield from surveyed.powers


def _is_in_reach(path: Path, top: Path, reach: Sequence[Path]) -> bool:
    """Return whether a program could read the place, and the place is not around the root."""
    return any(path.is_relative_to(folder) for folder in reach) and not top.is_relative_to(path)


def _absent(root: Root, expected: Iterable[Path]) -> tuple[str, ...]:
    """Return the expected places that do not exist, or exist only because another program that runs
    made them; beneath the root.
    """
    awaited = set().union(*_awaited)
    found = []
    for place in expected:
        if not place.is_relative_to(root.path) or place == Path(root.path):
            continue
        path = str(place.relative_to(root.path))
        is_made_now = f"{root.path}/{path}" in awaited
        if is_made_now or _walk(root.fd, path, lambda _folder, name: name) is None:
            found.append(path)
    return tuple(found)


def _refuse_links(linked: LinkedPlaces, found: Survey) -> None:
    """Refuse to start a program that could change files outside. Raises ToolFailure."""
    if not found.complete:
        reason = (
            f"the folder has more than {surveying.MAX_ENTRIES:,} entries, so not all files with"
            " other names outside are known, and a program could change what lies there"
        )
    elif not linked.complete:
        reason = (
            f"{linked}, too many to be kept read-only, and a program could change what lies there"
        )
    else:
        return
    raise ToolFailure(
        f"the program was not started: {reason}",
        code="hard_links",
        advice=(
            "narrow the step to a folder without them, copy these files, or set hard_links ="
            ' "allow" for this binary in policy.toml'
        ),
    )


_awaited: Final[list[frozenset[str]]] = []
"""The absent places of each program that runs: what another one finds there is not the operator's
either.

Of the process: routers with one workspace run programs in the same folders.
"""


@contextmanager
def moved_aside(root: Root, absent: Iterable[str]) -> Iterator[list[str]]:
    """Rename, after the block, what was made at places that did not exist.

    Fills the list with a sentence for each.
    """
    _awaited.append(paths := frozenset(f"{root.path}/{path}" for path in absent))
    renamed: list[str] = []
    try:
        yield renamed
    finally:
        for path in absent:
            try:
                if new_name := _walk(root.fd, path, _rename, regain=True):
                    renamed.append(
                        f"{path} is not for programs to make: what was made there was moved to"
                        f" {new_name}"
                    )
            except OSError as error:
                renamed.append(
                    f"{path} is not for programs to make, and can't be moved: {error.strerror}"
                )
        _awaited.remove(paths)


def still_kept(kept: ProtectedPlaces, statements: Iterable[Statement]) -> tuple[Statement, ...]:
    """Return the statements, false for places that somebody outside replaced: their mount went with
    the old file.
    """
    places = (*kept.protected, *kept.hidden, *kept.masked)
    replaced = {
        Path(place.path).name
        for place in places
        if _place_at(Path(place.path), required=place.required) != place
    }
    detail = "was replaced from outside meanwhile: the new one could be read and changed"
    return tuple(
        statement._replace(held=False, detail=detail) if statement.name in replaced else statement
        for statement in statements
    )


def _walk(
    root_fd: int, path: str, found: Callable[[int, str], str], *, regain: bool = False
) -> str | None:
    """Return the result of `found` for the place of the path, or for a link on the way there; None
    if nothing is there. `regain` gives the owner access to the folders on the way again, which a
    program may have removed.

    No link is followed: one that the program put on the way would lead to somebody else's files.
    """
    parts = path.split("/")
    folder = os.dup(root_fd)
    try:
        for index, part in enumerate(parts):
            mode = stat.S_IMODE(os.fstat(folder).st_mode)
            if regain and mode & 0o700 != 0o700:
                os.chmod(  # noqa: PTH101
                    f"/proc/self/fd/{folder}" if sys.platform == "linux" else folder, mode | 0o700
                )
            try:
                mode = os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode
            except OSError:
                return None
            if index == len(parts) - 1 or stat.S_ISLNK(mode):
                return "/".join((*parts[:index], found(folder, part)))
            if not stat.S_ISDIR(mode):
                return None
            below = os.open(part, PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
    finally:
        os.close(folder)
    return None


def _rename(folder: int, name: str) -> str:
    new_name = f"{name}.not-taken-{secrets.token_hex(4)}"
    os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=folder)
    return new_name


def _present(places: Iterable[Place | None]) -> tuple[Place, ...]:
    return tuple(place for place in places if place)


def _place_at(path: Path, *, required: bool = False) -> Place | None:
    """Return the place at the path now, without following a link; None if nothing is there."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return Place(str(path), info.st_dev, info.st_ino, required)


def _between(top: Path, place: Place) -> list[Path]:
    """Return the folders above a place and below the top, the highest first."""
    return [
        above
        for above in reversed(Path(place.path).parents)
        if above != top and above.is_relative_to(top)
    ]
