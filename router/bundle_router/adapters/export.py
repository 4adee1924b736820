"""Writes records as CSV or Parquet, one file a table, for duckdb, pandas and spreadsheets.

A spreadsheet takes a CSV cell that begins with `= + - @` (or their full-width forms), a tab or a carriage return for a
formula, and records hold what strangers wrote. So a *text* that begins with one of those, or with `'`, is written with
a `'` before it; one leading `'` taken away gives the text back. Numbers and booleans are never touched, and Parquet,
which has types, is exact.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol

from bundle_router.core.records.tables import COLUMNS, Row, Table, rows
from bundle_router.errors import RequestError, storage_error

Format = Literal["csv", "parquet"]
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
BATCH = 2000
"""Rows kept in memory per table before they are written."""


class Sink(Protocol):
    """Takes the rows of one table."""

    def write(self, batch: list[Row]) -> None: ...

    def close(self) -> None: ...


class _Csv:
    """RFC 4180 with a header; an absent value is an empty cell, a boolean is `true` or `false`, no text a formula."""

    def __init__(self, path: Path, table: Table) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="", opener=_private)  # noqa: SIM115 - held until close
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
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


class _Parquet:
    """Parquet with one fixed schema, whatever the rows hold."""

    def __init__(self, path: Path, table: Table) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError:
            raise RequestError(
                "Parquet needs pyarrow, which is not installed",
                advice="install bundle-router[parquet], or export as CSV",
            ) from None
        types = {"text": pa.string(), "integer": pa.int64(), "real": pa.float64(), "boolean": pa.bool_()}
        self._schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS[table].items()])
        self._table = pa.Table
        self._file = open(path, "wb", opener=_private)  # noqa: SIM115 - held until close
        self._writer = parquet.ParquetWriter(self._file, self._schema)

    def write(self, batch: list[Row]) -> None:
        self._writer.write_table(self._table.from_pylist(batch, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
        self._file.close()


def _private(path: str, flags: int) -> int:
    """Exports are as private as the records they repeat, whatever the umask."""
    return os.open(path, flags, 0o600)


def export(runs: Iterable[Iterable[Mapping[str, Any]]], folder: Path, form: Format) -> list[tuple[Path, int]]:
    """Writes the records of the given runs into `folder`, and says which files and how many rows.

    Files of the same names are replaced. Raises RequestError when pyarrow is missing, StorageError when the folder
    can't be written.
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
            for table, batch in _batches(runs):
                sinks[table].write(batch)
                counts[table] += len(batch)
    except OSError as error:
        raise storage_error(f"{folder} can't be written", error) from error
    return [(paths[table], counts[table]) for table in COLUMNS]


def _batches(runs: Iterable[Iterable[Mapping[str, Any]]]) -> Iterator[tuple[Table, list[Row]]]:
    waiting: dict[Table, list[Row]] = {table: [] for table in COLUMNS}
    for records in runs:
        for record in records:
            for table, row in rows(record):
                waiting[table].append(row)
                if len(waiting[table]) >= BATCH:
                    yield table, waiting[table]
                    waiting[table] = []
    yield from ((table, batch) for table, batch in waiting.items() if batch)
