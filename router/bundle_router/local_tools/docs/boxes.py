"""Makes quotes of the notes, warnings and asides of a page, with the word for their kind.

Generators say by a colour or an icon, which no reader of text sees, that a box is a warning; its
classes say so too.
"""

from __future__ import annotations

from typing import Final

from bundle_router.local_tools.docs.soup import (
    NavigableString,
    Tag,
    classes,
    has_class,
    make_title,
    replace_content,
    squeeze,
    title_of,
    words,
)

_BOXES: Final = words("""
    admonition theme-admonition custom-block notecard markdown-alert alert hint callout
    confluence-information-macro admonitionblock nextra-callout book-hint
""")
_KINDS: Final = {
    "note": "Note",
    "tip": "Tip",
    "info": "Info",
    "important": "Important",
    "warning": "Warning",
    "warn": "Warning",
    "caution": "Caution",
    "danger": "Danger",
    "error": "Error",
}
_TITLES: Final = ("-title", "__title", "-heading")


def shape_boxes(main: Tag) -> None:
    """Make every box of the main part a quote, and every summary a title."""
    for table_box in main.find_all("div", class_="admonitionblock"):
        _unpack_table(table_box)
    for box in main.find_all(["div", "aside", "blockquote"]):
        if _is_box(box):
            box.name = "blockquote"
            _shape_title(box)
    for summary in main.find_all("summary"):
        make_title(summary)


def _is_box(tag: Tag) -> bool:
    if tag.name == "aside":
        return not any(name.startswith("footnote") for name in classes(tag))
    return has_class(tag, _BOXES)


def _unpack_table(box: Tag) -> None:
    """Put the content of AsciiDoc's box, a table with an icon, in the table's place."""
    table = box.find("table", recursive=False)
    content = table.find("td", class_="content") if table is not None else None
    if table is None or content is None:
        return
    content.name = "div"
    table.replace_with(content)


def _shape_title(box: Tag) -> None:
    title = next(filter(_is_title, box.descendants), None)
    if isinstance(title, Tag):
        make_title(title, capital=True)
        return
    kind = _kind_of(box)
    start = squeeze(box.get_text())[:40].casefold()
    if kind and kind.casefold() not in start:
        box.insert(0, title_of(kind))


def _is_title(element: object) -> bool:
    if not isinstance(element, Tag):
        return False
    return any(
        name.endswith(_TITLES) or name.startswith("admonitionHeading") for name in classes(element)
    )


def _kind_of(box: Tag) -> str:
    for name in classes(box):
        if name in _BOXES:
            continue
        for part in name.replace("_", "-").split("-"):
            if part in _KINDS:
                return _KINDS[part]
    return ""


def shape_terms(main: Tag) -> None:
    """Write signatures as code: Sphinx's terms, Doxygen's prototypes."""
    for term in main.find_all("dt", class_="sig"):
        _make_code(term)
    for prototype in main.find_all("div", class_="memproto"):
        _make_code(prototype, separator=" ")


def _make_code(tag: Tag, separator: str = "") -> None:
    replace_content(tag, "code", squeeze(tag.get_text(separator)))


def _replace_task(task: Tag) -> None:
    mark = "[x]" if task.has_attr("checked") else "[ ]"
    following = task.next_sibling
    if not isinstance(following, NavigableString) or not following[:1].isspace():
        mark += " "
    task.replace_with(mark)


def shape_fields(main: Tag) -> None:
    """Write what a field says: a task that is done, code to copy, a reading above a character."""
    for task in main.find_all("input", type="checkbox"):
        if task.find_parent("li") is not None:
            _replace_task(task)
    for tasks in main.find_all("ul", class_="inline-task-list"):
        for item in tasks.find_all("li", recursive=False):
            item.insert(0, "[x] " if has_class(item, ("checked",)) else "[ ] ")
    for area in main.find_all("textarea"):
        area.name = "pre"
    for reading in main.find_all("rt"):
        if not isinstance(reading.previous_sibling, Tag) or reading.previous_sibling.name != "rp":
            reading.insert(0, "(")
            reading.append(")")
