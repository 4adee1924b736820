"""`check --fix` corrects what has one right answer, where it stands; `check` shows the line with a
caret under it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_router.core.config.config_text import ConfigFile
from bundle_router.core.config.fixes import fix_text

from tests.command_line import run

COMMENT = "# mine, and it stays\n"


def fix(name: str, text: str) -> str:
    return fix_text(ConfigFile(name, name, text))[0]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("routes.toml", "[routes] # one\nname = 'a'\nbundles = []\n", "[[routes]] # one\nname = 'a'\nbundles = []\n"),
        (
            "routes.toml",
            "[[routes]]\nname = 'a'\nbundles = 'repo.readonly'  # why\n",
            "[[routes]]\nname = 'a'\nbundles = ['repo.readonly']  # why\n",
        ),
        ("routes.toml", "[[routes]]\nname = 'a'\nbundles = [\n  'x', # one\n  'y', 'x']\n",
         "[[routes]]\nname = 'a'\nbundles = [\n  'x', # one\n  'y']\n"),
        (
            "bundles.toml",
            "[bundles.repo.readonly]\ndescription = 'x'\n[bundles.repo.readonly.requires]\nenv = ['A']\n",
            "[bundles.\"repo.readonly\"]\ndescription = 'x'\n[bundles.\"repo.readonly\".requires]\nenv = ['A']\n",
        ),
        (
            "servers.toml",
            "[servers.a]\ntransport = 'stdio'\ncommand = 'uvx server --flag'  # why\n",
            "[servers.a]\ntransport = 'stdio'\ncommand = \"uvx\"\nargs = [\"server\", \"--flag\"]  # why\n",
        ),
        (
            "servers.toml",
            "[servers.a]\ncommand = 'prog -v'\nargs = ['x']\n",
            "[servers.a]\ncommand = \"prog\"\nargs = [\"-v\", 'x']\n",
        ),
    ],
)  # fmt: skip
def test_what_has_one_right_answer_is_corrected_and_the_rest_of_the_text_stays(
    name: str, text: str, wanted: str
) -> None:
    assert fix(name, COMMENT + text) == COMMENT + wanted
    assert fix(name, COMMENT + wanted) == COMMENT + wanted


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("routes.toml", "[[routes]]\nname = 'a'\nbundels = ['x']\n"),  # a guess
        (
            "routes.toml",
            "[[routes]]\nname = 'a'\nbundles = ['x', # about x\n 'x']\n",
        ),  # the comment is about it
        ("servers.toml", "[servers.a]\ncommand = '/opt/My Tools/server'\n"),  # a path with a space
        ("servers.toml", "[servers.a]\ncommand = \"sh -c 'a b'\"\n"),  # a shell's quoting
        ("servers.toml", "not = [toml\n"),
        ("notes.toml", "[routes]\n"),
    ],
)
def test_what_needs_a_person_is_left_alone(name: str, text: str) -> None:
    assert fix(name, text) == text


def test_check_fix_writes_the_files_says_what_it_did_and_checks_what_is_then_there(
    tmp_path: Path,
) -> None:
    routes = tmp_path / "config" / "routes.toml"
    routes.parent.mkdir()
    routes.write_text(f"{COMMENT}[routes]\nname = 'a'\nbundles = 'repo.readonly'\n")
    said = run(tmp_path, "check", code=2).stdout
    assert (
        "config/routes.toml:2: routes: is a list of tables, and this is one table (write"
        " [[routes]])" in said
    )
    assert "  2 | [routes]\n    |  ^^^^^^\n" in said
    said = run(tmp_path, "check", "--fix").stdout  # the first hid the other
    assert "fixed: config/routes.toml:2: [routes] is a list of tables" in said
    assert "fixed: config/routes.toml:4: bundles is a list: ['repo.readonly']" in said
    assert routes.read_text() == f"{COMMENT}[[routes]]\nname = 'a'\nbundles = ['repo.readonly']\n"


def test_an_excerpt_points_at_the_element_also_in_a_long_line(tmp_path: Path) -> None:
    routes = tmp_path / "config" / "routes.toml"
    routes.parent.mkdir()
    padding = ", ".join(f"'bundle.{i}'" for i in range(40))
    routes.write_text(f"[[routes]]\nname = 'a'\nask = ['repo.*', {padding}]\n")
    lines = run(tmp_path, "check", code=2).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "unknown bundle 'bundle.39'" in line)
    caret = lines[at + 2].index("^")
    assert lines[at + 1][caret:].startswith("'bundle.39'")
    assert len(lines[at + 1]) < 130
