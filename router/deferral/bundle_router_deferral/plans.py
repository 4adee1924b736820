"""Turns findings into edits of files: the bytes a file would have afterwards, and what a person has
to do. Pure.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router_deferral.causes import NO_BETAS, SWITCH
from bundle_router_deferral.findings import Finding
from bundle_router_deferral.json_spans import (
    NotEditable,
    read_editable,
    remove_element,
    remove_member,
    set_member,
)
from bundle_router_deferral.settings import ProfileLine

PROBE_DAYS: Final = 7
NEXT_SESSION: Final = "takes effect with the next session; one that is open goes on as it began"
SLOW_SERVER: Final = (
    "a session waits at its start up to 5 s for a server marked `alwaysLoad` (or what"
    " MCP_CONNECT_TIMEOUT_MS says), and begins without its tools if it is slower; without the mark"
    " it waits for none, and searches for the tools"
)
UNBLOCKED: Final = frozenset(
    ("env-off", "auto-100", "experimental-betas-disabled", "toolsearch-denied")
)
"""Causes that nothing but the agent's own default follows, once they are gone."""
_SHOWN: Final = frozenset((SWITCH, NO_BETAS, "alwaysLoad", "ToolSearch"))
_STRING: Final = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?')


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One file before and after; `before` is None if it is created, `after` if it is deleted."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The planned changes, the refused ones (with the reason), and what only a person can do."""

    edits: tuple[FileEdit, ...]
    done: tuple[Finding, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    manual: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What to know before the changes are made, by `apply` or by hand."""


def make_plan(
    findings: Sequence[Finding],
    read: Callable[[str], bytes | None],
    profiles: Sequence[ProfileLine],
    probe_age_days: Mapping[str, float],
    user_settings: str,
) -> ChangePlan:
    """Return the edits that resolve the findings.

    `read` returns a file's bytes; `probe_age_days` is the age of each host's last probe that
    passed.
    """
    old_bytes: dict[str, bytes | None] = {}
    new_bytes: dict[str, bytes] = {}
    findings_done: list[Finding] = []
    refusals: list[tuple[str, str]] = []
    manual: list[str] = []
    for finding in findings:
        path, edit = _edit_of(finding, user_settings)
        is_gate = finding.cause == "base-url-gate"
        if is_gate and not _is_probed(finding.detail, probe_age_days):
            manual.append(
                f"{finding.cause}: no probe of {finding.detail} has passed within {PROBE_DAYS}"
                " days; run `bundle-router deferral probe --yes` first, or update Claude Code"
            )
            continue
        if edit is None:
            manual += _by_hand(finding, profiles)
            continue
        if path not in old_bytes:
            old_bytes[path] = read(path)
        try:
            text = read_editable(
                new_bytes.get(path, old_bytes[path] if old_bytes[path] is not None else b"{}\n")  # type: ignore[arg-type]
            )
            changed = edit(text).encode("utf-8")
            read_editable(changed)
        except NotEditable as reason:
            refusals.append((path, str(reason)))
            continue
        new_bytes[path] = changed
        findings_done.append(finding)
    edits = tuple(
        FileEdit(path, old_bytes[path], data)
        for path, data in new_bytes.items()
        if data != old_bytes[path]
    )
    return ChangePlan(
        edits,
        tuple(findings_done),
        tuple(dict.fromkeys(refusals)),
        tuple(dict.fromkeys(manual)),
        _notes(findings, probe_age_days) if edits or manual else (),
    )


def _is_probed(host: str, probe_age_days: Mapping[str, float]) -> bool:
    """Return whether a probe of the host has passed, and not too long ago."""
    return probe_age_days.get(host, PROBE_DAYS + 1) <= PROBE_DAYS


def _notes(findings: Sequence[Finding], probe_age_days: Mapping[str, float]) -> tuple[str, ...]:
    """Return what the findings' changes mean: when they take effect, and what follows then."""
    notes = [NEXT_SESSION]
    for finding in findings:
        if finding.cause == "alwaysload-unused":
            notes.append(SLOW_SERVER)
        if finding.cause not in UNBLOCKED or finding.value:
            continue
        for host in finding.gateways:
            if not _is_probed(host, probe_age_days):
                notes.append(_unprobed(host))
    return tuple(dict.fromkeys(notes))


def _unprobed(host: str) -> str:
    return (
        f"{host} was not probed within {PROBE_DAYS} days: Claude Code from 2.1.304 then defers"
        f" behind it, and earlier versions (from 2.1.70) only with {SWITCH}=true. Where it refuses,"
        " a conversation goes on with every definition upfront, also when it is continued;"
        " `bundle-router deferral probe` asks it first"
    )


def _edit_of(finding: Finding, user_settings: str) -> tuple[str, Callable[[str], str] | None]:
    """Return the file of a finding, and the edit of its text."""
    path, _, dotted = finding.where.rpartition(": ")
    if finding.cause == "base-url-gate":
        return path or user_settings, lambda text: set_member(text, ("env", SWITCH), "true")
    if not path:
        return "", None
    if (
        finding.cause in ("env-off", "experimental-betas-disabled", "auto-100")
        and not finding.value
    ):
        return path, lambda text: remove_member(text, tuple(dotted.split(".", 1)))
    if finding.cause in ("auto-below-threshold", "auto-threshold", "auto-100") and finding.value:
        return path, lambda text: set_member(text, ("env", SWITCH), finding.value)
    if finding.cause == "toolsearch-denied":
        return path, lambda text: remove_element(text, ("permissions", "deny"), "ToolSearch")
    if finding.cause == "alwaysload-unused":
        return path, lambda text: remove_member(text, finding.keys)
    return "", None


def _by_hand(finding: Finding, profiles: Sequence[ProfileLine]) -> list[str]:
    advice = [f"{finding.cause}: {finding.fix}"]
    if finding.where != "environment":
        return advice

    variable = SWITCH
    if finding.cause == "experimental-betas-disabled":
        variable = NO_BETAS
    lines = [line for line in profiles if line.name == variable]
    removals = [f"{line.path}:{line.line}: remove the line `{line.text}`" for line in lines]
    return removals or advice


def show_diff(edit: FileEdit) -> str:
    """Return a unified diff without the strings that the edit does not concern: they may be
    credentials.
    """
    old_text = _mask_values(edit.before or b"")
    new_text = _mask_values(edit.after or b"")
    name_before = edit.path if edit.before is not None else "/dev/null"
    name_after = edit.path if edit.after is not None else "/dev/null"
    return (
        "\n".join(
            difflib.unified_diff(old_text, new_text, name_before, name_after, lineterm="", n=2)
        )
        + "\n"
    )


def _mask_values(data: bytes) -> list[str]:
    if not data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{"):
        return data.decode("utf-8", "replace").splitlines()
    return [_mask(line) for line in data.decode("utf-8", "replace").splitlines()]


def _mask(line: str) -> str:
    parts = []
    offset = 0
    key = ""
    for match in _STRING.finditer(line):
        parts.append(line[offset : match.start()])
        offset = match.end()
        if match[2]:
            key = _unquote_literal(match[1])
            parts.append(match[0])
        else:
            parts.append(
                match[1] if key in _SHOWN or _unquote_literal(match[1]) in _SHOWN else '"…"'
            )
            key = ""
    return "".join(parts) + line[offset:]


def _unquote_literal(literal: str) -> str:
    try:
        value: Any = json.loads(literal)
    except ValueError:
        return literal
    return str(value)
