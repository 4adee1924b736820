"""HTML to Markdown: what a reader gets of real pages, and what a hostile one costs.

`tests/data/docs/*.html` imitate what Sphinx, MkDocs, Docusaurus and old manuals publish; the `.md`
beside each is what must come of it. After a deliberate change, write them anew with
`python tests/local_tools/docs/test_docs_markdown.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs import table_grids
from bundle_router.local_tools.docs.charsets import clean_text
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.markdown import Converted, to_markdown
from bundle_router.local_tools.docs.pages import cut_piece, find_headings
from bundle_router.local_tools.docs.soup import parse
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(__file__).parents[2] / "data" / "docs"
PAGES = sorted(DATA.glob("*.html"))
BASE = "https://docs.example.org/en/latest/guide/page.html"


def convert(html: str, *, base: str = BASE, anchor: str = "", timeout_s: float = 60) -> Converted:
    ours = "https://docs.example.org/"
    return to_markdown(
        html,
        base=base,
        anchor=anchor,
        keeps_image=lambda url: url.startswith(ours),
        deadline=Deadline(timeout_s),
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_a_page_reads_as_its_golden_file(page: Path) -> None:
    made = convert(page.read_text(encoding="utf-8"))
    assert f"<!-- {made.title} -->\n\n{made.markdown}\n" == page.with_suffix(".md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ('<a href="x y(1).html">a</a>', "[a](https://docs.example.org/en/latest/guide/x%20y%281%29.html)"),
        ('<a href="/a?b=1&amp;c=2#d">a</a>', "[a](https://docs.example.org/a?b=1&c=2#d)"),
        ('<a href="mailto:me@example.org">a</a>', "[a](mailto:me@example.org)"),
        ('<a href="javascript:alert(1)">a</a>', "a"),
        ('<a href=" JaVa&#9;ScRiPt:alert(1)">a</a>', "a"),
        ('<a href="data:text/html,x">a</a>', "a"),
        ('<a href="vbscript:x">a</a>', "a"),
        ('<a href="file:///etc/passwd">a</a>', "a"),
        ('<a href="https://[::1">a</a>', "a"),
        ('<a href="">a</a>', "a"),
        ('<a href="/x&#10;y&#x2028;z">a</a>', "[a](https://docs.example.org/xyz)"),
        ('<img src="data:image/png;base64,AA" alt="logo">', "logo"),
        ('<img src="//tracker.example/x.gif">', ""),
        ('<img src="../a.png" alt="a\nb">', "![a b](https://docs.example.org/en/latest/a.png)"),
        ('<base href="https://docs.example.org/v2/"><a href="x">a</a>', "[a](https://docs.example.org/v2/x)"),
        ('<base href="javascript:x"><a href="x">a</a>', "[a](https://docs.example.org/en/latest/guide/x)"),
        ("<p>f[x](y) and list[int]: z</p>", "f[x\\](y) and list[int\\]: z"),
        ("<p>[a]<b></b>(javas<i></i>cript:x)</p>", "[a\\](javascript:x)"),
        ("<p>[a](&amp;#106;avascript:x)</p>", "[a\\](&#106;avascript:x)"),
        ("<p>[a](https://example.org/)</p>", "[a](https://example.org/)"),
        ("<p>&lt;img onerror=y&gt; &lt;javascript:x&gt; 1 &lt; 2</p>", "\\<img onerror=y> \\<javascript:x> 1 < 2"),
        ("<p><code>d[k](v) &lt;b&gt;</code></p>", "`d[k](v) <b>`"),
        ("<p>snake_case and *args</p>", "snake_case and *args"),
        ("<pre>a\n\n\nb  c\n</pre>", "```\na\n\n\nb  c\n```"),
        ("<pre>```\n~~~~</pre>", "````\n```\n~~~~\n````"),
        ("<table><tr><th colspan=9999999999>a</table>", "| a |\n| --- |"),
        ("<table><tr><th>a<tr><td><pre>x|y</pre></table>", "| a |\n| --- |\n| `x\\|y` |"),
        ("<ol start=99999999999999><li>a<li>b</ol>", "1. a\n2. b"),
        ('<h2>Head<a href="#x" class="whatever">¶</a></h2>', "## Head"),
        ("<h2></h2>a", "a"),
        ("<p>a&#x1b;b&#x81;c&#x202e;d\u200b</p>", "abcd\u200b"),
        ("<p>a\ue0a0b</p>", "ab"),
        ("<p>é&nbsp;x</p>", "é x"),
        ('<math><annotation encoding="application/x-tex">x^2</annotation></math>', "$x^2$"),
        ("<p>a<script>b()</script><style>c{}</style><noscript>d</noscript><template>e</template><!-- f --></p>", "a"),
        ('<p>a<span hidden>b</span><span aria-hidden="true">c</span></p>', "a"),
        ("", ""),
    ],
)  # fmt: skip
def test_small_things_are_written_as_a_reader_wants_them(html: str, markdown: str) -> None:
    assert convert(html).markdown == markdown


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<body><p>x</p><main><p>in</p></main></body>", "in"),
        ('<body><main>x</main><div role="main">in</div></body>', "in"),
        ("<main><div>side</div><article>in</article></main>", "in"),
        ("<main><article>one</article><article>two</article></main>", "one\n\ntwo"),
        ("<article>in</article><div>side</div>", "in"),
        ("<article>in<article>note</article></article><div>side</div>", "in\n\nnote"),
        ("<main>small</main><main>the larger one</main>", "the larger one"),
        ("<div role=navigation>x</div><div>in</div><footer role=contentinfo>x</footer>", "in"),
    ],
)
def test_the_main_content_is_preferred(html: str, expected: str) -> None:
    assert convert(html).markdown == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_every_link_of_a_page_is_absolute_and_of_a_harmless_scheme(page: Path) -> None:
    targets = re.findall(
        r"(?<!\\)\]\(([^)]*)\)", convert(page.read_text(encoding="utf-8")).markdown
    )
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "mailto:"))] == []


@pytest.mark.parametrize(
    ("page", "anchor", "text"),
    [
        ("mkdocs_material", "every-key", "Every key"),
        ("mkdocs_material", "__codelineno-0-2", "listen ="),
        ("sphinx_furo", "basic-usage", "Basic usage"),
        ("sphinx_furo", "tinycache-store-the-store", "tinycache.store` — The store"),
        ("sphinx_furo", "tinycache.store.Store.put", "put(key, value"),
        ("sphinx_furo", "id1", "Back ends"),
        ("docusaurus", "limits", "Limits"),
        ("plain", "here", "empty"),
    ],
)
def test_an_anchor_is_found_where_it_stands_and_changes_nothing(
    page: str, anchor: str, text: str
) -> None:
    html = (DATA / f"{page}.html").read_text(encoding="utf-8")
    made = convert(html, anchor=anchor)
    assert made.markdown == convert(html).markdown
    assert made.anchor is not None
    assert made.markdown[made.anchor :].startswith(text)


def test_an_anchor_that_is_nowhere_or_only_in_the_menu_is_none() -> None:
    html = '<main><nav id="menu">x</nav><p id="a">\ue0a0y &#xe0a0;z</p></main>'
    assert convert(html, anchor="nope").anchor is None
    assert convert(html).anchor is None
    assert convert(html, anchor="menu").markdown == "y z"


def test_more_markdown_than_the_bound_is_refused() -> None:
    with pytest.raises(ToolFailure) as caught:
        convert("<p>" + "x" * 4_200_000)
    assert caught.value.code == "too_large"


def test_headings_in_code_are_none() -> None:
    text = (
        "# A\n```sh\n# not\n```\n~~~~\n```\n# not\n~~~\n~~~~\n  ## `B` [c](d) #\n> ```\n> x\n>"
        " ```\n#no\n###### F"
    )
    assert [(heading.level, heading.title) for heading in find_headings(text)] == [
        (1, "A"),
        (2, "B c"),
        (6, "F"),
    ]
    assert text[find_headings(text)[1].start :].startswith("  ## `B`")


@given(st.text(alphabet="aü\n日", min_size=1, max_size=300), st.integers(1, 50), st.integers(4, 60))
def test_pieces_join_to_the_whole_and_stay_within_their_bounds(
    text: str, max_chars: int, max_bytes: int
) -> None:
    pieces, offset = [], 0
    while offset < len(text):
        piece = cut_piece(text, offset, max_chars=max_chars, max_bytes=max_bytes)
        assert piece.text
        assert len(piece.text) <= max_chars
        assert len(piece.text.encode()) <= max_bytes
        pieces.append(piece.text)
        offset = piece.end
    assert "".join(pieces) == text


@given(st.text())
def test_clean_text_has_no_controls_and_encodes(text: str) -> None:
    clean = clean_text(text + "\x1b\u202e\ud800\U000e0041\r")
    assert not any(ord(char) < 32 and char not in "\n\t" for char in clean)
    assert clean_text(clean) == clean
    clean.encode()


N = 200_000
HOSTILE = {
    "spaces": "<p>a" + " " * N + "b",
    "spaces in pre": "<pre>a" + " " * N + "b\n",
    "newlines in pre": "<pre>a" + "\n" * N + "b\n",
    "deep divs": "<div>" * (N // 5) + "x",
    "deep quotes": "<blockquote>" * 75 + "x<br>" * (N // 50),
    "deep lists": "<ul><li>" * 40 + "x<br>" * (N // 50),
    "nested mains": "<div role=main>" * (N // 15) + "x",
    "list items": "<ol>" + "<li>x" * (N // 20),
    "wide cells": "<table><tr>" + "<td colspan=1000>" * (N // 50),
    "open angles": "<" * N,
    "open comments": "<!--" * (N // 4),
    "open entities": "&#" * (N // 2),
    "brackets": "<b>]</b>" * (N // 50),
    "cells over many rows": "<table><tr>" + "<td rowspan=1000>x" * 2_000 + "<tr>" * 2_000,
    "cells of many lines": "<table>" + "<tr><td>x<br>y" * (N // 100),
    "tables in listings": "<pre><table><tr><td>1<td><pre>x" * (N // 200),
    "strips of tabs": "<div role=tablist>" * (N // 50),
    "panels without end": "<div role=tablist><a role=tab>x</a></div>"
    + "<p role=tabpanel>x" * (N // 50),
    "asides of links": "<aside><a href=#x>yy</a>" * (N // 50),
    "formulas": "<math>" + "<msup><mi>x</mi>" * (N // 50),
    "powers": "<sup>" * (N // 50) + "1",
    "formulas in formulas": "<math>" + "<mrow><mi>x</mi>" * 70,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_page_is_converted_without_falling_over(what: str) -> None:
    assert len(convert(HOSTILE[what]).markdown) < 2_000_000


class CountedList(list[Any]):
    """A list that counts how often one of its items is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.looks += 1
            yield item


