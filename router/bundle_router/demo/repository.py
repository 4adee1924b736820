"""The demo's repository: a copy of the current one, or a small one that it makes."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")

_CHART: Final = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAKAAAABaCAAAAAAarQKOAAAAcElEQVR42u3UsQkAIAxFwYzm/vM4gL02IgYCuV+meVclZvEFICAg4M+NbYCAgICAgICA"
    "gICAgC2AZxgQEBAwOQwICAiYDry7AQICAj6GAQEBmwPz/xsgICBgchgQELARsA4GEBAQEBAQEBAQELAdcAHA4FysxgmQuQAAAABJRU5ErkJggg=="
)
"""A bar chart of 160 × 90 pixels, as a PNG."""
_FILES: Final = {
    "README.md": "# Slug\n\nTurns titles into URL slugs.\n",
    "slug.py": '''"""Turns titles into URL slugs."""


def slugify(title: str) -> str:
    """Lower case, words joined by hyphens."""
    words = "".join(c if c.isalnum() else " " for c in title.lower()).split()
    return "-".join(words)
''',
    "test_slug.py": """import unittest

from slug import slugify


class SlugTest(unittest.TestCase):
    def test_words_are_joined_by_hyphens(self):
        self.assertEqual(slugify("Hello, wide World"), "hello-wide-world")
""",
}


@dataclass(frozen=True, slots=True)
class Repository:
    """A folder under git that the demo may change, an image in it, and its original (empty: it was
    made).
    """

    root: Path
    image: str
    origin: str = ""


def _git(root: Path, *words: str) -> str | None:
    """Return git's output, or None if it failed or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def copy_of(folder: Path, into: Path) -> Repository | None:
    """Return a shallow clone of the repository around `folder`, so that the user's own is not
    changed; None without one.

    A repository without a small image gets a chart, in the copy.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    origin = top.strip()
    clone = _git(folder, "clone", "--quiet", "--depth", "50", f"file://{origin}", str(into))
    if clone is None:
        return None

    tracked = (_git(into, "ls-files", "-z") or "").split("\0")
    image = next((name for name in tracked if _is_small_image(into / name)), None)
    if image is None:
        image = "bundle-router-chart.png"
        (into / image).write_bytes(_CHART)
    return Repository(into, image, origin=origin)


def _is_small_image(path: Path) -> bool:
    if not path.name.lower().endswith(IMAGE_SUFFIXES) or path.is_symlink():
        return False
    return path.is_file() and path.stat().st_size < 2**20


def make(root: Path) -> Repository:
    """Write a small repository with one commit: a module, its test, a chart, and a log too long to
    show whole.
    """
    root.mkdir(parents=True)
    for name, text in _FILES.items():
        (root / name).write_text(text, encoding="utf-8")
    (root / "build.log").write_text(
        "".join(f"{n:05d} compiled module_{n % 97:02d}\n" for n in range(4000)), "utf-8"
    )
    (root / "chart.png").write_bytes(_CHART)
    _git(root, "init", "--quiet")
    _git(root, "add", ".")
    author = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
    _git(root, *author, "commit", "--quiet", "-m", "Turn titles into slugs")
    return Repository(root, "chart.png")
