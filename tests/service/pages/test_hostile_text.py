"""Everything logged is hostile: strings of attack corpora in every field of every record, opened in
a real browser.

Nothing may run, and nothing may even become markup that would run without the policy of the answer.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.records.chain import FILES, genesis, parse, seal
from bundle_router.core.records.read_model import RunQuery
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values.canonical import digest_of
from bundle_router.core.values.visible import visible
from bundle_router.service.pages.application import pages
from bundle_router.service.pages.argument_view import argument_page
from bundle_router.service.pages.publishing import publish
from bundle_router.workbench.run_reader import RunReader, open_reader
from starlette.testclient import TestClient

from tests.profiles import ALL
from tests.service.pages.browsing import BrowserThread, browsed, served
from tests.service.pages.conftest import CONFIG
from tests.service.pages.sample_runs import Team, team, write

DATA = Path(__file__).parents[2] / "data"
OWN = [
    "</pre></script><script>ran()</script>",
    "<img src=x onerror=ran()>",
    "<svg/onload=ran()>",
    "' onfocus=ran() autofocus='",
    '" onmouseover="ran()" style="position:fixed;inset:0"',
    "javascript:ran()",
    "{{ ran() }}{% include 'base.html' %}",
    "</title><script>ran()</script>",
    "-->]]><iframe srcdoc='<script>parent.ran()</script>'>",
    "\u202egnp.exe\u2066",
    "\x1b[2J\x07",
    "\ud800",
    "line\r\nheader: x",
    "a\u2028b\u2029c",
    "<base href=http://evil.example/>",
    "<form action=http://evil.example>",
    "<meta http-equiv=refresh content='0;url=http://evil.example'>",
    "<a href=javascript:ran()>x</a>",
    "hx-get=/x hx-trigger=load",
    "<div hx-get='/runs' hx-trigger='load' hx-on::load='ran()'>",
    "\\u003cscript\\u003eran()",
    "%3Cscript%3Eran()%3C/script%3E",
]
CORPUS: list[str] = [
    *OWN,
    *(DATA / "payloads" / "xss.txt").read_text("utf-8", "replace").splitlines(),
    *json.loads((DATA / "blns" / "blns.json").read_text("utf-8")),
]
CHAIN = (
    "type",
    "schema",
    "seq",
    "time",
    "run_id",
    "call_id",
    "decision_id",
    "catalog_revision",
    "sha256",
)
"""Fields that hold the chain, and a run's parts, together."""
KEPT = (*CHAIN, "parent_run_id", "workflow", "role", "source", "heard", "trust")
"""With these as they were, the record is still read as a decision or call."""
MARKUP = re.compile(
    r"<script(?! src=\"/assets/(?:htmx-2\.0\.10\.min|local-time|kept-lists)\.js\""
    r" defer>)|<iframe|<style|<base|<object|<embed",
    re.I,
)
FOREIGN = (Path(__file__).parent / "foreign.js").read_text("utf-8").partition("\n")[2]


def poisoned(value: Any, kept: tuple[str, ...], number: Iterator[int]) -> Any:
    """A record in which every text, but for those under `kept` names, is the next string of the
    corpus.
    """
    if isinstance(value, dict):
        return {k: v if k in kept else poisoned(v, kept, number) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(item, kept, number) for item in value]
    return (
        CORPUS[next(number) % len(CORPUS)].replace("\x00", "\ufffd")
        if isinstance(value, str)
        else value
    )


