"""What no tool shows: folders of the router's own, its records above all, and files with credentials, known by name.

A folder is known by its device and inode, so a symlink, `..`, another spelling, a bind mount or a new name makes no
difference. What a result leaves out for this is counted and said, so that nobody takes the rest for everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Final

from bundle_router.tools.repo.beneath import Identity
from bundle_router.tools.repo.refusals import count


class Hidden:
    """The hidden folders of one call, and which of them were met. Those that do not exist hide nothing."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        self.names = {found: os.path.realpath(name) for name in folders if (found := identity_of(name))}
        self.identities = frozenset(self.names)
        self._met: set[Identity] = set()

    def is_one(self, info: os.stat_result) -> bool:
        """Return whether this is a hidden folder; it counts as met then."""
        found = (info.st_dev, info.st_ino) in self.identities
        if found:
            self.meet((info.st_dev, info.st_ino))
        return found

    def meet(self, identity: Identity) -> None:
        self._met.add(identity)

    def names_beneath(self, top: str) -> list[str]:
        """Return those that the router's own names put beneath a real path, relative to it; they count as met.

        For telling another program what to leave alone. What it finds all the same has to be looked at again.
        """
        prefix = top.rstrip("/") + "/"
        found = {identity: name for identity, name in self.names.items() if name.startswith(prefix)}
        self._met.update(found)
        return [name.removeprefix(prefix) for name in found.values()]

    def note(self) -> str:
        """Return what a result has to say about them: a sentence with a space before it, or nothing."""
        return f" {count(len(self._met), 'place')} hidden: the router's own." if self._met else ""


def identity_of(path: str) -> Identity | None:
    """Return what a path leads to, links followed; None if that is nothing, or nothing we may look at."""
    try:
        info = Path(path).stat()
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino


CREDENTIALS: Final = (
    (".git/config", "git: credentials in the URLs of remotes (`exec` can read it, or git would not work there)"),
    (".git/credentials", "git: stored credentials"),
    (".git-credentials", "git: stored credentials"),
    (".config/git/credentials", "git: stored credentials"),
    (".netrc", "curl, ftp, pip and others"),
    ("_netrc", "the same on Windows"),
    (".pypirc", "twine"),
    (".pgpass", "PostgreSQL"),
    (".my.cnf", "MySQL"),
    (".docker/config.json", "Docker registries"),
    (".aws/credentials", "AWS"),
    (".kube/config", "Kubernetes"),
    (".cargo/credentials.toml", "cargo"),
    (".config/gh/hosts.yml", "GitHub"),
    (".ssh/id_rsa", "ssh"),
    (".ssh/id_ecdsa", "ssh"),
    (".ssh/id_ed25519", "ssh"),
)
"""(the end of a path, who uses it)."""

_ENDS: Final = tuple(tuple(path.split("/")) for path, _ in CREDENTIALS)
_LAST: Final = frozenset(parts[-1] for parts in _ENDS)


def is_credential_file(path: str) -> bool:
    """Return whether a path, as it really is, ends like one of them. Case does not count: on some disks it does not."""
    name = path.rpartition("/")[2].casefold()
    if name not in _LAST and name != "config.worktree":
        return False
    parts = tuple(part.casefold() for part in PurePath(path).parts)
    in_git = ".git" in parts and name in ("config", "config.worktree", "credentials")  # of submodules and worktrees too
    return in_git or any(parts[-len(end) :] == end for end in _ENDS)
