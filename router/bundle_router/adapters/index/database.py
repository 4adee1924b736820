"""The index's tables and database: creates them, checks that they are ours, dumps them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

from bundle_router.adapters.database_file import create_private, use_wal
from bundle_router.adapters.private_folders import temporary_root
from bundle_router.core.records.table_columns import Kind, Table
from bundle_router.core.records.tables import COLUMNS, Row, keys_of
from bundle_router.core.values.canonical import digest_of
from bundle_router.errors import NotInstalled, RequestError, StorageError, storage_error

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.engine.reflection import Inspector

MEANING: Final = 7
"""What the columns mean. Raise it when the same columns come to hold something else; what the
tables look like is in the version anyway (`version_of`).
"""
BATCH: Final = 1000
BUSY_S: Final = 5
"""Seconds that a transaction waits for another process's."""
PREFIX: Final = "bundle_router_"
META: Final = "bundle_router_index"
WRITES: Final = "bundle_router_writes"
TEXTS: Final = PREFIX + "texts"
SEARCH: Final = PREFIX + "search"
CHANGED: Final = f"(select run_id from {PREFIX}sources where dirty)"
"""SQL: the runs whose totals have to be computed."""
BROKEN: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""SQLite's codes for a file that is no usable database."""

_DERIVED: Final[dict[str, dict[str, Kind]]] = {
    "facets": {"run_id": "text", "facet": "text", "value": "text", "count": "integer"},
    "sources": {
        "run_id": "text",
        "length": "integer",
        "records": "text",
        "rest": "text",
        "positions": "text",
        "head": "text",
        "problems": "text",
        "dirty": "boolean",
    },
    "totals": {
        "measure": "text",
        "name": "text",
        "detail": "text",
        "n": "integer",
        "amount": "real",
        "extra": "integer",
    },
    "hours": {
        "hour": "text",
        "source": "text",
        "decisions": "integer",
        "tokens": "integer",
        "all_tokens": "integer",
        "result_tokens": "integer",
        "degraded": "integer",
        "doubted": "integer",
        "cost_usd": "real",
        "calls": "integer",
        "denied": "integer",
        "failed": "integer",
    },
}
"""Tables besides those of `COLUMNS`: the facet values to filter runs by, how far each run was read,
and what all runs come to (see `totals`).
"""
_DERIVED_KEYS: Final = {
    "facets": ("run_id", "facet", "value"),
    "sources": ("run_id",),
    "totals": ("measure", "name", "detail"),
    "hours": ("hour", "source"),
}
_BY_KEY: Final = ("facets", "totals", "hours")
"""Tables that SQLite keeps in the order of their keys."""
OF_NO_RUN: Final = frozenset((META, "exposures", "totals", "hours"))
"""Tables whose rows are not those of one run."""
_INDEXES: Final = (
    ("facets", "facet, value, run_id"),
    ("runs", "began"),
    ("runs", "result_tokens"),
    ("calls", "result_tokens"),
    ("runs", "parent_run_id"),
    ("decisions", "run_id, decision_id"),
    ("decisions", "time"),
    ("calls", "run_id, decision_id"),
    ("calls", "run_id, decision_seq"),
    ("calls", "tool"),
    ("calls", "time"),
    ("calls", "elapsed_ms"),
    ("artifacts", "sha256"),
    ("sources where dirty", "run_id"),
)
"""Tables, with a condition where only some rows are meant, and the columns."""
_FULL_TEXT: Final = (
    (
        f"create table if not exists {TEXTS} (id integer primary key, run_id text, seq integer,"
        " field text, text text)"
    ),
    f"create index if not exists {TEXTS}_run on {TEXTS} (run_id, seq)",
    (
        f"create virtual table if not exists {SEARCH} using fts5(text, content='{TEXTS}',"
        " content_rowid='id', tokenize=\"unicode61 remove_diacritics 2\", prefix='3 6')"
    ),
    (
        f"create trigger if not exists {TEXTS}_added after insert on {TEXTS} begin "
        f"insert into {SEARCH}(rowid, text) values (new.id, new.text); end"
    ),
    (
        f"create trigger if not exists {TEXTS}_gone after delete on {TEXTS} begin "
        f"insert into {SEARCH}({SEARCH}, rowid, text) values ('delete', old.id, old.text); end"
    ),
)
"""SQLite's full-text search: a table holds the words, and triggers keep the search over it up to
date.
"""


