"""A reviewer's labels of decisions: which bundles a step needed, and which it did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import Field

from bundle_router.core.catalog import Catalog
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.field_types import FieldForm, fields_of
from bundle_router.core.values import Frozen
from bundle_router.core.values.canonical import time_text
from bundle_router.core.values.spelling import Suggester
from bundle_router.errors import RequestError

LABEL_SCHEMA: Final = "bundle-router.label/1"


class StepLabel(Frozen):
    """A line of `labels.jsonl`: a reviewer's label of one decision."""

    schema_: str = Field(default=LABEL_SCHEMA, alias="schema", pattern=r"^bundle-router\.label/1$")
    """The form of the line, with its version."""
    decision_id: str = Field(min_length=1, max_length=300)
    """The decision."""
    needed: tuple[str, ...] = Field(default=(), max_length=100)
    """The ids of bundles that the step needed."""
    not_needed: tuple[str, ...] = Field(default=(), max_length=100)
    """The ids of bundles that it did not need."""
    by: str = Field(default="", max_length=200)
    """Who says so; empty where nobody was named."""
    time: str = Field(default="", max_length=64)
    """When the label was given, in UTC."""


def label_form() -> Mapping[str, FieldForm]:
    """Return the written form of a label's line."""
    return {
        "schema": FieldForm(Literal[LABEL_SCHEMA], (StepLabel, "schema_")),
        **fields_of(StepLabel, ("decision_id", "needed", "not_needed", "by", "time")),
    }


def label_of(
    record: DecisionRecord,
    catalog: Catalog | None,
    needed: Sequence[str],
    not_needed: Sequence[str],
    by: str,
    time_ns: int,
) -> StepLabel:
    """Return a reviewer's label of a decision.

    Raises RequestError where it names no bundle, one as both, or one that the decision's config
    (`catalog`) does not have.
    """
    if not needed and not not_needed:
        raise RequestError(
            "the label names no bundle", advice="name a bundle that it needed or did not need"
        )
    if contradictions := sorted({*needed} & {*not_needed}):
        raise RequestError(f"{contradictions[0]!r} can't be both needed and not needed")
    for id_ in (*needed, *not_needed):
        if catalog is None or catalog.bundle(id_) is None:
            hint = Suggester().did_you_mean(id_, catalog.bundles) if catalog is not None else ""
            raise RequestError(f"the decision's config has no bundle {id_[:200]!r}", advice=hint)
    id_ = record.decision.decision_id
    time = time_text(time_ns)
    return StepLabel(
        decision_id=id_, needed=tuple(needed), not_needed=tuple(not_needed), by=by[:200], time=time
    )
