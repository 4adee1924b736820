"""Edits a config folder: previews an edit, saves it with a reason, and undoes it.

Rules:
1. An edit is not saved if it does not load, if the file changed since it was opened (by digest), or
   if it widens anyone's privileges without a reason and the digest of the shown widening.
2. Text is kept as typed: comments, order, layout. The file's line ends and byte order mark stay.
3. The change, with the replaced texts, is written to `changes.jsonl` before the files. So an
   interrupted save can be undone like any other. Undoing is an edit: it may widen too.
4. A request supplies texts for the five file names, nothing else.
5. A risk that stands in the config is accepted once, with a reason, by a line of the journal. That
   changes no file and permits nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bundle_router.core.catalog import Catalog
from bundle_router.core.config.config_changes import (
    ChangeType,
    ConfigChange,
    FileChange,
    acceptances,
    risk_words,
    row_names,
)
from bundle_router.core.config.config_text import (
    FILE_NAMES,
    MAX_BYTES,
    ConfigFile,
    Layer,
    from_bytes,
)
from bundle_router.errors import (
    ConfigError,
    CorruptRun,
    Problem,
    RequestError,
    UnknownRun,
    storage_error,
)
from bundle_router.review.behaviour import Behaviour, Cause
from bundle_router.review.config_edits import ConfigEdit, config_edits
from bundle_router.review.edit_places import Places, edit_places
from bundle_router.review.privileges import PrivilegeDiff, privilege_diff
from bundle_router.review.privileges.privilege_rows import widening_words
from bundle_router.wiring.catalogs import (
    LocalServers,
    declared_files,
    local_cards,
    with_learned,
    with_reviewed,
)
from bundle_router.wiring.stores import RunPlace, open_archive
from bundle_router.workbench.config_folders import open_replays

if TYPE_CHECKING:
    from bundle_router.adapters.archive import RunArchive

MAX_DECISIONS: Final = 5_000
"""Decisions of the newest runs that a preview replays. `replay --config` replays all."""
_BOM: Final = b"\xef\xbb\xbf"

Drafts = Mapping[str, str]
"""New texts by file name. Files that are not named stay."""


class ConfigConflict(RequestError):
    """The file was changed since it was opened; nothing was saved."""


class WideningRefused(RequestError):
    """The edit widens privileges, and that was not acknowledged; nothing was saved.

    `diff` is the widening.
    """

    def __init__(self, message: str, diff: PrivilegeDiff, *, advice: str = "") -> None:
        super().__init__(message, advice=advice)
        self.diff = diff


@dataclass(frozen=True, slots=True)
class EditableFile:
    """One file of the folder, as text with `\\n`.

    `digest` is of its bytes. Where the file does not exist, both are empty and the shipped file is
    in force.
    """

    name: str
    text: str
    digest: str
    shipped: str


@dataclass(frozen=True, slots=True)
class Preview:
    """The effects of an edit.

    If `problems` has an error, the rest is None. `behaviour` is None where no run was replayed.
    `replayed_part`: there are more decisions than were replayed. `in_force_invalid`: the present
    folder does not load, so everything counts as new. `edits` lead from the present config to the
    edited one; decisions that were recorded under an older config may differ by others, too.
    """

    problems: tuple[Problem, ...]
    privileges: PrivilegeDiff | None = None
    behaviour: Behaviour | None = None
    places: Mapping[tuple[str, str], str] | None = None
    replayed_part: bool = False
    unread_runs: tuple[str, ...] = ()
    in_force_invalid: bool = False
    edits: tuple[ConfigEdit, ...] = ()

    def is_cause(self, cause: Cause) -> bool:
        """Return whether the edits have a part in a cause, or may have."""
        edited = {edit.place for edit in self.edits}
        return (
            self.in_force_invalid
            or not cause.known
            or any(edit.place in edited for edit in cause.edits)
        )

    @property
    def valid(self) -> bool:
        """Whether the edited config loads."""
        return all(problem.level != "error" for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        places = self.places or {}
        return {
            "valid": self.valid,
            "problems": [problem_json(problem) for problem in self.problems],
            "privileges": self.privileges.to_json(places) if self.privileges is not None else None,
            "widening_digest": self.privileges.widening_digest
            if self.privileges is not None
            else "",
            "behaviour": self.behaviour.to_json(places) if self.behaviour is not None else None,
            "replayed_part": self.replayed_part,
            "unread_runs": list(self.unread_runs),
        }


class _Editor(NamedTuple):
    """Who edits, why, and the digest of the widening that was acknowledged."""

    name: str
    reason: str
    acknowledged: str


def _check_widening(diff: PrivilegeDiff, who: _Editor) -> None:
    """Raise WideningRefused unless the editor acknowledged just this widening, with a reason."""
    message = "the edit widens what steps may have"
    if not who.reason:
        message += ", and no reason is given"
    elif who.acknowledged == diff.widening_digest:
        return
    raise WideningRefused(message, diff, advice="read what it widens, acknowledge it, and say why")


def problem_json(problem: Problem) -> dict[str, Any]:
    """Return a problem, with its place, as JSON values."""
    names = ("file", "line", "column", "path", "message", "suggestion", "level", "rule")
    return {name: getattr(problem, name) for name in names}


class ConfigEditor:
    """Edits one config folder.

    `runs`: where recorded decisions are read; without it nothing is replayed. `local`: the host's
    tools (see `Router.open`). Safe to share between threads; each method reads the folder again.
    """

    def __init__(
        self,
        config: str | Path,
        *,
        runs: RunArchive | None = None,
        local: LocalServers | None = None,
    ) -> None:
        self.folder = Path(config)
        self._runs = runs
        self._local = local
        self._cards = local_cards(local)[1]

    # --- reading ----------------------------------------------------------------------------------

    def files(self) -> tuple[EditableFile, ...]:
        """Return the five files. Raises ConfigError where the folder can't be read."""
        from bundle_router.adapters.config_files import shipped_folder

        read = self._read()
        rows = []
        for name in FILE_NAMES:
            shipped = (shipped_folder() / name).read_text(encoding="utf-8")
            data = read.get(name)
            text = from_bytes(name, name, data, "project").text if data is not None else ""
            rows.append(EditableFile(name, text, _digest(data), shipped))
        return tuple(rows)

    def changes(self) -> list[ConfigChange]:
        """Return the recorded changes, oldest first. Raises RequestError."""
        from bundle_router.adapters.config_journal import read_changes

        return read_changes(self.folder)

    def validate(self, drafts: Drafts) -> tuple[Problem, ...]:
        """Return the problems that the config would have with these texts: errors, dead entries and
        risks.
        """
        from bundle_router.adapters.config_files import read_content
        from bundle_router.core.exposure.skills import MAX_BYTES
        from bundle_router.review.lint import check
        from bundle_router.wiring.shipped import binary_problems

        def read_skill(name: str) -> str | None:
            return read_content(self.folder, name, MAX_BYTES)

        files = self._files(drafts)
        return tuple(
            check(files, cards=self._cards, check_binary=binary_problems, read_content=read_skill)
        )

    def preview(self, drafts: Drafts, *, max_decisions: int = MAX_DECISIONS) -> Preview:
        """Return the effects of the drafts, compared with the present folder."""
        return self._preview(self, drafts, max_decisions)

    def compare(self, folder: Path, *, max_decisions: int = MAX_DECISIONS) -> Preview:
        """Return the effects of putting another folder (a branch that was checked out elsewhere) in
        force here.
        """
        return self._preview(ConfigEditor(folder, local=self._local), {}, max_decisions)

    def _preview(self, of: ConfigEditor, drafts: Drafts, most: int) -> Preview:
        problems = of.validate(drafts)
        if any(problem.level == "error" for problem in problems):
            return Preview(problems)
        new, places = of._catalog(of._files(drafts))
        return self._compare_drafts(problems, new, places, most)

    def _compare_drafts(
        self, problems: tuple[Problem, ...], new: Catalog, places: Places, most: int
    ) -> Preview:
        old = self._in_force()
        diff = privilege_diff(old or Catalog(), new)
        edits = config_edits(old, new) if old is not None else ()
        preview = Preview(problems, diff, None, places, in_force_invalid=old is None, edits=edits)
        if self._runs is None or most <= 0:
            return preview
        behaviour, part, unread = _replay_newest(self._runs, new, most)
        return replace(preview, behaviour=behaviour, replayed_part=part, unread_runs=unread)

    # --- writing ----------------------------------------------------------------------------------

    def save(
        self,
        drafts: Drafts,
        opened: Mapping[str, str],
        *,
        by: str,
        reason: str = "",
        acknowledged: str = "",
    ) -> ConfigChange:
        """Save the drafts.

        `opened` has each file's digest when it was opened. `acknowledged` is the digest of the
        shown widening (`PrivilegeDiff.widening_digest`), and needs a `reason`.

        Raises ConfigConflict, ConfigError, WideningRefused, RequestError, StorageError; then
        nothing has changed.
        """
        return self._save(
            "config.saved", dict(drafts), opened, _Editor(by, reason.strip(), acknowledged)
        )

    def undo(self, *, by: str, reason: str = "", acknowledged: str = "") -> ConfigChange:
        """Restore the texts that the last change replaced. A second undo makes the change again.

        Raises as `save` does; ConfigConflict where a file was changed otherwise since.
        """
        last = self.last_change()
        if last is None:
            raise RequestError("there is no change of these files to undo")
        opened = {file.name: file.after_sha256 for file in last.files}
        drafts = {file.name: file.before for file in last.files}
        return self._save(
            "config.undone", drafts, opened, _Editor(by, reason.strip(), acknowledged)
        )

    def present_risks(self) -> Mapping[str, ConfigChange | None]:
        """Return the risks of the present config by their words, each with the change by which it
        was accepted (None: nobody did).
        """
        changes = acceptances(self.changes())
        return {words: changes.get(words) for words in self.risk_words({}, self.validate({}))}

    def risk_words(self, drafts: Drafts, problems: Sequence[Problem]) -> Mapping[str, Problem]:
        """Return the risks among the problems that the config has with these texts, by the words
        that name them for good.
        """
        rows = row_names(file.text for file in self._files(drafts) if file.layer == "project")
        risks = [problem for problem in problems if problem.level == "risk"]
        return {risk_words(problem, rows): problem for problem in risks}

    def accept_risks(self, words: Sequence[str], *, by: str, reason: str) -> ConfigChange:
        """Record that somebody means these risks of the present config, and return the change.

        Raises RequestError without a reason, without a risk, and for one that does not stand there.
        """
        from bundle_router.adapters.config_journal import JournaledEdit, make_edit

        if not reason.strip():
            raise RequestError("no reason is given", advice="say why these risks are meant")

        def judge() -> JournaledEdit[ConfigChange]:
            risks = self.present_risks()
            if not words or any(risk not in risks for risk in words):
                raise RequestError(
                    "these are not risks of the present config", advice="look at them again"
                )
            present = self._in_force() or Catalog()
            change = ConfigChange(
                type="risks.accepted",
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                by=by,
                reason=reason.strip(),
                old_revision=present.revision,
                new_revision=present.revision,
                risks=tuple(dict.fromkeys(words)),
            )
            return JournaledEdit(change, lambda: change)

        return make_edit(self.folder, judge)

    def last_change(self) -> ConfigChange | None:
        """Return the change that `undo` undoes: the last one that reached the files.

        `changes()` also has those that a failing disk or a crash interrupted.
        """
        contents = self._read()
        for change in reversed(self.changes()):
            old_digests = [file.before_sha256 for file in change.files]
            new_digests = [_digest(contents.get(file.name)) for file in change.files]
            if new_digests != old_digests:
                return change
        return None

    def undo_preview(self) -> Preview | None:
        """Return the effects of `undo`, without a replay; None where there is nothing to undo."""
        last = self.last_change()
        if last is None:
            return None
        try:
            new, places = self._catalog(
                self._files({file.name: file.before for file in last.files})
            )
        except ConfigError as wrong:
            return Preview(wrong.problems)
        return self._compare_drafts((), new, places, 0)

    def _save(
        self,
        what: ChangeType,
        drafts: Mapping[str, str | None],
        opened: Mapping[str, str],
        who: _Editor,
    ) -> ConfigChange:
        from bundle_router.adapters.config_journal import JournaledEdit, make_edit

        def judge() -> JournaledEdit[ConfigChange]:
            read = self._read()
            data = self._changed_bytes(read, drafts, opened)
            change = self._judge(what, read, data, {name: drafts[name] for name in data}, who)

            def write() -> ConfigChange:
                self._write(data)
                return change

            return JournaledEdit(change, write)

        return make_edit(self.folder, judge)

    def _changed_bytes(
        self,
        read: Mapping[str, bytes],
        drafts: Mapping[str, str | None],
        opened: Mapping[str, str],
    ) -> dict[str, bytes | None]:
        """Return the new bytes of the files that differ from what was read.

        Raises ConfigConflict where a file is not as it was opened, RequestError where none differs.
        """
        for name in drafts:
            if opened.get(name, "") != _digest(read.get(name)):
                raise ConfigConflict(
                    f"{name} was changed since it was opened",
                    advice="open it again, and make your edit in what is there now",
                )

        data = {name: _bytes(text, read.get(name)) for name, text in drafts.items()}
        changed = {name: new for name, new in data.items() if new != read.get(name)}
        if not changed:
            raise RequestError("nothing would change", advice="the files say this already")
        return changed

    def _judge(
        self,
        what: ChangeType,
        read: Mapping[str, bytes],
        data: Mapping[str, bytes | None],
        drafts: Mapping[str, str | None],
        who: _Editor,
    ) -> ConfigChange:
        """Return the change for the journal. Raises ConfigError, WideningRefused."""
        new, _ = self._catalog(self._files(drafts))
        old = self._in_force() or Catalog()
        diff = privilege_diff(old, new)
        if diff.widens:
            _check_widening(diff, who)

        return ConfigChange(
            type=what,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            by=who.name,
            reason=who.reason,
            old_revision=old.revision,
            new_revision=new.revision,
            widening=widening_words(diff),
            widening_digest=diff.widening_digest if diff.widens else "",
            files=tuple(
                FileChange(name, _digest(read.get(name)), _digest(new_bytes), _text(read.get(name)))
                for name, new_bytes in data.items()
            ),
        )

    def _write(self, data: Mapping[str, bytes | None]) -> None:
        from bundle_router.adapters.text_files import replace_texts

        replace_texts(
            {
                self.folder / name: text.decode("utf-8")
                for name, text in data.items()
                if text is not None
            }
        )
        for name, text in data.items():
            if text is None:
                (self.folder / name).unlink(missing_ok=True)

    # --- the folder -------------------------------------------------------------------------------

    def _read(self) -> dict[str, bytes]:
        """Return the bytes of the existing files."""
        from bundle_router.adapters.text_files import read_within

        contents = {}
        for name in FILE_NAMES:
            try:
                contents[name] = read_within(self.folder, self.folder / name, MAX_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise storage_error(f"{self.folder / name} can't be read", error) from error
        return contents

    def _files(self, drafts: Mapping[str, str | None]) -> list[ConfigFile]:
        """Return the config files with the drafts in place of their texts (None: the file is
        deleted).
        """
        from bundle_router.adapters.config_files import read_config

        unknown = sorted(set(drafts) - set(FILE_NAMES))
        if unknown:
            raise RequestError(
                f"{unknown[0][:80]!r} is not a file of a config",
                advice=f"they are {', '.join(FILE_NAMES)}",
            )
        files = [*declared_files(self._local), *read_config(self.folder)]
        layer: Layer = "shipped" if all(file.layer == "shipped" for file in files) else "project"
        result = [file for file in files if file.layer != layer or file.name not in drafts]
        for name, text in drafts.items():
            if text is None:
                continue
            path = self.folder / name
            if text.strip() or path.exists():
                data = _normalise_text(text).encode("utf-8", "replace")
                result.append(from_bytes(name, str(path), data, layer))
        return result

    def _catalog(self, files: Sequence[ConfigFile]) -> tuple[Catalog, Places]:
        """Return the catalog of the files, as a router opens it, and the places of its entries."""
        from bundle_router.core.config.resolve import resolve
        from bundle_router.wiring.shipped import binary_problems

        resolved = resolve(files, self._cards, binary_problems)
        if resolved.report.has_errors:
            raise ConfigError(
                [problem for problem in resolved.report.problems() if problem.level == "error"]
            )
        catalog = with_reviewed(self.folder, resolved.catalog)[0]
        return with_learned(self.folder, catalog)[0], edit_places(resolved.written)

    def _in_force(self) -> Catalog | None:
        """Return the folder's present catalog; None where it does not load: then everything is
        newly allowed.
        """
        try:
            return self._catalog(self._files({}))[0]
        except ConfigError:
            return None


def _replay_newest(
    archive: RunArchive, new: Catalog, most: int
) -> tuple[Behaviour, bool, tuple[str, ...]]:
    """Replay the decisions of the newest runs.

    Return their changes, whether there are more, and the broken runs.
    """
    replays = open_replays(archive, new, 5)
    behaviour = Behaviour(5)
    unread: list[str] = []
    ids = [run.run_id for run in archive.runs()]
    for position, run_id in enumerate(ids):
        if behaviour.decisions >= most:
            return behaviour, position < len(ids), tuple(unread)
        try:
            behaviour.merge(replays.replay_run(run_id, lambda _done: None).behaviour)
        except (CorruptRun, UnknownRun):  # the latter was pruned meanwhile
            unread.append(run_id)
    return behaviour, False, tuple(unread)


def _digest(data: bytes | None) -> str:
    if data is None:
        return ""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _normalise_text(text: str) -> str:
    """Return text from a browser or an editor with one kind of line end."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bytes(text: str | None, before: bytes | None) -> bytes | None:
    """Return a text's bytes, with the line ends and byte order mark that the file had.

    A file that ended with a line break does so afterwards, too: one that has lost it may be half
    written, and a router that runs would not take it.
    """
    if text is None:
        return None
    normal = _normalise_text(text).removeprefix("\ufeff")
    if before is None:
        return normal.encode("utf-8", "replace")

    if before.endswith(b"\n") and normal and not normal.endswith("\n"):
        normal += "\n"
    if b"\r\n" in before:
        normal = normal.replace("\n", "\r\n")
    mark = _BOM if before.startswith(_BOM) else b""
    return mark + normal.encode("utf-8", "replace")


def open_editor(
    config: str | Path, runs: RunPlace, *, local: LocalServers | None = None
) -> ConfigEditor:
    """Return an editor whose previews replay the decisions of a folder of runs, or of a store."""
    return ConfigEditor(config, runs=open_archive(runs), local=local)
