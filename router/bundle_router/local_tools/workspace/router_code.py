"""The code that the router's own process runs now, or will run at its next start.

No sandbox holds a program that can write there: the next import, or the next start of the
interpreter, would run its code outside. So tools don't write there, and programs see it read-only
or are not started.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import site
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_IN_A_PREFIX: Final = ("bin", "lib", "lib64", "Scripts", "Lib", "conda-meta", "pyvenv.cfg", "etc")
"""Protected parts of an environment's folder, if the workspace is that folder itself."""


@dataclass(frozen=True, slots=True)
class RouterCode:
    """The places of that code inside the workspace.

    `places` need not exist: one that is created would be used too. `holders` are folders with a
    symlink through which the code is reached: a mount can't keep a link from being replaced, so a
    program sees the whole folder read-only.
    """

    places: tuple[str, ...]
    holders: tuple[str, ...]


def router_code(top: str) -> RouterCode:
    """Return the router's code in the real folder `top`, which is itself a place if it is on the
    import path.
    """
    folder = Path(top)
    roots = set(_import_roots())
    names = {*_interpreters(), *_prefixes(), *roots}

    paths = {Path(os.path.realpath(name)) for name in names} | set(map(_real_parent, names))
    places = {path for path in paths if path != folder and path.is_relative_to(folder)}
    if top in map(os.path.realpath, roots):
        places.add(folder)

    loose: set[Path] = set()
    for link in itertools.chain.from_iterable(map(_links_on, names)):
        is_inside = link.is_relative_to(folder)
        if is_inside and not _is_within_any(link.parent, places - {link}):
            loose.add(link)

    outer = [path for path in places - loose if not _is_within_any(path, places - {path})]
    holders = {str(link.parent) for link in loose}
    return RouterCode(tuple(sorted(map(str, outer))), tuple(sorted(holders)))


def _is_within_any(path: Path, places: Iterable[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def base_interpreter() -> str:
    """Return the real path of the interpreter behind a virtual environment: it reads no
    pyvenv.cfg.
    """
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def _interpreters() -> Iterator[str]:
    """Yield executables, and the `pyvenv.cfg` that Python looks for in their folder and the one
    above.
    """
    names = [sys.executable, base_interpreter()]
    if sys.argv[0].startswith("/"):
        names.append(sys.argv[0])
    for name in filter(None, names):
        yield name
        for link in (Path(name), *_links_on(name)):
            yield f"{link.parent}/pyvenv.cfg"
            yield f"{link.parent.parent}/pyvenv.cfg"


def _prefixes() -> Iterator[str]:
    for prefix in dict.fromkeys(
        (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    ):
        yield prefix
        yield from (f"{prefix}/{name}" for name in _IN_A_PREFIX)


def _import_roots() -> Iterator[str]:
    """Yield `sys.path` (with what `.pth` files add), what it has links to, editable finders'
    folders, where else loaded packages are, and the user's site-packages.
    """
    prefixes = tuple(f"{_real_path(prefix)}/" for prefix in (sys.prefix, sys.base_prefix))
    for entry in sys.path:
        yield entry if entry else str(Path.cwd())
        with contextlib.suppress(OSError), os.scandir(entry or ".") as entries:
            yield from (link.path for link in entries if link.is_symlink())
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            yield from getattr(module, "MAPPING", {}).values()
        if "." not in name:
            for path in _paths_of(module):
                if not _real_path(path).startswith(prefixes):
                    yield path
    if site.ENABLE_USER_SITE is not False:
        yield site.getusersitepackages()
    yield str(Path(__file__).parents[3])


def _paths_of(module: object) -> Iterator[str]:
    """Yield the folders of a package, or a module's file."""
    yield from filter(None, map(str, getattr(module, "__path__", None) or ()))
    file = getattr(module, "__file__", None)
    if file:
        yield str(file)


_real_path = cache(os.path.realpath)
"""Of what was loaded from there: a later change of a link on the way does not count."""


def _real_parent(name: str) -> Path:
    """Return the path with its folder's links resolved, but not its own."""
    return Path(os.path.realpath(Path(name).parent), Path(name).name)


def _links_on(name: str) -> Iterable[Path]:
    """Return every symlink on the way to the target of `name`, by the real path of its folder."""
    links: dict[str, None] = {}
    ahead = os.path.abspath(name).split("/")[:0:-1]  # noqa: PTH100  # links are kept
    current = ""
    while ahead and len(links) < 40:
        part = ahead.pop()
        if part in ("", "."):
            continue
        current = current.rpartition("/")[0] if part == ".." else f"{current}/{part}"
        if os.path.islink(current):  # noqa: PTH114  # strings: each write and each program walks 200 folders
            links[current] = None
            target = os.readlink(current)  # noqa: PTH115  # as above
            ahead += reversed(target.split("/"))
            current = "" if target.startswith("/") else current.rpartition("/")[0]
    return map(Path, links)
