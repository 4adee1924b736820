"""Rows by which a role may have a bundle, and gets it: as text, with comments kept."""

from __future__ import annotations

import pytest
from bundle_router.core.catalog import Catalog
from bundle_router.core.config.config_text import from_bytes
from bundle_router.core.config.resolve import resolve
from bundle_router.errors import RequestError
from bundle_router.review.allowance import POLICY, ROUTES, BundleAllowance, with_allowance

SERVERS = '[servers.mail]\nurl = "https://mail.example/mcp"\n'
BUNDLES = """\
[bundles."mail.read"]
description = "Read mail."
tools = ["mail.get"]
effects = ["read", "network"]
[bundles."mail.risky"]
description = "Send mail."
tools = ["mail.send"]
effects = ["write", "network"]
"""


def catalog_of(texts: dict[str, str]) -> Catalog:
    files = {"servers.toml": SERVERS, "bundles.toml": BUNDLES, "router.toml": "#\n", **texts}
    resolved = resolve(
        [from_bytes(name, name, text.encode(), "project") for name, text in files.items()], {}
    )
    assert [str(p) for p in resolved.report.problems() if p.level == "error"] == []
    return resolved.catalog


def allowed(
    policy: str, routes: str, bundle: str = "mail.read", role: str = "clerk", workflow: str = ""
) -> dict[str, str]:
    """Return the edited texts, which have to be a valid config."""
    texts = {POLICY: policy, ROUTES: routes}
    edited = with_allowance(catalog_of(texts), texts, BundleAllowance(bundle, role, workflow))
    catalog_of({**texts, **edited})
    return edited


def test_a_role_that_no_row_limits_gets_rows_of_its_own_after_what_is_there() -> None:
    edited = allowed("# ours\n", "# ours, too", workflow="office")
    assert edited == {
        POLICY: (
            '# ours\n\n[[policies]]\nname = "what clerk may have"\nworkflow = "office"\n'
            'role = "clerk"\nallow = ["bundle:mail.read"]\n'
        ),
        ROUTES: (
            '# ours, too\n\n[[routes]]\nname = "what clerk gets"\nworkflow = "office"\n'
            'role = "clerk"\nbundles = ["mail.read"]\n'
        ),
    }


def test_rows_of_the_role_are_extended_in_their_own_layout() -> None:
    policy = """\
[[policies]]
name = "clerks"  # since May
role = "clerk"
allow = [
  "bundle:mail.risky",  # they send
  # nothing else
]
"""
    routes = """\
[[routes]]
name = "first"
role = "clerk"
step = "look"
bundles = []  # none, yet
[[routes]]
name = "second"
role = "clerk"
bundles = ["mail.risky"] # all else
"""
    edited = allowed(policy, routes)
    assert edited[POLICY] == policy.replace(
        "# nothing else\n", '# nothing else\n  "bundle:mail.read",\n'
    )
    assert edited[ROUTES] == routes.replace("[]  # none", '["mail.read"]  # none').replace(
        '["mail.risky"] #', '["mail.risky", "mail.read"] #'
    )


def test_a_last_item_without_a_comma_gets_one() -> None:
    policy = '[[policies]]\nname = "p"\nrole = "clerk"\nallow = [\n\t"bundle:docs.*"  # a, b\n]\n'
    assert allowed(policy, "#\n")[POLICY] == policy.replace(
        '"bundle:docs.*"  # a, b\n', '"bundle:docs.*",  # a, b\n\t"bundle:mail.read",\n'
    )


def test_a_route_that_only_asks_gets_its_first_bundle() -> None:
    routes = '[[routes]]\nname = "r" # mine\nrole = "clerk"\nask = ["mail.*"]\n'
    assert allowed("#\n", routes)[ROUTES] == routes.replace(
        '"r" # mine', '"r" # mine\nbundles = ["mail.read"]'
    )


def test_a_policy_row_of_several_roles_is_split_so_that_no_other_role_gets_anything() -> None:
    policy = """\
[[policies]]
name = "office"
role = ["clerk", "guard"]  # both
allow = ["bundle:mail.risky"]
effects = ["read", "write", "network"]
"""
    assert allowed(policy, "#\n")[POLICY] == (
        policy.replace('["clerk", "guard"]', '"guard"')
        + '\n[[policies]]\nname = "office (clerk)"\nrole = "clerk"\n'
        + 'allow = ["bundle:mail.risky", "bundle:mail.read"]\n'
        + 'effects = ["read", "write", "network"]\n'
    )


