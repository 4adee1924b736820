"""The tables and their migrations. Table names have no schema: the search path decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg

from bundle_router.errors import RequestError, StorageError

MIGRATIONS: Final = tuple(
    path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).with_name("migrations").glob("*.sql"))
)
"""Statements that turn version n into version n + 1. Never edit a released file: add a new one."""

VERSION: Final = len(MIGRATIONS)
_LOCK: Final = 0x62756E646C65_01
"""Advisory lock under which tables are created, so that two starting workers do not create them
twice.
"""


def migrate(connection: psycopg.Connection[Any]) -> int:
    """Migrate the tables to this version, in one transaction.

    Return the version they had before (0: no tables).

    Raises RequestError for tables of a later version, StorageError if other tables have these
    names.
    """
    version = _version(connection)
    if version == VERSION:
        return version
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        version = _version(connection)
        if version > VERSION:
            raise RequestError(
                f"the database's tables of runs are of version {version}, and this program knows"
                f" {VERSION}",
                advice="update bundle-router on this machine",
            )
        if version == 0:
            connection.execute("create table router_schema (version integer not null)")
            connection.execute("insert into router_schema values (0)")
        for migration in MIGRATIONS[version:]:
            try:
                connection.execute(migration)
            except psycopg.errors.DuplicateTable as error:
                raise StorageError(
                    "another program's table in the database has one of our names:"
                    f" {error.diag.message_primary}",
                    kind="io_error",
                    advice="give runs a schema of their own: …?options=-csearch_path%3Drouter",
                ) from None
        connection.execute("update router_schema set version = %s", (VERSION,))
    return version


def _version(connection: psycopg.Connection[Any]) -> int:
    # Not to_regclass: its cache may not yet know a table that another worker committed.
    query = (
        "select 1 from pg_class where relname = 'router_schema' "
        "and relnamespace = any (current_schemas(false)::regnamespace[])"
    )
    if connection.execute(query).fetchone() is None:
        return 0
    row = connection.execute("select version from router_schema").fetchone()
    return int(row[0]) if row is not None else 0