def poison(folder: Path, run_id: str, kept: tuple[str, ...], number: Iterator[int]) -> None:
    """Write a run anew with hostile records, and a hostile catalog that is what its revision
    says.
    """
    place = folder / run_id
    header = json.loads((place / "run.json").read_text("ascii"))
    named = header["catalogs"][0]["file"]
    catalog = json.loads((place / named).read_text("ascii"))
    for rows in ("bundles", "cards", "policies", "routes"):
        for row in catalog[rows]:
            for key in ("description", "avoid", "name") if rows != "cards" else ("description",):
                if isinstance(row.get(key), str):
                    row[key] = (
                        CORPUS[next(number) % len(CORPUS)].encode("utf-8", "replace").decode()
                    )
    revision = digest_of(catalog)
    (place / named).write_text(json.dumps(catalog), encoding="ascii")
    header |= {
        "catalog_revision": revision,
        "catalogs": [{"revision": revision, "file": named}],
        "workspace": OWN[0],
    }
    records = sorted(
        ((parse(line)["seq"], file, parse(line)) for file, name in FILES.items()
         for line in (place / name).read_bytes().splitlines(keepends=True)), key=lambda row: row[0],
    )  # fmt: skip
    head, lines = genesis(run_id), {file: list[bytes]() for file in FILES}
    for seq, file, record in records:
        made = poisoned(
            {k: v for k, v in record.items() if k not in ("prev", "hash", "seq")}, kept, number
        )
        made |= {"catalog_revision": revision} if "catalog_revision" in made else {}
        made |= {"run_json": RunHeader(header).opening_digest} if seq == 0 else {}
        line, head = seal(made, seq, head)
        lines[file].append(line)
    for file, name in FILES.items():
        (place / name).write_bytes(b"".join(lines[file]))
    (place / "run.json").write_text(
        RunHeader({**header, "head": head, "count": len(records)}).sealed().to_text(),
        encoding="ascii",
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunReader]:
    folder = write(team(days=4).runs, tmp_path_factory.mktemp("hostile") / "runs")
    number = count()
    for at, run in enumerate(sorted(path.name for path in folder.iterdir())):
        poison(folder, run, KEPT if at % 3 else CHAIN, number)
    assert next(number) > 1.5 * len(CORPUS), (
        "every string of the corpus stands somewhere, and in several kinds of field"
    )
    found = open_reader(folder, config=CONFIG)
    found.refresh(now=True)
    yield found
    found.close()


