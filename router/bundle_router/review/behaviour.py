"""The behavioural diff: recorded decisions under another config, grouped by the edits that changed
them.

Rules:
1. A change is a bundle or a tool that a decision gains or loses, a question that would be asked
   anew, or another order.
2. Its cause is found by trial, with the deciding functions: each edit is applied alone to the
   config that the decision was taken under. Edits that cause the change alone are each a cause. If
   there are none, the cause is, together, the edits without which the new config would not cause
   it; else all that were tried.
3. Only edits that bear on the decision are tried, at most `MAX_TRIED`. Beyond that the cause is
   unknown.
4. Memory is bounded by the edits and their bundles and tools, not by the number of decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import AddressedRow, address_json, address_of
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.replayed import ReplayedDecision, replay_under
from bundle_router.review.config_edits import ConfigEdit, config_edits, rows_named, with_edits

MAX_TRIED: Final = 40
_MAX_REMEMBERED: Final = 20_000
_MAX_CATALOGS: Final = 200

ChangeKind = Literal[
    "gained bundle", "lost bundle", "gained tool", "lost tool", "asks anew", "other order"
]
CHANGE_KINDS: Final[tuple[ChangeKind, ...]] = (
    "gained bundle",
    "lost bundle",
    "gained tool",
    "lost tool",
    "asks anew",
    "other order",
)
Changed = tuple[ChangeKind, str]
"""The kind of change, and the bundle or tool (empty if neither)."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The edits that caused a change: any of them alone, or (`together`) only all of them.

    `known` is false if there were too many to try.
    """

    edits: tuple[ConfigEdit, ...]
    together: bool = False
    known: bool = True


@dataclass(slots=True)
class CauseGroup:
    """The decisions that one cause changed: their number, their gains and losses, and the first
    few.
    """

    cause: Cause
    decisions: int = 0
    changes: Counter[Changed] = field(default_factory=Counter)
    examples: list[ReplayedDecision] = field(default_factory=list)

    def counts_by_name(self, kind: ChangeKind) -> list[tuple[str, int]]:
        """Return the bundles or tools with this kind of change and their numbers of decisions, most
        first.
        """
        rows = [(name, count) for (change, name), count in self.changes.items() if change == kind]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def to_json(self, places: Mapping[tuple[str, str], str]) -> dict[str, Any]:
        """Return this as JSON values. `places`: file and line by `ConfigEdit.place`."""
        return {
            "edits": [
                {"edit": str(edit), "place": places.get(edit.place)} for edit in self.cause.edits
            ],
            "together": self.cause.together,
            "known": self.cause.known,
            "decisions": self.decisions,
            **{
                kind.replace(" ", "_"): [
                    {"id": name, "decisions": count} for name, count in self.counts_by_name(kind)
                ]
                for kind in CHANGE_KINDS
                if self.counts_by_name(kind)
            },
            "examples": [
                {
                    "run_id": example.run_id,
                    "seq": example.seq,
                    **address_json(example.address),
                }
                for example in self.examples
            ],
        }


@dataclass(slots=True)
class Behaviour:
    """The results of replaying recorded decisions.

    `examples_kept`: maximum examples of each group.
    """

    examples_kept: int = 3
    counts: Counter[str] = field(default_factory=Counter)
    groups: dict[Cause, CauseGroup] = field(default_factory=dict)

    @property
    def decisions(self) -> int:
        """Number of decisions that were replayed."""
        return self.counts.total()

    @property
    def differing(self) -> int:
        """Number of decisions that changed."""
        return self.decisions - self.counts["identical"] - self.counts["same_bundles"]

    def ordered_groups(self) -> list[CauseGroup]:
        """Return the groups, the largest first."""
        return sorted(
            self.groups.values(),
            key=lambda group: (-group.decisions, [str(e) for e in group.cause.edits]),
        )

    def add(self, replayed: ReplayedDecision, causes: Mapping[Changed, Cause]) -> None:
        """Count a decision, under each cause once."""
        self.counts[replayed.outcome] += 1
        by_cause: dict[Cause, list[Changed]] = {}
        for change, cause in causes.items():
            by_cause.setdefault(cause, []).append(change)
        for cause, changes in by_cause.items():
            group = self.groups.setdefault(cause, CauseGroup(cause))
            group.decisions += 1
            group.changes.update(changes)
            if len(group.examples) < self.examples_kept:
                group.examples.append(replayed)

    def merge(self, other: Behaviour) -> None:
        """Add another one's counts."""
        self.counts += other.counts
        for cause, other_group in other.groups.items():
            group = self.groups.setdefault(cause, CauseGroup(cause))
            group.decisions += other_group.decisions
            group.changes += other_group.changes
            group.examples += other_group.examples[: self.examples_kept - len(group.examples)]

    def to_json(self, places: Mapping[tuple[str, str], str]) -> dict[str, Any]:
        """Return counts and groups as JSON values."""
        return {
            "counts": dict(self.counts),
            "groups": [group.to_json(places) for group in self.ordered_groups()],
        }


