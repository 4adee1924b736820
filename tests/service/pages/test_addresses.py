"""The addresses without a browser: what they answer, as HTML and JSON, to whom, and how much they
read for it.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.index import RunIndex
from bundle_router.core.records.chain import genesis, seal
from bundle_router.core.records.read_model import NOBODY, RunQuery
from bundle_router.core.servers.transport.tool_servers import RawResult
from bundle_router.core.values import Media
from bundle_router.core.values.words import (
    CODES,
    DOUBTS,
    FAILURES,
    OUTCOMES,
    REASONS,
    SOURCES,
)
from bundle_router.errors import RequestError
from bundle_router.review import sentences
from bundle_router.service.pages import views
from bundle_router.service.pages.application import POLICY, PageRoutes, pages
from bundle_router.service.pages.publishing import publish
from bundle_router.service.pages.rendering import Links, error_page, render
from bundle_router.service.refusals import ScopedMount
from bundle_router.workbench.run_reader import RunReader, open_reader
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.service.pages.conftest import CONFIG
from tests.service.pages.sample_runs import Team, picture, write
from tests.service.pages.sample_runs import team as sample_team

BASE = "http://127.0.0.1"
RECORDED = Path(__file__).parents[2] / "data" / "runs" / "0.1.0-first-layout"


@pytest.fixture
def client(reader: RunReader) -> TestClient:
    return TestClient(pages(reader), base_url=BASE)


def sha_of(reader: RunReader) -> tuple[str, str]:
    """A run with a picture, and the picture's digest."""
    run = reader.index.runs(RunQuery(facets=(("mark", "media"),))).runs[0]
    return run.run_id, reader.index.rows_of("artifacts", run.run_id)[0]["sha256"]


def some_addresses(reader: RunReader) -> list[str]:
    run, sha256 = sha_of(reader)
    return [
        "/", "/runs", "/runs?denied=1&sort=-took", "/steps?degraded=1", "/calls?outcome=denied", "/search?q=retry",
        "/matrix", "/catalog", "/catalog/repo.readonly", "/servers/repo", f"/artifacts/{sha256}", f"/artifacts/{sha256}?as=hex",
        f"/runs/{run}/media", f"/runs/{run}",
        f"/runs/{run}/0", f"/runs/{run}/0/array?form=anthropic", f"/runs/{run}/0/why/workspace.exec", f"/runs/{run}/2",
        f"/compare?a={run}/0&b=feature-001/0", f"/compare?a={run}&b=feature-001&all=1",
        "/library?q=delete", "/library/github-ref",
        "/docs", "/docs/reference/codes", "/docs/reference/records", "/docs/start/engine",
    ]  # fmt: skip


def test_the_matrix_says_why_a_bundle_may_not_be_seen(client: TestClient) -> None:
    rows = {(row["role"], row["bundle"]): row for row in client.get("/matrix.json").json()}
    assert rows["planner", "thirdparty.github"]["why_not"] == "capability_missing"
    assert rows["reviewer", "thirdparty.github"]["why_not"] == "not_allowed"
    assert (rows["planner", "repo.readonly"]["may"] == []) == bool(
        rows["planner", "repo.readonly"]["why_not"]
    )
    page = client.get("/matrix").text
    assert "capability_missing" in page
    assert "not in the config" in page


def test_every_page_is_among_those_that_are_asked_for(reader: RunReader) -> None:
    asked = [address.partition("?")[0] for address in some_addresses(reader)]
    routes = [
        route
        for route in PageRoutes(reader, Links(), lambda _: None).routes()
        if isinstance(route, Route)
    ]
    paths = {route.path for route in routes}
    with_json = [route for route in routes if f"{route.path}.json" in paths]
    assert len(with_json) > 10
    assert [route.path for route in with_json if not any(map(route.path_regex.match, asked))] == []


def test_every_page_is_there_for_people_and_for_programs(
    client: TestClient, reader: RunReader
) -> None:
    for address in some_addresses(reader):
        page = client.get(address)
        assert page.status_code == 200, (address, page.text[-400:])
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["x-content-type-options"] == "nosniff"
        (as_json,) = re.findall(r'<a href="([^"]+)">This page as JSON', page.text)
        assert client.get(as_json.replace("&amp;", "&")).json() is not None, address


def test_no_page_carries_script_or_style_of_its_own(client: TestClient, reader: RunReader) -> None:
    for address in some_addresses(reader):
        text = client.get(address).text
        scripts = ["htmx-2.0.10.min.js", "local-time.js"]
        if address.partition("?")[0] == "/runs":
            scripts.append("kept-lists.js")
        assert re.findall(r"<script[^>]*>", text) == [
            f'<script src="/assets/{name}" defer>' for name in scripts
        ], address
        assert not re.search(
            r"<style|\sstyle=|\son[a-z]+=|javascript:|https?://(?!127)[^\"]*\.(?:js|css)", text
        ), address


