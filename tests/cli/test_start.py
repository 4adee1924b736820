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


MADE_AT_A_ROUTE = """
import dataclasses, sys
from bundle_router.cli import main

made, decorate = [], dataclasses._process_class

def counted(cls, init, *more, **how):
    made.extend([cls] if init and cls.__module__.startswith("bundle_router") else [])
    return decorate(cls, init, *more, **how)

dataclasses._process_class = counted
main(["route", "--workflow", "feature", "--role", "implementer", "--step", "edit", "--run", "r-1"])
ours = [name for name in sys.modules if name.startswith("bundle_router")]
print("modules", len(ours), "compiled", len(made), "tools", *(name for name in ours if "router.tools." in name))
"""


def test_a_cold_route_loads_no_tool_and_little_else(tmp_path: Path) -> None:
    """Counted, since CPU differs by machine: ceilings a little above what there is.

    Where one is passed, look with `python -X importtime -m bundle_router route …` for what need not
    be loaded for a route.
    """
    done = subprocess.run(
        [sys.executable, "-c", MADE_AT_A_ROUTE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    words = done.stdout.splitlines()[-1].split()
    assert sorted(words[5:]) == [
        "bundle_router.tools.descriptors",
        "bundle_router.tools.expressions",
    ], "no tool"
    assert int(words[1]) <= 195, "modules of the package"
    assert int(words[3]) <= 18, (
        "classes made by the standard library's dataclass, which compiles six methods each"
    )


def test_a_cold_route_starts_no_event_loop(tmp_path: Path) -> None:
    script = """
import sys
from bundle_router.cli import main

sys.argv = "bundle-router route --workflow feature --role implementer --step edit --run r-1".split()
main()
late = ("asyncio.events", "concurrent.futures.process", "subprocess")
print("loaded", *(name for name in late if name in sys.modules))
import asyncio
from importlib.util import find_spec

assert find_spec("asyncio").origin.endswith("__init__.py")
assert "asyncio.events" not in sys.modules
from asyncio import TaskGroup

asyncio.run(asyncio.sleep(0))  # who uses it then has all of it
assert sys.modules["asyncio"].TaskGroup is TaskGroup is asyncio.TaskGroup
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.splitlines()[-1] == "loaded"


def test_modules_for_others_are_found_from_the_package() -> None:
    script = (
        "import bundle_router\n"
        "assert len(bundle_router.__all__) == 9, bundle_router.__all__\n"
        "assert not hasattr(bundle_router, 'LocalTool')\n"
        "assert bundle_router.tool.LocalTool and bundle_router.errors.NotInstalled\n"
        "assert bundle_router.serving.serve_mcp and bundle_router.testing"
    )
    assert "bundle_router.serving.endpoint" in loaded_by(script)
