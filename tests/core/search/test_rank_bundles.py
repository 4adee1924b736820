from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.search.documents import BundleText, ToolText
from bundle_router.core.search.ranking import Ranking, Search
from bundle_router.core.search.request import Request
from bundle_router.core.values import RecentStep, Step
from bundle_router.core.values.evidence import Evidence
from hypothesis import given
from hypothesis import strategies as st

IDS = ("docs.web", "issues.tracker", "repo.readonly", "weather", "workspace.exec")
NAMES = (
    "docs.fetch",
    "issues.create_issue",
    "repo.git_log",
    "repo.grep",
    "weather.forecast",
    "no.such.tool",
)


def first(search: Search, text: str, **kwargs: Any) -> str:
    return search.rank_bundles(Request(text, **kwargs), frozenset(IDS)).scored[0].id


@pytest.mark.parametrize(
    ("goal", "bundle"),
    [
        ("where is parse_config defined", "repo.readonly"),
        ("grep the sources for TODO", "repo.readonly"),
        ("report a bug about the login", "issues.tracker"),
        ("will it rain in Lisbon tomorrow", "weather"),
        ("run the test program", "workspace.exec"),
        ("download this web page", "docs.web"),
    ],
)
def test_a_goal_finds_its_bundle(goal: str, bundle: str, search: Search) -> None:
    assert first(search, goal) == bundle


def test_a_request_of_two_wishes_finds_both_bundles(search: Search) -> None:
    goal = (
        "Please check the weather forecast for Oslo. Then open a new issue about the broken build."
    )
    ids = [scored.id for scored in search.rank_bundles(Request(goal), frozenset(IDS)).scored]
    assert set(ids[:2]) == {"weather", "issues.tracker"}


def test_what_the_last_step_had_settles_a_vague_goal(search: Search) -> None:
    recent = (RecentStep("implementer", "edit", "open an issue", ("issues.tracker",)),)
    assert first(search, "and now the other one", recent=recent) == "issues.tracker"
    assert first(search, "look at the weather forecast", recent=recent) == "weather"


TWO_WISHES = (
    "Please check the weather forecast for Oslo. Then open a new issue about the broken build."
)


def without(search: Search, **weights: Any) -> Search:
    """The search with a part of it turned off, to see that the part is what a case rests on."""
    return replace(search, weights=replace(search.weights, **weights))


def scores(search: Search, text: str, **kwargs: Any) -> dict[str, float]:
    return {
        row.id: row.score
        for row in search.rank_bundles(Request(text, **kwargs), frozenset(IDS)).scored
    }


def of_tools(search: Search, text: str) -> dict[str, float]:
    return {
        row.id: row.score
        for row in search.rank_tools(Request(text), frozenset(search.corpus.servers))
    }


def test_the_latest_step_says_more_than_those_before_it(search: Search) -> None:
    recent = tuple(RecentStep("r", "s", "g", (id_,)) for id_ in ("weather", "issues.tracker"))
    assert first(search, "and now the other one", recent=recent) == "weather"
    assert (
        first(without(search, history_decay=1.0), "and now the other one", recent=recent)
        == "issues.tracker"
    )


def test_a_bundle_that_lacks_a_rare_word_of_a_short_request_falls_behind(search: Search) -> None:
    goal = "search the issues of a project"
    uncovered = scores(without(search, coverage=0.0), goal)["repo.readonly"]
    assert 0.0 < scores(search, goal)["repo.readonly"] < 0.6 * uncovered


def test_each_wish_of_a_request_has_its_say(search: Search) -> None:
    both = ("weather.forecast", "issues.create_issue")
    by_clause, as_a_whole = (
        of_tools(search, TWO_WISHES),
        of_tools(without(search, whole=1.0), TWO_WISHES),
    )
    assert min(by_clause[tool] for tool in both) > min(as_a_whole[tool] for tool in both)


def test_in_a_request_about_several_subjects_a_tool_stands_for_itself(search: Search) -> None:
    pulled = of_tools(without(search, coherence_power=0.0), TWO_WISHES)["issues.list_issues"]
    assert of_tools(search, TWO_WISHES)["issues.list_issues"] < pulled


def test_what_is_to_be_written_says_little_about_what_is_to_be_done(search: Search) -> None:
    goal = "write a file with {0}search the source code for the pattern and read files{0}"
    assert (
        scores(search, goal.format('"'))["repo.readonly"]
        < scores(search, goal.format(""))["repo.readonly"]
    )


def test_a_bundle_that_is_gone_is_not_brought_back_by_history(search: Search) -> None:
    recent = (RecentStep("r", "s", "g", ("no.such.bundle", "weather")),)
    ranking = search.rank_bundles(
        Request("read", recent=recent), frozenset({"repo.readonly", "docs.web"})
    )
    assert {scored.id for scored in ranking.scored} <= {"repo.readonly", "docs.web"}


def test_nothing_fits_is_an_answer(search: Search) -> None:
    ranking = search.rank_bundles(Request("xyzzy plugh"), frozenset(IDS))
    assert ranking.scored == ()
    assert ranking.evidence == Evidence()


