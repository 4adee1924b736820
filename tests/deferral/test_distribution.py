"""`bundle-router-deferral` is a distribution of its own: the router without it, and both
together.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundle_router
import bundle_router_deferral
import pytest
from bundle_router_deferral.cli import main

from tests.command_line import CODE, ROOT, run
from tests.deferral.conftest import Home

INSTALL = "pip install ../checkout ../checkout/router/deferral"
WITHOUT = """
import sys
sys.path[:] = [place for place in sys.path if not place.endswith("router/deferral")]
sys.path.insert(0, sys.argv[1])
from bundle_router.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""Runs `bundle-router` where nothing but the named folder may have the distribution."""
LAUNCHER = """#!/bin/sh
# Written by `bundle-router deferral install robot`.
# `bundle-router deferral uninstall robot --yes` removes it.
if [ -z "${{BUNDLE_ROUTER_DEFERRAL:-}}" ] && {python} -m bundle_router --version >/dev/null 2>&1; then
  BUNDLE_ROUTER_DEFERRAL=1 exec {python} -m bundle_router deferral run -- {agent} "$@"
fi
exec {agent} "$@"
"""
"""What `install` wrote while the router had these verbs itself: people have it on their paths."""
AGENT = """#!/bin/sh
echo "args <$*> base <${ANTHROPIC_BASE_URL:-none}>"
exit 7
"""


def project_of(folder: Path) -> Any:
    with (folder / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def absent(folder: Path) -> None:
    """Nothing of the distribution."""


def an_empty_folder(folder: Path) -> None:
    """What an uninstallation may leave: Python takes it for a package."""
    (folder / "bundle_router_deferral").mkdir()


def another_version(folder: Path) -> None:
    package = folder / "bundle_router_deferral"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "0.0.9"\n', encoding="utf-8")


Places = Callable[[Path], None]
PLACES: dict[Places, str] = {
    absent: "is not installed",
    an_empty_folder: "is not installed",
    another_version: "bundle-router-deferral 0.0.9 is installed beside the router",
}


@pytest.fixture(params=PLACES, ids=lambda place: place.__name__)
def lacking(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A folder of packages without the distribution, and what is to be said of it."""
    folder = tmp_path / "packages"
    folder.mkdir()
    request.param(folder)
    return folder, PLACES[request.param]


def without(folder: Path, *words: str, env: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT, str(folder), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "router"), **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "words", ["deferral", "deferral audit", "deferral audit --json", "deferral run -- robot --x"]
)
def test_the_verb_says_how_to_install_what_it_lacks(lacking: tuple[Path, str], words: str) -> None:
    folder, said = lacking
    done = without(folder, *words.split())
    assert (done.returncode, done.stdout) == (4, "")
    assert said in done.stderr
    assert INSTALL in done.stderr
    assert "Traceback" not in done.stderr