def version_of(columns: Mapping[Table, Mapping[str, Kind]]) -> str:
    """Return the version of an index with these columns of records: tables of another version are
    made anew, so that no column can be forgotten in a number kept by hand.
    """
    layout = [
        [[table, sorted(rows.items()), sorted(keys_of(table))] for table, rows in columns.items()],
        [[name, sorted(rows.items())] for name, rows in _DERIVED.items()],
        sorted(_DERIVED_KEYS.items()),
        _INDEXES,
        _FULL_TEXT,
    ]
    return f"{MEANING}-{digest_of(layout).removeprefix('sha256:')[:12]}"


VERSION: Final = version_of(COLUMNS)

_TABLES: dict[str, Any] = {}
"""Of the process: SQLModel registers each class in metadata of the process, and takes the name of a
table once.
"""
_MAKING: Final = threading.Lock()


def tables() -> dict[str, Any]:
    """Return the SQLModel classes by table name (with `META`), created once: SQLModel is imported
    on first use.
    """
    with _MAKING:
        if _TABLES:
            return _TABLES
        from sqlmodel import Field, SQLModel

        for table, columns in COLUMNS.items():
            _TABLES[table] = _make_table(table, columns, keys_of(table))
        for name, columns in _DERIVED.items():
            _TABLES[name] = _make_table(name, columns, frozenset(_DERIVED_KEYS[name]))
        meta = {
            "__annotations__": {"name": str, "value": str},
            "__module__": __name__,
            "__tablename__": META,
            "name": Field(primary_key=True),
        }
        _TABLES[META] = cast(Any, type(SQLModel))("IndexMeta", (SQLModel,), meta, table=True)
        return _TABLES


def _make_table(table: str, columns: Any, keys: frozenset[str]) -> Any:
    from sqlalchemy import BigInteger, Boolean, Column, DateTime, Float, Text
    from sqlmodel import Field, SQLModel

    python = {"text": str, "integer": int, "real": float, "boolean": bool, "timestamp": object}
    kinds = {"text": Text, "integer": BigInteger, "real": Float, "boolean": Boolean}
    annotations: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name, kind in columns.items():
        annotations[name] = python[kind] if name in keys else python[kind] | None
        of = DateTime(timezone=True) if kind == "timestamp" else kinds[kind]()
        fields[name] = Field(
            sa_column=Column(name, of, primary_key=name in keys, autoincrement=False)
        )
    namespace = {
        "__annotations__": {
            n: Any if columns[n] == "timestamp" else a for n, a in annotations.items()
        },
        "__module__": __name__,
        "__tablename__": PREFIX + table,
        "__table_args__": {"sqlite_with_rowid": False} if table in _BY_KEY else {},
        "__doc__": f"A row of {table} (see bundle_router.core.records.tables).",
        **fields,
    }
    return cast(Any, type(SQLModel))(table.capitalize(), (SQLModel,), namespace, table=True)


# --- the database ---------------------------------------------------------------------------------


