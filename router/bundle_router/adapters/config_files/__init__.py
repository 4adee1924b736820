"""Config files on disk: the shipped folder, and a project's folder over it.

Rules:
1. All files of a folder are read as of one moment: files that change meanwhile are read again. A
   folder that keeps changing is refused, so that no mixture of old and new files is used.
2. Only regular files are opened, and no more than the maximum size is read. A link is followed
   within its folder, as in a volume of Kubernetes, and never out of it: `check` quotes what it
   reads, and a stranger's branch may hold a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bundle_router.adapters.text_files import read_within
from bundle_router.core.config.config_text import (
    FILE_NAMES,
    MAX_BYTES,
    ConfigFile,
    Layer,
    from_bytes,
)
from bundle_router.core.values.canonical import digest_of
from bundle_router.errors import ConfigError, Problem

_OTHER_FORMATS: Final = ("yaml", "yml", "json")
_READS: Final = 6
"""Maximum attempts to read a folder that changes meanwhile."""


def shipped_folder() -> Path:
    """Return the folder of the shipped config."""
    return _shipped_folder("config")


def _shipped_folder(name: str) -> Path:
    """Return a folder of shipped files: in the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / f"default_{name}"
    return installed if installed.is_dir() else package.parent.parent / name


def read_config(config: str | os.PathLike[str] | None = None) -> list[ConfigFile]:
    """Return the files of a project's config folder and of the shipped one, for
    `bundle_router.core.config.load` and `check`.

    `config=None`: only the shipped config. An unreadable file is returned with its `fault`. Raises
    ConfigError if the folder does not exist, is no folder, has no config file, or keeps changing.
    """
    shipped = shipped_folder()
    if config is None:
        return _read_folder(shipped, displayed_path(shipped), "shipped")
    folder = Path(config)
    _check_folder(folder)
    if folder.samefile(shipped):
        return _read_folder(folder, folder, "shipped")
    files = _read_folder(folder, folder, "project")
    if not any(file.name in FILE_NAMES for file in files):
        message = "holds none of the config files"
        raise ConfigError(
            [Problem(str(folder), 0, "", message, f"they are {', '.join(FILE_NAMES)}")]
        )
    return [*_read_folder(shipped, displayed_path(shipped), "shipped"), *files]


def content_file(config: str | os.PathLike[str] | None, name: str) -> Path | None:
    """Return the file of reviewed content that a bundle calls `name` (`repo/SKILL.md`): in the
    `bundles/` folder beside the config folder, else in the package's own; None if neither has it. A
    link that leads out of its folder is not followed.
    """
    folders = [_shipped_folder("bundles")]
    if config is not None:
        folders.insert(0, Path(config).resolve().parent / "bundles")
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(folder.resolve()):
            return path
    return None


def read_content(config: str | os.PathLike[str] | None, name: str, max_bytes: int) -> str | None:
    """Return the first `max_bytes` of a bundle's content as text; None if it is absent or
    unreadable.
    """
    path = content_file(config, name)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return file.read(max_bytes).decode("utf-8", "replace")
    except OSError:
        return None


def library_texts() -> dict[str, str]:
    """Return the files of the shipped library of bundles, by name."""
    folder = _shipped_folder("bundles") / "library"
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml"))}


def fingerprint(files: Sequence[ConfigFile]) -> str:
    """Return a digest of the files, by which a reloading service knows whether to load them
    again.
    """
    return digest_of([[file.layer, file.name, file.text, str(file.fault or "")] for file in files])


def stamp_of(config: str | os.PathLike[str]) -> tuple[object, ...]:
    """Return a value that differs if a config folder has changed: names, times, sizes and inodes of
    its files and of its learned files. Texts that differ may have equal stamps within one tick of
    the file system's clock.
    """
    folder = Path(config)
    found: list[tuple[object, ...]] = []
    for path in sorted({*folder.glob("*.toml"), *folder.glob("learned/*"), folder}):
        try:
            status = path.stat()
        except OSError as error:
            found.append((str(path), error.errno))
        else:
            found.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _check_folder(folder: Path) -> None:
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        hint = "create one with `bundle-router init`, or name the folder that holds router.toml"
        raise ConfigError([Problem(str(folder), 0, "", "does not exist", hint)]) from None
    except OSError as error:
        raise ConfigError(
            [Problem(str(folder), 0, "", f"can't be read: {reason_of(error)}")]
        ) from error
    if not stat.S_ISDIR(mode):
        hint = "name the folder that holds it" if folder.name in FILE_NAMES else ""
        raise ConfigError([Problem(str(folder), 0, "", "is not a folder", hint)])


def displayed_path(folder: Path) -> Path:
    """Return the folder's path as a user in the current folder would write it."""
    try:
        return folder.relative_to(Path.cwd())
    except ValueError:
        return folder


def _read_folder(folder: Path, shown: Path, layer: Layer) -> list[ConfigFile]:
    """Return a snapshot: two successive readings must be equal, as modification times are too
    coarse to tell.
    """
    last = None
    for _ in range(_READS):
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries if _is_for_us(entry.name))
        except OSError as error:
            raise ConfigError(
                [Problem(str(shown), 0, "", f"can't be read: {reason_of(error)}")]
            ) from error
        files = [_read_file(folder, name, str(shown / name), layer) for name in names]
        if files == last:
            return files
        last = files
    raise ConfigError(
        [
            Problem(
                str(shown), 0, "", "keeps changing while it is read", "try again when it is written"
            )
        ]
    )


def _is_for_us(name: str) -> bool:
    """Return whether a file is one of the config, or was meant to be: `routes.yaml`."""
    stem, _, ending = name.rpartition(".")
    return ending == "toml" or (ending in _OTHER_FORMATS and f"{stem}.toml" in FILE_NAMES)


def _read_file(folder: Path, name: str, display_path: str, layer: Layer) -> ConfigFile:
    if name not in FILE_NAMES:
        return ConfigFile(name, display_path, "", layer)
    try:
        data = read_within(folder, folder / name, MAX_BYTES)
    except OSError as error:
        fault = Problem(display_path, 0, "", f"can't be read: {reason_of(error)}")
        return ConfigFile(name, display_path, "", layer, fault)
    return from_bytes(name, display_path, data, layer)


def reason_of(error: OSError) -> str:
    """Return why a file or folder can't be used, for the end of a sentence."""
    return (error.strerror or str(error)).lower()