def test_its_help_says_how_to_install_what_it_lacks(lacking: tuple[Path, str]) -> None:
    folder, said = lacking
    done = without(folder, "deferral", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert said in " ".join(done.stdout.split())
    assert INSTALL in " ".join(done.stdout.split())


def test_the_other_verbs_need_no_such_distribution(lacking: tuple[Path, str]) -> None:
    folder, _ = lacking
    done = without(folder, "--help")
    assert done.returncode == 0
    assert re.search(r"deferral +find where", done.stdout)
    assert without(folder, "check").returncode == 0


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "robot"
    program.parent.mkdir()
    program.write_text(AGENT, encoding="utf-8")
    program.chmod(0o755)
    return program


def launched(launcher: Path, python: str, robot: Path, home: Home) -> Any:
    launcher.write_text(LAUNCHER.format(python=python, agent=robot), encoding="utf-8")
    launcher.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": CODE}
    environment.pop("BUNDLE_ROUTER_DEFERRAL", None)
    return subprocess.run(
        [launcher, "run", "--", "x y"],
        cwd=home.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_launcher_of_before_starts_its_agent_behind_the_proxy(
    home: Home, robot: Path, tmp_path: Path
) -> None:
    done = launched(tmp_path / "launcher", sys.executable, robot, home)
    assert done.returncode == 7, done.stderr
    assert re.fullmatch(r"args <run -- x y> base <http://127\.0\.0\.1:\d+>\n", done.stdout)


def test_a_launcher_of_before_starts_its_agent_alone_without_the_distribution(
    home: Home, robot: Path, tmp_path: Path, lacking: tuple[Path, str]
) -> None:
    folder, said = lacking
    (tmp_path / "without.py").write_text(WITHOUT, encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nshift 2\nexec {sys.executable} -P {tmp_path}/without.py {folder} "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    done = launched(tmp_path / "launcher", str(python), robot, home)
    assert (done.returncode, done.stdout) == (7, "args <run -- x y> base <none>\n")
    assert said in done.stderr
    assert f"{robot} runs without the proxy" in done.stderr


def test_an_agent_that_is_gone_is_a_bad_request_of_such_a_launcher(tmp_path: Path) -> None:
    words = ("deferral", "run", "--", str(tmp_path / "gone"))
    done = without(tmp_path, *words, env={"BUNDLE_ROUTER_DEFERRAL": "1"})
    assert done.returncode == 3
    assert f"'{tmp_path}/gone' can't be started: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_verb_and_the_command_are_the_same(
    home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = run(tmp_path, "deferral", "audit", "--json")
    assert main(["audit", "--json"]) == 0
    assert capsys.readouterr().out == said.stdout
    assert main(["undo"]) == 3
    assert capsys.readouterr().err == "bundle-router-deferral: there is no change to undo\n"
    assert run(tmp_path, "deferral", "undo", code=3).stderr == (
        "bundle-router: there is no change to undo\n"
    )


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--help"], 0, "usage: bundle-router-deferral [-h]"),
        (["audit", "--help"], 0, "usage: bundle-router-deferral audit [-h]"),
        (["--version"], 0, f"bundle-router-deferral {bundle_router.__version__}\n"),
        ([], 3, "required: verb"),
        (["audit", "--nonsense"], 3, "bundle-router-deferral: unrecognized arguments: --nonsense"),
        (["install", "no-such-agent"], 3, "bundle-router-deferral: 'no-such-agent' is not on"),
    ],
)
def test_the_command_is_a_program_of_its_own(
    home: Home, words: list[str], status: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bundle_router_deferral", *words],
        cwd=home.folder,
        env={**os.environ, "PYTHONPATH": CODE},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert said in (done.stderr if status else done.stdout)


def test_the_help_of_the_verb_lists_the_verbs_of_the_distribution(tmp_path: Path) -> None:
    said = run(tmp_path, "deferral", "--help").stdout
    assert said.startswith("usage: bundle-router deferral [-h] verb ...")
    for verb in ("audit", "apply", "undo", "report", "probe", "run", "install", "status"):
        assert re.search(rf"^ +{verb} ", said, re.MULTILINE), verb
    assert "pip install" not in said


def test_it_pins_its_own_version_of_the_router() -> None:
    version = bundle_router.__version__
    project = project_of(ROOT / "router" / "deferral")
    assert bundle_router_deferral.__version__ == version
    assert project["dependencies"] == [f"bundle-router=={version}"]


def test_the_router_has_no_extra_for_the_proxy() -> None:
    extras = project_of(ROOT)["optional-dependencies"]
    assert "proxy" not in extras
    assert not [need for name in extras for need in extras[name] if "deferral" in need]
    assert "proxy" in project_of(ROOT / "router" / "deferral")["optional-dependencies"]


def built(folder: Path, out: Path) -> dict[str, str]:
    """Build a wheel from a copy of a folder, and return the names in it with their texts."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=120)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name).decode("utf-8", "replace") for name in packed.namelist()}


def test_its_wheel_holds_its_package_its_command_and_its_pin(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel")
    source = tmp_path / "source"
    shutil.copytree(
        ROOT / "router" / "deferral", source, ignore=shutil.ignore_patterns("__pycache__", "dist")
    )
    texts = built(source, tmp_path / "out")
    version = bundle_router.__version__
    facts = f"bundle_router_deferral-{version}.dist-info"
    assert {name.partition("/")[0] for name in texts} == {"bundle_router_deferral", facts}
    assert "bundle_router_deferral/causes.toml" in texts
    metadata = texts[f"{facts}/METADATA"]
    assert f"Requires-Dist: bundle-router=={version}\n" in metadata
    assert "Provides-Extra: proxy\n" in metadata
    assert (
        "bundle-router-deferral = bundle_router_deferral.cli:main"
        in (texts[f"{facts}/entry_points.txt"])
    )


def test_the_routers_wheel_holds_nothing_of_it(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel")
    texts = built(ROOT, tmp_path / "out")
    assert [name for name in texts if "deferral" in name] == ["bundle_router/cli/deferral.py"]
