"""`reference/tables.md`: every column of every table that records are turned into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bundle_router.core.records.table_columns import ROWS, TABLES, Kind, Table

from tests.reference.markdown import GENERATED, code, table, without_gaps
from tests.reference.records_page import unit_of_name

_HEAD: Final = f"""\
# Tables

Every column of the tables that `runs index` and `runs export` write, and that [the index](run-folder.md#the-index) of the
pages has. {GENERATED}.

- Names in a database begin with `bundle_router_`: `bundle_router_calls`. An exported table is a file of its name.
- A table's rows are told apart by `run_id`, `seq` and `position`, as far as it has them; those of `exposures` by `exposure`
  and `position`.
- All of a run's tables join by `run_id`. `bundles.seq` and `labels.seq` are a decision's, `artifacts.seq` is a call's, and
  `calls.decision_seq` is that of the decision that the call was judged under.
- Any value may be absent (`null`): that is never zero.
- Times are UTC. Tokens are those of cl100k_base, but for what a model's provider counted.

"""
_KINDS: Final[dict[Kind, str]] = {
    "text": "text",
    "integer": "whole number",
    "real": "number",
    "boolean": "true or false",
    "timestamp": "time",
}


def page() -> str:
    """Return the text of the page."""
    rows = [(f"[`{name}`](#{name})", meaning) for name, meaning in ROWS.items()]
    parts = [_HEAD, table(("table", "one row"), rows)]
    for name in ROWS:
        parts += _section(name)
    return without_gaps(parts)


def _section(name: Table) -> Iterator[str]:
    yield f"## {name}\n\nOne row is {ROWS[name]}.\n\n"
    yield table(
        ("column", "type", "unit", "meaning"),
        [
            (
                code(column),
                _KINDS[spec.kind],
                _unit(column, spec.kind),
                spec.meaning,
            )
            for column, spec in TABLES[name].items()
        ],
    )


def _unit(column: str, kind: Kind) -> str:
    if kind == "timestamp":
        return "UTC"
    return unit_of_name(column, is_number=kind in ("integer", "real"))
