"""The store behind PgBouncer: session mode as documented, and the other modes refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.adapters.postgres.connections import settings_of_options
from bundle_router.core.records.chain import check
from bundle_router.errors import RequestError
from bundle_router.testing import FakeClock

from tests.adapters.postgres.conftest import CATALOG, HEADER
from tests.adapters.postgres.servers import BINARIES, PGBOUNCER, PgBouncer, Server
from tests.at_once import at_once

needs_pgbouncer = pytest.mark.skipif(
    not (BINARIES and PGBOUNCER), reason="there is no PgBouncer, or no PostgreSQL server"
)
Behind = Callable[..., str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    made.begin()
    yield made
    made.end()


@pytest.fixture
def behind(server: Server) -> Iterator[Behind]:
    """Starts a PgBouncer with these settings, and returns the URL of the server behind it."""
    made = []

    def start(*settings: str) -> str:
        made.append(PgBouncer(server, *settings))
        return made[-1].url

    yield start
    for one in made:
        one.end()


@needs_pgbouncer
@pytest.mark.parametrize("ignored", ["", "ignore_startup_parameters = extra_float_digits,options"])
def test_session_mode_works_with_its_defaults_and_keeps_every_limit(
    behind: Behind, ignored: str
) -> None:
    schema = "own_ignored" if ignored else "own"
    url = behind("pool_mode = session", ignored) + f"&options=-csearch_path%3D{schema},public"
    stores = [PostgresRunStore(url, clock=FakeClock(), wait_s=4.0) for _ in range(3)]
    stores[0].pool.fetch(f"create schema {schema}")
    logs = [store.create("r", header=HEADER, catalog=CATALOG) for store in stores]

    def work(number: int) -> None:
        for count in range(5):
            record = {"type": "route.decided", "key": f"{number}.{count}"}
            logs[number].append("routing", record, wait_s=60.0)

    assert at_once(3, work) == [None] * 3
    assert stores[1].pool.fetch("show statement_timeout") == [("4s",)]
    assert stores[1].is_alive(stores[2].writer)
    rows = stores[2].pool.fetch(f"select line from {schema}.router_records order by seq")
    found = check({"routing": [line.encode() + b"\n" for (line,) in rows]}, "r", None)
    assert (found.count, found.broken) == (15, None)
    for store in stores:
        store.close()


@needs_pgbouncer
@pytest.mark.parametrize("pool", ["default_pool_size = 1", "default_pool_size = 20"])
@pytest.mark.parametrize("turns", ["server_round_robin = 0", "server_round_robin = 1"])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_mode_in_which_connections_change_is_refused_in_a_sentence(
    behind: Behind, mode: str, turns: str, pool: str
) -> None:
    url = behind(f"pool_mode = {mode}", turns, pool)
    stores = [PostgresRunStore(url, clock=FakeClock()) for _ in range(2)]
    for store in stores:
        with pytest.raises(RequestError, match=r"the pooler at .* is in transaction ") as raised:
            store.open("r")
        assert "pool_mode = session" in raised.value.advice
        store.close()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", {}),
        ("-c search_path=a,b", {"search_path": "a,b"}),
        (r"-csearch_path=a\ b  --lock-timeout=1s", {"search_path": "a b", "lock_timeout": "1s"}),
        ("-c a=b=c", {"a": "b=c"}),
        ("-c", None),
        ("-c a", None),
        ("-B 16 -c a=b", None),
    ],
)
def test_options_are_read_as_the_server_reads_them(
    options: str, settings: dict[str, str] | None
) -> None:
    assert settings_of_options(options) == settings
