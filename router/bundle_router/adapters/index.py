"""The SQL index: the records of many runs as tables. A cache; deleting it loses nothing.

Rules:
1. The run directories are the truth. The index is only ever filled from them, and can be rebuilt at any time.
2. A row is identified by its run and sequence number, so filling twice changes nothing.
3. The database may be shared. Every table is called `bundle_router_…`; none is touched unless `bundle_router_index`
   says that this program made it, and no other table ever is.
4. Named runs are replaced one by one, the rows of all others stay. Without names the index holds the given runs alone.
5. Tables of another version are made anew, not migrated; that takes a fill without names, which loses no run.
6. One transaction: a fill that fails leaves the rows as they were.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from bundle_router.core.records.tables import COLUMNS, Row, Table, rows
from bundle_router.errors import NotInstalled, RequestError, StorageError, storage_error

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.engine.reflection import Inspector

VERSION: Final = 2
BATCH: Final = 1000
PREFIX: Final = "bundle_router_"
META: Final = "bundle_router_index"


@dataclass(frozen=True, slots=True)
class Built:
    """What was put into an index. `url` is without its password."""

    url: str
    runs: int
    decisions: int
    calls: int


def sqlite_url(runs: str | Path) -> str:
    """Where the index of a runs folder is kept unless a URL says otherwise."""
    return f"sqlite:///{Path(runs).absolute() / 'index.sqlite'}"


_TABLES: dict[str, Any] = {}


def tables() -> dict[str, Any]:
    """The SQLModel classes by table of `COLUMNS` (and `META`), made once: SQLModel is imported when first wanted."""
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
            "__tablename__": PREFIX + table,
            "__doc__": f"A row of {table} (see bundle_router.core.records.tables).",
            **fields,
        }
        _TABLES[table] = make(table.capitalize(), (SQLModel,), namespace, table=True)
    meta = {
        "__annotations__": {"name": str, "value": str},
        "__module__": __name__,
        "__tablename__": META,
        "name": Field(primary_key=True),
    }
    _TABLES[META] = make("IndexMeta", (SQLModel,), meta, table=True)
    return _TABLES


def open_engine(url: str) -> Engine:
    """A SQLAlchemy engine for SQLite or PostgreSQL. Raises RequestError for a URL that is neither or has no driver."""
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
        raise RequestError(f"the index speaks SQLite and PostgreSQL, not {backend}")
    try:
        engine = create_engine(url)
    except ImportError:
        advice = "pip install 'bundle-router[postgresql]' for postgresql:// URLs"
        raise NotInstalled("the database driver is not installed", advice=advice) from None
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
        raise storage_error(f"the index {path} can't be written", error) from None


def rebuild(runs: Iterable[tuple[str, Iterable[Mapping[str, Any]]]], url: str, *, named: bool = False) -> Built:
    """Fills the index from `(run id, records)` pairs. `named`: the rows of other runs stay; else it holds these alone.

    Raises RequestError for an unusable URL, for tables of our names that something else made, and for `named` runs in
    an index of another version; StorageError when the database can't be reached or written.
    """
    from sqlalchemy.exc import SQLAlchemyError

    engine = open_engine(url)
    try:
        with engine.begin() as connection:
            _prepare(connection, named=named)
            counts, run_count = _fill(connection, runs, named=named)
    except SQLAlchemyError as error:
        # Its text may quote the URL; only the driver's own first line is passed on.
        cause = str(getattr(error, "orig", None) or type(error).__name__).splitlines()[0]
        advice = "check that the database is there, has space, and that nobody else is writing the index"
        raise StorageError(f"the index can't be written: {cause}", kind="io_error", advice=advice) from None
    finally:
        engine.dispose()
    return Built(engine.url.render_as_string(hide_password=True), run_count, counts["decisions"], counts["calls"])


def _prepare(connection: Connection, *, named: bool) -> None:
    """Our tables, of this version and, unless runs are `named`, without rows. Refuses to touch what is not ours."""
    from sqlalchemy import inspect
    from sqlmodel import SQLModel

    made = {model.__tablename__: model.__table__ for model in tables().values()}
    look = inspect(connection)
    there = [name for name in made if look.has_table(name)]
    version = _version(connection, look) if META in there else None
    if there and version is None:
        raise RequestError(
            f"the database has a table {there[0]!r} that is no index of this program; nothing was changed",
            advice="give --url another database (or schema), or rename that table",
        )
    if version not in (None, str(VERSION)):
        if named:
            raise RequestError(
                f"the index was made by another version (its tables are version {version}, not {VERSION})",
                advice="run `bundle-router runs index` without run ids: it makes the tables anew",
            )
        SQLModel.metadata.drop_all(connection, tables=[made[name] for name in there])
    SQLModel.metadata.create_all(connection, tables=list(made.values()))
    if version != str(VERSION):
        connection.execute(made[META].insert(), [{"name": "version", "value": str(VERSION)}])
    elif not named:
        for name, table in made.items():
            if name != META:
                connection.execute(table.delete())


def _version(connection: Connection, look: Inspector) -> str | None:
    """The version of the tables that are there; None when `META` is a table that somebody else made."""
    if {column["name"] for column in look.get_columns(META)} != {"name", "value"}:
        return None
    meta = tables()[META].__table__
    found = connection.execute(meta.select().where(meta.c.name == "version")).first()
    return None if found is None else str(found.value)


def _fill(
    connection: Connection, runs: Iterable[tuple[str, Iterable[Mapping[str, Any]]]], *, named: bool
) -> tuple[dict[Table, int], int]:
    waiting: dict[Table, list[Row]] = {table: [] for table in COLUMNS}
    counts: dict[Table, int] = dict.fromkeys(COLUMNS, 0)
    run_count = 0
    for run_id, records in runs:
        run_count += 1
        if named:
            for table in COLUMNS:
                target = tables()[table].__table__
                connection.execute(target.delete().where(target.c.run_id == run_id))
        for table, row in (found for record in records for found in rows(record)):
            waiting[table].append({**row, "run_id": run_id})  # of the directory: it is what runs are replaced by
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
    connection.execute(insert(tables()[table].__table__).on_conflict_do_nothing(), batch)
