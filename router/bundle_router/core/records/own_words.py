"""The words that records are made of: the names of fields, the types of records, and the closed
lists (codes, reasons, outcomes).

A setting whose value is such a word, or a part of one, can't be searched for as a secret: it would
be taken out of every record, and a record without its fields can't be read again.
"""

from __future__ import annotations

from functools import cache

from bundle_router.core.records import call_records, decision_record
from bundle_router.core.records.field_types import words_of
from bundle_router.core.values import CODES, FAILURES

_RECORDS = (
    decision_record.DecisionRecord,
    call_records.CallStarted,
    call_records.CallFinished,
    call_records.RequestPassed,
    call_records.SubRunOpened,
    call_records.TaintPassed,
    call_records.TaintCleared,
)
_OF_THE_CHAIN = ("schema", "seq", "prev", "hash", "run_json")


def is_record_word(value: str) -> bool:
    """Return whether the value is a word of the records themselves, or a part of one.

    >>> from bundle_router.core.records.own_words import is_record_word
    >>> is_record_word("workflow"), is_record_word("finished"), is_record_word("sk-4f6d1c")
    (True, True, False)
    """
    return any(value in word for word in _words())


@cache
def _words() -> frozenset[str]:
    from bundle_router.core.records.approval_records import APPROVAL_FORMS, APPROVAL_KINDS

    words = {*CODES, *FAILURES, *_OF_THE_CHAIN}
    words.update(APPROVAL_KINDS)
    for kind, form in APPROVAL_FORMS.items():
        words.update(words_of(form()))
        words.update(words_of(APPROVAL_KINDS[kind]))
    words.update(record.type for record in _RECORDS)
    words.update(words_of(decision_record.line_form()))
    for form in call_records.LINE_FORMS.values():
        words.update(words_of(form()))
    for record in _RECORDS:
        words.update(words_of(record))
    return frozenset(words)