def changes_of(replayed: ReplayedDecision) -> tuple[Changed, ...]:
    """Return the changes of a decision when it is replayed (rule 1)."""
    if replayed.outcome in ("identical", "same_bundles"):
        return ()
    changes: list[Changed] = [("gained bundle", name) for name in replayed.gained]
    changes += [("lost bundle", name) for name in replayed.lost]
    changes += [("gained tool", name) for name in replayed.gained_tools]
    changes += [("lost tool", name) for name in replayed.lost_tools]
    if replayed.outcome == "asks_anew":
        changes.append(("asks anew", ""))
    return tuple(changes) or (("other order", ""),)


class CauseFinder:
    """Finds the edits between two catalogs that changed a decision taken under the old one."""

    def __init__(self, old: Catalog, new: Catalog) -> None:
        self._old = old
        self._new = new
        self.edits = config_edits(old, new)
        self._rows = {
            "route": (rows_named(old.routes), rows_named(new.routes)),
            "policy": (rows_named(old.policies), rows_named(new.policies)),
        }
        self._edited: dict[tuple[ConfigEdit, ...], Plans] = {}
        self._old_plans = Plans(old)
        self._remembered: dict[object, Mapping[Changed, Cause]] = {}

    def causes(self, record: DecisionRecord, replayed: ReplayedDecision) -> Mapping[Changed, Cause]:
        """Return the cause of each change of a decision. Similar decisions are examined once."""
        changes = changes_of(replayed)
        if not changes:
            return {}
        step = record.step
        past = record.decision
        active = tuple((entry.id, entry.origin) for entry in past.before.entries)
        key = (
            address_of(step),
            step.policy,
            record.facts.grants,
            record.facts.seen,
            active,
            past.route,
            past.source,
            tuple(past.reachable_ids),
            changes,
        )
        causes = self._remembered.get(key)
        if causes is None:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            causes = self._remembered[key] = self._find_causes(record, changes)
        return causes

    def _find_causes(
        self, record: DecisionRecord, changes: tuple[Changed, ...]
    ) -> dict[Changed, Cause]:
        edits = tuple(edit for edit in self.edits if self._bears_on(edit, record))
        if len(edits) > MAX_TRIED:
            return dict.fromkeys(changes, Cause(edits[:MAX_TRIED], together=True, known=False))
        if len(edits) == 1:
            return dict.fromkeys(changes, Cause(edits))

        alone = {edit: self._changes_with(record, (edit,)) for edit in edits}
        causes = {}
        for change in changes:
            enough = tuple(edit for edit in edits if change in alone[edit])
            if enough:
                causes[change] = Cause(enough)
        if len(causes) == len(changes):
            return causes

        remaining = {edit: self._changes_without(record, edit) for edit in edits}
        for change in changes:
            if change not in causes:
                needed = tuple(edit for edit in edits if change not in remaining[edit])
                causes[change] = Cause(needed or edits, together=True, known=bool(needed))
        return causes

    def _changes_without(self, record: DecisionRecord, edit: ConfigEdit) -> frozenset[Changed]:
        """Return what all edits but one change."""
        others = tuple(other for other in self.edits if other != edit)
        return self._changes_with(record, others)

    def _changes_with(
        self, record: DecisionRecord, edits: tuple[ConfigEdit, ...]
    ) -> frozenset[Changed]:
        edited = self._edited.get(edits)
        if edited is None:
            if len(self._edited) >= _MAX_CATALOGS:
                self._edited.clear()
            edited = Plans(with_edits(self._old, self._new, edits))
            self._edited[edits] = edited
        try:
            return frozenset(changes_of(replay_under(record, edited, self._old_plans)))
        except KeyError:  # half an edit: a bundle without one of its parts
            return frozenset()

    def _bears_on(self, edit: ConfigEdit, record: DecisionRecord) -> bool:
        """Return whether the edit may concern the decision: a row has to cover the step or an
        ancestor.
        """
        if edit.table not in self._rows:
            return True
        addresses = [address_of(record.step)]
        addresses += [grant.address for grant in record.facts.grants]
        return any(row.covers(each) for row in self._versions(edit) for each in addresses)

    def _versions(self, edit: ConfigEdit) -> Iterator[AddressedRow]:
        for rows in self._rows[edit.table]:
            if edit.name in rows:
                yield rows[edit.name]


def edited_words(cause: Cause, places: Mapping[tuple[str, str], str]) -> str:
    """Return a cause in words, each edit with its file and line if known."""
    if not cause.known and len(cause.edits) >= MAX_TRIED:
        return f"more than {MAX_TRIED} edits bear on it"
    words = list(edits_as_words(cause.edits, places))
    if not words:
        return "nothing in the config: the program itself decides otherwise"
    text = (" and " if cause.together else ", or ").join(words)
    return text if cause.known else f"{text}, as far as can be told"


def edits_as_words(
    edits: Iterable[ConfigEdit], places: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    """Yield each edit, with its file and line if known."""
    for edit in edits:
        place = places.get(edit.place)
        yield f"{edit} ({place})" if place else str(edit)
