"""An edit of a config folder that has its line in the journal (`adapters.config_journal`)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from bundle_router.adapters.config_journal import JournaledEdit, make_edit, read_changes
from bundle_router.core.config.config_changes import ConfigChange

CHANGE = ConfigChange(
    "config.saved", "2026-11-29T03:00:00+00:00", "ada", "a test", "sha256:a", "sha256:b"
)


def test_the_journal_has_its_line_before_the_files_are_written(tmp_path: Path) -> None:
    def write() -> str:
        assert read_changes(tmp_path) == [CHANGE]
        return "written"

    assert make_edit(tmp_path, lambda: JournaledEdit(CHANGE, write)) == "written"


def test_a_line_stands_though_its_files_could_not_be_written(tmp_path: Path) -> None:
    def write() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        make_edit(tmp_path, lambda: JournaledEdit(CHANGE, write))
    assert read_changes(tmp_path) == [CHANGE]


def test_an_edit_that_is_refused_leaves_no_line(tmp_path: Path) -> None:
    def judge() -> JournaledEdit[None]:
        raise ValueError("it widens")

    with pytest.raises(ValueError, match="it widens"):
        make_edit(tmp_path, judge)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_locked_while_an_edit_is_judged_and_written(tmp_path: Path) -> None:
    def is_locked() -> bool:
        other = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(other)
        return False

    def judge() -> JournaledEdit[bool]:
        assert is_locked()
        return JournaledEdit(CHANGE, is_locked)

    assert make_edit(tmp_path, judge)
    assert not is_locked()
