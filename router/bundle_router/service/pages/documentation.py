"""The documentation (`router/docs`) as pages: Markdown to HTML, and where each entry stands.

Rules:
1. A file is read plainly in the repository, and as a page at `/docs` and its path without `.md`.
   Links between files lead to pages; one to a file outside the folder becomes code.
2. No HTML of a file is passed on, and there are no inline styles.
3. A heading has the anchor that it has on code forges. A row of a table whose first cell is code
   has one too: the heading's, a dot and the code (`left-out.policy_denied`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bundle_router.errors import RequestError, needs_extra
from bundle_router.review.sentences import list_of

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

ADDRESS: Final = "/docs"
FIRST: Final = "README.md"
FOLDERS: Final = {
    "start": "Start",
    "how-to": "How to",
    "reference": "Reference",
    "explanation": "Explanation",
    "security": "Security",
}
"""The folders in the order of the table of contents, with their names there."""
IN_REPOSITORY: Final = " (in the repository)"
"""What stands behind the name of a file that has no page."""
_LINK: Final = re.compile(r"\]\(([^)#\s]+\.md)")
_INDEX: Final = re.compile(r"\[\d+\]")
_NO_WORD: Final = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class DocHeading:
    """A heading of a page."""

    level: int
    """From 1."""
    anchor: str
    """Its anchor, unique on the page."""
    text: str
    """Its text."""


@dataclass(frozen=True, slots=True)
class DocPage:
    """A page of the documentation."""

    path: str
    """Its file, relative to the folder."""
    title: str
    """Its first heading."""
    text: str
    """The file's text."""
    html: str
    """The text as HTML: everything in it is escaped."""
    headings: tuple[DocHeading, ...]
    """Its headings, in order."""
    anchors: frozenset[str]
    """All its anchors: of headings, and of rows."""


def docs_folder() -> Path:
    """Return the folder of the documentation: in the installed package, or beside it in a
    checkout.
    """
    package = Path(__file__).resolve().parents[2]
    installed = package / "docs"
    return installed if installed.is_dir() else package.parent / "docs"


def address_of(path: str) -> str:
    """Return the address of a file's page.

    >>> from bundle_router.service.pages.documentation import address_of
    >>> address_of("reference/codes.md"), address_of("README.md")
    ('/docs/reference/codes', '/docs')
    """
    name = path.removesuffix(".md")
    return ADDRESS if path == FIRST else f"{ADDRESS}/{name}"


def entry_of(word: str, kind: str = "") -> str:
    """Return the address of a closed word's entry in the reference; empty for any other word.

    `kind` says which list is meant where a word is in two, as for `sentence_of`.
    """
    name = list_of(word, kind)
    return f"{ADDRESS}/reference/codes#{name}.{word}" if name else ""


def entry_of_key(path: str) -> str:
    """Return the address of a config key's entry in the reference, by a problem's path such as
    `routes[3].bundles[0]`; empty where no key has that name.
    """
    parts = _INDEX.sub("", path).split(".")
    table = parts[0]
    key = parts[-1]
    anchors = documentation().page("reference/config").anchors
    of_key = [name for name in anchors if name.startswith(table) and name.endswith(f".{key}")]
    return f"{ADDRESS}/reference/config#{min(of_key, key=len)}" if of_key else ""


@cache
def documentation(base: str = "") -> Documentation:
    """Return the documentation of this installation, for pages that are mounted at `base`. It is
    read once.
    """
    return Documentation(docs_folder(), base)


class Documentation:
    """The documentation of a folder. Its files do not change while it is used.

    `base` is the path at which the pages are mounted.
    """

    def __init__(self, folder: Path, base: str = "") -> None:
        self._base = base
        self._files = {
            path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.md"))
        }
        self._pages: dict[str, DocPage] = {}

    def page(self, name: str) -> DocPage:
        """Return the page at an address below `/docs`, such as `reference/codes`.

        Raises RequestError where there is none.
        """
        path = f"{name}.md" if name else FIRST
        if path not in self._files:
            raise RequestError("there is no such page of the documentation")
        if path not in self._pages:
            self._pages[path] = _page_of(path, self._text(path), self._files, self._base)
        return self._pages[path]

    @property
    def names(self) -> tuple[str, ...]:
        """What `page` takes: the addresses of all pages below `/docs`."""
        return tuple("" if path == FIRST else path.removesuffix(".md") for path in self._files)

    def contents(self) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
        """Yield the folders in their order, each with its pages: their address and title.

        Within a folder, pages have the order in which the first page links to them.
        """
        for folder, title in FOLDERS.items():
            pages = [(address_of(path), self._title(path)) for path in self._paths_in(folder)]
            if pages:
                yield title, pages

    def _paths_in(self, folder: str) -> Sequence[str]:
        """Return a folder's files: those that the first page links to as it does, then the rest."""
        linked = map(posixpath.normpath, _LINK.findall(self._text(FIRST)))
        order = {path: place for place, path in reversed([*enumerate(linked)])}
        inside = [path for path in self._files if path.startswith(f"{folder}/")]
        return sorted(inside, key=lambda path: order.get(path, len(order)))

    def _text(self, path: str) -> str:
        return self._files[path].read_text("utf-8") if path in self._files else ""

    def _title(self, path: str) -> str:
        return _title_of(self._text(path), path)


