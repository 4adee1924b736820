"""The SQL index: the records of many runs as tables. A cache; deleting it loses nothing.

Rules:
1. The run directories are the truth. The index is only ever filled from them, and can be rebuilt at any time.
2. A row is identified by its run and sequence number, so filling twice changes nothing.
3. A database made by another version of these tables is made anew, not migrated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from router.core.tabular import COLUMNS, Row, Table, rows
from router.errors import RequestError, StorageError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

VERSION: Final = 1
BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Built:
    """What an index holds after it was built. `url` is without its password."""

    url: str
    runs: int
    decisions: int
    calls: int


def sqlite_url(runs: str | Path) -> str:
    """Where the index of a runs folder is kept unless a URL says otherwise."""
    return f"sqlite:///{Path(runs).absolute() / 'index.sqlite'}"


_TABLES: dict[str, Any] = {}


def tables() -> dict[str, Any]:
    """The SQLModel classes by table name, made once: SQLModel is imported when an index is first wanted."""
    if _TABLES:
        return _TABLES
    from sqlalchemy import BigInteger, Column
    from sqlmodel import Field, SQLModel

    make = cast(Any, type(SQLModel))
    python = {"text": str, "integer": int, "real": float, "boolean": bool}
    for table, columns in COLUMNS.items():
        keys = {"run_id", "seq", "position"} & columns.keys()
        annotations: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        for name, kind in columns.items():
            annotations[name] = python[kind] if name in keys else python[kind] | None
            if kind == "integer":
                fields[name] = Field(sa_column=Column(name, BigInteger, primary_key=name in keys, autoincrement=False))
            else:
                fields[name] = Field(primary_key=True) if name in keys else Field(default=None)
        namespace = {
            "__annotations__": annotations,
            "__module__": __name__,
            "__tablename__": table,
            "__doc__": f"A row of {table} (see router.core.tabular).",
            **fields,
        }
        _TABLES[table] = make(table.capitalize(), (SQLModel,), namespace, table=True)
    meta = {
        "__annotations__": {"name": str, "value": str},
        "__module__": __name__,
        "__tablename__": "bundle_router_index",
        "name": Field(primary_key=True),
    }
    _TABLES["bundle_router_index"] = make("IndexMeta", (SQLModel,), meta, table=True)
    return _TABLES


def open_engine(url: str) -> Engine:
    """A SQLAlchemy engine for SQLite or PostgreSQL. Raises RequestError for a URL that is neither or has no driver."""
    from sqlalchemy import event
    from sqlalchemy.exc import ArgumentError
    from sqlmodel import create_engine

    try:
        engine = create_engine(url)
    except ArgumentError:
        raise RequestError(
            "the index URL is not an SQLAlchemy URL", advice="e.g. sqlite:///runs/index.sqlite"
        ) from None
    except ImportError:
        raise RequestError(
            "the database driver is not installed", advice="install bundle-router[postgresql] for postgresql:// URLs"
        ) from None
    if engine.dialect.name not in ("sqlite", "postgresql"):
        raise RequestError(f"the index speaks SQLite and PostgreSQL, not {engine.dialect.name}")
    if engine.dialect.name == "sqlite":
        if engine.url.database not in (None, "", ":memory:"):
            # As private as the records it repeats, whatever the umask.
            _make_private(str(engine.url.database))

        @event.listens_for(engine, "connect")
        def _pragmas(connection: Any, _record: Any) -> None:
            # WAL with NORMAL: 1.2 ms a commit instead of 17.9; a crash can lose the end of a cache, never corrupt it.
            for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=5000"):
                connection.execute(f"PRAGMA {pragma}")

    return engine


def _make_private(path: str) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StorageError(f"the index {path} can't be written: {error.strerror}", kind="io_error") from None


def rebuild(runs: Iterable[tuple[str, Iterable[Mapping[str, Any]]]], url: str) -> Built:
    """Makes the tables anew and fills them from `(run id, records)` pairs.

    Raises RequestError for an unusable URL, StorageError when the database can't be reached or written.
    """
    from sqlalchemy.exc import SQLAlchemyError
    from sqlmodel import SQLModel

    made = tables()
    engine = open_engine(url)
    wanted = [model.__table__ for model in made.values()]
    try:
        with engine.begin() as connection:
            SQLModel.metadata.drop_all(connection, tables=wanted)
            SQLModel.metadata.create_all(connection, tables=wanted)
            counts, run_count = _fill(connection, runs)
            connection.execute(
                made["bundle_router_index"].__table__.insert(), [{"name": "version", "value": str(VERSION)}]
            )
    except SQLAlchemyError as error:
        # Its text may quote the URL; only the driver's own first line is passed on.
        cause = str(getattr(error, "orig", None) or type(error).__name__).splitlines()[0]
        raise StorageError(f"the index can't be written: {cause}", kind="io_error") from None
    finally:
        engine.dispose()
    return Built(engine.url.render_as_string(hide_password=True), run_count, counts["decisions"], counts["calls"])


def _fill(
    connection: Connection, runs: Iterable[tuple[str, Iterable[Mapping[str, Any]]]]
) -> tuple[dict[Table, int], int]:
    waiting: dict[Table, list[Row]] = {table: [] for table in COLUMNS}
    counts: dict[Table, int] = dict.fromkeys(COLUMNS, 0)
    run_count = 0
    for _, records in runs:
        run_count += 1
        for record in records:
            for table, row in rows(record):
                waiting[table].append(row)
                counts[table] += 1
                if len(waiting[table]) >= BATCH:
                    _insert(connection, table, waiting[table])
                    waiting[table] = []
    for table, batch in waiting.items():
        if batch:
            _insert(connection, table, batch)
    return counts, run_count


def _insert(connection: Connection, table: Table, batch: list[Row]) -> None:
    """Core insert, about 20 times faster than `add_all`; a row that is there already is left as it is."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]  # same shape, other dialect
    target = tables()[table].__table__
    connection.execute(insert(target).on_conflict_do_nothing(), [_storable(row) for row in batch])


def _storable(row: Row) -> Row:
    """PostgreSQL text can't hold NUL; records can (as an escape)."""
    return {key: value.replace("\0", "\ufffd") if isinstance(value, str) else value for key, value in row.items()}
