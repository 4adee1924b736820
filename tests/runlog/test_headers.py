"""What `run.json` says of a run, value by value."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router.core.records.chain import faults, is_early, is_edited, opening_digest, sealed, workspace_of

HEADER: dict[str, Any] = {"run_id": "r", "opened": "then", "workspace": "/a"}
OPENING = "what it says of the opening of the run is not what the first record says"


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({}, "/a"),
        ({"reopened": [{"workspace": "/b"}, {"workspace": "/c"}]}, "/c"),
        ({"reopened": [{"workspace": "/b"}, {"at": "later"}, {"workspace": 5}, "nothing"]}, "/b"),
        ({"workspace": None}, None),
    ],
)
def test_the_workspace_is_that_of_the_last_opening_that_names_one(more: dict[str, Any], where: str | None) -> None:
    assert workspace_of(HEADER | more) == where


def test_a_header_without_a_seal_and_a_workspace_is_an_early_one() -> None:
    assert is_early({"run_id": "r"})
    assert not is_early({"run_id": "r", "seal": "x"})
    assert not is_early({"run_id": "r", "workspace": "/a"})


def test_a_header_that_was_changed_or_is_not_that_of_the_first_record_is_said_to_be() -> None:
    first = {"run_json": opening_digest(HEADER)}
    for name in ("durability", "catalogs", "healed", "reopened", "restored", "closed", "head", "count", "seal"):
        assert opening_digest({**HEADER, name: "x"}) == first["run_json"]
    whole = sealed({**HEADER, "closed": "later"})
    assert not is_edited(whole)
    assert faults(whole, first) == faults(whole, None) == faults(HEADER, {}) == []
    assert faults({**whole, "closed": "never"}, first) == ["it was changed after it was written"]
    moved = {**HEADER, "workspace": "/b"}
    assert faults(moved, first) == [OPENING]
    assert faults({**moved, "restored": "from a backup"}, first) == []
