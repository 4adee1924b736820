"""The library leaves its host's process as it was: what it changes stands in one table."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.host_changes import HOST_CHANGES, Setting

ROOT = Path(__file__).parents[1]
NEEDED = ("mcp", "litellm", "instructor")


def named(setting: Setting) -> set[str]:
    """Return the names that the table has for a kind of setting."""
    return {name for row in HOST_CHANGES if row.setting == setting for name in row.names}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what changed in an engine's process with unusual settings."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    program = [sys.executable, str(ROOT / "tests" / "host_program.py")]
    folder = tmp_path_factory.mktemp("engine")
    ran = subprocess.run(
        [*program, str(folder), str(ROOT / "tests" / "adapters" / "mcp" / "fault_server.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return report


def test_all_of_the_library_was_used(found: dict[str, Any]) -> None:
    assert found["outcomes"] == ["ok", "ok", "ok", "model"]
    assert found["asked"] == 1
    assert found["looks"] > 100


def test_the_interpreter_s_settings_are_as_they_were_all_the_time(found: dict[str, Any]) -> None:
    assert found["changed"] == {}


def test_the_table_names_each_variable_that_is_set(found: dict[str, Any]) -> None:
    assert set(found["environment"]) <= named("environment")


def test_the_table_names_each_warning_that_is_ignored(found: dict[str, Any]) -> None:
    unnamed = [
        pattern
        for pattern in found["warnings"]
        if not any(start.strip("?s ") in str(pattern) for start in named("warnings"))
    ]
    assert unnamed == []
    assert all(found["filters kept"])


def test_the_table_names_each_logger_that_is_changed(found: dict[str, Any]) -> None:
    assert set(found["loggers"]) <= named("logger")


def test_every_row_of_the_table_has_its_reason() -> None:
    for row in HOST_CHANGES:
        assert row.names
        assert row.begins
        assert len(row.reason) > 20