def open_engine(url: str) -> Engine:
    """Return a SQLAlchemy engine for SQLite or PostgreSQL.

    `sqlite://` is an index private to this engine, in a temporary file until the engine is disposed
    of: in memory, each thread would get an empty one. Raises RequestError for another URL or a
    missing driver, StorageError for a file that can't be created.
    """
    from sqlalchemy import event, make_url
    from sqlalchemy.exc import ArgumentError
    from sqlmodel import create_engine

    try:
        backend = make_url(url).get_backend_name()
    except ArgumentError:
        raise RequestError(
            "the index URL is not an SQLAlchemy URL", advice="e.g. sqlite:///runs/index.sqlite"
        ) from None
    if backend not in ("sqlite", "postgresql"):
        raise RequestError(f"the index can be in SQLite or PostgreSQL, not in {backend}")
    folder = None
    if url == "sqlite://":
        folder = TemporaryDirectory(prefix="bundle-router-index-", dir=temporary_root())
    try:
        engine = create_engine(url if folder is None else f"sqlite:///{folder.name}/index.sqlite")
    except ImportError:
        raise NotInstalled(
            "the database driver is not installed",
            advice="pip install 'bundle-router[postgresql]' for postgresql:// URLs",
        ) from None
    if folder is not None:
        event.listen(engine, "engine_disposed", lambda _: folder.cleanup())
    if engine.dialect.name == "sqlite":
        if engine.url.database not in (None, "", ":memory:"):
            # As private as the records that it copies, whatever the umask.
            _make_private(str(engine.url.database))

        @event.listens_for(engine, "connect")
        def _pragmas(connection: Any, _record: Any) -> None:
            connection.execute(f"PRAGMA busy_timeout={BUSY_S * 1000}")
            use_wal(connection, BUSY_S)
            connection.execute("PRAGMA cache_size=-32000")
            connection.isolation_level = None  # else CREATE TABLE would end its own transaction

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            writes = connection.get_execution_options().get(WRITES, False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a writing transaction. It waits for other writers when it begins, not in the middle."""
    with engine.execution_options(**{WRITES: True}).begin() as connection:
        if connection.dialect.name == "postgresql":  # which fails if two create one table
            connection.exec_driver_sql(
                "select pg_advisory_xact_lock(hashtext('bundle_router_index'))"
            )
        yield connection


def _make_private(path: str) -> None:
    try:
        create_private(path)
    except OSError as error:
        raise storage_error(f"the index {path} can't be written", error) from None


class BrokenIndex(StorageError):
    """The index's file is no usable database: it can be moved aside, since it is a cache."""


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Turn a database error into a StorageError that names the failed operation.

    Raises BrokenIndex for a file that is no usable database.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with translate_read_errors(doing):
            yield
    except SQLAlchemyError as error:
        # The error's text may quote the URL, so only the driver's own error is passed on.
        cause = getattr(error, "orig", None)
        raise _unusable(doing, cause, str(cause or type(error).__name__)) from None


@contextmanager
def translate_read_errors(doing: str) -> Iterator[None]:
    """As `translate_errors`, for connections of the standard library."""
    try:
        yield
    except sqlite3.Error as error:
        raise _unusable(doing, error, str(error)) from None


def _unusable(doing: str, cause: object, words: str) -> StorageError:
    message = f"the index can't be {doing}: {words.splitlines()[0]}"
    if getattr(cause, "sqlite_errorcode", 0) & 0xFF in BROKEN:
        return BrokenIndex(
            message,
            kind="io_error",
            advice="delete it: it is a cache of the runs, and is made anew",
        )
    return StorageError(
        message,
        kind="io_error",
        advice=(
            "check that the database is there, has space, and that nobody else is writing the index"
        ),
    )


def prepare(connection: Connection, *, named: bool) -> None:
    """Create our tables in this version and, unless runs are `named`, without rows.

    Never changes foreign tables.

    Raises RequestError if foreign tables have our names, or if runs are `named` and the tables have
    another version.
    """
    from sqlalchemy import inspect
    from sqlmodel import SQLModel

    indexed_tables = {model.__tablename__: model.__table__ for model in tables().values()}
    look = inspect(connection)
    existing = [name for name in indexed_tables if look.has_table(name)]
    version = _version(connection, look) if META in existing else None
    if existing and version is None:
        raise RequestError(
            f"the database has a table {existing[0]!r} that this program did not make; nothing was"
            " changed",
            advice="give --url another database (or schema), or rename that table",
        )
    if version not in (None, VERSION):
        if named:
            raise RequestError(
                f"the index was made by another version (its tables are version {version}, not"
                f" {VERSION})",
                advice="run `bundle-router runs index` without run ids: it makes the tables anew",
            )
        drop(connection, [indexed_tables[name] for name in existing])
    SQLModel.metadata.create_all(connection, tables=list(indexed_tables.values()))
    _make_the_rest(connection)
    if version != VERSION:
        connection.execute(indexed_tables[META].insert(), [{"name": "version", "value": VERSION}])
    elif not named:
        clear(connection)


def drop(connection: Connection, made: list[Any]) -> None:
    from sqlmodel import SQLModel, text

    if connection.dialect.name == "sqlite":
        for name in (SEARCH, TEXTS):
            connection.execute(text(f"drop table if exists {name}"))
    SQLModel.metadata.drop_all(connection, tables=made)


def clear(connection: Connection) -> None:
    """Delete all rows."""
    from sqlmodel import text

    if connection.dialect.name == "sqlite":
        connection.execute(text(f"delete from {TEXTS}"))
    for name, model in tables().items():
        if name != META:
            connection.execute(model.__table__.delete())


def has_current_tables(connection: Connection) -> bool:
    """Return whether the tables exist in this version.

    Raises RequestError for tables that are not ours.
    """
    from sqlalchemy import inspect

    look = inspect(connection)
    return look.has_table(META) and _version(connection, look) == VERSION


def _make_the_rest(connection: Connection) -> None:
    """Create the indexes and, in SQLite, the full-text search."""
    from sqlmodel import text

    for rows, columns in _INDEXES:
        table, _, condition = rows.partition(" where ")
        name = f"{PREFIX}{table}_{columns.split(',')[-1].strip()}_{len(columns)}"
        only = f" where {condition}" if condition else ""
        connection.execute(
            text(f"create index if not exists {name} on {PREFIX}{table} ({columns}){only}")
        )
    if connection.dialect.name == "sqlite":
        for statement in _FULL_TEXT:
            connection.execute(text(statement))


def _version(connection: Connection, look: Inspector) -> str | None:
    """Return the version of the existing tables; None if another program made `META`."""
    if {column["name"] for column in look.get_columns(META)} != {"name", "value"}:
        return None
    meta = tables()[META].__table__
    row = connection.execute(meta.select().where(meta.c.name == "version")).first()
    return None if row is None else str(row.value)


def insert_rows(connection: Connection, table: str, batch: list[Row]) -> None:
    """Insert rows, skipping existing ones. A core insert is about 20 times as fast as `add_all`."""
    if not batch:
        return
    times = [name for name, kind in COLUMNS.get(table, {}).items() if kind == "timestamp"]  # type: ignore[call-overload]  # any table
    for row in batch:
        row.update({name: instant_of(row[name]) for name in times if row[name] is not None})
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]  # same shape, other dialect
    connection.execute(insert(tables()[table].__table__).on_conflict_do_nothing(), batch)


def dump(url: str) -> Iterator[tuple[Table, list[Row]]]:
    """Yield the rows of every table, in batches. Times are timezone-aware. Raises StorageError."""
    engine = open_engine(url)
    try:
        with translate_errors("read"), engine.connect() as connection:
            for table, columns in COLUMNS.items():
                of = tables()[table].__table__
                times = [name for name, kind in columns.items() if kind == "timestamp"]
                keys = [of.c[name] for name in columns if name in keys_of(table)]
                result = connection.execution_options(yield_per=BATCH).execute(
                    of.select().order_by(*keys)
                )
                for part in result.mappings().partitions():
                    batch = [dict(row) for row in part]
                    for row in batch:
                        row.update(
                            {name: _in_utc(row[name]) for name in times if row[name] is not None}
                        )
                    yield table, batch
    finally:
        engine.dispose()


def _in_utc(time: datetime) -> datetime:
    """Return the time in UTC.

    SQLite returns a naive time in UTC, PostgreSQL one with its own zone.
    """
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time.astimezone(UTC)


def instant_of(text: str) -> datetime | None:
    """Parse an RFC 3339 text as a time in UTC; None if the day or hour does not exist."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None
