"""Finds the main part of a page, and takes out of it what is no content, counting that.

Rules:

1. The main part is the first there is of: `role=main`, the only article of `<main>`, `<main>`, the
   only article, an id that generators without landmarks give it, the body.
2. What is in the main part stays: asides, forms, captions, closed panels, what is struck.
3. Left out, and counted, are menus, search forms, scripts, buttons and fields, what is hidden and
   opened by nothing on the page, pictures and films that have no text, and what is beside the main
   part.
4. Left out without a word are what has none: styles, icons, permalinks, line numbers, and what
   repeats its neighbour for another kind of reader.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from bundle_router.local_tools.docs.soup import (
    NavigableString,
    PreformattedString,
    Tag,
    attribute,
    classes,
    has_class,
    has_words,
    squeeze,
    words,
)

_KINDS: Final = (
    ("menu", "menus"),
    ("form", "forms"),
    ("aside", "asides"),
    ("header", "headers"),
    ("footer", "footers"),
    ("dialog", "dialogs"),
    ("closed panel", "closed panels"),
    ("script", "scripts"),
    ("button", "buttons"),
    ("input field", "input fields"),
    ("hidden part", "hidden parts"),
    ("embedded page", "embedded pages"),
    ("video", "videos"),
    ("recording", "recordings"),
    ("drawing", "drawings"),
    ("other part", "other parts"),
)
"""What is counted, one and several, in the order of the sentence."""

_MAIN_IDS: Final = ("doc-content", "main-content")
_WORDLESS: Final = words("style template noscript link meta head title")
_BY_TAG: Final = {
    "nav": "menu",
    "script": "script",
    "dialog": "dialog",
    "select": "input field",
    "iframe": "embedded page",
    "object": "embedded page",
    "embed": "embedded page",
    "video": "video",
    "audio": "recording",
    "canvas": "drawing",
}
_BY_ROLE: Final = {
    "navigation": "menu",
    "search": "form",
    "banner": "header",
    "contentinfo": "footer",
    "dialog": "dialog",
}
_BY_CLASS: Final = {
    "sphinxsidebar": "menu",
    "related-pages": "menu",
    "rst-footer-buttons": "menu",
    "theme-doc-breadcrumbs": "menu",
    "pagination-nav": "menu",
    "theme-doc-footer": "footer",
    "md-source-file": "footer",
    "md-feedback": "form",
    "hideme": "hidden part",
}
_CHROME_CLASSES: Final = words("""
    headerlink hash-link header-anchor viewcode-link viewcode-back back-to-top edit-this-page
    content-icon-container md-content__button mw-editsection katex-html
