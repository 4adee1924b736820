"""`reference/records.md`: every field of every record with its type, unit, meaning and an example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bundle_router.core.records.field_types import FieldForm
from bundle_router.core.records.written_records import RECORDS, WrittenRecord

from tests.reference.examples import examples, paths
from tests.reference.markdown import GENERATED, code, table, without_gaps
from tests.reference.record_schemas import description_of, schema_of_form

_HEAD: Final = f"""\
# Records

Every field of every record that Bundle Router writes. {GENERATED} from the values that records are read into; the same
forms make the JSON Schemas that `bundle-router runs schema` prints. Examples are of recorded runs, long ones cut; none
stands where these runs say nothing.

- `routing.jsonl` and `tool-calls.jsonl` are one sequence of lines under one hash chain (`seq`, `prev`, `hash`).
- A record has no object that is keyed by data, so that a column stays a column for every reader.
- Fields are added, never renamed. One that is optional is written only where it says something.
- Times are UTC, `2026-11-29T15:08:41.374740Z`. A digest is `sha256:` and 64 hexadecimal digits.

"""
_UNITS: Final = {
    "_ms": "ms",
    "_us": "µs",
    "_ns": "ns",
    "_usd": "US dollars",
    "_s": "s",
    "bytes": "bytes",
    "tokens": "tokens",
    "width": "pixels",
    "height": "pixels",
    "time": "UTC",
    "opened": "UTC",
    "closed": "UTC",
    "restored": "UTC",
}
"""The unit of fields, by the end of their names."""
_NUMBERS: Final = ("integer", "number")


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    known = examples()
    rows = [
        (f"[`{record.type}`](#{record.type.replace('.', '')})", record.place, record.meaning)
        for record in RECORDS
    ]
    parts.append(table(("type", "is", "says"), rows))
    for record in RECORDS:
        parts += _section(record, known[record.type])
    return without_gaps(parts)


def _section(record: WrittenRecord, known: Mapping[str, str]) -> Iterator[str]:
    yield f"## {record.type}\n\n{record.meaning} It is {record.place}.\n\n"
    yield table(
        ("field", "type", "unit", "meaning", "example"),
        [
            (
                code(path),
                _type(field),
                unit_of(path, field),
                description_of(field),
                _example(known, path),
            )
            for path, field in paths(record.form())
        ],
    )


def _example(known: Mapping[str, str], path: str) -> str:
    text = known.get(path, "")
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def unit_of(path: str, field: FieldForm) -> str:
    """Return the unit of a field's values; empty for what has none."""
    kinds = schema_of_form(field.form).get("type", "")
    is_number = any(kind in kinds for kind in _NUMBERS)
    return unit_of_name(path.rpartition(".")[2], is_number=is_number)


def unit_of_name(name: str, *, is_number: bool) -> str:
    """Return the unit that the end of a name tells; empty where it tells none."""
    for end, unit in _UNITS.items():
        if name.endswith(end) and is_number == (unit != "UTC"):
            return unit
    return ""


def _type(field: FieldForm) -> str:
    words = _words(schema_of_form(field.form))
    return f"{words}, optional" if field.is_optional else words


def _words(schema: Mapping[str, Any]) -> str:
    """Return the type of a schema in words."""
    if "enum" in schema:
        return " or ".join(code("null" if word is None else word) for word in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(_words, schema["anyOf"]))
    kinds = schema["type"]
    words = {
        "string": "text",
        "integer": "whole number",
        "boolean": "true or false",
        "null": "null",
    }
    if isinstance(kinds, list):
        return " or ".join(_words({**schema, "type": kind}) for kind in kinds)
    if "prefixItems" in schema:
        return " and ".join(map(_words, schema["prefixItems"]))
    if kinds == "array":
        items = schema["items"]
        return "list of objects" if items.get("type") == "object" else f"list of {_words(items)}"
    return words.get(kinds, str(kinds))
