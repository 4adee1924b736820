"""Output for people and programs: plain lines, tables, JSON.

Nothing printed can control a terminal.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from bundle_router.core.values.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

    from bundle_router.review.search_habits import SearchHabit


GAP: Final = 2


def print_json(value: Any) -> None:
    """Print one JSON document, indented for a terminal and on one line for a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=True, default=str) + "\n")


def say(text: str = "") -> None:
    """Print a line of text, with controls and invisible characters escaped."""
    sys.stdout.write(visible(text) + "\n")


def say_skipped(reasons: Iterable[str]) -> None:
    """Print on standard error what was passed over, a line each."""
    for reason in reasons:
        sys.stderr.write(visible(f"bundle-router: skipped: {reason}") + "\n")


def print_result(arguments: argparse.Namespace, value: Any, text: str) -> None:
    """Print what a verb did: as one JSON document with `--json`, else as a line of text."""
    if arguments.json:
        print_json(value)
    else:
        say(text)


def console() -> Console:
    """Return a console with colour and boxes on a terminal, and plain unwrapped text in a pipe."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(
        highlight=False,
        soft_wrap=not terminal,
        width=None if terminal else 10_000,
        emoji=False,
        markup=False,
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Print a table: boxed and coloured on a terminal, without its empty columns; aligned columns
    in a pipe. On too narrow a terminal for the longest word of each column, rows are paragraphs. A
    column named `…>` is right-aligned.
    """
    heads = [name.removesuffix(">") for name in columns]
    right = [name.endswith(">") for name in columns]
    cells = [[one_line("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _plain_table(heads, right, cells, title)
        return

    indexes = [index for index in range(len(heads)) if any(row[index] for row in cells)]
    if not indexes:
        indexes = list(range(len(heads)))
    texts = [[heads[index], *(row[index] for row in cells)] for index in indexes]
    widths = _widths(texts, console().width)
    if not widths:
        _paragraphs(heads, cells, indexes)
        return

    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        title=title or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, width in zip(indexes, widths, strict=True):
        justify: Literal["right", "left"] = "right" if right[index] else "left"
        head = Text(heads[index], style="bold")
        grid.add_column(head, justify=justify, overflow="fold", width=width)
    for row in cells:
        grid.add_row(*(Text(row[index], _color_of(row[index])) for index in indexes))
    console().print(grid)


def _paragraphs(
    heads: Sequence[str], cells: Sequence[Sequence[str]], indexes: Sequence[int]
) -> None:
    first, *others = indexes
    for row in cells:
        heading(row[first])
        parts = [f"{heads[index]}: {row[index]}" for index in others if row[index]]
        say_whole("  ", " · ".join(parts), under=2)


def _color_of(word: str) -> str:
    if word in _GOOD:
        return "green"
    return "red" if word in _BAD else ""


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return each column's share of a terminal's width: its longest word, and of the rest as much
    as it needs; empty if there is too little room.
    """
    full_widths = [max(map(len, column)) for column in columns]
    widths = [_longest_word(column) for column in columns]
    room = width - GAP * len(columns) - sum(widths)
    if room < 0:
        return []

    short = [index for index in range(len(columns)) if widths[index] < full_widths[index]]
    while room > 0 and short:
        for index in short[:room]:
            widths[index] += 1
        room -= len(short[:room])
        short = [index for index in short if widths[index] < full_widths[index]]
    return widths


def _longest_word(column: Sequence[str]) -> int:
    return max((len(word) for cell in column for word in cell.split()), default=1)


_GOOD = frozenset(("ok", "yes", "mapping", "mapped", "identical"))
_BAD = frozenset(
    (
        "denied",
        "tool_error",
        "timeout",
        "policy_denied",
        "capability_missing",
        "no",
        "changed",
        "broken",
    )
)


def _plain_table(
    heads: Sequence[str], right: Sequence[bool], cells: Sequence[Sequence[str]], title: str
) -> None:
    rows = (heads, *cells)
    widths = [max(len(row[index]) for row in rows) for index in range(len(heads))]
    if title:
        sys.stdout.write(title + "\n")
    for row in rows:
        aligned = []
        for cell, width, is_right in zip(row, widths, right, strict=True):
            aligned.append(cell.rjust(width) if is_right else cell.ljust(width))
        sys.stdout.write("  ".join(aligned).rstrip() + "\n")


def counted(number: int, noun: str) -> str:
    """Return "1 run", or "2,000 runs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def excerpt(lead: str, text: str) -> str:
    """Return `lead` and as much of `text` as fits on one line: line ends become `⏎`, and the cut
    part is counted.
    """
    room = max(40, shutil.get_terminal_size((120, 24)).columns - len(lead) - 1)
    flat = one_line(text.strip())
    if len(flat) <= room:
        return lead + flat
    tail = f" … ({len(text):,} characters)"
    return lead + flat[: room - len(tail)].rstrip() + tail


def one_line(text: str) -> str:
    """Return the text on one line, so that no text can look like a line of ours: line ends become
    `⏎`, controls and invisible characters are escaped.
    """
    return visible(text).replace("\n", " ⏎ ")


def say_whole(lead: str, text: str, *, under: int) -> None:
    """Print `lead` and the whole of `text`: on a terminal wrapped to its width, with later lines
    indented by `under`; in a pipe on one line.
    """
    flat = one_line(text.strip())
    if not sys.stdout.isatty():
        say(lead + flat)
        return
    width = max(40, shutil.get_terminal_size((120, 24)).columns - 1)
    lines = textwrap.wrap(
        flat,
        width,
        initial_indent=lead,
        subsequent_indent=" " * under,
        break_on_hyphens=False,
        tabsize=1,
    )
    for line in lines or [lead]:
        say(line)


def show_habits(habits: Sequence[SearchHabit]) -> None:
    """Print who searched for tools and how often, and what to do where it is at every turn."""
    if not habits:
        return
    rows = [
        (habit.who, habit.searched, habit.steps, f"{habit.share:.0%}", habit.searches)
        for habit in habits
    ]
    say()
    table(("searched for tools", "steps with one>", "steps>", "share>", "searches>"), rows)
    for habit in habits:
        if habit.remedy:
            say(f"searches at every turn: {habit.remedy}")


def say_json(value: Any) -> None:
    """Print a JSON value for people: always indented, with controls and invisible characters
    escaped.
    """
    for line in json.dumps(value, indent=2, ensure_ascii=False, default=str).split("\n"):
        say(line)


T = TypeVar("T")


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error during the block, if that is a terminal.

    Yields the function that sets how much of `total` is done.
    """
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


def tracked(title: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items, and show how many are done on standard error, if that is a terminal."""
    with progress(title, len(items)) as advance:
        for number, item in enumerate(items, 1):
            yield item
            advance(number)


def heading(text: str) -> None:
    """Print a line that stands out on a terminal."""
    if sys.stdout.isatty():
        from rich.text import Text

        console().print(Text(one_line(text), style="bold"))
    else:
        say(one_line(text))