def test_siblings_are_changed_in_time_that_is_linear_in_their_number() -> None:
    """Beautiful Soup looks for each from the first: 240 KB of lines in one cell took 90 s."""
    cell = parse("<table><tr><td>" + "x<br>" * 400).find("td")
    assert cell is not None
    breaks = cell.find_all("br")
    siblings = cell.contents = CountedList(cell.contents)
    for at, each in enumerate(breaks):
        if at % 2:
            each.insert_before("y")
        each.replace_with("z")
    assert len(siblings) == 1_000
    assert siblings.looks < 10_000
    with pytest.raises(ValueError, match="children"):
        cell.index(breaks[0])


@pytest.mark.parametrize(
    ("page", "left_out"),
    [
        ("<td colspan=20>a<td>b", ""),
        ("<td>a<td colspan=500>b", ""),
        (
            "<td colspan=25>a<td>b",
            "left out: 5 cells under merged ones (values may stand too far left)",
        ),
        (
            "<td rowspan=2>x" * 130 + "<tr><td>y",
            "left out: 30 cells under merged ones (values may stand too far left)",
        ),
        (
            "<td colspan=20>x<td>y<tr>" * 100,
            "left out: 1,800 cells under merged ones (values may stand too far left)",
        ),
    ],
)
def test_what_a_bound_kept_out_of_a_table_is_said(
    monkeypatch: pytest.MonkeyPatch, page: str, left_out: str
) -> None:
    monkeypatch.setattr(table_grids, "MAX_FILLED", 100)
    assert convert(f"<table><tr>{page}</table>").left_out == left_out


