"""The command line, run as people run it: a process, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


class Shell:
    """Runs `bundle-router` in one folder, through a pipe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "bundle_router", *map(str, words)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "router"), "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *words: str | Path, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def write(self, **files: str) -> None:
        """Writes `config/<name>.toml` for each."""
        (self.folder / "config").mkdir(exist_ok=True)
        for name, text in files.items():
            (self.folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
