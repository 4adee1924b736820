"""Records as rows, for databases, spreadsheets and pages: one table for each kind of thing, no
nesting. `table_columns` says what there is in each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from bundle_router.core.catalog.step_address import PARTS
from bundle_router.core.records.table_columns import TABLES, Kind, Table
from bundle_router.core.values.doubt import doubt_of

COLUMNS: Final[Mapping[Table, Mapping[str, Kind]]] = {
    table: {name: column.kind for name, column in columns.items()}
    for table, columns in TABLES.items()
}
"""The kind of every table's columns, in order. `KEYS` identify a row."""
KEYS: Final = frozenset(("run_id", "seq", "position"))
_OWN_KEYS: Final[Mapping[Table, frozenset[str]]] = {
    "exposures": frozenset(("exposure", "position"))
}

Row = dict[str, Any]

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|\+00:00)")
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def keys_of(table: Table) -> frozenset[str]:
    """Return the columns that identify a row of the table."""
    return _OWN_KEYS.get(table, KEYS & COLUMNS[table].keys())


class RunRows:
    """Makes the rows of one run, record by record, in the order of their `seq`.

    `seqs` maps decision ids of an earlier reading to their `seq`. After the last record,
    `unfinished_calls` returns the calls without an end.
    """

    def __init__(self, run_id: str, seqs: Mapping[str, int] | None = None) -> None:
        self._run_id = run_id
        self._seqs = dict(seqs or {})
        self._started: dict[str, Mapping[str, Any]] = {}

    def of(self, record: Mapping[str, Any]) -> Iterator[tuple[Table, Row]]:
        """Yield the rows of one record; none for types that this version doesn't know.

        Every value fits its column, whatever the record holds (see `fit_value`). An absent value is
        None.
        """
        kind = record.get("type")
        if kind == "route.decided":
            self._note_decision(record)
            yield "decisions", _decision(record)
            yield from (("bundles", row) for row in _bundles(record))
        elif kind == "call.started":
            self._started[str(record.get("call_id"))] = record
        elif kind in ("call.finished", "request.passed"):
            started = self._started.pop(str(record.get("call_id")), {})
            yield "calls", self._call(record, started)
            yield from (("artifacts", row) for row in _artifacts(record))

    def unfinished_calls(self) -> Iterator[tuple[Table, Row]]:
        """Yield the calls that began and have no end, each under the `seq` of its start."""
        yield from (("calls", self._call(record, {})) for record in self._started.values())

    def resume_calls(self, begun: Iterable[Mapping[str, Any]]) -> None:
        """Continue with calls that earlier records began: the rows of `unfinished_calls`."""
        self._started |= {str(row.get("call_id")): row for row in begun}

    def label(self, position: int, label: Mapping[str, Any]) -> Iterator[tuple[Table, Row]]:
        """Yield the rows of a reviewer's label, one a bundle.

        `position` is that of the label's first row.
        """
        decision_id = label.get("decision_id")
        seq = self._seqs.get(str(decision_id), -1)
        votes = [(id_, True) for id_ in label.get("needed", ())] + [
            (id_, False) for id_ in label.get("not_needed", ())
        ]
        for index, (bundle, needed) in enumerate(votes, position):
            key = {
                "run_id": self._run_id,
                "seq": seq,
                "position": index,
                "bundle": bundle,
                "needed": needed,
            }
            yield "labels", _pick_columns("labels", key, label)

    def _note_decision(self, record: Mapping[str, Any]) -> None:
        seq = record.get("seq")
        decision_id = record.get("decision_id")
        if isinstance(seq, int) and isinstance(decision_id, str):
            self._seqs[decision_id] = seq

    def _call(self, record: Mapping[str, Any], started: Mapping[str, Any]) -> Row:
        shaped = _object(record, "shaped")
        flags = shaped.get("flags")
        added = {
            "kind": "request" if record.get("type") == "request.passed" else "call",
            "decision_seq": self._seqs.get(str(record.get("decision_id"))),
            "attempt": record.get("attempt", 1),
            "tool": record.get("method") if record.get("type") == "request.passed" else None,
            "arguments": record.get("arguments") or started.get("arguments"),
            "flags": " ".join(map(str, flags))
            if isinstance(flags, list | tuple) and flags
            else None,
        }
        return _pick_columns("calls", added, record, shaped)


def rows(record: Mapping[str, Any]) -> Iterator[tuple[Table, Row]]:
    """Yield the rows of one record that need no other record (see `RunRows.of`)."""
    yield from RunRows(str(record.get("run_id", ""))).of(record)


