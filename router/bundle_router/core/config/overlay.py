"""Lays the project's files over the shipped ones: decides which entries count, before they are
checked against each other.

Rules:
1. `servers.toml` and `bundles.toml` merge by id. A project's entry replaces the shipped one whole:
   half an entry from each would be something nobody wrote.
2. `router.toml` merges key by key.
3. `routes.toml` and `policy.toml` of the project replace the shipped files whole. Routes are an
   order, and policies unite; rows from another file would change the meaning of a file that does
   not show them.
4. The shipped file replaces one that the project does not have, but not one that can't be read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from bundle_router.core.catalog import (
    AnswerForm,
    ApprovalRow,
    Bundle,
    Policy,
    Route,
    Server,
    Settings,
)
from bundle_router.core.catalog.config_tables import DocsLimits, RepoLimits
from bundle_router.core.config.config_text import FILE_NAMES, ConfigFile
from bundle_router.core.config.entries import FileContent, WrittenEntry, read
from bundle_router.core.config.problem_report import Report
from bundle_router.core.config.written_forms import keys_of
from bundle_router.core.values import TAINT_SORTS, BinaryRule, TaintSort

_REPLACED_WHOLE = ("routes.toml", "policy.toml")


@dataclass(slots=True)
class WrittenConfig:
    """All that the config says.

    `broken` has the names of wrong entries, by key; `unread` the names of files of unknown content,
    so that nothing can be called missing from them.
    """

    servers: dict[str, WrittenEntry[Server]] = field(default_factory=dict)
    broken_servers: list[WrittenEntry[Server]] = field(default_factory=list)
    """The readable parts of wrong servers: nothing may rest on them."""
    bundles: dict[str, WrittenEntry[Bundle]] = field(default_factory=dict)
    routes: list[WrittenEntry[Route]] = field(default_factory=list)
    policies: list[WrittenEntry[Policy]] = field(default_factory=list)
    approvals: list[WrittenEntry[ApprovalRow]] = field(default_factory=list)
    binaries: list[WrittenEntry[BinaryRule]] = field(default_factory=list)
    taints: dict[str, WrittenEntry[TaintSort]] = field(default_factory=dict)
    forms: dict[str, WrittenEntry[AnswerForm]] = field(default_factory=dict)
    docs: WrittenEntry[DocsLimits] | None = None
    repo: WrittenEntry[RepoLimits] | None = None
    sections: dict[str, list[WrittenEntry[Any]]] = field(default_factory=dict)
    """The sections of `router.toml`, the shipped one first."""
    broken: dict[str, set[str]] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    def known_servers(self) -> set[str]:
        """Return the names of all servers in the files, right or wrong."""
        return {*self.servers, *self.broken.get("servers", ())}

    def known_bundles(self) -> set[str]:
        """Return the ids of all bundles in the files, right or wrong."""
        return {*self.bundles, *self.broken.get("bundles", ())}

    def known_taints(self) -> set[str]:
        """Return the taints that are given, and those that are declared, right or wrong."""
        return {*TAINT_SORTS, *self.taints, *self.broken.get("taints", ())}


def in_order(files: Sequence[ConfigFile]) -> list[ConfigFile]:
    """Return the files that count, shipped before project, in the order in which problems are
    reported.
    """
    owned = {file.name for file in files if file.layer == "project"}
    ordered = [
        file
        for file in files
        if file.layer == "project" or file.name not in _REPLACED_WHOLE or file.name not in owned
    ]
    order = {name: index for index, name in enumerate(FILE_NAMES)}
    return sorted(
        ordered, key=lambda file: (order.get(file.name, len(order)), file.layer == "project")
    )


def merge_files(files: Sequence[ConfigFile], report: Report) -> WrittenConfig:
    """Return the contents of all files, laid over each other.

    `files` are in the order of `in_order`.
    """
    merged = WrittenConfig()
    present = {file.name for file in files if file.layer == "project"}
    for file in files:
        if file.name not in FILE_NAMES:
            report.add(
                file,
                (),
                "is not a file of the config and is not read",
                _stray_advice(file.name, present, report),
                level="warning",
                rule="stray-file",
            )
            continue
        content = read(file, report)
        if not content.readable:
            merged.unread.add(file.name)
        _lay_over(merged, content)
    return merged


def _stray_advice(name: str, present: Collection[str], report: Report) -> str:
    """Return what a file that is not read may have been meant to be. Of two names that are as
    near, it is the one that is not `present`.
    """
    stem, _, ending = name.rpartition(".")
    if ending != "toml":
        return f"the config is TOML: write {stem}.toml"
    nearest = report.suggester.nearest(name, FILE_NAMES)
    if nearest is None:
        return f"known files: {', '.join(FILE_NAMES)}"
    as_near = [other for other in FILE_NAMES if _likeness(name, other) == _likeness(name, nearest)]
    missing = [other for other in as_near if other not in present]
    if missing:
        return f"did you mean {missing[0]!r}, which is missing?"
    return f"did you mean {nearest!r}?"


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name.lower(), other).ratio()


def _lay_over(written: WrittenConfig, content: FileContent) -> None:
    for key, names in content.broken.items():
        written.broken.setdefault(key, set()).update(names)
    entries = content.entries
    for name in content.broken.get("servers", ()):
        written.servers.pop(name, None)
    for name in content.broken.get("bundles", ()):
        written.bundles.pop(name, None)
    written.servers.update(
        (entry.name, entry) for entry in entries.get("servers", ()) if entry.complete
    )
    written.broken_servers += (entry for entry in entries.get("servers", ()) if not entry.complete)
    written.bundles.update((entry.name, entry) for entry in entries.get("bundles", ()))
    written.routes += entries.get("routes", ())
    written.policies += entries.get("policies", ())
    written.approvals += entries.get("approvals", ())
    written.binaries += entries.get("binaries", ())
    written.taints.update((entry.name, entry) for entry in entries.get("taints", ()))
    written.forms.update((entry.name, entry) for entry in entries.get("forms", ()))
    written.docs = next(iter(entries.get("docs", ())), written.docs)
    written.repo = next(iter(entries.get("repo", ())), written.repo)
    for key in keys_of(Settings):
        written.sections.setdefault(key, []).extend(entries.get(key, ()))
