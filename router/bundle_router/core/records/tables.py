"""Records as rows, for databases and spreadsheets: one table a kind of thing, no nesting.

decisions   one row a decision                       calls       one row a finished (or refused) call
bundles     one row a bundle shown or left out       artifacts   one row a reference to stored bytes
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

Table = Literal["decisions", "bundles", "calls", "artifacts"]
Kind = Literal["text", "integer", "real", "boolean"]

COLUMNS: Final[Mapping[Table, Mapping[str, Kind]]] = {
    "decisions": {
        "run_id": "text", "seq": "integer", "time": "text", "decision_id": "text", "catalog_revision": "text",
        "input_digest": "text", "principal": "text", "workflow": "text", "role": "text", "step": "text", "goal": "text",
        "parent_run_id": "text", "source": "text", "degraded": "boolean", "route": "text", "justification": "text",
        "shown": "integer", "left_out": "integer", "evicted": "integer", "tools": "integer", "tokens": "integer",
        "all_tools": "integer", "all_tokens": "integer", "model": "text", "cost_usd": "real", "elapsed_us": "integer",
    },
    "bundles": {
        "run_id": "text", "seq": "integer", "position": "integer", "bundle": "text", "tool": "text", "shown": "boolean",
        "rank": "integer", "reason": "text", "code": "text", "detail": "text",
    },
    "calls": {
        "run_id": "text", "seq": "integer", "time": "text", "call_id": "text", "decision_id": "text", "server": "text",
        "tool": "text", "bundle": "text", "outcome": "text", "code": "text", "arguments": "text", "result": "text",
        "original_bytes": "integer", "kept_bytes": "integer", "rule": "text", "cached": "boolean", "elapsed_ms": "real",
    },
    "artifacts": {
        "run_id": "text", "seq": "integer", "position": "integer", "uri": "text", "sha256": "text", "mime_type": "text",
        "bytes": "integer", "role": "text",
    },
}  # fmt: skip
"""Every table's columns in order. `(run_id, seq)`, with `position` where there is one, identifies a row."""

Row = dict[str, Any]

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def rows(record: Mapping[str, Any]) -> Iterator[tuple[Table, Row]]:
    """The rows of one record; none for records that only mark a beginning, and for types this version doesn't know.

    Every value fits its column, whatever the record holds: see `fitted`. What is absent is None.
    """
    kind = record.get("type")
    if kind == "route.decided":
        yield "decisions", _decision(record)
        yield from (("bundles", row) for row in _bundles(record))
    elif kind == "call.finished":
        yield "calls", _call(record)
        yield from (("artifacts", row) for row in _artifacts(record))
    elif kind == "request.passed":
        yield from (("artifacts", row) for row in _artifacts(record))


def fitted(value: Any, kind: Kind) -> Any:
    """A value as its column can hold it, in every database and file format; None where it can't be.

    Text: NUL and lone surrogates become U+FFFD, for all to see; what is not text becomes its JSON. Numbers: within
    64 bits.
    """
    if kind == "text" and value is not None:
        return _UNSTORABLE.sub("\ufffd", value if isinstance(value, str) else json.dumps(value))
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -(2**63) <= value < 2**63:  # nor are NaN and the infinities
        return None
    return float(value) if kind == "real" else value if isinstance(value, int) else None


def _picked(table: Table, *sources: Mapping[str, Any]) -> Row:
    """The table's columns from the first source that has them."""
    return {
        name: fitted(next((s[name] for s in sources if s.get(name) is not None), None), kind)
        for name, kind in COLUMNS[table].items()
    }


def _object(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, Mapping) else {}


def _objects(record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = record.get(name)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list | tuple) else []


def _decision(record: Mapping[str, Any]) -> Row:
    model, evicted = _object(record, "model"), _object(record, "activation").get("evicted")
    counted = {
        "shown": len(_objects(record, "bundles")),
        "left_out": len(_objects(record, "left_out")),
        "evicted": len(evicted) if isinstance(evicted, list | tuple) else 0,
        "model": model.get("name"),
        "cost_usd": model.get("cost_usd"),
    }
    plain = {name: value for name, value in record.items() if name not in ("step", *counted)}
    return _picked("decisions", counted, plain, _object(record, "step"), _object(record, "exposure"))


def _bundles(record: Mapping[str, Any]) -> Iterator[Row]:
    key = {"run_id": record.get("run_id"), "seq": record.get("seq")}
    shown = [
        {**row, "bundle": row.get("id"), "shown": True, "detail": row.get("evidence")}
        for row in _objects(record, "bundles")
    ]
    left_out = [{**row, "bundle": row.get("id"), "shown": False} for row in _objects(record, "left_out")]
    for position, row in enumerate([*shown, *left_out]):
        yield _picked("bundles", {**key, "position": position}, row)


def _call(record: Mapping[str, Any]) -> Row:
    return _picked("calls", record, _object(record, "shaped"))


def _artifacts(record: Mapping[str, Any]) -> Iterator[Row]:
    key = {"run_id": record.get("run_id"), "seq": record.get("seq")}
    for position, row in enumerate(_objects(record, "artifacts")):
        yield _picked("artifacts", {**key, "position": position}, row)
