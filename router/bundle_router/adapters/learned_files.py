"""Learned and accepted values on disk: `<config>/learned/memory.json`, `tools.json` and
`calibration.json`.

Rules:
1. Exactly these files take effect. A file exists because a person accepted it. To go back, delete
   it (or restore the version in your version control); the next `Router.open` sees that.
2. A file is replaced atomically (`text_files`).
3. Only regular files are read, up to `MAX_BYTES`, and no link out of the config folder. A file
   that is not of the version it claims is a config error, so that nobody is routed by it, or
   unknowingly without it.
4. A value that `save_learned` takes out of force leaves a file that says so: a router that runs
   takes a file that is missing for an accident, and goes on with what it has.
5. `proposals.toml` beside them is text for people. Nothing reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from bundle_router.adapters.learned_folder import (
    CALIBRATION,
    FOLDER,
    MEMORY,
    TOOLS,
)
from bundle_router.adapters.text_files import read_within, replace_texts
from bundle_router.core.search.learned_values import (
    NOTHING,
    OF_BUNDLES,
    OF_TOOLS,
    LearnedValues,
    calibration_from,
    calibration_json,
    memory_from,
    memory_json,
)
from bundle_router.core.values.canonical import encode
from bundle_router.errors import ConfigError, Problem

PROPOSALS: Final = "proposals.toml"
_NO_VALUE: Final = {"value": None}
"""The content of a file whose value was taken out of force."""
MAX_BYTES: Final = 64 * 1024 * 1024

T = TypeVar("T")


def load_learned(config_folder: str | os.PathLike[str] | None) -> LearnedValues:
    """Return the learned values of a config folder (None: none).

    Raises ConfigError, which names every invalid file.

    Fit them to the catalog before use: `load_learned(folder).fitted_to(catalog)`.
    """
    if config_folder is None:
        return NOTHING
    folder = Path(config_folder, FOLDER)
    problems: list[Problem] = []
    memory = _read(folder / MEMORY, partial(memory_from, form=OF_BUNDLES), problems)
    calibration = _read(folder / CALIBRATION, calibration_from, problems)
    tools = _read(folder / TOOLS, partial(memory_from, form=OF_TOOLS), problems)
    if problems:
        raise ConfigError(problems)
    (of_bundles, known) = memory or (None, ())
    (of_tools, known_tools) = tools or (None, ())
    return LearnedValues(of_bundles, known, calibration, of_tools, known_tools)


def save_learned(config_folder: str | os.PathLike[str], learned: LearnedValues) -> list[Path]:
    """Make exactly these values effective: write those there are, and take the others out of force.

    Return the files.

    Raises StorageError; files written before the error stay.
    """
    folder = Path(config_folder, FOLDER)
    if learned.memory is not None:
        memory = memory_json(learned.memory, learned.known, OF_BUNDLES)
    else:
        memory = None
    calibration = calibration_json(learned.calibration) if learned.calibration is not None else None
    kept = []
    if learned.tools is not None:
        tools = memory_json(learned.tools, learned.known_tools, OF_TOOLS)
    else:
        tools = None
    for name, value in (
        (MEMORY, memory),
        (CALIBRATION, calibration),
        (TOOLS, tools),
    ):
        if value is not None:
            replace_texts({folder / name: encode(value) + "\n"})
            kept.append(folder / name)
        elif (folder / name).exists():
            replace_texts({folder / name: encode(_NO_VALUE) + "\n"})
    return kept


def _read(path: Path, parse: Callable[[Any], T], problems: list[Problem]) -> T | None:
    try:
        data = read_within(path.parent.parent, path, MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
        value = _object(data)
        return parse(value) if value != _NO_VALUE else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problems.append(
            Problem(str(path), 0, "", f"can't be read: {(error.strerror or str(error)).lower()}")
        )
    except (ValueError, RecursionError) as wrong:
        hint = "delete it, or learn and accept again"
        problems.append(Problem(str(path), 0, "", f"can't be used: {wrong}", hint))
    return None


def _object(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
