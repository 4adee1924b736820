"""Finds pages of one documentation site by the site's own index, and ranks them by the words of the
query.

Rules:
1. The nearest index is used: the folder of the given URL first, then the folders above it, up to
   the site's root.
2. Only pages under the folder of that index are returned; an index can't point elsewhere.
3. The ranking is a pure function of index and query: same inputs, same order.
4. A parser of an index takes untrusted bytes of bounded size, and returns entries in their order,
   or None if the bytes are not that kind of index: many sites answer every path with an HTML page
   and status 200. `MAX_ENTRIES` bounds all.
"""

from __future__ import annotations

import html
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.charsets import clean_text, decode_text
from bundle_router.local_tools.docs.fetching import Fetcher, Page
from bundle_router.local_tools.docs.transfer import BodyLimit
from bundle_router.local_tools.docs.urls import Url, join_url, parse_url

MAX_INDEX: Final = 4_194_304
"""Maximum decoded bytes of one index; for `objects.inv` also of its zlib part."""
MAX_ENTRIES: Final = 100_000
_MAX_FIELD: Final = 1_000

_TAG: Final = re.compile(r"<[^<>]*>")
_LOCATION: Final = re.compile(r"<loc>\s{0,99}(?:<!\[CDATA\[)?\s{0,99}([^<>\s\]]{1,2048})")
_SPHINX_ARRAY: Final = r'[{{,]"?{name}"?:'
_LLMS_LINK: Final = re.compile(
    r"\[([^\[\]]{1,300})\]\(([^()\s]{1,2048})\)(?::[ \t]{0,9}([^\n]{0,300}))?"
)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One page, section or symbol. `location` is as in the index, relative to the index's folder.

    `kind` is the index's own word for it (`py:function`), or ""; `text` is some of the page's text,
    or "".
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
    entries = (
        _inventory_entry(line) for line in clean_text(plain.decode("utf-8", "replace")).split("\n")
    )
    return _bound(entry for entry in entries if entry)


def _inventory_entry(line: str) -> IndexEntry | None:
    # "name domain:role priority location title"; the name may hold spaces, so the role is found by
    # its shape.
    words = line[:_MAX_FIELD].split(" ")
    for position in range(1, len(words) - 3):
        if ":" in words[position] and words[position + 1].lstrip("-").isdigit():
            name = " ".join(words[:position])
            role = words[position]
            location = words[position + 2]
            title = " ".join(words[position + 3 :]).strip()
            if location.endswith("$"):
                location = location[:-1] + name
            return IndexEntry(
                name if title in ("", "-") else title,
                location,
                "" if role.startswith("std:") else role,
            )
    return None


def read_mkdocs(body: bytes) -> list[IndexEntry] | None:
    """Parse MkDocs' `search/search_index.json`: pages and sections with their text."""
    value = _json(body)
    docs = value.get("docs") if isinstance(value, dict) else None
    if not isinstance(docs, list):
        return None
    return _bound(entry for entry in map(_mkdocs_entry, docs) if entry is not None)


def _mkdocs_entry(doc: object) -> IndexEntry | None:
    """Return the entry of one page or section; None for what is none."""
    if not isinstance(doc, dict):
        return None
    title = doc.get("title")
    location = doc.get("location")
    if not isinstance(title, str) or not isinstance(location, str):
        return None
    return IndexEntry(_prose(title), location, "", _prose(str(doc.get("text", ""))[:20_000]))


def read_sphinx_search(body: bytes) -> list[IndexEntry] | None:
    """Parse Sphinx's `searchindex.js`: pages and, if the builder wrote them, sections.

    Assumes pages end in `.html`.
    """
    text = decode_text(body, "utf-8")
    if not text.lstrip().startswith("Search.setIndex("):
        return None
    names = _sphinx_array(text, "docnames")
    titles = _sphinx_array(text, "titles")
    if not isinstance(names, list) or not isinstance(titles, list):
        return None
    pages = [name if isinstance(name, str) else "" for name in names]
    entries = [
        IndexEntry(_prose(str(title)), f"{name}.html")
        for name, title in zip(pages, titles, strict=False)
        if name
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
    # The argument is JSON today and was a JavaScript literal with bare keys before; single values
    # are JSON in both.
    match = re.search(_SPHINX_ARRAY.format(name=name), text)
    if not match:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, match.end())[0]
    except (ValueError, RecursionError):
        return None


def read_llms(body: bytes) -> list[IndexEntry] | None:
    """Parse `llms.txt`: a Markdown list of links, each with a remark."""
    text = decode_text(body, "utf-8")
    if text.lstrip()[:1] == "<":
        return None
    entries = (
        IndexEntry(_prose(m[1]), m[2], "", _prose(m[3] or "")) for m in _LLMS_LINK.finditer(text)
    )
    return _bound(entries) or None


def read_sitemap(body: bytes) -> list[IndexEntry] | None:
    """Parse `sitemap.xml`: bare URLs, titled by the words of their paths.

    A sitemap of sitemaps gives entries of kind `sitemap`. One expression reads it, not an XML
    parser: no entities, no external references.
    """
    text = decode_text(body, "utf-8")
    if "<sitemapindex" in text:
        kind = "sitemap"
    elif "<urlset" in text:
        kind = ""
    else:
        return None
    locations = map(html.unescape, _LOCATION.findall(text))
    return _bound(IndexEntry(_path_words(location), location, kind) for location in locations)


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


MAX_FOLDERS: Final = 4
MAX_SITEMAPS: Final = 5
"""Maximum sitemaps that are read from a sitemap of sitemaps."""
MAX_WORDS: Final = 16

