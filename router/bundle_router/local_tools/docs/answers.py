"""The two tools: arguments and context in, blocks out.

All text that a result says about itself is here.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Final
from urllib.parse import unquote

from bundle_router.core.values import Media, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.charsets import clean_text, decode_page, encoding_name
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.fetching import Fetcher, Page
from bundle_router.local_tools.docs.network import Network, SystemResolver
from bundle_router.local_tools.docs.pages import (
    cut_piece,
    find_headings,
    find_section,
    outline,
    section_at,
)
from bundle_router.local_tools.docs.transfer import BodyLimit
from bundle_router.local_tools.docs.urls import HostList, Url, parse_url

MAX_TEXT: Final = 1_048_576
"""Maximum decoded bytes of a text page. A longer one is cut, and the result says so."""
PIECE: Final = 20_000
"""Maximum characters of a page in one result."""
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
# the empty alternative at the end: a page without a type is tried as text
_TEXT: Final = re.compile(
    r"text/.+|application/(json|xml|yaml|x-yaml|toml|javascript|x-javascript|ecmascript|x-sh|sql|x-ndjson|graphql"
    r"|.+\+json|.+\+yaml|(?!svg).+\+xml)|"
)


def system_network() -> Network:
    """Return the network of this process."""
    return _network_of(os.getpid())


@cache
def _network_of(_process: int) -> Network:
    return Network(SystemResolver().resolve)


def answer_fetch(
    url: str, section: str | None, offset: int, context: ToolContext, network: Network
) -> ToolOutput:
    """Return one page, or the requested piece of it.

    Raises ToolFailure; codes in `bundle_router.local_tools.docs`.
    """
    fetcher = _fetcher(context, network)
    requested = parse_url(url)
    page = fetcher.fetch(requested, lambda kind: _limit(kind, context))
    if not _is_text(page):
        return _media(page, requested, context)
    return ToolOutput((Text(_read(page, requested, section, offset, fetcher, context.max_bytes)),))


def answer_search(
    site: str, query: str, limit: int, context: ToolContext, network: Network
) -> ToolOutput:
    """Return pages of a site, best first, and the index they come from.

    Raises ToolFailure; codes in `local_tools.docs`.
    """
    from bundle_router.local_tools.docs.site_search import find_index, rank, resolve_hits

    fetcher = _fetcher(context, network)
    index = find_index(fetcher, parse_url(site if "://" in site else f"https://{site}"))
    ranked = rank(index.entries, query)
    hits = resolve_hits(index, ranked, limit)
    lines = [
        f"Index: {index.url} ({index.kind}, {len(index.entries)}"
        f" entries{', cut' if index.cut else ''})"
    ]
    lines.append(
        f"{len(hits)} of {len(ranked)} matches for {query!r}, best first"
        if hits
        else "Nothing matches."
    )
    for number, hit in enumerate(hits, 1):
        kind = f" ({hit.kind})" if hit.kind else ""
        lines += ["", f"{number}. {hit.title[:200]}{kind}", f"   {hit.url}"]
        if hit.text:
            lines.append(f"   {hit.text[:200]}")
    piece = cut_piece(clean_text("\n".join(lines)), 0, max_chars=PIECE, max_bytes=context.max_bytes)
    return ToolOutput((Text(piece.text),))


def _fetcher(context: ToolContext, network: Network) -> Fetcher:
    if not context.settings.docs_hosts:
        raise ToolFailure(
            "no documentation host is allowed here, so nothing can be fetched",
            code="no_hosts",
            advice=(
                "the operator lists hosts in policy.toml, e.g. 'docs.python.org' or"
                " '*.readthedocs.io'"
            ),
        )
    hosts = HostList.parse(context.settings.docs_hosts)
    return Fetcher(hosts, network, Deadline(context.timeout_s, context.cancelled))


def _limit(kind: str, context: ToolContext) -> BodyLimit:
    if _TEXT.fullmatch(kind):
        return BodyLimit(MAX_TEXT, cut=True)
    return BodyLimit(context.max_bytes, cut=False)


def _is_text(page: Page) -> bool:
    # Servers label unknown files text/plain; a NUL outside of UTF-16 shows that they are binary.
    if not _TEXT.fullmatch(page.media_type):
        return False
    return (
        b"\0" not in page.body[:8192]
        or encoding_name(page.charset).startswith("utf-16")
        or page.body[:2] in (b"\xff\xfe", b"\xfe\xff")
    )


def _media(page: Page, requested: Url, context: ToolContext) -> ToolOutput:
    kind = "" if _TEXT.fullmatch(page.media_type) else page.media_type
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", unquote(page.url.path.rpartition("/")[2]))[
        -100:
    ].lstrip(".")
    header = "\n".join(
        [*_provenance(page, requested), f"Type: {kind or 'unknown'}, {len(page.body)} bytes"]
    )
    if page.cut or len(header.encode()) + len(page.body) > context.max_bytes:
        raise ToolFailure(
            f"{page.url}: it is larger than {context.max_bytes} bytes", code="too_large"
        )
    return ToolOutput((Text(clean_text(header)), Media(page.body, kind, name)))


def _read(
    page: Page, requested: Url, section: str | None, offset: int, fetcher: Fetcher, max_bytes: int
) -> str:
    decoded = decode_page(page.body, page.charset, cut=page.cut)
    fragment = requested.fragment or page.url.fragment
    title, text, anchor, left_out = _text_of(page, decoded.text, fragment, fetcher)
    if not text.strip():
        raise _nothing_to_read(page, "it is empty")
    headings = find_headings(text)
    start = 0
    end = len(text)
    name = ""
    if section is not None:
        start, end = find_section(headings, section, len(text))
        name = " ".join(section.split())
    elif anchor is not None:
        start, end = section_at(headings, anchor, len(text))
        name = f"#{fragment}"
    about = _provenance(page, requested)
    about.append(
        "Type:"
        f" {page.media_type or 'not given'}{', as Markdown' if page.media_type in _HTML else ''}"
    )
    if decoded.problem:
        about.append(f"Encoding: {decoded.problem}")
    if title:
        about.append(f"Title: {title[:300]}")
    if name:
        about.append(f"Section: {name}")
    elif requested.fragment:
        about.append(f"Section: there is no #{requested.fragment[:200]}, so this is the whole page")
    if page.cut:
        about.append(f"The page is longer than {MAX_TEXT} bytes; only its start was read")
    if len(text) > PIECE and not name and not offset and headings:
        about.append(f"Sections: {outline(headings)}")
    head = clean_text("\n".join(about))
    room = max_bytes - len(head.encode()) - 200  # 200: the line that describes the piece
    part = text[start:end]
    if left_out:
        whose = " (of the whole page)" if name else ""
        part = "\n\n".join(filter(None, (part.rstrip("\n"), f"{left_out}{whose}")))
    piece = cut_piece(part, offset, max_chars=PIECE, max_bytes=room)
    return f"{head}\n{_says_which(piece.start, piece.end, piece.total)}\n\n{piece.text}"


def _says_which(start: int, end: int, total: int) -> str:
    if end >= total:
        if start:
            return f"Characters: {start} to {end}, the end"
        return f"Characters: all {total}"
    return (
        f"Characters: {end - start} of {total} (from {start}); for more, fetch again with"
        f" offset={end}"
    )


def _text_of(
    page: Page, text: str, anchor: str, fetcher: Fetcher
) -> tuple[str, str, int | None, str]:
    """Return title, text, the offset of the anchor, and what of the page the text does not have."""
    if page.media_type not in _HTML:
        return "", text, None, ""
    from bundle_router.local_tools.docs.markdown import to_markdown

    def keeps_image(source: str) -> bool:
        try:
            return fetcher.hosts.allows(parse_url(source).host)
        except ToolFailure:
            return False

    anchor = unquote(anchor)
    page_text = to_markdown(
        text, base=str(page.url), anchor=anchor, keeps_image=keeps_image, deadline=fetcher.deadline
    )
    if page_text.emptiness:
        raise _nothing_to_read(page, page_text.emptiness)
    return page_text.title, page_text.markdown, page_text.anchor, page_text.left_out


def _nothing_to_read(page: Page, reason: str) -> ToolFailure:
    return ToolFailure(
        f"{page.url}: there is no text to read on this page: {reason}",
        code="no_text",
        advice="look for the same in another form: the site's index, its source, a PDF",
    )


def _provenance(page: Page, requested: Url) -> list[str]:
    lines = [f"URL: {requested}"]
    if len(page.hops) > 1:
        lines.append(
            f"Final URL: {page.url} (after {len(page.hops) - 1}"
            f" redirect{'s' if len(page.hops) > 2 else ''})"
        )
    return lines
