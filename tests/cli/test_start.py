"""What a start loads: nothing heavy for `--help` and `--version`, and modules of the package when
they are named.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "pydantic",
    "rich",
    "asyncio",
    "sqlmodel",
    "structlog",
    "mcp",
    "litellm",
    "bundle_router.core",
)


def loaded_by(script: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after the script."""
    script += "\nimport sys\nprint(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_help_and_version_load_nothing_heavy(words: list[str]) -> None:
    script = (
        "from contextlib import suppress\nfrom bundle_router.cli import main\nwith"
        " suppress(SystemExit):\n"
    )
    assert loaded_by(f"{script}    main({words})").isdisjoint(HEAVY)


ROUTE = """
import sys
from bundle_router.cli import main

main(["route", "--workflow", "feature", "--role", "implementer", "--step", "edit", "--run", "r-1"])
print(*sys.modules)
"""
LATE = ("litellm", "instructor", "mcp", "sqlmodel", "aiohttp", "numpy")
"""What a mapped route has no use for."""


def test_a_cold_route_loads_no_tool_and_no_heavy_library(tmp_path: Path) -> None:
    """Counted, since CPU differs by machine: a ceiling a little above what there is.

    Where it is passed, look with `python -X importtime -m bundle_router route …` for what need not
    be loaded for a route.
    """
    done = subprocess.run(
        [sys.executable, "-c", ROUTE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    loaded = done.stdout.splitlines()[-1].split()
    ours = [name for name in loaded if name.startswith("bundle_router")]
    assert [name for name in LATE if name in loaded] == []
    assert [name for name in ours if "router.local_tools." in name] == []
    assert len(ours) <= 195


def test_modules_for_others_are_found_from_the_package() -> None:
    script = (
        "import bundle_router\n"
        "assert len(bundle_router.__all__) == 10, bundle_router.__all__\n"
        "assert not hasattr(bundle_router, 'LocalTool')\n"
        "assert bundle_router.tool.LocalTool and bundle_router.errors.NotInstalled\n"
        "assert bundle_router.service.serve_mcp and bundle_router.testing"
    )
    assert "bundle_router.service.endpoint" in loaded_by(script)
