"""Finds the content of a documentation page, and prepares it for conversion to Markdown.

It knows the habits of Sphinx (alabaster, furo, Read the Docs), MkDocs (Material), Docusaurus,
VitePress and rustdoc; each rule is for something seen in their pages. It changes a Beautiful Soup
tree in place, in passes that are linear in its size.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile, zip_longest
from typing import Final
from urllib.parse import urljoin, urlsplit

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PreformattedString

from bundle_router.local_tools.docs.deadline import Deadline

__all__ = ["ANCHOR_MARK", "Content", "NavigableString", "Tag", "read_content", "words"]

ANCHOR_MARK: Final = "\ue0a0"
"""Marks the requested anchor in the tree.

A private-use character, which is removed from the page first.
"""
MAX_DEPTH: Final = 80
"""Maximum nesting. Deeper elements become text, which bounds recursion and indentation."""
MAX_SPAN: Final = 20
MAX_MARK_SEARCH: Final = 1_000
"""Maximum elements after an anchor that are searched for its first text."""
MAX_LINK: Final = 2048


def words(text: str) -> frozenset[str]:
    """Return the words of a text, so that long lists stay readable."""
    return frozenset(text.split())


_NOISE_TAGS: Final = words("""
    script style noscript template nav aside form button input select textarea svg iframe object
        embed canvas audio
    video dialog link meta head
""")
_NOISE_ROLES: Final = frozenset(
    {"navigation", "search", "banner", "contentinfo", "complementary", "dialog"}
)
_NOISE_CLASSES: Final = words("""
    headerlink hash-link header-anchor viewcode-link viewcode-back linenos lineno gutter
        sphinxsidebar related
    related-pages rst-footer-buttons back-to-top content-icon-container md-content__button
        md-source-file
    theme-doc-footer theme-doc-breadcrumbs pagination-nav edit-this-page visually-hidden sr-only
""")
_ADMONITIONS: Final = frozenset(
    {"admonition", "theme-admonition", "custom-block", "notecard", "markdown-alert"}
)
_BLOCKS: Final = frozenset(
    {"header", "footer", "main", "hgroup", "figure", "details", "center", "fieldset", "address"}
)
_ALIASES: Final = {"tt": "code", "var": "em", "dfn": "em", "cite": "em", "strike": "s"}
_PERMALINKS: Final = frozenset({"", "¶", "#", "§", "🔗", "\u200b"})
_LANGUAGE: Final = re.compile(r"(?:highlight|language|lang)-([A-Za-z0-9+#-]{1,20})")
_NO_LANGUAGE: Final = frozenset({"default", "none", "text", "plaintext", "notranslate", "source"})
_LINKABLE: Final = frozenset({"http", "https", "mailto"})
_KEPT_ATTRIBUTES: Final = {
    "a": ("href",),
    "img": ("src", "alt"),
    "pre": ("data-language",),
    "li": ("data-number",),
    "td": ("colspan",),
    "th": ("colspan",),
}


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a page: its title (one line), and its cleaned main element.

    `marked`: the requested anchor exists, and `ANCHOR_MARK` is before its text.
    """

    title: str
    main: Tag
    marked: bool


def read_content(
    html: str, *, base: str, anchor: str, keeps_image: Callable[[str], bool], deadline: Deadline
) -> Content:
    """Return only the content, prepared for conversion, with absolute links.

    `base` is the page's URL. Images are kept if `keeps_image(absolute URL)`, else replaced by their
    text. The element of id `anchor` gets an `ANCHOR_MARK`. Raises the deadline's ToolFailure.
    """
    deadline.check("reading the page")
    soup = BeautifulSoup(html.replace(ANCHOR_MARK, ""), "lxml")
    title = _squeeze(soup.title.get_text()) if soup.title else ""
    main = _main_of(soup)
    marked = bool(anchor) and _mark_anchor(main, anchor)
    for step in (
        _flatten,
        _drop_noise,
        _shape_code,
        _shape_signatures,
        _shape_boxes,
        _shape_tabs,
        _rename,
        _number,
    ):
        deadline.check("cleaning the page")
        step(main)
    base = _base_of(soup, base)
    for image in main.find_all("img"):
        _shape_image(image, base, keeps_image)
    for link in main.find_all("a"):
        _shape_link(link, base)
    deadline.check("cleaning the page")
    _tidy_text(main)
    for tag in main.find_all(True):
        _keep_attributes(tag)
    return Content(title.replace(ANCHOR_MARK, ""), main, marked)


