"""Where no folder for temporary files can be written, as in a container with a read-only root."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.artifact_files import ScratchFolder
from bundle_router.adapters.index import RunIndex
from bundle_router.adapters.private_folders import private_folder
from bundle_router.errors import StorageError


def enter_private_folder(_: Path) -> None:
    with private_folder("bundle-router-test-"):
        pass


def put_file(_: Path) -> None:
    ScratchFolder().put("a.png", b"a")


def read_index(runs: Path) -> None:
    RunIndex(Archive(runs), "sqlite://").run("r-1")


@pytest.fixture
def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tempfile` finds none: root may write in every folder of this machine."""

    def find() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", find)


@pytest.mark.usefixtures("no_temporary_folder")
@pytest.mark.parametrize("use", [enter_private_folder, put_file, read_index])
def test_a_missing_temporary_folder_is_named(use: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no folder for temporary files") as error:
        use(tmp_path)
    assert "TMPDIR" in error.value.advice
