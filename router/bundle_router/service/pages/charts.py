"""Charts as SVG: bars, stacked shares per day, a share. No script, no style attribute.

All text is escaped; sizes are numbers. Colours are classes of the stylesheet, so both colour
schemes apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH: Final = 1100
HEIGHT: Final = 220
SMALL_WIDTH: Final = 520
SMALL_HEIGHT: Final = 150
_LEFT: Final = 54
_BASE: Final = HEIGHT - 22
_HIGH: Final = _BASE - 12
"""Height of the highest bar."""


def share_bar(part: float, total: float, *, title: str, width: int = 72) -> Markup:
    """Return a bar that is filled in part."""
    filled = 0.0 if total <= 0 else max(0.0, min(1.0, part / total)) * width
    return _svg(
        f'<rect class="track" width="{width}" height="8" rx="4"/>'
        f'<rect class="fill" width="{filled:.1f}" height="8" rx="4"/>',
        width,
        8,
        title,
        "share",
    )


def tokens_over_days(days: Sequence[tuple[str, int, int, int]]) -> Markup:
    """Return bars per day: tokens shown, and tokens of all tools.

    Each day is `(day, decisions, shown, all)`.
    """
    top = max((row[3] for row in days), default=0) or 1
    bars = []
    for day, decisions, shown_tokens, all_tokens in days:
        words = f"{day}: {shown_tokens:,} of {all_tokens:,} tokens, {decisions:,} decisions"
        bars.append(
            [
                (name, 0.0, value / top, words)
                for name, value in (("all", all_tokens), ("shown", shown_tokens))
            ]
        )
    lines = [
        _line_at(_BASE - _HIGH * fraction, short_number(round(top * fraction)))
        for fraction in (0.5, 1.0)
    ]
    title = (
        f"Tokens of tool definitions by day: shown, and what all tools would have been; {len(days)}"
        " days"
    )
    return _over_days([row[0] for row in days], bars, lines, title)


def sources_over_days(tallies: Sequence[tuple[str, int]], sources: Sequence[str]) -> Markup:
    """Return the sources of each day's decisions as shares of a bar.

    `tallies` are by "day, line end, source"; `sources` go from the bottom up.
    """
    counts = {
        name.partition("\n")[::2]: count for name, count in tallies
    }  # empty where a record has no source
    days = sorted({day for day, _ in counts})
    bars = []
    for day in days:
        total = sum(counts.get((day, source), 0) for source in sources) or 1
        below = 0.0
        parts = []
        for source in sources:
            share = counts.get((day, source), 0) / total
            words = f"{day}: {source} {counts.get((day, source), 0):,} of {total:,} decisions"
            parts.append((f"source-{source}", below, share, words))
            below += share
        bars.append(parts)
    title = f"How each day's decisions were settled: {', '.join(sources)}; {len(days)} days"
    lines = [_line_at(_BASE - _HIGH * fraction, f"{fraction:.0%}") for fraction in (0.5, 1.0)]
    return _over_days(days, bars, lines, title)


_Bar = tuple[str, float, float, str]
"""A part of a day's bar: its class, its start and height (shares of the full height), and its
title.
"""


def _over_days(
    days: Sequence[str], bars: Sequence[Sequence[_Bar]], lines: Sequence[str], title: str
) -> Markup:
    step = (WIDTH - _LEFT - 8) / max(len(days), 1)
    wide = min(44.0, step * 0.7)
    every = max(1, -(-len(days) // 8))
    parts = [*lines]
    for index, day in enumerate(days):
        x = _LEFT + step * index + (step - wide) / 2
        for name, begins, share, words in bars[index]:
            y = _BASE - _HIGH * (begins + share)
            high = _HIGH * share
            parts.append(
                f'<rect class="{_text(name)}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}"'
                f' height="{high:.1f}" rx="2"><title>{_text(words)}</title></rect>'
            )
        if index % every == 0:
            parts.append(
                f'<text class="tick" x="{x + wide / 2:.1f}"'
                f' y="{HEIGHT - 6}">{_text(day[5:])}</text>'
            )
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH}" y1="{_BASE}" y2="{_BASE}"/>')
    return _svg("".join(parts), WIDTH, HEIGHT, title, "chart")


Address = Callable[..., str]
"""Returns the address of a page, from its path and its query."""


@dataclass(frozen=True, slots=True)
class TimeBar:
    """One bar of a chart over time."""

    time: str
    """The day or hour: `2026-01-31`, `2026-01-31T12`."""
    value: float
    words: str
    """What the bar stands for, with its value."""
    path: str
    """The list of the records behind it."""
    selects: Mapping[str, Sequence[str] | str]
    """The filters of that list."""

    @property
    def label(self) -> str:
        """The day without its year, or the hour."""
        _, is_hour, hour = self.time.partition("T")
        return f"{hour}:00" if is_hour else self.time[5:]


def bars_over_time(
    bars: Sequence[TimeBar], title: str, address: Address, *, tone: str, money: bool = False
) -> Markup:
    """Return a small chart with an axis of its own. Each bar leads to the records behind it."""
    top = max((bar.value for bar in bars), default=0.0) or 1.0
    step = (SMALL_WIDTH - _LEFT - 8) / max(len(bars), 1)
    wide = min(40.0, step * 0.72)
    every = max(1, -(-len(bars) // 7))
    base = SMALL_HEIGHT - 24
    high = base - 14
    parts = []
    for fraction in (0.5, 1.0):
        y = base - high * fraction
        value = top * fraction
        scale = f"${value:.2g}" if money else short_number(value)
        if money or value == int(value):
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{SMALL_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="scale" x="{_LEFT - 6}" y="{y + 4:.1f}">{_text(scale)}</text>'
            )
    for index, bar in enumerate(bars):
        x = _LEFT + step * index + (step - wide) / 2
        if bar.value:
            tall = max(2.0, high * bar.value / top)
            link = address(bar.path, **bar.selects)
            # a table beside the chart has the same links, for who uses the keyboard
            parts.append(
                f'<a href="{_text(link)}" tabindex="-1"><rect class="{_text(tone)}" x="{x:.1f}"'
                f' y="{base - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="2">'
                f"<title>{_text(bar.words)}</title></rect></a>"
            )
        if index % every == 0:
            parts.append(
                f'<text class="tick" x="{x + wide / 2:.1f}"'
                f' y="{SMALL_HEIGHT - 6}">{_text(bar.label)}</text>'
            )
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{SMALL_WIDTH}" y1="{base}" y2="{base}"/>')
    return _svg("".join(parts), SMALL_WIDTH, SMALL_HEIGHT, title, "chart small")


def _line_at(y: float, scale: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="scale" x="{_LEFT - 6}" y="{y + 4:.1f}">{_text(scale)}</text>'
    )


def short_number(value: float) -> str:
    """Return a number in few characters: 950, 1.5k, 88k, 2.1M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            figure = f"{value / limit:.1f}" if value < 10 * limit else f"{value / limit:.0f}"
            return f"{figure.removesuffix('.0')}{unit}"
    return f"{value:.0f}"


def _svg(body: str, width: int, height: int, title: str, kind: str) -> Markup:
    from markupsafe import Markup

    ratio = (
        ' preserveAspectRatio="none"' if kind == "share" else ""
    )  # a narrow bar is as high as a wide one
    return Markup(  # noqa: S704 - built of numbers and escaped texts alone
        f'<svg class="{kind}"{ratio} viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img"'
        f' aria-label="{_text(title)}"><title>{_text(title)}</title>{body}</svg>'
    )


def _text(text: str) -> str:
    from markupsafe import escape

    return str(escape(text))
