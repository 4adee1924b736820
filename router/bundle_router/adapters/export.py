"""Writes records as CSV or Parquet, one file a table, for duckdb, pandas and spreadsheets.

A spreadsheet takes a CSV cell for a formula if it begins with `= + - @` (in any variant, also
behind spaces or what is invisible, which some remove), a tab or a line end, and records hold
untrusted text. Where `;` separates cells, as in much of Europe, text after a `;`, a tab or a line
end is a cell too. So in a *text* a `'` is written where such a cell begins, or one with a `'`;
removing one `'` at each such place restores the text. Numbers and booleans are not changed. Parquet
has types and is exact.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from bundle_router.core.records.table_columns import Table
from bundle_router.core.records.tables import COLUMNS, Row
from bundle_router.errors import needs_extra, storage_error

Format = Literal["csv", "parquet"]
_SIGNS = "'=+@\u207a-\u207c\u208a-\u208c\u2212\ufe62-\ufe66\ufe6b\uff0b\uff0d\uff1d\uff20\\-"
_BLANKS = (
    r"(?:[\x00-\x08\x0e-\x1f\x7f\xad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
    r"|[^\S\t\r\n])*"
)
_FORMULA = re.compile(rf"^(?={_BLANKS}[{_SIGNS}]|[\t\r\n])|(?<=[;\t\r\n])(?={_BLANKS}[{_SIGNS}])")


class Sink(Protocol):
    """Writes the rows of one table."""

    def write(self, batch: list[Row]) -> None: ...

    def close(self) -> None: ...


class _Csv:
    """RFC 4180 with a header.

    A missing value is an empty cell, a boolean `true`/`false`; no text is a formula.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="", opener=_open_private)  # noqa: SIM115 - held until close
        self._writer = csv.DictWriter(self._file, list(COLUMNS[table]))
        self._writer.writeheader()

    def write(self, batch: list[Row]) -> None:
        for row in batch:
            self._writer.writerow({name: _cell(value) for name, value in row.items()})

    def close(self) -> None:
        self._file.close()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return _FORMULA.sub("'", value) if isinstance(value, str) else value


class _Parquet:
    """Parquet with one fixed schema, whatever rows there are."""

    def __init__(self, path: Path, table: Table) -> None:
        with needs_extra("an export as Parquet", "parquet"):
            import pyarrow as pa
            from pyarrow import parquet
        types = {
            "text": pa.string(),
            "integer": pa.int64(),
            "real": pa.float64(),
            "boolean": pa.bool_(),
        }
        types["timestamp"] = pa.timestamp("us", tz="UTC")
        self._schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS[table].items()])
        self._table = pa.Table
        self._file = open(path, "wb", opener=_open_private)  # noqa: SIM115 - held until close
        self._writer = parquet.ParquetWriter(self._file, self._schema)

    def write(self, batch: list[Row]) -> None:
        self._writer.write_table(self._table.from_pylist(batch, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
        self._file.close()


def _open_private(path: str, flags: int) -> int:
    """Open a file that is as private as the records it copies, whatever the umask."""
    return os.open(path, flags, 0o600)


def export(
    tables: Iterable[tuple[Table, list[Row]]], folder: Path, form: Format
) -> list[tuple[Path, int]]:
    """Write rows into `folder`, one file a table; return the files and their numbers of rows.

    Files of the same names are replaced. Raises NotInstalled without pyarrow, StorageError if the
    folder can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths: dict[Table, Path] = {table: folder / f"{table}.{form}" for table in COLUMNS}
        counts = dict.fromkeys(COLUMNS, 0)
        with ExitStack() as open_sinks:
            sinks: dict[Table, Sink] = {}
            for table, path in paths.items():
                sinks[table] = _Csv(path, table) if form == "csv" else _Parquet(path, table)
                open_sinks.callback(sinks[table].close)
            for table, batch in tables:
                sinks[table].write(batch)
                counts[table] += len(batch)
    except OSError as error:
        raise storage_error(f"{folder} can't be written", error) from error
    return [(paths[table], counts[table]) for table in COLUMNS]
