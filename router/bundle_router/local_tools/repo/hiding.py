"""What no tool shows: folders of the router, above all its records, and files with credentials,
known by their names, or by a private key in them.

A folder is identified by device and inode, so a symlink, `..`, another spelling, a bind mount or a
new name makes no difference. Results count and report what was left out for this reason.
"""

from __future__ import annotations

import base64
import codecs
import fnmatch
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Final

from bundle_router.local_tools.repo.beneath import Identity
from bundle_router.local_tools.repo.refusals import count


class Hidden:
    """The hidden folders of one call, and those that were met. Nonexistent ones hide nothing."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        self.names = {
            identity: os.path.realpath(name) for name in folders if (identity := identity_of(name))
        }
        self.identities = frozenset(self.names)
        self._met: set[Identity] = set()

    def is_one(self, info: os.stat_result) -> bool:
        """Return whether this is a hidden folder, and note it as met."""
        is_hidden = (info.st_dev, info.st_ino) in self.identities
        if is_hidden:
            self.meet((info.st_dev, info.st_ino))
        return is_hidden

    def meet(self, identity: Identity) -> None:
        self._met.add(identity)

    def names_beneath(self, top: str) -> list[str]:
        """Return the hidden folders beneath a real path, as relative paths by the router's own
        names; notes them.

        For telling another program what to skip. Its findings have to be checked again.
        """
        prefix = top.rstrip("/") + "/"
        inside = {
            identity: name for identity, name in self.names.items() if name.startswith(prefix)
        }
        self._met.update(inside)
        return [name.removeprefix(prefix) for name in inside.values()]

    def note(self) -> str:
        """Return a result's sentence about the hidden folders that were met, with a leading space;
        or nothing.
        """
        if not self._met:
            return ""
        return f" {count(len(self._met), 'place')} hidden: the router's own."


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
    (".env", "programs that read their settings from it"),
    (".npmrc", "npm and pnpm"),
    (".netrc", "curl, ftp, pip and others"),
    ("_netrc", "the same on Windows"),
    (".pypirc", "twine"),
    (".gem/credentials", "RubyGems"),
    (".composer/auth.json", "Composer"),
    (".cargo/credentials", "cargo"),
    (".cargo/credentials.toml", "cargo"),
    (".pgpass", "PostgreSQL"),
    (".my.cnf", "MySQL"),
    (".htpasswd", "web servers"),
    (".docker/config.json", "Docker registries"),
    (".dockercfg", "Docker registries"),
    (".aws/credentials", "AWS"),
    (".boto", "AWS and Google's storage"),
    (".s3cfg", "s3cmd"),
    (".azure/accessTokens.json", "Azure"),
    ("application_default_credentials.json", "Google"),
    ("credentials.json", "Google and others"),
    ("client_secret.json", "Google"),
    ("service-account.json", "Google"),
    ("service_account.json", "Google"),
    ("kubeconfig", "Kubernetes"),
    (".kube/config", "Kubernetes"),
    ("terraform.tfstate", "Terraform, which writes secrets into it"),
    ("credentials.tfrc.json", "Terraform"),
    (".vault-token", "Vault"),
    (".config/gh/hosts.yml", "GitHub"),
    ("master.key", "Rails"),
    (".streamlit/secrets.toml", "Streamlit"),
    ("id_rsa", "ssh"),
    ("id_dsa", "ssh"),
    ("id_ecdsa", "ssh"),
    ("id_ecdsa_sk", "ssh"),
    ("id_ed25519", "ssh"),
    ("id_ed25519_sk", "ssh"),
)
"""The end of a path, and the program that uses it."""

CREDENTIAL_NAMES: Final = (
    (".env.*", "as `.env`, unless it ends in a word for an example"),
    ("*.env", "as `.env`, for containers"),
    ("*.tfstate", "Terraform"),
    ("*.tfstate.*", "Terraform: backups"),
    ("*.kubeconfig", "Kubernetes"),
    ("*service-account*.json", "Google"),
    ("*service_account*.json", "Google"),
    ("client_secret_*.json", "Google"),
    ("*.p12", "keys and certificates"),
    ("*.pfx", "keys and certificates"),
    ("*.jks", "Java's keys"),
    ("*.keystore", "Java's keys"),
    ("*.kdbx", "KeePass"),
    ("*.ppk", "PuTTY"),
)
"""A pattern of a file's name, and the program that uses it."""

