"""The values of a privilege diff, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bundle_router.core.catalog.name_classes import ANY, NameClass, label_of
from bundle_router.core.catalog.step_address import PARTS
from bundle_router.core.exposure.placements import Place
from bundle_router.core.values import Address, Effect
from bundle_router.core.values.canonical import digest_of
from bundle_router.review.config_edits import ConfigEdit

Kind = Literal["widening", "narrowing", "neutral"]
Reach = Literal["permitted", "stays", "picked", "given"]
"""How a permitted bundle comes to an address: not at all (`permitted`); it may stay from another
step of the run or from the parent (`stays`); search, a model, a shortlist or the default may pick
it (`picked`); it is always shown (`given`).
"""
Aspect = Literal[
    "may call",
    "comes in",
    "requires",
    "can be denied as",
    "under the id",
    "shown",
    "holds everywhere",
]
"""The subject of a row.

`holds everywhere`: independent of the address; its `subject` is a config key.
"""

REACH_RANK: Final[Mapping[Reach, int]] = {"permitted": 0, "stays": 1, "picked": 2, "given": 2}
"""Rank of each reach.

Picked and given rank alike, because the difference is behaviour, not privilege.
"""


REACH_WORDS: Final[Mapping[str, str]] = {
    "permitted": "is permitted and nothing brings it here",
    "stays": "can stay from an earlier step of the run",
    "picked": "can be chosen by search, the model or the default",
    "given": "is always shown at these steps",
}
EFFECT_SIGNS: Final[Mapping[Effect, str]] = {
    "exec": "EXECUTES",
    "write": "WRITES",
    "network": "NETWORK",
}
"""Signs of the effects that must be seen at a glance."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Names of each part of an address, in all combinations."""

    parts: tuple[tuple[str, ...], ...]
    """The labels of the classes of names, for each part in the order of `PARTS`."""

    def named(self) -> dict[str, tuple[str, ...]]:
        """Return the labels by the names of their parts."""
        return {part.name: labels for part, labels in zip(PARTS, self.parts, strict=True)}

    def __str__(self) -> str:
        return " × ".join(", ".join(labels) for labels in self.parts)


@dataclass(frozen=True, slots=True)
class PrivilegeRow:
    """One thing that one of two catalogs allows and the other does not, or (`neutral`) allows
    differently.

    `subject`: the id of a bundle, or the path of a config key. `tools`: the tools concerned, or
    globs over unlisted ones. `before` and `after`: the reach of the bundle, or the value of the
    key. `shown`: how the tools are presented. `addresses`: empty if it holds everywhere. `edits`:
    the edits behind it, if they are known.
    """

    kind: Kind
    aspect: Aspect
    subject: str
    tools: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    effects: tuple[Effect, ...] = ()
    servers: tuple[str, ...] = ()
    shown: tuple[Place, ...] = ()
    addresses: tuple[Addresses, ...] = ()
    edits: tuple[ConfigEdit, ...] = ()
    note: str = ""


def sentence(row: PrivilegeRow) -> str:
    """Return the row as a sentence for people, without its addresses and edits."""
    change = _change_words(row)
    if not row.note or row.aspect == "holds everywhere":
        return change
    return f"{change} ({row.note})"


def _change_words(row: PrivilegeRow) -> str:
    tools = ", ".join(row.tools)
    match row.aspect:
        case "may call":
            return _call_words(row, tools)
        case "comes in":
            return f"{row.subject} {REACH_WORDS[row.after]}; before, it {REACH_WORDS[row.before]}"
        case "requires":
            return f"{row.subject} requires {row.after}; before, {row.before}"
        case "can be denied as":
            return f"{row.subject} can be denied by a step as {row.after}; before, as {row.before}"
        case "shown":
            return f"{tools} of {row.subject}: shown {row.after}; before, {row.before}"
    if tools:
        return f"{row.subject}: {row.note}: {tools}"
    if row.before and row.after:
        return f"{row.subject}: {row.before} → {row.after}"
    return f"{row.subject}: {row.after or f'no longer {row.before}'}"


