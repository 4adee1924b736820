"""A PostgreSQL for the store's tests: the server that `.ci/run` starts, a schema of each test's
own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.adapters.postgres.artifact_rows import lock_of
from bundle_router.core.records.run_header import RunHeader
from bundle_router.testing import FakeClock

SERVER = os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL", "").replace(
    "postgresql+psycopg://", "postgresql://", 1
)
REASON = "BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one"
CATALOG = '{"servers":[]}'
HEADER = RunHeader({"catalog_revision": "sha256:" + "0" * 64, "bundle_router": "0.1.0"})

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not SERVER and "postgres" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture
def url() -> Iterator[str]:
    """A database URL whose search path is a schema of this test's own."""
    name = f"store_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(SERVER, autocommit=True) as connection:
        connection.execute(f"create schema {name}")
    yield f"{SERVER}{'&' if '?' in SERVER else '?'}options=-csearch_path%3D{name}"
    with psycopg.connect(SERVER, autocommit=True) as connection:
        connection.execute(f"drop schema {name} cascade")


@pytest.fixture
def make_store(url: str) -> Iterator[Callable[..., PostgresRunStore]]:
    """Makes stores as processes would have them, each with connections of its own."""
    made: list[PostgresRunStore] = []

    def make(**options: Any) -> PostgresRunStore:
        objects = options.pop("objects", "")
        whole = url + (f"&objects={objects}" if objects else "")
        made.append(PostgresRunStore(whole, clock=FakeClock(), **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


_SESSIONS = (
    "select pid from pg_locks where locktype = 'advisory' and granted and mode = 'ExclusiveLock'"
    " and (classid::bigint << 32) | objid::bigint = %s"
)


def sessions_of(store: PostgresRunStore, token: str) -> list[int]:
    """The server's processes in which a worker's lock is held."""
    lock = lock_of(f"writer:{token}")
    with psycopg.connect(store.pool.conninfo, autocommit=True) as connection:
        return [pid for (pid,) in connection.execute(_SESSIONS, (lock,))]


def break_session(store: PostgresRunStore, token: str) -> list[int]:
    """Ends the session of a worker in the server, and returns which it was."""
    ended = sessions_of(store, token)
    with psycopg.connect(store.pool.conninfo, autocommit=True) as connection:
        for pid in ended:
            connection.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    return ended
