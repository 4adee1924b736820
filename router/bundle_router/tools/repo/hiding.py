"""What no tool shows: folders of the router, above all its records, and files with credentials,
known by name.

A folder is identified by device and inode, so a symlink, `..`, another spelling, a bind mount or a
new name makes no difference. Results count and report what was left out for this reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Final

from bundle_router.tools.repo.beneath import Identity
from bundle_router.tools.repo.refusals import count


class Hidden:
    """The hidden folders of one call, and those that were met. Nonexistent ones hide nothing."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        self.names = {
            found: os.path.realpath(name) for name in folders if (found := identity_of(name))
        }
        self.identities = frozenset(self.names)
        self._met: set[Identity] = set()

    def is_one(self, info: os.stat_result) -> bool:
        """Return whether this is a hidden folder, and note it as met."""
        found = (info.st_dev, info.st_ino) in self.identities
        if found:
            self.meet((info.st_dev, info.st_ino))
        return found

    def meet(self, identity: Identity) -> None:
        self._met.add(identity)

    def names_beneath(self, top: str) -> list[str]:
        """Return the hidden folders beneath a real path, as relative paths by the router's own
        names; notes them.

        For telling another program what to skip. Its findings have to be checked again.
        """
        prefix = top.rstrip("/") + "/"
        found = {identity: name for identity, name in self.names.items() if name.startswith(prefix)}
        self._met.update(found)
        return [name.removeprefix(prefix) for name in found.values()]

    def note(self) -> str:
        """Return a result's sentence about the hidden folders that were met, with a leading space;
        or nothing.
        """
        return f" {count(len(self._met), 'place')} hidden: the router's own." if self._met else ""


def identity_of(path: str) -> Identity | None:
    """Return the identity of a path's target; None if there is none, or none that we may access."""
    try:
        info = Path(path).stat()
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino


CREDENTIALS: Final = (
    (
        ".git/config",
        "git: credentials in the URLs of remotes (git in `exec` works by its defaults)",
    ),
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
"""The end of a path, and the program that uses it."""

_ENDS: Final = tuple(tuple(path.split("/")) for path, _ in CREDENTIALS)
_IGNORED: Final = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
_LAST: Final = frozenset(parts[-1] for parts in _ENDS)


def plain(name: str) -> str:
    """Return a name as the disk with the fewest distinctions has it: without case, final `.

    `, and characters that some ignore (U+200C and the like).
    """
    return (
        name.casefold().rstrip(". ")
        if name.isascii()
        else _IGNORED.sub("", name).casefold().rstrip(". ")
    )


def is_credential_file(path: str) -> bool:
    """Return whether a real path ends like one of them, also that of a file that was deleted
    (` (deleted)`).
    """
    path = path.removesuffix(" (deleted)")
    name = plain(path.rpartition("/")[2])
    if name not in _LAST and name != "config.worktree":
        return False
    parts = tuple(map(plain, PurePath(path).parts))
    if name in ("config", "config.worktree", "credentials") and (
        ".git" in parts or is_git_folder(Path(path).parent)
    ):
        return True  # of submodules, worktrees and repositories by other names too
    return any(parts[-len(end) :] == end for end in _ENDS)


def is_git_folder(folder: Path) -> bool:
    """Return whether git takes a folder for a repository, whatever its name."""
    return all(os.path.lexists(folder / name) for name in ("HEAD", "objects", "refs"))