def _main_of(soup: BeautifulSoup) -> Tag:
    """Return the first there is of: `role=main`, the only article of `<main>`, `<main>`, the only
    article, the body.
    """
    if marked := _outermost_tags(soup.find_all(role="main")):
        return max(marked, key=_size)
    mains = _outermost_tags(soup.find_all("main"))
    scope: Tag = max(mains, key=_size) if mains else soup
    articles = _outermost_tags(scope.find_all("article"))
    if len(articles) == 1:
        return articles[0]
    if mains:
        return scope
    return soup.body or soup


def _outermost_tags(tags: list[Tag]) -> list[Tag]:
    """Return the tags that are in no other of them, so that measuring all stays linear."""
    tag_ids = {id(tag) for tag in tags}
    return [tag for tag in tags if not any(id(parent) in tag_ids for parent in tag.parents)]


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _size(tag: Tag) -> int:
    return len(tag.get_text())


def _classes(tag: Tag) -> list[str]:
    value = tag.get("class")
    return [value] if isinstance(value, str) else list(value or ())


def _attribute(tag: Tag, name: str) -> str:
    value = tag.get(name)
    return value if isinstance(value, str) else ""


def _base_of(soup: BeautifulSoup, page: str) -> str:
    base = soup.find("base", href=True)
    return (_absolute_url(_attribute(base, "href"), page) if base else None) or page


def _mark_anchor(main: Tag, anchor: str) -> bool:
    """Put the mark before the first text at or after the anchor, where it does not change the
    Markdown.
    """
    target = main.find(id=anchor) or main.find("a", attrs={"name": anchor})
    for element in islice(target.next_elements if target else (), MAX_MARK_SEARCH):
        above = takewhile(lambda parent: parent is not main, element.parents)
        if _is_text(element) and not any(map(_is_noise, above)):
            text = str(element)
            start = len(text) - len(text.lstrip())
            element.replace_with(text[:start] + ANCHOR_MARK + text[start:])
            return True
    return False


def _is_text(element: object) -> bool:
    plain = isinstance(element, NavigableString) and not isinstance(element, PreformattedString)
    return plain and bool(str(element).strip())


def _flatten(main: Tag) -> None:
    level = [main]
    for _ in range(MAX_DEPTH):
        deeper = []
        for tag in level:
            deeper += [child for child in tag.children if isinstance(child, Tag)]
        level = deeper
    for tag in level:
        tag.string = tag.get_text(" ")


def _drop_noise(main: Tag) -> None:
    waiting = [main]
    while waiting:
        for child in list(waiting.pop().children):
            if isinstance(child, PreformattedString):  # comments, CDATA, processing instructions
                child.extract()
            elif isinstance(child, Tag):
                if _is_noise(child):
                    child.extract()
                else:
                    waiting.append(child)


def _is_noise(tag: Tag) -> bool:
    if tag.name in _NOISE_TAGS or _attribute(tag, "role") in _NOISE_ROLES:
        return True
    if not _NOISE_CLASSES.isdisjoint(_classes(tag)):
        return True
    if tag.has_attr("hidden") or _attribute(tag, "aria-hidden") == "true":
        return True
    return _is_permalink(tag)


def _is_permalink(tag: Tag) -> bool:
    """Return whether it is an empty link within its page, whatever its class; one with a picture
    is content.
    """
    if tag.name != "a" or not _attribute(tag, "href").startswith("#"):
        return False
    return tag.get_text().strip() in _PERMALINKS and tag.find("img") is None


def _shape_code(main: Tag) -> None:
    for numbered in main.find_all("table", class_="highlighttable"):
        listings = numbered.find_all("pre")
        if listings:
            numbered.replace_with(listings[-1])
    for pre in main.find_all("pre"):
        if pre.find_parent(["td", "th"]):
            pre.name = "code"  # a table row can't contain a fence
        elif language := _language(pre):
            pre["data-language"] = language