def test_a_new_route_comes_before_the_one_that_covers_the_role_and_gives_what_it_gives() -> None:
    routes = """\
# The routes.

[[routes]]
name = "look"
step = "look"
bundles = ["mail.risky"]

# everybody
[[routes]]
name = "all"
bundles = ["mail.risky"]
ask = ["mail.*"]
"""
    edited = allowed("#\n", routes)[ROUTES]
    new = '[[routes]]\nname = "what clerk gets"\nrole = "clerk"\n'
    new += 'bundles = ["mail.risky", "mail.read"]\nask = ["mail.*"]\n\n'
    assert edited == routes.replace("# everybody\n", new + "# everybody\n")


def test_what_is_allowed_already_needs_no_edit() -> None:
    policy = '[[policies]]\nname = "p"\nallow = ["bundle:mail.*"]\n'
    routes = '[[routes]]\nname = "r"\nbundles = ["mail.read"]\n'
    assert allowed(policy, routes) == {}


def test_a_bundle_that_is_only_permitted_is_found_by_search() -> None:
    texts = {
        POLICY: "# ours\n",
        ROUTES: '[[routes]]\nname = "r"\nrole = "clerk"\nbundles = ["mail.risky"]\n',
    }
    allowance = BundleAllowance("mail.read", "clerk", routed=False)
    assert with_allowance(catalog_of(texts), texts, allowance) == {
        POLICY: (
            '# ours\n\n[[policies]]\nname = "what clerk may have"\nrole = "clerk"\n'
            'allow = ["bundle:mail.read"]\n'
        )
    }


def test_an_unknown_bundle_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match="no bundle is called") as caught:
        allowed("#\n", "#\n", bundle="mail.raed")
    assert caught.value.advice == "did you mean 'mail.read'?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('deny = ["bundle:mail.*"]', "'p' denies it"),
        ('effects = ["read"]', "'p' permits no bundle with the effect 'network'"),
        ('min_trust = "trusted"', "'p' asks for trusted servers"),
        ('allow = ["bundle:mail.risky"]', "'p' is for more than role 'clerk', and limits it"),
    ],
)
def test_a_row_that_would_keep_the_bundle_out_is_named(row: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        allowed(f'[[policies]]\nname = "p"\n{row}\n', "#\n")


@pytest.mark.parametrize("role", ['["c*", "guard"]', '["clerk", "g*"]', '["clerk", # x\n"guard"]'])
def test_a_row_that_can_not_be_split_is_named(role: str) -> None:
    policy = f'[[policies]]\nname = "p"\nrole = {role}\nallow = ["bundle:mail.risky"]\n'
    with pytest.raises(RequestError, match="'p' is for more than role 'clerk'"):
        allowed(policy, "#\n")


def test_one_workflow_of_a_row_for_all_can_not_be_taken_out_of_it() -> None:
    policy = '[[policies]]\nname = "p"\nrole = "clerk"\nallow = ["bundle:mail.risky"]\n'
    with pytest.raises(
        RequestError, match="'p' is for more than role 'clerk' of workflow 'office'"
    ):
        allowed(policy, "#\n", workflow="office")


@pytest.mark.parametrize(("role", "workflow"), [("", ""), ("c*", ""), ("clerk", "office?")])
def test_globs_are_left_to_people(role: str, workflow: str) -> None:
    with pytest.raises(RequestError, match="without globs"):
        allowed("#\n", "#\n", role=role, workflow=workflow)


def test_comments_in_an_empty_list_stay() -> None:
    routes = """\
[[routes]]
name = "mail"
role = "clerk"
bundles = [ # nothing
  # so far
]
"""
    assert (
        allowed("#\n", routes)[ROUTES]
        == """\
[[routes]]
name = "mail"
role = "clerk"
bundles = [ # nothing
  # so far
  "mail.read",
]
"""
    )


def test_a_text_over_several_lines_whose_last_one_looks_like_a_comment_is_not_cut() -> None:
    routes = """\
[[routes]]
role = "boss"
bundles = ["mail.risky"]
name = \"\"\"
# of the boss\"\"\"
[[routes]]
name = "all"
bundles = ["mail.risky"]
"""
    assert (
        allowed("#\n", routes)[ROUTES]
        == """\
[[routes]]
role = "boss"
bundles = ["mail.risky"]
name = \"\"\"
# of the boss\"\"\"
[[routes]]
name = "what clerk gets"
role = "clerk"
bundles = ["mail.risky", "mail.read"]

[[routes]]
name = "all"
bundles = ["mail.risky"]
"""
    )


@pytest.mark.parametrize(
    ("policy", "routes", "file"),
    [
        ("policies = []", "#\n", "policy.toml"),
        ("#\n", 'routes = [{ name = "all", bundles = ["mail.risky"] }]', "routes.toml"),
    ],
)
def test_rows_in_one_list_are_not_edited(policy: str, routes: str, file: str) -> None:
    with pytest.raises(RequestError, match=f"the rows of {file} are one list"):
        allowed(policy, routes)
