"""The config editor at the command line: what `check` finds, and how it says so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from bundle_router.cli.importing import append_texts

from tests.at_once import at_once


def test_a_skill_is_looked_for_beside_the_config_and_a_link_out_of_there_does_not_count(
    shell: Any,
) -> None:
    shell.write(
        bundles="".join(
            f'[bundles.{name}]\ndescription = "{name}: {words}"\ntools = ["{tool}"]\neffects ='
            f' ["read"]\nskill = "{name}/SKILL.md"\n'
            for name, words, tool in (
                ("one", "files", "repo.list_dir"),
                ("two", "history of the project", "repo.git_log"),
                ("three", "searching text", "repo.ripgrep"),
            )
        )
        + "[bundles.all]\ndescription='x'\nbundles=['one','two','three']\n",
        policy='[[policies]]\nname = "p"\nrole = "r"\nallow = ["one", "two", "three", "all"]\n',
        routes='[[routes]]\nname = "r"\nrole = "r"\nbundles = ["one"]\n',
    )
    (shell.folder / "secret").write_text("x")
    for name in ("one", "two"):
        (shell.folder / "bundles" / name).mkdir(parents=True)
    (shell.folder / "bundles" / "one" / "SKILL.md").write_text("Look first.\n", encoding="utf-8")
    (shell.folder / "bundles" / "two" / "SKILL.md").symlink_to(shell.folder / "secret")
    said = [p["path"] for p in shell.json("check")["problems"] if p["rule"] == "missing-skill"]
    assert said == ["bundles.two.skill", "bundles.three.skill"]


def test_a_skill_that_names_its_folder_is_told_the_file(shell: Any) -> None:
    shell.write(
        bundles="[bundles.one]\ndescription='x'\ntools=['repo.read_file']\neffects=['read']\nskill='one'\n"
    )
    (shell.folder / "bundles" / "one").mkdir(parents=True)
    (shell.folder / "bundles" / "one" / "SKILL.md").write_text("Look first.\n", encoding="utf-8")
    (said,) = [p for p in shell.json("check")["problems"] if p["rule"] == "missing-skill"]
    assert said["suggestion"] == "did you mean 'one/SKILL.md'?"


def test_init_leaves_runs_out_of_git_and_says_so_where_there_is_a_file_already(shell: Any) -> None:
    shell("init", "fresh")
    assert "/runs/" in (shell.folder / "fresh" / ".gitignore").read_text("utf-8").splitlines()
    mine = shell.folder / ".gitignore"
    mine.write_text("*.pyc\n", encoding="utf-8")
    assert "kept  .gitignore  (add the line '/runs/'" in shell("init").stdout
    assert mine.read_text("utf-8") == "*.pyc\n"
    mine.write_text("*.pyc\nruns/*\n", encoding="utf-8")
    assert "add the line" not in shell("init").stdout


def test_each_key_of_the_router_toml_that_init_writes_can_be_uncommented_alone(shell: Any) -> None:
    shell("init", "fresh")
    file = shell.folder / "fresh" / "config" / "router.toml"
    text = file.read_text("utf-8")
    commented = re.findall(r"^#(\w+) = (?!\[$)", text, re.MULTILINE)
    assert {"order", "names", "max_tools", "call_timeout_s", "durability"} <= set(commented)
    for key in commented:
        edited = re.sub(rf"^#{key} = ", f"{key} = ", text, count=1, flags=re.MULTILINE)
        section = re.findall(r"^\[(\w+)\]", edited.split(f"\n{key} = ")[0], re.MULTILINE)[-1]
        assert key in tomllib.loads(edited)[section]
    file.write_text(text.replace("#max_tools = 24", "max_tools = twelve"), encoding="utf-8")
    assert "put text in quotes" in shell("check", "--config", "fresh/config", code=2).stdout
    file.write_text(text.replace("#max_tools = 24", "max_tools = 12"), encoding="utf-8")
    shell("check", "--config", "fresh/config")


def test_what_several_append_to_the_config_at_once_is_all_there(tmp_path: Path) -> None:
    for number in range(5):
        (config := tmp_path / f"config-{number}").mkdir()
        (config / "servers.toml").touch()

        def append(which: int, config: Path = config) -> None:
            text = f'[servers.server{which}]\ntransport = "stdio"\ncommand = "true"\n'
            append_texts(str(config), {}, {config / "servers.toml": text}, write=True)

        assert at_once(4, append) == [None] * 4
        kept = tomllib.loads((config / "servers.toml").read_text(encoding="utf-8"))["servers"]
        assert sorted(kept) == [f"server{which}" for which in range(4)]