""")
_BESIDE: Final = {
    "aside": "aside",
    "complementary": "aside",
    "header": "header",
    "footer": "footer",
    "form": "form",
}
_PERMALINKS: Final = frozenset({"", "¶", "#", "§", "🔗", "\u200b"})
_FOR_SCREEN_READERS: Final = words("sr-only visually-hidden screen-reader-text")
_PANEL_CLASSES: Final = words("tabpanel tab-pane tabbed-block sd-tab-content sphinx-tabs-panel")
_WORDLESS_INPUTS: Final = words("hidden radio checkbox image")
_MIN_MENU_LINKS: Final = 3
_HIDING: Final = re.compile(
    r"(?:^|;)\s{0,9}"
    r"(?:display\s{0,9}:\s{0,9}none|visibility\s{0,9}:\s{0,9}(?:hidden|collapse)"
    r"|(?:opacity|font-size)\s{0,9}:\s{0,9}0+(?:\.0*)?(?![\d.]))",
    re.I,
)
"""Styles by which nobody sees an element."""


def find_main(soup: Tag) -> Tag:
    """Return the main part of a page, by the first rule."""
    if marked := _outermost_tags(soup.find_all(role="main")):
        return max(marked, key=_size)
    mains = _outermost_tags(soup.find_all("main"))
    scope = max(mains, key=_size) if mains else soup
    articles = _outermost_tags(scope.find_all("article"))
    if len(articles) == 1:
        return articles[0]
    if mains:
        return scope
    for name in _MAIN_IDS:
        if found := soup.find(id=name):
            return found
    return soup.find("body") or soup


def _outermost_tags(tags: list[Tag]) -> list[Tag]:
    """Return the tags that are in no other of them, so that measuring all stays linear."""
    tag_ids = {id(tag) for tag in tags}
    return [tag for tag in tags if not any(id(parent) in tag_ids for parent in tag.parents)]


def _size(tag: Tag) -> int:
    return len(tag.get_text())


def count_beside(soup: Tag, main: Tag) -> Counter[str]:
    """Return what has words and stands beside the main part."""
    counts: Counter[str] = Counter()
    above = {id(parent) for parent in main.parents}
    waiting: list[Tag] = [soup]
    while waiting:
        for child in waiting.pop().children:
            if child is main or isinstance(child, PreformattedString):
                continue
            if isinstance(child, NavigableString):
                counts["other part"] += bool(child.strip())
            elif isinstance(child, Tag) and id(child) in above:
                waiting.append(child)
            elif isinstance(child, Tag):
                counts[_kind_beside(child)] += 1
    del counts[""]
    return counts


def _kind_beside(tag: Tag) -> str:
    if tag.name == "script" or tag.name in _WORDLESS:
        return ""  # every page has some; the main part is read without them
    kind = _kind_by_name(tag) or _BESIDE.get(tag.name) or _BESIDE.get(attribute(tag, "role"))
    return kind or _if_words(tag, "other part")


class OpenableParts:
    """The ids of what a reader may open on a page: by a tab, a button, a link to a panel."""

    def __init__(self, main: Tag) -> None:
        self._ids: set[str] = set()
        for tag in main.find_all(["button", "a", "li", "div", "span", "summary", "label"]):
            self._ids.update(attribute(tag, "aria-controls").split())
            for name in ("data-bs-target", "data-target"):
                self._ids.add(attribute(tag, name).removeprefix("#"))
            if attribute(tag, "role") == "tab":
                self._ids.add(attribute(tag, "href").removeprefix("#"))
        self._ids.discard("")

    def holds(self, tag: Tag) -> bool:
        """Return whether a hidden element is content that somebody may open."""
        if attribute(tag, "role") == "tabpanel" or attribute(tag, "hidden") == "until-found":
            return True
        return has_class(tag, _PANEL_CLASSES) or attribute(tag, "id") in self._ids


def leave_out(main: Tag, opened: OpenableParts) -> Counter[str]:
    """Take out of the main part what is no content; return what was, by kind."""
    counts: Counter[str] = Counter()
    waiting = [main]
    while waiting:
        for child in list(waiting.pop().children):
            if isinstance(child, PreformattedString):  # comments, CDATA, processing instructions
                child.extract()
            elif isinstance(child, Tag):
                kind = _kind_left_out(child, opened)
                if kind is None:
                    waiting.append(child)
                    if child.name == "button":
                        child.name = "span"
                    continue
                child.extract()
                counts[kind] += 1
    del counts[""]
    return counts


def _kind_left_out(tag: Tag, opened: OpenableParts) -> str | None:
    """Return as what an element is left out, "" for without a word; None for content."""
    if tag.name in _WORDLESS or has_class(tag, _CHROME_CLASSES) or _is_permalink(tag):
        return ""
    kind = _kind_by_name(tag)
    if kind is not None:
        return kind
    judge = _JUDGED.get(tag.name)
    if judge is not None:
        return judge(tag)
    return _kind_of_part(tag, opened)


def _kind_by_name(tag: Tag) -> str | None:
    """Return what an element is by its tag, its role or a class."""
    if tag.name in _BY_TAG:
        return _BY_TAG[tag.name]
    role = attribute(tag, "role")
    if role in _BY_ROLE:
        return _BY_ROLE[role]
    return next((_BY_CLASS[name] for name in classes(tag) if name in _BY_CLASS), None)


def _kind_of_drawing(svg: Tag) -> str | None:
    return "drawing" if svg.find("text") else ""


def _kind_of_input(field: Tag) -> str | None:
    return "" if attribute(field, "type") in _WORDLESS_INPUTS else "input field"


def _kind_of_button(button: Tag) -> str | None:
    """Return None for a button that is the title of what it opens."""
    for name in ("aria-controls", "aria-expanded"):
        if button.has_attr(name):
            return None
    if attribute(button, "role") == "tab":
        return None
    return _if_words(button, "button")


_JUDGED: Final[dict[str, Callable[[Tag], str | None]]] = {
    "svg": _kind_of_drawing,
    "input": _kind_of_input,
    "button": _kind_of_button,
}


def _kind_of_part(tag: Tag, opened: OpenableParts) -> str | None:
    """Return as what a part of the text is left out, for what is in it or how it is shown."""
    if tag.name == "form" and tag.find("input", type="search"):
        return "form"
    if tag.name == "aside" and _is_menu(tag):
        return "menu"
    if _is_hidden(tag) and not opened.holds(tag):
        return _if_words(tag, "hidden part")
    return None


def _if_words(tag: Tag, kind: str) -> str:
    """Return the kind of what has words; "" where there are none."""
    return kind if has_words(tag) else ""


def _is_hidden(tag: Tag) -> bool:
    if attribute(tag, "aria-hidden") != "true":
        return tag.has_attr("hidden") or _is_hidden_by_style(tag)
    label = attribute(tag.parent, "aria-label") if tag.parent is not None else ""
    # The visible title of a box whose label is read out instead is not hidden.
    return not label or squeeze(tag.get_text()) != label


def _is_hidden_by_style(tag: Tag) -> bool:
    """Return whether its own style hides an element; not the formula that stands behind a picture
    of it, which is the same for who can't see.
    """
    if _HIDING.search(attribute(tag, "style")) is None:
        return False
    return not any(name.startswith("mwe-math") for name in classes(tag))


def _is_permalink(tag: Tag) -> bool:
    """Return whether it is an empty link within its page, whatever its class; one with a picture
    is content.
    """
    if tag.name != "a" or not attribute(tag, "href").startswith("#"):
        return False
    visible = "".join(
        str(text) for text in tag.find_all(string=True) if not _is_unseen(text, within=tag)
    )
    return visible.strip() in _PERMALINKS and tag.find("img") is None


def _is_unseen(text: NavigableString, *, within: Tag) -> bool:
    for parent in text.parents:
        if parent is within:
            return False
        if attribute(parent, "aria-hidden") == "true" or has_class(parent, _FOR_SCREEN_READERS):
            return True
    return False


def _is_menu(tag: Tag) -> bool:
    """Return whether links are all that an element says."""
    links = tag.find_all("a")
    if len(links) < _MIN_MENU_LINKS:
        return False
    linked = sum(len(squeeze(link.get_text())) for link in links)
    return linked * 10 >= len(squeeze(tag.get_text())) * 8


def sentence(counts: Counter[str], missing: int = 0) -> str:
    """Return what was left out as one line; "" if nothing was. `missing` cells of tables among it
    let values of later columns stand in others.
    """
    parts = []
    for one, several in _KINDS:
        if count := counts[one]:
            parts.append(f"{count} {one if count == 1 else several}")
    if missing:
        parts.append(f"{missing:,} cells under merged ones (values may stand too far left)")
    return f"left out: {', '.join(parts)}" if parts else ""
