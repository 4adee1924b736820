"""What is installed beside the package (S-23): by hash, above the floors, and nothing that runs
unasked.

A file `*.pth` runs code at each start of Python, and some entry points are loaded by a library that
finds them. Who changes a lock, and meets a new one here, looks at what it does before it is added
to the table.
"""

from __future__ import annotations

import json
import re
import site
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.house import ROOT

REQUIREMENTS = ROOT / "requirements.lock"
DEFERRAL = ROOT / "router" / "deferral"
LOCKS = sorted([REQUIREMENTS, *ROOT.glob(".ci/*.lock"), *ROOT.glob(".ci/*/*.lock")])
NODE_LOCKS = sorted(ROOT.glob(".ci/*/package-lock.json"))
FLOORS = {"litellm": (1, 83, 8), "starlette": (1, 0, 1), "mcp": (2, 3)}
"""Versions from which a known hole is closed (see the ranges in pyproject.toml)."""
VENV_OWN = {"pip", "setuptools"}
"""Distributions that `python -m venv` brings."""
OPENTELEMETRY = {"opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"}
LOADED_BY_OTHERS = {
    "array_api": {"numpy"},
    "babel.extractors": {"Jinja2"},
    "distutils.setup_keywords": {"cffi"},
    "fsspec.specs": {"huggingface_hub"},
    "opentelemetry_http_transport": {"opentelemetry-exporter-http-transport"},
    "pkg_config": {"numpy"},
    "pyinstaller40": {"numpy", "ormsgpack", "playwright"},
    "pytest11": {
        "anyio",
        "hypothesis",
        "langsmith",
        "pytest-xdist",
        "schemathesis",
    },  # pytest is told to load none
}
"""Groups of entry points, and whose they are.

Commands are not among them: nobody runs one unasked.
"""

is_locked = (Path(sys.prefix) / ".installed-requirements.lock").is_file()
locked_only = pytest.mark.skipif(not is_locked, reason="this environment was not made by .ci/test")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_all_that_a_lock_names_has_a_version_and_hashes_and_comes_from_no_named_place(
    lock: Path,
) -> None:
    text = re.sub(r"\\\n", " ", lock.read_text(encoding="utf-8"))
    rows = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    assert rows
    for row in rows:
        assert re.fullmatch(
            r"[\w.\-\[\],]+==\S+( ;[^#]*?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", row
        ), row


@pytest.mark.parametrize("lock", NODE_LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_for_node_are_pinned_by_hash_and_come_from_no_named_place(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert '"resolved"' not in text
    assert text.count('"integrity": "sha512-') == text.count('    "node_modules/')


@pytest.mark.parametrize("name", FLOORS)
def test_no_version_with_a_known_hole_is_installed(name: str) -> None:
    found = re.search(rf"^{name}==([\d.]+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{name} is not in {REQUIREMENTS.name}"
    assert tuple(map(int, found[1].split("."))) >= FLOORS[name]


def test_the_lock_has_what_the_distribution_beside_the_router_needs() -> None:
    """`.ci/lock` reads the router's pyproject.toml alone."""
    with (DEFERRAL / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    rows = re.findall(r"^([\w.-]+)==(\S+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    locked = dict(rows)
    needs = [Requirement(row) for row in project["dependencies"]]
    needs += [
        Requirement(row) for rows in project["optional-dependencies"].values() for row in rows
    ]
    others = [need for need in needs if need.name != "bundle-router"]
    assert len(others) == len(needs) - 1
    assert [str(need) for need in others if not need.specifier.contains(locked[need.name])] == []


@locked_only
@pytest.mark.parametrize(
    ("name", "folder"), [("bundle-router", ROOT), ("bundle-router-deferral", DEFERRAL)]
)
def test_both_distributions_are_installed_from_the_checkout(name: str, folder: Path) -> None:
    origin = json.loads(Distribution.from_name(name).read_text("direct_url.json") or "{}")
    assert origin == {"url": folder.as_uri(), "dir_info": {"editable": True}}


@locked_only
def test_no_package_runs_code_at_the_start_of_python() -> None:
    folders = [Path(folder) for folder in site.getsitepackages()]
    running = {
        file.name
        for folder in folders
        for file in folder.glob("*.pth")
        if re.search(r"^import[ \t]", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert running <= {"distutils-precedence.pth"}, "setuptools' own, where venv brings it"
    assert not [file for folder in folders for file in folder.glob("*customize.py")], (
        "site imports these two"
    )


@locked_only
def test_every_entry_point_that_a_library_may_load_is_one_we_have_looked_at() -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for distribution in distributions(path=site.getsitepackages()):
        for point in distribution.entry_points:
            if point.group != "console_scripts" and distribution.name not in VENV_OWN:
                found[point.group].add(distribution.name)
    for group, names in found.items():
        known = OPENTELEMETRY if group.startswith("opentelemetry_") else set()
        assert names <= known | LOADED_BY_OTHERS.get(group, set()), group
