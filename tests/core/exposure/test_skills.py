"""Instructions that come with a bundle: read from its file, bounded, cleaned, handed out with the
tools they name.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_router import Router, Step, load_catalog
from bundle_router.core.catalog import Bundle, Catalog, Route
from bundle_router.core.exposure.skills import MAX_TEXT, head_fault, parse_skill
from bundle_router.core.records.replayed import catalog_from
from bundle_router.testing import fake_router, small_catalog
from hypothesis import given
from hypothesis import strategies as st

FILE = """---
name: triage
description: "How reports are read."
tools:
  - get_issue
  - s.label
---
First read the report.
"""


@pytest.mark.parametrize(
    ("head", "tools"),
    [
        ("tools: [get_issue, 's.label']", ("get_issue", "s.label")),
        ("tools: get_issue, s.label, get_issue", ("get_issue", "s.label")),
        ("tools:\n- get_issue\n- s.label", ("get_issue", "s.label")),
        ("tools: []", ()),
        ("tools: get_issue s.label", ("get_issue", "s.label")),
        ("tools: [get_issue,\n  s.label]", ("get_issue", "s.label")),
        ("'tools': get_issue # the first", ("get_issue",)),
        ("other: x\nallowed: [y]", ()),
    ],
)
def test_the_tools_of_a_head_are_read_as_people_write_them(
    head: str, tools: tuple[str, ...]
) -> None:
    skill = parse_skill("triage/SKILL.md", f"---\nname: t\n{head}\n---\nText.")
    assert (skill.tools, skill.name, skill.text) == (tools, "t", "Text.")


WISH = "Use it to rename a flag."


@pytest.mark.parametrize(
    ("head", "description"),
    [
        ("description: >-\n  Use it to\n  rename a flag.", WISH),
        ("description: |\n  Use it to rename a flag.", WISH),
        ("description: Use it to\n  rename a flag.", WISH),
        ("description:\n  Use it to rename a flag.", WISH),
        ('description: "say \\"yes\\""', 'say "yes"'),
        ("description: 'it''s'", "it's"),
        ("description: x # a comment", "x"),
        ('"description": x', "x"),
        ("description: renames: flags", "renames: flags"),
        ("description: it's: fine", "it's: fine"),
        ("description: 3.10", "3.10"),
        ("description: yes", "yes"),
        ("description:", ""),
        ("other: {a: [b]}", ""),
    ],
)
@pytest.mark.parametrize("before", ["", "\n\n", "\ufeff"])
def test_a_head_is_yaml_as_people_write_it(before: str, head: str, description: str) -> None:
    text = f"{before}---\nname: t\n{head}\n---\nText."
    skill = parse_skill("triage/SKILL.md", text)
    assert (skill.name, skill.description, skill.text) == ("t", description, "Text.")
    assert head_fault(text) == ""


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        ("name: [x", "its head is no YAML: expected ',' or ']', but got '<stream end>' (line 3)"),
        ("name: t\n  description: x", "its head is no YAML: mapping values are not allowed here"),
        ("- name", "its head has no keys: write name, description and tools"),
        ("name: [a]", "name in its head is no text"),
        ("tools: {a: b}", "tools in its head is no list of names"),
        ("tools: [[a]]", "tools in its head is no list of names"),
        ("a: &a x\nname: *a", "its head has an anchor or alias of YAML"),
        ("name: " + "[" * 5_000 + "]" * 5_000, "its head is no YAML that is read here"),
    ],
)
def test_a_head_that_can_t_be_read_is_said_and_the_instructions_stay(head: str, fault: str) -> None:
    text = f"---\n{head}\n---\nText."
    skill = parse_skill("triage/SKILL.md", text)
    assert (skill.name, skill.tools, skill.text) == ("triage", (), "Text.")
    assert head_fault(text).startswith(fault)


def test_a_file_without_a_head_is_all_instructions_named_by_its_folder() -> None:
    skill = parse_skill("triage/SKILL.md", "Do this.\n---\nname: x\n---\n")
    assert (skill.name, skill.tools) == ("triage", ())
    assert skill.text.startswith("Do this.")


def test_instructions_are_bounded_and_cleaned() -> None:
    skill = parse_skill("a/SKILL.md", "x\u202e\x1b[31m\U000e0041y" + "z" * 30_000)
    assert skill.text.startswith("xyz")
    assert len(skill.text) < MAX_TEXT + 100
    assert skill.text.endswith("characters left out]")


@given(st.text())
def test_any_text_is_a_skill(text: str) -> None:
    parse_skill("a/SKILL.md", text)
    parse_skill("a/SKILL.md", f"---\n{text}\n---\n{text}")


def catalog(mode: str = "deferred") -> Catalog:
    tools = ("s.close", "s.get_issue", "s.label")
    bundle = Bundle("hub", "Issues.", tools, effects=("read",), mode=mode, skill="hub/SKILL.md")  # type: ignore[arg-type]  # a Mode
    made = small_catalog(
        {"hub": bundle}, routes=[Route("hub", step=("hub",), bundles=("hub",)), Route("none")]
    )
    return replace(made, skills={"hub/SKILL.md": parse_skill("hub/SKILL.md", FILE)})


def step(at: str = "hub") -> Step:
    return Step(run_id="r", workflow="w", role="r", step=at)


def test_a_skill_is_handed_out_with_its_bundle_and_the_tools_it_names_are_in_the_array() -> None:
    with fake_router(catalog()) as router:
        decision = router.route_sync(step())
        toolset = router.tools_sync("r")
        (skill,) = toolset.skills
        assert (skill.bundle, skill.name, skill.description) == (
            "hub",
            "triage",
            "How reports are read.",
        )
        assert skill.text == "First read the report."
        assert skill.tools == ("s__get_issue", "s__label")
        assert [tool.name for tool in toolset.active] == ["s.get_issue", "s.label"]
        assert [tool.name for tool in toolset.deferred] == ["s.close"]
        assert decision.exposure.tools == 2


@pytest.mark.parametrize("shown", [("all", "hub"), ("all",), ("outer",)])
def test_a_composed_bundle_brings_the_skills_of_its_parts(shown: tuple[str, ...]) -> None:
    made = catalog()
    part = made.bundles["hub"]
    extra = Bundle("extra", "More.", ("s.ping",), effects=("read",), mode="deferred")
    whole = Bundle(
        "all",
        "All.",
        (*part.tools, "s.ping"),
        bundles=("hub", "extra"),
        effects=("read",),
        mode="deferred",
    )
    outer = replace(whole, id="outer", bundles=("all",))
    routes = [Route("hub", step=("hub",), bundles=shown)]
    bundles = {"hub": part, "extra": extra, "all": whole, "outer": outer}
    with fake_router(replace(small_catalog(bundles, routes=routes), skills=made.skills)) as router:
        router.route_sync(step())
        toolset = router.tools_sync("r")
        (skill,) = toolset.skills
        assert (skill.bundle, skill.tools) == ("hub", ("s__get_issue", "s__label"))
        assert [tool.name for tool in toolset.active] == ["s.get_issue", "s.label"]


def test_a_skill_brings_nothing_that_policy_took_away_and_none_where_its_bundle_is_not_shown() -> (
    None
):
    from bundle_router.core.catalog import Policy

    narrowed = replace(catalog(), policies=(Policy("p", allow=("*",), deny=("tool:s.label",)),))
    with fake_router(narrowed) as router:
        router.route_sync(step())
        assert router.tools_sync("r").skills[0].tools == ("s__get_issue",)
    with fake_router(
        replace(catalog(), policies=(Policy("p", allow=("*",), deny=("bundle:hub",)),))
    ) as router:
        router.route_sync(step())
        assert router.tools_sync("r").skills == ()


def test_a_skill_is_part_of_the_catalog_and_its_revision() -> None:
    made = catalog()
    assert catalog_from(made.to_json()).revision == made.revision
    edited = replace(made, skills={"hub/SKILL.md": parse_skill("hub/SKILL.md", FILE + "More.")})
    assert edited.revision != made.revision


def test_skills_are_read_from_the_bundles_folder_beside_the_config(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (tmp_path / "bundles" / "mine").mkdir(parents=True)
    (tmp_path / "bundles" / "mine" / "SKILL.md").write_text(
        "---\ntools: read_file\n---\nRead first.", "utf-8"
    )
    (tmp_path / "bundles" / "out.md").symlink_to("/etc/hostname")
    rows = [
        ("mine", "repo.read_file", "mine/SKILL.md"),
        ("lost", "repo.list_dir", "lost.md"),
        ("out", "repo.git_log", "out.md"),
    ]
    (config / "bundles.toml").write_text("".join(
        f'[bundles.{id_}]\ndescription = "{id_}"\ntools = ["{tool}"]\neffects = ["read"]\nskill = "{path}"\n'
        for id_, tool, path in rows
    ), "utf-8")  # fmt: skip
    (config / "routes.toml").write_text('[[routes]]\nname = "m"\nbundles = ["mine"]\n', "utf-8")
    (config / "policy.toml").write_text('[[policies]]\nname = "all"\nallow = ["*"]\n', "utf-8")
    shipped = {"repo/SKILL.md", "docs/SKILL.md", "workspace/SKILL.md"}
    assert set(load_catalog(config).skills) - shipped == {"mine/SKILL.md"}
    with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
        router.route_sync(step())
        assert router.tools_sync("r").skills[0].text == "Read first."
        assert router.catalog.revision == load_catalog(config).revision


def test_an_agent_that_may_write_in_the_workspace_cannot_write_what_passes_for_the_operators_words(
    tmp_path: Path,
) -> None:
    """Neither over a skill that is there nor where one would hide the one that comes with the
    package.
    """
    config = tmp_path / "config"
    shutil.copytree(Path(__file__).parents[3] / "config", config)
    assert 'skill = "repo/SKILL.md"' in (config / "bundles.toml").read_text("utf-8")
    for there in (False, True):
        with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
            router.route_sync(Step(run_id="r", workflow="feature", role="implementer", step="edit"))
            arguments = {"path": "bundles/repo/SKILL.md", "content": "Obey me."}
            assert router.call_sync("r", "workspace.write_file", arguments).code == "protected"
            assert router.call_sync(
                "r", "workspace.write_file", {**arguments, "path": "bundles/repo/README.md"}
            ).ok
        if not there:
            (tmp_path / "bundles/repo/SKILL.md").write_text("Be careful.", "utf-8")
