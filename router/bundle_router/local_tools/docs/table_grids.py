"""Makes every table of a page one that Markdown can say: a head, rows of single cells, lines.

Rules:

1. A table that holds another one, and has neither heads nor a caption, is layout: its cells are
   blocks of the page.
2. A cell over several rows is repeated in each of them where it is short, since each row has its
   value; over several columns, the further ones are empty. So no row shifts.
3. The head is the first row, if it is in `thead` or has heads alone; else the head is empty. A foot
   comes last, a caption stands before the table.
4. Blocks within a cell are lines of it, ended by `CELL_BREAK`.
"""

from __future__ import annotations

import copy
from typing import Final

from bundle_router.local_tools.docs.soup import (
    CELL_BREAK,
    KEPT_SPACE,
    NavigableString,
    Tag,
    attribute,
    children,
    descendants,
    has_class,
    tag_of,
    whole_number,
    words,
)

MAX_COLUMNS: Final = 20
"""Maximum columns that one cell is said to take."""
MAX_ROWS: Final = 65_534
"""Maximum rows that one cell is said to take, as in browsers."""
MAX_REPEATED: Final = 100
"""Maximum characters of a cell that is repeated in the rows it takes."""
MAX_FILLED: Final = 10_000
"""Maximum cells that are added to the tables of a page. Further rows are left as they are."""

_SECTIONS: Final = ("thead", "tbody", "tfoot")
_CELLS: Final = ("td", "th")
_PARTS: Final = frozenset({*_SECTIONS, *_CELLS, "tr", "caption", "colgroup", "col"})
_LINES: Final = words("""
    p div ul ol li dl dt dd blockquote pre table tr section figure figcaption details summary
    h1 h2 h3 h4 h5 h6 hr br
""")
_GRID_COLUMNS: Final = {
    "two-column-summary": 2,
    "three-column-summary": 3,
    "four-column-summary": 4,
}
"""Javadoc's tables, which are cells alone."""


def shape_tables(main: Tag) -> int:
    """Change every table of the main part as the rules say. Return how many cells under merged ones
    a bound kept from being filled in: what is behind them stands too far left.
    """
    for name, columns in _GRID_COLUMNS.items():
        for grid in main.find_all("div", class_=name):
            _make_table(grid, columns)
    filling = _Filling()
    for table in main.find_all("table"):
        if table.name != "table":
            continue  # it was in a cell of another one
        if _is_layout(table):
            _unwrap_layout(table)
        else:
            _shape_table(table, filling)
    return filling.missing


def _make_table(grid: Tag, columns: int) -> None:
    cells = [child for child in grid.children if isinstance(child, Tag)]
    if any(isinstance(child, NavigableString) and child.strip() for child in grid.children):
        return
    grid.name = "table"
    grid.clear()
    for start in range(0, len(cells), columns):
        row = tag_of("tr")
        for cell in cells[start : start + columns]:
            cell.name = "th" if has_class(cell, ("table-header",)) else "td"
            row.append(cell)
        grid.append(row)


def _is_layout(table: Tag) -> bool:
    if attribute(table, "role") in ("presentation", "none"):
        return True
    if table.find("table") is None:
        return False
    rows = _rows_of(table)
    has_heads = any(children(row, ("th",)) for row in rows)
    return not has_heads and table.find("caption", recursive=False) is None


def _unwrap_layout(table: Tag) -> None:
    for row in _rows_of(table):
        for cell in children(row, _CELLS):
            cell.name = "div"
        row.name = "div"
    for part in children(table, _SECTIONS):
        part.name = "div"
    table.name = "div"


def _rows_of(table: Tag) -> list[Tag]:
    """Return the rows of a table, not of tables within it: of its head, bodies and foot."""
    rows = {"thead": list[Tag](), "tbody": list[Tag](), "tfoot": list[Tag]()}
    for part in children(table, (*_SECTIONS, "tr")):
        if part.name == "tr":
            rows["tbody"].append(part)
        else:
            rows[part.name] += children(part, ("tr",))
    return rows["thead"] + rows["tbody"] + rows["tfoot"]


def _shape_table(table: Tag, filling: _Filling) -> None:
    for caption in children(table, ("caption",)):
        caption.name = "p"
        table.insert_before(caption.extract())
    _wrap_cells(table)
    _put_strays_before(table)
    rows = _rows_of(table)
    has_head = bool(rows) and _is_head(rows[0])
    grid = filling.fill(rows)
    width = max((len(cells) for cells in grid), default=0)
    table.clear()
    if not width:
        return
    if not has_head:
        grid.insert(0, [])
    head = grid[0]
    head += [tag_of("td") for _ in range(width - len(head))]
    for number, cells in enumerate(grid):
        row = tag_of("tr")
        row.extend(cells)
        if number == 0:
            row["data-head"] = str(width)
        table.append(row)
    for cells in grid:
        for cell in cells:
            _shape_cell(cell)


