"""Charts as SVG, made here: bars, a stacked area over days, a share. No script, no style attribute.

Every text goes through `escape`; sizes are numbers. Colours are classes of the stylesheet, so both schemes apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH: Final = 1100
HEIGHT: Final = 220
_LEFT: Final = 54
_BOTTOM: Final = 22


def share_bar(part: float, whole: float, *, title: str, width: int = 72) -> Markup:
    """A bar of which a part is filled."""
    filled = 0.0 if whole <= 0 else max(0.0, min(1.0, part / whole)) * width
    return _svg(
        f'<rect class="track" width="{width}" height="8" rx="4"/>'
        f'<rect class="fill" width="{filled:.1f}" height="8" rx="4"/>',
        width, 8, title, "share",
    )  # fmt: skip


def span_bar(start: float, length: float, whole: float, *, title: str, width: int = 160) -> Markup:
    """Where something lay within a span of time."""
    if whole <= 0:
        start, length, whole = 0.0, 1.0, 1.0
    x = max(0.0, min(1.0, start / whole)) * width
    wide = max(2.0, min(width - x, length / whole * width))
    x = min(x, width - 2.0)
    return _svg(
        f'<rect class="track" y="3" width="{width}" height="2"/>'
        f'<rect class="fill" x="{x:.1f}" width="{wide:.1f}" height="8" rx="2"/>',
        width, 8, title, "span",
    )  # fmt: skip


def tokens_over_days(days: Sequence[tuple[str, int, int, int]]) -> Markup:
    """Tokens shown and tokens of everything, per day, as bars one behind the other: `(day, decisions, shown, all)`."""
    top = max((row[3] for row in days), default=0) or 1
    inner, base = WIDTH - _LEFT - 8, HEIGHT - _BOTTOM
    step = inner / max(len(days), 1)
    wide = min(44.0, step * 0.7)
    parts = [_line_at(base - (base - 12) * fraction, round(top * fraction)) for fraction in (0.5, 1.0)]
    every = max(1, -(-len(days) // 8))
    for at, (day, decisions, shown, whole) in enumerate(days):
        x = _LEFT + step * at + (step - wide) / 2
        for value, of in ((whole, "all"), (shown, "shown")):
            high = (base - 12) * value / top
            parts.append(
                f'<rect class="{of}" x="{x:.1f}" y="{base - high:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="2">'
                f"<title>{_text(f'{day}: {shown:,} of {whole:,} tokens, {decisions:,} decisions')}</title></rect>"
            )
        if at % every == 0:
            parts.append(f'<text class="tick" x="{x + wide / 2:.1f}" y="{HEIGHT - 6}">{_text(day[5:])}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH}" y1="{base}" y2="{base}"/>')
    title = f"Tokens of tool definitions by day: shown, and what all tools would have been; {len(days)} days"
    return _svg("".join(parts), WIDTH, HEIGHT, title, "chart")


def _line_at(y: float, value: int) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="scale" x="{_LEFT - 6}" y="{y + 4:.1f}">{_text(short(value))}</text>'
    )


def short(value: float) -> str:
    """A number in few characters: 950, 1.5k, 88k, 2.1M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            shown = f"{value / limit:.1f}" if value < 10 * limit else f"{value / limit:.0f}"
            return f"{shown.removesuffix('.0')}{unit}"
    return f"{value:.0f}"


def _svg(body: str, width: int, height: int, title: str, kind: str) -> Markup:
    from markupsafe import Markup

    return Markup(  # noqa: S704 - built of numbers and escaped texts alone
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{_text(title)}"><title>{_text(title)}</title>{body}</svg>'
    )


def _text(text: str) -> str:
    from markupsafe import escape

    return str(escape(text))
