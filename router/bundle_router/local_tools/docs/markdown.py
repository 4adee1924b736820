"""Converts HTML to Markdown for reading: the main content of a documentation page, without the site
around it.

Beautiful Soup over lxml parses the page (tag soup included), `local_tools.docs.content` finds and
prepares the main part, markdownify writes. It was chosen by a table of what eight converters keep
of 50 constructs (`tests/benchmarks/page_fidelity.py`; RESULTS.md has the table and the reasons): it
is a visitor over a tree, which makes the bounds below possible.

The page is untrusted:
1. Parts of markdownify that take more than linear time are overridden (list numbers, `pre` edges,
   table rows) or made impossible by the cleaning (long runs of whitespace, deep nesting, spans).
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
from bundle_router.local_tools.docs.content import read_content
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.formulas import raised
from bundle_router.local_tools.docs.soup import (
    ANCHOR_MARK,
    CELL_BREAK,
    KEPT_SPACE,
    NavigableString,
    Tag,
    words,
)

MAX_MARKDOWN: Final = 4_194_304
"""Maximum characters of Markdown for one page."""

_MARKUP: Final = re.compile(r"\](?=:|\((?!https?://|mailto:))|<(?=[A-Za-z/!?]|$)")
"""Text that Markdown would read as a link, a link's definition, raw HTML or an autolink."""
_FENCES: Final = re.compile(r"`{3,}")


_PLACEHOLDER: Final = re.compile(
    r"(?:loading|please wait)\W*"
    r"|.{0,80}\b(?:enable|requires?|needs?|turn on)\b.{0,20}\bjavascript\b.{0,80}",
    re.I,
)
"""What a page says, in its only line, until its script has run."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A page as Markdown."""

    title: str
    """The page's title, on one line."""
    markdown: str
    """Its main part; "" where there is nothing to read."""
    anchor: int | None = None
    """The offset of the requested anchor in `markdown`; None if the page does not have it."""
    left_out: str = ""
    """What of the page `markdown` does not have, as one line; "" if nothing."""
    emptiness: str = ""
    """Why there is nothing to read, where `markdown` is empty or only asks for a script."""


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
    # Cleaned again, because character references may stand for controls.
    text = clean_text("\n".join(line.rstrip() for line in text.split("\n")))
    markdown = text.replace(KEPT_SPACE, " ").strip("\n")
    position = markdown.find(ANCHOR_MARK) if content.is_marked else -1
    markdown = markdown.replace(ANCHOR_MARK, "")
    anchor_at = position if position >= 0 else None
    emptiness = ""
    if not markdown.strip() or _PLACEHOLDER.fullmatch(markdown):
        emptiness = content.emptiness or "it holds no text"
    return Converted(content.title, markdown, anchor_at, content.left_out, emptiness)


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

    def convert_sup(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return raised(text, "^", _text_after_tag(el))

    def convert_sub(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return raised(text, "_", _text_after_tag(el))

    def convert_td(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        lines = " ".join(text.split("\n")).split(CELL_BREAK)
        written = [line.strip() for line in lines]
        cell = "<br>".join(line for line in written if line)
        return f" {cell.replace('|', chr(92) + '|')} |"

    convert_th = convert_td

    def convert_tr(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        width = int(str(el.get("data-head") or 0))
        rule = f"|{' --- |' * width}\n" if width else ""
        return f"|{text}\n{rule}"

    def get_conv_fn(self, tag_name: str) -> Any:
        # Names come from the page: without this, <video> or <hN> would call methods that nobody
        # reviewed.
        return super().get_conv_fn(tag_name) if tag_name in _WRITTEN else None


_WRITTEN: Final = words("""
    [document] a article b blockquote br code dd del div dl dt em figcaption h1 h2 h3 h4 h5
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


def _text_after_tag(el: Tag) -> str:
    """Return the text right behind an element; "" if an element is there."""
    following = el.next_sibling
    return str(following) if isinstance(following, NavigableString) else ""
