"""The pages in a real browser: both colour schemes, phone width, the keyboard, and a reviewer's
questions with clicks.

Where chromium or playwright is missing, every test here is skipped with that reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.service.pages.publishing import publish
from bundle_router.workbench.run_reader import RunReader, open_reader

from tests.service.pages.browsing import BrowserThread, browsed, served
from tests.service.pages.conftest import CONFIG
from tests.service.pages.test_addresses import sha_of, some_addresses

WIDTHS = {"desk": 1280, "phone": 360}
CONTRAST = (Path(__file__).parent / "contrast.js").read_text("utf-8").partition("\n")[2]
UNLABELLED = (Path(__file__).parent / "unlabelled.js").read_text("utf-8").partition("\n")[2]


@pytest.fixture(scope="module")
def free(browser: BrowserThread) -> Iterator[dict[bool, list[Any]]]:
    """Pages that no test uses now, with scripts and without: Chromium takes half a CPU second to
    make one.
    """
    kept: dict[bool, list[Any]] = {True: [], False: []}
    yield kept
    browser.run(lambda: [page.context.close() for page in kept[True] + kept[False]])


@pytest.fixture
def new_page(browser: BrowserThread, free: dict[bool, list[Any]]) -> Iterator[Callable[..., Any]]:
    """Opens pages that collect what goes wrong in `page.troubles`. For the browser's thread."""
    used: list[tuple[bool, Any]] = []

    def made(script: bool) -> Any:
        page = browser.browser.new_context(java_script_enabled=script).new_page()
        page.set_default_timeout(300_000)
        page.on("console", lambda message: page.troubles.append(message.text))
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on(
            "dialog",
            lambda dialog: (page.troubles.append(f"dialog {dialog.message}"), dialog.dismiss()),
        )
        return page

    def opened(script: bool = True) -> Any:
        page = free[script].pop() if free[script] else made(script)
        used.append((script, page))
        page.troubles = []
        page.set_viewport_size({"width": WIDTHS["desk"], "height": 900})
        page.emulate_media(color_scheme="light")
        return page

    def give_back() -> None:
        for script, page in used:
            page.context.clear_cookies()
            page.goto("about:blank")  # what it showed asks on, and its server may be gone
            free[script].append(page)

    yield opened
    browser.run(give_back)


