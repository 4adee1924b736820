"""Pin files on disk: `<root>/<server>.json`, usually under `bundles/pins/`, committed like code.

Rules:
1. A file is replaced atomically (`text_files`).
2. Only regular files are read, up to `MAX_BYTES`: a link could lead to another server's pins.
3. The file's name is the server's name, and so is the name inside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bundle_router.adapters.text_files import lock_folder, read_bounded, replace_texts
from bundle_router.core.servers.pins.reviewed import Pins
from bundle_router.core.values import SERVER_NAME
from bundle_router.errors import CorruptPins, RequestError

MAX_BYTES: Final = 64 * 1024 * 1024


class PinFiles:
    """The pin files in one folder. The folder need not exist until something is written."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, server: str) -> Path:
        """Return the path of the server's pin file.

        Raises RequestError for an invalid server name.
        """
        if not SERVER_NAME.fullmatch(server):
            raise RequestError(f"{server[:80]!r} is not a server's name")
        return self._root / f"{server}.json"

    def read(self, server: str) -> Pins | None:
        """Return the server's pins, or None if it has none.

        Raises CorruptPins if the file is invalid.
        """
        path = self.path(server)
        if not self._root.resolve().is_relative_to(self._root.parent.resolve()):
            raise CorruptPins(
                f"{self._root}: can't be read: it is a link that leads out of its folder"
            )
        try:
            data = read_bounded(path, MAX_BYTES, follow=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptPins(f"{path}: can't be read ({error.strerror})") from error
        if len(data) > MAX_BYTES:
            raise CorruptPins(f"{path}: is larger than {MAX_BYTES:,} bytes")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptPins(
                f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from None
        from bundle_router.core.servers.pins.file import (
            pins_from_text,  # loaded where there are pins
        )

        pins = pins_from_text(text, str(path))
        if pins.server != server:
            raise CorruptPins(f"{path}: holds the pins of server {pins.server!r}")
        return pins

    def read_all(self, servers: Mapping[str, object]) -> dict[str, Pins]:
        """Return the pins of those of the servers that have any.

        Raises CorruptPins at the first invalid file.
        """
        found = {name: self.read(name) for name in sorted(servers)}
        return {name: pins for name, pins in found.items() if pins is not None}

    def stamp(self, servers: Iterable[str]) -> tuple[object, ...]:
        """Return a value that changes with the pin files, from their metadata.

        A file that is written twice with the same size within one tick of the clock may look
        unchanged; `write` avoids that.
        """
        found: list[tuple[int, int, int] | None] = []
        for name in servers:
            try:
                status = os.stat(self.path(name), follow_symlinks=False)  # noqa: PTH116 - a third of the time
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)

    @contextmanager
    def unchanged(self, server: str, pins: Pins | None) -> Iterator[None]:
        """Lock the folder while the server's pins are still these, to write others.

        Raises RequestError if they are not: what another person approved meanwhile would be
        lost.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        with lock_folder(self._root):
            if self.read(server) != pins:
                raise RequestError(
                    f"the pins of {server!r} were changed meanwhile",
                    advice="read the difference again",
                )
            yield

    def write(self, pins: Pins) -> Path:
        """Replace the server's pin file, and return its path.

        Raises StorageError, and then nothing has changed.
        """
        path = self.path(pins.server)
        from bundle_router.core.servers.pins.file import pins_to_text

        replace_texts({path: pins_to_text(pins)})
        return path
