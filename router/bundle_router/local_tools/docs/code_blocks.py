"""Makes every listing of a page one `pre` that holds plain lines.

Highlighters write a line as a block, as a span that ends with a newline or with `<br>`, or as a row
of a table; and line numbers as a column of a table, or within each line. Only the code stays.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from bundle_router.local_tools.docs.soup import (
    NavigableString,
    Tag,
    attribute,
    children,
    classes,
    has_class,
    squeeze,
    tag_of,
    words,
)

_NUMBER_CLASSES: Final = words("""
    linenos lineno linenumber line-number line-numbers-rows gutter lnt ln
    react-syntax-highlighter-line-number hljs-ln-numbers blob-num source-line-no
""")
_LINE_CLASSES: Final = words("line code-line token-line view-line CodeMirror-line")
_BLOCKS: Final = words("div p li tr ul ol table tbody section figure h1 h2 h3 h4 h5 h6")
_CELLS: Final = ("td", "th")
_LANGUAGE: Final = re.compile(
    r"(?:highlight-source|highlight|language|lang)-([A-Za-z0-9+#-]{1,20})"
)
_NO_LANGUAGE: Final = words("default none text plaintext notranslate source")
_BRUSH: Final = re.compile(r"brush:\s{0,9}([A-Za-z0-9+#-]{1,20})")
_NAMED_BY: Final = words("hljs sourceCode")
"""Classes beside which the language stands as a class of its own."""
_LABEL_WITHIN: Final = 5
"""How many elements and texts before a listing are looked through for its label."""
_NOT_NAMES: Final = words("numberSource numberLines hljs sourceCode highlight")


def shape_code(main: Tag) -> None:
    """Replace listings, whatever they are made of, by `pre` with plain lines."""
    for fragment in main.find_all("div", class_="fragment"):
        if fragment.find("div", class_="line", recursive=False):
            fragment.name = "pre"
    _unpack_numbered_tables(main)
    for pre in main.find_all("pre"):
        if pre.find("pre") is not None:
            pre.unwrap()
    for pre in main.find_all("pre"):
        if language := _language(pre):
            pre["data-language"] = language
            _drop_label(pre, language)
        text = _lines_of(pre)
        pre.clear()
        pre.append(NavigableString(text))


def _unpack_numbered_tables(main: Tag) -> None:
    """Replace a table of line numbers and code by its code."""
    for table in main.find_all("table"):
        rows = _rows_of(table)
        if not _is_cells_alone(table, rows):
            continue
        if _has_a_row_a_line(table):
            _unpack_rows(table, rows)
        elif len(rows) in (1, 2):
            _unpack_columns(table, rows)


def _is_cells_alone(table: Tag, rows: list[Tag]) -> bool:
    """Return whether all that a table says is in its cells."""
    cells = "".join(cell.get_text() for row in rows for cell in children(row, _CELLS))
    return bool(rows) and "".join(cells.split()) == "".join(table.get_text().split())


def _has_a_row_a_line(table: Tag) -> bool:
    return table.find_parent("pre") is not None or has_class(table, ("hljs-ln", "diff-table"))


def _rows_of(table: Tag) -> list[Tag]:
    rows = children(table, ("tr",))
    for part in children(table, ("thead", "tbody", "tfoot")):
        rows += children(part, ("tr",))
    return rows


def _unpack_rows(table: Tag, rows: list[Tag]) -> None:
    """Make every row a line, or lines: what its cells hold besides numbers."""
    lines = []
    for row in rows:
        texts = [_lines_of(cell) for cell in children(row, _CELLS) if not _is_number(cell)]
        if texts:
            lines.append("".join(texts).removesuffix("\n"))
    if table.find_parent("pre") is None:
        table.replace_with(tag_of("pre", "\n".join(lines)))
    else:
        table.replace_with(NavigableString("\n".join(lines)))


def _unpack_columns(table: Tag, rows: list[Tag]) -> None:
    """Put the listing of the last row, if its other cell counts lines, in the table's place."""
    cells = children(rows[-1], _CELLS)
    if len(cells) != 2 or not _counts_lines(cells[0]):
        return
    if cells[1].find("pre") is None:
        return
    if len(rows) == 2:  # the name of the file
        table.insert_before(tag_of("p", squeeze(rows[0].get_text())))
    cells[1].name = "div"
    table.replace_with(cells[1])


