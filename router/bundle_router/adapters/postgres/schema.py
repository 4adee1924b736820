"""The tables and their migrations. Table names have no schema: the search path decides."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from bundle_router.errors import RequestError, StorageError

MIGRATIONS: Final[tuple[str, ...]] = (
    # 1
    """
    create table router_runs (
        run_id text collate "C" primary key,
        next_seq bigint not null default 0,
        head text not null,
        opened text not null,
        header text not null,
        ended text
    );
    comment on column router_runs.header is 'run.json as the run began; ended: as it was closed, null while it is open';
    create table router_records (
        run_id text collate "C" not null references router_runs on delete cascade,
        seq bigint not null,
        file text not null,
        kind text not null,
        key text,
        branch text,
        attempt integer not null default 1,
        line text not null,
        primary key (run_id, seq)
    );
    create unique index router_records_key on router_records (run_id, kind, key, attempt)
        where key is not null and kind in ('route.decided', 'call.started');
    create index router_records_kind on router_records (run_id, kind, seq);
    create table router_catalogs (revision text primary key, catalog text not null);
    create table router_run_catalogs (
        run_id text collate "C" not null references router_runs on delete cascade,
        revision text not null references router_catalogs,
        position integer not null,
        primary key (run_id, revision)
    );
    create table router_artifacts (sha256 text primary key, size bigint not null, data bytea);
    comment on column router_artifacts.data is 'null: the bytes are in the object store';
    create table router_run_artifacts (
        run_id text collate "C" not null references router_runs on delete cascade,
        sha256 text not null references router_artifacts,
        primary key (run_id, sha256)
    );
    create index router_run_artifacts_sha256 on router_run_artifacts (sha256);
    create table router_labels (
        run_id text collate "C" not null references router_runs on delete cascade,
        position bigint generated always as identity,
        line text not null,
        primary key (run_id, position)
    );
    """,
)
"""Statements that turn version n into version n + 1. Never edit a released entry: add a new one."""

VERSION: Final = len(MIGRATIONS)
_LOCK: Final = 0x62756E646C65_01
"""Advisory lock under which tables are created, so that two starting workers do not create them twice."""


def migrate(connection: psycopg.Connection[Any]) -> int:
    """Migrate the tables to this version, in one transaction. Return the version they had before (0: no tables).

    Raises RequestError for tables of a later version, StorageError if other tables have these names.
    """
    before = _version(connection)
    if before == VERSION:
        return before
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        before = _version(connection)
        if before > VERSION:
            raise RequestError(
                f"the database holds version {before} of the tables of runs, and this program knows {VERSION}",
                advice="update bundle-router on this machine",
            )
        if before == 0:
            connection.execute("create table router_schema (version integer not null)")
            connection.execute("insert into router_schema values (0)")
        for migration in MIGRATIONS[before:]:
            try:
                connection.execute(migration)
            except psycopg.errors.DuplicateTable as error:
                raise StorageError(
                    f"the database has another program's table of one of our names: {error.diag.message_primary}",
                    kind="io_error",
                    advice="give runs a schema of their own: …?options=-csearch_path%3Drouter",
                ) from None
        connection.execute("update router_schema set version = %s", (VERSION,))
    return before


def _version(connection: psycopg.Connection[Any]) -> int:
    # Not to_regclass: its cache may not yet know a table that another worker committed.
    query = (
        "select 1 from pg_class where relname = 'router_schema' "
        "and relnamespace = any (current_schemas(false)::regnamespace[])"
    )
    if connection.execute(query).fetchone() is None:
        return 0
    found = connection.execute("select version from router_schema").fetchone()
    return int(found[0]) if found is not None else 0
