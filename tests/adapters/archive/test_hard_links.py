"""Files of a run that are hard links to files elsewhere: nothing that the router writes changes
those.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive.head_files import FolderHeads
from bundle_router.cli import main
from bundle_router.errors import RouterError, StorageError
from bundle_router.service.tokens import AccessTokens
from bundle_router.tool import LocalServer

CONFIG = {
    "routes.toml": '[[routes]]\nname = "all"\nbundles = ["mail"]\n',
    "policy.toml": '[[policies]]\nname = "all"\nallow = ["bundle:mail"]\n',
}


def inbox(lines: int = 1) -> str:
    """Read the mail."""
    return "a line of the mail\n" * lines


def open_router(folder: Path, settings: str = "") -> Router:
    config = folder / "config"
    config.mkdir(exist_ok=True)
    for name, text in {**CONFIG, "router.toml": settings}.items():
        (config / name).write_text(text or "# as shipped\n", encoding="utf-8")
    local = {"mail": LocalServer([inbox], "Mail.", effects=["read"])}
    return Router.open(config, runs=folder / "runs", local=local, workspace=folder)


def use(router: Router, lines: int = 1) -> None:
    router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
    assert router.call_sync("r", "mail.inbox", {"lines": lines}).ok


def plant(path: Path, text: bytes | None = None) -> Path:
    """Put a hard link in place of a file, to a file elsewhere of the same content (or `text`)."""
    content = path.read_bytes() if text is None else text
    elsewhere = path.parents[2] / f"elsewhere-{path.name}"
    elsewhere.write_bytes(content)
    elsewhere.chmod(0o600)
    path.unlink(missing_ok=True)
    os.link(elsewhere, path)
    return elsewhere


@pytest.mark.parametrize("durability", ["process", "disk"])
@pytest.mark.parametrize(
    "name", ["routing.jsonl", "tool-calls.jsonl", "lock", "run.json", "catalog.json"]
)
@pytest.mark.parametrize("is_torn", [False, True])
def test_no_file_of_a_run_that_is_a_hard_link_is_written_to(
    tmp_path: Path, name: str, durability: str, is_torn: bool
) -> None:
    settings = f'[log]\ndurability = "{durability}"\n'
    with open_router(tmp_path, settings) as router:
        use(router)
    path = tmp_path / "runs" / "r" / name
    torn = b'{"type":"rou' if is_torn and name.endswith("l") else b""
    elsewhere = plant(path, path.read_bytes() + torn)
    before = elsewhere.read_bytes()
    if name.endswith(".json"):  # these are replaced: the link goes, and the file elsewhere stays
        with open_router(tmp_path, settings) as router:
            use(router)
    else:
        with (
            pytest.raises(StorageError, match="hard link") as refused,
            open_router(tmp_path, settings) as router,
        ):
            use(router)
        assert "copy" in refused.value.advice
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("name", ["routing.jsonl", "tool-calls.jsonl"])
def test_a_link_that_was_planted_before_its_run_began_is_refused(tmp_path: Path, name: str) -> None:
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True, mode=0o700)
    (tmp_path / "runs").chmod(0o700)
    elsewhere = plant(run / name, b"precious\n")
    with open_router(tmp_path) as router, pytest.raises(RouterError):
        use(router)
    assert elsewhere.read_bytes() == b"precious\n"


def test_what_is_replaced_is_written_beside_through_no_planted_link(tmp_path: Path) -> None:
    with open_router(tmp_path) as router:
        use(router)
        elsewhere = plant(tmp_path / "runs" / "r" / "run.json.new", b"precious\n")
        with pytest.raises(StorageError, match="hard link"):
            router.close_run_sync("r")
    assert elsewhere.read_bytes() == b"precious\n"


def test_no_head_label_index_or_token_file_that_is_a_hard_link_is_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_router(tmp_path) as router:
        use(router)
    run, runs = tmp_path / "runs" / "r", tmp_path / "runs"
    labels = plant(run / "labels.jsonl", b"")
    label = ["learn", "label", "r", "0", "--needed", "mail", "--runs", str(runs)]
    assert main(label) != 0
    for folder in ("heads", "new"):
        (runs / folder).mkdir()
    head = plant(runs / "heads" / "r.head", b"precious\n")
    with pytest.raises(StorageError, match="hard link"):
        FolderHeads(runs / "heads").note("r", 1, "sha256:0")
    index = plant(runs / "new" / "index.sqlite", b"")
    index_url = f"sqlite:///{runs / 'new' / 'index.sqlite'}"
    assert main(["runs", "index", "--runs", str(runs), "--url", index_url]) != 0
    tokens = plant(run / "tokens.toml", b"")
    with pytest.raises(StorageError, match="hard link"):
        AccessTokens(run / "tokens.toml").add("engine", ["route"])
    assert "hard link" in capsys.readouterr().err
    assert [path.read_bytes() for path in (labels, head, index, tokens)] == [
        b"",
        b"precious\n",
        b"",
        b"",
    ]


@pytest.mark.parametrize("name", ["index.sqlite", ".index.sqlite"])
@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("is_there", [True, False], ids=["beside an index", "before there is one"])
def test_what_sqlite_writes_beside_an_index_is_no_hard_link_either(
    tmp_path: Path, name: str, ending: str, is_there: bool
) -> None:
    with open_router(tmp_path) as router:
        use(router)
    runs = tmp_path / "runs"
    list_and_index = (["runs", "list"], ["runs", "stats"], ["runs", "index"])
    for words in list_and_index if is_there else ():
        assert main([*words, "--runs", str(runs)]) == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious\n")
    (runs / f"{name}{ending}").unlink(missing_ok=True)
    os.link(elsewhere, runs / f"{name}{ending}")
    for words in list_and_index:
        main([*words, "--runs", str(runs)])
    assert elsewhere.read_bytes() == b"precious\n"


def test_artifacts_that_runs_share_as_hard_links_are_read_and_shared_on(tmp_path: Path) -> None:
    with open_router(tmp_path) as router:
        use(router, 2_000)
        router.route_sync(Step(run_id="other", workflow="w", role="r", step="s"))
        for _ in range(2):
            result = router.call_sync("other", "mail.inbox", {"lines": 2_000})
            uri = result.artifacts[0].uri
            assert router.artifact("r", uri) == router.artifact("other", uri)
    (stored,) = (tmp_path / "runs" / "r" / "artifacts").rglob(uri.rpartition(":")[2])
    assert stored.stat().st_nlink == 3, "one for each run, and the one that they share"
