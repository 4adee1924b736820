"""Files that hold credentials for other machines: tools don't read, search or show them to programs.

What is here is known by its name. Hooks, `.npmrc` and `.env` are readable: the first are code, the others ordinary
project settings. `.github/SECURITY.md` says the same.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

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
