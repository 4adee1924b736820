"""Links in a checkout that lead out of it (S-47): CI runs `check` and `diff` on a stranger's
branch, and nothing of what such a link points to is printed, copied or changed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.command_line import watch

CANARY = "canary-7f3a91"
BUNDLE = (
    '[bundles."a.b"]\ndescription = "Read."\ntools = ["repo.read_file"]\neffects = ["read"]\n'
    'skill = "own/SKILL.md"\n'
)
REMOTE = (
    '[servers.tickets]\ntransport = "http"\nurl = "https://tickets.example/mcp"\n'
    'trust = "untrusted"\nprefix = "tickets"\n'
)
OUTSIDE = {
    "shadow": f"root:{CANARY}:20228:0:99999:7:::\n",
    "valid.toml": f'[servers.{CANARY}]\ntransport = "ftp"\n',
    "secret.json": json.dumps({CANARY: CANARY, "servers": [CANARY]}),
    "module.py": f"PINS = {{'{CANARY}': '{CANARY}'}}\n",
    "broken.py": f"{CANARY} = = {CANARY}\n",
    "lines.jsonl": f'{{"{CANARY}": 1}}\n',
}


class Checkout:
    """A project with a config, and files outside of it that must not be seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.outside = folder / "outside"
        self.outside.mkdir()
        for name, text in OUTSIDE.items():
            (self.outside / name).write_text(text)
        for name in ("config/learned", "bundles/own", "bundles/pins", "bundles/vendored"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "config/bundles.toml").write_text(BUNDLE)
        (self.folder / "config/servers.toml").write_text(REMOTE)
        (self.folder / "bundles/own/SKILL.md").write_text("Read it.\n")

    def link(self, name: str, to: str) -> None:
        """Put a link in place of a file or folder of the checkout."""
        path = self.folder / name
        if path.is_dir():
            for inner in path.iterdir():
                inner.unlink()
            path.rmdir()
        path.unlink(missing_ok=True)
        path.symlink_to(self.outside / to)

    def run(self, *words: str) -> str:
        """Run a command, and return all that it printed."""
        said: list[str] = []
        _status, out, err = watch(self.folder, *words, on_line=said.append)
        assert "Traceback" not in err, err
        return out + err


FILE_NAMES = ("servers.toml", "bundles.toml", "routes.toml", "policy.toml", "router.toml")
LINKS: dict[str, tuple[str, str]] = {
    **{f"{name} that is text": (f"config/{name}", "shadow") for name in FILE_NAMES},
    **{f"{name} that is TOML": (f"config/{name}", "valid.toml") for name in FILE_NAMES},
    "a learned memory": ("config/learned/memory.json", "secret.json"),
    "a calibration": ("config/learned/calibration.json", "secret.json"),
    "the journal": ("config/changes.jsonl", "lines.jsonl"),
    "pins": ("bundles/pins/tickets.json", "secret.json"),
    "the folder of pins": ("bundles/pins", "."),
    "a skill": ("bundles/own/SKILL.md", "shadow"),
    "a wrapper": ("bundles/vendored/tickets.py", "module.py"),
    "a wrapper that is no module": ("bundles/vendored/tickets.py", "broken.py"),
    "a client's file": (".mcp.json", "secret.json"),
    "the folder of schemas": ("config/schema", "."),
    "what git ignores": (".gitignore", "shadow"),
}
VERBS: tuple[tuple[str, ...], ...] = (
    ("check",),
    ("check", "--json"),
    ("check", "--fix"),
    ("diff", "config", "other"),
    ("diff", "other", "config", "--json"),
    ("import", ".mcp.json"),
    ("import", "whole.json", "--write"),
    ("init",),
)


@pytest.mark.parametrize("name", LINKS)
def test_no_command_on_a_checkout_prints_or_changes_what_a_link_in_it_leads_to(
    tmp_path: Path, name: str
) -> None:
    checkout = Checkout(tmp_path)
    (checkout.folder / "other").mkdir()
    (checkout.folder / "other/router.toml").write_text("# as shipped\n")
    servers = {"mcpServers": {"new": {"url": "https://new.example/mcp"}}}
    (checkout.folder / "whole.json").write_text(json.dumps(servers))
    checkout.link(*LINKS[name])
    (checkout.outside / "tickets.json").write_text(OUTSIDE["secret.json"])
    before = {path.name: path.read_text() for path in checkout.outside.iterdir()}
    for words in VERBS:
        assert CANARY not in checkout.run(*words), words
    assert {path.name: path.read_text() for path in checkout.outside.iterdir()} == before
    for path in checkout.folder.rglob("*"):
        if (
            path.is_file()
            and not path.is_symlink()
            and path.resolve().is_relative_to(checkout.folder)
        ):
            assert CANARY not in path.read_text(), path


def test_a_config_file_that_is_a_link_out_of_its_folder_is_refused_with_advice(
    tmp_path: Path,
) -> None:
    checkout = Checkout(tmp_path)
    checkout.link("config/bundles.toml", "shadow")
    said = checkout.run("check")
    assert "config/bundles.toml: can't be read: it is a link that leads out of its folder" in said


def test_a_link_by_way_of_a_folder_is_no_way_out(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    (checkout.folder / "config/inner").symlink_to(checkout.outside)
    (checkout.folder / "config/policy.toml").symlink_to("inner/shadow")
    assert CANARY not in checkout.run("check")


def test_init_waits_for_no_pipe_in_place_of_what_git_ignores(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    os.mkfifo(checkout.folder / ".gitignore")
    assert "add the line '/runs/'" in checkout.run("init")
