"""The waterfall of a run's page: when each step and call began, and how long it took.

Rules:
1. A row is a step, a call or a sub-run, in the order of the outline. A step spans from its decision
   to the end of the last thing that belongs to it.
2. A sub-run spans its records and all that belongs to its steps: a decision begins before its
   record.
3. Where there are more than `MAX_ROWS`, each step is one row, with its calls as parts of its bar.
4. Bars are in thousandths of the time that the rows span. What is too short to be seen is drawn
   `MIN_WIDTH` wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from bundle_router.core.records.outline import MARKS, Mark, mark_of_call

MAX_ROWS: Final = 120
"""Maximum rows with calls of their own."""
WIDTH: Final = 1000
MIN_WIDTH: Final = 4
MAX_DEPTH: Final = 4
"""Deepest indentation; deeper rows stand as deep as that."""

Item = Mapping[str, Any]
"""A step of a run's page (see `views.items_of`)."""
Tone = Literal["span", "step", "ok", "denied", "failed", "doubt", "open"]
"""What a bar stands for; `open` is a call without an end."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a row, in thousandths of the whole width."""

    x: float
    width: float
    tone: Tone


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """One row: what it is, where it stands on the page, and its bars."""

    kind: Literal["step", "call", "run"]
    label: str
    anchor: str
    """The id of its place on the page."""
    depth: int
    began: str
    """RFC 3339 in UTC; empty if not known."""
    took_ms: float | None
    branch: str = ""
    marks: tuple[Mark, ...] = ()
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The rows, and the time that they span."""

    rows: tuple[WaterfallRow, ...]
    began: str
    ended: str
    span_ms: float
    whole_steps: bool
    """Whether calls are drawn as parts of their step's row."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a row before the scale is known, in milliseconds since the epoch."""

    begin_ms: float
    end_ms: float
    tone: Tone


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A row without its bars, and the parts that they are made of."""

    row: WaterfallRow
    parts: tuple[_Part, ...]


def waterfall(items: Sequence[Item]) -> Waterfall | None:
    """Return the waterfall of a part of a run; None where nothing has a time."""
    drawn = list(_rows(items, 0, "", with_calls=True))
    whole_steps = len(drawn) > MAX_ROWS
    if whole_steps:
        drawn = list(_rows(items, 0, "", with_calls=False))
    whole = _span([part for row in drawn for part in row.parts])
    if whole is None:
        return None
    scale = WIDTH / max(whole.end_ms - whole.begin_ms, 1.0)
    rows = tuple(
        replace(row.row, bars=tuple(_bar(part, whole.begin_ms, scale) for part in row.parts))
        for row in drawn
    )
    return Waterfall(
        rows, _text_of(whole.begin_ms), _text_of(whole.end_ms), _took(whole) or 0.0, whole_steps
    )


def _bar(part: _Part, begin_ms: float, scale: float) -> Bar:
    width = max((part.end_ms - part.begin_ms) * scale, MIN_WIDTH)
    x = min((part.begin_ms - begin_ms) * scale, WIDTH - width)
    return Bar(round(x, 1), round(width, 1), part.tone)


# --- rows -----------------------------------------------------------------------------------------


def _rows(items: Iterable[Item], depth: int, within: str, *, with_calls: bool) -> Iterator[_Drawn]:
    for item in items:
        below: list[_Drawn] = []
        for entry in item["below"]:
            if entry["kind"] == "run":
                below += _sub_run(entry, depth + 1, within, with_calls=with_calls)
            elif with_calls:
                below.append(_call(entry["row"], depth + 1, within))
        yield _step(item, depth, within, below, with_calls=with_calls)
        yield from below


def _step(
    item: Item, depth: int, within: str, below: Sequence[_Drawn], *, with_calls: bool
) -> _Drawn:
    call_rows = [entry["row"] for entry in item["below"] if entry["kind"] == "call"]
    call_parts = [part for row in call_rows for part in _call_parts(row)]
    decision_parts = _decision_parts(item)
    below_parts = [part for row in below for part in row.parts]
    span = _span([*decision_parts, *call_parts, *below_parts])

    parts = [span] if span is not None else []
    parts += decision_parts
    if not with_calls:
        parts += call_parts
    described = replace(
        _step_words(item, within),
        depth=min(depth, MAX_DEPTH),
        began=_text_of(span.begin_ms) if span is not None else "",
        took_ms=_took(span),
        marks=_marks(item["row"], call_rows),
    )
    return _Drawn(described, tuple(parts))


def _step_words(item: Item, within: str) -> WaterfallRow:
    row = item["row"]
    if row is None:
        return WaterfallRow("step", "no step", "", 0, "", None)
    anchor = "" if item["continued"] else f"{within}r{row['seq']}"
    label = f"{row['role']} / {row['step']}"
    return WaterfallRow("step", label, anchor, 0, "", None, row["branch"] or "")


def _decision_parts(item: Item) -> list[_Part]:
    """Return the time of a step's decision; none where it stands in an earlier part of the run."""
    row = item["row"]
    if row is None or item["continued"]:
        return []
    return _ended_parts(row["time"], (row["elapsed_us"] or 0) / 1000, "step")


