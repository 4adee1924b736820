"""What `run.json` says of a run, value by value."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router.core.records.chain import Head, RepairedTail
from bundle_router.core.records.run_header import RunHeader, lost_header

FIELDS: dict[str, Any] = {"run_id": "r", "opened": "then", "workspace": "/a"}
OPENING = "does not say of the opening of the run what the first record says"


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({}, "/a"),
        ({"reopened": [{"workspace": "/b"}, {"workspace": "/c"}]}, "/c"),
        ({"reopened": [{"workspace": "/b"}, {"at": "later"}, {"workspace": 5}, "nothing"]}, "/b"),
        ({"workspace": None}, None),
    ],
)
def test_the_workspace_is_that_of_the_last_opening_that_names_one(
    more: dict[str, Any], where: str | None
) -> None:
    assert RunHeader(FIELDS | more).last_workspace == where


def test_a_header_without_a_seal_and_a_workspace_is_an_early_one() -> None:
    assert RunHeader({"run_id": "r"}).is_early
    assert not RunHeader({"run_id": "r", "seal": "x"}).is_early
    assert not RunHeader({"run_id": "r", "workspace": "/a"}).is_early


def test_a_header_that_was_changed_or_is_not_that_of_the_first_record_is_said_to_be() -> None:
    header = RunHeader(FIELDS)
    first = {"run_json": header.opening_digest}
    for name in (
        "durability",
        "catalogs",
        "healed",
        "reopened",
        "restored",
        "closed",
        "head",
        "count",
        "seal",
    ):
        assert RunHeader({**FIELDS, name: "x"}).opening_digest == first["run_json"]
    whole = header.end("later", Head(1, "x")).sealed()
    assert not whole.is_edited
    assert whole.faults("r", first) == whole.faults("r", None) == header.faults("r", {}) == []
    assert RunHeader({**whole.fields, "closed": "never"}).faults("r", first) == [
        "was changed after it was written"
    ]
    moved = {**FIELDS, "workspace": "/b"}
    assert RunHeader(moved).faults("r", first) == [OPENING]
    assert RunHeader(moved).restore("from a backup").faults("r", first) == [OPENING]
    assert header.restore("from memory").faults("r", first) == []
    decided = {
        "type": "route.decided",
        "catalog_revision": "sha256:1",
        "decision_id": "r.ab.0",
        "step": {},
    }
    rebuilt = lost_header("r", "from the records", [{**first, **decided}])
    assert rebuilt.faults("r", {**first, **decided}) == []
    assert rebuilt.faults("r", {**first, **decided, "step": {"parent_run_id": "p"}}) == [OPENING]
    assert header.faults("other", first) == ["belongs to run 'r'"]
    assert RunHeader({**FIELDS, "closed": "later"}).faults("r", first) == [
        "says the run was closed, and not with how many records"
    ]


def test_a_header_changes_only_in_what_may_change() -> None:
    begun = RunHeader({"catalog_revision": "sha256:1"}).begin(
        "r", opened="now", nonce="ab", durability="disk"
    )
    assert [(one.revision, one.file) for one in begun.catalogs] == [("sha256:1", "catalog.json")]
    later = (
        begun.with_catalogs(["sha256:2"])
        .with_healed([RepairedTail("a", "b", 3)])
        .end("then", Head(2, "x"))
    )
    assert later.catalogs[1].file == "catalog-2.json"
    assert later.healed == (RepairedTail("a", "b", 3),)
    assert (later.closed, later.head) == ("then", Head(2, "x"))
    assert (later.reopen().closed, later.reopen().head) == ("", None)
    assert (
        later.opening_digest
        == begun.opening_digest
        == later.reopen().restore("again").opening_digest
    )


def test_a_field_that_is_not_of_its_type_reads_as_absent() -> None:
    damaged = RunHeader(
        {
            "run_id": 5,
            "catalogs": "none",
            "healed": [7],
            "closed": "then",
            "count": "two",
            "head": None,
        }
    )
    assert (damaged.run_id, damaged.catalogs, damaged.healed, damaged.head) == ("", (), (), None)


def test_a_lost_header_says_what_the_records_say() -> None:
    step = {
        "type": "route.decided",
        "step": {"parent_run_id": "p"},
        "catalog_revision": "c",
        "decision_id": "r.ab.1",
    }
    found = lost_header("r", "now", [{"type": "call.started"}, step])
    assert (found.run_id, found.parent_run_id, found.catalog_revision, found.nonce) == (
        "r",
        "p",
        "c",
        "ab",
    )
    assert (found.restored, found.names_parent) == ("now", True)
