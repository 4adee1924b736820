"""The address of a step: its words, its JSON, and the rows that are open to all."""

from __future__ import annotations

import pytest
from bundle_router.core.catalog import Route, step_address
from bundle_router.core.catalog.step_address import (
    PARTS,
    AddressPart,
    address_from,
    address_from_json,
    address_json,
    address_of,
    part_names,
)
from bundle_router.core.values import Address, Step

TEAM = AddressPart("team", label="squad")


@pytest.mark.parametrize(
    ("row", "is_open"),
    [
        (Route("r"), True),
        (Route("r", workflow=("*",), step=("a", "*")), True),
        (Route("r", role=("a",)), False),
        (Route("r", workflow=("*",), role=("a*",)), False),
    ],
)
def test_a_row_is_open_where_each_part_is_left_out_or_has_a_star(row: Route, is_open: bool) -> None:
    assert row.is_open is is_open
    assert row.covers(Address(("x", "y", "z"))) is is_open


def test_the_words_of_a_step_have_the_order_of_the_parts() -> None:
    step = Step(run_id="r", workflow="w", role="planner", step="plan", labels={"workflow": "no"})
    assert address_of(step) == ("w", "planner", "plan")
    assert str(address_of(step)) == "w / planner / plan"
    assert part_names() == "workflow, role and step"


def test_a_word_that_a_step_may_lack_is_written_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_address, "PARTS", (*PARTS, TEAM))
    fields = {"workflow": "w", "role": "", "step": "s"}
    bare, red = address_from(fields, {"team": "no"}), address_from(fields, {"squad": "red"})
    assert (bare, str(bare)) == (("w", "", "s", ""), "w / s")
    assert (red, str(red)) == (("w", "", "s", "red"), "w / s / red")
    assert address_json(bare) == fields
    assert address_json(red) == {**fields, "team": "red"}
    assert [address_from_json(address_json(one)) for one in (bare, red)] == [bare, red]
    with pytest.raises(KeyError, match="role"):
        address_from_json({"workflow": "w", "step": "s"})
    with pytest.raises(ValueError, match="shorter"):
        address_json(Address(("w", "r", "s")))


def test_only_a_word_from_a_label_may_be_missing() -> None:
    assert [part.is_optional for part in (*PARTS, TEAM)] == [False, False, False, True]