def _language(pre: Tag) -> str:
    inner = pre.find("code", recursive=False)
    near = [inner, pre, *list(pre.parents)[:3]]
    for tag in near:
        for name in _classes(tag) if tag else ():
            match = _LANGUAGE.fullmatch(name)
            if match and match.group(1) not in _NO_LANGUAGE:
                return match.group(1).lower()
    return ""


def _shape_signatures(main: Tag) -> None:
    for term in main.find_all("dt", class_="sig"):
        _replace_content(term, "code", _squeeze(term.get_text()))
    for math in main.find_all("math"):
        source = math.find("annotation", attrs={"encoding": "application/x-tex"})
        if source:
            math.replace_with(f"${_squeeze(source.get_text())}$")


def _shape_boxes(main: Tag) -> None:
    for box in main.find_all("div"):
        if not _ADMONITIONS.isdisjoint(_classes(box)):
            box.name = "blockquote"
            title = next(filter(_is_box_title, box.descendants), None)
            if isinstance(title, Tag):
                _make_title(title, capital=True)
    for summary in main.find_all("summary"):
        _make_title(summary)


def _is_box_title(element: object) -> bool:
    if not isinstance(element, Tag):
        return False
    return any(
        name.endswith("-title") or name.startswith("admonitionHeading")
        for name in _classes(element)
    )


def _make_title(tag: Tag, *, capital: bool = False) -> None:
    text = _squeeze(tag.get_text())
    tag.name = "p"
    _replace_content(tag, "strong", text[:1].upper() + text[1:] if capital else text)


def _shape_tabs(main: Tag) -> None:
    for tabs in main.find_all("div", class_="tabbed-set"):
        labels = tabs.find("div", class_="tabbed-labels")
        blocks = tabs.find_all("div", class_="tabbed-block")
        if labels is None:
            continue
        for label, block in zip_longest(labels.find_all("label"), blocks):
            if label is not None and block is not None:
                _make_title(label)
                block.insert(0, label.extract())
        labels.extract()
    for label in main.find_all("label"):
        _make_title(label)


def _rename(main: Tag) -> None:
    for tag in main.find_all(True):
        if tag.name in _BLOCKS:
            tag.name = "div"
        tag.name = _ALIASES.get(tag.name, tag.name)


def _number(main: Tag) -> None:
    for ordered in main.find_all("ol"):
        start = _whole_number(_attribute(ordered, "start"), digits=6)
        items = ordered.find_all("li", recursive=False)
        for number, item in enumerate(items, 1 if start is None else start):
            item["data-number"] = str(number)


def _whole_number(text: str, *, digits: int) -> int | None:
    """Return the number of at most `digits` digits that a text is; None for another text."""
    if not text.isascii() or not text.isdigit() or len(text) > digits:
        return None
    return int(text)


def _shape_image(image: Tag, base: str, keeps_image: Callable[[str], bool]) -> None:
    text = _squeeze(_attribute(image, "alt"))
    source = _absolute_url(_attribute(image, "src"), base)
    if source is not None and keeps_image(source):
        image["src"] = source
        image["alt"] = text
    else:
        image.replace_with(text)


def _shape_link(link: Tag, base: str) -> None:
    target = _absolute_url(_attribute(link, "href"), base)
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
        if text.find_parent("pre") is None:
            inner = _squeeze(text)
            lead = " " if text[:1].isspace() else ""
            tail = " " if text[-1:].isspace() and inner else ""
            if text != (plain := f"{lead}{inner}{tail}"):
                text.replace_with(plain)


def _keep_attributes(tag: Tag) -> None:
    names = _KEPT_ATTRIBUTES.get(tag.name, ())
    attributes = {name: tag[name] for name in names if tag.has_attr(name)}
    if "colspan" in attributes:
        span = _whole_number(_attribute(tag, "colspan"), digits=3) or 1
        attributes["colspan"] = str(min(span, MAX_SPAN))
    tag.attrs = attributes


def _replace_content(tag: Tag, wrapper: str, text: str) -> None:
    tag.clear()
    inner = Tag(name=wrapper)
    inner.string = text
    tag.append(inner)