def test_evidence_tells_a_sure_ranking_from_an_unsure_one(search: Search) -> None:
    sure = search.rank_bundles(Request("get the weather forecast"), frozenset(IDS)).evidence
    unsure = search.rank_bundles(
        Request("please read about frobnicating the hyperdrive flange"), frozenset(IDS)
    ).evidence
    assert sure.coverage == 1.0
    assert sure.known == 1.0
    assert sure.agreement == 1.0
    assert sure.margin > unsure.margin
    assert sure.relevance > unsure.relevance
    assert unsure.known < 0.5


def test_a_step_is_searched_by_its_goal_and_hinted_by_its_address(search: Search) -> None:
    step = Step(
        run_id="r", workflow="feature", role="triager", step="report issues", goal="do the next one"
    )
    assert search.rank_bundles(Request.of(step), frozenset(IDS)).scored[0].id == "issues.tracker"
    silent = step.model_copy(update={"goal": ""})
    assert search.rank_bundles(Request.of(silent), frozenset(IDS)).scored[0].id == "issues.tracker"


@given(text=st.text(max_size=200), permitted=st.frozensets(st.sampled_from(IDS)))
def test_only_permitted_bundles_are_ranked_best_first_and_the_same_each_time(
    text: str, permitted: frozenset[str], search: Search, build: Any
) -> None:
    ranking = search.rank_bundles(Request(text), permitted)
    assert {scored.id for scored in ranking.scored} <= permitted
    assert [(-s.score, s.id) for s in ranking.scored] == sorted(
        (-s.score, s.id) for s in ranking.scored
    )
    assert ranking == build().rank_bundles(Request(text), permitted)
    values = [
        getattr(ranking.evidence, name)
        for name in ("known", "coverage", "margin", "entropy", "agreement", "relevance")
    ]
    assert all(0.0 <= value <= 1.0 for value in values)


@given(text=st.text(max_size=200), permitted=st.frozensets(st.sampled_from(NAMES)))
def test_only_permitted_tools_are_ranked(
    text: str, permitted: frozenset[str], search: Search
) -> None:
    ranked = search.rank_tools(Request(text), permitted)
    assert {scored.id for scored in ranked} <= permitted
    assert len({scored.id for scored in ranked}) == len(ranked)


@pytest.mark.parametrize(
    ("query", "tool"),
    [
        ("git history of a file", "repo.git_log"),
        ("createIssue", "issues.create_issue"),
        ("list open issues", "issues.list_issues"),
        ("write_file", "workspace.write_file"),
    ],
)
def test_a_query_finds_its_tool(search: Search, query: str, tool: str) -> None:
    assert search.rank_tools(Request(query), frozenset(search.corpus.servers))[0].id == tool


def test_the_labelled_sample_is_ranked_as_well_as_when_this_was_written(
    sample: tuple[Search, list[dict[str, Any]]],
) -> None:
    search, queries = sample
    permitted = frozenset(search.corpus.members)
    right = 0
    for query in queries:
        used = list(
            dict.fromkeys(tool.split("::")[0] for tool in reversed(query["meta"]["prev_tools"]))
        )
        recent = tuple(RecentStep("", "", "", (bundle,)) for bundle in used)
        scored = search.rank_bundles(Request(query["query"], recent=recent), permitted).scored
        right += bool(scored) and scored[0].id in query["servers"]
    assert right >= 88, f"{right} of {len(queries)} turns put a right bundle first"


@pytest.mark.parametrize(
    ("wish", "first"),
    [
        ("the wether forcast for tomorrow", "weather"),
        ("open a new isue in the trakcer", "issues.tracker"),
    ],
)
def test_a_misspelt_word_is_read_as_the_one_that_search_knows(
    wish: str, first: str, search: Search, everything: frozenset[str]
) -> None:
    assert search.rank_bundles(Request(wish), everything).scored[0].id == first


def test_a_name_is_no_misspelt_word(search: Search, everything: frozenset[str]) -> None:
    assert search.rank_bundles(Request("greet Wether"), everything).scored == ()
    assert search.rank_bundles(Request("greet wether"), everything).scored != ()


def test_a_word_that_the_word_lists_know_is_not_misspelt(build: Any) -> None:
    search = build((BundleText("rockets", "Launch rockets from the ground"),), ())
    assert search.rank_bundles(Request("luanch"), frozenset({"rockets"})).scored != ()
    assert search.rank_bundles(Request("lunch"), frozenset({"rockets"})).scored == ()


def test_a_tool_that_does_what_the_request_asks_to_be_done_comes_before_its_like(
    build: Any,
) -> None:
    names = ("disk_create", "disk_get", "disk_update")
    tools = tuple(
        ToolText(f"vm.{name}", "vm", name, "A disk in a resource group") for name in names
    )
    search = build((BundleText("vm", "Disks", (), tuple(tool.id for tool in tools)),), tools)
    for request, best in (
        ("Resize a disk in a resource group", "vm.disk_update"),
        ("Show me a disk", "vm.disk_get"),
    ):
        assert next(iter(of_tools(search, request))) == best
        assert next(iter(of_tools(without(search, action=1.0), request))) == "vm.disk_create"


