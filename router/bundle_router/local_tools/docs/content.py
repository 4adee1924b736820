"""Reads the content of a page: its main part, prepared for conversion to Markdown.

It knows the habits of site generators (Sphinx, MkDocs, Docusaurus, VitePress, rustdoc, Javadoc and
others, see `tests/data/docs/constructs`); each rule is for something seen in their pages. Passes
change a Beautiful Soup tree in place, in time that is linear in its size:

    main_part     finds the main part, and takes out what is no content, counting that
    tab_panels    puts every panel under its label
    formulas      writes formulas as a line
    code_blocks   makes listings plain lines
    boxes         makes notes and warnings quotes
    table_grids   makes tables rows of single cells
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeGuard
from urllib.parse import urljoin, urlsplit

from bundle_router.local_tools.docs.boxes import shape_boxes, shape_fields, shape_terms
from bundle_router.local_tools.docs.code_blocks import shape_code
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.formulas import shape_formulas
from bundle_router.local_tools.docs.main_part import (
    OpenableParts,
    count_beside,
    find_main,
    leave_out,
    sentence,
)
from bundle_router.local_tools.docs.soup import (
    ANCHOR_MARK,
    NavigableString,
    PreformattedString,
    Tag,
    attribute,
    parse,
    squeeze,
    whole_number,
    words,
)
from bundle_router.local_tools.docs.tab_panels import shape_tabs
from bundle_router.local_tools.docs.table_grids import shape_tables

MAX_DEPTH: Final = 80
"""Maximum nesting. Deeper elements become text, which bounds recursion and indentation."""
MAX_MARK_SEARCH: Final = 1_000
"""Maximum elements after an anchor that are searched for its first text."""
MAX_LINK: Final = 2048
MAX_FRAMES: Final = 20
"""Maximum frames that are named where a page has nothing else."""

_BLOCKS: Final = words(
    "header footer main hgroup figure details center fieldset address form aside search"
)
_ALIASES: Final = {"tt": "code", "var": "em", "dfn": "em", "cite": "em", "strike": "s"}
_LINKABLE: Final = frozenset({"http", "https", "mailto"})
_KEPT_ATTRIBUTES: Final = {
    "a": ("href",),
    "img": ("src", "alt"),
    "pre": ("data-language",),
    "li": ("data-number",),
    "tr": ("data-head",),
}


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a page."""

    title: str
    """The page's title, on one line."""
    main: Tag
    """The main part, cleaned."""
    is_marked: bool
    """Whether the requested anchor exists; `ANCHOR_MARK` is then before its text."""
    left_out: str
    """What of the page is not in `main`, or not in its place, as one line; "" if nothing."""
    emptiness: str
    """Why there may be nothing to read here: where the page leads, or what it waits for."""


def read_content(
    html: str, *, base: str, anchor: str, keeps_image: Callable[[str], bool], deadline: Deadline
) -> Content:
    """Return only the content, prepared for conversion, with absolute links.

    `base` is the page's URL. Images are kept if `keeps_image(absolute URL)`, else replaced by their
    text. The element of id `anchor` gets an `ANCHOR_MARK`. Raises the deadline's ToolFailure.
    """
    deadline.check("reading the page")
    soup = parse(html)
    title = squeeze(soup.title.get_text()) if soup.title else ""
    base = _base_of(soup, base)
    emptiness = _emptiness_of(soup, base)
    main = find_main(soup)
    counts = count_beside(soup, main)
    opened = OpenableParts(main)
    deadline.check("cleaning the page")
    _flatten(main)
    anchored = _texts_after(main, anchor) if anchor else []
    counts["closed panel"] += shape_tabs(main)
    shape_formulas(main)
    shape_fields(main)
    counts += leave_out(main, opened)
    is_marked = _mark_first(main, anchored)
    for shape in (shape_code, shape_terms, shape_boxes, _number):
        deadline.check("cleaning the page")
        shape(main)
    deadline.check("cleaning the page")
    missing = shape_tables(main)
    deadline.check("cleaning the page")
    _rename(main)
    for image in main.find_all("img"):
        _shape_image(image, base, keeps_image)
    for link in main.find_all("a"):
        _shape_link(link, base)
    deadline.check("cleaning the page")
    _tidy_text(main)
    for tag in main.find_all(True):
        _keep_attributes(tag)
    return Content(
        title.replace(ANCHOR_MARK, ""), main, is_marked, sentence(counts, missing), emptiness
    )


def _base_of(soup: Tag, page: str) -> str:
    base = soup.find("base", href=True)
    return (_absolute_url(attribute(base, "href"), page) if base else None) or page


def _emptiness_of(soup: Tag, base: str) -> str:
    """Return why a page may hold no text; "" where it gives no reason."""
    frames = [_absolute_url(attribute(frame, "src"), base) for frame in soup.find_all("frame")]
    if named := [frame for frame in frames[:MAX_FRAMES] if frame]:
        return f"it only shows other pages in frames: {', '.join(named)}"
    for meta in soup.find_all("meta"):
        if attribute(meta, "http-equiv").lower() == "refresh":
            _, _, target = attribute(meta, "content").partition("=")
            if url := _absolute_url(target.strip(" \"'"), base):
                return f"it only leads to {url}"
    if soup.find("script") is not None:
        return "it is filled by JavaScript, which is not run here"
    return ""


