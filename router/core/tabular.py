"""Records as rows, for databases and spreadsheets: one table a kind of thing, no nesting.

decisions   one row a decision                       calls       one row a finished (or refused) call
bundles     one row a bundle shown or left out       artifacts   one row a reference to stored bytes
"""

from __future__ import annotations

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


def rows(record: Mapping[str, Any]) -> Iterator[tuple[Table, Row]]:
    """The rows of one record; none for records that only mark a beginning, and for types this version doesn't know."""
    kind = record.get("type")
    if kind == "route.decided":
        yield "decisions", _decision(record)
        yield from (("bundles", row) for row in _bundles(record))
    elif kind == "call.finished":
        yield "calls", _call(record)
        yield from (("artifacts", row) for row in _artifacts(record))


def _picked(table: Table, *sources: Mapping[str, Any]) -> Row:
    """The table's columns from the first source that has them."""
    return {name: next((s[name] for s in sources if s.get(name) is not None), None) for name in COLUMNS[table]}


def _decision(record: Mapping[str, Any]) -> Row:
    exposure, model = record.get("exposure") or {}, record.get("model") or {}
    counted = {
        "shown": len(record["bundles"]),
        "left_out": len(record["left_out"]),
        "evicted": len(record["activation"]["evicted"]),
        "model": model.get("name"),
        "cost_usd": model.get("cost_usd"),
    }
    plain = {name: value for name, value in record.items() if name not in ("step", *counted)}
    return {**_picked("decisions", plain, record["step"], exposure), **counted}


def _bundles(record: Mapping[str, Any]) -> Iterator[Row]:
    key = {"run_id": record["run_id"], "seq": record["seq"]}
    shown = [{**row, "bundle": row["id"], "shown": True, "detail": row.get("evidence")} for row in record["bundles"]]
    left_out = [{**row, "bundle": row["id"], "shown": False} for row in record["left_out"]]
    for position, row in enumerate([*shown, *left_out]):
        yield _picked("bundles", {**key, "position": position}, row)


def _call(record: Mapping[str, Any]) -> Row:
    return _picked("calls", record, record.get("shaped") or {})


def _artifacts(record: Mapping[str, Any]) -> Iterator[Row]:
    key = {"run_id": record["run_id"], "seq": record["seq"]}
    for position, row in enumerate(record.get("artifacts") or ()):
        yield _picked("artifacts", {**key, "position": position}, row)
