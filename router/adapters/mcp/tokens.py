"""OAuth tokens on disk: one private file per server address and principal, outside of every run directory.

Rules:
1. A file is 0600 in a folder that is 0700, written beside and renamed; one that others can read is not used.
2. The key is the address and the principal, so a token is found only for the server it was issued for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def default_folder(environ: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/bundle-router/tokens`, or the same beneath `~/.local/state`."""
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "bundle-router" / "tokens"


class TokenFile:
    """What is kept for one server and principal: JSON objects by name."""

    def __init__(self, folder: Path, url: str, principal: str) -> None:
        self._folder = folder
        self._url = url
        key = hashlib.sha256(f"{url}\n{principal}".encode()).hexdigest()
        self._path = folder / f"{key}.json"

    def exists(self) -> bool:
        return self._path.exists()

    def read(self, name: str) -> Any:
        """The value, or None when there is none, or none that can be trusted."""
        return self._all().get(name)

    def write(self, **values: Any) -> None:
        """Keeps the values, beside those of other names. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        text = json.dumps({**self._all(), "server": self._url, **values})
        beside = self._path.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        beside.replace(self._path)

    def _all(self) -> dict[str, Any]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
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
