"""A comparison as lines for a terminal. Everything in them is printable, whatever the server sent."""

from __future__ import annotations

from collections.abc import Iterator

from bundle_router.core.tools.pins.compare import Comparison, FieldDifference


def report_lines(comparison: Comparison) -> list[str]:
    """Return what `bundle-router pin` shows before it asks: nothing for a server that is as it was reviewed."""
    lines = [f"{comparison.name}: {what}" for what in (_summary(comparison),) if what]
    for difference in comparison.server:
        lines += _difference(difference)
    for change in comparison.tools:
        if change.kind == "unchanged":
            continue
        lines.append(
            f"  {change.kind:<8} {comparison.name}.{change.tool}" + (f"  {change.detail}" if change.detail else "")
        )
        for difference in change.differences:
            lines += (f"  {line}" for line in _difference(difference))
    return lines


def _summary(comparison: Comparison) -> str:
    kinds = [
        f"{len(names)} {kind}" for kind in ("changed", "added", "removed", "refused") if (names := comparison.of(kind))
    ]
    if comparison.server:
        kinds.insert(0, "the server itself changed, which concerns all its tools")
    return ", ".join(kinds)


def _difference(difference: FieldDifference) -> Iterator[str]:
    yield f"  {difference.path}"
    for sign, text in (("-", difference.before), ("+", difference.after)):
        if text is not None:
            yield from (f"    {sign} {line}" for line in text.split("\n"))
