"""Redacts a record, the last thing before it is handed to a store.

The engine redacts most texts as they come in. Here all of them are checked once more, so that no
store, however it is written, gets a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from bundle_router.core.values.canonical import text_of

OWN_FIELDS: Final = ("arguments_digest", "catalog_revision", "input_digest", "time", "writer")
"""Fields of records whose values no caller chooses, each in one of the forms of `_OWN_VALUE`."""
_NUMBERS: Final = frozenset((int, float, bool))
OWN_OBJECTS: Final = ("exposure", "shaped", "spent")
"""Objects of records that hold counts and the router's own words."""
_OWN_VALUE: Final = re.compile(
    r"(?:sha256:)?[0-9a-f]{64}|[0-9a-f]{16}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
)
"""These hold no secret, and the redactor's automaton grows with every new digest that it sees."""
_OWN_IDS: Final = ("call_id", "decision_id")
_OWN: Final = frozenset((*OWN_FIELDS, *_OWN_IDS))
_PLACE: Final = re.compile(r"\.[0-9a-f]{8}\.\d+\Z")
"""The end of such an id. The rest is the run's id."""
_COUNT: Final = re.compile(r'"(?:place|used)":\d+')


class _Redactor(Protocol):
    def are_clean(self, texts: Sequence[str]) -> bool: ...
    def redact_many(self, texts: Sequence[str]) -> Sequence[str]: ...
    def redact_value(self, value: Any) -> Any: ...


def redact_record(record: dict[str, Any], redactor: _Redactor) -> dict[str, Any]:
    """Return the record without secrets; the record itself where it holds none.

    Texts that were not checked before are checked in one pass; only where that finds something
    suspicious, value by value. Digests and times that the router itself made are not checked
    (`_OWN_VALUE`). Raises ValueError and TypeError for values that are not JSON.
    """
    texts, encoded = _texts_of(record)
    if redactor.are_clean(encoded) and redactor.redact_many(texts) is texts:
        return record
    rest_of = {
        name: value
        for name, value in record.items()
        if name not in OWN_FIELDS or not _OWN_VALUE.fullmatch(str(value))
    }
    if redactor.redact_value(rest_of) is rest_of:
        return record
    redacted: dict[str, Any] = redactor.redact_value(record)
    return redacted


def _texts_of(record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return a record's texts (unescaped: a quote that JSON escapes would have all of them checked
    one by one) and the JSON of its other values, without the router's own: what is left recurs, and
    what recurs is checked once.
    """
    texts: list[str] = []
    encoded: list[str] = []
    for name, value in record.items():
        if not value:  # many are empty
            continue
        if type(value) is str:
            if name not in _OWN:
                texts.append(value)
            elif name in _OWN_IDS:
                texts.append(_PLACE.sub("", value))
            elif not _OWN_VALUE.fullmatch(value):
                texts.append(value)
        elif type(value) not in _NUMBERS and name not in OWN_OBJECTS:
            encoded.append(
                _COUNT.sub("", text_of(value)) if name == "activation" else text_of(value)
            )
    return texts, encoded
