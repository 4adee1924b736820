"""What a start loads: nothing heavy for `--help` and `--version`, and modules of the package when they are named."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pydantic", "rich", "asyncio", "sqlmodel", "structlog", "mcp", "litellm", "bundle_router.core")


def loaded_by(script: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after the script."""
    script += "\nimport sys\nprint(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_help_and_version_load_nothing_heavy(words: list[str]) -> None:
    script = "from contextlib import suppress\nfrom bundle_router.cli import main\nwith suppress(SystemExit):\n"
    assert loaded_by(f"{script}    main({words})").isdisjoint(HEAVY)


def test_modules_for_others_are_found_from_the_package() -> None:
    script = (
        "import bundle_router\n"
        "assert len(bundle_router.__all__) == 9, bundle_router.__all__\n"
        "assert not hasattr(bundle_router, 'LocalTool')\n"
        "assert bundle_router.tool.LocalTool and bundle_router.errors.NotInstalled\n"
        "assert bundle_router.serving.serve_mcp and bundle_router.testing"
    )
    assert "bundle_router.serving.endpoint" in loaded_by(script)
