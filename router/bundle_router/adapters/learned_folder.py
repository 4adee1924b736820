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


def learned_paths(config_folder: str | os.PathLike[str] | None) -> frozenset[str]:
    """Return the paths of the learned files that a config folder has now."""
    if config_folder is None:
        return frozenset()
    names = (MEMORY, CALIBRATION, TOOLS, EMBEDDINGS)
    paths = [Path(config_folder, FOLDER, name) for name in names]
    return frozenset(str(path) for path in paths if path.is_file())