def addresses_of(reader: RunReader, every: int = 1) -> list[str]:
    """The pages of runs; of one run in so many also those of its records.

    Beyond one in four, also fewer runs.
    """
    runs = [run.run_id for run in reader.index.runs(RunQuery(limit=40)).runs]
    found = [
        "/",
        "/runs",
        "/steps",
        "/calls",
        "/matrix",
        "/search?q=script",
        "/runs?q=%3Cscript%3Eran()%3C/script%3E",
    ]
    found += [
        f"/runs?workflow={value}" for value in ("%22%3E%3Csvg/onload=ran()%3E", "'onclick=ran()")
    ]
    found += [f"/runs/{run}" for run in runs[:: max(1, every // 4)]]
    for run in runs[::every]:
        found += [f"/runs/{run}/0", f"/runs/{run}/0/array"]
        found += [
            f"/runs/{run}/{row['seq']}" for row in reader.index.rows_of("calls", run)[::every]
        ]
    found += [f"/runs/{run}/0/why?name=%3Cimg%20src=x%20onerror=ran()%3E" for run in runs[:3]]
    found += [
        f"/compare?a={runs[0]}/0&b={runs[1]}/0",
        "/compare?a=%3Cscript%3Eran()%3C/script%3E/0&b=x",
        f"/compare?a={runs[0]}&b={runs[1]}&all=1",
        "/compare?a=%3Cscript%3Eran()%3C/script%3E&b=x",
        f"/runs/{runs[0]}/media",
    ]
    return found


def test_no_logged_text_becomes_markup(hostile: RunReader) -> None:
    client = TestClient(
        pages(hostile, reviewer=lambda _: "<b onclick=ran()>"), base_url="http://127.0.0.1"
    )
    for address in addresses_of(hostile):
        answer = client.get(address)
        assert answer.status_code in (200, 404, 500), address
        assert answer.headers["content-type"].startswith("text/html"), (address, answer.text[:200])
        assert not MARKUP.search(answer.text), address
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", _without_values(answer.text)
        ), address


def _without_values(text: str) -> str:
    """A page without what stands in the value of a field, which shows what was typed or what is to
    be sent.
    """
    return re.sub(r'value="[^"]*"|href="[^"]*"|title="[^"]*"', "", text)


def test_json_of_hostile_records_is_json_and_no_markup(hostile: RunReader) -> None:
    client = TestClient(pages(hostile), base_url="http://127.0.0.1")
    for run in hostile.index.runs(RunQuery(limit=5)).runs:
        answer = client.get(f"/runs/{run.run_id}/0.json")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert json.loads(answer.text)
        assert "<" not in answer.text


@browsed
def test_nothing_runs_in_a_real_browser(
    hostile: RunReader, browser: BrowserThread, tmp_path: Path
) -> None:
    ran: list[str] = []
    context = browser.browser.new_context()
    context.expose_binding("ran", lambda _, what="": ran.append(f"ran({what})"))
    context.add_init_script(
        "for (const n of ['alert', 'confirm', 'prompt', 'print']) window[n] = () => window.ran(n);"
        "addEventListener('securitypolicyviolation', (e) => window.ran(`blocked ${e.blockedURI}`));"
    )
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.on(
        "request",
        lambda request: ran.append(request.url) if "127.0.0.1" not in request.url else None,
    )
    with served(hostile, reviewer=lambda _: "rita") as at:
        for address in addresses_of(hostile, every=4 if ALL else 16):
            page.goto(at + address)
            assert page.evaluate(FOREIGN) == [], address
            assert ran == [], address
    context.close()


@browsed
def test_nothing_runs_in_published_files(
    hostile: RunReader, browser: BrowserThread, tmp_path: Path
) -> None:
    runs = [run.run_id for run in hostile.index.runs(RunQuery(limit=4)).runs]
    publish(hostile, runs, tmp_path / "out")
    ran: list[str] = []
    context = browser.browser.new_context()
    context.add_init_script(
        "for (const n of ['alert', 'confirm', 'prompt']) window[n] = () => console.error('ran '"
        " + n);"
    )
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.on("console", lambda message: ran.append(message.text))
    page.on(
        "request",
        lambda request: ran.append(request.url) if not request.url.startswith("file:") else None,
    )
    for file in sorted((tmp_path / "out").rglob("*.html"))[:: 3 if ALL else 9]:
        assert not re.search(r"<script|<iframe|<form", file.read_text("utf-8"))
        page.goto(file.as_uri())
        assert ran == [], file
    context.close()


def test_what_can_not_be_seen_is_written_out(hostile: RunReader) -> None:
    client = TestClient(pages(hostile), base_url="http://127.0.0.1")
    said = "".join(
        client.get(f"/runs/{run.run_id}").text
        for run in hostile.index.runs(RunQuery(limit=40)).runs
    )
    assert visible("\u202e") in said or "\\u202e" in said


# --- the arguments of a call, value by value -----------------------------------------------------


def marks_of(text: str) -> list[tuple[str, str, str]]:
    (row,) = argument_page(json.dumps({"value": text})).rows
    return [(part.text, part.mark, part.note) for part in row.parts if part.mark]


CYRILLIC_O = "U+043E CYRILLIC SMALL LETTER O"
CASES: list[tuple[str, list[tuple[str, str, str]]]] = [
    ("src/retry.py", []),
    ("Grüße, naïve café", []),
    ("Привет, мир", []),
    ("日本語 ✓ 🙂", []),
    ("https://оk.example", [("о", "look-alike", CYRILLIC_O)]),
    ("сосо", [("с", "look-alike", "U+0441 CYRILLIC SMALL LETTER ES"), ("о", "look-alike", CYRILLIC_O)] * 2),
    ("transfer ５00", [("５", "look-alike", "U+FF15 FULLWIDTH DIGIT FIVE")]),
    ("a／b", [("／", "look-alike", "U+FF0F FULLWIDTH SOLIDUS")]),
    ("safe\u202etxt.exe", [("\\u202e", "unseen", "U+202E RIGHT-TO-LEFT OVERRIDE")]),
    ("a\u200bb", [("\\u200b", "unseen", "U+200B ZERO WIDTH SPACE")]),
    ("a\u00a0b", [("\\u00a0", "unseen", "U+00A0 NO-BREAK SPACE")]),
    ("a\x1b[2Jb", [("\\u001b", "unseen", "U+001B without a name")]),
    ("one\ntwo\r\nthree", [("⏎\n", "unseen", "line end"), ("␍⏎\n", "unseen", "line end")]),
    ("a\tb", [("⇥", "unseen", "tab")]),
    ("a  b", []),
    ("ok" + " " * 4000 + "--force", [("␠×4,000", "unseen", "4,000 blanks")]),
    ("key [redacted:openai] end", [("[redacted:openai]", "hidden", "taken out by redaction")]),
    ("\ue000", [("\ue000", "look-alike", "U+E000 without a name")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "marks"), CASES, ids=range(len(CASES)))
def test_what_is_not_seen_or_can_be_mistaken_is_marked(
    text: str, marks: list[tuple[str, str, str]]
) -> None:
    assert marks_of(text) == marks


def test_every_value_stands_at_its_place_and_no_character_is_lost() -> None:
    given: dict[str, Any] = {
        "to": ["a@b.example", "c@d.example"],
        "amount": 500.25,
        "sure": True,
        "note": None,
        "empty": "",
        "more": {"a/b": {}, "list": []},
    }
    shown = argument_page(json.dumps(given))
    assert [
        (row.pointer, row.kind, "".join(part.text for part in row.parts)) for row in shown.rows
    ] == [
        ("/to/0", "text", "a@b.example"),
        ("/to/1", "text", "c@d.example"),
        ("/amount", "number", "500.25"),
        ("/sure", "boolean", "true"),
        ("/note", "null", "null"),
        ("/empty", "text", ""),
        ("/more/a~1b", "object", "{}"),
        ("/more/list", "list", "[]"),
    ]
    assert (shown.marks, shown.hidden, shown.pages) == (0, 0, 1)
    (number,) = argument_page('{"n": 1.50e3}').rows
    assert (number.kind, number.parts[0].text) == ("number", "1.50e3")
    (unread,) = argument_page('{"cut": "of').rows
    assert (unread.kind, unread.parts[0].text) == ("unread", '{"cut": "of')


HOSTS = [
    ("see https://ok.example/a", ()),
    ("https://оk.example/a", ("оk.example is xn--k-0tb.example",)),
    (
        "https://ok.example@evil.example/",
        ("it goes to evil.example: ok.example before the @ is a user name",),
    ),
    ("https://[::1/", ("https://[::1/ is no URL that all programs read in one way",)),
]


@pytest.mark.parametrize(("text", "sentences"), HOSTS, ids=range(len(HOSTS)))
def test_a_host_that_misleads_is_spelled_out(text: str, sentences: tuple[str, ...]) -> None:
    assert argument_page(json.dumps([text])).rows[0].hosts == sentences


def test_long_arguments_stand_whole_on_several_pages() -> None:
    text = "".join(chr(ord("a") + at % 26) for at in range(150_000))
    arguments = json.dumps({"text": text, "then": "x"})
    shown = [argument_page(arguments, number) for number in (1, 2, 3)]
    assert [page.pages for page in shown] == [3, 3, 3]
    rows = [row for page in shown for row in page.rows]
    assert "".join(row.parts[0].text for row in rows if row.pointer == "/text") == text
    assert [row.is_rest for row in rows] == [False, True, True, False]
    assert argument_page(arguments, 9) == shown[2]
    assert shown[0].characters == 150_001

    many = [argument_page(json.dumps([*range(4_500)]), number) for number in (1, 2, 3)]
    assert [len(page.rows) for page in many] == [2_000, 2_000, 500]


def test_the_page_of_a_call_shows_them_so(tmp_path: Path) -> None:
    team = Team()
    team.step("r-1", "feature", "researcher", "look-up", "fetch")
    hostile = "https://оk.example/\u202e</pre><script>alert(1)</script>" + " " * 400 + "end"
    team.router.call_sync("r-1", "docs.fetch", {"url": hostile})
    write(team.runs, tmp_path / "runs")
    with contextlib.closing(open_reader(tmp_path / "runs")) as reader:
        client = TestClient(pages(reader), base_url="http://127.0.0.1")
        page = client.get("/runs/r-1/2").text
        assert "<script>alert" not in page
        marks = re.findall(r'<mark class="([a-z-]+)" title="([^"]+)">([^<]+)', page)
        assert marks == [
            ("look-alike", "U+043E CYRILLIC SMALL LETTER O", "о"),
            ("unseen", "U+202E RIGHT-TO-LEFT OVERRIDE", "\\u202e"),
            ("unseen", "400 blanks", "␠×400"),
        ]
        assert "3 places can't be seen, or can be mistaken: each is marked" in page
        assert "оk.example is xn--k-0tb.example" in page
