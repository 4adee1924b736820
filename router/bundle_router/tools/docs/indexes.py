"""Parses the indexes that documentation sites publish of their own pages into one form.

Every parser takes untrusted bytes of bounded size, and returns entries in their order, or None if the bytes are not
that kind of index: many sites answer every path with an HTML page and status 200. `MAX_ENTRIES` bounds all.
"""

from __future__ import annotations

import html
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from bundle_router.tools.docs.pages import clean_text, decode_text

MAX_INDEX: Final = 4_194_304
"""Maximum decoded bytes of one index; for `objects.inv` also of its zlib part."""
MAX_ENTRIES: Final = 100_000
_MAX_FIELD: Final = 1_000

_TAG: Final = re.compile(r"<[^<>]*>")
_LOCATION: Final = re.compile(r"<loc>\s{0,99}(?:<!\[CDATA\[)?\s{0,99}([^<>\s\]]{1,2048})")
_SPHINX_ARRAY: Final = r'[{{,]"?{name}"?:'
_LLMS_LINK: Final = re.compile(r"\[([^\[\]]{1,300})\]\(([^()\s]{1,2048})\)(?::[ \t]{0,9}([^\n]{0,300}))?")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One page, section or symbol. `location` is as in the index, relative to the index's folder.

    `kind` is the index's own word for it (`py:function`), or ""; `text` is some of the page's text, or "".
    """

    title: str
    location: str
    kind: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class IndexKind:
    """A kind of index: its path in a documentation folder, and its parser."""

    name: str
    path: str
    read: Callable[[bytes], list[IndexEntry] | None]


def read_inventory(body: bytes) -> list[IndexEntry] | None:
    """Parse Sphinx's `objects.inv`, version 2: pages, sections and symbols."""
    lines = body.split(b"\n", 4)
    if len(lines) < 5 or lines[0].rstrip() != b"# Sphinx inventory version 2":
        return None
    try:
        plain = zlib.decompressobj().decompress(lines[4], MAX_INDEX)
    except zlib.error:
        return None
    entries = (_inventory_entry(line) for line in clean_text(plain.decode("utf-8", "replace")).split("\n"))
    return _bound(entry for entry in entries if entry)


def _inventory_entry(line: str) -> IndexEntry | None:
    # "name domain:role priority location title"; the name may hold spaces, so the role is found by its shape.
    words = line[:_MAX_FIELD].split(" ")
    for at in range(1, len(words) - 3):
        if ":" in words[at] and words[at + 1].lstrip("-").isdigit():
            name, role, location = " ".join(words[:at]), words[at], words[at + 2]
            title = " ".join(words[at + 3 :]).strip()
            if location.endswith("$"):
                location = location[:-1] + name
            return IndexEntry(name if title in ("", "-") else title, location, "" if role.startswith("std:") else role)
    return None


def read_mkdocs(body: bytes) -> list[IndexEntry] | None:
    """Parse MkDocs' `search/search_index.json`: pages and sections with their text."""
    value = _json(body)
    docs = value.get("docs") if isinstance(value, dict) else None
    if not isinstance(docs, list):
        return None
    return _bound(
        IndexEntry(_prose(doc["title"]), doc["location"], "", _prose(str(doc.get("text", ""))[:20_000]))
        for doc in docs
        if isinstance(doc, dict) and isinstance(doc.get("title"), str) and isinstance(doc.get("location"), str)
    )


def read_sphinx_search(body: bytes) -> list[IndexEntry] | None:
    """Parse Sphinx's `searchindex.js`: pages and, if the builder wrote them, sections. Assumes pages end in `.html`."""
    text = decode_text(body, "utf-8")
    if not text.lstrip().startswith("Search.setIndex("):
        return None
    names, titles = _sphinx_array(text, "docnames"), _sphinx_array(text, "titles")
    if not isinstance(names, list) or not isinstance(titles, list):
        return None
    pages = [name if isinstance(name, str) else "" for name in names]
    entries = [
        IndexEntry(_prose(str(title)), f"{name}.html") for name, title in zip(pages, titles, strict=False) if name
    ]
    sections = _sphinx_array(text, "alltitles")
    if isinstance(sections, dict):
        entries.extend(_sphinx_sections(sections, pages))
    return _bound(iter(entries))


def _sphinx_sections(sections: dict[str, Any], pages: list[str]) -> Iterator[IndexEntry]:
    for title, places in sections.items():
        for place in places if isinstance(places, list) else ():
            match place:
                case [int(page), str(anchor)] if 0 <= page < len(pages) and pages[page]:
                    yield IndexEntry(_prose(title), f"{pages[page]}.html#{anchor}")


def _sphinx_array(text: str, name: str) -> Any:
    # The argument is JSON today and was a JavaScript literal with bare keys before; single values are JSON in both.
    found = re.search(_SPHINX_ARRAY.format(name=name), text)
    if not found:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, found.end())[0]
    except (ValueError, RecursionError):
        return None


def read_llms(body: bytes) -> list[IndexEntry] | None:
    """Parse `llms.txt`: a Markdown list of links, each with a remark."""
    text = decode_text(body, "utf-8")
    if text.lstrip()[:1] == "<":
        return None
    found = (IndexEntry(_prose(m[1]), m[2], "", _prose(m[3] or "")) for m in _LLMS_LINK.finditer(text))
    return _bound(found) or None


def read_sitemap(body: bytes) -> list[IndexEntry] | None:
    """Parse `sitemap.xml`: bare URLs, titled by the words of their paths. A sitemap of sitemaps gives entries of kind
    `sitemap`. One expression reads it, not an XML parser: no entities, no external references.
    """
    text = decode_text(body, "utf-8")
    nested = "<sitemapindex" in text
    if not nested and "<urlset" not in text:
        return None
    locations = (html.unescape(found) for found in _LOCATION.findall(text))
    return _bound(IndexEntry(_path_words(location), location, "sitemap" if nested else "") for location in locations)


def _path_words(location: str) -> str:
    path = unquote(location.partition("://")[2].partition("/")[2])
    words = re.sub(r"\.html?$|[/_.?=&-]+", " ", path.removesuffix("/")).split()
    return _prose(" ".join(words)) or "start page"


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _prose(text: str) -> str:
    return " ".join(clean_text(html.unescape(_TAG.sub(" ", text))).split())


def _bound(entries: Iterator[IndexEntry]) -> list[IndexEntry]:
    return [entry for entry in islice(entries, MAX_ENTRIES) if entry.title and entry.location]


KINDS: Final = (
    IndexKind("Sphinx inventory", "objects.inv", read_inventory),
    IndexKind("MkDocs search index", "search/search_index.json", read_mkdocs),
    IndexKind("Sphinx search index", "searchindex.js", read_sphinx_search),
    IndexKind("llms.txt", "llms.txt", read_llms),
    IndexKind("sitemap", "sitemap.xml", read_sitemap),
)
"""Best first: those that say most about a page in the fewest bytes."""