def _marks(row: Item | None, call_rows: Iterable[Item]) -> tuple[Mark, ...]:
    marks = {mark_of_call(call["outcome"]) for call in call_rows}
    if row is not None and row["doubt"]:
        marks.add("doubt")
    return tuple(mark for mark in MARKS if mark in marks)


def _call(row: Item, depth: int, within: str) -> _Drawn:
    parts = _call_parts(row)
    if row["kind"] == "request":
        label = f"{row['tool']} of {row['server']}"
    else:
        label = f"{row['server']}.{row['tool']}".removesuffix(".")
    described = WaterfallRow(
        kind="call",
        label=label,
        anchor=f"{within}r{row['seq']}",
        depth=min(depth, MAX_DEPTH),
        began=_text_of(parts[0].begin_ms) if parts else "",
        took_ms=row["elapsed_ms"],
        marks=_marks(None, [row]),
    )
    return _Drawn(described, tuple(parts))


def _sub_run(entry: Item, depth: int, within: str, *, with_calls: bool) -> Iterator[_Drawn]:
    run = entry["run"]
    steps = entry.get("items", ())
    below = list(_rows(steps, depth + 1, f"{run.run_id}-", with_calls=with_calls))
    parts = [part for row in below for part in row.parts]
    begin_ms, end_ms = _ms(run.began), _ms(run.ended)
    if begin_ms is not None and end_ms is not None:
        parts.append(_Part(begin_ms, end_ms, "span"))
    span = _span(parts)

    described = WaterfallRow(
        kind="run",
        label=f"↳ {run.run_id}",
        anchor=f"{within}run-{run.run_id}",
        depth=min(depth, MAX_DEPTH),
        began=_text_of(span.begin_ms) if span is not None else "",
        took_ms=_took(span),
    )
    yield _Drawn(described, (span,) if span is not None else ())
    yield from below


# --- times ----------------------------------------------------------------------------------------


def _call_parts(row: Item) -> list[_Part]:
    tone: Tone = mark_of_call(row["outcome"]) or "ok"
    if row["outcome"] is None:
        tone = "open"
    return _ended_parts(row["time"], row["elapsed_ms"] or 0.0, tone)


def _ended_parts(time: str, elapsed_ms: float, tone: Tone) -> list[_Part]:
    """Return the part of what ended when it was recorded; none where that is not known."""
    end_ms = _ms(time)
    return [_Part(end_ms - elapsed_ms, end_ms, tone)] if end_ms is not None else []


def _span(parts: Sequence[_Part]) -> _Part | None:
    """Return the time from the first beginning to the last end; None without parts."""
    if not parts:
        return None
    begin_ms = min(part.begin_ms for part in parts)
    return _Part(begin_ms, max(part.end_ms for part in parts), "span")


def _took(part: _Part | None) -> float | None:
    return part.end_ms - part.begin_ms if part is not None else None


def _ms(time: str) -> float | None:
    """Return the milliseconds of an RFC 3339 time since the epoch.

    None for an empty one, and for digits that are no time: a record may hold any.
    """
    try:
        return datetime.fromisoformat(time).timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def _text_of(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
