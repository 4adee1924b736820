"""Editing a config as a service: said before it is saved, saved whole or not at all, kept,
undone.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from bundle_router import Router, Step
from bundle_router.errors import ConfigError, RequestError, StorageError
from bundle_router.wiring.stores import open_archive
from bundle_router.workbench.config_editing import ConfigConflict, ConfigEditor, WideningRefused

from tests.command_line import ROOT

WIDER = ('allow = ["bundle:repo.readonly", "bundle:docs.fetch"]\neffects = ["read", "network"]\n\n# Only',
         'allow = ["bundle:repo.readonly", "bundle:docs.fetch", "bundle:workspace.exec"]\n\n# Only')  # fmt: skip
NARROWER = (
    'name = "reviewers read"',
    'name = "reviewers read"  # for now\ndeny = ["bundle:docs.fetch"]',
)


@pytest.fixture
def editor(tmp_path: Path) -> ConfigEditor:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    return ConfigEditor(tmp_path / "config")


def text_of(editor: ConfigEditor, name: str = "policy.toml") -> str:
    return (editor.folder / name).read_text(encoding="utf-8")


def edited(editor: ConfigEditor, change: tuple[str, str]) -> dict[str, str]:
    text = text_of(editor)
    assert text.count(change[0]) == 1
    return {"policy.toml": text.replace(*change)}


def opened(editor: ConfigEditor) -> dict[str, str]:
    return {file.name: file.digest for file in editor.files()}


def test_what_is_wrong_is_said_with_line_and_column_and_nothing_is_saved(
    editor: ConfigEditor,
) -> None:
    drafts = {
        "routes.toml": (
            text_of(editor, "routes.toml").replace('"repo.readonly"', '"repo.readnly"', 1)
        )
    }
    (problem,) = [one for one in editor.validate(drafts) if one.level == "error"]
    assert "unknown bundle 'repo.readnly'" in problem.message
    assert problem.suggestion == "did you mean 'repo.readonly'?"
    line = drafts["routes.toml"].splitlines()[problem.line - 1]
    assert line[problem.column - 1 :].startswith('"repo.readnly"')
    assert not editor.preview(drafts).valid
    before = text_of(editor, "routes.toml")
    with pytest.raises(ConfigError):
        editor.save(drafts, opened(editor), by="ann")
    assert text_of(editor, "routes.toml") == before
    assert editor.changes() == []


def test_a_narrowing_is_saved_with_its_comments_and_kept(editor: ConfigEditor) -> None:
    drafts = edited(editor, NARROWER)
    diff = editor.preview(drafts).privileges
    assert diff is not None
    assert {row.kind for row in diff.rows} == {"narrowing"}
    change = editor.save(drafts, opened(editor), by="ann", reason="until the hosts are reviewed")
    assert text_of(editor) == drafts["policy.toml"]
    assert list(editor.changes()) == [change]
    assert (change.by, change.reason, change.widening) == (
        "ann",
        "until the hosts are reviewed",
        (),
    )


def test_a_widening_needs_a_reason_and_the_widening_that_was_shown(editor: ConfigEditor) -> None:
    drafts, before = edited(editor, WIDER), text_of(editor)
    diff = editor.preview(drafts).privileges
    assert diff is not None
    for reason, acknowledged in (
        ("", diff.widening_digest),
        ("they test", ""),
        ("they test", "sha256:0"),
    ):
        with pytest.raises(WideningRefused) as refused:
            editor.save(drafts, opened(editor), by="ann", reason=reason, acknowledged=acknowledged)
        assert refused.value.diff.of("widening")
    assert text_of(editor) == before
    change = editor.save(
        drafts, opened(editor), by="ann", reason="they test", acknowledged=diff.widening_digest
    )
    assert text_of(editor) == drafts["policy.toml"]
    assert change.widening_digest == diff.widening_digest
    assert "workspace.exec" in change.widening[0]
    assert editor.changes()[-1].reason == "they test"


def test_an_acknowledgement_is_for_what_was_shown_and_not_for_what_came_after(
    editor: ConfigEditor,
) -> None:
    shown = editor.preview(edited(editor, WIDER)).privileges
    assert shown is not None
    drafts = {
        "policy.toml": (
            edited(editor, WIDER)["policy.toml"].replace('role = "reviewer"', 'role = "*"')
        )
    }
    with pytest.raises(WideningRefused):
        editor.save(
            drafts, opened(editor), by="ann", reason="they test", acknowledged=shown.widening_digest
        )


def test_a_file_that_somebody_changed_meanwhile_is_not_overwritten(editor: ConfigEditor) -> None:
    digests, drafts = opened(editor), edited(editor, NARROWER)
    path = editor.folder / "policy.toml"
    theirs = text_of(editor) + "\n# theirs\n"
    path.write_text(theirs, encoding="utf-8")
    with pytest.raises(ConfigConflict):
        editor.save(drafts, digests, by="ann")
    assert text_of(editor) == theirs
    with pytest.raises(ConfigConflict):  # a file that was not there when it was opened
        editor.save(drafts, {**digests, "policy.toml": ""}, by="ann")


def test_a_save_is_undone_and_the_undoing_too(editor: ConfigEditor) -> None:
    first, drafts = text_of(editor), edited(editor, NARROWER)
    editor.save(drafts, opened(editor), by="ann")
    with pytest.raises(WideningRefused) as refused:  # to undo a narrowing is to widen
        editor.undo(by="bo")
    shown = editor.undo_preview()
    assert shown is not None
    assert shown.privileges is not None
    assert shown.privileges.widening_digest == refused.value.diff.widening_digest
    editor.undo(by="bo", reason="too much", acknowledged=shown.privileges.widening_digest)
    assert text_of(editor) == first
    editor.undo(by="ann")
    assert text_of(editor) == drafts["policy.toml"]
    assert [change.type for change in editor.changes()] == [
        "config.saved",
        "config.undone",
        "config.undone",
    ]


def test_what_was_changed_since_is_not_undone(editor: ConfigEditor) -> None:
    editor.save(edited(editor, NARROWER), opened(editor), by="ann")
    path = editor.folder / "policy.toml"
    path.write_text(text_of(editor) + "# later\n", encoding="utf-8")
    with pytest.raises(ConfigConflict):
        editor.undo(by="ann", reason="x")


def test_a_file_that_a_save_added_goes_when_it_is_undone(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "router.toml").write_text("[limits]\nrecent_steps = 3\n", encoding="utf-8")
    editor = ConfigEditor(folder)
    text = (ROOT / "config" / "routes.toml").read_text(encoding="utf-8") + "\n# ours\n"
    editor.save({"routes.toml": text}, opened(editor), by="ann")
    assert (folder / "routes.toml").read_text(encoding="utf-8") == text
    editor.undo(by="ann")
    assert not (folder / "routes.toml").exists()


def test_line_ends_and_byte_order_mark_of_a_file_stay(editor: ConfigEditor) -> None:
    path = editor.folder / "policy.toml"
    path.write_bytes(b"\xef\xbb\xbf" + text_of(editor).replace("\n", "\r\n").encode())
    (file,) = [one for one in editor.files() if one.name == "policy.toml"]
    assert "\r" not in file.text
    with pytest.raises(RequestError, match="nothing would change"):  # as a browser sends it back
        editor.save({"policy.toml": file.text.replace("\n", "\r\n")}, opened(editor), by="ann")
    editor.save({"policy.toml": file.text.replace(*NARROWER)}, opened(editor), by="ann")
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf#")
    assert data.count(b"\r\n") == data.count(b"\n") > 10


def test_a_preview_has_the_decisions_it_would_have_changed(
    editor: ConfigEditor, tmp_path: Path
) -> None:
    with Router.open(editor.folder, runs=tmp_path / "runs", workspace=tmp_path) as router:
        for number in range(3):
            router.route_sync(
                Step(run_id=f"r-{number}", workflow="feature", role="reviewer", step="review")
            )
    with_runs = ConfigEditor(editor.folder, runs=open_archive(tmp_path / "runs"))
    preview = with_runs.preview(edited(editor, NARROWER))
    assert preview.behaviour is not None
    (group,) = preview.behaviour.ordered_groups()
    assert (group.decisions, group.counts_by_name("lost bundle")) == (3, [("docs.fetch", 3)])
    assert not preview.replayed_part
    part = with_runs.preview(edited(editor, NARROWER), max_decisions=2)
    assert part.replayed_part
    assert part.behaviour is not None
    assert part.behaviour.decisions == 2


def test_another_folder_is_compared_with_what_is_in_force(
    editor: ConfigEditor, tmp_path: Path
) -> None:
    shutil.copytree(editor.folder, tmp_path / "branch" / "config")
    other = ConfigEditor(tmp_path / "branch" / "config")
    (other.folder / "policy.toml").write_text(
        edited(editor, WIDER)["policy.toml"], encoding="utf-8"
    )
    compared = editor.compare(other.folder)
    assert compared.privileges is not None
    assert compared.privileges.widens
    assert compared.to_json()["widening_digest"] == compared.privileges.widening_digest


def test_where_the_folder_does_not_load_everything_counts_as_new(editor: ConfigEditor) -> None:
    good = text_of(editor)
    (editor.folder / "policy.toml").write_text("policies = 1\n", encoding="utf-8")
    preview = editor.preview({"policy.toml": good})
    assert preview.in_force_invalid
    assert preview.privileges is not None
    assert preview.privileges.widens


@pytest.mark.parametrize(
    "name", ["../policy.toml", "learned/x.toml", "changes.jsonl", "/etc/passwd"]
)
def test_only_the_five_files_can_be_named(editor: ConfigEditor, name: str) -> None:
    with pytest.raises(RequestError, match="not a file of a config"):
        editor.save({name: "x"}, {}, by="ann")


def test_a_disk_that_fails_while_files_are_replaced_leaves_the_old_ones(
    editor: ConfigEditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = text_of(editor)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "policy.toml")

    monkeypatch.setattr("os.fchmod", full)
    with pytest.raises(Exception, match="can't be written"):
        editor.save(edited(editor, NARROWER), opened(editor), by="ann")
    monkeypatch.undo()
    assert text_of(editor) == before
    assert sorted(path.name for path in editor.folder.iterdir() if path.suffix == ".tmp") == []
    assert editor.last_change() is None  # what was kept of it never came about


def test_a_pipe_in_a_files_place_is_refused_and_not_waited_for(editor: ConfigEditor) -> None:
    before = opened(editor)
    (editor.folder / "policy.toml").unlink()
    os.mkfifo(editor.folder / "policy.toml")
    writer = os.open(
        editor.folder / "policy.toml", os.O_RDWR
    )  # or an open that waits would wait for ever
    os.write(writer, b"# of a pipe\n")
    try:
        with pytest.raises(StorageError, match=r"policy\.toml can't be read"):
            editor.save({"policy.toml": "# mine\n"}, before, by="ann")
    finally:
        os.close(writer)
