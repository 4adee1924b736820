"""OAuth tokens on disk: one private file per server address and principal, outside of every run
directory.

Rules:
1. A file has mode 0600 in a folder with mode 0700, and is replaced atomically. A file that others
   can read is not used.
2. The key is the address and the principal, so a token is found only for the server it was issued
   for.
3. A refresh token may be valid for one use only. So hold `locked`, which excludes other processes
   too, before using it, and read the file again first.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.descriptors import Opened
from bundle_router.adapters.text_files import try_lock

LOCK_S: Final = 10.0
"""Seconds to wait for another caller's refresh."""
_LOOK_S: Final = 0.05


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_DATA_HOME/bundle-router/tokens`, or the same below `~/.local/share`.

    For a user without a home it is a path where nothing can be stored.
    """
    data = environ.get("XDG_DATA_HOME", "")
    try:
        base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError:
        base = Path(os.devnull)
    return base / "bundle-router" / "tokens"


class TokenFile:
    """The stored values of one server and principal: JSON objects by name."""

    def __init__(self, folder: Path, url: str, principal: str) -> None:
        self._folder = folder
        self._url = url
        self.principal = principal
        key = hashlib.sha256(f"{url}\n{principal}".encode()).hexdigest()
        self.path = folder / f"{key}.json"

    @property
    def stamp(self) -> tuple[int, int] | None:
        """A value that differs after every change of the file; None without a file."""
        try:
            about = self.path.stat(follow_symlinks=False)
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns

    def why_unusable(self, now: float) -> str:
        """Return why there is no usable token, and none can be had without a person; empty if there
        may be. `now` is in seconds since 1970.
        """
        found = self._read_all()
        tokens = found.get("tokens")
        if not isinstance(tokens, dict):
            if not found.get("withdrawn"):
                return "it was not authorized"
            return "its authorization is no longer accepted"
        until = found.get("until")
        over = isinstance(until, int | float) and until < now
        return "its authorization ran out" if over and not tokens.get("refresh_token") else ""

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the file's lock.

        After `LOCK_S` go on without it, since a lock must not cost more than a call; also where no
        file can be created.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._make_folder()
            descriptor = os.open(self.path.with_suffix(".lock"), flags, 0o600)
        except OSError:
            yield
            return
        with Opened(descriptor):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOCK_S):
                    while not try_lock(descriptor):  # noqa: ASYNC110 - another process is waited for
                        await asyncio.sleep(_LOOK_S)
            yield

    def remove(self) -> bool:
        """Delete the file; return whether there was one. Raises OSError."""
        try:
            self.path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read(self, name: str) -> Any:
        """Return the named value, or None if there is none that can be trusted."""
        return self._read_all().get(name)

    def write(self, **values: Any) -> None:
        """Store the values; other names keep theirs. Raises OSError."""
        self._make_folder()
        text = json.dumps({**self._read_all(), "server": self._url, **values})
        # Not named by the process: others may have its id in containers of their own, and it may
        # have several routers.
        temporary = self.path.with_suffix(f".{secrets.token_hex(8)}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            temporary.replace(self.path)
        except OSError:
            temporary.unlink()
            raise

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)

    def _read_all(self) -> dict[str, Any]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return {}
        with os.fdopen(descriptor, encoding="utf-8") as file:
            about = os.fstat(file.fileno())
            if stat.S_IMODE(about.st_mode) & 0o077 or about.st_uid != os.geteuid():
                return {}
            try:
                value = json.loads(file.read(1 << 20))
            except ValueError:
                return {}
        return value if isinstance(value, dict) and value.get("server") == self._url else {}