def _title_of(text: str, path: str) -> str:
    """Return the first heading of a text."""
    first = next((line for line in text.splitlines() if line.startswith("# ")), f"# {path}")
    return first.removeprefix("# ").replace("`", "")


# --- Markdown to HTML -----------------------------------------------------------------------------


@cache
def _markdown() -> MarkdownIt:
    with needs_extra("the documentation", "service"):
        from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _page_of(path: str, text: str, files: Collection[str], base: str) -> DocPage:
    markdown = _markdown()
    tokens = markdown.parse(text)
    headings = _mark_headings(tokens)
    rows = _mark_rows(tokens)
    _mark_entries(tokens)
    for token in tokens:
        _style_by_class(token)
        for child in token.children or ():
            _lead_to_page(child, path, files, base)
        _show_as_code(token)
    html = str(markdown.renderer.render(tokens, markdown.options, {}))
    anchors = frozenset((*(heading.anchor for heading in headings), *rows))
    return DocPage(path, _title_of(text, path), text, html, tuple(headings), anchors)


def _mark_headings(tokens: Sequence[Token]) -> list[DocHeading]:
    """Give each heading its anchor, and return them."""
    headings: list[DocHeading] = []
    for token, inline in pairwise(tokens):
        if token.type == "heading_open":
            text = _plain(inline)
            anchor = _unique(_anchor_of(text), {heading.anchor for heading in headings})
            token.attrSet("id", anchor)
            headings.append(DocHeading(int(token.tag[1]), anchor, text))
    return headings


def _mark_rows(tokens: Sequence[Token]) -> list[str]:
    """Give each row whose first cell is code its anchor, and return these."""
    anchors: list[str] = []
    above = ""
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            above = str(token.attrGet("id"))
        elif token.type == "tr_open" and tokens[place + 1].type == "td_open":
            children = tokens[place + 2].children or []
            if [child.type for child in children] == ["code_inline"]:
                anchor = f"{above}.{children[0].content}".replace(" ", "-")
                token.attrSet("id", anchor)
                anchors.append(anchor)
    return anchors


def _mark_entries(tokens: Sequence[Token]) -> None:
    """Mark the tables of entries, whose rows a narrow screen shows one below the other: those whose
    fourth column is the meaning.
    """
    for place, token in enumerate(tokens):
        if token.type == "table_open":
            heads = [head for head in tokens[place : place + 20] if head.type == "inline"]
            if len(heads) > 3 and heads[3].content == "meaning":
                token.attrJoin("class", "entries")


def _plain(inline: Token) -> str:
    """Return the text of a heading, without its marks."""
    return "".join(child.content for child in inline.children or ())


def _anchor_of(text: str) -> str:
    return _NO_WORD.sub("", text.strip().lower()).replace(" ", "-")


def _unique(anchor: str, known: set[str]) -> str:
    """Return an anchor with a number behind it, where the page has it already."""
    number = 0
    unique = anchor
    while unique in known:
        number += 1
        unique = f"{anchor}-{number}"
    return unique


def _style_by_class(token: Token) -> None:
    """Replace the style of a table's cell, which the pages' policy forbids, by a class."""
    style = token.attrs.pop("style", None)
    if style == "text-align:right":
        token.attrSet("class", "num")
    if token.type == "table_open":
        token.attrJoin("class", "of-docs")


def _lead_to_page(token: Token, path: str, files: Collection[str], base: str) -> None:
    """Have a link to a file lead to its page; one to a file that has none gets no address."""
    target = str(token.attrGet("href") or "")
    if token.type != "link_open" or target.startswith("#"):
        return
    if re.match(r"[a-z]+:", target):
        token.attrSet("rel", "noreferrer")
        return
    file, mark, anchor = target.partition("#")
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    if inside in files:
        token.attrSet("href", f"{base}{address_of(inside)}{mark}{anchor}")
    else:
        del token.attrs["href"]
        token.attrSet("title", f"in the repository: {posixpath.basename(inside)}")


def _show_as_code(token: Token) -> None:
    """Show links without an address as code, with a word that says where the file is."""
    children = token.children or []
    nodes: list[Token] = []
    tag = "a"
    for place, child in enumerate(children):
        nodes.append(child)
        if child.type == "link_open":
            tag = "a" if "href" in child.attrs else "code"
            if tag == "code" and children[place + 1].type == "code_inline":
                tag = "span"
            child.tag = tag
        elif child.type == "link_close":
            child.tag = tag
            if tag != "a":
                nodes.append(replace(child, type="text", tag="", nesting=0, content=IN_REPOSITORY))
    if children:
        token.children = nodes
