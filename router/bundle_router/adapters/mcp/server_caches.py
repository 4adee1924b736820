"""The caches of stdio servers: what a launcher downloaded stays for the server's next start.

A server's home goes with its process. `npx`, `uvx` and their kind keep what they download below it,
and downloaded it anew at each start.

Rules:
1. The folders of `CACHES` in a home lead into one folder, which belongs to one server (its name and
   its command) and one principal. Everything else in a home goes with its process.
2. The folder is this user's alone (mode 0700). One that is not, or a link, is not used.
3. A folder without a file, or beyond `MAX_BYTES` or `MAX_FILES`, is deleted when a process ends and
   no other uses it; so is one that was not used for `UNUSED_S`. It is measured at most once in
   `MEASURE_S`.
4. npm is told its folder besides: through a link, `npx` finds its cache and installs all the same
   (4.7 s for server-everything's second start; 0.7 s with the folder's true path).
5. Without a folder (a user without a home, a read-only file system) all of a home goes with its
   process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bundle_router.adapters.descriptors import Opened
from bundle_router.adapters.private_folders import delete_folder

CACHES: Final = (
    ".bun",
    ".cache",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/uv",
    ".npm",
    ".yarn",
)
"""Folders below a home in which launchers keep what they download."""
NPM_CACHE: Final = "npm_config_cache"
"""The environment variable that names npm's cache."""
MAX_BYTES: Final = 1024 * 1024 * 1024
MAX_FILES: Final = 200_000
MEASURE_S: Final = 60.0
UNUSED_S: Final = 30 * 86_400.0
"""Seconds after which a folder that no server used is deleted: its command may be no more."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_STAMP: Final = "measured"
_GONE: Final = ".gone-"


def cache_folder(
    environ: Mapping[str, str], server: str, argv: Sequence[str], principal: str
) -> Path | None:
    """Return the folder of a server's cache, `$XDG_CACHE_HOME/bundle-router/servers/…`, or the same
    below `~/.cache`; None for a user without a home.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the XDG specification says to ignore a relative path
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    whose = json.dumps([server, *argv, principal]).encode()
    name = f"{server}-{hashlib.sha256(whose).hexdigest()[:16]}"
    return Path(base, "bundle-router", "servers", name)


@contextmanager
def kept_caches(home: str, cache: Path) -> Iterator[dict[str, str]]:
    """Lead the cache folders of a home into a server's cache while its process lives.

    Yield the environment variables that the process needs besides.
    """
    descriptor = _opened(cache)
    if descriptor is None:
        yield {}
        return
    owner = os.getpid()
    variables = {}
    try:
        with suppress(OSError):
            _link(Path(home), cache)
            variables[NPM_CACHE] = str((Path(home) / ".npm").resolve(strict=True))
        yield variables
    finally:
        if os.getpid() == owner:  # a forked process has this generator too
            with suppress(OSError):
                _keep_within_bounds(cache, descriptor)
        os.close(descriptor)


def _opened(cache: Path) -> int | None:
    """Return a descriptor of the cache, locked as in use; None if it can't be used."""
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(cache, _FOLDER)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        about = os.fstat(descriptor)
        is_ours = about.st_uid == os.geteuid() and not about.st_mode & 0o077
        if is_ours and os.path.samestat(about, cache.stat(follow_symlinks=False)):
            os.utime(descriptor)
            return descriptor
    except OSError:  # it is being deleted, or locks are not to be had
        pass
    os.close(descriptor)
    return None


def _link(home: Path, cache: Path) -> None:
    for name in CACHES:
        target = cache / name.replace("/", "-")
        target.mkdir(mode=0o700, exist_ok=True)
        link = home / name
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.symlink_to(target)


def _keep_within_bounds(cache: Path, descriptor: int) -> None:
    """Delete a cache that is empty or beyond its bounds, unless another process uses it; and those
    that no server has used for long. Raises OSError.
    """
    stamp = cache / _STAMP
    with suppress(FileNotFoundError):
        if 0 <= time.time() - stamp.stat(follow_symlinks=False).st_mtime < MEASURE_S:
            return
    stamp.unlink(missing_ok=True)
    for folder in cache.parent.iterdir():
        if time.time() - folder.stat(follow_symlinks=False).st_mtime > UNUSED_S:
            with suppress(OSError), Opened(os.open(folder, _FOLDER)) as unused:
                _delete(folder, unused)
    if _is_worth_keeping(cache):
        stamp.touch(mode=0o600)
    else:
        _delete(cache, descriptor)


def _delete(cache: Path, descriptor: int) -> None:
    """Delete a cache. Raises OSError if another process uses it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    cache.rename(cache.with_name(_GONE + secrets.token_hex(8)))
    for folder in cache.parent.glob(f"{_GONE}*"):  # also of a process that was killed here
        delete_folder(folder)


def _is_worth_keeping(cache: Path) -> bool:
    """Return whether a cache holds a file, and not more than it may."""
    size = 0
    files = 0
    waiting = [str(cache)]
    while waiting and size <= MAX_BYTES and files <= MAX_FILES:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_size
    return 0 < files <= MAX_FILES and size <= MAX_BYTES
