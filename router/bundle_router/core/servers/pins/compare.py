"""Compares a server's reviewed definitions with its present ones, field by field."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.cleaning import reveal, reveal_line
from bundle_router.core.servers.admission.identity import (
    INSTRUCTIONS,
    VolatilePath,
    normalize_definition,
    volatile_paths,
)
from bundle_router.core.servers.pins.reviewed import Pins, origin_of
from bundle_router.core.values.canonical import encode
from bundle_router.core.values.schema_tree import pointer

if TYPE_CHECKING:
    from bundle_router.core.servers.admission.admitted import Admitted

Kind = Literal["unchanged", "changed", "added", "removed", "refused"]

MAX_DIFFERENCES: Final = 50
"""Maximum differences named per tool; one more says how many there are besides."""
_FIRST: Final = ("description", "inputSchema")
"""The fields that agents are shown: named first, so that no number of others pushes them out."""
_CONTEXT: Final = 60
_WINDOW: Final = 600


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field that differs.

    `before` and `after` show the differing part with some context; None: absent. `path` is a JSON
    Pointer into the definition.
    """

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class ToolChange:
    """The change of one tool, with its differences. `detail` says why a definition was refused."""

    tool: str
    kind: Kind
    differences: tuple[FieldDifference, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The changes of one server.

    `server`: differences that concern all its tools (origin, instructions).
    """

    name: str
    server: tuple[FieldDifference, ...]
    tools: tuple[ToolChange, ...]

    def of(self, kind: Kind) -> tuple[str, ...]:
        """Return the names of the tools of that kind."""
        return tuple(change.tool for change in self.tools if change.kind == kind)

    @property
    def clean(self) -> bool:
        """Whether everything matches the review."""
        return not self.server and all(change.kind == "unchanged" for change in self.tools)


def compare(pins: Pins | None, admitted: Admitted, server: Server) -> Comparison:
    """Compare pins with a server's present list.

    Without pins everything is new. Raises VolatileError.
    """
    volatile = volatile_paths(server.volatile)
    old_texts = {name: json.loads(text) for name, text in _texts(pins)}
    live = {tool.card.tool: json.loads(tool.definition) for tool in admitted.tools}
    refusals = {
        row.name: f"{row.code}: {row.detail}" for row in admitted.refused if row.name not in live
    }
    changes = []
    for name in sorted({*old_texts, *live, *refusals}):
        if name in refusals:
            changes.append(ToolChange(name, "refused", detail=refusals[name]))
        elif name not in live:
            changes.append(ToolChange(name, "removed"))
        elif name not in old_texts:
            changes.append(ToolChange(name, "added"))
        else:
            rows = differences(
                normalize_definition(old_texts[name], volatile),
                normalize_definition(live[name], volatile),
            )
            changes.append(ToolChange(name, "changed" if rows else "unchanged", rows))
    return Comparison(
        server.name, server_differences(pins, admitted, server, volatile), tuple(changes)
    )


def _texts(pins: Pins | None) -> Iterator[tuple[str, str]]:
    if pins is not None:
        yield from ((pin.tool, pin.definition) for pin in pins.pins)


def server_differences(
    pins: Pins | None, admitted: Admitted | None, server: Server, volatile: tuple[VolatilePath, ...]
) -> tuple[FieldDifference, ...]:
    """Return the differences that concern all tools of the server.

    `admitted=None`: it was not contacted yet.
    """
    if pins is None:
        return ()
    pinned = pins.origin
    live = origin_of(server)
    rows = []
    for name in type(pinned).__slots__:
        old_value = getattr(pinned, name)
        new_value = getattr(live, name)
        if old_value != new_value:
            rows.append(FieldDifference(f"/origin/{name}", _text(old_value), _text(new_value)))

    if admitted is None or any(path.segments == INSTRUCTIONS for path in volatile):
        return tuple(rows)
    if pins.instructions != admitted.instructions:
        rows.append(_field_difference("/instructions", pins.instructions, admitted.instructions))
    return tuple(rows)


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return reveal(value)
    return encode(value)


def differences(before: Any, after: Any) -> tuple[FieldDifference, ...]:
    """Return the fields that differ, those that agents are shown first: at most `MAX_DIFFERENCES`,
    and a row that counts the rest.
    """
    walk = _walk((), before, after)
    rows = tuple(itertools.islice(walk, MAX_DIFFERENCES))
    rest = sum(1 for _ in walk)
    return (*rows, FieldDifference("…", None, f"{rest:,} more fields differ")) if rest else rows


def _walk(place: tuple[str | int, ...], before: Any, after: Any) -> Iterator[FieldDifference]:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = {*before, *after}
        for key in sorted(keys, key=lambda key: (bool(place) or key not in _FIRST, key)):
            inner = (*place, key)
            if key not in after:
                yield FieldDifference(_path(inner), _excerpt(before[key]), None)
            elif key not in before:
                yield FieldDifference(_path(inner), None, _excerpt(after[key]))
            else:
                yield from _walk(inner, before[key], after[key])
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _walk((*place, index), old, new)
    elif encode(before) != encode(after):
        yield _field_difference(_path(place), before, after)


def _path(place: tuple[str | int, ...]) -> str:
    return reveal_line(pointer(place))


def _field_difference(path: str, before: Any, after: Any) -> FieldDifference:
    old = _plain_text(before)
    new = _plain_text(after)
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return FieldDifference(
        path, _part(old, start, len(old) - end), _part(new, start, len(new) - end)
    )


def _part(text: str, start: int, stop: int) -> str:
    low = max(0, start - _CONTEXT)
    high = min(len(text), stop + _CONTEXT)
    part = text[low:high]
    if len(part) > _WINDOW:
        part = (
            f"{part[: _WINDOW // 2]} … ({len(part) - _WINDOW:,} characters) …"
            f" {part[-_WINDOW // 2 :]}"
        )
    return reveal(("…" if low else "") + part + ("…" if high < len(text) else ""))


def _plain_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value)


def _excerpt(value: Any) -> str:
    text = _plain_text(value)
    return reveal(text if len(text) <= _WINDOW else f"{text[:_WINDOW]}… ({len(text):,} characters)")


def report_lines(comparison: Comparison) -> list[str]:
    """Return the lines that `bundle-router pin` shows before it asks; none for a server that
    matches its review.
    """
    lines = [f"{comparison.name}: {what}" for what in (_summary(comparison),) if what]
    for difference in comparison.server:
        lines += _difference(difference)
    for change in comparison.tools:
        if change.kind in ("unchanged", "added"):  # the caller shows new definitions in full
            continue
        lines.append(
            f"  {change.kind:<8} {comparison.name}.{change.tool}"
            + (f"  {change.detail}" if change.detail else "")
        )
        for difference in change.differences:
            lines += (f"  {line}" for line in _difference(difference))
    return lines


def _summary(comparison: Comparison) -> str:
    kinds = [
        f"{len(names)} {kind}"
        for kind in ("changed", "added", "removed", "refused")
        if (names := comparison.of(kind))
    ]
    if comparison.server:
        kinds.insert(0, "the server itself changed, which concerns all its tools")
    return ", ".join(kinds)


def _difference(difference: FieldDifference) -> Iterator[str]:
    yield f"  {difference.path}"
    for sign, text in (("-", difference.before), ("+", difference.after)):
        if text is not None:
            yield from (f"    {sign} {line}" for line in text.split("\n"))
