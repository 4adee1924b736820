"""Case files: what is wrong in one is said as in a config file; what comes out otherwise, with its
line.
"""

from __future__ import annotations

from typing import Any

import pytest

WRONG = """\
[[cases]]
name = "short"
workflow = "feature"
role = "reviewer"
step = "review"
capabilites = ["binary:git"]
bundls = ["repo.readonly"]

[[cases]]
name = "long"

[[cases.steps]]
workflow = "feature"
role = "reviewer"
step = "review"
bundles = ["repo.readonly", "docs.fetch"]
source = "maping"

[[cases.steps]]
workflow = "feature"
role = 7
step = "review"
bundles = []
"""


def test_everything_wrong_in_a_case_file_is_said_with_line_key_and_nearest_name(shell: Any) -> None:
    (shell.folder / "cases.toml").write_text(WRONG, encoding="utf-8")
    said = shell("eval", "cases.toml", code=3).stderr
    for line in (
        "5 problems in the cases",
        "cases.toml:1: cases[0].bundles: is missing (add bundles = ...)",
        (
            "cases.toml:6: cases[0].capabilites: unknown key 'capabilites' (did you mean"
            " 'capabilities'?)"
        ),
        "cases.toml:7: cases[0].bundls: unknown key 'bundls' (did you mean 'bundles'?)",
        (
            "cases.toml:17: cases[1].steps[0].source: must be one of 'mapping', 'search', 'model',"
            " 'shortlist', 'default' or 'none', not 'maping' (did you mean 'mapping'?)"
        ),
        "cases.toml:21: cases[1].steps[1].role: must be text in quotes, not the number 7",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[cases]\n", "cases.toml:1:"),
        ("", "cases.toml: is empty"),
        ("cases = []\n", "cases.toml:1: cases: must not be empty"),
        ("# none\n", "cases: is missing"),
        ("[[casez]]\n", "cases.toml:1: casez: unknown key 'casez' (did you mean 'cases'?)"),
        ("cases = 3\n", "cases.toml:1: cases: must be a list"),
    ],
)
def test_a_file_without_cases_says_where(shell: Any, text: str, said: str) -> None:
    (shell.folder / "cases.toml").write_text(text, encoding="utf-8")
    assert said in shell("eval", "cases.toml", code=3).stderr


CASE = """\
# The third line is where the case begins.

[[cases]]
name = "a reviewer"
workflow = "feature"
role = "reviewer"
step = "review"
policy = {{ deny = ["tool:repo.git_log"] }}
bundles = [{bundles}]
left_out = [{left_out}]
"""


@pytest.mark.parametrize(
    ("bundles", "left_out", "said"),
    [
        ('"repo.readonly", "docs.fetch"', '"tool:repo.git_log: policy_denied"', ""),
        ('"repo.readonly", "docs.fetch"', '"repo.git_log"', ""),
        ('"repo.readonly", "docs.fetch"', '"bundle:repo.git_log"', "cases.toml:3: a reviewer, step 1: left out "
         "'repo.git_log': expected any code, got not left out"),
        ('"repo.readonly", "docs.fetch"', '"repo.git_log: not_allowed"', "expected not_allowed, got policy_denied"),
        ('"repo.readnly", "docs.fetch"', "", "(no bundle is called 'repo.readnly'; did you mean 'repo.readonly'?)"),
    ],
)  # fmt: skip
def test_what_comes_out_otherwise_is_said_with_its_line(
    shell: Any, bundles: str, left_out: str, said: str
) -> None:
    (shell.folder / "cases.toml").write_text(
        CASE.format(bundles=bundles, left_out=left_out), encoding="utf-8"
    )
    done = shell("eval", "cases.toml", code=1 if said else 0)
    assert said in done.stdout


def test_a_code_that_is_none_is_a_mistake_in_the_file(shell: Any) -> None:
    (shell.folder / "cases.toml").write_text(
        CASE.format(bundles="", left_out='"repo.git_log: policy_denyed", ": x"'), encoding="utf-8"
    )
    said = shell("eval", "cases.toml", code=3).stderr
    assert (
        "cases.toml:10: cases[0].left_out[0]: 'policy_denyed' is not a code (did you mean"
        " 'policy_denied'?)" in said
    )
    assert "cases.toml:10: cases[0].left_out[1]: ': x' names nothing" in said


def test_a_bundle_and_a_tool_of_one_name_are_told_apart(shell: Any) -> None:
    """The bundle `workspace.exec` stays, since its other tools may be seen; the tool
    `workspace.exec` does not.
    """
    (shell.folder / "cases.toml").write_text(
        '[[cases]]\nname = "n"\nworkflow = "feature"\nrole = "implementer"\nstep = "s"\npolicy = {'
        ' deny = ["tool:workspace.exec"] }\nbundles = ["repo.readonly", "workspace.exec"]\nleft_out'
        ' = ["tool:workspace.exec: policy_denied", "bundle:workspace.exec"]\n',
        encoding="utf-8",
    )
    done = shell("eval", "cases.toml", code=1)
    assert done.stdout.count("left out 'workspace.exec': expected any code, got not left out") == 1
    assert done.stdout.count("step 1") == 1, "the tool's row is as expected"


def test_a_policy_that_names_what_no_config_has_is_said_and_not_taken_for_a_narrowing(
    shell: Any,
) -> None:
    (shell.folder / "cases.toml").write_text(
        '[[cases]]\nname = "typo"\nworkflow = "feature"\nrole = "reviewer"\nstep = "review"\n'
        'bundles = ["repo.readonly", "docs.fetch"]\n[cases.policy]\ndeny = ["bundle:docs.fetsh"]\n',
        encoding="utf-8",
    )
    said = shell("eval", "cases.toml", code=1).stdout
    assert "docs.fetsh" in said
    assert "docs.fetch" in said
