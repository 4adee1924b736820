"""An edit of a config folder that has its line in the journal (`adapters.config_journal`), and edits
that a service finds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from bundle_router.adapters.config_journal import JournaledEdit, make_edit, read_changes
from bundle_router.core.catalog import Catalog
from bundle_router.core.config.config_changes import ConfigChange
from bundle_router.wiring.catalogs import load_catalog
from bundle_router.workbench.config_editing import ConfigEditor
from bundle_router.workbench.found_edits import FILE, NOT_COMPARED, FoundEdits

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


# --- edits that nobody recorded --------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
REVIEWERS = """role = "reviewer"
allow = ["bundle:repo.readonly", "bundle:docs.fetch"]
effects = ["read", "network"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return Path(shutil.copytree(ROOT / "config", tmp_path / "config"))


def edited(config: Path) -> tuple[Catalog, Catalog]:
    """The config before and after an edit in an editor, which lets reviewers run programs."""
    before = load_catalog(config)
    policy = config / "policy.toml"
    text = policy.read_text(encoding="utf-8")
    assert REVIEWERS in text
    policy.write_text(
        text.replace(REVIEWERS, 'role = "reviewer"\nallow = ["bundle:*"]\n'), encoding="utf-8"
    )
    return before, load_catalog(config)


def test_an_edit_that_nobody_recorded_is_kept_beside_the_runs_with_what_it_widened(
    config: Path, tmp_path: Path
) -> None:
    before, after = edited(config)
    FoundEdits(config, tmp_path / "runs").note(before, after)
    (found,) = FoundEdits(config, tmp_path / "runs").changes()
    assert (found.type, found.old_revision, found.new_revision) == (
        "edit.found",
        before.revision,
        after.revision,
    )
    assert any("workspace.exec" in line for line in found.widening)
    assert (tmp_path / "runs" / FILE).is_file()
    assert not (config / "changes.jsonl").exists(), "the config folder is left alone"


def test_a_change_that_was_saved_here_is_not_found_a_second_time(
    config: Path, tmp_path: Path
) -> None:
    before = load_catalog(config)
    editor = ConfigEditor(config)
    (policy,) = [file for file in editor.files() if file.name == "policy.toml"]
    text = policy.text.replace(REVIEWERS, REVIEWERS.replace(', "network"', ""))
    editor.save({"policy.toml": text}, {"policy.toml": policy.digest}, by="ann", reason="narrower")
    edits = FoundEdits(config, tmp_path / "runs")
    edits.note(before, load_catalog(config))
    assert [change.by for change in read_changes(config)] == ["ann"]
    assert edits.changes() == []


def test_an_edit_made_while_no_service_ran_is_found_when_it_starts(
    config: Path, tmp_path: Path
) -> None:
    edits = FoundEdits(config, tmp_path / "runs")
    edits.note_start(load_catalog(config))
    assert edits.changes() == [], "there is nothing that it could differ from"
    before, after = edited(config)
    edits.note(before, after)
    edits.note_start(after)
    assert len(edits.changes()) == 1
    edits.note_start(before)
    assert edits.changes()[-1].widening == (NOT_COMPARED,)


def test_without_a_folder_of_runs_it_is_known_while_the_process_lives(config: Path) -> None:
    before, after = edited(config)
    edits = FoundEdits(config, None)
    edits.note(before, after)
    assert [change.new_revision for change in edits.changes()] == [after.revision]
    assert FoundEdits(config, None).changes() == []