@pytest.mark.parametrize(
    ("wish", "bundle"),
    [
        ("When was the invoice changed?", "files.read"),
        ("Please show me the invoice", "files.read"),
        ("change the invoice", "files.write"),
        ("could you rename the invoice", "files.write"),
        ("the invoice", "files.read"),  # says neither: equal, by id
    ],
)
def test_what_is_asked_to_be_done_tells_bundles_of_one_subject_apart(
    wish: str, bundle: str, build: Any
) -> None:
    """By their declared effects: the texts do not tell one from the other."""
    reads = BundleText("files.read", "The invoice of the files", changes=False)
    writes = BundleText("files.write", "The invoice of the files", changes=True)
    assert best(build((reads, writes), ()), wish) == bundle


def test_of_several_wishes_none_speaks_for_all(build: Any) -> None:
    reads = BundleText("a.read", "Read the invoices of customers", changes=False)
    writes = BundleText("b.write", "Write letters to suppliers", changes=True)
    search = build((reads, writes), ())
    both = "read the invoices of customers, then write letters to suppliers"
    assert rank(search, both).several
    assert rank(search, both).scored == rank(without(search, unfit=1.0), both).scored


def test_a_bundle_without_declared_effects_is_neither_raised_nor_lowered(build: Any) -> None:
    silent = BundleText("files", "The invoice of the files")
    search = build((silent,), ())
    for wish in ("show the invoice", "change the invoice"):
        assert rank(search, wish).scored == rank(without(search, unfit=1.0), wish).scored


# --- the operator's words --------------------------------------------------------------------------

FLOOD = tuple(
    ToolText(f"suite.{n}", "suite", f"call_{n}", f"Send invoice number {n} of a deploy to a team")
    for n in range(200)
)
OF_FLOOD = tuple(tool.id for tool in FLOOD)


def best(search: Search, wish: str) -> str:
    return rank(search, wish).scored[0].id


def rank(search: Search, wish: str) -> Ranking:
    return search.rank_bundles(Request(wish), frozenset(search.corpus.members))


def test_the_operators_line_is_not_drowned_by_the_texts_of_many_tools(build: Any) -> None:
    mail = BundleText("mail", "Send invoices to customers", ("mail the bill",), ("mail.post",))
    post = ToolText("mail.post", "mail", "post", "Send a letter or an invoice")
    suite = BundleText("suite", "Planning of teams", (), OF_FLOOD)
    assert best(build((mail, suite), (post, *FLOOD)), "send the invoice to the customer") == "mail"


def test_a_wish_like_one_example_needs_no_word_of_the_others(build: Any) -> None:
    far_apart = (
        "pay the electricity bill of the third floor before the end of the quarter",
        "book a meeting room with a projector for the visitors from the bank",
        "order lunch for ten people who eat neither meat nor fish",
        "hand the parking permits out to the drivers of the night shift",
    )
    office = BundleText("office", "", (*far_apart, "oil the lamps"))
    outside = BundleText("outside", "", ("lamps that need oil in spring, fences and ponds",))
    assert best(build((office, outside), ()), "oil the lamps") == "office"


def test_names_of_tools_that_were_only_listed_count_as_little_as_tools_do(build: Any) -> None:
    listed = BundleText("a", "Ships parcels", (), (), listed=("track_invoice", "list_invoices"))
    said = BundleText("b", "Invoices of customers")
    assert best(build((listed, said), ()), "show the invoices") == "b"
    assert best(build((listed,), ()), "show the invoices") == "a"


def test_words_of_other_languages_lead_to_the_bundle(build: Any) -> None:
    mail = BundleText("mail", "Send mail", words=("Rechnung verschicken", "envoyer une facture"))
    search = build((mail, BundleText("maps", "Find a way", ("the way home",))), ())
    assert best(search, "Bitte die Rechnung an den Kunden verschicken") == "mail"


@pytest.mark.parametrize("wish", ["count what db.x.supabase.co has", "count: my-supabase_2/x"])
def test_the_name_of_a_bundle_counts_in_full_inside_another_name(wish: str, build: Any) -> None:
    named = BundleText("supabase.read", "A hosted project")
    other = BundleText("tables", "Count the cells of sheets")
    assert best(build((named, other), ()), wish) == "supabase.read"
    elsewhere = replace(named, id="hosted.read", description="A hosted supabase project")
    assert best(build((elsewhere, other), ()), wish) == "tables"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("calender", "calendar"), ("deploymnet", "deployment"), ("enviroment", "environment")],
)
def test_a_word_is_corrected_as_it_is_written_before_it_is_stemmed(
    wrong: str, right: str, build: Any
) -> None:
    """The stems of both lie further apart than a letter."""
    search = build(
        (BundleText("it", f"Look after the {right}"), BundleText("other", "Look after it all")), ()
    )
    assert best(search, wrong) == "it"
    share = rank(search, wrong).evidence.strength / rank(search, right).evidence.strength
    assert share == pytest.approx(0.8, rel=1e-4)
