"""The report of `learn`: what the logs teach, what that would change, and its effect on a held-back
part of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.search.learned_values import (
    LearnedValues,
    known_of,
    known_tools_of,
)
from bundle_router.core.search.ranking import Search
from bundle_router.core.values.canonical import digest_of
from bundle_router.review.learning.calibration import CalibrationFit, calibrate
from bundle_router.review.learning.fitting import (
    EmbeddingFit,
    MemoryFit,
    fit,
    fit_embeddings,
    fit_tools,
)
from bundle_router.review.learning.labels import Labelled, label_steps
from bundle_router.review.learning.proposals import AFTER, Proposals, propose
from bundle_router.review.learning.recorded_steps import PastStep
from bundle_router.review.search_habits import SearchHabit, search_habits

VERSION_DIGITS: Final = 12


@dataclass(frozen=True)
class Learning:
    """The result of `learn`.

    `memory` (of bundles), `tools` and `calibration` are None if they were not requested, or without
    search.
    """

    runs: int
    steps: int
    labelled: Labelled
    memory: MemoryFit | None
    tools: MemoryFit | None
    embeddings: EmbeddingFit | None
    calibration: CalibrationFit | None
    proposals: Proposals
    habits: tuple[SearchHabit, ...]
    """Who searched for tools, and how often."""
    now: LearnedValues
    proposed: LearnedValues
    """The values that would be in force once this is accepted."""

    @property
    def version(self) -> str:
        """Version of the values that would be in force: state it to accept exactly these."""
        return digest_of([list(pair) for pair in self.proposed.revisions]).removeprefix("sha256:")[
            :VERSION_DIGITS
        ]

    @property
    def changes(self) -> bool:
        return self.proposed.revisions != self.now.revisions

    def to_json(self) -> dict[str, Any]:
        """Return everything but the memory's weights, which are in its file."""
        return {
            "schema": "bundle-router.learning/1",
            "version": self.version,
            "changes": self.changes,
            "in_force": [
                {"name": name, "version": version} for name, version in self.now.revisions
            ],
            "proposed": [
                {"name": name, "version": version} for name, version in self.proposed.revisions
            ],
            "runs": self.runs,
            "steps": self.steps,
            "labels": {
                "steps": len(self.labelled.steps),
                "by_kind": [
                    {"kind": kind, "labels": number} for kind, number in self.labelled.by_kind
                ],
                "obsolete": self.labelled.obsolete,
                "unrankable": self.labelled.unrankable,
                "over_quota": self.labelled.over_quota,
            },
            "memory": _memory_json(self.memory),
            "tools": _memory_json(self.tools),
            "embeddings": _embeddings_json(self.embeddings),
            "calibration": _calibration_json(self.calibration),
            "proposals": {
                "routes": [row.to_json() for row in self.proposals.routes],
                "examples": [asdict(row) for row in self.proposals.examples],
                "trims": [asdict(row) for row in self.proposals.trims],
            },
            "searching": [habit.to_json() for habit in self.habits],
        }


def learn(
    past: Sequence[PastStep],
    catalogs: Mapping[str, Catalog],
    current: Catalog,
    search: Search | None,
    now: LearnedValues,
    *,
    calibrating: bool = False,
    after: int = AFTER,
) -> Learning:
    """Learn from past steps under the config `current`, over whose texts `search` ranks.

    `now` are the values in force. Takes about 40 ms a label.
    """
    current = now.applied_to(current)
    labelled = label_steps(past, catalogs, current)
    embeddings = fit_embeddings(labelled.steps, search) if search is not None else None
    memory = fit(labelled.steps, search) if search is not None else None
    tools = fit_tools(labelled.steps, search) if search is not None else None
    proposed = _with_memories(now, memory, tools, current)
    calibration = None
    if calibrating and search is not None:
        calibration = calibrate(labelled.steps, search, proposed.memory, current)
        if calibration.enough:
            proposed = replace(proposed, calibration=calibration.calibration)
        else:
            proposed = proposed
    return Learning(
        runs=len({step.run_id for step in past}),
        steps=len(past),
        labelled=labelled,
        memory=memory,
        tools=tools,
        embeddings=embeddings,
        calibration=calibration,
        habits=search_habits(past),
        proposals=propose(past, labelled.steps, catalogs, current, search, after=after),
        now=now,
        proposed=proposed,
    )


def _with_memories(
    now: LearnedValues, bundles: MemoryFit | None, tools: MemoryFit | None, current: Catalog
) -> LearnedValues:
    """Return the values with the fitted memories; too few labels keep the present one, contrary
    ones remove it.
    """
    values = now
    if bundles is not None and bundles.enough:
        bundle_marks = () if bundles.memory is None else known_of(bundles.memory, current)
        values = replace(values, memory=bundles.memory, known=bundle_marks)
    if tools is not None and tools.enough:
        known_tools = () if tools.memory is None else known_tools_of(tools.memory, current)
        values = replace(values, tools=tools.memory, known_tools=known_tools)
    return values


def _embeddings_json(fitted: EmbeddingFit | None) -> dict[str, Any] | None:
    if fitted is None:
        return None
    row = asdict(fitted)
    return {**row.pop("trial"), **row}


def _memory_json(fitted: MemoryFit | None) -> dict[str, Any] | None:
    if fitted is None:
        return None
    replay = fitted.replay
    return {
        "proposed": fitted.memory.revision if fitted.memory is not None else None,
        "why": fitted.why,
        "labels": replay.labels,
        "replay": {
            "before": replay.before,
            "after": replay.after,
            "new": replay.new,
            "trials": [asdict(trial) for trial in replay.trials],
        },
        "recall": _recall_json(fitted),
        "held_back": {"before": asdict(fitted.before), "after": asdict(fitted.after)},
    }


def _recall_json(fitted: MemoryFit) -> dict[str, Any] | None:
    recall = fitted.replay.recall
    if recall is None:
        return None
    is_in_force = fitted.memory is not None and fitted.memory.recollection is not None
    trials = [asdict(trial) for trial in recall.trials]
    return {
        "on": is_in_force,
        "why": fitted.recall,
        "before": recall.before,
        "after": recall.after,
        "new": recall.new,
        "trials": trials,
    }


def _calibration_json(fitted: CalibrationFit | None) -> dict[str, Any] | None:
    if fitted is None:
        return None
    return {
        "proposed": fitted.calibration.version if fitted.calibration is not None else None,
        "why": fitted.why,
        "labels": fitted.labels,
        "missing": fitted.missing,
        "held_back": {"before": asdict(fitted.before), "after": asdict(fitted.after)},
        "by_effect": [
            {"effect": effect, **asdict(settled)} for effect, settled in fitted.by_effect
        ],
        "auroc": fitted.auroc,
    }