@browsed
def test_every_page_is_readable_in_both_schemes_and_at_phone_width(
    new_page: Any, address: str, reader: RunReader, browser: BrowserThread
) -> None:
    page = new_page()
    for path in some_addresses(reader):
        page.goto(address + path)
        assert page.evaluate(UNLABELLED) == [], path
        assert page.locator("h1").count() == 1, path
        for width, scheme in product(WIDTHS.values(), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (
                scheme == "dark"
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, scheme)
            assert page.evaluate(CONTRAST) == [], (path, width, scheme)
    assert page.troubles == []


@browsed
def test_large_figures_of_the_overview_stay_in_their_cards(
    new_page: Any, address: str, browser: BrowserThread
) -> None:
    page = new_page()
    page.goto(f"{address}/")
    outside = page.evaluate("""[...document.querySelectorAll("table.bars")].filter(table => {
          for (const cell of table.querySelectorAll(".num")) cell.firstChild.textContent = "1,213,315 "
          const card = table.closest(".card"), edge = card.getBoundingClientRect().right
          return table.getBoundingClientRect().right > edge - parseFloat(getComputedStyle(card).paddingRight) + 1
        }).map(table => table.closest(".card").querySelector("h3").textContent)""")
    assert outside == []


@browsed
def test_the_keyboard_reaches_everything_and_the_focus_is_seen(
    new_page: Any, address: str, browser: BrowserThread
) -> None:
    page = new_page()
    page.goto(f"{address}/runs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        seen = page.evaluate(
            "[document.activeElement.textContent.trim().slice(0, 40) || document.activeElement.id,"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        reached.add(seen[0])
        assert seen[1] != "none", seen
    assert {"Overview", "Runs", "Calls", "q", "Search"} <= reached


@browsed
def test_times_are_utc_until_the_reader_asks_for_local_ones(
    address: str, reader: RunReader, browser: BrowserThread
) -> None:
    context = browser.browser.new_context(timezone_id="Asia/Tokyo")
    page = context.new_page()
    page.goto(f"{address}/runs/feature-001")
    began = reader.index.run("feature-001").began
    there = datetime.fromisoformat(began).astimezone(timezone(timedelta(hours=9)))
    figure = page.locator(".figure").first
    assert f"from {began[:10]} {began[11:19]} UTC" in figure.inner_text()
    page.get_by_role("button", name="Show local time").click()
    assert f"from {there:%Y-%m-%d %H:%M:%S} Asia/Tokyo" in figure.inner_text()
    assert "Times are Asia/Tokyo." in page.locator("footer").inner_text()
    page.goto(f"{address}/runs")
    assert f"{there:%Y-%m-%d %H:%M:%S}" in page.locator("main").inner_text()
    page.get_by_role("button", name="Show UTC").click()
    assert f"{began[:10]} {began[11:19]}" in page.locator("main").inner_text()
    context.close()


@browsed
def test_a_named_list_is_kept_in_the_browser_until_it_is_forgotten(
    new_page: Any, address: str, browser: BrowserThread
) -> None:
    page = new_page()
    page.goto(f"{address}/runs?denied=1&sort=-took")
    page.get_by_text("Name this list").click()
    page.get_by_label("name", exact=True).fill('Denied <i>"lately"')
    page.get_by_role("button", name="Name it").click()
    page.get_by_role("button", name="Keep it in this browser").click()
    named = page.url
    page.goto(f"{address}/runs")
    page.locator("#kept-lists").get_by_role("link", name='Denied <i>"lately"').click()
    assert page.url == named
    assert "mark=denied" in named
    page.get_by_role("button", name="Forget it in this browser").click()
    page.goto(f"{address}/runs")
    assert not page.locator("#kept-lists").is_visible()
    assert page.troubles == []


# --- a reviewer's questions -----------------------------------------------------------------------


class Reviewer:
    """Somebody who starts at the run list, clicks, and is counted."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.clicks = 0
        page.goto(f"{address}/runs")

    def click(
        self, name: str, *, role: str = "link", exact: bool = True, within: str = "body"
    ) -> None:
        self.clicks += 1
        self.page.locator(within).get_by_role(role, name=name, exact=exact).first.click()
        self.page.wait_for_load_state("load")

    def click_at(self, selector: str) -> None:
        self.clicks += 1
        self.page.locator(selector).first.click()
        self.page.wait_for_load_state("load")

    def sees(self, *texts: str) -> None:
        said = self.page.locator("main").inner_text()
        for text in texts:
            assert re.search(text, said), (text, said[:3000])
        assert self.clicks <= 3, self.clicks


def what_happened_and_what_the_model_saw(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click_at("td.main > a")
    reviewer.sees("planner / plan|researcher / look-up", "tokens saved")
    reviewer.click("what the model saw")
    reviewer.sees("What the model saw", r"\d+ definitions, [\d,]+ tokens", "direct")


def which_runs_used_exec_and_why(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click_at("summary")
    reviewer.click_at("a.chip:has-text('workspace.exec'):visible >> nth=-1")
    reviewer.sees("match")
    reviewer.click_at("td.main > a")
    reviewer.sees(r"\+\s*workspace.exec\s*mapped", "workspace.exec")


def why_was_this_tool_not_shown(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click_at("td.main > a")
    reviewer.click("why not…")
    reviewer.page.get_by_label("Tool or bundle").fill("deploy.apply")
    reviewer.click("Explain", role="button")
    reviewer.sees("not shown", "policy_denied", "A policy denies it", "only releases deploy")


def which_steps_were_degraded_and_why(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click("Steps")
    reviewer.click("degraded")
    reviewer.sees("triage", "rate_limited|timeout", "The provider asked|did not answer in time")


def which_tools_cost_most_tokens(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click("Overview")
    reviewer.sees(
        "Tokens of definitions by tool",
        r"repo.git_log[\s\S]{0,60}tokens|repo.git_log[\s\S]{0,60}\d,\d\d\d",
    )


def where_did_this_image_come_from(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click_at("a.chip:has-text('media')")
    reviewer.click_at("td.main > a")
    reviewer.click_at(".thumbs a:has(img)")
    reviewer.sees("Artifact", "browser.screenshot", "made it")


def what_did_the_sub_agent_get(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click_at("a.chip:has-text('sub-run')")
    reviewer.click_at("td.main > a")
    reviewer.sees("researcher / look-up", "docs.fetch", "of 40 known tools")


def who_was_denied_what(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click("Calls")
    reviewer.click("denied")
    reviewer.sees("workspace.exec", "effect_not_allowed", "ann|ben|chris", "reviewer / review")


def which_decisions_came_from_the_model(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click("Steps")
    reviewer.click("decided by the model")
    reviewer.sees("triage", "model")


def what_is_slow(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click("Calls")
    reviewer.click("slowest", within=".facets")
    first = reviewer.page.locator("tbody tr").first.inner_text()
    assert "deploy.plan" in first or "workspace.exec" in first
    reviewer.sees(r"\d\.\d s")


def what_failed(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click("Calls")
    reviewer.click("failed")
    reviewer.sees("workspace.exec", "tool_error", "AssertionError: 3 != 4")


def who_can_reach_exec_at_all(reviewer: Reviewer, reader: RunReader) -> None:
    reviewer.click("Matrix")
    row = reviewer.page.locator(
        "tr", has=reviewer.page.get_by_role("link", name="workspace.exec")
    ).inner_text()
    assert "exec" in row
    assert re.search(r"seen \d+×", row)
    reviewer.sees("implementer", "reviewer")


QUESTIONS = (
    what_happened_and_what_the_model_saw, which_runs_used_exec_and_why, why_was_this_tool_not_shown,
    which_steps_were_degraded_and_why, which_tools_cost_most_tokens, where_did_this_image_come_from,
    what_did_the_sub_agent_get, who_was_denied_what, which_decisions_came_from_the_model, what_is_slow, what_failed,
    who_can_reach_exec_at_all,
)  # fmt: skip


@browsed
@pytest.mark.parametrize("script", [True, False], ids=["with-script", "without"])
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.__name__)
def test_a_reviewers_question_is_answered_in_three_clicks(
    question: Any,
    script: bool,
    new_page: Any,
    address: str,
    reader: RunReader,
    browser: BrowserThread,
) -> None:
    page = new_page(script)
    question(Reviewer(page, address), reader)
    assert page.troubles == []


# --- labels, live rows, files ---------------------------------------------------------------------


@browsed
def test_lists_say_what_came_since_and_move_nothing(
    new_page: Any, tmp_path: Path, browser: BrowserThread
) -> None:
    """The live bars: of the table of runs, and of a run that is going on."""

    with ThreadPoolExecutor(1) as engine:  # the browser's thread has an event loop running
        router = Router.open(CONFIG, runs=tmp_path / "runs", workspace=tmp_path)

        def route(run_id: str) -> None:
            engine.submit(
                router.route_sync,
                Step(run_id=run_id, workflow="feature", role="planner", step="plan"),
            ).result()

        route("first")
        reader = open_reader(tmp_path / "runs", config=CONFIG)
        with served(reader) as address:
            runs, run = new_page(), new_page()
            runs.goto(f"{address}/runs")
            run.goto(f"{address}/runs/first")
            assert run.get_by_text("running").count() == 1
            route("first")
            route("second")
            runs.get_by_role("link", name="1 new").wait_for()
            run.get_by_role("link", name="1 new").wait_for()
            assert runs.locator("td.main > a").all_inner_texts() == ["first"], (
                "nothing moves by itself"
            )
            runs.get_by_role("link", name="1 new").click()
            runs.get_by_role("link", name="second", exact=True).wait_for()
            engine.submit(router.close_run_sync, "first").result()
            run.get_by_role("link", name="1 new").click()
            run.locator("li.step").nth(1).wait_for()
            for _ in range(100):  # a look at the runs may be a moment old
                if run.get_by_text("closed").count():
                    break
                run.reload()
            assert run.get_by_text("closed").count()
            assert run.locator("li.step").count() == 2
            assert runs.troubles + run.troubles == []
        reader.close()
        engine.submit(router.close_sync).result()


@browsed
def test_published_pages_open_from_a_disk(
    new_page: Any, reader: RunReader, tmp_path: Path, browser: BrowserThread
) -> None:
    run, _ = sha_of(reader)
    publish(reader, [run, "feature-001"], tmp_path / "out")
    page = new_page()
    page.goto((tmp_path / "out" / "index.html").as_uri())
    background = "getComputedStyle(document.querySelector('.top')).borderBottomStyle"
    assert page.evaluate(background) == "solid", "the stylesheet is used"
    page.get_by_role("link", name=run, exact=True).first.click()
    page.wait_for_load_state("load")
    page.wait_for_function(
        "[...document.images].every((i) => i.naturalWidth)"
    )  # those further down come later
    page.get_by_role("link", name="what the model saw").first.click()
    assert page.get_by_role("heading", name="What the model saw").count() == 1
    assert page.troubles == []