def test_links_of_pages_lead_to_pages(client: TestClient) -> None:
    seen: set[str] = set()
    waiting = ["/runs", "/", "/calls", "/steps?degraded=1"]
    while waiting and len(seen) < 60:
        address = waiting.pop(0)
        seen.add(address)
        answer = client.get(address)
        assert answer.status_code == 200, address
        if answer.headers["content-type"].startswith("text/html"):
            found = re.findall(r'(?:href|src|hx-get)="(/[^"#]*)', answer.text)
            waiting += [link for raw in found if (link := raw.replace("&amp;", "&")) not in seen]


def test_what_is_not_there_is_said_with_its_status(client: TestClient) -> None:
    for address in (
        "/nothing",
        "/nothing/at/all",
        "/runs/nobody",
        "/runs/feature-001/9999",
        "/catalog/none",
        "/library/none",
        "/artifacts/" + "0" * 64,
        "/compare?a=x",
    ):
        answer = client.get(address)
        assert answer.status_code == 404, address
        assert "Not found" in answer.text
    assert client.get("/runs/nobody.json").json()["error"] == "there is no run 'nobody'"


def test_artifacts_are_served_by_content_with_a_policy_of_their_own(
    client: TestClient, reader: RunReader
) -> None:
    run, sha256 = sha_of(reader)
    picture = client.get(f"/runs/{run}/artifacts/{sha256}")
    assert (picture.headers["content-type"], picture.content[:4]) == ("image/png", b"\x89PNG")
    assert picture.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert picture.headers["x-content-type-options"] == "nosniff"
    assert picture.headers["content-disposition"].startswith("inline")
    for odd in ("..%2f..%2frun.json", "f" * 63, "F" * 64):
        assert client.get(f"/runs/{run}/artifacts/{odd}").status_code == 404


LIES = [
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    b"<html><script>alert(1)</script>",
    b"\x89PNG\r\n\x1a\n<script>alert(1)</script>",
    b"GIF89a/*<script>alert(1)</script>*/",
    b"%PDF-1.4 (javascript:alert(1))",
]


@pytest.mark.parametrize("data", LIES, ids=range(len(LIES)))
def test_what_is_no_picture_by_content_is_an_attachment(data: bytes, tmp_path: Path) -> None:
    made = Team()
    made.feature("r-1", "look", "ann")
    kept = made.runs.runs["r-1"].kept
    sha256 = kept.put(data)
    with_lie = open_reader(write(made.runs, tmp_path / "runs"), config=CONFIG)
    answer = TestClient(pages(with_lie), base_url=BASE).get(f"/runs/r-1/artifacts/{sha256}")
    assert answer.content == data
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    with_lie.close()


# --- labels ---------------------------------------------------------------------------------------


@pytest.fixture
def labelled(tmp_path: Path) -> Any:
    made = Team()
    made.feature("r-1", "look", "ann")
    found = open_reader(write(made.runs, tmp_path / "runs"), config=CONFIG)
    yield found
    found.close()


def token_of(client: TestClient) -> str:
    found = re.search(r'name="token" value="([^"]+)"', client.get("/runs/r-1/0").text)
    assert found is not None
    return found[1]


def test_a_label_is_kept_as_the_command_line_keeps_it(labelled: RunReader, tmp_path: Path) -> None:
    client = TestClient(
        pages(labelled, reviewer=lambda _: "rita"), base_url=BASE, headers={"origin": BASE}
    )
    form = {
        "token": token_of(client),
        "needed": ["repo.readonly", "docs.fetch deploy.plan"],
        "not_needed": "tickets.read",
    }
    answer = client.post("/runs/r-1/0/label", data=form)
    assert answer.status_code == 200
    (label,) = Archive(tmp_path / "runs").labels("r-1")
    assert (label.needed, label.not_needed) == (
        ("repo.readonly", "docs.fetch", "deploy.plan"),
        ("tickets.read",),
    )
    assert label.by == "rita"
    assert "not needed" in answer.text


REFUSED: list[tuple[dict[str, str], dict[str, Any], int]] = [
    ({"origin": "http://evil.example"}, {}, 403),
    ({"origin": BASE, "sec-fetch-site": "cross-site"}, {}, 403),
    ({}, {}, 403),
    ({"origin": BASE}, {"token": "guessed"}, 403),
    ({"origin": BASE}, {"token": ""}, 403),
    ({"origin": BASE}, {"needed": "<script>alert(1)</script>"}, 400),
    ({"origin": BASE}, {"needed": "x" * 70_000}, 413),
    ({"origin": BASE}, {"needed": "repo.readonly", "not_needed": "repo.readonly"}, 400),
]


@pytest.mark.parametrize(("headers", "changed", "status"), REFUSED, ids=range(len(REFUSED)))
def test_a_label_from_elsewhere_or_with_nonsense_is_refused(
    headers: dict[str, str],
    changed: dict[str, Any],
    status: int,
    labelled: RunReader,
    tmp_path: Path,
) -> None:
    client = TestClient(pages(labelled, reviewer=lambda _: "rita"), base_url=BASE)
    form = {"token": token_of(client), "needed": "repo.readonly", **changed}
    answer = client.post("/runs/r-1/0/label", data=form, headers=headers)
    assert answer.status_code == status
    assert "<script>alert" not in answer.text
    assert Archive(tmp_path / "runs").labels("r-1") == []