def fit_value(value: Any, kind: Kind) -> Any:
    """Return a value as its column can hold it, in every database and file format; None where that
    is impossible.

    Text: NUL and lone surrogates become U+FFFD; other values become their JSON. Numbers: within 64
    bits. Timestamps: RFC 3339 in UTC, as in the records.
    """
    if value is None:
        return None
    if kind == "text":
        return _UNSTORABLE.sub("\ufffd", value if isinstance(value, str) else json.dumps(value))
    if kind == "timestamp":
        if isinstance(value, str) and _TIME.fullmatch(value):
            return value
        return None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -(2**63) <= value < 2**63:  # nor are NaN and the infinities
        return None
    if kind == "real":
        return float(value)
    if isinstance(value, int):
        return value
    return None


def _pick_columns(table: Table, *sources: Mapping[str, Any]) -> Row:
    """Return the table's columns from the first source that has them."""
    values = {
        name: value
        for source in reversed(sources)
        for name, value in source.items()
        if value is not None
    }
    return {name: fit_value(values.get(name), kind) for name, kind in COLUMNS[table].items()}


def run_row(stated: Mapping[str, Any]) -> Row:
    """Return the row of a run from its header; the rest is counted from the other tables."""
    return _pick_columns("runs", stated)


def exposure_row(stated: Mapping[str, Any]) -> Row:
    """Return one row of what was shown."""
    return _pick_columns("exposures", stated)


def _object(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, Mapping) else {}


def _objects(record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = record.get(name)
    if isinstance(value, list | tuple):
        return [row for row in value if isinstance(row, Mapping)]
    return []


def _decision(record: Mapping[str, Any]) -> Row:
    step = _object(record, "step")
    columns = {
        **_outcome_columns(record),
        **_model_columns(_object(record, "model")),
        **_search_columns(_object(record, "search")),
        **_step_columns(step),
    }
    elsewhere = ("step", "exposure", *columns)
    plain = {name: value for name, value in record.items() if name not in elsewhere}
    of_step = {name: value for name, value in step.items() if name not in columns}
    return _pick_columns("decisions", columns, plain, of_step, _object(record, "exposure"))


def _outcome_columns(record: Mapping[str, Any]) -> Row:
    evicted = _object(record, "activation").get("evicted")
    degraded_code = None
    if record.get("degraded") is True:
        replies = (_object(record, "reply"), _object(record, "model"))
        failures = [reply["failure"] for reply in replies if reply.get("failure")]
        degraded_code = next(iter(failures), "server_unavailable")
    return {
        "shown": len(_objects(record, "bundles")),
        "left_out": len(_objects(record, "left_out")),
        "evicted": len(evicted) if isinstance(evicted, list | tuple) else 0,
        "degraded_code": degraded_code,
        "doubt": doubt_of(
            str(record.get("source")),
            _object(record, "search").get("verdict"),
            _object(record, "model").get("sure"),
        ),
    }


def _model_columns(model: Mapping[str, Any]) -> Row:
    return {
        "model": model.get("name"),
        "model_failure": model.get("failure"),
        "attempts": model.get("attempts"),
        "input_tokens": model.get("input_tokens"),
        "output_tokens": model.get("output_tokens"),
        "cost_usd": model.get("cost_usd"),
        "model_ms": model.get("elapsed_ms"),
        "model_sure": model.get("sure"),
    }


def _search_columns(search: Mapping[str, Any]) -> Row:
    names = ("verdict", "probability", "threshold", "embeddings")
    return {name: search.get(name) for name in names}


def _step_columns(step: Mapping[str, Any]) -> Row:
    labels = {str(row.get("name")): row.get("value") for row in _objects(step, "labels")}
    constraints = map(str, step.get("constraints") or ())
    return {
        "labels": labels or None,
        "constraints": "\n".join(constraints) or None,
        **{part.name: labels.get(part.label) for part in PARTS if part.label},
    }


def _bundles(record: Mapping[str, Any]) -> Iterator[Row]:
    key = {"run_id": record.get("run_id"), "seq": record.get("seq")}
    shown_rows = [
        {**row, "bundle": row.get("id"), "shown": True, "detail": row.get("evidence")}
        for row in _objects(record, "bundles")
    ]
    left_out = [
        {**row, "bundle": row.get("id"), "shown": False} for row in _objects(record, "left_out")
    ]
    for position, row in enumerate([*shown_rows, *left_out]):
        yield _pick_columns("bundles", {**key, "position": position}, row)


def _artifacts(record: Mapping[str, Any]) -> Iterator[Row]:
    key = {"run_id": record.get("run_id"), "seq": record.get("seq")}
    for position, row in enumerate(_objects(record, "artifacts")):
        yield _pick_columns("artifacts", {**key, "position": position}, row)
