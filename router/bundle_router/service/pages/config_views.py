"""The values of the pages about the config: for templates, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bundle_router.core.catalog.step_address import part_names
from bundle_router.core.config.config_changes import ConfigChange
from bundle_router.core.config.config_text import FILE_NAMES
from bundle_router.core.config.problem_report import excerpt_lines
from bundle_router.core.servers.admission.cleaning import reveal
from bundle_router.core.values.canonical import digest
from bundle_router.errors import ConfigError, Problem, RequestError, RouterError
from bundle_router.review.behaviour import CHANGE_KINDS, Behaviour, edited_words, edits_as_words
from bundle_router.review.privileges import EFFECT_SIGNS, Kind, PrivilegeDiff, sentence
from bundle_router.review.privileges.privilege_rows import PrivilegeRow
from bundle_router.service.pages.documentation import entry_of_key
from bundle_router.service.pages.queries import Query, first
from bundle_router.service.pages.rendering import PageContent
from bundle_router.workbench.config_editing import (
    ConfigConflict,
    ConfigEditor,
    Preview,
    problem_json,
)
from bundle_router.workbench.found_edits import FoundEdits
from bundle_router.workbench.pin_approval import PinApproval, ShownReview
from bundle_router.workbench.server_reviews import json_of

Risks = Mapping[Problem, tuple[str, ConfigChange | None]]
"""Risks that stand, each with the words that name it, and the change by which it was accepted."""
MAX_ROWS: Final = 60
"""Maximum rows of each kind on a page; JSON has all."""
MAX_CHANGES: Final = 50
_KINDS: Final[tuple[tuple[Kind, str, str], ...]] = (
    ("widening", "+", "Newly allowed"),
    ("narrowing", "−", "Taken away"),
    ("neutral", "~", "Otherwise"),
)


def text_digest(text: str) -> str:
    """Return the digest of a text, independent of the line ends that a browser sends."""
    return digest(text.replace("\r\n", "\n"))


class ConfigViews:
    """Makes the pages of one config folder. `others`: folders to compare with, by name."""

    def __init__(
        self,
        editor: ConfigEditor,
        others: Mapping[str, Path],
        approval: PinApproval | None,
        edits: FoundEdits | None = None,
    ) -> None:
        self._editor = editor
        self._edits = edits
        self._others = others
        self._approval = approval
        self.where = str(editor.folder)

    def config(self, file: str, *, saved: str = "") -> PageContent:
        """Return the editor of one file, with the problems of the present config."""
        return self._editing(file or FILE_NAMES[0], None, self._editor.validate({}), saved=saved)

    def problems(self, file: str, text: str) -> PageContent:
        """Return the problems of a text while it is typed, as a part of the page."""
        problems = self._editor.validate({file: text})
        texts = {self._path(file): text}
        risks = self._risks({file: text}, problems)
        values = {"problems": _problem_rows(problems, texts, risks)}
        return PageContent(
            "config_problems.html", values, [problem_json(problem) for problem in problems]
        )

    def preview(self, form: Query, *, refused: RouterError | None = None) -> PageContent:
        """Return the effects of an edited text, with the text as typed and the form to save it."""
        file = first(form, "file")
        text = first(form, "text").replace("\r\n", "\n")
        preview = self._editor.preview({file: text})
        values = {
            "reason": first(form, "reason"),
            "digest": first(form, "digest"),
            "compared": text_digest(text),
        }
        page = self._editing(file, text, preview.problems, preview=preview, refused=refused)
        if isinstance(refused, ConfigConflict):
            status = 409
        elif refused is not None:
            status = 422
        else:
            status = 200
        return PageContent(page.template, {**page.values, **values}, page.json, status)

    def draft(self, form: Query, *, refused: RouterError | None = None) -> PageContent:
        """Return the page that a form was sent from, with the text as typed: its effects, if it
        showed these.
        """
        if first(form, "compared"):
            return self.preview(form, refused=refused)
        file = first(form, "file")
        text = first(form, "text").replace("\r\n", "\n")
        page = self._editing(file, text, self._editor.validate({file: text}), refused=refused)
        values = {**page.values, "digest": first(form, "digest")}
        return PageContent(page.template, values, page.json, 422 if refused is not None else 200)

    def _editing(
        self,
        file: str,
        text: str | None,
        problems: Sequence[Problem],
        *,
        preview: Preview | None = None,
        refused: RouterError | None = None,
        saved: str = "",
    ) -> PageContent:
        files = {row.name: row for row in self._editor.files()}
        edited = files.get(file)
        if edited is None:
            raise RequestError(
                f"{file[:80]!r} is not a file of a config",
                advice=f"they are {', '.join(FILE_NAMES)}",
            )

        draft = text
        if draft is None:
            draft = edited.text
        shown_preview = None
        if preview is not None:
            shown_preview = preview.to_json()
        facts = {
            "folder": self.where,
            "files": [
                {"name": row.name, "digest": row.digest, "text": row.text} for row in files.values()
            ],
            "problems": [problem_json(problem) for problem in problems],
            "preview": shown_preview,
        }
        return self._page(
            "config.html",
            "Config",
            facts,
            files=list(files),
            file=file,
            text=draft,
            absent=[name for name, row in files.items() if not row.digest],
            digest=edited.digest,
            shipped=edited.shipped,
            lines=min(40, max(18, draft.count("\n") + 2)),
            problems=_problem_rows(
                problems, {self._path(file): draft}, self._risks({file: draft}, problems)
            ),
            preview=_preview_values(preview),
            refused=refused,
            saved=saved,
            compared="",
            reason="",
            last=self._editor.last_change(),
            others=sorted(self._others),
            servers=[server.name for server in self._servers()],
        )

    def _risks(self, drafts: Mapping[str, str], problems: Sequence[Problem]) -> Risks:
        """Return those of the problems that are risks of the present config already."""
        present = self._editor.present_risks()
        risks = self._editor.risk_words(drafts, problems)
        return {
            problem: (words, present[words]) for words, problem in risks.items() if words in present
        }

    def _page(
        self, template: str, title: str, json: Any, status: int = 200, **values: Any
    ) -> PageContent:
        return PageContent(
            template,
            {"title": title, "here": "/config", "where": self.where, **values},
            json,
            status,
        )

    def compare(self, name: str) -> PageContent:
        """Return the effects that another folder's config would have here."""
        folder = self._others.get(name)
        if folder is None and name:
            raise RequestError(
                f"no folder is called {name[:80]!r} here", advice=_compare_advice(self._others)
            )
        preview = None
        problems: Sequence[Problem] = ()
        if folder is not None:
            preview = self._editor.compare(folder)
            problems = preview.problems
        facts = {
            "with": name,
            "others": sorted(self._others),
            "preview": None if preview is None else preview.to_json(),
        }
        return self._page(
            "config_compare.html",
            "Compare configs",
            facts,
            others=sorted(self._others),
            name=name,
            folder=str(folder or ""),
            advice=_compare_advice(self._others),
            preview=_preview_values(preview),
            problems=_problem_rows(problems, {}),
        )

    def undo(self, *, refused: RouterError | None = None) -> PageContent:
        """Return the effects of undoing the last change, and the form to undo it."""
        last = self._editor.last_change()
        preview = self._editor.undo_preview()
        facts = {"change": last, "preview": preview.to_json() if preview is not None else None}
        return self._page(
            "config_undo.html",
            "Undo the last change",
            facts,
            200 if refused is None else 422,
            last=last,
            problems=_problem_rows(preview.problems if preview is not None else (), {}),
            preview=_preview_values(preview),
            refused=refused,
        )

    def changes(self) -> PageContent:
        """Return the changes made here, with author and reason, and those that the service found,
        newest first.
        """
        edits = self._edits.changes() if self._edits is not None else []
        changes = sorted([*self._editor.changes(), *edits], key=lambda change: change.time)
        newest = list(reversed(changes))[:MAX_CHANGES]
        older = max(0, len(changes) - MAX_CHANGES)
        title = "Changes of the config"
        return self._page(
            "config_changes.html", title, {"changes": changes}, changes=newest, more=older
        )

    def pins(
        self,
        server: str,
        approved: bool = False,
        *,
        ask: bool = False,
        refused: RouterError | None = None,
    ) -> PageContent:
        """Return a server's present definitions beside the reviewed ones.

        With `ask` the server is contacted.
        """
        servers = {declared.name: declared for declared in self._servers()}
        if server not in servers:
            raise RequestError(
                f"no server {server[:80]!r} has pins here",
                advice=f"there are {', '.join(servers) or 'none'}",
            )

        reviewed = None
        now = None
        shown = None
        if self._approval is not None:
            pins = self._approval.pins(server)
            if pins is not None:
                reviewed = {pin.tool: pin.sha256 for pin in pins.pins}
            if ask:
                review = self._approval.review(server)
                now = json_of(review.review)
                shown = _review_values(review)

        return self._page(
            "pins.html",
            f"Pins of {server}",
            {"server": server, "reviewed": reviewed, "now": now},
            409 if refused else 200,
            here="/catalog",
            approved=approved,
            server=servers[server],
            shown=shown,
            refused=refused,
        )

    def _servers(self) -> list[Any]:
        try:
            if self._approval is None:
                return []
            return self._approval.servers()
        except ConfigError:  # the page shows its problems
            return []

    def _path(self, file: str) -> str:
        return str(self._editor.folder / file)


