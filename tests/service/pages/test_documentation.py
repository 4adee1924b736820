"""The documentation as pages: its links and anchors, its table of contents, and the links to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bundle_router.core.values import CODES, FAILURES, OUTCOMES, REASONS, SOURCES
from bundle_router.errors import RequestError
from bundle_router.review.sentences import LISTS
from bundle_router.service.pages import application
from bundle_router.service.pages.application import pages
from bundle_router.service.pages.documentation import (
    Documentation,
    documentation,
    entry_of,
    entry_of_key,
)
from bundle_router.service.pages.rendering import Links, environment
from bundle_router.workbench.run_reader import RunReader
from starlette.testclient import TestClient

BASE = "http://127.0.0.1"


def write(folder: Path, **files: str) -> Documentation:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")
    return Documentation(folder)


def test_every_link_between_pages_leads_to_a_page_and_an_anchor_of_it() -> None:
    docs = documentation()
    addresses = {f"/docs/{name}" if name else "/docs": name for name in docs.names}
    assert len(addresses) > 15
    lost = []
    for address, name in addresses.items():
        for link in re.findall(r'href="([^"]*)"', docs.page(name).html):
            target, mark, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            page = addresses.get(target or address)
            if page is None or (mark and anchor not in docs.page(page).anchors):
                lost.append((address, link))
    assert lost == []


def test_the_text_of_a_page_is_escaped_and_brings_no_style(tmp_path: Path) -> None:
    text = (
        "# A `b` <i>\n\n<script>x</script> [bad](javascript:x) ![](a.png)\n\n| n |\n|--:|\n| 1 |\n"
    )
    page = write(tmp_path, README=text).page("")
    assert "<script" not in page.html
    assert "<i>" not in page.html
    assert 'href="javascript' not in page.html
    assert "style=" not in page.html
    assert '<td class="num">1</td>' in page.html


def test_headings_and_rows_have_anchors(tmp_path: Path) -> None:
    text = "# One\n\n## `[[a.b]]`, two\n\n| k |\n|---|\n| `x` |\n| y |\n\n## One\n"
    page = write(tmp_path, README=text).page("")
    assert [heading.anchor for heading in page.headings] == ["one", "ab-two", "one-1"]
    assert page.anchors == {"one", "ab-two", "one-1", "ab-two.x"}
    assert '<tr id="ab-two.x">' in page.html


def test_links_to_files_lead_to_pages_and_others_become_their_text(tmp_path: Path) -> None:
    links = "[a](../start/a.md#x) [top](../README.md) [out](../../LICENSE) [far](https://x.org)"
    links += " [`.ci/run`](../../.ci/run)"
    docs = write(tmp_path, README="# R", start__a="# A\n\n## X", reference__b=f"# B\n\n{links}")
    html = docs.page("reference/b").html
    assert re.findall('href="([^"]*)"', html) == ["/docs/start/a#x", "/docs", "https://x.org"]
    assert '<code title="in the repository: LICENSE">out</code> (in the repository)' in html
    assert '"><code>.ci/run</code></span> (in the repository)' in html
    assert html.count("(in the repository)") == 2
    assert 'href="/at/docs/start/a#x"' in Documentation(tmp_path, "/at").page("reference/b").html


def test_the_contents_have_the_order_of_the_folders_and_of_the_first_page(tmp_path: Path) -> None:
    first = "# R\n\n[c](how-to/c.md) [b](how-to/b.md)"
    texts = {f"how-to__{name}": f"# Page {name}" for name in "abc"}
    docs = write(tmp_path, README=first, explanation__z="# Z", start__s="# S", **texts)
    assert list(docs.contents()) == [
        ("Start", [("/docs/start/s", "S")]),
        (
            "How to",
            [
                ("/docs/how-to/c", "Page c"),
                ("/docs/how-to/b", "Page b"),
                ("/docs/how-to/a", "Page a"),
            ],
        ),
        ("Explanation", [("/docs/explanation/z", "Z")]),
    ]


@pytest.mark.parametrize("name", ["nothing", "../README", "start", "README", ""])
def test_there_is_no_page_but_those_of_the_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# outside", encoding="utf-8")
    docs = write(tmp_path / "docs", start__a="# A")
    with pytest.raises(RequestError):
        docs.page(name)


def test_every_closed_word_has_an_entry_on_the_page_of_codes() -> None:
    anchors = documentation().page("reference/codes").anchors
    words = [(word, name) for name, words in LISTS.items() for word in words]
    assert {word for word, _ in words} >= {*CODES, *FAILURES, *OUTCOMES, *REASONS, *SOURCES}
    assert [word for word, name in words if f"{name}.{word}" not in anchors] == []
    assert entry_of("policy_denied") == "/docs/reference/codes#left-out.policy_denied"
    assert entry_of("search", "source") == "/docs/reference/codes#sources.search"
    assert entry_of("search") == "/docs/reference/codes#reasons.search"
    assert entry_of("no such word") == ""


@pytest.mark.parametrize(
    ("path", "anchor"),
    [
        ("routes[3].bundles[0]", "routes.bundles"),
        ("policies[0].allow[2]", "policies.allow"),
        ("bundles.repo.readonly.tools[1]", "bundlesid.tools"),
        ("servers.github.url", "serversname.url"),
        ("model.names", "model.names"),
        ("nothing.there", ""),
    ],
)
def test_a_problem_leads_to_the_entry_of_its_key(path: str, anchor: str) -> None:
    assert entry_of_key(path) == (f"/docs/reference/config#{anchor}" if anchor else "")


def test_every_link_of_a_template_to_the_documentation_finds_its_entry() -> None:
    docs = documentation()
    folder = Path(application.__file__).with_name("templates")
    links = [
        link
        for path in folder.glob("*.html")
        for link in re.findall(r'm\.help\("([^"]+)"[,)]', path.read_text("utf-8"))
    ]
    assert len(links) >= 6
    lost = []
    for link in links:
        name, _, anchor = link.partition("#")
        if anchor not in docs.page(name).anchors:
            lost.append(link)
    assert lost == []


def test_the_service_shows_the_pages_with_their_contents(reader: RunReader) -> None:
    client = TestClient(pages(reader), base_url=BASE)
    shown = client.get("/docs/reference/codes")
    assert shown.status_code == 200
    assert '<a href="/docs" aria-current="page">Docs</a>' in shown.text
    assert '<a href="/docs/reference/codes" aria-current="page">Codes</a>' in shown.text
    assert '<tr id="left-out.policy_denied">' in shown.text
    assert client.get("/docs").text.count("<h1") == 1
    facts = client.get("/docs/reference/codes.json").json()
    assert facts["title"] == "Codes"
    assert facts["markdown"].startswith("# Codes\n")
    assert client.get("/docs/nothing").status_code == 404


def test_a_word_leads_to_its_entry_unless_all_is_well_or_there_is_no_documentation() -> None:
    template = '{% import "macros.html" as m with context %}{{ m.word(value) }}'

    def word(value: str, links: Links) -> str:
        return environment().from_string(template).render(value=value, to=links.to).strip()

    entry = 'href="/docs/reference/codes#left-out.not_allowed"'
    assert entry in word("not_allowed", Links())
    assert "href" not in word("ok", Links())
    assert "href" not in word("not_allowed", Links(files={}))


def test_tables_of_entries_are_marked_for_narrow_screens_and_others_are_not(tmp_path: Path) -> None:
    head = "| field | type | unit | meaning | example |\n|---|---|---|---|---|\n| `a` | text | | A. | 1 |\n"
    other = head.replace("meaning", "result")
    docs = write(tmp_path, README="# A\n", one=f"# B\n\n{head}", two=f"# C\n\n{other}")
    assert '<table class="entries of-docs">' in docs.page("one").html
    assert '<table class="of-docs">' in docs.page("two").html