def _put_strays_before(table: Tag) -> None:
    """Put what is in a table and in none of its cells before it, as browsers do."""
    places = [table, *children(table, _SECTIONS)]
    places += [row for place in list(places) for row in children(place, ("tr",))]
    for place in places:
        for child in list(place.children):
            if isinstance(child, Tag) and child.name in _PARTS:
                continue
            if str(child).strip():
                table.insert_before(child.extract())


def _wrap_cells(table: Tag) -> None:
    """Put cells that are in no row into one each, as browsers do."""
    for place in [table, *children(table, _SECTIONS)]:
        for cell in children(place, _CELLS):
            before = cell.find_previous_sibling()
            if before is not None and before.name == "tr" and before.has_attr("data-wraps"):
                before.append(cell.extract())
                continue
            row = cell.wrap(tag_of("tr"))
            row["data-wraps"] = "yes"


def _is_head(row: Tag) -> bool:
    if row.parent is not None and row.parent.name == "thead":
        return True
    cells = children(row, _CELLS)
    return bool(cells) and all(cell.name == "th" for cell in cells)


class _Filling:
    """Adds the cells that others cover, at most `MAX_FILLED` on a page."""

    def __init__(self) -> None:
        self._left = MAX_FILLED
        self.missing = 0
        """Cells that were not added, though others cover them."""

    def fill(self, rows: list[Tag]) -> list[list[Tag]]:
        """Return the cells of every row, each in its column."""
        grid = []
        covered: dict[int, tuple[Tag, int]] = {}  # by column: the cell, and for how many rows still
        for row in rows:
            cells: list[Tag] = []
            for cell in children(row, _CELLS):
                self._add_covered(cells, covered)
                self._add_cell(cells, covered, cell)
            self._add_covered(cells, covered)
            grid.append(cells)
        return grid

    def _add_covered(self, cells: list[Tag], covered: dict[int, tuple[Tag, int]]) -> None:
        """Add what cells of the rows above cover in the next columns."""
        while (column := len(cells)) in covered:
            if self._left <= 0:
                self.missing += sum(rows_left for _, rows_left in covered.values())
                covered.clear()
                return
            cell, rows_left = covered.pop(column)
            self._left -= 1
            if rows_left > 1:
                covered[column] = (cell, rows_left - 1)
            cells.append(copy.copy(cell))

    def _add_cell(self, cells: list[Tag], covered: dict[int, tuple[Tag, int]], cell: Tag) -> None:
        """Add a cell and the columns that it takes, and cover its rows below."""
        rows = _span(cell, "rowspan", MAX_ROWS)
        columns = _span(cell, "colspan")
        if columns > MAX_COLUMNS:
            is_last = cell.find_next_sibling(_CELLS) is None
            self.missing += 0 if is_last else columns - MAX_COLUMNS
            columns = MAX_COLUMNS
        repeated = tag_of("td")
        if rows > 1 and len(cell.get_text()) <= MAX_REPEATED and cell.find("table") is None:
            repeated = cell
        for number in range(columns):
            if number and self._left <= 0:
                self.missing += columns - number
                return
            if number:
                self._left -= 1
            if rows > 1:
                covered[len(cells)] = (tag_of("td") if number else copy.copy(repeated), rows - 1)
            cells.append(tag_of("td") if number else cell)


def _span(cell: Tag, name: str, most: int = 1_000) -> int:
    span = whole_number(attribute(cell, name), digits=6)
    return max(1, min(span or 1, most))


def _shape_cell(cell: Tag) -> None:
    """Make the blocks of a cell lines of its text."""
    for block in descendants(cell, _LINES):
        if block.parent is None:
            continue  # a line of code that was replaced
        if block.name == "pre":
            _shape_listing(block)
        elif block.name == "br":
            block.replace_with(NavigableString(CELL_BREAK))
        else:
            _shape_block(block)


def _shape_block(block: Tag) -> None:
    if block.name == "li":
        number = attribute(block, "data-number")
        block.insert(0, NavigableString(f"{number}. " if number else "- "))
    block.insert_before(NavigableString(CELL_BREAK))
    block.insert_after(NavigableString(CELL_BREAK))
    block.name = "span"


def _shape_listing(pre: Tag) -> None:
    lines = pre.get_text().strip("\n").split("\n")
    for line in lines:
        pre.insert_before(NavigableString(CELL_BREAK))
        text = line.rstrip().expandtabs(4).replace(" ", KEPT_SPACE)
        if text:
            pre.insert_before(tag_of("code", text))
    pre.insert_before(NavigableString(CELL_BREAK))
    pre.extract()