def test_who_may_only_read_is_offered_no_form_and_can_not_label(
    labelled: RunReader, tmp_path: Path
) -> None:
    client = TestClient(pages(labelled), base_url=BASE, headers={"origin": BASE})
    assert 'name="token"' not in client.get("/runs/r-1/0").text
    assert client.post("/runs/r-1/0/label", data={"needed": "repo.readonly"}).status_code == 403
    assert Archive(tmp_path / "runs").labels("r-1") == []


# --- how much is read -----------------------------------------------------------------------------


def test_a_page_of_many_runs_reads_as_many_rows_as_one_of_few(tmp_path: Path) -> None:
    made = Team()
    counts = []
    for upto in (60, 180):
        for at in range(len(made.runs.runs), upto):
            made.step(f"r-{at:04}", "feature", "planner", "plan", f"goal {at}")
            made.router.close_run_sync(f"r-{at:04}")
        found = open_reader(write(made.runs, tmp_path / str(upto)), config=CONFIG)
        client = TestClient(pages(found), base_url=BASE)
        client.get("/runs")
        before = found.index.rows_read
        assert f">{upto}<" in client.get("/runs?workflow=feature").text.replace(" match", "")
        counts.append(found.index.rows_read - before)
        found.close()
    assert counts[0] == counts[1] < 100


def test_a_page_of_a_long_run_reads_its_part_alone(tmp_path: Path) -> None:
    made = Team()
    for at in range(3):
        made.step("r-1", "feature", "implementer", "implement", f"goal {at}")
        for _ in range(150):
            made.router.call_sync("r-1", "repo.list_dir", {"path": "."})
    found = open_reader(write(made.runs, tmp_path), config=CONFIG)
    client = TestClient(pages(found), base_url=BASE)
    first = client.get("/runs/r-1").text
    onward, *_ = re.findall(r'rel="next" href="(/runs/r-1\?from=\d+)"', first)
    before = found.index.rows_read
    rest = client.get(onward).text
    assert found.index.rows_read - before < 450
    assert first.count('class="call-head"') + first.count('class="step-head"') == 200
    before = found.index.rows_read
    assert "These are the first 100" in client.get("/runs/r-1/0").text
    assert found.index.rows_read - before < 150
    assert set(re.findall(r'id="r(\d+)"', first)).isdisjoint(re.findall(r'id="r(\d+)"', rest))
    found.close()


def test_calls_of_branches_stand_under_their_decisions(tmp_path: Path) -> None:
    made = Team()
    ids = {
        branch: made.step("r-1", "feature", "researcher", "look-up", branch, branch=branch)
        for branch in ("left", "right")
    }
    for branch, path in (("right", "a"), ("left", "b"), ("right", "c")):
        call = made.router.call_sync
        call("r-1", "repo.read_file", {"path": path}, decision=ids[branch])
    made.step("r-1-sub", "feature", "planner", "plan", "below", parent_run_id="r-1",
              parent_decision_id=ids["left"])  # fmt: skip
    made.step("r-1", "feature", "implementer", "implement", "after")
    found = open_reader(write(made.runs, tmp_path), config=CONFIG)
    client = TestClient(pages(found), base_url=BASE)
    _, left, right, after = re.split(r'class="step" id="r\d+"', client.get("/runs/r-1").text)
    assert re.findall(r"branch (\w+)", left) == ["left"]
    assert re.findall("{&#34;path&#34;:&#34;(.)&#34;}", left) == ["b"]
    assert "sub-run" in left
    assert re.findall("{&#34;path&#34;:&#34;(.)&#34;}", right) == ["a", "c"]
    assert "sub-run" not in right + after
    late = client.get("/runs/r-1?from=5").text
    assert "further calls of decision 0, on a page before" in late
    assert "further calls of decision 1, on a page before" in late
    assert re.findall(r'id="r(\d+)"', late) == ["5", "7", "8"]
    found.close()


