"""Converts HTML to Markdown for reading: the main content of a documentation page, without the site
around it.

Beautiful Soup over lxml parses the page (tag soup included), `local_tools.docs.content` cleans the
tree, markdownify writes. markdownify was chosen over html2text and html-to-markdown by comparing
their results on the pages in `tests/data/docs`: it alone keeps nested definition lists (every
Sphinx API page), and it is a visitor over a tree, which makes the bounds below possible.

The page is untrusted:
1. Parts of markdownify that take more than linear time are overridden (list numbers, `pre` edges,
   table spans) or made impossible by the cleaning (long runs of whitespace, deep nesting).
2. The deadline is checked for every element, and the text written so far is bounded by
   `MAX_MARKDOWN`: indentation multiplies, once per level and line.
3. Links and elements in the result are only those that the cleaning let through. Text that Markdown
   would read as one is escaped, even if the page splits it over elements. Other punctuation is
   kept, because a model reads `list[int]` better than `list\\[int\\]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from markdownify import MarkdownConverter

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.charsets import clean_text
from bundle_router.local_tools.docs.content import (
    ANCHOR_MARK,
    NavigableString,
    Tag,
    read_content,
    words,
)
from bundle_router.local_tools.docs.deadline import Deadline

MAX_MARKDOWN: Final = 4_194_304
"""Maximum characters of Markdown for one page."""

_MARKUP: Final = re.compile(r"\](?=:|\((?!https?://|mailto:))|<(?=[A-Za-z/!?]|$)")
"""Text that Markdown would read as a link, a link's definition, raw HTML or an autolink."""
_FENCES: Final = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True)
class Converted:
    """`anchor` is the character offset of the requested anchor in `markdown`; None if the page does
    not have it.
    """

    title: str
    markdown: str
    anchor: int | None = None


def to_markdown(
    html: str,
    *,
    base: str,
    anchor: str = "",
    keeps_image: Callable[[str], bool],
    deadline: Deadline,
) -> Converted:
    """Convert a page.

    `base` is its URL; images are kept if `keeps_image(absolute URL)`, else replaced by their text.

    Raises ToolFailure `too_large`, or the deadline's own.
    """
    content = read_content(
        html, base=base, anchor=anchor, keeps_image=keeps_image, deadline=deadline
    )
    text: str = _Writer(deadline).convert_soup(content.main)
    lines = (line.rstrip() for line in text.split("\n"))
    markdown = clean_text("\n".join(lines)).strip(
        "\n"
    )  # again: character references may stand for controls
    position = markdown.find(ANCHOR_MARK) if content.marked else -1
    return Converted(
        content.title, markdown.replace(ANCHOR_MARK, ""), position if position >= 0 else None
    )


_Converter: Any = (
    MarkdownConverter  # its type information leaves out the methods that are overridden here
)


class _Writer(_Converter):  # type: ignore[misc]  # a base of type Any, see the line above
    """markdownify with a style for models, and with its non-linear parts replaced."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(
            heading_style="atx", escape_asterisks=False, escape_underscores=False, autolinks=False
        )
        self._deadline = deadline

    def process_tag(self, node: Tag, parent_tags: set[str] | None = None) -> str:
        self._deadline.check("converting the page")
        text: str = super().process_tag(node, parent_tags=parent_tags)
        if len(text) > MAX_MARKDOWN:
            raise ToolFailure(
                f"the page has more than {MAX_MARKDOWN} characters as Markdown", code="too_large"
            )
        return text

    def process_text(self, el: NavigableString, parent_tags: set[str] | None = None) -> str:
        text: str = super().process_text(el, parent_tags=parent_tags)
        if (
            text.endswith("]")
            and "_noformat" not in (parent_tags or ())
            and _text_after(el).startswith(("(", ":"))
        ):
            return text[:-1] + "\\]"
        return text

    def escape(self, text: str, parent_tags: set[str]) -> str:
        return _MARKUP.sub(r"\\\g<0>", text)

    def convert_br(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return " " if "_inline" in parent_tags else "\n"

    def convert_hN(self, n: int, el: Tag, text: str, parent_tags: set[str]) -> str:  # noqa: N802
        # markdownify's name
        if not text.strip():
            return ""
        return str(super().convert_hN(n, el, text, parent_tags))

    def convert_li(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        text = text.strip()
        if not text:
            return ""
        number = el.get("data-number")
        bullet = f"{number}. " if number else "- "
        return bullet + text.replace("\n", "\n" + " " * len(bullet)) + "\n"

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        if not text.strip():
            return ""
        fence = "`" * max(3, 1 + max((len(run) for run in _FENCES.findall(text)), default=0))
        return (
            f"\n\n{fence}{el.get('data-language') or ''}\n{_without_blank_edges(text)}\n{fence}\n\n"
        )

    def convert_td(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        span = int(str(el.get("colspan") or 1))
        return f" {text.strip().replace('|', chr(92) + '|').replace(chr(10), ' ')} " + "|" * span

    convert_th = convert_td

    def get_conv_fn(self, tag_name: str) -> Any:
        # Names come from the page: without this, <video> or <hN> would call methods that nobody
        # reviewed.
        return super().get_conv_fn(tag_name) if tag_name in _WRITTEN else None


_WRITTEN: Final = words("""
    [document] a article b blockquote br caption code dd del div dl dt em figcaption h1 h2 h3 h4 h5
        h6 hr i img kbd
    li ol p pre q s samp section strong sub sup table td th tr ul
""")


def _without_blank_edges(text: str) -> str:
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines[next(index for index, line in enumerate(lines) if line.strip()) :])


def _text_after(el: NavigableString) -> str:
    return next(
        (str(text) for text in el.next_elements if isinstance(text, NavigableString) and text), ""
    )