def _compare_advice(others: Mapping[str, Path]) -> str:
    names = f"there are {', '.join(sorted(others))}" if others else "none was given"
    return f"{names}; folders are named when the service is started: --compare NAME=FOLDER"


def _problem_rows(
    problems: Sequence[Problem],
    texts: Mapping[str, str],
    risks: Risks = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return the values of problems. A risk that stands in the present config already has its
    words, and the change by which somebody accepted it.
    """
    lines = {name: text.split("\n") for name, text in texts.items()}
    return [
        {
            "problem": problem,
            "entry": entry_of_key(problem.path) if problem.path else "",
            "here": problem.file in texts,
            "standing": risks.get(problem, ("", None))[0],
            "accepted": risks.get(problem, ("", None))[1],
            "place": f"{problem.file}:{problem.line}" if problem.line else problem.file,
            "excerpt": "\n".join(excerpt_lines(problem, lines.get(problem.file, ()))),
        }
        for problem in problems
    ]


def _preview_values(preview: Preview | None) -> dict[str, Any] | None:
    if preview is None:
        return None
    places = preview.places or {}
    values: dict[str, Any] = {
        "valid": preview.valid,
        "widens": False,
        "digest": "",
        "powers": None,
        "behaviour": None,
        "in_force_invalid": preview.in_force_invalid,
    }
    diff = preview.privileges
    if diff is not None:
        values["powers"] = _powers(diff, places)
        values["widens"] = diff.widens
    if diff is not None and diff.widens:
        values["digest"] = diff.widening_digest
    if preview.behaviour is not None:
        values["behaviour"] = _behaviour(preview.behaviour, preview, places)
    return values


def _powers(diff: PrivilegeDiff, places: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    groups = []
    for kind, sign, title in _KINDS:
        rows = [_privilege_values(row, places) for row in diff.of(kind)]
        if not rows:
            continue
        group = {
            "kind": kind,
            "sign": sign,
            "title": title,
            "rows": rows[:MAX_ROWS],
            "count": len(rows),
        }
        groups.append(group)
    return {
        "groups": groups,
        "addresses": diff.address_count,
        "parts": part_names(),
        "counts": diff.counts_in_words(),
        "complete": diff.complete,
    }


def _privilege_values(row: PrivilegeRow, places: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    signs = []
    if row.kind != "neutral":
        signs = [EFFECT_SIGNS[effect] for effect in row.effects if effect in EFFECT_SIGNS]

    addresses = []
    for address in row.addresses:
        names = address.named()
        addresses.append([(part, ", ".join(labels)) for part, labels in names.items()])

    return {
        "sentence": sentence(row),
        "signs": signs,
        "addresses": addresses,
        "edits": list(edits_as_words(row.edits, places)),
    }


def _behaviour(
    behaviour: Behaviour, preview: Preview, places: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    groups = [
        {
            "words": edited_words(group.cause, places),
            "decisions": group.decisions,
            "changes": [
                (kind, [name for name, _ in counts[:8]], len(counts), counts[0][1])
                for kind in CHANGE_KINDS
                if (counts := group.counts_by_name(kind))
            ],
            "examples": group.examples,
            "more": group.decisions - len(group.examples),
            "by_these_edits": preview.is_cause(group.cause),
        }
        for group in behaviour.ordered_groups()
    ]
    return {
        "decisions": behaviour.decisions,
        "same": behaviour.decisions - behaviour.differing,
        "groups": groups,
        "part": preview.replayed_part,
        "unread": preview.unread_runs,
    }


def _review_values(shown: ShownReview) -> dict[str, Any]:
    values = json_of(shown.review)
    for tool in values["tools"]:
        text = tool["definition"] and tool["definition"].get("description")
        tool["description"] = reveal(text) if isinstance(text, str) else ""
        if tool["definition"]:
            tool["whole"] = json.dumps(tool["definition"], indent=1, ensure_ascii=True)
        else:
            tool["whole"] = ""
    return {**values, "digest": shown.digest, "command": shown.review.command}
