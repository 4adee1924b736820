"""All records that Bundle Router writes, with their written forms: what the JSON Schemas in
`schemas/` and the reference are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from bundle_router.core.records import decision_record
from bundle_router.core.records.approval_records import (
    APPROVAL_FORMS,
    ApprovalAsked,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRefused,
    ApprovalWithdrawn,
)
from bundle_router.core.records.call_records import (
    LINE_FORMS,
    CallFinished,
    CallStarted,
    RequestPassed,
    SubRunOpened,
    TaintCleared,
    TaintPassed,
)
from bundle_router.core.records.catalog_form import catalog_form
from bundle_router.core.records.chain import CHAIN_FIELDS
from bundle_router.core.records.field_types import FieldForm, fields_of
from bundle_router.core.records.heads import StoredHead
from bundle_router.core.records.receipt import RECEIPT_FIELDS
from bundle_router.core.records.run_header import HEADER_FIELDS
from bundle_router.core.records.step_labels import label_form

Form = Mapping[str, FieldForm]
_CALLS: Final = "a line of `tool-calls.jsonl`"


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """A type of record."""

    type: str
    """Its name."""
    place: str
    """Where it is written."""
    meaning: str
    """What it says, in a sentence."""
    form: Callable[[], Form]
    """Makes the forms of its fields."""


def _line(form: Callable[[], Form]) -> Callable[[], Form]:
    """Return what makes the form of a line of a run, the chain's fields included."""
    return lambda: {**form(), **CHAIN_FIELDS}


RECORDS: Final = (
    WrittenRecord(
        "run",
        "`run.json`",
        "The header of a run: when it began and ended, and under which config.",
        lambda: HEADER_FIELDS,
    ),
    WrittenRecord(
        decision_record.DecisionRecord.type,
        "a line of `routing.jsonl`",
        "A decision, with everything that it was computed from.",
        _line(decision_record.line_form),
    ),
    WrittenRecord(
        CallStarted.type,
        _CALLS,
        "A call that passed every check and is about to be made.",
        _line(LINE_FORMS[CallStarted.type]),
    ),
    WrittenRecord(
        CallFinished.type,
        _CALLS,
        "The end of a call, or a refused call.",
        _line(LINE_FORMS[CallFinished.type]),
    ),
    WrittenRecord(
        RequestPassed.type,
        _CALLS,
        "A request for a resource, a prompt or a completion that was passed on to a server.",
        _line(LINE_FORMS[RequestPassed.type]),
    ),
    WrittenRecord(
        SubRunOpened.type,
        _CALLS,
        "A run that began below this one, whose calls count for their tree.",
        _line(LINE_FORMS[SubRunOpened.type]),
    ),
    *[
        WrittenRecord(type_, _CALLS, meaning, _line(APPROVAL_FORMS[type_]))
        for type_, meaning in (
            (
                ApprovalAsked.type,
                "A call that passed every check, and waits for somebody's word.",
            ),
            (ApprovalGranted.type, "Somebody granted a call that waits."),
            (ApprovalRefused.type, "Somebody refused a call that waits, or took a grant back."),
            (ApprovalWithdrawn.type, "The engine took a question back."),
            (ApprovalExpired.type, "A question, or an unused grant, whose time is over."),
        )
    ],
    WrittenRecord(
        TaintPassed.type,
        _CALLS,
        "Taints of content that came into a branch from a sub-run, or from another branch.",
        _line(LINE_FORMS[TaintPassed.type]),
    ),
    WrittenRecord(
        TaintCleared.type,
        _CALLS,
        "A person's word that what a branch has seen of some taints counts no more.",
        _line(LINE_FORMS[TaintCleared.type]),
    ),
    WrittenRecord(
        "catalog",
        "`catalog.json`, and a file for each later config",
        "A config that decisions of the run were made under, resolved.",
        catalog_form,
    ),
    WrittenRecord(
        "label",
        "a line of `labels.jsonl`",
        "A reviewer's label of one decision.",
        label_form,
    ),
    WrittenRecord(
        "receipt",
        "what `bundle-router runs receipt` prints",
        "One record, with everything that a stranger needs to check it.",
        lambda: RECEIPT_FIELDS,
    ),
    WrittenRecord(
        "head",
        "a file of the heads folder (`[records] heads`)",
        "The kept head of one run, by which a cut-off end or a missing run is found.",
        lambda: fields_of(StoredHead),
    ),
)
"""Each type of record, in the order in which they are explained."""


def schema_text(type_: str) -> str:
    """Return the JSON Schema of a type of record, as text. Raises KeyError for an unknown type."""
    if all(record.type != type_ for record in RECORDS):
        raise KeyError(type_)
    folder = files("bundle_router.core.records").joinpath("schemas")
    return folder.joinpath(f"{type_}.schema.json").read_text(encoding="utf-8")