def _is_number(cell: Tag) -> bool:
    if has_class(cell, _NUMBER_CLASSES):
        return True
    return cell.get_text(" ").replace(" ", "").isdigit() and cell.find_next_sibling() is not None


def _counts_lines(cell: Tag) -> bool:
    if cell.find("pre") is None and not has_class(cell, _NUMBER_CLASSES):
        return False
    numbers = cell.get_text(" ").split()
    return all(number.isdigit() for number in numbers)


def _language(pre: Tag) -> str:
    inner = pre.find("code")
    for tag in (inner, pre, *list(pre.parents)[:3]):
        if tag is None:
            continue
        if name := _language_of(tag):
            return name.lower()
    return ""


def _language_of(tag: Tag) -> str:
    for key in ("data-language", "data-lang"):
        value = attribute(tag, key)
        if re.fullmatch(r"[A-Za-z0-9+#-]{1,20}", value) and value not in _NO_LANGUAGE:
            return value
    names = classes(tag)
    for name in names:
        match = _LANGUAGE.fullmatch(name)
        if match and match.group(1) not in _NO_LANGUAGE:
            return match.group(1)
    brush = _BRUSH.search(" ".join(names)) or _BRUSH.search(
        attribute(tag, "data-syntaxhighlighter-params")
    )
    if brush:
        return brush.group(1)
    if _NAMED_BY.isdisjoint(names):
        return ""
    return next((name for name in names if name not in _NOT_NAMES and name.isalnum()), "")


def _drop_label(pre: Tag, language: str) -> None:
    """Take out the language's name that VitePress shows in a corner of the listing."""
    for label in islice(pre.previous_siblings, _LABEL_WITHIN):
        if not isinstance(label, Tag) or label.name != "span" or not has_class(label, ("lang",)):
            continue
        if squeeze(label.get_text()).lower() == language:
            label.extract()
        return


def _lines_of(listing: Tag) -> str:
    writer = _LineWriter()
    writer.write(listing)
    return writer.text()


class _LineWriter:
    """Writes the text of a listing as a browser shows it: a block is a line of its own."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._at_start = True

    def text(self) -> str:
        return "".join(self._parts)

    def write(self, tag: Tag) -> None:
        children = list(tag.children)
        has_blocks = any(isinstance(child, Tag) and child.name in _BLOCKS for child in children)
        for child in children:
            if isinstance(child, Tag):
                self._write_tag(child)
            elif isinstance(child, NavigableString):
                if has_blocks and not child.strip():
                    continue  # between two blocks, for the eye of who reads the source
                self._add(str(child))

    def _write_tag(self, tag: Tag) -> None:
        if tag.name == "br":
            self._add("\n")
        elif has_class(tag, _NUMBER_CLASSES) or _is_number_column(tag):
            return
        elif tag.name in _BLOCKS:
            self._write_block(tag)
        else:
            self.write(tag)
            if _is_line_without_end(tag) and not self._at_start:
                self._add("\n")

    def _write_block(self, block: Tag) -> None:
        if not self._at_start:
            self._add("\n")
        before = len(self._parts)
        self.write(block)
        is_empty = len(self._parts) == before
        if (is_empty and not _holds_numbers_alone(block)) or not self._at_start:
            self._add("\n")

    def _add(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._at_start = text.endswith("\n")


def _is_number_column(tag: Tag) -> bool:
    return tag.name == "td" and tag.has_attr("data-line-number") and not tag.get_text(strip=True)


def _holds_numbers_alone(block: Tag) -> bool:
    """Return whether a block without text is no empty line of code: it held a line's number."""
    return block.find(lambda tag: has_class(tag, _NUMBER_CLASSES)) is not None


def _is_line_without_end(tag: Tag) -> bool:
    """Return whether a line's span is shown as a block: the next line begins right behind it."""
    following = tag.next_sibling
    if not has_class(tag, _LINE_CLASSES) or not isinstance(following, Tag):
        return False
    return has_class(following, _LINE_CLASSES)