EXAMPLES: Final = ("example", "sample", "template", "tmpl", "dist", "schema", "defaults", "md")
"""Words between dots that make `.env.example` no file of credentials."""

SCANNED_BYTES: Final = 1024 * 1024
"""Bytes of a file, from its start, in which a private key is looked for."""

_ENDS: Final = tuple(tuple(path.casefold().split("/")) for path, _ in CREDENTIALS)
_IGNORED: Final = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
_LAST: Final = frozenset(parts[-1] for parts in _ENDS)
_EXAMPLES: Final = frozenset(EXAMPLES)
_NAMES: Final = re.compile("|".join(fnmatch.translate(name) for name, _ in CREDENTIAL_NAMES))
_KEY_BLOCK: Final = re.compile(
    rb"PuTTY-User-Key-File-\d|-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    # What stands between the lines of a key: line ends, as they are or escaped, once or more often;
    # marks of a patch, a comment, a quote, a joined text or a listing; headers ("DEK-Info: …").
    rb"(?:[^A-Za-z0-9]|\\[nrt]|\\u000[aAdD]|\\x0[aAdD]|%0[aAdD]|&(?:#(?:10|13|x[aAdD])|quot);"
    rb"|<br ?/?>|vb(?:CrLf|NewLine|Lf)|[0-9]{1,6}[\t :|]"
    rb"|[A-Za-z][A-Za-z-]{0,30}: [^\n\\]{0,120}(?:\n|\\n)){0,600}"
    rb"[A-Za-z0-9+/]{40}"
)
_KEY_IN_BASE64: Final = re.compile(rb"LS0tLS1CRUdJTi(?:[A-Za-z0-9+/]\s*){118,600}")
"""The beginning of PEM's header, itself in base64: a Secret of Kubernetes."""
_KEY_MARKS: Final = (b"PRIVATE KEY", b"PuTTY-User-Key-File-")


def plain(name: str) -> str:
    """Return a name as the disk with the fewest distinctions has it: without case, final `.

    `, and characters that some ignore (U+200C and the like).
    """
    if name.isascii():
        return name.casefold().rstrip(". ")
    return _IGNORED.sub("", name).casefold().rstrip(". ")


def is_credential_file(path: str) -> bool:
    """Return whether a real path ends like one of them, also that of a file that was deleted
    (` (deleted)`).
    """
    path = path.removesuffix(" (deleted)")
    name = plain(path.rpartition("/")[2])
    if _NAMES.fullmatch(name) and not {*name.split(".")[1:], name.split(".")[0]} & _EXAMPLES:
        return True
    if name not in _LAST and name != "config.worktree":
        return False
    parts = tuple(map(plain, PurePath(path).parts))
    if name in ("config", "config.worktree", "credentials") and (
        ".git" in parts or is_git_folder(Path(path).parent)
    ):
        return True  # of submodules, worktrees and repositories by other names too
    return any(parts[-len(end) :] == end for end in _ENDS)


def holds_private_key(data: bytes) -> bool:
    """Return whether the start of a file (`SCANNED_BYTES`) holds a private key in a form of text.

    A header without a key, as in a pattern or a sentence, is none.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    if any(mark in data for mark in _KEY_MARKS) and _KEY_BLOCK.search(data) is not None:
        return True
    for match in _KEY_IN_BASE64.finditer(data):
        text = b"".join(match[0].split())
        if _KEY_BLOCK.search(base64.b64decode(text[: len(text) // 4 * 4])) is not None:
            return True
    return False


def is_git_folder(folder: Path) -> bool:
    """Return whether git takes a folder for a repository, whatever its name."""
    return all(os.path.lexists(folder / name) for name in ("HEAD", "objects", "refs"))
