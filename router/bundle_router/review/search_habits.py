"""How often agents search for tools: where one does so at nearly every step, it should be shown
what it finds. Pure.

Rules:
1. Only `search_tools` counts, once a step, whatever it found.
2. A role of a workflow searches at every turn when it searched in `EVERY_TURN` of at least
   `FEWEST_STEPS` recorded steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.records.read_model import Tally
from bundle_router.review.learning.recorded_steps import PastStep

EVERY_TURN: Final = 0.8
"""Share of steps with a search from which on it is a habit."""
FEWEST_STEPS: Final = 5
"""Steps below which nothing is said of a habit."""
BUNDLES_NAMED: Final = 5
"""Maximum bundles that are named as those it called then."""


@dataclass(frozen=True, slots=True)
class SearchHabit:
    """How often one role of a workflow searched for tools."""

    workflow: str
    role: str
    steps: int
    """Its recorded steps."""
    searched: int
    """Those in which it called `search_tools`."""
    searches: int
    """Its calls of `search_tools`, several a step included."""
    then_called: tuple[tuple[str, int], ...] = ()
    """The bundles that it called in steps with a search, with the number of these steps, most
    first. Empty where they were not counted.
    """

    @property
    def share(self) -> float:
        """The share of steps with a search."""
        return self.searched / self.steps

    @property
    def at_every_turn(self) -> bool:
        """Whether this is a habit (rule 2)."""
        return self.steps >= FEWEST_STEPS and self.share >= EVERY_TURN

    @property
    def who(self) -> str:
        """The workflow and the role, for tables and sentences."""
        return f"{self.workflow or '(none)'} / {self.role or '(none)'}"

    @property
    def remedy(self) -> str:
        """What to do about it, in a sentence; "" unless it searches at every turn."""
        if not self.at_every_turn:
            return ""
        if self.then_called:
            named = ", ".join(f"{bundle} ({steps})" for bundle, steps in self.then_called)
            bundles = f"the bundles that it called then: {named}"
        else:
            bundles = "the bundles that it calls then (`bundle-router learn` names them)"
        return (
            f"{self.who} searched in {self.searched:,} of {self.steps:,} steps, and each search"
            f" costs a turn. Show {bundles}: name them in a route of these steps, and where they"
            ' are named already, set their `mode` to "direct"'
        )

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {
            "workflow": self.workflow,
            "role": self.role,
            "steps": self.steps,
            "searched": self.searched,
            "searches": self.searches,
            "then_called": [
                {"bundle": bundle, "steps": steps} for bundle, steps in self.then_called
            ],
            "at_every_turn": self.at_every_turn,
            "remedy": self.remedy,
        }


@dataclass(slots=True)
class _Counts:
    steps: int = 0
    searched: int = 0
    searches: int = 0
    called: Counter[str] = field(default_factory=Counter)


def search_habits(past: Iterable[PastStep]) -> tuple[SearchHabit, ...]:
    """Return the habits of those who searched at all, the largest share first."""
    counts: dict[tuple[str, str], _Counts] = {}
    for step in past:
        count = counts.setdefault((step.step.workflow, step.step.role), _Counts())
        count.steps += 1
        if step.searches:
            count.searched += 1
            count.searches += step.searches
            count.called.update({bundle for bundle, _ in step.called})
    habits = [
        SearchHabit(
            workflow,
            role,
            count.steps,
            count.searched,
            count.searches,
            tuple(sorted(count.called.items(), key=lambda row: (-row[1], row[0]))[:BUNDLES_NAMED]),
        )
        for (workflow, role), count in counts.items()
        if count.searched
    ]
    return _largest_first(habits)


def counted_habits(rows: Iterable[Tally]) -> tuple[SearchHabit, ...]:
    """Return the habits that the read model counted, the largest share first.

    `rows` are its table "searched steps".
    """
    habits = []
    for row in rows:
        workflow, _, role = row.name.partition("\n")
        habits.append(SearchHabit(workflow, role, int(row.amount), row.count, int(row.detail)))
    return _largest_first(habits)


def _largest_first(habits: Iterable[SearchHabit]) -> tuple[SearchHabit, ...]:
    return tuple(sorted(habits, key=lambda habit: (-habit.share, -habit.searched, habit.who)))
