"""Where a config folder keeps learned and accepted values (see `learned_files`), without the parts
of learning and search that reading them needs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FOLDER: Final = "learned"
MEMORY: Final = "memory.json"
CALIBRATION: Final = "calibration.json"
TOOLS: Final = "tools.json"
EMBEDDINGS: Final = "embeddings.json"
"""A file of earlier versions, which is not read: an embedder that the config names ranks."""


def learned_paths(config_folder: str | os.PathLike[str] | None) -> frozenset[str]:
    """Return the paths of the learned files that a config folder has now."""
    if config_folder is None:
        return frozenset()
    names = (MEMORY, CALIBRATION, TOOLS)
    paths = [Path(config_folder, FOLDER, name) for name in names]
    return frozenset(str(path) for path in paths if path.is_file())


def ignored_path(config_folder: str | os.PathLike[str] | None) -> str | None:
    """Return the path of a learned file of an earlier version that has no effect any more."""
    if config_folder is None:
        return None
    path = Path(config_folder, FOLDER, EMBEDDINGS)
    return str(path) if path.is_file() else None
