"""A database that many create tables, begin runs and prune in at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bundle_router.adapters.index import index_runs
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values.canonical import digest
from bundle_router.wiring.stores import open_archive

from tests.adapters.postgres.conftest import CATALOG
from tests.at_once import at_once

MANY = 4
ROUNDS = 20
Make = Callable[..., PostgresRunStore]


def record(number: int) -> dict[str, Any]:
    return {"type": "route.decided", "time": "2026-11-21T08:02:00Z", "number": number}


def test_a_run_that_is_begun_and_pruned_at_once_is_whole(make_store: Make, url: str) -> None:
    archive = open_archive(url)
    stores = [make_store() for _ in range(MANY - 1)]

    def work(number: int) -> int:
        if number == 0:
            return sum(archive.delete("r-1") for _ in range(ROUNDS))
        for count in range(ROUNDS):
            log = stores[number - 1].create(
                "r-1", header=RunHeader({"catalog_revision": digest(CATALOG)}), catalog=CATALOG
            )
            list(log.news())
            log.append("routing", record(count))
            log.close()
        return ROUNDS

    done = at_once(MANY, work)
    assert [one for one in done if isinstance(one, BaseException)] == []
    assert [
        archive.verify(run_id).problems
        for run_id in archive.run_ids()
        if not archive.verify(run_id).ok
    ] == []


def test_an_index_that_many_make_at_once_is_made(make_store: Make, url: str) -> None:
    make_store().create(
        "r-1", header=RunHeader({"catalog_revision": digest(CATALOG)}), catalog=CATALOG
    ).close()
    archive, index = open_archive(url), url.replace("postgresql://", "postgresql+psycopg://")
    done = at_once(MANY, lambda _: index_runs(archive, ["r-1"], index).runs)
    assert done == [1] * MANY
