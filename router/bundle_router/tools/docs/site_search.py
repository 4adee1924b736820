"""Finds pages of one documentation site by the site's own index, and ranks them by the words of the query.

Rules:
1. The nearest index is used: the folder of the given URL first, then the folders above it, up to the site's root.
2. Only pages under the folder of that index are returned; an index can't point elsewhere.
3. The ranking is a pure function of index and query: same inputs, same order.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.errors import ToolFailure
from bundle_router.tools.docs.fetching import Fetcher, Page
from bundle_router.tools.docs.indexes import KINDS, MAX_INDEX, IndexEntry, IndexKind
from bundle_router.tools.docs.transfer import BodyLimit
from bundle_router.tools.docs.urls import Url, join_url, parse_url

MAX_FOLDERS: Final = 4
MAX_SITEMAPS: Final = 5
"""Maximum sitemaps that are read from a sitemap of sitemaps."""
MAX_WORDS: Final = 16

_ABSENT: Final = frozenset(
    {"not_found", "http_error", "host_not_allowed", "invalid_url", "too_many_redirects", "unsupported_encoding"}
)
"""Failures that mean the site has no such index. Any other one (of the network, of the deadline) ends the search."""
_WORD: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class SiteIndex:
    """The index that was found. `folder` is its folder after redirects; `cut`: it was larger than `MAX_INDEX`."""

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
    """Return the nearest index of a site. Raises ToolFailure `no_index`, or the failure that ended the search."""
    folders = _folders(site)
    for folder in folders:
        for kind in KINDS:
            page = _fetch_index(fetcher, join_url(folder, kind.path))
            entries = kind.read(page.body) if page else None
            if page and entries is not None:
                return _site_index(fetcher, kind, page, entries)
    raise ToolFailure(
        f"{site.host} publishes no index that is known here: tried {', '.join(kind.path for kind in KINDS)} "
        f"in {', '.join(folder.path for folder in folders)}",
        code="no_index",
        advice="fetch the site's start page and follow its links, or give the URL of the folder the manual stands in",
    )


def rank(entries: Sequence[IndexEntry], query: str) -> list[IndexEntry]:
    """Return the entries that share a word with the query, best first. Rare words and words in titles weigh more."""
    words = tuple(dict.fromkeys(_words(query)))[:MAX_WORDS]
    if not words:
        raise ToolFailure(f"{query!r} holds no word to search for", code="no_words")
    found = [(entry, _match(entry, words)) for entry in entries]
    spread = Counter(word for _, matched in found for word in matched)
    rarity = {word: math.log(1 + len(entries) / count) for word, count in spread.items()}
    whole = " ".join(_words(query))

    def score(entry: IndexEntry, matched: dict[str, float]) -> float:
        total = sum(rarity[word] * weight for word, weight in matched.items()) * len(matched) / len(words)
        title = " ".join(_words(entry.title))
        exact = 2.0 if title == whole else 1.25 if whole in title else 1.0
        return total * exact

    scored = [(-score(entry, matched), len(entry.title), entry.location, entry) for entry, matched in found if matched]
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
        except ToolFailure:  # an index may name URLs that are never fetched (http:, another port): no page then
            continue
        shown = f"{url}#{url.fragment}" if url.fragment else str(url)
        if index.folder.holds(url):
            hits.setdefault(shown, PageHit(entry.title, shown, entry.kind, entry.text))
    return list(hits.values())


def _folders(site: Url) -> list[Url]:
    folders = [site.folder]
    while folders[-1].path != "/":
        folders.append(join_url(folders[-1], "../"))
    return folders if len(folders) <= MAX_FOLDERS else [*folders[: MAX_FOLDERS - 1], folders[-1]]


def _fetch_index(fetcher: Fetcher, url: Url) -> Page | None:
    try:
        return fetcher.fetch(url, lambda media_type: BodyLimit(MAX_INDEX, cut=True))
    except ToolFailure as failure:
        if failure.code in _ABSENT and not (failure.code == "host_not_allowed" and not fetcher.hosts.allows(url.host)):
            return None
        raise


def _site_index(fetcher: Fetcher, kind: IndexKind, page: Page, entries: list[IndexEntry]) -> SiteIndex:
    folder = page.url.folder
    for _ in range(kind.path.count("/")):
        folder = join_url(folder, "../")
    cut = page.cut
    if entries and all(entry.kind == "sitemap" for entry in entries):
        cut = cut or len(entries) > MAX_SITEMAPS
        nested = [_nested_sitemap(fetcher, kind, folder, entry) for entry in entries[:MAX_SITEMAPS]]
        entries = [entry for part in nested for entry in part]
    return SiteIndex(kind.name, page.url, folder, entries, cut)


def _nested_sitemap(fetcher: Fetcher, kind: IndexKind, folder: Url, entry: IndexEntry) -> list[IndexEntry]:
    try:
        url = parse_url(entry.location)
    except ToolFailure:  # as in resolve_hits
        return []
    page = _fetch_index(fetcher, url) if folder.holds(url) else None
    return [found for found in (kind.read(page.body) if page else None) or [] if found.kind != "sitemap"]


def _match(entry: IndexEntry, words: Sequence[str]) -> dict[str, float]:
    """Return the entry's words of the query, with weights: a word of the title, in it, in the URL, in the text."""
    title, location, text = entry.title.casefold(), entry.location.casefold(), entry.text.casefold()
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