def _texts_after(main: Tag, anchor: str) -> list[NavigableString]:
    """Return the texts at and after an anchor, the first `MAX_MARK_SEARCH` elements of them."""
    target = main.find(id=anchor) or main.find("a", attrs={"name": anchor})
    following = islice(target.next_elements, MAX_MARK_SEARCH) if target is not None else ()
    return [element for element in following if _is_text(element)]


def _mark_first(main: Tag, texts: list[NavigableString]) -> bool:
    """Put the mark before the first of these texts that is still in the main part, where it does
    not change the Markdown. Line numbers, which go later, are passed over.
    """
    for element in texts:
        text = str(element)
        if text.strip().isdigit() or not any(parent is main for parent in element.parents):
            continue
        start = len(text) - len(text.lstrip())
        element.replace_with(text[:start] + ANCHOR_MARK + text[start:])
        return True
    return False


def _is_text(element: object) -> TypeGuard[NavigableString]:
    if not isinstance(element, NavigableString) or isinstance(element, PreformattedString):
        return False
    return bool(element.strip())


def _flatten(main: Tag) -> None:
    level = [main]
    for _ in range(MAX_DEPTH):
        deeper = []
        for tag in level:
            deeper += [child for child in tag.children if isinstance(child, Tag)]
        level = deeper
    for tag in level:
        tag.string = tag.get_text(" ")


def _number(main: Tag) -> None:
    """Write down the number of every item of an ordered list, as a browser counts them."""
    for ordered in main.find_all("ol"):
        items = ordered.find_all("li", recursive=False)
        step = -1 if ordered.has_attr("reversed") else 1
        start = whole_number(attribute(ordered, "start"), digits=6)
        if start is None:
            start = len(items) if step < 0 else 1
        number = start
        for item in items:
            own = whole_number(attribute(item, "value"), digits=6)
            number = number if own is None else own
            item["data-number"] = _label_of(number, attribute(ordered, "type"))
            number += step


def _label_of(number: int, kind: str) -> str:
    if kind in ("a", "A") and 1 <= number <= 26:
        return chr(ord(kind) + number - 1)
    return str(number)


def _is_stray(tag: Tag) -> bool:
    """Return whether it is a row or cell without a table."""
    around = tag.parent.name if tag.parent is not None else ""
    if tag.name in ("td", "th"):
        return around != "tr"
    return tag.name == "tr" and around != "table"


def _rename(main: Tag) -> None:
    for tag in main.find_all(True):
        if tag.name in _BLOCKS or _is_stray(tag):
            tag.name = "div"
        tag.name = _ALIASES.get(tag.name, tag.name)


def _shape_image(image: Tag, base: str, keeps_image: Callable[[str], bool]) -> None:
    text = squeeze(attribute(image, "alt"))
    source = _absolute_url(attribute(image, "src"), base)
    if source is not None and keeps_image(source):
        image["src"] = source
        image["alt"] = text
    else:
        image.replace_with(text)


def _shape_link(link: Tag, base: str) -> None:
    target = _absolute_url(attribute(link, "href"), base)
    if target is not None:
        link["href"] = target
    else:
        link.attrs.pop("href", None)


def _absolute_url(reference: str, base: str) -> str | None:
    """Return an absolute http, https or mailto URL, safe between Markdown's parentheses; None for
    anything else.
    """
    # Browsers drop tabs and newlines before they read the scheme, so they are dropped before the
    # check too.
    reference = "".join(char for char in reference.strip() if char.isprintable())
    if not reference or len(reference) > MAX_LINK:
        return None
    try:
        joined = urljoin(base, reference)
        scheme = urlsplit(joined).scheme
    except ValueError:  # unbalanced brackets
        return None
    if scheme not in _LINKABLE:
        return None
    for char in " ()<>\"'\\":
        joined = joined.replace(char, f"%{ord(char):02X}")
    return joined


def _tidy_text(main: Tag) -> None:
    for text in list(main.find_all(string=True)):
        if not isinstance(text, NavigableString):
            continue
        if any(parent.name == "pre" for parent in text.parents):
            continue
        plain = _with_single_spaces(text)
        if text != plain:
            text.replace_with(plain)


def _with_single_spaces(text: str) -> str:
    """Return a text squeezed, with one space at each end where it has blanks there."""
    inner = squeeze(text)
    lead = " " if text[:1].isspace() else ""
    tail = " " if text[-1:].isspace() and inner else ""
    return f"{lead}{inner}{tail}"


def _keep_attributes(tag: Tag) -> None:
    names = _KEPT_ATTRIBUTES.get(tag.name, ())
    tag.attrs = {name: tag[name] for name in names if tag.has_attr(name)}