def test_a_long_run_is_folded_and_each_of_its_records_has_a_permalink(tmp_path: Path) -> None:
    made = Team()
    for at in range(110):
        made.step("r-1", "feature", "implementer", "implement", f"goal {at}")
        made.call("r-1", "repo.read_file", f"src/{at}.py")
    made.call("r-1", "deploy.apply")
    found = open_reader(write(made.runs, tmp_path / "runs"), config=CONFIG)
    client = TestClient(pages(found), base_url=BASE, follow_redirects=False)
    first = client.get("/runs/r-1").text
    assert first.count("<details><summary") == 100
    assert "page 1 of 2" in first
    assert 'href="/runs/r-1?at=330#r330"' in first, "the first denial is on the other page"

    early = client.get("/runs/r-1?at=101").text
    (opened,) = re.findall(r'id="r(\d+)">(?:(?!id="r).)*<details open><summary', early, re.DOTALL)
    assert opened == "99", "the step whose call is asked for"
    late = client.get("/runs/r-1?at=305").text
    assert 'id="r305"' in late
    assert "page 2 of 2" in late
    assert 'href="#r330"' in late
    assert client.get("/runs/r-1?go=305").headers["location"] == "/runs/r-1?at=305#r305"
    new = client.get("/parts/runs/r-1?seen=300").text
    assert '<a href="/runs/r-1?at=301">20 new</a>' in new, "the part with the first new record"
    facts = client.get("/runs/r-1.json?at=305").json()
    assert facts["first"] == {"denied": 330}
    assert [part["first_seq"] for part in facts["parts"]] == [0, 300]
    assert facts["decisions"][0]["seq"] == 300

    publish(found, ["r-1"], tmp_path / "out")
    written = (tmp_path / "out" / "runs" / "r-1.html").read_text("utf-8")
    assert 'href="r-1/from-300.html#r330"' in written
    onward = (tmp_path / "out" / "runs" / "r-1" / "from-300.html").read_text("utf-8")
    assert 'id="r305"' in onward
    assert 'href="../r-1.html"' in onward
    found.close()


def test_two_runs_are_compared_step_by_step(client: TestClient) -> None:
    page = client.get("/compare?a=feature-001&b=feature-002").text
    facts = client.get("/compare.json?a=feature-001&b=feature-002").json()
    differing = [pair for pair in facts["steps"] if pair["differs"]]
    assert f"<b>{len(differing)} of {len(facts['steps'])} steps differ</b>" in page
    assert page.count("<article") == len(differing) > 0
    assert "All aligned steps were decided under the same revision" in page
    same = client.get("/compare?a=feature-001&b=feature-001").text
    assert f"<b>0 of {len(facts['steps'])} steps differ</b>" in same
    assert client.get("/compare?a=feature-001&b=nobody").status_code == 404
    assert 'name="a" value="feature-001"' in client.get("/runs/feature-001").text


def test_an_unknown_run_is_told_without_a_command(client: TestClient) -> None:
    page = client.get("/runs/nobody").text
    assert ">there is no run &#39;nobody&#39;</p><p><a" in page
    assert client.get("/runs/nobody.json").json()["advice"].startswith("`bundle-router runs list`")


def test_commands_of_an_advice_are_shown_as_code() -> None:
    page = error_page("no", "write `a <b>`, or `c`", "", 400)
    values = {**page.values, "as_json": "", "sign_out": ""}
    html = render(replace(page, values=values), Links())
    assert "write <code>a &lt;b&gt;</code>, or <code>c</code>" in html


def test_runs_without_an_aligned_step_are_not_said_to_share_a_config(client: TestClient) -> None:
    page = client.get("/compare?a=feature-001&b=bugfix-015").text
    assert "Not compared, as no step is in both runs." in page
    assert "under the same revision" not in page


OTHER_BUNDLES = {"browser.look", "docs.fetch", "repo.readonly", "tickets.read"}
"""What `plan` or `research` is shown, by routes of their own."""


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        ("feature-002/0", {"goal"}),
        ("bugfix-015/0", {"step", "goal"}),
        ("feature-001-sub/0", {"step", "goal", "source", "tokens", *OTHER_BUNDLES}),
    ],
)
def test_two_decisions_are_marked_wherever_they_differ(
    client: TestClient, b: str, expected: set[str]
) -> None:
    page = client.get(f"/compare?a=feature-001/0&b={b}").text
    heads = re.findall(r'<th scope="row">(.*?)</th>', page, re.DOTALL)
    assert {head.partition(" <")[0] for head in heads if "differs" in head} == expected


