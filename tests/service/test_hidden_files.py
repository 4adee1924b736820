"""Files that a service is kept by, and the router's own places: no tool reads or changes them, by
whatever name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_router import Router, Step
from bundle_router.errors import RequestError
from bundle_router.service import AccessTokens
from bundle_router.service.endpoint import opened_keys
from bundle_router.wiring import opening


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    for name in ("secret.toml", "plain.md", "state/of-a-server.json", "runs/notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("what it says\n", encoding="utf-8")
    (folder / "link.toml").symlink_to("secret.toml")
    os.link(folder / "secret.toml", folder / "same.toml")
    monkeypatch.setattr(opening, "token_folder", lambda: folder / "state")
    return folder


@pytest.fixture
def router(folder: Path) -> Iterator[Router]:
    with Router.open("config", runs=folder / "runs", workspace=folder) as router:
        router.route_sync(Step(run_id="r", workflow="feature", role="implementer", step="edit"))
        yield router


def reads(router: Router, *names: str) -> list[str]:
    return [router.call_sync("r", "repo.read_file", {"path": name}).code for name in names]


NAMES = ("secret.toml", "link.toml", "same.toml")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_hidden_is_so_by_all_of_its_names_at_once(
    router: Router, folder: Path, name: str
) -> None:
    assert reads(router, *NAMES, "plain.md") == ["", "", "", ""]
    router.endpoint.hide(None, str(folder / name), None)
    assert reads(router, *NAMES, "plain.md") == ["hidden", "hidden", "hidden", ""]
    for made in NAMES[:2]:
        content = {"path": made, "content": "mine\n", "expected_sha256": None}
        assert not router.call_sync("r", "workspace.write_file", content).ok
    assert (folder / "secret.toml").read_text(encoding="utf-8") == "what it says\n"


def test_a_file_named_from_the_current_folder_stays_hidden_when_that_is_another(
    router: Router, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    router.endpoint.hide("secret.toml")
    monkeypatch.chdir("/")
    assert reads(router, *NAMES, "plain.md") == ["hidden", "hidden", "hidden", ""]


def test_the_token_file_is_hidden_before_it_is_read_and_stays_so_when_it_is_replaced(
    router: Router, folder: Path
) -> None:
    tokens = AccessTokens(folder / "link.toml")
    with pytest.raises(RequestError, match="is not TOML"):
        asyncio.run(opened_keys(router.endpoint, None, tokens))
    assert reads(router, *NAMES) == ["hidden", "hidden", "hidden"]
    (folder / "new").write_text("what it says now\n", encoding="utf-8")
    (folder / "new").replace(folder / "secret.toml")
    assert reads(router, "secret.toml", "link.toml", "plain.md") == ["hidden", "hidden", ""]


def test_records_and_tokens_of_servers_are_hidden_from_the_first_call_on(router: Router) -> None:
    assert reads(
        router, "runs/notes.txt", "runs/r/run.json", "state/of-a-server.json", "plain.md"
    ) == [
        *["hidden"] * 3,
        "",
    ]
