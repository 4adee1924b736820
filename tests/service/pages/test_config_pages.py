"""The pages on which the config is edited: without JavaScript, as JSON, and in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from bundle_router import Router, Step
from bundle_router.core.catalog import Catalog
from bundle_router.service import serve
from bundle_router.service.pages.application import pages
from bundle_router.service.pages.service_pages import WITH_CONFIG, ConfigRoutes
from bundle_router.service.reloading import WatchedPages
from bundle_router.wiring.catalogs import load_catalog
from bundle_router.wiring.stores import open_archive
from bundle_router.workbench.config_editing import ConfigEditor
from bundle_router.workbench.found_edits import FoundEdits
from bundle_router.workbench.pin_approval import PinApproval
from bundle_router.workbench.run_reader import open_reader

from tests.command_line import ROOT
from tests.service.pages.browsing import BrowserThread, browsed

WIDER = ('allow = ["bundle:repo.readonly", "bundle:docs.fetch"]\neffects = ["read", "network"]\n\n# Only',
         'allow = ["bundle:repo.readonly", "bundle:docs.fetch", "bundle:workspace.exec"]\n\n# Only')  # fmt: skip
NARROWER = ('name = "reviewers read"', 'name = "reviewers read"\ndeny = ["bundle:docs.fetch"]')
HOSTILE = '</textarea><script>document.title="ran"</script><img src=x onerror="document.title=1">'


class Site:
    """The pages over a project in a folder, served on this machine. `who`: who may edit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config"
        self.url = ""
        self.who: str | None = "ann"

    def text(self, name: str = "policy.toml") -> str:
        return (self.config / name).read_text(encoding="utf-8")

    def get(self, path: str, **query: str) -> httpx.Response:
        return httpx.get(self.url + path, params=query, timeout=300)

    def post(self, path: str, form: Mapping[str, Any], **more: str) -> httpx.Response:
        return self.post_from({"origin": self.url}, path, {**form, **more})

    def post_from(
        self, headers: Mapping[str, str], path: str, form: Mapping[str, Any]
    ) -> httpx.Response:
        return httpx.post(self.url + path, data=dict(form), headers=dict(headers), timeout=300)

    def form(self, **query: str) -> dict[str, Any]:
        """The hidden fields of the page's first form, as a browser would send them."""
        page = self.get("/config", **query).text
        return fields_of(page)


