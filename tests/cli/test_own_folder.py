"""A folder with code under the package's names: none of it runs, whatever is done there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ROOT
from tests.profiles import ALL

TRAP = "open('ran', 'a').write(__file__ + chr(10))\nraise SystemExit('code of the folder ran')\n"
FILES = (
    "router.py", "bundle_router.py", "bundles/__init__.py", "bundles/repo/__init__.py", "config/__init__.py",
    "tools.py", "cli.py", "sitecustomize.py", "json.py",
)  # fmt: skip
OPEN = """
from bundle_router import Router, Step
with Router.open("config", runs="runs") as router:
    decision = router.route_sync(Step(run_id="r", workflow="feature", role="implementer", step="edit"))
    assert decision.bundle_ids == ["repo.readonly", "workspace.exec"], decision
    assert router.call_sync("r", "repo.list_dir", {}).ok
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TRAP)
    (tmp_path / "bundles" / "tokens.json").write_text('{"repo.read_file": 1}')
    for file in (ROOT / "config").glob("*.toml"):
        (tmp_path / "config" / file.name).write_text(file.read_text("utf-8"))
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["-m", "bundle_router", "check"], id="check"),
        *(
            [pytest.param(["-m", "bundle_router", "demo"], id="demo")] if ALL else []
        ),  # which imports litellm: seconds
        pytest.param(["-c", OPEN], id="Router.open"),
    ],
)
def test_no_code_of_the_folder_runs(folder: Path, words: list[str]) -> None:
    """`-P`, as installed commands do: the interpreter itself must not look for modules in the
    current folder.
    """
    done = subprocess.run(
        [sys.executable, "-P", *words], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert not (folder / "ran").exists(), (folder / "ran").read_text()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_in_a_folder_with_those_names_opens_a_router_too(folder: Path) -> None:
    """The folder of a script is on its path.

    What only the folder's own names could shadow is not looked for there.
    """
    for name in ("bundle_router.py", "json.py", "sitecustomize.py"):
        (
            folder / name
        ).unlink()  # these would take the place of the library itself: Python's rule, not ours
    (folder / "engine.py").write_text(OPEN)
    done = subprocess.run(
        [sys.executable, "engine.py"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert not (folder / "ran").exists(), (folder / "ran").read_text()
    assert done.returncode == 0, done.stdout + done.stderr