def _call_words(row: PrivilegeRow, tools: str) -> str:
    if row.kind == "narrowing":
        reach = REACH_WORDS.get(row.before, "")
        return f"may no longer call {tools} of {row.subject} (before, it {reach})"
    reach = REACH_WORDS.get(row.after, "")
    return f"may call {tools} of {row.subject} ({reach}; shown {', '.join(row.shown)})"


def _covers(address: Addresses, labels: Sequence[str]) -> bool:
    """Return whether the addresses include the one of these labels of workflow, role and step."""
    return all(
        names == (ANY,) or label in names
        for label, names in zip(labels, address.parts, strict=True)
    )


@dataclass(frozen=True, slots=True)
class PrivilegeDiff:
    """What the new catalog allows that the old one does not, and the reverse.

    `address_count`: addresses that were checked; `class_counts`: the number of classes of each
    part; `classes`: the classes that patterns make. `complete` is false if there were too many
    names to check all: then nobody may say that nothing widened, and `widens` is true.
    """

    old_revision: str
    new_revision: str
    rows: tuple[PrivilegeRow, ...] = ()
    address_count: int = 0
    class_counts: tuple[int, ...] = (0,) * len(PARTS)
    complete: bool = True
    classes: tuple[tuple[NameClass, ...], ...] = ()

    def of(self, kind: Kind) -> tuple[PrivilegeRow, ...]:
        """Return the rows of that kind."""
        return tuple(row for row in self.rows if row.kind == kind)

    def counts_in_words(self) -> str:
        """Return how many classes of names each part has: `2 kinds of workflow, 1 of role`."""
        first, *rest = zip(PARTS, self.class_counts, strict=True)
        words = [f"{first[1]} kinds of {first[0].name}"]
        return ", ".join([*words, *(f"{count} of {part.name}" for part, count in rest)])

    def at(self, address: Address) -> tuple[PrivilegeRow, ...]:
        """Return the rows that concern a step at the address, without those that hold
        everywhere.
        """
        labels = [
            label_of(word, classes) for word, classes in zip(address, self.classes, strict=True)
        ]
        return tuple(
            row for row in self.rows if any(_covers(address, labels) for address in row.addresses)
        )

    @property
    def widens(self) -> bool:
        """Whether anything widened, or may have widened."""
        return not self.complete or any(row.kind == "widening" for row in self.rows)

    @property
    def widening_digest(self) -> str:
        """Digest of the widening rows, which an acknowledgement names."""
        return digest_of([self.complete, [row_json(row) for row in self.of("widening")]])

    def to_json(self, places: Mapping[tuple[str, str], str] = {}) -> dict[str, Any]:
        """Return the diff as JSON values.

        `places`: file and line of each entry, by `ConfigEdit.place`.
        """
        return {
            "old_revision": self.old_revision,
            "new_revision": self.new_revision,
            "widens": self.widens,
            "complete": self.complete,
            "addresses": self.address_count,
            "names_told_apart": {
                part.name: count for part, count in zip(PARTS, self.class_counts, strict=True)
            },
            "rows": [row_json(row, places) for row in self.rows],
        }


def row_json(row: PrivilegeRow, places: Mapping[tuple[str, str], str] = {}) -> dict[str, Any]:
    """Return a row as JSON values."""
    return {
        "kind": row.kind,
        "aspect": row.aspect,
        "subject": row.subject,
        "tools": list(row.tools),
        "before": row.before,
        "after": row.after,
        "effects": list(row.effects),
        "servers": list(row.servers),
        "shown": list(row.shown),
        "addresses": [
            {name: list(labels) for name, labels in one.named().items()} for one in row.addresses
        ],
        "edits": [{"edit": str(edit), "place": places.get(edit.place)} for edit in row.edits],
        "note": row.note,
    }


def widening_words(diff: PrivilegeDiff) -> tuple[str, ...]:
    """Return each widening row with its addresses, as it is recorded."""
    words = [" · ".join((sentence(row), *map(str, row.addresses))) for row in diff.of("widening")]
    return (
        *words,
        *(() if diff.complete else ("there are too many names to look at all of them",)),
    )