def fields_of(page: str) -> dict[str, Any]:
    """What a browser would send of a page's hidden fields and ticked boxes of tools."""
    hidden = re.findall(r'type="hidden" (?:form="approve" )?name="(\w+)" value="([^"]*)"', page)
    ticked = re.findall(r'type="checkbox" form="approve" name="(tool)" value="([^"]*)"', page)
    fields: dict[str, Any] = {name: unescape(value) for name, value in hidden}
    for name in ("listed", "tool"):
        if values := [unescape(value) for found, value in (*hidden, *ticked) if found == name]:
            fields[name] = values
    return fields


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs under the shipped config; one of them with hostile names."""
    folder = tmp_path_factory.mktemp("recorded")
    with Router.open(ROOT / "config", runs=folder / "runs", workspace=folder) as router:
        for number in range(2):
            for role, step in (("planner", "plan"), ("reviewer", "review")):
                router.route_sync(
                    Step(run_id=f"r-{number}", workflow="feature", role=role, step=step)
                )
        router.route_sync(
            Step(run_id="hostile", workflow="feature", role="reviewer", step=HOSTILE, goal=HOSTILE)
        )
    return folder


@contextlib.contextmanager
def served(folder: Path, site: Site, **options: Any) -> Iterator[Site]:
    import uvicorn

    reader = open_reader(folder / "runs", config=site.config)
    editor = ConfigEditor(site.config, runs=open_archive(folder / "runs"))
    routes = ConfigRoutes(editor, who=lambda _: site.who, **options).routes()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)  # a request that comes before the server waits for it
    app = pages(reader, first_routes=routes, nav=WITH_CONFIG)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield site
    finally:
        server.should_exit = True
        thread.join(300)
        listening.close()
        reader.close()


@pytest.fixture
def site(recorded: Path, tmp_path: Path) -> Iterator[Site]:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    shutil.copytree(ROOT / "config", tmp_path / "branch")
    (tmp_path / "runs").symlink_to(recorded / "runs")
    with served(tmp_path, Site(tmp_path), others={"branch": tmp_path / "branch"}) as found:
        yield found


def test_the_page_has_the_text_its_problems_and_a_link_at_the_top(site: Site) -> None:
    page = site.get("/config", file="policy.toml")
    assert page.status_code == 200
    assert '<a href="/config" aria-current="page">Config</a>' in page.text
    assert "reviewers read" in page.text
    assert "no problem in the config" in page.text
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    said = site.get("/config.json").json()
    assert [file["name"] for file in said["files"]] == [
        "servers.toml", "bundles.toml", "routes.toml", "policy.toml", "router.toml",
    ]  # fmt: skip
    assert said["problems"] == []
    schema = site.get("/config/schema/policy.schema.json").json()
    assert schema == json.loads(
        (ROOT / "config" / "schema" / "policy.schema.json").read_text(encoding="utf-8")
    )


def test_files_that_do_not_load_are_said_to_be_out_of_force(site: Site) -> None:
    assert "These files are not valid" not in site.get("/config").text
    assert "repo.readonly" in site.get("/catalog").text
    path = site.config / "policy.toml"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"bundle:docs.fetch"]', '"bundle:docs.fetc"]', 1)
    )
    page = site.get("/config").text
    assert "keeps the last valid config" in page
    assert "unknown bundle &#39;docs.fetc&#39;" in page
    catalog = site.get("/catalog").text
    assert "unknown bundle &#39;docs.fetc&#39;" in catalog
    assert "/catalog/repo.readonly" in catalog, "the last valid config stays in force"


def test_what_an_edit_changes_stands_apart_from_what_earlier_edits_changed(site: Site) -> None:
    (site.config / "policy.toml").write_text(site.text().replace(*NARROWER), encoding="utf-8")
    text = site.text("router.toml") + "# a comment\n"
    page = site.post("/config/preview", {**site.form(file="router.toml"), "text": text}).text
    assert "None of them differs because of this edit." in page
    assert "Differences without this edit (1 cause)" in page
    text = site.text().replace('deny = ["bundle:docs.fetch"]', 'deny = ["bundle:docs.*"]')
    page = site.post("/config/preview", {**site.form(file="policy.toml"), "text": text}).text
    assert "because policy &#39;reviewers read&#39; changed" in page
    assert "without this edit" not in page


def test_what_is_typed_is_checked_with_line_and_caret(site: Site) -> None:
    text = site.text().replace('"bundle:docs.fetch"]', '"bundle:docs.fetc"]', 1)
    said = site.post("/config/check", {**site.form(file="policy.toml"), "text": text}).text
    assert "unknown bundle &#39;docs.fetc&#39;" in said
    assert "did you mean &#39;docs.fetch&#39;?" in said
    assert re.search(r"\| +\^", said)
    assert "<html" not in said


def test_a_widening_is_saved_only_when_it_was_shown_acknowledged_and_explained(site: Site) -> None:
    text, before = site.text().replace(*WIDER), site.text()
    form = {**site.form(file="policy.toml"), "text": text.replace("\n", "\r\n")}
    unseen = site.post("/config/save", form)
    assert unseen.status_code == 422
    assert "changed since it was compared" in unseen.text
    shown = site.post("/config/preview", form)
    assert "Newly allowed" in shown.text
    assert "EXECUTES" in shown.text
    assert "5 recorded decisions replayed" in shown.text
    form |= fields_of(shown.text)
    refused = site.post("/config/save", form)
    assert refused.status_code == 422
    assert "no reason is given" in refused.text
    assert site.text() == before
    (digest,) = re.findall(r'name="acknowledged" value="([^"]+)"', refused.text)
    saved = site.post("/config/save", form, acknowledged=digest, reason="they run the tests")
    assert (saved.status_code, saved.headers["location"]) == (
        303,
        "/config?file=policy.toml&saved=1",
    )
    assert site.text() == text
    changes = site.get("/config/changes").text
    assert "they run the tests" in changes
    assert "workspace.exec" in changes


RISKY = '[[policies]]\nname = "readers of all"\nrole = "reader"\nallow = ["*"]\n'


def test_the_widening_and_saving_it_come_before_the_text_and_the_risks_that_stand(
    site: Site,
) -> None:
    (site.config / "policy.toml").write_text(f"{site.text()}\n{RISKY}", encoding="utf-8")
    page = site.get("/config", file="policy.toml").text
    assert "1 risk of the present config, 1 of them not accepted yet" in page
    form = {**site.form(file="policy.toml"), "text": site.text().replace(*WIDER)}
    shown = site.post("/config/preview", form).text
    places = ["Newly allowed", "Save policy.toml", "1 risk of the present config", "<textarea id="]
    found = [shown.index(words) for words in places]
    assert found == sorted(found)


def test_a_risk_that_stands_is_accepted_once_with_a_reason_and_the_text_stays(site: Site) -> None:
    (site.config / "policy.toml").write_text(f"{site.text()}\n{RISKY}", encoding="utf-8")
    page = site.get("/config", file="policy.toml").text
    (risk,) = map(unescape, re.findall(r'name="risk" value="([^"]+)"', page))
    assert risk.startswith("allow-everything policies[readers of all].allow[]: '*' allows")
    typed = f"# typed\n\n{site.text()}"
    form = {**site.form(file="policy.toml"), "text": typed, "risk": [risk]}
    for wrong in ({"why": " "}, {"why": "mine", "risk": ["another"]}, {"why": "mine", "risk": []}):
        refused = site.post("/config/accept", {**form, **wrong})
        assert (refused.status_code, "Nothing was saved." in refused.text) == (422, True)
    assert not (site.config / "changes.jsonl").exists()

    accepted = site.post("/config/accept", form, why="readers are our own")
    assert accepted.status_code == 200
    assert "# typed" in accepted.text
    assert "accepted by" in accepted.text
    assert "readers are our own" in accepted.text
    assert 'name="risk"' not in accepted.text
    (line,) = (site.config / "changes.jsonl").read_text("utf-8").splitlines()
    change = json.loads(line)
    assert (change["type"], change["risks"]) == ("risks.accepted", [risk])
    assert "files" not in change
    assert "readers are our own" in site.get("/config/changes").text

    another = RISKY.replace("reader", "writer")
    (site.config / "policy.toml").write_text(f"{another}\n{site.text()}", encoding="utf-8")
    later = site.get("/config", file="policy.toml").text
    assert "2 risks of the present config, 1 of them not accepted yet</summary>" in later
    (newer,) = map(unescape, re.findall(r'name="risk" value="([^"]+)"', later))
    assert "policies[writers of all]" in newer


def test_an_edit_that_the_service_found_stands_with_the_recorded_changes(
    recorded: Path, tmp_path: Path
) -> None:
    config = Path(shutil.copytree(ROOT / "config", tmp_path / "config"))
    before = load_catalog(config)
    edits = FoundEdits(config, tmp_path)
    edits.note(Catalog(), before)
    with served(recorded, Site(tmp_path), edits=edits) as site:
        page = site.get("/config/changes").text
        assert "found by the service: made in git or in an editor" in page
        assert f'title="{before.revision}"' in page
        (change,) = site.get("/config/changes.json").json()["changes"]
    assert (change["type"], change["old_revision"]) == ("edit.found", Catalog().revision)


def test_a_running_service_finds_an_edit_that_was_made_in_an_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.service.reloading.LOOK_S", 0.02)
    config = Path(shutil.copytree(ROOT / "config", tmp_path / "config"))
    found_one = asyncio.Event()

    class ToldEdits(FoundEdits):
        def note(self, old: Catalog, new: Catalog) -> None:
            super().note(old, new)
            loop.call_soon_threadsafe(found_one.set)

    edits = ToldEdits(config, tmp_path)

    async def nobody_asks(*_: Any) -> None:
        raise AssertionError

    async def main() -> str:
        async with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
            before = router.catalog.revision
            async with serve(router, pages=WatchedPages(nobody_asks, edits)):
                policy = config / "policy.toml"
                policy.write_text(policy.read_text("utf-8").replace(*WIDER), encoding="utf-8")
                await found_one.wait()
            return before

    loop = asyncio.new_event_loop()
    with contextlib.closing(loop):
        before = loop.run_until_complete(asyncio.wait_for(main(), 300))
    (found,) = edits.changes()
    assert (found.type, found.old_revision) == ("edit.found", before)
    assert any("workspace.exec" in line for line in found.widening)


def test_who_was_overtaken_gets_the_text_back(site: Site) -> None:
    form = {**site.form(file="policy.toml"), "text": site.text().replace(*NARROWER)}
    form |= fields_of(site.post("/config/preview", form).text)
    (site.config / "policy.toml").write_text(site.text() + "# theirs\n", encoding="utf-8")
    refused = site.post("/config/save", form)
    assert refused.status_code == 409
    assert "policy.toml was changed since it was opened" in refused.text
    assert "deny = [&#34;bundle:docs.fetch&#34;]" in refused.text
    assert site.text().endswith("# theirs\n")


def test_a_save_is_undone_on_a_page_that_says_what_that_widens(site: Site) -> None:
    before = site.text()
    form = {**site.form(file="policy.toml"), "text": before.replace(*NARROWER)}
    form |= fields_of(site.post("/config/preview", form).text)
    assert site.post("/config/save", form).status_code == 303
    page = site.get("/config/undo").text
    assert "may call docs.fetch, docs.search of docs.fetch" in page
    assert site.get("/config/undo.json").json()["preview"]["widening_digest"] in page
    (digest,) = re.findall(r'name="acknowledged" value="([^"]+)"', page)
    form = fields_of(page)
    assert site.post("/config/undo", form).status_code == 422
    assert (
        site.post("/config/undo", form, acknowledged=digest, reason="too much").status_code == 303
    )
    assert site.text() == before


def test_another_folder_is_compared_by_its_name_and_no_other(site: Site) -> None:
    (site.folder / "branch" / "policy.toml").write_text(
        site.text().replace(*WIDER), encoding="utf-8"
    )
    assert "Newly allowed" in site.get("/config/compare", **{"with": "branch"}).text
    assert (
        site.get("/config/compare.json", **{"with": "branch"}).json()["preview"]["privileges"][
            "widens"
        ]
        is True
    )
    for name in ("../branch", str(site.folder / "branch"), "elsewhere"):
        page = site.get("/config/compare", **{"with": name})
        assert (page.status_code, "no folder is called" in page.text) == (404, True)


@pytest.mark.parametrize("path", ["/config/check", "/config/preview", "/config/save", "/config/undo",
                                  "/servers/github/pins", "/servers/github/approve"])  # fmt: skip
def test_only_who_may_edit_from_a_page_of_ours_may_post(site: Site, path: str) -> None:
    form = {**site.form(file="policy.toml"), "text": site.text().replace(*NARROWER), "digest": "x"}
    before = site.text()
    refused: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
        ({"origin": "http://elsewhere.example"}, form),
        ({"sec-fetch-site": "cross-site"}, form),
        ({}, {**form, "token": "x"}),
        ({}, {name: value for name, value in form.items() if name != "token"}),
    )
    for headers, fields in refused:
        assert site.post_from({"origin": site.url, **headers}, path, fields).status_code == 403
    site.who = None
    assert site.post(path, form).status_code == 403
    assert site.get(path).status_code in (200, 404, 405, 400)  # reading changes nothing
    assert site.text() == before
    assert not (site.config / "changes.jsonl").exists()


def test_who_may_only_read_gets_no_form_to_save(site: Site) -> None:
    site.who = None
    page = site.get("/config", file="policy.toml").text
    assert "Read-only: to edit" in page
    assert "readonly" in page
    assert 'type="submit"' not in page


def test_a_form_that_is_too_large_is_refused(site: Site) -> None:
    form = {**site.form(file="policy.toml"), "text": "#" * 5_000_000}
    assert site.post("/config/check", form).status_code == 413


def test_drift_is_shown_field_by_field_and_approved_as_read(recorded: Path, tmp_path: Path) -> None:
    script = (ROOT / "tests" / "adapters" / "mcp" / "fault_server.py").read_text(encoding="utf-8")
    (tmp_path / "server.py").write_text(script, encoding="utf-8")
    site = Site(tmp_path)
    site.config.mkdir()
    (tmp_path / "runs").symlink_to(recorded / "runs")
    args = json.dumps(["-S", str(tmp_path / "server.py")])
    (site.config / "servers.toml").write_text(
        f'[servers.mail]\ntransport = "stdio"\ncommand = "{sys.executable}"\nargs = {args}\ntrust ='
        ' "trusted"\n',
        encoding="utf-8",
    )
    approval = PinApproval(site.config, development=True)
    with served(tmp_path, site, approval=approval):
        assert 'href="/servers/mail/pins"' in site.get("/config").text
        token = fields_of(site.get("/servers/mail/pins").text)
        form = fields_of(site.post("/servers/mail/pins", token).text)
        assert site.get("/servers/mail/pins.json").json() == {
            "server": "mail",
            "reviewed": None,
            "now": None,
        }
        shown = site.post("/servers/mail/pins", token).text
        assert "+ does " in shown, "what nobody has read can't be approved as shown"
        assert "inputSchema" in shown
        nothing = {**form, "tool": []}
        assert "no tool is ticked" in site.post("/servers/mail/approve", nothing).text
        one = sorted(form["tool"])[0]
        assert (
            site.post("/servers/mail/approve", {**form, "tool": [one]}, reason="one").status_code
            == 303
        )
        assert list(site.get("/servers/mail/pins.json").json()["reviewed"]) == [one]
        form = fields_of(site.post("/servers/mail/pins", token).text)
        assert one not in form["tool"]
        assert site.post("/servers/mail/approve", form, reason="the rest").status_code == 303
        assert set(form["tool"]) < set(site.get("/servers/mail/pins.json").json()["reviewed"])
        (tmp_path / "server.py").write_text(
            script.replace('f"does {name}"', repr(f"does it {HOSTILE}")), encoding="utf-8"
        )
        drift = site.post("/servers/mail/pins", token).text
        assert "/description" in drift
        assert HOSTILE not in drift
        stale = site.post("/servers/mail/approve", form)
        assert stale.status_code == 409
        assert "lists something else now than was shown" in stale.text
        assert site.post("/servers/mail/approve", fields_of(drift)).status_code == 303
        assert "nothing to approve" in site.post("/servers/mail/pins", token).text


@browsed
def test_an_editor_types_sees_acknowledges_and_saves_in_a_browser(
    site: Site, browser: BrowserThread
) -> None:
    """In both colour schemes and at phone width: no script but ours, no error in the console, no
    sideways scroll.
    """
    before = site.text()
    hostile = f"{before}\n# {HOSTILE}\n"
    for options in ({}, {"color_scheme": "dark", "viewport": {"width": 360, "height": 800}}):
        (site.config / "policy.toml").write_text(hostile, encoding="utf-8")
        page: Any = browser.browser.new_context(**options).new_page()
        page.set_default_timeout(300_000)
        errors: list[str] = []
        page.on("console", lambda message, kept=errors: kept.append(message.text))
        page.on("pageerror", lambda error, kept=errors: kept.append(str(error)))
        page.goto(f"{site.url}/config?file=policy.toml")
        page.wait_for_selector(".cm-content")
        assert page.input_value("#text") == hostile
        type_into_the_editor(
            page, hostile.replace('"bundle:docs.fetch"]', '"bundle:docs.fetc"]', 1)
        )
        page.wait_for_selector("#problem-list >> text=unknown bundle 'docs.fetc'")
        page.keyboard.press("Control+Home")
        assert page.inner_text(".cm-lintRange-error") == '"bundle:docs.fetc"'
        page.hover(".cm-lintRange-error")
        page.wait_for_selector(".cm-tooltip-lint >> text=did you mean 'docs.fetch'?")
        type_into_the_editor(page, hostile.replace(*WIDER))
        page.wait_for_selector("#problem-list >> text=no problem in the config")
        assert page.locator(".cm-lintRange-error").count() == 0
        assert page.input_value("#text") == hostile.replace(*WIDER)
        page.click("text=What would it change?")
        page.wait_for_selector("text=Newly allowed")
        assert page.title() == "Config · Bundle Router"
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{wide} pixels too wide"
        page.check("input[name=acknowledged]")
        page.fill("input[name=reason]", "they run the tests")
        page.click("text=Save policy.toml")
        page.wait_for_selector("text=Saved.")
        assert site.text() == hostile.replace(*WIDER)
        page.goto(f"{site.url}/config/changes")
        assert page.locator("text=they run the tests").count() >= 1
        assert errors == []


def type_into_the_editor(page: Any, text: str) -> None:
    """Paste a text but for its last character, which is typed, in place of what is there."""
    page.focus(".cm-content")
    page.keyboard.press("Control+a")
    page.locator(".cm-content").evaluate(
        """(content, text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/plain", text);
            content.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
        }""",
        text[:-1],
    )
    page.keyboard.type(text[-1])


@browsed
def test_the_editor_completes_and_explains_by_the_schema_under_the_same_policy(
    site: Site, browser: BrowserThread
) -> None:
    page: Any = browser.browser.new_context().new_page()
    page.set_default_timeout(300_000)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    answer = page.goto(f"{site.url}/config?file=bundles.toml")
    assert "unsafe" not in answer.headers["content-security-policy"]
    page.wait_for_selector(".cm-content")
    for text, offered, said in (
        ('[bundles."a.b"]\neff', "effects", "What its tools can do"),
        ('[bundles."a.b"]\nmode = "d', "deferred", ""),
        ('[bundles."a.b"]\nmax_tok', "max_tokens", "Tokens of definitions"),
    ):
        type_into_the_editor(page, text)
        page.keyboard.press("Control+Space")
        page.wait_for_selector(f".cm-tooltip-autocomplete >> text={offered}")
        if said:
            page.wait_for_selector(f".cm-completionInfo >> text={said}")
        page.keyboard.press("Escape")
    page.hover(".cm-line >> text=max_tok")  # no key yet: nothing to explain
    type_into_the_editor(page, '[bundles."a.b"]\nmode = "direct"')
    page.hover(".cm-line >> text=mode")
    page.wait_for_selector(".cm-about")
    assert page.locator("style").count() == 0  # those of a shadow root are found, too
    assert errors == []


@browsed
def test_without_javascript_the_form_is_all_there_is_and_enough(
    site: Site, browser: BrowserThread
) -> None:
    page: Any = browser.browser.new_context(java_script_enabled=False).new_page()
    page.set_default_timeout(300_000)
    page.goto(f"{site.url}/config?file=policy.toml")
    page.fill("#text", site.text().replace(*NARROWER))
    page.click("text=What would it change?")
    page.click("text=Save policy.toml")
    assert "Saved." in page.content()
    assert NARROWER[1] in site.text()


def test_the_vendored_editor_was_built_from_the_sources_here() -> None:
    sources, assets = (
        ROOT / ".ci" / "editor",
        ROOT / "router" / "bundle_router" / "service" / "pages" / "assets",
    )
    digest = hashlib.sha256(
        b"".join((sources / name).read_bytes() for name in ("editor.js", "package-lock.json"))
    )
    built = (assets / "codemirror-editor.min.js").read_text(encoding="utf-8").partition("\n")[0]
    assert f"sha256 of the sources {digest.hexdigest()}" in built, "run .ci/editor/build"
    lock = json.loads((sources / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert not [name for name, row in lock.items() if "resolved" in row]
    licences = (assets / "codemirror-LICENSE.txt").read_text(encoding="utf-8")
    view = lock["node_modules/@codemirror/view"]["version"]
    assert f"@codemirror/view {view} (MIT)" in licences