_ABSENT: Final = frozenset(
    {
        "not_found",
        "http_error",
        "host_not_allowed",
        "invalid_url",
        "too_many_redirects",
        "unsupported_encoding",
    }
)
"""Failures that mean the site has no such index.

Any other one (of the network, of the deadline) ends the search.
"""
_WORD: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class SiteIndex:
    """The index that was found.

    `folder` is its folder after redirects; `cut`: it was larger than `MAX_INDEX`.
    """

    kind: str
    url: Url
    folder: Url
    entries: Sequence[IndexEntry]
    cut: bool


@dataclass(frozen=True, slots=True)
class PageHit:
    title: str
    url: str
    kind: str
    text: str


def find_index(fetcher: Fetcher, site: Url) -> SiteIndex:
    """Return the nearest index of a site.

    Raises ToolFailure `no_index`, or the failure that ended the search.
    """
    folders = _folders(site)
    for folder in folders:
        for kind in KINDS:
            page = _fetch_index(fetcher, join_url(folder, kind.path))
            if page is None:
                continue
            entries = kind.read(page.body)
            if entries is not None:
                return _site_index(fetcher, kind, page, entries)
    raise ToolFailure(
        f"{site.host} publishes no index that is known here: tried"
        f" {', '.join(kind.path for kind in KINDS)} in"
        f" {', '.join(folder.path for folder in folders)}",
        code="no_index",
        advice=(
            "fetch the site's start page and follow its links, or give the URL of the folder that"
            " holds the manual"
        ),
    )


def rank(entries: Sequence[IndexEntry], query: str) -> list[IndexEntry]:
    """Return the entries that share a word with the query, best first.

    Rare words and words in titles weigh more.
    """
    words = tuple(dict.fromkeys(_words(query)))[:MAX_WORDS]
    if not words:
        raise ToolFailure(f"{query!r} holds no word to search for", code="no_words")
    matches = [(entry, _match(entry, words)) for entry in entries]
    spread = Counter(word for _, matched in matches for word in matched)
    rarity = {word: math.log(1 + len(entries) / count) for word, count in spread.items()}
    phrase = " ".join(_words(query))

    def score(entry: IndexEntry, matched: dict[str, float]) -> float:
        total = (
            sum(rarity[word] * weight for word, weight in matched.items())
            * len(matched)
            / len(words)
        )
        title = " ".join(_words(entry.title))
        if title == phrase:
            return 2.0 * total
        return 1.25 * total if phrase in title else total

    scored = [
        (-score(entry, matched), len(entry.title), entry.location, entry)
        for entry, matched in matches
        if matched
    ]
    scored.sort(key=lambda item: item[:3])
    return [item[3] for item in scored]


def resolve_hits(index: SiteIndex, ranked: Sequence[IndexEntry], most: int) -> list[PageHit]:
    """Return the first `most` entries whose URL is under the index's folder, each URL once."""
    hits: dict[str, PageHit] = {}
    for entry in ranked:
        if len(hits) == most:
            break
        try:
            url = join_url(index.folder, entry.location.replace(" ", "%20"))
        except (
            ToolFailure
        ):  # an index may name URLs that are never fetched (http:, another port): no page then
            continue
        address = f"{url}#{url.fragment}" if url.fragment else str(url)
        if index.folder.holds(url):
            hits.setdefault(address, PageHit(entry.title, address, entry.kind, entry.text))
    return list(hits.values())


def _folders(site: Url) -> list[Url]:
    folders = [site.folder]
    while folders[-1].path != "/":
        folders.append(join_url(folders[-1], "../"))
    if len(folders) <= MAX_FOLDERS:
        return folders
    return [*folders[: MAX_FOLDERS - 1], folders[-1]]


def _fetch_index(fetcher: Fetcher, url: Url) -> Page | None:
    try:
        return fetcher.fetch(url, lambda media_type: BodyLimit(MAX_INDEX, cut=True))
    except ToolFailure as failure:
        if failure.code in _ABSENT and not (
            failure.code == "host_not_allowed" and not fetcher.hosts.allows(url.host)
        ):
            return None
        raise


def _site_index(
    fetcher: Fetcher, kind: IndexKind, page: Page, entries: list[IndexEntry]
) -> SiteIndex:
    folder = page.url.folder
    for _ in range(kind.path.count("/")):
        folder = join_url(folder, "../")
    if not entries or any(entry.kind != "sitemap" for entry in entries):
        return SiteIndex(kind.name, page.url, folder, entries, page.cut)
    is_cut = page.cut or len(entries) > MAX_SITEMAPS
    pages: list[IndexEntry] = []
    for sitemap in entries[:MAX_SITEMAPS]:
        pages += _nested_sitemap(fetcher, kind, folder, sitemap)
    return SiteIndex(kind.name, page.url, folder, pages, is_cut)


def _nested_sitemap(
    fetcher: Fetcher, kind: IndexKind, folder: Url, sitemap: IndexEntry
) -> list[IndexEntry]:
    try:
        url = parse_url(sitemap.location)
    except ToolFailure:  # as in resolve_hits
        return []
    if not folder.holds(url):
        return []
    page = _fetch_index(fetcher, url)
    entries = kind.read(page.body) if page is not None else None
    return [entry for entry in entries or () if entry.kind != "sitemap"]


def _match(entry: IndexEntry, words: Sequence[str]) -> dict[str, float]:
    """Return the entry's words of the query, with weights: a word of the title, in it, in the URL,
    in the text.
    """
    title = entry.title.casefold()
    location = entry.location.casefold()
    text = entry.text.casefold()
    matched = {}
    for word in words:
        if word in title:
            matched[word] = 3.0 if word in _words(title) else 1.5
        elif word in location:
            matched[word] = 1.0
        elif word in text:
            matched[word] = 0.5
    return matched


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
