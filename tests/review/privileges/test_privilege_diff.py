"""What an edit newly allows: the algebra of the privilege diff, and edits whose outcome is
known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
from bundle_router.core.catalog import (
    ActivationSettings,
    AnswerForm,
    ApprovalRow,
    Bundle,
    CallLimits,
    Catalog,
    Condition,
    Fallback,
    LogSettings,
    ModelSettings,
    Policy,
    RecordSettings,
    Route,
    SearchSettings,
    Server,
    Settings,
    StandingBounds,
    TaintStatement,
)
from bundle_router.core.catalog.name_classes import name_classes
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.decide.plans import Plans, permitted_tools
from bundle_router.core.values import (
    Activation,
    BinaryForm,
    BinaryRule,
    Facts,
    LocalSettings,
    Step,
    StepPolicy,
)
from bundle_router.review.config_edits import config_edits, with_edits
from bundle_router.review.privileges import PrivilegeDiff, PrivilegeRow, privilege_diff, row_json
from bundle_router.testing import small_catalog
from hypothesis import given
from hypothesis import strategies as st

from tests.core.decide.test_decide_properties import (
    activations,
    catalogs,
    facts_,
    replies,
    steps,
    taken,
)
from tests.profiles import examples

# --- the algebra ----------------------------------------------------------------------------------


@st.composite
def edited(draw: st.DrawFn) -> tuple[Catalog, Catalog]:
    """A catalog, and one with some of the edits that lead to another: so that most of the two is
    the same.
    """
    old, other = draw(catalogs()), draw(catalogs())
    edits = config_edits(old, other)
    few = draw(st.lists(st.sampled_from(edits), max_size=3, unique=True)) if edits else []
    try:
        return old, with_edits(old, other, few)
    except KeyError:  # a part of a bundle that is not there
        return old, other


def unfolded(diff: PrivilegeDiff, kind: str) -> set[tuple[object, ...]]:
    """The rows of a kind without their direction, to be compared with those of the reverse."""
    return {
        (
            row.aspect,
            row.subject if not row.note.startswith("renamed") else "",
            row.tools,
            row.addresses,
        )
        for row in diff.rows
        if row.kind == kind
    }


@given(catalogs())
@examples(100)
def test_a_catalog_differs_from_itself_in_nothing(catalog: Catalog) -> None:
    diff = privilege_diff(catalog, catalog)
    assert diff.rows == ()
    assert not diff.widens
    assert diff.complete


@given(edited())
@examples(100)
def test_exchanging_the_two_exchanges_widening_and_narrowing(pair: tuple[Catalog, Catalog]) -> None:
    old, new = pair
    there, back = privilege_diff(old, new), privilege_diff(new, old)
    assert unfolded(there, "widening") == unfolded(back, "narrowing")
    assert unfolded(there, "narrowing") == unfolded(back, "widening")
    assert unfolded(there, "neutral") == unfolded(back, "neutral")


def growth(old: Catalog, new: Catalog, facts: Facts, step: Step) -> Iterable[tuple[Bundle, str]]:
    """What the new catalog permits the step and the old one does not, bundle by bundle."""
    for bundle in new.bundles.values():
        was = next(
            (
                old.bundle(id_)
                for id_ in (bundle.id, *bundle.aliases)
                if old.bundle(id_) is not None
            ),
            None,
        )
        had = set(permitted_tools(Plans(old), facts, step, [was.id])) if was is not None else set()
        for tool in permitted_tools(Plans(new), facts, step, [bundle.id]):
            if tool not in had:
                yield bundle, tool


def covers(row: PrivilegeRow, bundle: Bundle, tool: str) -> bool:
    if row.kind != "widening":
        return False
    if row.aspect != "holds everywhere":
        return row.subject == bundle.id and any(fnmatchcase(tool, known) for known in row.tools)
    return row.subject.startswith(f"servers.{tool.partition('.')[0]}")


@given(edited(), st.lists(st.tuples(facts_, steps), min_size=1, max_size=6))
@examples(150)
def test_whatever_a_step_is_newly_permitted_has_a_widening_row(
    pair: tuple[Catalog, Catalog], asked: list[tuple[Facts, Step]]
) -> None:
    old, new = pair
    diff = privilege_diff(old, new)
    for facts, step in asked:
        addresses = [address_of(step), *(grant.address for grant in facts.grants)]
        rows = [row for address in addresses for row in diff.at(address)]
        rows += [row for row in diff.rows if not row.addresses]
        for bundle, tool in growth(old, new, facts, step):
            assert any(covers(row, bundle, tool) for row in rows), (
                bundle.id,
                tool,
                diff.of("widening"),
            )


@given(edited(), facts_.map(lambda facts: replace(facts, grants=())), steps, replies, activations)
@examples(150)
def test_whatever_a_decision_shows_was_in_reach_or_has_a_widening_row(
    pair: tuple[Catalog, Catalog], facts: Facts, step: Step, reply: object, before: Activation
) -> None:
    """What nothing at all could bring before, and the new catalog shows at a step with nothing
    active, is widening.
    """
    old, new = pair
    diff = privilege_diff(old, new)
    rows = [row for row in diff.at(address_of(step)) if row.kind == "widening"]
    shown = taken(new, facts, Activation(), step, reply)  # type: ignore[arg-type]
    closed = {
        bundle.id
        for bundle in old.bundles.values()
        if not bundle.always and not any(bundle.id in (old.id_today(i) for i in r.bundles) for r in old.routes)
        and not bundle.selectable
        and bundle.id not in {old.id_today(i) for i in old.settings.fallback.default}
    }  # fmt: skip
    for id_ in shown.bundle_ids:
        if id_ in closed:  # nothing at all brought it before
            for tool in permitted_tools(Plans(new), facts, step, [id_]):
                assert any(row.subject == id_ and tool in row.tools for row in rows)


@given(catalogs(), catalogs())
@examples(100)
def test_all_edits_together_lead_from_one_catalog_to_the_other(old: Catalog, new: Catalog) -> None:
    edits = config_edits(old, new)
    there = with_edits(old, new, edits)
    assert privilege_diff(there, new).rows == ()
    assert [route.name for route in there.routes] == [route.name for route in new.routes]
    assert with_edits(old, new, ()).revision == old.revision


@given(
    st.lists(st.text(alphabet="ab*?", min_size=1, max_size=4), max_size=5, unique=True),
    st.text(alphabet="abc", min_size=1, max_size=5),
)
@examples(250)
def test_every_name_is_of_one_class_that_is_found(patterns: list[str], name: str) -> None:
    classes, complete = name_classes(patterns)
    assert complete
    covered = {pattern for pattern in patterns if fnmatchcase(name, pattern)}
    assert [one for one in classes if one.patterns == covered], (name, classes)
    for one in classes:
        assert {p for p in patterns if fnmatchcase(one.example, p)} == one.patterns


def test_names_that_are_too_many_to_look_at_count_as_widening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bundle_router.core.catalog.name_classes.MAX_STATES", 10)
    rows = [Policy("p", role=("*a*b*c*", "*d*e*f*"), allow=("*",))]
    diff = privilege_diff(
        small_catalog({"notes": ["repo.read"]}, policies=rows), small_catalog({}, policies=rows)
    )
    assert not diff.complete
    assert diff.widens


# --- edits whose outcome is known -----------------------------------------------------------------

EXEC = Bundle(
    "workspace.exec", "run", ("workspace.exec",), effects=("write", "exec"), selectable=False
)
READ = Bundle("repo.readonly", "read", ("repo.read_file", "repo.ripgrep"), effects=("read",))
READERS = Policy("readers", role=("reviewer",), allow=("bundle:repo.*",))
MAKERS = Policy("makers", role=("implementer",), allow=("*",))
BASE = small_catalog(
    {"workspace.exec": EXEC, "repo.readonly": READ},
    routes=[
        Route(
            "edit",
            role=("implementer",),
            step=("edit",),
            bundles=("repo.readonly", "workspace.exec"),
        ),
        Route("review", role=("reviewer",), bundles=("repo.readonly",)),
    ],
    policies=[READERS, MAKERS],
)


def lines(old: Catalog, new: Catalog, kind: str = "widening") -> list[str]:
    """Each row of a kind in a line."""
    return [
        " ".join(
            str(part)
            for part in (row.aspect, row.subject, ",".join(row.tools), f"{row.before}→{row.after}",
                         *(f"@ {one}" for one in row.addresses))
            if part
        )
        for row in privilege_diff(old, new).of(kind)  # type: ignore[arg-type]
    ]  # fmt: skip


def with_setting(**sections: object) -> Catalog:
    return replace(BASE, settings=replace(BASE.settings, **sections))  # type: ignore[arg-type]


def with_server(**keys: object) -> Catalog:
    return replace(BASE, servers={**BASE.servers, "repo": replace(BASE.servers["repo"], **keys)})  # type: ignore[arg-type]


def with_bundle(bundle: Bundle) -> Catalog:
    return replace(BASE, bundles={**BASE.bundles, bundle.id: bundle})


def with_policies(*rows: Policy) -> Catalog:
    return replace(BASE, policies=rows)


def with_routes(*rows: Route) -> Catalog:
    return replace(BASE, routes=rows)


PYTHON = BinaryRule(name="python", path="@python", forms=(BinaryForm(words=("-m", "pytest")),))
MORE_PYTHON = PYTHON.model_copy(update={"forms": (*PYTHON.forms, BinaryForm(words=("-c",)))})

WIDENINGS: list[tuple[Catalog, list[str]]] = [
    (
        with_policies(replace(READERS, allow=("*",)), MAKERS),
        ["may call workspace.exec workspace.exec →stays @ any × reviewer × any"],
    ),
    (
        with_policies(READERS, MAKERS, Policy("all read", workflow=("fix*",), allow=("tool:repo.ripgrep",))),
        ["may call repo.readonly repo.ripgrep →picked @ fix* × any other × any"],
    ),
    (
        with_routes(replace(BASE.routes[0], step=("edit", "verify")), BASE.routes[1]),
        ["comes in workspace.exec workspace.exec stays→given @ any × implementer × verify"],
    ),
    (with_bundle(replace(EXEC, selectable=True)),
     ["comes in workspace.exec workspace.exec stays→picked @ any × implementer × any other"]),
    (with_bundle(replace(READ, requires_env=())), []),
    (with_server(trust="untrusted"), []),
    (with_server(url="https://elsewhere.example"), ["holds everywhere servers.repo.url →https://elsewhere.example"]),
    (with_server(pass_through=("resources",)), ["holds everywhere servers.repo.pass_through →resources"]),
    (with_server(volatile=("/title",)), ["holds everywhere servers.repo.volatile →/title"]),
    (with_server(exclude=("write_*",)), []),
    (with_setting(limits=CallLimits(calls_per_step=9_000)), ["holds everywhere limits.calls_per_step 2000→9000"]),
    (with_setting(limits=CallLimits(calls_per_run=9_000)), []),
    (with_setting(search=SearchSettings(read_threshold=0.5)), ["holds everywhere search.read_threshold 0.9→0.5"]),
    (with_setting(search=SearchSettings(floor=0.5)), []),
    (with_setting(model=ModelSettings(names=("openai/x",))), ["holds everywhere model.names →openai/x"]),
    (with_setting(activation=ActivationSettings(max_tools=99)), ["holds everywhere activation.max_tools 24→99"]),
    (with_setting(log=LogSettings(redact_env=("SECRET",))), []),
    (with_setting(records=RecordSettings(heads="/heads")), []),
    (
        with_setting(fallback=Fallback(("search",), ())),
        [],
    ),
    (
        replace(BASE, local=LocalSettings(docs_hosts=("*.example.org",))),
        ["holds everywhere docs.hosts →*.example.org"],
    ),
    (replace(BASE, local=LocalSettings(binaries=(PYTHON,))), ["holds everywhere binaries.python →@python"]),
]  # fmt: skip


@pytest.mark.parametrize(("new", "expected"), WIDENINGS)
def test_an_edit_widens_this_and_nothing_else(new: Catalog, expected: list[str]) -> None:
    assert lines(BASE, new) == expected
    assert lines(new, BASE, "narrowing") == [_turned(line) for line in expected]


def _turned(line: str) -> str:
    """The row of the reverse: what was said before is said after."""
    head, arrow, tail = line.partition("→")
    words, at = head.split(" "), tail.partition(" @")
    before = words.pop()
    return f"{' '.join(words)} {at[0]}{arrow}{before}{at[1]}{at[2]}"


def test_a_host_that_a_glob_covered_and_a_form_that_was_there_are_nothing_new() -> None:
    old = replace(BASE, local=LocalSettings(docs_hosts=("*.example.org",), binaries=(PYTHON,)))
    new = replace(BASE, local=LocalSettings(docs_hosts=("a.example.org",), binaries=(MORE_PYTHON,)))
    assert lines(old, new) == ['holds everywhere binaries.python.forms →{"words":["-c"]}']
    assert lines(old, new, "narrowing") == ["holds everywhere docs.hosts *.example.org→"]


def test_a_tool_that_nobody_has_listed_yet_is_told_apart_as_policies_do() -> None:
    board = Bundle(
        "board", "cards", (), patterns=("board.*",), effects=("read",), servers=("board",)
    )
    server = {"board": Server("board", trust="trusted", url="https://board.example")}
    deny = Policy("all", allow=("*",), deny=("tool:board.delete_*",))
    old = Catalog(servers=server, bundles={"board": board}, policies=(deny,))
    new = replace(old, policies=(replace(deny, deny=()),))
    assert lines(old, new) == ["may call board board.* & board.delete_* →picked @ any × any × any"]
    assert lines(new, old) == []
    included = replace(old, servers={"board": replace(server["board"], exclude=("purge",))})
    assert "may call board board.purge →picked @ any × any × any" in lines(included, old)


def test_what_a_bundle_no_longer_says_it_can_do_is_widening() -> None:
    new = with_bundle(replace(EXEC, effects=("write",)))
    assert lines(BASE, new) == ['holds everywhere bundles."workspace.exec".effects exec→']
    assert lines(new, BASE) == []


def test_a_bundle_that_can_no_longer_be_denied_by_its_old_name_is_widening() -> None:
    old = with_bundle(replace(READ, aliases=("repo.old",)))
    assert lines(old, BASE)[0].startswith(
        "can be denied as repo.readonly repo.read_file,repo.ripgrep"
    )
    assert lines(BASE, old) == []


def test_a_renamed_bundle_with_its_old_id_is_the_same() -> None:
    renamed = replace(READ, id="repo.read", aliases=("repo.readonly",))
    new = replace(BASE, bundles={"workspace.exec": EXEC, "repo.read": renamed}, routes=BASE.routes)
    assert lines(BASE, new) == []


def test_rows_name_the_edits_they_rest_on() -> None:
    new = with_policies(replace(READERS, allow=("*",)), MAKERS)
    (row,) = privilege_diff(BASE, new).of("widening")
    assert [str(edit) for edit in row.edits] == ["policy 'readers' changed"]
    said = row_json(row, {("policy", "readers"): "policy.toml:3"})
    assert said["edits"] == [{"edit": "policy 'readers' changed", "place": "policy.toml:3"}]
    assert said["effects"] == ["write", "exec"]


def test_a_step_policy_that_permits_one_bundle_alone_makes_another_bundle_with_its_tools_new() -> (
    None
):
    """Found by the property: the tools are not new, and this step gets them only now."""
    twin = replace(READ, id="repo.twin")
    old, new = BASE, with_bundle(twin)
    step = Step(
        run_id="r",
        workflow="w",
        role="reviewer",
        step="s",
        policy=StepPolicy(allow=("bundle:repo.twin",)),
    )
    assert not permitted_tools(Plans(old), Facts(), step, ["repo.readonly"])
    assert permitted_tools(Plans(new), Facts(), step, ["repo.twin"])
    assert any(line.startswith("may call repo.twin") for line in lines(old, new))


def test_edits_of_a_part_carry_the_bundles_made_of_it() -> None:
    part = replace(READ, tools=("repo.read_file",))
    whole = Bundle(
        "triage",
        "both",
        ("docs.fetch", "repo.read_file"),
        bundles=("repo.readonly",),
        effects=("read",),
    )
    more = replace(whole, tools=("docs.fetch", "repo.read_file", "repo.ripgrep"))
    tools = ("repo.read_file", "repo.ripgrep", "docs.fetch")
    old = small_catalog({"repo.readonly": part, "triage": whole, "all": tools})
    new = small_catalog({"repo.readonly": READ, "triage": more, "all": tools})
    (edit,) = config_edits(old, new)
    assert (str(edit), edit.carries) == ("bundle 'repo.readonly' changed", ("triage",))
    assert with_edits(old, new, [edit]).revision == new.revision


def test_settings_of_settings_are_edits_of_their_own() -> None:
    new = with_setting(
        limits=CallLimits(recent_steps=1), activation=ActivationSettings(sticky=False)
    )
    assert sorted(edit.name for edit in config_edits(BASE, new)) == [
        "activation.sticky",
        "limits.recent_steps",
    ]
    first = [edit for edit in config_edits(BASE, new) if edit.name == "activation.sticky"]
    there = with_edits(BASE, new, first).settings
    assert (there.activation.sticky, there.limits.recent_steps) == (False, 5)
    assert there == Settings(activation=ActivationSettings(sticky=False))


# --- rows with `seen` -----------------------------------------------------------------------------

LEAVES = Policy("nothing leaves", deny=("sends:outside",), seen=("private", "untrusted"))
MAIL = Server(
    "mail", taints=(TaintStatement(sends=("outside",)),), transport="local", trust="trusted"
)


def with_rows(*rows: Policy, mail: Server = MAIL) -> Catalog:
    return small_catalog(
        {"desk": ["web.read", "mail.send"]},
        routes=[Route("r", bundles=("desk",))],
        policies=[Policy("everything", allow=("*",)), *rows],
        servers=[mail],
    )


@pytest.mark.parametrize(
    ("old", "new", "kind", "taints"),
    [
        ([LEAVES], [], "widening", "private, untrusted"),
        ([], [LEAVES], "narrowing", "private, untrusted"),
        ([LEAVES], [replace(LEAVES, enforce=False)], "widening", "private, untrusted"),
        ([LEAVES], [replace(LEAVES, seen=("untrusted",))], "narrowing", "untrusted"),
        ([replace(LEAVES, seen=("untrusted",))], [LEAVES], "widening", "untrusted"),
    ],
)
def test_what_a_row_with_seen_permits_is_compared_for_each_set_of_taints(
    old: list[Policy], new: list[Policy], kind: str, taints: str
) -> None:
    diff = privilege_diff(with_rows(*old), with_rows(*new))
    assert [(row.kind, row.aspect, row.tools, row.note) for row in diff.rows] == [
        (kind, "may call", ("mail.send",), f"once its branch has seen {taints}")
    ]
    assert diff.widens is (kind == "widening")


def test_a_seen_that_is_added_to_a_row_and_a_sink_that_is_removed_widen() -> None:
    plain = with_rows(replace(LEAVES, seen=()))
    assert [row.note for row in privilege_diff(plain, with_rows(LEAVES)).of("widening")] == [""]
    silent = with_rows(LEAVES, mail=replace(MAIL, taints=()))
    widening = privilege_diff(with_rows(LEAVES), silent).of("widening")
    assert {row.subject for row in widening} == {"desk", "servers.mail.taints"}


def test_a_declared_taint_of_another_sort_and_a_form_that_clears_more_widen() -> None:
    form = AnswerForm("triage", (("severity", ("low",)),))
    old = replace(with_rows(LEAVES), taints=(("customer", "private"),), forms=(form,))
    new = replace(old, forms=(replace(form, clears=("untrusted",)),))
    assert [row.subject for row in privilege_diff(old, new).of("widening")] == [
        "forms.triage.clears"
    ]
    assert privilege_diff(new, old).of("widening") == ()
    more = replace(old, forms=(replace(form, fields=(("severity", ("low", "high")),)),))
    assert [row.after for row in privilege_diff(old, more).of("widening")] == ["severity high"]
    moved = replace(old, taints=(("customer", "untrusted"),))
    assert "taints.customer" in {row.subject for row in privilege_diff(old, moved).of("widening")}


def test_more_sets_of_taints_than_are_compared_count_as_a_widening() -> None:
    rows = [replace(LEAVES, name=f"row {n}", seen=(f"t{n}",)) for n in range(7)]
    diff = privilege_diff(with_rows(*rows), with_rows(*rows))
    assert (diff.complete, diff.widens) == (False, True)
    few = with_rows(*rows[:6])
    assert privilege_diff(few, few).complete


# --- calls that wait for somebody's word ----------------------------------------------------------

HELD = ApprovalRow(
    "transfers",
    calls=("tool:bank.transfer",),
    unless=(Condition("/amount", at_most=500), Condition("/currency", is_="EUR")),
    persons=2,
)


def kinds_of(before: Iterable[ApprovalRow], after: Iterable[ApprovalRow]) -> set[str]:
    def of(rows: Iterable[ApprovalRow]) -> Catalog:
        return small_catalog({"bank": ["bank.transfer", "bank.balance"]}, approvals=rows)

    rows = privilege_diff(of(before), of(after)).rows
    assert all(row.subject.startswith("approvals.transfers") for row in rows)
    return {row.kind for row in rows}


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"persons": 1}, {"widening"}),
        ({"persons": 3}, {"narrowing"}),
        ({"unless": (Condition("/amount", at_most=900), HELD.unless[1])}, {"widening"}),
        ({"unless": (Condition("/amount", at_most=100), HELD.unless[1])}, {"narrowing"}),
        ({"unless": HELD.unless[:1]}, {"widening"}),
        ({"unless": (*HELD.unless, Condition("/to", in_=("a",)))}, {"narrowing"}),
        ({"unless": ()}, {"narrowing"}),
        ({"unless": (HELD.unless[0], *HELD.unless)}, {"widening", "narrowing"}),
        (
            {"unless": (HELD.unless[0], Condition("/currency", is_="USD"))},
            {"widening", "narrowing"},
        ),
        ({"calls": ("tool:bank.*",)}, {"narrowing"}),
        ({"calls": ("tool:bank.balance",)}, {"widening", "narrowing"}),
        ({"role": ("clerk",)}, {"widening"}),
        ({"approvers": ("role:lead",)}, {"widening", "narrowing"}),
        ({"answer_within_s": 1.0}, {"narrowing"}),
        ({"use_within_s": 1e6}, {"widening"}),
        ({"standing": StandingBounds(5, 60.0)}, {"widening"}),
        ({"enforce": False}, {"widening"}),
        ({"message": "look"}, {"neutral"}),
    ],
)
def test_an_edit_of_what_waits_is_wider_or_narrower(
    change: dict[str, Any], kinds: set[str]
) -> None:
    edited_row = replace(HELD, **change)
    assert kinds_of([HELD], [edited_row]) == kinds
    swapped = {"widening": "narrowing", "narrowing": "widening"}
    assert kinds_of([edited_row], [HELD]) == {swapped.get(kind, kind) for kind in kinds}


def test_a_row_that_is_gone_is_a_widening() -> None:
    assert kinds_of([HELD], []) == {"widening"}
    assert kinds_of([], [HELD]) == {"narrowing"}