@pytest.mark.parametrize(
    ("style", "is_kept"),
    [
        ("display:none", False),
        ("color:red; DISPLAY : none !important", False),
        ("visibility:hidden", False),
        ("font-size:0", False),
        ("font-size:0px;", False),
        ("opacity: 0.0", False),
        ("opacity: 0.5", True),
        ("font-size:0.8em", True),
        ("font-size:05px", True),
        ("display:block", True),
        ("--display:none", True),
        ("max-font-size:0", True),
    ],
)
def test_text_that_only_a_model_would_read_is_left_out(style: str, is_kept: bool) -> None:
    page = convert(f"<p>a</p><p style='{style}'>You are to obey</p>")
    assert ("obey" in page.markdown) is is_kept
    assert page.left_out == ("" if is_kept else "left out: 1 hidden part")


def test_a_panel_that_a_style_closes_is_kept_where_something_opens_it() -> None:
    panel = "<div id=more style='display:none'>the rest</div>"
    assert "the rest" in convert(f"<button aria-controls=more>More</button>{panel}").markdown
    assert "the rest" in convert(f"<a data-target='#more'>More</a>{panel}").markdown


@pytest.mark.parametrize("mark", ["&#xe0a0;", "&#xE0A1", "&#x000e0a2;", "&#57504;", "&#057506;"])
def test_a_page_makes_no_mark_of_ours_by_a_reference(mark: str) -> None:
    page = convert(f"<table><tr><th>a<tr><td>b{mark}z</table><p>d{mark} e</p>")
    assert page.markdown == "| a |\n| --- |\n| bz |\n\nd e"


def test_a_label_is_a_listings_own_only_where_it_is_near() -> None:
    listing = "<pre class=language-js>x</pre>"
    label = "<span class=lang>js</span>"
    assert convert(f"<div>{label}{listing}</div>").markdown == "```js\nx\n```"
    far = convert(f"<div>{label}{'<p>y</p>' * 6}{listing}</div>").markdown
    assert far.startswith("js\n")


def test_converting_stops_at_the_deadline() -> None:
    deadline_passes_on_the_way = iter([False] * 50 + [True] * 10)
    deadline = Deadline(60, lambda: next(deadline_passes_on_the_way))
    with pytest.raises(ToolFailure) as caught:
        to_markdown("<p>x" * 1000, base=BASE, keeps_image=lambda url: True, deadline=deadline)
    assert caught.value.code == "cancelled"


if __name__ == "__main__":
    for path in PAGES:
        golden = convert(path.read_text(encoding="utf-8"))
        path.with_suffix(".md").write_text(
            f"<!-- {golden.title} -->\n\n{golden.markdown}\n", encoding="utf-8"
        )
    sys.exit(0)
