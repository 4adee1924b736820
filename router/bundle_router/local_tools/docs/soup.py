"""Small things that the passes over a page's tree share.

A pass changes a Beautiful Soup tree in place, in time that is linear in its size; depth is bounded
by `content.MAX_DEPTH` before any of them runs.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Final

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PageElement, PreformattedString

__all__ = ["NavigableString", "PreformattedString", "Tag", "parse"]

ANCHOR_MARK: Final = "\ue0a0"
"""Marks the requested anchor in the tree. This and the next two are private-use characters, which
`parse` removes from the page first."""
CELL_BREAK: Final = "\ue0a1"
"""Ends a line within a cell of a table."""
KEPT_SPACE: Final = "\ue0a2"
"""A space that stays where others become one."""
_MARKS: Final = str.maketrans("", "", ANCHOR_MARK + CELL_BREAK + KEPT_SPACE)
_MARK_REFERENCES: Final = re.compile(r"&#(?:x0*e0a[0-2]|0*5750[4-6])(?![0-9a-f]);?", re.I)
"""The same characters as references."""


class OrderedTag(Tag):
    """A tag that looks for a child near the one that it found last.

    Beautiful Soup looks for the index of a child whenever one is taken out or put in, and begins at
    the first: a pass that changes thousands of siblings, one after the other, took minutes.
    """

    _found_at = 0

    def index(self, element: PageElement) -> int:
        """Return the index of a child. Raises ValueError for what is none."""
        siblings = self.contents
        near = min(self._found_at, len(siblings))
        for distance in range(len(siblings) + 1):
            for at in (near + distance, near - distance):
                if 0 <= at < len(siblings) and siblings[at] is element:
                    self._found_at = at
                    return at
        raise ValueError("it is not among the children")


def parse(html: str) -> BeautifulSoup:
    """Return the tree of a page, tag soup included."""
    html = _MARK_REFERENCES.sub("", html.translate(_MARKS))
    return BeautifulSoup(html, "lxml", element_classes={Tag: OrderedTag})


def words(text: str) -> frozenset[str]:
    """Return the words of a text, so that long lists stay readable."""
    return frozenset(text.split())


def squeeze(text: str) -> str:
    """Return the text with every run of whitespace as one space, and none at its edges."""
    return " ".join(text.split())


def classes(tag: Tag) -> list[str]:
    """Return the classes of an element, in order."""
    value = tag.get("class")
    return [value] if isinstance(value, str) else list(value or ())


def has_class(tag: Tag, names: Iterable[str]) -> bool:
    """Return whether an element has one of these classes."""
    return not set(names).isdisjoint(classes(tag))


def attribute(tag: Tag, name: str) -> str:
    """Return an attribute of an element; "" if it has none, or several values."""
    value = tag.get(name)
    return value if isinstance(value, str) else ""


def children(tag: Tag, names: Container[str]) -> list[Tag]:
    """Return the children of these names, in order; faster than `find_all` where there are many."""
    return [child for child in tag.children if isinstance(child, Tag) and child.name in names]


def descendants(tag: Tag, names: Container[str]) -> list[Tag]:
    """Return the elements of these names within a tag, in order."""
    return [inner for inner in tag.descendants if isinstance(inner, Tag) and inner.name in names]


def whole_number(text: str, *, digits: int) -> int | None:
    """Return the number of at most `digits` digits that a text is; None for another text."""
    if not text.isascii() or not text.isdigit() or len(text) > digits:
        return None
    return int(text)


def tag_of(name: str, text: str = "") -> Tag:
    """Return a new element that holds a text."""
    tag = OrderedTag(name=name)
    if text:
        tag.string = text
    return tag


def replace_content(tag: Tag, wrapper: str, text: str) -> None:
    """Make a text within one element the whole content of a tag."""
    tag.clear()
    tag.append(tag_of(wrapper, text))


def title_of(text: str) -> Tag:
    """Return a paragraph in bold, which stands for the title of a box or panel."""
    title = tag_of("p")
    title.append(tag_of("strong", squeeze(text)))
    return title


def make_title(tag: Tag, *, capital: bool = False) -> None:
    """Make a tag the title of a box or panel."""
    text = squeeze(tag.get_text())
    if capital:
        text = text[:1].upper() + text[1:]
    tag.name = "p"
    replace_content(tag, "strong", text)


def has_words(tag: Tag) -> bool:
    """Return whether there is a letter in an element's text."""
    return any(char.isalpha() for char in tag.get_text())
