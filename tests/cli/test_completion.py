"""`bundle-router completion`: the script, as the shells that are here run it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.command_line import begin, run

pytest.importorskip("shtab", reason="an environment made before the verb was")

TYPED = {
    "bundle-router com": ["completion"],
    "bundle-router runs s": ["schema", "search", "show", "stats"],
    "bundle-router serve --tok": ["--token-env", "--tokens"],
    "bundle-router route --trust ": ["trusted", "untrusted"],
    "bundle-router check --config conf": ["config"],
    "bundle-router import serv": ["servers.json"],
}
"""What is typed before Tab, and what is offered."""
BASH = """
source "$1"
shift
for line; do
  read -ra COMP_WORDS <<< "$line"
  [[ $line == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _shtab_bundle_router bundle-router "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
  echo "${COMPREPLY[*]}"
done
"""
FISH = """
source $argv[1]
for line in $argv[2..]
  string join -- " " (complete -C $line | string split -f1 \\t)
end
exit 0  # not `string`'s, which is 1 where it split nothing
"""


@pytest.mark.parametrize(("shell", "program"), [("bash", BASH), ("fish", FISH)])
def test_a_shell_completes_verbs_options_values_and_paths(
    tmp_path: Path, shell: str, program: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "config").mkdir()
    (tmp_path / "servers.json").touch()
    (tmp_path / "script").write_text(run(tmp_path, "completion", shell).stdout, encoding="utf-8")
    name = [shell] if shell == "bash" else []  # `$0` of bash
    said = subprocess.run(
        [shell, "-c", program, *name, "./script", *TYPED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    offered = [
        sorted(word.rstrip("/") for word in line.split()) for line in said.stdout.split("\n")
    ]
    assert offered[:-1] == list(TYPED.values())


def test_the_script_for_zsh_is_one_to_load_from_fpath(tmp_path: Path) -> None:
    assert run(tmp_path, "completion", "zsh").stdout.startswith("#compdef bundle-router\n")


def test_it_imports_nothing_heavy(tmp_path: Path) -> None:
    process = begin(tmp_path, "completion", "bash", env={"PYTHONPROFILEIMPORTTIME": "1"})
    _, imported = process.communicate()
    names = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "shtab" in names
    assert names & {"aiohttp", "litellm", "mcp", "numpy", "sqlalchemy", "starlette"} == set()