def test_equal_records_are_told_from_those_too_long_to_compare(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "/compare?a=feature-001/0&b=feature-001/0"
    assert "The records are equal, apart from their run" in client.get(address).text
    monkeypatch.setattr(views, "MAX_COMPARED_LINES", 1)
    page = client.get(address).text
    assert "too long to be compared line by line: more than 1 lines" in page
    assert client.get(address.replace("?", ".json?")).json()["too_long"]


def test_how_sure_model_and_search_were_is_said_beside_the_step(tmp_path: Path) -> None:
    made = Team()
    made.step("r-1", "feature", "planner", "plan", "mapped")
    made.step("r-1", "feature", "planner", "triage", "open")
    folder = write(made.runs, tmp_path / "runs")
    lines = (folder / "r-1" / "routing.jsonl").read_text("ascii").splitlines()
    records = [json.loads(line) for line in lines]
    records[1]["model"] = {"name": "m", "sure": False}
    records[1]["search"] = {
        "verdict": "ambiguous",
        "why": "two are near",
        "thresholds": "shipped/3",
        "cut": 0.0,
        "evidence": {"margin": 0.1, "coverage": 0.5, "relevance": 0.4},
        "probability": 0.31,
        "threshold": 0.9,
    }
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    (folder / "r-1" / "routing.jsonl").write_text(text, "ascii")
    found = open_reader(folder, config=CONFIG)
    client = TestClient(pages(found), base_url=BASE)
    run = client.get("/runs/r-1").text
    assert run.count("model: not sure") == 1
    assert "search: 0.31; alone from 0.90 on" in run
    assert 'href="#r1">first' in run
    decision = client.get("/runs/r-1/1").text
    assert "it is not sure of its answer" in decision
    assert "0.31 that its best bundle is right; it decides alone from 0.90 on" in decision
    assert sentences.DOUBTS["model_unsure"] in html.unescape(decision)
    assert "How sure it was" not in client.get("/runs/r-1/0").text
    found.close()


class Looking(Team):
    """A team whose pictures are what a test wants to look at."""

    looked_at: ClassVar[list[bytes]] = []

    def _answer(self, name: str) -> Any:
        if name != "browser.screenshot":
            return super()._answer(name)
        return lambda _: RawResult((Media(self.looked_at.pop(0), "image/png"),))


def test_artifacts_are_shown_by_content_and_nothing_of_them_is_markup(tmp_path: Path) -> None:
    made = Looking()
    hostile = "<script>ran()</script>"
    texts = [f"first\n{hostile} limit\n", json.dumps({hostile: [hostile, 1]})]
    made.looked_at[:] = [*(text.encode() for text in texts), b"%PDF-1.7\n\0\xff", picture()]
    made.step("r-1", "feature", "researcher", "look-up", "look")
    for number in range(4):
        made.call("r-1", "browser.screenshot", f"https://example.com/{number}")
    found = open_reader(write(made.runs, tmp_path), config=CONFIG)
    client = TestClient(pages(found), base_url=BASE)
    found.refresh(now=True)
    rows = found.index.rows_of("artifacts", "r-1")
    text, as_json, pdf, shown = (client.get(f"/artifacts/{row['sha256']}").text for row in rows)
    for page in (text, as_json, pdf, shown):
        assert "<script>ran" not in page
    assert '<tr id="L2"><th scope="row">2</th><td>&lt;script&gt;ran()&lt;/script&gt; limit' in text
    assert "recorded as image/png" not in text, "what a server claimed is not what was recorded"
    assert "<b>&lt;script&gt;ran()&lt;/script&gt;</b>" in as_json
    assert "A PDF's pages are not drawn" in pdf
    assert "25 50 44 46" in pdf
    digest = rows[0]["sha256"]
    assert "<mark>&lt;script&gt;" in client.get(f"/artifacts/{digest}?q=LIMIT").text
    large = client.get(f"/artifacts/{rows[3]['sha256']}?zoom=400").text
    assert 'width="640"' in large
    sheet = client.get("/runs/r-1/media")
    assert sheet.text.count("<figure>") == client.get("/runs/r-1/media.json").json()["total"] == 4
    assert "/runs/r-1/media" in client.get("/runs/r-1").text

    address = f"/runs/r-1/artifacts/{rows[3]['sha256']}"
    part = client.get(address, headers={"range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"PNG")
    assert part.headers["content-range"] == f"bytes 1-3/{rows[3]['bytes']}"
    assert client.get(address, headers={"range": "bytes=9999999-"}).status_code == 200
    (tmp_path / "r-1" / "artifacts" / "sha256" / digest[:2] / digest).unlink()
    gone = client.get(f"/artifacts/{digest}")
    assert gone.status_code == 200
    assert "holds no artifact" in gone.text
    found.close()


# --- published ------------------------------------------------------------------------------------


def test_published_pages_link_to_each_other_and_to_nothing_else(
    reader: RunReader, tmp_path: Path
) -> None:
    run, sha256 = sha_of(reader)
    count = publish(reader, [run, "feature-001", "release-04"], tmp_path / "out")
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(written) == count
    assert (tmp_path / "out" / "artifacts" / f"{sha256}.png").is_file()
    assert len([*(tmp_path / "out" / "artifacts").glob("*.wav")]) == 1, "pictures and sound"
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o600
        if path.suffix == ".html":
            text = path.read_text("utf-8")
            assert "<script" not in text
            assert "<form" not in text
            for link in re.findall(r'(?:href|src)="([^"#]+)', text):
                assert (path.parent / link).resolve().is_file(), (path, link)
        if path.suffix == ".json":
            json.loads(path.read_text("ascii"))
    assert publish(reader, [run], tmp_path / "out") > 0, "again, into the same folder"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x", encoding="utf-8")
    with pytest.raises(RequestError, match="holds other files"):
        publish(reader, [run], tmp_path / "mine")


def test_a_record_whose_artifact_is_named_like_a_path_is_published_without_it(
    tmp_path: Path,
) -> None:
    shutil.copytree(RECORDED / "golden", tmp_path / "runs" / "golden")
    prev, lines = genesis("golden"), {"routing.jsonl": b"", "tool-calls.jsonl": b""}
    for seq, record in enumerate(Archive(RECORDED).records("golden")):
        fields = {
            name: value for name, value in record.items() if name not in ("seq", "prev", "hash")
        }
        fields |= {
            "artifacts": [{**row, "sha256": "../../../x"} for row in fields.get("artifacts", ())]
        }
        line, prev = seal(fields, seq, prev)
        lines["routing.jsonl" if fields["type"] == "route.decided" else "tool-calls.jsonl"] += line
    for name, text in lines.items():
        (tmp_path / "runs" / "golden" / name).write_bytes(text)
    found = open_reader(tmp_path / "runs")
    assert publish(found, ["golden"], tmp_path / "out") > 0
    found.close()
    assert not (tmp_path / "out" / "artifacts").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]


def test_every_closed_word_has_its_sentence() -> None:
    lists = ((CODES, sentences.CODE_SENTENCES), (REASONS, sentences.REASONS), (SOURCES, sentences.SOURCES),
             (OUTCOMES, sentences.OUTCOMES), (FAILURES, sentences.FAILURES),
             (DOUBTS, sentences.DOUBTS))  # fmt: skip
    for words, said in lists:
        assert set(said) == set(words)


def test_a_word_of_two_lists_has_the_sentence_that_is_meant(client: TestClient) -> None:
    """A degraded step's `timeout` is the model's, not a tool's; a decision by search is no bundle
    that search shows.
    """
    degraded = client.get("/steps?degraded=1").text
    assert "▽ timeout" in degraded
    assert sentences.FAILURES["timeout"] in degraded
    assert sentences.OUTCOMES["timeout"] not in degraded
    searched = html.unescape(client.get("/steps?source=search").text)
    assert sentences.SOURCES["search"] in searched
    assert sentences.REASONS["search"] not in searched


def test_a_page_of_matches_links_to_the_result_that_says_it(client: TestClient) -> None:
    page = client.get("/search?q=1+failed+41").text
    assert '<span class="chip " title="">result</span>' in page
    (record,) = set(re.findall(r'href="(/runs/feature-004/\d+)"', page))
    assert "1 failed, 41 passed in 2.31s" in html.unescape(client.get(record).text)
    hits = client.get("/search.json?q=1+failed+41").json()
    assert {(hit["field"], hit["about"]) for hit in hits} == {("result", "workspace.exec")}


def test_a_call_whose_outcome_is_its_code_is_explained_once(tmp_path: Path) -> None:
    with Router.open(CONFIG, runs=tmp_path) as router:
        router.route_sync(Step(run_id="r", workflow="feature", role="planner", step="plan"))
        assert router.call_sync("r", "repo.read_file", {"path": 1}).code == "invalid_arguments"
    with contextlib.closing(open_reader(tmp_path, config=CONFIG)) as reader:
        page = html.unescape(TestClient(pages(reader), base_url=BASE).get("/runs/r/1").text)
    assert page.partition("<main")[2].count(f">{sentences.OUTCOMES['invalid_arguments']}<") == 1


def test_the_last_day_of_a_range_is_part_of_it(client: TestClient, reader: RunReader) -> None:
    days = [run.began[:10] for run in reader.index.runs(RunQuery(limit=200)).runs]
    day = days[0]
    asked = {"since": day, "until": day}
    assert client.get("/runs.json", params=asked).json()["total"] == days.count(day) > 0
    assert client.get("/steps.json", params=asked).json()["total"] >= days.count(day)
    assert f'name="until" type="date" value="{day}"' in client.get("/runs", params=asked).text


def test_an_empty_folder_says_what_to_type(tmp_path: Path) -> None:
    found = RunReader(Archive(tmp_path), RunIndex(Archive(tmp_path), "sqlite://"), CONFIG)
    assert "bundle-router demo" in TestClient(pages(found), base_url=BASE).get("/runs").text
    found.close()


def test_pages_that_are_there_before_the_first_run_show_it_when_it_comes(tmp_path: Path) -> None:
    reader = open_reader(tmp_path / "runs", config=CONFIG)
    client = TestClient(pages(reader), base_url=BASE)
    assert [client.get(path).status_code for path in ("/", "/runs", "/matrix") * 2] == [200] * 6
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=tmp_path) as router:
        router.route_sync(Step(run_id="first", workflow="feature", role="planner", step="plan"))
    reader.refresh(now=True)
    assert client.get("/runs.json").json()["total"] == 1
    client.close()
    reader.close()


def test_the_catalog_says_which_servers_can_not_be_used_now(reader: RunReader) -> None:
    away = {"repo": "it answered nothing in 5 s"}
    client = TestClient(pages(reader, away=lambda: away), base_url=BASE)
    page = client.get("/catalog").text
    assert "it answered nothing in 5 s" in page
    assert page.count(">away<") == 1
    assert page.count(">available<") >= 1
    rows = {row["name"]: row["away"] for row in client.get("/catalog.json").json()["servers"]}
    assert rows["repo"] == "it answered nothing in 5 s"
    assert set(rows.values()) == {"", "it answered nothing in 5 s"}
    alone = TestClient(pages(reader), base_url=BASE)
    assert ">available<" not in alone.get("/catalog").text, "nobody knows where no router is open"


def test_every_page_says_when_the_config_s_files_are_not_in_force(reader: RunReader) -> None:
    app, problems = (
        pages(reader),
        ["config/routes.toml:13: unknown bundle", "config/policy.toml:2: unknown key"],
    )
    mount = ScopedMount(app, "review", lambda: problems)

    async def admitted(scope: Any, receive: Any, send: Any) -> None:
        await mount(
            {**scope, "user": SimpleNamespace(scopes=("review",), principal=None)}, receive, send
        )

    client = TestClient(admitted, base_url=BASE)
    for path in some_addresses(reader):
        assert "config/routes.toml:13: unknown bundle (and 1 more)" in client.get(path).text, path
    problems.clear()
    assert "the service keeps the last valid" not in client.get("/").text


def test_a_sub_run_is_unfolded_in_place_with_its_steps_and_calls(
    client: TestClient, reader: RunReader
) -> None:
    sub = next(run for run in reader.index.runs(RunQuery(limit=200)).runs if run.parent_run_id)
    page = client.get(f"/runs/{sub.parent_run_id}").text
    assert page.count('<details class="sub-run" open>') >= 1
    for row in (
        *reader.index.timeline(sub.run_id).decisions,
        *reader.index.timeline(sub.run_id).calls,
    ):
        assert f'id="{sub.run_id}-r{row["seq"]}"' in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_every_link_of_the_overview_leads_to_what_it_counts(tmp_path: Path) -> None:
    team = sample_team(days=2)
    team.step("unnamed", "feature", "planner", "plan", "a step that names nobody", principal="")
    team.call("unnamed", "repo.list_dir", "src")
    team.call("unnamed", "workspace.exec", "true")
    team.call("unnamed", "nonsense", "a name without a server")
    write(team.runs, tmp_path / "runs")
    with contextlib.closing(open_reader(tmp_path / "runs")) as reader:
        client = TestClient(pages(reader), base_url=BASE)
        links = [
            html.unescape(link)
            for link in re.findall(r'<td><a href="(/[^"]+)"', client.get("/").text)
        ]
        assert sum("nobody" in link for link in links) == 3
        assert "/calls?tool=nonsense" in links
        for link in links:
            path, _, query = link.partition("?")
            assert client.get(f"{path}.json?{query}").json().get("total", 1) > 0, link


def test_an_overview_of_many_runs_says_how_many_it_counts_and_leads_to_all(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = client.get("/index.json?workflow=feature").json()
    assert exact["counted_runs"] == exact["runs"] > 5
    assert "are about the newest" not in client.get("/?workflow=feature").text

    monkeypatch.setattr("bundle_router.service.pages.views.OVERVIEW_RECORDS", 40)
    bounded = client.get("/index.json?workflow=feature").json()
    assert 0 < bounded["counted_runs"] < bounded["runs"] == exact["runs"]
    page = client.get("/?workflow=feature").text
    assert f"are about the newest {bounded['counted_runs']}." in page
    (link,) = re.findall(r'<a href="([^"]+)">Count all of them', page)
    everything = client.get(html.unescape(link).replace("/?", "/index.json?")).json()
    assert everything["tables"] == exact["tables"]
    assert bounded["tables"] != exact["tables"]


def test_an_overview_of_some_runs_says_which_and_each_choice_can_be_taken_back(
    client: TestClient,
) -> None:
    page = client.get("/?denied=1&workflow=feature&since=2026-01-02").text
    chips = re.findall(r'<a class="chip on" href="([^"]+)"[^>]*>([^<]+)</a>', page)
    assert {words: html.unescape(link) for link, words in chips} == {
        "workflow: feature ✕": "/?mark=denied&since=2026-01-02",
        "state: denied ✕": "/?workflow=feature&since=2026-01-02",
        "from: 2026-01-02 ✕": "/?workflow=feature&mark=denied",
    }
    assert "<span>runs with<" not in client.get("/").text
    listed = client.get("/runs?denied=1&sort=-took").text
    assert '<a class="button" href="/?mark=denied">Overview of these</a>' in listed


def test_a_list_of_runs_has_its_name_in_its_address(client: TestClient) -> None:
    page = client.get("/runs?denied=1&name=Denied+%3Cb%3Elately").text
    assert "<title>Denied &lt;b&gt;lately · Bundle Router</title>" in page
    assert "<h1>Runs: Denied &lt;b&gt;lately</h1>" in page
    orders = re.findall(r'<a href="(/runs\?[^"]*sort=calls)"', page)
    assert [html.unescape(link) for link in orders] == [
        "/runs?mark=denied&name=Denied+%3Cb%3Elately&sort=calls"
    ]
    assert "<h1>Runs</h1>" in client.get("/runs?denied=1").text


def test_a_list_of_many_runs_says_which_of_them_its_filters_count(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.service.pages.views.FACET_RUNS", 5)
    words = "count the newest 5 of these runs"
    assert words in client.get("/runs?workflow=feature").text
    assert words not in client.get("/runs").text


@pytest.mark.parametrize("days", [1, 14], ids=["by hour", "by day"])
def test_every_bar_of_a_chart_leads_to_the_records_that_it_counts(
    tmp_path: Path, days: int
) -> None:
    write(sample_team(days=days).runs, tmp_path / "runs")
    with contextlib.closing(open_reader(tmp_path / "runs")) as reader:
        client = TestClient(pages(reader), base_url=BASE)
        page = client.get("/").text
        bars = re.findall(
            r'<a href="([^"]+)" tabindex="-1"><rect class="bar-(?:bad|warn)"[^>]*>'
            r"<title>2026-01-\d\d( \d\d:00)?: (\d+) (calls?|steps?)</title>",
            page,
        )
        assert {bool(hour) for _, hour, *_ in bars} == {days == 1}
        assert len(bars) > (1 if days == 1 else 20)
        for link, _, count, _ in bars:
            path, _, query = html.unescape(link).partition("?")
            assert client.get(f"{path}.json?{query}").json()["total"] == int(count), link
            assert f'<th scope="row"><a href="{link}">' in page, "the keyboard reaches it, too"


def test_a_chart_of_chosen_runs_leads_to_the_records_of_these(client: TestClient) -> None:
    page = client.get("/?workflow=bugfix").text
    links = re.findall(r'<a href="([^"]+)" tabindex="-1"><rect class="bar-bad"', page)
    assert links
    assert all("workflow=bugfix" in link for link in links)


def test_the_columns_of_the_list_of_runs_are_chosen_in_its_address(client: TestClient) -> None:
    page = client.get("/runs?column=took&column=marks&workflow=bugfix").text
    assert re.findall(r'<th scope="col"[^>]*>\n?<a[^>]*>(\w+)', page) == ["run", "took"]
    assert 'data-label="steps"' not in page
    assert 'href="/runs?workflow=bugfix&amp;column=took&amp;column=marks&amp;sort=took"' in page
    assert '<input type="checkbox" name="column" value="took" checked>' in page
    assert '<input type="checkbox" name="column" value="steps">' in page
    assert 'data-label="steps"' in client.get("/runs?column=nonsense").text


def test_a_principal_who_is_called_as_nobody_is_counts_as_somebody(tmp_path: Path) -> None:
    team = sample_team(days=1)
    named = {NOBODY: "", f"\\{NOBODY}": NOBODY, f"\\\\{NOBODY}": f"\\{NOBODY}"}
    for at, principal in enumerate([*named.values(), NOBODY]):
        team.step(f"n-{at}", "feature", "planner", "plan", "a step", principal=principal)
        team.call(f"n-{at}", "workspace.exec", "true")
    before = {name: 2 if principal == NOBODY else 1 for name, principal in named.items()}
    write(team.runs, tmp_path / "runs")
    with contextlib.closing(open_reader(tmp_path / "runs")) as reader:
        client = TestClient(pages(reader), base_url=BASE)
        tables = client.get("/index.json").json()["tables"]
        for table in ("principals", "calls by principal", "denials by principal"):
            assert {
                row["name"]: row["count"] for row in tables[table] if NOBODY in row["name"]
            } == before, table
        facet = {
            row["value"]: row["runs"]
            for row in client.get("/runs.json").json()["facets"]["principal"]
        }
        assert {name: facet.get(name, 0) for name in before} == {**before, NOBODY: 0}
        for page in ("runs", "steps", "calls"):
            for name, runs in before.items():
                found = client.get(f"/{page}.json", params={"principal": name}).json()
                assert found["total"] == runs, (page, name)


def test_marks_of_a_run_lead_to_the_calls_and_steps_they_count(client: TestClient) -> None:
    shown = html.unescape(
        "".join(client.get(f"/runs?{mark}=1").text for mark in ("degraded", "failed", "denied"))
    )
    marks = re.findall(
        r'<a class="chip \w+" href="/(\w+)\?([^"]+)">. (\d+) (denied|failed|degraded)</a>', shown
    )
    assert {word for *_, word in marks} == {"denied", "failed", "degraded"}
    for page, query, count, word in marks:
        assert client.get(f"/{page}.json?{query}").json()["total"] == int(count), (
            page,
            query,
            word,
        )


def test_the_overview_has_calls_by_principal_and_how_each_day_was_settled(
    client: TestClient, reader: RunReader
) -> None:
    said = client.get("/index.json").json()
    calls = {row["name"]: row["count"] for row in said["tables"]["calls by principal"]}
    assert sum(calls.values()) == said["calls"]
    denied = said["tables"]["denials by bundle"]
    assert denied
    page = client.get("/").text
    for row in denied:
        link = f"/calls?outcome=denied&amp;bundle={row['name']}"
        assert f'<a href="{link}">' in page
        assert (
            client.get(html.unescape(link.replace("/calls?", "/calls.json?"))).json()["total"]
            == row["count"]
        )
    mix = [(*row["name"].split("\n"), row["count"]) for row in said["tables"]["source × day"]]
    assert sum(count for _, _, count in mix) == said["decisions"]
    page = client.get("/").text
    for day, source, count in mix:
        assert f"{day}: {source} {count:,} of" in page
